"""State made of a table without Spark: `store.bootstrap`, compared with the verbs of a backend, row by row."""

import itertools
import random
import uuid

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    TimerStateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
)
from arrowstate.bootstrap import routing, subtask
from arrowstate.errors import (
    FencedError,
    InvalidInputError,
    KeyTypeError,
    NullKeyError,
    ValueOverflowError,
    ValueTypeError,
)
from long_form import short_or_long
from stores import CITY, TOTAL, commit

EVENTS = ListStateDescriptor("events", pa.int64())
KEY = pa.schema([("user", pa.string()), ("shard", pa.int32())])
FOREVER = TimeToLive(10**15)
BY_EVENTS = TimeToLive(10**15, clock="event_time")
WINDOW = pa.schema([("window_start", pa.int64())])
STATES = [
    CITY,
    ValueStateDescriptor("place", pa.struct([("street", pa.string()), ("zip", pa.int32())])),
    ValueStateDescriptor("whole", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    ValueStateDescriptor("aging", pa.float64(), ttl=FOREVER),
    TOTAL,
    ReducingStateDescriptor("seen", pa.int64(), reduce="count"),
    ReducingStateDescriptor("latest", pa.string(), reduce="last"),
    ReducingStateDescriptor(
        "sums", pa.struct([("n", pa.int64()), ("amount", pa.float64())]), reduce={"n": "count", "amount": "max"}
    ),
    ReducingStateDescriptor("by_window", pa.int64(), reduce="sum", namespace=WINDOW),
    AggregatingStateDescriptor("average", pa.float64(), aggregate="mean"),
    EVENTS,
    ListStateDescriptor("visits", pa.string(), ttl=BY_EVENTS),
    MapStateDescriptor("attributes", pa.string(), pa.int64()),
    MapStateDescriptor("carts", pa.int64(), pa.string(), ttl=FOREVER),
    TimerStateDescriptor("timers_event_time", clock="event_time"),
    TimerStateDescriptor("windows_processing_time", clock="processing_time", namespace=WINDOW),
]
SCHEMA = pa.schema(
    [
        ("shard", pa.int16()),
        ("user", pa.large_string()),
        ("city", pa.dictionary(pa.int32(), pa.string())),
        ("street", pa.string()),
        ("zip", pa.int8()),
        ("whole", pa.struct([("b", pa.large_list(pa.string())), ("a", pa.int32())])),
        ("aging", pa.float32()),
        ("total", pa.uint32()),
        ("seen", pa.string()),
        ("latest", pa.string_view()),
        ("n", pa.bool_()),
        ("amount", pa.int16()),
        ("by_window", pa.int64()),
        ("window_start", pa.int64()),
        ("average", pa.float64()),
        ("events", pa.int64()),
        ("visits", pa.list_(pa.string())),
        ("attributes", pa.int64()),
        ("attributes_key", pa.string()),
        ("carts", pa.map_(pa.int64(), pa.string())),
        ("timestamp", pa.timestamp("us", "Europe/Rome")),
        ("at", pa.timestamp("ns")),
    ]
)


def some_rows(draw, count):
    """Rows for each of the states; the first of a key alone has what a key has once."""
    keys = set()
    for number in range(count):
        key = draw.choice("abcdefghij") * draw.randrange(1, 9), draw.randrange(4)
        first = key not in keys
        keys.add(key)

        def maybe(value, here=True):
            return value if here and draw.random() < 0.7 else None

        at = maybe(1_600_000_000_000 + draw.randrange(10**9))
        yield {
            "user": key[0],
            "shard": key[1],
            "city": maybe(draw.choice(["Rome", "Oslo"]), first),
            "street": maybe("Main St", first),
            "zip": maybe(draw.randrange(100), first),
            "whole": maybe({"a": number, "b": [str(number), None]}, first),
            "aging": maybe(draw.randrange(100) / 4, first),
            "total": maybe(draw.randrange(2**32)),
            "seen": maybe("x"),
            "latest": maybe(str(number)),
            "n": maybe(True),
            "amount": maybe(draw.randrange(100)),
            "by_window": maybe(draw.randrange(100)),
            "window_start": draw.randrange(3),
            "average": maybe(draw.randrange(100) / 2),
            "events": maybe(number),
            "visits": maybe([f"/{number}", "/"][: draw.randrange(3)]),
            "attributes": maybe(number),
            "attributes_key": maybe(f"attribute {number}"),
            "carts": maybe([(number * 10 + place, maybe("a thing")) for place in range(draw.randrange(3))]),
            "timestamp": None if draw.random() < 0.3 else draw.randrange(50) * 1_000_000,
            "at": None if at is None else at * 1_000_000 + 999_999,
        }


def made_by_verbs(rows, now_ms):
    """The state that a program has which gives each row by itself to the verbs of a backend."""
    clock = [now_ms]
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128, clock_ms=lambda: clock[0])
    states = {descriptor.name: backend.state(descriptor) for descriptor in STATES}
    for row in rows:
        key = pa.record_batch([[row["user"]], pa.array([row["shard"]], pa.int32())], schema=KEY)
        at = now_ms if row["at"] is None else row["at"] // 1_000_000
        given = {
            **row,
            "place": {"street": row["street"], "zip": row["zip"]},
            "sums": {"n": row["n"] and 1, "amount": row["amount"]},
            "seen": row["seen"] and 1,
        }
        for name, state in states.items():
            descriptor = state.descriptor
            space = {} if descriptor.namespace is None else {"namespace": row["window_start"]}
            times = {"timestamps": [at]} if descriptor.ttl is BY_EVENTS else {}
            clock[0] = at
            if descriptor.kind == "timer":
                if row["timestamp"] is not None:
                    state.register_batch(key, [row["timestamp"] // 1000], **space)
            elif name == "attributes":
                if row["attributes_key"] is not None:
                    state.put_batch(key, [row["attributes_key"]], [row["attributes"]])
            elif name == "carts":
                for user_key, item in row["carts"] or ():
                    state.put_batch(key, [user_key], [item])
            elif given[name] is None or given[name] == {"street": None, "zip": None}:
                continue
            elif name == "visits":
                state.add_all_batch(key, [given[name]], **times)
            elif descriptor.kind == "value":
                state.update_batch(key, [given[name]])
            else:
                state.add_batch(key, [given[name]], **space)
    return backend


def rows_of(snapshot, descriptor):
    """The rows of a state in the order of its keys, with their times of update; those of a list in its order."""
    columns = snapshot[f"op.{descriptor.name}"].schema.names
    if descriptor.ttl is not None:
        columns = [*columns, "_updated_at"]
    rows = snapshot.to_arrow(f"op.{descriptor.name}", columns=columns).to_pylist()
    ordered = ["user", "shard", "_seq"] if descriptor.kind == "list" else columns
    rows.sort(key=lambda row: [f"{row[name]:020}" if name == "_seq" else repr(row[name]) for name in ordered])
    return [{name: value for name, value in row.items() if name != "_seq"} for row in rows]


@pytest.fixture
def store():
    return arrowstate.open_store(f"memory://{uuid.uuid4().hex}", create=True)


def two_states(**columns):
    """A table with a city and a total for each of ten users, and columns in place of these."""
    users = [f"user {number}" for number in range(10)]
    return pa.table({"user": users, "city": ["Rome"] * 10, "total": range(10), **columns})


def nothing_is_left(store, checkpoints=0):
    assert [path for path in store.storage.list("") if path.startswith(("data/", "manifests/"))] == []
    assert len(store.checkpoints()) == checkpoints


@pytest.mark.parametrize("seed", range(short_or_long(1, 40)))
def test_every_kind_of_state_is_what_the_verbs_make_of_the_rows(store, monkeypatch, seed):
    draw = random.Random(seed)
    # Several pieces, of several batches or of parts of one.
    monkeypatch.setattr(subtask, "_PIECE_ROWS", draw.choice((7, 50, 1000)))
    rows = list(some_rows(draw, 120))
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    model_store = arrowstate.open_store(f"memory://{uuid.uuid4().hex}", create=True)
    now_ms = 1_700_000_000_000
    model = commit(model_store, {"op": [made_by_verbs(rows, now_ms)]})
    store.clock_ms = lambda: now_ms

    made = store.bootstrap(
        "op",
        KEY,
        STATES,
        itertools.chain.from_iterable(table.slice(place, 40).to_batches() for place in range(0, 120, 40)),
        parallelism=draw.choice((1, 2, 5)),
        updated_at="at",
        memory_budget_bytes=draw.choice((None, 0, 1 << 16)),
        format=draw.choice(("arrow", "parquet")),
    )

    for descriptor in STATES:
        assert rows_of(made, descriptor) == rows_of(model, descriptor), descriptor.name
    assert store.verify(deep=True).problems == []
    restored = made.restore("op")
    assert [restored.state(descriptor).descriptor for descriptor in STATES] == STATES


def test_accumulators_are_stored_as_they_are_and_added_to_later(store):
    count = ReducingStateDescriptor("n", pa.int64(), reduce="count")
    mean = AggregatingStateDescriptor("mean", pa.float64(), aggregate="mean")
    table = pa.table({"k": ["a", "b"], "n": [7, 1], "count": [2, 1], "sum": [9.0, 4.0]})

    made = store.bootstrap("op", ["k"], [count, mean], table, accumulators=True)

    backend = made.restore("op")
    backend.state(count).add_batch(["a"], [5])
    assert backend.state(count).get_batch(["a", "b"]).to_pylist() == [8, 1]
    assert backend.state(mean).get_batch(["a", "b"]).to_pylist() == [4.5, 4.0]
    with pytest.raises(InvalidInputError, match="1 of 3 rows have a key that came before: k='a'"):
        store.bootstrap("other", ["k"], [count], pa.table({"k": ["a", "b", "a"], "n": [1, 2, 3]}), accumulators=True)


class Capsule:
    """What has rows of Arrow, and is of no library."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


# With DuckDB 1.4, a relation does not hold its connection.
CONNECTION = duckdb.connect()
SOURCES = {
    "table": lambda table, _: table,
    "batch": lambda table, _: table.combine_chunks().to_batches()[0],
    "reader": lambda table, _: table.to_reader(max_chunksize=3),
    "capsule": lambda table, _: Capsule(table),
    "polars": lambda table, _: pl.from_arrow(table).with_columns(pl.col("city").cast(pl.Categorical)),
    "lazy polars": lambda table, _: pl.from_arrow(table).lazy().collect_batches(chunk_size=4),
    "pandas": lambda table, _: table.to_pandas().astype({"city": "category"}),
    "duckdb": lambda table, _: duckdb.from_arrow(table),
    "batches": lambda table, _: iter(table.to_batches(max_chunksize=4)),
    "frames": lambda table, _: [pl.from_arrow(table.slice(0, 4)), pl.from_arrow(table.slice(4))],
    "lazy frame": lambda table, _: pl.from_arrow(table).lazy(),
    "query": lambda table, _: CONNECTION.from_arrow(table),
    "generator": lambda table, _: (batch for batch in table.to_batches(max_chunksize=4)),
    "dataset": lambda table, _: ds.dataset(table),
    "files": lambda table, folder: [pq.write_table(table, folder / "a.parquet"), ds.dataset(folder)][1],
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_table_may_be_whatever_has_rows_of_arrow(store, tmp_path, source):
    table = SOURCES[source](two_states(), tmp_path)

    made = store.bootstrap("op", ["user"], [CITY, TOTAL], table, parallelism=2)

    assert made.restore("op").key.field("user").type == pa.string()
    assert made.to_arrow("op.total").sort_by("total").to_pydict() == two_states().drop("city").to_pydict()
    assert made.to_arrow("op.city")["city"].to_pylist() == ["Rome"] * 10


@pytest.mark.parametrize(
    "table", [[1, 2], "a table", {"user": ["ann"]}, None, pl.LazyFrame({"nobody": ["ann"]}), iter([pd.Series(["ann"])])]
)
def test_what_has_no_rows_of_arrow_is_refused(store, table):
    with pytest.raises(InvalidInputError, match="a table must be one of Arrow, a stream|has no column 'user'"):
        store.bootstrap("op", ["user"], [CITY], table)

    assert store.storage.list("log/") == []


def test_an_iterator_must_have_a_batch_and_each_the_same_columns(store):
    batches = [pa.record_batch({"user": ["ann"], "total": [1]}), pa.record_batch({"user": ["bob"], "total": ["1"]})]

    with pytest.raises(InvalidInputError, match="the iterator has no record batch"):
        store.bootstrap("op", ["user"], [TOTAL], iter([]))
    with pytest.raises(InvalidInputError, match="batch 1 of the iterator has other columns .*: user string, total str"):
        store.bootstrap("op", ["user"], [TOTAL], batches)
    nothing_is_left(store)


def test_no_row_makes_empty_states(store):
    made = store.bootstrap("op", ["user"], [CITY, TOTAL], two_states().slice(0, 0), parallelism=3)

    assert made.to_arrow("op.total").num_rows == 0
    assert made.restore("op").state_names == ("city", "total")
    assert [task.subtask for task in made.entry.operators[0].subtasks] == [0, 1, 2]


def test_other_operators_and_states_stay(store):
    store.bootstrap("first", ["user"], [TOTAL], two_states(), parallelism=2, properties={"offset": 42}, watermark=77)
    store.bootstrap("second", ["user"], [TOTAL], two_states(), max_parallelism=7)
    store.bootstrap("first", ["user"], [CITY], two_states(), parallelism=3)

    with pytest.raises(InvalidInputError, match="operator 'first' in .* has the state 'total' already"):
        store.bootstrap("first", ["user"], [TOTAL], two_states())
    made = store.bootstrap("first", ["user"], [TOTAL], two_states().slice(0, 3), overwrite=True)

    assert [made[name].num_rows for name in ("first.total", "first.city", "second.total")] == [3, 10, 10]
    assert [operator.max_parallelism for operator in made.entry.operators] == [128, 7]
    assert made.entry.operators[0].parallelism == 3
    assert made.properties == {"offset": 42}
    assert made.entry.watermark == 77
    assert store.verify(deep=True).problems == []


def test_rows_of_a_key_are_sorted_wherever_they_fit(store, tmp_path, monkeypatch):
    monkeypatch.setattr(subtask, "_PIECE_ROWS", 500)
    monkeypatch.setattr("arrowstate.bootstrap.tables._SMALLEST_PIECE_BYTES", 1)
    spilled = []
    monkeypatch.setattr(
        routing._Parts, "add", lambda self, rows, add=routing._Parts.add: spilled.append(add(self, rows))
    )
    draw = random.Random(3)
    times = [draw.choice([1.5, 2.0, -7.25, float("nan"), None]) for _ in range(4000)]
    keys = [draw.randrange(50) for _ in range(4000)]
    table = pa.table({"k": keys, "at": pa.array(times), "events": range(4000)})
    order = {None: 0, -7.25: 1, 1.5: 2, 2.0: 3}
    expected = {key: [] for key in range(50)}
    for _, number in sorted((order.get(at, 4), number) for number, at in enumerate(times)):
        expected[keys[number]].append(number)

    for budget, name in ((None, "memory"), (1 << 10, "disk")):
        made = store.bootstrap(
            name, ["k"], [EVENTS], table, parallelism=3, order_by=["at"], memory_budget_bytes=budget, spill_dir=tmp_path
        )
        assert bool(spilled) == (name == "disk")
        assert made.restore(name).state(EVENTS).get_batch(range(50)).to_pylist() == list(expected.values())
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_is_there_is_the_key_and_a_narrower_column_becomes_it(store):
    store.bootstrap("op", ["user", "shard"], [TOTAL], two_states(shard=[7] * 10))

    store.bootstrap("op", ["user", "shard"], [CITY], two_states(shard=pa.array([7] * 10, pa.int8())))

    assert store.latest().restore("op").key == pa.schema(
        [pa.field("user", pa.string(), False), pa.field("shard", pa.int64(), False)]
    )
    other = ReducingStateDescriptor("other", pa.int64(), reduce="sum")
    again = {"shard": [7] * 10, "other": range(10)}
    for key, columns in (
        (["user"], again),
        (["shard", "user"], again),
        (["user", "shard"], {**again, "shard": ["7"] * 10}),
        (KEY, {**again, "shard": pa.array([7] * 10, pa.int32())}),
    ):
        with pytest.raises(KeyTypeError, match="keys must be user: string, shard: int64, got"):
            store.bootstrap("op", key, [other], two_states(**columns))
    with pytest.raises(KeyTypeError, match="keys must be user: string, shard: int32, got user: string, shard: int64"):
        store.bootstrap("new", KEY, [other], two_states(**again))


def test_what_does_not_fit_is_refused_with_its_cause(store):
    def refused(error, match, *states, table=None, **arguments):
        with pytest.raises(error, match=match):
            store.bootstrap(
                "op",
                **{"key": ["user"], "states": states, "table": two_states() if table is None else table, **arguments},
            )
        nothing_is_left(store)

    place = ValueStateDescriptor("place", pa.struct([("city", pa.string()), ("zip", pa.int32())]))
    attributes = MapStateDescriptor("attributes", pa.string(), pa.int64())
    window = ReducingStateDescriptor("total", pa.int64(), reduce="sum", namespace=WINDOW)
    late = ValueStateDescriptor("city", pa.string(), ttl=BY_EVENTS)
    wide = two_states(total=pa.array([2**62] * 10), user=["ann"] * 10)
    null = two_states(user=[*"abcdefghi", None])
    refused(InvalidInputError, "the table has no column 'zip'; it has user, city, total", place)
    refused(ValueTypeError, "state 'total' must be int64, got double", TOTAL, table=two_states(total=[0.5] * 10))
    refused(ValueTypeError, "must be int32, got int64", ValueStateDescriptor("total", pa.int32()))
    refused(InvalidInputError, "map state 'attributes' needs a column 'attributes' with a map", attributes)
    refused(InvalidInputError, "the table has no column 'window_start'", window)
    refused(InvalidInputError, "expires by event time: name the column", late)
    refused(InvalidInputError, "must be a timestamp, or milliseconds in a int64; it is string", late, updated_at="city")
    refused(NullKeyError, "key column 'user' is null in row 9", TOTAL, table=null)
    refused(NullKeyError, "key column 'user' is null in row 9", TOTAL, table=null.to_batches(max_chunksize=2))
    refused(ValueOverflowError, "sum of state 'total' does not fit int64", TOTAL, table=wide)
    refused(InvalidInputError, "1 of 11 rows have a key that came before: user='user 3'; make one", CITY, table=twice())
    refused(InvalidInputError, "key must be a list of at least one column, got 'user'", TOTAL, key="user")
    refused(InvalidInputError, "key must be a list", TOTAL, key=[])
    refused(InvalidInputError, "states must be a list of at least one descriptor")
    refused(InvalidInputError, "parallelism", TOTAL, parallelism=200, max_parallelism=100)
    refused(InvalidInputError, "order_by must be a list of columns, got 'city'", TOTAL, order_by="city")
    refused(InvalidInputError, "the table has no column 'at'", TOTAL, order_by=["at"])
    nested = two_states(at=[[1]] * 10)
    refused(InvalidInputError, "cannot be sorted by 'at', which is list", TOTAL, order_by=["at"], table=nested)
    refused(InvalidInputError, "the format of a run is", TOTAL, format="csv")
    refused(InvalidInputError, "memory_budget_bytes", TOTAL, memory_budget_bytes=-1)
    refused(InvalidInputError, "name", TOTAL, savepoint="not a name!")
    refused(InvalidInputError, "properties.a must be null", TOTAL, properties={"a": object()})
    same = pa.Table.from_arrays([["ann"], [1], [2]], names=["user", "total", "total"])
    refused(InvalidInputError, "the table has 2 columns 'total'; rename all but one", TOTAL, table=same)
    gone = two_states(total=pa.array([10**12 + 1] * 10, pa.timestamp("us")))
    refused(InvalidInputError, "cannot be read as", ValueStateDescriptor("total", pa.timestamp("ms")), table=gone)


def twice():
    return pa.concat_tables([two_states(), two_states().slice(3, 1)])


def test_a_key_is_found_twice_in_pieces_apart(store, monkeypatch):
    monkeypatch.setattr(subtask, "_PIECE_ROWS", 1)

    with pytest.raises(InvalidInputError, match="1 of 1 rows have a key that came before: user='user 3';"):
        store.bootstrap("op", ["user"], [CITY], twice())

    nothing_is_left(store)


def test_a_table_that_breaks_off_leaves_nothing_and_its_error_is_its_own(store):
    def rows():
        yield from two_states().to_batches()
        raise LookupError("the connection is gone")

    for table in (rows(), pa.RecordBatchReader.from_batches(two_states().schema, rows())):
        with pytest.raises(LookupError, match="the connection is gone"):
            store.bootstrap("op", ["user"], [CITY], table, parallelism=2, memory_budget_bytes=0)

    nothing_is_left(store)
    assert store.storage.list("log/") == []


def test_a_commit_of_another_writer_meanwhile_wins(store):
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)

    def rows():
        yield from two_states().to_batches()
        commit(store, {"other": [backend]})

    with pytest.raises(FencedError):
        store.bootstrap("op", ["user"], [CITY], rows())

    assert [operator.uid for operator in store.latest().entry.operators] == ["other"]
    nothing_is_left(store, checkpoints=1)


def test_whoever_writes_meanwhile_is_fenced(store):
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    with store.writer() as writer:
        writer.checkpoint({"job": [backend]})

        store.bootstrap("op", ["user"], [CITY], two_states())

        with pytest.raises(FencedError):
            writer.checkpoint({"job": [backend]})
    assert [operator.uid for operator in store.latest().entry.operators] == ["job", "op"]


def test_a_job_with_operator_state_keeps_it_and_its_parallelism(store):
    offsets = arrowstate.OperatorListStateDescriptor("offsets", pa.int64())
    parts = [arrowstate.OperatorStateBackend() for _ in range(2)]
    for number, part in enumerate(parts):
        part.state(offsets).add_all([number])
    groups = [arrowstate.key_group_range(128, parallelism=2, subtask=number) for number in range(2)]
    key = pa.schema([("user", pa.string())])
    backends = [arrowstate.KeyedStateBackend(key=key, max_parallelism=128, key_groups=each) for each in groups]
    commit(store, {"op": backends}, operator_states={"op": parts})

    with pytest.raises(InvalidInputError, match="operator state of 2 subtasks, so its parallelism must stay, got 3"):
        store.bootstrap("op", ["user"], [CITY], two_states(), parallelism=3)
    made = store.bootstrap("op", ["user"], [CITY], two_states())

    assert made.operator_state("op", "offsets")["offsets"].to_pylist() == [0, 1]


def test_a_savepoint_is_made_too(store):
    made = store.bootstrap("op", ["user"], [CITY], two_states(), savepoint="start")

    assert made.storage.url.endswith("/savepoints/start")
    assert made.to_arrow("op.city").num_rows == 10
    assert store.latest().checkpoint_id == made.checkpoint_id == 1


def test_a_savepoint_at_a_place_that_is_refused_commits_nothing(store):
    store.bootstrap("op", ["user"], [CITY], two_states(), savepoint="start")

    with pytest.raises(InvalidInputError, match="a savepoint needs an empty place"):
        store.bootstrap("op", ["user"], [CITY], two_states(), savepoint="start", overwrite=True)
    with pytest.raises(InvalidInputError, match="inside of data/"):
        store.bootstrap("op", ["user"], [CITY], two_states(), savepoint=f"{store.url}/data/start", overwrite=True)

    assert [snapshot.checkpoint_id for snapshot in store.checkpoints()] == [1]


def test_times_of_the_hour_that_comes_twice_in_a_time_zone_are_times_of_rows(store):
    times = pa.array([1_729_989_000_001_999, 1_729_992_600_001_999], pa.timestamp("us", "Europe/Berlin"))
    rows = pa.table({"user": ["ann", "bob"], "city": ["Rome", "Oslo"], "at": times})
    ttl = arrowstate.TimeToLive(3_600_000, clock="event_time")
    city = arrowstate.ValueStateDescriptor("city", pa.string(), ttl=ttl)

    backend = store.bootstrap("users", ["user"], [city], rows, updated_at="at").restore("users")
    backend.advance_watermark(1_729_992_600_001)

    assert backend.state(city).get_batch(["ann", "bob"]).to_pylist() == [None, "Oslo"]


@pytest.mark.parametrize(
    ("unit", "lowest"), [("s", -(1 << 63)), ("us", -9_223_372_036_854_776), ("ns", -9_223_372_036_855)]
)
def test_timers_may_be_at_the_lowest_timestamps_of_a_unit(store, unit, lowest):
    times = pa.array([-(1 << 63), None]).view(pa.timestamp(unit))
    timers = arrowstate.TimerStateDescriptor("timers_event_time", "event_time")

    snapshot = store.bootstrap("users", ["user"], [timers], pa.table({"user": ["ann", "bob"], "timestamp": times}))

    assert snapshot.to_arrow("users.timers_event_time").to_pylist() == [{"user": "ann", "timestamp": lowest}]


def test_a_key_that_comes_twice_is_told_also_where_python_has_no_value_for_it(store):
    rows = pa.table({"at": pa.array([1 << 62] * 2, pa.timestamp("us")), "city": ["Rome", "Oslo"]})

    with pytest.raises(InvalidInputError, match="1 of 2 rows have a key that came before: at=.*out of range"):
        store.bootstrap("users", ["at"], [CITY], rows)
