"""Other checkpoints than the one that is queried: `at`, changes, differences, the history of a key; against a model."""

import datetime
import random
from collections import Counter

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import (
    CheckpointNotFoundError,
    InvalidInputError,
    KeyTypeError,
    NotFoundError,
    NullKeyError,
    StateNotFoundError,
)
from arrowstate.log.commit_log import CommitLog
from arrowstate.store import StateStore
from arrowstate_formats.documents import TagDocument, encode
from long_form import short_or_long
from stores import KEY, backend_of, commit


class History:
    """A random history of a value, a list and a map, and a model of what each checkpoint holds."""

    def __init__(self, seed, *, checkpoints=6, keys=40):
        self.random = random.Random(seed)
        self.clock = 1_000_000
        made = arrowstate.open_store(f"memory://other-checkpoints-{seed}-{id(self)}", create=True)
        self.store = StateStore(made.storage, made.store_id, clock_ms=lambda: self.clock)
        self.backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=self.random.choice([4, 128]))
        self.value = self.backend.state(arrowstate.ValueStateDescriptor("v", pa.int64()))
        self.list = self.backend.state(arrowstate.ListStateDescriptor("l", pa.int64()))
        self.map = self.backend.state(arrowstate.MapStateDescriptor("m", pa.string(), pa.int64()))
        self.now = {"v": {}, "l": {}, "m": {}}
        self.models = []
        self.times = []
        with self.store.writer() as writer:
            for _ in range(checkpoints):
                for _ in range(self.random.randrange(4)):
                    self.step(keys)
                self.clock += 1000
                writer.checkpoint({"op": [self.backend]})
                self.models.append({state: dict(rows) for state, rows in self.now.items()})
                self.times.append(self.clock)

    def step(self, keys):
        drawn = [self.random.randrange(keys) for _ in range(self.random.randrange(1, 20))]
        numbers = [self.random.randrange(3) for _ in drawn]
        match self.random.randrange(5):
            case 0:
                self.value.update_batch(drawn, numbers)
                self.now["v"].update(zip(drawn, numbers, strict=True))
            case 1:
                self.value.clear_batch(drawn)
                self.now["v"] = {key: value for key, value in self.now["v"].items() if key not in drawn}
            case 2:
                self.list.add_batch(drawn, numbers)
                for key, number in zip(drawn, numbers, strict=True):
                    self.now["l"][key] = (*self.now["l"].get(key, ()), number)
            case 3:
                self.list.clear_batch(drawn)
                self.now["l"] = {key: value for key, value in self.now["l"].items() if key not in drawn}
            case 4:
                names = [self.random.choice("ab") for _ in drawn]
                self.map.put_batch(drawn, names, numbers)
                self.now["m"].update(zip(zip(drawn, names, strict=True), numbers, strict=True))

    def rows(self, state, number):
        """The rows of a state in the checkpoint with a number from 1, as SQL shows them without `_seq`."""
        model = self.models[number - 1][state]
        if state == "v":
            return sorted((key, value) for key, value in model.items())
        if state == "m":
            return sorted((key, name, value) for (key, name), value in model.items())
        return sorted((key, value) for key, values in model.items() for value in values)

    def columns(self, state):
        return {"v": "k, v", "l": "k, l", "m": "k, m_key, m"}[state]


@pytest.mark.parametrize("seed", range(short_or_long(4, 300)))
def test_a_table_at_another_checkpoint_is_what_it_was(seed):
    made = History(seed)
    newest = len(made.models)

    for number in range(1, newest + 1):
        for state in ("v", "l", "m"):
            ways = {
                f"version => {number}": number,
                f"timestamp => make_timestamp_ms({made.times[number - 1]})": number,
                f"timestamp => make_timestamp_ms({made.times[number - 1] + 999})": number,
            }
            if number < newest:
                ways[f"version => {number - newest}"] = number
            for way in ways:
                found = made.store.sql(f"select {made.columns(state)} from op.{state} at ({way})").fetchall()
                assert sorted(found) == made.rows(state, number), (way, state)


