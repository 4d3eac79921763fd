import datetime
import decimal
import gc

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowstate
from arrowstate.query.duckdb.dataset import ScannedDataset, StateSource
from arrowstate.query.state import StateReader
from early_versions import is_before
from processes import at_once, python
from stores import backend_of


def scan_of(snapshot, query, **options):
    rows = snapshot.sql(query, **options).fetchall()
    return rows, snapshot.scans[-1]


def test_a_view_has_the_columns_of_key_and_value_and_the_key_group(people):
    relation = people.sql('from "page-views.v1"."count.all"')

    assert relation.columns == ["name", "page", "count.all", "_key_group"]
    assert sorted(relation.fetchall())[0][:3] == ("ann", 1, 5)


def test_the_relation_of_a_state_has_all_columns(people):
    relation = people.sql('from "people.age"')

    assert relation.columns == ["_checkpoint_id", "_key_hash", "name", "age", "_key_group"]


def test_names_do_not_depend_on_case(people):
    assert people.sql("select AGE from People.Age where NAME = 'bob'").fetchall() == [(40,)]


def test_show_tables_lists_the_states_and_the_history_of_the_store(people):
    names = people.sql("show tables").fetchall()

    states = [("page-views.v1.count.all",), ("people.address",), ("people.age",)]
    assert names == [("arrowstate.checkpoints",), ("arrowstate.subtasks",), *states]


def test_describe_gives_the_types(people):
    types = {row[0]: row[1] for row in people.sql("describe people.address").fetchall()}

    assert types == {"name": "VARCHAR", "city": "VARCHAR", "tags": "VARCHAR[]", "_key_group": "INTEGER"}


def test_nested_values_and_nulls_come_out_as_they_are(people):
    rows = people.sql("select name, city, tags from people.address order by name").fetchall()

    assert rows == [
        ("Zoë", "Łódź", ["ß"]),
        ("ann", "Rome", ["a", None]),
        ("bob", None, []),
        ("it's", '"', None),
    ]


def test_two_states_join(people):
    query = """
        select name, city, age, sum("count.all") from people.address
        join people.age using (name) join "page-views.v1"."count.all" using (name)
        group by all order by name
    """

    assert people.sql(query).fetchall() == [("ann", "Rome", 30, 11), ("bob", None, 40, 7)]


@pytest.mark.parametrize("name", ["it's", "Zoë", "ann"])
def test_a_text_key_is_found_whatever_is_in_it(people, name):
    rows, scan = scan_of(people, f"select name from people.address where name = '{name.replace(chr(39), chr(39) * 2)}'")

    assert rows == [(name,)]
    assert scan.keys == 1


def test_parameters_are_values(people):
    assert people.sql("select age from people.age where name = ?", params=["bob"]).fetchall() == [(40,)]
    assert people.sql("select age from people.age where name = $n", params={"n": "ann"}).fetchall() == [(30,)]


def test_a_filter_on_the_key_looks_the_key_up(large):
    rows, scan = scan_of(large.snapshot, "select * exclude (_key_group) from counter.clicks where user = 4711")

    assert rows == [(4711, large.model[4711])]
    assert scan.keys == 1
    assert scan.batches_read < scan.batches
    assert scan.rows_read < scan.rows / 2


def test_a_list_of_keys_looks_them_up(large):
    users = [5, 77, 4711, 123_456, 999_999]

    rows, scan = scan_of(large.snapshot, f"select user, clicks from counter.clicks where user in {tuple(users)}")

    assert sorted(rows) == [(user, large.model[user]) for user in users[:4]]
    assert scan.keys == 5


def test_more_conditions_narrow_a_lookup(large):
    clicks = large.model[4711]

    rows, scan = scan_of(
        large.snapshot, f"select user from counter.clicks where user in (4711, 4712) and clicks = {clicks}"
    )

    assert rows == [(user,) for user in (4711, 4712) if large.model[user] == clicks]
    assert scan.keys == 2 or is_before("duckdb", (2,))


def test_a_filter_on_some_key_columns_scans(people):
    rows, scan = scan_of(people, """select page from "page-views.v1"."count.all" where name = 'ann'""")

    assert sorted(rows) == [(1,), (2,)]
    assert scan.keys is None


