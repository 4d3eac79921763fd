"""Tiered merging: which runs to merge when, and the merge itself.

Runs are put in tiers by their live rows, each tier `fan_in` times as large as the one below. When a tier
holds `fan_in` runs, or more than `max_dead_share` of a run's rows are dead, the runs concerned are merged
with all smaller ones. So there are at most (fan_in - 1) runs a tier, and the dead share stays bounded.
The tiers are those of the size-tiered LSM trees (O'Neil et al., 1996; Cassandra); there are no tombstones.
"""

from __future__ import annotations

import errno
import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import InvalidInputError, StorageError, StorageFullError
from arrowstate.table import kernels, pair_kernels
from arrowstate.table.columns import take
from arrowstate.table.run import Run

__all__ = ["BatchSink", "MemorySink", "MergePolicy", "SpillSink", "fill", "merge_runs"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """When runs are merged."""

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


class SpillSink:
    """Writes the batches to a local Arrow IPC file and maps it.

    The file has no name once it is mapped, so it is gone when the run is dropped or the process dies.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._path = folder
        with self._room():
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, path = tempfile.mkstemp(prefix="arrowstate-", suffix=".spill", dir=folder)
        self._path = Path(path)
        self._file = os.fdopen(descriptor, "wb")
        self._writer = pa.ipc.new_file(self._file, schema)

    def append(self, batch: pa.RecordBatch) -> None:
        with self._room():
            self._writer.write_batch(batch)

    def finish(self) -> Run:
        with self._room():
            self._writer.close()
            self._file.close()
            reader = pa.ipc.open_file(pa.memory_map(str(self._path)))
        run = Run.of([reader.get_batch(i) for i in range(reader.num_record_batches)], mapped=True)
        self._path.unlink()
        return run

    def discard(self) -> None:
        with suppress(OSError):
            # What is still buffered may have no room either.
            self._file.close()
        self._path.unlink(missing_ok=True)

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise (StorageFullError if full else StorageError)(str(self._path), str(error)) from error


def fill(sink: BatchSink, batches: Iterable[pa.RecordBatch]) -> Run:
    """Put the batches into the sink; on any error nothing of it is left."""
    try:
        for batch in batches:
            sink.append(batch)
        return sink.finish()
    except BaseException:
        sink.discard()
        raise


def merge_runs(runs: Sequence[Run], policy: MergePolicy, sink: BatchSink) -> Run | None:
    """Write the live rows of the runs, in hash order, to the sink; None if there are none."""
    live = sum(run.live_rows for run in runs)
    if not live:
        return None
    row_bytes = max(1, sum(s.batch.nbytes for run in runs for s in run.segments) // sum(run.rows for run in runs))
    piece_rows = max(1024, policy.segment_bytes // row_bytes)
    pieces = _pieces(max(runs, key=lambda run: run.rows), -(-live // piece_rows))
    return fill(sink, (batch for piece in pieces if (batch := _merge_piece(runs, *piece)) is not None))


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


def _merge_piece(runs: Sequence[Run], low: int | None, high: int | None) -> pa.RecordBatch | None:
    sources: list[pa.RecordBatch] = []
    lists: list[tuple[int, int, tuple[Ints, ...]]] = []
    offset = 0
    paired = False
    for run in runs:
        for segment in run.segments:
            start = 0 if low is None else int(np.searchsorted(segment.hashes, low))
            stop = segment.hashes.size if high is None else int(np.searchsorted(segment.hashes, high))
            if start >= stop:
                continue
            bit = segment.first_row - run.first_row
            hashes, rows = kernels.live_hashes(run.live, bit + start, segment.hashes[start:stop], offset)
            if not rows.size:
                continue
            seconds = segment.seconds
            if seconds is None:
                lists.append((rows.size, len(lists), (hashes, rows)))
            else:
                paired = True
                lists.append((rows.size, len(lists), (hashes, seconds[start + (rows - offset)], rows)))
            sources.append(segment.batch.slice(start, stop - start))
            offset += stop - start
    if not lists:
        return None
    # Smallest first: each row is then moved about log(runs) times, the rows of the largest run only once.
    heapq.heapify(lists)
    number = len(lists)
    merge_two = pair_kernels.merge_two_pairs if paired else kernels.merge_two
    while len(lists) > 1:
        left, right = heapq.heappop(lists), heapq.heappop(lists)
        merged = merge_two(*left[2], *right[2])
        heapq.heappush(lists, (merged[-1].size, number, merged))
        number += 1
    *sort_arrays, rows = lists[0][2]
    columns = [pa.array(values) for values in sort_arrays]
    for field in range(len(sort_arrays), sources[0].num_columns):
        parts_of_field = [source.column(field) for source in sources]
        one = parts_of_field[0] if len(parts_of_field) == 1 else pa.concat_arrays(parts_of_field)
        columns.append(take(one, rows))
    return pa.RecordBatch.from_arrays(columns, schema=sources[0].schema)
