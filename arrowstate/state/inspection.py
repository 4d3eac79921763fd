"""What a state holds: its keys and namespaces, and how many rows and bytes they have.

Everything here sees the state as it is at the call; rows that have expired are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.state.base import KeyedState
from arrowstate.table.columns import rows_equal
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.table import gather
from arrowstate_formats.key_groups import key_groups_of_hashes
from arrowstate_formats.key_hash import hash_columns

Ints = npt.NDArray[np.int64]


def distinct_keys(state: KeyedState[Any], namespace: Any = None) -> pa.RecordBatch:
    """Return each key that has a row, in one namespace or in any."""
    layout = state.layout
    batches = list(state.live_batches())
    if namespace is not None:
        wanted = state.namespace_columns(namespace, 1)
        names = [field.name for field in layout.namespace_fields]
        batches = [_where_equal(batch, names, wanted) for batch in batches]
    return _distinct(batches, layout.key, len(layout.key))


def distinct_keys_and_namespaces(state: KeyedState[Any]) -> pa.RecordBatch:
    """Return each key and namespace that has a row."""
    layout = state.layout
    return _distinct(list(state.live_batches()), pa.schema([*layout.key, *layout.namespace_fields]), len(layout.key))


def namespaces_of(state: KeyedState[Any], keys: KeyBatch) -> tuple[Ints, list[pa.Array]]:
    """Return the namespaces that keys have rows in, each row once: the numbers of the keys, and the columns."""
    state.flush()
    found = state.table.find_all(keys)
    numbers = [numbers for _, numbers, _ in found]
    first = 2 + len(state.layout.key)
    columns = [gather(found, first + i, field.type) for i, field in enumerate(state.layout.namespace_fields)]
    return np.concatenate(numbers) if numbers else np.empty(0, dtype=np.int64), columns


def sizes_by_key_group(state: KeyedState[Any], max_parallelism: int) -> pa.Table:
    """Return rows and bytes of each key group that has rows."""
    rows = np.zeros(max_parallelism, dtype=np.int64)
    size = np.zeros(max_parallelism, dtype=np.float64)
    for batch in state.live_batches():
        groups = key_groups_of_hashes(batch.column(0).to_numpy(), max_parallelism)
        rows += np.bincount(groups, minlength=max_parallelism)
        size += np.bincount(groups, weights=_row_bytes(batch), minlength=max_parallelism)
    have = np.flatnonzero(rows)
    return pa.table(
        [pa.array(have, pa.int32()), pa.array(rows[have]), pa.array(size[have].astype(np.int64))],
        names=["key_group", "rows", "bytes"],
    )


def largest_keys(state: KeyedState[Any], limit: int) -> pa.Table:
    """Return the keys with the most rows, the largest first."""
    batches = list(state.live_batches())
    key = state.layout.key
    columns = _columns(batches, key)
    keys = KeyBatch.of(hash_columns(columns), columns)
    groups = keys.groups()
    rows = np.bincount(groups, minlength=len(keys))
    row_bytes = np.concatenate([_row_bytes(batch) for batch in batches]) if batches else np.empty(0)
    size = np.bincount(groups, weights=row_bytes, minlength=len(keys)).astype(np.int64)
    chosen = np.lexsort((-size, -rows))[:limit]
    out = pa.Table.from_arrays([column.take(pa.array(chosen)) for column in keys.columns], schema=key)
    return out.append_column("_rows", pa.array(rows[chosen])).append_column("_bytes", pa.array(size[chosen]))


def _where_equal(batch: pa.RecordBatch, names: Sequence[str], wanted: Sequence[pa.Array]) -> pa.RecordBatch:
    rows = np.arange(batch.num_rows, dtype=np.int64)
    for name, value in zip(names, wanted, strict=True):
        same = rows_equal(batch.column(name), rows, value, np.zeros(rows.size, dtype=np.int64))
        rows = rows[same]
    return batch if rows.size == batch.num_rows else batch.take(pa.array(rows))


def _columns(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[pa.Array]:
    """Return some columns of all batches."""
    return [
        pa.concat_arrays([batch.column(field.name) for batch in batches] or [pa.array([], field.type)])
        for field in schema
    ]


def _distinct(batches: Sequence[pa.RecordBatch], schema: pa.Schema, keys: int) -> pa.RecordBatch:
    columns = _columns(batches, schema)
    entry = columns[keys:]
    rows = KeyBatch.of(hash_columns(columns[:keys]), columns, seconds=hash_columns(entry) if entry else None)
    return pa.RecordBatch.from_arrays(list(rows.columns), schema=schema)


def _row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.float64]:
    """Return about how many bytes each row takes: exact for numbers and text, the average for nested columns."""
    size = np.zeros(batch.num_rows)
    for column in batch.columns:
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            size += pc.binary_length(column).fill_null(0).to_numpy() + 4
        elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            size += pc.binary_length(column).fill_null(0).to_numpy() + 8
        elif pa.types.is_nested(kind):
            size += column.nbytes / max(1, len(column))
        elif not pa.types.is_null(kind):
            size += kind.bit_width / 8
    return size
