"""A job with state of every kind, small enough to write and read hundreds of times, whose state is known at every step.

What a step does depends on its number alone, so the content after n steps does too: not on the parallelism, nor on what
was restored and done again in between.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args
from unittest import mock

import numpy as np
import pyarrow as pa
import xxhash

import arrowstate
from arrowstate.files import operator, writing
from arrowstate_formats.run_files import RunFormat

FORMATS: tuple[RunFormat, ...] = get_args(RunFormat)
UID = "job"
KEY = pa.schema([("k", pa.int64())])
NOTE = arrowstate.ValueStateDescriptor("note", pa.struct([("text", pa.string()), ("tags", pa.list_(pa.string()))]))
SEEN = arrowstate.ListStateDescriptor("seen", pa.int32())
CART = arrowstate.MapStateDescriptor("cart", pa.string(), pa.float64())
TOTAL = arrowstate.ReducingStateDescriptor(
    "total", pa.int64(), reduce="sum", namespace=pa.schema([("day", pa.int32())])
)
BEST = arrowstate.AggregatingStateDescriptor("best", pa.int64(), aggregate=arrowstate.TopK(3))
FRESH = arrowstate.ValueStateDescriptor("fresh", pa.int64(), ttl=arrowstate.TimeToLive(40, clock="event_time"))
KEYED = (NOTE, SEEN, CART, TOTAL, BEST, FRESH)
OFFSETS = arrowstate.OperatorListStateDescriptor("offsets", pa.int64())
TOPICS = arrowstate.OperatorListStateDescriptor("topics", pa.string(), mode="union")
RULES = arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.float64())
OPERATOR = (OFFSETS, TOPICS, RULES)
DAYS = (1, 2)
MAX_PARALLELISM = 128
STEP_MS = 10
"""How far the watermark goes on in a step."""


@contextmanager
def small_files(*, inline_bytes: int = 20, directory_rows: int = 10) -> Iterator[None]:
    """Have small states in files of their own, of several record batches, with directories, as large ones are."""
    with (
        mock.patch.object(writing, "RunWriter", functools.partial(writing.RunWriter, inline_bytes=inline_bytes)),
        mock.patch.object(writing, "INLINE_BYTES", inline_bytes),
        mock.patch.object(writing, "_DIRECTORY_ROWS", directory_rows),
        mock.patch.object(writing, "_SMALLEST_BATCH_ROWS", 20),
        mock.patch.object(operator, "INLINE_BYTES", inline_bytes),
    ):
        yield


@dataclass(frozen=True)
class Job:
    """All subtasks of the job, and how many keys it has."""

    keyed: list[arrowstate.KeyedStateBackend]
    operator: list[arrowstate.OperatorStateBackend]
    keys: int

    @classmethod
    def new(cls, parallelism: int, keys: int) -> Job:
        policy = arrowstate.MergePolicy(fan_in=3, first_tier_rows=500)
        return cls(
            [
                arrowstate.KeyedStateBackend(
                    key=KEY,
                    max_parallelism=MAX_PARALLELISM,
                    key_groups=arrowstate.key_group_range(MAX_PARALLELISM, parallelism=parallelism, subtask=subtask),
                    merge_policy=policy,
                    clock_ms=lambda: 0,
                )
                for subtask in range(parallelism)
            ],
            [arrowstate.OperatorStateBackend() for _ in range(parallelism)],
            keys,
        )

    @classmethod
    def restored(cls, snapshot: arrowstate.Snapshot, parallelism: int, keys: int) -> Job:
        job = cls(
            [
                snapshot.restore(UID, parallelism=parallelism, subtask=subtask, clock_ms=lambda: 0)
                for subtask in range(parallelism)
            ],
            [
                snapshot.restore_operator_state(UID, parallelism=parallelism, subtask=subtask)
                for subtask in range(parallelism)
            ],
            keys,
        )
        for subtask, backend in enumerate(job.operator):
            # Each subtask gets the whole of a union list, and keeps its share.
            topics = backend.state(TOPICS)
            topics.update(sorted(topics.get())[subtask::parallelism])
        return job

    def step(self, number: int) -> None:
        """Change something in every state."""
        dice = np.random.default_rng(number)
        keys = dice.integers(0, self.keys, self.keys // 3)
        values = dice.integers(0, 1000, keys.size)
        for subtask, backend in enumerate(self.keyed):
            mask = _own(backend, keys)
            self._keyed_step(backend, number, keys[mask], values[mask])
            operator = self.operator[subtask]
            for descriptor in OPERATOR:
                # Every subtask declares the same states in the same order.
                operator.state(descriptor)
            if subtask == number % len(self.keyed):
                operator.state(OFFSETS).add_all([number] * 20)
                operator.state(TOPICS).add(f"topic {number}")
            operator.state(RULES).put_batch([f"rule {n}" for n in range(20)], [float(number + n) for n in range(20)])

    def _keyed_step(self, backend: arrowstate.KeyedStateBackend, number: int, own: Any, numbers: Any) -> None:
        keys, values = pa.array(own), pa.array(numbers)
        notes = [{"text": f"step {number}, {value}", "tags": ["x"] * (value % 3)} for value in numbers.tolist()]
        backend.state(NOTE).update_batch(keys, pa.array(notes, NOTE.type))
        backend.state(NOTE).clear_batch(pa.array(own[own % 11 == number % 11]))
        backend.state(SEEN).clear_batch(pa.array(own[own % 7 == number % 7]))
        backend.state(SEEN).add_batch(keys, values.cast(pa.int32()))
        entries = [f"item {value % 3}" for value in numbers.tolist()]
        backend.state(CART).put_batch(keys, entries, values.cast(pa.float64()))
        gone = own[own % 9 == number % 9]
        backend.state(CART).remove_batch(pa.array(gone), ["item 0"] * gone.size)
        days = pa.array(numbers % 2 + 1, pa.int32())
        backend.state(TOTAL).add_batch(keys, values, namespace=days)
        backend.state(BEST).add_batch(keys, values)
        backend.state(FRESH).update_batch(keys, values, timestamps=[number * STEP_MS] * len(keys))
        # Some fire in this step, most in later ones.
        timers = backend.timers()
        timers.register_batch(keys, pa.array(number * STEP_MS + numbers % 60))
        backend.advance_watermark(number * STEP_MS)
        timers.pop_due(number * STEP_MS)

    def content(self) -> dict[str, Any]:
        """Return everything that is in the states, read key by key, whatever the parallelism."""
        found: dict[str, Any] = {}
        every = np.arange(self.keys)
        for backend in self.keyed:
            own = every[_own(backend, every)]
            for row in _rows(backend, own):
                found[str(row[0])] = row[1:]
        found["offsets"] = sorted(value for part in self.operator for value in part.state(OFFSETS).get())
        found["topics"] = sorted(value for part in self.operator for value in part.state(TOPICS).get())
        for number, part in enumerate(self.operator):
            found[f"rules {number}" if number else "rules"] = sorted(part.state(RULES).items())
        rules = [found.pop(f"rules {number}") for number in range(1, len(self.operator))]
        assert all(other == found["rules"] for other in rules), "a broadcast state differs between subtasks"
        found["watermarks"] = sorted({backend.watermark for backend in self.keyed})
        return found

    def checksum(self) -> str:
        """Return the checksum of `content`."""
        return xxhash.xxh3_128_hexdigest(json.dumps(self.content(), sort_keys=True).encode())


def _own(backend: arrowstate.KeyedStateBackend, keys: Any) -> Any:
    low, high = backend.key_groups.hash_bounds(MAX_PARALLELISM)
    hashes = np.asarray(arrowstate.key_hash(pa.array(keys, pa.int64())))
    return (low <= hashes) & (hashes <= high)


def _rows(backend: arrowstate.KeyedStateBackend, own: Any) -> Iterator[tuple[Any, ...]]:
    keys = pa.array(own)
    timers = backend.timers()
    start = (backend.watermark or 0) - 70
    times = np.arange(start, start + 140)
    every_key, every_time = np.repeat(own, times.size), np.tile(times, own.size)
    event = backend.state(arrowstate.TimerStateDescriptor("timers_event_time", "event_time"))
    registered = event.contains_batch(pa.array(every_key), pa.array(every_time)).reshape(own.size, times.size)
    assert timers.count() == int(registered.sum()), "there are timers that no step made"
    columns: Sequence[Any] = [
        own.tolist(),
        backend.state(NOTE).get_batch(keys).to_pylist(),
        backend.state(SEEN).get_batch(keys).to_pylist(),
        [sorted(entries) for entries in backend.state(CART).entries_batch(keys).to_pylist()],
        *(
            backend.state(TOTAL).get_batch(keys, namespace=pa.array([day] * own.size, pa.int32())).to_pylist()
            for day in DAYS
        ),
        backend.state(BEST).get_batch(keys).to_pylist(),
        backend.state(FRESH).get_batch(keys).to_pylist(),
        [times[flags].tolist() for flags in registered],
    ]
    return zip(*columns, strict=True)
