"""Which windows an element is in."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arrowstate.errors import InvalidInputError
from arrowstate.functions.windows.assigners import fixed_windows, merged_sessions, session_ends, slices
from arrowstate.windows import (
    CountWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    Trigger,
    TumblingEventTimeWindows,
)

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
INT64 = st.one_of(st.integers(-50, 50), st.integers(LOWEST, HIGHEST), st.sampled_from([LOWEST, HIGHEST]))
SIZES = st.one_of(st.integers(1, 20), st.integers(1, HIGHEST), st.just(HIGHEST))


def windows_of(times, size, slide, offset=0):
    return [part.tolist() for part in fixed_windows(np.array(times, dtype=np.int64), size, slide, offset)]


def saturated(time):
    return min(max(time, LOWEST), HIGHEST)


@given(time=INT64, size=SIZES, offset=st.integers(-19, 19))
@example(time=-1, size=10, offset=0)
@example(time=LOWEST, size=HIGHEST, offset=0)
@example(time=HIGHEST, size=HIGHEST, offset=0)
def test_a_tumbling_window_starts_at_a_multiple_of_the_size_plus_the_offset(time, size, offset):
    offset = offset % size if abs(offset) >= size else offset
    start = time - (time - offset) % size

    assert windows_of([time], size, size, offset) == [[0], [saturated(start)], [saturated(start + size)]]


@given(time=INT64, slide=SIZES, most=st.integers(1, 5), data=st.data())
def test_sliding_windows_are_all_that_hold_the_element_the_latest_first(time, slide, most, data):
    size = data.draw(st.integers(1, min(HIGHEST, slide * most)))
    offset = data.draw(st.integers(-(slide - 1), slide - 1))
    starts = [time - (time - offset) % slide - number * slide for number in range(most + 1)]
    starts = [start for start in starts if start <= time < start + size]

    rows, found_starts, found_ends = windows_of([time], size, slide, offset)

    assert rows == [0] * len(starts)
    assert found_starts == [saturated(start) for start in starts]
    assert found_ends == [saturated(start + size) for start in starts]


@given(st.integers(1, 30), st.integers(1, 9), st.integers(-8, 8), st.lists(st.integers(-60, 60), min_size=2))
def test_timestamps_are_of_one_slice_where_they_are_in_the_same_windows(size, slide, offset, times):
    times += [LOWEST, LOWEST + 1, LOWEST + slide, HIGHEST - 1, HIGHEST]
    rows, starts, ends = fixed_windows(np.array(times), size, slide, offset)
    windows = {number: [] for number in range(len(times))}
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        windows[row].append((start, end))

    found = slices(np.array(times), size, slide, offset).tolist()

    for one, first in enumerate(found):
        for other, second in enumerate(found):
            assert first != second or windows[one] == windows[other]
            if min(times[one], times[other]) >= -60 and max(times[one], times[other]) <= 60:
                same_gap = windows[one] == windows[other] == []
                assert (first == second) == (windows[one] == windows[other]) or same_gap


def test_an_element_in_a_gap_between_windows_is_in_none():
    assert windows_of([0, 2, 3, 9, 10], 3, 10) == [[0, 1, 4], [0, 0, 10], [3, 3, 13]]


@given(st.lists(st.tuples(st.integers(0, 2), INT64), max_size=12), st.one_of(st.integers(1, 30), SIZES))
def test_sessions_that_overlap_or_touch_are_one(elements, gap):
    keys = np.array([key for key, _ in elements], dtype=np.int64)
    times = np.array([time for _, time in elements], dtype=np.int64)
    spans = {(key, time, saturated(time + gap)) for key, time in elements}
    while pair := next(
        ((a, b) for a in spans for b in spans if a != b and a[0] == b[0] and a[1] <= b[2] and b[1] <= a[2]), None
    ):
        spans -= set(pair)
        spans.add((pair[0][0], min(each[1] for each in pair), max(each[2] for each in pair)))

    starts, ends = merged_sessions(keys, times, session_ends(times, gap))

    assert set(zip(keys.tolist(), starts.tolist(), ends.tolist(), strict=True)) == spans
    assert all(start <= time <= end for start, time, end in zip(starts, times, ends, strict=True))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: TumblingEventTimeWindows(0), "size_ms must be a whole number from 1 .* got 0"),
        (lambda: TumblingEventTimeWindows(1.5), "got 1.5"),
        (lambda: TumblingEventTimeWindows(True), "got True"),
        (lambda: TumblingEventTimeWindows(1 << 63), "size_ms"),
        (lambda: TumblingEventTimeWindows(10, 10), "offset_ms must be .* between -10 and 10, both exclusive, got 10"),
        (lambda: TumblingEventTimeWindows(10, -10), "offset_ms"),
        (lambda: SlidingEventTimeWindows(0, 5), "size_ms"),
        (lambda: SlidingEventTimeWindows(5, 0), "slide_ms"),
        (lambda: SlidingEventTimeWindows(10, 5, 5), "offset_ms .* between -5 and 5"),
        (lambda: EventTimeSessionWindows(0), "gap_ms"),
        (lambda: EventTimeSessionWindows(None), "gap_ms"),
        (lambda: CountWindows(0), "size"),
        (lambda: CountWindows(3, 0), "slide"),
        (lambda: Trigger(0), "count of a trigger"),
        (lambda: Trigger(purging=1), "purging"),
    ],
)
def test_what_makes_no_window_is_refused(make, match):
    with pytest.raises(InvalidInputError, match=match):
        make()
