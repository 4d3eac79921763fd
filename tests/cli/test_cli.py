import csv
import datetime
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.cli.app import make_parser
from arrowstate.cli.output import print_table
from arrowstate.query.kept_reads import forget_checkpoints
from processes import python
from stores import backend_of, commit, run

HELP = Path(__file__).with_name("help.txt")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A store with two checkpoints of two subtasks; the second writes a third of the keys anew."""
    folder = tmp_path_factory.mktemp("cli") / "store"
    store = arrowstate.open_store(folder, create=True)
    backends = [
        arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128, key_groups=groups)
        for groups in (arrowstate.KeyGroupRange(0, 63), arrowstate.KeyGroupRange(64, 127))
    ]
    users = pa.array([f"u{number}" for number in range(30_000)])
    groups = arrowstate.key_groups(users, 128).to_numpy()
    writer = store.writer()
    for round, rows in enumerate((30_000, 10_000)):
        for backend, own in zip(backends, (groups < 64, groups >= 64), strict=True):
            mine = users.slice(0, rows).filter(pa.array(own[:rows]))
            backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")).add_batch(
                mine, pa.array([1] * len(mine))
            )
            backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(
                mine.slice(0, 5), pa.array(["Rome", "Łódź", "a,b", '"', "Oslo"])
            )
        writer.checkpoint({"counter": backends}, properties={"offset": round}, watermark=round * 1000)
    return folder


@pytest.fixture
def store(pristine, tmp_path):
    """A copy of the store that a test may damage."""
    forget_checkpoints()
    return str(shutil.copytree(pristine, tmp_path / "store"))


def run_json(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_help_is_what_it_was(capsys):
    parser = make_parser()
    (commands,) = (action for action in parser._actions if action.dest == "command")

    texts = [parser.format_help(), *(command.format_help() for command in commands.choices.values())]

    # After a wanted change: write "\n".join(texts) to the file.
    assert words("\n".join(texts)) == words(HELP.read_text())


def words(help_text):
    """Of Python 3.13 and later columns begin elsewhere, and `-f FILE, --file FILE` is `-f, --file FILE`."""
    return re.sub(r"(-\w) [A-Z]+, --", r"\1, --", help_text).split()


def test_list_has_a_row_for_each_checkpoint(store, capsys):
    found = run_json(capsys, "list", store)

    assert [item["checkpoint_id"] for item in found] == [1, 2]
    assert [item["rows"] for item in found] == [30_010, 30_010]
    assert {item["kind"] for item in found} == {"checkpoint"}
    assert found[0]["operators"] == ["counter"]
    assert 0 < found[0]["bytes"] < found[1]["bytes"]


def test_list_as_text_has_the_same_rows(store, capsys):
    code, out, err = run(capsys, "list", store, "--limit", "1")

    assert (code, err) == (0, "")
    assert "30010" in out
    assert "counter" in out
    assert "│ 1 " not in out


def test_a_store_without_a_checkpoint_has_an_empty_list(tmp_path, capsys):
    arrowstate.open_store(tmp_path / "empty", create=True)

    assert run_json(capsys, "list", tmp_path / "empty") == []
    assert run(capsys, "list", tmp_path / "empty")[0] == 0
    assert run(capsys, "show", tmp_path / "empty")[::2] == (1, "arrowstate: no checkpoint in this store yet\n")


def test_show_says_what_a_checkpoint_holds(store, capsys):
    found = run_json(capsys, "show", store)

    (operator,) = found["operators"]
    states = {state["name"]: state for state in operator["states"]}
    assert (found["checkpoint_id"], found["properties"], found["watermark"]) == (2, {"offset": 1}, 1000)
    assert operator["key"] == {"user": "string"}
    assert operator["max_parallelism"] == 128
    assert operator["key_groups"] == [[0, 63], [64, 127]]
    assert states["clicks"] | {"bytes": 0, "dead_share": 0} == {
        "name": "clicks",
        "kind": "reducing",
        "type": "int64",
        "reduce": "sum",
        "rows": 30_000,
        "runs": 4,
        "dead_share": 0,
        "bytes": 0,
        "schema_version": 1,
        "schema_versions": [
            {
                "version": 1,
                "columns": [
                    {"id": 1, "name": "user", "of": "key", "type": "string"},
                    {"id": 2, "name": "clicks", "of": "value", "type": "int64"},
                ],
                "runs": 4,
            }
        ],
        "time_to_live": None,
    }
    assert states["clicks"]["dead_share"] == pytest.approx(0.25)
    assert states["clicks"]["bytes"] > 500_000


def test_show_takes_an_older_checkpoint(store, capsys):
    found = run_json(capsys, "show", store, "--checkpoint", "1")

    assert found["properties"] == {"offset": 0}
    assert found["operators"][0]["states"][0]["dead_share"] == 0


def test_show_of_a_state_lists_columns_and_runs(store, capsys):
    found = run_json(capsys, "show", store, "--state", "counter.clicks")

    assert [(column["name"], column["of"], column["type"]) for column in found["columns"]] == [
        ("user", "key", "string"),
        ("clicks", "value", "int64"),
    ]
    assert [file["subtask"] for file in found["files"]] == [0, 0, 1, 1]
    assert sum(file["live_rows"] for file in found["files"]) == found["rows"] == 30_000


@pytest.mark.parametrize("arguments", [("show",), ("show", "--state", "counter.city")])
def test_show_as_text_names_what_there_is(store, capsys, arguments):
    code, out, err = run(capsys, *arguments[:1], store, *arguments[1:])

    assert (code, err) == (0, "")
    for word in ("city", "string", "counter"):
        assert word in out


def test_sql_prints_a_table(store, capsys):
    code, out, err = run(capsys, "sql", store, "select sum(clicks) as total, count(*) n from counter.clicks")

    assert (code, err) == (0, "")
    assert "total" in out
    assert "40000" in out


def test_sql_holds_the_checkpoint_while_it_runs_if_asked(store, capsys, monkeypatch):
    held = []
    opened = arrowstate.open_store(store)

    def listed(names, rows):
        held.append(opened.storage.list("leases/"))
        return print_table(names, rows)

    monkeypatch.setattr("arrowstate.cli.sql.print_table", listed)
    run(capsys, "sql", store, "select 1 as one")
    run(capsys, "sql", store, "select 1 as one", "--lease")

    assert [len(leases) for leases in held] == [0, 1]
    assert opened.storage.list("leases/") == []


def test_sql_prints_json(store, capsys):
    values = "date '2024-01-01' d, ['nan'::double, '-inf', 1] x, null y, [1] l, '\\xAA'::blob b"

    found = run_json(capsys, "sql", store, f"select clicks, {values} from counter.clicks limit 2", "--checkpoint", "1")

    row = {"clicks": 1, "d": "2024-01-01", "x": ["NaN", "-Infinity", 1.0], "y": None, "l": [1], "b": "aa"}
    assert found == [row] * 2


def test_sql_prints_csv(store, capsys):
    code, out, _ = run(
        capsys, "sql", store, "select distinct city, null as n, true t from counter.city order by city", "--csv"
    )

    assert code == 0
    assert list(csv.reader(io.StringIO(out))) == [
        ["city", "n", "t"],
        ['"', "", "true"],
        ["Oslo", "", "true"],
        ["Rome", "", "true"],
        ["a,b", "", "true"],
        ["Łódź", "", "true"],
    ]


def test_csv_tells_null_from_empty_and_blank_texts_and_floats_that_are_not_finite(store, capsys):
    values = "null n, '' e, ' a' b, 'nan'::double x, '-inf'::float y, timestamp '99999-01-01' z"

    _, out, _ = run(capsys, "sql", store, f"select {values}", "--csv")

    assert out.splitlines()[1] == ',""," a",NaN,-Infinity,99999-01-01T00:00:00.000000'


def test_sql_prints_a_sum_of_integers_as_a_number(store, capsys):
    found = run_json(capsys, "sql", store, "select sum(clicks) as total, 1.50 as price from counter.clicks")

    assert found == [{"total": 40_000, "price": "1.50"}]


def test_sql_with_no_row_is_an_empty_array(store, capsys):
    assert run_json(capsys, "sql", store, "select * from counter.clicks where clicks < 0") == []


def test_a_long_table_is_cut_and_says_so(store, capsys):
    _, out, _ = run(capsys, "sql", store, "select user from counter.clicks")

    assert "the first 1000 rows" in out
    assert out.count("│ u") == 1000


def test_a_savepoint_is_a_store_of_parquet_files(store, capsys, tmp_path):
    found = run_json(capsys, "savepoint", store, tmp_path / "saved", "--checkpoint", "1")

    assert found["rows"] == 30_010
    assert found["checkpoint_id"] == 1
    assert run_json(capsys, "list", tmp_path / "saved")[0]["kind"] == "savepoint"
    files = list((tmp_path / "saved" / "data").rglob("*.parquet"))
    assert len(files) == found["files"]
    assert sum(pq.read_metadata(file).num_rows for file in files) == 30_010


def test_a_savepoint_tells_the_files_of_operator_state_from_those_of_keyed_state(capsys, tmp_path):
    keyed = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.int64())]), max_parallelism=128)
    keyed.state(arrowstate.ValueStateDescriptor("n", pa.int64())).update_batch(range(10), range(10))
    operator = arrowstate.OperatorStateBackend()
    # More than what is kept inside the manifest.
    operator.state(arrowstate.OperatorListStateDescriptor("seen", pa.int64())).add_all(range(10_000))
    store = arrowstate.open_store(tmp_path / "store", create=True)
    store.writer().checkpoint({"op": [keyed]}, operator_states={"op": [operator]})

    _, out, _ = run(capsys, "savepoint", tmp_path / "store", tmp_path / "saved")

    assert "10 rows in Parquet files (1) and operator state in Arrow files (1), " in out
    assert len(list((tmp_path / "saved").rglob("*.parquet"))) == len(list((tmp_path / "saved").rglob("*.arrow"))) == 1


def test_a_savepoint_may_have_a_name(store, capsys):
    code, out, _ = run(capsys, "savepoint", store, "before-upgrade")

    assert code == 0
    assert f"{store}/savepoints/before-upgrade" in out


def test_restore_check_restores_and_counts(store, capsys):
    found = run_json(capsys, "restore-check", store, "--parallelism", "3", "--max-parallelism", "192")

    assert found["ok"]
    assert found["problems"] == []
    assert [item["rows"] for item in found["restored"]] == [30_000, 10]
    assert {(item["parallelism"], item["max_parallelism"]) for item in found["restored"]} == {(3, 192)}
    assert found["files"] >= 4


def test_restore_check_as_text_says_what_it_did(store, capsys):
    code, out, _ = run(capsys, "restore-check", store, "--checkpoint", "1")

    assert code == 0
    assert "no problem found" in out
    assert "counter.clicks" in out


@pytest.mark.parametrize("place", ["begin", "middle", "end", "cut", "missing"])
def test_restore_check_finds_a_damaged_file(store, capsys, place):
    path = max(Path(store).rglob("*.arrow"), key=lambda file: file.stat().st_size)
    data = bytearray(path.read_bytes())
    path.unlink()
    if place != "missing":
        if place == "cut":
            del data[-100:]
        else:
            data[{"begin": 20, "middle": len(data) // 2, "end": -8}[place]] ^= 4
        path.write_bytes(data)

    code, out, _ = run(capsys, "restore-check", store, "--json")

    report = json.loads(out)
    assert code == 1
    assert not report["ok"]
    assert len(report["problems"]) == 1
    assert path.name in report["problems"][0]


@pytest.mark.parametrize("command", ["list", "show", "restore-check"])
def test_a_damaged_log_entry_is_an_error_that_names_it(store, capsys, command):
    path = max((Path(store) / "log").glob("*"))
    text = path.read_text()
    path.unlink()
    path.write_text(text.replace('"offset": 1', '"offset": 2'))

    code, out, err = run(capsys, command, store)

    assert (code, out) == (1, "")
    assert path.name in err


def test_sql_over_a_damaged_file_says_in_two_lines_what_is_damaged_and_what_helps(store):
    path = max(Path(store).rglob("*.arrow"), key=lambda file: file.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.unlink()
    path.write_bytes(data)

    query = "select sum(clicks), max(user) from counter.clicks"
    done = python("-m", "arrowstate", "sql", store, query)

    assert (done.returncode, done.stdout) == (1, "")
    damage, advice = done.stderr.splitlines()
    assert path.name in damage
    assert "arrowstate diagnose" in advice


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "/nowhere"], "no store at /nowhere"),
        (["show", "STORE", "--checkpoint", "99"], "it has 1, 2"),
        (["show", "STORE", "--state", "counter.cilcks"], "'counter.clicks', 'counter.city'"),
        (["sql", "STORE", "select * from checkpoints"], "'arrowstate.checkpoints'"),
        (["sql", "STORE", "select * from counter.cilcks"], "'counter.clicks', 'counter.city'"),
        (["sql", "STORE", "select * from checkpoints"], "'arrowstate.checkpoints'"),
        (["sql", "STORE", "select 1", "--json", "--csv"], "choose one"),
        (["sql", "STORE", "select error('no')"], "no"),
        (["savepoint", "STORE", "bad name"], "a savepoint name must be 1 to 128 characters"),
        (["restore-check", "STORE", "--parallelism", "500"], "500"),
    ],
)
def test_an_error_is_a_message_and_exit_code_1(store, capsys, arguments, message):
    code, _, err = run(capsys, *[store if argument == "STORE" else argument for argument in arguments])

    assert code == 1
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["lst"],
        ["list"],
        ["restore-check", "x", "--parallelism", "0"],
        ["run", "nothing.py", "--savepoint", "x", "--no-savepoint"],
        ["sql", "x", "select '\udcff'"],
        ["list", "\udcff"],
    ],
)
def test_wrong_usage_is_exit_code_2(capsys, arguments):
    code, out, err = run(capsys, *arguments)

    assert (code, out) == (2, "")
    assert "usage: arrowstate" in err


def test_the_version_is_shown(capsys):
    code, out, _ = run(capsys, "--version")

    first, second, packages = out.splitlines()
    assert (code, first) == (0, f"arrowstate {arrowstate.__version__}, format {arrowstate.FORMAT_VERSION}")
    assert second.startswith(f"Python {platform.python_version()}, ")
    assert f"pyarrow {pa.__version__}" in packages.split(", ")
    assert "pytest" not in packages


def test_the_module_is_the_command_and_a_closed_pipe_is_no_error(store):
    command = [sys.executable, "-m", "arrowstate", "sql", store, "select * from counter.clicks", "--csv"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None

    first = process.stdout.readline()
    process.stdout.close()

    assert first == "user,clicks,_key_group\n"
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


@pytest.mark.parametrize("arguments", [["list", "STORE"], ["list", "STORE", "--json"], ["--help"]])
def test_a_pipe_that_was_closed_before_a_short_output_is_no_error(store, arguments):
    command = [sys.executable, "-m", "arrowstate", *(store if text == "STORE" else text for text in arguments)]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()

        told = process.stderr.read()

    assert (process.returncode, told) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_an_output_that_has_no_room_is_told_in_one_line(store):
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for arguments in (["list", store], ["show", store, "--json"]):
        with open("/dev/full", "wb") as full:
            found = subprocess.run(
                [sys.executable, "-m", "arrowstate", *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env=buffered,
                check=False,
            )

        assert found.returncode == 1
        assert len(found.stderr.splitlines()) == 1
        assert "the output cannot be written: No space left on device" in found.stderr


def test_savepoint_writes_the_format_asked_for(store, capsys, tmp_path):
    found = run_json(capsys, "savepoint", store, tmp_path / "copy", "--format", "arrow")
    code, out, _ = run(capsys, "savepoint", store, tmp_path / "text", "--format", "arrow")

    assert (found["format"], found["rows"], found["files"]) == ("arrow", 30_010, 4)
    assert sorted(path.suffix for path in (tmp_path / "copy" / "data").rglob("*.*")) == [".arrow"] * 4
    assert code == 0
    assert "30010 rows in Arrow files (4)" in out


@pytest.mark.parametrize("claim", [[], ["--claim"]])
def test_import_makes_a_savepoint_the_newest_checkpoint_and_claims_it_if_asked_to(store, capsys, tmp_path, claim):
    run_json(capsys, "savepoint", store, tmp_path / "copy")
    arrowstate.open_store(tmp_path / "new", create=True)

    found = run_json(capsys, "import", tmp_path / "new", tmp_path / "copy", *claim)

    assert (found["rows"], found["warnings"]) == (30_010, [])
    assert [item["checkpoint_id"] for item in run_json(capsys, "list", tmp_path / "new")] == [found["checkpoint_id"]]
    assert (tmp_path / "copy" / "arrowstate.json").exists() == (not claim)
    total = run_json(capsys, "sql", tmp_path / "new", "select sum(clicks)::bigint as clicks from counter.clicks")
    assert total == [{"clicks": 40_000}]


def test_import_says_that_a_claimed_savepoint_is_still_there(store, capsys, tmp_path, monkeypatch):
    run_json(capsys, "savepoint", store, tmp_path / "copy")
    arrowstate.open_store(tmp_path / "new", create=True)

    def refuse(storage, *, now_ms):
        raise arrowstate.StorageError("arrowstate.json", "no answer")

    monkeypatch.setattr("arrowstate.checkpoints.importing.dispose", refuse)
    code, out, _ = run(capsys, "import", tmp_path / "new", tmp_path / "copy", "--claim")

    assert code == 1
    assert "is now checkpoint 1 of" in out
    assert "WARNING   checkpoint 1 was imported, but the savepoint that it claims could not be disposed of" in out


def test_dispose_deletes_a_savepoint_and_refuses_a_store(store, capsys, tmp_path):
    run_json(capsys, "savepoint", store, tmp_path / "copy")

    refused, _, said = run(capsys, "dispose", store)
    code, out, _ = run(capsys, "dispose", tmp_path / "copy")
    again, _, missing = run(capsys, "dispose", tmp_path / "copy")

    assert (refused, code, again) == (1, 0, 1)
    assert "is no savepoint that can be disposed of: its log has 3 entries" in said
    assert "is gone: 7 files deleted" in out
    assert "no store" in missing
    assert len(run_json(capsys, "list", store)) == 2


def test_a_checkpoint_is_named_by_an_id_a_tag_or_a_time(store, capsys):
    tagged = run_json(capsys, "tag", store, "gold", "--checkpoint", "1")
    found = [run_json(capsys, "show", store, "--checkpoint", name)["checkpoint_id"] for name in ("gold", "1", "2")]

    assert tagged == {"tag": "gold", "checkpoint_id": 1}
    assert found == [1, 1, 2]
    assert run_json(capsys, "tags", store) == [tagged]
    assert run_json(capsys, "show", store, "--checkpoint", "2999-01-01")["checkpoint_id"] == 2
    assert run(capsys, "untag", store, "gold")[0] == 0
    code, _, err = run(capsys, "show", store, "--checkpoint", "gold")
    assert (code, "the tags are none" in err) == (1, True)


def test_diff_counts_and_shows_what_changed(store, capsys):
    found = run_json(capsys, "diff", store, "1", "2")
    rows = run_json(capsys, "diff", store, "-1", "--state", "counter.city", "--rows")
    code, out, _ = run(capsys, "diff", store, "1", "--state", "counter.clicks")

    (clicks,) = (state for state in found["states"] if state["state"] == "clicks")
    assert (clicks["inserted"], clicks["updated"], clicks["deleted"]) == (0, 10_000, 0)
    assert rows == []
    assert (code, "counter.clicks" in out, "10000" in out, "city" in out) == (0, True, True, False)
    code, _, err = run(capsys, "diff", store, "1", "--rows")
    assert (code, "--state" in err) == (1, True)


def test_lookup_and_history_take_keys_as_text(store, capsys, tmp_path):
    assert run_json(capsys, "lookup", store, "counter.clicks", "u1", "nobody") == [{"user": "u1", "clicks": 2}]
    told = run_json(capsys, "history", store, "counter.clicks", "u1")
    assert [(row["_checkpoint_id"], row["_change_type"], row["clicks"]) for row in told] == [
        (1, "insert", 1),
        (2, "update_preimage", 1),
        (2, "update_postimage", 2),
    ]
    place = str(tmp_path / "wide")
    wide = arrowstate.open_store(place, create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64()), ("day", pa.date32())]), max_parallelism=4)
    key = pa.table({"n": pa.array([7]), "day": pa.array(["2026-03-01"]).cast(pa.date32())})
    backend.state(arrowstate.ValueStateDescriptor("v", pa.string())).update_batch(key, ["x"])
    commit(wide, {"op": [backend]})
    found = run_json(capsys, "lookup", place, "op.v", '{"n": 7, "day": "2026-03-01"}')
    assert found == [{"n": 7, "day": "2026-03-01", "v": "x"}]
    code, _, err = run(capsys, "lookup", place, "op.v", "7")
    assert (code, '{"n": "...", "day": "..."}' in err) == (1, True)
    code, _, err = run(capsys, "lookup", place, "op.v", '{"n": "seven", "day": "2026-03-01"}')
    assert (code, "the key column n is int64, got seven" in err) == (1, True)


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary(2)])
def test_lookup_takes_bytes_as_it_shows_them(tmp_path, capsys, kind):
    key = pa.schema([("id", kind)])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=4)
    values = backend.state(arrowstate.ValueStateDescriptor("v", pa.int64()))
    values.update_batch(pa.table({"id": [b"\x00\xff", b"ab"]}, schema=key), [1, 2])
    wide = backend_of(pa.schema([("n", pa.int32()), ("id", kind)]), 4)
    pairs = wide.state(arrowstate.ValueStateDescriptor("v", pa.int64()))
    pairs.update_batch(pa.table({"n": [7], "id": [b"\x00\xff"]}, schema=wide.key), [3])
    commit(arrowstate.open_store(tmp_path, create=True), {"op": [backend], "wide": [wide]})

    found = run_json(capsys, "lookup", str(tmp_path), "op.v", "00ff", "6162")
    of_pair = run_json(capsys, "lookup", str(tmp_path), "wide.v", json.dumps({"n": 7, "id": "00ff"}))
    code, _, err = run(capsys, "lookup", str(tmp_path), "op.v", "nix")

    assert found == [{"id": "00ff", "v": 1}, {"id": "6162", "v": 2}]
    assert of_pair == [{"n": 7, "id": "00ff", "v": 3}]
    assert (code, "hexadecimal digits, such as 00ff, got nix" in err) == (1, True)


POINT = pa.struct([("x", pa.int32()), ("at", pa.date32()), ("id", pa.binary())])


@pytest.mark.parametrize(
    ("kind", "value", "text", "example"),
    [
        (
            POINT,
            {"x": 1, "at": datetime.date(2026, 3, 1), "id": b"\xff"},
            '{"x": 1, "at": "2026-03-01", "id": "ff"}',
            '{"x": "...", "at": "...", "id": "..."}',
        ),
        (pa.list_(pa.string()), ["a", "b"], '["a", "b"]', '["..."]'),
        (pa.list_(pa.struct([("key", pa.int8())])), [{"key": 3}], '[{"key": 3}]', '[{"key": "..."}]'),
        (pa.struct([("key", pa.int8())]), {"key": 3}, '{"key": 3}', '{"key": "..."}'),
    ],
)
def test_a_key_of_one_struct_or_list_is_given_as_json(tmp_path, capsys, kind, value, text, example):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("key", kind)]), max_parallelism=4)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(pa.array([value], kind), [7])
    store = arrowstate.open_store(tmp_path, create=True)
    commit(store, {"op": [backend]})
    place, row = str(tmp_path), {"key": json.loads(text), "v": 7}

    assert run_json(capsys, "lookup", place, "op.v", text) == [row]
    if text != '{"key": 3}':
        assert run_json(capsys, "lookup", place, "op.v", f'{{"key": {text}}}') == [row]
    assert [item["v"] for item in run_json(capsys, "history", place, "op.v", text)] == [7]
    for wrong in ("nix", '{"z": 1}', "5", '["a", 5]'):
        code, _, err = run(capsys, "lookup", place, "op.v", wrong)
        assert (code, f"give it as JSON, {example}, got {wrong}" in err) == (1, True)
    assert run(capsys, "edit", place, "--delete-key", "op", text, "--apply")[0] == 0
    assert store.latest().to_arrow("op.v").num_rows == 0


def test_lookup_takes_times_and_durations_as_it_shows_them(tmp_path, capsys):
    key = pa.schema([("at", pa.time64("ns")), ("took", pa.duration("ms")), ("day", pa.timestamp("ms"))])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=4)
    rows = pa.table({"at": [3_723_000_000_001], "took": [-1], "day": [1_500]}, schema=key)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.timestamp("s"))).update_batch(
        rows, pa.array([2**55], pa.timestamp("s"))
    )
    commit(arrowstate.open_store(tmp_path, create=True), {"op": [backend]})
    shown = {"at": "01:02:03.000000001", "took": "-1 day, 23:59:59.999000", "day": "1970-01-01T00:00:01.500000"}

    found = run_json(capsys, "lookup", str(tmp_path), "op.v", json.dumps(shown))

    assert found == [{**shown, "v": "1141709097-06-13T06:26:08"}]
