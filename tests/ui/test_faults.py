"""A page over what is damaged, gone or slow says so, and the rest of it stands."""

import re
import shutil
import threading
import time

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.storage import open_storage
from arrowstate.ui.log_view import LogView
from arrowstate.ui.site import Limits
from stores import commit, flip

from .conftest import Visit


@pytest.fixture
def folder(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=8)
    values = backend.state(arrowstate.ValueStateDescriptor("v", pa.int64()))
    with store.writer() as writer:
        for number in range(4):
            values.update_batch(range(30_000), [number] * 30_000)
            writer.checkpoint({"op": [backend]})
    return tmp_path / "store"


class Slow:
    """A storage that answers when it is let."""

    def __init__(self, storage):
        self._storage = storage
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.answers_left = 0
        "How many answers it gives all the same."

    def __getattr__(self, name):
        found = getattr(self._storage, name)
        if name in ("read", "list"):

            def waiting(*arguments, **options):
                self.answers_left -= 1
                assert self.answers_left >= 0 or self.may_go_on.wait(30)
                return found(*arguments, **options)

            return waiting
        return found


@pytest.mark.parametrize(
    ("harm", "number"), [*(("damaged", number) for number in range(5)), *(("missing", number) for number in (1, 2, 3))]
)
def test_a_damaged_or_missing_entry_is_a_line_and_the_other_pages_stand(folder, harm, number):
    path = sorted((folder / "log").glob("*.json"))[number]
    visit = Visit(arrowstate.open_store(folder))
    if harm == "damaged":
        flip(path)
    else:
        path.unlink()

    view = LogView(arrowstate.open_store(folder).storage)
    view.refresh()
    view.wait(10)
    table = visit.json("/0/checkpoints.json")
    pages = ["checkpoints", "head", "series", "live", "stores", "checkpoint?checkpoint=2", "storage", "diff"]
    needs = {3: ["checkpoint?checkpoint=2"], 2: ["checkpoint?checkpoint=2"], 4: ["storage", "diff"]}
    statuses = {page: visit.get(f"/0/{page}").status_code for page in pages}

    assert [line.number for line in view.lines()] == [1, 2, 3, 4, 5]
    assert [line.number for line in view.lines() if line.problem] == [number + 1]
    assert [row["number"] for row in table["entries_shown"] if row["kind"] == "damaged"] == [number + 1]
    assert {page for page, status in statuses.items() if status != 200} <= set(needs.get(number, []))
    assert 'arrowstate_up{store="' + str(folder) + '"} 1' in visit.get("/metrics").text


@pytest.mark.parametrize("kind", ["tags", "leases"])
def test_a_damaged_tag_or_lease_is_told_and_the_others_are_shown(folder, kind):
    store = arrowstate.open_store(folder)
    store.tag("gold", 2)
    store.tag("silver", 3)
    with store.lease(1), store.lease(2):
        flip(sorted((folder / kind).iterdir())[0])
        visit = Visit(store)
        found = visit.json("/0/storage.json")
        pages = [visit.get(f"/0/{name}") for name in ("checkpoints", "checkpoint", "storage", "series", "live")]

    assert [len(found["tags"]), len(found["leases"])] == ([1, 2] if kind == "tags" else [2, 1])
    assert len(found["problems"]) == 1
    assert kind in found["problems"][0]
    assert [page.status_code for page in pages] == [200] * 5


