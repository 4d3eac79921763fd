"""The examples in the docstrings of the format package run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import arrowstate_formats

MODULES = [
    "arrowstate_formats",
    *(f"arrowstate_formats.{m.name}" for m in pkgutil.iter_modules(arrowstate_formats.__path__)),
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    module = importlib.import_module(name)

    results = doctest.testmod(module)

    assert results.failed == 0
