import json

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.cli import main
from arrowstate.storage.local import LocalStorage


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with 25 checkpoints."""
    folder = tmp_path_factory.mktemp("listing") / "store"
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    with arrowstate.open_store(folder, create=True).writer() as writer:
        for number in range(25):
            clicks.add_batch([f"u{number}"], [1])
            writer.checkpoint({"counter": [backend]})
    return str(folder)


@pytest.fixture
def read(monkeypatch):
    """The paths that are read."""
    paths = []
    original = LocalStorage.read

    def noted(self, path, *arguments, **options):
        paths.append(path)
        return original(self, path, *arguments, **options)

    monkeypatch.setattr(LocalStorage, "read", noted)
    return paths


def test_a_list_of_the_newest_reads_no_older_ones(store, read, capsys):
    assert main(["list", store, "--limit", "3", "--json"]) == 0

    assert [item["rows"] for item in json.loads(capsys.readouterr().out)] == [23, 24, 25]
    assert len([path for path in read if path.startswith("log/")]) <= 8


def test_a_list_reads_each_entry_once(store, read, capsys):
    assert main(["list", store]) == 0

    assert capsys.readouterr().out.count("checkpoint") == 25
    assert len([path for path in read if path.startswith("log/")]) <= 31
