"""Write the JSON schemas of the documents, from the structs that read and write them.

Run from the root of the repository after a change of `arrowstate_formats/documents.py`:

    PYTHONPATH=formats python formats/schemas/make_schemas.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from arrowstate_formats.documents import (
    BoundaryDocument,
    Document,
    LeaseDocument,
    LogEntryDocument,
    ManifestDocument,
    StoreDocument,
    TagDocument,
)

SCHEMAS: dict[str, type[Document]] = {
    "store.json": StoreDocument,
    "log-entry.json": LogEntryDocument,
    "manifest.json": ManifestDocument,
    "tag.json": TagDocument,
    "lease.json": LeaseDocument,
    "boundary.json": BoundaryDocument,
}


def schema_text(document_type: type[Document]) -> str:
    """Return the JSON schema of a document, indented, with a newline at the end."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(document_type)}
    return json.dumps(_first_paragraphs(schema), indent=2) + "\n"


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
