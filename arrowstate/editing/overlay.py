"""A store with files that it does not have yet: what an edit has written so far, over what the store holds.

Everything that reads a store reads this one, so a checkpoint that is not committed is queried, compared and verified as
any other. Nothing that is written here reaches the store.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from arrowstate.storage.base import Outcome, Storage
from arrowstate.storage.local import LocalStorage
from arrowstate.storage.posix import storage_errors


class Overlay:
    """Reads what was written here, and below it a store; writes to a temporary folder of its own."""

    def __init__(self, base: Storage, folder: str | Path | None = None) -> None:
        with storage_errors(f"a temporary folder in {folder or tempfile.gettempdir()}"):
            self._folder = tempfile.TemporaryDirectory(prefix="arrowstate-edit-", dir=folder)
        self._base = base
        self.url = base.url
        self._own = LocalStorage(self.folder / "files", create=True)
        self.written: set[str] = set()
        "The paths of the files that were written here."

    def close(self) -> None:
        """Delete the temporary folder."""
        self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """The temporary folder."""
        return Path(self._folder.name)

    @property
    def own(self) -> Storage:
        """What was written here alone."""
        return self._own

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self._place(path).read(path, start, length)

    def open_buffer(self, path: str) -> pa.Buffer:
        return self._place(path).open_buffer(path)

    def local_path(self, path: str) -> Path | None:
        """Return where a file lies on the local file system, None where it does not."""
        locate = getattr(self._place(path), "local_path", None)
        return None if locate is None else locate(path)

    def identity(self, path: str) -> Any:
        """Return what changes where a local file is altered or replaced, None for what is no local file."""
        place = self._own if path in self.written else self._base
        identity = getattr(place, "identity", None)
        return None if identity is None else identity(path)

    @property
    def requests_at_once(self) -> int:
        return getattr(self._base, "requests_at_once", 1)

    def put_if_absent(self, path: str, data: bytes, commit_id: str) -> Outcome:
        outcome = self._own.put_if_absent(path, data, commit_id)
        self.written.add(path)
        return outcome

    @contextmanager
    def write_file(self, path: str) -> Iterator[BinaryIO]:
        with self._own.write_file(path) as file:
            yield file
        self.written.add(path)

    def put_hint(self, path: str, data: bytes) -> None:
        self._own.put_hint(path, data)

    def list_unfinished(self) -> list[str]:
        return self._own.list_unfinished()

    def delete_unfinished(self, name: str) -> None:
        self._own.delete_unfinished(name)

    def list(self, prefix: str) -> list[str]:
        return sorted({*self._base.list(prefix), *self._own.list(prefix)})

    def exists(self, path: str) -> bool:
        return path in self.written or self._base.exists(path)

    def delete(self, path: str) -> None:
        """Delete what was written here; what the store holds stays."""
        self._own.delete(path)
        self.written.discard(path)

    def _place(self, path: str) -> Storage:
        return self._own if path in self.written else self._base
