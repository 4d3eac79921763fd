"""`/metrics`: the newest checkpoint of each store, and how its job is, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from arrowstate.errors import ArrowStateError
from arrowstate.log.entries import STORE_PATH
from arrowstate.query.health import Health
from arrowstate.ui.log_view import LogLine
from arrowstate.ui.site import Place

Sample = tuple[str, Mapping[str, str], float]

_HELP = {
    "arrowstate_up": "Whether the log of the store could be read.",
    "arrowstate_checkpoint_id": "The id of the newest checkpoint.",
    "arrowstate_checkpoint_committed_timestamp_seconds": "When the newest checkpoint was committed.",
    "arrowstate_checkpoint_duration_seconds": "From the trigger to the commit of the newest checkpoint.",
    "arrowstate_checkpoint_sync_seconds": "What freezing took in the slowest subtask of the newest checkpoint.",
    "arrowstate_checkpoint_async_seconds": "What writing took in the slowest subtask of the newest checkpoint.",
    "arrowstate_checkpoint_alignment_seconds": "What alignment took in the slowest subtask of the newest checkpoint.",
    "arrowstate_checkpoint_written_bytes": "Bytes written for the newest checkpoint.",
    "arrowstate_checkpoint_bytes": "Bytes that the newest checkpoint refers to.",
    "arrowstate_checkpoint_rows": "Live rows of the newest checkpoint.",
    "arrowstate_checkpoint_watermark_lag_seconds": "How far the watermark was behind the newest checkpoint.",
    "arrowstate_writer_epoch": "The epoch of the writer of the newest entry of the log.",
    "arrowstate_task_rows_per_second": "Rows that a subtask of a running job takes.",
    "arrowstate_task_busy_ratio": "The part of the time that a subtask is in its function.",
    "arrowstate_task_blocked_ratio": "The part of the time that a subtask has no room for what it gives out.",
    "arrowstate_task_queued_rows": "Rows that wait in the channels of a subtask.",
    "arrowstate_job_attempt": "How often a job was started by its restart strategy, including the first time.",
    "arrowstate_job_ok": "Whether nobody needs to look: the job is up without problems, or has ended as it should.",
    "arrowstate_job_up": "Whether the job processes rows.",
    "arrowstate_job_status": "1 for the status of the job that is in the label.",
    "arrowstate_job_since_timestamp_seconds": "Since when the job has its status.",
    "arrowstate_job_checkpoint_interval_seconds": "The time between two checkpoints of the job.",
    "arrowstate_job_failures_total": "Attempts that failed since the job was started.",
    "arrowstate_job_last_failure_timestamp_seconds": "When the last attempt failed, of earlier starts too.",
    "arrowstate_job_failed_checkpoints_total": "Checkpoints that failed since the job was started.",
    "arrowstate_job_failed_checkpoints_in_a_row": "Checkpoints that failed since the last that was completed.",
    "arrowstate_operator_late_rows_total": "Rows that came too late for their windows since the job was started.",
    "arrowstate_operator_dead_rows_total": "Rows that were set aside as dead letters since the job was started.",
    "arrowstate_dead_letters_rows": "Rows of a table of dead letters in the newest checkpoint.",
    "arrowstate_source_lag_seconds": "By how much the event time of a source is behind the clock.",
}


def metrics_of(place: Place) -> list[Sample]:
    """Return the samples of a store."""
    labels = {"store": place.url}
    try:
        place.refresh()
        lines = place.log.lines()
        # Without an entry the folder may be gone, as with its disk: a list of what is not there is empty.
        is_there = bool(lines) or place.store.storage.exists(STORE_PATH)
    except (ArrowStateError, OSError):
        is_there = False
    if not is_there:
        return [("arrowstate_up", labels, 0)]
    newest = next((line for line in reversed(lines) if line.is_checkpoint), None)
    found: list[Sample] = [("arrowstate_up", labels, 1)]
    if lines:
        found.append(("arrowstate_writer_epoch", labels, lines[-1].writer_epoch))
    if newest is not None:
        found += [(f"arrowstate_checkpoint_{name}", labels, value) for name, value in _of_checkpoint(newest)]
    try:
        health = place.health()
    except (ArrowStateError, OSError):
        # The newest entry or the report is damaged: whatever the job does, somebody needs to look.
        return [*found, ("arrowstate_job_ok", labels, 0), ("arrowstate_job_up", labels, 0)]
    found += _of_job(health, labels)
    found += _of_tasks(health, labels) if place.job is None else _of_running(place.job.status(), labels)
    return found


def _of_job(health: Health, labels: Mapping[str, str]) -> Iterator[Sample]:
    """Yield how the job of a store is, as it said last."""
    report = health.report
    if health.status == "unknown":
        return
    yield "arrowstate_job_ok", labels, health.is_ok
    yield "arrowstate_job_up", labels, health.is_up
    yield "arrowstate_job_status", {**labels, "status": health.status}, 1
    figures = {
        "since_timestamp_seconds": _seconds(health.since_ms, 1000),
        "checkpoint_interval_seconds": _seconds(report.interval_ms, 1000),
        "failures_total": report.restarts,
        "last_failure_timestamp_seconds": report.failures[-1].at_ms / 1000 if report.failures else None,
        "failed_checkpoints_total": report.failed_count,
        "failed_checkpoints_in_a_row": report.failed_in_a_row,
    }
    yield from ((f"arrowstate_job_{name}", labels, value) for name, value in figures.items() if value is not None)
    for table, rows in health.dead_letters:
        yield "arrowstate_dead_letters_rows", {**labels, "table": table}, rows
    for item in report.operators:
        own = {**labels, "operator": item.operator}
        yield "arrowstate_operator_late_rows_total", own, item.late_rows
        yield "arrowstate_operator_dead_rows_total", own, item.dead_rows
        if item.is_source and item.lag_ms is not None:
            yield "arrowstate_source_lag_seconds", own, item.lag_ms / 1000
        if item.behind_rows is not None:
            yield "arrowstate_source_behind_rows", own, item.behind_rows


def _of_tasks(health: Health, labels: Mapping[str, str]) -> Iterator[Sample]:
    """Yield how the subtasks are, as the job said last; of a job that is not up nobody knows."""
    if health.status != "unknown":
        yield "arrowstate_job_attempt", labels, health.report.attempt
    for item in health.report.operators if health.is_up else ():
        for subtask, *figures in item.subtasks:
            yield from _of_task(labels, item.operator, subtask, *figures)


def _of_running(status: Any, labels: Mapping[str, str]) -> Iterator[Sample]:
    """Yield how the subtasks of a job of this process are."""
    yield "arrowstate_job_attempt", labels, status.attempt
    for task in status.tasks:
        yield from _of_task(
            labels, task.task, task.slot, task.rows_per_second, task.busy, task.blocked, task.queued_rows
        )


def _of_task(labels: Mapping[str, str], operator: str, subtask: int, *figures: float) -> Iterator[Sample]:
    own = {**labels, "operator": operator, "subtask": str(subtask)}
    names = ("rows_per_second", "busy_ratio", "blocked_ratio", "queued_rows")
    yield from ((f"arrowstate_task_{name}", own, value) for name, value in zip(names, figures, strict=True))


def _of_checkpoint(line: LogLine) -> Iterator[tuple[str, float]]:
    figures = {
        "id": line.checkpoint_id,
        "committed_timestamp_seconds": line.committed_at_ms / 1000,
        "duration_seconds": line.duration_ms / 1000,
        "sync_seconds": _seconds(line.sync_us, 1_000_000),
        "async_seconds": _seconds(line.async_us, 1_000_000),
        "alignment_seconds": _seconds(line.alignment_us, 1_000_000),
        "written_bytes": line.bytes_written,
        "bytes": line.bytes_total,
        "rows": line.rows,
        "watermark_lag_seconds": _seconds(line.watermark_lag_ms, 1000),
    }
    return ((name, value) for name, value in figures.items() if value is not None)


def _seconds(value: int | None, parts: int) -> float | None:
    return None if value is None else value / parts


def metrics_text(samples: list[Sample]) -> str:
    """Return samples in the text format of Prometheus."""
    lines = []
    for name, text in _HELP.items():
        own = [sample for sample in samples if sample[0] == name]
        if own:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{_labels(labels)}}} {value:.17g}" for _, labels, value in own]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
