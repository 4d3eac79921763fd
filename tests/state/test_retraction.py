"""Taking values back from sums and counts, and removing entries of a map in the batch that sets others."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from arrowstate import (
    AggregatingStateDescriptor,
    InvalidInputError,
    KeyedStateBackend,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueOverflowError,
    ValueTypeError,
)

USER = pa.schema([("user", pa.int64())])
TOTALS = ReducingStateDescriptor(
    "totals",
    pa.struct([("n", pa.int64()), ("v", pa.int64())]),
    reduce={"n": "count", "v": "sum"},
)


@pytest.fixture
def backend():
    return KeyedStateBackend(key=USER, max_parallelism=128)


@pytest.mark.parametrize("seed", range(3))
def test_values_that_are_taken_back_leave_the_sums_and_counts_of_the_others(backend, seed):
    state = backend.state(TOTALS)
    random = np.random.default_rng(seed)
    pool: list[tuple[int, int | None]] = []
    for _ in range(12):
        rows = []
        for _ in range(20):
            if pool and random.random() < 0.45:
                rows.append((*pool.pop(int(random.integers(len(pool)))), True))
            else:
                value = None if random.random() < 0.1 else int(random.integers(-9, 9))
                pool.append((int(random.integers(0, 8)), value))
                rows.append((*pool[-1], False))
        values = pa.array([{"n": key, "v": value} for key, value, _ in rows], TOTALS.type)
        state.add_batch([row[0] for row in rows], values, retracted=[row[2] for row in rows])

        held = {key: [v for k, v in pool if k == key] for key, _ in pool}
        expected = [
            None if key not in held else {"n": len(held[key]), "v": sum(v or 0 for v in held[key])} for key in range(8)
        ]
        found = [value and {"n": value["n"], "v": value["v"] or 0} for value in state.get_batch(range(8)).to_pylist()]
        assert found == expected


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [100, 27]),
        (pa.int64(), [2**62, 2**61]),
        (pa.float16(), [1.5, 2.5]),
        (pa.float64(), [1.5, 0.25]),
        (pa.decimal32(5, 2), [decimal.Decimal("1.25"), decimal.Decimal("7.5")]),
        (pa.decimal64(12, 2), [decimal.Decimal("1.25"), decimal.Decimal("7.5")]),
        (pa.decimal128(38, 0), [decimal.Decimal(10**37), decimal.Decimal(7)]),
        (pa.decimal256(70, 3), [decimal.Decimal("1.125"), decimal.Decimal("7.5")]),
        (pa.duration("us"), [datetime.timedelta(seconds=5), datetime.timedelta(seconds=7)]),
    ],
    ids=str,
)
def test_sums_of_every_type_take_values_back(backend, kind, values):
    state = backend.state(ReducingStateDescriptor("s", kind, reduce="sum"))
    state.add_batch([1, 1], values)

    state.add_batch([1, 2, 2], [values[0], values[1], values[1]], retracted=[True, False, True])

    zero = pa.scalar(0, kind).as_py()
    # Of sums alone nobody can tell whether a zero is that of no values.
    assert state.get_batch([1, 2]).to_pylist() == [values[1], zero]


def test_a_key_that_is_counted_goes_with_its_last_value_and_a_count_may_be_negative_before(backend):
    count = backend.state(ReducingStateDescriptor("n", pa.int64(), reduce="count"))

    count.add_batch([1, 2], pa.array(["a", "b"]), retracted=[True, False])
    before = count.get_batch([1, 2]).to_pylist()
    count.add_batch([1, 2], pa.array(["a", "b"]), retracted=[False, True])

    assert before == [-1, 1]
    assert len(count) == 0


@pytest.mark.parametrize(
    ("descriptor", "error", "message"),
    [
        (ReducingStateDescriptor("s", pa.int64(), reduce="min"), InvalidInputError, "state 's': min cannot take back"),
        (ReducingStateDescriptor("s", pa.int64(), reduce=max), InvalidInputError, "a Python callable cannot take back"),
        (ReducingStateDescriptor("s", pa.uint32(), reduce="sum"), InvalidInputError, "declare a signed type"),
        (ReducingStateDescriptor("s", pa.int8(), reduce="sum"), ValueOverflowError, "sum of state 's' does not fit"),
    ],
    ids=["min", "callable", "unsigned", "overflow"],
)
def test_what_cannot_be_taken_back_is_refused_and_the_state_unchanged(backend, descriptor, error, message):
    state = backend.state(descriptor)
    lowest = -128 if descriptor.type == pa.int8() else 1
    state.add_batch([1], [lowest])

    with pytest.raises(error, match=message):
        state.add_batch([1], [lowest], retracted=[True])

    assert state.get_batch([1]).to_pylist() == [lowest]


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        ([True], InvalidInputError, "2 keys need 2 values, got 1"),
        ([True, None], InvalidInputError, "must say true or false for each row"),
        ([1, 0], ValueTypeError, "must be bool"),
    ],
)
def test_flags_that_are_not_one_a_row_are_refused(backend, flags, error, message):
    total = backend.state(ReducingStateDescriptor("s", pa.int64(), reduce="sum"))
    entries = backend.state(MapStateDescriptor("m", pa.int64(), pa.int64()))

    with pytest.raises(error, match=message):
        total.add_batch([1, 2], [1, 2], retracted=flags)
    with pytest.raises(error, match=message):
        entries.put_batch([1, 2], [1, 2], [1, 2], removed=flags)

    assert (len(total), len(entries)) == (0, 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_sets_and_removes_entries_in_its_order(backend, seed):
    state = backend.state(MapStateDescriptor("m", pa.int64(), pa.int64()))
    random = np.random.default_rng(seed)
    model: dict[tuple[int, int], int] = {}
    for _ in range(8):
        keys, user_keys, values = random.integers(0, 4, 30), random.integers(0, 4, 30), random.integers(0, 99, 30)
        removed = random.random(30) < 0.5
        for key, user_key, value, gone in zip(keys, user_keys, values, removed, strict=True):
            if gone:
                model.pop((key, user_key), None)
            else:
                model[key, user_key] = value

        state.put_batch(keys, user_keys, values, removed=pa.array(removed))

        found = state.entries_batch(range(4)).to_pylist()
        assert {(k, u): v for k, entries in enumerate(found) for u, v in entries} == model


@pytest.mark.parametrize("kind", [pa.int64(), pa.float32(), pa.decimal128(9, 2)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_values_that_are_taken_back_in_any_order_leave_the_mean_of_the_others(seed, kind):
    backend = KeyedStateBackend(key=USER, max_parallelism=128)
    state = backend.state(AggregatingStateDescriptor("mean", kind, aggregate="mean"))
    random = np.random.default_rng(seed)
    rows = [(int(random.integers(0, 8)), int(random.integers(-9, 9)) * 0.5) for _ in range(120)]
    away = [row for row in rows if random.random() < 0.6]
    left = list(rows)
    for row in away:
        left.remove(row)
    # Some are taken back before they come.
    log = [(*row, False) for row in rows] + [(*row, True) for row in away]
    log = [log[place] for place in random.permutation(len(log))]

    for start in range(0, len(log), 17):
        keys, values, retracted = zip(*log[start : start + 17], strict=True)
        given = pa.array([int(value * 2) for value in values], pa.int64()) if kind == pa.int64() else pa.array(values)
        state.add_batch(list(keys), given.cast(kind), retracted=list(retracted))

    held = {key: [value for k, value in left if k == key] for key, _ in left}
    scale = 2 if kind == pa.int64() else 1
    expected = [sum(held[key]) / len(held[key]) * scale if key in held else None for key in range(8)]
    assert state.get_batch(range(8)).to_pylist() == pytest.approx(expected)
    assert len(state) == len(held)


def test_a_mean_of_which_all_values_were_taken_back_is_gone_even_if_one_was_no_number(backend):
    state = backend.state(AggregatingStateDescriptor("mean", pa.float64(), aggregate="mean"))
    state.add_batch([1, 1, 2, 3], [float("nan"), 2.0, float("inf"), 1.5])

    state.add_batch([1, 1, 2, 3], [float("nan"), 2.0, float("inf"), 2.5], retracted=[True] * 4)

    # As much was taken back of 3 as was added, but not the same.
    assert state.get_batch([1, 2, 3]).to_pylist() == [None, None, None]
    assert state.accumulators_batch([1, 2, 3]).to_pylist() == [None, None, {"count": 0, "sum": -1.0}]


@pytest.mark.parametrize("aggregate", ["variance", "count_distinct"])
def test_other_aggregates_refuse_to_take_values_back_and_stay_as_they_were(backend, aggregate):
    state = backend.state(AggregatingStateDescriptor("a", pa.int64(), aggregate=aggregate))
    state.add_batch([1, 1], [1, 3])
    before = state.get_batch([1]).to_pylist()

    with pytest.raises(InvalidInputError, match=f"state 'a': {aggregate} cannot take back a value; .* mean can"):
        state.add_batch([1], [3], retracted=[True])

    assert state.get_batch([1]).to_pylist() == before
