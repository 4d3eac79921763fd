"""A checkpoint in a bucket is read as one in a folder, and its tables are read by ranges, once."""

from pathlib import Path

import pytest

from arrowstate.foreign.flink.savepoint import open_flink_savepoint
from arrowstate.storage import ObjectStorage, open_storage
from benchmarks.flink_savepoints import STATE, write_savepoint
from object_servers import S3_OPTIONS, s3_server


def _upload(folder: Path, url: str, options: dict[str, object]) -> None:
    storage = open_storage(url, storage_options=options)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.relative_to(folder).as_posix().startswith("."):
            with storage.write_file(path.relative_to(folder).as_posix()) as file:
                file.write(path.read_bytes())


def test_a_bucket_holds_what_a_folder_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_savepoint(tmp_path / "generated", "rocksdb", 60_000)
    read: dict[str, int] = {}
    plain = ObjectStorage.read

    def counted(storage: ObjectStorage, path: str, start: int = 0, length: int | None = None) -> bytes:
        data = plain(storage, path, start, length)
        read[path] = read.get(path, 0) + len(data)
        return data

    monkeypatch.setattr(ObjectStorage, "read", counted)
    with s3_server() as endpoint:
        options = {**S3_OPTIONS, "endpoint_url": endpoint}
        _upload(tmp_path / "generated", "s3://bucket/generated", options)
        remote = open_flink_savepoint("s3://bucket/generated", storage_options=options)[STATE].to_arrow()

    assert remote.equals(open_flink_savepoint(tmp_path / "generated")[STATE].to_arrow())
    (table,) = (tmp_path / "generated").glob("*.sst")
    assert table.stat().st_size <= read[table.name] < 1.2 * table.stat().st_size
