"""What jobs read from and write to outside: a bucket, and a database."""

from collections.abc import Iterator
from typing import Any

import pytest

from object_servers import S3_OPTIONS, s3_server
from postgres import postgres_programs, postgres_server


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, Any]]:
    with s3_server() as endpoint:
        yield {**S3_OPTIONS, "endpoint_url": endpoint}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    if postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed: no initdb on the PATH, nothing in /usr/lib/postgresql")
    with postgres_server() as conninfo:
        yield conninfo
