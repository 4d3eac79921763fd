"""What an edit refuses: it says why, and has done nothing."""

import datetime
import itertools

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import (
    CorruptDataError,
    EditConflictError,
    FencedError,
    InvalidInputError,
    KeyTypeError,
    NullKeyError,
    OperatorNotFoundError,
    StateNotFoundError,
    StorageError,
    ValueTypeError,
)
from every_kind import small_files
from object_servers import S3_OPTIONS, s3_server
from stores import USER, commit

USERS = ["ann", "bob", "eve"]
VALUE = arrowstate.ValueStateDescriptor("v", pa.int64())
MORTAL = arrowstate.ValueStateDescriptor("t", pa.int64(), ttl=arrowstate.TimeToLive(40, clock="event_time"))
_names = itertools.count()


def fill(url=None, storage_options=None):
    url = url or f"memory://bad-edits-{next(_names)}"
    store = arrowstate.open_store(url, create=True, storage_options=storage_options)
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=8)
    backend.advance_watermark(50)
    backend.state(VALUE).update_batch(USERS, [1, 2, 3])
    backend.state(arrowstate.ListStateDescriptor("l", pa.int32())).add_batch(USERS, [1, 2, 3])
    backend.state(arrowstate.MapStateDescriptor("m", pa.string(), pa.float64())).put_batch(USERS, USERS, [1, 2, 3])
    distinct = arrowstate.AggregatingStateDescriptor("d", pa.int64(), aggregate="count_distinct")
    backend.state(distinct).add_batch(USERS, [1, 2, 3])
    quantiles = arrowstate.AggregatingStateDescriptor("q", pa.float64(), aggregate="quantiles")
    backend.state(quantiles).add_batch(USERS, [1, 2, 3])
    backend.state(MORTAL).update_batch(USERS, [1, 2, 3], timestamps=[5, 20, 30])
    backend.timers().register_batch(USERS, [60, 61, 62])
    source = arrowstate.OperatorStateBackend()
    source.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add_all([1, 2])
    source.state(arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.int64())).put_batch(["r1", "r2"], [1, 2])
    commit(store, {"op": [backend]}, operator_states={"op": [source]}, properties={"o": 1}, watermark=50)
    return store


@pytest.fixture(scope="module")
def store():
    return fill()


def rows(**columns):
    return pa.table(columns)


def update(state, set, where=None, params=None):
    return lambda edit: edit.update(state, set=set, where=where, params=params)


def delete(state, where):
    return lambda edit: edit.delete(state, where=where)


def upsert(state, given, verb="upsert"):
    return lambda edit: getattr(edit, verb)(state, given)


def script(text, **tables):
    return lambda edit: edit.execute(text, tables=tables)


def sequence(number):
    return rows(user=["ann"], _seq=[number], l=pa.array([1], pa.int32()))


