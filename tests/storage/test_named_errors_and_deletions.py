"""Errors name the file and the storage; a clean-up that fails hides neither; what is deleted stays deleted."""

import errno
import os
import pickle
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
import arrowstate.storage.local as local_module
from arrowstate.storage import open_storage
from arrowstate.storage.base import many_deletions
from arrowstate.storage.objects import ObjectStorage
from arrowstate.storage.retries import RetryBudget
from arrowstate.table.spill import SpillSink
from arrowstate_formats import system
from stores import write


@pytest.fixture
def local(tmp_path):
    return open_storage(tmp_path / "store", create=True)


def is_folder(descriptor):
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


@pytest.fixture
def synced(local, monkeypatch):
    """The folders that were made durable, relative to the storage, by this thread."""
    folders, fsync, me = [], os.fsync, threading.current_thread()

    def recorded(descriptor):
        if threading.current_thread() is me and is_folder(descriptor):
            folders.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), local.url))
        fsync(descriptor)

    monkeypatch.setattr(local_module.os, "fsync", recorded)
    return folders


class ReadOnly:
    """A disk that goes read-only right after a file got its name."""

    def __init__(self, monkeypatch):
        self.gone = False
        link, fsync, unlink = os.link, os.fsync, os.unlink
        monkeypatch.setattr(os, "link", lambda *names: (link(*names), self.go()))
        monkeypatch.setattr(local_module.os, "fsync", self.unless_gone(fsync))
        monkeypatch.setattr(local_module.os, "unlink", self.unless_gone(unlink))

    def go(self):
        self.gone = True

    def unless_gone(self, real):
        def call(*arguments, **options):
            if self.gone:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return real(*arguments, **options)

        return call


@pytest.mark.skipif(system.PORTABLE, reason="the portable way makes no links")
def test_a_clean_up_that_fails_hides_no_error_of_a_checkpoint_or_savepoint(tmp_path, monkeypatch):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    counts = backend.state(arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce="sum"))
    counts.add_batch(range(5000), [1] * 5000)
    writer = store.writer()
    writer.checkpoint({"op": [backend]})
    counts.add_batch(range(5000), [1] * 5000)

    for call in (lambda: writer.checkpoint({"op": [backend]}), lambda: store.savepoint("x", checkpoint=1)):
        with monkeypatch.context() as patched:
            ReadOnly(patched)
            with pytest.raises(arrowstate.StorageError, match="Read-only file system") as caught:
                call()
        assert caught.value.url.startswith(store.url)


def test_a_descriptor_that_cannot_be_closed_is_no_error_of_a_file_that_is_durable(local, monkeypatch):
    close = os.close

    def fail(descriptor):
        is_file = not is_folder(descriptor)
        close(descriptor)
        if is_file:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(local_module.os, "close", fail)

    write(local, "data/a", b"abc")

    assert local.read("data/a") == b"abc"


def test_a_spilled_file_whose_name_cannot_be_taken_away_is_no_error(tmp_path, monkeypatch):
    schema = pa.schema([pa.field("_key_hash", pa.int64(), nullable=False)])
    sinks = [SpillSink(tmp_path, schema) for _ in range(2)]
    sinks[0].append(pa.record_batch([pa.array([1, 2])], schema=schema))

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "unlink", refuse)

    assert sinks[0].finish().rows == 2
    sinks[1].discard()


def test_a_file_is_gone_for_good_when_its_deletion_returns(local, synced):
    write(local, "tags/t.json")
    write(local, "data/a/b/1")
    synced.clear()

    local.delete("tags/t.json")
    local.delete("data/a/b/1")
    # A process that died may have come no further than to take the name away.
    local.delete("tags/t.json")

    assert synced == ["tags", "data/a/b", "tags"]


def test_a_file_in_a_folder_that_is_not_there_is_deleted_already(local, synced):
    local.delete("nowhere/t.json")

    assert synced == []


