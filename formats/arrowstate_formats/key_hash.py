"""The key hash: XXH64 over the key columns, bit for bit what Spark SQL's `xxhash64` computes.

The hash of a column is the seed of the next, beginning with 42, and a null leaves it unchanged; so
Spark can route rows with its own expression and the store finds them where it put them. The type is
part of the hash: the int32 1 and the int64 1 differ. Types that Spark does not have follow the nearest
type that it has. Specification: formats/spec/key-hash.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate_formats import _xxh64
from arrowstate_formats.errors import InvalidInputError

SEED = 42
"""The hash before the first column, and of a key whose columns are all null."""

Keys: TypeAlias = pa.RecordBatch | pa.Array | pa.ChunkedArray
"""One key column, or a record batch or struct array with one column or field per key column."""

_Hashes: TypeAlias = npt.NDArray[np.uint64]
_Slots: TypeAlias = npt.NDArray[np.int64]
_Values: TypeAlias = npt.NDArray[Any]
_Step: TypeAlias = Callable[[Any, _Slots, _Hashes], None]
HashPlan: TypeAlias = tuple[_Step, ...]
"""How columns of some types are hashed, one step a column."""

_EVERY_ROW: _Slots = np.empty(0, np.int64)
_EVERY_ROW.flags.writeable = False

_LONG_DIGITS = 18
"""Decimals up to this precision are hashed as the long of their digits."""


def key_hash(keys: Keys) -> pa.Int64Array:
    """Return the key hash of each row, as Spark SQL's `xxhash64` of the key columns; never null.

    Parameters
    ----------
    keys
        One key column (array or chunked array), or a record batch or struct array with one column per key column.

    Raises
    ------
    InvalidInputError
        If the keys are no Arrow data or have no column; if a type has no hash (maps, unions, intervals); if a
        timestamp or duration does not fit 64 bits of microseconds, or a date 32 bits of days.

    Examples
    --------
    >>> key_hash(pa.array([1, 2])).to_pylist()
    [-7001672635703045582, -3341702809300393011]
    """
    if isinstance(keys, pa.ChunkedArray):
        check_key_type(keys.type)
        chunks = [_hash_keys(chunk) for chunk in keys.chunks]
        return pa.array(np.concatenate([np.empty(0, np.int64), *chunks]))
    return pa.array(_hash_keys(keys))


def hash_columns(columns: Sequence[pa.Array], plan: HashPlan | None = None) -> npt.NDArray[np.int64]:
    """Return the key hash of each row of key columns of equal length, as a new array.

    Parameters
    ----------
    columns
        One array per key column.
    plan
        What `hash_plan` returns for their types, where they are hashed again and again.

    Raises
    ------
    InvalidInputError
        As for `key_hash`, and if the columns differ in length.

    Examples
    --------
    >>> hash_columns([pa.array(["a"]), pa.array([1], pa.int32())]).tolist()
    [-4810547614043336770]
    """
    if not columns:
        raise InvalidInputError("a key needs at least one column")
    if len({len(column) for column in columns}) != 1:
        raise InvalidInputError(f"key columns must have one length, got {[len(column) for column in columns]}")
    hashes = np.full(len(columns[0]), SEED, np.uint64)
    for step, column in zip(plan or hash_plan(column.type for column in columns), columns, strict=True):
        if column.null_count < len(column):
            step(column, _EVERY_ROW, hashes)
    return hashes.view(np.int64)


def hash_plan(types: Iterable[pa.DataType]) -> HashPlan:
    """Return how `hash_columns` hashes columns of some types, to be made once for all batches of a key.

    Raises
    ------
    InvalidInputError
        If a type has no hash.
    """
    return _plan(tuple(types))


@lru_cache(512)
def _plan(types: tuple[pa.DataType, ...]) -> HashPlan:
    for kind in types:
        check_key_type(kind)
    return tuple(map(_step, types))


def check_key_type(key_type: pa.DataType) -> None:
    """Check that values of a type, nested ones included, have a key hash."""
    types = pa.types
    if types.is_map(key_type) or types.is_union(key_type) or types.is_interval(key_type):
        raise InvalidInputError(f"a key cannot have the type {key_type}: maps, unions and intervals have no key hash")
    if isinstance(key_type, pa.BaseExtensionType):
        check_key_type(key_type.storage_type)
    elif types.is_dictionary(key_type) or types.is_run_end_encoded(key_type) or _is_list(key_type):
        check_key_type(key_type.value_type)
    elif types.is_struct(key_type):
        for field in key_type:
            check_key_type(field.type)


def _hash_keys(keys: pa.RecordBatch | pa.Array) -> npt.NDArray[np.int64]:
    if isinstance(keys, pa.RecordBatch):
        return hash_columns(keys.columns)
    if not isinstance(keys, pa.Array):
        raise InvalidInputError(f"keys must be an Arrow array, chunked array or record batch, got {_type_name(keys)}")
    if pa.types.is_struct(keys.type) and keys.type.num_fields == 0:
        raise InvalidInputError("a key needs at least one column")
    return hash_columns([keys])


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _chain(array: pa.Array, slots: _Slots, hashes: _Hashes) -> None:
    """Chain the values of an array; value i belongs to hash slots[i], or to hash i where `slots` is empty."""
    if array.null_count < len(array):
        _step(array.type)(array, slots, hashes)


def _step(kind: pa.DataType) -> _Step:
    """Return what chains the values of arrays of a type, not all of which are null."""
    types = pa.types
    if types.is_null(kind):
        return lambda *_: None
    if isinstance(kind, pa.BaseExtensionType):
        return lambda array, slots, hashes: _chain(array.storage, slots, hashes)
    if types.is_dictionary(kind):
        return lambda array, slots, hashes: _chain(array.dictionary_decode(), slots, hashes)
    if types.is_run_end_encoded(kind):
        return lambda array, slots, hashes: _chain(pc.run_end_decode(array), slots, hashes)
    if types.is_struct(kind):
        return _chain_struct
    if _is_list(kind):
        return _chain_list
    if types.is_string_view(kind):
        return lambda array, slots, hashes: _chain_variable_bytes(array.cast(pa.large_string()), slots, hashes)
    if types.is_binary_view(kind):
        return lambda array, slots, hashes: _chain_variable_bytes(array.cast(pa.large_binary()), slots, hashes)
    if types.is_fixed_size_binary(kind):
        return _chain_fixed_bytes
    if types.is_decimal(kind):
        return _chain_decimal
    if _is_variable_bytes(kind):
        return _chain_variable_bytes
    return partial(_chain_words, _words(kind))


def _chain_struct(array: pa.StructArray, slots: _Slots, hashes: _Hashes) -> None:
    # flatten() makes the fields of a null struct null, and a null leaves the hash alone.
    for field in array.flatten():
        _chain(field, slots, hashes)


def _chain_list(array: pa.Array, slots: _Slots, hashes: _Hashes) -> None:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    elements = array.flatten()
    owners = np.arange(len(array)) if slots.size == 0 else slots
    if _has_one_leaf(array.type.value_type):
        _chain(elements, np.repeat(owners, lengths), hashes)
        return
    # The fields of one element come before the next element, so the elements are taken one rank at a time.
    starts = np.cumsum(lengths) - lengths
    lists = np.flatnonzero(lengths)
    rank = 0
    while lists.size:
        _chain(elements.take(pa.array(starts[lists] + rank)), owners[lists], hashes)
        rank += 1
        lists = lists[lengths[lists] > rank]


def _words(kind: pa.DataType) -> Callable[[pa.Array], _Values]:
    """Return what makes of an array of a flat type the words of 4 or 8 bytes that are hashed."""
    types = pa.types
    if types.is_boolean(kind):
        return lambda array: _values(array.cast(pa.int32()), np.dtype(np.int32))
    if types.is_date64(kind):
        return lambda array: _values(_days(array), np.dtype(np.int32))
    if types.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return lambda array: _values(_convert(array, pa.timestamp("us", kind.tz)), np.dtype(np.int64))
    if types.is_duration(kind) and kind.unit in ("s", "ms"):
        return lambda array: _values(_convert(array, pa.duration("us")), np.dtype(np.int64))
    if types.is_time(kind):
        return lambda array: _values(_convert(array, pa.time64("ns")), np.dtype(np.int64))
    dtype = fixed_dtype(kind)
    if types.is_floating(kind):
        return partial(_canonical, dtype, np.dtype(np.float64 if types.is_float64(kind) else np.float32))
    if types.is_uint32(kind):
        # A uint32 does not fit an int, so it is hashed as the long that holds it.
        return lambda array: _values(array, dtype).astype(np.uint64)
    if dtype.itemsize < 4:
        return lambda array: _values(array, dtype).astype(np.int32)
    return lambda array: _values(array, dtype)


def _canonical(dtype: np.dtype[Any], wide: np.dtype[Any], array: pa.Array) -> _Values:
    """Return floats of which equal ones have equal bits."""
    with np.errstate(invalid="ignore"):
        # A signalling NaN becomes a quiet one, -0.0 the other zero.
        values = _values(array, dtype).astype(wide) + wide.type(0)
    values[np.isnan(values)] = np.nan
    return values


def _chain_words(words: Callable[[pa.Array], _Values], array: pa.Array, slots: _Slots, hashes: _Hashes) -> None:
    values = words(array)
    if values.itemsize == 8:
        _xxh64.hash_int64(values.view(np.uint64), *_chosen(array, slots), hashes)
    else:
        _xxh64.hash_int32(values.view(np.uint32), *_chosen(array, slots), hashes)


def _chain_variable_bytes(array: pa.Array, slots: _Slots, hashes: _Hashes) -> None:
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    width = 8 if wide else 4
    _, offsets, data = array.buffers()
    starts = offsets.address + array.offset * width
    addresses = (np.uint64(number) for number in (0 if data is None else data.address, starts, starts + width))
    _xxh64.hash_bytes(*addresses, wide, len(array), *_chosen(array, slots), hashes)


def _chain_fixed_bytes(array: pa.Array, slots: _Slots, hashes: _Hashes) -> None:
    width = array.type.byte_width
    data = array.buffers()[1]
    address = 0 if data is None else data.address + array.offset * width
    ends = np.arange(1, len(array) + 1, dtype=np.uint64) * np.uint64(width)
    _hash_slices(address, ends - np.uint64(width), ends, array, slots, hashes)


def _chain_decimal(array: pa.Array, slots: _Slots, hashes: _Hashes) -> None:
    width = array.type.byte_width
    if array.type.precision > _LONG_DIGITS:
        digits = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
        # The shortest big-endian two's complement bytes.
        digits = np.ascontiguousarray(digits.reshape(-1, width)[:, ::-1])
        negative = digits[:, :1] >> 7
        # A leading byte can go while it only repeats the sign and the next byte still carries it.
        needless = (digits[:, :-1] == negative * np.uint8(255)) & (digits[:, 1:] >> 7 == negative)
        ends = np.arange(1, len(array) + 1, dtype=np.uint64) * np.uint64(width)
        starts = ends - np.uint64(width) + np.logical_and.accumulate(needless, axis=1).sum(axis=1, dtype=np.uint64)
        _hash_slices(digits.ctypes.data, starts, ends, array, slots, hashes)
        return
    if width == 4:
        longs = _values(array, np.dtype(np.int32)).astype(np.int64)
    else:
        words = np.frombuffer(array.buffers()[1], np.int64, len(array) * width // 8, array.offset * width)
        longs = np.ascontiguousarray(words[:: width // 8])
    _xxh64.hash_int64(longs.view(np.uint64), *_chosen(array, slots), hashes)


def _hash_slices(
    address: int,
    starts: npt.NDArray[np.uint64],
    ends: npt.NDArray[np.uint64],
    array: pa.Array,
    slots: _Slots,
    hashes: _Hashes,
) -> None:
    addresses = (np.uint64(number) for number in (address, starts.ctypes.data, ends.ctypes.data))
    _xxh64.hash_bytes(*addresses, True, len(array), *_chosen(array, slots), hashes)


def _convert(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert a point in time or a span to the unit that Spark hashes."""
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"a key of type {array.type} does not fit {target}: {error}") from error


