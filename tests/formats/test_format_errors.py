"""The errors of the format package travel between processes and keep what they say."""

import pickle

import pytest

from arrowstate_formats import ArrowStateError, CorruptDataError, FormatVersionError, InvalidInputError


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (InvalidInputError("parallelism must be 1 to 128, got 0"), ValueError),
        (CorruptDataError("data/a.arrow", "truncated"), ValueError),
        (FormatVersionError("arrowstate.json", 7, 1), RuntimeError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_an_error_survives_pickling_with_message_and_attributes(
    error: ArrowStateError, builtin: type[Exception]
) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert isinstance(copy, ArrowStateError)
    assert isinstance(copy, builtin)
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_damage_names_the_file_and_what_is_wrong() -> None:
    assert str(CorruptDataError("data/a.arrow", "truncated")) == "data/a.arrow is damaged: truncated"
    assert str(CorruptDataError("", "truncated")) == "stored data is damaged: truncated"


def test_a_newer_version_names_both_versions_and_the_way_out() -> None:
    message = str(FormatVersionError("arrowstate.json", 7, 1))

    assert "format version 7" in message
    assert "up to 1" in message
    assert "install a newer arrowstate" in message
