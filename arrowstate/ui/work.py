"""What a page has to read, done in threads, with a time after which the page goes on without it.

A storage may answer slowly or not at all, and a state may be large. So nobody waits longer than the limit; what was
begun goes on, and who asks for the same again gets it. A store has a few threads, so that one that hangs does not take
those of the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any

__all__ = ["BusyError", "Progress", "TooSlowError", "Work"]

_THREADS = 6


class TooSlowError(Exception):
    """What was asked for is not there within the time of a page; it is still being read."""

    def __init__(self, progress: Progress) -> None:
        super().__init__("it is still being read")
        self.progress = progress


class BusyError(Exception):
    """All threads of a store wait for it."""


class Progress:
    """How far something is, told by who does it."""

    def __init__(self) -> None:
        self.done = 0
        self.total: int | None = None
        self.is_given_up = False

    def advance(self, by: int = 1) -> None:
        """Say that more is done."""
        self.done += by


class Work:
    """What is being read of a store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, tuple[Future[Any], Progress]] = {}

    async def get(self, key: Hashable, read: Callable[[Progress], Any], *, seconds: float) -> Any:
        """Return what a function returns, of which one runs for a key at a time.

        Parameters
        ----------
        key
            What is asked for.
        read
            Reads it, in a thread of its own.
        seconds
            How long to wait.

        Raises
        ------
        TooSlowError
            If it takes longer; it goes on.
        BusyError
            If too much else goes on.
        """
        with self._lock:
            known = self._running.get(key)
            if known is None:
                if len(self._running) >= _THREADS:
                    raise BusyError
                known = self._running[key] = (Future(), Progress())
                name = "arrowstate-ui-read"
                # A daemon: the process need not wait for a storage that never answers.
                threading.Thread(target=self._run, args=(key, read, *known), name=name, daemon=True).start()
        future, progress = known
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), seconds)
        except TimeoutError:
            if future.done():
                raise
            raise TooSlowError(progress) from None

    def _run(self, key: Hashable, read: Callable[[Progress], Any], future: Future[Any], progress: Progress) -> None:
        try:
            found = read(progress)
        except BaseException as error:  # noqa: BLE001 (it is raised where it is asked for)
            self._end(key)
            future.set_exception(error)
        else:
            self._end(key)
            future.set_result(found)

    def _end(self, key: Hashable) -> None:
        with self._lock:
            self._running.pop(key, None)
