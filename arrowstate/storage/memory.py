"""A storage in the memory of this process, for tests and for trying things out.

All files live in one mapping from absolute path to bytes, so that a store and a savepoint in a
folder of it see each other as they would on disk. Another process has a mapping of its own. A file has a largest
size, because a state that is kept twice in the memory of its job should not be large.
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

MAX_FILE_BYTES = 5_242_880
"""The largest file by default: 5 MiB."""

_LOCK = threading.Lock()
_FILES: dict[str, bytes] = {}
_FOLDERS: set[str] = set()


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
                _FOLDERS.add(self._folder)
            elif self._folder not in _FOLDERS and not any(path.startswith(self._folder) for path in _FILES):
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
        with _LOCK:
            body = _FILES.setdefault(self._key(path), bytes(data))
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
            if key in _FILES:
                raise NameTakenError(path, self._url)
            _FILES[key] = file.getvalue()

    def put_hint(self, path: str, data: bytes) -> None:
        """See `Storage.put_hint`."""
        with _LOCK:
            _FILES[self._key(path)] = bytes(data)

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
            return sorted(path[len(self._folder) :] for path in _FILES if path.startswith(start))

    def exists(self, path: str) -> bool:
        """See `Storage.exists`."""
        key = self._key(path)
        with _LOCK:
            return key in _FILES

    def delete(self, path: str) -> None:
        """See `Storage.delete`."""
        key = self._key(path)
        with _LOCK:
            _FILES.pop(key, None)

    def _key(self, path: str) -> str:
        return self._folder + check_path(path)

    def _get(self, path: str) -> bytes:
        key = self._key(path)
        with _LOCK:
            body = _FILES.get(key)
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
        for path in [path for path in _FILES if path.startswith(folder)]:
            del _FILES[path]
        _FOLDERS.difference_update([known for known in _FOLDERS if known.startswith(folder)])


def _folder(url: str) -> str:
    """The part of a URL that its files begin with: components with a slash after each."""
    return "".join(f"{part}/" for part in url.partition("://")[2].split("/") if part)
