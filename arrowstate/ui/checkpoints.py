"""The page of all checkpoints: what each took, as figures for charts and a table, by the log alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from arrowstate.errors import ArrowStateError
from arrowstate.ui.health import health
from arrowstate.ui.log_view import LogLine
from arrowstate.ui.site import Ask

_PAGE = 50
_MOST_POINTS = 20_000
_LABEL_CHARACTERS = 300
_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
_PERCENTILES = (50, 90, 99, 100)

_Figure = Callable[[LogLine], float | None]
_FIGURES: dict[str, tuple[str, _Figure]] = {
    "duration_ms": ("duration", lambda line: line.duration_ms),
    "freeze_ms": ("freeze", lambda line: _ms(line.sync_us)),
    "write_ms": ("write", lambda line: _ms(line.async_us)),
    "alignment_ms": ("alignment", lambda line: _ms(line.alignment_us)),
    "bytes_written": ("bytes new", lambda line: line.bytes_written),
    "bytes_total": ("bytes in all", lambda line: line.bytes_total),
    "rows": ("rows", lambda line: line.rows),
    "watermark_lag_ms": ("watermark lag", lambda line: line.watermark_lag_ms),
}


def _ms(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1000


def checkpoints(ask: Ask) -> dict[str, Any]:
    """Return a page of checkpoints, newest first, with percentiles over all that are known."""
    place = ask.place
    place.refresh()
    lines = place.log.lines()
    before = ask.number("before", 1 << 53)
    shown = [line for line in reversed(lines) if line.number < before][: _PAGE + 1]
    tags, pins_problems = _tags(ask)
    newest = next((line for line in reversed(lines) if line.is_checkpoint), None)
    return {
        "version": place.log.version,
        "known": len(lines),
        "entries": max(place.log.total, len(lines)),
        "is_loading": place.log.is_loading,
        "problems": [text for text in (place.log.damage, place.log.loss, place.log.problem, *pins_problems) if text],
        "is_newest": before == 1 << 53,
        "health": _health(ask) if before == 1 << 53 else None,
        "older": shown[_PAGE - 1].number if len(shown) > _PAGE else None,
        "newest": None if newest is None else newest.checkpoint_id,
        "a_day_before": a_day_before(lines, newest),
        "percentiles": _percentiles(lines),
        "entries_shown": [_row(line, tags, lines) for line in shown[:_PAGE]],
        "has_batches": any(line.batch for line in lines[-_PAGE:]),
    }


def _health(ask: Ask) -> dict[str, Any] | None:
    """Return how the job is, for the first part of the page; None where that cannot be read, which the part says."""
    try:
        return health(ask)
    except (ArrowStateError, OSError):
        return None


def _tags(ask: Ask) -> tuple[dict[int, list[str]], list[str]]:
    """Return the tags by the id of their checkpoint, and which cannot be read."""
    tags: dict[int, list[str]] = {}
    pins, problems = ask.place.pins()
    for pin in pins:
        if pin.tag is not None:
            tags.setdefault(pin.checkpoint_id, []).append(pin.tag)
    return tags, problems


def _row(line: LogLine, tags: dict[int, list[str]], lines: Sequence[LogLine]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "number": line.number,
        "kind": line.kind,
        "checkpoint_id": line.checkpoint_id,
        "writer_epoch": line.writer_epoch,
        "started_at_ms": line.started_at_ms,
        "committed_at_ms": line.committed_at_ms,
        **{name: figure(line) for name, (_, figure) in _FIGURES.items()},
        "files_written": line.files_written,
        "subtasks": line.subtasks,
        "watermark": line.watermark,
        "properties": line.properties,
        "problem": line.problem,
        "tags": [] if line.checkpoint_id is None else tags.get(line.checkpoint_id, []),
    }
    if line.kind == "fence":
        row |= _around(line, lines)
    return row


def _around(fence: LogLine, lines: Sequence[LogLine]) -> dict[str, Any]:
    """Return the checkpoints before and after a fence: what they differ by is what a start changed."""
    before = next((line for line in reversed(lines) if line.number < fence.number and line.is_checkpoint), None)
    after = next((line for line in lines if line.number > fence.number and line.is_checkpoint), None)
    return {
        "before_id": None if before is None else before.checkpoint_id,
        "after_id": None if after is None else after.checkpoint_id,
    }


def a_day_before(lines: Sequence[LogLine], newest: LogLine | None) -> int | None:
    """Return the checkpoint as of a day before the newest one; None where none is as old, or that cannot be told."""
    if newest is None:
        return None
    then = newest.committed_at_ms - _DAY_MS
    found = next((line for line in reversed(lines) if line.is_checkpoint and line.committed_at_ms <= then), None)
    if found is None or found.checkpoint_id == newest.checkpoint_id:
        return None
    following = next((line for line in lines if line.number > found.number), newest)
    # Where the entry after it was collected, it may be one of long before.
    is_known = following.number == found.number + 1 or then - found.committed_at_ms <= _HOUR_MS
    return found.checkpoint_id if is_known else None


def _percentiles(lines: Sequence[LogLine]) -> list[dict[str, Any]]:
    own = [line for line in lines if line.kind == "checkpoint"]
    found = []
    for name, (label, figure) in _FIGURES.items():
        values = [value for value in map(figure, own) if value is not None]
        if values:
            cuts = np.percentile(np.array(values), _PERCENTILES, method="higher").tolist()
            found.append(
                {"figure": name, "label": label, "count": len(values)}
                | {
                    f"p{percent}" if percent < 100 else "max": cut
                    for percent, cut in zip(_PERCENTILES, cuts, strict=True)
                }
            )
    return found


def head(ask: Ask) -> dict[str, Any]:
    """Return whether there is something new: for whoever asks every other second."""
    ask.place.refresh()
    lines = ask.place.log.lines()
    newest = next((line for line in reversed(lines) if line.is_checkpoint), None)
    return {
        "version": ask.place.log.version,
        "newest": None if newest is None else newest.checkpoint_id,
        "committed_at_ms": None if newest is None else newest.committed_at_ms,
        "known": len(lines),
        "entries": max(ask.place.log.total, len(lines)),
        "is_loading": ask.place.log.is_loading,
    }


def live(ask: Ask) -> dict[str, Any]:
    """Return the newest checkpoints, or that nothing has changed since a version."""
    ask.place.refresh()
    if ask.text("version") == ask.place.log.version:
        return {"unchanged": True}
    return checkpoints(ask)


def series(ask: Ask) -> dict[str, Any]:
    """Return the figures of all checkpoints by column, oldest first, and what is marked.

    Marks are writers that began, savepoints, tags, checkpoints that failed and failures of the job.
    """
    ask.place.refresh()
    lines = ask.place.log.lines()
    tags, _ = _tags(ask)
    own = [line for line in lines if line.kind in ("checkpoint", "savepoint")][-_MOST_POINTS:]
    since = own[0].committed_at_ms if own else 0
    marks = [
        {"at_ms": line.committed_at_ms, "kind": "fence", "label": f"writer {line.writer_epoch} begins"}
        for line in lines
        if line.kind == "fence" and line.committed_at_ms >= since
    ]
    for line in own:
        if line.kind == "savepoint":
            marks.append(
                {"at_ms": line.committed_at_ms, "kind": "savepoint", "label": f"savepoint {line.checkpoint_id}"}
            )
        marks += [
            {"at_ms": line.committed_at_ms, "kind": "tag", "label": tag}
            for tag in tags.get(line.checkpoint_id or 0, ())
        ]
    marks += [mark for mark in _failures(ask) if mark["at_ms"] >= since]
    return {
        "version": ask.place.log.version,
        "is_loading": ask.place.log.is_loading,
        "checkpoint_id": [line.checkpoint_id for line in own],
        "committed_at_ms": [line.committed_at_ms for line in own],
        **{name: [figure(line) for line in own] for name, (_, figure) in _FIGURES.items()},
        "marks": marks,
    }


def _failures(ask: Ask) -> list[dict[str, Any]]:
    """Return what the last report of the job says of checkpoints that failed, and of its own failures, as marks."""
    try:
        report = ask.place.health().report
    except (ArrowStateError, OSError):
        # The first part of the page says it.
        return []
    failed = [
        (record.ended_at_ms, "failed", f"checkpoint {record.checkpoint_id} {record.status}: {record.reason}")
        for record in report.failed_checkpoints
    ]
    restarts = [(item.at_ms, "restart", f"attempt {item.attempt} failed: {item.text}") for item in report.failures]
    return [
        {"at_ms": at_ms, "kind": kind, "label": label[:_LABEL_CHARACTERS]}
        for at_ms, kind, label in (*failed, *restarts)
    ]


def batches(ask: Ask) -> dict[str, Any]:
    """Return the micro-batches of a Spark query that the log knows, newest first."""
    ask.place.refresh()
    before = ask.number("before", 1 << 53)
    own = [line for line in reversed(ask.place.log.lines()) if line.batch and line.number < before]
    shown, seen = [], set()
    for line in own:
        assert line.batch is not None, "they were picked by it"
        name = line.batch["query_id"], line.batch["batch_id"]
        # What is made of a checkpoint, such as its compaction, says what that said of its micro-batch.
        if name not in seen and line.kind == "checkpoint":
            seen.add(name)
            took = line.batch.get("duration_ms")
            rows = line.batch.get("rows")
            rate = rows * 1000 / took if rows is not None and took else None
            shown.append(
                {
                    "checkpoint_id": line.checkpoint_id,
                    "committed_at_ms": line.committed_at_ms,
                    **line.batch,
                    "rows_per_second": rate,
                }
            )
        if len(shown) > _PAGE:
            break
    older = None
    if len(shown) > _PAGE:
        last = shown[_PAGE - 1]["checkpoint_id"]
        older = next(line.number for line in own if line.checkpoint_id == last and line.kind == "checkpoint")
    return {"batches": shown[:_PAGE], "older": older}


def stores(ask: Ask) -> dict[str, Any]:
    """Return the newest checkpoint of each store; one that cannot be read says why."""
    found = []
    for place in ask.site.places:
        row: dict[str, Any] = {"number": place.number, "url": place.url, "runs_here": place.job is not None}
        try:
            entry = place.store.latest().entry
        except (ArrowStateError, OSError) as error:
            row["problem"] = str(error)
        else:
            row |= {
                "checkpoint_id": entry.checkpoint_id,
                "committed_at_ms": entry.committed_at_ms,
                "rows": sum(item.live_rows(state.name) for item in entry.operators for state in item.states),
                "operators": [item.uid for item in entry.operators],
            }
        found.append(row)
    return {"stores": found}
