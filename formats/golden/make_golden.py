"""Make the golden stores: small stores of this format version, which every later version must read.

The committed store is of version 1, the drafts, which this code reads and does not write any more.

Run once per format version, `tools/python formats/golden/make_golden.py`, and commit what it writes; a committed
golden store is never made anew. Times and names are fixed, so a second run writes the same bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

from arrowstate import KeyedStateBackend, ReducingStateDescriptor, ValueStateDescriptor, key_group_range
from arrowstate.log.entries import create_store
from arrowstate.storage.registry import open_storage
from arrowstate.store import StateStore

CLICKS = ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
SEEN = ValueStateDescriptor("seen", pa.timestamp("us", tz="UTC"))
DELAYS = ReducingStateDescriptor(
    "delays",
    pa.struct([("flights", pa.int64()), ("longest", pa.float64())]),
    reduce={"flights": "count", "longest": "max"},
)


def names() -> Callable[[], str]:
    """Return a source of unique names that are the same in each run."""
    numbers = count(1)
    return lambda: f"{next(numbers):032x}"


def times() -> Callable[[], int]:
    """Return a clock that starts at 2026-01-01 and goes on by a second at each look."""
    seconds: Iterator[int] = count(1_767_225_600)
    return lambda: next(seconds) * 1000


def make(folder: Path, format: str) -> dict[str, object]:
    """Write one store with three checkpoints and a savepoint; return what must be read from it."""
    storage = open_storage(folder, create=True)
    new_id, clock_ms = names(), times()
    create_store(storage, new_id(), clock_ms())
    store = StateStore(storage, "0" * 31 + "1", clock_ms=clock_ms, new_id=new_id)
    users = [f"user {number}" for number in range(3000)]
    counters = [
        KeyedStateBackend(
            key=pa.schema([("user", pa.string())]),
            max_parallelism=128,
            key_groups=key_group_range(128, parallelism=2, subtask=subtask),
        )
        for subtask in range(2)
    ]
    flights = KeyedStateBackend(
        key=pa.schema([("origin", pa.string()), ("number", pa.int64())]), max_parallelism=128
    )  # fmt: skip
    with store.writer() as writer:
        for backend in counters:
            mine = [user for user in users if _owner(user) in backend.key_groups]
            backend.state(CLICKS).add_batch(mine, [int(user.split()[1]) for user in mine])
            backend.state(SEEN).update_batch(mine[:20], [1_000_000 * n for n in range(20)])
        rows = 70_000
        numbers = pa.array(np.arange(rows))
        keys = pa.record_batch({"origin": pa.array(["JFK", "LGA"] * (rows // 2)), "number": numbers})
        longest = pa.array(np.arange(rows) / 4)
        flights.state(DELAYS).add_batch(keys, pa.record_batch({"flights": numbers, "longest": longest}))
        writer.checkpoint(
            {"counter": counters, "flights": [flights]}, properties={"offset": 1}, watermark=1_000, format=format
        )
        for backend in counters:
            mine = [user for user in users[:100] if _owner(user) in backend.key_groups]
            backend.state(CLICKS).add_batch(mine, [1_000_000] * len(mine))
            backend.state(SEEN).clear_batch(mine[:5])
        flights.state(DELAYS).clear_batch(keys.slice(0, 1000))
        snapshot = writer.checkpoint(
            {"counter": counters, "flights": [flights]}, properties={"offset": 2}, watermark=2_000, format=format
        )
        rescaled = [snapshot.restore("counter", parallelism=3, subtask=n, max_parallelism=192) for n in range(3)]
        writer.checkpoint(
            {"counter": rescaled, "flights": [flights]}, properties={"offset": 3}, watermark=3_000, format=format
        )
    savepoint = store.savepoint(f"{folder}-savepoint")
    return {
        "latest_checkpoint_id": 4,
        "savepoint_checkpoint_id": savepoint.checkpoint_id,
        "counter.clicks": {"rows": 3000, "sum": sum(range(3000)) + 100_000_000},
        "counter.seen": {"rows": savepoint.to_arrow("counter.seen").num_rows},
        "flights.delays": {
            "rows": 69_000,
            "sum of flights": 69_000,
            "sum of longest": sum(number / 4 for number in range(1000, 70_000)),
        },
    }


def _owner(user: str) -> int:
    from arrowstate import key_groups

    group: int = key_groups(pa.array([user]), 128)[0].as_py()
    return group


def main() -> None:
    """Write formats/golden/v1."""
    folder = Path(__file__).parent / "v1"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    expected = {format: make(folder / format, format) for format in ("arrow", "parquet")}
    (folder / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")


if __name__ == "__main__":
    main()
