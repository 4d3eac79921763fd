"""What a slot notes of itself where the job's process reads it, even if the slot's interpreter answers nobody.

A function in C that keeps the interpreter's lock stops every thread of its process, the one that would tell of it too.
So what runs, and since when, is in memory that both processes share; and a signal has the slot write where it is.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

BUSY_SINCE, TASK, BEAT, JOB_BEAT = range(4)
"""The numbers: when the step began that runs, 0 between two; its task, by its place; the last sign of life; and that of
the job's process, which alone writes it."""

BEAT_MS = 500
"""How often a slot gives a sign of life."""

Notes: TypeAlias = "memoryview[int] | list[int]"
"""They are in this order, times in milliseconds of the clock that all processes of a machine have."""

_SIZE = mmap.PAGESIZE
_WAIT_S, _LOOKS = 0.01, 50
"""How long a slot has to write where it is: half a second."""


def monotonic_ms() -> int:
    """Return the time by a clock that stands still while the machine sleeps."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Look:
    """What a slot was doing when its notes were read."""

    task: str | None
    """The task whose step runs; None between two."""
    busy_ms: int
    """For how long."""
    silent_ms: int
    """How long ago its last sign of life was; 0 before the first."""


class Page:
    """Memory that the process of a slot and that of its job share, and after it what the slot writes when it hangs."""

    def __init__(self, file: int, *, is_new: bool = False) -> None:
        self.file = file
        if is_new:
            os.ftruncate(file, _SIZE)
            # Both processes write behind the page, for they share the place in the file too.
            os.lseek(file, _SIZE, os.SEEK_SET)
        self._memory = mmap.mmap(file, _SIZE)
        weakref.finalize(self, os.close, file)
        self.notes = memoryview(self._memory).cast("q")

    @classmethod
    def make(cls) -> Page:
        """Return a new one, whose file is given to the process of a slot."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("arrowstate-slot"), is_new=True)
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()), is_new=True)

    def write_where_on_signal(self) -> None:
        """Have this process write the stack of the thread that gets the signal, which is the main one."""
        faulthandler.register(signal.SIGUSR2, file=self.file, all_threads=False, chain=False)

    def say_job_is_there(self) -> None:
        """Give a sign of life of the job's process."""
        self.notes[JOB_BEAT] = monotonic_ms()

    @property
    def has_begun(self) -> bool:
        """Whether the slot has loaded all that it needs."""
        return self.notes[BEAT] != 0

    def look(self, tasks: Sequence[str]) -> Look:
        """Return what the slot is doing; `tasks` are its tasks in their order."""
        since, task, beat = self.notes[BUSY_SINCE], self.notes[TASK], self.notes[BEAT]
        now = monotonic_ms()
        runs = since != 0 and since == self.notes[BUSY_SINCE]
        return Look(tasks[task] if runs else None, now - since if runs else 0, now - beat if beat else 0)

    def ask_where(self, process: int) -> list[str]:
        """Return the calls that a process is in, the innermost first; none if it does not write them."""
        # It may have died meanwhile.
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGUSR2)
            text = b""
            for _ in range(_LOOKS):
                time.sleep(_WAIT_S)
                before, text = text, os.pread(self.file, 1 << 16, _SIZE)
                # It is written line by line.
                if text and text == before:
                    return [line for line in text.decode(errors="replace").splitlines() if line.startswith("  File")]
        return []
