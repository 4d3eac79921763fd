"""A job goes on from an edited checkpoint as if its state had always been so: plain jobs, rollbacks and savepoints."""

import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
from arrowstate.errors import EditConflictError, FencedError
from arrowstate.log.commit import Commit
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction
from long_form import short_or_long
from stores import TOTAL, commit

KEY = pa.schema({"user": pa.string()})
WIDTH, DELAY, STEP = 100, 60, 20
STATES = {
    "ledger.total": {"total": pa.int64()},
    "ledger.last": {"item": pa.string(), "price": pa.int64()},
    "ledger.kinds": {"kinds_key": pa.string(), "kinds": pa.int64()},
    "ledger.fired": {"fired": pa.int64()},
    "ledger.timers_event_time": {"timestamp": pa.int64()},
    "windows.sales": {"window_start": pa.int64(), "window_end": pa.int64(), "sales": pa.int64()},
}


class Ledger(arrowstate.KeyedProcessFunction):
    """Keeps something in each kind of state; a timer of each row fires some time after it."""

    def open(self, context: Any) -> None:
        self.total = context.state(TOTAL)
        last = pa.struct([("item", pa.string()), ("price", pa.int64())])
        self.last = context.state(arrowstate.ValueStateDescriptor("last", last))
        self.kinds = context.state(arrowstate.MapStateDescriptor("kinds", pa.string(), pa.int64()))
        self.fired = context.state(arrowstate.ListStateDescriptor("fired", pa.int64()))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.total.add(value.price)
        self.last.update((value.item, value.price))
        self.kinds.put(value.item, (self.kinds.get(value.item) or 0) + 1)
        context.timers.register_event_time_timer(value.at + DELAY)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        self.fired.add(timestamp)


