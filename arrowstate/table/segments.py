"""The segments of a run as one: what is known of all of them, and rows found in many of them without a loop in Python.

A run of a checkpoint has a record batch for every few thousand rows, and a batch of keys meets many of them in few rows
each. What is known of the segments lies in arrays, one entry each, and kernels go by the addresses of their columns.
Those of a file are shared by all who restore it in a process, so that a restore costs nothing that grows with their
number. Every one that rows are asked of is read, and checked, before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from arrowstate.table import kernels
from arrowstate.table.columns import take
from arrowstate.table.segment import Segment
from arrowstate_formats.cached_properties import cached_property

Ints = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.uint64]

_UNKNOWN, _NONE = np.uint64(0), np.uint64(1)
_HASHES, _SECONDS = -1, -2


class Directory(Struct, frozen=True):
    """Offsets by the top bits of the hash, one for every two to eight rows.

    Fewer rows a bucket are found no faster: the offsets then miss the cache as often as the hashes do.

    Bucket b holds the rows whose (unsigned hash - base) >> shift is b; they start at offsets[b] + first_row
    and end before offsets[b + 1] + first_row.
    """

    base: int
    shift: int
    offsets: npt.NDArray[np.uint32]
    first_row: int

    @classmethod
    def build(cls, segments: Sequence[Segment]) -> Directory:
        """Build the directory of a run's segments in one pass over their hashes."""
        hashes = [segment.hashes for segment in segments]
        first_row = end_row = segments[0].first_row
        rows = segments[-1].end_row - first_row
        directory = cls.empty(int(hashes[0][0]), int(hashes[-1][-1]), rows, first_row)
        for number, segment in enumerate(segments):
            if segment.first_row > end_row:
                # A reader may open some batches of a file only: the rows between them are counted to the bucket before.
                before = directory.bucket(int(hashes[number - 1][-1]))
                directory.offsets[before + 1] += np.uint32(segment.first_row - end_row)
            directory.count_rows(hashes[number])
            end_row = segment.first_row + segment.rows
        np.cumsum(directory.offsets, out=directory.offsets)
        return directory

    @classmethod
    def empty(cls, low: int, high: int, rows: int, first_row: int = 0) -> Directory:
        """Return a directory for about so many rows whose hashes lie between two, both inclusive; none is counted."""
        base = low + (1 << 63)
        span = high + (1 << 63) - base
        shift = min(max(0, span.bit_length() - max(1, (rows - 1).bit_length()) + 2), 63)
        return cls(base, shift, np.zeros((span >> shift) + 2, dtype=np.uint32), first_row)

    def bucket(self, key_hash: int) -> int:
        """Return the bucket of a hash, which the directory need not reach."""
        return (key_hash + (1 << 63) - self.base) >> self.shift

    def starts(self, hashes: Ints) -> Ints:
        """Return for each hash a row from which on its rows are, if there are any."""
        unsigned = hashes.view(np.uint64) ^ np.uint64(1 << 63)
        buckets = np.minimum((unsigned - np.uint64(self.base)) >> np.uint64(self.shift), self.offsets.size - 1)
        return self.offsets[buckets].astype(np.int64) + self.first_row

    def count_rows(self, hashes: Ints) -> None:
        """Count rows by bucket, those of bucket b in offsets[b + 1]."""
        kernels.count_buckets(hashes, np.uint64(self.base), np.uint64(self.shift), self.offsets)

    def count_up_to(self, high: int | None, done: int) -> int:
        """Turn counts into offsets, of which the first `done` are there, up to a hash.

        `None` stands for all of them.
        """
        end = self.offsets.size if high is None else min(max(self.bucket(high) + 1, done), self.offsets.size)
        part = self.offsets[done:end]
        if done and end > done:
            part[0] += self.offsets[done - 1]
        np.cumsum(part, out=part)
        return end


