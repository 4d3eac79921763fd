"""A writer, a compactor and a collector as processes on one local store; prints what was done as JSON.

Arguments: the folder of the store, and the number of checkpoints.
"""

import json
import os
import random
import sys
import traceback
from pathlib import Path

import pyarrow as pa

import arrowstate

KEY = pa.schema([("k", pa.int64())])
TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
NOTE = arrowstate.ValueStateDescriptor("note", pa.string())
KEYS = 5000
TIGHT = arrowstate.CompactionPolicy(1.05, max_small_files=1, min_bytes=0)


def batch(number):
    """The rows of batch `number`: pairs of key and value."""
    random_of_batch = random.Random(number)
    return [(random_of_batch.randrange(KEYS), random_of_batch.randrange(100)) for _ in range(400)]


def model(batches):
    total, note = {}, {}
    for number in range(batches):
        for key, value in batch(number):
            total[key] = total.get(key, 0) + value
            note[key] = f"{number} {value}" * 5
    return total, note


def apply(backends, number):
    for backend in backends:
        low, high = backend.key_groups.hash_bounds(backend.max_parallelism)
        rows = batch(number)
        hashes = arrowstate.key_hash(pa.array([key for key, _ in rows])).to_pylist()
        own = [row for row, value in zip(rows, hashes, strict=True) if low <= value <= high]
        keys = pa.array([key for key, _ in own], pa.int64())
        backend.state(TOTAL).add_batch(keys, pa.array([value for _, value in own], pa.int64()))
        backend.state(NOTE).update_batch(keys, pa.array([f"{number} {value}" * 5 for _, value in own], pa.string()))


def forked(function, *arguments):
    """Run a function in a process of its own; return its process id and the pipe it writes to."""
    reader, sink = os.pipe()
    child = os.fork()
    if child:
        os.close(sink)
        return child, reader
    os.close(reader)
    try:
        function(*arguments, sink)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as its parent
        traceback.print_exc()
        os._exit(1)


def rest(reader):
    """Return what is left in a pipe whose writer is gone."""
    with os.fdopen(reader, "rb") as file:
        return file.read()


def write(url, rounds, sink):
    store = arrowstate.open_store(url)
    writer = store.writer(compaction=None)
    backends = [
        arrowstate.KeyedStateBackend(
            key=KEY,
            max_parallelism=128,
            key_groups=arrowstate.key_group_range(128, parallelism=2, subtask=n),
            merge_policy=arrowstate.MergePolicy(fan_in=6, first_tier_rows=500),
        )
        for n in range(2)
    ]
    for number in range(rounds):
        if number % 10 == 9:
            # Whatever the newest is then, often a compaction; the lease keeps it from the collector.
            writer = store.writer(compaction=None)
            with store.lease() as lease:
                parallelism = 1 + number // 10 % 3
                backends = [
                    lease.snapshot.restore("op", parallelism=parallelism, subtask=n) for n in range(parallelism)
                ]
                writer.checkpoint({"op": backends}, properties=lease.snapshot.properties)
        apply(backends, number)
        # The grace period of the collector keeps it from being told that its files were collected.
        writer.checkpoint({"op": backends}, properties={"batches": number + 1})
    os.write(sink, json.dumps(rounds).encode())


def compact(url, stop, sink):
    done = lost = 0
    while not Path(stop).exists():
        try:
            done += arrowstate.open_store(url).compact(TIGHT).apply() is not None
        except (
            arrowstate.CommitUnknownError,
            arrowstate.CompactionConflictError,
            arrowstate.CollectedError,
            arrowstate.CheckpointNotFoundError,
        ):
            lost += 1
        except arrowstate.CorruptDataError as error:
            # Only while nothing holds the checkpoint: its plan was made of one that was collected meanwhile.
            assert "missing" in str(error), error
            lost += 1
    os.write(sink, json.dumps([done, lost]).encode())


def collect(url, stop, sink):
    deleted = 0
    while not Path(stop).exists():
        try:
            deleted += len(
                arrowstate.open_store(url).collect(arrowstate.RetentionPolicy(1), grace_ms=60_000).apply().deleted
            )
        except arrowstate.CorruptDataError as error:
            # A lease that came too late and is about to be withdrawn, or an entry that the compactor's commit is past.
            assert "missing" in str(error) or "a compaction holds" in str(error), error
    os.write(sink, json.dumps(deleted).encode())


def main(url, rounds):
    store = arrowstate.open_store(url, create=True)
    # Every kernel is loaded before the first fork.
    backend = arrowstate.KeyedStateBackend(
        key=KEY, max_parallelism=128, merge_policy=arrowstate.MergePolicy(fan_in=2, first_tier_rows=500)
    )
    warm = arrowstate.open_store("memory://warm-up", create=True)
    with warm.writer() as writer:
        for number in range(3):
            apply([backend], number)
            backend = writer.checkpoint({"op": [backend]}, properties={"batches": 1}).restore("op")
    warm.compact(TIGHT).apply()
    stop = f"{url}.stop"
    others = [forked(work, url, stop) for work in (compact, collect)]
    child, reader = forked(write, url, rounds)
    rest(reader)
    failed = os.waitpid(child, 0)[1] != 0
    Path(stop).touch()
    found = [rest(pipe) for _, pipe in others]
    failed |= any(os.waitpid(process, 0)[1] != 0 for process, _ in others)
    if failed:
        print(json.dumps({"failed": True}))
        return
    latest = store.latest()
    total, note = model(latest.properties["batches"])
    backend = latest.restore("op")
    keys = pa.array(range(KEYS))
    assert latest.verify(deep=True).problems == []
    assert backend.state(TOTAL).get_batch(keys).to_pylist() == [total.get(key) for key in range(KEYS)]
    assert backend.state(NOTE).get_batch(keys).to_pylist() == [note.get(key) for key in range(KEYS)]
    (done, lost), deleted = (json.loads(text) for text in found)
    result = {"batches": latest.properties["batches"], "compactions": done, "lost": lost}
    print(json.dumps({**result, "deleted": deleted}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
