"""`arrowstate diff`: what changed between two checkpoints, by state or row by row."""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any

from arrowstate.cli.output import print_json, print_narrow_table, print_table, say
from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.query.difference import StateDifference
from arrowstate.shown import shown
from arrowstate.store import open_store

_MOST_ROWS = 1000
"""A table for people to read is cut here."""
_LONGEST = 40
"""A property is cut here, which may be a document of its own."""


def compare(options: argparse.Namespace) -> int:
    """Print how two checkpoints differ."""
    if options.rows and options.state is None:
        raise InvalidInputError("--rows shows the rows of one state; name it with --state OPERATOR.STATE")
    found = open_store(options.store).diff(options.before, options.after)
    properties = found.properties if options.state is None else {}
    states = [item for item in found.states if options.state in (None, f"{item.operator}.{item.state}")]
    if not states and options.state is not None:
        names = [f"{item.operator}.{item.state}" for item in found.states]
        raise StateNotFoundError(options.state, names, None, found.after)
    if options.rows:
        changed = found.rows(options.state).to_pylist()
        if options.json:
            print_json(changed)
            return 0
        columns = list(changed[0]) if changed else []
        print_table(columns, [[row[name] for name in columns] for row in itertools.islice(changed, _MOST_ROWS)])
        if len(changed) > _MOST_ROWS:
            say(f"the first {_MOST_ROWS} of {len(changed)} rows; --json prints all")
        return 0
    if options.json:
        counts = [shown(row) for row in found.to_arrow().to_pylist()]
        kept = {(item.operator, item.state) for item in states}
        print_json(
            {
                "before": found.before,
                "after": found.after,
                "states": [row for row in counts if (row["operator"], row["state"]) in kept],
                "properties": [
                    {"name": name, "before": before, "after": after} for name, (before, after) in properties.items()
                ],
            }
        )
        return 0
    say(f"from checkpoint {found.before} to {found.after}")
    rows = [_row(item) for item in states]
    rows += [(f"property {name}", None, None, None, _changed(*both)) for name, both in properties.items()]
    print_narrow_table(["state", "inserted", "updated", "deleted", "columns"], rows, split=4)
    return 0


def _row(item: StateDifference) -> tuple[object, ...]:
    return f"{item.operator}.{item.state}", item.inserted, item.updated, item.deleted, item.schema_change or ""


def _changed(before: Any, after: Any) -> str:
    """Return a property as it was and as it is; `--json` has what is too long here."""
    texts = [json.dumps(shown(value), ensure_ascii=False) for value in (before, after)]
    return ", then ".join(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…" for text in texts)
