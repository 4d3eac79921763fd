"""From bytes to handles: what is small is kept in the handle, anything else becomes a file, durable before it is named.

Whatever a snapshot is made of goes through a stream of its own: runs, deletion vectors, directories, manifests, the
parts of operator state. A stream holds no more than its threshold in memory; from there on it passes bytes to the
storage as they come. It ends in a handle, or without a trace.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, BinaryIO

import xxhash
from msgspec import Struct

from arrowstate.errors import CheckpointCancelledError, InvalidInputError, NameTakenError
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import encode_inline
from arrowstate_formats.run_files import INLINE_BYTES


def never() -> bool:
    """The answer of a checkpoint that nobody cancels."""
    return False


class StreamStateHandle(Struct, frozen=True):
    """Where the bytes of a stream are: a byte-stream handle has them with it, a file handle says which file does."""

    size_bytes: int
    "At least 1."
    xxh3_128: str
    "Checksum of the bytes, 32 hexadecimal digits."
    path: str | None = None
    "The file, durable; None for a byte-stream handle."
    data: bytes | None = None
    "The bytes; None for a file handle."

    @property
    def inline(self) -> str | None:
        """The bytes as documents keep them, in base64; None for a file handle."""
        return None if self.data is None else encode_inline(self.data)


@dataclass(frozen=True, slots=True)
class CheckpointStreamFactory:
    """Makes the streams that a snapshot is written through."""

    storage: Storage
    _: KW_ONLY
    inline_bytes: int = INLINE_BYTES
    "From this size on, at least 0, bytes become a file; with 0 all do."
    new_id: Callable[[], str]
    "Returns a name at each call that no file ever had."
    cancelled: Callable[[], bool] = never
    "Asked before each stream, before each write and before a file is made durable; once true, the stream is given up."
    paths: list[str] = field(default_factory=list)
    "Takes the path of each file when it is durable."

    def create(
        self, folder: str, suffix: str, *, id: str | None = None, hashing: bool = True
    ) -> CheckpointOutputStream:
        """Return a new stream."""
        if self.cancelled():
            raise CheckpointCancelledError
        return CheckpointOutputStream(self, folder, suffix, id, hashing)

    def put(
        self, folder: str, suffix: str, data: Any, *, id: str | None = None, xxh3_128: str | None = None
    ) -> StreamStateHandle:
        """Write bytes that are at hand, at least one, and return their handle; see `create`."""
        size = memoryview(data).nbytes
        if 0 < size < self.inline_bytes:
            if self.cancelled():
                raise CheckpointCancelledError
            return StreamStateHandle(size, xxh3_128 or xxhash.xxh3_128_hexdigest(data), data=bytes(data))
        with self.create(folder, suffix, id=id, hashing=xxh3_128 is None) as stream:
            stream.write(data)
            handle = stream.close_and_get_handle(xxh3_128)
        assert handle is not None, "something was written"
        return handle


class CheckpointOutputStream(io.BufferedIOBase, BinaryIO):
    """A binary file to write to, from one thread, that ends as a handle or leaves nothing.

    `close_and_get_handle` makes the bytes durable and returns where they are. A stream that is closed without it, by
    `close` or by the end of a `with` block, is given up: there is no file under its name, and no unfinished one.
    Folders stay. An error gives the stream up too, and is what it raises from then on: an encoder that writes a footer
    when it is closed must not hide why.
    """

    def __init__(
        self, factory: CheckpointStreamFactory, folder: str, suffix: str, id: str | None, hashing: bool
    ) -> None:
        self._factory = factory
        self._folder = folder
        self._suffix = suffix
        self._id = id
        self._digest = xxhash.xxh3_128() if hashing else None
        self._position = 0
        # The bytes before there is a file.
        self._held = bytearray()
        self._path: str | None = None
        self._block: AbstractContextManager[BinaryIO] | None = None
        self._sink: BinaryIO | None = None
        self._failure: BaseException | None = None

    def writable(self) -> bool:
        """Whether it can be written to: yes."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._position

    def write(self, data: Any, /) -> int:
        """Write all of the bytes, a buffer of any kind, and return how many they are."""
        self._check_open()
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            if self._factory.cancelled():
                raise CheckpointCancelledError
            if self._sink is None and size and self._position + size >= self._factory.inline_bytes:
                self._sink = self._open_file()
                _write_all(self._sink, memoryview(self._held))
                self._held = bytearray()
            if self._digest is not None:
                self._digest.update(rest)
            if self._sink is None:
                self._held += rest
            else:
                _write_all(self._sink, rest)
        except BaseException as error:
            self._give_up(error)
            raise
        self._position += size
        return size

    def flush(self) -> None:
        """Pass what the storage holds back on; only `close_and_get_handle` makes it durable."""
        if self._sink is None:
            return
        try:
            self._sink.flush()
        except BaseException as error:
            self._give_up(error)
            raise

    def close_and_get_handle(self, xxh3_128: str | None = None) -> StreamStateHandle | None:
        """Make the bytes durable and return where they are, or None if there are none; the stream is closed then."""
        self._check_open()
        if not self._position:
            super().close()
            return None
        if (xxh3_128 is None) == (self._digest is None):
            raise InvalidInputError("the checksum of a stream is given to it if, and only if, it does not compute it")
        digest = xxh3_128 if self._digest is None else self._digest.hexdigest()
        assert digest is not None
        try:
            if self._factory.cancelled():
                raise CheckpointCancelledError
            if self._block is None:
                handle = StreamStateHandle(self._position, digest, data=bytes(self._held))
            else:
                block, self._block, self._sink = self._block, None, None
                block.__exit__(None, None, None)
                assert self._path is not None
                self._factory.paths.append(self._path)
                handle = StreamStateHandle(self._position, digest, path=self._path)
        except BaseException as error:
            self._give_up(error)
            if self._path is not None and not isinstance(error, NameTakenError):
                # The storage may have made the file and failed then. A name that is taken is another's file.
                with suppress(OSError):
                    self._factory.storage.delete(self._path)
            raise
        super().close()
        return handle

    def close(self) -> None:
        """Give the stream up, unless it is closed; nothing is left of what was written."""
        if not self.closed:
            self._give_up(
                InvalidInputError(f"a stream to {self._folder} was closed without its handle; write another one")
            )

    def _open_file(self) -> BinaryIO:
        self._path = f"{self._folder}/{self._id or self._factory.new_id()}.{self._suffix}"
        block = self._factory.storage.write_file(self._path)
        sink = block.__enter__()
        self._block = block
        return sink

    def _give_up(self, error: BaseException) -> None:
        """Leave the block of the storage with an error: so the file never gets its name."""
        block, self._block, self._sink = self._block, None, None
        self._failure = error
        self._held = bytearray()
        super().close()
        if block is not None:
            # What the storage cannot clean up stays behind, unreferenced; the first error is the one to report.
            with suppress(OSError, type(error)):
                block.__exit__(type(error), error, error.__traceback__)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.closed:
            raise InvalidInputError(f"the handle of a stream to {self._folder} was taken; write another one")


def _write_all(sink: BinaryIO, rest: memoryview) -> None:
    while len(rest):
        # A raw file may take only a part.
        rest = rest[sink.write(rest) :]