def test_a_filter_on_all_key_columns_looks_up_their_combinations(people):
    rows, scan = scan_of(
        people, """select page, name from "page-views.v1"."count.all" where name in ('ann', 'bob') and page in (2, 3)"""
    )

    assert rows == [(2, "ann")]
    assert scan.keys == 4 or is_before("duckdb", (2,))


def test_a_filter_on_the_key_group_leaves_batches_out(large):
    rows, scan = scan_of(
        large.snapshot, "select count(*), min(_key_group), max(_key_group) from counter.clicks where _key_group < 8"
    )

    groups = arrowstate.key_groups(pa.array(list(large.model)), 128).to_pylist()
    assert rows == [(sum(group < 8 for group in groups), 0, 7)]
    assert 0 < scan.batches_read < scan.batches
    assert scan.rows_read < scan.rows


def test_a_filter_outside_the_bounds_of_a_column_reads_nothing(large):
    rows, scan = scan_of(large.snapshot, "select count(*) from counter.clicks where clicks > 5000")

    assert rows == [(0,)]
    assert scan.batches_read == 0


def test_an_impossible_filter_finds_nothing(large):
    query = "select * from counter.clicks where user = 1 and user = 2"

    assert large.snapshot.sql(query).fetchall() == []


def test_dead_rows_do_not_appear(large):
    rows = large.snapshot.sql("select count(*), count(distinct user), sum(clicks) from counter.clicks").fetchall()

    assert rows == [(200_000, 200_000, sum(large.model.values()))]


def test_batches_are_read_a_few_ahead_of_what_is_asked_for(new_store):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    numbers = pa.array(range(3_000_000))
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(numbers, numbers)
    snapshot = new_store().writer().checkpoint({"op": [backend]})
    scans = []
    state = StateReader(snapshot.storage, snapshot.entry, "op", "v")
    dataset = ScannedDataset(StateSource(state), scans.append)
    reader = dataset.scanner(columns=["v"], filter=pc.field("k") >= 5).to_reader()

    reader.read_next_batch()

    assert scans[0].columns == ("v",)
    assert 0 < scans[0].rows_read < 1_500_000


def test_counting_rows_opens_no_file(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    numbers = pa.array(range(10_000))
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(numbers, numbers)
    store.writer().checkpoint({"op": [backend]})
    for path in (tmp_path / "store" / "data").rglob("*.arrow"):
        path.unlink()

    assert store.sql("select count(*) from op.v").fetchall() == [(10_000,)]


@pytest.mark.parametrize(
    ("kind", "sql", "values"),
    [
        (pa.bool_(), "boolean", [True, False]),
        (pa.int8(), "tinyint", [-128, 0, 127]),
        (pa.int32(), "integer", [-(2**31), 7]),
        (pa.int64(), "bigint", [2**63 - 1, -(2**63)]),
        (pa.float64(), "double", [0.0, -1.5]),
        (pa.decimal128(10, 2), "decimal(10, 2)", [decimal.Decimal("-1.50"), decimal.Decimal("99999999.99")]),
        (pa.decimal128(38, 0), "decimal(38, 0)", [decimal.Decimal(10**37), decimal.Decimal(-1)]),
        (pa.string(), "varchar", ["", "it's", "\n", "Zoë", "a" * 100]),
        (pa.binary(), "blob", [b"", b"\x00\xff", b"'"]),
        (pa.date32(), "date", [datetime.date(1, 1, 1), datetime.date(2024, 2, 29)]),
        (pa.timestamp("us"), "timestamp", [datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)]),
        (pa.timestamp("us", "UTC"), "timestamptz", [datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)]),
    ],
    ids=str,
)
def test_a_key_of_any_type_is_looked_up(new_store, kind, sql, values):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", kind)]), max_parallelism=128)
    keys = pa.array(values, kind)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(keys, pa.array(range(len(keys))))
    snapshot = new_store().writer().checkpoint({"op": [backend]})

    for number, value in enumerate(values):
        rows, scan = scan_of(snapshot, f"select v from op.v where k = ?::{sql}", params=[value])

        assert rows == [(number,)]
        assert scan.keys == 1 or is_before("duckdb", (2,))


