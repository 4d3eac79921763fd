"""What does not fit is refused by every kind of state, with the row where there is one, and changes nothing."""

import datetime
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from stores import USER, backend_of

INT = pa.int64()
WINDOW = pa.schema([("window", pa.int64())])

KINDS = {
    "value": lambda name, kind, **more: arrowstate.ValueStateDescriptor(name, kind, **more),
    "reducing": lambda name, kind, **more: arrowstate.ReducingStateDescriptor(name, kind, reduce="last", **more),
    "aggregating": lambda name, kind, **more: arrowstate.AggregatingStateDescriptor(
        name, kind, aggregate="top_k", **more
    ),
    "list": lambda name, kind, **more: arrowstate.ListStateDescriptor(name, kind, **more),
    "map": lambda name, kind, **more: arrowstate.MapStateDescriptor(name, pa.string(), kind, **more),
}
BATCH = {
    "value": lambda state, keys, values, **more: state.update_batch(keys, values, **more),
    "reducing": lambda state, keys, values, **more: state.add_batch(keys, values, **more),
    "aggregating": lambda state, keys, values, **more: state.add_batch(keys, values, **more),
    "list": lambda state, keys, values, **more: state.add_batch(keys, values, **more),
    "map": lambda state, keys, values, **more: state.put_batch(keys, ["u"] * len(values), values, **more),
}
ONE = {
    "value": lambda state, value: state.update(value),
    "reducing": lambda state, value: state.add(value),
    "aggregating": lambda state, value: state.add(value),
    "list": lambda state, value: state.add(value),
    "map": lambda state, value: state.put("u", value),
}


def rows_of(state):
    """All that a state holds, as plain rows."""
    return sorted(repr(row) for batch in state.live_batches() for row in batch.to_pylist())


def filled(kind, value_type, good, **options):
    """A state of a kind that has a row from a batch and one from a scalar verb."""
    backend = backend_of(USER)
    state = backend.state(KINDS[kind]("s", value_type, **options))
    BATCH[kind](state, ["old"], pa.array([good], value_type))
    backend.current_key = "one"
    ONE[kind](state, good)
    return backend, state


# Values that do not fit the declared type

MISFITS = [
    (pa.int64(), 1, "a"),
    (pa.int64(), 1, 1.5),
    (pa.int64(), 1, 1.0),
    (pa.int64(), 1, 1 << 70),
    (pa.int64(), 1, True),
    (pa.int8(), 1, 128),
    (pa.uint16(), 1, -1),
    (pa.float64(), 1.0, "1"),
    (pa.string(), "x", 5),
    (pa.string(), "x", b"\xff"),
    (pa.bool_(), True, 1),
    (pa.binary(), b"x", 5),
    (pa.date32(), datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1)),
    (pa.timestamp("s"), datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, microsecond=1)),
    (pa.decimal128(5, 2), Decimal("1.25"), Decimal("1.255")),
    (pa.decimal128(5, 2), Decimal("1.25"), Decimal(1000)),
    # 2^128 * 10^-38, of which Arrow alone would make 0.
    (pa.decimal128(38, 19), Decimal(1), Decimal("3.40282366920938463463374607431768211456")),
]
TOP_K = [pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_timestamp, pa.types.is_date32]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("value_type", "good", "bad"), MISFITS, ids=lambda item: str(item)[:20])
def test_a_value_that_does_not_fit_is_named_with_its_row(kind, value_type, good, bad):
    if kind == "aggregating" and not any(fits(value_type) for fits in TOP_K):
        pytest.skip("top_k needs an order")  # No aggregate takes this type, so there is no such state.
    _, state = filled(kind, value_type, good)
    before = rows_of(state)
    named = re.escape(f"values of state 's' must be {value_type}, got {bad!r}")

    with pytest.raises(arrowstate.ValueTypeError, match=f"^{named} in row 3; cast them first$"):
        BATCH[kind](state, list("abcde"), [good, good, None if kind != "list" else good, bad, bad])
    with pytest.raises(arrowstate.ValueTypeError, match=f"^{named}; cast them first$"):
        ONE[kind](state, bad)

    assert rows_of(state) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("values", "given"),
    [
        (pa.array([1, 2, 300, 4]), "300 in row 2"),
        (pa.chunked_array([[1], [2], [3, 300]]), "300 in row 3"),
        (np.array([1, 2, 300, 300]), "300 in row 2"),
        (pa.array([1.0, 2.0, 3.0, 4.0]), "double"),
        (np.array([1.0, 2.0, 3.0, 4.0]), "float64"),
        (pa.array(["a", "b", "c", "d"]), "string"),
        ("abcd", "str (expected an Arrow array or a sequence, got str)"),
    ],
    ids=["array", "chunked", "numpy", "type", "dtype", "text", "one text"],
)
def test_values_of_another_type_are_refused_by_type_and_narrowed_ones_by_row(kind, values, given):
    _, state = filled(kind, pa.int8(), 1)
    before = rows_of(state)

    with pytest.raises(arrowstate.ValueTypeError, match=f"must be int8, got {re.escape(given)}; cast"):
        BATCH[kind](state, list("abcd"), values)

    assert rows_of(state) == before


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "aggregating"])
@pytest.mark.parametrize("bad", [{"a": "x"}, {"b": 1}, 5, [1, 2]], ids=str)
def test_a_struct_that_does_not_fit_is_named_with_its_row(kind, bad):
    _, state = filled(kind, pa.struct([("a", INT)]), {"a": 1})
    before = rows_of(state)

    with pytest.raises(arrowstate.ValueTypeError, match=re.escape(f"got {bad!r} in row 1;")):
        BATCH[kind](state, list("abc"), [{"a": 1}, bad, {}])
    with pytest.raises(arrowstate.ValueTypeError, match=re.escape(f"got {bad!r};")):
        ONE[kind](state, bad)

    assert rows_of(state) == before


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_values_as_keys_are_needed(kind):
    _, state = filled(kind, INT, 1)
    before = rows_of(state)

    with pytest.raises(arrowstate.InvalidInputError, match="2 keys need 2 (values|user keys), got 3"):
        BATCH[kind](state, ["a", "b"], [1, 2, 3])

    assert rows_of(state) == before


