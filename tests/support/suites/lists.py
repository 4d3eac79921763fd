"""What list state means."""

import pyarrow as pa

from arrowstate.errors import InvalidInputError, KeyOutOfRangeError, NullKeyError, ValueTypeError
from arrowstate.schema.descriptors import ListStateDescriptor
from arrowstate_formats.key_groups import KeyGroupRange
from suites.deployments import Job
from suites.suite import KeyedStateSuite

__all__ = ["ListStateSuite"]

NUMBERS = ListStateDescriptor("numbers", pa.int64())
VISITS = ListStateDescriptor("visits", pa.struct([("page", pa.string()), ("times", pa.list_(pa.int32()))]))
TEXTS = ListStateDescriptor("texts", pa.string())


class ListStateSuite(KeyedStateSuite):
    """Order and duplicates are kept, nulls are refused, absent is empty."""

    def lists(self, job: Job, *keys: int, state: ListStateDescriptor = NUMBERS) -> list[list[object]]:
        lists: list[list[object]] = job.state(state).get_batch(job.keys(*keys)).to_pylist()
        return lists

    def test_a_key_without_elements_has_an_empty_list(self, job: Job) -> None:
        job.at(0)

        assert job.state(NUMBERS).get() == []
        assert self.lists(job, 0, 1, 0) == [[], [], []]
        assert self.lists(job) == []

    def test_order_and_duplicates_are_kept_over_batches(self, job: Job) -> None:
        for round in range(12):
            job.state(NUMBERS).add_batch(job.keys(0, 7, 0, 14, 7), pa.array([3, 1, 3, round, 2]))
            job.carry_over()

        assert self.lists(job, 0, 7, 14, 21) == [[3, 3] * 12, [1, 2] * 12, list(range(12)), []]
        assert len(job.state(NUMBERS)) == 60

    def test_scalar_and_batch_verbs_see_each_other_in_order(self, job: Job) -> None:
        job.at(0)
        job.state(NUMBERS).add(1)
        job.state(NUMBERS).add_batch(job.keys(0, 1), pa.array([2, 9]))
        job.carry_over()
        job.at(0)
        job.state(NUMBERS).add_all([3, 4])
        job.state(NUMBERS).add_all_batch(job.keys(1, 0), pa.array([[], [5]], pa.list_(pa.int64())))
        job.state(NUMBERS).add(6)

        assert job.state(NUMBERS).get() == [1, 2, 3, 4, 5, 6]
        assert self.lists(job, 1, 0, 1) == [[9], [1, 2, 3, 4, 5, 6], [9]]

    def test_a_null_element_is_refused_and_the_state_is_unchanged(self, job: Job) -> None:
        state = job.state(NUMBERS)
        state.add_batch(job.keys(0, 1), pa.array([1, 2]))
        job.at(0)
        lists = pa.list_(pa.int64())

        self.refused(InvalidInputError, state.add, None, match="null")
        self.refused(InvalidInputError, state.add_all, [1, None], match="null")
        self.refused(InvalidInputError, state.add_all, None)
        self.refused(InvalidInputError, state.update, None)
        self.refused(InvalidInputError, state.update, [None], match="null")
        self.refused(InvalidInputError, state.add_batch, job.keys(0, 1), pa.array([1, None]), match="row 1")
        self.refused(InvalidInputError, state.add_all_batch, job.keys(0), pa.array([[1, None]], lists))
        self.refused(InvalidInputError, state.add_all_batch, job.keys(0, 1), pa.array([[1], None], lists))
        self.refused(InvalidInputError, state.update_batch, job.keys(0, 1), pa.array([[1], [None]], lists))
        self.refused(InvalidInputError, state.update_batch, job.keys(0, 1), pa.array([[1], None], lists))

        job.carry_over()
        assert self.lists(job, 0, 1) == [[1], [2]]

    def test_what_does_not_fit_is_refused_and_the_state_is_unchanged(self, job: Job) -> None:
        state = job.state(NUMBERS)
        state.add_batch(job.keys(0), pa.array([1]))
        job.at(0)

        self.refused(ValueTypeError, state.add, "one")
        self.refused(ValueTypeError, state.add, 1.5)
        self.refused(ValueTypeError, state.add_all, [2, "one"])
        self.refused(ValueTypeError, state.update, [2, "one"])
        self.refused(ValueTypeError, state.add_batch, job.keys(0, 1), ["a", "b"])
        self.refused(InvalidInputError, state.add_batch, job.keys(0, 1), [1], match="2 keys need 2 values")
        self.refused(NullKeyError, state.add_batch, pa.array([None], job.key_values.type), [1])
        self.refused(InvalidInputError, state.add_batch, job.keys(0), [1], namespace=1, match="no namespaces")
        self.refused(InvalidInputError, state.add_batch, job.keys(0), [1], timestamps=[1], match="no time to live")

        assert self.lists(job, 0, 1) == [[1], []]

    def test_a_key_of_another_subtask_is_refused_by_every_verb(self, job: Job) -> None:
        state = job.state(NUMBERS)
        state.add_batch(job.keys(*range(20)), list(range(20)))
        job.restart(parallelism=2)
        halves = job.backends
        state = halves[0].state(NUMBERS)
        before = state.get_batch(halves[0].keys(NUMBERS)).to_pylist()
        foreign = halves[1].keys(NUMBERS).column(0)[:1]
        lists = pa.array([[]], pa.list_(pa.int64()))

        assert halves[0].key_groups == KeyGroupRange(0, 63)
        self.refused(KeyOutOfRangeError, state.add_batch, foreign, [1], match="key group")
        self.refused(KeyOutOfRangeError, state.add_all_batch, foreign, lists, match="key group")
        self.refused(KeyOutOfRangeError, state.update_batch, foreign, lists, match="key group")
        self.refused(KeyOutOfRangeError, state.get_batch, foreign, match="key group")
        self.refused(KeyOutOfRangeError, state.clear_batch, foreign, match="key group")
        assert state.get_batch(halves[0].keys(NUMBERS)).to_pylist() == before

    def test_a_scalar_verb_without_a_current_key_is_refused(self, job: Job) -> None:
        state = job.state(NUMBERS)

        for verb in (state.get, state.clear):
            self.refused(InvalidInputError, verb, match="no current key")
        for verb in (state.add_all, state.update):
            self.refused(InvalidInputError, verb, [1], match="no current key")
        self.refused(InvalidInputError, state.add, 1, match="no current key")

    def test_an_empty_list_adds_nothing_and_as_an_update_clears(self, job: Job) -> None:
        job.state(NUMBERS).add_batch(job.keys(0, 1, 2), pa.array([1, 2, 3]))
        job.carry_over()
        state = job.state(NUMBERS)
        job.at(0)
        state.add_all([])
        state.add_all_batch(job.keys(1), [[]])
        assert self.lists(job, 0, 1) == [[1], [2]]

        state.update([])
        state.update_batch(job.keys(1), [[]])

        assert self.lists(job, 0, 1, 2) == [[], [], [3]]
        assert len(state) == 1

    def test_an_update_replaces_and_the_last_of_a_batch_counts(self, job: Job) -> None:
        job.state(NUMBERS).add_batch(job.keys(0, 7, 14), pa.array([1, 2, 3]))
        job.carry_over()
        lists = pa.array([[7, 7], [8], [9, 1], [], [5]], pa.list_(pa.int64()))
        job.state(NUMBERS).update_batch(job.keys(0, 7, 0, 14, 21), lists)
        job.state(NUMBERS).add_batch(job.keys(0, 14), pa.array([4, 4]))
        job.carry_over()

        assert self.lists(job, 0, 7, 14, 21) == [[9, 1, 4], [8], [4], [5]]

        job.at(7)
        job.state(NUMBERS).add(1)
        job.state(NUMBERS).update([2, 2])
        job.state(NUMBERS).add(3)
        assert job.state(NUMBERS).get() == [2, 2, 3]

    def test_a_cleared_list_is_gone_and_can_be_begun_anew(self, job: Job) -> None:
        job.state(NUMBERS).add_batch(job.keys(0, 7, 0, 1), pa.array([1, 2, 3, 4]))
        job.at(0)
        job.state(NUMBERS).add(5)
        job.state(NUMBERS).clear()
        job.state(NUMBERS).clear_batch(job.keys(1, 1, 3))
        job.carry_over()

        assert self.lists(job, 0, 7, 1) == [[], [2], []]
        assert len(job.state(NUMBERS)) == 1
        job.state(NUMBERS).add_batch(job.keys(0), pa.array([6]))
        assert self.lists(job, 0) == [[6]]

    def test_empty_batches_change_nothing(self, job: Job) -> None:
        state = job.state(NUMBERS)

        state.add_batch(job.keys(), pa.array([], pa.int64()))
        state.add_all_batch(job.keys(), pa.array([], pa.list_(pa.int64())))
        state.update_batch(job.keys(), pa.array([], pa.list_(pa.int64())))
        state.clear_batch(job.keys())

        job.carry_over()
        assert len(job.state(NUMBERS)) == 0

    def test_sliced_and_chunked_columns_are_taken_as_they_are(self, job: Job) -> None:
        keys, values = job.keys(0, 1, 0), pa.array([1, 2, 3])
        lists = pa.array([[4, 5], [], [6]], pa.list_(pa.int64()))
        state = job.state(NUMBERS)

        state.add_batch(self.sliced(keys), self.sliced(values))
        state.add_batch(self.chunked(keys), self.chunked(values))
        state.add_all_batch(self.sliced(keys), self.sliced(lists))
        state.add_all_batch(self.chunked(keys), self.chunked(lists))

        assert self.lists(job, 0, 1) == [[1, 3, 1, 3, 4, 5, 6, 4, 5, 6], [2, 2]]

    def test_structs_and_texts_come_back_as_they_were(self, job: Job) -> None:
        visits = [{"page": "/", "times": [1, None]}, {"page": None, "times": None}]
        job.state(VISITS).add_batch(job.keys(0, 1), pa.array(visits, VISITS.type))
        job.state(TEXTS).add_batch(job.keys(0, 0), ["", "é" * 3000])
        job.at(0)
        job.state(VISITS).add(visits[1])
        job.carry_over()
        job.at(0)

        assert job.state(VISITS).get() == visits
        assert self.lists(job, 1, 0, state=VISITS) == [visits[1:], visits]
        assert self.lists(job, 0, state=TEXTS) == [["", "é" * 3000]]

    def test_a_null_struct_is_a_null_element(self, job: Job) -> None:
        state = job.state(VISITS)

        self.refused(InvalidInputError, state.add_batch, job.keys(0), pa.array([None], VISITS.type), match="null")
        assert len(state) == 0

    def test_what_is_returned_is_a_copy(self, job: Job) -> None:
        job.at(0)
        given = [1]
        job.state(NUMBERS).add_all(given)
        given.append(2)
        job.state(NUMBERS).get().append(3)

        assert job.state(NUMBERS).get() == [1]

    def test_long_lists_keep_their_order(self, job: Job) -> None:
        expected: list[list[int]] = [[], []]
        for start in range(0, 3000, 1000):
            job.state(NUMBERS).add_batch(job.keys(*[n % 2 for n in range(1000)]), pa.array(range(start, start + 1000)))
            for number in range(start, start + 1000):
                expected[number % 2].append(number)
            job.carry_over()

        assert self.lists(job, 0, 1) == expected

    def test_a_snapshot_is_not_changed_by_later_writes(self, job: Job) -> None:
        job.state(NUMBERS).add_batch(job.keys(0, 1, 0), pa.array([1, 2, 3]))
        snapshot = job.checkpoint()
        job.state(NUMBERS).add_batch(job.keys(0), pa.array([4]))
        job.state(NUMBERS).clear_batch(job.keys(1))

        rows = snapshot.to_arrow("op.numbers").to_pylist()

        assert sorted((str(row["k"]), row["numbers"]) for row in rows) == sorted(
            (str(job.key_values.value(key)), number) for key, number in [(0, 1), (1, 2), (0, 3)]
        )

    def test_untouched_state_survives(self, job: Job) -> None:
        job.state(NUMBERS).add_batch(job.keys(0, 0), pa.array([2, 1]))
        job.restart()
        job.restart()

        assert self.lists(job, 0) == [[2, 1]]
