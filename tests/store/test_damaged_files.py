"""Files with flipped bits, cut short, or gone: an error that names the file or the right answer, never a wrong one."""

import functools
import itertools
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.files import writing
from arrowstate.files.open_files import forget_open_files
from arrowstate.log.commit_log import CommitLog
from stores import TOTAL, backend_of, commit

NOTE = arrowstate.ValueStateDescriptor("note", pa.struct([("text", pa.string()), ("tags", pa.list_(pa.string()))]))
KEYS = pa.array(range(2500))
HASHES = np.array(arrowstate.key_hash(KEYS))
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A store with a file of every kind, small enough to read hundreds of times, and a savepoint of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "RunWriter", functools.partial(writing.RunWriter, inline_bytes=100))
        patch.setattr(writing, "INLINE_BYTES", 100)
        patch.setattr(writing, "_DIRECTORY_ROWS", 100)
        policy = arrowstate.MergePolicy(max_dead_share=1.0)
        backend = backend_of(merge_policy=policy)
        backend.state(TOTAL).add_batch(pa.array(range(2000)), pa.array(np.arange(2000) * 7 + 1))
        notes = [{"text": f"note {number}", "tags": ["x"] * (number % 3)} for number in range(2000)]
        backend.state(NOTE).update_batch(pa.array(range(2000)), pa.array(notes, NOTE.type))
        store = arrowstate.open_store(tmp_path_factory.mktemp("stores") / "store", create=True)
        with store.writer() as writer:
            writer.checkpoint({"op": [backend]})
            backend.state(TOTAL).clear_batch(pa.array(range(0, 2000, 3)))
            backend.state(NOTE).update_batch(pa.array(range(1900, 2100)), pa.array(notes[:200], NOTE.type))
            writer.checkpoint({"op": [backend]}, format="parquet")
            backend.state(NOTE).update_batch(pa.array(range(2050, 2300)), pa.array(notes[:250], NOTE.type))
            writer.checkpoint({"op": [backend]}, format="lance", properties={"offset": 42, "name": "x"}, watermark=9)
        store.savepoint(Path(store.url).with_name("savepoint"))
    return Path(store.url), Path(store.url).with_name("savepoint")


@pytest.fixture
def folder(pristine, tmp_path, request):
    """A copy of the store, or of the savepoint, that a test may damage."""
    source = pristine[getattr(request, "param", 0)]
    forget_open_files()
    return Path(shutil.copytree(source, tmp_path / source.name))


def observe(folder):
    """Everything a reader of the newest checkpoint sees: its entry, its tables, its restored states, a lookup."""
    forget_open_files()
    snapshot = arrowstate.open_store(folder).latest()
    tables = {name: snapshot.to_arrow(f"op.{name}").sort_by("k").to_pylist() for name in ("total", "note")}
    forget_open_files()
    halves = [snapshot.restore("op", parallelism=2, subtask=subtask) for subtask in range(2)]
    restored = []
    for half in halves:
        low, high = half.key_groups.hash_bounds(128)
        own = KEYS.filter(pa.array((low <= HASHES) & (high >= HASHES)))
        restored.append((half.state(TOTAL).get_batch(own).to_pylist(), half.state(NOTE).get_batch(own).to_pylist()))
    forget_open_files()
    found = snapshot.lookup("op.total", pa.array([1, 3, 1999])).to_pylist()
    return snapshot.entry, tables, restored, found


KINDS = {
    "arrow_run": (0, "data/op/*/*.arrow"),
    "parquet_run": (0, "data/op/*/*.parquet"),
    "lance_run": (0, "data/op/*/*.lance"),
    "directory": (0, "data/op/*/*.directory"),
    "deletion_vector": (0, "data/op/*/*.roaring"),
    "manifest": (0, "manifests/*.json"),
    "log_entry": (0, "log/*4.json"),
    "savepoint_run": (1, "data/op/*/*.parquet"),
    "savepoint_manifest": (1, "manifests/*.json"),
    "savepoint_entry": (1, "log/*.json"),
}
CASES = pytest.mark.parametrize(("folder", "pattern"), KINDS.values(), ids=KINDS.keys(), indirect=["folder"])
# Without its newest entry a store is what it was before; any other file is named by one that is there.
REFERENCED = pytest.mark.parametrize(
    ("folder", "pattern"), [kind for kind in KINDS.values() if "log" not in kind[1]], indirect=["folder"]
)


