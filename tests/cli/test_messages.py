"""What the command line says where something is wrong: in its own terms, and as JSON where that is asked for."""

import ast
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.cli import main
from arrowstate.cli.messages import _OWN_TERMS, in_own_terms
from arrowstate.errors import CollectedError, StoreNotFoundError
from processes import python
from stores import commit

PACKAGE = Path(arrowstate.__file__).parent


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with a checkpoint and a tag."""
    folder = tmp_path_factory.mktemp("messages") / "store"
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    opened = arrowstate.open_store(folder, create=True)
    commit(opened, {"people": [backend]})
    opened.tag("gold", 1)
    return str(folder)


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert printed.out == ""
    return code, printed.err


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "message"),
    [
        (["list", "/nowhere"], 1, "StoreNotFoundError", "no store at /nowhere; check the path"),
        (["show", "STORE", "--checkpoint", "99"], 1, "CheckpointNotFoundError", "it has 1"),
        (["sql", "STORE", "select * from people.cyti"], 1, "StateNotFoundError", "'people.city'"),
        (["sql", "STORE", "selec 1"], 1, "InvalidInputError", 'syntax error at or near "selec"'),
        (["lst"], 2, "UsageError", "invalid choice: 'lst'"),
        (["list"], 2, "UsageError", "required: STORE"),
        (["list", "STORE", "--limit", "0"], 2, "UsageError", "must be at least 1, got 0"),
        (["list", "STORE", "--limit", "all"], 2, "UsageError", "must be a whole number, got all"),
        (["run", "job.py", "--every", "soon"], 2, "UsageError", "must be a number of seconds, got soon"),
        (["diff", "STORE", "1", "--state", "people.cyti"], 1, "StateNotFoundError", "it has 'people.city'"),
    ],
)
def test_with_json_an_error_is_json_with_the_same_exit_code(store, capsys, arguments, code, kind, message):
    given = [store if argument == "STORE" else argument for argument in arguments]

    told = run(capsys, *given, "--json")
    said = run(capsys, *given)

    assert (told[0], said[0]) == (code, code)
    (line,) = told[1].splitlines()
    error = json.loads(line)["error"]
    assert list(error) == ["type", "message"]
    assert error["type"] == kind
    assert message in error["message"]
    assert message in said[1]


def test_a_message_names_the_verbs_and_options_of_the_command_line(store, capsys):
    _, taken = run(capsys, "tag", store, "gold")
    _, short = run(capsys, "gc", store, "--grace", "1s")
    _, other = run(capsys, "sql", store, "delete from people.city")

    assert taken == "arrowstate: there is a tag 'gold' already; remove it first with `arrowstate untag STORE 'gold'`\n"
    assert short.endswith("allow it with --allow-short-grace\n")
    assert other == "arrowstate: sql takes queries, such as a SELECT, got 'delete from people.city'\n"
    assert in_own_terms(str(StoreNotFoundError("/x"))) == "no store at /x; check the path"
    collected = [in_own_terms(str(CollectedError(["data/a"], 41, acknowledged=acked))) for acked in (True, False)]
    assert "`arrowstate tag`, or a query by --lease" in collected[0]
    assert "`arrowstate rollback STORE N` goes back to one" in collected[1]


def test_each_rule_is_for_a_message_that_there_is():
    """A message that is written anew takes its rule along."""
    constants = set()
    rooms = [PACKAGE / room for room in ("log", "checkpoints", "upkeep", "query")]
    for path in [PACKAGE / "errors.py", *(path for room in rooms for path in room.rglob("*.py"))]:
        constants |= {
            "".join(part.value if isinstance(part, ast.Constant) else "(x)" for part in node.values)
            if isinstance(node, ast.JoinedStr)
            else node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        }

    without_use = [theirs.pattern for theirs, _ in _OWN_TERMS if not any(theirs.search(text) for text in constants)]

    assert without_use == []


def test_a_warning_is_a_line_without_the_place_in_the_code(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    with store.writer() as writer:
        for _ in range(2):
            writer.checkpoint({"people": [backend]})
    max((tmp_path / "store/log").glob("*.json")).unlink()

    said, told = (python("-m", "arrowstate", "list", tmp_path / "store", *json_) for json_ in ([], ["--json"]))

    assert (said.returncode, told.returncode) == (0, 0)
    assert re.fullmatch(r"arrowstate: warning: .* is damaged: the log has lost entries: .*\n", said.stderr)
    warning = json.loads(told.stderr)["warning"]
    assert warning["type"] == "RuntimeWarning"
    assert f"arrowstate: warning: {warning['message']}\n" == said.stderr
