"""Kill a process that writes checkpoints by SIGKILL, at a random moment, round after round, and look at its store.

    tools/python tests/checkpoints/kill_rounds.py LOCAL_FOLDER --rounds 200 [--seed N]
    tools/python tests/checkpoints/kill_rounds.py moto --rounds 200

The writer restores the newest checkpoint, at another parallelism, and goes on: state of every kind, checkpoints in
every format, tags, savepoints, leases, collections. It says what it was told is safe, with a checksum of the content.
After each round another process looks whether all of that is there and unchanged, and whether every checkpoint has the
state that its steps lead to. In the end everything that can be collected is, and what is left in the raw storage is
compared with what is needed. `moto` runs a simulator of S3. The exit code is 1 after any loss. Also run by tests, in a
shorter form.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from arrowstate import CheckpointNotFoundError, CollectedError, RetentionPolicy
from arrowstate.files.references import ReferenceReader
from arrowstate.log.entries import create_store
from arrowstate.log.leases import DEFAULT_LEASE_MS
from arrowstate.storage import Storage, open_storage, options_beside
from arrowstate.store import Snapshot, StateStore
from every_kind import UID, Job, small_files

FORMATS = ("arrow", "parquet")
"""Lance refuses to work in a forked process, and a fresh one for each round would take seconds."""
KEYS = 60
ROUND_MS = 1000
"""What a round takes by the clock of the stores, which nothing else moves."""
GRACE_MS = 2 * ROUND_MS
KEPT = 2
WARM_UP = "memory://kill-rounds"


@dataclass(frozen=True)
class Place:
    """Where the store is, and the time there."""

    url: str
    options: Any = None
    now_ms: int = ROUND_MS

    def open(self) -> StateStore:
        storage = open_storage(self.url, create=True, storage_options=self.options)
        # Many processes make it a store at once, or die while they do.
        identity = create_store(storage, os.urandom(16).hex(), self.now_ms)
        return StateStore(storage, identity.store_id, clock_ms=lambda: self.now_ms)


@dataclass
class Told:
    """What the writers of all rounds were told, in order."""

    safe: dict[int, tuple[int, str]] = field(default_factory=dict)
    "By checkpoint: its number of steps, and the checksum of its content. Without those that a collection may drop."
    tags: dict[str, int] = field(default_factory=dict)
    tagged: dict[int, tuple[int, str]] = field(default_factory=dict)
    "What a tag keeps, as in `safe`."
    savepoints: dict[str, tuple[int, str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def take(self, line: str) -> None:
        what, *said = json.loads(line)
        self.counts[what] += 1
        if what == "checkpoint":
            checkpoint_id, steps, checksum = said
            self.safe[checkpoint_id] = (steps, checksum)
        elif what == "collecting":
            # From here on only the newest is sure to stay: others that nobody was told of may count as newer.
            newest = max(self.safe)
            self.safe = {newest: self.safe[newest]}
        elif what == "tagged":
            name, checkpoint_id, steps, checksum = said
            self.tags[name] = checkpoint_id
            self.tagged[checkpoint_id] = (steps, checksum)
        elif what == "untagging":
            self.tagged.pop(self.tags.pop(said[0], -1), None)
        elif what == "savepoint":
            name, steps, checksum = said
            self.savepoints[name] = (steps, checksum)


def write(place: Place, seed: int, say: Callable[..., None]) -> None:
    """Go on from the newest checkpoint for ever."""
    dice = random.Random(seed)
    store = place.open()
    with store.writer() as writer:
        parallelism = dice.choice([1, 2, 3])
        try:
            latest = store.latest()
            steps = latest.properties["steps"]
            job = Job.restored(latest, parallelism, KEYS)
        except CheckpointNotFoundError:
            steps, job = 0, Job.new(parallelism, KEYS)
        while True:
            job.step(steps)
            steps += 1
            snapshot = commit(writer, job, steps, dice)
            checksum = job.checksum()
            say("checkpoint", snapshot.checkpoint_id, steps, checksum)
            turn = dice.randrange(12)
            if turn == 0:
                say("tagging")
                store.tag(f"tag-{snapshot.checkpoint_id}", snapshot.checkpoint_id)
                say("tagged", f"tag-{snapshot.checkpoint_id}", snapshot.checkpoint_id, steps, checksum)
            elif turn == 1 and store.tags():
                name = min(store.tags())
                say("untagging", name)
                store.untag(name)
            elif turn in (2, 3, 7, 8):
                say("collecting")
                store.collect(RetentionPolicy(count=KEPT), grace_ms=GRACE_MS, allow_short_grace=True).apply()
                say("collected")
            elif turn == 4:
                say("saving")
                store.savepoint(f"savepoint-{snapshot.checkpoint_id}")
                say("savepoint", f"savepoint-{snapshot.checkpoint_id}", steps, checksum)
            elif turn == 5:
                say("rescaling")
                job = Job.restored(snapshot, dice.choice([1, 2, 3]), KEYS)
            elif turn == 6:
                say("leasing")
                store.lease(ttl_ms=ROUND_MS).release()


def commit(writer: Any, job: Job, steps: int, dice: random.Random) -> Snapshot:
    while True:
        try:
            return writer.checkpoint(
                {UID: job.keyed},
                operator_states={UID: job.operator},
                properties={"steps": steps},
                format=dice.choice(FORMATS),
            )
        except CollectedError:
            # Nothing was committed; the next attempt writes what it would have referred to.
            continue


def check(place: Place, told: Told, savepoints: set[str], model: list[str], say: Callable[..., None]) -> None:
    """Compare every checkpoint, and these savepoints, with what was told of them and with what their steps lead to."""
    store = place.open()
    snapshots = {snapshot.checkpoint_id: snapshot for snapshot in store.checkpoints()}
    problems = [f"checkpoint {number} is gone" for number in told.safe.keys() - snapshots.keys()]
    problems += [f"checkpoint {number} is gone, and tagged" for number in told.tagged.keys() - snapshots.keys()]
    problems += [f"tag {name} is gone" for name in told.tags.keys() - store.tags().keys()]
    for checkpoint_id, snapshot in snapshots.items():
        problems += compare(f"checkpoint {checkpoint_id}", snapshot, told.safe.get(checkpoint_id or 0), model)
    for name in savepoints:
        storage = options_beside(store.storage, f"{store.url}/savepoints/{name}")
        saved = Place(f"{store.url}/savepoints/{name}", storage).open()
        problems += compare(f"savepoint {name}", saved.latest(), told.savepoints[name], model)
    problems += store.verify().problems
    say(*problems)


def compare(name: str, snapshot: Snapshot, expected: tuple[int, str] | None, model: list[str]) -> list[str]:
    steps = snapshot.properties["steps"]
    found = Job.restored(snapshot, 1, KEYS).checksum()
    if expected is not None and expected != (steps, found):
        return [f"{name} was told to be {expected}, and is {(steps, found)}"]
    if found != model[steps]:
        return [f"{name} is not what {steps} steps lead to"]
    return []


def look_for_leaks(place: Place, raw: Callable[[], set[str]], say: Callable[..., None]) -> None:
    """Collect all that may be, twice with the grace period between, and compare what is there with what is needed."""
    # A savepoint that was killed leaves a lease of ours on what it read, which the first collection must see ended.
    ended_ms = place.now_ms + DEFAULT_LEASE_MS
    for number in (1, 2):
        store = Place(place.url, place.options, ended_ms + number * GRACE_MS).open()
        collection = store.collect(RetentionPolicy(count=KEPT), grace_ms=GRACE_MS, allow_short_grace=True)
        collection.apply()
    reader = ReferenceReader(store.storage)
    needed = {path for snapshot in store.checkpoints() for path in reader.files(snapshot.entry.operators)}
    needed |= {path for path in store.storage.list("") if path.startswith(("log/", "tags/", "gc/boundary-"))}
    # A savepoint belongs to its owner; one that was not finished is named by every plan.
    stores = [path.removesuffix("arrowstate.json") for path in raw() if path.endswith("/arrowstate.json")]
    savepoints = {path for path in raw() if path.startswith(tuple(stores)) and "/." not in path}
    found = raw() - needed - savepoints - {"arrowstate.json", "_latest"} - set(collection.plan.foreign)
    log = len(store.storage.list("log/"))
    tags = len(store.tags())
    problems = [f"{path} is left, and no collection finds it" for path in sorted(found)]
    if log > KEPT + 2 * tags + 20:
        problems.append(f"the log has {log} entries")
    say(*problems, *(f"{path} is missing" for path in sorted(needed - raw())), *store.verify(deep=True).problems)


def raw_listing(storage: Storage) -> Callable[[], set[str]]:
    """What is there by the means of the place itself, unfinished files too."""
    if "://" not in storage.url:
        root = Path(storage.url)
        return lambda: {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    return lambda: set(storage.list(""))


@dataclass
class Child:
    """A process that runs a function and says things; this one has no threads that a fork would lose."""

    pid: int
    reader: int
    data: bytes = b""

    @classmethod
    def start(cls, function: Callable[..., None], *arguments: Any) -> Child:
        reader, sink = os.pipe()
        pid = os.fork()
        if pid:
            os.close(sink)
            return cls(pid, reader)
        os.close(reader)
        try:
            # One write for each line: a pipe keeps it whole, or nothing of it.
            function(*arguments, lambda *said: os.write(sink, json.dumps(said).encode() + b"\n"))
            os._exit(0)
        except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as its parent
            traceback.print_exc()
            os._exit(1)

    def wait_for(self, lines: int) -> None:
        while self.data.count(b"\n") < lines:
            piece = os.read(self.reader, 1 << 16)
            if not piece:
                return
            self.data += piece

    def kill(self) -> list[str]:
        """Kill it; return what it had said."""
        os.kill(self.pid, signal.SIGKILL)
        said = self._rest()
        if os.waitpid(self.pid, 0)[1] != signal.SIGKILL:
            raise RuntimeError("the writer ended by itself")
        return said

    def result(self) -> list[str]:
        """Wait until it ends; return the values of the line that it said."""
        said = self._rest()
        if os.waitpid(self.pid, 0)[1] != 0:
            return ["the process that looks at the store failed"]
        return json.loads(said[-1])

    def _rest(self) -> list[str]:
        with os.fdopen(self.reader, "rb") as pipe:
            self.data += pipe.read()
        return self.data.decode().splitlines()


def warm_up() -> None:
    """Load every kernel before the first fork, so that a round takes its time for what is to be killed."""
    store = Place(WARM_UP).open()
    job = Job.new(2, KEYS)
    with store.writer() as writer:
        for number in range(3 * len(FORMATS)):
            job.step(number)
            snapshot = commit(writer, job, number + 1, random.Random(number))
            job = Job.restored(snapshot, 1 + number % 3, KEYS)
            job.checksum()
    store.savepoint("warm")


def rounds(place: Place, count: int, seed: int) -> Iterator[tuple[int, Told, list[str]]]:
    """Kill so many writers; after each yield the round, what was told so far, and what is wrong."""
    dice = random.Random(seed)
    told = Told()
    known: set[str] = set()
    job, model = Job.new(1, KEYS), [""]
    for number in range(count):
        now = Place(place.url, place.options, (number + 1) * ROUND_MS)
        child = Child.start(write, now, dice.randrange(1 << 30))
        lines = dice.choice([0, 0, 1, 2, 4, 8])
        child.wait_for(lines)
        # Without a line: anywhere from its start on. Otherwise in what comes after one.
        moment = time.perf_counter() + dice.uniform(0, 0.05 if lines else 0.4)
        while time.perf_counter() < moment:
            pass
        for line in child.kill():
            told.take(line)
        # A checkpoint that nobody was told of may be there as well, and the next one in its place.
        while len(model) <= told.counts["checkpoint"] + number + 2:
            job.step(len(model) - 1)
            model.append(job.checksum())
        # A savepoint has a folder of its own, which nobody writes to: it is looked at when it is new, and in the end.
        savepoints = set(told.savepoints) - (known if number + 1 < count else set())
        known |= savepoints
        yield number, told, Child.start(check, now, told, savepoints, model).result()


@contextmanager
def moto_place() -> Iterator[Place]:
    """A bucket in a simulator of S3, which runs in a process of its own."""
    from object_servers import S3_OPTIONS

    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    server = context.Process(target=serve, args=(queue,), daemon=True)
    server.start()
    with tempfile.TemporaryDirectory() as cache:
        try:
            options = {**S3_OPTIONS, "endpoint_url": queue.get(), "cache_dir": cache}
            yield Place("s3://bucket/kill", options)
        finally:
            server.terminate()
            server.join()


def serve(queue: Any) -> None:
    from object_servers import s3_server

    with s3_server() as endpoint:
        queue.put(endpoint)
        signal.pause()


def run(url: str, count: int, seed: int) -> tuple[Told, list[str]]:
    """Kill writers of a store at a path, or in `moto`; what was told, and what is wrong."""
    with ExitStack() as stack:
        place = stack.enter_context(moto_place()) if url == "moto" else Place(str(Path(url).absolute()))
        if url == "moto":
            # Loaded here, and used only in the children: a client has threads.
            import s3fs  # noqa: F401
        # A request to the simulator takes as long as a hundred files on a disk.
        files = small_files(inline_bytes=1500, directory_rows=1 << 20) if url == "moto" else small_files()
        stack.enter_context(files)
        warm_up()
        told = Told()
        for number, told, problems in rounds(place, count, seed):
            if problems:
                return told, [f"round {number}: {problem}" for problem in problems]
        end = Place(place.url, place.options, (count + 1) * ROUND_MS)
        problems = Child.start(_look_for_leaks, end).result()
        return told, [f"at the end: {problem}" for problem in problems]


def _look_for_leaks(place: Place, say: Callable[..., None]) -> None:
    look_for_leaks(place, raw_listing(place.open().storage), say)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url", help="an empty folder of this machine, or `moto`")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    started = time.monotonic()
    told, problems = run(given.url, given.rounds, given.seed)
    print(*problems, sep="\n", end="\n" if problems else "")
    counts = ", ".join(f"{count} {what}" for what, count in sorted(told.counts.items()))
    print(
        f"{given.rounds} rounds on {given.url}, seed {given.seed}: {counts}; {len(problems)} problems, "
        f"{time.monotonic() - started:.0f} s"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
