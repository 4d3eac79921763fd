"""The key hash against the vectors that Spark made, and for the types and layouts that Spark does not have."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from arrowstate_formats import InvalidInputError, hash_columns, key_hash, type_from_json

VECTORS = json.loads((Path(__file__).parents[2] / "formats/vectors/key_hash.json").read_text())


def from_json(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """Read values in the notation of formats/vectors/README.md."""
    types = pa.types
    nulls = pa.array([value is None for value in values], pa.bool_()).to_numpy(zero_copy_only=False)
    if types.is_struct(arrow_type):
        rows = [value or {} for value in values]
        fields = [from_json([row.get(field.name) for row in rows], field.type) for field in arrow_type]
        return pa.StructArray.from_arrays(fields, fields=list(arrow_type), mask=pa.array(nulls))
    if types.is_list(arrow_type):
        items = from_json([item for value in values for item in value or []], arrow_type.value_type)
        offsets = np.cumsum([0] + [len(value or []) for value in values])
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=arrow_type, mask=pa.array(nulls))
    if types.is_floating(arrow_type):
        bits = [None if value is None else int(value, 16) for value in values]
        return pa.array(bits, pa.uint64() if arrow_type.bit_width == 64 else pa.uint32()).view(arrow_type)
    if types.is_decimal(arrow_type):
        return pa.array([None if value is None else Decimal(value) for value in values], arrow_type)
    if types.is_binary(arrow_type):
        return pa.array([None if value is None else bytes.fromhex(value) for value in values], arrow_type)
    if types.is_temporal(arrow_type):
        return pa.array(values, pa.int32() if arrow_type.bit_width == 32 else pa.int64()).view(arrow_type)
    return pa.array(values, arrow_type)


def columns_of(case: dict[str, Any]) -> list[pa.Array]:
    return [from_json(key["values"], type_from_json(key["type"])) for key in case["keys"]]


def longs(values: list[int | None]) -> list[int]:
    return hash_columns([pa.array(values, pa.int64())]).tolist()


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_hashes_are_those_of_spark(case: dict[str, Any]) -> None:
    columns = columns_of(case)

    hashes = hash_columns(columns)

    assert hashes.dtype == np.int64
    assert hashes.tolist() == case["hashes"]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_a_slice_hashes_like_the_rows_it_shows(case: dict[str, Any]) -> None:
    # 9 rows before the slice, so that neither bytes nor bits of validity begin at a border.
    columns = [pa.concat_arrays([*[column[:1]] * 9, column, column[:1]])[9:-1] for column in columns_of(case)]

    hashes = hash_columns(columns)

    assert hashes.tolist() == case["hashes"]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_an_empty_column_has_no_hashes(case: dict[str, Any]) -> None:
    columns = columns_of(case)

    empty = hash_columns([pa.array([], column.type) for column in columns])
    sliced = hash_columns([column[len(column) :] for column in columns])

    assert empty.tolist() == sliced.tolist() == []


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_record_batch_struct_and_chunked_array_hash_like_their_columns(case: dict[str, Any]) -> None:
    columns = columns_of(case)
    names = [key["name"] for key in case["keys"]]
    struct = pa.StructArray.from_arrays(columns, names)
    chunked = pa.chunked_array([struct[:1], struct[1:1], struct[1:]])

    hashes = [key_hash(keys) for keys in (pa.RecordBatch.from_arrays(columns, names), struct, chunked)]

    assert [found.to_pylist() for found in hashes] == [case["hashes"]] * 3
    assert {found.type for found in hashes} == {pa.int64()}


@pytest.mark.parametrize("length", [*range(70), 127, 128, 129, 1000])
def test_bytes_of_every_length_have_the_reference_hash(length: int) -> None:
    data = bytes((7 * position) % 256 for position in range(length))

    # One byte before the value puts it at an address that is no multiple of anything.
    found = hash_columns([pa.array([b"x", data], pa.binary())])[1]

    assert int(found) % 2**64 == xxhash.xxh64_intdigest(data, 42)


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)],
    ids=str,
)
def test_every_layout_of_bytes_hashes_alike(kind: pa.DataType) -> None:
    texts = ["abc", None, "äb", "xyz"]
    expected = hash_columns([pa.array(texts)]).tolist()
    data = [None if text is None else text.encode() for text in texts]
    array = pa.array(texts if "string" in str(kind) else data, kind)

    whole = hash_columns([array])
    sliced = hash_columns([array[1:]])

    assert whole.tolist() == expected
    assert sliced.tolist() == expected[1:]


def test_dictionaries_and_run_ends_hash_like_their_values() -> None:
    values = pa.array(["a", "b", "b", None, "a"])
    expected = hash_columns([values]).tolist()

    dictionary = hash_columns([values.dictionary_encode()[1:]])
    run_ends = hash_columns([pa.RunEndEncodedArray.from_arrays([1, 3, 4, 5], pa.array(["a", "b", None, "a"]))[1:]])

    assert dictionary.tolist() == run_ends.tolist() == expected[1:]


def test_extension_types_hash_like_their_storage() -> None:
    storage = pa.array([bytes(16), b"0123456789abcdef", None], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), storage)

    assert hash_columns([uuids]).tolist() == hash_columns([storage]).tolist()


def test_small_unsigned_integers_hash_as_int_and_large_ones_as_long() -> None:
    small = [hash_columns([pa.array([0, 200, None], kind)]).tolist() for kind in (pa.uint8(), pa.uint16())]
    large = [hash_columns([pa.array([0, 2**32 - 1, None], kind)]).tolist() for kind in (pa.uint32(), pa.uint64())]

    assert small == [hash_columns([pa.array([0, 200, None], pa.int32())]).tolist()] * 2
    assert large == [longs([0, 2**32 - 1, None])] * 2
    assert hash_columns([pa.array([2**64 - 1], pa.uint64())]).tolist() == longs([-1])


@pytest.mark.parametrize("kind", ["timestamp", "duration"])
def test_seconds_and_milliseconds_hash_as_microseconds_and_nanoseconds_as_they_are(kind: str) -> None:
    make = getattr(pa, kind)
    expected = longs([-3_000_000, 0, 5_000_000, None])

    found = [
        hash_columns([pa.array([-3 * scale, 0, 5 * scale, None], pa.int64()).cast(make(unit))]).tolist()
        for unit, scale in (("s", 1), ("ms", 1000), ("us", 1_000_000))
    ]
    nanoseconds = hash_columns([pa.array([-3_000_000], pa.int64()).cast(make("ns"))]).tolist()

    assert found == [expected] * 3
    assert nanoseconds == expected[:1]


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.duration("s")], ids=str)
def test_a_time_beyond_64_bits_of_microseconds_is_refused_unless_it_is_null(kind: pa.DataType) -> None:
    beyond = pa.array([2**62], pa.int64()).view(kind)
    data = beyond.buffers()[1]
    null = pa.Array.from_buffers(kind, 1, [pa.py_buffer(b"\0"), data])

    with pytest.raises(InvalidInputError, match="does not fit"):
        hash_columns([beyond])
    assert hash_columns([null]).tolist() == [42]


def test_times_of_day_hash_as_nanoseconds() -> None:
    expected = longs([0, 86_399_000_000_000, None])

    found = [
        hash_columns([pa.array([0, 86_399 * scale, None], kind_of_integer).cast(kind)]).tolist()
        for kind, kind_of_integer, scale in (
            (pa.time32("s"), pa.int32(), 1),
            (pa.time32("ms"), pa.int32(), 10**3),
            (pa.time64("us"), pa.int64(), 10**6),
            (pa.time64("ns"), pa.int64(), 10**9),
        )
    ]

    assert found == [expected] * 4


def test_dates_in_milliseconds_hash_as_days() -> None:
    days = pa.array([-719162, -1, 0, 19000, None], pa.int32())
    milliseconds = pa.array([-719162 * 86_400_000, -1, 0, 19000 * 86_400_000 + 5, None], pa.int64()).view(pa.date64())

    found = hash_columns([milliseconds])

    assert found.tolist() == hash_columns([days]).tolist()
    assert hash_columns([milliseconds[1:]]).tolist() == found.tolist()[1:]


def test_a_date_beyond_32_bits_of_days_is_refused_unless_it_is_null() -> None:
    beyond = pa.array([2**62], pa.int64()).view(pa.date64())
    null = pa.Array.from_buffers(pa.date64(), 1, [pa.py_buffer(b"\0"), beyond.buffers()[1]])

    with pytest.raises(InvalidInputError, match="32 bits of days"):
        hash_columns([beyond])
    assert hash_columns([null]).tolist() == [42]


def test_half_floats_hash_as_floats() -> None:
    values = [0.0, -0.0, 1.5, float("nan"), None]

    halves = hash_columns([pa.array(values, pa.float16())])

    assert halves.tolist() == hash_columns([pa.array(values, pa.float32())]).tolist()


@pytest.mark.parametrize("make", [pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256])
def test_decimals_hash_by_precision_whatever_their_width(make: Any) -> None:
    values = [Decimal("-1.28"), Decimal("0.00"), Decimal("99999.99"), None]

    found = hash_columns([pa.array([None, *values], make(7, 2))[1:]])

    assert found.tolist() == longs([-128, 0, 9_999_999, None])


def test_wide_decimals_hash_alike_in_128_and_256_bits() -> None:
    values = [Decimal(sign * (256**size // 2 + step)) for size in range(1, 16) for sign in (1, -1) for step in (-1, 0)]

    narrow = hash_columns([pa.array(values, pa.decimal128(38, 0))])
    wide = hash_columns([pa.array(values, pa.decimal256(60, 0))])

    assert narrow.tolist() == wide.tolist()
    for value, found in zip(values, narrow.tolist(), strict=True):
        number = int(value)
        data = number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)
        assert found % 2**64 == xxhash.xxh64_intdigest(data, 42)


@pytest.mark.parametrize(
    "make", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view], ids=lambda make: make.__name__
)
def test_every_layout_of_lists_hashes_alike(make: Any) -> None:
    rows = [[1, 2], [], None, [None, 3], [4, 5, 6]]

    found = hash_columns([pa.array(rows, make(pa.int64()))[1:]])

    assert found.tolist() == hash_columns([pa.array(rows, pa.list_(pa.int64()))]).tolist()[1:]


def test_the_elements_of_a_list_are_chained_like_columns() -> None:
    lists = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))

    found = hash_columns([lists])

    columns = [pa.array([1, None, 3], pa.int32()), pa.array([2, None, 4], pa.int32())]
    assert found.tolist() == hash_columns(columns).tolist()


def test_the_fields_of_one_element_come_before_the_next_element() -> None:
    kind = pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())]))
    lists = pa.array([[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], [{"a": 1, "b": "x"}], None], kind)

    found = hash_columns([lists])

    columns = [
        pa.array([1, 1, None], pa.int32()),
        pa.array(["x", "x", None]),
        pa.array([2, None, None], pa.int32()),
        pa.array(["y", None, None]),
    ]
    assert found.tolist() == hash_columns(columns).tolist()


def test_what_a_null_list_or_struct_hides_does_not_count() -> None:
    lists = pa.ListArray.from_arrays([0, 2, 3], pa.array([7, 8, 9]), mask=pa.array([True, False]))
    structs = pa.StructArray.from_arrays([pa.array([7, 9])], ["a"], mask=pa.array([True, False]))

    found = [hash_columns([lists]).tolist(), hash_columns([structs]).tolist()]

    assert found == [longs([None, 9])] * 2


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.map_(pa.string(), pa.int64())),
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.struct([("a", pa.sparse_union([pa.field("a", pa.int64())]))]),
        pa.month_day_nano_interval(),
    ],
    ids=str,
)
def test_types_without_a_hash_are_refused_by_name_even_without_rows(kind: pa.DataType) -> None:
    keys = pa.nulls(0, kind)

    with pytest.raises(InvalidInputError, match="maps, unions and intervals have no key hash") as refused:
        key_hash(keys)
    assert any(name in str(refused.value) for name in ("map<", "union<", "interval"))


@pytest.mark.parametrize(
    "keys", [[1, 2], np.array([1, 2]), pa.table({"k": [1]}), None], ids=lambda keys: str(type(keys))
)
def test_keys_that_are_no_arrow_data_are_refused(keys: Any) -> None:
    with pytest.raises(InvalidInputError, match="must be an Arrow array"):
        key_hash(keys)


def test_a_key_without_columns_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least one column"):
        hash_columns([])
    with pytest.raises(InvalidInputError, match="at least one column"):
        key_hash(pa.array([{}], pa.struct([])))


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="one length"):
        hash_columns([pa.array([1, 2]), pa.array([1])])


def test_a_chunked_array_without_chunks_has_no_hashes() -> None:
    assert key_hash(pa.chunked_array([], pa.string())).to_pylist() == []
