"""A stream of Spark into a table of PostgreSQL: the rows of a micro-batch and its token in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from arrowstate.errors import InvalidInputError
from arrowstate.postgres.commits import PostgresCommits
from arrowstate.spark.outputs import arrow_table
from arrowstate.spark.workers import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["postgres_sink"]


def postgres_sink(
    stream: DataFrame,
    conninfo: str,
    table: str,
    *,
    uid: str,
    schema: str | None = None,
    key: Sequence[str] | None = None,
    operation: str | None = None,
) -> DataStreamWriter:
    """Write the rows of a stream to a table of PostgreSQL, each micro-batch exactly once.

    A micro-batch is one transaction with its token: the id of the query, `uid`, and the number of the micro-batch. The
    token is in the table `arrowstate_commits`, as that of a `PostgresSink`. If Spark runs a micro-batch again, because
    the driver died before Spark took note of it, the token is found, and nothing is written. For this the micro-batch
    must have the same rows again, as Spark asks of every source: so does an output table of a store.

    Parameters
    ----------
    stream : DataFrame
        A stream, such as an output table of a store, `spark.readStream.format("arrowstate").option("output", ...)`.
    conninfo : str
        The database, in a form of libpq, as for `arrowstate.runtime.PostgresSink`. Only the driver connects to it.
    table : str
        The table, which must exist. Rows go to the columns of the same names.
    uid : str
        Names this sink within the query, for ever.
    schema : str, optional
        The schema of the table; that of the search path if it is not given.
    key : sequence of str, optional
        Columns that name a row: a row replaces the one of its key (an upsert), the last one of a micro-batch, by its
        place in the DataFrame. The table needs a unique index of these columns. By default rows are added.
    operation : str, optional
        A column that says what a row is, in the words of `operation=` of `keyed_sink`: a row that is removed deletes
        the one of its key. The column is not written. It needs `key`.

    Returns
    -------
    DataStreamWriter
        PySpark's writer: give it a `checkpointLocation` and a trigger, and start it.

    Raises
    ------
    MissingDependencyError
        If psycopg is not installed: `pip install 'arrowstate[postgres]'`.
    UnavailableError
        If the server cannot be reached. In a micro-batch it ends the query, which goes on when it is started again.
    InvalidInputError
        If the DataFrame is no stream or is one of Spark Connect, key or operation are not columns of it, `uid` is
        empty, there is no such table, or no unique index of the key. In a micro-batch it ends the query, as does an
        error of psycopg where PostgreSQL refuses rows; then none of its rows is in the table.

    Notes
    -----
    The rows of a micro-batch are collected on the driver; limit them, with `maxRowsPerTrigger` of an output table. A
    query with another `checkpointLocation` is another query: its micro-batches are written even if they have rows
    that an earlier query wrote.

    Examples
    --------
    >>> from arrowstate.spark import postgres_sink
    >>> rows = spark.readStream.format("arrowstate").option("output", "changes").load("/data/totals")  # doctest: +SKIP
    >>> writer = postgres_sink(rows, "postgresql://ann@db/shop", "totals", uid="totals", key=["user"])  # doctest: +SKIP
    >>> query = writer.option("checkpointLocation", "/data/to_postgres").start()  # doctest: +SKIP
    """
    if is_connect(stream):
        raise InvalidInputError(
            "postgres_sink needs the driver's own session, and this DataFrame is one of Spark Connect; write from a "
            "job instead: arrowstate.runtime has OutputSource and PostgresSink"
        )
    if not stream.isStreaming:
        raise InvalidInputError("postgres_sink needs a stream, of spark.readStream, and this DataFrame is a table")
    if not uid:
        raise InvalidInputError("uid must be a text that is not empty: it names the sink within the query")
    commits = PostgresCommits("postgres_sink", conninfo, table, schema=schema, key=key, operation=operation)
    commits.check_columns(f"sink {uid!r}", stream.columns)
    # What is missing is told here, before a query runs.
    commits.open(uid)
    commits.close()
    return stream.writeStream.foreachBatch(_writer(commits, uid))


def _writer(commits: PostgresCommits, uid: str) -> Callable[[DataFrame, int], None]:
    """Return what Spark calls with each micro-batch."""
    opened: set[str] = set()

    def write(frame: DataFrame, batch_id: int) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query_id is None:
            raise InvalidInputError("this is no micro-batch of a streaming query; start the writer of postgres_sink")
        sink = f"{query_id}/{uid}"
        if sink not in opened:
            commits.open(sink)
            commits.end_others()
            opened.add(sink)
        commits.commit(arrow_table(frame), sink, 0, batch_id)

    return write
