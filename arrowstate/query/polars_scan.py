"""A state as a lazy frame of Polars: what a filter surely excludes is not read, and Polars filters what is.

Polars can scan a dataset of pyarrow too, but then Arrow alone decides which rows pass, and it decides otherwise: no
number is less than NaN there, and what is not in a list may be null. So only those parts of a filter are pushed down
that mean the same to both, and Polars has the last word.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError
from arrowstate.schema.conversion import with_children
from arrowstate.schema.types import exactly, type_parts

if TYPE_CHECKING:
    import polars
    import pyarrow.dataset as ds

_COMPARISONS = (operator.eq, operator.lt, operator.le, operator.gt, operator.ge)
_MIRRORED = {operator.lt: operator.gt, operator.le: operator.ge, operator.gt: operator.lt, operator.ge: operator.le}


def check_columns(schema: pa.Schema) -> None:
    """Refuse columns of a type at which Polars panics."""
    for field in schema:
        if "decimal256" in str(field.type):
            raise InvalidInputError(
                f"column {field.name!r} is {field.type}, which Polars does not have; leave it out with columns=, or "
                "use to_arrow() or sql()"
            )


def readable(rows: pa.Table) -> pa.Table:
    """Return rows with lists of structs in the place of maps, for a Polars that has no maps.

    It makes such lists itself, but takes a null map for an empty one.
    """
    import polars

    parts = (part for kind in rows.schema.types for part in type_parts(kind))
    if hasattr(polars, "Map") or not rows.num_rows or not any(map(pa.types.is_map, parts)):
        return rows
    batches = [list(map(_without_maps, batch.columns)) for batch in rows.to_batches()]
    return pa.Table.from_batches([pa.RecordBatch.from_arrays(columns, rows.schema.names) for columns in batches])


def _without_maps(values: pa.Array, _: int = 0) -> pa.Array:
    values = with_children(values, _without_maps)
    if not pa.types.is_map(values.type):
        return values
    entries = values.values
    buffers, nulls = values.buffers()[:2], values.null_count
    return pa.Array.from_buffers(pa.list_(entries.type), len(values), buffers, nulls, values.offset, children=[entries])


def lazy_frame(dataset: ds.Dataset) -> polars.LazyFrame:
    """Return the rows of a dataset as a lazy frame."""
    import polars
    from polars.io.plugins import register_io_source

    stored = dataset.schema
    check_columns(stored)
    schema = polars.DataFrame(stored.empty_table()).schema

    def rows(
        columns: Sequence[str] | None, predicate: polars.Expr | None, limit: int | None, _: int | None
    ) -> Iterator[polars.DataFrame]:
        wanted = list(schema) if columns is None else list(columns)
        tested = [] if predicate is None else predicate.meta.root_names()
        # Without a column Polars would not know how many rows there are.
        read = list(dict.fromkeys([*wanted, *tested])) or stored.names[:1]
        filter = None if predicate is None else sure_filter(predicate, schema, stored)
        for batch in dataset.to_batches(columns=read, filter=filter):
            frame = polars.DataFrame(readable(pa.Table.from_batches([batch])))
            frame = frame if predicate is None else frame.filter(predicate)
            frame = frame if limit is None else frame.head(limit)
            yield frame.select(wanted) if wanted else frame
            if limit is not None:
                limit -= frame.height
                if not limit:
                    return

    return register_io_source(rows, schema=schema)


def sure_filter(predicate: polars.Expr, schema: polars.Schema, stored: pa.Schema) -> pc.Expression | None:
    """Return a filter of Arrow that all rows pass for which a predicate of Polars holds, None if there is none."""
    parts = [_as_arrow(part, schema, stored) for part in _conjuncts(predicate)]
    known = [part for part in parts if part is not None]
    return reduce(operator.and_, known) if known else None


def _conjuncts(predicate: polars.Expr) -> list[polars.Expr]:
    inputs = predicate.meta.pop()
    if len(inputs) == 2 and predicate.meta.eq(inputs[1] & inputs[0]):
        return [*_conjuncts(inputs[1]), *_conjuncts(inputs[0])]
    return [predicate]


def _as_arrow(part: polars.Expr, schema: polars.Schema, stored: pa.Schema) -> pc.Expression | None:
    """Return a comparison of a column with values as a filter of Arrow; None if it is another one, or not the same."""
    names, inputs = part.meta.root_names(), part.meta.pop()
    if len(names) != 1 or len(inputs) != 2 or names[0] not in schema:
        return None
    right, left = inputs
    (literals, column) = (left, right) if left.meta.root_names() == [] else (right, left)
    if not _is_column(column, names[0]) or literals.meta.root_names():
        return None
    field, is_float = pc.field(names[0]), schema[names[0]].is_float()
    for compare in _COMPARISONS:
        if part.meta.eq(compare(left, right)):
            meant = compare if column is left else _MIRRORED.get(compare, compare)
            values = _values(literals, names[0], schema, stored)
            # Polars takes NaN for the largest number, and Arrow for none.
            if values is None or len(values) != 1 or (is_float and meant in (operator.gt, operator.ge)):
                return None
            made: pc.Expression = meant(field, values[0])
            return made
    if not is_float and part.meta.eq(column.is_in(literals)):
        values = _values(literals, names[0], schema, stored)
        return None if values is None else field.isin(values)
    return None


def _is_column(expression: polars.Expr, name: str) -> bool:
    import polars

    return bool(expression.meta.eq(polars.col(name)))


def _values(literals: polars.Expr, name: str, schema: polars.Schema, stored: pa.Schema) -> pa.Array | None:
    """Return the values of literals in the type that is stored; None if they are of another one, or any is NaN."""
    import polars

    try:
        series = polars.select(literals).to_series()
        series = series.explode() if isinstance(series.dtype, polars.List) else series
        series = series.drop_nulls()
        kind = schema[name]
        if series.dtype != kind and not (series.dtype.is_integer() and kind.is_integer()):
            return None
        if series.dtype.is_nested() or (kind.is_float() and series.is_nan().any()):
            return None
        values = exactly(series.to_arrow(), stored.field(name).type)
    except (polars.exceptions.PolarsError, pa.ArrowException):
        return None
    return values if len(values) else None
