"""Rounds of SIGKILL of slots, and of the whole job, at random moments; what came out is compared with DuckDB.

    tools/python tests/runtime/kill_rounds.py --rounds 200 [--seed N] [--folder FOLDER]
    tools/python tests/runtime/kill_rounds.py --rounds 50 --sink postgres
    tools/python tests/runtime/kill_rounds.py --rounds 50 --sink kafka
    tools/python tests/runtime/kill_rounds.py --rounds 50 --sink delta|iceberg

A round starts the job anew on the same store, at 1 to 3 slots: a keyed sum of many files, each row of which goes into
an output table and a sink outside. At 1 and 3 slots barriers overtake. After each round the newest checkpoint must fit
together, and the sink have nothing that it has not; every eighth lets the job come to its end, and begins with another
store. PostgreSQL is a server of the script's own, and so is the broker of the protocol of Kafka, where rows come from
Kafka too; what no transaction has given up is read there by the marks in its log. With Delta and Iceberg rows come from
such a table too, a part of them as of a version and the rest from those after it. It exits with 1 after a finding.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import arrowstate
from arrowstate.runtime import (
    FileSource,
    Job,
    JsonFormat,
    KafkaSink,
    KafkaSource,
    OutputTable,
    ParquetSink,
    PostgresSink,
    RawFormat,
    Restart,
)
from kafka_brokers import committed_messages, given_up_messages, make_topic, tansu_broker, tansu_program
from open_tables import KINDS, OpenTable
from postgres import postgres_programs, postgres_server

ROWS, FILES, KEYS = 400_000, 40, 2_000
RUNNING = pa.schema([("user", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])
INPUT = pa.schema([("user", pa.int64()), ("n", pa.int64()), ("amount", pa.int64())])
SINKS = ("parquet", "postgres", "kafka", *KINDS)
LOST, TOKENS = "rows are missing in the sink", "arrowstate_commits"
IN_FLIGHT = "select count(*) from totals.inflight"
_END_SECONDS = 120
_AT_START = 5
"""In one of so many rounds the kills come while the job starts, in the others after its first checkpoint."""

_WHOLE = 8
"""After so many rounds the job comes to its end."""

_WORK_SECONDS = 16
"""So long one slot takes for all rows, however few: the rounds before the end find the job at work."""


class Totals(arrowstate.BatchFunction):
    """Adds amounts, and gives each row out again."""

    def __init__(self, seconds_per_row: float) -> None:
        self.seconds_per_row = seconds_per_row

    def open(self, context):
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch, context):
        keys = context.group_keys(batch)
        self.total.add_batch(keys, batch["amount"])
        # So that a kill finds it at work.
        time.sleep(batch.num_rows * self.seconds_per_row)
        return pa.record_batch([batch["user"], batch["n"], batch["amount"]], names=["user", "n", "total"])


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job is: its input, its store, and what it writes to."""

    folder: Path
    sink: str = "parquet"
    server: str | None = None
    """What is needed to connect to PostgreSQL or Kafka."""

    @property
    def table(self) -> str:
        """The table or topic of this job."""
        return f"out_{self.folder.name.replace('-', '_')}"

    def open_table(self, name: str) -> OpenTable:
        """The table of Delta or Iceberg that a job reads or writes."""
        return KINDS[self.sink](self.folder / name)

    @property
    def topic(self) -> str:
        """The topic that a job reads from Kafka."""
        return self.table.replace("out_", "in_", 1)


def missing(sink: str) -> str | None:
    """Return what a sink needs that is not on this machine."""
    if sink == "postgres" and postgres_programs() is None:
        return "PostgreSQL is not installed"
    return "Tansu is not installed" if sink == "kafka" and tansu_program() is None else None


def server_of(sink: str) -> AbstractContextManager[str | None]:
    """Run the server that a sink needs."""
    if sink == "postgres":
        return postgres_server()
    return tansu_broker() if sink == "kafka" else nullcontext()


