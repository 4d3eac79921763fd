"""The order of changes across micro-batches: the highest sequence that each key has seen, kept beside a state.

A value or map state `city` has two more beside it: `city_sequence` with the sequence of each value or entry that is
there, and `city_removed` with that of those that are not there any more. A change that comes late, with a lower
sequence than its key has in either, changes nothing. In one place of the order removals come first, within a
micro-batch and across them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.schema.descriptors import (
    MapStateDescriptor,
    StateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
)
from arrowstate.state.kinds.map import MapState
from arrowstate.state.kinds.value import ValueState

__all__ = ["KEPT", "Order", "kept_order"]

Bools = npt.NDArray[np.bool_]

KEPT = (ValueStateDescriptor, MapStateDescriptor)
"""The kinds of state that keep what the last change says."""


def kept_order(
    descriptor: ValueStateDescriptor | MapStateDescriptor, sequence: pa.Schema, tombstone_ttl: TimeToLive | None
) -> list[StateDescriptor]:
    """Return the states that keep the sequence of what is there, and of what was removed."""
    kind = sequence.field(0).type if len(sequence) == 1 else pa.struct(list(sequence))
    ttl = descriptor.ttl
    own = None if ttl is None else TimeToLive(ttl.ttl_ms, clock=ttl.clock)
    found: list[StateDescriptor] = []
    for name, until in ((f"{descriptor.name}_sequence", own), (f"{descriptor.name}_removed", tombstone_ttl)):
        if isinstance(descriptor, MapStateDescriptor):
            found.append(MapStateDescriptor(name, descriptor.key_type, kind, namespace=descriptor.namespace, ttl=until))
        else:
            found.append(ValueStateDescriptor(name, kind, namespace=descriptor.namespace, ttl=until))
    return found


@dataclass(frozen=True, slots=True)
class Order:
    """The highest sequences of a state."""

    there: ValueState | MapState
    gone: ValueState | MapState

    def in_time(
        self, sequence: Sequence[pa.Array], removed: pa.BooleanArray | None, where: Sequence[Any], space: Any
    ) -> Bools:
        """Return which rows do not come late.

        Parameters
        ----------
        sequence
            That of each row, its columns.
        removed
            Which rows remove; None if none does.
        where, space
            The keys, and for a map the user keys; the namespaces, None where there are none or keys say them.
        """
        known = [_columns(state.get_batch(*where, namespace=space)) for state in (self.there, self.gone) if len(state)]
        if not known:
            return np.ones(len(sequence[0]), dtype=np.bool_)
        lower, equal = _compared(sequence, [pc.coalesce(*both) for both in zip(*known, strict=True)])
        if removed is not None:
            # What was added in the same place of the order comes after it.
            lower |= equal & removed.to_numpy(zero_copy_only=False)
        return ~lower

    def note(
        self, columns: Sequence[pa.Array], cleared: Bools, where: Sequence[Any], space: Any, timestamps: Any
    ) -> None:
        """Keep the sequence of rows that have been folded; `cleared` are those after which nothing is there."""
        kind = self.there.descriptor.type
        fields = list(kind) if pa.types.is_struct(kind) else [pa.field("", kind)]
        # A timestamp comes in the session's time zone.
        typed = [column.cast(field.type) for column, field in zip(columns, fields, strict=True)]
        sequence = pa.StructArray.from_arrays(typed, fields=fields) if pa.types.is_struct(kind) else typed[0]
        both: tuple[tuple[Any, Bools], ...] = (self.there, cleared), (self.gone, ~cleared)
        for state, absent in both:
            if absent.all() and not len(state):
                continue
            ttl = state.descriptor.ttl
            given = {"namespace": space, "timestamps": timestamps if ttl and ttl.clock == "event_time" else None}
            if isinstance(state, MapState):
                state.put_batch(where[0], where[1], sequence, removed=pa.array(absent), **given)
            else:
                values = sequence.take(pa.array(np.arange(len(sequence)), mask=absent)) if absent.any() else sequence
                state.update_batch(*where, values, **given)


def _columns(values: pa.Array) -> list[pa.Array]:
    return values.flatten() if pa.types.is_struct(values.type) else [values]


def _compared(new: Sequence[pa.Array], old: Sequence[pa.Array]) -> tuple[Bools, Bools]:
    """Return which rows are lower than before, and which are equal; neither where there was nothing before."""
    equal = np.ones(len(new[0]), dtype=np.bool_)
    lower = ~equal
    for one, other in zip(new, old, strict=True):
        one = one.cast(other.type)
        same, less = _known(pc.equal(one, other)), _known(pc.less(one, other))
        if pa.types.is_floating(other.type):
            # As in the order of rows, what is no number comes after all numbers.
            odd, before = _known(pc.is_nan(one)), _known(pc.is_nan(other))
            same |= odd & before
            less |= before & ~odd & other.is_valid().to_numpy(zero_copy_only=False)
        lower |= equal & less
        equal &= same
    return lower, equal


def _known(flags: pa.BooleanArray) -> Bools:
    return pc.fill_null(flags, False).to_numpy(zero_copy_only=False)
