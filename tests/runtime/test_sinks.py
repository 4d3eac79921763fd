"""The sinks that come with the package: the contract, their names and texts, and what they do where another was."""

import datetime
import decimal
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arrowstate.errors import InvalidInputError, MissingFileError
from arrowstate.runtime.connectors import Token
from arrowstate.runtime.sinks.functions import FunctionSink, PrintSink
from arrowstate.runtime.sinks.parquet import BulkParquetSink, ParquetSink
from arrowstate.runtime.sinks.postgres import PostgresSink
from arrowstate.schema.types import python_values
from arrowstate.testing import PreparingSinkConformance, SinkConformance
from processes import at_once, python

ROWS = pa.table({"user": ["ann", "bob", None, "", 'a "b", c', "é\n\\."], "total": [3, None, 5, 2**62, -1, 0]})


def token(checkpoint_id: int, subtask: int = 0) -> Token:
    return Token("a-store", "a-sink", checkpoint_id, subtask)


def rows_in_folder(folder: Path) -> pa.Table:
    files = sorted(folder.glob("[!.]*"))
    return pa.concat_tables([pq.read_table(file) for file in files] or [ROWS.slice(0, 0)])


class TestParquetSink(SinkConformance):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> ParquetSink:
        return ParquetSink(tmp_path / "out")

    @pytest.fixture
    def rows(self) -> pa.Table:
        return ROWS

    @pytest.fixture
    def visible(self, tmp_path: Path) -> Callable[[], pa.Table]:
        return lambda: rows_in_folder(tmp_path / "out")


def rows_in_bucket(bucket: dict[str, Any], folder: str) -> pa.Table:
    import s3fs

    files = s3fs.S3FileSystem(**bucket)
    files.invalidate_cache()
    found = [path for path in files.find(folder) if not path.rpartition("/")[2].startswith(".")]
    return pa.concat_tables([pq.ParquetFile(files.open(path)).read() for path in found] or [ROWS.slice(0, 0)])


class TestParquetSinkInABucket(SinkConformance):
    @pytest.fixture
    def sink(self, bucket: dict[str, Any], tmp_path: Path) -> ParquetSink:
        return ParquetSink(f"s3://bucket/{tmp_path.name}/out", storage_options=bucket)

    @pytest.fixture
    def rows(self) -> pa.Table:
        return ROWS

    @pytest.fixture
    def visible(self, bucket: dict[str, Any], tmp_path: Path) -> Callable[[], pa.Table]:
        return lambda: rows_in_bucket(bucket, f"bucket/{tmp_path.name}/out")


class TestBulkParquetSink(PreparingSinkConformance):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> BulkParquetSink:
        return BulkParquetSink(tmp_path / "out")

    @pytest.fixture
    def rows(self) -> pa.Table:
        return ROWS

    @pytest.fixture
    def visible(self, tmp_path: Path) -> Callable[[], pa.Table]:
        return lambda: rows_in_folder(tmp_path / "out")


class TestBulkParquetSinkInABucket(PreparingSinkConformance):
    @pytest.fixture
    def sink(self, bucket: dict[str, Any], tmp_path: Path) -> BulkParquetSink:
        return BulkParquetSink(f"s3://bucket/{tmp_path.name}/out", storage_options=bucket)

    @pytest.fixture
    def rows(self) -> pa.Table:
        return ROWS

    @pytest.fixture
    def visible(self, bucket: dict[str, Any], tmp_path: Path) -> Callable[[], pa.Table]:
        return lambda: rows_in_bucket(bucket, f"bucket/{tmp_path.name}/out")


class TestPostgresSinkWithAKey(SinkConformance):
    @pytest.fixture
    def sink(self, database: str, connection: Any) -> PostgresSink:
        connection.execute('create table totals ("user" text primary key, total bigint)')
        return PostgresSink(database, "totals", key=["user"])

    @pytest.fixture
    def rows(self) -> pa.Table:
        return ROWS.set_column(0, "user", pa.array([f"{n} {user}" for n, user in enumerate(ROWS["user"].to_pylist())]))

    @pytest.fixture
    def visible(self, connection: Any) -> Callable[[], pa.Table]:
        def visible() -> pa.Table:
            found = connection.execute('select "user", total from totals').fetchall()
            return pa.Table.from_pylist([dict(zip(ROWS.schema.names, row, strict=True)) for row in found], ROWS.schema)

        return visible