def test_all_entries_of_a_map_are_looked_at_before_one_is_written():
    _, state = filled("map", INT, 1)
    before = rows_of(state)

    with pytest.raises(arrowstate.ValueTypeError, match="got 'x'"):
        state.put_all({"a": 1, "b": "x"})
    with pytest.raises(arrowstate.KeyTypeError, match="must be s_key: string, got 5 in row 0"):
        state.put_all({"a": 1, 5: 2})
    with pytest.raises(arrowstate.NullKeyError, match="'s_key'"):
        state.put_all({"a": 1, None: 2})

    assert rows_of(state) == before


# Keys and namespaces


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (["a", None], arrowstate.NullKeyError, "key column 'user' is null in row 1"),
        (["a", 5], arrowstate.KeyTypeError, "keys must be user: string, got 5 in row 1"),
        (pa.array([1, 2]), arrowstate.KeyTypeError, "keys must be user: string, got int64"),
        ("ab", arrowstate.KeyTypeError, "keys must be user: string, got str"),
        (pa.record_batch({"usr": ["a", "b"]}), arrowstate.KeyTypeError, "keys must be user: string, got usr: string"),
    ],
    ids=["null", "row", "type", "text", "columns"],
)
def test_a_key_that_is_none_is_refused_by_every_verb(kind, keys, error, message):
    backend, state = filled(kind, INT, 1)
    before = rows_of(state)
    more = (["u", "u"],) if kind == "map" else ()

    with pytest.raises(error, match=message):
        BATCH[kind](state, keys, [1, 2])
    with pytest.raises(error, match=message):
        state.get_batch(keys, *more)
    with pytest.raises(error, match=message):
        state.clear_batch(keys)
    for bad, refusal in ((None, arrowstate.NullKeyError), (5, arrowstate.KeyTypeError)):
        with pytest.raises(refusal):
            backend.current_key = bad

    assert backend.current_key == "one"
    assert rows_of(state) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_of_another_subtask_is_refused_by_every_verb(kind):
    owned = arrowstate.key_group_range(128, parallelism=2, subtask=0)
    backend = backend_of(USER, key_groups=owned)
    state = backend.state(KINDS[kind]("s", INT))
    users = [f"u{n}" for n in range(20)]
    mine = next(u for u in users if arrowstate.key_groups(pa.array([u]), 128)[0].as_py() <= owned.end)
    other = next(u for u in users if arrowstate.key_groups(pa.array([u]), 128)[0].as_py() > owned.end)
    more = (["u", "u"],) if kind == "map" else ()

    for call in (
        lambda: BATCH[kind](state, [mine, other], [1, 2]),
        lambda: state.get_batch([mine, other], *more),
        lambda: state.clear_batch([mine, other]),
        lambda: setattr(backend, "current_key", other),
    ):
        with pytest.raises(arrowstate.KeyOutOfRangeError, match=r"is outside 0 to 63, which this backend owns"):
            call()

    assert len(state) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_current_key_or_namespace_a_scalar_verb_says_what_to_set(kind):
    backend = backend_of(USER)
    state, spaced = (
        backend.state(KINDS[kind](name, INT, namespace=space)) for name, space in (("s", None), ("w", WINDOW))
    )

    with pytest.raises(arrowstate.InvalidInputError, match=r"set backend\.current_key before"):
        ONE[kind](state, 1)
    with pytest.raises(arrowstate.InvalidInputError, match=r"set backend\.current_key before"):
        state.clear()
    backend.current_key = "a"
    with pytest.raises(arrowstate.InvalidInputError, match="no namespace of state 'w' is set"):
        ONE[kind](spaced, 1)
    with pytest.raises(arrowstate.InvalidInputError, match="state 'w' needs a namespace of window"):
        BATCH[kind](spaced, ["a"], [1])
    with pytest.raises(arrowstate.InvalidInputError, match="state 's' has no namespaces, got 1"):
        BATCH[kind](state, ["a"], [1], namespace=1)

    assert len(state) == len(spaced) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [pa.array([1, None]), pa.array(["a", "b"]), pa.array([1]), "a", 1.5, (1, 2)], ids=str)
