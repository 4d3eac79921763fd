"""The sources that come with the package: the contract, and what they say of input that cannot be read."""

import datetime
import errno
import gzip
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from arrowstate.errors import InvalidInputError, SourceError
from arrowstate.runtime.connectors import Batch, EndOfSplit, Source, Split
from arrowstate.runtime.restart import is_unrecoverable
from arrowstate.runtime.sources import file_formats
from arrowstate.runtime.sources.files import FileSource
from arrowstate.runtime.sources.memory import GeneratorSource, IteratorSource, TableSource
from arrowstate.schema.types import check_type
from arrowstate.testing import SourceConformance
from early_versions import is_before
from faulty_proxy import FORBID, faulty_proxy
from long_form import short_or_long

NUMBERS = pa.schema({"n": pa.int64()})
ROWS = pa.table(
    {
        "n": range(100),
        "text": [None if n % 7 == 0 else "" if n % 5 == 0 else f'"{n}",\né' for n in range(100)],
        "at": pa.array(range(100), pa.timestamp("us")),
    }
)


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(first, first + count)})


def first_read(source: Source, *splits: Split, max_rows: int = 1_000) -> Any:
    """What a new reader gives first of splits, of all by default."""
    reader = source.reader()
    reader.add(splits or source.discover(()))
    return reader.read(max_rows)


def all_rows(source: Source, *, max_rows: int = 1_000) -> list[dict[str, Any]]:
    reader = source.reader()
    reader.add(source.discover(()))
    rows = []
    while (item := reader.read(max_rows)) is not None:
        rows += item.rows.to_pylist() if isinstance(item, Batch) else []
    return rows


class TestIteratorSource(SourceConformance):
    @pytest.fixture
    def rows(self) -> pa.Table:
        return pa.concat_tables([ROWS, ROWS.slice(0, 31), ROWS.slice(3, 9)])

    @pytest.fixture
    def source(self) -> IteratorSource:
        tables = [ROWS, ROWS.slice(0, 31), ROWS.slice(3, 9)]

        def make(split: int, position: int) -> Iterator[pa.RecordBatch | None]:
            # Batches begin elsewhere each time, and some are empty.
            yield from tables[split].slice(position).to_batches(max_chunksize=13)
            yield pa.RecordBatch.from_pylist([], schema=ROWS.schema)
            yield None

        return IteratorSource(make, ROWS.schema, splits=3)


class TestGeneratorSource(SourceConformance):
    @pytest.fixture
    def rows(self) -> pa.Table:
        return pa.table({"n": range(101)})

    @pytest.fixture(params=[(1, 65_536), (1, 10), (3, 10), (4, 65_536), (7, 1)], ids=str)
    def source(self, request: pytest.FixtureRequest) -> GeneratorSource:
        splits, batch_rows = request.param
        return GeneratorSource(numbers, NUMBERS, rows=101, splits=splits, batch_rows=batch_rows)


class TestTableSource(SourceConformance):
    @pytest.fixture
    def rows(self) -> pa.Table:
        return pa.concat_tables([ROWS.slice(0, 3), ROWS.slice(3, 0), ROWS.slice(3)])

    @pytest.fixture(params=[1, 3])
    def source(self, request: pytest.FixtureRequest, rows: pa.Table) -> TableSource:
        return TableSource(rows, splits=request.param)


def write_parquet(path: Path, rows: pa.Table) -> None:
    pq.write_table(rows, path, row_group_size=9)


