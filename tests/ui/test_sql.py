"""SQL of a reader: what it may, and that it reaches nothing but the states."""

import datetime
import io
import os
import re
import signal
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError
from arrowstate.ui import processes, sandbox
from arrowstate.ui.work import Stop

from .conftest import Visit


def run(visit, query, suffix=".json", **more):
    return visit.client.post(f"/0/run{suffix}", data={"q": query, **more})


def test_a_query_reads_states_and_says_what_it_read(visit, clicks):
    found = run(visit, """select "user", clicks from counter.clicks where "user" in ('user-37', 'nobody')""").json()

    assert found["rows"] == [["user-37", clicks.latest().lookup("counter.clicks", ["user-37"])["clicks"][0].as_py()]]
    assert found["types"] == ["string", "int64"]
    assert [(scan["state"], scan["keys"]) for scan in found["read"]] == [("counter.clicks", 2)]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("select count(*) from counter.pages at (version => 3)", [[60]]),
        ("select count(*) from counter.pages at (version => 'gold')", [[60]]),
        ("select count(*) from arrowstate.checkpoints", [[12]]),
        ("select tag from arrowstate.tags", [["gold"]]),
        ("select inserted from arrowstate.change_counts(11, 12) where state = 'pages'", [[120]]),
        ("select count(*) > 0 from arrowstate.history('counter.clicks', 'user-37')", [[True]]),
        ("with a as (select 1 as x) from a", [[1]]),
    ],
)
def test_all_that_sql_offers_works_in_it(visit, query, rows):
    assert run(visit, query).json()["rows"] == rows


def test_another_checkpoint_is_queried_when_it_is_named(visit):
    assert run(visit, "select count(*) from counter.pages", checkpoint="gold").json()["rows"] == [[60]]


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_text('{file}')",
        "select * from read_blob('{file}')",
        "select * from read_csv('{file}')",
        "select * from read_parquet('{file}')",
        "select * from '{file}'",
        "select * from glob('/*')",
        "select * from sniff_csv('{file}')",
        "select * from parquet_metadata('{file}')",
        "select * from read_text('http://127.0.0.1:1/')",
        "select * from read_csv('s3://bucket/key')",
        "copy (select 1) to '{file}.out'",
        "copy counter.clicks to '{file}.out' (format parquet)",
        "attach '{file}.db'",
        "attach ':memory:' as other",
        "install httpfs",
        "load httpfs",
        "load '{file}'",
        "export database '{file}.out'",
        "import database '{file}'",
        "set memory_limit = '100GB'",
        "set global enable_external_access = true",
        "reset memory_limit",
        "pragma enable_profiling",
        "create table t as select 1",
        "create secret s (type s3)",
        "drop view counter.clicks",
        "delete from counter.clicks",
        "insert into counter.clicks values (1)",
        "update counter.clicks set clicks = 1",
        "call pragma_version()",
        "select 1; select 2",
        "",
        "not a query",
        "select * from query('create table t as select 1')",
        "select * from visit",
        "select * from rows",
    ],
)
def test_it_reaches_no_file_no_network_and_changes_nothing(visit, tmp_path, query):
    file = tmp_path / "secret"
    file.write_text("a,b\n1,secret\n")
    rows = [[1]]  # A variable of Python, which is no table.

    answer = run(visit, query.format(file=file))

    assert (answer.status_code in (400, 404), rows) == (True, [[1]])
    assert "1,secret" not in answer.text
    assert [path.name for path in Path(tmp_path).iterdir()] == ["secret"]


def test_what_one_query_sets_is_gone_for_the_next(visit):
    first = run(visit, "select current_setting('enable_external_access'), current_setting('lock_configuration')").json()

    assert first["rows"] == [[False, True]]


def test_a_query_ends_with_its_time(clicks, limits):
    visit = Visit(clicks, limits=limits(sql_seconds=0.3))
    began = time.monotonic()

    answer = run(visit, "select count(*) from range(100000000000) a, range(1000) b")

    assert answer.status_code == 400
    assert "stopped after 0.3 s" in answer.text
    assert time.monotonic() - began < 10


def test_a_query_ends_with_its_memory(visit):
    answer = run(visit, "select list(range) from range(100000000)")

    assert answer.status_code == 400
    assert "Out of Memory" in answer.text


def test_many_rows_are_cut_and_no_more_are_made(clicks, limits):
    visit = Visit(clicks, limits=limits(sql_rows=10, sql_seconds=5))

    found = run(visit, "select * from range(100000000000)").json()

    assert (len(found["rows"]), found["is_cut"]) == (10, True)


def test_a_result_is_downloaded_as_csv_and_parquet(visit, clicks):
    query = 'select "user", clicks from counter.clicks order by "user"'
    text = run(visit, query, ".csv")
    file = run(visit, query, ".parquet")

    rows = [
        (row["user"], row["clicks"]) for row in clicks.latest().to_arrow("counter.clicks").sort_by("user").to_pylist()
    ]
    assert text.text == "user,clicks\n" + "".join(f"{user},{number}\n" for user, number in rows)
    assert text.headers["content-disposition"] == 'attachment; filename="result.csv"'
    assert [tuple(row.values()) for row in pq.read_table(io.BytesIO(file.content)).to_pylist()] == rows


def test_an_interval_is_shown_and_downloaded_as_a_duration(visit):
    query = "select interval '3 days 1 second' as took"

    table = pq.read_table(io.BytesIO(run(visit, query, ".parquet").content))

    assert run(visit, query, ".csv").text == 'took\n"3 days, 0:00:01"\n'
    assert table.to_pylist() == [{"took": datetime.timedelta(days=3, seconds=1)}]


