"""Errors of arguments and data that do not fit. What was given is refused whole: nothing of it took effect."""

from __future__ import annotations

from collections.abc import Iterable

from arrowstate_formats.errors import ArrowStateError, InvalidInputError

__all__ = [
    "ConcurrentUseError",
    "IncompatibleStateError",
    "KeyOutOfRangeError",
    "KeyTypeError",
    "NullKeyError",
    "ProcessElementError",
    "UnsupportedStorageError",
    "UserFunctionError",
    "ValueOverflowError",
    "ValueTypeError",
]


class KeyTypeError(InvalidInputError, TypeError):
    """Keys have another type than the key of the operator.

    Attributes
    ----------
    expected, given : str
        Arrow types, or key schemas.

    Examples
    --------
    >>> print(KeyTypeError("int64", "int32"))
    keys must be int64, got int32; cast them first (the type is part of the key: int32 and int64 hash differently)
    """

    def __init__(self, expected: str, given: str) -> None:
        super().__init__(expected, given)
        self.expected = expected
        self.given = given

    def __str__(self) -> str:
        return (
            f"keys must be {self.expected}, got {self.given}; cast them first "
            "(the type is part of the key: int32 and int64 hash differently)"
        )


class NullKeyError(InvalidInputError):
    """A key has no value.

    Attributes
    ----------
    column : str
        The key column.
    row : int
        The first row of the batch where it is null, from 0.

    Examples
    --------
    >>> print(NullKeyError("user", 17))
    key column 'user' is null in row 17; every key column needs a value: drop or fill such rows first
    """

    def __init__(self, column: str, row: int) -> None:
        super().__init__(column, row)
        self.column = column
        self.row = row

    def __str__(self) -> str:
        return (
            f"key column {self.column!r} is null in row {self.row}; "
            "every key column needs a value: drop or fill such rows first"
        )


class KeyOutOfRangeError(InvalidInputError):
    """A key belongs to a key group that another subtask owns.

    Attributes
    ----------
    key_group : int
        The key group of the first such key.
    start, end : int
        The key groups of this backend, both inclusive.

    Examples
    --------
    >>> print(KeyOutOfRangeError(77, 0, 42))
    key group 77 is outside 0 to 42, which this backend owns; send each row to the subtask of its key group
    """

    def __init__(self, key_group: int, start: int, end: int) -> None:
        super().__init__(key_group, start, end)
        self.key_group = key_group
        self.start = start
        self.end = end

    def __str__(self) -> str:
        return (
            f"key group {self.key_group} is outside {self.start} to {self.end}, which this backend owns; "
            "send each row to the subtask of its key group"
        )


class ValueTypeError(InvalidInputError, TypeError):
    """Values have another type than the state they are given to.

    Attributes
    ----------
    state : str
        Name of the state.
    expected, given : str
        Arrow types.

    Examples
    --------
    >>> print(ValueTypeError("clicks", "int64", "string"))
    values of state 'clicks' must be int64, got string; cast them first
    """

    def __init__(self, state: str, expected: str, given: str) -> None:
        super().__init__(state, expected, given)
        self.state = state
        self.expected = expected
        self.given = given

    def __str__(self) -> str:
        return f"values of state {self.state!r} must be {self.expected}, got {self.given}; cast them first"


class ValueOverflowError(InvalidInputError, OverflowError):
    """The result of a reducer does not fit the type of its state.

    Attributes
    ----------
    state : str
        Name of the state.
    reduce : str
        The reducer, such as `sum`.
    value_type : str
        The Arrow type that is too narrow.

    Examples
    --------
    >>> print(ValueOverflowError("clicks", "sum", "int32"))
    sum of state 'clicks' does not fit int32; declare the state with a wider type
    """

    def __init__(self, state: str, reduce: str, value_type: str) -> None:
        super().__init__(state, reduce, value_type)
        self.state = state
        self.reduce = reduce
        self.value_type = value_type

    def __str__(self) -> str:
        return (
            f"{self.reduce} of state {self.state!r} does not fit {self.value_type}; declare the state with a wider type"
        )


