"""What the tests of the Spark layer share: a sink without Spark, and streams of Parquet files with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.schema.layout import StateLayout, key_documents, state_document
from arrowstate.spark.micro_batches import MicroBatch
from arrowstate.spark.sink.plan import SinkPlan, StateInput
from arrowstate.spark.task import SubtaskResult
from arrowstate_formats.documents import LogEntryDocument
from sink_batches import commit, fold
from spark_files import add_file
from stores import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

TOTALS = arrowstate.ReducingStateDescriptor(
    "totals", pa.struct([("n", pa.int64()), ("v", pa.int64())]), reduce={"n": "count", "v": "sum"}
)


def group(tables: Sequence[pa.Table]) -> dict[Any, tuple[int, int | None]]:
    """Count and sum `v` by `k` without a store: {key: (count, sum)}."""
    rows = pa.concat_tables(tables).group_by("k").aggregate([("v", "count"), ("v", "sum")])
    return {row["k"]: (row["v_count"], row["v_sum"]) for row in rows.to_pylist()}


def stored(store: Path) -> dict[Any, tuple[int, int | None]]:
    """What the newest checkpoint holds, in the form of `group`."""
    table = arrowstate.open_store(store).latest().to_arrow("counter.totals")
    return {row["k"]: (row["n"], row["v"]) for row in table.to_pylist()}


@dataclass(frozen=True)
class Sink:
    """A sink of rows with a key column `k`, without Spark: tasks and commit are plain calls."""

    store: Path
    key: pa.DataType = field(default_factory=pa.int64)
    states: Sequence[StateDescriptor] = (TOTALS,)
    parallelism: int = 2
    max_parallelism: int = 128
    query_id: str = "query-a"
    run_id: str = "run-1"
    dropped: Sequence[str] = ()
    retention: arrowstate.RetentionPolicy | None = None
    publish: arrowstate.Publish | None = None

    def but(self, **changes: Any) -> Sink:
        """The same sink after a start with other settings."""
        return replace(self, **changes)

    @property
    def plan(self) -> SinkPlan:
        schema = pa.schema([("k", self.key)])
        states, number = [], 1
        for state in self.states:
            layout = StateLayout(schema, state.name, state.type)
            numbers = list(range(number, number + len(layout.value_fields)))
            number += len(numbers)
            states.append(StateInput(state=state_document(state, layout, key_documents(schema)), columns=numbers))
        return SinkPlan(
            store=str(self.store),
            uid="counter",
            key=key_documents(schema),
            names=[str(place) for place in range(number)],
            states=states,
            retention=self.retention,
            publish=self.publish,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            dropped=list(self.dropped),
        )

    def fold(self, batch_id: int, rows: pa.Table) -> list[SubtaskResult]:
        """Run the tasks of a micro-batch, each with the rows that Spark would send it."""
        return fold(self.plan, MicroBatch(self.query_id, self.run_id, batch_id), rows)

    def commit(self, batch_id: int, results: Sequence[SubtaskResult]) -> LogEntryDocument | None:
        return commit(self.plan, MicroBatch(self.query_id, self.run_id, batch_id), results)

    def run(self, batch_id: int, rows: pa.Table) -> LogEntryDocument | None:
        """Run and commit a micro-batch."""
        return self.commit(batch_id, self.fold(batch_id, rows))

    def stored(self) -> dict[Any, tuple[int, int | None]]:
        """Count and sum by key, as the newest checkpoint has them."""
        return stored(self.store)

    def expected(self, *rows: pa.Table) -> dict[Any, tuple[int, int | None]]:
        """Count and sum by key, as computed from the rows."""
        return group(rows)

    def files(self) -> set[str]:
        """All files of the store."""
        return {str(path.relative_to(self.store)) for path in self.store.rglob("*") if path.is_file()}


@dataclass
class Stream:
    """A folder of Parquet files that Spark streams one per micro-batch, and a sink for it."""

    spark: SparkSession
    folder: Path
    schema: str = "k long, v long, n long"
    rows: list[pa.Table] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "spark"

    def add(self, *batches: pa.Table) -> None:
        """Add the rows of micro-batches."""
        for rows in batches:
            add_file(self.folder, len(self.rows), rows)
            self.rows.append(rows)

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "in"))

    def start(
        self,
        *,
        checkpoint: Path | None = None,
        frame: DataFrame | None = None,
        trigger: dict[str, Any] | None = None,
        **changes: Any,
    ) -> StreamingQuery:
        """Start the sink; without a trigger the query ends after the last file that is there now."""
        from arrowstate.spark import keyed_sink

        arguments: dict[str, Any] = {"store": self.store, "uid": "counter", "key": ["k"], "states": [TOTALS]}
        writer = keyed_sink(self.frame() if frame is None else frame, **arguments | {"parallelism": 2} | changes)
        writer = writer.option("checkpointLocation", str(checkpoint or self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def wait_for(self, batch_id: int) -> None:
        """Wait until Spark has noted the end of a micro-batch, which the next start would repeat alone otherwise.

        `processAllAvailable` may return while the last one is under way.
        """
        until((self.checkpoint / "commits" / str(batch_id)).exists)

    def run(self, **changes: Any) -> StreamingQuery:
        """Start the sink and wait for its end."""
        query = self.start(**changes)
        query.awaitTermination()
        return query

    def stored(self) -> dict[Any, tuple[int, int | None]]:
        """Count and sum by key, as the newest checkpoint has them."""
        return stored(self.store)

    def expected(self) -> dict[Any, tuple[int, int | None]]:
        """Count and sum by key over all rows added."""
        return group(self.rows)


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    """A sink of counts and sums into a new store."""
    return Sink(tmp_path / "store")


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    """A stream without files yet, and a sink of counts and sums into a new store."""
    return Stream(spark, tmp_path)


@pytest.fixture
def make_rows() -> Callable[..., pa.Table]:
    """Return a function that makes random rows: key `k`, value `v`, and `n` to count."""

    def make(seed: int, count: int = 1000, keys: int = 300) -> pa.Table:
        random = np.random.default_rng(seed)
        values = pa.array(random.integers(-1000, 1000, count), mask=random.random(count) < 0.1)
        return pa.table({"k": random.integers(0, keys, count), "n": pc.is_valid(values), "v": values}).set_column(
            1, "n", pc.if_else(pc.is_valid(values), 1, None)
        )

    return make
