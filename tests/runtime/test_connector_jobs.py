"""Connectors in jobs whose slots and coordinators are killed: what comes out is what went in, once."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import runtime_jobs as jobs
from arrowstate.runtime import Job, Restart, Source
from arrowstate.runtime.connectors import Reader, Sink, Token
from arrowstate.runtime.core import sinking
from arrowstate.runtime.sinks.functions import FunctionSink
from arrowstate.runtime.sinks.parquet import BulkParquetSink, ParquetSink
from arrowstate.runtime.sinks.postgres import PostgresSink
from arrowstate.runtime.sources.files import FileSource
from arrowstate.runtime.sources.memory import GeneratorSource, IteratorSource
from arrowstate.testing.jobs import simulate
from long_form import short_or_long
from other_stores import Counts, Output

SEEDS = short_or_long(6, 200)
ROWS = 230
NUMBERS = pa.schema({"n": pa.int64()})


def few(source: type[Source]) -> type[Any]:
    """The same source, read a few rows at a time, so that there are many moments at which it can be killed."""

    class Few(source):  # type: ignore[misc,valid-type]
        def reader(self) -> Reader:
            return jobs.Few(super().reader())

    return Few


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def numbers_from(begin: int, first: int, count: int) -> pa.RecordBatch:
    return numbers(begin + first, count)


def files(folder: Path, format: str) -> Source:
    for number, first in enumerate(range(0, ROWS, 50)):
        rows = pa.Table.from_batches([numbers(first, min(50, ROWS - first))])
        if format == "parquet":
            pq.write_table(rows, folder / f"{number}.parquet", row_group_size=17)
        else:
            pc.write_csv(rows, folder / f"{number}.csv")
    return few(FileSource)(folder, format, schema=NUMBERS)


def iterator(folder: Path) -> Source:
    def make(split: int, position: int) -> Iterator[pa.RecordBatch | None]:
        for row in range(position, ROWS // 2):
            yield numbers(split * ROWS // 2 + row, 1)
            if row % 10 == 0:
                yield None

    return IteratorSource(make, NUMBERS, splits=2)


SOURCES: dict[str, Callable[[Path], Source]] = {
    "parquet": lambda folder: files(folder, "parquet"),
    "csv": lambda folder: files(folder, "csv"),
    "iterator": iterator,
    "generator": lambda folder: few(GeneratorSource)(numbers, NUMBERS, rows=ROWS, splits=3, batch_rows=20),
}


def in_folder(folder: Path) -> list[int]:
    return [n for file in folder.glob("[!.]*") for n in pq.read_table(file)["n"].to_pylist()]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("sink", [ParquetSink, BulkParquetSink])
def test_every_row_of_a_source_is_in_the_folder_once(tmp_path: Path, kind: str, sink: Any) -> None:
    given = tmp_path / "given"
    given.mkdir()
    source = SOURCES[kind](given)
    kills = 0

    for seed in range(SEEDS):
        out = tmp_path / f"out-{seed}"
        job = Job("memory://unused", parallelism=2)
        job.source(source, uid="numbers").rebalance().sink(sink(out), uid="folder")
        (run,) = simulate(job, seeds=[seed], kills=4, crashes=2, rescales=(1, 3), check=id)
        kills += run.kills + run.crashes

        assert Counter(in_folder(out)) == Counter(range(ROWS)), seed
    assert kills > SEEDS / 2


@pytest.mark.parametrize("sink", [ParquetSink, BulkParquetSink])
def test_every_row_of_a_union_is_in_the_folder_once(tmp_path: Path, sink: Any) -> None:
    for seed in range(SEEDS):
        out = tmp_path / f"out-{seed}"
        job = Job("memory://unused", parallelism=2)
        parts = [
            job.source(few(GeneratorSource)(partial(numbers_from, begin), NUMBERS, rows=100), uid=f"from_{begin}")
            for begin in (0, 100, 200)
        ]
        parts[0].union(*parts[1:]).sink(sink(out), uid="folder")

        simulate(job, seeds=[seed], kills=4, crashes=2, rescales=(1, 3), check=id)

        assert Counter(in_folder(out)) == Counter(range(300)), seed


def test_rows_of_a_checkpoint_that_were_too_many_for_memory_come_as_one(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sinking, "_MOST_BYTES", 100)
    job = Job(tmp_path / "own")
    job.source(SOURCES["generator"](tmp_path), uid="numbers").sink(ParquetSink(tmp_path / "out"), uid="folder")

    job.run(mode="inline")

    assert Counter(in_folder(tmp_path / "out")) == Counter(range(ROWS))


def test_committables_that_are_never_null_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    class Strict(BulkParquetSink):
        committable_schema = pa.schema([field.with_nullable(False) for field in BulkParquetSink.committable_schema])

        def writer(self, store_id: str, uid: str, subtask: int, attempt: str) -> Any:
            made = super().writer(store_id, uid, subtask, attempt)
            prepare = made.prepare
            made.prepare = lambda checkpoint_id: prepare(checkpoint_id).cast(self.committable_schema)  # type: ignore[method-assign]
            return made

        def commit(self, committables: pa.RecordBatch) -> None:
            if not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                raise OSError("the place is away")
            super().commit(committables)

    job = Job(tmp_path / "own", restart=Restart.fixed(attempts=3, delay_ms=0))
    job.source(SOURCES["generator"](tmp_path), uid="numbers").sink(Strict(tmp_path / "out"), uid="folder")

    running = job.start(mode="inline")
    running.wait(timeout_ms=100_000)

    assert Counter(in_folder(tmp_path / "out")) == Counter(range(ROWS))


def test_every_row_is_in_the_table_once(database: str) -> None:
    import psycopg

    for seed in range(SEEDS):
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("drop table if exists numbers; create table numbers (n bigint)")
            job = Job("memory://unused", parallelism=2)
            source = SOURCES["generator"](Path())
            job.source(source, uid="numbers").rebalance().sink(PostgresSink(database, "numbers"), uid="table")

            simulate(job, seeds=[seed], kills=4, crashes=2, check=id)

            found = [n for (n,) in connection.execute("select n from numbers").fetchall()]
        assert Counter(found) == Counter(range(ROWS)), seed


def test_a_function_is_called_with_every_row_at_least_once() -> None:
    for seed in range(SEEDS):
        seen: list[pa.RecordBatch] = []
        job = Job("memory://unused", parallelism=2)
        job.source(SOURCES["generator"](Path()), uid="numbers").sink(FunctionSink(seen.append), uid="f")

        simulate(job, seeds=[seed], kills=4, check=id)

        assert {n for rows in seen for n in rows["n"].to_pylist()} == set(range(ROWS)), seed


def run_for_a_while(job: Job, seed: int) -> None:
    """Start a job that has no end, take a checkpoint, and leave it where it is then."""
    running = job.start(mode="inline", seed=seed)
    running.go_on(300)
    running.checkpoint()
    running.go_on(20 * seed)
    running.close()


@pytest.mark.parametrize("kind", ["output", "changes"])
def test_what_another_store_commits_between_two_runs_comes_once(tmp_path: Path, kind: str) -> None:
    output, counts = Output(tmp_path / "output"), Counts(tmp_path / "counts")
    output.commit(30)
    counts.commit(dict.fromkeys(range(30), 1))
    source = output.source() if kind == "output" else counts.source(starting="earliest", splits=2)
    job = Job(tmp_path / "own", parallelism=2)
    job.source(source, uid="other").sink(ParquetSink(tmp_path / "out"), uid="folder")

    for turn in range(4):
        run_for_a_while(job, seed=turn)
        output.commit(*[30] * (turn + 2))
        counts.commit({turn: 2, 100 + turn: 1}, clear=[10 + turn])
        # Nothing changes with this one; what comes of it is a position.
        counts.commit({turn: 2})
    run_for_a_while(job, seed=0)

    found = pa.concat_tables([pq.read_table(file) for file in (tmp_path / "out").glob("[!.]*")])
    if kind == "output":
        assert sorted(found["n"].to_pylist()) == list(range(150))
    else:
        expected = counts.changes(None, *range(1, 10))
        assert Counter(map(repr, found.to_pylist())) == Counter(map(repr, expected))


def test_files_that_come_later_are_read_and_those_of_before_are_not_read_again(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    pq.write_table(pa.table({"n": range(40)}), given / "0")
    job = Job(tmp_path / "own", parallelism=2)
    source = few(FileSource)(given, is_bounded=False, discovery_ms=1)
    job.source(source, uid="files").sink(ParquetSink(tmp_path / "out"), uid="folder")

    for turn in range(3):
        run_for_a_while(job, seed=turn)
        pq.write_table(pa.table({"n": range(40 * turn + 40, 40 * turn + 80)}), given / f"{turn + 1}")
    run_for_a_while(job, seed=3)

    assert Counter(in_folder(tmp_path / "out")) == Counter(range(160))


class Remembers(Sink):
    """A sink that keeps what it was opened with."""

    def __init__(self, seen: list[tuple[str, str]]) -> None:
        self.seen = seen
        self.uid = ""

    def open(self, store_id: str, uid: str) -> None:
        self.uid = uid

    def commit(self, rows: pa.Table, token: Token) -> None:
        self.seen.append((self.uid, token.uid))


def test_a_sink_that_is_used_twice_is_opened_under_each_uid_by_itself(tmp_path: Path) -> None:
    job = Job(tmp_path / "store")
    seen: list[tuple[str, str]] = []
    sink = Remembers(seen)
    for name in ("a", "b"):
        job.source(SOURCES["generator"](tmp_path), uid=name).sink(sink, uid=f"to_{name}")

    job.run(mode="inline")

    assert set(seen) == {("to_a", "to_a"), ("to_b", "to_b")}
