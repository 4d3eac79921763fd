"""Reducing state: what semantics promise of folding values into one per key."""

import numpy as np
import pyarrow as pa
import pytest

from arrowstate import InvalidInputError, ReducingStateDescriptor, ValueTypeError
from arrowstate.windows import CountWindows, TumblingEventTimeWindows, WindowOperator

USER = pa.schema([("user", pa.string())])
DELAYS = pa.struct([("flights", pa.int64()), ("total", pa.int64()), ("longest", pa.float64())])
EACH = {"flights": "count", "total": "sum", "longest": "max"}


@pytest.fixture
def clicks(backend):
    return backend.state(ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))


@pytest.fixture
def delays(backend):
    return backend.state(ReducingStateDescriptor("delays", DELAYS, reduce=EACH))


def test_values_of_a_key_are_folded_in_the_batch_and_into_what_is_there(clicks):
    clicks.add_batch(["ann", "bob", "ann"], [1, 10, 2])
    clicks.add_batch(["bob", "eve"], [5, 7])

    assert clicks.get_batch(["ann", "bob", "eve", "zoe"]).to_pylist() == [3, 15, 7, None]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([None], None), ([1, None], None), ([None, 2], 2), ([1, None, 2], 2), ([1, None, 2, None, 3, 4], 7)],
)
@pytest.mark.parametrize("one_by_one", [False, True], ids=["batch", "scalar"])
def test_a_null_clears_also_inside_a_batch(backend, clicks, values, expected, one_by_one):
    clicks.add_batch(["ann", "bob"], [100, 100])

    if one_by_one:
        backend.current_key = "ann"
        for value in values:
            clicks.add(value)
    else:
        clicks.add_batch(["ann"] * len(values), values)

    assert clicks.get_batch(["ann", "bob"]).to_pylist() == [expected, 100]
    assert len(clicks) == 1 + (expected is not None)


@pytest.mark.parametrize(
    ("reduce", "expected"), [("sum", 5), ("min", 5), ("max", 5), ("count", 1), ("first", 5), ("last", 5)]
)
def test_after_a_null_a_reducer_starts_anew(backend, reduce, expected):
    state = backend.state(ReducingStateDescriptor("s", pa.int64(), reduce=reduce))
    state.add_batch(["ann"], [100])

    state.add_batch(["ann", "ann", "ann"], [3, None, 5])

    assert state.get_batch(["ann"]).to_pylist() == [expected]


def test_a_null_between_the_rows_of_other_keys_clears_its_own_key_alone(clicks):
    clicks.add_batch(["a", "b", "c"], [1, 2, 3])

    clicks.add_batch(["a", "b", "a", "c", "b", "a"], [10, 20, None, 30, None, 40])

    assert clicks.get_batch(["a", "b", "c"]).to_pylist() == [40, None, 33]


def test_clearing_ends_a_fold(backend, clicks):
    clicks.add_batch(["ann", "bob"], [1, 1])

    clicks.clear_batch(["ann"])
    backend.current_key = "bob"
    clicks.clear()
    clicks.add(5)
    clicks.add_batch(["ann"], [7])

    assert clicks.get_batch(["ann", "bob"]).to_pylist() == [7, 5]


def test_absent_is_none(backend, clicks):
    backend.current_key = "ann"

    assert clicks.get() is None
    assert clicks.get_batch(["ann"]).to_pylist() == [None]
    assert len(clicks) == 0


def test_scalar_and_batch_verbs_see_each_others_writes(backend, clicks):
    backend.current_key = "ann"

    clicks.add(1)
    clicks.add_batch(["ann", "bob"], [10, 10])
    clicks.add(100)
    clicks.add(100)

    assert clicks.get() == 211
    assert clicks.get_batch(["ann", "bob"]).to_pylist() == [211, 10]


def test_a_scalar_verb_without_a_current_key_is_a_clear_error(clicks):
    for verb in (clicks.get, clicks.clear, lambda: clicks.add(1), lambda: clicks.add(None)):
        with pytest.raises(InvalidInputError, match="no current key"):
            verb()


@pytest.mark.parametrize("value", ["1", 1.5, True, 2**63, [1], {"a": 1}], ids=repr)
def test_a_value_of_another_type_changes_nothing(backend, clicks, value):
    clicks.add_batch(["ann"], [1])
    backend.current_key = "ann"

    with pytest.raises(ValueTypeError, match="state 'clicks'"):
        clicks.add(value)
    with pytest.raises(ValueTypeError, match="state 'clicks'"):
        clicks.add_batch(["ann", "ann"], [1, value])

    assert clicks.get() == 1


def test_count_counts_whatever_it_is_given(backend):
    seen = backend.state(ReducingStateDescriptor("seen", pa.int64(), reduce="count"))
    backend.current_key = "ann"

    seen.add_batch(["ann", "ann", "bob"], pa.array(["x", "y", "z"]))
    seen.add({"anything": object()})

    assert seen.get() == 3
    assert seen.get_batch(["bob"]).to_pylist() == [1]


