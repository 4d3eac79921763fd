"""Jobs that tests of the runtime run, and what each must come to."""

from collections import Counter, defaultdict

import pyarrow as pa

import arrowstate
from arrowstate.runtime import (
    CoBatchFunction,
    Job,
    OutputTable,
    PreparingSink,
    Reader,
    Sink,
    SinkWriter,
    TableSource,
    Watermarks,
)
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction

SUM = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
ROWS = 240
KEYS = 7


def rows(count: int = ROWS, keys: int = KEYS) -> pa.Table:
    """Rows whose event time rises in steps, with some disorder."""
    numbers = list(range(count))
    return pa.table(
        {
            "user": [f"u{number * 7 % keys}" for number in numbers],
            "amount": pa.array([number % 13 for number in numbers], pa.int64()),
            "at": pa.array([number * 10 - (number % 3) * 15 for number in numbers], pa.int64()),
        }
    )


class Running(arrowstate.KeyedProcessFunction):
    """Emits the running sum of each key, once per row."""

    def open(self, context):
        self.total = context.state(SUM)

    def process_element(self, value, context, out):
        self.total.add(value.amount)
        out.collect((value.user, self.total.get()))


RUNNING = pa.schema([("user", pa.string()), ("total", pa.int64())])


def running_sums(table: pa.Table) -> Counter:
    """What `Running` emits, whose sum after n rows of a key does not depend on their order only in the end."""
    totals: dict[str, int] = defaultdict(int)
    for row in table.to_pylist():
        totals[row["user"]] += row["amount"]
    return Counter(totals)


class Balance(CoBatchFunction):
    """Adds what came by one input, takes off what came by the other."""

    def open(self, context):
        self.total = context.state(SUM)

    def process_batch1(self, batch, context):
        self.total.add_batch(context.key_columns(batch), batch["amount"])

    def process_batch2(self, batch, context):
        self.total.add_batch(context.key_columns(batch), pa.array([-1] * batch.num_rows, pa.int64()))


class Committed(Sink):
    """Keeps what it was given by its token."""

    kept: dict = {}  # noqa: RUF012 (shared by the copies of one process on purpose)
    "By name and then by store, as thousands of jobs are run in one process."

    def __init__(self, name: str) -> None:
        self.name = name

    def commit(self, rows, token):
        known = self.kept.setdefault(self.name, {}).setdefault(token.store_id, {})
        place = token.checkpoint_id, token.subtask
        if place in known:
            assert known[place] == rows.to_pylist(), "equal tokens are equal rows"
            return
        assert all(token.checkpoint_id >= id for id, _ in known), "in the order of checkpoints"
        known[place] = rows.to_pylist()

    def rows_of(self, store_id):
        """All rows that were committed for a store."""
        return [row for held in self.kept.get(self.name, {}).get(store_id, {}).values() for row in held]


class Prepared(PreparingSink):
    """Writes rows to a place outside while they come, and names what it wrote."""

    committable_schema = pa.schema([("name", pa.string())])
    written: dict = {}  # noqa: RUF012
    visible: dict = {}  # noqa: RUF012

    def writer(self, store_id, uid, subtask, attempt):
        return _PreparedWriter(f"{store_id}/{attempt}/{subtask}")

    def commit(self, committables):
        for name in committables.column(0).to_pylist():
            self.visible.setdefault(name.split("/")[0], {})[name] = self.written[name]

    def rows_of(self, store_id):
        """All rows that are visible for a store."""
        return [row for held in self.visible.get(store_id, {}).values() for row in held]


class _PreparedWriter(SinkWriter):
    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list = []

    def write(self, rows):
        self.rows += rows.to_pylist()

    def prepare(self, checkpoint_id):
        if not self.rows:
            return pa.RecordBatch.from_pylist([], schema=Prepared.committable_schema)
        name = f"{self.name}/{checkpoint_id}"
        Prepared.written[name], self.rows = self.rows, []
        return pa.record_batch([[name]], schema=Prepared.committable_schema)

    def abort(self):
        self.rows = []


def sums(parallelism: int, mode: str = "exactly-once") -> Job:
    """A running sum per key, into a table, a sink and a prepared sink."""
    job = Job("memory://unused", parallelism=parallelism, mode=mode)
    given = job.source(SlowTable(rows(), splits=3), uid="given")
    running = given.map_batches(lambda batch: batch).stateful(
        Running(), key=["user"], uid="running", output_schema=RUNNING
    )
    running.sink(OutputTable("changes"))
    running.sink(Committed("sums"), uid="committed")
    running.sink(Prepared(), uid="prepared")
    return job


