"""The vectors of keys, deletion vectors and schema evolution: by this project, and by the reader of the text alone."""

import base64
import itertools
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import independent_reader
import numpy as np
import pyarrow as pa
import pytest

from arrowstate.schema.conversion import Conversion
from arrowstate.schema.fields import fields_of
from arrowstate_formats import hash_columns, type_from_json, type_to_json
from arrowstate_formats.arrow_types import _FLAT
from arrowstate_formats.deletion_vectors import clear_dead_rows, write_deletion_vector
from arrowstate_formats.document_base import Int64
from arrowstate_formats.documents import BatchDocument
from arrowstate_formats.run_files import RunFormat, checksum
from arrowstate_formats.run_reading import read_run
from arrowstate_formats.schema_documents import FieldDocument, NestedFieldDocument

VECTORS = Path(__file__).parents[2] / "formats/vectors"
HASHES = json.loads((VECTORS / "key_hash_types.json").read_text())["cases"]
DELETIONS = json.loads((VECTORS / "deletion_vectors.json").read_text())["cases"]
EVOLUTION = json.loads((VECTORS / "schema_evolution.json").read_text())


def array_of(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Read values in the notation of formats/vectors/README.md."""
    types = pa.types
    missing = [value is None for value in values]
    if types.is_null(kind):
        return pa.nulls(len(values))
    if types.is_struct(kind):
        parts = [array_of(field.type, [(value or {}).get(field.name) for value in values]) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pa.array(missing))
    if types.is_nested(kind):
        size = kind.list_size if types.is_fixed_size_list(kind) else 0
        lists = [[None] * size if value is None else value for value in values]
        items = array_of(kind.value_type, list(itertools.chain.from_iterable(lists)))
        if size:
            return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=pa.array(missing))
        large = types.is_large_list(kind)
        offsets = pa.array(np.cumsum([0, *map(len, lists)]), pa.int64() if large else pa.int32())
        make = pa.LargeListArray if large else pa.ListArray
        return make.from_arrays(offsets, items, type=kind, mask=pa.array(missing))
    if types.is_floating(kind):
        bits = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[kind.bit_width]
        return pa.array([None if value is None else int(value, 16) for value in values], bits).view(kind)
    if types.is_decimal(kind):
        return pa.array([None if value is None else Decimal(value) for value in values], kind)
    if types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    if "binary" in str(kind):
        return pa.array([None if value is None else bytes.fromhex(value) for value in values], kind)
    return pa.array(values, kind)


@pytest.mark.parametrize("case", HASHES, ids=lambda case: str(case["type"])[:40])
def test_keys_of_every_type_have_the_hashes_of_the_vectors(case: dict[str, Any]) -> None:
    kind = type_from_json(case["type"])
    values = array_of(kind, case["values"])

    assert hash_columns([values]).tolist() == case["hashes"]
    # Python has no nanoseconds, nor the seconds of an hour that its time does not have.
    if not pa.types.is_temporal(kind) or getattr(kind, "unit", "") != "ns":
        found = [independent_reader.key_hash([(value, kind)]) for value in values.to_pylist()]
        assert found == case["hashes"]


def test_the_vectors_have_every_type_that_a_key_may_have() -> None:
    kinds = {str(type_from_json(case["type"])) for case in HASHES}

    assert {str(kind) for kind in _FLAT.values()} <= kinds
    nested = {case["type"]["type"] for case in HASHES if isinstance(case["type"], dict)}
    assert nested == {"struct", "list", "large_list", "fixed_size_list"}
    assert all(type_to_json(type_from_json(case["type"])) == case["type"] for case in HASHES)


@pytest.mark.parametrize("case", DELETIONS, ids=lambda case: case["name"])
def test_deletion_vectors_are_those_of_the_reference_implementation(case: dict[str, Any]) -> None:
    data = base64.b64decode(case["bytes"])
    dead = np.unique(
        np.concatenate([np.arange(*item, dtype=np.int64) for item in case["ranges"]] or [np.empty(0, int)])
    )
    first = int(dead[0]) if dead.size else 7
    rows = int(dead[-1]) + 1 - first if dead.size else 3
    alive = np.ones(rows, dtype=np.bool_)
    alive[dead - first] = False
    live = np.packbits(alive, bitorder="little")

    assert write_deletion_vector(live, rows, first) == data
    read = np.packbits(np.ones(rows, dtype=np.bool_), bitorder="little")
    assert clear_dead_rows(data, read, rows, first) == case["rows"] == dead.size
    assert (read == live).all()
    assert independent_reader.roaring(data) == set(dead.tolist())


def document_of(column: dict[str, Any]) -> FieldDocument:
    def nested(item: dict[str, Any]) -> NestedFieldDocument:
        return NestedFieldDocument(id=item["id"], default=item["default"], fields=list(map(nested, item["fields"])))

    return FieldDocument(**{**column, "fields": list(map(nested, column["fields"]))})


def rows_of(table: Any) -> list[dict[str, Any]]:
    """Rows in the order of users, days and times as texts."""
    rows = json.loads(json.dumps(table, default=str))
    return sorted(rows, key=lambda row: str(row["user"]))


@pytest.mark.parametrize("run_format", ["arrow", "parquet"])
def test_rows_written_before_a_change_of_the_columns_are_those_of_the_vectors_after_it(run_format: RunFormat) -> None:
    file = EVOLUTION["files"][run_format]
    data = base64.b64decode(file["bytes"])
    before, after = (list(map(document_of, EVOLUTION[when]["columns"])) for when in ("before", "after"))
    batch = BatchDocument(rows=3, min_hash=Int64(-1 << 63), max_hash=Int64((1 << 63) - 1), **file["batch"])
    assert checksum(data) == file["xxh3_128"]

    (stored,) = read_run(pa.py_buffer(data), run_format, [batch], frame_xxh3_128=file["frame_xxh3_128"])

    schemas = [
        pa.schema([pa.field(item.name, type_from_json(item.type), item.nullable) for item in columns])
        for columns in (before, after)
    ]
    ids = itertools.count(-1, -1)
    convert = Conversion.of(schemas[0], fields_of(before, ids), schemas[1], fields_of(after, ids))
    now = convert(stored.select(schemas[0].names))
    assert now.schema.equals(schemas[1])
    assert rows_of(stored.drop_columns(["_key_hash"]).to_pylist()) == EVOLUTION["before"]["rows"]
    assert rows_of(now.to_pylist()) == EVOLUTION["after"]["rows"]


@pytest.mark.parametrize("run_format", ["arrow", "parquet"])
def test_the_independent_reader_makes_the_same_rows_of_the_vectors(run_format: str) -> None:
    file = EVOLUTION["files"][run_format]
    data = base64.b64decode(file["bytes"])
    columns = [independent_reader.hidden_column("_key_hash"), *EVOLUTION["before"]["columns"]]
    read = {"arrow": independent_reader.arrow_batches, "parquet": independent_reader.parquet_batches}[run_format]

    (batch,) = read({"batches": [file["batch"]]}, data, columns)

    stored = batch.to_pylist()
    was = {item["id"]: item for item in independent_reader.nodes_of(EVOLUTION["before"]["columns"])}
    now = independent_reader.nodes_of(EVOLUTION["after"]["columns"])
    rows = [
        {
            item["name"]: independent_reader.value_now(
                row[was[item["id"]]["name"]] if item["id"] in was else None, was.get(item["id"]), item
            )
            for item in now
        }
        for row in stored
    ]
    assert rows_of(rows) == EVOLUTION["after"]["rows"]
