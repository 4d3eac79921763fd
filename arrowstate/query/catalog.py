"""How states are named: `<operator uid>.<state>` in Python, a schema per operator and a view per state in SQL.

DuckDB does not tell names apart by case, and keeps a few schema names for itself, as `arrowstate` is kept for the
history of the store. Where two uids, or two states of one operator, differ in nothing else, each gets a number at the
end of its SQL name (`op~1`, `OP~2`), so that neither answers for the other; a uid that is one of the kept names gets
`~2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from arrowstate.errors import InvalidInputError, OperatorNotFoundError, StateNotFoundError
from arrowstate.files.reading import states_of
from arrowstate.query.duckdb.sql_types import distinct_names
from arrowstate_formats.documents import LogEntryDocument


def resolve(entry: LogEntryDocument, reference: str | tuple[str, str]) -> tuple[str, str]:
    """Return (operator uid, state name) of a reference such as `counter.clicks`.

    Both parts may hold dots: the reference is split where an operator and a state come out. A tuple of both is
    taken as it is.
    """
    states = list(states_of(entry))
    names = [".".join(state) for state in states]
    if isinstance(reference, tuple) and len(reference) == 2:
        found = [state for state in states if state == reference]
        uid = reference[0]
    elif isinstance(reference, str):
        found = [state for state, name in zip(states, names, strict=True) if name == reference]
        uid = reference.rpartition(".")[0]
    else:
        raise InvalidInputError(f"a state is named '<operator uid>.<state>', got {reference!r}")
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidInputError(
            f"{reference!r} fits {' and '.join(map(repr, found))}; give the uid and the state name as a tuple"
        )
    uids = [operator.uid for operator in entry.operators]
    if uid and not any(other == uid or uid.startswith(f"{other}.") for other in uids):
        raise OperatorNotFoundError(uid, uids, entry.checkpoint_id)
    name = ".".join(reference) if isinstance(reference, tuple) else reference
    raise StateNotFoundError(name, names, None, entry.checkpoint_id)


_HISTORY_SCHEMA = "arrowstate"
"""The schema of the tables that hold the history of the store."""
HISTORY_NAMES = tuple(f"{_HISTORY_SCHEMA}.{table}" for table in ("checkpoints", "subtasks"))
"""One name for each of them, as `SqlName.relation` is for a state."""
# DuckDB reads `memory.v` and `v` as `memory.main.v`, and `main` holds the relations of all states: an operator there
# would answer for others.
_RESERVED_SCHEMAS = (_HISTORY_SCHEMA, "information_schema", "main", "memory", "pg_catalog", "system", "temp")


class SqlName(Struct, frozen=True):
    """What a state is called in SQL."""

    uid: str
    state: str
    schema: str
    view: str
    relation: str
    "One name that holds all columns, `_key_hash` too: the schema, a dot, the view."
    is_operator_state: bool = False
    "Whether it is a state of the operator's subtasks rather than of keys."


def sql_names(entry: LogEntryDocument) -> list[SqlName]:
    """Return the SQL name of each state of a checkpoint, operator state included."""
    return named(
        {
            operator.uid: [
                *((state.name, False) for state in operator.states),
                *((state.name, True) for state in operator.operator_states),
            ]
            for operator in entry.operators
        }
    )


def named(states: Mapping[str, Sequence[tuple[str, bool]]]) -> list[SqlName]:
    """Return the SQL name of each state, given by operator with whether it is operator state."""
    schemas = distinct_names(list(states), _RESERVED_SCHEMAS)
    found = []
    for (uid, own), schema in zip(states.items(), schemas, strict=True):
        views = distinct_names([name for name, _ in own])
        found += [
            (uid, name, schema, view, is_operator_state)
            for (name, is_operator_state), view in zip(own, views, strict=True)
        ]
    # Both parts may hold dots, so two states can come to the same text.
    relations = distinct_names([f"{schema}.{view}" for _, _, schema, view, _ in found], HISTORY_NAMES)
    return [
        SqlName(uid, state, schema, view, relation, is_operator_state)
        for (uid, state, schema, view, is_operator_state), relation in zip(found, relations, strict=True)
    ]


def history_names() -> list[SqlName]:
    """Return the SQL name of each table of the history, which no operator has."""
    tables = [name.removeprefix(f"{_HISTORY_SCHEMA}.") for name in HISTORY_NAMES]
    return [SqlName("", table, _HISTORY_SCHEMA, table, f"{_HISTORY_SCHEMA}.{table}") for table in tables]


@lru_cache(4096)
def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
