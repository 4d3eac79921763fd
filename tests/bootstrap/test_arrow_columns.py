"""Columns of Arrow as a fill takes them: encodings that are a matter of layout are gone, and which types fit."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrowstate.bootstrap.arrow_columns import ArrowColumns, plain_batch
from arrowstate.schema.encodings import plain_type

WORDS = pa.array(["a", None, "b", "a"])
VIEWS = WORDS.cast(pa.string_view())
CODED = pa.DictionaryArray.from_arrays(WORDS.dictionary_encode().indices, pa.array(["a", "b"], pa.string_view()))
OFFSETS = pa.array([0, 1, 1, 4], pa.int32())


def layouts():
    """Arrays in some layout, and what they are."""
    lists = [["a"], None, [None, "b", "a"]]
    yield VIEWS, WORDS
    yield CODED, WORDS
    yield pc.run_end_encode(pa.array(["a", "a", None, "b"])), pa.array(["a", "a", None, "b"])
    yield WORDS.cast(pa.binary()).cast(pa.binary_view()), WORDS.cast(pa.binary())
    for values in (VIEWS, CODED):
        mask = pa.array([False, True, False])
        yield pa.ListArray.from_arrays(OFFSETS, values, mask=mask), pa.array(lists, pa.list_(pa.string()))
        large = pa.LargeListArray.from_arrays(OFFSETS.cast(pa.int64()), values, mask=mask)
        yield large, pa.array(lists, pa.large_list(pa.string()))
        struct = pa.StructArray.from_arrays([values, range(4)], ["w", "n"], mask=pa.array([False, False, True, False]))
        plain = [{"w": "a", "n": 0}, {"w": None, "n": 1}, None, {"w": "a", "n": 3}]
        yield struct, pa.array(plain, pa.struct([("w", pa.string()), ("n", pa.int64())]))
        entries = pa.MapArray.from_arrays([0, 2, 2, 4], range(4), values)
        yield entries, pa.array([[(0, "a"), (1, None)], [], [(2, "b"), (3, "a")]], pa.map_(pa.int64(), pa.string()))
    yield pa.array([[1, 2], None, []], pa.list_view(pa.int64())), pa.array([[1, 2], None, []], pa.list_(pa.int64()))
    uuids = pa.array([b"0123456789abcdef"], pa.binary(16))
    yield pa.ExtensionArray.from_storage(pa.uuid(), uuids), uuids


@pytest.mark.parametrize(("given", "plain"), list(layouts()), ids=lambda array: str(array.type))
def test_layouts_are_made_plain_whole_and_in_slices(given, plain):
    for first, last in ((0, len(plain)), (1, len(plain)), (0, 2)):
        batch = plain_batch(pa.record_batch({"x": given.slice(first, last - first)}))

        batch.validate(full=True)
        assert batch["x"].type == plain_type(given.type) == plain.type
        assert batch["x"].to_pylist() == plain.slice(first, last - first).to_pylist()


@pytest.mark.parametrize(
    ("given", "fitting", "others"),
    [
        (pa.int16(), [pa.int16(), pa.int32(), pa.float32(), pa.float64()], [pa.int8(), pa.uint16(), pa.uint64()]),
        (pa.int32(), [pa.int64(), pa.float64()], [pa.float32(), pa.decimal128(12)]),
        (pa.int64(), [pa.int64()], [pa.float64(), pa.int32(), pa.string(), pa.timestamp("ms")]),
        (pa.uint8(), [pa.int16(), pa.uint32(), pa.float32()], [pa.int8()]),
        (pa.float32(), [pa.float64()], [pa.float16(), pa.int64()]),
        (pa.decimal128(5, 2), [pa.decimal128(7, 2), pa.decimal128(9, 3)], [pa.decimal128(5, 3), pa.int64()]),
        (pa.string(), [pa.large_string()], [pa.binary(), pa.int64()]),
        (pa.binary(4), [pa.binary(), pa.binary(4)], [pa.binary(5), pa.string()]),
        (pa.timestamp("ns", "UTC"), [pa.timestamp("ms", "Asia/Tokyo")], [pa.timestamp("ns"), pa.int64()]),
        (pa.date32(), [pa.date64()], [pa.timestamp("us")]),
        (pa.null(), [pa.int64(), pa.list_(pa.string())], []),
        (pa.list_(pa.int8()), [pa.large_list(pa.int64()), pa.list_(pa.int8(), 2)], [pa.list_(pa.string()), pa.int8()]),
        (pa.map_(pa.string(), pa.int8()), [pa.map_(pa.string(), pa.int64())], [pa.map_(pa.int8(), pa.int8())]),
        (
            pa.struct([("a", pa.int8()), ("b", pa.string())]),
            [pa.struct([("b", pa.string()), ("a", pa.int64())])],
            [pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8()), ("c", pa.string())]), pa.string()],
        ),
    ],
    ids=str,
)
def test_a_type_fits_one_that_has_each_of_its_values(given, fitting, others):
    columns = ArrowColumns(pa.schema([("x", given)]))

    assert [kind for kind in fitting if not columns.fits("x", kind)] == []
    assert [kind for kind in others if columns.fits("x", kind)] == []
