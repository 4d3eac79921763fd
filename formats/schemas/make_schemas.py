"""Write the JSON schemas of the documents, from the structs that read and write them.

Run from the root of the repository after a change of `arrowstate_formats/documents.py`:

    PYTHONPATH=formats python formats/schemas/make_schemas.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from arrowstate_formats.document_base import Int64
from arrowstate_formats.documents import (
    BoundaryDocument,
    Document,
    JobDocument,
    LeaseDocument,
    LogEntryDocument,
    ManifestDocument,
    OperatorPartsDocument,
    StoreDocument,
    SubtasksDocument,
    TagDocument,
)

SCHEMAS: dict[str, type[Document]] = {
    "store.json": StoreDocument,
    "log-entry.json": LogEntryDocument,
    "manifest.json": ManifestDocument,
    "subtasks.json": SubtasksDocument,
    "parts.json": OperatorPartsDocument,
    "tag.json": TagDocument,
    "lease.json": LeaseDocument,
    "boundary.json": BoundaryDocument,
    "job.json": JobDocument,
}


def schema_text(document_type: type[Document]) -> str:
    """Return the JSON schema of a document, indented, with a newline at the end."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(document_type, schema_hook=_of_other_type),
    }
    return json.dumps(_first_paragraphs(schema), indent=2) + "\n"


def _of_other_type(kind: type[Any]) -> dict[str, Any]:
    assert kind is Int64, kind
    return {"type": "string", "pattern": "^(0|-?[1-9][0-9]{0,18})$", "description": "an integer of 64 bits"}


def _first_paragraphs(value: Any) -> Any:
    """Cut descriptions after the first paragraph: what follows is Python."""
    if isinstance(value, list):
        return [_first_paragraphs(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: " ".join(item.split("\n\n")[0].split())
        if name == "description" and isinstance(item, str)
        else _first_paragraphs(item)
        for name, item in value.items()
    }


def main() -> None:
    """Write the files beside this script."""
    for name, document_type in SCHEMAS.items():
        Path(__file__).with_name(name).write_text(schema_text(document_type), encoding="utf-8")


if __name__ == "__main__":
    main()