TYPES = pa.struct(
    [
        ("small", pa.int8()),
        ("number", pa.int64()),
        ("real", pa.float64()),
        ("text", pa.string()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us")),
        ("exact", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
        ("raw", pa.binary()),
        ("parts", pa.struct([("x", pa.int64())])),
    ]
)
VALUES = {
    "small": ["0", "-3", "3", "127"],
    "number": ["0", "5", "-1", "9223372036854775807"],
    "real": ["0.0", "1.5", "-2.5", "'nan'::double", "'inf'::double"],
    "text": ["''", "'a'", "'it''s'", "'ä€'", "'zz'", "'\"'"],
    "day": ["date '1970-01-01'", "date '2024-02-29'"],
    "moment": ["timestamp '2024-02-29 12:00:00'", "timestamp '1969-12-31 23:59:59.999999'"],
    "exact": ["0", "1.50", "-99.99"],
    "flag": ["true", "false"],
    "raw": ["'\\x00'::blob", "'ab'::blob"],
    "parts.x": ["1", "2"],
    "k1": ["0", "7", "13", "99", "-1"],
    "k2": ["'k0'", "'k1'", "'k''2'", "'none'"],
    "_key_group": ["0", "64", "127"],
}


@pytest.fixture(scope="module")
def typed(new_store):
    """A state with a column of each type, nulls and dead rows; and the same rows in a table of DuckDB's own."""
    backend = backend_of(pa.schema([("k1", pa.int64()), ("k2", pa.string())]))
    state = backend.state(arrowstate.ValueStateDescriptor("typed", TYPES))
    rows = [
        {
            "small": n % 7 - 3,
            "number": n % 11 if n % 5 else None,
            "real": [0.0, 1.5, None, float("nan"), -2.5, float("inf")][n % 6],
            "text": ["", "a", "it's", None, "ä€", "zz", '"'][n % 7],
            "day": datetime.date(1970, 1, 1) + datetime.timedelta(n * 97) if n % 3 else None,
            "moment": datetime.datetime(2024, 2, 29, 12) + datetime.timedelta(hours=n % 5),
            "exact": decimal.Decimal(n % 4) / 2,
            "flag": [True, False, None][n % 3],
            "raw": [b"\0", b"ab", None][n % 3],
            "parts": {"x": n % 3} if n % 4 else None,
        }
        for n in range(150)
    ]
    keys = pa.record_batch(
        {"k1": [n % 20 for n in range(150)], "k2": [f"k{n % 3}".replace("k2", "k'2") for n in range(150)]}
    )
    for start in range(0, 150, 50):
        state.update_batch(keys.slice(start, 50), pa.array(rows[start : start + 50], TYPES))
    snapshot = new_store().writer().checkpoint({"op": [backend]})
    connection = duckdb.connect()
    connection.register(
        "plain", snapshot.to_arrow("op.typed", columns=["k1", "k2", *(field.name for field in TYPES), "_key_group"])
    )
    connection.execute("create table typed as from plain")
    return snapshot, connection


def conditions():
    def compare(column):
        value = st.sampled_from(VALUES[column])
        return st.one_of(
            st.builds(lambda op, v: f"{column} {op} {v}", st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), value),
            st.lists(value, min_size=1, max_size=4).map(lambda vs: f"{column} in ({', '.join(vs)})"),
            st.sampled_from([f"{column} is null", f"{column} is not null"]),
            value.map(lambda v: f"{column} is distinct from {v}"),
        )

    return st.recursive(
        st.sampled_from(list(VALUES)).flatmap(compare),
        lambda inner: st.one_of(
            st.builds(lambda x, y: f"({x} and {y})", inner, inner),
            st.builds(lambda x, y: f"({x} or {y})", inner, inner),
            inner.map(lambda x: f"not ({x})"),
        ),
        max_leaves=5,
    )


@settings(deadline=None, max_examples=300)
@given(conditions())
def test_any_filter_finds_what_duckdb_finds_in_its_own_table(typed, condition):
    snapshot, connection = typed
    query = "select * from {} where " + condition + " order by k1, k2"

    rows = snapshot.sql(query.format("op.typed")).fetchall()

    # repr: NaN is not equal to itself.
    assert repr(rows) == repr(connection.execute(query.format("typed")).fetchall())


@pytest.mark.parametrize("uid", ["main", "temp", "system", "memory", "information_schema", "pg_catalog", "a-b.c", "7"])
def test_an_operator_of_any_uid_can_be_queried(new_store, uid):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(arrowstate.ValueStateDescriptor("select", pa.int64())).update_batch([1], [2])
    snapshot = new_store().writer().checkpoint({uid: [backend]})
    taken = uid in ("main", "temp", "system", "memory", "information_schema", "pg_catalog")

    rows = snapshot.sql(f'select k, "select" from "{uid}{"~2" if taken else ""}"."select" where k = 1').fetchall()

    assert rows == [(1, 2)]


@pytest.mark.parametrize("table", ["memory.v", "main.v", "v", "memory.main.v", "memory.v at (version => 1)"])
def test_no_operator_answers_for_one_whose_name_duckdb_keeps(new_store, table):
    key = pa.schema([("k", pa.int64())])
    backends = {uid: arrowstate.KeyedStateBackend(key=key, max_parallelism=8) for uid in ("main", "memory", "x")}
    for number, backend in enumerate(backends.values()):
        backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch([1], [number])
    backends["main"].state(arrowstate.ValueStateDescriptor("x.v", pa.int64())).update_batch([1], [7])
    snapshot = new_store().writer().checkpoint({uid: [backend] for uid, backend in backends.items()})

    found = [snapshot.sql(f"select v from {name}.v").fetchall() for name in ('"main~2"', '"memory~2"', "x")]

    assert found == [[(0,)], [(1,)], [(2,)]]
    assert snapshot.sql('select "x.v" from "main~2"."x.v"').fetchall() == [(7,)]
    with pytest.raises(arrowstate.StateNotFoundError, match=r"'main~2\.v'.*'memory~2\.v'"):
        snapshot.sql(f"select * from {table}")
    with pytest.raises(duckdb.CatalogException):
        snapshot.duckdb().execute(f"select * from {table.partition(' ')[0]}")


def test_uids_that_differ_in_case_only_have_numbers_and_neither_answers_for_the_other(new_store):
    backends = [arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128) for _ in range(2)]
    for number, backend in enumerate(backends):
        backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch([number], [number])
    snapshot = new_store().writer().checkpoint({"op": backends[:1], "OP": backends[1:]})

    names = [row[0] for row in snapshot.sql("show tables").fetchall()]

    assert names == ["OP~2.v", "arrowstate.checkpoints", "arrowstate.subtasks", "op~1.v"]
    assert snapshot.sql('select v from "op~1".v').fetchall() == [(0,)]
    assert snapshot.sql('select v from "op~2".v').fetchall() == [(1,)]
    for table in ('"op".v', '"OP".v', '"op.v"'):
        with pytest.raises(arrowstate.StateNotFoundError, match="'op~1.v', 'OP~2.v'"):
            snapshot.sql(f"select * from {table}")


