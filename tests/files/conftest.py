"""A store on disk and a large and a small state to put into it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from arrowstate import KeyedStateBackend, ReducingStateDescriptor

TOTAL = ReducingStateDescriptor("total", pa.int64(), reduce="sum")


class Files:
    """The files of a store, and which of them are new since the last look."""

    def __init__(self, store):
        self.folder = Path(store.url)
        self.seen = set()

    def all(self):
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}

    def new(self, prefix=""):
        files = self.all()
        new = sorted(path for path in files - self.seen if path.startswith(prefix))
        assert not self.seen - files, "a file was deleted"
        self.seen = files
        return new


@pytest.fixture
def files(store):
    return Files(store)


@pytest.fixture
def counts():
    """A backend whose state `total` holds 100,000 keys, so that its run has a file, a directory and many batches."""
    backend = KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(TOTAL).add_batch(pa.array(range(100_000)), pa.array(np.arange(100_000) % 1000))
    return backend
