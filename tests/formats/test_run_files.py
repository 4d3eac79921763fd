"""Run files: what is written comes back, plain readers open it, and damage never passes for data."""

import datetime
import errno
import io
import itertools
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from msgspec.structs import replace

from arrowstate_formats import CorruptDataError, InvalidInputError
from arrowstate_formats.parquet_types import parquet_schema, to_parquet
from arrowstate_formats.run_files import RunFile, RunFormat, checksum, frame_checksum, split_at_key_groups
from arrowstate_formats.run_reading import read_arrow_batches, read_parquet_row_groups, read_run
from arrowstate_formats.run_writing import write_run

FORMATS = pytest.mark.parametrize("run_format", ["arrow", "parquet", "lance"])


def make_batches(rows: int = 40, cuts: tuple[int, ...] = (0, 15, 28, 40)) -> list[pa.RecordBatch]:
    """A run with a text key and a nullable number, cut into batches."""
    hashes = np.sort(np.random.default_rng(7).integers(-(2**63), 2**63 - 1, rows))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(hashes),
            pa.array([f"user-{row}" for row in range(rows)]),
            pa.array([None if row % 7 == 0 else row for row in range(rows)], pa.int64()),
        ],
        schema=pa.schema(
            [
                pa.field("_key_hash", pa.int64(), nullable=False),
                pa.field("user", pa.string(), nullable=False),
                pa.field("clicks", pa.int64()),
            ]
        ),
    )
    return [batch.slice(start, end - start) for start, end in itertools.pairwise(cuts)]


def written(batches: list[pa.RecordBatch], run_format: RunFormat) -> tuple[pa.Buffer, RunFile]:
    sink = io.BytesIO()
    run = write_run(batches, run_format, sink)
    return pa.py_buffer(sink.getvalue()), run


def every_type() -> pa.RecordBatch:
    """One column of each type that a state may have, with nulls and nesting."""
    moments = pa.array([1_709_209_815, None, -5], pa.int64()).cast(pa.timestamp("s"))
    days = [datetime.date(2024, 2, 29), None, datetime.date(1900, 1, 1)]
    item = pa.struct([pa.field("origin", pa.string(), nullable=False), ("delays", pa.list_(pa.int16()))])
    columns: dict[str, pa.Array] = {
        "_key_hash": pa.array([-5, 0, 7]),
        "null": pa.nulls(3),
        "bool": pa.array([True, None, False]),
        **{str(kind): pa.array([1, None, 3], kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
        **{str(kind): pa.array([1, None, 3], kind) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
        **{str(kind): pa.array([1.5, None, -0.0], kind) for kind in (pa.float16(), pa.float32(), pa.float64())},
        **{
            str(kind): pa.array([Decimal("1.25"), None, Decimal("-7.00")], kind)
            for kind in (pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(38, 2), pa.decimal256(60, 2))
        },
        **{str(kind): pa.array(["ä", None, ""], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())},
        **{
            str(kind): pa.array([b"\0\xff", None, b""], kind)
            for kind in (pa.binary(), pa.large_binary(), pa.binary_view())
        },
        "fixed": pa.array([b"abc", None, b"xyz"], pa.binary(3)),
        "date32": pa.array(days),
        "date64": pa.array(days, pa.date64()),
        **{str(kind): pa.array([1, None, 3], pa.int32()).cast(kind) for kind in (pa.time32("s"), pa.time32("ms"))},
        **{str(kind): pa.array([1, None, 3], pa.int64()).cast(kind) for kind in (pa.time64("us"), pa.time64("ns"))},
        **{
            str(kind): moments.cast(kind)
            for unit in ("s", "ms", "us", "ns")
            for kind in (pa.timestamp(unit), pa.timestamp(unit, "Europe/Berlin"))
        },
        **{str(kind): pa.array([1, None, 3], kind) for kind in map(pa.duration, ("s", "ms", "us", "ns"))},
        "struct": pa.array([{"origin": "EWR", "delays": [1, None]}, None, {"origin": "JFK", "delays": None}], item),
        "list": pa.array([[{"origin": "EWR", "delays": []}], None, []], pa.list_(pa.field("leg", item))),
        "large_list": pa.array([[1, None], None, []], pa.large_list(pa.int64())),
        "fixed_size_list": pa.array([[1, 2], None, [3, None]], pa.list_(pa.field("x", pa.int8()), 2)),
        "map": pa.array(
            [[("a", 1)], None, []],
            # Arrow IPC itself calls the two fields of a map "key" and "value", whatever they were.
            pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False), keys_sorted=True),
        ),
    }
    fields = [pa.field(name, column.type, nullable=name != "_key_hash") for name, column in columns.items()]
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


@FORMATS
def test_a_run_comes_back_as_it_was_written(run_format: RunFormat) -> None:
    batches = make_batches()

    buffer, run = written(batches, run_format)
    found = read_run(buffer, run_format, run.batches, frame_xxh3_128=run.frame_xxh3_128)

    assert found == batches
    assert found[0].schema.equals(batches[0].schema, check_metadata=True)


@FORMATS
def test_every_type_comes_back_exactly(run_format: RunFormat) -> None:
    batch = every_type()

    buffer, run = written([batch], run_format)
    found = read_run(buffer, run_format, run.batches)[0]

    for expected, field, column in zip(batch.schema, found.schema, found.columns, strict=True):
        assert (field, str(field.type), column) == (expected, str(expected.type), batch.column(expected.name))


@FORMATS
def test_documents_describe_the_file_as_it_is(run_format: RunFormat) -> None:
    batches = make_batches()

    buffer, run = written(batches, run_format)

    assert run.bytes == buffer.size
    assert run.xxh3_128 == checksum(buffer) == xxhash.xxh3_128_hexdigest(buffer.to_pybytes())
    assert run.frame_xxh3_128 == frame_checksum(buffer, run.batches)
    for batch, document in zip(batches, run.batches, strict=True):
        hashes = batch.column("_key_hash").to_pylist()
        assert (document.rows, document.min_hash, document.max_hash) == (len(hashes), hashes[0], hashes[-1])
        assert document.xxh3_128 == checksum(buffer.slice(document.offset, document.bytes))
    ends = [document.offset + document.bytes for document in run.batches]
    assert [document.offset for document in run.batches[1:]] == ends[:-1]


@FORMATS
def test_checksums_do_not_depend_on_how_much_the_sink_takes_at_once(run_format: RunFormat) -> None:
    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[:3])

    whole, run = written(make_batches(), run_format)

    slow = Slow()
    slow.write(b"ab")
    found = write_run(make_batches(), run_format, slow)

    assert found == run
    assert slow.getvalue() == b"ab" + whole.to_pybytes()
    assert not slow.closed


