"""Rows in flight: what the barrier of a checkpoint overtakes in the channels of a task, kept as state of that task.

The rows of each input are a keyed list state, so they are cut by key groups, read, compared and collected as any other.
What else stood in the channels, their watermarks, is a small union list. After a restore the task processes both
before anything new, channel by channel; each old channel holds event time back as it did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import IncompatibleStateError, InvalidInputError
from arrowstate.files.in_flight import (
    CHANNELS,
    RESERVED,
    has_rows_in_flight,
    reserved_names,
    rows_name,
    rows_without_key_name,
)
from arrowstate.files.operator import FrozenOperatorState
from arrowstate.files.writing import FrozenState, FrozenSubtask
from arrowstate.runtime.core.elements import Element, Rows, Status, Watermark
from arrowstate.runtime.core.exchange import FRAME_ROWS
from arrowstate.runtime.graph import StatefulNode
from arrowstate.schema.conversion import rows_of
from arrowstate.schema.descriptors import ListStateDescriptor
from arrowstate.schema.keys import described, to_type
from arrowstate.schema.operator_state import OperatorListStateDescriptor
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import restore_operator_backend
from arrowstate.state.backend.restoring import restore_backend
from arrowstate.storage.base import Storage
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.cached_properties import cached_property
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument

IN_FLIGHT = "start the job once as it was and stop it: what is in flight is processed before it ends"
"""What to do about rows in flight that a job cannot take."""
_EVENT = pa.struct([("position", pa.int64()), ("watermark", pa.int64()), ("is_idle", pa.bool_())])
"""After so many rows of the channel: event time, or that the channel is idle or no longer."""

_CHANNEL = pa.struct(
    [
        ("to_subtask", pa.int32()),
        ("channel", pa.int32()),
        ("origin", pa.string()),
        ("input", pa.int32()),
        ("from_subtask", pa.int32()),
        ("watermark", pa.int64()),
        ("is_idle", pa.bool_()),
        ("events", pa.list_(_EVENT)),
    ]
)

_PLACE = pa.schema(
    [
        ("from_subtask", pa.int32()),
        ("to_subtask", pa.int32()),
        ("channel", pa.int32()),
        ("position", pa.int64()),
    ]
)


@dataclass(slots=True)
class InFlightChannel:
    """A channel of a task as a checkpoint has it: how it was at the snapshot, and what came after that."""

    origin: str
    port: int
    sender: int
    watermark: int | None = None
    """None if it had none, or was to begin where its task is."""
    is_idle: bool = False
    is_timed: bool = True
    """Whether event time waits for it."""
    elements: deque[Element] = field(default_factory=deque)


@dataclass(slots=True)
class Capture:
    """What is in flight to a task at one checkpoint."""

    checkpoint_id: int
    rest: list[InFlightChannel]
    """What of an earlier checkpoint is still to be processed."""
    channels: dict[int, InFlightChannel]
    """By number those of the task."""
    waits_for: set[int] = field(default_factory=set)
    """The channels whose barrier is still to come."""
    bytes: int = 0

    def add(self, number: int, element: Element) -> None:
        """Take what stands in a channel before the barrier."""
        if isinstance(element, (Rows, Watermark, Status)):
            self.channels[number].elements.append(element)
            self.bytes += element.bytes if isinstance(element, Rows) else 0

    @property
    def all_channels(self) -> list[InFlightChannel]:
        """Those with something in them, and then all others too, which hold event time back; else none."""
        found = [*self.rest, *self.channels.values()]
        return found if any(channel.elements for channel in found) else []


class InFlightStates:
    """How the rows in flight to one operator are stored."""

    def __init__(self, node: StatefulNode) -> None:
        self._node = node
        inputs = {edge.port: edge.schema for edge in node.inputs if isinstance(edge.port, int)}
        self._inputs: dict[int, pa.Schema] = dict(sorted(inputs.items()))

    @property
    def names(self) -> list[str]:
        """The states, of both kinds."""
        return [name(port) for port in self._inputs for name in (rows_name, rows_without_key_name)]

    @cached_property
    def _descriptors(self) -> dict[int, ListStateDescriptor]:
        return {
            port: ListStateDescriptor(rows_name(port), pa.struct([*_PLACE, ("row", _row_type(schema))]))
            for port, schema in self._inputs.items()
        }

    # What is written.

    def frozen(
        self, subtask: int, keyed: FrozenSubtask, capture: Capture | None
    ) -> tuple[FrozenSubtask, list[FrozenOperatorState]]:
        """Return keyed and operator state with what is in flight, both without any for an aligned checkpoint."""
        channels = [] if capture is None else capture.all_channels
        backend = KeyedStateBackend(
            key=self._node.key, max_parallelism=keyed.max_parallelism, key_groups=keyed.key_groups
        )
        backend.take_up(keyed.key, ())
        operator = [_frozen_list(CHANNELS, _CHANNEL, _described(subtask, channels), mode="union")]
        for port, descriptor in self._descriptors.items():
            state = backend.state(descriptor)
            rows = self._rows(port, subtask, channels)
            nulls = rows[:0]
            if len(rows):
                keys = self._keys(port, rows)
                unknown = _any_null(keys)
                if pc.any(unknown).as_py():
                    known = pc.invert(unknown)
                    nulls = pc.struct_field(rows.filter(unknown), "row")
                    keys, rows = keys.filter(known), rows.filter(known)
                state.add_batch(keys, rows)
            operator.append(_frozen_list(rows_without_key_name(port), _row_type(self._inputs[port]), nulls))
        states: tuple[FrozenState, ...] = backend.freeze().states
        whole = FrozenSubtask(
            keyed.key,
            keyed.max_parallelism,
            keyed.key_groups,
            (*keyed.states, *states),
            keyed.watermark,
            keyed.dropped,
        )
        return whole, operator

    def _rows(self, port: int, subtask: int, channels: Sequence[InFlightChannel]) -> pa.StructArray:
        """Return the rows of an input, each with its place."""
        kind = self._descriptors[port].type
        fields = list(_row_type(self._inputs[port]))
        chunks = []
        for number, channel in enumerate(channels):
            batches = [item.batch for item in channel.elements if isinstance(item, Rows) and channel.port == port]
            start = 0
            for batch in batches:
                count = batch.num_rows
                place: list[pa.Array] = [
                    pa.repeat(pa.scalar(value, pa.int32()), count) for value in (channel.sender, subtask, number)
                ]
                place.append(pa.array(np.arange(start, start + count, dtype=np.int64)))
                row = pa.StructArray.from_arrays(batch.columns, fields=fields)
                chunks.append(pa.StructArray.from_arrays([*place, row], fields=list(kind)))
                start += count
        # The rows are copied here and nowhere before.
        return pa.concat_arrays(chunks) if chunks else pa.array([], kind)

    def _keys(self, port: int, rows: pa.StructArray) -> pa.RecordBatch:
        row = rows.field("row")
        edge = next(edge for edge in self._node.inputs if edge.port == port)
        columns = [to_type(row.field(name), kept.type) for name, kept in zip(edge.key, self._node.key, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self._node.key)

    # What is restored.

    def check(self, stored: OperatorDocument) -> None:
        """Refuse rows in flight with other columns than those that the job has between its operators now."""
        if not has_rows_in_flight(stored):
            return
        by_name = {descriptor.name: (port, descriptor) for port, descriptor in self._descriptors.items()}
        reserved = reserved_names(stored)
        for state in stored.states:
            if state.name not in reserved:
                continue
            had = type_from_json(state.value_type)
            port, descriptor = by_name.get(state.name, (0, None))
            if descriptor is None or had != descriptor.type:
                raise IncompatibleStateError(
                    f"{stored.uid}.{state.name}",
                    f"rows in flight, of {described(pa.schema(list(had.field('row').type)))}",
                    "no such input" if descriptor is None else f"rows of {described(self._inputs[port])}",
                    IN_FLIGHT,
                )

    def restored(
        self,
        storage: Storage,
        store_id: str,
        base: LogEntryDocument,
        stored: OperatorDocument,
        *,
        parallelism: int,
        subtask: int,
        max_parallelism: int,
    ) -> list[InFlightChannel]:
        """Return what was in flight to the keys of a subtask, in the order of processing."""
        if not has_rows_in_flight(stored):
            return []
        others = [state.name for state in stored.states if state.name not in self.names]
        backend = restore_backend(
            storage,
            store_id,
            base,
            stored.uid,
            parallelism=parallelism,
            subtask=subtask,
            max_parallelism=max_parallelism,
            drop=others,
        )
        lists = restore_operator_backend(storage, base, stored.uid, parallelism=parallelism, subtask=subtask)
        found: list[InFlightChannel] = []
        rows: dict[tuple[int, int, int], pa.StructArray] = {}
        for port, descriptor in self._descriptors.items():
            nulls = self._without_key(lists, port)
            if nulls:
                # They are only set aside: it does not matter when.
                found.append(InFlightChannel("", port, 0, is_timed=False, elements=deque(nulls)))
            if descriptor.name in backend.state_names:
                of_port = _by_channel(backend.state(descriptor).live_batches(), descriptor)
                rows.update({(port, *place): of_channel for place, of_channel in of_port.items()})
        subtasks = {to for _, to, _ in rows}
        timed = []
        for item in lists.state(OperatorListStateDescriptor(CHANNELS, _CHANNEL, "union")).get():
            if item["to_subtask"] not in subtasks:
                continue
            port, place = item["input"] - 1, (item["to_subtask"], item["channel"])
            channel = InFlightChannel(item["origin"], port, item["from_subtask"], item["watermark"], item["is_idle"])
            channel.elements.extend(self._elements(port, rows.pop((port, *place), None), item["events"]))
            timed.append((place, channel))
        # Rows of a channel that an edit has taken out of the list, or that it has put in with another number.
        for (port, *_), others in sorted(rows.items(), key=lambda item: item[0]):
            elements = deque(self._frames(port, others.field("row")))
            found.append(InFlightChannel("", port, 0, is_timed=False, elements=elements))
        # What was in flight since an earlier checkpoint comes before what was sent after that.
        return [*found, *(channel for _, channel in sorted(timed, key=lambda pair: pair[0]))]

    def _without_key(self, lists: Any, port: int) -> list[Element]:
        name = rows_without_key_name(port)
        if name not in lists.state_names:
            return []
        return self._frames(port, lists.existing(name).freeze().column(0))

    def _elements(self, port: int, rows: pa.StructArray | None, events: Sequence[Any]) -> list[Element]:
        """Return what stood in a channel, in its order: of the rows those that are here."""
        made: list[Element] = []
        positions = np.array([], np.int64) if rows is None else rows.field("position").to_numpy()
        start = 0
        for event in events:
            end = int(np.searchsorted(positions, event["position"]))
            if rows is not None and end > start:
                made += self._frames(port, rows.slice(start, end - start).field("row"))
            start = end
            idle = event["is_idle"]
            made.append(Watermark(event["watermark"]) if idle is None else Status(idle))
        if rows is not None and len(rows) > start:
            made += self._frames(port, rows.slice(start).field("row"))
        return made

    def _frames(self, port: int, rows: pa.StructArray) -> list[Element]:
        """Return rows as they came through the channel; they are in no credit any more."""
        table = pa.Table.from_batches([rows_of(rows)]).cast(self._inputs[port])
        return [Rows(batch, 0) for batch in table.to_batches(max_chunksize=FRAME_ROWS)]


def check_names(uid: str, keyed: Iterable[str], operator: Iterable[str], *, unaligned: bool) -> None:
    """Refuse states of a function with names under which a store has rows in flight."""
    reserved = RESERVED if unaligned else (CHANNELS,)
    for name in (*keyed, *operator):
        if name.lower() in reserved:
            raise InvalidInputError(
                f"operator {uid!r} has a state named {name!r}, under which a checkpoint keeps what is in flight to it; "
                "name it otherwise"
            )


def _row_type(schema: pa.Schema) -> pa.StructType:
    return pa.struct([pa.field(item.name, item.type) for item in schema])


def _any_null(keys: pa.RecordBatch) -> pa.Array:
    found = keys.column(0).is_null()
    for column in keys.columns[1:]:
        found = pc.or_(found, column.is_null())
    return found


def _described(subtask: int, channels: Sequence[InFlightChannel]) -> pa.Array:
    return pa.array(
        [
            {
                "to_subtask": subtask,
                "channel": number,
                "origin": channel.origin,
                "input": channel.port + 1,
                "from_subtask": channel.sender,
                "watermark": channel.watermark,
                "is_idle": channel.is_idle,
                "events": _events(channel.elements),
            }
            for number, channel in enumerate(channels)
            if channel.is_timed
        ],
        _CHANNEL,
    )


def _events(elements: Iterable[Element]) -> list[dict[str, Any]]:
    made = []
    position = 0
    for item in elements:
        match item:
            case Rows(batch):
                position += batch.num_rows
            case Watermark(timestamp):
                made.append({"position": position, "watermark": timestamp})
            case Status(is_idle):
                made.append({"position": position, "is_idle": is_idle})
    return made


def _frozen_list(name: str, kind: pa.DataType, values: pa.Array, mode: Any = "split") -> FrozenOperatorState:
    schema = pa.schema([pa.field(name, kind, nullable=False)])
    batch = pa.RecordBatch.from_arrays([values], schema=schema)
    return FrozenOperatorState(OperatorListStateDescriptor(name, kind, mode), batch)


def _by_channel(
    batches: Iterable[pa.RecordBatch], descriptor: ListStateDescriptor
) -> dict[tuple[int, int], pa.StructArray]:
    """Return the rows of each channel in their order, by the subtask that they were in flight to and its channel."""
    names = [item.name for item in descriptor.type]
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return {}
    table = pa.Table.from_batches(found)
    table = pa.Table.from_arrays(table.columns[-len(names) :], names=names)
    order = [(name, "ascending") for name in ("to_subtask", "channel", "position")]
    table = table.take(pc.sort_indices(table.drop_columns(["row"]), sort_keys=order)).combine_chunks()
    rows = pa.StructArray.from_arrays([column.chunk(0) for column in table.columns], fields=list(descriptor.type))
    to, channel = (table[name].to_numpy() for name in ("to_subtask", "channel"))
    borders = np.flatnonzero((np.diff(to) != 0) | (np.diff(channel) != 0)) + 1
    starts = [0, *borders.tolist()]
    return {
        (int(to[start]), int(channel[start])): rows.slice(start, end - start)
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)
    }
