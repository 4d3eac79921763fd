"""Types nested at random, with nulls at every level and anything below them, come back from every format.

Many columns share a file, so that a case costs about a millisecond. Where a file fails, its columns are tried one by
one and the first that fails alone is named.
"""

import io
import os
import random
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrowstate_formats import InvalidInputError
from arrowstate_formats.run_files import RunFormat
from arrowstate_formats.run_reading import read_run
from arrowstate_formats.run_writing import write_run

Bools = npt.NDArray[np.bool_]

FORMATS = pytest.mark.parametrize("run_format", ["arrow", "parquet", "lance"])
FILES = 20 * max(1, int(os.environ.get("ARROWSTATE_LONG_TESTS", "1")))
COLUMNS = 50

FLAT = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)),
    *(pa.decimal32(5, 2), pa.decimal64(12, 3), pa.decimal128(30, 4), pa.decimal256(50, 2)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ns", "UTC")),
    *(pa.duration("s"), pa.duration("ns")),
]
TOO_FAR = {pa.date64(): 86_400_000 * (1 << 32) + 1, pa.timestamp("s"): 10**17}
"""What Parquet cannot hold. It may stand below a null, where it is no value."""


def random_type(chosen: random.Random, depth: int) -> pa.DataType:
    shape = chosen.choice(["flat", "struct", "list", "large_list", "fixed_size_list", "map"]) if depth else "flat"
    if shape == "flat":
        return chosen.choice(FLAT)
    if shape == "struct":
        return pa.struct([random_field(chosen, name, depth) for name in chosen.sample("abcd", chosen.randint(1, 3))])
    if shape == "map":
        key = chosen.choice([pa.string(), pa.int64(), pa.binary(3), pa.struct([pa.field("u", pa.int8(), False)])])
        item = random_type(chosen, depth - 1)
        return pa.map_(key, item, keys_sorted=chosen.random() < 0.3)
    item = random_field(chosen, chosen.choice(["item", "x"]), depth)
    if shape == "fixed_size_list":
        return pa.list_(item, chosen.randint(1, 3))
    return pa.list_(item) if shape == "list" else pa.large_list(item)


def random_field(chosen: random.Random, name: str, depth: int) -> pa.Field:
    kind = random_type(chosen, depth - 1)
    return pa.field(name, kind, nullable=pa.types.is_null(kind) or chosen.random() < 0.6)


def random_array(chosen: random.Random, kind: pa.DataType, below_null: Bools, nullable: bool) -> pa.Array:
    """An array built from its parts, so that more than nulls stands below nulls; `below_null` says for each row."""
    missing = np.array([nullable and chosen.random() < 0.35 for _ in below_null], dtype=np.bool_)
    mask = pa.array(missing) if missing.any() else None
    hidden = below_null | missing
    types = pa.types
    if types.is_null(kind):
        return pa.nulls(hidden.size)
    if types.is_struct(kind):
        # A field without nulls may have some where all structs are null.
        loose = bool(hidden.all()) and chosen.random() < 0.5
        parts = [random_array(chosen, field.type, hidden, field.nullable or loose) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if types.is_fixed_size_list(kind):
        values = random_array(chosen, kind.value_type, hidden.repeat(kind.list_size), kind.value_field.nullable)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)
    if types.is_nested(kind):
        sizes = np.array([chosen.randint(0, 2) for _ in hidden], dtype=np.int64)
        offsets = pa.array(np.append(0, sizes.cumsum()), pa.int64() if types.is_large_list(kind) else pa.int32())
        elements = hidden.repeat(sizes)
        if types.is_map(kind):
            keys = random_array(chosen, kind.key_type, elements, False)
            items = random_array(chosen, kind.item_type, elements, True)
            return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
        values = random_array(chosen, kind.value_type, elements, kind.value_field.nullable)
        bits = None if mask is None else pa.array(~missing).buffers()[1]
        return pa.Array.from_buffers(kind, hidden.size, [bits, offsets.buffers()[1]], children=[values])
    values = flat_values(chosen, kind, hidden.size)
    if kind in TOO_FAR:
        far = pa.scalar(TOO_FAR[kind], pa.int64())
        values = pc.if_else(pa.array(hidden), far, values.view(pa.int64())).view(kind)
    if mask is None:
        return values
    return pa.Array.from_buffers(kind, hidden.size, [pa.array(~missing).buffers()[1], *values.buffers()[1:]])


