"""A follower stays on the newest checkpoint: its files are there, whatever is collected, and no answer is older."""

import gc
import os
import signal
import threading

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import CheckpointNotFoundError, InvalidInputError, StateNotFoundError, StorageError
from arrowstate.files.open_files import forget_open_files
from arrowstate.storage import open_storage
from arrowstate.store import StateStore
from processes import started_python
from storages import Hooked
from stores import backend_of, until

USER = pa.schema([("user", pa.string())])
CLICKS = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")


class ReadOnly:
    """A storage of which one may read, and no more."""

    def __init__(self, storage):
        self.storage = storage

    def __getattr__(self, name):
        if name in ("put_if_absent", "write_file", "put_hint", "delete"):
            raise StorageError("leases/x", "Read-only file system")
        return getattr(self.storage, name)


@pytest.fixture
def written(store):
    """A store, and what commits a checkpoint more in which each of the users has one click more."""
    backend, users = backend_of(USER), [f"user-{number}" for number in range(2_000)]
    with store.writer() as writer:

        def write():
            backend.state(CLICKS).add_batch(users, [1] * len(users))
            return writer.checkpoint({"counter": [backend]}).checkpoint_id

        yield store, write


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_told_that_nobody_follows_there(written):
    store, write = written
    write()
    with store.follow(poll_ms=100_000) as follower:
        child = os.fork()
        if not child:
            told = 0
            for ask in (lambda: follower.snapshot, lambda: follower.wait_for(2)):
                try:
                    ask()
                except InvalidInputError as error:
                    told += f"the process that opened it, {os.getppid()}," in str(error)
                finally:
                    if told not in (1, 2):
                        os._exit(1)
            os._exit(0 if told == 2 else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        assert code == 0
        assert follower.lookup("counter.clicks", ["user-1"]).value["clicks"].to_pylist() == [1]


def collect(store):
    store.collect(arrowstate.RetentionPolicy(count=1), grace_ms=0, allow_short_grace=True).apply()
    return [snapshot.checkpoint_id for snapshot in store.checkpoints()]


def test_each_answer_is_of_the_newest_checkpoint_and_says_how_old_it_is(written):
    store, write = written
    now = [store.clock_ms()]
    store.clock_ms = lambda: now[0]
    with store.follow(poll_ms=5) as follower:
        for number in range(1, 4):
            now[0] = follower.wait_for(write(), timeout_s=60).entry.committed_at_ms + 70

            answer = follower.lookup("counter.clicks", ["user-7", "nobody"])
            counted = follower.sql("select sum(clicks) from counter.clicks")

            assert answer.value.to_pylist() == [{"user": "user-7", "clicks": number}]
            assert counted.value.fetchall() == [(2_000 * number,)]
            assert (answer.checkpoint_id, counted.checkpoint_id) == (number, number)
            assert answer.age_ms == 70


def test_it_may_begin_before_the_first_checkpoint(written):
    store, write = written
    with store.follow(poll_ms=5) as follower:
        with pytest.raises(CheckpointNotFoundError):
            follower.lookup("counter.clicks", ["user-7"])
        with pytest.raises(TimeoutError, match="checkpoint 1 .* has not come within 0.01 s"):
            follower.wait_for(1, timeout_s=0.01)

        write()

        assert follower.wait_for(1, timeout_s=60).checkpoint_id == 1


def test_no_checkpoint_that_somebody_has_is_collected_and_none_that_nobody_has_is_kept(written):
    store, write = written
    write()
    with store.follow(poll_ms=5) as follower:
        held = follower.snapshot
        result = follower.sql("select min(clicks) from counter.clicks").value
        for _ in range(3):
            follower.wait_for(write(), timeout_s=60)
        assert collect(store) == [1, 2, 3, 4]
        assert held.lookup("counter.clicks", ["user-1"])["clicks"].to_pylist() == [1]
        del held
        gc.collect()
        assert follower.refresh() is False
        assert collect(store)[0] == 1

        assert result.fetchall() == [(1,)]
        del result
        gc.collect()
        follower.refresh()

        assert collect(store) == [4]
    assert open_storage(store.url).list("leases/") == []


def test_many_threads_ask_while_checkpoints_come_and_go_and_none_of_them_goes_back(written):
    store, write = written
    write()
    ended, failed = threading.Event(), []

    def ask(follower):
        seen = 0
        while not ended.is_set():
            try:
                answer = follower.lookup("counter.clicks", ["user-3"])
                (clicks,) = answer.value["clicks"].to_pylist()
                assert clicks == answer.checkpoint_id >= seen
                seen = answer.checkpoint_id
            except BaseException as error:  # noqa: BLE001 (the test fails with whatever it is)
                failed.append(error)
                return

    with store.follow(poll_ms=1) as follower:
        threads = [threading.Thread(target=ask, args=[follower]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            write()
            collect(store)
        ended.set()
        for thread in threads:
            thread.join()

    assert failed == []


def test_restarts_and_rescales_of_the_writer_are_followed(store):
    with store.follow(poll_ms=5) as follower:
        backend = backend_of(USER)
        backend.state(CLICKS).add_batch(["ann", "bob", "eve"], [1, 2, 3])
        backends = [backend]
        for parallelism in (1, 3, 2):
            with store.writer() as writer:
                number = writer.checkpoint({"counter": backends}).checkpoint_id
            snapshot = follower.wait_for(number, timeout_s=60)
            answer = follower.lookup("counter.clicks", ["eve", "ann", "bob"])
            assert (answer.checkpoint_id, answer.value["clicks"].to_pylist()) == (number, [3, 1, 2])
            backends = [
                snapshot.restore("counter", subtask=subtask, parallelism=parallelism) for subtask in range(parallelism)
            ]


def test_a_store_that_fails_for_a_while_is_followed_on(written, caplog):
    def fail():
        raise StorageError("log", "the network is down")

    store, write = written
    write()
    storage = Hooked(store.storage)
    with StateStore(storage, store.store_id).follow(poll_ms=100_000) as follower:
        write()
        storage.act_at(
            len(storage.calls) + 1, lambda: (_ for _ in ()).throw(StorageError("log", "the network is down"))
        )
        follower.look()
        failed = follower.failure
        answer = follower.lookup("counter.clicks", ["user-1"])
        follower.look()

        assert "the network is down" in str(failed)
        assert [record.levelname for record in caplog.records if "cannot be followed" in record.message] == ["WARNING"]
        assert answer.checkpoint_id == 1
        assert (follower.failure, follower.snapshot.checkpoint_id) == (None, 2)


def test_who_was_suspended_for_longer_than_its_lease_goes_over_to_the_newest(written):
    store, write = written
    write()
    with store.follow(poll_ms=100_000, ttl_ms=100_000) as follower:
        # What a collector takes once the lease has ended.
        (lease,) = store.storage.list("leases/")
        store.storage.delete(lease)
        write()
        assert collect(store) == [2]

        answer = follower.lookup("counter.clicks", ["user-1"])

        assert (answer.checkpoint_id, answer.value["clicks"].to_pylist()) == (2, [2])


@pytest.mark.parametrize("is_all", [False, True])
def test_the_files_of_a_new_checkpoint_are_open_before_it_is_shown(written, is_all):
    store, write = written
    write()
    hooked = Hooked(store.storage)
    with StateStore(hooked, store.store_id).follow(poll_ms=100_000) as follower:
        if is_all:
            follower.keep_open()
        else:
            follower.lookup("counter.clicks", ["user-1"])
        before = set(store.storage.list("data/"))
        write()
        new = set(store.storage.list("data/")) - before
        forget_open_files()

        follower.refresh()
        opened = {path for verb, path in hooked.calls if verb == "open_buffer"}
        hooked.calls.clear()
        answer = follower.lookup("counter.clicks", ["user-1"])

    assert new <= opened
    assert new.isdisjoint(path for verb, path in hooked.calls if verb == "open_buffer")
    assert (len(new) > 0, answer.checkpoint_id) == (True, 2)


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_newest_checkpoint_that_is_collected_before_it_is_held_gives_way_to_the_next(written, is_followed):
    """As where a job keeps one checkpoint and makes many: of one who begins, or whose lease has ended."""
    store, write = written
    write()
    missed = []

    def miss():
        write()
        missed.append(collect(store))

    hooked = Hooked(store.storage)
    if not is_followed:
        hooked.act_before("put_if_absent", "leases/", miss)
    with StateStore(hooked, store.store_id).follow(poll_ms=100_000, ttl_ms=100_000) as follower:
        if is_followed:
            (lease,) = store.storage.list("leases/")
            store.storage.delete(lease)
            write()
            collect(store)
            follower._lease._lost = CheckpointNotFoundError(1, [2])
            hooked.act_before("put_if_absent", "leases/", miss)
        answer = follower.lookup("counter.clicks", ["user-1"])

    newest = store.latest().checkpoint_id
    assert missed == [[newest]]
    assert (answer.checkpoint_id, answer.value["clicks"].to_pylist()) == (newest, [newest])


def test_a_renewal_that_failed_lets_go_of_nothing(written, monkeypatch):
    store, write = written
    write()
    now = [store.clock_ms()]
    store.clock_ms = lambda: now[0]
    with store.follow(poll_ms=100_000, ttl_ms=1_000_000) as follower:
        held = follower.snapshot
        monkeypatch.setattr(follower._lease, "_lost", StorageError("leases/x", "the network is down"))
        write()
        follower.refresh()
        # A lease that is renewed no more would have ended by now.
        now[0] += 2_000_000
        follower._lease.renew()

        assert collect(store) == [1, 2]
        assert held.lookup("counter.clicks", ["user-1"])["clicks"].to_pylist() == [1]


FOLLOW = """
import sys
import arrowstate
follower = arrowstate.open_store(sys.argv[1]).follow(ttl_ms=1)
print(follower.snapshot.checkpoint_id, flush=True)
sys.stdin.read()
"""


def test_a_follower_that_was_killed_keeps_nothing_for_longer_than_its_lease(written):
    store, write = written
    write()
    with started_python("-c", FOLLOW.replace("ttl_ms=1", "ttl_ms=1_000"), store.url) as process:
        assert process.stdout.readline() == "1\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    write()

    until(lambda: collect(store) == [2])


def test_one_that_is_closed_while_it_is_asked_says_that_it_was_closed(written, monkeypatch):
    store, write = written
    write()
    follower = store.follow(poll_ms=1)
    look = follower._check_follows

    def looks_and_is_closed():
        look()
        follower.close()

    monkeypatch.setattr(follower, "_check_follows", looks_and_is_closed)

    with pytest.raises(InvalidInputError, match="the follower was closed"):
        follower.snapshot  # noqa: B018 (what is asked is a property)


def test_one_that_is_closed_or_forgotten_ends(written):
    store, write = written
    write()
    follower = store.follow(poll_ms=1)
    follower.close()
    follower.close()
    forgotten = store.follow(poll_ms=1)
    del forgotten

    with pytest.raises(InvalidInputError, match="the follower was closed"):
        follower.lookup("counter.clicks", ["user-1"])
    with pytest.raises(InvalidInputError, match="the follower was closed"):
        follower.wait_for(9)
    until(lambda: not [each for each in threading.enumerate() if each.name == "arrowstate-follow"])


def test_a_savepoint_is_read_without_a_lease_and_stays_as_it_was(written):
    store, write = written
    write()
    savepoint = arrowstate.open_store(store.savepoint("before").storage.url)
    before = savepoint.storage.list("")

    with savepoint.follow() as follower:
        answer = follower.lookup("counter.clicks", ["user-1"])

        assert (answer.value["clicks"].to_pylist(), savepoint.storage.list("")) == ([1], before)
    assert savepoint.storage.list("") == before


def test_who_may_not_write_to_a_store_follows_it_without_a_lease_and_is_told_once(written, caplog):
    store, write = written
    write()
    refused = StateStore(ReadOnly(store.storage), store.store_id)

    with refused.follow(poll_ms=100_000) as follower:
        for number in range(2, 4):
            write()
            follower.refresh()
            assert follower.lookup("counter.clicks", ["user-1"]).value["clicks"].to_pylist() == [number]

    assert len([record for record in caplog.records if "no lease holds" in record.message]) == 1


@pytest.mark.parametrize("options", [{"poll_ms": 0}, {"poll_ms": "5"}, {"poll_ms": 1 << 60}, {"ttl_ms": 0}])
def test_bad_arguments_are_refused(written, options):
    store, _ = written

    with pytest.raises(InvalidInputError, match=f"{next(iter(options))}.* must be .*(at least|from) 1"):
        store.follow(**options)


def test_a_state_that_is_not_there_is_named(written):
    store, write = written
    write()
    with store.follow() as follower, pytest.raises(StateNotFoundError, match="it has 'counter.clicks'"):
        follower.lookup("counter.nope", ["user-1"])
