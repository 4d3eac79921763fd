"""`sequence` across micro-batches: a late change changes nothing, whatever came before and whoever restarted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
import sink_batches
from arrowstate.errors import InvalidInputError
from arrowstate.schema.layout import StateLayout, key_documents, state_document
from arrowstate.spark.micro_batches import MicroBatch
from arrowstate.spark.sink.ordering import kept_order
from arrowstate.spark.sink.plan import SinkPlan, StateInput

NAMES = ("k", "id", "op", "v", "seq", "sub", "time")
CITY = arrowstate.ValueStateDescriptor("city", pa.int64())
ORDERS = arrowstate.MapStateDescriptor("orders", pa.int64(), pa.int64())
KEY = pa.schema([("k", pa.int64())])
TTL = arrowstate.TimeToLive(1000)


def plan(
    store: Path,
    states: Sequence[Any],
    kinds: Sequence[pa.DataType],
    *,
    ordered: bool = True,
    tombstone_ttl: arrowstate.TimeToLive | None = None,
    parallelism: int = 1,
) -> SinkPlan:
    """The plan of a sink of rows with the columns NAMES, in the order of `seq` and `sub`."""
    sequence = pa.schema(list(zip(("seq", "sub"), kinds, strict=False)))
    inputs = []
    for state in states:
        order = kept_order(state, sequence, tombstone_ttl) if ordered else []
        documents = [state_document(item, StateLayout.of(KEY, item), key_documents(KEY)) for item in (state, *order)]
        user_key = 1 if isinstance(state, arrowstate.MapStateDescriptor) else None
        inputs.append(StateInput(state=documents[0], order=documents[1:], columns=[3], user_key=user_key))
    return SinkPlan(
        store=str(store),
        uid="counter",
        key=key_documents(KEY),
        names=NAMES,
        states=inputs,
        retention=None,
        parallelism=parallelism,
        max_parallelism=128,
        sequence=[4, 5][: len(kinds)],
        operation=2,
    )


def run(plan: SinkPlan, batch_id: int, rows: pa.Table) -> None:
    """Run the tasks of a micro-batch, each with its rows, and commit it; its time is that of its rows."""
    sink_batches.run(plan, MicroBatch("query", "run", batch_id), rows, time=rows["time"][0].as_py())


def rows_of(rows: Sequence[tuple[Any, ...]], kinds: Sequence[pa.DataType], time: int = 0) -> pa.Table:
    """Rows of (k, id, op, v, seq, sub)."""
    columns = list(zip(*rows, strict=True))
    types = [pa.int64(), pa.int64(), pa.string(), pa.int64(), *(*kinds, pa.int64())[:2]]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.table([*arrays, pa.array([time] * len(rows), pa.int64())], NAMES)


def found(store: Path, state: str) -> dict[Any, Any]:
    """A state in the newest checkpoint, by key and where there is one user key."""
    table = arrowstate.open_store(store).latest().to_arrow(f"counter.{state}")
    value = [name for name in table.column_names if name not in ("k", f"{state}_key")]
    return {
        tuple(row[name] for name in table.column_names if name not in value): tuple(row[name] for name in value)
        for row in table.to_pylist()
    }


SEQUENCES: dict[str, tuple[list[pa.DataType], Any]] = {
    "long": ([pa.int64()], lambda n: (n,)),
    "string": ([pa.string()], lambda n: (f"{n:05}",)),
    "two columns": ([pa.int32(), pa.string()], lambda n: (n // 7, f"{n % 7}")),
    "double": ([pa.float64()], lambda n: (float("nan") if n == 398 else n / 3 - 20,)),
    "time": ([pa.timestamp("us", tz="UTC")], lambda n: (n,)),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("kind", SEQUENCES)
@pytest.mark.parametrize("seed", range(3))
def test_changes_in_any_order_of_micro_batches_leave_what_their_sequence_says(
    tmp_path: Path, kind: str, seed: int
) -> None:
    kinds, sequence = SEQUENCES[kind]
    random = np.random.default_rng(seed)
    log = []
    for number in range(400):
        # Two changes now and then have one place in the order: the removal comes first.
        place = number - (number % 5 == 4)
        op = ["+U", "-U"][number % 5 == 3] if number % 5 >= 3 else random.choice(["+I", "-D"], p=[0.7, 0.3])
        key = number // 5 % 12 if number % 5 >= 3 else int(random.integers(0, 12))
        where = (key, key % 3 if number % 5 >= 3 else int(random.integers(0, 3)))
        log.append((*where, str(op), int(random.integers(-9, 9)), *(*sequence(place), None)[:2]))
    cities: dict[Any, Any] = {}
    orders: dict[Any, Any] = {}
    for k, user_key, op, v, *seq in log:
        live, by = op in ("+I", "+U"), tuple(seq)[: len(kinds)]
        cities[(k,)] = (v if live else None, by)
        orders[k, user_key] = (v if live else None, by)
    mixed = [log[place] for place in random.permutation(len(log))]

    for batch, start in enumerate(range(0, 400, 50)):
        sink = plan(tmp_path, [CITY, ORDERS], kinds, parallelism=1 + batch % 3)
        run(sink, batch, rows_of(mixed[start : start + 50], kinds))

    for name, expected in (("city", cities), ("orders", orders)):
        assert found(tmp_path, name) == {key: (v,) for key, (v, _) in expected.items() if v is not None}
        there = {key: by for key, (v, by) in expected.items() if v is not None}
        gone = {key: by for key, (v, by) in expected.items() if v is None}
        if kind not in ("time", "double"):
            assert found(tmp_path, f"{name}_sequence") == there
            assert found(tmp_path, f"{name}_removed") == gone
        assert found(tmp_path, f"{name}_sequence").keys() == there.keys()
        assert found(tmp_path, f"{name}_removed").keys() == gone.keys()


def test_a_tombstone_is_forgotten_after_its_time_and_what_is_there_is_not(tmp_path: Path) -> None:
    kinds = [pa.int64()]
    sink = plan(tmp_path, [CITY], kinds, tombstone_ttl=TTL)
    rows = [(1, 0, "+I", 1, 50, None), (2, 0, "-D", 1, 50, None), (3, 0, "-D", 1, 50, None)]
    run(sink, 0, rows_of(rows, kinds, time=0))

    run(sink, 1, rows_of([(key, 0, "+I", 9, 40, None) for key in (1, 2)], kinds, time=999))
    early = found(tmp_path, "city")
    run(sink, 2, rows_of([(key, 0, "+I", 9, 40, None) for key in (1, 2, 3)], kinds, time=1000))

    assert early == {(1,): (1,)}
    assert found(tmp_path, "city") == {(1,): (1,), (2,): (9,), (3,): (9,)}


def test_a_store_without_sequences_goes_on_and_its_rows_are_older_than_all_that_come(tmp_path: Path) -> None:
    kinds = [pa.int64()]
    before = plan(tmp_path, [CITY, ORDERS], kinds, ordered=False)
    run(before, 0, rows_of([(key, 0, "+I", 1, 50, None) for key in (1, 2)], kinds))

    after = plan(tmp_path, [CITY, ORDERS], kinds)
    run(after, 1, rows_of([(1, 0, "+I", 2, 40, None)], kinds))
    run(after, 2, rows_of([(1, 0, "+I", 3, 39, None)], kinds))

    assert found(tmp_path, "city") == {(1,): (2,), (2,): (1,)}
    assert found(tmp_path, "orders") == {(1, 0): (2,), (2, 0): (1,)}


def test_a_late_change_changes_nothing_over_restarts_of_a_query(stream: Any) -> None:
    stream.schema = "k long, at timestamp, part string, v long, w long, op string"
    at = pa.timestamp("us", tz="UTC")

    def rows(*given: tuple[Any, ...]) -> pa.Table:
        kinds = [pa.int64(), at, pa.string(), pa.int64(), pa.int64(), pa.string()]
        names = ["k", "at", "part", "v", "w", "op"]
        return pa.table(
            [pa.array(column, kind) for column, kind in zip(zip(*given, strict=True), kinds, strict=True)], names
        )

    states = [
        arrowstate.ValueStateDescriptor("last", pa.struct([("v", pa.int64()), ("w", pa.int64())])),
        arrowstate.MapStateDescriptor("by_part", pa.string(), pa.int64()),
        arrowstate.ReducingStateDescriptor("sum", pa.int64(), reduce="sum"),
    ]
    arguments = {
        "states": states,
        "columns": {"by_part": ["part", "v"], "sum": "v"},
        "operation": "op",
        "sequence": ["at", "w"],
        "on_error": "dead_letter",
    }
    stream.spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        stream.add(
            rows((1, 1000, "a", 10, 1, "+I"), (2, 1000, "a", 20, 1, "+I"), (3, 1000, "a", 30, 1, "+I")),
            rows((2, 2000, "a", 20, 1, "-D"), (1, 900, "a", 11, 9, "+I"), (1, 900, "b", 12, 9, "+I")),
        )
        stream.run(**arguments)
        # Key 1 is late, key 2 was removed later than this, key 3 is not late: the second column decides.
        stream.add(
            rows((1, 1000, "a", 13, 0, "+I"), (2, 1500, "a", 14, 1, "+I"), (3, 1000, "a", 15, 2, "+I")),
            rows((3, None, "a", 16, 3, "+I"), (1, 1000, "a", 17, 1, "-D")),
        )
        stream.run(parallelism=3, max_parallelism=192, **arguments)
    finally:
        stream.spark.conf.unset("spark.sql.session.timeZone")

    snapshot = arrowstate.open_store(stream.store).latest()

    def by_key(state: str, *names: str) -> dict[Any, Any]:
        return {
            tuple(row[name] for name in ("k", *names[:-1])): row[names[-1]]
            for row in snapshot.to_arrow(f"counter.{state}").to_pylist()
        }

    assert by_key("last", "v") == {(1,): 10, (3,): 15}
    assert by_key("last", "w") == {(1,): 1, (3,): 2}
    assert by_key("by_part", "by_part_key", "by_part") == {(1, "a"): 10, (1, "b"): 12, (3, "a"): 15}
    # A sum counts what comes late too.
    assert by_key("sum", "sum") == {(1,): 10 + 11 + 12 + 13 - 17, (2,): 14, (3,): 45}
    assert {key: at.microsecond for key, at in by_key("last_removed", "at").items()} == {(2,): 2000}
    # What is kept in the order of the rows of a micro-batch only is one argument away.
    stream.add(rows((1, 1, "a", 18, 0, "+I")))
    with pytest.raises(InvalidInputError, match="holds 'last_sequence', .* allow_non_restored_state=True"):
        stream.start(**arguments, late_changes="apply")
    stream.run(**arguments, late_changes="apply", allow_non_restored_state=True)
    snapshot = arrowstate.open_store(stream.store).latest()
    assert by_key("last", "v") == {(1,): 18, (3,): 15}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"late_changes": "drop"}, "late_changes must be 'ignore' or 'apply', got 'drop'"),
        ({"tombstone_ttl": TTL, "late_changes": "apply"}, "it needs a sequence, late changes that are ignored"),
        ({"tombstone_ttl": TTL, "sequence": None}, "it needs a sequence"),
        ({"tombstone_ttl": arrowstate.TimeToLive(1, clock="event_time")}, "'tombstones' expires by event time"),
        (
            {"states": [CITY, arrowstate.ValueStateDescriptor("City_removed", pa.int64())]},
            "under the name 'city_removed' the sequence of state 'city' is kept",
        ),
    ],
)
def test_an_order_that_cannot_be_kept_is_refused_at_the_call(stream: Any, change: dict[str, Any], message: str) -> None:
    stream.schema = "k long, city long, City_removed long, n long"
    (stream.folder / "in").mkdir()

    with pytest.raises(InvalidInputError, match=message):
        stream.start(**({"states": [CITY], "sequence": "n"} | change))

    assert not stream.store.exists()
