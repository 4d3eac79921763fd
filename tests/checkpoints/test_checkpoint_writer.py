"""The writer of a store: fencing, numbering, and what a failed checkpoint leaves behind."""

from itertools import pairwise

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.checkpoints.writer import CheckpointWriter
from arrowstate.clock import new_id
from arrowstate.files.subtasks import operator_of
from arrowstate.files.writing import write_subtask
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import path_of
from arrowstate_formats.run_files import checksum
from processes import at_once
from storages import Failing
from stores import KEY, TOTAL, commit, files, sum_of_totals


def backend_of(count=3000, groups=None, max_parallelism=128, key=KEY, state=TOTAL):
    """A backend whose run is large enough for a file of its own."""
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=max_parallelism, key_groups=groups)
    if groups is None and count:
        backend.state(state).add_batch(pa.array(range(count)), pa.array(range(count)))
    else:
        backend.state(state)
    return backend


def test_opening_a_store_for_writing_commits_a_fence_with_a_higher_epoch(store):
    epochs = [store.writer(properties={"who": number}).epoch for number in range(3)]

    entries = [CommitLog(store.storage).read(number).document for number in (1, 2, 3)]
    assert epochs == [entry.writer_epoch for entry in entries] == [1, 2, 3]
    assert [entry.kind for entry in entries] == ["fence"] * 3
    assert [entry.checkpoint_id for entry in entries] == [None] * 3
    assert [entry.properties for entry in entries] == [{"who": number} for number in range(3)]


def test_a_fence_names_the_entry_whose_operators_are_the_state(store):
    snapshot = commit(store, {"op": [backend_of()]}, watermark=77)

    store.writer()

    log = CommitLog(store.storage)
    newest = log.latest().document
    assert newest.kind == "fence"
    assert newest.operators == []
    assert newest.content == log.read(snapshot.entry.number).as_parent
    assert log.content(log.latest()) == snapshot.entry
    assert newest.watermark == 77
    assert store.latest().checkpoint_id == snapshot.checkpoint_id


def test_the_first_of_two_writers_is_fenced_and_its_files_are_deleted(store):
    first = store.writer()
    first.checkpoint({"op": [backend_of()]})
    second = store.writer()
    before = files(store.url)

    with pytest.raises(arrowstate.FencedError) as caught:
        first.checkpoint({"op": [backend_of(4000)]})

    assert (caught.value.writer_epoch, caught.value.current_epoch) == (1, 2)
    assert files(store.url) == before
    after = second.checkpoint({"op": [store.latest().restore("op")]})
    assert sum_of_totals(after) == sum(range(3000))


def test_a_fenced_writer_writes_nothing_any_more(store):
    first = store.writer()
    second = store.writer()
    second.checkpoint({"op": [backend_of()]})
    with pytest.raises(arrowstate.FencedError):
        first.checkpoint({"op": [backend_of(10)]})
    before = files(store.url)

    for _ in range(2):
        with pytest.raises(arrowstate.FencedError, match="epoch 2"):
            first.checkpoint({"op": [backend_of(10)]})

    assert files(store.url) == before
    assert sum_of_totals(second.checkpoint({"op": [backend_of(10)]})) == 45


def test_writers_that_open_at_once_get_epochs_and_numbers_of_their_own(store):
    writers = at_once(lambda _: store.writer(), range(8))

    assert sorted(writer.epoch for writer in writers) == list(range(1, 9))
    assert CommitLog(store.storage).numbers() == list(range(1, 9))
    winner = max(writers, key=lambda writer: writer.epoch)
    for writer in writers:
        if writer is not winner:
            with pytest.raises(arrowstate.FencedError):
                writer.checkpoint({"op": [backend_of(1)]})
    assert sum_of_totals(winner.checkpoint({"op": [backend_of(5)]})) == 10