BAD = {
    "unknown column": (update("op.v", {"w": "1"}), InvalidInputError, "no column 'w' to set; it has user, v"),
    "unknown name": (update("op.v", {"v": "w"}), InvalidInputError, "w"),
    "nothing to set": (update("op.v", {}), InvalidInputError, "at least one column"),
    "place in a list": (update("op.l", {"_seq": "1"}), InvalidInputError, "no column '_seq'"),
    "hash": (update("op.v", {"_key_hash": "1"}), InvalidInputError, "no column '_key_hash'"),
    "null": (update("op.v", {"v": None}), InvalidInputError, "must not be null"),
    "null key": (update("op.v", {"user": None}), NullKeyError, "'user' is null"),
    "null timestamp": (update("op.timers_event_time", {"timestamp": None}), NullKeyError, "'timestamp' is null"),
    "text for a number": (update("op.v", {"v": "'abc'"}), ValueTypeError, "must be int64, got string"),
    "a large number": (update("op.v", {"v": 2**70}), ValueTypeError, "out of range|out of bounds|cast"),
    "an object": (update("op.v", {"v": datetime.date(2020, 1, 1)}), InvalidInputError, "name it '\\?'"),
    "brackets": (update("op.v", {"v": "v"}, "true) or (true"), InvalidInputError, "one expression"),
    "a union": (delete("op.v", "v = 1) union all (select 'ann'"), InvalidInputError, "one expression"),
    "two statements": (delete("op.v", "true; drop table x"), InvalidInputError, "one expression"),
    "an order": (delete("op.v", "true order by 1"), InvalidInputError, "one expression"),
    "no text": (delete("op.v", ""), InvalidInputError, "one expression"),
    "no condition": (delete("op.v", None), InvalidInputError, "got None"),
    "no text for a condition": (delete("op.v", True), InvalidInputError, "got True"),
    "an aggregate": (delete("op.v", "sum(v) > 1"), InvalidInputError, "an aggregate or a window function"),
    "set to an aggregate": (
        update("op.v", {"v": "1 + max(v)"}),
        InvalidInputError,
        "an aggregate or a window function",
    ),
    "a window": (update("op.v", {"v": "row_number() over ()"}), InvalidInputError, "an aggregate or a window function"),
    "a star": (update("op.v", {"v": "*"}), InvalidInputError, "a star stands for several columns"),
    "a star of a table": (update("op.v", {"v": "v.*"}), InvalidInputError, "a star stands for several columns"),
    "columns": (update("op.v", {"v": "columns(*)"}), InvalidInputError, "a star stands for several columns"),
    "columns in a condition": (delete("op.v", "columns('v') > 1"), InvalidInputError, "a star stands for"),
    "an alias": (update("op.v", {"v": "v as w"}), InvalidInputError, "one expression"),
    "another table": (update("op.v", {"v": "1 from op.l"}), InvalidInputError, "one expression"),
    "an end": (delete("op.v", "v > 1;"), InvalidInputError, "one expression"),
    "a comment that does not end": (delete("op.v", "v > 1 /* "), InvalidInputError, "one expression"),
    "a star of operator state": (update("op.offsets", {"offsets": "*"}), InvalidInputError, "a star stands for"),
    "no condition but a column": (delete("op.v", "user"), InvalidInputError, "to BOOL"),
    "two expressions": (update("op.v", {"v": "1, 2"}), InvalidInputError, "one expression"),
    "too few parameters": (update("op.v", {"v": "?"}, "v = ?", [1]), InvalidInputError, "not provided"),
    "too many parameters": (update("op.v", {"v": "?"}, params=[1, 2]), InvalidInputError, "excess"),
    "another parameter": (update("op.v", {"v": "$n"}, params={"m": 1}), InvalidInputError, "n"),
    "onto another": (update("op.v", {"user": "'ann'"}, "user = 'bob'"), InvalidInputError, "user='ann' already"),
    "onto one": (update("op.v", {"user": "'zoe'"}), InvalidInputError, "two rows have user='zoe'"),
    "insert again": (upsert("op.v", rows(user=["ann"], v=[5]), "insert"), InvalidInputError, "user='ann' already"),
    "insert twice": (upsert("op.v", rows(user=["x", "x"], v=[5, 6])), InvalidInputError, "two rows have user='x'"),
    "upsert null key": (upsert("op.v", rows(user=["x", None], v=[5, 6])), NullKeyError, "row 1"),
    "upsert null": (upsert("op.v", rows(user=["x", "y"], v=[5, None])), InvalidInputError, "'v' of row 1 is"),
    "column missing": (upsert("op.v", rows(user=["x"])), InvalidInputError, "the columns user, v; got user"),
    "column too many": (upsert("op.v", rows(user=["x"], v=[1], z=[1])), InvalidInputError, "got user, v, z"),
    "other types": (upsert("op.v", rows(user=["x"], v=["b"])), ValueTypeError, "must be int64"),
    "no table": (upsert("op.v", [{"user": "x", "v": 1}]), InvalidInputError, "got list"),
    "nothing": (upsert("op.v", None), InvalidInputError, "got NoneType"),
    "no query": (upsert("op.v", "delete from op.v"), InvalidInputError, "takes one SELECT"),
    "unknown table": (upsert("op.v", "from nowhere"), StateNotFoundError, "nowhere"),
    "place before all": (upsert("op.l", sequence(-1)), InvalidInputError, "0 to 2\\^62 - 1"),
    "place behind all": (upsert("op.l", sequence(2**63 - 1)), InvalidInputError, "0 to 2\\^62 - 1"),
    "one place twice": (
        upsert("op.l", pa.concat_tables([sequence(9)] * 2)),
        InvalidInputError,
        "two rows have user='ann', _seq=9",
    ),
    "part of a sketch": (update("op.d", {"estimate": 5}), InvalidInputError, "holds a sketch"),
    "no sketch": (script("update op.d set sketch = 'x'::blob"), InvalidInputError, "a sketch of 'd' is none"),
    "another estimate": (script("update op.d set estimate = 7"), InvalidInputError, "'estimate' of 'd' is not"),
    "another count": (script("update op.q set count = 7"), InvalidInputError, "'count' of 'q' is not"),
    "unknown state": (update("op.nope", {"v": "1"}), StateNotFoundError, "op.nope"),
    "unknown operator": (update("nope.v", {"v": "1"}), OperatorNotFoundError, "nope"),
    "no name": (update(["op", "v"], {"v": "1"}), InvalidInputError, "is named"),
    "keys of another type": (lambda edit: edit.delete_key("op", [1]), KeyTypeError, "user: string"),
    "keys of nobody": (lambda edit: edit.delete_key("nope", ["ann"]), OperatorNotFoundError, "nope"),
    "null element": (update("op.offsets", {"offsets": None}), InvalidInputError, "must not be null"),
    "element of a type": (update("op.offsets", {"offsets": "'x'"}), ValueTypeError, "must be int64"),
    "rules onto one": (update("op.rules", {"rules_key": "'r9'"}), InvalidInputError, "two rows have rules_key='r9'"),
    "a rule again": (
        upsert("op.rules", rows(rules_key=["r1"], rules=[1]), "insert"),
        InvalidInputError,
        "rules_key='r1' already",
    ),
    "subtask too high": (upsert("op.offsets", rows(_subtask=[9], offsets=[9])), InvalidInputError, "0 to 0, got 9"),
    "subtask below": (upsert("op.offsets", rows(_subtask=[-1], offsets=[9])), InvalidInputError, "0 to 0, got -1"),
    "empty script": (script("-- nothing"), InvalidInputError, "has no statement"),
    "no script": (script(None), InvalidInputError, "got None"),
    "commit": (script("update op.v set v = 7; commit"), InvalidInputError, "leave out 'commit'"),
    "dropped table": (script("drop table op.v"), InvalidInputError, "leaves no table op.v"),
    "altered table": (script("alter table op.v add column z int"), InvalidInputError, "the columns user, v, z"),
    "third statement": (
        script("update op.v set v = 7; delete from op.l; update op.v set nope = 3"),
        InvalidInputError,
        "statement 3 of the script, 'update op.v set nope = 3'",
    ),
    "script null": (script("delete from op.l; update op.v set v = null"), InvalidInputError, "must not be null"),
    "script key twice": (script("insert into op.v values ('ann', 5)"), InvalidInputError, "primary key"),
    "script place twice": (script("insert into op.l values ('ann', 0, 5)"), InvalidInputError, "_seq=0; an element"),
    "another name": (script("use op; update v set v = 7"), InvalidInputError, "as in op.state"),
    "a state's name": (script("from op.v", **{"OP.v": rows(a=[1])}), InvalidInputError, "as a state is"),
    "script subtask": (script("update op.offsets set _subtask = 7"), InvalidInputError, "0 to 0, got 7"),
    "dropped nobody": (lambda edit: edit.drop_state("op", "nope"), StateNotFoundError, "nope"),
    "name taken": (lambda edit: edit.rename_state("op", "v", "L"), InvalidInputError, "differ in more than case"),
    "name of an element": (lambda edit: edit.rename_state("op", "v", "Rules"), InvalidInputError, "'rules'"),
    "name of a state": (lambda edit: edit.rename_state("op", "rules", "V"), InvalidInputError, "there is 'v'"),
    "element name taken": (lambda edit: edit.rename_state("op", "offsets", "Rules"), InvalidInputError, "'rules'"),
    "no state name": (lambda edit: edit.rename_state("op", "v", "a/b"), InvalidInputError, "state name"),
    "no uid": (lambda edit: edit.rename_operator("op", "a/b"), InvalidInputError, "operator uid"),
    "no key groups": (lambda edit: edit.change_max_parallelism("op", 0), InvalidInputError, "1 to 32768"),
}