def write_arrow(path: Path, rows: pa.Table) -> None:
    with pa.ipc.new_file(path, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(rows, max_chunksize=9)


def write_arrow_stream(path: Path, rows: pa.Table) -> None:
    with pa.ipc.new_stream(path, rows.schema) as file:
        file.write_table(rows, max_chunksize=9)


def csv_text(rows: pa.Table) -> str:
    def field(value: Any) -> str:
        if value is None:
            return ""
        return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else str(value)

    lines = [rows.schema.names, *(map(field, row.values()) for row in rows.to_pylist())]
    return "".join(",".join(line) + "\n" for line in lines)


def write_csv(path: Path, rows: pa.Table) -> None:
    path.write_text(csv_text(rows))


def write_json(path: Path, rows: pa.Table) -> None:
    lines = [
        json.dumps({name: value for name, value in row.items() if value is not None}, default=str)
        for row in rows.to_pylist()
    ]
    path.write_text("".join(line + "\n" for line in lines))


def zipped(write: Callable[[Path, pa.Table], None]) -> Callable[[Path, pa.Table], None]:
    def write_zipped(path: Path, rows: pa.Table) -> None:
        write(path, rows)
        path.write_bytes(gzip.compress(path.read_bytes()))

    return write_zipped


WRITERS: dict[str, tuple[Any, str, Callable[[Path, pa.Table], None]]] = {
    "parquet": ("parquet", "parquet", write_parquet),
    "arrow": ("arrow", "arrow", write_arrow),
    "arrow stream": ("arrow", "arrows", write_arrow_stream),
    "csv": ("csv", "csv", write_csv),
    "csv.gz": ("csv", "csv.gz", zipped(write_csv)),
    "json": ("json", "json", write_json),
    "json.gz": ("json", "jsonl.gz", zipped(write_json)),
}


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> tuple[Any, str, Callable[[Path, pa.Table], None]]:
    return WRITERS[request.param]


class TestFileSource(SourceConformance):
    @pytest.fixture
    def rows(self) -> pa.Table:
        return pa.concat_tables([ROWS, ROWS.slice(5, 20), ROWS.slice(0, 0)])

    @pytest.fixture
    def source(self, tmp_path: Path, writer: Any, rows: pa.Table) -> FileSource:
        format, suffix, write = writer
        (tmp_path / "day=2").mkdir()
        write(tmp_path / f"a.{suffix}", ROWS)
        write(tmp_path / "day=2" / f"b.{suffix}", ROWS.slice(5, 20))
        write(tmp_path / f"none.{suffix}", ROWS.slice(0, 0))
        return FileSource(tmp_path, format, schema=ROWS.schema)


class TestUnboundedFileSource(SourceConformance):
    @pytest.fixture
    def rows(self) -> pa.Table:
        return ROWS

    @pytest.fixture
    def source(self, tmp_path: Path) -> FileSource:
        write_parquet(tmp_path / "a.parquet", ROWS.slice(0, 40))
        write_parquet(tmp_path / "b.parquet", ROWS.slice(40))
        return FileSource(tmp_path, is_bounded=False)


def test_files_of_a_bucket_are_read_as_local_ones(bucket: dict[str, Any], tmp_path: Path) -> None:
    import s3fs

    files = s3fs.S3FileSystem(**bucket)
    write_parquet(tmp_path / "a", ROWS)
    files.put_file(str(tmp_path / "a"), "bucket/input/a.parquet")
    source = FileSource("s3://bucket/input", storage_options=bucket)
    position = first_read(source, max_rows=30).position
    files.put_file(str(tmp_path / "a"), "bucket/input/b.parquet")

    assert [split.id for split in source.discover(["a.parquet"])] == ["b.parquet"]
    rest = first_read(source, Split("a.parquet", position))
    assert rest.rows.to_pylist() == ROWS.slice(30, rest.rows.num_rows).to_pylist()
    files.pipe_file("bucket/input/a.parquet", b"another file")
    with pytest.raises(SourceError, match="changed after it was begun"):
        first_read(source, Split("a.parquet", position))


@pytest.fixture
def days(bucket: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """A bucket with a file and the marker of a folder for each of two days."""
    import s3fs

    files = s3fs.S3FileSystem(**bucket)
    write_parquet(tmp_path / "a", ROWS)
    for day in ("01", "02"):
        # As the console of S3 makes a folder.
        files.pipe_file(f"bucket/days/2026-{day}/", b"")
        files.put_file(str(tmp_path / "a"), f"bucket/days/2026-{day}/a.parquet")
    return bucket


@pytest.mark.parametrize("pattern", ["", "/*/*.parquet", "/2026-*/a.*", "/**/a.parquet", "/2026-0[12]/*"])
def test_what_marks_a_folder_of_a_bucket_is_no_file(days: dict[str, Any], pattern: str) -> None:
    source = FileSource(f"s3://bucket/days{pattern}", storage_options=days)

    assert [split.id for split in source.discover(())] == ["2026-01/a.parquet", "2026-02/a.parquet"]


@pytest.mark.parametrize("pattern", ["", "/*/*.parquet", "/2026-*/a.*"])
def test_a_folder_of_a_bucket_that_cannot_be_listed_is_told(days: dict[str, Any], pattern: str) -> None:
    with faulty_proxy(days["endpoint_url"]) as proxy:
        options = {**days, "endpoint_url": proxy.endpoint}
        source = FileSource(f"s3://bucket/days{pattern}", schema=ROWS.schema, storage_options=options)
        source.discover(())
        # The last of them is of a folder, if each is listed by itself.
        listing = [request for request in proxy.requests if "list-type=2" in request][-1]
        proxy.fail(FORBID, "GET", listing.partition("?")[2].partition("&delim")[0])

        with pytest.raises(PermissionError):
            source.discover(())


def test_an_iterator_is_made_at_the_row_of_the_position() -> None:
    asked = []

    def make(split: int, position: int) -> Iterator[pa.RecordBatch]:
        asked.append((split, position))
        yield numbers(position, 3)

    batch = first_read(IteratorSource(make, NUMBERS, splits=5), Split("4", position=1_000))

    assert asked == [(4, 1_000)]
    assert (batch.rows["n"].to_pylist(), batch.position) == ([1_000, 1_001, 1_002], 1_003)


@pytest.mark.parametrize("nothing", [None, numbers(0, 0)], ids=["None", "no rows"])
def test_where_an_iterator_has_nothing_now_the_others_go_on(nothing: pa.RecordBatch | None) -> None:
    def make(split: int, position: int) -> Iterator[pa.RecordBatch | None]:
        while True:
            yield nothing if split == 0 else numbers(position, 1)

    reader = (source := IteratorSource(make, NUMBERS, splits=2, is_bounded=False)).reader()
    reader.add(source.discover(()))

    assert [reader.read(10).split for _ in range(3)] == ["1", "1", "1"]
    assert not source.is_bounded


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (pa.record_batch({"n": ["a"]}), "rows must have n: int64; they have n: string"),
        (pa.record_batch({"m": [1]}), "rows must have n: int64; they have m: int64"),
        (pa.record_batch({"n": [1], "m": [1]}), "rows must have n: int64; they have n: int64, m: int64"),
        (pa.table({"n": [1]}), "must come as a pyarrow.RecordBatch, got Table"),
        ([1], "must come as a pyarrow.RecordBatch, got list"),
    ],
    ids=["type", "name", "more", "table", "list"],
)
def test_rows_of_another_schema_are_an_error_of_split_and_position(made: Any, message: str) -> None:
    source = IteratorSource(lambda split, position: iter([numbers(0, 5), made]), NUMBERS)
    reader = source.reader()
    reader.add(source.discover(()))
    reader.read(100)

    with pytest.raises(SourceError) as caught:
        reader.read(100)

    assert message in str(caught.value)
    assert (caught.value.split, caught.value.position) == ("0", 5)


def test_a_null_where_none_may_be_is_an_error() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    source = IteratorSource(lambda split, position: iter([pa.record_batch({"n": [1, None]})]), schema)

    with pytest.raises(SourceError, match="column 'n' is null"):
        first_read(source)


def test_what_an_iterator_raises_is_the_cause_and_the_split_is_not_ended_by_it() -> None:
    failures = [ZeroDivisionError("once")]

    def make(split: int, position: int) -> Iterator[pa.RecordBatch]:
        if position == 0:
            yield numbers(0, 5)
        if failures:
            raise failures.pop()
        yield numbers(5, 2)

    source = IteratorSource(make, NUMBERS)
    reader = source.reader()
    reader.add(source.discover(()))
    reader.read(100)

    with pytest.raises(SourceError, match="split '0' from position 5: ZeroDivisionError: once") as caught:
        reader.read(100)

    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert reader.read(100).rows["n"].to_pylist() == [5, 6]
    assert reader.read(100) == EndOfSplit("0")


