"""What `import arrowstate` gives, and what its packages for jobs, tests and windows give."""

import importlib
from pathlib import Path

import pytest

import arrowstate

PINNED = Path(__file__).with_name("public_names.txt")
OF_PACKAGES = Path(__file__).with_name("public_names_of_packages.txt")


def test_the_public_names_are_those_that_are_pinned():
    assert sorted(arrowstate.__all__) == PINNED.read_text().split()


def test_every_public_name_exists_and_says_what_it_is():
    for name in arrowstate.__all__:
        value = getattr(arrowstate, name)

        assert isinstance(value, (int, str)) or value.__doc__, name


@pytest.mark.parametrize("package", ["foreign.flink", "runtime", "testing", "windows"])
def test_the_public_names_of_a_package_are_those_that_are_pinned_and_say_what_they_are(package):
    module = importlib.import_module(f"arrowstate.{package}")
    names = [name.rpartition(".") for name in OF_PACKAGES.read_text().split()]
    pinned = [name for owner, _, name in names if owner == package]

    assert sorted(module.__all__) == pinned
    assert [name for name in pinned if not getattr(module, name).__doc__] == []
