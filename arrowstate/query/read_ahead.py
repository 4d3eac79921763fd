"""Doing the next steps of an iteration while the last one is being used.

The steps here spend their time in kernels and decoders that release the interpreter lock, so a few threads keep
as many cores busy. How many steps are ahead is bounded, and with it what they hold in memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_THREADS = 8


def map_ahead(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield the function's result for each item in order, a few items ahead of what was asked for.

    An error is raised in its turn. Where nobody asks on, what was begun ends and nothing else is begun.
    """
    pool, threads = _workers.get()
    begun: deque[Future[Result]] = deque()
    try:
        for item in items:
            begun.append(pool.submit(function, item))
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()


class _Workers:
    """The threads, started when they are first needed and again in a forked process."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        os.register_at_fork(after_in_child=self._forget)

    def get(self) -> tuple[ThreadPoolExecutor, int]:
        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="arrowstate-query")
        return self._pool, threads

    def _forget(self) -> None:
        self._pool = None


_workers = _Workers()
