"""Spark's sessions and Python workers: of which kind they are, and what they are spared between micro-batches."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any

from arrowstate.spark.pyspark_internals import context_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_connect", "own_python", "spare_collector"]

_uses = count()

_DEFAULT = "python3"
_lock = Lock()
_users: dict[Any, int] = {}
"""By context, how many threads let its workers run the Python that runs here."""


@contextmanager
def own_python(spark: SparkSession) -> Iterator[None]:
    """Let workers on this machine run the Python that runs here, where the user has not chosen one.

    Spark's own default is whatever `python3` is first on the path, which in a virtual environment that is not
    activated lacks arrowstate.
    """
    context: Any = context_of(spark)
    chosen = "PYSPARK_PYTHON" in os.environ or context is None or not context.master.startswith("local")
    if context is None or chosen:
        yield
        return
    with _lock:
        # Queries of one session run in threads, and the last of them that is in here puts it back.
        users = _users.get(context, 0)
        is_ours = users > 0 or context.pythonExec == _DEFAULT
        if is_ours:
            context.pythonExec, _users[context] = sys.executable, users + 1
    try:
        yield
    finally:
        if is_ours:
            with _lock:
                _users[context] -= 1
                if not _users[context]:
                    del _users[context]
                    context.pythonExec = _DEFAULT


def is_connect(spark: Any) -> bool:
    """Whether a session, a DataFrame or a writer is one of Spark Connect."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(spark).__mro__)


def spare_collector() -> None:
    """Note that Spark calls our code in a worker; at the second time, take what is loaded from its garbage collector.

    A worker that is used again collects all garbage after each use (`pyspark.daemon`), and to find it visits every
    object that pyarrow, numba, pandas and PySpark made when they were loaded: 40 to 80 ms of a micro-batch. At the
    second use all of them are loaded and garbage has just been collected, so `gc.freeze` sets aside what is there.
    """
    if next(_uses) == 1:
        gc.freeze()
