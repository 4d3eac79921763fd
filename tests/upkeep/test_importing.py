"""Importing: a savepoint or a checkpoint of another store becomes the newest of this one, whole or not at all."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.files import contents
from arrowstate.files.contents import checked_pieces
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.references import ReferenceReader
from arrowstate.log.commit_log import CommitLog
from arrowstate.query.kept_reads import forget_checkpoints
from arrowstate.storage import open_storage
from arrowstate.testing.faults import Fault
from arrowstate_formats.run_files import checksum
from storages import Hooked, failing_once, refusing
from stores import OFFSETS, TOTAL, backend_of, commit, copied, cut, files, flip, totals

SMALL = arrowstate.ValueStateDescriptor("small", pa.string())
KINDS = {".arrow", ".directory", ".roaring", ".json"}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A store whose newest checkpoint has every kind of file, dead rows, slices of shared files, and inline data."""
    store = arrowstate.open_store(tmp_path_factory.mktemp("import") / "source", create=True)
    backend = backend_of()
    with store.writer() as writer:
        backend.state(TOTAL).add_batch(pa.array(range(400_000)), pa.array(np.arange(400_000) % 1000))
        backend.state(SMALL).update_batch(pa.array(range(3)), ["a", "b", "c"])
        for number in range(16):
            # Many states make a manifest that is too large to be inline.
            more = backend.state(arrowstate.ValueStateDescriptor(f"more{number}", pa.string()))
            more.update_batch(pa.array(range(30)), ["x" * 20] * 30)
        writer.checkpoint({"op": [backend]})
        backend.state(TOTAL).clear_batch(pa.array(range(0, 400_000, 3)))
        backends = [writer.checkpoint({"op": [backend]}).restore("op", parallelism=2, subtask=i) for i in range(2)]
        offsets = [arrowstate.OperatorStateBackend() for _ in range(2)]
        for part in offsets:
            part.state(OFFSETS).update(list(range(5000)))
        writer.checkpoint({"op": backends}, operator_states={"op": offsets}, properties={"offset": 42}, watermark=1000)
    return Path(store.url)


@pytest.fixture
def source(pristine, tmp_path):
    return copied(pristine, tmp_path / "source")


@pytest.fixture
def store(tmp_path):
    """A store with a checkpoint of another state."""
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of()
    backend.state(TOTAL).add_batch(pa.array([1]), pa.array([1]))
    commit(store, {"op": [backend]}, properties={"offset": 1})
    return store


EXPECTED = {number: number % 1000 for number in range(400_000) if number % 3}


def references(snapshot):
    return set(ReferenceReader(snapshot.storage).files(snapshot.entry.operators))


def test_an_imported_checkpoint_is_the_newest_and_all_that_it_was(store, source):
    before = arrowstate.open_store(source).latest()
    ids = [snapshot.checkpoint_id for snapshot in store.checkpoints()]

    imported = store.import_savepoint(source)

    assert store.latest().checkpoint_id == imported.checkpoint_id > max(ids)
    assert totals(imported) == EXPECTED
    assert imported.to_arrow("op.small")["small"].to_pylist() == before.to_arrow("op.small")["small"].to_pylist()
    assert imported.operator_state("op", "offsets").equals(before.operator_state("op", "offsets"))
    assert (imported.properties, imported.entry.watermark) == ({"offset": 42}, 1000)
    assert store.verify(deep=True).problems == []
    parts = [imported.restore("op", parallelism=3, subtask=number, max_parallelism=96) for number in range(3)]
    assert sum(len(part.state(TOTAL)) for part in parts) == len(EXPECTED)


def test_its_files_have_names_of_their_own_and_each_is_copied_once(store, source):
    before = arrowstate.open_store(source).latest()
    assert {Path(path).suffix for path in references(before)} == KINDS

    imported = store.import_savepoint(source)

    ours, theirs = references(imported), references(before)
    assert len(ours) == len(theirs)
    assert not {Path(path).stem for path in ours} & {Path(path).stem for path in theirs}
    runs = [path for path in store.storage.list("data/") if path.endswith(".arrow") and "/total/" in path]
    assert len(runs) == 1, "both subtasks own a slice of one file"


def test_without_a_claim_the_source_is_never_touched_nor_needed(store, source):
    before = files(source)

    imported = store.import_savepoint(source)

    assert files(source) == before
    shutil.rmtree(source)
    forget_open_files()
    forget_checkpoints()
    assert totals(store.latest()) == EXPECTED
    backend = imported.restore("op")
    with store.writer() as writer:
        backend.state(TOTAL).add_batch(pa.array([1]), pa.array([7]))
        offsets = imported.restore_operator_state("op")
        after = writer.checkpoint({"op": [backend]}, operator_states={"op": [offsets]})
    assert totals(after) == {**EXPECTED, 1: 8}


