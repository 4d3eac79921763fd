"""One run of a job that a seed makes, and the judgement of it."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock
from zlib import crc32

from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.errors import CheckpointAbortedError, FencedError, InvalidInputError, JobFailedError
from arrowstate.files.in_flight import CHANNELS
from arrowstate.files.operator import read_part
from arrowstate.files.subtasks import whole_state
from arrowstate.runtime.core import task, turns
from arrowstate.runtime.core.assembling import stored_splits
from arrowstate.runtime.core.pacing import ChannelWindow, StepPace
from arrowstate.runtime.drivers.inline import SlotKilledError
from arrowstate.runtime.restart import Restart
from arrowstate.runtime.running import RunningJob
from arrowstate.storage.memory import clear_memory_storage
from arrowstate.store.snapshot import Snapshot
from arrowstate.testing.jobs import quiet
from arrowstate_formats.documents import LogEntryDocument
from job_simulation.graphs import Read, SimulatedJob, draw_job
from job_simulation.parts import WIDTH_MS, WORLD, Outside, Row, Violation, weights
from job_simulation.watching import Luck, rows_left, watched

__all__ = ["Result", "simulate_seed"]

_BAD_STEPS = 500
"""After so many steps nothing is lost any more, and nothing fails: then the job must come to its end."""

_MOST_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Result:
    """What a seed came to."""

    seed: int
    steps: int
    checkpoints: int
    kills: int
    crashes: int
    rescales: int
    digest: int
    "Of all that was done, in its order."
    in_flight: int
    "Rows that checkpoints have in flight."
    shape: tuple[str, ...]


def simulate_seed(seed: int) -> Result:
    """Run the job of a seed to its end, and raise what is wrong with it, with the seed."""
    chance = random.Random(seed)
    overtakes = random.Random(f"barriers of {seed}")
    unaligned = overtakes.random() < 0.6
    # Rows pile up in channels where there are many, and room for them.
    times = overtakes.choice([1, 4, 16]) if unaligned else 1
    simulated = draw_job(chance, random.Random(f"told of {seed}"), times)
    graph = simulated.job.graph
    luck = Luck.draw(chance, subtasks=len(graph.tasks) * simulated.job.parallelism)
    if unaligned:
        # So many checkpoints that a collection would take the first, which are judged too.
        simulated.job.retention = None
        credit_bytes, stall = overtakes.choice([100, 400, 4 << 20, 4 << 20]), overtakes.choice([0.02, 0.05])
        luck = replace(luck, credit_bytes=credit_bytes, stall=stall)
    WORLD.outside = _Traced(luck, chance)
    url = f"memory://jobs-{seed}"
    try:
        with watched(luck), _rows_at_once(seed), quiet():
            return _Run(seed, simulated, luck, chance, overtakes if unaligned else None, url).run()
    except Exception as error:
        error.add_note(f"seed {seed}: {' '.join(simulated.shape)}; {luck}")
        raise
    finally:
        clear_memory_storage(url)


@contextmanager
def _rows_at_once(seed: int) -> Iterator[None]:
    """Have a task take few rows in a step or all, wait for more or not, be passed over, or go after its producers.

    Steps end within frames, and the windows of channels change with each of them.
    """
    chance = random.Random(f"rows of {seed}")
    kept = task.STEP_ROWS, task.ENOUGH_ROWS, turns.PASSED_STEPS
    task.STEP_ROWS = chance.choice([1, 1, 10, kept[0]])
    task.ENOUGH_ROWS = chance.choice([1, task.STEP_ROWS])
    turns.PASSED_STEPS = chance.choice([1, 4, 16])
    first = turns.Turns._consumers_first
    few = lambda _, most, window_bytes=0: chance.randint(1, min(most, 12))  # noqa: E731
    windows = chance.choice([[4 << 20], [1, 400, 4 << 20]])
    late = lambda self: iter([*first(self)][::-1])  # noqa: E731
    try:
        # Where producers go first, rows pile up in the channels.
        with (
            mock.patch.object(turns.Turns, "_consumers_first", chance.choice([first, late])),
            mock.patch.object(StepPace, "rows", chance.choice([StepPace.rows, few])),
            mock.patch.object(ChannelWindow, "bytes", property(lambda _: chance.choice(windows))),
        ):
            yield
    finally:
        task.STEP_ROWS, task.ENOUGH_ROWS, turns.PASSED_STEPS = kept


class _Traced(Outside):
    """What is outside, and what has been done."""

    def __init__(self, luck: Luck, chance: random.Random) -> None:
        super().__init__()
        self.luck = luck
        self.refuse = luck.refusals
        self.exits = luck.exits
        self.bad_closes = luck.bad_closes
        self.has_zombies = luck.zombies
        self.is_calm = False
        self.committer: Any = None
        self.chance = random.Random(chance.random())
        self.digest = 0
        self.entries: list[LogEntryDocument] = []
        self.taken: dict[Any, dict[str, int]] = {}
        self.grown: dict[Any, int] = {}
        self.passed: dict[Any, int] = {}

    def trace(self, name: str) -> None:
        self.digest = crc32(name.encode(), self.digest)


class _Run:
    def __init__(
        self,
        seed: int,
        simulated: SimulatedJob,
        luck: Luck,
        chance: random.Random,
        overtakes: random.Random | None,
        url: str,
    ) -> None:
        self.seed = seed
        self.simulated = simulated
        self.luck = luck
        self.chance = chance
        job = self.job = simulated.job
        job.store = url
        job.restart = Restart.fixed(delay_ms=chance.choice([0, 0, 2]))
        self.kills = self.crashes = self.rescales = self.stops = self.steps = 0
        self.zombies: list[RunningJob] = []
        self.is_bounded = all(source.is_bounded for source in simulated.sources.values())
        self.is_read = False
        self.looked_at: LogEntryDocument | None = None
        self.failed: Counter[str] = Counter()
        interval_ms = chance.choice([3, 10, 20, 100, None if self.is_bounded else 20])
        concurrent = chance.choice([1, 1, 2, 3])
        job.options = CheckpointOptions(
            interval_ms=interval_ms,
            max_concurrent=concurrent if overtakes is None else 1,
            tolerated_failures=1_000_000,
            timeout_ms=chance.choice([50, 200]) if luck.lost else 600_000,
            unaligned=overtakes is not None,
            aligned_timeout_ms=None if overtakes is None else overtakes.choice([None, None, None, 0, 5]),
            max_in_flight_bytes=1 << 30 if overtakes is None else overtakes.choice([1 << 30, 1 << 30, 2_000]),
        )
        self.goes_back = overtakes is not None and overtakes.random() < 0.3
        "Whether a later start takes aligned checkpoints."
        self.in_flight = 0
        self.seen: LogEntryDocument | None = None
        self.asks = overtakes
        "Says when checkpoints are asked for: by themselves they come only as time passes."
        self.clock = random.Random(f"time of {seed}")
        self.passes = self.clock.choice([0.0, 0.0, 0.02, 0.2])
        "How likely time passes at a step though something is under way."

    def run(self) -> Result:
        running = self._start()
        while not running.driver.coordinator.is_over or _may_start_again(running):
            running = self._step(running) if not running.driver.coordinator.is_over else self._start()
            self.steps += 1
            if self.steps > _BAD_STEPS:
                WORLD.outside.is_calm = True
                running.driver.inline.write_failures = 0.0
            self._look_at(running)
            self._stop_if_read(running)
        if running.status().state == "failed":
            running.wait()
        if any(rows_left(slot) for slot in running.driver.inline.slots):
            raise Violation("the job has ended, and rows wait")
        for zombie in self.zombies:
            self._end_zombie(zombie)
        snapshot = running.wait()
        running.close()
        outside = WORLD.outside
        self._judge(snapshot)
        return Result(
            self.seed,
            self.steps,
            len(outside.committed),
            self.kills,
            self.crashes,
            self.rescales,
            outside.digest,
            self.in_flight,
            tuple(self.simulated.shape),
        )

    def _stop_if_read(self, running: RunningJob) -> None:
        """Stop a job with sources that do not end, once a checkpoint has all of their splits as read."""
        if self.is_read and not running.driver.coordinator.is_ending:
            running.driver.coordinator.stop(drain=True)
        entries = WORLD.outside.entries
        if self.is_bounded or self.steps % 20 or not entries or entries[-1] is self.looked_at:
            return
        self.looked_at = entries[-1]
        storage = running.store.storage
        for uid, source in self.simulated.sources.items():
            finished = {split.id for split in stored_splits(storage, entries[-1], uid) if split.finished}
            if finished != set(source.rows):
                return
        self.is_read = True

    def _start(self) -> RunningJob:
        if self.goes_back and self.steps:
            self.job.options = replace(self.job.options, unaligned=False, aligned_timeout_ms=None)
        running = self.job.start(mode="inline", seed=self.chance.randrange(1 << 30))
        running.driver.inline.write_failures = self.luck.write_failures
        WORLD.outside.committer = running._committer
        return running

    def _step(self, running: RunningJob) -> RunningJob:
        """Go on, or have something happen to the job."""
        chance, luck = self.chance, self.luck
        inline = running.driver.inline
        coordinator = inline.coordinator
        drawn = chance.random()
        if WORLD.outside.is_calm:
            pass
        elif self.kills < luck.kills and drawn < 0.02:
            self.kills += 1
            inline.kill(chance.randrange(len(inline.slots)))
        elif self.crashes < luck.crashes and drawn > (0.9 if inline.work else 0.99):
            # Rather while something is about to be committed, or given to a sink.
            self.crashes += 1
            if luck.zombies:
                self.zombies.append(running)
            return self._start()
        elif 0.5 < drawn < 0.51 and coordinator.state == "running" and not coordinator.is_ending:
            if self.rescales < luck.rescales:
                return self._rescaled(running)
            if self.stops < luck.stops:
                self.stops += 1
                try:
                    running.stop()
                except JobFailedError:
                    if not _may_start_again(running):
                        raise
                return self._start()
        if self.asks is not None and not WORLD.outside.is_calm:
            if self.asks.random() < 0.5:
                self._ask(coordinator)
            if self._has_new_in_flight() and self.asks.random() < 0.5:
                self.kills += 1
                inline.kill(self.asks.randrange(len(inline.slots)))
        if not WORLD.outside.is_calm and self.clock.random() < self.passes:
            inline.clock_ms += self.clock.choice([1, 5, 30, 300])
        if self.zombies and drawn < 0.5:
            zombie = chance.choice(self.zombies)
            if not zombie.driver.coordinator.is_over:
                zombie.go_on(1)
        running.go_on(1)
        return running

    def _has_new_in_flight(self) -> bool:
        """Whether a checkpoint with rows in flight was committed since this was asked last."""
        entry = next(iter(WORLD.outside.entries[-1:]), None)
        if entry is None or entry is self.seen:
            return False
        self.seen = entry
        states = (state for operator in entry.operators for state in operator.operator_states)
        return any(part.rows for state in states if state.name == CHANNELS for part in state.parts)

    def _ask(self, coordinator: Any) -> None:
        """Have a checkpoint taken while rows are under way, some of them aligned, as for a savepoint."""
        assert self.asks is not None
        if coordinator.is_running and not coordinator.is_ending and not coordinator._checkpoints._requests:
            coordinator.request_checkpoint(lambda *_: None, is_aligned=self.asks.random() < 0.1)

    def _rescaled(self, running: RunningJob) -> RunningJob:
        """Give the job another parallelism, or another max parallelism at a new start."""
        self.rescales += 1
        most = self.chance.choice([3, 5, 128])
        self.job.parallelism = self.chance.choice([1, 2, 3])
        try:
            running.rescale(parallelism=self.job.parallelism, max_parallelism=most)
        except Exception as error:
            is_over = isinstance(error, InvalidInputError) and running.driver.coordinator.state == "finished"
            if not (is_over or isinstance(error, CheckpointAbortedError) or _is_meant(error)):
                raise
            # Its checkpoint met bad luck, or the job came to its end before one was taken.
            return running
        running.driver.inline.write_failures = self.luck.write_failures
        self.job.max_parallelism = most
        return running

    def _look_at(self, running: RunningJob) -> None:
        for _, error in running.driver.coordinator.failures:
            if not isinstance(error, SlotKilledError) and not _is_meant(error):
                raise error
        if self.steps > _MOST_STEPS:
            raise Violation(f"not over after {self.steps} steps: {running.driver.coordinator.state}")

    def _end_zombie(self, zombie: RunningJob) -> None:
        """Let a coordinator that was left behind go on: it fails if it tries to commit."""
        coordinator = zombie.driver.coordinator
        for _ in range(300):
            if not coordinator.is_over:
                zombie.go_on(1)
        error = coordinator.error
        if coordinator.state == "failed" and not isinstance(error, FencedError) and not _may_start_again(zombie):
            raise error

    # Judgement.

    def _judge(self, snapshot: Snapshot) -> None:
        outside, simulated = WORLD.outside, self.simulated
        reads = {}
        for entry in outside.entries:
            assert entry.checkpoint_id is not None
            read = reads[entry.checkpoint_id] = self._read(snapshot, entry)
            if any(count for (uid, _), count in read.in_flight.items() if uid in simulated.copied):
                del reads[entry.checkpoint_id]
                continue
            self._judge_tables(snapshot, entry, read, is_last=entry is outside.entries[-1])
        whole = {uid: [row for rows in item.rows.values() for row in rows] for uid, item in simulated.sources.items()}
        last = read
        if any(last.in_flight.values()):
            raise Violation("the job has ended, and its last checkpoint has rows in flight")
        if {uid: sorted(rows) for uid, rows in last.rows.items()} != {uid: sorted(rows) for uid, rows in whole.items()}:
            raise Violation("the job has ended, and not all of its input was read")
        self._judge_state(snapshot, last)
        earlier = outside.entries[self.chance.randrange(len(outside.entries))]
        if earlier.checkpoint_id in reads and simulated.sums:
            self._judge_state(Snapshot(snapshot.storage, snapshot.store_id, earlier), reads[earlier.checkpoint_id or 0])
        self._judge_sinks(reads, last)
        self._judge_published(reads)

    def _read(self, snapshot: Snapshot, entry: LogEntryDocument) -> Read:
        """Return the rows that a checkpoint says were read."""
        read: dict[str, list[Row]] = {}
        for uid, source in self.simulated.sources.items():
            splits = stored_splits(snapshot.storage, entry, uid)
            if len({split.id for split in splits}) != len(splits):
                raise Violation(f"checkpoint {entry.checkpoint_id} has a split of {uid} twice")
            read[uid] = [row for split in splits for row in source.rows[split.id][: split.position or 0]]
        return Read(read, self._in_flight(Snapshot(snapshot.storage, snapshot.store_id, entry)))

    def _in_flight(self, snapshot: Snapshot) -> dict[tuple[str, int], Counter[Row]]:
        found = {}
        for operator in snapshot.entry.operators:
            for port, name in enumerate(("inflight", "inflight_2")):
                if any(state.name == name for state in operator.states):
                    rows = snapshot.to_arrow(f"{operator.uid}.{name}")["row"].to_pylist()
                    found[operator.uid, port] = Counter(Row(row["id"], row["key"], row["at"]) for row in rows)
                    self.in_flight += len(rows)
        return found

    def _judge_tables(self, snapshot: Snapshot, entry: LogEntryDocument, read: Read, *, is_last: bool) -> None:
        simulated = self.simulated
        of = f"of checkpoint {entry.checkpoint_id}"
        for name, rows in simulated.outputs.items():
            _same(f"output table {name} {of}", Counter(_stored_rows(snapshot, entry, name, "rows")), rows(read))
        for uid, rows in simulated.told.items():
            ids = Counter(id for part in _parts(snapshot, entry, uid, "seen") for id in part.column(0).to_pylist())
            expected_ids = _ids(rows(read))
            if ids != expected_ids:
                raise Violation(f"operator state of {uid} {of}: {dict(ids)}, not {dict(expected_ids)}")
        for uid, rows in simulated.tables.items():
            expected = {row.id: row.at for row in rows(read)}
            for number, part in enumerate(_parts(snapshot, entry, uid, "table")):
                found = dict(zip(*(column.to_pylist() for column in part.columns), strict=True))
                if found != expected:
                    raise Violation(f"the table beside {uid} in subtask {number} {of}: {found}, not {expected}")
        for name, rows in simulated.timers.items():
            fired = Counter(_stored_rows(snapshot, entry, name, "rows"))
            due = Counter({Row(-1, row.key, _end_of(row)) for row in rows(read)})
            if fired - due or (is_last and fired != due):
                raise Violation(f"timers in {name} {of}: {dict(fired)}, expected {dict(due)}")
        for name, (_, rows) in simulated.windows.items():
            ended = Counter(_stored_rows(snapshot, entry, name, "rows"))
            sums: dict[tuple[int, int], int] = {}
            for row, count in rows(read).items():
                place = row.key, _end_of(row)
                sums[place] = sums.get(place, 0) + int(weights(row.id)) * count
            due = Counter({(key, end - WIDTH_MS, end, total): 1 for (key, end), total in sums.items()})
            if ended - due or (is_last and ended != due):
                raise Violation(f"windows in {name} {of}: {dict(ended)}, expected {dict(due)}")

    def _judge_state(self, snapshot: Snapshot, read: Read) -> None:
        names = {operator.uid for operator in snapshot.entry.operators if operator.states}
        for uid, sums in self.simulated.sums.items():
            table = snapshot.to_arrow(f"{uid}.sum") if uid in names else None
            found = {} if table is None else dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
            if found != (expected := sums(read)):
                raise Violation(f"state of {uid} in checkpoint {snapshot.checkpoint_id}: {found}, not {expected}")

    def _judge_sinks(self, reads: dict[int, Read], last: Read) -> None:
        outside = WORLD.outside
        for name, (kind, rows) in self.simulated.sinks.items():
            if kind == "direct":
                if missing := rows(last) - Counter(outside.direct.get(name, [])):
                    raise Violation(f"sink {name} never got {dict(missing)}")
                continue
            if kind == "tokens":
                given = [(id, held) for (id, _), held in outside.sunk.get(name, {}).items()]
            else:
                given = list(outside.visible.get(name, {}).values())
            for id, read in reads.items():
                found = Counter(row for at, held in given if at <= id for row in held)
                _same(f"sink {name} with checkpoint {id}", found, rows(read))

    def _judge_published(self, reads: dict[int, Read]) -> None:
        """What functions published must be in the checkpoint that they were told of, and each row once."""
        for name, rows in self.simulated.told.items():
            published = WORLD.outside.published.get(name, [])
            for id, read in reads.items():
                if too_many := Counter(row for at, ids in published if at <= id for row in ids) - _ids(rows(read)):
                    raise Violation(f"{name} published {dict(too_many)}, which checkpoint {id} does not have")


def _ids(rows: Counter[Row]) -> Counter[int]:
    ids: Counter[int] = Counter()
    for row, count in rows.items():
        ids[row.id] += count
    return ids


def _may_start_again(running: RunningJob) -> bool:
    """Whether a job was ended by a failure that the simulation has made, as one before its first row."""
    error = running.driver.coordinator.error
    if isinstance(error, JobFailedError) and error.__cause__ is not None:
        # It was stopped while it was down.
        error = error.__cause__
    return isinstance(error, SlotKilledError) or (error is not None and _is_meant(error))


def _is_meant(error: BaseException) -> bool:
    """Whether the simulation has made this failure."""
    return "as the simulation has it" in str(error)


def _end_of(row: Row) -> int:
    return row.at // WIDTH_MS * WIDTH_MS + WIDTH_MS


def _parts(snapshot: Snapshot, entry: LogEntryDocument, uid: str, name: str) -> list[Any]:
    for operator in entry.operators:
        for state in operator.operator_states:
            if (operator.uid, state.name) == (uid, name):
                whole = whole_state(snapshot.storage, uid, state)
                return [read_part(snapshot.storage, whole, number) for number in range(len(whole.parts))]
    return []


def _stored_rows(snapshot: Snapshot, entry: LogEntryDocument, uid: str, name: str) -> list[Any]:
    rows = []
    for part in _parts(snapshot, entry, uid, name):
        columns = [column.to_pylist() for column in part.column(0).flatten()]
        made = zip(*columns, strict=True)
        rows += [Row(*row) for row in made] if len(columns) == 3 else list(made)
    return rows


def _same(what: str, found: Counter[Row], expected: Counter[Row]) -> None:
    if found != expected:
        raise Violation(f"{what}: too many {dict(found - expected)}, too few {dict(expected - found)}")
