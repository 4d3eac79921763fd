"""Each fault of the fault kit does to a storage what it says, on storages of two kinds."""

from contextlib import suppress

import pytest

from arrowstate.errors import CommitUnknownError, CorruptDataError, InvalidInputError, MissingFileError, StorageError
from arrowstate.storage import Outcome, Storage, clear_memory_storage, open_storage
from arrowstate.testing import Call, Crashed, Fault, FaultyStorage, PlannedFaults, SeededFaults, faults_of
from arrowstate.testing.faults import VERBS


@pytest.fixture(params=["memory", "local"])
def storage(request, tmp_path):
    yield open_storage("memory://faults" if request.param == "memory" else tmp_path, create=True)
    clear_memory_storage("memory://faults")


def faulty(storage, faults, **options):
    return FaultyStorage(storage, PlannedFaults(faults), **options)


def write(storage, path, data=b"rows of data"):
    with storage.write_file(path) as file:
        file.write(data)


def forget(storage):
    """Delete an unfinished file, which a storage in memory never has."""
    with suppress(CorruptDataError):
        storage.delete_unfinished(f".{'0' * 32}.tmp")


def call_of(verb, path="a/f"):
    """One call of each verb, as a function of a storage; what it makes is `path`."""
    return {
        "read": lambda storage: storage.read(path),
        "open_buffer": lambda storage: storage.open_buffer(path),
        "put_if_absent": lambda storage: storage.put_if_absent(path, b"id 7", "7"),
        "write_file": lambda storage: write(storage, path),
        "put_hint": lambda storage: storage.put_hint(path, b"17"),
        "list": lambda storage: storage.list("a/"),
        "exists": lambda storage: storage.exists(path),
        "delete": lambda storage: storage.delete(path),
        "list_unfinished": lambda storage: storage.list_unfinished(),
        "delete_unfinished": forget,
    }[verb]


CREATES = ["put_if_absent", "write_file", "put_hint"]


def test_without_a_fault_it_is_the_storage_that_it_wraps(storage):
    same = faulty(storage, {})

    assert isinstance(same, Storage)
    assert same.url == storage.url
    assert same.put_if_absent("a/f", b"id 7", "7") is Outcome.WON
    assert same.put_if_absent("a/f", b"id 8", "8") is Outcome.LOST
    write(same, "a/g")
    same.put_hint("a/h", b"1")
    assert [same.read("a/f", 3), bytes(same.open_buffer("a/g")), same.exists("a/h")] == [b"7", b"rows of data", True]
    assert same.list("a/") == storage.list("a/") == ["a/f", "a/g", "a/h"]
    same.delete("a/f")
    assert not same.exists("a/f")
    assert not same.deliver()


@pytest.mark.parametrize("verb", VERBS)
def test_a_call_that_fails_before_changes_nothing(storage, verb):
    storage.put_hint("a/there", b"1")
    act = call_of(verb, "a/there" if verb == "delete" else "a/f")

    with pytest.raises(StorageError, match="the request was lost"):
        act(faulty(storage, {1: Fault.FAIL_BEFORE}))

    assert storage.list("") == ["a/there"]


@pytest.mark.parametrize("verb", [*CREATES, "delete"])
def test_a_call_that_fails_after_is_done_and_its_answer_is_lost(storage, verb):
    if verb == "delete":
        storage.put_hint("a/f", b"1")
    unit = faulty(storage, {1: Fault.FAIL_AFTER})

    with pytest.raises(CommitUnknownError if verb == "put_if_absent" else StorageError, match="the answer was"):
        call_of(verb)(unit)

    assert storage.list("") == ([] if verb == "delete" else ["a/f"])


@pytest.mark.parametrize("verb", ["read", "open_buffer", "list", "exists"])
def test_a_question_whose_answer_is_lost_fails_even_if_it_could_be_answered(storage, verb):
    storage.put_hint("a/f", b"1")

    with pytest.raises(StorageError, match="the answer was lost"):
        call_of(verb)(faulty(storage, {1: Fault.FAIL_AFTER}))


