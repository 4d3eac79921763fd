"""Several files of a remote storage at a time: the one place where callers get threads for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from arrowstate.storage.base import Storage

__all__ = ["in_parallel"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_parallel(
    storage: Storage, call: Callable[[_Item], _Result], items: Sequence[_Item], *, name: str = "files"
) -> list[_Result]:
    """Return what `call` returns for each item, in order; calls overlap where waiting for a network dominates.

    A storage says by `files_at_once` how many calls may run at the same time, which also bounds the memory they
    take; one without it, a local disk or memory, gets them one after another in this thread.

    Parameters
    ----------
    storage
        Where the files are.
    call
        Reads or writes; from several threads.
    items
        What to call it with.
    name
        What the threads are called.

    Raises
    ------
    BaseException
        What the first call that failed raised, in the order of the items. No call is running then, and those that had
        not begun are left out.

    Examples
    --------
    >>> from arrowstate.storage import open_storage
    >>> in_parallel(open_storage("memory://parallel", create=True), str.upper, ["a", "b"])
    ['A', 'B']
    """
    at_once = min(getattr(storage, "files_at_once", 1), len(items))
    if at_once < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(at_once, f"arrowstate-{name}") as pool:
        futures = [pool.submit(call, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
