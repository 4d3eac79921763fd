"""The change feed of a state in Spark: as a table between two checkpoints, and as a stream that follows them."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import ArrowStateError, CheckpointsCollectedError, InvalidInputError, StateNotFoundError
from arrowstate.log.pins import read_pins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNTS = arrowstate.ValueStateDescriptor("counts", pa.uint32())
State = dict[int, int]


class History:
    """A store of one state in two subtasks, and what the state was at each checkpoint."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.opened = arrowstate.open_store(store, create=True)
        self.states: dict[int, State] = {}
        ranges = [arrowstate.key_group_range(128, parallelism=2, subtask=subtask) for subtask in range(2)]
        key = pa.schema([("k", pa.int64())])
        self.backends = [
            arrowstate.KeyedStateBackend(key=key, max_parallelism=128, key_groups=groups) for groups in ranges
        ]

    def commit(self, *, put: Mapping[int, int], clear: Iterable[int] = ()) -> int:
        """Commit a checkpoint after some changes, and return its id."""
        state = dict(next(reversed(self.states.values()), {}))
        state.update(put)
        state = {key: value for key, value in state.items() if key not in set(clear)}
        for backend in self.backends:
            counts = backend.state(COUNTS)
            counts.update_batch(*self.own(backend, put))
            counts.clear_batch(self.own(backend, dict.fromkeys(clear, 0))[0])
        with self.opened.writer() as writer:
            checkpoint_id = writer.checkpoint({"counter": self.backends}).checkpoint_id
        assert checkpoint_id is not None
        self.states[checkpoint_id] = state
        return checkpoint_id

    def own(self, backend: Any, rows: Mapping[int, int]) -> tuple[pa.Array, pa.Array]:
        keys = pa.array(rows, pa.int64())
        groups = arrowstate.key_groups(keys, 128).to_pylist()
        mine = pa.array([group in backend.key_groups for group in groups], pa.bool_())
        return keys.filter(mine), pa.array(rows.values(), pa.uint32()).filter(mine)

    def plan(self, **options: str) -> Any:
        from arrowstate.spark.read.changes import ChangePlan

        base = {"path": str(self.store), "operator": "counter", "state": "counts", "readChangeFeed": "true"}
        return ChangePlan.from_options(base | options)

    def stream(self, **options: str) -> Any:
        plan = self.plan(**options)
        return plan.stream_reader(plan.schema)

    def table(self, **options: str) -> list[dict[str, Any]]:
        plan = self.plan(**options)
        reader = plan.reader(plan.schema)
        return read(reader, reader.partitions())

    def expected(self, after: int | None, *ids: int) -> set[tuple[Any, ...]]:
        """The changes of checkpoints, the first of them since the one before."""
        rows = set()
        for checkpoint_id in ids:
            old = {} if after is None else self.states[after]
            new = self.states[checkpoint_id]
            for key in old.keys() | new.keys():
                if key not in new:
                    rows.add((key, old[key], "delete", checkpoint_id))
                elif key not in old:
                    rows.add((key, new[key], "insert", checkpoint_id))
                elif old[key] != new[key]:
                    rows.add((key, old[key], "update_preimage", checkpoint_id))
                    rows.add((key, new[key], "update_postimage", checkpoint_id))
            after = checkpoint_id
        return rows


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Three checkpoints: all keys come; some change and one goes; one changes, one comes, one stays as it is."""
    history = History(tmp_path / "store")
    history.commit(put={key: key for key in range(40)})
    history.commit(put={1: 10, 2: 20}, clear=[3])
    history.commit(put={1: 11, 50: 50, 4: 4})
    return history


def read(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    return [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]


def as_set(rows: Iterable[Mapping[str, Any]]) -> set[tuple[Any, ...]]:
    tuples = [(row["k"], row["counts"], row["_change_type"], row["_checkpoint_id"]) for row in rows]
    assert len(set(tuples)) == len(tuples)
    return set(tuples)


def latest(reader: Any, start: dict[str, int], limit: Any = None) -> dict[str, int]:
    """What Spark gets: offsets go through JSON."""
    return dict(json.loads(json.dumps(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))))


def test_a_feed_is_a_table_of_the_changes_between_consecutive_checkpoints(spark: Any, history: History) -> None:
    from arrowstate.spark import register

    register(spark)
    first, second, third = history.states
    reader = spark.read.format("arrowstate").options(operator="counter", readChangeFeed="true")

    every = reader.load(str(history.store))
    frame = reader.option("startingCheckpoint", str(first)).option("endingCheckpoint", str(third))
    later = frame.load(str(history.store))

    assert every.schema.simpleString() == "struct<k:bigint,counts:bigint,_change_type:string,_checkpoint_id:bigint>"
    assert as_set(row.asDict() for row in later.collect()) == history.expected(first, second, third)
    assert as_set(row.asDict() for row in every.collect()) == history.expected(None, first, second, third)


def test_a_feed_ends_where_it_is_told_and_begins_at_a_tag(history: History) -> None:
    first, second, third = history.states
    history.opened.tag("start", first)

    assert as_set(history.table(startingCheckpoint="start", endingCheckpoint=str(second))) == history.expected(
        first, second
    )
    assert as_set(history.table(endingCheckpoint=str(second))) == history.expected(None, first, second)
    assert history.table(startingCheckpoint=str(third)) == []


def test_a_table_goes_over_what_was_collected_in_one_step(history: History) -> None:
    first, _, third = history.states
    history.opened.tag("kept", first)
    history.opened.collect(arrowstate.RetentionPolicy(count=1)).apply()

    assert as_set(history.table(startingCheckpoint="kept")) == history.expected(first, third)


def test_key_groups_columns_and_partitions_are_chosen_by_option(history: History) -> None:
    groups = arrowstate.key_groups(pa.array([1]), 128)[0].as_py()
    plan = history.plan(keyGroups="10-100", partitions="3", columns="counts,_key_group")
    reader = plan.reader(plan.schema)

    assert len(reader.partitions()) == 3
    assert {row["_key_group"] for row in read(reader, reader.partitions())} <= set(range(10, 101))
    assert plan.schema.names == ["counts", "_key_group", "_change_type", "_checkpoint_id"]
    assert {row["k"] for row in history.table(keyGroups=str(groups))} >= {1}


def test_a_stream_has_the_whole_state_first_and_then_what_changes(history: History) -> None:
    *_, third = history.states
    reader = history.stream()
    start = reader.initialOffset()
    first_end = latest(reader, start)
    fourth = history.commit(put={1: 12}, clear=[2])
    fifth = history.commit(put={2: 1})
    end = latest(reader, first_end)

    assert as_set(read(reader, reader.partitions(start, first_end))) == history.expected(None, third)
    assert as_set(read(reader, reader.partitions(first_end, end))) == history.expected(third, fourth, fifth)
    assert latest(reader, end) == end
    assert reader.partitions(end, end) == []


@pytest.mark.parametrize("starting", ["earliest", "latest", "id"])
def test_a_stream_begins_where_it_is_told(history: History, starting: str) -> None:
    first, second, third = history.states
    reader = history.stream(startingCheckpoint=str(second) if starting == "id" else starting)
    start = reader.initialOffset()
    fourth = history.commit(put={1: 12})

    rows = as_set(read(reader, reader.partitions(start, latest(reader, start))))

    assert rows == {
        "earliest": history.expected(None, first, second, third, fourth),
        "latest": history.expected(third, fourth),
        "id": history.expected(second, third, fourth),
    }[starting]  # fmt: skip


def test_the_earliest_checkpoint_of_a_stream_is_one_since_which_none_was_collected(history: History) -> None:
    first, second, third = history.states
    history.opened.tag("old", first)
    history.commit(put={1: 12})
    history.opened.collect(arrowstate.RetentionPolicy(count=2)).apply()
    reader = history.stream(startingCheckpoint="earliest")
    start = reader.initialOffset()
    *_, fourth = history.states

    rows = as_set(read(reader, reader.partitions(start, latest(reader, start))))

    assert [snapshot.checkpoint_id for snapshot in history.opened.checkpoints()] == [first, third, fourth]
    assert second not in {row[-1] for row in rows}
    assert rows == history.expected(None, third, fourth)


@pytest.mark.parametrize("starting", [None, "earliest", "latest"])
def test_a_first_batch_that_is_repeated_is_the_same(history: History, starting: str | None) -> None:
    options = {} if starting is None else {"startingCheckpoint": starting}
    reader = history.stream(**options)
    start = reader.initialOffset()
    history.commit(put={1: 12})
    end = latest(reader, start)
    rows = as_set(read(reader, reader.partitions(start, end)))
    history.commit(put={1: 13})

    # Spark asks for the begin of a first batch again when it repeats that batch, and by then it may be another.
    restarted = history.stream(**options)
    again = as_set(read(restarted, restarted.partitions(restarted.initialOffset(), end)))

    assert again == rows != set()


def test_a_micro_batch_has_no_more_checkpoints_than_allowed(history: History) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    first, second, third = history.states
    reader = history.stream(startingCheckpoint="earliest", maxCheckpointsPerTrigger="1")
    offsets = [reader.initialOffset()]
    for _ in range(4):
        offsets.append(latest(reader, offsets[-1]))

    assert [offset["checkpoint_id"] for offset in offsets] == [-1, first, second, third, third]
    batches = [read(reader, reader.partitions(*offsets[number : number + 2])) for number in range(3)]
    assert as_set(row for batch in batches for row in batch) == history.expected(None, first, second, third)
    assert latest(reader, offsets[0], ReadAllAvailable())["checkpoint_id"] == third


def test_checkpoints_that_come_after_the_start_of_an_available_now_query_are_left(history: History) -> None:
    *_, third = history.states
    reader = history.stream(startingCheckpoint="earliest")
    reader.prepareForTriggerAvailableNow()
    history.commit(put={1: 12})

    end = latest(reader, reader.initialOffset())

    assert end["checkpoint_id"] == third
    assert latest(reader, end) == end


def test_a_stream_that_lost_checkpoints_to_a_collection_says_so(history: History) -> None:
    reader = history.stream()
    start = reader.initialOffset()
    end = latest(reader, start)
    history.commit(put={1: 12})
    newest = history.commit(put={1: 13})
    planned = latest(reader, end)
    history.opened.collect(arrowstate.RetentionPolicy(count=1)).apply()

    message = f"after checkpoint {end['checkpoint_id']} .* it has {newest}: start anew"
    for read_on in (lambda: latest(reader, end), lambda: reader.partitions(end, planned)):
        with pytest.raises(CheckpointsCollectedError, match=message):
            read_on()


def test_a_stream_goes_on_where_only_what_it_has_read_was_collected(history: History) -> None:
    reader = history.stream()
    end = latest(reader, reader.initialOffset())
    history.opened.collect(arrowstate.RetentionPolicy(count=1)).apply()
    last = max(history.states)
    newest = history.commit(put={1: 12})

    assert as_set(read(reader, reader.partitions(end, latest(reader, end)))) == history.expected(last, newest)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"operator": ""}, InvalidInputError, "the option 'operator' is missing"),
        ({"state": "count"}, StateNotFoundError, "no state named 'count' .* it has 'counts'"),
        ({"columns": "k,m"}, InvalidInputError, "state counter.counts has no column 'm'; it has _key_hash, k, counts"),
        ({"checkpoint": "3"}, InvalidInputError, "unknown option 'checkpoint'; a change feed is read with readChange"),
        ({"maxCheckpointsPerTrigger": "none"}, InvalidInputError, "must be a whole number from 1, got 'none'"),
    ],
)  # fmt: skip
def test_wrong_options_say_what_there_is(
    history: History, options: dict[str, str], error: type[ArrowStateError], message: str
) -> None:
    with pytest.raises(error, match=message):
        history.plan(**options)


def test_options_without_meaning_for_a_table_or_a_stream_are_refused(history: History) -> None:
    with pytest.raises(InvalidInputError, match=r"are for spark\.readStream; as a table a change feed is read with"):
        history.table(maxCheckpointsPerTrigger="1")
    with pytest.raises(InvalidInputError, match=r"and 'latest' for 'startingCheckpoint', are for spark\.readStream"):
        history.table(startingCheckpoint="latest")
    with pytest.raises(InvalidInputError, match=r"'endingCheckpoint' is for spark\.read;"):
        history.stream(endingCheckpoint="2")
    with pytest.raises(InvalidInputError, match="starts after checkpoint 3 and ends before, at 1"):
        history.table(startingCheckpoint="3", endingCheckpoint="1")


def test_a_state_itself_is_no_stream(history: History) -> None:
    from arrowstate.spark.read.plans import plan_from_options

    plan = plan_from_options({"path": str(history.store), "operator": "counter"})

    with pytest.raises(InvalidInputError, match=r"is a table; stream what changes in it with .*readChangeFeed"):
        plan.stream_reader(plan.schema)


def test_a_query_that_fails_in_a_batch_has_every_change_once(spark: Any, history: History, tmp_path: Path) -> None:
    from arrowstate.spark import register

    register(spark)
    seen: dict[int, set[tuple[Any, ...]]] = {}
    failing = {1}

    def keep(frame: DataFrame, batch_id: int) -> None:
        rows = as_set(row.asDict() for row in frame.collect())
        assert seen.setdefault(batch_id, rows) == rows
        if batch_id in failing:
            failing.remove(batch_id)
            raise RuntimeError("the sink fails")

    def run() -> None:
        stream = spark.readStream.format("arrowstate").options(
            operator="counter", readChangeFeed="true", maxCheckpointsPerTrigger=2, startingCheckpoint="earliest"
        )
        writer = stream.load(str(history.store)).writeStream.foreachBatch(keep).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "spark")).start().awaitTermination()

    first, second, third = history.states
    with pytest.raises(Exception, match="the sink fails"):
        run()
    fourth = history.commit(put={1: 12, 60: 60}, clear=[4])
    run()

    batches = [seen[batch_id] for batch_id in sorted(seen)]
    assert batches == [
        history.expected(None, first, second),
        history.expected(second, third),
        history.expected(third, fourth),
    ]


def leases(history: History) -> list[tuple[int, bool]]:
    """Of each lease in the store its checkpoint, and whether it holds what comes after."""
    return [(pin.checkpoint_id, pin.and_later) for pin in read_pins(history.opened.storage) if pin.tag is None]


def collect_all_but_one(history: History) -> list[int | None]:
    history.opened.collect(arrowstate.RetentionPolicy(count=1)).apply()
    return [snapshot.checkpoint_id for snapshot in history.opened.checkpoints()]


def test_a_stream_with_a_lease_holds_what_it_has_not_read(history: History) -> None:
    first, second, third = history.states
    reader = history.stream(leaseSeconds="600", maxCheckpointsPerTrigger="1", startingCheckpoint="earliest")
    start = reader.initialOffset()
    ends = [latest(reader, start)]
    kept = [collect_all_but_one(history)]
    ends.append(latest(reader, ends[0]))
    fourth = history.commit(put={1: 12})
    kept.append(collect_all_but_one(history))
    ends.append(latest(reader, ends[1]))
    rows = [as_set(read(reader, reader.partitions(*pair))) for pair in itertools.pairwise(ends)]
    kept.append(collect_all_but_one(history))
    moved = leases(history)
    reader.stop()

    assert kept == [[first, second, third], [first, second, third, fourth], [second, third, fourth]]
    assert rows == [history.expected(first, second), history.expected(second, third)]
    assert moved == leases(history) == [(second, True)]


def test_a_micro_batch_that_is_repeated_is_held_by_a_lease_of_the_new_start(history: History) -> None:
    reader = history.stream(leaseSeconds="600")
    start = reader.initialOffset()
    end = latest(reader, start)
    for path in history.opened.storage.list("leases/"):
        history.opened.storage.delete(path)
    again = pickle.loads(pickle.dumps(reader))

    rows = as_set(read(again, again.partitions(start, end)))

    assert rows == history.expected(None, end["checkpoint_id"])
    assert leases(history) == [(end["checkpoint_id"], True)]
    again.stop()
    reader.stop()


def test_a_lease_is_for_a_stream(history: History) -> None:
    with pytest.raises(InvalidInputError, match=r"'leaseSeconds' is for spark\.readStream"):
        history.table(leaseSeconds="600")
    with pytest.raises(InvalidInputError, match="'leaseSeconds' must be a whole number from 1, got '0'"):
        history.stream(leaseSeconds="0")


@pytest.mark.parametrize("is_leased", [True, False])
def test_a_query_with_a_lease_goes_on_after_a_collection_that_came_while_it_was_stopped(
    spark: Any, history: History, tmp_path: Path, is_leased: bool
) -> None:
    from arrowstate.spark import register

    register(spark)
    options = {"operator": "counter", "readChangeFeed": "true", **({"leaseSeconds": "600"} if is_leased else {})}
    seen: list[set[tuple[Any, ...]]] = []

    def run() -> None:
        stream = spark.readStream.format("arrowstate").options(**options).load(str(history.store))
        writer = stream.writeStream.foreachBatch(
            lambda frame, _: seen.append(as_set(row.asDict() for row in frame.collect()))
        )
        writer = writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(availableNow=True)
        writer.start().awaitTermination()

    *_, third = history.states
    run()
    fourth = history.commit(put={1: 12, 60: 60}, clear=[4])
    fifth = history.commit(put={1: 13})
    kept = collect_all_but_one(history)

    if is_leased:
        run()
        assert kept == [third, fourth, fifth]
        assert [rows for rows in seen if rows] == [
            history.expected(None, third), history.expected(third, fourth, fifth)
        ]  # fmt: skip
    else:
        assert kept == [fifth]
        with pytest.raises(Exception, match="the changes after checkpoint 3 need it"):
            run()
