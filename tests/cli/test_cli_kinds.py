"""The command line over lists, maps, namespaces and times to live."""

import json

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.cli import main
from stores import backend_of, commit

DAY = pa.schema([("day", pa.int32())])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds") / "store"
    backends = [
        arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.int64())]), max_parallelism=128, key_groups=groups)
        for groups in (arrowstate.KeyGroupRange(0, 63), arrowstate.KeyGroupRange(64, 127))
    ]
    groups = arrowstate.key_groups(pa.array(range(3000)), 128).to_numpy()
    for backend, own in zip(backends, (groups < 64, groups >= 64), strict=True):
        users = pa.array(range(3000)).filter(pa.array(own))
        pages = backend.state(arrowstate.ListStateDescriptor("pages", pa.string(), ttl=arrowstate.TimeToLive(10**12)))
        for page in ("/", "/", "/cart"):
            pages.add_batch(users, [page] * len(users))
        pages.clear_batch(users[:10])
        cart = backend.state(arrowstate.MapStateDescriptor("cart", pa.string(), pa.int64(), namespace=DAY))
        for number, item in enumerate(("fig", "pear")):
            cart.put_batch(users, [item] * len(users), [number] * len(users), namespace=number)
    arrowstate.open_store(folder, create=True).writer().checkpoint({"shop": backends}, watermark=5)
    return str(folder)


def test_a_state_is_shown_with_all_that_tells_its_rows_apart(store, capsys):
    assert main(["show", store, "--state", "shop.cart"]) == 0
    cart = capsys.readouterr().out
    assert main(["show", store, "--state", "shop.pages"]) == 0
    pages = capsys.readouterr().out

    for word in ("map", "day", "namespace", "cart_key", "user key"):
        assert word in cart
    assert "ttl   1000000000000 ms of processing_time, on_create_and_write, never_return_expired" in pages


def test_the_time_to_live_of_a_state_is_shown_as_json(store, capsys):
    assert main(["show", store, "--json"]) == 0
    states = {state["name"]: state for state in json.loads(capsys.readouterr().out)["operators"][0]["states"]}

    assert states["pages"]["time_to_live"] == {
        "ttl_ms": 10**12,
        "clock": "processing_time",
        "update": "on_create_and_write",
        "visibility": "never_return_expired",
    }
    assert states["cart"]["time_to_live"] is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            [],
            {
                "late",
                "bought",
                "offsets",
                "'topic-39':",
                "reducing",
                "version",
                "dead",
                "30000",
                "of_terminal_8:",
                "price:",
            },
        ),
        (["--state", "shop.late"], {"data/shop/late", "subtask", "batches", "manifest)", "30000", "of_terminal_8:"}),
        (["--state", "shop.bought"], {"data/shop/bought", "subtask", "batches", "30000", "of_terminal_8:", "price:"}),
    ],
)
def test_a_checkpoint_of_wide_types_is_shown_in_100_columns_with_all_there_is(tmp_path, capsys, arguments, told):
    fields = [(f"of_terminal_{number}", pa.int64()) for number in range(9)]
    late = arrowstate.ReducingStateDescriptor("late", pa.struct(fields), reduce={name: "max" for name, _ in fields})
    bought = arrowstate.ValueStateDescriptor("bought", pa.list_(pa.struct([*fields, ("price", pa.decimal128(12, 2))])))
    source = arrowstate.OperatorStateBackend()
    source.state(arrowstate.OperatorListStateDescriptor("offsets", pa.struct(fields))).add(
        dict.fromkeys(dict(fields), 1)
    )
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.int64())]), max_parallelism=128)
    for count in (30_000, 10):
        late_rows = {name: [1] * count for name, _ in fields}
        backend.state(late).add_batch(range(count), pa.record_batch(late_rows).to_struct_array())
        backend.state(bought).update_batch(range(count), [[]] * count)
        arrowstate.open_store(tmp_path / "s", create=True).writer().checkpoint(
            {"shop": [backend]},
            operator_states={"shop": [source]},
            properties={"offsets": {f"topic-{number}": number for number in range(40)}},
        )

    assert main(["show", str(tmp_path / "s"), *arguments]) == 0

    _, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert told <= set(" ".join(lines).replace("(", " ").replace("<", " ").split())


@pytest.mark.parametrize("arguments", [[], ["--parallelism", "3"], ["--parallelism", "1", "--max-parallelism", "7"]])
def test_every_kind_passes_the_restore_check(store, capsys, arguments):
    code = main(["restore-check", store, *arguments, "--json"])

    report = json.loads(capsys.readouterr().out)
    assert code == 0
    assert report["problems"] == []
    assert {row["state"]: row["rows"] for row in report["restored"]} == {"pages": 8940, "cart": 6000}


def test_sql_joins_the_kinds(store, capsys):
    query = "select count(*), sum(cart) from shop.cart where day = 1 and user in (select user from shop.pages)"

    assert main(["sql", store, query, "--csv"]) == 0

    assert capsys.readouterr().out.splitlines()[-1] == "2980,2980"


def test_rows_that_have_expired_are_shown_where_they_are_asked_for(tmp_path, capsys):
    backend = backend_of(pa.schema([("user", pa.string())]), clock_ms=lambda: 0)
    city = arrowstate.ValueStateDescriptor("city", pa.string(), ttl=arrowstate.TimeToLive(60_000))
    backend.state(city).update_batch(["ann"], ["Rome"])
    commit(arrowstate.open_store(tmp_path, create=True), {"people": [backend]})

    def found(*arguments):
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    shown = [{"user": "ann", "city": "Rome", "_expires_at": "1970-01-01T00:01:00"}]
    query = ["sql", str(tmp_path), "select * exclude (_key_group) from people.city"]
    for arguments in (query, ["lookup", str(tmp_path), "people.city", "ann"]):
        assert found(*arguments) == []
        assert found(*arguments, "--expired") == shown
