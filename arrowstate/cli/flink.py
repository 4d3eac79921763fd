"""`arrowstate flink`: what a savepoint of Flink holds, queries over it, and its import into a store."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from arrowstate.cli.flink_options import hints_of, pair_of, states_of
from arrowstate.cli.output import print_json, print_narrow_table, say
from arrowstate.cli.running_queries import interruptible
from arrowstate.cli.sql import asked_of
from arrowstate.cli.sql import show as show_result
from arrowstate.clock import new_id
from arrowstate.errors import StoreNotFoundError
from arrowstate.foreign.flink import FlinkSavepoint, open_flink_savepoint
from arrowstate.foreign.flink.importing import plan_flink_import
from arrowstate.store import open_store


def _opened(options: argparse.Namespace) -> FlinkSavepoint:
    return open_flink_savepoint(options.savepoint, hints=hints_of(options.hints))


def show(options: argparse.Namespace) -> int:
    """Print the operators and states of a savepoint."""
    savepoint = _opened(options)
    told = _told(savepoint, count=options.rows)
    if options.json:
        print_json(told)
        return 0
    say(f"checkpoint {savepoint.checkpoint_id} of Flink")
    rows = [
        (f"{operator['operator']}.{state['state']}", state["kind"], state.get("rows"), ", ".join(state["columns"]))
        for operator in told["operators"]
        for state in operator["states"]
    ]
    print_narrow_table(["state", "kind", "rows", "columns"], rows, split=3)
    for operator in told["operators"]:
        for reason in operator["left_out"]:
            say(f"{operator['operator']}: {reason}")
        for state in operator["states"]:
            if state["opaque"]:
                say(f"{operator['operator']}.{state['state']} holds bytes of {', '.join(state['opaque'])}")
    return 0


def _told(savepoint: FlinkSavepoint, *, count: bool) -> dict[str, Any]:
    operators = []
    for label, operator in savepoint.operators.items():
        states = []
        for state in operator.states:
            columns = [f"{field.name} {field.type}" for field in state.schema]
            known = {"state": state.name, "kind": state.kind, "columns": columns, "opaque": list(state.opaque)}
            states.append({**known, "rows": sum(batch.num_rows for batch in state.to_batches()) if count else None})
        operators.append(
            {
                "operator": label,
                "id": operator.id,
                "parallelism": operator.parallelism,
                "max_parallelism": operator.max_parallelism,
                "states": states,
                "left_out": list(operator.left_out),
            }
        )
    return {"checkpoint_id": savepoint.checkpoint_id, "operators": operators}


def sql(options: argparse.Namespace) -> int:
    """Run queries over a savepoint and print their results."""
    format, queries = asked_of(options)
    savepoint = _Queried(_opened(options))
    for query in queries:
        interruptible(partial(show_result, savepoint, query, format, options.output))
    return 0


class _Queried:
    """A savepoint, to which queries are put: what has expired in it nobody knows."""

    def __init__(self, savepoint: FlinkSavepoint) -> None:
        self._savepoint = savepoint

    def sql(self, query: str, *, expired: bool = False) -> Any:
        """Run a query."""
        del expired
        return self._savepoint.sql(query)


def import_(options: argparse.Namespace) -> int:
    """Import a savepoint and say what became of each state."""
    savepoint = _opened(options)
    states = states_of(savepoint, options.states)
    operators = dict(pair_of("--operator", "NAME_IN_FLINK=UID", each) for each in options.operator or ())
    try:
        store = open_store(options.store)
    except StoreNotFoundError:
        store = None
    # A store is made only for an import that nothing is in the way of.
    planned = plan_flink_import(
        savepoint,
        store or open_store(f"memory://{new_id()}", create=True),
        operators=operators or None,
        states=states,
        parallelism=options.parallelism,
        max_parallelism=options.max_parallelism,
    )
    made = planned.commit(store or open_store(options.store, create=True))
    if options.json:
        print_json(
            {
                "checkpoint_id": made.snapshot.checkpoint_id,
                "states": [
                    {
                        "operator": item.operator,
                        "state": item.state,
                        "kind": item.kind,
                        "uid": item.uid,
                        "name": item.name,
                        "rows": item.rows,
                        "note": item.note,
                    }
                    for item in made.states
                ],
                "left_out": list(made.left_out),
            }
        )
        return 0
    rows = [
        (f"{item.operator}.{item.state}", f"{item.uid}.{item.name}" if item.name else "", item.rows)
        for item in made.states
    ]
    print_narrow_table(["state of Flink", "is now", "rows"], rows)
    for item in made.states:
        if item.note:
            say(f"{item.operator}.{item.state}: {item.note}")
    for reason in made.left_out:
        say(reason)
    say(f"imported as checkpoint {made.snapshot.checkpoint_id}")
    return 0
