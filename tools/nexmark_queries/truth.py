"""What the results should be: DuckDB over the same files, one file per micro-batch.

Micro-batch n sees the watermark of the rows up to micro-batch n - 1: the highest event time less the delay. No row may
be late, that is at or before the watermark that its micro-batch sees, because then the results would not be those of
all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from nexmark_queries.queries import Query

__all__ = ["Truth", "Verdict", "connect"]

_END = (1 << 63) - 1
"""Event time at the end of the input."""


def connect() -> duckdb.DuckDBPyConnection:
    """Return a connection that knows what the queries are written in."""
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.execute("create macro unix_millis(moment) as epoch_ms(moment)")
    return connection


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a result compares with the truth."""

    rows: int
    "Of the truth."
    missing: int
    "Rows of the truth that the result lacks."
    wrong: int
    "Rows of the result that the truth lacks."

    @property
    def is_right(self) -> bool:
        """Whether both have the same rows, each as often."""
        return self.missing == self.wrong == 0


class Truth:
    """The events of some files, and queries over them.

    Parameters
    ----------
    files
        In the order of the micro-batches.
    delay_ms
        By how much the watermark is behind the highest event time.
    """

    def __init__(self, files: Sequence[Path], *, delay_ms: int) -> None:
        self._delay = delay_ms
        self._connection = connect()
        self._connection.execute("create table files (filename varchar, batch integer)")
        self._connection.executemany("insert into files values (?, ?)", [(str(f), n) for n, f in enumerate(files)])
        names = ", ".join(f"'{file}'" for file in files)
        self._connection.execute(
            "create view events as "
            f"from read_parquet([{names}], filename = true, file_row_number = true) join files using (filename)"
        )
        self._count = len(files)

    def rows(self, query: Query, batch: int) -> pa.Table:
        """Return what the first operator of a query gets in a micro-batch."""
        order = f"order by {', '.join(query.steps[0].order_by)}" if query.steps[0].order_by else ""
        return self._table(
            f"select {', '.join(query.select)} from events where batch = {batch} and ({query.where}) {order}"
        )

    def watermarks(self, query: Query) -> list[int]:
        """Return the watermark that each micro-batch of a query sees, in milliseconds; 0 before the first row."""
        table = self._table(
            f"""select coalesce(max(highest) over (order by batch rows between unbounded preceding and 1 preceding)
                                - {self._delay}, 0) as watermark
                from (select batch, max(unix_millis(date_time)) filter ({query.where}) as highest
                      from events group by batch) order by batch"""
        )
        return list(table["watermark"].to_pylist())

    def compare(self, query: Query, output: pa.Table, *, times_ms: Sequence[int]) -> Verdict:
        """Compare what a query has emitted with the truth.

        Parameters
        ----------
        query
            The query.
        output
            All rows, in the order in which they were emitted.
        times_ms
            The processing time of each micro-batch.

        Raises
        ------
        ValueError
            If a row of the events is late.
        """
        watermarks = self.watermarks(query)
        self._set_batches(watermarks, times_ms, watermarks[-1], times_ms[-1])
        late = f"""select * from events join batches using (batch)
                   where ({query.where}) and epoch_ms(date_time) <= watermark"""
        return self._compared(query, output, late)

    def compare_at_end(self, query: Query, output: pa.Table) -> Verdict:
        """Compare what a query has emitted with the truth, where the watermark followed the rows and then the end came.

        Parameters
        ----------
        query
            The query.
        output
            All rows; those of a key in the order in which they were emitted.

        Raises
        ------
        ValueError
            If a row of the events is late.
        """
        # Since no row is late, none is at or before the end of a session that the watermark has passed.
        nothing = [0] * self._count
        self._set_batches(nothing, nothing, _END, _END)
        late = f"""select date_time, max(date_time) over (order by batch, file_row_number
                              rows between unbounded preceding and 1 preceding) as highest from events
                   qualify epoch_ms(date_time) < epoch_ms(highest) - {self._delay}"""
        return self._compared(query, output, late)

    def _set_batches(self, watermarks: Sequence[int], times_ms: Sequence[int], watermark: int, time_ms: int) -> None:
        """Let the truth know what each micro-batch saw, and what the last watermark and the last time are."""
        connection = self._connection
        connection.execute("create or replace table batches (batch integer, watermark bigint, time bigint)")
        seen = zip(range(self._count), watermarks, times_ms, strict=True)
        connection.executemany("insert into batches values (?, ?, ?)", list(seen))
        connection.execute(f"create or replace macro last_watermark() as {watermark}::bigint")
        connection.execute(f"create or replace macro last_time() as {time_ms}::bigint")
        for kind in ("person", "auction", "bid"):
            connection.execute(
                f"""create or replace view {kind} as
                    select event, epoch_ms(date_time) as t, batch, watermark, time, {kind}.*
                    from events join batches using (batch) where kind = '{kind}'"""
            )

    def _compared(self, query: Query, output: pa.Table, late_rows: str) -> Verdict:
        connection = self._connection
        late = self._number(f"select count(*) from ({late_rows})")
        if late:
            raise ValueError(
                f"{query.name} compares with all rows, so none may be late; {late} are: "
                "let fewer events come out of order, or make the delay of the watermark longer"
            )
        numbered = output.append_column("position", pa.array(range(output.num_rows), pa.int64()))
        connection.register("emitted", numbered)
        columns = ", ".join(output.schema.names)
        latest = f"qualify row_number() over (partition by {', '.join(query.latest_by)} order by position desc) = 1"
        connection.execute(f"create or replace table truth as select {columns} from ({query.truth})")
        connection.execute(
            f"create or replace table result as select {columns} from emitted {latest if query.latest_by else ''}"
        )
        return Verdict(
            self._number("select count(*) from truth"),
            self._number("select count(*) from (from truth except all from result)"),
            self._number("select count(*) from (from result except all from truth)"),
        )

    def _number(self, sql: str) -> int:
        # A result must be fetched to its end before the next statement.
        rows: list[Any] = self._connection.execute(sql).fetchall()
        return int(rows[0][0])

    def _table(self, sql: str) -> pa.Table:
        return self._connection.sql(sql).to_arrow_table()
