"""Files of a savepoint are found where it was moved to, and none outside it is opened."""

from pathlib import Path

import pytest

from arrowstate.errors import CorruptDataError, MissingFileError
from arrowstate.foreign.flink.handles import FileHandle, InlineHandle
from arrowstate.foreign.flink.places import Places


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "moved" / "job"
    for name, content in {
        "chk-7/_metadata": b"0123456789",
        "chk-7/own": b"own",
        "shared/abc": b"shared file",
        "shared/op_1/db/def": b"deep",
        "taskowned/xyz": b"wal",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "secret").write_bytes(b"secret")
    return folder


def read(job: Path, handle: FileHandle | InlineHandle) -> bytes:
    return Places(job / "chk-7").open(handle).data.tobytes()


@pytest.mark.parametrize(
    ("handle", "expected"),
    [
        (FileHandle("own", 3, relative=True), b"own"),
        (FileHandle("file:/mnt/fl/ckp/job/shared/abc", 11), b"shared file"),
        (FileHandle("hdfs://host:8020/flink/job/shared/op_1/db/def", 4), b"deep"),
        (FileHandle("s3://bucket/job/taskowned/xyz", 3), b"wal"),
        (FileHandle("s3://bucket/somewhere/else/abc", 11), b"shared file"),
        (FileHandle("file:/mnt/job/shared/abc", 4, start=7), b"file"),
        (InlineHandle("name", 2, 3), b"234"),
    ],
)
def test_files_are_found_below_the_folder_of_the_job(
    job: Path, handle: FileHandle | InlineHandle, expected: bytes
) -> None:
    assert read(job, handle) == expected


@pytest.mark.parametrize(
    "handle",
    [
        FileHandle("../../../secret", 6, relative=True),
        FileHandle("..", 6, relative=True),
        FileHandle("file:/mnt/job/shared/../../../../secret", 6),
        FileHandle("", 6),
    ],
)
def test_nothing_outside_is_opened(job: Path, handle: FileHandle) -> None:
    with pytest.raises(CorruptDataError, match="is not in the savepoint's folder|leads outside"):
        read(job, handle)


def test_a_file_that_is_nowhere_is_named(job: Path) -> None:
    with pytest.raises(MissingFileError, match="/etc/passwd"):
        read(job, FileHandle("file:/etc/passwd", 6))


@pytest.mark.parametrize(
    ("handle", "message"),
    [
        (FileHandle("own", 4, relative=True), "chk-7/own is damaged: it has 3 bytes and must have 4"),
        (FileHandle("file:/job/shared/abc", 9, start=7), "bytes 7 to 16 of 11 are missing"),
    ],
)
def test_a_file_of_another_size_is_refused(job: Path, handle: FileHandle, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        read(job, handle)
