"""The long form of the tests: its parts, and what it says in the end."""

import ast
import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import long_tests
from long_tests import PARTS, Part

ROOT = Path(__file__).resolve().parents[2]


def python(code):
    return [sys.executable, "-c", code]


@pytest.fixture
def parts(monkeypatch):
    """Three parts in the place of the real ones; the last notes what it is called with."""
    counted = python("print('30 passed'); print('1,200 rounds, 1 problem')")
    failing = python("raise SystemExit('a finding')")
    given = python("import os, sys; print(os.environ['ARROWSTATE_LONG_TESTS'], os.listdir(sys.argv[1]))")
    found = (
        Part("counting", "two commands", (counted, python("print('7 seeds')"))),
        Part("failing", "one that fails", (failing, python("print('never 5 passed')"))),
        Part("given", "a folder", ([*given, "{folder}"],)),
    )
    monkeypatch.setattr(long_tests, "PARTS", found)


def test_all_parts_run_and_the_end_says_what_each_did_and_which_failed(parts, capfd):
    status = long_tests.main([])

    lines = capfd.readouterr().out.splitlines()
    assert status == 1
    assert "a finding" in lines
    assert "1 []" in lines
    said = [re.fullmatch(r"  (\w+) +(.*?) +\d+ s  (\w+)", line).groups() for line in lines[-4:-1]]
    assert said == [
        ("counting", "1,200 rounds, 7 seeds", "passed"),
        ("failing", "", "FAILED"),
        ("given", "", "passed"),
    ]
    assert lines[-1] == "3 parts, 1 failed: failing"


def test_parts_that_are_named_run_alone_and_succeed(parts, capfd):
    status = long_tests.main(["given", "counting"])

    assert status == 0
    assert capfd.readouterr().out.splitlines()[-1] == "2 parts, 0 failed"


def test_a_part_that_does_not_exist_is_refused_with_those_there_are(parts, capsys):
    with pytest.raises(SystemExit) as ended:
        long_tests.main(["fialing"])

    assert ended.value.code == 2
    assert "no part named fialing; there is counting, failing, given" in capsys.readouterr().err


def test_the_lowest_versions_are_tried_with_the_oldest_python(tmp_path, monkeypatch):
    for name, version in {"python3.11": "3 11 2", "python3.12": "3 9 1", "python3": "3 14 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert long_tests.pythons_here()[0] in (str(tmp_path / "python3.11"), "/usr/bin/python3.11")
    assert any("{oldest}" in command for part in PARTS if part.name == "lowest" for command in part.commands)


def test_parts_name_what_is_there():
    for part in PARTS:
        for command in part.commands:
            paths = [word.removeprefix("--ignore=") for word in command]
            assert all((ROOT / path).exists() for path in paths if path.startswith(("tests", "tools")))


def test_the_contributing_guide_lists_the_parts_in_order():
    text = (ROOT / "CONTRIBUTING.md").read_text()

    table = text.partition("| part | what | about |\n")[2].partition("\n\n")[0]
    assert [line.split("`")[1] for line in table.splitlines()[1:]] == [part.name for part in PARTS]


def test_what_the_scripts_of_the_long_form_import_is_there():
    missing = []
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "arrowstate":
                module = importlib.import_module(node.module)
                names = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                missing += [
                    (path.name, node.module, name) for name in names if find_spec(f"{node.module}.{name}") is None
                ]

    assert missing == []
