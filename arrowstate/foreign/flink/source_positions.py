"""Where sources stood: the splits in the state `SourceReaderState` of a source operator.

A split is a version, a length, and bytes of the connector. Those of Kafka are a topic, a partition and where reading
starts and stops; bytes of other connectors stay as they are. Made row by row: a source has few splits.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.byte_reader import ByteReader

SPLITS = "SourceReaderState"
"""The name of the state."""

SPLIT = pa.struct(
    [
        pa.field("version", pa.int32()),
        pa.field("split", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("starting_offset", pa.int64()),
        pa.field("stopping_offset", pa.int64()),
    ]
)
"""What a split is: the topic and what follows it are null if it is none of Kafka's."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OF_KAFKA = struct.Struct(">iqq")
_NEVER_STOPS = -(1 << 63)


def split_column(values: pa.Array, name: str) -> pa.Array:
    """Return splits of their bytes."""
    return pa.array([None if value is None else _split(value, name) for value in values.to_pylist()], SPLIT)


def _split(value: bytes, name: str) -> dict[str, Any]:
    reader = ByteReader(value, name)
    version = reader.integer()
    data = reader.counted_bytes()
    if reader.left:
        raise reader.wrong(f"{reader.left} bytes after a split")
    return {"version": version, "split": data, **_of_kafka(data)}


def _of_kafka(data: bytes) -> dict[str, Any]:
    """Topic, partition and offsets; nothing if the bytes are no split of Kafka."""
    reader = ByteReader(data, "")
    try:
        topic = reader.utf()
        partition, start, stop = _OF_KAFKA.unpack(reader.take(_OF_KAFKA.size))
    except CorruptDataError:
        return {}
    if reader.left or partition < 0 or not _TOPIC.fullmatch(topic):
        return {}
    return {
        "topic": topic,
        "partition": partition,
        "starting_offset": start,
        "stopping_offset": None if stop == _NEVER_STOPS else stop,
    }
