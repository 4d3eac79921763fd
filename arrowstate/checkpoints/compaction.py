"""Compaction: which runs are merged so that a checkpoint takes little more than its live rows, and in few files.

Tables merge their own runs while they are written to. What that leaves: runs that nobody writes to any more, files that
several subtasks share after a rescale, and small runs below the tiers. A `CompactionPolicy` says how much of that may
be, and `choose` picks the files to rewrite, worst first.

Here the runs of live backends are merged, in three steps that commits need not wait for: `plan_compaction` freezes the
chosen runs on the thread that owns the backends; `CompactionPlan.run` merges them on any other; `CompactionPlan.adopt`
puts the results into the tables, again on the owner's thread. The next checkpoint writes the merged runs and refers to
the old files no more. A store that nobody writes to is compacted by `arrowstate.upkeep.compaction`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from arrowstate.errors import InvalidInputError, StorageError, StorageFullError
from arrowstate.files.storage_use import SMALL_FILE_BYTES, Item, RunFile, RunSlice, files_of, stored_slice
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.table.background_merge import BackgroundMerge
from arrowstate.table.run import Run
from arrowstate.table.table import Table
from arrowstate_formats.integers import check_integer
from arrowstate_formats.run_files import INLINE_BYTES


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """How much more than its live rows a state may take on storage, and in how many small files.

    A state over the limit is brought half the way back to 1: the files with the smallest share of live bytes are
    rewritten, until bytes over live bytes are at most (1 + max_space_amplification) / 2. For each byte that a rewrite
    frees it writes at most 2 / (max_space_amplification - 1) bytes, 2 by default. Rows die no faster than others are
    written, so at most that many bytes come to each byte that checkpoints write. Small files are merged when there are
    too many: then what is left in small files is below small_file_bytes per subtask, and at most that much is written
    again for the next max_small_files of them.

    Raises
    ------
    InvalidInputError
        If a limit is out of its range.

    Examples
    --------
    >>> CompactionPolicy(max_space_amplification=1.5)
    CompactionPolicy(max_space_amplification=1.5, small_file_bytes=1048576, max_small_files=16, min_bytes=20480)
    """

    max_space_amplification: float = 2.0
    "Bytes that a state takes, in files and in manifests, over those of its live rows; above 1."
    small_file_bytes: int = SMALL_FILE_BYTES
    "A run file with fewer bytes is small; at least 0."
    max_small_files: int = 16
    "With more small files of a state per subtask they are merged, all of them; at least 1."
    min_bytes: int = INLINE_BYTES
    """A state that takes fewer bytes per subtask is left alone, at least 0. By default that is what stays inline, where
    what a manifest says of a run takes as much as its rows."""

    def __post_init__(self) -> None:
        if not 1 < self.max_space_amplification < math.inf:
            raise InvalidInputError(
                f"bytes over live bytes are at least 1, so max_space_amplification must be above 1 and finite, "
                f"got {self.max_space_amplification}"
            )
        for name in ("small_file_bytes", "max_small_files", "min_bytes"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name)))
        if self.small_file_bytes < 0:
            raise InvalidInputError(f"small_file_bytes must not be negative, got {self.small_file_bytes}")
        if self.max_small_files < 1:
            raise InvalidInputError(f"max_small_files must be at least 1, got {self.max_small_files}")
        if self.min_bytes < 0:
            raise InvalidInputError(f"min_bytes must not be negative, got {self.min_bytes}")


def choose(
    slices: Sequence[RunSlice[Item]], subtasks: int, policy: CompactionPolicy
) -> dict[int, list[RunSlice[Item]]]:
    """Return what is to be merged of one state, by subtask; nothing while the state is within the limits.

    A file is rewritten in all subtasks that own rows of it or in none: it goes when the last of them has left it.
    """
    files = files_of(slices)
    if sum(file.bytes for file in files) < policy.min_bytes * subtasks:
        return {}
    chosen = {id(file): file for file in [*_with_dead_rows(files, policy), *_small(files, subtasks, policy)]}
    found: dict[int, list[RunSlice[Item]]] = {}
    for file in chosen.values():
        for part in file.slices:
            found.setdefault(part.subtask, []).append(part)
    # A file of live rows alone, with nothing to merge it with, would only be copied.
    return {
        subtask: parts
        for subtask, parts in sorted(found.items())
        if len(parts) > 1 or parts[0].live_rows < parts[0].rows
    }


def _with_dead_rows(files: Sequence[RunFile[Item]], policy: CompactionPolicy) -> list[RunFile[Item]]:
    size, live = sum(file.bytes for file in files), sum(file.live_bytes for file in files)
    if size <= policy.max_space_amplification * live:
        return []
    wanted = (1 + policy.max_space_amplification) / 2
    picked = []
    for file in sorted(files, key=lambda file: file.bytes_rewritten / file.bytes):
        # While there is more than wanted, the worst file is worse than the bound, unless what is too much cannot be
        # freed: directories, and documents of runs that are few and small.
        freed = file.bytes - file.bytes_rewritten
        if size <= wanted * live or freed < (wanted - 1) * file.bytes_rewritten:
            break
        picked.append(file)
        size -= freed
    return picked


def _small(files: Sequence[RunFile[Item]], subtasks: int, policy: CompactionPolicy) -> list[RunFile[Item]]:
    small = [file for file in files if file.data_bytes < policy.small_file_bytes]
    # Inline runs are no files, but go along: they make the manifest large.
    return small if sum(not file.inline for file in small) > policy.max_small_files * subtasks else []


class _Part(Struct, frozen=True):
    """The merge of some runs of one state of one backend."""

    backend: KeyedStateBackend
    state: str
    table: Table
    merge: BackgroundMerge


class CompactionPlan:
    """Merges of frozen runs of live backends. One that is never adopted leaves nothing behind."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = tuple(parts)

    @property
    def runs(self) -> int:
        """How many runs it merges; 0 where nothing is to be done."""
        return sum(len(part.merge.sources) for part in self._parts)

    def run(self) -> None:
        """Merge the runs as they were frozen; for another thread than that of the backends.

        Rows go to memory, or past the memory budget of their backend to its spill folder. Besides them it takes
        4 bytes for each row of the runs until the plan is dropped.
        """
        for part in self._parts:
            part.merge.run()

    def adopt(self) -> int:
        """Put the merged runs in the place of their sources; for the thread of the backends.

        What the states hold stays the same. A merge whose runs the table has meanwhile merged itself, or that has gone
        back to an earlier moment, is dropped; so is one that was not run.
        """
        return sum(self._is_current(part) and part.table.adopt(part.merge) for part in self._parts)

    @staticmethod
    def _is_current(part: _Part) -> bool:
        # A state that was taken up under another descriptor since has another table.
        state = part.backend.states.get(part.state)
        return state is not None and state.table is part.table


