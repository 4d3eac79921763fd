"""The one tree of errors, grouped by what a caller does next.

Every error is an `ArrowStateError` and also the builtin that fits, so `except LookupError` works as
well as `except StateNotFoundError`. It carries its values as attributes, builds its message from
them, and survives pickling, because Spark sends errors from its workers to the driver.

========================================  ====================================================
What to do                                Errors
========================================  ====================================================
choose another name, id or place          `NotFoundError` and its kinds
mend the argument or the data given       `InvalidInputError` and its kinds
migrate the state, or declare it as it is `IncompatibleStateError`
stop this writer                          `FencedError`, `QueryConflictError`
wait for the next checkpoint              `CheckpointAbortedError`, `CheckpointCancelledError`
mend the cause, take checkpoints anew     `CheckpointsStoppedError`
open the store again, then look           `CommitUnknownError`
make room or mend the storage, try again  `StorageFullError`, `StorageError`
try again, files are written anew         `CollectedError`
try again when less is committed          `CompactionConflictError`
use another checkpoint or a copy          `CorruptDataError`
install something                         `FormatVersionError`, `MissingDependencyError`
========================================  ====================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from arrowstate_formats.errors import (
    ArrowStateError,
    CorruptDataError,
    FormatVersionError,
    InvalidInputError,
    MissingDependencyError,
)

__all__ = [
    "ArrowStateError",
    "CheckpointAbortedError",
    "CheckpointCancelledError",
    "CheckpointNotFoundError",
    "CheckpointsStoppedError",
    "CollectedError",
    "CommitUnknownError",
    "CompactionConflictError",
    "CorruptDataError",
    "FencedError",
    "FileTooLargeError",
    "FormatVersionError",
    "IncompatibleStateError",
    "InvalidInputError",
    "KeyOutOfRangeError",
    "KeyTypeError",
    "MissingDependencyError",
    "MissingFileError",
    "NameTakenError",
    "NotFoundError",
    "NullKeyError",
    "OperatorNotFoundError",
    "ProcessElementError",
    "QueryConflictError",
    "StateNotFoundError",
    "StorageError",
    "StorageFullError",
    "StoreNotFoundError",
    "UnsupportedStorageError",
    "ValueOverflowError",
    "ValueTypeError",
]

_MOST_NAMES = 20
"""How many names a message lists; a store may have thousands of checkpoints."""


def _names(available: tuple[Any, ...], none: str) -> str:
    """The end of a message that says what there is instead."""
    if not available:
        return none
    shown = ", ".join(map(repr, available[-_MOST_NAMES:]))
    more = len(available) - _MOST_NAMES
    return f"it has {shown}" + (f" and {more} earlier ones" if more > 0 else "")


def _in_checkpoint(checkpoint_id: int | None) -> str:
    """Where a name was looked up; savepoints and live backends have no checkpoint id."""
    return "" if checkpoint_id is None else f" in checkpoint {checkpoint_id}"


# Choose another name, id or place.


class NotFoundError(ArrowStateError, LookupError):
    """Something was asked for by a name or id that does not exist."""


class StoreNotFoundError(NotFoundError):
    """There is no store at a path or URL.

    Attributes
    ----------
    url : str
        Where the store was looked for.

    Examples
    --------
    >>> print(StoreNotFoundError("/data/clicks"))
    no store at /data/clicks; check the path, or make a new store with create=True
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url

    def __str__(self) -> str:
        return f"no store at {self.url}; check the path, or make a new store with create=True"


class CheckpointNotFoundError(NotFoundError):
    """A store has no checkpoint with an id, or none at all.

    Attributes
    ----------
    checkpoint_id : int or None
        The id asked for, None for the latest.
    available : tuple of int
        The ids there are, oldest first.

    Examples
    --------
    >>> print(CheckpointNotFoundError(7, [41, 42]))
    no checkpoint 7 in this store; it has 41, 42
    >>> print(CheckpointNotFoundError(None, []))
    no checkpoint in this store yet
    """

    def __init__(self, checkpoint_id: int | None, available: Iterable[int]) -> None:
        self.checkpoint_id = checkpoint_id
        self.available = tuple(available)
        super().__init__(checkpoint_id, self.available)

    def __str__(self) -> str:
        if self.checkpoint_id is None:
            return "no checkpoint in this store yet"
        return f"no checkpoint {self.checkpoint_id} in this store; {_names(self.available, 'it has none yet')}"


