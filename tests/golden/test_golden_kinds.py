"""A store of every kind of state and two schema versions stays readable: by this library, and by the specification."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap

import arrowstate

GOLDEN = Path(__file__).parents[2] / "formats" / "golden" / "v1-kinds"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def plain(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted(json.loads(json.dumps(rows, default=str)), key=str)


@pytest.fixture
def store(tmp_path):
    shutil.copytree(GOLDEN / "store", tmp_path / "store")
    return arrowstate.open_store(tmp_path / "store")


def made():
    spec = importlib.util.spec_from_file_location("make_golden_kinds", GOLDEN.parent / "make_golden_kinds.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_library_reads_every_state(store):
    found = made().expected(store.latest())

    assert found == EXPECTED


def test_json_and_pyarrow_alone_read_every_keyed_state(store):
    folder = GOLDEN / "store"
    entry = json.loads(sorted((folder / "log").iterdir())[-1].read_text())
    (operator,) = entry["operators"]
    (subtask,) = operator["subtasks"]
    handle = subtask["manifest"]
    text = base64.b64decode(handle["inline"]) if handle["inline"] else (folder / handle["path"]).read_bytes()
    runs = {state["name"]: state["runs"] for state in json.loads(text)["states"]}

    found = {
        f"shop.{state['name']}": plain(
            [row for run in runs.get(state["name"], []) for row in rows_of(folder, operator["key"], state, run)]
        )
        for state in operator["states"]
    }

    assert found == {name: rows for name, rows in EXPECTED.items() if name.startswith("shop.")}


def rows_of(folder: Path, key: list[dict], state: dict, run: dict) -> list[dict[str, Any]]:
    """The live rows of a run, as the specification says: columns by id, defaults where the run has none."""
    data = base64.b64decode(run["inline"]) if run["inline"] else (folder / run["path"]).read_bytes()
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    vector = run["deletion_vector"]
    dead = set(BitMap.deserialize(base64.b64decode(vector["inline"]))) if vector else set()
    live = [row for row in range(run["first_row"], run["last_row"]) if row not in dead]
    versions = {schema["version"]: (schema["key"], schema) for schema in state["earlier_schemas"]}
    versions[state["schema_version"]] = (key, state)
    stored = fields(*versions[run["schema_version"]])
    current = fields(key, state)
    out = []
    for row in table.take(live).to_pylist():
        changed = {field["name"]: value_of(field, stored, row) for field in current}
        out.append({**changed, **({"_seq": row["_seq"]} if state["kind"] == "list" else {})})
    return out


def fields(key: list[dict], schema: dict) -> list[dict]:
    user_key = [schema["user_key"]] if schema["user_key"] else []
    return [*key, *schema["namespace"], *user_key, *schema["columns"]]


def value_of(field: dict, stored: list[dict], row: dict) -> Any:
    source = next((item for item in stored if item["id"] == field["id"]), None)
    if source is None:
        return default_of(field)
    return converted(row[source["name"]], source, source["type"], field, field["type"])


def default_of(field: dict) -> Any:
    if field["default"] is None:
        return None
    return pa.ipc.open_stream(base64.b64decode(field["default"])).read_all()["default"][0].as_py()


def converted(value: Any, source: dict, old: Any, field: dict, new: Any) -> Any:
    if value is None or not isinstance(new, dict) or not field["fields"]:
        return value
    if new["type"] == "list":
        inner = source["fields"][0], old["item"]["type"], field["fields"][0], new["item"]["type"]
        return [converted(item, *inner) for item in value]
    assert new["type"] == "struct"
    names = {
        item["id"]: (part["name"], item, part["type"])
        for item, part in zip(source["fields"], old["fields"], strict=True)
    }
    out = {}
    for item, part in zip(field["fields"], new["fields"], strict=True):
        if item["id"] in names:
            name, before, kind = names[item["id"]]
            out[part["name"]] = converted(value[name], before, kind, item, part["type"])
        else:
            out[part["name"]] = default_of(item)
    return out


def test_a_restored_job_goes_on_from_it(store):
    golden = made()
    backend = store.latest().restore("shop", parallelism=1, clock_ms=lambda: 0)
    orders = backend.state(arrowstate.ValueStateDescriptor("order", golden.NEW_ORDER))
    orders.update_batch(["zoe"], [{"currency": "GBP", "tags": None, "total": 5}])
    with store.writer() as writer:
        states = {"shop": [store.latest().restore_operator_state("shop")]}
        snapshot = writer.checkpoint({"shop": [backend]}, operator_states=states)

    assert backend.watermark == 5
    assert backend.timers().pop_due(30).num_rows == 2
    assert snapshot.to_arrow("shop.order").num_rows == 4
    versions = snapshot.show()["operators"][0]["states"][-1]["schema_versions"]
    assert [(item["version"], item["runs"]) for item in versions] == [(1, 1), (2, 2)]
    assert snapshot.sql("select sum(total) from shop.order").fetchall() == [((1 << 40) + 6,)]
