"""Make the golden stores of version 1: a life of a job in each format, and lists of subtasks.

Each store has every kind of state; a checkpoint, a rescaling whose subtasks own ranges of the same files, rows of two
schema versions, a compaction, a second writer, and a collection, past which a tag holds the first checkpoint.
`expected.json` has every row of every checkpoint that is left. Run once, as
`tools/python formats/golden/make_golden.py`, and commit what it writes; a committed golden store is never made anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

import arrowstate
from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.files import subtasks
from arrowstate.log.entries import create_store
from arrowstate.storage.registry import open_storage
from arrowstate.store import Snapshot, StateStore

FOLDER = Path(__file__).parent / "v1"
USERS = ["ann", "bob", "eve"]
WINDOW = pa.schema([("window_start", pa.int64()), ("window_end", pa.int64())])
ORDER = pa.struct([("amount", pa.int32()), ("tags", pa.list_(pa.struct([("tag", pa.string())])))])
NEW_ORDER = pa.struct(
    [
        ("currency", pa.string()),
        ("tags", pa.list_(pa.struct([("weight", pa.float64()), ("label", pa.string())]))),
        ("total", pa.int64()),
    ]
)
CHANGE = arrowstate.SchemaEvolution(
    renamed={"amount": "total", "tags.element.tag": "label"}, defaults={"currency": "EUR", "tags.element.weight": 0.5}
)
TIGHT = CompactionPolicy(max_space_amplification=1.001, max_small_files=1, min_bytes=0)
FORMATS = ("arrow", "parquet", "lance")
OPERATOR_STATES = ("offsets", "topics", "rules")


def names() -> Callable[[], str]:
    """Return a source of unique names that are the same in each run."""
    numbers = count(1)
    return lambda: f"{next(numbers):032x}"


def times() -> Callable[[], int]:
    """Return a clock that starts at 2026-01-01 and goes on by a second at each look."""
    seconds: Iterator[int] = count(1_767_225_600)
    return lambda: next(seconds) * 1000


def fill(backend: arrowstate.KeyedStateBackend) -> None:
    """Write something into a state of every kind."""
    hour = arrowstate.TimeToLive(3_600_000, clock="event_time", visibility="return_until_cleaned_up")
    pages = backend.state(arrowstate.ListStateDescriptor("pages", pa.string(), ttl=hour))
    pages.add_batch([*USERS, "ann"], ["/", "/", "/help", "/cart"], timestamps=[1, 2, 3, 4])
    cart = backend.state(arrowstate.MapStateDescriptor("cart", pa.string(), pa.decimal128(10, 2)))
    cart.put_batch(
        ["ann", "ann", "bob"], ["apple", "pear", "fig"], pa.array(["1.50", None, "3.25"]).cast(pa.decimal128(10, 2))
    )
    clicks = backend.state(
        arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum", namespace=WINDOW)
    )  # fmt: skip
    clicks.add_batch(
        USERS, [1, 2, 3], namespace=pa.record_batch({"window_start": [0, 0, 60], "window_end": [60, 60, 120]})
    )
    delay = backend.state(arrowstate.AggregatingStateDescriptor("delay", pa.float64(), aggregate="mean"))
    delay.add_batch([*USERS, "ann"], [1.5, 2.0, -1.0, 4.5])
    best = backend.state(arrowstate.AggregatingStateDescriptor("best", pa.date32(), aggregate=arrowstate.TopK(2)))
    best.add_batch(["ann"] * 3, pa.array([10, 30, 20], pa.int32()).cast(pa.date32()))
    timers = backend.timers()
    timers.register_batch(["ann", "bob"], [30, 10])
    orders = backend.state(arrowstate.ValueStateDescriptor("order", ORDER))
    orders.update_batch(USERS, [{"amount": n, "tags": [{"tag": "new"}] * n} for n in range(3)])


def operators() -> arrowstate.OperatorStateBackend:
    """Return operator state of every kind."""
    backend = arrowstate.OperatorStateBackend()
    backend.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add_all([17, 4])
    backend.state(arrowstate.OperatorListStateDescriptor("topics", pa.string(), mode="union")).add("clicks")
    backend.state(arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.float64())).put("limit", 2.5)
    return backend


def rows_of(snapshot: Snapshot) -> dict[str, list[Any]]:
    """Return every row of every state as JSON has it, in the order of their texts."""
    tables = {name: snapshot.to_arrow(name) for name in snapshot.states()}
    for name in OPERATOR_STATES:
        tables[f"shop.{name}"] = snapshot.operator_state("shop", name)
    return {name: plain(table.to_pylist()) for name, table in tables.items()}


def plain(rows: list[dict[str, Any]]) -> list[Any]:
    """Return rows without the columns that only some readers show, as JSON has them, in the order of their texts."""
    kept = [{name: value for name, value in row.items() if name not in ("_seq", "_subtask")} for row in rows]
    return sorted(json.loads(json.dumps(kept, default=str)), key=str)


def write_more(backend: arrowstate.KeyedStateBackend, order: pa.StructType, round: int) -> None:
    """Change some rows and delete others, of the keys that a subtask has."""
    groups = arrowstate.key_groups(pa.array(USERS), backend.max_parallelism).to_pylist()
    own = [user for user, group in zip(USERS, groups, strict=True) if group in backend.key_groups]
    if not own:
        return
    clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum", namespace=WINDOW))
    spaces = pa.record_batch({"window_start": [0] * len(own), "window_end": [60] * len(own)})
    clicks.add_batch(own, [10 * round] * len(own), namespace=spaces)
    pages = arrowstate.ListStateDescriptor(
        "pages",
        pa.string(),
        ttl=arrowstate.TimeToLive(3_600_000, clock="event_time", visibility="return_until_cleaned_up"),
    )
    backend.state(pages).add_batch(own, [f"/{round}"] * len(own), timestamps=[5 + round] * len(own))
    backend.timers().register_batch(own, [100 * round] * len(own))
    if "bob" in own:
        backend.state(arrowstate.ValueStateDescriptor("order", order)).clear_batch(["bob"])


def make(folder: Path, format: str) -> dict[str, Any]:
    """Write one store; return the rows of its checkpoints by id."""
    storage = open_storage(folder, create=True)
    new_id, clock_ms = names(), times()
    create_store(storage, new_id(), clock_ms())
    store = StateStore(storage, "0" * 31 + "1", clock_ms=clock_ms, new_id=new_id)
    backend = arrowstate.KeyedStateBackend(
        key=pa.schema([("user", pa.string())]), max_parallelism=128, clock_ms=clock_ms
    )
    backend.advance_watermark(5)
    fill(backend)
    own = {"shop": [operators()]}
    with store.writer(properties={"who": "the first"}, compaction=None) as writer:
        first = writer.checkpoint({"shop": [backend]}, operator_states=own, properties={"offset": 1}, format=format)
        store.tag("first")
        write_more(backend, ORDER, 1)
        second = writer.checkpoint({"shop": [backend]}, operator_states=own, properties={"offset": 2}, format=format)
        parts = [second.restore("shop", parallelism=3, subtask=number, clock_ms=clock_ms) for number in range(3)]
        for part in parts:
            part.state(arrowstate.ValueStateDescriptor("order", NEW_ORDER, evolution=CHANGE))
            write_more(part, NEW_ORDER, 2)
        shared = [second.restore_operator_state("shop", parallelism=3, subtask=number) for number in range(3)]
        both = {"shop": parts}
        writer.checkpoint(both, operator_states={"shop": shared}, properties={"offset": 3}, format=format)
    compacted = store.compact(TIGHT).apply()
    assert compacted is not None
    parts = [compacted.restore("shop", parallelism=3, subtask=number, clock_ms=clock_ms) for number in range(3)]
    with store.writer(properties={"who": "the second"}, compaction=None) as writer:
        for part in parts:
            write_more(part, NEW_ORDER, 3)
        writer.checkpoint({"shop": parts}, operator_states={"shop": shared}, properties={"offset": 4}, format=format)
    store.collect(arrowstate.RetentionPolicy(count=2), grace_ms=60_000).apply()
    store.savepoint("last", format=format)
    assert first.checkpoint_id in [item.checkpoint_id for item in store.checkpoints()]
    return {str(item.checkpoint_id): rows_of(item) for item in store.checkpoints()}


def main() -> None:
    """Write formats/golden/v1."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    expected = {format: make(FOLDER / format, format) for format in FORMATS}
    # As an entry of thousands of subtasks has them, in a store that is small.
    vars(subtasks).update(_ENTRY_BYTES=0, _NEIGHBOURS=2)
    expected["lists"] = make(FOLDER / "lists", "arrow")
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
