"""`arrowstate status`: how the job of a store is, for people and for probes, also when the job is gone."""

from __future__ import annotations

import argparse

from arrowstate.cli.output import print_json, print_narrow_table, say, say_field, time_text
from arrowstate.cli.run_display import first_line
from arrowstate.query.health import Health
from arrowstate.store import open_store


def print_status(options: argparse.Namespace) -> int:
    """Print how the job is; return the exit code for a probe."""
    health = open_store(options.store).health()
    if options.json:
        print_json(health.as_dict())
    else:
        _print(health)
    return health.exit_code


def _print(health: Health) -> None:
    report = health.report
    since = "" if health.since_ms is None else f" since {time_text(health.since_ms)}"
    say(f"{health.status}{since}{_after(health)}")
    for problem in health.problems:
        _say("problem", first_line(problem))
    if health.status == "unknown":
        return
    _say("run by", f"{health.holder}, attempt {report.attempt}, failures since its start: {report.restarts}")
    if health.status == "down" and report.again_at_ms is not None:
        _say("again at", time_text(report.again_at_ms))
    _say("checkpoint", _checkpoint(health))
    if report.failed_checkpoints:
        last = report.failed_checkpoints[-1]
        many = f"{report.failed_count} failed since the start; the last, {last.checkpoint_id} at"
        _say("", f"{many} {time_text(last.ended_at_ms)}, {last.status}: {first_line(last.reason)}")
    if report.failures:
        failure = report.failures[-1]
        _say("last failure", f"{time_text(failure.at_ms)}, attempt {failure.attempt}: {first_line(failure.text)}")
        if failure.row is not None:
            _say("at row", failure.row)
    for table, rows in health.dead_letters:
        _say("dead letters", f"{rows:,} in {table}")
    if report.operators:
        _print_operators(health)


def _say(name: str, text: str) -> None:
    say_field(name, text, label=12)


def _after(health: Health) -> str:
    if health.since_ms is None:
        return ""
    seconds = max(health.checked_at_ms - health.since_ms, 0) // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    parts = [(days, "d"), (hours, "h"), (seconds // 60, "min"), (seconds % 60, "s")]
    shown = [f"{number} {unit}" for number, unit in parts if number][:2]
    return f", for {' '.join(shown)}" if shown else ""


def _checkpoint(health: Health) -> str:
    if health.committed_at_ms is None or health.checkpoint_age_ms is None:
        return "none"
    interval = health.report.interval_ms
    every = "" if interval is None else f", one every {interval / 1000:g} s"
    return f"{health.checkpoint_id}, {health.checkpoint_age_ms / 1000:,.0f} s old{every}"


def _print_operators(health: Health) -> None:
    """Print a row for each operator: how fast, how busy over the last minutes, how late, and what it left out."""
    rows = []
    for item in health.report.operators:
        minutes = item.minutes[-10:]
        busy = sum(minute[1] for minute in minutes) / len(minutes) if minutes else 0.0
        blocked = sum(minute[2] for minute in minutes) / len(minutes) if minutes else 0.0
        lag = None if item.lag_ms is None else f"{item.lag_ms / 1000:,.1f} s"
        if item.behind_rows is not None:
            lag = f"{f'{lag}, ' if lag else ''}{item.behind_rows:,} rows"
        name = f"{item.operator} (source)" if item.is_source else item.operator
        speed = round(item.rows_per_second)
        rows.append(
            (name, speed, f"{busy:.0%}", f"{blocked:.0%}", item.queued_rows, lag, item.late_rows, item.dead_rows)
        )
    columns = ["operator", "rows/s", "busy", "blocked", "waiting", "behind", "late", "set aside"]
    print_narrow_table(columns, rows, drop=["waiting", "rows/s"])