class TestPostgresSink(SinkConformance):
    @pytest.fixture
    def sink(self, database: str, connection: Any) -> PostgresSink:
        connection.execute('create table "To""tals" ("user" text, total bigint)')
        return PostgresSink(database, 'To"tals')

    @pytest.fixture
    def rows(self) -> pa.Table:
        return ROWS

    @pytest.fixture
    def visible(self, connection: Any) -> Callable[[], pa.Table]:
        def visible() -> pa.Table:
            found = connection.execute('select "user", total from "To""tals"').fetchall()
            return pa.Table.from_pylist([dict(zip(ROWS.schema.names, row, strict=True)) for row in found], ROWS.schema)

        return visible


def test_a_parquet_file_is_named_for_sink_checkpoint_and_subtask(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)

    sink.open("a-store", "a-sink")
    sink.commit(ROWS, token(7, subtask=3))

    assert os.listdir(tmp_path) == ["a-sink-00000000000000000007-3.parquet"]


@pytest.mark.parametrize(("compression", "found"), [("zstd", "ZSTD"), ("none", "UNCOMPRESSED"), ("snappy", "SNAPPY")])
def test_a_parquet_file_has_the_compression_that_was_asked_for(tmp_path: Path, compression: str, found: str) -> None:
    sink = ParquetSink(tmp_path, compression=compression)

    sink.open("a-store", "a-sink")
    sink.commit(ROWS, token(7))

    (file,) = tmp_path.iterdir()
    assert pq.read_metadata(file).row_group(0).column(0).compression == found


def test_what_is_no_compression_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="compression must be one of zstd.* got 'best'"):
        ParquetSink(tmp_path, compression="best")


