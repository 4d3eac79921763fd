"""Everything keyed against dicts, through random histories of writes, time, timers, restores and rescales.

The long form tries forty times as many, each twice as long.
"""

import uuid

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import arrowstate
from arrowstate.checkpoints.compaction import plan_compaction
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.reading import store_key
from arrowstate.state.backend.restoring import restore_backend
from arrowstate.storage import clear_memory_storage
from long_form import short_or_long
from stores import backend_of
from suites import Clock
from suites.models import Folding, StateModel, TimerModel

# A null in a list leaves the hash alone, so most keys, spaces and user keys share theirs with others.
COLLIDING = pa.list_(pa.int64())
KEY = pa.schema([("k", COLLIDING), ("day", pa.int32())])
SPACE = pa.schema([("space", COLLIDING)])
KEYS = [((1,), 0), ((1, None), 0), ((None, 1), 0), ((2,), 0), ((None, 2), 0), ((2,), 1), ((3,), 0), ((4,), 2)]
SPACES = [(1,), (1, None), (2,)]
USER_KEYS = [(1,), (None, 1), (2,), (3,)]
CLOCKS = ("event_time", "processing_time")


def text(number):
    # Long texts make runs that are too large to be kept inline.
    return None if number is None else str(number) * (5000 if number == 7 else 1)


def fields(number):
    if number is None:
        return None
    low, last = (None if number == 9 else number / 2), (None if number % 4 == 0 else [number] * (number % 3))
    return {"n": number % 2 or None, "low": low, "last": last}


def folded(old, given):
    lows = [low for low in (old["low"], given["low"]) if low is not None]
    last = old["last"] if given["last"] is None else given["last"]
    return {"n": old["n"] + (given["n"] is not None), "low": min(lows, default=None), "last": last}


SUM = Folding(fold=lambda old, value: old + value, merge=lambda old, other: old + other)
MEAN = Folding(
    first=lambda value: (1, float(value)),
    fold=lambda old, value: (old[0] + 1, old[1] + value),
    merge=lambda old, other: (old[0] + other[0], old[1] + other[1]),
    result=lambda stored: stored[1] / stored[0],
)
EACH = Folding(first=lambda given: folded({"n": 0, "low": None, "last": None}, given), fold=folded)


def kinds(suffix, ttl):
    common = {"namespace": SPACE, "ttl": ttl}
    return {
        arrowstate.ValueStateDescriptor(f"value{suffix}", pa.string(), **common): Folding(),
        arrowstate.ReducingStateDescriptor(f"total{suffix}", pa.int64(), reduce="sum", **common): SUM,
        arrowstate.AggregatingStateDescriptor(f"mean{suffix}", pa.int64(), aggregate="mean", **common): MEAN,
        arrowstate.ListStateDescriptor(f"list{suffix}", pa.int64(), **common): Folding(),
        arrowstate.MapStateDescriptor(f"map{suffix}", COLLIDING, pa.int64(), **common): Folding(),
    }


FOLDINGS = {
    **kinds("", None),
    **kinds("_clock", arrowstate.TimeToLive(20)),
    **kinds("_event", arrowstate.TimeToLive(30, clock="event_time")),
    **kinds("_read", arrowstate.TimeToLive(25, update="on_read_and_write")),
    arrowstate.ValueStateDescriptor("plain", pa.string()): Folding(),
    arrowstate.ReducingStateDescriptor(
        "each",
        pa.struct([("n", pa.int64()), ("low", pa.float64()), ("last", pa.list_(pa.int64()))]),
        reduce={"n": "count", "low": "min", "last": "last"},
    ): EACH,
}
STATES = tuple(FOLDINGS)
TOTAL = next(state for state in STATES if state.name == "total")
MERGED = ("list", "reducing", "aggregating")

PLACES = st.tuples(st.sampled_from(KEYS), st.sampled_from(SPACES))


def among(wanted):
    """Draw one of the states of a history that is wanted; None if it has none."""
    return st.runner().flatmap(lambda job: st.sampled_from([state for state in job.states if wanted(state)] or [None]))


