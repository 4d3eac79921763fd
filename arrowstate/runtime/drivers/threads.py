"""Slots in threads of one process: for functions that leave the interpreter to others, and for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.core.elements import Element
from arrowstate.runtime.core.messages import FromSlot, ToSlot
from arrowstate.runtime.drivers.mailbox import Mailbox
from arrowstate.runtime.graph import Graph
from arrowstate.storage.base import Storage

__all__ = ["ThreadSlots"]


class ThreadSlots:
    """Slots in threads."""

    def __init__(
        self, graph: Graph, setting: Setting, storage: Storage, post: Callable[[Callable[[Any], None]], None]
    ) -> None:
        self._post = post
        self._mailboxes = [
            Mailbox(graph, number, setting, storage, _Links(self, number)) for number in range(setting.parallelism)
        ]
        for mailbox in self._mailboxes:
            mailbox.start()

    def tell(self, slot: int, message: ToSlot) -> None:
        self._mailboxes[slot].post(lambda own: own.hear(message))

    def restart(self) -> None:
        """Threads do not die."""

    def close(self) -> None:
        for mailbox in self._mailboxes:
            mailbox.close()
        for mailbox in self._mailboxes:
            mailbox.thread.join()

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

    def grant(self, attempt: int, to: int, edge: int, size: int) -> None:
        self._slots.bring(to, lambda slot: slot.granted(attempt, edge, self._number, size))

    def tell(self, message: FromSlot) -> None:
        self._slots.told(message)
