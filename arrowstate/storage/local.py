"""A storage in a folder of a local file system.

A new file is written under a temporary name in its own folder, made durable, and then linked to its
final name. `link` fails where the name exists; `rename` would replace it silently, and an exclusive
`open` would leave a torn file after a crash. So a commit has one winner among any number of
processes, and no reader ever sees half a file. Temporary names begin with a dot and are not
listed among the files; a writer that is killed leaves one behind and nothing else, until a collection deletes it.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import (
    ArrowStateError,
    CommitUnknownError,
    CorruptDataError,
    MissingFileError,
    NameTakenError,
    StorageError,
    StoreNotFoundError,
)
from arrowstate.storage.base import Outcome, check_commit, check_path, check_prefix, check_range, is_ours
from arrowstate.storage.posix import (
    NO_LINKS,
    NO_ROOM,
    WRITE_BUFFER_BYTES,
    CheckedFile,
    remove_empty_folders,
    storage_errors,
    translate,
)
from arrowstate_formats import system

_REFUSED = NO_ROOM | NO_LINKS | {errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
"""Errors of a link that say for sure that nothing was done."""


_PAGE = 1000
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.tmp")
_TAKEN = "its unfinished file is gone: a collection takes those for left behind that are older than its grace period"


class LocalStorage:
    """Files in a folder; see `Storage` for what each method promises.

    The file system must have hard links, as every common file system of Linux and macOS has. Links
    and locks over NFS are as good as its server.
    """

    writes_at_once = 4
    """How many files `in_parallel` writes at the same time: a disk makes several durable at once."""

    def __init__(self, root: Path, *, create: bool = False) -> None:
        # Resolved once: a working folder or a link to the store that changes later must not move an open store.
        self._root = Path(os.path.realpath(root))
        self.url = self._root_text = str(self._root)
        self._inside_text = os.path.join(self._root_text, "")  # noqa: PTH118
        self._deferred = threading.local()
        with storage_errors(str(self._root)):
            if create:
                _make_folders(self._root, self._root)
            try:
                is_folder = stat.S_ISDIR(self._root.stat().st_mode)
            except (FileNotFoundError, NotADirectoryError):
                raise StoreNotFoundError(str(self._root)) from None
        if not is_folder:
            raise StorageError(str(self._root), "is a file; a store is a folder")

    def __repr__(self) -> str:
        return f"LocalStorage({str(self._root)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._root,)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """See `Storage.read`."""
        check_range(start, length)
        location = self._inside(check_path(path))
        try:
            with open(location, "rb") as file:  # noqa: PTH123
                file.seek(start)
                return file.read(-1 if length is None else length)
        except OSError as error:
            raise self._unreadable(path, location, error) from error

    def open_buffer(self, path: str) -> pa.Buffer:
        """See `Storage.open_buffer`."""
        location = self._inside(check_path(path))
        try:
            with pa.memory_map(location) as mapped:
                return mapped.read_buffer()
        except OSError as error:
            raise self._unreadable(path, location, error) from error

    def local_path(self, path: str) -> Path:
        """Return where a file lies, or would lie, for a library that takes paths only."""
        return Path(self._inside(check_path(path)))

    def identity(self, path: str) -> tuple[int, int, int, int] | None:
        """Return what changes where a file is altered or replaced; None if there is no such file.

        It says nothing about links, which `open_buffer` looks at.
        """
        try:
            status = os.stat(self._inside_text + check_path(path))  # noqa: PTH116
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def put_if_absent(self, path: str, data: bytes, commit_id: str) -> Outcome:
        """See `Storage.put_if_absent`."""
        check_commit(data, commit_id)
        with self._new_file(path) as new:
            new.sink.write(data)
            new.make_durable()
            try:
                system.give_name(new.temporary, new.location)
            except OSError as error:
                return self._resolve(path, new.location, commit_id, error)
            self._sync_commit(path, new.location, commit_id)
        return Outcome.WON

    @contextmanager
    def write_file(self, path: str) -> Iterator[BinaryIO]:
        """See `Storage.write_file`."""
        with self._new_file(path) as new:
            yield new.sink
            new.make_durable()
            try:
                system.give_name(new.temporary, new.location)
            except FileExistsError as error:
                raise NameTakenError(path, self.url) from error
            except FileNotFoundError as error:
                raise StorageError(path, _TAKEN, self.url) from error
            except OSError as error:
                raise translate(path, error, self.url) from error
            try:
                system.sync_folder(new.location.parent)
            except OSError as error:
                # Where it cannot be taken away either it stays, and nothing refers to it.
                with suppress(OSError):
                    new.location.unlink()
                raise translate(path, error, self.url) from error

    def put_hint(self, path: str, data: bytes) -> None:
        """See `Storage.put_hint`."""
        with self._new_file(path) as new:
            new.sink.write(data)
            new.sink.flush()
            try:
                new.temporary.replace(new.location)
            except OSError as error:
                raise translate(path, error, self.url) from error

    def list_unfinished(self) -> list[str]:
        """See `Storage.list_unfinished`. Names are paths whose last component begins with a dot."""
        return sorted(self._walk("", lambda name: _UNFINISHED.fullmatch(name) is not None))

    def delete_unfinished(self, name: str) -> None:
        """See `Storage.delete_unfinished`."""
        folder, _, last = check_prefix(name).rpartition("/")
        if _UNFINISHED.fullmatch(last) is None:
            raise CorruptDataError(name, "it is not the name of an unfinished file")
        with storage_errors(name, self.url), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            Path(self._inside(folder), last).unlink()

    def _walk(self, folder: str, wanted: Callable[[str], bool]) -> list[str]:
        """The paths of all files in a folder and below whose names are wanted; hidden folders are left out."""
        top = self._inside(folder)
        found = []
        try:
            for parent, folders, files in os.walk(top, onerror=_raise_unless_gone):
                folders[:] = [name for name in folders if not name.startswith(".")]
                below = os.path.relpath(parent, top)
                start = "/".join(part for part in (folder, below if below != "." else "") if part)
                found += [f"{start}/{name}" if start else name for name in files if wanted(name)]
        except OSError as error:
            raise translate(folder, error, self.url) from error
        return found

    def remove_empty_folders(self) -> None:
        """Remove the folders that hold nothing, the root too."""
        remove_empty_folders(self._root)

    def list(self, prefix: str) -> list[str]:
        """See `Storage.list`."""
        folder, _, _ = check_prefix(prefix).rpartition("/")
        found = self._walk(folder, lambda name: not name.startswith("."))
        return sorted(path for path in found if path.startswith(prefix))

    def list_pages(self, prefix: str) -> Iterator[list[str]]:  # type: ignore[valid-type]
        """Yield what `list` returns in pages and in no order; only one of them is in memory."""
        folder, _, _ = check_prefix(prefix).rpartition("/")
        left, page = [folder], []
        while left:
            parent = left.pop()
            try:
                entries = os.scandir(self._inside(parent))
            except OSError as error:
                if isinstance(error, FileNotFoundError | NotADirectoryError):
                    continue
                raise translate(parent, error, self.url) from error
            with storage_errors(parent, self.url), entries:
                for entry in entries:
                    path = f"{parent}/{entry.name}" if parent else entry.name
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        left += [] if entry.is_symlink() else [path]
                    elif path.startswith(prefix):
                        page.append(path)
                    if len(page) == _PAGE:
                        yield page
                        page = []
        yield page

    def list_level(self, folder: str) -> tuple[list[str], list[str]]:  # type: ignore[valid-type]
        """See `arrowstate.storage.base.listed_level`; links to folders are not followed."""
        is_folder: dict[str, bool] = {}
        top = self._inside(check_prefix(folder))
        gone = suppress(FileNotFoundError, NotADirectoryError)
        with storage_errors(folder, self.url), gone, os.scandir(top) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and not (entry.is_dir() and entry.is_symlink()):
                    is_folder[entry.name] = entry.is_dir()
        return sorted(filter(is_folder.get, is_folder)), sorted(name for name in is_folder if not is_folder[name])

    def exists(self, path: str) -> bool:
        """See `Storage.exists`."""
        try:
            return Path(self._inside(check_path(path))).is_file()
        except OSError as error:
            raise translate(path, error, self.url) from error

    def delete(self, path: str) -> None:
        """See `Storage.delete`."""
        location = self._new(path)
        with storage_errors(path, self.url), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            with suppress(FileNotFoundError):
                # One that is gone may have been deleted by a process that died before that was durable.
                location.unlink()
            deferred: set[Path] | None = getattr(self._deferred, "folders", None)
            if deferred is None:
                system.sync_folder(location.parent)
            else:
                deferred.add(location.parent)

    @contextmanager
    def many_deletions(self) -> Iterator[None]:
        """Make what this thread deletes in the block durable when it ends: once for each folder, not for each file."""
        if getattr(self._deferred, "folders", None) is not None:
            yield
            return
        folders: set[Path] = set()
        self._deferred.folders = folders
        try:
            yield
        finally:
            self._deferred.folders = None
            failed = None
            for folder in sorted(folders):
                try:
                    system.sync_folder(folder)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    failed = translate(os.path.relpath(folder, self._root), error, self.url)
        # Not within `finally`: an error of the block is the one to report.
        if failed is not None:
            raise failed

    def _unreadable(self, path: str, location: str, error: OSError) -> ArrowStateError:
        """Return the error of this project for one of the file system, at a file that was to be read."""
        if isinstance(error, FileNotFoundError | NotADirectoryError) or os.path.isdir(location):  # noqa: PTH112
            return MissingFileError(self.url, path)
        return translate(path, error, self.url)

    def _new(self, path: str) -> Path:
        """Where a name is: links on the way are followed, a link under the name itself is what the name is."""
        folder, _, name = check_path(path).rpartition("/")
        return Path(self._inside(folder), name)

    def _inside(self, path: str) -> str:
        """Return where a file or a folder of the store is; every link on the way, the last too, must stay inside.

        It is called for every file of a restore. Texts are compared several times as fast as paths, and links are rare.
        """
        location = os.path.normpath(self._inside_text + path)
        end = 0
        try:
            while end >= 0:
                end = location.find(os.sep, end + 1)
                if stat.S_ISLNK(os.lstat(location if end < 0 else location[:end]).st_mode):
                    break
            else:
                return location
        except OSError:
            # There is nothing from here on, or nobody may look; who opens it is told.
            return location
        real = os.path.realpath(location)
        if real != self._root_text and not real.startswith(self._inside_text):
            raise CorruptDataError(path, "a symbolic link leads outside the store")
        return real

    @contextmanager
    def _new_file(self, path: str) -> Iterator[_NewFile]:
        """A file under a temporary name beside its place, whose folder is made; the temporary name goes in the end."""
        location = self._new(path)
        try:
            _make_folders(location.parent, self._root)
            temporary = location.parent / f".{uuid.uuid4().hex}.tmp"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.OPEN, 0o666)
        except OSError as error:
            raise translate(path, error, self.url) from error
        sink = io.BufferedWriter(CheckedFile(descriptor, path, self.url), WRITE_BUFFER_BYTES)
        try:
            yield _NewFile(path, self.url, location, temporary, descriptor, sink)
        finally:
            # What a failed write left in the buffer is not wanted any more, and what is durable does not need it.
            with suppress(OSError):
                sink.close()
            with suppress(OSError):
                os.close(descriptor)
            with suppress(OSError):
                temporary.unlink()

    def _resolve(self, path: str, location: Path, commit_id: str, error: OSError) -> Outcome:
        """Tell how a link ended that reported an error: what is there decides, not the error."""
        try:
            body = self.read(path)
        except MissingFileError:
            if isinstance(error, FileNotFoundError):
                raise StorageError(path, _TAKEN, self.url) from error
            if error.errno in _REFUSED:
                raise translate(path, error, self.url) from error
            raise CommitUnknownError(path, commit_id, str(error), self.url) from error
        except StorageError as unreadable:
            raise CommitUnknownError(path, commit_id, f"{error}; {unreadable}", self.url) from error
        if not is_ours(body, commit_id):
            return Outcome.LOST
        self._sync_commit(path, location, commit_id)
        return Outcome.WON

    def _sync_commit(self, path: str, location: Path, commit_id: str) -> None:
        """Make the name of a commit durable; a name that is there but may not survive is no answer."""
        try:
            system.sync_folder(location.parent)
        except OSError as error:
            raise CommitUnknownError(path, commit_id, str(error), self.url) from error


class _NewFile(Struct, frozen=True):
    path: str
    url: str
    location: Path
    """Where it will be."""
    temporary: Path
    """Where it is."""
    descriptor: int
    """Open to the end, even if the sink was closed: the writer of a columnar file may do that."""
    sink: io.BufferedWriter[Any]

    def make_durable(self) -> None:
        if not self.sink.closed:
            # What it writes raises the errors of this project.
            self.sink.flush()
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            raise translate(self.path, error, self.url) from error


_DURABLE: set[Path] = set()
"""Folders whose names this process has made durable."""


def _make_folders(folder: Path, root: Path) -> None:
    """Make a folder and its parents, the name of each durable in the folder above.

    Below the root that holds for folders that are there already too: who made one may not have come to that. So does it
    for the root itself, where the folder above may be opened.
    """
    steps = []
    while not (folder.is_dir() and (folder in _DURABLE or not folder.is_relative_to(root))):
        steps.append(folder)
        if folder == folder.parent:
            break
        folder = folder.parent
    for made in reversed(steps):
        was_there = made.is_dir()
        made.mkdir(exist_ok=True)
        try:
            system.sync_folder(made.parent)
        except PermissionError:
            if not was_there or made != root:
                raise
        _DURABLE.add(made)


def _raise_unless_gone(error: OSError) -> None:
    """A folder that is not there, or went while the files are listed, has no files."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
