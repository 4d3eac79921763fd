"""Operator state in functions, and what functions are told of checkpoints."""

from typing import ClassVar

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.errors import IncompatibleStateError, InvalidInputError, JobFailedError
from arrowstate.runtime import GeneratorSource, Job, MapFunction, OutputTable, Restart, TableSource

NUMBERS = pa.schema([("n", pa.int64())])
BUFFERED = arrowstate.OperatorListStateDescriptor("buffered", pa.int64())
SEEN = arrowstate.OperatorListStateDescriptor("seen", pa.int64(), mode="union")


class BufferingSink(MapFunction):
    """The example of Flink's documentation: rows are given on when a threshold is reached, and are state until then."""

    def __init__(self, threshold):
        self.threshold = threshold

    def open(self, context):
        self.checkpointed = context.operator_state(BUFFERED)
        self.buffered = self.checkpointed.get() if context.is_restored else []

    def process_batch(self, batch):
        self.buffered += batch["n"].to_pylist()
        if len(self.buffered) < self.threshold:
            return None
        emitted, self.buffered = self.buffered, []
        return pa.record_batch({"n": emitted}, schema=NUMBERS)

    def snapshot_state(self, checkpoint_id, context):
        self.checkpointed.update(self.buffered)


def numbered(first, count):
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def declared(folder, function, *, parallelism=1, count=None, uid="buffer", **options):
    job = Job(folder / "store", parallelism=parallelism, restart=Restart.none(), **options)
    source = GeneratorSource(numbered, NUMBERS, rows=count, splits=6, batch_rows=8)
    job.source(source, uid="numbers").map_batches(function, uid=uid, schema=NUMBERS).sink(OutputTable("given"))
    return job


def values(snapshot, query):
    return sorted(value for (value,) in snapshot.sql(query).fetchall())


