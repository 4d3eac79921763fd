"""The storage contract, on every storage."""

from __future__ import annotations

import pickle
import threading
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from arrowstate.errors import CorruptDataError, InvalidInputError, MissingFileError, StorageError
from arrowstate.storage import ObjectStorage, Outcome, Storage, clear_memory_storage, open_storage


def write(storage: Storage, path: str, body: bytes) -> None:
    with storage.write_file(path) as file:
        file.write(body)


ESCAPES = ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\\b", "a\0b", ".hidden", "a/.tmp/b"]

VERBS = {
    "read": lambda storage, path: storage.read(path),
    "open_buffer": lambda storage, path: storage.open_buffer(path),
    "put_if_absent": lambda storage, path: storage.put_if_absent(path, b"id", "id"),
    "write_file": lambda storage, path: write(storage, path, b""),
    "put_hint": lambda storage, path: storage.put_hint(path, b""),
    "exists": lambda storage, path: storage.exists(path),
    "delete": lambda storage, path: storage.delete(path),
}


def test_every_storage_keeps_the_contract(storage):
    assert isinstance(storage, Storage)


def test_a_written_file_reads_back_whole_and_in_ranges(storage):
    write(storage, "data/a.bin", b"0123456789")

    assert storage.read("data/a.bin") == b"0123456789"
    assert storage.read("data/a.bin", 3) == b"3456789"
    assert storage.read("data/a.bin", 3, 4) == b"3456"
    assert storage.read("data/a.bin", 8, 100) == b"89"
    assert storage.read("data/a.bin", 100, 1) == b""
    assert storage.read("data/a.bin", 4, 0) == b""


@pytest.mark.parametrize(("start", "length"), [(-1, None), (0, -1)])
def test_a_negative_range_is_refused(storage, start, length):
    write(storage, "a", b"0123")

    with pytest.raises(InvalidInputError, match="negative"):
        storage.read("a", start, length)


@pytest.mark.parametrize("body", [b"", b"abc"], ids=["empty", "some"])
def test_a_buffer_is_the_whole_file_and_is_not_copied(storage, body):
    write(storage, "a", body)
    before = pa.total_allocated_bytes()

    buffer = storage.open_buffer("a")

    assert buffer.to_pybytes() == body
    assert not buffer.is_mutable
    assert pa.total_allocated_bytes() == before


def test_a_buffer_outlives_its_file(storage):
    write(storage, "a", b"abc" * 10_000)
    buffer = storage.open_buffer("a")

    storage.delete("a")

    assert not storage.exists("a")
    assert buffer.to_pybytes() == b"abc" * 10_000


@pytest.mark.parametrize("verb", ["read", "open_buffer"])
@pytest.mark.parametrize("path", ["missing", "folder/missing", "folder", "folder/file/below"])
def test_what_is_not_a_file_is_missing(storage, verb, path):
    write(storage, "folder/file", b"")

    with pytest.raises(MissingFileError) as caught:
        VERBS[verb](storage, path)

    assert (caught.value.url, caught.value.path) == (storage.url, path)
    assert not storage.exists(path)
    storage.delete(path)
    assert storage.list("") == ["folder/file"]


def test_the_first_put_wins_and_the_second_changes_nothing(storage):
    first = storage.put_if_absent("log/1.json", b'{"commit_id": "one"}', "one")
    second = storage.put_if_absent("log/1.json", b'{"commit_id": "two"}', "two")

    assert (first, second) == (Outcome.WON, Outcome.LOST)
    assert storage.read("log/1.json") == b'{"commit_id": "one"}'


def test_a_put_that_is_retried_finds_that_it_won(storage):
    storage.put_if_absent("log/1.json", b'{"commit_id": "one"}', "one")

    again = storage.put_if_absent("log/1.json", b'{"commit_id": "one"}', "one")

    assert again is Outcome.WON


@pytest.mark.parametrize("commit_id", ["", "another"])
def test_a_commit_whose_id_is_not_in_its_data_is_refused(storage, commit_id):
    with pytest.raises(InvalidInputError, match="commit id"):
        storage.put_if_absent("log/1.json", b'{"commit_id": "one"}', commit_id)

    assert storage.list("") == []


def test_of_many_threads_one_wins(storage):
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


def test_a_file_appears_when_its_block_ends(storage):
    with storage.write_file("data/a.bin") as file:
        file.write(b"abc")
        file.flush()
        during = storage.list(""), storage.exists("data/a.bin")

    assert during == ([], False)
    assert storage.list("") == ["data/a.bin"]


@pytest.mark.parametrize("exception", [RuntimeError, KeyboardInterrupt])
def test_an_exception_in_the_block_leaves_nothing(storage, exception):
    with pytest.raises(exception), storage.write_file("data/a.bin") as file:
        file.write(b"abc")
        raise exception

    assert storage.list("") == []
    assert not storage.exists("data/a.bin")


def test_a_file_that_is_there_is_not_overwritten(storage):
    write(storage, "a", b"first")

    with pytest.raises(StorageError, match="already"):
        write(storage, "a", b"second")

    assert storage.read("a") == b"first"
    assert storage.list("") == ["a"]


