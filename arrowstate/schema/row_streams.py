"""Whatever has rows: a table, a frame, a query, a stream or an iterator, as a schema and batches that are read once.

What can be read once only, such as a RecordBatchReader or a generator, is touched here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import ArrowStateError, InvalidInputError

_INDEX = re.compile(r"__index_level_\d+__")
"""What pandas calls an index without a name."""


class RowStream(Struct, frozen=True):
    """Rows that are read once."""

    schema: pa.Schema
    batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    """Yields the rows, with these columns of the schema or more."""


def open_stream(table: Any) -> RowStream:
    """Return the rows of a table, a frame, a stream, a dataset, a query, or of an iterator of any of them.

    Of an iterator the first item is taken, which tells the columns; the others must have the same.
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
    if hasattr(table, "to_batches") and isinstance(getattr(table, "schema", None), pa.Schema):
        # A state. Through the protocol, a missing file would not be the error that it is.
        return RowStream(table.schema, lambda _: iter(table.to_batches()))
    if hasattr(table, "to_arrow_reader"):
        # A query of DuckDB, for the same reason.
        return open_stream(table.to_arrow_reader())
    if hasattr(table, "collect_batches"):
        # A lazy frame of Polars, whose columns are known before its rows.
        return _of_items(chain([table.head(0).collect()], table.collect_batches(maintain_order=True)))
    if hasattr(table, "__arrow_c_stream__"):
        return _of_protocol(table)
    if hasattr(table, "__arrow_c_array__"):
        return open_stream(pa.record_batch(table))
    if isinstance(table, Iterable) and not isinstance(table, (str, bytes, dict)):
        return _of_items(iter(table), type(table).__name__)
    raise _refused(table)


def lasting_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables that can be read any number of times; what can be read once only is read into memory."""
    found = {}
    for name, table in tables.items():
        # DuckDB reads these as often as a query asks, with the columns and rows that it needs.
        library = type(table).__module__.partition(".")[0]
        if isinstance(table, pa.RecordBatch):
            # DuckDB 1.4 reads a batch once.
            table = pa.Table.from_batches([table])
        is_lasting = isinstance(table, pa.Table) or library in ("pandas", "polars", "numpy")
        is_lasting = is_lasting or (hasattr(table, "scanner") and isinstance(getattr(table, "schema", None), pa.Schema))
        found[name] = table if is_lasting else read_rows(table, f"the rows of the table {name!r}")
    return found


def read_rows(table: Any, what: str = "the rows") -> pa.Table:
    """Return all rows of what `open_stream` takes; `what` names them in messages."""
    try:
        stream = open_stream(table)
        return pa.Table.from_batches(stream.batches(stream.schema.names), stream.schema)
    except (ArrowStateError, MemoryError):
        raise
    except Exception as error:
        raise unreadable(what, error) from error


def unreadable(what: str, error: Exception) -> InvalidInputError:
    """Return the error about rows of a caller whose own source has raised one."""
    return InvalidInputError(f"{what} cannot be read to their end, so none is taken: {type(error).__name__}: {error}")


def _of_protocol(table: Any) -> RowStream:
    try:
        reader = pa.RecordBatchReader.from_stream(table)
    except pa.ArrowInvalid:
        # A series, for one, is no table.
        raise _refused(table) from None
    if type(table).__module__.partition(".")[0] != "pandas":
        return RowStream(reader.schema, lambda _: iter(reader))
    # The index of a frame that was filtered is no column of it.
    names = [name for name in reader.schema.names if not _INDEX.fullmatch(name)]
    fields = [reader.schema.field(name) for name in names]
    return RowStream(pa.schema(fields), lambda _: (batch.select(names) for batch in reader))


def _of_items(items: Iterator[Any], kind: str = "an iterator") -> RowStream:
    first = next(items, None)
    if first is None:
        raise InvalidInputError(
            "the iterator has no record batch, so its columns are not known; pass a table or a RecordBatchReader, "
            "which have a schema without rows too"
        )
    if not isinstance(first, (pa.RecordBatch, pa.Table)) and not hasattr(first, "__arrow_c_stream__"):
        raise _refused(first, f"{kind} of ")
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
    return InvalidInputError(
        "a table must be one of Arrow, a stream, a dataset, anything with Arrow's PyCapsule protocol, such as a frame "
        f"of Polars or pandas and a relation of DuckDB, or an iterator of record batches; got {prefix}"
        f"{type(given).__name__}: convert it first"
    )
