"""Rounds of SIGKILL of a job that follows a table of PostgreSQL while it changes; what came out must be the table.

    tools/python tests/runtime/postgres_kill_rounds.py --rounds 50 [--seed N]

A round starts the job anew on the same store, at 1 to 3 slots, and kills slots, the whole job, or connections of the
server while transactions change the table. The job keeps sums, adds every change to one table, and upserts a mirror.
After each round no change may be there twice; every eighth lets the job come to the end, where sums, changes and mirror
must be those of the table. It exits with 1 after a finding.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

import arrowstate
from arrowstate.runtime import Job, PostgresCDCSource, PostgresSink, Restart

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from postgres import end_replication, postgres_server
from runtime_kill_rounds import workers_of

KEYS, GROUPS, WHOLE = 3_000, 7, 8
START_SECONDS, END_SECONDS = 30, 120
COMMITS = "select count(*) from changes"
TWICE = "select count(*) from (select 1 from changes group by id, v having sum(sign) not in (0, 1)) t"
DIFFERENT = """
select (select count(*) from (table mirror except table source) a) + (select count(*) from (table source except table
    mirror) b), (select count(*) from ((select id, grp, v from changes group by 1, 2, 3 having sum(sign) = 1) except
    table source) c), (select count(*) from (table source except (select id, grp, v from changes group by 1, 2, 3
    having sum(sign) = 1)) d)
"""


class Sums(arrowstate.BatchFunction):
    """The sum of the rows that are there, by group."""

    def open(self, context):
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch, context):
        self.total.add_batch(batch["grp"], pc.multiply(batch["v"], signs(batch)))


def signs(batch: pa.RecordBatch) -> pa.Array:
    """Return 1 for rows that are there, -1 for those that are there no more."""
    return pc.if_else(pc.is_in(batch["_change_type"], pa.array(["update_preimage", "delete"])), -1, 1).cast(pa.int64())


def signed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return what the table of changes has."""
    time.sleep(0.001)  # So that a kill finds it at work.
    return pa.record_batch([*batch.columns[:3], signs(batch)], names=["id", "grp", "v", "sign"])


def make_job(conninfo: str, store: Path, parallelism: int) -> Job:
    """Return the job."""
    options = arrowstate.CheckpointOptions(interval_ms=50, tolerated_failures=10)
    restart = Restart.fixed(delay_ms=20)
    job = Job(store, parallelism=parallelism, max_parallelism=128, options=options, restart=restart)
    rows = job.source(PostgresCDCSource(conninfo, "source", slot="followed"), uid="rows")
    rows.stateful(Sums(), key=["grp"], uid="sums")
    rows.map_batches(signed).sink(PostgresSink(conninfo, "changes"), uid="changes")
    mirrored = rows.map_batches(lambda batch: batch.select(["id", "grp", "v", "_change_type"]))
    mirrored.sink(PostgresSink(conninfo, "mirror", key=["id"], operation="_change_type"), uid="mirror")
    return job


def make_tables(connection: Any) -> None:
    """Make the tables anew."""
    end_replication(connection)
    connection.execute("drop schema public cascade; create schema public")
    for table in ("source", "mirror"):
        connection.execute(f"create table {table} (id int primary key, grp int, v bigint)")
    connection.execute("create table changes (id int, grp int, v bigint, sign bigint)")
    connection.execute("alter table source replica identity full; create sequence versions")
    connection.execute(
        f"insert into source select i, i % {GROUPS}, nextval('versions') from generate_series(1, {KEYS}) i"
    )


def change(connection: Any, chance: random.Random) -> None:
    """Commit a transaction, of a row or of many."""
    first = chance.randrange(KEYS)
    last = first + chance.choice([1, 5, 400])
    insert = (
        f"insert into source select i, i %% {GROUPS}, nextval('versions') from generate_series(%s::int, %s::int) i "
    )
    statement = chance.choice(
        [
            "update source set v = nextval('versions') where id between %s and %s",
            "delete from source where id between %s and %s",
            insert + "on conflict (id) do update set v = nextval('versions')",
            f"update source set id = id + {KEYS * 10} where id between %s and %s",
        ]
    )
    # Where a row was moved to there may be one; then all of the transaction is taken back.
    with suppress(psycopg.errors.UniqueViolation):
        connection.execute(statement, (first, last))


