"""When windows fire, what is late, and what stays."""

import datetime

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.windows import (
    CountWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    Trigger,
    TumblingEventTimeWindows,
    WindowOperator,
)

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
SUM = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")
LIST = arrowstate.ListStateDescriptor("v", pa.int64())
USER = pa.schema([("user", pa.string())])


def backend(key=USER, **options):
    return arrowstate.KeyedStateBackend(key=key, max_parallelism=128, **options)


VIEWS = [
    (pa.array(["x", "y"], pa.string_view()), pa.string(), ["x", "y"]),
    (pa.array([b"x", b"y"], pa.binary_view()), pa.binary(), [b"x", b"y"]),
    (pa.array([["x"], ["y"]], pa.list_(pa.string_view())), pa.list_(pa.string()), [["x"], ["y"]]),
]


@pytest.mark.parametrize(("given", "kind", "plain"), VIEWS, ids=lambda given: str(getattr(given, "type", "")))
@pytest.mark.parametrize(
    "windows",
    [TumblingEventTimeWindows(10), SlidingEventTimeWindows(10, 5), EventTimeSessionWindows(1)],
    ids=lambda windows: type(windows).__name__,
)
def test_values_may_be_views_of_text_and_bytes_as_polars_has_them(windows, given, kind, plain):
    operator = WindowOperator(backend(), windows, arrowstate.ListStateDescriptor("v", kind))
    operator.process(["a", "b"], [1, 2], given)

    fired = operator.advance_watermark(20)
    late = operator.process(["a", "b"], [1, 2], given).late

    by_user = {row["user"]: row["v"] for row in fired.to_pylist()}
    assert by_user == {"a": [plain[0]], "b": [plain[1]]}
    assert late["v"].to_pylist() == plain


# By event time


def test_a_window_fires_when_the_watermark_reaches_its_last_millisecond_and_is_gone(make_job):
    job = make_job(TumblingEventTimeWindows(10))
    job.process(("a", 0, 1), ("a", 9, 2), ("a", 10, 4), ("b", -1, 8))

    assert job.advance(-1) == [("b", -10, 0, 8)]
    assert job.advance(8) == []
    assert job.advance(9) == [("a", 0, 10, 3)]
    assert job.advance(9) == []
    assert job.state_rows == {"v": 1}
    assert job.advance(100) == [("a", 10, 20, 4)]
    assert job.state_rows == {}


def test_results_are_in_the_order_of_the_ends_of_windows(make_job):
    job = make_job(TumblingEventTimeWindows(10))
    for number in range(40):
        job.process((f"key {number % 7}", 300 - number * 10, number))

    fired = job.advance(HIGHEST)

    assert [row[2] for row in fired] == list(range(-80, 311, 10))


def test_a_watermark_that_goes_back_is_passed_over(make_job):
    job = make_job(TumblingEventTimeWindows(10))
    job.advance(50)

    assert job.advance(20) == []
    assert job.process(("a", 30, 1)) == ([], [("a", 30, 1)])
    assert job.operator.late_rows == 1


def test_without_lateness_an_element_of_a_window_that_fired_is_late(make_job):
    job = make_job(TumblingEventTimeWindows(10))
    job.process(("a", 5, 1))
    job.advance(9)

    assert job.process(("a", 6, 2), ("a", 10, 3), ("b", 9, 4)) == ([], [("a", 6, 2), ("b", 9, 4)])
    assert job.operator.late_rows == 2
    assert job.advance(19) == [("a", 10, 20, 3)]


def test_within_the_lateness_a_window_fires_again_with_all_it_has_until_it_is_removed(make_job):
    job = make_job(TumblingEventTimeWindows(10), allowed_lateness_ms=5)
    job.process(("a", 5, 1))

    assert job.advance(9) == [("a", 0, 10, 1)]
    assert job.process(("a", 6, 2), ("a", 7, 4)) == ([("a", 0, 10, 7)], [])
    assert job.process(("b", 6, 8)) == ([("b", 0, 10, 8)], [])
    assert job.advance(13) == []
    assert job.process(("a", 6, 16)) == ([("a", 0, 10, 23)], [])
    assert job.state_rows == {"v": 2, "v_fired": 2}
    assert job.advance(14) == []
    assert job.state_rows == {}
    assert job.process(("a", 6, 32)) == ([], [("a", 6, 32)])


