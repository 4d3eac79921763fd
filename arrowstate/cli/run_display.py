"""How `arrowstate run` shows a job: lines for people, objects for machines, and what a table on a terminal says too."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from arrowstate.cli.output import drop_output, print_json_line
from arrowstate.clock import now_ms

if TYPE_CHECKING:
    from arrowstate.checkpoints.coordination import CheckpointRecord
    from arrowstate.runtime.status import JobStatus, TaskStatus


_logger = logging.getLogger("arrowstate.cli")


class Display(Protocol):
    """What shows how a job is."""

    def show(self, status: JobStatus) -> None:
        """Show how it is now."""

    def event(self, event: str, text: str, **more: Any) -> None:
        """Tell of something that has happened."""


class _Changes:
    """What is new in a status: a state, failures, and that it is time for figures."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._state: str | None = None
        self._told_ms = 0
        self._figures_at = time.monotonic() + every_s

    def of(self, status: JobStatus) -> Iterator[tuple[str, str]]:
        """Yield each event with a sentence."""
        for record in status.restarts:
            # The error that ends the job is told in the end.
            if record.failed_at_ms > self._told_ms and status.state != "failed":
                self._told_ms = record.failed_at_ms
                yield "failed", f"attempt {record.attempt} failed: {record.reason}"
        if status.state != self._state and status.state in _STATES:
            yield status.state, down_text(status) or _STATES[status.state].format(attempt=status.attempt)
        self._state = status.state
        over = status.state in ("finished", "stopped", "failed")
        if over or time.monotonic() >= self._figures_at:
            self._figures_at += self._every_s
            yield "status", _line(status)


_STATES = {
    "running": "running, attempt {attempt}",
    "waiting": "waiting to start again",
    "rescaling": "going on with another number of slots",
}


class Lines:
    """A line for what happens, and for the figures from time to time, on stderr."""

    def __init__(self, every_s: float) -> None:
        self._changes = _Changes(every_s)

    def show(self, status: JobStatus) -> None:
        for event, text in self._changes.of(status):
            self.event(event, text)

    def event(self, event: str, text: str, **_: Any) -> None:  # noqa: ARG002
        # The rest of an error is in the log, which is on stderr too.
        with _seen_or_not(sys.stderr):
            print(f"{time.strftime('%H:%M:%S')} {first_line(text)}", file=sys.stderr, flush=True)


class Objects:
    """A JSON object in a line for each of them, on stdout."""

    def __init__(self, every_s: float) -> None:
        self._changes = _Changes(every_s)

    def show(self, status: JobStatus) -> None:
        for event, text in self._changes.of(status):
            if event == "status":
                self.event("status", "", **_figures(status))
            else:
                self.event(event, text, attempt=status.attempt)

    def event(self, event: str, text: str, **more: Any) -> None:
        said = {"text": text} if text else {}
        with _seen_or_not(sys.stdout):
            print_json_line({"event": event, "at_ms": now_ms(), **said, **more})


@contextmanager
def _seen_or_not(stream: TextIO) -> Iterator[None]:
    """Write for whoever reads a stream; where nobody does any more the log has a warning, and the job goes on."""
    try:
        yield
    except BrokenPipeError:
        drop_output(stream)
        _logger.warning("nobody reads %s any more; the job goes on", stream.name)


def by_operator(status: JobStatus) -> dict[str, list[TaskStatus]]:
    """Return the tasks of each operator."""
    found: dict[str, list[TaskStatus]] = {}
    for task in status.tasks:
        found.setdefault(task.task, []).append(task)
    return found


def _line(status: JobStatus) -> str:
    """Return the figures in one line: rows a second of each operator, who is busiest, and the last checkpoint."""
    down = down_text(status)
    if down:
        return f"{down}; {checkpoint_text(last_completed(status))}"
    speeds = {uid: sum(task.rows_per_second for task in tasks) for uid, tasks in by_operator(status).items()}
    rates = ", ".join(f"{uid} {speed:,.0f} rows/s" for uid, speed in speeds.items())
    busiest = max(status.tasks, key=lambda task: task.busy, default=None)
    busy = status.state if busiest is None else f"{rates}; busiest is {busiest.task}, {busiest.busy:.0%}"
    left_out = left_out_text(status)
    return f"{busy}; {checkpoint_text(last_completed(status))}{left_out and '; '}{left_out}"


def down_text(status: JobStatus) -> str:
    """Return when a job that is down starts again, and why it is down; nothing for one that is not."""
    last = status.restarts[-1] if status.restarts else None
    if status.state not in ("failing", "waiting") or last is None or last.again_at_ms is None:
        return ""
    seconds = max(last.again_at_ms - now_ms(), 0) / 1000
    return f"down, again in {seconds:,.0f} s: {first_line(last.reason)}"


def left_out_text(status: JobStatus) -> str:
    """Return what operators set aside or left out, nothing if they took all rows."""
    told = []
    for uid, tasks in by_operator(status).items():
        dead, late = sum(task.dead_rows for task in tasks), sum(task.late_rows for task in tasks)
        told += [f"{uid} set {dead:,} rows aside"] if dead else []
        told += [f"{uid} left out {late:,} late rows"] if late else []
    return ", ".join(told)


def last_completed(status: JobStatus) -> CheckpointRecord | None:
    """Return the last checkpoint that was completed, if there is one."""
    return next((record for record in reversed(status.checkpoints) if record.status.value == "completed"), None)


def checkpoint_text(record: CheckpointRecord | None) -> str:
    """Return how long ago a checkpoint was completed, and how long it took."""
    if record is None or record.ended_at_ms is None:
        return "no checkpoint yet"
    ago_s = max(now_ms() - record.ended_at_ms, 0) / 1000
    took_ms = record.ended_at_ms - record.triggered_at_ms
    return f"checkpoint {record.checkpoint_id} {ago_s:,.0f} s ago, took {took_ms} ms"


def _figures(status: JobStatus) -> dict[str, Any]:
    last = last_completed(status)
    return {
        "state": status.state,
        "attempt": status.attempt,
        "restarts": len(status.restarts),
        "checkpoint_id": None if last is None else last.checkpoint_id,
        "tasks": [asdict(task) for task in status.tasks],
    }


def first_line(text: str) -> str:
    """Return the first line of a text."""
    return text.partition("\n")[0]