@pytest.mark.parametrize("seed", range(short_or_long(4, 300)))
def test_changes_turn_one_checkpoint_into_another(seed):
    made = History(seed)
    newest = len(made.models)
    before, after = sorted(made.random.sample(range(newest + 1), 2))

    for state in ("v", "l", "m"):
        start = "null" if before == 0 else before
        columns = made.columns(state)
        query = f"select _change_type, {columns} from arrowstate.changes('op.{state}', {start}, {after})"
        changes = made.store.sql(query).fetchall()

        rows = [] if before == 0 else made.rows(state, before)
        for kind, *row in changes:
            if kind in ("delete", "update_preimage"):
                rows.remove(tuple(row))
            else:
                rows.append(tuple(row))
        assert sorted(rows) == made.rows(state, after)
        # What did not change is not among them: an update has another value.
        befores = sorted(tuple(row) for kind, *row in changes if kind == "update_preimage")
        afters = sorted(tuple(row) for kind, *row in changes if kind == "update_postimage")
        assert len(befores) == len(afters)
        assert set(befores).isdisjoint(afters) or state == "l"
        snapshot = made.store.snapshot(after)
        table = snapshot.changes(f"op.{state}", since=before or None)
        assert sorted(changes) == sorted(
            tuple(row.values()) for row in table.select(["_change_type", *columns.split(", ")]).to_pylist()
        )
        (counted,) = made.store.sql(
            f"select inserted, updated, deleted from arrowstate.change_counts({start}, {after}) where state = '{state}'"
        ).fetchall()
        kinds = [kind for kind, *_ in changes]
        assert counted == (kinds.count("insert"), kinds.count("update_postimage"), kinds.count("delete"))


