"""Tiered merging: which runs to merge when, and the merge itself.

Runs are put in tiers by their live rows, each tier `fan_in` times as large as the one below. When a tier
holds `fan_in` runs, or more than `max_dead_share` of a run's rows are dead, the runs concerned are merged
with all smaller ones. So there are at most (fan_in - 1) runs a tier, and the dead share stays bounded.
The tiers are those of the size-tiered LSM trees (O'Neil et al., 1996; Cassandra); there are no tombstones.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.table import kernels, pair_kernels, place_kernels
from arrowstate.table.columns import fixed_words, fresh_words, gather_places, gather_words
from arrowstate.table.run import Bits, Directory, Run, all_live
from arrowstate.table.segment import has_second
from arrowstate.table.segments import Segments

__all__ = ["BatchSink", "MemorySink", "MergePolicy", "Merging", "fill", "merge_runs"]

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
    step_rows: int = 16_384
    "A merge of more rows than this, and than some batches bring, is made in steps that the next batches pay for."
    pace: int = 8
    """How many rows of each merge under way are looked at for a row that is written, at least 2. The fewer, the more
    evenly batches are charged, and the longer the runs of a merge are read beside those that came after them."""

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
    """A merge of runs, made piece by piece: what is live when its piece is made goes into the merged run.

    Parameters
    ----------
    runs
        The runs; their rows stay, their live bits may change meanwhile, see `drop`.
    policy
        `segment_bytes` is about the size of a record batch of the merged run.
    sink
        Where the merged rows go; nothing of them is left there if the merge fails or is closed.
    piece_rows
        About how many rows a piece has; those of one record batch by default.
    in_steps
        Whether the runs may be written to before it is done: where each row went is kept, 4 bytes a row, and the
        directory of the merged run is made piece by piece too.
    expired_up_to
        Rows whose last update was at this time, in milliseconds, or before are left out; None for none.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        policy: MergePolicy,
        sink: BatchSink,
        *,
        piece_rows: int | None = None,
        in_steps: bool = False,
        expired_up_to: int | None = None,
    ) -> None:
        self.runs = tuple(runs)
        self.merged: Run | None = None
        """The merged run; None before the merge is done, and where no row is left."""
        self.in_steps = in_steps
        self.done = False
        self._sink = sink
        self._expired_up_to = expired_up_to
        self._is_slow = policy.is_slow
        rows, live = sum(run.rows for run in runs), sum(run.live_rows for run in runs)
        row_bytes = max(1, sum(s.stored.nbytes for run in runs for s in run.segments) // max(1, rows))
        self._segment_rows = max(1024, policy.segment_bytes // row_bytes)
        self._most = live
        self._ends = [run.first_row for run in runs]
        "One past the last row of each run that was looked at."
        self._starts = np.cumsum([0, *(run.rows for run in runs)])
        self._borders = [_borders_of(run) for run in runs]
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

    def step(self, rows: int) -> None:
        """Go on until so many rows of the runs were looked at, or it is done."""
        for looked in self._work:
            rows -= looked
            if rows <= 0:
                return

    def close(self) -> None:
        """Give it up; nothing is left of it."""
        self._work.close()

    def let_go(self) -> None:
        """Let go of all rows of the sources and of the merged run; `places` goes on answering."""
        self.runs = tuple(replace(run, segments=Segments(), built=None) for run in self.runs)
        self.merged = None

    def drop(self, number: int, rows: Ints) -> None:
        """Take rows that have just died in a run, given by its number, out of what was merged so far."""
        if self._places is None or self.done:
            return
        ahead = int(self._starts[number]) - self.runs[number].first_row
        end = self._ends[number]
        self._dead += place_kernels.clear_places(rows, end, ahead, self._places, self._live)

    def places(self, number: int, rows: Ints) -> Ints:
        """Return the rows of the merged run that some rows of a source became; rows that had no part are left out."""
        assert self._places is not None, "it was made in steps"
        places = self._places[rows - self.runs[number].first_row + self._starts[number]]
        return places[places > 0].astype(np.int64) - 1

    def _steps(self) -> Generator[int, None, None]:
        made: _BatchInTheMaking | None = None
        row = 0
        try:
            for low, high in self._pieces:
                sources, starts = self._sources(low, high)
                chosen = _chosen(sources, self._expired_up_to)
                rows = chosen.places.size
                if made is not None and made.rows + rows > made.capacity:
                    self._sink.append(made.finish())
                    made = None
                if rows:
                    if made is None:
                        room = max(rows, self._batch_rows(row))
                        by_and_by = self.in_steps and self._is_slow
                        made = _BatchInTheMaking(sources[0][0].schema, room, small_pages=by_and_by)
                    made.add([part for part, _, _, _ in sources], chosen)
                    self._note(chosen, starts, row)
                    row += rows
                if self._directory is not None:
                    self._counted = self._directory.count_up_to(high, self._counted)
                yield sum(part.num_rows for part, _, _, _ in sources)
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
        if self._directory is not None:
            merged.built = self._directory
            bits = self._live[: (rows + 7) // 8]
            if rows % 8:
                bits[-1] &= (1 << rows % 8) - 1
            merged.live, merged.live_rows = bits, rows - self._dead
        return merged

    def _sources(self, low: int | None, high: int | None) -> tuple[list[Source], list[int]]:
        """Return the rows in a range of hashes, and by source the number of its first row among those of all runs."""
        sources: list[Source] = []
        starts: list[int] = []
        for number, (run, (firsts, lasts)) in enumerate(zip(self.runs, self._borders, strict=True)):
            first = 0 if low is None else int(np.searchsorted(lasts, low))
            last = firsts.size if high is None else int(np.searchsorted(firsts, high))
            for segment in run.segments[first:last]:
                start = 0 if low is None else int(np.searchsorted(segment.hashes, low))
                stop = segment.hashes.size if high is None else int(np.searchsorted(segment.hashes, high))
                if start < stop:
                    rows = segment.batch.slice(start, stop - start)
                    bit = segment.first_row + start - run.first_row
                    sources.append((rows, segment.hashes[start:stop], run.live, bit))
                    starts.append(int(self._starts[number]) + bit)
                    self._ends[number] = segment.first_row + stop
        return sources, starts

    def _note(self, chosen: _Chosen, starts: Sequence[int], row: int) -> None:
        """Keep where rows went, of which the first is a row of the merged run."""
        places = chosen.places
        if self._places is not None:
            place_kernels.note_places(np.array(starts, dtype=np.int64), places, row + 1, self._places)
        if self._directory is not None:
            self._directory.count_rows(chosen.hashes)


def _borders_of(run: Run) -> tuple[Ints, Ints]:
    """Return the first and the last hash of each segment."""
    return run.segments.lowest, run.segments.highest


def _pieces(largest: Run, count: int) -> list[tuple[int | None, int | None]]:
    """Cut the hash range into about `count` pieces; each is (low inclusive, high exclusive), None is open."""
    rows = largest.first_row + largest.rows * np.arange(1, count) // count
    ends = np.array([segment.end_row for segment in largest.segments])
    borders: list[int] = []
    for number, segment in enumerate(largest.segments):
        inside = rows[np.searchsorted(ends, rows, side="right") == number] - segment.first_row
        borders += np.unique(segment.hashes[np.maximum(inside, 0)]).tolist()
    return list(zip([None, *borders], [*borders, None], strict=True))


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Rows that go into a merged run, in its order."""

    hashes: Ints
    seconds: Ints | None
    places: Ints
    "The number of the source << 32 | the row there."


def _chosen(sources: Sequence[Source], expired_up_to: int | None) -> _Chosen:
    """Return the live rows of the sources that have not expired."""
    hashes, places = _live(sources)
    parts = [part for part, _, _, _ in sources]
    if expired_up_to is not None and hashes.size:
        updated = gather_places([part.column(part.num_columns - 1) for part in parts], places).to_numpy()
        fresh = updated > expired_up_to
        hashes, places = hashes[fresh], places[fresh]
    # The live rows are a few sorted lists one after the other, which the sort puts together in one pass.
    if hashes.size and has_second(parts[0].schema):
        seconds = gather_places([part.column(1) for part in parts], places).to_numpy()
        order = pair_kernels.sort_by_pair(hashes, seconds)
        return _Chosen(hashes[order], seconds[order], places[order])
    hashes, order = kernels.sort_by_hash(hashes)
    return _Chosen(hashes, None, places[order])


class _BatchInTheMaking:
    """A record batch of a merged run, filled piece by piece."""

    def __init__(self, schema: pa.Schema, capacity: int, *, small_pages: bool) -> None:
        self.capacity = capacity
        self.rows = 0
        self._schema = schema
        self._columns = [_ColumnInTheMaking(field.type, capacity, small_pages=small_pages) for field in schema]

    def add(self, parts: Sequence[pa.RecordBatch], chosen: _Chosen) -> None:
        sorted_columns = [chosen.hashes] if chosen.seconds is None else [chosen.hashes, chosen.seconds]
        for number, column in enumerate(self._columns):
            if number < len(sorted_columns):
                column.add([pa.array(sorted_columns[number])], None)
            else:
                column.add([part.column(number) for part in parts], chosen.places)
        self.rows += chosen.places.size

    def finish(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([column.finish() for column in self._columns], schema=self._schema)


class _ColumnInTheMaking:
    """A column of it: where there are no nulls and the width is fixed, values go straight to where they stay."""

    def __init__(self, kind: pa.DataType, capacity: int, *, small_pages: bool) -> None:
        self._small_pages = small_pages
        self._kind = kind
        self._room = capacity
        self._parts: list[pa.Array] = []
        self._words: npt.NDArray[Any] | None = None
        self._filled = 0

    def add(self, sources: Sequence[pa.Array], places: Ints | None) -> None:
        """Add the rows of the sources at some places, or all rows of the only one."""
        rows = len(sources[0]) if places is None else places.size
        words = [fixed_words(source) for source in sources]
        if any(word is None or source.null_count for word, source in zip(words, sources, strict=True)):
            assert places is not None, "a hash has a fixed width and is never null"
            self._cut()
            self._parts.append(gather_places(sources, places))
        else:
            first = words[0]
            assert first is not None
            if self._words is None:
                shape = self._room, first.shape[1]
                by_and_by = self._small_pages
                self._words = fresh_words(*shape, first.dtype) if by_and_by else np.empty(shape, dtype=first.dtype)
            out = self._words[self._filled : self._filled + rows]
            if places is None:
                out[:] = first
            else:
                gather_words([word for word in words if word is not None], places, out)
            self._filled += rows
        self._room -= rows

    def finish(self) -> pa.Array:
        self._cut()
        return self._parts[0] if len(self._parts) == 1 else pa.concat_arrays(self._parts)

    def _cut(self) -> None:
        if self._words is not None:
            values = pa.py_buffer(self._words[: self._filled])
            self._parts.append(pa.Array.from_buffers(self._kind, self._filled, [None, values], 0))
            self._words, self._filled = None, 0


def _live(sources: Sequence[Source]) -> tuple[Ints, Ints]:
    """Return hashes and places of the live rows, source by source."""
    rows = sum(part.num_rows for part, _, _, _ in sources)
    hashes, places = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
    count = 0
    for number, (_, part_hashes, live, bit) in enumerate(sources):
        count += kernels.live_places(live, bit, part_hashes, number, hashes[count:], places[count:])
    return hashes[:count], places[:count]
