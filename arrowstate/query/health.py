"""How the job of a store is: whether it is up, since when and why, by its report and the log, also when it is gone."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from arrowstate.files.subtasks import whole_state
from arrowstate.functions.dead_letters import is_dead_letters
from arrowstate.log.commit_log import CommitLog, History
from arrowstate.log.jobs import ENDED, JobReport, as_json, newest_report, report_of
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import JobDocument, LogEntryDocument

HealthStatus: TypeAlias = Literal[
    "up", "unwell", "starting", "down", "gone", "fenced", "failed", "finished", "stopped", "unknown"
]

_STALE_INTERVALS = 10
"""A newest checkpoint of so many intervals is old."""
_OFTEN, _WITHIN_MS = 3, 600_000
"""So many failures within so long are told of, though the job is up in between."""
_LEASES = 2
"""A job is gone after so many times its lease: so far may the clock of who looks be ahead."""


@dataclass(frozen=True, slots=True)
class Health:
    """How the job of a store is at one moment; see `StateStore.health`.

    Examples
    --------
    >>> import arrowstate
    >>> health = arrowstate.open_store("memory://no-job-example", create=True).health()
    >>> health.status, health.is_ok, health.exit_code
    ('unknown', False, 5)
    """

    status: HealthStatus
    """`up`; `unwell`, which is up with `problems`; `starting`; `down` until its next attempt; `gone` without a sign of
    life; `fenced` by another writer; `failed` for good; `finished` with its input; `stopped` as it was asked;
    `unknown`, if no job has run here."""
    since_ms: int | None
    "Since when it is so, in milliseconds since 1970; None where nobody can tell."
    problems: tuple[str, ...]
    "What is wrong, each in a sentence."
    checked_at_ms: int
    "When this was looked at."
    checkpoint_id: int | None
    "The newest checkpoint of the store."
    committed_at_ms: int | None
    "When it was committed."
    dead_letters: tuple[tuple[str, int], ...]
    "The tables of dead letters in that checkpoint, each with its rows."
    holder: str | None
    "Who runs the job, or did last."
    report: JobReport
    "What the job said last."

    @property
    def is_ok(self) -> bool:
        """Whether nobody needs to look: the job is up without problems, or has ended as it should."""
        return self.status in ("up", "finished", "stopped")

    @property
    def is_up(self) -> bool:
        """Whether the job processes rows."""
        return self.status in ("up", "unwell")

    @property
    def checkpoint_age_ms(self) -> int | None:
        """How old the newest checkpoint is."""
        return None if self.committed_at_ms is None else max(self.checked_at_ms - self.committed_at_ms, 0)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, as `arrowstate status --json` and `/health` give it."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "report"}
        return {
            **own,
            "is_ok": self.is_ok,
            "problems": list(self.problems),
            "checkpoint_age_ms": self.checkpoint_age_ms,
            "dead_letters": dict(self.dead_letters),
            "report": as_json(self.report),
        }

    @property
    def exit_code(self) -> int:
        """What a probe returns: 0 if nobody needs to look, 3 if it is up or starting, 4 if not, 5 if it is unknown."""
        if self.is_ok:
            return 0
        return 5 if self.status == "unknown" else 3 if self.is_up or self.status == "starting" else 4


def health_of(storage: Storage, *, now_ms: int) -> Health:
    """Return how the job of a store is."""
    document = newest_report(storage)
    # The log after the report: a fence above the report's is then no matter of the order in which they were read.
    history = CommitLog(storage).history()
    newest = history.checkpoint
    report = JobReport() if document is None else report_of(document)
    status, since_ms, problems = _judged(document, report, history, newest, now_ms)
    return Health(
        status,
        since_ms,
        tuple(problems),
        now_ms,
        None if newest is None else newest.checkpoint_id,
        None if newest is None else newest.committed_at_ms,
        _dead_letters(storage, newest),
        None if document is None else document.holder,
        report,
    )


def _judged(
    document: JobDocument | None, report: JobReport, history: History, newest: LogEntryDocument | None, now_ms: int
) -> tuple[HealthStatus, int | None, list[str]]:
    """Return how a job is, since when, and what is wrong."""
    if document is None:
        return "unknown", None, ["no job of the runtime has told of itself in this store"]
    if document.state in ENDED:
        ended: HealthStatus = document.state  # type: ignore[assignment]
        return ended, report.since_ms, [report.reason or "it does not say why"] if ended == "failed" else []
    entry = history.newest
    if entry is not None and entry.document.writer_epoch > document.writer_epoch:
        fence = entry.document
        return (
            "fenced",
            None,
            [f"a writer of epoch {fence.writer_epoch} has fenced it, of epoch {document.writer_epoch}"],
        )
    ends_ms = document.written_at_ms + document.lease_ms
    if now_ms > document.written_at_ms + _LEASES * document.lease_ms:
        silent_s = (now_ms - document.written_at_ms) / 1000
        return (
            "gone",
            ends_ms,
            [f"it has given no sign of life for {silent_s:,.0f} s: it was killed, hangs, or does not reach the store"],
        )
    if document.state == "down":
        return "down", report.since_ms, [report.reason or "it does not say why"]
    if document.state != "running":
        return "starting", report.since_ms, ["it is starting"]
    problems = list(_problems(report, newest, document.lease_ms, now_ms))
    return "unwell" if problems else "up", report.since_ms, problems


def _problems(report: JobReport, newest: LogEntryDocument | None, lease_ms: int, now_ms: int) -> list[str]:
    """Return what is wrong with a job that runs."""
    found = []
    if report.failed_in_a_row and report.failed_checkpoints:
        last = report.failed_checkpoints[-1]
        many = (
            "the last checkpoint" if report.failed_in_a_row == 1 else f"the last {report.failed_in_a_row} checkpoints"
        )
        found.append(f"{many} failed; {last.checkpoint_id} {last.status}: {last.reason}")
    if report.interval_ms is not None:
        # A job that has just begun has had no time for one.
        since_ms = max(report.since_ms, 0 if newest is None else newest.committed_at_ms)
        if now_ms - since_ms > max(_STALE_INTERVALS * report.interval_ms, lease_ms):
            age = f"{(now_ms - since_ms) / 1000:,.0f} s"
            found.append(f"no checkpoint for {age}, and one is to come every {report.interval_ms / 1000:g} s")
    failures = [failure for failure in report.failures if failure.at_ms > now_ms - _WITHIN_MS]
    if len(failures) >= _OFTEN:
        found.append(f"it failed {len(failures)} times in the last {_WITHIN_MS // 60_000} minutes: {failures[-1].text}")
    return found


def _dead_letters(storage: Storage, newest: LogEntryDocument | None) -> tuple[tuple[str, int], ...]:
    return tuple(
        (operator.uid, sum(part.rows for part in whole_state(storage, operator.uid, operator.operator_states[0]).parts))
        for operator in (() if newest is None else newest.operators)
        if is_dead_letters(operator)
    )
