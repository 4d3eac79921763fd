"""The sources of Delta and Iceberg tables: the contract, what comes later, and what must not be passed over."""

import datetime
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyiceberg.types import LongType

import arrowstate
from arrowstate.errors import InvalidInputError, SourceError
from arrowstate.publish.deletes import DeadRows
from arrowstate.runtime import Batch, DeltaSource, EndOfSplit, IcebergSource, Job, OutputTable, Reader, Source, Split
from arrowstate.runtime.restart import is_unrecoverable
from arrowstate.testing import SourceConformance
from arrowstate.testing.jobs import simulate
from long_form import short_or_long
from open_tables import KINDS, Delta, Iceberg

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture(params=list(KINDS))
def place(tmp_path: Path, request: Any) -> Delta | Iceberg:
    return KINDS[request.param](tmp_path)


@pytest.fixture
def delta(tmp_path: Path) -> Delta:
    return Delta(tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path) -> Iceberg:
    return Iceberg(tmp_path)


def numbers(first: int, count: int) -> pa.Table:
    return pa.table(
        {"user": [f"u{n % 3}" for n in range(first, first + count)], "n": range(first, first + count)}, SCHEMA
    )


def reader_of(source: Source, position: Any = None) -> Reader:
    reader = source.reader()
    (split,) = source.discover(())
    reader.add([split if position is None else Split(split.id, position)])
    return reader


def read(reader: Reader, max_rows: int = 100) -> list[Any]:
    """Return the batches that there are now."""
    found = []
    while isinstance(item := reader.read(max_rows), Batch):
        found.append(item)
    return found


def values(batches: list[Batch], column: str = "n") -> list[Any]:
    return [value for batch in batches for value in batch.rows[column].to_pylist()]


class TestOpenTableSources(SourceConformance):
    @pytest.fixture(params=["bounded", "follows"])
    def source(self, place: Delta | Iceberg, request: Any) -> Source:
        if request.param == "bounded":
            place.make(SCHEMA)
            place.append(numbers(0, 70))
            return place.source(is_bounded=True)
        place.make(SCHEMA, partition_by=["user"])
        place.append(numbers(0, 40))
        begins = place.newest()
        place.append(numbers(40, 20))
        place.compact()
        place.append(numbers(60, 10))
        return place.source(splits=3, **begins)

    @pytest.fixture
    def rows(self) -> pa.Table:
        return numbers(0, 70)


class TestFeedOfDelta(SourceConformance):
    @pytest.fixture
    def source(self, delta: Delta) -> Source:
        delta.make(SCHEMA, partition_by=["user"], **FEED)
        delta.append(numbers(0, 12))
        delta.append(numbers(12, 3))
        delta.table.update(updates={"n": "n + 100"}, predicate="n < 2")
        delta.delete("n = 5")
        delta.compact()
        return delta.source(version=1, changes="feed")

    @pytest.fixture
    def rows(self, delta: Delta) -> pa.Table:
        def rows_of(kind: str, version: int, numbers_of: dict[int, int]) -> list[dict[str, Any]]:
            own = {"_change_type": kind, "_commit_version": version}
            return [{"user": f"u{user % 3}", "n": n, **own} for n, user in numbers_of.items()]

        return pa.Table.from_pylist(
            [
                *rows_of("insert", 1, {n: n for n in range(12)}),
                *rows_of("insert", 2, {n: n for n in range(12, 15)}),
                *rows_of("update_preimage", 3, {0: 0, 1: 1}),
                *rows_of("update_postimage", 3, {100: 0, 101: 1}),
                *rows_of("delete", 4, {5: 5}),
            ],
            delta.source(changes="feed").schema,
        )


