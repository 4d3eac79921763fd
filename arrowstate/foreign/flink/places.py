"""Where the files of a savepoint lie, and that nothing else is opened.

A savepoint is a folder that can be moved: its files are named relative to it. Shared files of checkpoints are named by
the absolute place where Flink wrote them; they are looked for by what stands after `shared`, `taskowned` or `chk-N` in
it, and by their names, below the folder of the job and nowhere else, but for the files of a job that it went on from:
the folder of that one is beside its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import CorruptDataError, InvalidInputError, MissingFileError, StoreNotFoundError
from arrowstate.foreign.flink.handles import FileHandle, InlineHandle, StreamHandle
from arrowstate.foreign.flink.sst import HeldFile, RangeFile, StoredFile
from arrowstate.storage import ObjectStorage, Storage, open_storage

METADATA = "_metadata"
_CHECKPOINT = re.compile(r"chk-(\d+)")
_JOB = re.compile(r"[0-9a-f]{32}")
_BELOW_A_JOB = re.compile(r"shared|taskowned|chk-\d+")

Bytes = npt.NDArray[np.uint8]


class Stream:
    """The bytes of a handle."""

    __slots__ = ("data", "name")

    def __init__(self, data: Bytes, name: str) -> None:
        self.data, self.name = data, name

    @property
    def view(self) -> memoryview:
        """The bytes, for readers of single values."""
        return self.data.data


class Places:
    """The folder of a savepoint or checkpoint, and for a checkpoint the folder of its job."""

    def __init__(self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> None:
        given = os.fspath(url)
        text = given.rstrip("/").removesuffix("/" + METADATA)
        if not text:
            raise InvalidInputError(f"the place of a savepoint must be a folder, got {given!r}")
        before, slash, last = text.rpartition("/")
        self.storage: Storage
        self.folder = ""
        self._options = storage_options
        self._job = text
        if _CHECKPOINT.fullmatch(last):
            self._job, self.folder = before if slash else ".", last + "/"
        try:
            self.storage = open_storage(self._job, storage_options=storage_options)
        except StoreNotFoundError:
            raise _no_savepoint(given) from None
        if not self.folder and not self.storage.exists(METADATA):
            self.folder = self._last_checkpoint(given)
        self.url = text
        if not self.storage.exists(self.folder + METADATA):
            raise _no_savepoint(given)
        self._files: dict[str, list[str]] | None = None
        self._other_jobs: dict[str, Storage] = {}
        self.metadata = self._mapped(self.folder + METADATA)

    def _last_checkpoint(self, given: str) -> str:
        """The newest complete checkpoint of a job's folder."""
        found = [_CHECKPOINT.fullmatch(path.partition("/")[0]) for path in self.storage.list("chk-")]
        numbers = {int(match[1]) for match in found if match}
        for number in sorted(numbers, reverse=True):
            if self.storage.exists(f"chk-{number}/{METADATA}"):
                return f"chk-{number}/"
        raise _no_savepoint(given)

    def open(self, handle: StreamHandle, *, is_sized: bool = True) -> Stream:
        """Return the bytes of a handle; whether it tells the size of its file is a matter of who wrote it."""
        if isinstance(handle, InlineHandle):
            data = self.metadata.data[handle.start : handle.start + handle.size]
            return Stream(data, f"{self.folder}{METADATA} (inline, from byte {handle.start})")
        storage, path = self._place(handle)
        stream = self._mapped(path, storage)
        if handle.start is not None:
            if handle.start + handle.size > len(stream.data):
                raise CorruptDataError(
                    path, f"bytes {handle.start} to {handle.start + handle.size} of {len(stream.data)} are missing"
                )
            part = stream.data[handle.start : handle.start + handle.size]
            return Stream(part, f"{path} (from byte {handle.start})")
        if is_sized and len(stream.data) != handle.size:
            raise CorruptDataError(path, f"it has {len(stream.data)} bytes and must have {handle.size}")
        return stream

    def ranges(self, handle: StreamHandle) -> RangeFile:
        """Return a file to be read by ranges: mapped where it is at hand, and else no more of it than is asked for."""
        if isinstance(handle, FileHandle):
            storage, path = self._place(handle)
            if isinstance(storage, ObjectStorage):
                return StoredFile(storage, path, handle.start or 0, handle.size)
        stream = self.open(handle)
        return HeldFile(stream.name, stream.view)

    def _mapped(self, path: str, storage: Storage | None = None) -> Stream:
        buffer: pa.Buffer = (storage or self.storage).open_buffer(path)
        return Stream(np.frombuffer(buffer, dtype=np.uint8), path)

    def _place(self, handle: FileHandle) -> tuple[Storage, str]:
        """The path of a file and the storage that it is in, never outside the folders of the savepoint."""
        if handle.relative:
            if "/" in handle.path or handle.path in ("", ".", ".."):
                raise CorruptDataError(METADATA, f"the file {handle.path!r} is not in the savepoint's folder")
            return self.storage, self.folder + handle.path
        parts = [part for part in handle.path.split("/") if part]
        if ".." in parts or "." in parts or not parts:
            raise CorruptDataError(METADATA, f"the file {handle.path!r} leads outside")
        for place in range(len(parts) - 1, -1, -1):
            if _BELOW_A_JOB.fullmatch(parts[place]):
                path = "/".join(parts[place:])
                if self.storage.exists(path):
                    return self.storage, path
                if place and _JOB.fullmatch(parts[place - 1]) and self._other(parts[place - 1]).exists(path):
                    return self._other(parts[place - 1]), path
        if self._files is None:
            # Whole before another thread sees it.
            files: dict[str, list[str]] = {}
            for path in self.storage.list(""):
                files.setdefault(path.rpartition("/")[2], []).append(path)
            self._files = files
        found = self._files.get(parts[-1], [])
        if len(found) != 1:
            places = f" ({' and '.join(found)} have its name)" if found else ""
            raise MissingFileError(self.storage.url, handle.path + places)
        return self.storage, found[0]

    def _other(self, job: str) -> Storage:
        """The folder of another job beside that of this one, which went on from its checkpoint and owns it now."""
        if job not in self._other_jobs:
            before, slash, last = self._job.rpartition("/")
            beside = f"{before}{slash}{job}" if last != "." else f"{self._job}./{job}"
            self._other_jobs[job] = open_storage(beside, storage_options=self._options)
        return self._other_jobs[job]


def _no_savepoint(given: str) -> StoreNotFoundError:
    remedy = f"give the folder that has `{METADATA}`, or that of a job with its `chk-N`"
    return StoreNotFoundError(given, "savepoint or checkpoint of Flink", remedy)
