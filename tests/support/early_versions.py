"""What early versions of packages refuse (docs/versions.md): a test that meets such a refusal is left out there."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from importlib.metadata import version

import pyarrow as pa
import pytest

# What is missing, the package and its first version that has it, and the error of those before.
_MISSING = [
    (
        "a Python float as float16",
        "pyarrow",
        (21,),
        r"Expected np\.float16 instance|must be halffloat, got -?[\d.]+ in",
    ),
    ("a filter of decimal32 and decimal64", "pyarrow", (21,), r"needs PyArrow 21 or later"),
    ("a reader of JSON files", "pyarrow", (20,), r"files needs PyArrow 20 or later|no attribute 'open_json'"),
    ("decimal32 and decimal64 in Parquet", "pyarrow", (22,), r"Arrow to Parquet schema conversion: decimal(32|64)"),
    ("show schemas", "duckdb", (2,), r"Table with name schemas does not exist|no state named 'schemas'"),
    (
        "a new column of Iceberg",
        "polars",
        (2,),
        r"projected_schema\.len\(\) <= |extra column in file outside of expected",
    ),
    ("a lazy frame that outlives its query", "duckdb", (2,), r"Connection has already been closed"),
    ("a pushed down `is distinct from`", "duckdb", (2,), r"COMPARE_DISTINCT_FROM can't be an Arrow Scan"),
    ("the name of a database in its errors", "duckdb", (2,), r"nothing named 'jobs/click' was found"),
    ("deletion vectors of Delta", "polars", (2,), r"not yet supported by the polars delta scanner"),
    ("a map in a map whose keys hold structs", "pyarrow", (26,), r"needs PyArrow 26 or later"),
]


def is_before(package: str, first: tuple[int, ...]) -> bool:
    """Say whether the installed version of a package comes before another one."""
    return tuple(map(int, re.findall(r"\d+", version(package))[: len(first)])) < first


HALVES = [] if is_before("pyarrow", (21,)) else [pa.float16()]
"""The type of which random Python floats are values, where it is one."""
NARROW_DECIMALS = [] if is_before("pyarrow", (21,)) else [pa.decimal32(4, 2), pa.decimal64(6, 2)]
"""The types of the narrow decimals, where a state may have them."""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        for part in getattr(error, "exceptions", ()):
            yield from _causes(part)
        error = error.__cause__ or error.__context__


def _leave_out(error: BaseException) -> None:
    """Skip the test that failed so, if that is what an early version refuses."""
    for what, package, first, refusal in _MISSING:
        if is_before(package, first) and any(re.search(refusal, str(each)) for each in _causes(error)):
            pytest.skip(f"{package} {version(package)} lacks {what}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    try:
        yield
    except BaseException as error:  # A panic of Rust is no Exception.
        _leave_out(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    try:
        yield
    except BaseException as error:
        _leave_out(error)
        raise
