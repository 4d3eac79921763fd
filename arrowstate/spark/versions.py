"""Which PySpark has what that arrowstate uses: this is the one place that knows.

All of arrowstate can be imported with any PySpark from `OLDEST` on; `require` is called where a feature is used. A
version is asked for its modules and not for its number, because a platform's PySpark may have more than the release of
its number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from arrowstate.errors import MissingDependencyError

__all__ = ["DATA_SOURCE", "IDLE_TIMERS", "IMPORTS", "OLDEST", "STREAMING_READS", "has", "needs_pyspark", "require"]

OLDEST = "3.5"
"""As the extra `spark` says."""

DATA_SOURCE = "reads by spark.read.format('arrowstate')"
STREAMING_READS = "streaming reads"
IDLE_TIMERS = "timers that fire when no row comes (fire_when_idle)"
IMPORTS = "imports of Spark's state"

_SINCE = {
    DATA_SOURCE: ("4.0", "pyspark.sql.datasource"),
    # `statestore`, the data source in Java that reads Spark's state, came with it.
    IMPORTS: ("4.0", "pyspark.sql.datasource"),
    STREAMING_READS: ("4.2", "pyspark.sql.streaming.datasource"),
    IDLE_TIMERS: ("4.2", "pyspark.sql.streaming.datasource"),
}
"""By feature, the release that it came with and the module that shows it."""


def has(feature: str) -> bool:
    """Whether the PySpark that is installed has what a feature needs."""
    return _is_there(_SINCE[feature][1])


def require(feature: str) -> None:
    """Raise MissingDependencyError if the PySpark that is installed lacks what a feature needs."""
    if not has(feature):
        raise MissingDependencyError(feature, "pyspark", "spark", f"PySpark {_installed()}", _SINCE[feature][0])


@contextmanager
def needs_pyspark(feature: str) -> Iterator[None]:
    """Raise MissingDependencyError where a block cannot import something of PySpark, or all of it is too old."""
    try:
        if (found := _installed()) is not None and _numbers(found) < _numbers(OLDEST):
            raise MissingDependencyError("sinks, operators and reads", "pyspark", "spark", f"PySpark {found}", OLDEST)
        yield
    except MissingDependencyError:
        raise
    except ImportError as error:
        # A name that a module lacks comes with the name of the module.
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise MissingDependencyError(feature, "pyspark", "spark") from error


def _installed() -> str | None:
    """Return the version that is installed; None where PySpark is missing or broken."""
    try:
        import pyspark
    except ImportError:
        return None
    version: str = pyspark.__version__
    return version


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False
