"""The scripts of tools/ and .ci/: what they promise to a person and to a build server."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command, **options):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def tree(tmp_path):
    """A copy of what a fresh clone has of the tools, without an environment."""
    shutil.copytree(
        ROOT / "tools", tmp_path / "tree" / "tools", ignore=shutil.ignore_patterns("results", "__pycache__")
    )
    shutil.copytree(ROOT / ".ci", tmp_path / "tree" / ".ci")
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "tree")
    return tmp_path / "tree"


def test_python_runs_in_the_environment_and_stays_in_the_working_folder(tmp_path):
    ran = run(ROOT / "tools" / "python", "-c", "import os, sys; print(os.getcwd(), sys.prefix)", cwd=tmp_path)

    assert ran.stdout.split() == [str(tmp_path), str(ROOT / ".venv")]


def test_python_is_also_what_spark_finds_for_its_workers(tmp_path):
    ran = run(ROOT / "tools" / "python", "-c", "import shutil; print(shutil.which('python3'))", cwd=tmp_path)

    assert ran.stdout.strip() == str(ROOT / ".venv" / "bin" / "python3")


def test_the_exit_code_is_that_of_the_program():
    assert run(ROOT / "tools" / "python", "-c", "raise SystemExit(7)").returncode == 7


def test_without_a_fit_python_the_scripts_say_what_they_need(tree, tmp_path):
    machine = tmp_path / "machine"
    machine.mkdir()
    for needed in ("sh", "dirname"):
        (machine / needed).symlink_to(shutil.which(needed))
    script(machine / "python3", "exit 1")

    ran = run(tree / "tools" / "python", "-c", "1", env={"PATH": str(machine)})

    assert ran.returncode == 1
    assert "needs Python 3.11 or later with pip" in ran.stderr
    assert "PYTHON=" in ran.stderr
    assert not (tree / ".venv").exists()


# Stands for the environment's tools, so that no test installs anything: notes how it was called.
FAKE_VENV = """
case "$*" in
"-m venv"*) mkdir -p {venv}/bin; cp {fake} {venv}/bin/python; echo made >>{log} ;;
*"-m pip install"*) echo installed >>{log} ;;
*version_info*) echo 3.12.1 ;;
*) exec {python} "$@" ;;
esac
"""


@pytest.fixture
def environment(tree, tmp_path, monkeypatch):
    """The module tools/environment.py of the copy, with a Python whose venv and pip only take notes."""
    fake, log = tmp_path / "fake", tmp_path / "log"
    script(fake, FAKE_VENV.format(venv=tree / ".venv", fake=fake, log=log, python=sys.executable))
    monkeypatch.syspath_prepend(tree / "tools")
    monkeypatch.delitem(sys.modules, "environment", raising=False)
    import environment as module

    monkeypatch.setattr(module.sys, "executable", str(fake))
    module.log = lambda: log.read_text().split() if log.exists() else []
    yield module
    del sys.modules["environment"]


def test_an_environment_is_made_once(environment):
    before = environment.is_current()

    environment.install()
    environment.install()

    assert (before, environment.is_current()) == (False, True)
    assert environment.log() == ["made", "installed"]


def test_changed_requirements_are_installed_into_the_environment_there_is(environment):
    environment.install()
    (environment.ROOT / "pyproject.toml").write_text("[project]\n")

    stale = not environment.is_current()
    environment.install()

    assert stale
    assert environment.is_current()
    assert environment.log() == ["made", "installed", "installed"]


def test_another_extra_is_installed_beside_and_once(environment):
    environment.install()
    before = environment.is_current("docs")

    environment.install("docs")
    environment.install("docs")

    assert (before, environment.is_current("docs"), environment.is_current()) == (False, True, True)
    assert environment.log() == ["made", "installed", "installed"]


def test_an_environment_that_was_moved_is_made_anew(environment):
    environment.install()
    stamp = environment.STAMP.read_text()
    environment.STAMP.write_text(stamp.replace(str(environment.VENV), "/elsewhere/.venv"))

    environment.install()

    assert environment.log() == ["made", "installed", "made", "installed"]
    assert environment.STAMP.read_text() == stamp


def test_an_environment_whose_python_is_gone_is_made_anew(environment):
    environment.install()
    environment.PYTHON.unlink()

    environment.install()

    assert environment.log() == ["made", "installed", "made", "installed"]


@pytest.mark.parametrize(
    ("checked", "tested", "expected"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 2, 2), (0, 5, 5)], ids=str
)
def test_a_build_fails_when_the_gate_or_the_tests_fail_and_ends_with_the_summary(tree, checked, tested, expected):
    script(tree / "tools" / "check", f'echo "checked $*"; exit {checked}')
    script(tree / "tools" / "test", f'echo "1 passed"; exit {tested}')
    # Where there is one, none is installed.
    browser = script(tree / "machine" / "chromium", "exit 1")

    ran = run(tree / ".ci" / "run", cwd="/", env={**os.environ, "PATH": f"{browser.parent}:{os.environ['PATH']}"})

    assert ran.returncode == expected
    assert ran.stdout.splitlines() == ["checked --fast", "1 passed"]


def test_the_gate_refuses_an_option_it_does_not_know():
    ran = run(ROOT / "tools" / "check", "--fats")

    assert ran.returncode == 2
    assert "usage: tools/check [--fast]" in ran.stderr
