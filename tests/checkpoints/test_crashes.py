"""What a store holds after its writer was killed, or the disk was full, at any moment."""

import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from arrowstate import KeyedStateBackend, ReducingStateDescriptor, open_store
from processes import python, started_python
from stores import commit, files


@pytest.mark.slow
@pytest.mark.parametrize(("place", "rounds"), [("local", 6), pytest.param("moto", 2, marks=pytest.mark.long)])
def test_what_killed_writers_were_told_is_safe_is_there_and_nothing_else_is_left(tmp_path, place, rounds):
    script = Path(__file__).with_name("kill_rounds.py")
    url = str(tmp_path / "store") if place == "local" else place

    ran = python(script, url, "--rounds", rounds, "--seed", "5")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{rounds} rounds on {url}" in ran.stdout
    (acknowledged,) = re.findall(r"(\d+) checkpoint,", ran.stdout)
    # Some writers are killed before their first checkpoint.
    assert int(acknowledged) >= rounds // 3


FULL = """
import resource, signal, sys
import pyarrow as pa
from arrowstate import KeyedStateBackend, ReducingStateDescriptor, StorageFullError, open_store

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store(sys.argv[1])
total = ReducingStateDescriptor("total", pa.int64(), reduce="sum")
backend = store.latest().restore("op")
backend.state(total).add_batch(pa.array(range(50_000)), pa.array([1] * 50_000))
with store.writer() as writer:
    for limit in (0, 1_000, 100_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            writer.checkpoint({"op": [backend]})
        except StorageFullError as error:
            print("full", error.path.split("/")[0], flush=True)
    sys.stdin.readline()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(writer.checkpoint({"op": [backend]}).checkpoint_id)
"""


def test_a_full_disk_fails_the_checkpoint_and_leaves_the_store_as_it_was(tmp_path):
    total = ReducingStateDescriptor("total", pa.int64(), reduce="sum")
    backend = KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(total).add_batch(pa.array(range(3000)), pa.array([5] * 3000))
    store = open_store(tmp_path / "store", create=True)
    commit(store, {"op": [backend]})
    folder = tmp_path / "store"
    before = files(folder)

    with started_python("-c", FULL, store.url, stderr=subprocess.PIPE) as job:
        answers = [job.stdout.readline() for _ in range(3)]
        during = files(folder)
        output, errors = job.communicate("go on\n")

    assert answers == ["full data\n"] * 3, errors
    # The fence of the job, and the hint to it, are all that is new.
    fence = "log/00000000000000000003.json"
    assert set(during) - set(before) == {fence}
    assert {path for path in before if during[path] != before[path]} <= {"_latest"}
    assert output == "2\n", errors
    assert store.snapshot(1).restore("op").state(total).get_batch([1, 4000]).to_pylist() == [5, None]
    assert store.latest().restore("op").state(total).get_batch([1, 4000]).to_pylist() == [6, 1]
