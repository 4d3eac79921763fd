"""The page of a job of the runtime that runs in this process: its graph, its tasks and channels, its restarts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from arrowstate.errors import NotFoundError
from arrowstate.html import graph_svg
from arrowstate.ui.site import Ask

_END_OF_TIME = 1 << 60


def job(ask: Ask) -> dict[str, Any]:
    """Return how the job is at the moment."""
    running = ask.place.job
    if running is None:
        raise NotFoundError(
            f"no job of {ask.place.url} runs in the process of this page; RunningJob.ui() opens the page in the job's"
        )
    status = running.status()
    tasks = [asdict(task) for task in status.tasks]
    channels = [asdict(channel) for channel in status.channels]
    for row in (*tasks, *channels):
        row["has_end_of_time"] = row["watermark"] is not None and row["watermark"] >= _END_OF_TIME
    operators = _operators(tasks)
    return {
        "state": status.state,
        "attempt": status.attempt,
        "failures": list(status.failures),
        "operators": operators,
        "tasks": tasks,
        "channels": channels,
        "restarts": [asdict(item) for item in status.restarts],
        "checkpoints": [
            {
                "checkpoint_id": record.checkpoint_id,
                "status": record.status.value,
                "triggered_at_ms": record.triggered_at_ms,
                "ended_at_ms": record.ended_at_ms,
                "reason": record.reason,
            }
            for record in status.checkpoints[::-1]
        ],
        "svg": _graph(operators, channels),
    }


def _operators(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tasks put together: sums of rows, and the busiest and the most blocked subtask."""
    found: dict[str, dict[str, Any]] = {}
    for task in tasks:
        own = found.setdefault(
            task["task"],
            {
                "operator": task["task"],
                "rows_per_second": 0.0,
                "busy": 0.0,
                "blocked": 0.0,
                "queued_rows": 0,
                "lag_ms": None,
            },
        )
        own["rows_per_second"] += task["rows_per_second"]
        own["queued_rows"] += task["queued_rows"]
        own["busy"] = max(own["busy"], task["busy"])
        own["blocked"] = max(own["blocked"], task["blocked"])
        if task["lag_ms"] is not None:
            own["lag_ms"] = max(own["lag_ms"] or 0, task["lag_ms"])
    return list(found.values())


def _graph(operators: list[dict[str, Any]], channels: list[dict[str, Any]]) -> str:
    edges: dict[tuple[str, str], tuple[float, float]] = {}
    for channel in channels:
        ends = channel["origin"], channel["task"]
        rate, blocked = edges.get(ends, (0.0, 0.0))
        edges[ends] = rate + channel["rows_per_second"], max(blocked, channel["blocked"])
    nodes = [
        (
            item["operator"],
            [f"{item['rows_per_second']:,.0f} rows/s", f"busy {item['busy']:.0%}, blocked {item['blocked']:.0%}"],
            item["busy"],
        )
        for item in operators
    ]
    return graph_svg(nodes, [(*ends, f"{rate:,.0f} rows/s", blocked) for ends, (rate, blocked) in edges.items()])
