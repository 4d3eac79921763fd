"""The checkpoint of a time is found with few reads, and is the one that a walk back over the whole log finds."""

import random

import pytest
from msgspec.structs import replace

from arrowstate.errors import CheckpointNotFoundError, CorruptDataError, NotFoundError
from arrowstate.log.boundary import path_of
from arrowstate.log.choosing import checkpoint_at
from arrowstate.log.commit_log import CommitLog
from arrowstate.storage import clear_memory_storage, open_storage
from arrowstate.testing.faults import FaultyStorage
from long_form import short_or_long
from written_logs import Log

URL = "memory://finding-by-time"


@pytest.fixture
def storage():
    yield open_storage(URL, create=True)
    clear_memory_storage(URL)


class TimedLog(Log):
    """A log whose entries are committed one after the other, some at one time."""

    def __init__(self, storage):
        super().__init__(storage)
        self.now = 1_000
        self.fence()

    def add(self, document):
        return super().add(replace(document, started_at_ms=self.now, committed_at_ms=self.now))


def by_walking(storage, time):
    return next((entry for entry in CommitLog(storage).backwards() if entry.committed_at_ms <= time), None)


@pytest.mark.parametrize("seed", range(short_or_long(20, 500)))
def test_it_is_the_one_that_a_walk_finds(storage, seed):
    chance = random.Random(seed)
    made = TimedLog(storage)
    made.commit()
    for _ in range(chance.randrange(40)):
        made.now += chance.choice([0, 1, 10])
        chance.choice([made.commit, made.commit, made.fence, made.compact])()
    if chance.random() < 0.5:
        highest = CommitLog(storage).content(made.newest).number
        kept = [identity for identity in made.found if chance.random() < 0.2]
        made.collect(chance.randrange(1, highest + 1), keep=kept)

    for time in range(998, made.now + 3):
        expected = by_walking(storage, time)
        if expected is None:
            with pytest.raises(NotFoundError, match=f"at {time} or before; the oldest, "):
                checkpoint_at(CommitLog(storage), time, str(time))
        else:
            assert checkpoint_at(CommitLog(storage), time, "then") == expected, time


def test_of_a_thousand_entries_a_dozen_are_read(storage):
    made = TimedLog(storage)
    for _ in range(1_000):
        made.now += 1
        made.commit()

    for time in (1_001, 1_337, 1_999, 2_000):
        calls = []
        log = CommitLog(FaultyStorage(storage, lambda call: calls.append(call.verb)))  # noqa: B023
        assert checkpoint_at(log, time, "then").committed_at_ms == time
        assert calls.count("read") <= 15


def test_an_entry_that_is_lost_is_passed_over_only_where_it_is_not_needed(storage):
    made = TimedLog(storage)
    for _ in range(9):
        made.now += 1
        made.commit()
    storage.delete(path_of(5))

    assert checkpoint_at(CommitLog(storage), 1_008, "then").checkpoint_id == 8
    with pytest.raises(CorruptDataError, match="missing"):
        checkpoint_at(CommitLog(storage), 1_003, "then")


def test_a_log_without_checkpoints_has_none_of_a_time(storage):
    with pytest.raises(CheckpointNotFoundError):
        checkpoint_at(CommitLog(storage), 1_000, "then")
