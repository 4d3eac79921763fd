"""Stream-processing state with Flink's guarantees, for Python and Spark, kept as open columnar files."""

from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.checkpoints.driver import CheckpointCoordinator
from arrowstate.checkpoints.handles import SubtaskHandle, SubtaskWriter
from arrowstate.checkpoints.importing import ClaimMode
from arrowstate.checkpoints.pending import CheckpointProgress, PendingCheckpoint
from arrowstate.discovery import FoundSnapshot, StateCatalog, attach, discover
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
    ConcurrentUseError,
    CorruptDataError,
    EditConflictError,
    FencedError,
    FileTooLargeError,
    FormatVersionError,
    IncompatibleStateError,
    InvalidInputError,
    JobFailedError,
    KeyOutOfRangeError,
    KeyTypeError,
    MissingDependencyError,
    MissingFileError,
    NameTakenError,
    NotFoundError,
    NullKeyError,
    OperatorNotFoundError,
    ProcessElementError,
    QueryConflictError,
    SourceError,
    StateNotFoundError,
    StorageError,
    StorageFullError,
    StoreNotFoundError,
    UnknownFeatureError,
    UnsupportedStorageError,
    UserFunctionError,
    ValueOverflowError,
    ValueTypeError,
)
from arrowstate.files.disposal import dispose_savepoint
from arrowstate.functions.batch_function import BatchContext, BatchFunction, BatchRunner
from arrowstate.functions.keyed_process import KeyedProcessRunner
from arrowstate.functions.process_function import Collector, KeyedProcessFunction, ProcessContext
from arrowstate.functions.side_outputs import OutputTag
from arrowstate.publish.publication import Publication, Publish, PublishedTable
from arrowstate.schema.aggregates import Aggregate, CountDistinct, Mean, Quantiles, TopK, Variance
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    TimerStateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
)
from arrowstate.schema.evolution import SchemaEvolution
from arrowstate.schema.operator_state import BroadcastStateDescriptor, OperatorListStateDescriptor
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.state.kinds.aggregating import AggregatingState
from arrowstate.state.kinds.list import ListState
from arrowstate.state.kinds.map import MapState
from arrowstate.state.kinds.reducing import ReducingState
from arrowstate.state.kinds.timer_service import TimerService
from arrowstate.state.kinds.timers import Timer
from arrowstate.state.kinds.value import ValueState
from arrowstate.state.operator_list import BroadcastState, OperatorListState
from arrowstate.store import (
    Answer,
    Collection,
    Compaction,
    Edit,
    EditPlan,
    Follower,
    Health,
    Lease,
    PurgeReport,
    Snapshot,
    StateStore,
    StoreWriter,
    open_store,
)
from arrowstate.table.merging import MergePolicy
from arrowstate.upkeep.retention import RetentionPolicy
from arrowstate_formats.documents import FORMAT_VERSION
from arrowstate_formats.key_groups import KeyGroupRange, default_max_parallelism, key_group_range, key_groups
from arrowstate_formats.key_hash import key_hash

__version__ = "0.1.0.dev0"
"""The version of the package; that of the format on disk is `FORMAT_VERSION`."""

__all__ = [
    "Answer",
    "Follower",
    "Health",
    "attach",
    "discover",
    "FoundSnapshot",
    "StateCatalog",
    "SubtaskHandle",
    "SubtaskWriter",
    "MissingFileError",
    "NameTakenError",
    "UnknownFeatureError",
    "UserFunctionError",
    "ConcurrentUseError",
    "Lease",
    "Compaction",
    "Collection",
    "Publication",
    "Publish",
    "PublishedTable",
    "Edit",
    "EditPlan",
    "PurgeReport",
    "StoreWriter",
    "MergePolicy",
    "Collector",
    "ProcessContext",
    "BroadcastState",
    "OperatorListState",
    "MapState",
    "ListState",
    "AggregatingState",
    "ReducingState",
    "ValueState",
    "FORMAT_VERSION",
    "Aggregate",
    "AggregatingStateDescriptor",
    "ArrowStateError",
    "BatchContext",
    "BatchFunction",
    "BatchRunner",
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
    "EditConflictError",
    "FencedError",
    "FileTooLargeError",
    "FormatVersionError",
    "IncompatibleStateError",
    "InvalidInputError",
    "JobFailedError",
    "KeyGroupRange",
    "KeyOutOfRangeError",
    "KeyTypeError",
    "KeyedProcessRunner",
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
    "OutputTag",
    "PendingCheckpoint",
    "ProcessElementError",
    "SourceError",
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
    "TimerStateDescriptor",
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
