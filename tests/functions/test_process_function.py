"""Process functions: one element at a time with the states of its key, applied batch by batch."""

import dataclasses
import datetime
import decimal
import math
import random
import uuid
from collections import Counter

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.functions import keyed_process
from stores import TOTAL, USER, backend_of, commit

COUNT = arrowstate.ValueStateDescriptor("count", pa.int64(), default=0)
PAGES = arrowstate.ListStateDescriptor("pages", pa.string())
CART = arrowstate.MapStateDescriptor("cart", pa.string(), pa.int64())
MEAN = arrowstate.AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean")


def spaced(space):
    """A state of each kind with namespaces."""
    return [
        arrowstate.ValueStateDescriptor("window_count", pa.int64(), default=0, namespace=space),
        arrowstate.ReducingStateDescriptor("window_total", pa.int64(), reduce="sum", namespace=space),
        arrowstate.AggregatingStateDescriptor("window_mean", pa.int64(), aggregate="mean", namespace=space),
        arrowstate.ListStateDescriptor("window_pages", pa.string(), namespace=space),
        arrowstate.MapStateDescriptor("window_cart", pa.string(), pa.int64(), namespace=space),
    ]


SPACED = spaced(pa.schema([("window", pa.int64())]))


def batch(users, **columns):
    return pa.record_batch({"user": pa.array(users, pa.string()), **columns})


def function(descriptors, body):
    """A process function that calls body(states, value, context, out)."""

    class Function(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.states = {item.name: context.state(item) for item in descriptors}

        def process_element(self, value, context, out):
            body(self.states, value, context, out)

    return Function()


def rows_of(backend, descriptors):
    """Everything the states hold, as plain rows."""
    out = {}
    for descriptor in descriptors:
        rows = []
        for run in backend.state(descriptor).freeze().runs:
            table = pa.Table.from_batches([segment.batch for segment in run.run.segments])
            rows += table.drop_columns(["_key_hash"]).to_pylist()
        out[descriptor.name] = sorted(map(repr, rows))
    return out


@pytest.mark.parametrize("seed", range(4))
def test_states_are_those_of_a_dict_that_sees_one_element_after_the_other(seed):
    chance = random.Random(seed)
    model: dict[str, dict] = {}

    def body(states, value, context, out):
        count, total, pages, cart = (states[name] for name in ("count", "total", "pages", "cart"))
        mine = model.setdefault(value.user, {"count": 0, "total": None, "pages": [], "cart": {}})
        for verb in value.verbs.split():
            number, page = value.number, f"/{value.number % 3}"
            if verb == "count":
                count.update(count.value() + 1)
                mine["count"] += 1
            elif verb == "forget":
                count.clear()
                total.clear()
                pages.clear()
                cart.clear()
                mine.update(count=0, total=None, pages=[], cart={})
            elif verb == "total":
                total.add(number)
                mine["total"] = number if mine["total"] is None else mine["total"] + number
            elif verb == "append":
                pages.add(page)
                mine["pages"].append(page)
            elif verb == "replace":
                pages.update([page, page])
                mine["pages"] = [page, page]
            elif verb == "put":
                cart.put(page, number)
                mine["cart"][page] = number
            elif verb == "remove":
                cart.remove(page)
                mine["cart"].pop(page, None)
            elif verb == "look":
                assert cart.get(page) == mine["cart"].get(page)
                assert cart.contains(page) == (page in mine["cart"])
                assert dict(cart.items()) == mine["cart"]
                assert cart.is_empty() == (not mine["cart"])
        if value.number % 2:
            assert (count.value(), total.get(), pages.get()) == (mine["count"], mine["total"], mine["pages"])

    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, function([COUNT, TOTAL, PAGES, CART], body))
    verbs = ["count", "forget", "total", "append", "replace", "put", "remove", "look"]

    for _ in range(8):
        size = chance.randrange(30)
        users = [chance.choice("abcdefgh") for _ in range(size)]
        todo = pa.array([" ".join(chance.choices(verbs, (9, 1, 9, 9, 2, 9, 3, 3), k=3)) for _ in range(size)])
        numbers = pa.array([chance.randrange(100) for _ in range(size)], pa.int64())
        process.process(batch(users, verbs=todo.cast(pa.string()), number=numbers))

    users = sorted(model)
    assert backend.state(COUNT).get_batch(users).to_pylist() == [model[user]["count"] for user in users]
    assert backend.state(TOTAL).get_batch(users).to_pylist() == [model[user]["total"] for user in users]
    assert backend.state(PAGES).get_batch(users).to_pylist() == [model[user]["pages"] for user in users]
    assert [dict(entries) for entries in backend.state(CART).entries_batch(users).to_pylist()] == [
        model[user]["cart"] for user in users
    ]


INTS, TEXT = pa.schema([("window", pa.int64())]), pa.schema([("page", pa.string())])
DAY = pa.schema([("day", pa.date32())])
WINDOWS = pa.schema([("start", pa.int64()), ("end", pa.int64())])
SPACES = {
    "int64": (INTS, [1, 2, -(1 << 63)]),
    "string": (TEXT, ["", "a", "é"]),
    "window": (WINDOWS, [(0, 10), (0, 20), {"end": 10, "start": 0}]),
    "date": (DAY, [datetime.date(2024, 1, day) for day in (1, 2, 3)]),
    "float": (pa.schema([("x", pa.float64())]), [0.0, -0.0, math.nan, 1]),
    "narrow": (pa.schema([("n", pa.int8()), ("name", pa.string())]), [(1, "a"), [1, "b"], (2, "a")]),
}