def test_a_trigger_that_purges_gives_what_came_since_it_fired_last(make_job):
    job = make_job(TumblingEventTimeWindows(10), allowed_lateness_ms=5, trigger=Trigger(purging=True))
    job.process(("a", 5, 1))

    assert job.advance(9) == [("a", 0, 10, 1)]
    assert job.process(("a", 6, 2)) == ([("a", 0, 10, 2)], [])
    assert job.process(("a", 6, 4)) == ([("a", 0, 10, 4)], [])
    assert job.state_rows == {}


def test_an_element_is_late_only_if_all_its_windows_are_gone(make_job):
    job = make_job(SlidingEventTimeWindows(10, 5))
    job.process(("a", 7, 1))

    assert job.advance(9) == [("a", 0, 10, 1)]
    assert job.process(("a", 8, 2), ("a", 4, 4)) == ([], [("a", 4, 4)])
    assert job.advance(14) == [("a", 5, 15, 3)]


def test_an_element_between_windows_is_dropped_and_goes_to_the_side_output_only_if_it_is_late(make_job):
    job = make_job(SlidingEventTimeWindows(3, 10), allowed_lateness_ms=2)
    job.advance(27)

    assert job.process(("a", 26, 1), ("a", 25, 2), ("a", 21, 4), ("a", 31, 8)) == ([], [("a", 25, 2), ("a", 21, 4)])
    assert job.advance(100) == [("a", 30, 33, 8)]


def test_a_watermark_at_the_end_of_time_leaves_everything_late(make_job):
    job = make_job(TumblingEventTimeWindows(10), allowed_lateness_ms=HIGHEST)
    job.process(("a", HIGHEST, 1), ("a", LOWEST, 2))

    assert job.advance(HIGHEST - 1) == [("a", LOWEST, LOWEST + 8, 2), ("a", HIGHEST - 7, HIGHEST, 1)]
    assert job.process(("a", 0, 4)) == ([("a", 0, 10, 4)], [])
    assert job.advance(HIGHEST) == []
    assert job.state_rows == {}
    assert job.process(("a", HIGHEST, 8)) == ([], [("a", HIGHEST, 8)])


# Sessions


def test_sessions_merge_when_they_overlap_or_touch_within_a_batch_and_across_batches(make_job):
    job = make_job(EventTimeSessionWindows(10), LIST)
    job.process(("a", 0, 1), ("a", 10, 2), ("a", 31, 3), ("b", 21, 4))
    job.process(("a", 45, 5))

    assert job.process(("a", 21, 6), ("a", 20, 7)) == ([], [])
    assert job.advance(100) == [("b", 21, 31, [4]), ("a", 0, 41, [1, 2, 3, 6, 7]), ("a", 45, 55, [5])]
    assert job.state_rows == {}


def test_one_batch_may_merge_sessions_of_many_keys(make_job):
    job = make_job(EventTimeSessionWindows(10))
    keys = [f"key {number}" for number in range(50)]
    job.process(*[(key, time, 1) for key in keys for time in (0, 15, 30, 60)])

    job.process(*[(key, time, 10) for number, key in enumerate(keys) for time in (7, 22)[: number % 3]])

    expected = []
    for number, key in enumerate(keys):
        merged = [[(0, 10, 1), (15, 25, 1), (30, 40, 1)], [(0, 25, 12), (30, 40, 1)], [(0, 40, 23)]][number % 3]
        expected += [(key, *session) for session in [*merged, (60, 70, 1)]]
    assert sorted(job.advance(100)) == sorted(expected)


def test_a_late_element_that_a_session_still_takes_in_is_not_late(make_job):
    job = make_job(EventTimeSessionWindows(10))
    job.process(("a", 18, 1))
    job.advance(20)

    fired, late = job.process(("a", 9, 2), ("b", 9, 4), ("a", 7, 8))

    assert (fired, late) == ([], [("b", 9, 4)])
    assert job.advance(27) == [("a", 7, 28, 11)]