def test_a_parquet_file_of_the_name_is_left_as_it_is(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.open("a-store", "a-sink")
    sink.commit(ROWS, token(7))
    (file,) = tmp_path.iterdir()
    before = file.stat()

    sink.commit(ROWS, token(7))

    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_parquet_file_of_another_job_is_an_error_that_names_both(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.open("a-store", "a-sink")
    sink.commit(ROWS, Token("another-store", "a-sink", 7, 0))

    with pytest.raises(InvalidInputError, match="another-store/a-sink/7/0, not of a-store/a-sink/7/0"):
        sink.commit(ROWS, token(7))


def test_what_a_killed_commit_left_goes_when_the_job_starts_and_what_others_write_stays(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    hexes = "0b7e" * 8
    own = tmp_path / f".a-sink.{hexes}.a-store.tmp"
    others = [
        tmp_path / f".a-sink.{hexes}.another-store.tmp",
        tmp_path / f".a-sink.more.{hexes}.a-store.tmp",
        tmp_path / "notes.txt",
    ]
    for path in (own, *others):
        path.write_bytes(b"half a file")

    sink.open("a-store", "a-sink")

    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_a_parquet_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.open("a-store", "a-sink")
    unions = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])

    with pytest.raises(pa.ArrowNotImplementedError):
        sink.commit(pa.table({"u": unions}), token(7))

    assert os.listdir(tmp_path) == []


def test_of_two_who_commit_a_token_at_once_each_finds_whole_rows(tmp_path: Path) -> None:
    sinks = [ParquetSink(tmp_path) for _ in range(8)]
    for sink in sinks:
        sink.open("a-store", "a-sink")

    at_once(lambda sink: sink.commit(ROWS, token(7)), sinks)

    (file,) = tmp_path.iterdir()
    assert pq.read_table(file).equals(ROWS)


def test_small_batches_come_to_large_row_groups_of_one_file(tmp_path: Path) -> None:
    writer = BulkParquetSink(tmp_path).writer("a-store", "a-sink", 3, "1")

    for first in range(0, 600_000, 1_000):
        writer.write(pa.record_batch({"n": range(first, first + 1_000)}))
    (row,) = writer.prepare(7).to_pylist()

    assert (row["name"], row["token"]) == ("a-sink-00000000000000000007-3.parquet", "a-store/a-sink/7/3")
    assert os.listdir(tmp_path) == [row["hidden_name"]]
    metadata = pq.read_metadata(tmp_path / row["hidden_name"])
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert groups == [263_000, 263_000, 74_000]


def test_a_prepared_file_that_is_gone_is_named(tmp_path: Path) -> None:
    sink = BulkParquetSink(tmp_path)
    writer = sink.writer("a-store", "a-sink", 0, "1")
    writer.write(ROWS.to_batches()[0])
    prepared = writer.prepare(7)
    (file,) = tmp_path.iterdir()
    file.unlink()

    with pytest.raises(MissingFileError) as caught:
        sink.commit(prepared)

    assert (caught.value.url, caught.value.path) == (str(tmp_path), "a-sink-00000000000000000007-0.parquet")


def test_a_prepared_file_does_not_take_the_place_of_that_of_another_job(tmp_path: Path) -> None:
    for store in ("a-store", "another-store"):
        sink = BulkParquetSink(tmp_path)
        writer = sink.writer(store, "a-sink", 0, "1")
        writer.write(ROWS.to_batches()[0])
        prepared = writer.prepare(7)
        if store == "a-store":
            sink.commit(prepared)

    with pytest.raises(InvalidInputError, match="has the rows of a-store/a-sink/7/0, not of another-store/a-sink/7/0"):
        sink.commit(prepared)


def test_a_crash_between_the_name_and_the_end_of_a_commit_leaves_one_file(tmp_path: Path, monkeypatch: Any) -> None:
    sink = BulkParquetSink(tmp_path)
    writer = sink.writer("a-store", "a-sink", 0, "1")
    writer.write(ROWS.to_batches()[0])
    prepared = writer.prepare(7)
    link = os.link

    def die(*given: Any) -> None:
        link(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", die)
    with pytest.raises(KeyboardInterrupt):
        sink.commit(prepared)
    assert len(os.listdir(tmp_path)) == 2
    monkeypatch.setattr(os, "link", link)

    sink.commit(prepared)

    assert os.listdir(tmp_path) == ["a-sink-00000000000000000007-0.parquet"]


VALUES = {
    "boolean": pa.array([True, False, None]),
    "smallint": pa.array([1, -32768, None], pa.int16()),
    "numeric": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "double precision": pa.array([1.5, float("inf"), float("nan")]),
    "numeric(20, 4)": pa.array([decimal.Decimal("1.2500"), None, decimal.Decimal("-3.0000")], pa.decimal128(20, 4)),
    "text": pa.array(["", None, 'say "hi", \\N\n\\.']),
    "varchar": pa.array(["a", "", None], pa.string_view()),
    "char(1)": pa.array(["a", None, "b"]).dictionary_encode(),
    "bytea": pa.array([b"", None, b"\x00\xff,\n"]),
    "date": pa.array([datetime.date(1999, 12, 31), None, datetime.date(2026, 1, 1)]),
    "time": pa.array([datetime.time(1, 2, 3, 4), None, datetime.time(0)], pa.time64("us")),
    "timestamp": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5, 6), None, datetime.datetime(1969, 12, 31)]),
    "timestamptz": pa.array(
        [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), None, None], pa.timestamp("ms", "UTC")
    ),
    "interval": pa.array([datetime.timedelta(days=1, microseconds=5), None, datetime.timedelta(seconds=-1)]),
    "bigint[]": pa.array([[1, None, 3], [], None], pa.list_(pa.int64())),
    "text[]": pa.array([['a "b"', "", "NULL"], None, ["c\\d", "é,{}"]]),
    "bigint[][]": pa.array([[[1, 2], [3, 4]], [], None]),
    "jsonb": pa.array([{"a": 1, "b": "é"}, None, {"a": None, "b": '"'}]),
    "json": pa.array([[("x", 1)], [], None], pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("type", VALUES)
def test_values_come_to_postgres_as_they_are(database: str, connection: Any, type: str) -> None:
    connection.execute(f"create table kept (value {type})")
    sink = PostgresSink(database, "kept")
    sink.open("a-store", "a-sink")

    sink.commit(pa.table({"value": VALUES[type]}), token(1))

    found = [row[0] for row in connection.execute("select value from kept").fetchall()]
    expected = python_values(VALUES[type])
    assert [value for value in found if value == value] == [value for value in expected if value == value]
    assert len(found) == len(expected)
    sink.close()


NESTED = {
    "json": (pa.array([{"raw": b"\x00\xff", "parts": [b"a"]}]), [{"raw": "\\x00ff", "parts": ["\\x61"]}]),
    "jsonb": (pa.array([[(b"k", 1)]], pa.map_(pa.binary(), pa.int64())), [{"\\x6b": 1}]),
    "json ": (pa.array([[(datetime.date(2026, 1, 2), 1)]], pa.map_(pa.date32(), pa.int64())), [{"2026-01-02": 1}]),
    "jsonb ": (
        pa.array([{"at": 1_000_000_001}], pa.struct({"at": pa.timestamp("ns", "UTC")})),
        [{"at": "1970-01-01T00:00:01.000000001Z"}],
    ),
    " jsonb": (
        pa.array([{"a": float("nan"), "b": [float("-inf"), float("inf"), 0.5]}]),
        [{"a": "NaN", "b": ["-Infinity", "Infinity", 0.5]}],
    ),
    "timestamptz[]": (
        pa.array([[1_001]], pa.list_(pa.timestamp("ns", "UTC"))),
        [[datetime.datetime(1970, 1, 1, 0, 0, 0, 1, datetime.UTC)]],
    ),
    "interval[]": (pa.array([[-1_500_999]], pa.list_(pa.duration("ns"))), [[datetime.timedelta(microseconds=-1_500)]]),
}


@pytest.mark.parametrize("type", NESTED)
def test_nested_values_come_to_postgres_as_its_own_do(database: str, connection: Any, type: str) -> None:
    connection.execute(f"create table kept (value {type})")
    rows, expected = NESTED[type]
    sink = PostgresSink(database, "kept")
    sink.open("a-store", "a-sink")

    sink.commit(pa.table({"value": rows}), token(1))

    assert [row[0] for row in connection.execute("select value from kept").fetchall()] == expected
    sink.close()


@pytest.mark.parametrize("key", [None, ["name"]])
def test_a_time_without_a_zone_is_one_of_utc_whatever_the_session_has(
    database: str, connection: Any, key: list[str] | None
) -> None:
    connection.execute("create table kept (name text primary key, at timestamptz, times timestamptz[])")
    import psycopg

    in_tokyo = psycopg.conninfo.make_conninfo(database, options="-c timezone=Asia/Tokyo")
    at = datetime.datetime(2026, 1, 2, 3)
    sink = PostgresSink(in_tokyo, "kept", key=key)
    sink.open("a-store", "a-sink")

    sink.commit(pa.table({"name": ["ann"], "at": [at], "times": [[at]]}), token(1))

    in_utc = at.replace(tzinfo=datetime.UTC)
    assert connection.execute("select at, times from kept").fetchall() == [(in_utc, [in_utc])]
    sink.close()


def test_a_value_for_which_postgres_has_no_text_is_told_with_its_column(database: str, connection: Any) -> None:
    connection.execute("create table kept (value jsonb)")
    sink = PostgresSink(database, "kept")
    sink.open("a-store", "a-sink")
    twice = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))

    with pytest.raises(InvalidInputError, match="column 'value' has a value for which PostgreSQL has no text"):
        sink.commit(pa.table({"value": twice}), token(1))
    sink.close()


