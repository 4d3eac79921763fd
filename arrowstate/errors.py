"""The one tree of errors, grouped by what a caller does next.

Every error is an `ArrowStateError` and also the builtin that fits, so `except LookupError` works as
well as `except StateNotFoundError`. What it is made of are its attributes, and its message is built from
them; it survives pickling, because Spark sends errors from its workers to the driver.

========================================  ====================================================
What to do                                Errors
========================================  ====================================================
choose another name, id or place          `NotFoundError` and its kinds
mend the argument or the data given       `InvalidInputError` and its kinds
mend the function, start the query again  `UserFunctionError`, `JobFailedError`
use a backend from one thread at a time   `ConcurrentUseError`
migrate the state, or declare it as it is `IncompatibleStateError`
stop this writer                          `FencedError`, `QueryConflictError`
wait for the next checkpoint              `CheckpointAbortedError`, `CheckpointCancelledError`
mend the cause, take checkpoints anew     `CheckpointsStoppedError`
open the store again, then look           `CommitUnknownError`
make room or mend the storage, try again  `StorageFullError`, `StorageError`
try again, files are written anew         `CollectedError`
try again when less is committed          `CompactionConflictError`, `EditConflictError`
use another checkpoint or a copy          `CorruptDataError`
install something                         `FormatVersionError` and its kind, `MissingDependencyError`
========================================  ====================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from arrowstate_formats.errors import (
    ArrowStateError,
    CorruptDataError,
    FormatVersionError,
    InvalidInputError,
    MissingDependencyError,
    UnknownFeatureError,
)

__all__ = [
    "ArrowStateError",
    "CheckpointAbortedError",
    "CheckpointCancelledError",
    "CheckpointNotFoundError",
    "CheckpointsCollectedError",
    "CheckpointsStoppedError",
    "CollectedError",
    "CommitUnknownError",
    "CompactionConflictError",
    "ConcurrentUseError",
    "CorruptDataError",
    "EditConflictError",
    "FencedError",
    "FileTooLargeError",
    "FormatVersionError",
    "IncompatibleStateError",
    "InvalidInputError",
    "JobFailedError",
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
    "SourceError",
    "StateNotFoundError",
    "StorageError",
    "StorageFullError",
    "StoreNotFoundError",
    "UnavailableError",
    "UnknownFeatureError",
    "UnsupportedStorageError",
    "UserFunctionError",
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


class NotFoundError(ArrowStateError, LookupError):
    """Something was asked for by a name or id that does not exist.

    Examples
    --------
    >>> issubclass(StateNotFoundError, NotFoundError), issubclass(NotFoundError, LookupError)
    (True, True)
    """


@dataclass(eq=False, repr=False)
class StoreNotFoundError(NotFoundError):
    """There is no store at a path or URL.

    Examples
    --------
    >>> print(StoreNotFoundError("/data/clicks"))
    no store at /data/clicks; check the path, or make a new store with create=True
    """

    url: str
    what: str = "store"
    "What was looked for, if it is no store of ours."
    remedy: str = "check the path, or make a new store with create=True"
    _message = "no {what} at {url}; {remedy}"


class CheckpointNotFoundError(NotFoundError):
    """A store has no checkpoint with an id, or none at all.

    Examples
    --------
    >>> print(CheckpointNotFoundError(7, [41, 42]))
    no checkpoint 7 in this store; it has 41, 42
    >>> print(CheckpointNotFoundError(None, []))
    no checkpoint in this store yet
    """

    checkpoint_id: int | None
    "The id asked for, None for the latest."
    available: tuple[int, ...]
    "The ids there are, oldest first."

    def __init__(self, checkpoint_id: int | None, available: Iterable[int]) -> None:
        self.checkpoint_id, self.available = self.args = checkpoint_id, tuple(available)

    def __str__(self) -> str:
        if self.checkpoint_id is None:
            return "no checkpoint in this store yet"
        return f"no checkpoint {self.checkpoint_id} in this store; {_names(self.available, 'it has none yet')}"


class CheckpointsCollectedError(NotFoundError):
    """The changes since a checkpoint cannot be read any more: it, or a checkpoint after it, was collected.

    Examples
    --------
    >>> print(CheckpointsCollectedError(7, [41, 42]))
    the changes after checkpoint 7 need it and every checkpoint since, and some were collected; it has 41, 42: start \
