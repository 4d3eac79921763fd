"""The driver of checkpoints: freezes where it is called, writes and commits in threads of its own.

`Coordination` decides, the driver does. Freezing happens in the thread that owns the backends, in `trigger`, `poll`
and `trigger_savepoint`; parts are written by a few threads, and one more makes the commits and deletes what was
given up, so that the owner never waits for a storage unless uploads fall behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from arrowstate.checkpoints.compaction import BackgroundCompaction, CompactionPolicy
from arrowstate.checkpoints.coordination import CheckpointOptions, CheckpointRecord, Coordination
from arrowstate.checkpoints.freezing import Part, backends_by_uid
from arrowstate.checkpoints.pending import CheckpointProgress, Coordinator, Flight, PendingCheckpoint, StoreSide
from arrowstate.checkpoints.protocol import (
    Abort,
    Acknowledge,
    Action,
    Border,
    Cancel,
    Commit,
    CommitWon,
    Complete,
    Decline,
    Discard,
    Event,
    Kind,
    Start,
    Stop,
    Tick,
    Trigger,
    end_of_commit,
)
from arrowstate.checkpoints.writer import CheckpointWriter, WrittenPart
from arrowstate.errors import (
    ArrowStateError,
    CheckpointCancelledError,
    CheckpointsStoppedError,
    InvalidInputError,
)
from arrowstate.files.disposal import dispose
from arrowstate.files.savepoint import write_frozen_savepoint
from arrowstate.log.entries import given_properties
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.storage.base import Storage
from arrowstate.telemetry.records import Listener, Recording
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.integers import check_integer
from arrowstate_formats.run_files import RunFormat, check_format

SnapshotT = TypeVar("SnapshotT")

_LONGEST_WAIT_S = 0.2
"""How long a waiting thread looks away from the clock."""


class CheckpointCoordinator(Coordinator, Generic[SnapshotT]):
    """Takes checkpoints of backends while they are in use. Made by `StoreWriter.coordinator`.

    `trigger`, `trigger_savepoint`, `poll` and `close` belong to the thread that writes to the backends, and are called
    between two batches; everything else may be called from any thread. Several checkpoints may be in flight; their
    commits are in the order in which they were taken. When as many are in flight as the options allow, `trigger` waits
    for one to end: uploads that fall behind slow the job down and do not pile up.

    These four methods call the listeners, in their thread: `on_complete(checkpoint_id, kind)` when a checkpoint was
    committed; `on_abort(checkpoint_id, kind, reason)` when one ended without a commit; and in both cases
    `on_checkpoint(record)`, with its times and sizes. If the last of these raises, the error is logged.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://coordinator-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    >>> with store.writer() as writer, writer.coordinator({"counter": [backend]}) as checkpoints:
    ...     for offset in range(3):
    ...         clicks.add_batch(["ann"], [1])
    ...         pending = checkpoints.trigger(properties={"offset": offset})
    ...         clicks.add_batch(["bob"], [1])
    ...     snapshot = pending.result()
    >>> snapshot.properties, snapshot.to_arrow("counter.clicks").sort_by("user").to_pylist()
    ({'offset': 2}, [{'user': 'ann', 'clicks': 3}, {'user': 'bob', 'clicks': 2}])
    """

    def __init__(
        self,
        store: StoreSide[SnapshotT],
        writer: CheckpointWriter,
        operators: Mapping[str, Sequence[KeyedStateBackend]],
        *,
        operator_states: Mapping[str, Sequence[OperatorStateBackend]] | None = None,
        options: CheckpointOptions | None = None,
        format: RunFormat = "arrow",
        allow_dropped_state: bool = False,
        on_complete: Callable[[int, Kind], None] | None = None,
        on_abort: Callable[[int, Kind, str], None] | None = None,
        on_checkpoint: Listener | None = None,
        compaction: CompactionPolicy | None = None,
    ) -> None:
        self._store = store
        self._writer = writer
        self._operators = backends_by_uid("operators", operators, KeyedStateBackend)
        self._operator_states = backends_by_uid("operator_states", operator_states or {}, OperatorStateBackend)
        self._format = check_format(format)
        self._allow_dropped_state = allow_dropped_state
        self._on_complete = on_complete
        self._on_abort = on_abort
        self._on_checkpoint = on_checkpoint
        self._clock_ms = writer.clock_ms
        self._options = options or CheckpointOptions()
        if self._options.unaligned:
            raise InvalidInputError(
                "unaligned=True is for a Job of arrowstate.runtime: backends have no channels between them"
            )
        self._parts = [Part(uid, number) for uid, each in self._operators.items() for number in range(len(each))]
        self._parts += [Part(uid, None) for uid in self._operator_states]
        self._coordination = Coordination(self._parts, self._options)
        # Guards the coordination and the flights; whoever changes them tells those who wait.
        self._changed = threading.Condition()
        self._flights: dict[int, Flight[SnapshotT]] = {}
        self._news: list[Callable[[], None]] = []
        self._failure: BaseException | None = None
        self._closed = False
        self._writers = ThreadPoolExecutor(self._options.writer_threads, "arrowstate-checkpoint")
        # One thread, so commits and deletions are done in the order in which they were decided.
        self._finisher = ThreadPoolExecutor(1, "arrowstate-commit")
        self._compaction = BackgroundCompaction(self._operators, writer.store_key, compaction)

    def __enter__(self) -> CheckpointCoordinator[SnapshotT]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what is in flight; after an error give it up."""
        if error is None:
            self.close()
        elif self._writer.is_here:
            self.cancel(f"the job failed: {error}")
            self._finish()

    @property
    def history(self) -> tuple[CheckpointRecord, ...]:
        """The last 100 checkpoints that ended, oldest first, and then those in progress, with times and statistics."""
        with self._changed:
            return self._coordination.records

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The ids of the checkpoints and savepoints that have not ended, ascending."""
        with self._changed:
            return self._coordination.in_progress

    def trigger(
        self, *, properties: Mapping[str, Any] | None = None, watermark: int | None = None
    ) -> PendingCheckpoint[SnapshotT]:
        """Take a checkpoint now: freeze the backends, and return while it is written.

        Parameters
        ----------
        properties
            JSON values kept with it, such as source offsets.
        watermark
            Milliseconds since 1970; by default the lowest watermark of the backends, if all have one.

        Returns
        -------
        PendingCheckpoint[SnapshotT]
            Its `result()` waits for the commit and returns the `Snapshot`.

        Raises
        ------
        InvalidInputError
            If the backends do not fit together, operators or states of the checkpoint before are missing, or the
            process was forked from the one that opened the writer.
        FencedError, CommitUnknownError, CheckpointsStoppedError
            If no more checkpoints are taken: another writer has opened the store, nobody can tell how a commit ended,
            more checkpoints in a row failed than is tolerated, or the coordinator is closed. Where a commit met damage
            in the store it is that CorruptDataError.
        """
        while True:
            pending = self._begin(Trigger(self._clock_ms()), properties, watermark)
            if pending is not None:
                return pending
            self.wait(lambda: self._failure is not None or self._coordination.has_room)

    def poll(
        self, *, properties: Mapping[str, Any] | None = None, watermark: int | None = None
    ) -> PendingCheckpoint[SnapshotT] | None:
        """Take a periodic checkpoint if one is due, and give up checkpoints that took too long; never waits.

        Arguments and errors as for `trigger`.

        Returns
        -------
        PendingCheckpoint[SnapshotT] | None
            None if nothing is due, or if the largest number is in flight already.
        """
        return self._begin(Border(self._clock_ms()), properties, watermark)

    def trigger_savepoint(
        self,
        name_or_path: str | Path,
        *,
        format: RunFormat = "parquet",
        properties: Mapping[str, Any] | None = None,
        watermark: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> PendingCheckpoint[SnapshotT]:
        """Take a savepoint of the backends as they are now, beside the checkpoints, and return while it is written.

        Parameters
        ----------
        name_or_path, format, storage_options
            As in `StateStore.savepoint`.
        properties, watermark
            As for `trigger`.

        Returns
        -------
        PendingCheckpoint[SnapshotT]
            Its `result()` waits for the last file and returns the savepoint, a `Snapshot`.

        Raises
        ------
        InvalidInputError, FencedError, CommitUnknownError, CheckpointsStoppedError
            As for `trigger`; that the place holds files is found out later, and told by the result.
        """
        target = self._store.open_place(name_or_path, storage_options)
        pending = self._begin(Trigger(self._clock_ms(), "savepoint"), properties, watermark, target, format)
        assert pending is not None, "savepoints do not wait for room"
        return pending

    def cancel(self, reason: str = "cancelled by the job", *, checkpoint_id: int | None = None) -> None:
        """Give up a checkpoint, or all that are in flight; a commit that has begun goes on."""
        self._writer.check_process()
        self._feed(Cancel(self._clock_ms(), reason, checkpoint_id))

    def close(self) -> None:
        """Wait until everything in flight has ended, and tell the listeners.

        Raises
        ------
        InvalidInputError
            If the process was forked from the one that opened the writer; nothing is waited for.
        FencedError, CommitUnknownError, CheckpointsStoppedError
            As `trigger`, if a failure has ended the checkpoints and nobody was told yet.
        """
        self._finish()
        if self._failure is not None:
            raise self._failure

    def wait(self, condition: Callable[[], bool], timeout_ms: int | None = None) -> bool:
        """Wait until a condition holds, which is looked at whenever a checkpoint gets further; false at the timeout."""
        # In a forked process there are no threads that would end what is waited for.
        self._writer.check_process()
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            self._feed(Tick(self._clock_ms()))
            with self._changed:
                if condition():
                    return True
                left = _LONGEST_WAIT_S if deadline is None else min(_LONGEST_WAIT_S, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)

    def progress_of(self, checkpoint_id: int, ended: CheckpointRecord | None = None) -> CheckpointProgress:
        """Return the progress of a checkpoint in flight, or the last progress of one that has ended."""
        record = ended or self._record(checkpoint_id)
        written = sum(part.metrics.bytes_written for part in record.acknowledged.values() if part.metrics is not None)
        return CheckpointProgress(record.status.value, len(record.acknowledged), len(self._parts), written)

    def _begin(
        self,
        event: Trigger | Border,
        properties: Mapping[str, Any] | None,
        watermark: int | None,
        target: Storage | None = None,
        format: RunFormat | None = None,
    ) -> PendingCheckpoint[SnapshotT] | None:
        self._writer.check_process()
        self._tell_listeners()
        if self._failure is not None or self._closed:
            raise self._failure or CheckpointsStoppedError("the coordinator is closed")
        properties = given_properties(properties)
        watermark = check_integer("watermark", watermark, optional=True)
        with self._changed:
            self._coordination.begin_above(self._writer.newest_id)
            # Nobody else may end it before it is known here.
            start = next((action for action in self._feed(event) if isinstance(action, Start)), None)
            if start is None:
                return None
            flight = self._flights[start.checkpoint_id]
            flight.properties, flight.watermark, flight.target = properties, watermark, target
        return self._start(start, flight, format or self._format)

    def _start(self, action: Start, flight: Flight[SnapshotT], format: RunFormat) -> PendingCheckpoint[SnapshotT]:
        id = action.checkpoint_id
        try:
            self._compaction.adopt()
            flight.attempt = self._writer.freeze(
                self._operators, operator_states=self._operator_states, allow_dropped_state=self._allow_dropped_state
            )
            self._compaction.plan()
            self._write(id, flight, format)
        except BaseException as error:
            # Parts that other threads write already see that it is cancelled, and the next checkpoint waits for none.
            flight.unfrozen = error
            what = "the backends could not be frozen" if flight.attempt is None else "its writing could not begin"
            self.cancel(f"{what}: {error}", checkpoint_id=id)
            raise
        return PendingCheckpoint(self, id, action.kind, flight)

    def _write(self, id: int, flight: Flight[SnapshotT], format: RunFormat) -> None:
        """Have other threads write what is frozen."""
        assert flight.attempt is not None, "it is written after it was frozen"
        cancelled = flight.cancelled.is_set
        if flight.target is not None:
            frozen = flight.attempt.frozen
            save = partial(
                write_frozen_savepoint,
                flight.target,
                frozen.operators,
                frozen.operator_states,
                checkpoint_id=id,
                properties=flight.properties or {},
                watermark=frozen.watermark if flight.watermark is None else flight.watermark,
                format=format,
                new_id=self._writer.new_id,
                clock_ms=self._clock_ms,
                cancelled=cancelled,
                wrote=flight.recording.parts.append,
            )
            self._writers.submit(save).add_done_callback(partial(self._saved, id, flight))
        else:
            for part in self._parts:
                write = partial(self._writer.write, flight.attempt, part, format=format, cancelled=cancelled)
                self._writers.submit(write).add_done_callback(partial(self._written, id, flight, part))

    def _saved(self, id: int, flight: Flight[SnapshotT], future: Future[LogEntryDocument]) -> None:
        """A savepoint is written as a whole, and then there: its subtasks have nothing left to commit."""
        first = self._parts[0]
        error = future.exception()
        if error is None:
            assert flight.target is not None
            try:
                flight.committed = self._store.savepoint_of(flight.target, future.result())
            except BaseException as unread:  # noqa: BLE001
                # An error that left this callback would reach nobody, and the savepoint would never end.
                error = unread
                self._finisher.submit(self._discard, flight.target)
        if error is None:
            for part in self._parts:
                self._feed(Acknowledge(self._clock_ms(), id, part, flight.target if part is first else None))
        else:
            self._failed(id, flight, first, error)

    def _written(self, id: int, flight: Flight[SnapshotT], part: Part, future: Future[WrittenPart]) -> None:
        error = future.exception()
        if error is None:
            written = future.result()
            flight.recording.parts.append(written.record)
            self._feed(Acknowledge(self._clock_ms(), id, part, written, written.statistics))
        else:
            self._failed(id, flight, part, error)

    def _failed(self, id: int, flight: Flight[SnapshotT], part: Part, error: BaseException) -> None:
        if not isinstance(error, CheckpointCancelledError):
            flight.cause = flight.cause or error
            self._feed(Decline(self._clock_ms(), id, part, f"{type(error).__name__}: {error}"))

    def _discard(self, handle: WrittenPart | Storage | None) -> None:
        if isinstance(handle, WrittenPart):
            self._writer.discard([handle])
        elif handle is not None:
            # It is whole, and nobody was told of it: one that cannot be deleted does no harm.
            with suppress(ArrowStateError):
                dispose(handle, now_ms=self._clock_ms())

    def _commit(self, action: Commit) -> None:
        flight = self._flights[action.checkpoint_id]
        assert flight.attempt is not None, "its parts are written"
        commit = partial(
            self._writer.commit_parts,
            flight.attempt,
            action.handles,
            properties=flight.properties,
            watermark=flight.watermark,
            checkpoint_id=action.checkpoint_id,
        )
        # As a decorator it measures each call.
        self._finisher.submit(flight.recording.committing()(commit)).add_done_callback(
            partial(self._committed, action.checkpoint_id, flight)
        )

    def _committed(self, id: int, flight: Flight[SnapshotT], future: Future[LogEntryDocument]) -> None:
        error = flight.cause = future.exception()
        if error is None:
            flight.committed = self._store.snapshot_of(future.result())
        try:
            for told in self._store.after_commits if error is None else ():
                told.wake()
        finally:
            # Also where it fails for want of a thread: the checkpoint would never end, and who waits for it neither.
            self._feed(end_of_commit(self._clock_ms(), id, error))

    def _feed(self, event: Event) -> list[Action]:
        """Let the coordination handle an event, and have done what it says."""
        with self._changed:
            actions = self._coordination.handle(event)
            for action in actions:
                self._do(action)
            if actions:
                self._changed.notify_all()
        return actions

    def _do(self, action: Action) -> None:
        match action:
            case Start(id, kind):
                started_at_ms = self._record(id).triggered_at_ms
                recording = Recording(kind, self._writer.url, started_at_ms, self._on_checkpoint, checkpoint_id=id)
                self._flights[id] = Flight(recording)
            case Commit(id, "savepoint"):
                self._finisher.submit(self._feed, CommitWon(self._clock_ms(), id))
            case Commit():
                self._commit(action)
            case Discard(_, _, handle):
                self._finisher.submit(self._discard, handle)
            case Complete(id, kind):
                flight = self._flights.pop(id)
                flight.outcome, flight.ended = flight.committed, self._record(id)
                self._news.append(flight.recording.ended("completed"))
                if self._on_complete is not None:
                    self._news.append(partial(self._on_complete, id, kind))
            case Abort(id, reason):
                self._abort(id, reason)
            case Stop(reason):
                self._failure = self._failure or CheckpointsStoppedError(reason)

    def _abort(self, id: int, reason: str) -> None:
        flight, record = self._flights.pop(id), self._record(id)
        if flight.fail(record, reason):
            self._failure = flight.error
        self._news.append(flight.recording.ended(flight.outcome_of(record.status), flight.unfrozen or flight.error))
        if self._on_abort is not None:
            self._news.append(partial(self._on_abort, id, record.kind, reason))

    def _record(self, checkpoint_id: int) -> CheckpointRecord:
        with self._changed:
            return self._coordination.record(checkpoint_id)

    def _tell_listeners(self) -> None:
        while self._news:
            self._news.pop(0)()

    def _finish(self) -> None:
        self.wait(lambda: not self._coordination.in_progress)
        self._closed = True
        # The writers first: what they still finish is deleted by the other one.
        self._writers.shutdown()
        self._finisher.shutdown()
        self._compaction.close()
        for told in self._store.after_commits:
            told.close(is_last_due=self._failure is None)
        self._tell_listeners()
