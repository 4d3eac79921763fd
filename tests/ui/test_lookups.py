"""Programs ask for the values of keys: by address or by a body, in JSON or Arrow, of the newest checkpoint."""

import datetime
import io
import json
import threading
from urllib.parse import quote
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.ui.lookups import ARROW
from arrowstate.ui.site import Limits
from every_type import FLAT
from stores import backend_of

from .conftest import Visit

CLICKS = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
PAIR = pa.schema([("user", pa.string()), ("day", pa.date32())])


@pytest.fixture
def shop(store):
    """A store of two operators, one with a key of two columns, and what adds a checkpoint."""
    users, pairs = backend_of(pa.schema([("user", pa.string())])), backend_of(PAIR)
    users.state(CLICKS).add_batch(["ann", "a/b", "ü ?&", ""], [1, 2, 3, 4])
    users.state(arrowstate.ListStateDescriptor("pages", pa.string())).add_batch(["ann", "ann"], ["x", "y"])
    days = pa.array(["2026-01-02", "2026-01-03"]).cast(pa.date32())
    pairs.state(CLICKS).add_batch(pa.record_batch([pa.array(["ann", "a/b"]), days], schema=PAIR), [5, 6])
    writer = store.writer()

    def checkpoint(more=0):
        users.state(CLICKS).add_batch(["bob"], [more])
        return writer.checkpoint({"counter": [users], "daily.sums": [pairs]}).checkpoint_id

    checkpoint()
    return store, checkpoint


@pytest.fixture
def visit(shop):
    visit = Visit(shop[0])
    with visit.client:
        yield visit


def refresh(visit):
    visit.site.places[0].follower().refresh()


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ("counter/clicks/ann", [{"user": "ann", "clicks": 1}]),
        ("counter/clicks/a%2Fb", [{"user": "a/b", "clicks": 2}]),
        ("counter/clicks/%C3%BC%20%3F%26", [{"user": "ü ?&", "clicks": 3}]),
        ("counter/clicks/", [{"user": "", "clicks": 4}]),
        ("counter/pages/ann", [{"user": "ann", "pages": "x", "_seq": 0}, {"user": "ann", "pages": "y", "_seq": 1}]),
        ("daily.sums/clicks/ann/2026-01-02", [{"user": "ann", "day": "2026-01-02", "clicks": 5}]),
        ("daily.sums/clicks/a%2Fb/2026-01-03", [{"user": "a/b", "day": "2026-01-03", "clicks": 6}]),
    ],
)
@pytest.mark.parametrize("prefix", ["/state", "/0/state"])
def test_a_key_is_asked_for_by_its_address(visit, prefix, path, rows):
    answer = visit.get(f"{prefix}/{path}")

    assert (answer.status_code, answer.json()) == (200, rows)
    assert answer.headers["arrowstate-checkpoint"] == "1"
    assert int(answer.headers["arrowstate-checkpoint-age-ms"]) >= 0


def test_a_head_is_answered_as_a_get_without_the_rows(visit):
    asked, found = (visit.client.request(verb, "/state/counter/clicks/ann") for verb in ("HEAD", "GET"))

    assert (asked.status_code, asked.headers["etag"]) == (200, found.headers["etag"])
    assert visit.client.head("/state/counter/clicks/eve").status_code == 404


def test_the_path_may_be_encoded_as_a_whole(visit):
    assert visit.get("/%73tate/counter/clicks/ann").json() == [{"user": "ann", "clicks": 1}]
    assert visit.get("/0/%73tate/counter/%63licks/a%2Fb").json() == [{"user": "a/b", "clicks": 2}]


def test_an_answer_comes_as_arrow_where_it_is_accepted(visit):
    answer = visit.get("/state/counter/clicks/ann", headers={"accept": ARROW})

    table = pa.ipc.open_stream(answer.content).read_all()
    assert answer.headers["content-type"] == ARROW
    assert table.to_pydict() == {"user": ["ann"], "clicks": [1]}


@pytest.mark.parametrize(
    ("operator", "keys", "clicks"),
    [
        ("counter", ["ann", "nobody", "a/b"], [1, 2]),
        ("counter", [{"user": "a/b"}], [2]),
        ("counter", [], []),
        ("daily.sums", [{"user": "ann", "day": "2026-01-02"}, {"day": "2026-01-02", "user": "bob"}], [5]),
    ],
)
def test_many_keys_are_asked_for_by_a_body_of_json(visit, operator, keys, clicks):
    answer = visit.client.post(f"/state/{operator}/clicks", json=keys)

    assert answer.status_code == 200, answer.text
    assert [row["clicks"] for row in answer.json()] == clicks