def _days(array: pa.Array) -> pa.Array:
    days = _values(array, np.dtype(np.int64)) // 86_400_000
    outside = (days < -(1 << 31)) | (days >= 1 << 31)
    if outside.any() and pc.any(pc.and_(pa.array(outside), array.is_valid())).as_py():
        raise InvalidInputError(f"a key of type {array.type} does not fit 32 bits of days")
    # The bits of validity begin at the offset of the original; an array built anew begins at 0.
    return pa.array(days.astype(np.int32), pa.int32(), mask=array.is_null().to_numpy(zero_copy_only=False))


def _values(array: pa.Array, dtype: np.dtype[Any]) -> _Values:
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _chosen(array: pa.Array, slots: _Slots) -> tuple[_Slots, _Slots]:
    """Return which values are hashed and the hash that each belongs to; two empty arrays: value i to hash i."""
    if not array.null_count:
        return (_EVERY_ROW, _EVERY_ROW) if slots.size == 0 else (np.arange(len(array)), slots)
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    return rows, rows if slots.size == 0 else slots[rows]


def fixed_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return numpy's type of a number, or of the integer behind a date, time or span.

    Arrow's own answer imports pandas, where there is one, which takes half a second.
    """
    letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def _is_list(key_type: pa.DataType) -> bool:
    return isinstance(
        key_type, (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
    )


def _is_variable_bytes(key_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(key_type)
        or types.is_large_string(key_type)
        or types.is_binary(key_type)
        or types.is_large_binary(key_type)
    )


def _has_one_leaf(key_type: pa.DataType) -> bool:
    if isinstance(key_type, pa.BaseExtensionType):
        return _has_one_leaf(key_type.storage_type)
    if _is_list(key_type) or pa.types.is_dictionary(key_type) or pa.types.is_run_end_encoded(key_type):
        return _has_one_leaf(key_type.value_type)
    if pa.types.is_struct(key_type):
        return key_type.num_fields == 1 and _has_one_leaf(key_type.field(0).type)
    return True
