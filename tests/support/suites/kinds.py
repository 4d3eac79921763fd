"""What every kind of keyed state has in common: keys, names, and what becomes of a state in snapshots."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate_formats.key_groups import key_groups
from suites.deployments import Job
from suites.suite import KeyedStateSuite

__all__ = ["KINDS", "EveryKindSuite", "Kind"]

_SPACE = pa.schema([("space", pa.int64())])


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of state, with its verbs under names that all kinds share."""

    name: str

    def __str__(self) -> str:
        return self.name

    def descriptor(self, name: str = "state", type: pa.DataType | None = None, **options: Any) -> StateDescriptor:
        kind = type or pa.int64()
        if self.name == "value":
            return arrowstate.ValueStateDescriptor(name, kind, **options)
        if self.name == "reducing":
            return arrowstate.ReducingStateDescriptor(name, kind, reduce="last" if type else "sum", **options)
        if self.name == "aggregating":
            return arrowstate.AggregatingStateDescriptor(
                name, kind, aggregate=arrowstate.TopK(3) if type is None else Last(kind), **options
            )
        if self.name == "list":
            return arrowstate.ListStateDescriptor(name, kind, **options)
        return arrowstate.MapStateDescriptor(name, pa.string(), kind, **options)

    def write(self, state: Any, keys: pa.Array, values: Any, **named: Any) -> None:
        if self.name == "value":
            state.update_batch(keys, values, **named)
        elif self.name == "map":
            state.put_batch(keys, ["entry"] * len(keys), values, **named)
        else:
            state.add_batch(keys, values, **named)

    def write_one(self, state: Any, value: Any) -> None:
        if self.name == "value":
            state.update(value)
        elif self.name == "map":
            state.put("entry", value)
        else:
            state.add(value)

    def empty_one(self, state: Any) -> None:
        """Take away what the current key has, by the write that does it."""
        if self.name == "list":
            state.update([])
        elif self.name == "map":
            state.remove("entry")
        else:
            self.write_one(state, None)

    def read(self, state: Any, keys: pa.Array, **named: Any) -> list[Any]:
        verb = state.entries_batch if self.name == "map" else state.get_batch
        values: list[Any] = verb(keys, **named).to_pylist()
        return values

    def read_one(self, state: Any) -> Any:
        if self.name == "map":
            return list(state.items())
        return state.value() if self.name == "value" else state.get()

    def expected(self, *numbers: int) -> Any:
        """What is read after numbers were written, one after the other."""
        if self.name == "list":
            return list(numbers)
        if self.name == "map":
            return [("entry", numbers[-1])] if numbers else []
        if not numbers:
            return None
        if self.name == "aggregating":
            return sorted(numbers, reverse=True)[:3]
        return sum(numbers) if self.name == "reducing" else numbers[-1]

    def wrapped(self, value: Any) -> Any:
        """What a scalar read returns where one value was written that the kind does not compute with."""
        return {"list": [value], "map": [("entry", value)]}.get(self.name, value)


