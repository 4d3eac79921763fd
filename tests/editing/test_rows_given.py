"""Rows given to an edit, as whatever holds rows: each is written once; what fails while it is read writes none."""

import itertools

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import arrowstate
from arrowstate.errors import ArrowStateError, CorruptDataError, InvalidInputError
from stores import KEY, commit

_names = itertools.count()
# With DuckDB 1.4, a relation does not hold its connection.
CONNECTION = duckdb.connect()
ROWS = pa.table({"k": pa.array([2, 3, 4], pa.int64()), "v": pa.array([20, 30, 40], pa.int64())})


@pytest.fixture
def store():
    store = arrowstate.open_store(f"memory://rows-given-{next(_names)}", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch([1, 2, 3], [1, 2, 3])
    source = arrowstate.OperatorStateBackend()
    source.state(arrowstate.OperatorListStateDescriptor("o", pa.int64())).add_all([1])
    commit(store, {"op": [backend]}, operator_states={"op": [source]})
    return store


class Capsules:
    """Has nothing but the protocol, and may be read once."""

    def __init__(self, table):
        self._left = [table]

    def __arrow_c_stream__(self, requested_schema=None):
        return self._left.pop().__arrow_c_stream__(requested_schema)


def kept_elsewhere(table):
    other = arrowstate.open_store(f"memory://rows-given-{next(_names)}", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(table["k"], table["v"])
    return commit(other, {"op": [backend]})


FORMS = {
    "table": lambda rows: rows,
    "batch": lambda rows: rows.to_batches()[0],
    "reader": lambda rows: pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=1)),
    "iterator": lambda rows: iter(rows.to_batches(max_chunksize=2)),
    "generator": lambda rows: (batch for batch in rows.to_batches(max_chunksize=2)),
    "list of batches": lambda rows: rows.to_batches(max_chunksize=2),
    "frames one by one": lambda rows: (pl.from_arrow(batch) for batch in rows.to_batches(max_chunksize=2)),
    "capsules": lambda rows: Capsules(rows),
    "dataset": lambda rows: ds.dataset(rows),
    "relation": lambda rows: CONNECTION.from_arrow(rows),
    "query of a store": lambda rows: kept_elsewhere(rows).sql("select k, v from op.v"),
    "reader of a query": lambda rows: kept_elsewhere(rows).sql("select k, v from op.v").to_arrow_reader(1),
    "state": lambda rows: kept_elsewhere(rows)["op.v"],
    "frame of polars": lambda rows: pl.from_arrow(rows),
    "lazy frame": lambda rows: pl.from_arrow(rows).lazy().filter(pl.col("k") > 0),
    "frame of pandas": lambda rows: rows.to_pandas(),
    "filtered frame of pandas": lambda rows: pd.concat([pd.DataFrame({"k": [0]}), rows.to_pandas()]).query("k > 0"),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_any_form_are_written_once_by_each_verb(store, form):
    with store.edit() as edit:
        assert edit.upsert("op.v", FORMS[form](ROWS)) == 3
        assert edit.snapshot.to_arrow("op.v").sort_by("k").to_pydict() == {"k": [1, 2, 3, 4], "v": [1, 20, 30, 40]}
        edit.delete("op.v", where="true")
        assert edit.insert("op.v", FORMS[form](ROWS)) == 3
        query = "select g.k, g.v + h.v as v from given g join given h using (k)"
        assert edit.upsert("op.v", query, tables={"given": FORMS[form](ROWS)}) == 3
        assert edit.snapshot.to_arrow("op.v").sort_by("k")["v"].to_pylist() == [40, 60, 80]
        edit.execute(
            "update op.v set v = given.v + (select max(v) from given) from given where given.k = v.k",
            tables={"given": FORMS[form](ROWS)},
        )
        assert edit.snapshot.to_arrow("op.v").sort_by("k")["v"].to_pylist() == [60, 70, 80]


@pytest.mark.parametrize("form", FORMS)
def test_a_query_reads_a_table_of_any_form_as_often_as_it_names_it(store, form):
    query = "select count(*), sum(g.v) from given g join given h using (k) where h.k in (select k from given)"

    assert store.sql(query, tables={"given": FORMS[form](ROWS)}).fetchall() == [(3, 90)]


NO_KEYS = {"dataset", "state", "list of batches", "filtered frame of pandas"}


@pytest.mark.parametrize("form", sorted(FORMS.keys() - NO_KEYS))
def test_keys_of_any_form_are_looked_up_and_deleted(store, form):
    of_a_store = "store" in form or "reader of" in form
    keys = ROWS if of_a_store else ROWS.select(["k"])

    def given():
        made = FORMS[form](keys)
        return kept_elsewhere(ROWS).sql("select k from op.v") if of_a_store else made

    found = store.latest().lookup("op.v", given())
    assert sorted(found["v"].to_pylist()) == [2, 3]
    with store.edit() as edit:
        assert edit.delete_key("op", given()) == 2
        assert edit.snapshot.to_arrow("op.v").to_pydict() == {"k": [1], "v": [1]}


def late():
    yield ROWS.to_batches()[0]
    raise LookupError("the connection is gone")


def closed():
    connection = duckdb.connect()
    relation = connection.sql("select 1 as k, 2 as v")
    connection.close()
    return relation


def broken():
    return kept_elsewhere(ROWS).sql("select k, v, error('no') from op.v")


BAD = {
    "a generator that fails late": (late, "cannot be read to their end, so none is taken: LookupError: the connection"),
    "a reader that fails late": (
        lambda: pa.RecordBatchReader.from_batches(ROWS.schema, late()),
        "cannot be read to their end, so none is taken: LookupError: the connection",
    ),
    "a closed relation": (closed, "cannot be read to their end"),
    "a query that fails": (broken, "cannot be read to their end"),
    "a lazy frame that fails": (
        lambda: pl.LazyFrame({"k": [1], "v": ["x"]}).with_columns(pl.col("v").cast(pl.Int64)),
        "cannot be read to their end",
    ),
    "batches with other columns": (
        lambda: iter([ROWS.to_batches()[0], pa.record_batch({"k": [1]})]),
        "batch 1 of the iterator has other columns",
    ),
    "an iterator of rows": (lambda: iter([{"k": 1, "v": 2}]), "got list_iterator of dict"),
    "an iterator of nothing": (lambda: iter([]), "no record batch"),
    "a dict": (lambda: {"k": [1], "v": [2]}, "got dict"),
    "a list of rows": (lambda: [(1, 2)], "got list of tuple"),
    "a number": (lambda: 7, "got int"),
    "a series": (lambda: pl.Series("k", [1]), "got Series"),
}


@pytest.mark.parametrize("form", BAD)
def test_rows_that_cannot_be_read_are_an_error_and_write_nothing(store, form):
    make, message = BAD[form]
    with store.edit() as edit:
        for verb in (edit.upsert, edit.insert):
            for state in ("op.v", "op.o"):
                with pytest.raises(InvalidInputError, match=message):
                    verb(state, make())
        for use in (
            lambda given: edit.upsert("op.v", "from given", tables={"given": given}),
            lambda given: edit.execute("insert into op.v from given", tables={"given": given}),
        ):
            with pytest.raises(ArrowStateError):
                use(make())

        assert edit.plan().is_empty


def test_a_damaged_state_that_is_given_is_called_damaged(store, tmp_path):
    other = arrowstate.open_store(tmp_path / "other", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)
    many = pa.array(range(20_000))
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(many, many)
    snapshot = commit(other, {"op": [backend]})
    for path in (tmp_path / "other").rglob("*.arrow"):
        path.write_bytes(path.read_bytes()[:100])

    with store.edit() as edit:
        for given in (snapshot["op.v"], snapshot.sql("select k, v from op.v")):
            with pytest.raises(CorruptDataError):
                edit.upsert("op.v", given)

        assert edit.plan().is_empty
