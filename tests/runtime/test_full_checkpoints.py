"""Full checkpoints on demand: all state is written anew, and what comes after is incremental on top of it."""

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.files.references import ReferenceReader
from arrowstate.runtime import GeneratorSource, Job, MapFunction, Restart

SCHEMA = pa.schema([("k", pa.int64())])
SEEN = arrowstate.OperatorListStateDescriptor("seen", pa.int64())


def numbered(first, count):
    return pa.record_batch({"k": range(first, first + count)}, schema=SCHEMA)


class Counts(arrowstate.BatchFunction):
    def open(self, context):
        self.count = context.state(arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count"))

    def process_batch(self, batch, context):
        self.count.add_batch(batch["k"], batch["k"])


class Seen(MapFunction):
    def open(self, context):
        self.seen = context.operator_state(SEEN)

    def process_batch(self, batch):
        self.seen.add_all(batch["k"].to_pylist())
        return batch


def files(snapshot):
    """The files of the state of functions."""
    operators = [operator for operator in snapshot.entry.operators if operator.uid in ("counts", "seen")]
    return set(ReferenceReader(snapshot.storage).files(operators))


def declared(folder, **options):
    """A job that soon has most of its state, so that no run of it is merged with the few rows that come later."""
    job = Job(folder / "store", restart=Restart.none(), **options)
    many = job.source(GeneratorSource(numbered, SCHEMA, rows=40_000, splits=2, batch_rows=10_000), uid="many")
    few = job.source(
        GeneratorSource(lambda first, count: numbered(50_000 + first, count), SCHEMA, batch_rows=1), uid="few"
    )
    seen = many.map_batches(Seen(), uid="seen", schema=SCHEMA)
    seen.union(few).stateful(Counts(), key=["k"], uid="counts")
    return job


def rows_read(running, source):
    """How many rows the subtasks of a source have read."""
    return sum(task.rows_in for slot in running.driver.inline.slots for task in slot.tasks if task.uid == source)


@pytest.mark.parametrize("mode", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("seed", range(4))
def test_a_full_checkpoint_refers_to_no_state_that_an_earlier_one_has_written(tmp_path, seed, mode):
    with declared(tmp_path, parallelism=2, mode=mode).start(mode="inline", seed=seed) as running:
        while rows_read(running, "many") < 40_000:
            running.go_on(10)
        taken = [running.checkpoint(full=full) for full in (False, False, True, False)]
        again = running.stop()
    first, second, full, third = map(files, taken)

    assert first & second
    assert full.isdisjoint(first | second)
    assert full & third & files(again)
    for snapshot in taken:
        assert snapshot.sql("select count(*), min(count), max(count) from counts.count where k < 50000").fetchall() == [
            (40_000, 1, 1)
        ]
        assert snapshot.sql("select count(distinct seen) from seen.seen").fetchall() == [(40_000,)]


def test_a_full_checkpoint_that_fails_leaves_the_next_incremental(tmp_path):
    with declared(tmp_path, options=CheckpointOptions(tolerated_failures=3)).start(mode="inline") as running:
        while rows_read(running, "many") < 40_000:
            running.go_on(10)
        before = running.checkpoint()
        running.driver.inline.write_failures = 1.0
        with pytest.raises(arrowstate.CheckpointAbortedError):
            running.checkpoint(full=True)
        running.driver.inline.write_failures = 0.0
        after = running.checkpoint()

    assert files(before) & files(after)
