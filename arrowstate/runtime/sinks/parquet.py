"""Sinks of Parquet files in a folder: one for each checkpoint and subtask, named for them.

The name is what makes it exactly once: a file of the name that exists has the rows. It gets its name when it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from arrowstate.errors import InvalidInputError, MissingFileError
from arrowstate.runtime.connectors import PreparingSink, Sink, SinkWriter, Token
from arrowstate.runtime.sinks.parquet_folder import OpenFolder, ParquetFolder, file_name

_GROUP_ROWS = 1 << 18
_GROUP_BYTES = 64 << 20


class ParquetSink(Sink):
    """Writes the rows of each checkpoint to a folder, as a Parquet file for each subtask that has rows: exactly once.

    A file is called `<uid of the sink>-<checkpoint id, of 20 digits>-<subtask>.parquet`, so the names of a sink are in
    the order of the checkpoints. A file is visible only when it is complete: it is written under a hidden name first,
    or in one request to an object storage. Readers must leave out names that begin with `.`. Do not delete files while
    the job may go on: after a failure the rows of the newest checkpoint are sent again, and written again if their file
    is gone.

    Parameters
    ----------
    folder : str or PathLike
        A local folder, made where there is none, or a URL that fsspec opens.
    storage_options : mapping, optional
        Options of the fsspec filesystem.
    compression : str, default "zstd"
        The codec of Parquet: `zstd`, `snappy`, `gzip`, `brotli`, `lz4` or `none`.

    Raises
    ------
    InvalidInputError
        If there is no such codec; from a commit, if the file of the name has the rows of another job, which must have
        a folder or a uid of its own.

    Examples
    --------
    >>> import os, tempfile, pyarrow as pa
    >>> from arrowstate.runtime import ParquetSink, Token
    >>> folder = tempfile.TemporaryDirectory()
    >>> sink = ParquetSink(folder.name)
    >>> sink.open("0b7e", "totals")
    >>> for attempt in (1, 2):
    ...     sink.commit(pa.table({"user": ["ann"], "total": [3]}), Token("0b7e", "totals", checkpoint_id=7, subtask=0))
    >>> os.listdir(folder.name)
    ['totals-00000000000000000007-0.parquet']
    >>> sink.close(); folder.cleanup()
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        compression: str = "zstd",
    ) -> None:
        self.folder = ParquetFolder(folder, storage_options, compression)

    def open(self, store_id: str, uid: str) -> None:
        """Make the folder, and delete what killed commits of this sink have left in it."""
        folder = self.folder.open()
        folder.make()
        folder.delete_hidden(store_id, uid)

    def commit(self, rows: pa.Table, token: Token) -> None:
        """Write the file of a checkpoint and subtask, unless it is there; no rows are no file."""
        if not rows.num_rows:
            return
        folder = self.folder.open()
        name = file_name(token)
        if folder.has(name):
            folder.check_own(name, str(token))
            return
        if folder.has_objects:
            folder.put(name, rows, str(token))
            return
        hidden = folder.hidden_name(token.store_id, token.uid)
        try:
            with folder.create(hidden) as file:
                writer = folder.writer(file, rows.schema)
                writer.write_table(rows)
                folder.finish(writer, file, str(token))
            folder.show(hidden, name, str(token))
        except BaseException:
            folder.delete(hidden)
            raise


