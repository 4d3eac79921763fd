"""Lance run files: every type and name, temporary files, a library that fails or is not there."""

import errno
import gc
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader, LanceFileWriter

from arrowstate_formats import CorruptDataError, InvalidInputError, lance_files
from arrowstate_formats.errors import MissingDependencyError
from arrowstate_formats.lance_files import LocalCopy
from arrowstate_formats.run_files import RunFile
from arrowstate_formats.run_reading import read_run
from arrowstate_formats.run_writing import write_run
from processes import python, started_python

LONG = st.integers(-(2**63), 2**63 - 1)
FLAT: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.uint8(): st.integers(0, 255),
    pa.int64(): LONG | st.integers(0, 3),
    pa.float16(): st.floats(width=16),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=5) | st.text("ab", max_size=300),
    pa.string_view(): st.text(max_size=20),
    pa.large_binary(): st.binary(max_size=5),
    pa.binary_view(): st.binary(max_size=20),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.decimal32(9, 2): st.decimals(-9_999_999, 9_999_999, places=2),
    pa.decimal64(18, 0): st.decimals(-(10**17), 10**17, places=0),
    pa.decimal256(60, 5): st.decimals(-(10**50), 10**50, places=5),
    pa.date64(): st.dates(),
    pa.duration("ns"): LONG,
    pa.timestamp("us", "Europe/Berlin"): st.integers(-(10**15), 10**15),
}
NAMES = ["a", "A", "a.b", "a%2Eb", "%", "", "é\0", "item"]


def fields(kind: pa.DataType) -> st.SearchStrategy[pa.Field]:
    nullable = st.just(True) if pa.types.is_null(kind) else st.booleans()
    return st.builds(pa.field, st.sampled_from(NAMES), st.just(kind), nullable)


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    field = inner.flatmap(fields)
    structs = st.lists(field, min_size=1, max_size=3, unique_by=lambda field: field.name).map(pa.struct)
    keys = st.sampled_from([pa.string(), pa.int64(), pa.binary(3)])
    maps = st.builds(lambda key, item, in_order: pa.map_(key, item, in_order), keys, inner, st.booleans())
    pairs = st.builds(pa.list_, field, st.integers(0, 3))
    return structs | field.map(pa.list_) | field.map(pa.large_list) | pairs | maps


TYPES = st.recursive(st.sampled_from(list(FLAT)), nested, max_leaves=5)


def values_of(kind: pa.DataType, nullable: bool) -> st.SearchStrategy[Any]:
    """Values that `pa.array` takes for a type."""
    if pa.types.is_struct(kind):
        # By place: names may be empty.
        values = st.tuples(*(values_of(field.type, field.nullable) for field in kind))
        values = values.map(lambda items: {field.name: item for field, item in zip(kind, items, strict=True)})
    elif pa.types.is_map(kind):
        pair = st.tuples(values_of(kind.key_type, False), values_of(kind.item_type, True))
        values = st.lists(pair, max_size=3)
    elif pa.types.is_nested(kind):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        inner = values_of(kind.value_type, kind.value_field.nullable)
        values = st.lists(inner, min_size=size or 0, max_size=3 if size is None else size)
    else:
        values = FLAT[kind]
    return st.none() | values if nullable else values


def written(batches: list[pa.RecordBatch]) -> tuple[pa.Buffer, RunFile]:
    sink = io.BytesIO()
    run = write_run(batches, "lance", sink)
    return pa.py_buffer(sink.getvalue()), run


