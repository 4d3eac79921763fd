"""A table that an earlier version published: engines read it, and this version goes on from it."""

import json
import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyiceberg.table import StaticTable
from xxhash import xxh3_128_hexdigest

import arrowstate
from arrowstate.publish.avro import read_container, write_container
from publications import compared, metadata_of
from table_readers import by_pyiceberg

EXAMPLE = Path(__file__).parents[2] / "formats/vectors/publication"


def moved(value, to):
    """A value with the place that the example names replaced, at any depth."""
    if isinstance(value, dict):
        return {name: moved(item, to) for name, item in value.items()}
    if isinstance(value, list):
        return [moved(item, to) for item in value]
    return value.replace("file:///example", to) if isinstance(value, str) else value


@pytest.fixture
def example(tmp_path):
    """The store and the tables, at a place of their own."""
    shutil.copytree(EXAMPLE, tmp_path / "example")
    to = f"file://{tmp_path / 'example'}"
    sizes = {}
    lists_last = sorted((tmp_path / "example/tables").rglob("*.avro"), key=lambda path: path.name.startswith("snap-"))
    for path in lists_last:
        texts, records = read_container(path.read_bytes(), path=path.name)
        records = moved(records, to)
        for record in records:
            record |= {"manifest_length": sizes[record["manifest_path"]]} if "manifest_path" in record else {}
        texts = {name: text for name, text in texts.items() if name not in ("avro.schema", "avro.codec")}
        schema = json.loads(read_container(path.read_bytes(), path=path.name)[0]["avro.schema"])
        path.write_bytes(write_container(schema, records, texts))
        sizes[f"file://{path}"] = path.stat().st_size
    for path in (tmp_path / "example/tables").rglob("*.puffin"):
        data = path.read_bytes()
        length = int.from_bytes(data[-12:-8], "little")
        footer = data[-12 - length : -12].replace(b"file:///example", to.encode())
        path.write_bytes(data[: -12 - length] + footer + len(footer).to_bytes(4, "little") + data[-8:])
    for path in (tmp_path / "example/tables").rglob("*.json"):
        path.write_text(path.read_text().replace("file:///example", to))
    return tmp_path / "example"


def test_engines_read_each_checkpoint_of_a_stored_example(example):
    expected = json.loads((example / "expected.json").read_text())
    for name in ("visits", "order"):
        table = StaticTable.from_metadata(f"file://{example}/tables/shop/{name}/metadata/v3.metadata.json")

        found = {}
        for snapshot in table.snapshots():
            rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
            column = (
                "visits"
                if name == "visits"
                else next(item for item in rows.column_names if item in ("amount", "total"))
            )
            found[snapshot.summary["arrowstate.checkpoint-id"]] = pc.sum(rows[column]).as_py()

        assert found == {number: sums[name] for number, sums in expected.items()}
        assert table.refs()["gold"].snapshot_id == table.snapshots()[0].snapshot_id


def test_a_publication_goes_on_from_a_stored_example(example):
    # What was changed here to move it is no damage.
    for path in (example / "tables").rglob("v*.metadata.json"):
        text = path.read_text().replace(metadata_of(str(path))["properties"]["arrowstate.checksum"], "0" * 32)
        path.write_text(text.replace("0" * 32, xxh3_128_hexdigest(text.encode()), 1))
    store = arrowstate.open_store(example / "store")

    publication = store.publish(example / "tables")

    assert {table.version for table in publication.tables} == {4}
    assert compared(store, publication, by_pyiceberg) == 4