STATE = among(lambda _: True)
ROWS = st.lists(st.tuples(PLACES, st.sampled_from(USER_KEYS), st.none() | st.integers(0, 9)), max_size=12)
TIMERS = st.lists(st.tuples(PLACES, st.integers(990, 1060)), max_size=8)
POLICIES = st.sampled_from(
    [
        arrowstate.MergePolicy(fan_in=2, first_tier_rows=2, max_dead_share=0.3, segment_bytes=1),
        arrowstate.MergePolicy(fan_in=3, first_tier_rows=8),
        arrowstate.MergePolicy(),
    ]
)
LIMITS = st.sampled_from(
    [arrowstate.CompactionPolicy(1.001, max_small_files=1, min_bytes=0), arrowstate.CompactionPolicy(1.3, min_bytes=0)]
)
SCALES = st.integers(1, 6).flatmap(lambda p: st.tuples(st.just(p), st.integers(p, 20) | st.sampled_from([128, 32768])))


def column(values):
    return pa.array([list(value) for value in values], COLLIDING)


def key_batch(keys):
    return pa.record_batch([column([key[0] for key in keys]), pa.array([key[1] for key in keys], pa.int32())], KEY)


def plain(key):
    return (list(key[0]), key[1])


def written(state, number):
    """What a state is given for a number."""
    if state.name == "each":
        return fields(number)
    return text(number) if state.kind == "value" else number


def place_of(row):
    space = row.get("space")
    return (tuple(row["k"]), row["day"]), None if space is None else tuple(space)