def test_what_is_no_namespace_is_refused(kind, bad):
    state = backend_of(USER).state(KINDS[kind]("w", INT, namespace=WINDOW))
    BATCH[kind](state, ["a"], [1], namespace=1)
    before = rows_of(state)

    with pytest.raises(arrowstate.InvalidInputError):
        BATCH[kind](state, ["a", "b"], [1, 2], namespace=bad)
    if not isinstance(bad, pa.Array):
        with pytest.raises(arrowstate.InvalidInputError):
            state.current_namespace = bad

    assert rows_of(state) == before


def test_a_user_key_that_is_none_is_refused_by_every_verb():
    _, state = filled("map", INT, 1)
    before = rows_of(state)
    null, wrong = "key column 's_key' is null in row 1", "keys must be s_key: string, got 5 in row 1"

    for bad, error, message in ((None, arrowstate.NullKeyError, null), (5, arrowstate.KeyTypeError, wrong)):
        for call in (
            lambda bad=bad: state.put_batch(["a", "b"], ["x", bad], [1, 2]),
            lambda bad=bad: state.get_batch(["a", "b"], ["x", bad]),
            lambda bad=bad: state.contains_batch(["a", "b"], ["x", bad]),
            lambda bad=bad: state.remove_batch(["a", "b"], ["x", bad]),
        ):
            with pytest.raises(error, match=message):
                call()
        for call in (
            lambda bad=bad: state.put(bad, 1),
            lambda bad=bad: state.get(bad),
            lambda bad=bad: state.contains(bad),
            lambda bad=bad: state.remove(bad),
        ):
            with pytest.raises(error, match="s_key"):
                call()

    assert rows_of(state) == before


# Null elements


