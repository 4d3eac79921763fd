"""`snapshot["operator.state"]`: one state as a table that other libraries take."""

import multiprocessing
import pickle

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, StateNotFoundError
from stores import commit

ROWS = 5000


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    """A value and a list of 5,000 keys in two subtasks, of which a tenth died."""
    store = arrowstate.open_store(tmp_path_factory.mktemp("tables") / "store", create=True)
    ranges = (arrowstate.KeyGroupRange(0, 63), arrowstate.KeyGroupRange(64, 127))
    schema = pa.schema([("user", pa.string())])
    backends = [arrowstate.KeyedStateBackend(key=schema, max_parallelism=128, key_groups=own) for own in ranges]
    users = pa.array([f"u{number}" for number in range(ROWS)])
    groups = arrowstate.key_groups(users, 128)
    for backend, own in zip(backends, ranges, strict=True):
        mine = users.filter(pc.and_(pc.greater_equal(groups, own.start), pc.less_equal(groups, own.end)))
        numbers = pc.cast(pc.utf8_slice_codeunits(mine, 1), pa.int64())
        backend.state(arrowstate.ValueStateDescriptor("number", pa.int64())).update_batch(mine, numbers)
        backend.state(arrowstate.ListStateDescriptor("seen", pa.int64())).add_batch(mine, numbers)
        backend.state(arrowstate.ValueStateDescriptor("number", pa.int64())).clear_batch(mine.slice(0, len(mine) // 10))
    return commit(store, {"counter": backends})


def rows_of(table):
    found = pl.DataFrame(table).select("user", "number")
    return sorted(found.rows())


def test_every_way_gives_the_rows(snapshot):
    table = snapshot["counter.number"]
    rows = rows_of(snapshot.to_arrow("counter.number"))

    assert len(rows) == table.num_rows < ROWS
    assert table.schema == pa.schema([pa.field("user", pa.string(), nullable=False), ("number", pa.int64())])
    assert rows_of(table.to_arrow()) == rows
    assert rows_of(pa.table(table)) == rows
    assert rows_of(pa.Table.from_batches(table.to_batches())) == rows
    assert rows_of(table.to_polars()) == rows
    assert rows_of(pl.DataFrame(table)) == rows
    assert rows_of(pa.Table.from_pandas(table.to_pandas())) == rows
    assert rows_of(table.dataset().to_table()) == rows
    assert rows_of(table.lazy().collect()) == rows
    assert sorted(duckdb.from_arrow(table).fetchall()) == rows
    assert isinstance(table.to_pandas(), pd.DataFrame)
    assert table.dataset().count_rows() == len(rows)
    assert table.dataset().head(7).num_rows == 7
    assert table.to_arrow(columns=["number"]).column_names == ["number"]


def test_a_filter_of_polars_looks_keys_up(snapshot):
    table = snapshot["counter.number"]

    one = table.lazy().filter(pl.col("user") == "u4999").collect()
    two = table.lazy().filter(pl.col("user").is_in(["u4998", "u4999", "nobody"])).select("number").collect()
    none = table.lazy().filter(pl.col("number") > ROWS).collect()

    assert (one["number"].to_list(), sorted(two["number"].to_list()), none.height) == ([4999], [4998, 4999], 0)
    assert [scan.keys for scan in snapshot.scans[-3:]] == [1, 3, None]
    assert snapshot.scans[-3].filter == '(user == "u4999")'


def a_state_with_odd_values():
    store = arrowstate.open_store("memory://odd-values-in-polars", create=True)
    kind = pa.struct([("x", pa.float64()), ("u", pa.uint64()), ("s", pa.string()), ("t", pa.timestamp("ns"))])
    rows = [(0.0, 0, "a", 1), (float("nan"), 2**64 - 1, "b", 2), (None, None, None, None), (-1.5, 7, "", 3)]
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.float64())]), max_parallelism=8)
    backend.state(arrowstate.ValueStateDescriptor("v", kind)).update_batch(
        pa.array([0.0, float("nan"), 2.5, -1.0]), pa.array(rows, kind)
    )
    return commit(store, {"op": [backend]})


@pytest.mark.parametrize(
    "condition",
    [
        *(pl.col(name) >= 0.0 for name in "kx"),
        *(pl.col(name) == float("nan") for name in "kx"),
        *(pl.col(name) < float("nan") for name in "kx"),
        *(pl.lit(0.0) > pl.col(name) for name in "kx"),
        *(~pl.col(name).is_in([0.0, -1.0]) for name in "kx"),
        *(pl.col(name).is_in([-0.0, 2.5]) for name in "kx"),
        pl.col("k") == -0.0,
        (pl.col("k") == 2.5) & pl.col("x").is_null(),
        (pl.col("k") == 2.5) | (pl.col("x") >= 0),
        ~(pl.col("s") == "a"),
        ~pl.col("s").is_in(["a"]),
        pl.col("s").is_in(["a", None], nulls_equal=True),
        pl.col("s") < "b",
        pl.col("u") != 0,
        pl.col("u") >= 7,
        pl.col("u") > -1,
        pl.col("u") == 2**64 - 1,
        pl.col("t") > pl.lit(1, pl.Datetime("ns")),
        pl.col("t") > pl.lit(1, pl.Datetime("us")),
        pl.col("x") < pl.col("k"),
    ],
    ids=str,
)
def test_a_filter_of_polars_is_what_polars_makes_of_it(condition):
    table = a_state_with_odd_values()["op.v"]

    lazy = table.lazy().drop("_key_group").filter(condition)

    expected = table.to_polars().filter(condition)
    assert lazy.collect().sort("k").equals(expected.sort("k"))
    assert lazy.select(pl.len()).collect().item() == expected.height
    assert lazy.select("s").head(1).collect().height == min(1, expected.height)


