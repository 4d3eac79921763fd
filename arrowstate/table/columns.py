"""Arrow columns as the kernels see them, and what equality of two key columns means.

Two keys are equal when all their columns are: by value for numbers, by bytes for text, field by field and
element by element for nested types. Floats are made canonical when a batch comes in (-0.0 is 0.0, there is
one NaN), as the key hash does it, so that from then on equal keys have equal bits.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.table import equality, kernels

Ints = npt.NDArray[np.int64]

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.uint64, 32: np.uint64}


def take(column: pa.Array, rows: Ints) -> pa.Array:
    """Return the given rows of a column; the rows must exist."""
    return pc.take(column, pa.array(rows), boundscheck=False)


def sort_order(values: pa.Array) -> Ints:
    """Return the rows of a column in ascending order: NaN after every number, nulls last, equal ones in turn."""
    if pa.types.is_decimal32(values.type) or pa.types.is_decimal64(values.type):
        # Arrow sorts decimals of 128 and 256 bits only, and no floats of 16.
        values = values.cast(pa.decimal128(38, values.type.scale))
    elif pa.types.is_float16(values.type):
        values = values.cast(pa.float32())
    order: Ints = pc.array_sort_indices(values).to_numpy().astype(np.int64)
    return order


def fixed_words(column: pa.Array) -> npt.NDArray[Any] | None:
    """View a fixed-width column as (rows, words), without a copy and without its nulls; None for other types."""
    try:
        width = column.type.bit_width
    except ValueError:
        return None
    if width % 8 or width // 8 not in _WORDS or pa.types.is_nested(column.type) or pa.types.is_null(column.type):
        return None
    if pa.types.is_fixed_size_binary(column.type):
        return None
    word = np.dtype(_WORDS[width // 8])
    words = width // 8 // word.itemsize
    data = column.buffers()[1]
    if data is None:
        return np.empty((0, words), dtype=word)
    view = np.frombuffer(data, dtype=word, count=(column.offset + len(column)) * words)
    return view.reshape(-1, words)[column.offset :]


def gather_places(sources: Sequence[pa.Array], places: Ints) -> pa.Array:
    """Return rows of several columns of one type as one; a place is the number of the column << 32 | its row."""
    words = [fixed_words(source) for source in sources]
    if all(word is not None and not source.null_count for word, source in zip(words, sources, strict=True)):
        out = np.empty((places.size, words[0].shape[1]), dtype=words[0].dtype)  # type: ignore[union-attr]
        gather_words(words, places, out)  # type: ignore[arg-type]
        return pa.Array.from_buffers(sources[0].type, places.size, [None, pa.py_buffer(out)], 0)
    starts = np.concatenate(([0], np.cumsum([len(source) for source in sources])))
    return take(pa.concat_arrays(sources), starts[places >> 32] + (places & 0xFFFFFFFF))


def fresh_words(rows: int, words: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros of (rows, words) to be filled by and by.

    For arrays of such sizes numpy asks for pages of 2 MiB, and the write that meets the first byte of one waits for all
    of it. Where many batches fill an array together, some of them would wait for the share of others.
    """
    size = max(1, rows * words * np.dtype(dtype).itemsize)
    return np.frombuffer(mmap.mmap(-1, size), dtype=dtype, count=rows * words).reshape(rows, words)


def gather_words(words: Sequence[npt.NDArray[Any]], places: Ints, out: npt.NDArray[Any]) -> None:
    """Write rows of columns that `fixed_words` has viewed to (rows, words); for places see `gather_places`."""
    kernels.gather_places(np.array([word.ctypes.data for word in words], dtype=np.uint64), places, out)


def _text_parts(column: pa.Array) -> tuple[int, int, bool] | None:
    """Return the addresses of a string or binary column's offsets and bytes, and whether its offsets have 64 bits.

    None for other types.
    """
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        wide = False
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        wide = True
    else:
        return None
    _, offsets, data = column.buffers()
    if offsets is None:
        return 0, 0, wide
    return offsets.address + column.offset * (8 if wide else 4), data.address if data is not None else 0, wide


def rows_equal(left: pa.Array, left_rows: Ints, right: pa.Array, right_rows: Ints) -> npt.NDArray[np.bool_]:
    """Compare left[left_rows] with right[right_rows] row by row; the top level has no nulls."""
    left_words, right_words = fixed_words(left), fixed_words(right)
    if left_words is not None and right_words is not None:
        width = left_words.itemsize * left_words.shape[1]
        return equality.equal_fixed(left_words.ctypes.data, left_rows, right_words.ctypes.data, right_rows, width)
    left_text, right_text = _text_parts(left), _text_parts(right)
    if left_text is not None and right_text is not None:
        (left_offsets, left_data, wide), (right_offsets, right_data, _) = left_text, right_text
        return equality.equal_bytes(
            left_offsets, left_data, left_rows, right_offsets, right_data, right_rows, wide=wide
        )
    return _equal(take(left, left_rows), take(right, right_rows))


