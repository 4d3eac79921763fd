"""Statistics of a run are exact or absent."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from arrowstate_formats import InvalidInputError
from arrowstate_formats.documents import ColumnStatistics, decode, encode
from arrowstate_formats.statistics import column_statistics

MOMENT = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([3, None, 1]), (1, 1, 3)),
        (pa.array([2**64 - 1, 0], pa.uint64()), (0, 0, 2**64 - 1)),
        (pa.array([True, None, False]), (1, False, True)),
        (pa.array([1.5, -2.0, None]), (1, -2.0, 1.5)),
        (pa.array([1.5, float("nan")]), (0, None, None)),
        (pa.array([1.5, float("inf")]), (0, None, None)),
        (pa.array([1.5], pa.float16()), (0, None, None)),
        (pa.array(["b", "", "ä"]), (0, "", "ä")),
        (pa.array(["b", "x" * 64], pa.large_string()), (0, "b", "x" * 64)),
        (pa.array(["b", "x" * 65]), (0, None, None)),
        (pa.array([b"b"]), (0, None, None)),
        (pa.array([datetime.date(1970, 1, 2), None]), (1, 1, 1)),
        (pa.array([MOMENT], pa.timestamp("ms", "UTC")), (0, 1_577_836_800_000, 1_577_836_800_000)),
        (pa.array([5, -5], pa.duration("ns")), (0, -5, 5)),
        (pa.array([[1], None]), (1, None, None)),
        (pa.nulls(2), (2, None, None)),
        (pa.nulls(2, pa.int64()), (2, None, None)),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_statistics_of_a_column(column: pa.Array, expected: tuple[int, object, object]) -> None:
    # The rows are spread over two batches, one of them a slice.
    batches = [pa.record_batch({"c": column[:1]}), pa.record_batch({"c": column})[1:]]

    (found,) = column_statistics(batches)

    assert (found.column, found.null_count, found.min, found.max) == ("c", *expected)
    assert type(found.min) is type(expected[1])
    assert decode(encode(found), ColumnStatistics) == found


def test_every_key_and_value_column_has_statistics_in_its_place() -> None:
    found = column_statistics([pa.record_batch({"_key_hash": [7], "b": [1], "a": ["x"]})])

    assert [statistics.column for statistics in found] == ["b", "a"]


def test_statistics_of_nothing_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least one batch"):
        column_statistics([])