def test_entries_are_numbered_without_a_gap_and_each_names_the_bytes_before_it(store):
    backend = backend_of()
    for _ in range(3):
        with store.writer() as writer:
            for number in range(3):
                backend.state(TOTAL).add_batch([number], [1])
                writer.checkpoint({"op": [backend]})

    log = CommitLog(store.storage)
    assert log.numbers() == list(range(1, 13))
    entries = [log.read(number).document for number in log.numbers()]
    for before, entry in pairwise(entries):
        assert entry.parent.number == before.number == entry.number - 1
        assert entry.parent.xxh3_128 == checksum(store.storage.read(path_of(before.number)))
    assert entries[0].parent is None
    assert [entry.writer_epoch for entry in entries] == [1] * 4 + [2] * 4 + [3] * 4
    assert len({entry.commit_id for entry in entries}) == 12
    assert [snapshot.checkpoint_id for snapshot in store.checkpoints()] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_checkpoint_records_what_the_caller_gave_and_the_times_of_the_clock(store):
    times = iter([100, 200, 300])
    ids = iter(f"id{number}" for number in range(100))
    writer = CheckpointWriter(store.storage, store.store_id, clock_ms=lambda: next(times), new_id=lambda: next(ids))
    properties = {"offsets": {"topic": [1, 2]}, "big": 2**63, "text": "é", "none": None}

    entry = writer.checkpoint({"op": [backend_of(10)]}, properties=properties, watermark=-5)

    assert store.latest().entry == entry
    assert (entry.properties, entry.watermark) == (properties, -5)
    assert (entry.started_at_ms, entry.committed_at_ms) == (200, 300)
    assert entry.operators[0].subtasks[0].live_rows == {"total": 10}


@pytest.mark.parametrize(
    "properties", [{"x": float("nan")}, {"x": 2**70}, {"x": b"bytes"}, {5: "x"}, {"x": 1j}, "text", 5, ["x"]], ids=str
)
def test_properties_that_are_not_json_leave_nothing(store, properties):
    with store.writer() as writer:
        before = files(store.url)

        with pytest.raises(arrowstate.InvalidInputError, match="properties"):
            writer.checkpoint({"op": [backend_of()]}, properties=properties)
        with pytest.raises(arrowstate.InvalidInputError, match="properties"):
            store.writer(properties=properties)
        checkpoints = writer.coordinator({"op": [backend_of()]})
        with checkpoints, pytest.raises(arrowstate.InvalidInputError, match="properties"):
            checkpoints.trigger(properties=properties)

        assert files(store.url) == before
        assert sum_of_totals(writer.checkpoint({"op": [backend_of()]})) == sum(range(3000))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"operators": [backend_of()]}, "operators must be a dict with a list of backends by operator uid, got a list"),
        ({"operators": {"op": [5]}}, "operator 'op' needs backends of class KeyedStateBackend here, got a int"),
        ({"operators": {}, "operator_states": {"op": [backend_of()]}}, "of class OperatorStateBackend here, got a Key"),
        ({"operators": {}, "operator_states": [5]}, "operator_states must be a dict"),
    ],
    ids=str,
)
def test_what_is_no_backend_is_refused_by_name(store, arguments, match):
    with store.writer() as writer:
        for take in (writer.checkpoint, writer.coordinator):
            with pytest.raises(arrowstate.InvalidInputError, match=match):
                take(**arguments)

    assert store.checkpoints() == []


def test_what_is_no_format_is_refused_though_there_is_nothing_to_write(store):
    operators = {"op": [backend_of()]}
    with store.writer() as writer:
        writer.checkpoint(operators)

        for take in (
            lambda: writer.checkpoint(operators, format="csv"),
            lambda: writer.coordinator(operators, format="csv"),
            lambda: store.subtask_writer("op", 0, format="csv"),
        ):
            with pytest.raises(arrowstate.InvalidInputError, match="the format of a run is .*, got 'csv'"):
                take()


def subtasks(parallelism, max_parallelism=128):
    return [
        backend_of(groups=arrowstate.key_group_range(max_parallelism, parallelism=parallelism, subtask=subtask))
        for subtask in range(parallelism)
    ]


