"""What changed between two checkpoints: compared with the difference of the tables that they are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import CheckpointNotFoundError, CheckpointsCollectedError, IncompatibleStateError
from arrowstate.files.open_files import forget_open_files
from arrowstate.log import timeline
from arrowstate.log.commit_log import CommitLog
from arrowstate.query.changes import StateChanges, change_columns
from arrowstate.query.kept_reads import forget_checkpoints
from arrowstate.query.state import StateReader
from stores import KEY, commit

EVERY_HASH = (-(1 << 63), (1 << 63) - 1)


def changes_of(
    store: Any,
    state: str,
    before: Any,
    after: Any,
    columns: list[str] | None = None,
    bounds: tuple[int, int] = EVERY_HASH,
) -> list[dict[str, Any]]:
    reader = StateReader(store.storage, after.entry, "op", state)
    found = StateChanges(store.storage, reader, None if before is None else before.entry, after.entry)
    return [row for batch in found.batches(columns or reader.columns, bounds) for row in batch.to_pylist()]


def as_set(rows: list[dict[str, Any]]) -> set[str]:
    assert len({repr(sorted(row.items(), key=str)) for row in rows}) == len(rows)
    return {repr(sorted(row.items(), key=str)) for row in rows}


def expected(state: str, identity: list[str], before: Any, after: Any) -> set[str]:
    """The changes, from the tables as they are."""
    old, new = ({} if side is None else table(side, state, identity) for side in (before, after))
    rows = []
    for key in old.keys() | new.keys():
        if key not in new:
            rows.append({**old[key], "_change_type": "delete"})
        elif key not in old:
            rows.append({**new[key], "_change_type": "insert"})
        elif repr(old[key]) != repr(new[key]):
            rows.append({**old[key], "_change_type": "update_preimage"})
            rows.append({**new[key], "_change_type": "update_postimage"})
    return as_set(rows)


def table(snapshot: Any, state: str, identity: list[str]) -> dict[Any, dict[str, Any]]:
    return {tuple(row[name] for name in identity): row for row in snapshot.to_arrow(f"op.{state}").to_pylist()}


def fill_value(backend: Any, random: np.random.Generator) -> None:
    kind = pa.struct([("n", pa.float64()), ("tags", pa.list_(pa.string())), ("of", pa.map_(pa.string(), pa.int64()))])
    state = backend.state(arrowstate.ValueStateDescriptor("state", kind))
    keys = random.choice(400, 60, replace=False)
    values = [
        None
        if number % 7 == 0
        else {"n": float(number % 3) or None, "tags": ["a", None][: number % 3], "of": [("x", number % 2)]}
        for number in random.integers(0, 100, keys.size).tolist()
    ]
    state.update_batch(pa.array(keys), pa.array(values, kind))


def fill_map(backend: Any, random: np.random.Generator) -> None:
    spaces = pa.schema([("space", pa.string())])
    state = backend.state(arrowstate.MapStateDescriptor("state", pa.string(), pa.int64(), namespace=spaces))
    keys = pa.array(random.choice(50, 40))
    space = pa.array(random.choice(["a", "b"], 40))
    state.put_batch(
        keys, pa.array(random.choice(["x", "y", "z"], 40)), pa.array(random.integers(0, 3, 40)), namespace=space
    )


def fill_list(backend: Any, random: np.random.Generator) -> None:
    state = backend.state(arrowstate.ListStateDescriptor("state", pa.int64()))
    state.add_batch(pa.array(random.choice(50, 40)), pa.array(random.integers(0, 9, 40)))
    state.clear_batch(pa.array(random.choice(50, 5, replace=False)))


def fill_timers(backend: Any, random: np.random.Generator) -> None:
    timers = backend.timers("state")
    timers.register_batch(pa.array(random.choice(50, 30)), pa.array(random.integers(0, 20, 30)))
    timers.delete_batch(pa.array(random.choice(50, 30)), pa.array(random.integers(0, 20, 30)))


KINDS: dict[str, tuple[Callable[[Any, np.random.Generator], None], str, list[str]]] = {
    "value": (fill_value, "state", ["k"]),
    "map in namespaces": (fill_map, "state", ["k", "space", "state_key"]),
    "list": (fill_list, "state", ["k", "_seq"]),
    "timer": (fill_timers, "state_event_time", ["k", "timestamp"]),
}


@pytest.mark.parametrize("format", ["arrow", "parquet"])
@pytest.mark.parametrize("kind", KINDS)
def test_changes_are_the_difference_of_the_tables(tmp_path: Any, kind: str, format: Any) -> None:
    fill, state, identity = KINDS[kind]
    store = arrowstate.open_store(tmp_path / "store", create=True)
    random = np.random.default_rng(1)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    snapshots: list[Any] = [None]

    with store.writer() as writer:
        for _ in range(6):
            fill(backend, random)
            snapshots.append(writer.checkpoint({"op": [backend]}, format=format))

    for first, before in enumerate(snapshots[:-1]):
        for after in (snapshots[first + 1], snapshots[-1]):
            found = as_set(changes_of(store, state, before, after))
            assert found == expected(state, identity, before, after)
            assert found


def test_rows_that_a_merge_or_a_rescale_only_moved_did_not_change(tmp_path: Any) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    state = backend.state(arrowstate.ValueStateDescriptor("state", pa.int64()))
    with store.writer(compaction=None) as writer:
        for start in range(0, 3000, 300):
            state.update_batch(pa.array(range(start, start + 400)), pa.repeat(pa.scalar(start, pa.int64()), 400))
            many = writer.checkpoint({"op": [backend]})
    store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.01)).apply()
    merged = store.latest()
    parts = [merged.restore("op", parallelism=3, subtask=subtask, max_parallelism=192) for subtask in range(3)]
    number = arrowstate.key_groups(pa.array([17]), 192)[0].as_py()
    owner = next(part for part in parts if number in part.key_groups)
    owner.state(arrowstate.ValueStateDescriptor("state", pa.int64())).update_batch([17], [-1])
    rescaled = commit(store, {"op": parts})

    assert {run.id for run in runs(many)}.isdisjoint(run.id for run in runs(merged))
    assert changes_of(store, "state", many, merged) == []
    assert [(row["k"], row["state"]) for row in changes_of(store, "state", merged, rescaled)] == [(17, 0), (17, -1)]
    assert as_set(changes_of(store, "state", many, rescaled)) == expected("state", ["k"], many, rescaled)


def test_rows_come_back_where_a_store_went_back_to_an_earlier_checkpoint(tmp_path: Any) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    described = arrowstate.ValueStateDescriptor("state", pa.int64())
    with store.writer() as writer:
        backend.state(described).update_batch(pa.array(range(100)), pa.array(range(100)))
        first = writer.checkpoint({"op": [backend]})
        backend.state(described).update_batch(pa.array(range(50)), pa.array(range(1, 51)))
        second = writer.checkpoint({"op": [backend]})
    third = commit(store, {"op": [first.restore("op")]})

    assert changes_of(store, "state", first, third) == []
    assert as_set(changes_of(store, "state", second, third)) == expected("state", ["k"], second, third)


def test_a_range_of_hashes_has_its_part_of_the_changes(tmp_path: Any) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    with store.writer() as writer:
        fill_value(backend, np.random.default_rng(1))
        first = writer.checkpoint({"op": [backend]})
        fill_value(backend, np.random.default_rng(2))
        second = writer.checkpoint({"op": [backend]})
    ranges = [arrowstate.key_group_range(128, parallelism=5, subtask=number) for number in range(5)]

    pieces = [
        changes_of(store, "state", first, second, ["k", "_key_group", "n"], groups.hash_bounds(128))
        for groups in ranges
    ]

    assert all(row["_key_group"] in groups for piece, groups in zip(pieces, ranges, strict=True) for row in piece)
    keys = [row["k"] for piece in pieces for row in piece]
    assert sorted(keys) == sorted(row["k"] for row in changes_of(store, "state", first, second))


def test_changes_are_found_step_by_step_where_there_are_many(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowstate.query.changes._STEP_ROWS", 10)
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    with store.writer() as writer:
        fill_map(backend, np.random.default_rng(1))
        first = writer.checkpoint({"op": [backend]})
        fill_map(backend, np.random.default_rng(2))
        second = writer.checkpoint({"op": [backend]})

    found = changes_of(store, "state", first, second)

    assert as_set(found) == expected("state", ["k", "space", "state_key"], first, second)


def test_a_row_that_was_only_used_changed_for_those_who_ask_for_its_time(tmp_path: Any) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    now = [1000]
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128, clock_ms=lambda: now[0])
    state = backend.state(arrowstate.ValueStateDescriptor("state", pa.int64(), ttl=arrowstate.TimeToLive(10_000)))
    with store.writer() as writer:
        state.update_batch([1, 2], [5, 6])
        first = writer.checkpoint({"op": [backend]})
        now[0] = 2000
        state.update_batch([1], [5])
        second = writer.checkpoint({"op": [backend]})

    assert changes_of(store, "state", first, second) == []
    assert changes_of(store, "state", first, second, ["k", "_updated_at"]) == [
        {"k": 1, "_updated_at": 1000, "_change_type": "update_preimage"},
        {"k": 1, "_updated_at": 2000, "_change_type": "update_postimage"},
    ]


def test_rows_of_an_earlier_schema_are_read_in_the_one_asked_for(tmp_path: Any) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    narrow = arrowstate.ValueStateDescriptor("state", pa.struct([("n", pa.int32())]))
    wide = arrowstate.ValueStateDescriptor("state", pa.struct([("n", pa.int64()), ("more", pa.string())]))
    with store.writer() as writer:
        backend.state(narrow).update_batch([1, 2, 3], [{"n": 1}, {"n": 2}, {"n": 3}])
        first = writer.checkpoint({"op": [backend]})
        backend = first.restore("op")
        backend.state(wide).update_batch([2, 4], [{"n": 2, "more": "x"}, {"n": 4, "more": None}])
        second = writer.checkpoint({"op": [backend]})

    assert changes_of(store, "state", first, second) == [
        {"k": 2, "n": 2, "more": None, "_change_type": "update_preimage"},
        {"k": 2, "n": 2, "more": "x", "_change_type": "update_postimage"},
        {"k": 4, "n": 4, "more": None, "_change_type": "insert"},
    ]
    with pytest.raises(IncompatibleStateError, match=r"in version 2.*in version 1.*by starting it anew"):
        StateChanges(store.storage, StateReader(store.storage, first.entry, "op", "state"), first.entry, second.entry)


def test_rows_of_a_key_that_was_widened_and_renamed_are_compared_as_the_newer_key(tmp_path: Any) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("was", pa.int32())]), max_parallelism=128)
    described = arrowstate.ValueStateDescriptor("state", pa.int64())
    with store.writer() as writer:
        backend.state(described).update_batch(pa.array(range(100), pa.int32()), pa.array(range(100)))
        writer.checkpoint({"op": [backend]})
        wide = store.latest().restore("op", key=KEY, evolution=arrowstate.SchemaEvolution(renamed={"was": "k"}))
        wide.state(described).update_batch([7, 1 << 40], [-7, 1])
        wide.state(described).clear_batch([9])
        second = writer.checkpoint({"op": [wide]})

    found = second.changes("op.state", since=1).to_pylist()

    assert sorted((row["_change_type"], row["k"], row["state"]) for row in found) == [
        ("delete", 9, 9),
        ("insert", 1 << 40, 1),
        ("update_postimage", 7, -7),
        ("update_preimage", 7, 7),
    ]
    groups = [row["_key_group"] for row in second.changes("op.state", since=1, columns=["k", "_key_group"]).to_pylist()]
    assert groups == arrowstate.key_groups(pa.array([row["k"] for row in found]), 128).to_pylist()
    history = second.history("op.state", [7, 9, 1 << 40]).to_pylist()
    assert sorted((row["_checkpoint_id"], row["_change_type"], row["k"], row["state"]) for row in history) == [
        (1, "insert", 7, 7),
        (1, "insert", 9, 9),
        (2, "delete", 9, 9),
        (2, "insert", 1 << 40, 1),
        (2, "update_postimage", 7, -7),
        (2, "update_preimage", 7, 7),
    ]


def test_rows_whose_keys_became_one_are_not_compared(tmp_path: Any) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64()), ("shop", pa.string())]), max_parallelism=8)
    described = arrowstate.ReducingStateDescriptor("state", pa.int64(), reduce="sum")
    keys = pa.record_batch({"k": [1, 1, 2], "shop": ["a", "b", "a"]})
    with store.writer() as writer:
        backend.state(described).add_batch(keys, [1, 2, 3])
        first = writer.checkpoint({"op": [backend]})
        evolution = arrowstate.SchemaEvolution(dropped=["shop"], merge={"state": "sum"})
        second = writer.checkpoint({"op": [first.restore("op", key=KEY, evolution=evolution)]})

    with pytest.raises(IncompatibleStateError, match="in rows of several keys.*one side of the change of the key"):
        second.changes("op.state", since=1)
    with pytest.raises(IncompatibleStateError, match=r"keyed by k: int64, shop: string.*keyed by k: int64"):
        second.history("op.state", [1])
    assert store.diff(1, 2).states[0].inserted is None


def test_schemas_that_went_two_ways_are_compared_by_what_they_have_in_common(tmp_path: Any) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)

    def evolved(kind: list[tuple[str, pa.DataType]], renamed: dict[str, str], keys: list[int], rows: Any) -> Any:
        backend = store.latest().restore("op")
        evolution = arrowstate.SchemaEvolution(renamed=renamed)
        backend.state(arrowstate.ValueStateDescriptor("state", pa.struct(kind), evolution=evolution)).update_batch(
            keys, rows
        )
        return commit(store, {"op": [backend]})

    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)
    state = backend.state(arrowstate.ValueStateDescriptor("state", pa.struct([("a", pa.int64())])))
    state.update_batch([1, 2, 3], [{"a": 1}, {"a": 2}, {"a": 3}])
    commit(store, {"op": [backend]})
    evolved([("x", pa.int64()), ("b", pa.int64())], {"a": "x"}, [1], [{"x": 1, "b": 5}])
    store.rollback(1)
    evolved([("a", pa.int64()), ("c", pa.int64())], {}, [3], [{"a": 3, "c": 7}])

    assert store.snapshot(4).changes("op.state", since=2).to_pylist() == [
        {"k": 3, "a": 3, "c": None, "_change_type": "update_preimage"},
        {"k": 3, "a": 3, "c": 7, "_change_type": "update_postimage"},
    ]


def test_a_state_that_gets_a_time_to_live_is_compared_with_what_it_was(tmp_path: Any) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)
    backend.state(arrowstate.ValueStateDescriptor("state", pa.int64())).update_batch([1, 2], [1, 2])
    commit(store, {"op": [backend]})
    backend = store.latest().restore("op", clock_ms=lambda: 5)
    ttl = arrowstate.TimeToLive(10_000)
    backend.state(arrowstate.ValueStateDescriptor("state", pa.int64(), ttl=ttl)).update_batch([2], [3])
    after = commit(store, {"op": [backend]})

    assert [row["state"] for row in after.changes("op.state", since=1).to_pylist()] == [2, 3]
    times = after.changes("op.state", since=1, columns=["k", "_updated_at"]).to_pylist()
    assert {(row["k"], row["_change_type"], row["_updated_at"] is None) for row in times} == {
        (key, kind, kind == "update_preimage") for key in (1, 2) for kind in ("update_preimage", "update_postimage")
    }


def test_a_merge_between_two_checkpoints_of_one_schema_hides_no_change(tmp_path: Any) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    old = arrowstate.ValueStateDescriptor("v", pa.struct([("a", pa.int32())]))
    new = arrowstate.ValueStateDescriptor("v", pa.struct([("a", pa.int32()), ("b", pa.int32())]))
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)
    backend.state(old).update_batch([1, 2, 3], [{"a": 1}] * 3)
    store.writer().checkpoint({"op": [backend]})
    restored = store.latest().restore("op")
    value = restored.state(new)
    value.update_batch([4], [{"a": 4, "b": 4}])
    writer = store.writer()
    writer.checkpoint({"op": [restored]})
    value.update_batch([1, 2, 3], [{"a": 2, "b": 2}] * 3)
    writer.checkpoint({"op": [restored]})
    assert [len(store.snapshot(number).entry.operators[0].states[0].earlier_schemas) for number in (2, 3)] == [1, 0]

    counts = store.sql("from arrowstate.change_counts(2, 3)").fetchall()
    rows = store.sql("from arrowstate.changes('op.v', 1, 3)").fetchall()

    assert [row[2:5] for row in counts] == [(0, 3, 0)]
    assert len(rows) == 7


def test_a_state_that_one_checkpoint_lacks_came_or_went_as_a_whole(tmp_path: Any) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    described = arrowstate.ValueStateDescriptor("state", pa.int64())
    other = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    other.state(arrowstate.ValueStateDescriptor("other", pa.int64())).update_batch([9], [9])
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(described).update_batch([1], [1])
    with store.writer() as writer:
        without = writer.checkpoint({"other": [other]})
        there = writer.checkpoint({"other": [other], "op": [backend]})
        gone = writer.checkpoint({"other": [other]}, allow_dropped_state=True)
    reader = StateReader(store.storage, there.entry, "op", "state")

    def types(before: Any, after: Any) -> list[str]:
        found = StateChanges(store.storage, reader, before.entry, after.entry)
        return [row["_change_type"] for batch in found.batches(["k"], EVERY_HASH) for row in batch.to_pylist()]

    assert (types(without, there), types(there, gone), types(without, gone)) == (["insert"], ["delete"], [])


def test_the_id_of_the_checkpoint_is_no_column_of_a_change(people: arrowstate.Snapshot) -> None:
    reader = StateReader(people.storage, people.entry, "people", "age")

    assert change_columns(reader) == ["_key_hash", "name", "age", "_key_group"]


def runs(snapshot: Any) -> list[Any]:
    from arrowstate.query.describe import runs_of

    return runs_of(snapshot.storage, snapshot.entry.operators[0])


@pytest.fixture
def log(tmp_path: Any) -> Any:
    """A store with the checkpoints 1 to 4, and its log: the entries 1 and 5 are fences, and 4 is a compaction of 2."""
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    state = backend.state(arrowstate.ValueStateDescriptor("state", pa.int64()))
    with store.writer(compaction=None) as writer:
        for number in range(2):
            state.update_batch(pa.array(range(2000 - 500 * number)), pa.array(range(2000 - 500 * number)))
            writer.checkpoint({"op": [backend]})
    store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.01)).apply()
    backend = store.latest().restore("op")
    with store.writer() as writer:
        for _ in range(2):
            writer.checkpoint({"op": [backend]})
    return CommitLog(store.storage), store


def test_steps_go_from_the_last_entry_of_a_checkpoint_to_the_first_of_the_next(log: Any) -> None:
    log, _ = log
    entries = {(entry.kind, entry.checkpoint_id): entry.number for entry in log.backwards()}
    assert sorted(entries.values()) == [2, 3, 4, 6, 7]
    assert entries["compaction", 2] == 4

    steps = timeline.steps_between(log, 1, None)

    assert steps == [timeline.Step(2, 2, 3), timeline.Step(3, 4, 6), timeline.Step(4, 6, 7)]
    assert timeline.steps_between(log, 2, 3) == steps[1:2]
    assert timeline.steps_between(log, 4, None) == []
    assert timeline.steps_between(log, None, None) == [timeline.Step(4, None, 7)]
    assert timeline.steps_between(log, None, 3, snapshot=2) == [timeline.Step(2, None, 4), *steps[1:2]]
    assert (timeline.oldest_checkpoint_id(log), timeline.newest_checkpoint_id(log)) == (1, 4)


def test_steps_over_what_was_collected_are_refused_unless_they_are_wanted(log: Any) -> None:
    log, store = log
    store.tag("kept", 1)
    store.collect(arrowstate.RetentionPolicy(count=1), grace_ms=0, allow_short_grace=True).apply()

    with pytest.raises(CheckpointsCollectedError, match="after checkpoint 1 .* it has 1, 4"):
        timeline.steps_between(log, 1, None)
    with pytest.raises(CheckpointsCollectedError, match="after checkpoint 2 .* it has 1, 4"):
        timeline.steps_between(log, 2, None, gaps=True)
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint 3 .* it has 1, 4"):
        timeline.steps_between(log, 1, 3, gaps=True)
    assert timeline.steps_between(log, 1, None, gaps=True) == [timeline.Step(4, 2, 7)]


@pytest.mark.parametrize("is_begun", [True, False])
def test_the_changes_since_a_checkpoint_that_is_collected_meanwhile_name_that_one(
    tmp_path: Any, is_begun: bool
) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    state = backend.state(arrowstate.ValueStateDescriptor("state", pa.int64()))
    keys = pa.array(range(20_000))
    with store.writer() as writer:
        for number in range(2):
            state.update_batch(keys, pa.repeat(number, len(keys)))
            writer.checkpoint({"op": [backend]})
    before, after = (snapshot.entry for snapshot in store.checkpoints())
    assert store.diff(1, 2).to_arrow()["updated"].to_pylist() == [len(keys)]

    def changes() -> StateChanges:
        return StateChanges(store.storage, StateReader(store.storage, after, "op", "state"), before, after)

    forget_open_files()
    begun = changes() if is_begun else None
    store.collect(arrowstate.RetentionPolicy(count=1)).apply()
    forget_open_files()
    forget_checkpoints()

    with pytest.raises(arrowstate.CollectedError, match="checkpoint 1 was collected"):
        (begun or changes()).counts()
