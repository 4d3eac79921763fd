"""What tests of several layers share: one Spark session, a database, and how a run in several processes is divided."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

import arrowstate
from long_form import ALL_TURNS, LONG, TURN, every_nth
from postgres import end_replication, postgres_programs, postgres_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["early_versions", "processor_time"]

# A machine shared with others is slow at times; no test may fail for that.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# What a process starts once and uses for long: tests of one of these are all done by the same one.
SHARED = {"spark": "Spark", "nexmark": "Spark", "tests/storage/": "servers of objects"}
# What takes longest comes first, so that the processes end together: about as many seconds.
LONGEST = {
    "Spark": 460,
    "servers of objects": 340,
    "tests/testing/test_simulation.py": 75,
    "tests/conformance/test_keyed_state.py": 70,
    "tests/tools/test_benchmarks.py": 45,
    "tests/checkpoints/test_every_call.py": 40,
    "tests/checkpoints/test_zombies.py": 35,
    "tests/state/test_reducers.py": 30,
    "tests/runtime/test_running.py": 30,
}

# Of these the short form takes every n-th test, each run others: there are many alike, or they are dear.
BY_TURNS = {
    "tests/bootstrap/": 2,
    "tests/checkpoints/": 5,
    "tests/cli/": 3,
    "tests/conformance/": 10,
    "tests/docs/test_pages": 4,
    "tests/docs/test_spark_pages": 4,
    "tests/editing/": 4,
    "tests/files/": 2,
    "tests/foreign/": 3,
    "tests/formats/": 3,
    "tests/publish/": 3,
    "tests/query/": 4,
    "tests/runtime/": 8,
    "tests/spark/": 5,
    "tests/storage/": 8,
    "tests/table/": 2,
    "tests/testing/": 5,
    "tests/tools/test_benchmarks": 3,
    "tests/tools/test_nexmark": 3,
    "tests/tools/test_spark_benchmark": 3,
    "tests/ui/": 3,
    "tests/upkeep/": 4,
}

# Thousands of files of the tests are made durable one by one, which only takes time: most tests are about what is done,
# not whether a disk did it. Kept in memory, where there is room for them.
MEMORY, ROOM_BYTES = "/dev/shm", 6 << 30


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "turns(n): of the cases of this test the short form takes every n-th, by turns")
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def unit_of(nodeid: str) -> str:
    """Return what a test is part of that one process does as a whole: mostly its file."""
    path = nodeid.partition("::")[0]
    return next((unit for word, unit in SHARED.items() if word in path), path)


def leave_out(config: pytest.Config, items: list[pytest.Item], left_out: list[pytest.Item]) -> None:
    """Take items out of those that run; pytest counts them as deselected."""
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def form_of_run() -> str:
    """Say how much of the suite a run takes, and how the same is run again."""
    if LONG:
        return "long form: every case"
    if ALL_TURNS:
        return "short form, every turn: ARROWSTATE_TEST_TURN=all"
    return f"short form, turn {TURN}: ARROWSTATE_TEST_TURN={TURN} tools/test runs the same cases again"


def pytest_report_header() -> str:
    return form_of_run()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(form_of_run())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Hand out the units, the longest first; `--dist loadfile` alone would begin with those of the most tests."""
    from xdist.scheduler import LoadFileScheduling

    class Units(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return Units(config, log)


@cache
def resolved(path: Path) -> Path:
    """Return the file that a path names; of thousands of tests each is compared with the same few."""
    return path.resolve()


def is_named(config: pytest.Config, item: pytest.Item) -> bool:
    """Say whether somebody asked for a test by the name of its file, by its own or by a keyword."""
    if config.option.keyword:
        return True
    invoked = config.invocation_params.dir
    for argument in config.args:
        path, _, name = argument.partition("::")
        own_name = item.nodeid.partition("::")[2]
        place = resolved(invoked / path)
        if place == item.path and (own_name == name or own_name.startswith((f"{name}[", f"{name}::"))):
            return True
        if not name and path.endswith(".py") and place == item.path:
            return True
    return False


def is_of_this_turn(item: pytest.Item) -> bool:
    """Say whether a test runs in this turn: one with a mark, or in a file of those that take turns, may not."""
    mark = item.get_closest_marker("turns")
    if mark is not None:
        return every_nth(*mark.args, item.nodeid)
    begin = max((begin for begin in BY_TURNS if item.nodeid.startswith(begin)), key=len, default=None)
    return begin is None or every_nth(BY_TURNS[begin], item.nodeid)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [
        item
        for item in items
        if not (LONG or is_named(config, item))
        and (item.get_closest_marker("long") is not None or not is_of_this_turn(item))
    ]
    leave_out(config, items, left_out)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -LONGEST.get(unit_of(item.nodeid), 0))


def pytest_collection_finish() -> None:
    # Thousands of tests stay to the end: what looks for garbage need not look at all of them each time.
    gc.freeze()


def pytest_unconfigure() -> None:
    # Libraries tell of what is left at the end.
    gc.unfreeze()


@pytest.fixture
def store(tmp_path: Path) -> arrowstate.StateStore:
    """A new store on a disk."""
    return arrowstate.open_store(tmp_path / "store", create=True)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    if postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed: no initdb on the PATH, nothing in /usr/lib/postgresql")
    with postgres_server() as conninfo:
        yield conninfo


@pytest.fixture
def connection(database: str) -> Iterator[Any]:
    """A connection to an empty database."""
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
        end_replication(connection)
        yield connection


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores; local[2,3] because local[2] gives a task one attempt only."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("arrowstate-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
