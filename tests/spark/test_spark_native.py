"""`read_state`: Spark's own Parquet reader where it can, and never other rows than the data source gives."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import arrowstate
from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate_formats.statistics import column_statistics

KEY = pa.schema([("k", pa.int64()), ("day", pa.date32())])
VALUE = pa.struct(
    [
        ("whole", pa.int64()),
        ("small", pa.uint8()),
        ("huge", pa.uint64()),
        ("real", pa.float64()),
        ("text", pa.large_string()),
        ("raw", pa.binary()),
        ("at", pa.timestamp("ms", "UTC")),
        ("local", pa.timestamp("us")),
        ("money", pa.decimal128(20, 3)),
        ("tags", pa.list_(pa.string())),
        ("inner", pa.struct([("a", pa.int16()), ("b", pa.bool_())])),
        ("by", pa.map_(pa.string(), pa.int32())),
    ]
)
EVERY_KIND = arrowstate.ValueStateDescriptor("every", VALUE)
LONG_AGO = datetime.date(1500, 1, 1)


def rows(first: int, count: int) -> tuple[pa.Table, pa.Array]:
    """Keys and values of every kind, with nulls, not a number, and a day before the calendar was changed."""
    days = [LONG_AGO if number % 5 == 0 else datetime.date(2026, 1, 1) for number in range(first, first + count)]
    keys = pa.table({"k": range(first, first + count), "day": days}, schema=KEY)
    values = [
        None
        if number % 11 == 1
        else {
            "whole": None if number % 3 == 0 else number,
            "small": number % 256,
            "huge": 2**64 - 1 - number,
            "real": [1.5, float("nan"), -0.0][number % 3],
            "text": f"text {number}" * 20,
            "raw": bytes([number % 256]),
            "at": datetime.datetime(1500, 1, 1, tzinfo=datetime.UTC),
            "local": datetime.datetime(2026, 1, 1, 12, 0, 0, number),
            "money": decimal.Decimal(number) / 8,
            "tags": [None, [], ["a", None]][number % 3],
            "inner": {"a": number % 7, "b": None},
            "by": [("x", number)],
        }
        for number in range(first, first + count)
    ]
    return keys, pa.array(values, VALUE)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two subtasks in Parquet: a checkpoint without dead rows, tagged `whole`, and one with some."""
    folder = tmp_path_factory.mktemp("native store") / "a store"
    ranges = [arrowstate.key_group_range(128, parallelism=2, subtask=subtask) for subtask in range(2)]
    backends = [arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128, key_groups=groups) for groups in ranges]
    opened = arrowstate.open_store(folder, create=True)
    with opened.writer(compaction=None) as writer:
        for first, count in ((0, 3000), (2000, 2000), (2500, 10)):
            keys, values = rows(first, count)
            owners = arrowstate.key_groups(keys.to_batches()[0], 128).to_numpy()
            for backend, groups in zip(backends, ranges, strict=True):
                own = pa.array((owners >= groups.start) & (owners <= groups.end))
                backend.state(EVERY_KIND).update_batch(keys.filter(own), values.filter(own))
            snapshot = writer.checkpoint({"op": backends}, format="parquet")
            if first == 0:
                opened.tag("whole", snapshot.checkpoint_id)
    return folder


@pytest.fixture
def plan(spark: Any, store: Path) -> Any:
    """Return a function that plans a read of the state."""
    from arrowstate.spark import plan_read

    return lambda place=store, **arguments: plan_read(spark, place, **{"operator": "op"} | arguments)


def by_data_source(spark: Any, store: Path, **options: str) -> Any:
    from arrowstate.spark import register

    register(spark)
    reader = spark.read.format("arrowstate").option("operator", "op")
    return reader.options(**options).load(str(store))


def same(left: Any, right: Any) -> bool:
    """Whether two frames have the same columns and rows, to the last bit of what Spark can tell apart."""
    assert left.schema.simpleString() == right.schema.simpleString()
    tables = [frame.toArrow() for frame in (left, right)]
    order = [("k", "ascending")] if "k" in tables[0].column_names else [(tables[0].column_names[0], "ascending")]
    return repr(tables[0].sort_by(order).to_pylist()) == repr(tables[1].sort_by(order).to_pylist())


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().toString())


def test_parquet_files_without_dead_rows_are_read_by_spark(spark: Any, store: Path, plan: Any) -> None:
    scan = plan(checkpoint="whole")

    assert (scan.native, scan.reason) == (True, "2 Parquet files read by Spark")
    assert same(scan.frame, by_data_source(spark, store, checkpoint="whole"))
    assert scan.frame.count() == 3000 - len(range(1, 3000, 11))


