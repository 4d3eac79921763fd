"""A job that runs: what its user may ask of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from arrowstate.checkpoints.committing import Committer
from arrowstate.checkpoints.coordination import CheckpointRecord
from arrowstate.errors import InvalidInputError, JobFailedError
from arrowstate.log.commit_log import CommitLog
from arrowstate.runtime.core.assembling import Entries
from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.core.coordinator import JobState
from arrowstate.runtime.core.messages import SlotFigures, TaskFigures
from arrowstate.runtime.drivers.inline import Inline
from arrowstate.runtime.drivers.timed import TimedDriver
from arrowstate.runtime.graph import Declared, Graph, Mode, SourceNode, StatefulNode
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.store.snapshot import Snapshot
from arrowstate.store.store import StateStore, open_store
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.key_groups import check_max_parallelism, default_max_parallelism

__all__ = ["JobStatus", "RunningJob", "TaskStatus", "start"]


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """How a subtask of a running job is; rates are of the last quarter of a second or so."""

    task: str
    """The uid."""
    slot: int
    rows: int
    """Rows that it took since the job was started last."""
    rows_per_second: float
    busy: float
    """The part of the time that it spent in its function, 0 to 1."""
    blocked: float
    """The part of the time that it had something to do and no room for what it gives out, 0 to 1."""
    queued_rows: int
    """Rows that wait in its channels."""
    watermark: int | None
    """How far event time is, in milliseconds; None before the first watermark."""
    has_ended: bool
    """Whether it has processed the end of its input."""
    late_rows: int = 0
    """Rows that came too late for their windows and were left out, since the job was started last; those that go to a
    side output do not count."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How a job is at the moment."""

    state: JobState
    attempt: int
    """How often it was started, this time included."""
    failures: tuple[str, ...]
    """What the last failures were, oldest first."""
    checkpoints: tuple[CheckpointRecord, ...]
    """The checkpoints that ended last, oldest first, and those in progress."""
    tasks: tuple[TaskStatus, ...]
    """How each subtask of each task is, by its name and its slot."""


class Driver(Protocol):
    """What runs the slots and the coordinator."""

    def call(self, what: Callable[[Any], Any]) -> Any:
        """Call a function with the coordinator, between two of its events, and return what it returns."""

    def wait(self, condition: Callable[[], bool], timeout_ms: int | None) -> bool:
        """Go on until a condition holds, which is looked at between two events; False at the timeout."""

    def close(self) -> None:
        """End everything."""


