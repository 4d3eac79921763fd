"""A table beside the dict that says what is in it."""

import numpy as np
import pyarrow as pa

from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.merging import MergePolicy
from arrowstate.table.table import Table, find_keys
from arrowstate_formats.key_hash import hash_columns

SCHEMA = pa.schema(
    [
        pa.field("_key_hash", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        ("n", pa.int64()),
        ("note", pa.string()),
    ]
)
HASHES = {
    "real": lambda column: hash_columns([column]),
    "eight_hashes": lambda column: hash_columns([column]) >> 61,
    "one_hash": lambda column: np.zeros(len(column), np.int64),
    "shared_top_bits": lambda column: hash_columns([column]) >> 50,
}


class Model:
    """The table under test and the dict that says what is in it."""

    def __init__(self, policy=None, hash_of=HASHES["real"], **arguments):
        self.table = Table(SCHEMA, 1, policy=policy, **arguments)
        self.policy = policy or MergePolicy()
        self.rows = {}
        self.hash_of = hash_of

    def batch(self, keys):
        column = pa.array([str(key) for key in keys], pa.string())
        return KeyBatch.of(self.hash_of(column), [column])

    def put(self, items):
        """Write pairs of key and number, the last one of a key wins; None removes the key."""
        batch = self.batch([key for key, _ in items])
        values = pa.array([number for _, number in items], pa.int64()).take(pa.array(batch.last_rows()))
        notes = pa.array([None if n.as_py() is None else f"note {n}" for n in values], pa.string())
        keep = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        self.table.settle()
        self.table.put(self.table.find(batch), batch, [values, notes], keep=keep)
        for key, number in items:
            if number is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = number

    def remove(self, keys):
        self.table.settle()
        self.table.remove(self.table.find(self.batch(keys)))
        for key in keys:
            self.rows.pop(key, None)

    def read(self, keys, runs=None):
        batch = self.batch(keys)
        found = self.table.find(batch) if runs is None else find_keys(runs, batch)
        groups = pa.array(batch.groups())
        numbers, notes = found.column(2, pa.int64()).take(groups), found.column(3, pa.string()).take(groups)
        assert notes.to_pylist() == [None if n is None else f"note {n}" for n in numbers.to_pylist()]
        return dict(zip(keys, numbers.to_pylist(), strict=True))

    def check(self, keys):
        assert self.read(keys) == {key: self.rows.get(key) for key in keys}
        assert self.table.live_rows == len(self.rows)
        assert contents(self.table.freeze()) == self.rows
        for run in self.table.runs:
            check_run(run)


def contents(frozen):
    """The rows of a frozen table as a dict, which must not hold a key twice."""
    rows = [row for run in frozen.runs for batch in run.live_batches() for row in batch.to_pylist()]
    result = {int(row["key"]): row["n"] for row in rows}
    assert len(result) == len(rows) == frozen.live_rows
    return result


def check_run(run):
    hashes = np.concatenate([segment.hashes for segment in run.segments])
    assert (hashes[1:] >= hashes[:-1]).all()
    # A hash that went on in the next segment would be looked for in one of them only.
    assert all(a.hashes[-1] < b.hashes[0] for a, b in zip(run.segments, run.segments[1:], strict=False))
    assert run.live_rows == np.unpackbits(run.live, bitorder="little")[: run.rows].sum()
