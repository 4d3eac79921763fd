"""Queries of the page in processes of their own, whose memory the system bounds.

DuckDB's limit does not count all that a query takes: constants that are computed while it is planned, long texts, and
what is under way between operators. So a query runs in a child, which gets no more memory than it may have, and is
killed when it is stopped. Children are forks of one process that has loaded all that a query needs and has no threads.
It is begun with the first query, and ends with the process that it belongs to.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from arrowstate.errors import InvalidInputError
from arrowstate.ui.work import Stop

MEMORY_BYTES = 512 << 20
"""What a query may take in all, beside what its process has loaded."""

_LOOK_SECONDS = 0.05
_SECONDS_AFTER = 5
"""A child ends so long after the time of its query, whoever has forgotten it."""

_ENDED_EARLY = (
    f"the query needs more than the {MEMORY_BYTES >> 20} MB of memory that it may take on the page; `arrowstate sql` "
    "has no such bound"
)
_NOT_BEGUN = (
    "the query was not begun: the process that begins queries ended twice, as where a system has too little memory; "
    "ask again, or use `arrowstate sql`"
)
_NO_CHILD = 0
"""In the place of the number of a child: none could be forked, and the reason follows."""
_PID_BYTES = 8


class _Parent:
    """The process from which children are forked."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        self._control = mine
        self._lock = threading.Lock()
        self.owner = os.getpid()
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "arrowstate.ui.processes", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path),
                # Pools that set memory aside in advance have it before it is bounded; threads would not be forked.
                "ARROW_DEFAULT_MEMORY_POOL": "system",
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
            # A keyboard interrupt is for the page, which decides when its queries end.
            process_group=0,
        )
        theirs.close()
        self._control.recv(1)

    def child(self, file: int) -> tuple[socket.socket, int] | None:
        """Return a connection to a new child, which writes to a file, and its number; None if there is none."""
        mine, theirs = socket.socketpair()
        with ExitStack() as failed:
            failed.enter_context(mine)
            try:
                with theirs, self._lock:
                    socket.send_fds(self._control, [b"q"], [theirs.fileno(), file])
                begun = mine.recv(_PID_BYTES, socket.MSG_WAITALL)
            except ConnectionError:
                return None
            if len(begun) < _PID_BYTES:
                return None
            pid = int.from_bytes(begun)
            if pid == _NO_CHILD:
                with mine.makefile("rb") as reason:
                    raise InvalidInputError(
                        f"the query was not begun, for no process could be made for it: {reason.read().decode()}; ask "
                        "again when less runs on this machine"
                    )
            failed.pop_all()
        return mine, pid

    def end(self) -> None:
        """End the process; its children go on."""
        self.popen.kill()
        self.popen.wait()


_parent: _Parent | None = None
_making = threading.Lock()


def ready() -> _Parent:
    """Return the process from which children are forked, made now if there is none that lives."""
    global _parent
    if not hasattr(os, "fork"):
        raise InvalidInputError(
            f"SQL on the page runs in a process that is forked, which {sys.platform} cannot; use `arrowstate sql`"
        )
    with _making:
        if _parent is None or _parent.owner != os.getpid() or _parent.popen.poll() is not None:
            _parent = _Parent()
        return _parent


def _begun(file: int) -> tuple[socket.socket, int]:
    """Return a connection to a new child, and its number; where the process that forks it dies, a new one is asked."""
    for _ in range(2):
        parent = ready()
        begun = parent.child(file)
        if begun is not None:
            return begun
        # It may still be on its way out, and would be taken for one that lives.
        parent.end()
    raise InvalidInputError(_NOT_BEGUN)


def call(function: Callable[..., Any], arguments: tuple[Any, ...], *, seconds: float, stop: Stop, file: int) -> Any:
    """Return what a function returns in a child, which may write to a file; it is killed when it is stopped."""
    connection, pid = _begun(file)
    with connection, connection.makefile("rb") as answer:
        try:
            connection.sendall(pickle.dumps((function, arguments, seconds)))
            connection.shutdown(socket.SHUT_WR)
            while not select.select([connection], [], [], _LOOK_SECONDS)[0]:
                if stop.reason is not None:
                    raise InvalidInputError(stop.reason)
            found = answer.read()
        except BaseException:
            # It waits for this end of the connection to be closed, so its number is nobody else's.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise
    if not found:
        raise InvalidInputError(stop.reason or _ENDED_EARLY)
    value, error = pickle.loads(found)  # noqa: S301 (our own child wrote it)
    if error is not None:
        raise error
    return value


def _run(connection: socket.socket, file: int) -> None:
    """Do in a child what it is asked for."""
    # Where there is none, no child is forked.
    import resource

    with connection, connection.makefile("rb") as question:
        connection.sendall(os.getpid().to_bytes(_PID_BYTES))
        function, arguments, seconds = pickle.loads(question.read())  # noqa: S301 (the page wrote it)
        # Whatever it is at: the system ends it.
        signal.setitimer(signal.ITIMER_REAL, seconds + _SECONDS_AFTER)
        used = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
        most = (int(used.split()[1]) << 10) + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        outcome: tuple[Any, Exception | None]
        try:
            outcome = function(*arguments, file), None
        except MemoryError:
            outcome = None, InvalidInputError(_ENDED_EARLY)
        except Exception as error:  # noqa: BLE001 (it is raised where the query was asked for)
            outcome = None, error
        connection.sendall(pickle.dumps(outcome))
        connection.shutdown(socket.SHUT_WR)


def main(control: socket.socket) -> None:
    """Fork a child for each question, until the page is gone."""
    # What a query needs, so that no child loads it.

    import arrowstate.ui.sandbox
    import arrowstate.ui.shown  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    control.sendall(b"r")
    while True:
        found, files, _, _ = socket.recv_fds(control, 1, 2)
        if not found:
            return
        try:
            pid = os.fork()
        except OSError as error:
            # Whoever asked may be gone.
            with suppress(OSError), socket.socket(fileno=files[0]) as connection:
                connection.sendall(_NO_CHILD.to_bytes(_PID_BYTES) + str(error.strerror).encode())
            os.close(files[1])
            continue
        if pid == 0:
            control.close()
            try:
                _run(socket.socket(fileno=files[0]), files[1])
            finally:
                os._exit(0)
        for file in files:
            os.close(file)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
