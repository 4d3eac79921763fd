"""The peers of `tools/bench runtime`: each in a Python of its own, given or made."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

__all__ = ["KAFKA_PEERS", "PEERS", "Peer", "python_with"]

PEERS = {"bytewax": "bytewax==0.21.1", "pathway": "pathway==0.33.0", "pyflink": "apache-flink==2.3.0"}
"""What is installed where no Python that has it is given."""

KAFKA_PEERS = {"bytewax-kafka": "bytewax[kafka]==0.21.1", "quix": "quixstreams[avro]==3.28.1"}
"""The same, of those who read topics of Kafka."""


class Peer:
    """A job of a peer, which waits for a line and times itself: see `peers/timing.py`."""

    def __init__(
        self,
        folder: Path,
        name: str,
        python: Path,
        work: str,
        keys: int,
        rows: int,
        *more: int | str,
        checkpoints: bool = False,
    ) -> None:
        # A quarter of it is a number of whole batches.
        rows = max(rows // 40_000, 1) * 40_000
        job = Path(__file__).parent / "peers" / f"{name}_job.py"
        self._command = [str(python), str(job), work, *map(str, (keys, rows, *more))]
        self._folder = folder
        self._checkpoints = checkpoints
        self._process: subprocess.Popen[str] | None = None
        self.timed_rows = rows // 4 * 3
        "How many rows a round times."

    def prepare(self) -> None:
        """Start it."""
        place = Path(tempfile.mkdtemp(dir=self._folder))
        # It gets no search path of ours.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        (place / "checkpoints").mkdir()
        command = [*self._command, *([str(place / "checkpoints")] if self._checkpoints else [])]
        self._told = place / "told"
        with self._told.open("w") as told:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True, env=environment
            )
        assert self._process.stdout is not None
        while (said := self._process.stdout.readline()) != "ready\n":
            if not said:
                self._process.wait()
                raise self._ended()

    def run(self) -> tuple[float, float]:
        """Let it run; return the seconds that it took, and its processor seconds."""
        assert self._process is not None
        said, _ = self._process.communicate("\n")
        last = said.splitlines()[-1].split() if said else []
        if not last or last[0] != "done" or int(last[1]) != self.timed_rows:
            raise self._ended()
        return float(last[2]), float(last[3])

    def _ended(self) -> RuntimeError:
        return RuntimeError(f"{' '.join(self._command)} ended: {self._told.read_text()[-3000:]}")


def python_with(peer: str, given: Path | None, folder: Path) -> Path | None:
    """Return the Python that is given, or make one that has a peer; None for `none`, and where that fails."""
    if given is not None:
        return None if str(given) == "none" else given
    venv.create(folder / peer, with_pip=True)
    python = folder / peer / "bin" / "python"
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", (PEERS | KAFKA_PEERS)[peer]],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"without {peer}, which cannot be installed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return python
