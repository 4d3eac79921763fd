"""What only a file system can do wrong: races between processes, crashes, full disks, lost answers, links."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from arrowstate.errors import CommitUnknownError, CorruptDataError, StorageError, StorageFullError
from arrowstate.storage import Outcome, open_storage
from arrowstate.storage import local as local_module
from arrowstate.storage.base import listed_level
from arrowstate_formats import system
from processes import python, started_python
from stores import write


def all_files(storage):
    """Temporary files too, but not what the portable way locks."""
    paths = [path for path in Path(storage.url).rglob("*") if not path.is_dir() and path.name != system.LOCK_NAME]
    return sorted(str(path.relative_to(storage.url)) for path in paths)


with_links = pytest.mark.skipif(system.PORTABLE, reason="the portable way makes no links")


def test_of_many_racers_in_several_processes_one_wins_each_number(local):
    script = Path(__file__).with_name("commit_racers.py")
    shape = ["--rounds", "200", "--processes", "3", "--threads", "4"]

    ran = python(script, local.url, *shape)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"200 won, {200 * 11} lost, 0 problems" in ran.stdout
    assert all_files(local) == local.list("")


WRITER = """
import sys
from arrowstate.storage import open_storage
from arrowstate_formats import system
with open_storage(sys.argv[1]).write_file("data/a.bin") as file:
    file.write(b"x" * 100_000)
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


def test_a_writer_that_is_killed_leaves_no_file_under_the_name(local):
    with started_python("-c", WRITER, local.url) as writer:
        assert writer.stdout.readline() == "written\n"

        writer.send_signal(signal.SIGKILL)

    assert writer.returncode == -signal.SIGKILL
    assert not local.exists("data/a.bin")
    assert local.list("") == []
    assert len(all_files(local)) == 1, "the temporary file shows that the writer was in the middle"
    write(local, "data/a.bin", b"again")
    assert local.read("data/a.bin") == b"again"


FULL = """
import resource, sys
import pyarrow as pa, pyarrow.parquet as pq, numpy as np
from arrowstate.errors import StorageFullError
from arrowstate.storage import open_storage

storage = open_storage(sys.argv[1])
storage.put_hint("_latest", b"1")
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
large = b"id" + np.random.default_rng(0).bytes(3 << 20)
table = pa.table({"a": np.frombuffer(large[2:], np.int64)})

def write_file():
    with storage.write_file("data/a.bin") as file:
        file.write(large)

def write_small_pieces():
    with storage.write_file("data/a.bin") as file:
        for start in range(0, len(large), 1000):
            file.write(large[start : start + 1000])

def write_arrow():
    with storage.write_file("data/a.arrow") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)

def write_parquet():
    with storage.write_file("data/a.parquet") as file:
        pq.write_table(table, file)

def put():
    storage.put_if_absent("log/1.json", large, "id")

def hint():
    storage.put_hint("_latest", large)

for verb in (write_file, write_small_pieces, write_arrow, write_parquet, put, hint):
    try:
        verb()
    except StorageFullError as error:
        print(verb.__name__, "full", error.path)
    else:
        print(verb.__name__, "wrote")
"""


def test_a_full_disk_is_an_error_of_its_own_and_leaves_nothing(local):
    ran = python("-c", FULL, local.url)

    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "write_file full data/a.bin",
        "write_small_pieces full data/a.bin",
        "write_arrow full data/a.arrow",
        "write_parquet full data/a.parquet",
        "put full log/1.json",
        "hint full _latest",
    ]
    assert all_files(local) == ["_latest"]
    assert local.read("_latest") == b"1"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["fsync", pytest.param("link", marks=with_links)])
def test_no_room_is_told_wherever_the_system_says_it(local, monkeypatch, number, call):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(local_module.os, call, fail)

    with pytest.raises(StorageFullError):
        local.put_if_absent("a", b"one", "one")
    with pytest.raises(StorageFullError):
        write(local, "b", b"body")

    monkeypatch.undo()
    assert all_files(local) == []


@with_links
def test_a_link_that_reports_an_error_after_it_was_made_has_won(local, monkeypatch):
    link = os.link

    def link_and_lose_the_answer(source, target):
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", link_and_lose_the_answer)

    outcome = local.put_if_absent("log/1.json", b"one", "one")

    assert outcome is Outcome.WON
    assert all_files(local) == ["log/1.json"]


@with_links
def test_a_link_that_reports_an_error_while_another_writer_wins_has_lost(local, monkeypatch):
    def another_wins(_, target):
        Path(target).write_bytes(b"two")
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", another_wins)

    outcome = local.put_if_absent("log/1.json", b"one", "one")

    assert outcome is Outcome.LOST


