"""A task in one subtask: takes what is at the head of its channels, one step at a time.

A step is what one call of a function does, and nothing comes between: a snapshot is taken between two steps. Rows that
came one after another in a channel are processed at once, as many as take a bounded time, which changes nothing but the
time it takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from arrowstate.runtime.core.barriers import BarrierHandler, Captured, Decision, GiveUp, Overtake, Snapshot
from arrowstate.runtime.core.bodies import Body, FunctionBody
from arrowstate.runtime.core.chain import Chain
from arrowstate.runtime.core.elements import (
    Barrier,
    CancelBarrier,
    Element,
    EndOfData,
    Rows,
    Status,
    Watermark,
)
from arrowstate.runtime.core.exchange import FRAME_ROWS
from arrowstate.runtime.core.in_flight import Capture, InFlightChannel, InFlightStates
from arrowstate.runtime.core.mapping import Checkpointed
from arrowstate.runtime.core.messages import TakenFigures
from arrowstate.runtime.core.pacing import ChannelWindow, StepPace
from arrowstate.runtime.core.reading import SourceSplits
from arrowstate.runtime.core.valve import MAX_WATERMARK, WatermarkValve

STEP_ROWS = FRAME_ROWS
"""A step takes at most so many rows."""

ENOUGH_ROWS = STEP_ROWS * 3 // 4
"""So many rows do not wait for more."""

_WAITS = 2
"""How many steps of others fewer rows wait for."""

Channel = tuple[int, int]
"""The number of an edge, and the subtask that sends."""

_WAIT_FOR_ROOM = (Rows, Watermark, EndOfData, Status)
"""Nothing but rows, and time that may give out rows, waits for room."""


class TaskHooks:
    """What a task tells its slot."""

    def __init__(
        self,
        consumed: Callable[[Channel, int, int], None],
        snapshot: Callable[[Task, int, int, bool], None],
        captured: Callable[[Task, int, str | None], None],
        ended: Callable[[Task], None],
        now_ms: Callable[[], int],
        now_us: Callable[[], int],
    ) -> None:
        self.consumed = consumed
        self.snapshot = snapshot
        self.captured = captured
        self.ended = ended
        self.now_ms = now_ms
        self.now_us = now_us


class Task(ABC):
    """What tasks of all kinds have."""

    def __init__(self, uid: str, subtask: int, chain: Chain, hooks: TaskHooks) -> None:
        self.uid = uid
        self.subtask = subtask
        self.chain = chain
        self.hooks = hooks
        self.has_ended = False
        self.coming: dict[int, Barrier] = {}
        "Barriers of checkpoints to come, as they were given."
        self.rows_in = 0
        self.busy_us = 0
        "In steps, since the attempt began."
        self.blocked_us = 0
        "With something to do and no room downstream for what it gives out, as far as it was looked at."
        self.idle_us = 0
        "With nothing to do, as far as it was looked at."
        self._pace = StepPace()

    @property
    def checkpointed(self) -> list[Checkpointed]:
        """The functions that are told of checkpoints."""
        return list(self.chain.maps.values())

    @property
    def bytes_in(self) -> int:
        """The size of the rows that it took."""
        return 0

    @property
    def behind_rows(self) -> int | None:
        """Rows that are there to be read and were not read yet, where its source tells."""
        return None

    @property
    def late_rows(self) -> int:
        """Rows that were left out because they came too late for their windows, since the attempt began."""
        return 0

    @property
    def is_blocked(self) -> bool:
        """Whether it has something to do and no room downstream for what it gives out."""
        return False

    @property
    def watermark(self) -> int | None:
        """The event time that it has given out."""
        return None

    def taken(self) -> tuple[TakenFigures, ...]:
        """Return how its input channels are."""
        return ()

    @abstractmethod
    def step(self) -> bool:
        """Do one step, and return whether there was anything to do."""

    def may_wait(self) -> bool:
        """Whether others may step before it, for more rows cost it less at once; not often in a row."""
        return False

    def _next_rows(self, most: int) -> int:
        """Return how many rows the next step takes."""
        return self._pace.rows(most, self.chain.step_bytes)

    def _step_begins(self) -> tuple[int, int]:
        """Return what a step begins with: the time, and the bytes that were given out before it."""
        return self.hooks.now_us(), self.chain.bytes_given

    def _step_ends(self, began: tuple[int, int], rows: int) -> None:
        """Take note of how long a step took, and of what it gave out."""
        self._pace.took(rows, self.hooks.now_us() - began[0], self.chain.bytes_given - began[1])

    def take_snapshot(self, checkpoint_id: int, alignment_us: int = 0) -> None:
        """Let the barrier go on, then have the snapshot taken."""
        barrier = self.coming.get(checkpoint_id, Barrier(checkpoint_id))
        self.coming = {id: other for id, other in self.coming.items() if id > checkpoint_id}
        self.chain.event(barrier)
        self.hooks.snapshot(self, checkpoint_id, alignment_us, barrier.is_full)

    def end(self) -> None:
        """Give on that no rows follow."""
        self.has_ended = True
        self.chain.event(EndOfData())
        self.hooks.ended(self)


@dataclass(frozen=True, slots=True)
class Flight:
    """What a task knows of rows in flight."""

    states: InFlightStates | None = None
    """How its checkpoints keep them; None if no barrier overtakes."""
    origins: Mapping[int, str] = field(default_factory=dict)
    """By the number of an edge the task that sends."""
    recovered: Sequence[InFlightChannel] = ()
    """Those of the checkpoint that is restored."""
    most_bytes: int = 0


class OperatorTask(Task):
    """A task with input channels."""

    def __init__(
        self,
        uid: str,
        subtask: int,
        chain: Chain,
        hooks: TaskHooks,
        body: Body,
        channels: Sequence[Channel],
        ports: Mapping[int, int | str],
        barriers: BarrierHandler,
        watermark: int | None,
        flight: Flight | None = None,
    ) -> None:
        super().__init__(uid, subtask, chain, hooks)
        self.body = body
        self._channels = {channel: number for number, channel in enumerate(channels)}
        self._queues: list[deque[Element]] = [deque() for _ in channels]
        self._ports = [ports[edge] for edge, _ in channels]
        self._names = list(channels)
        # Those of the edge, itself first: their rows have the same columns, and no order between them.
        self._beside = [
            sorted(
                (other for other, (edge, _) in enumerate(channels) if edge == channels[number][0]),
                key=lambda other, number=number: (other != number, other),  # type: ignore[misc]
            )
            for number in range(len(channels))
        ]
        self._waited = 0
        self._window = ChannelWindow(len(channels))
        self._barriers = barriers
        # A table beside the rows has no time of its own: it holds nothing back.
        self._timed = [not isinstance(port, str) for port in self._ports]
        self._valve = WatermarkValve(0, watermark=watermark)
        self._began_at_the_end = watermark == MAX_WATERMARK
        self.flight = flight or Flight()
        self.capture: Capture | None = None
        "What of the checkpoint whose barriers have overtaken is captured, until they have come."
        self._recovered = {f"recovered {number}": channel for number, channel in enumerate(self.flight.recovered)}
        "What was in flight at the checkpoint that was restored; it is processed before anything else."
        self._time_begins()
        self._rows_taken = [0] * len(channels)
        self._bytes_taken = [0] * len(channels)
        self._open = set(range(len(channels)))
        self._next = 0
        self._was_idle = False
        self._first_barrier_us: int | None = None

    @property
    def checkpointed(self) -> list[Checkpointed]:
        own = [self.body] if isinstance(self.body, FunctionBody) else []
        return [*own, *super().checkpointed]

    @property
    def bytes_in(self) -> int:
        return sum(self._bytes_taken)

    @property
    def is_blocked(self) -> bool:
        if self.chain.has_room:
            return False
        return bool(self._recovered) or any(
            queue and isinstance(queue[0], _WAIT_FOR_ROOM) and not self._barriers.is_blocked(number)
            for number, queue in enumerate(self._queues)
        )

    @property
    def late_rows(self) -> int:
        return self.body.late_rows

    @property
    def watermark(self) -> int | None:
        return self._valve.watermark

    def deliver(self, channel: Channel, element: Element) -> None:
        """Put an element into a channel."""
        number, capture = self._channels[channel], self.capture
        if capture is not None and number in capture.waits_for:
            if isinstance(element, CancelBarrier) and element.checkpoint_id == capture.checkpoint_id:
                self._decided(self._barriers.cancelled(element.checkpoint_id))
                return
            if isinstance(element, Barrier) and element.checkpoint_id == capture.checkpoint_id:
                # What was before it is captured, so it waits for nothing.
                capture.waits_for.discard(number)
                self._arrived(number, element)
                return
            capture.add(number, element)
            self._check_size(capture)
        self._queues[number].append(element)
        if isinstance(element, Barrier):
            self.coming[element.checkpoint_id] = element
            self._arrived(number, element)

    def aborted(self, checkpoint_id: int) -> None:
        """Take note that the coordinator gave a checkpoint up."""
        self._decided(self._barriers.aborted(checkpoint_id))

    def begin(self) -> None:
        """Say how far event time is, as it was said before the checkpoint that was restored."""
        if self._valve.watermark is not None:
            self.chain.event(Watermark(self._valve.watermark))
        self._tell_status()

    def tick(self, now_ms: int) -> None:
        """Let processing time pass, if a timer is due by it and there is room for what it gives out."""
        self._decided(self._barriers.tick(now_ms))
        due = None if self.has_ended else self.body.next_timer_ms()
        if due is not None and due <= now_ms and self.chain.has_room:
            self.body.tick(now_ms)

    def step(self) -> bool:
        if self._recovered:
            return self._step_recovered()
        room: bool | None = None
        count = len(self._queues)
        for offset in range(count):
            number = (self._next + offset) % count
            queue = self._queues[number]
            if not queue or self._barriers.is_blocked(number):
                continue
            if isinstance(queue[0], _WAIT_FOR_ROOM):
                room = self.chain.has_room if room is None else room
                if not room:
                    continue
            self._next = (number + 1) % count
            self._take(number, queue)
            return True
        return False

    def _take(self, number: int, queue: deque[Element]) -> None:
        if isinstance(queue[0], Rows):
            self._rows(number)
            return
        element = queue.popleft()
        match element:
            case Watermark(timestamp):
                if self._timed[number]:
                    self._grown(self._valve.advance(number, timestamp))
                    self._tell_status()
            case Status(is_idle):
                if self._timed[number]:
                    self._grown(self._valve.set_idle(number, is_idle))
                    self._tell_status()
            case Barrier(checkpoint_id):
                if self._first_barrier_us is None:
                    self._first_barrier_us = self.hooks.now_us()
                self._decided(self._barriers.barrier(number, checkpoint_id, self.hooks.now_ms()))
            case CancelBarrier(checkpoint_id):
                self._decided(self._barriers.cancelled(checkpoint_id))
            case EndOfData():
                # It goes on giving barriers, as its sender lives to the end of the job.
                self._open.discard(number)
                if not self._open:
                    if self._began_at_the_end:
                        # Timers that further rows have set are due, as those of the first run were.
                        self.body.watermark(MAX_WATERMARK)
                    self.end()

    def may_wait(self) -> bool:
        if self._waited == _WAITS or self._recovered:
            return False
        rows = 0
        for number, queue in enumerate(self._queues):
            if queue and self._barriers.is_blocked(number):
                return False
            for element in queue:
                if not isinstance(element, Rows):
                    return False
                rows += element.batch.num_rows
        if not 0 < rows < ENOUGH_ROWS:
            return False
        self._waited += 1
        return True

    def _rows(self, number: int) -> None:
        """Process the rows at the head of a channel, with those at the head of others of the edge."""
        self._waited = 0
        most = self._next_rows(STEP_ROWS)
        batches: list[pa.RecordBatch] = []
        sizes: dict[int, int] = {}
        for other in self._beside[number]:
            if self._barriers.is_blocked(other):
                continue
            for part in _taken(self._queues[other], most):
                batches.append(part.batch)
                most -= part.batch.num_rows
                self._rows_taken[other] += part.batch.num_rows
                sizes[other] = sizes.get(other, 0) + part.bytes
        self._process(self._ports[number], batches)
        for taken, size in sizes.items():
            self._bytes_taken[taken] += size
        self._window.took(sum(sizes.values()), self.hooks.now_us(), self.idle_us)
        for taken, size in sizes.items():
            self.hooks.consumed(self._names[taken], size, self._window.bytes)

    def _process(self, port: int | str, batches: Sequence[pa.RecordBatch]) -> None:
        rows = pa.Table.from_batches(batches)
        self.rows_in += rows.num_rows
        began = self._step_begins()
        self.body.rows(port, rows)
        self._step_ends(began, rows.num_rows)

    def taken(self) -> tuple[TakenFigures, ...]:
        waiting = [[item for item in queue if isinstance(item, Rows)] for queue in self._queues]
        rows = [sum(item.batch.num_rows for item in items) for items in waiting]
        found = []
        for edge in dict.fromkeys(edge for edge, _ in self._names):
            numbers = [number for number, (of, _) in enumerate(self._names) if of == edge]
            found.append(
                TakenFigures(
                    edge,
                    tuple(self._rows_taken[number] for number in numbers),
                    tuple(rows[number] for number in numbers),
                    tuple(sum(item.bytes for item in waiting[number]) for number in numbers),
                    tuple(self._valve.shown(number) if number in self._valve else None for number in numbers),
                    tuple(self._barriers.is_blocked(number) for number in numbers),
                )
            )
        return tuple(found)

    def _grown(self, watermark: int | None) -> None:
        if watermark is not None:
            self.body.watermark(watermark)
            self.chain.event(Watermark(watermark))

    def _tell_status(self) -> None:
        if self._valve.is_idle != self._was_idle:
            self._was_idle = self._valve.is_idle
            self.chain.event(Status(self._was_idle))

    def _decided(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Captured):
                self._captured(None)
                continue
            began, self._first_barrier_us = self._first_barrier_us, None
            waited = 0 if began is None else self.hooks.now_us() - began
            match decision:
                case Snapshot(checkpoint_id):
                    self.take_snapshot(checkpoint_id, waited)
                case Overtake(checkpoint_id, channels):
                    self.capture = self._begun_capture(checkpoint_id, channels)
                    self.take_snapshot(checkpoint_id, waited)
                    self._check_size(self.capture)
                case GiveUp(checkpoint_id):
                    if self.capture is not None:
                        self._captured("it was given up before all of its barriers had come")
                    self.chain.event(CancelBarrier(checkpoint_id))

    # What barriers overtake.

    def _arrived(self, number: int, barrier: Barrier) -> None:
        now_ms = self.hooks.now_ms()
        self._decided(self._barriers.arrived(number, barrier.checkpoint_id, barrier.overtakes_at_ms, now_ms))

    def _begun_capture(self, checkpoint_id: int, channels: frozenset[int]) -> Capture:
        """Begin to capture what stands in channels before a barrier, and take the barriers out that have come."""
        made = Capture(checkpoint_id, self._rest(), {})
        for number, (edge, sender) in enumerate(self._names):
            if not self._timed[number]:
                continue
            known = (self._valve.shown(number), self._valve.idle(number)) if number in self._valve else (None, False)
            origin = self.flight.origins[edge]
            port = int(self._ports[number])
            made.channels[number] = InFlightChannel(origin, port, sender, *known)
            if number not in channels:
                continue
            made.waits_for.add(number)
            queue = self._queues[number]
            for place, element in enumerate(queue):
                if isinstance(element, Barrier) and element.checkpoint_id == checkpoint_id:
                    made.waits_for.discard(number)
                    del queue[place]
                    break
                made.add(number, element)
        return made

    def _check_size(self, capture: Capture) -> None:
        if capture is self.capture and capture.bytes > self.flight.most_bytes:
            self._captured(
                f"{capture.bytes} bytes of rows are in flight to it, more than max_in_flight_bytes, "
                f"{self.flight.most_bytes}"
            )

    def _captured(self, reason: str | None) -> None:
        """End the capture: it is complete, or there is a reason why there is none."""
        capture, self.capture = self.capture, None
        if capture is not None:
            self.hooks.captured(self, capture.checkpoint_id, reason)

    # What was in flight at the checkpoint that was restored.

    def _time_begins(self) -> None:
        """Have event time wait for the channels of the checkpoint, or once they are done for those of now."""
        if self._recovered:
            self._valve.begin({name: (it.watermark, it.is_idle) for name, it in self._recovered.items() if it.is_timed})
        else:
            # After a restore every channel is where the task was: one that is ahead waits for the others.
            self._valve.begin({number: (None, False) for number, timed in enumerate(self._timed) if timed})

    def _step_recovered(self) -> bool:
        if not self.chain.has_room:
            return False
        self._process_recovered(*next(iter(self._unprocessed())))
        if not self._unprocessed():
            self._recovered.clear()
            self._time_begins()
            self._tell_status()
        return True

    def _unprocessed(self) -> list[tuple[str, InFlightChannel]]:
        return [(name, channel) for name, channel in self._recovered.items() if channel.elements]

    def _process_recovered(self, name: str, channel: InFlightChannel) -> None:
        if isinstance(channel.elements[0], Rows):
            parts = _taken(channel.elements, self._next_rows(STEP_ROWS))
            self._process(channel.port, [part.batch for part in parts])
            return
        element = channel.elements.popleft()
        match element:
            case Watermark(timestamp):
                self._grown(self._valve.advance(name, timestamp))
            case Status(is_idle):
                self._grown(self._valve.set_idle(name, is_idle))
                self._tell_status()

    def _rest(self) -> list[InFlightChannel]:
        """Return what is left of an earlier checkpoint, as it is now."""
        found = []
        for name, channel in self._recovered.items():
            kept = replace(channel, elements=deque(channel.elements))
            if name in self._valve:
                kept.watermark, kept.is_idle = self._valve.shown(name), self._valve.idle(name)
            found.append(kept)
        return found


def _taken(queue: deque[Element], most: int) -> list[Rows]:
    """Take the rows at the head of a channel, so many at most; the rest of a frame stays there."""
    found: list[Rows] = []
    while most and queue:
        first = queue[0]
        if not isinstance(first, Rows):
            break
        queue.popleft()
        count = first.batch.num_rows
        if count > most:
            size = first.bytes * most // count
            queue.appendleft(Rows(first.batch.slice(most), first.bytes - size))
            first = Rows(first.batch.slice(0, most), size)
        found.append(first)
        most -= first.batch.num_rows
    return found


class SourceTask(Task):
    """A task that reads."""

    def __init__(self, uid: str, subtask: int, chain: Chain, hooks: TaskHooks, splits: SourceSplits) -> None:
        super().__init__(uid, subtask, chain, hooks)
        self.splits = splits
        self.may_read = False
        "From the beginning of the job until its sources are stopped."
        self.has_nothing_now = False
        "Whether the reader had no rows when it was asked last."
        self._was_idle = False
        self._given: int | None = None

    @property
    def bytes_in(self) -> int:
        # It gives out just what it reads; what follows of maps belongs to the chain.
        return self.chain.bytes_out

    @property
    def behind_rows(self) -> int | None:
        return None if self.has_ended else self.splits.behind()

    @property
    def is_blocked(self) -> bool:
        may = self.may_read and not self.has_ended and not self.has_nothing_now
        return may and not self.chain.has_room

    @property
    def watermark(self) -> int | None:
        return self._given

    def step(self) -> bool:
        if not self.may_read or self.has_ended or self.has_nothing_now:
            return False
        if not self.chain.has_room:
            return False
        now_ms = self.hooks.now_ms()
        if self.splits.is_finished:
            self.end_of_input()
            return True
        if self.splits.is_paused:
            self.has_nothing_now = True
            return False
        dead = self.splits.dead
        if dead is not None:
            dead.batch_id = self.chain.next_checkpoint
        began = self._step_begins()
        got = self.splits.read(self._next_rows(FRAME_ROWS), now_ms)
        if got is None:
            self.has_nothing_now = True
            return False
        rows, grown = got
        self._tell_status()
        if rows is not None:
            self.rows_in += rows.num_rows
            self.chain.rows(rows)
            self._step_ends(began, rows.num_rows)
        if dead is not None:
            self.chain.aside(dead)
        self._grown(grown)
        return True

    def look_again(self, now_ms: int) -> None:
        """Ask the reader again, and let splits turn idle."""
        self.has_nothing_now = False
        if self.may_read and not self.has_ended:
            self._grown(self.splits.look())
            asked_ms = self.splits.asked_ms
            self._grown(self.splits.look_for_idle(now_ms if asked_ms is None else asked_ms))
            self._tell_status()

    def end_of_input(self) -> None:
        """Let event time end, and give on that no rows follow."""
        if self._was_idle:
            self.chain.event(Status(False))
        self._grown(MAX_WATERMARK)
        self.end()

    def _grown(self, watermark: int | None) -> None:
        if watermark is not None and (self._given is None or watermark > self._given):
            self._given = watermark
            self.chain.event(Watermark(watermark))

    def _tell_status(self) -> None:
        if self.splits.is_idle != self._was_idle:
            self._was_idle = self.splits.is_idle
            self.chain.event(Status(self._was_idle))
