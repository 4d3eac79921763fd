"""How much of the suite runs: the short form, which every commit runs, or the long one, which leaves nothing out.

Where a test has more cases than a commit has time for, the short form takes every n-th, and each commit begins at
another one: the number of the commit is its turn. The head of pytest's report says which form and turn it was;
ARROWSTATE_TEST_TURN=N takes that turn again, and ARROWSTATE_LONG_TESTS=1 the long form.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TypeVar

__all__ = ["LONG", "TURN", "every_nth", "short_or_long"]

T = TypeVar("T")

LONG = os.environ.get("ARROWSTATE_LONG_TESTS", "0") not in ("", "0")
"""Whether this is the long form."""


def _turn() -> int:
    """Return the number of the commit, 0 where there is no git; the first process of a run decides for all of them."""
    if "ARROWSTATE_TEST_TURN" not in os.environ:
        command = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
        try:
            os.environ["ARROWSTATE_TEST_TURN"] = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True)
        except (OSError, subprocess.CalledProcessError):
            os.environ["ARROWSTATE_TEST_TURN"] = "0"
    return int(os.environ["ARROWSTATE_TEST_TURN"])


TURN = _turn()


def short_or_long(short: T, long: T) -> T:
    """Return what the form of this run takes, such as a number of examples."""
    return long if LONG else short


def every_nth(n: int, case: int) -> bool:
    """Say whether a case is one of this run's: of n successive cases one is, of n successive commits one takes it."""
    return LONG or (case + TURN) % n == 0
