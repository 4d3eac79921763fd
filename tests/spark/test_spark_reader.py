"""`spark.read.format("arrowstate")`: schema, partitions, pinned checkpoints, filters, helpful errors."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import (
    ArrowStateError,
    CheckpointNotFoundError,
    InvalidInputError,
    NotFoundError,
    OperatorNotFoundError,
    StateNotFoundError,
    StoreNotFoundError,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = 5000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two subtasks and two checkpoints; each key `k` has n = 1, later 2 for those below 100, and t = k."""
    folder = tmp_path_factory.mktemp("reader") / "store"
    key = pa.schema([("k", pa.int64())])
    counts = arrowstate.ReducingStateDescriptor("counts", pa.struct([("n", pa.int64())]), reduce={"n": "sum"})
    names = arrowstate.ValueStateDescriptor("names", pa.struct([("text", pa.large_string()), ("u", pa.uint32())]))
    ranges = [arrowstate.key_group_range(128, parallelism=2, subtask=subtask) for subtask in range(2)]
    backends = [arrowstate.KeyedStateBackend(key=key, max_parallelism=128, key_groups=groups) for groups in ranges]

    def keys_of(groups: Any, stop: int) -> pa.Array:
        keys = pa.array(range(stop))
        owners = arrowstate.key_groups(keys, 128).to_numpy()
        return keys.filter(pa.array((owners >= groups.start) & (owners <= groups.end)))

    with arrowstate.open_store(folder, create=True).writer() as writer:
        for stop, format in ((KEYS, "lance"), (100, "arrow")):
            for backend, groups in zip(backends, ranges, strict=True):
                keys = keys_of(groups, stop)
                ones = pa.StructArray.from_arrays([pa.repeat(pa.scalar(1, pa.int64()), len(keys))], ["n"])
                backend.state(counts).add_batch(keys, ones)
                texts = pa.array([f"t{number}" for number in keys.to_pylist()], pa.large_string())
                value = pa.StructArray.from_arrays([texts, keys.cast(pa.uint32())], ["text", "u"])
                backend.state(names).update_batch(keys, value)
            writer.checkpoint({"counter": backends}, format=format)
    opened = arrowstate.open_store(folder)
    opened.tag("first", opened.checkpoints()[0].checkpoint_id)
    return folder


@pytest.fixture
def read(spark: Any, store: Path) -> Any:
    """Return a function that reads the state `counts`, or what the options name."""
    from arrowstate.spark import register

    register(spark)

    def load(**options: str) -> DataFrame:
        reader = spark.read.format("arrowstate").option("operator", "counter").option("state", "counts")
        return reader.options(**options).load(str(store))

    return load


def test_a_state_is_a_table_of_key_and_value_columns(read: Any, store: Path) -> None:
    frame = read()

    expected = arrowstate.open_store(store).latest().to_arrow("counter.counts").sort_by("k")
    assert frame.schema.simpleString() == "struct<k:bigint,n:bigint>"
    assert frame.toArrow().sort_by("k").to_pydict() == expected.to_pydict()
    assert expected.num_rows == KEYS


def test_types_that_spark_lacks_are_widened(read: Any) -> None:
    frame = read(state="names")

    assert frame.schema.simpleString() == "struct<k:bigint,text:string,u:bigint>"
    assert frame.where("k = 17").collect()[0].asDict() == {"k": 17, "text": "t17", "u": 17}


def test_partitions_are_ranges_of_key_groups(read: Any) -> None:
    from pyspark.sql import functions as sf

    by_subtask, by_option = read(), read(partitions="5")

    assert (by_subtask.rdd.getNumPartitions(), by_option.rdd.getNumPartitions()) == (2, 5)
    rows = by_option.select("k", sf.spark_partition_id().alias("partition")).toArrow()
    ranges = [arrowstate.key_group_range(128, parallelism=5, subtask=number) for number in range(5)]
    groups = arrowstate.key_groups(rows["k"].combine_chunks(), 128).to_pylist()
    assert all(
        group in ranges[partition] for group, partition in zip(groups, rows["partition"].to_pylist(), strict=True)
    )
    assert rows.num_rows == KEYS


def test_columns_are_chosen_by_option(read: Any) -> None:
    frame = read(columns="n, k")

    assert frame.columns == ["n", "k"]
    assert frame.where("k < 100").agg({"n": "sum"}).collect()[0][0] == 200


def test_a_checkpoint_is_chosen_by_option(read: Any, store: Path) -> None:
    first, second = (snapshot.checkpoint_id for snapshot in arrowstate.open_store(store).checkpoints())

    assert read(checkpoint=str(first)).agg({"n": "sum"}).collect()[0][0] == KEYS
    assert read(checkpoint=str(second)).agg({"n": "sum"}).collect()[0][0] == KEYS + 100


def test_a_checkpoint_is_chosen_by_tag_or_by_time(store: Path) -> None:
    from arrowstate.spark.read.states import ReadPlan

    first, second = arrowstate.open_store(store).checkpoints()
    time = datetime.datetime.fromtimestamp(first.entry.committed_at_ms / 1000, datetime.UTC)
    options = {"path": str(store), "operator": "counter", "state": "counts"}

    def chosen(**more: str) -> int:
        return ReadPlan.from_options(options | more).checkpoint_id

    assert chosen(checkpoint="first") == chosen(checkpoint=str(first.checkpoint_id)) == first.checkpoint_id
    assert first.entry.committed_at_ms < second.entry.committed_at_ms
    assert chosen(asOf=str(first.entry.committed_at_ms)) == chosen(asOf=time.isoformat()) == first.checkpoint_id
    assert chosen(asOf=str(second.entry.committed_at_ms)) == chosen() == second.checkpoint_id