def test_a_writer_of_columns_may_close_its_sink(storage):
    table = pa.table({"a": range(1000)})

    with storage.write_file("a.arrow") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with storage.write_file("a.parquet") as file:
        pq.write_table(table, file)
        file.close()

    assert pa.ipc.open_file(storage.open_buffer("a.arrow")).read_all() == table
    assert pq.read_table(pa.BufferReader(storage.open_buffer("a.parquet"))) == table


def test_a_hint_is_replaced(storage):
    storage.put_hint("_latest", b"1")
    storage.put_hint("_latest", b"22")

    assert storage.read("_latest") == b"22"
    assert storage.list("") == ["_latest"]


def test_a_list_has_every_path_with_the_prefix_in_order(storage):
    paths = ["_latest", "data/a/2", "data/a/1", "data/b/1", "database/1", "log/1"]
    for path in paths:
        write(storage, path, b"")

    assert storage.list("") == sorted(paths)
    assert storage.list("data/") == ["data/a/1", "data/a/2", "data/b/1"]
    assert storage.list("data") == ["data/a/1", "data/a/2", "data/b/1", "database/1"]
    assert storage.list("data/a/1") == ["data/a/1"]
    assert storage.list("nothing/") == []
    assert storage.list("data/a/1/") == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_path_that_leaves_the_storage_or_is_reserved_is_refused(storage, verb):
    for path in ESCAPES:
        with pytest.raises(CorruptDataError):
            VERBS[verb](storage, path)

    assert storage.list("") == []


@pytest.mark.parametrize("prefix", ["/", "../", "/etc", "a//", "a/../"])
def test_a_prefix_that_leaves_the_storage_is_refused(storage, prefix):
    with pytest.raises(CorruptDataError):
        storage.list(prefix)


def test_a_storage_pickles_to_the_same_files(storage):
    write(storage, "a", b"abc")

    restored = pickle.loads(pickle.dumps(storage))

    assert restored.url == storage.url
    assert restored.read("a") == b"abc"


def test_the_url_opens_the_same_files_again(storage, beside):
    write(storage, "a", b"abc")

    assert beside(storage, storage.url).read("a") == b"abc"


def test_a_folder_of_a_storage_is_a_storage(storage, beside):
    inner = beside(storage, f"{storage.url}/savepoints/first")
    write(inner, "a", b"abc")

    assert storage.list("savepoints/") == ["savepoints/first/a"]
    storage.delete("savepoints/first/a")
    assert inner.list("") == []


NAMES = st.sampled_from(["a", "b", "f/a", "f/b", "f/g/a"])
BODIES = st.binary(max_size=20)


class StorageModel(RuleBasedStateMachine):
    """Any sequence of calls does what it would do to a dict."""

    storage: Storage

    def __init__(self) -> None:
        super().__init__()
        for path in self.storage.list(""):
            self.storage.delete(path)
        self.model: dict[str, bytes] = {}
        self.commits = 0

    @rule(path=NAMES, body=BODIES)
    def write(self, path, body):
        if path in self.model:
            # A remote storage cannot tell an equal file from its own.
            equal = isinstance(self.storage, ObjectStorage) and self.model[path] == body
            with nullcontext() if equal else pytest.raises(StorageError):
                write(self.storage, path, body)
        else:
            write(self.storage, path, body)
            self.model[path] = body

    @rule(path=NAMES)
    def put(self, path):
        self.commits += 1
        commit_id = f"commit {self.commits:09}."
        outcome = self.storage.put_if_absent(path, commit_id.encode(), commit_id)
        assert (outcome is Outcome.LOST) == (path in self.model)
        self.model.setdefault(path, commit_id.encode())

    @rule(path=NAMES, body=BODIES)
    def hint(self, path, body):
        self.storage.put_hint(path, body)
        self.model[path] = body

    @precondition(lambda self: self.model)
    @rule(path=NAMES)
    def delete(self, path):
        self.storage.delete(path)
        self.model.pop(path, None)

    @rule(prefix=st.sampled_from(["", "a", "f", "f/", "f/g/", "f/g/a"]), start=st.integers(0, 25))
    def look(self, prefix, start):
        assert self.storage.list(prefix) == sorted(path for path in self.model if path.startswith(prefix))
        for path, body in self.model.items():
            assert self.storage.exists(path)
            assert self.storage.read(path, start, 5) == body[start : start + 5]
            assert self.storage.open_buffer(path).to_pybytes() == body


def test_any_sequence_of_calls_does_what_it_would_do_to_a_dict(storage):
    model = type("Model", (StorageModel,), {"storage": storage})
    remote = isinstance(storage, ObjectStorage)
    model.TestCase.settings = settings(
        max_examples=5 if remote else 15, stateful_step_count=15 if remote else 25, deadline=None
    )

    case = model.TestCase()

    case.runTest()


@given(text=st.text(max_size=12))
def test_a_path_is_refused_or_names_a_file_inside(text):
    clear_memory_storage("memory://paths")
    storage = open_storage("memory://paths", create=True)

    try:
        write(storage, text, b"abc")
    except CorruptDataError:
        assert storage.list("") == []
    else:
        assert storage.list("") == [text]