@pytest.mark.parametrize("position", [-1, "7", 1.5, True, {"row": 7}])
def test_what_is_no_number_of_a_row_is_no_position(position: Any) -> None:
    for source in (TableSource(ROWS), IteratorSource(lambda split, position: iter([]), NUMBERS)):
        with pytest.raises(SourceError, match="must be the number of a row from 0, got") as caught:
            first_read(source, Split("0", position))

        assert caught.value.position == position


@pytest.mark.parametrize("name", ["3", "-1", "one"])
def test_a_split_of_another_layout_is_an_error_that_says_what_there_is(name: str) -> None:
    with pytest.raises(SourceError, match=f"split '{name}'.*no such split; it has 0 to 2"):
        first_read(IteratorSource(lambda split, position: iter([]), NUMBERS, splits=3), Split(name))


def test_a_split_that_is_being_read_is_not_added_again() -> None:
    reader = TableSource(ROWS).reader()
    reader.add([Split("0")])

    with pytest.raises(InvalidInputError, match="split '0' is being read already"):
        reader.add([Split("0")])


def test_generators_with_splits_go_through_the_numbers_together() -> None:
    source = GeneratorSource(numbers, NUMBERS, splits=3, batch_rows=2)
    reader = source.reader()
    reader.add(source.discover(()))

    read = [reader.read(100).rows["n"].to_pylist() for _ in range(7)]

    assert read == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13]]
    assert not source.is_bounded


def test_a_generator_of_another_layout_does_not_read_the_splits_of_before() -> None:
    (before, _) = GeneratorSource(numbers, NUMBERS, splits=2, batch_rows=10).discover(())

    for source in (
        GeneratorSource(numbers, NUMBERS, splits=3, batch_rows=10),
        GeneratorSource(numbers, NUMBERS, splits=2, batch_rows=20),
    ):
        with pytest.raises(SourceError, match="no such split"):
            first_read(source, Split(before.id, 10))


def test_a_generator_with_one_split_goes_on_with_other_sizes() -> None:
    batch = first_read(GeneratorSource(numbers, NUMBERS, batch_rows=10), max_rows=7)

    rest = first_read(GeneratorSource(numbers, NUMBERS, rows=20, batch_rows=100), Split(batch.split, batch.position))

    assert rest.rows["n"].to_pylist() == list(range(7, 20))


@pytest.mark.parametrize(("splits", "lengths"), [(1, [11]), (3, [4, 4, 3]), (4, [3, 3, 3, 2])])
def test_fewer_rows_than_the_position_are_an_error(splits: int, lengths: list[int]) -> None:
    source = TableSource(ROWS.slice(0, 11), splits=splits)

    for split, length in zip(source.discover(()), lengths, strict=True):
        assert first_read(source, Split(split.id, length)) == EndOfSplit(split.id)
        with pytest.raises(SourceError, match=f"position {length + 1}: the split has only {length} rows"):
            first_read(source, Split(split.id, length + 1))


def test_a_function_that_returns_other_rows_than_were_asked_for_is_told_so() -> None:
    source = GeneratorSource(lambda first, count: numbers(first, count - 1), NUMBERS, rows=10)

    with pytest.raises(SourceError, match="the function returned 9 rows for the 10 from number 0"):
        first_read(source)


def test_what_a_function_raises_names_the_row() -> None:
    def fail(first: int, count: int) -> pa.RecordBatch:
        raise KeyError("k")

    with pytest.raises(SourceError, match=r"split '0' from position 7, row 7: KeyError: 'k'"):
        first_read(GeneratorSource(fail, NUMBERS), Split("0", 7))


def test_rows_come_as_fast_as_was_asked_for_and_what_was_missed_comes_at_once() -> None:
    now = [100.0]
    source = GeneratorSource(numbers, NUMBERS, splits=2, rows_per_second=10, clock=lambda: now[0])
    reader = source.reader()
    reader.add(source.discover(()))

    def read() -> int:
        counts = []
        while (batch := reader.read(100)) is not None:
            counts.append(batch.rows.num_rows)
        return sum(counts)

    assert read() == 0
    now[0] += 0.4
    assert read() == 4
    assert read() == 0
    now[0] += 10
    assert read() == 100


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GeneratorSource(numbers, NUMBERS, splits=0), "splits must be at least 1, got 0"),
        (lambda: GeneratorSource(numbers, NUMBERS, batch_rows=0), "batch_rows must be at least 1, got 0"),
        (lambda: GeneratorSource(numbers, NUMBERS, rows=-1), "rows must be at least 0, got -1"),
        (lambda: GeneratorSource(numbers, NUMBERS, rows_per_second=0), "rows_per_second must be above 0, got 0"),
        (lambda: GeneratorSource(numbers, {"n": int}), "must be a pyarrow.Schema, got dict"),
        (lambda: IteratorSource(numbers, NUMBERS, splits=0), "splits must be at least 1, got 0"),
        (lambda: TableSource([1]), "must be a pyarrow.Table, got list"),
        (lambda: TableSource(ROWS).reader().read(0), "max_rows must be at least 1, got 0"),
        (lambda: FileSource("/tmp", "xml", schema=NUMBERS), "must be one of parquet, csv, json, arrow, got 'xml'"),
        (lambda: FileSource("/tmp", schema=NUMBERS, discovery_ms=-1), "discovery_ms must be"),
        (lambda: FileSource("/tmp", "csv"), "a source of csv files needs a schema"),
        (lambda: FileSource("/no/such/folder"), "there is no folder /no/such/folder"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        make()

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("format", "type"),
    [
        *(("csv", type) for type in (pa.list_(pa.int64()), pa.struct({"n": pa.int64()}), pa.string_view())),
        *(("json", type) for type in (pa.duration("s"), pa.list_(pa.map_(pa.string(), pa.int64())))),
    ],
    ids=str,
)
def test_a_type_that_a_text_cannot_be_read_as_is_refused_before_a_file_is_there(
    tmp_path: Path, format: Any, type: Any
) -> None:
    with pytest.raises(InvalidInputError, match=f"a source of {format} files cannot read column 'odd \"' as") as caught:
        FileSource(tmp_path, format, schema=pa.schema({"n": pa.int64(), 'odd "': type}))

    assert str(type) in str(caught.value)


