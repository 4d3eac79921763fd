"""What a job says of itself in its store, beside its work: the report, and with it the lease.

The report is made between two events of the coordinator. So a coordinator that hangs renews nothing, and those who
stand by take over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from arrowstate.checkpoints.coordination import CheckpointRecord, Status
from arrowstate.clock import has_passed
from arrowstate.errors import ArrowStateError, FencedError, JobFailedError, UserFunctionError
from arrowstate.functions.failing import storable_text
from arrowstate.log.jobs import (
    ENDED,
    FailedCheckpoint,
    Failure,
    JobReport,
    OperatorReport,
    as_json,
)
from arrowstate.runtime.lease import JobLease
from arrowstate.runtime.status import JobStatus, TaskStatus
from arrowstate.shown import error_text

_KEPT = 20
"""Failures, and failed checkpoints, that a report has."""
_LONGEST_TEXT = 4_000
_MINUTES = 60
_RENEWALS = 3
"""A lease is renewed so many times in the time that it lasts."""
_LOOK_S = 1.0
"""A job is looked at this often; what it has become is written at once."""

_FAILED = (Status.DECLINED, Status.EXPIRED, Status.FAILED, Status.LOST, Status.UNKNOWN)

_logger = logging.getLogger("arrowstate.runtime")


@dataclass(frozen=True, slots=True)
class Look:
    """A job at one moment."""

    status: JobStatus
    failures: tuple[tuple[int, BaseException], ...]
    "The last times and errors, oldest first."
    error: BaseException | None
    "Why it failed for good."


@dataclass(slots=True)
class _Load:
    """How busy an operator was in each of the last minutes."""

    minute_ms: int = 0
    busy: float = 0.0
    blocked: float = 0.0
    looks: int = 0
    past: list[tuple[int, float, float]] = field(default_factory=list)

    def add(self, now_ms: int, busy: float, blocked: float) -> tuple[tuple[int, float, float], ...]:
        """Take note of a moment; return the minutes up to it."""
        minute_ms = now_ms // 60_000 * 60_000
        if minute_ms != self.minute_ms:
            self.past = [*self.past, *self._current()][-(_MINUTES - 1) :]
            self.minute_ms, self.busy, self.blocked, self.looks = minute_ms, 0.0, 0.0, 0
        self.busy += busy
        self.blocked += blocked
        self.looks += 1
        return (*self.past, *self._current())

    def _current(self) -> list[tuple[int, float, float]]:
        if not self.looks:
            return []
        return [(self.minute_ms, round(self.busy / self.looks, 3), round(self.blocked / self.looks, 3))]


class Account:
    """Makes reports of a job: what it is now, and what it came to since its start. One thread at a time uses it."""

    def __init__(self, before: JobReport, interval_ms: int | None, sources: Iterable[str], now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._sources = frozenset(sources)
        self._started_ms = self._since_ms = now_ms
        self._state = ""
        self._restarts = 0
        self._failures = list(before.failures)
        self._failed_checkpoints = list(before.failed_checkpoints)
        self._failed_count = 0
        self._last_error: BaseException | None = None
        "The last failure that is in the report."
        self._seen: frozenset[tuple[int, int]] = frozenset()
        "The checkpoints of the last look, each by its id and when it began."
        self._attempt = 0
        self._rows: dict[str, tuple[int, int]] = {}
        "Late and dead rows of the operators in this attempt."
        self._rows_before: dict[str, tuple[int, int]] = {}
        self._loads: dict[str, _Load] = {}

    def report(self, look: Look, now_ms: int) -> tuple[str, JobReport]:
        """Return the state of a job, and its report."""
        status = look.status
        state = _state_of(status)
        if state != self._state:
            self._state, self._since_ms = state, now_ms
        self._note_failures(look)
        records = [record for record in status.checkpoints if record.ended_at_ms is not None]
        completed = next((record for record in reversed(records) if record.status is Status.COMPLETED), None)
        self._note_checkpoints(records)
        in_a_row = 0
        for record in reversed(records):
            if record.status is Status.COMPLETED:
                break
            in_a_row += record.status in _FAILED
        again_at_ms = status.restarts[-1].again_at_ms if state == "down" else None
        return state, JobReport(
            started_at_ms=self._started_ms,
            since_ms=_since(status, state, self._since_ms),
            reason=_reason(look, state),
            again_at_ms=again_at_ms,
            attempt=status.attempt,
            restarts=self._restarts,
            interval_ms=self._interval_ms,
            completed_id=None if completed is None else completed.checkpoint_id,
            completed_at_ms=None if completed is None else completed.ended_at_ms,
            failed_in_a_row=in_a_row,
            failed_count=self._failed_count,
            failed_checkpoints=tuple(self._failed_checkpoints),
            failures=tuple(self._failures),
            operators=tuple(self._operators(status, now_ms)),
        )

    def beginning(self) -> JobReport:
        """Return the report of a job that is about to begin."""
        return JobReport(
            started_at_ms=self._started_ms,
            since_ms=self._started_ms,
            interval_ms=self._interval_ms,
            failed_checkpoints=tuple(self._failed_checkpoints),
            failures=tuple(self._failures),
        )

    def broken(self, error: BaseException, now_ms: int) -> JobReport:
        """Return the report of a job that could not be started."""
        failures = [*self._failures, _failure(now_ms, 0, error)][-_KEPT:]
        reason = _cut(error_text(error))
        return replace(self.beginning(), since_ms=now_ms, reason=reason, failures=tuple(failures))

    def _note_failures(self, look: Look) -> None:
        attempts = {item.failed_at_ms: item.attempt for item in look.status.restarts}
        told = next((at for at, item in enumerate(look.failures) if item[1] is self._last_error), -1)
        for at_ms, error in look.failures[told + 1 :]:
            self._last_error = error
            self._restarts += 1
            self._failures.append(_failure(at_ms, attempts.get(at_ms, look.status.attempt), error))
        del self._failures[:-_KEPT]

    def _note_checkpoints(self, records: list[CheckpointRecord]) -> None:
        for record in records:
            is_new = (record.checkpoint_id, record.triggered_at_ms) not in self._seen
            if is_new and record.status in _FAILED:
                assert record.ended_at_ms is not None
                self._failed_count += 1
                self._failed_checkpoints.append(
                    FailedCheckpoint(
                        record.checkpoint_id,
                        record.triggered_at_ms,
                        record.ended_at_ms,
                        record.status.value,
                        _cut(record.reason or ""),
                    )
                )
        self._seen = frozenset((record.checkpoint_id, record.triggered_at_ms) for record in records)
        del self._failed_checkpoints[:-_KEPT]

    def _operators(self, status: JobStatus, now_ms: int) -> Iterable[OperatorReport]:
        if status.attempt != self._attempt:
            self._attempt = status.attempt
            for uid, (late, dead) in self._rows.items():
                late_before, dead_before = self._rows_before.get(uid, (0, 0))
                self._rows_before[uid] = late + late_before, dead + dead_before
            self._rows = {}
        by_uid: dict[str, list[TaskStatus]] = {}
        for task in status.tasks:
            by_uid.setdefault(task.task, []).append(task)
        for uid, tasks in by_uid.items():
            self._rows[uid] = sum(task.late_rows for task in tasks), sum(task.dead_rows for task in tasks)
        for uid in {**self._rows_before, **by_uid}:
            yield self._operator(uid, by_uid.get(uid, []), now_ms)

    def _operator(self, uid: str, tasks: list[TaskStatus], now_ms: int) -> OperatorReport:
        busy, blocked = max((task.busy for task in tasks), default=0), max((task.blocked for task in tasks), default=0)
        (late, dead), before = self._rows.get(uid, (0, 0)), self._rows_before.get(uid, (0, 0))
        return OperatorReport(
            operator=uid,
            is_source=uid in self._sources,
            rows=sum(task.rows for task in tasks),
            rows_per_second=round(sum(task.rows_per_second for task in tasks), 1),
            busy=round(busy, 3),
            blocked=round(blocked, 3),
            queued_rows=sum(task.queued_rows for task in tasks),
            lag_ms=max((task.lag_ms for task in tasks if task.lag_ms is not None), default=None),
            behind_rows=_sum(task.behind_rows for task in tasks),
            late_rows=late + before[0],
            dead_rows=dead + before[1],
            subtasks=tuple(
                (
                    task.slot,
                    round(task.rows_per_second, 1),
                    round(task.busy, 3),
                    round(task.blocked, 3),
                    task.queued_rows,
                )
                for task in tasks
            ),
            minutes=self._loads.setdefault(uid, _Load()).add(now_ms, busy, blocked),
        )


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of the numbers that are known; None if none is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _state_of(status: JobStatus) -> str:
    if status.state in (*ENDED, "running"):
        return status.state
    last = status.restarts[-1] if status.restarts else None
    # A change of the parallelism is no failure, and nobody waits for the next attempt.
    is_down = last is not None and last.again_at_ms is not None and last.running_at_ms is None
    return "down" if is_down else "starting"


def _since(status: JobStatus, state: str, seen_ms: int) -> int:
    """Return since when a job is in its state: by what it knows itself, else when that was seen."""
    if state == "running" and status.restarts and status.restarts[-1].running_at_ms is not None:
        return status.restarts[-1].running_at_ms
    since_ms = seen_ms
    for restart in reversed(status.restarts if state == "down" else ()):
        if restart.running_at_ms is not None or restart.again_at_ms is None:
            break
        since_ms = restart.failed_at_ms
    return since_ms


def _reason(look: Look, state: str) -> str | None:
    if state == "down":
        return _cut(look.status.restarts[-1].reason)
    if isinstance(look.error, JobFailedError):
        return _cut(look.error.reason)
    return None if look.error is None else _cut(error_text(look.error))


def _failure(at_ms: int, attempt: int, error: BaseException) -> Failure:
    row = error.place if isinstance(error, UserFunctionError) else None
    return Failure(at_ms, attempt, type(error).__name__, _cut(str(error)), None if row is None else _cut(row))


def _cut(text: str) -> str:
    return storable_text(text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…")


class Reporter:
    """Renews the lease of a job in a thread, with a report of how it is; the last one says how it ended."""

    def __init__(
        self,
        lease: JobLease,
        account: Account,
        look: Callable[[], Look],
        fenced: Callable[[FencedError], Any],
        clock_ms: Callable[[], int],
    ) -> None:
        self.lease = lease
        self._account = account
        self._look = look
        self._fenced = fenced
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._told: str | None = None
        self._told_ms: int | None = None
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="arrowstate-lease", daemon=True)

    def begin(self) -> None:
        """Take the lease, before the job begins."""
        self._say("starting", self._account.beginning())

    def start(self) -> None:
        """Renew the lease from now on, of a job that has begun."""
        self._thread.start()

    def _say(self, state: str, report: JobReport) -> None:
        """Write a report, unless the lease was lost or the last one is written; an error is logged."""
        try:
            self.lease.renew(state, as_json(report))
        except FencedError as error:
            self._closed.set()
            self._fenced(error)
        except (ArrowStateError, OSError) as error:
            # Those who stand by may take over meanwhile, and then the fence decides.
            if not self._is_failing:
                self._is_failing = True
                _logger.warning("the lease of the job could not be renewed, and is tried again: %s", error)
        else:
            self._told, self._is_failing = state, False
            self._told_ms = self._clock_ms()
            if state in ENDED:
                self._closed.set()

    def look(self) -> None:
        """Look at the job, and write how it is if it is time for that, or it is another state."""
        with self._lock:
            if self._closed.is_set():
                return
            look = self._look()
            if isinstance(look.error, FencedError):
                # The report of whoever has taken over is the one that counts.
                self._closed.set()
                return
            now_ms = self._clock_ms()
            state, report = self._account.report(look, now_ms)
            is_due = self._told_ms is None or has_passed(now_ms, self._told_ms, self.lease.lease_ms // _RENEWALS)
            if state != self._told or is_due:
                self._say(state, report)

    def failed(self, error: BaseException) -> None:
        """Say that the job could not be started."""
        with self._lock:
            if not self._closed.is_set():
                self._say("failed", self._account.broken(error, self._clock_ms()))
                self._closed.set()

    def _run(self) -> None:
        seconds = min(_LOOK_S, self.lease.lease_ms / 1000 / _RENEWALS)
        while not self._closed.wait(seconds):
            try:
                self.look()
            except Exception:
                _logger.exception("the report of the job could not be made")