OTHER_STATE = arrowstate.ReducingStateDescriptor("other", pa.int64(), reduce="sum")
OTHER_REDUCER = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="max")
OTHER_KEY = pa.schema([("q", pa.int64())])
BAD_SUBTASKS = {
    "none": (list, "no backend"),
    "one_missing": (lambda: subtasks(3)[:2], "0 to 127"),
    "first_missing": (lambda: subtasks(3)[1:], "starts at key group 43, expected subtask 0 from key group 0"),
    "middle_missing": (lambda: [subtasks(3)[0], subtasks(3)[2]], "from key group 43"),
    "twice": (lambda: [subtasks(2)[0], *subtasks(2)], "from key group 64"),
    "wrong_order": (lambda: subtasks(2)[::-1], "from key group 0"),
    "overlap": (lambda: [subtasks(2)[0], backend_of(groups=arrowstate.KeyGroupRange(63, 127))], "from key group 64"),
    "other_max_parallelism": (
        lambda: [subtasks(2)[0], backend_of(groups=arrowstate.KeyGroupRange(64, 127), max_parallelism=256)],
        "one max parallelism",
    ),
    "other_key": (
        lambda: [subtasks(2)[0], backend_of(groups=arrowstate.KeyGroupRange(64, 127), key=OTHER_KEY)],
        "one key",
    ),
    "other_state": (
        lambda: [subtasks(2)[0], backend_of(groups=arrowstate.KeyGroupRange(64, 127), state=OTHER_STATE)],
        "same states",
    ),
    "other_reducer": (
        lambda: [subtasks(2)[0], backend_of(groups=arrowstate.KeyGroupRange(64, 127), state=OTHER_REDUCER)],
        "same states",
    ),
}


@pytest.mark.parametrize("case", BAD_SUBTASKS)
def test_subtasks_that_do_not_make_up_one_operator_are_refused(store, case):
    make, message = BAD_SUBTASKS[case]
    with store.writer() as writer:
        before = files(store.url)

        with pytest.raises(arrowstate.InvalidInputError, match=message):
            writer.checkpoint({"op": make()})

        assert files(store.url) == before
        writer.checkpoint({"op": subtasks(4)})


@pytest.mark.parametrize("uid", ["", "_op", "a/b", "../op", "op ", 5])
def test_an_operator_uid_is_a_portable_name(store, uid):
    with store.writer() as writer, pytest.raises(arrowstate.InvalidInputError, match="operator uid"):
        writer.checkpoint({uid: [backend_of(1)]})


def test_an_operator_is_not_dropped_by_mistake(store):
    with store.writer() as writer:
        writer.checkpoint({"op": [backend_of()], "gone": [backend_of(1)]})

        with pytest.raises(arrowstate.InvalidInputError, match="gone.*allow_dropped_state"):
            writer.checkpoint({"op": [backend_of()]})
        snapshot = writer.checkpoint({"op": [backend_of()]}, allow_dropped_state=True)

    assert [operator.uid for operator in snapshot.entry.operators] == ["op"]
    assert [operator.uid for operator in store.checkpoints()[0].entry.operators] == ["op", "gone"]


def test_a_state_is_not_dropped_by_mistake(store):
    with store.writer() as writer:
        full = backend_of(1)
        full.state(arrowstate.ValueStateDescriptor("kept", pa.int64()))
        writer.checkpoint({"op": [full]})

        with pytest.raises(arrowstate.InvalidInputError, match="kept of op.*allow_dropped_state"):
            writer.checkpoint({"op": [backend_of(1)]})
        snapshot = writer.checkpoint({"op": [backend_of(1)]}, allow_dropped_state=True)

    assert "kept" not in [state.name for state in snapshot.entry.operators[0].states]


def writer_on(store, storage):
    return CheckpointWriter(storage, store.store_id, clock_ms=lambda: 0, new_id=new_id)


