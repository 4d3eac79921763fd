"""All kinds of keyed state against dicts, through random histories of writes, time, restores and rescales.

ARROWSTATE_LONG_TESTS=50 tries fifty times as many histories, each three times as long.
"""

from __future__ import annotations

import os
import uuid

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from arrowstate import (
    KeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
    key_group_range,
    key_groups,
    open_store,
)
from arrowstate.backend.keyed import restore_backend
from arrowstate.storage import clear_memory_storage
from arrowstate.store import StateStore
from arrowstate.table.merging import MergePolicy
from arrowstate.testing import Clock

LONG = int(os.environ.get("ARROWSTATE_LONG_TESTS", "1"))

# A null in a list leaves the hash alone, so most keys, spaces and user keys share theirs with others.
COLLIDING = pa.list_(pa.int64())
KEY = pa.schema([("k", COLLIDING)])
SPACE = pa.schema([("space", COLLIDING)])
KEYS = [(1,), (1, None), (None, 1), (2,), (None, 2), (3,), (4,), (5,)]
SPACES = [(1,), (1, None), (2,)]
USER_KEYS = [(1,), (None, 1), (2,), (3,)]


def kinds(suffix, ttl):
    return (
        ValueStateDescriptor(f"value{suffix}", pa.string(), namespace=SPACE, ttl=ttl),
        ReducingStateDescriptor(f"total{suffix}", pa.int64(), reduce="sum", namespace=SPACE, ttl=ttl),
        ListStateDescriptor(f"list{suffix}", pa.int64(), namespace=SPACE, ttl=ttl),
        MapStateDescriptor(f"map{suffix}", COLLIDING, pa.int64(), namespace=SPACE, ttl=ttl),
    )


STATES = (
    *kinds("", None),
    *kinds("_clock", TimeToLive(20)),
    *kinds("_event", TimeToLive(30, clock="event_time")),
    *kinds("_read", TimeToLive(25, update="on_read_and_write")),
)

PLACES = st.tuples(st.sampled_from(KEYS), st.sampled_from(SPACES))
STATE = st.sampled_from(STATES)
ROWS = st.lists(st.tuples(PLACES, st.sampled_from(USER_KEYS), st.none() | st.integers(0, 9)), max_size=12)
POLICIES = st.sampled_from(
    [
        MergePolicy(fan_in=2, first_tier_rows=2, max_dead_share=0.3, segment_bytes=1),
        MergePolicy(fan_in=3),
        MergePolicy(),
    ]
)
SCALES = st.integers(1, 4).flatmap(lambda p: st.tuples(st.just(p), st.integers(p, 20) | st.sampled_from([128, 32768])))


def column(values):
    return pa.array([list(value) for value in values], COLLIDING)


