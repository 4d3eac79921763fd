"""The page of a state: columns, files, rows by key group, largest keys, a browser of rows, histories of keys."""

from __future__ import annotations

import datetime
from collections import deque
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa

from arrowstate.errors import IncompatibleStateError, InvalidInputError
from arrowstate.files.reading import find_operator, find_state
from arrowstate.html import strip_svg
from arrowstate.log.commit_log import CommitLog
from arrowstate.query.changes import CHANGE_TYPE_COLUMN
from arrowstate.query.describe import columns_of
from arrowstate.query.expiry import Seen
from arrowstate.query.key_history import COMMITTED_COLUMN, KeyHistory
from arrowstate.query.reader import SnapshotReader
from arrowstate.query.state import CHECKPOINT_COLUMN, KEY_GROUP_COLUMN, StateReader
from arrowstate.query.stored_schemas import stored_schemas
from arrowstate.ui.checkpoint import overview_of
from arrowstate.ui.checkpoints import a_day_before
from arrowstate.ui.keys import key_of, key_texts
from arrowstate.ui.largest import largest_keys
from arrowstate.ui.shown import Room, cells
from arrowstate.ui.site import Ask
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.key_groups import KeyGroupRange

_PAGE_ROWS = 50
_SHOWN_FILES = 200
_SHOWN_GROUPS = 8
_STRIP_BINS = 512
_SHOWN_CHANGES = 200
_CHANGE_BYTES = 40_000
"""What a change of a history is shown of."""


def state(ask: Ask) -> dict[str, Any]:
    """Return what a state is: its columns by schema version, its size, and the forms of its key."""
    snapshot, (uid, name) = ask.snapshot(), ask.state()
    ask.place.refresh()
    lines = [line for line in ask.place.log.lines() if line.number <= snapshot.entry.number]
    own_line = next((line for line in lines[-1:] if line.number == snapshot.entry.number), None)
    operator = find_operator(snapshot.entry, uid)
    document = find_state(snapshot.entry, operator, name)
    overview = overview_of(ask.place, snapshot)
    own = next(item for item in overview["operators"] if item["uid"] == uid)
    found = next(item for item in own["states"] if item["name"] == name)
    versions = found["schema_versions"]
    return {
        "checkpoint_id": snapshot.checkpoint_id,
        "problems": overview["problems"],
        "a_day_before": a_day_before(lines, own_line),
        "operator": uid,
        "max_parallelism": operator.max_parallelism,
        **found,
        "columns": columns_of(document, operator.key),
        "versions": [
            {**version, "changes": _changes(before, version)}
            for before, version in zip([None, *versions], versions, strict=False)
        ],
        "key": [
            {"name": field["name"], "type": field["type"]}
            for field in columns_of(document, operator.key)
            if field["of"] == "key"
        ],
        "given": _given(ask, len(operator.key)),
    }


def _changes(before: dict[str, Any] | None, after: dict[str, Any]) -> list[str]:
    """Return what a schema version changed, told by the ids of columns."""
    if before is None:
        return []
    was = {column["id"]: column for column in before["columns"]}
    now = {column["id"]: column for column in after["columns"]}
    found = [f"added {now[key]['name']} {now[key]['type']}" for key in now.keys() - was.keys()]
    found += [f"dropped {was[key]['name']}" for key in was.keys() - now.keys()]
    for key in now.keys() & was.keys():
        if was[key]["name"] != now[key]["name"]:
            found.append(f"renamed {was[key]['name']} to {now[key]['name']}")
        if was[key]["type"] != now[key]["type"]:
            found.append(f"{now[key]['name']} from {was[key]['type']} to {now[key]['type']}")
    return sorted(found)


def _given(ask: Ask, columns: int) -> list[str] | None:
    """Return the key that the address holds, column by column; None if it has none."""
    texts = [ask.query.get(f"key{number}") for number in range(columns)]
    return None if not texts or None in texts else [text or "" for text in texts]


def _reader(ask: Ask, snapshot: SnapshotReader) -> StateReader:
    """Return what reads the state that is asked for; kept, since its parts are told by manifests."""
    uid, name = ask.state()
    find_state(snapshot.entry, find_operator(snapshot.entry, uid), name)
    found: StateReader = ask.place.kept.get(
        (snapshot.entry.commit_id, "reader", uid, name),
        lambda: StateReader(snapshot.storage, snapshot.entry, uid, name),
    )
    return found


