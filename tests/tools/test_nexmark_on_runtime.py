"""The queries of Nexmark on the runtime: each gives what DuckDB finds in the same files."""

import io
from argparse import Namespace
from dataclasses import replace

import pyarrow as pa
import pytest
from rich.console import Console

import arrowstate
from nexmark_queries import operators
from nexmark_queries.__main__ import main, run_all
from nexmark_queries.events import Config, write_files
from nexmark_queries.on_runtime import NOT_HERE, declared, run_job
from nexmark_queries.queries import all_queries
from nexmark_queries.running import read_store
from nexmark_queries.truth import Truth

DELAY_MS = 4000
CONFIG = Config(events_per_second=500, out_of_order_group=700, active_people=50)
QUERIES = {name: query for name, query in all_queries().items() if name not in NOT_HERE}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("nexmark") / "events", CONFIG, files=4, events_per_file=5000)


@pytest.fixture(scope="module")
def truth(files):
    return Truth(files, delay_ms=DELAY_MS)


@pytest.mark.turns(8)
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_on_the_runtime_gives_what_duckdb_finds_in_the_files(files, truth, tmp_path, name):
    run_job(QUERIES[name], files[0].parent, tmp_path, delay_ms=DELAY_MS, parallelism=2, mode="threads")

    verdict = truth.compare_at_end(QUERIES[name], read_store(tmp_path).output)

    assert verdict.is_right, verdict
    assert verdict.rows >= 5, "a comparison with nothing says nothing"


def test_a_query_goes_on_where_it_was_with_more_slots(files, truth, tmp_path):
    job = declared(QUERIES["q5"], files[0].parent, tmp_path, delay_ms=DELAY_MS, parallelism=1)
    with job.start(mode="inline") as running:
        running.go_on(12)
        taken = running.checkpoint()
    run_job(QUERIES["q5"], files[0].parent, tmp_path, delay_ms=DELAY_MS, parallelism=3, mode="threads")

    verdict = truth.compare_at_end(QUERIES["q5"], read_store(tmp_path).output)

    assert sum(operator.live_rows(state.name) for operator in taken.entry.operators for state in operator.states) > 0
    assert verdict.is_right, verdict


def test_a_row_that_is_late_by_the_rows_before_it_is_refused_because_the_truth_has_all_rows(files):
    impatient = Truth(files, delay_ms=1000)

    with pytest.raises(ValueError, match=r"none may be late; \d+ are"):
        impatient.compare_at_end(QUERIES["q7"], pa.table({"price": pa.array([], pa.int64())}))


def test_the_highest_counts_of_a_window_are_those_of_all_batches():
    key = pa.schema([("window_start", pa.int64()), ("window_end", pa.int64())])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
    process = arrowstate.BatchRunner(backend, operators.HottestItemsByWatermark())

    for first, counts in ((1, [4, 7]), (3, [7, 1]), (5, [9, 9]), (7, [8])):
        names = {"auction": range(first, first + len(counts)), "bids": counts}
        process.process(pa.table({**names, "window_start": [0] * len(counts), "window_end": [10] * len(counts)}))
    early, fired = process.advance_watermark(8), process.advance_watermark(9)

    assert early.num_rows == 0
    assert fired.to_pylist() == [
        {"auction": auction, "window_start": 0, "window_end": 10, "bids": 9} for auction in (5, 6)
    ]
    assert {len(state) for state in backend.states.values()} == {0}


def test_the_table_says_which_results_of_the_runtime_are_right(tmp_path):
    wrong = replace(QUERIES["q8"], name="q8_wrong", truth=f"from ({QUERIES['q8'].truth}) limit 3")
    console = Console(file=io.StringIO(), width=150)
    options = Namespace(events=4000, files=2, rate=500, seed=1, out_of_order=1, parallelism=1)

    right = run_all(None, [QUERIES["q8"], wrong], tmp_path, options, console, ["runtime"])

    lines = [line for line in console.file.getvalue().splitlines() if "q8" in line and "│" in line]
    assert not right
    assert [cell.strip() for cell in lines[0].split("│")[3:4]] == ["runtime"]
    assert lines[0].split("│")[-2].strip() == "as DuckDB"
    assert lines[1].split("│")[-2].strip().startswith("0 missing, ")


def test_a_query_by_processing_time_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--engine", "runtime", "--queries", "q12"])

    assert ended.value.code == 2
    assert "--queries q12 go by processing time" in capsys.readouterr().err
