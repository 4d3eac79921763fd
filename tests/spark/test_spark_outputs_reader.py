"""Output tables in Spark: as a table of one checkpoint, and as a stream that no restart and no merge disturbs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
from arrowstate.errors import ArrowStateError, IncompatibleStateError, InvalidInputError, NotFoundError
from arrowstate.log.pins import read_pins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KIND = pa.struct([("user", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


class Twice(arrowstate.BatchFunction):
    """Keeps the sum of each key and emits every row of it with twice its value."""

    def open(self, context: Any) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
        values = batch["v"].fill_null(0)
        self.total.add_batch(batch["k"], values)
        return pa.record_batch({"k": batch["k"], "twice": pc.add(values, values)})


class Output:
    """A store with an output table, to whose end rows are added by new parts."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.opened = arrowstate.open_store(store, create=True)
        self.parts: list[list[int]] = []

    def commit(self, *counts: int) -> int:
        """Commit a checkpoint with so many more rows in so many new parts; a row's number is in its column `n`."""
        for count in counts:
            first = sum(map(len, self.parts))
            self.parts.append(list(range(first, first + count)))
        return self.write(self.parts)

    def merge(self, *sizes: int) -> int:
        """Commit the same rows in other parts."""
        rows = [row for part in self.parts for row in part]
        ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
        assert ends[-1] == len(rows)
        self.parts = [rows[start:end] for start, end in pairwise(ends)]
        return self.write(self.parts)

    def write(self, parts: Sequence[Sequence[int]], kind: pa.DataType = KIND, name: str = "alerts") -> int:
        backends = []
        for numbers in parts:
            backend = arrowstate.OperatorStateBackend()
            rows = backend.state(arrowstate.OperatorListStateDescriptor("rows", kind))
            rows.extend(pa.array([{"user": f"u{n}", "n": n, "at": n} for n in numbers], kind))
            backends.append(backend)
        with self.opened.writer() as writer:
            snapshot = writer.checkpoint({}, operator_states={name: backends}, allow_dropped_state=True)
        assert snapshot.checkpoint_id is not None
        return snapshot.checkpoint_id

    def plan(self, **options: str) -> Any:
        from arrowstate.spark.read.outputs import OutputPlan

        return OutputPlan.from_options({"path": str(self.store), "output": "alerts", **options})

    def stream(self, **options: str) -> Any:
        plan = self.plan(**options)
        return plan.stream_reader(plan.schema)


@pytest.fixture
def output(tmp_path: Path) -> Output:
    """A store with an output table of 5 rows in two parts."""
    output = Output(tmp_path / "store")
    output.commit(3, 2)
    return output


def read(reader: Any, partitions: Any) -> list[int]:
    return [row["n"] for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]


def latest(reader: Any, start: dict[str, int], limit: Any = None) -> dict[str, int]:
    """What Spark gets: offsets go through JSON."""
    return dict(json.loads(json.dumps(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))))


def test_an_output_is_a_table_of_one_checkpoint(spark: Any, output: Output) -> None:
    from arrowstate.spark import register

    register(spark)
    first = output.opened.latest().checkpoint_id
    output.commit(0, 4)
    reader = spark.read.format("arrowstate").option("output", "alerts")

    newest = reader.load(str(output.store))
    before = reader.option("checkpoint", str(first)).option("columns", "n,user").load(str(output.store))

    assert newest.schema.simpleString() == "struct<user:string,n:bigint,at:timestamp>"
    assert [row.n for row in newest.collect()] == list(range(9))
    assert [tuple(row) for row in before.collect()] == [(n, f"u{n}") for n in range(5)]