@pytest.mark.parametrize(
    "error",
    [arrowstate.StorageFullError("x", "full"), KeyboardInterrupt(), MemoryError()],
    ids=["full", "interrupt", "memory"],
)
def test_a_checkpoint_that_fails_while_writing_leaves_the_store_as_it_was(store, error):
    operators = {"op": [backend_of()], "second": [backend_of(2000)]}
    store.writer().checkpoint(operators)
    for backends in operators.values():
        backends[0].state(TOTAL).add_batch(pa.array(range(5000, 7000)), pa.array([1] * 2000))
    failures = 0

    while True:
        storage = Failing(store.storage, 0, error)
        writer = writer_on(store, storage)
        before = files(store.url)
        failures += 1
        storage._number = failures
        try:
            entry = writer.checkpoint(operators)
            break
        except type(error):
            if isinstance(error, arrowstate.StorageFullError) or failures < 3:
                assert files(store.url) == before
            assert sum_of_totals(store.latest()) == sum(range(3000))

    # Two run files, then the log entry.
    assert failures == 4
    assert sum_of_totals(store.snapshot(entry.checkpoint_id)) == sum(range(3000)) + 2000


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (KeyboardInterrupt(), 1),
        (MemoryError(), 1),
        (arrowstate.CommitUnknownError("log", "id", "lost"), 1),
        (KeyboardInterrupt(), 2),
        (MemoryError(), 2),
    ],
    ids=["interrupt", "memory", "unknown", "interrupt_at_the_hint", "memory_at_the_hint"],
)
def test_a_checkpoint_that_is_interrupted_after_its_commit_keeps_its_files(store, error, number):
    storage = Failing(store.storage, 0, error, after=True)
    writer = writer_on(store, storage)
    backend = backend_of()

    # One run file is counted before the entry.
    storage._number = number + 1
    with pytest.raises(type(error)):
        writer.checkpoint({"op": [backend]})

    assert any(path.endswith(".arrow") for path in files(store.url))
    assert sum_of_totals(store.latest()) == sum(range(3000))
    with store.writer() as again:
        assert sum_of_totals(again.checkpoint({"op": [backend]})) == sum(range(3000))
    with pytest.raises(arrowstate.FencedError):
        writer.checkpoint({"op": [backend]})


@pytest.mark.parametrize("committed", [False, True], ids=["not committed", "committed"])
def test_a_writer_goes_on_after_a_commit_of_which_the_outcome_was_unknown(store, committed):
    error = arrowstate.CommitUnknownError("log", "id", "lost")
    storage = Failing(store.storage, 0, error, after=committed)
    writer = writer_on(store, storage)
    backend = backend_of()
    # One run file is counted before the entry.
    storage._number = 2
    with pytest.raises(arrowstate.CommitUnknownError):
        writer.checkpoint({"op": [backend]}, properties={"offset": 1})
    backend.state(TOTAL).add_batch([0], [1])

    again = writer.checkpoint({"op": [backend]}, properties={"offset": 2})

    offsets = [snapshot.entry.properties["offset"] for snapshot in store.checkpoints()]
    assert sorted(offsets) == ([1, 2] if committed else [2])
    assert store.latest().checkpoint_id == again.checkpoint_id
    assert sum_of_totals(store.latest()) == sum(range(3000)) + 1
    with store.writer() as newer:
        newer.checkpoint({"op": [backend]})
    with pytest.raises(arrowstate.FencedError, match=f"epoch {writer.epoch}.*epoch {newer.epoch}"):
        writer.checkpoint({"op": [backend]})


def test_parts_that_tasks_wrote_are_committed_as_one_checkpoint(store):
    whole = backend_of()
    first = commit(store, {"op": [whole]})
    writer = writer_on(store, store.storage)
    parts = []
    for subtask in range(3):
        backend = first.restore("op", parallelism=3, subtask=subtask)
        frozen = backend.freeze()
        written = write_subtask(store.storage, store.store_id, "op", subtask, frozen, format="arrow", new_id=new_id)
        assert written.paths == ()
        parts.append(written)

    entry = writer.commit([operator_of("op", parts)], started_at_ms=5)

    assert sum_of_totals(store.snapshot(entry.checkpoint_id)) == sum(range(3000))
    assert len(entry.operators[0].subtasks) == 3


def test_a_checkpoint_of_an_older_state_is_a_new_checkpoint(store):
    backend = backend_of()
    with store.writer() as writer:
        first = writer.checkpoint({"op": [backend]})
        backend.state(TOTAL).add_batch([1], [1000])
        writer.checkpoint({"op": [backend]})

        again = writer.checkpoint({"op": [first.restore("op")]})

    assert again.checkpoint_id == 3
    assert sum_of_totals(again) == sum_of_totals(first)
    assert sum_of_totals(store.snapshot(2)) == sum_of_totals(first) + 1000


def test_values_and_sums_of_one_operator_are_one_checkpoint(store):
    backend = backend_of(10)
    notes = backend.state(arrowstate.ValueStateDescriptor("note", pa.string()))
    backend.current_key = 5
    notes.update("pending")

    snapshot = commit(store, {"op": [backend]})

    assert snapshot.entry.operators[0].subtasks[0].live_rows == {"total": 10, "note": 1}
    assert snapshot.restore("op").state(notes.descriptor).get_batch([5]).to_pylist() == ["pending"]