def plain_space(space):
    """A namespace of these lists as something that is equal for equal ones."""
    if isinstance(space, dict):
        return space["start"], space["end"]
    return "nan" if space != space else tuple(space) if isinstance(space, list) else space


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("seed", range(3))
def test_namespaces_are_those_of_a_dict_that_sees_one_element_after_the_other(kind, seed):
    chance = random.Random(seed)
    schema, spaces = SPACES[kind]
    descriptors = spaced(schema)
    model: dict[tuple, dict] = {}

    def of(user, space):
        empty = {"count": 0, "total": None, "mean": [], "pages": [], "cart": {}}
        return model.setdefault((user, plain_space(space)), empty)

    def mean(values):
        return sum(values) / len(values) if values else None

    def body(states, value, context, out):
        count, total, means, pages, cart = (states[item.name] for item in descriptors)
        space = spaces[value.space]
        for state in states.values():
            state.current_namespace = space
        mine = of(value.user, space)
        for verb in value.verbs.split():
            number, page = value.number, f"/{value.number % 3}"
            if verb == "count":
                count.update(count.value() + 1)
                mine["count"] += 1
            elif verb == "forget":
                for state in states.values():
                    state.clear()
                mine.update(count=0, total=None, mean=[], pages=[], cart={})
            elif verb == "add":
                total.add(number)
                means.add(number)
                pages.add(page)
                mine["total"] = number + (mine["total"] or 0)
                mine["mean"] = [*mine["mean"], number]
                mine["pages"] = [*mine["pages"], page]
            elif verb == "replace":
                means.add(None)
                pages.update([page, page])
                mine.update(mean=[], pages=[page, page])
            elif verb == "put":
                cart.put(page, number)
                mine["cart"][page] = number
            elif verb == "remove":
                cart.remove(page)
                mine["cart"].pop(page, None)
            elif verb == "merge":
                others = chance.choices(spaces, k=2)
                for state in (total, means, pages):
                    state.merge_namespaces(space, others)
                for other in others:
                    theirs = of(value.user, other)
                    if theirs is not mine:
                        if theirs["total"] is not None:
                            mine["total"] = theirs["total"] + (mine["total"] or 0)
                        mine["mean"] = mine["mean"] + theirs["mean"]
                        mine["pages"] = mine["pages"] + theirs["pages"]
                        theirs.update(total=None, mean=[], pages=[])
            elif verb == "look":
                assert cart.get(page) == mine["cart"].get(page)
                assert dict(cart.items()) == mine["cart"]
                assert count.current_namespace == space or space != space
        if value.number % 2:
            seen = (count.value(), total.get(), means.get(), pages.get())
            assert seen == (mine["count"], mine["total"], pytest.approx(mean(mine["mean"])), mine["pages"])

    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, function(descriptors, body))
    verbs = ["count", "forget", "add", "replace", "put", "remove", "merge", "look"]

    for _ in range(8):
        size = chance.randrange(30)
        users = [chance.choice("abcde") for _ in range(size)]
        todo = pa.array([" ".join(chance.choices(verbs, (9, 1, 9, 1, 9, 3, 2, 3), k=3)) for _ in range(size)])
        numbers = pa.array([chance.randrange(100) for _ in range(size)], pa.int64())
        at = pa.array([chance.randrange(len(spaces)) for _ in range(size)], pa.int64())
        process.process(batch(users, verbs=todo.cast(pa.string()), number=numbers, space=at))

    assert {user for user, _ in model} == set("abcde")
    for space in spaces:
        expected = [of(user, space) for user in "abcde"]
        count, total, means, pages = (
            backend.state(item).get_batch(list("abcde"), namespace=space).to_pylist() for item in descriptors[:4]
        )
        cart = backend.state(descriptors[4]).entries_batch(list("abcde"), namespace=space).to_pylist()
        assert count == [mine["count"] for mine in expected]
        assert total == [mine["total"] for mine in expected]
        assert means == [pytest.approx(mean(mine["mean"])) for mine in expected]
        assert pages == [mine["pages"] for mine in expected]
        assert list(map(dict, cart)) == [mine["cart"] for mine in expected]


@pytest.mark.parametrize(
    ("schema", "first", "second"), [(INTS, 1, 2), (DAY, *SPACES["date"][1][:2])], ids=["int64", "date"]
)
def test_a_namespace_holds_until_another_is_set_and_there_is_none_at_first(schema, first, second):
    total = spaced(schema)[1]
    backend = backend_of(USER)

    def body(states, value, context, out):
        if value.space:
            states["window_total"].current_namespace = first if value.space == 1 else second
        states["window_total"].add(value.number)

    process = arrowstate.KeyedProcessRunner(backend, function([total], body))
    with pytest.raises(arrowstate.ProcessElementError, match="row 0: .* no namespace of state 'window_total' is set"):
        process.process(batch(["a"], space=[0], number=[1]))
    process.process(batch(list("aab"), space=[1, 2, 0], number=[1, 2, 3]))
    process.process(batch(list("ab"), space=[0, 1], number=[4, 5]))

    state = backend.state(total)
    assert state.get_batch(list("ab"), namespace=first).to_pylist() == [1, 5]
    assert state.get_batch(list("ab"), namespace=second).to_pylist() == [6, 3]


@pytest.mark.parametrize(
    ("schema", "bad"),
    [
        (INTS, None),
        (INTS, 1.0),
        (INTS, True),
        (INTS, 1 << 63),
        (INTS, "1"),
        (INTS, (1,)),
        (TEXT, 1),
        (TEXT, None),
        (WINDOWS, (1,)),
        (WINDOWS, (1, None)),
        (WINDOWS, {"start": 1}),
        (WINDOWS, 1),
        (DAY, 1.5),
        (DAY, [1]),
    ],
)
@pytest.mark.parametrize("number", range(5))
def test_what_is_no_namespace_is_refused_and_names_the_row(schema, bad, number):
    descriptor = spaced(schema)[number]

    def body(states, value, context, out):
        states["seen"].add(value.user)
        states[descriptor.name].current_namespace = bad

    seen = arrowstate.ListStateDescriptor("seen", pa.string())
    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, function([seen, descriptor], body))

    with pytest.raises(arrowstate.ProcessElementError, match="row 0: ") as caught:
        process.process(batch(["a"]))

    assert isinstance(caught.value.__cause__, arrowstate.InvalidInputError)
    assert len(backend.state(seen)) == 0


def test_a_text_that_is_no_unicode_is_refused_as_a_namespace_and_names_the_row():
    descriptor = spaced(TEXT)[1]
    backend = backend_of(USER)

    def body(states, value, context, out):
        states["window_total"].current_namespace = "a" if value.number else "\ud800"
        states["window_total"].add(1)

    with pytest.raises(arrowstate.ProcessElementError, match="row 1: "):
        arrowstate.KeyedProcessRunner(backend, function([descriptor], body)).process(batch(list("ab"), number=[1, 0]))

    assert len(backend.state(descriptor)) == 0