@pytest.mark.turns(5)
@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_has_done_nothing(store, name):
    do, error, words = BAD[name]
    before = sorted(store.storage.list("data")), store.tags()

    with store.edit() as edit:
        with pytest.raises(error, match=words):
            do(edit)
        assert edit.plan().is_empty
        assert edit.plan().statements == ()
        assert edit.commit().checkpoint_id == 1

    assert (sorted(store.storage.list("data")), store.tags()) == before
    assert store.storage.list("leases") == []


GOOD = {
    "a comment": (update("op.v", {"v": "v + 1 -- one more"}, "v = 1 -- ann"), 1),
    "a comment within": (delete("op.v", "v = 1 /* ann */"), 1),
    "a number of numpy": (update("op.v", {"v": np.int64(3)}, "v <> 3"), 2),
    "no number": (update(("op", "v"), {"v": "v"}, "v = 9"), 0),
    "parameters": (update("op.v", {"v": "?"}, "v = ?", [9, 1]), 1),
    "named parameters": (update("op.v", {"v": "$n"}, "user = $u", {"n": 5, "u": "ann"}), 1),
    "places exchanged": (update("op.v", {"user": "if(user = 'ann', 'bob', 'ann')"}, "v < 3"), 2),
    "other states": (delete("op.v", "v in (select l from op.l where l > 1)"), 2),
    "what has expired": (upsert("op.t", rows(user=["ann"], t=[9]), "insert"), 1),
    "touched": (lambda edit: edit.update("op.t", set={"t": "t"}, touch=True), 2),
    "another time": (update("op.t", {"_updated_at": "_updated_at + 1"}, "t = 2"), 1),
    "lists together": (update("op.l", {"user": "'ann'"}), 2),
    "no rows": (upsert("op.v", rows(user=pa.array([], pa.string()), v=pa.array([], pa.int64()))), 0),
    "key of nobody": (lambda edit: edit.delete_key("op", ["nobody"]), 0),
    "names in other case": (script("UPDATE memory.OP.V SET V = 7 where user = E'a\\x6en' -- op.l"), 1),
    "a table made": (script("create table x as select 9 as a; update op.v set v = a from x where v = 1"), 1),
    "a table replaced": (script("create or replace table op.v as select 'ann' as user, 1::bigint as v"), 2),
    "nothing changed": (script("update op.v set v = v; delete from op.l where false"), 0),
    "nothing asked": (script("select 1"), 0),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", GOOD)
def test_what_looks_bad_and_is_not(store, name):
    do, count = GOOD[name]

    with store.edit() as edit:
        do(edit)
        plan = edit.plan()

    changed = sum(item.inserted + item.updated + item.deleted for item in plan.changed_states)
    # What comes to another key comes and goes.
    assert changed == count * (2 if name == "lists together" else 1)
    assert plan.is_empty == (count == 0)


def fill_mortal_list(visibility):
    store = arrowstate.open_store(f"memory://mortal-list-{next(_names)}", create=True)
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=8)
    backend.advance_watermark(50)
    ttl = arrowstate.TimeToLive(40, clock="event_time", visibility=visibility)
    state = backend.state(arrowstate.ListStateDescriptor("l", pa.int64(), ttl=ttl))
    state.add_batch(["ann", "ann", "bob"], [1, 2, 3], timestamps=[5, 30, 5])
    commit(store, {"op": [backend]}, watermark=50)
    return store


