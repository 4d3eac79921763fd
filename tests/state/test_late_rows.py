"""Rows that have expired by event time as they are written: what is left does not depend on where batches are cut."""

import itertools
import random

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.state.expiry import Expiry
from stores import USER, backend_of, commit

BOTH = pa.struct([("n", pa.int64()), ("most", pa.int64())])
NEVER = arrowstate.TimeToLive(100, clock="event_time")
ONCE_MORE = arrowstate.TimeToLive(100, clock="event_time", visibility="return_until_cleaned_up")


def none_at_a_multiple_of_three(old, new):
    return old + new if (old + new) % 3 else None


def folds(ttl):
    reducing, aggregating = arrowstate.ReducingStateDescriptor, arrowstate.AggregatingStateDescriptor
    return {
        "sum": reducing("s", pa.int64(), reduce="sum", ttl=ttl),
        "count": reducing("s", pa.int64(), reduce="count", ttl=ttl),
        "first": reducing("s", pa.int64(), reduce="first", ttl=ttl),
        "callable": reducing("s", pa.int64(), reduce=none_at_a_multiple_of_three, ttl=ttl),
        "struct": reducing("s", BOTH, reduce={"n": "count", "most": "max"}, ttl=ttl),
        "mean": aggregating("s", pa.int64(), aggregate="mean", ttl=ttl),
        "list": arrowstate.ListStateDescriptor("s", pa.int64(), ttl=ttl),
        "value": arrowstate.ValueStateDescriptor("s", pa.int64(), ttl=ttl),
    }


def stored_rows(backend, descriptor):
    runs = backend.state(descriptor).freeze().runs
    rows = [row for run in runs for batch in run.live_batches() for row in batch.to_pylist()]
    return sorted(map(repr, rows))


def seen_after(rows, cuts, descriptor, kind):
    """Write rows batch by batch while event time advances; return what reads show then, and what is stored."""
    backend = backend_of(USER)
    state = backend.state(descriptor)
    write = state.update_batch if kind == "value" else state.add_batch
    seen = []
    for number, watermark in enumerate((100, 200, 260)):
        backend.advance_watermark(watermark)
        borders = [0, *cuts[number], len(rows[number])]
        for start, end in itertools.pairwise(borders):
            keys, values, times = ([row[n] for row in rows[number][start:end]] for n in range(3))
            write(keys, pa.array(values, BOTH if kind == "struct" else pa.int64()), timestamps=times)
        if number != 1:
            seen.append(state.get_batch(list("abcd")).to_pylist())
        seen.append(stored_rows(backend, descriptor))
    return seen


@pytest.mark.parametrize("kind", folds(None))
@pytest.mark.parametrize("ttl", [NEVER, ONCE_MORE], ids=["never", "once more"])
@pytest.mark.parametrize("seed", range(4))
def test_batches_of_rows_that_come_too_late_leave_what_batches_of_one_row_leave(monkeypatch, kind, ttl, seed):
    # A merge takes away what has expired, and it depends on the number of batches when there is one.
    monkeypatch.setattr(Expiry, "settle", lambda _: None)
    chance = random.Random(seed)

    def value():
        if kind != "list" and chance.random() < 0.15:
            return None
        number = chance.randint(1, 9)
        return {"n": number, "most": chance.choice([number, None])} if kind == "struct" else number

    rows = [
        [(chance.choice("abcd"), value(), chance.choice([0, 60, 99, 100, 130, 159, 160, 161, 300])) for _ in range(30)]
        for _ in range(3)
    ]
    cuts = [sorted(chance.sample(range(1, 30), chance.randint(0, 4))) for _ in range(3)]
    descriptor = folds(ttl)[kind]

    one_by_one = seen_after(rows, [list(range(1, 30))] * 3, descriptor, kind)

    assert seen_after(rows, cuts, descriptor, kind) == one_by_one


@pytest.mark.parametrize("reduce", ["sum", lambda old, new: old + new], ids=["sum", "callable"])
@pytest.mark.parametrize("cut", [1, 3])
def test_a_row_without_a_known_time_expires_with_the_late_row_that_is_added_to_it(tmp_path, reduce, cut):
    plain = arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce=reduce)
    timed = arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce=reduce, ttl=NEVER)
    before = backend_of(USER)
    before.state(plain).add_batch(["a", "b"], [1, 1])
    store = arrowstate.open_store(tmp_path, create=True)
    commit(store, {"op": [before]})
    backend = store.latest().restore("op")
    state = backend.state(timed)
    backend.advance_watermark(1000)

    for start in range(0, 6, cut):
        keys, values, times = list("aaabbb"), [2, 4, 8] * 2, [500, 950, 960, 950, 500, 960]
        state.add_batch(keys[start:][:cut], values[start:][:cut], timestamps=times[start:][:cut])

    assert state.get_batch(["a", "b"]).to_pylist() == [12, 15]