def test_a_column_for_which_postgres_has_no_text_is_named(database: str, connection: Any) -> None:
    connection.execute("create table kept (value text)")
    sink = PostgresSink(database, "kept")
    sink.open("a-store", "a-sink")
    months = pa.array([(1, 2, 3)], pa.month_day_nano_interval())

    with pytest.raises(InvalidInputError, match="column 'value' is month_day_nano_interval"):
        sink.commit(pa.table({"value": months}), token(1))

    assert connection.execute("select count(*) from arrowstate_commits").fetchone() == (0,)


def test_rows_that_postgres_refuses_leave_neither_rows_nor_a_token(database: str, connection: Any) -> None:
    import psycopg

    connection.execute("create table totals (total int check (total < 100))")
    sink = PostgresSink(database, "totals")
    sink.open("a-store", "a-sink")

    with pytest.raises(psycopg.errors.CheckViolation):
        sink.commit(pa.table({"total": [1, 2, 300]}), token(1))

    assert connection.execute("select count(*) from totals").fetchone() == (0,)
    sink.commit(pa.table({"total": [1, 2, 3]}), token(1))
    assert connection.execute("select sum(total) from totals").fetchone() == (6,)
    sink.close()


def test_a_table_that_is_not_there_is_told_when_the_job_starts(database: str, connection: Any) -> None:
    with pytest.raises(InvalidInputError, match="no table 'totals' in schema 'reports' of the database"):
        PostgresSink(database, "totals", schema="reports").open("a-store", "a-sink")


