"""Where queries come from, where their results go, and that Ctrl-C ends them."""

import datetime
import io
import json
import os
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.cli import results
from arrowstate.cli.formats import FORMATS
from arrowstate.cli.running_queries import interruptible
from stores import commit, run

NO_TEXT = b"select '\xff'"
FOREVER = "select count(*) from range(1000000000) a cross join range(1000000) b where a.range + b.range = 7"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with three rows, of types that formats write in different ways."""
    folder = tmp_path_factory.mktemp("results") / "store"
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    visit = pa.struct([("page", pa.string()), ("took", pa.float16())])
    backend.state(arrowstate.ValueStateDescriptor("visit", visit)).update_batch(
        ["ann", "bob", "c|d"],
        [{"page": "a,b", "took": 1.5}, {"page": 'say "no"', "took": None}, {"page": "two\nlines", "took": -0.25}],
    )
    source = arrowstate.OperatorStateBackend()
    source.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add_all([17, 4])
    commit(arrowstate.open_store(folder, create=True), {"op": [backend]}, operator_states={"source": [source]})
    return str(folder)


def run_json(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def process(*arguments, **options):
    command = [sys.executable, "-m", "arrowstate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=60, **options)


def test_queries_are_read_from_a_file_and_from_a_pipe(store, tmp_path, capsys):
    script = tmp_path / "fix.sql"
    script.write_text("-- two of them;\nselect 'a;b' as text;\nselect count(*) as n from op.visit -- and no more\n")

    of_file = run(capsys, "sql", store, "--file", script, "--csv")
    of_pipe = process("sql", store, "--csv", input=script.read_bytes())

    assert of_file == (0, "text\na;b\nn\n3\n", "")
    assert (of_pipe.returncode, of_pipe.stdout, of_pipe.stderr) == (0, of_file[1].encode(), b"")


@pytest.mark.parametrize("command", ["sql {}", "sql {} -f -", "edit {} -", "flink sql {}"])
@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        (None, "stdin is closed; name a file in its place"),
        ({"encoding": "utf-8"}, "it takes UTF-8 text"),
        ({"encoding": "utf-8", "errors": "surrogateescape"}, "it takes UTF-8 text"),
    ],
    ids=["closed", "no text", "no text in a locale without UTF-8"],
)
def test_a_pipe_that_cannot_be_read_is_an_error_that_says_so(store, capsys, monkeypatch, command, stdin, message):
    monkeypatch.setattr("sys.stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(NO_TEXT), **stdin))

    code, out, err = run(capsys, *command.format(store).split())

    assert (code, out) == (1, "")
    assert err.startswith("arrowstate: the pipe cannot be read: ")
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--file", "/nowhere.sql"], "/nowhere.sql cannot be read"),
        (["select 1", "--file", "x.sql"], "a query and --file exclude each other"),
        (["--file", "/dev/null"], "there is no query in /dev/null"),
        (["select 1", "--json", "--format", "csv"], "--json and --format csv exclude each other; choose one"),
        (["select 1", "-o", "result.foo"], "'result.foo' does not say its format"),
        (["select 1", "-o", ".", "--csv"], "--output takes a file, and '.' is none"),
        (["select 1", "-o", "", "--csv"], "--output takes a file, and '' is none"),
        (["select 1", "-o", "/nowhere/result.csv"], "/nowhere/result.csv cannot be written: No such file"),
    ],
)
def test_what_does_not_fit_together_is_said(store, capsys, arguments, message):
    code, out, err = run(capsys, "sql", store, *arguments)

    assert (code, out) == (1, "")
    assert message in err


@pytest.fixture(scope="module")
def spans(tmp_path_factory):
    """A store whose key is a duration, with durations of other units in its values."""
    folder = tmp_path_factory.mktemp("spans") / "store"
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("took", pa.duration("us"))]), max_parallelism=8)
    keys = pa.array([270_183_003_000, 0, -1], pa.duration("us"))
    parts = pa.struct([("s", pa.duration("s")), ("all", pa.list_(pa.duration("ms"))), ("ns", pa.duration("ns"))])
    values = [
        {"s": -90, "all": [1, None], "ns": 1},
        {"s": 86_400, "all": [], "ns": None},
        {"s": None, "all": None, "ns": -1},
    ]
    backend.state(arrowstate.ValueStateDescriptor("v", parts)).update_batch(keys, pa.array(values, parts))
    commit(arrowstate.open_store(folder, create=True), {"op": [backend]})
    return str(folder)


def test_durations_are_printed_by_sql_as_by_lookup_which_takes_them(spans, capsys):
    listed = run_json(capsys, "sql", spans, "select * exclude (_key_group) from op.v order by took")
    csv = run(capsys, "sql", spans, "select took from op.v order by took", "--csv")[1]
    found = [run_json(capsys, "lookup", spans, "op.v", row["took"]) for row in listed]

    assert found == [[row] for row in listed]
    assert [row["took"] for row in listed] == ["-1 day, 23:59:59.999999", "0:00:00", "3 days, 3:03:03.003000"]
    assert listed[2]["s"] == "-1 day, 23:58:30"
    assert listed[2]["all"] == ["0:00:00.001000", None]
    assert csv == 'took\n"-1 day, 23:59:59.999999"\n0:00:00\n"3 days, 3:03:03.003000"\n'
    assert "3 days, 3:03:03.003000" in run(capsys, "sql", spans, "select took from op.v")[1]


@pytest.mark.parametrize(
    "text",
    [
        "1 month",
        "-14 months",
        "1 year 2 days 3 seconds",
        "1 month -3 days -1.5 seconds",
        "25 months 100 hours 7 microseconds",
        "1 month -1 day",
    ],
)
def test_an_interval_with_months_is_printed_as_duckdb_writes_it(spans, capsys, text):
    (row,) = run_json(capsys, "sql", spans, f"select x, [x] as l, x::varchar as t from (select interval '{text}' as x)")

    assert row["x"] == row["t"]
    assert row["l"] == [row["t"]]


def test_intervals_are_durations_in_parquet_where_they_have_no_months(spans, tmp_path, capsys):
    query = "select v.*, interval '1 day 1 second' as more from op.v order by took"

    assert run(capsys, "sql", spans, query, "-o", tmp_path / "x.parquet")[0] == 0
    refused = run(capsys, "sql", spans, "select interval '1 month' as x", "-o", tmp_path / "y.parquet")

    found = pq.read_table(tmp_path / "x.parquet")
    assert found["took"].cast(pa.int64()).to_pylist() == [-1, 0, 270_183_003_000]
    assert found["s"].cast(pa.int64()).to_pylist() == [None, 86_400_000_000, -90_000_000]
    assert found["all"].to_pylist()[2] == [datetime.timedelta(milliseconds=1), None]
    assert found["more"].to_pylist() == [datetime.timedelta(days=1, seconds=1)] * 3
    assert refused[0] == 1
    assert "must have no months" in refused[2]
    assert "got '1 month'; make it text in the query" in refused[2]
    assert not (tmp_path / "y.parquet").exists()


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_an_export_with_a_condition_has_durations_in_their_types(spans, tmp_path, capsys, format):
    path = tmp_path / f"v.{format}"
    table = arrowstate.open_store(spans).latest().to_arrow("op.v").sort_by("took")

    code, _, err = run(capsys, "export", spans, "op.v", "--where", "took is not null", "-o", path)

    assert (code, err) == (0, "")
    found = (pq.read_table(path) if format == "parquet" else pa.ipc.open_file(path).read_all()).sort_by("took")
    assert found.schema.types == table.schema.types
    assert found.to_pylist() == table.to_pylist()


def test_a_file_has_room_for_one_result(store, tmp_path, capsys):
    (tmp_path / "two.sql").write_text("select 1; select 2")

    code, _, err = run(capsys, "sql", store, "-f", tmp_path / "two.sql", "-o", tmp_path / "result.csv")

    assert (code, "the result of one query, got 2" in err) == (1, True)
    assert not (tmp_path / "result.csv").exists()


@pytest.mark.parametrize("format", ["json", "jsonl"])
def test_columns_of_the_same_name_are_told_apart_in_json(store, capsys, format):
    query = "select 1 as a, 2 as a, 3 as a_1, 4 as A, null as a"

    code, out, _ = run(capsys, "sql", store, query, "--format", format)

    found = json.loads(out)[0] if format == "json" else json.loads(out)
    assert (code, found) == (0, {"a": 1, "a_2": 2, "a_1": 3, "A": 4, "a_3": None})


@pytest.mark.parametrize("format", ["json", "csv", "markdown", "table"])
def test_a_value_of_a_union_is_printed_as_what_it_is(store, capsys, format):
    query = "select union_value(number := 2) as u, [union_value(text := 'x')] as l"

    code, out, _ = run(capsys, "sql", store, query, "--format", format)

    assert code == 0
    assert {"json": '{"u": 2, "l": ["x"]}', "csv": '2,"[""x""]"', "table": "│ 2 │"}.get(format, '| 2 | ["x"] |') in out


PRINTED = {
    "csv": 'user,visit\nann,"{""page"": ""a,b"", ""took"": 1.5}"\nc|d,"{""page"": ""two\\nlines"", ""took"": -0.25}"\n',
    "json": '[\n{"user": "ann", "visit": {"page": "a,b", "took": 1.5}},\n'
    '{"user": "c|d", "visit": {"page": "two\\nlines", "took": -0.25}}\n]\n',
    "jsonl": '{"user": "ann", "visit": {"page": "a,b", "took": 1.5}}\n'
    '{"user": "c|d", "visit": {"page": "two\\nlines", "took": -0.25}}\n',
    "markdown": '| user | visit |\n| --- | --- |\n| ann | {"page": "a,b", "took": 1.5} |\n'
    '| c\\|d | {"page": "two\\nlines", "took": -0.25} |\n',
}
QUERY = "select user, {page: page, took: took} as visit from op.visit where user <> 'bob' order by user"


@pytest.mark.parametrize("format", PRINTED)
def test_a_result_is_printed_and_written_in_each_format_of_text(store, tmp_path, capsys, format):
    extension = {"markdown": "md"}.get(format, format)

    printed = run(capsys, "sql", store, QUERY, "--format", format)
    written = run(capsys, "sql", store, QUERY, "-o", tmp_path / f"result.{extension}")

    assert printed == (0, PRINTED[format], "")
    assert written == (0, "", "")
    assert (tmp_path / f"result.{extension}").read_text() == PRINTED[format]


def test_a_table_is_written_to_a_file_too(store, tmp_path, capsys):
    printed = run(capsys, "sql", store, QUERY)[1]

    assert run(capsys, "sql", store, QUERY, "--format", "table", "-o", tmp_path / "result.txt") == (0, "", "")
    assert (tmp_path / "result.txt").read_text() == printed


def test_parquet_and_arrow_go_to_a_file_or_a_pipe(store, tmp_path, capsys):
    assert run(capsys, "sql", store, QUERY, "-o", tmp_path / "result.parquet")[0] == 0
    piped = process("sql", store, QUERY, "--format", "arrow")

    found = pq.read_table(tmp_path / "result.parquet")
    assert found["user"].to_pylist() == ["ann", "c|d"]
    assert pa.ipc.open_file(piped.stdout).read_all().cast(found.schema) == found


def test_a_query_that_fails_leaves_the_file_as_it_was(store, tmp_path, capsys):
    (tmp_path / "result.csv").write_text("of before")

    code, _, err = run(
        capsys, "sql", store, "select case when i = 50000 then error('no') end from range(100000) r(i)", "-o",
        tmp_path / "result.csv",
    )  # fmt: skip

    assert (code, "no" in err) == (1, True)
    assert (tmp_path / "result.csv").read_text() == "of before"
    assert os.listdir(tmp_path) == ["result.csv"]


COMMANDS = [("sql", QUERY), ("export", "op.visit", "--columns", "user")]


@pytest.mark.parametrize("command", COMMANDS, ids=["sql", "export"])
@pytest.mark.parametrize("target", ["of before", None])
def test_a_link_stays_and_what_it_points_to_is_replaced(store, tmp_path, capsys, command, target):
    (tmp_path / "files").mkdir()
    file, link = tmp_path / "files" / "real.csv", tmp_path / "link.csv"
    link.symlink_to(os.path.join("files", "real.csv"))
    if target is not None:
        file.write_text(target)

    code, _, err = run(capsys, command[0], store, *command[1:], "-o", link)

    assert (code, err) == (0, "")
    assert link.is_symlink()
    assert file.read_text().startswith("user")
    assert [sorted(os.listdir(folder)) for folder in (tmp_path, file.parent)] == [["files", "link.csv"], ["real.csv"]]


@pytest.mark.parametrize("command", COMMANDS, ids=["sql", "export"])
@pytest.mark.parametrize("format", ["csv", "parquet", "arrow"])
def test_a_named_pipe_gets_the_rows_and_stays(store, tmp_path, capsys, command, format):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        code, out, err = run(capsys, command[0], store, *command[1:], "-o", pipe, "--format", format)
        is_pipe = pipe.is_fifo()
        if not is_pipe:
            reader.kill()
        got = reader.communicate()[0]

    assert (code, err, is_pipe) == (0, "", True)
    assert "bytes" not in out
    if format == "csv":
        assert got.startswith(b"user")
    else:
        found = pq.read_table(pa.BufferReader(got)) if format == "parquet" else pa.ipc.open_file(got).read_all()
        assert {"ann", "c|d"} <= set(found["user"].to_pylist())


def test_a_device_gets_the_rows_and_what_the_output_is_added_to_keeps_what_it_had(store, tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"of before\n")
    with log.open("ab") as file:
        added = subprocess.run(
            [sys.executable, "-m", "arrowstate", "sql", store, "select 1 as a", "-o", "/dev/stdout", "--csv"],
            stdout=file, check=False,
        )  # fmt: skip
    piped = process("sql", store, "select 1 as a", "-o", "/dev/stdout", "--csv")
    full = process("sql", store, "select 1 as a", "-o", "/dev/full", "--csv")

    assert (added.returncode, log.read_bytes()) == (0, b"of before\na\n1\n")
    assert (piped.returncode, piped.stdout) == (0, b"a\n1\n")
    assert (full.returncode, full.stderr) == (1, b"arrowstate: /dev/full cannot be written: No space left on device\n")


TELLING = """
import sys
from arrowstate.cli import main
from arrowstate.query.duckdb import {module}