class ProcessElementError(ArrowStateError, RuntimeError):
    """A process function failed on a row of a batch; the states are as before the batch.

    An exception of the function itself is the `__cause__`.

    Attributes
    ----------
    row : int
        Row of the batch, counted from 0.
    detail : str
        What went wrong.

    Examples
    --------
    >>> print(ProcessElementError(17, "ZeroDivisionError: division by zero"))
    row 17: ZeroDivisionError: division by zero; the states are as before the batch
    """

    def __init__(self, row: int, detail: str) -> None:
        super().__init__(row, detail)
        self.row = row
        self.detail = detail

    def __str__(self) -> str:
        return f"row {self.row}: {self.detail}; the states are as before the batch"


class UserFunctionError(ArrowStateError, RuntimeError):
    """A function of the user's failed in a task of Spark; the states are as before the micro-batch.

    Spark passes the text of an error on and nothing else, so the text has all that was known of it.

    Attributes
    ----------
    uid : str
        The operator.
    reason : str
        The type and the text of the exception.
    place : str
        What was being processed: the row with its key and values, where it is known.
    trace : str
        The traceback, as far as it is in the user's code.

    Examples
    --------
    >>> print(UserFunctionError("totals", "ZeroDivisionError: division by zero", "row 7 with key 'ann'", "job.py, 12"))
    operator 'totals' failed at row 7 with key 'ann': ZeroDivisionError: division by zero; the states are as before \
the micro-batch
    job.py, 12
    """

    def __init__(self, uid: str, reason: str, place: str, trace: str) -> None:
        super().__init__(uid, reason, place, trace)
        self.uid = uid
        self.reason = reason
        self.place = place
        self.trace = trace

    def __str__(self) -> str:
        return (
            f"operator {self.uid!r} failed at {self.place}: {self.reason}; the states are as before the micro-batch\n"
            f"{self.trace}"
        ).rstrip()


class UnsupportedStorageError(InvalidInputError):
    """A URL names a storage that a store cannot be kept on.

    Attributes
    ----------
    url : str
        The URL given.
    protocol : str
        The part of it that is not supported.
    supported : tuple of str
        What may be given instead.
    reason : str
        Why not, empty where there is nothing to say.

    Examples
    --------
    >>> print(UnsupportedStorageError("sftp://host/x", "sftp", ["a local path", "memory://"], "it is slow"))
    storage 'sftp' (sftp://host/x) is not supported: it is slow; supported: a local path, memory://
    """

    def __init__(self, url: str, protocol: str, supported: Iterable[str], reason: str = "") -> None:
        self.url = url
        self.protocol = protocol
        self.supported = tuple(supported)
        self.reason = reason
        super().__init__(url, protocol, self.supported, reason)

    def __str__(self) -> str:
        because = f": {self.reason}" if self.reason else ""
        supported = ", ".join(self.supported)
        return f"storage {self.protocol!r} ({self.url}) is not supported{because}; supported: {supported}"


class IncompatibleStateError(ArrowStateError, TypeError):
    """A state is declared in another way than it is stored, or than it was declared before.

    Attributes
    ----------
    state : str
        Name of the state, with the path of the field where one field is the cause.
    stored, declared : str
        What there is and what was asked for: kind, type, reducer.
    remedy : str
        What would work.

    Examples
    --------
    >>> print(IncompatibleStateError("clicks", "sum of int64", "sum of int32", "declare int64, or use another name"))
    state 'clicks' is sum of int64 but is declared as sum of int32; declare int64, or use another name
    """

    def __init__(self, state: str, stored: str, declared: str, remedy: str = "declare it as it is") -> None:
        super().__init__(state, stored, declared, remedy)
        self.state = state
        self.stored = stored
        self.declared = declared
        self.remedy = remedy

    def __str__(self) -> str:
        return f"state {self.state!r} is {self.stored} but is declared as {self.declared}; {self.remedy}"


class ConcurrentUseError(ArrowStateError, RuntimeError):
    """Two threads used one backend at once; what this thread asked for was not done.

    Attributes
    ----------
    what : str
        What was used, and by whom.

    Examples
    --------
    >>> print(ConcurrentUseError("a verb of another thread is running"))
    a backend is used by one thread at a time, and a verb of another thread is running; give each thread a backend of \
its own key groups, or hand the backend over between two batches
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return (
            f"a backend is used by one thread at a time, and {self.what}; give each thread a backend of its own key "
            "groups, or hand the backend over between two batches"
        )
