"""Schema evolution through a store on disk: files stay as they are, and every reader sees the current schema."""

import datetime
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import arrowstate
from arrowstate import (
    KeyedStateBackend,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SchemaEvolution,
    TimeToLive,
    ValueStateDescriptor,
    open_store,
)
from arrowstate.cli import main
from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.log.commit_log import CommitLog
from arrowstate.query.state import StateReader
from arrowstate.schema.fields import documents_of
from arrowstate.state.backend.restoring import restore_backend
from arrowstate.table.merging import MergePolicy
from arrowstate_formats.defaults import encode_default
from arrowstate_formats.documents import LogEntryDocument, decode, encode
from stores import KEY, commit

ROWS = 20_000
DAY = datetime.date(2024, 1, 1)
EPOCH = datetime.datetime.fromisoformat("2024-01-01")
V1 = ValueStateDescriptor("order", pa.struct([("day", pa.date32()), ("n", pa.int32()), ("note", pa.string())]))
V2 = ValueStateDescriptor(
    "order",
    pa.struct([("currency", pa.string()), ("moment", pa.timestamp("us")), ("n", pa.int64())]),
    evolution=SchemaEvolution(renamed={"day": "moment"}, defaults={"currency": "EUR"}, dropped=["note"]),
)
V3 = ValueStateDescriptor(
    "order",
    pa.struct(
        [("total", pa.int64()), ("currency", pa.large_string()), ("moment", pa.timestamp("us")), ("paid", pa.bool_())]
    ),
    evolution=SchemaEvolution(renamed={"n": "total"}, defaults={"paid": True}),
)


