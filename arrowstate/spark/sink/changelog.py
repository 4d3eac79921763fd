"""A stream of changes: which operation each row names, and what it does to a state.

Three vocabularies are known, and may be mixed: the row kinds of Flink, the operations of Debezium, and the change
types of Spark and Delta. All that matters here is whether a row is there after the change or was there before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError
from arrowstate.query.changes import ADDED, REMOVED
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from arrowstate.schema.types import shown_scalar
from arrowstate.state.folds.retraction import check_retractable

__all__ = ["ADDED", "REMOVED", "WITHOUT_OLD_VALUE", "Changes", "check_follows_changes"]

_KNOWN = (*ADDED, *REMOVED)
WITHOUT_OLD_VALUE = "u"


@dataclass(frozen=True, slots=True)
class Changes:
    """The operations of the rows of a batch."""

    operations: pa.Array
    removed: pa.BooleanArray
    """Which rows are there no more, without nulls."""

    @classmethod
    def of(cls, operations: pa.Array, column: str, keys: pa.RecordBatch) -> Changes:
        """Read the operations of a batch; `keys` are there for an error."""
        numbers = pc.index_in(operations, value_set=pa.array(_KNOWN, operations.type))
        if numbers.null_count:
            row = _first(numbers.is_null())
            raise InvalidInputError(
                f"an operation is one of {', '.join(_KNOWN)}; column {column!r} holds {operations[row].as_py()!r} in "
                f"the row with the key {_shown(keys, row)}: rename it in the stream, or filter such rows out"
            )
        return cls(operations, pc.greater_equal(numbers, len(ADDED)))

    def check_old_values(self, state: str, keys: pa.RecordBatch) -> None:
        """Refuse an update that does not come with the old row, which sums, counts and means must take back."""
        alone = pc.equal(self.operations, WITHOUT_OLD_VALUE)
        if alone.true_count:
            raise InvalidInputError(
                f"state {state!r} takes the old values of an update back, and the operation {WITHOUT_OLD_VALUE!r} of "
                f"the row with the key {_shown(keys, _first(alone))} brings the new ones only; make two rows of it, "
                "-U with what Debezium has in `before` and +U with what it has in `after`"
            )


def check_follows_changes(descriptor: StateDescriptor, sequence: bool) -> None:
    """Refuse a state that cannot follow a stream of changes, or not without their order."""
    if isinstance(descriptor, (ReducingStateDescriptor, AggregatingStateDescriptor)):
        check_retractable(descriptor)
    elif not isinstance(descriptor, (ValueStateDescriptor, MapStateDescriptor)):
        raise InvalidInputError(
            f"state {descriptor.name!r}: a state of the kind {descriptor.kind} cannot take back a value, which a "
            "stream with operation= asks for; a map state that holds the rows by their own key can, and so can sums, "
            "counts and means"
        )
    elif not sequence:
        raise InvalidInputError(
            f"state {descriptor.name!r} keeps what the last change says, and the rows of a micro-batch have no order; "
            "name what orders the changes of a key with sequence=, such as a commit version or the offset in a log"
        )


def _first(mask: pa.BooleanArray) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])


def _shown(keys: pa.RecordBatch, row: int) -> str:
    return ", ".join(f"{name}={shown_scalar(keys.column(name)[row])}" for name in keys.schema.names)
