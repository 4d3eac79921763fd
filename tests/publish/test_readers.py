"""Every reader of the table in docs/guides/open-tables.md: at each checkpoint and tag it has what the store has.

The readers are in an environment of their own, whose Python ARROWSTATE_READERS names; `tools/test --long publish` makes
it.
"""

import json
import os
import subprocess

import pytest

import table_readers
from every_kind import small_files
from publications import History, compared, compared_delta
from table_readers import by_pyiceberg

PYTHON = os.environ.get("ARROWSTATE_READERS")
OF_VERSION = {3: ("polars", "duckdb"), 2: ("polars", "duckdb", "clickhouse", "daft")}
OF_DELTA = {
    3: ("deltalake", "polars-delta", "duckdb-delta", "clickhouse-delta"),
    2: ("deltalake", "polars-delta", "duckdb-delta", "clickhouse-delta", "daft-delta"),
}
REFUSES = {
    "clickhouse": "Position deletes are supported only for parquet format",
    "daft": "Invalid Parquet file",
    "daft-delta": "Delta Lake deletion vectors are not yet supported",
}
"""What readers say of deletion vectors, which they do not know."""

pytestmark = pytest.mark.skipif(PYTHON is None, reason="ARROWSTATE_READERS names no Python with the readers")


class Reader:
    """A reader in its own process."""

    def __init__(self, name):
        self.name = name
        self.process = subprocess.Popen(
            [PYTHON, table_readers.__file__, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        )

    def answer(self, metadata, snapshot):
        self.process.stdin.write(json.dumps({"metadata": metadata, "snapshot": snapshot}) + "\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith("{"):
            assert line, f"{self.name} has died"
        return json.loads(line)

    def __call__(self, metadata, snapshot):
        answer = self.answer(metadata, snapshot)
        assert "rows" in answer, f"{self.name}: {answer['error']}"
        return answer["rows"]


@pytest.fixture(scope="module")
def readers():
    found = {name: Reader(name) for names in (*OF_VERSION.values(), *OF_DELTA.values()) for name in names}
    yield found
    for reader in found.values():
        reader.process.stdin.close()
        reader.process.wait()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100))
def test_every_reader_has_what_the_store_has_whatever_happened_to_it(tmp_path, readers, seed):
    with small_files():
        history = History(tmp_path, seed, keys=30)
        for number in range(4):
            history.happen()
            for version, names in OF_VERSION.items():
                publication = history.publish(version)
                compared(history.store, publication, by_pyiceberg, newest_only=number < 3)
                for name in names:
                    compared(history.store, publication, readers[name], newest_only=number < 3)
            for version, names in OF_DELTA.items():
                publication = history.publish(version, format="delta")
                for name in names:
                    compared_delta(history.store, publication, readers[name], newest_only=number < 3)


@pytest.mark.long
@pytest.mark.parametrize("name", REFUSES)
def test_a_reader_that_does_not_know_deletion_vectors_says_so(tmp_path, readers, name):
    with small_files():
        history = History(tmp_path, 1)
        history.step()
        history.checkpoint()
        tables = history.publish(3, format="delta" if name.endswith("delta") else "iceberg").tables

    answers = [readers[name].answer(table.metadata, None) for table in tables]

    assert any(REFUSES[name] in answer.get("error", "") for answer in answers)
