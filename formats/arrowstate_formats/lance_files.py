"""Lance files of a run: written through a temporary file, read from a local path.

The Lance library takes paths only, so a file is written to a temporary folder and copied from there, and read where it
lies or from a `LocalCopy`. It is loaded at the first use. Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from arrowstate_formats.errors import InvalidInputError, MissingDependencyError
from arrowstate_formats.lance_types import from_lance, lance_schema, to_lance
from arrowstate_formats.schema_metadata import SCHEMA_KEY, chosen_fields, read_schema, schema_text
from arrowstate_formats.temporary import TemporaryFolder

LANCE_VERSION = "2.2"
"""The version of the Lance file format that is written."""

_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


class LocalCopy:
    """A file with the bytes of a buffer, in a temporary folder; it goes with this object."""

    def __init__(self, buffer: pa.Buffer) -> None:
        self._folder = TemporaryFolder()
        self.path = self._folder.path / "run.lance"
        with self.path.open("wb") as file:
            file.write(buffer)


@contextmanager
def written_lance(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> Iterator[Path]:
    """Write batches of one schema to a temporary Lance file, which is there until the block ends."""
    lance = _lance()
    # A folder of its own: the library keeps unfinished files beside the path.
    folder = TemporaryFolder()
    try:
        path = folder.path / "run.lance"
        try:
            with _plain_errors():
                writer = lance.LanceFileWriter(str(path), lance_schema(schema), version=LANCE_VERSION)
                for batch in batches:
                    writer.write_batch(to_lance(batch))
                writer.add_schema_metadata(SCHEMA_KEY, schema_text(schema))
                rows = writer.close()
        except (OSError, MemoryError):
            raise
        except Exception as error:
            columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
            raise InvalidInputError(
                f"Lance cannot store the columns {columns}; use the format 'arrow' or 'parquet' ({error})"
            ) from error
        expected = sum(batch.num_rows for batch in batches)
        if rows != expected:
            raise OSError(f"Lance wrote {rows} of {expected} rows")
        yield path
    finally:
        folder.remove()


def read_lance_rows(
    path: Path, rows: int, ranges: Sequence[tuple[int, int]], columns: Sequence[str] | None = None
) -> list[pa.RecordBatch]:
    """Return rows of a Lance file as they were written, a record batch for each range."""
    lance = _lance()
    # The library would say that it is missing in words only.
    path.open("rb").close()
    with _plain_errors():
        reader = lance.LanceFileReader(str(path))
        if reader.num_rows() != rows:
            raise ValueError(f"{reader.num_rows()} rows, expected {rows}")
        schema = chosen_fields(read_schema(reader.metadata().schema.metadata), columns)
        stored = lance_schema(schema)
        if columns is not None:
            reader = lance.LanceFileReader(str(path), columns=list(dict.fromkeys(stored.names)))
        batches = []
        for start, count in ranges:
            table = reader.read_range(start, count, batch_size=count).to_table()
            (batch,) = table.select(stored.names).replace_schema_metadata(None).combine_chunks().to_batches()
            batches.append(from_lance(batch, schema))
        return batches


_USER: list[int] = []
"""The process in which the library was used first, or in which the one was that this was forked from."""


def _lance() -> Any:
    """The library; loading it takes about 0.3 s."""
    if _USER and _USER[0] != os.getpid():
        # Its threads are gone, and it would wait for them without end.
        raise InvalidInputError(
            f"the Lance library was used in process {_USER[0]} before this one was forked from it, and would wait "
            "without end here; start processes by 'spawn' or 'forkserver', or fork them before its first use"
        )
    try:
        from lance import file
    except ImportError as error:
        raise MissingDependencyError("the run format 'lance'", "pylance", "lance") from error
    _USER[:] = [os.getpid()]
    return file


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn failed assertions of the library into errors, and the text of a system's error into that error."""
    try:
        yield
    except OSError as error:
        number = _SYSTEM_ERROR.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error)) from error
    except BaseException as error:
        # A panic is no Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"the Lance library failed: {error}") from error