def columns_equal(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Compare two columns of one type and length row by row, by their bits; a null equals a null."""
    return _equal(left, right)


def _valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


def _equal(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    left_valid, right_valid = _valid(left), _valid(right)
    same: npt.NDArray[np.bool_] = left_valid == right_valid
    both = np.flatnonzero(left_valid & right_valid)
    if not both.size or pa.types.is_null(left.type):
        return same
    if len(both) != len(left):
        same[both] = _equal(take(left, both), take(right, both))
        return same
    if pa.types.is_map(left.type):
        left, right = _entries(left), _entries(right)
    if pa.types.is_struct(left.type):
        for field in range(left.type.num_fields):
            same &= _equal(_field(left, field), _field(right, field))
        return same
    if pa.types.is_fixed_size_list(left.type) or pa.types.is_list(left.type) or pa.types.is_large_list(left.type):
        lengths = pc.list_value_length(left).to_numpy().astype(np.int64)
        same = lengths == pc.list_value_length(right).to_numpy()
        rows = np.flatnonzero(same & (lengths > 0))
        if rows.size:
            elements = _equal(take(left, rows).flatten(), take(right, rows).flatten())
            starts = np.concatenate(([0], np.cumsum(lengths[rows])[:-1]))
            same[rows] = np.logical_and.reduceat(elements, starts)
        return same
    words = fixed_words(left)
    if words is not None:
        other = fixed_words(right)
        assert other is not None
        return np.asarray((words == other).all(axis=1))
    return np.asarray(pc.equal(left, right).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _entries(column: pa.MapArray) -> pa.ListArray:
    """A map as what it is stored as, a list of its entries; Arrow has fewer functions for maps."""
    entries = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
    return pa.ListArray.from_arrays(column.offsets, entries)


def _field(column: pa.StructArray, number: int) -> pa.Array:
    # field() honours the offset but not the parent's nulls; here the parent has none left.
    return column.field(number)


def row_numbers(columns: Sequence[pa.Array]) -> Ints:
    """Return a number for each row of columns of one length, the same where all columns are equal, by their bits."""
    numbers = np.ascontiguousarray(np.stack([_numbers(column) for column in columns], axis=1))
    return _numbers_of_bytes(numbers)


def _numbers(column: pa.Array) -> Ints:
    kind, valid = column.type, np.flatnonzero(_valid(column))
    numbers = np.full(len(column), -1, dtype=np.int64)
    if not valid.size:
        return numbers
    if valid.size < len(column):
        column = take(column, valid)
    words = fixed_words(column)
    if words is not None:
        numbers[valid] = _numbers_of_bytes(words)
    elif pa.types.is_struct(kind):
        numbers[valid] = row_numbers([_field(column, number) for number in range(kind.num_fields)])
    elif pa.types.is_nested(kind):
        numbers[valid] = _numbers_of_lists(_entries(column) if pa.types.is_map(kind) else column)
    else:
        numbers[valid] = column.dictionary_encode().indices.to_numpy()
    return numbers


def _numbers_of_lists(column: pa.Array) -> Ints:
    lengths = pc.list_value_length(column).to_numpy().astype(np.int64)
    elements = _numbers(column.flatten())
    ends = np.concatenate(([0], np.cumsum(lengths))) * elements.itemsize
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(elements)]
    lists = pa.Array.from_buffers(pa.large_binary(), lengths.size, buffers)
    return lists.dictionary_encode().indices.to_numpy().astype(np.int64)


def _numbers_of_bytes(words: npt.NDArray[Any]) -> Ints:
    width = words.shape[1] * words.itemsize
    rows = pa.Array.from_buffers(pa.binary(width), len(words), [None, pa.py_buffer(np.ascontiguousarray(words))])
    return rows.dictionary_encode().indices.to_numpy().astype(np.int64)


def canonical_floats(column: pa.Array) -> pa.Array:
    """Return the column with -0.0 as 0.0 and every NaN as the one canonical NaN, inside nested types too."""
    kind = column.type
    if pa.types.is_floating(kind):
        values = column.to_numpy(zero_copy_only=False) if column.null_count else column.to_numpy()
        with np.errstate(invalid="ignore"):
            # A signalling NaN becomes a quiet one, which is what is wanted.
            clean = values + values.dtype.type(0)
        clean[np.isnan(clean)] = np.nan
        mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        return pa.array(clean, type=kind, mask=mask, from_pandas=False)
    if not pa.types.is_nested(kind) or not _has_floats(kind):
        return column
    mask = pa.array(~_valid(column)) if column.null_count else None
    if pa.types.is_struct(kind):
        fields = [canonical_floats(_field(column, i)) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    if pa.types.is_fixed_size_list(kind):
        start = column.offset * kind.list_size
        values = canonical_floats(column.values.slice(start, len(column) * kind.list_size))
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)
    column = pa.concat_arrays([column])
    return type(column).from_arrays(column.offsets, canonical_floats(column.values), type=kind, mask=mask)


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))
