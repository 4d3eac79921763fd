"""What the short form takes by turns: every case comes up, and whoever names a test has it run."""

import os
import re
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

import long_form

ROOT = Path(__file__).resolve().parents[2]
NAMED = "tests/runtime/test_sinks.py::test_what_is_no_compression_is_refused_at_once"


def collected(turn, *arguments):
    """Collect tests in a process of their own; return their ids and what pytest said last."""
    environment = {**os.environ, "ARROWSTATE_TEST_TURN": str(turn), "ARROWSTATE_LONG_TESTS": "0"}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}, done.stdout


def test_the_turn_is_another_in_each_run(tmp_path, monkeypatch):
    monkeypatch.delenv("ARROWSTATE_TEST_TURN")
    turns = []

    for _ in range(3):
        turns.append(int(long_form._turn_of(tmp_path / "kept" / "turn")))
        monkeypatch.delenv("ARROWSTATE_TEST_TURN")

    assert turns[1:] == [(turns[0] + 1) % 100_000, (turns[0] + 2) % 100_000]


def test_the_processes_of_a_run_have_its_turn(tmp_path, monkeypatch):
    monkeypatch.delenv("ARROWSTATE_TEST_TURN")

    first = long_form._turn_of(tmp_path / "turn")

    assert long_form._turn_of(tmp_path / "turn") == first == os.environ["ARROWSTATE_TEST_TURN"]


def test_where_no_turn_can_be_kept_there_is_one_all_the_same(tmp_path, monkeypatch):
    monkeypatch.delenv("ARROWSTATE_TEST_TURN")
    (tmp_path / "file").write_text("no folder")

    assert 0 <= int(long_form._turn_of(tmp_path / "file" / "turn")) < 100_000


@pytest.mark.parametrize("n", [2, 3, 6])
def test_of_n_turns_in_a_row_one_takes_a_case(n, monkeypatch):
    taken = dict.fromkeys(["a", "b[1]", 7, 8], 0)
    monkeypatch.setattr(long_form, "ALL_TURNS", False)

    for turn in range(90, 90 + n):
        monkeypatch.setattr(long_form, "TURN", turn)
        for case in taken:
            taken[case] += long_form.every_nth(n, case)

    assert set(taken.values()) == {1}


EVERY = int(re.search(r'"tests/runtime/": (\d+)', (ROOT / "tests" / "conftest.py").read_text())[1])
"""Of so many tests of the runtime the short form takes one."""


@pytest.mark.parametrize("arguments", [[NAMED], [NAMED.partition("::")[0]], ["tests/runtime", "-k", "no_compression"]])
def test_a_test_that_is_named_runs_in_every_turn(arguments):
    turn = next(turn for turn in range(EVERY) if (crc32(NAMED.encode()) + turn) % EVERY)

    tests, said = collected(turn, *arguments)

    assert NAMED in tests
    assert f"ARROWSTATE_TEST_TURN={turn} tools/test" in said


def test_a_folder_that_takes_turns_runs_a_part_of_its_tests_and_the_turn_takes_the_same_again():
    first, _ = collected(7, "tests/runtime")

    assert NAMED.partition("::")[0] in {test.partition("::")[0] for test in first}
    assert {(crc32(test.encode()) + 7) % EVERY for test in first if test.startswith("tests/runtime/test_sinks.py")} == {
        0
    }
