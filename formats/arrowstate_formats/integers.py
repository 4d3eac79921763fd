"""Integers that come from a caller: taken as Python's own, or refused before they reach a document.

A float, a boolean or a number that is too large would be committed and then refused by every reader, so each entrance
asks here. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from arrowstate_formats.errors import InvalidInputError

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1
LARGEST_EXACT = (1 << 53) - 1
"""The largest integer that every reader of JSON keeps: JavaScript and jq have doubles."""


_BITS_OF_BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


def _bit_counts_by_bytes(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    data = np.ascontiguousarray(values)
    return _BITS_OF_BYTES[data.view(np.uint8)].reshape(*data.shape, data.itemsize).sum(axis=-1, dtype=np.uint8)


# numpy 1 has no word for it.
bit_counts: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = getattr(np, "bitwise_count", _bit_counts_by_bytes)
"""Returns how many bits of each value are set."""


@overload
def check_integer(what: str, value: Any, least: int = ..., most: int = ..., *, unit: str = ...) -> int: ...
@overload
def check_integer(
    what: str, value: Any, least: int = ..., most: int = ..., *, unit: str = ..., optional: bool
) -> int | None: ...
def check_integer(
    what: str, value: Any, least: int = INT64_MIN, most: int = INT64_MAX, *, unit: str = "", optional: bool = False
) -> int | None:
    """Return an integer of a caller as an `int`; one of NumPy is taken too."""
    if type(value) is int and least <= value <= most:
        return value
    if value is None and optional:
        return None
    # numpy's boolean was an index before numpy 2.3.
    if not isinstance(value, (bool, np.bool_)):
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if least <= number <= most:
                return number
    kind = f"whole number of {unit}" if unit else "whole number"
    # Bounds beyond all integers of a store are none to speak of.
    bounds = f" from {_text(least)} to {_text(most)}" if least >= INT64_MIN else ""
    raise InvalidInputError(
        f"{what} must be a {kind}{bounds}{' or None' if optional else ''}, got {value!r} ({type(value).__name__})"
    )


def _text(bound: int) -> str:
    return {INT64_MIN: "-2^63", INT64_MAX: "2^63 - 1", LARGEST_EXACT: "2^53 - 1"}.get(bound, str(bound))
