"""Checkpoints of many subtasks: the log entry stays small, and everything that reads a checkpoint reads it."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

import arrowstate
from arrowstate.checkpoints.committing import Needs
from arrowstate.checkpoints.writer import CheckpointWriter
from arrowstate.clock import new_id
from arrowstate.errors import CorruptDataError
from arrowstate.files.references import ReferenceReader
from arrowstate.files.subtasks import whole_operators
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import path_of
from arrowstate.store import StateStore
from arrowstate_formats.document_base import Int64
from arrowstate_formats.documents import MAX_ENTRY_BYTES, SubtaskStatisticsDocument, encode
from stores import KEY, TOTAL, commit, totals

MANY = 4096
PARALLELISM = 160
KEYS = pa.array(range(5_000), pa.int64())


def job(parallelism: int, max_parallelism: int) -> list[arrowstate.KeyedStateBackend]:
    """Backends of all subtasks, each with a small state."""
    groups = arrowstate.key_groups(KEYS, max_parallelism).to_numpy()
    backends = []
    for subtask in range(parallelism):
        own = arrowstate.key_group_range(max_parallelism, parallelism=parallelism, subtask=subtask)
        backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=max_parallelism, key_groups=own)
        keys = KEYS.filter(pa.array((groups >= own.start) & (groups <= own.end)))
        backend.state(TOTAL).add_batch(keys, keys)
        backends.append(backend)
    return backends


def sources(parallelism: int) -> list[arrowstate.OperatorStateBackend]:
    """Operator state of all subtasks."""
    backends = []
    for subtask in range(parallelism):
        backend = arrowstate.OperatorStateBackend()
        backend.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add(subtask)
        backends.append(backend)
    return backends


def sizes(store: StateStore) -> list[int]:
    """The bytes of each log entry."""
    return [len(store.storage.read(path)) for path in store.storage.list("log/")]


class Counted:
    """What a storage was asked for."""

    def __init__(self, storage: object, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: dict[str, int] = {}
        read = storage.read  # type: ignore[attr-defined]

        def counting(path: str, *arguments: int) -> bytes:
            data: bytes = read(path, *arguments)
            self.reads[path] = len(data)
            return data

        monkeypatch.setattr(storage, "read", counting)


def test_entry_and_fence_of_4096_subtasks_are_small(store: StateStore) -> None:
    # As 4,096 subtasks with one small state would have written it.
    (operator,) = whole_operators(store.storage, store.latest().entry.operators)
    subtasks = [
        replace(operator.subtasks[number % PARALLELISM], subtask=number, key_groups=(number, number))
        for number in range(MANY)
    ]
    operator = replace(operator, max_parallelism=MANY, subtasks=subtasks, operator_states=[])
    measured = [
        SubtaskStatisticsDocument(
            operator="op",
            subtask=number,
            sync_us=310,
            async_us=8400,
            bytes_written=1537,
            bytes_total=1537,
            files_written=0,
        )
        for number in range(MANY)
    ]
    large = arrowstate.open_store("memory://many-4096", create=True)
    writer = CheckpointWriter(large.storage, large.store_id, clock_ms=lambda: 5, new_id=new_id)

    writer.commit([operator], started_at_ms=1)
    lists = large.storage.list("manifests/")
    changed = replace(operator, subtasks=[replace(subtasks[0], watermark=Int64(7)), *subtasks[1:]])
    writer.commit([changed], needs=Needs((), 2, set()), started_at_ms=1, statistics=measured)
    large.writer()

    fence, first, second, last = sizes(large)
    assert max(fence, last) < 2_000
    assert first < 60_000
    # The measurements of each subtask, which only the entry of a checkpoint has.
    assert second < 220_000 < MAX_ENTRY_BYTES
    assert len(lists) == MANY // 64
    assert sum(len(large.storage.read(path)) for path in lists) < 3_000 * MANY
    # One list is written anew, the others are referred to again.
    assert len(large.storage.list("manifests/")) == len(lists) + 1


def test_a_subtask_is_restored_from_one_list(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = store.latest()
    counted = Counted(store.storage, monkeypatch)

    backend = snapshot.restore("op", parallelism=PARALLELISM, subtask=70)

    assert len(counted.reads) == 1
    assert sum(counted.reads.values()) < 200_000
    keys = KEYS.filter(pc.is_in(arrowstate.key_groups(KEYS, 512), pa.array([*backend.key_groups], pa.int32())))
    assert backend.state(TOTAL).get_batch(keys).equals(keys)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> StateStore:
    """A store whose lists are in files, with operator state."""
    made = arrowstate.open_store(f"memory://many-{request.node.name}", create=True)
    commit(made, {"op": job(PARALLELISM, 512)}, operator_states={"op": sources(PARALLELISM)})
    assert made.latest().entry.operators[0].subtask_files
    assert made.latest().entry.operators[0].operator_states[0].part_files
    return made


EXPECTED = {key: key for key in KEYS.to_pylist()}


def test_every_reader_reads_lists_in_files(store: StateStore) -> None:
    snapshot = store.latest()

    assert totals(snapshot) == EXPECTED
    assert store.sql('select sum(total), count(*) from "op".total').fetchall() == [(sum(EXPECTED), len(EXPECTED))]
    assert store.sql("select count(*) from arrowstate.subtasks").fetchall() == [(PARALLELISM + 1,)]
    assert snapshot.operator_state("op", "offsets")["offsets"].to_pylist() == list(range(PARALLELISM))
    assert store.sql('select sum(offsets) from "op".offsets').fetchall() == [(sum(range(PARALLELISM)),)]
    assert snapshot.restore_operator_state("op", parallelism=3, subtask=1).state_names == ("offsets",)
    assert snapshot.verify(deep=True).problems == []
    assert snapshot.show()["operators"][0]["states"][0]["rows"] == len(EXPECTED)
    assert snapshot.storage_use().files == len(ReferenceReader(store.storage).files(snapshot.entry.operators))
    whole = snapshot.restore("op")
    assert whole.state(TOTAL).get_batch(pa.array([3, 4_999])).to_pylist() == [3, 4_999]


def test_savepoint_import_and_compaction_take_lists_in_files(store: StateStore) -> None:
    savepoint = store.savepoint("copy")
    other = arrowstate.open_store(f"{store.url}/other", create=True)
    imported = other.import_savepoint(store.latest())
    store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.01, min_bytes=0, max_small_files=1)).apply()

    for snapshot in (savepoint, imported, store.latest()):
        assert totals(snapshot) == EXPECTED
        assert snapshot.operator_state("op", "offsets")["offsets"].to_pylist() == list(range(PARALLELISM))
        assert snapshot.verify(deep=True).problems == []
        assert snapshot.entry.operators[0].subtask_files
    assert savepoint.storage.list("manifests/")


def test_a_collection_keeps_lists_that_are_needed_and_deletes_the_others(store: StateStore) -> None:
    before = set(store.storage.list("manifests/"))
    backends = [
        store.latest().restore("op", parallelism=PARALLELISM, subtask=subtask) for subtask in range(PARALLELISM)
    ]
    backends[5].state(TOTAL).add_batch(pa.array([], pa.int64()), pa.array([], pa.int64()))
    backends[5].advance_watermark(7)
    commit(store, {"op": backends}, operator_states={"op": sources(PARALLELISM)})

    store.collect(arrowstate.RetentionPolicy(count=1)).apply()

    after = set(store.storage.list("manifests/"))
    assert len(before - after) == len(after - before) == 1
    assert totals(store.latest()) == EXPECTED
    assert store.verify().problems == []


def test_a_list_that_is_damaged_or_missing_is_named(store: StateStore) -> None:
    path = store.latest().entry.operators[0].subtask_files[2].path
    good = store.storage.read(path)
    for damaged in (good.replace(b'"first":128', b'"first":129'), None):
        store.storage.delete(path)
        if damaged is not None:
            with store.storage.write_file(path) as file:
                file.write(damaged)

        with pytest.raises(CorruptDataError, match=path):
            store.latest().restore("op")
        assert [problem for problem in store.verify().problems if path in problem]
    # The subtasks of the other lists are read.
    assert store.latest().restore("op", parallelism=PARALLELISM, subtask=0).state_names == ("total",)


def test_a_fence_names_the_entry_that_has_its_content(store: StateStore) -> None:
    store.writer()
    log = CommitLog(store.storage)
    newest, checkpoint = log.latest_with_checkpoint()

    again = json.loads(store.storage.read(path_of(newest.document.number)))

    assert (newest.document.kind, again["operators"]) == ("fence", [])
    assert again["content"]["number"] == checkpoint.number == 2
    assert again["parent"]["number"] == 2
    store.writer()
    assert json.loads(store.storage.read(path_of(4)))["content"] == again["content"]
    assert totals(store.latest()) == EXPECTED


def test_a_fence_is_compared_with_the_entry_that_it_names() -> None:
    store = arrowstate.open_store("memory://many-fence", create=True)
    with store.writer() as writer:
        entry = writer.checkpoint({"op": job(1, 8)}).entry
    store.writer()
    store.storage.delete(path_of(2))
    store.storage.put_if_absent(path_of(2), encode(replace(entry, committed_at_ms=9)), entry.commit_id)

    with pytest.raises(CorruptDataError, match="the fence after it was written after other bytes"):
        CommitLog(store.storage).latest_with_checkpoint()