def test_a_state_without_namespaces_has_none_to_set_or_merge():
    def body(states, value, context, out):
        for name in ("count", "total", "mean", "pages", "cart"):
            with pytest.raises(arrowstate.InvalidInputError, match=f"state '{name}' has no namespaces"):
                states[name].current_namespace = 1
            with pytest.raises(arrowstate.InvalidInputError, match=f"state '{name}' has no namespaces"):
                states[name].current_namespace  # noqa: B018
        for name in ("total", "mean", "pages"):
            with pytest.raises(arrowstate.InvalidInputError, match=f"state '{name}' has no namespaces"):
                states[name].merge_namespaces(1, [2])

    arrowstate.KeyedProcessRunner(backend_of(USER), function([COUNT, TOTAL, MEAN, PAGES, CART], body)).process(
        batch(["a"])
    )


def test_a_mean_is_read_between_values_that_are_added():
    seen = []

    def body(states, value, context, out):
        states["mean"].add(value.number)
        if value.number is None or value.number > 1:
            seen.append((value.user, states["mean"].get()))

    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, function([MEAN], body))
    process.process(batch(list("aabaab"), number=pa.array([1, 2, 3, None, 6, 1])))
    process.process(batch(list("ac"), number=pa.array([8, 9])))

    assert seen == [("a", 1.5), ("b", 3.0), ("a", None), ("a", 6.0), ("a", 7.0), ("c", 9.0)]
    assert backend.state(MEAN).get_batch(list("abc")).to_pylist() == [7.0, 2.0, 9.0]


class Fussy:
    """A sum that refuses 13."""

    name = "fussy"
    accumulator_type = pa.struct([("total", pa.int64())])
    result_type = pa.int64()

    def create(self, count):
        return pa.array([{"total": 0}] * count, self.accumulator_type)

    def add(self, accumulators, groups, values):
        if 13 in values.to_pylist():
            raise ArithmeticError("thirteen")
        totals = accumulators.field("total").to_pylist()
        for group, value in zip(groups.to_pylist(), values.to_pylist(), strict=True):
            totals[group] += value
        return pa.array([{"total": total} for total in totals], self.accumulator_type)

    def merge(self, left, right):
        return self.add(left, pa.array(range(len(left))), right.field("total"))

    def result(self, accumulators):
        return accumulators.field("total")


FUSSY = arrowstate.AggregatingStateDescriptor("fussy", pa.int64(), aggregate=Fussy())


def test_an_aggregate_that_raises_at_the_end_of_a_batch_leaves_every_state():
    descriptors = [COUNT, TOTAL, FUSSY, PAGES]

    def body(states, value, context, out):
        states["count"].update(value.number)
        states["total"].add(value.number)
        states["fussy"].add(value.number)
        states["pages"].add("/")

    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, function(descriptors, body))
    process.process(batch(list("ab"), number=[1, 2]))
    before = rows_of(backend, descriptors)

    with pytest.raises(ArithmeticError, match="thirteen"):
        process.process(batch(list("abc"), number=[1, 13, 2]))

    assert rows_of(backend, descriptors) == before
    process.process(batch(list("abc"), number=[1, 2, 3]))
    assert backend.state(FUSSY).get_batch(list("abc")).to_pylist() == [2, 4, 3]


def test_an_exception_of_get_can_be_caught_and_the_values_added_stay():
    def body(states, value, context, out):
        states["fussy"].add(value.number)
        try:
            out.collect(states["fussy"].get())
        except ArithmeticError:
            states["fussy"].clear()
            out.collect(-1)

    process = arrowstate.KeyedProcessRunner(backend_of(USER), function([FUSSY], body), output=pa.int64())

    assert process.process(batch(list("aaba"), number=[1, 13, 5, 2])).to_pylist() == [1, -1, 5, 2]


@pytest.mark.parametrize("descriptor", [TOTAL, MEAN], ids=["reducing", "aggregating"])
@pytest.mark.parametrize("namespace", [None, INTS], ids=["", "namespace"])
def test_what_is_folded_lives_as_long_as_the_youngest_since_the_last_clear(descriptor, namespace):
    ttl = arrowstate.TimeToLive(100, clock="event_time")
    timed = dataclasses.replace(descriptor, ttl=ttl, namespace=namespace)
    backend = backend_of(USER)

    def body(states, value, context, out):
        if namespace is not None:
            states[timed.name].current_namespace = 1
        states[timed.name].add(value.number)

    process = arrowstate.KeyedProcessRunner(backend, function([timed], body), timestamp="at")
    at = {} if namespace is None else {"namespace": 1}
    process.process(batch(list("abc"), at=[10, 90, 90], number=[1, 1, 1]))
    numbers = pa.array([2, 2, 2, None, 2, None, 2])
    process.process(batch(list("aabbccc"), at=[50, 30, 20, 40, 80, 20, 40], number=numbers))

    state = backend.state(timed)
    lives = []
    for watermark in (139, 140, 149, 150):
        backend.advance_watermark(watermark)
        lives.append([value is not None for value in state.get_batch(list("abc"), **at).to_pylist()])
    assert lives == [[True, False, True], [True, False, False], [True, False, False], [False] * 3]


@pytest.mark.parametrize("number", range(5), ids=["value", "reducing", "aggregating", "list", "map"])
@pytest.mark.parametrize("clears", [False, True])
def test_without_a_known_event_time_nothing_is_written(number, clears):
    timed = dataclasses.replace(SPACED[number], ttl=arrowstate.TimeToLive(100, clock="event_time"))
    backend = backend_of(USER)

    def body(states, value, context, out):
        states["count"].update(1)
        state = states[timed.name]
        state.current_namespace = 1
        if clears:
            state.clear()
        if number == 0:
            state.update(1)
        elif number == 4:
            state.put("x", 1)
        else:
            state.add("/" if number == 3 else 1)

    process = arrowstate.KeyedProcessRunner(backend, function([COUNT, timed], body))

    with pytest.raises(arrowstate.InvalidInputError, match="expires by event time, and none is known yet"):
        process.process(batch(["a"]))

    assert len(backend.state(COUNT)) == len(backend.state(timed)) == 0
    backend.advance_watermark(5)
    process.process(batch(["a"]))
    assert len(backend.state(COUNT)) == len(backend.state(timed)) == 1


