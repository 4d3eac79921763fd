"""A savepoint as Delta tables: what readers of Delta find, and what a disposal deletes."""

import json
import os
import shutil
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError
from arrowstate.storage import LocalStorage
from every_kind import small_files
from publications import History, expected
from stores import backend_of, commit, totals_from
from table_readers import by_arrow

PYTHON = os.environ.get("ARROWSTATE_READERS")
READ = """
import sys
from deltalake import DeltaTable
import pyarrow.ipc as ipc
table = DeltaTable(sys.argv[1]).to_pyarrow_table()
with ipc.new_file(sys.argv[2], table.schema) as writer:
    writer.write_table(table)
"""


def listed(folder):
    """What the log of Delta says: its schema, and the rows of the files that it lists."""
    lines = [json.loads(line) for line in (folder / "_delta_log/00000000000000000000.json").read_text().splitlines()]
    schema = json.loads(next(line["metaData"] for line in lines if "metaData" in line)["schemaString"])
    files = [line["add"] for line in lines if "add" in line]
    assert all((folder / file["path"]).stat().st_size == file["size"] for file in files)
    tables = [pq.read_table(folder / file["path"]) for file in files]
    assert [table.num_rows for table in tables] == [json.loads(file["stats"])["numRecords"] for file in files]
    return [item["name"] for item in schema["fields"]], by_arrow(pa.concat_tables(tables)) if tables else []


def test_each_state_of_a_savepoint_is_a_table_of_delta_that_moves_with_it(tmp_path):
    with small_files():
        history = History(tmp_path, 4)
        snapshot = history.store.savepoint(str(tmp_path / "saved"), delta=True)
    shutil.move(tmp_path / "saved", tmp_path / "moved")
    saved = arrowstate.open_store(tmp_path / "moved").latest()

    for state in saved.states():
        columns, rows = listed(tmp_path / "moved/data" / state.replace(".", "/", 1))

        assert rows == expected(saved, state, columns)
    assert len(saved.states()) > 5
    assert snapshot.checkpoint_id == saved.checkpoint_id


@pytest.mark.long
@pytest.mark.skipif(PYTHON is None, reason="ARROWSTATE_READERS names no Python with deltalake")
def test_deltalake_reads_them(tmp_path):
    with small_files():
        history = History(tmp_path, 4)
        saved = history.store.savepoint(str(tmp_path / "saved"), delta=True)
    for state in saved.states():
        folder = tmp_path / "saved/data" / state.replace(".", "/", 1)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run([PYTHON, "-c", READ, folder, tmp_path / "rows"], check=True, env=environment)

        assert by_arrow(pa.ipc.open_file(tmp_path / "rows").read_all()) == listed(folder)[1]


def test_a_disposal_deletes_the_tables_too(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]})
    store.savepoint(str(tmp_path / "saved"), delta=True)

    deleted = arrowstate.dispose_savepoint(tmp_path / "saved")

    assert "data/op/total/_delta_log/00000000000000000000.json" in deleted
    assert not (tmp_path / "saved").exists()


def test_nothing_is_left_of_a_savepoint_whose_tables_could_not_be_written(tmp_path, monkeypatch):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]})
    write_file = LocalStorage.write_file

    def full(storage, path):
        if "_delta_log" in path:
            raise arrowstate.StorageFullError(path, "no space left", storage.url)
        return write_file(storage, path)

    monkeypatch.setattr(LocalStorage, "write_file", full)
    with pytest.raises(arrowstate.StorageFullError):
        store.savepoint(str(tmp_path / "saved"), delta=True)
    monkeypatch.undo()

    assert not (tmp_path / "saved").exists()
    assert store.savepoint(str(tmp_path / "saved"), delta=True).verify(deep=True).ok


def test_what_delta_lacks_is_refused_by_column_before_anything_is_written(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of()
    backend.state(arrowstate.ValueStateDescriptor("at", pa.struct([("of day", pa.int64())])))
    commit(store, {"op": [backend]})
    other = arrowstate.open_store(tmp_path / "other", create=True)
    backend = backend_of()
    backend.state(arrowstate.ValueStateDescriptor("at", pa.struct([("t", pa.time64("us"))])))
    commit(other, {"op": [backend]})

    with pytest.raises(InvalidInputError, match=r"op\.at has the column 'of day', and a name in Delta has no space"):
        store.savepoint(str(tmp_path / "saved"), delta=True)
    with pytest.raises(InvalidInputError, match=r"op\.at\.t has the type time64\[us\], for which Delta has none"):
        other.savepoint(str(tmp_path / "saved"), delta=True)
    with pytest.raises(InvalidInputError, match="a Delta table has files of Parquet, asked for was the format 'arrow'"):
        other.savepoint(str(tmp_path / "saved"), delta=True, format="arrow")
    assert not (tmp_path / "saved").exists()
