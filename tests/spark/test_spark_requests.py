"""What a micro-batch waits for where each request to a storage takes its time: which follow which, and how many."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.clock import new_id
from arrowstate.spark.micro_batches import MicroBatch
from arrowstate.storage.registry import open_storage

_VERBS = ("read", "open_buffer", "list", "exists", "put_if_absent", "put_hint", "write_file", "delete")


class Rounds:
    """A storage whose requests overlap: each waits until all of its round have begun, and no other is made.

    Parameters
    ----------
    storage
        What is wrapped.
    rounds
        The requests that are made together, as `verb path`, one round after the other.
    """

    requests_at_once = 4

    def __init__(self, storage: Any, rounds: list[set[str]]) -> None:
        self._storage = storage
        self._rounds = [Counter(together) for together in rounds]
        self._done = 0
        self._begun: Counter[str] = Counter()
        self._changed = threading.Condition()

    @property
    def left(self) -> list[list[str]]:
        """The rounds that have not come."""
        return [sorted(together) for together in self._rounds[self._done :]]

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._storage, name)

        def call(path: str, *arguments: Any) -> Any:
            self._wait(f"{name} {path}")
            return real(path, *arguments)

        return call if name in _VERBS else real

    def _wait(self, request: str) -> None:
        with self._changed:
            own = self._done
            if own == len(self._rounds) or request not in self._rounds[own]:
                raise AssertionError(f"{request} is made while {self.left[:1]} is due")
            self._begun[request] += 1
            if self._begun == self._rounds[own]:
                self._done, self._begun = own + 1, Counter()
                self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._done > own, 30):
                raise AssertionError(f"{request} is made alone, and not together with {sorted(self._rounds[own])}")


def entry(number: int) -> str:
    return f"read log/{number:020d}.json"


def opened(newest: int) -> list[set[str]]:
    """What who opens a store and looks for an entry after the newest that it knows waits for."""
    return [{"read arrowstate.json", "read _latest"}, {entry(newest + 1)}, {"list gc/"}]


def looked(newest: int) -> list[set[str]]:
    """What who reads the log of an open store waits for."""
    return [{"read _latest"}, {entry(newest), entry(newest + 1)}]


def committed(newest: int) -> list[set[str]]:
    """What a commit after the newest entry waits for, which knows it."""
    return [
        {"list gc/"},
        {f"put_if_absent log/{newest + 1:020d}.json"},
        {"list gc/", "put_hint _latest"},
    ]


def test_a_task_of_a_sink_waits_for_no_request_and_its_commit_for_five(
    sink: Any, rows: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink.but(parallelism=1)
    sink.run(0, rows)
    rounds = Rounds(open_storage(str(sink.store)), [*looked(2), *committed(2)])
    monkeypatch.setattr("arrowstate.spark.task.open_storage", lambda *_, **__: rounds)

    results = sink.fold(1, rows)
    assert len(rounds.left) == 5
    sink.commit(1, results)

    assert rounds.left == []
    assert sink.stored() == sink.expected(rows, rows)


class Totals(arrowstate.BatchFunction):
    """Sums `v` by `k`."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> None:
        self.total.add_batch(batch["k"], batch["v"])


@pytest.fixture
def rows() -> pa.Table:
    return pa.table({"k": [1, 2, 1], "n": [1, 1, 1], "v": [1, 2, 3]})


def start(stream: Any) -> Any:
    from arrowstate.spark import stateful

    operator = stateful(stream.frame(), key=["k"], operator=Totals(), uid="totals", store=stream.store, parallelism=2)
    writer = operator.write_stream().option("checkpointLocation", str(stream.checkpoint))
    return writer.trigger(availableNow=True).start()


def test_the_driver_of_a_query_waits_for_six_requests(
    stream: Any, rows: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.schema = "k long, v long"
    stream.add(rows)
    start(stream).awaitTermination()
    # The query starts anew: its second micro-batch takes the fence, its third is one of many.
    given: list[Rounds] = []

    def open_counted(url: str, **options: Any) -> Any:
        if not given and Path(url, "log", f"{5:020d}.json").exists():
            given.append(Rounds(open_storage(url, **options), [*opened(5), *committed(5)]))
            return given[0]
        return open_storage(url, **options)

    monkeypatch.setattr("arrowstate.spark.operators.query.open_storage", open_counted)
    stream.add(rows, rows, rows)
    start(stream).awaitTermination()

    assert given[0].left == []
    table = arrowstate.open_store(stream.store).latest().to_arrow("totals.total")
    assert dict(zip(table["k"].to_pylist(), table["total"].to_pylist(), strict=True)) == {1: 16, 2: 8}


def test_a_task_of_an_operator_is_handed_its_checkpoint(
    stream: Any, rows: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arrowstate.spark import stateful
    from arrowstate.spark.operators.query import _only
    from arrowstate.spark.operators.task import run_subtask
    from arrowstate.spark.task import Step

    stream.schema = "k long, v long"
    stream.add(rows)
    start(stream).awaitTermination()
    store = arrowstate.open_store(stream.store)
    checkpoint = _only("totals", store.latest().entry)
    operator = stateful(stream.frame(), key=["k"], operator=Totals(), uid="totals", store=stream.store, parallelism=2)
    monkeypatch.setattr("arrowstate.spark.task.open_storage", lambda *_, **__: Rounds(store.storage, []))

    result = run_subtask(
        operator.operators[-1].plan, Step(MicroBatch("q", "r", 1), store.store_id, checkpoint, None, 1), 0, [], new_id
    )

    assert (result.base, result.metrics.state_rows) == (
        checkpoint.number,
        sum(subtask.live_rows["total"] for subtask in checkpoint.operators[0].subtasks if subtask.subtask == 0),
    )
