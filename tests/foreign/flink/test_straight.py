"""Values that are nothing but numbers are read part by part, with what the machine would have read or refused."""

import dataclasses
import random

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.serializers.base import Serializer, compiled
from arrowstate.foreign.flink.serializers.composites import StructOf, TtlOf
from arrowstate.foreign.flink.serializers.program import Code, Tape
from arrowstate.foreign.flink.serializers.scalars import FlippedLong, Nothing, Number, Text
from long_form import short_or_long

KINDS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_())


def _serializer(random_: random.Random) -> Serializer:
    parts = [
        random_.choice([*(Number(kind) for kind in KINDS), Nothing(), Nothing(0), FlippedLong()])
        for _ in range(random_.randrange(1, 5))
    ]
    whole = StructOf(tuple(f"f{place}" for place in range(len(parts))), tuple(parts))
    return TtlOf(whole) if random_.random() < 0.3 else whole


def _outcome(code: Code, data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> object:
    """What is on the tape and where values end, or the error."""
    tape = Tape(code, data, "file", 4)
    try:
        stops, unknown = tape.values(starts, ends)
        chained = tape.chain(int(starts[0]), int(ends[-1]), len(starts)) if len(starts) else np.empty(0)
    except CorruptDataError as error:
        return str(error)
    slots = tape.slots
    return stops.tolist(), unknown.tolist(), chained.tolist(), [slots[n].tolist() for n in range(len(code.levels))]


@pytest.mark.parametrize("seed", range(short_or_long(60, 3000)))
def test_both_ways_read_and_refuse_the_same(seed: int) -> None:
    random_ = random.Random(seed)
    serializer = _serializer(random_)
    code, _ = compiled(serializer)
    rows = random_.randrange(20)
    # Mostly zeros and ones, so that booleans and what is no namespace are mostly right.
    size = rows * max(serializer.length, 1) + 8
    data = np.frombuffer(
        bytes(random_.choice([0, 0, 0, 1, 1, 255]) if random_.random() < 0.05 else 0 for _ in range(size)), np.uint8
    )
    starts = np.arange(rows, dtype=np.int64) * serializer.length
    ends = starts + serializer.length + random_.choice([0, 0, 1, -1])

    assert code.straight is not None
    assert _outcome(code, data, starts, ends) == _outcome(dataclasses.replace(code, straight=None), data, starts, ends)


def test_numbers_of_every_width_keep_their_sign() -> None:
    serializer = StructOf(("a", "b", "c", "d"), tuple(Number(kind) for kind in KINDS[:4]))
    values = [(-1, -2, -3, -4), (127, 32767, 2**31 - 1, 2**63 - 1), (-128, -32768, -(2**31), -(2**63))]
    data = b"".join(n.to_bytes(w, "big", signed=True) for row in values for n, w in zip(row, (1, 2, 4, 8), strict=True))
    starts = np.arange(3, dtype=np.int64) * 15

    array, stops = serializer.decode(np.frombuffer(data, np.uint8), starts, starts + 15)

    assert [tuple(row.values()) for row in array.to_pylist()] == values
    assert stops.tolist() == [15, 30, 45]


def test_what_has_any_length_is_left_to_the_machine() -> None:
    assert compiled(StructOf(("a", "b"), (Number(pa.int64()), Text())))[0].straight is None
