"""A state as a file."""

import csv
import json
import os
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from stores import backend_of, commit, run


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store whose states have types that SQL has not, and operator state; the second checkpoint changes one row."""
    folder = tmp_path_factory.mktemp("export") / "store"
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    visit = pa.struct([("share", pa.float16()), ("took", pa.duration("ns")), ("tags", pa.list_(pa.string()))])
    visits = backend.state(arrowstate.ValueStateDescriptor("visit", visit))
    visits.update_batch(
        ["ann", "bob"], [{"share": 0.5, "took": 7, "tags": ["a"]}, {"share": None, "took": -1, "tags": None}]
    )
    source = arrowstate.OperatorStateBackend()
    source.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add_all([17, 4])
    with arrowstate.open_store(folder, create=True).writer() as writer:
        for _ in range(2):
            writer.checkpoint({"op-1": [backend]}, operator_states={"source": [source]})
            visits.update_batch(["ann"], [{"share": 0.25, "took": 9, "tags": []}])
    return str(folder)


def exported(capsys, store, path, *options):
    code, out, err = run(capsys, "export", store, "op-1.visit", "-o", path, *options, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("where", [None, "\"user\" < 'z' -- all of them"])
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_file_has_the_rows_of_a_state_in_its_types(store, tmp_path, capsys, format, where):
    path = tmp_path / f"visit.{format}"
    table = arrowstate.open_store(store).latest().to_arrow("op-1.visit").sort_by("user")

    told = exported(capsys, store, path, *([] if where is None else ["--where", where]))

    found = (pq.read_table(path) if format == "parquet" else pa.ipc.open_file(path).read_all()).sort_by("user")
    assert found.cast(table.schema) == table
    assert found.schema.names == table.schema.names
    assert found.schema.types == table.schema.types
    assert told == {
        "path": str(path),
        "format": format,
        "checkpoint_id": 2,
        "rows": 2,
        "bytes": path.stat().st_size,
    }


def test_a_condition_keeps_durations_of_any_length(tmp_path, capsys):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=8)
    spans = pa.array([10**12, -(10**12)], pa.duration("s"))
    backend.state(arrowstate.ValueStateDescriptor("span", spans.type)).update_batch(["a", "b"], spans)
    commit(arrowstate.open_store(tmp_path / "store", create=True), {"op": [backend]})

    code, _, err = run(capsys, "export", tmp_path / "store", "op.span", "--where", "true", "-o", tmp_path / "x.parquet")

    assert (code, err) == (0, "")
    assert (
        pq.read_table(tmp_path / "x.parquet", columns=["user", "span"])
        .sort_by("user")["span"]
        .equals(pa.chunked_array([spans]))
    )


@pytest.mark.parametrize("options", [[], ["--format", "csv"]])
def test_no_file_is_made_for_the_sign_of_the_pipe(store, tmp_path, capsys, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())

    for command in (["export", store, "op-1.visit"], ["sql", store, "select 1"]):
        code, out, err = run(capsys, *command, "-o", "-", *options)
        assert (code, out) == (1, "")
        assert "'-' is none" in err

    assert set(tmp_path.iterdir()) == before
    assert run(capsys, "export", store, "op-1.visit", "-o", "./-", "--format", "csv")[0] == 0


def test_a_checkpoint_columns_and_rows_are_chosen(store, tmp_path, capsys):
    options = ["--columns", "took", "user", "--checkpoint", "1"]

    exported(capsys, store, tmp_path / "some.csv", *options, "--where", "took > 0 or false")
    exported(capsys, store, tmp_path / "some.jsonl", *options)

    with (tmp_path / "some.csv").open() as file:
        assert list(csv.reader(file)) == [["took", "user"], ["7", "ann"]]
    lines = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
    assert sorted(line["user"] for line in lines) == ["ann", "bob"]


def test_operator_state_is_exported_too(store, tmp_path, capsys):
    path = tmp_path / "offsets.csv"

    code, out, _ = run(capsys, "export", store, "source.offsets", "-o", path)
    run(capsys, "export", store, "source.offsets", "-o", tmp_path / "few.csv", "--where", "offsets > 4", "--columns",
        "offsets")  # fmt: skip

    assert code == 0
    assert out.startswith(f"2 rows of source.offsets at checkpoint 2 are in {path}\n")
    assert sorted(path.read_text().splitlines()) == ["0,17", "0,4", "_subtask,offsets"]
    assert (tmp_path / "few.csv").read_text() == "offsets\n17\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["op-1.visit", "-o", "rows"], "'rows' does not say its format"),
        (["op-1.visti", "-o", "rows.csv"], "'op-1.visit'"),
        (["op-1.visit", "-o", "rows.csv", "--columns", "nobody"], "no column 'nobody'"),
        (["source.offsets", "-o", "rows.csv", "--columns", "nobody"], "no column 'nobody'; it has _subtask, offsets"),
        (["op-1.visit", "-o", "rows.csv", "--where", "nobody > 1"], '"nobody" not found'),
        (["op-1.visit", "-o", "rows.csv", "--where", "took > 0); select (1"], "one expression in SQL"),
        (["op-1.visit", "-o", "rows.csv", "--where", "took > 10) or (1=1"], "one expression in SQL"),
        (["op-1.visit", "-o", "rows.csv", "--where", "took > 0 /* "], "one expression in SQL"),
        (["op-1.visit", "-o", "rows.csv", "--where", "took > ?"], "not provided"),
        (["op-1.visit", "-o", "rows.csv", "--where", "error('no')"], "no"),
    ],
)
def test_what_cannot_be_exported_leaves_the_file_as_it_was(store, tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("of before")

    code, out, err = run(capsys, "export", store, *options)

    assert (code, out) == (1, "")
    assert message in err
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == ["rows.csv"]
    assert (tmp_path / "rows.csv").read_text() == "of before"


def test_the_checkpoint_is_held_while_it_is_read(store, tmp_path, capsys, monkeypatch):
    held = []
    opened = arrowstate.open_store(store)

    def noted(*arguments):
        held.append(len(opened.storage.list("leases/")))
        return 0

    monkeypatch.setattr("arrowstate.cli.export.write_binary", noted)
    exported(capsys, store, tmp_path / "rows.csv")

    assert held == [1]
    assert opened.storage.list("leases/") == []


def test_expired_rows_are_left_out_unless_they_are_asked_for(tmp_path, capsys):
    backend = backend_of(pa.schema([("user", pa.string())]), max_parallelism=8, clock_ms=lambda: 0)
    city = arrowstate.ValueStateDescriptor("city", pa.string(), ttl=arrowstate.TimeToLive(1000))
    backend.state(city).update_batch(["ann"], ["Rome"])
    commit(arrowstate.open_store(tmp_path / "store", create=True), {"people": [backend]})
    files = []
    for options in ([], ["--expired"], ["--where", "true"], ["--where", "true", "--expired"]):
        assert run(capsys, "export", tmp_path / "store", "people.city", "-o", tmp_path / "city.csv", *options)[0] == 0
        files.append((tmp_path / "city.csv").read_text().splitlines())

    assert [file[0] for file in files] == ["user,city", "user,city,_expires_at"] * 2
    assert [[line[:8] for line in file[1:]] for file in files] == [[], ["ann,Rome"]] * 2


HELD_UP = """
import os
import sys
from types import SimpleNamespace
from arrowstate.cli import main, results

def held_up(descriptor):
    print("all is written", flush=True)
    sys.stdin.read()

results.os = SimpleNamespace(**vars(os) | {"fsync": held_up})
sys.exit(main())
"""
"""The command, which stops before its file has its name."""


def test_a_process_that_is_killed_leaves_no_half_of_a_file(store, tmp_path):
    path = tmp_path / "visit.csv"
    path.write_text("of before")
    # The lease of a process that was killed stays for a while.
    copy = shutil.copytree(store, tmp_path / "store")
    command = [sys.executable, "-c", HELD_UP, "export", copy, "op-1.visit", "-o", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"all is written\n"

        running.kill()

    assert path.read_text() == "of before"
