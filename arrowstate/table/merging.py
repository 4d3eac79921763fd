"""Tiered merging: which runs to merge when, and the merge itself.

Runs are put in tiers by their live rows, each tier `fan_in` times as large as the one below. When a tier
holds `fan_in` runs, or more than `max_dead_share` of a run's rows are dead, the runs concerned are merged
with all smaller ones. So there are at most (fan_in - 1) runs a tier, and the dead share stays bounded.
The tiers are those of the size-tiered LSM trees (O'Neil et al., 1996; Cassandra); there are no tombstones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.table import kernels, pair_kernels
from arrowstate.table.columns import gather_places
from arrowstate.table.run import Bits, Run
from arrowstate.table.segment import has_second

__all__ = ["BatchSink", "MemorySink", "MergePolicy", "fill", "merge_runs"]

Ints = npt.NDArray[np.int64]
Source = tuple[pa.RecordBatch, Ints, Bits, int]
"Rows of one run, their hashes, the run's live bits, and the bit of the first row."


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """When runs are merged.

    Examples
    --------
    >>> policy = MergePolicy(fan_in=4)
    >>> [policy.tier(rows) for rows in (1_000, 65_536, 70_000, 300_000)]
    [0, 0, 1, 2]
    """

    fan_in: int = 8
    "Runs of one tier that trigger a merge, and the size ratio of neighbouring tiers; at least 2."
    max_dead_share: float = 0.5
    "A run with a larger share of dead rows is merged; above 0, at most 1."
    first_tier_rows: int = 65_536
    "Runs with up to this many live rows are in the lowest tier."
    segment_bytes: int = 32 << 20
    "A merged run is cut into record batches of about this size, which also bounds the memory a merge takes."

    def pick(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs to merge now, or none."""
        largest = -1
        counts: dict[int, int] = {}
        for run in runs:
            tier = self.tier(run.live_rows)
            counts[tier] = counts.get(tier, 0) + 1
            if run.dead_rows > self.max_dead_share * run.rows:
                largest = max(largest, run.live_rows)
        full = [tier for tier, count in counts.items() if count >= self.fan_in]
        if full:
            top = max(full)
            largest = max(largest, max(run.live_rows for run in runs if self.tier(run.live_rows) == top))
        return [run for run in runs if run.live_rows <= largest]

    def __post_init__(self) -> None:
        if self.fan_in < 2 or self.first_tier_rows < 1 or self.segment_bytes < 1:
            raise InvalidInputError(
                "a merge policy needs fan_in of at least 2, and first_tier_rows and segment_bytes of at least 1; "
                f"got {self.fan_in}, {self.first_tier_rows} and {self.segment_bytes}"
            )
        if not 0 < self.max_dead_share <= 1:
            raise InvalidInputError(f"max_dead_share must be above 0 and at most 1, got {self.max_dead_share}")

    def tier(self, live_rows: int) -> int:
        """Return the tier of a run with so many live rows, from 0."""
        tier = 0
        size = self.first_tier_rows
        while live_rows > size:
            size *= self.fan_in
            tier += 1
        return tier


