"""Savepoints and checkpoints of Flink, read with Arrow alone: no JVM, no class of the job.

`open_flink_savepoint` opens one; its states are tables of Arrow. What only the classes of a job could read stays bytes,
with the class named.
"""

from arrowstate.foreign.flink.hints import Hint
from arrowstate.foreign.flink.importing import FlinkImport, ImportedFlinkState, import_flink_savepoint
from arrowstate.foreign.flink.python_values import Pickled
from arrowstate.foreign.flink.savepoint import FlinkOperator, FlinkSavepoint, open_flink_savepoint
from arrowstate.foreign.flink.states import FlinkState

__all__ = [
    "FlinkImport",
    "FlinkOperator",
    "FlinkSavepoint",
    "FlinkState",
    "Hint",
    "ImportedFlinkState",
    "Pickled",
    "import_flink_savepoint",
    "open_flink_savepoint",
]
