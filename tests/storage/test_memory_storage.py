"""A storage in memory: what is kept twice in the memory of a job has a largest size."""

import pickle
import sys
import tracemalloc
import uuid

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.storage import clear_memory_storage, open_storage, options_beside
from stores import TOTAL, commit

OFFSETS = arrowstate.OperatorListStateDescriptor("offsets", pa.string())
FIVE_MIB = 5_242_880
KEYS = pa.array(range(400_000))
VALUES = pa.array(np.random.default_rng(1).integers(-(2**62), 2**62, len(KEYS)))


@pytest.fixture
def url():
    url = f"memory://{uuid.uuid4().hex}"
    yield url
    clear_memory_storage(url)


@pytest.fixture
def large():
    """A backend whose run is too large for memory in any format."""
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(TOTAL).add_batch(KEYS, VALUES)
    return backend


@pytest.fixture
def small():
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(TOTAL).add_batch(KEYS[:5000], KEYS[:5000])
    return backend


def write(storage, path, *pieces):
    with storage.write_file(path) as file:
        for piece in pieces:
            file.write(piece)


def test_a_file_of_five_mebibytes_is_taken_and_one_with_a_byte_more_is_refused_with_both_numbers(url):
    storage = open_storage(url, create=True)
    body = b"x" * FIVE_MIB
    write(storage, "most", body[:1000], body[1000:])

    with pytest.raises(
        arrowstate.FileTooLargeError, match=r"5242881 bytes .* 5242880.*a folder or a bucket.*max_file_bytes"
    ) as e:
        write(storage, "more", body[:1000], body[1000:], b"x")

    assert (e.value.path, e.value.file_bytes, e.value.max_file_bytes) == ("more", FIVE_MIB + 1, FIVE_MIB)
    assert storage.list("") == ["most"]
    assert storage.read("most") == body
    write(storage, "more", body)


@pytest.mark.parametrize(("limit", "size"), [(3, 3), (None, FIVE_MIB + 1)])
def test_the_largest_file_is_an_option(url, limit, size):
    storage = open_storage(url, create=True, storage_options={"max_file_bytes": limit})

    write(storage, "a", b"x" * size)
    if limit is not None:
        with pytest.raises(arrowstate.FileTooLargeError):
            write(storage, "b", b"x" * (limit + 1))

    assert storage.list("") == ["a"]


def test_a_file_that_is_refused_takes_no_more_memory_than_the_largest_one(url):
    storage = open_storage(url, create=True, storage_options={"max_file_bytes": 1_000_000})
    piece = b"x" * 100_000

    tracemalloc.start()
    try:
        with pytest.raises(arrowstate.FileTooLargeError, match="100000000 bytes"):
            write(storage, "a", *[piece] * 1000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 3_000_000


@pytest.mark.parametrize("value", [0, -1, 1.5, "5", True])
def test_a_limit_that_is_no_number_of_bytes_is_refused(url, value):
    with pytest.raises(arrowstate.InvalidInputError, match="max_file_bytes must be a number of bytes"):
        open_storage(url, create=True, storage_options={"max_file_bytes": value})

    assert open_storage(url, create=True).list("") == []


def test_a_limit_goes_with_the_storage_and_not_with_the_url(url):
    storage = open_storage(url, create=True, storage_options={"max_file_bytes": None})
    write(storage, "a", b"x" * (FIVE_MIB + 1))

    pickled = pickle.loads(pickle.dumps(storage))
    reopened = open_storage(url)

    assert (pickled.url, pickled.options) == (url, {"max_file_bytes": None})
    assert options_beside(storage, f"{url}/beside") == {"max_file_bytes": None}
    assert options_beside(storage, "s3://bucket/x") is None
    assert reopened.options == {"max_file_bytes": FIVE_MIB}
    assert len(reopened.read("a")) == FIVE_MIB + 1
    write(pickled, "b", b"x" * (FIVE_MIB + 1))
    with pytest.raises(arrowstate.FileTooLargeError):
        write(reopened, "c", b"x" * (FIVE_MIB + 1))


def test_a_state_too_large_for_memory_fails_its_checkpoint_and_nothing_else(url, large, small):
    store = arrowstate.open_store(url, create=True)
    with store.writer() as writer:
        before = store.storage.list("")

        with pytest.raises(
            arrowstate.StorageFullError, match=r"data/large/total/.* it has \d{7,} bytes .* may have 5242880"
        ):
            writer.checkpoint({"small": [small], "large": [large]})

        assert store.storage.list("") == before
        assert large.state(TOTAL).get_batch(KEYS).equals(VALUES)
        assert (
            writer.checkpoint({"small": [small]})
            .restore("small")
            .state(TOTAL)
            .get_batch(KEYS[:5000])
            .equals(KEYS[:5000])
        )


def test_an_operator_state_too_large_for_memory_fails_its_checkpoint_and_nothing_else(url, small):
    backend = arrowstate.OperatorStateBackend()
    backend.state(OFFSETS).update(["x" * 1000] * 6000)
    store = arrowstate.open_store(url, create=True)
    with store.writer() as writer:
        before = store.storage.list("")

        with pytest.raises(arrowstate.FileTooLargeError, match="data/source/offsets/"):
            writer.checkpoint({"small": [small]}, operator_states={"source": [backend]})

        assert store.storage.list("") == before
        assert backend.state(OFFSETS).get() == ["x" * 1000] * 6000


def test_a_store_in_memory_without_a_limit_takes_any_state_and_its_savepoint(url, large):
    store = arrowstate.open_store(url, create=True, storage_options={"max_file_bytes": None})
    commit(store, {"op": [large]})
    savepoint = store.savepoint("copy")

    (file,) = (path for path in savepoint.storage.list("data/") if path.endswith(".parquet"))
    assert len(savepoint.storage.read(file)) > FIVE_MIB
    for snapshot in (arrowstate.open_store(url).latest(), savepoint):
        assert snapshot.restore("op").state(TOTAL).get_batch(KEYS).equals(VALUES)


def calls_of(function) -> int:
    """How many calls a function makes, those of Python itself and steps of generators among them."""
    events = []
    sys.setprofile(lambda _, event, __: events.append(event))
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(events)


def test_listing_a_store_looks_at_no_other_store(url):
    storage, other = open_storage(f"{url}/one", create=True), open_storage(f"{url}/other", create=True)
    paths = ["a", "a-b", "a/b", "a/c/d", "b/e"]
    for path in paths:
        write(storage, path, b"x")
    assert storage.list("") == sorted(paths)
    alone = calls_of(lambda: storage.list(""))

    for number in range(1_000):
        write(other, f"{number % 7}/{number}", b"x")

    assert calls_of(lambda: storage.list("")) == alone
    assert [storage.list(prefix) for prefix in ("a", "a/", "a/c", "c")] == [paths[:4], paths[2:4], ["a/c/d"], []]
    assert len(open_storage(url).list("other/")) == 1_000


def test_a_folder_in_memory_goes_with_its_last_file(url):
    storage = open_storage(f"{url}/store", create=True)
    write(storage, "a/b/c", b"x")
    write(storage, "a/d", b"x")

    storage.delete("a/b/c")
    storage.delete("a/b/c")
    assert storage.list("") == ["a/d"]

    clear_memory_storage(f"{url}/store")
    with pytest.raises(arrowstate.StoreNotFoundError):
        open_storage(f"{url}/store")