class OperatorNotFoundError(NotFoundError):
    """A checkpoint has no operator with a uid.

    Attributes
    ----------
    uid : str
        The uid asked for.
    available : tuple of str
        The uids there are.
    checkpoint_id : int or None
        The checkpoint that was read, None where it has no id (a savepoint).

    Examples
    --------
    >>> print(OperatorNotFoundError("conter", ["counter", "routes"], 41))
    no operator with uid 'conter' in checkpoint 41; it has 'counter', 'routes'
    """

    def __init__(self, uid: str, available: Iterable[str], checkpoint_id: int | None = None) -> None:
        self.uid = uid
        self.available = tuple(available)
        self.checkpoint_id = checkpoint_id
        super().__init__(uid, self.available, checkpoint_id)

    def __str__(self) -> str:
        where = _in_checkpoint(self.checkpoint_id)
        return f"no operator with uid {self.uid!r}{where}; {_names(self.available, 'it has no operators')}"


class StateNotFoundError(NotFoundError):
    """An operator has no state with a name.

    Attributes
    ----------
    name : str
        The name asked for.
    available : tuple of str
        The names of the operator's states.
    operator : str or None
        The operator's uid, None for a backend that has none yet.
    checkpoint_id : int or None
        The checkpoint that was read, None where there is none (a live backend, a savepoint).

    Examples
    --------
    >>> print(StateNotFoundError("cuonts", ["clicks", "counts"], "counter", 41))
    no state named 'cuonts' of operator 'counter' in checkpoint 41; it has 'clicks', 'counts'
    """

    def __init__(
        self, name: str, available: Iterable[str], operator: str | None = None, checkpoint_id: int | None = None
    ) -> None:
        self.name = name
        self.available = tuple(available)
        self.operator = operator
        self.checkpoint_id = checkpoint_id
        super().__init__(name, self.available, operator, checkpoint_id)

    def __str__(self) -> str:
        where = "" if self.operator is None else f" of operator {self.operator!r}"
        where += _in_checkpoint(self.checkpoint_id)
        return f"no state named {self.name!r}{where}; {_names(self.available, 'it has no states')}"


class MissingFileError(NotFoundError, FileNotFoundError):
    """A storage has no file at a path.

    Attributes
    ----------
    url : str
        The storage that was read.
    path : str
        The path inside it.

    Examples
    --------
    >>> print(MissingFileError("/data/clicks", "log/00000000000000000007.json"))
    no file log/00000000000000000007.json in /data/clicks
    """

    def __init__(self, url: str, path: str) -> None:
        super().__init__(f"no file {path} in {url}")
        self.url = url
        self.path = path

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.path)


# Mend the argument or the data given. What was given is refused whole: nothing of it took effect.


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


# Migrate the state, or declare it as it is.


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


# Stop this writer.


class FencedError(ArrowStateError, RuntimeError):
    """Another writer took over the store; what this one wrote since its last commit is not part of it.

    Attributes
    ----------
    writer_epoch : int or None
        The epoch of this writer, None where it was not let in at all.
    current_epoch : int or None
        The epoch of the writer that may commit.

    Examples
    --------
    >>> print(FencedError(3, 4))
    this writer (epoch 3) was fenced by a newer one (epoch 4); stop it, only the newest writer of a store may commit
    """

    def __init__(self, writer_epoch: int | None, current_epoch: int | None) -> None:
        super().__init__(writer_epoch, current_epoch)
        self.writer_epoch = writer_epoch
        self.current_epoch = current_epoch

    def __str__(self) -> str:
        return (
            f"this writer (epoch {self.writer_epoch}) was fenced by a newer one (epoch {self.current_epoch}); "
            "stop it, only the newest writer of a store may commit"
        )


