"""A storage in the memory of this process, for tests and for trying things out.

All files of the process are in one tree of folders, so that a store and a savepoint in a folder of it see each other as
they would on disk, and listing a store takes no longer for the other stores there are. Another process has a tree of
its own. A file has a largest size, because a state that is kept twice in the memory of its job should not be large.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa

from arrowstate.errors import (
    CorruptDataError,
    FileTooLargeError,
    InvalidInputError,
    MissingFileError,
    NameTakenError,
    StoreNotFoundError,
)
from arrowstate.storage.base import Outcome, check_commit, check_path, check_prefix, check_range, is_ours
from arrowstate_formats import system

MAX_FILE_BYTES = 5_242_880
"""The largest file by default: 5 MiB."""


class _Tree:
    """Files by their absolute paths, and by folder what is in it; the path of a folder ends with a slash."""

    def __init__(self) -> None:
        self._bodies: dict[str, bytes] = {}
        self._names: dict[str, set[str]] = {}

    def get(self, path: str) -> bytes | None:
        """Return what a file has, None if there is no such file."""
        return self._bodies.get(path)

    def put(self, path: str, body: bytes) -> None:
        """Make or replace a file, and the folders above it."""
        self._bodies[path] = body
        while path:
            folder, name = _parted(path)
            names = self._names.setdefault(folder, set())
            if name in names:
                return
            names.add(name)
            path = folder

    def remove(self, path: str) -> None:
        """Remove a file if it is there, and the folders that are empty then."""
        if self._bodies.pop(path, None) is None:
            return
        while path:
            folder, name = _parted(path)
            names = self._names[folder]
            names.remove(name)
            if names:
                return
            del self._names[folder]
            path = folder

    def has_folder(self, folder: str) -> bool:
        """Say whether there is a file below a folder."""
        return folder in self._names

    def under(self, prefix: str) -> list[str]:
        """Return the files whose paths begin so, sorted."""
        folder, begin = prefix[: prefix.rfind("/") + 1], prefix[prefix.rfind("/") + 1 :]
        paths = [folder + name for name in self._names.get(folder, ()) if name.startswith(begin)]
        found = []
        while paths:
            path = paths.pop()
            if path.endswith("/"):
                paths += [path + name for name in self._names[path]]
            else:
                found.append(path)
        return sorted(found)


def _parted(path: str) -> tuple[str, str]:
    """Return the folder that a file or a folder is in, and its name there."""
    start = path.rfind("/", 0, len(path) - 1) + 1
    return path[:start], path[start:]


_LOCK = system.forks_wait_for(threading.RLock())
_TREE = _Tree()
_MADE: set[str] = set()
"""The folders that were made, with or without files."""


class MemoryStorage:
    """Files under a `memory://` URL; see `Storage` for what each method promises."""

    def __init__(self, url: str, *, create: bool = False, max_file_bytes: int | None = MAX_FILE_BYTES) -> None:
        if max_file_bytes is not None and (type(max_file_bytes) is not int or max_file_bytes < 1):
            raise InvalidInputError(
                f"max_file_bytes must be a number of bytes of at least 1, or None for no limit, got {max_file_bytes!r}"
            )
        self._max_file_bytes = max_file_bytes
        self._folder = _folder(url)
        self._url = f"memory://{self._folder.removesuffix('/')}"
        with _LOCK:
            if create:
                _MADE.add(self._folder)
            elif self._folder not in _MADE and not _TREE.has_folder(self._folder):
                raise StoreNotFoundError(self._url)

    @property
    def url(self) -> str:
        """The URL without slashes at its end."""
        return self._url

    @property
    def options(self) -> dict[str, Any]:
        """What `open_storage` takes as `storage_options` to open this storage again."""
        return {"max_file_bytes": self._max_file_bytes}

    def __repr__(self) -> str:
        return f"MemoryStorage({self._url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.options), (self._url,)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """See `Storage.read`."""
        check_range(start, length)
        return self._get(path)[start : None if length is None else start + length]

    def open_buffer(self, path: str) -> pa.Buffer:
        """See `Storage.open_buffer`."""
        return pa.py_buffer(self._get(path))

    def put_if_absent(self, path: str, data: bytes, commit_id: str) -> Outcome:
        """See `Storage.put_if_absent`."""
        check_commit(data, commit_id)
        key = self._key(path)
        with _LOCK:
            body = _TREE.get(key)
            if body is None:
                body = bytes(data)
                _TREE.put(key, body)
        return Outcome.WON if is_ours(body, commit_id) else Outcome.LOST

    @contextmanager
    def write_file(self, path: str) -> Iterator[BinaryIO]:
        """See `Storage.write_file`."""
        key = self._key(path)
        file = _KeptOpen(self._max_file_bytes)
        yield file
        if self._max_file_bytes is not None and file.size_bytes > self._max_file_bytes:
            raise FileTooLargeError(path, file.size_bytes, self._max_file_bytes, self._url)
        with _LOCK:
            if _TREE.get(key) is not None:
                raise NameTakenError(path, self._url)
            _TREE.put(key, file.getvalue())

    def put_hint(self, path: str, data: bytes) -> None:
        """See `Storage.put_hint`."""
        with _LOCK:
            _TREE.put(self._key(path), bytes(data))

    def list_unfinished(self) -> list[str]:
        """See `Storage.list_unfinished`. A file that is being written goes with its process."""
        return []

    def delete_unfinished(self, name: str) -> None:
        """See `Storage.delete_unfinished`."""
        raise CorruptDataError(name, "the memory has no unfinished files")

    def list(self, prefix: str) -> list[str]:
        """See `Storage.list`."""
        start = self._folder + check_prefix(prefix)
        with _LOCK:
            return [path[len(self._folder) :] for path in _TREE.under(start)]

    def exists(self, path: str) -> bool:
        """See `Storage.exists`."""
        key = self._key(path)
        with _LOCK:
            return _TREE.get(key) is not None

    def delete(self, path: str) -> None:
        """See `Storage.delete`."""
        key = self._key(path)
        with _LOCK:
            _TREE.remove(key)

    def _key(self, path: str) -> str:
        return self._folder + check_path(path)

    def _get(self, path: str) -> bytes:
        key = self._key(path)
        with _LOCK:
            body = _TREE.get(key)
        if body is None:
            raise MissingFileError(self._url, path)
        return body


class _KeptOpen(io.RawIOBase, BinaryIO):
    """Bytes that a writer may close without losing them: the end of the block decides, as on disk.

    Past the limit they are counted and no longer kept, so that a refusal can say how large the file is.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._kept = io.BytesIO()
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        self.size_bytes += size
        if self._limit is None or self.size_bytes <= self._limit:
            self._kept.write(data)
        return size

    def tell(self) -> int:
        return self.size_bytes

    def getvalue(self) -> bytes:
        return self._kept.getvalue()

    def close(self) -> None:
        pass


def clear_memory_storage(url: str = "memory://") -> None:
    """Forget the files under a URL, all by default, as the end of the process would."""
    folder = _folder(url)
    with _LOCK:
        for path in _TREE.under(folder):
            _TREE.remove(path)
        _MADE.difference_update([known for known in _MADE if known.startswith(folder)])


def _folder(url: str) -> str:
    """The part of a URL that its files begin with: components with a slash after each."""
    return "".join(f"{part}/" for part in url.partition("://")[2].split("/") if part)
