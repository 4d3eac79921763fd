"""Local copies of remote files: damaged copies, bounds, processes that share a folder or die in the middle."""

import errno
import hashlib
import multiprocessing
import os
import signal
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrowstate.errors import InvalidInputError, StorageError, StorageFullError
from arrowstate.storage import FileCache
from arrowstate.storage import cache as cache_module
from arrowstate.storage.cache import CacheUse, cache_use
from arrowstate_formats import system
from processes import at_once, python, started_python


class Source:
    """Contents by identity, and how often each was fetched."""

    def __init__(self, **contents):
        self.contents = contents
        self.fetched = []

    def open(self, cache, identity):
        def fetch(file):
            self.fetched.append(identity)
            file.sink.write(self.contents[identity])

        return cache.open(identity, len(self.contents[identity]), fetch)


def copies(cache):
    return [path for path in cache.folder.iterdir() if not path.name.startswith(".")]


def size_of(cache):
    return sum(path.stat().st_size for path in copies(cache))


@pytest.fixture
def cache(tmp_path):
    return FileCache(tmp_path / "deep" / "cache", 1 << 20)


@pytest.mark.parametrize("body", [b"", b"abc", bytes(100_000)], ids=["empty", "small", "larger"])
def test_a_file_is_fetched_once_and_mapped(cache, body):
    source = Source(a=body)

    first, second = source.open(cache, "a"), source.open(cache, "a")

    assert first.to_pybytes() == second.to_pybytes() == body
    assert not first.is_mutable
    assert source.fetched == ["a"]


def test_only_the_user_can_read_copies(cache):
    Source(a=b"abc").open(cache, "a")

    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in copies(cache)] == [0o600]