class BulkParquetSink(PreparingSink):
    """Writes rows to Parquet files as they come, and shows them when their checkpoint is committed: exactly once.

    The files are those of `ParquetSink`, but the rows are not part of the checkpoint. So much data is written only
    once. After a union there may be several files for a subtask, and `-1`, `-2` and so on follow its number. Until the
    commit the files have hidden names, which begin with `.`. Files of killed attempts are deleted when the job starts
    again. On an object storage files are copied to their names, because it cannot rename.

    Parameters
    ----------
    folder : str or PathLike
        A local folder, made where there is none, or a URL that fsspec opens. All slots must reach it.
    storage_options : mapping, optional
        Options of the fsspec filesystem.
    compression : str, default "zstd"
        The codec of Parquet: `zstd`, `snappy`, `gzip`, `brotli`, `lz4` or `none`.

    Raises
    ------
    InvalidInputError
        If there is no such codec; from a commit, if the file of the name has the rows of another job, which must have
        a folder or a uid of its own.
    MissingFileError
        From a commit, if a file that was prepared is neither hidden nor shown: its rows are lost.

    Examples
    --------
    >>> import os, tempfile, pyarrow as pa
    >>> from arrowstate.runtime import BulkParquetSink
    >>> folder = tempfile.TemporaryDirectory()
    >>> sink = BulkParquetSink(folder.name)
    >>> writer = sink.writer("0b7e", "totals", subtask=0, attempt="1")
    >>> writer.write(pa.record_batch({"user": ["ann"], "total": [3]}))
    >>> prepared = writer.prepare(checkpoint_id=7)
    >>> for attempt in (1, 2):
    ...     sink.commit(prepared)
    >>> os.listdir(folder.name)
    ['totals-00000000000000000007-0.parquet']
    >>> folder.cleanup()
    """

    committable_schema = pa.schema(dict.fromkeys(("name", "hidden_name", "token"), pa.string()))

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        compression: str = "zstd",
    ) -> None:
        self.folder = ParquetFolder(folder, storage_options, compression)

    def check_schema(self, uid: str, schema: pa.Schema) -> None:
        """Refuse columns that Parquet has no type for."""
        for field in schema:
            try:
                pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
            except (pa.ArrowException, OSError) as error:
                raise InvalidInputError(
                    f"sink {uid!r}: column {field.name!r} is {field.type}, which Parquet cannot hold: {error}; make it "
                    "another type before, with map_batches"
                ) from None

    def writer(self, store_id: str, uid: str, subtask: int, attempt: str) -> SinkWriter:  # noqa: ARG002
        """Return a writer for a slot."""
        folder = self.folder.open()
        folder.make()
        return _FileWriter(folder, store_id, uid, subtask)

    def commit(self, committables: pa.RecordBatch) -> None:
        """Give files their names."""
        folder = self.folder.open()
        for name, row in _by_name(committables):
            hidden, token = row["hidden_name"], row["token"]
            if folder.has(name):
                folder.check_own(name, token)
                folder.delete(hidden)
            elif folder.has(hidden):
                folder.show(hidden, name, token)
            else:
                raise MissingFileError(self.folder.url, name)

    def recover(self, store_id: str, uid: str, committed: pa.RecordBatch) -> None:  # noqa: ARG002
        """Delete the hidden files of this sink: what is committed is hidden no more."""
        self.folder.open().delete_hidden(store_id, uid)


def _by_name(committables: pa.RecordBatch) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield files with their names: of a union a subtask has several, which would all be called the same."""
    found: dict[str, int] = {}
    # The commit of a token has all of its files, so each has the same name whenever it is made again.
    for row in sorted(committables.to_pylist(), key=lambda row: str(row["hidden_name"])):
        name: str = row["name"]
        number = found[name] = found.get(name, -1) + 1
        yield name if not number else f"{name.removesuffix('.parquet')}-{number}.parquet", row


class _FileWriter(SinkWriter):
    """Writes a hidden file for each checkpoint."""

    def __init__(self, folder: OpenFolder, store_id: str, uid: str, subtask: int) -> None:
        self._folder = folder
        self._names = store_id, uid
        self._subtask = subtask
        self._open: tuple[str, Any, Any] | None = None
        self._waiting: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows, and write them when they are worth a row group."""
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        many = sum(batch.num_rows for batch in self._waiting) >= _GROUP_ROWS
        if many or sum(batch.nbytes for batch in self._waiting) >= _GROUP_BYTES:
            self._flush()

    def prepare(self, checkpoint_id: int) -> pa.RecordBatch:
        """Finish the file, and return what it is called and will be called."""
        self._flush()
        schema = BulkParquetSink.committable_schema
        if self._open is None:
            return pa.RecordBatch.from_pylist([], schema=schema)
        (hidden, file, writer), self._open = self._open, None
        token = Token(*self._names, checkpoint_id, self._subtask)
        self._folder.finish(writer, file, str(token))
        row = {"name": file_name(token), "hidden_name": hidden, "token": str(token)}
        return pa.RecordBatch.from_pylist([row], schema=schema)

    def abort(self) -> None:
        """Delete the file that is being written."""
        self._waiting.clear()
        if self._open is not None:
            (hidden, file, writer), self._open = self._open, None
            writer.close()
            file.close()
            self._folder.delete(hidden)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting)
        if self._open is None:
            hidden = self._folder.hidden_name(*self._names)
            file = self._folder.create(hidden)
            self._open = hidden, file, self._folder.writer(file, rows.schema)
        self._open[2].write_table(rows)
        self._waiting.clear()