def test_an_element_may_be_inserted_where_one_has_expired():
    store = fill_mortal_list("never_return_expired")

    with store.edit() as edit:
        with pytest.raises(InvalidInputError, match="user='ann', _seq=1 already"):
            edit.insert("op.l", rows(user=["ann", "ann"], _seq=[0, 1], l=[9, 9]))
        assert edit.plan().is_empty
        edit.insert("op.l", rows(user=["ann", "bob", "bob"], _seq=[0, None, 2], l=[9, 8, 7]))
        found = edit.commit()

    query = 'select user, _seq, l, _updated_at from "op.l" order by _seq'
    assert found.sql(query, expired=True).fetchall() == [
        ("ann", 0, 9, 50),
        ("ann", 1, 2, 30),
        ("bob", 2, 7, 50),
        ("bob", 3, 8, 50),
    ]
    assert not found.verify(deep=True).problems


def test_no_element_is_inserted_where_one_has_expired_and_is_still_seen():
    store = fill_mortal_list("return_until_cleaned_up")

    with store.edit() as edit, pytest.raises(InvalidInputError, match="user='ann', _seq=0 already"):
        edit.insert("op.l", rows(user=["ann"], _seq=[0], l=[9]))


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_rows_that_are_touched_or_written_without_a_time_count_as_updated_now(kind):
    ttl = arrowstate.TimeToLive(100, clock="event_time")
    store = arrowstate.open_store(f"memory://touched-{kind}", create=True)
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=8)
    if kind == "value":
        columns = {}
        backend.state(arrowstate.ValueStateDescriptor("s", pa.int64(), ttl=ttl)).update_batch(
            USERS, [1, 2, 3], timestamps=[5, 5, 5]
        )
    elif kind == "list":
        columns = {"_seq": [0]}
        backend.state(arrowstate.ListStateDescriptor("s", pa.int64(), ttl=ttl)).add_batch(
            USERS, [1, 2, 3], timestamps=[5, 5, 5]
        )
    else:
        columns = {"s_key": ["ann"]}
        backend.state(arrowstate.MapStateDescriptor("s", pa.string(), pa.int64(), ttl=ttl)).put_batch(
            USERS, USERS, [1, 2, 3], timestamps=[5, 5, 5]
        )
    commit(store, {"op": [backend]}, watermark=50)

    def times(edit):
        return edit.snapshot.sql('select user, s, _updated_at from "op.s" order by user').fetchall()

    with store.edit() as edit:
        edit.update("op.s", set={"s": "s"}, where="user <> 'eve'", touch=True)
        edit.update("op.s", set={"s": "s + 1"}, where="user = 'eve'")
        assert times(edit) == [("ann", 1, 50), ("bob", 2, 50), ("eve", 4, 5)]

    with store.edit() as edit:
        edit.upsert("op.s", rows(user=["ann"], s=[9], **columns))
        assert times(edit) == [("ann", 9, 50), ("bob", 2, 5), ("eve", 3, 5)]


