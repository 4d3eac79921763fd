"""Which subtask gets a row, in what order, and how much a channel may hold."""

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.runtime.core.elements import Barrier, Rows
from arrowstate.runtime.core.exchange import CREDIT_BYTES, Exchange, split_by_subtask
from arrowstate.runtime.core.pacing import FIRST_WINDOW_BYTES
from arrowstate.runtime.graph import Edge, RelayNode, StatefulNode

NUMBERS = pa.schema([("user", pa.string()), ("n", pa.int64())])


def batch(count: int, keys: int = 1_000) -> pa.RecordBatch:
    chance = np.random.default_rng(count)
    users = pa.array([f"u{key}" for key in chance.integers(0, keys, count)], pa.string())
    return pa.record_batch([users, pa.array(range(count), pa.int64())], schema=NUMBERS)


def split(rows: pa.RecordBatch, max_parallelism: int, parallelism: int) -> dict[int, pa.RecordBatch]:
    made = split_by_subtask(rows, [rows.column(0)], [rows.schema.field(0).type], max_parallelism, parallelism)
    assert len({to for to, _ in made}) == len(made)
    return dict(made)


@pytest.mark.parametrize(
    ("max_parallelism", "parallelism"),
    [
        *[(128, 1), (128, 2), (3, 2), (7, 2), (32_768, 2), (2, 2)],
        *[(128, 3), (128, 7), (128, 127), (128, 128), (7, 7), (100, 64), (32_768, 300), (5, 3)],
    ],
)
def test_each_row_comes_to_the_owner_of_its_key_group_and_none_is_lost(max_parallelism, parallelism):
    rows = batch(3_000)
    parts = split(rows, max_parallelism, parallelism)

    groups = arrowstate.key_groups(rows.select(["user"]), max_parallelism)
    ranges = [
        arrowstate.key_group_range(max_parallelism, parallelism=parallelism, subtask=subtask)
        for subtask in range(parallelism)
    ]
    for to, part in parts.items():
        for number in part.column("n").to_pylist():
            assert groups[number].as_py() in ranges[to]
    assert sorted(n for part in parts.values() for n in part.column("n").to_pylist()) == list(range(3_000))
    for to, part in parts.items():
        assert part.num_rows, to


@pytest.mark.parametrize("parallelism", [2, 3, 50])
def test_rows_of_a_subtask_keep_their_order(parallelism):
    for part in split(batch(5_000), 128, parallelism).values():
        numbers = part.column("n").to_pylist()
        assert numbers == sorted(numbers)


def test_a_batch_that_is_all_for_one_subtask_is_not_copied():
    rows = pa.record_batch([pa.array(["ann"] * 10), pa.array(range(10), pa.int64())], schema=NUMBERS)

    ((_, part),) = split(rows, 128, 4).items()

    assert part.column("n").buffers()[1].address == rows.column("n").buffers()[1].address


def test_rows_with_a_null_key_come_to_some_subtask():
    rows = pa.record_batch([pa.array(["ann", None, "bob", None]), pa.array(range(4), pa.int64())], schema=NUMBERS)

    parts = split(rows, 128, 4)

    assert sorted(n for part in parts.values() for n in part.column("n").to_pylist()) == [0, 1, 2, 3]


def test_keys_of_two_streams_in_other_types_come_to_the_same_subtask():
    small = pa.record_batch({"k": pa.array(range(500), pa.int32()), "n": pa.array(range(500))})
    large = pa.record_batch({"k": pa.array(range(500), pa.int64()), "n": pa.array(range(500))})

    kinds = [
        {
            number: to
            for to, part in split_by_subtask(rows, [rows.column("k")], [pa.int64()], 128, 5)
            for number in part.column("n").to_pylist()
        }
        for rows in (small, large)
    ]

    assert kinds[0] == kinds[1]


def test_the_same_key_in_a_slice_or_a_dictionary_comes_to_the_same_subtask():
    rows = batch(400, keys=30)
    sliced = pa.concat_batches([batch(7), rows]).slice(7)
    encoded = pa.record_batch([rows.column("user").dictionary_encode(), rows.column("n")], names=["user", "n"])

    def places(of, kind):
        return {
            number: to
            for to, part in split_by_subtask(of, [of.column("user")], [kind], 128, 6)
            for number in part.column("n").to_pylist()
        }

    assert places(rows, pa.string()) == places(sliced, pa.string()) == places(encoded, pa.string())


