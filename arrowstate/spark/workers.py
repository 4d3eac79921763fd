"""Which Python Spark's workers run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["own_python"]


@contextmanager
def own_python(spark: SparkSession) -> Iterator[None]:
    """Let workers on this machine run the Python that runs here, where the user has not chosen one.

    Spark's own default is whatever `python3` is first on the path, which in a virtual environment that is not
    activated lacks arrowstate.
    """
    context = getattr(spark, "_sc", None)
    chosen = "PYSPARK_PYTHON" in os.environ or context is None or not context.master.startswith("local")
    if context is None or chosen or context.pythonExec != "python3":
        yield
        return
    context.pythonExec = sys.executable
    try:
        yield
    finally:
        context.pythonExec = "python3"
