"""The runs of a merge, cut into pieces by hash: what of each run is in a piece, and which rows of it go on.

A merge meets every run in each of its many pieces, so what is known of a run's columns is kept from piece to piece, and
rows are fetched by the addresses of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from arrowstate.table import kernels, pair_kernels
from arrowstate.table.columns import gather_places
from arrowstate.table.run import Bits, Run
from arrowstate.table.segment import has_second
from arrowstate.table.segments import Segments

Ints = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.uint64]


class Chosen(Struct, frozen=True):
    """Rows of a piece that go into the merged run, in its order."""

    hashes: Ints
    seconds: Ints | None
    places: Ints
    "The number of the slice << 32 | the row there."


@dataclass(frozen=True, slots=True)
class Piece:
    """Slices of segments whose hashes lie in one range."""

    segments: Segments
    "Those of all runs."
    numbers: Ints
    "The segment of each slice."
    starts: Ints
    "The row of it that the slice begins with."
    stops: Ints
    firsts: Ints
    "The number of that row among the rows of all runs."
    bits: tuple[tuple[Bits, int], ...]
    "The live bits of its run, and the bit of that row."

    @property
    def rows(self) -> int:
        """How many there are, dead ones included."""
        return int((self.stops - self.starts).sum())

    @property
    def schema(self) -> pa.Schema:
        """That of the rows, of which there is one at least."""
        return self.segments[int(self.numbers[0])].batch.schema

    def chosen(self, expired_up_to: int | None) -> Chosen:
        """Return the live rows that have not expired."""
        hashes, places = self._live()
        if not hashes.size:
            return Chosen(hashes, None, places)
        schema = self.schema
        if expired_up_to is not None:
            fresh = self.column(len(schema) - 1, places).to_numpy() > expired_up_to
            hashes, places = hashes[fresh], places[fresh]
        # The live rows are a few sorted lists one after the other, which the sort puts together in one pass.
        if hashes.size and has_second(schema):
            seconds = self.column(1, places).to_numpy()
            order = pair_kernels.sort_by_pair(hashes, seconds)
            return Chosen(hashes[order], seconds[order], places[order])
        hashes, order = kernels.sort_by_hash(hashes)
        return Chosen(hashes, None, places[order])

    def words(self, column: int) -> tuple[Addresses, Any, int] | None:
        """Return where a column of a fixed width begins in each slice, its type and words; None for others."""
        addresses = self.segments.column_addresses(column, self.numbers)
        if addresses is None:
            return None
        dtype, words = self.segments.shape(column)
        return addresses + self.starts.astype(np.uint64) * np.uint64(dtype.itemsize * words), dtype, words

    def column(self, number: int, places: Ints) -> pa.Array:
        """Return a column of rows, given by their places."""
        words = self.words(number)
        if words is not None:
            addresses, dtype, count = words
            out = np.empty((places.size, count), dtype=dtype)
            kernels.gather_places(addresses, places, out)
            kind = self.schema.field(number).type
            return pa.Array.from_buffers(kind, places.size, [None, pa.py_buffer(out)], 0)
        where = zip(self.numbers.tolist(), self.starts.tolist(), self.stops.tolist(), strict=True)
        columns = [
            self.segments[segment].batch.column(number).slice(start, stop - start) for segment, start, stop in where
        ]
        return gather_places(columns, places)

    def _live(self) -> tuple[Ints, Ints]:
        """Return hashes and places of the live rows, slice by slice."""
        rows = self.rows
        hashes, places = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        count = 0
        where = zip(self.numbers.tolist(), self.starts.tolist(), self.stops.tolist(), self.bits, strict=True)
        for number, (segment, start, stop, (live, bit)) in enumerate(where):
            part = self.segments[segment].hashes[start:stop]
            count += kernels.live_places(live, bit, part, number, hashes[count:], places[count:])
        return hashes[:count], places[:count]


class Sources:
    """The runs of a merge, gone through once."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)
        self._all = Segments(segment for run in runs for segment in run.segments)
        self._before = np.cumsum([0, *(len(run.segments) for run in runs)]).tolist()
        self._next = [(0, 0) for _ in runs]
        "Of each run the segment, and the row there, that the next piece begins with."
        self.ends = [run.first_row for run in runs]
        "One past the last row of each run that was in a piece."
        self.starts = np.cumsum([0, *(run.rows for run in runs)])
        "How many rows there are in the runs before each."

    def piece(self, high: int | None) -> Piece:
        """Return what follows up to a hash, exclusive; None for all."""
        found: list[tuple[int, int, int, int]] = []
        bits: list[tuple[Bits, int]] = []
        for number, run in enumerate(self._runs):
            at, start = self._next[number]
            while at < len(run.segments):
                segment = run.segments[at]
                if high is not None and segment.lowest_hash >= high:
                    break
                is_whole = high is None or segment.highest_hash < high
                stop = segment.rows if high is None or is_whole else int(segment.hashes.searchsorted(high))
                if start < stop:
                    bit = segment.first_row + start - run.first_row
                    found.append((self._before[number] + at, start, stop, int(self.starts[number]) + bit))
                    bits.append((run.live, bit))
                    self.ends[number] = segment.first_row + stop
                if not is_whole:
                    start = stop
                    break
                at, start = at + 1, 0
            self._next[number] = at, start
        numbers, starts, stops, firsts = np.array(found, dtype=np.int64).reshape(-1, 4).T
        return Piece(self._all, numbers, starts, stops, np.ascontiguousarray(firsts), tuple(bits))
