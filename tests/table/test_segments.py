"""Rows of a segment that several threads look at first: each address that is kept points at rows that are kept."""

import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.table.segment import Segment
from arrowstate.table.segments import Segments

SCHEMA = pa.schema([pa.field("_key_hash", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])


def rows():
    """The same rows in memory of their own."""
    return pa.record_batch([pa.array(np.arange(4)), pa.array(np.arange(4))], schema=SCHEMA)


class Slow:
    """Makes the rows for each of two threads at once; the second one gets them when it is told to."""

    def __init__(self):
        self.both = threading.Barrier(2)
        self.told = threading.Event()
        self._count = iter(range(2))

    def __call__(self, *_):
        number = next(self._count)
        self.both.wait(60)
        if number:
            assert self.told.wait(60)
        return rows()


@pytest.mark.parametrize("what", ["read", "converted"])
def test_addresses_point_at_the_rows_that_are_kept_where_two_threads_look_first(what):
    slow, numbers = Slow(), np.zeros(1, dtype=np.int64)
    if what == "read":
        segment = Segment(0, 4, 0, 3, 64, slow)
        first, last = (lambda: segments.hash_addresses(numbers)), (lambda: segment.hashes)
    else:
        segment = Segment.of(rows(), 0, slow)
        first, last = (lambda: segments.column_addresses(1, numbers)), (lambda: segment.words(1))
    segments = Segments([segment])

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(first) for _ in range(2)]
        wait(asked, 60, FIRST_COMPLETED)
        slow.told.set()
        given = [int(one.result()[0]) for one in asked]

    assert given == [last().ctypes.data] * 2
    assert int(first()[0]) == last().ctypes.data