def test_rows_as_of_a_version_come_first_and_then_what_was_added(place: Delta | Iceberg) -> None:
    place.make(SCHEMA)
    place.append(numbers(0, 3))
    begins = place.newest()
    place.append(numbers(3, 2))

    reader = reader_of(place.source(**begins))
    before = values(read(reader))
    place.append(numbers(5, 2))

    assert sorted(before) == [0, 1, 2, 3, 4]
    assert values(read(reader)) == [5, 6]
    assert values(read(reader_of(place.source(snapshot=False, **begins)))) == [3, 4, 5, 6]
    assert values(read(reader_of(place.source(snapshot=False)))) == []
    assert values(read(reader_of(place.source(is_bounded=True, **begins)))) == [0, 1, 2]


def test_a_table_without_rows_is_followed_from_its_beginning(place: Delta | Iceberg) -> None:
    place.make(SCHEMA)
    source = place.source()
    reader = reader_of(source)
    before = read(reader)

    place.append(numbers(0, 3))

    assert values(before) == []
    assert values(read(reader)) == [0, 1, 2]
    assert values(read(reader_of(source, before[-1].position))) == [0, 1, 2]


def test_joined_files_give_nothing_and_are_read_by_who_starts_anew(place: Delta | Iceberg) -> None:
    place.make(SCHEMA)
    for first in range(3):
        place.append(numbers(first, 1))
    reader = reader_of(place.source())
    before = values(read(reader))

    place.compact()
    place.append(numbers(3, 1))

    assert sorted(before) == [0, 1, 2]
    assert values(read(reader)) == [3]
    assert sorted(values(read(reader_of(place.source())))) == [0, 1, 2, 3]


@pytest.mark.parametrize("change", ["delete", "overwrite"])
def test_deleted_rows_are_an_error_or_their_version_is_passed_over(place: Delta | Iceberg, change: str) -> None:
    place.make(SCHEMA)
    place.append(numbers(0, 6))
    strict, lenient = reader_of(place.source()), reader_of(place.source(on_change="skip"))
    assert values(read(strict)) == values(read(lenient)) == list(range(6))

    place.append(numbers(6, 1))
    if change == "delete":
        place.delete("n = 3")
    elif isinstance(place, Delta):
        write_deltalake(place.path, numbers(100, 1), mode="overwrite")
    else:
        place.table.overwrite(numbers(100, 1))
    place.append(numbers(7, 1))

    assert values([strict.read(100)]) == [6]
    for _ in range(2):
        with pytest.raises(SourceError, match="only appends are read") as raised:
            strict.read(100)
        assert raised.value.__cause__ is None
    # PyIceberg overwrites by a delete and an append.
    appended = [6, 100, 7] if change == "overwrite" and isinstance(place, Iceberg) else [6, 7]
    assert values(read(lenient)) == appended


def test_a_job_that_was_stopped_begins_after_what_it_read(place: Delta | Iceberg, tmp_path: Path) -> None:
    place.make(SCHEMA)
    place.append(numbers(0, 5))

    def job(**options: Any) -> Job:
        made = Job(tmp_path / "store")
        made.source(place.source(**options), uid="rows").sink(OutputTable("copy"))
        return made

    def copied(expected: int) -> list[int]:
        with job().start(mode="threads") as running:
            while True:
                snapshot = running.checkpoint()
                found = [row["n"] for row in snapshot.operator_state("copy", "rows").column("rows").to_pylist()]
                if len(found) >= expected:
                    running.stop()
                    return found

    assert copied(5) == [0, 1, 2, 3, 4]
    place.append(numbers(5, 2))
    place.compact()
    place.append(numbers(7, 1))
    assert copied(8) == [0, 1, 2, 3, 4, 5, 6, 7]
    place.drop()
    place.make(SCHEMA)
    for first in range(20, 30):
        place.append(numbers(first, 1))
    with pytest.raises(SourceError, match="another table|made anew"):
        job().run(mode="inline")
    with pytest.raises(SourceError, match="splits of a source with other arguments"):
        job(splits=2).run(mode="inline")


