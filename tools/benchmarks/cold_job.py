"""What a first script does: state of every kind, timers and windows under two types of keys, checkpoints, reading.

Run in a process of its own by `benchmarks.cold`: what it costs there is the first use of the library.
"""

from __future__ import annotations

import sys
import tempfile
import time

_STARTED = time.perf_counter()

import arrowstate  # noqa: E402

_IMPORTED = time.perf_counter()

import pyarrow as pa  # noqa: E402

from arrowstate.windows import EventTimeSessionWindows, TumblingEventTimeWindows, WindowOperator  # noqa: E402

_ROWS = 1_000
_MAX_PARALLELISM = 128
_KEYS = {"users": pa.string(), "devices": pa.int64()}
_CITY = arrowstate.ValueStateDescriptor("city", pa.string())
_CLICKS = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
_SPENT = arrowstate.AggregatingStateDescriptor("spent", pa.float64(), aggregate="mean")
_PAGES = arrowstate.ListStateDescriptor("pages", pa.string())
_CART = arrowstate.MapStateDescriptor("cart", pa.string(), pa.int64())
_HITS = arrowstate.ReducingStateDescriptor("hits", pa.int64(), reduce="sum")
_VISIT = arrowstate.ReducingStateDescriptor("visit", pa.int64(), reduce="count")


def run(folder: str) -> None:
    """Write and read everything once; raise if an answer is wrong."""
    store = arrowstate.open_store(folder, create=True)
    backends = {}
    for uid, key_type in _KEYS.items():
        backends[uid] = arrowstate.KeyedStateBackend(
            key=pa.schema([("key", key_type)]), max_parallelism=_MAX_PARALLELISM
        )
        _work(backends[uid], key_type)
    with store.writer() as writer:
        writer.checkpoint({uid: [backend] for uid, backend in backends.items()})
        for uid, key_type in _KEYS.items():
            # Half of the keys are written again, so that the next checkpoint has rows that are dead.
            backends[uid].state(_CLICKS).add_batch(_keys(key_type).slice(0, 100), pa.array([1] * 100))
        snapshot = writer.checkpoint({uid: [backend] for uid, backend in backends.items()})
        parts = {uid: [snapshot.restore(uid, parallelism=3, subtask=n) for n in range(3)] for uid in _KEYS}
        for uid, key_type in _KEYS.items():
            for part in parts[uid]:
                own = _own(part, key_type)
                assert part.state(_CLICKS).get_batch(own).null_count == 0
                part.state(_CLICKS).add_batch(own, pa.array([1] * len(own)))
                assert part.state(_PAGES).get_batch(own).null_count == 0
                part.timers().pop_due(500)
        writer.checkpoint(parts)
    for uid, key_type in _KEYS.items():
        total = store.sql(f'select count(*), sum(clicks) from "{uid}".clicks').fetchall()
        assert total == [(500, 1600)], total
        assert store.sql(f'select count(*) from "{uid}".pages').fetchall() == [(_ROWS,)]
        [row] = store.latest().lookup(f"{uid}.clicks", _keys(key_type).slice(7, 1)).to_pylist()
        assert row["clicks"] == 4, row


def _keys(key_type: pa.DataType) -> pa.Array:
    return pa.array([number % 500 for number in range(_ROWS)]).cast(key_type)


def _own(part: arrowstate.KeyedStateBackend, key_type: pa.DataType) -> pa.Array:
    keys = _keys(key_type).slice(0, 500)
    groups = arrowstate.key_groups(keys, _MAX_PARALLELISM).to_numpy()
    return keys.filter(pa.array((groups >= part.key_groups.start) & (groups <= part.key_groups.end)))


def _work(backend: arrowstate.KeyedStateBackend, key_type: pa.DataType) -> None:
    keys, ones = _keys(key_type), pa.array([1] * _ROWS)
    texts = pa.array([f"text {number % 7}" for number in range(_ROWS)])
    times = pa.array([number % 300 for number in range(_ROWS)])
    backend.state(_CITY).update_batch(keys, texts)
    backend.state(_CLICKS).add_batch(keys, ones)
    backend.state(_SPENT).add_batch(keys, ones.cast(pa.float64()))
    backend.state(_PAGES).add_batch(keys, texts)
    backend.state(_CART).put_batch(keys, texts, ones)
    assert backend.state(_CITY).get_batch(keys).null_count == 0
    assert backend.state(_SPENT).get_batch(keys).null_count == 0
    assert backend.state(_CART).get_batch(keys, texts).null_count == 0
    backend.state(_CART).entries_batch(keys.slice(0, 10))
    timers = backend.timers()
    timers.register_batch(keys, times)
    assert timers.pop_due(100).num_rows
    tumbling = WindowOperator(backend, TumblingEventTimeWindows(100), _HITS)
    sessions = WindowOperator(backend, EventTimeSessionWindows(50), _VISIT)
    for windows in (tumbling, sessions):
        windows.process(keys, times, ones)
    assert tumbling.advance_watermark(150).num_rows
    assert sessions.advance_watermark(200).num_rows


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as temporary:
        run(f"{temporary}/store")
    finished = time.perf_counter()
    sys.stdout.write(f"{_IMPORTED - _STARTED} {finished - _IMPORTED}\n")
