"""Make the golden store of Lance runs: that of `make_golden`, and a state of the types that Lance itself does not have.

The committed store is of version 1, the drafts, which this code reads and does not write any more.

Run once per format version, `tools/python formats/golden/make_golden_lance.py`, and commit what it writes; a
committed golden store is never made anew. Times and names are fixed, so a second run writes the same bytes.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from make_golden import make, names, times

import arrowstate
from arrowstate.log.entries import create_store
from arrowstate.storage.registry import open_storage
from arrowstate.store import StateStore

FOLDER = Path(__file__).parent / "v1-lance"

ROW = pa.struct(
    [
        pa.field("price.eur", pa.decimal64(12, 2), nullable=False),
        ("rate", pa.decimal32(5, 3)),
        ("place", pa.list_(pa.field("degrees", pa.float64()), 2)),
        ("tags", pa.map_(pa.string(), pa.list_(pa.field("tag", pa.int8(), nullable=False)), keys_sorted=True)),
        ("day", pa.date64()),
        ("took", pa.duration("ms")),
    ]
)


def row(number: int) -> dict[str, Any]:
    """Return the value of a key, with a null, an empty list or an empty map in turns."""
    return {
        "price.eur": Decimal(number) / 4,
        "rate": None if number % 5 == 0 else Decimal(number) / 8,
        "place": None if number % 3 == 0 else [number / 8, None if number % 7 == 0 else -1.5],
        "tags": None if number % 11 == 0 else [("a", [number % 100]), ("b", [])][: number % 3],
        "day": dt.date(2026, 1, 1) + dt.timedelta(days=number % 365),
        "took": dt.timedelta(milliseconds=number),
    }


def make_types(folder: Path) -> list[dict[str, Any]]:
    """Write a store of one checkpoint; return the rows that must be read from it, by their keys."""
    storage = open_storage(folder, create=True)
    new_id, clock_ms = names(), times()
    create_store(storage, new_id(), clock_ms())
    store = StateStore(storage, "0" * 31 + "1", clock_ms=clock_ms, new_id=new_id)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("day.number", pa.int64())]), max_parallelism=128)
    state = backend.state(arrowstate.ValueStateDescriptor("row", ROW))
    state.update_batch(range(700), [row(number) for number in range(700)])
    with store.writer() as writer:
        snapshot = writer.checkpoint({"types": [backend]}, format="lance")
    rows = snapshot.to_arrow("types.row").sort_by("day.number").to_pylist()
    return [json.loads(json.dumps(item, default=str)) for item in rows]


def main() -> None:
    """Write formats/golden/v1-lance."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        # The savepoint beside it is of no interest here.
        expected = {"lance": make(Path(folder) / "store", "lance")}
        shutil.copytree(Path(folder) / "store", FOLDER / "store")
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
    (FOLDER / "types.json").write_text(json.dumps(make_types(FOLDER / "types"), indent=None) + "\n")


if __name__ == "__main__":
    main()