class Job(RuleBasedStateMachine):
    """An operator of several subtasks with every kind of state, with namespaces, times to live and timers."""

    def __init__(self):
        super().__init__()
        self.url = f"memory://{uuid.uuid4().hex}"
        self.clock = Clock(1000)
        self.watermark = 1000
        opened = arrowstate.open_store(self.url, create=True)
        self.store = arrowstate.StateStore(opened.storage, opened.store_id, clock_ms=self.clock)
        self.writer = self.store.writer()
        self.models = {state.name: StateModel(state, folding) for state, folding in FOLDINGS.items()}
        self.models |= {clock: TimerModel() for clock in CLOCKS}
        self.committed = {}
        self.frozen = []
        self.compactions = []
        self.savepoints = 0

    def teardown(self):
        clear_memory_storage(self.url)

    @initialize(
        scale=SCALES,
        policy=POLICIES,
        budget=st.sampled_from([None, 0, 2000]),
        # Few states a history, so that much happens to each.
        states=st.lists(st.sampled_from(STATES), min_size=1, max_size=3, unique_by=lambda state: state.name),
    )
    def start(self, scale, policy, budget, states):
        parallelism, self.max_parallelism = scale
        self.states = [*states, TOTAL] if TOTAL not in states else states
        self.policy, self.budget = policy, budget
        self.backends = [
            backend_of(
                KEY,
                max_parallelism=self.max_parallelism,
                key_groups=arrowstate.key_group_range(self.max_parallelism, parallelism=parallelism, subtask=subtask),
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
            for state in self.states:
                backend.state(state)
            self.timers(backend)

    def timers(self, backend):
        return backend.timers("timers", SPACE)

    def copied(self):
        return {name: model.copy() for name, model in self.models.items()}

    def parts(self, rows):
        """Rows that begin with a (key, space), by the backend that owns the key."""
        groups = (
            arrowstate.key_groups(key_batch([row[0][0] for row in rows]), self.max_parallelism).to_pylist()
            if rows
            else []
        )
        for backend in self.backends:
            part = [row for row, group in zip(rows, groups, strict=True) if group in backend.key_groups]
            if part:
                yield backend, part, key_batch([row[0][0] for row in part]), column([row[0][1] for row in part])

    def at(self, backend, state, place):
        """Set the current key and namespace, and return the state."""
        backend.current_key = plain(place[0])
        found = backend.state(state)
        if state.namespace is not None:
            found.current_namespace = list(place[1])
        return found

    def named(self, state, spaces):
        return {} if state.namespace is None else {"namespace": spaces}

    def model_place(self, state, place):
        return place if state.namespace is not None else (place[0], None)

    def prune(self):
        for state in self.states:
            self.models[state.name].prune(self.clock.now_ms, self.watermark)

    def time_of(self, state, age=0):
        return self.clock.now_ms if state.ttl is None or state.ttl.clock == "processing_time" else self.watermark - age

    def time_of_read(self, state):
        return self.time_of(state) if state.ttl is not None and state.ttl.update == "on_read_and_write" else None

    # State

    @rule(state=STATE, rows=ROWS, age=st.integers(-5, 35))
    def write_batch(self, state, rows, age):
        if state.kind == "list":
            rows = [row for row in rows if row[2] is not None]
        for backend, part, keys, spaces in self.parts(rows):
            named = self.named(state, spaces)
            if state.ttl is not None and state.ttl.clock == "event_time":
                named["timestamps"] = [self.time_of(state, age)] * len(part)
            found = backend.state(state)
            values = pa.array([written(state, value) for *_, value in part], state.type)
            if state.kind == "value":
                found.update_batch(keys, values, **named)
            elif state.kind == "map":
                found.put_batch(keys, column([row[1] for row in part]), values, **named)
            else:
                found.add_batch(keys, values, **named)
        for place, user_key, value in rows:
            at = self.model_place(state, place)
            self.models[state.name].write(at, user_key, written(state, value), self.time_of(state, age))
        self.prune()

    @rule(state=STATE, rows=st.lists(st.tuples(PLACES, st.sampled_from(USER_KEYS), st.integers(0, 9)), max_size=4))
    def write_one_by_one(self, state, rows):
        for backend, part, *_ in self.parts(rows):
            for place, user_key, value in part:
                found = self.at(backend, state, place)
                if state.kind == "value":
                    found.update(written(state, value))
                elif state.kind == "map":
                    found.put(list(user_key), value)
                else:
                    found.add(written(state, value))
        for place, user_key, value in rows:
            at = self.model_place(state, place)
            self.models[state.name].write(at, user_key, written(state, value), self.time_of(state))

    @rule(
        state=among(lambda state: state.kind == "list"),
        rows=st.lists(st.tuples(PLACES, st.lists(st.integers(0, 9), max_size=3)), max_size=5),
        scalar=st.booleans(),
    )
    def replace_lists(self, state, rows, scalar):
        if state is None:
            return
        for backend, part, keys, spaces in self.parts(rows):
            if scalar:
                for place, values in part:
                    self.at(backend, state, place).update(values)
            else:
                backend.state(state).update_batch(keys, [values for _, values in part], namespace=spaces)
        for place, values in rows:
            self.models[state.name].replace(place, values, self.time_of(state))
        self.prune()

    @rule(state=STATE, places=st.lists(PLACES, max_size=5), scalar=st.booleans())
    def clear(self, state, places, scalar):
        for backend, part, keys, spaces in self.parts([(place,) for place in places]):
            if not scalar:
                backend.state(state).clear_batch(keys, **self.named(state, spaces))
                continue
            for (place,) in part:
                self.at(backend, state, place).clear()
        for place in places:
            self.models[state.name].clear(self.model_place(state, place))

    @rule(
        state=among(lambda state: state.kind == "map"),
        rows=st.lists(st.tuples(PLACES, st.sampled_from(USER_KEYS)), max_size=6),
    )
    def remove_entries(self, state, rows):
        if state is None:
            return
        for backend, part, keys, spaces in self.parts(rows):
            backend.state(state).remove_batch(keys, column([row[1] for row in part]), namespace=spaces)
        for place, user_key in rows:
            self.models[state.name].remove(place, user_key)

    @rule(
        state=among(lambda state: state.kind in MERGED and state.namespace is not None),
        key=st.sampled_from(KEYS),
        into=st.sampled_from(SPACES),
        sources=st.lists(st.sampled_from(SPACES), max_size=3),
    )
    def merge_namespaces(self, state, key, into, sources):
        for backend, *_ in self.parts([((key, into),)]):
            backend.current_key = plain(key)
            backend.state(state).merge_namespaces(list(into), [list(source) for source in sources])
        self.models[state.name].merge(key, into, sources)

    @rule(state=STATE)
    def keys_are_the_models(self, state):
        expected = [place for place, rows in self.models[state.name].entries.items() if rows]
        batches = [
            backend.keys_and_namespaces(state) if state.namespace is not None else backend.keys(state)
            for backend in self.backends
        ]

        found = [place_of(row) for batch in batches for row in batch.to_pylist()]

        assert len(found) == len(expected)
        assert set(found) == set(expected)

    @rule(state=STATE)
    def reads_are_the_models(self, state):
        rows = [((key, space),) for key in KEYS for space in (SPACES if state.namespace is not None else SPACES[:1])]
        for backend, part, keys, spaces in self.parts(rows):
            found = backend.state(state)
            if state.kind == "map":
                maps = found.entries_batch(keys, namespace=spaces).to_pylist()
                got = [{tuple(user_key): value for user_key, value in entries} for entries in maps]
                assert [len(entries) for entries in maps] == [len(entries) for entries in got]
            else:
                got = found.get_batch(keys, **self.named(state, spaces)).to_pylist()
            model, now = self.models[state.name], self.time_of_read(state)
            assert got == [model.read(self.model_place(state, place), now) for (place,) in part]

    @rule(state=STATE, places=st.lists(PLACES, max_size=4), user_key=st.sampled_from(USER_KEYS))
    def scalar_reads_are_the_models(self, state, places, user_key):
        model, now = self.models[state.name], self.time_of_read(state)
        for backend, part, *_ in self.parts([(place,) for place in places]):
            for (place,) in part:
                found, at = self.at(backend, state, place), self.model_place(state, place)
                if state.kind != "map":
                    assert (found.value() if state.kind == "value" else found.get()) == model.read(at, now)
                    continue
                assert found.contains(list(user_key)) == bool(model.entry(at, user_key))
                assert [found.get(list(user_key))] == (model.entry(at, user_key, now) or [None])
                assert found.is_empty() == (not model.entries.get(at))

    # Timers

    @rule(clock=st.sampled_from(CLOCKS), rows=TIMERS, deletes=st.booleans(), scalar=st.booleans())
    def write_timers(self, clock, rows, deletes, scalar):
        verb = "delete" if deletes else "register"
        for backend, part, keys, spaces in self.parts(rows):
            timers = self.timers(backend)
            if not scalar:
                times = [time for _, time in part]
                getattr(timers, f"{verb}_batch")(keys, times, namespace=spaces, clock=clock)
                continue
            for (key, space), time in part:
                backend.current_key = plain(key)
                timers.current_namespace = list(space)
                getattr(timers, f"{verb}_{clock}_timer")(time)
        given = {(time, key, space) for (key, space), time in rows}
        model = self.models[clock]
        model.timers = model.timers - given if deletes else model.timers | given

    @rule(clock=st.sampled_from(CLOCKS), time=st.integers(980, 1060))
    def pop_timers(self, clock, time):
        for backend, _, own in self.owners():
            rows = self.timers(backend).pop_due(time, clock=clock).to_pylist()
            due = self.models[clock].due(time, own)
            assert [row["timestamp"] for row in rows] == sorted(timer[0] for timer in due)
            assert {(row["timestamp"], *place_of(row)) for row in rows} == due
            self.models[clock].timers -= due

    @rule(clock=st.sampled_from(CLOCKS), milliseconds=st.integers(0, 15), again=st.booleans())
    def fire_timers(self, clock, milliseconds, again):
        """The earliest timer fires next, also of those that callbacks register; total counts what fired."""
        event = clock == "event_time"
        self.watermark += milliseconds if event else 0
        self.clock.now_ms += 0 if event else milliseconds
        now = self.watermark if event else self.clock.now_ms
        model = self.models[clock]
        for backend, timers, own in self.owners():

            def call(timer, backend=backend, timers=timers, own=own):
                one = (timer.timestamp, (tuple(timer.key[0]), timer.key[1]), tuple(timer.namespace))
                assert one in model.due(now, own)
                assert timer.timestamp == min(time for time, *_ in model.due(now, own))
                model.timers.remove(one)
                if again and timer.timestamp % 3 == 0:
                    getattr(timers, f"register_{clock}_timer")(timer.timestamp + 2)
                    model.timers.add((timer.timestamp + 2, *one[1:]))
                state = backend.state(TOTAL)
                state.current_namespace = timer.namespace
                state.add(1)
                self.models["total"].write(one[1:], None, 1, 0)

            if event:
                timers.advance_watermark(now, call)
            else:
                timers.advance_processing_time(call)
            assert not model.due(now, own)
        self.prune()

    def owners(self):
        """Each backend with its timers and its keys."""
        groups = arrowstate.key_groups(key_batch(KEYS), self.max_parallelism).to_pylist()
        for backend in self.backends:
            own = [key for key, group in zip(KEYS, groups, strict=True) if group in backend.key_groups]
            yield backend, self.timers(backend), own

    # Time and snapshots

    @rule(milliseconds=st.integers(0, 15), event=st.integers(0, 15))
    def time_passes(self, milliseconds, event):
        self.clock.now_ms += milliseconds
        self.watermark += event
        for backend in self.backends:
            backend.advance_watermark(self.watermark)
        self.prune()

    @rule()
    def freeze(self):
        self.frozen = [*self.frozen[-2:], ([backend.freeze() for backend in self.backends], self.copied())]

    @rule(format=st.sampled_from(["arrow", "parquet", "lance"]), new_writer=st.booleans())
    def checkpoint(self, format, new_writer):
        if new_writer:
            self.writer = self.store.writer()
        snapshot = self.writer.checkpoint({"op": self.backends}, format=format)
        self.committed[snapshot.checkpoint_id] = self.copied()

    @rule(policy=LIMITS, at_once=st.booleans())
    def begin_compaction(self, policy, at_once):
        plan = plan_compaction({"op": self.backends}, store_key(self.store.storage, self.store.store_id), policy)
        if at_once:
            plan.run()
        self.compactions.append((plan, at_once))

    @precondition(lambda self: self.compactions)
    @rule()
    def adopt_compaction(self):
        plan, was_run = self.compactions.pop(0)
        if not was_run:
            plan.run()
        plan.adopt()

    @precondition(lambda self: self.committed)
    @rule(policy=LIMITS)
    def compact_the_store(self, policy):
        newest = max(self.committed)
        snapshot = self.store.compact(policy).apply()
        if snapshot is not None:
            assert snapshot.watermark == self.store.snapshot(newest).watermark
            assert snapshot.verify(deep=True).problems == []
            self.committed[snapshot.checkpoint_id] = {
                name: model.copy() for name, model in self.committed[newest].items()
            }

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
                clock_ms=self.clock,
            )
            for subtask in range(parallelism)
        ]
        self.models = {name: model.copy() for name, model in self.committed[checkpoint_id].items()}
        self.watermark = snapshot.watermark
        self.take_up()
        self.prune()

    @precondition(lambda self: self.committed)
    @rule(data=st.data(), state=among(lambda state: state.ttl is None))
    def an_older_checkpoint_reads_as_it_was(self, data, state):
        checkpoint_id = data.draw(st.sampled_from(sorted(self.committed)))

        rows = self.store.snapshot(checkpoint_id).to_arrow(f"op.{state.name}").to_pylist()

        for row in rows:
            row.pop("_seq", None)
        expected = []
        for (key, space), entries in self.committed[checkpoint_id][state.name].entries.items():
            for user_key, value, _ in entries:
                row = {"k": list(key[0]), "day": key[1]} | ({} if space is None else {"space": list(space)})
                row |= {} if user_key is None else {f"{state.name}_key": list(user_key)}
                if state.kind == "aggregating":
                    row |= dict(zip(("count", "sum"), value, strict=True))
                else:
                    row |= value if state.name == "each" else {state.name: value}
                expected.append(row)
        assert sorted(rows, key=str) == sorted(expected, key=str)

    # After every step

    @invariant()
    def row_counts_are_the_models(self):
        if not hasattr(self, "backends"):
            return
        for state in self.states:
            rows = sum(sum(backend.key_group_sizes(state)["rows"].to_pylist()) for backend in self.backends)
            assert rows == sum(map(len, self.models[state.name].entries.values()))
        for clock in CLOCKS:
            assert sum(self.timers(backend).count(clock) for backend in self.backends) == len(self.models[clock].timers)

    @invariant()
    def frozen_views_keep_their_moment(self):
        for subtasks, models in self.frozen:
            for number, state in enumerate(self.states):
                if state.ttl is not None:
                    continue
                found = [
                    place_of(row)
                    for subtask in subtasks
                    for run in subtask.states[number].table.runs
                    for batch in run.live_batches()
                    for row in batch.to_pylist()
                ]
                expected = [place for place, rows in models[state.name].entries.items() for _ in rows]
                assert sorted(found, key=str) == sorted(expected, key=str)


TestJob = Job.TestCase
TestJob.settings = settings(
    max_examples=short_or_long(50, 2000), stateful_step_count=short_or_long(30, 60), deadline=None, print_blob=True
)
