"""Rows that have expired: readers see what the state itself would return, and the others where they ask for them."""

import datetime
import pickle

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.store import StateStore
from stores import USER, commit

TTL = arrowstate.TimeToLive(100)
BY_EVENT_TIME = arrowstate.TimeToLive(100, clock="event_time")
CITY = arrowstate.ValueStateDescriptor("city", pa.string(), ttl=TTL)
PAGES = arrowstate.ListStateDescriptor("pages", pa.string(), ttl=TTL)
SEEN = arrowstate.ValueStateDescriptor("seen", pa.int64(), ttl=BY_EVENT_TIME)


class World:
    """A store and a backend with one clock."""

    def __init__(self, name):
        self.now = 0
        made = arrowstate.open_store(f"memory://expired-{name}", create=True)
        self.store = StateStore(made.storage, made.store_id, clock_ms=lambda: self.now)
        self.backend = self.make()

    def make(self, **options):
        return arrowstate.KeyedStateBackend(key=USER, max_parallelism=128, clock_ms=lambda: self.now, **options)

    def checkpoint(self, **options):
        return commit(self.store, {"shop": [self.backend]}, **options)


@pytest.fixture
def world(request):
    return World(f"{request.node.name}-{id(request)}")


@pytest.fixture(params=["arrow", "parquet", "lance"])
def snapshot(request, world):
    """At 120: ann's city and page of 0 have expired at 100, what came at 50 has not; bob's second page neither."""
    city, pages = world.backend.state(CITY), world.backend.state(PAGES)
    city.update_batch(["ann", "bob", "eve"], ["Rome", "Oslo", "Bonn"])
    pages.add_batch(["ann", "bob"], ["/", "/"])
    world.now = 50
    city.update_batch(["bob"], ["Bern"])
    pages.add_batch(["bob"], ["/cart"])
    snapshot = world.checkpoint(format=request.param)
    world.now = 120
    return snapshot


def test_readers_see_what_has_not_expired(snapshot, world):
    table = snapshot["shop.city"]

    assert snapshot.to_arrow("shop.city").to_pylist() == [{"user": "bob", "city": "Bern"}]
    assert snapshot.to_polars("shop.city", columns=["city"]).rows() == [("Bern",)]
    assert snapshot.lookup("shop.city", ["eve", "bob", "ann"]).to_pylist() == [{"user": "bob", "city": "Bern"}]
    assert snapshot.lookup("shop.pages", ["bob", "ann"])["pages"].to_pylist() == ["/cart"]
    assert snapshot.sql("select user, city from shop.city").fetchall() == [("bob", "Bern")]
    assert snapshot.sql("select city from shop.city where user in ('ann', 'bob')").fetchall() == [("Bern",)]
    assert snapshot.sql("select count(*) from shop.city").fetchall() == [(1,)]
    assert world.store.sql("select pages from shop.pages").fetchall() == [("/cart",)]
    assert snapshot.duckdb().execute('select city from "shop.city"').fetchall() == [("Bern",)]
    assert (table.num_rows, pl.DataFrame(table).rows()) == (1, [("bob", "Bern")])
    assert table.dataset().count_rows() == 1
    assert table.lazy().filter(pl.col("user") == "ann").collect().height == 0
    assert [part.to_arrow().num_rows for part in table.partitions(3)].count(1) == 1
    restored = snapshot.restore("shop", clock_ms=lambda: world.now)
    assert restored.state(CITY).get_batch(["ann", "bob", "eve"]).to_pylist() == [None, "Bern", None]


