"""A job in real time: the coordinator in a thread of its own, slots in threads or in processes."""

from __future__ import annotations

import logging
import os
import queue
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from arrowstate.clock import now_ms
from arrowstate.errors import JobFailedError
from arrowstate.process import OwnProcess
from arrowstate.runtime.core.assembling import Entries
from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.core.coordinator import Coordinator
from arrowstate.runtime.core.messages import ToSlot
from arrowstate.runtime.drivers.threading_internals import before_executors_end
from arrowstate.runtime.graph import Declared
from arrowstate.shown import error_text
from arrowstate.storage.base import Storage

if TYPE_CHECKING:
    from arrowstate.runtime.drivers.ready import ReadySlots

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

    def close(self, wait_s: float | None) -> None:
        """End all of them; wait no longer for one than `wait_s`, if given."""


class TimedDriver:
    """Runs the coordinator: events come one after another, from slots, from work that was done, and from users."""

    def __init__(
        self,
        job: Declared,
        setting: Setting,
        storage: Storage,
        entries: Entries,
        mode: Literal["threads", "processes"],
        ready: ReadySlots | None = None,
    ) -> None:
        self._process = OwnProcess()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._closed = False
        # One after another: commits, and then what sinks are given.
        self._worker = ThreadPoolExecutor(1, "arrowstate-commit")
        self.coordinator = Coordinator(job.graph, entries, job.options, job.restart, self, random.Random())  # noqa: S311
        self._thread = threading.Thread(target=self._run, name="arrowstate-coordinator", daemon=True)
        self._slots: Slots
        if mode == "threads":
            from arrowstate.runtime.drivers.threads import ThreadSlots

            self._slots = ThreadSlots(job.graph, setting, storage, self.post)
        elif ready is not None and ready.setting == setting:
            self._slots = ready.take(self.post)
        else:
            from arrowstate.runtime.drivers.processes import ProcessSlots

            if ready is not None:
                ready.close()
            self._slots = ProcessSlots(job, setting, self.post)
        self._thread.start()
        _OPEN.add(self)

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
            # What comes while the worker is shut down is of a job that is over.
            with suppress(RuntimeError):
                self._worker.submit(run)

    def restart_slots(self) -> None:
        self._slots.restart()

    def now_ms(self) -> int:
        return now_ms()

    # What slots tell, and users ask.

    @property
    def is_here(self) -> bool:
        """Whether this is the process that runs the job, and no other that was forked from it."""
        return self._process.is_here

    def _check_process(self) -> None:
        self._process.check("a running job", "ask for it there")

    def post(self, event: Callable[[Coordinator], None]) -> None:
        """Have something done with the coordinator between two events; from any thread."""
        self._events.put(lambda: event(self.coordinator))

    def call(self, what: Callable[[Any], Any]) -> Any:
        """Call a function with the coordinator between two events, and return what it returns.

        Raises
        ------
        InvalidInputError
            In a process that was forked from the one of the job: the slots are not told what to do from there.
        """
        self._check_process()
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
        """Wait until a condition holds; in a process that was forked it is an error as for `call`."""
        self._check_process()
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        with self._changed:
            while not condition():
                left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self, wait_s: float | None = None) -> None:
        """End the slots, wait for the work that was begun, and end; for slots no longer than `wait_s`, if given."""
        _OPEN.discard(self)
        self._slots.close(wait_s)
        self._worker.shutdown()
        self._events.put(self._close)
        self._thread.join(wait_s)

    def _close(self) -> None:
        self._closed = True

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
            except BaseException as error:  # noqa: BLE001 (the job fails by it)
                self._broke(error)
            with self._changed:
                self._changed.notify_all()

    def _broke(self, error: BaseException) -> None:
        try:
            self.coordinator.broke(error)
        except BaseException:
            # It has taken note of the first error, and this loop answers whoever asks for it.
            _logger.exception("the coordinator of the job could not end it")


_OPEN: weakref.WeakSet[TimedDriver] = weakref.WeakSet()
_EXIT_S = 3.0
"""How long an interpreter that ends waits for a slot of a job that nobody has closed."""


def left_by(place: str, error: BaseException | None) -> JobFailedError | None:
    """Return why a job has failed that an exception leaves alone; None for one who asks for the end, as by Ctrl-C."""
    if not isinstance(error, Exception):
        return None
    failed = JobFailedError(f"{place} was left by {error_text(error)}")
    failed.__cause__ = error
    return failed


def _close_all() -> None:
    # What has ended the script; at a prompt it is whatever was printed last.
    error = None if hasattr(sys, "ps1") else left_by("the script of the job", getattr(sys, "last_value", None))
    for driver in list(_OPEN):
        # It is over before its worker is shut down, which then says how the job ended.
        driver.call(lambda coordinator: coordinator.cancel("the interpreter ended", error))
        driver.close(_EXIT_S)


before_executors_end(_close_all)
# A process that was forked has copies of the jobs, and their slots are not its own to end.
os.register_at_fork(after_in_child=_OPEN.clear)
