"""An installed wheel in a new environment: its packages and megabytes, the seconds of its first calls, and memory.

The wheel is built of this checkout; packages come from the registry that pip is set up for. First calls run in a new
process each: `import arrowstate`, the first `add_batch`, and a checkpoint with a query over it. Memory is what is
resident after each, libraries that processes share among it, and what a slot of a job has at its first rows.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Report, argument_parser

_ROOT = Path(__file__).resolve().parents[2]
_TOOLS = ("pip", "setuptools", "wheel")
_FIRST_CALLS = """
import json, os, sys, time

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

started = time.perf_counter(); used = time.process_time()
import arrowstate
imported = time.perf_counter() - started, time.process_time() - used, resident()
import pyarrow as pa
started = time.perf_counter(); used = time.process_time()
backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
clicks.add_batch([f"u{n % 500}" for n in range(1000)], [1] * 1000)
added = time.perf_counter() - started, time.process_time() - used, resident()
started = time.perf_counter(); used = time.process_time()
store = arrowstate.open_store(sys.argv[1], create=True)
with store.writer() as writer:
    writer.checkpoint({"counter": [backend]})
assert store.sql("select sum(clicks) from counter.clicks").fetchall() == [(1000,)]
queried = time.perf_counter() - started, time.process_time() - used, resident()

from arrowstate.runtime import Job, TableSource

class Resident(arrowstate.BatchFunction):
    def open(self, context):
        self.most = context.state(arrowstate.ReducingStateDescriptor("most", pa.int64(), reduce="max"))

    def process_batch(self, batch, context):
        self.most.add_batch(context.group_keys(batch), [resident()] * batch.num_rows)

job = Job(sys.argv[1] + "-job", parallelism=2)
job.source(TableSource(pa.table({"k": range(1000)})), uid="rows").stateful(Resident(), key=["k"], uid="op")
((slot,),) = job.run().sql("select max(most) from op.most").fetchall()
print(json.dumps([[imported, added, queried], slot]))
"""
_BOUNDS = (("import", 0.35), ("first add_batch", 3), ("checkpoint and SQL", 5))


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("install", __doc__, rounds=5)
    parser.add_argument("--extras", nargs="*", default=["", "cli"], help="one environment for each, '' for none")
    arguments = parser.parse_args(argv)
    report = Report("install", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as temporary:
        folder = Path(temporary)
        built = {**os.environ, "ARROWSTATE_KERNEL_OBJECTS": str(_ROOT / ".venv" / "arrowstate-kernels")}
        build = [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--wheel",
            "--outdir",
            str(folder / "dist"),
            str(_ROOT),
        ]
        subprocess.run(build, check=True, env=built, stdout=subprocess.DEVNULL)
        [wheel] = (folder / "dist").glob("*.whl")
        report.figure("wheel", wheel.stat().st_size / 1e6, "MB")
        for extra in arguments.extras:
            python = _environment(folder, wheel, extra)
            packages = json.loads(_output([str(python), "-m", "pip", "list", "--format", "json"]))
            names = [each["name"] for each in packages if each["name"] not in _TOOLS]
            size = _megabytes(python.parents[1] / "lib")
            asked = f"[{extra}]" if extra else ""
            report.figure(f"arrowstate{asked}: packages", len(names), "")
            report.figure(f"arrowstate{asked}: installed", size, "MB")
            if not extra:
                report.require("packages", len(names), at_most=14)
                report.require("installed", size, at_most=350, unit="MB")
                _first_calls(report, python, folder, arguments.rounds)
    return report.finish()


def _environment(folder: Path, wheel: Path, extra: str) -> Path:
    place = folder / f"venv-{extra or 'core'}"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    named = f"{wheel}[{extra}]" if extra else str(wheel)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", named], check=True)
    return python


def _megabytes(folder: Path) -> float:
    """Return what the packages of an environment take, without those of the tools that installed them."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    ours = [path for path in files if not any(part.partition("-")[0] in _TOOLS for part in path.parts)]
    return sum(path.stat().st_size for path in ours) / 1e6


def _first_calls(report: Report, python: Path, folder: Path, rounds: int) -> None:
    ran = [[str(python), "-c", _FIRST_CALLS, str(folder / f"store-{number}")] for number in range(rounds + 1)]
    told = [json.loads(_output(command)) for command in ran]
    for place, (name, bound) in enumerate(_BOUNDS):
        # The first process reads the packages from the disk.
        wall, processor, resident = (statistics.median(each[place][kind] for each, _ in told[1:]) for kind in range(3))
        report.figure(f"{name}: processor time", processor, "s")
        report.figure(f"{name}: memory", resident / 1e6, "MB")
        report.require_time(name, wall, at_most=bound)
    report.figure("slot of a job: memory", statistics.median(slot for _, slot in told[1:]) / 1e6, "MB")


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
