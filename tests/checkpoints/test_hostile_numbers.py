"""Numbers that a document cannot hold: refused where they come in, and never committed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.errors import CheckpointNotFoundError, InvalidInputError
from arrowstate.store import StateStore

HOSTILE: list[Any] = [
    *(1000.0, 0.5, True, False, "5", b"5", None, [], (5,), 5j, float("inf"), float("nan"), 2**70, -(2**70), 2**63),
    *(
        np.float64(5),
        np.float32("inf"),
        np.bool_(True),
        np.datetime64(5, "ms"),
        np.array([1, 2]),
        np.array(1.5),
        object(),
    ),
]
HARMLESS: list[Any] = [np.int64(4), np.uint8(4)]


def is_harmless(value: Any) -> bool:
    return any(value is item for item in HARMLESS)


Entrance = Callable[[StateStore, arrowstate.KeyedStateBackend, Any], object]


def process(backend: arrowstate.KeyedStateBackend) -> arrowstate.KeyedProcessRunner:
    class Nothing(arrowstate.KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            """Take the element."""

    return arrowstate.KeyedProcessRunner(backend, Nothing())


def checkpoint(store: StateStore, backend: arrowstate.KeyedStateBackend, **given: Any) -> object:
    return store.writer().checkpoint({"op": [backend]}, **given)


def trigger(store: StateStore, backend: arrowstate.KeyedStateBackend, watermark: Any) -> object:
    with store.writer() as writer, writer.coordinator({"op": [backend]}) as coordinator:
        return coordinator.trigger(watermark=watermark).result()


def clocked(store: StateStore, backend: arrowstate.KeyedStateBackend, time: Any) -> object:
    return StateStore(store.storage, store.store_id, clock_ms=lambda: time).writer().checkpoint({"op": [backend]})


ENTRANCES: dict[str, Entrance] = {
    "backend.advance_watermark": lambda _, backend, value: backend.advance_watermark(value),
    "KeyedProcessRunner.advance_watermark": lambda _, backend, value: process(backend).advance_watermark(value),
    "KeyedProcessRunner.advance_processing_time": lambda _, backend, value: process(backend).advance_processing_time(
        value
    ),
    "timers.advance_watermark": lambda _, backend, value: backend.timers().advance_watermark(value, print),
    "current_timestamp": lambda _, backend, value: setattr(backend, "current_timestamp", value),
    "checkpoint(watermark=)": lambda store, backend, value: checkpoint(store, backend, watermark=value),
    "trigger(watermark=)": trigger,
    "the clock of a store": clocked,
    "lease(ttl_ms=)": lambda store, _, value: store.lease(ttl_ms=value).__exit__(None, None, None),
    "lease(checkpoint)": lambda store, _, value: store.lease(value).__exit__(None, None, None),
    "tag(checkpoint)": lambda store, _, value: store.tag("gold", value),
    "snapshot": lambda store, _, value: store.snapshot(value),
    "collect(grace_ms=)": lambda store, _, value: store.collect(
        grace_ms=np.int64(60_000) if is_harmless(value) else value
    ),
    "RetentionPolicy(count=)": lambda store, _, value: store.collect(arrowstate.RetentionPolicy(count=value)).apply(),
    "RetentionPolicy(age_ms=)": lambda store, _, value: store.collect(arrowstate.RetentionPolicy(age_ms=value)).apply(),
    "CheckpointOptions(interval_ms=)": lambda _s, _b, value: CheckpointOptions(interval_ms=value),
    "CompactionPolicy(max_small_files=)": lambda _s, _b, value: arrowstate.CompactionPolicy(max_small_files=value),
    "restore(parallelism=)": lambda store, _, value: store.latest().restore("op", parallelism=value),
    "restore(subtask=)": lambda store, _, value: store.latest().restore("op", parallelism=9, subtask=value),
    "restore(max_parallelism=)": lambda store, _, value: store.latest().restore("op", max_parallelism=value),
    "TimeToLive": lambda _s, _b, value: arrowstate.TimeToLive(value),
}
OPTIONAL = {
    "current_timestamp",
    "checkpoint(watermark=)",
    "trigger(watermark=)",
    "lease(checkpoint)",
    "tag(checkpoint)",
}
OPTIONAL |= {"RetentionPolicy(age_ms=)", "CheckpointOptions(interval_ms=)", "restore(max_parallelism=)"}
SATURATING = {"timers.advance_watermark"}


def backend_of(max_parallelism: Any = 128) -> arrowstate.KeyedStateBackend:
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=max_parallelism)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(["a"], [1])
    return backend


def filled(name: str) -> StateStore:
    store = arrowstate.open_store(f"memory://hostile-{name}", create=True)
    with store.writer() as writer:
        for _ in range(4):
            writer.checkpoint({"op": [backend_of()]})
    return store


def check_usable(store: StateStore) -> None:
    """Look at all that a store has, and write to it."""
    assert [snapshot.restore("op").state_names for snapshot in store.checkpoints()]
    assert store.latest_whole().checkpoint_id == store.latest().checkpoint_id
    assert store.tags() is not None
    checkpoint(store, backend_of(), allow_dropped_state=True)
    store.collect(arrowstate.RetentionPolicy(count=20)).apply()


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_what_is_no_integer_is_refused_where_it_comes_in_and_the_store_stays_usable(entrance: str) -> None:
    store = filled(entrance.replace("/", ""))
    for value in HOSTILE:
        if value is None and entrance in OPTIONAL:
            continue
        if entrance in SATURATING and type(value) is int:
            continue
        with pytest.raises((InvalidInputError, CheckpointNotFoundError)):
            ENTRANCES[entrance](store, backend_of(), value)

    check_usable(store)


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_an_integer_of_numpy_is_taken_as_one_of_python(entrance: str) -> None:
    for number, value in enumerate(HARMLESS):
        store = filled(f"harmless-{number}-{entrance}".replace("/", ""))
        backend = backend_of()

        ENTRANCES[entrance](store, backend, value)

        checkpoint(store, backend)
        check_usable(store)


@pytest.mark.parametrize("value", [True, 128.0, np.float64(128), "128", 0, 32769, None])
def test_a_max_parallelism_is_an_integer(value: Any) -> None:
    with pytest.raises(InvalidInputError):
        backend_of(value)


def test_a_max_parallelism_of_numpy_is_written_as_an_integer() -> None:
    store = arrowstate.open_store("memory://hostile-max-parallelism", create=True)

    made = checkpoint(store, backend_of(np.int32(64)))

    assert made.entry.operators[0].max_parallelism == 64  # type: ignore[attr-defined]
    check_usable(store)
