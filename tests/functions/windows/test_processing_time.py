"""Windows by processing time against a naive oracle: by what time it was, each row is in its windows once."""

import uuid

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowstate
from arrowstate.errors import InvalidInputError
from arrowstate.windows import (
    ProcessingTimeSessionWindows,
    SlidingProcessingTimeWindows,
    Trigger,
    TumblingProcessingTimeWindows,
    WindowFunction,
    WindowOperator,
)
from long_form import short_or_long

USER = pa.schema([("user", pa.string())])
LIST = arrowstate.ListStateDescriptor("v", pa.int64())
SUM = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")


class Clock:
    """A runner over windows, which can fail and come back at a later time."""

    def __init__(self, windows, descriptor=LIST, **options):
        self.make = lambda: WindowFunction(windows, descriptor, **options)
        self.backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=128)
        self.store = arrowstate.open_store(f"memory://{uuid.uuid4().hex}", create=True)
        self.now = 0
        self.runner = arrowstate.BatchRunner(self.backend, self.make(), now_ms=lambda: self.now)
        self.tick(0)

    def rows(self, *rows):
        users, values = zip(*rows, strict=True) if rows else ((), ())
        batch = pa.record_batch({"user": pa.array(users, pa.string()), "v": pa.array(values, pa.int64())})
        return fired(self.runner.process(batch))

    def tick(self, now):
        self.now = now
        return fired(self.runner.advance_processing_time(now))

    def restart(self):
        with self.store.writer() as writer:
            snapshot = writer.checkpoint({"op": [self.backend]})
        self.backend = snapshot.restore("op")
        self.runner = arrowstate.BatchRunner(self.backend, self.make(), now_ms=lambda: self.now)


def fired(table):
    return sorted(
        (row["user"], row["window_start"], row["window_end"], tuple(sorted(row["v"]))) for row in table.to_pylist()
    )


class Oracle:
    """Windows as lists of the rows that they hold, looked at one by one."""

    def __init__(self, windows):
        self.windows = windows
        self.open = {}
        self.highest = 0

    def assign(self, now):
        windows = self.windows
        if isinstance(windows, ProcessingTimeSessionWindows):
            return [(now, now + windows.gap_ms)]
        size = windows.size_ms
        slide = windows.slide_ms if isinstance(windows, SlidingProcessingTimeWindows) else size
        first = now - size - slide
        starts = [start for start in range(first, now + 1) if (start - windows.offset_ms) % slide == 0]
        return [(start, start + size) for start in starts if start <= now < start + size]

    def rows(self, now, rows):
        now = max(now, self.highest)
        for user, value in rows:
            for start, end in self.assign(now):
                held = [value]
                if isinstance(self.windows, ProcessingTimeSessionWindows):
                    for other in [key for key in self.open if key[0] == user and key[1] <= end and start <= key[2]]:
                        held = [*held, *self.open.pop(other)]
                        start, end = min(start, other[1]), max(end, other[2])
                self.open.setdefault((user, start, end), []).extend(held)

    def tick(self, now):
        if now < self.highest:
            return []
        self.highest = now
        due = sorted(key for key in self.open if key[2] <= now)
        return [(*key, tuple(sorted(self.open.pop(key)))) for key in due]


WINDOWS = st.one_of(
    st.builds(TumblingProcessingTimeWindows, st.just(7), st.integers(-6, 6)),
    st.builds(SlidingProcessingTimeWindows, st.integers(1, 9), st.just(4), st.integers(-3, 3)),
    st.builds(ProcessingTimeSessionWindows, st.integers(1, 6)),
)
STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=6).map(lambda rows: ("rows", rows)),
        st.integers(-3, 9).map(lambda passed: ("tick", passed)),
        st.just(("restart", None)),
    ),
    max_size=16,
)


