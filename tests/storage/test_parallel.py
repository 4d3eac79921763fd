"""Several files at a time: order, bounds, and what is left when one of them fails."""

import threading

import pytest

from arrowstate.storage import in_parallel, open_storage


class Wide:
    """A storage on which three files may be under way at the same time."""

    files_at_once = 3


def test_results_come_in_the_order_of_the_items():
    last = threading.Event()

    def call(item):
        if item == 0:
            last.wait(60)
        elif item == 2:
            last.set()
        return item * 10

    assert in_parallel(Wide(), call, [0, 1, 2]) == [0, 10, 20]


def test_no_more_than_the_bound_are_under_way():
    lock, barrier = threading.Lock(), threading.Barrier(3)
    running, most = 0, 0

    def call(item):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait(60)
        with lock:
            running -= 1

    in_parallel(Wide(), call, range(9))

    assert most == 3


def test_when_one_fails_none_is_running_and_the_rest_is_left_out():
    begun, ended = [], []
    failed = threading.Event()

    def call(item):
        begun.append(item)
        if item == 0:
            failed.set()
            raise KeyboardInterrupt
        failed.wait(60)
        ended.append(item)

    with pytest.raises(KeyboardInterrupt):
        in_parallel(Wide(), call, range(100_000))

    assert set(begun) - {0} == set(ended)
    assert len(begun) < 100_000


def test_a_local_storage_gets_one_call_after_another_in_this_thread(tmp_path):
    threads = in_parallel(open_storage(tmp_path), lambda _: threading.get_ident(), range(5))

    assert threads == [threading.get_ident()] * 5
    assert in_parallel(Wide(), lambda _: threading.get_ident(), [1]) == [threading.get_ident()]
    assert in_parallel(Wide(), str, []) == []


def test_writes_to_a_local_storage_overlap_because_each_waits_for_its_file_to_be_durable(tmp_path):
    together = threading.Barrier(2)

    def call(item):
        together.wait(60)
        return item

    assert in_parallel(open_storage(tmp_path), call, [1, 2], writes=True) == [1, 2]
    assert in_parallel(open_storage("memory://writes", create=True), str, [1, 2], writes=True) == ["1", "2"]