def test_a_buffering_sink_loses_nothing_when_it_is_rescaled_from_two_to_three_to_one(tmp_path):
    running = declared(tmp_path, BufferingSink(70), parallelism=2).start(mode="inline", seed=3)
    held = []
    with running:
        for parallelism in (3, 1):
            running.go_on(60)
            before = running.checkpoint()
            running.rescale(parallelism=parallelism)
            running.go_on(40)
            after = running.checkpoint()
            held += [values(snapshot, "select buffered from buffer.buffered") for snapshot in (before, after)]
        last = running.stop()

    found = values(last, "select n from given.rows union all select buffered from buffer.buffered")
    read = last.operator_state("numbers", "splits")["splits"].to_pylist()
    assert any(held)
    assert len(found) == len(set(found)) == sum(split["position"] for split in read) > 500
    # A split has every sixth block of eight numbers, and is read from its beginning.
    for number in range(6):
        own = [value for value in found if value // 8 % 6 == number]
        assert own == [value for value in range(max(own) + 1) if value // 8 % 6 == number]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_each_subtask_of_a_restored_job_has_its_piece_of_a_list_and_all_of_a_union(tmp_path, parallelism):
    class Keeping(BufferingSink):
        def open(self, context):
            super().open(context)
            self.seen = context.operator_state(SEEN)
            self.had = (list(self.buffered), sorted(self.seen.get()))

        def process_batch(self, batch):
            return pa.record_batch({"n": [len(self.had[0]), len(self.had[1])]}, schema=NUMBERS)

        def snapshot_state(self, checkpoint_id, context):
            super().snapshot_state(checkpoint_id, context)
            self.seen.update(self.buffered)

    class First(Keeping):
        def process_batch(self, batch):
            self.buffered += batch["n"].to_pylist()

    declared(tmp_path, First(0), parallelism=2, count=60).run(mode="inline")

    job = Job(tmp_path / "store", parallelism=parallelism, restart=Restart.none(), allow_non_restored_state=True)
    rows = job.source(GeneratorSource(numbered, NUMBERS, rows=parallelism, splits=parallelism), uid="one-each")
    rows.map_batches(Keeping(0), uid="buffer", schema=NUMBERS).sink(OutputTable("sizes"))
    sizes = values(job.run(mode="inline"), "select n from sizes.rows")

    pieces = sizes[: len(sizes) // 2]
    assert sizes[len(sizes) // 2 :] == [60] * parallelism
    assert sum(pieces) == 60 if parallelism > 1 else pieces == [60]


def test_a_keyed_function_has_operator_state_beside_the_state_of_its_keys(tmp_path):
    class Counting(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
            self.rows = context.operator_state(arrowstate.OperatorListStateDescriptor("counted", pa.int64()))
            self.count = sum(self.rows.get())

        def process_element(self, value, context, out):
            self.total.add(value.n)
            self.count += 1

        def snapshot_state(self, checkpoint_id, context):
            self.rows.update([self.count])

    for parallelism in (2, 3):
        job = Job(tmp_path / "store", parallelism=parallelism, restart=Restart.none())
        rows = job.source(GeneratorSource(numbered, NUMBERS, rows=100, splits=2), uid="numbers")
        rows.stateful(Counting(), key=["n"], uid="counting")
        snapshot = job.run(mode="inline")

    assert values(snapshot, "select sum(counted) from counting.counted") == [100]
    assert values(snapshot, "select count(*) from counting.total") == [100]


def test_a_broadcast_state_of_a_function_is_the_same_in_every_subtask_after_a_rescale(tmp_path):
    limits = arrowstate.BroadcastStateDescriptor("limits", pa.string(), pa.int64())

    class Limited(MapFunction):
        def open(self, context):
            self.limits = context.operator_state(limits)
            self.restored = context.is_restored

        def process_batch(self, batch):
            if self.restored:
                return pa.record_batch({"n": [self.limits.get("most")]}, schema=NUMBERS)
            self.limits.put("most", 7)
            return None

    declared(tmp_path, Limited(), parallelism=2, count=60, uid="limited").run(mode="inline")
    job = Job(tmp_path / "store", parallelism=3, restart=Restart.none(), allow_non_restored_state=True)
    rows = job.source(GeneratorSource(numbered, NUMBERS, rows=6, splits=3), uid="again")
    rows.map_batches(Limited(), uid="limited", schema=NUMBERS).sink(OutputTable("found"))

    assert set(values(job.run(mode="inline"), "select n from found.rows")) == {7}


class Told(BufferingSink):
    """Notes what it is told, in a place that outlives its copies."""

    notes: ClassVar[list]

    def __init__(self):
        super().__init__(1)

    def __deepcopy__(self, memo):
        return type(self)()

    def on_checkpoint_complete(self, checkpoint_id):
        self.notes.append(("complete", checkpoint_id))

    def on_checkpoint_aborted(self, checkpoint_id):
        self.notes.append(("aborted", checkpoint_id))


def test_functions_are_told_of_each_checkpoint_that_was_committed(tmp_path):
    class Noting(Told):
        notes: ClassVar[list] = []

    with declared(tmp_path, Noting(), parallelism=2).start(mode="inline") as running:
        for _ in range(3):
            running.go_on(10)
            running.checkpoint()
        last = running.stop()

    told = [number for what, number in Noting.notes if what == "complete"]
    assert sorted(told) == sorted(2 * [*range(1, last.checkpoint_id + 1)])
    assert all(what == "complete" for what, _ in Noting.notes)


def test_a_hook_that_raises_declines_the_checkpoint_and_the_state_stays_as_it_was(tmp_path):
    class Failing(Told):
        notes: ClassVar[list] = []
        fail = True

        def snapshot_state(self, checkpoint_id, context):
            self.checkpointed.update([-1])
            if type(self).fail:
                raise ValueError("not now")
            assert self.checkpointed.get() == [-1]
            self.checkpointed.update(self.buffered)

    options = CheckpointOptions(interval_ms=10_000, tolerated_failures=3)
    job = declared(tmp_path, Failing(), options=options)

    with job.start(mode="inline") as running:
        running.go_on(10)
        with pytest.raises(arrowstate.CheckpointAbortedError, match="snapshot_state.*not now"):
            running.checkpoint()
        Failing.fail = False
        running.go_on(10)
        last = running.checkpoint()

    assert ("aborted", 1) in Failing.notes
    assert values(last, "select buffered from buffer.buffered") == []


def test_functions_are_told_once_of_a_checkpoint_that_was_given_up_beside_the_next(tmp_path):
    class Failing(Told):
        notes: ClassVar[list] = []

        def snapshot_state(self, checkpoint_id, context):
            if checkpoint_id == 1:
                raise ValueError("not now")
            super().snapshot_state(checkpoint_id, context)

    options = CheckpointOptions(interval_ms=None, max_concurrent=2, tolerated_failures=3)
    answers = []

    with declared(tmp_path, Failing(), parallelism=2, options=options).start(mode="inline") as running:
        running.go_on(10)
        for _ in range(2):
            running.driver.coordinator.request_checkpoint(lambda *answer: answers.append(answer))
        while len(answers) < 2:
            running.go_on(1)
        for _ in range(3):
            # The coordinator tells of a checkpoint that was given up again, for a message may be lost.
            running.driver.inline.clock_ms += 1_500
            running.go_on(20)

    assert sorted(Failing.notes[:4]) == 2 * [("aborted", 1)] + 2 * [("complete", 2)]
    assert [note for note in Failing.notes if note == ("aborted", 1)] == 2 * [("aborted", 1)]


def test_state_that_a_batch_wrote_which_is_set_aside_is_gone(tmp_path):
    class Refusing(MapFunction):
        def open(self, context):
            self.kept = context.operator_state(BUFFERED)

        def process_batch(self, batch):
            self.kept.add_all(batch["n"].to_pylist())
            if 5 in batch["n"].to_pylist():
                raise ValueError("five")

    job = Job(tmp_path / "store", restart=Restart.none())
    rows = job.source(TableSource(pa.table({"n": range(8)})), uid="numbers")
    rows.map_batches(Refusing(), uid="keep", schema=NUMBERS, on_error="dead_letter", dead_letters="bad")

    snapshot = job.run(mode="inline")

    assert values(snapshot, "select buffered from keep.buffered") == [0, 1, 2, 3, 4, 6, 7]
    assert values(snapshot, "select row.n from bad.rows") == [5]


def test_functions_are_closed_and_an_open_that_raises_names_its_uid(tmp_path):
    closed = []

    class Closing(BufferingSink):
        def __deepcopy__(self, memo):
            return Closing(self.threshold)

        def open(self, context):
            super().open(context)
            if self.threshold < 0:
                raise ValueError("below zero")

        def close(self):
            closed.append(self.threshold)

    declared(tmp_path, Closing(5), count=10).run(mode="inline")
    with pytest.raises(JobFailedError, match="'?buffer'?.*below zero"):
        declared(tmp_path, Closing(-1), count=10).run(mode="inline")

    assert closed == [5, -1]


class Plain(MapFunction):
    def process_batch(self, batch):
        return batch


class Asking(Plain):
    def __init__(self, name):
        self.name = name

    def open(self, context):
        context.operator_state(arrowstate.OperatorListStateDescriptor(self.name, pa.int64()))


def test_a_function_without_state_needs_no_uid(tmp_path):
    job = Job(tmp_path / "store")
    rows = job.source(TableSource(pa.table({"n": [1, 2]})), uid="numbers")
    rows.map_batches(Plain(), schema=NUMBERS).sink(OutputTable("same"))

    assert values(job.run(mode="inline"), "select n from same.rows") == [1, 2]


@pytest.mark.parametrize(
    ("name", "uid", "message"),
    [
        ("kept", None, "there is no operator state here for 'kept'"),
        ("rows", "asking", "the job itself has states here named 'pending', 'rows', 'splits'; name 'rows' otherwise"),
    ],
)
def test_state_that_there_cannot_be_is_refused(tmp_path, name, uid, message):
    job = Job(tmp_path / "store", restart=Restart.none())
    rows = job.source(TableSource(pa.table({"n": [1]})), uid="numbers")
    rows.map_batches(Asking(name), uid=uid, schema=NUMBERS)

    with pytest.raises(JobFailedError, match=message):
        job.run(mode="inline")


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda rows: rows.map_batches(Plain()), "needs schema="),
        (lambda rows: rows.map_batches(lambda batch: batch, uid="x"), "a uid is for a MapFunction"),
        (lambda rows: rows.union(rows).map_batches(Plain(), uid="x", schema=NUMBERS), "follows a union"),
        (lambda rows: rows.map_batches(Plain(), uid="numbers", schema=NUMBERS), "'numbers' is taken"),
    ],
)
def test_what_cannot_be_declared_is_refused(tmp_path, declare, message):
    rows = Job(tmp_path / "store").source(TableSource(pa.table({"n": [1]})), uid="numbers")

    with pytest.raises(InvalidInputError, match=message):
        declare(rows)


def test_another_type_of_a_stored_state_and_another_kind_of_a_uid_are_refused(tmp_path):
    class Text(Plain):
        def open(self, context):
            context.operator_state(arrowstate.OperatorListStateDescriptor("buffered", pa.string()))

    declared(tmp_path, BufferingSink(7), count=20).run(mode="inline")

    with pytest.raises(JobFailedError) as failed:
        declared(tmp_path, Text(), count=20).run(mode="inline")
    job = Job(tmp_path / "store", restart=Restart.none(), allow_non_restored_state=True)
    job.source(TableSource(pa.table({"n": [1]})), uid="buffer")
    with pytest.raises(InvalidInputError, match="'buffer' is a function of map_batches in the store and a source in"):
        job.start(mode="inline")

    assert isinstance(failed.value.__cause__, IncompatibleStateError) or "buffered" in str(failed.value)


def test_what_the_store_has_of_a_function_that_is_not_declared_is_not_let_go_unasked(tmp_path):
    declared(tmp_path, BufferingSink(7), count=20).run(mode="inline")
    job = Job(tmp_path / "store")
    job.source(GeneratorSource(numbered, NUMBERS, rows=20, splits=6), uid="numbers").sink(OutputTable("given"))

    with pytest.raises(InvalidInputError, match="a function of map_batches named 'buffer', which the job does not"):
        job.start(mode="inline")
