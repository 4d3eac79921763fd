"""A log that lacks entries which something names, and files of strange names beside those of the log."""

import warnings

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import CheckpointNotFoundError, CorruptDataError, InvalidInputError, NotFoundError
from arrowstate.files.verification import verify_log
from arrowstate.log.boundary import boundaries, number_of, path_of
from arrowstate.log.commit_log import CommitLog
from storages import Hooked
from stores import commit, ids

COUNTS = arrowstate.ReducingStateDescriptor("counts", pa.int64(), reduce="sum")


def backend_of(start):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=8)
    backend.state(COUNTS).add_batch(range(start, start + 3), [1, 1, 1])
    return backend


@pytest.fixture
def store(request):
    """A store with the entries 1 to 5: a fence and four checkpoints."""
    store = arrowstate.open_store(f"memory://lost-entries/{request.node.name}", create=True)
    with store.writer() as writer:
        for start in range(4):
            writer.checkpoint({"op": [backend_of(start)]}, properties={"start": start})
    return store


def lose(store, number):
    data = store.storage.read(path_of(number))
    store.storage.delete(path_of(number))
    return data


def collected(store, tag=None):
    if tag is not None:
        store.tag("kept", tag)
    store.collect().apply()


@pytest.mark.parametrize("tag", [None, 1])
def test_a_log_without_the_entry_that_it_begins_with_is_an_error_for_all_and_never_an_endless_loop(store, tag):
    collected(store, tag)
    (statement,) = boundaries(store.storage)
    lose(store, 5)

    for call in (store.latest, store.writer, store.checkpoints, store.compact, lambda: store.sql("select 1")):
        with pytest.raises(CorruptDataError, match="lost entries") as caught:
            call()
        assert caught.value.path == path_of(5)
        assert statement.path in str(caught.value)
        assert "latest_whole()" in str(caught.value)
    with pytest.raises(CorruptDataError, match=path_of(5)):
        store.collect()
    assert path_of(5) in store.verify().problems[0]
    assert store.diagnose()


def test_what_only_a_tag_kept_can_be_read_when_the_rest_of_the_log_is_lost(store):
    collected(store, tag=1)
    lose(store, 5)

    with pytest.warns(RuntimeWarning, match=path_of(5)):
        whole = store.latest_whole()

    assert whole.properties == {"start": 0}
    assert store.snapshot(1).restore("op").state(COUNTS).get_batch([0]).to_pylist() == [1]
    assert store.savepoint("saved", checkpoint=1).to_arrow("op.counts").num_rows == 3
    assert f"arrowstate savepoint {store.url} NEW_FOLDER --checkpoint 1" in store.diagnose()[0]


def test_a_checkpoint_is_found_by_an_id_that_is_no_number_although_the_newest_entries_are_lost(store):
    writer = store.writer()
    backends = {"op": [backend_of(9)]}
    with writer.coordinator(backends) as coordinator:
        for _ in range(2):
            checkpoint_id = coordinator.trigger().result().checkpoint_id
    entry = store.snapshot(checkpoint_id).entry
    writer.checkpoint(backends)
    store.tag("kept", checkpoint_id)
    store.collect().apply()
    lose(store, entry.number + 1)

    assert CommitLog(store.storage).checkpoint(checkpoint_id) == entry
    with pytest.raises(CorruptDataError, match="lost entries"):
        CommitLog(store.storage).checkpoint(77)


def test_readers_say_that_the_newest_entry_is_lost_and_verify_and_diagnose_name_it(store):
    lose(store, 5)

    with pytest.warns(RuntimeWarning, match=r"_latest names this one, and the newest there is log/0{19}4.json"):
        assert store.latest().properties == {"start": 2}
    problems = store.verify().problems
    assert len(problems) == 1
    assert path_of(5) in problems[0]
    assert "_latest" in problems[0]
    assert any("accept_loss=True" in proposal for proposal in store.diagnose())


def test_no_writer_gives_the_number_of_a_lost_entry_again_until_it_is_told_to(store):
    place = store.savepoint(f"{store.url}-saved").storage.url
    collection = store.collect(arrowstate.RetentionPolicy(count=2))
    lose(store, 5)
    listed = store.storage.list("")

    for call in (store.writer, store.collect, collection.apply, store.compact, lambda: store.import_savepoint(place)):
        with pytest.raises(CorruptDataError, match="accept_loss=True"):
            call()
    assert [path for path in store.storage.list("") if not path.startswith("gc/condemned-")] == listed


