"""Every sort of window against a dict, through late elements, failures and changes of scale.

The long form tries fifty times as many.
"""

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import arrowstate
from arrowstate.functions.windows import operator
from arrowstate.state.kinds.list import ListState
from arrowstate.state.kinds.reducing import ReducingState
from arrowstate.table.merging import MergePolicy
from arrowstate.windows import (
    CountWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    Trigger,
    TumblingEventTimeWindows,
)
from long_form import short_or_long

SUM = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")
LIST = arrowstate.ListStateDescriptor("v", pa.int64())
MEAN = arrowstate.AggregatingStateDescriptor("v", pa.int64(), aggregate="mean")
RESULTS = {SUM: sum, LIST: list, MEAN: lambda values: sum(values) / len(values)}
TINY_RUNS = MergePolicy(fan_in=2, first_tier_rows=2, max_dead_share=0.3, segment_bytes=1)
BACKENDS = [{}, {"merge_policy": TINY_RUNS}, {"memory_budget_bytes": 0}]
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


class Model:
    """What windows do, a row at a time, in plain Python."""

    def __init__(self, windows, result, trigger=None, allowed_lateness_ms=0):
        self.windows, self.result = windows, result
        self.trigger = trigger or Trigger()
        self.lateness = allowed_lateness_ms
        self.contents = {}
        self.counts = {}
        self.fired = set()
        self.seen = {}
        self.watermark = None
        self.timed = not isinstance(windows, (CountWindows, GlobalWindows))

    def passed(self, window, lateness=0):
        return self.timed and self.watermark is not None and window[2] - 1 + lateness <= self.watermark

    def assign(self, key, time):
        windows = self.windows
        if isinstance(windows, GlobalWindows):
            return [(key, LOWEST, HIGHEST)]
        if isinstance(windows, CountWindows):
            position = self.seen.get(key, 0)
            self.seen[key] = position + 1
            slide = windows.slide or windows.size
            ends = range(slide, position + windows.size + slide + 1, slide)
            return [(key, max(0, end - windows.size), end) for end in ends if end - windows.size <= position < end]
        size = windows.size_ms
        slide = windows.slide_ms if isinstance(windows, SlidingEventTimeWindows) else size
        first = (time - size) // slide - 1
        starts = [number * slide + windows.offset_ms for number in range(first - 1, first + size // slide + 5)]
        return [(key, start, start + size) for start in starts if start <= time < start + size]

    def sessions(self, rows):
        """Return the windows of the rows, after merging what is there."""
        spans = {(key, time, time + self.windows.gap_ms) for key, time, _ in rows} | set(self.contents)
        while pair := next(
            ((a, b) for a in spans for b in spans if a != b and a[0] == b[0] and a[1] <= b[2] and b[1] <= a[2]), None
        ):
            (key, *_), _ = pair
            spans -= set(pair)
            spans.add((key, min(window[1] for window in pair), max(window[2] for window in pair)))
        for span in spans:
            inside = sorted(w for w in self.contents if w[0] == span[0] and span[1] <= w[1] and w[2] <= span[2])
            if inside and inside != [span]:
                self.contents[span] = [value for window in inside for value in self.contents.pop(window)]
                self.counts[span] = sum(self.counts.pop(window, 0) for window in inside)
                self.fired -= set(inside)
        return [[next(s for s in spans if s[0] == key and s[1] <= time < s[2])] for key, time, _ in rows]

    def process(self, rows):
        late, touched = [], []
        session = isinstance(self.windows, EventTimeSessionWindows)
        assigned = self.sessions(rows) if session else [self.assign(key, time) for key, time, _ in rows]
        for (key, time, value), windows in zip(rows, assigned, strict=True):
            open_windows = [window for window in windows if not self.passed(window, self.lateness)]
            if not open_windows and self.passed((key, time, time + 1), self.lateness):
                late.append((key, time, value))
            for window in open_windows:
                self.contents.setdefault(window, []).append(value)
                self.counts[window] = self.counts.get(window, 0) + 1
                touched.append(window)
        return self.fire(window for window in set(touched) if self.due(window)), late

    def due(self, window):
        if isinstance(self.windows, CountWindows):
            return window[2] <= self.seen[window[0]]
        return self.counts[window] >= self.trigger.count if self.trigger.count else self.passed(window)

    def fire(self, windows):
        fired = []
        for window in list(windows):
            fired.append((*window, self.result(self.contents[window])))
            self.fired.add(window)
            self.counts[window] = 0
            if self.trigger.purging or isinstance(self.windows, CountWindows):
                del self.contents[window]
        return fired

    def advance(self, watermark):
        if self.watermark is not None and watermark < self.watermark:
            return []
        self.watermark = watermark
        fired = []
        if not self.trigger.count:
            fired = self.fire(w for w in self.contents if self.passed(w) and w not in self.fired)
        for window in [w for w in {*self.contents, *self.counts} if self.passed(w, self.lateness)]:
            self.contents.pop(window, None)
            self.counts.pop(window, None)
            self.fired.discard(window)
        return fired


KEYS = ["a", "b", "c", "d", "e"]
ROWS = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-20, 40), st.integers(-9, 9)), max_size=8)
STEPS = st.lists(
    st.one_of(
        ROWS.map(lambda rows: ("rows", rows)),
        st.integers(-25, 60).map(lambda time: ("watermark", time)),
        st.sampled_from([(1, 128), (3, 20), (2, 32768)]).map(lambda scale: ("restart", scale)),
    ),
    max_size=12,
)
FIXED = st.one_of(
    st.builds(TumblingEventTimeWindows, st.just(7), st.integers(-6, 6)),
    st.builds(SlidingEventTimeWindows, st.integers(1, 9), st.just(4), st.integers(-3, 3)),
)
LATENESS = st.sampled_from([0, 3, 11])
TRIGGERS = st.builds(Trigger, st.sampled_from([None, None, 1, 3]), st.booleans())
SETUPS = st.one_of(
    st.tuples(FIXED, st.fixed_dictionaries({"trigger": TRIGGERS, "allowed_lateness_ms": LATENESS})),
    st.tuples(
        st.builds(EventTimeSessionWindows, st.integers(1, 6)),
        st.fixed_dictionaries(
            {"trigger": st.sampled_from([None, Trigger(2), Trigger(4)]), "allowed_lateness_ms": LATENESS}
        ),
    ),
    st.tuples(
        st.builds(CountWindows, st.integers(1, 4), st.sampled_from([None, 1, 2, 5])), st.just({})
    ),
    st.tuples(
        st.just(GlobalWindows()),
        st.fixed_dictionaries({"trigger": st.builds(Trigger, st.integers(1, 4), st.booleans())}),
    ),
)  # fmt: skip


