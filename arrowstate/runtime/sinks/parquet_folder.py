"""A folder of Parquet files that get their names when they are whole.

They say in their metadata whose rows they have, so that two jobs that write to one folder are told.
"""

from __future__ import annotations

import errno
import io
import os
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from arrowstate.errors import InvalidInputError
from arrowstate.runtime.connectors import Token
from arrowstate.storage.registry import options_of
from arrowstate_formats import system

COMPRESSIONS = ("zstd", "snappy", "gzip", "brotli", "lz4", "none")
_WHOSE = "arrowstate.token"
_OBJECTS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})
"""Where a file is not there until it is written whole."""


def file_name(token: Token) -> str:
    """Return the name of the file of a checkpoint and subtask; names of a sink are in the order of the checkpoints."""
    return f"{token.uid}-{token.checkpoint_id:020}-{token.subtask}.parquet"


class ParquetFolder:
    """The folder of a sink; pickled, and opened wherever it is used."""

    def __init__(
        self, folder: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, compression: str
    ) -> None:
        if compression not in COMPRESSIONS:
            raise InvalidInputError(f"compression must be one of {', '.join(COMPRESSIONS)}, got {compression!r}")
        path = os.fspath(folder)
        self.url = path if "://" in path else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
        self.storage_options = options_of("storage_options", storage_options)
        self.compression = compression

    def open(self) -> OpenFolder:
        """Return the folder as it is on its filesystem."""
        files, root = fsspec.core.url_to_fs(self.url, **self.storage_options)
        files.invalidate_cache()
        return OpenFolder(files, root.rstrip("/"), self.compression)


class OpenFolder:
    """The folder on its filesystem."""

    def __init__(self, files: Any, root: str, compression: str) -> None:
        self._files = files
        self._root = root
        self._compression = compression
        protocols = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
        self.is_local = "file" in protocols
        self.has_objects = not _OBJECTS.isdisjoint(protocols)

    def make(self) -> None:
        """Make the folder where there is none."""
        if not self.has_objects:
            self._files.makedirs(self._root, exist_ok=True)

    def hidden_name(self, store_id: str, uid: str) -> str:
        """Return a name that readers leave out, which no other file has."""
        return f".{uid}.{uuid.uuid4().hex}.{store_id}.tmp"

    def delete_hidden(self, store_id: str, uid: str) -> None:
        """Delete all files of a sink that were hidden and never got their names."""
        own = re.compile(rf"\.{re.escape(uid)}\.[0-9a-f]{{32}}\.{re.escape(store_id)}\.tmp")
        try:
            found = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return
        for path in found:
            name = path.rpartition("/")[2]
            if own.fullmatch(name):
                self.delete(name)

    def put(self, name: str, rows: pa.Table, token: str) -> None:
        """Make an object of rows, in one request: an object that is written to as a file is there when that is closed.

        Which it is after an error too.
        """
        body = io.BytesIO()
        writer = self.writer(body, rows.schema)
        writer.write_table(rows)
        writer.add_key_value_metadata({_WHOSE: token})
        writer.close()
        self._files.pipe_file(f"{self._root}/{name}", body.getvalue())

    def create(self, name: str) -> Any:
        """Return a new file to write to."""
        return self._files.open(f"{self._root}/{name}", "wb")

    def has(self, name: str) -> bool:
        """Whether there is a file of the name."""
        return self._files.exists(f"{self._root}/{name}")

    def delete(self, name: str) -> None:
        """Delete a file if it is there."""
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def writer(self, file: Any, schema: pa.Schema) -> pq.ParquetWriter:
        """Return what writes rows to a file."""
        return pq.ParquetWriter(file, schema, compression=self._compression)

    def finish(self, writer: pq.ParquetWriter, file: Any, token: str) -> None:
        """Write what is left of a file, and whose rows they are, so that it stays whatever happens."""
        writer.add_key_value_metadata({_WHOSE: token})
        writer.close()
        file.flush()
        if self.is_local:
            os.fsync(file.fileno())
        file.close()

    def show(self, hidden: str, name: str, token: str) -> None:
        """Give a hidden file its name, unless there is one of it."""
        source, target = f"{self._root}/{hidden}", f"{self._root}/{name}"
        if self.is_local:
            try:
                _link(source, target)
            except FileExistsError:
                self.check_own(name, token)
        elif self.has_objects:
            self._files.cp_file(source, target)
        else:
            self._files.mv(source, target)
        self.delete(hidden)

    def check_own(self, name: str, token: str) -> None:
        """Refuse a file that has the rows of another token."""
        with self._files.open(f"{self._root}/{name}", "rb") as file:
            metadata = pq.ParquetFile(file).metadata.metadata or {}
        found = metadata.get(_WHOSE.encode(), b"").decode()
        if found != token:
            raise InvalidInputError(
                f"{self._root}/{name} has the rows of {found or 'something else'}, not of {token}: two jobs write to "
                "one folder with sinks of one uid; give one of them another"
            )


def _link(source: str, target: str) -> None:
    """Give a local file a second name, for good."""
    try:
        system.give_name(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # There are filesystems without links. Rows of a token are the same whoever writes them.
        os.replace(source, target)  # noqa: PTH105
    system.sync_folder(os.path.dirname(target))  # noqa: PTH120
