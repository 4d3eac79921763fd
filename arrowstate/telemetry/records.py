"""What was done to a store: a record of each operation that ended, and who is told of it.

Whoever does something to a store opens a `Recording`, which becomes an `OperationRecord` when that ends, with a commit
or without. It is told to the callback that the caller gave, `on_checkpoint`, and to those that `listen` for the whole
process. By then the operation has ended, so nothing that a callback does can change how: what it raises is logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Literal, TypeAlias

from msgspec import Struct, field

from arrowstate.errors import CommitUnknownError
from arrowstate_formats.documents import SubtaskStatisticsDocument

Kind: TypeAlias = Literal["checkpoint", "savepoint", "restore", "import", "compaction", "collection"]
Outcome: TypeAlias = Literal["completed", "failed", "aborted", "unknown"]

_logger = logging.getLogger("arrowstate.telemetry")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """The times and sizes of one part of an operation; None if not measured."""

    operator: str
    "The uid."
    subtask: int | None
    "Whose keyed state it is; None for the operator state of all subtasks."
    freeze_us: int | None = None
    "How long the job stood still for it, in microseconds."
    alignment_us: int | None = None
    "How long it waited for the barriers of its other inputs, in microseconds."
    write_after_us: int | None = None
    "From the beginning of the operation to that of its write, in microseconds."
    write_us: int | None = None
    "How long its files took, in microseconds."
    bytes_written: int | None = None
    bytes_total: int | None = None
    """Of all files that it refers to, those written for it included; of a restore about those of the rows that the
    backend has, dead ones included, or of the operator state that was read."""
    files_written: int | None = None
    rows: int | None = None
    "The live rows of its keyed state."

    @classmethod
    def of(
        cls, statistics: SubtaskStatisticsDocument, *, rows: int | None = None, write_after_us: int | None = None
    ) -> PartRecord:
        """Return what a log entry says of a part, and what it does not."""
        return cls(
            operator=statistics.operator,
            subtask=statistics.subtask,
            freeze_us=statistics.sync_us,
            alignment_us=statistics.alignment_us,
            write_after_us=write_after_us,
            write_us=statistics.async_us,
            bytes_written=statistics.bytes_written,
            bytes_total=statistics.bytes_total,
            files_written=statistics.files_written,
            rows=rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRecord:
    """One operation on a store, from its beginning to its end; figures that were not measured are None.

    Bytes, files and rows are the sums of the parts. For a checkpoint or savepoint that failed or was aborted they cover
    the parts that had been written.
    """

    kind: Kind
    store: str
    "The URL of the store; of a savepoint that of the store it is taken of."
    outcome: Outcome
    "`aborted` is what was given up, `unknown` a commit of which nobody can tell whether it was made."
    error: BaseException | None
    "Why it is not completed."
    checkpoint_id: int | None
    "The checkpoint that was made or read; None where there is none, or it failed before it had an id."
    started_at_ms: int
    "Milliseconds since 1970."
    duration_us: int
    "From its beginning to its end, in microseconds."
    freeze_us: int | None
    "How long the job stood still, for all parts together."
    alignment_us: int | None
    "The longest of the parts."
    write_us: int | None
    "From the beginning of the first write to the end of the last."
    commit_us: int | None
    bytes_written: int | None
    bytes_total: int | None
    files_written: int | None
    files_deleted: int | None
    "By a collection."
    bytes_deleted: int | None
    "By a collection."
    rows: int | None
    parts: tuple[PartRecord, ...]


Listener: TypeAlias = Callable[[OperationRecord], object]

_listeners: tuple[Listener, ...] = ()
_changing_listeners = threading.Lock()


def listen(listener: Listener) -> Callable[[], None]:
    """Call a function with the record of each operation of this process, on any store, when the operation has ended.

    It is called in the thread of the operation; for checkpoints of a `CheckpointCoordinator`, in that of the job. If
    it raises, the error is logged and changes nothing else.

    Parameters
    ----------
    listener
        Gets an `OperationRecord`.

    Returns
    -------
    Callable
        Ends it when it is called.

    Examples
    --------
    >>> import arrowstate, arrowstate.telemetry, pyarrow as pa
    >>> records = []
    >>> stop = arrowstate.telemetry.listen(records.append)
    >>> store = arrowstate.open_store("memory://listen-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    >>> with store.writer() as writer:
    ...     _ = writer.checkpoint({"people": [backend]}).restore("people")
    >>> stop()
    >>> [(record.kind, record.outcome, record.checkpoint_id, record.rows) for record in records]
    [('checkpoint', 'completed', 1, 1), ('restore', 'completed', 1, 1)]
    """
    global _listeners
    # Another function for each call, so that one that is given twice is called twice, and each end ends one.
    own: Listener = lambda record: listener(record)  # noqa: E731
    with _changing_listeners:
        _listeners = (*_listeners, own)

    def stop() -> None:
        global _listeners
        with _changing_listeners:
            _listeners = tuple(each for each in _listeners if each is not own)

    return stop


class Recording(Struct):
    """An operation under way, and what is known of it so far."""

    kind: Kind
    store: str
    started_at_ms: int
    listener: Listener | None = None
    before_us: int = 0
    "How long it went on before this was made."
    checkpoint_id: int | None = None
    commit_us: int | None = None
    rows: int | None = None
    "Besides those of the parts."
    bytes_written: int | None = None
    "Besides those of the parts."
    bytes_total: int | None = None
    "Besides those of the parts."
    files_deleted: int | None = None
    bytes_deleted: int | None = None
    parts: list[PartRecord] = field(default_factory=list)
    "Appended to by any thread."
    is_void: bool = False
    "Whether there turned out to be nothing to do, and nothing is told."
    _began_ns: int = field(default_factory=time.perf_counter_ns)
    # What is current where it begins, a span for one, and not where its end is told.
    _context: Context = field(default_factory=copy_context)

    def elapsed_us(self) -> int:
        """Return how long it goes on, in microseconds."""
        return self.before_us + (time.perf_counter_ns() - self._began_ns) // 1000

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Measure the commit."""
        began_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self.commit_us = (time.perf_counter_ns() - began_ns) // 1000

    def ended(self, outcome: Outcome, error: BaseException | None = None) -> Callable[[], None]:
        """Note that it has ended, and return what tells everybody."""
        listeners = _listeners if self.listener is None else (self.listener, *_listeners)
        if self.is_void or not listeners:
            return lambda: None
        record = self._record(outcome, error)

        def tell() -> None:
            for listener in listeners:
                try:
                    self._context.run(listener, record)
                except Exception:
                    text = "%s: a callback failed for a %s that is %s"
                    _logger.exception(text, self.store, self.kind, outcome)

        return tell

    def _record(self, outcome: Outcome, error: BaseException | None) -> OperationRecord:
        parts = tuple(self.parts)
        writes = [(part.write_after_us or 0, part.write_us) for part in parts if part.write_us is not None]
        return OperationRecord(
            kind=self.kind,
            store=self.store,
            outcome=outcome,
            error=error,
            checkpoint_id=self.checkpoint_id,
            started_at_ms=self.started_at_ms,
            duration_us=self.elapsed_us(),
            freeze_us=_sum(part.freeze_us for part in parts),
            alignment_us=max((part.alignment_us for part in parts if part.alignment_us is not None), default=None),
            write_us=_span(writes),
            commit_us=self.commit_us,
            bytes_written=_sum([self.bytes_written, *(part.bytes_written for part in parts)]),
            bytes_total=_sum([self.bytes_total, *(part.bytes_total for part in parts)]),
            files_written=_sum(part.files_written for part in parts),
            files_deleted=self.files_deleted,
            bytes_deleted=self.bytes_deleted,
            rows=_sum([self.rows, *(part.rows for part in parts)]),
            parts=parts,
        )


@contextmanager
def recorded(
    kind: Kind,
    store: str,
    started_at_ms: int,
    *,
    listener: Listener | None = None,
    checkpoint_id: int | None = None,
    before_us: int = 0,
) -> Iterator[Recording]:
    """Tell of an operation that is done within a `with` block when the block ends, with an error or without."""
    recording = Recording(kind, store, started_at_ms, listener, before_us, checkpoint_id)
    try:
        yield recording
    except BaseException as error:
        recording.ended(_outcome_of(error), error)()
        raise
    recording.ended("completed")()


def _outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, CommitUnknownError):
        return "unknown"
    return "failed" if isinstance(error, Exception) else "aborted"


def _span(writes: Sequence[tuple[int, int]]) -> int | None:
    """Return the time from the first of the writes, (beginning, duration), to the end of the last."""
    if not writes:
        return None
    return max(began + taken for began, taken in writes) - min(began for began, _ in writes)


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of what is known, None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
