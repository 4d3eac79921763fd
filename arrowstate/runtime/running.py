"""A job that runs: what its user may ask of it."""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from arrowstate.checkpoints.committing import Committer
from arrowstate.checkpoints.importing import ClaimMode, import_checkpoint
from arrowstate.errors import FencedError, IncompatibleStateError, InvalidInputError, JobFailedError, StoreNotFoundError
from arrowstate.files.in_flight import has_rows_in_flight
from arrowstate.files.notes import begun_from
from arrowstate.files.savepoint import check_savepoint, open_savepoint_place, savepoint_place
from arrowstate.functions.dead_letters import is_dead_letters
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry, newest_id, open_store_document
from arrowstate.log.jobs import JobReport, drop_reports, newest_report, report_of
from arrowstate.publish.beside import publisher_of_writer
from arrowstate.query.beside import select_beside
from arrowstate.runtime.connectors import PreparingSink, Sink
from arrowstate.runtime.core.assembling import PROPERTY, Entries, stored_table
from arrowstate.runtime.core.assignment import check_splits
from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.core.coordinator import Coordinator
from arrowstate.runtime.core.explaining import check_copies, job_failure
from arrowstate.runtime.core.in_flight import IN_FLIGHT, InFlightStates
from arrowstate.runtime.drivers.inline import Inline, InlineDriver
from arrowstate.runtime.drivers.ready import ReadySlots
from arrowstate.runtime.drivers.timed import TimedDriver, left_by
from arrowstate.runtime.graph import Declared, Graph, Mode, SinkNode, SourceNode, StatefulNode
from arrowstate.runtime.lease import JobLease
from arrowstate.runtime.reporting import Account, Look, Reporter
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.runtime.status import JobStatus, status_of
from arrowstate.runtime.tables import status_tables
from arrowstate.schema.keys import described
from arrowstate.schema.layout import key_schema_of
from arrowstate.schema.operator_state import check_converted, operator_descriptor_of
from arrowstate.storage.base import Storage
from arrowstate.store.follower import Follower
from arrowstate.store.snapshot import Snapshot
from arrowstate.store.store import StateStore, open_store
from arrowstate.telemetry.records import recorded
from arrowstate.ui.serving import Page, open_page
from arrowstate.upkeep.beside import collector_of_writer
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_groups import check_max_parallelism, default_max_parallelism

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation


class Driver(Protocol):
    """What runs the slots and the coordinator."""

    @property
    def is_here(self) -> bool:
        """Whether this is the process that runs the job, and no other that was forked from it."""

    def call(self, what: Callable[[Any], Any]) -> Any:
        """Call a function with the coordinator, between two of its events, and return what it returns."""

    def wait(self, condition: Callable[[], bool], timeout_ms: int | None) -> bool:
        """Go on until a condition holds, which is looked at between two events; False at the timeout."""

    def close(self) -> None:
        """End everything."""


