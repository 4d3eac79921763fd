"""Stores that jobs read: one with an output table, and one whose state changes."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

import arrowstate
from arrowstate.runtime import Reader, Source, Split
from arrowstate.runtime.sources.stores import ChangesSource, OutputSource

ROW = pa.struct({"user": pa.string(), "n": pa.int64()})
COUNTS = arrowstate.ValueStateDescriptor("counts", pa.int64())
State = dict[int, int]


def reader_of(source: Source, *splits: Split) -> Reader:
    reader = source.reader()
    reader.add(splits or source.discover(()))
    return reader


class Output:
    """A store with an output table whose column `n` has the numbers of the rows."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.opened = arrowstate.open_store(store, create=True)

    def commit(self, *counts: int) -> None:
        """Commit a checkpoint with rows in parts of these sizes, all of them anew."""
        ends = [sum(counts[:number]) for number in range(len(counts) + 1)]
        backends = []
        for first, last in pairwise(ends):
            backend = arrowstate.OperatorStateBackend()
            rows = backend.state(arrowstate.OperatorListStateDescriptor("rows", ROW))
            rows.extend(pa.array([(f"u{n}", n) for n in range(first, last)], ROW))
            backends.append(backend)
        with self.opened.writer() as writer:
            writer.checkpoint({}, operator_states={"alerts": backends}, allow_dropped_state=True)

    def source(self, **options: Any) -> OutputSource:
        return OutputSource(self.store, "alerts", discovery_ms=options.pop("discovery_ms", 0), **options)


class Counts:
    """A store of a state, and what it was at each checkpoint."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.opened = arrowstate.open_store(store, create=True)
        self.states: dict[int, State] = {}
        self.backend = arrowstate.KeyedStateBackend(key=pa.schema({"k": pa.int64()}), max_parallelism=128)

    def commit(self, put: Mapping[int, int], clear: Sequence[int] = ()) -> int:
        counts = self.backend.state(COUNTS)
        counts.update_batch(pa.array(put, pa.int64()), pa.array(put.values(), pa.int64()))
        counts.clear_batch(pa.array(clear, pa.int64()))
        with self.opened.writer() as writer:
            checkpoint_id = writer.checkpoint({"my.counter": [self.backend]}).checkpoint_id
        assert checkpoint_id is not None
        before = next(reversed(self.states.values()), {})
        self.states[checkpoint_id] = {k: v for k, v in {**before, **put}.items() if k not in clear}
        return checkpoint_id

    def changes(self, after: int | None, *ids: int) -> list[dict[str, Any]]:
        """What changed with these checkpoints, the first of them since the one before."""
        rows = []
        for checkpoint_id in ids:
            old, new = {} if after is None else self.states[after], self.states[checkpoint_id]
            for k in sorted(old.keys() | new.keys()):
                kinds = (
                    [("insert", new[k])]
                    if k not in old
                    else [("delete", old[k])]
                    if k not in new
                    else [("update_preimage", old[k]), ("update_postimage", new[k])]
                    if old[k] != new[k]
                    else []
                )
                rows += [
                    {"k": k, "counts": v, "_change_type": kind, "_checkpoint_id": checkpoint_id} for kind, v in kinds
                ]
            after = checkpoint_id
        return rows

    def source(self, **options: Any) -> ChangesSource:
        return ChangesSource(self.store, "my.counter.counts", discovery_ms=options.pop("discovery_ms", 0), **options)