@settings(max_examples=short_or_long(80, 3000), deadline=None)
@given(windows=WINDOWS, steps=STEPS)
def test_windows_by_processing_time_hold_each_row_once_and_fire_when_they_end(windows, steps):
    clock, oracle = Clock(windows), Oracle(windows)

    for kind, what in steps:
        if kind == "rows":
            oracle.rows(clock.now, what)
            assert clock.rows(*what) == []
        elif kind == "tick":
            # The clock may be set back.
            assert clock.tick(clock.now + what) == oracle.tick(clock.now)
        else:
            clock.restart()
            # Nobody knows after it how far time was.
            oracle.highest = clock.now
            assert clock.tick(clock.now) == oracle.tick(clock.now)
    ends = [key[2] for key in oracle.open]
    assert clock.runner.next_processing_time() == min(ends, default=None)
    assert clock.tick(1_000) == oracle.tick(1_000)
    assert clock.runner.next_processing_time() is None
    assert sum(len(state) for state in clock.backend._states.values()) == 0


def test_a_window_fires_when_processing_time_reaches_its_end_and_not_before():
    clock = Clock(TumblingProcessingTimeWindows(10))
    clock.tick(9)
    clock.rows(("ann", 1))

    assert clock.runner.next_processing_time() == 10
    assert clock.tick(9) == []
    clock.rows(("ann", 2))
    assert clock.tick(10) == [("ann", 0, 10, (1, 2))]
    clock.rows(("ann", 3))
    assert clock.tick(20) == [("ann", 10, 20, (3,))]


def test_the_watermark_fires_no_window_by_processing_time():
    clock = Clock(TumblingProcessingTimeWindows(10))
    clock.rows(("ann", 1))

    assert fired(clock.runner.advance_watermark(1_000_000)) == []
    assert clock.tick(10) == [("ann", 0, 10, (1,))]


def test_a_batch_that_fails_leaves_time_and_windows_as_they_were():
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=128)
    total = arrowstate.ReducingStateDescriptor("v", pa.int8(), reduce="sum")
    operator = WindowOperator(backend, TumblingProcessingTimeWindows(10), total)
    operator.process(["ann"], [1], [100])

    with pytest.raises(arrowstate.ValueOverflowError):
        operator.process(["ann"], [2], [100])

    with pytest.raises(ZeroDivisionError), backend.transaction():
        operator.advance_processing_time(10)
        raise ZeroDivisionError
    assert operator.next_processing_time() == 10
    assert operator.advance_processing_time(10).to_pylist() == [
        {"user": "ann", "window_start": 0, "window_end": 10, "v": 100}
    ]


def test_a_count_makes_windows_by_processing_time_fire_and_time_removes_them():
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=128)
    operator = WindowOperator(backend, TumblingProcessingTimeWindows(10), SUM, trigger=Trigger(2))

    by_count = operator.process(["ann", "ann", "bob"], [1, 2, 3], [1, 2, 4]).fired.to_pylist()
    by_time = operator.advance_processing_time(10)

    assert [(row["user"], row["v"]) for row in by_count] == [("ann", 3)]
    assert by_time.num_rows == 0
    assert operator.next_processing_time() is None
    assert len(operator._contents) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestamp": "at"}, "needs timestamp=None, got 'at'"),
        ({"allowed_lateness_ms": 5}, "takes each row at the time it is processed, so nothing is late for it"),
    ],
)
def test_what_does_not_fit_windows_by_processing_time_is_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        Clock(TumblingProcessingTimeWindows(10), **options)


def test_a_row_between_two_windows_is_in_none_and_not_late():
    late = arrowstate.OutputTag("late", pa.schema([("user", pa.string()), ("v", pa.int64())]))
    clock = Clock(SlidingProcessingTimeWindows(5, slide_ms=10), late=late)
    clock.tick(107)

    assert clock.rows(("ann", 1)) == []

    assert clock.runner.side_output(late).num_rows == 0
    clock.tick(112)
    clock.rows(("ann", 2))
    assert clock.tick(115) == [("ann", 110, 115, (2,))]
