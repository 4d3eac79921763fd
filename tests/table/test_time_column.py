"""The time column of a table against a plain list of rows, over random writes, finds, and going back."""

import gc
import weakref
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arrowstate.table import time_column, time_order
from arrowstate.table import zones as zones_module
from arrowstate.table.merging import MergePolicy
from arrowstate.table.run import Run
from arrowstate.table.spill import Budget
from arrowstate.table.table import Table, gather
from arrowstate.table.time_column import TimeColumn
from arrowstate.table.zones import Zones
from long_form import short_or_long

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


@contextmanager
def in_parts(passes, rows):
    """Have runs put into order after so many passes over their rows, in parts of so many rows."""
    before = time_column._PASSES, time_column._PAID, time_order._ROWS, zones_module._ROWS
    time_column._PASSES, time_column._PAID, time_order._ROWS, zones_module._ROWS = passes, 1, rows, 8
    try:
        yield
    finally:
        time_column._PASSES, time_column._PAID, time_order._ROWS, zones_module._ROWS = before


PARTS = pytest.mark.parametrize(("passes", "rows"), [(0, 8), (0, 1024), (1, 8), (8, 8)])


@PARTS
@settings(max_examples=short_or_long(100, 2_000), deadline=None)
@given(steps=STEPS)
@example(steps=[("add", [[HIGHEST]]), ("earliest", None), ("remove", HIGHEST), ("earliest", None)])
@example(steps=[("add", [[5, 9]]), ("begin", None), ("remove", 5), ("go back", None), ("find", 5)])
@example(
    steps=[
        *(("add", [[5, 9, 7]]), ("find", 9), ("find", 9), ("begin", None)),
        *(("remove", 5), ("find", 9), ("go back", None), ("find", 5)),
    ]
)
def test_what_is_found_is_what_is_due(passes, rows, steps):
    model = Model()
    with in_parts(passes, rows):
        for verb, given_ in steps:
            model.step(verb, given_)


@PARTS
@settings(max_examples=short_or_long(60, 1_000), deadline=None)
@given(runs=st.lists(st.lists(st.lists(TIMES, min_size=1), min_size=1), min_size=1), ends=st.lists(TIMES))
def test_rows_that_stay_are_not_found_again_after_their_time(passes, rows, runs, ends):
    model = Model()
    after = LOWEST
    with in_parts(passes, rows):
        for number, up_to in enumerate(sorted(ends)):
            model.add(runs[number % len(runs)])
            assert model.found(model.column.find(up_to, after)) == model.due(up_to, after)
            after = up_to


def test_a_segment_that_is_not_due_is_not_looked_at():
    model = Model()
    model.add([[10] * 255 + [11], [20] * 256])
    (run,) = model.table.runs
    assert model.column.find(9) == []
    run.segments[1].loaded, run.segments[1].load = None, lambda: 1 / 0

    assert set(model.found(model.column.find(19)).values()) == {10, 11}
    with pytest.raises(ZeroDivisionError):
        model.column.find(20)


@settings(max_examples=short_or_long(100, 3_000), deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    asked=st.lists(st.tuples(st.integers(0, 2**32), st.integers(0, 12)), min_size=1, max_size=12),
    stated=st.booleans(),
)
def test_zones_find_what_is_due_for_whoever_asks_with_whatever_live_bits(sizes, asked, stated):
    random = np.random.default_rng(sum(sizes))
    times = [random.integers(0, 12, size) for size in sizes]
    run = Run.of([pa.record_batch([each, each, each], schema=SCHEMA) for each in times])
    ends = [(int(each.min()), int(each.max())) if stated else (LOWEST, HIGHEST) for each in times]
    zones = Zones(run.segments, 2, ends, rows=8)
    every = np.concatenate(times)

    for seed, up_to in asked:
        flags = np.random.default_rng(seed).random(every.size) < (seed % 5) / 4
        rows, above, _ = zones.pick(np.packbits(flags, bitorder="little"), 2, up_to)

        assert rows.tolist() == np.flatnonzero(flags & (every >= 2) & (every <= up_to)).tolist()
        assert above <= min(every[flags & (every > up_to)], default=HIGHEST)


def test_rows_that_are_spilled_are_let_go_and_found_where_they_lie_now(monkeypatch, tmp_path):
    monkeypatch.setattr(time_column, "_PASSES", 1)
    monkeypatch.setattr(time_order, "_ROWS", 128)
    table = Table(SCHEMA, 1, budget=Budget(0, tmp_path))
    column = TimeColumn(table, 2)
    rows = list(range(4096))
    batch = pa.record_batch([rows, rows, rows], schema=SCHEMA)
    in_memory = weakref.ref(batch)
    table._runs.append(Run.of([batch]))
    del batch
    column.find(5000)

    table.settle()
    found = [column.find(4000, after=time) for time in range(3000, 3990, 10)]

    assert [sum(part.size for _, _, part in each) for each in found] == [4000 - time for time in range(3000, 3990, 10)]
    assert table.runs[0].mapped
    gc.collect()
    assert in_memory() is None
