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
import killed_driver
from arrowstate.spark.operators import query
from arrowstate.spark.sink import keyed_sink
from arrowstate.spark.sink.task import fold_micro_batch


def _batch_ids(store: Path) -> list[int]:
    return [snapshot.entry.properties["spark"]["batch_id"] for snapshot in arrowstate.open_store(store).checkpoints()]


def files(store: Path) -> set[str]:
    return {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.turns(2)
def test_a_driver_killed_in_a_micro_batch_goes_on_without_loss_or_repetition(stream: Any, make_rows: Any) -> None:
    stream.add(*[make_rows(seed, count=4000, keys=2000) for seed in range(4)])
    driver = [sys.executable, killed_driver.__file__, str(stream.folder), "1"]

    killed = subprocess.run(driver, check=False, capture_output=True)
    before = _batch_ids(stream.store)
    started = stream.run()

    assert (killed.returncode, before) == (-signal.SIGKILL, [0]), killed.stderr
    assert [progress["batchId"] for progress in started.recentProgress] == [1, 2, 3]
    assert _batch_ids(stream.store) == [0, 1, 2, 3]
    assert stream.stored() == stream.expected()


@pytest.mark.parametrize("how", ["dies", "fails"])
def test_a_task_that_is_tried_again_counts_once(
    stream: Any, make_rows: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stream.add(make_rows(0), make_rows(1))
    marks = stream.folder / "marks"
    marks.mkdir()

    def failing(plan: Any, step: Any, subtask: int, rows: Any, new_id: Any) -> Any:
        from pyspark import TaskContext

        result = fold_micro_batch(plan, step, subtask, rows, new_id)
        context = TaskContext.get()
        assert context is not None
        if subtask == 1 and context.attemptNumber() == 0:
            (marks / str(step.batch.batch_id)).touch()
            if how == "dies":
                os._exit(1)
            raise RuntimeError("the first attempt fails after it has written its files")
        return result

    monkeypatch.setattr(keyed_sink, "fold_micro_batch", failing)

    stream.run()

    assert sorted(path.name for path in marks.iterdir()) == ["0", "1"]
    assert stream.stored() == stream.expected()


def test_a_query_whose_commit_fails_goes_on_after_a_restart(
    stream: Any, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import StreamingQueryException

    stream.add(make_rows(0), make_rows(1))

    commit = query.commit_batch

    def failing(storage: Any, uids: Any, work: Any, **arguments: Any) -> Any:
        entry = commit(storage, uids, work, **arguments)
        if work.batch.batch_id == 1:
            raise OSError("the answer was lost")
        return entry

    with monkeypatch.context() as patch:
        patch.setattr(query, "commit_batch", failing)
        with pytest.raises(StreamingQueryException, match="the answer was lost"):
            stream.run()
    stream.add(make_rows(2))
    stream.run()

    assert _batch_ids(stream.store) == [0, 1, 2]
    assert stream.stored() == stream.expected()


def test_a_job_that_fails_leaves_no_file_of_its_tasks(
    stream: Any, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import StreamingQueryException

    stream.add(make_rows(0))
    stream.run()
    before = files(stream.store)
    stream.add(make_rows(1, count=20_000, keys=20_000))
    done = stream.folder / "done"

    def failing(plan: Any, step: Any, subtask: int, rows: Any, new_id: Any) -> Any:
        result = fold_micro_batch(plan, step, subtask, rows, new_id)
        assert result.paths
        if subtask == 0:
            done.touch()
            return result
        # Fails when the other has written its files.
        while not done.exists():
            os.sched_yield()
        raise RuntimeError("this task does not fit")

    monkeypatch.setattr(keyed_sink, "fold_micro_batch", failing)
    with pytest.raises(StreamingQueryException, match="this task does not fit"):
        stream.run()

    assert files(stream.store) == before
