"""Collection beside a query: what its retention drops is deleted while it goes on, and no commit waits for it.

A commit wakes a thread of its process and returns. The thread collects, one collection at a time, and then rests for
nine times as long as that took, so that it has a tenth of the time of a storage at most. Wherever it ends, with the
process if need be, the next collection goes on. What it raises fails no query: it is logged, and counted in the figures
of the next micro-batch. Spark may commit in one of several processes of a machine, of which one collects at a time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from arrowstate.errors import InvalidInputError
from arrowstate.maintenance.retention import RetentionPolicy
from arrowstate.spark.places import StorePlace
from arrowstate.store import open_store
from arrowstate_formats.run_files import checksum

__all__ = ["Collector", "check_retention", "collector_of"]

_REST = 9
_LONGEST_REST_SECONDS = 600.0
_WAIT_SECONDS = 1.0
"""Between two looks whether the process that collects has ended."""

_logger = logging.getLogger("arrowstate.spark")
_collectors: dict[tuple[str, RetentionPolicy], Collector] = {}


def check_retention(retention: RetentionPolicy | None) -> None:
    """Refuse what is no policy."""
    if retention is not None and not isinstance(retention, RetentionPolicy):
        raise InvalidInputError(
            f"retention must be a RetentionPolicy, such as arrowstate.RetentionPolicy(count=3), got {retention!r}"
        )


def collector_of(place: StorePlace, policy: RetentionPolicy) -> Collector:
    """Return what collects a store in this process."""
    known = _collectors.get((place.url, policy))
    if known is None or known.place != place:
        # Credentials may be others by now.
        known = _collectors[place.url, policy] = Collector(place, policy)
    return known


class Collector:
    """Collects a store, beside whatever else is done, when it is told that something was committed.

    Parameters
    ----------
    place
        Where the store is.
    policy
        Which checkpoints it keeps.
    rest
        Waits for so many seconds.
    """

    def __init__(
        self, place: StorePlace, policy: RetentionPolicy, *, rest: Callable[[float], object] = time.sleep
    ) -> None:
        self.place = place
        self._policy = policy
        self._rest = rest
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_due = False
        self._deleted = self._failed = 0

    def wake(self) -> None:
        """Let a collection follow, after the one that goes on; returns at once."""
        with self._lock:
            self._is_due = True
            if self._thread is None:
                # Its process does not wait for it.
                self._thread = threading.Thread(target=self._run, name="arrowstate-collection", daemon=True)
                self._thread.start()

    def take_figures(self) -> Mapping[str, int]:
        """Return what has been done since the last call."""
        with self._lock:
            figures = {"files_collected": self._deleted, "collections_failed": self._failed}
            self._deleted = self._failed = 0
        return figures

    def join(self) -> None:
        """Wait until nothing is due."""
        while (thread := self._thread) is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._is_due:
                    self._thread = None
                    return
                self._is_due = False
            started = time.monotonic()
            if not self._collect():
                with self._lock:
                    self._is_due = True
                self._rest(_WAIT_SECONDS)
                continue
            self._rest(min((time.monotonic() - started) * _REST, _LONGEST_REST_SECONDS))

    def _collect(self) -> bool:
        """Collect, and return whether it was this process's turn."""
        deleted, failed, is_alone = 0, 0, True
        try:
            with _alone(self.place.url) as is_alone:
                if is_alone:
                    store = open_store(self.place.url, storage_options=self.place.options)
                    deleted = len(store.collect(self._policy).apply().deleted)
        except Exception as error:  # noqa: BLE001 (the query goes on, whatever it is)
            _logger.warning("%s: the collection beside the query failed, the next goes on: %s", self.place.url, error)
            failed = 1
        with self._lock:
            self._deleted += deleted
            self._failed += failed
        return is_alone


@contextmanager
def _alone(url: str) -> Iterator[bool]:
    """Whether no other process of this user and machine collects the store."""
    name = f"arrowstate-{os.getuid()}-{checksum(url.encode())}.collection"
    descriptor = os.open(Path(tempfile.gettempdir()) / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
