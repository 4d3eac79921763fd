"""Dead letters: rows that nothing can take are set aside once each, and the state is as if they had never come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
from arrowstate.errors import IncompatibleStateError, InvalidInputError, ProcessElementError, StorageFullError
from arrowstate.functions.dead_letters import is_of_function, tried

HIGHEST = 2**63 - 1
SUMS = arrowstate.ReducingStateDescriptor(
    "sums", pa.struct([("id", pa.int64()), ("v", pa.int64())]), reduce={"id": "count", "v": "sum"}
)
ORDERS = arrowstate.MapStateDescriptor("orders", pa.int64(), pa.int64())
CHANGES = "seq long, op string, id long, k long, v long"
COLUMNS = CHANGES.replace(" long", "").replace(" string", "").split(", ")


def rows_of(*rows: tuple[Any, ...]) -> pa.Table:
    kinds = [pa.string() if name == "op" else pa.int64() for name in COLUMNS]
    return pa.table(
        [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)], COLUMNS
    )


def dead_in(store: Path, name: str = "counter_dead_letters") -> list[dict[str, Any]]:
    """The dead letters of the newest checkpoint, in an order of their own."""
    table = arrowstate.open_store(store).latest().operator_state(name, "rows")
    rows = [row["rows"] for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["batch_id"], str(row["row"])))


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_what_fails_alone_is_found_and_the_rest_is_done_in_order(seed: int, by_row: bool) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 60))
    bad = set(np.flatnonzero(random.random(count) < random.choice([0, 0.05, 0.5, 1])).tolist())
    done: list[int] = []

    def attempt(start: int, end: int) -> None:
        wrong = next((number for number in range(start, end) if number in bad), None)
        if wrong is not None:
            raise ProcessElementError(wrong - start, "bad") if by_row else InvalidInputError("bad")
        done.extend(range(start, end))

    failed = tried(count, attempt, is_of_function, by_row=by_row)

    assert set(failed) == bad
    assert done == [number for number in range(count) if number not in bad]


def test_a_part_that_must_hold_what_fails_is_divided_before_it_is_tried() -> None:
    parts: list[tuple[int, int]] = []

    def attempt(start: int, end: int) -> None:
        parts.append((start, end))
        if end == 64:
            raise InvalidInputError("bad")

    failed = tried(64, attempt, is_of_function)

    assert list(failed) == [63]
    assert parts == [(0, 64), (0, 32), (32, 48), (48, 56), (56, 60), (60, 62), (62, 63), (63, 64)]


def test_what_is_not_of_the_rows_ends_the_query() -> None:
    full = ProcessElementError(0, "full")
    full.__cause__ = StorageFullError("data/1.arrow", "No space left on device")

    def attempt(start: int, end: int) -> None:
        raise full

    with pytest.raises(ProcessElementError, match="full"):
        tried(3, attempt, is_of_function, by_row=True)


def test_a_sink_sets_aside_what_does_not_fit_over_a_restart(stream: Any) -> None:
    from arrowstate.spark import register

    stream.schema = CHANGES
    good = [rows_of(*((n, "+I", n, n % 7, n) for n in range(start, start + 40))) for start in (0, 40, 80)]
    first = rows_of(
        (1, "+I", 1, None, 1),  # no key
        (2, "t", 900, 1, 1),  # no operation
        (3, None, 901, 1, 1),
        (4, "u", 902, 1, 1),  # sums need the old value too
        (None, "+I", 903, 1, 1),
        (6, "+I", None, 1, 1),  # no user key
        (7, "-D", 3, 3, 3),
    )
    # Together they do not overflow, so the second one of the key is what does not fit.
    second = rows_of((200, "+I", 904, 50, HIGHEST - 5), (201, "+I", 905, 50, 7), (202, "+I", 906, 50, -7))
    arguments = {
        "states": [ORDERS, SUMS],
        "columns": {"orders": ["id", "v"]},
        "operation": "op",
        "sequence": "seq",
        "on_error": "dead_letter",
    }
    stream.add(pa.concat_tables([good[0], first]), pa.concat_tables([good[1], second]))
    stream.run(**arguments)
    # Spark has not noted that it finished the last batch, as after a crash between the two commits.
    for name in ("1", ".1.crc"):
        (stream.checkpoint / "commits" / name).unlink(missing_ok=True)
    stream.add(pa.concat_tables([good[2], rows_of((300, "+I", 907, None, 1))]))
    stream.run(parallelism=3, max_parallelism=192, **arguments)
    stream.add(rows_of((301, "+I", 908, 5, 5)))
    # What was set aside stays where a run sets nothing aside.
    query = stream.run(**(arguments | {"on_error": "fail"}))

    dead = dead_in(stream.store)
    assert [(row["batch_id"], row["row"]["id"], row["key"]["k"], row["error"], row["reason"]) for row in dead] == [
        (0, 1, None, "NullKeyError", "key column 'k' is null"),
        (0, 900, 1, "InvalidInputError", "column 'op' holds 't', which is no operation"),
        (0, 901, 1, "InvalidInputError", "column 'op' holds None, which is no operation"),
        (0, 902, 1, "InvalidInputError", "state 'sums' takes old values back, and the operation 'u' brings none"),
        (0, None, 1, "NullKeyError", "user key 'id' of state 'orders' is null"),
        (0, 903, 1, "InvalidInputError", "sequence column 'seq' is null"),
        (
            1,
            905,
            50,
            "ValueOverflowError",
            "sum of state 'sums.v' does not fit int64; declare the state with a wider type",
        ),
        (2, 907, None, "NullKeyError", "key column 'k' is null"),
    ]
    expected = {n: n for n in range(120) if n != 3} | {904: HIGHEST - 5, 906: -7, 908: 5}
    snapshot = arrowstate.open_store(stream.store).latest()
    orders = snapshot.to_arrow("counter.orders").to_pylist()
    assert {row["orders_key"]: row["orders"] for row in orders} == expected
    sums = snapshot.to_arrow("counter.sums").to_pylist()
    assert sum(row["v"] for row in sums) == sum(expected.values())
    assert sum(row["id"] for row in sums) == len(expected)
    assert [row["dead_rows"] for row in arrowstate.spark.progress(stream.store).to_pylist()] == [6, 1, 1, 0]
    assert query.lastProgress.observedMetrics["arrowstate"].dead_rows == 0

    # They are a table and a stream like every output, in the types of the stream.
    register(stream.spark)
    reader = stream.spark.read.format("arrowstate").option("output", "counter_dead_letters").load(str(stream.store))
    again = reader.select("row.*")
    assert again.schema.simpleString() == "struct<seq:bigint,op:string,id:bigint,k:bigint,v:bigint>"
    assert again.where("id = 905").collect()[0].asDict() == {"seq": 201, "op": "+I", "id": 905, "k": 50, "v": 7}


class Roots(arrowstate.KeyedProcessFunction):
    """Sums the square roots of each key and emits them; negative numbers raise, and 13 does not fit."""

    def open(self, context: Any) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
        self.seen = context.state(arrowstate.ListStateDescriptor("seen", pa.int64()))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.seen.add(value.v)
        if value.v < 0:
            raise ValueError(f"{value.v} has no root")
        self.total.add("thirteen" if value.v == 13 else value.v)
        out.collect((value.k, self.total.get()))


class Whole(arrowstate.BatchFunction):
    """Sums each key; a batch with a negative number raises after it has been counted."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> pa.RecordBatch:
        self.total.add_batch(batch["k"], batch["v"])
        if pc.min(batch["v"]).as_py() < 0:
            raise ValueError("negative")
        keys = batch["k"].unique()
        return pa.record_batch({"k": keys, "total": self.total.get_batch(keys)})