class Last:
    """An aggregate of any type: the last value."""

    name = "last value"

    def __init__(self, kind: pa.DataType) -> None:
        self.accumulator_type = pa.struct([("last", kind)])
        self.result_type = kind

    def create(self, count: int) -> pa.StructArray:
        return pa.array([{}] * count, self.accumulator_type)

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        last = {group: row for row, group in enumerate(groups.to_pylist())}
        rows = pa.array([last[group] for group in range(len(accumulators))])
        return pa.StructArray.from_arrays([values.take(rows)], fields=list(self.accumulator_type))

    def merge(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        del left
        return right

    def result(self, accumulators: pa.StructArray) -> pa.Array:
        return accumulators.field(0)


KINDS = tuple(map(Kind, ("value", "reducing", "aggregating", "list", "map")))


class EveryKindSuite(KeyedStateSuite):
    """Keys are checked, names mean one thing, absent is absent, and snapshots keep their moment."""

    @pytest.fixture(params=KINDS, ids=str)
    def kind(self, request: pytest.FixtureRequest) -> Kind:
        kind: Kind = request.param
        return kind

    def test_a_key_without_a_value_has_nothing(self, job: Job, kind: Kind) -> None:
        state = job.state(kind.descriptor())
        job.at(0)

        assert kind.read_one(state) == kind.expected()
        assert kind.read(state, job.keys(0, 1, 0)) == [kind.expected()] * 3
        assert kind.read(state, job.keys()) == []
        assert len(state) == 0

    def test_scalar_and_batch_verbs_see_each_other(self, job: Job, kind: Kind) -> None:
        job.at(0)
        kind.write_one(job.state(kind.descriptor()), 1)
        kind.write(job.state(kind.descriptor()), job.keys(0, 7), pa.array([2, 3]))
        job.carry_over()
        job.at(0)
        kind.write_one(job.state(kind.descriptor()), 4)
        state = job.state(kind.descriptor())

        assert kind.read_one(state) == kind.expected(1, 2, 4)
        assert kind.read(state, job.keys(7, 0, 14, 7)) == [
            kind.expected(*numbers) for numbers in ([3], [1, 2, 4], [], [3])
        ]

    def test_clears_and_writes_of_nothing_leave_no_row(self, job: Job, kind: Kind) -> None:
        kind.write(job.state(kind.descriptor()), job.keys(0, 7, 14, 21), pa.array([1, 2, 3, 4]))
        job.carry_over()
        state = job.state(kind.descriptor())
        job.at(0)
        state.clear()
        job.at(7)
        kind.empty_one(state)
        state.clear_batch(job.keys(14, 14, 28))
        job.carry_over()
        state = job.state(kind.descriptor())

        assert kind.read(state, job.keys(0, 7, 14, 21)) == [kind.expected()] * 3 + [kind.expected(4)]
        assert len(state) == 1
        assert job.backend.keys("state").column(0).to_pylist() == [job.key_values.value(21)]
        kind.write(state, job.keys(0), pa.array([5]))
        assert kind.read(state, job.keys(0)) == [kind.expected(5)]

    def test_a_key_of_another_subtask_is_refused_and_named(self, job: Job, kind: Kind) -> None:
        kind.write(job.state(kind.descriptor()), job.keys(*range(20)), pa.array(range(20)))
        job.restart(parallelism=2)
        (own, numbers), (_, foreign) = job.parts(*range(20))
        state: Any = own.state(kind.descriptor())
        keys = job.keys(numbers[0], foreign[0])
        group = key_groups(keys, 128)[1].as_py()
        own.current_key = job.key_values.value(numbers[0])

        for verb in (
            lambda: kind.write(state, keys, pa.array([1, 1])),
            lambda: kind.read(state, keys),
            lambda: state.clear_batch(keys),
            lambda: setattr(own, "current_key", job.key_values.value(foreign[0])),
        ):
            self.refused(arrowstate.KeyOutOfRangeError, verb, match=rf"key group {group}\b.* 0 to 63")

        assert kind.read_one(state) == kind.expected(numbers[0])
        assert kind.read(state, job.keys(*numbers)) == [kind.expected(number) for number in numbers]

    def test_a_scalar_verb_without_a_current_key_is_refused(self, job: Job, kind: Kind) -> None:
        state = job.state(kind.descriptor())

        verbs: list[Callable[[], Any]] = [
            lambda: kind.read_one(state),
            lambda: kind.write_one(state, 1),
            lambda: kind.empty_one(state),
            state.clear,
        ]
        for verb in verbs:
            self.refused(arrowstate.InvalidInputError, verb, match="no current key")

        assert len(state) == 0

    def test_null_keys_and_keys_of_another_type_are_refused(self, job: Job, kind: Kind) -> None:
        state = job.state(kind.descriptor())
        kind.write(state, job.keys(0), pa.array([1]))
        job.at(0)
        null = pa.concat_arrays([job.keys(0), pa.array([None], job.key_values.type)])

        for keys, error in ((null, arrowstate.NullKeyError), (pa.array([1.5, 2.5]), arrowstate.KeyTypeError)):
            self.refused(error, kind.write, state, keys, pa.array([2, 3]))
            self.refused(error, kind.read, state, keys)
            self.refused(error, state.clear_batch, keys)
        self.refused(arrowstate.NullKeyError, setattr, job.backend, "current_key", None)
        self.refused(arrowstate.KeyTypeError, setattr, job.backend, "current_key", math.pi)

        assert kind.read_one(state) == kind.expected(1)
        assert kind.read(state, job.keys(0)) == [kind.expected(1)]

    def test_a_null_namespace_is_refused(self, job: Job, kind: Kind) -> None:
        state = job.state(kind.descriptor(namespace=_SPACE))
        kind.write(state, job.keys(0), pa.array([1]), namespace=1)
        null = pa.array([None], pa.int64())
        job.at(0)

        self.refused(
            arrowstate.NullKeyError, kind.write, state, job.keys(0), pa.array([2]), namespace=null, match="space"
        )
        self.refused(arrowstate.NullKeyError, kind.read, state, job.keys(0), namespace=null, match="space")
        self.refused(
            arrowstate.InvalidInputError, kind.write, state, job.keys(0), pa.array([2]), match="needs a namespace"
        )
        self.refused(arrowstate.InvalidInputError, setattr, state, "current_namespace", None)
        self.refused(arrowstate.InvalidInputError, kind.read_one, state, match="current_namespace")

        assert kind.read(state, job.keys(0), namespace=1) == [kind.expected(1)]

    def test_namespaces_are_told_apart(self, job: Job, kind: Kind) -> None:
        descriptor = kind.descriptor(namespace=_SPACE)
        spaces = pa.array([1, 2, 1])
        kind.write(job.state(descriptor), job.keys(0, 0, 7), pa.array([3, 4, 5]), namespace=spaces)
        job.carry_over()
        state = job.state(descriptor)
        job.at(0)
        state.current_namespace = 2
        state.clear()
        kind.write_one(state, 6)
        job.carry_over()

        state = job.state(descriptor)
        assert kind.read(state, job.keys(0, 0, 7), namespace=spaces) == [kind.expected(n) for n in (3, 6, 5)]
        assert kind.read(state, job.keys(0, 7), namespace=3) == [kind.expected()] * 2

    def test_a_name_has_one_kind_and_one_type_at_once_and_after_a_restore(self, job: Job, kind: Kind) -> None:
        job.state(kind.descriptor())
        others = [other.descriptor() for other in KINDS if other is not kind]
        others += [kind.descriptor(type=pa.float32()), kind.descriptor(namespace=_SPACE)]

        for _ in range(2):
            for other in others:
                self.refused(arrowstate.IncompatibleStateError, job.state, other, match="state")
            job.restart()

        assert len(job.state(kind.descriptor())) == 0
        self.refused(arrowstate.InvalidInputError, job.state, kind.descriptor("State"), match="case")

    def test_states_and_operators_do_not_touch_each_other(self, job: Job, kind: Kind) -> None:
        clock, deployment = job.clock, job.deployment
        backends = [deployment.make_backend(job.backend.key, clock) for _ in range(2)]
        for number, backend in enumerate(backends):
            for name in ("left", "right"):
                kind.write(backend.state(kind.descriptor(name)), job.keys(0), pa.array([number * 10 + len(name)]))
        cleared: Any = backends[0].state(kind.descriptor("left"))
        cleared.clear_batch(job.keys(0))

        with job.store.writer() as writer:
            snapshot = writer.checkpoint({"one": backends[:1], "two": backends[1:]})

        found = {
            (uid, name): kind.read(snapshot.restore(uid).state(kind.descriptor(name)), job.keys(0))
            for uid in ("one", "two")
            for name in ("left", "right")
        }
        assert found == {
            ("one", "left"): [kind.expected()],
            ("one", "right"): [kind.expected(5)],
            ("two", "left"): [kind.expected(14)],
            ("two", "right"): [kind.expected(15)],
        }

    def test_what_is_read_or_was_given_is_a_copy(self, job: Job, kind: Kind) -> None:
        descriptor = kind.descriptor(type=pa.list_(pa.int64()))
        given = [1]
        job.at(0)
        kind.write_one(job.state(descriptor), given)
        given.append(2)

        for _ in range(2):
            read = kind.read_one(job.state(descriptor))
            assert read == kind.wrapped([1])
            (read[0][1] if kind.name == "map" else read[0] if kind.name == "list" else read).append(3)
            assert kind.read_one(job.state(descriptor)) == kind.wrapped([1])
            job.carry_over()
            job.at(0)

    def test_a_state_that_nobody_touches_survives(self, job: Job, kind: Kind) -> None:
        kind.write(job.state(kind.descriptor()), job.keys(*range(20)), pa.array(range(20)))
        job.restart()
        job.restart(parallelism=3, max_parallelism=20)
        job.restart(max_parallelism=32768)

        assert job.backend.state_names == ("state",)
        assert kind.read(job.state(kind.descriptor()), job.keys(*range(21))) == [
            *map(kind.expected, range(20)),
            kind.expected(),
        ]

    def test_an_empty_state_is_restored_empty(self, job: Job, kind: Kind) -> None:
        job.state(kind.descriptor())
        job.restart()
        assert kind.read(job.state(kind.descriptor()), job.keys(0)) == [kind.expected()]
        job.restart(parallelism=3, max_parallelism=3)
        job.restart()

        kind.write(job.state(kind.descriptor()), job.keys(0), pa.array([1]))

        assert kind.read(job.state(kind.descriptor()), job.keys(0, 1)) == [kind.expected(1), kind.expected()]

    def test_each_snapshot_keeps_its_moment(self, job: Job, kind: Kind) -> None:
        moments = []
        for number in range(4):
            state = job.state(kind.descriptor())
            kind.write(state, job.keys(0, number + 1), pa.array([number, number]))
            job.at(40)
            kind.write_one(state, number)
            if number == 2:
                state.clear_batch(job.keys(1))
            moments.append((job.checkpoint(), kind.read(state, job.keys(*range(6), 40))))
            state.clear_batch(job.keys(5))
            job.carry_over()

        for snapshot, values in reversed(moments):
            job.restore(snapshot)
            assert kind.read(job.state(kind.descriptor()), job.keys(*range(6), 40)) == values
        # Writes after a restore come on top of what was restored.
        job.restore(moments[1][0])
        kind.write(job.state(kind.descriptor()), job.keys(0), pa.array([9]))
        job.carry_over()
        assert kind.read(job.state(kind.descriptor()), job.keys(0)) == [kind.expected(0, 1, 9)]

    def test_a_frozen_view_does_not_change(self, job: Job, kind: Kind) -> None:
        kind.write(job.state(kind.descriptor()), job.keys(0, 1), pa.array([1, 2]))
        job.carry_over()
        state = job.state(kind.descriptor())
        views = [job.backend.freeze()]
        kind.write(state, job.keys(2), pa.array([3]))
        views.append(job.backend.freeze())
        state.clear_batch(job.keys(0, 1))
        views.append(job.backend.freeze())
        kind.write(state, job.keys(0, 1, 2), pa.array([4, 5, 6]))

        rows = [
            sum(batch.num_rows for run in view.states[0].table.runs for batch in run.live_batches()) for view in views
        ]

        assert rows == [2, 3, 1]