class RunningJob:
    """A job that was started. Use it in a `with` block, at whose end the job is stopped without a checkpoint.

    If an exception leaves the block, the job has failed by it. Ctrl-C and `SystemExit` stop it.

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

    def __init__(
        self,
        job: Declared,
        store: StateStore,
        mode: Mode,
        seed: int,
        take: Callable[[], Committer],
        ready: ReadySlots | None = None,
        *,
        is_taken_over: bool = False,
    ) -> None:
        self._job = job
        self.store = store
        "The store of the job, to read."
        self._mode = mode
        self._seed = seed
        self._rescales = threading.Lock()
        "Held while the job is rescaled: of two rescales one comes after the other."
        self._changed = threading.Condition()
        "Notified when another driver has taken the place of one that was left."
        self._parallelism = job.parallelism
        self._max_parallelism = _max_parallelism(job, self._newest())
        self._driver: Any = None
        is_beside = mode != "inline"
        publisher = publisher_of_writer(
            store.storage,
            store.store_id,
            job.publish,
            clock_ms=store.clock_ms,
            new_id=store.new_id,
            is_beside=is_beside,
        )
        # What can be refused is refused before the fence is taken, which ends the job that runs.
        made = None
        if mode != "processes":
            check_copies(job.graph.functions())
        elif ready is None:
            made = ReadySlots(job, _setting(job, store, self._parallelism, self._max_parallelism), loads_all=False)
        self._ready = ready or made
        try:
            self._committer = take()
            # A job whose clock stands still has no lease.
            self._reporter = self._make_reporter() if is_beside else None
        except BaseException:
            if made is not None:
                made.close()
            raise
        collector = collector_of_writer(
            store.storage,
            job.retention,
            epoch=self._committer.epoch,
            clock_ms=store.clock_ms,
            new_id=store.new_id,
            is_beside=is_beside,
        )
        self._after_commits = tuple(item for item in (publisher, collector) if item is not None)
        if self._reporter is None:
            self._begin()
            return
        try:
            self._begin(has_begun=is_taken_over)
        except BaseException as error:
            self._reporter.failed(error)
            raise
        self._reporter.start()

    def __repr__(self) -> str:
        return f"<RunningJob in {self.store.url}: {self.status().state}>"

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close("it was closed", left_by("the `with` block of the job", error))

    @property
    def driver(self) -> Any:
        """What runs the slots and the coordinator."""
        return self._driver

    def status(self) -> JobStatus:
        """Return the state of the job and of its tasks, channels and checkpoints."""
        # Of a job that is rescaled the driver that is left says how it was.
        status: JobStatus = self._driver.call(lambda job: status_of(job, self._job.graph))
        return status

    def sql(self, query: str, *, params: Sequence[Any] | Mapping[str, Any] | None = None) -> DuckDBPyRelation:
        """Run a query over the status of the job, and over the states of its newest checkpoint.

        Four tables have what `status` returns at the time of the call. The bottleneck is
        `select operator, subtask, busy from runtime.tasks order by busy desc limit 1`; the tasks before it in the job
        are blocked. The query also has the views of `Snapshot.sql`, such as the history of the store in
        `arrowstate.checkpoints`. If an operator is called `runtime`, the four tables are in the schema `runtime~2`.

        `runtime.tasks`
            A row for each subtask: `operator`, `subtask`; `rows_in`, `rows_out`, `bytes_in`, `bytes_out` since the last
            start of the job, and the same with `_per_second` (double); `busy`, `blocked`, `idle` (double, shares of the
            time); `queued_rows`, `queued_bytes`; `watermark` and `lag_ms` in milliseconds, null if there is none;
            `behind_rows`, which a source has not read yet, null if it does not tell; `has_ended`; `late_rows`;
            `dead_rows`.
        `runtime.channels`
            A row for each channel: `origin`, `operator`, `input` (text), `from_subtask`, `to_subtask`; `rows`, `bytes`,
            and the same with `_per_second`; `in_flight_rows`, `in_flight_bytes`, and `window_bytes`, how many there may
            be; `queued_rows`, `queued_bytes`; `blocked`; `watermark`; `is_aligning`.
        `runtime.checkpoints`
            A row for each checkpoint, also for those that were given up: `checkpoint_id`, `status`, `triggered_at` and
            `ended_at` in UTC, `duration_ms`, `reason`; `acknowledged`, the number of subtasks that wrote their part;
            `alignment_us` and `async_us` of the slowest subtask, `bytes_written` of all.
        `runtime.restarts`
            A row for each failure and change of parallelism: `attempt`, `failed_at` in UTC, `reason`, `checkpoint_id`,
            with which the next attempt began, `running_at` in UTC, `down_ms`.

        Parameters
        ----------
        query, params
            As for `Snapshot.sql`.

        Raises
        ------
        StateNotFoundError
            If the query names a table that does not exist; the message lists the existing ones.
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
        return open_page(jobs=[self], host=host, port=port).start()

    def follow(self, *, poll_ms: int = 200) -> Follower:
        """Return a reader that stays on the newest checkpoint of the job; see `StateStore.follow`.

        It outlives the job, and follows the next job of this store too.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from arrowstate.runtime import Job, OutputTable, TableSource
        >>> job = Job("memory://running-follow-example")
        >>> job.source(TableSource(pa.table({"n": [1, 2, 3]})), uid="numbers").sink(OutputTable("copy"))
        >>> with job.start(mode="threads") as running, running.follow() as follower:
        ...     _ = running.wait()
        ...     _ = follower.refresh()
        ...     follower.sql("select sum(n) from copy.rows").value.fetchall()
        [(6,)]
        """
        return self.store.follow(poll_ms=poll_ms, holder="follower of a job")

    def checkpoint(self, *, full: bool = False, timeout_ms: int | None = None) -> Snapshot:
        """Take a checkpoint now, and return it when it is committed and the sinks have accepted their rows.

        During a rescale it waits, and takes the checkpoint afterwards.

        Parameters
        ----------
        full
            Write all keyed and operator state anew, so that the checkpoint refers to no state that an earlier one has
            written. Later checkpoints are incremental again, on top of it. Output tables, and splits that were read to
            their end, only grow and stay where they are.
        timeout_ms
            How long to wait for it; by default until it has ended.

        Raises
        ------
        CheckpointAbortedError
            If it ended without a commit.
        InvalidInputError
            If the job has ended.
        TimeoutError
            If it has not ended within `timeout_ms`; it goes on.
        """
        return self._checkpoint(full=full, timeout_ms=timeout_ms)

    def _checkpoint(self, *, full: bool = False, aligned: bool = False, timeout_ms: int | None = None) -> Snapshot:
        left = _Left(timeout_ms, f"the checkpoint has not ended within {timeout_ms} ms")
        while True:
            driver = self._settled(left)
            asked: Future[int] = Future()
            driver.call(partial(_ask, asked, full, aligned))
            if not driver.wait(asked.done, left.ms):
                raise TimeoutError(left.text)
            if asked.exception() is None or driver.coordinator.state != "rescaling":
                return self.store.snapshot(asked.result())

    def savepoint(self, name_or_path: str | Path, **options: Any) -> Snapshot:
        """Take an aligned checkpoint now, and write it as a savepoint; arguments as for `StateStore.savepoint`."""
        self._check_savepoint(name_or_path, options)
        snapshot = self._checkpoint(aligned=True)
        return self.store.savepoint(name_or_path, checkpoint=snapshot.checkpoint_id, **options)

    def stop(self, savepoint: str | Path | None = None, *, drain: bool = False, **options: Any) -> Snapshot:
        """Stop reading, take a last checkpoint, and end.

        During a rescale it waits, and stops the job afterwards. A job that waits for its next attempt after a failure
        ends at once.

        Parameters
        ----------
        savepoint
            The name or path of a savepoint of that checkpoint; none by default.
        drain
            Let event time end, so that all timers fire and all windows end, as at the end of the input. To continue the
            job after that makes no sense.
        options
            As for `StateStore.savepoint`.

        Returns
        -------
        Snapshot
            The savepoint if one was asked for, else the checkpoint.

        Raises
        ------
        JobFailedError
            If the job was waiting for its next attempt after a failure; the message says from which checkpoint the next
            start goes on. Also if it failed twice while it was being stopped, or if its strategy allows no new start.
        InvalidInputError, StorageError
            If a savepoint cannot be at this place, which may have files already; the job goes on. InvalidInputError
            also if the job was closed, and if another thread is stopping it and only one of the two drains.
        """
        if savepoint is not None:
            self._check_savepoint(savepoint, options)
        left = _Left(None, "")
        while True:
            driver = self._settled(left)
            driver.call(lambda job: job.stop(drain=drain))
            if driver.coordinator.state != "rescaling":
                break
        snapshot = self.wait()
        if savepoint is None:
            return snapshot
        return self.store.savepoint(savepoint, checkpoint=snapshot.checkpoint_id, **options)

    def rescale(self, *, parallelism: int, max_parallelism: int | None = None) -> None:
        """Take a checkpoint and go on from it with another number of slots; no row of state is rewritten.

        Until the new slots run, the job is `rescaling`: `wait` waits on, and a checkpoint, a stop or another rescale
        of another thread comes after it. If the new slots cannot be started, the job has failed.

        Raises
        ------
        InvalidInputError
            If the numbers are out of range, or the job has ended or is being stopped.
        CheckpointAbortedError
            If the checkpoint ended without a commit; the job goes on with the old number.
        """
        with self._rescales:
            maximum = self._max_parallelism if max_parallelism is None else check_max_parallelism(max_parallelism)
            parallelism = check_integer("parallelism", parallelism)
            if not 1 <= parallelism <= maximum:
                raise InvalidInputError(f"parallelism must be 1 to {maximum}, the max parallelism, got {parallelism}")
            self.checkpoint()
            driver, before = self._driver, (self._parallelism, self._max_parallelism)
            driver.call(lambda job: job.leave(f"rescaled from parallelism {before[0]} to {parallelism}"))
            try:
                driver.close()
                self._parallelism, self._max_parallelism = parallelism, maximum
                self._begin(driver.coordinator)
            except BaseException as error:
                self._parallelism, self._max_parallelism = before
                failed = JobFailedError(
                    f"the job could not be rescaled from parallelism {before[0]} to {parallelism}: "
                    f"{type(error).__name__}: {error}; start it again, it goes on from its newest checkpoint"
                )
                failed.__cause__ = error
                driver.coordinator.broke(failed)
                raise
            finally:
                with self._changed:
                    self._changed.notify_all()

    def wait(self, timeout_ms: int | None = None) -> Snapshot:
        """Wait until the job has ended, and return its last snapshot; a rescale does not end the wait.

        Raises
        ------
        JobFailedError
            If it failed and is not to start again.
        InvalidInputError
            If it was closed before its first checkpoint.
        TimeoutError
            If it has not ended within `timeout_ms`; it goes on.
        """
        left = _Left(timeout_ms, f"the job has not ended within {timeout_ms} ms")
        while True:
            driver = self._settled(left)
            if not driver.wait(lambda: driver.coordinator.is_over, left.ms):  # noqa: B023 (it is called in this round)
                raise TimeoutError(left.text)
            state, error = driver.call(lambda job: (job.state, job.error))
            if state != "rescaling":
                break
        for told in self._after_commits:
            told.end(is_last_due=error is None)
        self._report()
        if error is not None:
            raise job_failure(error)
        if self._newest() is None:
            raise InvalidInputError(
                "the job was closed before its first checkpoint, so there is no snapshot to return; stop() takes one"
            )
        return self.store.latest()

    def go_on(self, steps: int) -> None:
        """Let a job that runs `inline` do `steps` steps.

        Raises
        ------
        InvalidInputError
            If it runs by itself.
        """
        if not isinstance(self._driver, InlineDriver):
            raise InvalidInputError(f"a job in {self._mode} goes on by itself; only one that runs inline is to be told")
        self._driver.go_on(steps)

    def close(self) -> None:
        """End the job at once, without a checkpoint, if it has not ended; what was committed stays.

        In a process that was forked from the one that started it, nothing happens.
        """
        self._close("it was closed", None)

    def _close(self, reason: str, error: Exception | None) -> None:
        if not self._driver.is_here:
            return
        left = _Left(None, "")
        while True:
            driver = self._settled(left)
            driver.call(lambda job: job.cancel(reason, error))
            if driver.coordinator.state != "rescaling":
                break
        driver.close()
        for told in self._after_commits:
            told.close(is_last_due=driver.call(lambda job: job.error) is None)
        self._report()

    def _check_savepoint(self, name_or_path: str | Path, options: Mapping[str, Any]) -> None:
        """Refuse a savepoint that could not be written, before anything is done for it."""
        given = inspect.signature(StateStore.savepoint).bind(self.store, name_or_path, **options)
        given.apply_defaults()
        storage_options = given.arguments["storage_options"]
        check_savepoint(
            open_savepoint_place(self.store.storage, name_or_path, storage_options, create=True),
            given.arguments["format"],
        )

    def _settled(self, left: _Left) -> Any:
        """Return what runs the job, when no other is about to take its place."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._driver.coordinator.state != "rescaling", left.seconds):
                raise TimeoutError(left.text)
            return self._driver

    def _make_reporter(self) -> Reporter:
        store, epoch, now_ms = self.store, self._committer.epoch, self.store.clock_ms()
        before = newest_report(store.storage)
        sources = (node.uid for node in self._job.graph.sources)
        interval_ms = self._job.options.interval_ms
        account = Account(JobReport() if before is None else report_of(before), interval_ms, sources, now_ms)
        lease = JobLease(store.storage, epoch, self._job.lease_ms, clock_ms=store.clock_ms)
        reporter = Reporter(lease, account, self._look, self._fenced, store.clock_ms)
        reporter.begin()
        drop_reports(store.storage, below=epoch)
        return reporter

    def _look(self) -> Look:
        look: Look = self._driver.call(
            lambda job: Look(status_of(job, self._job.graph), tuple(job.failures), job.error)
        )
        return look

    def _fenced(self, error: FencedError) -> None:
        if self._driver is None:
            raise error
        self._driver.call(lambda job: job.fenced(error))

    def _report(self) -> None:
        """Say how the job is, at its end for the last time."""
        if self._reporter is not None:
            self._reporter.look()

    def _newest(self) -> LogEntryDocument | None:
        return CommitLog(self.store.storage).history().checkpoint

    def _begin(self, before: Coordinator | None = None, *, has_begun: bool = False) -> None:
        job, store = self._job, self.store
        setting = _setting(job, store, self._parallelism, self._max_parallelism)
        entries = Entries(
            job.graph,
            store.storage,
            store.store_id,
            self._committer,
            self._parallelism,
            self._max_parallelism,
            store.new_id,
            after_commits=self._after_commits,
            lease=None if self._reporter is None else self._reporter.lease,
            on_close=self._report,
        )
        driver: InlineDriver | TimedDriver
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
                clock_ms=store.clock_ms() if self._driver is None else self._driver.inline.clock_ms,
            )
            driver = InlineDriver(inline)
        else:
            ready, self._ready = self._ready, None
            driver = TimedDriver(job, setting, store.storage, entries, self._mode, ready)
        driver.call(lambda coordinator: coordinator.begin(before, has_begun=has_begun))
        self._driver = driver


class _Left:
    """What is left of the time that somebody waits, and what is said when it is over."""

    def __init__(self, timeout_ms: int | None, text: str) -> None:
        self._until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        self.text = text

    @property
    def seconds(self) -> float | None:
        return None if self._until is None else max(self._until - time.monotonic(), 0)

    @property
    def ms(self) -> int | None:
        seconds = self.seconds
        return None if seconds is None else math.ceil(seconds * 1000)


def _ask(asked: Future[int], full: bool, aligned: bool, job: Any) -> None:
    """Ask a coordinator for a checkpoint."""

    def done(checkpoint_id: int | None, error: BaseException | None) -> None:
        if error is not None:
            asked.set_exception(error)
        else:
            asked.set_result(checkpoint_id or 0)

    if job.state == "rescaling":
        done(None, InvalidInputError("the job goes on with another coordinator"))
    elif job.is_over:
        raise InvalidInputError(f"the job has {job.state}, so no checkpoint can be taken; start it again")
    else:
        job.request_checkpoint(done, is_full=full, is_aligned=aligned)


def start(job: Declared, mode: Mode, seed: int) -> RunningJob:
    """Open the job's store and start it."""
    if mode not in ("processes", "threads", "inline"):
        raise InvalidInputError(f"mode must be processes, threads or inline, got {mode!r}")
    store = open_store(job.store, create=True, storage_options=job.storage_options)
    if job.from_savepoint is not None:
        begin_from(job, store, job.from_savepoint)
    check_store(job, CommitLog(store.storage).history().checkpoint, store.storage)
    return RunningJob(job, store, mode, seed, lambda: committer_of(store))


