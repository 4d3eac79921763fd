"""How a backend lives: in memory, spilling, merging all the time, restored between any two steps, rescaled.

A suite takes its steps through a `Job`, which gives it the states of the backends that are the current ones, and
`carry_over` puts others in their place with what the deployment does between two steps.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.schema.operator_state import OperatorStateDescriptor
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.state.backend.restoring import restore_backend
from arrowstate.storage import clear_memory_storage
from arrowstate.store import Snapshot, StateStore, open_store
from arrowstate.table.merging import MergePolicy
from arrowstate_formats.key_groups import key_groups
from arrowstate_formats.run_files import RunFormat

__all__ = ["COLLIDING_KEYS", "DEPLOYMENTS", "LANCE", "PLAIN_KEYS", "Clock", "Deployment", "Job", "Keys"]


class Clock:
    """Processing time that stands still until a test moves it."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


@dataclass(frozen=True, slots=True)
class Keys:
    """A numbered supply of values of one type, for keys, user keys and namespaces."""

    name: str
    type: pa.DataType

    def __str__(self) -> str:
        return self.name

    def value(self, number: int) -> Any:
        """Return the value with a number from 0 on, as a plain Python value."""
        if pa.types.is_string(self.type):
            return f"key {number}"
        # A null in a list leaves the hash alone, so only every seventh has a hash of its own.
        nulls = number // 7
        return [None] * (nulls // 2) + [number % 7] + [None] * (nulls - nulls // 2)

    def array(self, numbers: Iterable[int]) -> pa.Array:
        """Return values by their numbers."""
        return pa.array([self.value(number) for number in numbers], self.type)


PLAIN_KEYS = Keys("plain keys", pa.string())
"""Texts, each with a hash of its own."""

COLLIDING_KEYS = Keys("colliding keys", pa.list_(pa.int64()))
"""Lists of which many share one hash: nulls in them leave it alone."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """How the backend of a job is made, and what happens to it between two steps."""

    name: str
    memory_budget_bytes: int | None = None
    merge_policy: MergePolicy | None = None
    scales: tuple[tuple[int, int], ...] = ()
    "Before each step the job is checkpointed and restored at each (parallelism, max parallelism) in turn."
    savepoint: bool = False
    "Whether it is restored from savepoints of the checkpoints."
    format: RunFormat = "arrow"
    "The run format of its checkpoints."

    def __str__(self) -> str:
        return self.name

    def start(self, keys: Keys = PLAIN_KEYS, *, clock: Clock | None = None) -> Job:
        """Return a new job; close it in the end."""
        return Job(self, keys, clock or Clock())

    def make_backend(self, key: pa.Schema, clock: Clock) -> KeyedStateBackend:
        """Return an empty backend of all key groups."""
        return KeyedStateBackend(
            key=key,
            max_parallelism=128,
            clock_ms=clock,
            memory_budget_bytes=self.memory_budget_bytes,
            merge_policy=self.merge_policy,
        )

    def restored(
        self, snapshot: Snapshot, parallelism: int, max_parallelism: int, clock: Clock
    ) -> list[KeyedStateBackend]:
        """Return the backends of all subtasks from a checkpoint."""
        return [
            restore_backend(
                snapshot.storage,
                snapshot.store_id,
                snapshot.entry,
                "op",
                parallelism=parallelism,
                subtask=subtask,
                max_parallelism=max_parallelism,
                memory_budget_bytes=self.memory_budget_bytes,
                merge_policy=self.merge_policy,
                clock_ms=clock,
            )
            for subtask in range(parallelism)
        ]


DEPLOYMENTS = (
    Deployment("in memory"),
    Deployment("spilling", memory_budget_bytes=0),
    Deployment("merging", merge_policy=MergePolicy(fan_in=2, first_tier_rows=2, max_dead_share=0.3, segment_bytes=1)),
    Deployment("restored", scales=((1, 128),)),
    Deployment("rescaled", memory_budget_bytes=2000, scales=((3, 20), (1, 32768))),
    Deployment("restored from savepoints", scales=((2, 128), (1, 128)), savepoint=True),
)
"""Those that arrowstate is tested with: each guarantee holds in all of them."""

LANCE = Deployment("restored from Lance", scales=((3, 20), (1, 128)), format="lance")
"""Not one of `DEPLOYMENTS`: it needs the extra `arrowstate[lance]`, and its many small files take several ms each."""


class Job:
    """One operator, seen as the backends that are there at the moment: one, or one for each subtask."""

    def __init__(self, deployment: Deployment, keys: Keys, clock: Clock) -> None:
        self.deployment = deployment
        self.key_values = keys
        self.clock = clock
        self.backends = [deployment.make_backend(pa.schema([("k", keys.type)]), clock)]
        self.operators = [OperatorStateBackend()]
        self._url = f"memory://{uuid.uuid4().hex}"
        opened = open_store(self._url, create=True)
        self.store = StateStore(opened.storage, opened.store_id, clock_ms=clock)
        self._savepoints = 0

    def close(self) -> None:
        """Forget the job's store."""
        clear_memory_storage(self._url)

    @property
    def backend(self) -> KeyedStateBackend:
        """The backend of keyed state of the only subtask."""
        (backend,) = self.backends
        return backend

    def keys(self, *numbers: int) -> pa.Array:
        """Return a batch of keys."""
        return self.key_values.array(numbers)

    def state(self, descriptor: StateDescriptor) -> Any:
        """Return a state of the backend that is there now."""
        return self.backend.state(descriptor)

    def operator_state(self, descriptor: OperatorStateDescriptor) -> Any:
        """Return an operator state of the only subtask."""
        (operator,) = self.operators
        return operator.state(descriptor)

    def at(self, key: int) -> None:
        """Set the current key."""
        self.backend.current_key = self.key_values.value(key)

    def parts(self, *numbers: int) -> Iterator[tuple[KeyedStateBackend, list[int]]]:
        """Yield each backend with those of the keys that are its own."""
        groups = key_groups(self.keys(*numbers), self.backends[0].max_parallelism).to_pylist()
        for backend in self.backends:
            yield backend, [n for n, group in zip(numbers, groups, strict=True) if group in backend.key_groups]

    def checkpoint(self) -> Snapshot:
        """Commit a checkpoint."""
        with self.store.writer() as writer:
            return writer.checkpoint(
                {"op": self.backends}, operator_states={"op": self.operators}, format=self.deployment.format
            )

    def savepoint(self) -> Snapshot:
        """Write a savepoint of the newest checkpoint."""
        self._savepoints += 1
        return self.store.savepoint(f"{self._url}/copies/{self._savepoints}")

    def carry_over(self) -> None:
        """Do what the deployment does between two steps; states must be asked for again afterwards."""
        for parallelism, max_parallelism in self.deployment.scales:
            self.restart(parallelism, max_parallelism)

    def restart(self, parallelism: int = 1, max_parallelism: int = 128) -> None:
        """Checkpoint, fail, and restore."""
        timestamp = self.backends[0].current_timestamp
        snapshot = self.checkpoint()
        self.restore(self.savepoint() if self.deployment.savepoint else snapshot, parallelism, max_parallelism)
        for backend in self.backends:
            backend.current_timestamp = timestamp

    def restore(self, snapshot: Snapshot, parallelism: int = 1, max_parallelism: int = 128) -> None:
        """Fail, and restore a snapshot of this job."""
        self.backends = self.deployment.restored(snapshot, parallelism, max_parallelism, self.clock)
        self.operators = [
            snapshot.restore_operator_state("op", parallelism=parallelism, subtask=subtask)
            for subtask in range(parallelism)
        ]
