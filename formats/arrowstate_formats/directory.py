"""The directory beside a run file: where each bucket of key hashes begins.

A bucket is all hashes with the same `(hash - base) >> shift`, taken on unsigned 64-bit values; `offsets[b]` is
the first row of bucket b and the last offset the end of the last bucket, as row numbers of the file. A directory can be
rebuilt from the run in one pass; it is stored so that a process that maps the file can probe at once.
Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate_formats.errors import CorruptDataError, InvalidInputError
from arrowstate_formats.run_files import checksum

_COLUMN = "offsets"


def write_directory(base: int, shift: int, offsets: npt.NDArray[np.uint32]) -> bytes:
    """Return a directory as an Arrow IPC file with one column `offsets` (uint32, not null)."""
    if not -(1 << 63) <= base < 1 << 63 or not 0 <= shift < 64:
        raise InvalidInputError(f"a directory needs a 64-bit base and a shift of 0 to 63, got {base} and {shift}")
    if offsets.dtype != np.uint32 or offsets.ndim != 1 or not offsets.size:
        raise InvalidInputError(f"directory offsets must be uint32 and not empty, got {offsets.dtype} {offsets.shape}")
    schema = pa.schema(
        [pa.field(_COLUMN, pa.uint32(), nullable=False)], metadata={"base": str(base), "shift": str(shift)}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(offsets)], schema=schema))
    return bytes(sink.getvalue())


def read_directory(
    buffer: pa.Buffer, *, xxh3_128: str | None = None, path: str = ""
) -> tuple[int, int, npt.NDArray[np.uint32]]:
    """Return base, shift and offsets of a directory; the offsets are a read-only view into `buffer`."""
    if xxh3_128 is not None and checksum(buffer) != xxh3_128:
        raise CorruptDataError(path, "the directory does not match its checksum")
    try:
        reader = pa.ipc.open_file(buffer)
        base, shift = (int(reader.schema.metadata[key]) for key in (b"base", b"shift"))
        column = reader.get_batch(0).column(_COLUMN)
        column.validate()
        offsets = column.to_numpy(zero_copy_only=True)
    except Exception as error:
        # The parser raises whatever the damaged bytes lead to.
        raise CorruptDataError(path, f"no directory: {type(error).__name__}: {error}") from error
    if offsets.dtype != np.uint32 or not offsets.size or not 0 <= shift < 64:
        raise CorruptDataError(path, f"no directory: shift {shift}, {offsets.size} offsets of {offsets.dtype}")
    if (offsets[1:] < offsets[:-1]).any():
        # A checksum does not tell that somebody forged it, and a reader goes where it points.
        raise CorruptDataError(path, "no directory: the offsets do not ascend")
    return base, shift, offsets