def orders(numbers):
    """Values of the first version: one day later every thousand keys, every seventh note null."""
    days = [DAY + datetime.timedelta(days=number // 1000) for number in numbers]
    notes = [None if number % 7 == 0 else f"note {number}" for number in numbers]
    return pa.StructArray.from_arrays(
        [pa.array(days), pa.array(numbers, pa.int32()), pa.array(notes)], fields=list(V1.type)
    )


def at(number):
    return EPOCH + datetime.timedelta(days=number // 1000)


def checkpoint(store, *backends, **options):
    return commit(store, {"shop": list(backends)}, **options)


def runs(snapshot, state="order"):
    return [run for version in [state_of(snapshot, state)] for run in version["schema_versions"]]


def state_of(snapshot, name="order"):
    return next(state for state in snapshot.show()["operators"][0]["states"] if state["name"] == name)


@pytest.fixture(params=["arrow", "parquet", "lance"])
def format(request):
    return request.param


@pytest.fixture
def mixed(store, files, format):
    """Three checkpoints: 20,000 keys of version 1, 1,000 new and 10 changed ones of version 2, and of version 3."""
    backend = KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(V1).update_batch(pa.array(range(ROWS)), orders(range(ROWS)))
    backend.state(ReducingStateDescriptor("clicks", pa.int32(), reduce="sum")).add_batch([1, 2], [3, 4])
    checkpoint(store, backend, format=format)
    files.new()
    for number, descriptor in enumerate((V2, V3)):
        restored = store.latest().restore("shop")
        first = ROWS + number * 1000
        keys = [*range(number * 10, number * 10 + 10), *range(first, first + 1000)]
        name = ("n", "total")[number]
        values = [{"currency": "USD", "moment": at(key), name: -key} for key in keys]
        restored.state(descriptor).update_batch(keys, pa.array(values, descriptor.type))
        checkpoint(store, restored, format=format)
    return store


def expected(number):
    if number < 10 or ROWS <= number < ROWS + 1000:
        return {"k": number, "total": -number, "currency": "USD", "moment": at(number), "paid": True}
    if number < 20 or number >= ROWS + 1000:
        return {"k": number, "total": -number, "currency": "USD", "moment": at(number), "paid": None}
    return {"k": number, "total": number, "currency": "EUR", "moment": at(number), "paid": True}


EXPECTED = [expected(number) for number in range(ROWS + 2000)]


def test_a_lazy_change_writes_no_run_again(store, files, format):
    backend = KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(V1).update_batch(pa.array(range(ROWS)), orders(range(ROWS)))
    first = checkpoint(store, backend, format=format)
    files.new()

    for descriptor in (V2, V3):
        restored = store.latest().restore("shop")
        assert restored.state(descriptor).get_batch([999]).to_pylist()[0]["moment"] == at(999)
        checkpoint(store, restored, format=format)

    assert files.new("data") == []
    versions = state_of(store.latest())["schema_versions"]
    assert [version["runs"] for version in versions] == [state_of(first)["runs"], 0]
    restored = store.latest().restore("shop")
    restored.state(V3).update_batch([5], [{"total": 1}])
    checkpoint(store, restored, format=format)
    assert all("order" in path for path in files.new("data"))
    assert [version["runs"] for version in state_of(store.latest())["schema_versions"]] == [1, 1]


def test_every_reader_sees_rows_of_all_versions_in_the_current_schema(mixed):
    snapshot = mixed.latest()

    table = snapshot.to_arrow("shop.order").sort_by("k")
    assert table.to_pylist() == EXPECTED
    assert table.schema.field("currency").type == pa.large_string()
    assert snapshot.to_polars("shop.order").sort("k").rows(named=True) == EXPECTED
    assert snapshot.to_arrow("shop.order", columns=["paid"])["paid"].null_count == 1010
    found = snapshot.lookup("shop.order", [3, 15, 25, ROWS + 5, ROWS + 1005, -1]).to_pylist()
    assert [{name: row[name] for name in EXPECTED[0]} for row in found] == [
        EXPECTED[number] for number in (3, 15, 25, ROWS + 5, ROWS + 1005)
    ]
    # Nothing that was restored and not touched is lost.
    assert sorted(snapshot.to_arrow("shop.clicks").to_pylist(), key=str) == [
        {"k": 1, "clicks": 3},
        {"k": 2, "clicks": 4},
    ]


def test_ranges_of_key_groups_have_the_same_rows_with_and_without_columns(mixed):
    snapshot = mixed.latest()
    everything = snapshot.to_arrow("shop.order", columns=["k", "_key_group", "total"])

    for first, last in ((0, 0), (3, 60), (64, 127), (0, 127)):
        groups = KeyGroupRange(first, last)
        own = everything.filter(
            pc.and_(pc.greater_equal(everything["_key_group"], first), pc.less_equal(everything["_key_group"], last))
        )
        table = snapshot.to_arrow("shop.order", columns=["total"], key_groups=groups)
        assert pc.sum(table["total"]) == pc.sum(own["total"])
        assert snapshot.to_arrow("shop.order", columns=["_checkpoint_id"], key_groups=groups).num_rows == own.num_rows
        assert snapshot.to_arrow("shop.order", columns=["currency", "paid"], key_groups=groups).num_rows == own.num_rows


@pytest.mark.parametrize(
    ("where", "passes"),
    [
        (
            "moment >= timestamp '2024-01-10' and moment < timestamp '2024-01-12'",
            lambda row: at(9000) <= row["moment"] < at(11000),
        ),
        ("moment = timestamp '2024-01-01'", lambda row: row["moment"] == EPOCH),
        ("moment < timestamp '2023-12-31'", lambda row: False),
        ("total < 0", lambda row: row["total"] < 0),
        ("total > 4294967296", lambda row: False),
        ("total in (5, -5, 19999)", lambda row: row["total"] in (5, -5, 19999)),
        ("currency = 'EUR'", lambda row: row["currency"] == "EUR"),
        ("currency <> 'EUR'", lambda row: row["currency"] != "EUR"),
        ("currency = 'USD' and k < 15", lambda row: row["currency"] == "USD" and row["k"] < 15),
        ("paid is null", lambda row: row["paid"] is None),
        ("paid", lambda row: bool(row["paid"])),
        ("k = 25 and currency = 'EUR'", lambda row: row["k"] == 25),
        ("k between 19990 and 20010", lambda row: 19990 <= row["k"] <= 20010),
    ],
)
def test_filters_choose_the_same_rows_as_plain_python(mixed, where, passes):
    rows = mixed.sql(f'select k from "shop.order" where {where} order by k').fetchall()
    counted = mixed.sql(f'select count(*) from "shop.order" where {where}').fetchall()

    chosen = [row["k"] for row in EXPECTED if passes(row)]
    assert [key for (key,) in rows] == chosen
    assert counted == [(len(chosen),)]


def test_bounds_of_columns_that_changed_are_not_used_and_those_that_stayed_are(store):
    kinds = [
        pa.struct([("day", pa.date32()), ("n", pa.int64())]),
        pa.struct([("n", pa.timestamp("s")), ("m", pa.int64())]),
    ]
    backend = KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(ValueStateDescriptor("order", kinds[0])).update_batch([1, 2], [{"day": DAY, "n": n} for n in (5, 6)])
    checkpoint(store, backend)
    # The new column has the name that another had: its bounds are of other values.
    hints = SchemaEvolution(renamed={"n": "m"}, dropped=["day"])
    restored = store.latest().restore("shop")
    restored.state(ValueStateDescriptor("order", kinds[1], evolution=hints))

    snapshot = checkpoint(store, restored)

    bounds = StateReader(snapshot.storage, snapshot.entry, "shop", "order").bounds
    assert "n" not in bounds
    assert (list(bounds["m"].low), list(bounds["m"].high), list(bounds["k"].high)) == ([5], [6], [2])
    assert snapshot.sql('select k from "shop.order" where m = 6').fetchall() == [(2,)]
    assert snapshot.sql('select count(*) from "shop.order" where n is null').fetchall() == [(2,)]


def test_show_lists_versions_with_their_columns_and_runs(mixed, capsys):
    found = mixed.show()
    state = state_of(mixed.latest())

    assert found["operators"][0]["states"][0] == state
    assert state["schema_version"] == 3
    assert [version["runs"] for version in state["schema_versions"]] == [1, 1, 1]
    names = [[(item["id"], item["name"]) for item in version["columns"]] for version in state["schema_versions"]]
    assert names == [
        [(1, "k"), (2, "day"), (3, "n"), (4, "note")],
        [(1, "k"), (5, "currency"), (2, "moment"), (3, "n")],
        [(1, "k"), (3, "total"), (5, "currency"), (2, "moment"), (6, "paid")],
    ]
    assert main(["show", mixed.url, "--state", "shop.order"]) == 0
    printed = capsys.readouterr().out
    assert "moment timestamp[us]" in printed
    assert "day date32[day], n int32, note string" in printed
    assert main(["show", mixed.url, "--state", "shop.order", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert sorted(run["schema_version"] for run in listed["files"]) == [1, 2, 3]
    assert main(["show", mixed.url]) == 0
    assert "version" in capsys.readouterr().out


def test_check_finds_nothing_wrong_and_restores_everything(mixed, capsys):
    code = main(["restore-check", mixed.url, "--parallelism", "3"])

    printed = capsys.readouterr().out
    assert (code, "PROBLEM" in printed) == (0, False)
    assert str(len(EXPECTED)) in printed


def test_a_savepoint_has_one_schema_and_goes_on_evolving(mixed, tmp_path):
    mixed.savepoint(tmp_path / "savepoint")
    copy = open_store(tmp_path / "savepoint")

    assert [version["runs"] for version in state_of(copy.latest())["schema_versions"]] == [1]
    (path,) = (Path(copy.url) / "data" / "shop" / "order").glob("*.parquet")
    by_hand = pq.read_table(path).select(list(EXPECTED[0])).sort_by("k")
    assert by_hand.to_pylist() == EXPECTED
    restored = copy.latest().restore("shop", parallelism=2, subtask=0, max_parallelism=64)
    wider = pa.struct([*V3.type, ("day", pa.date32())])
    state = restored.state(ValueStateDescriptor("order", wider, evolution=SchemaEvolution(defaults={"day": DAY})))
    # The id of the first `day` is `moment` now; the new one has its default everywhere.
    keys = copy.latest().to_arrow("shop.order", columns=["k"], key_groups=KeyGroupRange(0, 63))["k"].combine_chunks()
    found = state.get_batch(keys).to_pylist()
    assert [{"k": key, **row} for key, row in zip(keys.to_pylist(), found, strict=True)] == [
        {**EXPECTED[key], "day": DAY} for key in keys.to_pylist()
    ]


@pytest.mark.parametrize("budget", [None, 0, 100_000])
@pytest.mark.parametrize("scale", [(1, 128), (3, 20)])
def test_runs_of_different_versions_spill_and_merge_into_the_current_one(mixed, budget, scale):
    parallelism, maximum = scale
    policy = MergePolicy(fan_in=2, first_tier_rows=ROWS * 2, max_dead_share=0.01, step_rows=100 * ROWS)
    snapshot = mixed.latest()
    backends = [
        restore_backend(
            snapshot.storage, snapshot.store_id, snapshot.entry, "shop",
            parallelism=parallelism, subtask=subtask, max_parallelism=maximum,
            memory_budget_bytes=budget, merge_policy=policy,
        )
        for subtask in range(parallelism)
    ]  # fmt: skip

    for backend in backends:
        state = backend.state(V3)
        own = pa.array(range(ROWS + 2000, ROWS + 2100))
        groups = arrowstate.key_groups(own, maximum).to_numpy()
        own = own.filter(pa.array((groups >= backend.key_groups.start) & (groups <= backend.key_groups.end)))
        for _ in range(3):
            values = [{"total": -key, "currency": "USD", "moment": at(key)} for key in own.to_pylist()]
            state.update_batch(own, pa.array(values, V3.type))
    merged = checkpoint(mixed, *backends)

    versions = state_of(merged)["schema_versions"]
    assert [version["version"] for version in versions] == [3]
    assert merged.to_arrow("shop.order").sort_by("k").to_pylist() == [expected(n) for n in range(ROWS + 2100)]
    for backend in backends:
        backend.state(ReducingStateDescriptor("clicks", pa.int32(), reduce="sum"))


def test_fields_inside_a_column_that_have_no_ids_yet_stay_the_same(store, monkeypatch):
    # As stores were once written before there were any changes: `fields` is empty everywhere.
    kind = pa.struct(
        [("in", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.date32())])))])), ("n", pa.int8())]
    )
    value = {"in": {"a": 1, "b": [{"c": DAY}, None]}, "n": 1}
    backend = KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(ValueStateDescriptor("order", kind)).update_batch([1], [value])
    with monkeypatch.context() as before:
        without = lambda fields: [replace(item, fields=[]) for item in documents_of(fields)]  # noqa: E731
        before.setattr("arrowstate.schema.layout.documents_of", without)
        (column, _) = checkpoint(store, backend).entry.operators[0].states[0].columns
    assert column.fields == []

    for other in (pa.int16(), pa.int32(), pa.int64()):
        wide = pa.struct([kind.field("in"), ("n", other)])
        restored = store.latest().restore("shop")
        assert restored.state(ValueStateDescriptor("order", wide)).get_batch([1]).to_pylist() == [value]
        checkpoint(store, restored)
    # A rename of the key makes a version too.
    restored = store.latest().restore(
        "shop", key=pa.schema([("id", pa.int64())]), evolution=SchemaEvolution(renamed={"k": "id"})
    )
    last = pa.struct([("n", pa.int64()), ("in", pa.struct([("b", pa.list_(pa.struct([("c", pa.timestamp("s"))])))]))])
    state = restored.state(ValueStateDescriptor("order", last, evolution=SchemaEvolution(dropped=["in.a"])))
    assert state.get_batch([1]).to_pylist() == [{"n": 1, "in": {"b": [{"c": EPOCH}, None]}}]
    assert checkpoint(store, restored).to_arrow("shop.order").to_pylist() == [
        {"id": 1, "n": 1, "in": {"b": [{"c": EPOCH}, None]}}
    ]