def committer_of(store: StateStore, check: Callable[[CommittedEntry | None], None] | None = None) -> Committer:
    """Take the fence of a store for a job; `check` refuses an entry that it is not to follow."""
    return Committer(
        store.storage,
        clock_ms=store.clock_ms,
        new_id=store.new_id,
        properties={"writer": "runtime"},
        check=check,
        store_id=store.store_id,
    )


def setting_of(job: Declared, store: StateStore, newest: LogEntryDocument | None) -> Setting:
    """Return what the slots of a job are told, if it begins with a checkpoint."""
    return _setting(job, store, job.parallelism, _max_parallelism(job, newest))


def _setting(job: Declared, store: StateStore, parallelism: int, max_parallelism: int) -> Setting:
    return Setting(
        store.store_id,
        parallelism,
        max_parallelism,
        exactly_once=job.mode == "exactly-once",
        unaligned=job.options.unaligned,
        max_in_flight_bytes=job.options.max_in_flight_bytes,
    )


def begin_from(job: Declared, store: StateStore, given: str | Path | Snapshot, *, anew: bool = False) -> None:
    """Have a store begin with a savepoint, a checkpoint or a store of another job, unless it has begun there.

    With `anew` it replaces what the store has; else a store with checkpoints is refused.
    """
    log = CommitLog(store.storage)
    place = _place_of(store, given)

    def check(newest: CommittedEntry | None) -> None:
        # Of two starts at once the second goes on from what the first has made.
        if newest is not None and newest_id(newest) and not anew:
            raise _BegunError

    newest = log.history().checkpoint
    if newest is None or (anew and begun_from(newest.properties) != place):
        source = given if isinstance(given, Snapshot) else _source(store, given)
        if source.store_id == store.store_id and source.storage.url == store.url:
            store.rollback(source.checkpoint_id, comment="arrowstate run --from")
            return
        _max_parallelism(job, source.entry)
        check_store(job, source.entry, source.storage)
        with suppress(_BegunError), recorded("import", store.url, store.clock_ms()) as recording:
            entry = import_checkpoint(
                store.storage,
                store.store_id,
                source.storage,
                source.store_id,
                source.entry,
                claim_mode=ClaimMode.NO_CLAIM,
                clock_ms=store.clock_ms,
                new_id=store.new_id,
                place=place,
                check=check,
            )
            recording.checkpoint_id = entry.checkpoint_id
            return
        newest = log.history().checkpoint
    had = None if newest is None else begun_from(newest.properties)
    if had != place:
        began = "with none of another" if had is None else f"with {had}"
        raise InvalidInputError(
            f"{store.url} has checkpoint {None if newest is None else newest.checkpoint_id} and began {began}, so it "
            f"cannot begin with {place}; leave from_savepoint out to go on from that checkpoint, give the job another "
            "store, or replace what this one has with store.import_savepoint(...)"
        )


