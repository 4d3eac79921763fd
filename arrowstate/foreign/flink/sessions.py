"""Windows that merge: which session each stored window of Flink has become.

The contents of a session stay under the window that its first records had, and another state says which session that
window has become: `merging-window-set` of windows in Java, `session-window-mapping` of those in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.states import FlinkState
from arrowstate_formats.key_hash import hash_columns

KeyColumns: TypeAlias = Callable[[pa.RecordBatch], list[pa.Array]]
Ints: TypeAlias = npt.NDArray[np.int64]

CONTENTS_OF = {"merging-window-set": "window-contents", "session-window-mapping": "window-aggs"}
"""By the state that knows the sessions the one that holds their contents."""
WINDOWS_OF_SESSIONS = frozenset({"count", "fire-time", "hasFired", "previous-aggs"})
"""States of triggers and results, which Flink keeps under the session itself."""

_PAIR = pa.struct([("start", pa.int64()), ("end", pa.int64())])


class Sessions:
    """The sessions of an operator, by key and stored window; 48 bytes of memory each."""

    def __init__(self, state: FlinkState, key_columns: KeyColumns) -> None:
        self.name = state.name
        parts = [_of_batch(state.kind, batch, key_columns) for batch in state.to_batches()]
        columns = [np.concatenate([np.empty(0, np.int64), *each]) for each in zip(*parts, strict=True)]
        first, second, starts, ends = columns or [np.empty(0, np.int64)] * 4
        order = np.lexsort((second, first))
        self._first, self._second, self._starts, self._ends = (each[order] for each in (first, second, starts, ends))
        twice = (np.diff(self._first) == 0) & (np.diff(self._second) == 0)
        if twice.any():
            raise CorruptDataError(
                f"{state.operator}.{state.name}", "one stored window is said to have become two sessions"
            )

    def of(self, key: Sequence[pa.Array], starts: pa.Array, ends: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return where the sessions of stored windows start and end, null for windows of no session."""
        first, second = _hashes(key, starts, ends)
        places = np.searchsorted(self._first, first)
        found = np.full(len(first), -1, dtype=np.int64)
        left = np.arange(len(first))
        while left.size:
            # More than one step is for keys of equal hashes alone.
            inside = places[left] < len(self._first)
            left = left[inside]
            left = left[self._first[places[left]] == first[left]]
            same = self._second[places[left]] == second[left]
            found[left[same]] = places[left[same]]
            left = left[~same]
            places[left] += 1
        return tuple(pa.array(each, pa.int64()).take(_or_null(found)) for each in (self._starts, self._ends))


def sessions_of(states: Iterable[FlinkState], contents: str, key_columns: KeyColumns) -> Sessions | None:
    """Return the sessions whose contents a state of an operator holds; None if no state of it knows any."""
    for state in states:
        if CONTENTS_OF.get(state.name) == contents and _has_windows(state):
            return Sessions(state, key_columns)
    return None


def _has_windows(state: FlinkState) -> bool:
    """Whether it maps windows of time to each other; those of a class of the job's own are bytes."""
    value = state.schema.field("value").type
    if state.kind == "map":
        return state.schema.field("user_key").type == value == _PAIR
    return pa.types.is_list(value) and [each.type for each in _fields(value.value_type)] == [_PAIR, _PAIR]


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return list(kind) if pa.types.is_struct(kind) else []


def _of_batch(kind: str, batch: pa.RecordBatch, key_columns: KeyColumns) -> tuple[Ints, Ints, Ints, Ints]:
    """The hashes of keys and stored windows, and the sessions that these have become."""
    key, value = key_columns(batch), batch.column("value")
    if kind == "map":
        session, stored = batch.column("user_key"), value
    else:
        rows = np.repeat(np.arange(batch.num_rows), value.value_lengths().fill_null(0).to_numpy())
        key = [column.take(pa.array(rows)) for column in key]
        session, stored = value.flatten().flatten()
    starts, ends = session.flatten()
    return (*_hashes(key, *stored.flatten()), starts.to_numpy(), ends.to_numpy())


def _hashes(key: Sequence[pa.Array], starts: pa.Array, ends: pa.Array) -> tuple[Ints, Ints]:
    """Two hashes, which together tell keys and windows apart."""
    return hash_columns([*key, starts, ends]), hash_columns([starts, ends, *key])


def _or_null(places: Ints) -> pa.Array:
    return pa.array(places, mask=places < 0)
