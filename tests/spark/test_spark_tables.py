"""Timers, operator states and the history of a store as Spark tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import ArrowStateError, InvalidInputError, StateNotFoundError


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with timers, and with all kinds of operator state in two subtasks, at its second checkpoint."""
    folder = tmp_path_factory.mktemp("tables") / "store"
    keyed = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    keyed.timers("alarms").register_batch(pa.array([1, 1, 2]), pa.array([100, 200, 100]))
    plain = [arrowstate.OperatorStateBackend() for _ in range(2)]
    for subtask, backend in enumerate(plain):
        offsets = arrowstate.OperatorListStateDescriptor("offsets", pa.uint32())
        backend.state(offsets).extend(pa.array([10 * subtask, 10 * subtask + 1], pa.uint32()))
        files = arrowstate.OperatorListStateDescriptor("files", pa.string(), mode="union")
        backend.state(files).extend(pa.array(["a"] * subtask, pa.string()))
        rules = arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.float64())
        backend.state(rules).put_batch(pa.array(["x", "y"]), pa.array([0.5, None]))
    with arrowstate.open_store(folder, create=True).writer() as writer:
        writer.checkpoint({"clock": [keyed]})
        writer.checkpoint({"clock": [keyed]}, operator_states={"source": plain}, properties={"offset": 42})
    return folder


@pytest.fixture
def read(spark: Any, store: Path) -> Any:
    """Return a function that reads what the options name."""
    from arrowstate.spark import register

    register(spark)
    return lambda **options: spark.read.format("arrowstate").options(**options).load(str(store))


def read_plan(store: Path, **options: str) -> list[dict[str, Any]]:
    """The rows, without Spark."""
    from arrowstate.spark.read.plans import plan_from_options

    plan = plan_from_options({"path": str(store), **options})
    reader = plan.reader(plan.schema)
    return [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]


def test_timers_are_a_state(store: Path) -> None:
    rows = read_plan(store, operator="clock", state="alarms_event_time")

    assert sorted((row["k"], row["timestamp"]) for row in rows) == [(1, 100), (1, 200), (2, 100)]


@pytest.mark.parametrize("options", [{"operator": "source", "state": "offsets"}, {"table": "arrowstate.checkpoints"}])
def test_no_columns_are_refused_where_no_rows_would_come(store: Path, options: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match=r"'columns' names no column of .*; leave it out to get all"):
        read_plan(store, **options, columns="[]")


def test_a_list_of_subtasks_is_a_table_with_a_partition_for_each(read: Any) -> None:
    frame = read(operator="source", state="offsets")

    assert frame.schema.simpleString() == "struct<_subtask:int,offsets:bigint>"
    assert frame.rdd.getNumPartitions() == 2
    assert [tuple(row) for row in frame.collect()] == [(0, 0), (0, 1), (1, 10), (1, 11)]


def test_union_lists_and_broadcast_states_are_tables(store: Path) -> None:
    assert read_plan(store, operator="source", state="files") == [{"_subtask": 1, "files": "a"}]
    assert read_plan(store, operator="source", state="rules", columns="rules,rules_key")[:2] == [
        {"rules": 0.5, "rules_key": "x"},
        {"rules": None, "rules_key": "y"},
    ]


def test_the_history_of_the_store_is_in_tables(read: Any) -> None:
    frame = read(table="arrowstate.checkpoints")

    rows = frame.select("checkpoint_id", "kind", "properties").collect()
    assert [tuple(row) for row in rows] == [(1, "checkpoint", "{}"), (2, "checkpoint", '{"offset":42}')]
    assert frame.where("committed_at >= triggered_at").count() == 2


def test_the_tables_of_the_history_are_those_of_sql(store: Path) -> None:
    for table in ("arrowstate.checkpoints", "arrowstate.subtasks"):
        expected = arrowstate.open_store(store).sql(f"select * from {table}").fetchall()

        assert [tuple(row.values()) for row in read_plan(store, table=table)] == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"operator": "source"}, InvalidInputError, "'state' is missing; operator 'source' has offsets, files, rules"),
        ({"operator": "source", "state": "o"}, StateNotFoundError, "no state named 'o' .* it has 'offsets', 'files'"),
        ({"operator": "source", "state": "files", "keyGroups": "1"}, InvalidInputError, "unknown option 'keyGroups'"),
        ({"operator": "source", "state": "files", "columns": "k"}, InvalidInputError, "no column 'k'; it has _sub"),
        ({"table": "checkpoints"}, InvalidInputError, r"no table 'checkpoints'; .* in arrowstate\.checkpoints, arrow"),
        ({"table": "arrowstate.checkpoints", "operator": "o"}, InvalidInputError, "unknown option 'operator'"),
    ],
)  # fmt: skip
def test_wrong_options_say_what_there_is(
    store: Path, options: dict[str, str], error: type[ArrowStateError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_plan(store, **options)


@pytest.mark.parametrize(
    "options", [{"operator": "source", "state": "files"}, {"table": "arrowstate.subtasks"}], ids=["state", "history"]
)
def test_tables_are_no_streams(store: Path, options: dict[str, str]) -> None:
    from arrowstate.spark.read.plans import plan_from_options

    plan = plan_from_options({"path": str(store), **options})

    with pytest.raises(InvalidInputError, match=r"is a table: read it with spark\.read"):
        plan.stream_reader(plan.schema)