@with_links
def test_a_link_of_unknown_outcome_is_an_error_and_not_a_guess(local, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", fail)

    with pytest.raises(CommitUnknownError) as caught:
        local.put_if_absent("log/1.json", b"one", "one")

    assert (caught.value.path, caught.value.commit_id) == ("log/1.json", "one")
    assert all_files(local) == []


def test_a_commit_whose_name_may_not_survive_is_not_called_won(local, monkeypatch):
    local.put_if_absent("log/0.json", b"zero", "zero")
    fsync = os.fsync

    def fail_for_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(local_module.os, "fsync", fail_for_folders)

    with pytest.raises(CommitUnknownError):
        local.put_if_absent("log/1.json", b"one", "one")
    with pytest.raises(StorageError):
        write(local, "log/2.json", b"two")

    monkeypatch.undo()
    assert not local.exists("log/2.json")


@with_links
def test_a_file_is_durable_before_its_name_and_its_name_before_the_call_returns(local, monkeypatch):
    write(local, "log/0.json", b"makes the folder")
    events = []
    fsync, link = os.fsync, os.link

    me = threading.current_thread()

    def record(event):
        # A lease of another test may still be renewed by its thread.
        if threading.current_thread() is me:
            events.append(event)

    def recorded_fsync(descriptor):
        record("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else os.fstat(descriptor).st_size)
        fsync(descriptor)

    def recorded_link(source, target):
        record("link")
        link(source, target)

    monkeypatch.setattr(local_module.os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "link", recorded_link)

    local.put_if_absent("log/1.json", b"one", "one")
    write(local, "log/2.json", b"twelve bytes")

    assert events == [3, "link", "folder", 12, "link", "folder"]


def test_a_new_folder_is_durable_in_the_folder_above(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def recorded_fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(local_module.os, "fsync", recorded_fsync)

    storage = open_storage(tmp_path / "a" / "store", create=True)
    write(storage, "data/x/1.bin", b"")

    folders = [str(tmp_path), f"{tmp_path}/a", storage.url, f"{storage.url}/data", f"{storage.url}/data/x"]
    assert [path for path in synced if Path(path).is_dir()] == folders


def test_the_root_of_the_file_system_has_no_folder_above(monkeypatch):
    monkeypatch.setattr(local_module, "_DURABLE", set())

    assert open_storage("/", create=True).url == "/"


def test_files_are_readable_for_whom_the_umask_lets_read(local):
    before = os.umask(0o027)

    try:
        write(local, "a", b"")
    finally:
        os.umask(before)

    assert stat.S_IMODE((Path(local.url) / "a").stat().st_mode) == 0o640


def test_mapped_files_hold_no_descriptor(local):
    write(local, "a", b"abc")
    before = len(os.listdir("/proc/self/fd"))

    buffers = [local.open_buffer("a") for _ in range(100)]

    assert len(os.listdir("/proc/self/fd")) == before
    assert all(buffer.to_pybytes() == b"abc" for buffer in buffers)


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    return folder


@pytest.mark.parametrize("path", ["link", "folder/secret"])
def test_a_symbolic_link_that_leads_outside_is_refused(local, outside, path):
    (Path(local.url) / "link").symlink_to(outside / "secret")
    (Path(local.url) / "folder").symlink_to(outside)

    for verb in (local.read, local.open_buffer, local.exists):
        with pytest.raises(CorruptDataError, match="symbolic link"):
            verb(path)


def test_nothing_is_written_deleted_or_listed_through_a_link_that_leads_outside(local, outside):
    (Path(local.url) / "folder").symlink_to(outside)

    with pytest.raises(CorruptDataError):
        write(local, "folder/new", b"")
    with pytest.raises(CorruptDataError):
        local.put_if_absent("folder/new", b"one", "one")
    with pytest.raises(CorruptDataError):
        local.put_hint("folder/secret", b"")
    with pytest.raises(CorruptDataError):
        local.delete("folder/secret")
    with pytest.raises(CorruptDataError):
        local.list("folder/")

    assert local.list("") == []
    assert [path.read_bytes() for path in outside.iterdir()] == [b"secret"]


def test_a_link_in_place_of_a_commit_does_not_redirect_it(local, outside):
    (Path(local.url) / "log").mkdir()
    (Path(local.url) / "log" / "1.json").symlink_to(outside / "new")

    with pytest.raises(CorruptDataError):
        local.put_if_absent("log/1.json", b"one", "one")

    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_deleting_a_link_leaves_what_it_leads_to(local):
    write(local, "data/a", b"abc")
    (Path(local.url) / "link").symlink_to("data/a")

    read = local.read("link")
    local.delete("link")

    assert read == b"abc"
    assert local.list("") == ["data/a"]


def test_an_open_storage_stays_where_it_is_when_the_working_folder_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = open_storage("store", create=True)
    (tmp_path / "elsewhere").mkdir()

    monkeypatch.chdir(tmp_path / "elsewhere")
    write(storage, "a", b"abc")

    assert (tmp_path / "store" / "a").read_bytes() == b"abc"


def test_a_file_in_the_way_of_a_folder_is_an_error_of_the_tree(local):
    write(local, "a", b"")

    with pytest.raises(StorageError) as caught:
        write(local, "a/b", b"")

    assert caught.value.path == "a/b"
    assert local.list("") == ["a"]


@with_links
def test_a_file_system_without_hard_links_is_told_so(local, monkeypatch):
    def fail(source, target):
        raise OSError(errno.EPERM, "Operation not permitted", source, None, target)

    monkeypatch.setattr(os, "link", fail)

    with pytest.raises(StorageError, match="hard links"):
        local.put_if_absent("a", b"one", "one")
    assert all_files(local) == []


def unfinished_of(local):
    (name,) = local.list_unfinished()
    return name


KILLED = """
import os, signal, sys
from arrowstate.storage import open_storage

with open_storage(sys.argv[1]).write_file("data/op/x.arrow") as file:
    file.write(b"abc")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_named_and_can_be_deleted_and_nothing_else(local):
    killed = subprocess.run([sys.executable, "-c", KILLED, local.url])
    assert killed.returncode == -signal.SIGKILL
    Path(local.url, "data", ".keep").write_bytes(b"")
    local.put_hint("_latest", b"1")

    name = unfinished_of(local)

    assert name.startswith("data/op/.")
    for other in ("data/.keep", "_latest", "data/op/x.arrow", "../.0123456789abcdef0123456789abcdef.tmp", "/x"):
        with pytest.raises(CorruptDataError):
            local.delete_unfinished(other)
    local.delete_unfinished(name)
    local.delete_unfinished(name)
    assert local.list_unfinished() == []
    assert Path(local.url, "data", ".keep").exists()
    assert local.list("") == ["_latest"]


def test_a_slow_writer_whose_unfinished_file_was_deleted_fails_and_creates_nothing(local):
    with pytest.raises(StorageError, match="unfinished file is gone"), local.write_file("data/x") as file:
        file.write(b"abc")
        local.delete_unfinished(unfinished_of(local))

    assert local.list("") == []
    with local.write_file("data/x") as file:
        file.write(b"abc")
    assert local.read("data/x") == b"abc"


@with_links
def test_a_slow_commit_whose_unfinished_file_was_deleted_fails_and_is_not_unknown(local, monkeypatch):
    link = os.link

    def slow(source, target):
        local.delete_unfinished(unfinished_of(local))
        link(source, target)

    monkeypatch.setattr(os, "link", slow)

    with pytest.raises(StorageError, match="unfinished file is gone") as caught:
        local.put_if_absent("log/1.json", b"mine", "mine")

    assert not isinstance(caught.value, CommitUnknownError)
    assert local.list("") == []


def test_pages_of_a_listing_follow_what_a_listing_does(tmp_path, monkeypatch):
    storage = open_storage(tmp_path / "store", create=True)
    (tmp_path / "store/data/deep").mkdir(parents=True)
    (tmp_path / "store/.hidden").mkdir()
    for path in ("data/a", "data/b", "data/deep/c", "data/.d.tmp", ".hidden/e", "f"):
        (tmp_path / "store" / path).write_bytes(b"x")
    (tmp_path / "store/data/loop").symlink_to(tmp_path / "store/data")
    (tmp_path / "store/data/link").symlink_to(tmp_path / "store/f")
    monkeypatch.setattr(local_module, "_PAGE", 2)

    for prefix in ("", "data/", "data/d", "nothing/", "f/"):
        pages = list(storage.list_pages(prefix))
        assert sorted(path for page in pages for path in page) == storage.list(prefix)
        assert max(map(len, pages)) <= 2
    assert listed_level(storage, "") == (["data"], ["f"])
    assert listed_level(storage, "data") == (["deep"], ["a", "b", "link"])
    assert listed_level(storage, "nothing") == listed_level(storage, "f") == ([], [])
