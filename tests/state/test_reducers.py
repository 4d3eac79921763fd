"""Every reducer on every type it takes, against a fold in plain Python, by batch and one at a time."""

import math
from decimal import Decimal, localcontext

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arrowstate import KeyedStateBackend, ReducingStateDescriptor, ValueOverflowError
from arrowstate.table.merging import MergePolicy
from long_form import short_or_long

NAN = math.nan
BACKEND = {"key": pa.schema([("k", pa.int64())]), "max_parallelism": 128}
SMALL = MergePolicy(fan_in=2, first_tier_rows=2)


def integers(bits, signed=True):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(max(low, -3), 3) | st.integers(low, high)


def decimals(digits, scale):
    limit = 10**digits - 1
    return (st.integers(-300, 300) | st.integers(-limit, limit)).map(lambda n: decimal(n, scale))


def decimal(digits, scale):
    """The decimal digits * 10^-scale; Decimal's own arithmetic would round to 28 digits."""
    return Decimal(f"{digits}E{-scale}")


# Multiples of a quarter, so that sums are exact whatever their order.
FLOATS = st.integers(-40, 40).map(lambda n: n / 4) | st.sampled_from([NAN, math.inf, -math.inf])
NUMBERS = {
    "int8": (pa.int8(), integers(8)),
    "int16": (pa.int16(), integers(16)),
    "int32": (pa.int32(), integers(32)),
    "int64": (pa.int64(), integers(64)),
    "uint8": (pa.uint8(), integers(8, False)),
    "uint16": (pa.uint16(), integers(16, False)),
    "uint32": (pa.uint32(), integers(32, False)),
    "uint64": (pa.uint64(), integers(64, False)),
    "float16": (pa.float16(), FLOATS),
    "float32": (pa.float32(), FLOATS),
    "float64": (pa.float64(), FLOATS),
    "decimal32": (pa.decimal32(7, 2), decimals(7, 2)),
    "decimal64": (pa.decimal64(15, 2), decimals(15, 2)),
    "decimal128": (pa.decimal128(38, 2), decimals(38, 2)),
    "decimal256": (pa.decimal256(76, 4), decimals(76, 4)),
    "duration": (pa.duration("us"), integers(64)),
    "duration_ns": (pa.duration("ns"), integers(64)),
}
# Points in time are given and read as the integers behind them: Python's own end in the year 9999.
ORDERED = {
    "bool": (pa.bool_(), st.booleans()),
    "date32": (pa.date32(), integers(32)),
    "date64": (pa.date64(), st.integers(-(10**6), 10**6).map(lambda day: day * 86_400_000)),
    "time32": (pa.time32("ms"), st.integers(0, 86_399_999)),
    "time64": (pa.time64("ns"), st.integers(0, 86_399 * 10**9)),
    "timestamp_s": (pa.timestamp("s"), integers(40)),
    "timestamp_us": (pa.timestamp("us", "UTC"), integers(64)),
    "timestamp_ns": (pa.timestamp("ns"), integers(64)),
    "string": (pa.string(), st.text("ab\0é\U0001f600", max_size=3)),
    "large_string": (pa.large_string(), st.text("ab", max_size=3)),
    "binary": (pa.binary(), st.binary(max_size=2)),
    "large_binary": (pa.large_binary(), st.binary(max_size=2)),
}
OTHERS = {
    "fixed_binary": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(-3, 3) | st.none(), max_size=3)),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.none() | integers(8), "b": st.text("ab", max_size=1)}),
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.lists(st.tuples(st.text("ab", max_size=1), st.integers(-3, 3)), max_size=2),
    ),
    "fixed_list": (pa.list_(pa.float64(), 2), st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=2)),
}
TYPES = {**NUMBERS, **ORDERED, **OTHERS}
INTEGERS = {name: each for name, each in NUMBERS.items() if "int" in name}
FACTORS = {name: each for name, each in NUMBERS.items() if "duration" not in name}
REDUCERS = {
    "sum": NUMBERS,
    "product": FACTORS,
    "any": {"bool": ORDERED["bool"]},
    "all": {"bool": ORDERED["bool"]},
    "bit_and": INTEGERS,
    "bit_or": INTEGERS,
    "min": {**NUMBERS, **ORDERED},
    "max": {**NUMBERS, **ORDERED},
    "first": TYPES,
    "last": TYPES,
}
CASES = [(reduce, name) for reduce, kinds in REDUCERS.items() for name in kinds]
SETTINGS = settings(max_examples=short_or_long(6, 240), deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Overflow(Exception):
    """The model's sum does not fit."""


def fold(reduce, kind, old, value):
    if old is None or reduce == "last":
        return value
    if reduce == "first":
        return old
    if reduce in ("any", "all"):
        return any((old, value)) if reduce == "any" else all((old, value))
    if reduce in ("bit_and", "bit_or"):
        return old & value if reduce == "bit_and" else old | value
    if reduce == "product":
        with localcontext(prec=160):
            total = fitting(kind, old * value)
            # Arrow counts the zeros at the end of a decimal among its digits.
            return total.quantize(decimal(1, kind.scale)) if pa.types.is_decimal(kind) else total
    if reduce == "sum":
        with localcontext(prec=90):
            total = old + value
        return fitting(kind, total)
    # NaN is larger than every other number.
    rank = (lambda item: (item != item, item)) if pa.types.is_floating(kind) else lambda item: (False, item)
    better = rank(value) < rank(old) if reduce == "min" else rank(old) < rank(value)
    both_nan = value != value and old != old
    return value if better and not both_nan else old


def fitting(kind, value):
    """The value, if it fits the type."""
    if value is None or pa.types.is_floating(kind):
        return value
    if pa.types.is_decimal(kind):
        if value.copy_abs() >= decimal(1, kind.scale - kind.precision):
            raise Overflow
        with localcontext(prec=160):
            if value != value.quantize(decimal(1, kind.scale)):
                raise Overflow
    else:
        width = kind.bit_width
        low, high = (0, 2**width) if pa.types.is_unsigned_integer(kind) else (-(2 ** (width - 1)), 2 ** (width - 1))
        if not low <= value < high:
            raise Overflow
    return value


def fold_batch(reduce, kind, model, rows):
    changed = dict(model)
    last_null = {key: row for row, (key, value) in enumerate(rows) if value is None}
    changed.update(dict.fromkeys(last_null))
    # What a null of the same batch clears need not fit.
    for row, (key, value) in enumerate(rows):
        if row > last_null.get(key, -1):
            changed[key] = fold(reduce, kind, changed.get(key), value)
    if reduce == "sum":
        for value in changed.values():
            fitting(kind, value)
    if pa.types.is_floating(kind):
        # Folded in float64, and rounded at the end of a batch.
        changed = {key: value and pa.scalar(value, kind).as_py() for key, value in changed.items()}
    return {key: value for key, value in changed.items() if value is not None}


def plain(array):
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array.to_pylist()


KEYS = st.integers(0, 3)


@pytest.mark.parametrize(("reduce", "name"), CASES, ids=[f"{reduce}-{name}" for reduce, name in CASES])
def test_a_reducer_is_the_fold_of_all_values_of_a_key(reduce, name):
    kind, values = TYPES[name]
    batches = st.lists(st.lists(st.tuples(KEYS, values | st.none()), max_size=8), min_size=1, max_size=4)

    @SETTINGS
    @given(batches=batches, scalar=st.lists(st.booleans(), min_size=4, max_size=4))
    def check(batches, scalar):
        backend = KeyedStateBackend(**BACKEND, merge_policy=SMALL)
        state = backend.state(ReducingStateDescriptor("s", kind, reduce=reduce))
        model = {}

        for rows, one_by_one in zip(batches, scalar, strict=False):
            for part in [[row] for row in rows] if one_by_one else [rows]:
                try:
                    model = fold_batch(reduce, kind, model, part)
                    fits = True
                except Overflow:
                    fits = False
                try:
                    if one_by_one:
                        backend.current_key = part[0][0]
                        state.add(part[0][1])
                    else:
                        keys = pa.array([key for key, _ in part], pa.int64())
                        state.add_batch(keys, pa.array([value for _, value in part], kind))
                    assert fits, "the result does not fit, yet it was taken"
                except ValueOverflowError as error:
                    assert not fits, error
                    assert error.value_type == str(kind)
            got = state.get_batch(pa.array(range(4)))
            assert got.type == kind
            expected = pa.array([model.get(key) for key in range(4)], kind)
            assert repr(plain(got)) == repr(plain(expected))
            assert len(state) == len(model)

    check()


@pytest.mark.parametrize("name", TYPES)
def test_count_counts_values_of_every_type(name):
    kind, values = TYPES[name]

    @SETTINGS
    @given(batches=st.lists(st.lists(st.tuples(KEYS, values | st.none()), max_size=8), max_size=3))
    def check(batches):
        backend = KeyedStateBackend(**BACKEND, merge_policy=SMALL)
        state = backend.state(ReducingStateDescriptor("s", pa.int64(), reduce="count"))
        model = {}

        for rows in batches:
            state.add_batch(
                pa.array([key for key, _ in rows], pa.int64()), pa.array([value for _, value in rows], kind)
            )
            for key, value in rows:
                model[key] = None if value is None else (model.get(key) or 0) + 1

        assert state.get_batch(range(4)).to_pylist() == [model.get(key) for key in range(4)]

    check()


@pytest.mark.parametrize("reduce", ["sum", "product", "min", "max", "first", "last", "count", "bit_and", "bit_or"])
def test_sliced_and_chunked_values_are_read_at_their_offset(reduce):
    values = pa.array([99, 1, None, 5, -7, 2, 99])
    state = KeyedStateBackend(**BACKEND).state(ReducingStateDescriptor("s", pa.int64(), reduce=reduce))
    chunked = KeyedStateBackend(**BACKEND).state(ReducingStateDescriptor("s", pa.int64(), reduce=reduce))

    state.add_batch(pa.array([9, 0, 1, 1, 0, 1, 9]).slice(1, 5), values.slice(1, 5))
    chunked.add_batch(pa.chunked_array([[0, 1], [], [1, 0, 1]]), pa.chunked_array([values[1:3], values[3:6]]))

    expected = {"sum": [-6, 7], "min": [-7, 2], "max": [1, 5], "first": [1, 5], "last": [-7, 2], "count": [2, 2]}
    expected |= {"product": [-7, 10], "bit_and": [1 & -7, 5 & 2], "bit_or": [1 | -7, 5 | 2]}
    assert state.get_batch([0, 1]).to_pylist() == expected[reduce]
    assert chunked.get_batch([0, 1]).to_pylist() == expected[reduce]


@pytest.mark.parametrize(("reduce", "name"), CASES, ids=[f"{reduce}-{name}" for reduce, name in CASES])
def test_an_empty_batch_and_a_batch_of_nulls_leave_no_entry(reduce, name):
    kind, _ = TYPES[name]
    state = KeyedStateBackend(**BACKEND).state(ReducingStateDescriptor("s", kind, reduce=reduce))

    state.add_batch(pa.array([], pa.int64()), pa.array([], kind))
    state.add_batch([1, 2, 1], pa.nulls(3, kind))
    state.add_batch([1, 2], pa.nulls(2))
    state.add_batch([1, 2], [None, None])

    assert len(state) == 0
    assert state.get_batch(pa.array([], pa.int64())).type == kind


SUMS = [
    (pa.int64(), [2**63 - 1, 1]),
    (pa.int64(), [-(2**63), -1]),
    (pa.uint64(), [2**64 - 1, 1]),
    (pa.int8(), [100, 28]),
    (pa.uint16(), [65535, 1]),
    (pa.duration("ns"), [2**63 - 1, 1]),
    (pa.decimal32(3, 1), [Decimal("99.9"), Decimal("0.1")]),
    (pa.decimal64(18, 0), [Decimal(10**18 - 1), Decimal(1)]),
    (pa.decimal128(38, 0), [Decimal(9 * 10**37), Decimal(9 * 10**37)]),
    (pa.decimal128(38, 0), [Decimal(-9 * 10**37)] * 4),
    (pa.decimal256(76, 0), [Decimal(9 * 10**75)] * 2),
    (pa.decimal256(76, 0), [Decimal(-9 * 10**75)] * 13),
]


FACTOR_KINDS = [kind for kind, _ in FACTORS.values() if not pa.types.is_floating(kind)]
FACTOR_KINDS += [pa.decimal32(9, 0), pa.decimal64(18, 9), pa.decimal128(38, 19), pa.decimal256(76, 0)]
FACTOR_KINDS += [pa.decimal256(76, 38), pa.decimal256(76, 76)]


def factors(kind):
    """Values of a type whose products are near the ends of its range, inside and outside."""
    if pa.types.is_decimal(kind):
        low, high, unit = 1 - 10**kind.precision, 10**kind.precision - 1, 10**kind.scale
    else:
        low = -(2 ** (kind.bit_width - 1)) if pa.types.is_signed_integer(kind) else 0
        high, unit = 2 ** (kind.bit_width - (low < 0)) - 1, 1
    some = [low, low + 1, high, high - 1, 0, unit, -unit, 2 * unit, -5 * unit, unit // 2, unit // 5]
    some += [math.isqrt(high * unit) + step for step in (-1, 0, 1)]
    some += [-number for number in some]
    some += [2**n for n in range(high.bit_length())]
    inside = [number for number in some if low <= number <= high]
    powers = st.builds(
        lambda n, sign, rest: min(max(sign * 10**n + rest, low), high),
        st.integers(0, len(str(high)) - 1),
        st.sampled_from([1, -1] if low else [1]),
        st.integers(-9, 9),
    )
    numbers = st.sampled_from(inside) | powers
    return numbers.map(lambda number: decimal(number, kind.scale)) if pa.types.is_decimal(kind) else numbers


@pytest.mark.parametrize("kind", [pa.int8(), *(kind for kind, _ in SUMS if pa.types.is_decimal(kind))], ids=str)
def test_a_sum_that_leaves_its_type_on_the_way_is_refused_wherever_the_batch_is_cut(kind):
    scaled = (lambda digits: decimal(digits, kind.scale)) if pa.types.is_decimal(kind) else int
    highest = 10**kind.precision - 1 if pa.types.is_decimal(kind) else 127
    one, most, less, nothing = map(scaled, (1, highest, highest - 1, 0))
    rows = [(1, one), (2, most), (1, -one), (2, one), (2, -one), (3, one)]
    state = KeyedStateBackend(**BACKEND).state(ReducingStateDescriptor("s", kind, reduce="sum"))

    def add(some):
        state.add_batch([key for key, _ in some], pa.array([value for _, value in some], kind))

    with pytest.raises(ValueOverflowError):
        add(rows)
    assert state.get_batch([1, 2, 3]).to_pylist() == [None, None, None]
    add([row for row in rows if row != (2, one)])
    assert state.get_batch([1, 2, 3]).to_pylist() == [nothing, less, one]
    with pytest.raises(ValueOverflowError):
        add([(2, one), (2, one), (2, -one)])


@pytest.mark.parametrize("kind", FACTOR_KINDS, ids=str)
def test_a_product_is_exact_or_refused_to_the_ends_of_its_range(kind):
    @settings(max_examples=short_or_long(30, 1200), deadline=None)
    @given(rows=st.lists(st.tuples(KEYS, factors(kind)), min_size=1, max_size=6), scalar=st.booleans())
    def check(rows, scalar):
        backend = KeyedStateBackend(**BACKEND)
        state = backend.state(ReducingStateDescriptor("s", kind, reduce="product"))
        try:
            model = fold_batch("product", kind, {}, rows)
        except Overflow:
            model = None

        try:
            if scalar:
                for key, value in rows:
                    backend.current_key = key
                    state.add(value)
            else:
                state.add_batch(pa.array([key for key, _ in rows], pa.int64()), pa.array([v for _, v in rows], kind))
        except ValueOverflowError:
            assert model is None
            assert scalar or not len(state)
        else:
            assert model is not None, "the product does not fit, yet it was taken"
            expected = pa.array([model.get(key) for key in range(4)], kind)
            assert state.get_batch(range(4)).equals(expected)

    check()


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
@pytest.mark.parametrize("factors", [(-2, -2), (2, 2)], ids=str)
def test_a_product_reaches_the_lowest_value_of_its_type_and_no_further(kind, factors):
    state = KeyedStateBackend(**BACKEND).state(ReducingStateDescriptor("s", kind, reduce="product"))
    lowest = -(2 ** (kind.bit_width - 1))

    state.add_batch([1, 1], pa.array([lowest // 2 * (1 if factors[0] > 0 else -1), factors[0]], kind))

    assert state.get_batch([1]).to_pylist() == [lowest]
    with pytest.raises(ValueOverflowError):
        state.add_batch([1], pa.array([factors[1]], kind))


PRODUCTS = [
    (pa.int8(), [16, 8]),
    (pa.int8(), [-128, -1]),
    (pa.int64(), [-(2**63), -1]),
    (pa.int64(), [2**32, 2**31]),
    (pa.uint64(), [2**32, 2**32]),
    (pa.decimal32(4, 1), [Decimal("100.0"), Decimal("10.0")]),
    (pa.decimal128(9, 2), [Decimal("0.55"), Decimal("0.55")]),
]


@pytest.mark.parametrize(("kind", "values"), PRODUCTS, ids=str)
@pytest.mark.parametrize("scalar", [False, True], ids=["batch", "scalar"])
def test_a_product_that_does_not_fit_is_refused_and_changes_nothing(kind, values, scalar):
    backend = KeyedStateBackend(**BACKEND)
    state = backend.state(ReducingStateDescriptor("total", kind, reduce="product"))
    state.add_batch([7, 8], pa.array([values[0]] * 2, kind))
    before = state.get_batch([7, 8, 9])
    backend.current_key = 7

    with pytest.raises(ValueOverflowError, match="product of state 'total' does not fit"):
        state.add(values[1]) if scalar else state.add_batch([9, 7], pa.array(values, kind))

    assert state.get_batch([7, 8, 9]).equals(before)


@pytest.mark.parametrize(("kind", "values"), SUMS, ids=str)
@pytest.mark.parametrize("scalar", [False, True], ids=["batch", "scalar"])
def test_a_sum_that_does_not_fit_is_refused_and_changes_nothing(kind, values, scalar):
    backend = KeyedStateBackend(**BACKEND)
    state = backend.state(ReducingStateDescriptor("total", kind, reduce="sum"))
    state.add_batch([7, 8], pa.array([values[0], values[0]], kind))
    before = state.get_batch([7, 8, 9])

    with pytest.raises(ValueOverflowError, match="total"):
        if scalar:
            backend.current_key = 7
            for value in values[1:]:
                state.add(value)
        else:
            state.add_batch([9, *[7] * (len(values) - 1)], pa.array([values[0], *values[1:]], kind))

    if len(values) == 2 or not scalar:
        assert state.get_batch([7, 8, 9]).equals(before)
    assert state.get_batch([8, 9]).equals(before[1:])


def test_decimals_add_exactly_past_the_precision_of_a_double():
    kind = pa.decimal256(70, 3)
    values = [decimal(10**60 + 1, 3), decimal(-(10**59), 3), Decimal("0.001")]
    state = KeyedStateBackend(**BACKEND).state(ReducingStateDescriptor("s", kind, reduce="sum"))

    state.add_batch([1, 1, 1], pa.array(values, kind))

    assert state.get_batch([1]).to_pylist() == [decimal(9 * 10**59 + 2, 3)]


FIELDS = pa.struct(
    [
        ("n", pa.int64()),
        ("total", pa.int32()),
        ("low", pa.float64()),
        ("high", pa.string()),
        ("start", pa.timestamp("us")),
        ("price", pa.decimal128(9, 2)),
        ("factor", pa.int64()),
        ("odd", pa.bool_()),
        ("seen", pa.bool_()),
        ("shared", pa.uint8()),
        ("flags", pa.int16()),
    ]
)
EACH = {"n": "count", "total": "sum", "low": "min", "high": "max", "start": "first", "price": "last"}
EACH |= {"factor": "product", "odd": "all", "seen": "any", "shared": "bit_and", "flags": "bit_or"}
FIELD_VALUES = st.fixed_dictionaries(
    {
        "n": st.integers(-1, 1) | st.none(),
        "total": st.integers(-5, 5) | st.none(),
        "low": FLOATS | st.none(),
        "high": st.text("ab", max_size=2) | st.none(),
        "start": st.integers(0, 2**50) | st.none(),
        "price": decimals(5, 2) | st.none(),
        "factor": st.sampled_from([-2, -1, 1, 2, None]),
        "odd": st.booleans() | st.none(),
        "seen": st.booleans() | st.none(),
        "shared": st.integers(0, 255) | st.none(),
        "flags": st.integers(-32768, 32767) | st.none(),
    }
)


@settings(max_examples=short_or_long(30, 80), deadline=None)
@given(
    batches=st.lists(st.lists(st.tuples(KEYS, FIELD_VALUES | st.none()), max_size=8), min_size=1, max_size=4),
    scalar=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_each_field_has_its_own_reducer_and_passes_its_nulls_over(batches, scalar):
    backend = KeyedStateBackend(**BACKEND, merge_policy=SMALL)
    state = backend.state(ReducingStateDescriptor("s", FIELDS, reduce=EACH))
    model = {}

    for rows, one_by_one in zip(batches, scalar, strict=False):
        if one_by_one:
            for key, value in rows:
                backend.current_key = key
                state.add(value)
        else:
            state.add_batch(pa.array([key for key, _ in rows], pa.int64()), pa.array([v for _, v in rows], FIELDS))
        for key, value in rows:
            if value is None:
                model.pop(key, None)
                continue
            old = model.get(key) or {**dict.fromkeys(EACH), "n": 0}
            model[key] = {
                name: old[name] + (value[name] is not None)
                if reduce == "count"
                else old[name]
                if value[name] is None
                else fold(reduce, FIELDS.field(name).type, old[name], value[name])
                for name, reduce in EACH.items()
            }
        expected = pa.array([model.get(key) for key in range(4)], FIELDS)

        assert repr(state.get_batch(range(4)).to_pylist()) == repr(expected.to_pylist())
        assert len(state) == len(model)


def test_fields_come_as_a_batch_in_any_order_and_counted_ones_in_any_type():
    state = KeyedStateBackend(**BACKEND).state(ReducingStateDescriptor("s", FIELDS, reduce=EACH))
    values = pa.record_batch(
        {
            "total": pa.array([1, None, 3], pa.int8()),
            "n": ["x", None, "y"],
            "high": ["a", "b", None],
            "price": pa.array([Decimal("1.5"), None, None]),
            "start": pa.nulls(3),
            "low": [2.5, 1.5, NAN],
            "factor": pa.array([3, None, -2], pa.int8()),
            "odd": [True, None, False],
            "seen": [None, None, True],
            "shared": pa.array([6, 3, None]),
            "flags": pa.array([1, None, 4]),
        }
    )

    state.add_batch([1, 1, 1], values)

    expected = {"n": 2, "total": 4, "low": 1.5, "high": "b", "start": None, "price": Decimal("1.50")}
    expected |= {"factor": -6, "odd": False, "seen": True, "shared": 2, "flags": 5}
    assert state.get_batch([1]).to_pylist() == [expected]


def test_an_overflow_in_one_field_changes_no_field_and_names_it():
    state = KeyedStateBackend(**BACKEND).state(ReducingStateDescriptor("s", FIELDS, reduce=EACH))
    state.add_batch([1], [{"n": 1, "total": 2**31 - 1}])
    before = state.get_batch([1])

    with pytest.raises(ValueOverflowError, match=r"s\.total"):
        state.add_batch([1], [{"n": 1, "total": 1}])

    assert state.get_batch([1]).equals(before)
