"""The queries of Nexmark: each gives what DuckDB finds in the same files, without Spark and with it."""

import io
import json
import shutil
import subprocess
from argparse import Namespace
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import arrowstate
from long_form import every_nth
from nexmark_queries import operators
from nexmark_queries.__main__ import main, run_all
from nexmark_queries.events import SCHEMA, Config, write_files
from nexmark_queries.queries import all_queries
from nexmark_queries.running import read_store, run_query, verify
from nexmark_queries.truth import Truth
from stores import backend_of

ROOT = Path(__file__).resolve().parents[2]
DELAY_MS = 4000
# Groups of 700 do not end where files do, so that rows come in other micro-batches than their neighbours in time;
# few people are active at a time, so that sessions end.
CONFIG = Config(events_per_second=500, out_of_order_group=700, active_people=50)
QUERIES = all_queries(period_ms=1000)
TIMES_MS = [1000, 1900, 2500, 4000]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("nexmark") / "events", CONFIG, files=4, events_per_file=5000)


@pytest.fixture(scope="module")
def truth(files):
    return Truth(files, delay_ms=DELAY_MS)


class Plain:
    """A chain of operators in one process, each with a backend of its own."""

    def __init__(self, query):
        self.query = query
        self.runners = []

    def run(self, batches):
        """Feed (watermark, processing time, rows) per micro-batch; return all rows emitted."""
        emitted = [rows for batch in batches if (rows := self._one(*batch)) is not None]
        return pa.concat_tables(emitted, promote_options="permissive")

    def _one(self, watermark, time, rows):
        for number, step in enumerate(self.query.steps):
            if number == len(self.runners):
                self.runners.append(self._runner(step, rows.schema))
            runner = self.runners[number]
            came = [runner.advance_watermark(watermark), runner.advance_processing_time(time), runner.process(rows)]
            tables = [table for item in came if (table := as_table(item)).num_columns]
            rows = pa.concat_tables(tables, promote_options="permissive") if tables else None
            if rows is None:
                return None
        return rows

    @staticmethod
    def _runner(step, schema):
        backend = backend_of(pa.schema([schema.field(name) for name in step.key]))
        function = step.make()
        if isinstance(function, arrowstate.BatchFunction):
            return arrowstate.BatchRunner(backend, function)
        kinds = {"long": pa.int64(), "string": pa.string()}
        columns = [column.split() for column in step.output.split(", ")]
        return arrowstate.KeyedProcessRunner(
            backend, function, output=pa.struct([(name, kinds[kind]) for name, kind in columns])
        )


def as_table(emitted):
    return emitted if isinstance(emitted, pa.Table) else pa.table(emitted.flatten(), emitted.type.names)


def plain_run(query, truth):
    chain = Plain(query)
    batches = zip(truth.watermarks(query), TIMES_MS, strict=True)
    rows = [(watermark, time, truth.rows(query, batch)) for batch, (watermark, time) in enumerate(batches)]
    return chain.run(rows), chain


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_what_duckdb_finds_in_the_files(truth, name):
    output, _ = plain_run(QUERIES[name], truth)

    verdict = truth.compare(QUERIES[name], output, times_ms=TIMES_MS)

    assert verdict.is_right, verdict
    assert verdict.rows >= 2, "a comparison with nothing says nothing"


def test_what_has_fired_is_gone_from_the_state(truth):
    def left(name, state):
        _, chain = plain_run(QUERIES[name], truth)
        return rows_of(chain.runners[0]._backend.states[state])

    auctions, waiting = left("q4", "auction"), left("q3", "waiting")
    windows, periods = left("q7", "price"), left("q12", "bids")

    assert 0 < len(auctions) < 600, "of 1,200 auctions"
    assert all(row["expires"] > truth.watermarks(QUERIES["q4"])[-1] for row in auctions)
    assert all(row["seller"] >= 1000 + 20_000 // 50 for row in waiting), "their sellers are yet to come"
    assert all(row["window_start"] + 10_000 > truth.watermarks(QUERIES["q7"])[-1] for row in windows)
    assert {row["window_end"] for row in periods} == {5000}


def rows_of(state):
    return [row for batch in state.live_batches() for row in batch.to_pylist()]


def auctions(*rows):
    """Rows of query 4: (kind, auction, t, expires, category, price)."""
    names = ["kind", "auction", "t", "expires", "category", "price"]
    kinds = [pa.string(), *[pa.int64()] * 5]
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], names)


