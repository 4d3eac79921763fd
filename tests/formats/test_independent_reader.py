"""Stores of every kind of state, in every format, read by a program that knows the specification alone."""

import datetime
import json
import re
from decimal import Decimal
from pathlib import Path

import independent_reader
import pyarrow as pa
import pytest
from independent_reader import Damage, plain, read_store

import arrowstate
from arrowstate.windows import TumblingEventTimeWindows, WindowOperator
from stores import commit

FORMATS = pytest.mark.parametrize("run_format", ["arrow", "parquet", "lance"])
GOLDEN = Path(__file__).parents[2] / "formats/golden"
KEY = pa.schema([("user", pa.string()), ("at", pa.struct([("x", pa.int8()), ("day", pa.date32())]))])
SPACE = pa.schema([("shop", pa.decimal128(20, 2))])
ORDER = pa.struct(
    [
        ("amount", pa.int32()),
        ("pair", pa.list_(pa.float64(), 2)),
        ("tags", pa.list_(pa.struct([("tag", pa.string())]))),
        ("by", pa.map_(pa.string(), pa.date32())),
    ]
)
NEW_ORDER = pa.struct(
    [
        ("by", pa.map_(pa.string(), pa.timestamp("ms"))),
        ("tags", pa.list_(pa.struct([("weight", pa.float64()), ("label", pa.string())]))),
        ("total", pa.int64()),
        ("pair", pa.list_(pa.float64(), 2)),
    ]
)
CHANGE = arrowstate.SchemaEvolution(
    renamed={"amount": "total", "tags.element.tag": "label"}, defaults={"tags.element.weight": 0.5}
)
TIGHT = arrowstate.CompactionPolicy(1.001, max_small_files=1, min_bytes=0)


def keys(first: int, last: int) -> pa.RecordBatch:
    numbers = range(first, last)
    places = [{"x": n % 50, "day": None if n % 3 == 0 else datetime.date(2000 + n % 30, 1, 1)} for n in numbers]
    return pa.record_batch([[f"u{n}" for n in numbers], pa.array(places, KEY.field("at").type)], schema=KEY)


def orders(first: int, last: int) -> pa.Array:
    day = datetime.date(1999, 12, 31)
    values = [
        None
        if n % 7 == 6
        else {
            "amount": n,
            "pair": [float(n), float("nan")] if n % 2 else None,
            "tags": [{"tag": "new"}, None][: n % 3],
            "by": [("k", day), ("none", None)][: n % 3],
        }
        for n in range(first, last)
    ]
    return pa.array(values, ORDER)


def fill(backend: arrowstate.KeyedStateBackend, first: int, last: int) -> None:
    """Write into a state of every kind."""
    rows = keys(first, last)
    numbers = pa.array(range(first, last), pa.int64())
    texts = pa.array([f"t{n}" for n in range(first, last)])
    shops = pa.record_batch([pa.array([Decimal("12345678901234567.25")] * (last - first), pa.decimal128(20, 2))], SPACE)
    backend.state(arrowstate.ValueStateDescriptor("order", ORDER)).update_batch(rows, orders(first, last))
    pages = arrowstate.ListStateDescriptor("pages", pa.string(), namespace=SPACE, ttl=arrowstate.TimeToLive(3_600_000))
    for _ in range(2):
        backend.state(pages).add_batch(rows, texts, namespace=shops)
    cart = backend.state(arrowstate.MapStateDescriptor("cart", pa.float32(), pa.decimal64(10, 2)))
    wanted = pa.array([float("nan") if n % 2 else -0.0 for n in range(first, last)], pa.float32())
    cart.put_batch(
        rows, wanted, pa.array([None if n % 4 else Decimal(n) for n in range(first, last)], pa.decimal64(10, 2))
    )
    backend.state(arrowstate.AggregatingStateDescriptor("mean", pa.float64(), aggregate="mean")).add_batch(
        rows, numbers.cast(pa.float64())
    )
    backend.timers().register_batch(rows, pa.array([2**60 + n for n in range(first, last)]))
    clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    WindowOperator(backend, TumblingEventTimeWindows(100), clicks).process(
        rows, pa.compute.multiply(numbers, 30), numbers
    )


def operator_states() -> arrowstate.OperatorStateBackend:
    backend = arrowstate.OperatorStateBackend()
    backend.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add_all([17, 4])
    backend.state(arrowstate.OperatorListStateDescriptor("topics", pa.string(), mode="union"))
    backend.state(arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.float64())).put("limit", 2.5)
    return backend


def rows_as_texts(rows: list[dict[str, object]]) -> list[str]:
    return sorted(plain(row) for row in rows)


def check(snapshot: arrowstate.Snapshot, folder: Path) -> None:
    """Compare every row of every state with what the independent reader finds."""
    found = read_store(folder, snapshot.checkpoint_id)

    expected = {}
    for name in snapshot.states():
        table = snapshot.to_arrow(name)
        if "_seq" in table.column_names:
            table = table.drop_columns("_seq")
        expected[name] = table.to_pylist()
    for operator in snapshot.entry.operators:
        for state in operator.operator_states:
            table = snapshot.operator_state(operator.uid, state.name).drop_columns("_subtask")
            expected[f"{operator.uid}.{state.name}"] = table.to_pylist()
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert rows_as_texts(found[name]) == rows_as_texts(rows), name


