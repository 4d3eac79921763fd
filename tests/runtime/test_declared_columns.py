"""Columns that cannot be stored or exchanged, and what cannot be pickled: refused when declared, with the name."""

import threading
import uuid
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, JobFailedError
from arrowstate.runtime import (
    Batch,
    BulkParquetSink,
    FileSource,
    FunctionSink,
    GeneratorSource,
    IteratorSource,
    Job,
    OutputTable,
    ParquetSink,
    PostgresSink,
    PreparingSink,
    Restart,
    Source,
    TableSource,
)

WORDS = pa.array(["a", "b", None])
INTERVALS = pa.array([pa.MonthDayNano([1, 2, 3])] * 3)
RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", "y"]))
UNION = pa.UnionArray.from_sparse(pa.array([0, 0, 0], pa.int8()), [pa.array([1, 2, 3])])
LAYOUTS = {
    "string_view": WORDS.cast(pa.string_view()),
    "binary_view": WORDS.cast(pa.binary_view()),
    "list_view": pa.array([[1], [2, 3], None], pa.list_view(pa.int64())),
    "large_list_view": pa.array([[1], [2, 3], None], pa.large_list_view(pa.int64())),
    "run_end_encoded": RUNS,
    "matrix": pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]], None], pa.list_(pa.list_(pa.int64(), 2), 2)),
    "dictionary of views": pa.DictionaryArray.from_arrays(pa.array([0, 0, 1]), WORDS.cast(pa.string_view())),
}
NOT_STORED = {**LAYOUTS, "dictionary": WORDS.dictionary_encode(), "interval": INTERVALS, "union": UNION}
KEY = pa.schema({"key": pa.int64()})
INSIDE = {
    "flat": lambda values: values,
    "struct": lambda values: pa.StructArray.from_arrays([values], ["inner"]),
    "list": lambda values: pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), values),
}


class Counts(arrowstate.BatchFunction):
    def __init__(self, held=None):
        self.held = held

    def open(self, context):
        self.n = context.state(arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="sum"))

    def process_batch(self, batch, context):
        self.n.add_batch(context.key_columns(batch), pa.array([1] * batch.num_rows))


def given(values: pa.Array) -> tuple[Job, object]:
    job = Job(f"memory://declared-{uuid.uuid4()}", restart=Restart.none())
    return job, job.source(TableSource(pa.table({"key": [1, 2, 3], "value": values})), uid="rows")


EXCHANGES = {
    "operator 'counts'": lambda rows: rows.stateful(Counts(), key=["key"], uid="counts"),
    r"rebalance\(\)": lambda rows: rows.rebalance(),
    r"to_one\(\)": lambda rows: rows.to_one(),
    r"broadcast\(\)": lambda rows: rows.broadcast(),
}


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_column_that_cannot_go_to_another_subtask_is_refused_by_the_operator(layout, inside, exchange):
    job, rows = given(INSIDE[inside](LAYOUTS[layout]))

    with pytest.raises(InvalidInputError, match=f"{exchange}.*column 'value'.*map_batches"):
        EXCHANGES[exchange](rows)

    # Nothing of it is left: the name can be taken.
    plain = rows.map_batches(lambda batch: batch.select(["key"]), schema=KEY)
    EXCHANGES[exchange](plain)
    assert [edge.schema.names for edge in job.graph.edges] == [["key"]]


def test_a_broadcast_state_and_what_an_operator_emits_are_looked_at_too():
    descriptor = arrowstate.BroadcastStateDescriptor("rules", pa.int64(), pa.string())
    _, rows = given(LAYOUTS["string_view"])
    plain = rows.map_batches(lambda batch: batch.select(["key"]))
    emitted = pa.schema({"word": pa.string_view()})

    with pytest.raises(InvalidInputError, match="operator 'counts': column 'value'"):
        plain.stateful(Counts(), key=["key"], uid="counts", broadcast={descriptor: rows})
    with pytest.raises(InvalidInputError, match="what operator 'counts' emits: column 'word'"):
        plain.stateful(Counts(), key=["key"], uid="counts", output_schema=emitted)


def sinks(folder) -> list:
    return [
        (OutputTable("out"), None),
        (ParquetSink(folder), "out"),
        (PostgresSink("postgresql:///nowhere", "table"), "out"),
    ]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("kind", NOT_STORED)
def test_a_sink_whose_rows_cannot_be_kept_is_refused_with_its_name(tmp_path, kind, inside, number):
    sink, uid = sinks(tmp_path)[number]
    _, rows = given(INSIDE[inside](NOT_STORED[kind]))

    with pytest.raises(InvalidInputError, match="sink 'out': column 'value'.*map_batches"):
        rows.sink(sink, uid=uid)

    rows.map_batches(lambda batch: batch.select(["key"]), schema=KEY).sink(sink, uid=uid)