def winning_bids(*batches):
    """What `WinningBids` emits for (watermark, rows) per micro-batch, and its runner."""
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("auction", pa.int64())]), max_parallelism=128)
    process = arrowstate.BatchRunner(backend, operators.WinningBids())
    emitted = []
    for watermark, rows in batches:
        emitted += process.advance_watermark(watermark).to_pylist()
        emitted += process.process(rows).to_pylist()
    return emitted, backend


def test_a_bid_counts_from_the_opening_to_the_expiry_of_its_auction_both_inclusive():
    rows = [("bid", 1, t, None, None, price) for t, price in ((99, 90), (100, 20), (200, 30), (201, 80))]

    emitted, _ = winning_bids((0, auctions(("auction", 1, 100, 200, 10, None), *rows)), (200, auctions(rows[0])))

    assert emitted == [{"auction": 1, "category": 10, "price": 30}]


def test_a_bid_that_comes_a_micro_batch_before_its_auction_counts():
    came = [
        (0, auctions(("bid", 1, 100, None, None, 70), ("bid", 1, 99, None, None, 90))),
        (50, auctions(("auction", 1, 100, 200, 10, None))),
        (200, auctions(("bid", 2, 300, None, None, 1))),
    ]

    emitted, _ = winning_bids(*came)
    _, before = winning_bids(*came[:2])

    assert emitted == [{"auction": 1, "category": 10, "price": 70}]
    assert rows_of(before.states["waiting"]) == []


def test_a_bid_on_an_auction_that_is_over_is_forgotten():
    bids = [(100 * n, auctions(("bid", 1, 100 * n + 50, None, None, n))) for n in range(1, 40)]

    emitted, backend = winning_bids(*bids)

    assert emitted == []
    assert len(rows_of(backend.states["waiting"])) == 1, "only the last has not been passed by the watermark"


def test_an_auction_without_bids_has_no_price():
    emitted, backend = winning_bids(
        (0, auctions(("auction", 1, 100, 200, 10, None))), (200, auctions(("bid", 2, 300, None, None, 1)))
    )

    assert emitted == []
    assert len(backend.states["auction"]) == 0


def bids(*rows):
    """Rows of queries 18 and 19: (event, seconds, auction, bidder, price)."""
    event, at, auction, bidder, price = zip(*rows, strict=True)
    times = pa.array([second * 1_000_000 for second in at], pa.int64()).cast(pa.timestamp("us", "UTC"))
    table = {"event": event, "date_time": times, "auction": auction, "bidder": bidder, "price": price}
    texts = {name: ["x"] * len(event) for name in ("channel", "url", "extra")}
    return pa.table(table | texts)


def test_of_equal_bids_the_earlier_are_in_the_top_ten_and_a_lower_one_changes_nothing():
    first = bids(*[(event, event // 4, 1, 5, 100) for event in range(31, 19, -1)])
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("auction", pa.int64())]), max_parallelism=128)
    process = arrowstate.BatchRunner(backend, operators.TopBids())

    ten = process.process(first)
    none = process.process(bids((32, 32, 1, 5, 99), (33, 33, 1, 5, 100)))
    better = process.process(bids((34, 34, 1, 5, 101), (50, 1, 1, 5, 100)))

    assert ten["event"].to_pylist() == list(range(20, 30))
    assert none.num_rows == 0
    assert better["event"].to_pylist() == [34, 50, *range(20, 28)]
    assert better["rank_number"].to_pylist() == list(range(1, 11))


