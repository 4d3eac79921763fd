"""Splits that were read to their end: never read again, and no burden of the checkpoints that follow."""

import statistics

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.runtime import Batch, EndOfSplit, Job, OutputTable, PrintSink, Reader, Source, Split, Watermarks
from arrowstate.runtime.core.assembling import PROPERTY


class Files(Source):
    """As many splits as it is told, each of one row with its number, some of which do not end."""

    schema = pa.schema({"n": pa.int64()})
    is_bounded = False
    discovery_ms = 1
    there = 0
    open: frozenset[int] = frozenset()
    empty = False
    ended = 0
    read: list[int] = []  # noqa: RUF012 (of all readers on purpose)

    def discover(self, known):
        return [Split(f"part-{number:08}.parquet") for number in range(len(known), self.there)]

    def reader(self):
        return _FilesReader()


class _FilesReader(Reader):
    def __init__(self) -> None:
        self.waiting: list[tuple[Split, int]] = []

    def add(self, splits):
        self.waiting += [(split, int(split.id[5:-8])) for split in splits]

    def read(self, max_rows):
        while self.waiting:
            split, number = self.waiting[-1]
            if split.position is None and not Files.empty:
                self.waiting[-1] = Split(split.id, 1), number
                Files.read.append(number)
                return Batch(pa.record_batch({"n": [number]}), split.id, 1)
            self.waiting.pop()
            Files.ended += 1
            if number not in Files.open:
                return EndOfSplit(split.id)
        return None


@pytest.fixture(autouse=True)
def files():
    Files.there, Files.open, Files.empty, Files.ended, Files.read = 0, frozenset(), False, 0, []
    return Files


def started(store: str, **options):
    watermarks = options.pop("watermarks", None)
    job = Job(store, options=CheckpointOptions(interval_ms=None), **options)
    job.source(Files(), uid="files", watermarks=watermarks).sink(OutputTable("rows_read"))
    return job.start(mode="inline")


def read_up_to(running, count: int) -> None:
    Files.there = count
    for _ in range(100_000):
        running.go_on(20)
        sources = [slot.tasks[-1] for slot in running.driver.inline.slots if slot.tasks]
        waiting = sum(len(source.splits._reader.waiting) for source in sources)
        if max(len(Files.read), Files.ended) >= count and not waiting and sources:
            return
    raise AssertionError("they were never read")


def test_a_checkpoint_costs_what_was_read_since_the_one_before(monkeypatch):
    monkeypatch.setattr(Files, "discovery_ms", 50)
    Files.empty = True
    job = Job("memory://finished-cost", options=CheckpointOptions(interval_ms=None))
    job.source(Files(), uid="files").sink(PrintSink(), uid="printed")
    costs = {}
    with job.start(mode="inline") as running:
        storage = running.store.storage
        for held in (125, 2_500):
            read_up_to(running, held)
            running.checkpoint()
            written = []
            for _ in range(7):
                before = set(storage.list(""))
                read_up_to(running, Files.there + 10)
                running.checkpoint()
                written.append(sum(len(storage.read(path)) for path in set(storage.list("")) - before))
            costs[held] = statistics.median(written)
        (count,) = running.sql("select count(*) from files.splits where finished").fetchall()[0]

    # All of the later would be twenty times as much.
    assert costs[2_500] < 1.5 * costs[125]
    assert count >= 2_570


def recorded(snapshot) -> int:
    """How many parts of splits a checkpoint has recorded."""
    return snapshot.entry.properties[PROPERTY]["recorded"].get("files", 0)


def splits_of(snapshot) -> dict[str, bool]:
    rows = snapshot.sql("select split, finished from files.splits").fetchall()
    return dict(rows)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_nothing_is_read_twice_after_a_restart(parallelism):
    Files.open = frozenset([3, 57])
    store = f"memory://finished-restart-{parallelism}"
    with started(store, parallelism=2) as running:
        for count in (20, 40, 60):
            read_up_to(running, count)
            running.checkpoint()
        snapshot = running.checkpoint()
    Files.open = frozenset()
    with started(store, parallelism=parallelism) as running:
        read_up_to(running, 70)
        last = running.checkpoint()
        again = running.checkpoint()

    assert recorded(snapshot) > 1
    # Of the two that were not finished the row had been read.
    assert sorted(Files.read) == list(range(70))
    assert sorted(row["n"] for row in last.sql("select n from rows_read.rows").to_arrow_table().to_pylist()) == [
        *range(70)
    ]
    assert splits_of(again) == {f"part-{number:08}.parquet": True for number in range(70)}
    assert again.sql("select count(*) from files.splits").fetchall() == [(70,)]


def test_what_a_checkpoint_that_was_given_up_has_seen_finished_is_recorded_by_the_next():
    with started("memory://finished-aborted") as running:
        read_up_to(running, 10)
        running.driver.inline.write_failures = 1.0
        with pytest.raises(arrowstate.CheckpointAbortedError):
            running.checkpoint()
        running.driver.inline.write_failures = 0.0
        read_up_to(running, 20)
        snapshot = running.checkpoint()
        after = running.checkpoint()

    assert recorded(snapshot) == 1
    assert len(splits_of(after)) == after.sql("select count(*) from files.splits").fetchall()[0][0] == 20


def test_a_slot_whose_splits_are_all_recorded_is_as_idle_after_a_restart_as_before(tmp_path):
    Files.open = frozenset([0])
    idle = []
    for _ in range(2):
        with started("memory://finished-idle", parallelism=2, watermarks=Watermarks("n")) as running:
            read_up_to(running, 4)
            running.checkpoint()
            running.checkpoint()
            idle.append([slot.tasks[-1].splits.is_idle for slot in running.driver.inline.slots])

    assert idle == [[False, False], [False, False]]


def test_a_source_with_positions_of_another_type_goes_on_and_knows_what_is_finished(monkeypatch):
    with started("memory://finished-type") as running:
        read_up_to(running, 5)
        running.checkpoint()
    monkeypatch.setattr(Files, "position_type", pa.int32())

    with started("memory://finished-type") as running:
        read_up_to(running, 8)
        snapshot = running.checkpoint()

    assert sorted(Files.read) == list(range(8))
    assert len(splits_of(snapshot)) == 8
