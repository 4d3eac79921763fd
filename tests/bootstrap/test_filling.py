"""Several tables and operators in one checkpoint; what a fill takes of memory, and leaves behind when it is killed."""

import signal
import uuid

import pyarrow as pa
import pytest

import arrowstate
from arrowstate import ListStateDescriptor, MapStateDescriptor
from arrowstate.bootstrap.planning import AskedStates
from arrowstate.bootstrap.tables import TableFill, fill_operators, plan_table
from arrowstate.clock import new_id, now_ms
from arrowstate.errors import FencedError, InvalidInputError
from processes import python
from stores import CITY, TOTAL, USER, ids

CARTS = MapStateDescriptor("carts", pa.string(), pa.int64())


@pytest.fixture
def store():
    return arrowstate.open_store(f"memory://{uuid.uuid4().hex}", create=True)


def planned(store, table, uid, state, asked=None, **arguments):
    """A fill of one state by a table of its own."""
    plan = plan_table(
        store.storage,
        table.schema,
        uid=uid,
        key=USER,
        states=AskedStates([state], **(asked or {})),
        new_id=new_id,
        clock_ms=now_ms,
        **arguments,
    )
    return TableFill(plan, table.to_batches())


def filled(store, fills, properties=None):
    times = {"new_id": new_id, "clock_ms": now_ms}
    return store.snapshot_of(fill_operators(store.storage, store.store_id, fills, properties=properties or {}, **times))


def test_tables_of_several_operators_become_one_checkpoint(store):
    users = ["ann", "bob", "cat"]
    cities = pa.table({"user": users, "value": ["Rome", "Oslo", None]})
    carts = pa.table({"user": ["ann", "ann", "bob"], "thing": ["a", "b", "a"], "count": [1, None, 3]})
    totals = pa.table({"user": users, "total": [1, 2, 3]})
    shape = {"parallelism": 2, "max_parallelism": 32}

    made = filled(
        store,
        [
            planned(store, cities, "people", CITY, {"value_columns": {"city": ["value"]}}, watermark=500, **shape),
            planned(store, totals, "counter", TOTAL, {"accumulators": True}, max_parallelism=7),
            planned(
                store,
                carts,
                "people",
                CARTS,
                {"value_columns": {"carts": ["count"]}, "user_keys": {"carts": "thing"}},
                watermark=700,
                **shape,
            ),
        ],
        {"imported": "yes"},
    )

    assert (made.checkpoint_id, made.properties, made.entry.watermark) == (1, {"imported": "yes"}, 500)
    people, counter = made.restore("people"), made.restore("counter")
    assert people.watermark == 500
    assert people.state(CITY).get_batch(users).to_pylist() == ["Rome", "Oslo", None]
    assert people.state(CARTS).entries_batch(users).to_pylist() == [[("a", 1), ("b", None)], [("a", 3)], []]
    assert counter.state(TOTAL).get_batch(users).to_pylist() == [1, 2, 3]
    assert [(item.uid, item.parallelism, item.max_parallelism) for item in made.entry.operators] == [
        ("people", 2, 32),
        ("counter", 1, 7),
    ]
    assert store.verify(deep=True).problems == []


def test_tables_of_an_operator_must_go_together(store):
    cities = pa.table({"user": ["ann"], "city": ["Rome"], "total": [1]})

    with pytest.raises(InvalidInputError, match="a fill needs at least one table, got none"):
        filled(store, [])
    with pytest.raises(InvalidInputError, match="the tables of operator 'op' fill 'city' twice; give each its own"):
        filled(store, [planned(store, cities, "op", CITY), planned(store, cities, "op", CITY)])
    with pytest.raises(InvalidInputError, match="the tables of operator 'op' differ in key, parallelism or base"):
        filled(store, [planned(store, cities, "op", CITY), planned(store, cities, "op", TOTAL, parallelism=2)])


def test_one_operator_that_fails_leaves_nothing_of_the_others(store):
    first = planned(store, pa.table({"user": ["ann"], "city": ["Rome"]}), "first", CITY)
    second = planned(store, pa.table({"user": ["ann", "ann"], "city": ["Rome", "Oslo"]}), "second", CITY)
    large = pa.table({"user": [str(number) for number in range(9000)], "total": range(9000)})

    with pytest.raises(InvalidInputError, match="state 'city' takes one row for each key"):
        filled(store, [planned(store, large, "large", TOTAL), first, second])

    assert store.checkpoints() == []
    assert [path for path in store.storage.list("") if path.startswith(("data/", "manifests/"))] == []


