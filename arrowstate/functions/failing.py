"""What a user learns of a function that fails in a task, whose error may reach the user as text alone.

Spark tells the driver the text of an error and the frames that led to it, but nothing of its cause, and the cause is
where the user's own code stands. So everything worth knowing is put into the text.
"""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from arrowstate.errors import ProcessElementError, UserFunctionError
from arrowstate.schema.types import scalar_text
from arrowstate.shown import error_text

_OURS = str(Path(__file__).parents[1])
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 200


def storable_text(text: str) -> str:
    """Return a text that a table or a document can hold: UTF-8 has no half of a surrogate pair, its escape stands."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextmanager
def explained(
    uid: str,
    doing: str,
    *,
    key: list[str] | None = None,
    rows: pa.Table | None = None,
    unit: str = "micro-batch",
) -> Iterator[None]:
    """Raise what a function of the user's raised as an error whose text tells all of it.

    Errors that have nothing to do with the user's code pass through.
    """
    try:
        yield
    except (UserFunctionError, KeyboardInterrupt, GeneratorExit):
        raise  # out of a step that knows more of its place, or from outside
    except BaseException as error:  # SystemExit too: a function ends itself, and not its job
        cause = error.__cause__ if isinstance(error, ProcessElementError) and error.__cause__ is not None else error
        trace = _trace(cause)
        if not trace and not isinstance(error, ProcessElementError):
            raise
        place = doing
        reason = error_text(cause)
        if isinstance(error, ProcessElementError):
            reason = error.detail
            place += f", row {error.row}"
            if rows is not None and error.row < rows.num_rows:
                of_key = "" if key is None else f"key {_shown(rows, key, error.row)} and "
                place += f" with {of_key}values {_shown(rows, None, error.row)}"
        # The cause is in the text; chained, its traceback would hold the rows of the batch.
        raise UserFunctionError(uid, storable_text(reason), place, storable_text(trace), unit) from None


def _trace(error: BaseException) -> str:
    """The traceback without our own frames, empty if no others are left."""
    found = traceback.TracebackException.from_exception(error)
    return "".join(found.format()) if _keep_theirs(found) else ""


def _keep_theirs(found: traceback.TracebackException) -> bool:
    theirs = [frame for frame in found.stack if not frame.filename.startswith(_OURS)]
    found.stack = traceback.StackSummary.from_list(theirs)
    chained = [_keep_theirs(other) for other in (found.__cause__, found.__context__) if other is not None]
    return bool(theirs) or any(chained)


def _shown(rows: pa.Table, names: list[str] | None, row: int) -> str:
    given = rows.select(names) if names is not None else rows
    values: Mapping[str, Any] = {name: _value(given.column(name)[row]) for name in given.column_names}
    return "{" + ", ".join(f"{name!r}: {_SHOWN.repr(value)}" for name, value in values.items()) + "}"


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):  # It has no counterpart in Python.
        return scalar_text(scalar)