def test_a_session_that_fired_and_is_merged_fires_again_at_its_new_end(make_job):
    job = make_job(EventTimeSessionWindows(10), allowed_lateness_ms=20)
    job.process(("a", 0, 1))

    assert job.advance(9) == [("a", 0, 10, 1)]
    assert job.process(("a", 5, 2)) == ([], [])
    assert job.state_rows == {"v": 1}
    assert job.advance(13) == []
    assert job.advance(14) == [("a", 0, 15, 3)]
    assert job.process(("a", -5, 4)) == ([("a", -5, 15, 7)], [])
    assert job.advance(33) == []
    assert job.state_rows == {"v": 1, "v_fired": 1}
    assert job.advance(34) == []
    assert job.state_rows == {}


# By count


def test_a_count_makes_a_window_fire_with_the_batch_that_completes_it_and_time_does_not(make_job):
    job = make_job(TumblingEventTimeWindows(10), trigger=Trigger(3))

    assert job.process(("a", 1, 1), ("a", 2, 2), ("b", 3, 4)) == ([], [])
    job.restart(2)
    job.restart()
    assert job.process(("a", 4, 8), ("a", 11, 16), ("b", 11, 32)) == ([("a", 0, 10, 11)], [])
    assert job.process(("a", 5, 64), ("a", 5, 64)) == ([], [])
    assert job.process(("a", 5, 64)) == ([("a", 0, 10, 203)], [])
    assert job.advance(9) == []
    assert job.state_rows == {"v": 2, "v_count": 2}
    assert job.advance(19) == []
    assert job.state_rows == {}


def test_global_windows_fire_by_count_and_keep_or_purge(make_job):
    keeping = make_job(GlobalWindows(), trigger=Trigger(2))
    purging = make_job(GlobalWindows(), LIST, trigger=Trigger(2, purging=True))
    for job in (keeping, purging):
        job.process(("a", None, 1))

    assert keeping.process(("a", None, 2), ("b", None, 4)) == ([("a", LOWEST, HIGHEST, 3)], [])
    assert keeping.process(("a", None, 8), ("a", None, 16)) == ([("a", LOWEST, HIGHEST, 27)], [])
    assert purging.process(("a", None, 2), ("b", None, 4)) == ([("a", LOWEST, HIGHEST, [1, 2])], [])
    assert purging.process(("a", None, 8), ("a", None, 16)) == ([("a", LOWEST, HIGHEST, [8, 16])], [])
    assert keeping.advance(HIGHEST) == purging.advance(HIGHEST) == []
    assert keeping.state_rows == {"v": 2, "v_count": 1}


def test_count_windows_hold_so_many_elements_however_the_batches_are_cut(make_job):
    job = make_job(CountWindows(3), LIST)

    assert job.process(("a", None, 0), ("b", None, 9)) == ([], [])
    fired, _ = job.process(*[("a", None, number) for number in range(1, 8)])
    assert fired == [("a", 0, 3, [0, 1, 2]), ("a", 3, 6, [3, 4, 5])]
    job.restart()
    assert job.process(("a", None, 8)) == ([("a", 6, 9, [6, 7, 8])], [])
    assert job.state_rows == {"v": 1, "v_seen": 2}


def test_sliding_count_windows_have_the_last_elements_every_so_many(make_job):
    job = make_job(CountWindows(5, 2), LIST)

    fired, _ = job.process(*[("a", None, number) for number in range(8)])

    assert fired == [
        ("a", 0, 2, [0, 1]),
        ("a", 0, 4, [0, 1, 2, 3]),
        ("a", 1, 6, [1, 2, 3, 4, 5]),
        ("a", 3, 8, [3, 4, 5, 6, 7]),
    ]


# What a snapshot holds


def test_windows_are_a_table_that_other_tools_read(make_job):
    job = make_job(TumblingEventTimeWindows(10))
    job.process(("a", 5, 1), ("b", 15, 2))
    job.restart()

    table = job.store.latest().to_arrow("op.v").sort_by("k")

    assert table.to_pylist() == [
        {"k": "a", "window_start": 0, "window_end": 10, "v": 1},
        {"k": "b", "window_start": 10, "window_end": 20, "v": 2},
    ]