class _BegunError(Exception):
    """Another start has begun meanwhile."""


def _place_of(store: StateStore, given: str | Path | Snapshot) -> str:
    """Return where a job begins as its store notes it: without a look at what is there, which may be gone."""
    if isinstance(given, Snapshot):
        return f"{given.storage.url.rstrip('/')}@{given.checkpoint_id}"
    place = savepoint_place(store.storage, given)
    return (place if "://" in place else str(Path(place).absolute())).rstrip("/")


def _source(store: StateStore, given: str | Path) -> Snapshot:
    """Return what a job is to begin with."""

    def opened(place: str) -> StateStore:
        storage = open_savepoint_place(store.storage, place)
        return StateStore(storage, open_store_document(storage).store_id)

    place = str(given)
    before, at, reference = place.rpartition("@")
    try:
        return opened(place).latest()
    except StoreNotFoundError:
        # A name of a folder or host may have the sign too.
        if not at or not before or "/" in reference:
            raise
    return opened(before).snapshot(reference)


def _max_parallelism(job: Declared, newest: LogEntryDocument | None) -> int:
    """Return what was asked for, else what the store has, else the default."""
    maximum = job.max_parallelism
    if maximum is None:
        stored = [item.max_parallelism for item in (newest.operators if newest else ()) if item.key]
        maximum = max(stored, default=default_max_parallelism(job.parallelism))
    if job.parallelism > maximum:
        raise InvalidInputError(f"parallelism must be 1 to {maximum}, the max parallelism, got {job.parallelism}")
    return maximum


