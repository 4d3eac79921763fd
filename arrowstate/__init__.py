"""Stream-processing state with Flink's guarantees, for Python and Spark, kept as open columnar files."""

from arrowstate.backend.keyed import KeyedStateBackend
from arrowstate.backend.operator import OperatorStateBackend
from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.checkpoints.driver import CheckpointCoordinator
from arrowstate.checkpoints.pending import CheckpointProgress, PendingCheckpoint
from arrowstate.errors import (
    ArrowStateError,
    CheckpointAbortedError,
    CheckpointCancelledError,
    CheckpointNotFoundError,
    CheckpointsCollectedError,
    CheckpointsStoppedError,
    CollectedError,
    CommitUnknownError,
    CompactionConflictError,
    CorruptDataError,
    FencedError,
    FileTooLargeError,
    FormatVersionError,
    IncompatibleStateError,
    InvalidInputError,
    KeyOutOfRangeError,
    KeyTypeError,
    MissingDependencyError,
    NotFoundError,
    NullKeyError,
    OperatorNotFoundError,
    ProcessElementError,
    QueryConflictError,
    StateNotFoundError,
    StorageError,
    StorageFullError,
    StoreNotFoundError,
    UnsupportedStorageError,
    ValueOverflowError,
    ValueTypeError,
)
from arrowstate.maintenance.importing import ClaimMode
from arrowstate.maintenance.retention import RetentionPolicy
from arrowstate.processing.batch_function import BatchContext, BatchFunction, BatchProcess
from arrowstate.processing.keyed_process import KeyedProcess
from arrowstate.processing.process_function import KeyedProcessFunction
from arrowstate.schema.aggregates import Aggregate, CountDistinct, Mean, Quantiles, TopK, Variance
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
)
from arrowstate.schema.evolution import SchemaEvolution
from arrowstate.schema.operator_state import BroadcastStateDescriptor, OperatorListStateDescriptor
from arrowstate.snapshot.disposal import dispose_savepoint
from arrowstate.state.kinds.timer_service import TimerService
from arrowstate.state.kinds.timers import Timer
from arrowstate.store import Snapshot, StateStore, open_store
from arrowstate_formats.documents import FORMAT_VERSION
from arrowstate_formats.key_groups import KeyGroupRange, default_max_parallelism, key_group_range, key_groups
from arrowstate_formats.key_hash import key_hash

__version__ = "0.1.0.dev0"
"""The version of the package; that of the format on disk is `FORMAT_VERSION`."""

__all__ = [
    "FORMAT_VERSION",
    "Aggregate",
    "AggregatingStateDescriptor",
    "ArrowStateError",
    "BatchContext",
    "BatchFunction",
    "BatchProcess",
    "BroadcastStateDescriptor",
    "CheckpointAbortedError",
    "CheckpointCancelledError",
    "CheckpointCoordinator",
    "CheckpointNotFoundError",
    "CheckpointOptions",
    "CheckpointProgress",
    "CheckpointsCollectedError",
    "CheckpointsStoppedError",
    "ClaimMode",
    "CollectedError",
    "CommitUnknownError",
    "CompactionConflictError",
    "CompactionPolicy",
    "CorruptDataError",
    "CountDistinct",
    "FencedError",
    "FileTooLargeError",
    "FormatVersionError",
    "IncompatibleStateError",
    "InvalidInputError",
    "KeyGroupRange",
    "KeyOutOfRangeError",
    "KeyTypeError",
    "KeyedProcess",
    "KeyedProcessFunction",
    "KeyedStateBackend",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "Mean",
    "MissingDependencyError",
    "NotFoundError",
    "NullKeyError",
    "OperatorListStateDescriptor",
    "OperatorNotFoundError",
    "OperatorStateBackend",
    "PendingCheckpoint",
    "ProcessElementError",
    "Quantiles",
    "QueryConflictError",
    "ReducingStateDescriptor",
    "RetentionPolicy",
    "SchemaEvolution",
    "Snapshot",
    "StateNotFoundError",
    "StateStore",
    "StorageError",
    "StorageFullError",
    "StoreNotFoundError",
    "TimeToLive",
    "Timer",
    "TimerService",
    "TopK",
    "UnsupportedStorageError",
    "ValueOverflowError",
    "ValueStateDescriptor",
    "ValueTypeError",
    "Variance",
    "__version__",
    "default_max_parallelism",
    "dispose_savepoint",
    "key_group_range",
    "key_groups",
    "key_hash",
    "open_store",
]