@dataclass
class Model:
    """The same in dicts."""

    total: dict[str, int] = field(default_factory=dict)
    last: dict[str, tuple[str, int]] = field(default_factory=dict)
    kinds: dict[tuple[str, str], int] = field(default_factory=dict)
    fired: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    timers: set[tuple[int, str]] = field(default_factory=set)
    sales: dict[tuple[str, int], int] = field(default_factory=dict)
    watermark: int = -1
    offset: int = 0

    def process(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            user, item, price, at = row["user"], row["item"], row["price"], row["at"]
            self.total[user] = self.total.get(user, 0) + price
            self.last[user] = item, price
            self.kinds[user, item] = self.kinds.get((user, item), 0) + 1
            self.timers.add((at + DELAY, user))
            start = at // WIDTH * WIDTH
            self.sales[user, start] = self.sales.get((user, start), 0) + price

    def advance(self, watermark: int) -> None:
        if watermark < self.watermark:
            # Rows are read again, and event time stays where it is.
            return
        if watermark > self.watermark:
            self.sales = {place: sum for place, sum in self.sales.items() if place[1] + WIDTH - 1 > watermark}
        self.watermark = watermark
        for timestamp, user in sorted(timer for timer in self.timers if timer[0] <= watermark):
            self.fired[user].append(timestamp)
            self.timers.discard((timestamp, user))

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """The rows of each state, sorted."""
        found = {
            "ledger.total": [(user, total) for user, total in self.total.items()],
            "ledger.last": [(user, *last) for user, last in self.last.items()],
            "ledger.kinds": [(user, kind, count) for (user, kind), count in self.kinds.items()],
            "ledger.fired": [(user, time) for user, times in self.fired.items() for time in times],
            "ledger.timers_event_time": [(user, time) for time, user in self.timers],
            "windows.sales": [(user, start, start + WIDTH, sum) for (user, start), sum in self.sales.items()],
        }
        return {name: in_order(name, rows) for name, rows in found.items()}


def in_order(name: str, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sort rows, those of a list by their key alone: their own order counts."""
    return sorted(rows, key=lambda row: row[:1]) if name == "ledger.fired" else sorted(rows)


def made(seed: int, batches: int = 8, users: int = 9) -> list[list[dict[str, Any]]]:
    """Batches of rows whose event time rises by a step with each."""
    chance = random.Random(seed)
    return [
        [
            {
                "user": f"u{chance.randrange(users)}",
                "item": chance.choice("abc"),
                "price": chance.randrange(1, 50),
                "at": number * STEP + chance.randrange(STEP),
            }
            for _ in range(12)
        ]
        for number in range(batches)
    ]


class PlainJob:
    """A job without a runtime: subtasks, a writer and an offset in the properties."""

    def __init__(self, store: arrowstate.StateStore, batches: list[list[dict[str, Any]]], parallelism: int) -> None:
        self.store, self.batches, self.parallelism = store, batches, parallelism
        self.writer = store.writer()
        uids = ("ledger", "windows")
        try:
            last = store.latest()
        except arrowstate.CheckpointNotFoundError:
            self.offset = 0
            ranges = [
                arrowstate.key_group_range(128, parallelism=parallelism, subtask=subtask)
                for subtask in range(parallelism)
            ]
            self.backends = {
                uid: [
                    arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128, key_groups=groups) for groups in ranges
                ]
                for uid in uids
            }
        else:
            self.offset = last.properties["offset"]
            self.backends = {
                uid: [last.restore(uid, parallelism=parallelism, subtask=subtask) for subtask in range(parallelism)]
                for uid in uids
            }
        sales = arrowstate.ReducingStateDescriptor("sales", pa.int64(), reduce="sum")
        windows = [
            WindowFunction(TumblingEventTimeWindows(WIDTH), sales, timestamp="at", value="price")
            for _ in range(parallelism)
        ]
        self.runners = [
            runner
            for pair in zip(
                [arrowstate.KeyedProcessRunner(item, Ledger(), timestamp="at") for item in self.backends["ledger"]],
                [
                    arrowstate.BatchRunner(item, function)
                    for item, function in zip(self.backends["windows"], windows, strict=True)
                ],
                strict=True,
            )
            for runner in pair
        ]

    def step(self) -> arrowstate.Snapshot:
        """Process a batch, let event time pass, and take a checkpoint."""
        rows = self.batches[self.offset]
        table = pa.Table.from_pylist(rows).combine_chunks()
        groups = arrowstate.key_groups(table["user"].combine_chunks(), 128).to_pylist()
        for subtask in range(self.parallelism):
            own = self.backends["ledger"][subtask].key_groups
            chosen = table.filter(pa.array([group in own for group in groups])).combine_chunks()
            for runner in self.runners[2 * subtask : 2 * subtask + 2]:
                for batch in chosen.to_batches():
                    runner.process(batch)
                runner.advance_watermark(self.offset * STEP)
        self.offset += 1
        return self.writer.checkpoint(self.backends, properties={"offset": self.offset})


def stored(snapshot: Any) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of each state, sorted."""
    found = {}
    for name, columns in STATES.items():
        table = snapshot.to_arrow(name).select(["user", *columns])
        found[name] = in_order(name, [tuple(row.values()) for row in table.to_pylist()])
    return found


def step(model: Model, batches: list[list[dict[str, Any]]]) -> None:
    model.process(batches[model.offset])
    model.advance(model.offset * STEP)
    model.offset += 1


def edit(edit: Any, model: Model, chance: random.Random) -> None:
    """Change something of each kind, in the checkpoint and in the model."""
    users = sorted(model.total)
    poor, gone, new = users[0], users[1], f"new{chance.random()}"
    factor = chance.randrange(2, 5)
    edit.update("ledger.total", set={"total": f"total * {factor}"}, where="total > 30")
    model.total = {user: total * factor if total > 30 else total for user, total in model.total.items()}
    edit.upsert("ledger.last", pa.table({"user": [poor, new], "item": ["z", "a"], "price": [7, 8]}))
    model.last |= {poor: ("z", 7), new: ("a", 8)}
    other = f"b{chance.random()}"
    edit.update("ledger.kinds", set={"kinds_key": "?"}, where="kinds_key = 'b'", params=[other])
    model.kinds = {(user, other if kind == "b" else kind): count for (user, kind), count in model.kinds.items()}
    edit.insert("ledger.fired", pa.table({"user": [new, new], "fired": [-1, -2]}))
    model.fired[new] += [-1, -2]
    edit.update("ledger.timers_event_time", set={"timestamp": "timestamp + 30"}, where="timestamp % 2 = 0")
    model.timers = {(time + 30 if time % 2 == 0 else time, user) for time, user in model.timers}
    edit.update("windows.sales", set={"sales": 0}, where=f"window_start >= {WIDTH} or sales < 20")
    model.sales = {
        (user, start): 0 if start >= WIDTH or sales < 20 else sales for (user, start), sales in model.sales.items()
    }
    # One that nobody has had a row of, and one that is due already.
    starts = [model.watermark // WIDTH * WIDTH + WIDTH, model.watermark // WIDTH * WIDTH - WIDTH]
    rows = pa.table({"user": [new, new], "window_start": starts, "window_end": [at + WIDTH for at in starts]})
    edit.insert("windows.sales", rows.append_column("sales", pa.array([5, 6])))
    model.sales |= {(new, start): sales for start, sales in zip(starts, (5, 6), strict=True)}
    edit.insert("ledger.timers_event_time", pa.table({"user": [new], "timestamp": [model.watermark - 10]}))
    model.timers.add((model.watermark - 10, new))
    for uid in ("ledger", "windows"):
        edit.delete_key(uid, [gone])
    for rows in (model.total, model.last, model.fired):
        rows.pop(gone, None)
    model.kinds = {place: count for place, count in model.kinds.items() if place[0] != gone}
    model.sales = {place: sales for place, sales in model.sales.items() if place[0] != gone}
    model.timers = {timer for timer in model.timers if timer[1] != gone}
    back = chance.randrange(3)
    edit.properties["offset"] -= back
    model.offset -= back


@pytest.mark.parametrize("seed", range(short_or_long(2, 60)))
def test_a_job_goes_on_from_an_edited_checkpoint_as_a_model_does(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = arrowstate.open_store(tmp_path / "store", create=True)
    batches, model = made(seed), Model()
    job = PlainJob(store, batches, parallelism=2)
    for _ in range(3):
        job.step()
        step(model, batches)
    assert stored(store.latest()) == model.rows()

    for parallelism in (2, 3):
        with store.edit(
            format=chance.choice(short_or_long(("arrow", "parquet"), ("arrow", "parquet", "lance")))
        ) as changes:
            edit(changes, model, chance)
            assert stored(changes.snapshot) == model.rows()
            changes.commit()
        job = PlainJob(store, batches, parallelism)
        while model.offset < len(batches) - (parallelism == 2) * 3:
            job.step()
            step(model, batches)
            assert stored(store.latest()) == model.rows()
    assert store.verify(deep=True).problems == []


@pytest.fixture
def job(tmp_path: Path) -> PlainJob:
    """A job after three checkpoints."""
    store = arrowstate.open_store(tmp_path / "store", create=True)
    return stepped(PlainJob(store, made(0), parallelism=2), 3)


def stepped(job: PlainJob, count: int) -> PlainJob:
    for _ in range(count):
        job.step()
    return job


def modelled(*steps: int | Callable[[Model], None]) -> Model:
    """A model after some batches, and what was done to it in between."""
    model = Model()
    for item in steps:
        if callable(item):
            item(model)
        for _ in range(0 if callable(item) else item):
            step(model, made(0))
    return model


def double(model: Model) -> None:
    model.total = {user: 2 * total for user, total in model.total.items()}


def doubled(store: arrowstate.StateStore, **options: Any) -> Any:
    """Double all totals of the newest checkpoint."""
    with store.edit() as changes:
        changes.update("ledger.total", set={"total": "total * 2"})
        return changes.commit(**options)


def test_an_edit_fences_a_job_that_runs_and_keeps_what_that_had_committed(job: PlainJob) -> None:
    store = job.store

    doubled(store)
    with pytest.raises(FencedError, match="stop it, only the newest writer"):
        job.step()
    assert stored(store.latest()) == modelled(3, double).rows()
    again = stepped(PlainJob(store, job.batches, parallelism=1), 2)

    assert stored(store.latest()) == modelled(3, double, 2).rows()
    assert again.offset == 5


def test_an_edit_of_what_a_job_has_gone_on_from_is_refused_and_the_job_goes_on(job: PlainJob) -> None:
    store = job.store

    with store.edit() as changes:
        changes.update("ledger.total", set={"total": "total * 2"})
        job.step()
        with pytest.raises(EditConflictError, match="3.*4"):
            changes.commit()
    job.step()

    assert stored(store.latest()) == modelled(5).rows()
    assert store.tags() == {}


def test_an_edit_whose_commit_fails_in_a_way_that_nobody_foresaw_keeps_what_it_may_have_committed(
    job: PlainJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = job.store
    append = Commit.append

    def interrupted(commit: Any, log: Any, document: Any, *arguments: Any, **options: Any) -> Any:
        committed = append(commit, log, document, *arguments, **options)
        if document.kind == "checkpoint":
            raise RuntimeError("after the entry was written")
        return committed

    with store.edit(format="parquet") as changes:
        new = pa.table({"user": [f"n{n}" for n in range(5000)], "total": range(5000)})
        changes.upsert("ledger.total", new)
        with monkeypatch.context() as patch:
            patch.setattr(Commit, "append", interrupted)
            with pytest.raises(RuntimeError, match="after the entry"):
                changes.commit()

    assert store.verify(deep=True).problems == []
    assert store.latest().to_arrow("ledger.total").num_rows > 5000


def test_a_job_goes_on_from_a_checkpoint_that_was_gone_back_to(job: PlainJob) -> None:
    store = job.store
    doubled(store)
    stepped(PlainJob(store, job.batches, parallelism=2), 2)

    store.rollback("before-edit-4")
    assert stored(store.latest()) == modelled(3).rows()
    stepped(PlainJob(store, job.batches, parallelism=3), 4)

    assert stored(store.latest()) == modelled(7).rows()
    assert store.verify(deep=True).problems == []


@pytest.mark.parametrize("how", ["restored", "imported"])
def test_a_job_goes_on_from_an_edited_savepoint(job: PlainJob, tmp_path: Path, how: str) -> None:
    store = job.store
    place = str(tmp_path / "elsewhere")

    savepoint = doubled(store, to=place)
    job.step()
    assert stored(store.latest()) == modelled(4).rows()
    if how == "imported":
        other = arrowstate.open_store(tmp_path / "other", create=True)
        other.import_savepoint(place)
    else:
        other = arrowstate.open_store(place)
        assert stored(savepoint) == stored(other.latest())
    stepped(PlainJob(other, job.batches, parallelism=2), 2)

    assert stored(other.latest()) == modelled(3, double, 2).rows()
    assert other.verify(deep=True).problems == []


def test_the_log_tells_who_edited_what_and_why(job: PlainJob) -> None:
    store = job.store

    with store.edit() as changes:
        changes.update("ledger.total", set={"total": 5}, where="\"user\" = 'u1'")
        changes.commit(comment="ticket 4711")
    store.rollback("before-edit-4", comment="too early")
    found = store.sql("select checkpoint_id, fence from arrowstate.checkpoints order by checkpoint_id").fetchall()

    fences = {checkpoint_id: None if fence is None else json.loads(fence) for checkpoint_id, fence in found}
    statement = "update ledger.total set total = 5 where \"user\" = 'u1'"
    assert fences == {
        1: None,
        2: None,
        3: None,
        4: {"edited_from": 3, "statements": [{"text": statement, "rows": 1}], "comment": "ticket 4711"},
        5: {"rolled_back_to": 3, "comment": "too early"},
    }
    query = "select checkpoint_id from arrowstate.checkpoints where fence like '%4711%'"
    assert store.sql(query).fetchall() == [(4,)]


_EDITS_WITHOUT_THE_CLASS = """
import sys

import arrowstate

with arrowstate.open_store(sys.argv[1]).edit() as edit:
    edit.update("sensors.highest", set={"highest": 70}, where="sensor = 'a'")
    edit.update("sensors.spread", set={"low": "low - 1", "high": 90}, where="sensor = 'a'")
    edit.upsert("sensors.spread", "select 'c' as sensor, 5 as low, 6 as high")
    edit.execute("update sensors.highest set highest = -1 where sensor = 'b'; delete from sensors.spread where low = 3")
    edit.commit()
"""


class Spread:
    """How far apart the lowest and the highest of what came are."""

    name = "spread"
    accumulator_type = pa.struct([("low", pa.int64()), ("high", pa.int64())])
    result_type = pa.int64()

    def create(self, count: int) -> Any:
        return pa.array([{}] * count, self.accumulator_type)

    def add(self, accumulators: Any, groups: Any, values: Any) -> Any:
        added = pa.table({"group": groups, "value": values}).group_by("group", use_threads=False)
        added = added.aggregate([("value", "min"), ("value", "max")]).sort_by("group")
        ends = [added["value_min"].combine_chunks(), added["value_max"].combine_chunks()]
        return self.merge(accumulators, pa.StructArray.from_arrays(ends, fields=list(self.accumulator_type)))

    def merge(self, left: Any, right: Any) -> Any:
        (low, high), (other_low, other_high) = left.flatten(), right.flatten()
        columns = [pc.min_element_wise(low, other_low), pc.max_element_wise(high, other_high)]
        return pa.StructArray.from_arrays(columns, fields=list(self.accumulator_type))

    def result(self, accumulators: Any) -> Any:
        low, high = accumulators.flatten()
        return pc.subtract(high, low)


def highest(left: Any, right: Any) -> Any:
    return max(left, right)


def test_state_of_functions_of_ones_own_is_edited_where_nobody_has_them(tmp_path: Path) -> None:
    descriptors = (
        arrowstate.ReducingStateDescriptor("highest", pa.int64(), reduce=highest),
        arrowstate.AggregatingStateDescriptor("spread", pa.int64(), aggregate=Spread()),
    )
    backend = arrowstate.KeyedStateBackend(key=pa.schema({"sensor": pa.string()}), max_parallelism=128)
    states = [backend.state(descriptor) for descriptor in descriptors]
    for state in states:
        state.add_batch(["a", "b", "a"], [10, 3, 30])
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"sensors": [backend]})

    subprocess.run([sys.executable, "-c", _EDITS_WITHOUT_THE_CLASS, str(tmp_path / "store")], check=True)
    backend = store.latest().restore("sensors")
    states = [backend.state(descriptor) for descriptor in descriptors]
    for state in states:
        state.add_batch(["a", "c"], [50, 100])

    assert [state.get_batch(["a", "b", "c"]).to_pylist() for state in states] == [[70, -1, 100], [81, None, 95]]
