"""Rows as they are printed or written to a file: CSV, JSON, Markdown, Parquet, Arrow.

Rows come as a stream and go as they come, so a result may be larger than memory. A file has its name once it is whole.
"""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa

from arrowstate.cli.formats import Format, refuse_pipe
from arrowstate.clock import new_id
from arrowstate.errors import InvalidInputError
from arrowstate.query.row_text import csv_cell, rows_of, with_durations, write_csv
from arrowstate.shown import shown

_GROUP_ROWS = 122_880
_GROUP_BYTES = 32 << 20
"""How much of a binary file is written at a time, and is in memory."""


@contextmanager
def new_file(path: str) -> Iterator[IO[bytes]]:
    """Give a file to write, which replaces the file at the path when the block ends well, and else is gone.

    A link stays, and the file that it points to is replaced. Into what is no file, such as a named pipe, a device or
    /dev/stdout, the rows are written as they come.
    """
    refuse_pipe(path)
    if not Path(path).name:
        raise InvalidInputError(f"--output takes a file, and {path!r} is none")
    final = Path(os.path.realpath(path))
    beside = final.with_name(f".{final.name}.{new_id()}.part")
    unchanged = ""
    try:
        if not _is_replaced(path):
            # It may be the file to which the shell adds the output.
            with Path(path).open("ab") as file:
                yield file
                file.flush()
            return
        unchanged = "; nothing was changed"
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(final)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError) and error.filename in (None, path, str(beside)):
            raise InvalidInputError(f"{path} cannot be written: {error.strerror}{unchanged}") from error
        raise


def _is_replaced(path: str) -> bool:
    """Whether there is a regular file at a path, or nothing, and it is not where this process prints."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return True
    if not stat.S_ISREG(found.st_mode):
        return False
    for printed in (1, 2):
        with suppress(OSError):
            if os.path.samestat(found, os.fstat(printed)):
                return False
    return True


@contextmanager
def as_text(file: IO[bytes]) -> Iterator[IO[str]]:
    """Give a file to write text to, which stays open."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        yield text
        text.flush()
    finally:
        text.detach()


def write_text(batches: pa.RecordBatchReader, format: Format, file: IO[str]) -> None:
    """Write rows as text."""
    _WRITERS[format](batches.schema.names, rows_of(batches), file)


def write_binary(batches: pa.RecordBatchReader, format: Format, file: IO[bytes]) -> int:
    """Write rows to a file of any format; return how many there were."""
    if format not in ("parquet", "arrow"):
        counted = _Counted(batches)
        with as_text(file) as text:
            write_text(pa.RecordBatchReader.from_batches(batches.schema, counted), format, text)
        return counted.rows
    if format == "parquet":
        # Parquet has no type for the intervals of SQL.
        batches = with_durations(batches)
    rows = 0
    with _binary_writer(format, file, batches.schema) as writer:
        for table in _groups(batches):
            writer.write_table(table)
            rows += table.num_rows
    return rows


def _binary_writer(format: Format, file: IO[bytes], schema: pa.Schema) -> Any:
    if format == "arrow":
        return pa.ipc.new_file(file, schema)
    import pyarrow.parquet as pq

    return pq.ParquetWriter(file, schema, compression="zstd")


class _Counted:
    """Batches, counted as they go by."""

    def __init__(self, batches: pa.RecordBatchReader) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


def _groups(batches: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield the rows in tables of a size that is good to read; batches may be small."""
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        found.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(found, batches.schema).combine_chunks()
            found, rows, size = [], 0, 0
    if found:
        yield pa.Table.from_batches(found, batches.schema).combine_chunks()


def _write_json(names: Sequence[str], rows: Iterator[tuple[Any, ...]], file: IO[str]) -> None:
    """Write an array with one object per line."""
    names = _told_apart(names)
    file.write("[")
    for number, row in enumerate(rows):
        file.write(f"{',' if number else ''}\n{_object(names, row)}")
    file.write("\n]\n")


def _write_json_lines(names: Sequence[str], rows: Iterator[tuple[Any, ...]], file: IO[str]) -> None:
    names = _told_apart(names)
    file.writelines(f"{_object(names, row)}\n" for row in rows)


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return names for the members of an object: a second `a` is `a_1`, as DuckDB names it in a table."""
    found: dict[str, None] = {}
    for name in names:
        apart, number = name, 0
        while apart in found or (number and apart in names):
            number += 1
            apart = f"{name}_{number}"
        found[apart] = None
    return list(found)


def _object(names: Sequence[str], row: Sequence[Any]) -> str:
    return json.dumps({name: shown(value) for name, value in zip(names, row, strict=True)}, ensure_ascii=False)


def _write_markdown(names: Sequence[str], rows: Iterator[tuple[Any, ...]], file: IO[str]) -> None:
    file.write(_markdown_line(names))
    file.write(_markdown_line(["---"] * len(names)))
    file.writelines(_markdown_line(row) for row in rows)


def _markdown_line(row: Sequence[Any]) -> str:
    cells = (csv_cell(value) for value in row)
    texts = ("" if cell is None else str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in cells)
    return f"| {' | '.join(texts)} |\n"


_WRITERS = cast(
    "dict[Format, Callable[[Sequence[str], Iterator[tuple[Any, ...]], IO[str]], None]]",
    {"csv": write_csv, "json": _write_json, "jsonl": _write_json_lines, "markdown": _write_markdown},
)
