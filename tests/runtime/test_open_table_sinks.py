"""The sinks of Delta and Iceberg tables: the contract, writers at the same time, a second start, what does not fit."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import LongType

import arrowstate
from arrowstate.errors import InvalidInputError, UnavailableError
from arrowstate.runtime import (
    DeltaSink,
    DeltaSource,
    GeneratorSource,
    IcebergSink,
    IcebergSource,
    Job,
    ParquetSink,
    Sink,
    TableSource,
    Token,
)
from arrowstate.testing import SinkConformance
from arrowstate.testing.connectors import pickled
from arrowstate.testing.jobs import simulate
from long_form import short_or_long
from open_tables import KINDS, Delta, Iceberg
from processes import at_once

ROWS = pa.table({"user": ["ann", "bob", None, "", "e", "f"], "total": [3, None, 5, 2**62, -1, 0]})


def token(checkpoint_id: int, subtask: int = 0) -> Token:
    return Token("a-store", "a-sink", checkpoint_id, subtask)


@pytest.fixture(params=list(KINDS))
def place(tmp_path: Path, request: Any) -> Delta | Iceberg:
    return KINDS[request.param](tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path) -> Iceberg:
    return Iceberg(tmp_path)


class TestOpenTableSinks(SinkConformance):
    @pytest.fixture(params=[(), ("user",)], ids=["whole", "partitioned"])
    def sink(self, place: Delta | Iceberg, request: Any) -> Sink:
        place.make(ROWS.schema, partition_by=request.param)
        return place.sink()

    @pytest.fixture
    def rows(self) -> pa.Table:
        # A partition of Delta cannot tell an empty text from a null.
        return ROWS.set_column(0, "user", pa.array(["ann", "bob", None, "d", "e", "f"]))

    @pytest.fixture
    def visible(self, place: Delta | Iceberg) -> Callable[[], pa.Table]:
        return lambda: place.rows().cast(ROWS.schema)


def test_of_those_who_commit_a_token_at_once_one_adds_the_rows(place: Delta | Iceberg) -> None:
    place.make(ROWS.schema)
    sinks = [place.sink() for _ in range(4)]

    at_once(lambda sink: sink.commit(ROWS, token(7)), sinks)

    assert place.rows().num_rows == len(ROWS)
    assert place.commits() == 1


def test_a_writer_that_has_looked_before_another_committed_adds_nothing(
    place: Delta | Iceberg, monkeypatch: Any
) -> None:
    place.make(ROWS.schema)
    sink, other = place.sink(), place.sink()
    opened = sink.opened
    tables = [opened()]

    other.commit(ROWS, token(7))
    monkeypatch.setattr(sink, "opened", lambda: tables.pop() if tables else opened())
    sink.commit(ROWS, token(7))

    assert place.rows().num_rows == len(ROWS)
    assert tables == []


def test_another_writer_at_the_same_time_loses_nothing(place: Delta | Iceberg, monkeypatch: Any) -> None:
    place.make(ROWS.schema)
    sink = place.sink()
    opened = sink.opened
    tables = [opened()]
    monkeypatch.setattr(sink, "opened", lambda: tables.pop() if tables else opened())

    place.append(ROWS)
    sink.commit(ROWS, token(7))

    assert place.rows().num_rows == 2 * len(ROWS)
    assert place.committed("a-store/a-sink/0") == 7


def test_other_writers_that_are_always_faster_are_an_error_and_the_token_is_free(
    iceberg: Iceberg, monkeypatch: Any
) -> None:
    iceberg.make(ROWS.schema)
    sink = iceberg.sink()
    behind = sink.opened().metadata
    opened = sink.opened

    def late() -> Any:
        table = opened()
        table.metadata = behind
        return table

    iceberg.append(ROWS)
    monkeypatch.setattr(sink, "opened", late)
    with pytest.raises(CommitFailedException):
        sink.commit(ROWS, token(7))
    monkeypatch.undo()
    sink.commit(ROWS, token(7))

    assert iceberg.rows().num_rows == 2 * len(ROWS)


def test_a_commit_whose_answer_was_lost_is_found_by_the_next_start(iceberg: Iceberg, monkeypatch: Any) -> None:
    iceberg.make(ROWS.schema)
    sink = iceberg.sink()
    add = sink.add

    def lost(*arguments: Any) -> None:
        add(*arguments)
        raise ConnectionResetError("the answer is lost")

    monkeypatch.setattr(sink, "add", lost)
    with pytest.raises(ConnectionResetError):
        sink.commit(ROWS, token(7))
    again = iceberg.sink()
    again.open("a-store", "a-sink")
    again.commit(ROWS, token(7))

    assert iceberg.rows().num_rows == len(ROWS)


def test_a_token_is_known_after_all_its_snapshots_were_expired(iceberg: Iceberg) -> None:
    iceberg.make(ROWS.schema)
    iceberg.sink().commit(ROWS, token(7))
    own = iceberg.table.snapshots()[0].snapshot_id

    iceberg.append(ROWS)
    iceberg.table.maintenance.expire_snapshots().by_id(own).commit()
    iceberg.sink().commit(ROWS, token(7))

    assert iceberg.rows().num_rows == 2 * len(ROWS)
    assert iceberg.commits() == 1


def test_the_summary_of_a_snapshot_says_which_checkpoint_it_is(iceberg: Iceberg) -> None:
    iceberg.make(ROWS.schema)

    iceberg.sink().commit(ROWS, token(7, subtask=2))

    summary = iceberg.table.snapshots()[0].summary
    assert summary is not None
    assert summary["arrowstate.token"] == "a-store/a-sink/2"
    assert summary["arrowstate.checkpoint-id"] == "7"
    assert "commit.retry.num-retries" not in iceberg.table.properties


def test_partitions_by_bucket_and_day_are_written(iceberg: Iceberg) -> None:
    schema = pa.schema({"user": pa.string(), "at": pa.timestamp("us")})
    rows = pa.table({"user": ["ann", "bob", None], "at": pa.array([0, 10**12, None], pa.timestamp("us"))}, schema)
    iceberg.make(schema)
    with iceberg.table.update_spec() as spec:
        spec.add_field("user", BucketTransform(4), "bucket")
        spec.add_field("at", DayTransform(), "day")

    for _ in range(2):
        iceberg.sink().commit(rows, token(1))

    assert iceberg.rows().cast(schema).sort_by("at").to_pylist() == rows.sort_by("at").to_pylist()
    assert len(iceberg.table.inspect.files()) == 3


SEEDS = short_or_long(2, 60)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_row_is_in_the_table_once(place: Delta | Iceberg, seed: int) -> None:
    schema = pa.schema({"n": pa.int64()})
    place.make(schema)
    job = Job("memory://unused", parallelism=2)
    source = GeneratorSource(
        lambda first, count: pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())}),
        schema,
        rows=230,
        splits=3,
        batch_rows=20,
    )
    job.source(source, uid="numbers").rebalance().sink(place.sink(), uid="table")

    simulate(job, seeds=[seed], kills=4, crashes=2, rescales=(1, 3), check=id)

    assert Counter(place.rows()["n"].to_pylist()) == Counter(range(230))


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (pa.table({"user": ["ann"]}), "has the columns user, total, and the rows have user"),
        (pa.table({"user": ["ann"], "total": [1], "more": [2]}), "and the rows have user, total, more"),
        (
            pa.table({"user": ["ann"], "total": ["x"]}),
            "column 'total' of the rows is string, and has values that int64",
        ),
        (pa.table({"user": pa.nulls(1, pa.string()), "total": [1]}), "column 'user' has nulls"),
    ],
)
def test_rows_that_do_not_fit_leave_nothing(place: Delta | Iceberg, rows: pa.Table, problem: str) -> None:
    schema = pa.schema([pa.field("user", pa.string(), nullable=False), ("total", pa.int64())])
    place.make(schema)
    sink = place.sink()
    sink.open("a-store", "a-sink")

    with pytest.raises(InvalidInputError, match=problem):
        sink.commit(rows, token(1))

    assert place.commits() == 0
    sink.commit(pa.table({"total": pa.array([1], pa.int32()), "user": ["ann"]}), token(1))
    assert place.rows().to_pylist() == [{"user": "ann", "total": 1}]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            pa.table({"user": ["ann"]}),
            "sink 'out': the .* table .* has the columns user, total, and the rows have user",
        ),
        (
            pa.table({"user": ["ann"], "total": [[1]]}),
            r"sink 'out': column 'total' of the rows is list<item: int64>, which cannot become the int64",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused_where_the_sink_is_declared(
    place: Delta | Iceberg, tmp_path: Path, rows: pa.Table, problem: str
) -> None:
    place.make(ROWS.schema)

    with pytest.raises(InvalidInputError, match=problem):
        Job(tmp_path / "store").source(TableSource(rows), uid="rows").sink(place.sink(), uid="out")


@pytest.mark.parametrize("wrap", [lambda part: part, pa.list_], ids=["struct", "list"])
def test_a_field_that_the_structs_of_a_table_do_not_have_is_not_dropped(
    place: Delta | Iceberg, tmp_path: Path, wrap: Any
) -> None:
    place.make(pa.schema({"part": wrap(pa.struct({"a": pa.int64()}))}))
    given = pa.schema({"part": wrap(pa.struct({"a": pa.int64(), "more": pa.string()}))})
    rows = pa.table([pa.nulls(1, given.field("part").type)], schema=given)
    sink = place.sink()
    sink.open("a-store", "a-sink")

    with pytest.raises(InvalidInputError, match="sink 'out': column 'part' of the rows .* no field 'more'"):
        Job(tmp_path / "store").source(TableSource(rows), uid="rows").sink(place.sink(), uid="out")
    with pytest.raises(InvalidInputError, match="column 'part' of the rows .* no field 'more'"):
        sink.commit(rows, token(1))


def test_a_number_does_not_become_infinite(place: Delta | Iceberg) -> None:
    place.make(pa.schema({"ratio": pa.float32()}))
    sink = place.sink()
    sink.open("a-store", "a-sink")

    with pytest.raises(InvalidInputError, match="column 'ratio' of the rows is double, and has values that float"):
        sink.commit(pa.table({"ratio": [1e300]}), token(1))

    sink.commit(pa.table({"ratio": [0.5, float("inf"), None]}), token(2))
    assert place.rows()["ratio"].to_pylist() == [0.5, float("inf"), None]


def test_a_null_in_a_list_whose_elements_are_required_is_told_and_leaves_nothing(place: Delta | Iceberg) -> None:
    place.make(pa.schema({"totals": pa.list_(pa.field("element", pa.int64(), nullable=False))}))
    sink = place.sink()
    sink.open("a-store", "a-sink")

    with pytest.raises(InvalidInputError, match="column 'totals' of the rows .* a null in 'element'"):
        sink.commit(pa.table({"totals": [[1], [2, None]]}), token(1))

    assert place.commits() == 0
    sink.commit(pa.table({"totals": [[1], None, [2, 3]]}), token(1))
    assert place.rows()["totals"].to_pylist() == [[1], None, [2, 3]]


def test_a_table_that_is_not_there_or_gone_is_told(place: Delta | Iceberg) -> None:
    with pytest.raises(InvalidInputError, match="there is no .* table .*t'.*; make it first"):
        place.sink().open("a-store", "a-sink")
    place.make(ROWS.schema)
    sink = place.sink()
    sink.open("a-store", "a-sink")
    place.drop()

    with pytest.raises(InvalidInputError, match="there is no .* table"):
        sink.commit(ROWS, token(1))


def test_a_table_that_has_changed_under_a_job_takes_rows_while_they_fit(iceberg: Iceberg) -> None:
    iceberg.make(pa.schema({"user": pa.string(), "total": pa.int32()}))
    sink = iceberg.sink()
    sink.open("a-store", "a-sink")

    with iceberg.table.update_schema() as update:
        update.update_column("total", LongType())
    sink.commit(ROWS, token(1))
    with iceberg.table.update_schema() as update:
        update.rename_column("total", "sum")

    with pytest.raises(InvalidInputError, match="has the columns user, sum, and the rows have user, total"):
        sink.commit(ROWS, token(2))
    assert iceberg.rows().cast(ROWS.rename_columns(["user", "sum"]).schema).num_rows == len(ROWS)
    with iceberg.table.update_schema() as update:
        update.rename_column("sum", "total")
    sink.commit(ROWS, token(2))
    assert iceberg.rows().num_rows == 2 * len(ROWS)


def test_a_property_that_is_no_checkpoint_is_told(iceberg: Iceberg) -> None:
    iceberg.make(ROWS.schema, **{"arrowstate.committed.a-store/a-sink/0": "x"})

    with pytest.raises(InvalidInputError, match="must be the number of a checkpoint, got 'x'"):
        iceberg.sink().commit(ROWS, token(1))


@pytest.mark.parametrize("name", ["orders", "", "shop.", ".orders", None])
def test_a_table_has_a_namespace(name: Any) -> None:
    with pytest.raises(InvalidInputError, match="table must be the name of a table with its namespace"):
        IcebergSink(name)


def test_a_catalog_that_cannot_be_loaded_is_told_without_its_password() -> None:
    options = {"type": "hush", "password": "hush"}

    with pytest.raises(InvalidInputError, match="cannot load catalog 'lake' with the options type, password") as raised:
        IcebergSink("shop.t", catalog="lake", catalog_options=options).open("a-store", "a-sink")

    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"type": "rest", "uri": "http://127.0.0.1:1/"},
        {"type": "sql", "uri": "sqlite:////nonexistent/hush", "warehouse": "file:///nonexistent"},
        {"type": "sql", "uri": "postgresql+psycopg://ann:hush@127.0.0.1:1/x", "warehouse": "file:///nonexistent"},
    ],
    ids=["rest", "sqlite", "postgres"],
)
def test_a_catalog_that_does_not_answer_is_waited_for(options: dict[str, str]) -> None:
    with pytest.raises(UnavailableError, match="the Iceberg catalog") as raised:
        IcebergSink("shop.t", catalog_options=options).open("a-store", "a-sink")

    assert "hush" not in str(raised.value)


@pytest.fixture
def rest(request: Any) -> Iterator[str]:
    """A catalog of REST that answers with these numbers, the last one again and again."""
    numbers = list(request.param)

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = numbers.pop(0) if len(numbers) > 1 else numbers[0]
            self.send_response(number)
            self.end_headers()
            body = {"defaults": {}, "overrides": {}} if number == 200 else {"error": self.error(number)}
            self.wfile.write(json.dumps(body).encode())

        def error(self, number: int) -> dict[str, Any]:
            return {"message": f"no, {self.headers['Authorization']}", "type": "Told", "code": number}

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("rest", [[503], [500], [429], [200, 503]], indirect=True, ids=str)
def test_a_catalog_that_has_no_answer_now_is_waited_for(rest: str) -> None:
    with pytest.raises(UnavailableError, match="the Iceberg catalog .* Told: no") as raised:
        IcebergSource("shop.t", catalog_options={"type": "rest", "uri": rest, "token": "hush"})

    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("rest", [[401], [403], [400], [200, 401], [200, 403]], indirect=True, ids=str)
def test_a_catalog_that_refuses_is_told(rest: str) -> None:
    with pytest.raises(InvalidInputError, match="the catalog 'default' refuses to open .* Told: no") as raised:
        IcebergSource("shop.t", catalog_options={"type": "rest", "uri": rest, "token": "hush"})

    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda given: DeltaSink("t", storage_options=given),
        lambda given: DeltaSource("t", storage_options=given),
        lambda given: IcebergSink("shop.t", catalog_options=given),
        lambda given: ParquetSink("t", storage_options=given),
        lambda given: arrowstate.open_store("memory://options", create=True, storage_options=given),
    ],
)
@pytest.mark.parametrize("given", ["key=secret", ["key", "secret"], {1: "secret"}])
def test_options_that_are_no_dict_are_refused_without_their_values(make, given) -> None:
    with pytest.raises(InvalidInputError, match="options must be a dict") as refused:
        make(given)

    assert "secret" not in str(refused.value)


def test_what_may_have_a_password_is_not_shown() -> None:
    assert repr(DeltaSink("s3://bucket/t", storage_options={"key": "secret"})) == "DeltaSink('s3://bucket/t')"
    assert repr(IcebergSink("shop.t", catalog_options={"uri": "secret"})) == "IcebergSink('shop.t', catalog='default')"


def test_a_sink_that_was_used_is_pickled(iceberg: Iceberg) -> None:
    iceberg.make(ROWS.schema)
    sink = iceberg.sink()
    sink.commit(ROWS, token(1))

    pickled(sink).commit(ROWS, token(1))

    assert iceberg.rows().num_rows == len(ROWS)