def test_functions_that_raise_set_aside_the_row_or_the_key_over_a_restart(stream: Any) -> None:
    from arrowstate.spark import stateful, write_stream

    stream.schema = "k long, v long"
    files = [
        pa.table({"k": [1, 1, 2, 3, None, 3], "v": [1, -4, 2, 13, 5, 6]}),
        pa.table({"k": [1, 2, 2, 4], "v": [10, 20, -1, 30]}),
        pa.table({"k": [2, 4], "v": [100, -100]}),
    ]

    def run(parallelism: int) -> Any:
        frame = stream.frame()
        common = {"key": ["k"], "store": stream.store, "parallelism": parallelism, "on_error": "dead_letter"}
        emitting = {"output_schema": "k long, total long"}
        by_row = stateful(frame, operator=Roots(), uid="roots", output="changes", order_by=["v"], **common, **emitting)
        by_key = stateful(frame, operator=Whole(), uid="whole", dead_letters="aside", **common)
        writer = write_stream(by_row, by_key).option("checkpointLocation", str(stream.checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    stream.add(*files[:2])
    run(2)
    stream.add(files[2])
    query = run(3)

    # Two operators take the rows, which are read once.
    assert query.lastProgress.numInputRows == 2
    store = arrowstate.open_store(stream.store)
    rows = dead_in(stream.store, "roots_dead_letters")
    assert [(row["batch_id"], row["key"]["k"], row["row"]["v"], row["error"], row["reason"]) for row in rows] == [
        (0, 1, -4, "ValueError", "ValueError: -4 has no root"),
        (0, 3, 13, "ValueTypeError", rows[1]["reason"]),
        (0, None, 5, "NullKeyError", "key column 'k' is null"),
        (1, 2, -1, "ValueError", "ValueError: -1 has no root"),
        (2, 4, -100, "ValueError", "ValueError: -100 has no root"),
    ]
    assert "'thirteen'" in rows[1]["reason"]
    assert dict(store.sql("select k, total from roots.total").fetchall()) == {1: 11, 2: 122, 3: 6, 4: 30}
    assert sorted(store.sql("select seen from roots.seen").fetchall()) == [
        (1,),
        (2,),
        (6,),
        (10,),
        (20,),
        (30,),
        (100,),
    ]
    emitted = store.sql("select rows.k, rows.total from changes.rows").fetchall()
    assert sorted(emitted) == [(1, 1), (1, 11), (2, 2), (2, 22), (2, 122), (3, 6), (4, 30)]
    # Of a batch function all rows of the key that it raised on.
    by_key = [(row["batch_id"], row["key"]["k"], row["row"]["v"]) for row in dead_in(stream.store, "aside")]
    assert sorted(by_key, key=str) == [(0, 1, -4), (0, 1, 1), (0, None, 5), (1, 2, -1), (1, 2, 20), (2, 4, -100)]
    assert dict(store.sql("select k, total from whole.total").fetchall()) == {1: 10, 2: 102, 3: 19, 4: 30}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"on_error": "skip"}, InvalidInputError, "on_error must be 'fail' or 'dead_letter', got 'skip'"),
        ({"on_error": "fail", "dead_letters": "x"}, InvalidInputError, "dead_letters='x' needs on_error="),
        ({"dead_letters": "Counter"}, InvalidInputError, "needs another name than operator 'counter'"),
        ({"dead_letters": "a b"}, InvalidInputError, "a b"),
    ],
)
def test_dead_letters_that_have_no_place_are_refused_at_the_call(
    stream: Any, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    (stream.folder / "in").mkdir()

    with pytest.raises(error, match=message):
        stream.start(**({"on_error": "dead_letter"} | change))

    assert not stream.store.exists()


def test_dead_letters_of_other_columns_need_another_table(stream: Any, make_rows: Callable[..., pa.Table]) -> None:
    stream.add(make_rows(0, 10))
    stream.run(on_error="dead_letter")
    stream.schema = "k long, v long, n long, more string"

    with pytest.raises(IncompatibleStateError, match="name another output"):
        stream.start(on_error="dead_letter")
    stream.add(make_rows(1, 10))
    stream.run(on_error="dead_letter", dead_letters="wider")

    operators = arrowstate.open_store(stream.store).latest().entry.operators
    assert [operator.uid for operator in operators] == ["counter", "wider", "counter_dead_letters"]
    assert stream.stored() == stream.expected()
