"""Slots in processes of their own, which the job's process starts, links to each other, and watches."""

from __future__ import annotations

import array
import datetime
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arrowstate.clock import now_ms
from arrowstate.errors import InvalidInputError, UnsupportedStorageError
from arrowstate.runtime.core.attempt import Setting
from arrowstate.runtime.core.explaining import check_copies, unpicklable
from arrowstate.runtime.core.messages import Deploy, NotBegun, ToSlot
from arrowstate.runtime.drivers.control import Connection
from arrowstate.runtime.drivers.notes import BEAT_MS, Page, monotonic_ms
from arrowstate.runtime.graph import Declared
from arrowstate.shown import error_text

_logger = logging.getLogger("arrowstate.runtime")

_ENDED_S = 10
_LOOK_MS = 250
"""How often the notes of the slots are looked at, and each gets a sign of life of this process."""

_CALLS = 8
"""How much of the stack of a slot that hangs is told."""

_WARN_MS = 60_000
"""Without `task_timeout_ms` a step that takes longer is told of in the log."""

_SPARE_AFTER_MS = 5_000
"""How long slots are there before one is kept ready to take the place of another: their own start goes first."""


@dataclass(slots=True)
class _Process:
    popen: subprocess.Popen[bytes]
    control: Connection
    passing: socket.socket
    page: Page
    generation: int
    watcher: threading.Thread | None = None
    ended: bool = False
    hung: str | None = None
    "What it was doing when it was killed for taking too long."
    warned: bool = False
    "Whether the log has heard of the step that runs."


