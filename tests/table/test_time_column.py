"""The time column of a table against a plain list of rows, over random writes, finds, and going back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arrowstate.table import time_column
from arrowstate.table.merging import MergePolicy
from arrowstate.table.run import Run
from arrowstate.table.table import Table, gather
from arrowstate.table.time_column import TimeColumn

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
SCHEMA = pa.schema([("_key_hash", pa.int64()), ("key", pa.int64()), ("time", pa.int64())])
POLICY = MergePolicy(fan_in=2, first_tier_rows=4, segment_bytes=1)
TIMES = st.one_of(st.integers(0, 30), st.sampled_from([LOWEST, LOWEST + 1, HIGHEST - 1, HIGHEST]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.lists(TIMES, min_size=1, max_size=6), min_size=1, max_size=3)),
        st.tuples(st.just("kill"), TIMES),
        st.tuples(st.sampled_from(["find", "remove", "cut", "overlapping", "none after"]), TIMES),
        st.tuples(st.sampled_from(["earliest", "begin", "keep", "go back", "settle"]), st.none()),
    ),
    max_size=30,
)


class Model:
    """The column under test, and the times of the live rows by key."""

    def __init__(self):
        self.table = Table(SCHEMA, 1, policy=POLICY)
        self.column = TimeColumn(self.table, 2)
        self.rows = {}
        self.added = 0
        self.marks = []

    def add(self, batches):
        """Add a run with a segment for each of the lists."""
        parts = []
        for times in batches:
            keys = list(range(self.added, self.added + len(times)))
            self.rows |= dict(zip(keys, times, strict=True))
            self.added += len(times)
            parts.append(pa.record_batch([keys, keys, times], schema=SCHEMA))
        self.table._runs.append(Run.of(parts))

    def kill(self, time):
        """Drop all rows of a time behind the column's back."""
        for run in self.table.runs:
            for segment in run.segments:
                same = np.flatnonzero(segment.batch.column(2).to_numpy() == time)
                self.table.kill(run, same + segment.first_row)
        self.rows = {key: each for key, each in self.rows.items() if each != time}

    def found(self, rows):
        keys, times = (gather(rows, number, pa.int64()).to_pylist() for number in (1, 2))
        return dict(zip(keys, times, strict=True))

    def due(self, up_to, after=LOWEST - 1):
        return {key: time for key, time in self.rows.items() if after < time <= up_to}

    def step(self, verb, given):
        if verb == "add":
            self.add(given)
        elif verb == "kill":
            self.kill(given)
        elif verb == "find":
            assert self.found(self.column.find(given)) == self.due(given)
        elif verb == "remove":
            rows = self.column.find(given)
            assert self.found(rows) == self.due(given)
            self.column.remove(rows)
            self.rows = {key: time for key, time in self.rows.items() if time > given}
        elif verb == "cut":
            cut = self.column.cut(given, 3)
            assert (cut is None) == (not self.due(given))
            assert cut is None or min(self.rows.values()) <= cut <= given
        elif verb == "overlapping":
            runs = self.column.overlapping(given, given)
            holding = [run for run in self.table.runs if given in self.found([_all(run)]).values()]
            assert all(any(run is other for other in runs) for run in holding)
        elif verb == "none after":
            assert not self.column.none_after(given) or all(time <= given for time in self.rows.values())
        elif verb == "earliest":
            assert self.column.earliest() == min(self.rows.values(), default=None)
        elif verb == "settle":
            self.table.settle()
        elif verb == "begin":
            self.marks.append((self.table.begin(), self.column.begin(), dict(self.rows)))
        elif verb == "keep" and self.marks:
            self.marks.pop()
            self.table.keep()
            self.column.keep()
        elif verb == "go back" and self.marks:
            table, column, self.rows = self.marks.pop()
            self.table.go_back(table)
            self.column.go_back(column)


def _all(run):
    rows = np.arange(run.first_row, run.last_row)
    live = np.unpackbits(run.live, bitorder="little")[rows - run.first_row].astype(bool)
    return run, rows[live], rows[live]


@pytest.mark.parametrize("passes", [0, 1, 8])
@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
@example(steps=[("add", [[HIGHEST]]), ("earliest", None), ("remove", HIGHEST), ("earliest", None)])
@example(steps=[("add", [[5, 9]]), ("begin", None), ("remove", 5), ("go back", None), ("find", 5)])
def test_what_is_found_is_what_is_due(passes, steps):
    model = Model()
    before, time_column._PASSES = time_column._PASSES, passes
    try:
        for verb, given_ in steps:
            model.step(verb, given_)
    finally:
        time_column._PASSES = before


@pytest.mark.parametrize("passes", [0, 1, 8])
@settings(max_examples=100, deadline=None)
@given(runs=st.lists(st.lists(st.lists(TIMES, min_size=1), min_size=1), min_size=1), ends=st.lists(TIMES))
def test_rows_that_stay_are_not_found_again_after_their_time(passes, runs, ends):
    model = Model()
    after = LOWEST
    before, time_column._PASSES = time_column._PASSES, passes
    try:
        for number, up_to in enumerate(sorted(ends)):
            model.add(runs[number % len(runs)])
            assert model.found(model.column.find(up_to, after)) == model.due(up_to, after)
            after = up_to
    finally:
        time_column._PASSES = before


def test_a_segment_that_is_not_due_is_not_looked_at():
    model = Model()
    model.add([[10, 11], [20, 21]])
    (run,) = model.table.runs
    assert model.column.find(9) == []
    run.segments[1].stored = None

    assert model.found(model.column.find(19)) == {0: 10, 1: 11}
    with pytest.raises(AttributeError):
        model.column.find(20)
