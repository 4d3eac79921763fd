"""What a caller of `keyed_sink` says of the rows: their states, columns and order, checked and made part of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from arrowstate.bootstrap.columns import check_states
from arrowstate.errors import InvalidInputError
from arrowstate.functions.dead_letters import dead_letter_table
from arrowstate.schema.descriptors import MapStateDescriptor, StateDescriptor, TimeToLive, ValueStateDescriptor
from arrowstate.schema.layout import key_schema_of
from arrowstate.spark.columns import FrameColumns
from arrowstate.spark.schemas import arrow_type, spark_type
from arrowstate.spark.sink.changelog import check_follows_changes
from arrowstate.spark.sink.columns import KINDS, StreamColumns, state_input
from arrowstate.spark.sink.ordering import KEPT, kept_order
from arrowstate_formats.schema_documents import FieldDocument, StateDocument

__all__ = ["Inputs"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a caller says of the rows, checked as far as no column is needed."""

    states: Sequence[StateDescriptor]
    columns: Mapping[str, str | Sequence[str]]
    sequence: Sequence[str] | None
    operation: str | None
    timestamp: str | None
    dead_letters: str | None
    late_changes: str
    tombstone_ttl: TimeToLive | None

    def __post_init__(self) -> None:
        check_states(self.states, KINDS, "a stream is folded into value, reducing, aggregating, list and map states")
        names = [descriptor.name for descriptor in self.states]
        if unknown := [name for name in self.columns if name not in names]:
            raise InvalidInputError(
                f"columns names the columns of states by the state, and there is no state {unknown[0]!r}; there is "
                f"{', '.join(names)}"
            )
        if self.sequence is not None and not self.sequence:
            raise InvalidInputError("sequence must name at least one column; leave it out if rows have no order")
        if self.operation is not None:
            for descriptor in self.states:
                check_follows_changes(descriptor, self.sequence is not None)
        self._check_late_changes()
        by_event_time = [item.name for item in self.states if item.ttl and item.ttl.clock == "event_time"]
        if self.tombstone_ttl is not None and self.tombstone_ttl.clock == "event_time":
            by_event_time.append("tombstones")
        if by_event_time and self.timestamp is None:
            raise InvalidInputError(
                f"state {by_event_time[0]!r} expires by event time; name the column with the time of each row with "
                "timestamp="
            )
        if self.timestamp is not None and not by_event_time:
            raise InvalidInputError(
                f"timestamp={self.timestamp!r} is for states that expire by event time, and none of "
                f"{', '.join(names)} does; leave it out, or declare a TimeToLive with clock='event_time'"
            )

    def _check_late_changes(self) -> None:
        if self.late_changes not in ("ignore", "apply"):
            raise InvalidInputError(f"late_changes must be 'ignore' or 'apply', got {self.late_changes!r}")
        if self.tombstone_ttl is not None and not self._ordered:
            raise InvalidInputError(
                "tombstone_ttl is how long the sequence of what was removed is kept; it needs a sequence, late changes "
                "that are ignored, and a value or map state"
            )
        names = {item.name.lower() for item in self.states}
        for item in self._ordered:
            for name in (f"{item.name}_sequence", f"{item.name}_removed"):
                if name.lower() in names:
                    raise InvalidInputError(
                        f"under the name {name!r} the sequence of state {item.name!r} is kept; rename the state that "
                        "has it, or order micro-batches by themselves with late_changes='apply'"
                    )

    @property
    def _ordered(self) -> list[ValueStateDescriptor | MapStateDescriptor]:
        """The states that late changes leave as they are."""
        if self.sequence is None or self.late_changes == "apply":
            return []
        return [item for item in self.states if isinstance(item, KEPT)]

    def orders(self, found: FrameColumns) -> dict[str, list[StateDescriptor]]:
        """Return, by the name of a state, what keeps the sequences of its changes."""
        sequence = pa.schema([(name, arrow_type(found.type_of(name))) for name in self.sequence or ()])
        return {item.name: kept_order(item, sequence, self.tombstone_ttl) for item in self._ordered}

    def take(
        self, columns: StreamColumns, key: Sequence[FieldDocument], stored: Mapping[str, StateDocument]
    ) -> dict[str, Any]:
        """Take the columns that the states need; return what a plan says of them."""
        found: dict[str, Any] = {}
        if self.sequence is not None:
            found["sequence"] = columns.take_sequence(self.sequence)
        orders = self.orders(columns.found)
        found["states"] = [
            state_input(item, key, columns, stored, self.columns.get(item.name), orders.get(item.name, ()))
            for item in self.states
        ]
        if self.operation is not None:
            found["operation"] = columns.take_operation(self.operation)
        if self.timestamp is not None:
            found["timestamp"], found["watermark_delay_ms"] = columns.take_timestamp(self.timestamp)
        if self.dead_letters is not None:
            names = columns.found.schema.names
            row = pa.schema([(name, arrow_type(columns.found.type_of(name))) for name in names])
            # As they arrive: a key that is no key of the store has a place there too.
            arriving = pa.schema([(field.name, arrow_type(spark_type(field.type))) for field in key_schema_of(key)])
            found["dead_letters"] = dead_letter_table(self.dead_letters, arriving, row)
            found["row"] = [columns.take(name, columns.found.type_of(name)) for name in names]
        return found