anew from one of these (a stream with another Spark checkpoint folder), and keep checkpoints for longer than it takes \
to read their changes, by a retention policy, a tag or a lease
    """

    after: int
    "The checkpoint from which the changes were asked for."
    available: tuple[int, ...]
    "The ids there are, oldest first."

    def __init__(self, after: int, available: Iterable[int]) -> None:
        self.after, self.available = self.args = after, tuple(available)

    def __str__(self) -> str:
        return (
            f"the changes after checkpoint {self.after} need it and every checkpoint since, and some were collected; "
            f"{_names(self.available, 'the store has none')}: start anew from one of these (a stream with another "
            "Spark checkpoint folder), and keep checkpoints for longer than it takes to read their changes, by a "
            "retention policy, a tag or a lease"
        )


class OperatorNotFoundError(NotFoundError):
    """A checkpoint has no operator with a uid.

    Examples
    --------
    >>> print(OperatorNotFoundError("conter", ["counter", "routes"], 41))
    no operator with uid 'conter' in checkpoint 41; it has 'counter', 'routes'
    """

    uid: str
    available: tuple[str, ...]
    checkpoint_id: int | None
    "The checkpoint that was read, None where it has no id (a savepoint)."

    def __init__(self, uid: str, available: Iterable[str], checkpoint_id: int | None = None) -> None:
        self.uid, self.available, self.checkpoint_id = self.args = uid, tuple(available), checkpoint_id

    def __str__(self) -> str:
        where = "" if self.checkpoint_id is None else f" in checkpoint {self.checkpoint_id}"
        return f"no operator with uid {self.uid!r}{where}; {_names(self.available, 'it has no operators')}"


class StateNotFoundError(NotFoundError):
    """An operator has no state with a name.

    Examples
    --------
    >>> print(StateNotFoundError("cuonts", ["clicks", "counts"], "counter", 41))
    no state named 'cuonts' of operator 'counter' in checkpoint 41; it has 'clicks', 'counts'
    """

    name: str
    available: tuple[str, ...]
    operator: str | None
    "The operator's uid, None for a backend that has none yet."
    checkpoint_id: int | None
    "The checkpoint that was read, None where there is none (a live backend, a savepoint)."

    def __init__(
        self, name: str, available: Iterable[str], operator: str | None = None, checkpoint_id: int | None = None
    ) -> None:
        self.args = name, tuple(available), operator, checkpoint_id
        self.name, self.available, self.operator, self.checkpoint_id = self.args

    def __str__(self) -> str:
        where = "" if self.operator is None else f" of operator {self.operator!r}"
        where += "" if self.checkpoint_id is None else f" in checkpoint {self.checkpoint_id}"
        return f"no state named {self.name!r}{where}; {_names(self.available, 'it has no states')}"


@dataclass(eq=False, repr=False)
class MissingFileError(NotFoundError, FileNotFoundError):
    """A storage has no file at a path.

    Examples
    --------
    >>> print(MissingFileError("/data/clicks", "log/00000000000000000007.json"))
    no file log/00000000000000000007.json in /data/clicks
    """

    url: str
    path: str
    _message = "no file {path} in {url}"


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
    """A source cannot read the rows of a split: they do not fit, or they are not the same as before.

    An exception of a library is the `__cause__`. No row from `position` on was read.

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
class UnavailableError(ArrowStateError, ConnectionError):
    """A system outside, such as a broker or a registry, could not be reached or gave no answer in time.

    A job starts again by its restart strategy. Secrets of the connection are not in the text.

    Examples
    --------
    >>> print(UnavailableError("Kafka at broker:9092", "reading the partitions of topic 'payments'", "timed out"))
    Kafka at broker:9092 is not available, while reading the partitions of topic 'payments': timed out; check that \
it runs and can be reached from here
    """

    service: str
    "The system and its address."
    doing: str
    "What was asked of it."
    reason: str
    _message = "{service} is not available, while {doing}: {reason}; check that it runs and can be reached from here"


@dataclass(eq=False, repr=False)
class UserFunctionError(ArrowStateError, RuntimeError):
    """A function of the user failed in a task of Spark or a step of a job; the states are as before it.

    Spark passes on only the text of an error, so the text has everything that is known.

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
    """A job of the runtime failed for good. Its last checkpoint is in the store, and a new start goes on from it.

    Its cause is the last failure.

    Examples
    --------
    >>> print(JobFailedError("operator 'totals' failed at row 7: ZeroDivisionError: division by zero"))
    the job failed: operator 'totals' failed at row 7: ZeroDivisionError: division by zero; mend that and start it \