class QueryConflictError(FencedError):
    """A streaming query writes to an operator that does not expect its batch.

    Either another query owns the operator, or batches between the committed one and this one are
    missing. Both would count rows twice or lose them.

    Attributes
    ----------
    uid : str
        The operator.
    query_id, batch_id : str, int
        The query that was refused and its batch.
    committed_query_id, committed_batch_id : str, int
        The query the operator belongs to and its last committed batch.

    Examples
    --------
    >>> print(QueryConflictError("counter", "b2", 0, "a1", 6))
    operator 'counter' belongs to query a1; query b2 may not write to it: use another uid or store, or start with the \
checkpoint folder of query a1
    >>> print(QueryConflictError("counter", "a1", 9, "a1", 6))
    operator 'counter' has committed batch 6 and expects batch 7, got batch 9; batches between them are missing: \
restore the checkpoint folder of the query that belongs to this store
    """

    def __init__(
        self, uid: str, query_id: str, batch_id: int, committed_query_id: str, committed_batch_id: int
    ) -> None:
        super().__init__(None, None)
        self.args = (uid, query_id, batch_id, committed_query_id, committed_batch_id)
        self.uid = uid
        self.query_id = query_id
        self.batch_id = batch_id
        self.committed_query_id = committed_query_id
        self.committed_batch_id = committed_batch_id

    def __str__(self) -> str:
        if self.query_id != self.committed_query_id:
            return (
                f"operator {self.uid!r} belongs to query {self.committed_query_id}; query {self.query_id} may not "
                "write to it: use another uid or store, or start with the checkpoint folder of query "
                f"{self.committed_query_id}"
            )
        return (
            f"operator {self.uid!r} has committed batch {self.committed_batch_id} and expects batch "
            f"{self.committed_batch_id + 1}, got batch {self.batch_id}; batches between them are missing: restore the "
            "checkpoint folder of the query that belongs to this store"
        )


# Wait for the next checkpoint, or mend what keeps them from being made.


class CheckpointAbortedError(ArrowStateError, RuntimeError):
    """A checkpoint or savepoint ended without a commit; the store is as it was and the job may go on.

    Attributes
    ----------
    checkpoint_id : int
        Which.
    status : str
        How it ended: `declined`, `expired`, `subsumed`, `cancelled` or `failed`.
    reason : str
        Why.

    Examples
    --------
    >>> print(CheckpointAbortedError(41, "expired", "not done after 600000 ms"))
    checkpoint 41 expired: not done after 600000 ms; nothing of it was kept, the next one takes its place
    """

    def __init__(self, checkpoint_id: int, status: str, reason: str) -> None:
        super().__init__(checkpoint_id, status, reason)
        self.checkpoint_id = checkpoint_id
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"checkpoint {self.checkpoint_id} {self.status}: {self.reason}; nothing of it was kept, "
            "the next one takes its place"
        )


class CheckpointCancelledError(ArrowStateError, RuntimeError):
    """A checkpoint was cancelled while its files were written; they are deleted, and nothing was committed.

    Attributes
    ----------
    checkpoint_id : int or None
        The checkpoint, None where it has no id yet.

    Examples
    --------
    >>> print(CheckpointCancelledError(42))
    checkpoint 42 was cancelled and its files are deleted; its changes are part of the next one
    >>> print(CheckpointCancelledError())
    the checkpoint was cancelled and its files are deleted; its changes are part of the next one
    """

    def __init__(self, checkpoint_id: int | None = None) -> None:
        super().__init__(checkpoint_id)
        self.checkpoint_id = checkpoint_id

    def __str__(self) -> str:
        which = "the checkpoint" if self.checkpoint_id is None else f"checkpoint {self.checkpoint_id}"
        return f"{which} was cancelled and its files are deleted; its changes are part of the next one"


class CheckpointsStoppedError(ArrowStateError, RuntimeError):
    """A coordinator takes no more checkpoints, because too many have failed or it was closed.

    Attributes
    ----------
    reason : str
        Why.

    Examples
    --------
    >>> print(CheckpointsStoppedError("1 checkpoints in a row failed, the last one: no room"))
    no more checkpoints are taken: 1 checkpoints in a row failed, the last one: no room; mend that, then make a new \
coordinator
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"no more checkpoints are taken: {self.reason}; mend that, then make a new coordinator"


# Open the store again, then look.


class CommitUnknownError(ArrowStateError, OSError):
    """A commit was sent and its outcome cannot be told: it may or may not be in the store.

    Attributes
    ----------
    path : str
        The file whose creation is the commit.
    commit_id : str
        The id inside the file that tells whose commit it is.
    detail : str
        What failed.

    Examples
    --------
    >>> print(CommitUnknownError("log/7.json", "9b2e", "connection lost"))
    cannot tell whether log/7.json was committed (commit id 9b2e): connection lost; open the store again and look
    """

    def __init__(self, path: str, commit_id: str, detail: str) -> None:
        super().__init__(
            f"cannot tell whether {path} was committed (commit id {commit_id}): {detail}; open the store again and look"
        )
        self.path = path
        self.commit_id = commit_id
        self.detail = detail

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.commit_id, self.detail)


# Make room or mend the storage, then try again.


class StorageFullError(ArrowStateError, OSError):
    """A file could not be written for want of space: the disk, a quota or the largest file size.

    Nothing of the file is left, and the store is as it was.

    Attributes
    ----------
    path : str
        The file that was written.
    detail : str
        What the system said.

    Examples
    --------
    >>> print(StorageFullError("data/counter/clicks/1.arrow", "No space left on device"))
    no room to write data/counter/clicks/1.arrow: No space left on device; nothing was kept, make room and try again
    """

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"no room to write {path}: {detail}; nothing was kept, make room and try again")
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.detail)


class FileTooLargeError(StorageFullError):
    """A state is larger than a file may be in a storage in memory.

    Attributes
    ----------
    path : str
        The file that was written.
    file_bytes : int
        Its size.
    max_file_bytes : int
        What the storage takes.

    Examples
    --------
    >>> print(FileTooLargeError("data/counter/clicks/1.arrow", 6_000_000, 5_242_880))
    no room to write data/counter/clicks/1.arrow: it has 6000000 bytes and a file in memory may have 5242880; nothing \
