"""The queries on the runtime and in Flink's SQL, by turns, over the same files of JSON.

Each round runs a quarter of the events and all of them, and the difference is what counts, so that nobody's start does.
There is a file for each slot. Neither takes checkpoints while it reads. Ours commits its output table in the end, in
each run. Flink writes its result once a round, before the clock; in the runs that are timed it goes nowhere, as in
nexmark-flink. Both are compared with what DuckDB finds, so they equal each other too.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import Contender, Series, run_rounds
from benchmarks.runtime_peers import Peer
from nexmark_queries.events import write_json
from nexmark_queries.flink_sql import final_rows, settings, statements
from nexmark_queries.on_runtime import run_job
from nexmark_queries.queries import Query
from nexmark_queries.running import read_store
from nexmark_queries.truth import Truth, Verdict

__all__ = ["BLOCK", "EVENTS_UNIT", "Beside", "figures", "write_parts"]

BLOCK = 50
"""So many events after one another are in one file."""

EVENTS_UNIT = 40_000
"""Of so many events the peer takes a multiple."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The events in JSON, in a file for each slot."""

    quarter: Path
    all: Path
    events: int
    slots: int


def write_parts(folder: Path, files: Sequence[Path], *, events: int, slots: int) -> Parts:
    """Write the first events of Parquet files for so many slots."""
    parts = Parts(folder / f"quarter-{slots}", folder / f"all-{slots}", events, slots)
    write_json(parts.quarter, files, parts=slots, stop=events // 4, block=BLOCK)
    write_json(parts.all, files, parts=slots, stop=events, block=BLOCK)
    return parts


@dataclass(slots=True)
class Beside:
    """A query on both.

    Parameters
    ----------
    query
        The query.
    parts
        The events.
    folder
        Where stores and results are written; made and removed here.
    truth
        Of all events.
    delay_ms
        By how much the watermark is behind the highest event time.
    python
        A Python that has PyFlink.
    """

    query: Query
    parts: Parts
    folder: Path
    truth: Truth
    delay_ms: int
    python: Path
    verdicts: dict[str, list[Verdict]] = field(default_factory=lambda: {"arrowstate": [], "Flink": []})
    "Of the result of each round."

    def run(self, rounds: int) -> list[Series]:
        """Run it so many times by turns; ours is the first series."""
        self.folder.mkdir(parents=True)
        script = self.folder / "script.json"
        script.write_text(json.dumps(self._script()))
        peer = Peer(self.folder, "nexmark", self.python, str(script), 0, self.parts.events)

        def written() -> None:
            peer.prepare()
            result = final_rows(self.query, self._result)
            self.verdicts["Flink"].append(self.truth.compare_at_end(self.query, result))

        series = run_rounds(
            [
                Contender("arrowstate", self._ours, peer.timed_rows),
                Contender("Flink", peer.run, peer.timed_rows, prepare=written),
            ],
            rounds,
            warmup=0,
        )
        shutil.rmtree(self.folder)
        return series

    @property
    def _result(self) -> Path:
        return self.folder / "result"

    def _script(self) -> dict[str, object]:
        runs = {"written": (self.parts.all, self._result), "quarter": (self.parts.quarter, None)}
        runs["all"] = self.parts.all, None
        made = {
            name: statements(self.query, events, result, delay_ms=self.delay_ms)
            for name, (events, result) in runs.items()
        }
        return {"settings": settings(self.parts.slots), "result": str(self._result), **made}

    def _ours(self) -> tuple[float, float]:
        """Run a quarter and all of it; return the difference in seconds and in processor seconds."""
        seconds = cpu_seconds = 0.0
        for events, sign in ((self.parts.quarter, -1), (self.parts.all, 1)):
            place = self.folder / events.name
            wall, cpu = run_job(
                self.query, events, place, delay_ms=self.delay_ms, parallelism=self.parts.slots, format="json"
            )
            seconds, cpu_seconds = seconds + sign * wall, cpu_seconds + sign * cpu
            if sign > 0:
                output = read_store(place).output
                self.verdicts["arrowstate"].append(self.truth.compare_at_end(self.query, output))
            shutil.rmtree(place)
        return seconds, cpu_seconds


def figures(ours: Series, flink: Series) -> list[float]:
    """Return events a second of both and the ratio, then the same by processor time; each is a median of rounds."""
    found = []
    for one, other in (
        (ours, flink),
        (Series("", ours.amount, ours.cpu_seconds), Series("", flink.amount, flink.cpu_seconds)),
    ):
        found += [statistics.median(series.figures) for series in (one, other)]
        found.append(statistics.median(one.times_better_than(other)))
    return found
