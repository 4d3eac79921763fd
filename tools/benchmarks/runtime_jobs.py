"""Jobs of the runtime that `tools/bench runtime` measures: their rows, their functions, and how they are timed."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import arrowstate
from arrowstate.runtime import (
    Batch,
    EndOfSplit,
    Job,
    Reader,
    Restart,
    RunningJob,
    Sink,
    Source,
    Split,
    Token,
    Watermarks,
)
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction

__all__ = ["BATCH_ROWS", "Latency", "Recovery", "Sums", "Totals", "TotalsByRecord", "windows"]

BATCH_ROWS = 65_536
_MADE = 32
_ROWS_PER_MS = 100
_OUTPUT = pa.schema([("key", pa.int64()), ("total", pa.int64()), ("made_us", pa.int64())])
_TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")


class Totals(arrowstate.BatchFunction):
    """The sum of each key, as a function of batches."""

    def open(self, context: Any) -> None:
        """Take the state."""
        self.total = context.state(_TOTAL)

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
        """Add a batch."""
        self.total.add_batch(context.group_keys(batch), batch["amount"])


class TotalsByRecord(arrowstate.KeyedProcessFunction):
    """The same as a function of records."""

    def open(self, context: Any) -> None:
        """Take the state."""
        self.total = context.state(_TOTAL)

    def process_element(self, value: Any, context: Any, out: Any) -> None:  # noqa: ARG002
        """Add one."""
        self.total.add(value.amount)


class _EmittedTotals(Totals):
    """The same; emits the sums that changed, with the time at which the first row of the batch was made."""

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
        """Add a batch."""
        keys = context.group_keys(batch)
        self.total.add_batch(keys, batch["amount"])
        made = pa.repeat(pc.min(batch["made_us"]), len(keys.columns[0]))
        return pa.record_batch([*keys.columns, self.total.read_keys(keys), made], schema=_OUTPUT)


def windows() -> WindowFunction:
    """Return the function that counts the rows of each key in windows of 10 s."""
    count = arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count")
    return WindowFunction(TumblingEventTimeWindows(10_000), count, timestamp="at", value="amount")


class Rows(Source):
    """Rows from batches that are made once in each slot, before the job begins; the last part waits for a file.

    Parameters
    ----------
    keys
        How many there are, in no order.
    rows
        How many rows each split has; None for no end.
    splits
        One for each slot.
    go
        The file that the rows after the first `before` of a split wait for.
    column
        What they have besides: nothing, `at`, their event time, or `made_us`, when they were read.
    a_second
        How many rows a second all splits have; None for all that are taken.
    in_order
        Have the first `keys` rows of all splits each key once.
    """

    position_type = pa.int64()

    def __init__(
        self,
        keys: int,
        rows: int | None,
        splits: int,
        go: Path,
        *,
        before: int = 0,
        column: str | None = None,
        a_second: float | None = None,
        in_order: bool = False,
    ) -> None:
        self.keys, self.rows, self.splits, self.go, self.before = keys, rows, splits, go, before
        self.column, self.a_second, self.in_order = column, a_second, in_order
        self.schema = pa.schema([(name, pa.int64()) for name in ("key", "amount", *([column] if column else []))])

    def discover(self, known: Collection[str]) -> Sequence[Split]:
        """Return the splits, by their numbers."""
        return [Split(str(number)) for number in range(self.splits) if str(number) not in known]

    def reader(self) -> Reader:
        """Return a reader, which makes its batches."""
        return _Reader(self)


class _Reader(Reader):
    def __init__(self, source: Rows) -> None:
        self._source = source
        self._at: dict[str, int] = {}
        self._began: float | None = None
        self._given = 0
        chance = np.random.default_rng(os.getpid())
        self._batches = [
            pa.record_batch(
                {
                    "key": chance.integers(0, source.keys, BATCH_ROWS),
                    "amount": chance.integers(0, 100, BATCH_ROWS),
                }
            )
            for _ in range(_MADE)
        ]
        # In order but for a second.
        self._times = pa.array(np.arange(BATCH_ROWS) // _ROWS_PER_MS - chance.integers(0, 1000, BATCH_ROWS))
        self._may_go = not source.before

    def add(self, splits: Sequence[Split]) -> None:
        """Begin them."""
        self._at |= {split.id: split.position or 0 for split in splits}

    def read(self, max_rows: int) -> Batch | EndOfSplit | None:
        """Return a batch of the split that is behind the others."""
        source = self._source
        id, row = min(self._at.items(), key=lambda item: item[1])
        if row == source.rows:
            del self._at[id]
            return EndOfSplit(id)
        count = min(max_rows, BATCH_ROWS - row % BATCH_ROWS)
        if source.rows is not None:
            count = min(count, source.rows - row)
        if row < source.before:
            count = min(count, source.before - row)
        elif not self._may_go:
            self._may_go = source.go.exists()
            if not self._may_go:
                return None
        if source.a_second is not None and row >= source.before:
            count = min(count, self._due(source.a_second / source.splits))
            if not count:
                return None
            self._given += count
        self._at[id] = row + count
        return Batch(self._rows(id, row, count), id, row + count)

    def _due(self, a_second: float) -> int:
        now = time.perf_counter()
        self._began = now if self._began is None else self._began
        return int((now - self._began) * a_second) - self._given

    def _rows(self, id: str, row: int, count: int) -> pa.RecordBatch:
        source = self._source
        rows = self._batches[row // BATCH_ROWS % _MADE].slice(row % BATCH_ROWS, count)
        if source.in_order and row < source.before:
            first = int(id) * source.before + row
            rows = rows.set_column(0, "key", pa.array(np.arange(first, first + count)))
        if source.column == "at":
            base = (row - row % BATCH_ROWS) // _ROWS_PER_MS
            rows = rows.append_column("at", pc.add(self._times.slice(row % BATCH_ROWS, count), base))
        elif source.column == "made_us":
            rows = rows.append_column("made_us", pa.repeat(pa.scalar(_now_us(), pa.int64()), count))
        return rows


class _Measured:
    """A job whose rows wait for a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _place(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    @staticmethod
    def _taken(running: RunningJob, task: str, rows: int) -> None:
        """Wait until a task has taken so many rows."""
        while sum(of.rows for of in running.status().tasks if of.task == task) < rows:
            failures = running.status().failures
            assert not failures, failures
            time.sleep(0.02)


class Sums(_Measured):
    """A job that sums by key, or counts in windows; the first quarter of its rows is not timed."""

    def __init__(
        self,
        folder: Path,
        keys: int,
        rows: int,
        slots: int,
        function: Any,
        *,
        interval_ms: int | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(folder)
        self._keys, self._slots, self._function = keys, slots, function
        self._interval_ms, self._column = interval_ms, column
        # A quarter of it is a number of whole batches.
        self._of_split = max(rows // slots // (4 * BATCH_ROWS), 1) * 4 * BATCH_ROWS
        self._running: RunningJob | None = None

    @property
    def timed_rows(self) -> int:
        """How many rows are timed."""
        return self._of_split * self._slots // 4 * 3

    def prepare(self) -> None:
        """Start the job, and let it have the first quarter."""
        place = self._place()
        self._go = place / "go"
        before = self._of_split // 4
        source = Rows(self._keys, self._of_split, self._slots, self._go, before=before, column=self._column)
        options = arrowstate.CheckpointOptions(interval_ms=self._interval_ms)
        job = Job(place / "store", parallelism=self._slots, max_parallelism=128, options=options)
        by_time = Watermarks("at", out_of_order_ms=1_000) if self._column == "at" else None
        job.source(source, uid="rows", watermarks=by_time).stateful(self._function, key=["key"], uid="totals")
        self._running = job.start()
        self._taken(self._running, "totals", before * self._slots)

    def run(self) -> None:
        """Let it have the rest, and wait for its end."""
        assert self._running is not None
        self._go.touch()
        snapshot = self._running.wait()
        self._running.close()
        if self._column is None:
            (totals,) = [operator for operator in snapshot.entry.operators if operator.uid == "totals"]
            assert 0 < totals.live_rows("total") <= self._keys


class _Committed(Sink):
    """Keeps when rows were committed that were made at some time; it is used in the process of the job."""

    def __init__(self, seen: list[tuple[float, pa.Table]]) -> None:
        self._seen = seen

    def __reduce__(self) -> Any:
        # The slots only describe it: what they have of it sees nothing.
        return _Committed, ([],)

    def commit(self, rows: pa.Table, token: Token) -> None:  # noqa: ARG002
        """Take note of them."""
        self._seen.append((_now_us(), rows.select(["made_us"])))


class Latency(_Measured):
    """A job whose sums are committed at an interval: how long a row takes from where it is read to that."""

    def __init__(self, folder: Path, keys: int, interval_ms: int) -> None:
        super().__init__(folder)
        self._keys = keys
        self._interval_ms = interval_ms

    def highest_rate(self, seconds: float) -> float:
        """Return how many rows a second it takes."""
        (first, then), _ = self._run(None, seconds)
        return (then[1] - first[1]) / (then[0] - first[0])

    def milliseconds(self, a_second: float, seconds: float) -> Any:
        """Return how long rows took that came at a rate, in an array."""
        _, seen = self._run(a_second, seconds)
        parts = [(committed - rows["made_us"].to_numpy()) / 1000 for committed, rows in seen]
        return np.concatenate(parts)

    def _run(self, a_second: float | None, seconds: float) -> tuple[list[tuple[float, int]], list[Any]]:
        place = self._place()
        (place / "go").touch()
        seen: list[tuple[float, pa.Table]] = []
        source = Rows(self._keys, None, 1, place / "go", before=4 * BATCH_ROWS, column="made_us", a_second=a_second)
        options = arrowstate.CheckpointOptions(interval_ms=self._interval_ms)
        job = Job(place / "store", max_parallelism=128, options=options)
        totals = job.source(source, uid="rows").stateful(
            _EmittedTotals(), key=["key"], uid="totals", output_schema=_OUTPUT
        )
        totals.sink(_Committed(seen), uid="committed")
        with job.start() as running:
            # What is committed up to the second checkpoint has seen its code loaded.
            self._taken(running, "totals", 4 * BATCH_ROWS)
            while len(seen) < 2:
                time.sleep(0.01)
            del seen[:]
            marks = [self._mark(running)]
            time.sleep(seconds)
            marks.append(self._mark(running))
        return marks, list(seen)

    @staticmethod
    def _mark(running: RunningJob) -> tuple[float, int]:
        return time.perf_counter(), sum(of.rows for of in running.status().tasks if of.task == "totals")


class Recovery(_Measured):
    """A job with much state whose slot is killed: how long it is until rows that are read after that are committed."""

    def __init__(self, folder: Path, keys: int, slots: int, interval_ms: int) -> None:
        super().__init__(folder)
        self._keys, self._slots, self._interval_ms = keys, slots, interval_ms

    def milliseconds(self, kills: int) -> list[float]:
        """Kill a slot so often, and return how long it took each time."""
        place = self._place()
        (place / "go").touch()
        seen: list[tuple[float, pa.Table]] = []
        source = Rows(
            self._keys, None, self._slots, place / "go",
            before=-(-self._keys // self._slots), column="made_us", a_second=200_000, in_order=True,
        )  # fmt: skip
        options = arrowstate.CheckpointOptions(interval_ms=self._interval_ms)
        restart = Restart.fixed(delay_ms=0)
        job = Job(place / "store", parallelism=self._slots, max_parallelism=128, options=options, restart=restart)
        totals = job.source(source, uid="rows").stateful(
            _EmittedTotals(), key=["key"], uid="totals", output_schema=_OUTPUT
        )
        totals.sink(_Committed(seen), uid="committed")
        took = []
        with job.start() as running:
            self._taken(running, "totals", self._keys + 100_000)
            for _ in range(kills):
                # A process that is to take its place is ready by then.
                time.sleep(10)
                pid = running.driver._slots._processes[0].popen.pid  # noqa: SLF001 (no user is told)
                killed_us = _now_us()
                os.kill(pid, signal.SIGKILL)
                took.append(self._first_after(seen, killed_us))
        return took

    @staticmethod
    def _first_after(seen: list[tuple[float, pa.Table]], killed_us: int) -> float:
        while True:
            for committed, rows in seen:
                if committed > killed_us and pc.max(rows["made_us"]).as_py() > killed_us:
                    return (committed - killed_us) / 1000
            time.sleep(0.005)


def _now_us() -> int:
    return time.time_ns() // 1000
