"""Value state: what semantics promise of one value per key."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from arrowstate import (
    InvalidInputError,
    KeyedStateBackend,
    KeyGroupRange,
    KeyOutOfRangeError,
    KeyTypeError,
    NullKeyError,
    ValueStateDescriptor,
    ValueTypeError,
    key_groups,
)
from arrowstate.state import pending

USER = pa.schema([("user", pa.string())])
EPOCH_3 = dt.datetime(1970, 1, 1, 0, 0, 0, 3)
TAGS = pa.struct([("n", pa.int64()), ("tags", pa.list_(pa.string()))])


@pytest.fixture
def city(backend):
    return backend.state(ValueStateDescriptor("city", pa.string()))


def test_the_last_value_of_a_key_in_a_batch_wins(city):
    city.update_batch(["ann", "bob", "ann"], ["Rome", "Oslo", "Bonn"])

    assert city.get_batch(["bob", "ann", "eve", "ann"]).to_pylist() == ["Oslo", "Bonn", None, "Bonn"]


def test_a_null_value_clears_its_key_and_the_entry_count_drops(city):
    city.update_batch(["ann", "bob", "eve"], ["Rome", "Oslo", "Lima"])

    city.update_batch(["ann", "bob", "zoe"], [None, "Bonn", None])

    assert city.get_batch(["ann", "bob", "eve", "zoe"]).to_pylist() == [None, "Bonn", "Lima", None]
    assert len(city) == 2


@pytest.mark.parametrize(("values", "expected"), [(["Rome", None], None), ([None, "Rome"], "Rome")])
def test_a_null_and_a_value_in_one_batch_act_in_their_order(city, values, expected):
    city.update_batch(["ann"], ["Oslo"])

    city.update_batch(["ann", "ann"], values)

    assert city.get_batch(["ann"]).to_pylist() == [expected]
    assert len(city) == (expected is not None)


def test_clearing_removes_keys_and_passes_over_those_without_a_value(city):
    city.update_batch(["ann", "bob"], ["Rome", "Oslo"])

    city.clear_batch(["ann", "eve", "ann"])

    assert city.get_batch(["ann", "bob", "eve"]).to_pylist() == [None, "Oslo", None]
    assert len(city) == 1


def test_scalar_verbs_work_on_the_current_key(backend, city):
    backend.current_key = "ann"
    assert city.value() is None
    city.update("Rome")
    backend.current_key = "bob"
    city.update("Oslo")
    assert city.value() == "Oslo"
    city.clear()
    assert city.value() is None
    backend.current_key = "ann"

    assert city.value() == "Rome"
    assert backend.current_key == "ann"
    assert len(city) == 1
    city.update(None)
    assert len(city) == 0


def test_scalar_and_batch_verbs_see_each_others_writes(backend, city):
    backend.current_key = "ann"
    city.update("Rome")
    assert city.get_batch(["ann"]).to_pylist() == ["Rome"]
    city.update_batch(["ann"], ["Oslo"])
    assert city.value() == "Oslo"
    city.update("Bonn")
    city.clear_batch(["ann"])
    assert city.value() is None
    city.update("Lima")

    city.update_batch(["bob"], ["Kiev"])

    assert city.get_batch(["ann", "bob"]).to_pylist() == ["Lima", "Kiev"]


def test_more_scalar_writes_than_are_collected_lose_nothing(backend, city, monkeypatch):
    monkeypatch.setattr(pending, "_MANY_ROWS", 5)

    for number in range(40):
        backend.current_key = f"user {number % 13}"
        city.update(None if number % 5 == 4 else str(number))

    expected = {}
    for number in range(40):
        expected[f"user {number % 13}"] = None if number % 5 == 4 else str(number)
    assert city.get_batch(list(expected)).to_pylist() == list(expected.values())
    assert len(city) == sum(value is not None for value in expected.values())


def test_a_default_is_read_where_there_is_no_value_and_is_no_entry(backend):
    visits = backend.state(ValueStateDescriptor("visits", pa.int64(), default=0))
    backend.current_key = "ann"

    assert visits.value() == 0
    assert visits.get_batch(["ann", "bob"]).to_pylist() == [0, 0]
    assert len(visits) == 0
    visits.update(5)
    assert visits.get_batch(["ann", "bob", "ann"]).to_pylist() == [5, 0, 5]
    visits.update(None)
    assert visits.value() == 0
    assert len(visits) == 0


def test_a_default_is_copied_on_each_read(backend):
    default = {"n": 1, "tags": ["new"]}
    state = backend.state(ValueStateDescriptor("profile", TAGS, default=default))
    backend.current_key = "ann"

    first = state.value()
    first["tags"].append("changed")
    first["n"] = 2

    assert state.value() == {"n": 1, "tags": ["new"]}
    assert state.get_batch(["bob"]).to_pylist() == [{"n": 1, "tags": ["new"]}]


def test_changing_what_was_read_or_given_does_not_change_the_state(backend):
    state = backend.state(ValueStateDescriptor("profile", TAGS))
    backend.current_key = "ann"
    given = {"n": 1, "tags": ["a"]}

    state.update(given)
    given["tags"].append("b")
    state.value()["tags"].append("c")
    before_flush = state.value()
    state.flush()
    state.value()["tags"].append("d")

    assert before_flush == {"n": 1, "tags": ["a"]}
    assert state.value() == {"n": 1, "tags": ["a"]}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int8(), 5),
        (pa.float32(), 0.5),
        (pa.float64(), math.inf),
        (pa.bool_(), False),
        (pa.string(), ""),
        (pa.binary(), b"\0"),
        (pa.date32(), dt.date(2020, 2, 29)),
        (pa.timestamp("us"), dt.datetime(2020, 2, 29, 1, 2, 3, 4)),
        (pa.duration("us"), dt.timedelta(microseconds=-1)),
        (pa.list_(pa.int64()), []),
        (pa.list_(pa.int64()), [1, None]),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        (TAGS, {"n": None, "tags": None}),
        (TAGS, {"n": 0, "tags": [None]}),
    ],
    ids=str,
)
def test_scalar_verbs_return_plain_python_values(backend, kind, value):
    state = backend.state(ValueStateDescriptor("s", kind))
    backend.current_key = "ann"

    state.update(value)
    pending = state.value()
    state.flush()
    stored = state.value()

    for result in (pending, stored):
        assert result == value
        assert type(result) is type(value)
    assert len(state) == 1


@pytest.mark.parametrize(
    ("kind", "number"),
    [(pa.timestamp("ns"), 1_234_567_890_123_456_789), (pa.time64("ns"), 1_234_567), (pa.duration("ns"), 1_234_567)],
    ids=str,
)
def test_nanoseconds_survive_scalar_verbs(backend, kind, number):
    state = backend.state(ValueStateDescriptor("s", kind))
    nested = backend.state(ValueStateDescriptor("nested", pa.struct([("t", kind)])))
    backend.current_key = "ann"

    state.update(number)
    nested.update({"t": number})

    assert state.get_batch(["ann"]).view(pa.int64()).to_pylist() == [number]
    assert nested.get_batch(["ann"]).field(0).view(pa.int64()).to_pylist() == [number]


def test_a_value_that_python_cannot_hold_is_a_clear_error_of_the_scalar_verb_alone(backend):
    state = backend.state(ValueStateDescriptor("s", pa.date32()))
    state.update_batch(["ann"], pa.array([10_000_000], pa.date32()))
    backend.current_key = "ann"

    with pytest.raises(InvalidInputError, match="state 's'.*get_batch"):
        state.value()

    assert state.get_batch(["ann"]).cast(pa.int32()).to_pylist() == [10_000_000]


@pytest.mark.parametrize("verb", ["value", "clear", "update"])
def test_a_scalar_verb_without_a_current_key_is_a_clear_error(backend, city, verb):
    with pytest.raises(InvalidInputError, match=r"backend\.current_key"):
        getattr(city, verb)(*["Rome"] * (verb == "update"))
    with pytest.raises(InvalidInputError, match="no current key"):
        _ = backend.current_key

    assert len(city) == 0


@pytest.mark.parametrize("value", [5, b"\xff", ["Rome"], "\ud800", {"a": 1}], ids=repr)
def test_a_value_of_another_type_is_refused_and_changes_nothing(backend, city, value):
    backend.current_key = "ann"
    city.update("Rome")

    with pytest.raises(ValueTypeError, match="state 'city'"):
        city.update(value)
    with pytest.raises(ValueTypeError, match="state 'city'"):
        city.update_batch(["bob", "ann"], ["Oslo", value])

    assert city.value() == "Rome"
    assert len(city) == 1


@pytest.mark.parametrize(
    ("key", "error"), [(None, NullKeyError), (5, KeyTypeError), (["ann"], KeyTypeError), ("\ud800", KeyTypeError)]
)
def test_a_bad_current_key_leaves_the_one_that_was_set(backend, city, key, error):
    backend.current_key = "ann"

    with pytest.raises(error):
        backend.current_key = key

    city.update("Rome")
    assert backend.current_key == "ann"
    assert city.get_batch(["ann"]).to_pylist() == ["Rome"]


@pytest.mark.parametrize("verb", ["update_batch", "get_batch", "clear_batch"])
@pytest.mark.parametrize(
    ("keys", "error"), [([None, "ann"], NullKeyError), ([1, 2], KeyTypeError), (pa.array([1, 2]), KeyTypeError)]
)
def test_bad_keys_change_nothing(city, verb, keys, error):
    city.update_batch(["ann"], ["Rome"])

    with pytest.raises(error):
        getattr(city, verb)(keys, *[["x", "y"]] * (verb == "update_batch"))

    assert city.get_batch(["ann"]).to_pylist() == ["Rome"]
    assert len(city) == 1


def test_another_number_of_values_than_keys_changes_nothing(city):
    city.update_batch(["ann"], ["Rome"])

    with pytest.raises(InvalidInputError, match="2 keys need 2 values, got 1"):
        city.update_batch(["ann", "bob"], ["Oslo"])

    assert city.get_batch(["ann", "bob"]).to_pylist() == ["Rome", None]


def test_a_key_outside_the_range_names_its_key_group_and_the_range():
    backend = KeyedStateBackend(key=USER, max_parallelism=128, key_groups=KeyGroupRange(3, 40))
    city = backend.state(ValueStateDescriptor("city", pa.string()))
    names = [f"user {number}" for number in range(200)]
    groups = key_groups(pa.array(names), 128).to_pylist()
    inside = [name for name, group in zip(names, groups, strict=True) if 3 <= group <= 40]
    outside, group = next((name, group) for name, group in zip(names, groups, strict=True) if not 3 <= group <= 40)
    city.update_batch(inside, inside)

    for call in (
        lambda: city.update_batch([*inside, outside], [*inside, "x"]),
        lambda: city.get_batch([inside[0], outside]),
        lambda: city.clear_batch([inside[0], outside]),
        lambda: setattr(backend, "current_key", outside),
    ):
        with pytest.raises(KeyOutOfRangeError) as caught:
            call()
        assert (caught.value.key_group, caught.value.start, caught.value.end) == (group, 3, 40)
        assert str(group) in str(caught.value)
        assert "3 to 40" in str(caught.value)

    assert city.get_batch(inside).to_pylist() == inside


def test_the_ends_of_a_range_belong_to_it():
    keys = pa.array(range(3000))
    groups = np.array(key_groups(keys, 128))
    backend = KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128, key_groups=KeyGroupRange(5, 6))
    state = backend.state(ValueStateDescriptor("s", pa.int64()))
    own = keys.filter(pa.array((groups == 5) | (groups == 6)))

    state.update_batch(own, own)

    assert state.get_batch(own).equals(own)
    for group in (4, 7):
        with pytest.raises(KeyOutOfRangeError, match=f"key group {group}"):
            state.get_batch(keys.filter(pa.array(groups == group)))


@pytest.mark.parametrize("key", [(1, "a"), [1, "a"], {"b": "a", "a": 1}])
def test_a_key_of_several_columns_is_a_tuple_or_a_mapping(key):
    backend = KeyedStateBackend(key=pa.schema([("a", pa.int64()), ("b", pa.string())]), max_parallelism=128)
    state = backend.state(ValueStateDescriptor("s", pa.int64()))
    backend.current_key = key

    state.update(5)

    assert state.get_batch(pa.record_batch({"a": [1, 1], "b": ["a", "b"]})).to_pylist() == [5, None]
    assert state.get_batch(pa.array([{"a": 1, "b": "a"}])).to_pylist() == [5]


@pytest.mark.parametrize("key", [(1,), 1, {"a": 1}, {"a": 1, "b": "a", "c": 0}, (1, 2, 3), "ab", None])
def test_a_key_of_several_columns_needs_all_of_them(key):
    backend = KeyedStateBackend(key=pa.schema([("a", pa.int64()), ("b", pa.string())]), max_parallelism=128)

    with pytest.raises(InvalidInputError, match="a, b"):
        backend.current_key = key


FLOATS = [0.0, -0.0, math.nan, float("nan"), math.inf, 1.5]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_float_keys_that_are_equal_are_one_key(kind):
    backend = KeyedStateBackend(key=pa.schema([("x", kind)]), max_parallelism=128)
    state = backend.state(ValueStateDescriptor("s", pa.int64()))

    state.update_batch(pa.array(FLOATS, kind), range(6))
    backend.current_key = -0.0
    state.update(10)
    backend.current_key = np.float64("nan").item()
    scalar = state.value()

    assert scalar == 3
    assert state.get_batch(pa.array(FLOATS, kind)).to_pylist() == [10, 10, 3, 3, 4, 5]
    assert len(state) == 4


def test_keys_of_every_layout_are_the_same_keys(backend, city):
    city.update_batch(["ann", "bob"], ["Rome", "Oslo"])

    for keys in (
        pa.array(["x", "ann", "bob"]).slice(1),
        pa.chunked_array([["ann"], ["bob"]]),
        pa.array(["ann", "bob"]).dictionary_encode(),
        pa.array(["ann", "bob"], pa.large_string()),
        pa.record_batch({"user": ["ann", "bob"]}),
        pa.array([{"user": "ann"}, {"user": "bob"}]),
        np.array(["ann", "bob"]),
    ):
        assert city.get_batch(keys).to_pylist() == ["Rome", "Oslo"]


def test_an_empty_batch_is_allowed_in_every_verb(city):
    none = pa.array([], pa.string())
    city.update_batch(["ann"], ["Rome"])

    city.update_batch(none, none)
    city.clear_batch(none)
    city.update_batch([], [])

    assert city.get_batch(none).type == pa.string()
    assert city.get_batch([]).to_pylist() == []
    assert len(city) == 1


def test_a_struct_whose_fields_are_all_null_is_a_value(backend):
    state = backend.state(ValueStateDescriptor("s", TAGS))

    state.update_batch(["ann", "bob"], pa.array([{"n": None, "tags": None}, None], TAGS))

    assert state.get_batch(["ann", "bob", "eve"]).to_pylist() == [{"n": None, "tags": None}, None, None]
    assert len(state) == 1


def test_states_of_one_backend_do_not_touch_each_other(backend, city):
    other = backend.state(ValueStateDescriptor("other", pa.string()))

    city.update_batch(["ann"], ["Rome"])
    other.update_batch(["ann", "bob"], ["x", "y"])
    city.clear_batch(["bob", "ann"])

    assert (len(city), len(other)) == (0, 2)
    assert other.get_batch(["ann"]).to_pylist() == ["x"]


def test_what_was_read_does_not_change_when_the_state_does(city):
    city.update_batch(["ann", "bob"], ["Rome", "Oslo"])
    read = city.get_batch(["ann", "bob"])

    city.update_batch(["ann", "bob"], ["Bonn", None])

    assert read.to_pylist() == ["Rome", "Oslo"]


@pytest.mark.parametrize(("kind", "expected"), [(pa.decimal128(5, 2), Decimal("3.00")), (pa.timestamp("us"), EPOCH_3)])
def test_a_default_may_be_a_number_of_numpy_for_each_type_that_takes_one(backend, kind, expected):
    state = backend.state(ValueStateDescriptor("s", kind, default=np.int64(3)))
    backend.current_key = "ann"

    assert state.value() == expected
    assert state.get_batch(["ann"]).to_pylist() == [expected]


def test_a_default_that_python_has_no_value_for_is_not_cut(backend):
    state = backend.state(ValueStateDescriptor("s", pa.time64("ns"), default=5))
    backend.current_key = "ann"

    with pytest.raises(InvalidInputError, match="no counterpart in Python"):
        state.value()
    assert state.get_batch(["ann"]).view(pa.int64()).to_pylist() == [5]
