"""The page of a checkpoint: what it holds, what its subtasks took, what it shares with the one before; is it whole."""

from __future__ import annotations

import threading
from typing import Any

from msgspec.structs import asdict, replace

from arrowstate.errors import ArrowStateError, CorruptDataError, FormatVersionError, MissingFileError
from arrowstate.files.references import ReferenceReader
from arrowstate.files.verification import verify_checkpoint
from arrowstate.log.collected import reading_checkpoint
from arrowstate.query.catalog import HISTORY_NAMES
from arrowstate.query.describe import columns_of, overview, runs_of
from arrowstate.query.duckdb.history import HISTORY_TABLES
from arrowstate.query.reader import SnapshotReader
from arrowstate.ui.shown import bounded
from arrowstate.ui.site import Ask, Place, Verifying
from arrowstate.ui.work import Progress
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.documents import OperatorDocument

DAMAGES = (CorruptDataError, FormatVersionError, MissingFileError)
"""What cannot be read and leaves the rest of a page as it is."""

_SHOWN_SUBTASKS = 64
_SHOWN_FILES = 100


def overview_of(place: Place, snapshot: SnapshotReader) -> dict[str, Any]:
    """Return what a checkpoint holds, read once; what of it is damaged has its `problem`."""
    found: dict[str, Any] = place.kept.get((snapshot.entry.commit_id, "overview"), lambda: _overview(snapshot))
    return found


def _overview(snapshot: SnapshotReader) -> dict[str, Any]:
    try:
        return {**snapshot.show(), "problems": []}
    except DAMAGES:
        # Operator by operator, so that only what is damaged is left out.
        entry, operators, problems = snapshot.entry, [], []
        for operator in entry.operators:
            try:
                with reading_checkpoint(snapshot.storage, entry):
                    operators += overview(snapshot.storage, replace(entry, operators=[operator]))["operators"]
            except DAMAGES as error:
                operators.append(_by_entry(operator))
                problems.append(str(error))
        bare = overview(snapshot.storage, replace(entry, operators=[]))
        return {**bare, "storage": dict.fromkeys(bare["storage"]), "operators": operators, "problems": problems}


def _by_entry(operator: OperatorDocument) -> dict[str, Any]:
    """Return what the log entry says of an operator whose manifests cannot be read."""
    return {
        "uid": operator.uid,
        "key": {field.name: str(type_from_json(field.type)) for field in operator.key},
        "max_parallelism": operator.max_parallelism,
        "key_groups": [],
        "states": [
            {
                "name": state.name,
                "kind": state.kind,
                "type": state.clock or str(type_from_json(state.value_type)),
                "reduce": state.reduce,
                "rows": operator.live_rows(state.name),
                "runs": None,
                "dead_share": None,
                "bytes": None,
                "schema_version": state.schema_version,
                "schema_versions": [
                    {"version": state.schema_version, "columns": columns_of(state, operator.key), "runs": None}
                ],
                "time_to_live": None if state.time_to_live is None else asdict(state.time_to_live),
            }
            for state in operator.states
        ],
        "operator_states": [],
    }


def checkpoint(ask: Ask) -> dict[str, Any]:
    """Return what a checkpoint holds."""
    snapshot = ask.snapshot()
    entry, place = snapshot.entry, ask.place
    place.refresh()
    lines = [line for line in place.log.lines() if line.is_checkpoint]
    before = next((line for line in reversed(lines) if line.number < entry.number), None)
    after = next((line for line in lines if line.number > entry.number), None)
    overview = overview_of(place, snapshot)
    pins, problems = place.pins()
    try:
        subtasks = place.kept.get((entry.commit_id, "subtasks"), lambda: _subtasks(snapshot))
    except DAMAGES as error:
        subtasks, problems = [], [*problems, str(error)]
    tags = [pin.tag for pin in pins if pin.tag is not None and pin.entry.number == entry.number]
    return {
        **overview,
        "properties": {name: bounded(value) for name, value in entry.properties.items()},
        "problems": list(dict.fromkeys([*overview["problems"], *problems])),
        "duration_ms": entry.committed_at_ms - entry.started_at_ms,
        "before_id": None if before is None else before.checkpoint_id,
        "after_id": None if after is None else after.checkpoint_id,
        "tags": tags,
        "subtasks": subtasks[:_SHOWN_SUBTASKS],
        "subtask_count": len(subtasks),
        "slowest": _slowest(subtasks),
    }