def test_a_damaged_manifest_leaves_what_the_log_and_the_other_operators_tell(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    key = pa.schema([("k", pa.int64())])
    backends = {uid: [arrowstate.KeyedStateBackend(key=key, max_parallelism=8)] for uid in ("one", "two")}
    for uid, (backend,) in backends.items():
        # States that are so small stand in the manifest; many of them make it a file.
        for number in range(40 if uid == "one" else 1):
            backend.state(arrowstate.ValueStateDescriptor(f"v{number}", pa.int64())).update_batch(
                range(500), range(500)
            )
    commit(store, backends, properties={"offset": 7})
    (path,) = (tmp_path / "store" / "manifests").iterdir()
    flip(path)
    visit = Visit(arrowstate.open_store(tmp_path / "store"))

    found = visit.json("/0/checkpoint.json")
    names = (
        "checkpoint",
        "state?operator=one&state=v0",
        "state?operator=two&state=v0",
        "storage",
        "diff",
        "amplification",
    )
    pages = [visit.get(f"/0/{name}") for name in names]

    states = {item["uid"]: item["states"][0] for item in found["operators"]}
    assert [page.status_code for page in pages] == [200] * len(pages)
    assert (states["one"]["rows"], states["two"]["rows"]) == (500, 500)
    assert sorted(state["bytes"] is None for state in states.values()) == [False, True]
    assert len(found["problems"]) == 1
    assert found["properties"] == {"offset": 7}


def test_a_damaged_old_entry_is_a_line_among_the_others(folder, monkeypatch):
    monkeypatch.setattr("arrowstate.ui.log_view._AT_ONCE", 2)
    flip(sorted((folder / "log").glob("*.json"))[1])
    visit = Visit(arrowstate.open_store(folder))
    visit.json("/0/checkpoints.json")
    visit.site.places[0].log.wait(30)

    found = visit.json("/0/checkpoints.json")["entries_shown"]

    assert [row["kind"] for row in found] == ["checkpoint"] * 3 + ["damaged", "fence"]
    assert "Damaged:" in visit.get("/0/checkpoints").text


def test_a_damaged_file_is_told_in_the_part_that_needs_it(folder):
    for path in (folder / "data").rglob("*.arrow"):
        flip(path)
    visit = Visit(arrowstate.open_store(folder))

    part, page = visit.get("/0/rows?operator=op&state=v"), visit.get("/0/state?operator=op&state=v")
    as_json = visit.get("/0/rows.json?operator=op&state=v")

    assert (part.status_code, page.status_code, as_json.status_code) == (200, 200, 500)
    assert "Damaged" in part.text
    assert as_json.json()["error"] == "CorruptDataError"


def test_a_store_that_is_gone_is_told_and_the_others_stand(folder, clicks):
    visit = Visit(clicks, arrowstate.open_store(folder))
    shutil.rmtree(folder)

    gone, other, both = (visit.get(path) for path in ("/1/checkpoint", "/0/checkpoint", "/0/stores"))

    assert (gone.status_code, other.status_code, both.status_code) == (404, 200, 200)
    assert "checkpoint" in gone.text
    assert visit.get("/1/live").status_code == 200
    # What an alert goes by: the figures of its job are not there any more.
    ups = [line for line in visit.get("/metrics").text.splitlines() if line.startswith("arrowstate_up{")]
    assert ups == [f'arrowstate_up{{store="{clicks.url}"}} 1', f'arrowstate_up{{store="{folder}"}} 0']


def test_a_store_without_a_checkpoint_is_no_store_that_is_gone(tmp_path):
    store = arrowstate.open_store(tmp_path / "empty", create=True)

    assert f'arrowstate_up{{store="{store.url}"}} 1' in Visit(store).get("/metrics").text


def test_a_collected_checkpoint_is_told_and_leaves_the_list(folder):
    store = arrowstate.open_store(folder)
    visit = Visit(store)
    visit.json("/0/checkpoints.json")
    store.collect(arrowstate.RetentionPolicy(1), grace_ms=0, allow_short_grace=True).apply()
    visit.site.places[0]._fresh_until = 0.0

    page = visit.get("/0/checkpoint?checkpoint=1")
    found = visit.json("/0/checkpoints.json")["entries_shown"]

    assert page.status_code == 404
    assert "All checkpoints" in page.text
    assert [row["checkpoint_id"] for row in found if row["kind"] == "checkpoint"] == [4]


def test_a_slow_store_has_its_time_and_what_was_asked_for_comes_later(clicks):
    slow = Slow(clicks.storage)
    visit = Visit(arrowstate.StateStore(slow, clicks.store_id), clicks, limits=Limits(page_seconds=0.2))
    slow.may_go_on.clear()
    try:
        page, part, other = (visit.get(path) for path in ("/0/checkpoint", "/0/verified", "/1/storage"))
    finally:
        slow.may_go_on.set()

    assert (page.status_code, part.status_code) == (504, 200)
    assert 'hx-trigger="load delay:300ms"' in part.text
    assert other.status_code in (200, 504)
    until = time.monotonic() + 20
    while visit.get("/0/checkpoint").status_code != 200:
        assert time.monotonic() < until


def test_a_part_says_how_far_it_is_and_its_answer_waits_for_who_asks_again(clicks):
    plan = "/0/collection?count=1"
    slow = Slow(clicks.storage)
    visit = Visit(arrowstate.StateStore(slow, clicks.store_id), limits=Limits(part_seconds=0.05))
    in_place = {"hx-request": "true"}
    visit.get(plan)
    slow.may_go_on.clear()
    slow.answers_left = 12
    try:
        told = visit.get(plan, headers=in_place).text
    finally:
        slow.may_go_on.set()
    work = visit.site.places[0].work
    until = time.monotonic() + 20
    while work._running:
        assert time.monotonic() < until
    slow.may_go_on.clear()
    try:
        found = visit.get(plan, headers=in_place).text
        again = visit.get(plan, headers=in_place).text
    finally:
        slow.may_go_on.set()

    told_far = re.search(r"\((\d+) of (\d+) done\)\. What was asked for is still being read", told)
    assert 0 < int(told_far[1]) < int(told_far[2])
    assert "still being read" not in found
    assert "still being read" in again


def test_requests_that_wait_for_one_store_take_nothing_of_another(clicks):
    slow = Slow(clicks.storage)
    visit = Visit(arrowstate.StateStore(slow, clicks.store_id), clicks, limits=Limits(page_seconds=0.05))
    slow.may_go_on.clear()
    try:
        codes = [visit.get(f"/0/checkpoint?checkpoint={number}").status_code for number in range(1, 9)]
        visit.site.limits = Limits()
        other = visit.get("/1/head").status_code
    finally:
        slow.may_go_on.set()

    assert codes == [504] * 6 + [503] * 2
    assert other == 200


def test_lookups_that_wait_for_one_store_take_nothing_of_another_nor_of_the_catalog(clicks, tmp_path):
    slow = Slow(clicks.storage)
    tables = open_storage(tmp_path, create=True)
    visit = Visit(
        arrowstate.StateStore(slow, clicks.store_id), clicks, tables=[tables], limits=Limits(page_seconds=0.05)
    )
    with visit.client:
        slow.may_go_on.clear()
        codes = {visit.get("/0/state/counter/clicks/user-1").status_code for _ in range(40)}
        visit.site.limits = Limits()
        other = visit.get("/1/state/counter/clicks/user-1").status_code
        catalog = visit.get("/v1/namespaces").status_code
        slow.may_go_on.set()

    assert (codes, other, catalog) == ({504}, 200, 200)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/0/checkpoint?checkpoint=99", 404),
        ("/0/checkpoint?checkpoint=nonsense", 404),
        ("/0/state?operator=op&state=nothing", 404),
        ("/0/state?operator=nothing&state=v", 404),
        ("/0/state", 400),
        ("/0/checkpoints?before=-1", 400),
        ("/0/checkpoints?before=" + "9" * 500, 400),
        ("/0/rows.json?operator=op&state=v&key0=text", 400),
        ("/0/rows.json?operator=op&state=v&key_group=8", 400),
        ("/0/diff?before=99", 404),
        ("/0/job", 404),
        ("/0/nothing", 404),
        ("/0/checkpoint.xml", 404),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
    ],
)
def test_what_is_asked_wrongly_is_told(folder, path, status):
    answer = Visit(arrowstate.open_store(folder)).get(path)

    assert answer.status_code == status
    assert "Traceback" not in answer.text
