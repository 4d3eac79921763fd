"""Files for a stream, and the truth of what the queries of `tests/spark/cluster/driver.py` make of them.

`audit` and `sink` of that driver leave a state, and `audit` an output table, from which every row that was lost or
counted twice can be told: the output has the totals of a key after each of its rows, and when each window ended.
"""

import json
from contextlib import suppress
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather

from arrowstate import CheckpointNotFoundError, Snapshot, StoreNotFoundError, open_store

ROWS = 400
"""Of each file."""
KEYS = 120
FIRST_MS = 1_600_000_000_000
FILE_MS = 1000
"""What a file covers in event time."""
WINDOW_MS = 3000
"""A row makes its key have a timer at the end of a window of this length."""


def rows_of(number: int) -> pa.Table:
    """The rows of a file: ids and times go on from those of the file before."""
    random = np.random.default_rng([17, number])
    times = FIRST_MS + number * FILE_MS + np.sort(random.integers(0, FILE_MS, ROWS))
    ids, keys = np.arange(ROWS) + number * ROWS, random.integers(0, KEYS, ROWS)
    values, counted = random.integers(-1000, 1000, ROWS), random.random(ROWS) >= 0.1
    return pa.table(
        {
            "id": ids,
            # A row without a key is a dead letter.
            "k": pa.array(keys, mask=random.random(ROWS) < 0.02),
            "v": values,
            "n": pa.array(np.ones(ROWS, np.int64), mask=~counted),
            "ts": pa.array(times, pa.timestamp("ms", tz="UTC")),
            # Late by up to five files, no two alike.
            "seq": (ids + random.integers(-5, 1, ROWS) * ROWS) * 1_000_000 + ids,
            "op": np.where(random.random(ROWS) < 0.3, "-D", "+I"),
        }
    )


def files_until(folder: Path, batch_id: int) -> int:
    """How many files the micro-batches up to this one have taken, by Spark's offset log.

    Mostly one each. Two, where a driver was killed after Spark's source had noted one and before the batch was.
    """
    return json.loads(_offsets(folder, batch_id)[-1])["logOffset"] + 1


def batches_of(folder: Path, last: int) -> list[dict[str, int]]:
    """What Spark's offset log says of each micro-batch up to this one: `files_until` it, and its watermark."""
    return [
        {
            "batch": batch_id,
            "files": files_until(folder, batch_id),
            "watermark": json.loads(_offsets(folder, batch_id)[1])["batchWatermarkMs"],
        }
        for batch_id in range(last + 1)
    ]


def _offsets(folder: Path, batch_id: int) -> list[str]:
    return (folder / "spark" / "offsets" / str(batch_id)).read_text().splitlines()


TRUTH = """
create view batches as select batch, watermark, files, lag(files, 1, 0) over (order by batch) as first from given;
create table given_in_batches as
    select i.*, b.batch from given_rows i join batches b on i.id // {rows} >= b.first and i.id // {rows} < b.files;
create view dead as select id, 'key column ''k'' is null' as reason, batch from given_in_batches where k is null;
create table rows as select * from given_in_batches where k is not null;
create view changed as
    select k, arg_max(id, seq) as newest, arg_max(op, seq) as op, max(seq) as newest_sequence
    from rows group by k;
create view totals as select k, count(n) as n, sum(v)::bigint as v from rows group by k;
create view last as select k, max(id) as last from rows group by k;
create table timers as
    select distinct k, (epoch_ms(ts) // {window} + 1) * {window} as due from rows;
create view audit as
    select id, k, null::bigint as due, count(n) over so_far as n, (sum(v) over so_far)::bigint as v, batch from rows
    window so_far as (partition by k order by id)
    union all
    select null, t.k, t.due, count(r.n), sum(r.v)::bigint, t.batch
    from (select k, due, (select min(batch) from batches where watermark >= due) as batch from timers) t
    join rows r on r.k = t.k and r.batch < t.batch group by t.k, t.due, t.batch;
create view watermarks as
    select b.batch, coalesce(max(epoch_ms(r.ts)), 0) as watermark
    from batches b left join given_in_batches r on r.batch < b.batch
    group by b.batch;
create view newest as select k, newest from changed where op = '+I';
create view newest_sequence as select k, newest_sequence from changed where op = '+I';
create view ends as
    select k, due from timers where due > (select max(watermark) from batches);
"""


