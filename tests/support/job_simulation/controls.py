"""Rules of the runtime, each of which can be broken, to see that some seed notices."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from arrowstate.runtime.connectors import Sink
from arrowstate.runtime.core import (
    assembling,
    assignment,
    attempt,
    barriers,
    checkpoints,
    coordinator,
    deploying,
    in_flight,
    reading,
    sinking,
    slot,
    task,
)
from arrowstate.runtime.core import turns as turns_of
from arrowstate.runtime.core.elements import Barrier, CancelBarrier, Element, Rows
from arrowstate.runtime.core.snapshots import SlotSnapshots
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.state.backend.operator import restore_operator_backend
from arrowstate.state.backend.restoring import restore_backend
from job_simulation.parts import WORLD, Tokens, rows_of

__all__ = ["CONTROLS", "without"]

Put = Callable[[Any, str, Any], None]


@contextmanager
def without(name: str) -> Iterator[None]:
    """Break a rule."""
    with ExitStack() as stack:
        CONTROLS[name](lambda where, what, broken: stack.enter_context(mock.patch.object(where, what, broken)))
        yield


def blocking(put: Put) -> None:
    put(barriers.ExactlyOnceBarriers, "is_blocked", lambda self, channel: False)


def all_barriers(put: Put) -> None:
    def barrier(self: Any, channel: int, checkpoint_id: int, now_ms: int) -> list[barriers.Decision]:
        if checkpoint_id <= self._done:
            return []
        self._done = checkpoint_id
        return [barriers.Snapshot(checkpoint_id)]

    put(barriers.ExactlyOnceBarriers, "barrier", barrier)


def barriers_that_need_no_room(put: Put) -> None:
    right = task.OperatorTask.step

    def step(self: task.OperatorTask) -> bool:
        heads = [queue[0] for queue in self._queues if queue]
        if not self.chain.has_room and any(isinstance(head, (Barrier, CancelBarrier)) for head in heads):
            return False
        return right(self)

    put(task.OperatorTask, "step", step)


def barrier_before_the_next_batch(put: Put) -> None:
    def take_snapshot(self: task.Task, checkpoint_id: int, alignment_us: int = 0) -> None:
        barrier = self.coming.get(checkpoint_id, Barrier(checkpoint_id))
        self.hooks.snapshot(self, checkpoint_id, alignment_us, False)
        if isinstance(self, task.SourceTask):
            self.step()
        self.chain.event(barrier)

    put(task.Task, "take_snapshot", take_snapshot)


def position_after_the_batch(put: Put) -> None:
    read, right = reading.SourceSplits.read, reading.SourceSplits.to_arrow

    def late(self: Any, max_rows: int, now_ms: int) -> Any:
        before = dict(self._states)
        got = read(self, max_rows, now_ms)
        self._shown = before
        return got

    def to_arrow(self: Any) -> Any:
        kept, self._states = self._states, {**self._states, **getattr(self, "_shown", {})}
        try:
            return right(self)
        finally:
            self._states = kept

    put(reading.SourceSplits, "read", late)
    put(reading.SourceSplits, "to_arrow", to_arrow)


def restored_positions(put: Put) -> None:
    right = coordinator.Coordinator._restored

    def restored(self: Any, attempt: int, found: Any, error: Any) -> None:
        if found is not None and found[0] is not None:
            splits = {
                uid: [item if item.finished else replace(item, position=None, watermark=None) for item in items]
                for uid, items in found[1].items()
            }
            found = found[0], splits
        right(self, attempt, found, error)

    put(coordinator.Coordinator, "_restored", restored)


def order_of_splits(put: Put) -> None:
    right = assignment.Assignment.deal

    def deal(self: Any, splits: Any, now_ms: int) -> Any:
        return [{uid: items[::-1] for uid, items in given.items()} for given in right(self, splits, now_ms)]

    put(assignment.Assignment, "deal", deal)


def order_of_slots(put: Put) -> None:
    def order(*given: Any, **named: Any) -> Any:
        found = right(*given, **named)
        by_slot = sorted(found, key=lambda split: -1 if split.slot is None else split.slot)
        return [replace(split, number=number, slot=None) for number, split in enumerate(by_slot)]

    right = assignment.stored_splits
    put(assignment, "stored_splits", order)


def time_of_splits_that_wait(put: Put) -> None:
    right = reading.SourceSplits.add

    def add(self: Any, splits: Any, now_ms: int) -> None:
        # The splits that were begun are taken for the first.
        right(self, [replace(split, number=0 if split.watermark is not None else 1) for split in splits], now_ms)

    put(reading.SourceSplits, "add", add)


def restored_watermarks(put: Put) -> None:
    put(deploying, "OperatorTask", lambda *given: task.OperatorTask(*given[:-2], None, given[-1]))


def slices_of_keys(put: Put) -> None:
    def whole(*given: Any, **named: Any) -> Any:
        return restore_backend(*given, **{**named, "parallelism": 1, "subtask": 0})

    put(deploying, "restore_backend", whole)


def log_entry_before_commits(put: Put) -> None:
    right = assembling.Entries.commit

    def commit(self: assembling.Entries, checkpoint_id: int, handles: Any, **named: Any) -> None:
        tables = {node.sink.name for node in self.graph.sinks if isinstance(node.sink, OutputTable)}
        for handle in handles:
            for part in handle.parts:
                if part.epoch is not None and part.epoch > self.committed_id and part.uid not in tables:
                    kept = part.uid, part.epoch, handle.subtask, part.part, part.value_type, self.store_id
                    self.waiting.append(assembling.Kept(*kept))
        self.give()
        right(self, checkpoint_id, handles, **named)

    put(assembling.Entries, "commit", commit)


def tokens(put: Put) -> None:
    def commit(self: Sink, rows: Any, token: Any) -> None:
        known = WORLD.outside.sunk.setdefault(self.name, {})  # type: ignore[attr-defined]
        WORLD.outside.may_fail(after=lambda: known.update({(token.checkpoint_id, -len(known)): rows_of(rows)}))

    put(Tokens, "commit", commit)


def rows_of_aborted_checkpoints(put: Put) -> None:
    right = sinking.KeptRows.freeze

    def only_its_own(self: Any, epoch: int) -> Any:
        self._epochs.clear()
        return right(self, epoch)

    put(sinking.KeptRows, "freeze", only_its_own)


def rows_kept_for_sinks(put: Put) -> None:
    put(assembling.Entries, "_kept", lambda self, entry: iter(()))


def told_after_commits(put: Put) -> None:
    right = SlotSnapshots.take

    def take(self: SlotSnapshots, item: task.Task, checkpoint_id: int, *how: Any) -> None:
        right(self, item, checkpoint_id, *how)
        for function in item.checkpointed:
            function.completed(checkpoint_id)

    put(SlotSnapshots, "take", take)


def one_last_checkpoint(put: Put) -> None:
    right = checkpoints.JobCheckpoints.committed

    def committed(self: Any, *given: Any) -> Any:
        made = right(self, *given)
        self._is_last_committed = False
        return made

    put(checkpoints.JobCheckpoints, "committed", committed)


def told_once(put: Put) -> None:
    right = SlotSnapshots.abort
    put(SlotSnapshots, "abort", lambda self, checkpoint_id, gone: [right(self, checkpoint_id, gone)] != [])


def pieces_of_lists(put: Put) -> None:
    def whole(*given: Any, **named: Any) -> Any:
        return restore_operator_backend(*given, **{**named, "parallelism": 1, "subtask": 0})

    put(deploying, "restore_operator_backend", whole)


def turns(put: Put) -> None:
    put(turns_of.Turns, "_passed_over", lambda self: [])


def closes_that_raise(put: Put) -> None:
    def close(self: attempt.Attempt) -> Iterator[tuple[str, BaseException]]:
        for _, own in self.closes:
            own()
        return iter(())

    put(attempt.Attempt, "close", close)


def attempts_of_frames(put: Put) -> None:
    def take(self: Any, attempt: int, edge: int, sender: int, element: Any) -> None:
        if self._attempt is not None and edge in self._attempt.operators:
            self._attempt.operators[edge].deliver((edge, sender), element)

    put(slot.Slot, "take", take)


def overtaking(put: Put) -> None:
    put(barriers.ExactlyOnceBarriers, "arrived", lambda *given: [])


def capture_of_channels(put: Put) -> None:
    right = task.OperatorTask._begun_capture

    def begun(self: task.OperatorTask, *given: Any) -> in_flight.Capture:
        made = right(self, *given)
        for channel in made.channels.values():
            channel.elements.clear()
        return made

    put(task.OperatorTask, "_begun_capture", begun)


def capture_until_the_barrier(put: Put) -> None:
    right = task.OperatorTask._begun_capture

    def begun(self: task.OperatorTask, *given: Any) -> in_flight.Capture:
        made = right(self, *given)
        made.add = lambda number, element: None  # type: ignore[method-assign]
        return made

    put(in_flight, "Capture", _loose(in_flight.Capture))
    put(task, "Capture", in_flight.Capture)
    put(task.OperatorTask, "_begun_capture", begun)


def _loose(kind: Any) -> Any:
    """Return a class whose objects can be given other methods."""
    return type(kind.__name__, (kind,), {})


def capture_no_further_than_the_barrier(put: Put) -> None:
    class Endless(set[int]):
        def discard(self, number: int) -> None:
            # A channel is captured until the barriers of all have come.
            pass

    right = task.OperatorTask._begun_capture

    def begun(self: task.OperatorTask, *given: Any) -> in_flight.Capture:
        made = right(self, *given)
        made.waits_for = Endless(made.waits_for)
        return made

    put(task.OperatorTask, "_begun_capture", begun)


def rest_of_frames(put: Put) -> None:
    right = task._taken

    def taken(queue: deque[Element], most: int) -> list[Rows]:
        count = len(queue)
        found = right(queue, most)
        # What was cut off is lost.
        if len(queue) > count - len(found):
            queue.popleft()
        return found

    put(task, "_taken", taken)


def order_of_frames(put: Put) -> None:
    right = task._taken

    def taken(queue: deque[Element], most: int) -> list[Rows]:
        count = len(queue)
        found = right(queue, most)
        if len(queue) > count - len(found):
            queue.append(queue.popleft())
        return found

    put(task, "_taken", taken)


def rest_of_rows_in_flight(put: Put) -> None:
    put(task.OperatorTask, "_rest", lambda self: [])


def rows_in_flight_before_others(put: Put) -> None:
    right = task.OperatorTask.step

    def step(self: task.OperatorTask) -> bool:
        kept, self._recovered = self._recovered, {}
        if kept and any(self._queues):
            self._valve.begin({number: (None, False) for number, timed in enumerate(self._timed) if timed})
        try:
            done = right(self)
        finally:
            self._recovered = kept
        if kept and not done:
            self._time_begins()
            return right(self)
        return done

    put(task.OperatorTask, "step", step)


def slices_of_rows_in_flight(put: Put) -> None:
    def whole(*given: Any, **named: Any) -> Any:
        return restore_backend(*given, **{**named, "parallelism": 1, "subtask": 0})

    put(in_flight, "restore_backend", whole)


def channels_that_no_barrier_overtakes_in(put: Put) -> None:
    put(deploying, "ExactlyOnceBarriers", lambda channels, in_line: barriers.ExactlyOnceBarriers(channels))


CONTROLS: Mapping[str, Callable[[Put], None]] = {
    rule.__name__: rule
    for rule in (
        blocking,
        all_barriers,
        barriers_that_need_no_room,
        barrier_before_the_next_batch,
        position_after_the_batch,
        restored_positions,
        order_of_splits,
        order_of_slots,
        time_of_splits_that_wait,
        restored_watermarks,
        slices_of_keys,
        log_entry_before_commits,
        tokens,
        rows_of_aborted_checkpoints,
        rows_kept_for_sinks,
        told_after_commits,
        one_last_checkpoint,
        told_once,
        pieces_of_lists,
        attempts_of_frames,
        turns,
        closes_that_raise,
        overtaking,
        capture_of_channels,
        capture_until_the_barrier,
        capture_no_further_than_the_barrier,
        rest_of_frames,
        order_of_frames,
        rest_of_rows_in_flight,
        rows_in_flight_before_others,
        slices_of_rows_in_flight,
        channels_that_no_barrier_overtakes_in,
    )
}
