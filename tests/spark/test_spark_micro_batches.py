"""Tasks and commits of micro-batches, called as Spark would call them: what counts once, and who may commit."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
from arrowstate.errors import (
    CheckpointNotFoundError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    KeyTypeError,
    NotFoundError,
    NullKeyError,
    QueryConflictError,
)
from arrowstate.functions.dead_letters import dead_letter_table
from arrowstate.log.boundary import path_of
from arrowstate.spark import stream_writer
from arrowstate.spark.micro_batches import BatchRecord, MicroBatch
from arrowstate.spark.pyspark_internals import of_kind
from arrowstate.spark.read.plans import plan_from_options
from arrowstate.spark.stream_writer import METRICS
from arrowstate.spark.workers import own_python
from sink_batches import fold


def test_micro_batches_add_up_to_a_recomputation(sink: Any, make_rows: Any) -> None:
    batches = [make_rows(seed) for seed in range(6)]

    for batch_id, rows in enumerate(batches):
        sink.run(batch_id, rows)

    assert sink.stored() == sink.expected(*batches)


def test_a_checkpoint_records_its_micro_batch(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    entry = sink.run(1, make_rows(1))

    record = BatchRecord.of(entry)
    assert record == BatchRecord("query-a", "run-1", 1, metrics=record.metrics)
    assert (record.metrics["rows"], record.metrics["state_bytes"] > record.metrics["bytes_written"] > 0) == (1000, True)
    assert entry.properties["spark"]["batch_id"] == 1


def test_a_run_takes_the_fence_once(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    sink.run(1, make_rows(1))
    entry = sink.but(run_id="run-2").run(2, make_rows(2))

    # Two fences and three checkpoints.
    assert (entry.number, entry.writer_epoch) == (5, 2)


def test_a_repeated_micro_batch_is_passed_over(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    before = sink.files()

    entry = sink.but(run_id="run-2").run(0, make_rows(0))

    assert entry is None
    # The new run has taken the fence, and that is all.
    assert sink.files() - before == {"log/00000000000000000003.json"}
    assert sink.stored() == sink.expected(make_rows(0))


def test_a_commit_that_is_repeated_changes_nothing(sink: Any, make_rows: Any) -> None:
    results = sink.fold(0, make_rows(0))
    first = sink.commit(0, results)

    second = sink.commit(0, results)

    assert (first.number, second) == (2, None)
    assert sink.stored() == sink.expected(make_rows(0))


def test_any_attempt_of_a_task_will_do(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    first, second = sink.fold(1, make_rows(1)), sink.fold(1, make_rows(1))

    sink.commit(1, [first[0], second[1]])

    assert set(first[0].paths).isdisjoint(second[0].paths)
    assert sink.stored() == sink.expected(make_rows(0), make_rows(1))


def test_another_query_is_refused_before_its_tasks(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))

    with pytest.raises(QueryConflictError, match="belongs to query query-a; query query-b may not write"):
        sink.but(query_id="query-b").fold(0, make_rows(1))

    assert sink.stored() == sink.expected(make_rows(0))


def test_another_query_is_refused_by_the_commit(sink: Any, make_rows: Any) -> None:
    late = sink.but(query_id="query-b", run_id="run-b")
    results = late.fold(0, make_rows(1))
    sink.run(0, make_rows(0))

    with pytest.raises(QueryConflictError):
        late.commit(0, results)

    assert sink.stored() == sink.expected(make_rows(0))


def test_a_missing_micro_batch_is_noticed(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))

    with pytest.raises(QueryConflictError, match="has committed batch 0 and expects batch 1, got batch 2"):
        sink.fold(2, make_rows(1))


def test_a_store_that_was_emptied_is_noticed(sink: Any, make_rows: Any) -> None:
    with pytest.raises(QueryConflictError, match="expects batch 0, got batch 7"):
        sink.fold(7, make_rows(0))


def test_a_run_that_was_superseded_is_fenced(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    zombie = sink.fold(1, make_rows(1))
    sink.but(run_id="run-2").run(1, make_rows(1))

    with pytest.raises(FencedError, match=r"epoch 1\) was fenced by a newer one \(epoch 2\)"):
        sink.commit(1, zombie)
    with pytest.raises(FencedError):
        sink.run(2, make_rows(2))

    assert sink.stored() == sink.expected(make_rows(0), make_rows(1))


def test_a_run_that_began_with_a_repetition_is_fenced_too(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    second, third = sink.but(run_id="run-2"), sink.but(run_id="run-3")
    second.run(0, make_rows(0))
    third.run(0, make_rows(0))

    with pytest.raises(FencedError, match=r"epoch 2\) was fenced by a newer one \(epoch 3\)"):
        second.run(1, make_rows(1))
    third.run(1, make_rows(1))

    assert sink.stored() == sink.expected(make_rows(0), make_rows(1))


def test_a_fence_alone_stops_the_older_run(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    zombie = sink.fold(1, make_rows(1))
    arrowstate.open_store(sink.store).writer()

    with pytest.raises(FencedError):
        sink.commit(1, zombie)

    assert sink.stored() == sink.expected(make_rows(0))


def test_state_that_changed_under_the_tasks_is_not_overwritten(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    restarted = sink.but(run_id="run-2")
    results = restarted.fold(1, make_rows(1))
    store = arrowstate.open_store(sink.store)
    backends = [store.latest().restore("counter", parallelism=2, subtask=number) for number in range(2)]
    with store.writer() as writer:
        writer.checkpoint({"counter": backends})

    with pytest.raises(FencedError):
        restarted.commit(1, results)

    assert store.latest().entry.properties == {}


def test_a_checkpoint_by_other_means_does_not_hide_the_micro_batches(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    store = arrowstate.open_store(sink.store)
    backends = [store.latest().restore("counter", parallelism=2, subtask=number) for number in range(2)]
    with store.writer() as writer:
        writer.checkpoint({"counter": backends})
    restarted = sink.but(run_id="run-2")

    repeated = restarted.run(0, make_rows(0))
    restarted.run(1, make_rows(1))

    assert repeated is None
    assert sink.stored() == sink.expected(make_rows(0), make_rows(1))


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism"), [(3, 128), (1, 128), (2, 192), (3, 192), (5, 7), (4, 32768)]
)
def test_state_follows_a_change_of_parallelism(
    sink: Any, make_rows: Any, parallelism: int, max_parallelism: int
) -> None:
    batches = [make_rows(seed) for seed in range(4)]
    rescaled = sink.but(run_id="run-2", parallelism=parallelism, max_parallelism=max_parallelism)

    sink.run(0, batches[0])
    sink.run(1, batches[1])
    rescaled.run(2, batches[2])
    entry = rescaled.run(3, batches[3])

    assert sink.stored() == sink.expected(*batches)
    assert len(entry.operators[0].subtasks) == parallelism
    assert entry.operators[0].max_parallelism == max_parallelism


def test_a_subtask_without_rows_is_taken_over_unread(sink: Any, make_rows: Any) -> None:
    first = sink.run(0, make_rows(0))
    one_key = make_rows(1).slice(0, 1)

    entry = sink.run(1, one_key)

    kept = [new == old for new, old in zip(entry.operators[0].subtasks, first.operators[0].subtasks, strict=True)]
    assert sorted(kept) == [False, True]
    assert sink.stored() == sink.expected(make_rows(0), one_key)


def test_a_micro_batch_without_rows_is_committed(sink: Any, make_rows: Any) -> None:
    nothing = make_rows(0).slice(0, 0)

    entry = sink.run(0, nothing)
    sink.run(1, make_rows(1))

    assert entry.properties["spark"]["batch_id"] == 0
    assert sink.stored() == sink.expected(make_rows(1))


def test_a_state_may_be_added_later(sink: Any, make_rows: Any) -> None:
    largest = arrowstate.ReducingStateDescriptor("largest", pa.int64(), reduce="max")
    sink.run(0, make_rows(0))
    extended = sink.but(states=(*sink.states, largest), run_id="run-2")
    rows = make_rows(1)

    extended.run(1, rows.append_column("largest", rows["v"]))

    found = arrowstate.open_store(sink.store).latest().to_arrow("counter.largest")
    expected = rows.group_by("k").aggregate([("v", "max")])
    expected = expected.filter(expected["v_max"].is_valid())
    assert dict(zip(*found.select(["k", "largest"]).to_pydict().values(), strict=True)) == dict(
        zip(expected["k"].to_pylist(), expected["v_max"].to_pylist(), strict=True)
    )
    assert sink.stored() == sink.expected(make_rows(0), rows)


def test_a_null_clears_a_value_state_and_is_no_value_for_a_reducing_one(sink: Any) -> None:
    last = arrowstate.ValueStateDescriptor("last", pa.string())
    place = arrowstate.ValueStateDescriptor("place", pa.struct([("x", pa.int64()), ("y", pa.int64())]))
    total = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
    several = sink.but(states=(last, place, total))
    rows = {"k": [1, 2, 3], "last": ["a", "b", "c"], "x": [1, 2, 3], "y": [1, 2, 3], "total": [10, 20, None]}
    schema = pa.schema(
        [("k", pa.int64()), ("last", pa.string()), ("x", pa.int64()), ("y", pa.int64()), ("total", pa.int64())]
    )
    changes = {
        "k": [1, 2, 3],
        "last": [None, "B", "c"],
        "x": [None, None, 4],
        "y": [None, 5, None],
        "total": [None] * 3,
    }

    several.run(0, pa.table(rows, schema=schema))
    several.run(1, pa.table(changes | {"total": [None] * 3}, schema=schema))

    snapshot = arrowstate.open_store(sink.store).latest()
    tables = {name: snapshot.to_arrow(f"counter.{name}").sort_by("k") for name in ("last", "place", "total")}
    assert tables["last"].to_pylist() == [{"k": 2, "last": "B"}, {"k": 3, "last": "c"}]
    assert tables["place"].to_pylist() == [{"k": 2, "x": None, "y": 5}, {"k": 3, "x": 4, "y": None}]
    assert tables["total"].to_pylist() == [{"k": 1, "total": 10}, {"k": 2, "total": 20}]


def test_a_null_key_leaves_the_store_as_it_was(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    before = sink.files()
    rows = pa.table({"k": pa.array([5, None], pa.int64()), "n": [1, 1], "v": [1, 1]})

    with pytest.raises(NullKeyError, match="key column 'k' is null"):
        sink.but(parallelism=1).fold(1, rows)

    assert sink.files() == before


def test_a_key_of_another_type_is_refused(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    rows = make_rows(1)
    rows = rows.set_column(0, "k", rows["k"].cast(pa.int32()))

    with pytest.raises(KeyTypeError, match="keys must be k: int64, got k: int32"):
        sink.but(key=pa.int32()).fold(1, rows)


def test_a_store_with_other_operators_is_refused(sink: Any, make_rows: Any) -> None:
    store = arrowstate.open_store(sink.store, create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("id", pa.int64())]), max_parallelism=8)
    with store.writer() as writer:
        writer.checkpoint({"people": [backend]})

    with pytest.raises(InvalidInputError, match="holds the state of 'people'; a query needs a store of its own"):
        sink.run(0, make_rows(0))


def test_results_of_another_parallelism_are_refused(sink: Any, make_rows: Any) -> None:
    results = sink.fold(0, make_rows(0))

    with pytest.raises(InvalidInputError, match="cover the key groups 0 to 63 of 128"):
        sink.commit(0, results[:1])
    with pytest.raises(InvalidInputError, match="expected subtask 0 from key group 0"):
        sink.commit(0, results[::-1])


def test_a_state_that_may_go_is_gone_from_every_subtask(sink: Any, make_rows: Any) -> None:
    other = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")
    both = sink.but(states=[*sink.states, other])
    first, last = (make_rows(seed) for seed in (0, 2))
    both.run(0, first.append_column("w", first["v"]))

    # One of the subtasks has no rows.
    rows = make_rows(1).slice(0, 1)
    sink.but(dropped=["v"]).run(1, rows)

    latest = arrowstate.open_store(sink.store).latest()
    assert latest.states() == ["counter.totals"]
    assert sink.stored() == sink.expected(first, rows)
    both.run(2, last.append_column("w", last["v"]))
    again = arrowstate.open_store(sink.store).latest()
    assert again.sql("select sum(v) from counter.v").fetchall() == [(pc.sum(last["v"]).as_py(),)]
    assert again.verify(deep=True).problems == []


@pytest.mark.parametrize("options", [{"output": "out"}, {"operator": "counter", "readChangeFeed": "true"}])
def test_what_follows_a_store_waits_for_its_first_checkpoint(
    sink: Any, make_rows: Any, options: dict[str, str]
) -> None:
    options = {"path": str(sink.store), **options}
    arrowstate.open_store(sink.store, create=True)
    with pytest.raises(CheckpointNotFoundError):
        plan_from_options({**options, "waitSeconds": "0"})

    with ThreadPoolExecutor(1) as pool:
        planned = pool.submit(plan_from_options, {**options, "waitSeconds": "60"})
        sink.run(0, make_rows(0))

    if "output" in options:
        with pytest.raises(NotFoundError, match="no output table 'out' in checkpoint 1"):
            planned.result()
    else:
        assert planned.result().schema.names == ["k", "n", "v", "_change_type", "_checkpoint_id"]


def test_no_micro_batch_takes_the_number_of_a_log_entry_that_is_lost(sink: Any, make_rows: Any) -> None:
    sink.run(0, make_rows(0))
    lost = sink.run(1, make_rows(1))
    (sink.store / path_of(lost.number)).unlink()
    left = sink.files()

    with pytest.raises(CorruptDataError, match="accept_loss=True"), pytest.warns(RuntimeWarning, match="lost"):
        sink.run(1, make_rows(1))

    assert {name for name in sink.files() - left if name.startswith("log/")} == set()
    with pytest.warns(RuntimeWarning, match="lost"):
        arrowstate.open_store(sink.store).writer(accept_loss=True)
    sink.but(run_id="run-2").run(1, make_rows(1))
    assert sink.stored() == sink.expected(make_rows(0), make_rows(1))


def test_runs_are_merged_though_no_task_has_another_batch_to_go_on_with_a_merge(sink: Any) -> None:
    alone = sink.but(parallelism=1)
    rows = [
        pa.table({"k": range(first, first + 1500), "n": [1] * 1500, "v": [first] * 1500})
        for first in range(0, 45_000, 1500)
    ]

    for batch_id, part in enumerate(rows):
        alone.run(batch_id, part)

    (state,) = arrowstate.open_store(sink.store).latest().restore(alone.plan.uid)._states.values()
    assert (len(state), len(state.table.runs) <= 10) == (45_000, True)


def test_workers_run_the_python_at_hand_until_the_last_of_several_queries_has_started_its_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Context:
        master, pythonExec = "local[2]", "python3"  # noqa: N815

    class Session:
        _sc = Context()

    session: Any = Session()
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    one, other = own_python(session), own_python(session)

    found = []
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    found.append(session._sc.pythonExec)
    other.__exit__(None, None, None)
    found.append(session._sc.pythonExec)

    assert found == [sys.executable, "python3"]


def test_the_figures_that_a_query_holds_are_those_of_its_last_micro_batches(
    sink: Any, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Query:
        id = "query-a"
        lastProgress: Any = None  # noqa: N815

    monkeypatch.setattr(stream_writer, "_MOST_KNOWN", 2)
    start = stream_writer.QueryStart(str(sink.store), None, lambda _: lambda *_: None)
    query = of_kind(Query(), stream_writer._query_class(Query), _start=start, _known={})
    told = []

    for batch_id in range(5):
        sink.run(batch_id, make_rows(batch_id))
        Query.lastProgress = {"batchId": batch_id}
        told.append(query.lastProgress["observedMetrics"][METRICS]["rows"])

    assert told == [1000] * 5
    assert sorted(query._known) == [3, 4]


def test_a_key_of_another_type_sets_no_row_aside(sink: Any) -> None:
    key = pa.schema([("k", pa.int64())])
    plan = replace(sink.plan, dead_letters=dead_letter_table("dead", key, key), row=[0])
    rows = pa.table({"k": pa.array([1, 2], pa.int32()), "n": [1, 1], "v": [1, 1]})

    with pytest.raises(KeyTypeError, match="keys must be k: int64, got int32"):
        fold(plan, MicroBatch("query-a", "run-1", 0), rows)
