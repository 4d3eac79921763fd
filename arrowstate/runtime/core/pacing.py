"""How much is done at once: how many rows a step takes, and how many bytes a channel holds.

Both follow the speed of the task. A barrier waits for the end of a step, so a step takes as many rows as its task
processes in a twentieth of a second. A barrier that overtakes nothing also waits for the rows before it, so the
channels of a task hold what it takes up in half a second. One step of the sender may overdraw by as much: rows wait for
about a second. Flink calls the second rule buffer debloating (FLIP-183).
"""

from __future__ import annotations

from math import inf

STEP_US = 50_000
"""How long a step is to last."""

FIRST_ROWS = 64
"""The rows of the first step, when the speed of its task is not known.

They are few because a barrier waits for the step: a function that needs 5 ms for a row is done with them in 0.3 s.
"""

_CHANGE = 4
"""A step has at most so many times the rows of the step before, and at least that part of them."""

_OVERHEAD = 4
"""The rows of a step cost at least so many times its fixed cost: where that is high, smaller steps would do less."""

_KEPT = 0.9
"""What is left of the fixed cost after each step, until two steps of different sizes tell it again."""

WINDOW_US = 500_000
"""How long a task is to need for what its channels hold."""

FIRST_WINDOW_BYTES = 4 << 10
"""What a channel may hold while the speed of its task is not known."""

LEAST_WINDOW_BYTES = 256
"""What a channel may hold however slow its task is. One step overdraws, so a row of any size goes through."""

_MEASURED_US = 100_000
"""The speed of a task is measured over so much time, and its windows change then."""

_FIRST_MEASURED_US = 20_000
"""The first measurement takes so much time, because a quick task waits for rows until it is done."""


class StepPace:
    """Says how many rows a step takes, so that it lasts about as long as it is to.

    A step has a fixed cost, and each of its rows costs something. Two steps of different sizes tell both.
    """

    def __init__(self) -> None:
        self._most = float(FIRST_ROWS)
        self._last: tuple[int, int] | None = None
        "The rows and the time of the step before."
        self._fixed_us = 0.0
        self._found_us = inf
        "What the fixed cost was by the last two steps of different sizes."
        self._given_bytes = 0.0

    def rows(self, most: int, window_bytes: float = inf) -> int:
        """Return how many rows the next step takes: at most so many, and such as give out no more than a window."""
        rows = min(most, self._most)
        if self._given_bytes * rows > window_bytes:
            rows = window_bytes / self._given_bytes
        return max(int(rows), 1)

    def took(self, rows: int, time_us: int, given_bytes: int) -> None:
        """Take note of a step."""
        if not rows:
            return
        self._given_bytes = given_bytes / rows
        if rows * 2 < self._most:
            # What few rows took says little of many.
            return
        row_us = self._cost_of_row(rows, time_us)
        best = inf if not row_us else max(STEP_US - self._fixed_us, self._fixed_us * _OVERHEAD) / row_us
        # Where others have the processor for a while a step takes long, and the next one does not.
        self._most = max(min(best, self._most * _CHANGE), self._most / _CHANGE, 1.0)

    def _cost_of_row(self, rows: int, time_us: int) -> float:
        """Return what a row costs, and take note of the fixed cost of a step."""
        before, self._last = self._last, (rows, time_us)
        if before is not None and abs(rows - before[0]) * 4 >= before[0]:
            row_us = max((time_us - before[1]) / (rows - before[0]), 0.0)
            found_us = max(time_us - row_us * rows, 0.0)
            # Two in a row have to say so: a single step may have taken long for another reason.
            self._fixed_us, self._found_us = min(found_us, self._found_us), found_us
        else:
            # The less of it is left the smaller are the steps that follow, and those tell it again.
            self._fixed_us *= _KEPT
        return max(time_us - self._fixed_us, 0.0) / rows


class ChannelWindow:
    """Says how much each channel of a task may hold, by what the task takes while it is not idle."""

    def __init__(self, channels: int) -> None:
        self._channels = max(channels, 1)
        self._rate: float | None = None
        "In bytes a microsecond."
        self._size = 0
        self._since: tuple[int, int] | None = None
        "When the measurement began, and how long the task had been idle by then."

    def took(self, size: int, now_us: int, idle_us: int) -> None:
        """Take note of rows that were taken up."""
        self._size += size
        if self._since is None:
            self._since = now_us, idle_us
            self._size = 0
            return
        active_us = (now_us - self._since[0]) - (idle_us - self._since[1])
        if active_us < (_FIRST_MEASURED_US if self._rate is None else _MEASURED_US):
            return
        rate = self._size / active_us
        self._rate = rate if self._rate is None else (self._rate + rate) / 2
        self._since, self._size = (now_us, idle_us), 0

    @property
    def bytes(self) -> int:
        """What a channel is to hold; its sender may have less room."""
        if self._rate is None:
            return FIRST_WINDOW_BYTES
        return max(int(self._rate * WINDOW_US / self._channels), LEAST_WINDOW_BYTES)
