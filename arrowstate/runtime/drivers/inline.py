"""All of a job in one thread, in an order that a seed decides and with a clock of its own: for tests and simulation."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.errors import StorageError
from arrowstate.runtime.core.assembling import Entries
from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.core.coordinator import Coordinator
from arrowstate.runtime.core.elements import Element
from arrowstate.runtime.core.messages import Failed, FromSlot, ToSlot
from arrowstate.runtime.core.slot import Slot
from arrowstate.runtime.core.snapshots import Ended
from arrowstate.runtime.graph import Graph
from arrowstate.runtime.restart import Restart
from arrowstate.storage.base import Storage

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
        self._bring(to, lambda slot: slot.take(attempt, edge, self._number, element))

    def grant(self, attempt: int, to: int, edge: int, size: int, window: int) -> None:
        self._bring(to, lambda slot: slot.granted(attempt, edge, self._number, size, window))

    def _bring(self, to: int, what: Callable[[Slot], None]) -> None:
        if to not in self._run.dead:
            self._run.links[self._number, to].append(what)

    def tell(self, message: FromSlot) -> None:
        if isinstance(message, Failed) and isinstance(message.error, KeyboardInterrupt):
            self._run.interrupt = message.error
        if not self._run.loses(message):
            self._run.told[self._number].append(lambda: self._run.coordinator.hear(message))

    def submit(self, work: Callable[[], T], done: Ended[T], tell: Ended[T]) -> None:
        self._run.slot_work[self._number].append((work, done, tell))

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
        self.entries = entries
        self._graph = graph
        self._setting = setting
        self._storage = storage
        numbers = range(setting.parallelism)
        # What is under way, in order from each to each.
        self.links: dict[tuple[int, int], deque[Callable[[Slot], None]]] = {
            (sender, to): deque() for sender in numbers for to in numbers if sender != to
        }
        self.to_slots: list[deque[ToSlot]] = [deque() for _ in numbers]
        self.told: list[deque[Callable[[], None]]] = [deque() for _ in numbers]
        "What the coordinator is told by each slot, and of its end."
        self.slot_work: list[deque[tuple[Callable[[], Any], Callable[..., None], Callable[..., None]]]] = [
            deque() for _ in numbers
        ]
        self.work: deque[tuple[Callable[[], Any], Callable[..., None]]] = deque()
        # A thread tells the mailbox, or the coordinator, what came of its work: nothing of it is done in its own.
        self.slot_results: list[deque[Callable[[], None]]] = [deque() for _ in numbers]
        self.results: deque[Callable[[], None]] = deque()
        self.interrupt: KeyboardInterrupt | None = None
        "What ended a step, and is raised to whoever has the job go on in this thread."
        self.dead: set[int] = set()
        "Slots that were killed and are not started again."
        self._lost: list[int] = []
        self.slots = [self._new_slot(number) for number in numbers]
        self.coordinator = Coordinator(graph, entries, options, restart, self, self.chance)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing left that the coordinator has to hear of."""
        return not (self.work or self.results or any(self.told))

    # What the coordinator asks for.

    def tell(self, slot: int, message: ToSlot) -> None:
        if slot not in self.dead and not self.loses(message):
            self.to_slots[slot].append(message)

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self.work.append((work, done))

    def restart_slots(self) -> None:
        lost, self._lost = self._lost, []
        for number in lost:
            self.dead.discard(number)
            self.slots[number] = self._new_slot(number)
            self.told[number].append(partial(self.coordinator.slot_started, number))

    def now_ms(self) -> int:
        return self.clock_ms

    def kill(self, slot: int) -> None:
        """Let a slot die: nothing that it was about to do is done, and what is under way to it is lost."""
        if slot in self.dead:
            return
        self.dead.add(slot)
        for (_, to), link in self.links.items():
            if slot == to:
                link.clear()
        for queue in (self.to_slots[slot], self.slot_work[slot], self.slot_results[slot]):
            queue.clear()
        # What it has said already is heard before its end is.
        self.told[slot].append(partial(self._ended, slot))

    def _ended(self, slot: int) -> None:
        self._lost.append(slot)
        self.coordinator.slot_lost(slot, SlotKilledError(f"slot {slot} was killed"))

    def _new_slot(self, number: int) -> Slot:
        return Slot(self._graph, number, self._setting, self._storage, _SlotSide(self, number))

    # What a simulation decides.

    def loses(self, message: ToSlot | FromSlot) -> bool:  # noqa: ARG002
        """Whether a message never arrives."""
        return False

    def choose(self, doable: list[tuple[str, Callable[[], Any]]]) -> Callable[[], Any]:
        """Return what is done next, of what could be: each with the name of who does it."""
        return self.chance.choice(doable)[1]

    def step(self) -> None:
        """Do one thing that can be done, drawn at random; let time pass if there is none."""
        doable = self._doable()
        slots = [(f"slot {number}", slot.step) for number, slot in enumerate(self.slots) if number not in self.dead]
        if doable:
            self.choose([*doable, *slots])()
        else:
            while slots:
                step = self.choose(slots)
                if step():
                    break
                slots = [item for item in slots if item[1] != step]
            else:
                self.clock_ms += _STEP_MS
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            raise interrupt
        self.coordinator.tick()

    def _doable(self) -> list[tuple[str, Callable[[], Any]]]:
        """What is to be done besides the steps of slots."""
        doable: list[tuple[str, Callable[[], Any]]] = []
        for (sender, to), link in self.links.items():
            if link:
                doable.append((f"link {sender} {to}", partial(self._bring, link, to)))
        for number, messages in enumerate(self.to_slots):
            # What came of work is in the mailbox before the answer to what was told of it.
            if messages and not self.slot_results[number]:
                doable.append((f"to {number}", partial(self._hear, messages, number)))
        for number, works in enumerate(self.slot_work):
            if works:
                doable.append((f"writer {number}", partial(self._write, works, number)))
        if self.work:
            doable.append(("work", self._work))
        for name, queues in (("result", self.slot_results), ("told", self.told), ("results", [self.results])):
            for number, queue in enumerate(queues):
                if queue and name == "result":
                    doable.append((f"{name} {number}", partial(self._result, queue, number)))
                elif queue:
                    doable.append((f"{name} {number}", partial(_next_of, queue)))
        return doable

    def _bring(self, link: deque[Callable[[Slot], None]], to: int) -> None:
        link.popleft()(self.slots[to])

    def _result(self, results: deque[Callable[[], None]], number: int) -> None:
        self.slots[number].supervise(results.popleft())

    def _hear(self, messages: deque[ToSlot], number: int) -> None:
        self.slots[number].hear(messages.popleft())

    def _write(
        self, works: deque[tuple[Callable[[], Any], Callable[..., None], Callable[..., None]]], number: int
    ) -> None:
        work, done, tell = works.popleft()
        result, error = self._ended_work(work, may_fail=True)
        self.slot_results[number].append(partial(done, result, error))
        tell(result, error)

    def _work(self) -> None:
        work, done = self.work.popleft()
        self.results.append(partial(done, *self._ended_work(work, may_fail=False)))

    def _ended_work(self, work: Callable[[], T], *, may_fail: bool) -> tuple[T | None, BaseException | None]:
        """Return what some work returned, or what it raised."""
        try:
            if may_fail and self.chance.random() < self.write_failures:
                raise StorageError("a snapshot", "the storage is out of order, as the simulation has it")
            return work(), None
        except BaseException as raised:  # noqa: BLE001 (whoever asked decides)
            if isinstance(raised, KeyboardInterrupt):
                self.interrupt = raised
            return None, raised

    def run(self, *, most_steps: int | None = None) -> None:
        """Go on until the job is over."""
        steps = 0
        while not self.coordinator.is_over or self.work:
            self.step()
            steps += 1
            if most_steps is not None and steps > most_steps:
                raise TimeoutError(f"the job is not over after {most_steps} steps: {self.coordinator.state}")


def _next_of(queue: deque[Callable[[], None]]) -> None:
    queue.popleft()()


class InlineDriver:
    """Has a job go on in the thread that asks it to."""

    is_here = True

    def __init__(self, inline: Inline) -> None:
        self.inline = inline
        self.coordinator = inline.coordinator

    def call(self, what: Callable[[Any], Any]) -> Any:
        return what(self.coordinator)

    def wait(self, condition: Callable[[], bool], timeout_ms: int | None) -> bool:
        until = None if timeout_ms is None else self.inline.clock_ms + timeout_ms
        while not condition():
            if until is not None and self.inline.clock_ms >= until:
                return False
            if self.coordinator.is_over and self.inline.is_idle:
                # Nothing more will happen.
                return condition()
            self.inline.step()
        return True

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.inline.step()

    def close(self) -> None:
        while self.inline.work:
            self.inline.step()
        for slot, heard, told in zip(self.inline.slots, self.inline.to_slots, self.inline.told, strict=True):
            # Of the last checkpoint a slot hears.
            while heard:
                slot.hear(heard.popleft())
            slot.close()
            while told:
                _next_of(told)
