"""How many Python functions of the project are called for one batch, checkpoint, micro-batch, query and edit.

Each walk is done three times over a small store, and the last is counted with a profiler: what happens once a call must
not grow with the house. Lambdas and comprehensions count in the runtime alone, whose drivers are made of them. DuckDB
has one thread, for no profiler sees what it calls in threads of its own.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.clock import now_ms
from arrowstate.runtime import GeneratorSource, Job
from arrowstate.schema.layout import StateLayout, key_documents, state_document
from arrowstate.spark.micro_batches import MicroBatch
from arrowstate.spark.operators.clocks import BatchTime
from arrowstate.spark.operators.query import QueryOperator, StatefulQuery, ids_of, stream_of
from arrowstate.spark.sink.plan import SinkPlan, StateInput
from arrowstate.spark.sink.task import fold_micro_batch
from arrowstate.spark.task import Step, SubtaskResult
from benchmarks.harness import Report, argument_parser

_ROOT = Path(arrowstate.__file__).parents[1]
_OURS = (f"{_ROOT}/arrowstate/", f"{_ROOT}/formats/")
_KEY = pa.schema([("key", pa.int64())])
_TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
_ROWS = 1_200
_MOST = {
    "Reducing.add_batch": 140,
    "edit of one key": 1_000,
    "micro-batch of one task": 700,
    "job checkpoint of two slots": 3_500,
}


def main(argv: list[str]) -> int:
    """Run the benchmark and return its exit code."""
    parser = argument_parser("calls", __doc__, rounds=1)
    parser.add_argument("--most", type=int, default=0, metavar="N", help="show the N functions that are called most")
    arguments = parser.parse_args(argv)
    report = Report("calls", arguments)
    one_thread = partial(duckdb.connect, config={"threads": 1})
    with mock.patch.object(duckdb, "connect", one_thread), tempfile.TemporaryDirectory(prefix="arrowstate-") as folder:
        for name, walk in _walks(Path(folder)).items():
            counted, places = walk()
            functions = Counter({code: count for code, count in counted.items() if places or _is_named(code)})
            calls = sum(functions.values())
            files = {code.co_filename for code in functions}
            print(f"  {name}: {len(functions)} functions in {len(files)} files")
            report.figure(name, calls, "calls")
            for code, count in functions.most_common(arguments.most):
                print(f"    {count:5} {Path(code.co_filename).relative_to(_ROOT)}:{code.co_firstlineno} {code.co_name}")
            if name in _MOST:
                report.require(name, calls, at_most=_MOST[name], unit="calls")
    return report.finish()


_Counted = tuple[Counter[CodeType], bool]


def _counted(walk: Callable[[], Any]) -> Counter[CodeType]:
    """Call a function, and count what it calls of this project, in any thread that it starts too."""
    found: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        # What Python 3.12 has itself does not count where it is made up for.
        if event == "call" and name.startswith(_OURS) and not name.endswith("/cached_properties.py"):
            found[frame.f_code] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        walk()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def _is_named(code: CodeType) -> bool:
    return not code.co_name.startswith("<")


def _third(walk: Callable[[], Any]) -> Callable[[], _Counted]:
    def run() -> _Counted:
        walk()
        walk()
        return _counted(walk), False

    return run


def _walks(folder: Path) -> dict[str, Callable[[], _Counted]]:
    random = np.random.default_rng(0)
    backend = arrowstate.KeyedStateBackend(key=_KEY, max_parallelism=128)
    total = backend.state(_TOTAL)
    store = arrowstate.open_store(folder / "store", create=True)
    writer = store.writer()

    def add() -> None:
        # Key 7 is always among them.
        keys = np.append(random.integers(0, 10_000, _ROWS - 1), 7)
        total.add_batch(pa.array(keys), pa.array(np.ones(_ROWS, np.int64)))

    def checkpoint() -> None:
        writer.checkpoint({"op": [backend]})

    def changed_checkpoint() -> _Counted:
        for _ in range(2):
            add()
            checkpoint()
        add()
        return _counted(checkpoint), False

    def query() -> None:
        store.sql("select total from op.total where key = 7").fetchall()

    def edit() -> None:
        with store.edit() as edit:
            edit.update("op.total", set={"total": "total + 1"}, where="key = 7")
            edit.commit()

    return {
        "Reducing.add_batch": _third(add),
        "incremental checkpoint": changed_checkpoint,
        "SQL of one key": _third(query),
        "micro-batch of one task": lambda: _micro_batch(folder / "sink", random),
        "job checkpoint of two slots": lambda: _job(folder / "job"),
        "edit of one key": _third(edit),
    }


def _micro_batch(place: Path, random: np.random.Generator) -> _Counted:
    """A micro-batch of a sink in its driver, whose task is called in the same process."""
    arrowstate.open_store(place, create=True)
    state = state_document(_TOTAL, StateLayout(_KEY, _TOTAL.name, _TOTAL.type), key_documents(_KEY))
    plan = SinkPlan(
        store=str(place),
        uid="op",
        key=key_documents(_KEY),
        names=["key", "v"],
        states=[StateInput(state=state, columns=[1])],
        parallelism=1,
        max_parallelism=128,
        retention=None,
    )
    operator = QueryOperator(plan, fold_micro_batch, stream_of, [("key", None), ("v", None)])

    class Clock:
        def at(self, frame: Any, batch_id: int) -> BatchTime:  # noqa: ARG002
            return BatchTime(MicroBatch("query", "run", batch_id), None, now_ms())

    def tasks(item: QueryOperator, frames: Any, step: Step, job: str) -> list[SubtaskResult]:
        return [item.run(item.plan, step, 0, frames.stream, ids_of(job))]

    batches, driver = count(), StatefulQuery(Clock(), [operator], {}, tasks=tasks)

    def run() -> None:
        keys, ones = pa.array(random.integers(0, 10_000, _ROWS)), pa.array(np.ones(_ROWS, np.int64))
        rows: Any = [pa.record_batch([keys, ones], names=["c0", "c1"])]
        driver(rows, next(batches))

    return _third(run)()


class _Totals(arrowstate.BatchFunction):
    def open(self, context: Any) -> None:
        self.total = context.state(_TOTAL)

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
        self.total.add_batch(context.group_keys(batch), batch["v"])


def _numbered(first: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + count)
    return pa.record_batch({"key": numbers % 10_000, "v": np.ones(count, np.int64)})


def _job(place: Path) -> _Counted:
    """One checkpoint of a job in one thread, with the rows that pass while it is taken."""
    job = Job(str(place), parallelism=2, options=arrowstate.CheckpointOptions(interval_ms=None))
    looks = count()
    source = GeneratorSource(
        _numbered,
        _numbered(0, 0).schema,
        splits=2,
        batch_rows=_ROWS,
        rows_per_second=_ROWS,
        # By the time of day other rows would come each time, and other steps.
        clock=lambda: next(looks) / 10_000,
    )
    job.source(source, uid="rows").stateful(_Totals(), key=["key"], uid="totals")
    with job.start(mode="inline") as running:
        for _ in range(2):
            running.go_on(200)
            running.checkpoint()
        return _counted(running.checkpoint), True
