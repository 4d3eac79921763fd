"""What becomes of the files of a commit that fails, and of a fence that another writer comes before."""

import errno
import itertools
from unittest import mock

import pytest

from arrowstate.errors import CollectedError, CommitUnknownError, FencedError, InvalidInputError, StorageError
from arrowstate.log.commit import Commit, append_fence, take_fence
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import next_fence
from arrowstate.storage.registry import open_storage
from arrowstate_formats import system

NOT_COMMITTED = [FencedError(1, 2), CollectedError(["data/1"]), InvalidInputError("x"), StorageError("x", "y")]
PERHAPS_COMMITTED = [CommitUnknownError("log/1", "c", "x", "y"), KeyboardInterrupt(), MemoryError()]


@pytest.fixture
def storage(tmp_path):
    return open_storage(tmp_path / "store", create=True)


def fail(storage, error, *, is_tried):
    """Write a file for a commit that ends with an error; return whether the file is left."""

    def fails(*_):
        raise error

    with pytest.raises(type(error)), Commit(storage) as commit:
        with storage.write_file("data/1") as file:
            file.write(b"rows")
        commit.paths.append("data/1")
        if is_tried:
            entry = next_fence(None, commit_id="c", now_ms=5, properties={})
            with mock.patch.object(storage, "put_if_absent", fails):
                commit.append(CommitLog(storage), entry)
        raise error
    return storage.exists("data/1")


@pytest.mark.parametrize("error", [*NOT_COMMITTED, *PERHAPS_COMMITTED], ids=lambda error: type(error).__name__)
def test_before_the_entry_is_tried_any_error_takes_the_files_away(storage, error):
    assert not fail(storage, error, is_tried=False)


@pytest.mark.parametrize("error", [*NOT_COMMITTED, *PERHAPS_COMMITTED], ids=lambda error: type(error).__name__)
def test_after_it_was_tried_files_go_only_where_it_is_certain_that_no_entry_names_them(storage, error):
    is_left = fail(storage, error, is_tried=True)

    assert is_left == (error in PERHAPS_COMMITTED)


def test_a_fence_goes_above_every_entry_and_the_slower_of_two_goes_above_the_other(storage):
    ids = (f"{number:032x}" for number in itertools.count(1))
    say = {"new_id": lambda: next(ids), "clock_ms": lambda: 5, "properties": {"who": "a test"}}
    log = CommitLog(storage)

    first, before = take_fence(log, **say)
    lost = append_fence(log, None, **say)
    second, after = take_fence(log, **say)

    assert (before, lost, after) == (None, None, first)
    assert (first.document.writer_epoch, second.document.writer_epoch) == (1, 2)
    assert second.document.properties == {"who": "a test"}


def test_a_fence_whose_number_was_taken_and_collected_within_the_call_is_lost_and_not_in_doubt(storage, monkeypatch):
    ids = (f"{number:032x}" for number in itertools.count(1))
    say = {"new_id": lambda: next(ids), "clock_ms": lambda: 5, "properties": {}}
    first, _ = take_fence(CommitLog(storage), **say)
    give_name = system.give_name

    def taken(temporary, location):
        monkeypatch.setattr(system, "give_name", give_name)
        for _ in range(2):
            take_fence(CommitLog(storage), **say)
        try:
            give_name(temporary, location)
        finally:
            # A collection deletes the entry that is in the way before this writer looks at it.
            location.unlink()

    monkeypatch.setattr(system, "give_name", taken)

    assert append_fence(CommitLog(storage), first, **say) is None


def test_a_fence_in_doubt_that_the_log_does_not_have_is_an_error(storage, monkeypatch):
    def lost(*_):
        raise OSError(errno.EIO, "the disk went away")

    monkeypatch.setattr(system, "give_name", lost)

    with pytest.raises(CommitUnknownError, match="the disk went away"):
        append_fence(CommitLog(storage), None, new_id=lambda: "1" * 32, clock_ms=lambda: 5, properties={})


def test_a_fence_whose_answer_is_lost_is_in_doubt_also_where_it_was_made(storage, monkeypatch):
    put = storage.put_if_absent

    def lost(path, data, commit_id):
        put(path, data, commit_id)
        raise CommitUnknownError(path, commit_id, "the answer was lost", storage.url)

    monkeypatch.setattr(storage, "put_if_absent", lost)

    with pytest.raises(CommitUnknownError, match="the answer was lost"):
        append_fence(CommitLog(storage), None, new_id=lambda: "1" * 32, clock_ms=lambda: 5, properties={})
