"""Few keys in a run of many segments: found, compared and read as they are segment by segment."""

from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.table import sparse
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.run import Run
from arrowstate.table.segment import Segment
from arrowstate.table.segments import Segments
from arrowstate.table.table import find_keys, gather
from arrowstate_formats.key_hash import hash_columns
from tables import HASHES

KINDS = {
    "int64": (pa.int64(), lambda n: n * 7),
    "string": (pa.string(), str),
    "nullable": (pa.int64(), lambda n: None if n % 3 == 0 else n),
    "half": (pa.int16(), lambda n: n % 1000),
}


def run_of(hashes, keys, seconds=None, most=9):
    """A run of the rows with a segment for every few; the rows of one hash are in one segment."""
    order = np.lexsort((seconds if seconds is not None else keys, hashes))
    columns = [pa.array(hashes[order])]
    names = ["_key_hash"]
    if seconds is not None:
        columns.append(pa.array(seconds[order]))
        names.append("_entry_hash")
    columns.append(pa.array([str(key) for key in keys[order]]))
    names.append("key")
    for name, (kind, value) in KINDS.items():
        columns.append(pa.array([value(int(key)) for key in keys[order]], kind))
        names.append(name)
    batch = pa.record_batch(columns, names=names)
    ordered = hashes[order]
    borders, start = [0], 0
    for row in range(1, ordered.size):
        if row - start >= most and ordered[row] != ordered[row - 1]:
            borders.append(row)
            start = row
    return Run.of([batch.slice(a, b - a) for a, b in zip(borders, [*borders[1:], ordered.size], strict=True)])


def live_keys(run):
    return {
        key
        for segment in run.segments
        for key, live in zip(
            segment.batch.column("key").to_pylist(),
            run.is_live(np.arange(segment.first_row, segment.end_row)),
            strict=True,
        )
        if live
    }


def both_ways(ask):
    """What is answered segment by segment, and what is answered for all of them."""
    with patch.object(sparse, "_FEW", 0):
        dense = ask()
    with patch.object(sparse, "_FEW", 1 << 40):
        return dense, ask()


@pytest.mark.parametrize("hashing", HASHES)
@pytest.mark.parametrize("pairs", [False, True])
def test_few_keys_are_found_as_they_are_segment_by_segment(hashing, pairs):
    random = np.random.default_rng(5)
    keys = np.arange(600)
    hash_of = HASHES[hashing]
    hashes = hash_of(pa.array([str(key) for key in keys]))
    seconds = hash_columns([pa.array(keys % 50)]) if pairs else None
    run = run_of(hashes, keys, seconds)
    run.kill(np.sort(random.choice(run.rows, 250, replace=False)))
    assert len(run.segments) > 1 or hashing == "one_hash"

    for size in (1, 5, 90):
        asked = random.choice(900, size, replace=False)
        column = pa.array([str(key) for key in asked])
        other = hash_columns([pa.array(asked % 50)]) if pairs else None
        batch = KeyBatch.of(hash_of(column), [column], seconds=other)

        def answers(batch=batch):
            found = find_keys([run], batch)
            rows = [(run, *run.find_all(batch))]
            values = [
                found.column(run.segments[0].batch.schema.get_field_index(name), KINDS[name][0]) for name in KINDS
            ]
            all_values = [
                gather(rows, run.segments[0].batch.schema.get_field_index(name), KINDS[name][0]) for name in KINDS
            ]
            return [
                [part.tolist() for part in (found.absent, *rows[0][1:])],
                [each.to_pylist() for each in (*values, *all_values)],
            ]

        dense, few = both_ways(answers)

        assert few == dense
        absent = set(batch.columns[0].take(pa.array(few[0][0])).to_pylist())
        assert set(map(str, asked)) - absent == set(map(str, asked)) & live_keys(run)


def test_record_batches_that_were_not_read_yet_are_read_together():
    batches = [pa.record_batch({"_key_hash": [first, first + 1]}) for first in (0, 10, 20)]
    lazy = [
        Segment(2 * number, 2, 10 * number, 10 * number + 1, 16, lambda batch=batch: batch)
        for number, batch in enumerate(batches)
    ]
    asked = []
    segments = Segments(lazy, asked.append)

    segments.hash_addresses(np.array([2, 0, 2]))
    segments.hash_addresses(np.array([0, 1]))
    segments.hash_addresses(np.array([1, 2]))

    assert asked == [[0, 2], [1]]
    assert [segment.load for segment in lazy] == [None] * 3