@pytest.mark.parametrize("values", [[1, None], [None], pa.array([1, None]), pa.array([1, 2, None]).slice(1)], ids=str)
def test_a_null_element_is_refused_by_every_verb_of_a_list(values):
    _, state = filled("list", INT, 1)
    before = rows_of(state)
    row = len(values) - 1
    keys = ["a"] * len(values)
    message = f"an element of list state 's' must not be null, the one in row {row} is"

    with pytest.raises(arrowstate.InvalidInputError, match=message):
        state.add_batch(keys, values)
    with pytest.raises(arrowstate.InvalidInputError, match="must not be null, the one in row 1 is"):
        state.add_all_batch(["a", "b"], [[1, 1, 1], [2, None]])
    with pytest.raises(arrowstate.InvalidInputError, match="must not be null, the one in row 1 is"):
        state.update_batch(["one", "old"], [[1, 1], [None]])
    for call in (lambda: state.add(None), lambda: state.add_all([1, None]), lambda: state.update([None, 1])):
        with pytest.raises(arrowstate.InvalidInputError, match="an element of list state 's' must not be null"):
            call()

    assert rows_of(state) == before


@pytest.mark.parametrize("bad", [None, 5, "ab", b"ab", {"a": 1}], ids=repr)
def test_what_is_no_list_is_refused_and_the_list_stays(bad):
    _, state = filled("list", pa.string(), "x")
    before = rows_of(state)

    for call in (lambda: state.add_all(bad), lambda: state.update(bad)):
        with pytest.raises(arrowstate.InvalidInputError, match="list state 's' takes a sequence of elements, got"):
            call()
    for call in (state.add_all_batch, state.update_batch):
        with pytest.raises(arrowstate.InvalidInputError):
            call(["one", "old"], [["y"], bad])

    assert rows_of(state) == before


def test_operator_state_refuses_the_same():
    backend = arrowstate.OperatorStateBackend()
    offsets = backend.state(arrowstate.OperatorListStateDescriptor("offsets", INT))
    rules = backend.state(arrowstate.BroadcastStateDescriptor("rules", pa.string(), INT))
    offsets.add(1)
    rules.put("a", 1)

    for call in (
        lambda: offsets.add(None),
        lambda: offsets.add_all([1, None]),
        lambda: offsets.update([None]),
        lambda: offsets.add_all(pa.array([1, None])),
    ):
        with pytest.raises(arrowstate.InvalidInputError, match="an element of list state 'offsets' must not be null"):
            call()
    for bad in (None, 5, "ab", {"a": 1}):
        with pytest.raises(
            arrowstate.InvalidInputError, match="list state 'offsets' takes a sequence of elements, got"
        ):
            offsets.add_all(bad)
    for call in (lambda: offsets.add("x"), lambda: offsets.update([1, 1.5]), lambda: offsets.add(1 << 70)):
        with pytest.raises(arrowstate.ValueTypeError, match="values of state 'offsets' must be int64"):
            call()
    for call in (lambda: rules.put(None, 1), lambda: rules.put_all({"b": 1, None: 2}), lambda: rules.remove(None)):
        with pytest.raises(arrowstate.NullKeyError, match="'rules_key' is null"):
            call()
    for call in (lambda: rules.put("b", "x"), lambda: rules.put_all({"b": 1, "c": "x"})):
        with pytest.raises(arrowstate.ValueTypeError, match="values of state 'rules' must be int64"):
            call()
    for again in (
        arrowstate.OperatorListStateDescriptor("offsets", pa.string()),
        arrowstate.BroadcastStateDescriptor("offsets", pa.string(), INT),
        arrowstate.BroadcastStateDescriptor("rules", INT, INT),
    ):
        with pytest.raises(
            arrowstate.IncompatibleStateError, match="declare it as it is stored, or use another state name"
        ):
            backend.state(again)
    with pytest.raises(arrowstate.InvalidInputError, match="must differ in more than case"):
        backend.state(arrowstate.OperatorListStateDescriptor("Offsets", INT))

    assert offsets.get() == [1]
    assert dict(rules.items()) == {"a": 1}


# Names that are taken