def test_what_counts_as_updated_now_is_so_by_the_event_time_of_its_subtask():
    store = arrowstate.open_store("memory://event-times-of-operators", create=True)
    groups = [arrowstate.key_group_range(8, parallelism=2, subtask=number) for number in range(2)]
    backends = {}
    for uid, watermarks in (("fast", (100, 200)), ("slow", (50, 50))):
        backends[uid] = [arrowstate.KeyedStateBackend(key=USER, max_parallelism=8, key_groups=own) for own in groups]
        for backend, watermark in zip(backends[uid], watermarks, strict=True):
            backend.state(MORTAL)
            backend.advance_watermark(watermark)
    assert commit(store, backends).watermark == 50
    users = ["ann", "bob", "eve", "kim"]
    first = [group in groups[0] for group in arrowstate.key_groups(pa.array(users), 8).to_pylist()]
    assert len(set(first)) == 2

    with store.edit() as edit:
        edit.insert("fast.t", rows(user=users, t=[1] * 4))
        edit.update("fast.t", set={"t": "2"}, touch=True)
        edit.execute("insert into slow.t (user, t) values ('bob', 3)")
        edited = edit.commit()

    table = edited.sql('select _updated_at from "fast.t" order by "user"').fetchall()
    assert table == [(100 if is_first else 200,) for is_first in first]
    assert edited.sql("select count(*) from fast.t").fetchall() == [(4,)]
    restored = [edited.restore("fast", parallelism=2, subtask=number).state(MORTAL) for number in range(2)]
    values = [restored[not is_first].get_batch([user]).to_pylist() for user, is_first in zip(users, first, strict=True)]
    assert values == [[2]] * 4
    assert edited.sql('select _updated_at from "slow.t"').fetchall() == [(50,)]


