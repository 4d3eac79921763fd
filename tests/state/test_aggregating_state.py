"""Aggregates: what SQL sees of them, large inputs, and which declarations are refused.

What aggregating state means is in `arrowstate.testing.AggregatingStateSuite`.
"""

import datetime
import math
import sys
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
from stores import USER, backend_of, commit

OLD, NEW = datetime.date(2024, 1, 1), datetime.date(2025, 1, 1)


def state_of(aggregate, kind=pa.int64(), **options):
    return backend_of(USER).state(arrowstate.AggregatingStateDescriptor("a", kind, aggregate=aggregate, **options))


class Spread:
    """Largest minus smallest, of integers."""

    name = "spread"
    accumulator_type = pa.struct([("low", pa.int64()), ("high", pa.int64())])
    result_type = pa.int64()

    def __repr__(self):
        return self.name

    def create(self, count):
        return pa.array([{}] * count, self.accumulator_type)

    def add(self, accumulators, groups, values):
        added = pa.table({"group": groups, "value": values}).group_by("group", use_threads=False)
        added = added.aggregate([("value", "min"), ("value", "max")]).sort_by("group")
        assert added["group"].to_pylist() == list(range(len(accumulators)))
        columns = [added["value_min"].combine_chunks(), added["value_max"].combine_chunks()]
        return self.merge(accumulators, pa.StructArray.from_arrays(columns, fields=list(self.accumulator_type)))

    def merge(self, left, right):
        (low, high), (other_low, other_high) = left.flatten(), right.flatten()
        columns = [pc.min_element_wise(low, other_low), pc.max_element_wise(high, other_high)]
        return pa.StructArray.from_arrays(columns, fields=list(self.accumulator_type))

    def result(self, accumulators):
        low, high = accumulators.flatten()
        return pc.subtract(high, low)


def test_sql_sees_the_columns_of_the_accumulator():
    store = arrowstate.open_store("memory://aggregating-sql", create=True)
    backend = backend_of(USER)
    backend.state(arrowstate.AggregatingStateDescriptor("delay", pa.int64(), aggregate="mean")).add_batch(
        ["a", "b", "a"], [1, 5, 2]
    )
    backend.state(arrowstate.AggregatingStateDescriptor("best", pa.int64(), aggregate=arrowstate.TopK(2))).add_batch(
        ["a", "a", "a"], [1, 5, 2]
    )
    backend.state(arrowstate.AggregatingStateDescriptor("spread", pa.int64(), aggregate=Spread())).add_batch(
        ["a", "a"], [1, 5]
    )
    store.writer().checkpoint({"op": [backend]})

    assert store.sql('select "user", sum / count from op.delay order by 1').fetchall() == [("a", 1.5), ("b", 5.0)]
    assert store.sql("select top from op.best").fetchall() == [([5, 2],)]
    assert store.sql("select high - low from op.spread").fetchall() == [(4,)]
    assert store.latest().lookup("op.spread", ["a"]).to_pylist() == [{"user": "a", "low": 1, "high": 5}]


@pytest.mark.parametrize(
    ("kind", "values", "best"),
    [
        (pa.float64(), [1.5, math.nan, 3.0, -0.0], [math.nan, 3.0]),
        (pa.string(), ["b", "abc", "c"], ["c", "b"]),
        (pa.date32(), [OLD, NEW], [NEW, OLD]),
        (pa.bool_(), [False, True, True], [True, True]),
    ],
)
def test_the_best_values_of_any_type_with_an_order(kind, values, best):
    state = state_of(arrowstate.TopK(2), kind)

    state.add_batch(["a"] * len(values), pa.array(values, kind))

    assert repr(state.get_batch(["a"])[0].as_py()) == repr(best)


def test_a_count_of_many_distinct_values_is_near_and_the_sketch_is_one_of_datasketches():
    import datasketches

    state = state_of(arrowstate.CountDistinct(12), pa.string())
    names = [f"visitor {number}" for number in range(20_000)]

    state.add_batch(["a"] * 20_000, names)
    state.add_batch(["a"] * 20_000, names)

    assert state.get_batch(["a"])[0].as_py() == pytest.approx(20_000, rel=0.05)
    stored = state.accumulators_batch(["a"])[0].as_py()
    assert datasketches.hll_sketch.deserialize(stored["sketch"]).get_estimate() == stored["estimate"]


