"""Jobs of Flink in Java, which run in one process with the jars of a Python that has `apache-flink`."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["flink_command"]

_OPENED = ("lang", "util", "time", "io", "net", "nio")
"""Packages of Java that Flink's serializers look into."""


def flink_command(python: Path, job: str, classes: Path, *arguments: str) -> list[str]:
    """Compile a job of the folder `peers`, which needs Java's compiler, and return the command that runs it."""
    where = "import pathlib, pyflink; print(pathlib.Path(pyflink.__path__[0]) / 'lib')"
    library = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()
    path = f"{library}/*:{classes}"
    source = Path(__file__).parent / "peers" / f"{job}.java"
    subprocess.run(["javac", "-nowarn", "-d", classes, "-cp", path, source], check=True)
    opens = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
    return ["java", *opens, "-cp", path, job, *arguments]