def test_infinities_and_nan_are_numbers(store):
    with store.edit() as edit:
        for value in (float("inf"), -float("inf"), np.float32("nan"), True, 1.5, -0.0, 0.0):
            edit.update("op.m", set={"m": value})
            assert repr(edit.snapshot.to_arrow("op.m")["m"][0].as_py()) == repr(float(value))


def test_elements_that_move_follow_those_that_are_there(store):
    with store.edit() as edit:
        edit.insert("op.l", "select 'ann' as user, 9::int as l")
        edit.update("op.l", set={"user": "'ann'"}, where="user = 'bob'")
        found = edit.snapshot.lookup("op.l", ["ann"])

    assert found["l"].to_pylist() == [1, 9, 2]


@pytest.mark.parametrize("value", [object(), {1: 2}, float("nan"), {"a": {3}}, 2**70])
def test_properties_are_json(store, value):
    with store.edit() as edit:
        edit.properties["x"] = value
        with pytest.raises(InvalidInputError):
            edit.commit()

    assert store.latest().checkpoint_id == 1
    assert store.tags() == {}


def test_an_edit_that_is_over_takes_nothing():
    store = fill()
    with store.edit() as edit:
        edit.delete("op.v", where="v = 1")
        edit.commit()
        with pytest.raises(InvalidInputError, match="begin another"):
            edit.commit()
    calls = (
        edit.plan,
        edit.commit,
        edit.purge,
        lambda: edit.snapshot,
        lambda: edit.execute("select 1"),
        lambda: edit.delete_key("op", ["ann"]),
        lambda: edit.drop_state("op", "v"),
    )

    for call in calls:
        with pytest.raises(InvalidInputError, match="begin another"):
            call()
    assert store.latest().checkpoint_id == 2


def test_a_folder_that_is_not_there_leaves_no_lease(store, tmp_path):
    with pytest.raises(StorageError, match="temporary folder"):
        store.edit(folder=tmp_path / "nowhere")

    assert store.storage.list("leases") == []


def one_more(edit):
    edit.update("op.v", set={"v": "v + 1"})


def test_of_two_edits_the_second_finds_the_first():
    store = fill()
    with store.edit() as first, store.edit() as second:
        one_more(first)
        one_more(second)
        first.commit()
        before = sorted(store.storage.list(""))
        with pytest.raises(EditConflictError, match="checkpoint 2 was committed while checkpoint 1 was edited"):
            second.commit()
        assert sorted(store.storage.list("")) == before

    assert store.tags() == {"before-edit-2": 1}
    assert sorted(store.latest().to_arrow("op.v")["v"].to_pylist()) == [2, 3, 4]
    assert store.verify(deep=True).problems == []