def test_an_earlier_bid_that_comes_later_does_not_replace_the_last_one():
    key = pa.schema([("bidder", pa.int64()), ("auction", pa.int64())])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
    process = arrowstate.BatchRunner(backend, operators.LastBids())

    process.process(bids((7, 10, 1, 5, 100)))
    earlier = process.process(bids((3, 9, 1, 5, 1), (6, 10, 1, 5, 1), (8, 9, 1, 6, 1)))
    later = process.process(bids((8, 10, 1, 5, 2), (9, 11, 1, 5, 3)))

    assert [(row["event"], row["bidder"]) for row in earlier.to_pylist()] == [(8, 6)]
    assert later["event"].to_pylist() == [9]


def test_all_bids_of_the_highest_price_of_a_window_are_emitted():
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("window_start", pa.int64())]), max_parallelism=128)
    process = arrowstate.BatchRunner(backend, operators.HighestBids(10))

    for prices in ([5, 7, 7], [6], [7], [9, 1], [9]):
        count = len(prices)
        process.process(
            pa.table({"window_start": [0] * count, "auction": prices, "bidder": [1] * count, "price": prices})
        )
    fired = process.advance_watermark(9)

    assert [(row["price"], row["auction"], row["window_end"]) for row in fired.to_pylist()] == [(9, 9, 10)] * 2


def test_the_highest_count_of_a_window_stays_for_a_minute():
    key = pa.schema([("window_start", pa.int64()), ("window_end", pa.int64())])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
    process = arrowstate.BatchRunner(backend, operators.HottestItems())

    counts = {"window_start": [0, 0, 0, 5], "window_end": [9, 9, 9, 14], "bids": [4, 7, 7, 1]}
    hottest = process.process(pa.table({"auction": [1, 2, 3, 1], **counts}))
    process.advance_watermark(60_009)

    assert hottest["auction"].to_pylist() == [2, 3, 1]
    assert hottest["window_start"].to_pylist() == [0, 0, 5]
    assert [row["window_start"] for row in rows_of(backend.states["most"])] == [5]


@pytest.mark.parametrize(("after_ms", "sessions"), [(14_000 - 1, 1), (14_000 - 2, 0)])
def test_a_bid_at_the_very_end_of_a_session_is_in_it_unless_the_watermark_has_passed_it(tmp_path, after_ms, sessions):
    start = 1_000_000
    files = [
        write_bids(tmp_path / "0.parquet", (start, 1), (start + after_ms, 2)),
        write_bids(tmp_path / "1.parquet", (start + 10_000, 1)),
    ]
    truth, query = Truth(files, delay_ms=DELAY_MS), QUERIES["q11"]

    watermarks = truth.watermarks(query)
    batches = [(watermark, 0, truth.rows(query, batch)) for batch, watermark in enumerate(watermarks)]
    chain = Plain(query)
    output = chain.run(batches)

    assert watermarks == [0, start + after_ms - DELAY_MS]
    assert truth.compare(query, output, times_ms=[0, 0]).is_right
    assert output["bidder"].to_pylist() == [1] * sessions
    assert len(rows_of(chain.runners[0]._backend.states["bids"])) == 2


def write_bids(path, *bids):
    """Write a file with bids of (milliseconds, bidder)."""
    rows = []
    for number, (at, bidder) in enumerate(bids):
        time = datetime.fromtimestamp(at / 1000, UTC)
        bid = {"auction": 1, "bidder": bidder, "price": 1, "channel": "", "url": "", "date_time": time, "extra": ""}
        rows.append({"event": number, "kind": "bid", "date_time": time, "person": None, "auction": None, "bid": bid})
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    return path


def test_a_missing_and_a_wrong_row_are_counted(truth):
    output, _ = plain_run(QUERIES["q3"], truth)
    wrong = output.set_column(3, "auction", pa.array([-1, *output["auction"].to_pylist()[1:]]))

    missing = truth.compare(QUERIES["q3"], output.slice(1), times_ms=TIMES_MS)
    changed = truth.compare(QUERIES["q3"], wrong, times_ms=TIMES_MS)

    assert (missing.missing, missing.wrong, missing.is_right) == (1, 0, False)
    assert (changed.missing, changed.wrong, changed.is_right) == (1, 1, False)


