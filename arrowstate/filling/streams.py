"""Whatever has rows of Arrow, as a schema and record batches that are read once, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError

__all__ = ["RowStream", "open_stream"]


@dataclass(frozen=True, slots=True)
class RowStream:
    """Rows that are read once."""

    schema: pa.Schema
    batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    """Yields the rows, with these columns of the schema or more."""


def open_stream(table: Any) -> RowStream:
    """Return the rows of a table, a stream, a dataset, or of an iterator of any of them.

    Of an iterator the first item is taken, which tells the columns; the others must have the same.

    Raises
    ------
    InvalidInputError
        If it is nothing of the kind, or an iterator without an item.
    """
    if isinstance(table, pa.RecordBatch):
        return RowStream(table.schema, lambda _: iter([table]))
    if isinstance(table, pa.Table):
        return RowStream(table.schema, lambda _: iter(table.to_batches()))
    if isinstance(table, pa.RecordBatchReader):
        # Through the protocol, what it raises would not be what its own source has raised.
        return RowStream(table.schema, lambda _: iter(table))
    if hasattr(table, "scanner") and isinstance(getattr(table, "schema", None), pa.Schema):
        # A dataset of PyArrow reads so many batches ahead, each of them of many rows.
        ahead = {"batch_readahead": 2, "fragment_readahead": 1}
        return RowStream(table.schema, lambda columns: iter(table.scanner(columns=list(columns), **ahead).to_reader()))
    if hasattr(table, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(table)
        except pa.ArrowInvalid:
            # A series, for one, is no table.
            raise _refused(table) from None
        return RowStream(reader.schema, lambda _: iter(reader))
    if hasattr(table, "__arrow_c_array__"):
        return open_stream(pa.record_batch(table))
    if isinstance(table, Iterable) and not isinstance(table, (str, bytes, dict)):
        return _of_items(iter(table))
    raise _refused(table)


def _of_items(items: Iterator[Any]) -> RowStream:
    first = next(items, None)
    if first is None:
        raise InvalidInputError(
            "the iterator has no record batch, so its columns are not known; pass a table or a RecordBatchReader, "
            "which have a schema without rows too"
        )
    if not isinstance(first, (pa.RecordBatch, pa.Table)) and not hasattr(first, "__arrow_c_stream__"):
        raise _refused(first, "an iterator of ")
    opened = open_stream(first)

    def batches(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for number, item in enumerate(chain([opened], map(open_stream, items))):
            if not item.schema.equals(opened.schema):
                raise InvalidInputError(
                    f"batch {number} of the iterator has other columns than the first: {_described(item.schema)}, not "
                    f"{_described(opened.schema)}"
                )
            yield from item.batches(columns)

    return RowStream(opened.schema, batches)


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"


def _refused(given: Any, prefix: str = "") -> InvalidInputError:
    remedy = "collect it, or pass its collect_batches()" if hasattr(given, "collect_batches") else "convert it first"
    return InvalidInputError(
        "a table must be one of Arrow, a stream, a dataset, anything with Arrow's PyCapsule protocol, such as a frame "
        f"of Polars or pandas and a relation of DuckDB, or an iterator of record batches; got {prefix}"
        f"{type(given).__name__}: {remedy}"
    )
