"""What an error leaves behind: all is as before, and what is done again gives what it should."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.table.spill import SpillSink
from arrowstate.table.table import Table
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction, WindowOperator
from stores import CITY, TOTAL, USER, backend_of
from suites.adversary import Adversary
from suites.scenes import Spread

PAGES = arrowstate.ListStateDescriptor("pages", pa.int64())
CART = arrowstate.MapStateDescriptor("cart", pa.string(), pa.int64())
TINY_RUNS = arrowstate.MergePolicy(fan_in=2, first_tier_rows=2, max_dead_share=0.3, segment_bytes=1)


@pytest.fixture
def full_disk(monkeypatch):
    """Lets the n-th spilled file from now on have no room."""
    original = SpillSink.__init__
    left = []

    def start(self, folder, schema):
        if left:
            left[0] -= 1
            if left[0] < 0:
                raise arrowstate.StorageFullError(str(folder), "No space left on device")
        original(self, folder, schema)

    monkeypatch.setattr(SpillSink, "__init__", start)
    return left


def test_scalar_writes_of_a_batch_function_that_raises_are_gone(backend):
    class Writes(arrowstate.BatchFunction):
        def open(self, context):
            self.states = [context.state(each) for each in (CITY, TOTAL, PAGES, CART)]
            self.timers = context.timers()

        def process_batch(self, batch, context):
            city, total, pages, cart = self.states
            context.backend.current_key = "ann"
            city.update("Rome")
            total.add(5)
            pages.add(5)
            cart.put("fig", 5)
            self.timers.register_event_time_timer(5)
            if batch["fails"][0].as_py():
                raise RuntimeError("too late")

    process = arrowstate.BatchRunner(backend, Writes())
    backend.current_key = "bob"
    backend.states["cart"].put("pear", 1)

    with pytest.raises(RuntimeError, match="too late"):
        process.process(pa.record_batch({"user": ["ann"], "fails": [True]}))

    assert backend.current_key == "bob"
    assert {name: len(state) for name, state in backend.states.items() if len(state)} == {"cart": 1}
    process.process(pa.record_batch({"user": ["ann"], "fails": [False]}))
    assert backend.states["total"].get_batch(["ann"]).to_pylist() == [5]
    assert backend.states["pages"].get_batch(["ann"]).to_pylist() == [[5]]


@pytest.mark.parametrize("clock", ["event_time", "processing_time"])
def test_timers_of_a_batch_function_that_raises_fire_again(backend, clock):
    class Fires(arrowstate.BatchFunction):
        failures = 2

        def open(self, context):
            self.timers = context.timers()

        def process_batch(self, batch, context):
            self.timers.register_batch(batch["user"], batch["at"], clock=clock)

        def on_timers(self, timers, context):
            if self.failures:
                self.failures -= 1
                raise RuntimeError("not yet")
            return timers

    process = arrowstate.BatchRunner(backend, Fires())
    advance = process.advance_watermark if clock == "event_time" else process.advance_processing_time
    process.process(pa.record_batch({"user": ["ann", "bob", "eve"], "at": [10, 20, 30]}))

    for _ in range(2):
        with pytest.raises(RuntimeError, match="not yet"):
            advance(25)
        assert backend.watermark is None
        assert backend.timers().next_timestamp(clock) == 10

    assert advance(25)["timestamp"].to_pylist() == [10, 20]
    assert advance(40)["timestamp"].to_pylist() == [30]


@pytest.mark.parametrize("lateness", [0, 100])
def test_windows_fire_again_after_a_function_that_raises(backend, lateness):
    class Fails(WindowFunction):
        failures = 2

        def on_watermark(self, watermark, context):
            fired = super().on_watermark(watermark, context)
            if self.failures:
                self.failures -= 1
                raise RuntimeError("not yet")
            return fired

    function = Fails(TumblingEventTimeWindows(10), TOTAL, timestamp="at", value="n", allowed_lateness_ms=lateness)
    process = arrowstate.BatchRunner(backend, function)
    process.process(pa.record_batch({"user": ["ann", "bob"], "at": [1, 12], "n": [5, 6]}))

    for _ in range(2):
        with pytest.raises(RuntimeError, match="not yet"):
            process.advance_watermark(15)
        assert backend.watermark is None

    # Also by a lower watermark than that which failed.
    assert process.advance_watermark(12)["total"].to_pylist() == [5]
    assert process.advance_watermark(25)["total"].to_pylist() == [6]
    process.advance_watermark(1000)
    assert not any(map(len, backend.states.values()))


def test_late_rows_of_a_batch_that_fails_are_counted_once(backend):
    process = arrowstate.BatchRunner(
        backend, function := WindowFunction(TumblingEventTimeWindows(10), TOTAL, timestamp="at")
    )
    process.advance_watermark(50)
    late = pa.record_batch({"user": ["ann"], "at": [1], "total": [1]})

    with pytest.raises(RuntimeError), backend.transaction():
        process.process(late)
        raise RuntimeError
    process.process(late)

    assert function.late_rows == 1


@pytest.mark.parametrize("room_for", range(4))
def test_a_batch_of_a_process_function_that_finds_no_room_may_be_given_again(full_disk, room_for):
    class Appends(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.states = [context.state(arrowstate.ListStateDescriptor(name, pa.string())) for name in "abc"]

        def process_element(self, value, context, out):
            for state in self.states:
                state.add(value.text)

        def on_timer(self, timestamp, context, out):
            pass

    def rows(count):
        users = [f"u{number}" for number in range(count)]
        return pa.record_batch({"user": users, "text": ["x" * 300] * count})

    backend = backend_of(USER, memory_budget_bytes=20_000)
    process = arrowstate.KeyedProcessRunner(backend, Appends())
    process.process(rows(30))
    full_disk.append(room_for)

    with pytest.raises(arrowstate.StorageFullError, match="nothing was kept, make room and try again"):
        for _ in range(9):
            before = {name: len(state) for name, state in backend.states.items()}
            process.process(rows(200))

    full_disk.clear()
    assert {name: len(state) for name, state in backend.states.items()} == before
    process.process(rows(200))
    assert [len(backend.states[name]) for name in "abc"] == [before[name] + 200 for name in "abc"]


def test_what_a_read_returns_for_the_last_time_is_there_if_the_read_fails():
    now = [0]
    adversary = Adversary()
    ttl = arrowstate.TimeToLive(10, visibility="return_until_cleaned_up")
    backend = backend_of(USER, clock_ms=lambda: now[0])
    spread = backend.state(
        arrowstate.AggregatingStateDescriptor("spread", pa.int64(), aggregate=Spread(adversary), ttl=ttl)
    )
    spread.add_batch(["ann", "ann"], [3, 10])
    backend.current_key = "ann"
    now[0] = 10

    for read in (lambda: spread.get_batch(["ann"]), spread.get):
        with adversary.watching(1), pytest.raises(RuntimeError, match="the user's code"):
            read()

    assert spread.get_batch(["ann"]).to_pylist() == [7]
    assert spread.get_batch(["ann"]).to_pylist() == [None]


def test_a_value_without_a_counterpart_in_python_is_not_renewed_or_removed_by_a_read_that_is_refused():
    now = [0]
    kind = pa.timestamp("s")
    ttl = arrowstate.TimeToLive(10, visibility="return_until_cleaned_up")
    backend = backend_of(USER, clock_ms=lambda: now[0])
    seen = backend.state(arrowstate.ValueStateDescriptor("seen", kind, ttl=ttl))
    far = pa.array([10**14], pa.int64()).cast(kind)
    seen.update_batch(["ann"], far)
    backend.current_key = "ann"
    now[0] = 10

    with pytest.raises(arrowstate.InvalidInputError, match="read it with get_batch"):
        seen.value()

    assert seen.get_batch(["ann"]).equals(far)


def test_a_timer_whose_key_has_no_counterpart_in_python_stays_registered():
    kind = pa.timestamp("s")
    keys = pa.array([10**12, 5], pa.int64()).cast(kind)
    backend = backend_of(pa.schema([("at", kind)]))
    timers = backend.timers()
    timers.register_batch(keys, [1, 2])

    with pytest.raises((OverflowError, ValueError)):
        timers.advance_watermark(9, print)

    assert len(timers) == 2
    assert timers.pop_due(9)["timestamp"].to_pylist() == [1, 2]


def test_timers_are_frozen_and_put_back_without_room_on_disk(full_disk):
    backend = backend_of(USER, memory_budget_bytes=0, merge_policy=TINY_RUNS)
    timers = backend.timers()
    timers.register_batch(["ann", "bob", "eve"], [1, 2, 3])
    backend.current_key = "ann"
    timers.register_event_time_timer(50)
    fired = []

    def call(timer):
        full_disk.append(0)
        fired.append(timer.timestamp)
        if timer.timestamp == 2:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        timers.advance_watermark(9, call)

    assert fired == [1, 2]
    backend.current_key = "bob"
    timers.register_event_time_timer(60)
    assert sum(state.table.live_rows for state in backend.freeze().states) == 4
    full_disk.clear()
    assert timers.advance_watermark(9, lambda timer: fired.append(timer.timestamp)) == 2
    assert fired == [1, 2, 2, 3]


def test_a_failed_batch_does_not_decide_the_columns_of_the_output(backend):
    class Emits(arrowstate.BatchFunction):
        fails = True

        def open(self, context):
            self.timers = context.timers()

        def process_batch(self, batch, context):
            self.timers.register_batch(batch["user"], [1])

        def on_watermark(self, watermark, context):
            return pa.record_batch({"a": [1]}) if self.fails else None

        def on_timers(self, timers, context):
            return pa.record_batch({"b": [2]})

    process = arrowstate.BatchRunner(backend, function := Emits())
    process.process(pa.record_batch({"user": ["ann"]}))

    with pytest.raises(arrowstate.InvalidInputError, match="emitted the columns b; the output has a"):
        process.advance_watermark(5)
    function.fails = False

    assert process.advance_watermark(5).to_pylist() == [{"b": 2}]


def test_the_namespace_that_an_element_set_is_what_it_was_if_the_batch_fails(backend):
    space = pa.schema([("space", pa.date32())])

    class Counts(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.count = context.state(
                arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count", namespace=space)
            )

        def process_element(self, value, context, out):
            if value.day is not None:
                self.count.current_namespace = value.day
            self.count.add(1)
            if value.fails:
                raise RuntimeError("no")

    def rows(day, fails):
        return pa.record_batch({"user": ["ann"], "day": pa.array([day], pa.date32()), "fails": [fails]})

    process = arrowstate.KeyedProcessRunner(backend, Counts())
    process.process(rows(1, False))

    with pytest.raises(arrowstate.ProcessElementError):
        process.process(rows(2, True))
    process.process(rows(None, False))

    days = pa.array([1, 2], pa.int32()).cast(pa.date32())
    assert backend.states["count"].get_batch(["ann", "ann"], namespace=days).to_pylist() == [2, None]


def test_what_a_call_did_for_a_key_before_it_raised_is_undone_and_the_keys_before_it_stay(backend):
    total = backend.state(TOTAL)
    pages = backend.state(PAGES)
    total.add_batch(["ann", "bob", "eve"], [1, 1, 1])
    done = []

    def apply(key, state):
        state.add(10)
        pages.add(7)
        if len(done) == 1:
            raise RuntimeError("no")
        done.append(key)

    with pytest.raises(RuntimeError):
        backend.apply_to_all_keys(None, TOTAL, apply)

    expected = [11 if user in done else 1 for user in ("ann", "bob", "eve")]
    assert total.get_batch(["ann", "bob", "eve"]).to_pylist() == expected
    assert len(pages) == 1


def test_transactions_stand_in_each_other(backend):
    total = backend.state(TOTAL)
    backend.current_key = "ann"
    total.add(1)

    with backend.transaction():
        total.add(10)
        with pytest.raises(RuntimeError), backend.transaction():
            total.add(100)
            total.add_batch(["ann", "bob"], [1000, 1000])
            backend.advance_watermark(5)
            raise RuntimeError
        assert (total.get(), backend.watermark) == (11, None)
        total.add(20)
    with pytest.raises(RuntimeError), backend.transaction():
        with backend.transaction():
            total.add_batch(["ann", "bob"], [1000, 1000])
            backend.current_key = "bob"
            total.add(5)
        raise RuntimeError

    assert backend.current_key == "ann"
    assert total.get_batch(["ann", "bob"]).to_pylist() == [31, None]


def test_a_state_that_was_asked_for_in_a_transaction_stays_without_what_was_written():
    store = arrowstate.open_store("memory://asked-for-in-a-transaction", create=True)
    first = backend_of(USER)
    first.state(arrowstate.ListStateDescriptor("pages", pa.int32())).add_batch(["ann"], [1])
    with store.writer() as writer:
        backend = writer.checkpoint({"op": [first]}).restore("op")

    with pytest.raises(RuntimeError), backend.transaction():
        total, pages = backend.state(TOTAL), backend.state(PAGES)
        total.add_batch(["ann"], [1])
        pages.clear_batch(["ann"])
        raise RuntimeError

    assert (len(total), pages.get_batch(["ann"]).to_pylist()) == (0, [[1]])
    total.add_batch(["ann"], [2])
    pages.add_batch(["ann"], [2])
    assert backend.state(TOTAL).get_batch(["ann"]).to_pylist() == [2]
    assert backend.states["pages"].get_batch(["ann"]).to_pylist() == [[1, 2]]


def test_operator_states_take_part_where_they_are_given(backend):
    operator = arrowstate.OperatorStateBackend()
    limits = operator.state(arrowstate.BroadcastStateDescriptor("limits", pa.string(), pa.int64()))
    offsets = operator.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64()))
    limits.put("clicks", 1)
    offsets.add(1)

    class Changes(arrowstate.BatchFunction):
        def process_batch(self, batch, context):
            limits.put("clicks", 2)
            limits.put_batch(["views"], [3])
            raise RuntimeError

    with pytest.raises(RuntimeError), backend.transaction(offsets):
        offsets.update([5, 6])
        arrowstate.BatchRunner(backend, Changes(), broadcasts={"limits": limits}).process(
            pa.record_batch({"user": ["ann"]})
        )

    assert dict(limits.items()) == {"clicks": 1}
    assert offsets.get() == [1]


@pytest.mark.parametrize(
    "verb",
    [
        lambda state: state.add_batch(["bob", "ann"], [1, 1], namespace=1),
        lambda state: state.add(1),
        lambda state: state.merge_namespaces_batch(["ann"], 1, 2),
    ],
    ids=["a batch", "one value", "a merge"],
)
def test_a_sum_that_overflows_leaves_the_state_as_it_was(verb):
    highest = np.iinfo(np.int64).max
    space = pa.schema([("space", pa.int64())])
    backend = backend_of(USER, memory_budget_bytes=0, merge_policy=TINY_RUNS)
    total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", namespace=space))
    for value in (5, highest - 5):
        total.add_batch(["ann", "ann"], [value, value], namespace=pa.array([1, 2]))
    backend.current_key, total.current_namespace = "ann", 1

    with pytest.raises(arrowstate.ValueOverflowError):
        verb(total)

    assert total.get_batch(["ann", "ann", "bob"], namespace=pa.array([1, 2, 1])).to_pylist() == [highest, highest, None]


def test_to_begin_costs_nothing_that_grows_with_the_rows_held():
    backend = backend_of(pa.schema([("k", pa.int64())]))
    rows = pa.array(np.arange(400_000))
    backend.state(TOTAL).add_batch(rows, rows)
    backend.timers().register_batch(rows, rows)
    WindowOperator(
        backend, TumblingEventTimeWindows(10), arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    )
    backend.state(TOTAL).clear_batch([4])
    tracemalloc.start()

    with backend.transaction():
        backend.state(TOTAL).clear_batch([1, 2, 3])
        begun = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    # One bit per row would be 50,000 bytes for each of the states.
    assert begun < 30_000


def test_rows_that_were_dropped_are_remembered_while_a_mark_is_held_and_no_longer():
    schema = pa.schema([pa.field("_key_hash", pa.int64(), nullable=False), ("k", pa.int64())])
    table = Table(schema, 1)
    table.append(pa.record_batch([pa.array(range(100)), pa.array(range(100))], schema=schema))
    (run,) = table.runs

    outer = table.begin()
    table.kill(run, np.arange(10))
    inner = table.begin()
    table.kill(run, np.arange(5, 20))
    table.go_back(inner)
    assert run.live_rows == 90
    table.keep()
    assert len(table._killed._changes) == 0
    assert outer.killed == 0
    table.kill(run, np.arange(30))
    assert len(table._killed._changes) == 0
    assert table.live_rows == 70


def test_a_merge_that_finds_no_room_has_removed_no_row_that_expired(full_disk):
    now = [0]
    ttl = arrowstate.TimeToLive(10, visibility="return_until_cleaned_up")
    backend = backend_of(USER, memory_budget_bytes=0, merge_policy=TINY_RUNS, clock_ms=lambda: now[0])
    city = backend.state(arrowstate.ValueStateDescriptor("city", pa.string(), ttl=ttl))
    city.update_batch(["ann", "bob"], ["Rome", "Oslo"])
    city.update_batch(["eve"], ["Bonn"])
    now[0] = 10
    backend.current_key = "eve"
    city.update("Lima")
    full_disk.append(0)

    with pytest.raises(arrowstate.StorageFullError):
        len(city)

    full_disk.clear()
    assert city.table.live_rows == 3
    backend.states["city"].table._policy = arrowstate.MergePolicy()
    assert city.get_batch(["ann", "bob", "eve"]).to_pylist() == ["Rome", "Oslo", "Lima"]


def test_the_current_namespace_is_what_it_was_before_a_transaction_that_fails(backend):
    space = pa.schema([("space", pa.int64())])
    total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", namespace=space))
    total.current_namespace = 1

    with pytest.raises(RuntimeError), backend.transaction():
        total.current_namespace = 2
        raise RuntimeError

    assert total.current_namespace == 1


def test_windows_whose_aggregate_raises_fire_by_a_lower_watermark(backend):
    adversary = Adversary()
    spread = arrowstate.AggregatingStateDescriptor("spread", pa.int64(), aggregate=Spread(adversary))
    windows = WindowOperator(backend, TumblingEventTimeWindows(10), spread)
    windows.process(["ann", "ann", "bob"], [1, 2, 12], [5, 9, 6])

    with adversary.watching(1), pytest.raises(RuntimeError, match="the user's code"):
        windows.advance_watermark(25)

    assert windows.advance_watermark(12)["spread"].to_pylist() == [4]
    assert windows.advance_watermark(25)["spread"].to_pylist() == [0]