@pytest.mark.parametrize("number", [1, 2, 3], ids=["reducing", "aggregating", "list"])
def test_a_namespace_that_is_merged_into_itself_is_not_renewed(number):
    timed = dataclasses.replace(SPACED[number], ttl=arrowstate.TimeToLive(100, clock="event_time"))
    backend = backend_of(USER)

    def body(states, value, context, out):
        state = states[timed.name]
        state.current_namespace = 1
        state.merge_namespaces(1, [1, 2]) if value.at == 50 else state.add("/" if number == 3 else 5)

    process = arrowstate.KeyedProcessRunner(backend, function([timed], body), timestamp="at")
    process.process(batch(list("aa"), at=[10, 50]))
    process.process(batch(list("aa"), at=[50, 50]))
    backend.advance_watermark(110)

    assert backend.state(timed).get_batch(["a"], namespace=1).to_pylist() == [[] if number == 3 else None]


@pytest.mark.parametrize(
    ("kind", "reduce", "good", "bad"),
    [
        (pa.int64(), "max", 5, True),
        (pa.int64(), "first", 5, "x"),
        (pa.bool_(), "any", True, 0),
        (pa.int8(), "min", -5, 300),
        (pa.int64(), "sum", 5, True),
        (pa.string(), lambda old, new: old, "x", 5),
    ],
    ids=["max", "first", "any", "min", "sum", "callable"],
)
def test_a_value_that_does_not_fit_is_refused_also_where_it_would_be_passed_over(kind, reduce, good, bad):
    folded = arrowstate.ReducingStateDescriptor("folded", kind, reduce=reduce)
    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(
        backend,
        function([folded], lambda states, value, context, out: states["folded"].add(bad if value.number else good)),
    )

    with pytest.raises(
        arrowstate.ProcessElementError, match=f"row 2: values of state 'folded' must be {kind}, got {bad!r}"
    ):
        process.process(batch(list("aaab"), number=[0, 0, 1, 0]))

    assert len(backend.state(folded)) == 0


def test_a_field_that_does_not_fit_is_refused_and_a_counted_one_may_be_anything():
    kind = pa.struct([("n", pa.int64()), ("high", pa.int64())])
    folded = arrowstate.ReducingStateDescriptor("folded", kind, reduce={"n": "count", "high": "max"})
    backend = backend_of(USER)

    def body(states, value, context, out):
        states["folded"].add({"n": "x", "high": True if value.number else 5})

    process = arrowstate.KeyedProcessRunner(backend, function([folded], body))
    process.process(batch(["a"], number=[0]))

    with pytest.raises(arrowstate.ProcessElementError, match="row 1: values of state 'folded' must be int64, got True"):
        process.process(batch(list("aa"), number=[0, 1]))

    assert backend.state(folded).get_batch(["a"]).to_pylist() == [{"n": 1, "high": 5}]


@pytest.mark.parametrize(
    ("kind", "reduce", "values"),
    [
        (pa.int8(), "sum", [100, 100, -100]),
        (pa.int64(), "product", [1 << 62, 2, 0]),
        (pa.decimal128(9, 2), "product", [decimal.Decimal("0.55"), decimal.Decimal("0.55"), decimal.Decimal("0.00")]),
        (pa.decimal128(38, 0), "sum", [decimal.Decimal(9 * 10**37), decimal.Decimal(9 * 10**37)]),
    ],
    ids=str,
)
def test_what_is_folded_must_fit_after_each_value(kind, reduce, values):
    folded = arrowstate.ReducingStateDescriptor("folded", kind, reduce=reduce)
    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(
        backend, function([folded], lambda states, value, context, out: states["folded"].add(value.value))
    )

    with pytest.raises(
        arrowstate.ProcessElementError, match=rf"row 1: ValueOverflowError: {reduce} of state 'folded' does not fit"
    ):
        process.process(batch(["a"] * len(values), value=pa.array(values, kind)))

    assert len(backend.state(folded)) == 0


def test_an_element_is_a_named_tuple_and_the_context_knows_key_and_time():
    seen = []

    def body(states, value, context, out):
        seen.append((value.user, value[1], context.current_key, context.timestamp, context.watermark))

    backend = backend_of(USER)
    backend.advance_watermark(5)
    columns = {"user": ["b", "a", "b"], "a b": [1, None, 3], "at": pa.array([7, 8, 9], pa.timestamp("ms"))}
    arrowstate.KeyedProcessRunner(backend, function([], body), timestamp="at").process(pa.record_batch(columns))

    assert seen == [("b", 1, "b", 7, 5), ("a", None, "a", 8, 5), ("b", 3, "b", 9, 5)]


def test_several_key_columns_are_a_tuple():
    key = pa.schema([("user", pa.string()), ("shop", pa.int32())])
    backend = backend_of(key)
    count = function([COUNT], lambda states, value, context, out: out.collect(context.current_key))
    process = arrowstate.KeyedProcessRunner(backend, count, output=pa.struct(key))

    out = process.process(pa.table({"shop": pa.array([1, 2], pa.int32()), "user": ["a", "a"]}))

    assert [tuple(row.values()) for row in out.to_pylist()] == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("place", [0, 3, 5])
def test_an_exception_names_the_row_and_leaves_every_state_as_before_the_batch(place):
    descriptors = [COUNT, TOTAL, PAGES, CART, MEAN, *SPACED]

    def body(states, value, context, out):
        for descriptor in SPACED:
            states[descriptor.name].current_namespace = value.number % 2
        states["window_count"].update(value.number)
        states["window_total"].add(value.number)
        states["window_mean"].add(value.number)
        states["window_pages"].update(["/"])
        states["window_cart"].put("x", value.number)
        for name in ("window_total", "window_mean", "window_pages"):
            states[name].merge_namespaces(7, [value.number % 2])
        states["mean"].add(value.number)
        states["count"].update(states["count"].value() + 1)
        states["total"].add(value.number)
        states["pages"].update([*states["pages"].get(), "/"])
        states["cart"].put("x", value.number)
        1 / value.number

    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, function(descriptors, body))
    process.process(batch(list("abc"), number=pa.array([1, 2, 3])))
    before = rows_of(backend, descriptors)
    numbers = [0 if row == place else 7 for row in range(6)]

    with pytest.raises(arrowstate.ProcessElementError, match=f"row {place}: ZeroDivisionError") as caught:
        process.process(batch(list("abcdab"), number=pa.array(numbers)))

    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert rows_of(backend, descriptors) == before
    process.process(batch(["a"], number=pa.array([5])))
    assert backend.state(TOTAL).get_batch(["a", "b"]).to_pylist() == [6, 2]