call = {module}.{name}

def told(*arguments):
    print("running", flush=True)
    return call(*arguments)

{module}.{name} = told
sys.exit(main())
"""
"""The command, which says when it is somewhere."""


@pytest.mark.parametrize("place", [("selecting", "Watch"), ("selecting", "Relation")], ids=["before it", "in it"])
def test_ctrl_c_ends_a_query_and_the_command(store, place):
    command = [sys.executable, "-c", TELLING.format(module=place[0], name=place[1]), "sql", store, FOREVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"running\n"

        running.send_signal(signal.SIGINT)
        try:
            _, err = running.communicate(timeout=20)
        finally:
            running.kill()

    assert (running.returncode, err) == (130, b"")


def test_what_a_query_raises_is_raised_where_it_is_waited_for():
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)

    assert interruptible(lambda: 7) == 7


ROWS, BATCHES = 1000, 24


@pytest.mark.parametrize("format", FORMATS)
def test_no_more_of_a_result_is_in_memory_than_is_written_at_a_time(monkeypatch, format):
    monkeypatch.setattr(results, "_GROUP_ROWS", 4 * ROWS)
    used = []

    def batches():
        before = pa.total_allocated_bytes()
        for number in range(BATCHES):
            yield pa.record_batch({"n": pa.array(range(number * ROWS, (number + 1) * ROWS))})
            used.append(pa.total_allocated_bytes() - before)

    file = io.BytesIO()
    rows = results.write_binary(pa.RecordBatchReader.from_batches(SCHEMA, batches()), format, file)

    assert rows == ROWS * BATCHES
    assert max(used[BATCHES // 2 :]) <= 1.2 * max(used[: BATCHES // 2])
    assert read(format, file.getvalue()) == list(range(ROWS * BATCHES))


SCHEMA = pa.schema([("n", pa.int64())])


def read(format, data):
    if format == "parquet":
        return pq.read_table(io.BytesIO(data))["n"].to_pylist()
    if format == "arrow":
        return pa.ipc.open_file(data).read_all()["n"].to_pylist()
    lines = data.decode().splitlines()
    if format == "json":
        return [item["n"] for item in json.loads(data)]
    if format == "jsonl":
        return [json.loads(line)["n"] for line in lines]
    return [int(line.strip("| ")) for line in lines[1 if format == "csv" else 2 :]]
