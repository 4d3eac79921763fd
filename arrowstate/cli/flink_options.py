"""What `arrowstate flink` takes on the command line: types for what a savepoint does not say, and states to import."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.foreign.flink import FlinkSavepoint
from arrowstate.foreign.flink.hints import Hint
from arrowstate.foreign.flink.imported_rows import KeyedRows
from arrowstate.foreign.flink.states import FlinkState
from arrowstate.schema.descriptors import ReducingStateDescriptor, StateDescriptor


def pair_of(option: str, form: str, text: str) -> tuple[str, str]:
    """Return what stands before and behind the last `=` of an option."""
    name, found, value = text.rpartition("=")
    if not found or not name or not value:
        raise InvalidInputError(f"{option} takes {form}, got {text!r}")
    return name, value


def hints_of(texts: Sequence[str] | None) -> dict[str, Hint]:
    """Return hints by state or class; InvalidInputError if a text is none."""
    return {name: _hint(kind) for name, kind in (pair_of("--hint", "NAME=TYPE", text) for text in texts or ())}


def _hint(text: str) -> Hint:
    """The type of a text of SQL; of a struct its fields, which may be columns of the state."""
    import duckdb

    try:
        kind = duckdb.sqltype(text)
    except duckdb.Error as error:
        raise InvalidInputError(
            f"--hint takes a type of SQL such as BIGINT, VARCHAR[] or STRUCT(id BIGINT, name VARCHAR), got {text!r}"
        ) from error
    with duckdb.connect() as connection:
        found = connection.sql(f"select null::{kind}").to_arrow_table().schema.field(0).type
    return pa.schema(list(found)) if pa.types.is_struct(found) else found


def states_of(savepoint: FlinkSavepoint, texts: Sequence[str] | None) -> dict[str, StateDescriptor | None]:
    """Return what becomes of each state, None for those that are not named; nothing if no state is named."""
    if not texts:
        return {}
    found: dict[str, StateDescriptor | None] = dict.fromkeys(savepoint.states)
    for text in texts:
        name, _, wanted = text.partition("=")
        state = savepoint[name]
        reference = f"{state.operator}.{state.name}"
        found.pop(reference, None)
        if not wanted:
            continue
        if state.kind in ("split", "union", "broadcast"):
            raise InvalidInputError(f"--state renames keyed state; {reference} is {state.kind} state, give {name}")
        own, _, reducer = wanted.partition(":")
        found[reference] = _reducing(state, own, reducer) if reducer else KeyedRows(state, None).descriptor(own, None)
    return found


def _reducing(state: FlinkState, name: str, reducer: str) -> ReducingStateDescriptor:
    """A reducing state of the accumulators; its reducer is one name, or one for each field."""
    kind = state.schema.field("value").type if "value" in state.schema.names else None
    # A value of PyFlink is a list, of which a hint makes the value.
    if kind is None or state.kind == "map" or pa.types.is_list(kind):
        raise InvalidInputError(
            f"a reducer needs a state of values or accumulators, and {state.name!r} is {state.kind}"
        )
    if "=" not in reducer:
        return ReducingStateDescriptor(name, kind, reduce=reducer)
    fields = dict(pair_of("--state", "NAME=OWN:FIELD=REDUCER,...", part) for part in reducer.split(","))
    return ReducingStateDescriptor(name, kind, reduce=fields)
