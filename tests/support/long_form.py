"""How much of the suite a run takes: the short form, or the long one, which leaves nothing out.

Where a test has more cases than a run has time for, the short form takes every n-th of them by turns. Which turn a case
belongs to says a hash of its name, so it does not depend on what else is collected. The number of the turn changes with
every run: it is one more than that of the run before in the same folder, and in a new folder it comes from the clock.
The summary of a run says its turn; ARROWSTATE_TEST_TURN=N takes that turn again, ARROWSTATE_TEST_TURN=all every case of
the short form, and ARROWSTATE_LONG_TESTS=1 the long form.
"""

import os
import time
from pathlib import Path
from typing import TypeVar
from zlib import crc32

__all__ = ["ALL_TURNS", "LONG", "TURN", "every_nth", "short_or_long"]

T = TypeVar("T")

_LAST_TURN = Path(__file__).resolve().parents[2] / ".pytest_cache" / "arrowstate-turn"
_HIGHEST_TURN = 100_000


def _turn_of(last_turn: Path) -> str:
    """Return the turn of this run; the first process of a run decides for those that it starts."""
    given = os.environ.get("ARROWSTATE_TEST_TURN")
    if given is None:
        try:
            turn = int(last_turn.read_text()) + 1
        except (OSError, ValueError):
            turn = int(time.time())
        given = str(turn % _HIGHEST_TURN)
        try:
            last_turn.parent.mkdir(exist_ok=True)
            last_turn.write_text(given)
        except OSError:
            # Where nothing can be kept, the clock decides each time.
            pass
        os.environ["ARROWSTATE_TEST_TURN"] = given
    return given


LONG = os.environ.get("ARROWSTATE_LONG_TESTS", "0") not in ("", "0")
"""Whether this is the long form."""

ALL_TURNS = LONG or _turn_of(_LAST_TURN) == "all"
"""Whether every case runs that the short form takes by turns."""

TURN = 0 if ALL_TURNS else int(_turn_of(_LAST_TURN))
"""The number of the turn, 0 to 99,999: where seeds and places begin that differ from run to run."""


def short_or_long(short: T, long: T) -> T:
    """Return what the form of this run takes, such as a number of examples."""
    return long if LONG else short


def every_nth(n: int, case: int | str) -> bool:
    """Say whether this run takes a case, which is a name or a number: of n successive turns one does."""
    number = crc32(case.encode()) if isinstance(case, str) else case
    return ALL_TURNS or (number + TURN) % n == 0