def test_of_a_torn_file_nothing_is_there(storage):
    with pytest.raises(StorageError, match="the connection was cut"):
        write(faulty(storage, {1: Fault.TORN}), "a/f")

    assert storage.list("") == []


def test_a_torn_file_is_not_there_either_if_its_writer_takes_no_notice_of_the_error(storage):
    unit, noticed = faulty(storage, {1: Fault.TORN}), []

    def write_on():
        with unit.write_file("a/f") as file:
            try:
                file.write(b"rows of data")
            except StorageError as error:
                noticed.append(error)

    with pytest.raises(StorageError, match="the connection was cut"):
        write_on()

    assert len(noticed) == 1
    assert storage.list("") == []


def test_of_a_torn_hint_half_is_there(storage):
    storage.put_hint("_latest", b"16")

    with pytest.raises(StorageError, match="the connection was cut"):
        faulty(storage, {1: Fault.TORN}).put_hint("_latest", b"1718")

    assert storage.read("_latest") == b"17"


@pytest.mark.parametrize("verb", VERBS)
def test_a_slow_call_is_done_after_others_had_their_turn(storage, verb):
    storage.put_hint("a/f", b"1")
    seen = []
    unit = faulty(storage, {1: Fault.SLOW}, sleep=lambda: (seen.append("slept"), storage.delete("a/f")))

    if verb in ("read", "open_buffer"):
        with pytest.raises(MissingFileError):
            call_of(verb)(unit)
    else:
        call_of(verb)(unit)

    assert seen == ["slept"]
    assert storage.list("") == (["a/f"] if verb in CREATES else [])


def test_a_stale_listing_is_the_last_one_of_this_process(storage):
    storage.put_hint("a/1", b"1")
    unit, other = faulty(storage, {2: Fault.STALE, 4: Fault.STALE}), faulty(storage, {2: Fault.STALE})
    unit.list("a/")
    storage.put_hint("a/2", b"1")
    storage.delete("a/1")

    stale, fresh, stale_again = (unit.list("a/") for _ in range(3))
    first = other.list("a/")

    assert (stale, fresh, stale_again, first) == (["a/1"], ["a/2"], ["a/2"], ["a/2"])


def test_a_listing_is_fresh_where_there_was_none_before(storage):
    storage.put_hint("a/1", b"1")

    assert faulty(storage, {1: Fault.STALE}).list("a/") == ["a/1"]


@pytest.mark.parametrize("verb", ["put_if_absent", "put_hint", "delete"])
def test_a_duplicate_is_done_twice_and_does_no_more_than_the_call(storage, verb):
    storage.put_hint("a/f" if verb == "delete" else "a/g", b"1")
    below = faulty(storage, {})

    answer = call_of(verb)(faulty(below, {1: Fault.DUPLICATE}))

    assert below.calls == 2
    assert answer is (Outcome.WON if verb == "put_if_absent" else None)
    assert storage.list("") == ([] if verb == "delete" else ["a/f", "a/g"])


def test_a_delayed_duplicate_is_done_at_once_and_creates_the_file_again_later(storage):
    unit = faulty(storage, dict.fromkeys(range(1, 5), Fault.DELAYED_DUPLICATE))
    assert unit.put_if_absent("a/f", b"id 7", "7") is Outcome.WON
    write(unit, "a/g")
    storage.delete("a/f")
    storage.delete("a/g")

    delivered = [unit.deliver(), storage.list(""), unit.deliver(), storage.list(""), unit.deliver()]

    assert delivered == [True, ["a/f"], True, ["a/f", "a/g"], False]
    assert storage.read("a/g") == b"rows of data"


def test_a_delayed_duplicate_does_not_replace_what_is_there_by_then(storage):
    unit = faulty(storage, {1: Fault.DELAYED_DUPLICATE, 2: Fault.DELAYED_DUPLICATE})
    unit.put_if_absent("a/f", b"id 7", "7")
    write(unit, "a/g")
    for path in ("a/f", "a/g"):
        storage.delete(path)
        storage.put_hint(path, b"of somebody else")

    assert unit.deliver()
    assert unit.deliver()

    assert {storage.read("a/f"), storage.read("a/g")} == {b"of somebody else"}


