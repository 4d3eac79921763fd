"""The sink of Delta tables: the contract, writers at the same time, and what does not fit."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from arrowstate.errors import InvalidInputError
from arrowstate.runtime import DeltaSink, GeneratorSource, Job, Sink, Token
from arrowstate.testing import SinkConformance
from arrowstate.testing.jobs import simulate
from long_form import short_or_long
from processes import at_once

ROWS = pa.table({"user": ["ann", "bob", None, "", "e", "f"], "total": [3, None, 5, 2**62, -1, 0]})


def token(checkpoint_id: int, subtask: int = 0) -> Token:
    return Token("a-store", "a-sink", checkpoint_id, subtask)


def rows_of(folder: Path) -> pa.Table:
    return pa.table(DeltaTable(folder).to_pyarrow_dataset().to_table())


class TestDeltaSink(SinkConformance):
    @pytest.fixture(params=[None, ["user"]], ids=["whole", "partitioned"])
    def sink(self, tmp_path: Path, request: Any) -> Sink:
        DeltaTable.create(tmp_path / "t", schema=ROWS.schema, partition_by=request.param)
        return DeltaSink(tmp_path / "t")

    @pytest.fixture
    def rows(self) -> pa.Table:
        # A partition cannot tell an empty text from a null.
        return ROWS.set_column(0, "user", pa.array(["ann", "bob", None, "d", "e", "f"]))

    @pytest.fixture
    def visible(self, tmp_path: Path) -> Callable[[], pa.Table]:
        return lambda: rows_of(tmp_path / "t").cast(ROWS.schema)


def test_of_two_who_commit_a_token_at_once_one_adds_the_rows(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "t", schema=ROWS.schema)
    sinks = [DeltaSink(tmp_path / "t") for _ in range(4)]

    at_once(lambda sink: sink.commit(ROWS, token(7)), sinks)

    assert rows_of(tmp_path / "t").num_rows == len(ROWS)


def test_a_writer_that_has_looked_before_another_committed_adds_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    DeltaTable.create(tmp_path / "t", schema=ROWS.schema)
    sink, other = DeltaSink(tmp_path / "t"), DeltaSink(tmp_path / "t")
    opened = sink._opened
    before = opened()
    tables = [before]

    def behind() -> DeltaTable:
        return tables.pop() if tables else opened()

    other.commit(ROWS, token(7))
    monkeypatch.setattr(sink, "_opened", behind)
    sink.commit(ROWS, token(7))

    assert rows_of(tmp_path / "t").num_rows == len(ROWS)
    assert tables == []


def test_another_writer_at_the_same_time_loses_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    DeltaTable.create(tmp_path / "t", schema=ROWS.schema)
    sink = DeltaSink(tmp_path / "t")
    behind = sink._opened()
    monkeypatch.setattr(sink, "_opened", lambda: behind)

    write_deltalake(tmp_path / "t", ROWS, mode="append")
    sink.commit(ROWS, token(7))

    assert rows_of(tmp_path / "t").num_rows == 2 * len(ROWS)


SEEDS = short_or_long(2, 60)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_row_is_in_the_table_once(tmp_path: Path, seed: int) -> None:
    schema = pa.schema({"n": pa.int64()})
    DeltaTable.create(tmp_path / "t", schema=schema)
    job = Job("memory://unused", parallelism=2)
    source = GeneratorSource(
        lambda first, count: pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())}),
        schema,
        rows=230,
        splits=3,
        batch_rows=20,
    )
    job.source(source, uid="numbers").rebalance().sink(DeltaSink(tmp_path / "t"), uid="table")

    simulate(job, seeds=[seed], kills=4, crashes=2, rescales=(1, 3), check=id)

    assert Counter(rows_of(tmp_path / "t")["n"].to_pylist()) == Counter(range(230))


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (pa.table({"user": ["ann"]}), "has the columns user, total, and the rows have user"),
        (pa.table({"user": ["ann"], "total": [1], "more": [2]}), "and the rows have user, total, more"),
        (
            pa.table({"user": ["ann"], "total": ["x"]}),
            "column 'total' of the rows is string, and has values that int64",
        ),
        (pa.table({"user": pa.nulls(1, pa.string()), "total": [1]}), "column 'user' has nulls"),
    ],
)
def test_rows_that_do_not_fit_leave_nothing(tmp_path: Path, rows: pa.Table, problem: str) -> None:
    schema = pa.schema([pa.field("user", pa.string(), nullable=False), ("total", pa.int64())])
    DeltaTable.create(tmp_path / "t", schema=schema)
    sink = DeltaSink(tmp_path / "t")
    sink.open("a-store", "a-sink")

    with pytest.raises(InvalidInputError, match=problem):
        sink.commit(rows, token(1))

    assert DeltaTable(tmp_path / "t").version() == 0
    sink.commit(pa.table({"total": pa.array([1], pa.int32()), "user": ["ann"]}), token(1))
    assert rows_of(tmp_path / "t").to_pylist() == [{"user": "ann", "total": 1}]


def test_a_table_that_is_not_there_or_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no Delta table .*/t'; make it first"):
        DeltaSink(tmp_path / "t").open("a-store", "a-sink")
    with pytest.raises(InvalidInputError, match="there is no Delta table"):
        DeltaSink(tmp_path / "t").commit(ROWS, token(1))


def test_what_may_have_a_password_is_not_shown() -> None:
    assert repr(DeltaSink("s3://bucket/t", storage_options={"key": "secret"})) == "DeltaSink('s3://bucket/t')"