def test_a_writer_that_accepts_the_loss_goes_on_and_the_store_is_whole(store):
    lose(store, 5)

    with pytest.warns(RuntimeWarning, match="lost"):
        writer = store.writer(accept_loss=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writer.checkpoint({"op": [backend_of(7)]}, properties={"start": 7})

        assert store.latest().properties == {"start": 7}
        assert store.verify(deep=True).problems == []
        assert store.collect().plan.boundary == 6


@pytest.mark.parametrize("lost", [(5,), (4, 5)])
def test_a_tag_never_names_another_checkpoint_that_was_given_the_id_again(store, lost):
    store.tag("gold", 4)
    for number in lost:
        lose(store, number)
    with pytest.warns(RuntimeWarning, match="lost"):
        writer = store.writer(accept_loss=True)

    with pytest.raises(CheckpointNotFoundError, match="no checkpoint 4"):
        store.snapshot("gold")
    for _ in lost:
        writer.checkpoint({"op": [backend_of(7)]})
    with pytest.raises(NotFoundError, match="the checkpoint 4 that the tag 'gold' holds is gone"):
        store.snapshot("gold")
    assert store.latest().checkpoint_id == 4


def test_a_log_that_lost_every_entry_is_no_new_store(store):
    for number in range(1, 6):
        lose(store, number)

    assert "5 log entries are missing" in "".join(store.verify().problems) or path_of(5) in store.verify().problems[0]
    with pytest.raises(CorruptDataError, match="the log has no entry"):
        store.writer()


def test_entries_that_are_put_back_end_the_loss(store):
    collected(store)
    data = lose(store, 5)
    store.storage.put_hint(path_of(5), data)

    assert store.latest().properties == {"start": 3}
    assert store.verify(deep=True).problems == []


@pytest.mark.parametrize("bytes_of_it", [b"", b"{}"])
def test_a_stray_file_among_the_statements_of_collections_is_named_and_what_is_whole_is_found(store, bytes_of_it):
    stray = f"gc/boundary-{99:020d}-{0:020d}-x.json"
    store.storage.put_hint(stray, bytes_of_it)

    with pytest.raises(CorruptDataError, match=stray):
        store.latest()
    with pytest.raises(CorruptDataError, match=stray):
        store.writer()
    assert any(stray in problem for problem in store.verify().problems)
    assert any("move the files" in proposal for proposal in store.diagnose())
    with pytest.warns(RuntimeWarning, match=stray):
        assert store.latest_whole().properties == {"start": 3}


OTHER_DIGIT = "\N{ARABIC-INDIC DIGIT ONE}"
STRANGE = [
    "log/0000000000000000000\N{SUPERSCRIPT TWO}.json",
    f"log/{OTHER_DIGIT * 20}.json",
    "log/99999999999999999999.json",
    "log/notes.txt",
    "log/deeper/00000000000000000009.json",
    "manifests/notes.txt",
    "data/notes.txt",
]
IN_THE_WAY = [
    "gc/notes.txt",
    f"gc/boundary-{OTHER_DIGIT * 20}-{0:020d}-x.json",
    "tags/notes.txt",
    "tags/\N{SUPERSCRIPT TWO}x.json",
    "leases/notes.txt",
    "leases/deeper/x.json",
]


@pytest.mark.parametrize("name", STRANGE)
def test_a_file_of_a_strange_name_is_passed_over(store, name):
    store.storage.put_hint(name, b"")

    assert store.latest().properties == {"start": 3}
    assert store.verify().problems == []
    collection = store.collect()
    assert name in collection.plan.foreign
    collection.apply()
    assert store.storage.exists(name)
    assert ids(store) == [4]
    store.writer()


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_a_file_of_a_strange_name_where_roots_are_stops_collections_alone(store, name):
    collected(store, tag=2)
    store.storage.put_hint(name, b"")

    assert store.latest().properties == {"start": 3}
    assert ids(store) == [2, 4]
    assert store.tags() == {"kept": 2}
    assert any(name in problem for problem in store.verify().problems)
    assert any("move the files" in proposal for proposal in store.diagnose())
    with pytest.raises(CorruptDataError, match="nothing is") as caught:
        store.collect()
    assert caught.value.path == name
    store.writer()
    store.untag("kept")


def test_one_file_of_a_large_number_takes_no_memory_for_those_before_it(store):
    store.storage.put_hint(path_of((1 << 63) - 1), b"")

    problems = store.verify().problems

    assert len(problems) == 2
    assert f"{(1 << 63) - 7} log entries are missing" in problems[1]
    assert verify_log(store.storage).checkpoints[0].document.number == 5


def test_only_the_digits_0_to_9_are_a_number():
    assert number_of(path_of(17)) == 17
    assert number_of(path_of((1 << 63) - 1)) == (1 << 63) - 1
    for name in (
        "log/0000000000000000000\N{SUPERSCRIPT TWO}.json",
        f"log/{OTHER_DIGIT * 20}.json",
        path_of(1 << 63),
        "log/1.json",
        "x",
    ):
        assert number_of(name) is None


def go_on_and_collect(store):
    commit(store, {"op": [backend_of(50)]}, properties={"start": 50})
    store.collect().apply()


def test_a_look_at_the_log_beside_a_collection_finds_no_damage(store):
    beside = Hooked(store.storage).act_before("list", "log/", lambda: go_on_and_collect(store))

    check = verify_log(beside)

    assert (check.problems, check.beside, check.lost) == ([], [], None)
    assert [entry.document.number for entry in check.checkpoints] == [7]


def test_two_processes_that_make_a_store_at_once_get_the_same_store(request):
    url = f"memory://lost-entries/{request.node.name}"
    other = []
    storage = arrowstate.storage.open_storage(url, create=True)

    def create():
        store = arrowstate.open_store(url, create=True)
        store.writer()
        other.append(store.store_id)

    beside = Hooked(storage).act_before("list", "", create)

    document = arrowstate.log.entries.create_store(beside, "mine", 0)

    assert [document.store_id] == other


def test_a_place_with_other_files_is_still_no_place_for_a_store(request):
    storage = arrowstate.storage.open_storage(f"memory://lost-entries/{request.node.name}", create=True)
    storage.put_hint("report.csv", b"")

    with pytest.raises(InvalidInputError, match=r"report.csv"):
        arrowstate.log.entries.create_store(storage, "mine", 0)