class BatchSink(Protocol):
    """Where a merge puts its record batches."""

    def append(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> Run: ...

    def discard(self) -> None:
        """Leave nothing behind; called instead of `finish` after a failure."""
        ...


class MemorySink:
    """Keeps the batches in memory."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def append(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def finish(self) -> Run:
        return Run.of(self._batches)

    def discard(self) -> None:
        self._batches.clear()


def fill(sink: BatchSink, batches: Iterable[pa.RecordBatch]) -> Run:
    """Put the batches into the sink; on any error nothing of it is left."""
    try:
        for batch in batches:
            sink.append(batch)
        return sink.finish()
    except BaseException:
        sink.discard()
        raise


def merge_runs(
    runs: Sequence[Run], policy: MergePolicy, sink: BatchSink, places: npt.NDArray[Any] | None = None
) -> Run | None:
    """Write the live rows of the runs, in hash order, to the sink; None if there are none.

    `places` has an entry for each row of the runs, run after run; that of a live row is set to its row in the result.
    """
    live = sum(run.live_rows for run in runs)
    if not live:
        sink.discard()
        return None
    row_bytes = max(1, sum(s.stored.nbytes for run in runs for s in run.segments) // sum(run.rows for run in runs))
    piece_rows = max(1024, policy.segment_bytes // row_bytes)
    pieces = _pieces(max(runs, key=lambda run: run.rows), -(-live // piece_rows))
    return fill(sink, _merged(runs, pieces, places))


def _merged(
    runs: Sequence[Run], pieces: Sequence[tuple[int | None, int | None]], places: npt.NDArray[Any] | None
) -> Iterator[pa.RecordBatch]:
    row = 0
    for piece in pieces:
        found = _merge_piece(runs, *piece)
        if found is not None:
            batch, starts, origins = found
            if places is not None:
                places[starts[origins >> 32] + (origins & 0xFFFFFFFF)] = np.arange(row, row + batch.num_rows)
            row += batch.num_rows
            yield batch


def _pieces(largest: Run, count: int) -> list[tuple[int | None, int | None]]:
    """Cut the hash range into about `count` pieces; each is (low inclusive, high exclusive), None is open."""
    borders: list[int] = []
    for number in range(1, count):
        row = largest.first_row + largest.rows * number // count
        segment = next(s for s in largest.segments if row < s.end_row)
        border = int(segment.hashes[row - segment.first_row])
        if not borders or border > borders[-1]:
            borders.append(border)
    return list(zip([None, *borders], [*borders, None], strict=True))


def _merge_piece(runs: Sequence[Run], low: int | None, high: int | None) -> tuple[pa.RecordBatch, Ints, Ints] | None:
    """Return the live rows in a range of hashes, and where they were.

    That is, by source the number of its first row among the rows of all runs, and of each row its source << 32 | its
    row there.
    """
    sources: list[Source] = []
    starts: list[int] = []
    before = 0
    for run in runs:
        for segment in run.segments:
            start = 0 if low is None else int(np.searchsorted(segment.hashes, low))
            stop = segment.hashes.size if high is None else int(np.searchsorted(segment.hashes, high))
            if start < stop:
                rows = segment.batch.slice(start, stop - start)
                bit = segment.first_row + start - run.first_row
                sources.append((rows, segment.hashes[start:stop], run.live, bit))
                starts.append(before + bit)
        before += run.rows
    hashes, places = _live(sources)
    if not hashes.size:
        return None
    parts = [part for part, _, _, _ in sources]
    # The live rows are a few sorted lists one after the other, which the sort puts together in one pass.
    if has_second(parts[0].schema):
        seconds = gather_places([part.column(1) for part in parts], places).to_numpy()
        order = pair_kernels.sort_by_pair(hashes, seconds)
        sorted_columns = [hashes[order], seconds[order]]
    else:
        hashes, order = kernels.sort_by_hash(hashes)
        sorted_columns = [hashes]
    places = places[order]
    columns = [
        gather_places([part.column(number) for part in parts], places)
        for number in range(len(sorted_columns), parts[0].num_columns)
    ]
    merged = pa.RecordBatch.from_arrays([*map(pa.array, sorted_columns), *columns], schema=parts[0].schema)
    return merged, np.array(starts, dtype=np.int64), places


def _live(sources: Sequence[Source]) -> tuple[Ints, Ints]:
    """Return hashes and places of the live rows, source by source."""
    rows = sum(part.num_rows for part, _, _, _ in sources)
    hashes, places = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
    count = 0
    for number, (_, part_hashes, live, bit) in enumerate(sources):
        count += kernels.live_places(live, bit, part_hashes, number, hashes[count:], places[count:])
    return hashes[:count], places[:count]
