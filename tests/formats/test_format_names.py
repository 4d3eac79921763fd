"""Names that a store may contain, and paths that stay inside it."""

import json
from typing import Any

import msgspec
import pytest

from arrowstate_formats import CorruptDataError, InvalidInputError
from arrowstate_formats.document_base import Name, StoredPath
from arrowstate_formats.names import (
    check_column_name,
    check_new_tag_name,
    check_operator_uid,
    check_relative_path,
    check_savepoint_name,
    check_state_name,
    check_tag_name,
)


@pytest.mark.parametrize("name", ["a", "0", "counter-1", "Counter_2.b", "x" * 128])
def test_portable_names_are_accepted(name: str) -> None:
    assert check_operator_uid(name) == check_state_name(name) == check_savepoint_name(name) == name
    assert msgspec.convert(name, Name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "_a", "-a", "a/b", "a b", "ä", "a\n", "x" * 129, None, 7])
def test_other_names_are_refused_and_shown(name: Any) -> None:
    with pytest.raises(InvalidInputError) as operator:
        check_operator_uid(name)
    with pytest.raises(InvalidInputError) as state:
        check_state_name(name)
    with pytest.raises(InvalidInputError, match="a savepoint name must be"):
        check_savepoint_name(name)

    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, Name)
    assert "an operator uid must be" in str(operator.value)
    assert "a state name must be" in str(state.value)
    assert str(operator.value).endswith(f"got {name!r}")


def test_a_new_tag_is_not_named_by_digits_alone_and_an_old_one_may_be() -> None:
    assert check_new_tag_name("v2") == "v2"
    assert check_tag_name("2") == "2"
    for name in ("2", "007"):
        with pytest.raises(InvalidInputError, match=f"must not be digits alone.*such as 'v{name}'"):
            check_new_tag_name(name)


@pytest.mark.parametrize("name", ["a", "departure delay", "ä", "a_b", "7", 'with "quotes"'])
def test_column_names_are_free(name: str) -> None:
    assert check_column_name(name) == name


@pytest.mark.parametrize("name", ["", "_key_hash", "_", "a\0b", "\ud800", None])
def test_reserved_and_unportable_column_names_are_refused(name: Any) -> None:
    with pytest.raises(InvalidInputError, match="column name"):
        check_column_name(name)


@pytest.mark.parametrize("path", ["a", "data/counter/clicks/1f.arrow", "a/..b/...", "a b/ä"])
def test_paths_inside_the_store_are_accepted(path: str) -> None:
    assert check_relative_path(path) == path
    assert msgspec.convert(path, StoredPath) == path


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\\b", "a\0b", "a\nb", "a\n", "\ud800", None],
)
def test_paths_that_could_leave_the_store_are_refused(path: Any) -> None:
    with pytest.raises(CorruptDataError, match="a path must"):
        check_relative_path(path)
    with pytest.raises((msgspec.DecodeError, UnicodeEncodeError)):
        msgspec.json.decode(json.dumps(path), type=StoredPath)
