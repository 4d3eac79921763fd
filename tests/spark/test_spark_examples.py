"""The docstrings of arrowstate.spark say what the code does: every example in them is run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "arrowstate" / "spark").rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_every_example_of_a_docstring_gives_what_it_shows(name: str, spark: SparkSession) -> None:
    module = importlib.import_module(name)

    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)

    assert results.attempted > 0
    assert results.failed == 0