def test_table_and_tokens_are_in_the_schema_that_was_asked_for(database: str, connection: Any) -> None:
    connection.execute(
        'create schema "my ""5% reports"; create table "my ""5% reports".totals ("user" text, total bigint)'
    )
    sink = PostgresSink(database, "totals", schema='my "5% reports')
    sink.open("a-store", "a-sink")

    sink.commit(ROWS, token(7, subtask=2))

    found = connection.execute('select * from "my ""5% reports".arrowstate_commits').fetchall()
    assert found == [("a-store/a-sink", 2, 7)]
    assert connection.execute('select count(*) from "my ""5% reports".totals').fetchone() == (len(ROWS),)
    sink.close()
    connection.execute('drop schema "my ""5% reports" cascade')


def test_who_may_only_insert_needs_no_more_where_the_tokens_have_a_table(database: str, connection: Any) -> None:
    connection.execute('create table totals ("user" text, total bigint)')
    PostgresSink(database, "totals").open("a-store", "a-sink")
    connection.execute("drop role if exists writer; create role writer login")
    connection.execute("revoke all on schema public from public; grant usage on schema public to writer")
    connection.execute("grant insert on totals to writer; grant select, insert, update on arrowstate_commits to writer")

    sink = PostgresSink(f"{database} user=writer", "totals")
    sink.open("a-store", "a-sink")
    sink.commit(ROWS, token(1))

    assert connection.execute("select count(*) from totals").fetchone() == (len(ROWS),)
    sink.close()


def test_a_connection_that_was_cut_is_made_again(database: str, connection: Any) -> None:
    connection.execute('create table totals ("user" text, total bigint)')
    sink = PostgresSink(database, "totals")
    sink.open("a-store", "a-sink")
    sink.commit(ROWS.slice(0, 3), token(1))
    connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")

    sink.commit(ROWS.slice(3), token(2))

    assert connection.execute("select count(*) from totals").fetchone() == (len(ROWS),)
    sink.close()


def test_of_many_who_commit_a_token_at_once_one_adds_the_rows(database: str, connection: Any) -> None:
    connection.execute('create table totals ("user" text, total bigint)')
    sinks = [PostgresSink(database, "totals") for _ in range(6)]

    at_once(lambda sink: sink.open("a-store", "a-sink"), sinks)
    at_once(lambda sink: sink.commit(ROWS, token(1)), sinks)

    for sink in sinks:
        sink.close()

    assert connection.execute("select count(*) from totals").fetchone() == (len(ROWS),)


def upserting(database: str, **options: Any) -> PostgresSink:
    sink = PostgresSink(database, "totals", **{"key": ["user"], **options})
    sink.open("a-store", "a-sink")
    return sink


