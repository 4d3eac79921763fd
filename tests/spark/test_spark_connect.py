"""The same API on Spark Connect: a server and a client, each a process of its own, and what the client has seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import arrowstate

pytestmark = pytest.mark.long

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connect")


@pytest.fixture(scope="module")
def remote(folder: Path) -> Iterator[str]:
    """The address of a server."""
    python = folder / "python"
    # Spark puts a zip of PySpark first, whose modules each process compiles anew, and gives a process ten seconds.
    path = os.environ.get("PYTHONPATH", "")
    python.write_text(f"#!/bin/sh\nPYTHONPATH='{path}' exec '{sys.executable}' -W ignore \"$@\"\n")
    python.chmod(0o755)
    with (
        (folder / "server.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, str(HERE / "connect_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYSPARK_PYTHON": str(python)},
        ) as server,
    ):
        assert server.stdout is not None
        port = int(server.stdout.readline() or 0)
        assert port, (folder / "server.log").read_text()
        yield f"sc://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def seen(remote: str, folder: Path) -> dict[str, Any]:
    """What a client of the server has seen."""
    client = subprocess.run(
        [sys.executable, str(HERE / "connect_client.py"), remote, str(folder)], check=False, capture_output=True
    )
    assert client.returncode == 0, client.stderr.decode()
    return json.loads((folder / "seen.json").read_text())


def test_a_sink_folds_and_a_reader_reads(seen: dict[str, Any]) -> None:
    folded = seen["folded"]

    assert seen["kind"] == "pyspark.sql.connect.session"
    assert folded["read"] == [[1, 7], [2, 10]]


def test_progress_has_the_figures_of_the_store(seen: dict[str, Any]) -> None:
    folded = seen["folded"]

    assert [item["rows"] for item in folded["progress"]] == [3, 2]
    # Spark's id of the run is told to nobody on the server; the commits of a run have one of their own.
    assert len({row.pop("run_id") for row in folded["table"]}) == 1
    named = [{"query_id": folded["query"], "batch_id": number} for number in (0, 1)]
    assert [{**item, **name} for item, name in zip(folded["progress"], named, strict=True)] == [
        {name: value for name, value in row.items() if name != "checkpoint_id"} for row in folded["table"]
    ]
    # Two operators: the second gets the rows that the first emits.
    assert seen["progress"] == [[1, 4], [2, 120_002]]


def test_operators_go_on_after_a_restart_and_a_repeated_micro_batch_hands_the_same_rows_on(
    seen: dict[str, Any], folder: Path
) -> None:
    totals = [[batch_id, count, [row[:3] for row in rows]] for batch_id, count, rows in seen["totals"]]

    # The watermark is that of the micro-batches before, repeated or not: 9 s and 13 s, less one.
    expected = [
        [0, 2, [[1, 3, None], [2, 20, None]]],
        [1, 2, [[1, 7, 8_000], [3, 300, 8_000]]],
        [2, 60_001, [[2, 60, 12_000], [100, 100, 12_000]]],
    ]
    assert totals == [expected[0], expected[1], expected[1], expected[2]]
    assert seen["totals"][1] == seen["totals"][2]
    assert seen["counts"] == [
        [0, 2, [[0, 1], [1, 1]]],
        [1, 1, [[1, 3]]],
        [1, 1, [[1, 3]]],
        [2, 2, [[0, 30_002], [1, 30_003]]],
    ]
    assert seen["queries"][0] == seen["queries"][1]


def test_state_and_outputs_are_in_the_store_once(seen: dict[str, Any], folder: Path) -> None:
    store = arrowstate.open_store(folder / "operated")

    entry = store.latest().entry
    totals = store.sql("select k, total from totals.total where k < 100").fetchall()
    assert sorted(totals) == [(1, 7), (2, 60), (3, 300)]
    assert sorted(store.sql("select odd, count from counts.count").fetchall()) == [(0, 30_002), (1, 30_003)]
    assert store.latest().operator_state("changes", "rows").num_rows == 4 + 60_001
    assert (entry.properties["spark"]["query_id"], entry.watermark) == (seen["queries"][0], 12_000)
    # Processing time is that of Spark's offset log.
    assert [rows[0][3] for _, _, rows in seen["totals"]] == [_time(folder, number) for number in (0, 1, 1, 2)]


def test_rows_of_two_operators_are_put_together_and_summed_in_windows(seen: dict[str, Any], folder: Path) -> None:
    store = arrowstate.open_store(folder / "united")

    # The watermark, one second behind the micro-batches before, passes ten seconds in the third.
    assert seen["windows"] == [[0, 0, []], [1, 0, []], [2, 2, [[1, 0, 10_000, 3], [2, 0, 10_000, 10]]]]
    counted = [store.sql(f"select sum(n) from {uid}.n").fetchall() for uid in ("odd", "even")]
    assert counted == [[(30_004,)], [(30_002,)]]
    assert len(store.checkpoints()) == 3


def test_each_commit_is_told_once_on_the_server(seen: dict[str, Any], folder: Path) -> None:
    folded, operated = (
        [[entry.checkpoint_id, "completed"] for entry in arrowstate.open_store(folder / name).checkpoints()]
        for name in ("folded", "operated")
    )

    assert [told[:2] for told in seen["told_of_folded"]] == folded
    # The micro-batch that was repeated is not told again.
    assert [told[:2] for told in seen["told_of_operated"]] == operated
    assert len(operated) == 3
    assert {json.dumps(told[2]) for told in seen["told_of_operated"]} == {
        json.dumps([["totals", 0], ["totals", 1], ["counts", 0]])
    }


def test_an_output_is_followed_and_a_table_becomes_state(seen: dict[str, Any]) -> None:
    assert seen["followed"] == 4 + 60_001
    # Read by the data source: the files may be on another machine than the client.
    assert seen["bootstrapped"] == [False, [[number, 2 * number] for number in range(10)]]


def test_what_cannot_be_is_refused_with_the_reason(seen: dict[str, Any]) -> None:
    no_folder, locked, another = seen["refused"]

    assert "on Spark Connect the query needs the option checkpointLocation" in no_folder
    assert "operator 'totals', a Locked, is pickled for each task of Spark" in locked
    assert "its attribute 'lock' (lock) cannot be: TypeError: cannot pickle '_thread.lock' object" in locked
    assert f"QueryConflictError: operator 'totals' belongs to query {seen['queries'][0]}" in another


def _time(folder: Path, batch_id: int) -> int:
    """Spark's time of a micro-batch."""
    return json.loads((folder / "operating" / "offsets" / str(batch_id)).read_text().splitlines()[1])[
        "batchTimestampMs"
    ]