def test_files_are_read_in_the_order_of_their_times_and_names(tmp_path: Path) -> None:
    for name, seconds in {"c": 10, "b": 20, "a": 30, "d": 20}.items():
        write_parquet(tmp_path / name, ROWS)
        os.utime(tmp_path / name, (seconds, seconds))

    assert [split.id for split in FileSource(tmp_path).discover(())] == ["c", "b", "d", "a"]


def test_files_that_are_not_ready_or_hidden_are_left_out(tmp_path: Path) -> None:
    for name in (
        "_SUCCESS",
        ".a.crc",
        "a.parquet.tmp",
        "part-0.inprogress",
        "_temporary/0/a.parquet",
        "x/.b/a.parquet",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    write_parquet(tmp_path / "x" / "a.parquet", ROWS)

    assert [split.id for split in FileSource(tmp_path).discover(())] == ["x/a.parquet"]


def test_a_pattern_chooses_files_and_their_ids_are_below_its_folder(tmp_path: Path) -> None:
    for name in ("2026-01/a.parquet", "2026-02/b.parquet", "2026-02/b.txt", "2025-12/c.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_parquet(tmp_path / name, ROWS.slice(0, 5))

    source = FileSource(f"{tmp_path}/2026-*/*.parquet")

    assert sorted(split.id for split in source.discover(())) == ["2026-01/a.parquet", "2026-02/b.parquet"]
    assert len(all_rows(source)) == 10


def test_a_path_may_be_that_of_a_file_and_a_folder_may_look_like_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "[1]*"
    folder.mkdir()
    write_parquet(folder / "a.parquet", ROWS)

    assert [split.id for split in FileSource(folder).discover(())] == ["a.parquet"]
    one = FileSource(folder / "a.parquet")
    assert [split.id for split in one.discover(())] == ["a.parquet"]
    assert all_rows(one) == ROWS.to_pylist()


@pytest.mark.parametrize("name", ["_a.parquet", ".a", "a.tmp"])
def test_a_file_that_is_named_itself_is_not_left_out(tmp_path: Path, name: str) -> None:
    write_parquet(tmp_path / name, ROWS)

    assert all_rows(FileSource(tmp_path / name)) == ROWS.to_pylist()
    assert FileSource(tmp_path, schema=ROWS.schema).discover(()) == []


def test_a_source_without_an_end_waits_for_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    source = FileSource(folder, schema=ROWS.schema, is_bounded=False)
    assert source.discover(()) == []

    folder.mkdir()
    write_parquet(folder / "a.parquet", ROWS)

    assert [split.id for split in source.discover(())] == ["a.parquet"]


def test_a_bounded_source_needs_its_folder_at_the_first_start_alone(tmp_path: Path) -> None:
    source = FileSource(tmp_path / "none", schema=ROWS.schema)

    with pytest.raises(InvalidInputError, match="a bounded source needs one when its job starts for the first time"):
        source.discover(())
    assert source.discover(("a.parquet",)) == []


@pytest.mark.parametrize("pattern", ["", "*/*.parquet"])
def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: Any, pattern: str) -> None:
    for name in ("open", "shut", "_hidden"):
        (tmp_path / name).mkdir()
        write_parquet(tmp_path / name / "a.parquet", ROWS)
    source = FileSource(tmp_path / pattern, schema=ROWS.schema)
    scandir = os.scandir
    errors = {"_hidden": PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "_hidden"))}

    def listed(path: str) -> Any:
        if Path(path).name in errors:
            raise errors[Path(path).name]
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)

    assert [split.id for split in source.discover(())] == ["open/a.parquet", "shut/a.parquet"]
    errors["shut"] = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "shut"))
    with pytest.raises(PermissionError, match="shut"):
        source.discover(())
    errors["shut"] = FileNotFoundError(errno.ENOENT, "No such file or directory", str(tmp_path / "shut"))
    assert [split.id for split in source.discover(())] == ["open/a.parquet"]


def test_a_name_that_is_not_utf8_is_told_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "_\udcff.csv").write_text("n\n1\n")
    source = FileSource(tmp_path, "csv", schema=NUMBERS)
    assert source.discover(()) == []

    (tmp_path / "\udcff.csv").write_text("n\n1\n")

    with pytest.raises(InvalidInputError, match=r"the name of the file '\\udcff.csv' is not UTF-8"):
        source.discover(())


def test_a_linked_file_is_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a", ROWS)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b").symlink_to(tmp_path / "a")

    assert all_rows(FileSource(tmp_path / "in")) == ROWS.to_pylist()


def test_the_schema_is_that_of_the_oldest_file_unless_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no file in .* that has a schema; give one"):
        FileSource(tmp_path)

    write_parquet(tmp_path / "a", ROWS)

    assert FileSource(tmp_path).schema.equals(ROWS.schema)
    assert FileSource(tmp_path, schema=NUMBERS).schema.equals(NUMBERS)


def test_columns_are_found_by_name_and_brought_to_the_types_of_the_schema(tmp_path: Path, writer: Any) -> None:
    format, suffix, write = writer
    write(tmp_path / f"a.{suffix}", ROWS.select(["at", "text", "n"]))
    wanted = pa.schema({"n": pa.int32(), "text": pa.large_string()})

    source = FileSource(tmp_path, format, schema=wanted)

    assert all_rows(source) == ROWS.select(["n", "text"]).to_pylist()
    assert first_read(source).rows.schema.equals(wanted)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream"])
def test_a_value_that_does_not_fit_names_the_row(tmp_path: Path, kind: str) -> None:
    format, suffix, write = WRITERS[kind]
    write(tmp_path / f"a.{suffix}", pa.table({"n": [*range(50), 2**40, 51]}))
    source = FileSource(tmp_path, format, schema=pa.schema({"n": pa.int32()}))

    with pytest.raises(SourceError, match="column 'n' does not fit int32") as caught:
        all_rows(source)

    assert (caught.value.split, caught.value.row) == (f"a.{suffix}", 50)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_number_that_is_too_large_for_a_float_names_the_row(tmp_path: Path, kind: str) -> None:
    format, suffix, write = WRITERS[kind]
    write(tmp_path / f"a.{suffix}", pa.table({"x": [0.5, float("inf"), None, 1e300], "n": range(4)}))
    source = FileSource(tmp_path, format, schema=pa.schema({"x": pa.float32()}))

    with pytest.raises(SourceError, match="column 'x' does not fit float") as caught:
        all_rows(source)

    assert (caught.value.split, caught.value.row) == (f"a.{suffix}", 3)
    assert is_unrecoverable(caught.value)


