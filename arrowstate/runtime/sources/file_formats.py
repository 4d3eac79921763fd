"""Files of rows from a row on, one class per format: what a file has, its batches, and which row an error is of."""

from __future__ import annotations

import csv
import inspect
import io
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from arrowstate.errors import InvalidInputError
from arrowstate.schema.conversion import with_children
from arrowstate.schema.times import times_of_texts, wraps_times
from arrowstate.schema.types import safe_cast, type_parts

_BATCH_ROWS = 65_536
_BATCH_BYTES = 64 << 20
_BLOCK_BYTES = 4 << 20
"""A line of a text is no longer than this."""


_NAMES_BYTES = 64 << 10
"""The names of columns within so many bytes are looked at."""

_BLANK = b"\xef\xbb\xbf \t\r\n"
"""What a text may have that has nothing in it."""

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


class Misfit(ValueError):
    """A file has not the rows that are asked for."""

    def __init__(self, detail: str, row: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.row = row


class RowFile(ABC):
    """A file of rows."""

    schema: pa.Schema
    """The columns of the file, where it says them."""

    def __init__(self, file: pa.NativeFile, name: str) -> None:
        self.file = file
        self.name = name
        self.count = 0
        """How many rows there are before what was read last, those that were passed over among them."""

    @abstractmethod
    def batches(self, schema: pa.Schema, row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from a number on, in the columns of `schema`."""

    def row_of(self, error: BaseException) -> int | None:  # noqa: ARG002
        """Return the number of the row that an error is of, None if it does not say."""
        return None

    def _after(self, rows: pa.RecordBatch, row: int) -> pa.RecordBatch:
        """Count rows, and return those from number `row` on."""
        first = self.count
        self.count += rows.num_rows
        return rows.slice(max(0, row - first)) if row < self.count else rows.slice(rows.num_rows)

    def _fitted(self, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return the columns of `schema`, of its types."""
        if rows.schema.equals(schema):
            return rows
        columns = []
        for field in schema:
            numbers = rows.schema.get_all_field_indices(field.name)
            if len(numbers) != 1:
                times = "no column" if not numbers else f"{len(numbers)} columns"
                raise Misfit(f"the file has {times} {field.name!r}")
            columns.append(self._cast(rows.column(numbers[0]), field))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _checked(self, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows whose columns of `schema` are whole and have texts of UTF-8, which a library does not look at.

        A checkpoint with others would be one that is damaged, and many kernels of Arrow would end the process.
        """
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if name not in schema.names:
                continue
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                row = None
                if "UTF8" in str(error) and not any(map(pa.types.is_dictionary, type_parts(column.type))):
                    # The values of lists are looked at as a whole, also of a slice.
                    row = self.count + _first_misfit(column, lambda part: part.take(_all(part)).validate(full=True))
                raise Misfit(f"column {name!r} does not fit: {error}", row) from error
        return rows

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if column.type.equals(field.type):
            return column
        given, column = column.type, _storage_of(column)
        if _family(column.type) != _family(field.type):
            raise Misfit(f"column {field.name!r} is {given} in the file, not {field.type}")
        try:
            return _converted(column, field.type)
        except (pa.ArrowInvalid, OverflowError) as error:
            row = self.count + _first_misfit(column, lambda part: _converted(part, field.type))
            # An error of this package is no cause, for a job would take it for one of a system and read again.
            cause = error if isinstance(error, pa.ArrowInvalid) else None
            raise Misfit(f"column {field.name!r} does not fit {field.type}: {error}", row) from cause


_AS_STORED: dict[str, Any] = (
    {"arrow_extensions_enabled": False}
    if "arrow_extensions_enabled" in inspect.signature(pq.ParquetFile.__init__).parameters
    else {}
)
"""With these options columns of UUIDs and JSON have the types that early PyArrow gives them, which a state can have."""


class ParquetRows(RowFile):
    """Parquet: reads from the row group of the first row."""

    def __init__(self, file: pa.NativeFile, name: str) -> None:
        super().__init__(file, name)
        self._rows = pq.ParquetFile(file, **_AS_STORED)
        given = self._rows.schema_arrow
        # The schema of Arrow that a file may have beside that of Parquet has extensions whatever the options.
        plain = [item.with_type(_storage_of(pa.nulls(0, item.type)).type) for item in given]
        self.schema = pa.schema(plain, metadata=given.metadata)
        self.row_count: int = self._rows.metadata.num_rows

    def batches(self, schema: pa.Schema, row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from a number on."""
        metadata = self._rows.metadata
        ends = list(accumulate(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)))
        groups = [number for number, end in enumerate(ends) if end > row]
        self.count = ends[groups[0] - 1] if groups and groups[0] else 0
        if not groups:
            self.count = metadata.num_rows
            return
        # A dot in a name would be a path to the reader.
        names = [field.name for field in schema if field.name in self.schema.names]
        columns = None if any("." in name for name in self.schema.names) else names
        size = sum(metadata.row_group(number).total_byte_size for number in groups)
        most = _rows_of(size / max(1, metadata.num_rows - self.count))
        reader = self._reader_of(schema)
        for rows in reader.iter_batches(most, row_groups=groups, columns=columns, use_threads=False):
            for piece in _undictionaried(self._checked(rows, schema)):
                yield self._after(self._fitted(piece, schema), row)

    def _reader_of(self, schema: pa.Schema) -> pq.ParquetFile:
        """Return what reads times of 96 bits, as Spark writes them, in microseconds, unless nanoseconds are asked for.

        Nanoseconds, which Arrow takes otherwise, begin in 1677 and end in 2262; times beyond them would be others.
        """
        columns = self._rows.schema
        has_wide_times = any(columns.column(number).physical_type == "INT96" for number in range(len(columns)))
        parts = (part for field in schema for part in type_parts(field.type))
        if not has_wide_times or any(pa.types.is_timestamp(part) and part.unit == "ns" for part in parts):
            return self._rows
        return pq.ParquetFile(self.file, metadata=self._rows.metadata, coerce_int96_timestamp_unit="us", **_AS_STORED)


def _rows_of(row_bytes: float) -> int:
    """Return how many rows of such a size are read at once."""
    return max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(1, row_bytes))))


