"""Make the golden store of every kind of state, with namespaces, times to live, and rows of two schema versions.

The committed store is of version 1, the drafts, which this code reads and does not write any more.

Run once per format version, `tools/python formats/golden/make_golden_kinds.py`, and commit what it writes; a
committed golden store is never made anew. Times and names are fixed, so a second run writes the same bytes.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import arrowstate
from arrowstate.log.entries import create_store
from arrowstate.storage.registry import open_storage
from arrowstate.store import Snapshot, StateStore

sys.path.insert(0, str(Path(__file__).parent))
from make_golden import names, times

FOLDER = Path(__file__).parent / "v1-kinds"
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


def expected(snapshot: Snapshot) -> dict[str, Any]:
    """Return every row of every state, in the order of their texts."""
    tables = {state: snapshot.to_arrow(state) for state in snapshot.states()}
    for name in ("offsets", "topics", "rules"):
        tables[name] = snapshot.operator_state("shop", name)
    return {
        name: sorted(json.loads(json.dumps(table.to_pylist(), default=str)), key=str) for name, table in tables.items()
    }


def main() -> None:
    """Write formats/golden/v1-kinds."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    storage = open_storage(FOLDER / "store", create=True)
    new_id, clock_ms = names(), times()
    create_store(storage, new_id(), clock_ms())
    store = StateStore(storage, "0" * 31 + "1", clock_ms=clock_ms, new_id=new_id)
    backend = arrowstate.KeyedStateBackend(
        key=pa.schema([("user", pa.string())]), max_parallelism=128, clock_ms=clock_ms
    )
    backend.advance_watermark(5)
    fill(backend)
    states = {"shop": [operators()]}
    with store.writer() as writer:
        snapshot = writer.checkpoint({"shop": [backend]}, operator_states=states)
        restored = snapshot.restore("shop", clock_ms=clock_ms)
        orders = restored.state(arrowstate.ValueStateDescriptor("order", NEW_ORDER, evolution=CHANGE))
        orders.update_batch(["eve"], [{"currency": "USD", "tags": [], "total": 1 << 40}])
        snapshot = writer.checkpoint({"shop": [restored]}, operator_states=states)
    (FOLDER / "expected.json").write_text(json.dumps(expected(snapshot), indent=2) + "\n")


if __name__ == "__main__":
    main()
