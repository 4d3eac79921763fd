"""The page that compares two checkpoints: counts, columns, properties, writers, keys that grew, rows side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.query.changes import ALL_HASHES, CHANGE_TYPE_COLUMN, StateChanges, change_columns, reader_between
from arrowstate.query.reader import SnapshotReader
from arrowstate.table.segment import HASH_COLUMN
from arrowstate.ui.checkpoint import overview_of
from arrowstate.ui.checkpoints import a_day_before
from arrowstate.ui.keys import key_texts
from arrowstate.ui.largest import sizes_of
from arrowstate.ui.shown import Room, bounded, cells
from arrowstate.ui.site import Ask

_SHOWN_ROWS = 100
_SHOWN_KEYS = 20
_LOOK_SECONDS = 0.1
"""How often it is looked whether the log is read so far."""
_SIGNS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


def _both(ask: Ask) -> tuple[SnapshotReader | None, SnapshotReader]:
    """Return the two checkpoints; by default the newest, and the one as of a day before it, or nothing."""
    ask.place.refresh()
    after = ask.snapshot("after")
    reference = ask.text("before")
    if reference == "nothing":
        return None, after
    if reference is None:
        found = _a_day_before(ask, after)
        if found is None:
            return None, after
        reference = str(found)
    before = ask.place.snapshot(reference)
    if before.checkpoint_id > after.checkpoint_id:
        before, after = after, before
    return before, after


def _a_day_before(ask: Ask, after: SnapshotReader) -> int | None:
    """Return the checkpoint as of a day before another, for which the log is read so far."""
    log, is_loading = ask.place.log, True
    while is_loading:
        is_loading = log.is_loading
        lines = [line for line in log.lines() if line.number <= after.entry.number]
        found = a_day_before(lines, next((line for line in reversed(lines) if line.is_checkpoint), None))
        if found is not None:
            return found
        log.wait(_LOOK_SECONDS)
    return None


def compare(ask: Ask) -> dict[str, Any]:
    """Return what is told without reading rows: sizes, properties, and the writers that began in between."""
    before, after = _both(ask)
    overviews = [None if item is None else overview_of(ask.place, item) for item in (before, after)]
    sizes = [_states(overview) for overview in overviews]
    names = list(dict.fromkeys([*sizes[1], *sizes[0]]))
    empty: dict[str, Any] = {"rows": None, "bytes": None, "schema_version": None, "type": None}
    properties = [{} if item is None else item.properties for item in (before, after)]
    low = 0 if before is None else before.entry.number
    fences = [line for line in ask.place.log.lines() if line.kind == "fence" and low < line.number < after.entry.number]
    return {
        "problems": list(dict.fromkeys(text for item in overviews if item is not None for text in item["problems"])),
        "before": None if before is None else before.checkpoint_id,
        "after": after.checkpoint_id,
        "before_ms": None if before is None else before.entry.committed_at_ms,
        "after_ms": after.entry.committed_at_ms,
        "states": [
            {
                "operator": uid,
                "state": name,
                "before": sizes[0].get((uid, name), empty),
                "after": sizes[1].get((uid, name), empty),
            }
            for uid, name in names
        ],
        "properties": [
            {"name": name, "before": bounded(properties[0].get(name)), "after": bounded(properties[1].get(name))}
            for name in sorted({*properties[0], *properties[1]})
            if properties[0].get(name) != properties[1].get(name)
        ],
        "writers": [
            {"writer_epoch": line.writer_epoch, "began_at_ms": line.committed_at_ms, "properties": line.properties}
            for line in fences
        ],
        "chosen": ask.text("state") and ask.state(),
    }


def _states(overview: dict[str, Any] | None) -> dict[tuple[str, str], dict[str, Any]]:
    if overview is None:
        return {}
    return {
        (operator["uid"], state["name"]): {name: state[name] for name in ("rows", "bytes", "schema_version", "type")}
        for operator in overview["operators"]
        for state in operator["states"]
    }


def counts(ask: Ask) -> dict[str, Any]:
    """Return how many rows of each state came, changed and went, and what became of its columns."""
    before, after = _both(ask)
    key = (after.entry.commit_id, "diff", None if before is None else before.entry.commit_id)
    found = ask.place.kept.get(key, lambda: after.diff(None if before is None else before.checkpoint_id))
    return {
        "before": None if before is None else before.checkpoint_id,
        "after": after.checkpoint_id,
        "states": [
            {
                "operator": item.operator,
                "state": item.state,
                "inserted": item.inserted,
                "updated": item.updated,
                "deleted": item.deleted,
                "schema_change": item.schema_change,
            }
            for item in found.states
        ],
    }


def _changes(ask: Ask) -> tuple[SnapshotReader | None, SnapshotReader, Any, StateChanges]:
    before, after = _both(ask)
    entry = None if before is None else before.entry
    reader = reader_between(after.storage, entry, after.entry, ask.state())
    return before, after, reader, StateChanges(after.storage, reader, entry, after.entry)


def grown(ask: Ask) -> dict[str, Any]:
    """Return the keys that grew most, by rows and by the size of their values."""
    before, after = _both(ask)
    key = (after.entry.commit_id, "grown", None if before is None else before.entry.commit_id, *ask.state())
    found: dict[str, Any] = ask.place.kept.get(key, lambda: _grown(ask))
    return found


def _grown(ask: Ask) -> dict[str, Any]:
    before, after, reader, changes = _changes(ask)
    keys = list(reader.layout.key.names)
    values = [name for name in reader.columns if name not in keys and name in change_columns(reader)]
    top: list[dict[str, Any]] = []
    looked, most = 0, ask.site.limits.growth_rows
    for batch in changes.batches([HASH_COLUMN, *keys, *values], ALL_HASHES):
        top = sorted([*top, *_of_batch(batch, keys, values)], key=_by_growth)[:_SHOWN_KEYS]
        looked += batch.num_rows
        ask.progress.advance(batch.num_rows)
        if looked >= most:
            break
    return {
        "before": None if before is None else before.checkpoint_id,
        "after": after.checkpoint_id,
        "operator": ask.text("operator"),
        "state": ask.text("state"),
        "key_columns": keys,
        "keys": top,
        "changes": looked,
        "is_cut": looked >= most,
    }


def _by_growth(item: dict[str, Any]) -> tuple[int, int, list[str]]:
    return -item["rows"], -item["bytes"], item["key"] or []


def _of_batch(batch: pa.RecordBatch, keys: list[str], values: list[str]) -> list[dict[str, Any]]:
    """Return the keys of a batch of changes that grew most; all changes of a key are in one batch."""
    signs = np.array([_SIGNS[kind] for kind in batch.column(CHANGE_TYPE_COLUMN).to_pylist()], np.int64)
    _, first, places = np.unique(batch.column(HASH_COLUMN).to_numpy(), return_index=True, return_inverse=True)
    rows = np.zeros(len(first), np.int64)
    size = np.zeros(len(first), np.int64)
    np.add.at(rows, places, signs)
    sizes = sizes_of([batch.column(name) for name in values], batch.num_rows)
    np.add.at(size, places, signs * sizes)
    order = np.lexsort((-size, -rows))[:_SHOWN_KEYS]
    columns = batch.select(keys)
    return [
        {
            "key": key_texts(cells(columns.slice(int(first[place]), 1), Room())[0]),
            "rows": int(rows[place]),
            "bytes": int(size[place]),
        }
        for place in order
        if rows[place] > 0 or size[place] > 0
    ]


def changed_rows(ask: Ask) -> dict[str, Any]:
    """Return the first rows that changed, as they were and as they are."""
    before, after, reader, changes = _changes(ask)
    names = [name for name in reader.columns if name in change_columns(reader)]
    found: list[tuple[str, list[Any]]] = []
    room, most = Room(), 2 * _SHOWN_ROWS
    for batch in changes.batches(names, ALL_HASHES):
        own = cells(batch.select(names).slice(0, most - len(found)), room)
        found += zip(batch.column(CHANGE_TYPE_COLUMN).slice(0, len(own)).to_pylist(), own, strict=True)
        if len(found) >= most or room.left <= 0:
            break
    return {
        "before": None if before is None else before.checkpoint_id,
        "after": after.checkpoint_id,
        "columns": names,
        "key_columns": list(reader.layout.key.names),
        "rows": _paired(found)[:_SHOWN_ROWS],
    }


def _paired(changes: list[tuple[str, list[Any]]]) -> list[dict[str, Any]]:
    """Return a row for each change, with what was and what is."""
    found: list[dict[str, Any]] = []
    for kind, values in changes:
        if kind == "update_postimage":
            if found:
                found[-1]["is"] = values
        elif kind == "insert":
            found.append({"change": "insert", "was": None, "is": values})
        else:
            found.append({"change": "delete" if kind == "delete" else "update", "was": values, "is": None})
    return [row for row in found if row["change"] != "update" or row["is"] is not None]
