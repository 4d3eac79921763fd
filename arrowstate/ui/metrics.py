"""`/metrics`: the newest checkpoint of each store, and jobs of this process, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from arrowstate.errors import ArrowStateError
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
    "arrowstate_job_attempt": "How often a running job was started.",
}


def metrics_of(place: Place) -> list[Sample]:
    """Return the samples of a store."""
    labels = {"store": place.url}
    try:
        place.refresh()
    except (ArrowStateError, OSError):
        return [("arrowstate_up", labels, 0)]
    lines = place.log.lines()
    newest = next((line for line in reversed(lines) if line.is_checkpoint), None)
    found: list[Sample] = [("arrowstate_up", labels, 1)]
    if lines:
        found.append(("arrowstate_writer_epoch", labels, lines[-1].writer_epoch))
    if newest is not None:
        found += [(f"arrowstate_checkpoint_{name}", labels, value) for name, value in _of_checkpoint(newest)]
    if place.job is not None:
        status = place.job.status()
        found.append(("arrowstate_job_attempt", labels, status.attempt))
        for task in status.tasks:
            own = {**labels, "operator": task.task, "subtask": str(task.slot)}
            found += [
                ("arrowstate_task_rows_per_second", own, task.rows_per_second),
                ("arrowstate_task_busy_ratio", own, task.busy),
                ("arrowstate_task_blocked_ratio", own, task.blocked),
                ("arrowstate_task_queued_rows", own, task.queued_rows),
            ]
    return found


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
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            lines += [f"{name}{{{_labels(labels)}}} {value:.17g}" for _, labels, value in own]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
