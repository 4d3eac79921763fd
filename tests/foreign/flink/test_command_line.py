"""`arrowstate flink`: types, rows, hints, states that are named, and notes that are whole."""

import json

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.cli.app import main

PYTHON = "pyflink-process-canonical"


@pytest.fixture
def place(savepoint_folder):
    return lambda name: str(savepoint_folder(name) / "savepoint")


def printed(capsys, *arguments, code=0):
    assert main(["flink", *arguments]) == code
    return capsys.readouterr()


def test_what_a_savepoint_holds_has_rows_and_the_types_of_hints(capsys, place):
    told = json.loads(printed(capsys, "show", place(PYTHON), "--json", "--hint", "py-keyed.py_long=BIGINT").out)

    states = {state["state"]: state for operator in told["operators"] for state in operator["states"]}
    assert states["python-state-py_long"]["rows"] > 0
    assert "value int64" in states["python-state-py_long"]["columns"]
    assert "rows" in printed(capsys, "show", place(PYTHON)).out


def test_rows_are_not_counted_where_nobody_wants_them(capsys, place):
    told = json.loads(printed(capsys, "show", place(PYTHON), "--json", "--no-rows").out)

    assert {state["rows"] for operator in told["operators"] for state in operator["states"]} == {None}


def test_a_query_reads_what_hints_say(capsys, place):
    query = 'select sum(value) as total, any_value(typeof(value)) as kind from "py-keyed"."python-state-py_long"'

    (row,) = json.loads(printed(capsys, "sql", place(PYTHON), query, "--json", "--hint", "py-keyed.py_long=BIGINT").out)

    assert row["kind"] == "BIGINT"
    assert row["total"] > 0


def test_a_file_has_room_for_one_result(capsys, place, tmp_path):
    (tmp_path / "two.sql").write_text("select 1; select 2")
    result = tmp_path / "result.csv"

    told = printed(capsys, "sql", place(PYTHON), "-f", str(tmp_path / "two.sql"), "-o", str(result), code=1)

    assert "the result of one query, got 2" in told.err
    assert not result.exists()


def test_a_hint_of_a_struct_names_columns_or_fields(capsys, place):
    hints = ["--hints", "py-keyed.py_map=STRUCT(user_key VARCHAR, value BIGINT)"]
    hints += ["--hints", "py-keyed.py_row=STRUCT(i BIGINT, name VARCHAR, value DOUBLE)"]
    query = 'select (select typeof(user_key) from "py-keyed"."python-state-py_map" limit 1) as entry, '
    query += '(select typeof(value.name) from "py-keyed"."python-state-py_row" limit 1) as field'

    (row,) = json.loads(printed(capsys, "sql", place(PYTHON), query, "--json", *hints).out)

    assert row == {"entry": "VARCHAR", "field": "VARCHAR"}


def test_an_import_that_is_refused_makes_no_store(capsys, place, tmp_path):
    store, taken = tmp_path / "store", tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").touch()

    refused = printed(capsys, "import", place(PYTHON), str(store), "--operator", "nope=x", code=1)
    held = printed(capsys, "import", place(PYTHON), str(taken), code=1)

    assert "no operator with uid 'nope'" in refused.err
    assert not store.exists()
    assert "holds other files" in held.err
    assert [path.name for path in taken.iterdir()] == ["notes.txt"]
    printed(capsys, "import", place(PYTHON), str(store))
    again = printed(capsys, "import", place(PYTHON), str(store), code=1)
    assert "has" in again.err
    assert "already" in again.err
    assert len(arrowstate.open_store(store).checkpoints()) == 1


def test_states_that_are_named_are_imported_and_no_others(capsys, place, tmp_path):
    store = str(tmp_path / "store")
    options = ["--hint", "py-keyed.py_long=BIGINT", "--states", "py-keyed.py_long=total:sum"]

    told = json.loads(printed(capsys, "import", place(PYTHON), store, "--json", *options).out)

    assert [state["name"] for state in told["states"] if state["name"]] == ["total"]
    total = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
    backend = arrowstate.open_store(store).latest().restore("py-keyed")
    assert backend.state(total).get_batch(pa.array([4], pa.int64())).to_pylist() == [975]


def test_sessions_are_imported_with_a_reducer_for_each_field(capsys, place, tmp_path):
    store = str(tmp_path / "store")
    option = "--states=sessions.window-contents=sums:f0=first,f1=sum,f2=max"

    told = printed(capsys, "import", place("sessions"), store, option).out

    assert "sessions.window-contents: its windows are the sessions of 'merging-window-set'" in told.splitlines()


def test_notes_are_one_line_each_however_long_they_are(capsys, place, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")

    told = printed(capsys, "import", place("core-hashmap-native"), str(tmp_path / "store")).out

    (note,) = (line for line in told.splitlines() if line.startswith("types-int.t_kryo_bitset:"))
    assert note.endswith("take a canonical savepoint, which has lengths")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hint", "py-keyed.py_long=BIGNT"], "takes a type of SQL such as BIGINT"),
        (["--hint", "py-keyed.py_long=BIGINT) , (select 1"], "takes a type of SQL such as BIGINT"),
        (["--hint", "py-keyed.py_long"], "takes NAME=TYPE"),
        (["--states", "py-keyed.none"], "no state named 'py-keyed.none'"),
        (["--states", "py-keyed.py_map=m:sum"], "a reducer needs a state of values or accumulators"),
        (["--operator", "py-keyed"], "takes NAME_IN_FLINK=UID"),
    ],
)
def test_what_does_not_fit_is_told_and_makes_no_store(capsys, place, tmp_path, options, message):
    told = printed(capsys, "import", place(PYTHON), str(tmp_path / "store"), *options, code=1)

    assert message in told.err
    assert not (tmp_path / "store").exists()
