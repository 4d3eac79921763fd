"""A job of the runtime goes on from an edited checkpoint: values, windows, timers, how far its sources were read."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import FencedError, InvalidInputError, JobFailedError
from arrowstate.runtime import Job, OutputTable, Restart, Watermarks
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction
from runtime_jobs import SUM, Committed, SlowTable

WIDTH, DELAY = 100, 50
EMITTED = pa.schema({"user": pa.string(), "timestamp": pa.int64(), "total": pa.int64()})
SALES = arrowstate.ReducingStateDescriptor("sales", pa.int64(), reduce="sum")
SOURCES = {
    name: pa.table(
        {
            "user": [f"u{number * step % 7}" for number in range(60)],
            "amount": pa.array([number % 13 + step for number in range(60)], pa.int64()),
            "at": pa.array([number * 10 for number in range(60)], pa.int64()),
        }
    )
    for name, step in (("left", 3), ("right", 5))
}


class Sums(arrowstate.KeyedProcessFunction):
    """Sums, and emits the sum of a key when a timer of its rows fires, which is at the end of the input."""

    def open(self, context: Any) -> None:
        self.total = context.state(SUM)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.total.add(value.amount)
        context.timers.register_event_time_timer(value.at + DELAY)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect((context.current_key, timestamp, self.total.get() or 0))


def declared(store: Path, parallelism: int, uids: Mapping[str, str] = MappingProxyType({})) -> Job:
    """Sums and windows of two sources, whose event time comes to its end with them; some under other uids."""
    job = Job(store, parallelism=parallelism, max_parallelism=64)
    rule = Watermarks("at", out_of_order_ms=10_000)
    left, right = (
        job.source(SlowTable(rows), uid=uids.get(uid, uid), watermarks=rule) for uid, rows in SOURCES.items()
    )
    rows = left.union(right)
    uid = uids.get("sums", "sums")
    sums = rows.stateful(Sums(), key=["user"], uid=uid, output_schema=EMITTED, timestamp="at")
    sums.sink(OutputTable(uids.get("fired", "fired")))
    sums.sink(Committed(str(store)), uid="outside")
    windows = WindowFunction(TumblingEventTimeWindows(WIDTH), SALES, timestamp="at", value="amount")
    rows.stateful(windows, key=["user"], uid=uids.get("windows", "windows")).sink(OutputTable("sold"))
    return job


@dataclass
class Model:
    """What the job has, for any order of the rows."""

    positions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0))
    totals: Counter[str] = field(default_factory=Counter)
    timers: set[tuple[str, int]] = field(default_factory=set)
    sales: Counter[tuple[str, int]] = field(default_factory=Counter)

    def read(self, source: str, until: int) -> None:
        for row in SOURCES[source].slice(self.positions[source], until - self.positions[source]).to_pylist():
            self.totals[row["user"]] += row["amount"]
            self.timers.add((row["user"], row["at"] + DELAY))
            self.sales[row["user"], row["at"] // WIDTH * WIDTH] += row["amount"]
        self.positions[source] = until

    def read_all(self) -> None:
        for source, rows in SOURCES.items():
            self.read(source, rows.num_rows)


def positions(snapshot: Any) -> dict[str, int]:
    """How far the sources were read."""
    found = {source: snapshot.operator_state(source, "splits")["splits"].to_pylist() for source in SOURCES}
    return {source: split["position"] for source, splits in found.items() for split in splits}


def pairs(snapshot: Any, state: str, *columns: str) -> dict[Any, int]:
    """The rows of a state: of each key its value."""
    rows = [[row[column] for column in columns] for row in snapshot.to_arrow(state).to_pylist()]
    assert len({tuple(row[:-1]) for row in rows}) == len(rows)
    return {row[0] if len(row) == 2 else tuple(row[:-1]): row[-1] for row in rows}


def check_state(snapshot: Any, model: Model) -> None:
    assert positions(snapshot) == model.positions
    assert pairs(snapshot, "sums.total", "user", "total") == dict(model.totals)
    assert pairs(snapshot, "windows.sales", "user", "window_start", "sales") == dict(model.sales)
    timers = snapshot.to_arrow("sums.timers_event_time").to_pylist()
    assert {(row["user"], row["timestamp"]) for row in timers} == model.timers


def check_end(snapshot: Any, store: Path, model: Model, uids: Mapping[str, str] = MappingProxyType({})) -> None:
    """What was emitted when event time ended, in the tables and outside, each once."""
    assert pairs(snapshot, f"{uids.get('sums', 'sums')}.total", "user", "total") == dict(model.totals)
    fired = snapshot.operator_state(uids.get("fired", "fired"), "rows")["rows"].to_pylist()
    assert Counter((row["user"], row["timestamp"], row["total"]) for row in fired) == Counter(
        (user, time, model.totals[user]) for user, time in model.timers
    )
    outside = Committed(str(store)).rows_of(snapshot.store_id)
    assert Counter(map(repr, outside)) == Counter(map(repr, fired))
    sold = snapshot.operator_state("sold", "rows")["rows"].to_pylist()
    assert {(row["user"], row["window_start"]): row["sales"] for row in sold} == dict(model.sales)
    assert len(sold) == len(model.sales)


def stopped(store: Path, *, seed: int, steps: int) -> arrowstate.Snapshot:
    """Run the job for a while, stop it, and return its last checkpoint."""
    with declared(store, 2).start(mode="inline", seed=seed) as running:
        running.go_on(steps)
        return running.stop()


@pytest.mark.parametrize(("seed", "steps"), [(3, 100), (1, 250)])
def test_a_job_goes_on_from_edited_sums_windows_timers_and_offsets(tmp_path: Path, seed: int, steps: int) -> None:
    place = tmp_path / "store"
    model = Model()
    last = stopped(place, seed=seed, steps=steps)
    for source, position in positions(last).items():
        model.read(source, position)
    assert 3 < model.positions["left"] < 60
    check_state(last, model)

    with arrowstate.open_store(place).edit() as edit:
        edit.update("sums.total", set={"total": 1000}, where="user = 'u1'")
        edit.delete_key("sums", ["u2"])
        edit.update("sums.timers_event_time", set={"timestamp": "timestamp + 7"}, where="user = 'u3'")
        edit.update("windows.sales", set={"sales": "-sales"}, where="window_start = 0")
        edit.update("left.splits", set={"position": "position - 3"})
        edited = edit.commit()
    model.totals["u1"] = 1000
    del model.totals["u2"]
    model.timers = {(user, time + 7 * (user == "u3")) for user, time in model.timers if user != "u2"}
    model.sales = Counter({place: sum if place[1] else -sum for place, sum in model.sales.items()})
    model.positions["left"] -= 3
    check_state(edited, model)
    end = declared(place, 3).run(mode="inline")
    model.read_all()

    check_end(end, place, model)


def test_an_input_that_was_read_to_its_end_is_read_again_from_where_an_edit_says(tmp_path: Path) -> None:
    place = tmp_path / "store"
    model = Model()
    first = declared(place, 2).run(mode="inline")
    model.read_all()
    check_end(first, place, model)

    with arrowstate.open_store(place).edit() as edit:
        edit.update("left.splits", set={"position": 55, "finished": False})
        edit.commit()
    model.positions["left"] = 55
    again = declared(place, 2).run(mode="inline")
    model.read_all()

    assert pairs(again, "sums.total", "user", "total") == dict(model.totals)
    assert positions(again) == model.positions
    calm = declared(place, 2).run(mode="inline")
    assert pairs(calm, "sums.total", "user", "total") == dict(model.totals)


def test_an_edit_fences_a_job_that_runs_and_another_start_goes_on_from_it(tmp_path: Path) -> None:
    place = tmp_path / "store"
    model = Model()
    with declared(place, 2).start(mode="inline", seed=3) as running:
        running.go_on(100)
        taken = running.checkpoint()
        for source, position in positions(taken).items():
            model.read(source, position)
        with arrowstate.open_store(place).edit() as edit:
            edit.update("sums.total", set={"total": "total * 2"})
            edit.commit()
        with pytest.raises(JobFailedError, match="stop it, only the newest writer") as raised:
            running.wait()
        assert isinstance(raised.value.__cause__, FencedError)
        assert running.status().state == "failed"
    model.totals = Counter({user: 2 * total for user, total in model.totals.items()})
    check_state(arrowstate.open_store(place).latest(), model)

    end = declared(place, 2).run(mode="inline")
    model.read_all()
    check_end(end, place, model)


def test_a_job_goes_on_from_a_checkpoint_that_was_gone_back_to(tmp_path: Path) -> None:
    place = tmp_path / "store"
    last = stopped(place, seed=3, steps=100)
    store = arrowstate.open_store(place)
    with store.edit() as edit:
        edit.update("sums.total", set={"total": 0})
        edit.update("left.splits", set={"position": 1})
        edited = edit.commit()
    further = stopped(place, seed=4, steps=60)
    assert further.checkpoint_id > edited.checkpoint_id

    store.rollback(f"before-edit-{edited.checkpoint_id}")
    model = Model()
    for source, position in positions(last).items():
        model.read(source, position)
    check_state(store.latest(), model)
    end = declared(place, 3).run(mode="inline")
    model.read_all()

    check_end(end, place, model)
    assert store.verify(deep=True).problems == []


def test_a_job_goes_on_from_an_edited_savepoint_that_was_brought_into_another_store(tmp_path: Path) -> None:
    place, other = tmp_path / "store", tmp_path / "other"
    model = Model()
    for source, position in positions(stopped(place, seed=3, steps=100)).items():
        model.read(source, position)
    with arrowstate.open_store(place).edit() as edit:
        edit.update("sums.total", set={"total": "total + 1"})
        savepoint = edit.commit(to="edited")
    model.totals = Counter({user: total + 1 for user, total in model.totals.items()})

    arrowstate.open_store(other, create=True).import_savepoint(savepoint)
    check_state(arrowstate.open_store(other).latest(), model)
    end = declared(other, 2).run(mode="inline")
    model.read_all()

    check_end(end, other, model)


class Refusing(Committed):
    """A sink that is out of order."""

    def commit(self, rows: Any, token: Any) -> None:
        raise OSError("the sink is out of order")


def test_a_sink_gets_what_an_edited_checkpoint_keeps_for_it_once_and_as_it_was_edited(tmp_path: Path) -> None:
    place = tmp_path / "store"
    rows = pa.table({"user": ["a", "b", "c"], "n": [1, 2, 3]})

    def declared(sink: Any) -> Job:
        job = Job(place, restart=Restart.none())
        job.source(SlowTable(rows), uid="rows").sink(sink, uid="outside")
        return job

    with pytest.raises(JobFailedError, match="out of order"):
        declared(Refusing(str(place))).run(mode="inline")
    with arrowstate.open_store(place).edit() as edit:
        edit.update("outside.pending", set={"n": 20}, where="\"user\" = 'b'")
        edit.delete("outside.pending", where="\"user\" = 'c'")
        edit.commit()
    for _ in range(2):
        end = declared(Committed(str(place))).run(mode="inline")

    assert Committed(str(place)).rows_of(end.store_id) == [{"user": "a", "n": 1}, {"user": "b", "n": 20}]


def test_an_operator_that_keeps_rows_for_its_sink_is_not_renamed(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with declared(place, 2).start(mode="inline", seed=3) as running:
        running.go_on(20)
        while "outside" not in {operator.uid for operator in running.checkpoint().entry.operators}:
            running.go_on(20)

    with arrowstate.open_store(place).edit() as edit:
        with pytest.raises(InvalidInputError, match="'outside' keeps rows for its sink.*drop_operator"):
            edit.rename_operator("outside", "beyond")
        edit.drop_operator("outside")
        edit.commit()


def test_a_job_goes_on_under_other_uids(tmp_path: Path) -> None:
    place = tmp_path / "store"
    model = Model()
    for source, position in positions(stopped(place, seed=3, steps=100)).items():
        model.read(source, position)
    uids = {"left": "port", "right": "starboard", "sums": "sums2", "windows": "windows2", "fired": "fired2"}

    with arrowstate.open_store(place).edit() as edit:
        for uid, new in uids.items():
            edit.rename_operator(uid, new)
        edit.rename_state("sums2", "total", "total2")
        edit.rename_state("sums2", "total2", "total")
        edit.change_max_parallelism("sums2", 48)
        edit.commit()
    end = declared(place, 3, uids).run(mode="inline")
    model.read_all()

    check_end(end, place, model, uids)
