"""The process of a slot: started by the job's, whose end is its own.

Its main thread runs the mailbox. One thread hears the coordinator; for each other slot one thread reads its frames and
one sends it frames, so that the mailbox never waits for a socket.
"""

from __future__ import annotations

import array
import ctypes
import gc
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import Any, NoReturn

import pyarrow as pa

from arrowstate.runtime.core.elements import Element
from arrowstate.runtime.core.messages import Deploy, FromSlot, NotBegun
from arrowstate.runtime.drivers.control import Connection
from arrowstate.runtime.drivers.frames import Credit, read_frame, write_credit, write_element
from arrowstate.runtime.drivers.mailbox import Mailbox, raise_it
from arrowstate.runtime.drivers.notes import BEAT, BEAT_MS, BUSY_SINCE, Page, monotonic_ms
from arrowstate.runtime.graph import StatefulNode
from arrowstate.storage.registry import open_storage
from arrowstate_formats.compiled import KERNELS, load_compiler

_PR_SET_PDEATHSIG = 1

_YOUNG_OBJECTS = 50_000
"""After how many new objects that may be garbage they are looked at; Python's own 700 is a part of a batch."""

_ALL_BEATS = 120
"""After how many beats all objects are looked at."""


class _Peer:
    """A socket to another slot."""

    def __init__(self, own: socket.socket, number: int, generation: int) -> None:
        self.socket = own
        self.number = number
        self.generation = generation
        self.outbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def send_all(self, mailbox: Mailbox) -> None:
        """Send what is put into the outbox; once the other slot is gone, nothing."""
        gone = False
        while (send := self.outbox.get()) is not None:
            if not gone:
                try:
                    send()
                except OSError:
                    # The coordinator hears of its end before anybody else.
                    gone = True
                except BaseException as error:  # noqa: BLE001 (the slot fails by it)
                    mailbox.post(partial(raise_it, error))


