"""The table by which `arrowstate run` shows a job on a terminal; it needs the package rich."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from arrowstate.cli.run_display import (
    by_operator,
    checkpoint_text,
    down_text,
    first_line,
    last_completed,
    left_out_text,
)

if TYPE_CHECKING:
    from arrowstate.runtime.status import JobStatus, TaskStatus


@contextmanager
def live_table(url: str) -> Iterator[LiveTable]:
    """Give a table on stderr of the job of a store."""
    # What sinks print appears above it, if it would be on the same terminal.
    both = sys.stdout.isatty()
    with Live(console=Console(stderr=True), auto_refresh=False, redirect_stdout=both, transient=True) as live:
        yield LiveTable(live, url)


class LiveTable:
    """A table that changes in place, on stderr."""

    def __init__(self, live: Live, url: str) -> None:
        self._live = live
        self._url = url
        self._note = "Ctrl-C stops it with a savepoint"

    def show(self, status: JobStatus) -> None:
        """Show how the job is now."""
        head = Text(f"{status.state}, attempt {status.attempt}, {self._url}", style="bold")
        lines = [Text(checkpoint_text(last_completed(status)))]
        down = down_text(status)
        if down:
            lines.append(Text(down, style="bold red"))
        elif status.restarts:
            lines.append(Text(f"{len(status.restarts)} restarts, the last: {first_line(status.restarts[-1].reason)}"))
        left_out = left_out_text(status)
        if left_out:
            lines.append(Text(left_out, style="yellow"))
        lines.append(Text(self._note, style="dim"))
        self._live.update(Group(head, tasks_table(status, self._live.console.width), *lines), refresh=True)

    def event(self, event: str, text: str, **_: Any) -> None:  # noqa: ARG002
        """Tell of something that has happened, below the table."""
        self._note = text


def tasks_table(status: JobStatus, width: int) -> Table:
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
        for uid, tasks in by_operator(status).items()
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


def _lag_text(tasks: list[TaskStatus]) -> str:
    lags = [task.lag_ms for task in tasks if task.lag_ms is not None]
    return f"{max(lags) / 1000:,.1f} s" if lags else ""
