"""Statistics of a run are exact or absent."""

import datetime
import io

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from arrowstate_formats import InvalidInputError
from arrowstate_formats.documents import ColumnStatistics, decode, encode
from arrowstate_formats.run_writing import write_run
from arrowstate_formats.statistics import bound_of, column_statistics, paths_with_nan

MOMENT = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([3, None, 1]), (1, "1", "3")),
        (pa.array([2**64 - 1, 0], pa.uint64()), (0, "0", str(2**64 - 1))),
        (pa.array([True, None, False]), (1, False, True)),
        (pa.array([1.5, -2.0, None]), (1, -2.0, 1.5)),
        (pa.array([1.5, float("nan")]), (0, None, None)),
        (pa.array([1.5, float("inf")]), (0, None, None)),
        (pa.array(np.array([1.5], np.float16)), (0, None, None)),
        (pa.array(["b", "", "ä"]), (0, "", "ä")),
        (pa.array(["b", "x" * 64], pa.large_string()), (0, "b", "x" * 64)),
        (pa.array(["b", "x" * 65]), (0, None, None)),
        (pa.array([b"b"]), (0, None, None)),
        (pa.array([datetime.date(1970, 1, 2), None]), (1, "1", "1")),
        (pa.array([MOMENT], pa.timestamp("ms", "UTC")), (0, "1577836800000", "1577836800000")),
        (pa.array([5, -5], pa.duration("ns")), (0, "-5", "5")),
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
    if found.min is not None and pa.types.is_integer(column.type):
        assert bound_of(found.min, column.type) == pc.min(column).as_py()


def test_every_key_and_value_column_has_statistics_in_its_place() -> None:
    found = column_statistics([pa.record_batch({"_key_hash": [7], "b": [1], "a": ["x"]})])

    assert [statistics.column for statistics in found] == ["b", "a"]


def test_statistics_of_nothing_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least one batch"):
        column_statistics([])


NAN = float("nan")


@pytest.mark.parametrize(
    ("column", "paths"),
    [
        (pa.array([1.0, NAN]), {"x"}),
        (pa.array(np.array([1.0, NAN], np.float16)), {"x"}),
        (pa.array([[1.0], [NAN]]), {"x.list.element"}),
        (pa.array([[1.0, NAN]], pa.list_(pa.float32(), 2)), {"x.list.element"}),
        (pa.array([{"a": 1.0, "b": {"c": NAN}}]), {"x.b.c"}),
        (pa.array([[("k", NAN)]], pa.map_(pa.string(), pa.float64())), {"x.key_value.value"}),
        (pa.array([1.0, None, float("inf")]), set()),
        # Below a null there is no value.
        (pa.StructArray.from_arrays([pa.array([NAN, 1.0])], ["a"], mask=pa.array([True, False])), set()),
        (pa.array([[1.0], [NAN]]).slice(0, 1), set()),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_column_tells_whether_it_holds_a_nan_at_any_depth(column: pa.Array, paths: set[str]) -> None:
    batch = pa.record_batch({"x": column})

    assert paths_with_nan([batch]) == paths
    assert column_statistics([batch])[0].has_nan is bool(paths)


def test_a_column_without_floats_has_no_say_about_nan() -> None:
    batch = pa.record_batch({"x": [1], "y": pa.array([["a"]])})

    assert [item.has_nan for item in column_statistics([batch])] == [None, None]


def test_parquet_has_no_bounds_of_what_holds_a_nan_and_bounds_of_all_else() -> None:
    pairs = pa.array([{"a": 1.0, "b": NAN}, {"a": 2.0, "b": 1.0}])
    batches = [
        pa.record_batch({"_key_hash": pa.array([row]), "s": pairs.slice(row, 1), "f": pa.array([row + 0.5])})
        for row in range(2)
    ]
    sink = io.BytesIO()

    write_run(batches, "parquet", sink)

    metadata = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata
    for group in range(2):
        columns = [metadata.row_group(group).column(number) for number in range(4)]
        # In the row group without a NaN too: it is a column of the file that has bounds or not.
        assert {column.path_in_schema: column.is_stats_set for column in columns} == {
            "_key_hash": True,
            "s.a": True,
            "s.b": False,
            "f": True,
        }