def windows(parallelism: int) -> Job:
    """Sums of tumbling windows by event time, over two sources with watermarks."""
    job = Job("memory://unused", parallelism=parallelism)
    table = rows()
    rule = Watermarks("at", out_of_order_ms=40)
    first = job.source(SlowTable(table.slice(0, 150)), uid="first", watermarks=rule)
    second = job.source(SlowTable(table.slice(90)), uid="second", watermarks=rule)
    function = WindowFunction(TumblingEventTimeWindows(300), SUM, timestamp="at", value="amount")
    first.union(second).stateful(function, key=["user"], uid="windows").sink(OutputTable("fired"))
    return job


def balances(parallelism: int) -> Job:
    """Two inputs into one state, one of them spread evenly before."""
    job = Job("memory://unused", parallelism=parallelism)
    paid = job.source(SlowTable(rows(), splits=2), uid="paid")
    asked = job.source(SlowTable(rows(120).select(["user"]).rename_columns(["name"])), uid="asked")
    paid.rebalance().connect(asked).stateful(Balance(), key=(["user"], ["name"]), uid="balances")
    return job


def copies(parallelism: int) -> Job:
    """Rows of two tasks, a source and an exchange, into one table, one sink and one prepared sink."""
    job = Job("memory://unused", parallelism=parallelism)
    first = job.source(SlowTable(rows().slice(0, 120)), uid="first")
    second = job.source(SlowTable(rows().slice(120), splits=2), uid="second")
    both = first.union(second.rebalance())
    both.sink(OutputTable("copy"))
    both.sink(Committed("copies"), uid="committed")
    both.sink(Prepared(), uid="prepared")
    return job


LARGE = arrowstate.OutputTag("large", RUNNING)
LATE = arrowstate.OutputTag("late", pa.schema([("user", pa.string()), ("amount", pa.int64()), ("at", pa.int64())]))


def mixed_rows() -> pa.Table:
    """Rows some of which fit nothing: no key, no time, an amount that is refused."""
    table = rows(120)
    numbers = range(table.num_rows)
    changes = {
        "user": [None if n % 31 == 5 else user for n, user in zip(numbers, table["user"].to_pylist(), strict=True)],
        "amount": pa.array([-1 if n % 29 == 3 else n % 13 for n in numbers], pa.int64()),
        "at": pa.array([None if n % 37 == 9 else n * 10 - (n % 11 == 0) * 900 for n in numbers], pa.int64()),
    }
    return pa.table(changes)


class Refusing(Running):
    """Hands large amounts over to a side output, and raises on negative ones."""

    side_outputs = (LARGE,)

    def process_element(self, value, context, out):
        super().process_element(value, context, out)
        if value.amount > 10:
            context.output(LARGE, (value.user, value.amount))
        if value.amount < 0:
            raise ValueError("negative")


