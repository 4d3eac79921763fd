"""A storage that counts its requests and may wait with each, as a service at the other end of a network does."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa

from arrowstate.storage.base import Outcome, Storage, listed_pages, many_deletions

__all__ = ["SlowStorage"]

_KEYS_PER_PAGE = 1000
"""So many names S3 returns in an answer to a listing, and takes in one request that deletes."""


class SlowStorage:
    """Wraps a storage; each request is counted and takes `seconds` longer.

    Parameters
    ----------
    storage
        What is wrapped.
    seconds
        How long each request waits, 0 or more; a listing does for each page of 1,000 names.
    deletes_together
        Whether it deletes 1,000 files with a request, as S3 does and others do not.
    """

    files_at_once = 4
    requests_at_once = 64

    def __init__(self, storage: Storage, seconds: float = 0.0, *, deletes_together: bool = False) -> None:
        self._storage = storage
        self._seconds = seconds
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.bytes_read = 0
        if deletes_together:
            self.delete_many = self._delete_many

    def reset(self) -> None:
        """Count from 0 again."""
        self.requests, self.bytes_read = Counter(), 0

    @property
    def url(self) -> str:
        return self._storage.url

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._request("read")
        data = self._storage.read(path, start, length)
        self._add_bytes(len(data))
        return data

    def open_buffer(self, path: str) -> pa.Buffer:
        self._request("open_buffer")
        buffer = self._storage.open_buffer(path)
        self._add_bytes(buffer.size)
        return buffer

    def put_if_absent(self, path: str, data: bytes, commit_id: str) -> Outcome:
        self._request("put_if_absent")
        return self._storage.put_if_absent(path, data, commit_id)

    @contextmanager
    def write_file(self, path: str) -> Iterator[BinaryIO]:
        with self._storage.write_file(path) as file:
            yield file
            self._request("write_file")

    def put_hint(self, path: str, data: bytes) -> None:
        self._request("put_hint")
        self._storage.put_hint(path, data)

    def list_unfinished(self) -> list[str]:
        self._request("list_unfinished")
        return self._storage.list_unfinished()

    def delete_unfinished(self, name: str) -> None:
        self._request("delete_unfinished")
        self._storage.delete_unfinished(name)

    def exists(self, path: str) -> bool:
        self._request("exists")
        return self._storage.exists(path)

    def delete(self, path: str) -> None:
        self._request("delete")
        self._storage.delete(path)

    def list(self, prefix: str) -> list[str]:
        found = self._storage.list(prefix)
        self._request("list", max(1, -(-len(found) // _KEYS_PER_PAGE)))
        return found

    def list_pages(self, prefix: str) -> Iterator[list[str]]:  # type: ignore[valid-type]
        for page in listed_pages(self._storage, prefix):
            self._request("list")
            yield page

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def _delete_many(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _KEYS_PER_PAGE):
            self._request("delete_many")
            with many_deletions(self._storage):
                for path in paths[start : start + _KEYS_PER_PAGE]:
                    self._storage.delete(path)

    def _request(self, verb: str, times: int = 1) -> None:
        with self._lock:
            self.requests[verb] += times
        if self._seconds:
            time.sleep(self._seconds * times)

    def _add_bytes(self, size: int) -> None:
        with self._lock:
            self.bytes_read += size
