"""Checkpoints of several processes: each writes its subtask, one commits the handles."""

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate

WORKER = Path(__file__).with_name("handle_worker.py")
SCHEMA = pa.schema([("n", pa.int64())])
CLICKS = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")


def in_processes(url, parallelism, first, last):
    """Let a process for each subtask do its part at once; return their handles."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), url, *map(str, (parallelism, subtask, first, last))], stdout=subprocess.PIPE
        )
        for subtask in range(parallelism)
    ]
    return [pickle.loads(process.communicate()[0]) for process in processes]


def backend_of(parallelism, subtask, keys):
    groups = arrowstate.key_group_range(128, parallelism=parallelism, subtask=subtask)
    backend = arrowstate.KeyedStateBackend(key=SCHEMA, max_parallelism=128, key_groups=groups)
    clicks = backend.state(CLICKS)
    owned = arrowstate.key_groups(pa.array(keys, pa.int64()), 128).to_pylist()
    own = [key for key, group in zip(keys, owned, strict=True) if group in groups]
    clicks.add_batch(pa.array(own, pa.int64()), pa.array([1] * len(own), pa.int64()))
    return backend


def handles_of(store, parallelism, keys=range(40)):
    return [
        store.subtask_writer("counter", subtask).write(backend_of(parallelism, subtask, list(keys)))
        for subtask in range(parallelism)
    ]


def test_handles_say_which_key_groups_they_have(store):
    handles = handles_of(store, 3)
    first, second, third = (handle.key_groups for handle in handles)

    assert [*first, *second, *third] == list(range(128))
    for wanted in (arrowstate.KeyGroupRange(0, 127), first, arrowstate.KeyGroupRange(first.end, second.start)):
        found = [handle.intersection(wanted) for handle in handles]
        assert [group for part in found for group in part or ()] == list(wanted)
    assert handles[2].intersection(first) is None


def test_one_process_and_then_three_share_a_state_without_rewriting_it(store):
    with store.writer() as writer:
        writer.commit(in_processes(store.url, 1, 0, 1_000))
        handles = in_processes(store.url, 3, 900, 1_100)

        snapshot = writer.commit(handles, properties={"offset": 1_100})

    rows = snapshot.to_arrow("counter.clicks")
    found = dict(zip(rows["n"].to_pylist(), rows["clicks"].to_pylist(), strict=True))
    assert found == {n: 2 if 900 <= n < 1_000 else 1 for n in range(1_100)}
    assert snapshot.properties == {"offset": 1_100}
    # The runs of the first are referred to, from all three.
    assert all(handle.statistics.bytes_written < handle.statistics.bytes_total for handle in handles)
    assert store.verify(deep=True).problems == []


def test_what_was_committed_is_not_written_again(store):
    backend = backend_of(1, 0, range(30_000))
    own = store.subtask_writer("counter", 0)
    writer = store.writer()
    first = own.write(backend)
    writer.commit([first])
    own.committed(first)
    backend.state(CLICKS).add_batch(pa.array([7], pa.int64()), pa.array([1], pa.int64()))

    second = own.write(backend)
    snapshot = writer.commit([second])

    assert second.statistics.bytes_written * 10 < first.statistics.bytes_written
    assert snapshot.sql("select clicks from counter.clicks where n = 7").fetchall() == [(2,)]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (slice(0, 1), "cover the key groups 0 to 63 of 128"),
        (slice(1, 2), "expected subtask 0 from key group 0"),
        (slice(0, 0), "got none"),
    ],
)
def test_handles_that_are_not_all_there_are_refused_and_nothing_is_committed(store, chosen, said):
    handles = handles_of(store, 2)

    with pytest.raises(arrowstate.InvalidInputError, match=said):
        store.writer().commit(handles[chosen])

    with pytest.raises(arrowstate.CheckpointNotFoundError):
        store.latest()


def test_handles_of_another_store_are_refused(store, tmp_path):
    other = arrowstate.open_store(tmp_path / "other", create=True)
    handles = handles_of(other, 1)

    with pytest.raises(arrowstate.InvalidInputError, match="another store"):
        store.writer().commit(handles)


def test_a_commit_leaves_nothing_out_unless_it_is_told_to(store):
    writer = store.writer()
    writer.commit(handles_of(store, 2))
    other = store.subtask_writer("other", 0).write(backend_of(1, 0, [1]))

    with pytest.raises(arrowstate.InvalidInputError, match="'counter'"):
        writer.commit([other])

    assert [item.uid for item in writer.commit([other], allow_dropped_state=True).entry.operators] == ["other"]


def test_a_fenced_writer_commits_no_handles(store):
    handles = handles_of(store, 1)
    old = store.writer()
    store.writer()

    with pytest.raises(arrowstate.FencedError):
        old.commit(handles)


def test_discarded_handles_leave_no_file(store):
    own = store.subtask_writer("counter", 0)
    before = set(store.storage.list(""))
    handle = own.write(backend_of(1, 0, range(30_000)))
    assert set(store.storage.list("")) > before

    own.discard(handle)

    assert set(store.storage.list("")) == before


def test_a_backend_says_why_it_is_not_pickled():
    with pytest.raises(TypeError, match="subtask_writer"):
        pickle.dumps(backend_of(1, 0, [1]))


def test_a_writer_says_why_it_is_not_pickled(store):
    with pytest.raises(TypeError, match="belongs to the process that opened it"):
        pickle.dumps(store.writer())


def test_a_store_and_what_writes_a_subtask_of_it_work_in_another_process(store):
    own = pickle.loads(pickle.dumps(store.subtask_writer("counter", 0)))

    handle = own.write(backend_of(1, 0, [1]))

    snapshot = pickle.loads(pickle.dumps(store)).writer().commit([handle])
    assert snapshot.to_arrow("counter.clicks").num_rows == 1
