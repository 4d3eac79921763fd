"""Which key group a key belongs to, for keys whose hash in Java follows from their value alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.uint32]


def has_known_hash(kind: pa.DataType) -> bool:
    """Whether `key_groups_of` knows the keys of a type."""
    return bool(pa.types.is_int64(kind) or pa.types.is_int32(kind) or pa.types.is_string(kind))


def key_groups_of(keys: pa.Array, max_parallelism: int) -> npt.NDArray[np.int64]:
    """Return the key group of each key, which must not be null."""
    if pa.types.is_string(keys.type):
        hashes = np.array([_hash_of_text(key) for key in keys.to_pylist()], dtype=np.uint32)
    elif pa.types.is_int64(keys.type):
        wide = keys.to_numpy(zero_copy_only=False).view(np.uint64)
        hashes = (wide ^ wide >> np.uint64(32)).astype(np.uint32)
    else:
        hashes = keys.to_numpy(zero_copy_only=False).view(np.uint32)
    return _mixed(hashes) % max_parallelism


def _hash_of_text(text: str) -> int:
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
    code = 0
    for unit in units.tolist():
        code = (31 * code + unit) & 0xFFFFFFFF
    return code


def _mixed(words: Words) -> npt.NDArray[np.int64]:
    """Murmur's hash of four bytes, made positive."""
    code = words * np.uint32(0xCC9E2D51)
    code = (code << np.uint32(15) | code >> np.uint32(17)) * np.uint32(0x1B873593)
    code = (code << np.uint32(13) | code >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)
    code ^= np.uint32(4)
    code = (code ^ code >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    code = (code ^ code >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    code ^= code >> np.uint32(16)
    signed = code.view(np.int32).astype(np.int64)
    # The least number has no positive one; Flink takes 0.
    return np.where(signed == -(1 << 31), 0, np.abs(signed))
