"""The sink when things die: the driver, a worker, a task. What is in the store is always the truth."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import arrowstate
from arrowstate.spark import source
from arrowstate.spark.source import ArrowStateDataSource, KeyedStateWriter


def _batch_ids(store: Path) -> list[int]:
    return [snapshot.entry.properties["spark"]["batch_id"] for snapshot in arrowstate.open_store(store).checkpoints()]


@pytest.mark.slow
@pytest.mark.turns(2)
def test_a_driver_killed_in_a_micro_batch_goes_on_without_loss_or_repetition(stream: Any, make_rows: Any) -> None:
    stream.add(*[make_rows(seed, count=4000, keys=2000) for seed in range(4)])
    driver = [sys.executable, str(Path(__file__).with_name("killed_driver.py")), str(stream.folder), "1"]

    killed = subprocess.run(driver, check=False, capture_output=True)
    before = _batch_ids(stream.store)
    query = stream.run()

    assert (killed.returncode, before) == (-signal.SIGKILL, [0]), killed.stderr
    assert [progress["batchId"] for progress in query.recentProgress] == [1, 2, 3]
    assert _batch_ids(stream.store) == [0, 1, 2, 3]
    assert stream.stored() == stream.expected()


@pytest.mark.parametrize("how", ["dies", "fails"])
def test_a_task_that_is_tried_again_counts_once(
    stream: Any, make_rows: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stream.add(make_rows(0), make_rows(1))
    marks = stream.folder / "marks"
    marks.mkdir()

    class FailingWriter(KeyedStateWriter):
        def write(self, iterator: Any) -> Any:
            from pyspark import TaskContext

            message = super().write(iterator)
            context = TaskContext.get()
            assert context is not None
            if context.partitionId() == 1 and context.attemptNumber() == 0:
                (marks / str(context.getLocalProperty("streaming.sql.batchId"))).touch()
                if how == "dies":
                    os._exit(1)
                raise RuntimeError("the first attempt fails after it has written its files")
            return message

    class FailingSource(ArrowStateDataSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> KeyedStateWriter:
            return FailingWriter(super().streamWriter(schema, overwrite).plan)

    monkeypatch.setattr(source, "ArrowStateDataSource", FailingSource)

    stream.run()

    assert sorted(path.name for path in marks.iterdir()) == ["0", "1"]
    assert stream.stored() == stream.expected()


def test_a_query_whose_commit_fails_goes_on_after_a_restart(
    stream: Any, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import StreamingQueryException

    stream.add(make_rows(0), make_rows(1))

    class FailingWriter(KeyedStateWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            if batchId == 1:
                raise OSError("the answer was lost")

    class FailingSource(ArrowStateDataSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> KeyedStateWriter:
            return FailingWriter(super().streamWriter(schema, overwrite).plan)

    with monkeypatch.context() as patch:
        patch.setattr(source, "ArrowStateDataSource", FailingSource)
        with pytest.raises(StreamingQueryException, match="the answer was lost"):
            stream.run()
    stream.add(make_rows(2))
    stream.run()

    assert _batch_ids(stream.store) == [0, 1, 2]
    assert stream.stored() == stream.expected()
