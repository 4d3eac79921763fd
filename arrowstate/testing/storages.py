"""The contract of a storage: what a store needs of the place it is kept in, as a suite for storages of one's own."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arrowstate.errors import CorruptDataError, InvalidInputError, MissingFileError, StorageError
from arrowstate.storage import Outcome, Storage

_ESCAPES = ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\\b", "a\0b", ".hidden", "a/.tmp/b"]

_VERBS: dict[str, Callable[[Storage, str], Any]] = {
    "read": lambda storage, path: storage.read(path),
    "open_buffer": lambda storage, path: storage.open_buffer(path),
    "put_if_absent": lambda storage, path: storage.put_if_absent(path, b"id", "id"),
    "write_file": lambda storage, path: _write(storage, path, b""),
    "put_hint": lambda storage, path: storage.put_hint(path, b""),
    "exists": lambda storage, path: storage.exists(path),
    "delete": lambda storage, path: storage.delete(path),
}


def _write(storage: Storage, path: str, body: bytes) -> None:
    with storage.write_file(path) as file:
        file.write(body)


class StorageSuite:
    """What every storage keeps; needs a fixture `storage` that gives an empty one.

    The paths that it writes to stay in the storage. Commits are told apart by an id that their bytes contain, as in a
    log of a store.

    Examples
    --------
    >>> import tempfile
    >>> from arrowstate.storage import open_storage
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     StorageSuite().test_a_hint_is_replaced(open_storage(folder, create=True))
    """

    def test_it_has_every_verb(self, storage: Storage) -> None:
        assert isinstance(storage, Storage)

    def test_a_written_file_reads_back_whole_and_in_ranges(self, storage: Storage) -> None:
        _write(storage, "data/a.bin", b"0123456789")

        assert storage.read("data/a.bin") == b"0123456789"
        assert storage.read("data/a.bin", 3) == b"3456789"
        assert storage.read("data/a.bin", 3, 4) == b"3456"
        assert storage.read("data/a.bin", 8, 100) == b"89"
        assert storage.read("data/a.bin", 100, 1) == b""
        assert storage.read("data/a.bin", 4, 0) == b""

    @pytest.mark.parametrize(("start", "length"), [(-1, None), (0, -1)])
    def test_a_negative_range_is_refused(self, storage: Storage, start: int, length: int | None) -> None:
        _write(storage, "a", b"0123")

        with pytest.raises(InvalidInputError, match="negative"):
            storage.read("a", start, length)

    @pytest.mark.parametrize("body", [b"", b"abc"], ids=["empty", "some"])
    def test_a_buffer_is_the_whole_file_and_is_not_copied(self, storage: Storage, body: bytes) -> None:
        _write(storage, "a", body)
        before = pa.total_allocated_bytes()

        buffer = storage.open_buffer("a")

        assert buffer.to_pybytes() == body
        assert not buffer.is_mutable
        assert pa.total_allocated_bytes() == before

    def test_a_buffer_outlives_its_file(self, storage: Storage) -> None:
        _write(storage, "a", b"abc" * 10_000)
        buffer = storage.open_buffer("a")

        storage.delete("a")

        assert not storage.exists("a")
        assert buffer.to_pybytes() == b"abc" * 10_000

    @pytest.mark.parametrize("verb", ["read", "open_buffer"])
    @pytest.mark.parametrize("path", ["missing", "folder/missing", "folder", "folder/file/below"])
    def test_what_is_not_a_file_is_missing(self, storage: Storage, verb: str, path: str) -> None:
        _write(storage, "folder/file", b"")

        with pytest.raises(MissingFileError) as caught:
            _VERBS[verb](storage, path)

        assert (caught.value.url, caught.value.path) == (storage.url, path)
        assert not storage.exists(path)
        storage.delete(path)
        assert storage.list("") == ["folder/file"]

    def test_the_first_put_wins_and_the_second_changes_nothing(self, storage: Storage) -> None:
        first = storage.put_if_absent("log/1.json", b'{"commit_id": "one"}', "one")
        second = storage.put_if_absent("log/1.json", b'{"commit_id": "two"}', "two")

        assert (first, second) == (Outcome.WON, Outcome.LOST)
        assert storage.read("log/1.json") == b'{"commit_id": "one"}'

    def test_a_put_that_is_retried_finds_that_it_won(self, storage: Storage) -> None:
        storage.put_if_absent("log/1.json", b'{"commit_id": "one"}', "one")

        again = storage.put_if_absent("log/1.json", b'{"commit_id": "one"}', "one")

        assert again is Outcome.WON

    @pytest.mark.parametrize("commit_id", ["", "another"])
    def test_a_commit_whose_id_is_not_in_its_data_is_refused(self, storage: Storage, commit_id: str) -> None:
        with pytest.raises(InvalidInputError, match="commit id"):
            storage.put_if_absent("log/1.json", b'{"commit_id": "one"}', commit_id)

        assert storage.list("") == []

    def test_of_many_threads_one_wins(self, storage: Storage) -> None:
        racers = 16
        start = threading.Barrier(racers)
        outcomes: list[tuple[str, Outcome]] = []

        def race(name: str) -> None:
            start.wait()
            outcomes.append((name, storage.put_if_absent("log/1.json", name.encode(), name)))

        threads = [threading.Thread(target=race, args=(f"racer-{number:02}",)) for number in range(racers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        winners = [name for name, outcome in outcomes if outcome is Outcome.WON]
        assert len(outcomes) == racers
        assert len(winners) == 1
        assert storage.read("log/1.json") == winners[0].encode()

    def test_a_file_appears_when_its_block_ends(self, storage: Storage) -> None:
        with storage.write_file("data/a.bin") as file:
            file.write(b"abc")
            file.flush()
            during = storage.list(""), storage.exists("data/a.bin")

        assert during == ([], False)
        assert storage.list("") == ["data/a.bin"]

    @pytest.mark.parametrize("exception", [RuntimeError, KeyboardInterrupt])
    def test_an_exception_in_the_block_leaves_nothing(self, storage: Storage, exception: type[BaseException]) -> None:
        with pytest.raises(exception), storage.write_file("data/a.bin") as file:
            file.write(b"abc")
            raise exception

        assert storage.list("") == []
        assert not storage.exists("data/a.bin")

    def test_a_file_that_is_there_is_not_overwritten(self, storage: Storage) -> None:
        _write(storage, "a", b"first")

        with pytest.raises(StorageError, match="already"):
            _write(storage, "a", b"second")

        assert storage.read("a") == b"first"
        assert storage.list("") == ["a"]

    def test_a_writer_of_columns_may_close_its_sink(self, storage: Storage) -> None:
        table = pa.table({"a": range(1000)})

        with storage.write_file("a.arrow") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        with storage.write_file("a.parquet") as file:
            pq.write_table(table, file)
            file.close()

        assert pa.ipc.open_file(storage.open_buffer("a.arrow")).read_all() == table
        assert pq.read_table(pa.BufferReader(storage.open_buffer("a.parquet"))) == table

    def test_a_hint_is_replaced(self, storage: Storage) -> None:
        storage.put_hint("_latest", b"1")
        storage.put_hint("_latest", b"22")

        assert storage.read("_latest") == b"22"
        assert storage.list("") == ["_latest"]

    def test_a_list_has_every_path_with_the_prefix_in_order(self, storage: Storage) -> None:
        paths = ["_latest", "data/a/2", "data/a/1", "data/b/1", "database/1", "log/1"]
        for path in paths:
            _write(storage, path, b"")

        assert storage.list("") == sorted(paths)
        assert storage.list("data/") == ["data/a/1", "data/a/2", "data/b/1"]
        assert storage.list("data") == ["data/a/1", "data/a/2", "data/b/1", "database/1"]
        assert storage.list("data/a/1") == ["data/a/1"]
        assert storage.list("nothing/") == []
        assert storage.list("data/a/1/") == []

    @pytest.mark.parametrize("verb", _VERBS)
    def test_a_path_that_leaves_the_storage_or_is_reserved_is_refused(self, storage: Storage, verb: str) -> None:
        for path in _ESCAPES:
            with pytest.raises(CorruptDataError):
                _VERBS[verb](storage, path)

        assert storage.list("") == []

    @pytest.mark.parametrize("prefix", ["/", "../", "/etc", "a//", "a/../"])
    def test_a_prefix_that_leaves_the_storage_is_refused(self, storage: Storage, prefix: str) -> None:
        with pytest.raises(CorruptDataError):
            storage.list(prefix)

    def test_a_storage_pickles_to_the_same_files(self, storage: Storage) -> None:
        _write(storage, "a", b"abc")

        restored = pickle.loads(pickle.dumps(storage))  # noqa: S301

        assert restored.url == storage.url
        assert restored.read("a") == b"abc"