def state_files(ask: Ask) -> dict[str, Any]:
    """Return the files of a state with their dead rows, those with most of them first."""
    snapshot = ask.snapshot()
    runs = sorted(
        (run.document for run in _reader(ask, snapshot).runs),
        key=lambda run: (run.live_rows - (run.last_row - run.first_row), str(run.path)),
    )
    found = []
    for run in runs:
        stored = run.last_row - run.first_row
        found.append(
            {
                "path": run.path,
                "run": run.id,
                "format": run.format,
                "schema_version": run.schema_version,
                "rows": stored,
                "live_rows": run.live_rows,
                "dead_share": 1 - run.live_rows / stored if stored else 0.0,
                "bytes": run.bytes,
            }
        )
    sizes = {run.id: run.bytes for run in runs}
    live = sum(run.bytes * run.live_rows // max(1, run.rows) for run in runs)
    return {
        "files": found[:_SHOWN_FILES],
        "count": len(found),
        "bytes": sum(sizes.values()),
        "live_bytes": live,
        "space_amplification": sum(sizes.values()) / live if live else None,
    }


def strip(ask: Ask) -> dict[str, Any]:
    """Return how the rows are spread over key groups: a count for each, figures of skew, and the picture."""
    snapshot = ask.snapshot()
    reader = _reader(ask, snapshot)

    def count() -> np.ndarray[Any, np.dtype[np.int64]]:
        counts = np.zeros(reader.max_parallelism, np.int64)
        ask.progress.total = sum(part.rows for part in reader.parts.parts)
        for batch in reader.batches(reader.parts.parts, [KEY_GROUP_COLUMN]):
            counts += np.bincount(batch.column(0).to_numpy(), minlength=len(counts))
            ask.progress.advance(batch.num_rows)
        return counts

    counts = ask.place.kept.get((snapshot.entry.commit_id, "strip", *ask.state()), count)
    here = {"checkpoint": snapshot.checkpoint_id, "operator": ask.text("operator"), "state": ask.text("state")}

    def address(group: int) -> str:
        return f"/{ask.place.number}/state?{urlencode({**here, 'key_group': group})}#rows"

    total = int(counts.sum())
    fullest = np.argsort(counts, kind="stable")[::-1][:_SHOWN_GROUPS]
    return {
        "checkpoint_id": snapshot.checkpoint_id,
        "operator": ask.text("operator"),
        "state": ask.text("state"),
        "rows": total,
        "key_groups": len(counts),
        "empty": int((counts == 0).sum()),
        "mean": total / len(counts),
        "most": int(counts.max()),
        "skew": float(counts.max() * len(counts) / total) if total else None,
        "gini": _gini(counts),
        "fullest": [{"key_group": int(group), "rows": int(counts[group])} for group in fullest if counts[group]],
        "counts": counts.tolist(),
        "is_binned": len(counts) > _STRIP_BINS,
        "svg": strip_svg(counts.tolist(), label="rows", bins=_STRIP_BINS, address=address),
    }


def _gini(counts: np.ndarray[Any, np.dtype[np.int64]]) -> float | None:
    """Return 0 where all groups have as many rows, and nearly 1 where one has them all."""
    total = counts.sum()
    if not total:
        return None
    ascending = np.sort(counts).astype(np.float64)
    ranks = np.arange(1, len(ascending) + 1)
    return float(2 * (ranks * ascending).sum() / (len(ascending) * total) - (len(ascending) + 1) / len(ascending))


def largest(ask: Ask) -> dict[str, Any]:
    """Return the keys with most rows, or with the largest values where each has one."""
    snapshot = ask.snapshot()
    reader = _reader(ask, snapshot)
    found: dict[str, Any] = ask.place.kept.get(
        (snapshot.entry.commit_id, "largest", *ask.state()), lambda: largest_keys(reader, ask.progress)
    )
    return {
        "checkpoint_id": snapshot.checkpoint_id,
        "operator": ask.text("operator"),
        "state": ask.text("state"),
        **found,
    }


def rows(ask: Ask) -> dict[str, Any]:
    """Return some rows: those of a key, of a key group, or from a place on."""
    snapshot = ask.snapshot()
    reader = _reader(ask, snapshot)
    columns = reader.columns
    found: dict[str, Any] = {
        "checkpoint_id": snapshot.checkpoint_id,
        "operator": ask.text("operator"),
        "state": ask.text("state"),
        "columns": columns,
        "key_columns": list(reader.layout.key.names),
        "key_group": ask.text("key_group"),
        "given": _given(ask, len(reader.layout.key)),
        "next": None,
    }
    hidden = reader.expired_up_to(Seen(snapshot.clock_ms(), False))
    if found["given"] is not None:
        keys = key_of(found["given"], reader.layout.key)
        table, parts, read = reader.lookup(keys, columns, expired_up_to=hidden)
        found["looked_into"] = {"parts": parts, "rows": read}
        taken = table.slice(0, _PAGE_ROWS * 10)
        found["count"] = table.num_rows
    else:
        groups = None
        if found["key_group"] is not None:
            group = ask.number("key_group", 0, most=reader.max_parallelism - 1)
            groups = KeyGroupRange(group, group)
        after = ask.number("after", 0)
        taken = _from(reader, columns, groups, after, hidden)
        found["next"] = after if taken.num_rows > _PAGE_ROWS else None
        taken = taken.slice(0, _PAGE_ROWS)
    room = Room()
    found["rows"] = [row for batch in taken.to_batches() for row in cells(batch, room)]
    if "count" not in found and (found["next"] is not None or len(found["rows"]) < taken.num_rows):
        found["next"] = after + len(found["rows"])
    found["keys"] = [key_texts(row[: len(found["key_columns"])]) for row in found["rows"]]
    return found


def _from(
    reader: StateReader, columns: list[str], groups: KeyGroupRange | None, after: int, hidden: int | None
) -> pa.Table:
    """Return rows from a place on; parts before it are passed over by the numbers of their rows."""
    parts = reader.unexpired(reader.in_key_groups(groups), hidden)
    if groups is None and hidden is None:
        while parts and after >= parts[0].live_rows:
            after -= parts[0].live_rows
            parts = parts[1:]
    wanted, found = after + _PAGE_ROWS + 1, []
    for batch in reader.batches(parts, columns, key_groups=groups, expired_up_to=hidden):
        found.append(batch.slice(0, wanted))
        wanted -= found[-1].num_rows
        if wanted <= 0:
            break
    return pa.Table.from_batches(found, pa.schema([reader.schema.field(name) for name in columns])).slice(after)


def history(ask: Ask) -> dict[str, Any]:
    """Return what a key was in each checkpoint that changed it, newest first."""
    snapshot = ask.snapshot()
    reader = _reader(ask, snapshot)
    texts = _given(ask, len(reader.layout.key))
    if texts is None:
        raise InvalidInputError(f"give the key: {', '.join(reader.layout.key.names)}")
    keys = key_of(texts, reader.layout.key)
    newest = ask.place.store.latest().entry.commit_id
    found: dict[str, Any] = ask.place.histories.get(
        (snapshot.entry.commit_id, newest, *ask.state(), *texts), lambda: _history(ask, snapshot, reader, keys)
    )
    return found


def _history(ask: Ask, snapshot: SnapshotReader, reader: StateReader, keys: pa.RecordBatch) -> dict[str, Any]:
    """Return what a key was, newest first, as far back as the columns are known; and whether others came before."""
    entries: list[LogEntryDocument] = []
    is_cut = False
    for entry in CommitLog(snapshot.storage).backwards():
        ask.progress.advance()
        if not _fits(reader, entry):
            # What is newer than the checkpoint may have other columns, too.
            is_cut = True
            if any(known.number <= snapshot.entry.number for known in entries):
                break
            entries.clear()
            continue
        entries.append(entry)
    history = KeyHistory(snapshot.storage, reader, keys)
    columns = [name for name in reader.columns if name not in reader.layout.key.names]
    count, changes = 0, deque[dict[str, Any]](maxlen=_SHOWN_CHANGES)
    # Each entry was read, and is looked through for the key now.
    ask.progress.total = ask.progress.done + len(entries)
    for batch in history.batches(ask.progress.over(entries[::-1])):
        count += batch.num_rows
        newest = batch.slice(max(0, batch.num_rows - _SHOWN_CHANGES))
        values = newest.select(columns)
        for place, row in enumerate(
            newest.select([CHECKPOINT_COLUMN, COMMITTED_COLUMN, CHANGE_TYPE_COLUMN]).to_pylist()
        ):
            own = cells(values.slice(place, 1), Room(_CHANGE_BYTES)) if columns else [[]]
            changes.append({**row, "values": own[0]})
    return {
        "columns": columns,
        "count": count,
        "is_cut": is_cut,
        "changes": [
            {
                "checkpoint_id": row[CHECKPOINT_COLUMN],
                "committed_at_ms": round(row[COMMITTED_COLUMN].replace(tzinfo=datetime.UTC).timestamp() * 1000),
                "change": row[CHANGE_TYPE_COLUMN],
                "values": row["values"],
            }
            for row in reversed(changes)
        ],
    }


def _fits(reader: StateReader, entry: LogEntryDocument) -> bool:
    """Whether a checkpoint has the state in columns that the reader can show, or not at all."""
    for operator in entry.operators:
        for document in operator.states if operator.uid == reader.operator.uid else ():
            if document.name == reader.document.name:
                if {item.id for item in operator.key} != {item.id for item in reader.operator.key}:
                    return False
                try:
                    stored_schemas(reader, entry, operator, document)
                except IncompatibleStateError:
                    return False
    return True
