"""Sources of other stores: the contract, what the store is, and a store that goes back or has collected too much."""

import gc
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, NotFoundError, SourceError
from arrowstate.runtime.connectors import Batch, Reader, Split
from arrowstate.runtime.restart import is_unrecoverable
from arrowstate.runtime.sources.stores import ChangesSource, OutputSource
from arrowstate.testing import SourceConformance
from other_stores import Counts, Output, reader_of


@pytest.fixture
def output(tmp_path: Path) -> Output:
    output = Output(tmp_path / "store")
    output.commit(30, 0, 11)
    return output


class TestOutputSource(SourceConformance):
    @pytest.fixture
    def rows(self) -> pa.Table:
        return pa.table({"user": [f"u{n}" for n in range(41)], "n": range(41)})

    @pytest.fixture
    def source(self, output: Output) -> OutputSource:
        return output.source()


@pytest.fixture
def counts(tmp_path: Path) -> Counts:
    """A store of four checkpoints; nothing changes with the third."""
    counts = Counts(tmp_path / "store")
    counts.commit(dict.fromkeys(range(40), 1))
    counts.commit({**dict.fromkeys(range(30, 50), 2), 3: 1}, clear=[0, 1, 2])
    counts.commit({5: 1})
    counts.commit({5: 7, 100: 1}, clear=[30])
    return counts


