"""Aggregating state: what is stored is the accumulator, what is read is the result."""

from __future__ import annotations

import datetime
import math
import statistics
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
from arrowstate import (
    AggregatingStateDescriptor,
    CountDistinct,
    IncompatibleStateError,
    InvalidInputError,
    KeyedStateBackend,
    Mean,
    MissingDependencyError,
    Quantiles,
    TimeToLive,
    TopK,
    ValueTypeError,
    Variance,
)

USER = pa.schema([("user", pa.string())])
OLD, NEW = datetime.date(2024, 1, 1), datetime.date(2025, 1, 1)
WINDOW = pa.schema([("start", pa.int64())])
BUILT_IN = [
    Mean(),
    Variance(),
    Variance(population=True),
    CountDistinct(),
    Quantiles((0.0, 0.5, 1.0)),
    TopK(3),
    TopK(2, smallest=True),
]


def backend_of(**options):
    return KeyedStateBackend(key=USER, max_parallelism=128, **options)


def state_of(aggregate, kind=pa.int64(), **options):
    return backend_of().state(AggregatingStateDescriptor("a", kind, aggregate=aggregate, **options))


def expected(aggregate, values):
    """What an aggregate must return for a list of numbers, in plain Python."""
    if not values:
        return None
    if isinstance(aggregate, Mean):
        return pytest.approx(statistics.fmean(values))
    if isinstance(aggregate, Variance):
        if aggregate.population:
            return pytest.approx(statistics.pvariance(values))
        return pytest.approx(statistics.variance(values)) if len(values) > 1 else None
    if isinstance(aggregate, CountDistinct):
        return len(set(values))
    if isinstance(aggregate, Quantiles):
        ordered = sorted(values)
        # As in DataSketches: the smallest value whose rank is at least the one asked for.
        return [float(ordered[max(0, math.ceil(q * len(ordered)) - 1)]) for q in aggregate.at]
    return sorted(values, reverse=not aggregate.smallest)[: aggregate.count]


def near(results):
    """Plain results, floats compared as numbers that were summed in another order."""
    plain = results.to_pylist()
    return [pytest.approx(value) if isinstance(value, float) else value for value in plain]


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