def flat_values(chosen: random.Random, kind: pa.DataType, rows: int) -> pa.Array:
    types = pa.types
    numbers = [chosen.randint(0, 100) for _ in range(rows)]
    if types.is_boolean(kind):
        return pa.array([number % 2 == 1 for number in numbers], kind)
    if types.is_floating(kind):
        return pa.array([[0.0, -0.0, 1.5, float("nan"), float("inf")][number % 5] for number in numbers], kind)
    if types.is_date64(kind):
        return pa.array([86_400_000 * number for number in numbers], pa.int64()).view(kind)
    if types.is_decimal(kind):
        return pa.array([Decimal(number).scaleb(-kind.scale) for number in numbers], kind)
    if types.is_integer(kind):
        return pa.array(numbers, kind)
    if types.is_temporal(kind):
        return pa.array(numbers, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    if types.is_fixed_size_binary(kind):
        return pa.array([bytes([number] * kind.byte_width) for number in numbers], kind)
    texts = ["aé" * (number % 9) for number in numbers]
    return pa.array(texts if "string" in str(kind) else [text.encode() for text in texts], kind)


def random_batch(seed: int) -> pa.RecordBatch:
    chosen = random.Random(seed)
    rows = chosen.randint(1, 7)
    fields, columns = [pa.field("_key_hash", pa.int64(), nullable=False)], [pa.array(range(rows))]
    for number in range(COLUMNS):
        kind = random_type(chosen, chosen.choice([1, 2, 3]))
        nullable = pa.types.is_null(kind) or chosen.random() < 0.6
        fields.append(pa.field(f"c{number}", kind, nullable))
        columns.append(random_array(chosen, kind, np.zeros(rows, dtype=np.bool_), nullable))
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    start = chosen.randrange(rows) if chosen.random() < 0.5 else 0
    return batch.slice(start, chosen.randint(1, rows - start))


def check(batch: pa.RecordBatch, run_format: RunFormat) -> None:
    sink = io.BytesIO()
    run = write_run([batch], run_format, sink)
    (found,) = read_run(pa.py_buffer(sink.getvalue()), run_format, run.batches)
    # The others keep what stands below a null, which a full look would refuse.
    found.validate(full=run_format == "parquet")
    assert str(found.schema) == str(batch.schema)
    for name, have, own in zip(batch.schema.names, found.columns, batch.columns, strict=True):
        # As text: a NaN is not equal to itself, and 0.0 is to -0.0.
        assert repr(have.to_pylist()) == repr(own.to_pylist()), name


def first_failing_column(batch: pa.RecordBatch, run_format: RunFormat) -> str:
    for number in range(1, batch.num_columns):
        try:
            check(batch.select([0, number]), run_format)
        except Exception as error:  # noqa: BLE001
            column = batch.column(number)
            return f"{batch.schema.field(number)}: {column.to_pylist()} -> {type(error).__name__}: {error}"
    return "each column alone is read back"


@FORMATS
def test_values_of_any_nested_type_come_back_whatever_stands_below_a_null(run_format: RunFormat) -> None:
    for seed in range(FILES):
        batch = random_batch(seed)
        try:
            check(batch, run_format)
        except Exception as error:  # noqa: BLE001
            pytest.fail(f"seed {seed} as {run_format}: {first_failing_column(batch, run_format)} ({error})")


@pytest.mark.parametrize("kind", TOO_FAR, ids=str)
@pytest.mark.parametrize("nest", [lambda array: array, lambda array: pa.StructArray.from_arrays([array], ["x"])])
def test_a_value_that_parquet_cannot_hold_is_refused_before_anything_is_written(kind: pa.DataType, nest: Any) -> None:
    values = nest(pa.array([0, TOO_FAR[kind]], pa.int64()).view(kind))
    sink = io.BytesIO()

    with pytest.raises(
        InvalidInputError, match="column 'x'.* holds a value that Parquet cannot.*use the format 'arrow'"
    ):
        write_run([pa.record_batch({"_key_hash": pa.array([1, 2]), "x": values})], "parquet", sink)

    assert sink.getvalue() == b""


@pytest.mark.parametrize(
    "column",
    [
        pa.nulls(2, pa.binary(0)),
        pa.nulls(2, pa.decimal128(5, -2)),
        pa.nulls(2, pa.struct([("a", pa.list_(pa.decimal32(3, 5)))])),
    ],
    ids=lambda column: str(column.type),
)
def test_a_type_that_parquet_does_not_have_is_refused_before_anything_is_written(column: pa.Array) -> None:
    sink = io.BytesIO()

    with pytest.raises(InvalidInputError, match="Parquet cannot store the columns.*use 'arrow'"):
        write_run([pa.record_batch({"_key_hash": pa.array([1, 2]), "x": column})], "parquet", sink)

    assert sink.getvalue() == b""


@pytest.mark.parametrize("run_format", ["parquet", "lance"])
def test_a_null_in_a_field_without_nulls_is_refused_before_anything_is_written(run_format: RunFormat) -> None:
    item = pa.struct([pa.field("a", pa.int8(), nullable=False)])
    columns = [pa.StructArray.from_arrays([pa.array([1, None], pa.int8())], fields=list(item)), pa.array([1, None])]

    for column, nullable in zip(columns, [True, False], strict=True):
        schema = pa.schema([("_key_hash", pa.int64()), pa.field("x", column.type, nullable)])
        sink = io.BytesIO()
        with pytest.raises(InvalidInputError, match="without nulls|Lance cannot store"):
            write_run([pa.record_batch([pa.array([1, 2]), column], schema=schema)], run_format, sink)
        assert sink.getvalue() == b""