def test_a_download_of_too_many_rows_says_what_to_do(clicks, limits):
    answer = run(Visit(clicks, limits=limits(download_rows=100)), "select * from range(101)", ".csv")

    assert answer.status_code == 400
    assert "arrowstate sql" in answer.text


def test_sql_is_run_by_post_alone_and_the_address_holds_the_query(visit):
    page = visit.get("/0/sql?q=select+42+as+answer").text
    fragment = visit.client.post("/0/run", data={"q": "select 42 as answer"}, headers={"hx-request": "true"}).text
    whole = visit.client.post("/0/run", data={"q": "select 42 as answer"}).text

    assert visit.get("/0/run?q=select+42").status_code == 404
    assert "select 42 as answer" in page
    assert 'data-address="/0/sql?q=select+42+as+answer"' in fragment
    assert "<html" in whole
    assert "<html" not in fragment


def test_a_query_that_is_too_long_is_refused(visit):
    assert run(visit, "select 1 " + " " * 200_000).status_code == 400
    assert run(visit, "select 1 " + " " * 2_000_000).status_code == 413


def test_names_are_offered_as_sql_takes_them(visit):
    names = visit.json("/0/sql.json")["names"]

    assert [name["name"] for name in names] == ["counter.clicks", "counter.pages", "counter.profile"]
    assert names[0]["columns"] == ['"user"', "clicks"]
    for name in names:
        assert run(visit, f"select {', '.join(name['columns'])} from {name['name']}").status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        "select range(20000000) from range(30)",
        "select list_resize([1], 100000000)",
        "select [x for x in range(50000000)]",
        "select printf('%1000000000d', 1)",
        "select replace(repeat('x', 1000000), 'x', repeat('y', 1000))",
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".parquet"])
def test_what_duckdb_does_not_count_is_bounded_too(visit, query, suffix):
    answer = run(visit, query, suffix)

    assert answer.status_code == 400
    assert re.search("Out of Memory|more than the 512 MB of memory", answer.text)
    assert run(visit, "select 42 as a").json()["rows"] == [[42]]


def test_a_query_whose_process_dies_is_told_and_the_next_one_runs(visit, tmp_path):
    with (tmp_path / "result").open("wb") as file, pytest.raises(InvalidInputError, match="more than the 512 MB"):
        processes.call(os._exit, (), seconds=5, stop=Stop(), file=file.fileno())

    assert run(visit, "select 42 as a").json()["rows"] == [[42]]


def test_the_process_of_queries_is_made_again_when_it_was_killed(visit):
    first = processes.ready().popen
    first.kill()
    first.wait()

    assert run(visit, "select 42 as a").json()["rows"] == [[42]]
    assert processes.ready().popen is not first


def test_a_query_is_asked_anew_when_what_forks_its_process_dies_first_and_nothing_else_is_killed(visit, monkeypatch):
    forks = processes.ready().popen
    sent, killed_groups = threading.Event(), []
    kill, send_fds = os.kill, processes.socket.send_fds

    def kill_one(pid, number):
        # 0 would be all processes of this group, the tests among them.
        if pid == 0:
            killed_groups.append(pid)
        else:
            kill(pid, number)

    def send(*arguments):
        count = send_fds(*arguments)
        sent.set()
        return count

    monkeypatch.setattr(processes.os, "kill", kill_one)
    monkeypatch.setattr(processes.socket, "send_fds", send)
    answers = []
    forks.send_signal(signal.SIGSTOP)
    asker = threading.Thread(target=lambda: answers.append(run(visit, "select 42 as a").json()), daemon=True)
    asker.start()
    assert sent.wait(20)
    forks.kill()
    asker.join(60)

    assert killed_groups == []
    assert answers[0]["rows"] == [[42]]
    assert processes.ready().popen is not forks


def test_a_query_that_cannot_be_begun_says_so(visit, monkeypatch):
    dead = processes.ready()
    dead.end()
    monkeypatch.setattr(processes, "ready", lambda: dead)

    answer = run(visit, "select 42 as a")

    assert (answer.status_code, "the query was not begun" in answer.text) == (400, True)


def test_a_fork_that_fails_is_told_and_the_process_that_forks_goes_on(visit, tmp_path, monkeypatch):
    fails_once = """
import os
fork = os.fork
def failing():
    os.fork = fork
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = failing
"""
    (tmp_path / "sitecustomize.py").write_text(fails_once)
    monkeypatch.syspath_prepend(tmp_path)
    processes.ready().end()
    forks = processes.ready().popen

    answer = run(visit, "select 42 as a")

    assert answer.status_code == 400
    assert "no process could be made for it: Resource temporarily unavailable" in answer.text
    assert run(visit, "select 42 as a").json()["rows"] == [[42]]
    assert processes.ready().popen is forks


def test_each_query_has_a_database_of_its_own(monkeypatch):
    store = arrowstate.open_store("memory://ui-databases", create=True)
    with store.writer() as writer:
        writer.checkpoint({})
    visit = Visit(store)
    made = []

    class Counted(sandbox.Database):
        def __init__(self, sources):
            made.append(self)
            super().__init__(sources)

    monkeypatch.setattr(sandbox, "Database", Counted)
    run(visit, "select 1")
    run(visit, "select 1")

    assert len(made) == 2
