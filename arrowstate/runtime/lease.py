"""The lease of a job: for so long nobody who stands by may take the job for dead.

The fence alone decides who may commit. The lease is how others know that the job is there, and how a job that slept for
longer learns, before it gives anything to the outside, that another has taken over.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from arrowstate.errors import FencedError
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.jobs import put_report
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import JobDocument


def monotonic_ms() -> int:
    """Return a time that no change of the clock moves."""
    return time.monotonic_ns() // 1_000_000


def holder_name() -> str:
    """Return who runs a job, for people."""
    return f"process {os.getpid()} on {socket.gethostname()}"


class JobLease:
    """The lease of the job of a writer epoch. Safe to use from several threads."""

    def __init__(
        self,
        storage: Storage,
        epoch: int,
        lease_ms: int,
        *,
        clock_ms: Callable[[], int],
        monotonic_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._storage = storage
        self._epoch = epoch
        self.lease_ms = lease_ms
        self._clock_ms = clock_ms
        self._monotonic_ms = monotonic_ms
        self._log = CommitLog(storage)
        self._lock = threading.Lock()
        self._renewal = 0
        self._ends_ms = monotonic_ms()
        self._fenced: FencedError | None = None

    def renew(self, state: str, report: dict[str, Any]) -> None:
        """Say that the job is there, and how it is.

        Raises
        ------
        FencedError
            If another writer has taken over: then nothing is written, now and later.
        """
        with self._lock:
            # From before the others can see it: they count from later.
            begins_ms = self._monotonic_ms()
            self._look()
            document = JobDocument(
                writer_epoch=self._epoch,
                holder=holder_name(),
                lease_ms=self.lease_ms,
                renewal=self._renewal,
                state=state,
                written_at_ms=self._clock_ms(),
                report=report,
            )
            put_report(self._storage, document)
            self._renewal += 1
            self._ends_ms = begins_ms + self.lease_ms

    def check(self) -> None:
        """Refuse to go on for a job that another has taken over from; the log is read only where the lease has ended.

        Raises
        ------
        FencedError
            If another writer has taken over.
        """
        with self._lock:
            if self._fenced is not None or self._monotonic_ms() >= self._ends_ms:
                self._look()

    def _look(self) -> None:
        if self._fenced is None:
            newest = self._log.latest()
            if newest is not None and newest.document.writer_epoch > self._epoch:
                self._fenced = FencedError(self._epoch, newest.document.writer_epoch)
        if self._fenced is not None:
            raise FencedError(self._fenced.writer_epoch, self._fenced.current_epoch)
