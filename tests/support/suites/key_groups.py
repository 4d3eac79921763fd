"""What key groups mean: which subtask owns a key, at any parallelism and any max parallelism."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import ListStateDescriptor, MapStateDescriptor, ReducingStateDescriptor
from arrowstate_formats.key_groups import (
    KeyGroupRange,
    default_max_parallelism,
    key_group_range,
    key_groups,
    key_groups_of_hashes,
)
from arrowstate_formats.key_hash import key_hash
from suites.deployments import Job, Keys
from suites.suite import KeyedStateSuite

__all__ = ["KeyGroupSuite"]

TOTAL = ReducingStateDescriptor("total", pa.int64(), reduce="sum")
NUMBERS = ListStateDescriptor("numbers", pa.int64())
KEYS = range(28)
SCALES = [(1, 1), (3, 7), (4, 4), (2, 32768), (5, 128)]


class KeyGroupSuite(KeyedStateSuite):
    """Key groups are ranges of the key hash, and subtasks own ranges of key groups."""

    @pytest.fixture
    def cart(self, values: Keys) -> MapStateDescriptor:
        return MapStateDescriptor("cart", values.type, pa.int64())

    def test_the_key_hash_is_that_of_spark(self) -> None:
        # What `select xxhash64(...)` of Apache Spark 4.3.0 returns.
        numbers = {-1: 3858142552250413010, 0: -5252525462095825812, 1: -7001672635703045582, 42: -6876166290308861218}
        texts = {"": -7444071767201028348, "n": -332194713362066473}
        routes = pa.record_batch({"origin": ["EWR", "JFK"], "dest": ["IAH", "MIA"], "carrier": ["UA", "AA"]})

        assert key_hash(pa.array(list(numbers))).to_pylist() == list(numbers.values())
        assert key_hash(pa.array(list(texts))).to_pylist() == list(texts.values())
        assert key_hash(routes).to_pylist() == [-3072627212556455386, 1436610209775205299]

    def test_key_groups_are_ranges_of_the_hash(self) -> None:
        hashes = np.array([-(2**63), -(2**62), -1, 0, 2**62, 2**63 - 1])

        assert key_groups_of_hashes(hashes, 4).tolist() == [0, 1, 1, 2, 3, 3]
        assert key_groups_of_hashes(hashes, 3).tolist() == [0, 0, 1, 1, 2, 2]
        assert key_groups_of_hashes(hashes, 1).tolist() == [0] * 6
        assert key_groups_of_hashes(hashes, 32768).tolist() == [0, 8192, 16383, 16384, 24576, 32767]

    def test_subtasks_own_the_ranges_that_flink_gives_them(self, job: Job) -> None:
        job.state(TOTAL)
        for parallelism, max_parallelism in SCALES:
            job.restart(parallelism, max_parallelism)

            assert [(backend.key_groups.start, backend.key_groups.end) for backend in job.backends] == [
                ((i * max_parallelism + parallelism - 1) // parallelism, ((i + 1) * max_parallelism - 1) // parallelism)
                for i in range(parallelism)
            ]
        job.restart()

    def test_a_default_max_parallelism_is_half_as_much_again_rounded_up(self) -> None:
        expected = {1: 128, 85: 128, 86: 256, 171: 256, 172: 512, 20_000: 32768, 32768: 32768}

        assert {parallelism: default_max_parallelism(parallelism) for parallelism in expected} == expected

    @pytest.mark.parametrize(
        ("parallelism", "subtask", "max_parallelism"),
        [(0, 0, 128), (5, 0, 4), (1, 0, 32769), (1, 0, 0), (3, 3, 128), (3, -1, 128)],
    )
    def test_a_scale_that_cannot_be_is_refused(
        self, job: Job, parallelism: int, subtask: int, max_parallelism: int
    ) -> None:
        job.state(TOTAL).add_batch(job.keys(0), pa.array([1]))
        snapshot = job.checkpoint()

        scale = {"parallelism": parallelism, "subtask": subtask, "max_parallelism": max_parallelism}
        self.refused(InvalidInputError, snapshot.restore, "op", match="must be", **scale)
        self.refused(
            InvalidInputError, key_group_range, max_parallelism, parallelism=parallelism, subtask=subtask, match="must"
        )

    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [
            ((0, 10), (3, 7), (3, 7)),
            ((3, 7), (0, 10), (3, 7)),
            ((0, 10), (10, 20), (10, 10)),
            ((0, 10), (11, 20), None),
        ],
    )
    def test_ranges_have_an_intersection_or_none(self, one: Any, other: Any, expected: Any) -> None:
        found = KeyGroupRange(*one).intersection(KeyGroupRange(*other))

        assert found == (None if expected is None else KeyGroupRange(*expected))

    def test_rows_lie_in_the_order_of_the_hash_and_so_of_the_key_group(
        self, job: Job, cart: MapStateDescriptor
    ) -> None:
        numbers = [number * 5 % len(KEYS) for number in KEYS]
        job.state(NUMBERS).add_batch(job.keys(*numbers), pa.array(numbers))
        job.state(cart).put_batch(job.keys(*numbers), job.keys(*numbers), pa.array(numbers))
        job.carry_over()
        job.state(NUMBERS).add_batch(job.keys(*numbers), pa.array(numbers))

        for state in job.backend.freeze().states:
            for run in state.table.runs:
                for batch in run.live_batches():
                    hashes = batch["_key_hash"].to_numpy()
                    assert (hashes[1:] >= hashes[:-1]).all()
                    assert hashes.tolist() == key_hash(batch["k"]).to_pylist()
                    for max_parallelism in (1, 7, 128, 32768):
                        assert (np.diff(key_groups_of_hashes(hashes, max_parallelism)) >= 0).all()

    def test_each_key_has_its_rows_in_the_one_subtask_that_owns_its_key_group(
        self, job: Job, cart: MapStateDescriptor
    ) -> None:
        job.state(TOTAL).add_batch(job.keys(*KEYS), pa.array(KEYS))
        job.state(cart).put_batch(job.keys(*KEYS), job.keys(*[0] * len(KEYS)), pa.array(KEYS))
        job.state(NUMBERS).add_batch(job.keys(*KEYS, *KEYS), pa.array([*KEYS, *KEYS]))

        for parallelism, max_parallelism in SCALES:
            job.restart(parallelism, max_parallelism)

            for backend, own in job.parts(*KEYS):
                for state in (TOTAL, cart, NUMBERS):
                    held = backend.keys(state).column(0)
                    assert sorted(map(str, held.to_pylist())) == sorted(str(job.key_values.value(n)) for n in own)
                    groups = key_groups(held, max_parallelism).to_pylist()
                    assert all(group in backend.key_groups for group in groups)
                    assert groups == sorted(groups)
                assert backend.state(TOTAL).get_batch(job.keys(*own)).to_pylist() == own
                assert backend.state(NUMBERS).get_batch(job.keys(*own)).to_pylist() == [[n, n] for n in own]
                values = backend.state(cart).get_batch(job.keys(*own), job.keys(*[0] * len(own)))
                assert values.to_pylist() == own
        job.restart()

    def test_an_uneven_scale_and_back_loses_and_doubles_nothing(self, job: Job) -> None:
        job.state(TOTAL).add_batch(job.keys(*KEYS), pa.array(KEYS))

        for parallelism in (15, 77, 15):
            job.restart(parallelism)
            for backend, own in job.parts(*KEYS):
                assert backend.state(TOTAL).get_batch(job.keys(*own)).to_pylist() == own
                assert len(backend.state(TOTAL)) == len(own)
        job.restart()

        assert job.state(TOTAL).get_batch(job.keys(*KEYS)).to_pylist() == list(KEYS)

    def test_what_is_written_at_each_scale_is_there_at_the_next(self, job: Job) -> None:
        job.state(TOTAL)
        job.state(NUMBERS)
        for turn, (parallelism, max_parallelism) in enumerate(SCALES):
            job.restart(parallelism, max_parallelism)
            for backend, own in job.parts(*KEYS):
                backend.state(TOTAL).add_batch(job.keys(*own), pa.array([1] * len(own), pa.int64()))
                backend.state(NUMBERS).add_batch(job.keys(*own), pa.array([turn] * len(own), pa.int64()))
                cleared = [number for number in own if number % 10 == turn]
                backend.state(TOTAL).clear_batch(job.keys(*cleared))
        job.restart()

        turns = len(SCALES)
        expected = [turns - 1 - n % 10 if n % 10 < turns else turns for n in KEYS]
        found = job.state(TOTAL).get_batch(job.keys(*KEYS)).to_pylist()
        assert found == [total or None for total in expected]
        assert job.state(NUMBERS).get_batch(job.keys(*KEYS)).to_pylist() == [list(range(turns))] * len(KEYS)

    def test_a_checkpoint_of_few_subtasks_is_the_same_table_as_that_of_many(self, job: Job) -> None:
        job.state(TOTAL).add_batch(job.keys(*KEYS), pa.array(KEYS))
        tables = [self.rows(job, TOTAL)]

        for parallelism, max_parallelism in SCALES[:3]:
            job.restart(parallelism, max_parallelism)
            tables.append(self.rows(job, TOTAL))
        job.restart()

        assert all(left == right for left, right in pairwise(tables))
        assert len(tables[0]) == len(KEYS)
