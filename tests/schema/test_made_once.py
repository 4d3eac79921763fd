"""What is made of documents is made once, told apart by what they say, and errors are raised each time."""

from dataclasses import replace

import pyarrow as pa
import pytest
from msgspec.structs import replace as with_fields

import arrowstate
from arrowstate.errors import CorruptDataError
from arrowstate.schema.layout import StateLayout, descriptor_of, key_documents, key_schema_of, state_document
from arrowstate.schema.made_once import made_once
from arrowstate.schema.versions import RunSchemas
from stores import TOTAL, USER


def document_of(descriptor: arrowstate.ReducingStateDescriptor = TOTAL) -> object:
    return state_document(descriptor, StateLayout.of(USER, descriptor), key_documents(USER))


def test_equal_documents_have_one_descriptor_and_one_schema() -> None:
    first, second = document_of(), document_of()

    assert first is not second
    assert descriptor_of(first) is descriptor_of(second)
    assert RunSchemas(key_documents(USER), first).schema is RunSchemas(key_documents(USER), second).schema
    assert key_schema_of(key_documents(USER)) is key_schema_of(key_documents(USER))


def test_documents_that_differ_in_anything_have_their_own() -> None:
    others = [replace(TOTAL, name="sum"), replace(TOTAL, reduce="max"), replace(TOTAL, type=pa.int32())]

    found = [descriptor_of(document_of(item)) for item in [TOTAL, *others]]

    assert [(item.name, item.reduce, item.type) for item in found] == [
        ("total", "sum", pa.int64()),
        ("sum", "sum", pa.int64()),
        ("total", "max", pa.int64()),
        ("total", "sum", pa.int32()),
    ]


def test_what_cannot_be_made_is_an_error_each_time() -> None:
    damaged = with_fields(document_of(), reduce="median")

    for _ in range(2):
        with pytest.raises(CorruptDataError, match="median"):
            descriptor_of(damaged)


def test_only_so_many_are_kept() -> None:
    made = []
    double = made_once(lambda number: made.append(number) or 2 * number)

    for number in [*range(600), 599, 0]:
        assert double(number) == 2 * number

    assert made == [*range(600), 0]
