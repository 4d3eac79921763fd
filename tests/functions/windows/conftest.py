"""A window operator over one or more subtasks of a job, which can fail and come back at another scale."""

import uuid

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.state.backend.restoring import restore_backend
from arrowstate.storage import clear_memory_storage
from arrowstate.windows import CountWindows, GlobalWindows, WindowOperator
from arrowstate_formats.key_groups import key_groups

KEY = pa.schema([("k", pa.string())])
SUM = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")


def as_tuples(batch):
    return [tuple(row.values()) for row in batch.to_pylist()]


class WindowJob:
    """Rows are (key, timestamp, value); what fires and what is late are tuples of the columns."""

    def __init__(self, windows, descriptor=SUM, *, url=None, backend=None, **options):
        self.url = url or f"memory://{uuid.uuid4().hex}"
        self.store = arrowstate.open_store(self.url, create=True)
        self.backend_options = backend or {}
        self.make = lambda backend: WindowOperator(backend, windows, descriptor, **options)
        self.timed = not isinstance(windows, (CountWindows, GlobalWindows))
        self.use([arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128, **self.backend_options)])

    def close(self):
        clear_memory_storage(self.url)

    def use(self, backends):
        self.backends = backends
        self.operators = [self.make(backend) for backend in backends]

    @property
    def operator(self):
        (operator,) = self.operators
        return operator

    @property
    def state_rows(self):
        """Rows of all subtasks by the name of the state, where there are any."""
        names = self.backends[0].state_names
        rows = {name: sum(len(backend._states[name]) for backend in self.backends) for name in names}
        return {name: count for name, count in rows.items() if count}

    def process(self, *rows):
        """Return (fired, late), both in the order of the subtasks."""
        fired, late = [], []
        groups = key_groups(pa.array([row[0] for row in rows], pa.string()), self.backends[0].max_parallelism)
        for backend, operator in zip(self.backends, self.operators, strict=True):
            owned = backend.key_groups
            mine = [row for row, group in zip(rows, groups.tolist(), strict=True) if owned.start <= group <= owned.end]
            keys, times, values = zip(*mine, strict=True) if mine else ((), (), ())
            output = operator.process(
                pa.array(keys, pa.string()),
                pa.array(times, pa.int64()) if self.timed else None,
                pa.array(values, pa.int64()),
            )
            fired += as_tuples(output.fired)
            late += as_tuples(output.late)
        return fired, late

    def advance(self, watermark, subtask=None):
        chosen = self.operators if subtask is None else [self.operators[subtask]]
        return [row for operator in chosen for row in as_tuples(operator.advance_watermark(watermark))]

    def restart(self, parallelism=1, max_parallelism=128):
        """Checkpoint, fail, and restore at a scale."""
        with self.store.writer() as writer:
            snapshot = writer.checkpoint({"op": self.backends})
        self.use(
            [
                restore_backend(
                    snapshot.storage,
                    snapshot.store_id,
                    snapshot.entry,
                    "op",
                    parallelism=parallelism,
                    subtask=subtask,
                    max_parallelism=max_parallelism,
                    **self.backend_options,
                )
                for subtask in range(parallelism)
            ]
        )


@pytest.fixture(scope="session")
def make_job():
    """Makes window jobs: the arguments of `WindowOperator`, and as `backend` those of the backends."""
    jobs = []

    def make(*arguments, **options):
        jobs.append(WindowJob(*arguments, **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()
