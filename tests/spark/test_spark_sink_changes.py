"""Streams of changes folded by `keyed_sink`, against a dict that lives through the same changes; what is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
import sink_batches
from arrowstate.errors import InvalidInputError, NullKeyError
from arrowstate.schema.layout import StateLayout, key_documents, state_document
from arrowstate.spark.micro_batches import MicroBatch
from arrowstate.spark.sink.plan import SinkPlan, StateInput
from arrowstate.table.key_batch import KeyBatch

FLINK = {"insert": "+I", "before": "-U", "after": "+U", "delete": "-D"}
DELTA = {"insert": "insert", "before": "update_preimage", "after": "update_postimage", "delete": "delete"}
DEBEZIUM = {"insert": "c", "before": None, "after": "u", "delete": "d"}
CITY = arrowstate.ValueStateDescriptor("v", pa.int64())
ORDERS = arrowstate.MapStateDescriptor("v", pa.int64(), pa.int64())
MEAN = arrowstate.AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean")
TOTALS = arrowstate.ReducingStateDescriptor(
    "totals", pa.struct([("id", pa.int64()), ("v", pa.int64())]), reduce={"id": "count", "v": "sum"}
)


def changes(seed: int, count: int, words: dict[str, str | None]) -> tuple[list[tuple[Any, ...]], dict[int, Any]]:
    """Random changes of a table with the primary key `id`: rows (seq, op, id, k, v), and what the table is in the end.

    An update may give a row another `k`.
    """
    random = np.random.default_rng(seed)
    table: dict[int, tuple[int, int]] = {}
    log: list[tuple[Any, ...]] = []
    for sequence in range(count):
        number = int(random.integers(0, 12))
        row = (int(random.integers(0, 5)), int(random.integers(-50, 50)))
        if number not in table:
            table[number] = row
            log.append((sequence, words["insert"], number, *row))
        elif random.random() < 0.4:
            log.append((sequence, words["delete"], number, *table.pop(number)))
        else:
            if words["before"] is not None:
                log.append((sequence, words["before"], number, *table[number]))
            table[number] = row
            log.append((sequence, words["after"], number, *row))
    return log, table


def in_batches(log: Sequence[tuple[Any, ...]], seed: int, count: int) -> list[pa.Table]:
    """The changes in micro-batches, each in an order of its own, as a shuffle leaves them."""
    random = np.random.default_rng(seed)
    borders = [0, *sorted(random.integers(0, len(log) + 1, count - 1).tolist()), len(log)]
    names = ("seq", "op", "id", "k", "v")
    types = (pa.int64(), pa.string(), pa.int64(), pa.int64(), pa.int64())
    out = []
    for start, end in pairwise(borders):
        rows = [log[place] for place in start + random.permutation(end - start)]
        columns = [pa.array([row[n] for row in rows], kind) for n, kind in enumerate(types)]
        out.append(pa.table(columns, names=names))
    return out


def plan(store: Path, rows: pa.Schema, key: str, states: Sequence[Any], **settings: Any) -> SinkPlan:
    """The plan of a sink of rows in which the key is a column of its own in front."""
    numbers = {name: number for number, name in enumerate(rows.names, 1)}
    schema = pa.schema([(key, rows.field(key).type)])
    inputs = []
    for state in states:
        names = [field.name for field in state.type] if pa.types.is_struct(state.type) else [state.name]
        document = state_document(state, StateLayout.of(schema, state), key_documents(schema))
        is_map = isinstance(state, arrowstate.MapStateDescriptor)
        columns = [numbers[name] for name in names]
        inputs.append(StateInput(state=document, columns=columns, user_key=numbers["id"] if is_map else None))
    columns_of = {name: numbers[value] for name, value in settings.items() if name in ("operation", "timestamp")}
    sequence = [numbers[name] for name in settings.get("sequence", ())]
    parallelism = settings.get("parallelism", 2)
    return SinkPlan(
        store=str(store),
        uid="counter",
        key=key_documents(schema),
        names=["key", *rows.names],
        states=inputs,
        retention=None,
        parallelism=parallelism,
        max_parallelism=128,
        sequence=sequence,
        **columns_of,
    )


def run(plan: SinkPlan, batch_id: int, rows: pa.Table) -> None:
    """Run the tasks of a micro-batch, each with its rows, and commit it."""
    sink_batches.run(plan, MicroBatch("query", "run", batch_id), rows.add_column(0, "key", rows[plan.key[0].name]))


def rows_of(store: Path, state: str) -> list[dict[str, Any]]:
    """A state in the newest checkpoint."""
    rows: list[dict[str, Any]] = arrowstate.open_store(store).latest().to_arrow(f"counter.{state}").to_pylist()
    return rows


def totals_of(table: dict[int, Any]) -> dict[int, tuple[int, int]]:
    """Count and sum by `k` of a table."""
    out: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for k, v in table.values():
        out[k] = (out[k][0] + 1, out[k][1] + v)
    return dict(out)


@pytest.mark.parametrize("words", [FLINK, DELTA], ids=["flink", "delta"])
@pytest.mark.parametrize("seed", range(6))
def test_maps_and_totals_follow_a_table_whose_rows_change_their_key(tmp_path: Path, seed: int, words: Any) -> None:
    log, table = changes(seed, 60, words)
    batches = in_batches(log, seed, count=4)
    settings = {"operation": "op", "sequence": ["seq"]}

    for number, rows in enumerate(batches):
        run(plan(tmp_path, rows.schema, "k", [ORDERS, TOTALS], parallelism=1 + number % 3, **settings), number, rows)

    entries = {(row["k"], row["v_key"]): row["v"] for row in rows_of(tmp_path, "v")}
    assert entries == {(k, number): v for number, (k, v) in table.items()}
    assert {row["k"]: (row["id"], row["v"]) for row in rows_of(tmp_path, "totals")} == totals_of(table)


@pytest.mark.parametrize("words", [FLINK, DELTA, DEBEZIUM], ids=["flink", "delta", "debezium"])
@pytest.mark.parametrize("seed", range(4))
def test_a_value_state_follows_a_table_by_its_primary_key(tmp_path: Path, seed: int, words: Any) -> None:
    log, table = changes(seed, 60, words)
    batches = in_batches(log, seed, count=4)

    for number, rows in enumerate(batches):
        run(plan(tmp_path, rows.schema, "id", [CITY], operation="op", sequence=["seq"]), number, rows)

    assert {row["id"]: row["v"] for row in rows_of(tmp_path, "v")} == {number: v for number, (_, v) in table.items()}


def test_sums_and_counts_need_no_order(tmp_path: Path) -> None:
    log, table = changes(1, 60, FLINK)
    [rows] = in_batches(log, 1, count=1)

    # The first of these takes back what only the second adds.
    for number, part in enumerate((rows.slice(30), rows.slice(0, 30))):
        run(plan(tmp_path, rows.schema, "k", [TOTALS], operation="op"), number, part)

    assert {row["k"]: (row["id"], row["v"]) for row in rows_of(tmp_path, "totals")} == totals_of(table)


def test_where_the_sequence_is_equal_removals_come_first(tmp_path: Path) -> None:
    rows = pa.table({"seq": [1, 1, 2, 2], "op": ["insert", "delete", "insert", "delete"], "id": [1, 1, 2, 2]})
    rows = rows.append_column("k", rows["id"]).append_column("v", pa.array([10, 10, 20, 20]))
    replaced = rows.set_column(4, "v", pa.array([11, 10, 21, 20]))
    sink = plan(tmp_path, rows.schema, "id", [CITY], operation="op", sequence=["seq"])

    run(sink, 0, rows)
    run(sink, 1, replaced)

    assert {row["id"]: row["v"] for row in rows_of(tmp_path, "v")} == {1: 11, 2: 21}


def test_several_columns_order_rows(tmp_path: Path) -> None:
    rows = pa.table({"major": [2, 1, 2], "minor": ["a", "z", "b"], "id": [7, 7, 7], "v": [1, 2, 3]})

    run(plan(tmp_path, rows.schema, "id", [CITY], sequence=["major", "minor"]), 0, rows)

    assert rows_of(tmp_path, "v") == [{"id": 7, "v": 3}]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"op": "X"}, InvalidInputError, r"one of \+I, \+U, c, .*; column 'op' holds 'X' in the row with the key k=3"),
        ({"op": None}, InvalidInputError, "column 'op' holds None in the row with the key k=3"),
        ({"op": "u"}, InvalidInputError, "state 'totals' takes the old values of an update back, .* the key k=3"),
        ({"seq": None}, InvalidInputError, "sequence column 'seq' is null in 1 rows"),
        ({"id": None}, NullKeyError, "key column 'v_key' is null"),
    ],
)
def test_a_row_that_cannot_be_followed_fails_the_micro_batch_and_leaves_the_store(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    log, table = changes(0, 30, FLINK)
    [rows] = in_batches(log, 0, count=1)
    sink = plan(tmp_path, rows.schema, "k", [ORDERS, TOTALS], operation="op", sequence=["seq"], parallelism=1)
    run(sink, 0, rows)
    before = {str(path) for path in tmp_path.rglob("*")}
    row = {"seq": 99, "op": "+I", "id": 99, "k": 3, "v": 1}

    with pytest.raises(error, match=message):
        run(sink, 1, pa.Table.from_pylist([row, row | change], schema=rows.schema))

    assert {str(path) for path in tmp_path.rglob("*")} == before
    assert {row["k"]: (row["id"], row["v"]) for row in rows_of(tmp_path, "totals")} == totals_of(table)


def test_the_keys_of_a_micro_batch_are_grouped_once_for_all_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number}" for number in range(5)]
    states = [arrowstate.ReducingStateDescriptor(name, pa.int64(), reduce="sum") for name in names]
    random = np.random.default_rng(1)
    values = {name: pa.array(random.integers(0, 9, 200), mask=random.random(200) < 0.3) for name in names}
    rows = pa.table({"id": random.integers(0, 20, 200), **values})
    grouped = []
    made = KeyBatch.of
    monkeypatch.setattr(KeyBatch, "of", classmethod(lambda cls, *a, **b: grouped.append(1) or made(*a, **b)))

    run(plan(tmp_path, rows.schema, "id", states, parallelism=1), 0, rows)

    assert len(grouped) == 1
    for name in names:
        kept = rows.filter(rows[name].is_valid()).group_by("id").aggregate([(name, "sum")])
        expected = dict(zip(kept["id"].to_pylist(), kept[f"{name}_sum"].to_pylist(), strict=True))
        assert {row["id"]: row[name] for row in rows_of(tmp_path, name)} == expected


@pytest.mark.parametrize("parallelism", [1, 2])
def test_event_time_passes_for_all_subtasks_alike(tmp_path: Path, parallelism: int) -> None:
    ttl = arrowstate.TimeToLive(2_000, clock="event_time")
    total = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum", ttl=ttl)
    groups = arrowstate.key_groups(pa.array(range(100)), 128).to_pylist()
    low, high = (next(key for key, group in enumerate(groups) if (group < 64) == first) for first in (True, False))

    for number, (key, time) in enumerate([(low, 0), (high, 10_000), (low, 10_001)]):
        rows = pa.table({"id": [key], "v": [1 + number], "at": [time]})
        run(plan(tmp_path, rows.schema, "id", [total], timestamp="at", parallelism=parallelism), number, rows)

    # Only the subtask of the other key has seen that the first value is out of date.
    assert {row["id"]: row["v"] for row in rows_of(tmp_path, "v")} == {low: 3, high: 2}


def test_a_stream_of_changes_equals_its_table_over_a_restart_with_another_parallelism(stream: Any) -> None:
    stream.schema = "seq long, op string, id long, k long, v long"
    log, table = changes(7, 400, DELTA)
    first, second, third = in_batches(log, 7, count=3)
    arguments = {
        "states": [arrowstate.MapStateDescriptor("orders", pa.int64(), pa.int64()), TOTALS, MEAN],
        "columns": {"orders": ["id", "v"], "mean": "v"},
        "operation": "op",
        "sequence": "seq",
    }
    stream.add(first, second)
    stream.run(**arguments)
    stream.add(third)

    stream.run(parallelism=3, max_parallelism=192, **arguments)

    entries = {(row["k"], row["orders_key"]): row["orders"] for row in rows_of(stream.store, "orders")}
    assert entries == {(k, number): v for number, (k, v) in table.items()}
    assert {row["k"]: (row["id"], row["v"]) for row in rows_of(stream.store, "totals")} == totals_of(table)
    backend = arrowstate.open_store(stream.store).latest().restore("counter", parallelism=1, subtask=0)
    expected = [v / n if n else None for n, v in (totals_of(table).get(key, (0, 0)) for key in range(6))]
    assert backend.state(MEAN).get_batch(range(6)).to_pylist() == expected


def test_an_unknown_operation_fails_the_query_which_goes_on_without_it(stream: Any) -> None:
    from pyspark.errors import StreamingQueryException

    stream.schema = "seq long, op string, id long, k long, v long"
    log, table = changes(8, 60, DEBEZIUM)
    first, second = in_batches(log, 8, count=2)
    truncated = pa.table({"seq": [999], "op": ["t"], "id": [1], "k": [1], "v": [1]})
    arguments = {"key": ["id"], "states": [CITY], "operation": "op", "sequence": ["seq"]}
    stream.add(first, pa.concat_tables([second, truncated]))

    with pytest.raises(StreamingQueryException, match="column 'op' holds 't' in the row with the key id=1"):
        stream.run(**arguments)
    stream.run(frame=stream.frame().filter("op <> 't'"), **arguments)

    assert {row["id"]: row["v"] for row in rows_of(stream.store, "v")} == {
        number: v for number, (_, v) in table.items()
    }


SPACED = arrowstate.ReducingStateDescriptor(
    "totals", pa.int64(), reduce="sum", namespace=pa.schema([("nobody", pa.int64())])
)
PAIR = arrowstate.ValueStateDescriptor("pair", pa.struct([("v", pa.int64()), ("w", pa.int64())]))
EXPIRING = arrowstate.ValueStateDescriptor("v", pa.int64(), ttl=arrowstate.TimeToLive(1, clock="event_time"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": [arrowstate.ListStateDescriptor("v", pa.int64())]}, "of the kind list cannot take back a value"),
        (
            {"states": [arrowstate.AggregatingStateDescriptor("v", pa.int64(), aggregate="variance")]},
            "state 'v': variance cannot take back a value; of the aggregates mean can",
        ),
        (
            {"states": [arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="max")]},
            "state 'v': max cannot take back a value, .* sum and count can",
        ),
        (
            {
                "states": [
                    arrowstate.ReducingStateDescriptor(
                        "t", pa.struct([("v", pa.int64()), ("n", pa.int64())]), reduce={"v": "sum", "n": "last"}
                    )
                ]
            },
            "state 't.n': last cannot take back",
        ),
        (
            {"states": [arrowstate.ReducingStateDescriptor("v", pa.uint8(), reduce="sum")]},
            "a sum of uint8 cannot take back a value, .* declare a signed type",
        ),
        ({"sequence": None}, "state 'v' keeps what the last change says, .* with sequence="),
        ({"sequence": []}, "sequence must name at least one column"),
        ({"sequence": "nobody"}, "has no column 'nobody'"),
        ({"operation": "v"}, "operation column 'v' must be a string, got bigint"),
        ({"sequence": "parts"}, "'parts' must be a number, date, timestamp or string, got array<bigint>"),
        ({"timestamp": "n"}, "timestamp='n' is for states that expire by event time"),
        ({"states": [EXPIRING]}, "state 'v' expires by event time; name the column"),
        ({"states": [EXPIRING], "timestamp": "op"}, "timestamp column 'op' must be a timestamp, or a whole number"),
        ({"columns": {"w": "v"}}, "there is no state 'w'; there is v"),
        ({"columns": {"v": ["v", "n"]}}, "state 'v' must name the columns for v, in this order, .* got 'v', 'n'"),
        ({"states": [ORDERS], "columns": {"v": "n"}}, "must name the columns for v_key, v, in this order, .* got 'n'"),
        ({"states": [ORDERS]}, "has no column 'v_key'"),
        (
            {"states": [PAIR], "columns": {"pair": "parts"}},
            "must name the columns for v, w, in this order, or a struct column with the fields of the value",
        ),
        ({"states": [PAIR], "columns": {"pair": "whole"}}, "struct column 'whole' has no column 'w'; it has v"),
        ({"operation": None, "states": [SPACED]}, "has no column 'nobody'"),
        (
            {"operation": None, "states": [arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce=min)]},
            "a sink is a plan without code, and a store keeps the name of builtins.min only",
        ),
        ({"states": [arrowstate.TimeToLive(1)]}, "expected a descriptor of one, got TimeToLive"),
    ],
)  # fmt: skip
def test_what_a_sink_cannot_keep_is_refused_at_the_call(stream: Any, change: dict[str, Any], message: str) -> None:
    stream.schema = "k long, v long, n long, op string, parts array<bigint>, whole struct<v: bigint>"
    (stream.folder / "in").mkdir()
    arguments = {"states": [CITY], "operation": "op", "sequence": "n"} | change

    with pytest.raises(InvalidInputError, match=message):
        stream.start(**arguments)

    assert not stream.store.exists()