def test_a_table_that_was_read_to_its_end_is_followed_by_nobody_who_is_not_told(
    place: Delta | Iceberg, tmp_path: Path
) -> None:
    place.make(SCHEMA)
    place.append(numbers(0, 3))

    def job(**options: Any) -> Job:
        made = Job(tmp_path / "store")
        made.source(place.source(**options), uid="table").sink(OutputTable("copy"))
        return made

    job(is_bounded=True).run(mode="inline")
    place.append(numbers(3, 2))
    with pytest.raises(
        SourceError, match=r"bounded, so what came later.*say by (version|snapshot_id)= where it begins"
    ):
        job().start(mode="inline")
    assert job(is_bounded=True).run(mode="inline").operator_state("copy", "rows").num_rows == 3

    with arrowstate.open_store(tmp_path / "store").edit() as edit:
        edit.update("table.splits", set={"finished": False})
        edit.commit()
    with job().start(mode="inline") as running:
        while running.checkpoint().operator_state("copy", "rows").num_rows < 5:
            running.go_on(10)


def test_versions_that_are_gone_are_told_and_not_passed_over(place: Delta | Iceberg) -> None:
    place.make(SCHEMA)
    place.append(numbers(0, 3))
    source = place.source()
    reader = reader_of(source)
    position = read(reader)[-1].position
    begins = place.newest()
    for first in range(3, 6):
        place.append(numbers(first, 1))
    place.compact()
    place.forget()

    with pytest.raises(SourceError, match="gone"):
        reader.read(100)
    (split,) = source.discover(())
    with pytest.raises(SourceError, match="gone"):
        source.check_splits([Split(split.id, position)], [])
    with pytest.raises(InvalidInputError, match="has no (version|snapshot)"):
        place.source(**begins)


def test_all_that_was_read_may_be_forgotten(place: Delta | Iceberg) -> None:
    place.make(SCHEMA)
    place.append(numbers(0, 3))
    source = place.source()
    reader = reader_of(source)
    for first in range(3, 6):
        place.append(numbers(first, 1))
    position = read(reader)[-1].position

    place.forget()
    place.append(numbers(6, 1))

    (split,) = source.discover(())
    source.check_splits([Split(split.id, position)], [])
    assert values(read(reader)) == [6]
    assert values(read(reader_of(source, position))) == [6]


def test_files_that_are_gone_are_told(place: Delta | Iceberg, tmp_path: Path) -> None:
    place.make(SCHEMA)
    place.append(numbers(0, 3))
    reader = reader_of(place.source())

    for path in tmp_path.rglob("*.parquet"):
        path.unlink()

    with pytest.raises(SourceError, match=r"the file .* is gone"):
        reader.read(100)


def test_a_file_that_is_damaged_is_named(place: Delta | Iceberg, tmp_path: Path) -> None:
    place.make(SCHEMA)
    place.append(numbers(0, 3))
    reader = reader_of(place.source())
    (path,) = tmp_path.rglob("*.parquet")

    path.write_bytes(bytes(path.stat().st_size))

    with pytest.raises(SourceError, match=path.name) as caught:
        reader.read(100)
    assert is_unrecoverable(caught.value)


def test_a_text_that_is_not_utf8_is_told_with_its_file(place: Delta | Iceberg, tmp_path: Path) -> None:
    place.make(SCHEMA)
    place.append(numbers(0, 3))
    reader = reader_of(place.source())
    (path,) = tmp_path.rglob("*.parquet")
    body = path.read_bytes()

    # Another file of as many bytes, for they stand in the log.
    rows = pq.read_table(path)
    with pq.ParquetWriter(path, rows.schema, compression="none", use_dictionary=False, write_statistics=False) as file:
        file.write_table(rows)
    path.write_bytes(path.read_bytes().replace(b"u1", b"u\xff"))
    assert path.read_bytes() != body

    with pytest.raises(SourceError, match=f"{path.name}.*Invalid UTF8"):
        reader.read(100)


def test_a_table_that_went_back_is_refused(place: Delta | Iceberg) -> None:
    place.make(SCHEMA)
    place.append(numbers(0, 1))
    begins = place.newest()
    place.append(numbers(1, 1))
    reader = reader_of(place.source())
    read(reader)

    if isinstance(place, Delta):
        place.table.restore(begins["version"])
    else:
        place.table.manage_snapshots().rollback_to_snapshot(begins["snapshot_id"]).commit()

    with pytest.raises(SourceError, match="RESTORE|rolled back"):
        reader.read(100)


