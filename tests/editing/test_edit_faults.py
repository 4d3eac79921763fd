"""An edit and a purge with a fault at each of their storage calls: the store has the one or the other."""

import warnings

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import ArrowStateError, CommitUnknownError
from arrowstate.store import StateStore
from arrowstate.testing.faults import Crashed, Fault, FaultyStorage, PlannedFaults
from every_kind import small_files
from long_form import TURN, short_or_long

KEY = pa.schema([("n", pa.int64())])
VALUE = arrowstate.ValueStateDescriptor("v", pa.int64())
OFFSETS = arrowstate.OperatorListStateDescriptor("offsets", pa.int64())
FAULTS = [Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER]
COMMITTED = ("data/", "manifests/", "tags/", "leases/", "savepoints/")


def fill(url):
    """Two checkpoints of two subtasks, whose runs have files and dead rows."""
    store = arrowstate.open_store(url, create=True)
    ranges = (arrowstate.KeyGroupRange(0, 1), arrowstate.KeyGroupRange(2, 3))
    backends = [arrowstate.KeyedStateBackend(key=KEY, max_parallelism=4, key_groups=own) for own in ranges]
    numbers = pa.array(range(40), pa.int64())
    groups = arrowstate.key_groups(numbers, 4).to_numpy()
    source = arrowstate.OperatorStateBackend()
    source.state(OFFSETS).add_all(range(20))
    with store.writer() as writer:
        for number in range(2):
            for backend, own in zip(backends, (groups < 2, groups >= 2), strict=True):
                mine = numbers.filter(pa.array(own)).slice(number)
                backend.state(VALUE).update_batch(mine, pa.array([number] * len(mine), pa.int64()))
            writer.checkpoint({"op": backends}, operator_states={"source": [source]}, properties={"offset": number})
    return store


def content_of(snapshot):
    rows = sorted(map(tuple, (row.values() for row in snapshot.to_arrow("op.v").to_pylist())))
    return rows, snapshot.operator_state("source", "offsets").column("offsets").to_pylist(), snapshot.properties


def change(edit):
    edit.update("op.v", set={"v": "v + 100"}, where="n < 5")
    edit.delete("op.v", where="n > 30")
    edit.delete("source.offsets", where="offsets > 3")
    edit.properties["offset"] = 0


def committed(store):
    with store.edit() as edit:
        change(edit)
        edit.commit()


def purged(store):
    with store.edit() as edit:
        change(edit)
        edit.purge()


def saved(store):
    with store.edit() as edit:
        change(edit)
        edit.commit(to="fixed")


def files_of(store):
    return sorted(path for path in store.storage.list("") if path.startswith(COMMITTED))


def numbers_of(do, url):
    """The calls at which there is a fault: in the short form some of them, other ones each time."""
    store = fill(url)
    counting = FaultyStorage(store.storage, PlannedFaults({}))
    do(StateStore(counting, store.store_id))
    assert counting.calls > 20
    step = short_or_long(23, 1)
    return range(1 + TURN % step, counting.calls + 1, step)


@pytest.mark.filterwarnings("ignore:no lease holds", "ignore:the lease on checkpoint")
@pytest.mark.turns(4)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("do", [committed, purged, saved])
def test_whatever_call_fails_the_store_has_the_one_or_the_other(do, fault):
    place = f"memory://edit-fault-{do.__name__}-{fault.name}"
    with small_files(), warnings.catch_warnings():
        model = fill(f"{place}-model")
        before = content_of(model.latest())
        committed(model)
        after = content_of(model.latest())
        for number in numbers_of(do, f"{place}-calls"):
            store = fill(f"{place}-{number}")
            had = files_of(store)
            faulty = FaultyStorage(store.storage, PlannedFaults({number: fault}))
            done = failed = False
            try:
                do(StateStore(faulty, store.store_id))
                done = True
            except (Crashed, CommitUnknownError):
                pass
            except ArrowStateError:
                failed = True

            store = arrowstate.open_store(store.url)
            found = content_of(store.latest())
            assert found in (before, after), number
            if do is saved:
                assert found == before
            elif done:
                assert found == after, number
            elif failed and do is committed:
                assert found == before, number
                # A lease that could not be taken back ends by itself.
                assert [path for path in files_of(store) if not path.startswith("leases/")] == had, number
            assert store.verify(deep=True).problems == [], number
            assert set(store.tags().values()) <= {2}
            check_what_is_left(store, number)


def check_what_is_left(store, number):
    """What a crash left is named by nothing and goes by a collection; and the store can be edited."""
    committed(store)
    expected = content_of(store.latest())
    for tag in store.tags():
        store.untag(tag)
    for path in store.storage.list("leases/"):
        store.storage.delete(path)
    unfinished = set(store.storage.list("savepoints/"))
    collection = store.collect(grace_ms=0, allow_short_grace=True)
    assert set(collection.plan.foreign) <= unfinished, number
    collection.apply()
    store.collect(grace_ms=0, allow_short_grace=True).apply()
    assert content_of(store.latest()) == expected
    assert store.verify(deep=True).problems == [], number