DECLARED = {
    "value": arrowstate.ValueStateDescriptor("s", INT),
    "value of string": arrowstate.ValueStateDescriptor("s", pa.string()),
    "value of struct": arrowstate.ValueStateDescriptor("s", pa.struct([("s", INT)])),
    "value in windows": arrowstate.ValueStateDescriptor("s", INT, namespace=WINDOW),
    "sum": arrowstate.ReducingStateDescriptor("s", INT, reduce="sum"),
    "product": arrowstate.ReducingStateDescriptor("s", INT, reduce="product"),
    "sum of int8": arrowstate.ReducingStateDescriptor("s", pa.int8(), reduce="sum"),
    "sum of field": arrowstate.ReducingStateDescriptor("s", pa.struct([("n", INT)]), reduce={"n": "sum"}),
    "count of field": arrowstate.ReducingStateDescriptor("s", pa.struct([("n", INT)]), reduce={"n": "count"}),
    "callable": arrowstate.ReducingStateDescriptor("s", INT, reduce=lambda old, new: old),
    "mean": arrowstate.AggregatingStateDescriptor("s", INT, aggregate="mean"),
    "top_k": arrowstate.AggregatingStateDescriptor("s", INT, aggregate="top_k"),
    "list": arrowstate.ListStateDescriptor("s", INT),
    "list in windows": arrowstate.ListStateDescriptor("s", INT, namespace=WINDOW),
    "list in others": arrowstate.ListStateDescriptor("s", INT, namespace=pa.schema([("window", pa.int32())])),
    "map": arrowstate.MapStateDescriptor("s", pa.string(), INT),
    "map by int64": arrowstate.MapStateDescriptor("s", INT, INT),
    "map of string": arrowstate.MapStateDescriptor("s", pa.string(), pa.string()),
}


@pytest.mark.parametrize("first", DECLARED)
def test_a_name_is_not_used_again_with_another_kind_or_type(first):
    backend = backend_of(USER)
    state = backend.state(DECLARED[first])

    for second, descriptor in DECLARED.items():
        if second != first:
            with pytest.raises(
                arrowstate.IncompatibleStateError, match="state 's' is .* but is declared as .* another state name"
            ):
                backend.state(descriptor)

    assert backend.state(DECLARED[first]) is state
    assert backend.state_names == ("s",)


@pytest.mark.parametrize("kind", KINDS)
def test_names_differ_in_more_than_case_and_timers_take_names_too(kind):
    backend = backend_of(USER)
    backend.state(KINDS[kind]("clicks", INT))
    backend.timers("clicks")

    with pytest.raises(
        arrowstate.InvalidInputError, match="must differ in more than case, 'clicks' exists; got 'Clicks'"
    ):
        backend.state(KINDS[kind]("Clicks", INT))
    with pytest.raises(arrowstate.IncompatibleStateError, match="'clicks_event_time' is timer state"):
        backend.state(KINDS[kind]("clicks_event_time", INT))
    with pytest.raises(arrowstate.IncompatibleStateError, match="in namespaces of window: int64"):
        backend.timers("clicks", WINDOW)

    assert backend.state_names == ("clicks", "clicks_event_time", "clicks_processing_time")


@pytest.mark.parametrize("kind", KINDS)
def test_a_time_to_live_is_one_for_a_state_in_use(kind):
    backend = backend_of(USER)
    backend.state(KINDS[kind]("s", INT, ttl=arrowstate.TimeToLive(100)))

    for ttl in (None, arrowstate.TimeToLive(101), arrowstate.TimeToLive(100, clock="event_time")):
        with pytest.raises(arrowstate.InvalidInputError, match="state 's' is in use with TimeToLive"):
            backend.state(KINDS[kind]("s", INT, ttl=ttl))


# Callables that raise


def careful(old, new):
    return old + 10 // new


def test_a_reducer_that_raises_leaves_the_state_by_every_verb():
    backend = backend_of(USER)
    state = backend.state(arrowstate.ReducingStateDescriptor("s", INT, reduce=careful, namespace=WINDOW))
    state.add_batch(["a", "a", "b", "b"], [1, 0, 5, 2], namespace=pa.array([1, 2, 1, 2]))
    backend.current_key, state.current_namespace = "a", 1
    before = rows_of(state)

    with pytest.raises(arrowstate.ProcessElementError, match="row 2: ZeroDivisionError"):
        state.add_batch(["b", "a", "a", "a"], [5, 5, 0, 5], namespace=1)
    with pytest.raises(ZeroDivisionError):
        state.add(0)
    with pytest.raises(arrowstate.ProcessElementError, match="row 1: ZeroDivisionError"):
        state.merge_namespaces_batch(["b", "a"], 1, pa.array([2, 2]))
    with pytest.raises(arrowstate.ProcessElementError, match="row 0: ZeroDivisionError"):
        state.merge_namespaces(1, [2])

    assert rows_of(state) == before