def _undictionaried(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows in pieces of few bytes, where columns are dictionaries, whose values take more without them."""
    dictionaries = [column.dictionary for column in rows.columns if pa.types.is_dictionary(column.type)]
    most = _rows_of(sum(map(_longest, dictionaries)))
    for first in range(0, rows.num_rows, most):
        yield rows.slice(first, most)


def _longest(values: pa.Array) -> int:
    """Return the bytes of the longest text of a dictionary; its numbers are no longer than their places."""
    if _family(values.type) not in ("string", "binary"):
        return 0
    longest: int | None = pc.max(pc.binary_length(values)).as_py()
    return longest or 0


class ArrowRows(RowFile):
    """Arrow IPC, a file or a stream: passes over record batches, of a file without reading most of them."""

    def __init__(self, file: pa.NativeFile, name: str) -> None:
        super().__init__(file, name)
        self._is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        self._rows = pa.ipc.open_file(file) if self._is_file else pa.ipc.open_stream(file)
        self.schema = self._rows.schema

    def batches(self, schema: pa.Schema, row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from a number on."""
        if not self._is_file:
            for rows in self._rows:
                yield self._after(self._fitted(self._checked(rows, schema), schema), row)
            return
        number = 0
        counter = self._counter() if row else None
        while counter is not None and number < self._rows.num_record_batches:
            rows = counter.get_batch(number)
            if self.count + rows.num_rows > row:
                break
            self.count += rows.num_rows
            number += 1
        for further in range(number, self._rows.num_record_batches):
            rows = self._checked(self._rows.get_batch(further), schema)
            yield self._after(self._fitted(rows, schema), row)

    def _counter(self) -> Any:
        """Return a reader of one narrow column, which tells the rows of a batch."""
        widths = {number: _width(field.type) for number, field in enumerate(self.schema)}
        if not widths:
            return self._rows
        narrowest = min(widths, key=lambda number: widths[number])
        return pa.ipc.open_file(self.file, options=pa.ipc.IpcReadOptions(included_fields=[narrowest]))


class TextRows(RowFile):
    """A text that is parsed from its beginning, compressed if its name says so."""

    empty: str
    """What the parser says of a text without anything in it."""
    without_values: bytes
    """A text in which no column `x` has a value."""

    @abstractmethod
    def parsed(self, text: pa.NativeFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Return the rows of a text."""

    def batches(self, schema: pa.Schema, row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from a number on."""
        self.check_names(schema)
        text = self._text()
        try:
            parsed = self.parsed(text, pa.schema([field.with_type(_wide(field.type)) for field in schema]))
        except pa.ArrowInvalid as error:
            if self.empty not in str(error):
                raise
            if not self._is_blank():
                raise Misfit(f"its first line is not within its first {_BLOCK_BYTES:,} bytes") from error
            return
        for rows in self._whole_lines(parsed):
            yield self._after(self._fitted(rows, schema), row)

    def check_names(self, schema: pa.Schema) -> None:
        """Refuse a file in which columns cannot be told apart, and leave it at its beginning."""

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            column = _with_times(column, field.type)
        except pa.ArrowInvalid as error:
            row = self.count + _first_misfit(column, lambda part: _with_times(part, field.type))
            raise Misfit(f"column {field.name!r} does not fit {field.type}: {error}", row) from error
        return super()._cast(column, field)

    def _text(self) -> pa.NativeFile:
        codec = next((codec for suffix, codec in _CODECS.items() if self.name.endswith(suffix)), None)
        return self.file if codec is None else pa.CompressedInputStream(self.file, codec)

    def _is_blank(self) -> bool:
        """Whether nothing is in the file, for a parser says so of one whose first block has no whole line, too."""
        self.file.seek(0)
        text = self._text()
        return not any(block.strip(_BLANK) for block in iter(lambda: text.read(_BLOCK_BYTES), b""))

    def _whole_lines(self, parsed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from parsed
        except pa.ArrowInvalid as error:
            if "straddling object" not in str(error):
                raise
            raise Misfit(f"a line after row {self.count} is longer than {_BLOCK_BYTES:,} bytes") from error


class CsvRows(TextRows):
    """CSV with the names of the columns in its first line."""

    empty = "Empty CSV file"
    without_values = b"x\n"

    def check_names(self, schema: pa.Schema) -> None:
        """Refuse a name that two columns have, of which the parser would take the first."""
        # Held, for a stream that is let go closes its file.
        self._beginning = self._text()
        text = self._beginning.read(_NAMES_BYTES).decode("utf-8-sig", "replace")
        self.file.seek(0)
        names = next(filter(None, csv.reader(io.StringIO(text, newline=""))), [])
        # A line that no file has by chance, and of another number of columns than the text.
        self._last = secrets.token_hex(16) + ("" if len(names) > 1 else ",")
        for name in schema.names:
            if names.count(name) > 1:
                raise Misfit(f"the file has {names.count(name)} columns {name!r}")

    def parsed(self, text: pa.NativeFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Return the rows of a text."""
        self._is_ended = self._is_swallowed = False
        parsed = pyarrow.csv.open_csv(
            pa.PythonFile(_Lasting(text, self._last), mode="r"),
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=self._take_invalid),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=schema,
                include_columns=schema.names,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return self._ended(parsed)

    def _take_invalid(self, row: Any) -> str:
        """Pass over the line that was put after the text, and nothing else."""
        if row.text != self._last:
            self._is_swallowed = row.text.endswith(f"\n{self._last}")
            return "error"
        self._is_ended = True
        return "skip"

    def _ended(self, parsed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows, of the last batch when it is known that no quote swallows the rest of the file."""
        last: pa.RecordBatch | None = None
        try:
            for rows in parsed:
                if last is not None:
                    yield last
                last = rows if rows.num_rows else None
        except pa.ArrowInvalid as error:
            if last is not None:
                yield last
            if self._is_swallowed:
                raise Misfit(_OPEN_QUOTE, self.row_of(error)) from error
            raise
        if last is not None:
            yield last if self._is_ended else last.slice(0, last.num_rows - 1)
        if not self._is_ended:
            raise Misfit(_OPEN_QUOTE, self.count)

    def row_of(self, error: BaseException) -> int | None:
        """Return the row of a message; there, the line with the names is row 1."""
        found = re.search(r"Row #(\d+)", str(error))
        return None if found is None else int(found[1]) - 2


_OPEN_QUOTE = "a quote is opened in its last row and never closed; the file may have been cut"


class _Lasting:
    """A text of CSV and a last line, which is no row of it. A quote that is never closed swallows that line."""

    closed = False

    def __init__(self, text: pa.NativeFile, last: str) -> None:
        self._text = text
        self._last = last.encode()
        self._is_blank = True
        self._is_ended = False

    def read(self, size: int) -> bytes:
        """Return the next bytes of the text, and after them the line, unless nothing is in the text.

        The line is a block of its own, so that an error in it does not cost the rows before it.
        """
        if self._is_ended:
            last, self._last = self._last[:size], self._last[size:]
            return b"" if self._is_blank else last
        block = _filled(self._text, b"", size)
        self._is_blank = self._is_blank and not block.strip(_BLANK)
        self._is_ended = len(block) < size
        # The parser asks for a newline in the first block, also of a text that ends without any; a line without
        # anything is passed over.
        return block + b"\n" if self._is_ended and not self._is_blank else block

    def close(self) -> None:
        """Leave the text to whoever opened it."""


class JsonRows(TextRows):
    """JSON, an object a line."""

    empty = "Empty JSON stream"
    without_values = b"{}\n"

    def parsed(self, text: pa.NativeFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Return the rows of a text."""
        parsed = pyarrow.json.open_json(
            pa.PythonFile(_Objects(text), mode="r"),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        return (self._checked(rows, schema) for rows in parsed)

    def row_of(self, error: BaseException) -> int | None:
        """Return the row of a message, which counts from the beginning of a block."""
        found = re.search(r"in row (\d+)$", str(error))
        return None if found is None else self.count + int(found[1])


class _Objects:
    """The whole lines of a text of JSON, a block at each read, of which none begins with a null.

    Arrow ends the process at a block that begins with one. A null elsewhere is an object without members to it.
    """

    closed = False

    def __init__(self, text: pa.NativeFile) -> None:
        self._text = text
        self._rest = b""
        self._is_at_line = True

    def read(self, size: int) -> bytes:
        """Return the next bytes, which end with a line if one ends in them."""
        block = _filled(self._text, self._rest, size)
        end = block.rfind(b"\n") + 1 if len(block) == size else 0
        block, self._rest = (block[:end], block[end:]) if end else (block, b"")
        if self._is_at_line:
            block = _LEADING_NULL.sub(rb"\1{}  ", block)
        self._is_at_line = end > 0
        return block

    def close(self) -> None:
        """Leave the text to whoever opened it."""


def _filled(text: pa.NativeFile, block: bytes, size: int) -> bytes:
    """Return a block and the next bytes of a text, so many in all, fewer only at the end of the text."""
    while len(block) < size and (more := text.read(size - len(block))):
        block += more
    return block


_LEADING_NULL = re.compile(rb"\A((?:\xef\xbb\xbf)?\s*)null")

TEXTS: dict[str, type[TextRows]] = {"csv": CsvRows, "json": JsonRows}
"""Formats whose files do not say the types of their columns."""
FORMATS: dict[str, type[RowFile]] = {"parquet": ParquetRows, "arrow": ArrowRows, **TEXTS}


def check_types(format: str, schema: pa.Schema) -> None:
    """Refuse columns of a type that the parser of a text does not have."""
    text = TEXTS[format]
    if text is JsonRows and not hasattr(pyarrow.json, "open_json"):
        raise InvalidInputError(
            f"a source of {format} files needs PyArrow 20 or later, and {pa.__version__} is installed"
        )
    for field in schema:
        try:
            for _ in text(pa.BufferReader(text.without_values), "").batches(pa.schema({"x": field.type}), 0):
                pass
        except pa.ArrowNotImplementedError as error:
            raise InvalidInputError(
                f"a source of {format} files cannot read column {field.name!r} as {field.type}: {error}; read it as "
                "another type, such as pa.string(), and convert it in map_batches"
            ) from error


def _family(type: pa.DataType) -> str:
    """Return what types between which a value is cast have in common."""
    if pa.types.is_dictionary(type):
        return _family(type.value_type)
    for name, test in (
        ("integer", pa.types.is_integer),
        ("float", pa.types.is_floating),
        ("timestamp", pa.types.is_timestamp),
        ("date", pa.types.is_date),
        ("time", pa.types.is_time),
        ("duration", pa.types.is_duration),
        ("decimal", pa.types.is_decimal),
    ):
        if test(type):
            return f"{name} in {type.tz}" if name == "timestamp" else name
    if pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type):
        return "string"
    if pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_binary_view(type):
        return "binary"
    if pa.types.is_map(type):
        return f"map of {_family(type.key_type)} to {_family(type.item_type)}"
    if pa.types.is_struct(type):
        return f"struct of {[(field.name, _family(field.type)) for field in type]}"
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return f"list of {_family(type.value_type)}"
    return str(type)


def _converted(values: pa.Array, type: pa.DataType) -> pa.Array:
    """Return values in another type of their family; between views and dictionaries Arrow has no way of its own."""
    kinds = (values.type, type)
    if any(map(pa.types.is_dictionary, kinds)) and any(kind in (pa.string_view(), pa.binary_view()) for kind in kinds):
        values = safe_cast(values, pa.large_string() if _family(type) == "string" else pa.large_binary())
    return safe_cast(values, type)


def _wide(type: pa.DataType) -> pa.DataType:
    """Return the type a text is parsed to: a number that is too large for a narrower float would be infinite.

    Early PyArrow takes a time that has no nanoseconds for another one, see `times_of_texts`.
    """
    if pa.types.is_floating(type):
        return pa.float64()
    if _is_read_as_text(type):
        return pa.string()
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(_wide(field.type)) for field in type])
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_wide(type.value_type)))
    return type


def _storage_of(values: pa.Array, _: int = 0) -> pa.Array:
    """Return values without extension types, also within others."""
    if isinstance(values.type, pa.BaseExtensionType):
        return _storage_of(values.storage)
    return with_children(values, _storage_of)


def _is_read_as_text(type: pa.DataType) -> bool:
    return pa.types.is_timestamp(type) and type.unit == "ns" and wraps_times()


def _with_times(values: pa.Array, type: pa.DataType) -> pa.Array:
    """Return what was parsed as `_wide` says with the times that are still texts there."""
    if _is_read_as_text(type):
        return times_of_texts(pc.ascii_trim_whitespace(values), type)
    if pa.types.is_struct(type):
        return with_children(values, lambda part, number: _with_times(part, type.field(number).type))
    if pa.types.is_list(type):
        return with_children(values, lambda part, _: _with_times(part, type.value_type))
    return values


def _first_misfit(column: pa.Array, check: Callable[[pa.Array], Any]) -> int:
    """Return the first row of a column that does not pass a check, of which there is one."""
    low, high = 0, len(column) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            check(column.slice(low, middle - low + 1))
        except (pa.ArrowInvalid, OverflowError):
            high = middle
        else:
            low = middle + 1
    return low


def _all(column: pa.Array) -> pa.Array:
    return pa.array(range(len(column)), pa.int64())


def _width(type: pa.DataType) -> int:
    try:
        return type.bit_width
    except ValueError:
        return 1 << 10