def test_a_number_in_json_that_is_too_large_for_a_float_inside_names_the_row(tmp_path: Path) -> None:
    type = pa.struct({"x": pa.list_(pa.float32()), "y": pa.float16()})
    texts = ['{"s": {"x": [1.5, null], "y": -0.5}}', '{"s": null}', '{"s": {"x": [1e39]}}']
    source = FileSource(tmp_path, "json", schema=pa.schema({"s": type}))
    (tmp_path / "a").write_text("\n".join(texts[:2]))
    (tmp_path / "b").write_text("\n".join(texts))
    reader = source.reader()
    reader.add([Split("a"), Split("b")])

    assert reader.read(10).rows.to_pylist() == [{"s": {"x": [1.5, None], "y": -0.5}}, {"s": None}]
    assert reader.read(10) == EndOfSplit("a")
    with pytest.raises(SourceError, match="column 's' does not fit struct") as caught:
        reader.read(10)
    assert caught.value.row == 2


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream"])
@pytest.mark.parametrize("base", [pa.string(), pa.binary()])
def test_texts_and_bytes_are_read_from_each_of_their_types_into_each(
    tmp_path: Path, kind: str, base: pa.DataType
) -> None:
    format, suffix, write = WRITERS[kind]
    large, view = (pa.large_string, pa.string_view) if base == pa.string() else (pa.large_binary, pa.binary_view)
    types = [base, large(), view(), pa.dictionary(pa.int32(), base), pa.dictionary(pa.int8(), large())]
    values = pa.array(["a", None, "b", "a"], pa.string()).cast(base)
    for number, type in enumerate(types):
        write(tmp_path / f"{number}.{suffix}", pa.table({"x": values.cast(base if type == view() else type)}))
    # Before, PyArrow ends the process where it writes a view compressed.
    if format == "arrow" and not is_before("pyarrow", (23,)):
        write(tmp_path / f"2.{suffix}", pa.table({"x": values.cast(view())}))

    for type in types:
        rows = all_rows(FileSource(tmp_path, format, schema=pa.schema({"x": type})))
        assert [row["x"] for row in rows] == values.to_pylist() * len(types)


def test_a_map_is_read_whatever_its_keys_and_items_are_called(tmp_path: Path) -> None:
    kind = pa.map_(pa.field("name", pa.string(), nullable=False), pa.field("count", pa.int64()))
    WRITERS["arrow"][2](tmp_path / "a.arrow", pa.table({"x": pa.array([[("a", 1)], None], kind)}))
    source = FileSource(tmp_path, "arrow", schema=pa.schema({"x": pa.map_(pa.string(), pa.int32())}))

    assert all_rows(source) == [{"x": [("a", 1)]}, {"x": None}]


@pytest.mark.parametrize("type", [pa.string(), pa.list_(pa.string())])
def test_a_text_in_json_that_is_not_utf8_names_the_row(tmp_path: Path, type: pa.DataType) -> None:
    text = b'"\xff"' if pa.types.is_string(type) else b'["\xff"]'
    (tmp_path / "a.json").write_bytes(b'{"x": null}\n' * 3 + b'{"x": ' + text + b'}\n{"x": null}\n')
    source = FileSource(tmp_path, "json", schema=pa.schema({"x": type}))

    with pytest.raises(SourceError, match="column 'x' does not fit: .*Invalid UTF8") as caught:
        all_rows(source)

    assert (caught.value.split, caught.value.row) == ("a.json", 3)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream"])
@pytest.mark.parametrize("is_list", [False, True])
def test_a_text_that_is_not_utf8_names_the_row_where_its_column_is_read(
    tmp_path: Path, kind: str, is_list: bool
) -> None:
    format, suffix, write = WRITERS[kind]
    texts = pa.array([b"a"] * 20 + [b"\xff"] + [b"b"] * 9, pa.binary()).view(pa.string())
    column = pa.ListArray.from_arrays(pa.array(range(31), pa.int32()), texts) if is_list else texts
    write(tmp_path / f"a.{suffix}", pa.table({"text": column, "n": range(30)}))

    with pytest.raises(SourceError, match="column 'text' does not fit: .*Invalid UTF8") as caught:
        all_rows(FileSource(tmp_path, format))

    assert (caught.value.split, caught.value.row) == (f"a.{suffix}", 20)
    assert is_unrecoverable(caught.value)
    assert len(all_rows(FileSource(tmp_path, format, schema=NUMBERS))) == 30


def test_places_of_texts_that_are_damaged_are_told(tmp_path: Path) -> None:
    rows = pa.table({"text": ["aaaa", "bbbb"] * 500})
    path = tmp_path / "a.arrow"
    with pa.ipc.new_file(path, rows.schema) as file:
        file.write_table(rows)
    body = path.read_bytes()
    begin = body.index(np.arange(0, 400, 4, np.int32).tobytes()) + 40
    path.write_bytes(body[:begin] + b"\x00\x00\x00\x7f" * 20 + body[begin + 80 :])

    with pytest.raises(SourceError, match="column 'text' does not fit"):
        all_rows(FileSource(tmp_path, "arrow"))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream", "csv"])