again, it goes on with its newest checkpoint
    """

    reason: str
    advice: str = "mend that and start it again, it goes on with its newest checkpoint"
    "What to do about it."
    _message = "the job failed: {reason}; {advice}"


@dataclass(eq=False, repr=False)
class ConcurrentUseError(ArrowStateError, RuntimeError):
    """Two threads used one backend at once; the call of this thread was not carried out.

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


def _in(url: str) -> str:
    """The part of a message that names the storage."""
    return f" (in {url})" if url else ""


@dataclass(eq=False, repr=False)
class StorageFullError(ArrowStateError, OSError):
    """A file could not be written because of the space on the disk, a quota or the largest file size.

    Nothing of the file is left, and the store is as it was.

    Examples
    --------
    >>> print(StorageFullError("data/counter/clicks/1.arrow", "No space left on device", "/data/clicks"))
    no room to write data/counter/clicks/1.arrow: No space left on device (in /data/clicks); nothing was kept, make \
room and try again
    """

    path: str
    detail: str
    url: str = ""

    def __str__(self) -> str:
        return f"no room to write {self.path}: {self.detail}{_in(self.url)}; nothing was kept, make room and try again"


class FileTooLargeError(StorageFullError):
    """A state is larger than a file may be in a storage in memory.

    Examples
    --------
    >>> print(FileTooLargeError("data/counter/clicks/1.arrow", 6_000_000, 5_242_880))
    no room to write data/counter/clicks/1.arrow: it has 6000000 bytes and a file in memory may have 5242880; nothing \
was kept: use a folder or a bucket, or open the store with storage_options={'max_file_bytes': ...}, None for no limit
    """

    file_bytes: int
    max_file_bytes: int

    def __init__(self, path: str, file_bytes: int, max_file_bytes: int, url: str = "") -> None:
        super().__init__(path, f"it has {file_bytes} bytes and a file in memory may have {max_file_bytes}", url)
        self.file_bytes, self.max_file_bytes = file_bytes, max_file_bytes
        self.args = path, file_bytes, max_file_bytes, url

    def __str__(self) -> str:
        return (
            f"no room to write {self.path}: {self.detail}{_in(self.url)}; nothing was kept: use a folder or a bucket, "
            "or open the store with storage_options={'max_file_bytes': ...}, None for no limit"
        )


@dataclass(eq=False, repr=False)
class StorageError(ArrowStateError, OSError):
    """The storage refused or failed a request for another reason: permissions, a device, a path that is a folder.

    Examples
    --------
    >>> print(StorageError("data/counter/clicks/1.arrow", "Permission denied", "s3://bucket/clicks"))
    data/counter/clicks/1.arrow: Permission denied (in s3://bucket/clicks)
    """

    path: str
    detail: str
    url: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}{_in(self.url)}" if self.path else f"{self.url}: {self.detail}"


class NameTakenError(StorageError, FileExistsError):
    """A new file was to be written under a name that exists; the existing file is unchanged.

    Examples
    --------
    >>> print(NameTakenError("data/counter/clicks/1.arrow", "/data/clicks"))
    data/counter/clicks/1.arrow: there is a file under this name already (in /data/clicks)
    """

    def __init__(self, path: str, url: str = "") -> None:
        super().__init__(path, "there is a file under this name already", url)
        self.args = path, url


