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

from arrowstate.errors.checkpointing import (
    CheckpointAbortedError,
    CheckpointCancelledError,
    CheckpointsStoppedError,
    CommitUnknownError,
    CompactionConflictError,
    EditConflictError,
    FencedError,
    QueryConflictError,
)
from arrowstate.errors.given import (
    ConcurrentUseError,
    IncompatibleStateError,
    JobFailedError,
    KeyOutOfRangeError,
    KeyTypeError,
    NullKeyError,
    ProcessElementError,
    SourceError,
    UnsupportedStorageError,
    UserFunctionError,
    ValueOverflowError,
    ValueTypeError,
)
from arrowstate.errors.missing import (
    CheckpointNotFoundError,
    CheckpointsCollectedError,
    MissingFileError,
    NotFoundError,
    OperatorNotFoundError,
    StateNotFoundError,
    StoreNotFoundError,
)
from arrowstate.errors.storing import CollectedError, FileTooLargeError, NameTakenError, StorageError, StorageFullError
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
    "UnknownFeatureError",
    "UnsupportedStorageError",
    "UserFunctionError",
    "ValueOverflowError",
    "ValueTypeError",
]

for _error in (globals()[_name] for _name in __all__):
    # What tracebacks and telemetry say is the name that is imported, wherever the class is written.
    if _error.__module__.startswith(__name__):
        _error.__module__ = __name__
del _error