class Broken:
    """An aggregate of which one part raises or returns nonsense."""

    name = "broken"
    accumulator_type = pa.struct([("n", INT)])
    result_type = INT
    broken: tuple = ("", None)

    def part(self, name, value):
        where, what = self.broken
        if where == name and isinstance(what, Exception):
            raise what
        return what if where == name else value

    def numbers(self, numbers):
        return pa.array([{"n": number} for number in numbers], self.accumulator_type)

    def create(self, count):
        return self.part("create", self.numbers([0] * count))

    def add(self, accumulators, groups, values):
        totals = accumulators.field("n").to_pylist()
        for group, value in zip(groups.to_pylist(), values.to_pylist(), strict=True):
            totals[group] += value
        return self.part("add", self.numbers(totals))

    def merge(self, left, right):
        pairs = zip(left.field("n").to_pylist(), right.field("n").to_pylist(), strict=True)
        return self.part("merge", self.numbers([sum(pair) for pair in pairs]))

    def result(self, accumulators):
        return self.part("result", accumulators.field("n"))


@pytest.mark.parametrize("part", ["create", "add", "merge", "result"])
@pytest.mark.parametrize(
    ("what", "error"),
    [
        (KeyError("broken"), KeyError),
        (None, arrowstate.ValueTypeError),
        (pa.array([], INT), arrowstate.ValueTypeError),
        (pa.array([{"n": None}, None], Broken.accumulator_type), arrowstate.ValueTypeError),
    ],
    ids=["raises", "None", "another type", "nulls"],
)
def test_an_aggregate_that_raises_or_returns_nonsense_leaves_the_state(part, what, error):
    broken = Broken()
    backend = backend_of(USER)
    state = backend.state(arrowstate.AggregatingStateDescriptor("s", INT, aggregate=broken, namespace=WINDOW))
    state.add_batch(["a", "b", "a"], [1, 2, 3], namespace=pa.array([1, 1, 2]))
    backend.current_key, state.current_namespace = "a", 1
    before = rows_of(state)
    broken.broken = (part, what)

    calls = {
        "create": [lambda: state.add_batch(["a", "c"], [1, 2], namespace=1)],
        "add": [lambda: state.add_batch(["a", "c"], [1, 2], namespace=1), lambda: state.add(1)],
        "merge": [
            lambda: state.merge_namespaces_batch(["a", "b"], 1, pa.array([2, 2])),
            lambda: state.merge_namespaces(1, [2]),
        ],
        "result": [lambda: state.get_batch(["a", "c"], namespace=1), state.get],
    }
    for call in calls[part]:
        with pytest.raises(error):
            call()

    assert rows_of(state) == before


def test_a_sum_too_large_leaves_the_state_by_every_verb():
    backend = backend_of(USER)
    state = backend.state(arrowstate.ReducingStateDescriptor("s", pa.int8(), reduce="sum", namespace=WINDOW))
    state.add_batch(["a", "a", "b"], pa.array([100, 28, 1], pa.int8()), namespace=pa.array([1, 2, 1]))
    backend.current_key, state.current_namespace = "a", 1
    before = rows_of(state)

    for call in (
        lambda: state.add_batch(["b", "a"], pa.array([1, 28], pa.int8()), namespace=1),
        lambda: state.add(28),
        lambda: state.merge_namespaces_batch(["a"], 1, 2),
        lambda: state.merge_namespaces(1, [2]),
    ):
        with pytest.raises(arrowstate.ValueOverflowError, match="sum of state 's' does not fit int8"):
            call()

    assert rows_of(state) == before


# Times


@pytest.mark.parametrize("bad", [0, -1, -(1 << 63), 1 << 63, True, 1.5, "5", None, datetime.timedelta(seconds=1)])
def test_a_time_to_live_is_a_whole_number_of_milliseconds_above_zero(bad):
    with pytest.raises(arrowstate.InvalidInputError, match=r"whole number of milliseconds from 1 to 2\^63 - 1, got "):
        arrowstate.TimeToLive(bad)