def test_plans_of_different_checkpoints_are_not_committed_together(store):
    cities = pa.table({"user": ["ann"], "city": ["Rome"]})
    first = planned(store, cities, "first", CITY)
    filled(store, [planned(store, cities, "between", CITY)])

    with pytest.raises(FencedError):
        filled(store, [first, planned(store, cities, "second", CITY)])

    assert [operator.uid for operator in store.latest().entry.operators] == ["between"]


MEASURED = """
import sys, threading, time
import numpy as np, pyarrow as pa
import arrowstate

def anonymous_bytes():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1]) << 10

def rows(count):
    for first in range(0, count, 20_000):
        data = pa.py_buffer(np.random.default_rng(first).bytes(200 * 20_000))
        values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(200), 20_000, [None, data])
        yield pa.record_batch({"k": np.arange(first, first + 20_000), "v": values})

folder, budget, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = arrowstate.open_store(folder + "/store", create=True)
state = arrowstate.ListStateDescriptor("v", pa.binary(200))
arguments = {"parallelism": 2, "memory_budget_bytes": budget, "spill_dir": folder + "/spill", "order_by": sys.argv[4:]}
store.bootstrap("warm", ["k"], [state], rows(20_000), **arguments)
before, peak, done = anonymous_bytes(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous_bytes())

watching = threading.Thread(target=watch)
watching.start()
made = store.bootstrap("op", ["k"], [state], rows(count), **arguments)
done.set()
watching.join()
assert made["op.v"].num_rows == count
print(peak - before)
"""


@pytest.mark.turns(2)
@pytest.mark.parametrize("order_by", [[], ["v"]])
def test_a_table_larger_than_memory_takes_little_more_than_the_budget(tmp_path, order_by):
    rows, budget = 1_000_000, 16 << 20

    ran = python("-c", MEASURED, tmp_path, budget, rows, *order_by)

    assert ran.returncode == 0, ran.stderr
    # What is held of the rows at a time comes on top, and with it the batches of a merge; all rows are 216 MB.
    assert int(ran.stdout) < budget + (128 << 20)
    assert list((tmp_path / "spill").iterdir()) == []


KILLED = """
import os, signal, sys
import pyarrow as pa
import arrowstate
from arrowstate.bootstrap import commit, subtask

subtask._PIECE_ROWS = 5_000

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def rows(point):
    for first in range(0, 40_000, 10_000):
        yield pa.record_batch({"k": range(first, first + 10_000), "v": range(10_000)})
        if point == "rows":
            die()

def bootstrap(point):
    if point == "files":
        write = subtask.SubtaskFill.written
        subtask.SubtaskFill.written = lambda *arguments: (write(*arguments), die())
    if point == "fence":
        commit.Committer.commit = die
    state = arrowstate.ValueStateDescriptor("v", pa.int64())
    arguments = {"parallelism": 2, "memory_budget_bytes": 0, "spill_dir": sys.argv[1] + "/spill"}
    arrowstate.open_store(sys.argv[1] + "/store").bootstrap("op", ["k"], [state], rows(point), **arguments)

for point in ("rows", "files", "fence"):
    child = os.fork()
    if not child:
        bootstrap(point)
        os._exit(0)
    print(point, os.waitpid(child, 0)[1], flush=True)
"""


def test_a_bootstrap_that_is_killed_does_no_harm(tmp_path):
    cities = pa.table({"user": ["ann"], "city": ["Rome"]})
    store = arrowstate.open_store(tmp_path / "store", create=True)
    store.bootstrap("people", ["user"], [CITY], cities)

    ran = python("-c", KILLED, tmp_path)

    assert ran.stdout.split() == ["rows", "9", "files", "9", "fence", "9"], ran.stderr
    assert signal.SIGKILL == 9
    assert list((tmp_path / "spill").iterdir()) == []
    assert ids(store) == [1]
    assert store.verify(deep=True).problems == []
    left = [path for path in store.storage.list("data/") if path.startswith("data/op/")]
    assert len(left) >= 3
    made = store.bootstrap("op", ["k"], [ListStateDescriptor("v", pa.int64())], pa.table({"k": [1], "v": [2]}))
    assert (made.checkpoint_id, made["op.v"].num_rows, made["people.city"].num_rows) == (2, 1, 1)
    for days in (0, 10):
        # A file that nothing refers to goes when it was seen twice, with the grace period between.
        store.clock_ms = lambda days=days: now_ms() + days * 86_400_000
        store.collect(arrowstate.RetentionPolicy(count=1)).apply()
    assert [path for path in store.storage.list("data/") if path in left] == []
