"""What a checkpoint consists of, as tables of the schema `arrowstate`: operators, states, columns, files, key groups.

They are those of the checkpoint that a query reads, and made when it asks for them. `tags` and `leases` are of the
store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from arrowstate.files.reading import subtask_runs
from arrowstate.files.storage_use import files_of, slices_by_state
from arrowstate.files.subtasks import subtasks_of
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.pins import read_pins
from arrowstate.query.describe import state_overview
from arrowstate.query.duckdb.filters import Bounds, Node, may_match
from arrowstate.query.state import KEY_GROUP_COLUMN, StateReader
from arrowstate.storage.base import Storage
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument
from arrowstate_formats.schema_documents import StateDocument

Rows = Iterator[dict[str, Any]]


def about(storage: Storage, entry: LogEntryDocument, name: str, passes: Node | None = None) -> pa.Table:
    """Return one of `ABOUT_TABLES` for a checkpoint."""
    schema, rows_of = ABOUT_TABLES[name]
    if passes is not None:
        entry = replace(entry, operators=_passing(entry.operators, passes, whole=name == "operators"))
    with reading_checkpoint(storage, entry):
        return pa.Table.from_pylist(list(rows_of(storage, entry)), schema=schema)


def _passing(operators: Sequence[OperatorDocument], passes: Node, *, whole: bool) -> list[OperatorDocument]:
    """Return the operators that have something of which rows may pass, as a whole or with the states of these alone."""
    if whole:
        return list(compress(operators, _may_pass(passes, [(operator.uid, None) for operator in operators])))
    found = []
    for operator in operators:
        states = list(compress(operator.states, _may_pass(passes, [(operator.uid, it.name) for it in operator.states])))
        others = _may_pass(passes, [(operator.uid, state.name) for state in operator.operator_states])
        if states or any(others):
            found.append(replace(operator, states=states))
    return found


def _may_pass(passes: Node, names: Sequence[tuple[str, str | None]]) -> Iterable[bool]:
    """Return for each operator and state, or operator alone, whether a row of it may pass."""
    bounds = {}
    for column, values in zip(("operator", "state"), zip(*names, strict=True), strict=False):
        known = np.array(values, dtype=np.object_)
        bounds[column] = Bounds(_TEXT, np.array([value is not None for value in values]), known, known)
    found: list[bool] = may_match(passes, bounds, len(names)).tolist()
    return found


def _states(entry: LogEntryDocument) -> Iterator[tuple[OperatorDocument, StateDocument, dict[str, Any]]]:
    for operator in entry.operators:
        for state in operator.states:
            yield operator, state, {"operator": operator.uid, "state": state.name}


def _operator_rows(storage: Storage, entry: LogEntryDocument) -> Rows:
    for operator in entry.operators:
        yield {
            "operator": operator.uid,
            "key": ", ".join(f"{field.name} {type_from_json(field.type)}" for field in operator.key) or None,
            "max_parallelism": operator.max_parallelism if operator.key else None,
            "parallelism": len(list(subtasks_of(storage, operator))),
            "states": len(operator.states),
            "operator_states": len(operator.operator_states),
            "rows": sum(operator.live_rows(state.name) for state in operator.states),
        }


def _state_rows(storage: Storage, entry: LogEntryDocument) -> Rows:
    for operator, state, name in _states(entry):
        found = state_overview(storage, operator, state)
        reduce = found["reduce"]
        yield {
            **name,
            **{key: found[key] for key in ("kind", "type", "rows", "runs", "dead_share", "bytes", "schema_version")},
            "reduce": reduce if reduce is None or isinstance(reduce, str) else str(reduce),
            **_time_to_live(state),
        }


def _time_to_live(state: StateDocument) -> dict[str, Any]:
    ttl = state.time_to_live
    return {} if ttl is None else {"ttl_ms": ttl.ttl_ms, "ttl_clock": ttl.clock}


def _column_rows(storage: Storage, entry: LogEntryDocument) -> Rows:
    for operator, state, name in _states(entry):
        for version in state_overview(storage, operator, state)["schema_versions"]:
            for number, column in enumerate(version["columns"]):
                yield {
                    **name,
                    "schema_version": version["version"],
                    "position": number,
                    "column_id": column["id"],
                    "column": column["name"],
                    "of": column["of"],
                    "type": column["type"],
                    **_time_to_live(state),
                }


def _version_rows(storage: Storage, entry: LogEntryDocument) -> Rows:
    for operator, state, name in _states(entry):
        for version in state_overview(storage, operator, state)["schema_versions"]:
            columns = ", ".join(f"{column['name']} {column['type']}" for column in version["columns"])
            is_current = version["version"] == state.schema_version
            yield {
                **name,
                "schema_version": version["version"],
                "columns": columns,
                "runs": version["runs"],
                "is_current": is_current,
            }


def _file_rows(storage: Storage, entry: LogEntryDocument) -> Rows:
    for operator in entry.operators:
        for subtask in subtasks_of(storage, operator):
            for state, runs in subtask_runs(storage, operator, subtask).items():
                for run in runs:
                    yield {
                        "operator": operator.uid,
                        "state": state,
                        "subtask": subtask.subtask,
                        "run": run.id,
                        "path": run.path,
                        "format": run.format,
                        "schema_version": run.schema_version,
                        "rows": run.last_row - run.first_row,
                        "live_rows": run.live_rows,
                        "rows_of_file": run.rows,
                        "bytes_of_file": run.bytes,
                        "min_key_hash": run.batches[0].min_hash if run.batches else None,
                        "max_key_hash": run.batches[-1].max_hash if run.batches else None,
                        "batches": len(run.batches),
                    }


def _key_group_rows(storage: Storage, entry: LogEntryDocument) -> Rows:
    """Every key hash is read."""
    for operator, state, name in _states(entry):
        reader = StateReader(storage, entry, operator.uid, state.name)
        counts: Counter[int] = Counter()
        for batch in reader.batches(reader.parts.parts, [KEY_GROUP_COLUMN]):
            found = pc.value_counts(batch.column(0))
            counts.update(dict(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True)))
        for group in sorted(counts):
            yield {**name, "key_group": group, "rows": counts[group]}


def _storage_rows(storage: Storage, entry: LogEntryDocument) -> Rows:
    for operator in entry.operators:
        for state, slices in slices_by_state(storage, operator).items():
            files = files_of(slices)
            size, live = sum(file.bytes for file in files), sum(file.live_bytes for file in files)
            yield {
                "operator": operator.uid,
                "state": state,
                "files": sum(not file.inline for file in files),
                "bytes": size,
                "live_bytes": live,
                "space_amplification": size / live if live else None,
            }


def _tag_rows(storage: Storage, _: LogEntryDocument) -> Rows:
    for pin in read_pins(storage):
        if pin.tag is not None:
            yield {"tag": pin.tag, "checkpoint_id": pin.checkpoint_id}


def _lease_rows(storage: Storage, _: LogEntryDocument) -> Rows:
    for pin in read_pins(storage):
        if pin.tag is None:
            yield {
                "holder": pin.holder,
                "checkpoint_id": pin.checkpoint_id,
                "expires_at": pin.expires_at_ms,
                "and_later": pin.and_later,
            }


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


_TEXT, _NUMBER = pa.string(), pa.int64()
_OF_STATE = {"operator": _TEXT, "state": _TEXT}

ABOUT_TABLES: dict[str, tuple[pa.Schema, Callable[[Storage, LogEntryDocument], Rows]]] = {
    "operators": (
        _schema(
            operator=_TEXT,
            key=_TEXT,
            max_parallelism=_NUMBER,
            parallelism=_NUMBER,
            states=_NUMBER,
            operator_states=_NUMBER,
            rows=_NUMBER,
        ),
        _operator_rows,
    ),
    "states": (
        _schema(
            **_OF_STATE,
            kind=_TEXT,
            type=_TEXT,
            reduce=_TEXT,
            rows=_NUMBER,
            runs=_NUMBER,
            dead_share=pa.float64(),
            bytes=_NUMBER,
            schema_version=_NUMBER,
            ttl_ms=_NUMBER,
            ttl_clock=_TEXT,
        ),
        _state_rows,
    ),
    "columns": (
        _schema(
            **_OF_STATE,
            schema_version=_NUMBER,
            position=_NUMBER,
            column_id=_NUMBER,
            column=_TEXT,
            of=_TEXT,
            type=_TEXT,
            ttl_ms=_NUMBER,
            ttl_clock=_TEXT,
        ),
        _column_rows,
    ),
    "schema_versions": (
        _schema(**_OF_STATE, schema_version=_NUMBER, columns=_TEXT, runs=_NUMBER, is_current=pa.bool_()),
        _version_rows,
    ),
    "files": (
        _schema(
            **_OF_STATE,
            subtask=_NUMBER,
            run=_TEXT,
            path=_TEXT,
            format=_TEXT,
            schema_version=_NUMBER,
            rows=_NUMBER,
            live_rows=_NUMBER,
            rows_of_file=_NUMBER,
            bytes_of_file=_NUMBER,
            min_key_hash=_NUMBER,
            max_key_hash=_NUMBER,
            batches=_NUMBER,
        ),
        _file_rows,
    ),
    "key_groups": (_schema(**_OF_STATE, key_group=_NUMBER, rows=_NUMBER), _key_group_rows),
    "storage": (
        _schema(**_OF_STATE, files=_NUMBER, bytes=_NUMBER, live_bytes=_NUMBER, space_amplification=pa.float64()),
        _storage_rows,
    ),
    "tags": (_schema(tag=_TEXT, checkpoint_id=_NUMBER), _tag_rows),
    "leases": (
        _schema(holder=_TEXT, checkpoint_id=_NUMBER, expires_at=pa.timestamp("ms"), and_later=pa.bool_()),
        _lease_rows,
    ),
}
"""By name the columns of a table, and its rows."""
