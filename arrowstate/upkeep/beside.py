"""Collection beside a writer: what its retention drops is deleted while it goes on, and no commit waits for it.

A commit wakes a thread and returns. The thread collects, one collection at a time, and then rests for nine times as
long as that took, so that it has a tenth of the time of a storage at most. Wherever it ends, with the process if need
be, the next collection goes on. What it raises is logged, and fails nothing.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping

from arrowstate.errors import InvalidInputError
from arrowstate.log.commit_log import CommitLog
from arrowstate.storage.base import Storage
from arrowstate.telemetry.records import recorded
from arrowstate.upkeep.collection import CollectionReport, apply_collection
from arrowstate.upkeep.collection_plan import plan_collection
from arrowstate.upkeep.planned import DEFAULT_GRACE_MS
from arrowstate.upkeep.retention import DEFAULT_RETENTION, RetentionPolicy

_REST = 9
_LONGEST_REST_SECONDS = 600.0
_WAIT_SECONDS = 1.0
"""Between two looks whether it is this collector's turn."""

_logger = logging.getLogger("arrowstate.upkeep")


def check_retention(retention: RetentionPolicy | None) -> RetentionPolicy | None:
    """Return a policy, or None for all that is kept; refuse what is neither."""
    if retention is not None and not isinstance(retention, RetentionPolicy):
        raise InvalidInputError(
            "retention must be a RetentionPolicy, such as arrowstate.RetentionPolicy(count=3), or None, which keeps "
            f"all checkpoints; got {retention!r}"
        )
    return retention


def collect_store(
    storage: Storage, policy: RetentionPolicy, *, clock_ms: Callable[[], int], new_id: Callable[[], str]
) -> tuple[CollectionReport, int]:
    """Collect a store; return what was done, and how many checkpoints were dropped."""
    now_ms = clock_ms()
    with recorded("collection", storage.url, now_ms) as recording:
        plan = plan_collection(storage, policy, now_ms=now_ms, grace_ms=DEFAULT_GRACE_MS, clock_ms=clock_ms)
        report = apply_collection(storage, plan, now_ms=now_ms, new_id=new_id)
        recording.files_deleted = report.deleted_count
        recording.bytes_deleted = report.deleted_bytes
    return report, len(plan.dropped) + plan.further


def collector_of_writer(
    storage: Storage,
    policy: RetentionPolicy | None,
    *,
    epoch: int,
    clock_ms: Callable[[], int],
    new_id: Callable[[], str],
    is_beside: bool = True,
) -> Collector | None:
    """Return what collects a store for the writer of an epoch, as long as there is no newer one; None to keep all."""
    if policy is None:
        return None

    def collect() -> tuple[int, int] | None:
        newest = CommitLog(storage).latest()
        if newest is None or newest.document.writer_epoch > epoch:
            # The newer writer has a retention of its own.
            return 0, 0
        report, dropped = collect_store(storage, policy, clock_ms=clock_ms, new_id=new_id)
        return report.deleted_count, dropped

    return Collector(storage.url, policy, collect, is_beside=is_beside)


class Beside:
    """Does something after commits, in a thread that no commit waits for: once for all commits since the last time.

    It rests `rest_factor` times as long as it took. A subclass says what is done.
    """

    def __init__(
        self,
        name: str,
        rest_factor: float,
        *,
        rest: Callable[[float], object] | None = None,
        is_beside: bool = True,
    ) -> None:
        self._name = name
        self._rest_factor = rest_factor
        self._closed = threading.Event()
        self._rest = rest or self._closed.wait
        self._is_beside = is_beside
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_due = False

    def _do(self) -> bool:
        """Do it and return whether it was done; what goes wrong is logged, not raised."""
        raise NotImplementedError  # Abstract: collections and publications are done in their own ways.

    def wake(self) -> None:
        """Let it be done after what is being done; returns at once where it is done beside."""
        if not self._is_beside:
            self._do()
            return
        with self._lock:
            self._is_due = True
            if self._thread is None and not self._closed.is_set():
                # Its process does not wait for it.
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                # One that could not be started is nothing to wait for.
                thread.start()
                self._thread = thread

    def join(self) -> None:
        """Wait until nothing is due."""
        while (thread := self._thread) is not None:
            thread.join()

    def end(self, *, is_last_due: bool) -> None:
        """Rest no more, and do it once more if that is due and `is_last_due`; returns at once."""
        with self._lock:
            self._is_due &= is_last_due
            self._closed.set()

    def close(self, *, is_last_due: bool) -> None:
        """Do what `end` does, and wait for it."""
        self.end(is_last_due=is_last_due)
        self.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._is_due:
                    self._thread = None
                    return
                self._is_due = False
            started = time.monotonic()
            if self._do():
                self._rest(min((time.monotonic() - started) * self._rest_factor, _LONGEST_REST_SECONDS))
            elif self._closed.is_set():
                continue
            else:
                with self._lock:
                    self._is_due = True
                self._rest(_WAIT_SECONDS)


def is_ending() -> bool:
    """Whether the interpreter is ending and starts no more threads, so that what failed is no news."""
    return sys.is_finalizing() or not threading.main_thread().is_alive()


class Collector(Beside):
    """Collects a store, beside whatever else is done, when it is told that something was committed."""

    def __init__(
        self,
        url: str,
        policy: RetentionPolicy,
        collect: Callable[[], tuple[int, int] | None],
        *,
        rest: Callable[[float], object] | None = None,
        is_beside: bool = True,
    ) -> None:
        super().__init__("arrowstate-collection", _REST, rest=rest, is_beside=is_beside)
        self._url = url
        self._policy = policy
        self._collect = collect
        self._is_told = False
        self._deleted = self._failed = 0

    def take_figures(self) -> Mapping[str, int]:
        """Return what has been done since the last call."""
        with self._lock:
            figures = {"files_collected": self._deleted, "collections_failed": self._failed}
            self._deleted = self._failed = 0
        return figures

    def _do(self) -> bool:
        """Collect, and return whether it was this collector's turn."""
        done: tuple[int, int] | None = (0, 0)
        failed = 0
        try:
            done = self._collect()
        except Exception as error:  # noqa: BLE001 (whoever commits goes on, whatever it is)
            if is_ending():
                # The next collection goes on.
                return True
            fields = {"store": self._url, "error": str(error)}
            _logger.warning("%(store)s: a collection failed, the next goes on: %(error)s", fields, extra=fields)
            failed = 1
        deleted, dropped = (0, 0) if done is None else done
        with self._lock:
            self._deleted += deleted
            self._failed += failed
        if dropped and not self._is_told:
            self._is_told = True
            self._tell(dropped)
        return done is not None

    def _tell(self, dropped: int) -> None:
        fields = {"store": self._url, "checkpoints": dropped, "kept": str(self._policy)}
        # Whoever chose a policy knows what it does.
        _logger.log(
            logging.WARNING if self._policy == DEFAULT_RETENTION else logging.INFO,
            "%(store)s: checkpoints were removed for the first time, %(checkpoints)d of them. Of all checkpoints, "
            "%(kept)s are kept, besides savepoints and what tags and leases hold. "
            "More are kept by retention=arrowstate.RetentionPolicy(count=..., age_ms=..., hours=...), all by "
            "retention=None",
            fields,
            extra=fields,
        )