was kept: use a folder or a bucket, or open the store with storage_options={'max_file_bytes': ...}, None for no limit
    """

    def __init__(self, path: str, file_bytes: int, max_file_bytes: int) -> None:
        detail = f"it has {file_bytes} bytes and a file in memory may have {max_file_bytes}"
        super().__init__(path, detail)
        self.file_bytes = file_bytes
        self.max_file_bytes = max_file_bytes

    def __str__(self) -> str:
        return (
            f"no room to write {self.path}: {self.detail}; nothing was kept: use a folder or a bucket, or open the "
            "store with storage_options={'max_file_bytes': ...}, None for no limit"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.file_bytes, self.max_file_bytes)


class StorageError(ArrowStateError, OSError):
    """The storage refused or failed a request for another reason: permissions, a device, a path that is a folder.

    Attributes
    ----------
    path : str
        What was read or written.
    detail : str
        What the system said.

    Examples
    --------
    >>> print(StorageError("data/counter/clicks/1.arrow", "Permission denied"))
    data/counter/clicks/1.arrow: Permission denied
    """

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.detail)


class NameTakenError(StorageError, FileExistsError):
    """A new file was written under a name that another file has; that one is as it was.

    Attributes
    ----------
    path : str
        The name.

    Examples
    --------
    >>> print(NameTakenError("data/counter/clicks/1.arrow"))
    data/counter/clicks/1.arrow: there is a file under this name already
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, "there is a file under this name already")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)


class CollectedError(StorageError):
    """Files that a new checkpoint would refer to were collected as garbage, or are being; nothing was committed.

    It happens to state restored from a checkpoint that was dropped meanwhile, and to a writer that took longer than the
    grace period of the collection to commit what it had written.

    Attributes
    ----------
    paths : tuple of str
        The files.

    Examples
    --------
    >>> print(CollectedError(["data/counter/clicks/1.arrow", "data/counter/clicks/2.arrow"]))
    data/counter/clicks/1.arrow: taken by a collection, as 1 other files were; nothing was committed, try again
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = tuple(paths)
        others = f", as {len(self.paths) - 1} other files were" if len(self.paths) > 1 else ""
        super().__init__(self.paths[0], f"taken by a collection{others}; nothing was committed, try again")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.paths,)


class CompactionConflictError(ArrowStateError, RuntimeError):
    """A compaction of a store lost the race for the next log number each time it tried; the store is as it was.

    Attributes
    ----------
    url : str
        The store.
    attempts : int
        How often it tried.

    Examples
    --------
    >>> print(CompactionConflictError("/data/clicks", 5))
    the compaction of /data/clicks gave up: other commits took the next log number 5 times; nothing was changed; a job \
that runs compacts its own state with each checkpoint, so compact when it is done or commits less often
    """

    def __init__(self, url: str, attempts: int) -> None:
        super().__init__(url, attempts)
        self.url = url
        self.attempts = attempts

    def __str__(self) -> str:
        return (
            f"the compaction of {self.url} gave up: other commits took the next log number {self.attempts} times; "
            "nothing was changed; a job that runs compacts its own state with each checkpoint, so compact when it is "
            "done or commits less often"
        )
