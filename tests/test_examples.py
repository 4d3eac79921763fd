"""The README and the docstrings say what the code does: every example in them is run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import arrowstate

ROOT = Path(__file__).parents[1]
# Modules that need PySpark to be imported have their examples run by tests/spark.
MODULES = [
    module.name
    for module in pkgutil.walk_packages(arrowstate.__path__, "arrowstate.")
    if not module.name.startswith("arrowstate.spark.") and not module.name.endswith("__main__")
]


def test_every_python_example_of_the_readme_gives_what_it_shows():
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    parser = doctest.DocTestParser()
    text = (ROOT / "README.md").read_text()
    example = parser.get_doctest(text.replace("```", ""), {}, "README.md", "README.md", 0)

    results = doctest.DocTestRunner(optionflags=flags).run(example)

    assert results.attempted > 15
    assert results.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_example_of_a_docstring_gives_what_it_shows(name):
    module = importlib.import_module(name)

    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)

    assert results.failed == 0
