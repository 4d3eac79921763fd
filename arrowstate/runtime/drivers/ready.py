"""Slots in processes that are there before the job is: they have loaded all packages, and wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.drivers.processes import ProcessSlots
from arrowstate.runtime.graph import Declared

Event = Callable[[Any], None]


class ReadySlots:
    """The slots of a job that another process still runs; with `loads_all` they load what they do not need at once."""

    def __init__(self, job: Declared, setting: Setting, *, loads_all: bool = True) -> None:
        self.setting = setting
        self._lock = threading.Lock()
        self._post: Callable[[Event], None] | None = None
        self._held: list[Event] = []
        self._slots = ProcessSlots(job, setting, self._hear, loads_all=loads_all)

    @property
    def are_alive(self) -> bool:
        """Whether none has died."""
        return self._slots.are_alive

    @property
    def are_loaded(self) -> bool:
        """Whether all packages are loaded."""
        return self._slots.are_loaded

    def take(self, post: Callable[[Event], None]) -> ProcessSlots:
        """Return the slots, of which `post` hears from now on, and what they have said before."""
        with self._lock:
            for event in self._held:
                post(event)
            self._post = post
        return self._slots

    def close(self) -> None:
        """End them."""
        self._slots.close(None)

    def _hear(self, event: Event) -> None:
        with self._lock:
            if self._post is None:
                self._held.append(event)
            else:
                self._post(event)