class CollectedError(StorageError):
    """Files of a checkpoint were collected, or are being; nothing in the store is damaged.

    A writer gets it for files that its new checkpoint would refer to: nothing was committed. It happens if the state
    was restored from a checkpoint that was dropped meanwhile, or if the writer committed its files later than the grace
    period of the collection.

    A reader gets it for a checkpoint that cannot be read any more. Either the checkpoint was dropped while it was read,
    and neither a tag nor a lease held it. Or its commit was never acknowledged: a collection with too short a grace
    period, or a clock that jumped, deleted its files as garbage before the commit.

    Examples
    --------
    >>> print(CollectedError(["data/counter/clicks/1.arrow", "data/counter/clicks/2.arrow"]))
    data/counter/clicks/1.arrow: taken by a collection, as 1 other files were; nothing was committed, try again
    >>> print(CollectedError(["data/counter/clicks/1.arrow"], 41))
    data/counter/clicks/1.arrow is missing: checkpoint 41 was collected; read a newer one, and hold what is read for \
longer by store.lease() or a tag
    >>> print(CollectedError(["data/counter/clicks/1.arrow"], 41, acknowledged=False))
    data/counter/clicks/1.arrow is missing: a collection took it before checkpoint 41 was committed, which was never \
acknowledged; store.latest_whole() returns the newest checkpoint that is whole, restore that one and go on from it
    """

    paths: tuple[str, ...]
    checkpoint_id: int | None
    "The checkpoint that was read, None for one that was to be committed."
    acknowledged: bool
    "Whether the commit of the checkpoint that was read may have been reported as a success."

    def __init__(self, paths: Iterable[str], checkpoint_id: int | None = None, *, acknowledged: bool = True) -> None:
        self.paths, self.checkpoint_id, self.acknowledged = tuple(paths), checkpoint_id, acknowledged
        others = f", as {len(self.paths) - 1} other files were" if len(self.paths) > 1 else ""
        super().__init__(self.paths[0], f"taken by a collection{others}; nothing was committed, try again")
        self.args = self.paths, checkpoint_id

    def __str__(self) -> str:
        if self.checkpoint_id is None:
            return super().__str__()
        if self.acknowledged:
            return (
                f"{self.path} is missing: checkpoint {self.checkpoint_id} was collected; read a newer one, and hold "
                "what is read for longer by store.lease() or a tag"
            )
        return (
            f"{self.path} is missing: a collection took it before checkpoint {self.checkpoint_id} was committed, "
            "which was never acknowledged; store.latest_whole() returns the newest checkpoint that is whole, restore "
            "that one and go on from it"
        )


@dataclass(eq=False, repr=False)
class FencedError(ArrowStateError, RuntimeError):
    """Another writer took over the store; rows that this one wrote since its last commit are not part of it.

    Examples
    --------
    >>> print(FencedError(3, 4))
    this writer (epoch 3) was fenced by a newer one (epoch 4); stop it, only the newest writer of a store may commit
    >>> print(FencedError(3, None, "/data/clicks"))
    the store of this writer (epoch 3) is not at /data/clicks any more: it was deleted, or another one was made there; \
stop the writer, and open the store anew
    """

    writer_epoch: int | None
    "The epoch of this writer, None where it was not let in at all."
    current_epoch: int | None
    "The epoch of the writer that may commit."
    gone_from: str | None = None
    "Where the store was, if it was deleted, or another one was made at its place."
    _message = (
        "this writer (epoch {writer_epoch}) was fenced by a newer one (epoch {current_epoch}); stop it, only the "
        "newest writer of a store may commit"
    )

    def __str__(self) -> str:
        if self.gone_from is None:
            return super().__str__()
        return (
            f"the store of this writer (epoch {self.writer_epoch}) is not at {self.gone_from} any more: it was "
            "deleted, or another one was made there; stop the writer, and open the store anew"
        )


class QueryConflictError(FencedError):
    """A streaming query writes to an operator that does not expect its batch.

    Either another query owns the operator, or batches between the committed one and this one are
    missing. Both would count rows twice or lose them. `query_id` and its `batch_id` were refused.

    Examples
    --------
    >>> print(QueryConflictError("counter", "b2", 0, "a1", 6))
    operator 'counter' belongs to query a1; query b2 may not write to it: use another uid or store, or start with the \
checkpoint folder of query a1
    >>> print(QueryConflictError("counter", "a1", 9, "a1", 6))
    operator 'counter' has committed batch 6 and expects batch 7, got batch 9; batches between them are missing: \
restore the checkpoint folder of the query that belongs to this store
    """

    uid: str
    query_id: str
    batch_id: int
    committed_query_id: str
    committed_batch_id: int

    def __init__(
        self, uid: str, query_id: str, batch_id: int, committed_query_id: str, committed_batch_id: int
    ) -> None:
        super().__init__(None, None)
        self.args = uid, query_id, batch_id, committed_query_id, committed_batch_id
        self.uid, self.query_id, self.batch_id, self.committed_query_id, self.committed_batch_id = self.args

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