@pytest.mark.parametrize("values", [["x", 1.5], [b"x", {"a": object()}], np.array([1.5, np.nan]), np.array(["x", "y"])])
def test_what_is_counted_in_a_batch_may_be_values_of_python_or_numpy_of_any_type(backend, delays, values):
    seen = backend.state(ReducingStateDescriptor("seen", pa.int64(), reduce="count"))
    windows = WindowOperator(backend, CountWindows(2), ReducingStateDescriptor("n", pa.int64(), reduce="count"))

    seen.add_batch(["ann", "bob"], values)
    seen.add_batch(["ann", "bob"], ["x", None])
    delays.add_batch(["ann", "ann"], [{"flights": value, "total": 2} for value in values])
    fired = windows.process(["ann", "ann"], None, values).fired
    by_time = WindowOperator(
        backend, TumblingEventTimeWindows(9), ReducingStateDescriptor("t", pa.int64(), reduce="count")
    )
    by_time.advance_watermark(9)
    late = [by_time.process(["ann"] * 2, [1, 2], given).late["t"].to_pylist() for given in ([7, 8], ["x", "y"])]

    assert seen.get_batch(["ann", "bob"]).to_pylist() == [2, None]
    assert delays.get_batch(["ann"]).to_pylist() == [{"flights": 2, "total": 4, "longest": None}]
    assert fired["n"].to_pylist() == [2]
    assert late == [[7, 8], ["x", "y"]]


def test_a_reducer_per_field_passes_null_fields_over_and_clears_on_a_null_value(backend, delays):
    delays.add_batch(
        ["ann", "ann", "bob"],
        pa.array(
            [{"flights": 1, "total": 5, "longest": None}, {"flights": None, "total": None, "longest": 2.5}, None],
            DELAYS,
        ),
    )

    assert delays.get_batch(["ann", "bob"]).to_pylist() == [{"flights": 1, "total": 5, "longest": 2.5}, None]
    assert len(delays) == 1
    backend.current_key = "ann"
    delays.add({"total": 1})
    assert delays.get() == {"flights": 1, "total": 6, "longest": 2.5}
    delays.add(None)
    assert delays.get() is None
    assert len(delays) == 0


@pytest.mark.parametrize("one_by_one", [False, True], ids=["batch", "scalar"])
def test_a_value_without_any_field_is_an_entry_with_a_count_of_zero(backend, delays, one_by_one):
    if one_by_one:
        backend.current_key = "ann"
        delays.add({})
    else:
        delays.add_batch(["ann"], [{}])

    assert delays.get_batch(["ann"]).to_pylist() == [{"flights": 0, "total": None, "longest": None}]
    assert len(delays) == 1


@pytest.mark.parametrize(
    "values",
    [
        [{"flights": 1, "typo": 2}],
        pa.array([{"flights": 1}]),
        pa.record_batch({"flights": [1], "total": [1], "longest": [1.0], "more": [1]}),
        pa.record_batch({"flights": [1], "total": ["x"], "longest": [1.0]}),
        [5],
    ],
    ids=str,
)
def test_fields_that_are_not_those_of_the_state_are_refused(delays, values):
    with pytest.raises(ValueTypeError, match="state 'delays'"):
        delays.add_batch(["ann"], values)

    assert len(delays) == 0


def test_a_misspelt_field_of_a_scalar_is_refused(backend, delays):
    backend.current_key = "ann"

    for value in ({"typo": 2}, 5, [("flights", 1)]):
        with pytest.raises(ValueTypeError, match="state 'delays'"):
            delays.add(value)

    assert delays.get() is None


def test_a_struct_as_a_whole_is_reduced_by_first_and_last(backend):
    first = backend.state(ReducingStateDescriptor("first_seen", DELAYS, reduce="first"))
    rows = [{"flights": 1, "total": None, "longest": None}, {"flights": 2, "total": 2, "longest": 2.0}]

    first.add_batch(["ann", "ann"], pa.array(rows, DELAYS))

    assert first.get_batch(["ann"]).to_pylist() == rows[:1]


def test_a_long_batch_equals_many_short_ones(backend, clicks):
    keys = [f"user {number * 7919 % 997}" for number in range(5000)]
    values = [number % 13 - 6 for number in range(5000)]
    model = {}
    for key, value in zip(keys, values, strict=True):
        model[key] = model.get(key, 0) + value

    clicks.add_batch(keys[:4000], values[:4000])
    for start in range(4000, 5000, 50):
        clicks.add_batch(keys[start : start + 50], values[start : start + 50])

    assert clicks.get_batch(list(model)).to_pylist() == list(model.values())
    assert len(clicks) == len(model)