def make_files(folder: Path) -> None:
    """Write the input, the same each time."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(7)
    for number in range(FILES):
        count = ROWS // FILES
        first = number * count
        table = pa.table(
            {
                "user": chance.integers(0, KEYS, count),
                "n": np.arange(first, first + count),
                "amount": chance.integers(0, 100, count),
            }
        )
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=ROWS // 200)


def make_place(folder: Path, sink: str = "parquet", server: str | None = None) -> Place:
    """Write the input, and make the table or the topics."""
    place = Place(folder, sink, server)
    make_files(folder / "in")
    if sink == "postgres":
        import psycopg

        with psycopg.connect(str(server)) as connection:
            connection.execute(f'create table {place.table} ("user" bigint, n bigint, total bigint)')  # type: ignore[call-overload]
    elif sink == "kafka":
        _fill_topics(place)
    elif sink in KINDS:
        for name, schema in (("from", INPUT), ("to", RUNNING)):
            (folder / name).mkdir()
            place.open_table(name).make(schema)
        for number, file in enumerate(sorted((folder / "in").glob("*.parquet"))):
            place.open_table("from").append(pq.read_table(file, schema=INPUT))
            if number == FILES // 4:
                (folder / "begins").write_text(json.dumps(place.open_table("from").newest()))
    return place


def _fill_topics(place: Place) -> None:
    """Send the input to a topic."""
    from confluent_kafka import Producer

    assert place.server is not None
    make_topic(place.server, place.topic, 4)
    make_topic(place.server, place.table, 2)
    producer = Producer({"bootstrap.servers": place.server, "linger.ms": 5})
    for number, file in enumerate(sorted((place.folder / "in").glob("*.parquet"))):
        rows = pq.read_table(file, schema=INPUT).to_pylist()
        sent = [{"value": json.dumps(row).encode()} for row in rows]
        assert producer.produce_batch(place.topic, sent, partition=number % 4) == len(sent)
        producer.flush()


def make_job(place: Place, parallelism: int) -> Job:
    """Return the job."""
    job = Job(
        place.folder / "store",
        parallelism=parallelism,
        max_parallelism=128,
        # Two slots go on from what was in flight, with barriers that wait.
        options=arrowstate.CheckpointOptions(interval_ms=50, tolerated_failures=10, unaligned=parallelism != 2),
        restart=Restart.fixed(delay_ms=20),
    )
    if place.server is not None and place.sink == "kafka":
        source = KafkaSource(place.server, place.topic, JsonFormat(INPUT), is_bounded=True, group=place.topic)
        rows = job.source(source, uid="rows")
    elif place.sink in KINDS:
        begins = json.loads((place.folder / "begins").read_text())
        rows = job.source(place.open_table("from").source(splits=2, discovery_ms=50, **begins), uid="rows")
    else:
        rows = job.source(FileSource(place.folder / "in"), uid="rows")
    count = sum(pq.read_metadata(file).num_rows for file in (place.folder / "in").glob("*.parquet"))
    function = Totals(_WORK_SECONDS / count)
    totals = rows.rebalance().stateful(function, key=["user"], uid="totals", output_schema=RUNNING)
    totals.sink(OutputTable("given"))
    if place.sink in KINDS:
        totals.sink(place.open_table("to").sink(), uid="outside")
    elif place.server is None:
        totals.sink(ParquetSink(place.folder / "out"), uid="outside")
    elif place.sink == "postgres":
        totals.sink(PostgresSink(place.server, place.table), uid="outside")
    else:
        key = RawFormat("key", pa.string())
        keyed = totals.map_batches(lambda rows: rows.append_column("key", rows["user"].cast(pa.string())))
        keyed.sink(KafkaSink(place.server, place.table, key=key), uid="outside")
    return job


@contextmanager
def _tables(place: Place) -> Iterator[duckdb.DuckDBPyConnection]:
    """Give DuckDB the input, and what the newest checkpoint and the sink have."""
    snapshot = arrowstate.open_store(place.folder / "store").latest()
    with duckdb.connect() as connection:
        connection.execute("set threads to 1")
        connection.execute(f"create view input as from read_parquet('{place.folder}/in/*.parquet')")
        connection.register("totals", snapshot.to_arrow("totals.total"))
        given = snapshot.operator_state("given", "rows").column("rows").combine_chunks()
        connection.register("given", pa.Table.from_arrays(given.flatten(), names=["user", "n", "total"]))
        connection.register("outside", _outside(place))
        yield connection


def _outside(place: Place) -> pa.Table:
    """Return the rows of the sink."""
    if place.sink in KINDS:
        return place.open_table("to").rows().cast(RUNNING)
    if place.server is None:
        files = sorted((place.folder / "out").glob("*.parquet")) if (place.folder / "out").exists() else []
        return pa.concat_tables([RUNNING.empty_table(), *(pq.read_table(file).cast(RUNNING) for file in files)])
    if place.sink == "kafka":
        return pa.Table.from_pylist(
            [json.loads(it.value or b"") for it in committed_messages(place.server, place.table)], RUNNING
        )
    import psycopg

    with psycopg.connect(place.server) as connection:
        rows = connection.execute(f'select "user", n, total from {place.table}').fetchall()  # type: ignore[call-overload]
    return pa.Table.from_pylist([dict(zip(RUNNING.names, row, strict=True)) for row in rows], RUNNING)


def compare(place: Place, *, is_over: bool = True) -> str | None:
    """Return what is wrong with the results, None if nothing is.

    Before the job is over the checkpoint has some of the input: the state must be the sums of the rows that the table
    has, each once and as the input has it, and the sink must have no others.
    """
    try:
        with _tables(place) as connection:
            problem = _problem(connection, is_over)
    except arrowstate.CheckpointNotFoundError:
        return "the job has ended without a checkpoint" if is_over or len(_outside(place)) else None
    if problem is not None and problem.endswith(LOST) and _shows_what_was_given_up(place):
        print(f"{place.folder}: {problem}: Tansu showed the job a token of a transaction that was given up")
        return None
    return problem


def _shows_what_was_given_up(place: Place) -> bool:
    """Whether a token of this job is in the log that a broker of Apache Kafka would not show.

    A kill between the token and the end of its transaction leaves one, and the job takes its rows for sent.
    """
    if place.sink != "kafka" or place.server is None:
        return False
    own = arrowstate.open_store(place.folder / "store").store_id.encode()
    return any((message.key or b"").startswith(own) for message in given_up_messages(place.server, TOKENS))


def _has_in_flight(place: Place) -> bool:
    """Whether the newest checkpoint has rows in flight."""
    try:
        ((count,),) = arrowstate.open_store(place.folder / "store").latest().sql(IN_FLIGHT).fetchall()
    except (arrowstate.CheckpointNotFoundError, arrowstate.StateNotFoundError):
        return False
    return count > 0


def _problem(connection: duckdb.DuckDBPyConnection, is_over: bool) -> str | None:
    questions = {
        "keys differ between the state and the rows that were given out": 'select count(*) from (select "user", '
        'sum(total)::bigint t from given group by all) a full join totals b on a."user" = b."user" '
        "where t is distinct from b.total",
        "rows were given out twice": "select count(*) - count(distinct n) from given",
        "rows were given out that the input has not": "select count(*) from given anti join input on input.n = given.n "
        'and input."user" = given."user" and input.amount = given.total',
        "rows are in the sink twice": "select count(*) - count(distinct n) from outside",
        "rows are in the sink that the checkpoint has not": "select count(*) from outside anti join given on "
        'outside.n = given.n and outside."user" = given."user" and outside.total = given.total',
    }
    if is_over:
        questions["rows are missing in the table"] = (
            "select (select count(*) from input) - (select count(*) from given)"
        )
        questions[LOST] = "select (select count(*) from input) - (select count(*) from outside)"
    for problem, query in questions.items():
        (count,) = connection.execute(query).fetchone() or (None,)
        if count != 0:
            return f"{count} {problem}"
    return None


def run_round(place: Place, number: int, chance: random.Random) -> tuple[int, int, bool]:
    """Run the job with kills; return how many slots and how many whole jobs were killed, and whether they were at work.

    A job that was at work has taken a checkpoint in this round, and had not ended when it was killed.
    """
    before = newest_checkpoint(place)
    child = started(place, chance.choice([1, 2, 3]))
    while number % _AT_START != _AT_START - 1 and child.poll() is None and newest_checkpoint(place) == before:
        time.sleep(0.01)
    slots = whole = 0
    if number % 2:
        time.sleep(chance.uniform(0.0, 0.5))
        whole = int(child.poll() is None)
    else:
        for _ in range(2):
            time.sleep(chance.uniform(0.0, 0.5))
            workers = workers_of(child.pid)
            if workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
                slots += 1
        time.sleep(chance.uniform(0.0, 0.3))
    child.kill()
    child.wait()
    return slots, whole, slots + whole > 0 and newest_checkpoint(place) != before


def newest_checkpoint(place: Place) -> int | None:
    """Return the newest checkpoint of the job, None before there is one."""
    try:
        return arrowstate.open_store(place.folder / "store").latest().checkpoint_id
    except (arrowstate.CheckpointNotFoundError, arrowstate.StoreNotFoundError):
        return None


def started(place: Place, parallelism: int) -> subprocess.Popen[str]:
    """Start the job in a process of its own, and return once it runs."""
    command = [sys.executable, __file__, "--folder", str(place.folder), "--child", str(parallelism)]
    command += ["--sink", place.sink]
    if place.server is not None:
        command += ["--server", place.server]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def finish(place: Place) -> None:
    """Let the job come to its end; one that follows a table, to the end of the table."""
    job = make_job(place, 2)
    if place.sink not in KINDS:
        job.run()
        return
    ends = time.monotonic() + _END_SECONDS
    with job.start(mode="threads") as running:
        count = 0
        while count < ROWS and time.monotonic() < ends:
            ((count,),) = running.checkpoint().sql("select count(*) from given.rows").fetchall()
        running.stop()


def workers_of(process: int) -> list[int]:
    """Return the processes that a process has started."""
    try:
        lines = [
            int(item)
            for task in Path(f"/proc/{process}/task").iterdir()
            for item in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return lines


def run_rounds(folder: Path, rounds: int, seed: int, sink: str = "parquet", server: str | None = None) -> int:
    """Run rounds, print what happened, and return how many findings there were."""
    chance = random.Random(seed)
    problems = slots = whole = at_work = in_flight = 0
    place: Place | None = None
    for number in range(rounds):
        if place is None:
            place = make_place(folder / f"{seed}-{number}", sink, server)
        killed = run_round(place, number, chance)
        slots, whole, at_work = slots + killed[0], whole + killed[1], at_work + killed[2]
        in_flight += _has_in_flight(place)
        found = compare(place, is_over=False)
        if number % _WHOLE == _WHOLE - 1 or number == rounds - 1:
            finish(place)
            found = found or compare(place)
        if found is not None:
            problems += 1
            print(f"round {number + 1}, {place.folder}: {found}")
        if found is not None or number % _WHOLE == _WHOLE - 1:
            # Another store; one with a finding stays for whoever looks at it.
            place = None
        killed_now = f"{slots} slots and {whole} jobs killed, in {at_work} rounds at work after a checkpoint"
        killed_now += f", {in_flight} with rows in flight"
        print(f"{number + 1} rounds, {killed_now}, {problems} problems", flush=True)
    if at_work * 2 <= rounds:
        print("most jobs were killed before they had taken a checkpoint, or after their end, which says nothing")
        problems += 1
    return problems


def main() -> int:
    """Run rounds, or the job of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where stores and files are made; by default a temporary one")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sink", choices=SINKS, default="parquet")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--server", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        running = make_job(Place(arguments.folder, arguments.sink, arguments.server), arguments.child).start()
        print("started", flush=True)
        running.wait()
        return 0
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="arrowstate-kills-"))
    with server_of(arguments.sink) as server:
        problems = run_rounds(folder, arguments.rounds, arguments.seed, arguments.sink, server)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