def test_who_asks_for_them_sees_when_they_expired(snapshot, world):
    at = [datetime.datetime(1970, 1, 1, 0, 0, 0, ms * 1000) for ms in (100, 150)]
    rows = [("ann", "Rome", at[0]), ("bob", "Bern", at[1]), ("eve", "Bonn", at[0])]

    table = snapshot.to_arrow("shop.city", expired=True)

    assert table.schema.names == ["user", "city", "_expires_at"]
    assert sorted(tuple(row.values()) for row in table.to_pylist()) == rows
    assert snapshot.to_arrow("shop.city", columns=["city"], expired=True).num_rows == 3
    assert snapshot.to_arrow("shop.city", columns=["_expires_at"]).to_pylist() == [{"_expires_at": at[1]}]
    assert snapshot.lookup("shop.city", ["ann"], expired=True)["_expires_at"].to_pylist() == [at[0]]
    query = "select user, city, _expires_at from shop.city order by user"
    assert snapshot.sql(query, expired=True).fetchall() == rows
    assert snapshot.sql(query.replace("shop.city", "shop.city at (version => 1)"), expired=True).fetchall() == rows
    assert snapshot.duckdb(expired=True).execute(query).fetchall() == rows
    for expired in ("expired => true", "true", "expired := 1 = 1"):
        assert snapshot.sql(query.replace("shop.city", f"arrowstate.state('shop.city', {expired})")).fetchall() == rows
    assert snapshot.sql("select city from arrowstate.state('shop.city')").fetchall() == [("Bern",)]
    assert len(snapshot.sql("from arrowstate.state('shop.city')", expired=True).fetchall()) == 3
    late = snapshot.sql("select user from shop.city where _expires_at > make_timestamp_ms(100)", expired=True)
    assert late.fetchall() == [("bob",)]
    shown = snapshot["shop.city"].with_expired()
    assert (shown.num_rows, shown.schema.names) == (3, table.schema.names)
    assert shown.dataset().to_table(filter=pc.field("user") == "ann")["_expires_at"].to_pylist() == [at[0]]
    with pytest.raises(InvalidInputError, match="_expires_at"):
        snapshot.sql("select _expires_at from shop.city")


@pytest.mark.parametrize(
    ("call", "match"),
    [
        ("state()", "has 0 arguments"),
        ("state('shop.city', expired => 'yes')", "true or false, got 'yes'"),
        ("state('shop.city', every => true)", "have no names"),
        ("state('shop.city', expired => (select true))", "no subquery"),
        ("state('shop.cities')", "it has 'shop.city'"),
    ],
)
def test_what_the_function_of_a_state_cannot_mean_is_told(world, call, match):
    world.backend.state(CITY).update_batch(["ann"], ["Rome"])
    snapshot = world.checkpoint()

    with pytest.raises((InvalidInputError, StateNotFoundError), match=match):
        snapshot.sql(f"from arrowstate.{call}").fetchall()


def test_a_state_without_a_time_to_live_has_no_such_column(world):
    world.backend.state(arrowstate.ValueStateDescriptor("plain", pa.int64())).update_batch(["ann"], [1])
    snapshot = world.checkpoint()

    assert snapshot.to_arrow("shop.plain", expired=True).schema.names == ["user", "plain"]
    assert snapshot.sql("from shop.plain", expired=True).columns == ["user", "plain", "_key_group"]
    with pytest.raises(InvalidInputError, match="no column '_expires_at'"):
        snapshot.to_arrow("shop.plain", columns=["_expires_at"])


def test_a_state_that_returns_expired_rows_until_they_are_removed_shows_them(world):
    kept = arrowstate.ValueStateDescriptor(
        "kept", pa.int64(), ttl=arrowstate.TimeToLive(100, visibility="return_until_cleaned_up")
    )
    world.backend.state(kept).update_batch(["ann"], [1])
    snapshot = world.checkpoint()
    world.now = 1_000

    assert snapshot.to_arrow("shop.kept").to_pylist() == [{"user": "ann", "kept": 1}]
    assert snapshot["shop.kept"].num_rows == 1
    assert snapshot.restore("shop", clock_ms=lambda: 1_000).state(kept).get_batch(["ann"]).to_pylist() == [1]


