"""The storage contract: what a store needs of the place it is kept in.

Files are immutable: one appears under its name complete and durable, or not at all, and is never
changed. The one exception is a hint, which says nothing that cannot be found out without it. All
safety of commits rests on `put_if_absent`: of any number of writers that put a file under one name,
from any number of processes, exactly one wins.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import BinaryIO, Protocol, cast, runtime_checkable

import pyarrow as pa

from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate_formats.names import check_relative_path


class Outcome(enum.Enum):
    """How a `put_if_absent` ended. A third possibility, that nobody can tell, is an error and not a value."""

    WON = "won"
    """The file holds what this call was given."""

    LOST = "lost"
    """The file was there before, and is another writer's."""


@runtime_checkable
class Storage(Protocol):
    """Named immutable files. Safe to use from several threads; pickles to a storage of the same URL.

    Paths are relative, with `/` between components. No component begins with `.`: such names are for
    files that are being written, and `list` leaves them out.

    Every method that takes a path raises `CorruptDataError` if the path is not relative, has an empty
    component or one that begins with `.`, or leads outside through a symbolic link, because paths come
    from stored documents; and `StorageError` for a failure of the storage itself, such as a missing
    permission.
    """

    @property
    def url(self) -> str:
        """What `open_storage` takes to open this storage again, also in another process."""
        ...

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of a file from `start`, to its end or at most `length`; fewer where the file ends."""
        ...

    def open_buffer(self, path: str) -> pa.Buffer:
        """Return a whole file without copying it: a memory map, or the bytes in memory.

        A remote storage maps a local copy of the version it has now. To find out whether what it keeps is
        intact, `read` it. The buffer stays valid as long as it is referenced, even if the file is deleted meanwhile.
        """
        ...

    def put_if_absent(self, path: str, data: bytes, commit_id: str) -> Outcome:
        """Create a file, durably and whole, if there is none under this name.

        `commit_id` is unique to this call and stands in `data`. It tells whose file is there when an
        answer was lost: an error of the storage does not mean that the file was not created.
        """
        ...

    def write_file(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Write a new file: it appears under `path`, durable and whole, when the block ends without an exception.

        On an exception, or if the process dies, there is never a file under `path`.
        """
        ...

    def put_hint(self, path: str, data: bytes) -> None:
        """Create or replace a small file: readers see the old or the new content, after a power cut perhaps neither."""
        ...

    def list_unfinished(self) -> list[str]:
        """Return the sorted names of what is being written, or was left by a process that died while it wrote.

        Nothing tells the two apart but time. No other method but `delete_unfinished` takes such a name, and none is
        ever used again.
        """
        ...

    def delete_unfinished(self, name: str) -> None:
        """Delete what `list_unfinished` named; nothing happens where it is gone.

        A writer that is still at it creates nothing: its write fails with `StorageError`, or it begins again.
        """
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the sorted paths of all files that begin with `prefix`, such as `log/`; the empty text means all."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file under this name."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, durably; nothing happens where there is none. Folders stay."""
        ...


def many_deletions(storage: Storage) -> AbstractContextManager[None]:
    """Return a block in which this thread deletes many files, all of them durably gone when it ends.

    A storage where that costs less than for one file after the other has a method of this name.
    """
    block = getattr(storage, "many_deletions", nullcontext)
    return cast("AbstractContextManager[None]", block())


def listed_pages(storage: Storage, prefix: str) -> Iterator[list[str]]:
    """Yield the paths of all files that begin with `prefix`, as `list` returns them, in pages and in no order.

    A storage that need not have all of them in memory for that has a method `list_pages`; of another the page is one.
    """
    pages = getattr(storage, "list_pages", None)
    if pages is None:
        yield storage.list(prefix)
    else:
        yield from pages(prefix)


def listed_level(storage: Storage, folder: str) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders and of the files that stand in a folder, `""` for the top.

    A storage that need not list all that lies below has a method `list_level`. Hidden names are left out.
    """
    level = getattr(storage, "list_level", None)
    if level is not None:
        return cast("tuple[list[str], list[str]]", level(folder))
    return level_of(storage, folder)


def level_of(storage: Storage, folder: str) -> tuple[list[str], list[str]]:
    """Return what `listed_level` does, from the list of all files below."""
    start = f"{folder}/" if folder else ""
    below = [path.removeprefix(start).partition("/") for path in storage.list(start)]
    return sorted({name for name, slash, _ in below if slash}), [name for name, slash, _ in below if not slash]


def check_commit(data: bytes, commit_id: str) -> None:
    """Refuse a commit whose author could not be told from its file."""
    if not commit_id or commit_id.encode() not in data:
        raise InvalidInputError(f"the commit id {commit_id!r} must stand in the data, to tell whose file is there")


def is_ours(body: bytes, commit_id: str) -> bool:
    """Whether a file that is there was put by the call with this commit id."""
    return commit_id.encode() in body


@lru_cache(512)
def check_path(path: str) -> str:
    """Return the path if it may name a file: inside the storage, and not one of the names for unfinished files."""
    if any(component.startswith(".") for component in check_relative_path(path).split("/")):
        raise CorruptDataError(path, "names that begin with '.' are for unfinished files")
    return path


def check_range(start: int, length: int | None) -> None:
    """Refuse a negative byte range, which Python would count from the end."""
    if start < 0 or (length is not None and length < 0):
        raise InvalidInputError(f"start and length must not be negative, got start={start}, length={length}")


def check_prefix(prefix: str) -> str:
    """Return the prefix if it is empty or the beginning of a path that may be."""
    if prefix:
        check_relative_path(prefix.removesuffix("/"))
    return prefix