def test_key_groups_are_chosen_by_option(read: Any, store: Path) -> None:
    frame = read(keyGroups="3-7", partitions="2", columns="k,_key_group")

    assert frame.rdd.getNumPartitions() == 2
    groups = arrowstate.KeyGroupRange(3, 7)
    expected = arrowstate.open_store(store).latest().to_arrow("counter.counts", key_groups=groups)
    assert frame.toArrow()["k"].sort().to_pylist() == expected["k"].sort().to_pylist() != []


def test_a_frame_stays_with_the_checkpoint_it_was_loaded_from(spark: Any, sink: Any, make_rows: Any) -> None:
    from arrowstate.spark import register

    register(spark)
    sink.run(0, make_rows(0))
    frame = spark.read.format("arrowstate").option("operator", "counter").load(str(sink.store))
    before = frame.toArrow().sort_by("k").to_pydict()

    sink.run(1, make_rows(1))

    assert frame.toArrow().sort_by("k").to_pydict() == before
    assert spark.read.format("arrowstate").option("operator", "counter").load(str(sink.store)).count() >= frame.count()


def test_a_savepoint_is_read_like_a_store(spark: Any, store: Path, tmp_path: Path) -> None:
    from arrowstate.spark import register

    register(spark)
    arrowstate.open_store(store).savepoint(tmp_path / "savepoint")

    frame = spark.read.format("arrowstate").option("operator", "counter").option("state", "counts")

    assert frame.load(str(tmp_path / "savepoint")).agg({"n": "sum"}).collect()[0][0] == KEYS + 100


def test_a_partition_opens_its_own_part_of_the_files(store: Path) -> None:
    from arrowstate.spark.read.states import ReadPlan, TableReader

    options = {"path": str(store), "operator": "counter", "state": "counts", "partitions": "4"}
    plan = ReadPlan.from_options(options)
    reader = TableReader(plan, plan.schema)
    state = plan.open()

    opened = [len(state.in_key_groups(arrowstate.KeyGroupRange(p.start, p.end))) for p in reader.partitions()]
    rows = [sum(batch.num_rows for batch in reader.read(partition)) for partition in reader.partitions()]

    # Two runs in each of two subtasks; each partition lies in one subtask.
    assert opened == [2, 2, 2, 2]
    assert sum(rows) == KEYS
    assert min(rows) > 0


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"operator": "couter"}, OperatorNotFoundError, "no operator .*'couter'.*it has 'counter'"),
        ({"state": "count"}, StateNotFoundError, "no state named 'count' of .*it has 'counts', 'names'"),
        ({"state": ""}, InvalidInputError, "option 'state' is missing; operator 'counter' has counts, names"),
        ({"operator": ""}, InvalidInputError, "option 'operator' is missing"),
        ({"checkpoint": "99"}, CheckpointNotFoundError, "99.*it has"),
        ({"checkpoint": "newest"}, NotFoundError, "no checkpoint and no tag 'newest' .* the tags are 'first'"),
        ({"asOf": "yesterday"}, InvalidInputError, "'asOf' must be a time such as .*, got 'yesterday'"),
        ({"asOf": "1000"}, NotFoundError, "at 1000 or before; the oldest, 1, was committed at 20"),
        ({"asOf": "9", "checkpoint": "2"}, InvalidInputError, "'checkpoint' and 'asOf' .* give one of them"),
        ({"keyGroups": "7-3"}, InvalidInputError, "'keyGroups' must be .* from 0 to 127, got '7-3'"),
        ({"keyGroups": "120-128"}, InvalidInputError, "'keyGroups' must be .* from 0 to 127, got '120-128'"),
        ({"columns": "k,m"}, InvalidInputError, "no column 'm'; it has k, n"),
        ({"columns": "k,k"}, InvalidInputError, "must name each column once"),
        ({"partitions": "0"}, InvalidInputError, "'partitions' must be a whole number from 1, got '0'"),
        ({"pushFilters": "true"}, InvalidInputError, "'pushFilters' does not exist: .*'keyGroups'.*read_state"),
        ({"colums": "k"}, InvalidInputError, "unknown option 'colums'"),
        ({"path": "/nowhere"}, StoreNotFoundError, "/nowhere"),
    ],
)  # fmt: skip
def test_wrong_options_say_what_there_is(
    store: Path, changes: dict[str, str], error: type[ArrowStateError], message: str
) -> None:
    from arrowstate.spark.read.states import ReadPlan

    options = {"path": str(store), "operator": "counter", "state": "counts"} | changes

    with pytest.raises(error, match=message):
        ReadPlan.from_options(options)


def test_an_unknown_state_reaches_the_user_of_spark(read: Any) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=r"StateNotFoundError: no state named 'nothing'.*'counts', 'names'"):
        read(state="nothing")


def test_a_schema_of_the_users_own_is_refused(spark: Any, store: Path) -> None:
    from arrowstate.spark import register

    register(spark)
    reader = spark.read.format("arrowstate").option("operator", "counter").option("state", "counts").schema("k string")

    with pytest.raises(Exception, match=r"leave \.schema"):
        reader.load(str(store)).collect()


def test_a_second_query_on_a_frame_has_nothing_of_the_filters_of_the_first(spark: Any, read: Any) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read()
        counts = [frame.where(f"k < {bound}").count() for bound in (10, 20)]
        both = frame.where("k = 1").unionAll(frame).count()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert (counts, both) == ([10, 20], KEYS + 1)