def test_event_time_is_the_watermark_that_a_restore_begins_with(world):
    halves = [world.make(key_groups=arrowstate.KeyGroupRange(*ends)) for ends in ((0, 63), (64, 127))]
    users = pa.array([f"user {number}" for number in range(40)])
    groups = arrowstate.key_groups(users, 128).to_numpy()
    for half, watermark in zip(halves, (160, 149), strict=True):
        own = users.filter(pa.array([group in half.key_groups for group in groups]))
        half.state(SEEN).update_batch(own, range(len(own)), timestamps=[50 if n % 2 else 49 for n in range(len(own))])
        half.advance_watermark(watermark)
    snapshot = commit(world.store, {"shop": halves})
    world.now = 1 << 40

    shown = snapshot.sql('select distinct "shop.seen"._updated_at from "shop.seen"').fetchall()

    assert shown == [(50,)]
    seen = snapshot.restore("shop").state(SEEN).get_batch(users)
    assert len(seen) - seen.null_count == snapshot["shop.seen"].num_rows > 0


def test_what_never_expires_has_no_time(world):
    endless = arrowstate.ValueStateDescriptor("endless", pa.int64(), ttl=arrowstate.TimeToLive((1 << 63) - 1))
    world.backend.state(endless).update_batch(["ann"], [1])
    snapshot = world.checkpoint()

    assert snapshot.to_arrow("shop.endless", expired=True)["_expires_at"].to_pylist() == [None]
    assert snapshot.sql("select _expires_at from shop.endless", expired=True).fetchall() == [(None,)]
    assert snapshot["shop.endless"].num_rows == 1


def test_a_table_stays_with_the_time_at_which_it_was_made(snapshot, world):
    table, connection = snapshot["shop.city"], snapshot.duckdb()
    relation = snapshot.sql("select city from shop.city")
    parts = pickle.dumps(table.partitions(2))
    world.now = 150

    assert [table.num_rows, table.to_arrow().num_rows] == [1, 1]
    assert relation.fetchall() == connection.execute("select city from shop.city").fetchall() == [("Bern",)]
    assert sum(part.num_rows for part in pickle.loads(parts)) == 1
    assert snapshot["shop.city"].num_rows == 0
    assert snapshot.sql("select city from shop.city").fetchall() == []


def test_nothing_changes_by_expiring(snapshot, world):
    later = world.checkpoint()

    assert world.store.diff(1, 2).states[0].is_empty
    assert sorted(row["city"] for row in later.changes("shop.city").to_pylist()) == ["Bern", "Bonn", "Rome"]
    assert later.history("shop.city", ["ann"])["city"].to_pylist() == ["Rome"]
    assert later.sql("select rows from arrowstate.states where state = 'city'").fetchall() == [(3,)]
    assert later.verify(deep=True).problems == []


def test_files_are_left_out_by_the_times_that_their_statistics_tell(world):
    state = world.backend.state(CITY)
    numbers = [f"user {number}" for number in range(100_000)]
    state.update_batch(numbers, ["Rome"] * len(numbers))
    world.checkpoint()
    world.now = 60
    state.update_batch(["ann", "bob"], ["Oslo", "Oslo"])
    snapshot = world.checkpoint()
    world.now = 120

    assert snapshot.sql("select count(*) from shop.city").fetchall() == [(2,)]
    assert snapshot.scans[-1].rows_read <= 2 < snapshot.scans[-1].rows
    world.now = 90
    assert snapshot.sql("select count(*) from shop.city").fetchall() == [(100_002,)]


def test_tables_tell_of_the_time_to_live(snapshot, world):
    plain = "select distinct state, ttl_ms, ttl_clock from arrowstate.{} order by state"

    for table in ("states", "columns"):
        assert world.store.sql(plain.format(table)).fetchall() == [
            ("city", 100, "processing_time"),
            ("pages", 100, "processing_time"),
        ]


def test_a_row_tells_where_it_is_and_how_long(snapshot):
    columns = "_checkpoint_id, _key_hash, _key_group, _updated_at, _expires_at"

    (row,) = snapshot.sql(f'select {columns} from "shop.city"').fetchall()

    hashed = arrowstate.key_hash(pa.array(["bob"]))[0].as_py()
    group = arrowstate.key_groups(pa.array(["bob"]), 128)[0].as_py()
    assert row == (1, hashed, group, 50, datetime.datetime(1970, 1, 1, 0, 0, 0, 150_000))
