"""Backends and stores against dicts, through random histories of everything a job does.

ARROWSTATE_LONG_TESTS=50 tries fifty times as many histories, each three times as long.
"""

from __future__ import annotations

import copy
import os
import uuid

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from arrowstate import (
    KeyedStateBackend,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    key_group_range,
    key_groups,
    open_store,
)
from arrowstate.backend.keyed import restore_backend
from arrowstate.snapshot.reading import forget_open_files
from arrowstate.storage import clear_memory_storage
from arrowstate.table.merging import MergePolicy

LONG = int(os.environ.get("ARROWSTATE_LONG_TESTS", "1"))

KEY = pa.schema([("user", pa.string()), ("day", pa.int32())])
NOTE = ValueStateDescriptor("note", pa.string())
TOTAL = ReducingStateDescriptor("total", pa.int64(), reduce="sum")
EACH = ReducingStateDescriptor(
    "each",
    pa.struct([("n", pa.int64()), ("low", pa.float64()), ("last", pa.list_(pa.int8()))]),
    reduce={"n": "count", "low": "min", "last": "last"},
)
STATES = (NOTE, TOTAL, EACH)
ALL_KEYS = [(f"user {number}", number % 3) for number in range(25)]

KEYS = st.sampled_from(ALL_KEYS)
# Long notes make runs that are too large to be kept inline.
NOTES = st.none() | st.tuples(st.text("ab", max_size=2), st.sampled_from([1, 5000])).map(lambda pair: pair[0] * pair[1])
NUMBERS = st.none() | st.integers(-5, 5)
FIELDS = st.none() | st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(0, 1),
        "low": st.none() | st.integers(-8, 8).map(lambda number: number / 2),
        "last": st.none() | st.lists(st.integers(0, 3), max_size=2),
    }
)
POLICIES = st.sampled_from(
    [
        MergePolicy(fan_in=2, first_tier_rows=2, max_dead_share=0.3, segment_bytes=1),
        MergePolicy(fan_in=3, first_tier_rows=8),
        MergePolicy(),
    ]
)
SCALES = st.integers(1, 6).flatmap(lambda p: st.tuples(st.just(p), st.integers(p, 20) | st.sampled_from([128, 32768])))


def merged(old, value):
    """What EACH does to one value that is not None."""
    old = old or {"n": 0, "low": None, "last": None}
    lows = [low for low in (old["low"], value["low"]) if low is not None]
    return {
        "n": old["n"] + (value["n"] is not None),
        "low": min(lows, default=None),
        "last": old["last"] if value["last"] is None else value["last"],
    }