def test_what_means_the_same_to_arrow_is_pushed_down():
    snapshot = a_state_with_odd_values()

    def pushed(condition):
        snapshot["op.v"].lazy().filter(condition).collect()
        return snapshot.scans[-1].filter

    assert pushed((pl.col("u") > 6) & (pl.col("x") >= 0)) == "(u > 6)"
    assert pushed((pl.col("x") >= 0) & (pl.lit("a") == pl.col("s"))) == '(s == "a")'
    assert pushed((pl.col("u") > 6) & (pl.col("u") <= 7)) in ("((u > 6) and (u <= 7))", "((u <= 7) and (u > 6))")
    assert pushed(pl.col("x") < 2.5) == "(x < 2.5)"
    assert pushed(pl.lit(0.0) < pl.col("x")) is None
    assert pushed(pl.col("u") > -1) is None
    assert pushed((pl.col("u") > 6) | (pl.col("s") == "a")) is None


def test_a_type_that_polars_lacks_is_refused_by_its_column():
    store = arrowstate.open_store("memory://types-that-polars-lacks", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    kind = pa.struct([("n", pa.int64()), ("wide", pa.decimal256(40, 2))])
    backend.state(arrowstate.ValueStateDescriptor("v", kind)).update_batch([1], pa.array([(7, 1)], kind))
    table = commit(store, {"op": [backend]})["op.v"]

    for made in (table.to_polars, table.lazy):
        with pytest.raises(arrowstate.InvalidInputError, match=r"column 'wide' is decimal256\(40, 2\), which Polars"):
            made()
    assert table.to_polars(columns=["n"])["n"].to_list() == [7]


def test_parts_have_all_rows_once_and_about_as_many_each(snapshot):
    for name in ("counter.number", "counter.seen"):
        table = snapshot[name]
        for count in (1, 3, 8, 500):
            parts = table.partitions(count)
            sizes = [part.to_arrow().num_rows for part in parts]
            assert sum(sizes) == table.num_rows
            assert len(parts) == min(count, 128)
            assert sizes == [part.num_rows for part in parts]
            assert max(sizes) < 2 * table.num_rows / len(parts) + 60
    with pytest.raises(InvalidInputError, match="count"):
        table.partitions(0)
    with pytest.raises(InvalidInputError, match="_key_group"):
        table.partitions(2)[0].dataset()


def _sum_of(part):
    return pc.sum(part.to_arrow().column("number")).as_py()


def test_parts_are_read_by_other_processes(snapshot):
    parts = snapshot["counter.number"].partitions(2)

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        sums = pool.map(_sum_of, parts)

    assert sum(sums) == pc.sum(snapshot.to_arrow("counter.number").column("number")).as_py()


def test_a_snapshot_pickles_with_its_document(snapshot):
    again = pickle.loads(pickle.dumps(snapshot))

    assert again.checkpoint_id == snapshot.checkpoint_id
    assert again.entry == snapshot.entry
    assert again.lookup("counter.number", ["u4999"]).to_pylist() == [{"user": "u4999", "number": 4999}]


def test_changes_and_history_are_those_of_the_state(snapshot):
    table = snapshot["counter.number"]

    assert table.changes().num_rows == table.num_rows
    assert table.history(["u4999"]).column("_change_type").to_pylist() == ["insert"]


def test_a_state_that_is_not_there_is_refused_at_once(snapshot):
    with pytest.raises(StateNotFoundError, match=r"counter\.number"):
        snapshot["counter.nunber"]


def test_a_notebook_shows_text_and_no_markup():
    store = arrowstate.open_store("memory://html", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=4)
    backend.state(arrowstate.ValueStateDescriptor("name", pa.string())).update_batch(
        ["<script>alert(1)</script>", "x" * 1000], ["&", ""]
    )
    with store.writer() as writer:
        table = writer.checkpoint({"people": [backend]})["people.name"]

    html = table._repr_html_()

    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert "x" * 200 + "…" in html
    assert "people.name of checkpoint 1: 2 rows" in html
    assert repr(table) == "<StateTable people.name of checkpoint 1: user string, name string>"


def test_polars_has_null_maps_where_the_state_has(tmp_path):
    kind = pa.map_(pa.string(), pa.int64())
    value = pa.struct([("m", kind), ("in", pa.list_(pa.struct([("m", kind)])))])
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    rows = {"a": None, "b": [], "c": [("x", 1)]}
    backend.state(arrowstate.ValueStateDescriptor("v", value)).update_batch(
        list(rows), pa.array([{"m": entries, "in": [{"m": entries}]} for entries in rows.values()], value)
    )
    with arrowstate.open_store(tmp_path / "store", create=True).writer() as writer:
        snapshot = writer.checkpoint({"op": [backend]})

    for frame in (snapshot.to_polars("op.v"), snapshot["op.v"].lazy().collect()):
        deep = pl.col("in").list.first().struct.field("m").is_null().alias("deep")
        assert frame.sort("k").select(pl.col("m").is_null(), deep).rows() == [
            (True, True),
            (False, False),
            (False, False),
        ]