def test_windows_that_fired_do_not_fire_again_after_subtasks_with_other_watermarks_became_one(make_job):
    job = make_job(TumblingEventTimeWindows(10), allowed_lateness_ms=100)
    job.restart(2)
    keys = [f"key {number}" for number in range(8)]
    job.process(*[(key, 5, 1) for key in keys])
    early = {row[0] for row in job.advance(9, subtask=0)}
    job.restart(1)

    again, *_ = sorted(early)
    assert job.process((again, 6, 2)) == ([], [])
    fired = job.advance(9)

    assert 0 < len(early) < len(keys)
    assert sorted(fired) == sorted([(again, 0, 10, 3), *((key, 0, 10, 1) for key in keys if key not in early)])
    assert job.advance(20) == []


def test_windows_that_stayed_go_without_firing_again_when_the_lateness_is_gone_after_a_restore(make_job):
    job = make_job(TumblingEventTimeWindows(10), allowed_lateness_ms=100)
    job.process(("a", 5, 1), ("a", 15, 2))
    job.advance(9)
    job.make = lambda backend: WindowOperator(backend, TumblingEventTimeWindows(10), SUM)
    job.restart()

    assert job.process(("a", 5, 4)) == ([], [("a", 5, 4)])
    assert job.advance(19) == [("a", 10, 20, 2)]
    assert job.state_rows == {}


def test_two_operators_on_one_backend_both_fire():
    one = backend()
    day = WindowOperator(one, TumblingEventTimeWindows(20), SUM, allowed_lateness_ms=5)
    night = WindowOperator(
        one, TumblingEventTimeWindows(10), arrowstate.ListStateDescriptor("w", pa.int64()), allowed_lateness_ms=5
    )
    for operator in (day, night):
        operator.process(["a", "a"], [1, 15], [1, 2])

    assert day.advance_watermark(19).column("v").to_pylist() == [3]
    assert night.advance_watermark(19).column("w").to_pylist() == [[1], [2]]


def test_a_session_that_the_watermark_of_another_operator_has_passed_takes_nothing_in_and_fires():
    one = backend()
    visits = WindowOperator(one, EventTimeSessionWindows(10), SUM)
    visits.process(["a"], [0], [1])
    one.advance_watermark(50)

    assert visits.process(["a", "a"], [5, 45], [2, 4]).late.column("timestamp").to_pylist() == [5]
    assert [tuple(row.values()) for row in visits.advance_watermark(50).to_pylist()] == [("a", 0, 10, 1)]
    assert [tuple(row.values()) for row in visits.advance_watermark(54).to_pylist()] == [("a", 45, 55, 4)]


# What goes in and comes out


def test_results_and_late_rows_have_types_and_names_of_their_own():
    key = pa.schema([("window_start", pa.int32()), ("timestamp", pa.string())])
    state = arrowstate.AggregatingStateDescriptor("window_end", pa.float64(), aggregate="mean")
    operator = WindowOperator(backend(key), TumblingEventTimeWindows(10), state)
    keys = pa.record_batch({"window_start": pa.array([1, 1], pa.int32()), "timestamp": ["a", "a"]})
    operator.process(keys, [1, 2], [1.0, 4.0])

    fired = operator.advance_watermark(9)
    late = operator.process(keys, [1, 11], [1.0, 4.0]).late

    names = ["window_start", "timestamp", "window_end_window_start", "window_end", "window_end_window_end"]
    assert fired.schema.names == names
    assert fired.to_pylist() == [dict(zip(names, [1, "a", 0, 10, 2.5], strict=True))]
    assert late.schema.names == ["window_start", "timestamp", "window_end_timestamp", "window_end"]
    assert [field.type for field in late.schema] == [pa.int32(), pa.string(), pa.int64(), pa.float64()]
    assert late.num_rows == 1


def test_a_struct_is_reduced_by_field_and_a_count_counts_any_type():
    each = arrowstate.ReducingStateDescriptor(
        "each",
        pa.struct([("n", pa.int64()), ("longest", pa.float64())]),
        reduce={"n": "count", "longest": "max"},
    )
    counted = arrowstate.ReducingStateDescriptor("counted", pa.int64(), reduce="count")
    one = backend()
    operators = [WindowOperator(one, TumblingEventTimeWindows(10), state) for state in (each, counted)]
    operators[0].process(["a", "a"], [1, 2], pa.record_batch({"n": ["x", "y"], "longest": [1.5, None]}))
    operators[1].process(["a", "a"], [1, 2], pa.array(["x", "y"]))

    assert operators[0].advance_watermark(9).column("each").to_pylist() == [{"n": 2, "longest": 1.5}]
    assert operators[1].advance_watermark(9).column("counted").to_pylist() == [2]


