"""Checkpoints in the Lance format: what is read of a file, from where, and what happens where that is not possible."""

import gc
import shutil
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.files.open_files import forget_open_files, open_file
from arrowstate.files.reading import subtask_runs
from arrowstate.schema.versions import RunSchemas
from arrowstate_formats import run_files, run_reading
from stores import TOTAL, commit

KEYS = pa.array(range(100_000))


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, of this test alone; no file is open before or after it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    forget_open_files()
    yield folder
    forget_open_files()


@pytest.fixture
def snapshot(store, counts):
    """A checkpoint whose only run is a Lance file of many batches, not open yet."""
    commit(store, {"op": [counts]}, format="lance")
    forget_open_files()
    return store.latest()


def path_of(snapshot):
    (path,) = Path(snapshot.storage.url).rglob("*.lance")
    return path


def open_file_of(snapshot):
    operator = snapshot.entry.operators[0]
    (run,) = subtask_runs(snapshot.storage, operator, operator.subtasks[0])["total"]
    return open_file(snapshot.storage, run, RunSchemas(operator.key, operator.states[0]).schema)


@pytest.fixture
def rows_read(monkeypatch):
    """How many rows each call of the library returned."""
    numbers = []
    read = run_reading.read_lance_rows

    def counted(path, rows, ranges, columns):
        numbers.append(sum(count for _, count in ranges))
        return read(path, rows, ranges, columns)

    monkeypatch.setattr(run_reading, "read_lance_rows", counted)
    return numbers


@pytest.fixture
def bytes_compared(monkeypatch):
    """How many bytes each comparison of a checksum took."""
    sizes = []
    checksum = run_files.checksum

    def counted(data):
        sizes.append(memoryview(data).nbytes)
        return checksum(data)

    monkeypatch.setattr(run_files, "checksum", counted)
    return sizes


def test_a_subtask_reads_about_the_rows_that_it_owns(snapshot, rows_read):
    for parallelism, max_parallelism in ((2, 128), (5, 20), (16, 1024)):
        rows_read.clear()
        for subtask in range(parallelism):
            backend = snapshot.restore("op", parallelism=parallelism, subtask=subtask, max_parallelism=max_parallelism)
            backend.state(TOTAL)
            forget_open_files()

        assert len(rows_read) == parallelism
        # A batch has up to 16,384 rows, and the first and last are read as a whole.
        assert max(rows_read) < 100_000 / parallelism + 2 * 16_384


def test_a_file_is_compared_once_and_as_a_whole_before_its_first_row_is_read(snapshot, bytes_compared):
    size = path_of(snapshot).stat().st_size

    snapshot.restore("op", parallelism=16, subtask=3).state(TOTAL)
    assert sum(bytes_compared) == size
    snapshot.restore("op", parallelism=16, subtask=4).state(TOTAL)
    snapshot.to_arrow("op.total")

    assert sum(bytes_compared) == size


def test_threads_that_read_a_file_at_the_same_time_compare_it_once(snapshot, bytes_compared):
    file = open_file_of(snapshot)
    ready = threading.Barrier(4)

    def read(number):
        ready.wait()
        return file.read([number], ["total"])[0].num_rows

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))
    assert sum(bytes_compared) == path_of(snapshot).stat().st_size


