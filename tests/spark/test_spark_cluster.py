"""Queries on a standalone cluster of two workers: executors that are lost, attempts that race, other parallelisms."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import arrowstate
from spark_audit import compare, rows_of
from spark_cluster import kill_group, standalone_cluster
from spark_files import add_file

pytestmark = pytest.mark.long

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Return a function that calls one of `cluster/driver.py`, in a driver that has the cluster for itself."""
    script = Path(__file__).parent / "cluster" / "driver.py"
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        settings = json.dumps(cluster.settings() | SPECULATION)
        driver = cluster.driver(script, settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert driver.stdin is not None
            assert driver.stdout is not None

            def ask(function: str, **arguments: Any) -> Any:
                driver.stdin.write(json.dumps({"call": function, **arguments}).encode() + b"\n")
                driver.stdin.flush()
                answer = json.loads(driver.stdout.readline())
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["result"]

            yield ask
        finally:
            driver.stdin.close()
            driver.stdout.close()
            kill_group(driver)


def test_the_executors_are_on_hosts_of_their_own(call: Any) -> None:
    assert call("hosts") == ["127.0.0.1", "127.0.0.2"]


@pytest.mark.parametrize("query", ["sink", "audit"])
def test_whatever_befalls_the_first_attempt_of_a_task_each_row_counts_once(
    call: Any, tmp_path: Path, query: str
) -> None:
    troubles = {1: "executor", 2: "worker", 3: "error", 4: "slow"}
    marks = [(tmp_path / f"marks-{batch}") for batch in troubles]
    for number in range(6):
        add_file(tmp_path, number, rows_of(number))
    for folder in marks:
        folder.mkdir()

    batches = call(query, folder=str(tmp_path), troubles=[(kind, batch, 1) for batch, kind in troubles.items()])

    assert [len(list(folder.iterdir())) >= 2 for folder in marks] == [True] * 4
    assert batches == list(range(6))
    assert compare(tmp_path, query) == (6, [])


@pytest.mark.parametrize("query", ["sink", "audit"])
def test_a_query_goes_on_at_another_parallelism_and_max_parallelism(call: Any, tmp_path: Path, query: str) -> None:
    for number, (parallelism, max_parallelism) in enumerate([(2, 128), (3, 192), (1, 7)]):
        add_file(tmp_path, number, rows_of(number))
        call(query, folder=str(tmp_path), parallelism=parallelism, max_parallelism=max_parallelism)

    operator = arrowstate.open_store(tmp_path / "store").latest().entry.operators[0]
    assert compare(tmp_path, query) == (3, [])
    assert (len(operator.subtasks), operator.max_parallelism) == (1, 7)
