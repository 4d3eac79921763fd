"""A process with one subtask: restores it, adds what is its own, writes it, and hands on a handle."""

import pickle
import sys

import pyarrow as pa

import arrowstate

CLICKS = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")


def main(url: str, parallelism: int, subtask: int, first: int, last: int) -> None:
    """Add one to each of the keys from `first` to before `last` that the subtask owns."""
    store = arrowstate.open_store(url)
    groups = arrowstate.key_group_range(128, parallelism=parallelism, subtask=subtask)
    try:
        backend = store.latest().restore("counter", parallelism=parallelism, subtask=subtask)
    except arrowstate.CheckpointNotFoundError:
        backend = arrowstate.KeyedStateBackend(
            key=pa.schema([("n", pa.int64())]), max_parallelism=128, key_groups=groups
        )
    keys = pa.array(range(first, last), pa.int64())
    owned = [number in groups for number in arrowstate.key_groups(keys, 128).to_pylist()]
    own = keys.filter(pa.array(owned))
    backend.state(CLICKS).add_batch(own, pa.array([1] * len(own), pa.int64()))
    handle = store.subtask_writer("counter", subtask).write(backend)
    sys.stdout.buffer.write(pickle.dumps(handle))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