class Model:
    """One state as a dict: (key, space) to entries of [user key or None, value, time of the last update]."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.entries = {}

    def copy(self):
        other = Model(self.descriptor)
        other.entries = {place: [list(entry) for entry in entries] for place, entries in self.entries.items()}
        return other

    def prune(self, clock, watermark):
        ttl = self.descriptor.ttl
        if ttl is not None:
            now = clock if ttl.clock == "processing_time" else watermark
            for place, entries in self.entries.items():
                self.entries[place] = [entry for entry in entries if entry[2] + ttl.ttl_ms > now]
        self.entries = {place: entries for place, entries in self.entries.items() if entries}

    def write(self, place, user_key, value, time):
        entries = self.entries.setdefault(place, [])
        kind = self.descriptor.kind
        if kind == "list":
            if value is not None:
                entries.append([None, value, time])
        elif kind == "map":
            entries[:] = [entry for entry in entries if entry[0] != user_key] + [[user_key, value, time]]
        elif value is None:
            entries.clear()
        elif kind == "reducing" and entries:
            entries[:] = [[None, entries[0][1] + value, max(time, entries[0][2])]]
        else:
            entries[:] = [[None, str(value) if kind == "value" else value, time]]

    def read(self, place, now=None):
        """What a caller sees; `now` where a read renews."""
        entries = self.entries.get(place, [])
        if now is not None:
            for entry in entries:
                entry[2] = max(entry[2], now)
        kind = self.descriptor.kind
        if kind == "list":
            return [entry[1] for entry in entries]
        if kind == "map":
            return {entry[0]: entry[1] for entry in entries}
        return entries[0][1] if entries else None

    def merge(self, key, target, sources):
        """The namespaces of a key into one."""
        into = self.entries.setdefault((key, target), [])
        for source in sources:
            if source == target:
                continue
            for entry in self.entries.pop((key, source), []):
                if self.descriptor.kind == "reducing" and into:
                    into[:] = [[None, into[0][1] + entry[1], max(entry[2], into[0][2])]]
                else:
                    into.append(entry)


class Kinds(RuleBasedStateMachine):
    """An operator of several subtasks with every kind of state, with namespaces, and with times to live."""

    def __init__(self):
        super().__init__()
        self.url = f"memory://{uuid.uuid4().hex}"
        self.clock = Clock(1000)
        self.watermark = 1000
        opened = open_store(self.url, create=True)
        self.store = StateStore(opened.storage, opened.store_id, clock_ms=self.clock)
        self.models = {state.name: Model(state) for state in STATES}
        self.committed = {}
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
                clock_ms=self.clock,
            )
            for subtask in range(parallelism)
        ]
        self.take_up()

    def take_up(self):
        for backend in self.backends:
            backend.advance_watermark(self.watermark)
            for state in STATES:
                backend.state(state)

    def parts(self, rows):
        """Rows that begin with a (key, space), by the backend that owns the key."""
        groups = key_groups(column([row[0][0] for row in rows]), self.max_parallelism).to_pylist() if rows else []
        for backend in self.backends:
            part = [row for row, group in zip(rows, groups, strict=True) if group in backend.key_groups]
            if part:
                yield backend, part, column([row[0][0] for row in part]), column([row[0][1] for row in part])

    def prune(self):
        for model in self.models.values():
            model.prune(self.clock.now_ms, self.watermark)

    def time_of(self, state, age=0):
        return self.clock.now_ms if state.ttl is None or state.ttl.clock == "processing_time" else self.watermark - age

    @rule(state=STATE, rows=ROWS, age=st.integers(-5, 35))
    def write_batch(self, state, rows, age):
        if state.kind == "list":
            rows = [row for row in rows if row[2] is not None]
        event = state.ttl is not None and state.ttl.clock == "event_time"
        for backend, part, keys, spaces in self.parts(rows):
            named = {"namespace": spaces}
            if event:
                named["timestamps"] = [self.time_of(state, age)] * len(part)
            found = backend.state(state)
            values = [value for *_, value in part]
            if state.kind == "value":
                found.update_batch(keys, [None if value is None else str(value) for value in values], **named)
            elif state.kind == "map":
                found.put_batch(keys, column([row[1] for row in part]), pa.array(values, pa.int64()), **named)
            else:
                found.add_batch(keys, pa.array(values, pa.int64()), **named)
        for place, user_key, value in rows:
            self.models[state.name].write(place, user_key, value, self.time_of(state, age))
        self.prune()

    @rule(state=STATE, rows=st.lists(st.tuples(PLACES, st.sampled_from(USER_KEYS), st.integers(0, 9)), max_size=4))
    def write_one_by_one(self, state, rows):
        for backend, part, *_ in self.parts(rows):
            for (key, space), user_key, value in part:
                backend.current_key = list(key)
                found = backend.state(state)
                found.current_namespace = list(space)
                if state.kind == "value":
                    found.update(str(value))
                elif state.kind == "map":
                    found.put(list(user_key), value)
                else:
                    found.add(value)
        for place, user_key, value in rows:
            self.models[state.name].write(place, user_key, value, self.time_of(state))

    @rule(state=STATE, places=st.lists(PLACES, max_size=5), scalar=st.booleans())
    def clear(self, state, places, scalar):
        for backend, part, keys, spaces in self.parts([(place,) for place in places]):
            if not scalar:
                backend.state(state).clear_batch(keys, namespace=spaces)
                continue
            for ((key, space),) in part:
                backend.current_key = list(key)
                backend.state(state).current_namespace = list(space)
                backend.state(state).clear()
        for place in places:
            self.models[state.name].entries.pop(place, None)

    @rule(
        state=st.sampled_from([state for state in STATES if state.kind == "map"]),
        rows=st.lists(st.tuples(PLACES, st.sampled_from(USER_KEYS)), max_size=6),
    )
    def remove_entries(self, state, rows):
        for backend, part, keys, spaces in self.parts(rows):
            backend.state(state).remove_batch(keys, column([row[1] for row in part]), namespace=spaces)
        for place, user_key in rows:
            entries = self.models[state.name].entries.get(place, [])
            entries[:] = [entry for entry in entries if entry[0] != user_key]

    @rule(
        state=st.sampled_from([state for state in STATES if state.kind in ("list", "reducing")]),
        key=st.sampled_from(KEYS),
        into=st.sampled_from(SPACES),
        sources=st.lists(st.sampled_from(SPACES), max_size=3),
    )
    def merge_namespaces(self, state, key, into, sources):
        for backend, *_ in self.parts([((key, into),)]):
            backend.current_key = list(key)
            backend.state(state).merge_namespaces(list(into), [list(source) for source in sources])
        self.models[state.name].merge(key, into, sources)

    @rule(milliseconds=st.integers(0, 15), event=st.integers(0, 15))
    def time_passes(self, milliseconds, event):
        self.clock.now_ms += milliseconds
        self.watermark += event
        for backend in self.backends:
            backend.advance_watermark(self.watermark)
        self.prune()

    @rule(format=st.sampled_from(["arrow", "parquet"]))
    def checkpoint(self, format):
        with self.store.writer() as writer:
            snapshot = writer.checkpoint({"op": self.backends}, format=format)
        self.committed[snapshot.checkpoint_id] = {name: model.copy() for name, model in self.models.items()}

    @precondition(lambda self: self.committed)
    @rule(data=st.data(), scale=SCALES, from_savepoint=st.booleans())
    def restore(self, data, scale, from_savepoint):
        checkpoint_id = data.draw(st.sampled_from(sorted(self.committed)))
        snapshot = self.store.snapshot(checkpoint_id)
        if from_savepoint:
            self.savepoints += 1
            snapshot = self.store.savepoint(f"{self.url}/copies/{self.savepoints}", checkpoint=checkpoint_id)
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
                clock_ms=self.clock,
            )
            for subtask in range(parallelism)
        ]
        self.models = {name: model.copy() for name, model in self.committed[checkpoint_id].items()}
        self.watermark = snapshot.watermark
        self.take_up()
        self.prune()

    @rule(state=STATE)
    def reads_are_the_models(self, state):
        model = self.models[state.name]
        renews = state.ttl is not None and state.ttl.update == "on_read_and_write"
        rows = [((key, space),) for key in KEYS for space in SPACES]
        for backend, part, keys, spaces in self.parts(rows):
            found = backend.state(state)
            if state.kind == "map":
                maps = found.entries_batch(keys, namespace=spaces).to_pylist()
                got = [{tuple(user_key): value for user_key, value in entries} for entries in maps]
                assert [len(entries) for entries in maps] == [len(entries) for entries in got]
            else:
                got = found.get_batch(keys, namespace=spaces).to_pylist()
            now = self.time_of(state) if renews else None
            assert got == [model.read(place, now) for (place,) in part]

    @rule(state=STATE, places=st.lists(PLACES, max_size=4), user_key=st.sampled_from(USER_KEYS))
    def scalar_reads_are_the_models(self, state, places, user_key):
        model = self.models[state.name]
        for backend, part, *_ in self.parts([(place,) for place in places]):
            for (place,) in part:
                backend.current_key = list(place[0])
                found = backend.state(state)
                found.current_namespace = list(place[1])
                renews = state.ttl is not None and state.ttl.update == "on_read_and_write"
                now = self.time_of(state) if renews else None
                if state.kind != "map":
                    assert (found.value() if state.kind == "value" else found.get()) == model.read(place, now)
                    continue
                entries = model.entries.get(place, [])
                one = [entry for entry in entries if entry[0] == user_key]
                assert found.contains(list(user_key)) == bool(one)
                assert found.get(list(user_key)) == (one[0][1] if one else None)
                assert found.is_empty() == (not entries)
                if now is not None:
                    for entry in one:
                        entry[2] = max(entry[2], now)

    @invariant()
    def keys_and_row_counts_are_the_models(self):
        if not hasattr(self, "backends"):
            return
        for state in STATES:
            entries = self.models[state.name].entries
            found = [row for backend in self.backends for row in backend.keys_and_namespaces(state).to_pylist()]
            expected = [place for place, rows in entries.items() if rows]
            assert len(found) == len(expected)
            assert {(tuple(row["k"]), tuple(row["space"])) for row in found} == set(expected)
            rows = sum(sum(backend.key_group_sizes(state)["rows"].to_pylist()) for backend in self.backends)
            assert rows == sum(map(len, entries.values()))


TestKinds = Kinds.TestCase
TestKinds.settings = settings(
    max_examples=10 * LONG, stateful_step_count=16 if LONG == 1 else 50, deadline=None, print_blob=True
)
