"""How a state lies in columns, and when two descriptors mean the same state."""

import pyarrow as pa
import pytest

from arrowstate.errors import CorruptDataError, IncompatibleStateError, InvalidInputError
from arrowstate.schema.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from arrowstate.schema.layout import (
    StateLayout,
    check_same_state,
    descriptor_of,
    key_documents,
    key_schema_of,
    state_document,
)
from arrowstate_formats.documents import decode, encode

KEY = pa.schema([pa.field("user", pa.string(), nullable=False), pa.field("day", pa.date32(), nullable=False)])
STRUCT = pa.struct([("n", pa.int64()), ("Day", pa.int32())])


def columns(name, kind, key=KEY):
    return StateLayout(key, name, kind).schema.names


def test_a_plain_value_is_one_column_named_after_the_state():
    assert columns("clicks", pa.int64()) == ["_key_hash", "user", "day", "clicks"]


def test_a_struct_is_one_column_per_field():
    assert columns("clicks", pa.struct([("n", pa.int64()), ("m", pa.int32())])) == [
        "_key_hash",
        "user",
        "day",
        "n",
        "m",
    ]


def test_a_name_that_a_key_column_has_gets_the_name_of_the_state_in_front():
    assert columns("USER", pa.int64()) == ["_key_hash", "user", "day", "USER_USER"]
    assert columns("clicks", STRUCT) == ["_key_hash", "user", "day", "n", "clicks_Day"]


def test_columns_that_still_clash_are_refused():
    key = pa.schema([("n", pa.int64()), ("s_n", pa.int64())])

    with pytest.raises(InvalidInputError, match="clash"):
        columns("s", pa.struct([("n", pa.int64())]), key)


DESCRIPTORS = [
    ValueStateDescriptor("s", pa.int64()),
    ValueStateDescriptor("s", pa.list_(pa.struct([("a", pa.decimal128(5, 2))]))),
    ReducingStateDescriptor("s", pa.timestamp("us", "UTC"), reduce="max"),
    ReducingStateDescriptor("s", STRUCT, reduce={"n": "count", "Day": "sum"}),
    ReducingStateDescriptor("s", STRUCT, reduce="last"),
]


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=str)
def test_a_descriptor_comes_back_from_its_document(descriptor):
    document = state_document(descriptor, StateLayout(KEY, "s", descriptor.type), key_documents(KEY))

    stored = decode(encode(document), type(document))

    assert descriptor_of(stored) == descriptor
    assert [column.id for column in stored.columns] == list(range(3, 3 + len(stored.columns)))


def test_the_key_comes_back_from_its_documents():
    assert key_schema_of(key_documents(KEY)) == KEY


def test_a_default_is_no_part_of_what_is_stored():
    descriptor = ValueStateDescriptor("s", pa.int64(), default=5)

    stored = descriptor_of(state_document(descriptor, StateLayout(KEY, "s", pa.int64()), key_documents(KEY)))

    assert stored.default is None
    check_same_state(stored, descriptor)


@pytest.mark.parametrize("number", range(len(DESCRIPTORS)))
def test_another_kind_type_or_reducer_is_another_state(number):
    have = DESCRIPTORS[number]

    for other in DESCRIPTORS:
        if other is have:
            check_same_state(have, other)
            continue
        with pytest.raises(IncompatibleStateError, match="state 's'") as caught:
            check_same_state(have, other)
        assert str(have.type) in str(caught.value)
        assert str(other.type) in str(caught.value)


@pytest.mark.parametrize(("kind", "reduce"), [("reducing", None), ("reducing", "mean"), ("reducing", {"q": "sum"})])
def test_a_stored_state_with_an_unknown_reducer_is_damaged(kind, reduce):
    document = state_document(DESCRIPTORS[2], StateLayout(KEY, "s", pa.int64()), key_documents(KEY))
    values = {name: getattr(document, name) for name in document.__struct_fields__}

    with pytest.raises(CorruptDataError, match="state 's'"):
        descriptor_of(type(document)(**{**values, "kind": kind, "reduce": reduce}))
