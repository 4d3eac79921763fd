"""Savepoints and checkpoints of Flink, read with Arrow alone: no JVM, no class of the job."""

from arrowstate.foreign.flink.importing import FlinkImport, ImportedFlinkState, import_flink_savepoint
from arrowstate.foreign.flink.savepoint import FlinkOperator, FlinkSavepoint, open_flink_savepoint
from arrowstate.foreign.flink.states import FlinkState

__all__ = [
    "FlinkImport",
    "FlinkOperator",
    "FlinkSavepoint",
    "FlinkState",
    "ImportedFlinkState",
    "import_flink_savepoint",
    "open_flink_savepoint",
]
