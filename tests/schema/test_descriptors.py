"""What a state descriptor accepts."""

import pickle
from decimal import Decimal

import pyarrow as pa
import pytest

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import REDUCERS, ReducingStateDescriptor, ValueStateDescriptor
from early_versions import NARROW_DECIMALS

UNSTORED = [
    pa.dictionary(pa.int8(), pa.string()),
    pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]),
    pa.list_view(pa.int64()),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.month_day_nano_interval(),
    pa.dense_union([pa.field("a", pa.int64())]),
    pa.uuid(),
    pa.struct([]),
    pa.string_view(),
    pa.list_(pa.binary_view()),
    pa.list_(pa.list_(pa.int8(), 2), 2),
    pa.struct([("a", pa.list_(pa.list_(pa.list_(pa.int8()), 2), 2))]),
    pa.decimal128(5, -2),
    pa.struct([("a", pa.decimal256(5, 6))]),
    pa.binary(0),
    pa.list_(pa.int8(), 0),
]


@pytest.mark.parametrize("kind", UNSTORED, ids=str)
def test_a_type_that_cannot_be_stored_is_refused_when_it_is_declared(kind):
    with pytest.raises(InvalidInputError, match="state 's'"):
        ValueStateDescriptor("s", kind)
    with pytest.raises(InvalidInputError, match="state 's'"):
        ReducingStateDescriptor("s", kind, reduce="last")


@pytest.mark.parametrize("kind", ["int64", int, None, pa.field("a", pa.int64())])
def test_what_is_no_arrow_type_is_refused(kind):
    with pytest.raises(InvalidInputError, match=r"pa.int64\(\)"):
        ValueStateDescriptor("s", kind)


@pytest.mark.parametrize("name", ["", "_s", "-s", "a/b", "a b", "é", "s" * 129, 5, "../s"])
def test_a_state_name_is_a_portable_name(name):
    with pytest.raises(InvalidInputError, match="state name"):
        ValueStateDescriptor(name, pa.int64())


@pytest.mark.parametrize("fields", [["a", "A"], ["_a"], [""]])
def test_struct_fields_must_be_usable_as_columns(fields):
    kind = pa.struct([(name, pa.int64()) for name in fields])

    with pytest.raises(InvalidInputError):
        ValueStateDescriptor("s", kind)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (pa.int8(), 300),
        (pa.int64(), "a"),
        (pa.int64(), 1.5),
        (pa.string(), 1),
        (pa.decimal128(3, 1), Decimal("1.25")),
        (pa.struct([("a", pa.int64())]), {"b": 1}),
    ],
)
def test_a_default_of_another_type_is_refused(kind, default):
    with pytest.raises(InvalidInputError, match="default of state 's'"):
        ValueStateDescriptor("s", kind, default=default)


def allowed(reduce):
    number = [pa.int8(), pa.uint64(), pa.float16(), pa.float64(), *NARROW_DECIMALS, pa.decimal256(60, 2)]
    time = [pa.date32(), pa.time64("ns"), pa.timestamp("us", "UTC")]
    text = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
    other = [
        pa.binary(3),
        pa.list_(pa.int8()),
        pa.map_(pa.string(), pa.int8()),
        pa.struct([("a", pa.int8())]),
        pa.null(),
    ]
    everything = [*number, pa.duration("s"), *time, *text, pa.bool_(), *other, pa.int64()]
    if reduce == "count":
        return everything, [pa.int64()]
    if reduce == "product":
        return everything, [*number, pa.int64()]
    if reduce in ("any", "all"):
        return everything, [pa.bool_()]
    if reduce in ("bit_and", "bit_or"):
        return everything, [pa.int8(), pa.uint64(), pa.int64()]
    if reduce == "sum":
        return everything, [*number, pa.duration("s"), pa.int64()]
    if reduce in ("min", "max"):
        return everything, [*number, pa.duration("s"), *time, *text, pa.bool_(), pa.int64()]
    return everything, everything


@pytest.mark.parametrize("reduce", REDUCERS)
def test_a_reducer_takes_the_types_it_has_a_meaning_for(reduce):
    everything, fitting = allowed(reduce)

    accepted = []
    for kind in everything:
        try:
            ReducingStateDescriptor("s", kind, reduce=reduce)
            accepted.append(kind)
        except InvalidInputError as error:
            assert "state 's'" in str(error)

    assert accepted == fitting


@pytest.mark.parametrize("reduce", ["", "SUM", "mean", None, 5])
def test_an_unknown_reducer_is_refused_with_the_list_of_those_there_are(reduce):
    with pytest.raises(InvalidInputError):
        ReducingStateDescriptor("s", pa.int64(), reduce=reduce)
    if isinstance(reduce, str):
        with pytest.raises(
            InvalidInputError, match="sum, product, min, max, count, first, last, any, all, bit_and, bit_or"
        ):
            ReducingStateDescriptor("s", pa.int64(), reduce=reduce)


STRUCT = pa.struct([("n", pa.int64()), ("low", pa.float64())])


@pytest.mark.parametrize(
    "reduce",
    [
        {"n": "count"},
        {"n": "count", "low": "min", "high": "max"},
        {"n": "count", "low": "mean"},
        {"n": "sum", "LOW": "min"},
    ],
)
def test_reducers_per_field_must_name_each_field_once_and_fit_it(reduce):
    with pytest.raises(InvalidInputError, match="low"):
        ReducingStateDescriptor("s", STRUCT, reduce=reduce)


def test_reducers_per_field_need_a_struct():
    with pytest.raises(InvalidInputError, match="declare a struct type"):
        ReducingStateDescriptor("s", pa.int64(), reduce={"n": "count"})


def test_the_order_of_the_reducers_does_not_matter():
    one = ReducingStateDescriptor("s", STRUCT, reduce={"n": "count", "low": "min"})
    other = ReducingStateDescriptor("s", STRUCT, reduce={"low": "min", "n": "count"})

    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    "descriptor",
    [
        ValueStateDescriptor("s", pa.list_(pa.int64()), default=[1]),
        ReducingStateDescriptor("s", STRUCT, reduce={"n": "count", "low": "min"}),
    ],
)
def test_descriptors_survive_pickling(descriptor):
    assert pickle.loads(pickle.dumps(descriptor)) == descriptor