class Job(RuleBasedStateMachine):
    """An operator of several subtasks that writes, checkpoints, fails, restores and rescales."""

    def __init__(self):
        super().__init__()
        self.url = f"memory://{uuid.uuid4().hex}"
        self.store = open_store(self.url, create=True)
        self.writer = self.store.writer()
        self.model = {state.name: {} for state in STATES}
        self.committed = {}
        self.frozen = []
        self.savepoints = 0

    def teardown(self):
        clear_memory_storage(self.url)

    @initialize(scale=SCALES, policy=POLICIES, budget=st.sampled_from([None, 0, 2000]))
    def start(self, scale, policy, budget):
        parallelism, self.max_parallelism = scale
        self.policy, self.budget = policy, budget
        self.backends = [
            KeyedStateBackend(
                key=KEY,
                max_parallelism=self.max_parallelism,
                key_groups=key_group_range(self.max_parallelism, parallelism=parallelism, subtask=subtask),
                merge_policy=policy,
                memory_budget_bytes=budget,
            )
            for subtask in range(parallelism)
        ]
        for backend in self.backends:
            for state in STATES:
                backend.state(state)

    def parts(self, rows):
        """Rows that begin with a key, by the backend that owns it."""
        keys = pa.record_batch({"user": [r[0][0] for r in rows], "day": pa.array([r[0][1] for r in rows], pa.int32())})
        groups = key_groups(keys, self.max_parallelism).to_pylist()
        for backend in self.backends:
            part = [row for row, group in zip(rows, groups, strict=True) if group in backend.key_groups]
            yield (
                backend,
                part,
                pa.RecordBatch.from_pylist([{"user": key[0], "day": key[1]} for key, *_ in part], schema=KEY),
            )

    @rule(rows=st.lists(st.tuples(KEYS, NOTES), max_size=30))
    def update_batch(self, rows):
        for backend, part, keys in self.parts(rows):
            backend.state(NOTE).update_batch(keys, pa.array([note for _, note in part], NOTE.type))
        self.fold("note", rows, lambda _, note: note)

    @rule(rows=st.lists(st.tuples(KEYS, NUMBERS), max_size=30))
    def add_batch(self, rows):
        for backend, part, keys in self.parts(rows):
            backend.state(TOTAL).add_batch(keys, pa.array([number for _, number in part], TOTAL.type))
        self.fold("total", rows, lambda old, number: (old or 0) + number)

    @rule(rows=st.lists(st.tuples(KEYS, FIELDS), max_size=30))
    def add_fields_batch(self, rows):
        for backend, part, keys in self.parts(rows):
            backend.state(EACH).add_batch(keys, pa.array([fields for _, fields in part], EACH.type))
        self.fold("each", rows, merged)

    @rule(rows=st.lists(st.tuples(KEYS, NOTES, NUMBERS, FIELDS), max_size=6))
    def scalar_verbs(self, rows):
        for backend, part, _ in self.parts(rows):
            for key, note, number, fields in part:
                backend.current_key = key
                backend.state(NOTE).update(note)
                backend.state(TOTAL).add(number)
                backend.state(EACH).add(fields)
        self.fold("note", [(row[0], row[1]) for row in rows], lambda _, note: note)
        self.fold("total", [(row[0], row[2]) for row in rows], lambda old, number: (old or 0) + number)
        self.fold("each", [(row[0], row[3]) for row in rows], merged)
        for backend, part, _ in self.parts(rows):
            for key, *_ in part:
                backend.current_key = key
                assert backend.state(NOTE).value() == self.model["note"].get(key)
                assert backend.state(TOTAL).get() == self.model["total"].get(key)
                assert backend.state(EACH).get() == self.model["each"].get(key)

    @rule(keys=st.lists(KEYS, max_size=10), state=st.sampled_from(STATES))
    def clear(self, keys, state):
        for backend, part, batch in self.parts([(key,) for key in keys]):
            if len(part) == 1:
                backend.current_key = part[0][0]
                backend.state(state).clear()
            else:
                backend.state(state).clear_batch(batch)
        for key in keys:
            self.model[state.name].pop(key, None)

    def fold(self, name, rows, function):
        for key, value in rows:
            if value is None:
                self.model[name].pop(key, None)
            else:
                self.model[name][key] = function(self.model[name].get(key), value)

    @rule()
    def freeze(self):
        self.frozen = [*self.frozen[-2:], ([backend.freeze() for backend in self.backends], copy.deepcopy(self.model))]

    @rule(format=st.sampled_from(["arrow", "parquet"]), new_writer=st.booleans())
    def checkpoint(self, format, new_writer):
        if new_writer:
            self.writer = self.store.writer()
        snapshot = self.writer.checkpoint({"op": self.backends}, format=format, properties={"n": len(self.committed)})
        self.committed[snapshot.checkpoint_id] = copy.deepcopy(self.model)

    @precondition(lambda self: self.committed)
    @rule(data=st.data(), scale=SCALES, from_savepoint=st.booleans(), forget=st.booleans())
    def restore(self, data, scale, from_savepoint, forget):
        checkpoint_id = data.draw(st.sampled_from(sorted(self.committed)))
        snapshot = self.store.snapshot(checkpoint_id)
        if from_savepoint:
            self.savepoints += 1
            snapshot = self.store.savepoint(f"{self.url}/copies/{self.savepoints}", checkpoint=checkpoint_id)
        if forget:
            forget_open_files()
        parallelism, self.max_parallelism = scale
        self.backends = [
            restore_backend(
                snapshot.storage,
                snapshot.store_id,
                snapshot.entry,
                "op",
                parallelism=parallelism,
                subtask=subtask,
                max_parallelism=self.max_parallelism,
                merge_policy=self.policy,
                memory_budget_bytes=self.budget,
            )
            for subtask in range(parallelism)
        ]
        self.model = copy.deepcopy(self.committed[checkpoint_id])

    @precondition(lambda self: self.committed)
    @rule(data=st.data(), state=st.sampled_from(STATES))
    def an_older_checkpoint_reads_as_it_was(self, data, state):
        checkpoint_id = data.draw(st.sampled_from(sorted(self.committed)))

        table = self.store.snapshot(checkpoint_id).to_arrow(f"op.{state.name}")

        rows = {(row.pop("user"), row.pop("day")): row for row in table.to_pylist()}
        expected = {
            key: value if state is EACH else {state.name: value}
            for key, value in self.committed[checkpoint_id][state.name].items()
        }
        assert rows == expected

    @invariant()
    def every_read_is_the_models(self):
        if not hasattr(self, "backends"):
            return
        for backend, part, keys in self.parts([(key,) for key in ALL_KEYS]):
            for state in STATES:
                expected = [self.model[state.name].get(key) for (key,) in part]
                assert backend.state(state).get_batch(keys).to_pylist() == expected
        for state in STATES:
            assert sum(len(backend.state(state)) for backend in self.backends) == len(self.model[state.name])

    @invariant()
    def frozen_views_keep_their_moment(self):
        for subtasks, model in self.frozen:
            for number, state in enumerate(STATES):
                keys = [
                    (user, day)
                    for subtask in subtasks
                    for run in subtask.states[number].table.runs
                    for batch in run.live_batches()
                    for user, day in zip(batch["user"].to_pylist(), batch["day"].to_pylist(), strict=True)
                ]
                assert sorted(keys) == sorted(model[state.name])


TestJob = Job.TestCase
TestJob.settings = settings(
    max_examples=30 * LONG, stateful_step_count=20 if LONG == 1 else 50, deadline=None, print_blob=True
)
