"""`/health` for probes, and the first part of the page: how the job of a store is."""

from __future__ import annotations

from typing import Any

from arrowstate.html import load_svg
from arrowstate.log.jobs import OperatorReport
from arrowstate.query.health import Health
from arrowstate.ui.site import Ask


def health(ask: Ask) -> dict[str, Any]:
    """Return how the job of a store is, for the page."""
    found = ask.place.health()
    return {**told(ask.place.url, found), "loads": [_load(item) for item in found.report.operators]}


def told(url: str, found: Health) -> dict[str, Any]:
    """Return how the job of a store is, for a probe that may see all."""
    return {"url": url, **found.as_dict()}


def _load(item: OperatorReport) -> dict[str, Any]:
    """Return how an operator is, with a picture of how busy and how blocked it was in each of the last minutes."""
    label = f"{item.operator} in the last {len(item.minutes)} minutes: busy above the line, blocked below"
    return {
        "operator": item.operator,
        "is_source": item.is_source,
        "rows_per_second": item.rows_per_second,
        "busy": item.busy,
        "blocked": item.blocked,
        "lag_ms": item.lag_ms,
        "behind_rows": item.behind_rows,
        "late_rows": item.late_rows,
        "dead_rows": item.dead_rows,
        "svg": load_svg([(busy, blocked) for _, busy, blocked in item.minutes], label=label),
    }
