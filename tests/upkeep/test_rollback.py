"""Going back to an older checkpoint: its content under a new id, writers fenced, all or nothing under faults."""

import itertools

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import ArrowStateError, CheckpointNotFoundError, CommitUnknownError, FencedError
from arrowstate.store import StateStore
from arrowstate.testing.faults import Crashed, Fault, FaultyStorage, PlannedFaults
from stores import commit

KEY = pa.schema([("n", pa.int64())])
VALUE = arrowstate.ValueStateDescriptor("v", pa.int64())


def fill(url):
    """Three checkpoints of two subtasks with a value, timers and operator state; the writer is returned open."""
    store = arrowstate.open_store(url, create=True)
    ranges = (arrowstate.KeyGroupRange(0, 1), arrowstate.KeyGroupRange(2, 3))
    backends = [arrowstate.KeyedStateBackend(key=KEY, max_parallelism=4, key_groups=own) for own in ranges]
    numbers = pa.array(range(200), pa.int64())
    groups = arrowstate.key_groups(numbers, 4).to_numpy()
    source = arrowstate.OperatorStateBackend()
    offsets = source.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64()))
    writer = store.writer()
    for number in range(3):
        for backend, own in zip(backends, (groups < 2, groups >= 2), strict=True):
            mine = numbers.filter(pa.array(own))
            backend.state(VALUE).update_batch(mine, pa.array([number] * len(mine), pa.int64()))
            backend.timers("t").register_batch(mine.slice(number, 1), [1000 + number])
        offsets.add(number)
        writer.checkpoint(
            {"op": backends}, operator_states={"source": [source]}, properties={"offset": number}, watermark=number
        )
    return store, writer, backends


def content_of(snapshot):
    """All that a checkpoint says, but for its id and its times."""
    rows = {name: sorted(map(str, snapshot.to_arrow(name).to_pylist())) for name in snapshot.states()}
    offsets = snapshot.operator_state("source", "offsets").to_pylist()
    return rows, offsets, snapshot.properties, snapshot.watermark


def test_the_newest_checkpoint_has_what_the_older_one_has():
    store, writer, backends = fill("memory://rollback-newest")
    files = set(store.storage.list("data/"))
    before = content_of(store.snapshot(1))

    back = store.rollback(1, comment="wrong since")

    assert back.checkpoint_id == store.latest().checkpoint_id == 4
    assert content_of(back) == before
    assert set(store.storage.list("data/")) == files
    assert store.verify(deep=True).problems == []
    with pytest.raises(FencedError):
        writer.checkpoint({"op": backends}, allow_dropped_state=True)
    # What was given up can still be read, and be gone back to.
    assert store.diff(3, 4).states[0].updated == 200
    assert content_of(store.rollback(3)) == content_of(store.snapshot(3))


def test_a_job_goes_on_from_there_and_a_collection_keeps_what_it_needs():
    store, _, _ = fill("memory://rollback-goes-on")
    back = store.rollback(1)
    expected = content_of(back)

    store.collect(arrowstate.RetentionPolicy(count=1), grace_ms=0, allow_short_grace=True).apply()
    assert content_of(store.latest()) == expected
    restored = store.latest().restore("op", parallelism=1)
    restored.state(VALUE).update_batch([0], [77])
    newest = commit(store, {"op": [restored]}, allow_dropped_state=True)
    assert newest.lookup("op.v", [0])["v"].to_pylist() == [77]
    assert store.verify(deep=True).problems == []


def test_a_checkpoint_that_is_not_there_changes_nothing():
    store, writer, backends = fill("memory://rollback-unknown")
    before = sorted(store.storage.list(""))

    with pytest.raises(CheckpointNotFoundError, match="it has 1, 2, 3"):
        store.rollback(9)

    assert sorted(store.storage.list("")) == before
    assert writer.checkpoint({"op": backends}, allow_dropped_state=True).checkpoint_id == 4


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_whatever_call_fails_the_store_has_the_one_or_the_other(fault):
    for number in itertools.count(1):
        store, _, _ = fill(f"memory://rollback-{fault.name}-{number}")
        older, newest = content_of(store.snapshot(1)), content_of(store.latest())
        faulty = FaultyStorage(store.storage, PlannedFaults({number: fault}))
        done = failed = False
        try:
            StateStore(faulty, store.store_id).rollback(1)
            done = True
        except Crashed:
            pass
        except CommitUnknownError:
            pass
        except ArrowStateError:
            failed = True

        found = content_of(arrowstate.open_store(store.url).latest())
        assert found in (older, newest)
        assert not done or found == older
        assert not failed or found == newest
        assert store.verify(deep=True).problems == []
        assert content_of(store.rollback(1)) == older
        if number > faulty.calls:
            break
    assert number > 8