def test_columns_that_are_there_twice_or_not_at_all_are_refused():
    _, rows = given(WORDS)
    twice = rows.map_batches(lambda batch: pa.RecordBatch.from_arrays([batch["key"]] * 2, names=["n", "n"]))
    none = rows.map_batches(lambda batch: batch.select([]))

    for stream in (twice, none):
        with pytest.raises(InvalidInputError, match="sink 'out' needs at least one column, and none twice"):
            stream.sink(OutputTable("out"))


def test_rows_that_stream_to_parquet_may_be_what_parquet_can_hold(tmp_path):
    job, rows = given(WORDS.dictionary_encode())
    rows.sink(BulkParquetSink(tmp_path / "words"), uid="words")
    _, intervals = given(INTERVALS)

    job.run(mode="inline")

    assert pa.parquet.read_table(tmp_path / "words")["value"].to_pylist() == WORDS.to_pylist()
    with pytest.raises(InvalidInputError, match="sink 'bulk': column 'value' is month_day_nano_interval.*Parquet"):
        intervals.sink(BulkParquetSink(tmp_path / "bulk"), uid="bulk")


def test_what_a_sink_prepares_and_dead_letters_must_be_storable_too():
    class Views(PreparingSink):
        committable_schema = pa.schema({"name": pa.string_view()})

        def writer(self, store_id, uid, subtask, attempt):
            raise AssertionError

        def commit(self, committables):
            raise AssertionError

    job, rows = given(WORDS.dictionary_encode())

    with pytest.raises(InvalidInputError, match="what sink 'views' prepares: column 'name'"):
        rows.sink(Views(), uid="views")
    with pytest.raises(InvalidInputError, match="dead letters 'bad': column 'value'"):
        rows.map_batches(lambda batch: batch, on_error="dead_letter", dead_letters="bad")
    with pytest.raises(InvalidInputError, match="dead letters 'counts_dead_letters': column 'value'"):
        rows.stateful(Counts(), key=["key"], uid="counts", on_error="dead_letter")
    with pytest.raises(InvalidInputError, match="dead letters 'more_dead_letters': column 'value'"):
        job.source(TableSource(pa.table({"value": INTERVALS})), uid="more", on_error="dead_letter")


def test_a_source_that_is_none_or_has_positions_that_cannot_be_kept_is_refused():
    job, _ = given(WORDS)
    source = IteratorSource(lambda split, position: iter(()), pa.schema({"n": pa.int64()}))
    source.position_type = pa.dictionary(pa.int32(), pa.string())

    with pytest.raises(InvalidInputError, match="source 'none' must be a Source"):
        job.source(pa.table({"n": [1]}), uid="none")
    with pytest.raises(InvalidInputError, match="position_type of source 'odd'.*use its value type"):
        job.source(source, uid="odd")
    with pytest.raises(InvalidInputError, match="schema must be a pyarrow.Schema, got list"):
        given(WORDS)[1].map_batches(lambda batch: batch, schema=["n"])


@pytest.mark.parametrize("path", ["*.parq", "2026-*/*.csv", "_hidden.*", "away", "away/*.csv"])
def test_a_bounded_source_without_a_file_is_an_error_and_not_an_empty_job(tmp_path, path):
    (tmp_path / "_hidden.csv").write_text("n\n1\n")
    job = Job(tmp_path / "store", restart=Restart.none())
    source = FileSource(tmp_path / path, "csv", schema=pa.schema({"n": pa.int64()}))
    job.source(source, uid="rows").sink(OutputTable("out"))

    with pytest.raises(JobFailedError, match="there is no f.*(away|csv|parq|hidden)"):
        job.run(mode="inline")


def test_without_a_file_a_source_may_wait_a_folder_may_be_empty_and_files_that_were_read_may_go(tmp_path):
    schema = pa.schema({"n": pa.int64()})
    (tmp_path / "empty").mkdir()
    waiting = FileSource(tmp_path / "*.csv", "csv", schema=schema, is_bounded=False)
    empty = FileSource(tmp_path / "empty", "csv", schema=schema)

    assert waiting.discover(()) == empty.discover(()) == []
    (tmp_path / "one.csv").write_text("n\n1\n")
    for _ in range(2):
        job = Job(tmp_path / "store", restart=Restart.none())
        job.source(FileSource(tmp_path / "*.csv", "csv", schema=schema), uid="rows").sink(OutputTable("out"))
        last = job.run(mode="inline")
        (tmp_path / "one.csv").unlink(missing_ok=True)
    assert last.sql("select count(*) from out.rows").fetchall() == [(1,)]


class Client:
    def __init__(self):
        self.locks = {"all": threading.Lock()}


def test_what_cannot_be_pickled_is_named_with_its_operator_and_attribute(tmp_path):
    client = Client()
    refused = {
        "operator 'counts' (by held.locks['all'], of type lock)": lambda rows: rows.stateful(
            Counts(client), key=["key"], uid="counts"
        ),
        "a function of map_batches after 'rows' (by client.locks['all'], of type lock)": lambda rows: rows.map_batches(
            lambda batch: (client, batch)[1]
        ),
        "sink 'told' (by function client.locks['all'], of type lock)": lambda rows: rows.sink(
            FunctionSink(lambda _: client), uid="told"
        ),
    }

    for told, declare in refused.items():
        job, rows = given(WORDS)
        declare(rows)
        job.store = tmp_path / "store"
        with pytest.raises(InvalidInputError) as error:
            job.start(mode="processes")
        assert told in str(error.value)