class TestChangesSource(SourceConformance):
    @pytest.fixture(params=[("earliest", 1), ("earliest", 3), (None, 2), (1, 1), (2, 5)], ids=str)
    def options(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        return dict(zip(("starting", "splits"), request.param, strict=True))

    @pytest.fixture
    def rows(self, counts: Counts, options: dict[str, Any], source: ChangesSource) -> pa.Table:
        after, ids = {"earliest": (None, (1, 2, 3, 4)), None: (None, (4,)), 1: (1, (2, 3, 4)), 2: (2, (3, 4))}[
            options["starting"]
        ]
        return pa.Table.from_pylist(counts.changes(after, *ids), source.schema)

    @pytest.fixture
    def source(self, counts: Counts, options: dict[str, Any]) -> ChangesSource:
        return counts.source(**options)


def read(reader: Reader, *, max_rows: int = 1_000) -> list[dict[str, Any]]:
    """What there is now."""
    rows: list[dict[str, Any]] = []
    while isinstance(item := reader.read(max_rows), Batch):
        rows += item.rows.to_pylist()
    return rows


def counted(rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    return Counter(map(repr, rows))


def test_rows_that_are_committed_later_come_once_whatever_parts_they_are_in(output: Output) -> None:
    reader = reader_of(output.source())
    first = read(reader)

    output.commit(41, 5)
    second = read(reader)
    output.commit(46)
    third = read(reader)
    output.commit(3, 43, 1)
    fourth = read(reader)

    assert [[row["n"] for row in rows] for rows in (first, second, third, fourth)] == [
        list(range(41)),
        list(range(41, 46)),
        [],
        [46],
    ]


def test_a_table_is_read_from_its_end_if_that_was_asked_for_and_the_end_is_fixed_at_the_start(output: Output) -> None:
    source = output.source(starting="latest")
    splits = source.discover(())
    output.commit(41, 2)

    assert splits == [Split("rows", {"row": 41, "epoch": 1})]
    assert [row["n"] for row in read(reader_of(source, *splits))] == [41, 42]


@pytest.mark.parametrize("kind", ["output", "changes"])
def test_a_store_is_looked_at_at_intervals(tmp_path: Path, kind: str) -> None:
    now = [100.0]
    if kind == "output":
        output = Output(tmp_path)
        output.commit(3)
        reader = reader_of(output.source(discovery_ms=1_000, clock=lambda: now[0]))
    else:
        counts = Counts(tmp_path)
        counts.commit({1: 1})
        reader = reader_of(counts.source(discovery_ms=1_000, clock=lambda: now[0]))
    read(reader)
    now[0] += 1.0
    assert read(reader) == []
    output.commit(3, 1) if kind == "output" else counts.commit({2: 1})

    before = read(reader)
    now[0] += 0.9
    nearly = read(reader)
    now[0] += 0.2

    assert (before, nearly, len(read(reader))) == ([], [], 1)


def test_a_table_with_fewer_rows_than_were_read_is_an_error(output: Output) -> None:
    reader = reader_of(output.source())
    read(reader)
    output.commit(30)

    with pytest.raises(SourceError, match="'row': 41, .* only 30 are left: the store has gone back"):
        read(reader)
    with pytest.raises(SourceError, match="only 30 are left"):
        read(reader_of(output.source(), Split("rows", {"row": 31, "epoch": 1})))
    assert read(reader_of(output.source(), Split("rows", {"row": 30, "epoch": 1}))) == []


def test_rows_that_were_given_up_are_told_when_as_many_have_come_again(output: Output) -> None:
    reader, stopped = reader_of(output.source()), reader_of(output.source())
    read(reader)
    position = [batch.position for batch in iter(lambda: stopped.read(10), None)][-1]
    output.commit(30, 11)
    output.opened.rollback(1)
    output.commit(41)
    output.opened.rollback(1)
    read(reader)

    output.commit(30)
    output.commit(30, 20)

    for again in (reader, reader_of(output.source(), Split("rows", position))):
        with pytest.raises(SourceError, match="only 30 are left"):
            read(again)
    assert [row["n"] for row in read(reader_of(output.source(), Split("rows", {**position, "row": 30})))] == list(
        range(30, 50)
    )


def test_rows_are_read_on_where_the_checkpoint_that_gave_some_up_was_collected(output: Output) -> None:
    reader = reader_of(output.source())
    read(reader)
    output.commit(30)
    output.commit(41, 2)
    output.opened.collect(grace_ms=0, allow_short_grace=True).apply()

    assert [row["n"] for row in read(reader)] == [41, 42]


@pytest.mark.parametrize("position", [None, 3, {"row": 3}, {"row": -1, "epoch": 1}, {"row": True, "epoch": 1}], ids=str)
def test_what_is_no_position_of_a_table_is_refused(output: Output, position: Any) -> None:
    with pytest.raises(SourceError, match="a position must (have row, epoch|be the number of a row)"):
        read(reader_of(output.source(), Split("rows", position)))


def test_rows_whose_files_were_collected_are_read_where_they_are_now(tmp_path: Path) -> None:
    output = Output(tmp_path)
    # Large enough to be in a file of its own.
    output.commit(200_000, 200_000)
    reader = reader_of(output.source())
    first = reader.read(10)
    assert isinstance(first, Batch)
    output.commit(400_000)
    output.opened.collect(arrowstate.RetentionPolicy(count=1)).apply()

    rows = read(reader, max_rows=1_000_000)

    assert [row["n"] for row in rows] == list(range(10, 400_000))


def test_an_output_table_that_is_not_there_is_told_with_those_there_are(output: Output) -> None:
    with pytest.raises(NotFoundError, match="no output table 'alarms' in checkpoint 1; it has 'alerts'"):
        OutputSource(output.store, "alarms")
    with pytest.raises(NotFoundError, match="memory://no-such-store"):
        OutputSource("memory://no-such-store", "alerts")


@pytest.mark.parametrize("starting", ["first", 7])
def test_a_table_begins_at_one_of_its_ends(output: Output, starting: Any) -> None:
    with pytest.raises(InvalidInputError, match="starting must be 'earliest' or 'latest'"):
        output.source(starting=starting)


def test_what_changes_later_comes_with_the_checkpoint_it_came_with(counts: Counts) -> None:
    reader = reader_of(counts.source(starting="latest", splits=2))
    before = read(reader)

    counts.commit({1: 9}, clear=[100])
    counts.commit({2: 9})
    after = read(reader)

    assert before == []
    assert counted(after) == counted(counts.changes(4, 5, 6))


def test_the_end_of_a_feed_is_fixed_when_the_job_starts(counts: Counts) -> None:
    source = counts.source(starting="latest")
    splits = source.discover(())
    counts.commit({1: 9})

    assert counted(read(reader_of(source, *splits))) == counted(counts.changes(4, 5))


def test_all_changes_of_a_key_are_in_one_split_and_in_order(counts: Counts) -> None:
    seen: dict[int, str] = {}
    last: dict[int, int] = {}
    reader = reader_of(counts.source(starting="earliest", splits=4))

    while isinstance(batch := reader.read(3), Batch):
        for row in batch.rows.to_pylist():
            assert seen.setdefault(row["k"], batch.split) == batch.split
            assert last.get(row["k"], 0) <= row["_checkpoint_id"]
            last[row["k"]] = row["_checkpoint_id"]

    assert len(set(seen.values())) == 4


def test_a_feed_that_stands_still_needs_no_old_checkpoint(counts: Counts) -> None:
    source = counts.source(starting="earliest")
    reader = reader_of(source)
    positions = []
    while isinstance(batch := reader.read(1_000), Batch):
        positions.append(batch.position)
    counts.commit({5: 7})
    unchanged = reader.read(1_000)
    assert isinstance(unchanged, Batch)
    counts.opened.collect(arrowstate.RetentionPolicy(count=1)).apply()
    counts.commit({5: 8})

    assert unchanged.rows.num_rows == 0
    again = reader_of(source, Split(unchanged.split, unchanged.position))
    assert counted(read(again)) == counted(counts.changes(5, 6))
    assert [position["checkpoint_id"] for position in positions] == [1, 2, 3, 4]


def test_changes_that_were_collected_before_they_were_read_are_an_error(counts: Counts) -> None:
    source = counts.source(starting="earliest", splits=1, lease_ms=None)
    batch = reader_of(source).read(3)
    assert isinstance(batch, Batch)
    counts.opened.collect(arrowstate.RetentionPolicy(count=1)).apply()

    with pytest.raises(SourceError, match="CheckpointsCollectedError: the changes after checkpoint") as caught:
        read(reader_of(source, Split(batch.split, batch.position)))
    with pytest.raises(SourceError, match="CheckpointsCollectedError: the changes after checkpoint 1 need it"):
        read(reader_of(source, Split(batch.split, source.position(1))))

    assert caught.value.position == batch.position
    assert is_unrecoverable(caught.value)


@pytest.mark.parametrize("kind", ["output", "changes"])
def test_a_store_that_is_damaged_ends_the_job_that_reads_it(tmp_path: Path, kind: str) -> None:
    store: Output | Counts = Output(tmp_path) if kind == "output" else Counts(tmp_path)
    if isinstance(store, Output):
        # Large enough to be in a file of its own.
        store.commit(200_000)
    else:
        store.commit(dict.fromkeys(range(200_000), 1))
    source = store.source()
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))

    with pytest.raises(SourceError, match="CorruptDataError") as caught:
        read(reader_of(source))

    assert is_unrecoverable(caught.value)


