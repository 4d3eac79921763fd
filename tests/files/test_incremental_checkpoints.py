"""A checkpoint writes what the store does not have yet, and nothing else."""

import shutil
import threading

import numpy as np
import pyarrow as pa
import pytest

from arrowstate import FencedError, KeyedStateBackend, ValueStateDescriptor, open_store
from arrowstate.clock import new_id
from arrowstate.files import writing
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.subtasks import operator_of, read_states
from arrowstate.files.writing import RunWriter, write_subtask
from arrowstate.table.merging import MergePolicy
from stores import TOTAL, backend_of, commit

EVERY = pa.array(range(100_000))


def add(backend, keys, value=1):
    keys = pa.array(keys, pa.int64())
    backend.state(TOTAL).add_batch(keys, pa.array(np.full(len(keys), value)))


def read(snapshot):
    forget_open_files()
    return snapshot.restore("op").state(TOTAL).get_batch(EVERY)


def kinds(paths):
    return sorted(path.rsplit(".", 1)[-1] for path in paths)


def runs_of(snapshot, state=0):
    (operator,) = snapshot.entry.operators
    return [
        run
        for subtask in operator.subtasks
        for run in read_states(snapshot.storage, subtask.manifest, "op")[state].runs
    ]


def test_the_first_checkpoint_writes_a_run_its_directory_a_manifest_and_an_entry(store, files, counts):
    with store.writer() as writer:
        files.new()

        snapshot = writer.checkpoint({"op": [counts]})

    assert kinds(files.new("data/op/total/")) == ["arrow", "directory"]
    assert "log/00000000000000000002.json" in files.all()
    assert read(snapshot).equals(counts.state(TOTAL).get_batch(EVERY))


def test_the_next_checkpoint_writes_the_new_rows_and_marks_the_old_ones_dead(store, files, counts):
    with store.writer() as writer:
        first = writer.checkpoint({"op": [counts]})
        full_bytes = sum((files.folder / path).stat().st_size for path in files.new())
        add(counts, range(0, 100_000, 100))

        second = writer.checkpoint({"op": [counts]})

    new = files.new()
    assert kinds(path for path in new if path.startswith("data/")) == ["arrow"]
    assert sum((files.folder / path).stat().st_size for path in new) <= 0.03 * full_bytes
    (old,), (again, added) = runs_of(first), runs_of(second)
    assert (again.path, again.xxh3_128, again.directory) == (old.path, old.xxh3_128, old.directory)
    assert (old.deletion_vector, again.deletion_vector.dead_rows, again.live_rows) == (None, 1000, 99_000)
    assert (added.rows, added.live_rows) == (1000, 1000)
    assert read(second).equals(counts.state(TOTAL).get_batch(EVERY))


def test_a_directory_is_a_file_however_small_it_is_because_it_is_mapped(store, files, counts):
    writer = RunWriter(store.storage, "data/op/total", 128, "arrow", new_id, inline_bytes=1 << 30)
    ((state,), _) = counts.freeze().states, files.new()

    document, _ = writer.write(state.table.runs[0], state.table.schema, 1)

    assert document.path is None
    assert files.new() == [document.directory.path] == [f"data/op/total/{document.id}.directory"]


def test_an_unchanged_checkpoint_writes_no_data_and_uses_its_manifests_again(store, files, counts):
    with store.writer() as writer:
        writer.checkpoint({"op": [counts]})
        add(counts, range(0, 100_000, 100))
        before = writer.checkpoint({"op": [counts]})
        files.new()

        after = writer.checkpoint({"op": [counts]}, properties={"offset": 5})

    assert files.new() == ["log/00000000000000000004.json"]
    assert after.entry.operators == before.entry.operators
    assert read(after).equals(read(before))


def test_a_manifest_with_a_file_of_its_own_is_used_again_while_it_does_not_change(store, files, counts, monkeypatch):
    monkeypatch.setattr(writing, "INLINE_BYTES", 100)
    small = KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    with store.writer() as writer:
        add(small, [1])
        before = writer.checkpoint({"op": [counts], "small": [small]})
        assert len(files.new("manifests/")) == 2

        add(small, [2])
        after = writer.checkpoint({"op": [counts], "small": [small]})

    assert len(files.new("manifests/")) == 1
    handles = [[operator.subtasks[0].manifest for operator in each.entry.operators] for each in (before, after)]
    assert handles[0][0] == handles[1][0]
    assert handles[0][1] != handles[1][1]


