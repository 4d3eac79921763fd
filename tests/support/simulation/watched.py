"""A storage that tells the oracle of each change, below everything that goes wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow as pa

from arrowstate.storage.base import Outcome, Storage
from simulation.oracle import Oracle

__all__ = ["WatchedStorage"]


class WatchedStorage:
    """A storage, or a folder of it, that tells the oracle of each change, and adds what it creates to `made`."""

    def __init__(self, storage: Storage, oracle: Oracle, folder: str, made: list[str]) -> None:
        self._storage = storage
        self._oracle = oracle
        self._folder = folder
        self._made = made

    @property
    def url(self) -> str:
        """The URL of the storage itself."""
        return self._storage.url

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """See `Storage.read`."""
        return self._storage.read(path, start, length)

    def open_buffer(self, path: str) -> pa.Buffer:
        """See `Storage.open_buffer`."""
        return self._storage.open_buffer(path)

    def put_if_absent(self, path: str, data: bytes, commit_id: str) -> Outcome:
        """See `Storage.put_if_absent`."""
        outcome = self._storage.put_if_absent(path, data, commit_id)
        if outcome is Outcome.WON:
            self._created(path)
        return outcome

    @contextmanager
    def write_file(self, path: str) -> Iterator[BinaryIO]:
        """See `Storage.write_file`."""
        with self._storage.write_file(path) as file:
            yield file
        self._created(path)

    def put_hint(self, path: str, data: bytes) -> None:
        """See `Storage.put_hint`."""
        self._storage.put_hint(path, data)
        if path.startswith("log/"):
            self._created(path)
        self._oracle.hinted()

    def list_unfinished(self) -> list[str]:
        """See `Storage.list_unfinished`."""
        return self._storage.list_unfinished()

    def delete_unfinished(self, name: str) -> None:
        """See `Storage.delete_unfinished`."""
        self._storage.delete_unfinished(name)

    def list(self, prefix: str) -> list[str]:
        """See `Storage.list`."""
        return self._storage.list(prefix)

    def exists(self, path: str) -> bool:
        """See `Storage.exists`."""
        return self._storage.exists(path)

    def delete(self, path: str) -> None:
        """See `Storage.delete`."""
        self._storage.delete(path)
        self._oracle.deleted(self._folder + path)

    def _created(self, path: str) -> None:
        self._made.append(self._folder + path)
        self._oracle.created(self._folder + path)
