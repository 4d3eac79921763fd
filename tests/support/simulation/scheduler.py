"""Actors that take turns at each call of a storage, in an order that a seed decides.

Each actor is a thread, because what it runs is ordinary code that calls a storage from deep inside; but only the one
that holds the baton runs. Before each call of its storage an actor asks who is next and what goes wrong with that
call, and hands the baton over, or goes on at once if it is itself. There is no other source of chance: time,
ids and random numbers of an actor come from the seed too. So a seed repeats a run call by call.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from arrowstate.testing.faults import Call, Crashed, Fault

__all__ = ["Actor", "Scheduler", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """One call of one actor, in the order in which the calls were done."""

    number: int
    now_ms: int
    actor: str
    call: Call | None
    "None for the beginning of an actor."
    fault: Fault | None

    def __str__(self) -> str:
        what = "begins" if self.call is None else f"{self.call.verb} {self.call.path}"
        return (
            f"{self.number:5} {self.now_ms:9} {self.actor:14} {what}{f'  [{self.fault.value}]' if self.fault else ''}"
        )


def _taken() -> threading.Lock:
    """Return a lock for one thread to wait on until another releases it; cheaper than a semaphore."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Actor:
    """One process of the simulation: its script, and what it may know of time and chance.

    Made by `Scheduler.start`.
    """

    def __init__(self, scheduler: Scheduler, name: str, script: Callable[[Actor], None], *, skew_ms: int) -> None:
        self.name = name
        self.random = random.Random(f"{scheduler.seed}/{name}")
        self.faults = 0
        "How many of its calls went wrong so far."
        self.paused_until = 0
        "The step before which it gets no turn."
        self.pending: Call | None = None
        "The call it wants to make."
        self.done = False
        self.error: BaseException | None = None
        "What its script raised, a crash excepted."
        self.skew_ms = skew_ms
        "How far its clock is ahead of the scheduler's."
        self._scheduler = scheduler
        self._script = script
        self._fault: Fault | None = None
        self._go = _taken()
        self._began = False
        self.stopped = False
        "Whether the simulation is over for it."
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __repr__(self) -> str:
        return f"<Actor {self.name}>"

    def clock_ms(self) -> int:
        """Return the time in milliseconds since 1970, as the clock of this actor shows it."""
        return self._scheduler.now_ms + self.skew_ms

    def new_id(self) -> str:
        """Return a fresh name of 32 hexadecimal digits."""
        return f"{self.random.getrandbits(128):032x}"

    def choose(self, call: Call) -> Fault | None:
        """Hand the baton on before a call, and return what goes wrong with it; for `FaultyStorage`."""
        if not self.stopped:
            self.pending = call
            following = self._scheduler.next_turn()
            if following is not self:
                _resume(following, self._scheduler)
                self._go.acquire()
            self.pending = None
        if self.stopped:
            raise Crashed("the simulation is over")
        self.faults += self._fault is not None
        return self._fault

    def wait(self, steps: int) -> None:
        """Let the others go on for so many steps."""
        self.paused_until = len(self._scheduler.steps) + steps
        self.choose(Call(0, "waits", ""))

    def turn(self, fault: Fault | None) -> None:
        """Say what goes wrong with its call; for the scheduler."""
        self._fault = fault

    def resume(self) -> None:
        """Give it the baton."""
        if self._began:
            self._go.release()
        else:
            self._began = True
            self._thread.start()

    def stop(self) -> None:
        """End it where it is; for the scheduler, when no other one runs."""
        self.stopped = True
        if self._began:
            self._go.release()
            self._thread.join()
        self.done = True

    def _run(self) -> None:
        try:
            self._script(self)
        except Crashed:
            pass
        except BaseException as error:  # noqa: BLE001 - the scheduler reports it, whatever it is
            self.error = error
        self.done = True
        if not self.stopped:
            _resume(self._scheduler.next_turn(), self._scheduler)


def _resume(actor: Actor | None, scheduler: Scheduler) -> None:
    if actor is None:
        scheduler.give_back()
    else:
        actor.resume()


class Scheduler:
    """Decides who goes on, when, and with which fault.

    Parameters
    ----------
    seed
        Decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(f"{seed}/schedule")
        self.now_ms = 1_000_000
        self.steps: list[Step] = []
        self.actors: list[Actor] = []
        self._before: Callable[[], tuple[Actor, Fault | None] | None] = lambda: None
        self._after: Callable[[Actor, Fault | None], None] = lambda _, __: None
        self._turn: tuple[Actor, Fault | None] | None = None
        self._error: BaseException | None = None
        self._back = _taken()

    def start(self, name: str, script: Callable[[Actor], None], *, skew_ms: int = 0) -> Actor:
        """Add an actor; it begins at its first turn. Names must differ."""
        actor = Actor(self, name, script, skew_ms=skew_ms)
        self.actors.append(actor)
        return actor

    @property
    def running(self) -> list[Actor]:
        """The actors whose scripts have not ended."""
        return [actor for actor in self.actors if not actor.done]

    def pick(self) -> Actor:
        """Return one of those that are running and not paused, or the one whose pause ends first."""
        number = len(self.steps)
        awake = [actor for actor in self.running if actor.paused_until <= number]
        return self.random.choice(awake) if awake else min(self.running, key=lambda actor: actor.paused_until)

    def run(
        self,
        before: Callable[[], tuple[Actor, Fault | None] | None],
        after: Callable[[Actor, Fault | None], None],
    ) -> None:
        """Let actors take turns.

        Parameters
        ----------
        before
            Called before each turn; returns whose it is and what goes wrong with its call, None if there is to be
            no other one.
        after
            Called after each turn, when the actor wants to make its next call or has ended.
        """
        self._before, self._after, self._turn = before, after, None
        first = self.next_turn()
        if first is not None:
            first.resume()
            self._back.acquire()
        if self._error is not None:
            raise self._error

    def next_turn(self) -> Actor | None:
        """End a turn and begin the next; return whose it is. Called by whoever has the baton."""
        try:
            if self._turn is not None:
                self.now_ms += self.random.randrange(40)
                self._after(*self._turn)
            self._turn = self._before()
        except BaseException as error:  # noqa: BLE001 - of the one who watches; the actor must not handle it
            self._error, self._turn = error, None
        if self._turn is None:
            return None
        actor, fault = self._turn
        self.steps.append(Step(len(self.steps) + 1, self.now_ms, actor.name, actor.pending, fault))
        actor.turn(fault)
        return actor

    def give_back(self) -> None:
        """Give the baton back to whoever called `run`."""
        self._back.release()

    def stop(self) -> None:
        """End all actors where they are."""
        for actor in self.running:
            actor.stop()
