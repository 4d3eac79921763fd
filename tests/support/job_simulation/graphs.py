"""Jobs that a seed makes, each beside a model that says what of its input must be where.

The model knows no time: given the rows that were read, it says which rows every function has in its state, and every
sink was given. It is right at each checkpoint, for a checkpoint is a cut through all of the job.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from arrowstate.runtime import Job, OutputTable, Watermarks
from arrowstate.runtime.streams import Stream
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction
from job_simulation.parts import (
    OF_SOURCE,
    OF_SPLIT,
    SCHEMA,
    SUM,
    TABLE,
    WIDTH_MS,
    Both,
    Direct,
    Keep,
    Once,
    Prepared,
    Row,
    Splits,
    Timed,
    Tokens,
    Told,
    Violation,
    moved,
    weights,
)

__all__ = ["Flow", "Read", "SimulatedJob", "draw_job"]


@dataclass(frozen=True, slots=True)
class Read:
    """What a checkpoint says: by source the rows that were read, and by operator and input those in flight to it."""

    rows: Mapping[str, list[Row]]
    in_flight: Mapping[tuple[str, int], Counter[Row]]

    def processed(self, rows: Counter[Row], uid: str, port: int = 0) -> Counter[Row]:
        """Return what an operator has processed of the rows that were sent to it."""
        in_flight = self.in_flight.get((uid, port), Counter())
        if too_many := in_flight - rows:
            raise Violation(f"in flight to {uid} are {dict(too_many)}, which were not sent, or are there twice")
        return rows - in_flight


Rows = Callable[[Read], Counter[Row]]
OUT_OF_ORDER_MS = 60


@dataclass(frozen=True, slots=True)
class Flow:
    """A stream, and the rows that it has given once some input is read."""

    stream: Stream
    rows: Rows
    sources: frozenset[str]
    is_timed: bool
    "Whether no row is late."
    is_ordered: bool
    "Whether rows of one split and key come in their order."


@dataclass(slots=True)
class SimulatedJob:
    """A job and its model."""

    job: Job
    sources: dict[str, Splits] = field(default_factory=dict)
    sums: dict[str, Callable[[Read], dict[Any, int]]] = field(default_factory=dict)
    "By operator what the sum of each key must be."
    tables: dict[str, Rows] = field(default_factory=dict)
    "By operator with a table beside the rows, the rows of that."
    outputs: dict[str, Rows] = field(default_factory=dict)
    sinks: dict[str, tuple[str, Rows]] = field(default_factory=dict)
    "By name, of which kind it is and its rows."
    timers: dict[str, Rows] = field(default_factory=dict)
    "By output table the rows whose key and span of time must be given out in the end."
    told: dict[str, Rows] = field(default_factory=dict)
    "By function that publishes what is committed, the rows that it has."
    copied: set[str] = field(default_factory=set)
    "Operators that get each row from every subtask: how many of those are in flight nobody knows."
    windows: dict[str, tuple[str, Rows]] = field(default_factory=dict)
    "By output table the operator and its rows."
    shape: list[str] = field(default_factory=list)
    "What it is made of."


def draw_job(chance: random.Random, told: random.Random, times: int = 1) -> SimulatedJob:
    """Return a job; `told` says which of its streams have a function that is told of checkpoints.

    Its input is `times` as large as else.
    """
    job = Job(
        "memory://unused",
        parallelism=chance.choice([1, 2, 2, 2, 3]),
        max_parallelism=chance.choice([3, 5, 128]),
    )
    made = _Made(chance, told, SimulatedJob(job), times)
    count = chance.choice([1, 1, 2, 2, 3])
    group = "all" if chance.random() < 0.15 else None
    flows = [made.told(made.source(number, group)) for number in range(count)]
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        flow = chance.choice(flows)
        flows.append(made.told(made.follow(flow, flows)))
    last = flows[-1]
    if last.is_timed and chance.random() < 0.3:
        made.timed(last)
    elif last.is_timed and chance.random() < 0.6:
        made.windowed(last)
    made.sink(last, chance.choice(["table", "tokens", "prepared"]))
    for flow in flows[:-1]:
        if chance.random() < 0.3:
            made.sink(flow, chance.choice(["table", "tokens", "prepared", "direct"]))
    return made.made


class _Made:
    """A job in the making."""

    def __init__(self, chance: random.Random, told: random.Random, made: SimulatedJob, times: int) -> None:
        self.chance = chance
        self.times = times
        self.is_told = told
        self.made = made
        self.number = 0
        # Of few keys some have most rows, or one has all.
        self.keys = chance.choice([1, 2, 5, 5])

    def name(self, kind: str) -> str:
        self.number += 1
        name = f"{kind}{self.number}"
        self.made.shape.append(name)
        return name

    def source(self, number: int, group: str | None) -> Flow:
        chance = self.chance
        uid = self.name("source")
        splits: dict[str, list[Row]] = {}
        in_order = chance.random() < 0.4
        passed_ms = 0
        for split in range(chance.choice([3, 5, 8] if in_order else [1, 1, 2, 4])):
            first = number * OF_SOURCE + split * OF_SPLIT
            step = chance.choice([5, 20])
            # Some end long before the others, some have no rows at all.
            count = self.times * chance.choice([0, 1, 2, 5] if in_order else [0, 1, 3, 6, 10])
            splits[str(split)] = [
                Row(
                    first + row,
                    int(self.keys * chance.random() ** 3),
                    passed_ms + row * step + chance.randrange(OUT_OF_ORDER_MS),
                )
                for row in range(count)
            ]
            passed_ms += count * step if in_order else 0
        is_bounded = group is not None or chance.random() < 0.8
        source = Splits(splits, chance.choice([0, 0, 0, 4]), is_bounded, is_sequential=in_order)
        # Rows of a split that is found later are late.
        is_timed = group is not None or (is_bounded and chance.random() < (0.9 if in_order else 0.6))
        rule = Watermarks("at", out_of_order_ms=OUT_OF_ORDER_MS, group=group, max_drift_ms=100 if group else None)
        self.made.sources[uid] = source
        stream = self.made.job.source(source, uid=uid, watermarks=rule if is_timed else None)
        return Flow(stream, lambda read: Counter(read.rows[uid]), frozenset([uid]), True, True)

    def follow(self, flow: Flow, flows: list[Flow]) -> Flow:
        """Return what follows a stream."""
        chance = self.chance
        others = [other for other in flows if other is not flow]
        kinds = ["keep", "keep", "keep", "once", "map", "rebalance", "one", "broadcast"]
        kinds += ["union", "union", "both", "both", "table"] if others else []
        kind = chance.choice(kinds)
        if kind == "keep":
            return self.keep(flow)
        if kind == "once":
            return self.once(flow)
        if kind == "both":
            return self.both(flow, chance.choice(others))
        if kind == "table":
            return self.keep(flow, table=chance.choice(others))
        return self.keep(self.spread(flow, kind, others))

    def spread(self, flow: Flow, kind: str, others: list[Flow]) -> Flow:
        """Return a stream whose rows get elsewhere."""
        self.made.shape.append(kind)
        rows, stream = flow.rows, flow.stream
        if kind == "map":
            kept = self.chance.randrange(2, 5)
            filtered = stream.map_batches(lambda batch: batch.filter(_kept(batch["id"].to_numpy(), kept)))
            some = lambda read: Counter({row: n for row, n in rows(read).items() if row.id % kept})  # noqa: E731
            return Flow(filtered, some, flow.sources, flow.is_timed, flow.is_ordered)
        if kind == "rebalance":
            return Flow(stream.rebalance(), rows, flow.sources, flow.is_timed, False)
        if kind == "one":
            return Flow(stream.to_one(), rows, flow.sources, flow.is_timed, flow.is_ordered)
        if kind == "broadcast":
            # In how many subtasks rows come depends on how many there are: what is twice is left out at once.
            return self.once(Flow(stream.broadcast(), rows, flow.sources, flow.is_timed, False), copied=True)
        other = self.chance.choice(others)
        ordered = flow.is_ordered and other.is_ordered and not flow.sources & other.sources
        both = lambda read: rows(read) + other.rows(read)  # noqa: E731
        timed = flow.is_timed and other.is_timed
        return Flow(stream.union(other.stream), both, flow.sources | other.sources, timed, ordered)

    def keep(self, flow: Flow, *, table: Flow | None = None) -> Flow:
        uid = self.name("keep" if table is None else "ruled")
        broadcast = None
        if table is not None:
            self.made.tables[uid] = table.rows
            broadcast = {TABLE: table.stream.map_batches(lambda batch: batch.select(["id", "at"]))}
        function = Keep(self.keys, ordered=flow.is_ordered)
        stream = flow.stream.stateful(function, key=["key"], uid=uid, output_schema=SCHEMA, broadcast=broadcast)
        rows = lambda read: read.processed(flow.rows(read), uid)  # noqa: E731
        self.made.sums[uid] = lambda read: _sums(rows(read))
        return Flow(stream, lambda read: _moved(rows(read), self.keys), flow.sources, flow.is_timed, False)

    def once(self, flow: Flow, *, copied: bool = False) -> Flow:
        uid = self.name("once")
        if copied:
            self.made.copied.add(uid)

        def given(read: Read) -> Counter[Row]:
            return flow.rows(read) if copied else read.processed(flow.rows(read), uid)

        stream = flow.stream.stateful(Once(), key=["id"], uid=uid, output_schema=SCHEMA)
        self.made.sums[uid] = lambda read: {row.id: 1 for row in given(read)}

        def rows(read: Read) -> Counter[Row]:
            # Of rows that differ in their key the first is taken, whichever that is: only one source of them is used.
            return Counter(set(given(read)))

        same = not self._may_differ(flow)
        if same:
            return Flow(stream, rows, flow.sources, flow.is_timed, False)
        plain = stream.map_batches(_without_key)
        return Flow(
            plain,
            lambda read: Counter({Row(row.id, 0, row.at) for row in given(read)}),
            flow.sources,
            flow.is_timed,
            False,
        )

    def _may_differ(self, flow: Flow) -> bool:
        """Whether rows of one id may have different keys."""
        whole = {
            uid: [row for rows in source.rows.values() for row in rows] for uid, source in self.made.sources.items()
        }
        rows = flow.rows(Read(whole, {}))
        return len({row.id for row in rows}) != len(rows)

    def both(self, flow: Flow, other: Flow) -> Flow:
        uid = self.name("both")
        connected = flow.stream.connect(other.stream)
        stream = connected.stateful(Both(self.keys), key=["key"], uid=uid, output_schema=SCHEMA)

        def sums(read: Read) -> dict[Any, int]:
            first, second = (_sums(rows) for rows in given(read))
            return {key: first.get(key, 0) + 3 * second.get(key, 0) for key in {*first, *second}}

        def given(read: Read) -> list[Counter[Row]]:
            return [read.processed(each.rows(read), uid, port) for port, each in enumerate((flow, other))]

        self.made.sums[uid] = sums
        rows = lambda read: _moved(sum(given(read), Counter()), self.keys)  # noqa: E731
        return Flow(stream, rows, flow.sources | other.sources, flow.is_timed and other.is_timed, False)

    def told(self, flow: Flow) -> Flow:
        """Return a stream, now and then with a function behind it that is told of checkpoints."""
        if self.is_told.random() < 0.7:
            return flow
        uid = self.name("told")
        self.made.told[uid] = flow.rows
        return replace(flow, stream=flow.stream.map_batches(Told(uid), uid=uid, schema=SCHEMA))

    def timed(self, flow: Flow) -> None:
        uid, table = self.name("timed"), self.name("fired")
        stream = flow.stream.stateful(Timed(), key=["key"], uid=uid, output_schema=SCHEMA, timestamp="at")
        stream.sink(OutputTable(table))
        rows = lambda read: read.processed(flow.rows(read), uid)  # noqa: E731
        self.made.sums[uid] = lambda read: _sums(rows(read))
        self.made.timers[table] = rows

    def windowed(self, flow: Flow) -> None:
        uid, table = self.name("windows"), self.name("ended")
        function = WindowFunction(TumblingEventTimeWindows(WIDTH_MS), SUM, timestamp="at", value="weight")
        weighed = flow.stream.map_batches(_weighed)
        weighed.stateful(function, key=["key"], uid=uid).sink(OutputTable(table))
        self.made.windows[table] = uid, lambda read: read.processed(flow.rows(read), uid)

    def sink(self, flow: Flow, kind: str) -> None:
        name = self.name(kind)
        if kind == "table":
            flow.stream.sink(OutputTable(name))
            self.made.outputs[name] = flow.rows
            return
        sink = {"tokens": Tokens, "prepared": Prepared, "direct": Direct}[kind](name)
        flow.stream.sink(sink, uid=name)
        self.made.sinks[name] = kind, flow.rows


def _kept(ids: Any, kept: int) -> Any:
    return ids % kept != 0


def _without_key(batch: Any) -> Any:
    return batch.set_column(1, "key", np.zeros(batch.num_rows, np.int64))


def _weighed(batch: Any) -> Any:
    return batch.append_column("weight", weights(batch["id"].to_numpy()))


def _sums(rows: Counter[Row]) -> dict[Any, int]:
    sums: dict[Any, int] = {}
    for row, count in rows.items():
        sums[row.key] = sums.get(row.key, 0) + int(weights(row.id)) * count
    return sums


def _moved(rows: Counter[Row], keys: int) -> Counter[Row]:
    made: Counter[Row] = Counter()
    for row, count in rows.items():
        made[Row(row.id, int(moved(row.id, row.key, keys)), row.at)] += count
    return made