class RunningJob:
    """A job that was started. It is used as a context, at whose end the job is stopped without a checkpoint.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import Job, OutputTable, TableSource
    >>> job = Job("memory://running-example")
    >>> numbers = job.source(TableSource(pa.table({"n": [1, 2, 3]})), uid="numbers")
    >>> numbers.sink(OutputTable("copy"))
    >>> with job.start(mode="inline") as running:
    ...     snapshot = running.wait()
    >>> running.status().state, snapshot.sql("select count(*) from copy.rows").fetchall()
    ('finished', [(3,)])
    """

    def __init__(self, job: Declared, store: StateStore, mode: Mode, seed: int, committer: Committer) -> None:
        self._job = job
        self.store = store
        "The store of the job, to read."
        self._mode = mode
        self._seed = seed
        self._committer = committer
        self._lock = threading.Lock()
        self._parallelism = job.parallelism
        self._max_parallelism = _max_parallelism(job, self._newest())
        self._driver: Any = None
        self._begin()

    def __repr__(self) -> str:
        return f"<RunningJob in {self.store.url}: {self.status().state}>"

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def driver(self) -> Any:
        """What runs the slots and the coordinator."""
        return self._driver

    def status(self) -> JobStatus:
        """Return how the job is."""
        state, attempt, failures, records, figures = self._driver.call(
            lambda job: (job.state, job.attempt, list(job.failures), job.records, list(job.figures.values()))
        )
        told = tuple(f"{type(error).__name__}: {error}" for _, error in failures)
        return JobStatus(state, attempt, told, records, _statuses(figures))

    def checkpoint(self, *, timeout_ms: int | None = None) -> Snapshot:
        """Take a checkpoint now, and return it once it is committed and the sinks have had their rows.

        Raises
        ------
        CheckpointAbortedError
            If it ended without a commit.
        InvalidInputError
            If the job has ended.
        TimeoutError
            If it has not ended within `timeout_ms`; it goes on.
        """
        asked: Future[int] = Future()

        def done(checkpoint_id: int | None, error: BaseException | None) -> None:
            if error is not None:
                asked.set_exception(error)
            else:
                asked.set_result(checkpoint_id or 0)

        def ask(job: Any) -> None:
            if job.is_over:
                raise InvalidInputError(f"the job has {job.state}, so no checkpoint can be taken; start it again")
            job.request_checkpoint(done)

        self._driver.call(ask)
        if not self._driver.wait(asked.done, timeout_ms):
            raise TimeoutError(f"the checkpoint has not ended within {timeout_ms} ms")
        return self.store.snapshot(asked.result())

    def savepoint(self, name_or_path: str | Path, **options: Any) -> Snapshot:
        """Take a checkpoint now, and write it as a savepoint; arguments as for `StateStore.savepoint`."""
        snapshot = self.checkpoint()
        return self.store.savepoint(name_or_path, checkpoint=snapshot.checkpoint_id, **options)

    def stop(self, savepoint: str | Path | None = None, *, drain: bool = False, **options: Any) -> Snapshot:
        """Stop reading, take a last checkpoint, and end.

        Parameters
        ----------
        savepoint
            The name or path of a savepoint of that checkpoint; none by default.
        drain
            Let event time end, so that all timers fire and all windows end, as at the end of the input. The job can not
            be continued sensibly then.
        options
            As for `StateStore.savepoint`.

        Returns
        -------
        Snapshot
            The savepoint if one was asked for, else the checkpoint.
        """
        self._driver.call(lambda job: job.stop(drain=drain))
        snapshot = self.wait()
        if savepoint is None:
            return snapshot
        return self.store.savepoint(savepoint, checkpoint=snapshot.checkpoint_id, **options)

    def rescale(self, *, parallelism: int, max_parallelism: int | None = None) -> None:
        """Go on with another number of slots, from a checkpoint that is taken now; no row of state is rewritten.

        Raises
        ------
        InvalidInputError
            If the numbers are out of range, or the job has ended.
        """
        maximum = self._max_parallelism if max_parallelism is None else check_max_parallelism(max_parallelism)
        if not 1 <= parallelism <= maximum:
            raise InvalidInputError(f"parallelism must be 1 to {maximum}, the max parallelism, got {parallelism}")
        self.checkpoint()
        with self._lock:
            self._driver.call(lambda job: job.cancel("it is rescaled"))
            self._driver.close()
            self._parallelism, self._max_parallelism = parallelism, maximum
            self._begin()

    def wait(self, timeout_ms: int | None = None) -> Snapshot:
        """Wait until the job has ended, and return the snapshot that it ended with.

        Raises
        ------
        JobFailedError
            If it failed and is not to start again.
        TimeoutError
            If it has not ended within `timeout_ms`; it goes on.
        """
        if not self._driver.wait(lambda: self._driver.coordinator.is_over, timeout_ms):
            raise TimeoutError(f"the job has not ended within {timeout_ms} ms")
        error = self._driver.call(lambda job: job.error)
        if isinstance(error, JobFailedError):
            raise error
        if error is not None:
            raise JobFailedError(f"{type(error).__name__}: {error}") from error
        return self.store.latest()

    def go_on(self, steps: int) -> None:
        """Let a job that runs `inline` do so many steps.

        Raises
        ------
        InvalidInputError
            If it runs by itself.
        """
        if not isinstance(self._driver, InlineDriver):
            raise InvalidInputError(f"a job in {self._mode} goes on by itself; only one that runs inline is to be told")
        self._driver.go_on(steps)

    def close(self) -> None:
        """End the job at once, without a checkpoint, if it has not ended; what was committed stays."""
        self._driver.call(lambda job: job.cancel("it was closed"))
        self._driver.close()

    def _newest(self) -> LogEntryDocument | None:
        return CommitLog(self.store.storage).history().checkpoint

    def _begin(self) -> None:
        job, store = self._job, self.store
        setting = Setting(
            store.store_id, self._parallelism, self._max_parallelism, exactly_once=job.mode == "exactly-once"
        )
        entries = Entries(
            job.graph,
            store.storage,
            store.store_id,
            self._committer,
            self._parallelism,
            self._max_parallelism,
            store.new_id,
        )
        if self._mode == "inline":
            inline = Inline(
                job.graph,
                setting,
                store.storage,
                entries,
                job.options,
                job.restart,
                new_id=store.new_id,
                seed=self._seed,
                clock_ms=store.clock_ms(),
            )
            self._driver = InlineDriver(inline)
        else:
            self._driver = TimedDriver(job, setting, store.storage, entries, self._mode)
        self._driver.call(lambda coordinator: coordinator.begin())


