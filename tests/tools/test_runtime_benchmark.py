"""The benchmark of the runtime: what its jobs measure, and how a peer in another Python is timed."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import runtime_peers
from benchmarks.harness import Contender, run_rounds
from benchmarks.peers.timing import tree_seconds
from benchmarks.runtime_jobs import BATCH_ROWS, Rows
from benchmarks.runtime_peers import Peer

_BUSY = "import time\nwhile time.process_time() < 0.3: pass"


def test_a_contender_that_times_itself_is_taken_at_its_word():
    (series,) = run_rounds([Contender("peer", lambda: (2.0, 1.5), 10)], rounds=2, warmup=0)

    assert (series.seconds, series.cpu_seconds, series.figures) == ([2.0, 2.0], [1.5, 1.5], [5.0, 5.0])


def test_processor_time_is_that_of_processes_that_were_started_too():
    before = tree_seconds()
    living = subprocess.Popen([sys.executable, "-c", f"{_BUSY}\nprint(flush=True)\ninput()"], stdin=-1, stdout=-1)
    assert living.stdout is not None
    living.stdout.readline()
    with_living = tree_seconds() - before
    living.communicate(b"\n")
    ended = tree_seconds() - before

    assert 0.25 < with_living < 1.5
    assert with_living - 0.02 <= ended < 1.5


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return a function that makes the job of a peer of a text."""
    folder = tmp_path / "peers"
    folder.mkdir()
    monkeypatch.setattr(runtime_peers, "__file__", str(tmp_path / "runtime_peers.py"))

    def make(text):
        (folder / "some_job.py").write_text(text)
        return Peer(tmp_path, "some", Path(sys.executable), "record", 10, 100_000)

    return make


def test_a_peer_is_started_before_it_may_run_and_times_itself(job):
    peer = job("print('ready', flush=True); input(); print('noise'); print('done 60000 1.5 1.25')")

    peer.prepare()
    took = peer.run()

    assert took == (1.5, 1.25)
    assert peer.timed_rows == 60_000


def test_a_peer_that_fails_says_why(job):
    peer = job("raise ValueError('no such work')")

    with pytest.raises(RuntimeError, match="no such work"):
        peer.prepare()


def test_rows_wait_for_a_file_and_are_given_again_from_a_position(tmp_path):
    source = Rows(1000, 4 * BATCH_ROWS, 2, tmp_path / "go", before=BATCH_ROWS, column="at")

    def read(reader, count):
        return [reader.read(BATCH_ROWS) for _ in range(count)]

    first, again = source.reader(), source.reader()
    first.add(source.discover(known=()))
    early = read(first, 3)
    (tmp_path / "go").touch()
    later = read(first, 8)
    again.add(source.discover(known=["0"]))
    at = np.concatenate([got.rows["at"].to_numpy() for got in read(again, 4)])

    assert [got and (got.split, got.position) for got in early] == [("0", BATCH_ROWS), ("1", BATCH_ROWS), None]
    assert [type(got).__name__ for got in later] == ["Batch"] * 6 + ["EndOfSplit"] * 2
    assert np.abs(at - np.arange(4 * BATCH_ROWS) // 100).max() <= 1001
    assert source.discover(known=["0", "1"]) == []


def test_rows_come_at_a_rate(tmp_path):
    source = Rows(1000, None, 1, tmp_path, a_second=100_000, column="made_us")
    reader = source.reader()
    reader.add(source.discover(known=()))

    began, count = time.perf_counter(), 0
    while count < 5_000:
        got = reader.read(BATCH_ROWS)
        count += 0 if got is None else got.rows.num_rows

    assert (time.perf_counter() - began) * 100_000 >= count
