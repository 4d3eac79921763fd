"""Queries that Ctrl-C ends.

DuckDB leaves the interpreter while it computes, and a signal waits until it is back. So a query runs in a thread of its
own, while this one waits for it or for a keyboard interrupt, and has DuckDB break off.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from arrowstate.query.duckdb.selecting import told_of_connection

if TYPE_CHECKING:
    import duckdb

Result = TypeVar("Result")

_LOOK_S = 0.05
"""A wait without an end may miss a signal, and a query that is only about to begin has not heard that it shall end."""


def interruptible(work: Callable[[], Result]) -> Result:
    """Return what a function returns that queries; a keyboard interrupt ends its query, and is raised here."""
    connections: list[duckdb.DuckDBPyConnection] = []
    done: dict[str, Any] = {}
    ended = threading.Event()
    interrupted = threading.Event()

    def started(connection: duckdb.DuckDBPyConnection) -> None:
        connections.append(connection)
        if interrupted.is_set():
            raise KeyboardInterrupt

    def run() -> None:
        told_of_connection.set(started)
        try:
            done["result"] = work()
        except BaseException as error:  # noqa: BLE001 (it is raised where it is waited for)
            done["error"] = error
        finally:
            connections.clear()
            ended.set()

    with _heard(interrupted):
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while not ended.wait(_LOOK_S):
            if interrupted.is_set():
                for connection in tuple(connections):
                    connection.interrupt()
        thread.join()
    error = done.pop("error", None)
    try:
        if interrupted.is_set():
            raise KeyboardInterrupt
        if error is not None:
            raise error
    finally:
        # An error holds this frame: a circle, and in it objects of DuckDB, which complains of them at exit.
        del error
    return cast("Result", done["result"])


@contextmanager
def _heard(interrupted: threading.Event) -> Iterator[None]:
    """Have an interrupt set an event in a block, so that it breaks off nothing in the middle of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