@pytest.mark.parametrize("seed", range(short_or_long(4, 300)))
def test_the_history_of_a_key_tells_each_change_of_it(seed, monkeypatch):
    # Manifests are read ahead where requests overlap.
    monkeypatch.setattr("arrowstate.query.key_history.overlaps", lambda _: seed % 2 == 1)
    made = History(seed)
    keys = made.random.sample(range(40), 3)

    for state in ("v", "l", "m"):
        told = made.store.sql(
            f"select _checkpoint_id, _change_type, {made.columns(state)} from arrowstate.history('op.{state}', ?)",
            params=[keys],
        ).fetchall()
        rows = []
        for number in range(1, len(made.models) + 1):
            for _, kind, *row in (change for change in told if change[0] == number):
                if kind in ("delete", "update_preimage"):
                    rows.remove(tuple(row))
                else:
                    rows.append(tuple(row))
            assert sorted(rows) == [row for row in made.rows(state, number) if row[0] in keys]
        assert {number for number, *_ in told} <= set(range(1, len(made.models) + 1))


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("pivot (from op.v at (version => 1)) on v using count(*)", "pivot old on v using count(*)"),
        ("with o as (from op.v at (version => 1)) pivot o on v using sum(k)", "pivot old on v using sum(k)"),
        ("select * from (pivot op.v at (version => 1) on v using sum(k))", "pivot old on v using sum(k)"),
        ("pivot op.v on v using sum(k) at (version => 1)", None),
        ("from op.v at (version => 1) x where x.k > 0", "from old where k > 0"),
        ("from op.v at (version => 1) where v.k > 0", "from old where k > 0"),
        ("from op.v at (version => $1) where k > $2", "from old where k > 0"),
        ("from op.v at (version => ?) where k > ?", "from old where k > 0"),
        (
            "pivot (from op.v at (version => ?) where k > ?) on v in (5, 6) using sum(k)",
            "pivot (from old where k > 0) on v in (5, 6) using sum(k)",
        ),
        ("pivot (from arrowstate.changes('op.v', null, 1)) on _change_type using count(*)", None),
        ("explain analyze (from op.v at (version => 1))", None),
        ("explain (format json) from op.v at (version => 1)", None),
        ("describe op.v at (version => 1)", "describe old"),
        ("summarize op.v at (version => 1)", "summarize old"),
        ("describe arrowstate.states", None),
    ],
)
def test_statements_of_every_kind_with_a_result_read_another_checkpoint(query, rows):
    store = arrowstate.open_store(f"memory://statements-{abs(hash(query))}", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    value = backend.state(arrowstate.ValueStateDescriptor("v", pa.int64()))
    with store.writer() as writer:
        for number in (5, 50):
            value.update_batch([1, 2], [number, 6])
            writer.checkpoint({"op": [backend]})
    params = [1, 0] if "?" in query or "$" in query else None
    if query.endswith("sum(k) at (version => 1)"):
        with pytest.raises(InvalidInputError):
            store.sql(query)
        return

    found = store.sql(query, params=params).fetchall()

    if rows is None:
        assert found
    else:
        old = store.snapshot(1).sql("from op.v").to_arrow_table()
        assert sorted(map(repr, found)) == sorted(map(repr, store.sql(rows, tables={"old": old}).fetchall()))


_EXPIRING = {"v": "k, v", "l": "k, l", "m": "k, m_key, m"}


class ExpiringHistory:
    """A random history of states whose rows expire, by both clocks, and what was last written of each row, and when."""

    TTL_MS = 5_000

    def __init__(self, seed, *, checkpoints=6, keys=30):
        self.random = random.Random(seed)
        self.clock = 1_000_000
        made = arrowstate.open_store(f"memory://expiring-{seed}-{id(self)}", create=True)
        self.store = StateStore(made.storage, made.store_id, clock_ms=lambda: self.clock)
        self.by_event_time = self.random.random() < 0.5
        ttl = arrowstate.TimeToLive(self.TTL_MS, clock="event_time" if self.by_event_time else "processing_time")
        parallelism = self.random.choice([1, 3])
        self.groups = [arrowstate.key_group_range(128, parallelism=parallelism, subtask=n) for n in range(parallelism)]
        self.backends = [
            backend_of(key_groups=own, clock_ms=lambda: self.clock, memory_budget_bytes=1 << 20) for own in self.groups
        ]
        self.descriptors = {
            "v": arrowstate.ValueStateDescriptor("v", pa.int64(), ttl=ttl),
            "l": arrowstate.ListStateDescriptor("l", pa.int64(), ttl=ttl),
            "m": arrowstate.MapStateDescriptor("m", pa.string(), pa.int64(), ttl=ttl),
        }
        for backend in self.backends:
            for descriptor in self.descriptors.values():
                backend.state(descriptor)
        self.written = {state: {} for state in self.descriptors}
        self.times, self.models, self.watermarks = [], [], []
        with self.store.writer() as writer:
            for _ in range(checkpoints):
                for _ in range(self.random.randrange(4)):
                    self.step(keys)
                    self.clock += self.random.randrange(2_000)
                if self.random.random() < 0.7:
                    for backend in self.backends:
                        backend.advance_watermark(self.clock - self.random.randrange(2_000))
                self.clock += 1
                writer.checkpoint({"op": self.backends}, format=self.random.choice(["arrow", "parquet"]))
                self.times.append(self.clock)
                self.models.append({state: dict(rows) for state, rows in self.written.items()})
                self.watermarks.append([backend.watermark for backend in self.backends])

    def step(self, keys):
        drawn = [self.random.randrange(keys) for _ in range(self.random.randrange(1, 20))]
        owners = arrowstate.key_groups(pa.array(drawn), 128).to_pylist()
        state = self.random.choice("vlm")
        for backend, groups in zip(self.backends, self.groups, strict=True):
            own = [key for key, group in zip(drawn, owners, strict=True) if group in groups]
            if own:
                self.write(backend, state, own)

    def write(self, backend, state, keys):
        numbers = [self.random.randrange(3) for _ in keys]
        times = [self.clock - self.random.randrange(3_000) if self.by_event_time else self.clock for _ in keys]
        given = {"timestamps": times} if self.by_event_time else {}
        target, rows = backend.state(self.descriptors[state]), self.written[state]
        if state == "v":
            target.update_batch(keys, numbers, **given)
            rows.update({(key,): (number, time) for key, number, time in zip(keys, numbers, times, strict=True)})
        elif state == "m":
            names = [self.random.choice("ab") for _ in keys]
            target.put_batch(keys, names, numbers, **given)
            rows.update(zip(zip(keys, names, strict=True), zip(numbers, times, strict=True), strict=True))
        else:
            target.add_batch(keys, numbers, **given)
            for key, number, time in zip(keys, numbers, times, strict=True):
                rows[key, len(rows)] = number, time

    def rows(self, state, number):
        """Return the rows of a checkpoint that have not expired, those that have for no subtask, and all of them.

        A restore begins with the lowest watermark; a subtask that was ahead of it may have removed more.
        """
        marks = self.watermarks[number - 1] if self.by_event_time else [self.clock] * len(self.groups)
        lowest = None if None in marks else min(marks)
        certain, fresh, everything = Counter(), Counter(), Counter()
        for key, (value, time) in self.models[number - 1][state].items():
            row = (key[0], value) if state == "l" else (*key, value)
            group = arrowstate.key_groups(pa.array([key[0]]), 128)[0].as_py()
            own = next(mark for mark, groups in zip(marks, self.groups, strict=True) if group in groups)
            everything[row] += 1
            fresh[row] += lowest is None or time + self.TTL_MS > lowest
            certain[row] += own is None or time + self.TTL_MS > own
        return certain, fresh, everything


@pytest.mark.parametrize("seed", range(short_or_long(6, 300)))
def test_rows_that_have_expired_are_left_out_of_every_checkpoint(seed):
    made = ExpiringHistory(seed)
    made.clock += made.random.randrange(6_000)
    newest = len(made.models)

    for number in made.random.sample(range(1, newest + 1), short_or_long(2, newest)):
        snapshot = made.store.snapshot(number)
        for state, columns in _EXPIRING.items():
            certain, possible, written = made.rows(state, number)
            query = f"select {columns} from op.{state}"
            table = snapshot[f"op.{state}"]
            there = [tuple(row.values()) for row in table.to_arrow(columns=columns.split(", ")).to_pylist()]
            keys = made.random.sample(range(30), 5)
            looked_up = snapshot.lookup(f"op.{state}", keys).select(columns.split(", ")).to_pylist()
            everything = sorted(snapshot.sql(query, expired=True).fetchall())

            fresh = sorted(snapshot.sql(query).fetchall())
            assert certain <= Counter(fresh) <= possible
            assert made.by_event_time or certain == possible
            assert sorted(there) == fresh
            assert snapshot.sql(f"select count(*) from op.{state}").fetchall() == [(table.num_rows,)] == [(len(fresh),)]
            assert sorted(tuple(row.values()) for row in looked_up) == [row for row in fresh if row[0] in keys]
            asked = f"{query} where k in ({', '.join(map(str, keys))})"
            assert sorted(snapshot.sql(asked).fetchall()) == [row for row in fresh if row[0] in keys]
            for part in table.partitions(3):
                there = [row for row in there if row not in {tuple(it.values()) for it in part.to_arrow().to_pylist()}]
            assert state == "l" or there == []
            # What is gone was cleaned up by a write or a merge; nothing is there that was not written.
            assert Counter(fresh) <= Counter(everything) <= written
            at = f"{query} at (version => {number})"
            assert sorted(made.store.sql(at).fetchall()) == fresh
            assert sorted(made.store.sql(at, expired=True).fetchall()) == everything


@pytest.mark.parametrize("seed", range(short_or_long(3, 300)))
def test_a_history_has_the_rows_that_have_expired_too(seed):
    made = ExpiringHistory(seed)
    keys = made.random.sample(range(30), 4)

    for state, columns in _EXPIRING.items():
        query = f"select _checkpoint_id, _change_type, {columns} from arrowstate.history('op.{state}', ?)"
        told = made.store.sql(query, params=[keys]).fetchall()
        rows = Counter()
        for number in range(1, len(made.models) + 1):
            for at, kind, *row in told:
                if at == number:
                    rows[tuple(row)] += -1 if kind in ("delete", "update_preimage") else 1
            stored = made.store.snapshot(number).lookup(f"op.{state}", keys, expired=True)
            there = Counter(tuple(row.values()) for row in stored.select(columns.split(", ")).to_pylist())
            assert +rows == there


@pytest.fixture(scope="module")
def store():
    """Three checkpoints: bob is gone in the third, eve comes in the second; the first is tagged `gold`."""
    store = arrowstate.open_store("memory://other-checkpoints", create=True)
    key = pa.schema([("user", pa.string()), ("device", pa.string())])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
    clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    with store.writer() as writer:
        clicks.add_batch(pa.table({"user": ["ann", "bob"], "device": ["pc", "tv"]}), [1, 2])
        writer.checkpoint({"counter": [backend]})
        clicks.add_batch(pa.table({"user": ["ann", "eve"], "device": ["pc", "pc"]}), [4, 1])
        writer.checkpoint({"counter": [backend]})
        clicks.clear_batch(pa.table({"user": ["bob"], "device": ["tv"]}))
        writer.checkpoint({"counter": [backend]})
    store.tag("gold", 1)
    return store


def test_several_checkpoints_meet_in_one_query(store):
    query = """
        select user, before.clicks, now.clicks from counter.clicks now
        full join counter.clicks before at (version => 'gold') using (user)
        where user is distinct from $nobody order by user
    """

    assert store.sql(query, params={"nobody": "zoe"}).fetchall() == [("ann", 1, 5), ("bob", 2, None), ("eve", None, 1)]


@pytest.mark.parametrize(
    "query",
    [
        "select user, clicks from counter.clicks at (version => ?) where user <> ? order by all",
        "with w as (from counter.clicks at (version => $1)) select user, clicks from w where user <> $2 order by all",
        "select user, clicks from (from counter.clicks at (version => $1)) where user <> $2 order by all",
        "select w.user, clicks from counter.clicks as w at (version => $1) where w.user <> $2 order by all",
    ],
)
def test_a_version_may_be_a_parameter_beside_others(store, query):
    assert store.sql(query, params=["gold", "bob"]).fetchall() == [("ann", 1)]


def test_a_name_with_all_columns_has_them_at_other_checkpoints_too(store):
    hashes = store.sql('select _key_hash from "counter.clicks" at (version => 1)').fetchall()

    assert len(hashes) == 2
    with pytest.raises(InvalidInputError, match="_key_hash"):
        store.sql("select _key_hash from counter.clicks at (version => 1)")


def test_a_key_is_looked_up_at_another_checkpoint(store):
    snapshot = store.latest()

    found = snapshot.sql("select clicks from counter.clicks at (version => 1) where user = 'ann' and device = 'pc'")

    assert found.fetchall() == [(1,)]
    assert snapshot.scans[-1].keys == 1


def test_an_explanation_shows_what_is_pushed_down(store):
    for table in ("counter.clicks", "counter.clicks at (version => 1)", "arrowstate.state('counter.clicks')"):
        ((_, plan),) = store.sql(f"explain from {table} where user = 'ann'").fetchall()

        # DuckDB 1.4 writes it without quotes and spaces.
        assert "Filters: user='ann'" in plan.replace('"user" = ', "user=")


def test_a_key_of_several_columns_has_a_history(store):
    query = "from arrowstate.history('counter.clicks', {'user': 'ann', 'device': 'pc'}) select _checkpoint_id, clicks"

    assert store.sql(query).fetchall() == [(1, 1), (2, 1), (2, 5)]
    with pytest.raises(InvalidInputError, match="all columns"):
        store.sql("from arrowstate.history('counter.clicks', 'ann')")


NESTED = pa.struct([("k", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("key", "written", "found"),
    [
        (pa.array([5, 6]), "5.0", [(1,)]),
        (pa.array([5, 6]), "5.0::double", [(1,)]),
        (pa.array([5, 6]), "[6, 5]", [(1,), (2,)]),
        (pa.array([5, 6]), "5.5", "got Decimal"),
        (pa.array([5, 6]), "{'k': 5.5}", "got Decimal"),
        (pa.array([5, 6]), "{'other': 5}", "got {'other': 5}"),
        (pa.array([1.5, 0.0]), "1.5", [(1,)]),
        (pa.array([1.5, 0.0]), "-0.0", [(2,)]),
        (pa.array([0, 1], pa.timestamp("s")), "timestamp '1970-01-01 00:00:01'", [(2,)]),
        (pa.array([0, 1], pa.timestamp("s", "UTC")), "timestamptz '1970-01-01 01:00:01+01'", [(2,)]),
        (pa.array([0, 1], pa.timestamp("s")), "timestamp '1970-01-01 00:00:01.5'", "got datetime"),
        (pa.array([0, 1], pa.timestamp("s")), "[]", []),
        (pa.array([0, 1], pa.date32()), "date '1970-01-02'", [(2,)]),
        (pa.array([0, 1], pa.date32()), "timestamp '1970-01-02 05:00:00'", "got datetime"),
        (pa.array([0, 1], pa.time32("s")), "time '00:00:01.5'", "got datetime"),
        (pa.array([0, 1], pa.duration("s")), "interval 1 second", [(2,)]),
        (pa.array([0, 1], pa.duration("s")), "interval 1500 milliseconds", "got datetime"),
        (pa.array([[5, 6], []]), "[5, 6]", [(1,)]),
        (pa.array([[5, 6], []]), "[[5, 6], []]", [(1,), (2,)]),
        (pa.array([(5, "x"), (6, "x")], NESTED), "{'k': 5, 'b': 'x'}", [(1,)]),
        (pa.array([(5, "x"), (6, "x")], NESTED), "{'k': 5.5, 'b': 'x'}", "got {'k': Decimal"),
    ],
)
def test_a_key_in_a_query_is_the_one_that_it_equals_or_none(tmp_path, key, written, found):
    store = arrowstate.open_store(tmp_path, create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", key.type)]), max_parallelism=4)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(key, [1, 2])
    commit(store, {"op": [backend]})
    query = f"select v from arrowstate.history('op.v', {written}) order by v"

    if isinstance(found, list):
        assert store.sql(query).fetchall() == found
    else:
        with pytest.raises(KeyTypeError, match=found):
            store.sql(query).fetchall()


def test_a_key_of_several_columns_is_refused_by_the_column_that_does_not_fit():
    store = arrowstate.open_store("memory://keys-of-columns-in-queries", create=True)
    key = pa.schema([("a", pa.int64()), ("f", pa.float64())])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=4)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(pa.table({"a": [5], "f": [1.5]}), [1])
    commit(store, {"op": [backend]})

    assert store.sql("select v from arrowstate.history('op.v', {'a': 5, 'f': 1.5})").fetchall() == [(1,)]
    with pytest.raises(KeyTypeError, match="a: int64, got 'x'"):
        store.sql("from arrowstate.history('op.v', {'a': 'x', 'f': 1.5})")
    with pytest.raises(NullKeyError, match="'a' is null"):
        store.sql("from arrowstate.history('op.v', {'a': null, 'f': 1.5})")


def test_a_difference_has_counts_and_rows(store):
    difference = store.diff("gold")

    assert [(item.state, item.inserted, item.updated, item.deleted) for item in difference.states] == [
        ("clicks", 1, 1, 1)
    ]
    assert repr(difference) == "<Difference of checkpoints 1 and 3: counter.clicks +1 ~1 -1>"
    rows = difference.rows("counter.clicks", columns=["user", "clicks"]).to_pylist()
    assert sorted((row["_change_type"], row["user"], row["clicks"]) for row in rows) == [
        ("delete", "bob", 2),
        ("insert", "eve", 1),
        ("update_postimage", "ann", 5),
        ("update_preimage", "ann", 1),
    ]
    assert store.diff(3).states[0].is_empty
    with pytest.raises(InvalidInputError, match="give the older one first"):
        store.diff(3, 1)


def test_states_that_came_and_went_are_told():
    store = arrowstate.open_store("memory://came-and-went", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=4)
    backend.state(arrowstate.ValueStateDescriptor("old", pa.int64())).update_batch([1], [1])
    commit(store, {"op": [backend]})
    restored = store.latest().restore("op", drop=["old"])
    restored.state(arrowstate.ValueStateDescriptor("new", pa.int64())).update_batch([1, 2], [1, 2])
    commit(store, {"op": [restored]})

    found = {item.state: (item.inserted, item.deleted, item.schema_change) for item in store.diff(1, 2).states}

    assert found == {"new": (2, 0, "new"), "old": (0, 1, "dropped")}
    assert store.sql("select old from arrowstate.changes('op.old', 1, 2)").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("query", "error", "match"),
    [
        ("from counter.clicks at (version => 9)", CheckpointNotFoundError, "it has 1, 2, 3"),
        ("from counter.clicks at (version => 'silver')", NotFoundError, "the tags are 'gold'"),
        ("from counter.clicks at (version => -7)", NotFoundError, "2 checkpoints before checkpoint 3"),
        ("from counter.clicks at (version => 1.5)", InvalidInputError, "an id, -1"),
        ("from counter.clicks at (version => null)", InvalidInputError, "got null"),
        ("from counter.clicks at (version => (select 1))", InvalidInputError, "no subquery; run"),
        ("from counter.clicks at (version => user)", InvalidInputError, "no column"),
        ("from counter.clicks at (timestamp => 'noon')", InvalidInputError, "noon"),
        ("from counter.clicks at (timestamp => 17)", InvalidInputError, "make_timestamp_ms"),
        ("from counter.clicks at (timestamp => date '1999-01-01')", NotFoundError, "the oldest, 1,"),
        ("from counter.cliks at (version => 1)", StateNotFoundError, "it has 'counter.clicks'"),
        ("from arrowstate.checkpoints at (version => 1)", InvalidInputError, "leave out at"),
        ("from arrowstate.changes('counter.clicks')", InvalidInputError, "has 1 arguments"),
        ("from arrowstate.changes('counter.clicks', (select 1))", InvalidInputError, "run the subquery first"),
        ("from arrowstate.changes('counter.clicks', a := 1)", InvalidInputError, "have no names"),
        ("from arrowstate.changes(1, 2)", InvalidInputError, "as 'OPERATOR.STATE'"),
        ("from arrowstate.changes('counter.cliks', 1)", StateNotFoundError, "it has 'counter.clicks'|it has 'clicks'"),
        ("from arrowstate.changes('counter.clicks', 3, 1)", InvalidInputError, "give the older one first"),
        ("from arrowstate.change_counts('silver')", NotFoundError, "the tags are 'gold'"),
        ("from arrowstate.history('counter.cliks', 'x')", StateNotFoundError, "it has 'counter.clicks'|'clicks'"),
    ],
)
def test_what_a_query_cannot_mean_is_told(store, query, error, match):
    with pytest.raises(error, match=match):
        store.sql(query).fetchall()


def test_frames_of_others_join(store):
    query = "select f.user, f.n + clicks from frame f join counter.clicks using (user)"
    columns = {"user": ["eve"], "n": [10]}

    for frame in (pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns)):
        assert store.sql(query, tables={"frame": frame}).fetchall() == [("eve", 11)]
    with pytest.raises(StateNotFoundError, match="frame"):
        store.sql(query)


def test_a_result_is_copied_to_a_file_and_pivoted(store, tmp_path):
    path = tmp_path / "clicks.parquet"

    store.sql(f"copy (from counter.clicks at (version => 2)) to '{path}'")

    assert pl.read_parquet(path).height == 3
    assert sorted(store.sql("pivot counter.clicks on device using sum(clicks)").columns) == [
        "_key_group",
        "pc",
        "user",
    ]
    pivot = "pivot counter.clicks on device using sum(clicks)"
    for other in (
        "create table t as from counter.clicks",
        f"{pivot}; {pivot}",
        f"select 1; {pivot}",
        f"{pivot}; reset x",
    ):
        with pytest.raises(InvalidInputError, match="takes one SELECT"):
            store.sql(other)


def test_a_checkpoint_is_named_by_id_tag_or_time(store):
    committed = store.snapshot(2).entry.committed_at_ms
    later = datetime.datetime.fromtimestamp(committed / 1000, datetime.UTC)

    assert [store.snapshot(name).checkpoint_id for name in (2, "2", "gold")] == [2, 2, 1]
    assert [store.snapshot(3).diff(name).before for name in (-1, "-2", "gold", 3)] == [2, 1, 1, 3]
    assert store.snapshot(later).checkpoint_id >= 2
    assert store.snapshot(later.isoformat()).checkpoint_id == store.snapshot(later).checkpoint_id
    assert store.sql("select count(*) from counter.clicks", checkpoint="gold").fetchall() == [(2,)]
    assert store.show("gold")["checkpoint_id"] == 1
    with store.lease("gold") as lease:
        assert lease.snapshot.checkpoint_id == 1
    for steps in (-3, -(2**70)):
        with pytest.raises(NotFoundError, match="2 checkpoints before"):
            store.diff(steps)
    for given in (1.5, datetime.date(2026, 3, 1), True):
        for choose in (store.snapshot, store.diff):
            with pytest.raises(InvalidInputError, match=r"the id of a checkpoint must be a whole number, got"):
                choose(given)
    with pytest.raises(NotFoundError, match="no tag 'silver'"):
        store.snapshot("silver")
    with pytest.raises(NotFoundError, match="the oldest, 1,"):
        store.snapshot("1999-01-01T00:00:00Z")


def test_a_text_of_digits_is_an_id_and_a_tag_of_digits_on_another_checkpoint_makes_it_an_error():
    store = arrowstate.open_store("memory://tags-of-digits", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)
    with store.writer() as writer:
        for _ in range(3):
            writer.checkpoint({"op": [backend]})
    with pytest.raises(InvalidInputError, match="a tag name must not be digits alone"):
        store.tag("2", 1)
    assert store.tags() == {}
    for name, checkpoint_id in (("2", 1), ("3", 3), ("9", 1)):
        _put_tag_of_an_older_version(store, name, checkpoint_id)

    with pytest.raises(InvalidInputError, match=r"'2' is the id of checkpoint 2 and a tag of checkpoint 1"):
        store.snapshot("2")
    with pytest.raises(InvalidInputError, match=r"'2' is the id of checkpoint 2 and a tag of checkpoint 1"):
        store.rollback("2")
    assert [store.snapshot(name).checkpoint_id for name in (2, "1", "3", "9")] == [2, 1, 3, 1]
    store.untag("2")
    assert store.snapshot("2").checkpoint_id == 2


def _put_tag_of_an_older_version(store, name, checkpoint_id):
    entry = CommitLog(store.storage).committed_checkpoint(checkpoint_id).as_parent
    document = TagDocument(name=name, tag_id=name, checkpoint_id=checkpoint_id, entry=entry, created_at_ms=0)
    store.storage.put_if_absent(f"tags/{name}.json", encode(document), name)


def test_a_history_goes_back_over_types_that_no_run_has_any_more():
    store = arrowstate.open_store("memory://history-over-types", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)
    with store.writer() as writer:
        backend.state(arrowstate.ValueStateDescriptor("v", pa.int16())).update_batch([1, 2], [1, 1])
        snapshot = writer.checkpoint({"op": [backend]})
        for kind, value in ((pa.int32(), 70_000), (pa.int64(), 5_000_000_000)):
            backend = snapshot.restore("op")
            state = backend.state(arrowstate.ValueStateDescriptor("v", kind))
            state.update_batch([1], [value])
            state.clear_batch([2])
            snapshot = writer.checkpoint({"op": [backend]})

    rows = snapshot.history("op.v", [1, 2]).to_pylist()

    assert snapshot.entry.operators[0].states[0].earlier_schemas == []
    told = [(row["_checkpoint_id"], row["k"], row["_change_type"], row["v"]) for row in rows]
    assert sorted(told) == [
        (1, 1, "insert", 1),
        (1, 2, "insert", 1),
        (2, 1, "update_postimage", 70_000),
        (2, 1, "update_preimage", 1),
        (2, 2, "delete", 1),
        (3, 1, "update_postimage", 5_000_000_000),
        (3, 1, "update_preimage", 70_000),
    ]


def test_a_checkpoint_and_its_compaction_are_one_step_back():
    store = arrowstate.open_store("memory://steps-back", create=True)
    backend = backend_of()
    total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    with store.writer(compaction=None) as writer:
        for keys in (10_000, 8_000):
            total.add_batch(range(keys), [1] * keys)
            writer.checkpoint({"op": [backend]})
        assert store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.1)).apply().checkpoint_id == 2
        last = writer.checkpoint({"op": [backend]})

    assert [last.diff(steps).before for steps in (-1, -2)] == [2, 1]
    assert last.sql("select count(*) from op.total at (version => -2)").fetchall() == [(10_000,)]
    with pytest.raises(NotFoundError, match="there are 2 checkpoints before checkpoint 3"):
        last.diff(-3)