@FORMATS
def test_every_kind_of_state_is_read_by_the_text_alone(tmp_path: Path, run_format: str) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=12)
    with store.writer(compaction=None) as writer:
        fill(backend, 0, 40)
        first = writer.checkpoint({"op": [backend]}, operator_states={"op": [operator_states()]}, format=run_format)
        fill(backend, 30, 45)
        for name in ("order", "mean"):
            backend.state(backend.states[name].descriptor).clear_batch(keys(0, 5))
        own = first.restore_operator_state("op")
        writer.checkpoint({"op": [backend]}, operator_states={"op": [own]}, format=run_format)
        # Three subtasks own ranges of the same files, and the columns change.
        parts = [store.latest().restore("op", parallelism=3, subtask=number) for number in range(3)]
        for part in parts:
            part.state(arrowstate.ValueStateDescriptor("order", NEW_ORDER, evolution=CHANGE))
        shared = [store.latest().restore_operator_state("op", parallelism=3, subtask=number) for number in range(3)]
        last = writer.checkpoint({"op": parts}, operator_states={"op": shared}, format=run_format)

    check(first, tmp_path / "store")
    check(last, tmp_path / "store")
    compacted = store.compact(TIGHT).apply()
    assert compacted is not None
    check(store.latest(), tmp_path / "store")
    savepoint = store.savepoint(tmp_path / "point", format=run_format)
    check(savepoint, tmp_path / "point")
    other = arrowstate.open_store(tmp_path / "other", create=True)
    check(other.import_savepoint(tmp_path / "point"), tmp_path / "other")


def test_lists_of_subtasks_and_parts_are_read_by_the_text_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arrowstate.files.subtasks._ENTRY_BYTES", 0)
    monkeypatch.setattr("arrowstate.files.subtasks._NEIGHBOURS", 2)
    store = arrowstate.open_store(tmp_path, create=True)
    with store.writer() as writer:
        backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=12)
        fill(backend, 0, 20)
        first = writer.checkpoint({"op": [backend]}, operator_states={"op": [operator_states()]})
        parts = [first.restore("op", parallelism=3, subtask=number) for number in range(3)]
        shared = [first.restore_operator_state("op", parallelism=3, subtask=number) for number in range(3)]
        last = writer.checkpoint({"op": parts}, operator_states={"op": shared})
    store.writer()

    assert [file.count for file in last.entry.operators[0].subtask_files] == [2, 1]
    assert last.entry.operators[0].operator_states[0].part_files
    check(last, tmp_path)


@pytest.mark.parametrize("run_format", ["arrow", "parquet"])
def test_files_with_many_batches_dead_rows_and_a_directory_are_read_by_the_text_alone(
    tmp_path: Path, run_format: str
) -> None:
    store = arrowstate.open_store(tmp_path, create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    state = backend.state(arrowstate.ValueStateDescriptor("v", pa.int32()))
    everything = pa.array(range(70_000))
    with store.writer(compaction=None) as writer:
        state.update_batch(everything, everything.cast(pa.int32()))
        writer.checkpoint({"op": [backend]}, format=run_format)
        state.clear_batch(pa.array(range(0, 70_000, 3)))
        snapshot = writer.checkpoint({"op": [backend]}, format=run_format)

    found = read_store(tmp_path)

    assert sorted(row["v"] for row in found["op.v"]) == sorted(snapshot.to_arrow("op.v")["v"].to_pylist())
    assert len(found["op.v"]) == 70_000 - 23_334


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in GOLDEN.rglob("arrowstate.json")), ids=lambda path: path.name
)
def test_the_golden_stores_are_read_by_the_text_alone(folder: Path) -> None:
    check(arrowstate.open_store(folder).latest(), folder)


def test_the_independent_reader_knows_nothing_of_this_project() -> None:
    text = Path(independent_reader.__file__).read_text()

    imported = {name.split(".")[0] for name in re.findall(r"^\s*(?:from|import) ([\w.]+)", text, re.MULTILINE)}

    ours = {"arrowstate", "arrowstate_formats", "numpy", "duckdb", "polars"}
    assert not imported & ours
    assert imported >= {"json", "pyarrow", "xxhash"}


@pytest.mark.parametrize(
    ("altered", "message"),
    [
        ({"rows": 39}, "checksum"),
        ({"live_rows": 3}, "live rows"),
    ],
    ids=["rows", "live rows"],
)
def test_the_independent_reader_finds_fault(tmp_path: Path, altered: dict[str, int], message: str) -> None:
    store = arrowstate.open_store(tmp_path, create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=12)
    fill(backend, 0, 10)
    commit(store, {"op": [backend]})
    path = max((tmp_path / "log").glob("*.json"))
    entry = json.loads(path.read_text())
    entry["operators"][0]["subtasks"][0]["live_rows"]["order"] = next(iter(altered.values()))
    data = json.dumps(entry).encode()
    if "live_rows" in altered:
        at = data.index(b"document_xxh3_128") + len(b'document_xxh3_128": "')
        zeros = data[:at] + b"0" * 32 + data[at + 32 :]
        data = zeros[:at] + independent_reader.checksum(zeros).encode() + zeros[at + 32 :]
    path.write_bytes(data)

    with pytest.raises(Damage, match=message):
        read_store(tmp_path)
