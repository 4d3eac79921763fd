"""A store in a bucket, published to another prefix of it: what PyIceberg reads there is what the store has."""

import uuid

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

import arrowstate
from object_servers import S3_OPTIONS
from publications import expected
from stores import TOTAL, commit, totals_from
from table_readers import by_arrow


@pytest.mark.parametrize("version", [3, 2])
def test_tables_in_a_bucket_are_read_from_there(s3_endpoint, tmp_path, version):
    options = {**S3_OPTIONS, "endpoint_url": s3_endpoint, "cache_dir": str(tmp_path / "cache")}
    place = f"s3://bucket/{uuid.uuid4().hex}"
    store = arrowstate.open_store(f"{place}/store", create=True, storage_options=options)
    backend = totals_from()
    for number in range(3):
        backend.state(TOTAL).add_batch(pa.array(range(number * 100)), pa.array([1] * number * 100))
        commit(store, {"op": [backend]}, format="parquet" if number else "arrow")
        publication = store.publish(f"{place}/tables", version=version, history=2)

    table = StaticTable.from_metadata(
        publication["op.total"].metadata,
        {
            "s3.endpoint": s3_endpoint,
            "s3.access-key-id": S3_OPTIONS["key"],
            "s3.secret-access-key": S3_OPTIONS["secret"],
            "s3.region": "us-east-1",
        },
    )

    columns = [item.name for item in table.schema().fields]
    found = {
        snapshot.summary["arrowstate.checkpoint-id"]: by_arrow(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow())
        for snapshot in table.snapshots()
    }
    assert found == {str(number): expected(store.snapshot(number), "op.total", columns) for number in (2, 3)}
    assert not store.publish(f"{place}/tables", version=version, history=2).tables[0].is_new