def numbered(rows: int, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"_key_hash": pa.array(range(rows)), **columns})


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, of this test alone."""
    folder = tmp_path / "temporary files"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@given(data=st.data())
@settings(max_examples=150)
def test_columns_of_any_type_come_back_exactly(data: st.DataObject) -> None:
    kind = data.draw(TYPES)
    nullable = pa.types.is_null(kind) or data.draw(st.booleans())
    few = data.draw(st.lists(values_of(kind, nullable), min_size=1, max_size=12))
    repeated = pa.array(few * data.draw(st.sampled_from([1, 3, 100])), kind)
    column = repeated.slice(data.draw(st.integers(0, len(few) - 1)))
    field = pa.field(data.draw(st.sampled_from(NAMES)), kind, nullable)
    schema = pa.schema([pa.field("_key_hash", pa.int64(), nullable=False), field])
    whole = pa.RecordBatch.from_arrays([pa.array(range(len(column))), column], schema=schema)
    cut = data.draw(st.integers(0, len(column) - 1))

    buffer, run = written([whole.slice(0, cut), whole.slice(cut)])
    found = read_run(buffer, "lance", run.batches)
    (last,) = read_run(buffer, "lance", run.batches, [-1])

    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(schema, check_metadata=True)
        assert str(batch.schema) == str(schema)
    table = pa.Table.from_batches(found)
    # As text: a NaN is not equal to itself, and 0.0 is to -0.0.
    assert repr(table.column(1).to_pylist()) == repr(column.to_pylist())
    assert repr(last.column(1).to_pylist()) == repr(column.slice(cut).to_pylist())
    assert table.column(0).to_pylist() == list(range(len(column)))


def test_bits_of_floats_come_back_even_of_nan() -> None:
    bits = np.array([0x7FF8000000000001, 0xFFF8DEADBEEF0000, 0x7FF0000000000001, 0x8000000000000000], dtype=np.uint64)

    buffer, run = written([numbered(4, x=pa.array(bits.view(np.float64)))])
    (found,) = read_run(buffer, "lance", run.batches)

    assert found.column("x").to_numpy().view(np.uint64).tolist() == bits.tolist()


def test_columns_keep_their_metadata_and_lance_does_not_act_on_it() -> None:
    # Lance fails on packed structs with lists.
    metadata = {"lance-encoding:packed": "true", "unit": "m"}
    field = pa.field("x", pa.struct([("a", pa.list_(pa.int8()))]), metadata=metadata)
    schema = pa.schema([("_key_hash", pa.int64()), field], metadata={"made by": "a test"})
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([{"a": [1]}], field.type)], schema=schema)

    buffer, run = written([batch])
    (found,) = read_run(buffer, "lance", run.batches)

    assert found.equals(batch, check_metadata=True)


def test_another_reader_sees_the_rows_and_the_arrow_schema(tmp_path: Path) -> None:
    batch = numbered(3, **{"a.b": pa.array([Decimal("1.50"), None, Decimal("2.00")], pa.decimal64(9, 2))})
    buffer, _ = written([batch])
    (tmp_path / "run.lance").write_bytes(buffer)

    table = LanceFileReader(str(tmp_path / "run.lance")).read_all().to_table()

    assert table["a%2Eb"].to_pylist() == [Decimal("1.50"), None, Decimal("2.00")]
    assert table["_key_hash"].to_pylist() == [0, 1, 2]
    assert b"ARROW:schema" in table.schema.metadata


def test_the_byte_ranges_of_the_batches_share_the_whole_file_out() -> None:
    batch = numbered(100)

    buffer, run = written([batch.slice(start, 20) for start in range(0, 100, 20)])

    ends = [document.offset + document.bytes for document in run.batches]
    assert [document.offset for document in run.batches] == [0, *ends[:-1]]
    assert ends[-1] == buffer.size
    assert [document.min_hash for document in run.batches] == [0, 20, 40, 60, 80]


def test_damage_in_the_range_of_one_batch_is_found_by_reading_another() -> None:
    batch = numbered(100)
    buffer, run = written([batch.slice(0, 50), batch.slice(50)])
    data = bytearray(buffer)

    for number in (0, 1):
        place = run.batches[number].offset + 7
        data[place] ^= 1
        with pytest.raises(CorruptDataError, match=f"the batch at byte {run.batches[number].offset} has checksum"):
            read_run(pa.py_buffer(bytes(data)), "lance", run.batches, [1 - number], ["_key_hash"])
        data[place] ^= 1


def test_more_batches_than_bytes_are_refused() -> None:
    same = pa.record_batch({"_key_hash": pa.array([7])})

    with pytest.raises(InvalidInputError, match="a run of 5000 batches is a Lance file of .* use larger batches"):
        written([same] * 5000)


def test_rows_that_the_library_refuses_are_refused_before_anything_is_written(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise NotImplementedError("no such type")  # What the library raises for a type that it lacks.

    sink = io.BytesIO()
    monkeypatch.setattr(LanceFileWriter, "write_batch", refuse)

    with pytest.raises(InvalidInputError, match="no such type") as refused:
        write_run([numbered(2, x=pa.array(["a", None]))], "lance", sink)

    assert "Lance cannot store the columns _key_hash: int64, x: string; use the format 'arrow'" in str(refused.value)
    assert sink.getvalue() == b""
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "column",
    [
        pa.array([Decimal(12000), None], pa.decimal64(5, -3)),
        pa.array([b"", None], pa.binary(0)),
        pa.array([[], None], pa.list_(pa.int8(), 0)),
        pa.array([b"a" * 300_000, None], pa.binary(300_000)),
        pa.array(["x" * (1 << 22), ""]),
        pa.array([None, {"a": 1, "A": 2}], pa.struct([("a", pa.int8()), pa.field("A", pa.int8(), nullable=False)])),
        pa.array([[[1, 2], None], None], pa.list_(pa.list_(pa.int16(), 2))),
        pa.array([None, [{"a": 1}]], pa.list_(pa.struct([pa.field("a", pa.int8(), nullable=False)]), 1)),
    ],
    ids=lambda column: str(column.type),
)
def test_extreme_types_come_back_exactly(column: pa.Array) -> None:
    batch = numbered(2, x=column)

    buffer, run = written([batch])
    (found,) = read_run(buffer, "lance", run.batches)

    assert (found, str(found.schema)) == (batch, str(batch.schema))


def test_no_temporary_file_is_left_by_writing_and_reading(temporary: Path) -> None:
    buffer, run = written([numbered(10)])
    read_run(buffer, "lance", run.batches)
    with pytest.raises(CorruptDataError):
        read_run(pa.py_buffer(bytes(buffer.size)), "lance", run.batches, verify=False)

    class Full(io.RawIOBase):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_run([numbered(10)], "lance", Full())  # type: ignore[arg-type]

    gc.collect()
    assert list(temporary.iterdir()) == []


def test_a_local_file_is_read_where_it_lies(temporary: Path, tmp_path: Path) -> None:
    buffer, run = written([numbered(10)])
    path = tmp_path / "a b%20#?é.lance"
    path.write_bytes(buffer)
    temporary.rmdir()

    (found,) = read_run(buffer, "lance", run.batches, location=path)

    assert found == numbered(10)


def test_a_local_file_that_is_gone_is_an_error_of_the_operating_system(tmp_path: Path) -> None:
    buffer, run = written([numbered(10)])

    with pytest.raises(FileNotFoundError):
        read_run(buffer, "lance", run.batches, location=tmp_path / "gone.lance")


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_a_copy_goes_with_the_last_reference_to_it_but_not_with_a_forked_process(temporary: Path) -> None:
    copy = LocalCopy(pa.py_buffer(b"abc"))
    path = copy.path

    child = os.fork()
    if not child:
        del copy
        os._exit(0)
    os.waitpid(child, 0)
    assert path.read_bytes() == b"abc"
    del copy

    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_behind_goes_with_the_next_copy_and_what_a_living_one_has_stays(
    temporary: Path,
) -> None:
    script = """
