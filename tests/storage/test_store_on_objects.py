"""The life of a store in a bucket: checkpoints, restore at another parallelism, SQL, savepoints, fencing, faults."""

import gc
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import uuid

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.files.open_files import forget_open_files
from faulty_proxy import CUT_ANSWER, CUT_UPLOAD, DROP, FORBID, LOSE, REFUSE, faulty_proxy
from object_servers import S3_OPTIONS, azure_options, google_options
from stores import backend_of, commit

KEY = pa.schema([("user", pa.int64())])
CLICKS = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
ROWS = 100_000


@pytest.fixture(params=["s3", "gs", "abfs"])
def place(request, tmp_path):
    """An empty place in each kind of object storage, and its storage options."""
    if request.param == "s3":
        options = {**S3_OPTIONS, "endpoint_url": request.getfixturevalue("s3_endpoint")}
    elif request.param == "gs":
        options = google_options(request.getfixturevalue("google_endpoint"))
    else:
        options = azure_options(request.getfixturevalue("azure_endpoint"))
    return f"{request.param}://bucket/{uuid.uuid4().hex}/clicks", {**options, "cache_dir": str(tmp_path / "cache")}


def elsewhere(options, tmp_path, name="elsewhere"):
    """The options of a host that has no local copies yet; this process forgets what it has open."""
    forget_open_files()
    return {**options, "cache_dir": str(tmp_path / name)}


