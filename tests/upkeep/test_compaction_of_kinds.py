"""Every kind of state goes through a random history twice, with compactions and without, and ends up the same."""

import random

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.checkpoints.compaction import plan_compaction
from arrowstate.state.backend.restoring import restore_backend
from long_form import short_or_long
from stores import backend_of
from suites import Clock

# A null in a list leaves the hash alone, so keys of as many nulls more share theirs.
KEY = pa.schema([("k", pa.list_(pa.int64()))])
KEYS = [[number // 3, *[None] * (number % 3)] for number in range(60)]
SPACE = pa.schema([("space", pa.int32())])
TIGHT = arrowstate.CompactionPolicy(1.001, max_small_files=1, min_bytes=0)
POLICIES = [
    arrowstate.MergePolicy(fan_in=1000, max_dead_share=1.0, segment_bytes=500),
    arrowstate.MergePolicy(fan_in=4, first_tier_rows=20),
]


def descriptors(name, ttl):
    common = {"namespace": SPACE, "ttl": ttl}
    return [
        arrowstate.ValueStateDescriptor(f"value{name}", pa.string(), **common),
        arrowstate.ReducingStateDescriptor(f"total{name}", pa.int64(), reduce="sum", **common),
        arrowstate.AggregatingStateDescriptor(f"mean{name}", pa.int64(), aggregate="mean", **common),
        arrowstate.ListStateDescriptor(f"list{name}", pa.int64(), **common),
        arrowstate.MapStateDescriptor(f"map{name}", pa.int64(), pa.int64(), **common),
    ]


STATES = [*descriptors("", None), *descriptors("_ttl", arrowstate.TimeToLive(50))]


def keys_of(rows):
    return pa.array([KEYS[row] for row in rows], KEY.field(0).type)


def write(backend, state, rows, spaces, numbers):
    keys = keys_of(rows)
    named = {"namespace": pa.array(spaces, pa.int32())}
    found = backend.state(state)
    if state.kind == "map":
        found.put_batch(keys, [number % 3 for number in numbers], numbers, **named)
    elif state.kind == "value":
        found.update_batch(keys, [str(number) for number in numbers], **named)
    else:
        found.add_batch(keys, numbers, **named)


def content(backend):
    found = {}
    for state in STATES:
        rows = [row for batch in backend.state(state).live_batches() for row in batch.to_pylist()]
        found[state.name] = sorted(rows, key=str)
    backend.timers("alarm", SPACE)
    for clock in ("event_time", "processing_time"):
        batches = backend.states[f"alarm_{clock}"].live_batches()
        found[clock] = sorted((row for batch in batches for row in batch.to_pylist()), key=str)
    return found


@pytest.mark.parametrize("seed", range(short_or_long(6, 240)))
def test_a_history_with_compactions_ends_up_like_one_without(seed):
    choose = random.Random(seed)
    clock = Clock(1000)
    policy = POLICIES[seed % 2]
    budget = (None, 0)[seed // 2 % 2]
    backends = [backend_of(KEY, merge_policy=policy, memory_budget_bytes=budget, clock_ms=clock) for _ in range(2)]
    plans, adopted = [], 0
    for step in range(120):
        verb = choose.choice(["write", "write", "write", "clear", "timers", "pop", "plan", "adopt", "time", "scalar"])
        state = choose.choice(STATES)
        rows = [choose.randrange(len(KEYS)) for _ in range(choose.randrange(1, 30))]
        spaces = [choose.randrange(2) for _ in rows]
        numbers = [choose.randrange(1000) for _ in rows]
        at = choose.randrange(3000)
        for backend in backends:
            timers = backend.timers("alarm", SPACE)
            if verb == "write":
                write(backend, state, rows, spaces, numbers)
            elif verb == "clear":
                backend.state(state).clear_batch(keys_of(rows), namespace=pa.array(spaces, pa.int32()))
            elif verb == "timers":
                for name in ("event_time", "processing_time"):
                    timers.register_batch(keys_of(rows), numbers, namespace=pa.array(spaces, pa.int32()), clock=name)
            elif verb == "pop":
                timers.pop_due(at // 3, clock="event_time")
            elif verb == "scalar":
                backend.current_key = KEYS[rows[0]]
                found = backend.state(state)
                found.current_namespace = spaces[0]
                found.clear()
        if verb == "time":
            clock.now_ms += choose.randrange(20)
        if verb == "plan":
            plan = plan_compaction({"op": backends[:1]}, "", TIGHT)
            if step % 2:
                plan.run()
            plans.append((plan, step % 2))
        if verb == "adopt" and plans:
            plan, was_run = plans.pop(0)
            if not was_run:
                plan.run()
            adopted += plan.adopt()
            assert content(backends[0]) == content(backends[1])

    # Plans of a history may all have been made before there was anything to merge.
    plan = plan_compaction({"op": backends[:1]}, "", TIGHT)
    plan.run()
    adopted += plan.adopt()

    assert content(backends[0]) == content(backends[1])
    assert adopted > 0


@pytest.mark.parametrize("merges", [False, True])
def test_rows_of_earlier_schemas_are_merged_in_the_current_one(merges):
    store = arrowstate.open_store(f"memory://compacted-versions-{merges}", create=True)
    first = arrowstate.ValueStateDescriptor("v", pa.struct([("n", pa.int32())]))
    second = arrowstate.ValueStateDescriptor(
        "v",
        pa.struct([("n", pa.int64()), ("city", pa.string())]),
        evolution=arrowstate.SchemaEvolution(defaults={"city": "Rome"}),
    )
    key = pa.schema([("k", pa.int64())])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=128, merge_policy=POLICIES[0])
    with store.writer(compaction=None) as writer:
        for start in (0, 50):
            backend.state(first).update_batch(range(start, start + 50), [{"n": n} for n in range(50)])
            snapshot = writer.checkpoint({"op": [backend]})
        backend = restore_backend(store.storage, store.store_id, snapshot.entry, "op", merge_policy=POLICIES[0])
        state = backend.state(second)
        state.update_batch(range(40, 60), [{"n": 2**40, "city": "Oslo"}] * 20)
        if merges:
            plan = plan_compaction({"op": [backend]}, "", TIGHT)
            plan.run()
            state.clear_batch([3, 45])
            before = state.get_batch(range(100)).to_pylist()
            assert plan.adopt() == 1
        else:
            state.clear_batch([3, 45])
            before = state.get_batch(range(100)).to_pylist()
        snapshot = writer.checkpoint({"op": [backend]})
        after = store.compact(TIGHT).apply() or snapshot

    assert state.get_batch(range(100)).to_pylist() == before
    assert before[2:4] == [{"n": 2, "city": "Rome"}, None]
    for item in (snapshot, after):
        assert item.verify(deep=True).problems == []
        assert item.restore("op").state(second).get_batch(range(100)).to_pylist() == before
    versions = {v["version"]: v["runs"] for v in after.show()["operators"][0]["states"][0]["schema_versions"]}
    assert versions == {2: 1}
