"""A store that was deleted and made again at its place: who knew the first one is told, and writes nothing there."""

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import FencedError, StoreNotFoundError
from arrowstate.storage.memory import clear_memory_storage
from arrowstate.store import StateStore
from arrowstate.testing.faults import FaultyStorage

NAME = arrowstate.ValueStateDescriptor("name", pa.string())


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "local" else f"memory://remade/{request.node.name}"


def delete(place: str) -> None:
    if place.startswith("memory://"):
        clear_memory_storage(place)
    else:
        shutil.rmtree(place)


def backend_of(name: str) -> arrowstate.KeyedStateBackend:
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=8)
    backend.state(NAME).update_batch([1], [name])
    return backend


def made(place: str, name: str, checkpoints: int = 1) -> tuple[arrowstate.StateStore, arrowstate.StoreWriter]:
    """Make a store with some checkpoints of one row; return it, and the writer that goes on."""
    store = arrowstate.open_store(place, create=True)
    writer = store.writer()
    for _ in range(checkpoints):
        writer.checkpoint({"op": [backend_of(name)]})
    return store, writer


def names(store: arrowstate.StateStore) -> list[str]:
    return [name for (name,) in store.sql("select name from op.name").fetchall()]


@pytest.mark.parametrize("checkpoints", [1, 2, 3])
def test_a_store_that_is_kept_open_is_told_that_another_one_is_there(place: str, checkpoints: int) -> None:
    old, _ = made(place, "old", 2)
    assert names(old) == ["old"]
    with old.follow(poll_ms=100_000) as follower:
        delete(place)
        new, _ = made(place, "new", checkpoints)

        for look in (old.latest, old.checkpoints, lambda: names(old), follower.refresh):
            with pytest.raises(StoreNotFoundError, match=f"deleted, and store {new.store_id} was made there: open"):
                look()

    assert names(arrowstate.open_store(place)) == ["new"]


def test_a_store_that_is_kept_open_is_told_that_there_is_none(place: str) -> None:
    old, _ = made(place, "old")
    assert names(old) == ["old"]
    delete(place)

    with pytest.raises(StoreNotFoundError, match="no store at"):
        names(old)


@pytest.mark.parametrize("checkpoints", range(5))
def test_the_writer_of_a_store_that_was_deleted_is_fenced(place: str, checkpoints: int) -> None:
    """Its epoch is that of the new writer, and its next number may be free there."""
    old, old_writer = made(place, "old", 2)
    delete(place)
    new, new_writer = made(place, "new", checkpoints)
    before = set(new.storage.list(""))

    for _ in range(2):
        with pytest.raises(FencedError, match="the store of this writer .* was deleted"):
            old_writer.checkpoint({"op": [backend_of("old")]})
    with pytest.raises(StoreNotFoundError):
        old.writer()

    assert set(new.storage.list("")) == before
    new_writer.checkpoint({"op": [backend_of("new")]})
    assert names(new) == ["new"]
    assert new.verify().problems == []


def test_the_writer_of_a_store_that_was_deleted_is_fenced_after_a_collection_of_the_new_one(place: str) -> None:
    _, old_writer = made(place, "old", 2)
    delete(place)
    new, new_writer = made(place, "new", 5)
    new.collect(arrowstate.RetentionPolicy(count=1), grace_ms=0, allow_short_grace=True).apply()

    with pytest.raises(FencedError, match="the store of this writer .* was deleted"):
        old_writer.checkpoint({"op": [backend_of("old")]})

    new_writer.checkpoint({"op": [backend_of("new")]})
    assert names(new) == ["new"]


@pytest.mark.parametrize("checkpoints", [1, 2, 3])
def test_an_edit_of_a_store_that_was_deleted_is_refused(place: str, checkpoints: int) -> None:
    old, _ = made(place, "old", 2)
    with old.edit() as edit:
        edit.update("op.name", set={"name": "'edited'"})
        delete(place)
        new, _ = made(place, "new", checkpoints)
        before = set(new.storage.list(""))

        with pytest.raises(StoreNotFoundError, match="deleted, and store"):
            edit.commit()

    with pytest.raises(StoreNotFoundError, match="deleted, and store"):
        old.edit()
    assert set(new.storage.list("")) == before
    assert names(new) == ["new"]
    assert new.verify().problems == []


def test_a_writer_whose_store_was_deleted_makes_no_log(place: str) -> None:
    store, writer = made(place, "old")
    delete(place)

    with pytest.raises(FencedError, match="the store of this writer .* was deleted"):
        writer.checkpoint({"op": [backend_of("old")]})

    assert store.storage.list("") == []


def test_a_commit_of_a_writer_reads_the_entry_that_it_goes_on_from(place: str) -> None:
    made(place, "old")
    requests: Counter[str] = Counter()
    opened = arrowstate.open_store(place)
    storage = FaultyStorage(opened.storage, lambda call: requests.update([call.verb]))
    writer = StateStore(storage, opened.store_id).writer()
    writer.checkpoint({"op": [backend_of("first")]})

    requests.clear()
    writer.checkpoint({"op": [backend_of("second")]})

    assert requests == {"list": 2, "read": 1, "put_if_absent": 1, "put_hint": 1}
