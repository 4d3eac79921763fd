"""The forms in which a namespace is given: columns, readers, plain values.

What namespaces mean is in `arrowstate.testing`: `NamespaceSuite`.
"""

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, KeyTypeError, NullKeyError

KEY = pa.schema([("user", pa.string())])
PLACE = pa.schema([("place", pa.struct([("x", pa.int64()), ("y", pa.string())]))])
HERE = {"x": 1, "y": "a"}


def backend_of():
    return arrowstate.KeyedStateBackend(key=KEY, max_parallelism=16)


def reader(*windows):
    return pa.table({"window": pa.array(windows, pa.int64())}).to_reader()


def test_namespaces_to_merge_may_come_in_readers():
    numbers = backend_of().state(
        arrowstate.ListStateDescriptor("numbers", pa.int64(), namespace=pa.schema([("window", pa.int64())]))
    )
    numbers.add_batch(["ann", "bob", "ann"], [1, 2, 3], namespace=reader(1, 2, 3))

    users = pa.table({"user": ["ann", "bob", "ann"]}).to_reader()
    numbers.merge_namespaces_batch(users, reader(9, 9, 9), reader(1, 2, 3))

    assert numbers.get_batch(["ann", "bob"], namespace=9).to_pylist() == [[1, 3], [2]]


@pytest.mark.parametrize("given", [HERE, {"place": HERE}], ids=["value", "by name"])
def test_a_namespace_of_one_struct_column_is_a_plain_dict(given):
    backend = backend_of()
    seen = arrowstate.ValueStateDescriptor("seen", pa.int64(), namespace=PLACE)
    state = backend.state(seen)
    state.update_batch(["ann"], [1], namespace=given)
    backend.current_key = "ann"

    state.current_namespace = given

    assert state.value() == 1
    assert state.get_batch(["ann"], namespace=given).to_pylist() == [1]
    assert backend.keys(seen, given).to_pylist() == [{"user": "ann"}]


def test_the_namespace_of_a_timer_that_fires_is_a_namespace_of_other_states():
    backend = backend_of()
    timers = backend.timers("timers", PLACE)
    seen = backend.state(arrowstate.ValueStateDescriptor("seen", pa.int64(), namespace=PLACE))
    timers.register_batch(["ann"], [5], namespace=HERE)

    def on_timer(timer):
        seen.current_namespace = timer.namespace
        seen.update(timer.timestamp)

    timers.advance_watermark(9, on_timer)

    assert seen.get_batch(["ann"], namespace=HERE).to_pylist() == [5]


def test_a_process_function_sets_a_plain_dict_as_its_namespace():
    class Seen(arrowstate.KeyedProcessFunction):
        def open(self, context):
            count = arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count", namespace=PLACE)
            self.count = context.state(count)

        def process_element(self, value, context, out):
            self.count.current_namespace = value.at
            self.count.add(1)
            out.collect(self.count.get())

    rows = pa.record_batch({"user": ["ann"] * 3, "at": [HERE, HERE | {"x": 2}, HERE]})

    with arrowstate.KeyedProcessRunner(backend_of(), Seen(), output=pa.int64()) as process:
        assert process.process(rows).to_pylist() == [1, 1, 2]


def test_a_struct_with_a_field_named_as_its_column_is_told_from_the_column():
    same = pa.schema([("place", pa.struct([("place", pa.int64())]))])
    state = backend_of().state(arrowstate.ValueStateDescriptor("seen", pa.int64(), namespace=same))
    state.update_batch(["ann"], [1], namespace={"place": 7})

    assert state.get_batch(["ann"], namespace={"place": {"place": 7}}).to_pylist() == [1]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"x": 1, "z": "a"}, KeyTypeError),
        ({"place": None}, NullKeyError),
        ({"place": {"z": 1}}, KeyTypeError),
        (None, InvalidInputError),
    ],
)
def test_what_is_no_namespace_of_a_struct_column_is_refused(given, error):
    state = backend_of().state(arrowstate.ValueStateDescriptor("seen", pa.int64(), namespace=PLACE))

    with pytest.raises(error):
        state.get_batch(["ann"], namespace=given)


@pytest.mark.parametrize(
    "make",
    [
        lambda day: arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce="sum", namespace=day),
        lambda day: arrowstate.AggregatingStateDescriptor("s", pa.int64(), aggregate=arrowstate.TopK(2), namespace=day),
        lambda day: arrowstate.ListStateDescriptor("s", pa.int64(), namespace=day),
    ],
    ids=["reducing", "aggregating", "list"],
)
def test_a_namespace_that_is_also_merged_into_itself_is_moved_once(make):
    state = backend_of().state(make(pa.schema([("day", pa.int64())])))
    state.add_batch(["ann", "ann", "bob"], [5, 6, 7], namespace=pa.array([1, 3, 4]))
    alone = state.get_batch(["ann", "bob"], namespace=pa.array([1, 4])).to_pylist()

    days = pa.array([4, 1, 2, 3]), pa.array([4, 1, 1, 3])
    state.merge_namespaces_batch(["bob", "ann", "ann", "ann"], *days)

    there = state.get_batch(["ann"] * 3 + ["bob"], namespace=pa.array([1, 2, 3, 4])).to_pylist()
    assert [there[1], there[3]] == alone
    assert there[0] in (None, [])
    assert there[2] not in (None, [])