def exchange(rule, parallelism=3, subtask=0):
    sent = []
    if rule == "keyed":
        target = StatefulNode(uid="sums", operator=None, key=pa.schema([NUMBERS.field("user")]), schema=NUMBERS)
    else:
        target = RelayNode(uid="relay", schema=NUMBERS)
    edge = Edge(number=4, rule=rule, target=target, schema=NUMBERS, key=("user",) if rule == "keyed" else ())
    made = Exchange(edge, subtask, parallelism, 128, lambda number, to, element: sent.append((number, to, element)))
    return made, sent


def test_global_sends_all_rows_to_the_first_subtask():
    made, sent = exchange("global")

    made.rows(batch(10))
    made.rows(batch(5))

    assert [(to, element.batch.num_rows) for _, to, element in sent] == [(0, 10), (0, 5)]


def test_broadcast_sends_all_rows_to_every_subtask():
    made, sent = exchange("broadcast")

    made.rows(batch(10))

    assert [(to, element.batch.num_rows) for _, to, element in sent] == [(0, 10), (1, 10), (2, 10)]


def test_rebalance_takes_turns_and_neighbours_begin_at_other_subtasks():
    orders = []
    for subtask in range(3):
        made, sent = exchange("rebalance", subtask=subtask)
        for _ in range(6):
            made.rows(batch(1))
        orders.append([to for _, to, _ in sent])

    assert all(sorted(order) == [0, 0, 1, 1, 2, 2] for order in orders)
    assert len({order[0] for order in orders}) == 3


def test_events_go_to_all_subtasks_of_any_rule_whatever_the_credit():
    for rule in ("keyed", "rebalance", "global", "broadcast"):
        made, sent = exchange(rule)
        for to in range(3):
            made.granted(to, -2 * CREDIT_BYTES, CREDIT_BYTES)

        made.event(Barrier(1))

        assert [(number, to) for number, to, _ in sent] == [(4, 0), (4, 1), (4, 2)]


def test_rows_take_credit_until_the_receiver_has_taken_them_up():
    made, sent = exchange("global")
    rows = batch(1_000)
    steps = 0
    while made.has_room:
        made.rows(rows)
        steps += 1

    held = sum(element.bytes for _, _, element in sent)
    assert FIRST_WINDOW_BYTES <= held < FIRST_WINDOW_BYTES + rows.nbytes + 1
    assert steps == len(sent)
    made.granted(0, sent[0][2].bytes, FIRST_WINDOW_BYTES)
    assert made.has_room


def test_one_channel_without_credit_holds_back_a_step_though_others_have_some():
    made, _ = exchange("rebalance")

    made.granted(1, -CREDIT_BYTES, CREDIT_BYTES)

    assert not made.has_room


def test_a_receiver_says_how_much_its_channel_may_hold():
    made, sent = exchange("global")
    made.rows(batch(1_000))
    size = sent[0][2].bytes

    made.granted(0, 0, size)
    narrow = made.has_room
    made.granted(0, 0, size + 1)

    assert (narrow, made.has_room) == (False, True)
    assert (made.in_flight[0], made.windows[0]) == (size, size + 1)


def test_a_step_sends_what_all_channels_of_keys_may_hold_and_what_one_may_otherwise():
    sizes = {}
    for rule in ("keyed", "rebalance", "global", "broadcast"):
        made, _ = exchange(rule)
        for to, window in enumerate((10, 5, 20)):
            made.granted(to, 0, window)
        sizes[rule] = made.step_bytes

    assert sizes == {"keyed": 35, "rebalance": 5, "global": 10, "broadcast": 5}


def test_one_step_may_overdraw():
    made, sent = exchange("global")
    large = pa.record_batch([pa.array(["x" * 1_000] * 9_000), pa.array(range(9_000), pa.int64())], schema=NUMBERS)

    made.rows(large)

    assert isinstance(sent[0][2], Rows)
    assert sent[0][2].bytes > CREDIT_BYTES
    assert not made.has_room