def test_a_restored_backend_that_did_not_change_writes_no_data_either(store, files, counts):
    with store.writer() as writer:
        writer.checkpoint({"op": [counts]})
        add(counts, range(0, 100_000, 100))
        before = writer.checkpoint({"op": [counts]})
        files.new()
        forget_open_files()

        after = writer.checkpoint({"op": [before.restore("op")]})

    assert files.new() == ["log/00000000000000000004.json"]
    assert after.entry.operators == before.entry.operators


@pytest.fixture
def patient():
    """A backend of 300,000 keys that never merges, so that its dead rows need a file of their own."""
    policy = MergePolicy(fan_in=100, max_dead_share=1.0)
    backend = KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128, merge_policy=policy)
    add(backend, range(300_000))
    return backend


def test_a_deletion_vector_that_did_not_change_is_not_written_again(store, files, patient):
    with store.writer() as writer:
        writer.checkpoint({"op": [patient]})
        patient.state(TOTAL).clear_batch(pa.array(range(0, 300_000, 3)))
        files.new()
        second = writer.checkpoint({"op": [patient]})
        assert kinds(files.new("data/")) == ["roaring"]

        writer.checkpoint({"op": [patient]})
        assert files.new("data/") == []
        add(patient, [300_001])
        third = writer.checkpoint({"op": [patient]})

    assert files.new("data/") == []
    assert runs_of(third)[0] == runs_of(second)[0]
    assert runs_of(third)[0].deletion_vector.path.endswith(".roaring")
    assert third.restore("op").state(TOTAL).get_batch(pa.array(range(300_000))).null_count == 100_000


def test_a_deletion_vector_that_changed_is_written_under_a_new_name(store, patient):
    snapshots = []
    with store.writer(compaction=None) as writer:
        for start in (0, 1, 2):
            patient.state(TOTAL).clear_batch(pa.array(range(start, 300_000, 5)))
            snapshots.append(writer.checkpoint({"op": [patient]}))

    assert len({runs_of(snapshot)[0].deletion_vector.path for snapshot in snapshots}) == 3
    everything = pa.array(range(300_000))
    restored = [snapshot.restore("op").state(TOTAL).get_batch(everything) for snapshot in snapshots]
    assert [values.null_count for values in restored] == [60_000, 120_000, 180_000]


def test_a_small_run_is_kept_inline(store, files):
    backend = KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    add(backend, range(300))
    with store.writer() as writer:
        files.new()

        snapshot = writer.checkpoint({"op": [backend]})
        add(backend, range(100))
        second = writer.checkpoint({"op": [backend]})

    assert files.new() == ["log/00000000000000000002.json", "log/00000000000000000003.json"]
    assert [run.path for run in runs_of(second)] == [None, None]
    assert snapshot.restore("op").state(TOTAL).get_batch([5, 200]).to_pylist() == [1, 1]
    assert second.restore("op").state(TOTAL).get_batch([5, 200]).to_pylist() == [2, 1]


def test_after_a_merge_the_merged_run_is_written_and_older_checkpoints_stay_readable(store, files):
    backend = backend_of(merge_policy=MergePolicy(fan_in=2, first_tier_rows=10**6))
    expected = []
    with store.writer() as writer:
        for number in range(5):
            add(backend, range(number * 1000, number * 1000 + 3000))
            writer.checkpoint({"op": [backend]})
            expected.append(backend.state(TOTAL).get_batch(EVERY))

    assert [len(runs_of(snapshot)) for snapshot in store.checkpoints()] == [1, 2, 2, 2, 2]
    for snapshot, values in zip(store.checkpoints(), expected, strict=True):
        assert read(snapshot).equals(values)


def test_a_backend_written_to_one_store_is_written_whole_to_another(store, files, counts, tmp_path):
    other = open_store(tmp_path / "other", create=True)
    with store.writer() as writer, other.writer() as second:
        writer.checkpoint({"op": [counts]})
        add(counts, range(10))

        there = second.checkpoint({"op": [counts]})
        here = writer.checkpoint({"op": [counts]})

    shutil.move(store.url, tmp_path / "gone")
    assert read(there).equals(counts.state(TOTAL).get_batch(EVERY))
    moved = open_store(tmp_path / "gone")
    assert read(moved.snapshot(here.checkpoint_id)).equals(counts.state(TOTAL).get_batch(EVERY))