def plan_compaction(
    operators: Mapping[str, Sequence[KeyedStateBackend]], store: str, policy: CompactionPolicy
) -> CompactionPlan:
    """Freeze the runs that are to be merged. No row is copied; the cost grows with the number of runs."""
    parts = []
    for backends in operators.values():
        for name in dict.fromkeys(name for backend in backends for name in backend.states):
            slices = [
                _slice_of(subtask, run, store)
                for subtask, backend in enumerate(backends)
                if name in backend.states
                for run in backend.states[name].table.runs
                if run.live_rows
            ]
            for subtask, chosen in choose(slices, len(backends), policy).items():
                state = backends[subtask].states[name]
                merge = state.begin_merge([part.item for part in chosen])
                parts.append(_Part(backends[subtask], name, state.table, merge))
    return CompactionPlan(parts)


def compact_backends(operators: Mapping[str, Sequence[KeyedStateBackend]], store: str, policy: CompactionPolicy) -> int:
    """Plan, run and adopt at once, on the thread of the backends; return how many merged runs there are."""
    plan = plan_compaction(operators, store, policy)
    plan.run()
    return plan.adopt()


class BackgroundCompaction:
    """Merges runs of live backends in a thread of its own, from one checkpoint to the next; without a policy none."""

    def __init__(
        self, operators: Mapping[str, Sequence[KeyedStateBackend]], store: str, policy: CompactionPolicy | None
    ) -> None:
        self._operators = operators
        self._store = store
        self._policy = policy
        self._thread = ThreadPoolExecutor(1, "arrowstate-compaction")
        self._merging: tuple[CompactionPlan, Future[None]] | None = None

    def adopt(self) -> None:
        """Put runs that were merged meanwhile in the place of their sources."""
        if self._merging is None or not self._merging[1].done():
            return
        (plan, future), self._merging = self._merging, None
        error = future.exception()
        if error is None:
            plan.adopt()
        elif isinstance(error, StorageError | StorageFullError):
            # The runs stay as they are, and the next checkpoint tries again.
            warnings.warn(f"runs could not be compacted: {error}", RuntimeWarning, stacklevel=5)
        else:
            raise error

    def plan(self) -> None:
        """Let runs be merged if they take too much room; the next checkpoint may have the result."""
        if self._policy is None or self._merging is not None:
            return
        plan = plan_compaction(self._operators, self._store, self._policy)
        if plan.runs:
            self._merging = plan, self._thread.submit(plan.run)

    def close(self) -> None:
        """Wait for what is being merged."""
        self._thread.shutdown()


def _slice_of(subtask: int, run: Run, store: str) -> RunSlice[Run]:
    stored = run.stored.get(store)
    if stored is not None:
        found = stored_slice(subtask, stored[0], run, live_rows=run.live_rows)
        return found if run.live_rows == stored[0].live_rows else replace(found, dead_bytes=_vector_bytes(run))
    return _slice_to_come(subtask, run)


def _slice_to_come(subtask: int, run: Run) -> RunSlice[Run]:
    """Return about what a run will be when it is written: its rows, a frame, a directory, a document."""
    batches = min(max(1, run.rows // 4096), 128)
    size = sum(segment.stored.nbytes for segment in run.segments) + 800 + 270 * batches
    inline = size < INLINE_BYTES
    document = 900 + 130 * run.segments[0].stored.num_columns + 300 * batches + (size * 4 // 3 if inline else 0)
    directory = run.rows if run.rows >= 65_536 else 0
    vector = _vector_bytes(run)
    return RunSlice(subtask, run, id(run), inline, size, directory, vector, document, run.rows, run.live_rows)


def _vector_bytes(run: Run) -> int:
    """About how large the deletion vector of a run will be: two bytes for each dead row, or a bit for each row."""
    return min(2 * run.dead_rows, run.rows // 8)