@pytest.mark.parametrize(
    ("columns", "message"), [({"m": pa.int64()}, "'m'"), ({"text": pa.int64()}, "text|invalid value")]
)
def test_a_column_that_is_not_there_or_of_another_kind_is_an_error(
    tmp_path: Path, kind: str, columns: Any, message: str
) -> None:
    format, suffix, write = WRITERS[kind]
    write(tmp_path / f"a.{suffix}", ROWS)

    with pytest.raises(SourceError, match=message) as caught:
        all_rows(FileSource(tmp_path, format, schema=pa.schema(columns)))

    assert caught.value.split == f"a.{suffix}"


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        ("csv", "{n}\n", "x\n"),
        ("csv", "{n}\n", "1,2\n"),
        ("json", '{{"n": {n}}}\n', '{"n": "x"}\n'),
        ("json", '{{"n": {n}}}\n', '{"n": \n'),
    ],
    ids=["csv value", "csv fields", "json value", "json text"],
)
@pytest.mark.parametrize("before", [0, 7, 900_000])
def test_a_row_of_a_text_that_does_not_parse_is_named(
    tmp_path: Path, format: Any, good: str, bad: str, before: int
) -> None:
    text = "".join(good.format(n=n) for n in range(before))
    (tmp_path / "a").write_text(("n\n" if format == "csv" else "") + text + bad)
    source = FileSource(tmp_path, format, schema=NUMBERS)
    reader = source.reader()
    reader.add(source.discover(()))
    rows = 0

    with pytest.raises(SourceError) as caught:
        while True:
            rows += reader.read(100_000).rows.num_rows

    assert caught.value.row == before
    assert caught.value.position["row"] == rows <= before


def test_a_block_of_json_that_begins_with_a_null_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(file_formats, "_BLOCK_BYTES", 32)
    texts = [None, None, "a", None, "b" * 12, *[None] * 20, "c"]
    lines = ["null" if text is None else json.dumps({"text": text}) for text in texts]
    (tmp_path / "a.json").write_text("\n " + " \n".join(lines))

    rows = all_rows(FileSource(tmp_path, "json", schema=pa.schema({"text": pa.string()})))

    assert [row["text"] for row in rows] == texts


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("n," + "x" * 99 + "\n1,2\n", "its first line is not within its first 32 bytes"),
        ("\n" * 99 + "n\n1\n", "its first line is not within its first 32 bytes"),
        ("n,text\n1,\n2," + "x" * 99 + "\n", "a line after row 1 is longer than 32 bytes"),
    ],
    ids=["names", "blank lines", "row"],
)
def test_a_line_that_is_too_long_is_told(tmp_path: Path, monkeypatch: Any, text: str, told: str, suffix: str) -> None:
    monkeypatch.setattr(file_formats, "_BLOCK_BYTES", 32)
    body = text.encode()
    (tmp_path / f"a.csv{suffix}").write_bytes(gzip.compress(body) if suffix else body)

    with pytest.raises(SourceError, match=told):
        all_rows(FileSource(tmp_path, "csv", schema=NUMBERS))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_name_that_two_columns_of_csv_have_is_refused(tmp_path: Path, suffix: str) -> None:
    body = b'\xef\xbb\xbf\r\n"n",text,n,text\r\n1,a,2,b\r\n'
    (tmp_path / f"a.csv{suffix}").write_bytes(gzip.compress(body) if suffix else body)

    with pytest.raises(SourceError, match="the file has 2 columns 'n'"):
        all_rows(FileSource(tmp_path, "csv", schema=NUMBERS))
    with pytest.raises(SourceError, match="the file has 2 columns 'text'"):
        all_rows(FileSource(tmp_path, "csv", schema=pa.schema({"text": pa.string()})))


@pytest.mark.parametrize("text", ["", "\n" * 99, "\ufeff\r\n\r\n"])
@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_text_without_anything_has_no_rows(tmp_path: Path, monkeypatch: Any, format: Any, text: str) -> None:
    monkeypatch.setattr(file_formats, "_BLOCK_BYTES", 32)
    (tmp_path / "a").write_bytes(text.encode())
    (tmp_path / "a.gz").write_bytes(gzip.compress(text.encode()))

    assert all_rows(FileSource(tmp_path, format, schema=NUMBERS)) == []


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("text", ["n,text", '\n\n"n",text', "n", "n\n", "\ufeffn\r\n\r\n"])
def test_a_csv_of_only_its_names_has_no_rows(tmp_path: Path, text: str, suffix: str) -> None:
    body = text.encode()
    (tmp_path / f"a.csv{suffix}").write_bytes(gzip.compress(body) if suffix else body)

    assert all_rows(FileSource(tmp_path, "csv", schema=NUMBERS)) == []


@pytest.mark.parametrize(
    ("names", "row", "line"), [("n,text", "{n},a", "-"), ("n,text", "{n},a", "+"), ("n", "{n}", ",")]
)
def test_a_line_of_csv_with_another_number_of_fields_is_told_whatever_is_in_it(
    tmp_path: Path, names: str, row: str, line: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join([names, row.format(n=1), line, row.format(n=2)]))

    with pytest.raises(SourceError, match="Expected . columns, got .") as caught:
        all_rows(FileSource(tmp_path, "csv", schema=NUMBERS))

    assert caught.value.row == 1


