"""The clients of S3, Google Cloud Storage and Azure: how they are made, and what their errors mean.

They are fsspec filesystems, imported when the first storage of their kind is opened. Their own retries
and caches of listings are switched off: one budget decides how often a request is made, and a listing
is what the service says now. What cannot be switched off is that aiohttp, below all of them, repeats a
GET, PUT, HEAD or DELETE once and at once when the connection breaks before the answer.
"""

from __future__ import annotations

import enum
import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from arrowstate.errors import InvalidInputError, MissingDependencyError
from arrowstate.storage.fsspec_internals import asks_azure_once, asks_google_once, asks_s3_once

PART_BYTES = 8 << 20
"""How much of a large file one request carries."""

UPLOADS_AT_ONCE = 4
"""How many parts of one file travel at the same time; with `PART_BYTES` the bound of memory for a file."""

_CONNECT_SECONDS = 10
_READ_SECONDS = 30
_CONNECTIONS = 80
"""More than `in_parallel` makes requests at a time; the default of botocore is 10."""


class Failure(enum.Enum):
    """What an error of a request means for the caller."""

    ABSENT = "there is no such file, or no such bucket"
    EXISTS = "the file is there already"
    BEYOND_END = "the range begins at or after the end of the file"
    FULL = "no room"
    REFUSED = "the request was refused, for sure without effect"
    TRANSIENT = "it may work in a moment; the request may have had its effect"
    UNKNOWN = "anything else; the request may have had its effect"


def make_client(protocol: str, url: str, options: Mapping[str, Any]) -> Any:
    """Return the fsspec filesystem for a protocol: `s3`, `gs` or `abfs`."""
    given = {**options, "use_listings_cache": False, "skip_instance_cache": True}
    try:
        if protocol == "s3":
            return _s3(given)
        return _gcs(given) if protocol == "gs" else _azure(url, given)
    except (TypeError, ValueError, KeyError) as error:
        detail = describe(error, options)
        raise InvalidInputError(f"the storage options do not fit {protocol}: {detail}") from error


def _s3(options: dict[str, Any]) -> Any:
    s3fs = _import("s3fs", "S3", "s3")
    timeouts = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS}
    given = {"max_pool_connections": _CONNECTIONS, **timeouts, **(options.pop("config_kwargs", None) or {})}
    config = {**given, "retries": {"total_max_attempts": 1}}
    # With one request at a time a whole file is read without asking for its size first.
    return asks_s3_once(s3fs.S3FileSystem(**{"max_concurrency": 1, **options}, config_kwargs=config))


def _gcs(options: dict[str, Any]) -> Any:
    core = _import("gcsfs.core", "Google Cloud Storage", "gcs")
    return asks_google_once(core.GCSFileSystem)(**options)


def _azure(url: str, options: dict[str, Any]) -> Any:
    adlfs = _import("adlfs", "Azure Blob Storage", "azure")
    _, at, host = url.partition("://")[2].partition("/")[0].partition("@")
    account = {"account_name": host.partition(".")[0]} if at else {}
    timeouts = {"connection_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS}
    return asks_azure_once(adlfs.AzureBlobFileSystem(**{**timeouts, **account, **options}))


def _import(module: str, feature: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)  # The client of a service is an extra.
    except ImportError as error:
        raise MissingDependencyError(feature, module.partition(".")[0], extra) from error


def upload_options(protocol: str) -> dict[str, Any]:
    """Return the arguments of `put_file` that bound the memory an upload takes."""
    return {
        "s3": {"chunksize": PART_BYTES, "max_concurrency": UPLOADS_AT_ONCE},
        "gs": {"chunksize": PART_BYTES},
        "abfs": {"max_concurrency": UPLOADS_AT_ONCE},
    }[protocol]


_NO_SUCH_REQUEST = frozenset({405, 501})


def unfinished_uploads(client: Any, protocol: str, bucket: str, prefix: str) -> list[tuple[str, str]]:
    """Return (key, upload id) of uploads in parts that have not ended; only S3 keeps them until somebody ends them."""
    if protocol != "s3":
        return []
    found: list[tuple[str, str]] = []
    after: dict[str, str] = {}
    while True:
        try:
            answer = client.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
        except Exception as error:
            if any(_answer(cause)[0] in _NO_SUCH_REQUEST for cause in _causes(error)):
                # A service that speaks as much of S3 as it needs, and has no uploads in parts to leave behind.
                return []
            raise
        found += [(upload["Key"], upload["UploadId"]) for upload in answer.get("Uploads", [])]
        if not answer.get("IsTruncated"):
            return found
        after = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}


