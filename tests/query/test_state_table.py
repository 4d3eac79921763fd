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