def test_keys_that_are_equal_or_only_hash_alike_are_told_apart_as_in_every_state():
    zeros = WindowOperator(backend(pa.schema([("k", pa.float64())])), GlobalWindows(), SUM, trigger=Trigger(2))
    lists = WindowOperator(backend(pa.schema([("k", pa.list_(pa.int64()))])), EventTimeSessionWindows(10), LIST)
    alike = [[1, None], [None, 1], [1]]
    for time in (0, 30, 15, 7):
        lists.process(alike, [time, time, 50], [time, time + 1, 9])

    assert zeros.process([0.0, -0.0], None, [1, 2]).fired.column("v").to_pylist() == [3]
    fired = [tuple(row.values()) for row in lists.advance_watermark(100).to_pylist()]
    assert sorted(fired, key=str) == sorted(
        [
            *[
                (key, start, end, [value + extra for value in values])
                for key, extra in [([1, None], 0), ([None, 1], 1)]
                for start, end, values in [(0, 25, [0, 15, 7]), (30, 40, [30])]
            ],
            ([1], 50, 60, [9, 9, 9, 9]),
        ],
        key=str,
    )


@pytest.mark.parametrize(
    ("unit", "starts"),
    [
        ("s", [LOWEST, HIGHEST - 7]),
        ("ms", [LOWEST, HIGHEST - 7]),
        ("us", [-9_223_372_036_854_780, 9_223_372_036_854_770]),
        ("ns", [-9_223_372_036_860, 9_223_372_036_850]),
    ],
)
def test_the_lowest_and_highest_timestamps_of_every_unit_are_in_windows(unit, starts):
    operator = WindowOperator(backend(), TumblingEventTimeWindows(10), SUM)
    operator.process(["a", "a"], pa.array([LOWEST, HIGHEST]).view(pa.timestamp(unit)), [1, 2])

    fired = operator.advance_watermark(HIGHEST)

    assert fired.select(["window_start", "v"]).to_pydict() == {"window_start": starts, "v": [1, 2]}


def test_a_row_at_the_highest_time_is_late_where_its_window_is_gone():
    operator = WindowOperator(backend(), TumblingEventTimeWindows(10), SUM)
    operator.advance_watermark(HIGHEST - 1)

    output = operator.process(["a", "a"], [HIGHEST - 1, HIGHEST], [1, 2])

    assert output.late["timestamp"].to_pylist() == [HIGHEST - 1, HIGHEST]
    assert operator.late_rows == 2


@pytest.mark.parametrize("descriptor", [SUM, LIST], ids=lambda each: each.kind)
def test_windows_that_fired_and_stayed_do_not_fire_again_under_a_trigger_that_purges(make_job, descriptor):
    job = make_job(TumblingEventTimeWindows(10), descriptor, allowed_lateness_ms=10)
    job.process(("a", 1, 3), ("b", 2, 5), ("a", 11, 7))
    job.advance(9)

    job.make = lambda backend: WindowOperator(
        backend, TumblingEventTimeWindows(10), descriptor, trigger=Trigger(purging=True), allowed_lateness_ms=10
    )
    job.restart()

    total = sum if descriptor is SUM else list
    assert job.advance(12) == []
    assert job.process(("a", 1, 4))[0] == [("a", 0, 10, total([3, 4]))]
    assert job.process(("a", 1, 8))[0] == [("a", 0, 10, total([8]))]
    assert job.advance(19) == [("a", 10, 20, total([7]))]
    assert job.process(("a", 11, 9))[0] == [("a", 10, 20, total([9]))]
    job.advance(29)
    assert job.state_rows == {}


def test_nothing_stays_of_windows_that_fired_before_a_trigger_counts(make_job):
    job = make_job(TumblingEventTimeWindows(10), allowed_lateness_ms=10)
    job.process(("a", 1, 3))
    job.advance(9)

    job.make = lambda backend: WindowOperator(
        backend, TumblingEventTimeWindows(10), SUM, trigger=Trigger(count=2), allowed_lateness_ms=10
    )
    job.restart()
    job.advance(19)

    assert job.state_rows == {}


