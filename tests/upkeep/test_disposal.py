"""Disposing of a savepoint: exactly its own files go, in an order that never leaves half of one."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.files.disposal import dispose
from arrowstate.storage import open_storage
from arrowstate.testing.faults import Crashed, Fault
from storages import failing_once
from stores import OFFSETS, backend_of, commit, copied, files, totals_from


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A store with one checkpoint of so many states that the manifest is a file, and a savepoint of it."""
    store = arrowstate.open_store(tmp_path_factory.mktemp("dispose") / "store", create=True)
    backend = backend_of()
    for number in range(40):
        backend.state(arrowstate.ReducingStateDescriptor(f"total{number}", pa.int64(), reduce="sum")).add_batch(
            [1, 2], [1, 2]
        )
    offsets = arrowstate.OperatorStateBackend()
    offsets.state(OFFSETS).update(list(range(5000)))
    commit(store, {"op": [backend]}, operator_states={"op": [offsets]})
    store.savepoint("copy")
    return Path(store.url)


@pytest.fixture
def store(pristine, tmp_path):
    return arrowstate.open_store(copied(pristine, tmp_path / "store"))


@pytest.fixture
def place(store):
    return Path(store.url) / "savepoints" / "copy"


def test_all_of_a_savepoint_goes_and_nothing_else(store, place):
    before = files(store.url)
    own = {path for path in before if path.startswith("savepoints/copy/")}
    assert {path.split("/")[2] for path in own} == {"arrowstate.json", "data", "manifests", "_latest", "log"}

    deleted = store.dispose_savepoint("copy")

    assert {f"savepoints/copy/{path}" for path in deleted} == own
    assert set(files(store.url)) == set(before) - own
    assert store.verify(deep=True).problems == []
    with pytest.raises(arrowstate.StoreNotFoundError):
        store.dispose_savepoint("copy")


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_savepoint_of_any_format_goes_as_a_whole(store, tmp_path, format):
    store.savepoint(tmp_path / "other", format=format)

    arrowstate.dispose_savepoint(tmp_path / "other")

    assert files(tmp_path / "other") == {}
    assert store.savepoint(tmp_path / "other").to_arrow("op.total0").num_rows == 2


def test_a_disposal_that_dies_at_any_file_leaves_no_store_and_is_finished_by_the_next(place, tmp_path):
    before = files(place)

    for number in range(1, len(before) + 1):
        folder = shutil.copytree(place, tmp_path / "again")
        dying = failing_once(open_storage(folder), number, "delete", fault=Fault.CRASH_BEFORE)
        with pytest.raises(Crashed):
            dispose(dying, now_ms=0)
        left = files(folder)
        assert len(left) == len(before) - number + 1
        if number == 1:
            assert left == before
        else:
            with pytest.raises(arrowstate.StoreNotFoundError):
                arrowstate.open_store(folder)

        deleted = arrowstate.dispose_savepoint(folder)

        assert set(deleted) == set(left)
        assert files(folder) == {}
        assert not Path(folder).exists()


def empty(place):
    shutil.rmtree(place)
    place.mkdir()


def not_finished(place):
    (place / "arrowstate.json").unlink()
    shutil.rmtree(place / "log")


def with_data_of_somebody(place):
    (place / "arrowstate.json").unlink()
    shutil.rmtree(place / "log")
    shutil.rmtree(place / "manifests")


@pytest.mark.parametrize("make", [shutil.rmtree, empty, not_finished, with_data_of_somebody])
def test_where_no_savepoint_is_nothing_is_deleted(place, make):
    make(place)
    before = files(place) if place.exists() else {}

    with pytest.raises(arrowstate.StoreNotFoundError):
        arrowstate.dispose_savepoint(place)

    assert (files(place) if place.exists() else {}) == before


def opened_for_writing(place):
    arrowstate.open_store(place).writer()


def collected_to_one_entry(place):
    commit(arrowstate.open_store(place), {"op": [backend_of()]}, allow_dropped_state=True)
    arrowstate.open_store(place).collect(arrowstate.RetentionPolicy(count=1)).apply()


def tagged(place):
    arrowstate.open_store(place).tag("gold")


def leased(place):
    arrowstate.open_store(place).lease(holder="a notebook")


def with_notes(place):
    (place / "notes.txt").write_text("mine")