@FORMATS
def test_batches_can_be_read_alone_and_with_some_columns(run_format: RunFormat) -> None:
    batches = make_batches()
    buffer, run = written(batches, run_format)

    found = read_run(buffer, run_format, run.batches, [2, 0], ["clicks", "_key_hash"])
    counted = read_run(buffer, run_format, run.batches, columns=[])

    assert found == [batches[2].select(["clicks", "_key_hash"]), batches[0].select(["clicks", "_key_hash"])]
    assert [batch.num_rows for batch in counted] == [15, 13, 12]


@FORMATS
def test_a_column_that_is_not_there_is_refused_with_those_that_are(run_format: RunFormat) -> None:
    buffer, run = written(make_batches(), run_format)

    with pytest.raises(InvalidInputError, match="no column 'click' in the run; it has _key_hash, user, clicks"):
        read_run(buffer, run_format, run.batches, columns=["user", "click"])


@FORMATS
def test_batches_without_rows_are_left_out(run_format: RunFormat) -> None:
    first, *rest = make_batches()

    buffer, run = written([first.slice(0, 0), first, first.slice(0, 0), *rest], run_format)
    empty, empty_run = written([first.slice(0, 0)], run_format)

    assert [document.rows for document in run.batches] == [15, 13, 12]
    assert read_run(buffer, run_format, run.batches) == [first, *rest]
    assert empty_run.batches == []
    assert read_run(empty, run_format, [], frame_xxh3_128=empty_run.frame_xxh3_128) == []


def test_plain_readers_open_the_files(tmp_path: Path) -> None:
    table = pa.Table.from_batches(make_batches())
    for run_format in ("arrow", "parquet"):
        with (tmp_path / f"run.{run_format}").open("wb") as sink:
            write_run(make_batches(), run_format, sink)

    arrow = pa.ipc.open_file(pa.memory_map(str(tmp_path / "run.arrow"))).read_all()
    parquet = pq.read_table(tmp_path / "run.parquet", page_checksum_verification=True)
    count = duckdb.sql(f"SELECT count(*), sum(clicks) FROM '{tmp_path}/run.parquet'").fetchall()
    frame = polars.read_ipc(tmp_path / "run.arrow")

    assert arrow == parquet == table
    assert count == [(40, sum(table["clicks"].drop_null().to_pylist()))]
    assert frame["_key_hash"].to_list() == table["_key_hash"].to_pylist()


