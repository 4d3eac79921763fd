"""Which micro-batches a store holds: what the log says of a streaming query, and which batch may come next.

Each checkpoint of a query records in its properties, under `spark`, the query id, the run id and the batch id;
a store belongs to one query. Spark repeats a batch under the same id after a failure and never leaves one out, so the
recorded batch tells a repetition from a new batch; a new Spark checkpoint folder counts from 0 again, which
only the query id tells from a repetition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from arrowstate.errors import CorruptDataError, QueryConflictError
from arrowstate.log.commit_log import History
from arrowstate.log.entries import path_of
from arrowstate_formats.documents import LogEntryDocument

__all__ = ["BatchRecord", "MicroBatch", "StoredState", "is_committed", "stored_state"]

_PROPERTY = "spark"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch as Spark names it."""

    query_id: str
    """The id of the query, which lives in its checkpoint folder."""
    run_id: str
    """The id of this start of the query; Spark's, but for operators on Spark Connect, where that cannot be known."""
    batch_id: int
    """Counts from 0 in each checkpoint folder."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What an entry of the log says of the micro-batch it committed."""

    query_id: str
    run_id: str
    batch_id: int | None
    """None in the fence with which a run takes over the store."""
    outputs: Mapping[str, int] = field(default_factory=dict)
    """By uid of an output, the row of it that is the first of this micro-batch."""
    metrics: Mapping[str, int] = field(default_factory=dict)
    """What the micro-batch took; see `BatchMetrics` in `metrics`."""
    next_timer: int | None = None
    """The earliest processing time, in milliseconds since 1970, at which a timer is due; None if there is none."""

    @classmethod
    def of(cls, entry: LogEntryDocument) -> BatchRecord | None:
        """Return the record of an entry; None if no Spark query made it."""
        found = entry.properties.get(_PROPERTY)
        if found is None:
            return None
        try:
            record = cls(
                found["query_id"],
                found["run_id"],
                found["batch_id"],
                found.get("outputs", {}),
                found.get("metrics", {}),
                found.get("next_timer"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(path_of(entry.number), f"the property {_PROPERTY!r} is {found!r}") from error
        return record

    def to_properties(self) -> Mapping[str, Any]:
        return {_PROPERTY: asdict(self)}


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the next micro-batch starts from."""

    checkpoint: LogEntryDocument | None
    """The newest checkpoint, None in a store without one."""
    record: BatchRecord | None
    """The newest micro-batch, None if there has been none."""
    recorded: LogEntryDocument | None
    """The checkpoint with this micro-batch."""


def stored_state(history: History) -> StoredState:
    """Return what the store holds for the query that it belongs to."""
    newest = None
    for entry in (found.document for found in history.checkpoints()):
        newest = newest or entry
        record = BatchRecord.of(entry)
        # A checkpoint made by other means, on top of those of the query, says nothing of batches.
        if record is not None:
            return StoredState(newest, record, entry)
    return StoredState(newest, None, None)


def is_committed(uid: str, batch: MicroBatch, record: BatchRecord | None) -> bool:
    """Whether a micro-batch is in the store already; False if it is the one that must come next.

    Raises
    ------
    QueryConflictError
        If another query owns the operator, or batches between the recorded one and this one are missing.
    """
    query_id, committed = (batch.query_id, -1) if record is None else (record.query_id, record.batch_id)
    assert committed is not None, "only a fence has no batch id, and a fence is no checkpoint"
    if query_id != batch.query_id or batch.batch_id > committed + 1:
        raise QueryConflictError(uid, batch.query_id, batch.batch_id, query_id, committed)
    return batch.batch_id <= committed
