"""A folder of local copies of the files of remote storages, mapped by the processes that read them.

A copy is named by what it is a copy of, the storage and the path, so that it can be removed with the file. It ends with
a checksum of its content and of the version that the storage gives it, which is compared whenever it is opened, so that
a copy that was damaged or torn, or is of another version, is fetched again and never read. Copies appear under their
name by a rename and are removed by name only, so that many processes share a folder, and a mapped copy stays valid
after its removal. The least recently used copies make room for new ones. How many bytes there are stands in the file
that processes lock, so that the folder is walked once in a while and not for each file.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import struct
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash
from msgspec import Struct

from arrowstate.errors import InvalidInputError, StorageError
from arrowstate.storage.posix import WRITE_BUFFER_BYTES, CheckedFile, storage_errors
from arrowstate_formats import system

_CHECKSUM_BYTES = 16
_TEMPORARY = ".tmp-"
# Whatever else is in the folder is not of the cache.
_IS_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{32}").fullmatch
_IS_COPY = re.compile(r"[0-9a-f]{64}").fullmatch
_LOCK = ".lock"
_COUNTED = struct.Struct("<qq")
_SHARE = 16
"""The folder is walked again after a sixteenth as many new copies as there are."""
_DEFAULT_BYTES = 10 << 30
_logger = logging.getLogger("arrowstate.storage")


class CacheUse(Struct, frozen=True):
    """How often the caches of this process were asked for a file."""

    hits: int
    """How often there was a copy."""
    misses: int
    """How often the file was fetched."""

    def since(self, before: CacheUse) -> CacheUse:
        """Return what came after an earlier count."""
        return CacheUse(self.hits - before.hits, self.misses - before.misses)


class _Counter:
    """Counts in all threads of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.use = CacheUse(0, 0)

    def add(self, *, hit: bool) -> None:
        with self._lock:
            self.use = CacheUse(self.use.hits + hit, self.use.misses + (not hit))


_counter = _Counter()


def cache_use() -> CacheUse:
    """Return how often this process has asked its caches for files, since it started.

    Files of local storages go through no cache and do not count.
    """
    return _counter.use


