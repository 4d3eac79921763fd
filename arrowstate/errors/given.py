"""Arguments, data and functions that do not fit: what was given is refused whole, nothing of it took effect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from arrowstate_formats.errors import ArrowStateError, InvalidInputError


@dataclass(eq=False, repr=False)
class KeyTypeError(InvalidInputError, TypeError):
    """Keys have another type than the key of the operator; both are Arrow types, or key schemas.

    Examples
    --------
    >>> print(KeyTypeError("int64", "int32"))
    keys must be int64, got int32; cast them first (the type is part of the key: int32 and int64 hash differently)
    """

    expected: str
    given: str
    _message = (
        "keys must be {expected}, got {given}; cast them first (the type is part of the key: int32 and int64 hash "
        "differently)"
    )


@dataclass(eq=False, repr=False)
class NullKeyError(InvalidInputError):
    """A key has no value.

    Examples
    --------
    >>> print(NullKeyError("user", 17))
    key column 'user' is null in row 17; every key column needs a value: drop or fill such rows first
    """

    column: str
    row: int
    "The first row of the batch where it is null, from 0."
    _message = (
        "key column {column!r} is null in row {row}; every key column needs a value: drop or fill such rows first"
    )


@dataclass(eq=False, repr=False)
class KeyOutOfRangeError(InvalidInputError):
    """A key belongs to a key group that another subtask owns.

    Examples
    --------
    >>> print(KeyOutOfRangeError(77, 0, 42))
    key group 77 is outside 0 to 42, which this backend owns; send each row to the subtask of its key group
    """

    key_group: int
    "The key group of the first such key."
    start: int
    "The first key group of this backend."
    end: int
    "The last one, inclusive."
    _message = (
        "key group {key_group} is outside {start} to {end}, which this backend owns; send each row to the subtask of "
        "its key group"
    )


@dataclass(eq=False, repr=False)
class ValueTypeError(InvalidInputError, TypeError):
    """Values have another type than the state they are given to; both are Arrow types.

    Examples
    --------
    >>> print(ValueTypeError("clicks", "int64", "string"))
    values of state 'clicks' must be int64, got string; cast them first
    """

    state: str
    expected: str
    given: str
    _message = "values of state {state!r} must be {expected}, got {given}; cast them first"


@dataclass(eq=False, repr=False)
class ValueOverflowError(InvalidInputError, OverflowError):
    """The result of a reducer does not fit the type of its state.

    Examples
    --------
    >>> print(ValueOverflowError("clicks", "sum", "int32"))
    sum of state 'clicks' does not fit int32; declare the state with a wider type
    """

    state: str
    reduce: str
    "The reducer, such as `sum`."
    value_type: str
    _message = "{reduce} of state {state!r} does not fit {value_type}; declare the state with a wider type"


class UnsupportedStorageError(InvalidInputError):
    """A URL names a storage that a store cannot be kept on.

    Examples
    --------
    >>> print(UnsupportedStorageError("sftp://host/x", "sftp", ["a local path", "memory://"], "it is slow"))
    storage 'sftp' (sftp://host/x) is not supported: it is slow; supported: a local path, memory://
    """

    url: str
    protocol: str
    "The part of the URL that is not supported."
    supported: tuple[str, ...]
    reason: str

    def __init__(self, url: str, protocol: str, supported: Iterable[str], reason: str = "") -> None:
        self.url, self.protocol, self.supported, self.reason = self.args = url, protocol, tuple(supported), reason

    def __str__(self) -> str:
        because = f": {self.reason}" if self.reason else ""
        supported = ", ".join(self.supported)
        return f"storage {self.protocol!r} ({self.url}) is not supported{because}; supported: {supported}"


@dataclass(eq=False, repr=False)
class IncompatibleStateError(ArrowStateError, TypeError):
    """A state is declared in another way than it is stored, or than it was declared before.

    Examples
    --------
    >>> print(IncompatibleStateError("clicks", "sum of int64", "sum of int32", "declare int64, or use another name"))
    state 'clicks' is sum of int64 but is declared as sum of int32; declare int64, or use another name
    """

    state: str
    "Name of the state, with the path of the field where one field is the cause."
    stored: str
    "Kind, type, reducer."
    declared: str
    remedy: str = "declare it as it is"
    _message = "state {state!r} is {stored} but is declared as {declared}; {remedy}"


@dataclass(eq=False, repr=False)
class ProcessElementError(ArrowStateError, RuntimeError):
    """A process function failed on a row of a batch; the states are as before the batch.

    An exception of the function itself is the `__cause__`.

    Examples
    --------
    >>> print(ProcessElementError(17, "ZeroDivisionError: division by zero"))
    row 17: ZeroDivisionError: division by zero; the states are as before the batch
    """

    row: int
    "Row of the batch, counted from 0."
    detail: str
    _message = "row {row}: {detail}; the states are as before the batch"


@dataclass(eq=False, repr=False)
class SourceError(InvalidInputError):
    """A source cannot give the rows of a split: they do not fit, or are no longer what was read of them before.

    An exception of a library is the `__cause__`. No row was given from `position` on.

    Examples
    --------
    >>> print(SourceError("part-7.csv", 4096, "column 'amount': 'x' is not int64", row=4099))
    split 'part-7.csv' from position 4096, row 4099: column 'amount': 'x' is not int64
    """

    split: str
    position: Any
    "That of the rows that were to be read; None for the first row."
    detail: str
    row: int | None = None
    "The number of the row in the split, from 0, where it is known."
    source: str | None = None
    "The uid of the source in its job, where it is read by one."

    def __str__(self) -> str:
        position = "the start" if self.position is None else f"position {self.position}"
        row = "" if self.row is None else f", row {self.row}"
        source = "" if self.source is None else f"source {self.source!r}, "
        return f"{source}split {self.split!r} from {position}{row}: {self.detail}"


@dataclass(eq=False, repr=False)
class UserFunctionError(ArrowStateError, RuntimeError):
    """A function of the user's failed in a task of Spark or a step of a job; the states are as before it.

    Spark passes the text of an error on and nothing else, so the text has all that was known of it.

    Examples
    --------
    >>> print(UserFunctionError("totals", "ZeroDivisionError: division by zero", "row 7 with key 'ann'", "job.py, 12"))
    operator 'totals' failed at row 7 with key 'ann': ZeroDivisionError: division by zero; the states are as before \
the micro-batch
    job.py, 12
    """

    uid: str
    reason: str
    "The type and the text of the exception."
    place: str
    "What was being processed: the row with its key and values, where it is known."
    trace: str
    "The traceback, as far as it is in the user's code."
    unit: str = "micro-batch"
    "What was undone: a micro-batch of Spark, a step of a job."
    _message = "operator {uid!r} failed at {place}: {reason}; the states are as before the {unit}\n{trace}"

    def __str__(self) -> str:
        return super().__str__().rstrip()


@dataclass(eq=False, repr=False)
class JobFailedError(ArrowStateError, RuntimeError):
    """A job of the runtime ended for good; what its last checkpoint has is in the store, and a new start goes on there.

    Its cause is the last failure.

    Examples
    --------
    >>> print(JobFailedError("operator 'totals' failed at row 7: ZeroDivisionError: division by zero"))
    the job failed: operator 'totals' failed at row 7: ZeroDivisionError: division by zero; mend that and start it \
again, it goes on with its newest checkpoint
    """

    reason: str
    _message = "the job failed: {reason}; mend that and start it again, it goes on with its newest checkpoint"


@dataclass(eq=False, repr=False)
class ConcurrentUseError(ArrowStateError, RuntimeError):
    """Two threads used one backend at once; what this thread asked for was not done.

    Examples
    --------
    >>> print(ConcurrentUseError("a verb of another thread is running"))
    a backend is used by one thread at a time, and a verb of another thread is running; give each thread a backend of \
its own key groups, or hand the backend over between two batches
    """

    what: str
    _message = (
        "a backend is used by one thread at a time, and {what}; give each thread a backend of its own key groups, or "
        "hand the backend over between two batches"
    )
