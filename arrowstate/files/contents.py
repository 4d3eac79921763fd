"""What a storage keeps under a path, read piece by piece and compared with its checksum at the end."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from arrowstate.errors import CorruptDataError, MissingFileError
from arrowstate.storage.base import Storage

_PIECE_BYTES = 8 << 20


def checked_pieces(storage: Storage, path: str, size: int, xxh3_128: str) -> Iterator[bytes]:
    """Yield the bytes of a file as the storage itself has them; whether they are right is known only at the end."""
    found = xxhash.xxh3_128()
    for start in range(0, max(size, 1), _PIECE_BYTES):
        expected = min(size - start, _PIECE_BYTES)
        # The last read asks for a byte more than there should be, to find out whether there is.
        more = start + expected == size
        try:
            piece = storage.read(path, start, expected + more)
        except MissingFileError:
            raise CorruptDataError(path, "the file is missing") from None
        if len(piece) != expected:
            raise CorruptDataError(path, f"the file does not have {size} bytes")
        found.update(piece)
        yield piece
    if found.hexdigest() != xxh3_128:
        raise CorruptDataError(path, f"the file has checksum {found.hexdigest()}, expected {xxh3_128}")