def test_quantiles_of_many_values_are_near_and_what_is_stored_says_count_and_ends():
    state = state_of(arrowstate.Quantiles((0.25, 0.5, 0.99)), pa.float64())
    values = np.random.default_rng(5).permutation(50_000).astype(float)

    state.add_batch(["a"] * values.size, values)

    assert state.get_batch(["a"])[0].as_py() == pytest.approx([12_500, 25_000, 49_500], abs=1500)
    stored = state.accumulators_batch(["a"])[0].as_py()
    assert (stored["count"], stored["minimum"], stored["maximum"]) == (50_000, 0.0, 49_999.0)


def test_a_variance_of_large_numbers_keeps_its_digits():
    state = state_of("variance", pa.float64())
    for part in ([1e9 + 4, 1e9 + 7], [1e9 + 13], [1e9 + 16]):
        state.add_batch(["a"] * len(part), part)

    assert state.get_batch(["a"]).to_pylist() == [pytest.approx(30.0)]


@pytest.mark.parametrize("aggregate", ["count_distinct", "quantiles"])
def test_a_sketch_without_its_package_says_what_to_install(monkeypatch, aggregate):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    state = state_of(aggregate)

    with pytest.raises(arrowstate.MissingDependencyError, match=r"pip install 'arrowstate\[sketches\]'"):
        state.add_batch(["a"], [1])


@pytest.mark.parametrize(
    ("kind", "aggregate", "message"),
    [
        (pa.string(), "mean", "mean needs numbers, got string"),
        (pa.struct([("x", pa.int64())]), arrowstate.TopK(2), "top_k needs a type with an order"),
        (pa.map_(pa.int64(), pa.int64()), "count_distinct", "needs values that can be hashed"),
        (pa.int64(), "median", "must be one of mean, variance, count_distinct, quantiles, top_k; got 'median'"),
        (pa.int64(), object(), "an aggregate has name, accumulator_type"),
    ],
)
def test_a_descriptor_that_cannot_work_is_refused_at_once(kind, aggregate, message):
    with pytest.raises(arrowstate.InvalidInputError, match=message):
        arrowstate.AggregatingStateDescriptor("a", kind, aggregate=aggregate)


@pytest.mark.parametrize(
    "make",
    [
        lambda: arrowstate.TopK(0),
        lambda: arrowstate.TopK(True),
        lambda: arrowstate.Quantiles(()),
        lambda: arrowstate.Quantiles((1.5,)),
        lambda: arrowstate.Quantiles(k=2),
        lambda: arrowstate.CountDistinct(3),
        lambda: arrowstate.CountDistinct(22),
    ],
)
def test_parameters_out_of_range_are_refused(make):
    with pytest.raises(arrowstate.InvalidInputError, match="got"):
        make()


@pytest.mark.parametrize(
    ("stored", "declared", "values", "may_follow"),
    [
        (pa.int8(), pa.int32(), [1, 2, 3], True),
        (pa.string(), pa.large_string(), ["a", "b", "c"], True),
        (pa.list_(pa.int16()), pa.list_(pa.field("each", pa.int32())), [[1], [2], [3]], True),
        (pa.decimal128(9, 2), pa.decimal128(18, 2), [1, 2, 3], True),
        (pa.int32(), pa.int64(), [1, 2, 3], False),
        (pa.float32(), pa.float64(), [1, 2, 3], False),
        (pa.decimal128(9, 0), pa.decimal128(12, 2), [1, 2, 3], False),
        (pa.date32(), pa.timestamp("us"), [OLD, NEW, None], False),
        (pa.struct([("x", pa.int32())]), pa.struct([("x", pa.int64())]), [{"x": 1}, {"x": 2}, {"x": 3}], False),
    ],
    ids=str,
)
def test_distinct_values_may_become_wider_only_where_they_count_once(stored, declared, values, may_follow):
    store = arrowstate.open_store(f"memory://{uuid.uuid4().hex}", create=True)
    backend = backend_of(USER)
    before, after = (
        arrowstate.AggregatingStateDescriptor("a", kind, aggregate="count_distinct") for kind in (stored, declared)
    )
    backend.state(before).add_batch(["ann"] * 3, values)
    commit(store, {"op": [backend]})
    restored = store.latest().restore("op")

    if may_follow:
        state = restored.state(after)
        state.add_batch(["ann"] * 3, values)
        assert state.get_batch(["ann"]).to_pylist() == [3]
    else:
        with pytest.raises(arrowstate.IncompatibleStateError, match="each would count twice"):
            restored.state(after)
