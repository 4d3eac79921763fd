"""Stores written by earlier code stay readable: by this library, and by pyarrow and json alone."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

import arrowstate

GOLDEN = Path(__file__).parents[2] / "formats" / "golden" / "v1"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
STATES = ("counter.clicks", "counter.seen", "flights.delays")
pytestmark = pytest.mark.parametrize("format", ["arrow", "parquet"])


def summary(tables: dict[str, pa.Table]) -> dict[str, dict[str, float]]:
    clicks, seen, delays = (tables[state] for state in STATES)
    return {
        "counter.clicks": {"rows": clicks.num_rows, "sum": pc.sum(clicks["clicks"]).as_py()},
        "counter.seen": {"rows": seen.num_rows},
        "flights.delays": {
            "rows": delays.num_rows,
            "sum of flights": pc.sum(delays["flights"]).as_py(),
            "sum of longest": pc.sum(delays["longest"]).as_py(),
        },
    }


def expected(format: str) -> dict[str, dict[str, float]]:
    return {state: EXPECTED[format][state] for state in STATES}


def read_by_hand(folder: Path, entry: dict) -> dict[str, pa.Table]:
    """Read all states of a log entry with json, pyarrow and a Roaring bitmap, and nothing of this library."""
    tables: dict[str, list[pa.Table]] = {}
    for operator in entry["operators"]:
        for subtask in operator["subtasks"]:
            handle = subtask["manifest"]
            text = base64.b64decode(handle["inline"]) if handle["inline"] else (folder / handle["path"]).read_bytes()
            for state in json.loads(text)["states"]:
                for run in state["runs"]:
                    data = base64.b64decode(run["inline"]) if run["inline"] else (folder / run["path"]).read_bytes()
                    reader = pa.BufferReader(data)
                    table = pa.ipc.open_file(reader).read_all() if run["format"] == "arrow" else pq.read_table(reader)
                    dead: set[int] = set()
                    if vector := run["deletion_vector"]:
                        inline = vector["inline"]
                        body = base64.b64decode(inline) if inline else (folder / vector["path"]).read_bytes()
                        dead = set(BitMap.deserialize(body))
                    rows = [row for row in range(run["first_row"], run["last_row"]) if row not in dead]
                    assert len(rows) == run["live_rows"]
                    tables.setdefault(f"{operator['uid']}.{state['name']}", []).append(table.take(rows))
    return {name: pa.concat_tables(parts) for name, parts in tables.items()}


def test_every_checkpoint_of_a_golden_store_is_read(format, tmp_path):
    shutil.copytree(GOLDEN / format, tmp_path / "store")

    store = arrowstate.open_store(tmp_path / "store")
    snapshots = store.checkpoints()

    assert [snapshot.checkpoint_id for snapshot in snapshots] == [2, 3, 4]
    assert [snapshot.entry.properties["offset"] for snapshot in snapshots] == [1, 2, 3]
    for snapshot in snapshots[1:]:
        assert summary({state: snapshot.to_arrow(state) for state in STATES}) == expected(format)


def test_a_golden_store_is_restored_and_written_on(format, tmp_path):
    shutil.copytree(GOLDEN / format, tmp_path / "store")
    store = arrowstate.open_store(tmp_path / "store")
    clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")

    counters = [store.latest().restore("counter", parallelism=2, subtask=n, max_parallelism=64) for n in range(2)]
    flights = store.latest().restore("flights")
    for backend in counters:
        backend.state(clicks)
    snapshot = store.writer().checkpoint({"counter": counters, "flights": [flights]})

    assert snapshot.checkpoint_id == 6
    assert summary({state: snapshot.to_arrow(state) for state in STATES}) == expected(format)


def test_a_golden_store_is_read_with_pyarrow_and_json_alone(format):
    folder = GOLDEN / format
    newest = sorted((folder / "log").iterdir())[-1]

    tables = read_by_hand(folder, json.loads(newest.read_text()))

    assert summary(tables) == expected(format)


def test_a_golden_savepoint_is_read_with_pyarrow_alone(format):
    folder = GOLDEN / f"{format}-savepoint"

    tables = {state: pq.read_table(folder / "data" / Path(*state.split("."))) for state in STATES}

    assert summary(tables) == expected(format)
