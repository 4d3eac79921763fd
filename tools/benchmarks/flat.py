"""What a batch of 1,000 rows costs on restored state, from few rows held to many: it should cost what it brings.

That is what a task on Spark does for each micro-batch: it restores a backend from the newest checkpoint, in a process
that has restored the one before, and handles a batch. For each kind of state and each number of rows held a store is
written, some of whose rows have died, with five batches since it got the others; then it is restored and written to
again and again, and nothing of that is kept.

Timers and windows are measured twice: with a time by which none is due, and with one by which about 1,000 are. What is
due lies anywhere in the runs, whose order is that of the keys, and rows that were due before are dead in them.

The figure is processor time less what page faults took: the more rows are held, the more memory is mapped, which says
nothing about the work. A fault is taken for the least that one costs, that of an empty page, measured at the start.
Beside it stand wall time, faults, and the first time in a process, in which the record batches that are looked at are
compared with their checksums. The bound is for the most rows over the fewest.
"""

from __future__ import annotations

import gc
import mmap
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import arrowstate
from arrowstate.files.open_files import forget_open_files
from arrowstate.windows import EventTimeSessionWindows, TumblingEventTimeWindows, WindowOperator
from benchmarks.harness import Report, argument_parser

Numbers = npt.NDArray[np.int64]

