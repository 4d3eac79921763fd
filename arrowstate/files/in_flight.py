"""What a checkpoint of the runtime has of rows in flight to an operator: under which names, and whether there are any.

A job with unaligned checkpoints keeps what its barriers have overtaken as states of the operator that it was on its way
to. Specification: formats/spec/operator-state.md.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from arrowstate.files.subtasks import whole_operator
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import OperatorDocument, SubtaskDocument

CHANNELS = "inflight_channels"
"""The operator state that has the channels; where it is, the states below are of the runtime and of no function."""


def rows_name(port: int) -> str:
    """Return the name of the keyed state that has the rows of an input, whose number is from 0."""
    return "inflight" if not port else f"inflight_{port + 1}"


def rows_without_key_name(port: int) -> str:
    """Return the name of the operator state that has the rows of an input with a null in their key."""
    return f"{rows_name(port)}_null_key"


RESERVED = (CHANNELS, *(name(port) for port in (0, 1) for name in (rows_name, rows_without_key_name)))


def reserved_names(operator: OperatorDocument | None) -> Collection[str]:
    """Return the states of an operator in a checkpoint that are of the runtime and of no function."""
    if operator is None or all(state.name != CHANNELS for state in operator.operator_states):
        return ()
    return RESERVED


def has_rows_in_flight(operator: OperatorDocument) -> bool:
    """Whether a checkpoint has any row in flight to an operator."""
    names = reserved_names(operator)
    if any(operator.live_rows(name) for name in names):
        return True
    lists = [state for state in operator.operator_states if state.name in names and state.name != CHANNELS]
    return any(any(part.rows for part in it.parts) or any(file.rows for file in it.part_files) for it in lists)


def without_rows_in_flight(storage: Storage, operator: OperatorDocument) -> OperatorDocument:
    """Return an operator without the states for rows in flight, which its manifests may still have."""
    names = reserved_names(operator)
    if not names:
        return operator
    operator = whole_operator(storage, operator)
    return replace(
        operator,
        states=[state for state in operator.states if state.name not in names],
        subtasks=[_without(subtask, names) for subtask in operator.subtasks],
        operator_states=[state for state in operator.operator_states if state.name not in names],
    )


def _without(subtask: SubtaskDocument, names: Collection[str]) -> SubtaskDocument:
    rows = {name: count for name, count in subtask.live_rows.items() if name not in names}
    versions = subtask.schema_versions
    if versions is not None:
        versions = {name: own for name, own in versions.items() if name not in names}
    return replace(subtask, live_rows=rows, schema_versions=versions)