class Segments(tuple[Segment, ...]):
    """Segments in hash order, the rows of which follow one another."""

    _read: Callable[[Sequence[int]], object] | None
    _shared: dict[Any, Any]
    _addresses: dict[int, Addresses]
    _shapes: dict[int, tuple[Any, int]]

    def __new__(cls, segments: Iterable[Segment] = (), read: Callable[[Sequence[int]], object] | None = None) -> Self:
        made = super().__new__(cls, segments)
        made._read = read
        made._shared, made._addresses, made._shapes = {}, {}, {}
        return made

    @cached_property
    def first_rows(self) -> Ints:
        """The row of the run's file that each begins with."""
        return np.array([segment.first_row for segment in self], dtype=np.int64)

    @cached_property
    def rows(self) -> Ints:
        """How many rows each has."""
        return np.array([segment.rows for segment in self], dtype=np.int64)

    @cached_property
    def lowest(self) -> Ints:
        """The lowest hash of each."""
        return np.array([segment.lowest_hash for segment in self], dtype=np.int64)

    @cached_property
    def highest(self) -> Ints:
        """The highest hash of each."""
        return np.array([segment.highest_hash for segment in self], dtype=np.int64)

    @cached_property
    def highest_seq(self) -> int:
        """At least the highest `_seq`, -1 where there is no row."""
        return max((segment.highest_seq for segment in self), default=-1)

    @cached_property
    def has_seconds(self) -> bool:
        """Whether there is a second sort column."""
        return bool(self) and self[0].seconds is not None

    @cached_property
    def converts(self) -> bool:
        """Whether some have another schema on storage."""
        return any(segment.convert is not None for segment in self)

    @cached_property
    def stored_bytes(self) -> int:
        """About how many bytes the rows take, before they are converted."""
        return sum(segment.stored_bytes for segment in self)

    @cached_property
    def directory(self) -> Directory:
        """Where in the rows each hash may be; made for all who have them."""
        return Directory.build(self)

    def shared(self, name: Any, make: Callable[[], Any]) -> Any:
        """Return what was made of the rows under a name, for all who have them; it is made now if it was not."""
        # Two threads may both make it; one of them is kept, and they are equal.
        return self._shared[name] if name in self._shared else self._shared.setdefault(name, make())

    def of_rows(self, rows: Ints) -> Ints:
        """Return the number of the segment of each row."""
        return np.searchsorted(self.first_rows, rows, side="right") - 1

    def of_hashes(self, hashes: Ints) -> Ints:
        """Return the number of the segment that may hold each hash, -1 where none can; equal hashes share one."""
        numbers = np.searchsorted(self.highest, hashes)
        found = numbers < len(self)
        found[found] = self.lowest[numbers[found]] <= hashes[found]
        return np.where(found, numbers, -1)

    def hash_addresses(self, numbers: Ints) -> Addresses:
        """Return where the hashes of some segments lie in memory, one address a number."""
        return self._of(_HASHES, numbers, lambda segment: segment.hashes)

    def second_addresses(self, numbers: Ints) -> Addresses:
        """Return where the second sort column of some segments lies in memory, one address a number."""
        return self._of(_SECONDS, numbers, lambda segment: segment.seconds)

    def column_addresses(self, column: int, numbers: Ints) -> Addresses | None:
        """Return the same for a column of a fixed width; None where it has another form, or nulls, in one of them."""

        def words(segment: Segment) -> npt.NDArray[Any] | None:
            found = segment.words(column)
            if found is not None:
                self._shapes[column] = (found.dtype, found.shape[1])
            return found

        addresses = self._of(column, numbers, words)
        return None if (addresses == _NONE).any() else addresses

    def shape(self, column: int) -> tuple[Any, int]:
        """Return the type of the words of a column for which there are addresses, and how many a row has."""
        return self._shapes[column]

    def addresses(self, column: int, numbers: Ints) -> Addresses:
        """Return where a column of a fixed width and without nulls lies, of all segments; of some it is known then."""
        assert self.column_addresses(column, numbers) is not None, "it has no nulls"
        return self._addresses[column]

    def words(self, column: int, rows: Ints) -> npt.NDArray[Any] | None:
        """Return the values of rows as (rows, words), in the order given; None where `column_addresses` is None."""
        numbers = self.of_rows(rows)
        if not rows.size or self.column_addresses(column, numbers) is None:
            return None
        dtype, words = self._shapes[column]
        out = np.empty((rows.size, words), dtype=dtype)
        places = (numbers << 32) | (rows - self.first_rows[numbers])
        kernels.gather_places(self._addresses[column], places, out)
        return out

    def take(self, column: int, rows: Ints, kind: pa.DataType) -> pa.Array:
        """Return the values of rows, in the order given."""
        words = self.words(column, rows)
        if words is None:
            return self._taken(column, rows, self.of_rows(rows), kind)
        return pa.Array.from_buffers(kind, rows.size, [None, pa.py_buffer(words)], 0)

    def _taken(self, column: int, rows: Ints, numbers: Ints, kind: pa.DataType) -> pa.Array:
        if not rows.size:
            return pa.array([], kind)
        order = np.argsort(numbers, kind="stable")
        borders = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=len(self)))
        parts = []
        for low, high in pairwise(borders):
            segment = self[numbers[order[low]]]
            parts.append(take(segment.batch.column(column), rows[order[low:high]] - segment.first_row))
        back = np.empty(rows.size, dtype=np.int64)
        back[order] = np.arange(rows.size)
        return take(pa.concat_arrays(parts), back)

    def _of(self, name: int, numbers: Ints, view: Callable[[Segment], npt.NDArray[Any] | None]) -> Addresses:
        known = self._addresses.get(name)
        if known is None:
            known = self._addresses.setdefault(name, np.zeros(len(self), dtype=np.uint64))
        found = known[numbers]
        if not found.all():
            unknown = np.unique(numbers[found == _UNKNOWN]).tolist()
            if self._read is not None:
                self._read([number for number in unknown if self[number].load is not None])
            for number in unknown:
                array = view(self[number])
                known[number] = _NONE if array is None else np.uint64(array.ctypes.data)
            found = known[numbers]
        return found