class RefusingBatches(arrowstate.BatchFunction):
    """Counts the rows of each key, and raises on a batch with a negative amount."""

    def open(self, context):
        self.count = context.state(arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count"))

    def process_batch(self, batch, context):
        self.count.add_batch(context.key_columns(batch), batch["amount"])
        if min(batch["amount"].to_pylist()) < 0:
            raise ValueError("negative")


def no_elevens(batch):
    """Wants no amount of 11."""
    if 11 in batch["amount"].to_pylist():
        raise KeyError("eleven")
    return batch


def everything_aside(parallelism: int) -> Job:
    """Side outputs, late rows, and rows set aside by a source, a map, a process function and a batch function."""
    job = Job("memory://unused", parallelism=parallelism)
    rule = Watermarks("at", out_of_order_ms=40)
    # Of one split, so that the same rows are late in each run.
    given = job.source(SlowTable(mixed_rows()), uid="given", watermarks=rule, on_error="dead_letter")
    mapped = given.map_batches(no_elevens, on_error="dead_letter", dead_letters="elevens")
    running = mapped.stateful(Refusing(), key=["user"], uid="running", output_schema=RUNNING, on_error="dead_letter")
    running.sink(OutputTable("changes"))
    running.side_output(LARGE).sink(OutputTable("large"))
    running.side_output(LARGE).sink(Committed("large"), uid="committed")
    mapped.rebalance().stateful(RefusingBatches(), key=["user"], uid="counts", on_error="dead_letter")
    function = WindowFunction(TumblingEventTimeWindows(300), SUM, timestamp="at", value="amount", late=LATE)
    windows = mapped.stateful(function, key=["user"], uid="windows", on_error="dead_letter")
    windows.sink(OutputTable("fired"))
    late = windows.side_output(LATE)
    late.sink(OutputTable("late"))
    late.stateful(Running(), key=["user"], uid="late_sums", output_schema=RUNNING).sink(Prepared(), uid="prepared")
    return job


def of_late_rows(late: Counter) -> dict:
    """What `everything_of` finds where it depends on which rows came too late, given these.

    That they are the same in each run is not said: until the subtasks without a split have said that they are idle, the
    windows have no watermark, and take what would be late after that.
    """
    left, fired, sums, prepared = late.copy(), Counter(), Counter(), Counter()
    for row in mixed_rows().to_pylist():
        if row["user"] is None or row["at"] is None or row["amount"] == 11:
            continue
        if left[repr(row)]:
            left[repr(row)] -= 1
            sums[row["user"]] += row["amount"]
            prepared[repr({"user": row["user"], "total": sums[row["user"]]})] += 1
        else:
            fired[row["user"], row["at"] // 300 * 300] += row["amount"]
    windows = [
        {"user": user, "window_start": start, "window_end": start + 300, "total": total}
        for (user, start), total in fired.items()
    ]
    totals = Counter(repr({"user": user, "total": total}) for user, total in sums.items())
    return {"fired": Counter(map(repr, windows)), "prepared": prepared, "late_sums.total": totals, "late": late - left}


ASIDE = (
    "changes",
    "large",
    "fired",
    "late",
    "elevens",
    "given_dead_letters",
    "running_dead_letters",
    "counts_dead_letters",
    "windows_dead_letters",
)


def everything_of(snapshot) -> dict:
    """All that a run of `everything_aside` came to, but for the checkpoint and the place that dead letters came by."""
    found = {}
    for table in ASIDE:
        rows = [row["rows"] for row in snapshot.operator_state(table, "rows").to_pylist()]
        for row in rows:
            if "batch_id" in row:
                del row["batch_id"]
                if "position" in row["key"]:
                    del row["key"]["position"], row["reason"]
                row["key"].pop("task", None)
        found[table] = Counter(map(repr, rows))
    store_id = snapshot.store_id
    found["committed"] = Counter(map(repr, Committed("large").rows_of(store_id)))
    found["prepared"] = Counter(map(repr, Prepared().rows_of(store_id)))
    for state in ("running.total", "counts.count", "windows.total", "late_sums.total"):
        found[state] = Counter(map(repr, snapshot.to_arrow(state).to_pylist()))
    return found


class SlowTable(TableSource):
    """A table that is read a few rows at a time."""

    def reader(self):
        return Few(super().reader())


class Few(Reader):
    """Reads at most so many rows at a time."""

    def __init__(self, reader, most=11) -> None:
        self._reader = reader
        self._most = most

    def add(self, splits):
        self._reader.add(splits)

    def read(self, max_rows):
        return self._reader.read(min(max_rows, self._most))


def check_sums(run):
    expected = running_sums(rows())
    state = {row["user"]: row["total"] for row in run.snapshot.to_arrow("running.total").to_pylist()}
    assert state == dict(expected), run.seed
    store_id = run.snapshot.store_id
    table = [row["rows"] for row in run.snapshot.operator_state("changes", "rows").to_pylist()]
    outside = [Committed("sums").rows_of(store_id), Prepared().rows_of(store_id)]
    for emitted in (table, *outside):
        assert len(emitted) == ROWS, (run.seed, len(emitted))
        highest = defaultdict(int)
        for row in emitted:
            highest[row["user"]] = max(highest[row["user"]], row["total"])
        assert Counter(highest) == expected, run.seed
    # Per key they are the sums of one order of its rows, whichever that was, in their order.
    by_user = defaultdict(list)
    for row in table:
        by_user[row["user"]].append(row["total"])
    assert all(sums == sorted(sums) for sums in by_user.values()), run.seed
