"""`arrowstate gc`: what a collection would delete, and with `--apply` deleting it."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from arrowstate.cli.output import print_json, print_table, say, time_text
from arrowstate.shown import bytes_text
from arrowstate.store import open_store
from arrowstate.upkeep.collection import CollectionReport
from arrowstate.upkeep.planned import CollectionPlan
from arrowstate.upkeep.retention import RetentionPolicy

_SHOWN = 20


def collect(options: argparse.Namespace) -> int:
    """Print the plan of a collection, and apply it if asked to."""
    store = open_store(options.store)
    collection = store.collect(
        RetentionPolicy(options.count, options.age, options.hours),
        grace_ms=options.grace,
        allow_short_grace=options.allow_short_grace,
    )
    report = collection.apply() if options.apply else None
    if options.json:
        print_json(_as_json(collection.plan, report))
    else:
        _print(store.url, collection.plan, report)
    return 0


def _as_json(plan: CollectionPlan, report: CollectionReport | None) -> dict[str, Any]:
    return {
        "applied": report is not None,
        "kept": [{"checkpoint_id": item.checkpoint_id, "reasons": item.reasons} for item in plan.kept],
        "dropped": plan.dropped,
        "further": plan.further,
        "bytes": plan.bytes,
        "unknown_sizes": plan.unknown_sizes,
        "deletions": [
            {"path": item.path, "kind": item.kind, "reason": item.reason, "bytes": item.bytes}
            for item in plan.deletions
        ],
        "waiting": [
            {"path": item.path, "first_seen_ms": item.first_seen_ms, "until_ms": item.until_ms} for item in plan.waiting
        ],
        "foreign": plan.foreign,
        "deleted": None if report is None else report.deleted,
        "deleted_count": None if report is None else report.deleted_count,
        "spared": None if report is None else report.spared,
    }


def _print(url: str, plan: CollectionPlan, report: CollectionReport | None) -> None:
    say(f"collection of {url}")
    print_table(
        ["kept", "because"],
        [(item.checkpoint_id, "; ".join(item.reasons) or "it stands between others") for item in plan.kept],
    )
    further = f" and {plan.further} besides, in further portions" if plan.further else ""
    say(f"  checkpoints dropped   {', '.join(map(str, plan.dropped)) or 'none'}{further}")
    counts = Counter(deletion.kind for deletion in plan.deletions)
    what = ", ".join(f"{count} of kind {kind}" for kind, count in counts.items())
    unknown = f" and {plan.unknown_sizes} files of unknown size" if plan.unknown_sizes else ""
    say(
        f"  files to delete       {len(plan.deletions)}{f' ({what})' if what else ''}, "
        f"{bytes_text(plan.bytes)}{unknown}"
    )
    say(f"  files that wait       {len(plan.waiting)}")
    for item in plan.waiting[:_SHOWN]:
        say(f"    {item.path} until {time_text(item.until_ms)}")
    say(f"  files nobody knows    {len(plan.foreign)}; they are never deleted")
    for path in plan.foreign[:_SHOWN]:
        say(f"    {path}")
    if report is None:
        for deletion in plan.deletions[:_SHOWN]:
            say(f"  would delete {deletion.path}: {deletion.reason}")
        if len(plan.deletions) > _SHOWN:
            say(f"  and {len(plan.deletions) - _SHOWN} more; --json lists all")
        say("nothing was changed; --apply does it")
        return
    say(f"{report.deleted_count} files deleted, {len(report.spared)} spared because they are needed again")