@pytest.mark.parametrize("verb", [*CREATES, "delete"])
def test_a_delayed_call_fails_and_is_done_later(storage, verb):
    if verb == "delete":
        storage.put_hint("a/f", b"1")
    before = storage.list("")
    unit = faulty(storage, {1: Fault.DELAYED})

    with pytest.raises(OSError):
        call_of(verb)(unit)
    at_first = storage.list("")
    delivered = unit.deliver()

    assert (at_first, delivered) == (before, True)
    assert storage.list("") == ([] if verb == "delete" else ["a/f"])


@pytest.mark.parametrize("verb", [*CREATES, "delete"])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_after_a_crash_the_process_does_nothing_more_and_others_go_on(storage, verb, fault):
    if verb == "delete":
        storage.put_hint("a/f", b"1")
    before = storage.list("")
    unit, other = faulty(storage, {1: fault}), faulty(storage, {})

    with pytest.raises(Crashed):
        call_of(verb)(unit)
    after = storage.list("")
    for again in VERBS:
        with pytest.raises(Crashed):
            call_of(again, "a/again")(unit)

    assert unit.crashed and unit.calls == 1
    assert storage.list("") == after
    assert (after == before) is (fault is Fault.CRASH_BEFORE)
    write(other, "a/other")


def test_a_process_that_dies_while_another_of_its_threads_writes_a_file_leaves_none(storage):
    unit = faulty(storage, {2: Fault.CRASH_BEFORE})

    def write_on():
        with unit.write_file("a/f") as file:
            file.write(b"rows of data")
            with suppress(Crashed):
                unit.list("")

    with pytest.raises(Crashed):
        write_on()

    assert storage.list("") == []


def test_a_request_outlives_the_process_that_sent_it(storage):
    unit = faulty(storage, {1: Fault.DELAYED, 2: Fault.CRASH_BEFORE})
    with pytest.raises(StorageError):
        write(unit, "a/f")
    with pytest.raises(Crashed):
        unit.list("")

    assert unit.deliver()

    assert storage.read("a/f") == b"rows of data"


@pytest.mark.parametrize("verb", VERBS)
def test_a_fault_that_a_call_cannot_have_is_refused(storage, verb):
    storage.put_hint("a/f", b"1")
    impossible = set(Fault) - set(faults_of(verb))
    assert impossible

    for fault in impossible:
        with pytest.raises(InvalidInputError, match="cannot have the fault"):
            call_of(verb)(faulty(storage, {1: fault}))

    assert storage.list("") == ["a/f"]


def test_a_seed_draws_the_same_faults_for_the_same_calls_and_about_as_many_as_its_rate_says():
    rates = {Fault.FAIL_BEFORE: 0.2, Fault.STALE: 0.1}
    calls = [Call(number, verb, "x") for number, verb in enumerate(VERBS * 1000)]

    drawn = [SeededFaults(seed, rates) for seed in (1, 1, 2)]
    first, again, other = ([draw(call) for call in calls] for draw in drawn)

    assert first == again
    assert first != other
    assert 0.18 < first.count(Fault.FAIL_BEFORE) / len(calls) < 0.22
    of_listings = [fault for call, fault in zip(calls, first, strict=True) if call.verb == "list"]
    assert 0.07 < of_listings.count(Fault.STALE) / len(of_listings) < 0.13
    assert first.count(Fault.STALE) == of_listings.count(Fault.STALE)


@pytest.mark.parametrize("rates", [{Fault.SLOW: -0.1}, {Fault.SLOW: 0.7, Fault.TORN: 0.4}])
def test_rates_that_are_no_probabilities_are_refused(rates):
    with pytest.raises(InvalidInputError, match="together at most 1"):
        SeededFaults(1, rates)
