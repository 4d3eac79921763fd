"""The mailbox of a slot: one thread has the slot step while there is something to do, and else waits for what comes."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NoReturn, Protocol, TypeVar

from arrowstate.clock import new_id, now_ms
from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.core.elements import Element
from arrowstate.runtime.core.messages import FromSlot
from arrowstate.runtime.core.slot import Slot
from arrowstate.runtime.core.snapshots import Ended
from arrowstate.runtime.drivers.notes import BUSY_SINCE, JOB_BEAT, TASK, Notes, monotonic_ms
from arrowstate.runtime.graph import Graph
from arrowstate.storage.base import Storage

T = TypeVar("T")
_ALONE_S = 0.1
"""How often a slot looks whether the job's process is there again."""
_logger = logging.getLogger("arrowstate.runtime")


class Links(Protocol):
    """How a slot reaches others."""

    def send(self, attempt: int, to: int, edge: int, element: Element) -> None:
        """Bring an element to another slot; never waits for it to be taken up."""

    def grant(self, attempt: int, to: int, edge: int, size: int, window: int) -> None:
        """Tell another slot that rows were taken up, and what it may have in flight."""

    def tell(self, message: FromSlot) -> None:
        """Tell the coordinator."""


class Mailbox:
    """Runs a slot."""

    def __init__(
        self,
        graph: Graph,
        number: int,
        setting: Setting,
        storage: Storage,
        links: Links,
        notes: memoryview[int] | None = None,
        ended_by: Callable[[BaseException], None] | None = None,
        lease_ms: int = 0,
    ) -> None:
        self._links = links
        self._ended_by = ended_by
        self._lease_ms = lease_ms
        self._mail: queue.SimpleQueue[Callable[[Slot], None]] = queue.SimpleQueue()
        self._writer = ThreadPoolExecutor(2, f"arrowstate-snapshot-{number}")
        self._number = number
        self._closed = False
        self.slot = Slot(graph, number, setting, storage, self)
        self.notes: Notes = [0, 0, 0, 0]
        if notes is not None:
            self.notes, self.slot.steps_in = notes, notes[TASK : TASK + 1]
        self.thread = threading.Thread(target=self._run_in_thread, name=f"arrowstate-slot-{number}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def post(self, mail: Callable[[Slot], None]) -> None:
        """Have something done with the slot between two steps; from any thread."""
        self._mail.put(mail)

    def close(self) -> None:
        """End after the step that runs now, and after what has come before: of the last checkpoint a slot hears."""
        self._mail.put(self._end)

    def _end(self, _: Slot) -> None:
        self._closed = True

    # What the slot asks for.

    def send(self, attempt: int, to: int, edge: int, element: Element) -> None:
        self._links.send(attempt, to, edge, element)

    def grant(self, attempt: int, to: int, edge: int, size: int, window: int) -> None:
        self._links.grant(attempt, to, edge, size, window)

    def tell(self, message: FromSlot) -> None:
        self._links.tell(message)

    def submit(self, work: Callable[[], T], done: Ended[T], tell: Ended[T]) -> None:
        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 (the slot and the coordinator decide)
                error = raised
            # The answer to what is told comes into the mailbox after this.
            self._mail.put(lambda _: done(result, error))
            try:
                if not self._closed:
                    tell(result, error)
            except BaseException as raised:  # noqa: BLE001 (the slot fails by it)
                self._mail.put(partial(raise_it, raised))

        if not self._closed:
            self._writer.submit(run)

    def now_ms(self) -> int:
        return now_ms()

    def now_us(self) -> int:
        return time.perf_counter_ns() // 1000

    def new_id(self) -> str:
        return new_id()

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except BaseException as error:
            # The slot tells of what its job raises: this is of the mailbox itself.
            _logger.exception("the thread of slot %d ended", self._number)
            if self._ended_by is not None:
                self._ended_by(error)

    def run(self) -> None:
        """Have the slot step until it is closed, in this thread."""
        try:
            while not self._closed:
                self._take_mail(wait=False)
                if self._is_left_alone():
                    time.sleep(_ALONE_S)
                    continue
                self.notes[BUSY_SINCE] = monotonic_ms()
                worked = self.slot.step()
                self.notes[BUSY_SINCE] = 0
                if not worked:
                    self._take_mail(wait=True)
        finally:
            self.slot.close()
            self._writer.shutdown(wait=False, cancel_futures=True)

    def _is_left_alone(self) -> bool:
        """Whether the process of the job gave no sign of life for as long as its lease lasts, as one that was stopped.

        Then another may run the job, and what this slot did would be void: it waits until it hears of its own.
        """
        said_ms = self.notes[JOB_BEAT]
        return said_ms != 0 and monotonic_ms() - said_ms > self._lease_ms

    def finish(self) -> None:
        """Wait until what was being written when it was closed is there."""
        self._writer.shutdown()

    def _take_mail(self, *, wait: bool) -> None:
        """Do all that has come; wait for the first of it, but not beyond the next look at timers and readers."""
        timeout = self.slot.until_next_look_ms(now_ms()) / 1000
        while not self._closed:
            try:
                mail = self._mail.get(timeout=timeout) if wait else self._mail.get_nowait()
            except queue.Empty:
                return
            wait = False
            self.slot.supervise(partial(mail, self.slot))


def raise_it(error: BaseException, _: Slot) -> NoReturn:
    """Raise an error of another thread, as mail."""
    raise error
