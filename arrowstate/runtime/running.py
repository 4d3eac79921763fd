"""A job that runs: what its user may ask of it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from arrowstate.checkpoints.committing import Committer
from arrowstate.errors import InvalidInputError, JobFailedError
from arrowstate.log.commit_log import CommitLog
from arrowstate.maintenance.beside import collector_of_writer
from arrowstate.processing.dead_letters import is_dead_letters
from arrowstate.query.beside import select_beside
from arrowstate.runtime.core.assembling import Entries, stored_table
from arrowstate.runtime.core.assignment import check_splits
from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.core.coordinator import RestartStatus
from arrowstate.runtime.drivers.inline import Inline
from arrowstate.runtime.drivers.timed import TimedDriver
from arrowstate.runtime.graph import Declared, Graph, Mode, SourceNode, StatefulNode
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.runtime.status import JobStatus, status_of
from arrowstate.runtime.tables import status_tables
from arrowstate.storage.base import Storage
from arrowstate.store.reading import Page
from arrowstate.store.snapshot import Snapshot
from arrowstate.store.store import StateStore, open_store
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.key_groups import check_max_parallelism, default_max_parallelism

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

__all__ = ["RunningJob", "start"]


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
        self._collector = collector_of_writer(
            store.storage,
            job.retention,
            epoch=committer.epoch,
            clock_ms=store.clock_ms,
            new_id=store.new_id,
            is_beside=mode != "inline",
        )
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
        status: JobStatus = self._driver.call(lambda job: status_of(job, self._job.graph))
        return status

    def sql(self, query: str, *, params: Sequence[Any] | Mapping[str, Any] | None = None) -> DuckDBPyRelation:
        """Run a query over how the job is, and over the states of its newest checkpoint.

        What `status` returns is in four tables, as it is when this is called; who is the bottleneck is
        `select operator, subtask, busy from runtime.tasks order by busy desc limit 1`, and those before it in the job
        are blocked. Beside them are the views of `Snapshot.sql`, the history of the store in `arrowstate.checkpoints`
        among them. Where an operator is called `runtime`, the four are in the schema `runtime~2`.

        `runtime.tasks`
            A row for each subtask: `operator`, `subtask`; `rows_in`, `rows_out`, `bytes_in`, `bytes_out` since the job
            was started last, and the same with `_per_second` (double); `busy`, `blocked`, `idle` (double, parts of the
            time); `queued_rows`, `queued_bytes`; `watermark` and `lag_ms` in milliseconds, null where there is none;
            `has_ended`; `late_rows`; `dead_rows`.
        `runtime.channels`
            A row for each channel: `origin`, `operator`, `input` (text), `from_subtask`, `to_subtask`; `rows`, `bytes`,
            and the same with `_per_second`; `in_flight_rows`, `in_flight_bytes`, `queued_rows`, `queued_bytes`;
            `blocked`; `watermark`; `is_aligning`.
        `runtime.checkpoints`
            A row for each checkpoint, those that were given up included: `checkpoint_id`, `status`, `triggered_at` and
            `ended_at` in UTC, `duration_ms`, `reason`; `acknowledged`, how many subtasks had written their part;
            `alignment_us` and `async_us` of the slowest, `bytes_written` of all.
        `runtime.restarts`
            A row for each failure and change of parallelism: `attempt`, `failed_at` in UTC, `reason`, `checkpoint_id`,
            which the next attempt began with, `running_at` in UTC, `down_ms`.

        Parameters
        ----------
        query, params
            As for `Snapshot.sql`.

        Raises
        ------
        StateNotFoundError
            If the query names a table that does not exist; the message lists those there are.
        InvalidInputError
            If DuckDB refuses the query for another reason, or it is not one that has a result.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from arrowstate.runtime import Job, OutputTable, TableSource
        >>> job = Job("memory://running-sql-example")
        >>> job.source(TableSource(pa.table({"n": [1, 2, 3]})), uid="numbers").sink(OutputTable("copy"))
        >>> with job.start(mode="inline") as running:
        ...     _ = running.wait()
        >>> running.sql("select operator, rows_in, rows_out, has_ended from runtime.tasks").fetchall()
        [('numbers', 3, 3, True)]
        """
        newest = self._newest()
        return select_beside(
            self.store.storage,
            None if newest is None else self.store.snapshot_of(newest),
            status_tables(self.status()),
            query,
            params,
            schema="runtime",
        )

    def ui(self, *, host: str = "127.0.0.1", port: int = 0) -> Page:
        """Show the job and its store in a browser, from this process; arguments and errors as for `StateStore.ui`.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from arrowstate.runtime import Job, OutputTable, TableSource
        >>> job = Job("memory://running-ui-example")
        >>> job.source(TableSource(pa.table({"n": [1, 2, 3]})), uid="numbers").sink(OutputTable("copy"))
        >>> with job.start(mode="threads") as running, running.ui() as page:
        ...     page.address.startswith("http://127.0.0.1:")
        True
        """
        serving = importlib.import_module("arrowstate.ui.serving")
        page: Page = serving.open_page(jobs=[self], host=host, port=port).start()
        return page

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
            before = self._parallelism
            self._driver.call(lambda job: job.cancel("it is rescaled"))
            self._driver.close()
            self._parallelism, self._max_parallelism = parallelism, maximum
            past = self._driver.coordinator.ended_by(f"rescaled from parallelism {before} to {parallelism}")
            self._begin(past)

    def wait(self, timeout_ms: int | None = None) -> Snapshot:
        """Wait until the job has ended, and return the snapshot that it ended with.

        Raises
        ------
        JobFailedError
            If it failed and is not to start again.
        InvalidInputError
            If it was closed before its first checkpoint.
        TimeoutError
            If it has not ended within `timeout_ms`; it goes on.
        """
        if not self._driver.wait(lambda: self._driver.coordinator.is_over, timeout_ms):
            raise TimeoutError(f"the job has not ended within {timeout_ms} ms")
        error = self._driver.call(lambda job: job.error)
        if self._collector is not None:
            self._collector.end(is_last_due=error is None)
        if isinstance(error, JobFailedError):
            raise error
        if error is not None:
            raise JobFailedError(f"{type(error).__name__}: {error}") from error
        if self._newest() is None:
            raise InvalidInputError(
                "the job was closed before its first checkpoint, so there is no snapshot to return; stop() takes one"
            )
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
        if self._collector is not None:
            self._collector.close(is_last_due=self._driver.call(lambda job: job.error) is None)

    def _newest(self) -> LogEntryDocument | None:
        return CommitLog(self.store.storage).history().checkpoint

    def _begin(self, past: Sequence[RestartStatus] = ()) -> None:
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
            collector=self._collector,
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
        self._driver.call(lambda coordinator: coordinator.begin(past))


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
            if self.coordinator.is_over and self.inline.is_idle:
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
    _check_store(job, newest, store.storage)
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


def _check_store(job: Declared, newest: LogEntryDocument | None, storage: Storage) -> None:
    """Refuse a store with state that the job would drop, or that is of another kind than the job's."""
    graph: Graph = job.graph
    operators = newest.operators if newest is not None else ()
    own: Mapping[str, str] = {
        **{task.uid: "a source" for task in graph.tasks if isinstance(task, SourceNode)},
        **{task.uid: "an operator with keyed state" for task in graph.tasks if isinstance(task, StatefulNode)},
        **{sink.uid: "an output table" if isinstance(sink.sink, OutputTable) else "a sink" for sink in graph.sinks},
    }
    for operator in operators:
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
        if have is None and not job.allow_non_restored_state and not is_dead_letters(operator):
            raise InvalidInputError(
                f"the store has {kind} named {operator.uid!r}, which the job does not declare; declare it, or let it "
                "go with allow_non_restored_state=True"
            )
        if have is not None and have != kind:
            raise InvalidInputError(f"{operator.uid!r} is {kind} in the store and {have} in the job; name it otherwise")
    for sink in graph.sinks:
        if isinstance(sink.sink, OutputTable):
            stored_table(sink).parts_before(storage, operators)
    check_splits(graph, storage, newest)
