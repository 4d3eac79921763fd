"""What a micro-batch took: counted in its tasks, added up for its commit, and kept in its log entry.

The log is where the figures are because all processes share it: on Spark Connect the driver is a process of the
server. `progress`, and the query that `start()` returns, read them there,
so no micro-batch has a job more for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields

import msgspec

from arrowstate.storage.cache import CacheUse, cache_use
from arrowstate_formats.documents import SubtaskDocument, SubtaskStatisticsDocument

__all__ = ["BatchMetrics", "TaskMeter", "TaskMetrics"]


class TaskMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What one task has counted."""

    rows: int
    output_rows: int = 0
    dead_rows: int = 0
    state_rows: int
    state_bytes: int
    bytes_written: int = 0
    checkpoint_us: int = 0
    """How long it took to freeze and to write the state."""
    cache_hits: int
    cache_misses: int


class TaskMeter:
    """Counts from the start of a task on; a worker process runs one task at a time."""

    def __init__(self) -> None:
        self._before = cache_use()

    def written(
        self,
        subtask: SubtaskDocument,
        statistics: SubtaskStatisticsDocument,
        *,
        rows: int,
        output_rows: int = 0,
        dead_rows: int = 0,
    ) -> TaskMetrics:
        """Return what a task took that has written its subtask."""
        cache = self._cache()
        return TaskMetrics(
            rows=rows,
            output_rows=output_rows,
            dead_rows=dead_rows,
            state_rows=sum(subtask.live_rows.values()),
            state_bytes=statistics.bytes_total,
            bytes_written=statistics.bytes_written,
            checkpoint_us=(statistics.sync_us or 0) + (statistics.async_us or 0),
            cache_hits=cache.hits,
            cache_misses=cache.misses,
        )

    def unchanged(self, subtask: SubtaskDocument, state_bytes: int) -> TaskMetrics:
        """Return what a task took that had no rows, and left its subtask as it was."""
        cache = self._cache()
        return TaskMetrics(
            rows=0,
            state_rows=sum(subtask.live_rows.values()),
            state_bytes=state_bytes,
            cache_hits=cache.hits,
            cache_misses=cache.misses,
        )

    def _cache(self) -> CacheUse:
        return cache_use().since(self._before)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetrics:
    """What a micro-batch took, all operators and subtasks together."""

    rows: int
    """How many rows the operators were given; a row that two of them get counts twice."""
    output_rows: int
    """How many rows they emitted."""
    dead_rows: int
    """How many rows were set aside as dead letters."""
    state_rows: int
    """How many rows all states have after it."""
    state_bytes: int
    """The size of all files of the keyed state, those of earlier micro-batches too."""
    bytes_written: int
    """The size of what of these was written for it."""
    cache_hits: int
    """How many files of an object storage were found in the local cache; a local store needs none."""
    cache_misses: int
    """How many were fetched."""
    checkpoint_ms: int
    """How long the slowest subtask took to freeze and to write its state, in milliseconds."""
    duration_ms: int
    """From its start in the driver to its commit, in milliseconds."""
    files_collected: int = 0
    """How many files a retention has deleted since the micro-batch before."""
    collections_failed: int = 0
    """How many of its collections have failed since then."""

    @classmethod
    def of(cls, tasks: Iterable[TaskMetrics], duration_ms: int) -> BatchMetrics:
        """Add up what the tasks of a micro-batch have counted."""
        tasks = list(tasks)
        return cls(
            rows=sum(task.rows for task in tasks),
            output_rows=sum(task.output_rows for task in tasks),
            dead_rows=sum(task.dead_rows for task in tasks),
            state_rows=sum(task.state_rows for task in tasks),
            state_bytes=sum(task.state_bytes for task in tasks),
            bytes_written=sum(task.bytes_written for task in tasks),
            cache_hits=sum(task.cache_hits for task in tasks),
            cache_misses=sum(task.cache_misses for task in tasks),
            checkpoint_ms=max((task.checkpoint_us for task in tasks), default=0) // 1000,
            # The clocks of a driver and of its workers may differ.
            duration_ms=max(duration_ms, 0),
        )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the figures, in their order."""
        return tuple(item.name for item in fields(cls))

    def to_properties(self) -> Mapping[str, int]:
        """Return the figures by name."""
        return asdict(self)