def check_store(job: Declared, newest: LogEntryDocument | None, storage: Storage) -> None:
    """Refuse a store with state that the job would drop, or that is of another kind than the job's."""
    graph: Graph = job.graph
    operators = newest.operators if newest is not None else ()
    own: Mapping[str, str] = {
        **{task.uid: "a source" for task in graph.tasks if isinstance(task, SourceNode)},
        **{task.uid: "an operator with keyed state" for task in graph.tasks if isinstance(task, StatefulNode)},
        **{sink.uid: "an output table" if isinstance(sink.sink, OutputTable) else "a sink" for sink in graph.sinks},
        **{node.uid: "a function of map_batches" for node in graph.maps if node.uid is not None},
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
            if names == {"pending"}
            else "a function of map_batches"
        )
        have = own.get(operator.uid)
        if have is None and not job.allow_non_restored_state and not is_dead_letters(operator):
            raise InvalidInputError(
                f"the store has {kind} named {operator.uid!r}, which the job does not declare; declare it, or let it "
                "go with allow_non_restored_state=True"
            )
        if have is None and has_rows_in_flight(operator):
            raise InvalidInputError(
                f"the store has rows in flight to {operator.uid!r}, which the job does not declare; {IN_FLIGHT}"
            )
        if have is not None and have != kind:
            raise InvalidInputError(f"{operator.uid!r} is {kind} in the store and {have} in the job; name it otherwise")
    _check_columns(graph, operators, storage)
    had_places: Mapping[str, str] = ((newest and newest.properties) or {}).get(PROPERTY, {}).get("sinks", {})
    _check_places(graph, had_places)
    check_splits(graph, storage, newest)


