"""One empty storage of every kind, so that each claim about storages is checked on all of them."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from arrowstate.storage import Storage, clear_memory_storage, open_storage, options_beside
from object_servers import S3_OPTIONS, azure_options, azure_server, google_options, google_server, s3_server

REMOTE = ["s3", "gs", "abfs"]
KINDS = ["local", "memory", *REMOTE]
# Of the claims on a remote storage each run takes a third, those on the others all.
BY_KIND = ["local", "memory", *(pytest.param(kind, marks=pytest.mark.turns(len(REMOTE))) for kind in REMOTE)]


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def google_endpoint() -> Iterator[str]:
    with google_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azure_endpoint() -> Iterator[str]:
    with azure_server() as endpoint:
        yield endpoint


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], tuple[str, dict[str, Any] | None]]:
    """An empty place of a kind: what `open_storage` takes as its URL and storage options."""

    def of_kind(kind: str) -> tuple[str, dict[str, Any] | None]:
        if kind == "local":
            return str(tmp_path / "store"), None
        if kind == "memory":
            return f"memory://{uuid.uuid4().hex}", None
        if kind == "s3":
            options = {**S3_OPTIONS, "endpoint_url": request.getfixturevalue("s3_endpoint")}
        elif kind == "gs":
            options = google_options(request.getfixturevalue("google_endpoint"))
        else:
            options = azure_options(request.getfixturevalue("azure_endpoint"))
        # Long enough for a busy machine, short enough for a test that fails.
        own = {"cache_dir": str(tmp_path / "cache"), "retry_attempts": 3}
        return f"{kind}://bucket/{uuid.uuid4().hex}/store", {**options, **own}

    return of_kind


@pytest.fixture(params=BY_KIND)
def storage(request: pytest.FixtureRequest, place: Callable[[str], tuple[str, Any]]) -> Iterator[Storage]:
    url, options = place(request.param)
    yield open_storage(url, create=True, storage_options=options)
    clear_memory_storage(url if request.param == "memory" else "memory://none")


@pytest.fixture
def beside() -> Callable[[Storage, str], Storage]:
    """Opens a URL with the options of a storage."""

    def open_beside(storage: Storage, url: str) -> Storage:
        return open_storage(url, create=True, storage_options=options_beside(storage, url))

    return open_beside


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return open_storage(tmp_path / "store", create=True)