def test_a_job_that_commits_meanwhile_keeps_what_it_has():
    store = fill()
    with store.edit() as edit:
        one_more(edit)
        backend = store.latest().restore("op")
        backend.state(VALUE).update_batch(["ann"], [100])
        with store.writer() as writer:
            writer.checkpoint({"op": [backend]}, allow_dropped_state=True)
            with pytest.raises(EditConflictError):
                edit.commit()
            # It was not fenced, either.
            writer.checkpoint({"op": [backend]}, allow_dropped_state=True)

    assert store.latest().lookup("op.v", ["ann"])["v"].to_pylist() == [100]
    assert store.tags() == {}


def test_a_job_that_goes_on_is_fenced_by_an_edit():
    store = fill()
    backend = store.latest().restore("op")
    writer = store.writer()
    with store.edit() as edit:
        one_more(edit)
        edit.commit()

    with pytest.raises(FencedError):
        writer.checkpoint({"op": [backend]}, allow_dropped_state=True)
    assert sorted(store.latest().to_arrow("op.v")["v"].to_pylist()) == [2, 3, 4]


def test_a_collection_meanwhile_leaves_what_is_edited():
    store = fill()
    backend = store.latest().restore("op")
    with store.edit() as edit:
        one_more(edit)
        with store.writer() as writer:
            for number in range(3):
                backend.state(VALUE).update_batch(USERS, [number] * 3)
                writer.checkpoint({"op": [backend]}, allow_dropped_state=True)
        store.collect(grace_ms=0, allow_short_grace=True).apply()
        assert edit.snapshot.lookup("op.v", ["ann"])["v"].to_pylist() == [2]
        assert [item.updated for item in edit.plan().changed_states] == [3]
        with pytest.raises(EditConflictError):
            edit.commit()
        # To a savepoint it still can go.
        assert edit.commit(to="kept").lookup("op.v", ["ann"])["v"].to_pylist() == [2]

    assert store.verify(deep=True).problems == []


def test_a_compaction_meanwhile_is_a_conflict():
    store = arrowstate.open_store(f"memory://bad-edits-{next(_names)}", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=8)
    with store.writer() as writer:
        for number in range(3):
            backend.state(VALUE).update_batch(pa.array(range(5000 - number)), [number] * (5000 - number))
            writer.checkpoint({"op": [backend]})
    with store.edit() as edit:
        one_more(edit)
        store.compact(arrowstate.CompactionPolicy(1.001, max_small_files=1, min_bytes=0)).apply()
        with pytest.raises(EditConflictError, match="checkpoint 3 was compacted while"):
            edit.commit()

    assert store.latest().checkpoint_id == 3
    assert store.tags() == {}


def test_a_rollback_meanwhile_is_a_conflict():
    store = fill()
    with store.edit() as edit:
        one_more(edit)
        store.rollback(1)
        with pytest.raises(EditConflictError, match="checkpoint 2 was committed"):
            edit.commit()


def test_a_savepoint_takes_no_place_that_is_taken(tmp_path):
    store = fill(str(tmp_path / "store"))
    with store.edit() as edit:
        one_more(edit)
        saved = edit.commit(to="fixed")
        assert sorted(saved.to_arrow("op.v")["v"].to_pylist()) == [2, 3, 4]
        with pytest.raises(InvalidInputError):
            edit.commit(to="fixed")
        edit.commit(to=tmp_path / "elsewhere")
        # The edit is still there to be committed.
        assert edit.commit().checkpoint_id == 2

    other = arrowstate.open_store(tmp_path / "elsewhere")
    assert sorted(other.latest().to_arrow("op.v")["v"].to_pylist()) == [2, 3, 4]
    assert other.verify(deep=True).problems == []


