"""Which keys of a state are the largest: by rows, or by the size of the value where each key has one row.

Keys are counted by the ranges of their hashes, a range at a time, so that memory does not grow with the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.query.state import StateReader
from arrowstate.table.segment import HASH_COLUMN
from arrowstate.ui.keys import key_texts
from arrowstate.ui.shown import Room, cells
from arrowstate.ui.work import Progress
from arrowstate_formats.key_groups import KeyGroupRange

_SHOWN = 20
_STEP_ROWS = 1_000_000

Ints = npt.NDArray[np.int64]


def largest_keys(reader: StateReader, progress: Progress) -> dict[str, Any]:
    """Return the largest keys, and how they were measured."""
    layout = reader.layout
    has_rows = layout.is_list or bool(layout.entry_fields)
    measured = [] if has_rows else [name for name in reader.columns if _is_sized(reader.schema.field(name).type)]
    if not has_rows:
        measured = [name for name in measured if name not in layout.key.names]
    if not has_rows and not measured:
        return {"by": "nothing", "keys": [], "key_columns": list(layout.key.names)}
    hashes, sizes = np.zeros(0, np.int64), np.zeros(0, np.int64)
    rows = sum(part.live_rows for part in reader.parts.parts)
    progress.total = rows
    steps = min(reader.max_parallelism, max(1, -(-rows // _STEP_ROWS)))
    bounds = np.linspace(0, reader.max_parallelism, steps + 1).astype(int)
    for first, end in pairwise(bounds):
        found = _in_range(reader, KeyGroupRange(int(first), int(end) - 1), measured, progress)
        hashes, sizes = np.concatenate([hashes, found[0]]), np.concatenate([sizes, found[1]])
        hashes, sizes = _top(hashes, sizes)
    order = np.argsort(-sizes, kind="stable")
    keys = [_key(reader, int(hashes[place])) for place in order]
    return {
        "by": "rows" if has_rows else "bytes",
        "key_columns": list(layout.key.names),
        "keys": [{"key": key, "size": int(sizes[place])} for key, place in zip(keys, order, strict=True) if key != []],
        "rows": rows,
    }


def _in_range(
    reader: StateReader, groups: KeyGroupRange, measured: Sequence[str], progress: Progress
) -> tuple[Ints, Ints]:
    own: list[Ints] = []
    weights: list[Ints] = []
    for batch in reader.batches(reader.in_key_groups(groups), [HASH_COLUMN, *measured], key_groups=groups):
        own.append(batch.column(0).to_numpy())
        if measured:
            weights.append(sizes_of(batch.columns[1:], batch.num_rows))
        progress.advance(batch.num_rows)
    if not own:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    hashes = np.concatenate(own)
    if measured:
        return _top(hashes, np.concatenate(weights))
    found, counts = np.unique(hashes, return_counts=True)
    return _top(found, counts.astype(np.int64))


def _top(hashes: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    if len(sizes) <= _SHOWN:
        return hashes, sizes
    places = np.argpartition(sizes, len(sizes) - _SHOWN)[-_SHOWN:]
    return hashes[places], sizes[places]


def _key(reader: StateReader, key_hash: int) -> list[str] | None:
    """Return the columns of the key of a hash as texts: None if they are too long, [] if there is no such key."""
    parts = [part for part in reader.parts.parts if part.min_hash <= key_hash <= part.max_hash]
    names = list(reader.layout.key.names)
    for batch in reader.batches(parts, names, hash_bounds=(key_hash, key_hash)):
        return key_texts(cells(batch.slice(0, 1), Room())[0])
    return []


def _is_sized(kind: pa.DataType) -> bool:
    """Whether values of a type differ in size."""
    if pa.types.is_struct(kind):
        return any(_is_sized(kind.field(number).type) for number in range(kind.num_fields))
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_map(kind)
    )


def sizes_of(columns: Sequence[pa.Array], rows: int) -> Ints:
    """Return about how many bytes the values of each row take: texts by their length, elements by 8 bytes each."""
    total = np.zeros(rows, np.int64)
    for column in columns:
        kind = column.type
        if pa.types.is_struct(kind):
            total += sizes_of([column.field(number) for number in range(kind.num_fields)], rows)
        elif not _is_sized(kind):
            continue
        elif pa.types.is_map(kind):
            total += np.diff(column.offsets.to_numpy()) * 8
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            total += pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False) * 8
        else:
            total += pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return total