def end_upload(client: Any, bucket: str, key: str, upload_id: str) -> None:
    """End an upload in parts, so that nothing is left of it; nothing happens where it has ended."""
    with suppress(FileNotFoundError):
        client.abort_mpu(bucket, key, upload_id)


_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_TRANSIENT_CODES = frozenset(
    {"BadDigest", "IncompleteBody", "NoSuchUpload", "RequestTimeout", "XAmzContentSHA256Mismatch"}
)
"""S3 answers 400 or 404 to these, although the next attempt, which uploads from the start, may succeed."""
_TRANSIENT_ERRORS = frozenset(
    {
        "aiohttp.client_exceptions.ClientError",
        "azure.core.exceptions.ServiceRequestError",
        "azure.core.exceptions.ServiceResponseError",
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.HTTPClientError",
        "botocore.exceptions.IncompleteReadError",
        "botocore.parsers.ResponseParserError",
        "builtins.ConnectionError",
        "builtins.TimeoutError",
        "gcsfs.retry.ChecksumError",
        "google.auth.exceptions.TransportError",
        "requests.exceptions.RequestException",
    }
)
_UNSENT_ERRORS = frozenset(
    {
        "botocore.exceptions.NoCredentialsError",
        "botocore.exceptions.ParamValidationError",
        "botocore.exceptions.PartialCredentialsError",
        "builtins.PermissionError",
        "google.auth.exceptions.DefaultCredentialsError",
    }
)


def classify(error: BaseException) -> Failure:
    """Return what an error of a client means; by the answer of the service if there was one, else by its class."""
    for cause in _causes(error):
        status, code = _answer(cause)
        if status is not None:
            return _of_status(status, code)
        if isinstance(cause, FileExistsError):
            return Failure.EXISTS
        if isinstance(cause, FileNotFoundError):
            # An upload that is gone is one too; the answer under it tells it from a file that is not there.
            status, code = (None, "") if cause.__cause__ is None else _answer(cause.__cause__)
            return Failure.ABSENT if status is None else _of_status(status, code)
        classes = {f"{base.__module__}.{base.__qualname__}" for base in type(cause).__mro__}
        if classes & _UNSENT_ERRORS:
            return Failure.REFUSED
        if classes & _TRANSIENT_ERRORS:
            return Failure.TRANSIENT
    return Failure.UNKNOWN


def _of_status(status: int, code: str) -> Failure:
    if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUSES:
        return Failure.TRANSIENT
    known = {404: Failure.ABSENT, 412: Failure.EXISTS, 416: Failure.BEYOND_END, 507: Failure.FULL}
    return known.get(status, Failure.REFUSED if 400 <= status < 500 else Failure.UNKNOWN)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _answer(error: BaseException) -> tuple[int | None, str]:
    """The HTTP status and error code that an error of botocore, gcsfs, aiohttp or azure carries."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status, str(response.get("Error", {}).get("Code", ""))
    for attribute in ("status_code", "status", "code"):
        status = getattr(error, attribute, None)
        if isinstance(status, int | str) and str(status).isdigit():
            return int(status), ""
    return None, ""


_SIGNATURES = re.compile(r"(?i)([?&](?:sig|signature|x-amz-[a-z-]+|x-goog-[a-z-]+|access_token)=)[^&\s'\"]+")
_SHORTEST_SECRET = 6
_PUBLIC_OPTIONS = re.compile(r"url|host|region|project|name|version|style|location|access$")


def describe(error: BaseException, options: Mapping[str, Any]) -> str:
    """Return an error as text without the values of the options, which may be secrets, and without signatures."""
    text = _SIGNATURES.sub(r"\1...", f"{type(error).__name__}: {error}")
    for secret in sorted(_secrets(options), key=len, reverse=True):
        text = text.replace(secret, "...")
    return text


def _secrets(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif isinstance(value, str) and len(value) >= _SHORTEST_SECRET and not _PUBLIC_OPTIONS.search(str(name)):
            yield value
