"""All of a job in one thread, in an order that a seed decides and with a clock of its own: for tests and simulation."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.errors import StorageError
from arrowstate.runtime.core.assembling import Entries
from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.core.coordinator import Coordinator
from arrowstate.runtime.core.elements import Element
from arrowstate.runtime.core.messages import FromSlot, ToSlot
from arrowstate.runtime.core.slot import Slot
from arrowstate.runtime.graph import Graph
from arrowstate.runtime.restart import Restart
from arrowstate.storage.base import Storage

__all__ = ["Inline", "SlotKilledError"]

T = TypeVar("T")

_STEP_MS = 1
"""How far the clock goes when there is nothing to do."""


class SlotKilledError(RuntimeError):
    """A slot was killed by `Inline.kill`."""


class _SlotSide:
    """What a slot asks for, in an inline run."""

    def __init__(self, run: Inline, number: int) -> None:
        self._run = run
        self._number = number

    def send(self, attempt: int, to: int, edge: int, element: Element) -> None:
        self._run.links[self._number, to].append(lambda slot: slot.take(attempt, edge, self._number, element))

    def grant(self, attempt: int, to: int, edge: int, size: int) -> None:
        self._run.links[self._number, to].append(lambda slot: slot.granted(attempt, edge, self._number, size))

    def tell(self, message: FromSlot) -> None:
        self._run.told.append(lambda: self._run.coordinator.hear(message))

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._run.slot_work[self._number].append((work, done))

    def now_ms(self) -> int:
        return self._run.clock_ms

    def now_us(self) -> int:
        return self._run.clock_ms * 1000

    def new_id(self) -> str:
        return self._run.new_id()


class Inline:
    """A job whose slots, links and coordinator take turns; what is next is drawn from a seed."""

    def __init__(
        self,
        graph: Graph,
        setting: Setting,
        storage: Storage,
        entries: Entries,
        options: CheckpointOptions,
        restart: Restart,
        *,
        new_id: Callable[[], str],
        seed: int = 0,
        clock_ms: int = 0,
    ) -> None:
        self.chance = random.Random(seed)  # noqa: S311 (an order that can be had again)
        self.clock_ms = clock_ms
        self.write_failures = 0.0
        "How likely it is that a snapshot cannot be written."
        self.new_id = new_id
        self._graph = graph
        self._setting = setting
        self._storage = storage
        numbers = range(setting.parallelism)
        # What is under way, in order from each to each.
        self.links: dict[tuple[int, int], deque[Callable[[Slot], None]]] = {
            (sender, to): deque() for sender in numbers for to in numbers
        }
        self.to_slots: list[deque[ToSlot]] = [deque() for _ in numbers]
        self.told: deque[Callable[[], None]] = deque()
        self.slot_work: list[deque[tuple[Callable[[], Any], Callable[..., None]]]] = [deque() for _ in numbers]
        self.work: deque[tuple[Callable[[], Any], Callable[..., None]]] = deque()
        self.slots = [Slot(graph, number, setting, storage, _SlotSide(self, number)) for number in numbers]
        self.coordinator = Coordinator(graph, entries, options, restart, self, self.chance)

    # What the coordinator asks for.

    def tell(self, slot: int, message: ToSlot) -> None:
        self.to_slots[slot].append(message)

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self.work.append((work, done))

    def restart_slots(self) -> None:
        for number in range(len(self.slots)):
            self.coordinator.slot_started(number)

    def now_ms(self) -> int:
        return self.clock_ms

    def kill(self, slot: int) -> None:
        """Let a slot die: nothing that it was about to do is done, and what is under way to it is lost."""
        self.slots[slot] = Slot(self._graph, slot, self._setting, self._storage, _SlotSide(self, slot))
        for (sender, to), link in self.links.items():
            if slot in (sender, to):
                link.clear()
        self.to_slots[slot].clear()
        self.slot_work[slot].clear()
        self.coordinator.slot_lost(slot, SlotKilledError(f"slot {slot} was killed"))

    def step(self) -> None:
        """Do one thing that can be done, drawn at random; let time pass if there is none."""
        doable: list[Callable[[], None]] = []
        doable += [
            lambda link=link, to=to: link.popleft()(self.slots[to])  # type: ignore[misc]
            for (_, to), link in self.links.items()
            if link
        ]
        for number, messages in enumerate(self.to_slots):
            if messages:
                doable.append(lambda n=number, messages=messages: self.slots[n].hear(messages.popleft()))  # type: ignore[misc]
        for works in (*self.slot_work, self.work):
            if works:
                doable.append(lambda works=works: self._work(works))  # type: ignore[misc]
        if self.told:
            doable.append(lambda: self.told.popleft()())
        doable += [slot.step for slot in self.slots]  # type: ignore[misc]
        what = self.chance.choice(doable)
        if what() is False and len(doable) == len(self.slots):
            self.clock_ms += _STEP_MS
        self.coordinator.tick()

    def _work(self, works: deque[tuple[Callable[[], Any], Callable[..., None]]]) -> None:
        work, done = works.popleft()
        try:
            if works is not self.work and self.chance.random() < self.write_failures:
                raise StorageError("a snapshot", "the storage is out of order, as the simulation has it")
            result, error = work(), None
        except Exception as raised:  # noqa: BLE001 (whoever asked decides)
            result, error = None, raised
        # A thread tells the mailbox; nothing of it is done in its own.
        self.told.append(lambda: done(result, error))

    def run(self, *, most_steps: int | None = None) -> None:
        """Go on until the job is over."""
        steps = 0
        while not self.coordinator.is_over or self.work:
            self.step()
            steps += 1
            if most_steps is not None and steps > most_steps:
                raise TimeoutError(f"the job is not over after {most_steps} steps: {self.coordinator.state}")
