"""The checkpoints of a store as tables: `arrowstate.checkpoints` and `arrowstate.subtasks` in SQL.

What the rows say stands in the log entries, so they are read when a query asks for them, and are those of the log at
that time, whichever checkpoint the query runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.clock import now_ms
from arrowstate.errors import CorruptDataError
from arrowstate.files.subtasks import subtasks_of
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import newest_id
from arrowstate.log.pins import Pin, read_pins
from arrowstate.query.catalog import HISTORY_NAMES
from arrowstate.query.duckdb.dataset import ScanStatistics, passing
from arrowstate.query.duckdb.filters import Bounds, Node, columns_of, may_match, read_filter, values_of
from arrowstate.query.expiry import time_or_null
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, SubtaskStatisticsDocument

Rows = Callable[[Storage, LogEntryDocument, Sequence[Pin]], Iterator[dict[str, Any]]]

_WRITTEN = [
    pa.field("sync_us", pa.int64()),
    pa.field("async_us", pa.int64()),
    pa.field("alignment_us", pa.int64()),
    pa.field("bytes_written", pa.int64()),
    pa.field("bytes_total", pa.int64()),
    pa.field("files_written", pa.int64()),
]

_CHECKPOINTS = pa.schema(
    [
        pa.field("checkpoint_id", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("writer_epoch", pa.int64(), nullable=False),
        pa.field("triggered_at", pa.timestamp("ms"), nullable=False),
        pa.field("committed_at", pa.timestamp("ms"), nullable=False),
        pa.field("duration_ms", pa.int64(), nullable=False),
        *_WRITTEN,
        pa.field("subtasks", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("watermark", pa.int64()),
        pa.field("properties", pa.string(), nullable=False),
        pa.field("watermark_at", pa.timestamp("ms")),
        pa.field("tag", pa.string()),
        pa.field("is_kept_by", pa.string()),
        pa.field("fence", pa.string()),
    ]
)

_SUBTASKS = pa.schema(
    [
        pa.field("checkpoint_id", pa.int64(), nullable=False),
        pa.field("operator", pa.string(), nullable=False),
        pa.field("subtask", pa.int64()),
        pa.field("first_key_group", pa.int64()),
        pa.field("last_key_group", pa.int64()),
        pa.field("rows", pa.int64()),
        *_WRITTEN,
    ]
)


_ID = "checkpoint_id"
_OF_PINS = ("tag", "is_kept_by")
"""Columns for which tags and leases are read."""
_OF_FENCES = "fence"
"""The column for which the entries before the checkpoints are read."""


def _checkpoint(_: Storage, entry: LogEntryDocument, pins: Sequence[Pin]) -> Iterator[dict[str, Any]]:
    """A checkpoint: times of its slowest part, sizes of all together, null where nobody measured."""
    statistics = _statistics(entry)
    own = [
        pin for pin in pins if pin.entry.number == entry.number or (pin.and_later and pin.entry.number < entry.number)
    ]
    yield {
        "checkpoint_id": entry.checkpoint_id,
        "kind": entry.kind,
        "writer_epoch": entry.writer_epoch,
        "triggered_at": entry.started_at_ms,
        "committed_at": entry.committed_at_ms,
        "duration_ms": entry.committed_at_ms - entry.started_at_ms,
        **{name: _known(max, statistics, name) for name in ("sync_us", "async_us", "alignment_us")},
        **{name: _known(sum, statistics, name) for name in ("bytes_written", "bytes_total", "files_written")},
        "subtasks": sum(operator.parallelism for operator in entry.operators),
        "rows": sum(operator.live_rows(state.name) for operator in entry.operators for state in operator.states),
        "watermark": entry.watermark,
        "properties": msgspec.json.encode(entry.properties).decode(),
        "watermark_at": time_or_null(entry.watermark),
        "tag": ", ".join(pin.tag for pin in own if pin.tag is not None) or None,
        "is_kept_by": ", ".join(pin.holder for pin in own) or None,
    }


def _known(of: Callable[[Iterable[int]], int], items: Sequence[SubtaskStatisticsDocument], name: str) -> int | None:
    values = [getattr(item, name) for item in items]
    return of(values) if values and None not in values else None


def _statistics(entry: LogEntryDocument) -> list[SubtaskStatisticsDocument]:
    return [row for of_operator in entry.statistics for row in of_operator.rows()]


def _subtasks(storage: Storage, entry: LogEntryDocument, _: Sequence[Pin]) -> Iterator[dict[str, Any]]:
    """The subtasks of a checkpoint, and the operator state of an operator as one without a number."""
    written = {(item.operator, item.subtask): msgspec.structs.asdict(item) for item in _statistics(entry)}
    for operator in entry.operators:
        for subtask in subtasks_of(storage, operator):
            yield {
                **written.pop((operator.uid, subtask.subtask), {}),
                "checkpoint_id": entry.checkpoint_id,
                "operator": operator.uid,
                "subtask": subtask.subtask,
                "first_key_group": subtask.key_groups[0],
                "last_key_group": subtask.key_groups[1],
                "rows": sum(subtask.live_rows.values()),
            }
    for rest in written.values():
        yield {**rest, "checkpoint_id": entry.checkpoint_id}


HISTORY_TABLES: dict[str, tuple[pa.Schema, Rows]] = dict(
    zip(HISTORY_NAMES, [(_CHECKPOINTS, _checkpoint), (_SUBTASKS, _subtasks)], strict=True)
)
"""By name the columns of a table, and its rows for one log entry."""


def history_table(
    storage: Storage, name: str, columns: Collection[str] | None = None, passes: Node | None = None
) -> pa.Table:
    """Return one of `HISTORY_TABLES`, oldest checkpoint first."""
    schema, rows_of = HISTORY_TABLES[name]
    entries = _entries(storage, passes)
    if passes is not None and entries:
        ids = np.array([entry.checkpoint_id for entry in entries], dtype=np.int64)
        keep = may_match(passes, {_ID: Bounds(pa.int64(), np.ones(ids.size, dtype=np.bool_), ids, ids)}, ids.size)
        entries = [entry for entry, kept in zip(entries, keep, strict=True) if kept]
    is_about_pins = name == HISTORY_NAMES[0] and (columns is None or not set(_OF_PINS).isdisjoint(columns))
    now = now_ms()
    pins = [pin for pin in read_pins(storage) if pin.holds(now)] if is_about_pins else []
    rows = [row for entry in entries for row in rows_of(storage, entry, pins)]
    if _OF_FENCES in schema.names and (columns is None or _OF_FENCES in columns):
        fences = _fences(storage, {entry.number for entry in entries})
        rows = [{**row, _OF_FENCES: fences.get(entry.number)} for row, entry in zip(rows, entries, strict=True)]
    return pa.Table.from_pylist(rows, schema=schema)


def _fences(storage: Storage, numbers: Collection[int]) -> dict[int, str]:
    """Return what the fence right before an entry says of who opened the store for it, as JSON; by number."""
    log = CommitLog(storage)
    found = {}
    for number in numbers:
        before = None
        if number - 1 not in numbers:
            # One that cannot be read is told by whoever needs more of it.
            with suppress(CorruptDataError):
                before = log.get(number - 1)
        if before is not None and before.document.kind == "fence" and before.document.properties:
            found[number] = msgspec.json.encode(before.document.properties).decode()
    return found


def _entries(storage: Storage, passes: Node | None) -> list[LogEntryDocument]:
    """Return the checkpoints that a filter may keep, oldest first."""
    log = CommitLog(storage)
    ids = None if passes is None else values_of(passes, _ID, pa.int64())
    if ids is None:
        return [*log.backwards()][::-1]
    low, high = (pc.min_max(ids)[end].as_py() for end in ("min", "max"))
    found: list[LogEntryDocument] = []
    for entry in () if low is None else log.history().up_to(lambda entry: newest_id(entry) > high):
        if (entry.document.checkpoint_id or 0) < low:
            break
        found.append(entry.document)
    return found[::-1]


class HistorySource:
    """One of `HISTORY_TABLES` for SQL."""

    def __init__(self, storage: Storage, table: str) -> None:
        self.name = table
        self.schema = HISTORY_TABLES[table][0]
        self.shown = self.schema.names
        self._storage = storage

    def rows(
        self, columns: list[str], filter: pc.Expression | None, statistics: ScanStatistics
    ) -> Iterator[pa.RecordBatch]:
        """Read what of the log the filter does not exclude."""
        node = None if filter is None else read_filter(filter)
        needed = None if filter is not None and node is None else {*columns, *(columns_of(node) if node else ())}
        table = history_table(self._storage, self.name, needed, node)
        statistics.rows = statistics.rows_read = table.num_rows
        yield from passing(table, columns, filter)
