"""`arrowstate edit`: a script of SQL changes a checkpoint; first as a plan, then for good."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from arrowstate.cli.keys import keys_of
from arrowstate.cli.output import print_json, print_narrow_table, print_table, say
from arrowstate.cli.scripts import text_of
from arrowstate.editing.plan import EditPlan
from arrowstate.editing.purging import PurgeReport
from arrowstate.errors import InvalidInputError
from arrowstate.files.reading import find_operator
from arrowstate.schema.layout import key_schema_of
from arrowstate.shown import shown
from arrowstate.store import Edit, Snapshot, open_store


def edit(options: argparse.Namespace) -> int:
    """Run a script over a checkpoint; print what it would change, or what was committed."""
    if options.script is None and not (options.delete_key or options.set_property or options.purge):
        raise InvalidInputError("nothing to do: name a script, or give --delete-key, --set-property or --purge")
    if options.purge and not options.apply:
        raise InvalidInputError("--purge rewrites files for good; give it with --apply")
    if options.retries and (not options.apply or options.purge):
        raise InvalidInputError("--retries is of a commit; give it with --apply and without --purge")
    if options.checked and not options.purge:
        raise InvalidInputError("--checked says what a purge leaves out of its report; give it with --purge")
    script = None if options.script is None else text_of(options.script)
    store = open_store(options.store)
    with store.edit(options.checkpoint) as made:
        for operator, key in options.delete_key or ():
            edited = store.snapshot(made.checkpoint_id).entry
            schema = key_schema_of(find_operator(edited, operator).key)
            made.delete_key(operator, keys_of([key], schema))
        if script is not None:
            made.execute(script)
        for name, value in options.set_property or ():
            made.properties[name] = _json(name, value)
        plan = made.plan()
        told = _told(plan, options.samples)
        done = _finish(made, options)
    report = done.get("purged")
    code = 0 if report is None or report.is_done else 1
    if options.json:
        print_json({**told, **done, **({} if report is None else {"purged": _purged(report)})})
        return code
    _print(plan, told)
    if done.get("committed") is False:
        say(f"nothing was committed, no writer was fenced, and checkpoint {done.pop('checkpoint_id')} stays the newest")
    for name, value in done.items():
        if name in _DONE and value is not None:
            say(_DONE[name].format(value))
    if not done:
        say("nothing was changed; --apply commits it, --to PLACE writes it as a savepoint")
    if code:
        say("the purge is not done: see what may still hold the rows, and purge once more")
    return code


_DONE = {
    "checkpoint_id": "checkpoint {} was committed",
    "savepoint": "savepoint {} was written, and the store is as it was",
    "before": "the checkpoint before is kept as {}: `arrowstate rollback` goes back to it",
    "planned_again_on": "the plan above was overtaken: it was made again on checkpoint {}",
    "purged": "{}",
}


def _finish(made: Edit[Snapshot], options: argparse.Namespace) -> dict[str, Any]:
    """Commit as asked; return what was done."""
    if options.to is not None:
        return {"savepoint": made.commit(comment=options.comment, to=options.to).storage.url}
    if not options.apply:
        return {}
    if options.purge:
        return {"purged": made.purge(comment=options.comment, checked=options.checked)}
    planned_on = made.checkpoint_id
    before = set(open_store(options.store).tags())
    snapshot = made.commit(comment=options.comment, retries=options.retries)
    kept = sorted(set(open_store(options.store).tags()) - before)
    again = {"planned_again_on": made.checkpoint_id if made.checkpoint_id != planned_on else None}
    # An edit that changes nothing gives back the checkpoint that it edited, which need not be the newest.
    is_committed = snapshot.checkpoint_id != made.checkpoint_id
    newest = snapshot if is_committed else open_store(options.store).latest()
    done = {
        "checkpoint_id": newest.checkpoint_id,
        "committed": is_committed,
        "before": kept[0] if kept else None,
    }
    return done | again if options.retries else done


def _purged(report: PurgeReport) -> dict[str, Any]:
    """Return a report as plain values."""
    return {
        "checkpoint_id": report.checkpoint_id,
        "rewritten": report.rewritten,
        "deleted": report.deleted,
        "deleted_bytes": report.deleted_bytes,
        "held_by": [
            {
                "checkpoint_id": item.checkpoint_id,
                "reasons": list(item.reasons),
                "files": item.files,
                "other": list(item.other),
            }
            for item in report.held_by
        ],
        "savepoints": list(report.savepoints),
        "tables": list(report.tables),
        "notes": list(report.notes),
        "published": list(report.published),
        "imported_from": list(report.imported_from),
        "unreferenced": report.unreferenced,
        "is_done": report.is_done,
        "not_reached": list(report.not_reached),
    }


def _told(plan: EditPlan, samples: int) -> dict[str, Any]:
    """Return a plan as plain values."""
    return {
        "edited": plan.checkpoint_id,
        "statements": [{"text": item.text, "rows": item.rows} for item in plan.statements],
        "states": [shown(row) for row in plan.to_arrow().to_pylist()],
        "operator_states": list(plan.operator_states),
        "properties": [
            {"name": name, "before": before, "after": after} for name, (before, after) in plan.properties.items()
        ],
        "bytes": plan.bytes,
        "files": plan.files,
        "samples": [{"state": state, "rows": [shown(row) for row in rows]} for state, rows in _samples(plan, samples)],
    }


def _samples(plan: EditPlan, count: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for item in plan.changed_states if count else ():
        if item.inserted is not None:
            yield f"{item.operator}.{item.state}", plan.sample((item.operator, item.state), count).to_pylist()


def _print(plan: EditPlan, told: dict[str, Any]) -> None:
    say(f"checkpoint {plan.checkpoint_id}: {plan.bytes} bytes in {plan.files} files")
    if plan.is_empty:
        say("nothing changes")
        return
    rows = [
        (f"{item.operator}.{item.state}", item.inserted, item.updated, item.deleted, item.schema_change or "")
        for item in plan.changed_states
    ]
    rows += [(name, None, None, None, "operator state") for name in plan.operator_states]
    rows += [(f"property {item['name']}", None, None, None, json.dumps(item["after"])) for item in told["properties"]]
    print_narrow_table(["state", "inserted", "updated", "deleted", "columns"], rows, split=4)
    for sample in told["samples"]:
        say(f"\n{sample['state']}")
        columns = list(sample["rows"][0])
        print_table(columns, [[row[name] for name in columns] for row in sample["rows"]])


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"the property {name} takes a JSON value, such as 17 or '\"text\"': {error}") from None
