"""Slots in threads of one process: for functions that leave the interpreter to others, and for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.core.elements import Element
from arrowstate.runtime.core.messages import FromSlot, ToSlot
from arrowstate.runtime.drivers.mailbox import Mailbox
from arrowstate.runtime.graph import Graph
from arrowstate.storage.base import Storage


class ThreadSlots:
    """Slots in threads."""

    def __init__(
        self, graph: Graph, setting: Setting, storage: Storage, post: Callable[[Callable[[Any], None]], None]
    ) -> None:
        self._post = post
        self._made = partial(Mailbox, graph, setting=setting, storage=storage)
        self._ended: list[int] = []
        self._mailboxes = [self._new(number) for number in range(setting.parallelism)]
        for mailbox in self._mailboxes:
            mailbox.start()

    def _new(self, number: int) -> Mailbox:
        def ended_by(error: BaseException) -> None:
            def lost(coordinator: Any) -> None:
                self._ended.append(number)
                coordinator.slot_lost(number, error)

            self._post(lost)

        return self._made(number=number, links=_Links(self, number), ended_by=ended_by)

    def tell(self, slot: int, message: ToSlot) -> None:
        self._mailboxes[slot].post(lambda own: own.hear(message))

    def restart(self) -> None:
        while self._ended:
            number = self._ended[0]
            mailbox = self._new(number)
            mailbox.start()
            self._mailboxes[number] = mailbox
            # Where the system has no thread for it, it is still to be brought back.
            self._ended.pop(0)
            self._post(lambda coordinator, number=number: coordinator.slot_started(number))  # type: ignore[misc]

    def close(self, wait_s: float | None) -> None:
        for mailbox in self._mailboxes:
            mailbox.close()
        for mailbox in self._mailboxes:
            mailbox.thread.join(wait_s)

    def told(self, message: FromSlot) -> None:
        """Pass a message on to the coordinator."""
        self._post(lambda coordinator: coordinator.hear(message))

    def bring(self, to: int, mail: Callable[[Any], None]) -> None:
        """Bring something to a slot."""
        self._mailboxes[to].post(mail)


class _Links:
    def __init__(self, slots: ThreadSlots, number: int) -> None:
        self._slots = slots
        self._number = number

    def send(self, attempt: int, to: int, edge: int, element: Element) -> None:
        self._slots.bring(to, lambda slot: slot.take(attempt, edge, self._number, element))

    def grant(self, attempt: int, to: int, edge: int, size: int, window: int) -> None:
        self._slots.bring(to, lambda slot: slot.granted(attempt, edge, self._number, size, window))

    def tell(self, message: FromSlot) -> None:
        self._slots.told(message)
