"""What a state's columns are in SQL, where DuckDB has no such type or no such name.

DuckDB reads most Arrow types as they are. Of the others each value is kept exactly: a float16 is a FLOAT, a
decimal256 of up to 38 digits a DECIMAL and a wider one its digits as VARCHAR, a duration in nanoseconds their number
(BIGINT; an INTERVAL ends at microseconds), a time in nanoseconds as the key of a map is VARCHAR. DuckDB before 2.0 has
no nanoseconds in a zone, where such a time is a TIMESTAMP_NS in UTC, and DuckDB 1.4 no time of a day in nanoseconds,
which is VARCHAR there. Fields of a nested
struct that differ in case only get a number, since DuckDB would read the first for all of them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.schema.conversion import list_of, with_elements, with_entries

Converter = Callable[[pa.Array], pa.Array]
Leaf = Callable[[pa.DataType, bool], tuple[pa.DataType, Converter] | None]

_MOST_DIGITS = 38
"""What a DECIMAL of DuckDB holds."""


class SqlForm:
    """Turns batches of a state into what DuckDB is shown."""

    def __init__(self, schema: pa.Schema) -> None:
        self._converters: dict[str, Converter] = {}
        fields = []
        for field in schema:
            kind, converter = recast(field.type, _in_sql)
            if converter is not None:
                self._converters[field.name] = converter
            fields.append(field.with_type(kind))
        self.schema = pa.schema(fields)

    @classmethod
    def none(cls, schema: pa.Schema) -> SqlForm:
        """Return what leaves everything as it is stored."""
        form = cls(pa.schema([]))
        form.schema = schema
        return form

    def is_stored(self, column: str) -> bool:
        """Whether the column's values are shown as they are stored."""
        return column not in self._converters

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch that has some of the columns in their form for SQL."""
        names = batch.schema.names
        if self._converters.keys().isdisjoint(names):
            return batch
        columns = [
            self._converters[name](column) if name in self._converters else column
            for name, column in zip(names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([self.schema.field(name) for name in names]))


def shown_table(table: pa.Table) -> pa.Table:
    """Return a table in its form for SQL."""
    form = SqlForm(table.schema)
    return pa.Table.from_batches(map(form, table.to_batches()), form.schema)


def distinct_names(names: Sequence[str], taken: Iterable[str] = ()) -> list[str]:
    """Return for each name one that differs from all others, and from those taken, in more than case.

    Names that nothing else is like stay as they are. Each of the others gets a number, the first of them too: its own
    name would answer for theirs.
    """
    numbers = Counter(name.lower() for name in taken)
    count = Counter(name.lower() for name in names)
    used = {*numbers, *count}
    out = []
    for name in names:
        folded = unique = name.lower()
        if count[folded] > 1 or folded in numbers:
            while unique in used:
                numbers[folded] += 1
                unique = f"{folded}~{numbers[folded]}"
            used.add(unique)
            name = f"{name}{unique[len(folded) :]}"
        out.append(name)
    return out


def recast(kind: pa.DataType, leaf: Leaf, *, is_map_key: bool = False) -> tuple[pa.DataType, Converter | None]:
    """Return a type whose parts are what `leaf` makes of them, at any depth, and what turns values into it."""
    if pa.types.is_struct(kind):
        return _recast_struct(kind, leaf)
    if pa.types.is_map(kind):
        return _recast_map(kind, leaf)
    if pa.types.is_union(kind):
        # No state has one: a query may make one, whose values are those of its parts.
        return kind, None
    if pa.types.is_nested(kind):
        element, convert = recast(kind.value_type, leaf)
        if convert is None:
            return kind, None
        shown = list_of(kind, kind.value_field.with_type(element))
        return shown, lambda array: with_elements(array, shown, convert)
    return leaf(kind, is_map_key) or (kind, None)


def _in_sql(kind: pa.DataType, is_map_key: bool) -> tuple[pa.DataType, Converter] | None:
    """Return the type in SQL where it is another."""
    types = pa.types
    if types.is_float16(kind):
        return pa.float32(), lambda array: pc.cast(array, pa.float32())
    if types.is_decimal256(kind):
        if kind.precision > _MOST_DIGITS:
            return pa.string(), _digits
        narrow = pa.decimal128(kind.precision, kind.scale)
        return narrow, lambda array: pc.cast(array, narrow)
    if types.is_duration(kind) and kind.unit == "ns":
        return pa.int64(), lambda array: array.view(pa.int64())
    if types.is_time64(kind) and kind.unit == "ns" and (is_map_key or _duckdb() < (1, 5)):
        return pa.string(), lambda array: pc.cast(array, pa.string())
    if types.is_timestamp(kind) and kind.unit == "ns" and kind.tz is not None and _duckdb() < (2, 0):
        return pa.timestamp("ns"), lambda array: array.view(pa.timestamp("ns"))
    return None


@functools.cache
def _duckdb() -> tuple[int, int]:
    """Return the version of DuckDB, of which an early one cuts nanoseconds off."""
    import duckdb

    major, minor = duckdb.__version__.split(".")[:2]
    return int(major), int(minor)


def _recast_struct(kind: pa.StructType, leaf: Leaf) -> tuple[pa.DataType, Converter | None]:
    forms = [recast(field.type, leaf) for field in kind]
    names = distinct_names([field.name for field in kind])
    if names == [field.name for field in kind] and all(convert is None for _, convert in forms):
        return kind, None
    fields = [
        field.with_name(name).with_type(shown) for field, name, (shown, _) in zip(kind, names, forms, strict=True)
    ]

    def convert_all(array: pa.Array) -> pa.Array:
        children = [array.field(number) for number in range(kind.num_fields)]
        columns = [
            child if convert is None else convert(child) for child, (_, convert) in zip(children, forms, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=array.is_null() if array.null_count else None)

    return pa.struct(fields), convert_all


def _recast_map(kind: pa.MapType, leaf: Leaf) -> tuple[pa.DataType, Converter | None]:
    (key, convert_key), (item, convert_item) = (
        recast(kind.key_type, leaf, is_map_key=True),
        recast(kind.item_type, leaf),
    )
    if convert_key is None and convert_item is None:
        return kind, None
    shown = pa.map_(kind.key_field.with_type(key), kind.item_field.with_type(item))
    key_of, item_of = convert_key or _unchanged, convert_item or _unchanged
    return shown, lambda array: with_entries(array, shown, key_of, item_of)


def _unchanged(array: pa.Array) -> pa.Array:
    return array


def _digits(array: pa.Array) -> pa.Array:
    """Return decimals as text with as many digits after the point as their scale, never with an exponent."""
    scale = array.type.scale
    # Arrow writes 0.0000001 as 1E-7, but a whole number with all its digits.
    whole = pa.Array.from_buffers(
        pa.decimal256(array.type.precision, 0), len(array), array.buffers(), array.null_count, array.offset
    )
    text = pc.cast(whole, pa.string())
    if scale == 0:
        return text
    sign = pc.if_else(pc.starts_with(text, "-"), "-", "")
    digits = pc.utf8_lpad(pc.utf8_ltrim(text, characters="-"), width=scale + 1, padding="0")
    before, after = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), after, ".")
