"""Damage one file of a store at a time and ask it everything: the right answer or a clear error, never a wrong answer.

    tools/python tests/store/bit_flips.py --trials 1000 [--seed N]

Each trial flips one random bit of one random file; kinds of files take turns, and so do header, body and footer. For
every tenth trial there is one with a file that was cut short, and one with a file that something was appended to.
Nothing that this process has read before is used. The exit code is 1 after a wrong answer, after an error that is not
of the project, or if `verify --deep` calls a store whole that answers something with an error. Also run by tests, in a
shorter form.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import duckdb

from arrowstate import CorruptDataError, FormatVersionError, RetentionPolicy
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.references import ReferenceReader
from arrowstate.log.entries import create_store, open_store_document, path_of
from arrowstate.log.pins import put_lease
from arrowstate.query.kept_reads import forget_checkpoints
from arrowstate.storage import open_storage
from arrowstate.store import Snapshot, StateStore
from arrowstate.upkeep.collection import apply_collection
from arrowstate.upkeep.collection_plan import plan_collection
from every_kind import FORMATS, UID, Job, small_files

KEYS = 90
NOW_MS = 1_000_000
FLIP, CUT, APPEND = "flipped", "cut short", "appended to"
POSITIONS = ("header", "body", "footer")


def kinds() -> dict[str, list[str]]:
    """Patterns of the files of each kind."""
    runs = {f"{format} run": [f"data/{UID}/*/*.{format}"] for format in FORMATS}
    savepoints = {
        f"savepoint {what}": [f"savepoints/*/{pattern}"]
        for what, pattern in [("run", f"data/{UID}/*/*"), ("manifest", "manifests/*"), ("entry", "log/*")]
    }
    return {
        **runs,
        # Their files are Arrow files as well, in folders of their own.
        "operator state": [f"data/{UID}/{name}/*.arrow" for name in ("offsets", "topics", "rules")],
        "directory": [f"data/{UID}/*/*.directory"],
        "deletion vector": [f"data/{UID}/*/*.roaring"],
        "manifest": ["manifests/*.json"],
        "log entry": ["log/*.json"],
        "identity": ["arrowstate.json", "savepoints/*/arrowstate.json"],
        "hint": ["_latest", "savepoints/*/_latest"],
        "tag": ["tags/*.json"],
        "lease": ["leases/*.json"],
        "boundary": ["gc/boundary-*.json"],
        "condemned": ["gc/condemned-*.json"],
        **savepoints,
    }


class _Stop(Exception):
    """What a collection meets that dies."""


def make_store(folder: Path) -> None:
    """Write a store with files of every kind: checkpoints, a tag, a lease, a savepoint, collections."""
    storage = open_storage(folder, create=True)
    numbers = itertools.count()

    def new_id() -> str:
        return f"{next(numbers):032x}"

    create_store(storage, new_id(), NOW_MS)
    store = StateStore(storage, open_store_document(storage).store_id, clock_ms=lambda: NOW_MS, new_id=new_id)
    job = Job.new(2, KEYS)
    with small_files():
        with store.writer() as writer:
            for number in range(2 * len(FORMATS) + 1):
                job.step(number)
                states = {UID: job.operator}
                format = FORMATS[number % len(FORMATS)]
                snapshot = writer.checkpoint({UID: job.keyed}, operator_states=states, format=format)
                if number == 1:
                    store.tag("kept", snapshot.checkpoint_id)
                    # A part of the runs is read back, so files are shared and have slices and dead rows.
                    job = Job.restored(snapshot, 2, KEYS)
                if number == 2:
                    entry = store._committed(None)
                    put_lease(
                        storage, new_id(), entry.document.checkpoint_id or 0, entry.as_parent, expires_at_ms=2 * NOW_MS
                    )
                if number == 3:
                    store.collect(RetentionPolicy(count=1)).apply()
        store.savepoint("whole")
    storage.put_hint("manifests/orphan.json", b"of a checkpoint that failed")
    store.collect(RetentionPolicy(count=9)).apply()
    # The checkpoint before the newest stays in the log, which a damaged entry or file of it is part of.
    plan = plan_collection(storage, RetentionPolicy(count=2), now_ms=NOW_MS, grace_ms=0)

    class Dying:
        def __getattr__(self, name: str) -> Any:
            if name == "delete":
                raise _Stop
            return getattr(storage, name)

    with suppress(_Stop):
        apply_collection(Dying(), plan, now_ms=NOW_MS, new_id=new_id)  # type: ignore[arg-type]


@dataclass
class Answers:
    """What a store says to each question: an answer, or an error that tells of damage."""

    given: dict[str, str]
    refused: dict[str, str]
    unclear: dict[str, str]
    "Errors of another kind."


def ask(folder: Path, damaged: str | None = None, *, every: int = 1, turn: int = 0) -> Answers:
    """Ask everything that a damaged file can have a part in, each question with nothing kept from the one before.

    Those to `verify` always; of the others `every` n-th, and the turn says which.
    """
    answers = Answers({}, {}, {})
    asked = questions(folder)
    if damaged is not None:
        # A savepoint is a store of its own, and reads nothing of the one that its folder is in.
        ours = damaged.startswith("savepoints/")
        asked = {name: question for name, question in asked.items() if name.startswith("savepoint") == ours}
    asked = {
        name: question
        for number, (name, question) in enumerate(asked.items())
        if name.endswith("verify") or (number + turn) % every == 0
    }
    for name, question in asked.items():
        forget_open_files()
        forget_checkpoints()
        try:
            answers.given[name] = repr(question())
        except (CorruptDataError, FormatVersionError) as error:
            answers.refused[name] = str(error)
        except duckdb.Error as error:
            # What fails while a query runs is raised by DuckDB, with the error of the project in its text.
            told = any(kind.__name__ in str(error) for kind in (CorruptDataError, FormatVersionError))
            (answers.refused if told else answers.unclear)[name] = str(error)
        except Exception as error:  # noqa: BLE001 - whatever else it is, it is a finding
            answers.unclear[name] = f"{type(error).__name__}: {error}"
    return answers


def questions(folder: Path) -> dict[str, Callable[[], Any]]:
    def store() -> StateStore:
        storage = open_storage(folder)
        identity = open_store_document(storage)
        return StateStore(storage, identity.store_id, clock_ms=lambda: NOW_MS)

    def savepoint() -> StateStore:
        storage = open_storage(folder / "savepoints" / "whole")
        return StateStore(storage, open_store_document(storage).store_id, clock_ms=lambda: NOW_MS)

    def go_on() -> str:
        """Restore, change and checkpoint: what came of damage must not be committed as the truth."""
        opened = store()
        with opened.writer() as writer:
            job = Job.restored(opened.latest(), 1, KEYS)
            job.step(99)
            snapshot = writer.checkpoint({UID: job.keyed}, operator_states={UID: job.operator})
        forget_open_files()
        return Job.restored(snapshot, 1, KEYS).checksum()

    def collect() -> tuple[str, list[str]]:
        """Delete all that may be deleted: what is kept must be there."""
        store().collect(RetentionPolicy(count=1), grace_ms=0, allow_short_grace=True).apply()
        forget_open_files()
        tagged = store().snapshot(store().tags()["kept"])
        missing = [problem for problem in store().latest().verify().problems if "missing" in problem]
        return Job.restored(tagged, 1, KEYS).checksum(), missing

    asked: dict[str, Callable[[], Any]] = {
        "log": lambda: [(snapshot.checkpoint_id, snapshot.entry) for snapshot in store().checkpoints()],
        "tags": lambda: store().tags(),
        "verify": lambda: store().verify(deep=True).problems,
        "savepoint, verify": lambda: savepoint().verify(deep=True).problems,
    }
    ways: Mapping[str, Callable[[], Snapshot]] = {
        "latest": lambda: store().latest(),
        "tagged": lambda: store().snapshot(store().tags()["kept"]),
        "savepoint": lambda: savepoint().latest(),
    }
    for name, snapshot in ways.items():
        asked[f"{name}, entry"] = lambda snapshot=snapshot: snapshot().entry  # type: ignore[misc]
        asked[f"{name}, restore"] = lambda snapshot=snapshot: Job.restored(snapshot(), 3, KEYS).content()  # type: ignore[misc]
        asked[f"{name}, tables"] = lambda snapshot=snapshot: tables(snapshot())  # type: ignore[misc]
        asked[f"{name}, lookup"] = lambda snapshot=snapshot: lookups(snapshot())  # type: ignore[misc]
        asked[f"{name}, sql"] = lambda snapshot=snapshot: sums(snapshot())  # type: ignore[misc]
    # Last: these write.
    asked["go on"] = go_on
    asked["collect"] = collect
    return asked


def tables(snapshot: Snapshot) -> dict[str, Any]:
    found: dict[str, Any] = {name: sorted(map(repr, snapshot.to_arrow(name).to_pylist())) for name in snapshot.states()}
    for name in ("offsets", "topics", "rules"):
        found[name] = sorted(map(repr, snapshot.operator_state(UID, name).to_pylist()))
    return found


def lookups(snapshot: Snapshot) -> dict[str, Any]:
    return {
        name: sorted(map(repr, snapshot.lookup(name, list(range(0, KEYS, 7))).to_pylist()))
        for name in snapshot.states()
    }


def sums(snapshot: Snapshot) -> list[Any]:
    queries = [
        "select count(*), sum(k), sum(length(text)) from job.note where k % 3 = 1",
        "select day, count(*), sum(total), max(k) from job.total group by day order by day",
        "select sum(cart), count(distinct cart_key) from job.cart where k in (3, 5, 8)",
        "select sum(seen * k), count(*) from job.seen",
        "select t.k, t.total, f.fresh from job.total t join job.fresh f using (k) order by all limit 9",
    ]
    return [snapshot.sql(query).fetchall() for query in queries]


@dataclass
class Trial:
    """One damage, and what came of it."""

    kind: str
    path: str
    damage: str
    "Which damage, and where."
    outcome: str
    "detected, harmless, or what was wrong."

    @property
    def bad(self) -> bool:
        return self.outcome not in ("detected", "harmless")


class Matrix:
    """A store that is damaged and asked, time after time."""

    def __init__(self, folder: Path) -> None:
        self.pristine = folder / "pristine"
        make_store(self.pristine)
        self.files = {
            kind: sorted({path for pattern in patterns for path in self.pristine.glob(pattern)})
            for kind, patterns in kinds().items()
        }
        states = set(self.files["operator state"])
        self.files["arrow run"] = [path for path in self.files["arrow run"] if path not in states]
        needed = self._needed()
        for kind, files in self.files.items():
            # Of other checkpoints nothing is asked but whether they are whole.
            self.files[kind] = [path for path in files if str(path.relative_to(self.pristine)) in needed]
            assert self.files[kind], f"the store has no {kind}"
        self._copies = (folder / f"trial-{number}" for number in itertools.count())
        with self._copy() as copy:
            self.expected = ask(copy)
        assert not self.expected.refused and not self.expected.unclear, self.expected
        assert self.expected.given["verify"] == "[]"

    def _needed(self) -> set[str]:
        """Every file that an answer can depend on."""
        needed = set(open_storage(self.pristine).list(""))
        for root in ("", "savepoints/whole/"):
            storage = open_storage(self.pristine / root)
            store = StateStore(storage, open_store_document(storage).store_id)
            kept = {path_of(snapshot.entry.number) for snapshot in store.checkpoints()}
            for snapshot in (store.latest(), *(store.snapshot(number) for number in store.tags().values())):
                kept |= set(ReferenceReader(storage).files(snapshot.entry.operators))
            for folder in ("data/", "manifests/", "log/"):
                needed -= {root + path for path in storage.list(folder) if path not in kept}
        return needed

    def trials(self, count: int, seed: int, *, first: int = 0, every: int = 1) -> Iterator[Trial]:
        """Flip `count` bits, and cut short and append to a tenth as many files each.

        `first` is the number of the first damage: kinds and places take turns. Each is asked `every` n-th question.
        """
        dice = random.Random(seed)
        damages = [(FLIP, number) for number in range(first, first + count)]
        damages += [
            (damage, number) for damage in (CUT, APPEND) for number in range(first // 10, (first + count) // 10)
        ]
        names = list(self.files)
        for damage, number in damages:
            # Both go round on their own: 3 does not divide the turns that a kind gets.
            kind = names[number % len(names)]
            yield self.trial(dice, kind, damage, POSITIONS[number // len(names) % 3], every=every, turn=number)

    def trial(
        self, dice: random.Random, kind: str, damage: str, position: str, *, every: int = 1, turn: int = 0
    ) -> Trial:
        path = dice.choice(self.files[kind])
        data = bytearray(path.read_bytes())
        where = position
        if damage == FLIP:
            low, high = region(position, len(data))
            bit = dice.randrange(8 * low, 8 * high)
            data[bit // 8] ^= 1 << bit % 8
            where = f"bit {bit % 8} of byte {bit // 8} of {len(data)} ({position})"
        elif damage == CUT:
            length = dice.choice([0, 1, len(data) // 2, len(data) - 1, dice.randrange(len(data))])
            where = f"to {length} of {len(data)} bytes"
            del data[length:]
        else:
            more = dice.choice([b"\0", b"\n", b" ", bytes(data), dice.randbytes(dice.randrange(1, 100))])
            where = f"{len(more)} bytes"
            data += more
        name = str(path.relative_to(self.pristine))
        with self._copy(name, bytes(data)) as copy:
            return Trial(kind, name, f"{damage}: {where}", self.judge(ask(copy, name, every=every, turn=turn)))

    def judge(self, answers: Answers) -> str:
        if answers.unclear:
            return f"unclear error: {answers.unclear}"
        found = [answers.given.pop(name, None) for name in ("verify", "savepoint, verify")]
        whole = "[]" in found
        wrong = [name for name, answer in answers.given.items() if answer != self.expected.given[name]]
        if wrong:
            return f"wrong answer: {', '.join(wrong)}"
        if answers.refused and whole:
            return f"verify found nothing, but {answers.refused}"
        return "harmless" if whole else "detected"

    def _copy(self, name: str | None = None, data: bytes = b"") -> _Copy:
        return _Copy(self.pristine, next(self._copies), name, data)


@dataclass
class _Copy:
    """A copy of the store, in which one file may have other content. Files never change, so the others are links."""

    source: Path
    target: Path
    name: str | None
    data: bytes

    def __enter__(self) -> Path:
        shutil.copytree(self.source, self.target, copy_function=os.link)
        if self.name is not None:
            (self.target / self.name).unlink()
            (self.target / self.name).write_bytes(self.data)
        return self.target

    def __exit__(self, *error: object) -> None:
        # A file that is open must not be cut short under its mapping; removing it is no harm.
        shutil.rmtree(self.target)


def region(position: str, size: int) -> tuple[int, int]:
    """First byte of a part of a file, and the byte after it."""
    edge = max(1, min(256, size // 4))
    if position == "header":
        return 0, edge
    if position == "footer":
        return size - edge, size
    return min(edge, size - 1), max(size - edge, min(edge, size - 1) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=100, help="how many bits to flip")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    started = time.monotonic()
    counts: Counter[tuple[str, str]] = Counter()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for trial in Matrix(Path(folder)).trials(given.trials, given.seed):
            counts[trial.kind, "bad" if trial.bad else trial.outcome] += 1
            if trial.bad:
                bad += 1
                print(f"{trial.path} {trial.damage}: {trial.outcome}", flush=True)
    for kind in kinds():
        said = ", ".join(
            f"{counts[kind, what]} {what}" for what in ("detected", "harmless", "bad") if counts[kind, what]
        )
        print(f"{kind:20} {said}")
    total = Counter(what for kind, what in counts.elements())
    print(
        f"{counts.total()} trials, seed {given.seed}: {total['detected']} detected, {total['harmless']} harmless, "
        f"{bad} bad, {time.monotonic() - started:.0f} s"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
