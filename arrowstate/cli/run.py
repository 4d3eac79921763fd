"""`arrowstate run`: a job from a Python file, with a display of how it is, until its end or until it is stopped."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from arrowstate.cli.job_file import load_job
from arrowstate.cli.output import print_json_line, say
from arrowstate.cli.run_display import Display, Lines, Objects
from arrowstate.errors import ArrowStateError, InvalidInputError
from arrowstate.files.savepoint import check_savepoint, open_savepoint_place
from arrowstate.store import Snapshot, open_store

if TYPE_CHECKING:
    from arrowstate.runtime.job import Job
    from arrowstate.runtime.running import RunningJob

_LOOK_S = 0.25
_LOOK_MS = 250
_CLOSE_S = 3.0

_TOGETHER_S = 0.5
"""Signals closer together are one: whoever starts commands may pass on what its group of processes has had already."""


class _Signals:
    """SIGINT and SIGTERM: the first asks the job to stop, the second has it end at once, the third this process.

    SIGUSR1, where the system has it, asks for a full checkpoint.
    """

    def __init__(self) -> None:
        self.count = 0
        self.asked = 0
        "How many full checkpoints were asked for."
        self._heard_at = -_TOGETHER_S
        self.changed = threading.Event()
        self._last = signal.SIGINT
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """That of a process that the last of them has ended."""
        return 128 + self._last

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._heard)
        if hasattr(signal, "SIGUSR1"):
            self._before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _asked(self, _: int, __: FrameType | None) -> None:
        self.asked += 1
        self.changed.set()

    def _heard(self, number: int, _: FrameType | None) -> None:
        at = time.monotonic()
        if at - self._heard_at < _TOGETHER_S:
            return
        self._heard_at = at
        self.count += 1
        self._last = signal.Signals(number)
        if self.count > 2:
            # Slots end with this process; what was committed stays.
            os._exit(self.exit_code)
        self.changed.set()


@contextmanager
def _display_of(running: RunningJob, options: argparse.Namespace) -> Iterator[Display]:
    """Give the display that fits the options and the terminal."""
    if options.json or not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        display = _plain_display(options)
        display.event("starting", f"starting on {running.store.url}", attempt=1)
        yield display
    else:
        from arrowstate.cli.run_table import live_table

        with live_table(running.store.url) as table:
            yield table


def _plain_display(options: argparse.Namespace) -> Objects | Lines:
    return Objects(options.every) if options.json else Lines(options.every)


def run_job(options: argparse.Namespace) -> int:
    """Run a job; return 0 if it has ended or was stopped, 128 and the signal if it was stopped at once.

    That nobody reads what is displayed any more ends no job.
    """
    job = load_job(options.file, options.job)
    for name in ("parallelism", "max_parallelism"):
        if getattr(options, name) is not None:
            setattr(job, name, getattr(options, name))
    if options.begin_from is not None:
        _begin_from(job, options.begin_from, only_first=options.standby)
    if options.stop_with_savepoint and options.savepoint is not None:
        # A place that is taken would be told only when the job has stopped.
        store = open_store(job.store, create=True, storage_options=job.storage_options)
        check_savepoint(open_savepoint_place(store.storage, options.savepoint, create=True), "parquet")
    with _Signals() as signals:
        if options.standby:
            started = _stand_by(job, signals, options)
            if started is None:
                return 0
        else:
            started = job.start(mode=options.mode)
        with started as running, _display_of(running, options) as display:
            if not _watch(running, signals, display):
                display.event("ended", "ended at once, without another checkpoint")
                _close(running, signals.exit_code)
                return signals.exit_code
        # Raises why it failed.
        _tell_end(options, running, running.wait())
    return 0


def _stand_by(job: Job, signals: _Signals, options: argparse.Namespace) -> RunningJob | None:
    """Stand by for a job; return it when it is taken over, None if it has ended by itself, or this was stopped."""
    with job.stand_by(mode=options.mode) as standby:
        told, url = "", standby.store.url
        display = _plain_display(options)
        display.event("standby", f"standing by for the job of {url}")
        while not signals.count:
            try:
                running = standby.wait(_LOOK_MS)
            except TimeoutError:
                if standby.is_ready and standby.holder is not None and standby.holder != told:
                    told = standby.holder
                    display.event("ready", f"ready to take over; the job is run by {told}")
                continue
            if running is None:
                display.event("ended", "the job has ended, and so does its standby")
            else:
                display.event("takeover", "the job is taken over")
            return running
        display.event("ended", "standing by no more")
    return None


def _watch(running: RunningJob, signals: _Signals, display: Display) -> bool:
    """Show how the job is until it has ended, and ask it to stop with the first signal; False at the second."""
    stopping: threading.Thread | None = None
    answered = 0
    while True:
        status = running.status()
        display.show(status)
        if status.state in ("finished", "stopped", "failed"):
            return True
        if signals.count > 1:
            return False
        if signals.asked > answered:
            answered = signals.asked
            threading.Thread(target=_checkpoint, args=(running, display), daemon=True).start()
        if signals.count and stopping is None:
            display.event("stopping", "stopping: what was read is processed; once more ends it at once")
            # It waits for the end, and this thread for more signals.
            stopping = threading.Thread(target=_stop, args=(running,), daemon=True)
            stopping.start()
        signals.changed.wait(_LOOK_S)
        signals.changed.clear()


def _stop(running: RunningJob) -> None:
    # Whoever waits for the job is told.
    with suppress(ArrowStateError):
        running.stop()


def _checkpoint(running: RunningJob, display: Display) -> None:
    """Take a full checkpoint, and tell of it."""
    try:
        snapshot = running.checkpoint(full=True)
    except ArrowStateError as error:
        display.event("checkpoint", f"no full checkpoint: {error}")
    else:
        id = snapshot.checkpoint_id
        display.event("checkpoint", f"checkpoint {id} is full", checkpoint_id=id)


def _close(running: RunningJob, exit_code: int) -> None:
    """End a job at once, and this process too if a step does not let go of it."""
    closing = threading.Thread(target=running.close, daemon=True)
    closing.start()
    closing.join(_CLOSE_S)
    if closing.is_alive():
        # Slots end with this process; what was committed stays.
        sys.stdout.flush()
        os._exit(exit_code)


def _begin_from(job: Job, place: str, *, only_first: bool) -> None:
    """Have the job's store begin with a place, unless it has begun there, whatever the file says.

    An older checkpoint of the store itself is taken again. With `only_first`, for who stands by, nothing that the store
    has is replaced.
    """
    if only_first:
        if place.isdecimal():
            raise InvalidInputError(
                f"a standby goes on from the newest checkpoint; leave out --from {place}, or run without --standby"
            )
        job.from_savepoint = place
        return
    from arrowstate.runtime.running import begin_from

    store = open_store(job.store, create=True, storage_options=job.storage_options)
    job.from_savepoint = None
    if not place.isdecimal():
        begin_from(job, store, place, anew=True)
    elif int(place) != store.latest().checkpoint_id:
        store.rollback(int(place), comment="arrowstate run --from")


def _tell_end(options: argparse.Namespace, running: RunningJob, snapshot: Snapshot) -> None:
    """Tell how the job has ended, and write the savepoint that was asked for; where that fails the job has stopped."""
    id, state = snapshot.checkpoint_id, running.status().state
    text = f"{state} at checkpoint {id} of {running.store.url}"
    if state == "stopped":
        text += "; the next start goes on there"
    savepoint, failure = None, None
    if state == "stopped" and options.stop_with_savepoint:
        try:
            place = options.savepoint or f"stopped-at-{id}"
            savepoint = running.store.savepoint(place, checkpoint=id).storage.url
        except ArrowStateError as error:
            failure = error
    if options.json:
        print_json_line({"event": state, "checkpoint_id": id, "savepoint": savepoint})
    else:
        say(text)
        if savepoint is not None:
            say(f"savepoint {savepoint}")
    if failure is not None:
        raise failure
