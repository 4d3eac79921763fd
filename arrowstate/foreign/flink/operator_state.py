"""State without keys: lists that are split or whole for every subtask, and broadcast maps.

An element of a list, and the whole of a map, begins at an offset of the stream. A compressed stream is one of Snappy,
whose every element begins with a chunk.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.handles import OperatorStatePlace
from arrowstate.foreign.flink.keyed_header import StateInfo
from arrowstate.foreign.flink.layout import is_always_opaque
from arrowstate.foreign.flink.places import Stream
from arrowstate.foreign.flink.serializers.base import CountedBytes, Opaque, Serializer, bytes_of, compiled
from arrowstate.foreign.flink.serializers.columns import masked, named
from arrowstate.foreign.flink.serializers.composites import ListOf, StructOf
from arrowstate.foreign.flink.serializers.program import Bytes, Ints, Tape, UndecodableError
from arrowstate.foreign.flink.snappy import MAX_STREAM_BYTES, decompressed
from arrowstate.foreign.flink.source_positions import SPLIT, SPLITS, split_column
from arrowstate.schema.operator_state import SUBTASK_COLUMN


def operator_schema(info: StateInfo) -> pa.Schema:
    """Return the columns of a state: `value`, or `key` and `value` of a map, perhaps `_raw`, and `_subtask`."""
    value = info.serializer("VALUE_SERIALIZER")
    fields = []
    fallible = value.fallible
    if info.backend_kind == "broadcast":
        key = info.serializer("KEY_SERIALIZER")
        fields.append(pa.field("key", key.arrow))
        fallible = fallible or key.fallible
    opaque = is_always_opaque(value)
    if _is_of_splits(info):
        return pa.schema([pa.field("value", SPLIT), pa.field(SUBTASK_COLUMN, pa.int32())])
    metadata = {"flink.class": ", ".join(value.opaque)} if value.opaque else None
    fields.append(pa.field("value", pa.binary() if opaque else value.arrow, metadata=metadata))
    if fallible and (info.backend_kind == "broadcast" or not opaque):
        fields.append(pa.field("_raw", pa.binary()))
    return pa.schema([*fields, pa.field(SUBTASK_COLUMN, pa.int32())])


def operator_batch(
    stream: Stream,
    place: OperatorStatePlace,
    all_offsets: list[int],
    compressed: bool,
    info: StateInfo,
    subtask: int,
) -> pa.RecordBatch:
    """Return a state of one subtask: the elements of a list, or the entries of a map."""
    value, schema = info.serializer("VALUE_SERIALIZER"), operator_schema(info)
    data, starts, ends = _parts(stream, place, all_offsets, compressed)
    if info.backend_kind == "broadcast":
        serializer: Serializer = ListOf(StructOf(("key", "value"), (info.serializer("KEY_SERIALIZER"), value)))
    else:
        serializer = Opaque("", "") if is_always_opaque(value) else value
    together = compressed and len(place.offsets) > 1 and len(set(place.offsets)) == 1
    code, column = compiled(serializer, last=not together)
    tape = Tape(code, data, stream.name, len(starts))
    if together:
        # Before Flink 1.19 what is compressed is not cut at its elements, and follows each other.
        starts, stops = _followed(tape, info.name, len(place.offsets))
        ends = np.append(stops[:-1], len(data))
        unknown = np.zeros(len(stops), dtype=np.bool_)
    else:
        stops, unknown = tape.values(starts, ends)
    wrong = stops != ends
    if wrong.any():
        raise CorruptDataError(stream.name, f"at byte {stops[wrong.argmax()]}: {info.name!r} ends too early")
    with named(stream.name):
        found = column(tape.slots)
    if info.backend_kind == "broadcast":
        columns = _entries(found, bytes_of(data, starts, ends, unknown), "_raw" in schema.names)
    else:
        columns = [split_column(found, stream.name) if _is_of_splits(info) else masked(found, ~unknown)]
        if "_raw" in schema.names:
            columns.append(bytes_of(data, starts, ends, unknown))
    columns.append(pa.array(np.full(len(columns[0]), subtask, dtype=np.int32)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_of_splits(info: StateInfo) -> bool:
    """Whether elements are the splits of a source."""
    return info.name == SPLITS and isinstance(info.serializer("VALUE_SERIALIZER"), CountedBytes)


def _followed(tape: Tape, name: str, count: int) -> tuple[Ints, Ints]:
    """Where elements begin and end that follow each other from the beginning of what is decompressed."""
    try:
        stops = tape.chain(0, len(tape.data), count)
    except UndecodableError as error:
        detail = f"at byte {error.position}: an element of {name!r} that cannot be decoded hides where the next begins"
        raise CorruptDataError(tape.name, detail) from error
    return np.append(0, stops[:-1]), stops


def _entries(maps: pa.Array, raw: pa.Array, with_raw: bool) -> list[pa.Array]:
    """Keys and values of maps; a map that could not be decoded is a row of its bytes."""
    key, value = maps.values.flatten()
    if not with_raw:
        return [key, value]
    unknown = raw.drop_null()
    key, value = (pa.concat_arrays([each, pa.nulls(len(unknown), each.type)]) for each in (key, value))
    return [key, value, pa.concat_arrays([pa.nulls(len(key) - len(unknown), pa.binary()), unknown])]


def _parts(
    stream: Stream, place: OperatorStatePlace, all_offsets: list[int], compressed: bool
) -> tuple[Bytes, Ints, Ints]:
    """The bytes that elements lie in, where each begins, and where the next one does."""
    size = len(stream.data)
    ends = dict(zip(all_offsets, [min(offset, size) for offset in (*all_offsets[1:], size)], strict=True))
    for offset in place.offsets:
        if offset > size:
            raise CorruptDataError(stream.name, f"{place.name!r} has something at byte {offset} of {size}")
    starts = np.array(place.offsets, dtype=np.int64)
    if not compressed:
        found = np.array([ends[each] for each in place.offsets], dtype=np.int64)
        _check_apart(stream.name, place, starts[found > starts])
        return stream.data, starts, found
    if len(set(place.offsets)) == 1:
        offset = place.offsets[0]
        content = decompressed(stream.view, offset, ends[offset], stream.name, whole=False)
        return np.frombuffer(content, np.uint8), np.zeros(1, np.int64), np.full(1, len(content), np.int64)
    _check_apart(stream.name, place, starts)
    parts, left = [], MAX_STREAM_BYTES
    for offset in place.offsets:
        parts.append(decompressed(stream.view, offset, ends[offset], stream.name, whole=False, most=left))
        left -= len(parts[-1])
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    stops = np.cumsum(lengths)
    return np.frombuffer(b"".join(parts), np.uint8), stops - lengths, stops


def _check_apart(name: str, place: OperatorStatePlace, starts: Ints) -> None:
    """Refuse elements that are the same bytes: a short list of offsets would become any number of rows."""
    if len(np.unique(starts)) < len(starts):
        raise CorruptDataError(name, f"two elements of {place.name!r} begin at one byte; each has bytes of its own")
