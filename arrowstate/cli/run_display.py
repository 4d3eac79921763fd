"""How `arrowstate run` shows a job: a table on a terminal, lines elsewhere, objects for machines."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from arrowstate.cli.output import print_json_line
from arrowstate.clock import now_ms

if TYPE_CHECKING:
    from arrowstate.checkpoints.coordination import CheckpointRecord
    from arrowstate.runtime.running import RunningJob
    from arrowstate.runtime.status import JobStatus, TaskStatus


class Display(Protocol):
    """What shows how a job is."""

    def show(self, status: JobStatus) -> None:
        """Show how it is now."""

    def event(self, event: str, text: str, **more: Any) -> None:
        """Tell of something that has happened."""


@contextmanager
def display_of(running: RunningJob, options: argparse.Namespace) -> Iterator[Display]:
    """Give the display that fits the options and the terminal."""
    console = Console(stderr=True)
    if options.json:
        yield _Objects(running.store.url, options.every)
    elif not console.is_terminal:
        yield _Lines(running.store.url, options.every)
    else:
        # What sinks print appears above it, if it would be on the same terminal.
        both = sys.stdout.isatty()
        with Live(console=console, auto_refresh=False, redirect_stdout=both, transient=True) as live:
            yield _Table(live, running.store.url)


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
            yield status.state, _down_text(status) or _STATES[status.state].format(attempt=status.attempt)
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


class _Lines:
    """A line for what happens, and for the figures from time to time, on stderr."""

    def __init__(self, url: str, every_s: float) -> None:
        self._changes = _Changes(every_s)
        self.event("starting", f"starting on {url}")

    def show(self, status: JobStatus) -> None:
        for event, text in self._changes.of(status):
            self.event(event, text)

    def event(self, event: str, text: str, **_: Any) -> None:  # noqa: ARG002
        # The rest of an error is in the log, which is on stderr too.
        print(f"{time.strftime('%H:%M:%S')} {_first_line(text)}", file=sys.stderr, flush=True)


class _Objects:
    """A JSON object in a line for each of them, on stdout."""

    def __init__(self, url: str, every_s: float) -> None:
        self._changes = _Changes(every_s)
        self.event("starting", f"starting on {url}", attempt=1)

    def show(self, status: JobStatus) -> None:
        for event, text in self._changes.of(status):
            if event == "status":
                self.event("status", "", **_figures(status))
            else:
                self.event(event, text, attempt=status.attempt)

    def event(self, event: str, text: str, **more: Any) -> None:
        said = {"text": text} if text else {}
        print_json_line({"event": event, "at_ms": now_ms(), **said, **more})


class _Table:
    """A table that changes in place, on stderr."""

    def __init__(self, live: Live, url: str) -> None:
        self._live = live
        self._url = url
        self._note = "Ctrl-C stops it with a savepoint"

    def show(self, status: JobStatus) -> None:
        head = Text(f"{status.state}, attempt {status.attempt}, {self._url}", style="bold")
        lines = [Text(_checkpoint_text(_last_completed(status)))]
        down = _down_text(status)
        if down:
            lines.append(Text(down, style="bold red"))
        elif status.restarts:
            lines.append(Text(f"{len(status.restarts)} restarts, the last: {_first_line(status.restarts[-1].reason)}"))
        left_out = _left_out_text(status)
        if left_out:
            lines.append(Text(left_out, style="yellow"))
        lines.append(Text(self._note, style="dim"))
        self._live.update(Group(head, _tasks_table(status, self._live.console.width), *lines), refresh=True)

    def event(self, event: str, text: str, **_: Any) -> None:  # noqa: ARG002
        self._note = text


def _tasks_table(status: JobStatus, width: int) -> Table:
    """Return the table of the operators; where there is little room, without what says least."""
    names = ["operator", "rows/s in", "rows/s out", "rows in", "queued", "busy", "blocked", "idle", "lag"]
    rows = [
        (
            uid if len(tasks) == 1 else f"{uid} ({len(tasks)})",
            f"{sum(task.rows_per_second for task in tasks):,.0f}",
            f"{sum(task.rows_out_per_second for task in tasks):,.0f}",
            f"{sum(task.rows for task in tasks):,}",
            f"{sum(task.queued_rows for task in tasks):,}",
            # The slot that is worst off says what limits the job.
            f"{max(task.busy for task in tasks):.0%}",
            f"{max(task.blocked for task in tasks):.0%}",
            f"{min(task.idle for task in tasks):.0%}",
            _lag_text(tasks),
        )
        for uid, tasks in _by_operator(status).items()
    ]
    left = list(range(len(names)))
    for dropped in (7, 2, 3, 6, 4):
        if sum(max(cell_len(line[number]) for line in (names, *rows)) + 3 for number in left) < width:
            break
        left.remove(dropped)
    table = Table()
    for number in left:
        table.add_column(names[number], justify="right" if number else "left", no_wrap=number > 0)
    for row in rows:
        table.add_row(*(escape(row[number]) for number in left))
    return table


def _by_operator(status: JobStatus) -> dict[str, list[TaskStatus]]:
    found: dict[str, list[TaskStatus]] = {}
    for task in status.tasks:
        found.setdefault(task.task, []).append(task)
    return found


def _lag_text(tasks: list[TaskStatus]) -> str:
    lags = [task.lag_ms for task in tasks if task.lag_ms is not None]
    return f"{max(lags) / 1000:,.1f} s" if lags else ""


def _line(status: JobStatus) -> str:
    """Return the figures in one line: rows a second of each operator, who is busiest, and the last checkpoint."""
    down = _down_text(status)
    if down:
        return f"{down}; {_checkpoint_text(_last_completed(status))}"
    speeds = {uid: sum(task.rows_per_second for task in tasks) for uid, tasks in _by_operator(status).items()}
    rates = ", ".join(f"{uid} {speed:,.0f} rows/s" for uid, speed in speeds.items())
    busiest = max(status.tasks, key=lambda task: task.busy, default=None)
    busy = status.state if busiest is None else f"{rates}; busiest is {busiest.task}, {busiest.busy:.0%}"
    left_out = _left_out_text(status)
    return f"{busy}; {_checkpoint_text(_last_completed(status))}{left_out and '; '}{left_out}"


def _down_text(status: JobStatus) -> str:
    """Return when a job that is down starts again, and why it is down; nothing for one that is not."""
    last = status.restarts[-1] if status.restarts else None
    if status.state not in ("failing", "waiting") or last is None or last.again_at_ms is None:
        return ""
    seconds = max(last.again_at_ms - now_ms(), 0) / 1000
    return f"down, again in {seconds:,.0f} s: {_first_line(last.reason)}"


def _left_out_text(status: JobStatus) -> str:
    """Return what operators set aside or left out, nothing if they took all rows."""
    told = []
    for uid, tasks in _by_operator(status).items():
        dead, late = sum(task.dead_rows for task in tasks), sum(task.late_rows for task in tasks)
        told += [f"{uid} set {dead:,} rows aside"] if dead else []
        told += [f"{uid} left out {late:,} late rows"] if late else []
    return ", ".join(told)


def _last_completed(status: JobStatus) -> CheckpointRecord | None:
    return next((record for record in reversed(status.checkpoints) if record.status.value == "completed"), None)


def _checkpoint_text(record: CheckpointRecord | None) -> str:
    if record is None or record.ended_at_ms is None:
        return "no checkpoint yet"
    ago_s = max(now_ms() - record.ended_at_ms, 0) / 1000
    took_ms = record.ended_at_ms - record.triggered_at_ms
    return f"checkpoint {record.checkpoint_id} {ago_s:,.0f} s ago, took {took_ms} ms"


def _figures(status: JobStatus) -> dict[str, Any]:
    last = _last_completed(status)
    return {
        "state": status.state,
        "attempt": status.attempt,
        "restarts": len(status.restarts),
        "checkpoint_id": None if last is None else last.checkpoint_id,
        "tasks": [asdict(task) for task in status.tasks],
    }


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
