"""The contenders of `tools/bench spark` at a tiny size: ours give the right result, and Spark's take the same rows."""

import json
import os
from types import SimpleNamespace

import pyarrow as pa
import pytest

import arrowstate
from benchmarks import spark as bench
from benchmarks import spark_jobs
from benchmarks.harness import Report, argument_parser
from benchmarks.spark_jobs import HDFS, ROCKSDB, Job, MemoryWatch, aggregated, by_row_processor, make_files


@pytest.fixture(autouse=True)
def functions_by_value():
    """Spark's workers do not know the folder tools, so what runs in them goes there as it is."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(spark_jobs)
    yield
    cloudpickle.unregister_pickle_by_value(spark_jobs)


@pytest.fixture
def files(tmp_path):
    return make_files(tmp_path / "files", keys=5, rows=40, count=2)


@pytest.mark.parametrize("write", [spark_jobs.into_store, spark_jobs.by_batch_function])
def test_ours_count_and_sum_what_is_in_the_files(spark, tmp_path, files, write):
    job = Job(spark, tmp_path / "job", files, 1, write)

    job.start()
    job.finish()
    job.stop()

    bench.compare_results(job.places[0] / "store", files)
    with pytest.raises(AssertionError, match="keys differ from a recomputation"):
        bench.compare_results(job.places[0] / "store", files[:1])


@pytest.mark.parametrize(("write", "settings"), [(aggregated, HDFS), (by_row_processor, ROCKSDB)])
def test_those_of_spark_take_all_rows_on_the_state_store_asked_for(spark, tmp_path, files, write, settings):
    job = Job(spark, tmp_path / "job", files, 1, write, settings)
    before = spark.conf.get("spark.sql.streaming.stateStore.providerClass")

    job.start()
    job.finish()
    progress = [step for step in job.query.recentProgress if step["numInputRows"]]
    job.stop()

    assert [step["numInputRows"] for step in progress] == [40, 40]
    assert progress[-1]["stateOperators"][0]["numRowsTotal"] == 5
    assert spark.conf.get("spark.sql.streaming.stateStore.providerClass") == before


def test_the_fixed_cost_is_compared_with_a_micro_batch_without_state(spark, tmp_path):
    parser = argument_parser("spark", "Spark.", rounds=1)
    path = tmp_path / "spark.json"
    report = Report("spark", parser.parse_args(["--json", str(path)]))

    bench._fixed(report, spark, tmp_path / "fixed", SimpleNamespace(small=20, small_batches=1, skipped=0, warmup=0))
    report.finish()

    document = json.loads(path.read_text())
    assert [one["name"] for one in document["comparisons"][0]["contenders"]] == [
        "keyed_sink",
        "stateful",
        "foreachBatch without state",
    ]
    assert [one["at_most"] for one in document["requirements"]] == [1.3, 1.3]


def test_a_large_state_is_made_through_the_python_api(tmp_path):
    spark_jobs.totalled(tmp_path, 3000)

    snapshot = arrowstate.open_store(tmp_path / "store").latest()
    table = snapshot.to_arrow("bench.totals").sort_by("k")
    assert table["k"].to_pylist() == list(range(3000))
    assert table["n"].unique().to_pylist() == [1]
    assert table["v"].to_pylist() == [key % 1000 for key in range(3000)]
    assert len(snapshot.entry.operators[0].subtasks) == 2


def test_the_memory_of_this_process_and_its_children_is_watched():
    held = pa.array(range(3_000_000))
    watch = MemoryWatch()

    with watch.watching():
        pass

    assert watch.peak_bytes > watch.peak_without_files > held.nbytes
    assert os.getpid() in spark_jobs._family(os.getpid())
