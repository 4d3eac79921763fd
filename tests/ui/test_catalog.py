"""The REST catalog of Iceberg: what PyIceberg finds and reads by it is what the store has."""

import threading

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, UnauthorizedError

import arrowstate
from arrowstate.errors import StorageError
from arrowstate.storage import open_storage
from arrowstate.ui.site import Limits
from publications import expected
from stores import commit, totals_from
from table_readers import by_arrow

from .conftest import Visit


@pytest.fixture
def store(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from(rows=50)
    commit(store, {"op.1": [backend]})
    backend.state(arrowstate.MapStateDescriptor("words", pa.string(), pa.int64()))
    commit(store, {"op.1": [backend]})
    store.publish(tmp_path / "tables")
    return store


@pytest.fixture
def page(store, tmp_path):
    with store.ui(tables=[tmp_path / "tables"]) as page:
        yield page


def test_pyiceberg_attaches_the_catalog_with_the_token_of_the_page(store, page):
    catalog = load_catalog("s", type="rest", uri=page.address, token=page.bearer)

    assert catalog.list_namespaces() == [("op.1",)]
    assert sorted(catalog.list_tables(("op.1",))) == [("op.1", "total"), ("op.1", "words")]
    assert catalog.table_exists(("op.1", "total"))
    assert not catalog.table_exists(("op.1", "totals"))
    table = catalog.load_table(("op.1", "total"))
    for snapshot in table.snapshots():
        checkpoint = store.snapshot(int(snapshot.summary["arrowstate.checkpoint-id"]))
        assert by_arrow(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) == expected(
            checkpoint, "op.1.total", [item.name for item in table.schema().fields]
        )


def test_what_is_not_there_and_what_cannot_be_done_are_errors_of_the_catalog(page):
    catalog = load_catalog("s", type="rest", uri=page.address, token=page.bearer)

    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("nothing")
    with pytest.raises(NoSuchTableError):
        catalog.load_table(("op.1", "nothing"))
    # Engines know from the configuration what there is.
    with pytest.raises(NotImplementedError, match="Server does not support endpoint: POST"):
        catalog.create_namespace("mine")


def test_without_the_token_nothing_is_told(page):
    with pytest.raises(UnauthorizedError):
        load_catalog("s", type="rest", uri=page.address, token="another")


def test_a_page_without_tables_has_an_empty_catalog(store):
    visit = Visit(store)

    assert visit.json("/v1/namespaces") == {"namespaces": []}
    assert visit.client.post("/v1/namespaces").json()["error"]["type"] == "ForbiddenException"
    assert visit.get("/v1/views").json()["error"]["type"] == "NotFoundException"


def test_tables_of_delta_are_none_of_the_catalog(store, tmp_path):
    store.publish(tmp_path / "delta", format="delta")
    visit = Visit(store, tables=[open_storage(tmp_path / "delta")])

    assert visit.json("/v1/namespaces") == {"namespaces": []}
    assert visit.get("/v1/namespaces/op.1/tables").json()["error"]["type"] == "NoSuchNamespaceException"
    assert visit.get("/v1/namespaces/op.1/tables/total").json()["error"]["type"] == "NoSuchTableException"


def test_a_storage_that_fails_or_is_slow_is_said_in_time(store, tmp_path):
    class Slow:
        url = "slow"

        def list(self, prefix):
            started.set()
            released.wait(0.5)
            return []

    class Broken(Slow):
        def list(self, prefix):
            raise StorageError("op.1", "the disk is gone")

    started, released = threading.Event(), threading.Event()
    slow = Visit(store, limits=Limits(page_seconds=0.05), tables=[Slow()])
    broken = Visit(store, tables=[Broken()])

    assert slow.get("/v1/namespaces").status_code == 504
    released.set()
    answer = broken.get("/v1/namespaces/op.1/tables")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ServiceUnavailableException")
    assert open_storage(tmp_path / "tables").exists("op.1/total/metadata/version-hint.text")