def test_a_state_may_get_or_lose_a_time_to_live_with_its_type_and_be_checked(store, capsys):
    now = [1_000_000]
    backend = KeyedStateBackend(key=KEY, max_parallelism=128, clock_ms=lambda: now[0])
    kinds = [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.large_list(pa.int64())]
    backend.state(MapStateDescriptor("m", pa.string(), kinds[0])).put_batch([1, 2], ["a", "b"], [[1, None], None])
    checkpoint(store, backend)

    for number, ttl in enumerate((TimeToLive(100), None), 1):
        now[0] += 50
        backend = store.latest().restore("shop", clock_ms=lambda: now[0])
        state = backend.state(MapStateDescriptor("m", pa.string(), kinds[number], ttl=ttl))
        assert state.get_batch([1, 2, 1], ["a", "b", "b"]).to_pylist() == [[1, None], None, None]
        assert len(state) == 2
        checkpoint(store, backend)
        assert main(["restore-check", store.url]) == 0

    assert "PROBLEM" not in capsys.readouterr().out
    assert len(store.latest().to_arrow("shop.m")) == 2


def _damaged(store, change):
    """Write the newest log entry anew with a change to its first state."""
    log = CommitLog(store.storage)
    entry = log.latest_checkpoint()
    operator = entry.operators[0]
    state = change(operator.states[0])
    altered = replace(entry, operators=[replace(operator, states=[state, *operator.states[1:]])])
    path = Path(store.url) / "log" / f"{entry.number:020}.json"
    path.write_bytes(encode(altered))
    assert decode(path.read_bytes(), LogEntryDocument) == altered
    arrowstate.query.kept_reads.forget_checkpoints()


