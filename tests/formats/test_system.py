"""What each operating system does in a way of its own: locks, names that are given once, folders of this process."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from arrowstate_formats import system
from arrowstate_formats.temporary import TemporaryFolder
from processes import python, started_python

HOLD = """
import os, pathlib, sys
from arrowstate_formats import system
place = pathlib.Path(sys.argv[1])
if place.is_file():
    locked = system.lock(os.open(place, os.O_RDWR | system.OPEN), wait=True)
else:
    locked = system.lock_folder(place, wait=True) is not None
print(system.PORTABLE, locked, flush=True)
sys.stdin.read()
"""
FOLDER = """
import sys
from arrowstate_formats.temporary import TemporaryFolder
print((folder := TemporaryFolder()).path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=[False, True], ids=["flock", "portable"])
def portable(request, monkeypatch):
    """Whether this process, and those that it starts, go the portable way."""
    if system.PORTABLE and not request.param:
        pytest.skip("all of this run goes the portable way")
    monkeypatch.setattr(system, "PORTABLE", request.param)
    monkeypatch.setenv("ARROWSTATE_PORTABLE", str(int(request.param)))
    return request.param


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_lock_is_held_until_its_process_is_killed(tmp_path, portable, kind):
    place = tmp_path / kind
    place.write_bytes(b"") if kind == "file" else place.mkdir()

    def taken(wait):
        if kind == "folder":
            return system.lock_folder(place, wait=wait)
        descriptor = os.open(place, os.O_RDWR | system.OPEN)
        if system.lock(descriptor, wait=wait):
            return descriptor
        os.close(descriptor)
        return None

    with started_python("-c", HOLD, str(place)) as holder:
        assert holder.stdout.readline() == f"{portable} True\n"
        assert taken(wait=False) is None
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    descriptor = taken(wait=True)

    assert descriptor is not None
    assert taken(wait=False) is None
    os.close(descriptor)


def test_of_many_threads_one_gives_a_name_and_the_others_are_told(tmp_path, portable):
    def give(number):
        source = tmp_path / f"source-{number}"
        source.write_text(str(number))
        try:
            system.give_name(source, tmp_path / "name")
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as threads:
        winners = [number for number in threads.map(give, range(40)) if number is not None]

    assert (tmp_path / "name").read_text() == str(*winners)


def test_a_name_in_a_folder_that_is_gone_is_an_error(tmp_path, portable):
    (tmp_path / "source").write_text("x")

    with pytest.raises(FileNotFoundError):
        system.give_name(tmp_path / "source", tmp_path / "gone" / "name")

    assert (tmp_path / "source").read_text() == "x"


def test_the_folder_of_a_killed_process_goes_with_the_next_one_and_that_of_a_living_one_stays(
    tmp_path, portable, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with started_python("-c", FOLDER) as killed, started_python("-c", FOLDER) as living:
        gone, stays = Path(killed.stdout.readline().strip()), Path(living.stdout.readline().strip())
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        own = TemporaryFolder()

        assert (gone.exists(), stays.exists(), own.path.exists()) == (False, True, True)

        own.remove()
        living.stdin.close()
        living.wait()
    assert list(tmp_path.iterdir()) == []


def test_processes_that_go_the_portable_way_race_for_the_log_of_a_store_as_others_do(tmp_path, portable):
    script = Path(__file__).parents[1] / "storage" / "commit_racers.py"

    ran = python(script, str(tmp_path / "store"), "--rounds", "60", "--processes", "3", "--threads", "4")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"60 won, {60 * 11} lost, 0 problems" in ran.stdout


FORK = """
import os, sys, threading, time
from arrowstate_formats import system
from arrowstate_formats.cached_properties import cached_property

begun, may_end = threading.Event(), threading.Event()
lock = system.forks_wait_for(threading.Lock())

class Slow:
    def __init__(self, waits):
        self.waits = waits

    @cached_property
    def value(self):
        if self.waits:
            begun.set()
            may_end.wait()
        return object()

def hold():
    with lock:
        Slow(True).value

def compute():
    Slow(True).value

threading.Thread(target={"property": compute, "lock": hold}[sys.argv[1]], daemon=True).start()
begun.wait()
threading.Timer(0.2, may_end.set).start()
child = os.fork()
if not child:
    with lock:
        slow = Slow(False)
        os._exit(0 if slow.value is slow.value else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("what", ["property", "lock"])
def test_a_process_that_is_forked_waits_for_nothing_that_a_thread_was_doing(what):
    assert python("-c", FORK, what, timeout=60).returncode == 0


INTERRUPTED = """
import os, signal, threading, time
from arrowstate_formats import system

lock, done = system.forks_wait_for(threading.RLock()), []

def hold():
    with lock:
        time.sleep(1)
    done.append(True)

holding = threading.Thread(target=hold)
holding.start()
time.sleep(0.2)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
child = 0
try:
    child = os.fork()
except KeyboardInterrupt:
    pass
if child:
    # Another thread holds it still.
    taken = lock.acquire(blocking=False)
    holding.join()
    os._exit(0 if done and not taken else 1)
os._exit(0)
"""


def test_a_lock_that_a_fork_did_not_get_is_not_let_go():
    assert python("-c", INTERRUPTED, timeout=60).returncode == 0