def test_many_deletions_make_each_folder_durable_once(local, synced):
    for number in range(10):
        write(local, f"data/{number % 2}/{number}")
    synced.clear()

    with many_deletions(local):
        for number in range(10):
            local.delete(f"data/{number % 2}/{number}")
            with many_deletions(local):
                local.delete(f"elsewhere/{number}")
        assert synced == []

    assert synced == ["data/0", "data/1"]
    assert local.list("") == []
    local.delete("data/0/0")
    assert synced == ["data/0", "data/1", "data/0"]


def test_many_deletions_of_one_thread_do_not_put_off_those_of_another(local, monkeypatch):
    write(local, "tags/t.json")
    folders, fsync = [], os.fsync
    monkeypatch.setattr(local_module.os, "fsync", lambda descriptor: (folders.append(descriptor), fsync(descriptor)))

    with many_deletions(local):
        other = threading.Thread(target=local.delete, args=("tags/t.json",))
        other.start()
        other.join()
        assert len(folders) == 1


def test_a_deletion_that_may_not_last_is_an_error_and_an_error_before_it_is_kept(local, monkeypatch):
    for name in ("tags/a", "tags/b", "tags/c"):
        write(local, name)

    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(local_module.os, "fsync", fail)

    with pytest.raises(arrowstate.StorageError, match="tags/a: Input/output error"):
        local.delete("tags/a")
    with pytest.raises(arrowstate.StorageError, match="tags: Input/output error"), many_deletions(local):
        local.delete("tags/b")
    with pytest.raises(ZeroDivisionError), many_deletions(local):
        local.delete("tags/c")
        raise ZeroDivisionError


def test_tags_leases_and_what_a_collection_deletes_are_gone_for_good(tmp_path, monkeypatch):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    states = [backend.state(arrowstate.ReducingStateDescriptor(name, pa.int64(), reduce="sum")) for name in "st"]
    with store.writer() as writer:
        for _ in range(6):
            for state in states:
                state.add_batch(range(3000), [1] * 3000)
            writer.checkpoint({"op": [backend]})
    store.tag("t", 2)
    lease = store.lease(2)
    fsync, me, folders = os.fsync, threading.current_thread(), []

    def recorded(descriptor):
        if threading.current_thread() is me and is_folder(descriptor):
            folders.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), store.url))
        fsync(descriptor)

    monkeypatch.setattr(local_module.os, "fsync", recorded)

    store.untag("t")
    lease.release()
    assert folders == ["tags", "leases"]
    folders.clear()
    report = store.collect().apply()

    deleted = {str(Path(path).parent) for path in report.deleted}
    assert len(report.deleted) > 3 * len(deleted) >= 9
    assert {folder: folders.count(folder) for folder in deleted} == dict.fromkeys(deleted, 1)


def test_a_folder_that_another_process_made_is_durable_before_a_file_in_it_is(local, synced):
    # As a process leaves them that dies before it has made their names durable.
    (Path(local.url) / "data" / "op").mkdir(parents=True)

    write(local, "data/op/s/1")
    first = list(synced)
    write(local, "data/op/s/2")

    assert first == [".", "data", "data/op", "data/op/s"] or first == ["..", ".", "data", "data/op", "data/op/s"]
    assert synced[len(first) :] == ["data/op/s"]


def test_a_store_that_may_not_be_looked_at_is_not_called_absent(tmp_path, monkeypatch):
    real = Path.stat

    def refuse(self, **options):
        if self.name == "store":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", refuse)

    with pytest.raises(arrowstate.StorageError, match=r"store: Permission denied"):
        open_storage(tmp_path / "store")


def calls(storage):
    return {
        "read": lambda: storage.read("data/a"),
        "open_buffer": lambda: storage.open_buffer("data/a"),
        "put_if_absent": lambda: storage.put_if_absent("data/a", b"one", "one"),
        "write_file": lambda: write(storage, "data/a"),
        "put_hint": lambda: storage.put_hint("data/a", b"1"),
        "list": lambda: storage.list("data/a"),
        "exists": lambda: storage.exists("data/a"),
        "delete": lambda: storage.delete("data/a"),
    }


