"""A job of the runtime under every kind of bad luck, in an order that a seed decides.

All of a job runs in one thread: slots, the links between them, the coordinator, and its commits take turns as a seed
has it. Slots are killed, checkpoints are taken at any moment, and after all of it the job has to end with what it would
have ended with on a calm day.
"""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.errors import CheckpointAbortedError, JobFailedError
from arrowstate.runtime.connectors import Sink, Token
from arrowstate.runtime.drivers.inline import InlineDriver, SlotKilledError
from arrowstate.runtime.job import Job
from arrowstate.runtime.restart import Restart
from arrowstate.runtime.running import RunningJob
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.store.snapshot import Snapshot

_MOST_STEPS = 200_000


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The result of one seed; see `simulate`.

    Examples
    --------
    >>> def check(run: SimulatedRun) -> None:
    ...     assert run.snapshot.sql("select count(*) from counts.count").fetchall() == [(2,)], run.seed
    """

    seed: int
    snapshot: Snapshot
    """What the job ended with."""
    kills: int
    """How often a slot was killed."""
    crashes: int
    """How often all of the job was left where it was, and another began."""
    rescales: int
    checkpoints: int
    """How many were committed."""


def simulate(
    job: Job,
    *,
    seeds: Iterable[int],
    kills: int = 3,
    crashes: int = 1,
    write_failures: float = 0.1,
    rescales: tuple[int, ...] = (),
    check: Callable[[SimulatedRun], None] | None = None,
) -> list[SimulatedRun]:
    """Run a job once for each seed, each time in a store of its own in memory, and kill its slots now and then.

    Parameters
    ----------
    job
        The job. Its store and its restart strategy are not used, and of its options only whether checkpoints are
        unaligned. Its sources must be bounded and return
        the same rows each time. Functions, sources and sinks run in this process, so a sink writes outside for each
        seed. The run without kills, with which the others are compared, sends nothing to the sinks.
    seeds
        A seed decides the order of all events. The same seed of the same job does the same again.
    kills
        How many times a slot is killed, at most.
    crashes
        How many times the whole job, with its coordinator, is abandoned and started again, at most.
    write_failures
        The probability that a snapshot cannot be written, so that its checkpoint is given up; 0 to below 1.
    rescales
        Numbers of slots to change to, in any order, at moments that the seed decides.
    check
        Called with each run; it raises if the run is wrong. By default all keyed state is compared, row for row, with
        that of a run of one slot without kills.

    Returns
    -------
    list of SimulatedRun
        One for each seed.

    Raises
    ------
    AssertionError
        If a state differs; the text has the seed.
    JobFailedError
        If the job fails by itself.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.runtime import Job, TableSource
    >>> class Counts(arrowstate.BatchFunction):
    ...     def open(self, context):
    ...         self.count = context.state(arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="sum"))
    ...
    ...     def process_batch(self, batch, context):
    ...         self.count.add_batch(batch["user"], pa.array([1] * batch.num_rows))
    >>> job = Job("memory://simulated-example", parallelism=2)
    >>> clicks = job.source(TableSource(pa.table({"user": ["ann", "bob"] * 20})), uid="clicks")
    >>> _ = clicks.stateful(Counts(), key=["user"], uid="counts")
    >>> [run.seed for run in simulate(job, seeds=range(3))]
    [0, 1, 2]
    """
    expected: dict[str, Any] | None = None
    if check is None:
        with _without_sinks(job):
            expected = _keyed_rows(_run(job, 0, 0, 0, 0.0, (), 1).snapshot)
    runs = []
    for seed in seeds:
        run = _run(job, seed, kills, crashes, write_failures, rescales, job.parallelism)
        if check is not None:
            check(run)
        elif (found := _keyed_rows(run.snapshot)) != expected:
            assert expected is not None
            names = [name for name in expected if found.get(name) != expected[name]]
            raise AssertionError(f"seed {seed}: {', '.join(names)} differ from a calm run")
        runs.append(run)
    return runs


def _run(
    job: Job,
    seed: int,
    kills: int,
    crashes: int,
    write_failures: float,
    rescales: tuple[int, ...],
    parallelism: int,
) -> SimulatedRun:
    chance = random.Random(seed)  # noqa: S311 (an order that can be had again)
    own = copy(job)
    own.store = f"memory://simulated-{uuid.uuid4().hex}"
    own.storage_options = None
    own.parallelism = parallelism
    own.restart = Restart.fixed(delay_ms=chance.choice([0, 0, 1]))
    interval_ms, max_concurrent = chance.choice([1, 3, 10, 50]), chance.choice([1, 1, 2, 3])
    unaligned = job.options.unaligned
    own.options = CheckpointOptions(
        interval_ms=interval_ms,
        max_concurrent=1 if unaligned else max_concurrent,
        tolerated_failures=1_000_000,
        unaligned=unaligned,
        aligned_timeout_ms=job.options.aligned_timeout_ms,
    )
    with quiet():
        return _simulated(own, seed, chance, kills, crashes, write_failures, rescales)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the failures of jobs that this thread runs out of the log: they are meant, or raised in the end."""
    own = threading.get_ident()
    logger = logging.getLogger("arrowstate.runtime")

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != own

    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)