def test_the_last_row_of_a_key_takes_the_place_of_the_one_that_is_there(database: str, connection: Any) -> None:
    connection.execute("create table totals (\"user\" text primary key, total bigint, note text default 'new')")
    connection.execute("insert into totals values ('ann', 1, 'kept'), ('eve', 2, 'kept'), ('bob', 3, 'kept')")
    sink = upserting(database, operation="what")
    changes = [
        ("ann", 5, "+I"),
        ("ann", 6, "update_postimage"),
        ("eve", 2, "-U"),
        ("eve", 9, "+U"),
        ("bob", None, "d"),
        ("zoe", 1, "insert"),
        ("zoe", 1, "delete"),
        ("new", 7, "c"),
    ]
    rows = pa.Table.from_pylist([dict(zip(("user", "total", "what"), it, strict=True)) for it in changes])

    for _ in range(2):
        sink.commit(rows, token(1))

    found = connection.execute('select * from totals order by "user"').fetchall()
    assert found == [("ann", 6, "kept"), ("eve", 9, "kept"), ("new", 7, "new")]
    sink.commit(rows.slice(4, 1), token(2))
    sink.commit(rows.slice(7, 1).set_column(2, "what", pa.array(["-D"])), token(3))
    assert [user for user, _, _ in connection.execute("select * from totals").fetchall()] == ["ann", "eve"]
    sink.close()


def test_a_model_of_upserts_and_deletes_has_the_rows_of_the_table(database: str, connection: Any) -> None:
    connection.execute("create table totals (a int, b numeric(4, 1), v text, unique (b, a))")
    sink = upserting(database, key=["a", "b"], operation="what")
    chance = random.Random(7)
    model: dict[tuple[int, int], int | None] = {}

    for checkpoint in range(1, 30):
        changes = []
        for _ in range(chance.randrange(1, 40)):
            key, value = (chance.randrange(5), chance.randrange(5)), chance.choice([None, chance.randrange(1000)])
            is_removed = chance.random() < 0.3
            changes.append({"v": value, "b": key[1], "what": "-D" if is_removed else "+U", "a": key[0]})
            model.pop(key, None)
            if not is_removed:
                model[key] = value
        schema = pa.schema({"v": pa.int64(), "b": pa.int64(), "what": pa.string(), "a": pa.int64()})
        rows = pa.Table.from_pylist(changes, schema)
        sink.commit(rows, token(checkpoint))
        sink.commit(rows, token(checkpoint))

        found = {(a, int(b)): v for a, b, v in connection.execute("select * from totals").fetchall()}
        assert found == {key: None if value is None else str(value) for key, value in model.items()}
    sink.close()


def test_keys_that_the_database_takes_for_equal_are_one_row(database: str, connection: Any) -> None:
    connection.execute("create collation folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    connection.execute('create table totals ("user" text collate folded primary key)')
    sink = upserting(database)

    sink.commit(pa.table({"user": ["Ann", "ANN", "bob"]}), token(1))
    sink.commit(pa.table({"user": ["ann"]}), token(2))

    assert connection.execute('select "user" from totals order by 1').fetchall() == [("ANN",), ("bob",)]
    sink.close()


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (pa.table({"user": ["ann", None], "total": [1, 2], "what": ["+I", "+I"]}), "'user' is, in row 1 of 2"),
        (pa.table({"user": ["ann"], "total": [1], "what": ["upsert"]}), "an operation is one of .* row 0 has 'upsert'"),
        (pa.table({"user": ["ann"], "total": [1], "what": pa.nulls(1, pa.string())}), "row 0 has None"),
    ],
)
def test_an_upsert_that_is_none_leaves_neither_rows_nor_a_token(
    database: str, connection: Any, rows: pa.Table, problem: str
) -> None:
    connection.execute('create table totals ("user" text primary key, total bigint)')
    sink = upserting(database, operation="what")

    with pytest.raises(InvalidInputError, match=problem):
        sink.commit(rows, token(1))

    assert connection.execute("select count(*) from totals").fetchone() == (0,)
    assert connection.execute("select count(*) from arrowstate_commits").fetchone() == (0,)


def test_rows_replace_those_of_their_keys_in_the_order_in_which_they_came(database: str, connection: Any) -> None:
    connection.execute('create table totals ("user" text primary key, total bigint unique)')
    connection.execute("insert into totals values ('zoe', 1)")
    sink = upserting(database)

    sink.commit(pa.table({"user": ["zoe", "ann"], "total": [2, 1]}), token(1))

    assert connection.execute('select * from totals order by "user"').fetchall() == [("ann", 1), ("zoe", 2)]
    sink.close()