def test_timestamps_are_rounded_down_to_milliseconds():
    operator = WindowOperator(backend(), TumblingEventTimeWindows(10), SUM)
    zero = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    given = [zero - datetime.timedelta(microseconds=1), zero]
    times = pa.array(given, pa.timestamp("us", tz="UTC"))
    operator.process(["a", "a"], pa.chunked_array([times[:1], times[1:]]), [1, 2])
    operator.process(["a", "a"], given, [10, 20])

    assert operator.advance_watermark(9).select(["window_start", "v"]).to_pydict() == {
        "window_start": [-10, 0],
        "v": [11, 22],
    }


def test_an_empty_batch_changes_nothing_and_gives_nothing():
    operator = WindowOperator(backend(), EventTimeSessionWindows(10), LIST, allowed_lateness_ms=3)

    output = operator.process(pa.array([], pa.string()), pa.array([], pa.int64()), pa.array([], pa.int64()))

    assert output.fired.num_rows == output.late.num_rows == operator.advance_watermark(5).num_rows == 0
    assert output.fired.schema == operator.advance_watermark(6).schema


def test_a_callable_that_returns_none_leaves_its_window_without_a_result():
    smallest = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce=lambda a, b: a if a < b else None)
    operator = WindowOperator(backend(), TumblingEventTimeWindows(10), smallest, allowed_lateness_ms=5)
    operator.process(["a", "a", "b"], [1, 2, 3], [5, 1, 7])

    assert operator.advance_watermark(9).to_pylist() == [
        {"user": "b", "window_start": 0, "window_end": 10, "v": 7}
    ]  # fmt: skip
    assert operator.process(["b"], [4], [2]).fired.num_rows == 0


# Errors


