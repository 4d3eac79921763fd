"""A batch on its way into windows: its rows, the windows they go into, the sessions that become one, what it gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.functions.windows.assigners import (
    CountWindows,
    GlobalWindows,
    SlidingWindows,
    TumblingWindows,
    fixed_windows,
    merged_sessions,
    session_ends,
)
from arrowstate.table.columns import take
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.pair_kernels import sort_by_pair
from arrowstate_formats.key_hash import hash_columns

Ints = npt.NDArray[np.int64]
FixedWindows: TypeAlias = TumblingWindows | SlidingWindows | GlobalWindows | CountWindows

WINDOW = pa.schema([("window_start", pa.int64()), ("window_end", pa.int64())])
"""The namespace of window state."""

_LOWEST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class WindowOutput:
    """The windows that a batch made fire, and its late rows.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import CountWindows, WindowOperator
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> output = WindowOperator(backend, CountWindows(2), clicks).process(["ann", "ann"], None, [1, 2])
    >>> output
    <WindowOutput 1 fired, 0 late>
    >>> output.fired["clicks"].to_pylist()
    [3]
    """

    fired: pa.RecordBatch
    "The windows that fired at once: the key columns, `window_start`, `window_end`, and the result."
    late: pa.RecordBatch
    "The side output: the key columns, `timestamp` and value of each row that came too late for all its windows."
    late_row_numbers: pa.Array
    "The number in the batch of each of these rows: int64, from 0, ascending."

    def __repr__(self) -> str:
        return f"<WindowOutput {self.fired.num_rows} fired, {self.late.num_rows} late>"


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a batch, checked."""

    keys: list[pa.Array]
    values: pa.Array
    places: Ints
    "Milliseconds since 1970; in count windows the positions; nothing in global windows."
    totals: Ints | None = None
    "In count windows: how many elements the key of each row has had with this batch."


@dataclass(frozen=True, slots=True)
class Windows:
    """Pairs of a key and a window."""

    keys: list[pa.Array]
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return self.ends.size

    @property
    def namespace(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(self.starts), pa.array(self.ends)], schema=WINDOW)

    def only(self, pairs: Ints) -> Windows:
        """Return the pairs with these numbers."""
        return Windows([take(key, pairs) for key in self.keys], self.starts[pairs], self.ends[pairs])

    def distinct(self) -> Windows:
        """Return each pair once, in the order of the end of the window, then of the hash of the key."""
        spaces = [pa.array(self.starts), pa.array(self.ends)]
        pairs = KeyBatch.of(hash_columns(self.keys), [*self.keys, *spaces], seconds=hash_columns(spaces))
        *keys, starts, ends = pairs.columns
        windows = Windows(keys, starts.to_numpy(), ends.to_numpy())
        return windows.only(sort_by_pair(windows.ends, pairs.hashes))


@dataclass(frozen=True, slots=True)
class Assigned:
    """Which windows the rows of a batch go into."""

    windows: Windows
    rows: Ints | None = None
    "The row of each pair; None where each row has one."
    sources: Windows | None = None
    "Sessions that are there and become part of others."
    targets: Windows | None = None
    "These others."

    def row_of(self, pairs: Ints) -> Ints:
        return pairs if self.rows is None else self.rows[pairs]


def assign(assigner: FixedWindows, batch: Batch) -> Assigned:
    """Return the windows of each row, for windows that do not merge."""
    if isinstance(assigner, GlobalWindows):
        everywhere = np.full(len(batch.values), _LOWEST, dtype=np.int64)
        return Assigned(Windows(batch.keys, everywhere, ~everywhere))
    offset = 0
    if isinstance(assigner, CountWindows):
        size, slide = assigner.size, assigner.slide or assigner.size
        # It is their ends that lie at multiples of the slide.
        offset = -size
    elif isinstance(assigner, SlidingWindows):
        size, slide, offset = assigner.size_ms, assigner.slide_ms, assigner.offset_ms
    else:
        size, slide, offset = assigner.size_ms, assigner.size_ms, assigner.offset_ms
    rows, starts, ends = fixed_windows(batch.places, size, slide, offset)
    if isinstance(assigner, CountWindows):
        starts = np.maximum(starts, 0)
    if size == slide:
        return Assigned(Windows(batch.keys, starts, ends))
    return Assigned(Windows([take(key, rows) for key in batch.keys], starts, ends), rows)


def assign_sessions(
    gap: int, batch: Batch, keys: KeyBatch, numbers: Ints, namespaces: Sequence[pa.Array], removed: int
) -> Assigned:
    """Merge the sessions that the rows open with each other and with those that their keys have."""
    have_starts, have_ends = (column.to_numpy() for column in namespaces)
    order = sort_by_pair(numbers, have_starts)
    # Sessions of a key have different starts.
    again = (np.diff(numbers[order], prepend=-1) == 0) & (np.diff(have_starts[order], prepend=0) == 0)
    once = order[~again]
    numbers, have_starts, have_ends = numbers[once], have_starts[once], have_ends[once]
    rows = len(batch.values)
    merged_starts, merged_ends = merged_sessions(
        np.concatenate((keys.groups(), numbers)),
        np.concatenate((batch.places, have_starts)),
        np.concatenate((session_ends(batch.places, gap), have_ends)),
    )
    windows = Windows(batch.keys, merged_starts[:rows], merged_ends[:rows])
    into = Windows([take(key, numbers) for key in keys.columns], merged_starts[rows:], merged_ends[rows:])
    moved = np.flatnonzero(((into.starts != have_starts) | (into.ends != have_ends)) & (into.ends > removed))
    if not moved.size:
        return Assigned(windows)
    return Assigned(windows, None, Windows(into.keys, have_starts, have_ends).only(moved), into.only(moved))
