"""States with a time to live in a process function: what its elements see does not depend on where batches are cut."""

import itertools
import random

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.state.expiry import Expiry
from stores import USER, backend_of

SPACES = pa.schema([("space", pa.int64())])
NEVER = arrowstate.TimeToLive(100, clock="event_time")
ONCE_MORE = arrowstate.TimeToLive(100, clock="event_time", visibility="return_until_cleaned_up")
RENEWED = arrowstate.TimeToLive(100, clock="event_time", update="on_read_and_write")


def none_at_a_multiple_of_three(old, new):
    return old + new if (old + new) % 3 else None


def states(ttl, namespace=None):
    reducing, more = arrowstate.ReducingStateDescriptor, {"ttl": ttl, "namespace": namespace}
    return {
        "value": arrowstate.ValueStateDescriptor("s", pa.int64(), default=0, **more),
        "sum": reducing("s", pa.int64(), reduce="sum", **more),
        "callable": reducing("s", pa.int64(), reduce=none_at_a_multiple_of_three, **more),
        "mean": arrowstate.AggregatingStateDescriptor("s", pa.int64(), aggregate="mean", **more),
        "list": arrowstate.ListStateDescriptor("s", pa.int64(), **more),
        "map": arrowstate.MapStateDescriptor("s", pa.int64(), pa.int64(), **more),
    }


def write(state, kind, number):
    if kind == "value":
        state.update(number)
    elif kind == "map":
        state.put(number % 3, number)
    else:
        state.add(number)


def read(state, kind, number):
    if kind == "value":
        return state.value()
    if kind != "map":
        return state.get()
    return state.get(number % 3) if number > 3 else sorted(state.items())


class Scripted(arrowstate.KeyedProcessFunction):
    """Does what each element says."""

    def __init__(self, kind, descriptor):
        self.kind, self.descriptor = kind, descriptor

    def open(self, context):
        self.state = context.state(self.descriptor)

    def process_element(self, value, context, out):
        state, kind = self.state, self.kind
        if self.descriptor.namespace is not None:
            state.current_namespace = value.number % 2
        for verb in value.verbs.split():
            if verb == "write":
                write(state, kind, value.number)
            elif verb == "clear":
                state.clear()
            elif verb == "read":
                out.collect(f"{value.user} {read(state, kind, value.number)}")
            elif kind in ("value", "map") or self.descriptor.namespace is None:
                continue
            else:
                state.merge_namespaces(value.number % 2, [1 - value.number % 2])


def stored_rows(backend, descriptor):
    runs = backend.state(descriptor).freeze().runs
    rows = [row for run in runs for batch in run.live_batches() for row in batch.drop_columns("_key_hash").to_pylist()]
    return sorted(repr({name: value for name, value in row.items() if name != "_seq"}) for row in rows)


def run(kind, descriptor, parts, cuts):
    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, Scripted(kind, descriptor), output=pa.string(), timestamp="at")
    seen = []
    for (watermark, rows), borders in zip(parts, cuts, strict=True):
        process.advance_watermark(watermark)
        borders = [0, *borders, rows.num_rows]
        for start, end in itertools.pairwise(borders):
            seen += process.process(rows.slice(start, end - start)).to_pylist()
        seen.append(stored_rows(backend, descriptor))
    return seen


@pytest.mark.parametrize("kind", states(None))
@pytest.mark.parametrize("ttl", [NEVER, ONCE_MORE, RENEWED], ids=["never", "once more", "renewed"])
@pytest.mark.parametrize("namespace", [None, SPACES], ids=["", "namespace"])
@pytest.mark.parametrize("seed", range(3))
def test_elements_see_and_leave_what_those_of_batches_of_one_do(monkeypatch, kind, ttl, namespace, seed):
    # A merge takes away what has expired, and it depends on the number of batches when there is one.
    monkeypatch.setattr(Expiry, "settle", lambda _: None)
    chance = random.Random(seed)
    verbs = ["write", "write", "write read", "read", "read", "merge", "clear", "read write", "read read", ""]
    parts, cuts = [], []
    for watermark in (100, 150, 250, 320):
        times = [chance.choice([-10, 0, 1, 60, 149, 150, 151, 300]) + watermark - 100 for _ in range(30)]
        rows = pa.record_batch(
            {
                "user": [chance.choice("abc") for _ in range(30)],
                "at": times,
                "number": [chance.randint(1, 9) for _ in range(30)],
                "verbs": [chance.choice(verbs) for _ in range(30)],
            }
        )
        parts.append((watermark, rows))
        cuts.append(sorted(chance.sample(range(1, 30), chance.randint(0, 4))))
    descriptor = states(ttl, namespace)[kind]

    one_by_one = run(kind, descriptor, parts, [range(1, 30)] * 4)

    assert run(kind, descriptor, parts, cuts) == one_by_one


@pytest.mark.parametrize("kind", states(None))
@pytest.mark.parametrize("clock", ["event_time", "processing_time"])
def test_a_function_that_reads_nothing_renews_and_removes_nothing(kind, clock):
    now = [0]

    def at(update, visibility, verbs):
        now[0] = 0
        ttl = arrowstate.TimeToLive(100, clock=clock, update=update, visibility=visibility)
        descriptor = states(ttl)[kind]
        backend = backend_of(USER, clock_ms=lambda: now[0])
        process = arrowstate.KeyedProcessRunner(backend, Scripted(kind, descriptor), output=pa.string(), timestamp="at")
        shown = []
        for time, some in verbs:
            now[0] = time
            process.advance_watermark(time)
            users = list(some)
            shown += process.process(
                pa.record_batch(
                    {
                        "user": users,
                        "at": pa.array([time] * len(users), pa.int64()),
                        "number": pa.array([7] * len(users), pa.int64()),
                        "verbs": list(some.values()),
                    }
                )
            ).to_pylist()
        return shown

    value = {"list": "[7]", "map": "7", "mean": "7.0"}.get(kind, "7")
    none = {"list": "[]", "value": "0"}.get(kind, "None")
    both = {"a": "write", "b": "write"}

    renewed = at(
        "on_read_and_write",
        "never_return_expired",
        [(0, both), (60, {"a": "", "b": "read"}), (120, {"a": "read", "b": "read"})],
    )
    kept = at(
        "on_create_and_write",
        "return_until_cleaned_up",
        [(0, both), (100, {"a": "", "b": "read"}), (110, {"a": "read", "b": "read"})],
    )

    assert renewed == [f"b {value}", f"a {none}", f"b {value}"]
    assert kept == [f"b {value}", f"a {value}", f"b {none}"]