def _simulated(
    own: Job,
    seed: int,
    chance: random.Random,
    kills: int,
    crashes: int,
    write_failures: float,
    rescales: tuple[int, ...],
) -> SimulatedRun:
    killed = rescaled = crashed = steps = known = 0
    to_come = list(rescales)
    due = chance.choice([0.05, 0.2])
    running = own.start(mode="inline", seed=seed)
    while not _driver(running).coordinator.is_over:
        if chance.random() < due:
            # By itself time passes where nothing is to be done: no checkpoint would begin while rows are under way.
            _driver(running).inline.clock_ms += own.options.interval_ms or 0
        running.go_on(1)
        steps += 1
        luck = chance.random()
        inline = _driver(running).inline
        inline.write_failures = write_failures
        coordinator = inline.coordinator
        committed = inline.entries.committed_id
        if killed < kills and luck < (0.03 if committed > known else 0.003):
            # Rather when there is a new checkpoint to go on from.
            killed, known = killed + 1, committed
            inline.kill(chance.randrange(len(inline.slots)))
        elif crashed < crashes and luck < (0.1 if inline.work and committed else 0.004):
            # Rather while something is about to be committed, or given to a sink.
            crashed += 1
            # Whatever it was about to do is not done; another takes the store over.
            own.parallelism = len(inline.slots)
            running = own.start(mode="inline", seed=chance.randrange(1 << 30))
        elif to_come and luck > 0.985 and coordinator.state == "running" and not coordinator.is_ending:
            rescaled += _rescaled(running, to_come, chance)
        failed = [error for _, error in coordinator.failures if not isinstance(error, SlotKilledError)]
        if failed:
            raise JobFailedError(f"seed {seed}: {failed[-1]}") from failed[-1]
        if steps > _MOST_STEPS:
            raise AssertionError(f"seed {seed}: not over after {steps} steps, {coordinator.state}")
    snapshot = running.wait()
    running.close()
    return SimulatedRun(seed, snapshot, killed, crashed, rescaled, snapshot.checkpoint_id)


class _Nowhere(Sink):
    """Takes rows and does nothing with them."""

    def commit(self, rows: pa.Table, token: Token) -> None:
        pass


@contextmanager
def _without_sinks(job: Job) -> Iterator[None]:
    """Let a job write to nothing outside of its store."""
    outside = [(node, node.sink) for node in job.graph.sinks if not isinstance(node.sink, OutputTable)]
    try:
        for node, _ in outside:
            node.sink = _Nowhere()
        yield
    finally:
        for node, sink in outside:
            node.sink = sink


def _rescaled(running: RunningJob, to_come: list[int], chance: random.Random) -> int:
    parallelism = chance.choice(to_come)
    try:
        running.rescale(parallelism=parallelism)
    except CheckpointAbortedError:
        # Its checkpoint met bad luck: another time.
        return 0
    to_come.remove(parallelism)
    return 1


def _driver(running: RunningJob) -> InlineDriver:
    driver = running.driver
    assert isinstance(driver, InlineDriver)
    return driver


def _keyed_rows(snapshot: Snapshot) -> dict[str, Any]:
    """All keyed state as plain rows, in an order of their own."""
    found = {}
    for operator in snapshot.entry.operators:
        for state in operator.states:
            name = f"{operator.uid}.{state.name}"
            # All that is stored: what has expired at the time of day differs from run to run.
            rows = snapshot.to_arrow(name, columns=snapshot[name].schema.names, expired=True).to_pylist()
            found[name] = sorted(repr(sorted(row.items())) for row in rows)
    return found
