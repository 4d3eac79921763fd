"""What each operating system does in a way of its own: locks that end with their process, names that are given once.

Linux and macOS lock with `flock` and give names with hard links. The portable way is for Windows: `filelock` locks, and
a name is given by a move that first looks, under a lock, whether the name is taken. `ARROWSTATE_PORTABLE=1` in the
environment takes the portable way on any system. All processes that use a folder must go the same way.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

try:
    import fcntl
except ImportError:
    _HAS_FLOCK = False
else:
    _HAS_FLOCK = True

PORTABLE = not _HAS_FLOCK or os.environ.get("ARROWSTATE_PORTABLE", "0") not in ("", "0")
"""Whether this process goes the portable way."""

LOCK_NAME = ".lock"
"""The file that the portable way locks in the place of a folder."""

OPEN = getattr(os, "O_CLOEXEC", getattr(os, "O_NOINHERIT", 0)) | getattr(os, "O_BINARY", 0)
"""Flags of every file that is opened: its bytes as they are, and no process that is started has it."""


def lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file until it is closed or its process ends; without `wait` return False if another has it locked.

    Raises
    ------
    OSError
        If the file system has no locks.
    """
    if PORTABLE:
        # Only systems without `flock` need it installed.
        from filelock import lock_descriptor

        return lock_descriptor(descriptor, blocking=wait)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def lock_folder(folder: Path, *, wait: bool) -> int | None:
    """Return a descriptor that holds the lock of a folder until it is closed; None if another process has it.

    Raises
    ------
    OSError
        If there is no such folder, or it cannot be opened.
    """
    if PORTABLE:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | OPEN, 0o666)
    else:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | OPEN)
    is_locked = False
    try:
        is_locked = lock(descriptor, wait=wait)
    finally:
        if not is_locked:
            os.close(descriptor)
    return descriptor if is_locked else None


def give_name(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give a file another name, which no file of the folder has; the first name may stay or go.

    Of any number of processes that give a name, one wins.

    Raises
    ------
    FileExistsError
        If there is a file of the name.
    OSError
        If the file system has no hard links, among others.
    """
    if not PORTABLE:
        os.link(source, target)
        return
    # A rename would replace a file of the name silently.
    descriptor = lock_folder(Path(target).parent, wait=True)
    assert descriptor is not None
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(source), None, os.fspath(target))
        os.replace(source, target)  # noqa: PTH105
    finally:
        # Whatever closing reports, the file has its name by now or has none.
        with suppress(OSError):
            os.close(descriptor)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable, where the system does not do so on its own.

    Raises
    ------
    OSError
        If the folder is gone, or the disk failed.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | OPEN)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems make names durable on their own and have no such call.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def after_fork(call: Callable[[], None]) -> None:
    """Have something called in each process that is forked from this one, before it does anything else.

    A lock that another thread holds at that moment is never let go there.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


class _Lock(Protocol):
    def acquire(self) -> Any: ...

    def release(self) -> Any: ...


L = TypeVar("L", bound=_Lock)


def forks_wait_for(made: L) -> L:
    """Return a lock that is free in each process that is forked from this one, where what it guards is whole.

    Whoever forks waits until no other thread holds it; a thread that may fork while it holds it itself needs an
    `RLock`.
    """
    taken: list[bool] = []

    def before() -> None:
        # An interrupt while this waits is passed over, and the process forks all the same.
        taken.append(bool(made.acquire()))

    def after() -> None:
        if taken:
            taken.pop()
            made.release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)
    return made


def user() -> str:
    """Return what tells the users of this machine apart, as a part of a name."""
    if hasattr(os, "getuid"):
        return str(os.getuid())
    with suppress(OSError, KeyError):
        return os.getlogin()
    return "user"
