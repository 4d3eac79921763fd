"""Files that somebody forged, with checksums made right: no read that takes nothing on trust follows them anywhere.

Every read here would end the process, or read memory that is not its own, if it went where the bytes point.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from arrowstate import KeyedStateBackend, StateStore, ValueStateDescriptor, open_store
from arrowstate.cli import main
from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.files.subtasks import read_states
from arrowstate.files.validation import Validated
from arrowstate.files.writing import write_manifest
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import path_of
from arrowstate.spark.read.changes import ChangePlan
from arrowstate.spark.read.plans import plan_from_options
from arrowstate.spark.read.states import ReadPlan
from arrowstate.table.segment import Segment
from arrowstate.table.segments import Directory
from arrowstate_formats.deletion_vectors import clear_dead_rows
from arrowstate_formats.directory import read_directory, write_directory
from arrowstate_formats.documents import RunDocument, decode_inline, encode, encode_inline
from arrowstate_formats.run_files import checksum, frame_checksum
from stores import commit

STATE = ValueStateDescriptor("v", pa.string())
ROWS = 100
TEXTS = [f"value-{number:04}" for number in range(ROWS)]


def bad_offset(data: bytearray) -> None:
    """Let a text end a gigabyte after the file."""
    offsets = np.arange(0, 10 * ROWS + 1, 10, dtype="<i4").tobytes()
    at = data.index(offsets) + 4 * 50
    data[at : at + 8] = np.array([0x3FFFFFFF] * 2, "<i4").tobytes()


def bad_text(data: bytearray) -> None:
    at = data.index(b"value-00")
    data[at] = 0xFF


def bad_order(data: bytearray) -> None:
    """Let the first hash be the highest there is."""
    at = data.index(np.sort(hashes()).astype("<i8").tobytes())
    data[at + 8 : at + 16] = np.array([2**63 - 1], "<i8").tobytes()


def hashes() -> np.ndarray[Any, np.dtype[np.int64]]:
    from arrowstate_formats.key_hash import hash_columns

    return hash_columns([pa.array(range(ROWS), pa.int64())])


FORGERIES = {"offset": bad_offset, "text": bad_text, "order": bad_order}


def written(place: str | Path) -> StateStore:
    store = open_store(place, create=True)
    backend = KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    # Texts in the order of the rows, so that the bytes to forge are easy to find.
    keys = pa.array(range(ROWS), pa.int64()).take(pa.array(np.argsort(hashes())))
    backend.state(STATE).update_batch(keys, pa.array(TEXTS))
    commit(store, {"op": [backend]}, format="arrow")
    return store


def forge(store: StateStore, change: Callable[[bytearray], None]) -> None:
    """Change the bytes of the run file, and make every checksum right."""
    log = CommitLog(store.storage)
    entry = log.latest_checkpoint()
    assert entry is not None
    (operator,) = entry.operators
    (subtask,) = operator.subtasks
    (state,) = read_states(store.storage, subtask.manifest, "op")
    (run,) = state.runs
    data = bytearray(store.storage.read(str(run.path)) if run.inline is None else decode_inline(run.inline))
    change(data)
    new = forged_run(run, bytes(data))
    if run.path is not None:
        (Path(store.url.removeprefix("file://")) / run.path).write_bytes(bytes(data))
    else:
        new = replace(new, inline=encode_inline(bytes(data)))
    forged = [replace(state, runs=[new])]
    handle = write_manifest(store.storage, "op", subtask.key_groups, forged, lambda: "f" * 32, [])
    altered = replace(entry, operators=[replace(operator, subtasks=[replace(subtask, manifest=handle)])])
    (Path(store.url.removeprefix("file://")) / path_of(entry.number)).write_bytes(encode(altered))


def forged_run(run: RunDocument, data: bytes) -> RunDocument:
    buffer = pa.py_buffer(data)
    batches = [replace(batch, xxh3_128=checksum(buffer.slice(batch.offset, batch.bytes))) for batch in run.batches]
    frame = frame_checksum(buffer, batches)
    return replace(run, batches=batches, xxh3_128=checksum(buffer), frame_xxh3_128=frame)


READS: dict[str, Callable[[StateStore], Any]] = {
    "to_arrow": lambda store: store.latest().to_arrow("op.v"),
    "sql": lambda store: store.latest().sql("select max(length(v)) from op.v").fetchall(),
    "lookup": lambda store: store.latest().lookup("op.v", list(range(ROWS))),
    "restore": lambda store: store.latest().restore("op"),
    "savepoint": lambda store: store.savepoint("copy"),
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_file_is_refused_by_every_read_that_takes_nothing_on_trust(
    tmp_path: Path, forgery: Callable[[bytearray], None]
) -> None:
    forge(written(tmp_path / "store"), forgery)
    store = open_store(tmp_path / "store", validate="full")

    for name, read in READS.items():
        with pytest.raises(CorruptDataError):
            pytest.fail(f"{name} gave {read(store)!r}")
    assert store.verify(deep=True).problems


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_savepoint_is_refused_as_such_and_by_an_import(
    tmp_path: Path, forgery: Callable[[bytearray], None]
) -> None:
    written(tmp_path / "store").savepoint(tmp_path / "point", format="arrow")
    forge(open_store(tmp_path / "point"), forgery)
    savepoint = open_store(tmp_path / "point")
    target = open_store(tmp_path / "target", create=True)

    for name, read in READS.items():
        with pytest.raises(CorruptDataError):
            pytest.fail(f"{name} gave {read(savepoint)!r}")
    with pytest.raises(CorruptDataError):
        target.import_savepoint(tmp_path / "point")
    assert savepoint.verify(deep=True).problems
    # Nothing is left of the import, and nothing was committed.
    assert target.checkpoints() == []
    assert [path for path in target.storage.list("") if path.startswith(("data/", "manifests/"))] == []


def test_a_store_that_is_what_it_says_is_read_in_full_as_it_is_otherwise(tmp_path: Path) -> None:
    store = written(tmp_path / "store")

    full = open_store(tmp_path / "store", validate="full")

    assert full.latest().to_arrow("op.v").equals(store.latest().to_arrow("op.v"))
    assert sorted(full.latest().restore("op").state(STATE).get_batch(list(range(ROWS))).to_pylist()) == TEXTS
    with pytest.raises(InvalidInputError, match="validate is 'checksums' or 'full', got 'most'"):
        open_store(tmp_path / "store", validate="most")  # type: ignore[arg-type]


def test_a_store_that_is_read_in_full_is_so_in_another_process(tmp_path: Path) -> None:
    written(tmp_path / "store")
    full = open_store(tmp_path / "store", validate="full")

    store, snapshot = pickle.loads(pickle.dumps((full, full.latest())))

    assert isinstance(snapshot.storage, Validated)
    assert isinstance(store.latest().storage, Validated)
    assert snapshot.to_arrow("op.v").num_rows == ROWS


def test_a_copy_for_spark_of_what_is_read_in_full_has_the_options_of_the_store() -> None:
    written("memory://in-full/store")
    options = {"max_file_bytes": 6 << 20}
    full = open_store("memory://in-full/store", storage_options=options, validate="full")

    copy = full.latest().for_spark("memory://in-full/query")

    assert copy.storage.options == options


def test_a_forged_directory_is_refused() -> None:
    offsets = np.array([0, 5, 1 << 31, 3, 9], np.uint32)

    with pytest.raises(CorruptDataError, match="the offsets do not ascend"):
        read_directory(pa.py_buffer(write_directory(0, 62, offsets)))


def test_a_directory_of_hashes_in_no_order_stays_within_its_bounds() -> None:
    batch = pa.record_batch({"_key_hash": pa.array([5, 2**63 - 1, -(2**63), 7], pa.int64())})

    directory = Directory.build([Segment.of(batch, 0)])

    # Each row is counted somewhere, and none outside of the array.
    assert int(directory.offsets[-1]) == 4


def test_forged_deletion_vectors_clear_bits_of_their_rows_alone() -> None:
    chosen = np.random.default_rng(7)
    cookies = [np.array([12346, 1], "<u4").tobytes(), np.array([12347 | 2 << 16], "<u4").tobytes() + b"\x05"]
    for number in range(3000):
        data = cookies[number % 2] + chosen.bytes(int(chosen.integers(0, 60)))
        around = np.full(64, 0xFF, np.uint8)
        try:
            cleared = clear_dead_rows(data, around[24:40], 128, int(chosen.integers(0, 70_000)))
        except CorruptDataError:
            cleared = None
        assert (around[:24] == 0xFF).all()
        assert (around[40:] == 0xFF).all()
        if cleared is not None:
            assert int(np.unpackbits(around[24:40]).sum()) == 128 - cleared


@pytest.mark.parametrize("lease", [[], ["--lease"]], ids=["plain", "with a lease"])
def test_the_command_line_takes_nothing_on_trust_if_asked(
    tmp_path: Path, lease: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    forge(written(tmp_path / "store"), bad_text)
    query = ["sql", str(tmp_path / "store"), "select count(v) as n from op.v", "--csv", *lease]

    assert main(query) == 0
    assert capsys.readouterr().out == f"n\n{ROWS}\n"
    assert main([*query, "--validate", "full"]) == 1
    assert "UTF8" in capsys.readouterr().err


@pytest.mark.parametrize("options", [{}, {"readChangeFeed": "true"}], ids=["state", "change feed"])
def test_the_option_of_spark_takes_nothing_on_trust(tmp_path: Path, options: dict[str, str]) -> None:
    forge(written(tmp_path / "store"), bad_text)
    given = {"path": str(tmp_path / "store"), "operator": "op", **options}

    def read(validate: dict[str, str]) -> int:
        plan = plan_from_options({**given, **validate})
        if isinstance(plan, ChangePlan):
            (partition,) = plan.reader(plan.schema).partitions()
            return sum(batch.num_rows for batch in plan.read(partition))
        assert isinstance(plan, ReadPlan)
        return plan.open().table(["v"], None).num_rows

    # A text that is no UTF-8 harms nobody until somebody looks at it.
    assert read({}) == read({"validate": "checksums"}) == ROWS
    with pytest.raises(CorruptDataError, match="UTF8"):
        read({"validate": "full"})
    with pytest.raises(InvalidInputError, match="'validate' must be checksums or full"):
        read({"validate": "most"})
