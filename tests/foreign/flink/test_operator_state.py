"""State without keys: the splits of sources, elements that are compressed together, and what is damaged."""

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.handles import OperatorStatePlace
from arrowstate.foreign.flink.keyed_header import StateInfo
from arrowstate.foreign.flink.operator_state import operator_batch, operator_schema
from arrowstate.foreign.flink.places import Stream
from arrowstate.foreign.flink.serializers.base import CountedBytes, Opaque, Serializer
from arrowstate.foreign.flink.serializers.scalars import Number, Text
from arrowstate.foreign.flink.source_positions import SPLIT


def read(
    elements: Sequence[bytes], serializer: Serializer, name: str = "state", **serializers: Serializer
) -> pa.RecordBatch:
    """Read elements that lie one after the other behind a byte."""
    data = b"\0" + b"".join(elements)
    offsets = np.cumsum([1, *(len(each) for each in elements)])[:-1].tolist()
    kind = "broadcast" if serializers else "operator"
    info = StateInfo(name, kind, {}, {"VALUE_SERIALIZER": serializer, **serializers})
    place = OperatorStatePlace(name, "split", tuple(offsets))
    batch = operator_batch(Stream(np.frombuffer(data, np.uint8), "file"), place, offsets, False, info, 3)
    assert batch.schema.equals(operator_schema(info))
    return batch


def _split(data: bytes, version: int = 0) -> bytes:
    inner = struct.pack(">ii", version, len(data)) + data
    return struct.pack(">i", len(inner)) + inner


def _of_kafka(topic: str, partition: int, start: int, stop: int) -> bytes:
    return struct.pack(">H", len(topic)) + topic.encode() + struct.pack(">iqq", partition, start, stop)


def test_splits_of_kafka_are_topics_partitions_and_offsets() -> None:
    elements = [_split(_of_kafka("clicks", 2, 4711, -(2**63))), _split(_of_kafka("a.b-c_d", 0, -2, 900))]

    batch = read(elements, CountedBytes(), "SourceReaderState")

    first, second = batch["value"].to_pylist()
    assert (first["topic"], first["partition"], first["starting_offset"]) == ("clicks", 2, 4711)
    assert first["stopping_offset"] is None
    assert (second["topic"], second["starting_offset"], second["stopping_offset"]) == ("a.b-c_d", -2, 900)
    assert batch["_subtask"].to_pylist() == [3, 3]


@pytest.mark.parametrize("data", [b"", b"something else", _of_kafka("no topic!", 0, 0, 0), _of_kafka("t", -1, 0, 0)])
def test_splits_of_other_connectors_are_their_bytes(data: bytes) -> None:
    (found,) = read([_split(data, version=7)], CountedBytes(), "SourceReaderState")["value"].to_pylist()

    assert found == dict.fromkeys(SPLIT.names) | {"version": 7, "split": data}


def test_elements_that_only_a_class_can_read_are_bytes() -> None:
    batch = read([b"abc", b""], Opaque("com.acme.Thing", "unknown"))

    assert batch["value"].to_pylist() == [b"abc", b""]
    assert batch.schema.field("value").metadata == {b"flink.class": b"com.acme.Thing"}


def test_a_broadcast_map_has_a_row_per_entry() -> None:
    entries = struct.pack(">i", 2) + b"\2a" + struct.pack(">i", 1) + b"\2b" + struct.pack(">i", 2)

    batch = read([entries], Number(pa.int32()), KEY_SERIALIZER=Text())

    assert batch.drop_columns("_subtask").to_pylist() == [{"key": "a", "value": 1}, {"key": "b", "value": 2}]


def test_an_element_with_bytes_after_it_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="at byte 5: 'state' ends too early"):
        read([struct.pack(">i", 1) + b"x"], Number(pa.int32()))
