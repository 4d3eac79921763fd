"""Spark: stateful operators over streams, a sink that keeps state, readers for what was kept, and ways to bring it in.

`stateful` runs a function with keyed state over a stream, `keyed_sink` folds a stream into states; both count each
micro-batch exactly once, on Spark Connect too. `progress` tells what each micro-batch took. `register` makes
`spark.read.format("arrowstate")` known to a session, and `read_state` reads a state in the fastest way there is.
`postgres_sink` writes a stream to PostgreSQL. `bootstrap` makes the state to start from of a table, `import_state` of
the checkpoint of a Spark query. PySpark is imported at the first use of any of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from arrowstate.spark.versions import needs_pyspark

if TYPE_CHECKING:
    from arrowstate.spark.load.bootstrap import bootstrap
    from arrowstate.spark.load.importing import import_state
    from arrowstate.spark.load.report import ImportedState, ImportReport, LeftOut
    from arrowstate.spark.null_keys import group_null_keys
    from arrowstate.spark.operators.stateful import stateful
    from arrowstate.spark.operators.stream import StatefulStream, write_stream
    from arrowstate.spark.postgres import postgres_sink
    from arrowstate.spark.read.native import StateScan, plan_read, read_state
    from arrowstate.spark.read.progress import progress
    from arrowstate.spark.sink.keyed_sink import keyed_sink
    from arrowstate.spark.source import register

__all__ = [
    "ImportReport",
    "ImportedState",
    "LeftOut",
    "StateScan",
    "StatefulStream",
    "bootstrap",
    "group_null_keys",
    "import_state",
    "keyed_sink",
    "plan_read",
    "postgres_sink",
    "progress",
    "read_state",
    "register",
    "stateful",
    "write_stream",
]

_MODULES = {
    "ImportReport": "load.report",
    "ImportedState": "load.report",
    "LeftOut": "load.report",
    "StateScan": "read.native",
    "StatefulStream": "operators.stream",
    "bootstrap": "load.bootstrap",
    "group_null_keys": "null_keys",
    "import_state": "load.importing",
    "keyed_sink": "sink.keyed_sink",
    "plan_read": "read.native",
    "postgres_sink": "postgres",
    "progress": "read.progress",
    "read_state": "read.native",
    "register": "source",
    "stateful": "operators.stateful",
    "write_stream": "operators.stream",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_pyspark("arrowstate.spark"):
        module = import_module(f"arrowstate.spark.{_MODULES[name]}")  # PySpark is loaded when a name is used.
    value = globals()[name] = getattr(module, name)
    return value
