"""Write schema_evolution.json: run files of the first version of a state, and its rows in the first and second version.

Run once, from the root of the repository; the rows are written down here, not computed:

    PYTHONPATH=formats python formats/vectors/make_schema_evolution.py
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.defaults import encode_default
from arrowstate_formats.key_hash import hash_columns
from arrowstate_formats.run_writing import write_run
from arrowstate_formats.schema_documents import FieldDocument, NestedFieldDocument

TARGET = Path(__file__).with_name("schema_evolution.json")


def inner(id: int, *fields: Any, default: str | None = None) -> Any:
    """Return a field inside a column."""
    return {"id": id, "default": default, "fields": list(fields)}


def column(id: int, name: str, kind: Any, *fields: Any, nullable: bool = True, default: str | None = None) -> Any:
    """Return a column."""
    return {"id": id, "name": name, "type": kind, "nullable": nullable, "default": default, "fields": list(fields)}


def struct(**fields: Any) -> Any:
    """Return the type of a struct."""
    return {"type": "struct", "fields": [{"name": n, "type": kind, "nullable": True} for n, kind in fields.items()]}


def listed(item: Any) -> Any:
    """Return the type of a list."""
    return {"type": "list", "item": {"name": "item", "type": item, "nullable": True}}


EUR = encode_default(pa.array(["EUR"]))
HALF = encode_default(pa.array([0.5]))
PAIR = {"type": "fixed_size_list", "size": 2, "item": {"name": "item", "type": "int16", "nullable": True}}
WIDE_PAIR = {"type": "fixed_size_list", "size": 2, "item": {"name": "item", "type": "int64", "nullable": True}}
BEFORE = [
    column(1, "user", "string", nullable=False),
    column(2, "amount", "int32"),
    column(3, "tags", listed(struct(tag="string", old="int8")), inner(4, inner(5), inner(6))),
    column(7, "pair", PAIR, inner(8)),
    column(9, "day", "date32"),
    column(10, "gone", "float64"),
]
AFTER = [
    column(1, "user", "string", nullable=False),
    column(9, "since", "timestamp[ms]"),
    column(
        3,
        "tags",
        listed(struct(weight="float64", label="string")),
        inner(4, inner(11, default=HALF), inner(5)),
    ),
    column(2, "total", "int64"),
    column(7, "pair", WIDE_PAIR, inner(8)),
    column(12, "currency", "string", default=EUR),
]
ROWS_BEFORE = [
    {
        "user": "ann",
        "amount": 5,
        "tags": [{"tag": "new", "old": 1}, None],
        "pair": [1, None],
        "day": "2024-02-29",
        "gone": 1.5,
    },
    {"user": "bob", "amount": None, "tags": None, "pair": None, "day": None, "gone": None},
    {"user": "eve", "amount": -7, "tags": [], "pair": [3, 4], "day": "1969-12-31", "gone": 0.0},
]
ROWS_AFTER = [
    {
        "user": "ann",
        "since": "2024-02-29 00:00:00",
        "tags": [{"weight": 0.5, "label": "new"}, None],
        "total": 5,
        "pair": [1, None],
        "currency": "EUR",
    },
    {"user": "bob", "since": None, "tags": None, "total": None, "pair": None, "currency": "EUR"},
    {"user": "eve", "since": "1969-12-31 00:00:00", "tags": [], "total": -7, "pair": [3, 4], "currency": "EUR"},
]


def batch() -> pa.RecordBatch:
    """Return the rows of the first version in the order of their hashes."""
    import datetime

    fields = [pa.field(item["name"], type_from_json(item["type"]), item["nullable"]) for item in BEFORE]
    rows = [
        {**row, "day": None if row["day"] is None else datetime.date.fromisoformat(str(row["day"]))}
        for row in ROWS_BEFORE
    ]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in fields]
    hashes = pa.array(hash_columns(columns[:1]))
    schema = pa.schema([pa.field("_key_hash", pa.int64(), nullable=False), *fields])
    return pa.RecordBatch.from_arrays([hashes, *columns], schema=schema).sort_by("_key_hash")


def documents() -> list[FieldDocument]:
    """Return the columns of the first version as documents."""

    def nested(item: Any) -> NestedFieldDocument:
        return NestedFieldDocument(
            id=item["id"], default=item["default"], fields=[nested(child) for child in item["fields"]]
        )

    return [
        FieldDocument(id=item["id"], name=item["name"], type=item["type"], fields=list(map(nested, item["fields"])))
        for item in BEFORE
    ]


def main() -> None:
    """Write the file."""
    files = {}
    for run_format in ("arrow", "parquet"):
        sink = io.BytesIO()
        run = write_run([batch()], run_format, sink, fields=documents())  # type: ignore[arg-type]
        (document,) = run.batches
        files[run_format] = {
            "bytes": base64.b64encode(sink.getvalue()).decode(),
            "xxh3_128": run.xxh3_128,
            "frame_xxh3_128": run.frame_xxh3_128,
            "batch": {"offset": document.offset, "bytes": document.bytes, "xxh3_128": document.xxh3_128},
        }
    TARGET.write_text(
        json.dumps(
            {
                "source": "made by formats/vectors/make_schema_evolution.py, which has the rows written down",
                "before": {"columns": BEFORE, "rows": ROWS_BEFORE},
                "after": {"columns": AFTER, "rows": ROWS_AFTER},
                "files": files,
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
