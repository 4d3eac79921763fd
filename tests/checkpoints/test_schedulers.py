"""The example of docs/guides/dask.md: handles of tasks of Dask and Ray, which one program commits."""

import os
import re
from pathlib import Path

import pytest

import arrowstate

PAGE = (Path(__file__).parents[2] / "docs/guides/dask.md").read_text()
INPUTS = [(0, 1_000), (900, 1_100), (1_000, 1_200)]
SEEN = [(1, 1_000), (2, 200)]


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The example as a module that workers can import."""
    text = re.search(r"```text\n(import arrowstate.*?)```", PAGE, re.DOTALL).group(1)
    (tmp_path / "scheduled_example.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return __import__("scheduled_example")


def seen(url):
    snapshot = arrowstate.open_store(url).latest()
    query = "select seen, count(*) from counter.seen group by seen order by seen"
    return snapshot.sql(query).fetchall(), snapshot.properties["done"], len(snapshot.entry.operators[0].subtasks)


def test_tasks_of_dask_count_each_input_once_though_a_worker_is_killed(tmp_path, request):
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    example = request.getfixturevalue("example")
    url = str(tmp_path / "numbers")

    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        example.run(client, url, 3, INPUTS[:1])
        victim = next(iter(client.cluster.workers.values()))
        os.kill(victim.process.process.pid, 9)
        example.run(client, url, 2, INPUTS)
    with distributed.Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        # A program that starts again has nothing left to do.
        example.run(client, url, 3, INPUTS)

    assert seen(url) == (SEEN, 3, 2)


def test_tasks_of_ray_count_each_input_once(tmp_path, request):
    ray = pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("distributed", reason="the example imports distributed")
    example = request.getfixturevalue("example")
    url = str(tmp_path / "numbers")

    class Client:
        def submit(self, function, *arguments, pure):
            return ray.remote(function).remote(*arguments)

        def gather(self, tasks):
            return ray.get(tasks)

    ray.init(num_cpus=2, include_dashboard=False)
    try:
        example.run(Client(), url, 3, INPUTS)
    finally:
        ray.shutdown()

    assert seen(url) == (SEEN, 3, 3)
