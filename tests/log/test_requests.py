"""How many requests the log costs, and what a log that remembers its newest entry returns all the same."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import CollectedError, CommitUnknownError
from arrowstate.log.boundary import NewReferences, path_of, put_boundary
from arrowstate.log.commit import Commit
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import next_checkpoint
from arrowstate.store import StateStore
from arrowstate.testing.faults import Call, FaultyStorage
from arrowstate_formats.documents import BoundaryDocument, ManifestHandle, SubtaskDocument
from stores import CITY, USER, commit


@dataclass
class Counted:
    """A store whose requests are counted, in the hands of a process that keeps it open."""

    store: StateStore
    requests: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.storage = FaultyStorage(self.store.storage, self._count)
        self.held = StateStore(self.storage, self.store.store_id)

    def _count(self, call: Call) -> None:
        self.requests[call.verb] += 1

    def of(self, act: Any) -> dict[str, int]:
        self.requests.clear()
        act()
        return dict(self.requests)


@pytest.fixture
def counted(request: pytest.FixtureRequest) -> Counted:
    return Counted(arrowstate.open_store(f"memory://requests/{request.node.name}", create=True))


def fill(store: StateStore, *cities: str) -> None:
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=8)
    with store.writer() as writer:
        for city in cities:
            backend.state(CITY).update_batch(["ann"], [city])
            writer.checkpoint({"people": [backend]})


def city(store: StateStore) -> str:
    return store.sql("select city from people.city").fetchall()[0][0]


def test_a_query_on_a_store_that_is_held_takes_one_listing_and_three_reads(counted: Counted) -> None:
    fill(counted.store, "Rome", "Oslo")
    city(counted.held)

    # One of them says that the store is the one that was opened.
    assert counted.of(lambda: city(counted.held)) == {"list": 1, "read": 3}
    assert city(counted.held) == "Oslo"


def test_a_restore_reads_a_manifest_once_however_many_states_there_are(counted: Counted) -> None:
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=8)
    keys = [f"user {number}" for number in range(300)]
    for number in range(10):
        backend.state(arrowstate.ValueStateDescriptor(f"city{number}", pa.string())).update_batch(keys, keys)
    snapshot = commit(counted.store, {"people": [backend]})
    manifest = snapshot.entry.operators[0].subtasks[0].manifest.path
    snapshot = counted.held.latest()

    requests = counted.of(lambda: snapshot.restore("people"))

    assert manifest is not None
    # The files of the ten states are mapped.
    assert requests["read"] == 1


def test_a_commit_of_a_micro_batch_takes_two_listings_and_three_reads(counted: Counted) -> None:
    pytest.importorskip("pyspark", reason="the package pyspark is not installed")
    from arrowstate.spark import commit, metrics, task
    from arrowstate.spark import micro_batches as batches

    document = SubtaskDocument(subtask=0, key_groups=(0, 7), manifest=ManifestHandle(inline=[], bytes=2), live_rows={})
    bases: list[int | None] = [None]

    def run(batch_id: int) -> None:
        batch = batches.MicroBatch("query", "run", batch_id)
        figures = metrics.TaskMeter().unchanged(document, 0)
        result = task.SubtaskResult(
            base=bases[-1], key=[], max_parallelism=8, states=[], document=document, metrics=figures
        )
        work = commit.BatchWork(batch, 0, [result], [], {}, frozenset(), {}, None)
        entry = commit.commit_batch(counted.storage, ["op"], work, new_id=lambda: f"id-{len(bases)}", clock_ms=int)
        bases.append(entry.number)

    run(0)

    assert counted.of(lambda: run(1)) == {"read": 3, "list": 2, "put_if_absent": 1, "put_hint": 1}
    assert counted.of(lambda: run(2)) == {"read": 3, "list": 2, "put_if_absent": 1, "put_hint": 1}


class Beside:
    """A storage whose requests overlap; some of them end only when another of them has begun."""

    requests_at_once = 4

    def __init__(self, storage: Any, together: set[tuple[str, str]]) -> None:
        self._storage = storage
        self._together = together
        self._barrier = threading.Barrier(2)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._storage, name)

        def call(path: str, *arguments: Any) -> Any:
            if (name, path) in self._together:
                self._barrier.wait(30)
            return real(path, *arguments)

        return call if name in ("read", "list", "put_hint") else real


def test_the_entry_after_the_newest_is_asked_for_in_the_same_time(counted: Counted) -> None:
    fill(counted.store, "Rome", "Oslo")
    beside = Beside(counted.store.storage, {("read", path_of(3)), ("read", path_of(4))})

    history = CommitLog(beside).history()  # type: ignore[arg-type]

    assert history.newest is not None
    assert history.newest.document.number == 3


def test_entries_after_a_hint_that_is_behind_are_found_where_requests_overlap(counted: Counted) -> None:
    fill(counted.store, "Rome", "Oslo", "Bern", "Lima")
    for hint, newest in ((b"1", 5), (b"4", 5), (b"5", 5)):
        counted.store.storage.put_hint("_latest", hint)
        history = CommitLog(Beside(counted.store.storage, set())).history()  # type: ignore[arg-type]
        assert history.newest is not None
        assert history.newest.document.number == newest


def test_the_hint_is_written_while_collections_are_looked_up(counted: Counted) -> None:
    fill(counted.store, "Rome")
    newest = CommitLog(counted.store.storage).latest()
    assert newest is not None
    entry = next_checkpoint(newest, [], commit_id="next", started_at_ms=0, now_ms=0, watermark=None, properties={})
    beside = Beside(counted.store.storage, {("list", "gc/"), ("put_hint", "_latest")})

    Commit(beside).append(CommitLog(beside), entry)  # type: ignore[arg-type]

    assert counted.store.storage.read("_latest") == b"3"
    assert counted.store.latest().checkpoint_id == 2


def test_a_store_that_is_held_goes_on_to_checkpoints_of_others(counted: Counted) -> None:
    fill(counted.store, "Rome")
    seen = [city(counted.held)]

    fill(counted.store, "Oslo", "Bern", "Lima")

    assert [*seen, city(counted.held)] == ["Rome", "Lima"]
    assert counted.held.latest().entry.number == 6


def test_a_store_that_is_held_follows_those_who_gave_the_number_of_a_lost_entry_again(counted: Counted) -> None:
    fill(counted.store, "Rome", "Oslo")
    seen = [city(counted.held)]
    counted.store.storage.delete(path_of(3))

    with pytest.warns(RuntimeWarning, match="lost"):
        counted.store.writer(accept_loss=True)
    fill(counted.store, "Bern")

    assert [*seen, city(counted.held)] == ["Oslo", "Bern"]


def test_a_store_without_an_entry_is_empty_after_a_collection_too(counted: Counted) -> None:
    empty = BoundaryDocument(boundary=0, swept=0, collection_id="c", written_at_ms=0, condemned=[], waiting={})
    put_boundary(counted.storage, empty)

    assert CommitLog(counted.storage).history().newest is None
    assert counted.held.checkpoints() == []


def test_what_is_done_to_the_properties_of_a_snapshot_stays_there(counted: Counted) -> None:
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=8)
    commit(counted.store, {"people": [backend]}, properties={"offsets": [1]})

    counted.held.latest().properties["offsets"].append(2)

    assert counted.held.latest().properties == {"offsets": [1]}


def test_statements_that_were_read_before_an_append_do_not_hide_those_made_meanwhile(counted: Counted) -> None:
    fill(counted.store, "Rome")
    log = CommitLog(counted.storage)
    history = log.history()
    assert history.newest is not None
    entry = next_checkpoint(
        history.newest, [], commit_id="late", started_at_ms=0, now_ms=0, watermark=None, properties={}
    )
    path = "data/people/city/1f0c6f0e4c2b4b6f9a3d1e7a8b9c0d1e.arrow"
    condemned = BoundaryDocument(boundary=1, swept=0, collection_id="c", written_at_ms=0, condemned=[path], waiting={})
    put_boundary(counted.storage, condemned)
    references = NewReferences(everything=lambda: [path])

    with pytest.raises(CollectedError):
        Commit(log.storage).append(log, entry, references)
    with pytest.raises(CommitUnknownError):
        Commit(log.storage).append(log, entry, references, said=history.said)
