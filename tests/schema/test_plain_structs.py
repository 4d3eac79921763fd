"""A struct as a state stores it is made field by field: as the whole is, whatever is given, and no less checked."""

import copy
import datetime
from collections import OrderedDict
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.schema.plain import copying, fitting, plain_value
from arrowstate.schema.types import CONVERSION_ERRORS, python_scalar, shown_misfit
from every_type import KINDS, MOMENT

ROW = pa.struct({"a": pa.int8(), "b": pa.string(), "c": pa.struct({"d": pa.float64(), "e": pa.list_(pa.int64())})})
INNER = {"d": 1.5, "e": [1, 2]}
GIVEN = {
    "whole": {"a": 1, "b": "x", "c": INNER},
    "in another order": {"c": {"e": None, "d": None}, "b": None, "a": 1},
    "with a field left out": {"a": 1, "c": INNER},
    "with a field left out within": {"a": 1, "b": "x", "c": {"d": 1.5}},
    "of nulls": {"a": None, "b": None, "c": None},
    "a tuple": (1, "x", INNER),
    "pairs": [("a", 1), ("b", "x"), ("c", INNER)],
    "another mapping": OrderedDict(a=1, b="x", c=INNER),
    "with numbers of NumPy": {"a": np.int64(1), "b": "x", "c": {"d": np.float64(2), "e": [np.int32(3)]}},
    "an integer for a float": {"a": 1, "b": "x", "c": {"d": 2, "e": []}},
    "with an unknown field": {"a": 1, "b": "x", "c": INNER, "z": 1},
    "with an unknown field for another": {"a": 1, "b": "x", "z": INNER},
    "an integer out of range": {"a": 128, "b": "x", "c": INNER},
    "a bool for an integer": {"a": True, "b": "x", "c": INNER},
    "a number for a text": {"a": 1, "b": 5, "c": INNER},
    "half of a surrogate": {"a": 1, "b": "\ud800", "c": INNER},
    "a misfit within": {"a": 1, "b": "x", "c": {"d": 1.5, "e": ["y"]}},
    "no struct": 7,
}


def as_a_whole(value, kind, name):
    """Return what a value is when the whole of it is made at once."""
    try:
        scalar = python_scalar(value, kind)
    except CONVERSION_ERRORS as error:
        raise ValueTypeError(name, str(kind), shown_misfit(value, kind)) from error
    return plain_value(scalar, f"state {name!r}")


def outcome(function, *arguments):
    """Return a value, with the order of its fields, or the error."""
    try:
        return repr(function(*arguments))
    except (InvalidInputError, ValueTypeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("what", GIVEN)
def test_a_struct_is_what_the_whole_is_and_so_is_its_error(what):
    assert outcome(fitting(ROW, "row"), GIVEN[what]) == outcome(as_a_whole, GIVEN[what], ROW, "row")


@pytest.mark.parametrize("kind", [kind for kind, _, _ in KINDS], ids=str)
def test_a_field_of_each_type_is_what_it_is_in_the_whole(kind):
    struct = pa.struct({"a": kind})
    for value in [value for _, value, _ in KINDS] + [2**70, float("inf"), 1e300, Decimal("NaN"), b"\xff", [1], {}]:
        assert outcome(fitting(struct, "row"), {"a": value}) == outcome(as_a_whole, {"a": value}, struct, "row"), value


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([pa.field("a", pa.int64(), nullable=False)]),
        pa.struct([pa.field("a", pa.int64()), pa.field("a", pa.int64())]),
    ],
)
def test_a_struct_with_a_field_without_nulls_or_twice_is_made_as_a_whole(kind):
    for value in ({"a": None}, {"a": 1}, {}, {"a": "x"}):
        assert outcome(fitting(kind, "row"), value) == outcome(as_a_whole, value, kind, "row")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ROW, GIVEN["whole"]),
        (pa.struct({"a": pa.int64(), "b": pa.timestamp("us")}), {"a": 1, "b": MOMENT}),
        (pa.list_(pa.string()), ["a", None]),
        (pa.list_(pa.list_(pa.int64())), [[1], None, [2, 3]]),
        (pa.map_(pa.string(), pa.list_(pa.int64())), [("a", [1])]),
        (pa.date32(), datetime.date(2024, 2, 29)),
        (pa.list_(pa.string()), None),
    ],
)
def test_whoever_changes_a_copy_leaves_the_value_as_it_was(kind, value):
    before = copy.deepcopy(value)

    copied = copying(kind)(value)

    assert copied == value
    emptied(copied)
    assert value == before


def emptied(value):
    """Take everything out of a value that can be changed, within it first."""
    if isinstance(value, (list, tuple, dict)):
        for part in list(value.values() if isinstance(value, dict) else value):
            emptied(part)
    if isinstance(value, (list, dict)):
        value.clear()