def compare(folder: Path, what: str) -> tuple[int, list[str]]:
    """Compare the newest checkpoint with the files up to its micro-batch; their number, and what is wrong."""
    while True:
        try:
            store = open_store(folder / "store")
            newest = store.latest().checkpoint_id
        except (StoreNotFoundError, CheckpointNotFoundError):
            return 0, []
        # The query collects its store meanwhile: what is read is held, and is read anew if that came too late.
        with suppress(CheckpointNotFoundError), store.lease(newest, holder="the audit") as lease:
            return _compare(lease.snapshot, folder, what)


def _compare(snapshot: Snapshot, folder: Path, what: str) -> tuple[int, list[str]]:
    last = snapshot.entry.properties["spark"]["batch_id"]
    batches = batches_of(folder, last)
    with duckdb.connect() as database:
        database.register("given", pa.Table.from_pylist(batches))
        database.register("given_rows", pa.concat_tables(map(rows_of, range(batches[-1]["files"]))))
        database.execute(TRUTH.format(rows=ROWS, window=WINDOW_MS))
        found = {"totals": snapshot.to_arrow("counter.totals"), "dead": dead_letters(snapshot)}
        if what == "sink":
            found["newest"] = snapshot.to_arrow("counter.newest")
            found["newest_sequence"] = snapshot.to_arrow("counter.newest_sequence")
        if what == "audit":
            found["last"] = snapshot.to_arrow("counter.last")
            found["ends"] = snapshot.to_arrow("counter.ends_event_time").rename_columns({"timestamp": "due"})
            found["audit"] = with_batches(snapshot)
            found["watermarks"] = pa.Table.from_pylist(batches).select(["batch", "watermark"])
        problems = [problem for name, table in found.items() for problem in differences(database, name, table)]
    if what == "audit":
        problems += compare_with_seen(folder, found["audit"], last)
    return batches[-1]["files"], [f"after batch {last}, {problem}" for problem in problems]


def differences(database: duckdb.DuckDBPyConnection, name: str, found: pa.Table) -> list[str]:
    """What a table has too much or too little, compared with the truth of that name."""
    database.register("found", found)
    columns = ", ".join(column for column in found.column_names if not column.startswith("_"))
    wrong = database.sql(
        f"select 'lacks' as word, * from (select {columns} from {name} except all select {columns} from found) "
        f"union all select 'has', * from (select {columns} from found except all select {columns} from {name})"
    ).fetchall()
    return [f"{name} {word} ({columns}) = {row}" for word, *row in wrong[:5]]


def dead_letters(snapshot: Snapshot) -> pa.Table:
    """The rows that were set aside, each with its micro-batch."""
    rows = snapshot.operator_state("counter_dead_letters", "rows")["rows"].to_pylist()
    columns = {
        "id": [row["row"]["id"] for row in rows],
        "reason": [row["reason"] for row in rows],
        "batch": [row["batch_id"] for row in rows],
    }
    return pa.table({name: pa.array(column, _TYPES[name]) for name, column in columns.items()})


_TYPES = {"id": pa.int64(), "reason": pa.string(), "batch": pa.int64()}


def with_batches(snapshot: Snapshot) -> pa.Table:
    """The output table, each row with its micro-batch."""
    structs = snapshot.operator_state("audit", "rows")["rows"].combine_chunks()
    table = pa.Table.from_struct_array(structs)
    firsts = [
        (item.entry.properties["spark"]["outputs"]["audit"], item.entry.properties["spark"]["batch_id"])
        for item in open_store(snapshot.storage.url).checkpoints()
        if item.checkpoint_id <= snapshot.checkpoint_id
    ]
    numbers = np.searchsorted([first for first, _ in firsts], np.arange(table.num_rows), side="right") - 1
    return table.append_column("batch", pa.array(np.array([batch for _, batch in firsts])[numbers]))


def compare_with_seen(folder: Path, output: pa.Table, last: int) -> list[str]:
    """Compare the output table, in its order, with what the function of the query was given."""
    problems = [f"{path.name} differs from before" for path in folder.glob("seen/*-again.arrow")]
    for batch in range(last + 1):
        path = folder / "seen" / f"{batch}.arrow"
        if path.exists():
            given = feather.read_table(path)
            if not given.equals(output.filter(pc.field("batch") == batch).drop_columns("batch").cast(given.schema)):
                problems.append(f"{path.name} is not what the output table has")
        elif batch < last:
            problems.append(f"{path.name} is missing")
    return problems
