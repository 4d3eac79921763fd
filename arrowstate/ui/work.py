"""What a page has to read, done in threads, with a time after which the page goes on without it.

A storage may answer slowly or not at all, and a state may be large. So nobody waits longer than the limit; what was
begun goes on, and who asks for the same again gets it. A store has a few threads, so that one that hangs does not take
those of the others. Queries have threads of their own and end with whoever asked: `Queries`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from arrowstate.errors import InvalidInputError

_Item = TypeVar("_Item")
_THREADS = 6
_QUERIES = 3
_CALLS = 8
_CALLS_WAITING = 1_000
_LATE = 8
_LATE_SECONDS = 10
"""How many answers that came late are kept for whoever asks again, and how long."""
_LOOK_SECONDS = 0.1
"""How often it is looked whether there is room for a query, and whether somebody still waits for it."""


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

    def advance(self, by: int = 1) -> None:
        """Say that more is done."""
        self.done += by

    def over(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield items, and say that one more is done as the next is asked for."""
        for item in items:
            yield item
            self.advance()


class Stop:
    """Stops a query; the first reason counts."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._asked = threading.Event()

    def __call__(self, reason: str) -> None:
        """Stop it, and say why."""
        if self.reason is None:
            self.reason = reason
        self._asked.set()

    def wait(self, seconds: float) -> bool:
        """Wait until it is stopped, at most so long; return whether it is."""
        return self._asked.wait(seconds)


@dataclass(slots=True)
class _Reading:
    """Something that is being read, or that came after whoever asked had gone on."""

    answer: Future[Any]
    progress: Progress
    is_late: bool = False
    ended_at: float = field(default=0.0)
    "By the monotonic clock; 0 while it runs."


class Work:
    """What is being read of a store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, _Reading] = {}
        self._late: dict[Hashable, _Reading] = {}

    async def get(self, key: Hashable, read: Callable[[Progress], Any], *, seconds: float) -> Any:
        """Return what a function returns, of which one runs for a key at a time.

        An answer that comes after `TooSlowError` was raised is for whoever asks for the same next.
        """
        with self._lock:
            reading = self._taken_late(key) or self._running.get(key)
            if reading is None:
                if len(self._running) >= _THREADS:
                    raise BusyError
                progress = Progress()
                answer = in_thread(lambda: read(progress), lambda: self._end(key))
                reading = self._running[key] = _Reading(answer, progress)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(reading.answer)), seconds)
        except TimeoutError:
            with self._lock:
                reading.is_late = not reading.ended_at
            if not reading.is_late:
                # It came in this moment, or its own error is one of time.
                return await asyncio.wrap_future(reading.answer)
            raise TooSlowError(reading.progress) from None

    def _taken_late(self, key: Hashable) -> _Reading | None:
        oldest = time.monotonic() - _LATE_SECONDS
        self._late = {other: late for other, late in self._late.items() if late.ended_at >= oldest}
        return self._late.pop(key, None)

    def _end(self, key: Hashable) -> None:
        with self._lock:
            reading = self._running.pop(key)
            reading.ended_at = time.monotonic()
            if reading.is_late:
                while len(self._late) >= _LATE:
                    del self._late[next(iter(self._late))]
                self._late[key] = reading


class Calls:
    """What programs ask of a storage, answered in the order in which it came by a few threads.

    Those that hang with a storage take no thread of another one, and keep no process from its end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    async def get(self, read: Callable[[], Any], *, seconds: float) -> Any:
        """Return what a function returns; `TimeoutError` if that takes longer, waiting for a thread included."""
        future: Future[Any] = Future()
        with self._lock:
            # Nobody waits any more for what was asked first.
            while self._waiting and self._waiting[0][0].cancelled():
                self._waiting.popleft()
            if len(self._waiting) >= _CALLS_WAITING:
                raise BusyError
            self._waiting.append((future, read))
            if self._running < _CALLS:
                self._running += 1
                threading.Thread(target=self._run, name="arrowstate-ui-call", daemon=True).start()
        return await asyncio.wait_for(asyncio.wrap_future(future), seconds)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                future, read = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    found = read()
                except BaseException as error:  # noqa: BLE001 (it is raised where it is asked for)
                    future.set_exception(error)
                else:
                    future.set_result(found)
            # An answer may be large.
            future = read = found = None  # type: ignore[assignment]


class Queries:
    """The queries that run on a store, a few at a time; each ends when nobody waits for it any more."""

    def __init__(self) -> None:
        self._asked: dict[Stop, str | None] = {}
        "All that are waited for, by the page that asks, also before they run."
        self._running: set[Stop] = set()
        self._lock = threading.Lock()

    def stop(self, page: str, reason: str) -> None:
        """Stop the queries of a page."""
        with self._lock:
            own = [stop for stop, asker in self._asked.items() if asker == page]
        for stop in own:
            stop(reason)

    async def get(
        self,
        read: Callable[[Stop], Any],
        *,
        page: str | None,
        prepare: Callable[[], Any],
        is_gone: Callable[[], Awaitable[bool]],
        seconds: float,
        patience: float,
    ) -> Any:
        """Return what a query returns, which takes the place of the query that the same page asked for before.

        `prepare` is called in a thread before the time of the query begins.
        """
        stop = Stop()
        if page is not None:
            self.stop(page, "another query of the same page took the place of this one")
        with self._lock:
            self._asked[stop] = page
        try:
            await asyncio.to_thread(prepare)
            await self._begin(stop, is_gone, time.monotonic() + patience)
            future = asyncio.wrap_future(in_thread(lambda: read(stop), lambda: self._end(stop)))
            # An error that comes when nobody waits is nobody's.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            until = time.monotonic() + seconds
            while not (await asyncio.wait([future], timeout=_LOOK_SECONDS))[0]:
                if await is_gone():
                    stop("nobody waits for the query any more")
                if time.monotonic() > until:
                    stop(f"the query was stopped after {seconds:g} s")
                    raise InvalidInputError(stop.reason or "the query was stopped")
            return await future
        finally:
            # Whatever ends the wait, such as the end of the server, ends the query.
            stop("nobody waits for the query any more")
            with self._lock:
                self._asked.pop(stop)

    async def _begin(self, stop: Stop, is_gone: Callable[[], Awaitable[bool]], until: float) -> None:
        """Wait until a query may run."""
        while True:
            with self._lock:
                if stop.reason is not None:
                    raise InvalidInputError(stop.reason)
                if len(self._running) < _QUERIES:
                    self._running.add(stop)
                    return
            if time.monotonic() > until or await is_gone():
                raise BusyError
            await asyncio.sleep(_LOOK_SECONDS)

    def _end(self, stop: Stop) -> None:
        with self._lock:
            self._running.discard(stop)


def in_thread(read: Callable[[], Any], end: Callable[[], None]) -> Future[Any]:
    """Return what a function will return, which runs in a thread of its own; `end` is called before that is told."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            found = read()
        except BaseException as error:  # noqa: BLE001 (it is raised where it is asked for)
            end()
            future.set_exception(error)
        else:
            end()
            future.set_result(found)

    # A daemon: the process need not wait for a storage that never answers.
    threading.Thread(target=run, name="arrowstate-ui-read", daemon=True).start()
    return future
