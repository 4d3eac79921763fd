"""The page of a checkpoint: what it holds, what its subtasks took, what it shares with the one before; is it whole."""

from __future__ import annotations

import threading
from typing import Any

from arrowstate.errors import ArrowStateError
from arrowstate.log.collected import reading_checkpoint
from arrowstate.query.catalog import HISTORY_NAMES
from arrowstate.query.describe import runs_of
from arrowstate.query.duckdb.history import HISTORY_TABLES
from arrowstate.snapshot.references import ReferenceReader
from arrowstate.snapshot.verification import verify_checkpoint
from arrowstate.store import Snapshot
from arrowstate.ui.site import Ask, Place, Verifying
from arrowstate.ui.work import Progress

__all__ = ["checkpoint", "files", "start_verifying", "verified"]

_SHOWN_SUBTASKS = 64
_SHOWN_FILES = 100


def overview_of(place: Place, snapshot: Snapshot) -> dict[str, Any]:
    """Return what a checkpoint holds, read once."""
    found: dict[str, Any] = place.kept.get((snapshot.entry.commit_id, "overview"), snapshot.show)
    return found


def checkpoint(ask: Ask) -> dict[str, Any]:
    """Return what a checkpoint holds."""
    snapshot = ask.snapshot()
    entry, place = snapshot.entry, ask.place
    place.refresh()
    lines = [line for line in place.log.lines() if line.is_checkpoint]
    before = next((line for line in reversed(lines) if line.number < entry.number), None)
    after = next((line for line in lines if line.number > entry.number), None)
    subtasks = place.kept.get((entry.commit_id, "subtasks"), lambda: _subtasks(snapshot))
    tags = [pin.tag for pin in place.pins() if pin.tag is not None and pin.entry.number == entry.number]
    return {
        **overview_of(place, snapshot),
        "duration_ms": entry.committed_at_ms - entry.started_at_ms,
        "before_id": None if before is None else before.checkpoint_id,
        "after_id": None if after is None else after.checkpoint_id,
        "tags": tags,
        "subtasks": subtasks[:_SHOWN_SUBTASKS],
        "subtask_count": len(subtasks),
        "slowest": _slowest(subtasks),
    }


def _subtasks(snapshot: Snapshot) -> list[dict[str, Any]]:
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


def _files(place: Place, snapshot: Snapshot) -> dict[str, int]:
    def read() -> dict[str, int]:
        with reading_checkpoint(snapshot.storage, snapshot.entry):
            return ReferenceReader(snapshot.storage).files(snapshot.entry.operators)

    found: dict[str, int] = place.kept.get((snapshot.entry.commit_id, "files"), read)
    return found


def start_verifying(place: Place, snapshot: Snapshot) -> None:
    """Begin to look at every byte of a checkpoint, unless somebody does already."""
    commit_id = snapshot.entry.commit_id
    running = place.verifications.get(commit_id)
    if running is not None and running.problems is None:
        return
    runs = sum(len(runs_of(snapshot.storage, operator)) for operator in snapshot.entry.operators)
    begun = place.verifications[commit_id] = Verifying(Progress(), runs)
    threading.Thread(target=_verify, args=[snapshot, begun], name="arrowstate-ui-verify", daemon=True).start()


def _verify(snapshot: Snapshot, begun: Verifying) -> None:
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
    documents = snapshot.verify() if begun is None else None
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
