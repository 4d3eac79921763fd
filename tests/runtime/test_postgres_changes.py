"""Changes of a table of PostgreSQL: the contract of sources, models of what must come, and what is refused."""

import datetime
import decimal
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, SourceError, UnavailableError
from arrowstate.runtime import Batch, Job, ParquetSink, PostgresCDCSource, PostgresSink, Reader, Restart, Source, Split
from arrowstate.runtime.sources.postgres_copying import Copying
from arrowstate.testing import SourceConformance
from long_form import short_or_long

OWN = ("_change_type", "_commit_lsn", "_committed_at")


def read(source: Source, position: Any = None, *, rows: int, max_rows: int = 1000) -> list[Batch]:
    """Return batches of a new reader up to so many rows."""
    reader = source.reader()
    reader.add([Split("changes", position)])
    found = read_on(reader, rows, max_rows)
    reader.close()
    return found


def read_on(reader: Reader, rows: int, max_rows: int = 1000) -> list[Batch]:
    """Return what a reader gives up to so many rows, and the last position, if it gives nothing more."""
    found: list[Batch] = []
    count = nothing = 0
    until = time.monotonic() + 120
    while count < rows or not found or nothing < 3:
        batch = reader.read(max_rows)
        assert not isinstance(batch, arrowstate.runtime.EndOfSplit)
        if batch is None:
            nothing += 1
            assert time.monotonic() < until, f"{count} of {rows} rows have come"
        else:
            nothing = 0
            count += batch.rows.num_rows
            found.append(batch)
    assert count == rows, [batch.rows.to_pylist() for batch in found]
    return found


def shown(batches: Sequence[Batch]) -> list[tuple[Any, ...]]:
    """Return the change type and the values of each row."""
    rows = [row for batch in batches for row in batch.rows.to_pylist()]
    return [(row["_change_type"], *(value for name, value in row.items() if name not in OWN)) for row in rows]


def upserts(database: str) -> tuple[PostgresCDCSource, Split]:
    """Return a source of the upserts of `t` from now on, and its split."""
    source = PostgresCDCSource(database, "t", slot="s", changelog="upsert", snapshot=False)
    (split,) = source.discover(())
    return source, split


def full(connection: Any, columns: str = "id int primary key, v text", table: str = "t") -> None:
    """Make a table whose old rows are in the log."""
    connection.execute(f"create table {table} ({columns})")
    connection.execute(f"alter table {table} replica identity full")


class TestRowsOfATable(SourceConformance):
    @pytest.fixture
    def source(self, database: str, connection: Any) -> PostgresCDCSource:
        connection.execute("create table t (a int, b text, v text, primary key (b, a))")
        connection.execute(
            "insert into t select i % 7, 'k' || i / 7, nullif(i % 5, 0)::text from generate_series(0, 39) i"
        )
        return PostgresCDCSource(database, "t", slot="s", changelog="upsert")

    @pytest.fixture
    def rows(self, source: PostgresCDCSource) -> pa.Table:
        source.discover(())
        with psycopg.connect(source.feed.conninfo) as connection:
            lsn = source.feed.check(connection, None)
        rows = [
            {"a": n % 7, "b": f"k{n // 7}", "v": str(n % 5) if n % 5 else None, "_change_type": "insert"}
            for n in range(40)
        ]
        begins = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return pa.Table.from_pylist(
            [{**row, "_commit_lsn": lsn, "_committed_at": begins} for row in rows], source.schema
        )


class TestChangesOfATable(SourceConformance):
    @pytest.fixture
    def source(self, database: str, connection: Any) -> PostgresCDCSource:
        full(connection)
        source = PostgresCDCSource(database, "t", slot="s", snapshot=False)
        source.discover(())
        for first in range(0, 20, 4):
            connection.execute(f"insert into t select i, 'v' || i from generate_series({first}, {first + 3}) i")
        connection.execute("update t set v = 'new' where id % 2 = 0; delete from t where id > 15")
        return source

    @pytest.fixture
    def rows(self, source: PostgresCDCSource) -> pa.Table:
        batches = read(source, source.discover(())[0].position, rows=44)
        changes = shown(batches)
        assert changes[:20] == [("insert", n, f"v{n}") for n in range(20)]
        pairs = list(zip(changes[20:40:2], changes[21:40:2], strict=True))
        assert sorted(pairs) == sorted(
            (("update_preimage", n, f"v{n}"), ("update_postimage", n, "new")) for n in range(0, 20, 2)
        )
        assert sorted(changes[40:]) == [("delete", n, f"v{n}" if n % 2 else "new") for n in range(16, 20)]
        return pa.Table.from_batches([batch.rows for batch in batches])


