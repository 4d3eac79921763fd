"""The memory of a task: its share of an executor, and the folder on a disk for what is more."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError
from arrowstate.spark import memory
from arrowstate.spark.memory import TaskMemory, budget_of_a_task
from arrowstate.storage.registry import open_storage

SHM = Path("/dev/shm")
GIB = 1 << 30


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"spark.master": "local[4]"}, GIB // 8),
        ({"spark.master": "local[2, 3]", "spark.driver.memory": "8g", "spark.executor.memory": "1g"}, 2 * GIB),
        ({"spark.master": "local"}, GIB // 2),
        ({"spark.master": "local[*]", "spark.driver.memory": f"{os.cpu_count()}g"}, GIB // 2),
        ({"spark.master": "yarn", "spark.executor.memory": "4096"}, 2 * GIB),
        ({"spark.master": "k8s://https://host", "spark.executor.memory": "4g", "spark.executor.cores": "4"}, GIB // 2),
        ({"spark.master": "yarn", "spark.executor.cores": "4", "spark.task.cpus": "2"}, GIB // 4),
        ({"spark.master": "yarn", "spark.executor.memory": "9g", "spark.executor.pyspark.memory": "512m"}, GIB // 4),
        ({"spark.master": "spark://host:7077", "spark.executor.memory": f"{os.cpu_count()}gb"}, GIB // 2),
        ({"spark.master": "local-cluster[2,1,1024]"}, GIB // 2),
    ],
)
def test_a_task_has_half_of_its_share_of_an_executor(settings: dict[str, str], share: int) -> None:
    assert budget_of_a_task(lambda name, default: settings.get(name, default)) == share


@pytest.fixture
def chosen_anew() -> Iterator[None]:
    """A process that has not chosen a folder yet."""
    memory._spill_folder.cache_clear()
    yield
    memory._spill_folder.cache_clear()


@pytest.mark.usefixtures("chosen_anew")
@pytest.mark.skipif(not SHM.is_dir(), reason="needs a tmpfs")
class TestFolders:
    """Where a task spills."""

    def messages(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "arrowstate.spark"]

    def test_a_disk_is_found_where_the_cache_is_in_memory(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "arrowstate.spark")
        disk = Path(__file__).parent / "no-such-folder"
        monkeypatch.setenv("XDG_CACHE_HOME", str(SHM / "cache"))
        monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{SHM},{disk}")

        found = TaskMemory(7).for_backend(open_storage("memory://spill", create=True))

        assert found == {"memory_budget_bytes": 7, "spill_dir": disk}
        assert self.messages(caplog) == []

    def test_it_is_beside_the_cache_that_a_storage_has(self) -> None:
        storage: Any = SimpleNamespace(options={"cache_dir": f"{Path(__file__).parent}/copies"})

        found = TaskMemory(7).for_backend(storage)

        assert found["spill_dir"] == Path(__file__).parent / "copies-spill"

    def test_nothing_is_spilled_to_memory_and_that_is_said_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "arrowstate.spark")
        monkeypatch.setenv("XDG_CACHE_HOME", str(SHM / "cache"))
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(SHM))
        monkeypatch.setattr(tempfile, "tempdir", str(SHM))
        storage = open_storage("memory://spill", create=True)

        found = [TaskMemory(7).for_backend(storage) for _ in range(2)]

        assert found == [{"memory_budget_bytes": None, "spill_dir": None}] * 2
        [message] = self.messages(caplog)
        assert "/dev/shm/cache/arrowstate-spill, /dev/shm, /dev/shm are in memory" in message

    def test_a_folder_in_memory_is_taken_if_it_was_named_and_that_is_said_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "arrowstate.spark")
        storage = open_storage("memory://spill", create=True)

        found = [TaskMemory(7, str(SHM / "named")).for_backend(storage) for _ in range(2)]

        assert found == [{"memory_budget_bytes": 7, "spill_dir": SHM / "named"}] * 2
        [message] = self.messages(caplog)
        assert message.startswith("state is spilled to /dev/shm/named, which is in memory")


def test_a_plan_has_the_share_of_a_local_session(spark: Any) -> None:
    asked = TaskMemory.asked(spark, "auto", None)

    assert asked == TaskMemory(GIB // 4)
    assert TaskMemory.asked(spark, None, "spill") == TaskMemory(None, f"{Path.cwd()}/spill")
    for wrong in ("much", -1, 1.5):
        with pytest.raises(InvalidInputError, match="memory_budget_bytes"):
            TaskMemory.asked(spark, wrong, None)  # type: ignore[arg-type]


def test_a_sink_that_may_hold_nothing_in_memory_equals_a_recomputation(stream: Any, make_rows: Any) -> None:
    spill = stream.folder / "spill"
    stream.add(make_rows(0), make_rows(1))
    stream.run(memory_budget_bytes=0, spill_dir=spill)
    stream.add(make_rows(2))

    stream.run(memory_budget_bytes=0, spill_dir=spill, parallelism=3)

    assert stream.stored() == stream.expected()
    assert list(spill.iterdir()) == []


class Totals(arrowstate.BatchFunction):
    """Sums `v` by `k`, a few rows at a time: a write spills what those before it have made."""

    def open(self, context: arrowstate.BatchContext) -> None:
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch: pa.RecordBatch, context: arrowstate.BatchContext) -> None:
        for start in range(0, batch.num_rows, 100):
            rows = batch.slice(start, 100)
            self.total.add_batch(rows["k"], rows["v"].fill_null(0))


def test_an_operator_that_may_hold_nothing_in_memory_equals_a_recomputation(stream: Any, make_rows: Any) -> None:
    from arrowstate.spark import stateful

    spill = stream.folder / "spill"

    def run() -> None:
        operator = stateful(
            stream.frame(),
            key=["k"],
            operator=Totals(),
            uid="totals",
            store=stream.store,
            parallelism=2,
            memory_budget_bytes=0,
            spill_dir=spill,
        )
        writer = operator.write_stream().option("checkpointLocation", str(stream.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    stream.add(make_rows(0))
    run()
    stream.add(make_rows(1))
    run()

    table = arrowstate.open_store(stream.store).latest().to_arrow("totals.total").to_pylist()
    assert {row["k"]: row["total"] for row in table} == {
        key: total or 0 for key, (_, total) in stream.expected().items()
    }
    assert list(spill.iterdir()) == []