@settings(max_examples=60)
@given(bit=st.integers(0, (1000 + 16) * 8 - 1))
def test_a_copy_with_any_flipped_bit_is_fetched_again(tmp_path_factory, bit):
    cache = FileCache(tmp_path_factory.mktemp("cache"))
    source = Source(a=bytes(range(250)) * 4)
    source.open(cache, "a")
    [copy] = copies(cache)
    damaged = bytearray(copy.read_bytes())
    damaged[bit // 8] ^= 1 << bit % 8
    copy.write_bytes(damaged)

    again = source.open(cache, "a").to_pybytes()
    third = source.open(cache, "a").to_pybytes()

    assert again == third == source.contents["a"]
    assert source.fetched == ["a", "a"]


@pytest.mark.parametrize("length", [0, 3, 15, 1015, 1017])
def test_a_torn_copy_is_fetched_again_and_told(cache, caplog, length):
    source = Source(a=b"x" * 1000)
    source.open(cache, "a")
    [copy] = copies(cache)
    os.truncate(copy, length)

    again = source.open(cache, "a").to_pybytes()

    assert again == source.contents["a"]
    assert source.fetched == ["a", "a"]
    assert "damaged" in caplog.text


def test_a_copy_of_another_file_under_the_name_of_this_one_is_noticed(cache):
    source = Source(a=b"abc", b=b"abcd")
    source.open(cache, "a")
    source.open(cache, "b")
    name = {identity: cache.folder / hashlib.sha256(identity.encode()).hexdigest() for identity in "ab"}
    name["b"].replace(name["a"])

    assert source.open(cache, "a").to_pybytes() == b"abc"


def test_the_least_recently_used_copies_make_room(tmp_path):
    cache = FileCache(tmp_path, 3 * (1000 + 16))
    source = Source(**{name: name.encode() * 1000 for name in "abcd"})
    for name in "abc":
        source.open(cache, name)
    for seconds, name in enumerate("abc"):
        path = cache.folder / hashlib.sha256(name.encode()).hexdigest()
        os.utime(path, (seconds, seconds))

    kept = source.open(cache, "a")
    source.open(cache, "d")
    source.fetched.clear()
    for name in "adc":
        source.open(cache, name)

    assert source.fetched == []
    assert size_of(cache) == cache.limit_bytes
    source.open(cache, "b")
    assert source.fetched == ["b"]
    assert kept.to_pybytes() == b"a" * 1000


def test_what_else_is_in_the_folder_stays_and_is_in_nobodys_way(tmp_path):
    cache = FileCache(tmp_path, 1_000)
    others = [tmp_path / name for name in ("lost+found", "report.parquet", ".tmp-of-others")]
    others[0].mkdir()
    for other in others[1:]:
        other.write_bytes(bytes(900))
    for other in others:
        os.utime(other, (1, 1))
    source = Source(**{f"f{number}": bytes(200) for number in range(12)})

    for name in source.contents:
        source.open(cache, name)

    assert all(other.exists() for other in others)
    assert 1 <= len(copies(cache)) - 2 <= 4


@pytest.mark.parametrize("room", [10_000, 400], ids=["with room", "full"])
def test_the_folder_is_not_walked_for_every_file(tmp_path, monkeypatch, room):
    cache = FileCache(tmp_path, room * (100 + 16))
    source = Source(**{f"file {number}": bytes(100) for number in range(800)})
    for number in range(400):
        source.open(cache, f"file {number}")
    scandir, walks = os.scandir, []
    monkeypatch.setattr(cache_module.os, "scandir", lambda path: walks.append(path) or scandir(path))

    for number in range(400, 800):
        source.open(cache, f"file {number}")

    # A sixteenth of at least 375 copies is added between two walks.
    assert 0 < len(walks) <= 400 // 23 + 1
    assert size_of(cache) <= cache.limit_bytes
    assert len(copies(cache)) > min(room, 800) * 7 // 8


def test_a_large_file_among_many_small_ones_stays_within_the_bound(tmp_path):
    cache = FileCache(tmp_path, 100 * (100 + 16))
    source = Source(**{f"file {number}": bytes(100) for number in range(81)}, large=bytes(8000))
    for number in range(81):
        source.open(cache, f"file {number}")

    source.open(cache, "large")

    assert size_of(cache) <= cache.limit_bytes
    assert len(copies(cache)) > 20


def test_copies_that_others_removed_are_counted_no_more_after_a_walk(tmp_path):
    cache = FileCache(tmp_path, 10 * (1000 + 16))
    source = Source(**{f"file {number}": bytes(1000) for number in range(20)})
    for number in range(10):
        source.open(cache, f"file {number}")
    for path in copies(cache):
        path.unlink()

    for number in range(10, 20):
        source.open(cache, f"file {number}")

    assert len(copies(cache)) == 10


def test_what_was_found_and_what_was_fetched_is_counted(tmp_path):
    cache = FileCache(tmp_path, 3000)
    source = Source(a=b"a" * 1000, b=b"b" * 1000)
    before = cache_use()

    for name in "abaaa":
        source.open(cache, name)

    assert cache_use().since(before) == CacheUse(hits=3, misses=2)


def test_a_mapped_copy_outlives_its_removal(tmp_path):
    cache = FileCache(tmp_path, 2000)
    source = Source(a=b"a" * 1500, b=b"b" * 1500)

    first = source.open(cache, "a")
    source.open(cache, "b")

    assert len(copies(cache)) == 1
    assert first.to_pybytes() == b"a" * 1500


@pytest.mark.parametrize("limit", [0, 1015])
def test_a_file_larger_than_the_bound_is_mapped_and_not_kept(tmp_path, limit):
    cache = FileCache(tmp_path, limit)
    source = Source(a=b"x" * 1000)

    buffer = source.open(cache, "a")

    assert buffer.to_pybytes() == b"x" * 1000
    assert copies(cache) == []
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == []


@pytest.mark.parametrize("got", [b"", b"ab", b"abcd"])
def test_a_fetch_of_another_size_is_an_error_and_keeps_nothing(cache, got):
    with pytest.raises(StorageError, match=f"got {len(got)} bytes, expected 3"):
        cache.open("a", 3, lambda file: file.sink.write(got))

    assert list(cache.folder.iterdir()) == []


def test_a_fetch_that_fails_keeps_nothing(cache):
    def fetch(file):
        file.sink.write(b"ab")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.open("a", 3, fetch)

    assert list(cache.folder.iterdir()) == []


def test_a_negative_bound_is_refused(tmp_path):
    with pytest.raises(InvalidInputError):
        FileCache(tmp_path, -1)


def test_a_folder_that_cannot_be_made_is_an_error_of_the_tree(tmp_path):
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StorageError):
        Source(a=b"abc").open(FileCache(tmp_path / "file"), "a")


def test_a_folder_that_is_deleted_meanwhile_is_made_again(cache):
    source = Source(a=b"abc")
    source.open(cache, "a")
    for path in cache.folder.iterdir():
        path.unlink()
    cache.folder.rmdir()

    assert source.open(cache, "a").to_pybytes() == b"abc"


FULL = """
import resource, sys
from pathlib import Path
from arrowstate.errors import StorageFullError
from arrowstate.storage import FileCache
from arrowstate.storage.cache import CacheUse, cache_use
from arrowstate_formats import system
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
cache = FileCache(Path(sys.argv[1]))
body = b"x" * (3 << 20)
for fetch in (lambda file: file.sink.write(body), lambda file: file.write_at(0, body)):
    try:
        cache.open("a", len(body), fetch)
    except StorageFullError:
        print("full")
"""


