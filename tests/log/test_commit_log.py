"""The commit log: how the newest entry is found, and how the chain holds."""

import pytest
from msgspec.structs import replace

import arrowstate
from arrowstate.log.boundary import put_boundary
from arrowstate.log.commit import Commit
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import HINT_PATH, create_store, open_store_document, path_of, put_store_document
from arrowstate.storage import clear_memory_storage, open_storage
from arrowstate.testing.faults import Fault, FaultyStorage
from arrowstate_formats.document_base import Int64
from arrowstate_formats.documents import BoundaryDocument, LogEntryDocument, ParentDocument, encode
from arrowstate_formats.run_files import checksum
from storages import refusing


@pytest.fixture(params=["local", "memory"])
def storage(request, tmp_path):
    url = str(tmp_path / "store") if request.param == "local" else "memory://commit-log-tests"
    yield open_storage(url, create=True)
    if request.param == "memory":
        clear_memory_storage(url)


def entry(number, parent=None, kind="checkpoint"):
    return LogEntryDocument(
        number=number,
        parent=parent,
        commit_id=f"commit-{number}",
        writer_epoch=1,
        kind=kind,
        checkpoint_id=None if kind == "fence" else number,
        started_at_ms=0,
        committed_at_ms=0,
        operators=[],
    )


def fill(log, kinds):
    """Append entries of these kinds, numbered from 1."""
    parent = None
    for number, kind in enumerate(kinds, 1):
        parent = Commit(log.storage).append(log, entry(number, parent, kind)).as_parent
    return log


FENCE, CHECKPOINT = "fence", "checkpoint"


def test_an_empty_log_has_no_entry(storage):
    log = CommitLog(storage)

    assert log.latest() is None
    assert log.latest_checkpoint() is None
    assert list(log.backwards()) == []
    assert log.numbers() == []


def test_an_entry_reads_as_it_was_appended_with_the_checksum_of_its_bytes(storage):
    log = CommitLog(storage)
    first = entry(1, kind=FENCE)

    committed = Commit(log.storage).append(log, first)

    assert committed.document == first
    assert committed.xxh3_128 == checksum(storage.read(path_of(1)))
    assert log.latest() == log.read(1) == committed
    assert committed.as_parent == ParentDocument(number=1, xxh3_128=committed.xxh3_128)


def test_a_number_can_be_taken_once(storage):
    log = fill(CommitLog(storage), [FENCE, CHECKPOINT])
    before = storage.read(path_of(2))

    lost = Commit(log.storage).append(log, replace(entry(2, log.read(1).as_parent), commit_id="another"))

    assert lost is None
    assert storage.read(path_of(2)) == before


@pytest.mark.parametrize(
    "hint", [None, b"0", b"1", b"3", b"5", b"6", b"99", b"", b"abc", b"-1", b"5\n", b"9" * 30, b"\xff", "²".encode()]
)
def test_the_newest_entry_is_found_whatever_the_hint_says(storage, hint):
    log = fill(CommitLog(storage), [FENCE, CHECKPOINT, FENCE, CHECKPOINT, FENCE])
    storage.delete(HINT_PATH)
    if hint is not None:
        storage.put_hint(HINT_PATH, hint)

    assert log.latest().document.number == 5
    assert log.latest_checkpoint().number == 4


def test_the_newest_entry_is_found_without_a_hint_though_a_listing_is_from_before_the_first(storage):
    faults = {}
    lagging = FaultyStorage(storage, lambda call: faults.get(call.verb))
    log = CommitLog(lagging)
    assert log.latest() is None
    fill(CommitLog(storage), [FENCE, CHECKPOINT])
    storage.put_hint(HINT_PATH, b"")
    faults["list"] = Fault.STALE

    assert log.numbers() == []
    assert log.latest().document.number == 2


def test_a_fence_is_no_checkpoint(storage):
    log = fill(CommitLog(storage), [FENCE, FENCE, CHECKPOINT, FENCE, CHECKPOINT, FENCE])

    assert [document.number for document in log.backwards()] == [5, 3]
    for number in (1, 2, 4, 6, 7, 0, -1, 10**30):
        with pytest.raises(arrowstate.CheckpointNotFoundError) as caught:
            log.checkpoint(number)
        assert caught.value.available == (3, 5)
        assert "it has 3, 5" in str(caught.value)


def test_a_checkpoint_is_found_by_an_id_that_is_not_its_number(storage):
    log = CommitLog(storage)
    Commit(log.storage).append(log, replace(entry(4), checkpoint_id=77, kind="savepoint"))

    assert log.checkpoint(77).number == 4
    with pytest.raises(arrowstate.CheckpointNotFoundError):
        log.checkpoint(4)


def collected(storage, boundary, condemned=()):
    """Say that entries below a number have been collected."""
    document = BoundaryDocument(
        boundary=boundary, swept=0, collection_id="c", written_at_ms=0, condemned=list(condemned), waiting={}
    )
    put_boundary(storage, document)