@pytest.mark.parametrize("table", ["people.agee", "poeple.age", "age", '"people.agee"'])
def test_an_unknown_table_lists_the_states(people, table):
    with pytest.raises(
        arrowstate.StateNotFoundError, match="'people.address', 'people.age', 'page-views.v1.count.all'"
    ):
        people.sql(f"select * from {table}")


def test_an_unknown_column_lists_the_columns(people):
    with pytest.raises(arrowstate.InvalidInputError, match='"age"'):
        people.sql("select agee from people.age")


@pytest.mark.parametrize(
    "query", ["selec 1", "", "create table t (a int)", "select 1; select 2", "drop view people.age"]
)
def test_what_is_not_one_select_is_refused(people, query):
    with pytest.raises(arrowstate.InvalidInputError):
        people.sql(query)


def test_a_python_variable_is_not_taken_for_a_table(people):
    rows = pa.table({"a": [1]})

    with pytest.raises(arrowstate.StateNotFoundError, match="'rows'"):
        people.sql("select * from rows")
    assert rows.num_rows == 1


def test_a_result_outlives_the_snapshot(new_store, people):
    relation = people.sql("select name, age from people.age")
    del people
    gc.collect()

    assert relation.filter("age > 30").fetchall() == [("bob", 40)]


def test_a_connection_is_the_callers_own(people):
    first, second = people.duckdb(), people.duckdb()
    first.execute("create table mine as select name, age + 1 as older from people.age")

    assert first.execute("select older from mine order by older").fetchall() == [(31,), (41,)]
    with pytest.raises(duckdb.CatalogException):
        second.execute("from mine")
    assert people.sql("show tables").fetchall() == second.execute("show tables").fetchall()


