"""A directory leads to every row of a run, also where a reader has opened some batches of a file only."""

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.run import Run, all_live
from arrowstate.table.segment import Segment
from arrowstate.table.segments import Segments

ROWS = 3000


def run_of(borders: list[tuple[int, int]]) -> tuple[Run, np.ndarray]:
    """A run of which the rows between the borders are open, and the hashes of all rows of its file."""
    hashes = np.sort(np.random.default_rng(7).integers(-(2**63), 2**63 - 1, ROWS))
    schema = pa.schema([pa.field("_key_hash", pa.int64(), nullable=False), ("key", pa.int64())])
    batch = pa.record_batch([pa.array(hashes), pa.array(np.arange(ROWS))], schema=schema)
    segments = Segments(Segment.of(batch.slice(a, b - a), a) for a, b in borders)
    first, last = borders[0][0], borders[-1][1]
    return Run(segments, first, last, all_live(last - first), last - first), hashes


@pytest.mark.parametrize(
    "borders",
    [
        [(0, ROWS)],
        [(0, 1000), (1000, 1001), (1001, ROWS)],
        [(500, 700), (2000, 2100)],
        [(10, 11), (12, 13), (2999, 3000)],
    ],
)
def test_every_open_row_is_found_and_no_other(borders):
    run, hashes = run_of(borders)
    keys = KeyBatch.of(hashes, [pa.array(np.arange(ROWS))])
    is_open = np.zeros(ROWS, dtype=bool)
    for start, stop in borders:
        is_open[start:stop] = True

    rows = run.find(keys, np.arange(ROWS))

    assert (rows == np.where(is_open, np.arange(ROWS), -1)).all()
