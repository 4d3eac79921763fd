"""Jobs whose graph is another at each start: each branch has all windows of its source once, whatever is beside it."""

import random
from collections import Counter

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError
from arrowstate.runtime import Job, OutputTable, TableSource, Watermarks
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction
from long_form import short_or_long

SIZE_MS = 10_000
TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")


class Passing(arrowstate.BatchFunction):
    """Adds up what it gives on."""

    def open(self, context):
        self.total = context.state(TOTAL)

    def process_batch(self, batch, context):
        self.total.add_batch(context.group_keys(batch), batch["v"])
        return batch


def some_rows(chance):
    """Rows a little out of order, of a time long before or after those of others."""
    at = chance.choice([0, 100_000, -50_000])
    rows = []
    for _ in range(chance.randint(1, 60)):
        at += chance.randint(0, 3000)
        rows.append({"k": chance.randint(0, 4), "v": chance.randint(1, 9), "at": at - chance.choice([0, 0, 0, 500])})
    return pa.Table.from_pylist(rows, pa.schema({"k": pa.int64(), "v": pa.int64(), "at": pa.int64()}))


def add_branch(job, name, rows, chance):
    """Windows over a source, behind an exchange, a function or an operator that another start may not have."""
    stream = job.source(TableSource(rows), uid=f"rows_{name}", watermarks=Watermarks("at", out_of_order_ms=600))
    way = chance.choice(["straight", "straight", "rebalance", "to_one", "map"])
    if way in ("rebalance", "to_one"):
        stream = getattr(stream, way)()
    elif way == "map":
        stream = stream.map_batches(lambda batch: batch)
    if chance.random() < 0.3:
        stream = stream.stateful(Passing(), key=["k"], uid=f"passing_{name}", output_schema=rows.schema)
    windows = WindowFunction(TumblingEventTimeWindows(SIZE_MS), TOTAL, timestamp="at", value="v")
    stream.stateful(windows, key=["k"], uid=f"windows_{name}").sink(OutputTable(f"out_{name}"))


def windows_of(rows):
    sums = Counter()
    for row in rows.to_pylist():
        sums[row["k"], row["at"] // SIZE_MS * SIZE_MS] += row["v"]
    return sorted((key, start, start + SIZE_MS, total) for (key, start), total in sums.items())


@pytest.mark.parametrize("seed", range(short_or_long(25, 2000)))
def test_every_branch_has_its_windows_once_over_starts_with_other_graphs(seed):
    chance = random.Random(seed)
    tables: list[pa.Table] = []
    live: list[int] = []
    starts = chance.randint(2, 4)
    for start in range(starts):
        if not live or chance.random() < 0.5:
            live.append(len(tables))
            tables.append(some_rows(chance))
        if len(live) > 1 and chance.random() < 0.3:
            live.remove(chance.choice(live))
        chance.shuffle(live)
        options = arrowstate.CheckpointOptions(
            interval_ms=chance.choice([5, 50, 1000]), unaligned=chance.random() < 0.4
        )
        job = Job(
            f"memory://graphs-{seed}",
            parallelism=chance.choice([1, 2, 3]),
            allow_non_restored_state=True,
            options=options,
        )
        for name in live:
            add_branch(job, name, tables[name], chance)
        try:
            with job.start(mode="inline", seed=chance.randrange(1000)) as running:
                if start == starts - 1:
                    snapshot = running.wait()
                else:
                    running.go_on(chance.randint(1, 400))
                    if chance.random() < 0.6:
                        running.stop()
        except InvalidInputError as error:
            # An operator that has gone may have rows in flight to it; only the job of before can go on then.
            assert "has rows in flight to" in str(error)
            return

    for name in live:
        assert sorted(snapshot.sql(f"select * from out_{name}.rows").fetchall()) == windows_of(tables[name])
