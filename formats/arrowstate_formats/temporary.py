"""Folders for temporary files that go with their owner, and with the next one where the owner was killed.

A folder is locked by the process that made it, and the lock goes with the process; who makes a folder removes those
that nobody holds the lock of.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from arrowstate_formats import system

_PREFIX = "arrowstate-files-"


class TemporaryFolder:
    """A folder of this process in the place for temporary files; it goes with this object."""

    def __init__(self) -> None:
        _remove_abandoned()
        descriptor = None
        while descriptor is None:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            descriptor = _locked(self.path, wait=True)
        self._remove = weakref.finalize(self, _remove, self.path, descriptor, os.getpid())

    def remove(self) -> None:
        """Remove the folder and what is in it; nothing happens the second time."""
        self._remove()


def _locked(folder: Path, *, wait: bool) -> int | None:
    """Return a descriptor that holds the lock of a folder, None if it is gone or, without waiting, another's."""
    try:
        descriptor = system.lock_folder(folder, wait=wait)
    except OSError:
        if wait and folder.exists():
            raise
        return None
    # Before the lock was held, another process could take the folder for one that was left behind.
    if descriptor is not None and not folder.exists():
        os.close(descriptor)
        return None
    return descriptor


def _remove(folder: Path, descriptor: int, process: int) -> None:
    # A forked process has the object too, and must not take the folder away from the one that made it.
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
    os.close(descriptor)
    if process == os.getpid() and folder.exists():
        # Not every system removes a file that is open, as the lock was.
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """Remove the folders of processes that are gone; what belongs to other users stays."""
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            descriptor = _locked(folder, wait=False)
            if descriptor is not None:
                _remove(folder, descriptor, os.getpid())