@pytest.mark.parametrize(
    "change",
    [lambda edit: edit.update("op.v", set={"v": "v + 1"}), lambda edit: edit.execute("update op.v set v = v + 1")],
    ids=["verb", "script"],
)
def test_a_damaged_file_is_named(tmp_path, change):
    with small_files():
        store = fill(str(tmp_path / "store"))
    (path,) = [path for path in store.storage.list("data/op/v") if path.endswith(".arrow")]
    file = tmp_path / "store" / path
    file.write_bytes(file.read_bytes()[:-40])

    with store.edit() as edit, pytest.raises(CorruptDataError, match="^data/op/v"):
        change(edit)


@pytest.mark.parametrize("place", ["elsewhere", "inside"])
def test_a_savepoint_is_a_store_that_is_edited_by_itself(tmp_path, place):
    store = fill(str(tmp_path / "store"))
    name = "inside" if place == "inside" else str(tmp_path / "elsewhere")
    folder = store.savepoint(name).storage.url
    saved = arrowstate.open_store(folder)

    with saved.edit() as edit:
        one_more(edit)
        edit.commit()

    assert sorted(saved.latest().to_arrow("op.v")["v"].to_pylist()) == [2, 3, 4]
    assert saved.tags() == {"before-edit-2": 1}
    assert saved.verify(deep=True).problems == []
    assert sorted(saved.rollback("before-edit-2").to_arrow("op.v")["v"].to_pylist()) == [1, 2, 3]
    assert sorted(store.latest().to_arrow("op.v")["v"].to_pylist()) == [1, 2, 3]
    assert store.verify(deep=True).problems == []


@pytest.mark.long
def test_a_store_in_object_storage_is_edited_and_purged():
    with s3_server() as endpoint, small_files():
        store = fill("s3://bucket/edited", {**S3_OPTIONS, "endpoint_url": endpoint})
        with store.edit() as edit:
            one_more(edit)
            edit.delete_key("op", ["ann"])
            edit.commit()
        assert sorted(store.latest().to_arrow("op.v")["v"].to_pylist()) == [3, 4]
        store.untag("before-edit-2")
        with store.edit() as edit:
            assert edit.purge().is_done
        assert sorted(store.latest().to_arrow("op.v")["v"].to_pylist()) == [3, 4]
        assert store.verify(deep=True).problems == []


def test_states_and_operators_are_dropped_and_renamed_and_no_row_is_written():
    with small_files():
        store = fill()
    with store.edit() as edit:
        edit.rename_state("op", "v", "w")
        edit.rename_state("op", "offsets", "places")
        edit.drop_state("op", "l")
        edit.drop_state("op", "rules")
        edit.rename_operator("op", "shop")
        edit.change_max_parallelism("shop", 32)
        plan = edit.plan()
        assert plan.bytes < 20_000
        assert store.storage.list("data/op/v") != []
        assert edit._staging.overlay.own.list("data") == []
        edit.update("shop.w", set={"w": "w * 2"}, where="user = 'eve'")
        edit.commit()
    found = store.latest()

    # A state with another name is another one.
    differ = {f"{item.operator}.{item.state}": (item.inserted, item.deleted) for item in plan.changed_states}
    assert (differ["op.v"], differ["shop.w"], differ["op.l"]) == ((0, 3), (3, 0), (0, 3))
    assert found.operators == {"shop": ["w", "m", "d", "q", "t", "timers_event_time", "timers_processing_time"]}
    assert found.show()["operators"][0]["max_parallelism"] == 32
    assert found.operator_state("shop", "places").column("places").to_pylist() == [1, 2]
    assert sorted(found.to_arrow("shop.w")["w"].to_pylist()) == [1, 2, 6]
    state = found.restore("shop").state(arrowstate.ValueStateDescriptor("w", pa.int64()))
    assert state.get_batch(USERS).to_pylist() == [1, 2, 6]
    assert store.verify(deep=True).problems == []
