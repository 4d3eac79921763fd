"""A checkpoint is found by its id with few reads, whatever numbers the entries have."""

import random

import pyarrow as pa
import pytest
from msgspec.structs import replace

import arrowstate
from arrowstate.errors import CheckpointNotFoundError, CorruptDataError, FormatVersionError, InvalidInputError
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import next_checkpoint, next_fence, path_of
from arrowstate.storage import clear_memory_storage, open_storage
from arrowstate.testing.faults import FaultyStorage
from arrowstate_formats.documents import encode
from written_logs import Log

URL = "memory://finding-by-id"
KEY = pa.schema([("k", pa.int64())])


@pytest.fixture
def storage():
    yield open_storage(URL, create=True)
    clear_memory_storage(URL)


def counted(storage):
    calls = []
    return CommitLog(FaultyStorage(storage, lambda call: calls.append(call.verb))), calls


def test_the_first_checkpoint_is_1_and_each_new_one_the_next_whatever_fences_lie_between(storage):
    log = Log(storage)
    for _ in range(3):
        log.fence()
        log.fence()
        for _ in range(2):
            log.commit()

    assert sorted(log.found.items()) == [(1, 3), (2, 4), (3, 7), (4, 8), (5, 11), (6, 12)]
    assert [log.log.read(number).document.last_checkpoint_id for number in (1, 2, 5, 6, 9)] == [0, 0, 2, 2, 4]


def test_an_id_that_does_not_rise_is_refused(storage):
    log = Log(storage)
    log.fence()
    log.commit(skipped=4)
    options = {"commit_id": "x", "started_at_ms": 0, "now_ms": 0, "watermark": None, "properties": {}}

    for given in (4, 5):
        with pytest.raises(InvalidInputError, match=f"checkpoint {given} cannot be committed after checkpoint 5"):
            next_checkpoint(log.newest, [], checkpoint_id=given, **options)


@pytest.mark.parametrize("seed", range(12))
def test_each_id_is_found_and_no_other_one(storage, seed):
    draw = random.Random(seed)
    log = Log(storage)
    log.fence()
    for _ in range(draw.choice([5, 40, 120])):
        action = draw.choices(["commit", "fence", "skip", "compact"], [draw.random(), draw.random(), 0.2, 0.2])[0]
        if action == "fence":
            log.fence()
        elif action == "compact" and log.checkpoint is not None:
            log.compact()
        else:
            log.commit(skipped=draw.randrange(1, 9) if action == "skip" else 0)
    log.commit()
    highest = log.checkpoint.checkpoint_id
    if seed % 3:
        ids = sorted(log.found)
        log.collect(log.found[draw.choice(ids)], keep=draw.sample(ids, min(3, len(ids))))

    for checkpoint_id in range(-1, highest + 3):
        if checkpoint_id in log.found:
            found = log.log.committed_checkpoint(checkpoint_id)
            assert (found.document.checkpoint_id, found.document.number) == (checkpoint_id, log.found[checkpoint_id])
        else:
            with pytest.raises(CheckpointNotFoundError) as caught:
                log.log.committed_checkpoint(checkpoint_id)
            assert caught.value.available == tuple(sorted(log.found))


def test_few_entries_are_read_however_many_fences_and_holes_there_are(storage):
    draw = random.Random(5)
    log = Log(storage)
    log.fence()
    for _ in range(300):
        for _ in range(draw.choice([0, 0, 1, 5])):
            log.fence()
        log.commit(skipped=draw.choice([0, 0, 0, 7]))
    for _ in range(200):
        log.fence()
    ids = sorted(log.found)
    kept = draw.sample(ids[:100], 5)
    log.collect(log.found[ids[100]], keep=kept)
    assert len(log.log.numbers()) > 500

    reads = {}
    for checkpoint_id in [*kept, *ids[100:]]:
        counting, calls = counted(storage)
        assert counting.committed_checkpoint(checkpoint_id).document.number == log.found[checkpoint_id]
        assert calls.count("list") <= (4 if checkpoint_id in kept else 3)
        reads[checkpoint_id] = calls.count("read")

    assert len(calls) == reads[ids[-1]] + 3
    assert max(reads.values()) <= 2 * 10 + 2 + len(kept)
    assert sum(reads.values()) / len(reads) < 14


def test_four_entries_are_read_where_nothing_lies_between(storage):
    log = Log(storage)
    log.fence()
    for _ in range(500):
        log.commit()
    for checkpoint_id in (1, 17, 250, 499, 500):
        counting, calls = counted(storage)

        assert counting.checkpoint(checkpoint_id).number == checkpoint_id + 1

        assert calls.count("read") <= 4