@pytest.mark.parametrize("aggregate", BUILT_IN, ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_results_are_those_of_all_values_since_the_last_null_in_batches_and_one_by_one(aggregate, seed):
    random = np.random.default_rng(seed)
    backend = backend_of()
    state = backend.state(AggregatingStateDescriptor("a", pa.int64(), aggregate=aggregate))
    model: dict[str, list[int]] = {}

    for turn in range(12):
        size = int(random.integers(0, 12))
        users = random.choice(list("abcdef"), size).tolist()
        values = [None if random.random() < 0.1 else int(v) for v in random.integers(-9, 9, size)]
        if turn % 3 == 2:
            for user, value in zip(users, values, strict=True):
                backend.current_key = user
                state.add(value)
        else:
            state.add_batch(users, pa.array(values, pa.int64()))
        for user, value in zip(users, values, strict=True):
            model[user] = [] if value is None else [*model.get(user, []), value]
        if turn % 4 == 3:
            state.clear_batch(["a"])
            model.pop("a", None)

        asked = ["b", *"abcdefg"]
        assert state.get_batch(asked).to_pylist() == [expected(aggregate, model.get(user, [])) for user in asked]
    backend.current_key = "c"
    assert state.get() == expected(aggregate, model.get("c", []))
    assert len(state) == sum(bool(values) for values in model.values())


@pytest.mark.parametrize("aggregate", [*BUILT_IN, Spread()], ids=repr)
def test_it_survives_a_checkpoint_a_rescale_and_a_savepoint_and_goes_on(tmp_path, aggregate):
    users, values = [f"u{n % 50}" for n in range(400)], [n * 7 % 101 for n in range(400)]
    descriptor = AggregatingStateDescriptor("a", pa.int64(), aggregate=aggregate)
    backend, whole = backend_of(), backend_of()
    backend.state(descriptor).add_batch(users[:200], values[:200])
    whole.state(descriptor).add_batch(users, values)
    store = arrowstate.open_store(tmp_path / "store", create=True)
    checkpoint = store.writer().checkpoint({"op": [backend]})
    asked = sorted(set(users))

    parts = [checkpoint.restore("op", parallelism=3, subtask=n, max_parallelism=96) for n in range(3)]
    found = {}
    for part in parts:
        groups = arrowstate.key_groups(pa.array(users), 96).to_numpy()
        mine = np.flatnonzero((groups >= part.key_groups.start) & (groups <= part.key_groups.end))
        rows = mine[mine >= 200]
        part.state(descriptor).add_batch(pa.array(users).take(pa.array(rows)), pa.array(values).take(pa.array(rows)))
        own = sorted({users[row] for row in mine})
        found.update(zip(own, part.state(descriptor).get_batch(own).to_pylist(), strict=True))
    savepoint = store.savepoint("kept")

    assert [found[user] for user in asked] == near(whole.state(descriptor).get_batch(asked))
    again = savepoint.restore("op").state(descriptor).get_batch(asked).to_pylist()
    assert again == backend.state(descriptor).get_batch(asked).to_pylist()


def test_sql_sees_the_columns_of_the_accumulator():
    store = arrowstate.open_store("memory://aggregating-sql", create=True)
    backend = backend_of()
    backend.state(AggregatingStateDescriptor("delay", pa.int64(), aggregate="mean")).add_batch(
        ["a", "b", "a"], [1, 5, 2]
    )
    backend.state(AggregatingStateDescriptor("best", pa.int64(), aggregate=TopK(2))).add_batch(
        ["a", "a", "a"], [1, 5, 2]
    )
    backend.state(AggregatingStateDescriptor("spread", pa.int64(), aggregate=Spread())).add_batch(["a", "a"], [1, 5])
    store.writer().checkpoint({"op": [backend]})

    assert store.sql('select "user", sum / count from op.delay order by 1').fetchall() == [("a", 1.5), ("b", 5.0)]
    assert store.sql("select top from op.best").fetchall() == [([5, 2],)]
    assert store.sql("select high - low from op.spread").fetchall() == [(4,)]
    assert store.latest().lookup("op.spread", ["a"]).to_pylist() == [{"user": "a", "low": 1, "high": 5}]


def test_what_nobody_takes_up_goes_into_the_next_snapshot_and_needs_its_descriptor_to_be_read():
    store = arrowstate.open_store("memory://aggregating-untouched", create=True)
    descriptor = AggregatingStateDescriptor("spread", pa.int64(), aggregate=Spread())
    backend = backend_of()
    backend.state(descriptor).add_batch(["a", "a"], [1, 5])
    writer = store.writer()
    restored = writer.checkpoint({"op": [backend]}).restore("op")

    again = writer.checkpoint({"op": [restored]}).restore("op")

    assert again.state(descriptor).get_batch(["a"]).to_pylist() == [4]


def test_another_aggregate_type_or_size_is_refused_and_what_only_changes_the_result_is_not():
    store = arrowstate.open_store("memory://aggregating-refused", create=True)
    backend = backend_of()
    backend.state(AggregatingStateDescriptor("a", pa.int64(), aggregate=Quantiles())).add_batch(["a"] * 3, [1, 2, 4])
    restored = store.writer().checkpoint({"op": [backend]}).restore("op")

    for kind, aggregate in [(pa.int64(), "mean"), (pa.int32(), "quantiles"), (pa.int64(), Quantiles(k=400))]:
        with pytest.raises(IncompatibleStateError):
            restored.state(AggregatingStateDescriptor("a", kind, aggregate=aggregate))
    state = restored.state(AggregatingStateDescriptor("a", pa.int64(), aggregate=Quantiles((1.0,))))

    assert state.get_batch(["a"]).to_pylist() == [[4.0]]
    with pytest.raises(InvalidInputError, match="in use with"):
        restored.state(AggregatingStateDescriptor("a", pa.int64(), aggregate=Quantiles((0.0,))))


@pytest.mark.parametrize("aggregate", [*BUILT_IN, Spread()], ids=repr)
def test_merged_namespaces_have_the_result_of_all_their_values(aggregate):
    state = state_of(aggregate, namespace=WINDOW)
    windows = {1: [1, 9, 4], 2: [2, 2, 7], 3: [5], 4: [8, 1]}
    for window, values in windows.items():
        state.add_batch(["a"] * len(values), values, namespace=window)
        state.add_batch(["b"], [window], namespace=window)
    whole = state_of(aggregate)
    whole.add_batch(["a"] * 7, [n for window in (1, 2, 3) for n in windows[window]])

    state.merge_namespaces_batch(["a"] * 3, 1, pa.array([2, 3, 99]))
    state.merge_namespaces_batch(["a", "b"], 50, pa.array([4, 77]))

    assert state.get_batch(["a"], namespace=1).to_pylist() == near(whole.get_batch(["a"]))
    gone = [state.get_batch(["a"], namespace=window)[0].as_py() for window in (2, 3, 4, 99)]
    assert gone == [None] * 4
    moved = state_of(aggregate)
    moved.add_batch(["a"] * 2, windows[4])
    assert state.get_batch(["a", "b"], namespace=50).to_pylist() == moved.get_batch(["a", "b"]).to_pylist()
    assert state.get_batch(["b"], namespace=2)[0].is_valid or isinstance(aggregate, Variance)


def test_accumulators_expire():
    backend = backend_of()
    ttl = TimeToLive(100, clock="event_time")
    state = backend.state(AggregatingStateDescriptor("a", pa.int64(), aggregate="mean", ttl=ttl))
    state.add_batch(["a", "b"], [1, 3], timestamps=[10, 60])
    backend.advance_watermark(120)

    before = state.get_batch(["a", "b"]).to_pylist()
    state.add_batch(["a", "b"], [7, 5], timestamps=[130, 130])

    assert before == [None, 3.0]
    assert state.get_batch(["a", "b"]).to_pylist() == [7.0, 4.0]


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
    state = state_of(TopK(2), kind)

    state.add_batch(["a"] * len(values), pa.array(values, kind))

    assert repr(state.get_batch(["a"])[0].as_py()) == repr(best)


def test_a_count_of_many_distinct_values_is_near_and_the_sketch_is_one_of_datasketches():
    import datasketches

    state = state_of(CountDistinct(12), pa.string())
    names = [f"visitor {number}" for number in range(20_000)]

    state.add_batch(["a"] * 20_000, names)
    state.add_batch(["a"] * 20_000, names)

    assert state.get_batch(["a"])[0].as_py() == pytest.approx(20_000, rel=0.05)
    stored = state.accumulators_batch(["a"])[0].as_py()
    assert datasketches.hll_sketch.deserialize(stored["sketch"]).get_estimate() == stored["estimate"]


def test_quantiles_of_many_values_are_near_and_what_is_stored_says_count_and_ends():
    state = state_of(Quantiles((0.25, 0.5, 0.99)), pa.float64())
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

    with pytest.raises(MissingDependencyError, match=r"pip install 'arrowstate\[sketches\]'"):
        state.add_batch(["a"], [1])


class Broken(Spread):
    name = "broken"
    broken = ""

    def create(self, count):
        return None if self.broken == "create" else super().create(count)

    def add(self, accumulators, groups, values):
        if self.broken == "raise":
            raise ZeroDivisionError("in the middle")
        return super().add(accumulators, groups, values)[: -1 if self.broken == "add" else None]

    def result(self, accumulators):
        return super().result(accumulators).cast(pa.int32() if self.broken == "result" else pa.int64())


@pytest.mark.parametrize("verb", ["create", "add", "result", "raise"])
def test_an_aggregate_that_breaks_its_promise_is_named_and_the_state_stays(verb):
    aggregate = Broken()
    state = state_of(aggregate)
    state.add_batch(["a", "a"], [1, 5])

    aggregate.broken = verb
    with pytest.raises(
        ZeroDivisionError if verb == "raise" else ValueTypeError, match=verb if verb != "raise" else "middle"
    ):
        state.add_batch(["a", "b"], [9, 9])
        state.get_batch(["a"])
    aggregate.broken = ""

    assert state.get_batch(["a"]).to_pylist() == [8 if verb == "result" else 4]


@pytest.mark.parametrize(
    ("kind", "aggregate", "message"),
    [
        (pa.string(), "mean", "mean needs numbers, got string"),
        (pa.struct([("x", pa.int64())]), TopK(2), "top_k needs a type with an order"),
        (pa.map_(pa.int64(), pa.int64()), "count_distinct", "needs values that can be hashed"),
        (pa.int64(), "median", "must be one of mean, variance, count_distinct, quantiles, top_k; got 'median'"),
        (pa.int64(), object(), "an aggregate has name, accumulator_type"),
    ],
)
def test_a_descriptor_that_cannot_work_is_refused_at_once(kind, aggregate, message):
    with pytest.raises(InvalidInputError, match=message):
        AggregatingStateDescriptor("a", kind, aggregate=aggregate)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopK(0),
        lambda: TopK(True),
        lambda: Quantiles(()),
        lambda: Quantiles((1.5,)),
        lambda: Quantiles(k=2),
        lambda: CountDistinct(3),
        lambda: CountDistinct(22),
    ],
)
def test_parameters_out_of_range_are_refused(make):
    with pytest.raises(InvalidInputError, match="got"):
        make()


def test_a_null_of_a_key_that_has_nothing_is_nothing():
    state = state_of("mean")

    state.add_batch(["a", "b"], pa.array([None, None], pa.int64()))
    state.add_batch([], [])

    assert (len(state), state.get_batch(["a"]).to_pylist()) == (0, [None])
