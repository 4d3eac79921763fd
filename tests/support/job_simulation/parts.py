"""What the jobs of the simulation are made of: sources, functions, and sinks that remember what they were given.

Every row is (id, key, at): the id says of which source, split and position it is, and is the provenance by which a run
is judged. A function adds the weight of each row to a sum of its key, so that the sum says which rows are in the state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.runtime import (
    Batch,
    CoBatchFunction,
    DirectSink,
    EndOfSplit,
    MapFunction,
    PreparingSink,
    Reader,
    Sink,
    SinkWriter,
    Source,
    Split,
)

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("at", pa.int64())])
SUM = arrowstate.ReducingStateDescriptor("sum", pa.int64(), reduce="sum")
SEEN = arrowstate.OperatorListStateDescriptor("seen", pa.int64())
TABLE = arrowstate.BroadcastStateDescriptor("table", pa.int64(), pa.int64())
WIDTH_MS = 100
"""Of windows, and of what timers wait for."""
OF_SOURCE, OF_SPLIT = 100_000, 1_000


class Row(NamedTuple):
    """One row."""

    id: int
    key: int
    at: int


class Violation(AssertionError):
    """Something that must not be."""


def weights(ids: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a number for each id, so that equal sums are of the same rows."""
    return np.asarray(ids, np.int64) * 2_654_435_761 % 2_147_483_647 + (1 << 36)


