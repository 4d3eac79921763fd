"""Manifests and manifest lists of an Iceberg table, and the files that they name.

A file, its entry and its manifest are plain dictionaries, as their Avro schemas have them. The name of a manifest has
the checksum of its bytes, so a name never stands for two contents, however many publishers write it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from arrowstate.publish.avro import read_container, write_container
from arrowstate.publish.deletes import PATH_ID
from arrowstate.publish.types import plain_type
from arrowstate.schema.fields import Field
from arrowstate_formats.documents import RunDocument
from arrowstate_formats.state_columns import HASH_COLUMN, HIDDEN_FIELD_IDS

Entry: TypeAlias = dict[str, Any]

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, DELETES = 0, 1
PIECES_KEY = "arrowstate.pieces"
"""In the header of a manifest of deletes: by data file, what the dead rows of its run were made from."""


def _field(name: str, kind: Any, number: int, *, optional: bool = False) -> dict[str, Any]:
    out = {"name": name, "type": ["null", kind] if optional else kind, "field-id": number}
    return {**out, "default": None} if optional else out


def _record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def _by_id(key: int, value: int, kind: str) -> dict[str, Any]:
    pair = _record(f"k{key}_v{value}", _field("key", "int", key), _field("value", kind, value))
    return {"type": "array", "logicalType": "map", "items": pair}


def _entry_schema(version: int) -> dict[str, Any]:
    fields = [
        _field("content", "int", 134),
        _field("file_path", "string", 100),
        _field("file_format", "string", 101),
        _field("partition", _record("r102"), 102),
        _field("record_count", "long", 103),
        _field("file_size_in_bytes", "long", 104),
        _field("value_counts", _by_id(119, 120, "long"), 109, optional=True),
        _field("null_value_counts", _by_id(121, 122, "long"), 110, optional=True),
        _field("lower_bounds", _by_id(126, 127, "bytes"), 125, optional=True),
        _field("upper_bounds", _by_id(129, 130, "bytes"), 128, optional=True),
        _field("split_offsets", {"type": "array", "items": "long", "element-id": 133}, 132, optional=True),
        _field("sort_order_id", "int", 140, optional=True),
        _field("referenced_data_file", "string", 143, optional=True),
    ]
    if version >= 3:
        fields.append(_field("first_row_id", "long", 142, optional=True))
        fields.append(_field("content_offset", "long", 144, optional=True))
        fields.append(_field("content_size_in_bytes", "long", 145, optional=True))
    return _record(
        "manifest_entry",
        _field("status", "int", 0),
        _field("snapshot_id", "long", 1, optional=True),
        _field("sequence_number", "long", 3, optional=True),
        _field("file_sequence_number", "long", 4, optional=True),
        _field("data_file", _record("r2", *fields), 2),
    )


def _list_schema(version: int) -> dict[str, Any]:
    fields = [
        _field("manifest_path", "string", 500),
        _field("manifest_length", "long", 501),
        _field("partition_spec_id", "int", 502),
        _field("content", "int", 517),
        _field("sequence_number", "long", 515),
        _field("min_sequence_number", "long", 516),
        _field("added_snapshot_id", "long", 503),
        _field("added_files_count", "int", 504),
        _field("existing_files_count", "int", 505),
        _field("deleted_files_count", "int", 506),
        _field("added_rows_count", "long", 512),
        _field("existing_rows_count", "long", 513),
        _field("deleted_rows_count", "long", 514),
    ]
    if version >= 3:
        fields.append(_field("first_row_id", "long", 520, optional=True))
    return _record("manifest_file", *fields)


def manifest_bytes(
    entries: Sequence[Entry],
    *,
    content: int,
    version: int,
    schema: Mapping[str, Any],
    pieces: Mapping[str, str] | None = None,
) -> bytes:
    """Return a manifest; `pieces` are noted in one of deletes."""
    metadata = {
        "schema": json.dumps(schema, separators=(",", ":")),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": str(version),
        "content": "deletes" if content == DELETES else "data",
    }
    if pieces is not None:
        metadata[PIECES_KEY] = json.dumps(pieces, separators=(",", ":"), sort_keys=True)
    return write_container(_entry_schema(version), entries, metadata)


def manifest_file(
    entries: Sequence[Entry], *, path: str, length: int, content: int, version: int, snapshot_id: int, sequence: int
) -> dict[str, Any]:
    """Return what a manifest list says of a manifest that a snapshot adds."""

    def counts(status: int) -> tuple[int, int]:
        rows = [entry["data_file"]["record_count"] for entry in entries if entry["status"] == status]
        return len(rows), sum(rows)

    added, existing, deleted = counts(ADDED), counts(EXISTING), counts(DELETED)
    live = [entry["sequence_number"] for entry in entries if entry["status"] == EXISTING]
    out = {
        "manifest_path": path,
        "manifest_length": length,
        "partition_spec_id": 0,
        "content": content,
        "sequence_number": sequence,
        "min_sequence_number": min([*live, sequence] if added[0] or not live else live),
        "added_snapshot_id": snapshot_id,
        "added_files_count": added[0],
        "existing_files_count": existing[0],
        "deleted_files_count": deleted[0],
        "added_rows_count": added[1],
        "existing_rows_count": existing[1],
        "deleted_rows_count": deleted[1],
    }
    return {**out, "first_row_id": None} if version >= 3 else out


def list_bytes(
    manifests: Sequence[Mapping[str, Any]], *, version: int, snapshot_id: int, parent: int | None, sequence: int
) -> bytes:
    """Return the manifest list of a snapshot."""
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(sequence),
        "format-version": str(version),
    }
    return write_container(_list_schema(version), manifests, metadata)


def read_list(data: bytes, *, path: str) -> list[dict[str, Any]]:
    """Return the manifests of a snapshot."""
    return read_container(data, path=path)[1]


def read_manifest(data: bytes, manifest: Mapping[str, Any]) -> tuple[list[Entry], dict[str, str]]:
    """Return the entries of a manifest that are not deleted, with what they inherit, and its `pieces`."""
    texts, entries = read_container(data, path=manifest["manifest_path"])
    first_row = manifest.get("first_row_id")
    live = []
    for entry in entries:
        file = entry["data_file"]
        if entry["status"] == ADDED:
            inherited = manifest["sequence_number"]
            entry = {**entry, "sequence_number": inherited, "file_sequence_number": inherited}
        # A row has its id from the manifest that first named its file.
        if first_row is not None and file.get("first_row_id") is None and entry["status"] != DELETED:
            file = {**file, "first_row_id": first_row}
            first_row += file["record_count"]
        if entry["status"] != DELETED:
            live.append({**entry, "status": EXISTING, "data_file": file})
    return live, json.loads(texts.get(PIECES_KEY, "{}"))


def _file(version: int, **known: Any) -> dict[str, Any]:
    names = [field["name"] for field in _entry_schema(version)["fields"][-1]["type"]["fields"]]
    return {name: known.get(name) for name in names} | {"partition": {}}


def data_file(
    path: str,
    *,
    size: int,
    version: int,
    run: RunDocument | None,
    rows: int,
    fields: Sequence[Field],
    is_as_it_is: bool,
) -> dict[str, Any]:
    """Return what a manifest says of a file of rows; `run` is None for one that is no run."""
    counts: dict[str, Any] = {}
    if run is not None:
        lower, upper = {}, {}
        hash_id = HIDDEN_FIELD_IDS[HASH_COLUMN]
        lower[hash_id] = struct.pack("<q", run.batches[0].min_hash)
        upper[hash_id] = struct.pack("<q", run.batches[-1].max_hash)
        known = {item.column: item for item in run.statistics}
        nulls = {hash_id: 0}
        for field in fields:
            item = known.get(field.name)
            if item is None or pa.types.is_nested(field.type):
                continue
            nulls[field.id] = item.null_count
            pack = _PACKED.get(plain_type(field.type, field.name)) if field.type in _PACKED else None
            if pack is not None and item.min is not None and item.max is not None:
                lower[field.id], upper[field.id] = pack(item.min), pack(item.max)
        counts = {
            "value_counts": _pairs(dict.fromkeys(nulls, rows)),
            "null_value_counts": _pairs(nulls),
            "lower_bounds": _pairs(lower),
            "upper_bounds": _pairs(upper),
            "split_offsets": [max(batch.offset, 4) for batch in run.batches] if is_as_it_is else None,
            "sort_order_id": 1,
        }
    return _file(
        version,
        content=DATA,
        file_path=path,
        file_format="PARQUET",
        record_count=rows,
        file_size_in_bytes=size,
        **counts,
    )


def _pairs(by_id: Mapping[int, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in sorted(by_id.items())]


_PACKED: Mapping[pa.DataType, Callable[[Any], bytes]] = {
    # Bounds of types that may be widened later would have to be written anew.
    pa.int64(): lambda value: struct.pack("<q", int(value)),
    pa.timestamp("us"): lambda value: struct.pack("<q", int(value)),
    pa.timestamp("us", "UTC"): lambda value: struct.pack("<q", int(value)),
    pa.string(): lambda value: str(value).encode(),
    pa.large_string(): lambda value: str(value).encode(),
    pa.bool_(): lambda value: bytes([bool(value)]),
}


def delete_file(
    path: str, *, size: int, version: int, data_path: str, count: int, place: tuple[int, int] | None
) -> dict[str, Any]:
    """Return what a manifest says of the dead rows of a data file: a blob of a Puffin file, or a Parquet file."""
    counts: dict[str, Any] = {}
    if place is not None:
        counts = {"content_offset": place[0], "content_size_in_bytes": place[1]}
    else:
        bound = [{"key": PATH_ID, "value": data_path.encode()}]
        counts = {"lower_bounds": bound, "upper_bounds": bound}
    return _file(
        version,
        content=DELETES,
        file_path=path,
        file_format="PARQUET" if place is None else "PUFFIN",
        record_count=count,
        file_size_in_bytes=size,
        referenced_data_file=data_path,
        **counts,
    )


def new_entry(file: dict[str, Any], snapshot_id: int) -> Entry:
    """Return the entry of a file that a snapshot adds."""
    return {
        "status": ADDED,
        "snapshot_id": snapshot_id,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": file,
    }