@pytest.fixture
def evolved(store):
    """A checkpoint of one run of version 1 under version 2."""
    backend = KeyedStateBackend(key=KEY, max_parallelism=128)
    kind = pa.struct([("a", pa.list_(pa.int8())), ("n", pa.int8())])
    backend.state(ValueStateDescriptor("order", kind)).update_batch([1], [{"a": [1], "n": 2}])
    checkpoint(store, backend)
    wide = pa.struct([("a", pa.list_(pa.int16())), ("n", pa.int8()), ("d", pa.int32())])
    restored = store.latest().restore("shop")
    restored.state(ValueStateDescriptor("order", wide, evolution=SchemaEvolution(defaults={"d": 7})))
    checkpoint(store, restored)
    return store


def _but(state, number, **changes):
    columns = list(state.columns)
    columns[number] = replace(columns[number], **changes)
    return replace(state, columns=columns)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: replace(state, schema_version=1, earlier_schemas=[]), "the columns are"),
        (lambda state: _but(state, 2, default=encode_default(pa.array(["x"]))), "a default is one value of int32"),
        (lambda state: _but(state, 2, default=encode_default(pa.array([1, 2], pa.int32()))), "a default is one value"),
        (lambda state: _but(state, 2, default="AAAA"), "a default is no Arrow stream"),
        (lambda state: _but(state, 2, default="no base64"), "no base64"),
        (lambda state: _but(state, 0, fields=state.columns[0].fields * 2), "2 fields inside list"),
    ],
)
def test_damaged_documents_are_told_by_readers_and_restores(evolved, change, message):
    _damaged(evolved, change)

    with pytest.raises(CorruptDataError, match=message):
        open_store(evolved.url).latest().to_arrow("shop.order")
    with pytest.raises(CorruptDataError, match=message):
        for state in open_store(evolved.url).latest().restore("shop").states.values():
            list(state.live_batches())