def test_a_flipped_bit_anywhere_is_found_by_reading_any_row(snapshot):
    path = path_of(snapshot)
    data = path.read_bytes()
    copy = path.with_name("copy")

    for place in range(0, len(data), len(data) // 20):
        damaged = bytearray(data)
        damaged[place] ^= 16
        # Another file: the one that was mapped before may still be.
        copy.write_bytes(bytes(damaged))
        copy.replace(path)
        forget_open_files()
        for read in (
            lambda: snapshot.lookup("op.total", KEYS.slice(0, 1)),
            lambda: snapshot.to_arrow("op.total", columns=["total"]),
            lambda: snapshot.restore("op", parallelism=100, subtask=7).state(TOTAL),
        ):
            with pytest.raises(arrowstate.CorruptDataError, match=path.name):
                read()


def test_a_local_store_is_read_without_copies(snapshot, temporary):
    temporary.rmdir()

    assert snapshot.to_arrow("op.total").num_rows == 100_000
    assert snapshot.restore("op").state(TOTAL).get_batch(KEYS.slice(7, 1)).to_pylist() == [7]


def test_a_file_that_goes_while_it_is_open_is_missing(snapshot):
    assert snapshot.lookup("op.total", KEYS.slice(0, 1)).num_rows == 1
    path_of(snapshot).unlink()

    with pytest.raises(arrowstate.CorruptDataError, match="the file is missing"):
        snapshot.to_arrow("op.total")


def test_a_storage_without_local_files_is_read_through_one_copy_that_goes_with_the_open_file(counts, temporary):
    store = arrowstate.open_store("memory://lance-checkpoints", create=True)
    snapshot = commit(store, {"op": [counts]}, format="lance")
    assert list(temporary.iterdir()) == []

    results = [snapshot.sql("select sum(total), count(*) from op.total").fetchall() for _ in range(3)]

    assert results == [[(49_950_000, 100_000)]] * 3
    assert len(list(temporary.rglob("*.lance"))) == 1
    forget_open_files()
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_small_runs_are_inline_and_read_through_temporary_files(store, temporary):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(TOTAL).add_batch([1, 2], [10, 20])
    snapshot = commit(store, {"op": [backend]}, format="lance")

    assert snapshot.restore("op").state(TOTAL).get_batch([1, 2]).to_pylist() == [10, 20]
    assert not list(Path(store.url).rglob("*.lance"))
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_without_room_for_temporary_files_nothing_is_committed(store, files, counts, temporary):
    with store.writer() as writer:
        before = files.all()
        temporary.rmdir()
        with pytest.raises(arrowstate.StorageError, match="a temporary file for data/op/total"):
            writer.checkpoint({"op": [counts]}, format="lance")
        assert files.all() == before
        temporary.mkdir()

        snapshot = writer.checkpoint({"op": [counts]}, format="lance")

    assert snapshot.to_arrow("op.total").num_rows == 100_000


def test_without_the_library_nothing_is_committed_or_called_damaged(store, files, counts, snapshot, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "lance"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lance", None)
    counts.state(TOTAL).add_batch(KEYS.slice(0, 5000), KEYS.slice(0, 5000))

    with store.writer() as writer:
        before = files.all()
        with pytest.raises(arrowstate.MissingDependencyError, match=r"pip install 'arrowstate\[lance\]'"):
            writer.checkpoint({"op": [counts]}, format="lance")
        assert files.all() == before
        with pytest.raises(arrowstate.MissingDependencyError, match=r"pip install 'arrowstate\[lance\]'"):
            snapshot.to_arrow("op.total")
        with pytest.raises(arrowstate.MissingDependencyError):
            snapshot.verify(deep=True)
        second = writer.checkpoint({"op": [counts]}, format="arrow")

    assert snapshot.verify(deep=False).ok
    monkeypatch.undo()
    assert second.verify(deep=True).ok


def test_a_copied_store_is_read_at_its_new_place(snapshot, tmp_path):
    shutil.copytree(snapshot.storage.url, tmp_path / "a b%20#c")
    shutil.rmtree(snapshot.storage.url)

    copy = arrowstate.open_store(tmp_path / "a b%20#c").latest()

    assert copy.to_arrow("op.total").num_rows == 100_000
    assert copy.verify(deep=True).ok


def test_a_collection_takes_lance_files_that_no_kept_checkpoint_needs(store, counts):
    def lance_files():
        return {path for path in store.storage.list("data/") if path.endswith(".lance")}

    with store.writer() as writer:
        writer.checkpoint({"op": [counts]}, format="lance")
        old = lance_files()
        fresh = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
        fresh.state(TOTAL).add_batch(KEYS, KEYS)
        newest = writer.checkpoint({"op": [fresh]}, format="lance")
    kept = lance_files() - old

    done = store.collect(arrowstate.RetentionPolicy(count=1)).apply()

    assert len(old) == len(kept) == 1
    assert old <= set(done.deleted)
    assert lance_files() == kept
    assert newest.verify(deep=True).ok
