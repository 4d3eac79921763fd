"""What a change of a schema means: what is stored follows where no value can change, and everything else is refused.

Every kind of state is put through all of `CHANGES`, and refuses all of `REFUSED`. The key of an operator changes in
`KeyEvolutionSuite`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrowstate.errors import IncompatibleStateError, InvalidInputError
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
)
from arrowstate.schema.evolution import SchemaEvolution
from arrowstate.schema.operator_state import BroadcastStateDescriptor, OperatorListStateDescriptor
from suites.changes import CHANGES, DAY, POINT, REFUSED
from suites.deployments import Job
from suites.suite import TTL, KeyedStateSuite, Time

__all__ = ["SchemaEvolutionSuite"]

KINDS = ("value", "list", "map", "reducing", "window", "timed")
_SPACE = pa.schema([("space", pa.int64())])


def _declared(kind: str, name: str, type: pa.DataType, evolution: SchemaEvolution | None = None) -> StateDescriptor:
    if kind == "list":
        return ListStateDescriptor(name, type, evolution=evolution)
    if kind == "map":
        return MapStateDescriptor(name, pa.int64(), type, evolution=evolution)
    if kind == "reducing":
        return ReducingStateDescriptor(name, type, reduce="last", evolution=evolution)
    ttl = TTL if kind == "timed" else None
    return ValueStateDescriptor(
        name, type, namespace=_SPACE if kind == "window" else None, ttl=ttl, evolution=evolution
    )


def _put(job: Job, descriptor: StateDescriptor, first: int, values: Sequence[Any]) -> None:
    """Write values of keys that are numbered from `first` on."""
    state, keys = job.state(descriptor), job.keys(*range(first, first + len(values)))
    given = pa.array(values, descriptor.type)
    if isinstance(descriptor, MapStateDescriptor):
        state.put_batch(keys, [3] * len(values), given)
    elif isinstance(descriptor, (ListStateDescriptor, ReducingStateDescriptor)):
        state.add_batch(keys, given)
    else:
        state.update_batch(keys, given, **({} if descriptor.namespace is None else {"namespace": 3}))


def _got(job: Job, descriptor: StateDescriptor, count: int) -> list[Any]:
    """Return the values of the first keys."""
    state, keys = job.state(descriptor), job.keys(*range(count))
    if isinstance(descriptor, MapStateDescriptor):
        found: list[Any] = state.get_batch(keys, [3] * count).to_pylist()
    elif isinstance(descriptor, ListStateDescriptor):
        found = [items[0] if items else None for items in state.get_batch(keys).to_pylist()]
    else:
        found = state.get_batch(keys, **({} if descriptor.namespace is None else {"namespace": 3})).to_pylist()
    return found


def _restart(job: Job) -> None:
    """Put restored backends in place of the current ones, in the way of the deployment where it has one."""
    if job.deployment.scales:
        job.carry_over()
    else:
        job.restart()


class _Span:
    """A user's aggregate; in its second edition the accumulator is wider and counts too."""

    name = "span"

    def __init__(self, edition: int) -> None:
        number = (pa.int32(), pa.int64())[edition - 1]
        fields = [("low", number), ("high", number)]
        self.accumulator_type = pa.struct([*(("count", pa.int64()) for _ in range(edition - 1)), *fields])
        self.result_type = self.accumulator_type

    def create(self, count: int) -> pa.StructArray:
        return pa.array([{}] * count, self.accumulator_type)

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        table = pa.table({"group": groups, "value": values}).group_by("group", use_threads=False)
        table = table.aggregate([("value", "min"), ("value", "max"), ("value", "count")]).sort_by("group")
        low, high, count = (table.column(f"value_{name}").combine_chunks() for name in ("min", "max", "count"))
        columns = {"low": low, "high": high, "count": count}
        added = [columns[item.name].cast(item.type) for item in self.accumulator_type]
        return self.merge(accumulators, pa.StructArray.from_arrays(added, fields=list(self.accumulator_type)))

    def merge(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        rules = {"low": pc.min_element_wise, "high": pc.max_element_wise, "count": _plus}
        both = zip(self.accumulator_type, left.flatten(), right.flatten(), strict=True)
        return pa.StructArray.from_arrays(
            [rules[item.name](one, other) for item, one, other in both], fields=list(self.accumulator_type)
        )

    def result(self, accumulators: pa.StructArray) -> pa.Array:
        return accumulators


def _plus(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.add(left.fill_null(0), right.fill_null(0))


class SchemaEvolutionSuite(KeyedStateSuite):
    """State follows its descriptor after a restore, lazily, or it is refused and stays what it was."""

    @pytest.fixture(params=KINDS)
    def kind(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    def test_every_allowed_change_keeps_what_stays(self, job: Job, kind: str) -> None:
        before = {name: _declared(kind, name, change.stored) for name, change in CHANGES.items()}
        after = {name: _declared(kind, name, change.declared, change.evolution) for name, change in CHANGES.items()}
        for name, change in CHANGES.items():
            _put(job, before[name], 0, change.values)
        _restart(job)

        found = {name: _got(job, after[name], len(change.after)) for name, change in CHANGES.items()}
        assert found == {name: list(change.after) for name, change in CHANGES.items()}
        # New rows beside the old ones; the same hints at the next restore mean nothing new.
        for name, change in CHANGES.items():
            _put(job, after[name], len(change.after), change.after)
        _restart(job)

        found = {name: _got(job, after[name], 2 * len(change.after)) for name, change in CHANGES.items()}
        assert found == {name: [*change.after, *change.after] for name, change in CHANGES.items()}

    def test_rows_of_many_versions_are_read_as_one(self, job: Job, kind: str) -> None:
        types = [
            pa.struct([("a", pa.int8())]),
            pa.struct([("a", pa.int16()), ("b", pa.list_(pa.struct([("n", pa.int32())])))]),
            pa.struct([("b", pa.list_(pa.struct([("n", pa.int64()), ("m", pa.string())]))), ("c", pa.int32())]),
            pa.struct([("c", pa.int64()), ("d", pa.string()), ("b", pa.large_list(pa.struct([("m", pa.string())])))]),
        ]
        changes = [
            None,
            SchemaEvolution(defaults={"b": [{"n": 9}]}),
            SchemaEvolution(renamed={"a": "c"}, defaults={"b.element.m": "none"}),
            SchemaEvolution(dropped=["b.element.n"], defaults={"d": "D"}),
        ]
        rows: list[dict[str, Any]] = [
            {"a": 0},
            {"a": 1, "b": [{"n": 1}]},
            {"b": [{"n": 2, "m": "two"}, None], "c": 2},
            {"c": 3, "d": "three", "b": [{"m": "three"}]},
        ]

        for number, (type, change, row) in enumerate(zip(types, changes, rows, strict=True)):
            _put(job, _declared(kind, "state", type, change), number, [row])
            _restart(job)

        expected = [
            {"c": 0, "d": "D", "b": [{"m": "none"}]},
            {"c": 1, "d": "D", "b": [{"m": "none"}]},
            {"c": 2, "d": "D", "b": [{"m": "two"}, None]},
            {"c": 3, "d": "three", "b": [{"m": "three"}]},
        ]
        assert _got(job, _declared(kind, "state", types[-1]), 4) == expected
        _restart(job)
        table = [
            {name: row[name] for name in ("c", "d", "b")} for row in self.rows(job, _declared(kind, "state", types[-1]))
        ]
        assert sorted(table, key=lambda row: row["c"]) == expected

    def test_a_field_that_was_dropped_does_not_come_back_with_its_name(self, job: Job, kind: str) -> None:
        # Once the newest field goes, once one that others are newer than; inside and outside.
        full, flat = pa.struct([("x", pa.int32()), ("in", POINT)]), pa.struct([("y", pa.string()), ("x", pa.int32())])
        less, flat_less = pa.struct([("in", pa.struct([("x", pa.int32())]))]), pa.struct([("y", pa.string())])
        drop, drop_flat = SchemaEvolution(dropped=["x", "in.y"]), SchemaEvolution(dropped=["x"])
        _put(job, _declared(kind, "full", full), 0, [{"x": 1, "in": {"x": 2, "y": "old"}}])
        _put(job, _declared(kind, "flat", flat), 0, [{"y": "a", "x": 1}])
        _restart(job)
        _put(job, _declared(kind, "full", less, drop), 1, [{"in": {"x": 3}}])
        _put(job, _declared(kind, "flat", flat_less, drop_flat), 1, [{"y": "b"}])
        _restart(job)

        again = _declared(kind, "full", full, SchemaEvolution(defaults={"x": 7}))
        _put(job, again, 2, [{"x": 4, "in": {"x": 5, "y": "new"}}])
        _put(job, _declared(kind, "flat", flat), 2, [{"y": "c", "x": 3}])
        _restart(job)

        assert _got(job, again, 3) == [
            {"x": 7, "in": {"x": 2, "y": None}},
            {"x": 7, "in": {"x": 3, "y": None}},
            {"x": 4, "in": {"x": 5, "y": "new"}},
        ]
        assert _got(job, _declared(kind, "flat", flat), 3) == [
            {"y": "a", "x": None},
            {"y": "b", "x": None},
            {"y": "c", "x": 3},
        ]

    def test_it_is_decided_at_the_first_access_and_an_untouched_state_stays(self, job: Job, kind: str) -> None:
        old, wide = (_declared(kind, "state", type) for type in (pa.int32(), pa.int64()))
        _put(job, old, 0, [1])
        _restart(job)
        _restart(job)
        job.checkpoint()

        assert _got(job, wide, 1) == [1]
        self.refused(IncompatibleStateError, job.state, old)
        _put(job, wide, 1, [1 << 40])
        assert _got(job, wide, 2) == [1, 1 << 40]
        _restart(job)
        self.refused(IncompatibleStateError, job.state, old, match="int64.*int32")
        assert _got(job, wide, 2) == [1, 1 << 40]

    @pytest.mark.parametrize("case", REFUSED)
    def test_what_cannot_follow_is_refused_with_path_types_and_remedy(self, job: Job, case: str) -> None:
        stored, declared, path, was, given, remedy = REFUSED[case]
        kinds = [kind for kind in KINDS if kind != "timed"]
        values = [CHANGES[name].values[0] for name in CHANGES if CHANGES[name].stored == stored][:1] or [None]
        for kind in kinds:
            if values != [None]:
                _put(job, _declared(kind, kind, stored), 0, values)
            job.state(_declared(kind, kind, stored))
        _restart(job)

        for kind in kinds:
            where = f"'{kind}{'.' if path else ''}{path}' is {was}.* declared as {given}.*{remedy}"
            self.refused(IncompatibleStateError, job.state, _declared(kind, kind, declared), match=where)
        job.carry_over()

        for kind in kinds:
            job.state(_declared(kind, kind, stored))
            if values != [None]:
                assert _got(job, _declared(kind, kind, stored), 1) == values

    def test_kind_reducer_aggregate_user_key_clock_and_namespace_stay(self, job: Job) -> None:
        spaces = [pa.schema([("space", kind)]) for kind in (pa.int32(), pa.int64())]
        stored: list[StateDescriptor] = [
            ValueStateDescriptor("value", pa.int32(), namespace=spaces[0]),
            MapStateDescriptor("map", pa.int32(), pa.int32()),
            ReducingStateDescriptor("sum", pa.int32(), reduce="sum"),
            ReducingStateDescriptor("both", pa.struct([("a", pa.int64())]), reduce={"a": "sum"}),
            AggregatingStateDescriptor("mean", pa.int32(), aggregate="mean"),
        ]
        job.state(stored[0]).update_batch(job.keys(0), [1], namespace=2)
        job.state(stored[1]).put_batch(job.keys(0), [2], [1])
        job.state(stored[2]).add_batch(job.keys(0), [1])
        job.state(stored[3]).add_batch(job.keys(0), [{"a": 1}])
        job.state(stored[4]).add_batch(job.keys(0), [1])
        job.backend.timers("alarm").register_batch(job.keys(0), [5])
        _restart(job)

        for changed in (
            ListStateDescriptor("value", pa.int32(), namespace=spaces[0]),
            ValueStateDescriptor("value", pa.int32()),
            ValueStateDescriptor("value", pa.int32(), namespace=spaces[1]),
            ValueStateDescriptor("value", pa.int32(), namespace=pa.schema([("other", pa.int32())])),
            ValueStateDescriptor("value", pa.int32(), namespace=pa.schema([*spaces[0], ("more", pa.int32())])),
            MapStateDescriptor("map", pa.int64(), pa.int32()),
            ReducingStateDescriptor("sum", pa.int32(), reduce="max"),
            ReducingStateDescriptor("sum", pa.int32(), reduce=max),
            ReducingStateDescriptor("both", pa.struct([("a", pa.int64())]), reduce={"a": "max"}),
            ReducingStateDescriptor("both", pa.struct([("a", pa.int64())]), reduce="last"),
            AggregatingStateDescriptor("mean", pa.int32(), aggregate="variance"),
            AggregatingStateDescriptor("mean", pa.float64(), aggregate="mean"),
        ):
            self.refused(
                IncompatibleStateError, job.state, changed, match="declare it as it is stored|keep|declare int32"
            )
        self.refused(IncompatibleStateError, job.backend.timers, "alarm", spaces[0])
        job.carry_over()

        assert job.state(stored[0]).get_batch(job.keys(0), namespace=2).to_pylist() == [1]
        assert job.state(stored[1]).get_batch(job.keys(0), [2]).to_pylist() == [1]
        assert [job.state(stored[number]).get_batch(job.keys(0)).to_pylist() for number in (2, 3, 4)] == [
            [1],
            [{"a": 1}],
            [1.0],
        ]
        assert job.backend.timers("alarm").count() == 1

    def test_hints_that_do_not_fit_are_refused_and_the_state_stays(self, job: Job) -> None:
        old = ValueStateDescriptor("point", POINT)
        job.state(old).update_batch(job.keys(0), [{"x": 1, "y": "a"}])
        _restart(job)

        more = pa.struct([*POINT, ("z", pa.int8())])
        fewer = pa.struct([("y", pa.string())])
        cases: list[tuple[type[Exception], pa.DataType, SchemaEvolution, str]] = [
            (
                InvalidInputError,
                more,
                SchemaEvolution(defaults={"w": 1}),
                "no field 'w' to have a default; there are x, y, z",
            ),
            (InvalidInputError, more, SchemaEvolution(defaults={"": 1}), "no field ''"),
            (InvalidInputError, more, SchemaEvolution(defaults={"z": 300}), "the default of 'z' must be of type int8"),
            (InvalidInputError, more, SchemaEvolution(defaults={"z": 1.5}), "the default of 'z' must be of type int8"),
            (InvalidInputError, more, SchemaEvolution(merge={"point": "max"}), "give it to restore"),
            (IncompatibleStateError, fewer, SchemaEvolution(renamed={"x": "y"}), "'y' already: drop that one"),
            (IncompatibleStateError, more, SchemaEvolution(renamed={"x": "v"}), "'point.x' is int32 .* as 'v'"),
            (
                IncompatibleStateError,
                pa.struct([("v", pa.string())]),
                SchemaEvolution(renamed={"x": "v", "y": "v"}),
                "'v', which another field is called; give 'y' and 'x' different names",
            ),
        ]
        for error, type, evolution, message in cases:
            descriptor = ValueStateDescriptor("point", type, evolution=evolution)
            self.refused(error, job.state, descriptor, match=message)

        good = ValueStateDescriptor("point", more, evolution=SchemaEvolution(defaults={"z": 3}))
        assert job.state(good).get_batch(job.keys(0)).to_pylist() == [{"x": 1, "y": "a", "z": 3}]
        self.refused(IncompatibleStateError, job.state, old)
        self.refused(InvalidInputError, SchemaEvolution, dropped="x", match="collection of paths")
        self.refused(InvalidInputError, SchemaEvolution, renamed={"x": ""}, match="must be a text")
        self.refused(InvalidInputError, SchemaEvolution, renamed={"x": "v"}, dropped=["x"], match="not both")
        self.refused(InvalidInputError, SchemaEvolution, renamed={"x": "y", "y": "x"}, match="rename in two steps")

    def test_fields_of_a_reducing_state_come_and_go_and_go_on_folding(self, job: Job) -> None:
        old = ReducingStateDescriptor(
            "sums", pa.struct([("n", pa.int64()), ("total", pa.int32()), ("gone", pa.int8())]),
            reduce={"n": "count", "total": "sum", "gone": "min"},
        )  # fmt: skip
        job.state(old).add_batch(job.keys(0, 0), [{"n": 1, "total": 2_000_000_000, "gone": 1}, {"total": 1}])
        _restart(job)
        new = ReducingStateDescriptor(
            "sums", pa.struct([("most", pa.float64()), ("all", pa.int64()), ("n", pa.int64()), ("new", pa.int64())]),
            reduce={"most": "max", "all": "sum", "n": "count", "new": "count"},
            evolution=SchemaEvolution(renamed={"total": "all"}, dropped=["gone"], defaults={"most": 0.5}),
        )  # fmt: skip

        job.state(new).add_batch(job.keys(0, 7), [{"most": 0.25, "all": 2_000_000_000, "n": 1, "new": 1}] * 2)
        _restart(job)

        assert job.state(new).get_batch(job.keys(0, 7)).to_pylist() == [
            {"most": 0.5, "all": 4_000_000_001, "n": 2, "new": 1},
            {"most": 0.25, "all": 2_000_000_000, "n": 1, "new": 1},
        ]

    def test_accumulators_follow_their_aggregate(self, job: Job) -> None:
        editions = [
            AggregatingStateDescriptor("span", pa.int32(), aggregate=_Span(1)),
            AggregatingStateDescriptor(
                "span", pa.int64(), aggregate=_Span(2), evolution=SchemaEvolution(defaults={"count": 100})
            ),
        ]
        built_in = [
            [AggregatingStateDescriptor(name, kind, aggregate=name) for name in ("mean", "variance", "top_k")]
            for kind in (pa.int32(), pa.int64())
        ]
        for descriptor in (editions[0], *built_in[0]):
            job.state(descriptor).add_batch(job.keys(0, 0), pa.array([3, 1], pa.int32()))
        _restart(job)
        for descriptor in (editions[1], *built_in[1]):
            job.state(descriptor).add_batch(job.keys(0, 7), pa.array([1 << 40, 5]))
        _restart(job)

        assert job.state(editions[1]).get_batch(job.keys(0, 7)).to_pylist() == [
            {"count": 101, "low": 1, "high": 1 << 40},
            {"count": 1, "low": 5, "high": 5},
        ]
        mean, _, largest = (job.state(descriptor).get_batch(job.keys(0)).to_pylist()[0] for descriptor in built_in[1])
        assert mean == (4 + (1 << 40)) / 3
        assert largest == [1 << 40, 3, 1]
        self.refused(IncompatibleStateError, job.state, editions[0])

    def test_rows_keep_their_time_when_their_type_changes(self, job: Job) -> None:
        time = Time(job)
        job.state(ValueStateDescriptor("v", pa.int32(), ttl=TTL)).update_batch(job.keys(0, 7), [1, 2])
        time.set(60)
        _restart(job)
        wide = ValueStateDescriptor("v", pa.int64(), ttl=TTL)
        job.state(wide).update_batch(job.keys(7), [3])
        time.set(99)
        assert job.state(wide).get_batch(job.keys(0, 7)).to_pylist() == [1, 3]
        _restart(job)
        time.set(100)

        assert job.state(wide).get_batch(job.keys(0, 7)).to_pylist() == [None, 3]

    @pytest.mark.parametrize("kind_of_list", [ListStateDescriptor, ValueStateDescriptor])
    def test_a_time_to_live_comes_and_goes_with_the_type(self, job: Job, kind_of_list: Any) -> None:
        time = Time(job)
        old = kind_of_list("v", pa.struct([("a", pa.int32())]))
        timed = kind_of_list("v", pa.struct([("b", pa.int8()), ("a", pa.int64())]), ttl=TimeToLive(50))
        plain = kind_of_list("v", pa.struct([("a", pa.int64())]), evolution=SchemaEvolution(dropped=["b"]))
        self._add(job, old, 0, {"a": 1})
        time.set(60)
        _restart(job)

        self._add(job, timed, 7, {"b": 1, "a": 2})
        assert self._values(job, timed) == [{"b": None, "a": 1}, {"b": 1, "a": 2}]
        time.set(109)
        _restart(job)
        assert self._values(job, plain) == [{"a": 1}, {"a": 2}]
        _restart(job)
        time.set(1000)
        assert self._values(job, plain) == [{"a": 1}, {"a": 2}]
        _restart(job)
        self._add(job, replace(timed, type=pa.struct([("a", pa.int64())])), 7, {"a": 5})
        time.set(1050)
        assert self._values(job, replace(timed, type=plain.type)) == [None, None]

    @staticmethod
    def _add(job: Job, descriptor: Any, key: int, value: Any) -> None:
        state = job.state(descriptor)
        verb = state.add_batch if isinstance(descriptor, ListStateDescriptor) else state.update_batch
        verb(job.keys(key), [value])

    @staticmethod
    def _values(job: Job, descriptor: Any) -> list[Any]:
        found = job.state(descriptor).get_batch(job.keys(0, 7)).to_pylist()
        return [(item[-1] if item else None) if isinstance(item, list) else item for item in found]

    def test_columns_that_clash_with_the_key_are_told_apart(self, job: Job) -> None:
        old = ValueStateDescriptor("s", pa.struct([("k", pa.int32()), ("a", pa.int32())]))
        new = ValueStateDescriptor(
            "s", pa.struct([("a", pa.int64()), ("b", pa.int32()), ("k", pa.string())]),
            evolution=SchemaEvolution(renamed={"k": "b"}, defaults={"k": "fresh"}),
        )  # fmt: skip
        space = pa.schema([("k", pa.int64())])
        spaced = [ValueStateDescriptor("w", kind, namespace=space) for kind in (pa.int32(), pa.int64())]
        job.state(old).update_batch(job.keys(0), [{"k": 1, "a": 2}])
        job.state(spaced[0]).update_batch(job.keys(0), [4], namespace=5)
        _restart(job)

        found = job.state(new).get_batch(job.keys(0)).to_pylist()
        assert job.state(spaced[1]).get_batch(job.keys(0), namespace=5).to_pylist() == [4]
        _restart(job)

        key = job.key_values.value(0)
        assert found == job.state(new).get_batch(job.keys(0)).to_pylist() == [{"a": 2, "b": 1, "k": "fresh"}]
        assert self.rows(job, new) == [{"k": key, "a": 2, "b": 1, "s_k": "fresh"}]
        assert self.rows(job, spaced[1]) == [{"k": key, "w_k": 5, "w": 4}]

    def test_a_default_widens_and_grows_with_its_field(self, job: Job) -> None:
        kinds = [
            pa.struct([("a", pa.int8())]),
            pa.struct([("a", pa.int8()), ("p", pa.struct([("x", pa.int8())]))]),
            pa.struct([("p", pa.struct([("y", pa.date32()), ("x", pa.int64())])), ("a", pa.int8())]),
        ]
        hints = [None, SchemaEvolution(defaults={"p": {"x": 5}}), SchemaEvolution(defaults={"p.y": DAY})]

        for number, (kind, hint) in enumerate(zip(kinds, hints, strict=True)):
            state = job.state(ValueStateDescriptor("v", kind, evolution=hint))
            state.update_batch(job.keys(number), pa.array([{"a": number, "p": {"x": number}}], kind))
            _restart(job)

        last = ValueStateDescriptor("v", kinds[-1])
        assert job.state(last).get_batch(job.keys(0, 1, 2)).to_pylist() == [
            {"p": {"y": DAY, "x": 5}, "a": 0},
            {"p": {"y": DAY, "x": 1}, "a": 1},
            {"p": {"y": None, "x": 2}, "a": 2},
        ]

    def test_subtasks_that_declare_differently_make_no_checkpoint(self, job: Job) -> None:
        numbers = range(20)
        job.state(ValueStateDescriptor("v", pa.int32())).update_batch(job.keys(*numbers), pa.array(numbers, pa.int32()))
        wide = ValueStateDescriptor("v", pa.int64())
        job.restart(2)
        job.backends[1].state(wide)

        self.refused(InvalidInputError, job.checkpoint, match=r"v \(version 1\), subtask 1 has v \(version 2\)")
        job.backends[0].state(wide)
        _restart(job)

        assert job.state(wide).get_batch(job.keys(*numbers)).to_pylist() == list(numbers)

    def test_operator_state_follows_its_type(self, job: Job) -> None:
        lists = [OperatorListStateDescriptor(mode, POINT, mode) for mode in ("split", "union")]
        rules = BroadcastStateDescriptor("rules", pa.string(), pa.list_(pa.int32()))
        for descriptor in lists:
            job.operator_state(descriptor).add_all([{"x": 1, "y": "a"}, {"x": None, "y": None}])
        job.operator_state(rules).put("a", [1, None])
        # At another parallelism a union list has the elements of all subtasks.
        job.restart()

        changed = pa.struct([("on", pa.date32()), ("at", pa.int64())])
        hints = SchemaEvolution(renamed={"x": "at"}, dropped=["y"], defaults={"on": DAY})
        after = [OperatorListStateDescriptor(mode, changed, mode, evolution=hints) for mode in ("split", "union")]
        wide = BroadcastStateDescriptor("rules", pa.string(), pa.large_list(pa.int64()))
        for wrong in (
            OperatorListStateDescriptor("split", POINT, "union"),
            OperatorListStateDescriptor("split", pa.struct([("x", pa.int8()), ("y", pa.string())])),
            BroadcastStateDescriptor("rules", pa.large_string(), pa.list_(pa.int32())),
            BroadcastStateDescriptor("rules", pa.string(), pa.list_(pa.int16())),
        ):
            self.refused(IncompatibleStateError, job.operator_state, wrong)
        for descriptor in after:
            job.operator_state(descriptor).add_all([{"on": None, "at": 1 << 40}])
        job.operator_state(wide).put("b", [1 << 40])
        job.restart()

        expected = [{"on": DAY, "at": 1}, {"on": DAY, "at": None}, {"on": None, "at": 1 << 40}]
        assert [job.operator_state(descriptor).get() for descriptor in after] == [expected, expected]
        assert job.operator_state(wide).get("a") == [1, None]
        assert job.operator_state(wide).get("b") == [1 << 40]