def test_a_run_of_a_version_that_the_state_does_not_have_is_corrupt(evolved):
    entry = evolved.latest().entry
    state = entry.operators[0].states[0]
    schemas = arrowstate.schema.versions.RunSchemas(entry.operators[0].key, state)

    with pytest.raises(CorruptDataError, match="a run of schema version 3, the newest is 2"):
        schemas.of_version(3)


def test_versions_out_of_order_are_no_document(evolved):
    state = evolved.latest().entry.operators[0].states[0]

    for changes in ({"schema_version": 1}, {"earlier_schemas": state.earlier_schemas * 2}):
        with pytest.raises(ValueError, match="schema version"):
            replace(state, **changes).check()


def test_a_subtask_that_never_asked_for_the_state_holds_up_the_checkpoint(store):
    backend = KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(V1).update_batch(pa.array(range(100)), orders(range(100)))
    checkpoint(store, backend)
    two = [store.latest().restore("shop", parallelism=2, subtask=subtask) for subtask in range(2)]
    two[0].state(V2)
    number = store.latest().checkpoint_id

    with pytest.raises(InvalidInputError, match=r"declared alike.*order \(version 2\).*order \(version 1\)"):
        checkpoint(store, *two)
    assert store.latest().checkpoint_id == number
    two[1].state(V2)

    assert checkpoint(store, *two).to_arrow("shop.order").num_rows == 100


