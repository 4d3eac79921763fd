"""Spilling: rows in mapped local files instead of memory, and the budget that decides which.

A file has no name once it is mapped, so it is gone when its run is dropped or the process dies.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from arrowstate.errors import StorageError, StorageFullError
from arrowstate.table.merging import BatchSink, MemorySink, fill
from arrowstate.table.run import Run
from arrowstate.table.segments import Segments

_IN_MEMORY_BYTES = 256 << 20

_logger = logging.getLogger("arrowstate.table")


class SpillSink:
    """Writes the batches to a local Arrow IPC file and maps it."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._path = folder
        with self._room():
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, path = tempfile.mkstemp(prefix="arrowstate-", suffix=".spill", dir=folder)
        self._path = Path(path)
        self._file = os.fdopen(descriptor, "wb")
        self._writer = pa.ipc.new_file(self._file, schema)

    def append(self, batch: pa.RecordBatch) -> None:
        with self._room():
            self._writer.write_batch(batch)

    def finish(self) -> Run:
        with self._room():
            self._writer.close()
            self._file.close()
            reader = pa.ipc.open_file(pa.memory_map(str(self._path)))
        run = Run.of([reader.get_batch(i) for i in range(reader.num_record_batches)], mapped=True)
        # It is mapped. Where the name cannot be taken away it stays behind, as after a process that died.
        with suppress(OSError):
            self._path.unlink()
        return run

    def discard(self) -> None:
        with suppress(OSError):
            # What is still buffered may have no room either.
            self._file.close()
        with suppress(OSError):
            self._path.unlink()

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise (StorageFullError if full else StorageError)(str(self._path), str(error)) from error


def sink_of(runs: Sequence[Run], schema: pa.Schema) -> BatchSink:
    """Return where the rows of runs are merged to that no budget speaks of."""
    size = sum(segment.stored.nbytes for run in runs for segment in run.segments)
    return MemorySink() if size <= _IN_MEMORY_BYTES else SpillSink(Path(tempfile.gettempdir()), schema)


class Spillable(Protocol):
    """What a budget asks of a table."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of its runs."""

    @property
    def runs(self) -> Sequence[Run]:
        """Its runs."""

    @property
    def memory_bytes(self) -> int:
        """How many bytes it takes in memory."""


class Spilling(Protocol):
    """A table, as far as a budget knows it."""

    schema: pa.Schema

    @property
    def runs(self) -> tuple[Run, ...]: ...

    @property
    def memory_bytes(self) -> int: ...


class Budget:
    """How many bytes the rows of some tables take in memory; the largest runs past it are spilled."""

    def __init__(
        self,
        limit_bytes: int | None = None,
        folder: Path | None = None,
        tables: Callable[[], Sequence[Spillable]] | None = None,
    ) -> None:
        self._limit = limit_bytes
        self._folder = folder or Path(tempfile.gettempdir())
        self._tables = tables

    def spill_sink(self, schema: pa.Schema) -> SpillSink:
        """Return a file that rows can be written to."""
        return SpillSink(self._folder, schema)

    def sink(self, table: Spillable, more: int) -> BatchSink:
        """Return where about so many bytes of a table go that are to be written now."""
        return self.spill_sink(table.schema) if self.is_exceeded(table, more) else MemorySink()

    def is_exceeded(self, table: Spillable, more: int = 0) -> bool:
        """Whether the tables, and so many bytes more, are past the limit."""
        return self._limit is not None and sum(each.memory_bytes for each in self._of(table)) + more > self._limit

    def hold(self, table: Spillable) -> None:
        """Spill the largest runs of the tables until the limit holds."""
        while self.is_exceeded(table):
            in_memory = [(each, run) for each in self._of(table) for run in each.runs if run.row_bytes]
            if not in_memory:
                return
            owner, largest = max(in_memory, key=lambda pair: pair[1].row_bytes)
            self._spill(largest, owner.schema)

    def _of(self, table: Spillable) -> Sequence[Spillable]:
        return [table] if self._tables is None else self._tables()

    def _spill(self, run: Run, schema: pa.Schema) -> None:
        size = run.row_bytes
        # The run stays the same object with the same row numbers, so what was found in it stays valid.
        spilled = fill(self.spill_sink(schema), (segment.batch for segment in run.segments)).segments
        run.segments = Segments(
            replace(new, first_row=old.first_row, times=old.times, max_seq=old.max_seq)
            for new, old in zip(spilled, run.segments, strict=True)
        )
        run.mapped = True
        fields = {"rows": run.rows, "bytes": size, "folder": str(self._folder)}
        _logger.debug("a run of %(rows)d rows and %(bytes)d bytes spilled to %(folder)s", fields, extra=fields)