@pytest.mark.parametrize(("at_once", "scans"), [(8, 1), (3, 2), (1, 4)])
def test_dead_rows_and_small_runs_are_taken_care_of(
    spark: Any, store: Path, plan: Any, monkeypatch: pytest.MonkeyPatch, at_once: int, scans: int
) -> None:
    monkeypatch.setattr("arrowstate.spark.read.native._FILES_AT_ONCE", at_once)

    scan = plan()

    assert scan.native
    assert (
        scan.reason == "4 Parquet files read by Spark, 918 dead rows left out by their numbers, 2 small runs from the "
        "manifests"
    )
    assert plan_of(scan.frame).count("FileScan parquet") == scans
    assert same(scan.frame, by_data_source(spark, store))


def test_a_filter_reaches_the_files_below_that_of_the_dead_rows(plan: Any) -> None:
    found = plan().frame.where("k = 2001")

    assert "EqualTo(k,2001)" in plan_of(found)
    assert found.select("whole").collect() == [(None,)]


def test_few_rows_without_dead_ones_are_read_with_the_others(spark: Any, tmp_path: Path, plan: Any) -> None:
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    state = backend.state(arrowstate.ValueStateDescriptor("v", pa.int64()))
    with arrowstate.open_store(tmp_path, create=True).writer(compaction=None) as writer:
        for first, count in ((0, 60_000), (59_900, 3_000), (70_000, 3_000)):
            state.update_batch(pa.array(range(first, first + count)), pa.array(range(count)))
            snapshot = writer.checkpoint({"op": [backend]}, format="parquet")

    scan = plan(tmp_path)

    assert scan.reason == "3 Parquet files read by Spark, 100 dead rows left out by their numbers"
    assert plan_of(scan.frame).count("FileScan parquet") == 1
    assert scan.frame.toArrow().sort_by("k").to_pydict() == snapshot.to_arrow("op.v").sort_by("k").to_pydict()


@pytest.mark.parametrize("checkpoint", ["whole", None])
def test_columns_and_key_groups_are_chosen(spark: Any, store: Path, plan: Any, checkpoint: str | None) -> None:
    columns = ["_key_group", "text", "k", "_checkpoint_id"]
    scan = plan(checkpoint=checkpoint, columns=columns, key_groups=arrowstate.KeyGroupRange(60, 70))
    options = {} if checkpoint is None else {"checkpoint": checkpoint}

    assert scan.native
    assert scan.frame.columns == columns
    assert same(scan.frame, by_data_source(spark, store, columns=",".join(columns), keyGroups="60-70", **options))
    assert scan.frame.selectExpr("min(_key_group)", "max(_key_group)").collect()[0] == (60, 70)