def test_a_number_of_json_has_all_its_digits_as_a_key(store):
    prices = backend_of(pa.schema([("price", pa.decimal128(38, 2))]))
    prices.state(CLICKS).add_batch(pa.array(["12345678901234567890.12", "-0.50"]).cast(pa.decimal128(38, 2)), [1, 2])
    with store.writer() as writer:
        writer.checkpoint({"prices": [prices]})
    visit = Visit(store)

    with visit.client:
        answer = visit.client.post("/state/prices/clicks", content=b"[12345678901234567890.12, -5e-1]")

    assert [row["clicks"] for row in answer.json()] == [1, 2]


@pytest.fixture(scope="module")
def typed():
    """A visit to a store with an operator for each type of key, and the operators."""
    span, day = pa.struct([("a", pa.time64("us")), ("b", pa.int64())]), datetime.timedelta(days=-1, seconds=1)
    values = [(kind, value) for kind, value in FLAT.items() if value is not None]
    values += [(span, {"a": datetime.time(1, 2, 3, 4), "b": 1}), (pa.list_(pa.duration("ms")), [day])]
    values += [(pa.duration("ms"), day), (pa.timestamp("ns"), 1), (pa.time64("ns"), 1), (pa.duration("ns"), -1)]
    operators = {}
    for number, (kind, value) in enumerate(values):
        backend = backend_of(pa.schema([("k", kind)]))
        backend.state(CLICKS).add_batch(pa.array([value], kind), [number])
        operators[f"op{number}"] = [backend]
    store = arrowstate.open_store("memory://lookups-of-every-type", create=True)
    with store.writer() as writer:
        writer.checkpoint(operators)
    return Visit(store), [pa.array([value], kind) for kind, value in values]


def test_a_key_of_every_type_is_asked_for_by_what_an_answer_shows(typed):
    visit, keys = typed
    with visit.client:
        for number, key in enumerate(keys):
            path, sink = f"/state/op{number}/clicks", io.BytesIO()
            with pa.ipc.new_stream(sink, pa.schema([("k", key.type)])) as writer:
                writer.write_table(pa.table({"k": key}))
            by_arrow = visit.client.post(path, content=sink.getvalue(), headers={"content-type": ARROW})
            (row,) = by_arrow.json()
            text = row["k"] if isinstance(row["k"], str) else json.dumps(row["k"])

            by_json = visit.client.post(path, json=[row["k"]])
            by_path = visit.get(f"{path}/{quote(text, safe='')}")

            assert row["clicks"] == number
            assert by_arrow.content == by_json.content == by_path.content, key


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.struct([("a", pa.int64())]), '{"a": 1' + "0" * 30 + "}"),
        (pa.struct([("a", pa.int64())]), "[" * 20_000),
        (pa.struct([("a", pa.int64())]), "3"),
        (pa.struct([("a", pa.int64())]), '{"a": 1.5}'),
        (pa.list_(pa.int64()), "[1.5]"),
        (pa.duration("s"), "1" + "0" * 30),
        (pa.duration("s"), "0:00:00.5"),
        (pa.time32("s"), "01:02:03.5"),
        (pa.time32("s"), "25:00:00"),
        (pa.timestamp("ms"), "2024-02-29T12:00:00.0001"),
        (pa.timestamp("ms"), "2023-02-29"),
    ],
    ids=str,
)
def test_a_text_that_is_no_key_of_the_type_is_refused(store, kind, text):
    backend = backend_of(pa.schema([("k", kind)]))
    backend.state(CLICKS)
    with store.writer() as writer:
        writer.checkpoint({"op": [backend]})
    visit = Visit(store)
    with visit.client:
        answer = visit.get(f"/state/op/clicks/{quote(text, safe='')}")

    assert (answer.status_code, answer.json()["error"]) == (400, "InvalidInputError")


def test_values_are_shown_whole_whether_python_has_them_or_not(store):
    values = [(pa.time64("ns"), 1, "00:00:00.000000001"), (pa.duration("s"), 4 * 10**14, 4 * 10**14)]
    values += [(pa.timestamp("s"), 2**55, "1141709097-06-13T06:26:08")]
    backend = backend_of()
    for number, (kind, value, _) in enumerate(values):
        state = backend.state(arrowstate.ValueStateDescriptor(f"v{number}", kind))
        state.update_batch([1], pa.array([value], kind))
    with store.writer() as writer:
        writer.checkpoint({"op": [backend]})
    visit = Visit(store)
    with visit.client:
        found = [visit.get(f"/state/op/v{number}/1").json() for number in range(len(values))]

    assert found == [[{"k": 1, f"v{number}": shown}] for number, (*_, shown) in enumerate(values)]