def test_a_full_local_disk_is_an_error_of_its_own(tmp_path):
    ran = python("-c", FULL, tmp_path)

    assert (ran.stdout, ran.stderr) == ("full\nfull\n", "")
    assert list(tmp_path.iterdir()) == []


DIES = """
import os, signal, sys
from pathlib import Path
from arrowstate.storage import FileCache
from arrowstate.storage.cache import CacheUse, cache_use
from arrowstate_formats import system
def fetch(file):
    file.sink.write(b"x" * 100_000)
    file.finish()
    print("written", flush=True)
    sys.stdin.read()
FileCache(Path(sys.argv[1])).open("a", 100_000, fetch)
"""


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_fills_is_not(cache):
    cache.folder.mkdir(parents=True)
    with started_python("-c", DIES, cache.folder) as writer:
        assert writer.stdout.readline() == "written\n"
        [temporary] = cache.folder.iterdir()
        Source(b=b"abc").open(cache, "b")
        while_alive = temporary.exists()

        writer.send_signal(signal.SIGKILL)
    after_death = temporary.exists()
    Source(c=b"abc").open(cache, "c")

    assert (while_alive, after_death, temporary.exists()) == (True, True, False)


def test_a_new_file_that_is_swept_before_it_is_locked_is_made_again(cache, monkeypatch):
    lock = system.lock
    swept = []

    def sweep_first(descriptor, *, wait):
        if not swept and wait:
            swept.extend(cache.folder.iterdir())
            swept[0].unlink()
        return lock(descriptor, wait=wait)

    monkeypatch.setattr(system, "lock", sweep_first)
    source = Source(a=b"abc")

    assert source.open(cache, "a").to_pybytes() == b"abc"
    assert len(swept) == 1
    assert len(copies(cache)) == 1


def share(folder, number):
    """Read 12 files over and over through a cache that holds 4 of them."""
    cache = FileCache(Path(folder), 4 * (5000 + 16))
    contents = {f"file-{name}": bytes([name]) * 5000 for name in range(12)}
    source = Source(**contents)
    for turn in range(150):
        name = f"file-{(turn * 7 + number * 5) % 12}"
        assert source.open(cache, name).to_pybytes() == contents[name]


def test_processes_share_a_folder_within_its_bound(tmp_path):
    context = multiprocessing.get_context("spawn")
    folder = tmp_path / "cache"
    folder.mkdir()
    readers = [context.Process(target=share, args=(str(folder), number)) for number in range(3)]

    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()

    assert [reader.exitcode for reader in readers] == [0, 0, 0]
    assert 0 < size_of(FileCache(folder)) <= 4 * (5000 + 16)


def test_threads_that_open_one_file_at_once_all_get_it(cache):
    source = Source(a=b"a" * 100_000)

    found = at_once(lambda _: source.open(cache, "a").to_pybytes(), range(8))

    assert found == [source.contents["a"]] * 8
    assert len(copies(cache)) == 1


def test_no_room_on_the_disk_of_the_cache_is_told(cache, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_module.os, "write", fail)

    with pytest.raises(StorageFullError):
        Source(a=b"abc").open(cache, "a")

    monkeypatch.undo()
    # What counts the bytes of all copies stays.
    assert [path.name for path in cache.folder.iterdir()] == [".lock"]


def test_a_copy_of_a_file_that_is_deleted_is_forgotten_and_the_others_stay(cache):
    source = Source(a=b"abc", b=b"def")
    held = source.open(cache, "a")
    source.open(cache, "b")

    cache.forget(["a", "never there"])

    assert [path.read_bytes()[:3] for path in copies(cache)] == [b"def"]
    assert held.to_pybytes() == b"abc"


def test_a_copy_of_another_version_is_fetched_again(cache):
    def fetch(text):
        return lambda file: file.sink.write(text)

    cache.open("a", 3, fetch(b"old"), version="1")

    assert cache.open("a", 3, fetch(b"new"), version="2").to_pybytes() == b"new"
    assert cache.open("a", 3, fetch(b"not fetched"), version="2").to_pybytes() == b"new"
    assert len(copies(cache)) == 1


def test_a_sweep_removes_what_a_process_that_died_was_filling_and_nothing_else(cache):
    Source(a=b"abc").open(cache, "a")
    left_behind = cache.folder / f".tmp-{0:032x}"
    left_behind.write_bytes(b"half of a file")

    with cache.new_file("b") as file:
        cache.sweep()

        assert file.location.exists()
    assert not left_behind.exists()
    assert len(copies(cache)) == 1
    FileCache(cache.folder / "not there", 1).sweep()
