"""Several files of a storage at a time: the one place where callers get threads for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from arrowstate.storage.base import Storage, many_deletions

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_parallel(
    storage: Storage,
    call: Callable[[_Item], _Result],
    items: Sequence[_Item],
    *,
    name: str = "files",
    writes: bool = False,
    small: bool = False,
) -> list[_Result]:
    """Return what `call` returns for each item, in order; calls overlap where waiting for the storage dominates.

    A storage says by `files_at_once` how many calls may run at the same time, which also bounds the memory they
    take, by `writes_at_once` how many of them if they write, and by `requests_at_once` how many of them if each is one
    request for next to nothing, such as a document or a deletion; one without it gets them one after another in this
    thread. A local disk has the second alone: what it maps it need not wait for, but for each file to be durable.
    """
    at_once = min(_at_once(storage, writes=writes, small=small), len(items))
    if at_once < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(at_once, f"arrowstate-{name}") as pool:
        futures = [pool.submit(call, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def overlaps(storage: Storage) -> bool:
    """Whether small requests to a storage are made beside each other."""
    return _at_once(storage, writes=False, small=True) > 1


def delete_all(storage: Storage, paths: Sequence[str]) -> None:
    """Delete files, all of them durably gone when it returns; nothing happens where there is none.

    They go in no order, so none of them may have to go before another. A storage that deletes many with one request has
    a method `delete_many`.
    """
    together = getattr(storage, "delete_many", None)
    if together is not None:
        together(paths)
        return
    with many_deletions(storage):
        in_parallel(storage, storage.delete, paths, name="deletions", small=True)


def _at_once(storage: Storage, *, writes: bool, small: bool) -> int:
    at_once: int = getattr(storage, "files_at_once", 1)
    if small:
        at_once = max(at_once, getattr(storage, "requests_at_once", 1))
    return max(at_once, getattr(storage, "writes_at_once", 1)) if writes else at_once