def run(job, model, steps, timed):
    for kind, what in steps:
        if kind == "rows":
            fired, late = job.process(*what)
            expected_fired, expected_late = model.process(what)
            assert sorted(fired) == sorted(expected_fired)
            assert sorted(late) == sorted(expected_late)
        elif kind == "watermark":
            fired = job.advance(what)
            assert sorted(fired) == sorted(model.advance(what))
            if len(job.operators) == 1:
                assert [row[2] for row in fired] == sorted(row[2] for row in fired)
        else:
            job.restart(*what)
    assert sum(len(operator._contents) for operator in job.operators) == sum(
        len(values) if isinstance(job.operators[0]._contents, ListState) else 1 for values in model.contents.values()
    )


@pytest.mark.parametrize("descriptor", [SUM, LIST, MEAN], ids=lambda each: each.kind)
@settings(max_examples=short_or_long(60, 3000), suppress_health_check=[HealthCheck.too_slow])
@given(setup=SETUPS, steps=STEPS, backend=st.sampled_from(BACKENDS))
def test_windows_do_what_a_dict_does(make_job, descriptor, setup, steps, backend):
    windows, options = setup
    job = make_job(windows, descriptor, backend=backend, **options)
    model = Model(windows, RESULTS[descriptor], **options)

    run(job, model, steps, job.timed)


@settings(max_examples=short_or_long(40, 2000))
@given(setup=SETUPS, rows=st.lists(ROWS, max_size=4), watermark=st.integers(-25, 60))
def test_how_rows_are_cut_into_batches_makes_no_difference_to_windows_that_wait(make_job, setup, rows, watermark):
    windows, options = setup
    if options.get("trigger") is not None and options["trigger"].count is not None:
        return
    whole, parts = make_job(windows, LIST, **options), make_job(windows, LIST, **options)
    fired = sorted(whole.process(*[row for batch in rows for row in batch])[0])

    fired_by_parts = [row for batch in rows for row in parts.process(*batch)[0]]

    # Which element of a list comes first depends on when sessions were merged.
    results = [
        [(*window, sorted(values)) for *window, values in part]
        for job in (parts, whole)
        for part in (job.advance(watermark), job.advance(HIGHEST))
    ]
    assert sorted(fired_by_parts) == fired
    assert results[:2] == results[2:]
    assert not isinstance(windows, EventTimeSessionWindows) or whole.state_rows == {}


