"""What operator state means: lists and maps of a subtask, and who gets them at another parallelism."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from arrowstate.errors import (
    IncompatibleStateError,
    InvalidInputError,
    KeyTypeError,
    NullKeyError,
    StateNotFoundError,
    ValueTypeError,
)
from arrowstate.schema.descriptors import ValueStateDescriptor
from arrowstate.schema.operator_state import (
    BroadcastStateDescriptor,
    OperatorListStateDescriptor,
    OperatorStateDescriptor,
)
from suites.deployments import PLAIN_KEYS, Job, Keys
from suites.suite import KeyedStateSuite

__all__ = ["OperatorStateSuite"]

OFFSETS = OperatorListStateDescriptor("offsets", pa.int64())
OTHERS = OperatorListStateDescriptor("others", pa.int64())
SEEN = OperatorListStateDescriptor("seen", pa.string(), mode="union")
RULES = BroadcastStateDescriptor("rules", pa.string(), pa.int64())
CITY = ValueStateDescriptor("city", pa.string())


class OperatorStateSuite(KeyedStateSuite):
    """Split lists are shared out, union lists go to all, broadcast state comes from one old subtask."""

    @pytest.fixture
    def values(self) -> Keys:
        # Operator state knows no keys.
        return PLAIN_KEYS

    def fill(self, job: Job, state: OperatorStateDescriptor, contents: Sequence[Any]) -> None:
        """Give each subtask of a job at this parallelism its own content of a state."""
        job.restart(parallelism=len(contents))
        for operator, content in zip(job.operators, contents, strict=True):
            found: Any = operator.state(state)
            found.clear()
            if isinstance(content, Mapping):
                found.put_all(content)
            else:
                found.add_all(content)

    def contents(self, job: Job, state: OperatorStateDescriptor) -> list[Any]:
        """Return what each subtask has of a state."""
        states: list[Any] = [operator.state(state) for operator in job.operators]
        return [dict(found.items()) if isinstance(state, BroadcastStateDescriptor) else found.get() for found in states]

    # Who gets what

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ([[0, 1, 2, 3, 4]], [[0, 1, 2], [3, 4]]),
            ([[0, 1], [2, 3, 4]], [[0, 1], [2, 3], [4]]),
            ([[7]], [[7], [], [], []]),
            ([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 2, 3, 4, 5, 6, 7]]),
            ([[0, 1, 2], [3]], [[0, 1, 2], [3]]),
            ([[], [], [0, 1]], [[], [], [0, 1]]),
            ([[], []], [[], [], []]),
            ([[0], [], [1, 2], [3]], [[0, 1], [2, 3]]),
        ],
    )
    def test_a_split_list_is_shared_out_as_flink_does(self, job: Job, old: Any, new: Any) -> None:
        self.fill(job, OFFSETS, old)

        job.restart(parallelism=len(new))

        assert self.contents(job, OFFSETS) == new

    def test_the_turn_of_who_gets_the_extra_element_continues_across_states(self, job: Job) -> None:
        states = [OperatorListStateDescriptor(f"state{n}", pa.int64()) for n in range(4)]
        for state, total in zip(states, (1, 1, 4, 2), strict=True):
            job.operator_state(state).add_all(range(total))
            # A union list and a broadcast state in between take no turn.
            job.operator_state(SEEN).add("a")
            job.operator_state(RULES).put("a", 1)

        job.restart(parallelism=3)

        assert [self.contents(job, state) for state in states] == [
            [[0], [], []],
            [[], [0], []],
            [[2], [3], [0, 1]],
            [[0], [1], []],
        ]

    @pytest.mark.parametrize("parallelism", [2, 3, 7, 30])
    def test_every_element_goes_to_exactly_one_subtask(self, job: Job, parallelism: int) -> None:
        totals = {"a": 5, "b": 0, "c": 13, "d": 61, "e": 1}
        for name, total in totals.items():
            job.operator_state(OperatorListStateDescriptor(name, pa.int64())).add_all(range(total))

        job.restart(parallelism=parallelism)

        for name, total in totals.items():
            parts = self.contents(job, OperatorListStateDescriptor(name, pa.int64()))
            assert sorted(element for part in parts for element in part) == list(range(total))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            assert all(part == list(range(part[0], part[0] + len(part))) for part in parts if part)

    def test_a_union_list_goes_to_every_subtask_as_a_whole(self, job: Job) -> None:
        self.fill(job, SEEN, [["a", "b"], [], ["c", "a"]])

        job.restart(parallelism=2)

        assert self.contents(job, SEEN) == [["a", "b", "c", "a"]] * 2
        self.fill(job, SEEN, [["a"], ["b"]])
        job.restart(parallelism=2)
        assert self.contents(job, SEEN) == [["a", "b"]] * 2

    @pytest.mark.parametrize(("parallelism", "expected"), [(5, [0, 1, 2, 0, 1]), (3, [0, 1, 2]), (2, [0, 1]), (1, [0])])
    def test_a_broadcast_state_comes_from_the_old_subtask_of_its_number_modulo_their_count(
        self, job: Job, parallelism: int, expected: list[int]
    ) -> None:
        self.fill(job, RULES, [{"old": 0}, {"old": 1}, {"old": 2}])

        job.restart(parallelism=parallelism)

        assert self.contents(job, RULES) == [{"old": number} for number in expected]

    def test_an_element_is_found_by_subtask_and_place(self, job: Job) -> None:
        self.fill(job, OFFSETS, [[5, 6], [], [7]])
        snapshot = job.checkpoint()

        table = snapshot.operator_state("op", "offsets")

        assert table.to_pylist() == [
            {"_subtask": 0, "offsets": 5},
            {"_subtask": 0, "offsets": 6},
            {"_subtask": 2, "offsets": 7},
        ]
        self.refused(StateNotFoundError, snapshot.operator_state, "op", "offset", match="offsets")

    # Lists

    @pytest.mark.parametrize("mode", ["split", "union"])
    def test_a_list_keeps_order_and_duplicates_over_all_its_verbs(self, job: Job, mode: Any) -> None:
        state = job.operator_state(OperatorListStateDescriptor("list", pa.int64(), mode=mode))
        assert state.get() == []

        state.add(3)
        state.add_all([1, 3])
        state.extend(pa.array([9], pa.int32()))
        state.add_all([])

        assert state.get() == [3, 1, 3, 9]
        assert state.to_arrow().equals(pa.array([3, 1, 3, 9], pa.int64()))
        assert len(state) == 4
        state.update([8])
        assert state.get() == [8]
        state.update([])
        assert state.get() == []
        state.add(1)
        state.clear()
        assert (state.get(), len(state)) == ([], 0)

    def test_a_list_goes_on_after_restores(self, job: Job) -> None:
        expected = []
        for number in range(5):
            job.operator_state(OFFSETS).add_all([number, number])
            job.operator_state(OTHERS).update([number])
            expected += [number, number]
            job.carry_over()

        assert job.operator_state(OFFSETS).get() == expected
        assert job.operator_state(OTHERS).get() == [4]

    def test_a_null_element_is_refused_and_the_list_is_unchanged(self, job: Job) -> None:
        job.operator_state(OFFSETS).add(5)
        job.carry_over()
        state = job.operator_state(OFFSETS)

        self.refused(InvalidInputError, state.add, None, match="offsets")
        self.refused(InvalidInputError, state.add_all, [1, None], match="place 1")
        self.refused(InvalidInputError, state.add_all, None, match="sequence")
        self.refused(InvalidInputError, state.update, None, match="sequence")
        self.refused(InvalidInputError, state.update, [None], match="place 0")
        self.refused(InvalidInputError, state.extend, pa.array([2, None]), match="place 1")

        assert state.get() == [5]

    @pytest.mark.parametrize("value", ["text", 1.5, 1 << 70])
    def test_an_element_of_another_type_is_refused(self, job: Job, value: object) -> None:
        state = job.operator_state(OFFSETS)
        state.add(5)

        self.refused(ValueTypeError, state.add, value, match="offsets")
        self.refused(ValueTypeError, state.add_all, [1, value], match="offsets")
        self.refused(ValueTypeError, state.update, [1, value], match="offsets")

        assert state.get() == [5]

    def test_what_is_read_or_was_given_is_a_copy(self, job: Job) -> None:
        state = job.operator_state(OperatorListStateDescriptor("lists", pa.list_(pa.int64())))
        rules = job.operator_state(BroadcastStateDescriptor("lists_by_key", pa.string(), pa.list_(pa.int64())))
        given = [1]
        state.add(given)
        rules.put("a", given)
        given.append(2)

        state.get()[0].append(2)
        state.get().append([3])
        rules.get("a").append(2)

        assert state.get() == [[1]]
        assert rules.get("a") == [1]

    # Broadcast state

    def test_a_broadcast_state_is_a_map_whose_values_may_be_null(self, job: Job) -> None:
        rules = job.operator_state(RULES)
        assert rules.is_empty()
        rules.put_all({"a": 1, "d": 5})
        rules.put("b", None)
        rules.put_batch(pa.array(["c", "a", "a"]), pa.array([3, 4, 5]))
        rules.remove("c")
        rules.remove("nothing")
        job.carry_over()
        rules = job.operator_state(RULES)

        assert dict(rules.items()) == {"a": 5, "b": None, "d": 5}
        assert sorted(rules.keys()) == ["a", "b", "d"]
        assert rules.contains("b")
        assert not rules.contains("c")
        assert rules.get("b") is None
        assert rules.get_batch(["a", "b", "c"]).to_pylist() == [5, None, None]
        assert rules.contains_batch(["a", "b", "c"]).to_pylist() == [True, True, False]
        assert (len(rules), rules.is_empty()) == (3, False)

    def test_a_broadcast_state_loses_entries_and_all_of_them_over_snapshots(self, job: Job) -> None:
        entries = {"a": 1, "b": 2, "c": 3}
        job.operator_state(RULES).put_all(entries)
        job.carry_over()
        assert self.contents(job, RULES) == [entries]

        job.operator_state(RULES).remove("b")
        job.carry_over()
        assert self.contents(job, RULES) == [{"a": 1, "c": 3}]

        job.operator_state(RULES).clear()
        job.carry_over()
        assert self.contents(job, RULES) == [{}]
        assert job.operator_state(RULES).is_empty()

    def test_what_does_not_fit_a_broadcast_state_is_refused_and_it_is_unchanged(self, job: Job) -> None:
        rules = job.operator_state(RULES)
        rules.put("a", 1)

        self.refused(NullKeyError, rules.put, None, 3)
        self.refused(NullKeyError, rules.put_all, {"b": 1, None: 2})
        self.refused(NullKeyError, rules.put_batch, pa.array(["b", None]), pa.array([1, 2]))
        self.refused(KeyTypeError, rules.put, 5, 3)
        self.refused(ValueTypeError, rules.put, "b", "three")
        self.refused(ValueTypeError, rules.put_batch, ["b"], ["three"])

        assert dict(rules.items()) == {"a": 1}

    def test_a_keyed_operator_reads_broadcast_state_through_a_view_that_cannot_write(self, job: Job) -> None:
        rules = job.operator_state(RULES)
        view = rules.read_only()

        rules.put("b", 2)

        assert dict(view.items()) == {"b": 2}
        assert view.get("b") == 2
        assert view.to_arrow().to_pylist() == [{"rules_key": "b", "rules": 2}]
        assert not [verb for verb in ("put", "put_all", "put_batch", "remove", "clear") if hasattr(view, verb)]

    # Names and snapshots

    def test_one_descriptor_gives_one_state(self, job: Job) -> None:
        for descriptor in (OFFSETS, SEEN, RULES):
            assert job.operator_state(descriptor) is job.operator_state(descriptor)

        job.operator_state(OFFSETS).add(1)
        job.operator_state(OTHERS).add(2)

        assert self.contents(job, OFFSETS) == [[1]]
        assert self.contents(job, OTHERS) == [[2]]
        assert job.operators[0].state_names == ("offsets", "seen", "rules", "others")

    def test_a_name_has_one_kind_and_one_type_at_once_and_after_a_restore(self, job: Job) -> None:
        declared: list[OperatorStateDescriptor] = [
            OperatorListStateDescriptor("state", pa.int64()),
            OperatorListStateDescriptor("state", pa.string()),
            OperatorListStateDescriptor("state", pa.int64(), mode="union"),
            BroadcastStateDescriptor("state", pa.string(), pa.int64()),
            BroadcastStateDescriptor("state", pa.int64(), pa.int64()),
        ]
        for number, one in enumerate(declared):
            name = f"state{number}"
            job.operator_state(_named(one, name))
            for _ in range(2):
                for other in declared:
                    if other is not one:
                        self.refused(IncompatibleStateError, job.operator_state, _named(other, name), match=name)
                job.restart()
        self.refused(InvalidInputError, job.operator_state, OperatorListStateDescriptor("State0", pa.int64()))

    def test_a_state_that_nobody_touches_survives(self, job: Job) -> None:
        job.operator_state(OFFSETS).add_all([1, 2])
        job.operator_state(RULES).put("a", 1)
        job.operator_state(SEEN).add("x")
        job.restart()
        job.restart()

        assert job.operators[0].state_names == ("offsets", "rules", "seen")
        assert self.contents(job, OFFSETS) == [[1, 2]]
        assert self.contents(job, RULES) == [{"a": 1}]
        assert self.contents(job, SEEN) == [["x"]]

    def test_each_snapshot_keeps_its_moment(self, job: Job) -> None:
        snapshots = []
        for number in range(4):
            job.operator_state(OFFSETS).add(number)
            job.operator_state(RULES).put("last", number)
            snapshots.append(job.checkpoint())
            job.operator_state(OFFSETS).add(-1)
            job.operator_state(OFFSETS).update(range(number + 1))
            job.operator_state(RULES).put("later", number)
            job.operator_state(RULES).remove("later")

        for number, snapshot in reversed(list(enumerate(snapshots))):
            job.restore(snapshot)
            assert self.contents(job, OFFSETS) == [list(range(number + 1))]
            assert self.contents(job, RULES) == [{"last": number}]

    def test_large_states_and_empty_ones_are_restored(self, job: Job) -> None:
        keys, numbers = pa.array([f"rule {number}" for number in range(3000)]), pa.array(range(3000))
        self.fill(job, OFFSETS, [range(5000), [], range(3000)])
        for operator in job.operators:
            operator.state(RULES).put_batch(keys, numbers)
            operator.state(SEEN)
        job.restart(parallelism=2)

        assert self.contents(job, OFFSETS) == [list(range(4000)), [*range(4000, 5000), *range(3000)]]
        assert self.contents(job, SEEN) == [[], []]
        for operator in job.operators:
            assert operator.state(RULES).get_batch(keys).equals(numbers)
            assert len(operator.state(RULES)) == 3000

    def test_keyed_and_operator_state_of_an_operator_go_together(self, job: Job) -> None:
        job.state(CITY).update_batch(job.keys(0), ["Rome"])
        job.operator_state(OFFSETS).add_all([1, 2])
        job.carry_over()

        assert job.state(CITY).get_batch(job.keys(0)).to_pylist() == ["Rome"]
        assert self.contents(job, OFFSETS) == [[1, 2]]
        job.operator_state(OperatorListStateDescriptor("City", pa.int64()))
        self.refused(InvalidInputError, job.checkpoint, match="City")

    def test_subtasks_of_one_operator_have_the_same_states(self, job: Job) -> None:
        job.restart(parallelism=2)
        job.operators[0].state(OFFSETS)

        self.refused(InvalidInputError, job.checkpoint, match="same operator states")

        job.operators[1].state(OFFSETS)
        assert job.checkpoint().operator_state("op", "offsets").num_rows == 0


def _named(descriptor: OperatorStateDescriptor, name: str) -> OperatorStateDescriptor:
    if isinstance(descriptor, BroadcastStateDescriptor):
        return BroadcastStateDescriptor(name, descriptor.key_type, descriptor.type)
    return OperatorListStateDescriptor(name, descriptor.type, descriptor.mode)
