"""The page of a job that runs in this process."""

import uuid

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.runtime import Job, OutputTable, TableSource

from .conftest import Visit


class Counts(arrowstate.BatchFunction):
    def open(self, context):
        self.count = context.state(arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="sum"))

    def process_batch(self, batch, context):
        self.count.add_batch(batch["user"], pa.array([1] * batch.num_rows))


@pytest.fixture
def running():
    job = Job(f"memory://ui-job-{uuid.uuid4().hex}", parallelism=2)
    users = job.source(TableSource(pa.table({"user": [f"u{number % 50}" for number in range(5_000)]})), uid="users")
    users.stateful(Counts(), key=["user"], uid="counts")
    users.sink(OutputTable("copy"))
    with job.start(mode="inline") as running:
        for _ in range(200):
            running.go_on(10)
            if running.status().channels:
                break
        yield running


def test_tasks_and_channels_are_those_of_the_status(running):
    found = Visit(jobs=[running]).json("/0/job.json")
    status = running.status()

    assert found["state"] == status.state
    assert [(row["task"], row["slot"], row["rows"]) for row in found["tasks"]] == [
        (task.task, task.slot, task.rows) for task in status.tasks
    ]
    assert len(found["channels"]) == len(status.channels) > 0
    assert {row["operator"] for row in found["operators"]} == {"users", "counts"}
    assert "users" in found["svg"]


def test_the_page_has_its_tab_its_parts_and_its_figures_for_prometheus(running):
    visit = Visit(jobs=[running])

    assert "Running job" in visit.get("/0/checkpoints").text
    assert visit.get("/0/job").status_code == visit.get("/0/job_now").status_code == 200
    assert 'operator="counts",subtask="0"' in visit.get("/metrics").text


def test_a_job_opens_its_page(running):
    running.wait()

    with running.ui() as page:
        assert page.stores == (running.store.url,)
        assert page.address.startswith("http://127.0.0.1:")