def test_a_key_that_the_table_would_always_make_itself_is_taken_as_it_is(database: str, connection: Any) -> None:
    connection.execute('create table totals ("user" bigint generated always as identity primary key, total bigint)')
    for number, key in enumerate((None, ["user"]), 1):
        sink = PostgresSink(database, "totals", key=key)
        sink.open("a-store", "a-sink")

        sink.commit(pa.table({"user": [7 * number], "total": [number]}), token(number))

        sink.close()
    assert connection.execute('select * from totals order by "user"').fetchall() == [(7, 1), (14, 2)]


def test_a_row_that_is_removed_has_only_its_key_whatever_the_others_forbid(database: str, connection: Any) -> None:
    from psycopg import errors

    connection.execute("create domain count as bigint not null check (value > 0)")
    connection.execute('create table totals ("user" text primary key, total count)')
    connection.execute("insert into totals values ('ann', 1), ('bob', 2)")
    sink = upserting(database, operation="what")

    sink.commit(pa.table({"user": ["ann", "bob"], "total": [None, 3], "what": ["delete", "insert"]}), token(1))

    assert connection.execute("select * from totals").fetchall() == [("bob", 3)]
    with pytest.raises(errors.NotNullViolation):
        sink.commit(pa.table({"user": ["bob"], "total": pa.array([None], pa.int64()), "what": ["insert"]}), token(2))
    sink.close()


def test_an_upsert_that_breaks_another_constraint_leaves_all_as_it_was(database: str, connection: Any) -> None:
    import psycopg

    connection.execute('create table totals ("user" text primary key, total bigint unique)')
    sink = upserting(database)
    sink.commit(pa.table({"user": ["ann", "bob"], "total": [1, 2]}), token(1))

    with pytest.raises(psycopg.errors.UniqueViolation):
        sink.commit(pa.table({"user": ["eve", "ann"], "total": [3, 2]}), token(2))

    assert connection.execute('select * from totals order by "user"').fetchall() == [("ann", 1), ("bob", 2)]
    sink.commit(pa.table({"user": ["eve"], "total": [3]}), token(2))
    assert connection.execute("select count(*) from totals").fetchone() == (3,)
    sink.close()


@pytest.mark.parametrize(
    "columns",
    [
        '"user" text, total bigint',
        '"user" text, total bigint, primary key ("user", total)',
        '"user" text, total bigint, unique ("user") deferrable',
    ],
)
def test_a_key_that_is_not_unique_in_the_table_is_refused_when_the_job_starts(
    database: str, connection: Any, columns: str
) -> None:
    connection.execute(f"create table totals ({columns})")

    with pytest.raises(InvalidInputError, match="needs a primary key or a unique index of these columns"):
        upserting(database)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": "user"}, "key must be a sequence of names"),
        ({"key": []}, "key must be a sequence of names"),
        ({"key": ["a", "a"]}, "each once"),
        ({"operation": "what"}, "operation= needs key="),
        ({"key": ["what"], "operation": "what"}, "is none of them"),
    ],
)
def test_a_key_or_an_operation_that_cannot_be_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        PostgresSink("", "totals", **options)


def test_rows_without_the_key_are_refused_when_the_sink_is_declared() -> None:
    with pytest.raises(InvalidInputError, match="sink 'out': key is 'id', and the rows have only user, total"):
        PostgresSink("", "totals", key=["id"]).check_schema("out", ROWS.schema)


def test_what_may_have_a_password_is_not_shown() -> None:
    assert "secret" not in repr(PostgresSink("postgresql://ann:secret@db/shop", "totals"))


@pytest.mark.parametrize(("table", "schema"), [("", None), ("a\0b", None), ("a", "")])
def test_a_name_that_no_table_can_have_is_refused(table: str, schema: str | None) -> None:
    with pytest.raises(InvalidInputError, match="must be a text that is not empty"):
        PostgresSink("", table, schema=schema)


