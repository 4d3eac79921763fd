"""The errors of the format package.

Every error is an `ArrowStateError`, also inherits the builtin that fits, carries its values as
attributes and survives pickling, because Spark and process pools send errors between processes.
"""

from __future__ import annotations

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


class InvalidInputError(ArrowStateError, ValueError):
    """An argument is outside what was promised; the message says what was required and given.

    Examples
    --------
    >>> isinstance(InvalidInputError("max_parallelism must be at least 1, got 0"), ValueError)
    True
    """


class CorruptDataError(ArrowStateError, ValueError):
    """Stored bytes do not match their checksum, or cannot be parsed as what they should be.

    Attributes
    ----------
    path : str
        The object inside the store, empty where the bytes have no path.
    detail : str
        What did not match.

    Examples
    --------
    >>> str(CorruptDataError("log/00000000000000000001.json", "truncated"))
    'log/00000000000000000001.json is damaged: truncated'
    """

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(path, detail)
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.path or 'stored data'} is damaged: {self.detail}"


class FormatVersionError(ArrowStateError, RuntimeError):
    """A document was written by a newer version of the format than this package reads.

    Attributes
    ----------
    path : str
        The object inside the store, empty where the bytes have no path.
    found : int
        The version in the document.
    supported : int
        The newest version this package reads.

    Examples
    --------
    >>> FormatVersionError("arrowstate.json", 7, 1).found
    7
    """

    def __init__(self, path: str, found: int, supported: int) -> None:
        super().__init__(path, found, supported)
        self.path = path
        self.found = found
        self.supported = supported

    def __str__(self) -> str:
        return (
            f"{self.path or 'the document'} has format version {self.found}, this arrowstate reads versions up to "
            f"{self.supported}; install a newer arrowstate"
        )


class UnknownFeatureError(FormatVersionError):
    """A document needs a feature that this package does not know, though its format version is known.

    Attributes
    ----------
    path : str
        The object inside the store, empty where the bytes have no path.
    feature : str
        The name of the feature.

    Examples
    --------
    >>> UnknownFeatureError("log/00000000000000000001.json", "encrypted-runs").feature
    'encrypted-runs'
    """

    def __init__(self, path: str, feature: str) -> None:
        super(FormatVersionError, self).__init__(path, feature)
        self.path = path
        self.feature = feature

    def __str__(self) -> str:
        return (
            f"{self.path or 'the document'} needs the feature {self.feature!r}, which this arrowstate does not know; "
            "install a newer arrowstate"
        )


class MissingDependencyError(ArrowStateError, ImportError):
    """A feature needs a package that is not installed.

    Attributes
    ----------
    feature : str
        What needs it.
    package : str
        The package that is missing.
    extra : str
        The extra of arrowstate that brings it.

    Examples
    --------
    >>> print(MissingDependencyError("the Spark sink", "pyspark", "spark"))
    the Spark sink needs the package pyspark: pip install 'arrowstate[spark]'
    """

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(feature, package, extra, name=package)
        self.feature = feature
        self.package = package
        self.extra = extra

    def __str__(self) -> str:
        return f"{self.feature} needs the package {self.package}: pip install 'arrowstate[{self.extra}]'"