class Refusing:
    """A client of an object storage whose every request is refused."""

    def __getattr__(self, name):
        def refuse(*_, **__):
            raise PermissionError("Access Denied")

        return refuse


@pytest.fixture
def refused(tmp_path):
    options = {"key": "k", "secret": "s"}
    cache = tmp_path / "cache"
    storage = ObjectStorage(
        "s3://bucket/jobs", options, retries=RetryBudget(attempts=1), cache=arrowstate.storage.cache.FileCache(cache)
    )
    storage._client = Refusing()
    return storage


@pytest.mark.parametrize("verb", [*calls(None)])
def test_an_error_of_an_object_storage_names_the_path_and_the_storage(refused, verb):
    with pytest.raises(arrowstate.ArrowStateError) as caught:
        calls(refused)[verb]()

    assert "s3://bucket/jobs" in str(caught.value)
    assert "Access Denied" in str(caught.value)
    # Whether the service keeps the condition of a commit is tried out on an object of its own before the first.
    assert ("data/a" if verb != "put_if_absent" else ".probe-") in str(caught.value)
    assert caught.value.url == "s3://bucket/jobs"


@pytest.mark.parametrize("call", [lambda storage: storage.list(""), lambda storage: storage.list_unfinished()])
def test_an_error_of_a_whole_listing_names_the_storage(refused, call):
    with pytest.raises(arrowstate.StorageError, match=r"^s3://bucket/jobs: .*Access Denied"):
        call(refused)


def test_an_error_of_the_local_copies_names_the_path_and_the_storage(refused, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(arrowstate.storage.cache.os, "open", full)

    with pytest.raises(arrowstate.StorageFullError, match=r"data/a: .*No space left on device \(in s3://bucket/jobs\)"):
        write(refused, "data/a")


@pytest.mark.parametrize("verb", ["put_if_absent", "write_file", "put_hint", "delete"])
def test_an_error_of_a_folder_names_the_path_and_the_storage(local, monkeypatch, verb):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    write(local, "data/b")
    for name in ("fsync", "replace", "rename"):
        monkeypatch.setattr(local_module.os, name, full)

    with pytest.raises((arrowstate.StorageFullError, arrowstate.StorageError)) as caught:
        calls(local)[verb]()

    assert "data/a" in str(caught.value)
    assert local.url in str(caught.value)
    assert (caught.value.path, caught.value.url) == ("data/a", local.url)


def test_a_name_that_is_taken_and_a_file_too_large_name_the_storage(local):
    memory = open_storage("memory://named-errors", create=True, storage_options={"max_file_bytes": 3})
    for storage in (local, memory):
        with suppress(arrowstate.NameTakenError):
            write(storage, "data/a", b"abc")
        with pytest.raises(arrowstate.NameTakenError) as caught:
            write(storage, "data/a", b"abc")
        assert (caught.value.path, caught.value.url) == ("data/a", storage.url)
        assert storage.url in str(caught.value)
    with pytest.raises(arrowstate.FileTooLargeError) as caught:
        write(memory, "data/b", b"abcd")
    assert memory.url in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        arrowstate.StorageError("data/a", "refused", "s3://b"),
        arrowstate.StorageFullError("data/a", "full", "s3://b"),
        arrowstate.NameTakenError("data/a", "s3://b"),
        arrowstate.FileTooLargeError("data/a", 2, 1, "s3://b"),
        arrowstate.CommitUnknownError("log/1.json", "id", "lost", "s3://b"),
    ],
)
def test_errors_keep_their_storage_on_the_way_to_another_process(error):
    again = pickle.loads(pickle.dumps(error))

    assert (str(again), again.url) == (str(error), "s3://b")
    assert "s3://b" in str(error)
    assert not isinstance(again, arrowstate.InvalidInputError)
