"""A standalone Spark cluster on this machine: a master, workers with folders of their own, drivers as processes.

The workers have addresses of their own, 127.0.0.1, 127.0.0.2 and so on, so that Spark takes them for different hosts:
a speculative attempt never runs on the host of the first one. Executors share the file system and nothing else.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
"""What makes a short life of a JVM cheap, and quiet about a class archive that it cannot use."""
_PATIENCE_SECONDS = 120
_ENVIRONMENT = {
    "SPARK_HOME": str(Path(pyspark.__file__).parent),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": os.pathsep.join(item for item in sys.path if item),
}


@dataclass
class Cluster:
    """A running cluster; `standalone_cluster` starts and ends it."""

    folder: Path
    url: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    "Of every process, drivers too."
    java_options: str = JAVA_OPTIONS
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def settings(self) -> dict[str, str]:
        """What the session of a driver is made with."""
        return {
            "spark.master": self.url,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": self.java_options,
            "spark.executor.extraJavaOptions": self.java_options,
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            # Without: after an executor is lost, its tasks wait for a second for a place near to nothing.
            "spark.locality.wait": "0",
        }

    def driver(self, script: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a driver, the leader of a process group that its JVM belongs to."""
        return subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={**os.environ, **self.environment},
            start_new_session=True,
            **options,
        )

    def executors(self) -> list[int]:
        """The process ids of the executors' JVMs."""
        workers = {process.pid for process in self.processes[1:]}
        return [pid for pid, parent in parents().items() if parent in workers]

    def python_workers(self) -> list[int]:
        """The process ids of the Python processes that run tasks on the executors."""
        table = parents()
        executors = set(self.executors())
        daemons = {pid for pid, parent in table.items() if parent in executors}
        return [pid for pid, parent in table.items() if parent in daemons]


def parents() -> dict[int, int]:
    """Each process of this machine and its parent."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                status = (folder / "stat").read_text()
            except OSError:
                continue
            # The name, in parentheses, may hold anything.
            found[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
    return found


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those it started, and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def make_class_archive(path: Path) -> None:
    """Archive the classes that a small stream needs, which halves the processor time of every start of Spark.

    It takes about as much as four starts without it.
    """
    script = f"""
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "2")
spark = builder.config("spark.driver.extraJavaOptions", "{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={path}").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.range(10).write.parquet("{path}.rows")
stream = spark.readStream.schema("id long").parquet("{path}.rows").repartition("id")
stream = stream.mapInArrow(lambda batches: batches, "id long").writeStream.format("noop")
stream.option("checkpointLocation", "{path}.checkpoint").trigger(availableNow=True).start().awaitTermination()
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""
    subprocess.run([sys.executable, "-c", script], env={**os.environ, **_ENVIRONMENT}, check=True)


@contextmanager
def standalone_cluster(
    folder: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None, archive: Path | None = None
) -> Iterator[Cluster]:
    """Run a master and workers of one core and 1 GiB each; their logs are in `folder`."""
    java_options = JAVA_OPTIONS if archive is None else f"{JAVA_OPTIONS} -XX:SharedArchiveFile={archive}"
    own = {
        **_ENVIRONMENT,
        "SPARK_DAEMON_JAVA_OPTS": java_options,
        "SPARK_DAEMON_MEMORY": "256m",
        **(environment or {}),
    }
    cluster = Cluster(folder, environment=own, java_options=java_options)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        _start(cluster, "master", "org.apache.spark.deploy.master.Master", *address)
        cluster.url = _wait_for(folder / "master.log", "Starting Spark master at ").split()[0]
        for number in range(1, workers + 1):
            address = ["--host", f"127.0.0.{number}", "--port", "0", "--webui-port", "0"]
            place = ["--cores", "1", "--memory", "1G", "--work-dir", str(folder / f"worker-{number}")]
            _start(
                cluster, f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *address, *place, cluster.url
            )  # fmt: skip
        for number in range(1, workers + 1):
            _wait_for(folder / f"worker-{number}.log", "Successfully registered with master ")
        yield cluster
    finally:
        for process in reversed(cluster.processes):
            kill_group(process)


def _start(cluster: Cluster, name: str, *command: str) -> None:
    with (cluster.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(Path(cluster.environment["SPARK_HOME"]) / "bin" / "spark-class"), *command],
            env={**os.environ, **cluster.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    cluster.processes.append(process)


def _wait_for(log: Path, text: str) -> str:
    """What follows a text in a log, once it is there."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        _, found, rest = log.read_text(errors="replace").partition(text)
        if found and "\n" in rest:
            return rest
        time.sleep(0.05)
    raise RuntimeError(f"{log} has no {text!r}:\n{log.read_text(errors='replace')}")
