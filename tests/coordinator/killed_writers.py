"""Kills writers of one store with SIGKILL, round after round, and has the store checked after each.

Run as a script: killed_writers.py <url> <rounds> <seed>. It prints one JSON object. This process loads
arrowstate once and forks a process per writer and per check, so that a round takes milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback

import pyarrow as pa

from arrowstate import (
    KeyedStateBackend,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    key_group_range,
    key_hash,
    open_store,
)
from arrowstate.errors import CheckpointNotFoundError
from arrowstate.table.merging import MergePolicy

KEY = pa.schema([("k", pa.int64())])
TOTAL = ReducingStateDescriptor("total", pa.int64(), reduce="sum")
NOTE = ValueStateDescriptor("note", pa.string())
KEYS = 5000


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
        hashes = key_hash(pa.array([key for key, _ in rows])).to_pylist()
        own = [row for row, value in zip(rows, hashes, strict=True) if low <= value <= high]
        keys = pa.array([key for key, _ in own], pa.int64())
        backend.state(TOTAL).add_batch(keys, pa.array([value for _, value in own], pa.int64()))
        backend.state(NOTE).update_batch(keys, pa.array([f"{number} {value}" * 5 for _, value in own], pa.string()))


def write(url, parallelism, acknowledge):
    """Go on from the newest checkpoint for ever; write the number of each committed batch to a pipe."""
    store = open_store(url)
    with store.writer() as writer:
        try:
            latest = store.latest()
            done = latest.entry.properties["batches"]
            backends = [latest.restore("op", parallelism=parallelism, subtask=i) for i in range(parallelism)]
        except CheckpointNotFoundError:
            done = 0
            backends = [
                KeyedStateBackend(
                    key=KEY,
                    max_parallelism=128,
                    key_groups=key_group_range(128, parallelism=parallelism, subtask=i),
                    merge_policy=MergePolicy(fan_in=3, first_tier_rows=500),
                )
                for i in range(parallelism)
            ]
        while True:
            apply(backends, done)
            done += 1
            snapshot = writer.checkpoint({"op": backends}, properties={"batches": done})
            os.write(acknowledge, f"{done} {snapshot.checkpoint_id}\n".encode())


def check(url, acknowledged):
    """Compare the newest checkpoint with the model; return how many batches it holds."""
    store = open_store(url)
    log = [int(path[4:24]) for path in store.storage.list("log/")]
    assert log == list(range(1, len(log) + 1)), "the log has a gap"
    checkpoints = {snapshot.checkpoint_id: snapshot.entry.properties["batches"] for snapshot in store.checkpoints()}
    for done, checkpoint_id in acknowledged:
        assert checkpoints[checkpoint_id] == done, "an acknowledged checkpoint is gone"
    try:
        latest = store.latest()
    except CheckpointNotFoundError:
        assert not acknowledged
        return 0
    done = latest.entry.properties["batches"]
    assert sorted(checkpoints.values()) == list(range(1, done + 1))
    backend = latest.restore("op")
    keys = pa.array(range(KEYS))
    total, note = model(done)
    assert backend.state(TOTAL).get_batch(keys).to_pylist() == [total.get(key) for key in range(KEYS)]
    assert backend.state(NOTE).get_batch(keys).to_pylist() == [note.get(key) for key in range(KEYS)]
    return done


def report(url, acknowledged, sink):
    os.write(sink, str(check(url, acknowledged)).encode())


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


def lines(reader, count):
    """Wait until a writer has acknowledged so many checkpoints."""
    data = b""
    while data.count(b"\n") < count:
        piece = os.read(reader, 1000)
        assert piece, "the writer ended by itself"
        data += piece
    return data


def rest(reader):
    """Return what is left in a pipe whose writer is gone."""
    with os.fdopen(reader, "rb") as file:
        return file.read()


def warm_up():
    """Load every kernel before the first fork, so that writers get to the point where they are killed."""
    store = open_store("memory://warm-up", create=True)
    backend = KeyedStateBackend(key=KEY, max_parallelism=128, merge_policy=MergePolicy(fan_in=2, first_tier_rows=500))
    with store.writer() as writer:
        for number in range(3):
            apply([backend], number)
            backend = writer.checkpoint({"op": [backend]}, properties={"batches": number + 1}).restore("op")
    check("memory://warm-up", [])


def main(url, rounds, seed):
    warm_up()
    choose = random.Random(seed)
    open_store(url, create=True)
    acknowledged, held = [], []
    for number in range(rounds):
        child, reader = forked(write, url, choose.choice([1, 2, 3]))
        data = lines(reader, choose.randrange(4))
        # The moment of death: some milliseconds later, wherever the writer is then.
        moment = time.perf_counter() + choose.uniform(0, 0.03)
        while time.perf_counter() < moment:
            pass
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        data += rest(reader)
        whole = data[: data.rfind(b"\n") + 1].decode().splitlines()
        acknowledged += [tuple(map(int, line.split())) for line in whole]

        child, reader = forked(report, url, acknowledged)
        held.append(rest(reader).decode())
        if os.waitpid(child, 0)[1] != 0:
            print(json.dumps({"failed": number}))
            return
    print(json.dumps({"acknowledged": len(acknowledged), "held": [int(done) for done in held]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
