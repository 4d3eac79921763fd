"""Savepoints: plain Parquet that any tool reads, in a folder that may go anywhere."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arrowstate import (
    CheckpointNotFoundError,
    InvalidInputError,
    KeyedStateBackend,
    ReducingStateDescriptor,
    StorageFullError,
    UnsupportedStorageError,
    ValueStateDescriptor,
    key_group_range,
    key_groups,
    open_store,
)
from arrowstate.snapshot.reading import forget_open_files
from arrowstate.snapshot.savepoint import write_savepoint
from arrowstate.storage import open_storage
from arrowstate.store import new_id

KEY = pa.schema([("user", pa.string()), ("day", pa.int32())])
TOTAL = ReducingStateDescriptor("total", pa.int64(), reduce="sum")
NOTE = ValueStateDescriptor("note", pa.struct([("text", pa.string()), ("tags", pa.list_(pa.string()))]))
EMPTY = ValueStateDescriptor("empty", pa.float64())


def keys_of(numbers):
    rows = [{"user": f"user {number}", "day": number % 7} for number in numbers]
    return pa.RecordBatch.from_pylist(rows, KEY)


def own(backend, keys):
    groups = key_groups(keys, backend.max_parallelism).to_pylist()
    return keys.filter(pa.array([group in backend.key_groups for group in groups], pa.bool_()))


@pytest.fixture
def model(store):
    """What the two checkpoints of the store hold; the second has dead rows, several runs and an empty state."""
    backends = [
        KeyedStateBackend(key=KEY, max_parallelism=128, key_groups=key_group_range(128, parallelism=3, subtask=subtask))
        for subtask in range(3)
    ]
    models = []
    with store.writer() as writer:
        for start in (0, 300):
            total = {} if not models else dict(models[0])
            for backend in backends:
                added = own(backend, keys_of(range(start, start + 700)))
                backend.state(TOTAL).add_batch(added, [1] * len(added))
                gone = own(backend, keys_of(range(start, start + 50)))
                backend.state(TOTAL).clear_batch(gone)
                notes = [{"text": user.as_py(), "tags": ["x", None]} for user in added["user"]]
                backend.state(NOTE).update_batch(added, pa.array(notes, NOTE.type))
                backend.state(EMPTY)
            for number in range(start, start + 700):
                total[(f"user {number}", number % 7)] = total.get((f"user {number}", number % 7), 0) + 1
            for number in range(start, start + 50):
                del total[(f"user {number}", number % 7)]
            models.append(total)
            writer.checkpoint({"op": backends}, properties={"offset": start}, watermark=start)
    return models


def totals(snapshot):
    return {(row["user"], row["day"]): row["total"] for row in snapshot.to_arrow("op.total").to_pylist()}


def files_in(folder):
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def test_a_savepoint_holds_its_checkpoint(store, model):
    latest, older = store.savepoint("latest"), store.savepoint("older", checkpoint=2)

    assert totals(latest) == model[1]
    assert totals(older) == model[0]
    for savepoint, entry in ((latest, store.latest().entry), (older, store.snapshot(2).entry)):
        assert savepoint.entry.kind == "savepoint"
        assert savepoint.checkpoint_id == entry.checkpoint_id
        assert (savepoint.entry.properties, savepoint.entry.watermark) == (entry.properties, entry.watermark)
        assert (savepoint.entry.number, savepoint.entry.parent) == (entry.number, None)


def test_duckdb_alone_reads_a_savepoint(store, model):
    folder = Path(store.savepoint("copy").storage.url)

    rows = duckdb.sql(f"select user, day, total from '{folder}/data/op/total/*.parquet'").fetchall()
    notes = duckdb.sql(f"select count(*), count(distinct text), sum(len(tags)) from '{folder}/data/op/note/*.parquet'")
    empty = duckdb.sql(f"select * from '{folder}/data/op/empty/*.parquet'")

    assert {(user, day): total for user, day, total in rows} == model[1]
    assert len(rows) == len(model[1]), "a row was there twice, or a dead one"
    assert notes.fetchall() == [(1000, 1000, 2000)]
    assert (empty.columns, empty.fetchall()) == (["_key_hash", "user", "day", "empty"], [])


def test_json_and_pyarrow_alone_read_a_savepoint(store, model):
    folder = Path(store.savepoint("copy").storage.url)

    (log,) = (folder / "log").iterdir()
    entry = json.loads(log.read_text())
    (operator,) = entry["operators"]
    rows = {}
    for subtask in operator["subtasks"]:
        handle = subtask["manifest"]
        text = base64.b64decode(handle["inline"]) if handle["path"] is None else (folder / handle["path"]).read_bytes()
        runs = {state["name"]: state["runs"] for state in json.loads(text)["states"]}
        for run in runs["total"]:
            assert run["deletion_vector"] is None
            table = pq.read_table(folder / run["path"])
            hashes = table["_key_hash"].to_pylist()
            assert hashes == sorted(hashes)
            assert (len(table), run["first_row"], run["last_row"]) == (run["live_rows"], 0, run["live_rows"])
            rows.update({(row["user"], row["day"]): row["total"] for row in table.to_pylist()})

    assert rows == model[1]


@pytest.mark.parametrize("how", [shutil.copytree, shutil.move])
def test_a_savepoint_works_wherever_its_folder_goes(store, model, tmp_path, how):
    url = store.savepoint("copy").storage.url
    place = tmp_path / "elsewhere" / "deep"
    place.parent.mkdir()
    how(url, place)
    shutil.rmtree(store.url)
    forget_open_files()

    moved = open_store(place)

    assert totals(moved.latest()) == model[1]
    backends = [moved.latest().restore("op", parallelism=2, subtask=i, max_parallelism=96) for i in range(2)]
    assert sum(len(backend.state(TOTAL)) for backend in backends) == len(model[1])
    assert str(place) not in "".join(path.read_text(errors="ignore") for path in place.rglob("*.json"))


def test_a_savepoint_is_a_store_that_goes_on(store, model, tmp_path):
    store.savepoint(tmp_path / "fork")
    fork = open_store(tmp_path / "fork")
    backend = fork.latest().restore("op")
    key = keys_of([5000])

    with fork.writer() as writer:
        backend.state(TOTAL).add_batch(key, [7])
        after = writer.checkpoint({"op": [backend]})

    assert totals(after) == {**model[1], ("user 5000", 5000 % 7): 7}
    assert totals(store.latest()) == model[1]
    assert [snapshot.entry.kind for snapshot in fork.checkpoints()] == ["savepoint", "checkpoint"]
    assert after.checkpoint_id > fork.checkpoints()[0].checkpoint_id


def test_a_job_goes_on_in_its_store_from_a_savepoint(store, model):
    savepoint = store.savepoint("copy", checkpoint=2)
    backend = savepoint.restore("op")

    with store.writer() as writer:
        after = writer.checkpoint({"op": [backend]})
    shutil.rmtree(savepoint.storage.url)
    forget_open_files()

    assert totals(after) == model[0]


def test_a_savepoint_of_a_savepoint_is_equal(store, model, tmp_path):
    store.savepoint(tmp_path / "one")
    two = open_store(tmp_path / "one").savepoint(tmp_path / "two")

    assert totals(two) == model[1]
    assert sorted(two.restore("op").state_names) == ["empty", "note", "total"]


def test_savepoints_live_in_memory_too():
    store = open_store("memory://savepoints-live-in-memory", create=True)
    backend = KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(TOTAL).add_batch(keys_of(range(10)), range(10))
    with store.writer() as writer:
        writer.checkpoint({"op": [backend]})

    savepoint = store.savepoint("copy")

    assert savepoint.storage.url == "memory://savepoints-live-in-memory/savepoints/copy"
    assert sorted(totals(savepoint).values()) == list(range(10))
    assert totals(open_store(savepoint.storage.url).latest()) == totals(store.latest())


def test_progress_counts_every_file(store, model):
    calls = []

    store.savepoint("copy", progress=lambda done, total: calls.append((done, total)))

    assert calls == [(number, 9) for number in range(1, 10)]


def test_a_place_with_files_is_refused_and_left_alone(store, model, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("mine")

    with pytest.raises(InvalidInputError, match="empty place"):
        store.savepoint(taken)
    store.savepoint("twice")
    with pytest.raises(InvalidInputError, match="empty place"):
        store.savepoint("twice")

    assert [path.name for path in files_in(taken)] == ["mine.txt"]
    assert totals(open_store(Path(store.url) / "savepoints" / "twice").latest()) == model[1]


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a b", "-x", "é"])
def test_a_savepoint_name_is_a_portable_name(store, model, name):
    with pytest.raises(InvalidInputError):
        store.savepoint(name)

    assert not (Path(store.url) / "savepoints").exists()


def test_a_checkpoint_or_a_storage_that_does_not_exist_makes_no_savepoint(store, model, tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="99"):
        store.savepoint(tmp_path / "new", checkpoint=99)
    with pytest.raises(UnsupportedStorageError):
        store.savepoint("sftp://host/x")

    assert not (tmp_path / "new").exists()


class Failing:
    """A storage whose n-th new file cannot be written."""

    def __init__(self, storage, number, error):
        self._storage = storage
        self._left = number
        self._error = error

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def _count(self):
        self._left -= 1
        if self._left == 0:
            raise self._error

    @contextmanager
    def write_file(self, path):
        with self._storage.write_file(path) as file:
            yield file
            self._count()

    def put_if_absent(self, path, data, commit_id):
        self._count()
        return self._storage.put_if_absent(path, data, commit_id)


@pytest.mark.parametrize("error", [StorageFullError("x", "full"), KeyboardInterrupt()], ids=["full", "interrupt"])
def test_a_savepoint_that_fails_at_any_file_leaves_nothing_and_can_be_written_again(store, model, tmp_path, error):
    place = tmp_path / "copy"

    number = 0
    while True:
        number += 1
        target = Failing(open_storage(place, create=True), number, error)
        try:
            write_savepoint(
                store.storage,
                store.store_id,
                store.latest().entry,
                target,
                new_id=new_id,
                clock_ms=lambda: 0,
            )
            break
        except type(error):
            assert files_in(place) == []

    # 7 runs (the empty state has one), a log entry, and the document that makes the folder a store.
    assert number == 10
    assert totals(open_store(place).latest()) == model[1]


class Blind:
    """A storage that took another look before the other files came."""

    def __init__(self, storage):
        self._storage = storage

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def list(self, prefix):
        return []


def test_of_two_savepoints_to_one_place_the_later_one_leaves_the_first_alone(store, model, tmp_path):
    place = tmp_path / "copy"
    target = Blind(open_storage(place, create=True))

    def write(progress=None):
        write_savepoint(
            store.storage,
            store.store_id,
            store.latest().entry,
            target,
            new_id=new_id,
            clock_ms=lambda: 0,
            progress=progress,
        )

    with pytest.raises(InvalidInputError, match="another savepoint"):
        write(lambda done, total: write() if done == 3 else None)
    forget_open_files()

    assert totals(open_store(place).latest()) == model[1]


FULL = """
import resource, signal, sys
from arrowstate import StorageFullError, open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    store.savepoint(sys.argv[2])
except StorageFullError as error:
    print("full")
"""


def test_a_full_disk_leaves_no_savepoint(store, counts, tmp_path):
    with store.writer() as writer:
        writer.checkpoint({"op": [counts]})
    before = [(path, path.read_bytes()) for path in files_in(store.url)]

    ran = subprocess.run(
        [sys.executable, "-c", FULL, store.url, str(tmp_path / "copy"), "100000"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )

    assert ran.stdout == "full\n", ran.stderr
    assert files_in(tmp_path / "copy") == []
    assert [(path, path.read_bytes()) for path in files_in(store.url)] == before


def test_a_savepoint_of_a_large_state_has_row_groups_that_rescaled_readers_use(store, counts, tmp_path):
    with store.writer() as writer:
        writer.checkpoint({"op": [counts]})

    savepoint = store.savepoint(tmp_path / "copy")

    (path,) = (tmp_path / "copy" / "data" / "op" / "total").iterdir()
    assert pq.ParquetFile(io.BytesIO(path.read_bytes())).metadata.num_row_groups > 1
    parts = [savepoint.restore("op", parallelism=4, subtask=i) for i in range(4)]
    assert sum(len(part.state(TOTAL)) for part in parts) == 100_000