def test_the_last_row_of_a_key_is_the_result(truth):
    output, _ = plain_run(QUERIES["q4"], truth)
    turned = output.take(list(reversed(range(output.num_rows))))

    assert truth.compare(QUERIES["q4"], output, times_ms=TIMES_MS).is_right
    assert not truth.compare(QUERIES["q4"], turned, times_ms=TIMES_MS).is_right


def test_late_rows_are_refused_because_the_truth_has_all_rows(files):
    impatient = Truth(files, delay_ms=0)

    with pytest.raises(ValueError, match=r"none may be late; \d+ are"):
        impatient.compare(QUERIES["q7"], pa.table({"price": pa.array([], pa.int64())}), times_ms=TIMES_MS)


def test_a_run_with_other_watermarks_than_the_files_give_is_refused(truth, tmp_path):
    log = tmp_path / "spark" / "offsets"
    log.mkdir(parents=True)
    watermarks = truth.watermarks(QUERIES["q7"])
    for batch, watermark in enumerate([0, *watermarks[:-1]]):
        times = json.dumps({"batchWatermarkMs": watermark, "batchTimestampMs": TIMES_MS[batch]})
        (log / str(batch)).write_text(f"v1\n{times}\n{{}}")

    with pytest.raises(ValueError, match=r"q7 ran with the watermarks \[0, 0, 14\d+, 14\d+\], its files give \[0, 14"):
        verify(QUERIES["q7"], truth, tmp_path, plain_run(QUERIES["q7"], truth)[0])


@pytest.fixture(scope="module")
def session(spark):
    """The session, whose workers do not know the folder tools: the functions go to them as they are."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(operators)
    yield spark
    cloudpickle.unregister_pickle_by_value(operators)


@pytest.mark.parametrize("name", [name for case, name in enumerate(QUERIES) if every_nth(5, case)])
def test_a_query_on_spark_gives_what_duckdb_finds_in_the_files(session, files, truth, tmp_path, name):
    run_query(session, QUERIES[name], files[0].parent, tmp_path, delay_ms=DELAY_MS)

    kept = read_store(tmp_path)
    verdict = verify(QUERIES[name], truth, tmp_path, kept.output)

    assert verdict.is_right, verdict
    assert kept.checkpoints == len(files)


def test_a_query_of_two_operators_goes_on_where_it_was_with_more_subtasks(session, files, truth, tmp_path):
    events = tmp_path / "events"
    events.mkdir()
    for parallelism, some in ((2, files[:2]), (3, files[2:])):
        for file in some:
            shutil.copy2(file, events)
        run_query(session, QUERIES["q4"], events, tmp_path / "q4", delay_ms=DELAY_MS, parallelism=parallelism)

    verdict = verify(QUERIES["q4"], truth, tmp_path / "q4", read_store(tmp_path / "q4").output)

    assert verdict.is_right, verdict


def test_the_table_says_which_results_are_right(session, tmp_path):
    wrong = replace(QUERIES["q3"], name="q3_wrong", truth=f"from ({QUERIES['q3'].truth}) limit 5")
    console = Console(file=io.StringIO(), width=150)
    options = Namespace(events=4000, files=2, rate=500, seed=1, out_of_order=1, parallelism=2)

    right = run_all(session, [QUERIES["q3"], wrong], tmp_path, options, console)

    lines = [line for line in console.file.getvalue().splitlines() if "q3" in line and "│" in line]
    assert not right
    assert lines[0].split("│")[1].strip() == "q3"
    assert lines[0].split("│")[-2].strip() == "as DuckDB"
    assert lines[1].split("│")[-2].strip().startswith("0 missing, ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--queries", "q4,q6"], "no query named q6; there is q3, q4, q5"),
        (["--events", "0"], "--events must be at least 1, got 0"),
        (["--rate", "100", "--out-of-order", "400"], "--out-of-order must be below 400, so that no event is"),
        (["--out-of-order", "953"], "no multiple of 953; got 953"),
        (["--folder", str(ROOT)], "--folder must be new or empty"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_script_starts_the_command():
    ran = subprocess.run([ROOT / "tools" / "nexmark", "--help"], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("usage: tools/nexmark [-h] [--events EVENTS]")
