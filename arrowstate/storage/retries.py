"""How often and how long a request to a remote storage is repeated.

This is the only place where requests are repeated after a delay: the clients' own retries are switched
off, so that one budget holds for a call, whatever is below it. Delays grow by two and are drawn at random between
zero and their bound, so that many writers that were throttled together do not come back together.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from arrowstate.errors import InvalidInputError

_logger = logging.getLogger("arrowstate.storage")


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """What one call to a storage may spend on requests that fail for a moment."""

    attempts: int = 8
    "How often a request is made at most, the first time included; at least 1."
    seconds: float = 60.0
    "No new attempt starts later than this after the first one; at least 0. One attempt may take longer by itself."
    first_delay_seconds: float = 0.1
    "Bound of the delay before the second attempt; it doubles with each one."
    longest_delay_seconds: float = 8.0
    "The bound grows no further than this."

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.seconds, self.first_delay_seconds, self.longest_delay_seconds) < 0:
            raise InvalidInputError(f"a retry budget needs at least 1 attempt and no negative times, got {self}")


@dataclass(frozen=True, slots=True)
class RetryClock:
    """Time and chance, as arguments."""

    now: Callable[[], float] = time.monotonic
    "Seconds, never going back."
    sleep: Callable[[float], None] = time.sleep
    "Waits for some seconds."
    chance: Callable[[], float] = random.random
    "A number from 0, inclusive, to 1, exclusive."


class Retries:
    """The attempts of one call."""

    def __init__(self, budget: RetryBudget, clock: RetryClock) -> None:
        self._budget = budget
        self._clock = clock
        self._started = clock.now()
        self._made = 1

    def again(self, failed: BaseException | None = None) -> bool:
        """Wait after a request that failed; return whether it may be made again, and at once if the budget is spent."""
        budget = self._budget
        if self._made >= budget.attempts:
            return False
        bound = min(budget.longest_delay_seconds, budget.first_delay_seconds * 2 ** (self._made - 1))
        delay = bound * self._clock.chance()
        if self._clock.now() - self._started + delay > budget.seconds:
            return False
        self._made += 1
        if failed is not None:
            fields = {"attempt": self._made, "delay_ms": round(delay * 1000), "error": repr(failed)}
            _logger.debug("attempt %(attempt)d in %(delay_ms)d ms, after %(error)s", fields, extra=fields)
        self._clock.sleep(delay)
        return True
