"""A storage in a bucket of S3 or Google Cloud Storage, or a container of Azure.

A commit is one request that creates an object only if there is none. Its error says nothing about its
outcome: the answer can be lost after the object was made, and the request that is repeated then, by
this module or by the HTTP client without telling, finds its own object in the way. So after any error
the object is read and the commit id in it decides. A file is
filled on the local disk and uploaded, with the same condition, when its block ends. Reads that map a
file go through a local cache of copies.
"""

from __future__ import annotations

import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa

from arrowstate.errors import (
    ArrowStateError,
    CommitUnknownError,
    CorruptDataError,
    InvalidInputError,
    MissingFileError,
    NameTakenError,
    StorageError,
    StorageFullError,
    UnsupportedStorageError,
)
from arrowstate.storage.base import (
    Outcome,
    check_commit,
    check_path,
    check_prefix,
    check_range,
    is_ours,
    level_of,
)
from arrowstate.storage.cache import FileCache, LocalFile, default_cache_folder
from arrowstate.storage.clients import (
    PART_BYTES,
    Failure,
    classify,
    describe,
    end_upload,
    make_client,
    unfinished_uploads,
    upload_options,
)
from arrowstate.storage.many_objects import DELETED_TOGETHER, delete_together, listed_keys
from arrowstate.storage.parallel import in_parallel
from arrowstate.storage.retries import Retries, RetryBudget, RetryClock

_SINGLE_REQUEST_BYTES = 2 * PART_BYTES
_NOT_IN_KEYS = frozenset("?#")
"""Clients take what follows for a version of the object."""
_PROBE = ".probe-"
_PROBE_NAME = re.compile(r"\.probe-[0-9a-f]{32}")
_UPLOAD = "?uploadId="
_KNOWN_TO_KEEP_CONDITIONS: set[tuple[str, ...]] = set()
"""Protocol, bucket and endpoint of the services that were tried out."""
_T = TypeVar("_T")


