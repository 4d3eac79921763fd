"""A checkpoint that is cancelled while its files are written stops at the next batch and leaves nothing."""

import itertools

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.clock import new_id
from arrowstate.files.operator import write_operator_states
from arrowstate.files.subtasks import read_states
from arrowstate.files.writing import write_subtask
from stores import OFFSETS, TOTAL, commit

PENDING = arrowstate.OperatorListStateDescriptor("pending", pa.string())


class AtCall:
    """Cancels at the call with a number; never without one."""

    def __init__(self, number=None):
        self.number = number
        self.calls = itertools.count()
        self.asked = 0

    def __call__(self):
        self.asked = next(self.calls) + 1
        return self.asked == self.number


@pytest.fixture(params=["arrow", "parquet"])
def write(request, store, counts):
    def write(cancelled):
        return write_subtask(
            store.storage,
            store.store_id,
            "op",
            0,
            counts.freeze(),
            format=request.param,
            new_id=new_id,
            cancelled=cancelled,
        )

    return write


def test_a_write_is_asked_at_each_file_and_between_the_batches_of_a_run_whether_to_go_on(store, write):
    cancelled = AtCall()

    written = write(cancelled)

    (run,) = read_states(store.storage, written.document.manifest, "op")[0].runs
    assert len(run.batches) > 5
    assert cancelled.asked > len(run.batches) + written.files_written


def test_a_write_that_is_cancelled_at_any_call_raises_and_leaves_nothing(store, files, write, counts):
    never = AtCall()
    for path in write(never).paths:
        store.storage.delete(path)
    before = files.all()

    # The last ones stand for the directory, the manifest and what makes them durable.
    for number in {*range(1, never.asked, 5), *range(never.asked - 9, never.asked + 1)}:
        with pytest.raises(arrowstate.CheckpointCancelledError) as caught:
            write(AtCall(number))

        assert caught.value.checkpoint_id is None
        assert files.all() == before

    snapshot = commit(store, {"op": [counts]})
    assert len(snapshot.restore("op").state(TOTAL)) == 100_000


def test_operator_states_that_are_cancelled_at_any_call_leave_nothing(store, files):
    backend = arrowstate.OperatorStateBackend()
    backend.state(OFFSETS).update(list(range(10_000)))
    backend.state(PENDING).update(["x" * 100] * 10_000)
    before, paths = files.all(), ["another's"]

    def write(cancelled):
        frozen = [backend.freeze(), backend.freeze()]
        return write_operator_states(store.storage, "op", frozen, new_id=new_id, paths=paths, cancelled=cancelled)

    never = AtCall()
    write(never)
    for path in paths[1:]:
        store.storage.delete(path)
    assert len(paths) == 3
    del paths[1:]

    for number in range(1, never.asked + 1):
        with pytest.raises(arrowstate.CheckpointCancelledError):
            write(AtCall(number))

        assert files.all() == before
        assert paths == ["another's"]


def test_what_was_written_and_what_is_referred_to_is_counted(store, files, counts):
    def write(previous=None):
        return write_subtask(
            store.storage,
            store.store_id,
            "op",
            0,
            counts.freeze(),
            format="arrow",
            new_id=new_id,
            previous=previous,
        )

    files.new()
    full = write()
    full.committed(store.storage, store.store_id)
    on_disk = [(files.folder / path).stat().st_size for path in files.new()]
    counts.state(TOTAL).add_batch(pa.array(range(0, 100_000, 100)), pa.array([1] * 1000))
    increment = write(full.document)
    increment.committed(store.storage, store.store_id)
    same = write(increment.document)

    manifest = full.document.manifest
    assert manifest.path is None
    assert full.files_written == len(on_disk) == 2
    assert full.bytes_written == full.bytes_total == sum(on_disk) + manifest.bytes
    assert 0 < increment.bytes_written < 0.1 * full.bytes_written
    assert increment.bytes_total == full.bytes_total - manifest.bytes + increment.bytes_written
    assert (same.files_written, same.bytes_written, same.bytes_total) == (0, 0, increment.bytes_total)