def _statuses(figures: Sequence[Sequence[SlotFigures]]) -> tuple[TaskStatus, ...]:
    found = []
    for of_slot in figures:
        last, first = of_slot[-1], of_slot[0] if len(of_slot) > 1 else None
        for number, now in enumerate(last.tasks):
            before = None if first is None else first.tasks[number]
            span_ms = 0 if first is None else last.at_ms - first.at_ms

            def rate(
                name: str, now: TaskFigures = now, before: TaskFigures | None = before, ms: int = span_ms
            ) -> float:
                return 0.0 if before is None or not ms else (getattr(now, name) - getattr(before, name)) / ms

            found.append(
                TaskStatus(
                    now.task,
                    now.subtask,
                    now.rows,
                    rate("rows") * 1000,
                    min(rate("busy_us") / 1000, 1.0),
                    min(rate("blocked_us") / 1000, 1.0),
                    now.queued_rows,
                    now.watermark,
                    now.has_ended,
                    now.late_rows,
                )
            )
    return tuple(sorted(found, key=lambda item: (item.task, item.slot)))


class InlineDriver:
    """Has a job go on in the thread that asks it to."""

    def __init__(self, inline: Inline) -> None:
        self.inline = inline
        self.coordinator = inline.coordinator

    def call(self, what: Callable[[Any], Any]) -> Any:
        return what(self.coordinator)

    def wait(self, condition: Callable[[], bool], timeout_ms: int | None) -> bool:
        until = None if timeout_ms is None else self.inline.clock_ms + timeout_ms
        while not condition():
            if until is not None and self.inline.clock_ms >= until:
                return False
            if self.coordinator.is_over and not self.inline.work and not self.inline.told:
                # Nothing more will happen.
                return condition()
            self.inline.step()
        return True

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.inline.step()

    def close(self) -> None:
        while self.inline.work:
            self.inline.step()
        for slot in self.inline.slots:
            slot.close()


def start(job: Declared, mode: Mode, seed: int) -> RunningJob:
    """Open the job's store and start it."""
    if mode not in ("processes", "threads", "inline"):
        raise InvalidInputError(f"mode must be processes, threads or inline, got {mode!r}")
    store = open_store(job.store, create=True, storage_options=job.storage_options)
    newest = CommitLog(store.storage).history().checkpoint
    _check_store(job, newest)
    committer = Committer(
        store.storage, store.store_id, clock_ms=store.clock_ms, new_id=store.new_id, properties={"writer": "runtime"}
    )
    return RunningJob(job, store, mode, seed, committer)


def _max_parallelism(job: Declared, newest: LogEntryDocument | None) -> int:
    """Return what was asked for, else what the store has, else the default."""
    maximum = job.max_parallelism
    if maximum is None:
        stored = [item.max_parallelism for item in (newest.operators if newest else ()) if item.key]
        maximum = max(stored, default=default_max_parallelism(job.parallelism))
    if job.parallelism > maximum:
        raise InvalidInputError(f"parallelism must be 1 to {maximum}, the max parallelism, got {job.parallelism}")
    return maximum


def _check_store(job: Declared, newest: LogEntryDocument | None) -> None:
    """Refuse a store with state that the job would drop, or that is of another kind than the job's."""
    graph: Graph = job.graph
    own: Mapping[str, str] = {
        **{task.uid: "a source" for task in graph.tasks if isinstance(task, SourceNode)},
        **{task.uid: "an operator with keyed state" for task in graph.tasks if isinstance(task, StatefulNode)},
        **{sink.uid: "an output table" if isinstance(sink.sink, OutputTable) else "a sink" for sink in graph.sinks},
    }
    for operator in newest.operators if newest is not None else ():
        names = {state.name for state in operator.operator_states}
        is_table = not operator.key and names == {"rows"}
        kind = (
            "an operator with keyed state"
            if operator.key
            else "an output table"
            if is_table
            else "a source"
            if "splits" in names
            else "a sink"
        )
        have = own.get(operator.uid)
        if have is None and not job.allow_non_restored_state:
            raise InvalidInputError(
                f"the store has {kind} named {operator.uid!r}, which the job does not declare; declare it, or let it "
                "go with allow_non_restored_state=True"
            )
        if have is not None and have != kind:
            raise InvalidInputError(f"{operator.uid!r} is {kind} in the store and {have} in the job; name it otherwise")
