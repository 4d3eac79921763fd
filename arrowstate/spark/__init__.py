"""Spark: a streaming sink that keeps state, and a reader for what it kept.

`keyed_sink` folds a stream into states of a store, exactly once per micro-batch; `register` makes
`spark.read.format("arrowstate")` known to a session. PySpark is imported at the first use of either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowstate.errors import MissingDependencyError

if TYPE_CHECKING:
    from arrowstate.spark.session import keyed_sink, register

__all__ = ["keyed_sink", "register"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from arrowstate.spark import session
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("pyspark", "py4j"):
            raise MissingDependencyError("arrowstate.spark", "pyspark", "spark") from error
        raise
    return getattr(session, name)
