"""States that several tests of queries read."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from stores import backend_of


@pytest.fixture(scope="module")
def new_store(request: pytest.FixtureRequest) -> Iterator[Callable[[], arrowstate.StateStore]]:
    """Makes a store in memory, for states of any size, whenever it is called."""
    numbers = iter(range(1_000_000))
    place = request.module.__name__.rpartition(".")[2]
    options = {"max_file_bytes": None}
    return lambda: arrowstate.open_store(f"memory://{place}-{next(numbers)}", create=True, storage_options=options)


class Large:
    """A state of 200,000 integer keys in two subtasks, a tenth of which was written twice."""

    key = pa.schema([("user", pa.int64())])

    def __init__(self, store: arrowstate.StateStore, format: Any) -> None:
        random = np.random.default_rng(7)
        self.model: dict[int, int] = {}
        rows = [random.permutation(200_000), random.permutation(200_000)[:20_000]]
        backends = [
            arrowstate.KeyedStateBackend(key=self.key, max_parallelism=128, key_groups=groups)
            for groups in (arrowstate.KeyGroupRange(0, 63), arrowstate.KeyGroupRange(64, 127))
        ]
        for number, users in enumerate(rows):
            groups = arrowstate.key_groups(pa.array(users), 128).to_numpy()
            clicks = users % 1000 + number
            self.model.update(zip(users.tolist(), clicks.tolist(), strict=True))
            for backend in backends:
                own = np.isin(groups, list(backend.key_groups))
                state = backend.state(arrowstate.ValueStateDescriptor("clicks", pa.int64()))
                state.update_batch(pa.array(users[own]), pa.array(clicks[own]))
        self.snapshot = store.writer().checkpoint({"counter": backends}, format=format)


@pytest.fixture(scope="module", params=["arrow", "parquet", "lance"])
def large(request: pytest.FixtureRequest, new_store: Callable[[], arrowstate.StateStore]) -> Large:
    return Large(new_store(), request.param)


@pytest.fixture
def people(new_store: Callable[[], arrowstate.StateStore]) -> arrowstate.Snapshot:
    """Two operators: `people`, with a nested value, and `page-views.v1`, whose key has two columns."""
    people = arrowstate.KeyedStateBackend(key=pa.schema([("name", pa.string())]), max_parallelism=128)
    address = pa.struct([("city", pa.string()), ("tags", pa.list_(pa.string()))])
    people.state(arrowstate.ValueStateDescriptor("address", address)).update_batch(
        ["ann", "bob", "it's", "Zoë"],
        [
            {"city": "Rome", "tags": ["a", None]},
            {"city": None, "tags": []},
            {"city": '"', "tags": None},
            {"city": "Łódź", "tags": ["ß"]},
        ],
    )
    people.state(arrowstate.ValueStateDescriptor("age", pa.int8())).update_batch(["ann", "bob"], [30, 40])
    views = backend_of(pa.schema([("name", pa.string()), ("page", pa.int32())]))
    keys = pa.record_batch({"name": ["ann", "ann", "bob"], "page": pa.array([1, 2, 1], pa.int32())})
    views.state(arrowstate.ReducingStateDescriptor("count.all", pa.int64(), reduce="sum")).add_batch(keys, [5, 6, 7])
    return new_store().writer().checkpoint({"people": [people], "page-views.v1": [views]})
