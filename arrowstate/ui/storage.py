"""The page of what a store takes: tags, leases, what plans would do, and the space over time."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.errors import CheckpointNotFoundError
from arrowstate.files.storage_use import StorageUse, storage_use
from arrowstate.log.collected import reading_checkpoint
from arrowstate.query.duckdb.about import about
from arrowstate.ui.checkpoint import DAMAGES
from arrowstate.ui.site import Ask
from arrowstate.upkeep.collection_plan import plan_collection
from arrowstate.upkeep.compaction import plan_store_compaction
from arrowstate.upkeep.planned import DEFAULT_GRACE_MS
from arrowstate.upkeep.retention import RetentionPolicy

_SHOWN = 100
_SHOWN_PINS = 500
_POINTS = 40
_FIGURES = ("files", "bytes", "live_bytes", "small_files", "space_amplification")


def storage(ask: Ask) -> dict[str, Any]:
    """Return tags, leases, and what each state of the newest checkpoint takes."""
    ask.place.refresh()
    store = ask.place.store
    snapshot = ask.place.snapshot(None)
    now_ms = store.clock_ms()
    pins, problems = ask.place.pins()
    commit_id = snapshot.entry.commit_id
    states, use = [], None
    try:
        use = ask.place.kept.get((commit_id, "use"), snapshot.storage_use)
        states = ask.place.kept.get(
            (commit_id, "storage"), lambda: about(snapshot.storage, snapshot.entry, "storage").to_pylist()
        )
    except DAMAGES as error:
        problems.append(str(error))
    return {
        "checkpoint_id": snapshot.checkpoint_id,
        "problems": problems,
        **{name: None if use is None else getattr(use, name) for name in _FIGURES},
        "states": states,
        "tag_count": sum(pin.tag is not None for pin in pins),
        "tags": [{"tag": pin.tag, "checkpoint_id": pin.checkpoint_id} for pin in pins if pin.tag is not None][
            -_SHOWN_PINS:
        ],
        "lease_count": sum(pin.tag is None for pin in pins),
        "leases": [
            {
                "holder": pin.holder,
                "checkpoint_id": pin.checkpoint_id,
                "and_later": pin.and_later,
                "expires_at_ms": pin.expires_at_ms,
                "holds": pin.holds(now_ms),
            }
            for pin in pins
            if pin.tag is None
        ][-_SHOWN_PINS:],
        "count": ask.number("count", 1) or 1,
    }


def collection(ask: Ask) -> dict[str, Any]:
    """Return what a collection would do that keeps some checkpoints; nothing is done."""
    count = ask.number("count", 1) or 1
    store = ask.place.store
    ask.place.refresh()
    if not ask.place.log.is_loading:
        ask.progress.total = 2 * len(ask.place.log.lines())
    plan = plan_collection(
        store.storage,
        RetentionPolicy(count),
        now_ms=store.clock_ms(),
        grace_ms=DEFAULT_GRACE_MS,
        clock_ms=store.clock_ms,
        advance=ask.progress.advance,
    )
    kinds = Counter(deletion.kind for deletion in plan.deletions)
    return {
        "count": count,
        "kept": [{"checkpoint_id": item.checkpoint_id, "reasons": list(item.reasons)} for item in plan.kept[-_SHOWN:]],
        "kept_count": len(plan.kept),
        "dropped": len(plan.dropped) + plan.further,
        "files": len(plan.deletions),
        "kinds": dict(kinds),
        "bytes": plan.bytes,
        "unknown_sizes": plan.unknown_sizes,
        "waiting": [{"path": item.path, "until_ms": item.until_ms} for item in plan.waiting[:_SHOWN]],
        "waiting_count": len(plan.waiting),
        "foreign": list(plan.foreign[:_SHOWN]),
        "deletions": [
            {"path": item.path, "kind": item.kind, "reason": item.reason, "bytes": item.bytes}
            for item in plan.deletions[:_SHOWN]
        ],
    }


def compaction(ask: Ask) -> dict[str, Any]:
    """Return what a compaction of the newest checkpoint would merge; nothing is done."""
    plan = plan_store_compaction(ask.place.store.storage, CompactionPolicy())
    return {
        "checkpoint_id": plan.checkpoint_id,
        "space_amplification": plan.use.space_amplification,
        "small_files": plan.use.small_files,
        "bytes_read": plan.bytes_read,
        "bytes_written": plan.bytes_written,
        "merges": [
            {
                "operator": merge.uid,
                "state": merge.state,
                "subtask": merge.subtask,
                "runs": len(merge.runs),
                "rows": merge.rows,
            }
            for merge in plan.merges[:_SHOWN]
        ],
        "merge_count": len(plan.merges),
    }


def amplification(ask: Ask) -> dict[str, Any]:
    """Return for some checkpoints over time what they refer to and how much of it is live, by their manifests."""
    place = ask.place
    place.refresh()
    lines = [line for line in place.log.lines() if line.is_checkpoint]
    step = max(1, -(-len(lines) // _POINTS))
    chosen = lines[::-1][::step][::-1]
    ask.progress.total = len(chosen)
    found = []
    for line in ask.progress.over(chosen):

        def use(checkpoint_id: int | None = line.checkpoint_id) -> StorageUse:
            entry = place.snapshot(str(checkpoint_id)).entry
            with reading_checkpoint(place.store.storage, entry):
                return storage_use(place.store.storage, entry)

        with suppress(*DAMAGES, CheckpointNotFoundError):
            found.append((line, place.uses.get((line.number, line.checkpoint_id, line.committed_at_ms), use)))
    return {
        "checkpoint_id": [line.checkpoint_id for line, _ in found],
        "committed_at_ms": [line.committed_at_ms for line, _ in found],
        "bytes": [use.bytes for _, use in found],
        "live_bytes": [use.live_bytes for _, use in found],
        "space_amplification": [use.space_amplification for _, use in found],
        "marks": [],
    }