def run_round(conninfo: str, connection: Any, store: Path, chance: random.Random) -> tuple[str, bool]:
    """Run the job with kills and changes; return what was killed, and whether it was at work.

    A job that was at work has committed changes in this round, and something of it was killed after that.
    """
    command = [sys.executable, __file__, "--child", str(chance.choice([1, 2, 3])), "--conninfo", conninfo]
    child = subprocess.Popen([*command, "--store", str(store)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    (before,) = connection.execute(COMMITS).fetchone() or (None,)
    begins = time.monotonic()
    if chance.random() < 0.8:
        # On a machine with other work a start takes long; some are killed while they start.
        while connection.execute(COMMITS).fetchone() == (before,) and time.monotonic() < begins + START_SECONDS:
            change(connection, chance)
            time.sleep(0.05)
    ends = time.monotonic() + chance.uniform(0.3, 2)
    kind = chance.choice(["slot", "connections", "job"])
    killed = 0
    while time.monotonic() < ends:
        change(connection, chance)
        time.sleep(chance.uniform(0, 0.05))
        if kind == "slot" and chance.random() < 0.05 and (workers := workers_of(child.pid)):
            os.kill(chance.choice(workers), signal.SIGKILL)
            killed += 1
        if kind == "connections" and chance.random() < 0.1:
            others = "from pg_stat_activity where pid <> pg_backend_pid() and datname is not null"
            killed += len(connection.execute(f"select pg_terminate_backend(pid) {others}").fetchall())
    killed += kind == "job" and child.poll() is None
    (after,) = connection.execute(COMMITS).fetchone() or (None,)
    child.kill()
    child.wait()
    return kind, killed > 0 and after != before


def finish(conninfo: str, connection: Any, store: Path) -> str | None:
    """Let the job come to the end of the changes; return what is wrong, None for nothing."""
    expected = dict(connection.execute("select grp, sum(v)::bigint from source group by 1").fetchall())
    found: Any = None
    ends = time.monotonic() + END_SECONDS
    with make_job(conninfo, store, 2).start(mode="threads") as running:
        while time.monotonic() < ends and (found is None or found != expected):
            query = "select grp, total from sums.total where total <> 0"
            found = dict(running.checkpoint().sql(query).fetchall())
        running.stop()
    if found != expected:
        return f"sums are {found}, of the table {expected}"
    different = connection.execute(DIFFERENT).fetchone()
    return None if different == (0, 0, 0) else f"rows differ in the mirror and in the changes: {different}"


def run_rounds(conninfo: str, rounds: int, seed: int) -> int:
    """Run rounds, print what happened, and return how many findings there were."""
    chance = random.Random(seed)
    problems = at_work = 0
    store: Path | None = None
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for number in range(rounds):
            if store is None:
                store = Path(tempfile.mkdtemp(prefix="arrowstate-follows-")) / "store"
                make_tables(connection)
            kind, was_at_work = run_round(conninfo, connection, store, chance)
            at_work += was_at_work
            (twice,) = connection.execute(TWICE).fetchone() or (None,)
            found = None if twice == 0 else f"{twice} changes are there twice"
            if number % WHOLE == WHOLE - 1 or number == rounds - 1:
                found = found or finish(conninfo, connection, store)
                store = None
            problems += found is not None
            (count,) = connection.execute("select count(*) from changes").fetchone() or (0,)
            told = f"{kind} killed, {count} changes, {at_work} rounds at work, {problems} problems {found or ''}"
            print(f"round {number + 1}: {told}", flush=True)
            if found is not None:
                store = None
    if at_work * 2 < rounds:
        print("most jobs were killed before they had committed a change, which says nothing")
        problems += 1
    return problems


def main() -> int:
    """Run rounds, or the job of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--conninfo", help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        running = make_job(arguments.conninfo, arguments.store, arguments.child).start()
        print("started", flush=True)
        running.wait()
        return 0
    with postgres_server() as conninfo:
        return 1 if run_rounds(conninfo, arguments.rounds, arguments.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