def test_parquet_packs_the_hash_and_has_statistics_and_no_dictionaries() -> None:
    buffer, run = written(make_batches(), "parquet")

    metadata = pq.ParquetFile(pa.BufferReader(buffer)).metadata

    assert metadata.num_row_groups == len(run.batches)
    for index, document in enumerate(run.batches):
        hashes, users, clicks = (metadata.row_group(index).column(column) for column in range(3))
        assert "DELTA_BINARY_PACKED" in hashes.encodings
        assert not {"PLAIN_DICTIONARY", "RLE_DICTIONARY"} & set(hashes.encodings + users.encodings + clicks.encodings)
        assert {hashes.compression, users.compression, clicks.compression} == {"ZSTD"}
        assert (hashes.statistics.min, hashes.statistics.max) == (document.min_hash, document.max_hash)


def test_the_byte_range_of_a_row_group_is_that_of_its_column_chunks() -> None:
    buffer, run = written(make_batches(), "parquet")

    metadata = pq.ParquetFile(pa.BufferReader(buffer)).metadata

    for index, document in enumerate(run.batches):
        chunks = [metadata.row_group(index).column(number) for number in range(3)]
        assert document.offset == min(chunk.data_page_offset for chunk in chunks)
        ends = [chunk.data_page_offset + chunk.total_compressed_size for chunk in chunks]
        assert document.offset + document.bytes == max(ends)
    # The magic in front is not of the first row group.
    assert run.batches[0].offset == 4
    last = run.batches[-1].offset + run.batches[-1].bytes
    assert run.frame_xxh3_128 == checksum(b"PAR1" + bytes(buffer.slice(last)))


def test_a_parquet_file_whose_first_row_group_was_counted_from_the_magic_is_read() -> None:
    buffer, run = written(make_batches(), "parquet")
    first, *rest = run.batches
    old = [replace(first, offset=0, bytes=first.bytes + 4, xxh3_128=checksum(buffer.slice(0, first.bytes + 4))), *rest]

    found = read_run(buffer, "parquet", old, frame_xxh3_128=frame_checksum(buffer, old))

    assert found == make_batches()


def test_a_flipped_bit_in_a_parquet_page_is_found_by_any_reader_that_compares_page_checksums() -> None:
    buffer, run = written(make_batches(), "parquet")
    damaged = bytearray(buffer)
    end = run.batches[0].offset + run.batches[0].bytes
    damaged[end - 3] ^= 4

    with pytest.raises(OSError, match="CRC"):
        pq.read_table(pa.BufferReader(bytes(damaged)), page_checksum_verification=True)
    with pytest.raises(CorruptDataError, match="CRC"):
        read_parquet_row_groups(pa.py_buffer(bytes(damaged)), run.batches, [0], verify=False)


def test_mapped_arrow_batches_are_views_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.arrow"
    with path.open("wb") as sink:
        run = write_run(make_batches(), "arrow", sink)
    buffer = pa.memory_map(str(path)).read_buffer()
    before = pa.total_allocated_bytes()

    batches = read_run(buffer, "arrow", run.batches)

    assert pa.total_allocated_bytes() == before
    for batch in batches:
        for column in batch.columns:
            for part in filter(None, column.buffers()):
                assert buffer.address <= part.address <= part.address + part.size <= buffer.address + buffer.size


@FORMATS
def test_every_flipped_byte_of_a_file_is_found(run_format: RunFormat) -> None:
    buffer, run = written(make_batches(), run_format)
    chosen = random.Random(7)
    data = bytearray(buffer)

    for position in range(len(data)):
        bit = 1 << chosen.randrange(8)
        data[position] ^= bit
        with pytest.raises(CorruptDataError, match="data/a is damaged"):
            read_run(
                pa.py_buffer(bytes(data)),
                run_format,
                run.batches,
                frame_xxh3_128=run.frame_xxh3_128,
                path="data/a",
            )
        assert checksum(bytes(data)) != run.xxh3_128
        data[position] ^= bit


def test_a_flipped_byte_of_an_arrow_file_is_found_or_harmless_without_the_frame_checksum() -> None:
    batches = make_batches()
    buffer, run = written(batches, "arrow")
    chosen = random.Random(7)
    data = bytearray(buffer)

    for position in range(len(data)):
        bit = 1 << chosen.randrange(8)
        data[position] ^= bit
        try:
            found = read_arrow_batches(pa.py_buffer(bytes(data)), run.batches)
        except CorruptDataError:
            found = batches
        assert found == batches, position
        assert found[0].schema.equals(batches[0].schema, check_metadata=True)
        data[position] ^= bit


@FORMATS
@pytest.mark.parametrize("verify", [True, False])
def test_every_truncation_of_a_file_is_found(run_format: RunFormat, verify: bool) -> None:
    buffer, run = written(make_batches(), run_format)

    for length in range(0, buffer.size, 7):
        with pytest.raises(CorruptDataError):
            read_run(buffer.slice(0, length), run_format, run.batches, verify=verify)


