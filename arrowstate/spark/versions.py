"""Which PySpark is there: one that is missing or too old is named by an error that says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from arrowstate.errors import MissingDependencyError

__all__ = ["OLDEST", "needs_pyspark"]

OLDEST = "4.3"
"""As the extra `spark` says."""


@contextmanager
def needs_pyspark(feature: str) -> Iterator[None]:
    """Raise MissingDependencyError where a block cannot import something of PySpark."""
    try:
        yield
    except MissingDependencyError:
        raise
    except ImportError as error:
        # A name that a module lacks comes with the name of the module.
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise MissingDependencyError(feature, "pyspark", "spark", *_too_old()) from error


def _too_old() -> tuple[str, str] | tuple[()]:
    """Return the version that is installed and the one that is needed; nothing where PySpark is missing or broken."""
    try:
        import pyspark

        installed = pyspark.__version__
    except ImportError:
        return ()
    return f"PySpark {installed}", OLDEST
