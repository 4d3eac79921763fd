"""The keys of one subtask: their schema, their key groups, and the key that scalar verbs work on."""

from __future__ import annotations

import datetime
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import ConcurrentUseError, InvalidInputError, KeyOutOfRangeError, KeyTypeError
from arrowstate.schema.keys import check_key_schema, described, key_columns
from arrowstate.schema.plain import plain_value
from arrowstate.state.transaction import Transactions
from arrowstate.table.columns import canonical_floats, take
from arrowstate.table.key_batch import KeyBatch
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_groups import KeyGroupRange, key_groups_of_hashes
from arrowstate_formats.key_hash import hash_columns, hash_plan


class CurrentKey(Struct, frozen=True):
    """The key that scalar verbs work on."""

    identity: Any
    "Hashable, equal for equal keys."
    columns: tuple[pa.Array, ...]
    "The key columns, one row each."
    value: Any
    "As the caller gave it."
    thread: threading.Thread | None = None
    "The thread that set it for its own scalar verbs."


class KeyContext:
    """Checks keys and knows which of them belong to this subtask."""

    def __init__(
        self, key: pa.Schema, max_parallelism: int, key_groups: KeyGroupRange, clock_ms: Callable[[], int]
    ) -> None:
        self.key = check_key_schema(key)
        self.max_parallelism = max_parallelism
        self.key_groups = key_groups
        self._low, self._high = key_groups.hash_bounds(max_parallelism)
        # XXH64 of one value of up to 8 bytes is a chain of invertible steps (multiplication by odd numbers,
        # rotation, xor with a shift of itself), so two such keys never share a hash.
        self._one_to_one = len(self.key) == 1 and _up_to_8_bytes(self.key.field(0).type)
        self._plan = hash_plan(self.key.types)
        self._current: CurrentKey | None = None
        self._grouped: tuple[CurrentKey, KeyBatch] | None = None
        "The current key, and the batch of it alone, once a verb has asked for it."
        self._clock_ms = clock_ms
        self.watermark: int | None = None
        self.timestamp: int | None = None
        "The event time of what is being processed, where the operator has set it."
        self.transactions = Transactions()
        "What is kept or goes back together: this, the states, and what looks after them."
        self.transactions.join(self)

    def begin(self) -> Any:
        return self.watermark, self.timestamp, self._current

    def keep(self) -> None:
        """There is nothing to give up."""

    def go_back(self, mark: Any) -> None:
        self.watermark, self.timestamp, self._current = mark

    def columns(self, keys: Any) -> list[pa.Array]:
        """Return the key columns of a batch, checked and with canonical floats; of grouped keys those of each row."""
        if isinstance(keys, KeyBatch):
            self.check_grouped(keys)
            if keys.seconds is not None:
                raise InvalidInputError("the keys are grouped with namespaces of another state; give the key columns")
            rows = keys.groups()
            return [take(column, rows) for column in keys.columns]
        return [canonical_floats(column) for column in key_columns(keys, self.key)]

    def group(self, columns: Sequence[pa.Array], entry: Sequence[pa.Array] = ()) -> KeyBatch:
        """Hash, sort and group keys; `entry` has the columns of the namespace and the user key, if there are any."""
        return self._group(self.hashes(columns), columns, entry)

    def current_keys(self, entry: Sequence[pa.Array] = ()) -> KeyBatch:
        """Return the current key, and `entry`, grouped; the errors are those of `current` and `group`."""
        current = self.current
        if self._grouped is None or self._grouped[0] is not current:
            self._grouped = current, self.group(current.columns)
        keys = self._grouped[1]
        return self._group(keys.hashes, keys.columns, entry) if entry else keys

    def _group(self, hashes: npt.NDArray[np.int64], columns: Sequence[pa.Array], entry: Sequence[pa.Array]) -> KeyBatch:
        if not entry:
            return KeyBatch.of(hashes, columns, one_to_one=self._one_to_one, schema=self.key)
        one_to_one = self._one_to_one and len(entry) == 1 and _up_to_8_bytes(entry[0].type)
        seconds = hash_columns(entry)
        return KeyBatch.of(hashes, [*columns, *entry], seconds=seconds, one_to_one=one_to_one, schema=self.key)

    def check_grouped(self, keys: KeyBatch) -> None:
        """Refuse keys that a backend of another key, or of other key groups, has grouped."""
        if keys.schema is not self.key and keys.schema != self.key:
            raise KeyTypeError(described(self.key), described(keys.schema or pa.schema([])))
        if len(keys):
            # They ascend.
            self._check_range(keys.hashes[[0, -1]])

    def hashes(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
        """Hash keys after checking that they belong to this subtask."""
        hashes = hash_columns(columns, self._plan)
        self._check_range(hashes)
        return hashes

    def _check_range(self, hashes: npt.NDArray[np.int64]) -> None:
        if hashes.size and (hashes.min() < self._low or hashes.max() > self._high):
            row = int(np.flatnonzero((hashes < self._low) | (hashes > self._high))[0])
            group = int(key_groups_of_hashes(hashes[row : row + 1], self.max_parallelism)[0])
            raise KeyOutOfRangeError(group, self.key_groups.start, self.key_groups.end)

    def now(self, clock: str) -> int | None:
        """Return the time now in milliseconds; by event time the watermark, None before the first one."""
        return self._processing_time() if clock == "processing_time" else self.watermark

    def _processing_time(self) -> int:
        # A clock such as time.time() * 1000 gives a float, which would be stored with every row.
        return check_integer("the time that clock_ms returns", self._clock_ms())

    def known_time(self, clock: str) -> int | None:
        """Return the time of what is done now; by event time that of the current record, else the watermark."""
        if clock == "processing_time":
            return self._processing_time()
        return self.watermark if self.timestamp is None else self.timestamp

    def time_of_update(self, clock: str, state: str) -> int:
        """Return the time that rows written now carry."""
        time = self.known_time(clock)
        if time is not None:
            return time
        raise InvalidInputError(
            f"state {state!r} expires by event time, and none is known yet; pass timestamps, set "
            "backend.current_timestamp, or advance the watermark before"
        )

    @property
    def current(self) -> CurrentKey:
        """The current key."""
        if self._current is None:
            raise InvalidInputError("no current key is set; set backend.current_key before a scalar verb")
        thread = self._current.thread
        if thread is not None and thread.ident != threading.get_ident() and thread.is_alive():
            raise ConcurrentUseError("the current key was set by another thread, which still runs")
        return self._current

    @property
    def is_set(self) -> bool:
        return self._current is not None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Set the current key back afterwards."""
        current = self._current
        try:
            yield
        finally:
            self._current = current

    def set_row(self, columns: Sequence[pa.Array], row: int) -> Any:
        """Set the current key to one of checked key columns; return it as a plain value, or a tuple of them."""
        one = [column.slice(row, 1) for column in columns]
        values = tuple(plain_value(column[0], "the current key") for column in one)
        value = values[0] if len(values) == 1 else values
        self._current = CurrentKey(tuple(identity_of(column) for column in one), tuple(one), value)
        return value

    def use(self, current: CurrentKey) -> None:
        """Set the current key to one that was the current key before, or a key of a row of this subtask."""
        self._current = current

    def set_current(self, value: Any, *, thread: threading.Thread | None = None) -> None:
        """Set the current key: a plain value, or for several key columns a tuple or a mapping by name.

        With a thread, for the scalar verbs of this one.
        """
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
        columns = self.columns(keys)
        grouped = self.group(columns)
        identity = tuple(identity_of(column) for column in columns)
        self._current = CurrentKey(identity, tuple(columns), value, thread)
        self._grouped = self._current, grouped


def _up_to_8_bytes(kind: pa.DataType) -> bool:
    # Decimals of up to 8 bytes hash as one long, but which decimals these are is left to the hash.
    # A date64 hashes as its day, so two of one day collide.
    time = pa.types.is_temporal(kind) and not (pa.types.is_interval(kind) or pa.types.is_date64(kind))
    return bool(pa.types.is_integer(kind) or time)


def _one_row(row: dict[str, Any], key: pa.Schema) -> Any:
    # One column at a time, so that the checks of a single key column name the culprit.
    columns = [key_columns([row[field.name]], pa.schema([field]))[0] for field in key]
    return pa.RecordBatch.from_arrays(columns, schema=key)


def identity_of(column: pa.Array) -> Any:
    """Return the one value of a column as something hashable, equal for equal values."""
    return identities_of(column)[0]


def identities_of(column: pa.Array) -> list[Any]:
    """Return each value of a column as something hashable, equal for equal values."""
    # Python's dates and times reach less far than Arrow's.
    column = column.cast(_without_times(column.type)) if pa.types.is_nested(column.type) else _as_integers(column)
    if pa.types.is_integer(column.type) or pa.types.is_string(column.type):
        return column.to_pylist()
    return [hashable(value) for value in column.to_pylist()]


def _as_integers(column: pa.Array) -> pa.Array:
    return column.view(_without_times(column.type)) if pa.types.is_temporal(column.type) else column


@functools.cache
def _without_times(kind: pa.DataType) -> pa.DataType:
    """Return a type with integers for the dates and times in it."""
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_times(field.type)) for field in kind])
    if pa.types.is_nested(kind):
        item = kind.value_field.with_type(_without_times(kind.value_type))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(item, kind.list_size)
        return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)
    return kind


def hashable(value: Any) -> Any:
    """Return a plain value as something hashable, equal for equal values; one NaN equals another."""
    if isinstance(value, dict):
        return tuple((name, hashable(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(hashable(item) for item in value)
    if isinstance(value, float) and math.isnan(value):
        return (math.nan.__class__, "nan")
    return instant(value) if isinstance(value, datetime.datetime) and value.tzinfo is not None else value


def instant(moment: datetime.datetime) -> datetime.datetime:
    """Return a moment in UTC: Python compares those of one zone by its clock, which shows an hour a year twice."""
    return moment.astimezone(datetime.UTC)