def test_operator_state_of_all_subtasks_changes_together(store):
    narrow, wide = (arrowstate.OperatorListStateDescriptor("offsets", kind) for kind in (pa.int32(), pa.int64()))
    backends = [arrowstate.OperatorStateBackend() for _ in range(2)]
    for number, backend in enumerate(backends):
        backend.state(narrow).add_all([number, 10])
    commit(store, {}, operator_states={"source": backends})
    restored = [store.latest().restore_operator_state("source", parallelism=2, subtask=n) for n in range(2)]
    restored[0].state(wide).add(1 << 40)

    with store.writer() as writer:
        with pytest.raises(InvalidInputError, match="has offsets of int64; subtask 1 has offsets of int32"):
            writer.checkpoint({}, operator_states={"source": restored})
        restored[1].state(wide)
        after = writer.checkpoint({}, operator_states={"source": restored})

    assert after.restore_operator_state("source").state(wide).get() == [0, 10, 1 << 40, 1, 10]
    assert after.show()["operators"][0]["operator_states"][0]["type"] == "int64"


def test_elements_of_a_list_keep_their_order_through_versions_and_a_new_key(store):
    key = pa.schema([("k", pa.int64()), ("d", pa.int8())])
    backend = KeyedStateBackend(key=key, max_parallelism=128)
    keys = pa.table({"k": np.arange(1000) % 50, "d": pa.array(np.zeros(1000), pa.int8())})
    narrow, wide = (ListStateDescriptor("seen", kind) for kind in (pa.int32(), pa.int64()))
    backend.state(narrow).add_batch(keys, pa.array(range(1000), pa.int32()))
    checkpoint(store, backend)
    restored = store.latest().restore("shop")
    restored.state(wide).add_batch(keys, pa.array(range(1000, 2000)))
    checkpoint(store, restored)

    backends = [
        store.latest().restore("shop", parallelism=2, subtask=n, key=KEY, evolution=SchemaEvolution(dropped=["d"]))
        for n in range(2)
    ]

    snapshot = checkpoint(store, *backends)
    one = snapshot.restore("shop")
    assert one.state(wide).get_batch(pa.array(range(50))).to_pylist() == [list(range(k, 2000, 50)) for k in range(50)]
    assert [version["runs"] for version in state_of(snapshot, "seen")["schema_versions"]] == [2]