def default_cache_folder() -> Path:
    """Return `arrowstate` in the user's cache folder: `XDG_CACHE_HOME`, or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arrowstate"


class LocalFile(Struct, frozen=True):
    """A local file that is being filled: a copy, or what is about to be uploaded. It goes when its block ends."""

    location: Path
    """Where it is; a name that nobody else uses."""
    descriptor: int
    """Open for reading and writing until the block ends, whoever closes the sink."""
    sink: io.BufferedWriter[Any]

    def finish(self) -> int:
        """Flush the sink and return how many bytes the file has."""
        if not self.sink.closed:
            self.sink.flush()
        return os.fstat(self.descriptor).st_size

    def read(self, length: int, start: int = 0) -> bytes:
        """Return at most `length` bytes from `start` on, of what was flushed."""
        with storage_errors(str(self.location)), self.location.open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(length)

    def write_at(self, start: int, data: bytes) -> None:
        """Write all of `data` at a place; from several threads, but not beside the sink."""
        with storage_errors(str(self.location)), self.location.open("r+b", buffering=0) as file:
            file.seek(start)
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]


@dataclass(frozen=True, slots=True)
class FileCache:
    """Local copies of remote files, bounded in bytes and shared by processes."""

    folder: Path
    limit_bytes: int = _DEFAULT_BYTES

    def __post_init__(self) -> None:
        if self.limit_bytes < 0:
            raise InvalidInputError(f"the size of a cache must be at least 0 bytes, got {self.limit_bytes}")

    def open(self, identity: str, size: int, fetch: Callable[[LocalFile], None], *, version: str = "") -> pa.Buffer:
        """Return a file as a memory map, from a copy or by fetching it."""
        location = self.folder / _name(identity)
        found = self._mapped(location, size, version)
        _counter.add(hit=found is not None)
        if found is not None:
            return found
        with self.new_file(identity) as file:
            fetch(file)
            got = file.finish()
            if got != size:
                raise StorageError(identity, f"got {got} bytes, expected {size}")
            with storage_errors(str(file.location)):
                buffer = _map(file.location)
                self._keep(file, buffer, location, version)
            return buffer

    def adopt(self, identity: str, size: int, file: LocalFile, *, version: str = "") -> None:
        """Keep a file that was filled elsewhere, here for an upload, as the copy of what it became."""
        if file.finish() == size:
            with storage_errors(str(file.location)):
                self._keep(file, _map(file.location), self.folder / _name(identity), version)

    def forget(self, identities: Iterable[str]) -> None:
        """Remove the copies of files that are deleted; whoever has mapped one keeps it until it is let go."""
        for identity in identities:
            location = self.folder / _name(identity)
            with storage_errors(str(location)):
                location.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove the files that processes which died had not filled; errors as for `forget`."""
        with storage_errors(str(self.folder)), suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                if _IS_TEMPORARY(entry.name):
                    with suppress(FileNotFoundError):
                        _remove_if_abandoned(Path(entry.path))

    @contextmanager
    def new_file(self, path: str) -> Iterator[LocalFile]:
        """Return a new empty file in the folder, in a block; `path` is what errors of writing it name."""
        with storage_errors(str(self.folder)):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            location, descriptor = self._locked_file()
        sink = io.BufferedWriter(CheckedFile(descriptor, path), WRITE_BUFFER_BYTES)
        try:
            yield LocalFile(location, descriptor, sink)
        finally:
            # What a failed write left in the buffer is not wanted any more.
            with suppress(OSError):
                sink.close()
            with suppress(OSError):
                location.unlink()
            with suppress(OSError):
                os.close(descriptor)

    def _locked_file(self) -> tuple[Path, int]:
        """A new file and its descriptor, locked: the lock goes with the process and tells that the file is in use."""
        while True:
            location = self.folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
            descriptor = os.open(location, os.O_RDWR | os.O_CREAT | os.O_EXCL | system.OPEN, 0o600)
            try:
                system.lock(descriptor, wait=True)
                # Before the lock was held, another process could take the file for one that was left behind.
                if os.fstat(descriptor).st_nlink:
                    return location, descriptor
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _keep(self, file: LocalFile, content: pa.Buffer, location: Path, version: str) -> None:
        size = content.size + _CHECKSUM_BYTES
        if size > self.limit_bytes:
            return
        file.write_at(content.size, _checksum(content, version))
        lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | system.OPEN, 0o600)
        try:
            system.lock(lock, wait=True)
            counted = os.read(lock, _COUNTED.size)
            total, more = _COUNTED.unpack(counted) if len(counted) == _COUNTED.size else (0, 0)
            if more < 1 or total + size > self.limit_bytes:
                total, more = self._make_room(size, location.name)
            # Before the copy is there: what a process that dies leaves uncounted would be beyond the bound.
            os.lseek(lock, 0, os.SEEK_SET)
            os.write(lock, _COUNTED.pack(total + size, more - 1))
            file.location.replace(location)
        finally:
            os.close(lock)

    def _make_room(self, size: int, replaced: str) -> tuple[int, int]:
        """Remove the least recently used copies until `size` more bytes fit, and files whose process died.

        Returns how many bytes there are, and how many copies may be added before the folder is walked again. Where
        there is no room for so many, a sixteenth of the copies goes besides.
        """
        kept = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    if _IS_TEMPORARY(entry.name):
                        _remove_if_abandoned(Path(entry.path))
                    elif _IS_COPY(entry.name) and entry.name != replaced:
                        status = entry.stat()
                        kept.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(item[1] for item in kept)
        more = len(kept) // _SHARE
        spare = more if total + size * max(more, 1) > self.limit_bytes else 0
        for _, bytes, path in sorted(kept):
            if total + size <= self.limit_bytes:
                if spare < 1:
                    break
                spare -= 1
            Path(path).unlink(missing_ok=True)
            total -= bytes
        return total, more

    def _mapped(self, location: Path, size: int, version: str) -> pa.Buffer | None:
        """The content of a copy, None if there is none; a damaged one, or one of another version, is removed."""
        try:
            buffer = _map(location)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(str(location), str(error)) from error
        if buffer.size == size + _CHECKSUM_BYTES:
            content = buffer.slice(0, size)
            if buffer.slice(size).to_pybytes() == _checksum(content, version):
                with suppress(OSError):
                    os.utime(location)
                return content
        _logger.warning("the local copy %s is damaged, or of another version; it is fetched again", location)
        with storage_errors(str(location)):
            location.unlink(missing_ok=True)
        return None


def _name(identity: str) -> str:
    # Cryptographic: a name that two files share would give one the content of the other.
    return hashlib.sha256(identity.encode()).hexdigest()


def _checksum(content: pa.Buffer, version: str) -> bytes:
    digest = xxhash.xxh3_128(memoryview(content))
    digest.update(version.encode())
    return digest.digest()


def _map(location: Path) -> pa.Buffer:
    with pa.memory_map(str(location)) as mapped:
        return mapped.read_buffer()


def _remove_if_abandoned(location: Path) -> None:
    """Remove a temporary file whose process is gone, which nobody holds the lock of."""
    descriptor = os.open(location, os.O_RDWR | system.OPEN)
    try:
        if system.lock(descriptor, wait=False):
            location.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