@pytest.mark.parametrize(
    ("windows", "descriptor", "options", "match"),
    [
        ("10 s", SUM, {}, "assigners"),
        (TumblingEventTimeWindows(10), arrowstate.ValueStateDescriptor("v", pa.int64()), {}, "reducing, aggregating"),
        (
            TumblingEventTimeWindows(10),
            arrowstate.ListStateDescriptor("v", pa.int64(), ttl=arrowstate.TimeToLive(5)),
            {},
            "time to live",
        ),
        (
            TumblingEventTimeWindows(10),
            arrowstate.ListStateDescriptor("v", pa.int64(), namespace=pa.schema([("day", pa.int32())])),
            {},
            "namespaces",
        ),
        (TumblingEventTimeWindows(10), SUM, {"allowed_lateness_ms": -1}, "allowed_lateness_ms .* got -1"),
        (TumblingEventTimeWindows(10), SUM, {"allowed_lateness_ms": 1.0}, "allowed_lateness_ms"),
        (TumblingEventTimeWindows(10), SUM, {"trigger": 3}, "trigger"),
        (GlobalWindows(), SUM, {}, "never end"),
        (GlobalWindows(), SUM, {"trigger": Trigger(2), "allowed_lateness_ms": 1}, "nothing is late"),
        (CountWindows(2), SUM, {"trigger": Trigger(2)}, "take no trigger"),
        (EventTimeSessionWindows(2), SUM, {"trigger": Trigger(2, purging=True)}, "purge"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_make_no_state(windows, descriptor, options, match):
    one = backend()

    with pytest.raises(arrowstate.InvalidInputError, match=match):
        WindowOperator(one, windows, descriptor, **options)

    assert one.state_names == ()


def test_a_state_of_another_kind_is_refused():
    one = backend()
    WindowOperator(one, TumblingEventTimeWindows(10), SUM)

    with pytest.raises(arrowstate.IncompatibleStateError):
        WindowOperator(one, TumblingEventTimeWindows(10), LIST)


@pytest.mark.parametrize(
    "windows", [TumblingEventTimeWindows(10), EventTimeSessionWindows(10)], ids=["fixed", "session"]
)
@pytest.mark.parametrize(
    ("error", "keys", "times", "values", "match"),
    [
        (arrowstate.NullKeyError, ["a", None], [1, 2], [1, 2], "user"),
        (arrowstate.KeyTypeError, [1, 2], [1, 2], [1, 2], "user"),
        (arrowstate.KeyOutOfRangeError, ["a", "b", "c", "d", "e", "f"], [1] * 6, [1] * 6, "key group"),
        (arrowstate.InvalidInputError, ["a", "a"], [1, None], [1, 2], "timestamp must not be null, the one in row 1"),
        (arrowstate.InvalidInputError, ["a", "a"], [1], [1, 2], "2 keys need 2 timestamps"),
        (arrowstate.InvalidInputError, ["a", "a"], None, [1, 2], "needs a timestamp"),
        (arrowstate.ValueTypeError, ["a", "a"], [1, 1.5], [1, 2], "timestamps"),
        (
            arrowstate.InvalidInputError,
            ["a", "a"],
            [1, 2],
            [1, None],
            "value of a window must not be null, the one in row 1",
        ),
        (arrowstate.InvalidInputError, ["a", "a"], [1, 2], [1], "2 keys need 2 values"),
        (arrowstate.ValueTypeError, ["a", "a"], [1, 2], pa.array(["x", "y"]), "v"),
        (arrowstate.ValueTypeError, ["a", "a"], [-50, -50], pa.array(["x", "y"]), "v"),
        (arrowstate.ValueOverflowError, ["a", "a"], [1, 2], [1, HIGHEST], "v"),
    ],
)
def test_a_batch_that_does_not_fit_changes_nothing(windows, error, keys, times, values, match):
    one = backend(key_groups=arrowstate.KeyGroupRange(*own_groups("a")))
    operator = WindowOperator(one, windows, SUM, allowed_lateness_ms=5)
    operator.process(["a"], [25], [1])
    operator.advance_watermark(0)

    with pytest.raises(error, match=match):
        operator.process(keys, times, values)

    assert operator.late_rows == 0
    assert one.watermark == 0
    assert [row["v"] for row in operator.advance_watermark(100).to_pylist()] == [1]


def own_groups(key):
    (group,) = arrowstate.key_groups(pa.array([key]), 128).to_pylist()
    return group, group


@pytest.mark.parametrize("windows", [CountWindows(2), GlobalWindows()], ids=["count", "global"])
def test_windows_without_time_take_no_timestamps(windows):
    trigger = Trigger(2) if windows == GlobalWindows() else None
    operator = WindowOperator(backend(), windows, SUM, trigger=trigger)

    with pytest.raises(arrowstate.InvalidInputError, match="knows no time; pass None"):
        operator.process(["a"], [1], [1])


@pytest.mark.parametrize("lateness", [0, 50])
def test_a_batch_that_fails_after_sessions_were_merged_leaves_them_apart(lateness):
    operator = WindowOperator(backend(), EventTimeSessionWindows(10), SUM, allowed_lateness_ms=lateness)
    operator.process(["a", "a"], [0, 15], [HIGHEST - 10, 5])

    with pytest.raises(arrowstate.ValueOverflowError):
        operator.process(["a"], [8], [100])

    assert operator.advance_watermark(9).column("v").to_pylist() == [HIGHEST - 10]
    assert operator.advance_watermark(24).column("v").to_pylist() == [5]


def test_a_session_that_fired_is_one_that_fired_still_after_a_batch_that_fails():
    operator = WindowOperator(backend(), EventTimeSessionWindows(10), SUM, allowed_lateness_ms=50)
    operator.process(["a", "a"], [0, 15], [HIGHEST - 10, 5])
    operator.advance_watermark(9)

    with pytest.raises(arrowstate.ValueOverflowError):
        operator.process(["a"], [8], [100])

    assert operator.advance_watermark(24).column("v").to_pylist() == [5]
    assert operator.process(["a"], [8], [5]).fired.to_pylist() == [
        {"user": "a", "window_start": 0, "window_end": 25, "v": HIGHEST}
    ]


def test_a_batch_whose_count_windows_fail_is_not_counted():
    operator = WindowOperator(backend(), CountWindows(2), SUM)
    operator.process(["a"], None, [HIGHEST])

    with pytest.raises(arrowstate.ValueOverflowError):
        operator.process(["a", "b"], None, [1, 1])

    assert operator.process(["a", "b", "b"], None, [0, 1, 2]).fired.column("v").to_pylist() == [HIGHEST, 3]


class Fragile:
    """Sums values, and fails to give a result as long as it is told to."""

    name = "fragile"
    accumulator_type = pa.struct([("sum", pa.int64())])
    result_type = pa.int64()
    fails = True

    def create(self, count):
        return pa.array([{"sum": 0}] * count, self.accumulator_type)

    def add(self, accumulators, groups, values):
        sums = accumulators.field(0).to_pylist()
        for group, value in zip(groups.to_pylist(), values.to_pylist(), strict=True):
            sums[group] += value
        return pa.array([{"sum": total} for total in sums], self.accumulator_type)

    def merge(self, accumulators, others):
        return self.add(accumulators, pa.array(range(len(others))), others.field(0))

    def result(self, accumulators):
        if self.fails:
            raise RuntimeError("not now")
        return accumulators.field(0)


@pytest.mark.parametrize("lateness", [0, 50])
def test_an_aggregate_that_fails_leaves_windows_and_watermark_as_they_were(lateness):
    aggregate = Fragile()
    state = arrowstate.AggregatingStateDescriptor("v", pa.int64(), aggregate=aggregate)
    one = backend()
    operator = WindowOperator(one, TumblingEventTimeWindows(10), state, allowed_lateness_ms=lateness)
    operator.process(["a", "b"], [1, 12], [1, 2])

    with pytest.raises(RuntimeError, match="not now"):
        operator.advance_watermark(9)
    assert one.watermark is None
    aggregate.fails = False
    assert operator.advance_watermark(9).column("v").to_pylist() == [1]
    aggregate.fails = True
    if lateness:
        with pytest.raises(RuntimeError, match="not now"):
            operator.process(["a", "b"], [1, 12], [10, 20])
    aggregate.fails = False
    assert operator.process(["a"], [2], [5]).fired.column("v").to_pylist() == ([6] if lateness else [])
    assert operator.advance_watermark(100).column("v").to_pylist() == [2]


def test_an_aggregate_that_fails_when_a_count_fires_it_leaves_window_and_count_as_they_were():
    aggregate = Fragile()
    state = arrowstate.AggregatingStateDescriptor("v", pa.int64(), aggregate=aggregate)
    operator = WindowOperator(backend(), TumblingEventTimeWindows(10), state, trigger=Trigger(2))
    operator.process(["a"], [1], [1])

    with pytest.raises(RuntimeError, match="not now"):
        operator.process(["a", "b"], [2, 2], [10, 20])

    aggregate.fails = False
    assert operator.process(["a", "b"], [2, 2], [3, 4]).fired.column("v").to_pylist() == [4]


def test_a_reducer_that_raises_leaves_windows_as_they_were():
    def add(old, new):
        if new < 0:
            raise ValueError("negative")
        return old + new

    state = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce=add)
    operator = WindowOperator(backend(), SlidingEventTimeWindows(10, 5), state, trigger=Trigger(2))
    operator.process(["a"], [7], [1])

    with pytest.raises(arrowstate.ProcessElementError, match="negative"):
        operator.process(["a", "b"], [8, 8], [-1, 1])

    assert operator.process(["a"], [8], [2]).fired.column("v").to_pylist() == [3, 3]


# Errors


def unlucky(total, value):
    if 13 in (total, value):
        raise ValueError("13")
    return total + value


@pytest.mark.parametrize(
    ("windows", "times", "values", "row"),
    [
        (TumblingEventTimeWindows(10), [1, 2, 105, 106], [1, 1, 1, 13], 3),
        (SlidingEventTimeWindows(100, slide_ms=10), [101, 1005, 1006], [1, 1, 13], 2),
        (EventTimeSessionWindows(10), [1, 2, 105, 106], [1, 1, 1, 13], 3),
        # The last row joins the sessions of two others, one of which is of 13 alone.
        (EventTimeSessionWindows(11), [500, 110, 130, 120], [1, 13, 1, 1], 2),
    ],
    ids=["after late rows", "in several windows", "sessions", "sessions joined"],
)
@pytest.mark.parametrize("batches", [1, 2])
def test_an_error_of_a_reducer_names_the_row_of_the_batch(windows, times, values, row, batches):
    contents = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce=unlucky)
    operator = WindowOperator(backend(), windows, contents)
    operator.advance_watermark(100)
    first = len(times) - 1 if batches == 2 else 0
    if first:
        operator.process(["a"] * first, times[:first], values[:first])

    with pytest.raises(arrowstate.ProcessElementError, match=r"ValueError: 13") as raised:
        operator.process(["a"] * (len(times) - first), times[first:], values[first:])

    assert raised.value.row == (0 if first else row)
