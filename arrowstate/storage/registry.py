"""Which storage a path or URL means.

Only storages on which a commit is safe are opened. The others are refused by name: a store on one
of them would work until two writers meet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from arrowstate.errors import InvalidInputError, UnsupportedStorageError
from arrowstate.storage.base import Storage
from arrowstate.storage.cache import FileCache, default_cache_folder
from arrowstate.storage.local import LocalStorage
from arrowstate.storage.memory import MemoryStorage
from arrowstate.storage.objects import ObjectStorage
from arrowstate.storage.retries import RetryBudget

SUPPORTED = (
    "a local path",
    "file:///path",
    "s3://bucket/prefix",
    "gs://bucket/prefix",
    "abfs://container/prefix",
    "memory://name",
)
"""What `open_storage` takes."""

_OBJECTS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs", "az": "abfs"}
"""The spellings of the protocols of object storages."""

_OWN_OPTIONS = frozenset({"retry_attempts", "retry_seconds", "cache_dir", "cache_bytes"})

_MEMORY_OPTIONS = frozenset({"max_file_bytes"})

_NO_CREATE = "it cannot create a file only if there is none, and two writers would overwrite each other"
_REASONS = dict.fromkeys(
    ("arrow_hdfs", "dir", "ftp", "hdfs", "http", "https", "scp", "sftp", "smb", "ssh", "webhdfs"), _NO_CREATE
) | dict.fromkeys(
    ("blockcache", "cached", "filecache", "simplecache"),
    "a cache hides the files of other writers",
)

# `file:/path` is how Java writes a local URL; any other protocol is followed by `//`, or by `::` in a chain of them.
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+._-]*)(?:://|::)|(file):")


def options_of(name: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that an argument has; their values are told nobody, for one may be a password."""
    found: object = {} if given is None else given
    if not isinstance(found, Mapping) or not all(isinstance(option, str) for option in found):
        kind = type(found).__name__
        raise InvalidInputError(f"{name} must be a dict with the value of each option by its name, got {kind}")
    return dict(found)


def open_storage(
    url_or_path: str | os.PathLike[str],
    *,
    create: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Storage:
    """Open the storage at a path or URL."""
    given = os.fspath(url_or_path)
    if not given or "\0" in given:
        raise InvalidInputError(f"the path of a store must be a non-empty text without NUL, got {given!r}")
    match = _PROTOCOL.match(given) if isinstance(url_or_path, str) else None
    protocol = (match[1] or match[2]).lower() if match else None
    options = options_of("storage_options", storage_options)
    if protocol in _OBJECTS and "::" not in given:
        return _open_objects(_OBJECTS[protocol], given, options)
    if protocol == "memory" and "::" not in given:
        _refuse_options(given, options.keys() - _MEMORY_OPTIONS, "a storage in memory takes only max_file_bytes")
        return MemoryStorage(given, create=create, **options)
    _refuse_options(given, options.keys(), "only memory and object storages take storage options")
    if protocol is None:
        begun = given.partition(":")[0].lower() if isinstance(url_or_path, str) and ":" in given else ""
        if begun in _OBJECTS or begun == "memory":
            # The rest is not shown: it may hold a password.
            raise InvalidInputError(
                f"a URL of {begun} begins with {begun}://, got {begun}: without the slashes; write a local folder of "
                "such a name with ./ before it"
            )
        return LocalStorage(Path(given).expanduser(), create=create)
    if protocol == "file" and "::" not in given:
        parts = urlsplit(given)
        if parts.netloc not in ("", "localhost"):
            host = "..." if "@" in given else parts.netloc
            raise UnsupportedStorageError(_without_password(given), f"file on host {host}", SUPPORTED)
        if parts.query or parts.fragment or given.endswith(("?", "#")):
            raise InvalidInputError(
                f"a URL of a folder must have no query and no fragment, got {given}; write %3F and %23 for ? and # in "
                "a name, or give the path"
            )
        return LocalStorage(Path(unquote(parts.path)), create=create)
    raise UnsupportedStorageError(_without_password(given), protocol, SUPPORTED, _REASONS.get(protocol, ""))


def options_beside(storage: Storage, url_or_path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the options of a storage for another one of its kind, such as a savepoint's.

    None where they do not fit.
    """
    # Not asked for its class: what reads a storage in another way hands on what it has.
    options: dict[str, Any] | None = getattr(storage, "options", None)
    if options is None or not isinstance(url_or_path, str):
        return None
    match = _PROTOCOL.match(url_or_path)
    protocol = (match[1] or match[2]).lower() if match else ""
    return options if _OBJECTS.get(protocol, protocol) == storage.url.partition("://")[0] else None


def _open_objects(protocol: str, given: str, options: Mapping[str, Any]) -> Storage:
    if any(ord(character) < 32 or ord(character) == 127 for character in given):
        # A parser of URLs leaves some of them out, and the rest would name another store.
        raise InvalidInputError(f"a URL of {protocol} must not have tabs, line breaks or other control characters")
    # A client would take it and do nothing.
    _refuse_options(given, options.keys() & _MEMORY_OPTIONS, "only a storage in memory takes max_file_bytes")
    try:
        parts = urlsplit(given)
        may_be_shown = not _may_hold_a_secret(protocol, parts)
    except ValueError:
        may_be_shown = False
    if not may_be_shown:
        # A URL is written to logs and plans. The cause of the error would show it.
        raise InvalidInputError(
            f"a URL of {protocol} must not hold a user, a password or a query; give them as storage_options"
        ) from None
    prefix = "/".join(part for part in parts.path.split("/") if part)
    url = f"{protocol}://{parts.netloc}" + (f"/{prefix}" if prefix else "")
    own = {name: options[name] for name in _OWN_OPTIONS & options.keys()}
    try:
        budget = RetryBudget(
            attempts=int(own.get("retry_attempts", RetryBudget().attempts)),
            seconds=float(own.get("retry_seconds", RetryBudget().seconds)),
        )
        folder = Path(own.get("cache_dir") or default_cache_folder()).expanduser().absolute()
        cache = FileCache(folder, int(own["cache_bytes"])) if "cache_bytes" in own else FileCache(folder)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"retry_attempts, retry_seconds and cache_bytes are numbers, got {own}") from error
    if not isinstance(options.get("client_kwargs") or {}, Mapping):
        kind = type(options["client_kwargs"]).__name__
        raise InvalidInputError(f"the storage option client_kwargs must be a mapping, got {kind}")
    others = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
    return ObjectStorage(url, others, retries=budget, cache=cache)


def _may_hold_a_secret(protocol: str, parts: SplitResult) -> bool:
    """Whether a URL of an object storage may hold a key or a signature."""
    # A slash in a password ends what a parser takes for the host: then the bucket is the user with the first part of
    # the password, and the rest is the beginning of the path. An ARN is the name of a bucket all the same.
    host, path = unquote(parts.netloc), unquote(parts.path)
    user, at, _ = host.rpartition("@")
    bucket = "" if host.startswith("arn:") else user if at else host
    return (
        ":" in bucket
        or (bool(at) and protocol != "abfs")
        or re.match("/?[^/@]*:[^@]*@", path) is not None
        or bool(parts.query or parts.fragment)
    )


def _refuse_options(given: str, names: Iterable[str], allowed: str) -> None:
    if names := sorted(names):
        raise InvalidInputError(f"{allowed}, got {', '.join(names)} for {_without_password(given)}")


def _without_password(url: str) -> str:
    """A URL fit to be shown."""
    # Up to the last "@": a password may hold one, or a slash.
    return re.sub(r"(//[^/@:]*:).*@", r"\1...@", url, flags=re.DOTALL)