def test_parts_are_put_together_to_partitions_worth_a_task(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    from arrowstate.spark.read import outputs as outputs_reader

    monkeypatch.setattr(outputs_reader, "_PARTITION_ROWS", 4)
    monkeypatch.setattr(outputs_reader, "_BATCH_ROWS", 3)
    output.commit(1, 1, 7)
    plan = output.plan()
    reader = plan.reader(plan.schema)

    partitions = reader.partitions()

    assert [(one.start, one.end) for one in partitions] == [(0, 5), (5, 14)]
    assert read(reader, partitions) == list(range(14))
    assert [batch.num_rows for batch in reader.read(partitions[1])] == [2, 3, 3, 1]


def test_an_output_without_rows_is_an_empty_table(output: Output) -> None:
    output.write([[]])
    plan = output.plan()
    reader = plan.reader(plan.schema)

    assert read(reader, reader.partitions()) == []


def test_offsets_are_row_numbers_whatever_parts_the_rows_are_in(output: Output) -> None:
    reader = output.stream()
    start = reader.initialOffset()

    first = latest(reader, start)
    rows = read(reader, reader.partitions(start, first))
    output.commit(1, 3)
    second = latest(reader, first)
    output.merge(6, 2, 1)
    again = read(output.stream(), output.stream().partitions(start, first))
    rest = read(reader, reader.partitions(first, second))

    assert (start["row"], first["row"], second["row"]) == (0, 5, 9)
    assert rows == again == [0, 1, 2, 3, 4]
    assert rest == [5, 6, 7, 8]
    assert latest(reader, second) == second
    assert reader.partitions(second, second) == []


def test_a_stream_from_the_latest_row_repeats_its_first_batch_exactly(output: Output) -> None:
    reader = output.stream(startingPosition="latest")
    start = reader.initialOffset()
    output.commit(2)
    end = latest(reader, start)
    output.commit(3)

    restarted = output.stream(startingPosition="latest")
    start_again = restarted.initialOffset()

    # Spark asks for the begin of a first batch again when it repeats that batch, and by then it is another.
    assert (start["row"], start_again["row"]) == (5, 10)
    assert read(restarted, restarted.partitions(start_again, end)) == [5, 6]


def test_a_micro_batch_has_no_more_rows_than_allowed(output: Output) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    reader = output.stream(maxRowsPerTrigger="2")
    offsets = [reader.initialOffset()]
    for _ in range(3):
        offsets.append(latest(reader, offsets[-1]))

    assert [offset["row"] for offset in offsets] == [0, 2, 4, 5]
    assert latest(reader, offsets[0], ReadAllAvailable())["row"] == 5


def test_rows_that_come_after_the_start_of_an_available_now_query_are_left(output: Output) -> None:
    reader = output.stream()
    reader.prepareForTriggerAvailableNow()
    output.commit(3)

    end = latest(reader, reader.initialOffset())

    assert end["row"] == 5
    assert latest(reader, end) == end


def test_a_store_that_went_back_is_told_from_one_without_news(output: Output) -> None:
    reader = output.stream()
    start = reader.initialOffset()
    end = latest(reader, start)
    output.write([[0, 1]])

    for read_on in (lambda: latest(reader, end), lambda: reader.partitions(start, end)):
        with pytest.raises(NotFoundError, match="of the 5 rows .* only 2 are left: the store has gone back"):
            read_on()


def test_rows_that_were_given_up_are_told_when_as_many_have_come_again(output: Output) -> None:
    reader = output.stream()
    start = reader.initialOffset()
    end = latest(reader, start)
    output.write([[0, 1]])
    output.commit(8)

    for read_on in (lambda: latest(reader, end), lambda: reader.partitions(start, end)):
        with pytest.raises(NotFoundError, match="of the 5 rows .* only 2 are left: the store has gone back"):
            read_on()
    # A query that an earlier version began.
    del end["epoch"]
    assert latest(reader, end)["row"] > 5


def test_an_output_whose_columns_change_under_a_stream_ends_it(output: Output) -> None:
    reader = output.stream()
    kind = pa.struct([("user", pa.string()), ("n", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
    output.write([[0, 1]], kind)
    start = reader.initialOffset()

    with pytest.raises(IncompatibleStateError, match=r"n:int.*n:bigint.*start the query again"):
        read(reader, reader.partitions(start, latest(reader, start)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"output": "alarms"}, NotFoundError, "no output table 'alarms' in checkpoint 1; it has 'alerts'"),
        ({"columns": "n,m"}, InvalidInputError, "'alerts' has no column 'm'; it has user, n, at"),
        ({"state": "rows"}, InvalidInputError, "unknown option 'state'; an output table is read with output, columns"),
        ({"startingPosition": "first"}, InvalidInputError, "must be earliest or latest, got 'first'"),
        ({"maxRowsPerTrigger": "0"}, InvalidInputError, "'maxRowsPerTrigger' must be a whole number from 1, got '0'"),
    ],
)  # fmt: skip
def test_wrong_options_say_what_there_is(
    output: Output, options: dict[str, str], error: type[ArrowStateError], message: str
) -> None:
    with pytest.raises(error, match=message):
        output.plan(**options)


def test_options_without_meaning_for_a_table_or_a_stream_are_refused(output: Output) -> None:
    table, stream = output.plan(startingPosition="latest"), output.plan(checkpoint="1")

    with pytest.raises(
        InvalidInputError, match=r"'startingPosition' and 'maxRowsPerTrigger' are for spark\.readStream"
    ):
        table.reader(table.schema)
    with pytest.raises(InvalidInputError, match=r"'checkpoint' and 'asOf' are for spark\.read;"):
        stream.stream_reader(stream.schema)


def test_a_query_that_fails_in_a_batch_reads_every_row_once(spark: Any, output: Output, tmp_path: Path) -> None:
    from arrowstate.spark import register

    register(spark)
    seen: dict[int, list[int]] = {}
    failing = {1}

    def keep(frame: DataFrame, batch_id: int) -> None:
        rows = [row.n for row in frame.collect()]
        assert seen.setdefault(batch_id, rows) == rows
        if batch_id in failing:
            failing.remove(batch_id)
            raise RuntimeError("the sink fails")

    def run(**trigger: Any) -> Any:
        stream = spark.readStream.format("arrowstate").option("output", "alerts").option("maxRowsPerTrigger", 3)
        writer = stream.load(str(output.store)).writeStream.foreachBatch(keep).trigger(**trigger)
        return writer.option("checkpointLocation", str(tmp_path / "spark")).start()

    with pytest.raises(Exception, match="the sink fails"):
        run(availableNow=True).awaitTermination()
    output.commit(2)
    output.merge(7)
    run(availableNow=True).awaitTermination()
    output.commit(1)
    query = run(processingTime="0 seconds")
    try:
        query.processAllAvailable()
    finally:
        query.stop()

    assert [seen[batch_id] for batch_id in sorted(seen)] == [[0, 1, 2], [3, 4], [5, 6], [7]]


@pytest.mark.turns(3)
def test_the_output_and_the_changes_of_a_stateful_stream_are_streams(spark: Any, stream: Any, make_rows: Any) -> None:
    from arrowstate.spark import register, stateful

    register(spark)
    seen: dict[str, list[dict[str, Any]]] = {"output": [], "changes": []}

    def follow(name: str, **options: str) -> None:
        source = spark.readStream.format("arrowstate").options(**options).load(str(stream.store))
        keep = source.writeStream.foreachBatch(lambda frame, _: seen[name].extend(frame.toArrow().to_pylist()))
        query = keep.option("checkpointLocation", str(stream.folder / name)).trigger(availableNow=True).start()
        query.awaitTermination()

    for seed in range(2):
        stream.add(make_rows(seed, count=60, keys=20))
        operator = stateful(
            stream.frame(),
            key=["k"],
            operator=Twice(),
            uid="totals",
            store=stream.store,
            parallelism=2,
            output_schema="k long, twice long",
            output="doubled",
        )
        writer = operator.write_stream().option("checkpointLocation", str(stream.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        follow("output", output="doubled")
        follow("changes", operator="totals", readChangeFeed="true")

    rows = pa.concat_tables(stream.rows).to_pylist()
    assert sorted((row["k"], row["twice"]) for row in seen["output"]) == sorted(
        (row["k"], 2 * (row["v"] or 0)) for row in rows
    )
    totals: dict[int, int] = {}
    for change in seen["changes"]:
        if change["_change_type"] == "update_preimage":
            assert totals.pop(change["k"]) == change["total"]
        else:
            assert change["k"] not in totals
            totals[change["k"]] = change["total"]
    stored = arrowstate.open_store(stream.store).latest().to_arrow("totals.total").to_pylist()
    assert totals == {row["k"]: row["total"] for row in stored}


def test_a_stream_with_a_lease_holds_the_checkpoints_in_which_its_tasks_find_their_rows(output: Output) -> None:
    def kept() -> list[int | None]:
        output.opened.collect(arrowstate.RetentionPolicy(count=1)).apply()
        return [snapshot.checkpoint_id for snapshot in output.opened.checkpoints()]

    reader = output.stream(leaseSeconds="600")
    start = reader.initialOffset()
    end = latest(reader, start)
    first = output.opened.latest().checkpoint_id
    partitions = reader.partitions(start, end)
    later = [output.commit(4), output.merge(9)]
    before = kept()
    rows = read(reader, partitions)
    moved = latest(reader, end)
    after = kept()
    reader.stop()

    assert before == [first, *later]
    assert rows == list(range(5))
    assert (moved["row"], after) == (9, later[-1:])
    assert [pin.checkpoint_id for pin in read_pins(output.opened.storage)] == later[-1:]
    with pytest.raises(InvalidInputError, match=r"'leaseSeconds' is for spark\.readStream"):
        output.plan(leaseSeconds="600").reader(output.plan().schema)
