"""Tiered merging: which runs to merge when, and the merge itself.

Runs are put in tiers by their live rows, each tier `fan_in` times as large as the one below. When a tier
holds `fan_in` runs, or more than `max_dead_share` of a run's rows are dead, the runs concerned are merged
with all smaller ones. So there are at most (fan_in - 1) runs a tier, and the dead share stays bounded.
The tiers are those of the size-tiered LSM trees (O'Neil et al., 1996; Cassandra); there are no tombstones.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.table import place_kernels
from arrowstate.table.columns import fresh_words
from arrowstate.table.merge_sources import Chosen, Sources
from arrowstate.table.merged_batch import BatchInTheMaking
from arrowstate.table.run import Bits, Run, all_live
from arrowstate.table.segments import Directory, Segments
from arrowstate.table.zones import MergedTimes, Zones

Ints = npt.NDArray[np.int64]

_LARGE_BATCH = 65_536


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """When runs are merged, and how much of a merge each batch does.

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
    step_rows: int = 16_384
    "A merge of more rows than this, and than some batches bring, is made in steps that the next batches pay for."
    pace: int = 8
    """For each row that is written, merges under way look at 2 * `pace` rows; at least 2. They look at more rows when
    many merges are under way, and after large batches. A small pace spreads the work more evenly over batches. It also
    lets merges take longer, and until a merge ends each read looks at the runs that it merges."""

    def pick(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs to merge now, or none."""
        largest = -1
        counts: dict[int, int] = {}
        for run in runs:
            tier = self.tier(run.live_rows)
            counts[tier] = counts.get(tier, 0) + 1
            rows = run.rows
            if rows - run.live_rows > self.max_dead_share * rows:
                largest = max(largest, run.live_rows)
        full = [tier for tier, count in counts.items() if count >= self.fan_in]
        if full:
            top = max(full)
            largest = max(largest, max(run.live_rows for run in runs if self.tier(run.live_rows) == top))
        return [run for run in runs if run.live_rows <= largest]

    def without_small(self, picked: Sequence[Run]) -> list[Run]:
        """Return the runs of a merge that goes on in steps: those more than a tier below the largest are left out.

        They are merged with one another meanwhile, as ever, instead of being read one by one until it is done.
        """
        lowest = self.tier(max(run.live_rows for run in picked)) - 1
        return [run for run in picked if self.tier(run.live_rows) >= lowest]

    def work(self, written: int, merges: int) -> int:
        """Return how many rows of so many merges under way are looked at for rows that were written.

        More than four are under way only where that is too little for what is written. After large batches it is twice
        as much: a row of them costs less to look for, so that runs read beside a merge count for more.
        """
        most = 4 if written < _LARGE_BATCH else 8
        return self.pace * written * max(most, merges) // 2

    def for_appends(self) -> MergePolicy:
        """Return the policy of a state whose batches are appended without a look at what is there.

        Nothing is as cheap as such a batch, so merges go on more slowly, beside more of them; it costs the batches none
        that more runs are read meanwhile.
        """
        return replace(self, pace=min(self.pace, 2))

    @property
    def is_slow(self) -> bool:
        """Whether so many batches fill a record batch that each is to find memory for its own share alone.

        That takes longer in all, and what is in such memory is found more slowly, so it is for appends.
        """
        return self.pace <= 2

    def __post_init__(self) -> None:
        if self.fan_in < 2 or min(self.first_tier_rows, self.segment_bytes, self.step_rows) < 1:
            raise InvalidInputError(
                "a merge policy needs fan_in of at least 2, and first_tier_rows, segment_bytes and step_rows of at "
                f"least 1; got {self.fan_in}, {self.first_tier_rows}, {self.segment_bytes} and {self.step_rows}"
            )
        if not 0 < self.max_dead_share <= 1:
            raise InvalidInputError(f"max_dead_share must be above 0 and at most 1, got {self.max_dead_share}")
        if self.pace < 2:
            # As many rows come again while the rows of a tier are merged.
            raise InvalidInputError(f"a merge looks at 2 rows at least for each row written, got a pace of {self.pace}")

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


def merge_runs(runs: Sequence[Run], policy: MergePolicy, sink: BatchSink) -> Run | None:
    """Write the live rows of the runs, in hash order, to the sink; None if there are none."""
    merging = Merging(runs, policy, sink)
    merging.finish()
    return merging.merged


class Merging:
    """A merge of runs, made piece by piece: what is live when its piece is made goes into the merged run."""

    def __init__(
        self,
        runs: Sequence[Run],
        policy: MergePolicy,
        sink: BatchSink,
        *,
        piece_rows: int | None = None,
        in_steps: bool = False,
        expired_up_to: int | None = None,
        time_column: int | None = None,
    ) -> None:
        self.runs = tuple(runs)
        self.merged: Run | None = None
        """The merged run; None before the merge is done, and where no row is left."""
        self.in_steps = in_steps
        self.done = False
        self._sink = sink
        self._expired_up_to = expired_up_to
        self._is_slow = policy.is_slow
        self._time_column = time_column
        rows, live = sum(run.rows for run in runs), sum(run.live_rows for run in runs)
        row_bytes = max(1, sum(run.segments.stored_bytes for run in runs) // max(1, rows))
        self._segment_rows = max(1024, policy.segment_bytes // row_bytes)
        self._most = live
        self._times = MergedTimes(live) if in_steps and time_column is not None else None
        self._sources = Sources(runs)
        pieces = -(-live // min(self._segment_rows, piece_rows or self._segment_rows))
        self._pieces = _pieces(max(runs, key=lambda run: run.rows), pieces) if live else []
        self._places: npt.NDArray[np.uint32] | None = None
        self._live: Bits = np.empty(0, dtype=np.uint8)
        self._dead = 0
        self._directory: Directory | None = None
        self._counted = 0
        if in_steps and live:
            # Memory that is not touched yet costs nothing; 0 stands for a row that went nowhere.
            is_slow, kind = policy.is_slow, np.uint32
            self._places = fresh_words(rows, 1, kind)[:, 0] if is_slow else np.zeros(rows, dtype=kind)
            self._live = all_live(live)
            low = min(int(run.segments.lowest[0]) for run in runs if len(run.segments))
            high = max(int(run.segments.highest[-1]) for run in runs if len(run.segments))
            self._directory = Directory.empty(low, high, live)
        self._work = self._steps()

    def finish(self) -> None:
        """Make all that is left of it."""
        for _ in self._work:
            pass

    def step(self, rows: int) -> int:
        """Go on until so many rows of the runs were looked at, or it is done; return how many there were."""
        looked_at = 0
        for looked in self._work:
            looked_at += looked
            if looked_at >= rows:
                break
        return looked_at

    @property
    def rows(self) -> int:
        """How many rows the runs have, dead ones included."""
        return int(self._sources.starts[-1])

    def close(self) -> None:
        """Give it up; nothing is left of it."""
        self._work.close()

    def let_go(self) -> None:
        """Let go of all rows of the sources and of the merged run; `places` goes on answering."""
        self.runs = tuple(replace(run, segments=Segments(), built=None) for run in self.runs)
        self._sources = Sources(self.runs)
        self.merged = None

    def drop(self, number: int, rows: Ints) -> None:
        """Take rows that have just died in a run, given by its number, out of what was merged so far."""
        if self._places is None or self.done:
            return
        ahead = int(self._sources.starts[number]) - self.runs[number].first_row
        end = self._sources.ends[number]
        self._dead += place_kernels.clear_places(rows, end, ahead, self._places, self._live)

    def places(self, number: int, rows: Ints) -> Ints:
        """Return the rows of the merged run that some rows of a source became; rows that had no part are left out."""
        assert self._places is not None, "it was made in steps"
        places = self._places[rows - self.runs[number].first_row + self._sources.starts[number]]
        return places[places > 0].astype(np.int64) - 1

    def _steps(self) -> Generator[int, None, None]:
        made: BatchInTheMaking | None = None
        row = 0
        try:
            for high in self._pieces:
                piece = self._sources.piece(high)
                chosen = piece.chosen(self._expired_up_to)
                rows = chosen.places.size
                if made is not None and made.rows + rows > made.capacity:
                    self._sink.append(made.finish())
                    made = None
                if rows:
                    if made is None:
                        room = max(rows, self._batch_rows(row))
                        by_and_by = self.in_steps and self._is_slow
                        made = BatchInTheMaking(piece.schema, room, small_pages=by_and_by)
                    made.add(piece, chosen)
                    if self._times is not None and self._time_column is not None:
                        self._times.add(row, made.latest(self._time_column, rows))
                    self._note(chosen, piece.firsts, row)
                    row += rows
                if self._directory is not None:
                    self._counted = self._directory.count_up_to(high, self._counted)
                yield piece.rows
            if made is not None:
                self._sink.append(made.finish())
            if row:
                self.merged = self._finished(row)
            else:
                self._sink.discard()
        except BaseException:
            self._sink.discard()
            raise
        self.done = True

    def _batch_rows(self, row: int) -> int:
        """Return how many rows a record batch has room for that begins at a row of the merged run."""
        return min(self._segment_rows, self._most - row)

    def _finished(self, rows: int) -> Run:
        merged = self._sink.finish()
        if (times := self._times) is not None and (column := self._time_column) is not None:
            merged.segments.shared(("zones", column), lambda: Zones(merged.segments, column, times))
        if self._directory is not None:
            merged.built = self._directory
            bits = self._live[: (rows + 7) // 8]
            if rows % 8:
                bits[-1] &= (1 << rows % 8) - 1
            merged.live, merged.live_rows = bits, rows - self._dead
        return merged

    def _note(self, chosen: Chosen, firsts: Ints, row: int) -> None:
        """Keep where rows went, of which the first is a row of the merged run."""
        places = chosen.places
        if self._places is not None:
            place_kernels.note_places(firsts, places, row + 1, self._places)
        if self._directory is not None:
            self._directory.count_rows(chosen.hashes)


def _pieces(largest: Run, count: int) -> list[int | None]:
    """Cut the hash range into about `count` pieces; return where each ends, exclusive, None for the last."""
    rows = largest.first_row + largest.rows * np.arange(1, count) // count
    ends = np.array([segment.end_row for segment in largest.segments])
    borders: list[int] = []
    for number, segment in enumerate(largest.segments):
        inside = rows[np.searchsorted(ends, rows, side="right") == number] - segment.first_row
        borders += np.unique(segment.hashes[np.maximum(inside, 0)]).tolist()
    return [*borders, None]