def test_many_keys_are_asked_for_by_a_body_of_arrow(visit):
    keys = pa.table({"more": [1, 2], "user": ["a/b", "ann"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)

    answer = visit.client.post(
        "/state/counter/clicks",
        content=sink.getvalue().to_pybytes(),
        headers={"content-type": ARROW, "accept": ARROW},
    )

    assert answer.status_code == 200, answer.text
    assert pa.ipc.open_stream(answer.content).read_all().to_pydict() == {"user": ["a/b", "ann"], "clicks": [2, 1]}


def test_answers_are_of_the_newest_checkpoint_and_what_did_not_change_is_not_sent_again(visit, shop):
    ann, bob = (visit.get(f"/state/counter/clicks/{user}").headers["etag"] for user in ("ann", "bob"))
    shop[1](more=8)
    refresh(visit)

    same = visit.get("/state/counter/clicks/ann", headers={"if-none-match": ann})
    other = visit.get("/state/counter/clicks/bob", headers={"if-none-match": bob})

    assert (same.status_code, same.content, same.headers["arrowstate-checkpoint"]) == (304, b"", "2")
    assert (other.status_code, other.json()) == (200, [{"user": "bob", "clicks": 8}])


@pytest.mark.parametrize(
    ("path", "status", "error", "message"),
    [
        ("counter/clicks/eve", 404, "KeyNotFound", "no row of this key"),
        ("counter/nope/eve", 404, "StateNotFoundError", "it has 'counter.clicks'"),
        ("nope/clicks/eve", 404, "StateNotFoundError", "it has 'counter.clicks'"),
        ("daily.sums/clicks/ann", 400, "InvalidInputError", "the key has the columns user, day, got 1 values"),
        ("daily.sums/clicks/ann/soon", 400, "InvalidInputError", "the key column day is date32"),
    ],
)
def test_what_is_not_there_or_no_key_is_said_why(visit, path, status, error, message):
    answer = visit.get(f"/state/{path}")

    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert message in answer.json()["message"]


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"{", "application/json", "must be a JSON array"),
        (b"3", "application/json", "must be a JSON array"),
        (b'[{"user": "ann"}, {"user": "ann", "x": 1}]', "application/json", "no row|key column"),
        (b"[" * 100_000, "application/json", "must be a JSON array"),
        (b'["ann", null]', "application/json", "the key column user is string, got null"),
        (b'[["ann"]]', "application/json", "the key column user is string, got an array or an object"),
        (b"nothing", ARROW, "no Arrow stream"),
        (json.dumps(["x"] * 30).encode(), "application/json", "at most 20 keys are looked up at once, got 30"),
    ],
)
def test_a_body_that_is_none_of_keys_is_refused(shop, content, kind, message):
    visit = Visit(shop[0], limits=Limits(lookup_keys=20))
    path = "/state/daily.sums/clicks" if b'"user"' in content else "/state/counter/clicks"
    with visit.client:
        answer = visit.client.post(path, content=content, headers={"content-type": kind})

    assert answer.status_code == 400
    assert message in answer.json()["message"] or "must be an object with user, day" in answer.json()["message"]


def test_what_is_too_large_is_refused_in_both_directions(shop):
    visit = Visit(shop[0], limits=Limits(lookup_bytes=20))
    with visit.client:
        long = visit.client.post("/state/counter/clicks", json=["ann"] * 10)
        rows = visit.client.post("/state/counter/clicks", json=["ann", "a/b"])

    assert (long.status_code, long.json()["error"]) == (413, "TooLarge")
    assert (rows.status_code, "ask for fewer keys" in rows.json()["message"]) == (400, True)


def test_another_form_than_these_two_is_refused(visit):
    assert visit.get("/state/counter/clicks/ann", headers={"accept": "text/html"}).status_code == 406
    assert visit.get("/state/counter/clicks/ann", headers={"accept": "text/html, */*;q=0.1"}).status_code == 200


def test_nobody_asks_without_the_token(visit):
    del visit.client.headers["authorization"]

    assert visit.get("/state/counter/clicks/ann").status_code == 401
    assert visit.client.post("/state/counter/clicks", json=["ann"]).status_code == 401


def test_a_store_without_a_checkpoint_has_no_state(tmp_path):
    visit = Visit(arrowstate.open_store(tmp_path / "empty", create=True))
    with visit.client:
        answer = visit.get("/state/counter/clicks/ann")

    assert (answer.status_code, answer.json()["error"]) == (404, "CheckpointNotFoundError")


def test_the_lease_of_the_page_ends_with_it(shop):
    visit = Visit(shop[0])
    with visit.client:
        visit.get("/state/counter/clicks/ann")
        held = shop[0].storage.list("leases/")

    assert (len(held), shop[0].storage.list("leases/")) == (1, [])


def test_a_page_that_was_closed_holds_nothing_and_asks_for_nothing(shop):
    before = set(threading.enumerate())
    with shop[0].ui() as page:
        address = f"{page.address}state/counter/clicks/ann"
        with urlopen(Request(address, headers={"Authorization": f"Bearer {page.bearer}"})) as answer:
            assert answer.status == 200
        held = shop[0].storage.list("leases/")

    assert (len(held), shop[0].storage.list("leases/")) == (1, [])
    for thread in set(threading.enumerate()) - before:
        # One that answered may be about to end.
        thread.join(10)
    assert set(threading.enumerate()) <= before
