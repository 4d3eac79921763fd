"""A page over what is damaged, gone or slow says so, and the rest of it stands."""

from __future__ import annotations

import shutil
import threading
import time

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.ui.log_view import LogView
from arrowstate.ui.site import Limits

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

    def __getattr__(self, name):
        found = getattr(self._storage, name)
        if name in ("read", "list"):

            def waiting(*arguments, **options):
                assert self.may_go_on.wait(30)
                return found(*arguments, **options)

            return waiting
        return found


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def test_a_damaged_entry_is_a_line_among_the_others(folder):
    damage(sorted((folder / "log").glob("*.json"))[1])
    view = LogView(arrowstate.open_store(folder).storage)

    with pytest.raises(arrowstate.errors.CorruptDataError):
        view.refresh()


def test_a_damaged_old_entry_is_a_line_among_the_others(folder, monkeypatch):
    monkeypatch.setattr("arrowstate.ui.log_view._AT_ONCE", 2)
    damage(sorted((folder / "log").glob("*.json"))[1])
    visit = Visit(arrowstate.open_store(folder))
    visit.json("/0/checkpoints.json")
    visit.site.places[0].log.wait(30)

    found = visit.json("/0/checkpoints.json")["entries_shown"]

    assert [row["kind"] for row in found] == ["checkpoint"] * 3 + ["damaged", "fence"]
    assert "Damaged:" in visit.get("/0/checkpoints").text


def test_a_damaged_file_is_told_in_the_part_that_needs_it(folder):
    for path in (folder / "data").rglob("*.arrow"):
        damage(path)
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
    assert 'arrowstate_up{store="' in visit.get("/metrics").text


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
    assert 'hx-trigger="load delay:1s"' in part.text
    assert other.status_code in (200, 504)
    until = time.monotonic() + 20
    while visit.get("/0/checkpoint").status_code != 200:
        assert time.monotonic() < until


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
