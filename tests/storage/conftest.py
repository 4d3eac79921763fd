"""One empty storage of every kind, so that each claim about storages is checked on all of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from arrowstate.storage import Storage, clear_memory_storage, open_storage


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    url = str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    yield open_storage(url, create=True)
    clear_memory_storage(url if request.param == "memory" else "memory://none")


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return open_storage(tmp_path / "store", create=True)