class ProcessSlots:
    """Slots in processes."""

    def __init__(
        self,
        job: Declared,
        setting: Setting,
        post: Callable[[Callable[[Any], None]], None],
        *,
        loads_all: bool = False,
    ) -> None:
        self._post = post
        # Kernels are loaded before rows come, if there is time for it.
        self._loads_all = loads_all
        self._timeout_ms = job.task_timeout_ms
        if not hasattr(socket, "send_fds"):
            raise InvalidInputError(
                f"slots in processes hand each other open sockets, which {sys.platform} cannot; use mode='threads'"
            )
        if str(job.store).startswith("memory:"):
            raise UnsupportedStorageError(
                str(job.store),
                "memory",
                ["a local path", "s3://", "gs://", "abfs://"],
                "slots in processes of their own do not see the memory of this one, which threads do",
            )
        self._plan = {
            "path": [str(Path(path).absolute()) for path in sys.path],
            "graph": _pickled(job),
            "store": str(job.store),
            "storage_options": job.storage_options,
            "setting": setting,
            "lease_ms": max(job.lease_ms, 4 * _LOOK_MS),
            # Where this process decides what a SIGTERM means, it is not for those whom it starts, who may get one too.
            "ignores_terminate": signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None),
        }
        self._lock = threading.Lock()
        # As the slots have them, whose notes name a task by its place.
        self._tasks = [node.uid for node in reversed(job.graph.in_order())]
        self._closing = False
        self._closed = threading.Event()
        self._generation = 0
        self._processes: dict[int, _Process] = {}
        # Starts interpreter and libraries before it is needed; made and taken by the thread that starts.
        self._has_spare = job.spare_slot
        self._spare: _Process | None = None
        self._started_ms = monotonic_ms()
        self._numbers = range(setting.parallelism)
        # The system ends slots with the thread that started them, so that one lives as long as they may.
        self._starter = ThreadPoolExecutor(1, "arrowstate-start")
        self._starter.submit(self._start, self._numbers).result()
        threading.Thread(target=self._look_after, name="arrowstate-look", daemon=True).start()

    @property
    def are_alive(self) -> bool:
        """Whether none has died."""
        with self._lock:
            return not any(process.ended for process in self._processes.values())

    @property
    def are_loaded(self) -> bool:
        """Whether all have loaded what they need."""
        with self._lock:
            return all(process.page.has_begun for process in self._processes.values())

    def tell(self, slot: int, message: ToSlot) -> None:
        with self._lock:
            process = self._processes[slot]
            generations = {
                number: max(other.generation, process.generation)
                for number, other in self._processes.items()
                if number != slot
            }
        # If it has died, the one who watches it tells.
        with suppress(OSError):
            process.control.send((message, generations) if isinstance(message, Deploy) else message)

    def restart(self) -> None:
        with self._lock:
            dead = [number for number, process in self._processes.items() if process.ended]
        if dead:
            self._starter.submit(self._start, dead).result()
            for number in dead:
                self._post(lambda coordinator, number=number: coordinator.slot_started(number))  # type: ignore[misc]

    def close(self, wait_s: float | None) -> None:
        self._closing = True
        self._closed.set()
        for process in self._processes.values():
            # It may be gone already.
            with suppress(OSError):
                process.control.send(None)
        for process in self._processes.values():
            try:
                process.popen.wait(_ENDED_S if wait_s is None else wait_s)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            if process.watcher is not None:
                # What it said last is heard.
                process.watcher.join(wait_s)
            process.control.close()
            process.passing.close()
        self._starter.shutdown()
        if self._spare is not None:
            # It has done nothing yet.
            self._spare.popen.kill()
            self._spare.popen.wait()
            self._spare.control.close()
            self._spare.passing.close()

    def _start(self, numbers: Any) -> None:
        """Start slots, and link each with all the others; if that fails, none of them stays."""
        try:
            self._start_linked(numbers)
        except BaseException:
            # Without all its links a slot would wait for ever; when it has ended it is started again.
            with self._lock:
                started = [self._processes[number] for number in numbers if number in self._processes]
            for process in started:
                process.popen.kill()
            raise

    def _start_linked(self, numbers: Any) -> None:
        for number in numbers:
            self._generation += 1
            spare, self._spare = self._spare, None
            process = (
                spare if spare is not None and spare.popen.poll() is None else self._launch(loads_all=self._loads_all)
            )
            process.generation = self._generation
            with self._lock:
                self._processes[number] = process
            process.watcher = threading.Thread(target=self._watch, args=(number, process), daemon=True)
            process.watcher.start()
            # If it has died already, the one who watches it tells.
            with suppress(OSError):
                process.control.send(number)
        self._started_ms = monotonic_ms()
        new = set(numbers)
        for number in self._numbers:
            for other in range(number):
                if number in new or other in new:
                    self._link(number, other)

    def _launch(self, *, loads_all: bool) -> _Process:
        """Start a process, which loads all that it needs and waits for the number of its slot."""
        control, theirs = socket.socketpair()
        passing, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        page = Page.make()
        files = theirs.fileno(), given.fileno(), page.file
        command = [
            sys.executable,
            "-m",
            "arrowstate.runtime.drivers.worker",
            *map(str, files),
            str(os.getpid()),
        ]
        environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(self._plan["path"])  # type: ignore[arg-type]
        # Arrow's own allocator gives freed memory back within milliseconds, and each snapshot has to get it anew.
        environment.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        popen = subprocess.Popen(
            command,
            pass_fds=files,
            env=environment,
            stdin=subprocess.DEVNULL,
            # A keyboard interrupt is for the job's process, which decides when slots end.
            process_group=0,
        )
        theirs.close()
        given.close()
        process = _Process(popen, Connection(control), passing, page, 0)
        with suppress(OSError):
            process.control.send({**self._plan, "loads_all": loads_all})
        return process

    def _keep_spare(self) -> None:
        if self._spare is None and not self._closing:
            self._spare = self._launch(loads_all=True)

    def _link(self, number: int, other: int) -> None:
        one, two = socket.socketpair()
        first, second = self._processes[number], self._processes[other]
        generation = max(first.generation, second.generation)
        for process, end, peer in ((first, one, other), (second, two, number)):
            # It may have died already.
            with suppress(OSError):
                socket.send_fds(process.passing, [array.array("q", [peer, generation]).tobytes()], [end.fileno()])
            end.close()

    def _watch(self, number: int, process: _Process) -> None:
        """Pass on what a slot says, and tell of its end."""
        not_begun: NotBegun | None = None
        try:
            while True:
                message = process.control.receive()
                # A sign of life is for the slot, which sends it to see whether this process is there.
                if isinstance(message, NotBegun):
                    not_begun = message
                elif not isinstance(message, tuple):
                    self._post(lambda coordinator, message=message: coordinator.hear(message))  # type: ignore[misc]
        except EOFError:
            pass
        except BaseException as raised:  # noqa: BLE001 (what it says cannot be read: the job goes on without it)
            process.hung = f"was killed: what it says cannot be read, {type(raised).__name__}: {raised}"
            process.popen.kill()
        code = process.popen.wait()
        process.ended = True
        if not self._closing:
            died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            how = process.hung or died
            if not_begun is not None:
                how = f"could not begin: {error_text(not_begun.error)}"
            error = RuntimeError(f"slot {number} (process {process.popen.pid}) {how}")
            self._post(lambda coordinator: coordinator.slot_lost(number, error, not_begun))

    def _look_after(self) -> None:
        """Look at the notes of the slots, kill those that hang, and see that there is a spare one."""
        looked_ms = monotonic_ms()
        while not self._closed.wait(_LOOK_MS / 1000):
            if self._has_spare and self._spare is None and monotonic_ms() - self._started_ms > _SPARE_AFTER_MS:
                # It may have been closed since.
                with suppress(RuntimeError):
                    self._starter.submit(self._keep_spare)
            held_up = monotonic_ms() - looked_ms > 4 * _LOOK_MS
            looked_ms = monotonic_ms()
            with self._lock:
                processes = [item for item in self._processes.items() if not item[1].ended and item[1].hung is None]
            for _, process in processes:
                process.page.say_job_is_there()
            # What held this thread up may have held up the slots: they are looked at when all have had time again.
            for number, process in [] if held_up else processes:
                try:
                    self._judge(number, process)
                except Exception:
                    _logger.exception("slot %d cannot be looked at", number)

    def _judge(self, number: int, process: _Process) -> None:
        look = process.page.look(self._tasks)
        silent_ms = look.silent_ms if look.silent_ms > 4 * BEAT_MS else 0
        lasts_ms = max(look.busy_ms, silent_ms)
        limit = self._timeout_ms
        if lasts_ms <= (_WARN_MS if limit is None else limit):
            process.warned = False
            return
        if look.task is None:
            what = f"gave no sign of life for {silent_ms} ms, between two steps"
        else:
            what = f"was busy in one step of {look.task!r} for {look.busy_ms} ms"
        began = datetime.datetime.fromtimestamp((now_ms() - lasts_ms) / 1000, datetime.UTC)
        since = f"since {began.isoformat(timespec='seconds')}"
        if look.task is not None and silent_ms:
            since += ", and let no other thread run"
        if limit is None:
            if not process.warned:
                _logger.warning("slot %d (process %d) %s, %s", number, process.popen.pid, what, since)
            process.warned = True
            return
        stack = process.page.ask_where(process.popen.pid)
        where = "".join(f"\n{call}" for call in stack[:_CALLS])
        process.hung = f"was killed: it {what}, and task_timeout_ms is {limit}; {since}{where}"
        process.popen.kill()


def _pickled(job: Declared) -> bytes:
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(job.graph)
    except Exception as error:
        what = unpicklable(job.graph.made_by_users(), cloudpickle.dumps)
        advice = "make it in open(), in reader() or when it is called"
        # Slots in threads have copies of the functions.
        with suppress(InvalidInputError):
            check_copies(job.graph.functions())
            advice += ", or start with mode='threads'"
        raise InvalidInputError(
            f"the job is pickled for the processes of its slots, and {what} cannot be: {type(error).__name__}: "
            f"{error}; {advice}"
        ) from error
    return data