def test_the_fence_before_it_says_where_it_comes_from(store, source):
    given = arrowstate.open_store(source)

    imported = store.import_savepoint(source)

    fence = CommitLog(store.storage).read(imported.entry.number - 1).document
    assert fence.kind == "fence"
    assert fence.properties == {
        "imported_from": {
            "url": str(source),
            "store_id": given.store_id,
            "checkpoint_id": given.latest().checkpoint_id,
            "claim_mode": "no_claim",
        }
    }


def test_writers_opened_before_an_import_are_fenced(store, source):
    backend = backend_of()
    backend.state(TOTAL)
    writer = store.writer()

    store.import_savepoint(source)

    with pytest.raises(arrowstate.FencedError):
        writer.checkpoint({"op": [backend]}, allow_dropped_state=True)
    assert totals(store.latest()) == EXPECTED


def test_any_checkpoint_of_another_store_can_be_imported(store, source):
    older = arrowstate.open_store(source).checkpoints()[0]

    imported = store.import_savepoint(older)

    assert totals(imported) == totals(older) == {number: number % 1000 for number in range(400_000)}


def test_a_savepoint_of_the_store_itself_is_imported_by_name(store, source):
    first = store.savepoint("first")
    store.import_savepoint(source)

    again = store.import_savepoint("first", claim_mode=arrowstate.ClaimMode.CLAIM)

    assert totals(again) == {1: 1}
    assert again.properties == {"offset": 1}
    assert store.storage.list("savepoints/") == []
    with pytest.raises(arrowstate.StoreNotFoundError):
        arrowstate.open_store(first.storage.url)


def test_a_checkpoint_of_the_store_itself_is_refused(store):
    before = files(store.url)

    with pytest.raises(arrowstate.InvalidInputError, match="restore it and take a checkpoint"):
        store.import_savepoint(store.latest())

    assert files(store.url) == before


def test_a_claim_mode_that_is_none_is_refused(store, source):
    with pytest.raises(arrowstate.InvalidInputError, match="must be a ClaimMode, got 'claim'"):
        store.import_savepoint(source, claim_mode="claim")


def test_progress_counts_every_file(store, source):
    calls = []

    imported = store.import_savepoint(source, progress=lambda done, total: calls.append((done, total)))

    copied = sum(path.startswith("data/") for path in references(imported))
    assert calls == [(number, copied) for number in range(1, copied + 1)]


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_damaged_source_is_refused_with_its_file_and_nothing_is_changed(store, source, harm, kind):
    for path in sorted(references(arrowstate.open_store(source).latest())):
        if path.endswith(kind):
            harm(source / path)
            break
    before = files(store.url)

    with pytest.raises(arrowstate.CorruptDataError) as caught:
        store.import_savepoint(source)

    assert caught.value.path == path
    assert files(store.url) == before


def test_an_import_that_fails_at_any_file_leaves_nothing(store, source):
    before = files(store.url)

    for number in range(1, 100):
        failing = failing_once(store.storage, number, "write_file", fault=Fault.TORN)
        try:
            imported = arrowstate.StateStore(failing, store.store_id).import_savepoint(source)
            break
        except arrowstate.StorageError:
            assert files(store.url) == before

    assert number == len(references(imported)) + 1
    assert totals(store.latest()) == EXPECTED


def test_an_import_that_is_fenced_leaves_only_the_fence(store, source):
    before = set(files(store.url))
    checkpoint = store.latest().entry.number + 2

    storage = Hooked(store.storage).act_before("put_if_absent", f"log/{checkpoint:020d}", store.writer)
    with pytest.raises(arrowstate.FencedError):
        arrowstate.StateStore(storage, store.store_id).import_savepoint(
            source, claim_mode=arrowstate.ClaimMode.NO_CLAIM
        )

    assert {path for path in set(files(store.url)) - before if not path.startswith("log/")} == set()
    assert totals(store.latest()) == {1: 1}


def test_a_claimed_savepoint_is_disposed_of_after_the_commit(store, source, tmp_path):
    arrowstate.open_store(source).savepoint(tmp_path / "savepoint")

    imported = store.import_savepoint(tmp_path / "savepoint", claim_mode=arrowstate.ClaimMode.CLAIM)

    assert files(tmp_path / "savepoint") == {}
    forget_open_files()
    forget_checkpoints()
    assert totals(imported) == EXPECTED
    assert totals(arrowstate.open_store(source).latest()) == EXPECTED


