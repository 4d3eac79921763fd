"""Which storage a path or URL means.

Only storages on which a commit is safe are opened. The others are refused by name: a store on one
of them would work until two writers meet.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from arrowstate.errors import InvalidInputError, UnsupportedStorageError
from arrowstate.storage.base import Storage
from arrowstate.storage.local import LocalStorage
from arrowstate.storage.memory import MemoryStorage

__all__ = ["SUPPORTED", "open_storage"]

SUPPORTED = ("a local path", "file:///path", "memory://name")
"""What `open_storage` takes."""

_NO_CREATE = "it cannot create a file only if there is none, and two writers would overwrite each other"
_REASONS = dict.fromkeys(
    ("arrow_hdfs", "dir", "ftp", "hdfs", "http", "https", "scp", "sftp", "smb", "ssh", "webhdfs"), _NO_CREATE
) | dict.fromkeys(
    ("blockcache", "cached", "filecache", "simplecache"),
    "a cache hides the files of other writers",
)

# `file:/path` is how Java writes a local URL; any other protocol is followed by `//`, or by `::` in a chain of them.
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+._-]*)(?:://|::)|(file):")


def open_storage(url_or_path: str | os.PathLike[str], *, create: bool = False) -> Storage:
    """Open the storage at a path or URL.

    Parameters
    ----------
    url_or_path : str or PathLike
        A local path (absolute, relative to the working folder, or from `~`), a `file:` URL, or
        `memory://name` for one in the memory of this process. Every `memory://` URL of one name
        means the same files until the process ends.
    create : bool, default False
        Make the folder, with its parents, where there is none.

    Raises
    ------
    StoreNotFoundError
        If there is no such folder and `create` is false.
    UnsupportedStorageError
        If the URL names another storage; the message lists what is supported.
    InvalidInputError
        If the path is empty.
    StorageError
        If the path is a file, or the folder cannot be made.

    Examples
    --------
    >>> storage = open_storage("memory://jobs/clicks", create=True)
    >>> with storage.write_file("data/1.bin") as file:
    ...     _ = file.write(b"abc")
    >>> storage.list(""), storage.read("data/1.bin")
    (['data/1.bin'], b'abc')
    """
    given = os.fspath(url_or_path)
    if not given or "\0" in given:
        raise InvalidInputError(f"the path of a store must be a non-empty text without NUL, got {given!r}")
    match = _PROTOCOL.match(given) if isinstance(url_or_path, str) else None
    protocol = (match[1] or match[2]).lower() if match else None
    if protocol is None:
        return LocalStorage(Path(given).expanduser(), create=create)
    if protocol == "memory" and "::" not in given:
        return MemoryStorage(given, create=create)
    if protocol == "file" and "::" not in given:
        parts = urlsplit(given)
        if parts.netloc not in ("", "localhost"):
            raise UnsupportedStorageError(given, f"file on host {parts.netloc}", SUPPORTED)
        return LocalStorage(Path(unquote(parts.path)), create=create)
    raise UnsupportedStorageError(given, protocol, SUPPORTED, _REASONS.get(protocol, ""))
