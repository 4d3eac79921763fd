"""From a savepoint of Flink to a checkpoint of ours: the same rows, states that go on, and what cannot come along."""

import json

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, OperatorNotFoundError, StateNotFoundError
from arrowstate.foreign.flink import import_flink_savepoint, open_flink_savepoint
from stores import commit


@pytest.fixture
def opened(savepoint_folder):
    def open_one(name):
        return open_flink_savepoint(savepoint_folder(name) / "savepoint")

    return open_one


def sorted_rows(rows):
    return sorted(map(repr, rows))


@pytest.mark.parametrize("name", ["v2-forst-checkpoint", "small-rocksdb-heaptimers-checkpoint"])
def test_every_state_has_the_rows_it_had(opened, store, name):
    savepoint = opened(name)

    made = import_flink_savepoint(savepoint, store)

    assert store.verify(deep=True).problems == []
    assert [item for item in made.states if item.name is None] == []
    compared = 0
    for item in made.states:
        was = savepoint[f"{item.operator}.{item.state}"]
        if item.kind in ("split", "union", "broadcast") or item.name.endswith("_raw"):
            continue
        rows = was.to_arrow()
        now = made.snapshot.to_arrow((item.uid, item.name))
        if item.kind == "timers":
            before = zip(rows["key"].to_pylist(), rows["timestamp"].to_pylist(), strict=True)
            assert sorted_rows(before) == sorted_rows(zip(*(now[c].to_pylist() for c in now.column_names), strict=True))
        elif item.kind == "map":
            before = zip(rows["key"].to_pylist(), rows["user_key"].to_pylist(), strict=True)
            keys = ["key", f"{item.name}_key"]
            if "_raw" in rows.schema.names:
                continue
            assert sorted_rows(before) == sorted_rows(zip(*(now[c].to_pylist() for c in keys), strict=True))
        elif item.kind == "list":
            assert now.num_rows == sum(len(elements) for elements in rows["value"].to_pylist())
        elif "_raw" not in rows.schema.names:
            assert sorted(map(repr, now["key"].to_pylist())) == sorted_rows(rows["key"].to_pylist())
            if item.name in now.column_names:
                before = zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
                after = zip(now["key"].to_pylist(), now[item.name].to_pylist(), strict=True)
                assert sorted_rows(before) == sorted_rows(after)
        compared += 1
    assert compared >= 4


def test_a_job_goes_on_from_what_flink_had_summed_up(opened, store, savepoint_folder):
    savepoint = opened("v2-forst-checkpoint")
    truth = json.loads((savepoint_folder("v2-forst-checkpoint") / "truth.json").read_text())
    had = {entry["key"]: entry["value"] for entry in truth["keyed_state"]["v2"]["v2_reduce"]["entries"]}
    total = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")

    made = import_flink_savepoint(
        savepoint,
        store,
        operators={"v2": "counter"},
        states={"v2.v2_reduce": total},
        parallelism=3,
        max_parallelism=256,
    )

    keys = pa.array(list(had), pa.int64())
    found = {}
    backends = [made.snapshot.restore("counter", parallelism=2, subtask=number) for number in range(2)]
    for backend in backends:
        groups = arrowstate.key_groups(keys, 256).to_numpy()
        own = keys.filter(pa.array((groups >= backend.key_groups.start) & (groups <= backend.key_groups.end)))
        state = backend.state(total)
        state.add_batch(own, pa.array([1] * len(own), pa.int64()))
        found |= dict(zip(own.to_pylist(), state.get_batch(own).to_pylist(), strict=True))
    commit(store, {"counter": backends})
    assert found == {key: value + 1 for key, value in had.items()}


def test_lists_and_maps_of_subtasks_are_operator_state(opened, store):
    made = import_flink_savepoint(opened("small-rocksdb-heaptimers-checkpoint"), store)

    states = {item.kind: item for item in made.states if item.operator in ("opstate", "source")}
    assert "union" in states or "split" in states
    for item in states.values():
        rows = made.snapshot.operator_state(item.uid, item.name)
        assert rows.num_rows >= item.rows > 0


def test_the_last_use_of_a_row_is_the_time_of_its_update(opened, store):
    savepoint = opened("small-rocksdb-heaptimers-checkpoint")
    timed = next(
        name
        for name, state in savepoint.states.items()
        if state.kind == "value" and "_last_access" in state.schema.names
    )
    before = savepoint.to_arrow(timed)

    made = import_flink_savepoint(savepoint, store, time_to_live={timed: arrowstate.TimeToLive(2**60)})

    item = next(item for item in made.states if f"{item.operator}.{item.state}" == timed)
    now = made.snapshot.to_arrow((item.uid, item.name), columns=["key", "_updated_at"])
    assert sorted_rows(now.select(["key", "_updated_at"]).to_pylist()) == sorted_rows(
        {"key": row["key"], "_updated_at": row["_last_access"]} for row in before.to_pylist()
    )


def test_sql_and_lookups_read_a_savepoint_as_it_lies(opened):
    savepoint = opened("v2-forst-checkpoint")
    rows = savepoint.to_arrow("v2.v2_reduce").to_pylist()

    total = savepoint.sql("select count(*), sum(value) from v2.v2_reduce").fetchall()
    first = rows[0]["key"]

    assert total == [(len(rows), sum(row["value"] for row in rows))]
    assert savepoint.lookup("v2.v2_reduce", [first, -(2**62)]).to_pylist() == [rows[0]]
    with pytest.raises(StateNotFoundError, match="v2_reduce"):
        savepoint.sql("select * from v2.nothing")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"operators": {"v3": "x"}}, OperatorNotFoundError),
        ({"states": {"v2.none": None}}, StateNotFoundError),
        ({"operators": {"v2": "no name"}}, InvalidInputError),
        ({"states": {"v2.v2_reduce": arrowstate.ValueStateDescriptor("v", pa.list_(pa.int8()))}}, InvalidInputError),
    ],
)
def test_what_does_not_fit_leaves_nothing_behind(opened, store, arguments, error):
    before = sorted(store.storage.list(""))

    with pytest.raises(error):
        import_flink_savepoint(opened("v2-forst-checkpoint"), store, **arguments)

    assert sorted(store.storage.list("")) == before