def test_a_table_that_is_gone_is_told(place: Delta | Iceberg) -> None:
    place.make(SCHEMA)
    reader = reader_of(place.source())
    read(reader)

    place.drop()

    with pytest.raises(SourceError, match="there is no .* table"):
        reader.read(100)
    with pytest.raises(InvalidInputError, match="there is no .* table"):
        place.source()


def test_new_columns_are_passed_over_until_the_source_is_declared_again(place: Delta | Iceberg) -> None:
    place.make(SCHEMA)
    place.append(numbers(0, 2))
    begins = place.newest()
    reader = reader_of(place.source())
    read(reader)

    place.add_column("more")
    place.append(numbers(2, 1).append_column("more", pa.array([7])))

    batches = read(reader)
    assert values(batches) == [2]
    assert batches[-1].rows.schema.names == ["user", "n"]
    assert values(read(reader_of(place.source(**begins))), "more") == [None, None, 7]


def test_a_column_that_is_read_and_has_another_type_or_is_gone_is_told(place: Delta | Iceberg) -> None:
    place.make(pa.schema([("user", pa.string()), ("n", pa.int32())]))
    one, both = reader_of(place.source(columns=["user"])), reader_of(place.source())
    read(one), read(both)

    if isinstance(place, Delta):
        write_deltalake(place.path, numbers(0, 0), mode="overwrite", schema_mode="overwrite")
    else:
        with place.table.update_schema() as update:
            update.update_column("n", LongType())
    place.append(numbers(0, 1))

    with pytest.raises(SourceError, match="was declared with int"):
        both.read(100)
    assert values(read(one), "user") == ["u0"]


def test_a_column_that_was_renamed_is_read_by_its_id_and_one_that_is_gone_is_told(iceberg: Iceberg) -> None:
    iceberg.make(SCHEMA)
    iceberg.append(numbers(0, 1))
    reader = reader_of(iceberg.source())
    read(reader)

    with iceberg.table.update_schema() as update:
        update.rename_column("n", "number")
    iceberg.append(numbers(1, 1).rename_columns(["user", "number"]))
    renamed = values(read(reader))
    with iceberg.table.update_schema() as update:
        update.delete_column("number")

    assert renamed == [1]
    with pytest.raises(SourceError, match="has no column 'n' any more"):
        reader.read(100)


def test_manifests_that_were_merged_give_only_what_their_snapshot_adds(iceberg: Iceberg) -> None:
    merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    iceberg.make(SCHEMA, **merging)
    iceberg.append(numbers(0, 1))
    begins = iceberg.newest()
    for first in range(1, 4):
        iceberg.append(numbers(first, 1))

    assert len(iceberg.table.inspect.manifests()) == 1
    assert values(read(reader_of(iceberg.source(**begins)))) == [0, 1, 2, 3]


def test_deletes_by_position_are_applied_to_the_first_snapshot(iceberg: Iceberg) -> None:
    iceberg.make(SCHEMA)
    iceberg.append(numbers(0, 10))
    iceberg.delete("n = 3")
    iceberg.append(numbers(10, 1))

    assert sorted(values(read(reader_of(iceberg.source()), 2))) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]


