"""The reports of jobs: who runs the job of a store, how it is, and what it came to.

A job replaces its report while it runs, which renews its lease. The log alone decides who may commit: the lease tells
those who stand by when the job is dead, and the report tells people how it is, also after its end. Specification:
formats/spec/jobs.md.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import msgspec

from arrowstate.errors import ArrowStateError, CorruptDataError, MissingFileError
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import JobDocument, decode, encode

JOB_FOLDER = "jobs/"
ENDED = ("finished", "stopped", "failed")
"""The states of a job that has ended by itself."""

_PATH = re.compile(r"jobs/([0-9]{20})\.json")


class Failure(msgspec.Struct, frozen=True):
    """What ended an attempt of a job."""

    at_ms: int
    attempt: int
    error: str
    "The class of the error."
    text: str
    row: str | None = None
    "The row with its key and values, where it is known."


class FailedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was given up."""

    checkpoint_id: int
    triggered_at_ms: int
    ended_at_ms: int
    status: str
    "`declined`, `expired`, `failed`, `lost` or `unknown`."
    reason: str


class OperatorReport(msgspec.Struct, frozen=True):
    """How the subtasks of an operator are, put together; rates are of the last moments, numbers since the start."""

    operator: str
    is_source: bool = False
    rows: int = 0
    rows_per_second: float = 0.0
    busy: float = 0.0
    "The share of the time that the busiest subtask is in its function, 0 to 1."
    blocked: float = 0.0
    "The share of the time in which the most blocked subtask has no room for its output, 0 to 1."
    queued_rows: int = 0
    lag_ms: int | None = None
    "By how much event time is behind the clock; None where there is no watermark."
    behind_rows: int | None = None
    "Rows of a source that are there and not read; None where it does not tell."
    late_rows: int = 0
    dead_rows: int = 0
    subtasks: tuple[tuple[int, float, float, float, int], ...] = ()
    "Of each subtask its number, rows per second, busy, blocked and queued rows."
    minutes: tuple[tuple[int, float, float], ...] = ()
    "Of each of the last sixty minutes its beginning in milliseconds, and the mean of busy and blocked."


class JobReport(msgspec.Struct, frozen=True):
    """How a job is; see `JobDocument`. Each list is bounded, however long the job runs."""

    started_at_ms: int = 0
    since_ms: int = 0
    "Since when it is in its state."
    reason: str | None = None
    "Why it is down, or has ended."
    again_at_ms: int | None = None
    "When its next attempt begins."
    attempt: int = 0
    restarts: int = 0
    "How many attempts have failed since the start."
    interval_ms: int | None = None
    "Between two checkpoints."
    completed_id: int | None = None
    completed_at_ms: int | None = None
    failed_in_a_row: int = 0
    "How many checkpoints have failed since the last that was completed."
    failed_count: int = 0
    "How many checkpoints have failed since the start."
    failed_checkpoints: tuple[FailedCheckpoint, ...] = ()
    "The last twenty, oldest first, those of earlier starts among them."
    failures: tuple[Failure, ...] = ()
    "The last twenty, oldest first, those of earlier starts among them."
    operators: tuple[OperatorReport, ...] = ()


def report_of(document: JobDocument) -> JobReport:
    """Return how a job is; of a report that another version wrote, what is said at any rate."""
    try:
        return msgspec.convert(document.report, JobReport)
    except msgspec.ValidationError:
        return JobReport()


def put_report(storage: Storage, document: JobDocument) -> None:
    """Replace the report of a job."""
    storage.put_hint(_path_of(document.writer_epoch), encode(document))


def read_report(storage: Storage, epoch: int) -> JobDocument | None:
    """Return the report of the job with a writer epoch; None if there is none, or it is damaged."""
    path = _path_of(epoch)
    try:
        document = decode(storage.read(path), JobDocument, path=path)
    except (MissingFileError, CorruptDataError):
        return None
    return document if document.writer_epoch == epoch else None


def newest_report(storage: Storage) -> JobDocument | None:
    """Return the report of the job that began last; None if there is none."""
    while True:
        epochs = _epochs(storage)
        for epoch in reversed(epochs):
            found = read_report(storage, epoch)
            if found is not None:
                return found
        # What is gone was deleted by a job that began meanwhile.
        if not epochs or _epochs(storage) == epochs:
            return None


def drop_reports(storage: Storage, *, below: int | None = None) -> None:
    """Delete the reports of jobs with a lower epoch, or all."""
    for epoch in _epochs(storage):
        if below is None or epoch < below:
            with suppress(ArrowStateError, OSError):
                storage.delete(_path_of(epoch))


def as_json(report: JobReport) -> dict[str, Any]:
    """Return a report as a document has it."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    return found


def _path_of(epoch: int) -> str:
    return f"{JOB_FOLDER}{epoch:020d}.json"


def _epochs(storage: Storage) -> list[int]:
    found = map(_PATH.fullmatch, storage.list(JOB_FOLDER))
    return sorted(int(match[1]) for match in found if match is not None)
