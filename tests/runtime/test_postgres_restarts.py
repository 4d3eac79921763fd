"""A server of PostgreSQL that stops and starts again under a job that reads from it and writes to it."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import arrowstate
from arrowstate.runtime import Job, PostgresCDCSource, PostgresSink, Restart
from postgres import PostgresServer, postgres_programs, running_server
from stores import until


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    if postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed: no initdb on the PATH, nothing in /usr/lib/postgresql")
    with running_server() as server:
        yield server


def asked(server: PostgresServer, statement: str) -> list[Any]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        cursor = connection.execute(statement)  # type: ignore[call-overload]
        return list(cursor.fetchall()) if cursor.description else []


def make_job(server: PostgresServer, store: Path, restart: Restart) -> Job:
    job = Job(store, parallelism=2, options=arrowstate.CheckpointOptions(interval_ms=50), restart=restart)
    source = PostgresCDCSource(server.conninfo, "source", slot="followed", reconnect_ms=0)
    rows = job.source(source, uid="rows").map_batches(lambda batch: batch.select(["id"]))
    rows.rebalance().sink(PostgresSink(server.conninfo, "copy"), uid="copy")
    return job


def insert(server: PostgresServer, first: int, last: int) -> None:
    asked(server, f"insert into source select generate_series({first}, {last})")


def copied(server: PostgresServer) -> Counter[int]:
    return Counter(id for (id,) in asked(server, "select id from copy"))


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_a_job_goes_on_by_its_restart_strategy_when_the_server_was_away(
    server: PostgresServer, tmp_path: Path, sign: signal.Signals
) -> None:
    asked(server, "create table source (id int primary key)")
    asked(server, "alter table source replica identity full")
    asked(server, "create table copy (id int)")
    insert(server, 1, 500)

    with make_job(server, tmp_path / "store", Restart.fixed(delay_ms=50)).start(mode="threads") as running:
        until(lambda: copied(server).total() >= 500)
        for first in (501, 1001):
            insert(server, first, first + 499)
            server.stop(sign)
            failures = len(running.status().restarts)
            until(lambda failures=failures: len(running.status().restarts) > failures)
            server.start()
            until(lambda first=first: copied(server).total() >= first + 499)
        reasons = [restart.reason for restart in running.status().restarts]
        running.stop()

    assert copied(server) == Counter(range(1, 1501))
    assert reasons


def test_a_job_that_does_not_start_again_ends_with_the_server_and_goes_on_when_it_is_started(
    server: PostgresServer, tmp_path: Path
) -> None:
    asked(server, "create table source (id int primary key)")
    asked(server, "alter table source replica identity full")
    asked(server, "create table copy (id int)")
    insert(server, 1, 500)
    running = make_job(server, tmp_path / "store", Restart.none()).start(mode="threads")
    until(lambda: copied(server).total() >= 500)

    server.stop(signal.SIGQUIT)
    with pytest.raises(arrowstate.ArrowStateError):
        running.wait(60_000)
    server.start()
    insert(server, 501, 600)
    with make_job(server, tmp_path / "store", Restart.none()).start(mode="threads") as again:
        until(lambda: copied(server).total() >= 600)
        again.stop()

    assert copied(server) == Counter(range(1, 601))
