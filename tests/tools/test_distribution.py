"""What is published: the source distribution, the wheel that is built of it, and an installation of that wheel."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("numba", "llvmlite", "polars", "rich", "prompt_toolkit", "shtab")
FIRST_USE = """
import pyarrow as pa
import sys
import arrowstate
from arrowstate.cli import warm
from arrowstate.runtime import Job, TableSource
from arrowstate_formats.compiled import KERNELS

backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
clicks.add_batch(["u", "v", "u"], [1, 2, 3])
store = arrowstate.open_store(sys.argv[1], create=True)
with store.writer() as writer:
    writer.checkpoint({"counter": [backend]})
assert store.sql("select user, clicks from counter.clicks order by user").fetchall() == [("u", 4), ("v", 2)]
warm._import_kernels()


class Total(arrowstate.BatchFunction):
    def open(self, context):
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

    def process_batch(self, batch, context):
        self.total.add_batch(context.group_keys(batch), batch["v"])


# The processes of a job need nothing more.
job = Job(sys.argv[1] + "-job", parallelism=2)
job.source(TableSource(pa.table({"k": [1, 2, 1], "v": [3, 4, 5]})), uid="in").stateful(Total(), key=["k"], uid="op")
assert job.run().sql("select k, total from op.total order by k").fetchall() == [(1, 8), (2, 4)]
assert all(kernel.is_in_library for kernel in KERNELS)
"""


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installation_replaces_no_package_of_a_platform_but_what_its_page_says():
    """The page of platforms says what each ships; 16.4 is the one whose PyArrow is too old."""
    required = {each.name: each for each in map(Requirement, PROJECT["dependencies"])}
    page = (ROOT / "docs" / "spark" / "platforms.md").read_text()
    rows = re.findall(r"^\| (.+?) \| \S+ \| \S+ \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \| \[", page, re.MULTILINE)

    replaced = [
        (platform, name)
        for platform, pyarrow, numpy in rows
        for name, version in (("pyarrow", pyarrow), ("numpy", numpy))
        if version not in required[name].specifier
    ]

    assert {platform for platform, *_ in rows} >= {"Databricks 16.4 LTS", "Databricks 17.3 LTS"}
    assert replaced == [("Databricks 16.4 LTS", "pyarrow")]


@pytest.mark.slow
@pytest.mark.turns(8)
def test_what_is_published_is_whole_and_runs_in_an_empty_environment(tmp_path):
    # Object code is kept beside the environment; without it this compiles for a minute.
    built = {**os.environ, "ARROWSTATE_KERNEL_OBJECTS": str(ROOT / ".venv" / "arrowstate-kernels")}
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path / "dist", ROOT)
    [source] = (tmp_path / "dist").glob("*.tar.gz")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    # As `pip install .` builds it, for which this environment has nothing.
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "dist", source, env=built)
    [wheel] = (tmp_path / "dist").glob("*.whl")

    run(sys.executable, "-m", "twine", "check", "--strict", source, wheel)

    assert "-cp311-abi3-" in wheel.name
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "tools/kernel_library/glue.c",
    } <= names
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {
        "arrowstate/py.typed",
        "arrowstate/ui/static/page.css",
        "arrowstate_formats/py.typed",
        "arrowstate_formats/_kernels.abi3.so",
    } <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"arrowstate", "arrowstate_formats"}
    assert not [name for name in names if "__pycache__" in name]

    run(python, "-m", "pip", "install", "--quiet", wheel)
    installed = {each["name"] for each in json.loads(run(python, "-m", "pip", "list", "--format", "json"))}
    assert not installed & set(EXTRAS)
    assert len(installed - {"pip", "setuptools"}) <= 14
    megabytes = sum(file.stat().st_size for file in (tmp_path / "venv" / "lib").rglob("*") if file.is_file()) / 1e6
    assert megabytes < 400
    run(python, "-W", "error", "-c", FIRST_USE, tmp_path / "store", cwd=tmp_path)
    assert "kernels are compiled\n" in run(python, "-m", "arrowstate", "--version", cwd=tmp_path)
    assert "counter" in run(python, "-m", "arrowstate", "show", tmp_path / "store", cwd=tmp_path)