@pytest.mark.parametrize("field", ["update", "visibility", "clock"])
def test_a_rule_of_a_time_to_live_is_one_of_those_there_are(field):
    with pytest.raises(arrowstate.InvalidInputError, match=f"the {field} of a time to live is one of .*; got 'never'"):
        arrowstate.TimeToLive(1, **{field: "never"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [5, "1s", {"ttl_ms": 5}], ids=str)
def test_a_state_takes_nothing_else_for_its_time_to_live(kind, bad):
    with pytest.raises(arrowstate.InvalidInputError, match="the ttl of state 's' must be a TimeToLive"):
        KINDS[kind]("s", INT, ttl=bad)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ttl_ms", [1, (1 << 63) - 1])
@pytest.mark.parametrize("time", [-(1 << 63), -1, (1 << 63) - 1])
def test_times_at_the_ends_of_64_bits_do_not_wrap_around(kind, ttl_ms, time):
    backend = backend_of(USER)
    state = backend.state(KINDS[kind]("s", INT, ttl=arrowstate.TimeToLive(ttl_ms, clock="event_time")))
    more = (["u"],) if kind == "map" else ()
    nothing = [] if kind == "list" else None

    BATCH[kind](state, ["a"], [1], timestamps=pa.array([time]))
    backend.advance_watermark(time)
    young = state.get_batch(["a"], *more).to_pylist()[0]
    backend.advance_watermark((1 << 63) - 1)
    old = state.get_batch(["a"], *more).to_pylist()[0]

    assert young != nothing
    assert (old == nothing) is (time + ttl_ms <= (1 << 63) - 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [pa.array([1, None]), [1], pa.array([1.5, 2.5]), ["a", "b"], [1, 1 << 63]], ids=str)
def test_what_are_no_timestamps_is_refused(kind, bad):
    state = backend_of(USER).state(KINDS[kind]("s", INT, ttl=arrowstate.TimeToLive(100, clock="event_time")))

    with pytest.raises(arrowstate.InvalidInputError):
        BATCH[kind](state, ["a", "b"], [1, 2], timestamps=bad)
    with pytest.raises(arrowstate.InvalidInputError, match="none is known yet; pass timestamps, set"):
        BATCH[kind](state, ["a", "b"], [1, 2])

    assert len(state) == 0


@pytest.mark.parametrize("clock", ["event_time", "processing_time"])
@pytest.mark.parametrize(
    ("given", "kept"), [(1 << 80, (1 << 63) - 1), (-(1 << 80), -(1 << 63)), (1 << 63, (1 << 63) - 1)]
)
def test_a_timer_beyond_64_bits_is_the_furthest_there_is(clock, given, kept):
    backend = backend_of(USER)
    timers = backend.timers()
    backend.current_key = "a"

    getattr(timers, f"register_{clock}_timer")(given)
    getattr(timers, f"register_{clock}_timer")(kept)
    timers.register_batch(["b"], [given], clock=clock)
    found = timers.pop_due((1 << 63) - 1, clock=clock)

    assert sorted(found.column("user").to_pylist()) == ["a", "b"]
    assert found.column("timestamp").to_pylist() == [kept, kept]


@pytest.mark.parametrize("bad", [1.5, True, None, "5"], ids=repr)
def test_what_is_no_time_is_refused_by_every_verb_of_timers(bad):
    backend = backend_of(USER)
    timers = backend.timers()
    backend.current_key = "a"
    timers.register_event_time_timer(5)

    for call in (
        lambda: timers.register_event_time_timer(bad),
        lambda: timers.delete_processing_time_timer(bad),
        lambda: timers.register_batch(["a", "b"], [1, bad]),
        lambda: timers.delete_batch(["a", "b"], [5, bad]),
    ):
        with pytest.raises(arrowstate.InvalidInputError):
            call()

    assert len(backend.state_names) == 2
    assert timers.pop_due(10).column("timestamp").to_pylist() == [5]


@pytest.mark.parametrize(("given", "kind"), [([1.5], "double"), ([True], "bool"), (pa.array(["x"]), "string")])
def test_a_timestamp_of_another_type_is_refused_by_that_type(given, kind):
    timers = backend_of(USER).timers()

    with pytest.raises(arrowstate.ValueTypeError, match=f"must be timestamps in milliseconds, got {kind};"):
        timers.register_batch(["ann"], given)