@pytest.mark.parametrize(
    ("descriptor", "write"),
    [
        (COUNT, lambda state, value: state.update(value)),
        (TOTAL, lambda state, value: (state.clear(), state.add(value))),
        (PAGES, lambda state, value: state.add("/" if isinstance(value, int) and value < 9 else value)),
        (CART, lambda state, value: state.put("x", value)),
        (CART, lambda state, value: state.put("x" if value == 1 else value, 1)),
    ],
    ids=["value", "reducing", "list", "map value", "user key"],
)
@pytest.mark.parametrize("bad", [1.5, 1 << 70, b"\xff"])
def test_a_value_that_does_not_fit_names_the_row_that_wrote_it_and_nothing_is_written(descriptor, write, bad):
    def body(states, value, context, out):
        states["seen"].add(value.user)
        write(states[descriptor.name], bad if value.number else 1)

    seen = arrowstate.ListStateDescriptor("seen", pa.string())
    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, function([seen, descriptor], body))

    with pytest.raises(arrowstate.ProcessElementError, match=f"row 2: values of state '{descriptor.name}' must be"):
        process.process(batch(list("abcd"), number=pa.array([0, 0, 1, 0])))

    assert len(backend.state(seen)) == len(backend.state(descriptor)) == 0


def test_an_emitted_value_that_does_not_fit_names_its_row_and_nothing_is_written():
    def body(states, value, context, out):
        states["count"].update(1)
        for _ in range(value.number):
            out.collect(value.user if value.number == 3 else value.number)

    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, function([COUNT], body), output=pa.int64())

    with pytest.raises(arrowstate.ProcessElementError, match="row 3: emitted 'd', which is no int64"):
        process.process(batch(list("abcd"), number=pa.array([2, 0, 1, 3])))

    assert len(backend.state(COUNT)) == 0
    assert process.process(batch(list("ab"), number=pa.array([2, 1]))).to_pylist() == [2, 2, 1]


def test_a_null_element_of_a_list_is_refused_and_the_list_stays():
    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(
        backend, function([PAGES], lambda states, value, context, out: states["pages"].add(value.page))
    )
    process.process(batch(["a"], page=["/"]))

    with pytest.raises(arrowstate.ProcessElementError, match="row 1: InvalidInputError: .*must not be null"):
        process.process(batch(["a", "a"], page=["/cart", None]))

    assert backend.state(PAGES).get_batch(["a"]).to_pylist() == [["/"]]


def test_what_a_caller_does_to_a_nested_value_does_not_change_the_state():
    nested = arrowstate.ValueStateDescriptor("nested", pa.list_(pa.int64()), default=[])

    def body(states, value, context, out):
        mine = states["nested"].value()
        mine.append(value.number)
        if value.number > 1:
            states["nested"].update(mine)
        mine.append(99)
        out.collect(states["nested"].value())

    process = arrowstate.KeyedProcessRunner(backend_of(USER), function([nested], body), output=pa.list_(pa.int64()))

    assert process.process(batch(["a"] * 3, number=pa.array([1, 2, 3]))).to_pylist() == [[], [2], [2, 3]]


@pytest.mark.parametrize(
    ("kind", "reduce", "values"),
    [
        (pa.float64(), "min", [3.0, math.nan, 1.0, None, 2.0]),
        (pa.float64(), "max", [3.0, math.nan, 1.0]),
        (pa.int32(), "sum", [1, 2, None, 3]),
        (pa.int64(), "count", [1, 2, 3]),
        (pa.string(), "first", ["x", "y"]),
        (pa.string(), "last", ["x", "y"]),
        (pa.decimal128(30, 2), "sum", pa.array([1, 2]).cast(pa.decimal128(30, 2)).to_pylist()),
        (pa.decimal128(30, 2), "product", [decimal.Decimal("0.25"), decimal.Decimal("10.00")]),
        (pa.int16(), "product", [3, None, -4, 5]),
        (pa.float64(), "product", [0.5, -3.0, math.inf]),
        (pa.bool_(), "any", [False, True, False]),
        (pa.bool_(), "all", [True, False, True]),
        (pa.uint8(), "bit_and", [7, 12, 14]),
        (pa.int64(), "bit_or", [1, -8, 2]),
    ],
)
def test_a_reducing_state_folds_as_its_batch_verb_does(kind, reduce, values):
    descriptor = arrowstate.ReducingStateDescriptor("folded", kind, reduce=reduce)
    expected = backend_of(USER).state(descriptor)
    expected.add_batch(["a"] * len(values), pa.array(values, kind))
    backend = backend_of(USER)

    process = arrowstate.KeyedProcessRunner(
        backend, function([descriptor], lambda states, value, context, out: states["folded"].add(value.value))
    )
    process.process(batch(["a"] * len(values), value=pa.array(values, kind)))

    found = backend.state(descriptor).get_batch(["a"])
    assert repr(found.to_pylist()) == repr(expected.get_batch(["a"]).to_pylist())


def test_a_struct_folds_field_by_field():
    kind = pa.struct([("flights", pa.int64()), ("longest", pa.float64())])
    delays = arrowstate.ReducingStateDescriptor("delays", kind, reduce={"flights": "count", "longest": "max"})
    backend = backend_of(USER)

    def body(states, value, context, out):
        states["delays"].add({"flights": 1, "longest": value.delay})

    arrowstate.KeyedProcessRunner(backend, function([delays], body)).process(batch(["a"] * 3, delay=[2.5, None, 4.0]))

    assert backend.state(delays).get_batch(["a"]).to_pylist() == [{"flights": 3, "longest": 4.0}]


def test_rows_expire_by_the_event_time_of_the_element_that_wrote_them():
    last = arrowstate.ValueStateDescriptor("last", pa.int64(), ttl=arrowstate.TimeToLive(100, clock="event_time"))
    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(
        backend,
        function([last], lambda states, value, context, out: states["last"].update(value.at)),
        timestamp="at",
    )

    process.process(batch(["a", "b", "a"], at=pa.array([10, 20, 60])))
    backend.advance_watermark(120)

    assert backend.state(last).get_batch(["a", "b"]).to_pylist() == [60, None]


