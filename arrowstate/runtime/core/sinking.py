"""A sink in one subtask: what it keeps of the rows until their checkpoint is committed.

Rows belong to the epoch that ends with the next barrier. A checkpoint stores all epochs that no committed checkpoint
has: usually one, and those of given-up checkpoints too. What the coordinator does not need of it, it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from arrowstate.files.operator import write_part
from arrowstate.files.streams import CheckpointStreamFactory
from arrowstate.runtime.connectors import DirectSink, PreparingSink, SinkWriter
from arrowstate.runtime.core.elements import bytes_of
from arrowstate.runtime.core.explaining import explained
from arrowstate.runtime.core.messages import StatePart
from arrowstate.storage.base import Storage
from arrowstate_formats.arrow_types import type_to_json
from arrowstate_formats.documents import OperatorPartDocument
from arrowstate_formats.run_files import INLINE_BYTES

WriteParts = Callable[[list[str]], list[StatePart]]
"""Writes what was frozen, in another thread; adds the files that it wrote to the list."""

_MOST_BYTES = 64 << 20
"""Rows of an epoch that are kept in memory; more go to files of the store before the checkpoint."""

_TABLE_INLINE_BYTES = 1024
"""Larger parts of an output table are files: every later log entry repeats what is inline."""


class SinkTask(Protocol):
    """What a task asks of a sink at its end."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""

    def freeze(self, epoch: int) -> WriteParts | None:
        """End the epoch of this checkpoint; return what writes all that is not committed."""

    def completed(self, epoch: int) -> None:
        """Let go of what is committed up to this checkpoint."""

    def close(self) -> None:
        """Let go of everything."""


def row_type(schema: pa.Schema) -> pa.StructType:
    """Return the type of an element that keeps a row."""
    return pa.struct([pa.field(field.name, field.type) for field in schema])


class KeptRows:
    """Rows that are part of the checkpoint: of an output table, or for a sink, which gets them after the commit."""

    def __init__(
        self,
        storage: Storage,
        new_id: Callable[[], str],
        uid: str,
        name: str,
        schema: pa.Schema,
        *,
        is_table: bool,
    ) -> None:
        self._storage = storage
        self._new_id = new_id
        self._uid = uid
        self._name = name
        self._inline_bytes = _TABLE_INLINE_BYTES if is_table else INLINE_BYTES
        self._type = row_type(schema)
        self._epochs: dict[int, tuple[list[pa.RecordBatch], list[OperatorPartDocument]]] = {}
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._written: list[OperatorPartDocument] = []
        "Rows of this epoch that are in files already, which no checkpoint owns until one is committed."

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows.append(batch)
        self._bytes += bytes_of(batch)
        if self._bytes > _MOST_BYTES:
            self._written.append(self._part(self._rows, []))
            self._rows, self._bytes = [], 0

    def freeze(self, epoch: int) -> WriteParts | None:
        if self._rows or self._written:
            self._epochs[epoch] = self._rows, self._written
            self._rows, self._written, self._bytes = [], [], 0
        if not self._epochs:
            return None
        epochs = dict(self._epochs)

        def write(paths: list[str]) -> list[StatePart]:
            made = []
            for number, (rows, written) in epochs.items():
                parts = [*written, *([self._part(rows, paths)] if rows else [])]
                made += [
                    StatePart(self._uid, self._name, "list", type_to_json(self._type), part, epoch=number)
                    for part in parts
                ]
            return made

        return write

    def completed(self, epoch: int) -> None:
        self._epochs = {number: rows for number, rows in self._epochs.items() if number > epoch}

    def close(self) -> None:
        self._epochs.clear()
        self._rows.clear()

    def _part(self, rows: list[pa.RecordBatch], paths: list[str]) -> OperatorPartDocument:
        table = pa.Table.from_batches(rows).combine_chunks()
        columns = [column.combine_chunks() for column in table.columns]
        structs = pa.StructArray.from_arrays(columns, fields=list(self._type))
        schema = pa.schema([pa.field(self._name, self._type, nullable=False)])
        streams = CheckpointStreamFactory(
            self._storage, inline_bytes=self._inline_bytes, new_id=self._new_id, paths=paths
        )
        return write_part(
            streams, f"data/{self._uid}/{self._name}", pa.RecordBatch.from_arrays([structs], schema=schema), {}
        )


class PreparedTask:
    """A sink that rows are streamed to; what names them is kept until the checkpoint is committed."""

    def __init__(
        self, sink: PreparingSink, store_id: str, uid: str, subtask: int, attempt: str, kept: KeptRows
    ) -> None:
        self._sink = sink
        self._kept = kept
        self._uid = uid
        with explained(uid, "writer"):
            self._writer: SinkWriter = sink.writer(store_id, uid, subtask, attempt)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def freeze(self, epoch: int) -> WriteParts | None:
        with explained(self._uid, f"prepare of checkpoint {epoch}"):
            committables = self._writer.prepare(epoch)
        if committables.num_rows:
            self._kept.write(committables.cast(self._sink.committable_schema))
        return self._kept.freeze(epoch)

    def completed(self, epoch: int) -> None:
        self._kept.completed(epoch)

    def close(self) -> None:
        self._writer.abort()
        self._kept.close()


class DirectTask:
    """A sink that gets rows when they come, and again after a restart."""

    def __init__(self, sink: DirectSink, store_id: str, uid: str, subtask: int) -> None:
        self._sink = sink
        self._subtask = subtask
        self._closed = False
        with explained(uid, "open"):
            sink.open(store_id, uid)

    def write(self, batch: pa.RecordBatch) -> None:
        self._sink.write(batch, self._subtask)

    def freeze(self, epoch: int) -> WriteParts | None:  # noqa: ARG002
        return None

    def completed(self, epoch: int) -> None:
        pass

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._sink.close()
