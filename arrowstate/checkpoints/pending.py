"""A checkpoint that has begun and has not ended: how far it is, and waiting for its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct, field

from arrowstate.checkpoints.coordination import CheckpointRecord, Status
from arrowstate.checkpoints.protocol import Kind
from arrowstate.checkpoints.writer import CheckpointAttempt
from arrowstate.errors import CheckpointAbortedError
from arrowstate.storage.base import Storage
from arrowstate.telemetry.records import Outcome, Recording
from arrowstate_formats.documents import LogEntryDocument

SnapshotT = TypeVar("SnapshotT")


class Coordinator(Protocol):
    """What a pending checkpoint asks of whoever takes it."""

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The ids of those that have not ended."""

    def progress_of(self, checkpoint_id: int, ended: CheckpointRecord | None) -> CheckpointProgress:
        """Return how far it is."""

    def wait(self, condition: Callable[[], bool], timeout_ms: int | None) -> bool:
        """Wait until the condition holds, and return whether it does."""

    def cancel(self, reason: str, *, checkpoint_id: int) -> None:
        """Give it up, if it has not ended."""

    def __repr__(self) -> str:
        in_flight = ", ".join(map(str, self.in_flight)) or "none"
        return f"<{type(self).__name__}: checkpoints in flight: {in_flight}>"


class AfterCommits(Protocol):
    """What is done beside a coordinator after commits: old checkpoints are dropped, tables are published."""

    def wake(self) -> None:
        """Take note that a checkpoint was committed; returns at once."""

    def close(self, *, is_last_due: bool) -> None:
        """Do it once more if that is due and `is_last_due`, and wait for it."""


@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """How far a checkpoint is.

    Examples
    --------
    >>> progress = CheckpointProgress("in progress", acknowledged=3, parts=4, bytes_written=1_000_000)
    >>> f"{progress.acknowledged / progress.parts:.0%}"
    '75%'
    """

    status: str
    "As in the history of the coordinator."
    acknowledged: int
    "Parts that are written."
    parts: int
    "Parts in all: one per subtask of keyed state, and one per operator with operator state."
    bytes_written: int
    "Of the parts that are written."


class Flight(Struct, Generic[SnapshotT]):
    """What the driver knows of a checkpoint in progress."""

    recording: Recording
    attempt: CheckpointAttempt | None = None
    "None until the backends are frozen."
    properties: Mapping[str, Any] | None = None
    watermark: int | None = None
    target: Storage | None = None
    "Where a savepoint goes."
    cancelled: threading.Event = field(default_factory=threading.Event)
    committed: SnapshotT | None = None
    cause: BaseException | None = None
    outcome: SnapshotT | None = None
    error: BaseException | None = None
    unfrozen: BaseException | None = None
    "Why the backends could not be frozen."
    ended: CheckpointRecord | None = None

    def fail(self, record: CheckpointRecord, reason: str) -> bool:
        """End without a commit; return whether no other checkpoint can follow."""
        self.cancelled.set()
        self.ended = record
        # Of one that may be in the log nobody says that nothing of it was kept.
        is_last = self.cause is not None and record.status in (Status.LOST, Status.UNKNOWN)
        self.error = self.cause
        if not is_last:
            self.error = CheckpointAbortedError(record.checkpoint_id, record.status.value, reason)
            self.error.__cause__ = self.cause
        return is_last

    def outcome_of(self, status: Status) -> Outcome:
        """Return what a checkpoint came to that ended without a commit."""
        if status is Status.UNKNOWN:
            return "unknown"
        given_up = status in (Status.CANCELLED, Status.SUBSUMED) and self.unfrozen is None
        return "aborted" if given_up else "failed"

    @property
    def done(self) -> bool:
        return self.outcome is not None or self.error is not None


class StoreSide(Struct, Generic[SnapshotT], frozen=True):
    """What the driver needs of the store that it takes checkpoints to."""

    snapshot_of: Callable[[LogEntryDocument], SnapshotT]
    "Makes what a caller gets out of what was committed."
    savepoint_of: Callable[[Storage, LogEntryDocument], SnapshotT]
    "The same of a savepoint."
    open_place: Callable[[str | Path, Mapping[str, Any] | None], Storage]
    "Opens where a savepoint goes, given its name or path, and storage options."
    after_commits: tuple[AfterCommits, ...] = ()
    "What is told of each commit."


class PendingCheckpoint(Generic[SnapshotT]):
    """A checkpoint or savepoint that has begun; the job goes on while it is written.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://pending-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    >>> with store.writer() as writer, writer.coordinator({"people": [backend]}) as checkpoints:
    ...     pending = checkpoints.trigger_savepoint("friday")
    ...     savepoint = pending.result(timeout_ms=60_000)
    >>> pending, pending.done
    (<savepoint 1: completed, 1 of 1 parts written>, True)
    >>> savepoint.to_arrow("people.city").to_pylist()
    [{'user': 'ann', 'city': 'Rome'}]
    """

    def __init__(self, coordinator: Coordinator, checkpoint_id: int, kind: Kind, flight: Flight[SnapshotT]) -> None:
        self.checkpoint_id = checkpoint_id
        self.kind = kind
        self._coordinator = coordinator
        self._flight = flight

    def __repr__(self) -> str:
        progress = self.progress()
        parts = f"{progress.acknowledged} of {progress.parts} parts written"
        return f"<{self.kind} {self.checkpoint_id}: {progress.status}, {parts}>"

    @property
    def done(self) -> bool:
        """Whether it has ended, with a commit or without."""
        return self._flight.done

    def progress(self) -> CheckpointProgress:
        """Return how far it is.

        Returns
        -------
        CheckpointProgress
            Its `status`, and how many of its parts are written.
        """
        return self._coordinator.progress_of(self.checkpoint_id, self._flight.ended)

    def result(self, timeout_ms: int | None = None) -> SnapshotT:
        """Wait until it has ended, and return what was committed; from any thread.

        Parameters
        ----------
        timeout_ms
            How long to wait at most; by default until it ends, which the timeout of the coordinator bounds.

        Returns
        -------
        Snapshot
            The checkpoint, to be read and restored from; of a savepoint, read from its own folder.

        Raises
        ------
        CheckpointAbortedError
            If it ended without a commit.
        FencedError
            If a newer writer has opened the store.
        CommitUnknownError
            If it is unknown whether it was committed.
        CorruptDataError
            If its commit met damage in the store.
        TimeoutError
            If it has not ended by then; it goes on.
        """
        if not self._coordinator.wait(lambda: self._flight.done, timeout_ms):
            raise TimeoutError(f"{self.kind} {self.checkpoint_id} has not ended within {timeout_ms} ms")
        if self._flight.error is not None:
            raise self._flight.error
        assert self._flight.outcome is not None
        return self._flight.outcome

    def cancel(self, reason: str = "cancelled by the job") -> None:
        """Give it up: what was written for it is deleted. Nothing happens once it is being committed or has ended."""
        self._coordinator.cancel(reason, checkpoint_id=self.checkpoint_id)