FOLDS = {"sum": sum, "count": len, "min": min, "max": max, "first": lambda values: values[0]}
MANY_OF_FEW = st.lists(st.tuples(st.sampled_from(KEYS[:2]), st.integers(-2, 9), st.integers(-9, 9)), max_size=40)


@pytest.fixture(scope="module")
def fold_few():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "_FEWEST_FOLDED", 2)
        yield


@pytest.mark.usefixtures("fold_few")
@pytest.mark.parametrize("reduce", FOLDS)
@settings(max_examples=short_or_long(60, 3000), suppress_health_check=[HealthCheck.too_slow])
@given(
    windows=st.builds(SlidingEventTimeWindows, st.integers(2, 17), st.sampled_from([1, 4]), st.just(0)),
    lateness=LATENESS,
    steps=st.lists(
        st.one_of(
            MANY_OF_FEW.map(lambda rows: ("rows", [(key, time, abs(value)) for key, time, value in rows])),
            MANY_OF_FEW.map(lambda rows: ("rows", rows)),
            st.integers(-3, 20).map(lambda time: ("watermark", time)),
        ),
        max_size=8,
    ),
)
def test_rows_that_were_folded_before_they_went_into_windows_are_all_in_them(
    make_job, reduce, windows, lateness, steps
):
    descriptor = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce=reduce)
    job = make_job(windows, descriptor, backend={}, allowed_lateness_ms=lateness)
    model = Model(windows, FOLDS[reduce], allowed_lateness_ms=lateness)

    run(job, model, steps, job.timed)


@pytest.mark.usefixtures("fold_few")
def test_rows_of_structs_are_folded_field_by_field_and_only_where_the_result_is_the_same(monkeypatch):
    taken = []
    add = ReducingState.add_partials_batch
    monkeypatch.setattr(
        ReducingState, "add_partials_batch", lambda *given, **named: taken.append(given) or add(*given, **named)
    )
    fields = {"n": "count", "total": "sum", "highest": "max"}
    kind = pa.struct([(name, pa.int64()) for name in fields])
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    descriptor = arrowstate.ReducingStateDescriptor("v", kind, reduce=fields)
    windows = arrowstate.windows.WindowOperator(backend, SlidingEventTimeWindows(10, 5), descriptor)
    for values in ([3, 1, 2], [HIGHEST - 9, -4, 4]):
        rows = pa.array([{"n": 1, "total": value, "highest": value} for value in values], kind)
        windows.process(["a"] * 3, [6, 7, 8], rows)

    fired = windows.advance_watermark(100).to_pylist()

    assert len(taken) == 1, "the second batch has sums of both signs"
    assert [row["v"] for row in fired] == [{"n": 6, "total": HIGHEST - 3, "highest": HIGHEST - 9}] * 2
    with pytest.raises(arrowstate.errors.ValueOverflowError):
        windows.process(["b"] * 3, [106, 107, 108], pa.array([{"n": 1, "total": 1 << 62, "highest": 1}] * 3, kind))
    assert windows.advance_watermark(200).num_rows == 0


@pytest.mark.usefixtures("fold_few")
def test_a_sum_of_a_batch_that_no_window_gets_by_itself_may_be_larger_than_its_type():
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    descriptor = arrowstate.ReducingStateDescriptor("v", pa.int8(), reduce="sum")
    windows = arrowstate.windows.WindowOperator(backend, SlidingEventTimeWindows(10, 5), descriptor)
    windows.process(["a"], [106], pa.array([-100], pa.int8()))
    windows.process(["a"] * 2, [106] * 2, pa.array([100] * 2, pa.int8()))

    fired = windows.advance_watermark(200)
    late = windows.process(["a"] * 3, [106] * 3, pa.array([100] * 3, pa.int8())).late

    assert fired["v"].to_pylist() == [100, 100]
    assert late["v"].to_pylist() == [100, 100, 100]


def test_a_job_on_a_disk_goes_on_where_it_was(make_job, tmp_path):
    windows, options = EventTimeSessionWindows(5), {"allowed_lateness_ms": 6}
    job = make_job(windows, LIST, url=str(tmp_path / "store"), **options)
    model = Model(windows, list, **options)
    rows = [(key, time, time) for time in range(0, 60, 3) for key in KEYS if (time + ord(key)) % 4]
    steps = [("rows", rows[0::2]), ("watermark", 20), ("restart", (2, 128)), ("rows", rows[1::2]), ("restart", (1, 64))]

    run(
        job,
        model,
        [*steps, ("watermark", 33), ("rows", [("a", 25, -1)]), ("restart", (3, 128)), ("watermark", 99)],
        True,
    )

    assert job.state_rows == {}
