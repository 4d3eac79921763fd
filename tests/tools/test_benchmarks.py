"""The frame of the benchmarks and the peer they are measured against."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks import harness
from benchmarks.harness import Contender, Report, Series, argument_parser, run_rounds
from benchmarks.rocksdb_peer import RocksDB

ROOT = Path(__file__).resolve().parents[2]
SEED = 5


def bench(*arguments):
    return subprocess.run([ROOT / "tools" / "bench", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_contenders_take_turns_and_the_order_turns_around():
    log = []
    contenders = [
        Contender("a", lambda: log.append("a"), prepare=lambda: log.append("prepare a")),
        Contender("b", lambda: log.append("b")),
    ]

    series = run_rounds(contenders, rounds=2, warmup=1)

    assert log == ["b", "prepare a", "a", "prepare a", "a", "b", "b", "prepare a", "a"]
    assert [(one.name, len(one.seconds), len(one.cpu_seconds)) for one in series] == [("a", 2, 2), ("b", 2, 2)]


def test_a_rate_is_better_when_higher_and_a_time_when_lower():
    rate_ours, rate_peer = Series("a", 100, [1.0, 2.0]), Series("b", 10, [1.0, 1.0])
    time_ours, time_peer = Series("a", None, [1.0, 2.0]), Series("b", None, [3.0, 1.0])

    rates, times = rate_ours.times_better_than(rate_peer), time_ours.times_better_than(time_peer)

    assert rate_ours.figures == [100, 50]
    assert rates == pytest.approx([10, 5])
    assert time_ours.figures == [1000, 2000]
    assert times == pytest.approx([3, 0.5])


@pytest.mark.parametrize(("check", "expected"), [([], 0), (["--check"], 1)])
def test_a_report_is_printed_and_kept_with_machine_and_versions(tmp_path, capsys, check, expected):
    parser = argument_parser("example", "An example.", rounds=3)
    parser.add_argument("--rows", type=int, default=10)
    arguments = parser.parse_args(["--json", str(tmp_path / "deep" / "example.json"), *check])

    report = Report("example", arguments)
    report.compare("counting", "rows", [Contender("ours", lambda: sum(range(10)), 10), Contender("peer", list, 10)])
    report.figure("bytes written", 1234, "bytes")
    kept = report.require("share", 2.5, at_most=3, unit="%")
    missed = report.require("rate", 2e6, at_least=3e6)
    exit_code = report.finish()

    printed = capsys.readouterr().out
    document = json.loads((tmp_path / "deep" / "example.json").read_text())
    assert (kept, missed, exit_code) == (True, False, expected)
    assert "MISSED  rate: 2 M  (at least 3 M)" in printed
    assert "ours is" in printed
    assert document["arguments"]["rows"] == 10
    assert set(document["machine"]) >= {"cpu", "cores", "cores_used", "memory_bytes", "kernel", "load_average"}
    assert set(document["versions"]) >= {"python", "arrowstate", "numpy", "pyarrow", "rocksdict"}
    assert [len(one["seconds"]) for one in document["comparisons"][0]["contenders"]] == [3, 3]
    assert len(document["comparisons"][0]["ratios"]["peer"]["by_round"]) == 3
    assert document["figures"] == [{"name": "bytes written", "value": 1234, "unit": "bytes"}]


@pytest.mark.parametrize(("slowness", "expected"), [(1.0, [True, False, True, False]), (2.0, [True] * 4)])
def test_bounds_of_times_and_rates_are_those_of_a_machine_as_slow_as_this_one(
    tmp_path, capsys, monkeypatch, slowness, expected
):
    monkeypatch.setattr(harness, "yardstick_seconds", lambda: slowness * harness.YARDSTICK_SECONDS)
    parser = argument_parser("example", "An example.")
    report = Report("example", parser.parse_args(["--json", str(tmp_path / "example.json")]))

    met = [report.require_time("answer", seconds, at_most=1.5) for seconds in (1.4, 2.9)]
    met += [report.require_rate("updates", rate, at_least=3e6, unit="rows/s") for rate in (3.1e6, 1.6e6)]

    assert met == expected
    assert f"1.5 s, times {slowness:.2f} by the yardstick" in capsys.readouterr().out


def test_the_yardstick_takes_time():
    assert harness.yardstick_seconds() > 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.05, "0.05"), (3.14159, "3.14"), (123.4, "123"), (9999, "9999"), (12_345, "12.3 k"), (4_918_000, "4.92 M")],
)
def test_figures_are_shown_with_three_digits(value, shown):
    assert harness._short(value) == shown


def test_the_list_has_benchmarks_with_what_they_measure_and_no_helpers():
    listed = bench()

    shown = dict(line.split(maxsplit=1) for line in listed.stdout.splitlines() if line.startswith("  "))
    assert listed.returncode == 0
    assert shown["hash"].startswith("Key hash")
    assert not {"harness", "rocksdb-peer", "spark-jobs", "workload"} & set(shown)


def test_an_unknown_benchmark_is_refused_with_those_there_are():
    ran = bench("hsah")

    assert ran.returncode == 2
    assert "no benchmark named 'hsah'; there is " in ran.stderr


def test_the_hash_benchmark_runs_at_a_small_size(tmp_path):
    path = tmp_path / "hash.json"

    ran = bench("hash", "--rows", 5000, "--string-rows", 5000, "--rounds", 2, "--json", path)

    assert ran.returncode == 0, ran.stderr
    document = json.loads(path.read_text())
    titles = [comparison["title"] for comparison in document["comparisons"]]
    assert titles == ["int64, 5,000 rows", "16-byte strings, 5,000 rows"]
    assert len(document["machine"]["cores_used"]) == 1


@pytest.mark.slow
def test_a_larger_job_costs_each_subtask_no_more(tmp_path):
    path = tmp_path / "scale.json"

    ran = bench("scale", "--parallelism", 4, 64, 192, "--states", 3, "--check", "--json", path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    required = {item["name"] for item in json.loads(path.read_text())["requirements"]}
    assert {"commit at 192", "log entry at 192", "requests per subtask, write", "bytes, latest"} <= required


def int64_keys(random, rows):
    return random.integers(-50, 50, rows)


def string_keys(random, rows):
    return np.char.zfill(random.integers(0, 100, rows).astype("S16"), 16)


@pytest.mark.parametrize("make_keys", [int64_keys, string_keys])
def test_rocksdb_keeps_the_same_sums_as_a_dict(tmp_path, make_keys):
    random = np.random.default_rng(SEED)
    model: dict[object, int] = {}
    database = RocksDB(tmp_path / "db", cache_bytes=1 << 20)

    for _ in range(5):
        keys, deltas = make_keys(random, 200), random.integers(-9, 10, 200)
        database.rmw(keys, deltas)
        for key, delta in zip(keys.tolist(), deltas.tolist(), strict=True):
            model[key] = model.get(key, 0) + delta
    asked = make_keys(random, 300)

    assert database.get_batch(asked).tolist() == [model.get(key, 0) for key in asked.tolist()]
    assert [database.lookup(key) for key in asked.tolist()] == [model.get(key) for key in asked.tolist()]
    assert database.scan_sum() == sum(model.values())
    database.close()


@pytest.mark.parametrize("make_keys", [int64_keys, string_keys])
def test_a_checkpoint_of_rocksdb_has_what_was_written_before_it_without_a_log(tmp_path, make_keys):
    keys = np.unique(make_keys(np.random.default_rng(SEED), 500))
    database = RocksDB(tmp_path / "db", cache_bytes=1 << 20)
    database.load(keys, np.arange(len(keys)))
    database.rmw(keys[:3], np.full(3, 100))

    database.checkpoint(tmp_path / "checkpoint")
    database.rmw(keys, np.full(len(keys), 7))
    restored, first = RocksDB.restore(tmp_path / "checkpoint", keys)

    assert first.tolist() == [100, 101, 102, *range(3, len(keys))]
    assert database.get_batch(keys[:1]).tolist() == [107]
    restored.close()
    database.close()


@pytest.mark.turns(6)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("per-record", ["--keys", 2000, "--batch", 1000, "--batches", 2]),
        ("kinds", ["--keys", 2000, "--batch", 1000, "--batches", 2]),
        ("diff", ["--keys", 20_000, "--checkpoints", 20, "--lookups", 5]),
        ("windows", ["--elements", 20_000, "--keys", 2000, "--batch", 1000, "--window", 3000, "--disorder", 100]),
    ],
)
@pytest.mark.turns(6)
def test_the_benchmarks_of_state_run_at_a_small_size(tmp_path, name, options):
    path = tmp_path / "run.json"

    ran = bench(name, *options, "--rounds", 2, "--json", path)

    assert ran.returncode == 0, ran.stderr
    comparisons = json.loads(path.read_text())["comparisons"]
    assert comparisons
    assert all(one["ratios"] or len(one["contenders"]) == 1 for one in comparisons)