def test_a_checkpoint_is_found_although_its_neighbours_are_damaged_or_gone(storage):
    log = Log(storage)
    log.fence()
    for _ in range(9):
        log.commit()
    log.fence()
    for number in (3, 7, 10, 11):
        data = storage.read(path_of(number))
        storage.delete(path_of(number))
        if number != 3:
            storage.put_if_absent(path_of(number), data.replace(b'"fence"', b'"fenze"')[:-9], "x")

    for checkpoint_id in (1, 3, 4, 5, 7, 8):
        assert log.log.checkpoint(checkpoint_id).checkpoint_id == checkpoint_id
    for checkpoint_id in (2, 6, 9, 10):
        with pytest.raises(CorruptDataError):
            log.log.checkpoint(checkpoint_id)


def test_the_checkpoint_that_a_damaged_compaction_repeats_is_found_in_its_place(storage):
    log = Log(storage)
    log.fence()
    log.commit()
    first = log.commit()
    log.fence()
    number = log.compact()
    for _ in range(3):
        log.fence()
    assert log.log.checkpoint(2).kind == "compaction"
    data = storage.read(path_of(number))
    storage.delete(path_of(number))
    storage.put_if_absent(path_of(number), data[:-9], "x")

    assert log.log.checkpoint(2).number == first


def test_an_older_checkpoint_is_found_though_a_newer_version_has_gone_on(storage):
    log = Log(storage)
    log.fence()
    for _ in range(3):
        log.commit()
    data = encode(replace(log.newest.document, number=5, parent=log.newest.as_parent, checkpoint_id=4))
    storage.put_if_absent(path_of(5), data.replace(b'"format_version": 1', b'"format_version": 9'), "x")

    assert log.log.checkpoint(2).number == 3
    with pytest.raises(FormatVersionError):
        log.log.checkpoint(9)


def test_what_is_left_below_the_boundary_leads_no_search_astray(storage):
    """A writer that slept made an entry under a collected number, with an id that had been given since."""
    log = Log(storage)
    log.fence()
    for _ in range(9):
        log.commit()
    log.collect(8, keep=[2, 5])
    zombie = replace(log.log.read(8).document, number=4, parent=None, checkpoint_id=8, commit_id="zombie")
    storage.put_if_absent(path_of(4), encode(zombie), "zombie")

    assert [log.log.checkpoint(id).number for id in (2, 5, 7, 8, 9)] == [3, 6, 8, 9, 10]


def test_the_log_of_a_savepoint_goes_on_above_its_id():
    store = arrowstate.open_store("memory://finding-by-id-source", create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)
    with store.writer() as writer:
        for _ in range(3):
            writer.checkpoint({"op": [backend]})
    log = CommitLog(store.savepoint("one").storage)
    again = arrowstate.open_store("memory://finding-by-id-source/savepoints/one")
    with again.writer() as writer:
        made = [writer.checkpoint({"op": [backend]}).checkpoint_id for _ in range(2)]
    again.collect(arrowstate.RetentionPolicy(count=1)).apply()

    assert made == [4, 5]
    assert [log.checkpoint(id).kind for id in (3, 5)] == ["savepoint", "checkpoint"]
    with pytest.raises(CheckpointNotFoundError, match="it has 3, 5"):
        log.checkpoint(4)
    clear_memory_storage("memory://finding-by-id-source")


def test_a_store_of_before_whose_only_entry_is_a_fence_begins_with_1(storage):
    fence = replace(next_fence(None, commit_id="f", now_ms=0, properties={}), last_checkpoint_id=None)
    log = Log(storage)
    log.add(fence)
    log.fence()
    log.commit()

    assert log.found == {1: 3}


def test_checkpoints_of_a_writer_and_of_its_coordinator_share_one_count():
    store = arrowstate.open_store("memory://finding-by-id-coordinator", create=True)
    backends = {"op": [arrowstate.KeyedStateBackend(key=KEY, max_parallelism=8)]}
    writer = store.writer()
    ids = [writer.checkpoint(backends).checkpoint_id]
    with writer.coordinator(backends) as checkpoints:
        ids.append(checkpoints.trigger().result().checkpoint_id)
        ids.append(writer.checkpoint(backends).checkpoint_id)
        ids.append(checkpoints.trigger().result().checkpoint_id)

    assert ids == [snapshot.checkpoint_id for snapshot in store.checkpoints()] == [1, 2, 3, 4]
    clear_memory_storage("memory://finding-by-id-coordinator")
