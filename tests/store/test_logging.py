"""What an operator sees in the log: an event by the logger of its room, with fields, and nothing to worry about."""

import logging

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.storage.retries import Retries, RetryBudget, RetryClock
from arrowstate.table.merging import MergePolicy
from stores import backend_of, commit

CLICKS = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")


@pytest.fixture
def records(caplog):
    caplog.set_level(logging.DEBUG, logger="arrowstate")

    def of(room, level):
        return [record for record in caplog.records if (record.name, record.levelno) == (f"arrowstate.{room}", level)]

    return of


@pytest.fixture
def backend(tmp_path):
    return backend_of(
        pa.schema([("user", pa.int64())]),
        memory_budget_bytes=10_000,
        spill_dir=tmp_path / "spilled",
        merge_policy=MergePolicy(),
    )


def run(store, backend, checkpoints=3):
    clicks = backend.state(CLICKS)
    with store.writer() as writer:
        for number in range(checkpoints):
            keys = pa.array(range(1000 * number, 1000 * number + 1500))
            clicks.add_batch(keys, pa.array([1] * 1500))
            writer.checkpoint({"counter": [backend]})


def test_a_healthy_run_says_what_it_does_and_warns_of_nothing(tmp_path, backend, records, caplog):
    (tmp_path / "spilled").mkdir()
    store = arrowstate.open_store(tmp_path / "store", create=True)

    run(store, backend)
    store.latest().restore("counter")
    report = store.collect(arrowstate.RetentionPolicy(count=1)).apply()

    fence, *commits = records("log", logging.INFO)
    assert (fence.kind, fence.log_entry, fence.writer_epoch, fence.store) == (
        "fence",
        "log/00000000000000000001.json",
        1,
        store.url,
    )
    assert [(record.kind, record.checkpoint_id, record.log_entry[-7:]) for record in commits] == [
        ("checkpoint", 1, "02.json"),
        ("checkpoint", 2, "03.json"),
        ("checkpoint", 3, "04.json"),
    ]
    assert "checkpoint 3 committed, " in commits[-1].getMessage()
    [restored] = records("state", logging.DEBUG)
    assert (restored.operator, restored.checkpoint_id, restored.rows) == ("counter", 3, 3500)
    [collected] = records("upkeep", logging.INFO)
    assert (collected.store, collected.deleted, collected.spared) == (store.url, len(report.deleted), 0)
    spilled = [record for record in records("table", logging.DEBUG) if hasattr(record, "folder")]
    assert spilled
    assert {record.folder for record in spilled} == {str(tmp_path / "spilled")}
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_merges_are_said(tmp_path, records):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.int64())]), max_parallelism=128)
    clicks = backend.state(CLICKS)

    for number in range(40):
        clicks.add_batch(pa.array(range(100 * number, 100 * number + 100)), pa.array([1] * 100))

    merges = [record for record in records("table", logging.DEBUG) if hasattr(record, "runs")]
    assert merges
    assert all(record.runs >= 2 for record in merges)


def test_a_compaction_is_said(tmp_path, records):
    store = arrowstate.open_store(tmp_path, create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.int64())]), max_parallelism=128)
    run(store, backend)

    report = store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.01, min_bytes=0)).apply()

    [said] = records("upkeep", logging.INFO)
    assert report.entry is not None
    assert (said.store, said.merged, said.dropped) == (store.url, 1, 0)


def test_a_new_state_named_almost_as_a_restored_one_is_said_once(tmp_path, backend, records):
    (tmp_path / "spilled").mkdir()
    store = arrowstate.open_store(tmp_path / "store", create=True)
    offsets = arrowstate.OperatorListStateDescriptor("offsets", pa.int64())
    own = arrowstate.OperatorStateBackend()
    own.state(offsets).add(1)
    backend.state(CLICKS)
    snapshot = commit(store, {"counter": [backend]}, operator_states={"counter": [own]})
    assert records("state", logging.INFO) == []

    keyed, own = snapshot.restore("counter"), snapshot.restore_operator_state("counter")
    for _ in range(2):
        keyed.state(arrowstate.ReducingStateDescriptor("cliks", pa.int64(), reduce="sum"))
        own.state(arrowstate.OperatorListStateDescriptor("offset", pa.int64()))

    said = records("state", logging.INFO)
    assert [(record.state, record.closest) for record in said] == [("cliks", "clicks"), ("offset", "offsets")]
    assert "the state 'cliks' is new and starts empty" in said[0].getMessage()
    assert keyed.state_names == ("clicks", "cliks")


def test_a_new_state_beside_restored_ones_that_are_asked_for_or_named_otherwise_is_not_said(tmp_path, records):
    store = arrowstate.open_store(tmp_path, create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.int64())]), max_parallelism=128)
    run(store, backend, checkpoints=1)

    asked = store.latest().restore("counter")
    asked.state(CLICKS)
    asked.state(arrowstate.ReducingStateDescriptor("clicks_2", pa.int64(), reduce="sum"))
    store.latest().restore("counter").state(arrowstate.ValueStateDescriptor("country", pa.string()))

    assert records("state", logging.INFO) == []


def test_a_request_that_is_repeated_is_said_with_its_error(records):
    retries = Retries(RetryBudget(attempts=2), RetryClock(now=lambda: 0.0, sleep=lambda _: None, chance=lambda: 0.5))

    assert retries.again(TimeoutError("no answer"))
    assert not retries.again(TimeoutError("no answer"))

    [said] = records("storage", logging.DEBUG)
    assert (said.attempt, said.delay_ms, said.error) == (2, 50, "TimeoutError('no answer')")
