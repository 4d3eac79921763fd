"""A savepoint as Delta tables: its Parquet files with a log of one entry for each state.

A savepoint has no dead rows and one file for each state and subtask, so the log of Delta only lists them. Its paths are
relative: the folder may be moved. Specification: formats/spec/savepoints.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from arrowstate.files.disposal import DELTA_LOG
from arrowstate.files.reading import subtask_runs
from arrowstate.files.subtasks import subtasks_of
from arrowstate.publish.delta_table import features_of, protocol_of, uuid_of
from arrowstate.publish.types import delta_schema, table_fields
from arrowstate.schema.versions import RunSchemas
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, RunDocument
from arrowstate_formats.schema_documents import StateDocument
from arrowstate_formats.state_columns import HIDDEN_FIELD_IDS, fields_of_run


def check_delta(entry: LogEntryDocument) -> None:
    """Refuse a checkpoint with a column that Delta has no type or no name for."""
    for operator in entry.operators:
        for state in operator.states:
            _schema_of(operator, state)


def write_delta_logs(storage: Storage, entry: LogEntryDocument) -> None:
    """Make each state of a savepoint a Delta table in its folder."""
    for operator in entry.operators:
        runs: dict[str, list[RunDocument]] = {}
        for subtask in subtasks_of(storage, operator):
            for name, own in subtask_runs(storage, operator, subtask).items():
                runs.setdefault(name, []).extend(own)
        for state in operator.states:
            lines = _lines(entry, operator, state, runs.get(state.name, []))
            text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            with storage.write_file(f"data/{operator.uid}/{state.name}/{DELTA_LOG}") as file:
                file.write(text.encode())


def _lines(
    entry: LogEntryDocument, operator: OperatorDocument, state: StateDocument, runs: Sequence[RunDocument]
) -> Iterator[dict[str, Any]]:
    schema = _schema_of(operator, state)
    yield {"commitInfo": {"timestamp": entry.committed_at_ms, "operation": "arrowstate savepoint"}}
    yield {"protocol": protocol_of(features_of(schema))}
    yield {
        "metaData": {
            "id": uuid_of(f"{entry.commit_id} {operator.uid} {state.name}"),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema, separators=(",", ":")),
            "partitionColumns": [],
            "configuration": {},
            "createdTime": entry.committed_at_ms,
        }
    }
    for run in runs:
        assert run.path is not None, "no run of a savepoint is inline"
        if run.rows:
            yield {
                "add": {
                    "path": run.path.rpartition("/")[2],
                    "partitionValues": {},
                    "size": run.bytes,
                    "modificationTime": entry.committed_at_ms,
                    "dataChange": True,
                    "stats": json.dumps({"numRecords": run.rows}),
                }
            }


def _schema_of(operator: OperatorDocument, state: StateDocument) -> dict[str, Any]:
    schemas = RunSchemas(operator.key, state)
    hidden = [name for name in schemas.schema.names if name in HIDDEN_FIELD_IDS]
    fields = table_fields(fields_of_run(operator.key, state), hidden)
    return delta_schema(fields, f"{operator.uid}.{state.name}", in_twins=False)