def _check_columns(graph: Graph, operators: Sequence[OperatorDocument], storage: Storage) -> None:
    """Refuse other columns of keys and output tables, or of rows that a sink is still to get, than the job declares."""
    by_uid = {operator.uid: operator for operator in operators}
    for task in graph.tasks:
        if isinstance(task, StatefulNode) and task.uid in by_uid:
            had, key = key_schema_of(by_uid[task.uid].key), task.key
            if _columns(had) != _columns(key):
                raise IncompatibleStateError(
                    task.uid,
                    f"keyed by {described(had)}",
                    f"keyed by {described(key)}",
                    "declare the key that it has, or give the operator another uid",
                )
            InFlightStates(task).check(by_uid[task.uid])
            stored = {state.name: state for state in by_uid[task.uid].operator_states}
            for descriptor in task.broadcasts:
                if descriptor.name in stored:
                    check_converted(operator_descriptor_of(stored[descriptor.name]), descriptor)
    for sink in graph.sinks:
        if isinstance(sink.sink, OutputTable):
            stored_table(sink).parts_before(storage, operators)
        elif sink.uid in by_uid:
            _check_pending(sink, by_uid[sink.uid])


def _check_places(graph: Graph, had_places: Mapping[str, str]) -> None:
    """Refuse a sink that has rows waiting which were for another place: some of them may be there already."""
    for sink in graph.sinks:
        had = had_places.get(sink.uid)
        place = sink.sink.place if isinstance(sink.sink, Sink) else None
        if had is not None and place != had:
            now = type(sink.sink).__name__ if place is None else place
            raise IncompatibleStateError(f"{sink.uid}.pending", f"rows for {had}", f"rows for {now}", _SINK_REMEDY)