@dataclass(eq=False, repr=False)
class EditConflictError(ArrowStateError, RuntimeError):
    """Somebody else committed to the store while a checkpoint was edited; nothing of the edit was committed.

    Examples
    --------
    >>> print(EditConflictError(41, 42))
    checkpoint 42 was committed while checkpoint 41 was edited; nothing of the edit was committed: stop who writes to \
the store, and edit checkpoint 42
    """

    edited: int
    "The checkpoint that was edited."
    newest: int
    "The newest one now."
    is_fenced: bool = False
    "Whether another writer opened the store and has committed nothing yet."
    not_again: str | None = None
    "Why the edit cannot be planned again, where it was to be."

    def __str__(self) -> str:
        # A compaction repeats a checkpoint under its id.
        became = "compacted" if self.newest == self.edited else "committed"
        what = "another writer opened the store" if self.is_fenced else f"checkpoint {self.newest} was {became}"
        again = "" if self.not_again is None else f"; it cannot be planned again, for {self.not_again}"
        return (
            f"{what} while checkpoint {self.edited} was edited; nothing of the edit was committed{again}: stop who "
            f"writes to the store, and edit checkpoint {self.newest}"
        )


@dataclass(eq=False, repr=False)
class CheckpointAbortedError(ArrowStateError, RuntimeError):
    """A checkpoint or savepoint ended without a commit; the store is as it was and the job may go on.

    Examples
    --------
    >>> print(CheckpointAbortedError(41, "expired", "not done after 600000 ms"))
    checkpoint 41 expired: not done after 600000 ms; nothing of it was kept, the next one takes its place
    """

    checkpoint_id: int
    status: str
    "How it ended: `declined`, `expired`, `subsumed`, `cancelled` or `failed`."
    reason: str
    _message = "checkpoint {checkpoint_id} {status}: {reason}; nothing of it was kept, the next one takes its place"


@dataclass(eq=False, repr=False)
class CheckpointCancelledError(ArrowStateError, RuntimeError):
    """A checkpoint was cancelled while its files were written; they are deleted, and nothing was committed.

    Examples
    --------
    >>> print(CheckpointCancelledError(42))
    checkpoint 42 was cancelled and its files are deleted; its changes are part of the next one
    >>> print(CheckpointCancelledError())
    the checkpoint was cancelled and its files are deleted; its changes are part of the next one
    """

    checkpoint_id: int | None = None
    "The checkpoint, None where it has no id yet."

    def __str__(self) -> str:
        which = "the checkpoint" if self.checkpoint_id is None else f"checkpoint {self.checkpoint_id}"
        return f"{which} was cancelled and its files are deleted; its changes are part of the next one"


@dataclass(eq=False, repr=False)
class CheckpointsStoppedError(ArrowStateError, RuntimeError):
    """A coordinator takes no more checkpoints, because too many have failed or it was closed.

    Examples
    --------
    >>> print(CheckpointsStoppedError("1 checkpoints in a row failed, the last one: no room"))
    no more checkpoints are taken: 1 checkpoints in a row failed, the last one: no room; mend that, then make a new \
coordinator
    """

    reason: str
    _message = "no more checkpoints are taken: {reason}; mend that, then make a new coordinator"


@dataclass(eq=False, repr=False)
class CommitUnknownError(ArrowStateError, OSError):
    """A commit was sent and its outcome cannot be told: it may or may not be in the store.

    Examples
    --------
    >>> print(CommitUnknownError("log/7.json", "9b2e", "connection lost"))
    cannot tell whether log/7.json was committed (commit id 9b2e): connection lost; open the store again and look
    """

    path: str
    "The file whose creation is the commit."
    commit_id: str
    "The id inside the file that tells whose commit it is."
    detail: str
    url: str = ""

    def __str__(self) -> str:
        where = f" in {self.url}" if self.url else ""
        return (
            f"cannot tell whether {self.path} was committed{where} (commit id {self.commit_id}): {self.detail}; "
            "open the store again and look"
        )


@dataclass(eq=False, repr=False)
class CompactionConflictError(ArrowStateError, RuntimeError):
    """A compaction of a store lost the race for the next log number each time it tried; the store is as it was.

    Examples
    --------
    >>> print(CompactionConflictError("/data/clicks", 5))
    the compaction of /data/clicks gave up: other commits took the next log number 5 times; nothing was changed; a job \
that runs compacts its own state with each checkpoint, so compact when it is done or commits less often
    """

    url: str
    attempts: int
    _message = (
        "the compaction of {url} gave up: other commits took the next log number {attempts} times; nothing was "
        "changed; a job that runs compacts its own state with each checkpoint, so compact when it is done or commits "
        "less often"
    )