def test_a_timer_says_by_which_clock_it_fires():
    class Told(arrowstate.KeyedProcessFunction):
        def process_element(self, value, context, out):
            context.timers.register_event_time_timer(7)
            context.timers.register_processing_time_timer(7)
            out.collect(f"element {context.clock}")

        def on_timer(self, timestamp, context, out):
            out.collect(f"{timestamp} {context.clock}")
            if context.clock == "processing_time":
                raise ValueError("once")

    process = arrowstate.KeyedProcessRunner(backend_of(USER), Told(), output=pa.string())
    row = batch(["a"])

    emitted = process.process(row).to_pylist() + process.advance_watermark(7).to_pylist()
    with pytest.raises(arrowstate.ProcessElementError):
        process.advance_processing_time(7)

    assert emitted == ["element None", "7 event_time"]
    assert process.process(row).to_pylist() == ["element None"]


@pytest.mark.parametrize("number", range(5), ids=["value", "reducing", "aggregating", "list", "map"])
def test_what_a_timer_by_processing_time_writes_has_the_watermark_for_its_event_time(number):
    spaces = pa.schema([("window", pa.int64())])
    timed = dataclasses.replace(spaced(spaces)[number], ttl=arrowstate.TimeToLive(10, clock="event_time"))

    class Writes(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.state = context.state(timed)

        def process_element(self, value, context, out):
            context.timers.register_processing_time_timer(1_700_000_000_000)

        def on_timer(self, timestamp, context, out):
            assert context.timestamp == 1_700_000_000_000
            self.state.current_namespace = 1
            if number == 0:
                self.state.update(1)
            elif number == 4:
                self.state.put("x", 1)
            else:
                self.state.add("/" if number == 3 else 1)

    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, Writes(), timestamp="at")
    process.process(batch(["a"], at=pa.array([100])))
    process.advance_watermark(100)

    process.advance_processing_time(1_700_000_000_000)

    lives = []
    for watermark in (109, 110):
        process.advance_watermark(watermark)
        backend.current_key, state = "a", backend.state(timed)
        state.current_namespace = 1
        lives.append(bool(state.value() if number == 0 else list(state.items()) if number == 4 else state.get()))
    assert lives == [True, False]


def test_a_state_is_refused_outside_of_process_element_and_timers_at_once():
    states = {}

    class Function(arrowstate.KeyedProcessFunction):
        def open(self, context):
            for descriptor in [COUNT, TOTAL, PAGES, CART, MEAN, *(item for item in SPACED if item.kind != "value")]:
                states[descriptor.name] = context.state(descriptor)
            with pytest.raises(arrowstate.InvalidInputError, match="has them as context.timers"):
                context.state(arrowstate.TimerStateDescriptor("t", clock="event_time"))

        def process_element(self, value, context, out):
            for name, state in states.items():
                if name.startswith("window"):
                    state.current_namespace = 1

    process = arrowstate.KeyedProcessRunner(backend_of(USER), Function())
    process.process(batch(["a"]))

    verbs = [("count", "value"), ("total", "get"), ("pages", "get"), ("cart", "items"), ("pages", "clear")]
    verbs += [("cart", "clear"), ("mean", "get"), ("mean", "clear"), ("window_total", "get"), ("window_mean", "get")]
    verbs += [("window_pages", "get"), ("window_cart", "items")]
    for name, verb in verbs:
        with pytest.raises(arrowstate.InvalidInputError, match=f"state '{name}' belongs to the key of an element"):
            getattr(states[name], verb)()


@pytest.mark.parametrize("name", ["user", "at"])
def test_a_column_that_comes_twice_is_refused_by_name_where_one_is_needed(name):
    rows = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([1]), pa.array([2])], names=["user", "at", name])
    process = arrowstate.KeyedProcessRunner(backend_of(USER), arrowstate.KeyedProcessFunction(), timestamp="at")

    with pytest.raises(arrowstate.InvalidInputError, match=f"must have one column {name}, and this one has 2"):
        process.process(rows)


def test_a_table_without_rows_may_have_any_columns():
    coded = pa.dictionary(pa.int32(), pa.timestamp("us", "UTC"))
    rows = pa.schema([("user", pa.string()), ("at", coded)]).empty_table()
    process = arrowstate.KeyedProcessRunner(backend_of(USER), arrowstate.KeyedProcessFunction())

    assert process.process(rows).to_pylist() == []


def test_bad_batches_are_refused_by_what_they_lack():
    process = arrowstate.KeyedProcessRunner(backend_of(USER), function([], lambda *_: None), timestamp="at")

    with pytest.raises(arrowstate.InvalidInputError, match="must have the key columns user; it has usr"):
        process.process(pa.record_batch({"usr": ["a"]}))
    with pytest.raises(arrowstate.InvalidInputError, match="must have the timestamp column at"):
        process.process(batch(["a"]))
    with pytest.raises(arrowstate.NullKeyError, match="1"):
        process.process(batch(["a", "b"], at=pa.array([1, None])))
    with pytest.raises(arrowstate.NullKeyError):
        process.process(batch(["a", None], at=pa.array([1, 2])))
    with pytest.raises(arrowstate.InvalidInputError, match="expected a record batch or a table, got list"):
        process.process([("a", 1)])


def test_close_is_called_once_and_nothing_is_processed_after_it():
    closed = []

    class Function(arrowstate.KeyedProcessFunction):
        def close(self):
            closed.append(True)

    with (
        arrowstate.KeyedProcessRunner(backend_of(USER), Function()) as process,
        pytest.raises(arrowstate.ProcessElementError, match="define it"),
    ):
        process.process(batch(["a"]))
    process.close()

    assert closed == [True]
    with pytest.raises(arrowstate.InvalidInputError, match="closed"):
        process.process(batch(["a"]))


class Alarm(arrowstate.KeyedProcessFunction):
    """Counts elements, and when a timer fires says how many there were; `body` may do more."""

    def __init__(self, body=lambda *_: None, start=lambda context, value: None):
        self.body = body
        self.start = start

    def open(self, context):
        self.count = context.state(COUNT)

    def process_element(self, value, context, out):
        self.count.update(self.count.value() + 1)
        self.start(context, value)

    def on_timer(self, timestamp, context, out):
        out.collect(f"{timestamp} {context.current_key} {self.count.value()}")
        assert context.timestamp == timestamp
        self.body(timestamp, context, self.count)


