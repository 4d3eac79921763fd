"""Values and keys of every type, at every place, stay what they are bit by bit while other things are edited."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
from arrowstate.editing.forms import assigned
from arrowstate.errors import ValueTypeError
from arrowstate.table.columns import columns_equal
from every_type import KINDS, any_bits, places, to_arrow
from long_form import every_nth
from stores import commit

ROWS = 4


def columns_of_every_type():
    """A column of each type at each place, by a name; in the short form of some."""
    found = {}
    every = [(kind, *item) for kind, value, _ in KINDS for item in places(kind, value).items()]
    for number, (kind, place, (at_place, inside)) in enumerate(every):
        if every_nth(7, number):
            given = [to_arrow(inside), None, to_arrow(inside), to_arrow(inside)]
            bits = any_bits(kind, ROWS) if place == "flat" else None
            found[f"{place} of {kind}"] = pa.array(given, at_place, from_pandas=False) if bits is None else bits
    return found


def a_store(name, key, keys, columns):
    store = arrowstate.open_store(f"memory://edit-types-{name}", create=True)
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=16)
    columns = {**columns, "n": pa.array(range(ROWS)), "w": pa.array(range(ROWS))}
    values = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    backend.state(arrowstate.ValueStateDescriptor("s", values.type)).update_batch(keys, values)
    commit(store, {"op": [backend]})
    return store


@pytest.fixture(scope="module")
def values():
    return a_store("values", pa.schema([("k", pa.int64())]), pa.array(range(ROWS)), columns_of_every_type())


@pytest.fixture(scope="module")
def keys():
    """A key of as many columns as there are types."""
    columns = {}
    for number, (kind, value, _) in enumerate(KINDS):
        if kind != pa.null() and every_nth(5, number):
            bits = any_bits(kind, ROWS)
            columns[f"key {kind}"] = pa.array([to_arrow(value)] * ROWS, kind) if bits is None else bits
            columns[f"list {kind}"] = pa.array([[to_arrow(value), None]] * ROWS, pa.list_(kind))
            columns[f"struct {kind}"] = pa.array(
                [{"x": to_arrow(value), "y": None}] * ROWS, pa.struct([("x", kind), ("y", kind)])
            )
    columns["number"] = pa.array(range(ROWS))
    batch = pa.record_batch(columns)
    key = pa.schema([field.with_nullable(False) for field in batch.schema])
    return a_store("keys", key, pa.RecordBatch.from_arrays(batch.columns, schema=key), {})


def named(name):
    return '"' + name.replace('"', '""') + '"'


def rows_of(snapshot):
    return snapshot.to_arrow("op.s").sort_by("n").combine_chunks()


def differing(before, after, but=("n", "w")):
    """The columns that have other bits."""
    assert after.schema == before.schema
    assert after.num_rows == before.num_rows
    pairs = ((name, before[name].combine_chunks(), after[name].combine_chunks()) for name in before.column_names)
    return [name for name, was, now in pairs if name not in but and not columns_equal(was, now).all()]


DO = {
    "update": (lambda edit: edit.update("op.s", set={"w": "w + 1"}), (0, ROWS, 0)),
    "delete": (lambda edit: edit.delete("op.s", where="n = 1"), (0, 0, 1)),
    "script": (lambda edit: edit.execute("update op.s set w = w + 1 where n <> 1"), (0, ROWS - 1, 0)),
    "script delete": (lambda edit: edit.execute("delete from op.s where n = 1"), (0, 0, 1)),
    "script of nothing": (lambda edit: edit.execute("update op.s set w = w"), (0, 0, 0)),
    "upsert": (lambda edit: edit.upsert("op.s", edit.snapshot.to_arrow("op.s")), (0, 0, 0)),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", DO)
@pytest.mark.parametrize("what", ["values", "keys"])
def test_what_is_not_named_stays_bit_by_bit(request, what, name):
    store = request.getfixturevalue(what)
    before = rows_of(store.latest())
    do, counts = DO[name]

    with store.edit() as edit:
        do(edit)
        after = rows_of(edit.snapshot)
        (state,) = edit.plan().difference.states

    assert (state.inserted, state.updated, state.deleted) == counts
    if counts[2]:
        before = before.filter(pc.not_equal(before["n"], 1))
    assert differing(before, after) == []


def test_values_of_every_type_are_read_and_written_exactly(values):
    before = rows_of(values.latest())
    names = [name for name in before.column_names if name != "k"]

    with values.edit() as edit:
        edit.update("op.s", set={name: named(name) for name in names})
        assert differing(before, rows_of(edit.snapshot)) == []
        assert edit.plan().is_empty
        # A row that is new passes through SQL as a whole.
        edit.execute("insert into op.s by name select * replace (k + 100 as k) from op.s where n = 0")
        copied = edit.snapshot.lookup("op.s", [0, 100])

    assert differing(copied.slice(0, 1), copied.slice(1), but=("k",)) == []


def test_keys_of_every_type_come_to_others_and_back(keys):
    before = rows_of(keys.latest())
    names = [name for name in before.column_names if name not in ("n", "w")]

    with keys.edit() as edit:
        edit.update("op.s", set={"number": "number + 100"})
        edit.update("op.s", set={**{name: named(name) for name in names}, "number": "number - 100"})
        after = rows_of(edit.snapshot)
        assert edit.plan().is_empty

    assert differing(before, after, but=()) == []


def test_durations_are_reckoned_in_intervals_of_24_hours():
    units = ("s", "ms", "us", "ns")
    store = a_store(
        "durations",
        pa.schema([("k", pa.int64())]),
        pa.array(range(ROWS)),
        {unit: pa.array([-1, None, 5_000, 86_400_000], pa.duration(unit)) for unit in units},
    )
    nanos = {"s": 10**9, "ms": 10**6, "us": 10**3}

    with store.edit() as edit:
        edit.update("op.s", set={unit: f'"{unit}" + interval 1 day' for unit in nanos})
        found = rows_of(edit.snapshot)
        for unit, each in nanos.items():
            day = 86_400 * 10**9 // each
            assert found[unit].cast(pa.int64()).to_pylist() == [day - 1, None, day + 5_000, day + 86_400_000]
        for value in ("interval 1 month", "interval 1 microsecond"):
            with pytest.raises(ValueTypeError, match="months have no length"):
                edit.update("op.s", set={"ms": value})


def test_names_that_need_quotes_and_such_that_duckdb_keeps_are_edited():
    value = pa.struct([("at", pa.int64()), ("Select", pa.int64()), ('q"uote', pa.int64()), ("rowid", pa.int64())])
    key = pa.schema([("From", pa.string())])
    uids = ["main", "temp", "op", "OP", "information_schema", "a.b-c", "arrowstate", "memory"]
    store = arrowstate.open_store("memory://edit-names", create=True)
    jobs = {}
    for uid in uids:
        jobs[uid] = [arrowstate.KeyedStateBackend(key=key, max_parallelism=4)]
        state = jobs[uid][0].state(arrowstate.ValueStateDescriptor("x.y-Z", value))
        state.update_batch(["ann"], [{"at": 1, "Select": 2, 'q"uote': 3, "rowid": 4}])
        jobs[uid][0].state(arrowstate.ListStateDescriptor("l", value)).add_batch(["ann"], [{"at": 1}])
    commit(store, jobs)
    schemas = {"temp": "temp~2", "op": "op~1", "OP": "OP~2", "information_schema": "information_schema~2"}
    schemas |= {"arrowstate": "arrowstate~2", "memory": "memory~2", "main": "main~2"}

    with store.edit() as edit:
        for number, uid in enumerate(uids):
            table = f'{named(schemas.get(uid, uid))}."x.y-Z"'
            edit.update((uid, "x.y-Z"), set={"at": '"at" + "Select" -- 3', 'q"uote': number}, where="\"From\" = 'ann'")
            edit.execute(f'update {table} set "Select" = "Select" + 10 where "at" = 3; -- {table}')
            edit.execute(f'insert into {table} by name select \'bob\' as "From", * exclude ("From") from {table}')
            edit.execute(
                f"insert into {named(schemas.get(uid, uid))}.l (\"From\", rowid) values ('ann', 9), ('ann', 8)"
            )
        found = edit.commit()

    for number, uid in enumerate(uids):
        expected = {"at": 3, "Select": 12, 'q"uote': number, "rowid": 4}
        rows = found.lookup((uid, "x.y-Z"), ["ann", "bob"]).to_pylist()
        assert rows == [{"From": "ann", **expected}, {"From": "bob", **expected}]
        assert found.lookup((uid, "l"), ["ann"])["rowid"].to_pylist()[0] is None
        assert sorted(found.lookup((uid, "l"), ["ann"])["rowid"].to_pylist()[1:]) == [8, 9]


def test_a_time_of_day_is_taken_from_a_text_and_null_from_null():
    texts = pa.array(["10:00:00.5", None, "23:59:59.999999999", "00:00:01"])

    made = assigned(texts, pa.time64("ns"), "op.s")

    assert made.cast(pa.int64()).to_pylist() == [36_000_500_000_000, None, 86_399_999_999_999, 1_000_000_000]
