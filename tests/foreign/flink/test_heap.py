"""The heap's own format: values that Arrow does not have, and those that nobody knows, among those that can be read."""

import struct

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.heap import HeapRows, heap_value
from arrowstate.foreign.flink.heap_index import GroupParser, Segment, entry_serializer
from arrowstate.foreign.flink.key_hash import key_groups_of
from arrowstate.foreign.flink.layout import StateLayout
from arrowstate.foreign.flink.serializers.base import Opaque, Serializer
from arrowstate.foreign.flink.serializers.scalars import Nothing, Number, Text, Time

LONG = Number(pa.int64(), hashed=True)


def layout(value: Serializer, name: str = "state") -> StateLayout:
    return StateLayout(name, "value", LONG, Nothing(), None, value)


def entry(key: int, value: bytes) -> bytes:
    return b"\0" + struct.pack(">q", key) + value


def group(*states: list[bytes]) -> bytes:
    return b"".join(struct.pack(">hi", number, len(each)) + b"".join(each) for number, each in enumerate(states))


def rows(data: bytes, keyed: int, *layouts: StateLayout) -> list[list[dict[str, object]]]:
    """Parse one key group and read all of its states."""
    known = dict(enumerate(layouts))
    entries = {number: entry_serializer(each, heap_value(each)) for number, each in known.items()}
    array = np.frombuffer(data, np.uint8)
    segments = GroupParser(entries, known, 128).parse(array, "file", 0, len(data), keyed)
    found = []
    for number, each in known.items():
        made = HeapRows(each, heap_value(each))
        batches = [batch for segment in _of(segments, number) for batch in made.add(array, "file", keyed, segment)]
        table = pa.Table.from_batches([*batches, *made.taken()], each.schema)
        found.append(table.drop_columns("_key_group").to_pylist())
    return found


def _of(segments: list[Segment], state: int) -> list[Segment]:
    return [segment for segment in segments if segment.state == state]


def keys_of_group(keyed: int, count: int) -> list[int]:
    keys = pa.array(range(100_000), pa.int64())
    return np.flatnonzero(key_groups_of(keys, 128) == keyed)[:count].tolist()


@pytest.mark.parametrize(("kind", "good"), [("instant", struct.pack(">qi", 1, 5)), ("datetime", None)])
def test_a_time_that_arrow_does_not_have_is_bytes_and_its_neighbours_are_read(kind: str, good: bytes | None) -> None:
    good = good or struct.pack(">ibbbbbi", 2000, 1, 1, 0, 0, 0, 0)
    bad = struct.pack(">qi", 2**61, 0) if kind == "instant" else struct.pack(">ibbbbbi", 9999, 12, 31, 0, 0, 0, 0)
    data = group([entry(1, good), entry(2, bad), entry(3, good)])

    (found,) = rows(data, 0, layout(Time(kind)))

    by_key = {row["key"]: row for row in found}
    assert (by_key[2]["value"], by_key[2]["_raw"]) == (None, bad)
    assert by_key[1]["value"] == by_key[3]["value"] is not None


def test_values_that_nobody_knows_are_told_apart_by_the_keys_around_them() -> None:
    one, two = keys_of_group(7, 2)
    data = group([entry(one, b"\x99something"), entry(two, b"\x98else")], [entry(one, b"\2a"), entry(two, b"\2b")])

    opaque, texts = rows(data, 7, layout(Opaque("com.acme.Thing", ""), "hidden"), layout(Text()))

    assert opaque == [{"key": one, "value": b"\x99something"}, {"key": two, "value": b"\x98else"}]
    assert texts == [{"key": one, "value": "a"}, {"key": two, "value": "b"}]


def test_entries_that_cannot_be_told_apart_are_one_run_of_bytes() -> None:
    one, two = keys_of_group(7, 2)
    first, second = entry(one, b"\x99" + entry(two, b"\x98")), entry(two, b"\x97")
    data = group([first, second], [entry(one, b"\2a")])

    opaque, texts = rows(data, 7, layout(Opaque("com.acme.Thing", ""), "hidden"), layout(Text()))

    assert opaque == [{"key": None, "value": first + second}]
    assert texts == [{"key": one, "value": "a"}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack(">hi", 0, 2**31 - 1), "at byte 2: a number of 2147483647 entries"),
        (struct.pack(">hi", 9, 0), "at byte 0: a state of id 9"),
        (group([entry(1, b"\2a")]) + b"x", "at byte 17: 1 bytes after the last state"),
        (group([entry(1, b"\2a")])[:-1], "the value is longer than what is left"),
        (group([entry(1, b"\2\xbd\xb0\x03")]), "half of a character"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        rows(data, 0, layout(Text()))
