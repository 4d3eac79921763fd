"""A writer, a compactor and a collector as processes on one local store; prints what was done as JSON.

Arguments: the folder of the store, and the number of checkpoints.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
from killed_writers import KEY, KEYS, NOTE, TOTAL, apply, forked, model, rest

from arrowstate import (
    CheckpointNotFoundError,
    CollectedError,
    CommitUnknownError,
    CompactionConflictError,
    CompactionPolicy,
    CorruptDataError,
    KeyedStateBackend,
    RetentionPolicy,
    key_group_range,
    open_store,
)
from arrowstate.table.merging import MergePolicy

TIGHT = CompactionPolicy(1.05, max_small_files=1, min_bytes=0)


def write(url, rounds, sink):
    store = open_store(url)
    writer = store.writer(compaction=None)
    backends = [
        KeyedStateBackend(
            key=KEY,
            max_parallelism=128,
            key_groups=key_group_range(128, parallelism=2, subtask=n),
            merge_policy=MergePolicy(fan_in=6, first_tier_rows=500),
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
            done += open_store(url).compact(TIGHT).apply() is not None
        except (CommitUnknownError, CompactionConflictError, CollectedError, CheckpointNotFoundError):
            lost += 1
        except CorruptDataError as error:
            # Only while nothing holds the checkpoint: its plan was made of one that was collected meanwhile.
            assert "missing" in str(error), error
            lost += 1
    os.write(sink, json.dumps([done, lost]).encode())


def collect(url, stop, sink):
    deleted = 0
    while not Path(stop).exists():
        try:
            deleted += len(open_store(url).collect(RetentionPolicy(1), grace_ms=60_000).apply().deleted)
        except CorruptDataError as error:
            # A lease that came too late and is about to be withdrawn, or an entry that the compactor's commit is past.
            assert "missing" in str(error) or "a compaction holds" in str(error), error
    os.write(sink, json.dumps(deleted).encode())


def main(url, rounds):
    store = open_store(url, create=True)
    # Every kernel is loaded before the first fork.
    backend = KeyedStateBackend(key=KEY, max_parallelism=128, merge_policy=MergePolicy(fan_in=2, first_tier_rows=500))
    warm = open_store("memory://warm-up", create=True)
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
