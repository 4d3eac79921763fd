"""What going through a whole state means."""

from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import ListStateDescriptor, MapStateDescriptor, ReducingStateDescriptor
from arrowstate_formats.key_groups import key_groups
from suites.deployments import Job
from suites.suite import KeyedStateSuite

__all__ = ["IterationSuite"]

NUMBERS = ListStateDescriptor("numbers", pa.int64())
TOTAL = ReducingStateDescriptor("total", pa.int64(), reduce="sum", namespace=pa.schema([("day", pa.int32())]))


class IterationSuite(KeyedStateSuite):
    """Distinct live keys, a function for each of them, and sizes."""

    def texts(self, values: list[Any]) -> list[str]:
        return sorted(map(str, values))

    def test_a_key_comes_once_however_many_rows_it_has(self, job: Job) -> None:
        job.state(NUMBERS).add_batch(job.keys(0, 7, 0, 14, 0), pa.array([1, 2, 3, 4, 5]))
        job.carry_over()
        job.state(NUMBERS).add_batch(job.keys(0, 21), pa.array([1, 2]))
        job.state(NUMBERS).clear_batch(job.keys(7))
        job.at(28)
        job.state(NUMBERS).add(1)

        keys = job.backend.keys(NUMBERS)

        assert keys.schema == job.backend.key
        assert self.texts(keys.column(0).to_pylist()) == self.texts(job.keys(0, 14, 21, 28).to_pylist())
        assert job.backend.keys("numbers") == keys

    def test_keys_and_namespaces_are_told_apart(self, job: Job) -> None:
        days = pa.array([1, 2, 1, 1], pa.int32())
        job.state(TOTAL).add_batch(job.keys(0, 0, 7, 0), pa.array([1, 2, 3, 4]), namespace=days)
        job.carry_over()

        both = job.backend.keys_and_namespaces(TOTAL)

        expected = [{"k": job.key_values.value(key), "day": day} for key, day in [(0, 1), (0, 2), (7, 1)]]
        assert self.texts(both.to_pylist()) == self.texts(expected)
        assert self.texts(job.backend.keys(TOTAL).column(0).to_pylist()) == self.texts(job.keys(0, 7).to_pylist())
        assert job.backend.keys(TOTAL, 2).column(0).to_pylist() == [job.key_values.value(0)]
        assert job.backend.keys(TOTAL, 3).num_rows == 0
        self.refused(InvalidInputError, job.backend.keys_and_namespaces, NUMBERS.name, match="total")
        job.state(NUMBERS)
        self.refused(InvalidInputError, job.backend.keys_and_namespaces, NUMBERS, match="no namespaces")
        self.refused(InvalidInputError, job.backend.keys, NUMBERS, 1, match="no namespaces")

    def test_a_function_may_clear_update_and_add_keys(self, job: Job) -> None:
        job.state(NUMBERS).add_batch(job.keys(*range(20)), pa.array(range(20)))
        job.carry_over()
        job.state(NUMBERS)
        job.at(3)
        seen = []

        def change(key: Any, state: Any) -> None:
            assert key == job.backend.current_key
            (number,) = state.get()
            seen.append(number)
            if number % 2:
                state.clear()
            else:
                state.add(-1)
                state.clear()
                state.add_all([number, number * 10])
            job.at(100 + number)
            state.add(-1)

        job.backend.apply_to_all_keys(None, NUMBERS, change)

        assert sorted(seen) == list(range(20))
        assert job.backend.current_key == job.key_values.value(3)
        lists = job.state(NUMBERS).get_batch(job.keys(*range(20), *range(100, 120))).to_pylist()
        assert lists == [[] if n % 2 else [n, n * 10] for n in range(20)] + [[-1]] * 20

    def test_a_function_sees_one_namespace(self, job: Job) -> None:
        days = pa.array([1, 2, 1], pa.int32())
        job.state(TOTAL).add_batch(job.keys(0, 0, 7), pa.array([1, 2, 3]), namespace=days)
        seen = []

        job.backend.apply_to_all_keys(1, TOTAL, lambda key, state: seen.append((str(key), state.get())))
        self.refused(InvalidInputError, job.backend.apply_to_all_keys, None, TOTAL, print, match="namespaces")
        self.refused(InvalidInputError, getattr, job.state(TOTAL), "current_namespace")

        assert sorted(seen) == sorted([(str(job.key_values.value(0)), 1), (str(job.key_values.value(7)), 3)])

    def test_a_function_that_raises_leaves_the_current_key_as_it_was(self, job: Job) -> None:
        job.state(NUMBERS).add_batch(job.keys(0, 1), pa.array([1, 2]))

        def fail(key: Any, state: Any) -> None:
            raise ZeroDivisionError(f"{key} {state}")

        self.refused(ZeroDivisionError, job.backend.apply_to_all_keys, None, NUMBERS, fail)

        self.refused(InvalidInputError, getattr, job.backend, "current_key", match="no current key")

    def test_sizes_count_live_rows_by_key_group_state_and_key(self, job: Job) -> None:
        cart = MapStateDescriptor("cart", pa.string(), pa.int64())
        job.state(NUMBERS).add_batch(job.keys(0, 1, 1, 2, 2, 2), pa.array(range(6)))
        job.state(NUMBERS).clear_batch(job.keys(0))
        job.state(cart)
        job.carry_over()

        groups = key_groups(job.keys(1, 1, 2, 2, 2), job.backend.max_parallelism).to_pylist()
        sizes = job.backend.key_group_sizes(NUMBERS)
        assert {row["key_group"]: row["rows"] for row in sizes.to_pylist()} == {g: groups.count(g) for g in groups}
        assert all(size >= 16 for size in sizes["bytes"].to_pylist())
        rows = {row["state"]: (row["kind"], row["rows"]) for row in job.backend.state_sizes().to_pylist()}
        assert rows == {"numbers": ("list", 5), "cart": ("map", 0)}
        largest = job.backend.largest_keys(NUMBERS, 1).to_pylist()
        assert [(row["k"], row["_rows"]) for row in largest] == [(job.key_values.value(2), 3)]
        assert job.backend.largest_keys(cart).num_rows == 0
        self.refused(InvalidInputError, job.backend.largest_keys, NUMBERS, -1)