def files(folder, pattern):
    """The files of a kind that the newest checkpoint uses."""
    found = sorted(folder.glob(pattern))
    if "manifests" in pattern:
        found = [path for path in found if path.name in newest_entry(folder)]
    assert found, f"the store has no {pattern}"
    return found


def newest_entry(folder):
    return max((folder / "log").iterdir()).read_text()


def damaged(folder, path, data, expected):
    """Read a copy of the store with other bytes in a file; return whether the damage was found."""
    # A copy each time: a file that is open must not be cut short under its mapping.
    copy = folder.with_name(f"{folder.name}-{next(NUMBERS)}")
    shutil.copytree(folder, copy)
    (copy / path.relative_to(folder)).write_bytes(data)
    try:
        assert repr(observe(copy)) == expected, "a wrong answer"
        return False
    except (arrowstate.CorruptDataError, arrowstate.FormatVersionError) as error:
        assert str(error)
        return True
    finally:
        shutil.rmtree(copy)


def looked_up_and_restored(folder):
    """What a process answers that has had the store open before: no file is forgotten."""
    snapshot = arrowstate.open_store(folder).latest()
    found = snapshot.lookup("op.total", pa.array([1, 3, 1999])).to_pylist()
    backend = snapshot.restore("op")
    return found, backend.state(TOTAL).get_batch(KEYS).to_pylist(), backend.state(NOTE).get_batch(KEYS).to_pylist()


@pytest.mark.parametrize("kind", ["arrow_run", "parquet_run", "lance_run", "directory"])
@pytest.mark.parametrize("replaced", [False, True], ids=["in place", "replaced"])
def test_a_file_that_is_altered_after_this_process_has_checked_it_is_checked_again(folder, kind, replaced):
    expected = looked_up_and_restored(folder)
    assert looked_up_and_restored(folder) == expected

    for path in files(folder, KINDS[kind][1]):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        if replaced:
            path.with_name("new").write_bytes(data)
            path.with_name("new").replace(path)
        else:
            with path.open("r+b") as file:
                file.write(data)

    with pytest.raises(arrowstate.CorruptDataError, match="checksum"):
        looked_up_and_restored(folder)