import sys
import pyarrow as pa
from arrowstate_formats.lance_files import LocalCopy

copy = LocalCopy(pa.py_buffer(b"abc"))
print(copy.path, flush=True)
sys.stdin.read()
"""
    processes = []
    for _ in range(2):
        process = started_python("-c", script, env={"TMPDIR": str(temporary)})
        processes.append((process, Path(process.stdout.readline().strip())))  # type: ignore[union-attr]
    (killed, left), (living, kept) = processes

    killed.kill()
    killed.wait()
    assert left.read_bytes() == b"abc"
    copy = LocalCopy(pa.py_buffer(b"def"))

    assert not left.parent.exists()
    assert (kept.read_bytes(), copy.path.read_bytes()) == (b"abc", b"def")
    killed.communicate()
    living.communicate("")
    assert not kept.parent.exists()


def test_a_process_that_was_forked_after_the_first_use_gets_an_error_where_lance_would_wait_without_end() -> None:
    script = """
import io, os
import pyarrow as pa
from arrowstate_formats import InvalidInputError
from arrowstate_formats.run_reading import read_run
from arrowstate_formats.run_writing import write_run

batch = pa.record_batch({"_key_hash": pa.array(range(100_000))})

def both():
    file = io.BytesIO()
    run = write_run([batch], "lance", file)
    return read_run(pa.py_buffer(file.getvalue()), "lance", run.batches) == [batch]

def forked():
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        print(both(), flush=True)
    except InvalidInputError as error:
        print("spawn" in str(error), flush=True)
        os._exit(1)
    os._exit(0)

print(forked() >> 8, both(), forked() >> 8, both())
"""

    done = python("-W", "ignore", "-c", script, timeout=120)

    assert (done.stdout, done.returncode) == ("True\nTrue\n0 True 1 True\n", 0), done.stderr


@pytest.fixture
def without_lance(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lance"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lance", None)


@pytest.mark.usefixtures("without_lance")
def test_without_the_library_the_error_says_how_to_install_it() -> None:
    sink = io.BytesIO()

    with pytest.raises(MissingDependencyError, match=r"pylance: pip install 'arrowstate\[lance\]'"):
        write_run([numbered(1)], "lance", sink)

    assert sink.getvalue() == b""


class PanicException(BaseException):
    """What a failed assertion inside the library is for Python."""


@pytest.fixture(params=[True, False], ids=["writing", "reading"])
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that writes or reads a run with a library that raises an error."""
    buffer, run = written([numbered(10)])

    def call(error: BaseException) -> None:
        class Library:
            def LanceFileWriter(self, *arguments: Any, **named: Any) -> Any:
                raise error

            def LanceFileReader(self, *arguments: Any, **named: Any) -> Any:
                raise error

        with monkeypatch.context() as patch:
            patch.setattr(lance_files, "_lance", Library)
            if request.param:
                write_run([numbered(10)], "lance", io.BytesIO())
            else:
                read_run(buffer, "lance", run.batches)

    return call


def test_a_failed_assertion_of_the_library_is_an_ordinary_error(failing: Any) -> None:
    with pytest.raises((InvalidInputError, CorruptDataError), match="the Lance library failed: end <= len"):
        failing(PanicException("end <= len"))


def test_an_error_of_the_operating_system_keeps_its_number(failing: Any) -> None:
    with pytest.raises(OSError, match="No space left") as full:
        failing(OSError("LanceError(IO): No space left on device (os error 28), writer.rs:190:9"))

    assert full.value.errno == errno.ENOSPC


def test_an_interrupt_passes_unchanged(failing: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        failing(KeyboardInterrupt())