def test_what_settings_of_the_session_say_of_other_files_does_not_count(spark: Any, store: Path, plan: Any) -> None:
    settings = {
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.files.ignoreMissingFiles": "true",
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.caseSensitive": "true",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        assert same(plan(checkpoint="whole").frame, by_data_source(spark, store, checkpoint="whole"))
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_a_rescaled_state_is_read_by_spark_as_its_files_are_whole_together(
    spark: Any, store: Path, plan: Any, tmp_path: Path
) -> None:
    whole = arrowstate.open_store(store).snapshot(arrowstate.open_store(store).tags()["whole"])
    target = arrowstate.open_store(tmp_path / "copy", create=True)
    imported = target.import_savepoint(whole)
    with target.writer(compaction=None) as writer:
        writer.checkpoint({"op": [imported.restore("op", parallelism=3, subtask=subtask) for subtask in range(3)]})

    scan = plan(tmp_path / "copy")

    assert (scan.native, scan.reason) == (True, "2 Parquet files read by Spark")
    assert same(scan.frame, by_data_source(spark, tmp_path / "copy"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with operators whose states Spark cannot read by itself."""
    folder = tmp_path_factory.mktemp("others") / "store"
    key = pa.schema([("k", pa.int64())])
    before = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
    numbers = pa.array(np.random.default_rng(1).integers(0, 1 << 60, 5000))
    text = pa.array([f"some longer text {number}" for number in range(5000)])
    before.state(arrowstate.ValueStateDescriptor("v", pa.string())).update_batch(numbers, text)
    durations = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
    durations.state(arrowstate.ValueStateDescriptor("v", pa.duration("us"))).update_batch(
        numbers, pa.array(range(5000), pa.duration("us"))
    )
    small = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
    small.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch([1], [1])
    source = arrowstate.OperatorStateBackend()
    source.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).extend(pa.array([1, 2]))
    with arrowstate.open_store(folder, create=True).writer() as writer:
        snapshot = writer.checkpoint({"evolved": [before], "durations": [durations]}, format="parquet")
        after = snapshot.restore("evolved")
        struct = arrowstate.ValueStateDescriptor("v", pa.large_string())
        after.state(struct).update_batch([-1], pa.array(["x"], pa.large_string()))
        arrow = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
        arrow.state(arrowstate.ValueStateDescriptor("v", pa.string())).update_batch(numbers, text)
        writer.checkpoint(
            {"evolved": [after], "durations": [durations], "small": [small], "arrow": [arrow]},
            operator_states={"source": [source]},
        )
    return folder


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        ("evolved", "some of its files have an earlier schema"),
        ("small", "it is so small that it has no files"),
        ("arrow", "arrow files are not read by Spark itself"),
        ("source", "it is an operator state"),
    ],
)
def test_the_data_source_reads_what_spark_cannot(spark: Any, others: Path, operator: str, reason: str) -> None:
    from arrowstate.spark import plan_read

    scan = plan_read(spark, others, operator=operator)

    assert (scan.native, scan.reason) == (False, f"read by the data source: {reason}")
    assert scan.frame.count() == {"evolved": 5001, "small": 1, "arrow": 5000, "source": 2}[operator]


def test_a_type_that_spark_reads_in_another_way_is_left_to_the_data_source(others: Path, plan: Any) -> None:
    scan = plan(others, operator="durations")

    assert not scan.native
    assert scan.reason.endswith("Spark reads column 'v', duration[us], from Parquet in another way")
    assert plan(others, operator="durations", columns=["k"]).native


def test_what_is_not_taken_on_trust_is_left_to_the_data_source(spark: Any, store: Path, plan: Any) -> None:
    scan = plan(checkpoint="whole", validate="full")

    assert (scan.native, scan.reason) == (False, "read by the data source: Spark's reader takes files on trust")
    assert same(scan.frame, by_data_source(spark, store, checkpoint="whole"))
    with pytest.raises(InvalidInputError, match="'validate' must be checksums or full, got 'most'"):
        plan(validate="most")


def test_many_rows_beside_dead_ones_are_left_to_the_data_source(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowstate.spark.read.native._MOST_BITMAP_ROWS", 900)

    scan = plan()

    assert scan.reason == "read by the data source: its files with dead rows have 4,545 rows, over 900"


def test_many_files_with_dead_rows_are_left_to_the_data_source(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowstate.spark.read.native._MOST_SCANS", 1)
    monkeypatch.setattr("arrowstate.spark.read.native._FILES_AT_ONCE", 3)

    assert plan().reason == "read by the data source: 4 of its files have dead rows, over 3"


def test_a_frame_stays_with_its_checkpoint(spark: Any, tmp_path: Path) -> None:
    from arrowstate.spark import read_state

    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    state = backend.state(arrowstate.ValueStateDescriptor("v", pa.int64()))
    with arrowstate.open_store(tmp_path / "store", create=True).writer() as writer:
        state.update_batch([1], [1])
        writer.checkpoint({"op": [backend]})
        frame = read_state(spark, tmp_path / "store", operator="op")
        state.update_batch([2], [2])
        writer.checkpoint({"op": [backend]})

    assert frame.count() == 1


def test_files_that_the_session_cannot_read_are_left_to_the_data_source(plan: Any, tmp_path: Path, store: Path) -> None:
    from arrowstate.spark.read.native import _can_read, _place

    class Bucket:
        url = "s3://bucket/prefix"

    place = _place(Bucket(), "data/op/every/1.parquet")  # type: ignore[arg-type]
    arrowstate.open_store(store).savepoint(tmp_path / "a{b}")

    assert place == "s3a://bucket/prefix/data/op/every/1.parquet"
    assert not _can_read(plan().frame.sparkSession, place)
    assert "the session cannot read file:" in plan(tmp_path / "a{b}").reason


def test_a_file_that_is_missing_is_named_as_damage(plan: Any, tmp_path: Path, store: Path) -> None:
    from pyspark.errors import PythonException

    arrowstate.open_store(store).savepoint(tmp_path / "gone")
    path = max((tmp_path / "gone" / "data").rglob("*.parquet"))
    path.unlink()

    with pytest.raises(PythonException, match=f"CorruptDataError: .*{path.name} is damaged: the file is missing"):
        plan(tmp_path / "gone").frame.collect()


def test_wrong_arguments_say_what_there_is(plan: Any) -> None:
    with pytest.raises(StateNotFoundError, match="no state named 'evry' .* it has 'every'"):
        plan(state="evry")
    with pytest.raises(InvalidInputError, match="has no column 'n'"):
        plan(columns=["n"])


REALS = arrowstate.ValueStateDescriptor(
    "v", pa.struct([("flat", pa.float64()), ("inner", pa.struct([("f", pa.float32())])), ("clean", pa.float64())])
)


def write_reals(folder: Path, count: int = 3000) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Write floats, every tenth a NaN, as one Parquet file; return the values."""
    reals = np.arange(count, dtype=np.float64)
    clean = pa.array(reals.copy())
    reals[::10] = np.nan
    inner = pa.StructArray.from_arrays([pa.array(reals.astype(np.float32))], ["f"])
    values = pa.StructArray.from_arrays([pa.array(reals), inner, clean], fields=list(REALS.type))
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(REALS).update_batch(pa.array(range(count)), values)
    with arrowstate.open_store(folder, create=True).writer() as writer:
        writer.checkpoint({"op": [backend]}, format="parquet")
    return reals


def test_a_filter_finds_nan_which_spark_orders_highest(spark: Any, tmp_path: Path, plan: Any) -> None:
    reals = write_reals(tmp_path)
    missing = int(np.isnan(reals).sum())

    scan = plan(tmp_path)

    assert scan.native, scan.reason
    expected = {
        "flat > 1e9": missing,
        "inner.f > 1e9": missing,
        "flat >= 2995": missing + int((reals >= 2995).sum()),
        "flat between 2995 and double('NaN')": missing + int((reals >= 2995).sum()),
        "flat = double('NaN')": missing,
        "flat <=> double('NaN')": missing,
        "inner.f in (float('NaN'), 1.0)": missing + 1,
        "not (flat < double('NaN'))": missing,
        "flat < 0": 0,
        "clean > 1e9": 0,
    }
    assert {condition: scan.frame.where(condition).count() for condition in expected} == expected


def test_floats_of_early_writers_whose_bounds_may_lie_are_left_to_the_data_source(
    tmp_path: Path, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def statistics(batches: Any) -> Any:
        # Nobody noted whether there is a NaN, and there were bounds in Parquet.
        return [replace(item, has_nan=None) for item in column_statistics(batches)]

    monkeypatch.setattr("arrowstate.files.writing.column_statistics", statistics)
    monkeypatch.setattr("arrowstate_formats.run_writing.paths_with_nan", lambda batches: set())
    reals = write_reals(tmp_path)

    scan = plan(tmp_path)
    clean = plan(tmp_path, columns=["k", "clean"])

    assert not scan.native
    assert "column 'flat' may hold a NaN" in scan.reason
    assert scan.frame.where("flat > 1e9").count() == int(np.isnan(reals).sum())
    # Bounds in the manifest prove that there is none.
    assert clean.native, clean.reason


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_rows_that_have_expired_are_left_out_unless_they_are_asked_for(spark: Any, tmp_path: Path, format: Any) -> None:
    from arrowstate.spark import plan_read

    ttl = arrowstate.TimeToLive(100, clock="event_time")
    seen = arrowstate.ValueStateDescriptor("seen", pa.string(), ttl=ttl)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    with arrowstate.open_store(tmp_path / "store", create=True).writer(compaction=None) as writer:
        for first, time in ((0, 0), (1000, 50), (2990, 60)):
            keys = range(first, first + (2000 if first < 2000 else 10))
            texts = [f"text {number}" for number in keys]
            backend.state(seen).update_batch(keys, texts, timestamps=[time] * len(keys))
            backend.advance_watermark(max(100, time))
            snapshot = writer.checkpoint({"op": [backend]}, format=format)

    def planned(**options: Any) -> Any:
        return plan_read(spark, snapshot.storage.url, operator="op", **options)

    expected = snapshot.to_arrow("op.seen").sort_by("k")
    assert expected["k"].to_pylist() == list(range(1000, 3000))
    assert planned().native is (format == "parquet")
    assert planned().frame.toArrow().sort_by("k").to_pydict() == expected.to_pydict()
    assert planned(columns=["seen"]).frame.count() == 2000
    everything = planned(expired=True)
    assert everything.frame.count() == 3000
    assert everything.frame.columns == ["k", "seen", "_expires_at"]
    assert planned(expired=True, columns=["k"]).native is (format == "parquet")
    assert planned(expired=True, columns=["k"]).frame.count() == 3000
    oldest = everything.frame.where("k = 0").toArrow()["_expires_at"].to_pylist()
    assert oldest == [datetime.datetime(1970, 1, 1, 0, 0, 0, 100_000)]
