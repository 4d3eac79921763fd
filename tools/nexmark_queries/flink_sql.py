"""The queries in Flink's SQL, and what is left of a result after all of its changes.

The SQL follows that of nexmark-flink, but for what makes the results those of the other engines: a row has its window,
equal bids of query 19 have an order, and a bid at the end of a window (query 7) belongs to the next one alone. Query 18
has no order of bids at the same time: Flink runs it with one, but not as a deduplication, and then takes 1.6 times as
long. It keeps the one that comes last, so bids at the same time must come in their order and in one file.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from nexmark_queries.events import json_schema
from nexmark_queries.queries import GAP_MS, SLIDE_MS, WINDOW_MS, Query

__all__ = ["FLINK_SQL", "final_rows", "settings", "statements"]


def _seconds(milliseconds: int) -> str:
    return f"interval '{milliseconds // 1000}' second"


_TUMBLE = f"table(tumble(table {{}}, descriptor(`at`), {_seconds(WINDOW_MS)}))"
_COUNTS = f"""select auction, count(*) as bids, window_start, window_end
    from table(hop(table bid, descriptor(`at`), {_seconds(SLIDE_MS)}, {_seconds(WINDOW_MS)}))
    group by auction, window_start, window_end"""

FLINK_SQL = {
    "q3": """select name, city, state, a.id from auction a join person p on a.seller = p.id
        where category = 10 and state in ('OR', 'ID', 'CA')""",
    "q4": """select category, count(*), avg(price) from (
            select a.id, category, max(price) as price from auction a join bid b on b.auction = a.id
            where b.date_time between a.date_time and expires group by a.id, category)
        group by category""",
    "q5": f"""select auction, c.window_start, c.window_end, bids from ({_COUNTS}) c
        join (select max(bids) as most, window_start, window_end from ({_COUNTS}) group by window_start, window_end) m
        on c.window_start = m.window_start and c.window_end = m.window_end and bids >= most""",
    "q7": f"""select b.window_start, b.window_end, price, auction, bidder from {_TUMBLE.format("bid")} b
        join (select max(price) as most, window_start, window_end from {_TUMBLE.format("bid")}
              group by window_start, window_end) m
        on b.window_start = m.window_start and b.window_end = m.window_end and price = most""",
    "q8": f"""select id, name, p.window_start, p.window_end
        from (select id, name, window_start, window_end from {_TUMBLE.format("person")}
              group by id, name, window_start, window_end) p
        join (select seller, window_start, window_end from {_TUMBLE.format("auction")}
              group by seller, window_start, window_end) a
        on id = seller and p.window_start = a.window_start and p.window_end = a.window_end""",
    "q11": f"""select bidder, session_start(`at`, {_seconds(GAP_MS)}), session_end(`at`, {_seconds(GAP_MS)}), count(*)
        from bid group by bidder, session(`at`, {_seconds(GAP_MS)})""",
    "q18": """select event, date_time, auction, bidder, price, channel, url, extra from (
            select *, row_number() over (partition by bidder, auction order by `at` desc) as n from bid)
        where n <= 1""",
    "q19": """select auction, n, event, bidder, price, channel, url, date_time, extra from (
            select *, row_number() over (partition by auction order by price desc, date_time, event) as n from bid)
        where n <= 10""",
}
"""The rows of each query, in the order of the columns that its last step emits."""


def settings(slots: int) -> dict[str, str]:
    """Return the options of a job: state on the heap, and what nexmark-flink sets to be fast."""
    return {
        "parallelism.default": str(slots),
        "rest.port": "0",
        "pipeline.object-reuse": "true",
        "table.local-time-zone": "UTC",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "50000",
    }


def statements(query: Query, events: Path, result: Path | None, *, delay_ms: int) -> list[str]:
    """Return the statements that run a query; its result goes to a folder, or nowhere as in nexmark-flink."""
    read = json_schema(query.text)
    # The path of a table is a URI.
    declared = [
        f"""create table events ({_columns(read)}, `at` as to_timestamp_ltz(date_time, 3),
            watermark for `at` as `at` - {_seconds(delay_ms)})
            with ('connector' = 'filesystem', 'path' = '{events.as_uri()}', 'format' = 'json')"""
    ]
    beside = ", ".join(f"`{name}`" for name in (*(name for name in ("event", "date_time") if name in read.names), "at"))
    for kind in ("person", "auction", "bid"):
        if kind in read.names:
            fields = ", ".join(f"events.{kind}.{field.name} as {field.name}" for field in read.field(kind).type)
            declared.append(f"create view {kind} as select {beside}, {fields} from events where kind = '{kind}'")
    options = "'connector' = 'blackhole'"
    if result is not None:
        # The one kind of file that takes updates and deletions too.
        options = f"'connector' = 'filesystem', 'path' = '{result.as_uri()}', 'format' = 'debezium-json'"
    declared.append(f"create table `result` ({_columns(_emitted(query))}) with ({options})")
    return [*declared, f"insert into `result` {FLINK_SQL[query.name]}"]


def final_rows(query: Query, result: Path) -> pa.Table:
    """Return the rows that are left of a result when all of its changes have been made.

    Raises
    ------
    ValueError
        If a row is taken back more often than it was given.
    """
    emitted = _emitted(query)
    row = ", ".join(f"{field.name} {_DUCKDB[field.type]}" for field in emitted)
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    files = sorted(str(file) for file in result.glob("part-*"))
    connection.execute(f"create table changes (before struct({row}), after struct({row}), op varchar)")
    if files:
        connection.execute(
            "insert into changes from read_json(?, format = 'newline_delimited', columns = "
            f"{{before: 'struct({row})', after: 'struct({row})', op: 'varchar'}})",
            [files],
        )
    names = ", ".join(emitted.names)
    connection.execute(
        f"""create table left_over as select {names}, sum(given) as times from (
                select after.*, 1 as given from changes where op = 'c'
                union all select before.*, -1 from changes where op = 'd')
            group by all having times <> 0"""
    )
    lost = connection.execute("from left_over where times < 0 limit 1").fetchone()
    if lost is not None:
        raise ValueError(f"the result of {query.name} takes back more often than it gave it: {lost}")
    shown = ", ".join(_shown(name, query.emitted[name]) for name in emitted.names)
    return connection.sql(f"select {shown} from left_over, range(times::bigint)").to_arrow_table()


_TIME = pa.timestamp("ms")
_FLINK = {pa.int64(): "bigint", pa.string(): "string", _TIME: "timestamp(3)"}
_DUCKDB = {pa.int64(): "bigint", pa.string(): "varchar", _TIME: "timestamp"}


def _emitted(query: Query) -> pa.Schema:
    """Return the columns that Flink emits: the bounds of windows as it has them, other times as in the events."""
    types = {"long": pa.int64(), "string": pa.string(), "timestamp": pa.int64()}
    return pa.schema(
        [(name, _TIME if name.startswith("window_") else types[kind]) for name, kind in query.emitted.items()]
    )


def _shown(name: str, kind: str) -> str:
    """Return SQL that has a column as the query emits it."""
    if kind == "timestamp":
        return f"epoch_ms({name})::timestamptz as {name}"
    return f"epoch_ms({name}) as {name}" if name.startswith("window_") else name


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {_type(field.type)}" for field in schema)


def _type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"row<{', '.join(f'`{field.name}` {_type(field.type)}' for field in kind)}>"
    return _FLINK[kind]
