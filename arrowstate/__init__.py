"""Stream-processing state with Flink's guarantees, for Python and Spark, kept as open columnar files."""

from arrowstate.backend.keyed import KeyedStateBackend
from arrowstate.errors import (
    ArrowStateError,
    CheckpointNotFoundError,
    CommitUnknownError,
    CorruptDataError,
    FencedError,
    FormatVersionError,
    IncompatibleStateError,
    InvalidInputError,
    KeyOutOfRangeError,
    KeyTypeError,
    MissingDependencyError,
    NotFoundError,
    NullKeyError,
    OperatorNotFoundError,
    QueryConflictError,
    StateNotFoundError,
    StorageError,
    StorageFullError,
    StoreNotFoundError,
    UnsupportedStorageError,
    ValueOverflowError,
    ValueTypeError,
)
from arrowstate.schema.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from arrowstate.store import Snapshot, StateStore, open_store
from arrowstate_formats.documents import FORMAT_VERSION
from arrowstate_formats.key_groups import KeyGroupRange, default_max_parallelism, key_group_range, key_groups
from arrowstate_formats.key_hash import key_hash

__version__ = "0.1.0.dev0"

__all__ = [
    "FORMAT_VERSION",
    "ArrowStateError",
    "CheckpointNotFoundError",
    "CommitUnknownError",
    "CorruptDataError",
    "FencedError",
    "FormatVersionError",
    "IncompatibleStateError",
    "InvalidInputError",
    "KeyGroupRange",
    "KeyOutOfRangeError",
    "KeyTypeError",
    "KeyedStateBackend",
    "MissingDependencyError",
    "NotFoundError",
    "NullKeyError",
    "OperatorNotFoundError",
    "QueryConflictError",
    "ReducingStateDescriptor",
    "Snapshot",
    "StateNotFoundError",
    "StateStore",
    "StorageError",
    "StorageFullError",
    "StoreNotFoundError",
    "UnsupportedStorageError",
    "ValueOverflowError",
    "ValueStateDescriptor",
    "ValueTypeError",
    "__version__",
    "default_max_parallelism",
    "key_group_range",
    "key_groups",
    "key_hash",
    "open_store",
]
