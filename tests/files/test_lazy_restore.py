"""A restore reads no row: record batches are read, and compared with their checksums, when one of them is looked at."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import CorruptDataError
from arrowstate.files.open_files import OpenFile, forget_open_files

KEY = pa.schema([("key", pa.int64())])
TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")
KEYS = np.arange(100_000)
"Enough for a directory beside the file."


@pytest.fixture
def store(tmp_path: Path) -> arrowstate.StateStore:
    """A checkpoint of a state whose file has several record batches."""
    forget_open_files()
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.state(TOTAL).add_batch(pa.array(KEYS), pa.array(KEYS))
    store = arrowstate.open_store(tmp_path / "store", create=True)
    store.writer().checkpoint({"op": [backend]})
    return store


@pytest.fixture
def batches_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the batches that were read."""
    read: list[int] = []
    whole: Callable[..., Any] = OpenFile.read

    def noting(file: OpenFile, numbers: Any, *arguments: Any) -> Any:
        read.extend(numbers)
        return whole(file, numbers, *arguments)

    monkeypatch.setattr(OpenFile, "read", noting)
    return read


def run_of(store: arrowstate.StateStore) -> Any:
    (run,) = store.latest().restore("op").states["total"].table.runs
    return run


def test_a_restore_reads_no_batch_and_a_key_reads_its_own_once(
    store: arrowstate.StateStore, batches_read: list[int]
) -> None:
    restored = store.latest().restore("op")
    assert batches_read == []

    for _ in range(2):
        assert restored.state(TOTAL).get_batch([7]).to_pylist() == [7]

    assert len(run_of(store).segments) > 2
    assert len(batches_read) == 1


def test_the_next_restore_of_a_process_reads_nothing_again(
    store: arrowstate.StateStore, batches_read: list[int]
) -> None:
    for _ in range(3):
        answers = store.latest().restore("op").state(TOTAL).get_batch(pa.array(KEYS))
        assert answers.to_numpy().tolist() == KEYS.tolist()

    assert sorted(batches_read) == list(range(len(run_of(store).segments)))


def test_a_damaged_batch_is_told_when_it_is_looked_at_and_the_others_answer(
    store: arrowstate.StateStore, tmp_path: Path
) -> None:
    run = run_of(store)
    segments = list(run.segments)
    first, last = (int(segment.batch.column("key")[0].as_py()) for segment in (segments[0], segments[-1]))
    (path,) = (tmp_path / "store").rglob("*.arrow")
    document = next(iter(run.stored.values()))[0]
    damaged = bytearray(path.read_bytes())
    damaged[document.batches[-1].offset + document.batches[-1].bytes - 9] ^= 4
    path.write_bytes(damaged)

    restored = store.latest().restore("op")

    assert restored.state(TOTAL).get_batch([first]).to_pylist() == [first]
    with pytest.raises(CorruptDataError, match="checksum"):
        restored.state(TOTAL).add_batch([first, last], [1, 1])
    assert restored.state(TOTAL).get_batch([first]).to_pylist() == [first]
    assert any("checksum" in problem for problem in store.latest().verify(deep=True).problems)


def test_writes_and_freezes_of_one_restore_are_not_seen_by_another(store: arrowstate.StateStore) -> None:
    one, other = store.latest().restore("op"), store.latest().restore("op")

    one.state(TOTAL).add_batch([1, 2], [10, 10])
    one.state(TOTAL).clear_batch([3])

    assert one.state(TOTAL).get_batch([1, 2, 3]).to_pylist() == [11, 12, None]
    assert other.state(TOTAL).get_batch([1, 2, 3]).to_pylist() == [1, 2, 3]
    assert (len(one.state(TOTAL)), len(other.state(TOTAL))) == (KEYS.size - 1, KEYS.size)


@pytest.mark.parametrize("due", [0, 5, 1000])
def test_what_one_restore_has_learned_of_times_misleads_no_other(tmp_path: Path, due: int) -> None:
    random = np.random.default_rng(3)
    times = random.integers(0, 1000, 40_000)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    backend.timers().register_batch(pa.array(np.arange(times.size)), pa.array(times))
    store = arrowstate.open_store(tmp_path / "store", create=True)
    writer = store.writer()
    older = writer.checkpoint({"op": [backend]})
    backend.timers().pop_due(300)
    newer = writer.checkpoint({"op": [backend]})

    for up_to in (300 + due, 20, 999):
        # The newer has fewer live rows than the older, whose early ones must still be found after it.
        after = newer.restore("op").timers()
        assert after.pop_due(up_to).num_rows == np.count_nonzero((times > 300) & (times <= up_to))
        before = older.restore("op").timers()
        assert before.next_timestamp() == times.min()
        assert before.pop_due(up_to).num_rows == np.count_nonzero(times <= up_to)
        assert after.next_timestamp() == min(times[(times > 300) & (times > up_to)], default=None)
