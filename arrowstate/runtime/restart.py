"""When a job that failed starts again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from arrowstate.errors import (
    CheckpointsCollectedError,
    CollectedError,
    CorruptDataError,
    FencedError,
    FormatVersionError,
    IncompatibleStateError,
    InvalidInputError,
    JobFailedError,
    MissingDependencyError,
    MissingFileError,
    SourceError,
    StorageError,
)
from arrowstate_formats.integers import check_integer

_UNRECOVERABLE = (
    CorruptDataError,
    FencedError,
    FormatVersionError,
    IncompatibleStateError,
    InvalidInputError,
    MissingDependencyError,
    MissingFileError,
)

_OF_THE_INPUT = (*_UNRECOVERABLE, CheckpointsCollectedError, FileNotFoundError, EOFError, pa.ArrowException)
"""Causes of a `SourceError` that the next attempt would find again."""


def is_unrecoverable(error: BaseException) -> bool:
    """Whether another attempt would fail by an error as this one did.

    So do errors of this library that name something to mend. What a function of the user's raised is another error, a
    `UserFunctionError`, whatever it was; and a source whose function raised may be able to read later.
    """
    cause = error.__cause__
    if isinstance(error, SourceError):
        return cause is None or isinstance(cause, _OF_THE_INPUT)
    if isinstance(error, JobFailedError):
        # Too many checkpoints failed.
        return cause is not None and is_unrecoverable(cause)
    # A commit lacks a file, and no collection took it: the next attempt would lack it too.
    is_lost = isinstance(error, StorageError) and isinstance(cause, CollectedError)
    return is_lost or isinstance(error, _UNRECOVERABLE)


@dataclass(frozen=True, slots=True)
class Restart:
    """Decides when a failed job starts again from its newest checkpoint; the strategies and defaults are Flink's.

    Examples
    --------
    >>> Restart.exponential(initial_ms=1_000, longest_ms=60_000)
    Restart(strategy='exponential', attempts=None, delay_ms=1000, longest_ms=60000, within_ms=3600000)
    >>> Restart.fixed(attempts=3, delay_ms=500).attempts
    3
    """

    strategy: Literal["exponential", "fixed", "failure rate", "none"]
    attempts: int | None = None
    """How many failures are followed by a new start; None for any number."""
    delay_ms: int = 1_000
    longest_ms: int = 60_000
    within_ms: int = 3_600_000
    """Exponential: after so long without failure the delay is the initial one. Failure rate: the span that counts."""

    @classmethod
    def exponential(
        cls,
        *,
        initial_ms: int = 1_000,
        longest_ms: int = 60_000,
        reset_ms: int = 3_600_000,
        attempts: int | None = None,
    ) -> Restart:
        """Wait half as long again after each failure, from `initial_ms` to `longest_ms`, a tenth more or less.

        After `reset_ms` without a failure the wait is `initial_ms` again. With `attempts`, the job ends after so many
        failures in a row.
        """
        initial_ms = check_integer("initial_ms", initial_ms, 0)
        return cls(
            "exponential",
            check_integer("attempts", attempts, 0, optional=True),
            initial_ms,
            check_integer("longest_ms", longest_ms, initial_ms),
            check_integer("reset_ms", reset_ms, 1),
        )

    @classmethod
    def fixed(cls, *, attempts: int | None = None, delay_ms: int = 1_000) -> Restart:
        """Wait `delay_ms` after each failure, and end after `attempts` of them; None for any number."""
        return cls(
            "fixed", check_integer("attempts", attempts, 0, optional=True), check_integer("delay_ms", delay_ms, 0)
        )

    @classmethod
    def failure_rate(cls, *, failures: int = 1, within_ms: int = 60_000, delay_ms: int = 1_000) -> Restart:
        """Wait `delay_ms` after each failure, and end when more than `failures` came within `within_ms`."""
        return cls(
            "failure rate",
            check_integer("failures", failures, 0),
            check_integer("delay_ms", delay_ms, 0),
            within_ms=check_integer("within_ms", within_ms, 1),
        )

    @classmethod
    def none(cls) -> Restart:
        """Never: the first failure ends the job."""
        return cls("none", 0)


@dataclass(slots=True)
class RestartState:
    """What a job's failures have come to under a strategy."""

    strategy: Restart
    _failures: list[int] = field(default_factory=list)
    """Their times, in milliseconds, as far back as they count."""

    def failed(self, now_ms: int, chance: random.Random) -> int | None:
        """Take note of a failure; return how long to wait before the next start, None for none."""
        rule = self.strategy
        if rule.strategy == "exponential" and self._failures and now_ms - self._failures[-1] > rule.within_ms:
            self._failures.clear()
        self._failures.append(now_ms)
        if rule.strategy == "failure rate":
            self._failures = [time for time in self._failures if now_ms - time <= rule.within_ms]
        if rule.attempts is not None and len(self._failures) > rule.attempts:
            return None
        if rule.strategy != "exponential":
            return rule.delay_ms
        # Beyond this power any delay is the longest.
        delay = min(rule.delay_ms * 1.5 ** min(len(self._failures) - 1, 64), rule.longest_ms)
        return round(delay * chance.uniform(0.9, 1.1))