def test_a_claimed_savepoint_stays_if_nobody_can_tell_whether_the_import_was_committed(store, source, tmp_path):
    arrowstate.open_store(source).savepoint(tmp_path / "savepoint")
    before = files(tmp_path / "savepoint")
    checkpoint = store.latest().entry.number + 2

    lost = arrowstate.CommitUnknownError("log", "id", "no answer")
    storage = Hooked(store.storage).act_before("put_if_absent", f"log/{checkpoint:020d}", lost)
    with pytest.raises(arrowstate.CommitUnknownError):
        arrowstate.StateStore(storage, store.store_id).import_savepoint(
            tmp_path / "savepoint", claim_mode=arrowstate.ClaimMode.CLAIM
        )

    assert files(tmp_path / "savepoint") == before
    assert len(store.storage.list("data/")) > 1, "the entry may be there and need them"


def test_a_claimed_savepoint_that_cannot_be_disposed_of_is_a_warning(store, source, tmp_path):
    savepoint = arrowstate.open_store(source).savepoint(tmp_path / "savepoint")
    stuck = refusing(savepoint.storage, "delete")

    given = arrowstate.Snapshot(stuck, savepoint.store_id, savepoint.entry)
    with pytest.warns(RuntimeWarning, match=r"dispose_savepoint\('.*savepoint'\).*the request was lost") as caught:
        imported = store.import_savepoint(given, claim_mode=arrowstate.ClaimMode.CLAIM)

    assert caught[0].filename == __file__
    assert totals(imported) == EXPECTED
    assert totals(arrowstate.open_store(tmp_path / "savepoint").latest()) == EXPECTED


def opened_for_writing(folder):
    arrowstate.open_store(folder).writer()


def tagged(folder):
    arrowstate.open_store(folder).tag("gold")


def with_a_file_of_somebody(folder):
    (folder / "data" / "op" / "notes.txt").write_text("mine")


@pytest.mark.parametrize("make", [opened_for_writing, tagged, with_a_file_of_somebody])
def test_what_is_not_only_a_savepoint_may_be_imported_but_not_claimed(store, source, tmp_path, make):
    folder = tmp_path / "savepoint"
    arrowstate.open_store(source).savepoint(folder)
    make(folder)
    before, ours = files(folder), files(store.url)

    with pytest.raises(arrowstate.InvalidInputError, match="ClaimMode.NO_CLAIM"):
        store.import_savepoint(folder, claim_mode=arrowstate.ClaimMode.CLAIM)

    assert files(folder) == before
    assert files(store.url) == ours
    assert totals(store.import_savepoint(folder)) == EXPECTED


def test_a_place_without_a_store_is_nothing_to_import(store, tmp_path):
    with pytest.raises(arrowstate.StoreNotFoundError):
        store.import_savepoint(tmp_path / "nowhere")

    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 25])
def test_pieces_are_the_file_and_any_other_file_is_refused(tmp_path, monkeypatch, size):
    monkeypatch.setattr(contents, "_PIECE_BYTES", 10)
    storage = open_storage(tmp_path, create=True)
    data = bytes(range(size))
    wrong = [data + b"x", data[:-1], b"\xff" + data[1:], data[:-1] + b"\xff"] if size else [b"x"]
    (tmp_path / "file").write_bytes(data)

    pieces = list(checked_pieces(storage, "file", size, checksum(data)))

    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= 10
    for other in wrong:
        (tmp_path / "file").write_bytes(other)
        with pytest.raises(arrowstate.CorruptDataError, match="file is damaged"):
            list(checked_pieces(storage, "file", size, checksum(data)))
    (tmp_path / "file").unlink()
    with pytest.raises(arrowstate.CorruptDataError, match="missing"):
        list(checked_pieces(storage, "file", size, checksum(data)))


@pytest.mark.parametrize("place", ["v1/arrow", "v1/lists", "v1/lance/savepoints/last", "v1/parquet/savepoints/last"])
def test_stores_and_savepoints_of_each_version_can_be_imported(store, tmp_path, place):
    source = shutil.copytree(
        Path(__file__).parents[2] / "formats" / "golden" / place, tmp_path / place.replace("/", "-")
    )
    before = arrowstate.open_store(source).latest()
    tables = {name: before.to_arrow(name) for name in before.states()}
    claim = arrowstate.ClaimMode.CLAIM if "savepoints" in place else arrowstate.ClaimMode.NO_CLAIM

    imported = store.import_savepoint(source, claim_mode=claim)

    assert len(tables) > 0
    assert {name: imported.to_arrow(name) for name in imported.states()} == tables
    assert imported.properties == before.properties
    assert store.verify(deep=True).problems == []
    assert (files(source) == {}) == (claim is arrowstate.ClaimMode.CLAIM)
