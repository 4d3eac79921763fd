"""What a server of PostgreSQL copies out on a connection: taken as it comes, without waiting for more."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg import Connection

_MOST_BYTES = 8 << 20
WAIT_MS = 1
"""So long a reader that has nothing waits for something."""


class Copying:
    """A `COPY ... TO STDOUT`, or a stream of replication, which is one in both directions."""

    def __init__(self, connection: Connection[Any], command: str) -> None:
        self.connection = connection
        self._libpq = connection.pgconn
        self._libpq.send_query(command.encode())
        self.began = False
        self.ended = False

    def take(self, most: int) -> list[bytes]:
        """Return so many messages at most, none if none have come."""
        taken: list[bytes] = []
        size = 0
        if not self.began and not self._begin():
            return taken
        while len(taken) < most and size < _MOST_BYTES and not self.ended:
            length, message = self._libpq.get_copy_data(1)
            if length > 0:
                taken.append(bytes(message))
                size += length
            elif length == 0:
                if not self._has_come(0 if taken else WAIT_MS):
                    break
                self._libpq.consume_input()
            else:
                self._check(self._libpq.get_result())
                self.ended = True
        return taken

    def send(self, message: bytes) -> None:
        """Send a message to a stream of replication."""
        if self.began and not self.ended:
            self._libpq.put_copy_data(message)
            self._libpq.flush()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _begin(self) -> bool:
        if self._libpq.is_busy() and self._has_come(WAIT_MS):
            self._libpq.consume_input()
        if self._libpq.is_busy():
            return False
        self._check(self._libpq.get_result())
        self.began = True
        return True

    def _has_come(self, wait_ms: int) -> bool:
        waiting = select.poll()
        waiting.register(self._libpq.socket, select.POLLIN)
        return bool(waiting.poll(wait_ms))

    def _check(self, result: Any) -> None:
        from psycopg import OperationalError, errors, pq

        if result is None:
            raise OperationalError("the server has ended the copy")
        if result.status in (pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH, pq.ExecStatus.COMMAND_OK):
            return
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        kind: type[Exception] = errors.lookup(state.decode()) if state is not None else OperationalError
        raise kind(result.error_message.decode(errors="replace").strip())