class Model:
    """What a table is after the changes that have come, which must fit to it."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}
        self.count = 0

    def take(self, batch: Batch) -> None:
        for kind, key, value in shown([batch]):
            self.count += 1
            if kind in ("insert", "update_postimage"):
                assert key not in self.rows, f"{kind} of {key}, which is there"
                self.rows[key] = value
            else:
                assert self.rows.pop(key, "nothing") == value, f"{kind} of {key}"


def change(connections: Sequence[Any], chance: random.Random) -> None:
    """Do something in one of some transactions that run at the same time; each has keys of its own while it runs."""
    number = chance.randrange(len(connections))
    connection = connections[number]
    key = chance.randrange(20) * len(connections) + number
    statements = {
        "insert into t values (%(key)s, %(value)s) on conflict (id) do update set v = excluded.v": 4,
        "update t set v = %(value)s where id = %(key)s": 3,
        "delete from t where id = %(key)s": 2,
        "update t set id = %(other)s where id = %(key)s and not exists (select from t where id = %(other)s)": 1,
    }
    (statement,) = chance.choices(list(statements), list(statements.values()))
    other = chance.randrange(20) * len(connections) + number
    connection.execute(statement, {"key": key, "other": other, "value": str(chance.random())})
    end = chance.random()
    if end < 0.4:
        connection.commit()
    elif end < 0.5:
        connection.rollback()


@pytest.mark.parametrize("seed", range(short_or_long(6, 300)))
def test_a_reader_that_is_cut_anywhere_gives_every_change_once(database: str, connection: Any, seed: int) -> None:
    chance = random.Random(seed)
    full(connection)
    others = [psycopg.connect(database) for _ in range(3)]
    for number in range(60):
        others[0].execute("insert into t values (%s, 'old')", (number,))
    others[0].commit()
    source = PostgresCDCSource(database, "t", slot="s", reconnect_ms=60_000)
    for _ in range(chance.randrange(5)):
        change(others[:1], chance)
    others[0].rollback()
    position = source.discover(())[0].position
    model = Model()
    kept = position, dict(model.rows)

    for _ in range(12):
        reader = source.reader()
        reader.add([Split("changes", position)])
        for _ in range(chance.randrange(1, 30)):
            for _ in range(chance.randrange(3)):
                change(others, chance)
            batch = reader.read(chance.choice([1, 2, 3, 7, 100]))
            if isinstance(batch, Batch):
                model.take(batch)
                position = batch.position
                if chance.random() < 0.1:
                    kept = position, dict(model.rows)
                    reader.committed({"changes": position})
            elif chance.random() < 0.1:
                connection.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where active")
        reader.close()
        position, model.rows = kept[0], dict(kept[1])
    for other in others:
        other.commit()
        other.close()
    reader = source.reader()
    reader.add([Split("changes", position)])
    expected = dict(connection.execute("select id, v from t").fetchall())
    for _ in range(20_000):
        batch = reader.read(100)
        if isinstance(batch, Batch):
            model.take(batch)
        elif model.rows == expected:
            break
    reader.close()

    assert model.rows == expected


VALUES: dict[str, tuple[pa.DataType, str, Any]] = {
    "boolean": (pa.bool_(), "true", True),
    "smallint": (pa.int16(), "-32768", -32768),
    "int": (pa.int32(), "7", 7),
    "bigint": (pa.int64(), "9223372036854775807", 2**63 - 1),
    "oid": (pa.uint32(), "4294967295", 2**32 - 1),
    "real": (pa.float32(), "'1e-7'", 1.0000000116860974e-07),
    "double precision": (pa.float64(), "'-Infinity'", float("-inf")),
    "numeric(10, 2)": (pa.decimal128(10, 2), "12345678.90", decimal.Decimal("12345678.90")),
    "numeric(60, 10)": (pa.decimal256(60, 10), "1.5", decimal.Decimal("1.5000000000")),
    "numeric": (pa.string(), "'NaN'", "NaN"),
    "numeric(3, 5)": (pa.string(), "0.00123", "0.00123"),
    "numeric(5, -2)": (pa.string(), "12345", "12300"),
    "text": (pa.string(), "e'say \"hi\",\\n\\\\N \\u00e9'", 'say "hi",\n\\N é'),
    "varchar(5)": (pa.string(), "''", ""),
    "char(5)": (pa.string(), "'ab'", "ab   "),
    "bytea": (pa.binary(), "'\\x00ff0a'", b"\x00\xff\n"),
    "date": (pa.date32(), "'1999-12-31'", datetime.date(1999, 12, 31)),
    "time": (pa.time64("us"), "'01:02:03.000004'", datetime.time(1, 2, 3, 4)),
    "timestamp": (pa.timestamp("us"), "'2026-01-02 03:04:05.5'", datetime.datetime(2026, 1, 2, 3, 4, 5, 500_000)),
    "timestamptz": (
        pa.timestamp("us", "UTC"),
        "'2026-01-02 03:04:05+02'",
        datetime.datetime(2026, 1, 2, 1, 4, 5, tzinfo=datetime.UTC),
    ),
    "interval": (pa.string(), "'1 year 2 days 3 hours'", "P1Y2DT3H"),
    "timetz": (pa.string(), "'01:02:03+04'", "01:02:03+04"),
    "uuid": (pa.string(), "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "json": (pa.string(), "'{\"a\":  1}'", '{"a":  1}'),
    "jsonb": (pa.string(), '\'{"b": 1, "a": null}\'', '{"a": null, "b": 1}'),
    "inet": (pa.string(), "'10.0.0.1'", "10.0.0.1"),
    "money": (pa.string(), "1234.5", "$1,234.50"),
    "int4range": (pa.string(), "'[1,5)'", "[1,5)"),
    "bit(3)": (pa.string(), "b'101'", "101"),
    "point": (pa.string(), "'(1,0.1)'", "(1,0.1)"),
    "mood": (pa.string(), "'so, so'", "so, so"),
    "pair": (pa.string(), "row(1, 'x,y')", '(1,"x,y")'),
    "small": (pa.decimal128(6, 2), "1.25", decimal.Decimal("1.25")),
    "int[]": (pa.list_(pa.int32()), "'{1,NULL,3}'", [1, None, 3]),
    "text[]": (
        pa.list_(pa.string()),
        "array['a \"b\\', '', null, 'NULL', '{x}', 'é,']",
        ['a "b\\', "", None, "NULL", "{x}", "é,"],
    ),
    "numeric(6, 2)[]": (pa.list_(pa.decimal128(6, 2)), "'{}'", []),
    "timestamptz[]": (
        pa.list_(pa.timestamp("us", "UTC")),
        "'{2026-01-02 03:04:05+02}'",
        [datetime.datetime(2026, 1, 2, 1, 4, 5, tzinfo=datetime.UTC)],
    ),
    "bytea[]": (pa.list_(pa.binary()), "array['\\x00ff'::bytea, '']", [b"\x00\xff", b""]),
    "mood[]": (pa.list_(pa.string()), "array['so, so'::mood]", ["so, so"]),
    "small[]": (pa.list_(pa.decimal128(6, 2)), "array[1.25::small]", [decimal.Decimal("1.25")]),
    "box[]": (pa.string(), "array['(1,1),(0,0)'::box]", "{(1,1),(0,0)}"),
    "int2vector": (pa.string(), "'1 2'", "1 2"),
}


def test_values_of_every_type_come_as_they_are_from_the_table_and_from_the_log(database: str, connection: Any) -> None:
    connection.execute("create type mood as enum ('so, so', 'good'); create type pair as (a int, b text)")
    connection.execute("create domain smaller as numeric(6, 2); create domain small as smaller check (value > 0)")
    columns = ", ".join(f"c{number} {type}" for number, type in enumerate(VALUES))
    full(connection, f"id int primary key, {columns}")
    values = ", ".join(given for _, given, _ in VALUES.values())
    connection.execute("alter role postgres set datestyle = 'German'")
    connection.execute("alter role postgres set timezone = 'Asia/Kolkata'")
    source = PostgresCDCSource(database, "t", slot="s")
    assert source.schema.types[1:-3] == [type for type, _, _ in VALUES.values()]
    source.discover(())
    connection.execute(f"insert into t values (1, {values}), (2{', null' * len(VALUES)})")
    before = read(source, rows=2)

    connection.execute(f"insert into t values (3, {values}), (4{', null' * len(VALUES)})")
    after = read(source, before[-1].position, rows=2)
    connection.execute("alter role postgres reset all")

    expected = [value for _, _, value in VALUES.values()]
    for batches, first in ((before, 1), (after, 3)):
        assert shown(batches) == [("insert", first, *expected), ("insert", first + 1, *[None] * len(VALUES))]


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("date", "'infinity'"),
        ("date", "'0044-03-15 BC'"),
        ("timestamp", "'-infinity'"),
        ("timestamptz", "'20000-01-01'"),
        ("time", "'24:00'"),
        ("numeric(5, 2)", "'NaN'"),
        ("int[]", "'{{1},{2}}'"),
        ("int[]", "'[0:1]={1,2}'"),
    ],
)
def test_a_value_that_its_type_cannot_hold_is_refused_with_its_column_and_given_as_text(
    database: str, connection: Any, type: str, value: str
) -> None:
    connection.execute(f"create table t (id int primary key, bad {type})")
    connection.execute(f"insert into t values (1, {value})")
    source = PostgresCDCSource(database, "t", slot="s", changelog="upsert")
    source.discover(())

    with pytest.raises(SourceError, match=r"column 'bad' of type .* cannot hold: .*; name it in text_columns"):
        read(source, rows=1)

    as_text = PostgresCDCSource(database, "t", slot="s", changelog="upsert", text_columns=["bad"])
    ((kind, key, text),) = shown(read(as_text, rows=1))
    assert (kind, key) == ("insert", 1)
    assert connection.execute(f"select %s::{type} = {value}::{type}", (text,)).fetchone() == (True,)


def test_upserts_have_new_rows_and_the_keys_of_deleted_ones(database: str, connection: Any) -> None:
    connection.execute("create table t (id int primary key, v text)")
    source, split = upserts(database)

    connection.execute("insert into t values (1, 'a'), (2, 'b'); update t set v = 'c' where id = 1")
    connection.execute("update t set id = 3 where id = 1; delete from t where id = 2")

    assert shown(read(source, split.position, rows=6)) == [
        ("insert", 1, "a"),
        ("insert", 2, "b"),
        ("update_postimage", 1, "c"),
        ("delete", 1, None),
        ("update_postimage", 3, "c"),
        ("delete", 2, None),
    ]


def test_upserts_of_a_table_with_old_rows_leave_out_what_only_they_have(database: str, connection: Any) -> None:
    full(connection)
    source, split = upserts(database)

    connection.execute("insert into t values (1, 'a'); update t set v = 'c'; update t set id = 3; delete from t")

    assert shown(read(source, split.position, rows=5)) == [
        ("insert", 1, "a"),
        ("update_postimage", 1, "c"),
        ("delete", 1, "c"),
        ("update_postimage", 3, "c"),
        ("delete", 3, "c"),
    ]


LONG = "(select string_agg(md5(i::text), '') from generate_series(1, 400) i)"


def test_a_long_value_that_an_update_leaves_comes_with_the_old_row(database: str, connection: Any) -> None:
    full(connection, "id int primary key, long text, v int")
    source = PostgresCDCSource(database, "t", slot="s", snapshot=False, columns=["v", "long"])
    (split,) = source.discover(())

    connection.execute(f"insert into t values (1, {LONG}, 1); update t set v = 2; update t set long = null")

    (text,) = connection.execute(f"select {LONG}").fetchone()
    assert shown(read(source, split.position, rows=5)) == [
        ("insert", 1, text),
        ("update_preimage", 1, text),
        ("update_postimage", 2, text),
        ("update_preimage", 2, text),
        ("update_postimage", 2, None),
    ]


def test_a_long_value_that_an_update_leaves_and_nobody_sends_is_refused_with_its_column(
    database: str, connection: Any
) -> None:
    connection.execute("create table t (id int primary key, long text, v int)")
    source, split = upserts(database)
    without = PostgresCDCSource(database, "t", slot="s", changelog="upsert", snapshot=False, columns=["id", "v"])

    connection.execute(f"insert into t values (1, {LONG}, 1)")
    connection.execute("update t set v = 2")

    with pytest.raises(SourceError, match="column 'long' has a long value that an update left as it was"):
        read(source, split.position, rows=2)
    assert shown(read(without, split.position, rows=2)) == [("insert", 1, 1), ("update_postimage", 1, 2)]


def test_a_long_value_that_an_update_before_the_snapshot_left_is_not_asked_for(
    database: str, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("create table t (id int primary key, long text)")
    connection.execute(f"insert into t values (1, {LONG})")
    source = PostgresCDCSource(database, "t", slot="s", changelog="upsert")
    source.discover(())
    connection.execute("update t set id = id")
    position = next(batch.position for batch in read(source, rows=1) if batch.position["key"] is None)
    connection.execute("insert into t values (2, 'short')")
    take = Copying.take

    def take_both(copying: Copying, most: int) -> list[bytes]:
        messages: list[bytes] = []
        while len([message for message in messages if message[25:26] == b"C"]) < 2:
            messages += take(copying, most)
        monkeypatch.setattr(Copying, "take", take)
        return messages

    monkeypatch.setattr(Copying, "take", take_both)

    assert shown(read(source, position, rows=1)) == [("insert", 2, "short")]


def test_a_long_key_that_an_update_leaves_comes_with_the_old_key(database: str, connection: Any) -> None:
    connection.execute("create table t (id text primary key, v int)")
    connection.execute("alter table t alter id set storage external")
    source, split = upserts(database)

    connection.execute("insert into t values (repeat('x', 2500), 1); update t set v = 2; delete from t")

    assert shown(read(source, split.position, rows=3)) == [
        ("insert", "x" * 2500, 1),
        ("update_postimage", "x" * 2500, 2),
        ("delete", "x" * 2500, None),
    ]


def test_a_partitioned_table_is_one_table(database: str, connection: Any) -> None:
    connection.execute("create table t (id int primary key, v text) partition by range (id)")
    for number in range(3):
        name = f"t{number}"
        connection.execute(
            f"create table {name} partition of t for values from ({number * 10}) to ({number * 10 + 10})"
        )
        connection.execute(f"alter table {name} replica identity full")
    with pytest.raises(InvalidInputError, match="replica identity full"):
        PostgresCDCSource(database, "t", slot="s")
    connection.execute("alter table t replica identity full; insert into t values (1, 'a'), (11, 'b')")
    source = PostgresCDCSource(database, "t", slot="s")
    source.discover(())
    batches = read(source, rows=2)

    connection.execute("update t set id = 25 where id = 1; delete from t where id = 11")

    assert shown(batches) == [("insert", 1, "a"), ("insert", 11, "b")]
    assert shown(read(source, batches[-1].position, rows=3)) == [
        # Which is how PostgreSQL moves a row to another partition.
        ("delete", 1, "a"),
        ("insert", 25, "a"),
        ("delete", 11, "b"),
    ]


def test_changes_of_other_tables_move_the_position_and_the_slot(database: str, connection: Any) -> None:
    full(connection)
    source = PostgresCDCSource(database, "t", slot="s")
    reader = source.reader()
    reader.add(source.discover(()))
    before = read_on(reader, 0)[-1].position

    connection.execute("create table other (n int); insert into other select generate_series(1, 1000)")
    (end,) = connection.execute("select (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
    connection.execute("checkpoint")
    position = before
    for _ in range(20_000):
        batch = reader.read(10)
        position = position if batch is None else batch.position
        if position["lsn"] >= end:
            break
    reader.committed({"changes": position})
    for _ in range(20_000):
        reader.read(10)
        place = "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots"
        if (moved := connection.execute(place).fetchone()[0]) >= end:
            break
    reader.close()

    assert position["lsn"] >= end > before["lsn"]
    assert moved == position["lsn"]


def test_a_transaction_of_many_rows_comes_in_pieces(database: str, connection: Any) -> None:
    full(connection)
    source = PostgresCDCSource(database, "t", slot="s", snapshot=False)
    (split,) = source.discover(())
    connection.execute("insert into t select i, repeat('x', 500) from generate_series(1, 30000) i")
    reader = source.reader()
    reader.add([split])

    sizes = []
    while sum(sizes) < 30_000:
        batch = reader.read(1_000_000)
        if isinstance(batch, Batch):
            sizes.append(batch.rows.num_rows)
            assert sum(sizes) == 30_000 or batch.position["row"] == sum(sizes)
    reader.close()

    assert max(sizes) <= 16_384


def cut(connection: Any) -> None:
    connection.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where active")


def test_a_connection_that_is_cut_in_a_transaction_goes_on_with_the_next_row(database: str, connection: Any) -> None:
    full(connection)
    source = PostgresCDCSource(database, "t", slot="s", snapshot=False)
    (split,) = source.discover(())
    connection.execute("insert into t select i, repeat('x', 50) from generate_series(1, 20000) i")
    reader = source.reader()
    reader.add([split])
    found: list[int] = []
    cuts = 0

    while len(found) < 20_000:
        batch = reader.read(1_000)
        if isinstance(batch, Batch):
            found += batch.rows["id"].to_pylist()
            if cuts < len(found) // 6_000:
                cuts += 1
                cut(connection)
    reader.close()

    assert found == list(range(1, 20_001))


def test_a_snapshot_that_is_cut_goes_on_with_another(database: str, connection: Any) -> None:
    full(connection)
    connection.execute("insert into t select i, repeat('x', 500) from generate_series(1, 40000) i")
    source = PostgresCDCSource(database, "t", slot="s")
    reader = source.reader()
    reader.add(source.discover(()))
    model = Model()
    cuts = 0

    for _ in range(100_000):
        batch = reader.read(7_000)
        if not isinstance(batch, Batch):
            continue
        model.take(batch)
        if batch.position["key"] is None and len(model.rows) == 40_001 - cuts:
            break
        if cuts < 3 and batch.position["key"] is not None:
            cuts += 1
            # One row that was read, one that was not, and one that moves from here to there.
            connection.execute(f"update t set v = 'new' where id in ({cuts}, {39_000 + cuts})")
            connection.execute(f"update t set id = {50_000 + cuts} where id = {100 + cuts}")
            connection.execute(f"delete from t where id = {200 + cuts}")
            connection.execute("insert into t values (40001, '') on conflict do nothing")
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where query like 'copy%'")
    position = reader.read(1) or batch
    reader.close()

    assert cuts == 3
    assert model.rows == dict(connection.execute("select id, v from t").fetchall())
    assert position is not None


def test_a_snapshot_goes_on_after_a_key_of_a_type_and_a_text_of_any_kind(database: str, connection: Any) -> None:
    connection.execute('create type "50%" as (part int, name text)')
    full(connection, 'a "50%", b text, v int, primary key (a, b)')
    keys = [("(1,x)", "100%s"), ("(1,x)", "100%t"), ('(2,"y,")', "\\'")]
    connection.cursor().executemany("insert into t values (%s, %s, 1)", keys)
    source = PostgresCDCSource(database, "t", slot="s")
    reader = source.reader()
    reader.add(source.discover(()))
    while (first := reader.read(1)) is None:
        pass
    reader.close()

    connection.execute("update t set v = 2")

    assert shown([first]) == [("insert", *keys[0], 1)]  # type: ignore[list-item]
    assert shown(read(source, first.position, rows=4)) == [  # type: ignore[union-attr]
        ("insert", *keys[1], 2),
        ("insert", *keys[2], 2),
        ("update_preimage", *keys[0], 1),
        ("update_postimage", *keys[0], 2),
    ]


def test_a_snapshot_goes_on_with_the_settings_that_the_environment_has(
    database: str, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("drop schema if exists moods cascade; create schema moods")
    connection.execute("create type moods.mood as enum ('good', 'so')")
    full(connection, "id moods.mood primary key")
    connection.execute("insert into t values ('good'), ('so')")
    monkeypatch.setenv("PGOPTIONS", "-c search_path=moods")
    source = PostgresCDCSource(database, "t", slot="s")
    reader = source.reader()
    reader.add(source.discover(()))
    while (first := reader.read(1)) is None:
        pass
    reader.close()

    rest = read(source, first.position, rows=1)  # type: ignore[union-attr]

    assert shown([first, *rest]) == [("insert", "good"), ("insert", "so")]  # type: ignore[list-item]
    connection.execute("drop schema moods cascade")


def test_a_table_that_is_written_anew_before_its_rows_are_copied_has_all_of_them(
    database: str, connection: Any
) -> None:
    full(connection)
    connection.execute("insert into t values (1, 'a'), (2, 'b'); create table other (n int)")
    source = PostgresCDCSource(database, "t", slot="s")
    reader = source.reader()
    reader.add(source.discover(()))

    with psycopg.connect(database) as other:
        # The snapshot waits until the log has what is before it.
        other.execute("insert into other values (1)")
        assert reader.read(10) is None
        connection.execute("alter table t add more float default random()")
        batches = read_on(reader, 2)
    reader.close()

    assert shown(batches) == [("insert", 1, "a"), ("insert", 2, "b")]


def test_a_table_without_a_key_cannot_be_read_on_where_its_snapshot_was_left(database: str, connection: Any) -> None:
    full(connection, "n int")
    connection.execute("insert into t select generate_series(1, 10)")
    source = PostgresCDCSource(database, "t", slot="s")
    source.discover(())
    whole = read(source, rows=10)
    reader = source.reader()
    reader.add([Split("changes")])
    begun = reader.read(4)
    while begun is None:
        begun = reader.read(4)
    reader.close()

    connection.execute("delete from t where n > 9")

    assert shown(read(source, whole[-1].position, rows=1)) == [("delete", 10)]
    with pytest.raises(SourceError, match="no primary key, so it cannot be read on here"):
        read(source, begun.position, rows=6)  # type: ignore[union-attr]


def begun(source: PostgresCDCSource) -> Any:
    """Return the position after four rows of a snapshot."""
    reader = source.reader()
    reader.add(source.discover(()))
    batch = reader.read(4)
    while batch is None:
        batch = reader.read(4)
    reader.close()
    assert isinstance(batch, Batch)
    return batch.position


def as_of_before(position: Any) -> Any:
    """Return a position as it was before positions had the table and its key."""
    return {**position, "snapshots": [it for it in position["snapshots"] if it["snapshot"] is not None]}


KEYS = {
    "drop constraint t_pkey, add primary key (other)": "id integer) when the snapshot was begun and is .other integer",
    "drop constraint t_pkey, add primary key (id, other)": "id integer) .* and is .id integer, other integer",
    "alter id type text": "id integer) when the snapshot was begun and is .id text",
    "drop constraint t_pkey": "id integer) when the snapshot was begun and is .none",
}


@pytest.mark.parametrize("declared", ["again", "before"])
@pytest.mark.parametrize("altered", KEYS)
def test_a_snapshot_does_not_go_on_by_another_key(database: str, connection: Any, altered: str, declared: str) -> None:
    full(connection, "id int primary key, other int not null")
    connection.execute("insert into t select i, 10 - i from generate_series(1, 10) i")
    source = PostgresCDCSource(database, "t", slot="s")
    position = begun(source)
    split = Split("changes", position)

    connection.execute(f"alter table t {altered}")

    told = f"the key was .{KEYS[altered].replace(')', '.')}. now, .* begin anew under another uid and slot"
    if declared == "again":
        source = PostgresCDCSource(database, "t", slot="s")
    with pytest.raises(SourceError, match=told):
        source.check_splits([split], [])
    with pytest.raises(SourceError, match=told):
        read(source, position, rows=6)


def test_changes_are_not_told_apart_by_another_key_than_that_of_their_snapshots(database: str, connection: Any) -> None:
    full(connection, "id int primary key, other int not null")
    connection.execute("insert into t select i, 10 - i from generate_series(1, 10) i")
    source = PostgresCDCSource(database, "t", slot="s")
    position = begun(source)
    connection.execute("insert into t values (11, -1)")
    positions = [batch.position for batch in read(source, position, rows=7)]
    at_end = next(position for position in positions if position["key"] is None)
    assert [it["upto"] for it in at_end["snapshots"]] == [["id integer"], ["4"], None]
    connection.execute("insert into t values (12, -2)")
    later = read(source, at_end, rows=1)[-1].position
    assert [it["upto"] for it in later["snapshots"]] == [["id integer"]]

    connection.execute("alter table t drop constraint t_pkey, add primary key (other)")
    connection.execute("insert into t values (13, -3)")

    source = PostgresCDCSource(database, "t", slot="s")
    with pytest.raises(SourceError, match="the key was .id integer. .* and is .other integer. now"):
        read(source, at_end, rows=2)
    assert shown(read(source, later, rows=1)) == [("insert", 13, -3)]


def test_a_position_of_before_goes_on_where_the_key_has_as_many_columns(database: str, connection: Any) -> None:
    full(connection)
    connection.execute("insert into t select i, 'v' from generate_series(1, 10) i")
    source = PostgresCDCSource(database, "t", slot="s")
    position = as_of_before(begun(source))

    connection.execute("delete from t where id in (2, 9)")
    source.check_splits([Split("changes", position)], [])
    rest = read(source, position, rows=6)
    connection.execute("update t set v = 'w' where id = 1")
    changes = read(source, as_of_before(rest[-1].position), rows=2)

    assert shown(rest) == [*(("insert", n, "v") for n in (5, 6, 7, 8, 10)), ("delete", 2, "v")]
    assert shown(changes) == [("update_preimage", 1, "v"), ("update_postimage", 1, "w")]
    connection.execute("alter table t drop constraint t_pkey, add primary key (id, v)")
    again = PostgresCDCSource(database, "t", slot="s")
    with pytest.raises(SourceError, match="the key was .1 columns. .* and is .id integer, v text. now"):
        again.check_splits([Split("changes", position)], [])


def test_a_second_start_before_the_first_checkpoint_reads_the_table_again(database: str, connection: Any) -> None:
    full(connection)
    connection.execute("insert into t values (1, 'a')")
    source = PostgresCDCSource(database, "t", slot="s")
    source.discover(())
    first = shown(read(source, rows=1))
    connection.execute("update t set v = 'b'; insert into t values (2, 'c')")

    (split,) = PostgresCDCSource(database, "t", slot="s").discover(())
    again = read(source, split.position, rows=2)

    assert first == [("insert", 1, "a")]
    assert shown(again) == [("insert", 1, "b"), ("insert", 2, "c")]
    connection.execute("delete from t where id = 1")
    assert shown(read(source, again[-1].position, rows=1)) == [("delete", 1, "b")]


def idle(connection: Any) -> None:
    """Wait until the server has seen that the reader is gone."""
    while connection.execute("select from pg_replication_slots where active").fetchall():
        pass


def moved(source: PostgresCDCSource, connection: Any) -> Any:
    """Return a position beyond which the slot is moved."""
    position = read(source, rows=0)[-1].position
    connection.execute("insert into t values (1, 'a')")
    idle(connection)
    connection.execute("select pg_replication_slot_advance('s', pg_current_wal_lsn())")
    return position


def of_another_server(source: PostgresCDCSource, connection: Any) -> Any:
    return {**read(source, rows=0)[-1].position, "lsn": 1 << 60}


def of_another_database(source: PostgresCDCSource, connection: Any) -> Any:
    position = read(source, rows=0)[-1].position
    idle(connection)
    conninfo = source.feed.conninfo.replace("dbname=postgres", "dbname=template1")
    connection.execute("select pg_drop_replication_slot('s')")
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
    return position


def after(*statements: str) -> Callable[[PostgresCDCSource, Any], Any]:
    def prepare(source: PostgresCDCSource, connection: Any) -> Any:
        position = read(source, rows=0)[-1].position
        idle(connection)
        for statement in statements:
            connection.execute(statement)
        return position

    return prepare


DROP_SLOT = "select pg_drop_replication_slot('s')"
REFUSED = {
    "the slot 's' is gone": after(DROP_SLOT),
    "the slot 's' was moved on to .* beyond .* of this checkpoint": moved,
    "it has gone back, or is another one": of_another_server,
    "the slot 's' is of the database 'template1', and the source of 'postgres'": of_another_database,
    "is logical with the plugin test_decoding": after(
        DROP_SLOT, "select pg_create_logical_replication_slot('s', 'test_decoding')"
    ),
    "was made with two_phase": after(
        DROP_SLOT, "select pg_create_logical_replication_slot('s', 'pgoutput', twophase => true)"
    ),
    "is physical with the plugin None": after(DROP_SLOT, "select pg_create_physical_replication_slot('s')"),
    "the publication 's' is gone": after("drop publication s"),
    "the publication 's' does not have the table public.t": after("drop table t"),
    "must publish insert, update, delete and truncate": after("alter publication s set (publish = 'insert')"),
    "has only some rows of the table": after("alter publication s set table t where (id > 3)"),
    "does not have the columns v": after("alter publication s set table t (id)"),
    "the table public.t is another one than before": after(
        "drop table t", "create table t (id int primary key, v text)", "alter publication s add table t"
    ),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_a_slot_or_a_publication_that_does_not_fit_is_refused_at_the_start_and_while_it_runs(
    database: str, connection: Any, problem: str
) -> None:
    full(connection)
    source = PostgresCDCSource(database, "t", slot="s")
    source.discover(())

    position = REFUSED[problem](source, connection)

    with pytest.raises(SourceError, match=problem):
        source.check_splits([Split("changes", position)], [])
    with pytest.raises(SourceError, match=f"{problem}.*begin anew under another uid and slot"):
        read(source, position, rows=1)
    if "was moved" not in problem and "gone back" not in problem:
        with pytest.raises(SourceError, match=problem):
            source.discover(["changes"])


def test_a_first_start_that_is_refused_for_its_publication_leaves_no_slot(database: str, connection: Any) -> None:
    full(connection)
    connection.execute("create publication s for table t where (id > 3)")

    with pytest.raises(SourceError, match="has only some rows of the table"):
        PostgresCDCSource(database, "t", slot="s").discover(())

    assert connection.execute("select slot_name from pg_replication_slots").fetchall() == []


ALTERED = {
    "does not have the columns v": "alter table t rename v to w",
    "its column 'v' has another type than text": "alter table t alter v type int using 1",
    "its column 'n' has another type than numeric": "alter table t alter n type numeric(8, 3)",
    "the table was truncated by the transaction at": "truncate t",
    "came without its old row": "alter table t replica identity default",
}


@pytest.mark.parametrize("problem", ALTERED)
def test_a_table_that_was_altered_so_that_its_rows_do_not_fit_is_refused(
    database: str, connection: Any, problem: str
) -> None:
    full(connection, "id int primary key, v text, n numeric(6, 2)")
    connection.execute("insert into t values (1, '1', 1)")
    source = PostgresCDCSource(database, "t", slot="s")
    source.discover(())
    position = read(source, rows=1)[-1].position

    connection.execute(ALTERED[problem])
    connection.execute("insert into t values (3); update t set id = 4 where id = 3")

    with pytest.raises(SourceError, match=problem):
        read(source, position, rows=3)


@pytest.mark.parametrize(
    "altered",
    ["alter table t replica identity using index i", "alter table t drop constraint t_pkey, add primary key (e)"],
)
def test_a_table_of_upserts_whose_key_became_another_one_is_refused(
    database: str, connection: Any, altered: str
) -> None:
    connection.execute("create table t (id int primary key, e text not null); create unique index i on t (e)")
    source, split = upserts(database)

    connection.execute("insert into t values (1, 'a'), (2, 'b')")
    connection.execute(altered)
    connection.execute("update t set id = 5 where id = 1; delete from t where id = 2")

    with pytest.raises(SourceError, match="its key is another one than id, .* deletes come without id"):
        read(source, split.position, rows=4)


def test_a_partitioned_table_of_upserts_has_the_keys_of_deleted_rows(database: str, connection: Any) -> None:
    connection.execute("create table t (id int primary key, v text) partition by range (id)")
    connection.execute("create table t0 partition of t for values from (0) to (10)")
    source, split = upserts(database)

    connection.execute("insert into t values (1, 'a'); update t set id = 2; delete from t")

    assert shown(read(source, split.position, rows=4)) == [
        ("insert", 1, "a"),
        ("delete", 1, None),
        ("update_postimage", 2, "a"),
        ("delete", 2, None),
    ]


def test_a_table_that_was_made_again_is_not_taken_for_the_one_of_before(database: str, connection: Any) -> None:
    full(connection)
    connection.execute("insert into t values (1, 'a')")
    source = PostgresCDCSource(database, "t", slot="s")
    reader = source.reader()
    reader.add(source.discover(()))
    position = read_on(reader, 1)[-1].position

    connection.execute("insert into t values (2, 'b'); drop table t")
    full(connection)
    connection.execute("alter publication s add table t; insert into t values (3, 'c')")

    # A reader that runs knows the table of before, and one that is made now that of now.
    with pytest.raises(SourceError, match="changes of another table public.t come: it was dropped and made again"):
        read_on(reader, 2)
    reader.close()
    again = PostgresCDCSource(database, "t", slot="s")
    with pytest.raises(SourceError, match="the table public.t is another one than before: it was dropped and made"):
        read(again, position, rows=2)
    with pytest.raises(SourceError, match="changes of another table public.t come: it was dropped and made again"):
        read(again, as_of_before(position), rows=2)


@pytest.mark.parametrize("publish", ["for all tables", "for tables in schema public"])
@pytest.mark.parametrize("table", ["t", "other"])
def test_another_table_with_a_publication_of_all_is_not_taken_for_the_one_of_before(
    database: str, connection: Any, table: str, publish: str
) -> None:
    full(connection)
    full(connection, table="other")
    connection.execute(f"create publication every {publish}")
    connection.execute("insert into t values (1, 'a')")
    source = PostgresCDCSource(database, "t", slot="s", publication="every")
    source.discover(())
    position = read(source, rows=1)[-1].position
    idle(connection)

    connection.execute("drop table t")
    full(connection)
    connection.execute("insert into t values (7, 'c')")

    again = PostgresCDCSource(database, table, slot="s", publication="every")
    told = f"the table public.{table} is another one than before: .* begin anew under another uid and slot"
    with pytest.raises(SourceError, match=told):
        again.check_splits([Split("changes", position)], [])
    with pytest.raises(SourceError, match=told):
        read(again, position, rows=1)
    again.check_splits([Split("changes", as_of_before(position))], [])


def test_a_table_with_another_name_is_the_one_of_before(database: str, connection: Any) -> None:
    full(connection)
    connection.execute("insert into t values (1, 'a')")
    source = PostgresCDCSource(database, "t", slot="s")
    source.discover(())
    position = read(source, rows=1)[-1].position

    connection.execute("alter table t rename to other; insert into other values (2, 'b')")

    assert shown(read(PostgresCDCSource(database, "other", slot="s"), position, rows=1)) == [("insert", 2, "b")]


def test_a_delete_in_a_partition_whose_key_became_another_one_is_refused(database: str, connection: Any) -> None:
    connection.execute("create table t (id int primary key, e text not null) partition by range (id)")
    connection.execute("create table t0 partition of t default; create unique index i on t0 (e)")
    source, split = upserts(database)

    connection.execute("insert into t values (1, 'a'); alter table t0 replica identity using index i; delete from t")

    with pytest.raises(SourceError, match="an update or a delete came without the key id"):
        read(source, split.position, rows=2)


def test_a_table_may_get_columns_and_a_truncation_may_be_passed_over(database: str, connection: Any) -> None:
    full(connection, "id int primary key, gone int, v text, twice int generated always as (gone * 2) stored")
    source = PostgresCDCSource(database, "t", slot="s", columns=["v", "id"], on_truncate="ignore", snapshot=False)
    (split,) = source.discover(())

    connection.execute("insert into t values (1, 1, 'a')")
    connection.execute("alter table t add more int default 7; insert into t values (2, 2, 'b'); truncate t")
    connection.execute("alter table t drop gone cascade")
    connection.execute("insert into t values (3, 'c', 9)")

    assert shown(read(source, split.position, rows=3)) == [("insert", "a", 1), ("insert", "b", 2), ("insert", "c", 3)]
    assert source.schema.names == ["v", "id", *OWN]


def test_a_slot_that_is_in_use_is_waited_for_and_not_for_ever(database: str, connection: Any) -> None:
    full(connection)
    now = 0.0
    source = PostgresCDCSource(database, "t", slot="s", snapshot=False, clock=lambda: now, reconnect_ms=1_000)
    (split,) = source.discover(())
    first, second = source.reader(), source.reader()
    first.add([split])
    second.add([split])
    while not connection.execute("select from pg_replication_slots where active").fetchall():
        first.read(1)

    for _ in range(50):
        assert second.read(1) is None
    now = 2.0
    with pytest.raises(UnavailableError, match='slot "s" is active for PID .*; tried for 1000 ms'):
        for _ in range(20_000):
            second.read(1)
            now += 0.01
    first.close()
    idle(connection)
    connection.execute("insert into t values (1, 'a')")

    assert shown(read_on(second, 1)) == [("insert", 1, "a")]
    second.close()


def test_a_snapshot_that_cannot_be_copied_is_not_tried_for_ever(database: str, connection: Any) -> None:
    full(connection)
    now = 0.0
    source = PostgresCDCSource(
        f"{database} options='-c lock_timeout=10ms'", "t", slot="s", clock=lambda: now, reconnect_ms=1_000
    )
    reader = source.reader()
    reader.add(source.discover(()))

    with psycopg.connect(database) as other:
        other.execute("lock table t in access exclusive mode")
        # A commit writes the log up to here to the disk, for which a snapshot waits.
        connection.execute("create table other (n int)")
        with pytest.raises(UnavailableError, match="(?s)due to lock timeout.*tried for 1000 ms"):
            for _ in range(20_000):
                assert reader.read(1) is None
                now += 0.01
    reader.close()


def test_a_server_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="PostgreSQL is not available, while connecting to it: .*No such file"):
        PostgresCDCSource(f"host={tmp_path} dbname=shop password=secret", "t", slot="s")


MISUSED: dict[str, dict[str, Any]] = {
    "slot must be 1 to 63 lower-case letters": {"slot": "Slot-1"},
    "changelog must be 'all' or 'upsert', got 'most'": {"changelog": "most"},
    "on_truncate must be 'error' or 'ignore', got 'delete'": {"on_truncate": "delete"},
    "reconnect_ms must be at least 0": {"reconnect_ms": -1},
    "discovery_ms must be at least 0": {"discovery_ms": -1},
    "there is no table other.t": {"schema": "other"},
    "has no column 'w' that is not generated; it has id, v": {"columns": ["w"]},
    "has no column 'twice' that is not generated": {"text_columns": ["twice"]},
    "columns must be some, each once": {"columns": ["id", "id"]},
    "must be an ordinary or a partitioned table": {"table": "a_view"},
    "changelog='all' needs the old rows of updates: `alter table public.plain replica identity full`": {
        "table": "plain"
    },
    "changelog='upsert' needs a primary key or a replica identity": {"table": "plain", "changelog": "upsert"},
    "has none that is neither generated nor deferrable": {"table": "deferred", "changelog": "upsert"},
    "has the partition unlogged, which is not an ordinary table": {"table": "parts"},
}


@pytest.mark.parametrize("problem", MISUSED)
def test_what_cannot_be_read_is_refused_where_it_is_declared(database: str, connection: Any, problem: str) -> None:
    full(connection, "id int primary key, v text, twice int generated always as (id * 2) stored")
    connection.execute("create view a_view as select 1; create table plain (n int)")
    connection.execute("create table deferred (id int primary key deferrable)")
    connection.execute("create table parts (id int) partition by range (id)")
    connection.execute("create unlogged table unlogged partition of parts default")

    with pytest.raises(InvalidInputError, match=problem.replace("(", r"\(")):
        PostgresCDCSource(database, **{"table": "t", "slot": "s", **MISUSED[problem]})


def test_a_table_whose_key_is_generated_is_read_as_one_without_a_key(database: str, connection: Any) -> None:
    full(connection, "n int, id int generated always as (n * 2) stored primary key")
    connection.execute("insert into t values (1)")
    source = PostgresCDCSource(database, "t", slot="s")
    source.discover(())

    batches = read(source, rows=1)
    connection.execute("delete from t")

    assert shown([*batches, *read(source, batches[-1].position, rows=1)]) == [("insert", 1), ("delete", 1)]
    with pytest.raises(InvalidInputError, match="has none that is neither generated nor deferrable"):
        PostgresCDCSource(database, "t", slot="s", changelog="upsert")


def test_who_may_not_make_slot_or_publication_is_told_what_to_have_made(database: str, connection: Any) -> None:
    full(connection)
    connection.execute("drop role if exists reader; create role reader login; grant usage on schema public to reader")
    connection.execute("grant select on t to reader")
    source = PostgresCDCSource(f"{database} user=reader", "t", slot="s")

    with pytest.raises(
        InvalidInputError, match='have it made: create publication "s" for table only "public"."t" with'
    ):
        source.discover(())
    connection.execute("create publication s for table t")
    with pytest.raises(InvalidInputError, match="may not make the slot 's': .*; it needs the attribute REPLICATION"):
        source.discover(())
    connection.execute("alter role reader replication; insert into t values (1, 'a')")
    source.discover(())

    assert shown(read(source, rows=1)) == [("insert", 1, "a")]


def test_nothing_that_is_shown_has_the_password(database: str, connection: Any) -> None:
    full(connection)
    source = PostgresCDCSource(f"{database} password=secret", "t", slot="s")
    connection.execute("alter table t rename to u")

    shown_texts = [repr(source), repr(source.feed)]
    for wrong in ("postgresql//ann:secret@db/shop", "host=db pasword=secret", "secret"):
        for make in (lambda given: PostgresCDCSource(given, "t", slot="s"), lambda given: PostgresSink(given, "t")):
            with pytest.raises(InvalidInputError, match="needs a conninfo that libpq can read") as caught:
                make(wrong)
            shown_texts += [str(caught.value), repr(caught.value.__context__)]

    assert not any("secret" in text for text in shown_texts)


class Counts(arrowstate.BatchFunction):
    """Adds up what changes say."""

    def open(self, context: Any) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
        signs = [-1 if kind in ("delete", "update_preimage") else 1 for kind in batch["_change_type"].to_pylist()]
        amounts = [sign * n for sign, n in zip(signs, batch["n"].to_pylist(), strict=True)]
        self.total.add_batch(batch["user"], pa.array(amounts, pa.int64()))


@pytest.mark.parametrize("mode", ["inline", pytest.param("processes", marks=pytest.mark.long)])
def test_sums_follow_a_table_through_restarts_at_another_parallelism(
    database: str, connection: Any, tmp_path: Path, mode: Any
) -> None:
    full(connection, 'id int primary key, "user" text, n int')
    connection.execute("insert into t select i, 'u' || i % 5, i from generate_series(1, 100) i")

    def make(parallelism: int) -> Job:
        source = PostgresCDCSource(database, "t", slot="s")
        job = Job(tmp_path / "store", parallelism=parallelism, max_parallelism=128, restart=Restart.fixed(delay_ms=0))
        changes = job.source(source, uid="orders")
        changes.stateful(Counts(), key=["user"], uid="totals")
        changes.sink(ParquetSink(tmp_path / "out"), uid="changes")
        return job

    for turn, parallelism in enumerate((1, 3, 2) if mode == "inline" else (1, 2)):
        with make(parallelism).start(mode=mode) as running:
            connection.execute(
                f"update t set n = n + 1000 where id % 3 = {turn}; delete from t where id = {turn * 7 + 2}"
            )
            connection.execute(f"insert into t values ({1000 + turn}, 'u{turn}', 5)")
            expected = dict(connection.execute('select "user", sum(n) from t group by 1').fetchall())
            for _ in range(500):
                if mode == "inline":
                    running.go_on(200)
                found = dict(running.checkpoint().sql("select user, total from totals.total").fetchall())
                if found == expected:
                    break
            running.stop()
        assert found == expected

    rows = pq.read_table(tmp_path / "out").to_pylist()
    model: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        model[row["id"], row["user"], row["n"]] += -1 if row["_change_type"] in ("delete", "update_preimage") else 1
    there = Counter(connection.execute('select id, "user", n from t').fetchall())
    assert +model == there
    assert all(count in (0, 1) for count in model.values())
