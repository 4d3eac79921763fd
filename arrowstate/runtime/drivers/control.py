"""Messages between the coordinator's process and those of the slots: pickled, with their length before them."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from typing import Any

from arrowstate.runtime.core.messages import Failed, NotBegun, NotClosed
from arrowstate.shown import error_text

_LENGTH = struct.Struct("<Q")


class Connection:
    """One side of a control socket; any thread may send, one receives."""

    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a message; OSError if the other side is gone."""
        data = pickle.dumps(sendable(message), protocol=5)
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """Return the next message; EOFError if the other side is gone."""
        # Both sides are processes of one job, started by it.
        return pickle.loads(self._exactly(_LENGTH.unpack(self._exactly(_LENGTH.size))[0]))  # noqa: S301

    def close(self) -> None:
        """End it; whoever waits for a message gets EOFError."""
        # The other side may have been faster.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view.nbytes:
            try:
                count = self._socket.recv_into(view)
            except OSError:
                count = 0
            if not count:
                raise EOFError
            view = view[count:]
        return bytes(data)


def sendable(message: Any) -> Any:
    """Return a message with the traceback of its error, which can be pickled: an error that cannot becomes its text."""
    if not isinstance(message, (Failed, NotBegun, NotClosed)):
        return message
    error: BaseException = message.error
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (it was pickled here)
    except Exception:  # noqa: BLE001 (errors of users may be anything)
        error = RuntimeError(error_text(error))
    return replace(message, error=error, trace=trace)
