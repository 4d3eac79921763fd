"""The suites for connectors find what is wrong with one: each fault here fails at least one of their tests."""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from arrowstate.runtime.connectors import (
    Batch,
    EndOfSplit,
    PreparingSink,
    Reader,
    Sink,
    SinkWriter,
    Source,
    Split,
    Token,
)
from arrowstate.testing import PreparingSinkConformance, SinkConformance, SourceConformance

ROWS = pa.table({"n": range(40)})


def failures(suite: object, **fixtures: Any) -> set[str]:
    """The tests of a suite that fail, with what `fixtures` make anew for each."""
    found = set()
    for name, test in inspect.getmembers(suite, inspect.ismethod):
        if not name.startswith("test_"):
            continue
        cases: list[dict[str, Any]] = [{}]
        for mark in getattr(test, "pytestmark", []):
            cases = [{mark.args[0]: value} for value in mark.args[1]]
        for case in cases:
            made = {key: make() for key, make in fixtures.items()}
            wanted = {key: made[key] for key in inspect.signature(test).parameters if key in made}
            try:
                test(**wanted, **case)
            except pytest.skip.Exception:  # A test that does not apply to a connector finds nothing in it.
                pass
            except (Exception, pytest.fail.Exception):  # noqa: BLE001
                found.add(name)
    return found


class Rows(Source):
    """The numbers below 40 in two splits, with a fault."""

    schema = ROWS.schema
    is_sequential = True

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        if fault == "it does not pickle":
            self.held = (number for number in range(3))

    def discover(self, known: Collection[str]) -> Sequence[Split]:
        names = ["even", "odd"] if self.fault != "two splits have one name" else ["even", "even"]
        if self.fault == "known splits come again":
            known = ()
        return [Split(name) for name in names if name not in known]

    def reader(self) -> Reader:
        return RowsReader(self.fault)


class RowsReader(Reader):
    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.splits: dict[str, int] = {}
        self.paused: Collection[str] = ()
        self.ended: set[str] = set()

    def add(self, splits: Sequence[Split]) -> None:
        if self.fault == "splits that come later take the place of others":
            self.splits.clear()
        for split in splits:
            position = int(split.position or 0)
            if self.fault == "it reads a row again":
                position = max(0, position - 1)
            if self.fault == "it leaves a row out":
                position += position > 0
            if self.fault == "it does not go on":
                position = 0
            self.splits[split.id] = position

    def pause(self, splits: Collection[str]) -> None:
        if self.fault == "what pauses is forgotten":
            for name in splits:
                self.splits.pop(name, None)
        elif self.fault != "it does not pause":
            self.paused = splits

    def read(self, max_rows: int) -> Batch | EndOfSplit | None:
        fault = self.fault
        if fault == "it takes turns" and self.splits:
            name = next(iter(self.splits))
            self.splits[name] = self.splits.pop(name)
        if fault == "it must have a split" and not self.splits and not self.ended:
            raise ValueError("there is no split")
        for name, first in self.splits.items():
            if name in self.paused:
                continue
            numbers = range(name == "odd", 40, 2)[first:]
            if not numbers:
                if fault == "a split does not end":
                    return None
                if fault != "a split ends again and again":
                    del self.splits[name]
                self.ended.add(name)
                return EndOfSplit(name)
            count = min(max_rows + (fault == "it returns more rows than were asked for"), 9, len(numbers))
            given = list(numbers[:count])
            if fault == "the order depends on the size":
                given = given[::-1]
            type = pa.int32() if fault == "rows have another type" else pa.int64()
            self.splits[name] = first + count
            position: Any = first + count
            if fault == "the position is that before the rows":
                position = first
            if fault == "its positions are texts":
                position = str(position)
            return Batch(pa.record_batch({"n": pa.array(given, type)}), name, position)
        return None

    def close(self) -> None:
        if self.fault == "it is closed once":
            self.fault = "closed"
        elif self.fault == "closed":
            raise ValueError("it is closed")