def _columns(schema: Iterable[pa.Field]) -> list[tuple[str, pa.DataType]]:
    """Return names and types: a store keeps no word of what may be null."""
    return [(field.name, field.type) for field in schema]


_SINK_REMEDY = (
    "start the job once as it was, so that the sink gets these rows, or give the new sink another uid and let them "
    "go with allow_non_restored_state=True"
)


def _check_pending(node: SinkNode, stored: OperatorDocument) -> None:
    """Refuse rows that a sink of before has not had, if the one of now takes others or cannot take any again."""
    kind = type_from_json(stored.operator_states[0].value_type)
    if isinstance(node.sink, PreparingSink):
        takes, what = node.sink.committable_schema, "what names files or rows that were prepared"
    elif isinstance(node.sink, Sink):
        takes, what = node.schema, "rows that the sink has not had"
    else:
        raise IncompatibleStateError(
            f"{node.uid}.pending",
            f"rows that the sink has not had, of {described(pa.schema(list(kind)))}",
            f"{type(node.sink).__name__}, which takes rows as they come",
            _SINK_REMEDY,
        )
    if _columns(kind) != _columns(takes):
        raise IncompatibleStateError(
            f"{node.uid}.pending", f"{what}, of {described(pa.schema(list(kind)))}", described(takes), _SINK_REMEDY
        )
