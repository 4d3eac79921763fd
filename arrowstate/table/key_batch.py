"""A batch of keys made ready for sorted runs: hashed, sorted, and grouped by equal key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from arrowstate.table import kernels, pair_kernels
from arrowstate.table.columns import rows_equal, take
from arrowstate.table.segment import Segment
from arrowstate.table.segments import Segments

Ints = npt.NDArray[np.int64]

_ONE = np.arange(2, dtype=np.int64)
"The groups of one row; its first entry is the order of one row."
_ONE.flags.writeable = False
_SMALL_BYTES = 1024


class KeyBatch(Struct, frozen=True):
    """The distinct keys of a batch, sorted by hash, and which rows of the batch have them.

    Group g holds the rows order[starts[g]:starts[g + 1]] of the batch, in the order of the batch.
    """

    hashes: Ints
    "One per distinct key, ascending; two neighbours are equal only where two keys collide."
    columns: tuple[pa.Array, ...]
    order: Ints
    starts: Ints
    one_to_one: bool
    "Whether different keys always have different hashes, so that equal hashes mean equal keys."
    seconds: Ints | None = None
    "One per distinct key where rows of a key are told apart by more than the key: the hash of the rest."
    schema: pa.Schema | None = None
    "The key columns, where a backend has grouped them."

    @classmethod
    def of(
        cls,
        hashes: Ints,
        columns: Sequence[pa.Array],
        *,
        one_to_one: bool = False,
        seconds: Ints | None = None,
        schema: pa.Schema | None = None,
    ) -> KeyBatch:
        """Sort and group the rows of the key columns by their hashes, and by `seconds` where they are given."""
        if hashes.size == 1:
            # What scalar verbs ask for. A row of a large column is copied, for a run would hold all of it.
            order = _ONE[:1]
            one = tuple(c if c.get_total_buffer_size() <= _SMALL_BYTES else take(c, order) for c in columns)
            return cls(hashes, one, order, _ONE, one_to_one, seconds, schema)
        if seconds is None:
            sorted_hashes, order = kernels.sort_by_hash(hashes)
            starts = kernels.group_starts(sorted_hashes)
        else:
            order = pair_kernels.sort_by_pair(hashes, seconds)
            sorted_hashes, seconds = hashes[order], seconds[order]
            starts = pair_kernels.pair_starts(sorted_hashes, seconds)
        if starts.size - 1 < order.size and not one_to_one:
            order, starts = _split_collisions(columns, order, starts)
        first = starts[:-1]
        if starts.size - 1 < order.size:
            sorted_hashes = sorted_hashes[first]
            seconds = None if seconds is None else seconds[first]
        picked = order[first]
        taken = tuple(take(column, picked) for column in columns)
        return cls(sorted_hashes, taken, order, starts, one_to_one, seconds, schema)

    def equal(self, numbers: Ints, segment: Segment, places: Ints) -> npt.NDArray[np.bool_]:
        """Compare keys with rows of a run's segment, given as places in its batch."""
        same = np.ones(numbers.size, dtype=np.bool_)
        first = 1 if segment.seconds is None else 2
        for number, column in enumerate(self.columns, first):
            same &= rows_equal(column, numbers, segment.batch.column(number), places)
        return same

    def equal_rows(self, numbers: Ints, segments: Segments, rows: Ints) -> npt.NDArray[np.bool_]:
        """Compare keys with rows of a run."""
        same = np.ones(numbers.size, dtype=np.bool_)
        each = np.arange(numbers.size, dtype=np.int64)
        for number, column in enumerate(self.columns, 2 if segments.has_seconds else 1):
            same &= rows_equal(column, numbers, segments.take(number, rows, column.type), each)
        return same

    def __len__(self) -> int:
        return int(self.hashes.size)

    @property
    def row_count(self) -> int:
        """The rows of the batch, equal keys counted each time."""
        return int(self.order.size)

    def only(self, numbers: Ints) -> KeyBatch:
        """Return some of the distinct keys, given by ascending numbers, as a batch of one row each."""
        rows = np.arange(numbers.size + 1, dtype=np.int64)
        seconds = None if self.seconds is None else self.seconds[numbers]
        columns = tuple(take(column, numbers) for column in self.columns)
        return KeyBatch(self.hashes[numbers], columns, rows[:-1], rows, self.one_to_one, seconds, self.schema)

    def of_rows(self, kept: npt.NDArray[np.bool_]) -> KeyBatch:
        """Return some rows of the batch, numbered anew, with the keys that they have."""
        chosen = kept[self.order]
        counts = np.add.reduceat(chosen, self.starts[:-1], dtype=np.int64)
        present = np.flatnonzero(counts)
        starts = np.concatenate(([0], np.cumsum(counts[present]))).astype(np.int64)
        numbers = np.cumsum(kept) - 1
        return replace(self.only(present), order=numbers[self.order[chosen]], starts=starts)

    def groups(self) -> Ints:
        """Return, for each row of the batch, the number of its key."""
        return kernels.fill_from_groups(self.order, self.starts)

    def last_rows(self) -> Ints:
        """Return, for each key, the last row of the batch that has it."""
        return self.order[self.starts[1:] - 1]


def _split_collisions(columns: Sequence[pa.Array], order: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """Make each group hold one key: where different keys share a hash, order and starts are mended."""
    inner = np.ones(order.size, dtype=np.bool_)
    inner[starts[:-1]] = False
    places = np.flatnonzero(inner)
    same = np.ones(places.size, dtype=np.bool_)
    for column in columns:
        same &= rows_equal(column, order[places], column, order[places - 1])
    if same.all():
        return order, starts
    order = order.copy()
    borders = [starts]
    for group in np.unique(np.searchsorted(starts, places[~same], side="right") - 1):
        place, end = int(starts[group]), int(starts[group + 1])
        while place < end:
            rows = order[place:end]
            equal = np.ones(rows.size, dtype=np.bool_)
            for column in columns:
                equal &= rows_equal(column, rows, column, np.full(rows.size, rows[0]))
            order[place:end] = np.concatenate((rows[equal], rows[~equal]))
            borders.append(np.array([place], dtype=np.int64))
            place += int(equal.sum())
    return order, np.unique(np.concatenate(borders))
