"""Errors of the local file system as errors of this project, for local storages and for local copies of remote ones."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from arrowstate.errors import ArrowStateError, StorageError, StorageFullError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
WRITE_BUFFER_BYTES = 1 << 20


class CheckedFile(io.FileIO):
    """A file whose writes raise the errors of this project, at the call that failed.

    Closing it leaves the descriptor.
    """

    def __init__(self, descriptor: int, path: str, url: str = "") -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._path = path
        self._url = url

    def write(self, data: Any, /) -> int:
        """Write, or raise StorageFullError or StorageError."""
        try:
            return super().write(data)
        except OSError as error:
            raise translate(self._path, error, self._url) from error


@contextmanager
def storage_errors(path: str, url: str = "") -> Iterator[None]:
    """Turn an OSError into the error of this project that fits; others pass."""
    try:
        yield
    except ArrowStateError:
        raise
    except OSError as error:
        raise translate(path, error, url) from error


def translate(path: str, error: OSError, url: str = "") -> ArrowStateError:
    """Return the error of this project for an error of the file system."""
    detail = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return StorageFullError(path, detail, url)
    if error.errno in NO_LINKS and error.filename2 is not None:
        return StorageError(path, f"{detail}: the file system must have hard links, on which commits rest", url)
    return StorageError(path, detail, url)


def remove_empty_folders(root: Path) -> None:
    """Remove the folders below a root that hold nothing, the root, and the folder of savepoints if it was the last.

    What cannot be removed stays: an empty folder does no harm.
    """
    folders = [Path(parent) for parent, _, _ in os.walk(root, topdown=False)]
    folders += [root.parent] if root.parent.name == "savepoints" else []
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
