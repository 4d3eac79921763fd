"""What run files and their documents say of the columns: ids at every depth, times and sequence numbers of batches.

Every writer of runs says it: checkpoints, savepoints, imports and compactions.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from arrowstate import (
    KeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SchemaEvolution,
    Snapshot,
    StateStore,
    TimeToLive,
    ValueStateDescriptor,
    open_store,
)
from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.files.reading import subtask_runs
from arrowstate.storage import clear_memory_storage
from arrowstate.windows import TumblingEventTimeWindows, WindowOperator
from arrowstate_formats import run_writing
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.document_base import Int64
from arrowstate_formats.documents import BatchDocument, RunDocument, decode_inline
from arrowstate_formats.run_reading import read_run
from arrowstate_formats.schema_documents import FieldDocument, NestedFieldDocument, StateDocument
from arrowstate_formats.state_columns import HIDDEN_FIELD_IDS
from stores import commit

PLACE = pa.struct([("x", pa.int8()), ("y", pa.int8())])
KEY = pa.schema([("user", pa.string()), ("at", PLACE)])
FORMATS = pytest.mark.parametrize("run_format", ["arrow", "parquet", "lance"])
TIGHT = CompactionPolicy(1.001, max_small_files=1, min_bytes=0)


@pytest.fixture
def store() -> Iterator[StateStore]:
    clear_memory_storage()
    yield open_store("memory://run-columns", create=True)
    clear_memory_storage()


def keys(rows: int) -> pa.RecordBatch:
    names = pa.array([f"u{row}" for row in range(rows)])
    places = pa.array([{"x": row % 100, "y": 1} for row in range(rows)], PLACE)
    return pa.record_batch([names, places], schema=KEY)


def states_of_every_kind(rows: int = 5) -> KeyedStateBackend:
    backend = KeyedStateBackend(key=KEY, max_parallelism=8)
    legs = pa.list_(pa.struct([("from", pa.string()), ("pair", pa.list_(pa.float64(), 2))]))
    route = pa.struct([("legs", legs), ("seen", pa.map_(pa.string(), pa.list_(pa.int8())))])
    value = {"legs": [{"from": "EWR", "pair": [1.0, 2.0]}, None], "seen": [("a", [1])]}
    backend.state(ValueStateDescriptor("route", route)).update_batch(keys(rows), pa.array([value] * rows, route))
    stops = backend.state(MapStateDescriptor("stops", PLACE, pa.int64(), ttl=TimeToLive(1000)))
    stops.put_batch(keys(rows), pa.array([{"x": 1, "y": 2}] * rows, PLACE), pa.array(range(rows)))
    bags = backend.state(ListStateDescriptor("bags", pa.int64(), namespace=pa.schema([("day", PLACE)])))
    day = pa.record_batch([pa.array([{"x": 1, "y": 1}] * rows, PLACE)], ["day"])
    bags.add_batch(keys(rows), pa.array(range(rows)), namespace=day)
    bags.add_batch(keys(rows), pa.array(range(rows)), namespace=day)
    timers = backend.timers()
    timers.register_batch(keys(rows), pa.array([1000 + 10 * row for row in range(rows)]))
    count = ReducingStateDescriptor("count", pa.int64(), reduce="sum")
    windows = WindowOperator(backend, TumblingEventTimeWindows(100), count)
    windows.process(keys(rows), pa.array([50 * row for row in range(rows)]), pa.array([1] * rows))
    return backend


def runs_of(snapshot: Snapshot, name: str) -> list[RunDocument]:
    (operator,) = snapshot.entry.operators
    return [
        run for subtask in operator.subtasks for run in subtask_runs(snapshot.storage, operator, subtask).get(name, [])
    ]


def contents(snapshot: Snapshot, run: RunDocument) -> pa.Buffer:
    data = decode_inline(run.inline) if run.inline is not None else snapshot.storage.read(run.path)
    return pa.py_buffer(data)


def written(store: StateStore, backend: KeyedStateBackend, run_format: str = "parquet") -> Snapshot:
    return commit(store, {"op": [backend]}, format=run_format)


def as_savepoint(store: StateStore, run_format: str) -> Snapshot:
    written(store, states_of_every_kind(), run_format)
    return store.savepoint("memory://run-columns-savepoint", format=run_format)


def as_import(store: StateStore, run_format: str) -> Snapshot:
    as_savepoint(store, run_format)
    return store.import_savepoint("memory://run-columns-savepoint")


def as_compaction(store: StateStore, run_format: str) -> Snapshot:
    backend = states_of_every_kind()
    with store.writer() as writer:
        writer.checkpoint({"op": [backend]}, format=run_format)
        for state in ("route", "stops"):
            backend.state(backend.states[state].descriptor).clear_batch(keys(1))
        # A row of each state dies, so that each is merged.
        backend.timers().delete_batch(keys(1), pa.array([1000]))
        day = pa.record_batch([pa.array([{"x": 1, "y": 1}], PLACE)], ["day"])
        backend.state(backend.states["bags"].descriptor).clear_batch(keys(1), namespace=day)
        window = pa.record_batch({"window_start": [0], "window_end": [100]})
        backend.state(backend.states["count"].descriptor).clear_batch(keys(1), namespace=window)
        writer.checkpoint({"op": [backend]}, format=run_format)
    compacted = store.compact(TIGHT).apply()
    assert compacted is not None
    assert all(run.deletion_vector is None for name in backend.states for run in runs_of(store.latest(), name))
    return store.latest()


WRITERS: dict[str, Callable[[StateStore, str], Snapshot]] = {
    "checkpoint": lambda store, run_format: written(store, states_of_every_kind(), run_format),
    "savepoint": as_savepoint,
    "import": as_import,
    "compaction": as_compaction,
}
EVERY_WRITER = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())


def ids_in_documents(path: str, kind: pa.DataType, document: FieldDocument | NestedFieldDocument) -> dict[str, int]:
    found = {path: document.id}
    if pa.types.is_struct(kind):
        inner = list(kind)
    elif pa.types.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    else:
        inner = [kind.value_field] if pa.types.is_nested(kind) else []
    assert len(document.fields) == len(inner), path
    for number, (field, item) in enumerate(zip(inner, document.fields, strict=True)):
        found |= ids_in_documents(f"{path}/{number}", field.type, item)
    return found


def ids_in_file(path: str, field: pa.Field) -> dict[str, int]:
    found = {path: int(field.metadata[b"PARQUET:field_id"])}
    kind = field.type
    if pa.types.is_struct(kind):
        inner = list(kind)
    elif pa.types.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    else:
        inner = [kind.value_field] if pa.types.is_nested(kind) else []
    for number, child in enumerate(inner):
        found |= ids_in_file(f"{path}/{number}", child)
    return found


def documented(snapshot: Snapshot, state: StateDocument) -> list[FieldDocument]:
    user_key = [] if state.user_key is None else [state.user_key]
    return [*snapshot.entry.operators[0].key, *state.namespace, *user_key, *state.columns]


@EVERY_WRITER
def test_parquet_files_have_the_id_of_every_field_at_every_depth(
    store: StateStore, write: Callable[[StateStore, str], Snapshot]
) -> None:
    snapshot = write(store, "parquet")

    for state in snapshot.entry.operators[0].states:
        runs = runs_of(snapshot, state.name)
        if not runs:
            # No timer by processing time: only a savepoint has a file without rows.
            continue
        # PyArrow's own reader, which knows nothing of this format.
        schema = pq.read_schema(pa.BufferReader(contents(snapshot, runs[0])))
        found = {path: id for field in schema for path, id in ids_in_file(field.name, field).items()}
        expected = {name: id for name, id in HIDDEN_FIELD_IDS.items() if name in schema.names}
        for column in documented(snapshot, state):
            expected |= ids_in_documents(column.name, type_from_json(column.type), column)
        assert found == expected
        assert len(set(found.values())) == len(found)
        assert max(found.values()) < 2_147_483_447


def test_ids_of_fields_inside_are_given_out_at_once_and_stay(store: StateStore) -> None:
    kind = pa.struct([("a", pa.list_(pa.int8())), ("b", pa.int8())])
    backend = KeyedStateBackend(key=KEY, max_parallelism=8)
    backend.state(ValueStateDescriptor("s", kind)).update_batch(keys(1), pa.array([{"a": [1], "b": 2}], kind))
    before = written(store, backend).entry.operators[0]

    other = pa.struct([("b", pa.int16()), ("a", pa.list_(pa.int8())), ("c", pa.int8())])
    restored = store.latest().restore("op")
    restored.state(ValueStateDescriptor("s", other, evolution=SchemaEvolution()))
    after = written(store, restored).entry.operators[0]

    assert [(item.id, [inner.id for inner in item.fields]) for item in before.key] == [(1, []), (2, [3, 4])]
    (first, second) = before.states[0].columns
    assert (first.id, first.fields[0].id, second.id) == (5, 6, 7)
    assert [(item.name, item.id) for item in after.states[0].columns] == [("b", 7), ("a", 5), ("c", 8)]
    assert after.states[0].columns[1].fields == first.fields


@EVERY_WRITER
@FORMATS
def test_batches_tell_their_times_and_highest_sequence_number(
    store: StateStore, write: Callable[[StateStore, str], Snapshot], run_format: str
) -> None:
    snapshot = write(store, run_format)

    noted = set()
    for state in snapshot.entry.operators[0].states:
        for run in runs_of(snapshot, state.name):
            batches = read_run(contents(snapshot, run), run.format, run.batches)
            for document, batch in zip(run.batches, batches, strict=True):
                name = next((name for name in ("timestamp", "window_end") if name in batch.schema.names), None)
                times = {"min": None, "max": None} if name is None else pc.min_max(batch.column(name)).as_py()
                highest = pc.max(batch.column("_seq")).as_py() if "_seq" in batch.schema.names else None
                found = (document.min_time, document.max_time, document.max_seq)
                assert found == (times["min"], times["max"], highest)
                noted.add((state.name, *(item is not None for item in found)))
    assert noted >= {
        ("route", False, False, False),
        ("bags", False, False, True),
        ("timers_event_time", True, True, False),
        ("count", True, True, False),
    }


BOUNDS = ["min_hash", "max_hash", "min_time", "max_time", "max_seq"]


@pytest.fixture(
    params=[(member, by) for member in BOUNDS for by in (-1, 1)], ids=lambda given: f"{given[0]}{given[1]:+d}"
)
def misled(request: pytest.FixtureRequest, store: StateStore, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """A snapshot whose manifests have one bound of each batch wrong."""
    member, by = request.param
    batch_document = run_writing._batch_document

    def wrong(*arguments: Any) -> BatchDocument:
        right = batch_document(*arguments)
        value = getattr(right, member)
        # A bound that no document may have is none that a reader meets.
        other = member.replace("min", "max") if member.startswith("min") else member.replace("max", "min")
        if value is None or (getattr(right, other, None) == value and by == (1 if member.startswith("min") else -1)):
            return right
        return replace(right, **{member: Int64(value + by)})

    monkeypatch.setattr(run_writing, "_batch_document", wrong)
    return written(store, states_of_every_kind())


def test_a_deep_look_finds_batches_whose_bounds_are_wrong(misled: Snapshot) -> None:
    problems = misled.verify(deep=True).problems

    assert misled.verify().problems == []
    assert any("its document says" in problem or "hashes" in problem for problem in problems)


def test_a_batch_whose_bounds_are_wrong_is_refused_when_it_is_looked_at(misled: Snapshot) -> None:
    def look() -> None:
        for state in misled.restore("op").states.values():
            list(state.live_batches())

    with pytest.raises(CorruptDataError, match="its document says"):
        look()


@FORMATS
def test_a_null_around_a_list_of_a_size_that_must_not_be_null_comes_back(store: StateStore, run_format: str) -> None:
    pair = pa.struct([pa.field("a", pa.list_(pa.int8(), 2), nullable=False)])
    kind = pa.struct([("a", pa.int8()), ("b", pair)])
    values = [{"a": 1, "b": {"a": [1, 2]}}, {"a": None, "b": None}]
    backend = KeyedStateBackend(key=KEY, max_parallelism=8)
    backend.state(ValueStateDescriptor("s", kind)).update_batch(keys(2), pa.array(values, kind))

    snapshot = written(store, backend, run_format)

    restored = snapshot.restore("op").state(ValueStateDescriptor("s", kind))
    assert restored.get_batch(keys(2)).to_pylist() == values
    assert snapshot.sql("select count(b) from op.s").fetchall() == [(1,)]
    savepoint = store.savepoint("memory://run-columns-savepoint")
    assert sorted(savepoint.to_arrow("op.s")["a"].to_pylist(), key=str) == [1, None]


def test_a_time_that_parquet_cannot_hold_is_refused_before_anything_is_written(store: StateStore) -> None:
    kind = pa.struct([("when", pa.list_(pa.timestamp("s")))])
    backend = KeyedStateBackend(key=KEY, max_parallelism=8)
    far = pa.array([[10**17]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("s")))
    values = pa.StructArray.from_arrays([far], fields=list(kind))
    backend.state(ValueStateDescriptor("s", kind)).update_batch(keys(1), values)
    before = store.storage.list("")

    with store.writer() as writer:
        with pytest.raises(
            InvalidInputError, match=r"column 'when' of type list<.*> holds a value that Parquet cannot"
        ):
            writer.checkpoint({"op": [backend]}, format="parquet")
        snapshot = writer.checkpoint({"op": [backend]}, format="arrow")

    added = set(store.storage.list("")) - set(before)
    assert {path.split("/")[0] for path in added} == {"log", "_latest"}
    assert snapshot.restore("op").state(ValueStateDescriptor("s", kind)).get_batch(keys(1)) == values
