"""The keys of one subtask: their schema, their key groups, and the key that scalar verbs work on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.errors import InvalidInputError, KeyOutOfRangeError
from arrowstate.schema.keys import check_key_schema, key_columns
from arrowstate.table.batch import KeyBatch
from arrowstate.table.columns import canonical_floats
from arrowstate_formats.key_groups import KeyGroupRange, key_groups_of_hashes
from arrowstate_formats.key_hash import hash_columns

__all__ = ["CurrentKey", "KeyContext"]


@dataclass(frozen=True, slots=True)
class CurrentKey:
    """The key that scalar verbs work on."""

    identity: Any
    "Hashable, equal for equal keys."
    columns: tuple[pa.Array, ...]
    "The key columns, one row each."
    value: Any
    "As the caller gave it."


class KeyContext:
    """Checks keys and knows which of them belong to this subtask.

    Parameters
    ----------
    key
        The schema of the key columns.
    max_parallelism
        1 to 32768.
    key_groups
        The key groups of the subtask, both ends inclusive.
    """

    def __init__(self, key: pa.Schema, max_parallelism: int, key_groups: KeyGroupRange) -> None:
        self.key = check_key_schema(key)
        self.max_parallelism = max_parallelism
        self.key_groups = key_groups
        self._low, self._high = key_groups.hash_bounds(max_parallelism)
        # XXH64 of one value of up to 8 bytes is a chain of invertible steps (multiplication by odd numbers,
        # rotation, xor with a shift of itself), so two such keys never share a hash.
        self._one_to_one = len(self.key) == 1 and _up_to_8_bytes(self.key.field(0).type)
        self._current: CurrentKey | None = None

    def batch(self, keys: Any) -> KeyBatch:
        """Check, hash, sort and group the keys of a batch.

        Raises
        ------
        KeyTypeError, NullKeyError
            If a key does not fit the key schema.
        KeyOutOfRangeError
            If a key belongs to a key group of another subtask.
        """
        columns = [canonical_floats(column) for column in key_columns(keys, self.key)]
        hashes = hash_columns(columns)
        batch = KeyBatch.of(hashes, columns, one_to_one=self._one_to_one)
        if len(batch) and (batch.hashes[0] < self._low or batch.hashes[-1] > self._high):
            row = int(np.flatnonzero((hashes < self._low) | (hashes > self._high))[0])
            group = int(key_groups_of_hashes(hashes[row : row + 1], self.max_parallelism)[0])
            raise KeyOutOfRangeError(group, self.key_groups.start, self.key_groups.end)
        return batch

    @property
    def current(self) -> CurrentKey:
        """The current key.

        Raises
        ------
        InvalidInputError
            If none is set.
        """
        if self._current is None:
            raise InvalidInputError("no current key is set; set backend.current_key before a scalar verb")
        return self._current

    @property
    def is_set(self) -> bool:
        return self._current is not None

    def set_current(self, value: Any) -> None:
        """Set the current key: a plain value, or for several key columns a tuple or a mapping by name."""
        if len(self.key) == 1:
            keys: Any = [value]
        else:
            if isinstance(value, dict):
                row = value
            elif isinstance(value, (tuple, list)) and len(value) == len(self.key):
                row = dict(zip(self.key.names, value, strict=True))
            else:
                raise InvalidInputError(
                    f"the key has the columns {', '.join(self.key.names)}; set a tuple or a mapping of them, "
                    f"got {value!r}"
                )
            if set(row) != set(self.key.names):
                raise InvalidInputError(f"the key has the columns {', '.join(self.key.names)}; got {', '.join(row)}")
            keys = _one_row(row, self.key)
        batch = self.batch(keys)
        identity = tuple(_identity(column) for column in batch.columns)
        self._current = CurrentKey(identity, batch.columns, value)


def _up_to_8_bytes(kind: pa.DataType) -> bool:
    # Decimals of up to 8 bytes hash as one long, but which decimals these are is left to the hash.
    # A date64 hashes as its day, so two of one day collide.
    time = pa.types.is_temporal(kind) and not (pa.types.is_interval(kind) or pa.types.is_date64(kind))
    return bool(pa.types.is_integer(kind) or time)


def _one_row(row: dict[str, Any], key: pa.Schema) -> Any:
    # One column at a time, so that the checks of a single key column name the culprit.
    columns = [key_columns([row[field.name]], pa.schema([field]))[0] for field in key]
    return pa.RecordBatch.from_arrays(columns, schema=key)


def _identity(column: pa.Array) -> Any:
    if pa.types.is_temporal(column.type):
        # Python's dates and times reach less far than Arrow's.
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return _hashable(column[0].as_py())


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _hashable(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, float) and math.isnan(value):
        return (math.nan.__class__, "nan")
    return value
