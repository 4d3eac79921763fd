"""A job in real time: the coordinator in a thread of its own, slots in threads or in processes."""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol, TypeVar

from arrowstate.clock import now_ms
from arrowstate.runtime.core.assembling import Entries
from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.core.coordinator import Coordinator
from arrowstate.runtime.core.messages import ToSlot
from arrowstate.runtime.graph import Declared
from arrowstate.storage.base import Storage

__all__ = ["Slots", "TimedDriver"]

T = TypeVar("T")
_logger = logging.getLogger("arrowstate.runtime")

_TICK_S = 0.02
"""How long the coordinator waits for an event before it looks at the clock."""


class Slots(Protocol):
    """Slots that run by themselves."""

    def tell(self, slot: int, message: ToSlot) -> None:
        """Tell a slot, after all that it was told before; one that has died hears nothing."""

    def restart(self) -> None:
        """Bring back those that died."""

    def close(self) -> None:
        """End all of them."""


class TimedDriver:
    """Runs the coordinator: events come one after another, from slots, from work that was done, and from users."""

    def __init__(
        self, job: Declared, setting: Setting, storage: Storage, entries: Entries, mode: Literal["threads", "processes"]
    ) -> None:
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._closed = False
        # One after another: commits, and then what sinks are given.
        self._worker = ThreadPoolExecutor(1, "arrowstate-commit")
        self.coordinator = Coordinator(job.graph, entries, job.options, job.restart, self, random.Random())  # noqa: S311
        self._slots: Slots
        if mode == "threads":
            from arrowstate.runtime.drivers.threads import ThreadSlots

            self._slots = ThreadSlots(job.graph, setting, storage, self.post)
        else:
            from arrowstate.runtime.drivers.processes import ProcessSlots

            self._slots = ProcessSlots(job, setting, self.post)
        self._thread = threading.Thread(target=self._run, name="arrowstate-coordinator", daemon=True)
        self._thread.start()

    # What the coordinator asks for.

    def tell(self, slot: int, message: ToSlot) -> None:
        self._slots.tell(slot, message)

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        def run() -> None:
            try:
                result, error = work(), None
            except BaseException as raised:  # noqa: BLE001 (whoever asked decides)
                self._events.put(lambda raised=raised: done(None, raised))  # type: ignore[misc]
            else:
                self._events.put(lambda: done(result, error))

        if not self._closed:
            self._worker.submit(run)

    def restart_slots(self) -> None:
        self._slots.restart()

    def now_ms(self) -> int:
        return now_ms()

    # What slots tell, and users ask.

    def post(self, event: Callable[[Coordinator], None]) -> None:
        """Have something done with the coordinator between two events; from any thread."""
        self._events.put(lambda: event(self.coordinator))

    def call(self, what: Callable[[Any], Any]) -> Any:
        """Call a function with the coordinator between two events, and return what it returns."""
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return what(self.coordinator)
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((what(self.coordinator), None))
            except BaseException as error:  # noqa: BLE001 (it is raised where it was asked)
                answers.put((None, error))

        self._events.put(run)
        while True:
            try:
                result, error = answers.get(timeout=1)
                break
            except queue.Empty:
                if not self._thread.is_alive():
                    return what(self.coordinator)
        if error is not None:
            raise error
        return result

    def wait(self, condition: Callable[[], bool], timeout_ms: int | None) -> bool:
        """Wait until a condition holds."""
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        with self._changed:
            while not condition():
                left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        """End the slots, wait for the work that was begun, and end."""
        self._slots.close()
        self._worker.shutdown()
        self._closed = True
        self._events.put(lambda: None)
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            try:
                event = self._events.get(timeout=_TICK_S)
            except queue.Empty:
                event = None
            try:
                if event is not None:
                    event()
                self.coordinator.tick()
            except Exception as error:
                _logger.exception("the coordinator of the job failed")
                self.coordinator.broke(error)
            with self._changed:
                self._changed.notify_all()