def _subtasks(snapshot: SnapshotReader) -> list[dict[str, Any]]:
    """Return what each subtask took, the slowest first."""
    with reading_checkpoint(snapshot.storage, snapshot.entry):
        found = list(HISTORY_TABLES[HISTORY_NAMES[1]][1](snapshot.storage, snapshot.entry, ()))
    return sorted(found, key=lambda row: (-_took_us(row), row["operator"], row["subtask"] or 0))


def _took_us(row: dict[str, Any]) -> int:
    return (row.get("sync_us") or 0) + (row.get("async_us") or 0)


def _slowest(subtasks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the slowest subtask and how much longer than the one in the middle it took."""
    if len(subtasks) < 2 or not _took_us(subtasks[0]):
        return None
    middle = _took_us(subtasks[len(subtasks) // 2])
    first = subtasks[0]
    return {
        "operator": first["operator"],
        "subtask": first["subtask"],
        "times_the_median": _took_us(first) / middle if middle else None,
    }


def files(ask: Ask) -> dict[str, Any]:
    """Return which files are new, kept and dropped against the checkpoint before."""
    snapshot = ask.snapshot()
    before = ask.text("before")
    now = _files(ask.place, snapshot)
    was = _files(ask.place, ask.place.snapshot(before)) if before else {}
    groups = {
        "new": {path: size for path, size in now.items() if path not in was},
        "kept": {path: size for path, size in now.items() if path in was},
        "dropped": {path: size for path, size in was.items() if path not in now},
    }
    return {
        "checkpoint_id": snapshot.checkpoint_id,
        "before_id": None if not before else int(before) if before.isdecimal() else before,
        "counts": [{"what": name, "files": len(group), "bytes": sum(group.values())} for name, group in groups.items()],
        "files": [
            {"what": name, "path": path, "bytes": size}
            for name, group in groups.items()
            for path, size in sorted(group.items(), key=lambda item: -item[1])[:_SHOWN_FILES]
        ],
        "shown": _SHOWN_FILES,
    }


def _files(place: Place, snapshot: SnapshotReader) -> dict[str, int]:
    def read() -> dict[str, int]:
        with reading_checkpoint(snapshot.storage, snapshot.entry):
            return ReferenceReader(snapshot.storage).files(snapshot.entry.operators)

    found: dict[str, int] = place.kept.get((snapshot.entry.commit_id, "files"), read)
    return found


def start_verifying(place: Place, snapshot: SnapshotReader) -> None:
    """Begin to look at every byte of a checkpoint, unless somebody does already."""
    commit_id = snapshot.entry.commit_id
    running = place.verifications.get(commit_id)
    if running is not None and running.problems is None:
        return
    runs = sum(len(runs_of(snapshot.storage, operator)) for operator in snapshot.entry.operators)
    begun = place.verifications[commit_id] = Verifying(Progress(), runs)
    threading.Thread(target=_verify, args=[snapshot, begun], name="arrowstate-ui-verify", daemon=True).start()


def _verify(snapshot: SnapshotReader, begun: Verifying) -> None:
    try:
        found = verify_checkpoint(
            snapshot.storage, snapshot.store_id, snapshot.entry, deep=True, advance=begun.progress.advance
        )
    except (ArrowStateError, OSError) as error:
        begun.problems = [str(error)]
        return
    begun.checked = {"files": found.files, "bytes": found.bytes, "runs": found.runs, "rows": found.rows}
    begun.problems = list(found.problems)


def verified(ask: Ask) -> dict[str, Any]:
    """Return what a look at the documents found, and how far a look at every byte is, where one was asked for."""
    snapshot = ask.snapshot()
    begun = ask.place.verifications.get(snapshot.entry.commit_id)
    documents = (
        verify_checkpoint(snapshot.storage, snapshot.store_id, snapshot.entry, deep=False) if begun is None else None
    )
    return {
        "checkpoint_id": snapshot.checkpoint_id,
        "documents": None if documents is None else {"files": documents.files, "problems": list(documents.problems)},
        "deep": None
        if begun is None
        else {
            "runs": begun.runs,
            "done": begun.progress.done,
            "problems": begun.problems,
            **begun.checked,
        },
    }