@pytest.mark.parametrize("run_format", ["arrow", "parquet"])
def test_a_file_of_other_batches_is_found_without_checksums(run_format: RunFormat) -> None:
    buffer, _ = written(make_batches(), run_format)
    _, other = written(make_batches(cuts=(0, 20, 40)), run_format)

    with pytest.raises(CorruptDataError):
        read_run(buffer, run_format, other.batches, verify=False)


@pytest.mark.parametrize("rows", [39, 40, 41])
def test_a_lance_file_of_other_rows_is_found_without_checksums(rows: int) -> None:
    _, run = written(make_batches(), "lance")
    others = make_batches(rows, (0, 15, 28, rows))
    hashes = pa.compute.add(others[2].column("_key_hash"), 1)
    others[2] = others[2].set_column(0, others[0].schema.field(0), hashes)
    other, _ = written(others, "lance")

    with pytest.raises(CorruptDataError):
        read_run(other, "lance", run.batches, verify=False)


def test_a_lance_file_with_rows_of_no_batch_is_found_without_checksums() -> None:
    batches = make_batches()
    _, run = written(batches, "lance")
    longer, _ = written([*batches, batches[2]], "lance")

    with pytest.raises(CorruptDataError, match="52 rows, expected 40"):
        read_run(longer, "lance", run.batches, verify=False)


def test_another_schema_than_expected_is_found() -> None:
    buffer, run = written(make_batches(), "arrow")
    expected = pa.schema([("_key_hash", pa.int64()), ("user", pa.string()), ("clicks", pa.int32())])

    with pytest.raises(CorruptDataError, match="clicks: int64") as damage:
        read_arrow_batches(buffer, run.batches, expected, path="data/a.arrow")
    assert damage.value.path == "data/a.arrow"


@FORMATS
def test_the_error_of_a_full_disk_passes_unchanged(run_format: RunFormat) -> None:
    class Full(io.RawIOBase):
        room = 1500

        def write(self, data: Any) -> int:
            self.room -= len(data)
            if self.room < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return len(data)

    with pytest.raises(OSError, match="No space left") as refused:
        write_run(make_batches(), run_format, Full())  # type: ignore[arg-type]
    assert refused.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "at least one batch"),
        ([pa.record_batch({"k": [1]})], "one column _key_hash"),
        ([pa.record_batch({"_key_hash": pa.array([1], pa.int32())})], "one column _key_hash"),
        ([pa.record_batch({"_key_hash": pa.array([1, None])})], "no nulls"),
        ([pa.record_batch({"_key_hash": [1]}), pa.record_batch({"_key_hash": [2], "n": [1]})], "one schema"),
        (
            [pa.record_batch({"_key_hash": pa.array([1]), "k": pa.array(["a"]).dictionary_encode()})],
            "use its value type string",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@FORMATS
def test_batches_that_are_no_run_are_refused_before_anything_is_written(
    batches: list[pa.RecordBatch], message: str, run_format: RunFormat
) -> None:
    sink = io.BytesIO()

    with pytest.raises(InvalidInputError, match=message):
        write_run(batches, run_format, sink)

    assert sink.getvalue() == b""


def test_an_unknown_format_is_refused() -> None:
    unknown: Any = "orc"

    with pytest.raises(InvalidInputError, match="'arrow', 'parquet' or 'lance', got 'orc'"):
        write_run(make_batches(), unknown, io.BytesIO())
    with pytest.raises(InvalidInputError, match="'arrow', 'parquet' or 'lance', got 'orc'"):
        read_run(pa.py_buffer(b""), unknown, [])


def test_row_groups_follow_key_groups() -> None:
    hashes = np.sort(np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 10_000))
    cuts = split_at_key_groups(hashes, 16, target_rows=1500)
    batch = pa.record_batch({"_key_hash": hashes})

    _, run = written([batch.slice(start, end - start) for start, end in itertools.pairwise(cuts)], "parquet")

    # Two key groups of about 625 rows fit 1,500; a border of a key group is a hash whose top 4 bits change.
    assert len(run.batches) == 8
    for left, right in zip(run.batches, run.batches[1:], strict=False):
        assert left.max_hash >> 60 < right.min_hash >> 60


def test_lists_below_a_null_struct_are_written_by_every_version(tmp_path: Path) -> None:
    nulls = [number % 3 == 1 for number in range(30)]
    maps = pa.array([[(number, 1)] for number in range(30)], pa.map_(pa.int64(), pa.int8()))
    parts = [pa.array([[number] for number in range(30)]), maps]
    structs = pa.StructArray.from_arrays(parts, ["items", "map"], mask=pa.array(nulls))
    batch = pa.record_batch({"x": structs, "lists": structs.flatten()[0], "maps": structs.flatten()[1]})

    stored = to_parquet(batch, parquet_schema(batch.schema))
    pq.write_table(pa.Table.from_batches([stored]), tmp_path / "a.parquet")

    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == batch.to_pylist()
