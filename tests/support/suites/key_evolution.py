"""What a change of an operator's key means: rows follow their keys, and those of equal keys are merged by a rule."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.state.backend.restoring import restore_backend
from arrowstate_formats.key_groups import key_groups
from suites.deployments import Job
from suites.suite import TTL, KeyedStateSuite, Time

__all__ = ["KeyEvolutionSuite"]

_SPACE = pa.schema([("space", pa.string())])
_SUMS = pa.struct([("n", pa.int64()), ("most", pa.float64())])
VALUE = arrowstate.ValueStateDescriptor("value", _SUMS)
WINDOW = arrowstate.ValueStateDescriptor("window", pa.int64(), namespace=_SPACE)
LIST = arrowstate.ListStateDescriptor("list", pa.int64())
MAP = arrowstate.MapStateDescriptor("map", pa.struct([("u", pa.int32())]), pa.int64())
SUM = arrowstate.ReducingStateDescriptor("sum", pa.int64(), reduce="sum")
FIELDS = arrowstate.ReducingStateDescriptor("fields", _SUMS, reduce={"n": "count", "most": "max"})
LAST = arrowstate.ReducingStateDescriptor("last", pa.int64(), reduce="last")
CALLED = arrowstate.ReducingStateDescriptor("called", pa.string(), reduce=lambda left, right: f"{left}{right}")
MEAN = arrowstate.AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean")
STATES: tuple[StateDescriptor, ...] = (VALUE, WINDOW, LIST, MAP, SUM, FIELDS, LAST, CALLED, MEAN)
RULES: dict[str, Any] = {
    "value": "max",
    "window": lambda left, right: min(left, right),
    "list": "merge",
    "map": "sum",
    "sum": "merge",
    "fields": "merge",
    "last": "min",
    "called": lambda left, right: "".join(sorted(left + right)),
    "mean": "merge",
}


class KeyEvolutionSuite(KeyedStateSuite):
    """Key columns follow the rules of other columns; whose keys become equal needs a rule, timers aside."""

    @pytest.fixture
    def people(self, job: Job) -> Job:
        """A job keyed by a key of the test and an int32 `d`, with rows in a state of each kind and timers."""
        job.backends = [
            job.deployment.make_backend(pa.schema([("k", job.key_values.type), ("d", pa.int32())]), job.clock)
        ]
        # Of each key k there are the keys (k, 0) and (k, 1).
        self._fill(job, job.backend, [(k, d) for k in range(9) for d in (0, 1)])
        return job

    @staticmethod
    def _fill(job: Job, backend: arrowstate.KeyedStateBackend, keys: Sequence[tuple[int, int]]) -> None:
        batch = KeyEvolutionSuite._batch(job, keys, "d", pa.int32())
        numbers = [10 * k + d for k, d in keys]
        backend.state(VALUE).update_batch(batch, [{"n": n, "most": n / 2} for n in numbers])
        backend.state(WINDOW).update_batch(batch, numbers, namespace="a")
        backend.state(WINDOW).update_batch(batch, [-n for n in numbers], namespace="b")
        for turn in range(3):
            backend.state(LIST).add_batch(batch, [1000 * turn + n for n in numbers])
        backend.state(MAP).put_batch(batch, pa.array([{"u": 1}] * len(keys), MAP.key_type), numbers)
        backend.state(MAP).put_batch(batch, pa.array([{"u": d} for _, d in keys], MAP.key_type), [None] * len(keys))
        backend.state(SUM).add_batch(batch, numbers)
        backend.state(FIELDS).add_batch(batch, [{"n": 1, "most": n} for n in numbers])
        backend.state(LAST).add_batch(batch, numbers)
        backend.state(CALLED).add_batch(batch, [str(d) for _, d in keys])
        backend.state(MEAN).add_batch(batch, numbers)
        backend.timers().register_batch(batch, [k for k, _ in keys])

    @staticmethod
    def _batch(job: Job, keys: Sequence[tuple[int, int]], second: str, kind: pa.DataType) -> pa.RecordBatch:
        columns = [job.keys(*[k for k, _ in keys]), pa.array([d for _, d in keys], kind)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([("k", job.key_values.type), (second, kind)]))

    @staticmethod
    def _read(backend: arrowstate.KeyedStateBackend, keys: Any, count: int) -> dict[str, list[Any]]:
        """Return what every state has for the keys."""
        users = [pa.array([{"u": number}] * count, MAP.key_type) for number in (0, 1)]
        return {
            "value": backend.state(VALUE).get_batch(keys).to_pylist(),
            "a": backend.state(WINDOW).get_batch(keys, namespace="a").to_pylist(),
            "b": backend.state(WINDOW).get_batch(keys, namespace="b").to_pylist(),
            "list": backend.state(LIST).get_batch(keys).to_pylist(),
            "map 0": backend.state(MAP).get_batch(keys, users[0]).to_pylist(),
            "map 1": backend.state(MAP).get_batch(keys, users[1]).to_pylist(),
            "sum": backend.state(SUM).get_batch(keys).to_pylist(),
            "fields": backend.state(FIELDS).get_batch(keys).to_pylist(),
            "last": backend.state(LAST).get_batch(keys).to_pylist(),
            "called": backend.state(CALLED).get_batch(keys).to_pylist(),
            "mean": backend.state(MEAN).get_batch(keys).to_pylist(),
        }

    @staticmethod
    def _sizes(backends: Sequence[arrowstate.KeyedStateBackend]) -> dict[str, int]:
        sizes = {state.name: sum(len(backend.state(state)) for backend in backends) for state in STATES}
        return {**sizes, "timers": sum(backend.timers().count() for backend in backends)}

    @staticmethod
    def rekey(
        job: Job,
        key: Mapping[str, pa.DataType],
        *,
        parallelism: int = 1,
        max_parallelism: int = 128,
        snapshot: arrowstate.Snapshot | None = None,
        **hints: Any,
    ) -> arrowstate.Snapshot:
        """Checkpoint, fail, and restore under another key; return what was restored."""
        taken = snapshot or job.checkpoint()
        taken = job.savepoint() if job.deployment.savepoint and snapshot is None else taken
        job.backends = [
            restore_backend(
                taken.storage,
                taken.store_id,
                taken.entry,
                "op",
                parallelism=parallelism,
                subtask=subtask,
                max_parallelism=max_parallelism,
                memory_budget_bytes=job.deployment.memory_budget_bytes,
                merge_policy=job.deployment.merge_policy,
                clock_ms=job.clock,
                key=pa.schema(list(key.items())),
                evolution=arrowstate.SchemaEvolution(**hints),
            )
            for subtask in range(parallelism)
        ]
        job.operators = [
            taken.restore_operator_state("op", parallelism=parallelism, subtask=subtask)
            for subtask in range(parallelism)
        ]
        return taken

    def test_new_names_write_no_row_again(self, people: Job) -> None:
        keys = [(k, d) for k in range(9) for d in (0, 1)]
        expected = self._read(people.backend, self._batch(people, keys, "d", pa.int32()), len(keys))
        before = people.checkpoint()

        key = {"k": people.key_values.type, "map_value": pa.int32()}
        self.rekey(people, key, snapshot=before, renamed={"d": "map_value"})
        after = people.checkpoint()

        states = {state["name"]: state for state in after.show()["operators"][0]["states"]}
        runs = {state["name"]: state["runs"] for state in before.show()["operators"][0]["states"]}
        written = {name: [version["runs"] for version in state["schema_versions"]] for name, state in states.items()}
        # A version without runs is forgotten.
        assert written == {name: [count, 0] if count else [0] for name, count in runs.items()}
        renamed = self._batch(people, keys, "map_value", pa.int32())
        assert self._read(people.backend, renamed, len(keys)) == expected
        assert people.backend.timers().count() == len(keys)
        people.carry_over()
        self.rekey(people, key, renamed={"d": "map_value"})
        assert self._read(people.backend, renamed, len(keys)) == expected
        assert set(self.rows(people, SUM)[0]) == {"k", "map_value", "sum"}

    @pytest.mark.parametrize(
        ("scale", "key_of", "hints"),
        [
            pytest.param((3, 20), lambda k: {"k": k, "d": pa.int64()}, {}, id="wider"),
            pytest.param((1, 128), lambda k: {"d": pa.int32(), "k": k}, {}, id="in another order"),
            pytest.param((1, 64), lambda k: {"e": pa.int64(), "k": k}, {"renamed": {"d": "e"}}, id="renamed and wider"),
            pytest.param(
                (2, 128),
                lambda k: {"k": k, "d": pa.int32(), "x": pa.string()},
                {"defaults": {"x": "new"}},
                id="one more",
            ),
        ],
    )
    def test_rows_follow_keys_that_stay_apart(
        self, people: Job, scale: tuple[int, int], key_of: Callable[[pa.DataType], Any], hints: Any
    ) -> None:
        keys = [(k, d) for k in range(9) for d in (0, 1)]
        expected = self._read(people.backend, self._batch(people, keys, "d", pa.int32()), len(keys))
        sizes = self._sizes(people.backends)
        people.carry_over()
        key = key_of(people.key_values.type)

        self.rekey(people, key, parallelism=scale[0], max_parallelism=scale[1], **hints)

        old = self._batch(people, keys, "d", pa.int32())
        columns = {
            "k": old.column(0), "d": old.column(1), "e": old.column(1), "x": pa.array(["new"] * len(keys))
        }  # fmt: skip
        new = pa.RecordBatch.from_arrays([columns[name].cast(kind) for name, kind in key.items()], names=list(key))
        assert self._sizes(people.backends) == sizes
        self._check_parts(people, new, expected, scale[1])
        people.restart()
        assert self._read(people.backend, new, len(keys)) == expected
        assert self._sizes(people.backends) == sizes

    def _check_parts(self, job: Job, keys: pa.RecordBatch, expected: Mapping[str, list[Any]], maximum: int) -> None:
        """Compare the part of each subtask with what is expected of all keys."""
        groups = key_groups(keys, maximum).to_pylist()
        for backend in job.backends:
            own = [number for number, group in enumerate(groups) if group in backend.key_groups]
            part = keys.take(pa.array(own, pa.int64()))
            assert self._read(backend, part, len(own)) == {
                name: [values[number] for number in own] for name, values in expected.items()
            }

    @pytest.mark.parametrize("scale", [(1, 128), (3, 20)], ids=str)
    def test_rows_whose_keys_become_equal_are_merged(self, people: Job, scale: tuple[int, int]) -> None:
        numbers = range(9)
        expected: dict[str, list[Any]] = {
            "value": [{"n": 10 * k + 1, "most": (10 * k + 1) / 2} for k in numbers],
            "a": [10 * k for k in numbers],
            "b": [-10 * k - 1 for k in numbers],
            "map 0": [None for k in numbers],
            "map 1": [10 * k for k in numbers],
            "sum": [20 * k + 1 for k in numbers],
            "fields": [{"n": 2, "most": 10.0 * k + 1} for k in numbers],
            "last": [10 * k for k in numbers],
            "called": ["01" for k in numbers],
            "mean": [(20 * k + 1) / 2 for k in numbers],
        }

        self.rekey(
            people,
            {"k": people.key_values.type},
            parallelism=scale[0],
            max_parallelism=scale[1],
            dropped=["d"],
            merge=RULES,
        )
        people.restart()

        keys = people.keys(*numbers)
        found = self._read(people.backend, keys, len(numbers))
        lists = found.pop("list")
        assert found == expected
        # Elements of one old key keep their order.
        for k, elements in zip(numbers, lists, strict=True):
            assert len(elements) == 6
            for d in (0, 1):
                assert [item for item in elements if item % 1000 == 10 * k + d] == [
                    1000 * turn + 10 * k + d for turn in range(3)
                ]
        assert people.backend.timers().count() == len(numbers)
        assert len(people.state(MAP)) == 2 * len(numbers)
        # What is added comes after what was merged.
        people.state(LIST).add_batch(keys, [-1] * len(numbers))
        assert people.state(LIST).get_batch(keys).to_pylist() == [[*elements, -1] for elements in lists]

    @pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
    def test_keys_that_become_equal_without_a_rule_are_refused(self, people: Job, state: StateDescriptor) -> None:
        snapshot = people.checkpoint()
        others = {name: rule for name, rule in RULES.items() if name != state.name}
        key = {"k": people.key_values.type}

        remedy = f"'{state.name}' is rows of different keys.*merge={{'{state.name}': "
        with pytest.raises(arrowstate.IncompatibleStateError, match=remedy):
            self.rekey(people, key, snapshot=snapshot, dropped=["d"], merge=others)

        people.restore(snapshot)
        keys = self._batch(people, [(3, 0), (3, 1)], "d", pa.int32())
        assert people.state(SUM).get_batch(keys).to_pylist() == [30, 31]

    def test_no_rule_is_needed_where_no_keys_become_equal(self, job: Job) -> None:
        job.backends = [
            job.deployment.make_backend(pa.schema([("k", job.key_values.type), ("d", pa.int32())]), job.clock)
        ]
        self._fill(job, job.backend, [(k, k % 2) for k in range(9)])
        expected = self._read(job.backend, self._batch(job, [(k, k % 2) for k in range(9)], "d", pa.int32()), 9)

        self.rekey(job, {"k": job.key_values.type}, dropped=["d"])
        job.carry_over()

        assert self._read(job.backend, job.keys(*range(9)), 9) == expected

    def test_rules_that_do_not_fit_are_refused(self, people: Job) -> None:
        snapshot = people.checkpoint()
        key = {"k": people.key_values.type}
        wrong: list[tuple[str, Any, str]] = [
            ("nothing", "sum", "there are value, window"),
            ("value", "last", "product or min or max, got 'last'"),
            ("value", "merge", "sum or product or min or max, got 'merge'"),
            ("list", max, "by merge, got"),
            ("mean", "sum", "by merge, got 'sum'"),
            ("last", "merge", "got 'merge'"),
            ("called", "sum", "got 'sum'"),
            ("timers_event_time", "max", "by no rule, got 'max'"),
        ]

        for state, rule, message in wrong:
            with pytest.raises(arrowstate.InvalidInputError, match=message):
                self.rekey(people, key, snapshot=snapshot, dropped=["d"], merge={**RULES, state: rule})

    def test_what_a_rule_cannot_do_fails_the_restore_alone(self, people: Job) -> None:
        batch = self._batch(people, [(0, 0), (0, 1)], "d", pa.int32())
        people.state(SUM).add_batch(batch, [(1 << 63) - 100] * 2)
        snapshot = people.checkpoint()
        key = {"k": people.key_values.type}

        with pytest.raises(arrowstate.ValueOverflowError, match="sum of state 'sum'"):
            self.rekey(people, key, snapshot=snapshot, dropped=["d"], merge=RULES)
        with pytest.raises(arrowstate.ProcessElementError, match="ZeroDivisionError"):
            self.rekey(people, key, snapshot=snapshot, dropped=["d"], merge={**RULES, "sum": lambda *_: 1 // 0})
        self.rekey(people, key, snapshot=snapshot, dropped=["d"], merge={**RULES, "sum": "max"})

        assert people.state(SUM).get_batch(people.keys(0)).to_pylist() == [(1 << 63) - 99]

    @pytest.mark.parametrize(
        ("key", "hints", "message"),
        [
            ({"d": pa.int32()}, {}, "'op.k' is .* declared as nothing.*dropped="),
            ({"k": None, "d": pa.int16()}, {}, "'op.key.d' is int32 but is declared as int16"),
            ({"k": None, "d": pa.string()}, {}, "'op.key.d' is int32 but is declared as string"),
            ({"k": None, "d": pa.int32(), "x": pa.int8()}, {}, "'op.key.x' is not there.*defaults="),
        ],
    )
    def test_a_key_that_cannot_follow_is_refused(self, people: Job, key: Any, hints: Any, message: str) -> None:
        key = {name: people.key_values.type if kind is None else kind for name, kind in key.items()}

        with pytest.raises(arrowstate.IncompatibleStateError, match=message.replace("op.k'", "op.key.k'")):
            self.rekey(people, key, **hints)

    def test_an_expired_row_is_not_merged_into_a_live_one(self, job: Job) -> None:
        time = Time(job)
        job.backends = [
            job.deployment.make_backend(pa.schema([("k", job.key_values.type), ("d", pa.int32())]), job.clock)
        ]
        total = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", ttl=TTL)
        batch = self._batch(job, [(0, 0), (1, 0), (1, 1)], "d", pa.int32())
        job.state(total).add_batch(batch.slice(0, 2), [100, 1])
        time.set(60)
        job.state(total).add_batch(self._batch(job, [(0, 1), (1, 1)], "d", pa.int32()), [5, 10])
        job.checkpoint()
        time.set(120)

        self.rekey(job, {"k": job.key_values.type}, dropped=["d"], merge={"total": "merge"})

        assert job.state(total).get_batch(job.keys(0, 1)).to_pylist() == [5, 10]
        time.set(159)
        assert job.state(total).get_batch(job.keys(0, 1)).to_pylist() == [5, 10]
        time.set(160)
        assert job.state(total).get_batch(job.keys(0, 1)).to_pylist() == [None, None]

    def test_merged_rows_live_as_long_as_the_youngest(self, job: Job) -> None:
        time = Time(job)
        job.backends = [
            job.deployment.make_backend(pa.schema([("k", job.key_values.type), ("d", pa.int32())]), job.clock)
        ]
        total = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", ttl=TTL)
        job.state(total).add_batch(self._batch(job, [(0, 0), (1, 1)], "d", pa.int32()), [1, 10])
        time.set(60)
        job.state(total).add_batch(self._batch(job, [(0, 1), (1, 0)], "d", pa.int32()), [2, 20])

        self.rekey(job, {"k": job.key_values.type}, dropped=["d"], merge={"total": "merge"})
        job.carry_over()

        time.set(159)
        assert job.state(total).get_batch(job.keys(0, 1)).to_pylist() == [3, 30]
        time.set(160)
        assert job.state(total).get_batch(job.keys(0, 1)).to_pylist() == [None, None]

    def test_fields_inside_keys_and_user_keys_stay_what_they_are(self, job: Job) -> None:
        place = pa.struct([("x", pa.int32()), ("y", pa.string())])
        job.backends = [job.deployment.make_backend(pa.schema([("p", place), ("d", pa.int32())]), job.clock)]
        values = [arrowstate.ValueStateDescriptor("v", kind) for kind in (pa.int32(), pa.int64())]
        keys = {"p": pa.array([{"x": 1, "y": "a"}, {"x": None, "y": "b"}], place), "d": pa.array([7, 8], pa.int32())}
        users = pa.array([{"u": 4}, {"u": 5}], MAP.key_type)
        job.state(values[0]).update_batch(pa.table(keys), pa.array([1, 2], pa.int32()))
        job.state(MAP).put_batch(pa.table(keys), users, [10, 20])
        job.restart()
        job.state(values[1])
        # The value changes first, so there are runs from before the key's fields had ids.
        job.checkpoint()

        self.rekey(job, {"p": place, "e": pa.int32()}, renamed={"d": "e"})
        job.state(values[1]).update_batch(pa.table({"p": keys["p"][:1], "e": keys["d"][:1]}), [3])
        job.checkpoint()
        assert self.rows(job, MAP) == [
            {"p": {"x": 1, "y": "a"}, "e": 7, "map_key": {"u": 4}, "map": 10},
            {"p": {"x": None, "y": "b"}, "e": 8, "map_key": {"u": 5}, "map": 20},
        ]
        changed = pa.struct([("z", pa.string()), ("x", pa.int64())])
        self.rekey(job, {"p": changed}, renamed={"p.y": "z"}, dropped=["e"])
        job.carry_over()

        moved = pa.array([{"z": "a", "x": 1}, {"z": "b", "x": None}], changed)
        assert job.state(values[1]).get_batch(moved).to_pylist() == [3, 2]
        assert job.state(MAP).get_batch(moved, users).to_pylist() == [10, 20]

    def test_a_key_may_take_the_name_of_another_column(self, job: Job) -> None:
        value = arrowstate.ValueStateDescriptor("s", pa.struct([("n", pa.int64()), ("a", pa.int64())]))
        space = arrowstate.ValueStateDescriptor("w", pa.int64(), namespace=pa.schema([("n", pa.string())]))
        job.state(value).update_batch(job.keys(0), [{"n": 1, "a": 2}])
        job.state(space).update_batch(job.keys(0), [3], namespace="x")

        for old, new in (("k", "n"), ("n", "k")):
            self.rekey(job, {new: job.key_values.type}, renamed={old: new})

            assert job.state(value).get_batch(job.keys(0)).to_pylist() == [{"n": 1, "a": 2}]
            assert job.state(space).get_batch(job.keys(0), namespace="x").to_pylist() == [3]
            columns = set(self.rows(job, value)[0]), set(self.rows(job, space)[0])
            assert columns == ({new, "s_n" if new == "n" else "n", "a"}, {new, "w_n" if new == "n" else "n", "w"})

    def test_elements_of_lists_are_not_mixed_where_old_keys_collide(self, job: Job) -> None:
        kind = pa.list_(pa.int64())
        job.backends = [job.deployment.make_backend(pa.schema([("k", job.key_values.type), ("d", kind)]), job.clock)]
        keys = pa.table({"k": job.keys(0, 0), "d": pa.array([[1], [None, 1]], kind)})
        job.state(LIST).add_batch(keys, [1, 2])

        with pytest.raises(arrowstate.IncompatibleStateError, match="rows of different keys"):
            self.rekey(job, {"k": job.key_values.type}, dropped=["d"])

    def test_evolution_of_a_key_needs_the_key(self, people: Job) -> None:
        snapshot = people.checkpoint()

        with pytest.raises(arrowstate.InvalidInputError, match="pass the new key too"):
            snapshot.restore("op", evolution=arrowstate.SchemaEvolution(dropped=["d"]))