def test_entries_below_the_boundary_are_not_missed(storage):
    log = fill(CommitLog(storage), [FENCE, CHECKPOINT, CHECKPOINT, CHECKPOINT])
    collected(storage, 3)
    assert [document.number for document in log.backwards()] == [4, 3]

    storage.delete(path_of(1))
    storage.delete(path_of(2))

    assert [document.number for document in log.backwards()] == [4, 3]
    with pytest.raises(arrowstate.CheckpointNotFoundError) as caught:
        log.checkpoint(2)
    assert caught.value.available == (3, 4)


def test_an_entry_that_is_gone_without_having_been_collected_is_damage(storage):
    log = fill(CommitLog(storage), [FENCE, CHECKPOINT, CHECKPOINT, CHECKPOINT, FENCE])
    storage.delete(path_of(4))

    with pytest.raises(arrowstate.CorruptDataError, match="4.json.*missing"):
        log.latest_checkpoint()


@pytest.mark.parametrize("hint", [b"2", b"3", b"6", b"7"])
def test_what_was_made_under_a_collected_number_is_never_the_newest(storage, hint):
    log = fill(CommitLog(storage), [FENCE, CHECKPOINT, CHECKPOINT, CHECKPOINT, FENCE, CHECKPOINT])
    collected(storage, 5)
    for number in (3, 4):
        storage.delete(path_of(number))
    storage.put_if_absent(path_of(3), encode(replace(entry(3), commit_id="zombie")), "zombie")
    storage.put_hint(HINT_PATH, hint)

    assert log.latest().document.number == 6
    assert [document.number for document in log.backwards()] == [6]
    for number in (2, 3, 4, 5):
        with pytest.raises(arrowstate.CheckpointNotFoundError):
            log.checkpoint(number)


def test_a_commit_under_a_collected_number_is_not_acknowledged_and_a_fence_is_lost(storage):
    log = fill(CommitLog(storage), [FENCE, CHECKPOINT, CHECKPOINT, CHECKPOINT])
    collected(storage, 4)
    for number in (1, 2, 3):
        storage.delete(path_of(number))

    with pytest.raises(arrowstate.CommitUnknownError, match="collected past it"):
        Commit(log.storage).append(log, entry(3))
    assert Commit(log.storage).append(log, entry(2, kind=FENCE)) is None

    assert log.latest().document.number == 4
    assert storage.read(HINT_PATH) == b"4"
    assert [document.number for document in log.backwards()] == [4]


def test_an_entry_that_its_successor_was_not_written_after_is_damage(storage):
    log = fill(CommitLog(storage), [FENCE, CHECKPOINT, CHECKPOINT, CHECKPOINT])
    storage.delete(path_of(2))
    storage.put_if_absent(path_of(2), encode(replace(entry(2, log.read(1).as_parent), watermark=Int64(5))), "commit-2")

    with pytest.raises(arrowstate.CorruptDataError, match=path_of(2)):
        list(log.backwards())
    with pytest.raises(arrowstate.CorruptDataError, match=path_of(2)):
        log.checkpoint(2)
    assert log.latest().document.number == 4


def test_an_entry_under_the_name_of_another_is_damage(storage):
    log = fill(CommitLog(storage), [FENCE, CHECKPOINT])
    storage.put_if_absent(path_of(3), storage.read(path_of(2)), "commit-2")

    with pytest.raises(arrowstate.CorruptDataError, match=path_of(3)):
        log.latest()


def test_foreign_files_in_the_log_are_passed_over(storage):
    log = fill(CommitLog(storage), [FENCE, CHECKPOINT])
    storage.delete(HINT_PATH)
    for name in ("notes.txt", "5.json", "0000000000000000000x.json", "00000000000000000009.json.bak"):
        storage.put_if_absent(f"log/{name}", b"x", "x")

    assert log.numbers() == [1, 2]
    assert log.latest().document.number == 2


def test_an_entry_is_committed_even_where_its_hint_cannot_be_written(storage):
    log = CommitLog(refusing(storage, "put_hint"))

    assert fill(log, [FENCE, CHECKPOINT]).latest().document.number == 2
    assert not storage.exists(HINT_PATH)


def test_a_place_without_a_store_says_so(storage):
    with pytest.raises(arrowstate.StoreNotFoundError, match="create=True"):
        open_store_document(storage)


def test_a_store_keeps_the_identity_it_was_given_first(storage):
    first = create_store(storage, "first", 5)

    second = create_store(storage, "second", 6)
    put_store_document(storage, "third", 7)

    assert (first.store_id, first.created_at_ms) == ("first", 5)
    assert second == first == open_store_document(storage)


def test_a_place_with_other_files_is_no_place_for_a_store(storage):
    storage.put_if_absent("important.txt", b"mine", "mine")

    with pytest.raises(arrowstate.InvalidInputError, match=r"important\.txt"):
        create_store(storage, "store", 0)

    assert storage.list("") == ["important.txt"]