def test_fields_of_csv_without_quotes_are_null_where_they_are_empty_and_never_else(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,n\n,1\n"",\nNA,2\nnull,3\n')
    source = FileSource(tmp_path, "csv", schema=pa.schema({"text": pa.string(), "n": pa.int64()}))

    assert [tuple(row.values()) for row in all_rows(source)] == [(None, 1), ("", None), ("NA", 2), ("null", 3)]


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31 23:59:59", "2262-04-11 23:47:16.854775808"])
def test_a_time_that_has_no_nanoseconds_is_told_with_its_row_and_is_never_another_one(
    tmp_path: Path, format: str, text: str
) -> None:
    columns = {"n": pa.int64(), "at": pa.timestamp("ns")}
    path, times = tmp_path / "a", ["2024-02-29 12:00:00.123456789", None, "1969-12-31 23:59:59.5"]

    def source(times: list[str | None]) -> FileSource:
        if format == "csv":
            lines = ["n,at", *(f"{n},{time or ''}" for n, time in enumerate(times))]
        else:
            lines = [json.dumps({"n": n, "at": time}) for n, time in enumerate(times)]
        path.write_text("".join(f"{line}\n" for line in lines))
        return FileSource(tmp_path, format, schema=pa.schema(columns))  # type: ignore[arg-type]

    found = all_rows(source(times))
    assert [row["at"] and row["at"].value for row in found] == [1_709_208_000_123_456_789, None, -500_000_000]
    with pytest.raises(SourceError, match=r"row 3: .*timestamp\[ns\]" if format == "csv" else r"timestamp\[ns\]"):
        all_rows(source([*times, text]))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("of_pyarrow", [False, True])
def test_columns_of_uuids_and_json_are_read_as_what_a_state_can_have(
    tmp_path: Path, nested: bool, of_pyarrow: bool
) -> None:
    made = "select uuid() u, '{\"a\":1}'::json j from range(3)"
    made = f"select {{'u': u, 'j': [j]}} v from ({made})" if nested else made
    duckdb.sql(f"copy ({made}) to '{tmp_path}/a.parquet'")
    if of_pyarrow and hasattr(pa, "json_"):
        # Beside the schema of Parquet such a file has that of Arrow.
        pq.write_table(pq.read_table(tmp_path / "a.parquet"), tmp_path / "a.parquet")
    source = FileSource(tmp_path)
    plain = pa.schema({"u": pa.binary(16), "j": pa.list_(pa.string()) if nested else pa.string()})
    if nested:
        plain = pa.schema({"v": pa.struct(list(plain))})

    for schema in (source.schema, plain):
        check_type(schema.field(0).type, "a column")
        rows = all_rows(FileSource(tmp_path, schema=schema))
        found = [row["v"] if nested else row for row in rows]
        assert [row["j"] for row in found] == ([['{"a":1}']] if nested else ['{"a":1}']) * 3
        assert {type(row["u"]) for row in found} == {bytes}


# A quote is one only at the start of a field.
CSV_FIELD = r'(?:"(?:[^"]|"")*+"[^,\n]*|[^",\n][^,\n]*)?'
CSV_TEXT = re.compile(rf"{CSV_FIELD}(?:[,\n]{CSV_FIELD})*")


@pytest.mark.parametrize("open_row", ['500,t,"x', '500,"t,x'])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_quote_that_is_never_closed_is_told_with_its_row_and_the_rows_before_it_are_read(
    tmp_path: Path, monkeypatch: Any, suffix: str, open_row: str
) -> None:
    monkeypatch.setattr(file_formats, "_BLOCK_BYTES", 512)
    rows = "".join(f"{n},t,x\n" for n in range(500))
    body = f"n,text,other\n{rows}{open_row}\n501,t,x\n502,t,x\n".encode()
    (tmp_path / f"a.csv{suffix}").write_bytes(gzip.compress(body) if suffix else body)
    source = FileSource(tmp_path, "csv", schema=NUMBERS)
    reader = source.reader()
    reader.add(source.discover(()))
    found: list[int] = []

    with pytest.raises(SourceError, match="row 500: a quote is opened in its last row and never closed") as caught:
        while isinstance(batch := reader.read(64), Batch):
            found += batch.rows["n"].to_pylist()

    assert found == list(range(500))
    assert is_unrecoverable(caught.value)


@pytest.mark.parametrize("columns", [1, 3])
def test_of_any_csv_all_rows_are_read_or_an_error_is_told(tmp_path: Path, columns: int) -> None:
    random = np.random.default_rng(columns)
    names = ["a", "b", "c"][:columns]
    path = tmp_path / "a.csv"
    seen = {"open": 0, "rows": 0, "misfit": 0}
    for _ in range(short_or_long(400, 20_000)):
        fields = random.choice(["", "x", '""', '"x"', '"x\n"', '"x"",y"', 'x"y', '"x"y', '"', "x\n"], (4, columns))
        odd = [random.choice([",", "\n"]) if random.random() < 0.03 else "," for _ in fields]
        text = ",".join(names) + "\n" + "\n".join(comma.join(row) for comma, row in zip(odd, fields, strict=True))
        text += random.choice(["", "\n", "\n\n"])
        path.write_text(text)
        source = FileSource(tmp_path, "csv", schema=pa.schema({names[-1]: pa.string()}))
        try:
            expected = pa.csv.read_csv(
                # Arrow takes an empty field at the very end for an empty text.
                pa.BufferReader(f"{text}\n".encode()),
                parse_options=pa.csv.ParseOptions(newlines_in_values=True),
                convert_options=pa.csv.ConvertOptions(
                    column_types={names[-1]: pa.string()},
                    include_columns=[names[-1]],
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            ).to_pylist()
        except pa.ArrowInvalid:
            expected = None

        is_closed = CSV_TEXT.fullmatch(text)
        if expected is None or not is_closed:
            seen["misfit" if is_closed else "open"] += 1
            with pytest.raises(SourceError):
                all_rows(source)
        else:
            seen["rows"] += 1
            assert all_rows(source) == expected
    assert seen["open"] > 9
    assert seen["rows"] > 9


# A CSV without its last lines is a CSV.
@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != "csv"])
@pytest.mark.parametrize("max_rows", [1, 1_000])
def test_a_file_that_is_cut_is_an_error_of_file_and_position(tmp_path: Path, kind: str, max_rows: int) -> None:
    format, suffix, write = WRITERS[kind]
    path = tmp_path / f"a.{suffix}"
    write(path, ROWS)
    body = path.read_bytes()
    path.write_bytes(body[: len(body) * 3 // 4])

    with pytest.raises(SourceError) as caught:
        all_rows(FileSource(tmp_path, format, schema=ROWS.schema), max_rows=max_rows)

    assert caught.value.split == path.name
    assert caught.value.position["row"] < len(ROWS)
    assert is_unrecoverable(caught.value)


def test_a_file_with_bytes_that_cannot_be_decompressed_is_not_read_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": range(10_000)}), path, use_dictionary=False, compression="snappy")
    body = path.read_bytes()
    path.write_bytes(body[:100] + b"\xff" * 500 + body[600:])

    with pytest.raises(SourceError) as caught:
        all_rows(FileSource(tmp_path))

    assert is_unrecoverable(caught.value)


def test_a_disk_that_does_not_answer_is_asked_again(tmp_path: Path, monkeypatch: Any) -> None:
    write_parquet(tmp_path / "a.parquet", ROWS)
    source = FileSource(tmp_path)

    def fails(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(pa, "OSFile", fails)

    with pytest.raises(SourceError) as caught:
        all_rows(source)

    assert not is_unrecoverable(caught.value)


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def touch(path: Path) -> None:
    os.utime(path, (1, 1))


@pytest.mark.parametrize("harm", [change, touch, Path.unlink])
@pytest.mark.parametrize("again", [True, False], ids=["read again", "read on"])
def test_a_file_that_was_changed_after_it_was_begun_is_an_error_that_names_it(
    tmp_path: Path, writer: Any, harm: Any, again: bool
) -> None:
    format, suffix, write = writer
    path = tmp_path / f"a.{suffix}"
    write(path, ROWS)
    source = FileSource(tmp_path, format, schema=ROWS.schema)
    reader = source.reader()
    reader.add(source.discover(()))
    batch = reader.read(7)
    harm(path)

    with pytest.raises(SourceError, match="is gone|was changed after it was begun: it had") as caught:
        if again:
            reader = source.reader()
            reader.add([Split(batch.split, batch.position)])
        while reader.read(7) is not None:
            pass

    assert caught.value.split == path.name


@pytest.mark.parametrize("is_bounded", [True, False])
def test_new_files_are_found(tmp_path: Path, is_bounded: bool) -> None:
    write_parquet(tmp_path / "a", ROWS)
    source = FileSource(tmp_path, is_bounded=is_bounded, discovery_ms=7)
    known = [split.id for split in source.discover(())]
    write_parquet(tmp_path / "b", ROWS)

    assert [split.id for split in source.discover(known)] == ["b"]
    assert (source.is_bounded, source.discovery_ms) == (is_bounded, 7)


def test_fewer_rows_in_a_file_than_the_position_are_an_error(tmp_path: Path, writer: Any) -> None:
    format, suffix, write = writer
    write(tmp_path / f"a.{suffix}", ROWS)
    source = FileSource(tmp_path, format, schema=ROWS.schema)
    position = first_read(source, max_rows=7).position

    assert first_read(source, Split(f"a.{suffix}", {**position, "row": 100})) == EndOfSplit(f"a.{suffix}")
    with pytest.raises(SourceError, match="the file has only 100 rows"):
        first_read(source, Split(f"a.{suffix}", {**position, "row": 101}))


@pytest.mark.parametrize("position", [7, {"row": 7}, {"row": -1, "size_bytes": 1, "version": ""}])
def test_what_is_no_position_in_a_file_is_refused(tmp_path: Path, position: Any) -> None:
    write_parquet(tmp_path / "a", ROWS)

    with pytest.raises(SourceError, match="a position must"):
        first_read(FileSource(tmp_path), Split("a", position))


def test_row_groups_before_the_position_are_not_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a", pa.table({"n": range(90)}))
    source = FileSource(tmp_path)
    position = first_read(source, max_rows=85).position
    body = bytearray((tmp_path / "a").read_bytes())
    before = os.stat(tmp_path / "a")
    body[4 : pq.read_metadata(tmp_path / "a").row_group(9).column(0).dictionary_page_offset] = b"\0" * (
        pq.read_metadata(tmp_path / "a").row_group(9).column(0).dictionary_page_offset - 4
    )
    (tmp_path / "a").write_bytes(body)
    os.utime(tmp_path / "a", ns=(before.st_atime_ns, before.st_mtime_ns))

    assert first_read(source, Split("a", position)).rows["n"].to_pylist() == [85, 86, 87, 88, 89]


@pytest.mark.parametrize("is_dictionary", [False, True], ids=["plain", "dictionary"])
def test_rows_of_long_texts_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch, is_dictionary: bool) -> None:
    monkeypatch.setattr("arrowstate.runtime.sources.file_formats._BATCH_BYTES", 100_000)
    texts = pa.array([str(number % 10) * 10_000 for number in range(60)])
    rows = pa.table({"n": range(60), "text": texts.dictionary_encode() if is_dictionary else texts})
    pq.write_table(rows, tmp_path / "x", row_group_size=25, use_dictionary=is_dictionary)
    source = FileSource(tmp_path, schema=pa.schema({"n": pa.int64(), "text": pa.string()}))

    batch = first_read(source, max_rows=1_000)

    assert 1 <= batch.rows.num_rows <= 10
    assert [row["n"] for row in all_rows(source)] == list(range(60))
    assert {row["text"][:2] for row in all_rows(source)} == {str(number) * 2 for number in range(10)}


@pytest.mark.skipif(is_before("pyarrow", (26,)), reason="an early PyArrow writes other times")
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_96_bits_in_parquet_are_those_that_were_written(tmp_path: Path, unit: str) -> None:
    years = range(1700, 2200, 100) if unit == "ns" else [1, 1677, 1970, 2263, 9999]
    times = [datetime.datetime(year, 1, 2, 3, 4, 5) for year in years]
    rows = pa.table({"at": pa.array(times, pa.timestamp("us")), "in": pa.array([[time] for time in times])})
    pq.write_table(rows, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True, row_group_size=2)
    source = FileSource(tmp_path, schema=pa.schema({"at": pa.timestamp(unit), "in": pa.list_(pa.timestamp(unit))}))

    read = pa.Table.from_pylist(all_rows(source), source.schema)

    assert read.equals(rows.cast(source.schema))


def test_names_with_dots_and_nested_columns_are_read(tmp_path: Path) -> None:
    rows = pa.table({"a.b": [1, 2], "a": [{"b": 3}, {"b": None}], "l": [[1], None], "m": [5, 6]})
    write_parquet(tmp_path / "x", rows)

    assert all_rows(FileSource(tmp_path)) == rows.to_pylist()
    assert all_rows(FileSource(tmp_path, schema=pa.schema({"a.b": pa.int64()}))) == rows.select(["a.b"]).to_pylist()


def test_one_file_is_open_at_a_time_and_one_that_pauses_gives_way(tmp_path: Path) -> None:
    for name, seconds in {"a": 1, "b": 2, "c": 3}.items():
        write_parquet(tmp_path / name, ROWS.slice(0, 4))
        os.utime(tmp_path / name, (seconds, seconds))
    source = FileSource(tmp_path)
    reader = source.reader()
    reader.add(source.discover(()))

    def read(times: int) -> str:
        items = [reader.read(2) for _ in range(times)]
        return "".join(item.split if isinstance(item, Batch) else item.split.upper() for item in items)

    assert read(4) == "aaAb"
    reader.pause({"b"})
    assert read(3) == "ccC"
    assert reader.read(2) is None
    reader.pause(())
    assert read(2) == "bB"