def test_a_function_is_called_with_rows_as_they_come() -> None:
    seen: list[pa.RecordBatch] = []
    sink = FunctionSink(seen.append)
    (batch,) = ROWS.to_batches()

    sink.open("a-store", "a-sink")
    sink.write(batch, subtask=0)
    sink.write(batch.slice(1), subtask=1)
    sink.close()

    assert [rows.num_rows for rows in seen] == [6, 5]


def test_what_cannot_be_called_is_no_function() -> None:
    with pytest.raises(InvalidInputError, match="needs a function, got int"):
        FunctionSink(3)  # type: ignore[arg-type]


def test_rows_are_printed_with_their_subtask(capsys: pytest.CaptureFixture[str]) -> None:
    PrintSink().write(pa.record_batch({"user": ["ann", None], "total": [1, 2]}), subtask=1)

    assert capsys.readouterr().out == "1> {'user': 'ann', 'total': 1}\n1> {'user': None, 'total': 2}\n"


def test_nanoseconds_are_printed_for_which_python_has_no_value(capsys: Any) -> None:
    counts = pa.array([1, 86_400_000_000_000 - 1, None], pa.int64())
    rows = {"at": counts.cast(pa.timestamp("ns", "UTC")), "time": counts.cast(pa.time64("ns"))}

    PrintSink().write(pa.record_batch(rows), subtask=0)

    assert capsys.readouterr().out.splitlines() == [
        "0> {'at': '1970-01-01T00:00:00.000000001Z', 'time': '00:00:00.000000001'}",
        "0> {'at': '1970-01-01T23:59:59.999999999Z', 'time': '23:59:59.999999999'}",
        "0> {'at': None, 'time': None}",
    ]


KILLED = """
import os, signal, sys
import pyarrow as pa
import pyarrow.parquet as pq
import arrowstate.runtime.sinks.parquet as parquet
import arrowstate.postgres.commits as postgres
from arrowstate.runtime import PostgresSink
from arrowstate.runtime.connectors import Token

def die(*given):
    os.kill(os.getpid(), signal.SIGKILL)

point, place = sys.argv[1:]
rows = pa.table({"n": range(100_000)})
if point == "in the file":
    write = pq.ParquetWriter.write_table
    pq.ParquetWriter.write_table = lambda self, rows: (write(self, rows), die())
if point == "before the name":
    os.link = die
if point == "after the name":
    link = os.link
    os.link = lambda *given: (link(*given), die())
if point in ("in the rows", "after the commit"):
    sink = PostgresSink(place, "numbers")
    if point == "in the rows":
        texts = postgres.as_copy_text
        def some(rows):
            yield next(texts(rows))
            die()
        postgres.as_copy_text = some
else:
    sink = parquet.ParquetSink(place)
sink.open("a-store", "a-sink")
sink.commit(rows, Token("a-store", "a-sink", 7, 0))
die()
"""


def kill_at(point: str, place: str) -> None:
    ended = python("-c", KILLED, point, place)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.mark.parametrize("point", ["in the file", "before the name", "after the name"])
def test_a_commit_of_files_that_was_killed_is_made_once(tmp_path: Path, point: str) -> None:
    kill_at(point, str(tmp_path))
    shown = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert len(shown) == (point == "after the name")

    sink = ParquetSink(tmp_path)
    sink.open("a-store", "a-sink")
    sink.commit(pa.table({"n": range(100_000)}), token(7))

    (file,) = tmp_path.iterdir()
    assert pq.read_table(file)["n"].to_pylist() == list(range(100_000))


@pytest.mark.parametrize("point", ["in the rows", "after the commit"])
def test_a_commit_to_postgres_that_was_killed_is_made_once(database: str, connection: Any, point: str) -> None:
    connection.execute("create table numbers (n bigint)")
    kill_at(point, database)

    sink = PostgresSink(database, "numbers")
    sink.open("a-store", "a-sink")
    sink.commit(pa.table({"n": range(100_000)}), token(7))
    sink.close()

    found = connection.execute("select count(*), count(distinct n), max(n) from numbers").fetchone()
    assert found == (100_000, 100_000, 99_999)