@pytest.mark.parametrize("read", ["sql", "arrow", "lookup"])
def test_a_file_that_is_altered_after_it_was_read_as_a_table_is_read_again(tmp_path, read):
    readers = {
        "sql": lambda store: store.sql("select sum(total) from op.total").fetchall(),
        "arrow": lambda store: store.latest().to_arrow("op.total").column("total").to_pylist(),
        "lookup": lambda store: store.latest().lookup("op.total", KEYS.slice(7, 1)).to_pylist(),
    }
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(TOTAL).add_batch(KEYS, KEYS)
    store = arrowstate.open_store(tmp_path, create=True)
    commit(store, {"op": [backend]})
    [file] = tmp_path.glob("data/**/*.arrow")
    before = readers[read](store)
    assert readers[read](store) == before

    body = bytearray(file.read_bytes())
    body[len(body) // 2] ^= 0x7F
    file.write_bytes(body)

    with pytest.raises(arrowstate.CorruptDataError, match=file.name):
        readers[read](store)


def test_a_file_that_is_gone_after_this_process_has_opened_it_is_missed(folder):
    looked_up_and_restored(folder)
    for path in files(folder, KINDS["arrow_run"][1]):
        path.unlink()

    with pytest.raises(arrowstate.CorruptDataError, match="the file is missing"):
        looked_up_and_restored(folder)


@CASES
def test_a_flipped_bit_is_found_or_changes_no_answer(folder, pattern):
    expected = repr(observe(folder))
    dice = random.Random(pattern)

    found = 0
    trials = 0
    for path in files(folder, pattern):
        data = path.read_bytes()
        for _ in range(25):
            flipped = bytearray(data)
            position = dice.randrange(8 * len(data))
            flipped[position // 8] ^= 1 << position % 8
            found += damaged(folder, path, bytes(flipped), expected)
            trials += 1

    assert found >= 0.9 * trials
    assert repr(observe(folder)) == expected


@CASES
def test_a_file_that_was_cut_short_is_found(folder, pattern):
    expected = repr(observe(folder))
    dice = random.Random(pattern)

    for path in files(folder, pattern):
        data = path.read_bytes()
        for length in (0, 1, len(data) // 2, len(data) - 2, dice.randrange(len(data))):
            assert damaged(folder, path, data[:length], expected), f"{path} cut to {length} of {len(data)}"


@CASES
def test_bytes_that_were_overwritten_or_appended_are_found_or_change_no_answer(folder, pattern):
    expected = repr(observe(folder))
    dice = random.Random(pattern)

    for path in files(folder, pattern):
        data = path.read_bytes()
        start = dice.randrange(len(data))
        zeros = data[:start] + bytes(min(64, len(data) - start)) + data[start + 64 :]
        assert len(zeros) == len(data)
        for changed in (zeros, data + b"\0", data + data, b"\0" * len(data)):
            damaged(folder, path, changed, expected)


@REFERENCED
def test_a_file_that_is_gone_is_damage_and_names_the_file(folder, pattern):
    for path in files(folder, pattern):
        copy = folder.with_name(f"{folder.name}-{next(NUMBERS)}")
        shutil.copytree(folder, copy)
        (copy / path.relative_to(folder)).unlink()

        with pytest.raises(arrowstate.CorruptDataError, match=path.name):
            observe(copy)


@CASES
def test_a_file_in_the_place_of_another_is_found(folder, pattern):
    expected = repr(observe(folder))
    chosen = files(folder, pattern)

    for path in chosen:
        for other in [
            path.with_name(name) for name in sorted(p.name for p in path.parent.iterdir()) if name != path.name
        ]:
            if other.is_file():
                assert damaged(folder, path, other.read_bytes(), expected)


def test_a_flipped_bit_in_an_entry_that_has_a_successor_is_found_by_every_way_to_it(folder):
    path = folder / "log" / "00000000000000000002.json"
    data = path.read_bytes()
    dice = random.Random(1)

    for _ in range(60):
        flipped = bytearray(data)
        position = dice.randrange(8 * len(data))
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(bytes(flipped))
        store = arrowstate.open_store(folder)
        for read, arguments in ((store.snapshot, [1]), (store.checkpoints, []), (store.snapshot, [99])):
            with pytest.raises((arrowstate.CorruptDataError, arrowstate.FormatVersionError)):
                read(*arguments)
        assert store.latest().checkpoint_id == 3


@pytest.mark.parametrize(
    ("folder", "name"), [(0, "log/00000000000000000004.json"), (1, "log/*.json")], indirect=["folder"]
)
def test_no_byte_of_the_newest_entry_can_change_unseen(folder, name):
    (path,) = folder.glob(name)
    data = path.read_bytes()
    log = CommitLog(arrowstate.open_store(folder).storage)
    expected = log.latest()
    dice = random.Random(3)

    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << dice.randrange(8)
        path.write_bytes(bytes(flipped))
        try:
            assert log.read(expected.document.number).document == expected.document, position
        except (arrowstate.CorruptDataError, arrowstate.FormatVersionError):
            continue


def test_a_damaged_identity_is_an_error_or_tells_the_same_state(folder):
    path = folder / "arrowstate.json"
    data = path.read_bytes()
    expected = repr(observe(folder))
    dice = random.Random(2)

    for trial in range(80):
        flipped = bytearray(data)
        position = dice.randrange(8 * len(data))
        flipped[position // 8] ^= 1 << position % 8
        damaged(folder, path, bytes(flipped), expected)
        assert damaged(folder, path, data[: dice.randrange(len(data) - 1)], expected), trial
    path.unlink()

    with pytest.raises(arrowstate.StoreNotFoundError):
        arrowstate.open_store(folder)


def test_a_damaged_hint_changes_nothing(folder):
    path = folder / "_latest"
    expected = repr(observe(folder))

    for data in (b"", b"1", b"2", b"3", b"5", b"99999", b"\xff\0", b"3 ", b"-3", b"3" * 50):
        assert not damaged(folder, path, data, expected)
    path.unlink()

    assert repr(observe(folder)) == expected


def test_damage_met_by_a_writer_changes_nothing_in_the_store(folder):
    (path,) = files(folder, "data/op/total/*.arrow")
    flipped = bytearray(path.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    path.write_bytes(bytes(flipped))
    store = arrowstate.open_store(folder)
    before = {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}

    with pytest.raises(arrowstate.CorruptDataError, match=path.name):
        list(store.latest().restore("op").state(TOTAL).live_batches())
    with pytest.raises(arrowstate.CorruptDataError, match=path.name):
        store.savepoint("copy")

    assert {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()} == before


def test_damage_in_one_state_leaves_the_others_readable(folder):
    (path,) = files(folder, "data/op/total/*.arrow")
    path.write_bytes(b"")
    snapshot = arrowstate.open_store(folder).latest()

    notes = snapshot.to_arrow("op.note")

    assert notes.num_rows == 2300
    with pytest.raises(arrowstate.ArrowStateError):
        snapshot.to_arrow("op.total")
