"""The directory beside a run file."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from arrowstate_formats import CorruptDataError, InvalidInputError
from arrowstate_formats.directory import read_directory, write_directory
from arrowstate_formats.run_files import checksum

OFFSETS = np.array([0, 0, 3, 3, 17, 2**32 - 1], np.uint32)


@pytest.mark.parametrize(("base", "shift"), [(-(2**63), 0), (-5, 44), (2**63 - 1, 63)])
def test_a_directory_comes_back(base: int, shift: int) -> None:
    data = write_directory(base, shift, OFFSETS)

    found = read_directory(pa.py_buffer(data), xxh3_128=checksum(data))

    assert found[:2] == (base, shift)
    assert found[2].dtype == np.uint32
    assert found[2].tolist() == OFFSETS.tolist()


def test_a_plain_arrow_reader_opens_it() -> None:
    table = pa.ipc.open_file(pa.py_buffer(write_directory(-5, 44, OFFSETS))).read_all()

    assert table.to_pydict() == {"offsets": OFFSETS.tolist()}
    assert table.schema.metadata == {b"base": b"-5", b"shift": b"44"}


def test_offsets_are_a_view_into_the_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "run.directory"
    path.write_bytes(write_directory(0, 40, np.arange(100_000, dtype=np.uint32)))
    buffer = pa.memory_map(str(path)).read_buffer()

    _, _, offsets = read_directory(buffer)

    assert buffer.address <= offsets.ctypes.data < buffer.address + buffer.size
    assert not offsets.flags.writeable


def test_every_flipped_byte_is_found() -> None:
    data = bytearray(write_directory(-5, 44, OFFSETS))
    expected = checksum(bytes(data))
    chosen = random.Random(7)

    for position in range(len(data)):
        bit = 1 << chosen.randrange(8)
        data[position] ^= bit
        with pytest.raises(CorruptDataError, match="does not match its checksum"):
            read_directory(pa.py_buffer(bytes(data)), xxh3_128=expected, path="data/a.directory")
        data[position] ^= bit


def _table_file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ARROW1",
        write_directory(0, 40, OFFSETS)[:-20],
        _table_file(pa.table({"offsets": pa.array([1], pa.uint32())})),
        _table_file(
            pa.table({"other": pa.array([1], pa.uint32())}).replace_schema_metadata({"base": "0", "shift": "1"})
        ),
        _table_file(pa.table({"offsets": [1]}).replace_schema_metadata({"base": "0", "shift": "1"})),
        _table_file(
            pa.table({"offsets": pa.array([1], pa.uint32())}).replace_schema_metadata({"base": "0", "shift": "64"})
        ),
    ],
    ids=["empty", "magic only", "truncated", "no metadata", "no offsets", "another type", "shift too large"],
)
def test_what_is_no_directory_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="no directory") as damage:
        read_directory(pa.py_buffer(data), path="data/a.directory")
    assert damage.value.path == "data/a.directory"


@pytest.mark.parametrize(
    ("base", "shift", "offsets"),
    [
        (2**63, 0, OFFSETS),
        (0, 64, OFFSETS),
        (0, -1, OFFSETS),
        (0, 0, OFFSETS.astype(np.int64)),
        (0, 0, OFFSETS[:0]),
        (0, 0, OFFSETS.reshape(2, 3)),
    ],
    ids=["base", "shift above", "shift below", "type", "empty", "two-dimensional"],
)
def test_what_cannot_be_a_directory_is_refused(base: int, shift: int, offsets: np.ndarray) -> None:
    with pytest.raises(InvalidInputError, match=r"a directory needs|directory offsets"):
        write_directory(base, shift, offsets)
