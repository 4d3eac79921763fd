"""Which micro-batch it is and what time it is in it, as a query leaves that in its checkpoint folder."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from arrowstate.spark.micro_batches import MicroBatch
from arrowstate.spark.operators.clocks import BatchTime, ConnectClock


def test_the_checkpoint_folder_tells_the_micro_batch_by_its_files_and_by_spark(stream: Any) -> None:
    stream.schema = "k long, v long, n timestamp"
    times = pa.array([5_000_000, 9_000_000], pa.timestamp("us", "UTC"))
    stream.add(*[pa.table({"k": [1], "v": [1], "n": times[number : number + 1]}) for number in (0, 1)])
    checkpoint = stream.folder / "a folder"
    query = stream.run(checkpoint=checkpoint, frame=stream.frame().withWatermark("n", "1 second"))
    frame = stream.spark.range(1)
    clock = ConnectClock(str(checkpoint), "run-1")

    by_files = [clock.at(frame, number) for number in (0, 1)]
    local, clock._folder = clock._folder, None
    by_spark = [clock.at(frame, number) for number in (0, 1)]

    started = [_started(checkpoint, number) for number in (0, 1)]
    assert by_files == by_spark
    assert by_files == [
        BatchTime(MicroBatch(query.id, "run-1", 0), None, started[0]),
        BatchTime(MicroBatch(query.id, "run-1", 1), 4_000, started[1]),
    ]
    assert local == checkpoint


def _started(checkpoint: Any, batch_id: int) -> int:
    return json.loads((checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[1])["batchTimestampMs"]