def at(context, value):
    context.timers.register_event_time_timer(value.at)


def test_timers_fire_in_the_order_of_time_with_the_states_of_their_key():
    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, Alarm(start=at), output=pa.string())
    process.process(batch(list("abca"), at=pa.array([30, 10, 20, 30])))

    fired = [process.advance_watermark(time).to_pylist() for time in (5, 20, 19, 100)]

    assert fired == [[], ["10 b 1", "20 c 1"], [], ["30 a 2"]]
    assert len(backend.timers()) == 0


def test_what_a_timer_registers_up_to_the_watermark_fires_in_the_same_call_and_what_it_deletes_does_not():
    def body(timestamp, context, count):
        count.update(count.value() + 10)
        if timestamp == 10:
            context.timers.register_event_time_timer(15)
            context.timers.register_event_time_timer(15)
            context.timers.register_event_time_timer(99)
            context.timers.delete_event_time_timer(20)
            context.timers.register_processing_time_timer(7)

    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, Alarm(body, at), output=pa.string())
    process.process(batch(list("aaab"), at=pa.array([10, 20, 30, 12])))

    first = process.advance_watermark(50).to_pylist()
    later = process.advance_watermark(99).to_pylist()

    assert first == ["10 a 3", "12 b 1", "15 a 13", "30 a 23"]
    assert later == ["99 a 33"]
    assert process.advance_processing_time(7).to_pylist() == ["7 a 43"]
    assert backend.state(COUNT).get_batch(["a", "b"]).to_pylist() == [53, 11]


def test_an_exception_of_a_timer_leaves_states_and_timers_and_the_next_call_fires_them():
    broken = [True]

    def body(timestamp, context, count):
        count.clear()
        context.timers.register_event_time_timer(1000)
        if timestamp == 20 and broken:
            raise ZeroDivisionError("in the middle")

    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, Alarm(body, at), output=pa.string())
    process.process(batch(list("ab"), at=pa.array([10, 20])))

    with pytest.raises(arrowstate.ProcessElementError, match="row 1: timer of 'b' at 20: ZeroDivisionError"):
        process.advance_watermark(50)
    broken.clear()

    assert backend.state(COUNT).get_batch(["a", "b"]).to_pylist() == [1, 1]
    assert len(backend.timers()) == 2
    assert process.advance_watermark(50).to_pylist() == ["10 a 1", "20 b 1"]


def test_an_exception_in_a_batch_registers_no_timer():
    def start(context, value):
        context.timers.register_event_time_timer(value.at)
        1 / value.at

    backend = backend_of(USER)
    process = arrowstate.KeyedProcessRunner(backend, Alarm(start=start), output=pa.string())

    with pytest.raises(arrowstate.ProcessElementError, match="row 1"):
        process.process(batch(list("ab"), at=pa.array([10, 0])))

    assert len(backend.timers()) == 0


def test_timers_are_in_snapshots_and_fire_after_a_rescale():
    store = arrowstate.open_store("memory://process-timers", create=True)
    backend = backend_of(USER)
    users = [f"u{n}" for n in range(40)]
    arrowstate.KeyedProcessRunner(backend, Alarm(start=at)).process(batch(users, at=pa.array(range(40))))
    checkpoint = store.writer().checkpoint({"op": [backend]})

    fired = []
    for subtask in range(3):
        restored = checkpoint.restore("op", parallelism=3, subtask=subtask)
        process = arrowstate.KeyedProcessRunner(restored, Alarm(), output=pa.string())
        fired += process.advance_watermark(19).to_pylist()

    assert sorted(fired) == sorted(f"{n} u{n} 1" for n in range(20))


@pytest.mark.parametrize(("given", "fires"), [(1 << 80, False), (-(1 << 80), True)])
def test_a_timestamp_beyond_64_bits_is_the_furthest_there_is(given, fires):
    process = arrowstate.KeyedProcessRunner(
        backend_of(USER),
        Alarm(start=lambda context, value: context.timers.register_event_time_timer(given)),
        output=pa.string(),
    )
    process.process(batch(["a"]))

    assert len(process.advance_watermark(1 << 62)) == fires


class Planned(arrowstate.KeyedProcessFunction):
    """Registers and deletes timers by a plan that a name, a time and the calls so far tell."""

    def open(self, context):
        self.calls = context.state(COUNT)

    def process_element(self, value, context, out):
        self.follow(value.user, value.at, context, out)

    def on_timer(self, timestamp, context, out):
        self.follow(context.current_key, timestamp, context, out)

    def follow(self, user, time, context, out):
        calls = self.calls.value() + 1
        self.calls.update(calls)
        out.collect(f"{user} {time} {calls}")
        for verb, clock, timestamp in plan(user, time, calls):
            getattr(context.timers, f"{verb}_{clock}_timer")(timestamp)


def plan(user, time, calls):
    chance = random.Random(f"{user} {time} {calls}")
    near = time if abs(time) < 1 << 60 else 0
    times = [near + chance.choice([0, -3, 2, 5, 9, -(1 << 64), 1 << 64]) for _ in range(chance.randrange(3))]
    # The same timer is often registered, deleted and registered again; after many calls no more are registered.
    verbs = ["register", "register", "delete"] if calls < 30 else ["delete"]
    return [
        (verb, chance.choice(["event_time", "event_time", "processing_time"]), each)
        for each in times
        for verb in chance.choices(verbs, k=2)
    ]


class PlannedModel:
    """What `Planned` does, with a set of timers for each clock that is looked at for the earliest one."""

    def __init__(self):
        self.timers = {"event_time": set(), "processing_time": set()}
        self.calls = Counter()

    def follow(self, user, time):
        self.calls[user] += 1
        for verb, clock, timestamp in plan(user, time, self.calls[user]):
            one = (min(max(timestamp, -(1 << 63)), (1 << 63) - 1), user)
            self.timers[clock].add(one) if verb == "register" else self.timers[clock].discard(one)
        return f"{user} {time} {self.calls[user]}"

    def fire(self, clock, until):
        out = []
        while due := [timer for timer in self.timers[clock] if timer[0] <= until]:
            self.timers[clock].remove(min(due))
            out.append(self.follow(*reversed(min(due))))
        return out


