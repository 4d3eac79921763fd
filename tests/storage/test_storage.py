"""The storage contract, on every storage."""

from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from arrowstate.errors import CorruptDataError, StorageError
from arrowstate.storage import ObjectStorage, Outcome, Storage, clear_memory_storage, open_storage
from arrowstate.storage.base import listed_pages
from arrowstate.storage.parallel import delete_all
from arrowstate.testing import StorageSuite
from stores import write


class TestEveryStorage(StorageSuite):
    pass


def test_the_url_opens_the_same_files_again(storage, beside):
    write(storage, "a", b"abc")

    assert beside(storage, storage.url).read("a") == b"abc"


def test_a_folder_of_a_storage_is_a_storage(storage, beside):
    inner = beside(storage, f"{storage.url}/savepoints/first")
    write(inner, "a", b"abc")

    assert storage.list("savepoints/") == ["savepoints/first/a"]
    storage.delete("savepoints/first/a")
    assert inner.list("") == []


def test_pages_of_a_listing_are_what_a_listing_is(storage):
    for path in ("data/a/b", "data/a/c", "data/d", "log/1"):
        write(storage, path, b"x")

    for prefix in ("", "data/", "data/a/", "data/a/b", "lo", "nothing/"):
        pages = listed_pages(storage, prefix)
        assert sorted(path for page in pages for path in page) == storage.list(prefix)


def test_what_is_deleted_together_is_gone_and_the_rest_is_there(storage):
    for name in "abc":
        write(storage, f"data/{name}", b"x")

    delete_all(storage, ["data/a", "data/nothing", "data/c"])

    assert storage.list("") == ["data/b"]


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
