"""What does not fit a nested type is refused with its path, and no field of a struct is dropped in silence."""

import pyarrow as pa
import pytest

from arrowstate import KeyedStateBackend, ValueStateDescriptor, ValueTypeError

EVENT = pa.struct({"at": pa.int64(), "parts": pa.list_(pa.struct({"ip": pa.string(), "port": pa.int32()}))})
TYPES = {
    "a field of a struct": (EVENT, {"at": "noon", "parts": []}, r"at is 'noon', not int64"),
    "an unknown field": (EVENT, {"at": 1, "part": []}, r"no field 'part'"),
    "a field in a list": (
        EVENT,
        {"at": 1, "parts": [{"port": 1}, {"port": "http"}]},
        r"parts\[1\].port is 'http', not int32",
    ),
    "an unknown field in a list": (EVENT, {"at": 1, "parts": [{"porto": 1}]}, r"parts\[0\]: no field 'porto'"),
    "a value of a map": (pa.map_(pa.string(), pa.int8()), {"a": 1, "b": 300}, r"\['b'\] is 300, not int8"),
    "a null where none may be": (
        pa.struct([pa.field("at", pa.int64(), nullable=False)]),
        {"at": None},
        "at is null",
    ),
}


def state_of(kind):
    backend = KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=8)
    return backend, backend.state(ValueStateDescriptor("last", kind))


@pytest.mark.parametrize("name", TYPES)
def test_a_batch_is_refused_with_the_path_and_the_row(name):
    kind, value, path = TYPES[name]
    _, state = state_of(kind)

    with pytest.raises(ValueTypeError, match=rf" in row 1; {path};"):
        state.update_batch(["ann", "bob"], [None, value])

    assert state.get_batch(["ann", "bob"]).null_count == 2


@pytest.mark.parametrize("name", TYPES)
def test_a_value_of_the_current_key_is_refused_with_the_path(name):
    kind, value, path = TYPES[name]
    backend, state = state_of(kind)
    backend.current_key = "ann"

    with pytest.raises(ValueTypeError, match=path):
        state.update(value)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (pa.array([{"at": 1, "part": []}]), "part"),
        (pa.array([{"at": 1, "parts": [{"ip": "::1", "porto": 80}]}]), "porto"),
    ],
)
def test_a_field_that_the_type_has_not_is_not_dropped_from_arrow_data(given, path):
    _, state = state_of(EVENT)

    with pytest.raises(ValueTypeError, match=path):
        state.update_batch(["ann"], given)


def test_fields_of_arrow_data_are_found_by_their_names_and_may_be_missing():
    numbers = pa.struct({"low": pa.float32(), "high": pa.float64(), "at": pa.int64()})
    _, state = state_of(numbers)

    state.update_batch(["ann"], pa.array([{"high": 1e300, "low": 1.5}]))

    assert state.get_batch(["ann"]).to_pylist() == [{"low": 1.5, "high": 1e300, "at": None}]


@pytest.mark.parametrize("first", [0, 1])
def test_maps_with_keys_of_a_narrower_type_become_those_of_the_state(first):
    _, state = state_of(pa.struct({"m": pa.map_(pa.int64(), pa.string())}))
    narrow = pa.array([{"m": [(1, "x")]}, {"m": [(2, "y")]}], pa.struct({"m": pa.map_(pa.int32(), pa.string())}))

    state.update_batch(["ann", "bob"][first:], narrow.slice(first))

    assert state.get_batch(["bob"]).to_pylist() == [{"m": [(2, "y")]}]


@pytest.mark.parametrize("form", [lambda structs: structs, pa.RecordBatch.from_struct_array], ids=["structs", "batch"])
def test_a_slice_of_structs_with_a_part_of_no_type_is_that_slice(form):
    inner = pa.struct({"x": pa.null()})
    _, state = state_of(pa.struct({"a": inner, "b": pa.int64()}))
    values = pa.array([{"a": {"x": None}, "b": n} for n in range(6)], pa.struct({"a": inner, "b": pa.int32()}))

    state.update_batch(["ann", "bob"], form(values).slice(4))

    assert state.get_batch(["ann", "bob"]).to_pylist() == [{"a": {"x": None}, "b": n} for n in (4, 5)]


def test_a_number_that_became_infinite_is_found_in_fields_of_another_order():
    numbers = pa.struct({"low": pa.float32(), "high": pa.float64()})
    _, state = state_of(numbers)

    with pytest.raises(ValueTypeError):
        state.update_batch(["ann"], pa.array([{"high": 1.0, "low": 1e300}]))
