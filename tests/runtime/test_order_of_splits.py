"""Splits after a restart: dealt so that nothing comes late, each stored once, and those of other arguments refused."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.errors import SourceError
from arrowstate.runtime import (
    ChangesSource,
    FileSource,
    GeneratorSource,
    IteratorSource,
    Job,
    Restart,
    Split,
    TableSource,
    Watermarks,
)
from arrowstate.runtime.core.assembling import stored_splits
from arrowstate.runtime.core.assignment import Assignment
from arrowstate.runtime.core.messages import SplitState
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction

SCHEMA = pa.schema({"country": pa.string(), "at": pa.int64(), "n": pa.int64()})
TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")


def written(folder, number: int, first: int, count: int) -> int:
    """Write a file of rows in the order of their event time, and return the next row."""
    rows = range(first, first + count)
    columns = {"country": ["CH" if row % 3 else "DE" for row in rows], "at": [row * 300 for row in rows]}
    # Not in the order of their names.
    path = folder / f"{number * 37 % 101:03}.parquet"
    hidden = folder / f".{number}"
    pq.write_table(pa.table({**columns, "n": [1] * count}, schema=SCHEMA), hidden, row_group_size=50)
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(path)
    return first + count


def declared(store, folder, parallelism: int, *, is_bounded: bool = True) -> Job:
    job = Job(store, parallelism=parallelism, max_parallelism=8)
    source = FileSource(folder, schema=SCHEMA, is_bounded=is_bounded, discovery_ms=5)
    windows = WindowFunction(
        TumblingEventTimeWindows(3_000),
        arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="sum"),
        timestamp="at",
    )
    rows = job.source(source, uid="rows", watermarks=Watermarks("at"))
    rows.stateful(windows, key=["country"], uid="windows").sink(OutputTable("fired"))
    return job


def late(running) -> int:
    return sum(task.late_rows for task in running.status().tasks)


def in_windows(snapshot) -> int:
    return snapshot.sql("select sum(rows.n) from fired.rows").fetchall()[0][0]


@pytest.fixture
def small_batches(monkeypatch):
    from arrowstate.runtime.core import task

    monkeypatch.setattr(task, "FRAME_ROWS", 20)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("parallelisms", [[2, 2, 2], [3, 3], [2, 3, 1, 4], [5, 2, 3], [1, 4, 2]], ids=str)
def test_nothing_comes_late_after_restarts_and_rescales_that_was_not_late_without(tmp_path, parallelisms):
    (tmp_path / "in").mkdir()
    rows = 0
    for number in range(11):
        rows = written(tmp_path / "in", number, rows, [40, 200, 5, 90][number % 4])
    was_late = 0

    for number, parallelism in enumerate(parallelisms[:-1]):
        with declared(tmp_path / "store", tmp_path / "in", parallelism).start(mode="inline", seed=number) as running:
            running.go_on(70)
            was_late += late(running)
            running.stop()
    with declared(tmp_path / "store", tmp_path / "in", parallelisms[-1]).start(mode="inline") as running:
        snapshot = running.wait()
        was_late += late(running)

    assert was_late == 0
    assert in_windows(snapshot) == rows


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("first", [1, 3])
def test_nothing_comes_late_of_files_that_are_found_while_the_job_runs(tmp_path, first):
    (tmp_path / "in").mkdir()
    rows = number = 0
    was_late = 0

    for start in range(3):
        with declared(tmp_path / "store", tmp_path / "in", 2, is_bounded=False).start(
            mode="inline", seed=start
        ) as running:
            for _ in range(4):
                for _ in range(first):
                    rows = written(tmp_path / "in", number, rows, [40, 130, 5][number % 3])
                    number += 1
                running.go_on(60)
            was_late += late(running)
            running.stop()
    with declared(tmp_path / "store", tmp_path / "in", 2).start(mode="inline") as running:
        snapshot = running.wait()
        was_late += late(running)

    assert was_late == 0
    assert in_windows(snapshot) == rows


def test_a_slot_without_splits_gets_its_first_before_others_get_more(tmp_path):
    (tmp_path / "in").mkdir()
    assignment = Assignment(declared(tmp_path / "store", tmp_path / "in", 3, is_bounded=False).graph, range(3))
    assignment.deal({"rows": [SplitState("0", slot=0)]}, 0)
    found = [Split(str(number)) for number in range(7)]

    first, second, third = (assignment.discovered("rows", found) for _ in range(3))

    assert {slot: [split.id for split in splits] for slot, splits in first.items()} == {1: ["1"], 2: ["2"]}
    assert {slot: [split.id for split in splits] for slot, splits in second.items()} == {
        0: ["3", "6"],
        1: ["4"],
        2: ["5"],
    }
    assert [split.number for splits in second.values() for split in splits] == [3, 6, 4, 5]
    assert not third


def files_of(running) -> list[list[str]]:
    """The files that each slot has yet to read to their end, in its order."""
    sources = [slot.tasks[-1].splits for slot in running.driver.inline.slots]
    return [[split.id for split in source.states if not split.finished] for source in sources]


@pytest.mark.usefixtures("small_batches")
def test_after_a_failure_each_slot_goes_on_with_its_own_files(tmp_path):
    (tmp_path / "in").mkdir()
    rows = 0
    for number in range(10):
        rows = written(tmp_path / "in", number, rows, [20, 200][number % 2])
    job = declared(tmp_path / "store", tmp_path / "in", 2)
    job.restart = Restart.fixed(delay_ms=0)

    with job.start(mode="inline", seed=3) as running:
        running.go_on(60)
        snapshot = running.checkpoint()
        running.driver.inline.kill(1)
        while not running.status().restarts or running.status().restarts[-1].running_at_ms is None:
            running.go_on(1)
        after = files_of(running)

    stored = stored_splits(snapshot.storage, snapshot.entry, "rows")
    before = [[split.id for split in stored if split.slot == slot and not split.finished] for slot in range(2)]
    # The first slot has small files, so it is further.
    assert 0 < len(before[0]) < len(before[1])
    assert before == after


class Totals(arrowstate.BatchFunction):
    def open(self, context):
        self.total = context.state(TOTAL)

    def process_batch(self, batch, context):
        self.total.add_batch(context.key_columns(batch), batch["n"])


def summed(store, source, parallelism: int = 1) -> Job:
    job = Job(store, parallelism=parallelism, options=arrowstate.CheckpointOptions(interval_ms=3))
    job.source(source, uid="rows").stateful(Totals(), key=["country"], uid="totals")
    return job


def table(count: int) -> pa.Table:
    return pa.table({"country": ["CH"] * count, "at": [0] * count, "n": [1] * count}, schema=SCHEMA)


def numbered(first: int, count: int) -> pa.RecordBatch:
    return table(count).to_batches()[0] if count else pa.RecordBatch.from_pylist([], schema=SCHEMA)


def made(split: int, position: int):
    yield table(100 - position).to_batches()[0]


def test_a_split_stands_once_in_every_checkpoint():
    store = "memory://order-once"
    summed(store, TableSource(table(3_000), splits=4), 2).run(mode="inline")

    opened = arrowstate.open_store(store)
    found = [
        opened.snapshot(entry.checkpoint_id).sql("select split, number, finished from rows.splits").fetchall()
        for entry in opened.checkpoints()
    ]

    assert len(found) > 1
    assert all(sorted(number for _, number, _ in splits) == [0, 1, 2, 3] for splits in found)
    assert all(finished for *_, finished in max(found, key=lambda splits: sum(split[2] for split in splits)))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (TableSource(table(300), splits=2), TableSource(table(300), splits=4), "other arguments"),
        (TableSource(table(300), splits=4), TableSource(table(300)), "other arguments"),
        (TableSource(table(100), splits=3), TableSource(table(200), splits=3), "other arguments"),
        (TableSource(table(100)), TableSource(table(200)), "after 100 rows, and has 200 rows now"),
        (TableSource(table(100)), GeneratorSource(numbered, SCHEMA), "has no end now"),
        (
            GeneratorSource(numbered, SCHEMA, rows=300, splits=2, batch_rows=10),
            GeneratorSource(numbered, SCHEMA, rows=500, splits=2, batch_rows=10),
            "after 150 rows, and has 250 rows now",
        ),
        (IteratorSource(made, SCHEMA, splits=2), IteratorSource(made, SCHEMA, splits=3), "other arguments"),
        (IteratorSource(made, SCHEMA, splits=2), IteratorSource(made, SCHEMA), "other arguments"),
    ],
)
def test_a_source_that_was_read_to_its_end_is_refused_with_other_splits_or_rows(before, after, told):
    store = f"memory://order-refused-{id(after)}"
    last = summed(store, before).run(mode="inline")

    with pytest.raises(SourceError, match=f"source 'rows'.*{told}"):
        summed(store, after).start(mode="inline")

    opened = arrowstate.open_store(store)
    assert opened.latest().checkpoint_id == last.checkpoint_id


def test_a_table_that_was_read_to_its_end_may_have_lost_rows_for_none_is_read_again():
    store = "memory://order-lost"
    summed(store, TableSource(table(100))).run(mode="inline")

    last = summed(store, TableSource(table(50))).run(mode="inline")

    assert last.sql("select total from totals.total").fetchall() == [(100,)]


def rows_of_a_stopped_job(store):
    """Stop a job in the middle of its source, and return how many rows it has read."""
    with summed(store, GeneratorSource(numbered, SCHEMA, rows=10**9)).start(mode="inline") as running:
        running.go_on(10)
        stopped = running.stop()
    return stopped.sql("select position from rows.splits").fetchall()[0][0]


def test_a_table_that_grows_while_it_is_read_is_read_on():
    store = "memory://order-grows"
    read = rows_of_a_stopped_job(store)

    last = summed(store, GeneratorSource(numbered, SCHEMA, rows=read + 5)).run(mode="inline")

    assert read > 0
    assert last.sql("select total from totals.total").fetchall() == [(read + 5,)]


def test_a_table_that_lost_rows_while_it_was_read_is_refused_before_a_row_is_read():
    store = "memory://order-shrinks"
    read = rows_of_a_stopped_job(store)

    with pytest.raises(SourceError, match=f"source 'rows', split '0' from position {read}: the split has only 1 rows"):
        summed(store, GeneratorSource(numbered, SCHEMA, rows=1)).start(mode="inline")

    last = summed(store, GeneratorSource(numbered, SCHEMA, rows=read)).run(mode="inline")
    assert read > 1
    assert last.sql("select total from totals.total").fetchall() == [(read,)]


def test_a_feed_of_changes_is_refused_with_another_number_of_splits():
    fed = "memory://order-fed"
    summed(fed, TableSource(table(10))).run(mode="inline")

    def following(splits: int) -> Job:
        job = Job("memory://order-following")
        job.source(ChangesSource(fed, "totals.total", splits=splits), uid="rows").sink(OutputTable("seen"))
        return job

    with following(2).start(mode="inline") as running:
        running.go_on(50)
        running.stop()

    with pytest.raises(SourceError, match="source 'rows'.*other arguments"):
        following(3).start(mode="inline")