def with_a_file_between_the_data(place):
    (place / "data" / "op" / "total0" / "mine.parquet").write_text("mine")


def with_a_store_inside(place):
    arrowstate.open_store(place / "inner", create=True)


def interrupted_with_a_file_of_somebody(place):
    (place / "arrowstate.json").unlink()
    with_a_file_between_the_data(place)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (opened_for_writing, "its log has 2 entries"),
        (collected_to_one_entry, "its log has 2 entries"),
        (tagged, "tag 'gold' holds it"),
        (leased, "lease .* of a notebook holds it"),
        (with_notes, "notes.txt; move them out first"),
        (with_a_file_between_the_data, "data/op/total0/mine.parquet"),
        (with_a_store_inside, "inner/arrowstate.json"),
        (interrupted_with_a_file_of_somebody, "data/op/total0/mine.parquet"),
    ],
)
def test_what_is_not_only_a_savepoint_is_refused_with_the_reason(place, make, reason):
    make(place)
    before = files(place)

    with pytest.raises(arrowstate.InvalidInputError, match=reason):
        arrowstate.dispose_savepoint(place)

    assert files(place) == before


def test_the_store_of_a_job_is_refused(store):
    before = files(store.url)

    with pytest.raises(arrowstate.InvalidInputError, match="its log has 2 entries"):
        arrowstate.dispose_savepoint(store.url)

    assert files(store.url) == before


def test_a_store_without_a_checkpoint_is_refused(tmp_path):
    arrowstate.open_store(tmp_path / "new", create=True)

    with pytest.raises(arrowstate.InvalidInputError, match="its log has 0 entries"):
        arrowstate.dispose_savepoint(tmp_path / "new")

    assert list(files(tmp_path / "new")) == ["arrowstate.json"]


def test_leases_that_have_ended_and_traces_of_collections_hold_nothing(place):
    saved = arrowstate.open_store(place)
    saved.lease(ttl_ms=1000)
    saved.collect().apply()
    assert {path.split("/")[0] for path in files(place)} >= {"leases", "gc"}

    arrowstate.dispose_savepoint(place, clock_ms=lambda: 1 << 60)

    assert files(place) == {}


@pytest.mark.parametrize("what", ["log", "arrowstate.json"])
def test_a_savepoint_that_cannot_be_read_is_left_alone(place, what):
    (path,) = (path for path in place.rglob("*.json") if str(path.relative_to(place)).startswith(what))
    path.write_bytes(path.read_bytes()[:-10])
    before = files(place)

    with pytest.raises(arrowstate.CorruptDataError):
        arrowstate.dispose_savepoint(place)

    assert files(place) == before


def test_a_savepoint_that_lacks_files_can_still_be_disposed_of(place):
    next(iter((place / "data" / "op" / "total0").iterdir())).unlink()

    arrowstate.dispose_savepoint(place)

    assert files(place) == {}


@pytest.mark.parametrize("is_claimed", [False, True], ids=["disposed of", "claimed"])
@pytest.mark.parametrize("where", ["by name", "by path"])
def test_no_empty_folder_is_left_of_a_savepoint(tmp_path, is_claimed, where):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]})
    savepoint = store.savepoint("saved" if where == "by name" else tmp_path / "saved")

    if is_claimed:
        other = arrowstate.open_store(tmp_path / "other", create=True)
        other.import_savepoint(savepoint, claim_mode=arrowstate.ClaimMode.CLAIM)
    else:
        arrowstate.dispose_savepoint(savepoint.storage.url)

    left = [path.name for path in tmp_path.rglob("*") if path.is_dir() and not any(path.iterdir())]
    assert set(left) <= {"leases"}
    assert not Path(savepoint.storage.url).exists()
    # The same name can be used again.
    again = store.savepoint("saved" if where == "by name" else tmp_path / "saved")
    assert again.to_arrow("op.total").num_rows == 3000


def test_a_disposal_leaves_the_folder_where_something_came_meanwhile(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [backend_of()]})
    saved = Path(store.savepoint("saved").storage.url)
    store.savepoint("other")
    (saved / ".hidden").write_text("somebody's")

    arrowstate.dispose_savepoint(saved)

    assert [path.name for path in saved.iterdir()] == [".hidden"]
    assert (saved.parent / "other").exists()