def test_what_is_deleted_leaves_the_local_copies_too(place, tmp_path):
    url, options = place
    storage = arrowstate.open_store(url, create=True, storage_options=options).storage
    for name in ("a", "b", "c", "d"):
        with storage.write_file(f"data/{name}") as file:
            file.write(f"ann {name}".encode())
        storage.open_buffer(f"data/{name}")

    storage.delete("data/a")
    storage.delete_many(["data/b", "data/c"])

    left = [path.read_bytes()[:5] for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")]
    assert left == [b"ann d"]


def checkpoint(writer, backend, step):
    users = np.arange(ROWS if step == 0 else 1000, dtype=np.int64) * (step + 1)
    backend.state(CLICKS).add_batch(pa.array(users), pa.array(np.full(users.size, step + 1)))
    return writer.checkpoint({"counter": [backend]}, properties={"step": step})


def expected(steps):
    clicks = {}
    for step in range(steps):
        for user in np.arange(ROWS if step == 0 else 1000, dtype=np.int64) * (step + 1):
            clicks[int(user)] = clicks.get(int(user), 0) + step + 1
    return clicks


def clicks_in(snapshot):
    table = snapshot.to_arrow("counter.clicks")
    return dict(zip(table["user"].to_pylist(), table["clicks"].to_pylist(), strict=True))


def test_a_store_lives_in_a_bucket(place, tmp_path):
    url, options = place
    with pytest.raises(arrowstate.StoreNotFoundError):
        arrowstate.open_store(url, storage_options=options)
    store = arrowstate.open_store(url, create=True, storage_options=options)
    backend = backend_of(KEY)

    with store.writer() as writer:
        for step in range(3):
            checkpoint(writer, backend, step)
        files = len(store.storage.list("data/"))
        checkpoint(writer, backend, 3)

    # Another host sees everything; each checkpoint is still what it was; only the changes of the last were written.
    other = arrowstate.open_store(url, storage_options=elsewhere(options, tmp_path))
    assert [snapshot.properties["step"] for snapshot in other.checkpoints()] == [0, 1, 2, 3]
    assert clicks_in(other.latest()) == expected(4)
    assert clicks_in(other.checkpoints()[1]) == expected(2)
    assert len(other.storage.list("data/")) - files <= 3
    total = other.sql("select count(*), sum(clicks) from counter.clicks").fetchall()
    assert total == [(len(expected(4)), sum(expected(4).values()))]


def test_a_restore_at_another_parallelism_goes_on_in_the_bucket(place, tmp_path):
    url, options = place
    with arrowstate.open_store(url, create=True, storage_options=options).writer() as writer:
        checkpoint(writer, backend_of(KEY), 0)

    store = arrowstate.open_store(url, storage_options=elsewhere(options, tmp_path))
    parts = [store.latest().restore("counter", parallelism=3, subtask=subtask) for subtask in range(3)]
    for part in parts:
        part.state(CLICKS)
    commit(store, {"counter": parts})

    again = arrowstate.open_store(url, storage_options=elsewhere(options, tmp_path, "third"))
    assert clicks_in(again.latest()) == expected(1)
    assert len(again.latest().entry.operators[0].subtasks) == 3


def test_lance_files_in_a_bucket_are_read_through_copies_that_do_not_stay(s3_endpoint, tmp_path, monkeypatch):
    options = {**S3_OPTIONS, "endpoint_url": s3_endpoint}
    url = f"s3://bucket/{uuid.uuid4().hex}"
    with arrowstate.open_store(url, create=True, storage_options=options).writer() as writer:
        backend = backend_of(KEY)
        for step in range(2):
            users = pa.array(np.arange(ROWS, dtype=np.int64) * (step + 1))
            backend.state(CLICKS).add_batch(users, pa.array(np.full(ROWS, step + 1)))
            writer.checkpoint({"counter": [backend]}, format="lance")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    store = arrowstate.open_store(url, storage_options=elsewhere(options, tmp_path))
    parts = [store.latest().restore("counter", parallelism=2, subtask=subtask) for subtask in range(2)]

    assert sum(len(part.state(CLICKS)) for part in parts) == len(set(range(ROWS)) | set(range(0, 2 * ROWS, 2)))
    assert store.sql("select sum(clicks) from counter.clicks").fetchall() == [(3 * ROWS,)]
    assert store.latest().verify(deep=True).ok
    assert len([path for path in store.storage.list("data/") if path.endswith(".lance")]) == 2
    forget_open_files()
    gc.collect()
    assert [path for path in tmp_path.iterdir() if path.name.startswith("arrowstate-files-")] == []


def test_savepoints_go_into_the_bucket_beside_it_and_to_the_disk(place, tmp_path):
    url, options = place
    store = arrowstate.open_store(url, create=True, storage_options=options)
    with store.writer() as writer:
        checkpoint(writer, backend_of(KEY), 0)

    named = store.savepoint("before-upgrade")
    beside = store.savepoint(url.rpartition("/")[0] + "/copy")
    local = store.savepoint(tmp_path / "copy")

    assert named.storage.url == f"{url}/savepoints/before-upgrade"
    shutil.move(tmp_path / "copy", tmp_path / "moved")
    forget_open_files()
    for place_of, given in ((named.storage.url, options), (beside.storage.url, options), (tmp_path / "moved", None)):
        assert clicks_in(arrowstate.open_store(place_of, storage_options=given).latest()) == expected(1)
    assert local.storage.url == str(tmp_path / "copy")


def test_a_writer_that_was_fenced_commits_nothing_more(place):
    url, options = place
    store = arrowstate.open_store(url, create=True, storage_options=options)
    first, backend = store.writer(), backend_of(KEY)
    checkpoint(first, backend, 0)

    second = arrowstate.open_store(url, storage_options=options).writer()
    with pytest.raises(arrowstate.FencedError) as caught:
        checkpoint(first, backend, 1)

    assert (caught.value.writer_epoch, caught.value.current_epoch) == (1, 2)
    assert clicks_in(arrowstate.open_store(url, storage_options=options).latest()) == expected(1)
    restored = store.latest().restore("counter")
    checkpoint(second, restored, 1)
    assert clicks_in(store.latest()) == expected(2)


def test_a_snapshot_is_read_where_it_is_unpickled(place, tmp_path):
    url, options = place
    store = arrowstate.open_store(url, create=True, storage_options=options)
    with store.writer() as writer:
        snapshot = checkpoint(writer, backend_of(KEY), 0)

    storage = pickle.loads(pickle.dumps(snapshot.storage))

    assert storage.read("arrowstate.json") == store.storage.read("arrowstate.json")


def test_a_file_that_is_gone_is_told_even_if_there_is_a_copy_of_it(place):
    url, options = place
    store = arrowstate.open_store(url, create=True, storage_options=options)
    with store.writer() as writer:
        checkpoint(writer, backend_of(KEY), 0)
    [run] = [path for path in store.storage.list("data/") if path.endswith(".arrow")]

    store.storage.delete(run)
    forget_open_files()

    with pytest.raises(arrowstate.CorruptDataError) as caught:
        clicks_in(store.latest())
    assert caught.value.path == run


@pytest.mark.turns(3)
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_a_checkpoint_whose_files_cannot_all_be_written_leaves_none(s3_endpoint, tmp_path, skip):
    with faulty_proxy(s3_endpoint) as proxy:
        options = {**S3_OPTIONS, "endpoint_url": proxy.endpoint, "cache_dir": str(tmp_path / "cache")}
        store = arrowstate.open_store(f"s3://bucket/{uuid.uuid4().hex}", create=True, storage_options=options)
        backend = backend_of(KEY)
        for size in (400_000, 100_000, 30_000):
            users = np.random.default_rng(size).integers(0, 1 << 40, size)
            backend.state(CLICKS).add_batch(pa.array(users), pa.array(np.ones(size, np.int64)))
        writer = store.writer()
        proxy.fail(FORBID, "PUT", "/data/", skip=skip)

        with pytest.raises(arrowstate.StorageError, match="Access Denied"):
            writer.checkpoint({"counter": [backend]})
        left = store.storage.list("data/")
        again = writer.checkpoint({"counter": [backend]})

        assert left == []
        assert len(store.storage.list("data/")) >= 4
        assert clicks_in(again) == clicks_in(store.latest())


def test_the_command_line_takes_credentials_and_endpoint_from_the_environment(s3_endpoint, tmp_path):
    url = f"s3://bucket/{uuid.uuid4().hex}"
    options = {**S3_OPTIONS, "endpoint_url": s3_endpoint, "cache_dir": str(tmp_path / "cache")}
    with arrowstate.open_store(url, create=True, storage_options=options).writer() as writer:
        checkpoint(writer, backend_of(KEY), 0)
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": S3_OPTIONS["key"],
        "AWS_SECRET_ACCESS_KEY": S3_OPTIONS["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_endpoint,
        "XDG_CACHE_HOME": str(tmp_path / "xdg"),
    }

    query = "select sum(clicks) as total from counter.clicks"
    command = [sys.executable, "-m", "arrowstate", "sql", url, query, "--json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert int(json.loads(ran.stdout)[0]["total"]) == ROWS
    assert [path.name for path in (tmp_path / "xdg").iterdir()] == ["arrowstate"]


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize("every", [3, 7])
def test_a_store_lives_through_a_network_that_fails_all_the_time(s3_endpoint, tmp_path, every):
    """Every so many requests one fails, each time in another way, through the whole life of a store."""
    with faulty_proxy(s3_endpoint) as proxy:
        options = {**S3_OPTIONS, "endpoint_url": proxy.endpoint, "cache_dir": str(tmp_path / "cache")}
        url = f"s3://bucket/{uuid.uuid4().hex}"
        kinds = [REFUSE, DROP, LOSE, CUT_UPLOAD, CUT_ANSWER]
        count = iter(range(1_000_000))
        take = proxy.take

        def take_turns(method, path):
            turn = next(count)
            take(method, path)
            return kinds[turn // every % len(kinds)] if turn % every == 0 else None

        proxy.take = take_turns
        store = arrowstate.open_store(url, create=True, storage_options=options)
        backend = backend_of(KEY)
        with store.writer() as writer:
            for step in range(5):
                checkpoint(writer, backend, step)
        savepoint = store.savepoint("copy")
        forget_open_files()
        cold = arrowstate.open_store(url, storage_options=elsewhere(options, tmp_path))

        found = clicks_in(cold.latest()), clicks_in(savepoint)

        numbers = [entry.entry.number for entry in cold.checkpoints()]
        assert found == (expected(5), expected(5))
        assert numbers == list(range(numbers[0], numbers[0] + 5))
        assert next(count) > 20 * every


def test_a_savepoint_goes_from_one_bucket_store_into_another_and_is_disposed_of(place, tmp_path):
    url, options = place
    store = arrowstate.open_store(url, create=True, storage_options=options)
    backend = backend_of(KEY)
    with store.writer() as writer:
        checkpoint(writer, backend, 0)
        checkpoint(writer, backend, 1)
    savepoint = store.savepoint(f"{url}-saved", format="arrow")
    other = arrowstate.open_store(f"{url}-other", create=True, storage_options=elsewhere(options, tmp_path))

    imported = other.import_savepoint(savepoint.storage.url, claim_mode=arrowstate.ClaimMode.CLAIM)

    assert savepoint.storage.list("") == []
    assert clicks_in(imported) == expected(2)
    assert other.verify(deep=True).problems == []
    again = arrowstate.open_store(f"{url}-other", storage_options=elsewhere(options, tmp_path, "third"))
    assert sum(len(again.latest().restore("counter", parallelism=2, subtask=i).state(CLICKS)) for i in range(2)) == len(
        expected(2)
    )
