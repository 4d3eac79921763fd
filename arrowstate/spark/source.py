"""The Spark data source `arrowstate`: where Spark's calls meet what reads a store.

Spark pickles these classes by name, so the Python of its workers must have arrowstate installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.types import StructType

from arrowstate.errors import InvalidInputError
from arrowstate.spark.read.bases import DataSource, DataSourceReader, DataSourceStreamReader
from arrowstate.spark.read.plans import Plan, plan_from_options
from arrowstate.spark.versions import DATA_SOURCE, STREAMING_READS, has, require
from arrowstate.spark.workers import own_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMAT", "ArrowStateDataSource", "register", "register_if_possible"]

FORMAT = "arrowstate"
"""The name of the data source."""


class ArrowStateDataSource(DataSource):
    """Reads what a store has as tables, and follows it as streams."""

    _plan: Plan | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """The columns; from here on a table is pinned to one checkpoint."""
        self._plan = plan_from_options(self.options)
        return self._plan.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return (self._plan or plan_from_options(self.options)).reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        require(STREAMING_READS)
        return (self._plan or plan_from_options(self.options)).stream_reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002
        """Refuse to write a table: Spark gives a data source rows as they lie, and state is made where they belong."""
        raise InvalidInputError(
            "df.write makes no state: a table becomes state by arrowstate.spark.bootstrap(table, store=..., "
            "uid=..., key=[...], states=[...], parallelism=...), a stream by keyed_sink or stateful"
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002
        """Refuse to write a stream by itself."""
        raise InvalidInputError(
            "a stream is written to a store by arrowstate.spark.keyed_sink(stream, ...) or arrowstate.spark.stateful"
        )


def register(spark: SparkSession) -> None:
    """Make the data source `arrowstate` known to a session; `keyed_sink` and `stateful` do it by themselves.

    Options of `spark.read.format("arrowstate")`, given before `.load(path of a store or savepoint)`; names do not tell
    case apart:

    operator
        The operator's uid.
    state
        The state, timers (`timers_event_time`) and operator states too; may be left out where the operator has one.
    checkpoint
        The id of a checkpoint or the name of a tag; by default the newest when `load` is called, and the DataFrame
        stays with it.
    asOf
        Instead: the newest checkpoint committed at this time or before, in ISO 8601 (UTC where it has no offset) or in
        milliseconds since 1970.
    columns
        The columns to read, separated by commas, or as a JSON array (`["a", "b, c"]`); all by default.
    keyGroups
        A key group, or a range such as `3-7` with both ends inclusive.
    partitions
        How many key-group ranges to read apart, up to the number of key groups; one per subtask by default, and more
        for a state of over 2,097,152 rows each.
    validate
        `full` takes nothing on trust that was not written by this package, see `open_store`; `checksums` by default.
        Change feeds take it too.
    storageOptions
        What `open_store` takes as `storage_options`, as a JSON object, for every kind of read; without it the
        environment of each process counts. Spark's plans and logs do not print it.
    table
        In the place of a state: `arrowstate.checkpoints` or `arrowstate.subtasks`, the history of the store as
        `Snapshot.sql` documents it.
    output
        In the place of a state: the name of an output table, whose rows come in the order of their commits.
    readChangeFeed
        `true` for what changed in the state from one checkpoint to the next: its columns, `_change_type` (`insert`,
        `update_preimage`, `update_postimage`, `delete`) and `_checkpoint_id`, the later checkpoint.
    startingCheckpoint, endingCheckpoint
        A change feed has what changed after the first, up to the second inclusive, both named as in `checkpoint`; by
        default all rows of the oldest checkpoint and what changed since then, up to the newest. Over checkpoints that
        were collected it goes in one step.
    waitSeconds
        For how long a change feed or an output waits at most for the first checkpoint of a store that has none yet:
        60 by default, 0 for not at all. It is `load` that waits, which has to know the columns; a stream whose columns
        are given with `.schema(...)` is loaded at once, and waits when it is started.

    `spark.readStream` takes a change feed, with `operator`, `state`, `columns`, `partitions`, `keyGroups`,
    `waitSeconds`, and:

    startingCheckpoint
        The stream has what changed after this checkpoint, or after the `latest`; with `earliest` all rows of the oldest
        one since which none was collected, first. By default it has all rows of the newest one first. All changes of a
        key are in one partition of a micro-batch, in the order of the checkpoints. If the checkpoint that was read last
        or one since was collected, the query ends with `CheckpointsCollectedError`.
    maxCheckpointsPerTrigger
        The most checkpoints of a micro-batch; no limit by default.
    leaseSeconds
        Hold the checkpoints that the stream has not read by a lease, so that no collection takes them: while the query
        runs, and for so many seconds after it was stopped or has died, 1 or more. The lease is moved on with each
        micro-batch. By default nothing is held. The store must be written to for it, in its folder `leases/`.

    and the rows of an output table, with `output`, `columns`, `waitSeconds`, and:

    startingPosition
        `earliest`, the default, for all rows, or `latest` for those committed after the start.
    maxRowsPerTrigger
        The most rows of a micro-batch; no limit by default.
    leaseSeconds
        As for a change feed: the checkpoints in which the rows of a micro-batch are found are held until the next one.

    Raises
    ------
    MissingDependencyError
        If PySpark is older than 4.0. What `spark.readStream` reads needs 4.2, and is refused when the query starts.

    Examples
    --------
    >>> from arrowstate.spark import register
    >>> def read_clicks(spark, folder):
    ...     register(spark)
    ...     return spark.read.format("arrowstate").option("operator", "counter").load(f"{folder}/store")
    """
    require(DATA_SOURCE)
    with own_python(spark):
        spark.dataSource.register(ArrowStateDataSource)


def register_if_possible(spark: SparkSession) -> None:
    """Make the data source known to a session whose PySpark has data sources in Python."""
    if has(DATA_SOURCE):
        register(spark)