SOURCE_FAULTS = [
    "it does not pickle",
    "two splits have one name",
    "known splits come again",
    "splits that come later take the place of others",
    "it reads a row again",
    "it leaves a row out",
    "it does not go on",
    "what pauses is forgotten",
    "it does not pause",
    "a split does not end",
    "a split ends again and again",
    "it returns more rows than were asked for",
    "the order depends on the size",
    "rows have another type",
    "the position is that before the rows",
    "its positions are texts",
    "it is closed once",
    "it must have a split",
    "it takes turns",
]


def test_a_source_without_a_fault_keeps_the_contract() -> None:
    assert failures(SourceConformance(), source=Rows, rows=lambda: ROWS) == set()


@pytest.mark.parametrize("fault", SOURCE_FAULTS)
def test_a_source_with_a_fault_is_found(fault: str) -> None:
    assert failures(SourceConformance(), source=lambda: Rows(fault), rows=lambda: ROWS)


class Place:
    """What a sink writes to, in this process; a copy of it is the same place."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.tokens: dict[Any, int] = {}
        self.prepared: dict[str, list[dict[str, Any]]] = {}

    def __reduce__(self) -> Any:
        PLACES[id(self)] = self
        return place_of, (id(self),)


PLACES: dict[int, Place] = {}


def place_of(number: int) -> Place:
    return PLACES[number]


class Kept(Sink):
    """Adds rows to a place, with a fault."""

    def __init__(self, place: Place, fault: str = "") -> None:
        self.place = place
        self.fault = fault
        self.own: dict[Any, int] = {}
        self.held: Iterator[int] | None = None

    def open(self, store_id: str, uid: str) -> None:
        if self.fault == "it does not pickle while it is open":
            self.held = (number for number in range(3))
        if self.fault == "rows are visible before a commit":
            self.place.rows += ROWS.to_pylist()
        if self.fault == "it forgets what it has had":
            self.place.tokens.clear()

    def commit(self, rows: pa.Table, token: Token) -> None:
        fault = self.fault
        if fault == "no rows are an error" and not rows.num_rows:
            raise ValueError("no rows")
        tokens = self.own if fault == "it knows only its own tokens" else self.place.tokens
        key: Any = (token.store_id, token.uid, token.subtask)
        if fault == "subtasks have one token":
            key = (token.store_id, token.uid)
        if fault == "sinks have one token":
            key = (token.store_id, token.subtask)
        if fault == "jobs have one token":
            key = (token.uid, token.subtask)
        had = tokens.get(key, 0)
        if fault == "a token is known by its checkpoint being the newest":
            is_known = had == token.checkpoint_id
        else:
            is_known = had >= token.checkpoint_id and fault != "it does not look at the token"
        if is_known:
            return
        tokens[key] = token.checkpoint_id
        self.place.rows += rows.to_pylist() if fault != "it loses the last row" else rows.to_pylist()[:-1]

    def close(self) -> None:
        if self.fault == "closing takes rows away":
            self.place.rows.clear()
        elif self.fault == "it is closed once":
            self.fault = "closed"
        elif self.fault == "closed":
            raise ValueError("it is closed")


SINK_FAULTS = [
    "it does not pickle while it is open",
    "rows are visible before a commit",
    "it forgets what it has had",
    "no rows are an error",
    "it knows only its own tokens",
    "subtasks have one token",
    "sinks have one token",
    "jobs have one token",
    "a token is known by its checkpoint being the newest",
    "it does not look at the token",
    "it loses the last row",
    "closing takes rows away",
    "it is closed once",
]


class Prepared(PreparingSink):
    """Adds rows to a place when what was prepared is committed, with a fault."""

    committable_schema = pa.schema({"id": pa.string()})

    def __init__(self, place: Place, fault: str = "") -> None:
        self.place = place
        self.fault = fault

    def writer(self, store_id: str, uid: str, subtask: int, attempt: str) -> SinkWriter:
        name = f"{store_id}/{uid}/{subtask}/{attempt}"
        if self.fault == "attempts have one name":
            name = f"{store_id}/{uid}/{subtask}"
        return PreparedWriter(self, name)

    def commit(self, committables: pa.RecordBatch) -> None:
        for name in committables["id"].to_pylist():
            if name in self.place.tokens and self.fault != "it commits twice":
                continue
            if name not in self.place.prepared:
                if self.fault == "what is lost is passed over":
                    continue
                raise LookupError(name)
            self.place.tokens[name] = 1
            self.place.rows += self.place.prepared[name]
            if self.fault == "it commits the first only":
                return

    def recover(self, store_id: str, uid: str, committed: pa.RecordBatch) -> None:
        if self.fault == "it takes what is committed":
            self.place.rows.clear()
        if self.fault == "it commits what lingers":
            for rows in self.place.prepared.values():
                self.place.rows += rows
        prefix = f"{store_id}/{uid}" + ("/" if self.fault != "it takes what is of others" else "")
        for name in [name for name in self.place.prepared if name.startswith(prefix)]:
            del self.place.prepared[name]


class PreparedWriter(SinkWriter):
    def __init__(self, sink: Prepared, name: str) -> None:
        self.sink = sink
        self.name = name
        self.rows: list[dict[str, Any]] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.to_pylist()
        if self.sink.fault == "rows are visible at once":
            self.sink.place.rows += rows.to_pylist()

    def prepare(self, checkpoint_id: int) -> pa.RecordBatch:
        fault = self.sink.fault
        name = f"{self.name}/{checkpoint_id}"
        if fault == "checkpoints have one name":
            name = self.name
        schema = self.sink.committable_schema
        if not self.rows and fault != "no rows are prepared":
            return pa.RecordBatch.from_pylist([], schema=schema)
        if fault == "rows are visible when they are prepared":
            self.sink.place.rows += self.rows
        self.sink.place.prepared.setdefault(name, []).extend(self.rows)
        if fault != "rows are prepared again with the next checkpoint":
            self.rows = []
        if fault == "committables have another schema":
            return pa.record_batch({"id": [name], "more": [1]})
        return pa.RecordBatch.from_pylist([{"id": name}], schema=schema)

    def abort(self) -> None:
        if self.sink.fault == "an abort shows rows":
            self.sink.place.rows += self.rows
        if self.sink.fault == "it is aborted once" and not self.rows:
            raise ValueError("it is aborted")
        self.rows = []


PREPARING_FAULTS = [
    "attempts have one name",
    "it commits twice",
    "what is lost is passed over",
    "it commits the first only",
    "it takes what is committed",
    "it commits what lingers",
    "it takes what is of others",
    "rows are visible at once",
    "checkpoints have one name",
    "no rows are prepared",
    "rows are visible when they are prepared",
    "rows are prepared again with the next checkpoint",
    "committables have another schema",
    "an abort shows rows",
    "it is aborted once",
]


def sink_failures(suite: object, kind: type, fault: str = "") -> set[str]:
    place = Place()

    def new_sink() -> Sink | PreparingSink:
        nonlocal place
        place = Place()
        return kind(place, fault)

    def visible() -> Callable[[], pa.Table]:
        return lambda: pa.Table.from_pylist(place.rows, ROWS.schema)

    return failures(suite, sink=new_sink, rows=lambda: ROWS, visible=visible)


SINKS = {Kept: SinkConformance, Prepared: PreparingSinkConformance}


@pytest.mark.parametrize("kind", SINKS)
def test_a_sink_without_a_fault_keeps_the_contract(kind: type) -> None:
    assert sink_failures(SINKS[kind](), kind) == set()


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(kind, fault) for kind, faults in ((Kept, SINK_FAULTS), (Prepared, PREPARING_FAULTS)) for fault in faults],
)
def test_a_sink_with_a_fault_is_found(kind: type, fault: str) -> None:
    assert sink_failures(SINKS[kind](), kind, fault)
