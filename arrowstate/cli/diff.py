"""`arrowstate diff`: what changed between two checkpoints, by state or row by row."""

from __future__ import annotations

import argparse
import itertools

from arrowstate.cli.output import print_json, print_narrow_table, print_table, say
from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.query.difference import StateDifference
from arrowstate.shown import shown
from arrowstate.store import open_store

_MOST_ROWS = 1000
"""A table for people to read is cut here."""


def compare(options: argparse.Namespace) -> int:
    """Print how two checkpoints differ."""
    if options.rows and options.state is None:
        raise InvalidInputError("--rows shows the rows of one state; name it with --state OPERATOR.STATE")
    found = open_store(options.store).diff(options.before, options.after)
    states = [item for item in found.states if options.state in (None, f"{item.operator}.{item.state}")]
    if not states and options.state is not None:
        names = [f"{item.operator}.{item.state}" for item in found.states]
        raise StateNotFoundError(options.state, names, None, found.after)
    if options.rows:
        rows = found.rows(options.state).to_pylist()
        if options.json:
            print_json(rows)
            return 0
        columns = list(rows[0]) if rows else []
        print_table(columns, [[row[name] for name in columns] for row in itertools.islice(rows, _MOST_ROWS)])
        if len(rows) > _MOST_ROWS:
            say(f"the first {_MOST_ROWS} of {len(rows)} rows; --json prints all")
        return 0
    if options.json:
        counts = [shown(row) for row in found.to_arrow().to_pylist()]
        kept = {(item.operator, item.state) for item in states}
        print_json(
            {
                "before": found.before,
                "after": found.after,
                "states": [row for row in counts if (row["operator"], row["state"]) in kept],
            }
        )
        return 0
    say(f"from checkpoint {found.before} to {found.after}")
    print_narrow_table(["state", "inserted", "updated", "deleted", "columns"], [_row(item) for item in states], split=4)
    return 0


def _row(item: StateDifference) -> tuple[object, ...]:
    return f"{item.operator}.{item.state}", item.inserted, item.updated, item.deleted, item.schema_change or ""