def test_a_column_becomes_what_can_be_stored_by_a_map():
    job, rows = given(LAYOUTS["string_view"])
    cast = rows.map_batches(lambda batch: batch.set_column(1, "value", pc.cast(batch["value"], pa.string())))
    cast.rebalance().sink(OutputTable("out"))

    last = job.run(mode="inline")

    assert sorted(last.sql("select rows.value from out.rows where rows.value is not null").fetchall()) == [
        ("a",),
        ("b",),
    ]


def said(batch: pa.RecordBatch, is_nullable: bool) -> pa.RecordBatch:
    """Rows that say of their numbers whether they may be null."""
    return pa.RecordBatch.from_arrays([batch["n"]], schema=pa.schema([pa.field("n", pa.int64(), nullable=is_nullable)]))


def by_turns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return said(batch, is_nullable=bool(batch.num_rows and batch["n"][0].as_py() % 2))


def few_numbers(first: int, *, required: bool = False) -> IteratorSource:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=not required)])

    def make(_: int, position: int):
        for n in range(position, 4):
            yield pa.record_batch([[None if n == 3 and not required else first + n]], schema=schema)

    return IteratorSource(make, schema)


class Saying(Source):
    """A source whose batches say by turns that a number is never null."""

    schema = pa.schema({"n": pa.int64()})

    def __init__(self) -> None:
        self.source = few_numbers(0, required=True)

    def discover(self, known):
        return self.source.discover(known)

    def reader(self):
        reader = self.source.reader()
        read = reader.read

        def saying(max_rows):
            got = read(max_rows)
            return replace(got, rows=by_turns(got.rows)) if isinstance(got, Batch) else got

        reader.read = saying
        return reader


@pytest.mark.parametrize("sink", [ParquetSink, BulkParquetSink])
@pytest.mark.parametrize("way", ["plain", "rebalanced"])
@pytest.mark.parametrize("kind", ["map", "source", "union", "union of nulls first"])
def test_batches_may_differ_in_what_they_say_is_never_null(tmp_path, kind, way, sink):
    job = Job(tmp_path / "store", restart=Restart.none())
    required = job.source(few_numbers(0, required=True), uid="required")
    if kind == "map":
        rows, expected = required.map_batches(by_turns), [0, 1, 2, 3]
    elif kind == "source":
        rows, expected = job.source(Saying(), uid="saying"), [0, 1, 2, 3]
    else:
        others = job.source(few_numbers(10), uid="others")
        rows = required.union(others) if kind == "union" else others.union(required)
        expected = [0, 1, 2, 3, 10, 11, 12, None]
    rows = rows if way == "plain" else rows.rebalance()
    rows.sink(sink(tmp_path / "out"), uid="out")

    job.run(mode="inline")

    found = [n for file in (tmp_path / "out").glob("[!.]*") for n in pq.read_table(file)["n"].to_pylist()]
    assert sorted(found, key=lambda n: (n is None, n)) == expected


def words(first, count):
    """Each batch has a dictionary of its own, with at most as many values as its index type can tell apart."""
    numbers = range(first, first + count)
    encoded = pa.array([f"v{number % 1000}" for number in numbers]).dictionary_encode()
    return pa.record_batch(
        {"k": [number % 5 for number in numbers], "d": encoded.cast(pa.dictionary(pa.int8(), pa.string()))}
    )


class Words(arrowstate.BatchFunction):
    def open(self, context):
        self.n = context.state(arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="sum"))

    def process_batch(self, batch, context):
        assert batch["d"].type == pa.dictionary(pa.int8(), pa.string())
        numbers = [int(word[1:]) for word in batch["d"].to_pylist()]
        self.n.add_batch(context.group_keys(batch), pa.array(numbers, pa.int64()))


class WordByWord(arrowstate.KeyedProcessFunction):
    def open(self, context):
        self.n = context.state(arrowstate.ReducingStateDescriptor("n", pa.int64(), reduce="sum"))

    def process_element(self, value, context, out):
        self.n.add(int(value.d[1:]))


@pytest.mark.parametrize("function", [Words, WordByWord], ids=["batches", "records"])
@pytest.mark.parametrize("source", ["generator", "table"])
def test_dictionaries_with_too_many_values_together_are_processed_apart(function, source):
    whole = pa.Table.from_batches([words(first, 100) for first in range(0, 1000, 100)])
    generator = GeneratorSource(words, whole.schema, rows=1000, batch_rows=100)
    job = Job(f"memory://dictionaries-{function.__name__}-{source}", restart=Restart.none())
    rows = job.source(generator if source == "generator" else TableSource(whole), uid="rows")
    rows.rebalance().stateful(function(), key=["k"], uid="f")

    snapshot = job.run(mode="threads")

    assert snapshot.sql("select sum(n) from f.n").fetchall() == [(sum(range(1000)),)]
