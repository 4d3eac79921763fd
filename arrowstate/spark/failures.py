"""Functions that go to Spark's processes: what is refused beforehand because it cannot be pickled."""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle

from arrowstate.errors import InvalidInputError

__all__ = ["check_picklable"]


def check_picklable(uid: str, operator: object) -> None:
    """Refuse an operator that cannot be sent to Spark's tasks.

    Raises
    ------
    InvalidInputError
        If it cannot be pickled; the message names the operator and what of it cannot be.
    """
    error = _pickling_error(operator)
    if error is None:
        return
    parts = _parts(operator)
    culprit = next((name for name, part in parts.items() if _pickling_error(part) is not None), None)
    what = f"its {culprit} ({type(parts[culprit]).__name__})" if culprit is not None else "something that it refers to"
    raise InvalidInputError(
        f"operator {uid!r}, a {type(operator).__name__}, is pickled for each task of Spark, and {what} cannot be: "
        f"{type(error).__name__}: {error}; make it in open(), which every task calls"
    ) from error


def _parts(operator: object) -> dict[str, Any]:
    """What an operator is made of, as far as it may be pickled by value."""
    kind = type(operator)
    held = dict(vars(operator)) if hasattr(operator, "__dict__") else {}
    for slot in (name for base in kind.__mro__ for name in getattr(base, "__slots__", ())):
        if hasattr(operator, slot):
            held[slot] = getattr(operator, slot)
    parts = {f"attribute {name!r}": value for name, value in held.items()}
    for base in kind.__mro__[:-1]:
        for name, value in vars(base).items():
            if name in ("__dict__", "__weakref__", "__slots__"):
                continue
            function = getattr(value, "__func__", value)
            if callable(function) and hasattr(function, "__globals__"):
                parts.setdefault(f"method {name!r}", function)
            elif not name.startswith("__"):
                parts.setdefault(f"class attribute {name!r}", value)
    return parts


def _pickling_error(value: object) -> Exception | None:
    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 (whatever stops it stops the query)
        return error
    return None