def test_converted_columns_count_to_the_memory_budget_and_spill(store):
    # Two files of many batches each, restored as slices that begin in the middle of them.
    backend = KeyedStateBackend(key=KEY, max_parallelism=128)
    for first in (0, ROWS):
        keys = pa.array(range(first, first + ROWS))
        backend.state(V1).update_batch(keys, orders(range(ROWS)))
    checkpoint(store, backend)
    restored = store.latest().restore("shop", parallelism=2, subtask=1, memory_budget_bytes=50_000)
    keys = store.latest().to_arrow("shop.order", columns=["k"], key_groups=restored.key_groups)["k"].combine_chunks()
    state = restored.state(V2)
    before = state.get_batch(keys)
    assert restored.memory_bytes > 200_000

    state.update_batch(keys[:1], before[:1])

    # What is left are the row just written and the live bits and directories of the files.
    assert restored.memory_bytes < 200_000
    assert state.get_batch(keys).equals(before)
    assert {item["n"] for item in before.to_pylist()} <= set(range(ROWS))


def test_a_version_that_no_run_has_is_forgotten_and_its_ids_stay_taken():
    store = open_store("memory://forgotten-versions", create=True)
    shapes = [
        ({"x": pa.int64()}, {}),
        ({"x": pa.int64(), "y": pa.int64()}, {}),
        ({"x": pa.int64()}, {"dropped": ["y"]}),
        ({"x": pa.int64(), "z": pa.string()}, {}),
    ]
    ids = []
    backend = KeyedStateBackend(key=KEY, max_parallelism=128)
    for number, (fields, changes) in enumerate(shapes):
        backend = store.latest().restore("shop") if number else backend
        kind = pa.struct(list(fields.items()))
        evolution = arrowstate.SchemaEvolution(**changes) if changes else None
        state = backend.state(ValueStateDescriptor("order", kind, evolution=evolution))
        if number != 1:
            state.update_batch([1], [dict.fromkeys(fields)])
            state.clear_batch([1])
        document = checkpoint(store, backend).entry.operators[0].states[0]
        ids.append({column.name: column.id for column in document.columns})

    assert document.schema_version == 4
    assert document.earlier_schemas == []
    assert document.last_field_id == ids[1]["y"]
    assert len({ids[0]["x"], ids[1]["y"], ids[3]["z"]}) == 3
    assert ids[3]["x"] == ids[0]["x"]


def test_a_merge_rule_that_gives_none_leaves_no_row_of_that_key() -> None:
    key = pa.schema([("user", pa.string()), ("device", pa.int64())])
    ttl = arrowstate.TimeToLive(100, clock="event_time")
    value = arrowstate.ValueStateDescriptor("v", pa.int64(), ttl=ttl)
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=8)
    keys = pa.table({"user": ["ann"] * 2 + ["bob"] * 3, "device": [1, 2, 1, 2, 3]})
    times = pa.array([90, 80, 50, 50, 50])
    backend.state(value).update_batch(keys, [1, -1, 5, -5, 7], timestamps=times)
    store = arrowstate.open_store("memory://none-by-rule", create=True)
    checkpoint = store.writer().checkpoint({"op": [backend]})
    rule = {"v": lambda old, new: None if old + new == 0 else old + new}

    restored = checkpoint.restore(
        "op",
        key=pa.schema([("user", pa.string())]),
        evolution=arrowstate.SchemaEvolution(dropped=["device"], merge=rule),
    )

    state = restored.state(value)
    # Rows of equal keys have no order: what is left of bob is one of his values.
    assert state.get_batch(["ann"]).to_pylist() == [None]
    assert state.get_batch(["bob"])[0].as_py() in (7, 5, -5, 2, 12)
    assert len(state) == 1