def by_user(texts):
    return {user: [text for text in texts if text[0] == user] for user in "abcde"}


@pytest.mark.parametrize("seed", range(6))
def test_timers_are_those_of_a_set_that_is_looked_at_one_by_one(seed):
    chance = random.Random(seed)
    store = arrowstate.open_store(f"memory://{uuid.uuid4().hex}", create=True)
    model, watermark, now = PlannedModel(), 0, 0
    backends = [backend_of(USER, memory_budget_bytes=seed % 2 or None)]
    jobs = [arrowstate.KeyedProcessRunner(backends[0], Planned(), output=pa.string())]

    for _ in range(25):
        step, found, expected = chance.choice(["rows", "rows", "watermark", "clock", "restart"]), [], []
        if step == "rows":
            rows = [(chance.choice("abcde"), watermark + chance.randint(-5, 9)) for _ in range(chance.randrange(8))]
            expected = [model.follow(*row) for row in rows]
            for backend, job in zip(backends, jobs, strict=True):
                groups = arrowstate.key_groups(
                    pa.array([user for user, _ in rows], pa.string()), backend.max_parallelism
                )
                own = [row for row, group in zip(rows, groups.to_pylist(), strict=True) if group in backend.key_groups]
                times = pa.array([at for _, at in own], pa.int64())
                found += job.process(batch([user for user, _ in own], at=times)).to_pylist()
        elif step == "watermark":
            watermark += chance.choice([0, 1, 4])
            expected = model.fire("event_time", watermark)
            found = [text for job in jobs for text in job.advance_watermark(watermark).to_pylist()]
        elif step == "clock":
            now += chance.choice([-2, 0, 1, 4])
            expected = model.fire("processing_time", now)
            found = [text for job in jobs for text in job.advance_processing_time(now).to_pylist()]
        else:
            checkpoint = commit(store, {"op": backends})
            parallelism, most = chance.choice([(1, 1), (2, 5), (3, 128)])
            backends = [
                checkpoint.restore("op", parallelism=parallelism, subtask=subtask, max_parallelism=most)
                for subtask in range(parallelism)
            ]
            jobs = [arrowstate.KeyedProcessRunner(backend, Planned(), output=pa.string()) for backend in backends]

        assert by_user(found) == by_user(expected)
        for clock, timers in model.timers.items():
            assert sum(backend.timers().count(clock) for backend in backends) == len(timers)


def test_timers_are_refused_where_there_is_no_key_or_no_on_timer():
    context_of = []

    class Bare(arrowstate.KeyedProcessFunction):
        def open(self, context):
            context_of.append(context)

    class Timed(Bare):
        def on_timer(self, timestamp, context, out):
            pass

    process = arrowstate.KeyedProcessRunner(backend_of(USER), Bare())
    arrowstate.KeyedProcessRunner(backend_of(USER), Timed())

    with pytest.raises(arrowstate.InvalidInputError, match="without on_timer has no timers"):
        context_of[0].timers  # noqa: B018
    with pytest.raises(arrowstate.InvalidInputError, match="belong to the key of an element"):
        context_of[1].timers.register_event_time_timer(5)
    assert len(process.advance_watermark(5)) == len(process.advance_processing_time(5)) == 0


def test_rows_that_are_no_one_batch_are_refused(monkeypatch):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=16)
    batch = pa.record_batch({"user": ["ann"]})
    monkeypatch.setattr(keyed_process, "batches_of", lambda rows: [rows, rows])

    with (
        arrowstate.KeyedProcessRunner(backend, arrowstate.KeyedProcessFunction()) as runner,
        pytest.raises(arrowstate.InvalidInputError, match="several batches"),
    ):
        runner.process(batch)


@pytest.mark.parametrize("output", ["int64", USER], ids=["text", "schema"])
def test_an_output_that_is_no_type_is_refused_at_once(output):
    with pytest.raises(arrowstate.InvalidInputError, match="output must be the Arrow type"):
        arrowstate.KeyedProcessRunner(backend_of(USER), arrowstate.KeyedProcessFunction(), output=output)


def test_timers_that_a_later_version_of_a_function_has_no_more_do_not_wait_for_processing_time():
    class Waits(arrowstate.KeyedProcessFunction):
        def process_element(self, value, context, out):
            context.timers.register_processing_time_timer(5)

        def on_timer(self, timestamp, context, out):
            out.collect(timestamp)

    class NoLonger(arrowstate.KeyedProcessFunction):
        def process_element(self, value, context, out):
            out.collect(1)

    store = arrowstate.open_store(f"memory://{uuid.uuid4().hex}", create=True)
    backend = backend_of(USER)
    arrowstate.KeyedProcessRunner(backend, Waits()).process(pa.record_batch({"user": ["ann"]}))
    commit(store, {"op": [backend]})
    restored = store.latest().restore("op")
    later = arrowstate.KeyedProcessRunner(restored, NoLonger(), output=pa.int64())

    assert later.next_processing_time() is None
    # They stay for a version that has them.
    again = arrowstate.KeyedProcessRunner(restored, Waits(), output=pa.int64())
    assert again.next_processing_time() == 5
    assert again.advance_processing_time(9).to_pylist() == [5]


def test_what_clears_states_that_expire_by_event_time_needs_no_time():
    ttl = arrowstate.TimeToLive(9, clock="event_time")

    class Clears(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.states = [
                context.state(descriptor)
                for descriptor in (
                    arrowstate.ValueStateDescriptor("value", pa.int64(), ttl=ttl),
                    arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", ttl=ttl),
                    arrowstate.AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean", ttl=ttl),
                    arrowstate.ListStateDescriptor("list", pa.int64(), ttl=ttl),
                    arrowstate.MapStateDescriptor("map", pa.int64(), pa.int64(), ttl=ttl),
                )
            ]

        def process_element(self, value, context, out):
            for state in self.states:
                state.clear()
            if value.is_kept:
                self.states[0].update(1)

    process = arrowstate.KeyedProcessRunner(backend_of(USER), Clears())

    process.process(pa.record_batch({"user": ["ann"], "is_kept": [False]}))
    with pytest.raises(arrowstate.InvalidInputError, match="expires by event time, and none is known yet"):
        process.process(pa.record_batch({"user": ["ann"], "is_kept": [True]}))
