"""The README and the docstrings say what the code does: every example in them is run."""

import doctest
import importlib
from pathlib import Path

import pytest

import arrowstate.errors

ROOT = Path(__file__).parents[1]
# Those of arrowstate.spark need a session: tests/spark/test_spark_examples.py runs them.
MODULES = sorted(
    {
        # Classes of errors say that they are of the package, so it has their examples.
        ".".join(path.relative_to(ROOT).with_suffix("").parts[: 2 if path.parent.name == "errors" else None])
        for path in (ROOT / "arrowstate").rglob("*.py")
        if ">>> " in path.read_text() and not path.is_relative_to(ROOT / "arrowstate/spark")
    }
)


def test_every_python_example_of_the_readme_gives_what_it_shows():
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    parser = doctest.DocTestParser()
    text = (ROOT / "README.md").read_text()
    example = parser.get_doctest(text.replace("```", ""), {}, "README.md", "README.md", 0)

    results = doctest.DocTestRunner(optionflags=flags).run(example)

    assert results.attempted > 10
    assert results.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_example_of_a_docstring_gives_what_it_shows(name):
    module = importlib.import_module(name.removesuffix(".__init__"))

    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)

    assert results.attempted > 0
    assert results.failed == 0


def test_every_error_has_an_example_that_is_run():
    finder = doctest.DocTestFinder(exclude_empty=False)

    tests = {test.name: test.examples for test in finder.find(arrowstate.errors)}

    own = [
        name for name in arrowstate.errors.__all__ if getattr(arrowstate.errors, name).__module__ == "arrowstate.errors"
    ]
    assert len(own) > 20
    assert [name for name in own if not tests[f"arrowstate.errors.{name}"]] == []
