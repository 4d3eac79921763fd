"""A savepoint as Delta tables: its Parquet files with a log of one entry for each state.

A savepoint has no dead rows and one file for each state and subtask, so the log of Delta only lists them. Its paths are
relative: the folder may be moved. Specification: formats/spec/savepoints.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import xxhash

from arrowstate.errors import InvalidInputError
from arrowstate.files.disposal import DELTA_LOG
from arrowstate.files.reading import subtask_runs
from arrowstate.files.subtasks import subtasks_of
from arrowstate.publish.types import table_fields
from arrowstate.schema.fields import Field
from arrowstate.schema.versions import RunSchemas
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, RunDocument
from arrowstate_formats.schema_documents import StateDocument
from arrowstate_formats.state_columns import HIDDEN_FIELD_IDS, fields_of_run

_LEAVES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
    **dict.fromkeys([pa.string(), pa.large_string(), pa.string_view()], "string"),
    **dict.fromkeys([pa.binary(), pa.large_binary(), pa.binary_view()], "binary"),
}
_SIGNS = re.compile(r"[ ,;{}()\n\t=]")
"""What the name of a column of Delta may not have."""


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
    features = ["timestampNtz"] if '"timestamp_ntz"' in json.dumps(schema) else []
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
    yield {"commitInfo": {"timestamp": entry.committed_at_ms, "operation": "arrowstate savepoint"}}
    yield {"protocol": protocol}
    digest = xxhash.xxh3_128_hexdigest(f"{entry.commit_id} {operator.uid} {state.name}".encode())
    yield {
        "metaData": {
            "id": f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}",
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
    return _struct(fields, f"{operator.uid}.{state.name}")


def _struct(fields: Sequence[Field], what: str) -> dict[str, Any]:
    for field in fields:
        if _SIGNS.search(field.name):
            raise InvalidInputError(
                f"{what} has the column {field.name!r}, and a name in Delta has no space and none of ,;{{}}()=; write "
                "the savepoint without delta, or rename the column"
            )
    return {
        "type": "struct",
        "fields": [
            {
                "name": field.name,
                "type": _type(field, f"{what}.{field.name}"),
                "nullable": field.nullable,
                "metadata": {},
            }
            for field in fields
        ],
    }


def _type(field: Field, what: str) -> Any:
    kind, types = field.type, pa.types
    if types.is_struct(kind):
        return _struct(field.children, what)
    if types.is_map(kind):
        key, value = field.children
        pair = {"keyType": _type(key, what), "valueType": _type(value, what)}
        return {"type": "map", **pair, "valueContainsNull": value.nullable}
    if types.is_list(kind) or types.is_large_list(kind):
        (element,) = field.children
        return {"type": "array", "elementType": _type(element, what), "containsNull": element.nullable}
    if types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision},{kind.scale})"
    if kind not in _LEAVES:
        raise InvalidInputError(
            f"{what} has the type {kind}, for which Delta has none; write the savepoint without delta, or publish the "
            "store as Iceberg tables by store.publish"
        )
    return _LEAVES[kind]