@pytest.mark.parametrize("operator", ["core-long", "opstate"])
def test_a_second_import_of_an_operator_is_refused_and_changes_nothing(opened, store, operator):
    savepoint = opened("core-rocksdb-native")
    import_flink_savepoint(savepoint, store, operators={operator: "there"})
    before = sorted(store.storage.list(""))

    # Its keyed state would be of the first, and the positions of its sources of the second.
    with pytest.raises(InvalidInputError, match="operator 'there' in .* already, and an import neither adds"):
        import_flink_savepoint(savepoint, store, operators={operator: "there", "source": "source"})

    assert sorted(store.storage.list("")) == before
    import_flink_savepoint(savepoint, store, operators={operator: "another", "source": "source"})


def test_an_import_of_other_operator_state_keeps_what_is_there(opened, store):
    savepoint = opened("core-rocksdb-native")
    names = {"opstate.op-pojo", "opstate.op-split", "opstate.op-union"}

    def add(name, **options):
        left_out = dict.fromkeys(names - {name})
        import_flink_savepoint(savepoint, store, operators={"opstate": "opstate"}, states=left_out, **options)

    add("opstate.op-pojo")
    with pytest.raises(InvalidInputError, match="got operator state of 7: import it with parallelism="):
        add("opstate.op-split", parallelism=7)
    add("opstate.op-split")
    add("opstate.op-union")

    (found,) = store.latest().show()["operators"]
    assert {f"opstate.{state['name']}" for state in found["operator_states"]} == names


def test_entries_that_nothing_tells_apart_are_told_as_what_they_are(opened, store):
    made = import_flink_savepoint(opened("core-hashmap-native"), store, operators={"types-int": "types"})

    notes = {item.state: item.note for item in made.states}
    assert "1 rows are left out: each is the bytes of entries of java.util.BitSet" in notes["t_kryo_bitset"]
    assert "null in their key" not in " ".join(notes.values())


def test_there_is_no_state_of_bytes_where_all_values_are_decoded(opened, store):
    savepoint = opened("core-hashmap-canonical")

    made = import_flink_savepoint(savepoint, store, operators={"core-long": "core"})

    raw = {item.name: item.rows for item in made.states if item.name is not None and item.name.endswith("_raw")}
    assert raw == {"v_pojo_raw": 5}
    assert sum("_raw" in state.schema.names for state in savepoint.operator("core-long").states) > 1


def test_an_object_that_is_null_stays_null(opened, store):
    savepoint = opened("core-hashmap-canonical")
    people = savepoint.to_arrow("core-long.m_string_pojo")

    made = import_flink_savepoint(savepoint, store, operators={"core-long": "core"})

    read = {(row["key"], row["user_key"]): row["value"] for row in people.to_pylist()}
    asked = savepoint.sql('select key, user_key, value from "core-long".m_string_pojo').fetchall()
    now = made.snapshot.to_arrow("core.m_string_pojo").to_pylist()
    in_sql = made.snapshot.sql("select key, m_string_pojo_key, m_string_pojo from core.m_string_pojo").fetchall()
    absent = {place for place, value in read.items() if value is None}
    assert len(absent) == 12
    assert {(key, name) for key, name, value in asked if value is None} == absent
    assert {(row["key"], row["m_string_pojo_key"]): row["m_string_pojo"] for row in now} == read
    assert {(key, name) for key, name, value in in_sql if value is None} == absent


ADDRESS = pa.struct([("street", pa.string()), ("zip", pa.int32())])


def test_a_map_of_null_objects_that_is_asked_for_with_columns_of_fields_is_refused(opened, store):
    columns = arrowstate.MapStateDescriptor("addresses", pa.string(), ADDRESS)

    with pytest.raises(InvalidInputError, match=r"values of the map 'm_string_pojo' are null.*one field"):
        import_flink_savepoint(opened("core-hashmap-canonical"), store, states={"core-long.m_string_pojo": columns})

    assert len(store.checkpoints()) == 0


def test_a_map_of_null_objects_is_what_was_asked_for(opened, store):
    whole = arrowstate.MapStateDescriptor("addresses", pa.string(), pa.struct([("address", ADDRESS)]))

    made = import_flink_savepoint(
        opened("core-hashmap-canonical"),
        store,
        operators={"core-long": "core"},
        states={"core-long.m_string_pojo": whole},
    )

    addresses = made.snapshot.to_arrow("core.addresses")["address"]
    assert addresses.null_count == 12
    assert addresses.type == ADDRESS


def test_names_that_find_a_state_or_an_operator_have_their_effect(opened, store):
    savepoint = opened("flink-1.20-small-rocksdb-filemerging-checkpoint")
    renamed = arrowstate.ValueStateDescriptor("renamed", pa.int64())

    made = import_flink_savepoint(
        savepoint,
        store,
        operators={"core-long": "core"},
        states={"core-long.v_long": renamed, "core-long.v_string": None},
        keys={"core-long": ["user"]},
    )

    names = {item.state: item.name for item in made.states if item.operator == savepoint.operator("core-long").label}
    assert (names["v_long"], names["v_string"]) == ("renamed", None)
    assert "user" in made.snapshot.to_arrow("core.renamed").column_names