def test_a_feed_holds_what_the_newest_checkpoint_of_its_job_has_not_read(counts: Counts) -> None:
    source = counts.source(starting="earliest", splits=1)
    reader = reader_of(source)
    batches = []
    while isinstance(batch := reader.read(1_000), Batch):
        batches.append(batch)
    newest_only = arrowstate.RetentionPolicy(count=1)

    def kept() -> list[int | None]:
        counts.opened.collect(newest_only).apply()
        return [found.checkpoint_id for found in counts.opened.checkpoints()]

    from_the_start = kept()
    reader.committed({batches[1].split: batches[1].position})
    from_the_second = kept()
    reader.close()
    after_its_end = kept()
    again = reader_of(source, Split(batches[1].split, batches[1].position))

    assert (from_the_start, from_the_second, after_its_end) == ([1, 2, 3, 4], [2, 3, 4], [2, 3, 4])
    assert counted(read(again)) == counted([row for batch in batches[2:] for row in batch.rows.to_pylist()])
    again.close()


def test_a_feed_that_is_forgotten_renews_its_lease_no_more(counts: Counts) -> None:
    before = set(threading.enumerate())
    reader = reader_of(counts.source(starting="earliest", splits=1))
    renewing = [thread for thread in set(threading.enumerate()) - before if thread.name == "arrowstate-lease"]

    del reader
    gc.collect()

    assert len(renewing) == 1
    renewing[0].join(60)
    assert not renewing[0].is_alive()


@pytest.mark.parametrize("lease_ms", [0, -1, 1.5, "1"])
def test_a_lease_of_no_time_is_refused(counts: Counts, lease_ms: Any) -> None:
    with pytest.raises(InvalidInputError, match="lease_ms"):
        counts.source(lease_ms=lease_ms)


def test_a_feed_of_a_store_that_has_gone_back_is_an_error(counts: Counts) -> None:
    source = counts.source()

    with pytest.raises(SourceError, match="the newest checkpoint of the store is 4: it has gone back"):
        read(reader_of(source, Split("0 of 1", source.position(9))))


def test_a_step_is_not_gone_on_with_in_another_schema(counts: Counts) -> None:
    source = counts.source(starting="earliest")
    batch = reader_of(source).read(3)
    assert isinstance(batch, Batch)
    position = {**batch.position, "schema_version": 7}

    with pytest.raises(SourceError, match="another schema"):
        read(reader_of(source, Split(batch.split, position)))
    assert read(reader_of(source, Split(batch.split, {**position, "row": 0})))


@pytest.mark.parametrize("split", [Split("0 of 2"), Split("0 of 1"), Split("0 of 1", 7), Split("0 of 1", {"row": 0})])
def test_what_is_no_split_or_position_of_a_feed_is_refused(counts: Counts, split: Split) -> None:
    with pytest.raises(SourceError, match="no such split; it has 0 of 1|a position must have checkpoint_id, before"):
        read(reader_of(counts.source(), split))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"starting": "first"}, "starting must be the id of a checkpoint, 'earliest' or 'latest', got 'first'"),
        ({"splits": 0}, "splits must be 1 to 128, got 0"),
        ({"splits": 129}, "splits must be 1 to 128, got 129"),
        ({"discovery_ms": -1}, "discovery_ms must be at least 0, got -1"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(counts: Counts, options: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        counts.source(**options)

    assert message in str(caught.value)


def test_a_state_that_is_not_there_is_told_with_those_there_are(counts: Counts) -> None:
    with pytest.raises(InvalidInputError, match=r"no state 'counter' in checkpoint 4; it has my.counter.counts"):
        ChangesSource(counts.store, "counter")
    with pytest.raises(NotFoundError, match="9"):
        counts.source(starting=9).discover(())