class Worker:
    """Brings messages and frames to the mailbox, and from it to where they belong."""

    def __init__(self, control: socket.socket, passing: socket.socket, page: Page | None = None) -> None:
        self._control = Connection(control)
        self._passing = passing
        self._peers: dict[int, _Peer] = {}
        self._linked = threading.Condition()
        plan = self._received()
        sys.path[:] = plan["path"]
        if plan.get("ignores_terminate"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        import pickle

        # What comes over this socket is of the process that started this one.
        graph = pickle.loads(plan["graph"])  # noqa: S301
        if any(isinstance(node, StatefulNode) for node in graph.tasks):
            # The first kernel would load numba, and the first step would seem to hang where little time is given.
            load_compiler()
            if plan.get("loads_all"):
                load_kernels()
        storage = open_storage(plan["store"], storage_options=plan["storage_options"])
        self._schemas: list[pa.Schema] = [edge.schema for edge in graph.edges]
        notes = None
        if page is not None:
            page.write_where_on_signal()
            notes = page.notes
        # A spare one is told later which it is.
        number = plan["slot"] if "slot" in plan else self._received()
        self._mailbox = Mailbox(graph, number, plan["setting"], storage, self, notes, lease_ms=plan["lease_ms"])

    def _received(self) -> Any:
        """Return what is needed to begin."""
        try:
            return self._control.receive()
        except EOFError:
            # The job's process is gone, or has no more use for this one.
            os._exit(0)

    def run(self) -> None:
        """Go on until the job's process is gone, or says so."""
        # What was loaded is no garbage; to visit it again and again was a fifth of a slot's time.
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS, 20, 100)
        for work in (self._hear, self._link, self._beat):
            threading.Thread(target=_or_end, args=(work,), daemon=True).start()
        self._mailbox.run()
        self._mailbox.finish()

    # What the mailbox asks for.

    def send(self, attempt: int, to: int, edge: int, element: Element) -> None:
        peer = self._peers[to]
        peer.outbox.put(lambda: write_element(peer.socket, attempt, edge, element))

    def grant(self, attempt: int, to: int, edge: int, size: int, window: int) -> None:
        peer = self._peers[to]
        peer.outbox.put(lambda: write_credit(peer.socket, attempt, edge, size, window))

    def tell(self, message: FromSlot) -> None:
        try:
            self._control.send(message)
        except OSError:
            # The job's process is gone: nobody would commit what this one does.
            os._exit(1)

    def _hear(self) -> None:
        try:
            while (message := self._control.receive()) is not None:
                generations = None
                if isinstance(message, tuple):
                    message, generations = message
                if isinstance(message, Deploy):
                    self._wait_for_links(generations or {})
                self._mailbox.post(methodcaller("hear", message))
        except EOFError:
            # The job's process is gone, and with it the right to write anything.
            os._exit(1)
        self._mailbox.close()

    def _beat(self) -> None:
        """Give a sign of life, which also tells whether there is somebody to get it."""
        waiting = threading.Event()
        beats = 0
        while True:
            self._mailbox.notes[BEAT] = monotonic_ms()
            if waiting.wait(BEAT_MS / 1000):
                return
            try:
                self._control.send(("busy since", self._mailbox.notes[BUSY_SINCE]))
            except OSError:
                os._exit(1)
            beats += 1
            # By time, for a few objects may hold large batches.
            gc.collect(2 if beats % _ALL_BEATS == 0 else 1)

    def _wait_for_links(self, generations: dict[int, int]) -> None:
        # A newer link is as good: the slot behind the older one has died, and whatever this attempt sends is void.
        with self._linked:
            self._linked.wait_for(
                lambda: all(
                    (peer := self._peers.get(number)) is not None and peer.generation >= generation
                    for number, generation in generations.items()
                )
            )

    def _link(self) -> None:
        """Take sockets to other slots, as they are started."""
        while True:
            try:
                data, files, _, _ = socket.recv_fds(self._passing, 64, 1)
            except OSError:
                data = b""
            if not data:
                # The job's process is gone; the thread that hears it may be waiting for a link that it will never send.
                os._exit(1)
            number, generation = array.array("q", data)
            peer = _Peer(socket.socket(fileno=files[0]), number, generation)
            with self._linked:
                before = self._peers.get(number)
                self._peers[number] = peer
                self._linked.notify_all()
            if before is not None:
                before.outbox.put(None)
                before.socket.close()
            threading.Thread(target=peer.send_all, args=(self._mailbox,), daemon=True).start()
            threading.Thread(target=self._receive, args=(peer,), daemon=True).start()

    def _receive(self, peer: _Peer) -> None:
        number = peer.number
        while True:
            try:
                frame = read_frame(peer.socket, self._schemas)
            except OSError:
                return
            except BaseException as error:  # noqa: BLE001 (the slot fails by it)
                self._mailbox.post(partial(raise_it, error))
                return
            if frame is None:
                return
            attempt, edge, element = frame
            if isinstance(element, Credit):
                mail = methodcaller("granted", attempt, edge, number, element.size, element.window)
            else:
                mail = methodcaller("take", attempt, edge, number, element)
            self._mailbox.post(mail)


def _or_end(work: Callable[[], None]) -> None:
    """Do what the process of a slot cannot be without; it ends if that raises, which the job's process sees."""
    try:
        work()
    except BaseException:  # noqa: BLE001 (it is told on stderr)
        traceback.print_exc()
        os._exit(1)


def load_kernels() -> None:
    """Load the compiled loops that some process has used before, so that no first batch waits for them."""
    for kernel in KERNELS:
        if kernel.is_kept:
            kernel.compile()


def end_with(process: int) -> None:
    """Have the system end this process with the one that started it, even while no thread of this one can run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != process:
        os._exit(1)


def main(argv: list[str]) -> NoReturn:
    """Run a slot: `python -m arrowstate.runtime.drivers.worker CONTROL_FD PASSING_FD [PAGE_FD JOB_PID]`."""
    # The job's process decides when slots end; a keyboard interrupt reaches all of its group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One slot is one thread of work: all of them together have the machine.
    pa.set_cpu_count(1)
    control, passing = (socket.socket(fileno=int(number)) for number in argv[:2])
    page = None
    if argv[2:]:
        page = Page(int(argv[2]))
        end_with(int(argv[3]))
    try:
        worker = Worker(control, passing, page)
    except BaseException as error:  # noqa: BLE001 (the coordinator decides what becomes of the job)
        # If the job's process is gone nobody has to know.
        with suppress(OSError):
            Connection(control).send(NotBegun(error))
        os._exit(1)
    worker.run()
    # All is written. What else the interpreter does at its end is to take itself apart, which takes a while.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
