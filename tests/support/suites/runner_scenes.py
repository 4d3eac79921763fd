"""The scenes of runners and windows that the adversary disturbs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.functions.batch_function import BatchContext, BatchFunction, BatchRunner
from arrowstate.functions.keyed_process import KeyedProcessRunner
from arrowstate.functions.process_function import Collector, KeyedProcessFunction, ProcessContext
from arrowstate.schema.descriptors import AggregatingStateDescriptor, ListStateDescriptor, ReducingStateDescriptor
from arrowstate.windows import (
    CountWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    Trigger,
    TumblingEventTimeWindows,
    WindowFunction,
    WindowOperator,
)
from suites.adversary import Act, Adversary, Scene
from suites.deployments import Job
from suites.scenes import HIGHEST, SPACE, Spread, descriptors, scribble, write

__all__ = ["RUNNERS", "WINDOWS"]


class Everything(BatchFunction):
    """Uses all kinds of state and timers, by batch verbs and by scalar verbs; between any two of them is a point."""

    def __init__(self, job: Job, adversary: Adversary) -> None:
        self._job, self._adversary = job, adversary

    def open(self, context: BatchContext) -> None:
        """Ask for states of every kind, with and without namespaces."""
        plain = descriptors(self._adversary, None, None)
        spaced = descriptors(self._adversary, SPACE, None)
        self._states = [context.state(each) for number, each in enumerate(plain) if number % 2]
        self._states += [context.state(each) for number, each in enumerate(spaced) if not number % 2]
        self._timers = context.timers()

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:
        """Write and read all states."""
        for state in self._states:
            write(self._job, state, batch["turn"][0].as_py())
            self._adversary.point()
            scribble(self._job, state, 2, batch["turn"][0].as_py())
            scribble(self._job, state, 3, 5)
            self._adversary.point()
        context.backend.current_timestamp = 17
        late = context.state(ListStateDescriptor("late", pa.int64()))
        late.add_batch(batch["k"], batch["at"])
        self._timers.register_batch(batch["k"], batch["at"])
        self._timers.register_batch(batch["k"], batch["at"], clock="processing_time")
        self._timers.register_event_time_timer(16)
        self._timers.delete_event_time_timer(12)
        self._adversary.point()
        return batch.select(["k", "at"])

    def on_watermark(self, watermark: int, context: BatchContext) -> None:
        """Write by scalar verbs; the states go on to have them."""
        del context
        for state in self._states:
            scribble(self._job, state, 1, watermark % 100)
            self._adversary.point()

    def on_timers(self, timers: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:
        """Add to a list and register others, some of which fire in the same step."""
        self._adversary.point()
        pages = context.state(ListStateDescriptor("late", pa.int64()))
        pages.add_batch(timers["k"], timers["timestamp"])
        early = timers.filter(pc.less(timers["timestamp"], 14))
        self._timers.register_batch(early["k"], pc.add(early["timestamp"], 2), clock=str(context.clock))
        self._adversary.point()
        return timers.select(["k", "timestamp"]).rename_columns(["k", "at"])


class EveryElement(KeyedProcessFunction):
    """The same, an element at a time."""

    def __init__(self, adversary: Adversary) -> None:
        self._adversary = adversary

    def open(self, context: ProcessContext) -> None:
        """Ask for states of every kind, with and without namespaces."""
        plain = descriptors(self._adversary, None, None)
        spaced = descriptors(self._adversary, SPACE, None)
        self._states = [context.state(each) for number, each in enumerate(plain) if number % 2]
        self._spaced = [context.state(each) for number, each in enumerate(spaced) if not number % 2]

    def process_element(self, value: Any, context: ProcessContext, out: Collector) -> None:
        """Write and read all states."""
        for state in self._spaced:
            if value.at % 2:
                state.current_namespace = value.turn % 2
        self._touch(value.turn, out)
        context.timers.register_event_time_timer(value.at)
        context.timers.register_processing_time_timer(value.at)
        context.timers.delete_event_time_timer(12)
        self._adversary.point()

    def on_timer(self, timestamp: int, context: ProcessContext, out: Collector) -> None:
        """Write all states and register another timer, which may fire in the same step."""
        self._touch(timestamp, out)
        if timestamp < 14:
            context.timers.register_event_time_timer(timestamp + 2)
        self._adversary.point()

    def _touch(self, value: int, out: Collector) -> None:
        for state in (*self._states, *self._spaced):
            kind = state.state.descriptor.kind
            if kind == "map":
                state.put(value % 3, value)
                state.remove(1)
            else:
                (state.update if kind == "value" else state.add)(value)
            self._adversary.point()
            seen = len(list(state.keys())) if kind == "map" else state.value() if kind == "value" else state.get()
            out.collect(str(seen))


def _rows(job: Job, turn: int) -> pa.RecordBatch:
    columns = [job.keys(turn % 6, 1, 2, turn % 6), pa.array([3 + turn, 11, 12, 15 + turn]), pa.array([turn] * 4)]
    return pa.record_batch(columns, names=["k", "at", "turn"])


Step = Callable[[Job, Any], Any]

_STEPS: dict[str, Step] = {
    "a batch": lambda job, process: process.process(_rows(job, 4)).to_pylist(),
    "the watermark": lambda _, process: process.advance_watermark(15).to_pylist(),
    "processing time": lambda _, process: process.advance_processing_time(15).to_pylist(),
}


def _runner(make: Callable[[Job, Adversary], Any], step: Step) -> Scene:
    def scene(job: Job, adversary: Adversary) -> Act:
        process = make(job, adversary)
        for turn in range(2):
            process.process(_rows(job, turn))
        process.advance_watermark(4)
        job.at(1)

        def after() -> Any:
            rows = process.process(_rows(job, 5)).to_pylist()
            clocks = (process.advance_watermark, process.advance_processing_time)
            return rows, [advance(HIGHEST - 1).to_pylist() for advance in clocks]

        return Act(lambda: step(job, process), after, runs=True)

    return scene


def _batches(job: Job, adversary: Adversary) -> BatchRunner:
    return BatchRunner(job.backend, Everything(job, adversary))


def _elements(job: Job, adversary: Adversary) -> KeyedProcessRunner:
    return KeyedProcessRunner(job.backend, EveryElement(adversary), output=pa.string())


RUNNERS: dict[str, Scene] = {
    f"{name}: {step}": _runner(make, take)
    for name, make in {"batch function": _batches, "process function": _elements}.items()
    for step, take in _STEPS.items()
}
"""Both runners, over functions that use everything."""


class _Windows(WindowFunction):
    """Windows after which user code may raise."""

    def __init__(self, adversary: Adversary, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._adversary = adversary

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:
        """As it is, then a point."""
        fired = super().process_batch(batch, context)
        self._adversary.point()
        return fired

    def on_watermark(self, watermark: int, context: BatchContext) -> pa.RecordBatch:
        """As it is, then a point."""
        fired = super().on_watermark(watermark, context)
        self._adversary.point()
        return fired


_ASSIGNERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tumbling": (TumblingEventTimeWindows(10), {}),
    "tumbling with lateness": (TumblingEventTimeWindows(10), {"allowed_lateness_ms": 20}),
    "tumbling, by count, purging": (TumblingEventTimeWindows(10), {"trigger": Trigger(2, purging=True)}),
    "sliding with lateness": (SlidingEventTimeWindows(10, 5), {"allowed_lateness_ms": 7}),
    "sessions": (EventTimeSessionWindows(6), {}),
    "sessions with lateness": (EventTimeSessionWindows(6), {"allowed_lateness_ms": 20}),
    "sessions by count": (EventTimeSessionWindows(6), {"trigger": Trigger(3)}),
    "count": (CountWindows(3), {}),
    "count, sliding": (CountWindows(4, 2), {}),
    "global": (GlobalWindows(), {"trigger": Trigger(2)}),
}


def _window_rows(job: Job, turn: int) -> pa.RecordBatch:
    numbers = (turn % 4, 1, 2, turn % 4, 1)
    times = [10 * turn, 10 * turn + 4, 7, 10 * turn + 8, 22]
    return pa.record_batch([job.keys(*numbers), pa.array(times), pa.array(range(turn, turn + 5))], ["k", "at", "v"])


def _contents_of_windows(adversary: Adversary, kind: str) -> Any:
    return {
        "sums": ReducingStateDescriptor("v", pa.int64(), reduce="sum"),
        "spreads": AggregatingStateDescriptor("v", pa.int64(), aggregate=Spread(adversary)),
        "lists": ListStateDescriptor("v", pa.int64()),
    }[kind]


def _window(assigner: str, kind: str, in_function: bool, step: str) -> Scene:
    windows, options = _ASSIGNERS[assigner]
    timed = not isinstance(windows, (CountWindows, GlobalWindows))

    def scene(job: Job, adversary: Adversary) -> Act:
        descriptor = _contents_of_windows(adversary, kind)
        process: Callable[[int], Any]
        advance: Callable[[int], Any]
        late: Callable[[], int]
        if in_function:
            function = _Windows(adversary, windows, descriptor, timestamp="at" if timed else None, **options)
            runner = BatchRunner(job.backend, function)
            process = lambda turn: runner.process(_window_rows(job, turn)).to_pylist()  # noqa: E731
            advance = lambda time: runner.advance_watermark(time).to_pylist()  # noqa: E731
            late = lambda: function.late_rows  # noqa: E731
        else:
            operator = WindowOperator(job.backend, windows, descriptor, **options)

            def process(turn: int) -> Any:
                rows = _window_rows(job, turn)
                output = operator.process(rows["k"], rows["at"] if timed else None, rows["v"])
                return output.fired.to_pylist(), output.late.to_pylist()

            advance = lambda time: operator.advance_watermark(time).to_pylist()  # noqa: E731
            late = lambda: operator.late_rows  # noqa: E731
        for turn in (0, 1, 4):
            process(turn)
        advance(9)
        take: Callable[[], Any] = partial(process, 2) if step == "a batch" else partial(advance, 27)
        return Act(take, lambda: (process(3), advance(45), process(1), advance(HIGHEST - 1), late()), runs=True)

    return scene


def _windows() -> dict[str, Scene]:
    scenes = {}
    for number, (assigner, (windows, options)) in enumerate(_ASSIGNERS.items()):
        steps = ["a batch"] if isinstance(windows, (CountWindows, GlobalWindows)) else ["a batch", "the watermark"]
        for step in steps:
            for in_function in (False, True):
                kind = ("sums", "spreads", "lists")[(number + in_function) % 3]
                calls_users_code = in_function or (kind == "spreads" and "trigger" not in options)
                if step == "the watermark" and not calls_users_code and "allowed_lateness_ms" not in options:
                    # Windows that are gone when they fire write nothing, and nothing can fail.
                    continue
                by = "function" if in_function else "operator"
                scenes[f"{assigner} windows of {kind} by a {by}: {step}"] = _window(assigner, kind, in_function, step)
    return scenes


WINDOWS = _windows()
"""Windows of each assigner, used alone and by a runner."""
