"""The storage: no room, no answer, files taken by a collection."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arrowstate_formats.errors import ArrowStateError


def _in(url: str) -> str:
    """The part of a message that names the storage."""
    return f" (in {url})" if url else ""


@dataclass(eq=False, repr=False)
class StorageFullError(ArrowStateError, OSError):
    """A file could not be written for want of space: the disk, a quota or the largest file size.

    Nothing of the file is left, and the store is as it was.

    Examples
    --------
    >>> print(StorageFullError("data/counter/clicks/1.arrow", "No space left on device", "/data/clicks"))
    no room to write data/counter/clicks/1.arrow: No space left on device (in /data/clicks); nothing was kept, make \
room and try again
    """

    path: str
    detail: str
    url: str = ""

    def __str__(self) -> str:
        return f"no room to write {self.path}: {self.detail}{_in(self.url)}; nothing was kept, make room and try again"


class FileTooLargeError(StorageFullError):
    """A state is larger than a file may be in a storage in memory.

    Examples
    --------
    >>> print(FileTooLargeError("data/counter/clicks/1.arrow", 6_000_000, 5_242_880))
    no room to write data/counter/clicks/1.arrow: it has 6000000 bytes and a file in memory may have 5242880; nothing \
was kept: use a folder or a bucket, or open the store with storage_options={'max_file_bytes': ...}, None for no limit
    """

    file_bytes: int
    max_file_bytes: int

    def __init__(self, path: str, file_bytes: int, max_file_bytes: int, url: str = "") -> None:
        super().__init__(path, f"it has {file_bytes} bytes and a file in memory may have {max_file_bytes}", url)
        self.file_bytes, self.max_file_bytes = file_bytes, max_file_bytes
        self.args = path, file_bytes, max_file_bytes, url

    def __str__(self) -> str:
        return (
            f"no room to write {self.path}: {self.detail}{_in(self.url)}; nothing was kept: use a folder or a bucket, "
            "or open the store with storage_options={'max_file_bytes': ...}, None for no limit"
        )


@dataclass(eq=False, repr=False)
class StorageError(ArrowStateError, OSError):
    """The storage refused or failed a request for another reason: permissions, a device, a path that is a folder.

    Examples
    --------
    >>> print(StorageError("data/counter/clicks/1.arrow", "Permission denied", "s3://bucket/clicks"))
    data/counter/clicks/1.arrow: Permission denied (in s3://bucket/clicks)
    """

    path: str
    detail: str
    url: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}{_in(self.url)}" if self.path else f"{self.url}: {self.detail}"


class NameTakenError(StorageError, FileExistsError):
    """A new file was written under a name that another file has; that one is as it was.

    Examples
    --------
    >>> print(NameTakenError("data/counter/clicks/1.arrow", "/data/clicks"))
    data/counter/clicks/1.arrow: there is a file under this name already (in /data/clicks)
    """

    def __init__(self, path: str, url: str = "") -> None:
        super().__init__(path, "there is a file under this name already", url)
        self.args = path, url


class CollectedError(StorageError):
    """Files of a checkpoint were collected, or are being; nothing in the store is damaged.

    A writer gets it for files that its new checkpoint would refer to: nothing was committed. It happens to state
    restored from a checkpoint that was dropped meanwhile, and to a writer that took longer than the grace period of the
    collection to commit what it had written.

    A reader gets it for a checkpoint that cannot be read any more. Either newer ones have taken its place while it was
    read, and neither a tag nor a lease held it. Or its commit was never acknowledged: its files were taken for garbage
    before it was committed, by a collection with too short a grace period or a clock that jumped.

    Examples
    --------
    >>> print(CollectedError(["data/counter/clicks/1.arrow", "data/counter/clicks/2.arrow"]))
    data/counter/clicks/1.arrow: taken by a collection, as 1 other files were; nothing was committed, try again
    >>> print(CollectedError(["data/counter/clicks/1.arrow"], 41))
    data/counter/clicks/1.arrow is missing: checkpoint 41 was collected; read a newer one, and hold what is read for \
longer by store.lease() or a tag
    >>> print(CollectedError(["data/counter/clicks/1.arrow"], 41, acknowledged=False))
    data/counter/clicks/1.arrow is missing: a collection took it before checkpoint 41 was committed, which was never \
acknowledged; store.latest_whole() returns the newest checkpoint that is whole, restore that one and go on from it
    """

    paths: tuple[str, ...]
    checkpoint_id: int | None
    "The checkpoint that was read, None for one that was to be committed."
    acknowledged: bool
    "Whether the commit of the checkpoint that was read may have been reported as a success."

    def __init__(self, paths: Iterable[str], checkpoint_id: int | None = None, *, acknowledged: bool = True) -> None:
        self.paths, self.checkpoint_id, self.acknowledged = tuple(paths), checkpoint_id, acknowledged
        others = f", as {len(self.paths) - 1} other files were" if len(self.paths) > 1 else ""
        super().__init__(self.paths[0], f"taken by a collection{others}; nothing was committed, try again")
        self.args = self.paths, checkpoint_id

    def __str__(self) -> str:
        if self.checkpoint_id is None:
            return super().__str__()
        if self.acknowledged:
            return (
                f"{self.path} is missing: checkpoint {self.checkpoint_id} was collected; read a newer one, and hold "
                "what is read for longer by store.lease() or a tag"
            )
        return (
            f"{self.path} is missing: a collection took it before checkpoint {self.checkpoint_id} was committed, "
            "which was never acknowledged; store.latest_whole() returns the newest checkpoint that is whole, restore "
            "that one and go on from it"
        )
