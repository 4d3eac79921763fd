"""Sinks that are called with rows as they come: at least once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.runtime.connectors import DirectSink
from arrowstate.schema.nanoseconds import nanoseconds_as_text


class FunctionSink(DirectSink):
    """Calls a function with rows as soon as they come: at least once.

    After a failure the job goes back to the newest checkpoint, and rows after it come again.

    Parameters
    ----------
    function : callable
        `function(rows)` takes a `pyarrow.RecordBatch`. It is called in the slots of the job. An exception fails the
        job, which starts again.

    Raises
    ------
    InvalidInputError
        If it cannot be called.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import FunctionSink
    >>> seen = []
    >>> FunctionSink(seen.append).write(pa.record_batch({"n": [1, 2]}), subtask=0)
    >>> seen[0].to_pydict()
    {'n': [1, 2]}
    """

    def __init__(self, function: Callable[[pa.RecordBatch], Any]) -> None:
        if not callable(function):
            raise InvalidInputError(f"a FunctionSink needs a function, got {type(function).__name__}")
        self.function = function

    def write(self, rows: pa.RecordBatch, subtask: int) -> None:  # noqa: ARG002
        """Call the function."""
        self.function(rows)


class PrintSink(DirectSink):
    """Prints rows when they come, a line for each, with the number of the subtask: at least once.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import PrintSink
    >>> PrintSink().write(pa.record_batch({"user": ["ann", "bob"], "total": [3, 5]}), subtask=1)
    1> {'user': 'ann', 'total': 3}
    1> {'user': 'bob', 'total': 5}
    """

    def write(self, rows: pa.RecordBatch, subtask: int) -> None:
        """Print rows."""
        shown = pa.RecordBatch.from_arrays(list(map(nanoseconds_as_text, rows.columns)), names=rows.schema.names)
        # In one call, so that lines of other processes do not come between.
        print("\n".join(f"{subtask}> {row}" for row in shown.to_pylist()), flush=True)