def test_a_copy_of_a_store_is_another_store_although_it_has_the_same_id(store, counts, tmp_path):
    with store.writer() as writer:
        writer.checkpoint({"op": [counts]})
        shutil.copytree(store.url, tmp_path / "copy")
        add(counts, range(0, 100_000, 10))
        writer.checkpoint({"op": [counts]})
    copy = open_store(tmp_path / "copy")

    snapshot = commit(copy, {"op": [counts]})

    shutil.rmtree(store.url)
    assert copy.store_id == store.store_id
    assert read(snapshot).equals(counts.state(TOTAL).get_batch(EVERY))


def test_runs_of_a_checkpoint_that_failed_are_written_again(store, files, counts):
    stale = store.writer()
    files.new()
    with store.writer() as writer:
        with pytest.raises(FencedError):
            stale.checkpoint({"op": [counts]})
        assert [path for path in files.new() if not path.startswith("log/")] == []

        snapshot = writer.checkpoint({"op": [counts]})

    assert kinds(files.new("data/")) == ["arrow", "directory"]
    assert read(snapshot).equals(counts.state(TOTAL).get_batch(EVERY))


def test_a_retry_from_the_checkpoint_before_leads_to_the_same_state(store, counts):
    with store.writer() as writer:
        before = writer.checkpoint({"op": [counts]})
        attempts = [before.restore("op") for _ in range(2)]
        for backend in attempts:
            add(backend, range(500), 7)
            backend.state(TOTAL).clear_batch(pa.array([3]))
        add(attempts[0], range(50), 9)

        after = writer.checkpoint({"op": [attempts[1]]})

    model = np.arange(100_000) % 1000
    assert read(before).to_pylist() == model.tolist()
    model[:500] += 7
    expected = model.tolist()
    expected[3] = None
    assert read(after).to_pylist() == expected


def test_a_view_frozen_before_a_later_checkpoint_is_written_as_it_was(store, counts):
    with store.writer() as writer:
        writer.checkpoint({"op": [counts]})
        add(counts, range(100))
        early = counts.freeze()
        expected = counts.state(TOTAL).get_batch(EVERY)
        counts.state(TOTAL).clear_batch(pa.array(range(50, 300)))
        writer.checkpoint({"op": [counts]})

        written = write_subtask(store.storage, store.store_id, "op", 0, early, format="arrow", new_id=new_id)
        writer._writer.commit([operator_of("op", [written])], started_at_ms=0)

    assert read(store.latest()).equals(expected)


def test_a_frozen_view_is_written_by_another_thread_while_the_backend_goes_on(store, counts):
    frozen = counts.freeze()
    expected = counts.state(TOTAL).get_batch(EVERY)
    written = []

    def write():
        written.append(write_subtask(store.storage, store.store_id, "op", 0, frozen, format="arrow", new_id=new_id))

    thread = threading.Thread(target=write)
    thread.start()
    rounds = 0
    while thread.is_alive() or rounds < 20:
        add(counts, range(rounds * 100, rounds * 100 + 5000))
        counts.state(TOTAL).clear_batch(pa.array([rounds]))
        rounds += 1
    thread.join()
    store.writer()._writer.commit([operator_of("op", written)], started_at_ms=0)

    assert read(store.latest()).equals(expected)


def test_the_names_of_states_and_operators_are_the_folders_of_their_runs(store, files):
    backends = {}
    for uid in ("first", "second.part"):
        backend = KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
        for name in ("a", "b-c"):
            state = backend.state(ValueStateDescriptor(name, pa.string()))
            state.update_batch(pa.array(range(1000)), ["x" * 50] * 1000)
        backends[uid] = [backend]

    commit(store, backends)

    folders = {path.rsplit("/", 1)[0] for path in files.all() if path.startswith("data/")}
    assert folders == {f"data/{uid}/{name}" for uid in backends for name in ("a", "b-c")}


@pytest.mark.parametrize("format", ["arrow", "parquet", "lance"])
def test_runs_of_any_format_serve_incremental_checkpoints(store, files, counts, format):
    with store.writer() as writer:
        first = writer.checkpoint({"op": [counts]}, format=format)
        expected = counts.state(TOTAL).get_batch(EVERY)
        assert kinds(files.new("data/")) == (["arrow", "directory"] if format == "arrow" else [format])
        add(counts, range(0, 100_000, 20))

        second = writer.checkpoint({"op": [counts]}, format=format)

    assert kinds(files.new("data/")) == [format]
    assert read(first).equals(expected)
    assert read(second).equals(counts.state(TOTAL).get_batch(EVERY))
