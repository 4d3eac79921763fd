"""Nexmark beside Flink: the events in JSON, the SQL, what is left of Flink's result, and that a wrong one is noticed.

Flink itself runs here where ARROWSTATE_FLINK names a Python with apache-flink; `tools/test --long nexmark` installs it.
"""

import io
import json
import os
from argparse import Namespace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from rich.console import Console

from benchmarks.harness import Series
from nexmark_queries import beside_flink
from nexmark_queries.__main__ import main, run_beside
from nexmark_queries.beside_flink import Beside, figures, write_parts
from nexmark_queries.events import Config, json_schema, write_files
from nexmark_queries.flink_sql import FLINK_SQL, final_rows, statements
from nexmark_queries.on_runtime import NOT_HERE, run_job
from nexmark_queries.queries import all_queries
from nexmark_queries.running import read_store
from nexmark_queries.truth import Truth

DELAY_MS = 4000
EVENTS = 20_000
PYTHON = os.environ.get("ARROWSTATE_FLINK")
QUERIES = {name: query for name, query in all_queries().items() if name not in NOT_HERE}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    config = Config(events_per_second=500, out_of_order_group=700, active_people=50)
    return write_files(tmp_path_factory.mktemp("nexmark") / "events", config, files=2, events_per_file=EVENTS // 2)


@pytest.fixture(scope="module")
def truth(files):
    return Truth(files, delay_ms=DELAY_MS)


@pytest.fixture(scope="module")
def parts(files):
    return write_parts(files[0].parent.parent / "json", files, events=EVENTS, slots=2)


@pytest.fixture(scope="module")
def given(files):
    """The events in their order."""
    numbered = "filename = true, file_row_number = true"
    return duckdb.sql(
        f"from read_parquet({[str(file) for file in files]}, {numbered}) order by filename, file_row_number"
    ).to_arrow_table()


def test_the_parts_have_all_events_each_once_or_the_first_quarter(given, parts):
    sums = "count(*), sum(event), sum(hash(person.name)), sum(hash(auction.extra)), sum(bid.price), sum(hash(bid.url))"
    for folder, events in ((parts.all, given), (parts.quarter, given.slice(0, EVENTS // 4))):
        in_json = f"select {sums}, sum(date_time), sum(auction.expires) from read_json('{folder}/*.json')"
        in_parquet = f"{sums}, sum(epoch_ms(date_time)), sum(epoch_ms(auction.expires))"

        assert duckdb.sql(in_json).fetchall() == duckdb.from_arrow(events).aggregate(in_parquet).fetchall()


def test_the_parts_are_at_the_same_time_and_in_the_order_of_the_events(given, parts):
    place = {number: place for place, number in enumerate(given["event"].to_pylist())}

    places = [[place[json.loads(line)["event"]] for line in file.open()] for file in sorted(parts.all.iterdir())]

    assert [len(part) for part in places] == [EVENTS // 2] * 2
    assert all(part == sorted(part) for part in places)
    assert all(abs(one - other) < 100 for one, other in zip(*places, strict=True))


@pytest.mark.turns(8)
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_over_json_gives_what_duckdb_finds(parts, truth, tmp_path, name):
    run_job(QUERIES[name], parts.all, tmp_path, delay_ms=DELAY_MS, parallelism=2, mode="threads", format="json")

    verdict = truth.compare_at_end(QUERIES[name], read_store(tmp_path).output)

    assert verdict.is_right, verdict
    assert verdict.rows >= 5, "a comparison with nothing says nothing"


def test_of_a_struct_the_fields_are_read_that_the_text_names():
    read = json_schema("unix_millis(date_time) as t, auction.expires, auction.category as event_category")

    assert read == pa.schema(
        {"date_time": pa.int64(), "auction": pa.struct({"expires": pa.int64(), "category": pa.int64()})}
    )


def test_every_query_of_the_runtime_is_there_in_the_sql_of_flink():
    assert FLINK_SQL.keys() == QUERIES.keys()


@pytest.mark.parametrize("name", QUERIES)
def test_the_statements_declare_what_the_query_reads_and_what_it_emits(tmp_path, name):
    query = QUERIES[name]

    *declared, insert = statements(query, tmp_path / "events", tmp_path / "result", delay_ms=DELAY_MS)
    nowhere = statements(query, tmp_path / "events", None, delay_ms=DELAY_MS)

    assert f"'path' = '{(tmp_path / 'events').as_uri()}'" in declared[0]
    assert "watermark for `at` as `at` - interval '4' second" in declared[0]
    views = [statement.split()[2] for statement in declared[1:-1]]
    assert views == [kind for kind in ("person", "auction", "bid") if f"{kind}." in query.text]
    for column in query.emitted:
        assert f"`{column}` " in declared[-1]
    assert "'debezium-json'" in declared[-1]
    assert insert == f"insert into `result` {FLINK_SQL[name]}"
    assert [nowhere[:-2], nowhere[-1]] == [declared[:-1], insert]
    assert nowhere[-2].endswith("with ('connector' = 'blackhole')")


def changes(folder, *lines):
    """Write changes as Flink does: (op, row)."""
    folder.mkdir()
    written = [
        {"before": row if op == "d" else None, "after": row if op == "c" else None, "op": op} for op, row in lines
    ]
    half = len(written) // 2
    for number, some in enumerate((written[:half], written[half:])):
        (folder / f"part-{number}").write_text("".join(json.dumps(line) + "\n" for line in some))


def test_what_is_left_of_a_result_is_what_was_not_taken_back(tmp_path):
    first, second = ({"category": 10, "auctions": count, "average": 7} for count in (1, 2))
    other = {"category": 11, "auctions": 1, "average": 7}
    changes(tmp_path / "result", ("c", first), ("c", other), ("d", first), ("c", second), ("c", other))

    left = final_rows(QUERIES["q4"], tmp_path / "result")

    assert sorted(left.to_pylist(), key=str) == sorted([second, other, other], key=str)


def test_a_row_that_is_taken_back_without_having_been_given_is_an_error(tmp_path):
    row = {"category": 10, "auctions": 1, "average": 7}
    changes(tmp_path / "result", ("c", row), ("d", row), ("d", row))

    with pytest.raises(ValueError, match="q4 takes back more often than it gave it: .10, 1, 7, -1"):
        final_rows(QUERIES["q4"], tmp_path / "result")


def test_windows_and_times_are_as_the_runtime_emits_them(tmp_path):
    window = {"window_start": "2015-07-15 00:00:01.001", "window_end": "2015-07-15 00:00:11.001"}
    changes(tmp_path / "session", ("c", {"bidder": 1, **window, "bids": 2}))
    bid = {"event": 1, "date_time": 1_436_918_400_007, "auction": 2, "bidder": 3, "price": 4}
    changes(tmp_path / "bid", ("c", bid | dict.fromkeys(("channel", "url", "extra"), "x")))

    session, last = (
        final_rows(QUERIES[name], tmp_path / place) for name, place in (("q11", "session"), ("q18", "bid"))
    )

    start = 1_436_918_401_001
    assert session.to_pylist() == [{"bidder": 1, "window_start": start, "window_end": start + 10_000, "bids": 2}]
    assert last["date_time"][0].as_py().isoformat() == "2015-07-15T00:00:00.007000+00:00"


def test_nothing_is_left_of_a_result_without_files(tmp_path):
    assert final_rows(QUERIES["q5"], tmp_path).num_rows == 0


def test_figures_are_medians_of_rates_and_of_ratios_by_round_in_wall_and_in_processor_time():
    ours = Series("arrowstate", 100, [1.0, 2.0, 4.0], [1.0, 1.0, 2.0])
    flink = Series("Flink", 100, [2.0, 5.0, 4.0], [10.0, 20.0, 20.0])

    assert figures(ours, flink) == pytest.approx([50, 25, 2, 100, 5, 10])


class FakePeer:
    """In the place of Flink: writes what the runtime would, but for some of it."""

    def __init__(self, folder, name, python, script, keys, rows):
        self.script = Path(script)
        self.timed_rows = rows // 4 * 3

    def prepare(self):
        """Write the result that the test has chosen."""
        told = json.loads(self.script.read_text())
        assert told["written"][-1] == told["all"][-1] == told["quarter"][-1]
        changes(Path(told["result"]), *(("c", row) for row in self.rows))

    def run(self):
        """Take as long as the test can reckon with."""
        return 3.0, 6.0


@pytest.mark.parametrize("lost", [0, 1])
def test_a_result_of_flink_that_lacks_a_row_is_told_and_is_an_error(tmp_path, monkeypatch, lost):
    query = QUERIES["q3"]
    options = Namespace(events=40_000, rate=500, seed=1, out_of_order=1, slots=[1], rounds=1)
    config = Config(options.rate, options.seed)
    run_job(
        query,
        write_files(tmp_path / "events", config, files=1, events_per_file=40_000)[0].parent,
        tmp_path / "own",
        delay_ms=DELAY_MS,
        mode="threads",
    )
    monkeypatch.setattr(FakePeer, "rows", read_store(tmp_path / "own").output.to_pylist()[lost:], raising=False)
    monkeypatch.setattr(beside_flink, "Peer", FakePeer)
    run_ours = Beside._ours
    # So few events take no longer than a quarter of them.
    monkeypatch.setattr(Beside, "_ours", lambda self: (run_ours(self), (1.0, 3.0))[1])
    console = Console(file=io.StringIO(), width=150)

    right = run_beside([query], tmp_path / "beside", Path("python"), options, console)

    (line,) = (line for line in console.file.getvalue().splitlines() if "q3" in line and "│" in line)
    cells = [cell.strip() for cell in line.split("│")]
    assert right == (lost == 0)
    assert cells[3:9] == ["30,000", "10,000", "3.00", "10,000", "5,000", "2.00"]
    assert cells[9] == ("Flink: 1 missing, 0 wrong" if lost else "both as DuckDB")
    assert not (tmp_path / "beside" / "q3-1").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slots", "0,1"], "--slots must be at least 1, got 0"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--queries", "q12"], "--queries q12 go by processing time"),
        (["--out-of-order", "2"], "of bids at the same time Flink's q18 keeps the one that comes last"),
        (["--rate", "3000"], "--out-of-order 1 and a rate that divides 50,000"),
    ],
)
def test_options_that_make_no_comparison_are_refused(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["--engine", "flink", *arguments])

    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(PYTHON is None, reason="ARROWSTATE_FLINK names no Python with apache-flink")
@pytest.mark.parametrize("slots", [1, 2])
def test_flink_gives_what_duckdb_finds(tmp_path, slots):
    console = Console(file=io.StringIO(), width=150)
    options = Namespace(events=40_000, rate=500, seed=1, out_of_order=700, slots=[slots], rounds=1)

    right = run_beside(list(QUERIES.values()), tmp_path, Path(PYTHON), options, console)

    assert right, console.file.getvalue()
    assert console.file.getvalue().count("both as DuckDB") == len(QUERIES)