class ObjectStorage:
    """Objects under a URL; see `Storage` for what each method promises.

    There are no folders: any prefix in a bucket that exists is an empty storage. A request that was cut off
    can still arrive after its call has failed. For a commit that is `CommitUnknownError`; of `write_file` a
    file can appear later that nothing refers to. A file that is in the way of `write_file` with the very same
    content is taken for its own, whose answer was lost.
    """

    files_at_once = 4
    """How many files, or ranges of one file, `in_parallel` reads or writes at the same time."""
    requests_at_once = 64
    """The same for requests of next to nothing, such as deletions."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        *,
        retries: RetryBudget | None = None,
        cache: FileCache | None = None,
        clock: RetryClock | None = None,
    ) -> None:
        self._url = url
        self._protocol, _, place = url.partition("://")
        self._options = dict(options or {})
        self._budget = retries or RetryBudget()
        self._cache = cache or FileCache(default_cache_folder())
        self._clock = clock or RetryClock()
        bucket, _, prefix = place.partition("/")
        # Azure's container@account: the account is an argument of the client.
        self._root = "/".join(part for part in (bucket.partition("@")[0], prefix) if part) + "/"
        if not bucket or _NOT_IN_KEYS & set(prefix):
            raise InvalidInputError(f"a URL must name a bucket and a prefix without '?' and '#', got {url!r}")
        self._client_lock = threading.Lock()
        self._client: Any = make_client(self._protocol, url, self._options)
        self._client_process = os.getpid()
        given = {**(self._options.get("client_kwargs") or {}), **self._options}
        self._service = (self._protocol, bucket, str(given.get("endpoint_url") or given.get("connection_string")))

    @property
    def url(self) -> str:
        """The URL without slashes at its end and without secrets."""
        return self._url

    @property
    def options(self) -> dict[str, Any]:
        """What `open_storage` takes as `storage_options` to open this storage again."""
        return {
            **self._options,
            "retry_attempts": self._budget.attempts,
            "retry_seconds": self._budget.seconds,
            "cache_dir": str(self._cache.folder),
            "cache_bytes": self._cache.limit_bytes,
        }

    def __repr__(self) -> str:
        return f"ObjectStorage({self._url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), retries=self._budget, cache=self._cache)
        return make, (self._url, self._options)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """See `Storage.read`. It asks the service each time; a local copy is not used."""
        check_range(start, length)
        key = self._key(path)
        if length == 0:
            self._info(path, key)
            return b""
        return self._call(path, lambda: self._get(key, start, length))

    def open_buffer(self, path: str) -> pa.Buffer:
        """See `Storage.open_buffer`. The buffer is a local copy of the version that the service has now."""
        key = self._key(path)
        size, version = self._info(path, key)
        with self._naming(path):
            return self._cache.open(
                self._copy_of(path), size, partial(self._download, path, key, size), version=version
            )

    def put_if_absent(self, path: str, data: bytes, commit_id: str) -> Outcome:
        """See `Storage.put_if_absent`. Before the first one it is tried out whether the service keeps the condition."""
        check_commit(data, commit_id)
        key = self._key(path)
        self._check_creates()
        retries = self._retries()
        while True:
            try:
                self._fs.pipe_file(key, data, mode="create")
            except Exception as error:
                outcome = self._whose(key, commit_id)
                if outcome is not None:
                    return outcome
                # Not there now, but a request that was cut off may still arrive: only another attempt can tell. Not
                # even a refusal can, for it may be the answer to the second of two requests that the client made.
                if classify(error) not in (Failure.TRANSIENT, Failure.EXISTS) or not retries.again(error):
                    raise CommitUnknownError(path, commit_id, describe(error, self._options), self._url) from error
            else:
                return Outcome.WON

    @contextmanager
    def write_file(self, path: str) -> Iterator[BinaryIO]:
        """See `Storage.write_file`. What is written stays on the local disk until the block ends."""
        key = self._key(path)
        with self._naming(path), self._cache.new_file(path) as file:
            yield file.sink
            size = file.finish()
            self._upload(path, key, file, size)
            # Who wrote a file is likely to map it next. The file is there, with a local copy or without.
            with suppress(ArrowStateError):
                stored, version = self._info(path, key)
                if stored == size:
                    self._cache.adopt(self._copy_of(path), size, file, version=version)

    def put_hint(self, path: str, data: bytes) -> None:
        """See `Storage.put_hint`."""
        key = self._key(path)
        self._call(path, lambda: self._fs.pipe_file(key, bytes(data)))

    def list_unfinished(self) -> list[str]:
        """See `Storage.list_unfinished`.

        On S3 these are uploads in parts, as `<path>?uploadId=<id>`; Google Cloud Storage and Azure drop theirs by
        themselves after a week. And on each the objects with which services are tried out.
        """
        bucket, _, prefix = self._root.partition("/")
        probes = partial(self._fs.find, self._root.rstrip("/"), prefix=_PROBE)
        keys = [key.removeprefix(self._root) for key in self._call("", lambda: _or_none(probes))]
        uploads = self._call("", lambda: unfinished_uploads(self._fs, self._protocol, bucket, prefix))
        found = [name for name in keys if _PROBE_NAME.fullmatch(name)]
        return sorted([*found, *(f"{key.removeprefix(prefix)}{_UPLOAD}{upload}" for key, upload in uploads)])

    def delete_unfinished(self, name: str) -> None:
        """See `Storage.delete_unfinished`."""
        path, mark, upload = name.partition(_UPLOAD)
        bucket, _, prefix = self._root.partition("/")
        if mark and upload and self._protocol == "s3":
            check_path(path)
            request = partial(end_upload, self._fs, bucket, prefix + path, upload)
        elif _PROBE_NAME.fullmatch(name):
            request = partial(self._fs.rm_file, self._root + name)
        else:
            raise CorruptDataError(name, "it is not the name of an unfinished upload")
        with suppress(MissingFileError):
            self._call(name, request)

    def list(self, prefix: str) -> list[str]:
        """See `Storage.list`."""
        folder, _, rest = check_prefix(prefix).rpartition("/")
        top = (self._root + folder).rstrip("/")
        keys = self._call(prefix, lambda: _or_none(partial(self._fs.find, top, prefix=rest)))
        paths = [key.removeprefix(self._root) for key in keys if key.startswith(self._root)]
        return sorted(path for path in paths if path.startswith(prefix) and _may_be_named(path))

    def list_pages(self, prefix: str) -> Iterator[list[str]]:  # type: ignore[valid-type]
        """Yield what `list` returns in pages; on S3 only one of them is in memory."""
        if self._protocol != "s3":
            yield self.list(prefix)
            return
        bucket, _, top = (self._root + check_prefix(prefix)).partition("/")
        for keys in listed_keys(lambda request: self._call(prefix, request), self._fs, bucket, top):
            paths = [f"{bucket}/{key}".removeprefix(self._root) for key in keys]
            yield [path for path in paths if _may_be_named(path)]

    def list_level(self, folder: str) -> tuple[list[str], list[str]]:  # type: ignore[valid-type]
        """See `arrowstate.storage.base.listed_level`; one request for a thousand names, but on Azure.

        Its client asks for one folder after the other, so that all names below cost less.
        """
        if self._protocol == "abfs":
            return level_of(self, folder)
        top = (self._root + check_prefix(folder)).rstrip("/")
        found = self._call(folder, lambda: _or_none(partial(self._fs.ls, top, detail=True, refresh=True)))
        names = [(item["name"].rstrip("/").removeprefix(f"{top}/"), item["type"] == "directory") for item in found]
        named = sorted((name, is_folder) for name, is_folder in names if name != top and _may_be_named(name))
        return [name for name, is_folder in named if is_folder], [name for name, is_folder in named if not is_folder]

    def exists(self, path: str) -> bool:
        """See `Storage.exists`."""
        try:
            self._info(path, self._key(path))
        except MissingFileError:
            return False
        return True

    def delete(self, path: str) -> None:
        """See `Storage.delete`. The local copy goes, too."""
        key = self._key(path)
        with suppress(MissingFileError):
            self._call(path, lambda: self._fs.rm_file(key))
        self._forget([path])

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete files, durably, with few requests, and their local copies; nothing happens where there is none."""
        # Who dies in between leaves no copy of a file that nobody deletes again.
        self._forget(paths)
        left = paths
        if self._protocol == "s3":
            bucket, _, _ = self._root.partition("/")
            keys = {self._key(path).removeprefix(f"{bucket}/"): path for path in paths}
            groups = [[*keys][start : start + DELETED_TOGETHER] for start in range(0, len(keys), DELETED_TOGETHER)]
            delete = partial(delete_together, lambda request: self._call("", request), self._fs, bucket)
            left = [keys[key] for group in in_parallel(self, delete, groups, name="deletions") for key in group]
        in_parallel(self, self.delete, left, name="deletions", small=True)
        # A reader may have fetched one meanwhile.
        self._forget(paths)
        with self._naming(""):
            self._cache.sweep()

    def _copy_of(self, path: str) -> str:
        """Return what the cache knows a local copy by."""
        return f"{self._url}/{path}"

    def _forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            with self._naming(path):
                self._cache.forget([self._copy_of(path)])

    @property
    def _fs(self) -> Any:
        """The client of this process: its threads and connections do not survive a fork."""
        if self._client_process != os.getpid():
            with self._client_lock:
                if self._client_process != os.getpid():
                    self._client = make_client(self._protocol, self._url, self._options)
                    self._client_process = os.getpid()
        return self._client

    def _key(self, path: str) -> str:
        if _NOT_IN_KEYS & set(path):
            raise CorruptDataError(path, "names with '?' or '#' are not possible in object storage")
        return self._root + check_path(path)

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Name the file and the storage in errors of the local disk, where copies are and files are filled."""
        try:
            yield
        except (StorageError, StorageFullError) as error:
            if error.url or type(error) not in (StorageError, StorageFullError):
                raise
            detail = error.detail if error.path == path else f"its local copy {error.path}: {error.detail}"
            raise type(error)(path, detail, self._url) from error

    def _retries(self) -> Retries:
        return Retries(self._budget, self._clock)

    def _call(self, path: str, request: Callable[[], _T], retries: Retries | None = None) -> _T:
        """Make a request that may be repeated without harm."""
        retries = retries or self._retries()
        while True:
            try:
                return request()
            except Exception as error:
                if classify(error) is not Failure.TRANSIENT or not retries.again(error):
                    raise self._translate(path, error) from error

    def _translate(self, path: str, error: Exception) -> ArrowStateError:
        if isinstance(error, ArrowStateError):
            return error
        failure = classify(error)
        if failure is Failure.ABSENT:
            return MissingFileError(self._url, path)
        detail = describe(error, self._options)
        kind = StorageFullError if failure is Failure.FULL else StorageError
        return kind(path, detail, self._url)

    def _get(self, key: str, start: int, length: int | None) -> bytes:
        try:
            return self._fs.cat_file(key, start=start or None, end=None if length is None else start + length)
        except Exception as error:
            if classify(error) is Failure.BEYOND_END:
                return b""
            raise

    def _info(self, path: str, key: str, retries: Retries | None = None) -> tuple[int, str]:
        """The size of a file and the version of its content."""
        info = self._call(path, lambda: self._fs.info(key, refresh=True), retries)
        if info["type"] != "file":
            raise MissingFileError(self._url, path)
        version = next((info[name] for name in ("ETag", "etag", "generation") if info.get(name)), None)
        if version is None:
            raise StorageError(path, "the service gives no ETag, by which versions of a file are told apart", self._url)
        return int(info["size"]), f"{version} {info['size']}"

    def _download(self, path: str, key: str, size: int, file: LocalFile) -> None:
        """Fill a local file by ranges, several at a time; each is repeated on its own."""

        def fetch(start: int) -> None:
            length = min(PART_BYTES, size - start)
            data = self._call(path, lambda: self._get(key, start, length))
            if len(data) != length:
                raise StorageError(path, f"got {len(data)} bytes from byte {start} on, expected {length}", self._url)
            file.write_at(start, data)

        in_parallel(self, fetch, range(0, size, PART_BYTES), name="download")

    def _upload(self, path: str, key: str, file: LocalFile, size: int) -> None:
        retries = self._retries()
        while True:
            try:
                if size <= _SINGLE_REQUEST_BYTES:
                    self._fs.pipe_file(key, file.read(size), mode="create")
                else:
                    self._fs.put_file(str(file.location), key, mode="create", **upload_options(self._protocol))
                return
            except Exception as error:
                # The request may have made it although its answer was lost; then our own file is in the way.
                if self._holds(path, key, file, size, retries):
                    return
                failure = classify(error)
                if failure is Failure.EXISTS:
                    raise NameTakenError(path, self._url) from error
                if failure is not Failure.TRANSIENT or not retries.again(error):
                    raise self._refused(path, error) from error

    def _refused(self, path: str, error: Exception) -> ArrowStateError:
        """The error of a write; what is absent then is the bucket."""
        translated = self._translate(path, error)
        if isinstance(translated, MissingFileError):
            return StorageError(path, "there is no such bucket", self._url)
        return translated

    def _holds(self, path: str, key: str, file: LocalFile, size: int, retries: Retries) -> bool:
        """Whether the storage has a file with the content of a local one."""
        try:
            if self._info(path, key, retries)[0] != size:
                return False
            return all(
                self._call(path, partial(self._get, key, start, PART_BYTES), retries) == file.read(PART_BYTES, start)
                for start in range(0, size, PART_BYTES)
            )
        except MissingFileError:
            return False

    def _whose(self, key: str, commit_id: str) -> Outcome | None:
        """Whose commit is there; None if there is none or it cannot be read now."""
        try:
            body = self._fs.cat_file(key)
        except Exception:  # noqa: BLE001
            # Whatever it is: the caller tries again, and says "unknown" in the end.
            return None
        return Outcome.WON if is_ours(body, commit_id) else Outcome.LOST

    def _check_creates(self) -> None:
        """Try once in a process, on an object of its own, that the service refuses to replace one.

        A store on a service that does it all the same would work until two writers meet.
        """
        if self._service in _KNOWN_TO_KEEP_CONDITIONS:
            return
        name = f"{_PROBE}{uuid.uuid4().hex}"
        key = self._root + name

        def create(body: bytes) -> None:
            try:
                self._fs.pipe_file(key, body, mode="create")
            except Exception as error:
                # After a lost answer the object in the way may be our own: what it holds decides, not the error.
                if classify(error) is not Failure.EXISTS:
                    raise

        try:
            try:
                self._call(name, partial(create, b"first"))
                self._call(name, partial(create, b"second"))
                body = self._call(name, partial(self._get, key, 0, None))
            finally:
                with suppress(ArrowStateError):
                    self._call(name, lambda: self._fs.rm_file(key))
        except MissingFileError as error:
            raise self._refused(name, error) from error
        if body != b"first":
            reason = "it replaces an object although it was told not to, and two writers would overwrite each other"
            raise UnsupportedStorageError(self._url, self._protocol, ("services with conditional writes",), reason)
        _KNOWN_TO_KEEP_CONDITIONS.add(self._service)


def _or_none(find: Callable[[], Any]) -> list[Any]:
    try:
        return list(find())
    except FileNotFoundError:
        return []


def _may_be_named(path: str) -> bool:
    """Whether an object is a file of a storage, and no marker of a folder or unfinished file."""
    return all(component and not component.startswith(".") for component in path.split("/"))
