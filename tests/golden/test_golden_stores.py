"""Stores written by earlier code stay readable: by this library, and by json and the library of the format alone."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from lance.file import LanceFileReader
from pyroaring import BitMap

import arrowstate

GOLDEN = Path(__file__).parents[2] / "formats" / "golden"
STORES = {
    "arrow": GOLDEN / "v1" / "arrow",
    "parquet": GOLDEN / "v1" / "parquet",
    "lance": GOLDEN / "v1-lance" / "store",
}
SAVEPOINTS = {format: GOLDEN / "v1" / f"{format}-savepoint" for format in ("arrow", "parquet")}
EXPECTED = {
    format: values
    for folder in ("v1", "v1-lance")
    for format, values in json.loads((GOLDEN / folder / "expected.json").read_text()).items()
}
STATES = ("counter.clicks", "counter.seen", "flights.delays")
FORMATS = pytest.mark.parametrize("format", STORES)


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


def table_of(data: bytes, format: str) -> pa.Table:
    if format == "arrow":
        return pa.ipc.open_file(pa.BufferReader(data)).read_all()
    if format == "parquet":
        return pq.read_table(pa.BufferReader(data))
    with tempfile.NamedTemporaryFile(suffix=".lance") as file:
        file.write(data)
        file.flush()
        return LanceFileReader(file.name).read_all().to_table()


def read_by_hand(folder: Path, entry: dict) -> dict[str, pa.Table]:
    """Read all states of a log entry with json, pyarrow or lance, and a Roaring bitmap; nothing of this library."""
    tables: dict[str, list[pa.Table]] = {}
    for operator in entry["operators"]:
        for subtask in operator["subtasks"]:
            handle = subtask["manifest"]
            text = base64.b64decode(handle["inline"]) if handle["inline"] else (folder / handle["path"]).read_bytes()
            for state in json.loads(text)["states"]:
                for run in state["runs"]:
                    data = base64.b64decode(run["inline"]) if run["inline"] else (folder / run["path"]).read_bytes()
                    table = table_of(data, run["format"])
                    dead: set[int] = set()
                    if vector := run["deletion_vector"]:
                        inline = vector["inline"]
                        body = base64.b64decode(inline) if inline else (folder / vector["path"]).read_bytes()
                        dead = set(BitMap.deserialize(body))
                    rows = [row for row in range(run["first_row"], run["last_row"]) if row not in dead]
                    assert len(rows) == run["live_rows"]
                    tables.setdefault(f"{operator['uid']}.{state['name']}", []).append(table.take(rows))
    return {name: pa.concat_tables(parts) for name, parts in tables.items()}


@FORMATS
def test_every_checkpoint_of_a_golden_store_is_read(format, tmp_path):
    shutil.copytree(STORES[format], tmp_path / "store")

    store = arrowstate.open_store(tmp_path / "store")
    snapshots = store.checkpoints()

    assert [snapshot.checkpoint_id for snapshot in snapshots] == [2, 3, 4]
    assert [snapshot.entry.properties["offset"] for snapshot in snapshots] == [1, 2, 3]
    for snapshot in snapshots[1:]:
        assert summary({state: snapshot.to_arrow(state) for state in STATES}) == expected(format)


@FORMATS
def test_a_golden_store_is_restored_and_written_on(format, tmp_path):
    shutil.copytree(STORES[format], tmp_path / "store")
    store = arrowstate.open_store(tmp_path / "store")
    clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")

    counters = [store.latest().restore("counter", parallelism=2, subtask=n, max_parallelism=64) for n in range(2)]
    flights = store.latest().restore("flights")
    for backend in counters:
        backend.state(clicks)
    snapshot = store.writer().checkpoint({"counter": counters, "flights": [flights]})

    assert snapshot.checkpoint_id == 5
    assert summary({state: snapshot.to_arrow(state) for state in STATES}) == expected(format)


@FORMATS
def test_a_golden_store_is_read_with_json_and_the_library_of_its_format_alone(format):
    folder = STORES[format]
    newest = sorted((folder / "log").iterdir())[-1]

    tables = read_by_hand(folder, json.loads(newest.read_text()))

    assert summary(tables) == expected(format)


@pytest.mark.parametrize("format", SAVEPOINTS)
def test_a_golden_savepoint_is_read_with_pyarrow_alone(format):
    folder = SAVEPOINTS[format]

    tables = {state: pq.read_table(folder / "data" / Path(*state.split("."))) for state in STATES}

    assert summary(tables) == expected(format)


def test_a_golden_store_of_types_that_lance_lacks_is_read(tmp_path):
    expected = json.loads((GOLDEN / "v1-lance" / "types.json").read_text())
    shutil.copytree(GOLDEN / "v1-lance" / "types", tmp_path / "store")

    found = arrowstate.open_store(tmp_path / "store").latest().to_arrow("types.row").sort_by("day.number")

    assert json.loads(json.dumps(found.to_pylist(), default=str)) == expected
    assert [str(found.schema.field(name).type) for name in ("price.eur", "rate", "place", "tags")] == [
        "decimal64(12, 2)",
        "decimal32(5, 3)",
        "fixed_size_list<degrees: double>[2]",
        "map<string, list<tag: int8 not null>, keys_sorted>",
    ]


def test_types_that_lance_lacks_are_read_as_others_with_lance_and_json_alone():
    expected = json.loads((GOLDEN / "v1-lance" / "types.json").read_text())
    (path,) = (GOLDEN / "v1-lance" / "types" / "data" / "types" / "row").iterdir()

    table = LanceFileReader(str(path)).read_all().to_table().sort_by("day%2Enumber")

    assert [str(row["price%2Eeur"]) for row in table.to_pylist()] == [row["price.eur"] for row in expected]
    assert table["place"].to_pylist() == [row["place"] for row in expected]
    assert json.loads(json.dumps(table["tags"].to_pylist())) == [row["tags"] for row in expected]
