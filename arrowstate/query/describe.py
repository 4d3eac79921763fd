"""What a checkpoint holds, from its log entry and its manifests: operators, states, schema versions, sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from arrowstate.files.reading import subtask_runs
from arrowstate.files.storage_use import storage_use
from arrowstate.files.subtasks import subtasks_of, whole_operator
from arrowstate.storage.base import Storage
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, RunDocument
from arrowstate_formats.schema_documents import FieldDocument, SchemaDocument, StateDocument


def overview(storage: Storage, entry: LogEntryDocument) -> dict[str, Any]:
    """Return a checkpoint as plain values: what `StateStore.show` documents."""
    use = storage_use(storage, entry)
    return {
        "checkpoint_id": entry.checkpoint_id,
        "kind": entry.kind,
        "writer_epoch": entry.writer_epoch,
        "started_at_ms": entry.started_at_ms,
        "committed_at_ms": entry.committed_at_ms,
        "watermark": entry.watermark,
        "properties": entry.properties,
        "storage": {
            "files": use.files,
            "bytes": use.bytes,
            "live_bytes": use.live_bytes,
            "small_files": use.small_files,
            "space_amplification": use.space_amplification,
        },
        "operators": [
            {
                "uid": operator.uid,
                "key": {field.name: str(type_from_json(field.type)) for field in operator.key},
                "max_parallelism": operator.max_parallelism,
                "key_groups": [subtask.key_groups for subtask in subtasks_of(storage, operator)],
                "states": [state_overview(storage, operator, state) for state in operator.states],
                "operator_states": [
                    {
                        "name": state.name,
                        "kind": state.kind,
                        "type": str(type_from_json(state.value_type)),
                        "rows": sum(part.rows for part in state.parts),
                        "subtasks": state.part_count,
                        "bytes": sum(part.bytes for part in state.parts),
                    }
                    for state in whole_operator(storage, operator).operator_states
                ],
            }
            for operator in entry.operators
        ],
    }


def state_overview(storage: Storage, operator: OperatorDocument, state: StateDocument) -> dict[str, Any]:
    """Return one state as plain values."""
    runs = runs_of(storage, operator, state.name)
    stored = sum(run.last_row - run.first_row for run in runs)
    live = live_rows(operator, state)
    written = Counter(run.schema_version for run in runs)
    versions: list[tuple[int, StateDocument | SchemaDocument, list[FieldDocument]]] = [
        *((schema.version, schema, schema.key) for schema in state.earlier_schemas),
        (state.schema_version, state, operator.key),
    ]
    return {
        "name": state.name,
        "kind": state.kind,
        "type": state.clock or str(type_from_json(state.value_type)),
        "reduce": state.reduce,
        "rows": live,
        "runs": len(runs),
        "dead_share": 1 - live / stored if stored else 0.0,
        "bytes": bytes_of(runs),
        "schema_version": state.schema_version,
        "schema_versions": [
            {"version": version, "columns": columns_of(schema, key), "runs": written[version]}
            for version, schema, key in versions
        ],
        "time_to_live": None if state.time_to_live is None else asdict(state.time_to_live),
    }


def columns_of(schema: StateDocument | SchemaDocument, key: Sequence[FieldDocument]) -> list[dict[str, Any]]:
    """Return id, name, part and type of the columns of a state in one schema version."""
    timer = isinstance(schema, StateDocument) and schema.kind == "timer"
    fields = [
        *((field, "key") for field in key),
        *((field, "namespace") for field in schema.namespace),
        *((field, "timestamp" if timer else "user key") for field in (schema.user_key,) if field),
        *((field, "value") for field in schema.columns),
    ]
    return [
        {"id": field.id, "name": field.name, "of": part, "type": str(type_from_json(field.type))}
        for field, part in fields
    ]


def runs_of(storage: Storage, operator: OperatorDocument, state: str | None = None) -> list[RunDocument]:
    """Return the runs of all subtasks, of one state or of all."""
    by_subtask = [subtask_runs(storage, operator, subtask) for subtask in subtasks_of(storage, operator)]
    return [run for runs in by_subtask for name, own in runs.items() if state in (None, name) for run in own]


def bytes_of(runs: Sequence[RunDocument]) -> int:
    """Return the bytes of the run files, those of a file that several subtasks share counted once."""
    return sum({run.id: run.bytes for run in runs}.values())


def live_rows(operator: OperatorDocument, state: StateDocument) -> int:
    """Return the live rows of a state, as the log entry counts them."""
    return operator.live_rows(state.name)