def test_threads_query_one_snapshot_at_a_time_each(large):
    def ask(number):
        query = f"select count(*) from counter.clicks where clicks % 4 = {number}"
        return [large.snapshot.sql(query).fetchall()[0][0] for _ in range(5)]

    found = at_once(ask, range(4))

    assert all(len(set(counts)) == 1 for counts in found)
    assert sum(counts[0] for counts in found) == 200_000


def test_a_savepoint_is_queried_like_a_checkpoint(new_store, tmp_path):
    store = new_store()
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=128)
    state = backend.state(arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="sum"))
    state.add_batch([f"k{n % 5000}" for n in range(10_000)], [1] * 10_000)
    store.writer().checkpoint({"op": [backend]})

    savepoint = store.savepoint(f"{tmp_path}/savepoint")

    assert savepoint.sql("select count(*), sum(n) from op.n").fetchall() == [(5000, 10_000)]
    assert savepoint.sql("select n from op.n where k = 'k7'").fetchall() == [(2,)]
    assert savepoint.scans[-1].keys == 1


@pytest.mark.skipif(is_before("duckdb", (2,)), reason="an early DuckDB has another name for a reader")
def test_a_process_that_holds_results_ends_quietly(tmp_path):
    script = f"""
import arrowstate, pyarrow as pa
store = arrowstate.open_store({str(tmp_path / "store")!r}, create=True)
backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
numbers = pa.array(range(100_000))
backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(numbers, numbers)
snapshot = store.writer().checkpoint({{"op": [backend]}})
relation = snapshot.sql("select * from op.v where v > 5")
connection = snapshot.duckdb()
reader = connection.sql("from op.v").to_arrow_reader(10)
print(len(relation.limit(3).fetchall()), reader.read_next_batch().num_rows)
"""

    done = python("-c", script, timeout=120)

    assert (done.stdout, done.stderr, done.returncode) == ("3 10\n", "", 0)


def test_a_forked_process_queries_on_its_own(tmp_path):
    script = f"""
import os, arrowstate, pyarrow as pa
store = arrowstate.open_store({str(tmp_path / "store")!r}, create=True)
backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
numbers = pa.array(range(300_000))
backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(numbers, numbers)
snapshot = store.writer().checkpoint({{"op": [backend]}})
print(snapshot.sql("select sum(v) from op.v where k > 0").fetchall(), flush=True)
child = os.fork()
if child == 0:
    print(snapshot.sql("select sum(v) from op.v where k > 0").fetchall(), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""

    done = python("-W", "ignore", "-c", script, timeout=120)

    assert (done.stdout, done.returncode) == ("[(44999850000,)]\n" * 2 + "0\n", 0)


def test_a_process_forked_while_another_thread_reads_reads_on_its_own(tmp_path):
    script = f"""
import os, signal, arrowstate, pyarrow as pa
from arrowstate.files import open_files
from arrowstate_formats import document_text, manifest_text
store = arrowstate.open_store({str(tmp_path / "store")!r}, create=True)
backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(range(9000), range(9000))
snapshot = store.writer().checkpoint({{"op": [backend]}})
locks = [document_text._KEPT._lock, manifest_text._KEPT._lock, open_files._FILES._lock]
for lock in locks:
    lock.acquire()
child = os.fork()
if child == 0:
    signal.alarm(60)
    print(store.latest().to_arrow("op.v").num_rows, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

    done = python("-W", "ignore", "-c", script, timeout=120)

    assert (done.stdout, done.returncode) == ("9000\n0\n", 0)


def test_importing_the_reader_loads_no_engine():
    script = "import sys, arrowstate; print(sorted({'duckdb', 'lance', 'polars', 'pyspark'} & set(sys.modules)))"

    done = python("-c", script, timeout=120)

    assert done.stdout == "[]\n"


def test_a_filter_on_the_checkpoint_alone_keeps_all_rows_or_none(people):
    for number, rows in ((1, 2), (2, 0)):
        query = f'select count(*) from "people.age" where _checkpoint_id = {number}'

        assert people.sql(query).fetchall() == [(rows,)]
        assert len(people.sql(query.replace("count(*)", "_checkpoint_id")).fetchall()) == rows
