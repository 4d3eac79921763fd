"""One log entry of what the subtasks of a job have written: what does not fit together is not committed."""

from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import CheckpointNotFoundError
from arrowstate.runtime import Job, Restart, TableSource
from arrowstate.runtime.core.assembling import Entries
from arrowstate.storage.memory import clear_memory_storage

ROWS = pa.table({"user": ["ann", "bob", "eve", "joe"] * 20, "amount": range(80)})
STORE = "memory://assembling"


class Sums(arrowstate.BatchFunction):
    def open(self, context):
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch, context):
        self.total.add_batch(batch["user"], batch["amount"])


@pytest.fixture
def job():
    clear_memory_storage(STORE)
    job = Job(STORE, parallelism=2, restart=Restart.none())
    job.source(TableSource(ROWS), uid="rows").stateful(Sums(), key=["user"], uid="sums")
    yield job
    clear_memory_storage(STORE)


def renamed(handle):
    return replace(handle, states=[msgspec.structs.replace(state, name="other") for state in handle.states])


def narrowed(handle):
    first, last = handle.document.key_groups
    return replace(handle, document=msgspec.structs.replace(handle.document, key_groups=(first, last - 1)))


DAMAGE = {
    "a subtask is missing": (lambda sums: sums[:1], "needs each of 2 once"),
    "a subtask is there twice": (lambda sums: [*sums, sums[0]], "needs each of 2 once"),
    "one has written nothing": (lambda sums: [sums[0], replace(sums[1], document=None)], "has written nothing"),
    "other states": (lambda sums: [sums[0], renamed(sums[1])], "same states"),
    "another key": (lambda sums: [replace(sums[0], key=[]), sums[1]], "one key"),
    "a key group is nobody's": (lambda sums: [narrowed(sums[0]), sums[1]], "each key group once"),
    "the last is nobody's": (lambda sums: [sums[0], narrowed(sums[1])], "cover the key groups 0 to 126 of 128"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_parts_of_an_operator_that_do_not_fit_together_are_not_committed(job, case, monkeypatch):
    damaged, message = DAMAGE[case]
    commit = Entries.commit

    def commit_damaged(self, checkpoint_id, handles, **options):
        sums = [handle for handle in handles if handle.task == "sums"]
        others = [handle for handle in handles if handle.task != "sums"]
        return commit(self, checkpoint_id, [*others, *damaged(sums)], **options)

    monkeypatch.setattr(Entries, "commit", commit_damaged)

    with pytest.raises(arrowstate.JobFailedError, match=message):
        job.run(mode="inline")

    store = arrowstate.open_store(STORE)
    with pytest.raises(CheckpointNotFoundError):
        store.latest()
    assert store.storage.list("data/") == []