def moved(ids: Any, keys: Any, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the keys under which rows go on after a function."""
    return (np.asarray(keys, np.int64) * 3 + np.asarray(ids, np.int64)) % count


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    """Return rows in columns."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.record_batch([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)


@dataclass
class Splits(Source):
    """Rows of some splits, which are read in turns or one after another, a few at a time, and now and then none."""

    rows: dict[str, list[Row]]
    pauses: int
    "After so many reads one gives nothing; 0 for never."
    is_bounded: bool = True
    "Whether all splits are there from the beginning; else one more is found each time."
    is_sequential: bool = False
    "Whether the rows are in the order of the splits, as those of files are."

    schema = SCHEMA
    discovery_ms = 15

    def discover(self, known):
        shown = list(self.rows) if self.is_bounded else list(self.rows)[: len(known) + 1]
        return [Split(name) for name in shown if name not in known]

    def reader(self):
        return _SplitsReader(self)


class _SplitsReader(Reader):
    def __init__(self, source: Splits) -> None:
        self._source = source
        self._positions: dict[str, int] = {}
        self._reads = 0
        self._paused: set[str] = set()

    def add(self, splits):
        self._positions.update({split.id: split.position or 0 for split in splits})

    def pause(self, splits):
        self._paused = set(splits)

    def read(self, max_rows):
        self._reads += 1
        if self._source.pauses and self._reads % self._source.pauses == 0:
            return None
        for name, position in self._positions.items():
            if name in self._paused:
                continue
            rows = self._source.rows[name][position : position + min(max_rows, 1 + self._reads % 4)]
            if not rows:
                del self._positions[name]
                return EndOfSplit(name)
            if not self._source.is_sequential:
                # It is the last to be read again.
                del self._positions[name]
            self._positions[name] = position + len(rows)
            return Batch(batch_of(rows), name, position + len(rows))
        return None


class Keep(arrowstate.BatchFunction):
    """Has the weights of its rows, and gives them on under other keys."""

    def __init__(self, keys: int, *, ordered: bool, table: bool = False) -> None:
        self.keys = keys
        self.ordered = ordered
        self.table = table

    def open(self, context):
        self.sum = context.state(SUM)
        self.last: dict[tuple[int, int], int] = {}
        self.told: list[tuple[str, int]] = []

    def process_batch(self, batch, context):
        return self.kept(batch, context, 1)

    def kept(self, batch, context, times):
        WORLD.outside.may_exit()
        ids = batch["id"].to_numpy()
        self.sum.add_batch(context.key_columns(batch), pa.array(weights(ids) * times))
        if self.ordered:
            self.check_order(ids.tolist(), batch["key"].to_pylist())
        keys = pa.array(moved(ids, batch["key"].to_numpy(), self.keys))
        return pa.record_batch([batch["id"], keys, batch["at"]], schema=SCHEMA)

    def close(self):
        if WORLD.outside.bad_closes:
            raise ConnectionError("it was gone already, as the simulation has it")

    def on_checkpoint_complete(self, checkpoint_id):
        WORLD.outside.check_told(self.told, "complete", checkpoint_id)

    def on_checkpoint_aborted(self, checkpoint_id):
        WORLD.outside.check_told(self.told, "aborted", checkpoint_id)

    def check_order(self, ids, keys):
        for id, key in zip(ids, keys, strict=True):
            place = id // OF_SPLIT, key
            if self.last.get(place, -1) >= id:
                raise Violation(f"row {id} of key {key} came after row {self.last[place]}")
            self.last[place] = id


class Both(CoBatchFunction):
    """Has the weights of the rows of two streams, those of the second three times."""

    def __init__(self, keys: int) -> None:
        self.keep = Keep(keys, ordered=False)

    def open(self, context):
        self.keep.open(context)

    def process_batch1(self, batch, context):
        return self.keep.kept(batch, context, 1)

    def process_batch2(self, batch, context):
        return self.keep.kept(batch, context, 3)


class Once(arrowstate.BatchFunction):
    """Gives each row on when it comes first; its key is the id."""

    def open(self, context):
        self.sum = context.state(SUM)

    def process_batch(self, batch, context):
        ids, first = np.unique(batch["id"].to_numpy(), return_index=True)
        keys = pa.array(ids)
        fresh = self.sum.get_batch(keys).is_null().to_numpy(zero_copy_only=False)
        if not fresh.any():
            return None
        self.sum.add_batch(pa.array(ids[fresh]), pa.array([1] * int(fresh.sum()), pa.int64()))
        return batch.take(pa.array(np.sort(first[fresh])))


class Told(MapFunction):
    """Has the ids of its rows, and publishes those of a checkpoint when it is told that this is committed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, context):
        self.seen = context.operator_state(SEEN)
        self.ids = self.seen.get()
        self.new: list[int] = []
        self.unpublished: dict[int, list[int]] = {}
        self.told: list[tuple[str, int]] = []

    def process_batch(self, batch):
        ids = batch["id"].to_pylist()
        self.ids += ids
        self.new += ids
        return batch

    def snapshot_state(self, checkpoint_id, context):
        self.seen.update(self.ids)
        self.unpublished[checkpoint_id], self.new = self.new, []

    def on_checkpoint_complete(self, checkpoint_id):
        WORLD.outside.check_told(self.told, "complete", checkpoint_id)
        published = WORLD.outside.published.setdefault(self.name, [])
        for number in [number for number in self.unpublished if number <= checkpoint_id]:
            published.append((checkpoint_id, self.unpublished.pop(number)))

    def on_checkpoint_aborted(self, checkpoint_id):
        WORLD.outside.check_told(self.told, "aborted", checkpoint_id)


class Timed(arrowstate.KeyedProcessFunction):
    """Gives out each key and span of time once, when the time has passed."""

    def open(self, context):
        self.sum = context.state(SUM)

    def process_element(self, value, context, out):
        self.sum.add(int(weights(value.id)))
        context.timers.register_event_time_timer(value.at // WIDTH_MS * WIDTH_MS + WIDTH_MS)

    def on_timer(self, timestamp, context, out):
        out.collect((-1, context.current_key, timestamp))


class Outside:
    """What is outside of a run: what sinks were given, by sink and token, and what may be told to it."""

    def __init__(self) -> None:
        self.committed: set[int] = set()
        "The checkpoints that are in the log."
        self.sunk: dict[str, dict[tuple[int, int], list[Row]]] = {}
        self.prepared: dict[str, tuple[int, list[Row]]] = {}
        self.visible: dict[str, dict[str, tuple[int, list[Row]]]] = {}
        self.direct: dict[str, list[Row]] = {}
        self.published: dict[str, list[tuple[int, list[int]]]] = {}
        "By function what it published, with the checkpoint that it was told of."
        self.has_zombies = False
        "Whether a job may be left behind that goes on, and gives up checkpoints whose ids another commits."
        self.refuse = 0
        "How many commits of sinks are to fail."
        self.exits = self.steps = 0
        "How many functions are to raise what is no `Exception`."
        self.bad_closes = False
        self.turns = 0
        "How many turns the parts of the job have had."

    def check_told(self, told: list[tuple[str, int]], what: str, checkpoint_id: int) -> None:
        """Look at what a function is told of a checkpoint; `told` is what it was told before in its attempt."""
        if (what == "complete") > (checkpoint_id in self.committed):
            raise Violation(f"a function is told that checkpoint {checkpoint_id} is complete, which is not committed")
        if what == "aborted" and checkpoint_id in self.committed and not self.has_zombies:
            raise Violation(f"a function is told that checkpoint {checkpoint_id} is aborted, which is committed")
        if any(checkpoint_id == other for _, other in told):
            raise Violation(f"a function is told that checkpoint {checkpoint_id} is {what}, after {told}")
        if what == "complete" and any(checkpoint_id < other for kind, other in told if kind == what):
            raise Violation(f"a function is told of checkpoint {checkpoint_id} after {told}")
        told.append((what, checkpoint_id))

    def may_exit(self) -> None:
        """End the interpreter, as a function does that knows of no other."""
        self.steps += 1
        if self.exits and self.steps % 7 == 0:
            self.exits -= 1
            raise SystemExit("enough, as the simulation has it")

    def may_fail(self, after: Callable[[], None]) -> None:
        """Take something, and fail now and then as a system outside does: before, or when it has taken it."""
        bad = self.refuse
        self.refuse = max(bad - 1, 0)
        if not bad % 2:
            after()
        if bad:
            raise ConnectionError("the system outside is away, as the simulation has it")


class _World:
    """Where sinks find what is outside: there is one run at a time, and sinks are copied."""

    outside = Outside()


WORLD = _World()


def rows_of(table: Any) -> list[Row]:
    """Return the rows of a table or a batch."""
    return [Row(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


class Tokens(Sink):
    """Keeps what it is given by its token."""

    def __init__(self, name: str) -> None:
        self.name = name

    def commit(self, rows, token):
        outside = WORLD.outside
        if token.checkpoint_id > max(outside.committed, default=0):
            raise Violation(
                f"sink {self.name} got rows of checkpoint {token.checkpoint_id}, and no such checkpoint is committed"
            )
        known = outside.sunk.setdefault(self.name, {})
        place = token.checkpoint_id, token.subtask
        given = rows_of(rows)
        if place in known:
            if known[place] != given:
                raise Violation(f"sink {self.name} got other rows for the token {token}")
            return
        if known and max(known)[0] > token.checkpoint_id:
            raise Violation(f"sink {self.name} got {token} after those of {max(known)}")
        outside.may_fail(after=lambda: known.update({place: given}))


class Prepared(PreparingSink):
    """Writes rows outside while they come, and shows them when their checkpoint is committed."""

    committable_schema = pa.schema([("name", pa.string())])

    def __init__(self, name: str) -> None:
        self.name = name

    def writer(self, store_id, uid, subtask, attempt):
        return _PreparedWriter(f"{attempt}/{subtask}")

    def commit(self, committables):
        outside = WORLD.outside
        shown = {name: outside.prepared[name] for name in committables.column(0).to_pylist()}
        for name, (checkpoint_id, _) in shown.items():
            if checkpoint_id > max(outside.committed, default=0):
                raise Violation(f"sink {self.name} is to show {name}, and no such checkpoint is committed")
        outside.may_fail(after=lambda: outside.visible.setdefault(self.name, {}).update(shown))


class _PreparedWriter(SinkWriter):
    number = 0

    def __init__(self, name: str) -> None:
        _PreparedWriter.number += 1
        self.name = f"{name}/{_PreparedWriter.number}"
        self.rows: list[Row] = []

    def write(self, rows):
        self.rows += rows_of(rows)

    def prepare(self, checkpoint_id):
        names = [f"{self.name}/{checkpoint_id}"] if self.rows else []
        for name in names:
            WORLD.outside.prepared[name], self.rows = (checkpoint_id, self.rows), []
        return pa.record_batch([pa.array(names, pa.string())], schema=Prepared.committable_schema)

    def abort(self):
        self.rows = []


class Direct(DirectSink):
    """Is given rows at once, again after a failure."""

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, rows, subtask):
        WORLD.outside.direct.setdefault(self.name, []).extend(rows_of(rows))