_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def _as_text(data: bytes) -> str:
    words = np.frombuffer(data, ">u4").astype(np.int64)
    return "".join(_Z85[int(word) // 85**place % 85] for word in words for place in (4, 3, 2, 1, 0))


def commit(delta: Delta, *actions: dict[str, Any]) -> None:
    """Write a version as Spark would."""
    delta.log(delta.table.version() + 1).write_text("\n".join(map(json.dumps, actions)))


def actions_of(delta: Delta, kind: str) -> list[Any]:
    lines = delta.log(delta.table.version()).read_text().splitlines()
    return [json.loads(line)[kind] for line in lines if kind in json.loads(line)]


def asks_readers_for(*features: str) -> dict[str, Any]:
    found = {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **found}}


@pytest.fixture
def with_dead_rows(delta: Delta) -> Callable[[], None]:
    """Delete rows 1 and 4 of ten by a deletion vector."""

    def delete() -> None:
        (add,) = actions_of(delta, "add")
        live = np.packbits(~np.isin(np.arange(10), [1, 4]), bitorder="little")
        bitmap = DeadRows(live, 10, 2).bitmap()
        bitmap += bytes(-len(bitmap) % 4)
        vector = {"storageType": "i", "pathOrInlineDv": _as_text(bitmap), "sizeInBytes": len(bitmap), "cardinality": 2}
        remove = {name: add[name] for name in ("path", "partitionValues", "size")}
        remove |= {"dataChange": True, "deletionTimestamp": 1, "extendedFileMetadata": True}
        commit(
            delta,
            asks_readers_for("deletionVectors"),
            {"commitInfo": {"operation": "DELETE"}},
            {"remove": remove},
            {"add": {**add, "deletionVector": vector}},
        )

    return delete


@pytest.mark.parametrize("max_rows", [1, 3, 100])
def test_a_deletion_vector_is_applied_to_the_first_version(
    delta: Delta, with_dead_rows: Callable[[], None], max_rows: int
) -> None:
    delta.make(SCHEMA)
    delta.append(numbers(0, 10))
    with_dead_rows()
    source = delta.source()

    batches = read(reader_of(source), max_rows)

    assert values(batches) == [0, 2, 3, 5, 6, 7, 8, 9]
    again = values(read(reader_of(source, batches[0].position)))
    assert values(batches[:1]) + again == [0, 2, 3, 5, 6, 7, 8, 9]


def test_a_deletion_vector_of_a_later_version_is_never_read_as_rows(
    delta: Delta, with_dead_rows: Callable[[], None]
) -> None:
    delta.make(SCHEMA, **FEED)
    delta.append(numbers(0, 10))
    strict, lenient, feed = (
        reader_of(delta.source(**options)) for options in ({}, {"on_change": "skip"}, {"changes": "feed"})
    )
    for reader in (strict, lenient, feed):
        read(reader)

    with_dead_rows()

    with pytest.raises(SourceError, match="only appends are read"):
        strict.read(100)
    assert values(read(lenient)) == []
    with pytest.raises(SourceError, match="with a deletion vector"):
        feed.read(100)


def test_columns_of_other_names_in_the_files_are_refused(delta: Delta) -> None:
    delta.make(SCHEMA)
    delta.append(numbers(0, 1))
    reader = reader_of(delta.source())
    read(reader)
    actions = map(json.loads, delta.log(0).read_text().splitlines())
    metadata = next(action["metaData"] for action in actions if "metaData" in action)
    metadata["configuration"]["delta.columnMapping.mode"] = "name"
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"]):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
    metadata["schemaString"] = json.dumps(schema)

    commit(delta, asks_readers_for("columnMapping"), {"metaData": metadata})

    with pytest.raises(SourceError, match="columns have other names in its files"):
        reader.read(100)
    with pytest.raises(
        InvalidInputError, match=r"columns have other names in its files \(delta.columnMapping.mode is 'name'\)"
    ):
        delta.source()


def test_a_feature_that_is_not_known_is_refused(delta: Delta) -> None:
    delta.make(SCHEMA)
    reader = reader_of(delta.source())
    read(reader)

    commit(delta, asks_readers_for("catalogManaged", "timestampNtz"))

    with pytest.raises(SourceError, match="it asks its readers for catalogManaged"):
        reader.read(100)


def test_files_outside_of_the_table_are_refused(delta: Delta) -> None:
    delta.make(SCHEMA)
    delta.append(numbers(0, 1))
    reader = reader_of(delta.source())
    read(reader)
    (add,) = actions_of(delta, "add")

    commit(delta, {"add": {**add, "path": f"file://{delta.path}/{add['path']}"}})

    with pytest.raises(SourceError, match="outside of the table"):
        reader.read(100)


def test_the_feed_of_a_table_that_has_it_no_more_is_an_error(delta: Delta) -> None:
    delta.make(SCHEMA, **FEED)
    delta.append(numbers(0, 1))
    reader = reader_of(delta.source(changes="feed"))
    read(reader)

    delta.table.alter.set_table_properties({"delta.enableChangeDataFeed": "false"})

    with pytest.raises(SourceError, match="it has no change data feed"):
        reader.read(100)
    with pytest.raises(InvalidInputError, match="it has no change data feed"):
        delta.source(changes="feed")


def test_partitions_of_every_type_have_their_values(delta: Delta) -> None:
    schema = pa.schema(
        {
            "text": pa.string(),
            "day": pa.date32(),
            "at": pa.timestamp("us", "UTC"),
            "yes": pa.bool_(),
            "price": pa.decimal128(8, 2),
            "part": pa.int16(),
            "share": pa.float64(),
            "raw": pa.binary(),
            "n": pa.int64(),
        }
    )
    utc = datetime.UTC
    rows = [
        (
            "a b/é%20",
            datetime.date(2020, 1, 2),
            datetime.datetime(2020, 1, 2, 3, 4, 5, 6, utc),
            True,
            "1.50",
            3,
            0.1,
            b"ab",
            1,
        ),
        (None, None, None, None, None, None, None, None, 2),
        (
            "=",
            datetime.date(1969, 12, 31),
            datetime.datetime(1969, 1, 1, tzinfo=utc),
            False,
            "12.25",
            -1,
            -2.5,
            b"\xff\x00",
            3,
        ),
    ]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    table = pa.table([column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)
    delta.make(schema, partition_by=schema.names[:-1])
    delta.append(table)
    begins = delta.source(version=1, is_bounded=True)
    follows = delta.source(version=0)

    for source in (begins, follows):
        rows_read = [batch.rows for batch in read(reader_of(source))]
        assert pa.Table.from_batches(rows_read).sort_by("n").equals(table)
    assert values(read(reader_of(delta.source(columns=["day"]))), "day").count(None) == 1


def test_times_that_spark_wrote_are_in_utc(delta: Delta) -> None:
    delta.make(pa.schema({"at": pa.timestamp("us", "UTC")}))
    times = pa.table({"at": pa.array([10**15, None], pa.timestamp("ns"))})
    pq.write_table(times, delta.path / "spark.parquet", use_deprecated_int96_timestamps=True)
    size = os.path.getsize(delta.path / "spark.parquet")
    add = {"path": "spark.parquet", "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    commit(delta, {"add": add})

    found = values(read(reader_of(delta.source())), "at")

    assert found == [datetime.datetime(1970, 1, 12, 13, 46, 40, tzinfo=datetime.UTC), None]


def random_history(delta: Delta, chance: np.random.Generator, steps: int) -> None:
    for _ in range(steps):
        kind = chance.choice(["append", "update", "delete", "compact", "overwrite", "restore"])
        low = int(chance.integers(0, 100))
        if kind == "append":
            delta.append(numbers(low, int(chance.integers(1, 9))))
        elif kind == "update":
            delta.table.update(updates={"n": "n + 1"}, predicate=f"n > {low}")
        elif kind == "delete":
            delta.delete(f"n > {low} and n < {low + 9}")
        elif kind == "compact":
            delta.compact()
        elif kind == "restore" and delta.table.version() > 1:
            delta.table.restore(int(chance.integers(1, delta.table.version())))
        else:
            write_deltalake(delta.path, numbers(low, 5), mode="overwrite")


@pytest.mark.parametrize("seed", range(short_or_long(4, 60)))
def test_the_feed_of_any_history_is_the_table(delta: Delta, seed: int) -> None:
    chance = np.random.default_rng(seed)
    delta.make(SCHEMA, partition_by=["user"] if seed % 2 else [], **FEED)
    delta.append(numbers(0, 20))
    begins = delta.newest()
    reader = reader_of(delta.source(changes="feed", **begins))
    found: Counter[tuple[str, int]] = Counter()

    for _ in range(6):
        random_history(delta, chance, 3)
        for batch in read(reader, int(chance.integers(1, 30))):
            for row in batch.rows.to_pylist():
                sign = -1 if row["_change_type"] in ("update_preimage", "delete") else 1
                found[row["user"], row["n"]] += sign
        now = Counter(
            (row["user"], row["n"])
            for row in pa.table(QueryBuilder().register("t", delta.table).execute("select * from t")).to_pylist()
        )
        assert {row: count for row, count in found.items() if count} == now


@pytest.mark.parametrize("seed", range(short_or_long(2, 40)))
def test_a_job_reads_every_row_once_through_kills_and_rescales(
    place: Delta | Iceberg, tmp_path: Path, seed: int
) -> None:
    place.make(SCHEMA)
    for first in range(0, 200, 20):
        place.append(numbers(first, 20))
    copy = KINDS["iceberg" if isinstance(place, Delta) else "delta"](tmp_path / "copy")
    copy.folder.mkdir()
    copy.make(SCHEMA)
    job = Job("memory://unused", parallelism=2)
    job.source(place.source(is_bounded=True, splits=3), uid="rows").sink(copy.sink(), uid="copy")

    simulate(job, seeds=[seed], kills=4, crashes=2, rescales=(1, 3), check=id)

    assert Counter(copy.rows()["n"].to_pylist()) == Counter(range(200))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on_change": "ignore"}, "on_change must be 'error' or 'skip'"),
        ({"splits": 0}, "splits must be"),
        ({"discovery_ms": -1}, "discovery_ms must be"),
        ({"columns": ["x"]}, "has no column 'x'; it has user, n"),
        ({"is_bounded": True, "snapshot": False}, "so it needs snapshot=True"),
        ({"version": 99}, "has no version 99"),
        ({"changes": "all"}, "changes must be 'appends' or 'feed'"),
        ({"changes": "feed", "splits": 2}, "needs splits=1"),
        ({"changes": "feed"}, "has no change data feed; set its property"),
        ({"snapshot_id": 99}, "has no snapshot 99"),
    ],
)
def test_arguments_that_are_wrong_are_told(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    kinds = (
        [Delta]
        if {"version", "changes"} & options.keys()
        else [Iceberg]
        if "snapshot_id" in options
        else [Delta, Iceberg]
    )
    for kind in kinds:
        place = kind(tmp_path)
        place.make(SCHEMA)

        with pytest.raises(InvalidInputError, match=problem):
            place.source(**options)


@pytest.mark.parametrize("position", [None, 3, {"version": 1}])
def test_what_is_no_position_is_told(place: Delta | Iceberg, position: Any) -> None:
    place.make(SCHEMA)
    source = place.source()
    reader = source.reader()
    reader.add([Split("0 of 1", position)])

    with pytest.raises(SourceError, match="a position must have"):
        reader.read(1)
    with pytest.raises(SourceError, match="a position must have"):
        source.check_splits([Split("0 of 1", position)], [])


def test_a_split_of_another_source_is_told(place: Delta | Iceberg) -> None:
    place.make(SCHEMA)
    reader = place.source().reader()
    reader.add([Split("rows", None)])

    with pytest.raises(SourceError, match="the source has no such split; it has 0 of 1"):
        reader.read(1)


def test_what_may_have_a_password_is_not_shown(delta: Delta, iceberg: Iceberg) -> None:
    delta.make(SCHEMA)
    iceberg.make(SCHEMA)

    assert repr(DeltaSource(delta.path, storage_options={"key": "secret"})) == f"DeltaSource('{delta.path}')"
    assert repr(iceberg.source()) == "IcebergSource('shop.t', catalog='default')"
    assert isinstance(reader_of(iceberg.source(is_bounded=True)).read(1), Batch | EndOfSplit)
    assert isinstance(iceberg.source(), IcebergSource)
    assert DeltaTable(delta.path).version() == 0
