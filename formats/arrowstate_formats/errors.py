"""The errors of the format package.

Every error is an `ArrowStateError`, also inherits the builtin that fits, carries its values as
attributes and survives pickling, because Spark and process pools send errors between processes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, cast

__all__ = [
    "ArrowStateError",
    "CorruptDataError",
    "FormatVersionError",
    "InvalidInputError",
    "MissingDependencyError",
    "UnknownFeatureError",
]


class ArrowStateError(Exception):
    """Root of every error that arrowstate raises on purpose.

    Examples
    --------
    >>> issubclass(InvalidInputError, ArrowStateError)
    True
    """

    # An error with values is a dataclass of them. They are its attributes and, without names, its `args`, from which
    # `pickle` makes it again.
    _message: ClassVar[str] = ""
    "What it says, with its attributes in braces; a kind whose words depend on them has a `__str__`."

    def __post_init__(self) -> None:
        self.args = tuple(getattr(self, each.name) for each in fields(cast("Any", self)) if each.init)

    def __str__(self) -> str:
        return self._message.format_map(vars(self)) if self._message else super().__str__()


class InvalidInputError(ArrowStateError, ValueError):
    """An argument is outside what was promised; the message says what was required and given.

    Examples
    --------
    >>> isinstance(InvalidInputError("max_parallelism must be at least 1, got 0"), ValueError)
    True
    """


@dataclass(eq=False, repr=False)
class CorruptDataError(ArrowStateError, ValueError):
    """Stored bytes do not match their checksum, or cannot be parsed as what they should be.

    Examples
    --------
    >>> str(CorruptDataError("log/00000000000000000001.json", "truncated"))
    'log/00000000000000000001.json is damaged: truncated'
    """

    path: str
    "The object inside the store, empty where the bytes have no path."
    detail: str

    def __str__(self) -> str:
        return f"{self.path or 'stored data'} is damaged: {self.detail}"


@dataclass(eq=False, repr=False)
class FormatVersionError(ArrowStateError, RuntimeError):
    """A document was written in another version of the format than this package reads.

    Examples
    --------
    >>> FormatVersionError("arrowstate.json", 7, 1).found
    7
    """

    path: str
    "The object inside the store, empty where the bytes have no path."
    found: int
    "The version in the document."
    supported: int
    "The newest version this package reads."

    def __str__(self) -> str:
        where = self.path or "the document"
        if self.found == self.supported:
            return (
                f"{where} has the form of a draft of format version {self.found}, which development versions of "
                "arrowstate before 0.1.0 wrote; read it with the version that wrote it"
            )
        instead = ", or the development version before 0.1.0 that wrote it" if self.found == 2 else ""
        return (
            f"{where} has format version {self.found}, this arrowstate reads versions up to {self.supported}; install "
            f"a newer arrowstate{instead}"
        )


class UnknownFeatureError(FormatVersionError):
    """A document needs a feature that this package does not know, though its format version is known.

    Examples
    --------
    >>> UnknownFeatureError("log/00000000000000000001.json", "encrypted-runs", 2, 2).feature
    'encrypted-runs'
    """

    feature: str
    "The first of those that are not known."

    def __init__(self, path: str, feature: str, found: int, supported: int) -> None:
        self.path, self.feature, self.found, self.supported = self.args = path, feature, found, supported

    def __str__(self) -> str:
        return (
            f"{self.path or 'the document'} needs the feature {self.feature!r}, which this arrowstate does not know; "
            "install a newer arrowstate"
        )


@dataclass(eq=False, repr=False)
class MissingDependencyError(ArrowStateError, ImportError):
    """A feature needs a package that is not installed, or is older than what is needed.

    Examples
    --------
    >>> print(MissingDependencyError("the Spark sink", "pyspark", "spark"))
    the Spark sink needs the package pyspark: pip install 'arrowstate[spark]'
    >>> print(MissingDependencyError("streaming reads", "pyspark", "spark", "PySpark 4.0.5", "4.2"))
    PySpark 4.0.5 is installed; streaming reads need 4.2 or later: pip install 'pyspark>=4.2'
    """

    feature: str
    "What needs it."
    package: str
    extra: str
    "The extra of arrowstate that brings it."
    installed: str | None = None
    "The package and the version that is too old; None where there is none."
    required: str | None = None
    "The oldest version that will do."
    _message = "{feature} needs the package {package}: pip install 'arrowstate[{extra}]'"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.name = self.package

    def __str__(self) -> str:
        if self.installed is None:
            return super().__str__()
        return (
            f"{self.installed} is installed; {self.feature} need {self.required} or later: "
            f"pip install '{self.package}>={self.required}'"
        )
