"""Lists, maps, namespaces and times to live as tables."""

import pyarrow as pa
import pytest

import arrowstate
from stores import backend_of

DAY = pa.schema([("day", pa.int32())])
PAGES = arrowstate.ListStateDescriptor("pages", pa.string())
CART = arrowstate.MapStateDescriptor("cart", pa.string(), pa.int64())
CLICKS = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum", namespace=DAY)
CITY = arrowstate.ValueStateDescriptor("city", pa.string(), ttl=arrowstate.TimeToLive(100))


@pytest.fixture(params=["arrow", "parquet", "lance"])
def snapshot(request, new_store):
    backend = backend_of(pa.schema([("user", pa.string())]), clock_ms=lambda: 7)
    for number in range(3):
        backend.state(PAGES).add_batch(["ann", "bob", "ann"], [f"/{number}", "/", f"/{number}/cart"])
    backend.state(PAGES).clear_batch(["bob"])
    backend.state(PAGES).add_batch(["bob"], ["/help"])
    backend.state(CART).put_batch(["ann", "ann", "bob"], ["fig", "pear", "fig"], [1, None, 2])
    backend.state(CLICKS).add_batch(["ann", "ann", "bob"], [3, 4, 5], namespace=pa.array([1, 2, 1], pa.int32()))
    backend.state(CITY).update_batch(["ann"], ["Rome"])
    return new_store().writer().checkpoint({"shop": [backend]}, format=request.param)


def test_a_list_has_a_row_per_element_and_its_order(snapshot):
    table = snapshot.to_arrow("shop.pages").sort_by("_seq")

    assert table.column_names == ["user", "pages", "_seq"]
    rows = table.to_pylist()
    assert [row["pages"] for row in rows if row["user"] == "ann"] == ["/0", "/0/cart", "/1", "/1/cart", "/2", "/2/cart"]
    assert [row["pages"] for row in rows if row["user"] == "bob"] == ["/help"]


def test_a_map_has_a_row_per_entry(snapshot):
    rows = snapshot.to_arrow("shop.cart").to_pylist()

    assert sorted(rows, key=str) == [
        {"user": "ann", "cart_key": "fig", "cart": 1},
        {"user": "ann", "cart_key": "pear", "cart": None},
        {"user": "bob", "cart_key": "fig", "cart": 2},
    ]


def test_a_lookup_returns_all_rows_of_a_key_in_the_order_asked_for(snapshot):
    pages = snapshot.lookup("shop.pages", ["bob", "eve", "ann", "bob"])
    cart = snapshot.lookup("shop.cart", ["ann", "eve"])
    clicks = snapshot.lookup("shop.clicks", ["bob", "ann"])

    ann = ["/0", "/0/cart", "/1", "/1/cart", "/2", "/2/cart"]
    assert pages["pages"].to_pylist() == ["/help", *ann, "/help"]
    assert sorted(cart["cart_key"].to_pylist()) == ["fig", "pear"]
    assert clicks["user"].to_pylist() == ["bob", "ann", "ann"]
    assert sorted(clicks["day"].to_pylist()[1:]) == [1, 2]
    assert snapshot.lookup("shop.pages", ["eve"]).num_rows == 0
    assert snapshot.lookup("shop.pages", pa.array([], pa.string())).num_rows == 0


def test_keys_of_one_hash_are_told_apart_in_a_lookup(new_store):
    # A null in a list leaves the hash alone.
    keys = pa.array([[1], [1, None], [None, 1]], pa.list_(pa.int64()))
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", keys.type)]), max_parallelism=128)
    for number in range(3):
        backend.state(PAGES).add_batch(keys, [f"{name}{number}" for name in "abc"])
    snapshot = new_store().writer().checkpoint({"shop": [backend]})

    rows = snapshot.lookup("shop.pages", keys.take(pa.array([2, 0])))

    assert rows["pages"].to_pylist() == ["c0", "c1", "c2", "a0", "a1", "a2"]


def test_sql_sees_namespaces_user_keys_and_order(snapshot):
    def rows(query):
        return snapshot.sql(query).fetchall()

    assert rows("select user, sum(clicks) from shop.clicks group by user order by user") == [("ann", 7), ("bob", 5)]
    assert rows("select clicks from shop.clicks where user = 'ann' and day = 2") == [(4,)]
    assert rows("select cart_key from shop.cart where user = 'ann' order by all") == [("fig",), ("pear",)]
    assert rows("select user from shop.cart where cart_key = 'fig' and cart > 1") == [("bob",)]
    assert rows("select list(pages order by _seq) from shop.pages where user in ('ann', 'eve')") == [
        (["/0", "/0/cart", "/1", "/1/cart", "/2", "/2/cart"],)
    ]
    assert rows("select count(*) from shop.pages") == [(7,)]


def test_the_time_of_the_last_update_is_there_by_name(snapshot):
    assert snapshot.to_arrow("shop.city").column_names == ["user", "city"]
    assert snapshot.to_arrow("shop.city", columns=["_updated_at"], expired=True).to_pylist() == [{"_updated_at": 7}]
    with pytest.raises(arrowstate.InvalidInputError, match="it has user, city, _key_hash, _updated_at, _key_group"):
        snapshot.to_arrow("shop.city", columns=["_seq"])


def test_a_lookup_in_many_parts_finds_what_the_backend_has(new_store):
    numbers = pa.array(range(60_000))
    users = pa.array([number * number % 997 for number in range(60_000)])
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.int64())]), max_parallelism=128)
    state = backend.state(arrowstate.ListStateDescriptor("numbers", pa.int64()))
    for start in range(0, 60_000, 20_000):
        state.add_batch(users[start : start + 20_000], numbers[start : start + 20_000])
    state.clear_batch(pa.array([1, 4, 9]))
    snapshot = new_store().writer().checkpoint({"op": [backend]})
    asked = pa.array([4, 25, 36, 1, 0])

    table = snapshot.lookup("op.numbers", asked)

    expected = [number for numbers in state.get_batch(asked).to_pylist() for number in numbers]
    assert table["numbers"].to_pylist() == expected
    assert len(expected) > 100
