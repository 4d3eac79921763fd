"""Standing by for a job that another process runs, and taking over when that one is gone.

Whether it is gone says its lease, by the clock of who watches alone: the report of the job has not been renewed for as
long as the lease lasts. Then the fence is taken, after the very entry that was seen. So of several who stand by one
wins and the others go on watching, and a job that commits in this moment is left alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from arrowstate.checkpoints.committing import Committer
from arrowstate.errors import ArrowStateError, FencedError, InvalidInputError, JobFailedError, StoreNotFoundError
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry
from arrowstate.log.jobs import ENDED, newest_report, read_report, report_of
from arrowstate.runtime.drivers.ready import ReadySlots
from arrowstate.runtime.graph import Declared
from arrowstate.runtime.lease import holder_name, monotonic_ms
from arrowstate.runtime.restart import is_unrecoverable
from arrowstate.runtime.running import RunningJob, begin_from, check_store, committer_of, setting_of
from arrowstate.storage.base import Storage
from arrowstate.store.follower import Follower
from arrowstate.store.store import open_store
from arrowstate_formats.documents import JobDocument

_LOOKS = 20
"""A job is looked at so many times in the time of its lease."""
_SHORTEST_LOOK_MS, _LONGEST_LOOK_MS = 20, 500

_logger = logging.getLogger("arrowstate.runtime")


class OvertakenError(Exception):
    """Somebody else was seen at the store in the moment in which it was to be taken over."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a job at one moment."""

    report: JobDocument | None
    entry: CommittedEntry | None
    "The newest entry of the log."

    @property
    def sign(self) -> tuple[int, int] | None:
        """What every renewal changes."""
        return None if self.report is None else (self.report.writer_epoch, self.report.renewal)

    @property
    def epoch(self) -> int | None:
        """The epoch of the newest writer."""
        return None if self.entry is None else self.entry.document.writer_epoch

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended by itself."""
        return self.report is not None and self.report.state in ENDED


class Watch:
    """Looks at a store, and knows since when nobody has renewed the lease of its job."""

    def __init__(
        self,
        storage: Storage,
        lease_ms: int,
        now_ms: Callable[[], int] = monotonic_ms,
        *,
        store_id: str | None = None,
    ) -> None:
        self._storage = storage
        # Another store that is made at the same place is not the one whose job this stands by for.
        self._log = CommitLog(storage, store_id=store_id)
        self._lease_ms = lease_ms
        self._now_ms = now_ms
        self.seen: Seen | None = None
        self._since_ms = 0

    @property
    def lease_ms(self) -> int:
        """How long a lease lasts: that of the job that was seen, else that of the job that stands by."""
        report = None if self.seen is None else self.seen.report
        return self._lease_ms if report is None or report.state in ENDED else report.lease_ms

    def is_over(self) -> bool:
        """Look once, and say whether the lease was not renewed for as long as it lasts."""
        # Before the look: what is seen in it is of later.
        now_ms = self._now_ms()
        report = self._report()
        if self.seen is None or Seen(report, None).sign != self.seen.sign:
            self.begin()
            return False
        if now_ms - self._since_ms < self.lease_ms:
            return False
        found, seen = self._look(), self.seen
        if found.sign != seen.sign or found.epoch != seen.epoch:
            # Another writer has begun meanwhile.
            self.begin()
            return False
        # What was committed since the last renewal is gone on from.
        self.seen = found
        return True

    def check(self, newest: CommittedEntry | None) -> None:
        """Refuse to take over if anything has changed since the last look."""
        seen = self.seen
        if seen is None or newest != seen.entry or Seen(newest_report(self._storage), newest).sign != seen.sign:
            raise OvertakenError

    def begin(self) -> None:
        """Look, and count from now on."""
        self.seen = self._look()
        # After the look: what it found may be of this moment.
        self._since_ms = self._now_ms()

    def _look(self) -> Seen:
        return Seen(newest_report(self._storage), self._log.latest())

    def _report(self) -> JobDocument | None:
        """Return the report that was seen as it is now: of one object no listing is needed."""
        known = None if self.seen is None else self.seen.report
        found = None if known is None else read_report(self._storage, known.writer_epoch)
        return newest_report(self._storage) if found is None else found


class Standby:
    """Stands by for a job; see `Job.stand_by`. To be used in a `with` block, which lets go of what it holds ready.

    One thread at a time calls `wait`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import Job, OutputTable, TableSource
    >>> job = Job("memory://standby-example", lease_ms=60_000)
    >>> job.source(TableSource(pa.table({"n": [1, 2, 3]})), uid="numbers").sink(OutputTable("copy"))
    >>> with job.start(mode="threads") as running, job.stand_by(mode="threads") as standby:
    ...     try:
    ...         standby.wait(timeout_ms=0)
    ...     except TimeoutError:
    ...         print("the job is there")
    ...     _ = running.wait()
    the job is there
    """

    def __init__(self, job: Declared, mode: Literal["processes", "threads"]) -> None:
        if mode not in ("processes", "threads"):
            raise InvalidInputError(f"mode must be processes or threads, got {mode!r}")
        self._job = job
        self._mode = mode
        self.store = open_store(job.store, create=True, storage_options=job.storage_options)
        "The store of the job, to read."
        newest = CommitLog(self.store.storage).history().checkpoint
        if job.from_savepoint is None or newest is not None:
            check_store(job, newest, self.store.storage)
        self._watch = Watch(self.store.storage, job.lease_ms, store_id=self.store.store_id)
        self._was_alive = False
        self._is_failing = False
        self._ready: ReadySlots | None = None
        self._prepare()
        self._follower: Follower | None = self.store.follow(
            poll_ms=max(job.lease_ms // _LOOKS, 200), holder=f"standby, {holder_name()}"
        )
        self._follower.keep_open()

    def __repr__(self) -> str:
        return f"<Standby of {self.store.url}>"

    def __enter__(self) -> Standby:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def holder(self) -> str | None:
        """Who runs the job, as far as it says; None if nobody was seen."""
        report = None if self._watch.seen is None else self._watch.seen.report
        return None if report is None or report.state in ENDED else report.holder

    @property
    def is_ready(self) -> bool:
        """Whether its slots have loaded all packages; without that it takes over as well, a little later."""
        return self._mode != "processes" or (self._ready is not None and self._ready.are_loaded)

    def wait(self, timeout_ms: int | None = None) -> RunningJob | None:
        """Wait until the job is gone, take over, and return it; None if the job has ended by itself meanwhile.

        A job is gone if it gave no sign of life for as long as its lease lasts: it was killed, its machine is down, it
        hangs, or it does not reach the store. A job that was stopped, or has come to the end of its input, is not taken
        over. If nobody runs the job, or it had ended before, this begins it after the time of a lease.

        Parameters
        ----------
        timeout_ms
            How long to wait; by default for ever.

        Raises
        ------
        JobFailedError
            If the job has failed for good: it would fail here as well.
        TimeoutError
            If nothing of this has come within `timeout_ms`.
        InvalidInputError
            If it was closed, or the store has state by now that the job does not declare.
        """
        until_ms = None if timeout_ms is None else monotonic_ms() + timeout_ms
        while True:
            if self._follower is None:
                raise InvalidInputError("the standby was closed; make another with job.stand_by()")
            try:
                if self._watch.is_over():
                    return self._take_over()
                if self._has_ended():
                    return None
                self._prepare()
                self._is_failing = False
            except OvertakenError:
                self._watch.begin()
            except (ArrowStateError, OSError) as error:
                self._failed(error)
            look_ms = min(max(self._watch.lease_ms // _LOOKS, _SHORTEST_LOOK_MS), _LONGEST_LOOK_MS)
            left_ms = None if until_ms is None else until_ms - monotonic_ms()
            if left_ms is not None and left_ms <= 0:
                raise TimeoutError(f"nothing has happened to the job of {self.store.url} within {timeout_ms} ms")
            time.sleep((look_ms if left_ms is None else min(look_ms, left_ms)) / 1000)

    def close(self) -> None:
        """Stand by no more."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.close()

    def _has_ended(self) -> bool:
        """Say whether the job has ended since it was seen alive; raise why it failed."""
        seen = self._watch.seen
        if seen is None or seen.report is None:
            return False
        if not seen.has_ended:
            self._was_alive = True
        if not (seen.has_ended and self._was_alive):
            return False
        if seen.report.state == "failed":
            raise JobFailedError(report_of(seen.report).reason or "it does not say why")
        return True

    def _failed(self, error: ArrowStateError | OSError) -> None:
        """Go on watching after an error that may pass; raise another."""
        is_for_good = isinstance(error, (JobFailedError, StoreNotFoundError)) or is_unrecoverable(error)
        if is_for_good and not isinstance(error, FencedError):
            raise error
        if not self._is_failing:
            self._is_failing = True
            _logger.warning("%s could not be looked at, or not be taken over, for now: %s", self.store.url, error)

    def _prepare(self) -> None:
        """Have the slots ready that the job would have if it began now."""
        ready = self._ready
        if self._mode != "processes" or (ready is not None and ready.are_alive):
            return
        if ready is not None:
            ready.close()
        newest = CommitLog(self.store.storage).history().checkpoint
        self._ready = ReadySlots(self._job, setting_of(self._job, self.store, newest))

    def _take_over(self) -> RunningJob:
        job, store = self._job, self.store
        newest = CommitLog(store.storage).history().checkpoint
        if job.from_savepoint is not None and newest is None:
            # Whoever else begins with it sees what was committed, and so does this one, which looks again.
            begin_from(job, store, job.from_savepoint)
            raise OvertakenError
        check_store(job, newest, store.storage)

        def take() -> Committer:
            committer = committer_of(store, self._watch.check)
            _logger.warning("%s: the job is taken over, by %s", store.url, holder_name())
            return committer

        # What fails now has worked elsewhere: a server that is away may be why the job is gone.
        running = RunningJob(job, store, self._mode, 0, take, self._ready, is_taken_over=self._was_alive)
        self._ready = None
        return running
