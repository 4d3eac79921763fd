"""The scenes of states and timers that the adversary disturbs: every verb of every kind."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import arrowstate
from arrowstate.schema.descriptors import StateDescriptor
from suites.adversary import Act, Adversary, Scene
from suites.deployments import Job

__all__ = ["HIGHEST", "SPACE", "TIMERS", "VERBS", "Spread", "descriptors", "scribble", "write"]

SPACE = pa.schema([("space", pa.int64())])
HIGHEST = (1 << 63) - 1
_RENEWED = arrowstate.TimeToLive(100, update="on_read_and_write")


class Spread:
    """An aggregate of one's own; each of its calls is a point."""

    name = "spread"
    accumulator_type = pa.struct([("low", pa.int64()), ("high", pa.int64())])
    result_type = pa.int64()

    def __init__(self, adversary: Adversary) -> None:
        self._adversary = adversary

    def create(self, count: int) -> pa.StructArray:
        """Return that many accumulators without values."""
        self._adversary.point()
        return pa.array([{}] * count, self.accumulator_type)

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        """Return the accumulators with values added."""
        self._adversary.point()
        added = pa.table({"group": groups, "value": values}).group_by("group", use_threads=False)
        added = added.aggregate([("value", "min"), ("value", "max")]).sort_by("group").combine_chunks()
        lows, highs = (pa.concat_arrays(added[f"value_{end}"].chunks) for end in ("min", "max"))
        return self._both(accumulators, lows, highs)

    def merge(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        """Return, row by row, the accumulator of all values of both."""
        self._adversary.point()
        return self._both(left, *right.flatten())

    def result(self, accumulators: pa.StructArray) -> pa.Array:
        """Return the result of each accumulator."""
        self._adversary.point()
        low, high = accumulators.flatten()
        return pc.subtract(high, low)

    def _both(self, accumulators: pa.StructArray, lows: pa.Array, highs: pa.Array) -> pa.StructArray:
        low, high = accumulators.flatten()
        columns = [pc.min_element_wise(low, lows), pc.max_element_wise(high, highs)]
        return pa.StructArray.from_arrays(columns, fields=list(self.accumulator_type))


def _sum(adversary: Adversary) -> Callable[[Any, Any], Any]:
    def add(old: Any, new: Any) -> Any:
        adversary.point()
        return old + new

    return add


def descriptors(
    adversary: Adversary, namespace: pa.Schema | None, ttl: arrowstate.TimeToLive | None
) -> list[StateDescriptor]:
    options: dict[str, Any] = {"namespace": namespace, "ttl": ttl}
    return [
        arrowstate.ValueStateDescriptor("value", pa.int64(), **options),
        arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", **options),
        arrowstate.ReducingStateDescriptor("called", pa.int64(), reduce=_sum(adversary), **options),
        arrowstate.AggregatingStateDescriptor("spread", pa.int64(), aggregate=Spread(adversary), **options),
        arrowstate.ListStateDescriptor("pages", pa.int64(), **options),
        arrowstate.MapStateDescriptor("cart", pa.int64(), pa.int64(), **options),
    ]


def _spaces(state: Any, turn: int) -> dict[str, Any]:
    if state.descriptor.namespace is None:
        return {}
    return {"namespace": pa.array([turn % 2, 1, 0, turn % 2])}


def write(job: Job, state: Any, turn: int) -> None:
    """Write a batch: four keys of six."""
    keys, values = job.keys(*((turn + number) % 6 for number in range(4))), [turn, turn + 10, turn + 20, 30]
    kind, spaces = state.descriptor.kind, _spaces(state, turn)
    if kind == "map":
        state.put_batch(keys, [1, turn % 3, 2, 7], values, **spaces)
    else:
        (state.update_batch if kind == "value" else state.add_batch)(keys, values, **spaces)


def scribble(job: Job, state: Any, key: int, value: int) -> None:
    """Write by a scalar verb."""
    job.at(key)
    if state.descriptor.namespace is not None:
        state.current_namespace = 1
    if state.descriptor.kind == "map":
        state.put(key, value)
    else:
        (state.update if state.descriptor.kind == "value" else state.add)(value)


def _read(job: Job, state: Any) -> Any:
    keys, spaces = job.keys(0, 1, 2, 5), _spaces(state, 1)
    return (state.entries_batch if state.descriptor.kind == "map" else state.get_batch)(keys, **spaces).to_pylist()


def _read_one(job: Job, state: Any) -> Any:
    job.at(2)
    if state.descriptor.kind == "map":
        return sorted(state.items()), state.get(2), state.contains(1), state.is_empty()
    return state.value() if state.descriptor.kind == "value" else state.get()


def _replace(job: Job, state: Any) -> None:
    state.update_batch(job.keys(0, 1, 2, 0), [[1, 2], [], [3], [4, 5, 6]], **_spaces(state, 3))


def _append(job: Job, state: Any) -> None:
    state.add_all_batch(job.keys(0, 1, 2, 4), [[1, 2], [], [3], [4, 5, 6]], **_spaces(state, 4))


def _replace_one(job: Job, state: Any) -> None:
    job.at(2)
    state.update([7, 8])


def _append_one(job: Job, state: Any) -> None:
    job.at(2)
    state.add_all([9, 10, 11])


def _put_several(job: Job, state: Any) -> None:
    job.at(2)
    state.put_all({number: number for number in range(20, 25)})


def _clear_one(job: Job, state: Any) -> None:
    job.at(2)
    state.clear()


def _remove(job: Job, state: Any) -> None:
    state.remove_batch(job.keys(0, 1, 2, 3), [1, 2, 2, 7], **_spaces(state, 1))


def _merge(job: Job, state: Any) -> None:
    state.merge_namespaces_batch(job.keys(0, 1, 2, 3), 5, 1)


def _merge_one(job: Job, state: Any) -> None:
    job.at(1)
    state.merge_namespaces(5, [0, 1])


Verb = Callable[[Job, Any], Any]

_ALL: dict[str, Verb] = {
    "write": lambda job, state: write(job, state, 8),
    "write one": lambda job, state: scribble(job, state, 3, 40),
    "clear": lambda job, state: state.clear_batch(job.keys(0, 1, 2, 3), **_spaces(state, 1)),
    "clear one": _clear_one,
    "read": _read,
}
_OF_KIND: dict[str, dict[str, Verb]] = {
    "list": {"replace": _replace, "append": _append, "replace one": _replace_one, "append one": _append_one},
    "map": {"put several": _put_several, "remove": _remove},
}
_MERGES: dict[str, Verb] = {"merge namespaces": _merge, "merge namespaces of one key": _merge_one}
_OF_SPACES: dict[str, dict[str, Verb]] = dict.fromkeys(("reducing", "aggregating", "list"), _MERGES)


def _verb(number: int, namespace: pa.Schema | None, ttl: arrowstate.TimeToLive | None, verb: Verb) -> Scene:
    """Return a scene of one verb, on rows in several runs, with what scalar verbs wrote before."""

    def scene(job: Job, adversary: Adversary) -> Act:
        state = job.state(descriptors(adversary, namespace, ttl)[number])
        for turn in range(3):
            write(job, state, turn)
            job.clock.now_ms += 30
        for key in (1, 2):
            scribble(job, state, key, key)
        job.at(1)
        if ttl is not None:
            # A part of the rows has expired, another part is renewed by being read.
            job.clock.now_ms += 35

        def after() -> Any:
            write(job, state, 11)
            return _read(job, state)

        return Act(lambda: verb(job, state), after)

    return scene


def _verbs() -> dict[str, Scene]:
    scenes: dict[str, Scene] = {}
    variants = [("", None, None), (" in namespaces", SPACE, None), (" that expires", None, _RENEWED)]
    for label, namespace, ttl in variants:
        for number, descriptor in enumerate(descriptors(Adversary(), namespace, ttl)):
            verbs = {**_ALL, **_OF_KIND.get(descriptor.kind, {})}
            if namespace is not None:
                verbs |= _OF_SPACES.get(descriptor.kind, {})
            if ttl is not None:
                verbs["read one"] = _read_one
                # Where a time to live is read before each write, nothing waits to be written.
                del verbs["clear one"]
            for name, verb in verbs.items():
                scenes[f"{descriptor.name}{label}: {name}"] = _verb(number, namespace, ttl, verb)
    return scenes


VERBS = _verbs()
"""Each verb of each kind of state alone."""


def _timers_scene(act: Callable[[Job, Adversary, Any], Act]) -> Scene:
    def scene(job: Job, adversary: Adversary) -> Act:
        timers = job.backend.timers()
        for turn in range(5):
            # No two at the same time, between which there is no order.
            timers.register_batch(job.keys(turn, 1, 2), [4 * turn + 1, 4 * turn + 2, 40])
            timers.register_batch(job.keys(turn, 1), [4 * turn + 1, 30], clock="processing_time")
        timers.pop_due(1)
        for key in (1, 2):
            job.at(key)
            timers.register_event_time_timer(12 * key)
        return act(job, adversary, timers)

    return scene


def _batch_of_timers(verb: Callable[[Job, Any], Any]) -> Scene:
    def left(timers: Any) -> Any:
        clocks = ("event_time", "processing_time")
        return [(timers.next_timestamp(clock), timers.pop_due(HIGHEST, clock=clock).to_pylist()) for clock in clocks]

    return _timers_scene(lambda job, _, timers: Act(lambda: verb(job, timers), lambda: left(timers)))


def _register_one(job: Job, timers: Any) -> None:
    job.at(3)
    timers.register_event_time_timer(5)


def _firing(clock: str) -> Scene:
    """Return a scene of timers that fire one by one; what has fired before a failure stays so."""

    def act(job: Job, adversary: Adversary, timers: Any) -> Act:
        total = job.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
        pages = job.state(arrowstate.ListStateDescriptor("pages", pa.int64()))
        total.add_batch(job.keys(0, 1, 2), [1, 2, 3])
        fired = []

        def on_timer(timer: arrowstate.Timer) -> None:
            total.add(timer.timestamp)
            adversary.point()
            pages.add(timer.timestamp)
            if timer.timestamp % 4 == 1:
                timers.register_event_time_timer(timer.timestamp + 2)
                timers.register_processing_time_timer(timer.timestamp + 2)
            if timer.timestamp == 6:
                timers.delete_event_time_timer(10)
                timers.register_batch(job.keys(4, 5), [8, 100])
            adversary.point()
            fired.append((timer.timestamp, timer.key))

        def step() -> None:
            if clock == "event_time":
                timers.advance_watermark(15, on_timer)
            else:
                timers.advance_processing_time(on_timer, now_ms=15)

        def after() -> Any:
            timers.advance_watermark(HIGHEST, on_timer)
            return fired

        return Act(step, after, whole=False)

    return _timers_scene(act)


TIMERS: dict[str, Scene] = {
    "register": _batch_of_timers(lambda job, timers: timers.register_batch(job.keys(0, 1, 3), [5, 10, 40])),
    "delete": _batch_of_timers(lambda job, timers: timers.delete_batch(job.keys(0, 1, 3), [0, 10, 40])),
    "register one": _batch_of_timers(_register_one),
    "pop": _batch_of_timers(lambda _, timers: timers.pop_due(12).to_pylist()),
    "fire by the watermark": _firing("event_time"),
    "fire by processing time": _firing("processing_time"),
}
"""Timers, used alone."""