_LOAD_ROWS = 1_000_000
_KEY = pa.schema([("key", pa.int64())])
_STEP_MS = 1000
"""Of event time, in which about `_DUE_ROWS` timers or windows fall due."""
_DUE_ROWS = 1000
_SIZES = (100_000, 1_000_000, 4_000_000, 20_000_000)
_QUICK_SIZES = (100_000, 2_000_000)
_BROADCAST_ROWS = 1_000_000
_GAP_MS = 10
_BATCHES_BEFORE = 5
"""How many batches a state has seen since it got its rows; each has left a run, as in every job."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of state: how it gets its rows, and what is done with it once it is restored."""

    fill: Callable[[Any, int], None]
    """Given a backend and a number of rows."""
    batches: dict[str, Callable[[Any, int, Numbers], dict[str, float]]]
    """By name; given a restored backend, the rows held and keys, returns seconds of processor time of parts of it."""


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a batch cost, the median of all rounds."""

    milliseconds: float
    """Of processor time, less what faults took."""
    wall_milliseconds: float
    faults: float
    major_faults: int
    parts: dict[str, float]
    """Milliseconds of processor time by name."""


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("flat", __doc__, rounds=15, cpu="last")
    parser.add_argument("--sizes", type=int, nargs="+", help=f"rows held (default {' '.join(map(str, _SIZES))})")
    parser.add_argument("--quick", action="store_true", help=f"with {' and '.join(map(str, _QUICK_SIZES))} rows alone")
    parser.add_argument("--batch", type=int, default=1000, help="rows of a batch (default 1,000)")
    parser.add_argument("--kinds", nargs="+", choices=list(_KINDS), default=list(_KINDS), help="default all")
    parser.add_argument("--folder", type=Path, help="where stores are written (default the system's temporary folder)")
    arguments = parser.parse_args(argv)
    sizes = sorted(arguments.sizes or (_QUICK_SIZES if arguments.quick else _SIZES))
    report = Report("flat", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-", dir=arguments.folder) as temporary:
        fault_seconds = _fault_seconds()
        report.figure("a page fault", fault_seconds * 1e6, "microseconds")
        for name in arguments.kinds:
            held = sorted({min(size, _BROADCAST_ROWS) for size in sizes}) if name == "broadcast" else sizes
            measured = [_measure(Path(temporary), name, rows, arguments, fault_seconds) for rows in held]
            for what in _KINDS[name].batches:
                _judge(report, name if not what else f"{name}, {what}", held, [costs[what] for costs in measured])
    return report.finish()


def _judge(report: Report, title: str, held: list[int], costs: list[tuple[_Cost, _Cost]]) -> None:
    print(f"\n{title}")
    for rows, (cost, first) in zip(held, costs, strict=True):
        parts = "".join(f", {part} {took:.2f} ms" for part, took in cost.parts.items())
        print(
            f"  {rows:>11,} rows held: {cost.milliseconds:.2f} ms{parts}; wall {cost.wall_milliseconds:.2f} ms, "
            f"{cost.faults:.0f} faults, {cost.major_faults} major; first in a process {first.wall_milliseconds:.1f} ms"
        )
        report.figure(f"{title}, {rows} rows", cost.milliseconds, "ms", shown=False)
    report.require(
        f"{title}: {held[-1]:,} rows held over {held[0]:,}",
        costs[-1][0].milliseconds / costs[0][0].milliseconds,
        at_most=1.5,
    )
    if "pop" in costs[-1][0].parts:
        report.require_time(f"{title}: pop", costs[-1][0].parts["pop"] / 1000, at_most=0.001)


def _measure(
    folder: Path, name: str, rows: int, arguments: Any, fault_seconds: float
) -> dict[str, tuple[_Cost, _Cost]]:
    """Return by batch what it costs, and what it costs at first."""
    kind = _KINDS[name]
    store = arrowstate.open_store(folder / f"{name}-{rows}", create=True)
    if name == "broadcast":
        operator = arrowstate.OperatorStateBackend()
        kind.fill(operator, rows)
        store.writer().checkpoint({}, operator_states={"bench": [operator]})
        del operator
    else:
        backend = arrowstate.KeyedStateBackend(key=_KEY, max_parallelism=128)
        kind.fill(backend, rows)
        before = next(iter(kind.batches.values()))
        for number in range(_BATCHES_BEFORE):
            before(backend, rows, np.random.default_rng(number).integers(0, rows, arguments.batch))
        store.writer(compaction=None).checkpoint({"bench": [backend]})
        del backend
    gc.collect()
    snapshot = store.latest()
    random = np.random.default_rng(1)

    def once(batch: Callable[[Any, int, Numbers], dict[str, float]]) -> dict[str, float]:
        keys = random.integers(0, rows, arguments.batch)
        restore = snapshot.restore_operator_state if name == "broadcast" else snapshot.restore
        return batch(restore("bench"), rows, keys)

    found = {}
    for what, batch in kind.batches.items():
        forget_open_files()
        first = _rounds(partial(once, batch), 1, fault_seconds)
        found[what] = _rounds(partial(once, batch), arguments.rounds, fault_seconds), first
    return found


def _rounds(run: Callable[[], dict[str, float]], rounds: int, fault_seconds: float) -> _Cost:
    walls, works, faults, major, parts = [], [], [], 0, []
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        try:
            before = resource.getrusage(resource.RUSAGE_SELF)
            cpu, wall = time.process_time(), time.perf_counter()
            part = run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            after = resource.getrusage(resource.RUSAGE_SELF)
        finally:
            gc.enable()
        walls.append(wall)
        faults.append(after.ru_minflt - before.ru_minflt)
        major += after.ru_majflt - before.ru_majflt
        works.append(cpu - faults[-1] * fault_seconds)
        parts.append(part)
    return _Cost(
        statistics.median(works) * 1000,
        statistics.median(walls) * 1000,
        statistics.median(faults),
        major,
        {name: statistics.median(part[name] for part in parts) * 1000 for name in parts[0]},
    )


def _fault_seconds() -> float:
    """Return what a page fault costs at least: one that gives the process an empty page."""
    size, costs = 64 << 20, []
    for _ in range(5):
        with mmap.mmap(-1, size) as mapped:
            pages = np.frombuffer(mapped, np.uint8)[:: mmap.PAGESIZE]
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            started = time.process_time()
            pages[:] = 1
            took = time.process_time() - started
            costs.append(took / max(1, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))
            del pages
    return min(costs)


# What is measured


def _by_key(descriptor: Any, verb: Callable[[Any, pa.Array], None]) -> _Kind:
    """A state with rows for each key, of which some were written again."""

    def fill(backend: Any, rows: int) -> None:
        state = backend.state(descriptor)
        for start in range(0, rows, _LOAD_ROWS):
            verb(state, pa.array(np.arange(start, min(rows, start + _LOAD_ROWS))))
        verb(state, pa.array(np.random.default_rng(2).integers(0, rows, rows // 100)))

    def batch(backend: Any, _: int, keys: Numbers) -> dict[str, float]:
        verb(backend.state(descriptor), pa.array(keys))
        return {}

    return _Kind(fill, {"": batch})


def _ones(keys: pa.Array) -> pa.Array:
    return pa.array(np.ones(len(keys), dtype=np.int64))


def _update(state: Any, keys: pa.Array) -> None:
    state.update_batch(keys, _ones(keys))


def _add(state: Any, keys: pa.Array) -> None:
    state.add_batch(keys, _ones(keys))


def _put(state: Any, keys: pa.Array) -> None:
    state.put_batch(keys, pa.array(keys.to_numpy() % 4), _ones(keys))


def _steps(rows: int) -> int:
    return max(10, rows // _DUE_ROWS)


def _now(rows: int) -> int:
    """Up to which time everything fell due before the checkpoint: a fifth of all that there was."""
    return _STEP_MS * (_steps(rows) // 5)


def _times(rows: int, keys: Numbers) -> Numbers:
    """Return a time for each key, anywhere in as many steps as leave about `_DUE_ROWS` to each."""
    return np.random.default_rng(int(keys[0]) + 7).integers(0, _STEP_MS * _steps(rows), keys.size)


def _in_chunks(rows: int) -> list[Numbers]:
    return [np.arange(start, min(rows, start + _LOAD_ROWS)) for start in range(0, rows, _LOAD_ROWS)]


def _timers() -> _Kind:
    def fill(backend: Any, rows: int) -> None:
        for keys in _in_chunks(rows):
            backend.timers().register_batch(pa.array(keys), pa.array(_times(rows, keys)))
        backend.timers().pop_due(_now(rows))

    def batch(due_ms: int) -> Callable[[Any, int, Numbers], dict[str, float]]:
        def run(backend: Any, rows: int, keys: Numbers) -> dict[str, float]:
            timers = backend.timers()
            timers.register_batch(pa.array(keys), pa.array(_now(rows) + 10 * _STEP_MS + keys % 1000))
            started = time.process_time()
            popped = timers.pop_due(_now(rows) + due_ms).num_rows
            took = time.process_time() - started
            assert (popped > 0) == (due_ms > 0), popped
            return {} if due_ms else {"pop": took}

        return run

    return _Kind(fill, {"none due": batch(0), "some due": batch(_STEP_MS)})


def _windows(assigner: Any) -> _Kind:
    descriptor = arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="count")

    def fill(backend: Any, rows: int) -> None:
        operator = WindowOperator(backend, assigner, descriptor)
        for keys in _in_chunks(rows):
            operator.process(pa.array(keys), pa.array(_times(rows, keys)), pa.array(keys))
        operator.advance_watermark(_now(rows))

    def batch(due_ms: int) -> Callable[[Any, int, Numbers], dict[str, float]]:
        def run(backend: Any, rows: int, keys: Numbers) -> dict[str, float]:
            operator = WindowOperator(backend, assigner, descriptor)
            operator.process(pa.array(keys), pa.array(_now(rows) + 10 * _STEP_MS + keys % 1000), pa.array(keys))
            fired = operator.advance_watermark(_now(rows) + due_ms).num_rows
            assert (fired > 0) == (due_ms > 0), fired
            return {}

        return run

    return _Kind(fill, {"none due": batch(0), "some due": batch(_STEP_MS)})


def _broadcast() -> _Kind:
    descriptor = arrowstate.BroadcastStateDescriptor("limits", pa.int64(), pa.int64())

    def fill(backend: Any, rows: int) -> None:
        keys = pa.array(np.arange(rows))
        backend.state(descriptor).put_batch(keys, keys)

    def batch(backend: Any, _: int, keys: Numbers) -> dict[str, float]:
        assert backend.state(descriptor).get_batch(pa.array(keys)).null_count == 0
        return {}

    return _Kind(fill, {"": batch})


_KINDS: dict[str, _Kind] = {
    "value": _by_key(arrowstate.ValueStateDescriptor("v", pa.int64()), _update),
    "reducing": _by_key(arrowstate.ReducingStateDescriptor("r", pa.int64(), reduce="sum"), _add),
    "aggregating": _by_key(arrowstate.AggregatingStateDescriptor("a", pa.int64(), aggregate="mean"), _add),
    "list": _by_key(arrowstate.ListStateDescriptor("l", pa.int64()), _add),
    "map": _by_key(arrowstate.MapStateDescriptor("m", pa.int64(), pa.int64()), _put),
    "timers": _timers(),
    "tumbling": _windows(TumblingEventTimeWindows(_STEP_MS)),
    "session": _windows(EventTimeSessionWindows(_GAP_MS)),
    "broadcast": _broadcast(),
}
