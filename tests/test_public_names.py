"""What `import arrowstate` gives."""

from __future__ import annotations

from pathlib import Path

import arrowstate

PINNED = Path(__file__).with_name("public_names.txt")


def test_the_public_names_are_those_that_are_pinned():
    assert sorted(arrowstate.__all__) == PINNED.read_text().split()


def test_every_public_name_exists_and_says_what_it_is():
    for name in arrowstate.__all__:
        value = getattr(arrowstate, name)

        assert isinstance(value, (int, str)) or value.__doc__, name
