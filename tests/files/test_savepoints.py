"""Savepoints: plain Parquet that any tool reads, in a folder that may go anywhere."""

import io
import json
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.clock import new_id
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.savepoint import write_frozen_savepoint, write_savepoint
from arrowstate.storage import open_storage
from arrowstate.testing.faults import Fault
from processes import python
from storages import Failing, refusing
from stores import TOTAL, backend_of, commit

KEY = pa.schema([("user", pa.string()), ("day", pa.int32())])
NOTE = arrowstate.ValueStateDescriptor("note", pa.struct([("text", pa.string()), ("tags", pa.list_(pa.string()))]))
EMPTY = arrowstate.ValueStateDescriptor("empty", pa.float64())


def keys_of(numbers):
    rows = [{"user": f"user {number}", "day": number % 7} for number in numbers]
    return pa.RecordBatch.from_pylist(rows, KEY)


def own(backend, keys):
    groups = arrowstate.key_groups(keys, backend.max_parallelism).to_pylist()
    return keys.filter(pa.array([group in backend.key_groups for group in groups], pa.bool_()))


@pytest.fixture
def model(store):
    """What the two checkpoints of the store hold; the second has dead rows, several runs and an empty state."""
    backends = [
        backend_of(KEY, key_groups=arrowstate.key_group_range(128, parallelism=3, subtask=subtask))
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
    latest, older = store.savepoint("latest"), store.savepoint("older", checkpoint=1)

    assert totals(latest) == model[1]
    assert totals(older) == model[0]
    for savepoint, entry in ((latest, store.latest().entry), (older, store.snapshot(1).entry)):
        assert savepoint.entry.kind == "savepoint"
        assert savepoint.checkpoint_id == entry.checkpoint_id
        assert (savepoint.entry.properties, savepoint.entry.watermark) == (entry.properties, entry.watermark)
        assert (savepoint.entry.number, savepoint.entry.parent) == (entry.checkpoint_id, None)


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
        states = handle["inline"] or json.loads((folder / handle["path"]).read_bytes())["states"]
        runs = {state["name"]: state["runs"] for state in states}
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

    moved = arrowstate.open_store(place)

    assert totals(moved.latest()) == model[1]
    backends = [moved.latest().restore("op", parallelism=2, subtask=i, max_parallelism=96) for i in range(2)]
    assert sum(len(backend.state(TOTAL)) for backend in backends) == len(model[1])
    assert str(place) not in "".join(path.read_text(errors="ignore") for path in place.rglob("*.json"))


def test_a_savepoint_is_a_store_that_goes_on(store, model, tmp_path):
    store.savepoint(tmp_path / "fork")
    fork = arrowstate.open_store(tmp_path / "fork")
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
    savepoint = store.savepoint("copy", checkpoint=1)
    backend = savepoint.restore("op")

    after = commit(store, {"op": [backend]})
    shutil.rmtree(savepoint.storage.url)
    forget_open_files()

    assert totals(after) == model[0]


def test_a_savepoint_of_a_savepoint_is_equal(store, model, tmp_path):
    store.savepoint(tmp_path / "one")
    two = arrowstate.open_store(tmp_path / "one").savepoint(tmp_path / "two")

    assert totals(two) == model[1]
    assert sorted(two.restore("op").state_names) == ["empty", "note", "total"]


def test_savepoints_live_in_memory_too():
    store = arrowstate.open_store("memory://savepoints-live-in-memory", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(TOTAL).add_batch(keys_of(range(10)), range(10))
    commit(store, {"op": [backend]})

    savepoint = store.savepoint("copy")

    assert savepoint.storage.url == "memory://savepoints-live-in-memory/savepoints/copy"
    assert sorted(totals(savepoint).values()) == list(range(10))
    assert totals(arrowstate.open_store(savepoint.storage.url).latest()) == totals(store.latest())


def test_progress_counts_every_file(store, model):
    calls = []

    store.savepoint("copy", progress=lambda done, total: calls.append((done, total)))

    assert calls == [(number, 9) for number in range(1, 10)]


@pytest.mark.parametrize("folder", ["tags", "leases", "gc", "jobs", "log", "data", "manifests"])
def test_a_place_among_the_files_of_the_store_is_refused(store, model, folder):
    before = store.storage.list("")
    place = f"{store.storage.url}/{folder}/mine"

    with pytest.raises(arrowstate.InvalidInputError, match=f"is inside of {folder}/"):
        store.savepoint(place)
    with store.edit() as edit, pytest.raises(arrowstate.InvalidInputError, match=f"is inside of {folder}/"):
        edit.commit(to=place)

    assert store.storage.list("") == before
    store.savepoint(f"{store.storage.url}/savepoints/mine")
    store.savepoint(f"{store.storage.url}/copies/mine")
    store.collect().apply()


def test_a_place_with_files_is_refused_and_left_alone(store, model, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("mine")

    with pytest.raises(arrowstate.InvalidInputError, match="empty place"):
        store.savepoint(taken)
    store.savepoint("twice")
    with pytest.raises(arrowstate.InvalidInputError, match="empty place"):
        store.savepoint("twice")

    assert [path.name for path in files_in(taken)] == ["mine.txt"]
    assert totals(arrowstate.open_store(Path(store.url) / "savepoints" / "twice").latest()) == model[1]


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a b", "-x", "é"])
def test_a_savepoint_name_is_a_portable_name(store, model, name):
    with pytest.raises(arrowstate.InvalidInputError):
        store.savepoint(name)

    assert not (Path(store.url) / "savepoints").exists()


def test_a_checkpoint_or_a_storage_that_does_not_exist_makes_no_savepoint(store, model, tmp_path):
    with pytest.raises(arrowstate.CheckpointNotFoundError, match="99"):
        store.savepoint(tmp_path / "new", checkpoint=99)
    with pytest.raises(arrowstate.UnsupportedStorageError):
        store.savepoint("sftp://host/x")

    assert not (tmp_path / "new").exists()


def written(store, snapshot, target, progress=None):
    arguments = {"new_id": new_id, "clock_ms": lambda: 0, "progress": progress}
    write_savepoint(store.storage, store.store_id, snapshot.entry, target, **arguments)


@pytest.mark.parametrize(
    "error", [arrowstate.StorageFullError("x", "full"), KeyboardInterrupt()], ids=["full", "interrupt"]
)
def test_a_savepoint_that_fails_at_any_file_leaves_nothing_and_can_be_written_again(store, model, tmp_path, error):
    place = tmp_path / "copy"

    number = 0
    while True:
        number += 1
        target = Failing(open_storage(place, create=True), number, error)
        try:
            written(store, store.latest(), target)
            break
        except type(error):
            assert files_in(place) == []

    # 7 runs (the empty state has one), a log entry, and the document that makes the folder a store.
    assert number == 10
    assert totals(arrowstate.open_store(place).latest()) == model[1]


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
        written(store, store.latest(), target, progress)

    with pytest.raises(arrowstate.InvalidInputError, match="another savepoint"):
        write(lambda done, total: write() if done == 3 else None)
    forget_open_files()

    assert totals(arrowstate.open_store(place).latest()) == model[1]


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
    commit(store, {"op": [counts]})
    before = [(path, path.read_bytes()) for path in files_in(store.url)]

    ran = python("-c", FULL, store.url, tmp_path / "copy", "100000")

    assert ran.stdout == "full\n", ran.stderr
    assert files_in(tmp_path / "copy") == []
    assert [(path, path.read_bytes()) for path in files_in(store.url)] == before


def test_a_savepoint_of_a_large_state_has_row_groups_that_rescaled_readers_use(store, counts, tmp_path):
    commit(store, {"op": [counts]})

    savepoint = store.savepoint(tmp_path / "copy")

    (path,) = (tmp_path / "copy" / "data" / "op" / "total").iterdir()
    assert pq.ParquetFile(io.BytesIO(path.read_bytes())).metadata.num_row_groups > 1
    parts = [savepoint.restore("op", parallelism=4, subtask=i) for i in range(4)]
    assert sum(len(part.state(TOTAL)) for part in parts) == 100_000


def runs_of(folder):
    """The run documents of a savepoint, from its files."""
    (log,) = (Path(folder) / "log").iterdir()
    for operator in json.loads(log.read_text())["operators"]:
        for subtask in operator["subtasks"]:
            handle = subtask["manifest"]
            for state in handle["inline"] or json.loads((Path(folder) / handle["path"]).read_bytes())["states"]:
                yield from state["runs"]


@pytest.mark.parametrize("format", ["parquet", "arrow", "lance"])
def test_a_savepoint_in_any_format_has_one_file_a_state_and_subtask_and_all_its_rows(store, model, tmp_path, format):
    savepoint = store.savepoint(tmp_path / "copy", format=format)

    assert totals(savepoint) == model[1]
    runs = list(runs_of(tmp_path / "copy"))
    assert len(runs) == 7
    for run in runs:
        assert (run["format"], run["inline"], run["deletion_vector"]) == (format, None, None)
        assert (run["first_row"], run["last_row"], run["live_rows"]) == (0, run["rows"], run["rows"])
    assert {path.suffix for path in files_in(tmp_path / "copy" / "data")} == {f".{format}"}
    assert len(files_in(tmp_path / "copy" / "data")) == 7


@pytest.mark.parametrize(
    ("format", "suffixes"), [("parquet", [".parquet"]), ("arrow", [".arrow", ".directory"]), ("lance", [".lance"])]
)
def test_only_large_runs_in_arrow_have_a_directory(store, counts, tmp_path, format, suffixes):
    commit(store, {"op": [counts]})

    savepoint = store.savepoint(tmp_path / "copy", format=format)

    assert sorted(path.suffix for path in files_in(tmp_path / "copy" / "data")) == suffixes
    assert arrowstate.open_store(tmp_path / "copy").verify(deep=True).problems == []
    assert savepoint.restore("op").state(TOTAL).get_batch(pa.array([7])).to_pylist() == [7]


def test_an_unknown_format_is_refused_and_nothing_written(store, model, tmp_path):
    with pytest.raises(arrowstate.InvalidInputError, match="'parquet'.* got 'csv'"):
        store.savepoint(tmp_path / "copy", format="csv")

    assert files_in(tmp_path / "copy") == []


@pytest.mark.parametrize("format", ["parquet", "arrow", "lance"])
def test_a_job_that_starts_from_a_savepoint_in_a_new_store_never_needs_it_again(store, model, tmp_path, format):
    offsets = arrowstate.OperatorStateBackend()
    offsets.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).update(list(range(10_000)))
    with store.writer() as writer:
        backends = [store.latest().restore("op")]
        writer.checkpoint({"op": backends}, operator_states={"op": [offsets]})
    savepoint = store.savepoint(tmp_path / "copy", format=format)
    other = arrowstate.open_store(tmp_path / "other", create=True)

    backend, restored = savepoint.restore("op"), savepoint.restore_operator_state("op")
    with other.writer() as writer:
        first = writer.checkpoint({"op": [backend]}, operator_states={"op": [restored]})
        backend.state(TOTAL).add_batch(keys_of([5000]), [7])
        second = writer.checkpoint({"op": [backend]}, operator_states={"op": [restored]})
    shutil.rmtree(tmp_path / "copy")
    shutil.rmtree(store.url)
    forget_open_files()

    assert other.verify(deep=True).problems == []
    assert totals(first) == model[1]
    assert totals(second) == {**model[1], ("user 5000", 5000 % 7): 7}
    parts = [second.restore("op", parallelism=3, subtask=number, max_parallelism=96) for number in range(3)]
    assert sum(len(part.state(TOTAL)) for part in parts) == len(model[1]) + 1
    assert second.operator_state("op", "offsets")["offsets"].to_pylist() == list(range(10_000))


class Job:
    """Two subtasks that change their state in every way, with a model of it."""

    SEEN = arrowstate.ValueStateDescriptor("seen", pa.int64(), ttl=arrowstate.TimeToLive(100))
    OFFSETS = arrowstate.OperatorListStateDescriptor("offsets", pa.int64())

    def __init__(self):
        self.now_ms = 0
        self.backends = [
            backend_of(
                KEY,
                key_groups=arrowstate.key_group_range(128, parallelism=2, subtask=subtask),
                merge_policy=arrowstate.MergePolicy(fan_in=2, first_tier_rows=64),
                clock_ms=lambda: self.now_ms,
            )
            for subtask in range(2)
        ]
        self.offsets = [arrowstate.OperatorStateBackend() for _ in self.backends]
        for backend in self.backends:
            backend.state(EMPTY)
            backend.state(self.SEEN)
        self.total = {}
        self.steps = 0

    def step(self):
        start = self.steps * 60
        self.steps += 1
        added, gone = range(start, start + 200), range(start + 20, start + 40)
        for number in added:
            self.total[(f"user {number}", number % 7)] = self.total.get((f"user {number}", number % 7), 0) + 1
        for number in gone:
            del self.total[(f"user {number}", number % 7)]
        for backend, offsets in zip(self.backends, self.offsets, strict=True):
            mine = own(backend, keys_of(added))
            backend.state(TOTAL).add_batch(mine, [1] * len(mine))
            backend.state(self.SEEN).update_batch(mine, [self.steps] * len(mine))
            backend.state(TOTAL).clear_batch(own(backend, keys_of(gone)))
            offsets.state(self.OFFSETS).add(self.steps)

    def frozen(self):
        return (
            {"op": [backend.freeze() for backend in self.backends]},
            {"op": [offsets.freeze() for offsets in self.offsets]},
        )

    def live(self):
        parts = (backend.freeze().states for backend in self.backends)
        tables = (state.table for part in parts for state in part if state.document.name == "total")
        rows = (
            row for table in tables for run in table.runs for batch in run.live_batches() for row in batch.to_pylist()
        )
        return {(row["user"], row["day"]): row["total"] for row in rows}


def save(target, frozen, *, clock_ms=lambda: 0, **options):
    entry = write_frozen_savepoint(
        target,
        *frozen,
        checkpoint_id=17,
        properties={"offset": 3},
        watermark=5,
        new_id=new_id,
        clock_ms=clock_ms,
        **options,
    )
    return arrowstate.Snapshot(target, "frozen", entry, clock_ms=clock_ms)


@pytest.mark.parametrize("format", ["parquet", "arrow", "lance"])
def test_a_savepoint_of_frozen_state_is_what_it_was_while_the_job_goes_on(tmp_path, format):
    job = Job()
    for _ in range(7):
        job.step()
    frozen, expected = job.frozen(), dict(job.total)

    def go_on():
        job.step()
        return False

    savepoint = save(open_storage(tmp_path / "copy", create=True), frozen, format=format, cancelled=go_on)

    assert job.steps > 15, "the job did not go on"
    assert job.live() == job.total != expected
    assert totals(savepoint) == expected
    assert savepoint.operator_state("op", "offsets")["offsets"].to_pylist() == [1, 2, 3, 4, 5, 6, 7] * 2
    assert (savepoint.checkpoint_id, savepoint.properties, savepoint.entry.watermark) == (17, {"offset": 3}, 5)
    assert arrowstate.open_store(tmp_path / "copy").verify(deep=True).problems == []
    assert {run["format"] for run in runs_of(tmp_path / "copy")} == {format}


def test_a_savepoint_that_leaves_out_expired_rows_takes_them_from_nobody_else(store, tmp_path):
    job = Job()
    job.step()
    job.now_ms = 99
    job.step()
    frozen = job.frozen()
    before = commit(store, {"op": job.backends})

    savepoint = save(open_storage(tmp_path / "copy", create=True), frozen, clock_ms=lambda: 100)
    again = save(open_storage(tmp_path / "again", create=True), frozen, clock_ms=lambda: 99)

    assert savepoint.to_arrow("op.seen").num_rows == 200
    assert again.to_arrow("op.seen").num_rows == 260
    assert sum(len(backend.state(Job.SEEN)) for backend in job.backends) == 260
    assert before.to_arrow("op.seen", expired=True).num_rows == 260


def test_the_same_state_gives_the_same_savepoint_whether_it_is_frozen_or_committed(store, tmp_path):
    job = Job()
    for _ in range(5):
        job.step()
    frozen = job.frozen()
    commit(store, {"op": job.backends}, operator_states={"op": job.offsets})

    from_frozen = save(open_storage(tmp_path / "frozen", create=True), frozen)
    from_committed = arrowstate.StateStore(store.storage, store.store_id, clock_ms=lambda: 0).savepoint(
        tmp_path / "committed"
    )

    for name in ("op.total", "op.seen", "op.empty"):
        assert from_frozen.to_arrow(name).equals(from_committed.to_arrow(name))
    ours, theirs = from_frozen.entry.operators[0], from_committed.entry.operators[0]
    assert (ours.key, ours.states, ours.operator_states) == (theirs.key, theirs.states, theirs.operator_states)
    assert [task.live_rows for task in ours.subtasks] == [task.live_rows for task in theirs.subtasks]


def test_a_savepoint_that_is_cancelled_before_any_of_its_files_leaves_nothing(tmp_path):
    job = Job()
    job.step()
    frozen = job.frozen()
    target = open_storage(tmp_path / "copy", create=True)

    for asked in range(100):
        answers = iter([False] * asked)
        try:
            savepoint = save(target, frozen, cancelled=lambda answers=answers: next(answers, True))
            break
        except arrowstate.CheckpointCancelledError:
            assert files_in(tmp_path / "copy") == []

    # 3 states of 2 subtasks, 2 manifests, the operator state, the log entry.
    assert asked == 10
    assert totals(savepoint) == job.total


@pytest.mark.parametrize("path", ["log/", "arrowstate.json"])
def test_a_savepoint_whose_end_nobody_can_tell_is_taken_away(tmp_path, path):
    job = Job()
    job.step()
    copy = open_storage(tmp_path / "copy", create=True)

    with pytest.raises(arrowstate.CommitUnknownError):
        save(refusing(copy, "put_if_absent", prefix=path, fault=Fault.FAIL_AFTER), job.frozen())

    assert files_in(tmp_path / "copy") == []


def test_savepoints_of_two_checkpoints_to_one_place_do_not_mix(store, model, tmp_path):
    place = tmp_path / "copy"
    target = Blind(open_storage(place, create=True))

    def write(checkpoint, progress=None):
        written(store, store.snapshot(checkpoint), target, progress)

    with pytest.raises(arrowstate.InvalidInputError, match="another savepoint"):
        write(2, lambda done, total: write(1) if done == 3 else None)
    forget_open_files()

    assert totals(arrowstate.open_store(place).latest()) == model[0]
    assert len(files_in(place / "log")) == 1
    assert arrowstate.open_store(place).verify(deep=True).problems == []
