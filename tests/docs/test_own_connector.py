"""The connector of one's own that the guide shows keeps what the suites ask for."""

import sqlite3

import pyarrow as pa
import pytest

from arrowstate.testing import SinkConformance, SourceConformance
from page_examples import ROOT, blocks

ROWS = pa.table({"amount": range(12)})


def classes():
    """The classes of the page's last example, without what it does with them."""
    page = (ROOT / "docs/guides/connectors.md").read_text()
    (block,) = [block.text for block in blocks(page) if "class SqliteSource" in block.text]
    names = {"pa": pa, "__name__": "page"}
    exec(block.partition("with sqlite3.connect(folder")[0], names)
    return names


@pytest.fixture
def path(tmp_path):
    with sqlite3.connect(tmp_path / "shop.sqlite") as database:
        database.execute("create table sales (amount)")
        database.execute("create table copy (amount)")
        database.executemany("insert into sales values (?)", [[amount] for amount in ROWS["amount"].to_pylist()])
    return tmp_path / "shop.sqlite"


def test_the_source_of_the_page_reads_each_row_once(path):
    SourceConformance().test_all_rows_are_read_once(classes()["SqliteSource"](path, "sales"), ROWS, max_rows=5)


class TestSource(SourceConformance):
    @pytest.fixture
    def source(self, path):
        return classes()["SqliteSource"](path, "sales")

    @pytest.fixture
    def rows(self):
        return ROWS


class TestSink(SinkConformance):
    @pytest.fixture
    def sink(self, path):
        return classes()["SqliteSink"](path, "copy")

    @pytest.fixture
    def rows(self):
        return ROWS

    @pytest.fixture
    def visible(self, path):
        return lambda: pa.Table.from_pylist(
            [{"amount": amount} for (amount,) in sqlite3.connect(path).execute("select * from copy")], ROWS.schema
        )
