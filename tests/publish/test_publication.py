"""Checkpoints published as Iceberg tables: what PyIceberg and Polars read there is what the store has."""

import datetime
import itertools
import json
import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

import arrowstate
from arrowstate.errors import CommitUnknownError, InvalidInputError, NotFoundError, StorageError
from arrowstate.publish.held import OWN_TAGS, Holding
from arrowstate.publish.publication import Publish, Publisher
from arrowstate.publish.table import Files
from arrowstate.publish.types import plain_array
from arrowstate.storage.registry import open_storage
from arrowstate.testing import Crashed, Fault, FaultyStorage
from arrowstate.testing.faults import faults_of
from every_kind import small_files
from every_type import FLAT
from long_form import LONG, TURN, every_nth, short_or_long
from publications import FORMS, History, committed_forms, compared, compared_delta, metadata_of, shown
from stores import TOTAL, backend_of, commit, totals_from
from table_readers import by_deltalake, by_polars, by_pyiceberg


def test_what_pyiceberg_reads_is_what_the_store_has_whatever_happened_to_it(tmp_path):
    for seed in range(100) if LONG else [TURN]:
        with small_files():
            history = History(tmp_path / str(seed), seed, keys=30)
            for number in range(short_or_long(6, 10)):
                history.happen()
                publication = history.publish(3 if number % 3 else 2)
                compared(history.store, publication, by_pyiceberg, newest_only=not LONG and number < 5)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def crashed_at(store, target, number, fault, format):
    """Publish with a fault at a call of either storage; return whether there were as many calls."""
    calls = itertools.count(1)

    def choose(call):
        wanted = fault if fault in faults_of(call.verb) else Fault.FAIL_AFTER
        return wanted if next(calls) == number else None

    own, place = FaultyStorage(store.storage, choose), FaultyStorage(target, choose)
    with suppress(Crashed, StorageError, CommitUnknownError):
        Publisher(own, store.store_id, place, Publish(to=target.url, format=format, history=2)).publish()
    return own.calls + place.calls >= number


@pytest.mark.parametrize("format", ["iceberg", "delta"])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL_AFTER, Fault.TORN])
def test_after_a_publication_that_died_at_any_call_the_next_is_right_and_leaves_nothing_behind(tmp_path, fault, format):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from(rows=3000)
    commit(store, {"op": [backend]}, format="parquet")
    target = open_storage(tmp_path / "tables", create=True)
    number = 0
    while number < 10_000:
        number += 1
        if not every_nth(short_or_long(9, 1), number):
            continue
        # New rows of a run that needs a twin, and dead rows in the run before.
        backend.state(TOTAL).add_batch(pa.array(range(number % 50)), pa.array([1] * (number % 50)))
        commit(store, {"op": [backend]}, format="arrow")
        died = crashed_at(store, target, number, fault, format)
        publication = store.publish(tmp_path / "tables", format=format, history=2)
        if format == "delta":
            compared_delta(store, publication, by_deltalake, newest_only=True)
            listed = [item.number for item in shown(tmp_path / "tables/op/total")]
        else:
            compared(store, publication, by_pyiceberg, newest_only=True)
            listed = [
                int(item["summary"]["arrowstate.log-number"])
                for item in metadata_of(publication.tables[0].metadata)["snapshots"]
            ]
        assert sorted(int(tag.rpartition("-")[2]) for tag in store.tags()) == sorted(listed)
        if not died:
            break

    assert not died
    assert number > 20


def test_two_publishers_write_the_same_bytes(tmp_path):
    with small_files():
        history = History(tmp_path, 7)
        for _ in range(2):
            history.step()
            history.checkpoint()
        ways = []
        for _ in range(2):
            history.store.publish(tmp_path / "tables")
            ways.append(files_of(tmp_path / "tables"))
            shutil.rmtree(tmp_path / "tables")

    assert ways[0] == ways[1]
    assert len(ways[0]) > 20


def test_of_two_publishers_at_once_one_makes_the_version_and_both_say_so(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]})
    target = open_storage(tmp_path / "tables", create=True)
    backend = totals_from(start=5)

    def choose(call):
        # Another one publishes a newer checkpoint in the moment before the commit.
        if call.verb == "put_if_absent" and not others:
            commit(store, {"op": [backend]}, allow_dropped_state=True)
            others.append(store.publish(tmp_path / "tables"))

    others = []
    slow = Publisher(store.storage, store.store_id, FaultyStorage(target, choose), Publish(to=target.url))
    publication = slow.publish()

    assert [publication.tables[0].version, publication.tables[0].is_new] == [1, False]
    assert others[0].tables[0].is_new
    compared(store, others[0], by_pyiceberg)


def held_numbers(store):
    """The log numbers of the checkpoints that publications hold."""
    return sorted(int(tag.rpartition("-")[2]) for tag in store.tags() if tag.startswith(OWN_TAGS))


def holding_of(store, target, storage):
    """The tags of who publishes the table of totals."""
    tables = [("op", "total")]
    return Holding(storage, target, tables, is_of_all=True, clock_ms=store.clock_ms, new_id=store.new_id)


def held_tags(store, folder):
    """The tags that a publication to a folder puts."""
    before = store.tags().keys()
    store.publish(folder)
    return store.tags().keys() - before


def listed_numbers(publication):
    """The log numbers of the checkpoints that the newest version of the only table lists."""
    folder = Path(publication.tables[0].metadata.removeprefix("file://")).parent
    newest = (folder / "version-hint.text").read_text()
    snapshots = json.loads((folder / f"v{newest}.metadata.json").read_bytes())["snapshots"]
    return sorted(int(item["summary"]["arrowstate.log-number"]) for item in snapshots)


@pytest.mark.parametrize("when", ["op/total/metadata/version-hint.text", "op/total/metadata/v4.metadata.json"])
def test_a_publisher_that_saw_a_tag_which_is_removed_lists_no_checkpoint_that_another_let_go_of(tmp_path, when):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    for start in range(3):
        commit(store, {"op": [totals_from(start)]}, allow_dropped_state=True)
        if start == 0:
            store.tag("gold", 1)
        publication = store.publish(tmp_path / "tables", history=1)
    target = open_storage(tmp_path / "tables")

    def choose(call):
        if call.path == when and "gold" in store.tags():
            store.untag("gold")
            store.publish(tmp_path / "tables", history=1)

    slow = FaultyStorage(target, choose)
    Publisher(store.storage, store.store_id, slow, Publish(to=target.url, history=1)).publish()

    assert "gold" not in store.tags()
    assert listed_numbers(publication) == held_numbers(store)
    assert len(held_numbers(store)) == 1


def test_a_tag_of_the_user_is_in_the_tables_whatever_it_is_named_unless_it_is_main(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]})
    place = next(iter(held_tags(store, tmp_path / "tables"))).rpartition("-")[0]
    names = ["gold", "main", "published-gold", f"{place}-silver"]
    for name in names:
        store.tag(name, 1)
    for start in range(2):
        commit(store, {"op": [totals_from(start)]}, allow_dropped_state=True)
        publication = store.publish(tmp_path / "tables", history=1)

    refs = metadata_of(publication.tables[0].metadata)["refs"]
    assert sorted(refs) == sorted(names)
    assert [refs[name]["type"] for name in names] == ["tag", "branch", "tag", "tag"]
    assert {*names} <= store.tags().keys()
    assert compared(store, publication, by_pyiceberg) == 2


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_newest_checkpoint_that_is_collected_before_it_is_held_gives_way_to_the_next(tmp_path, format):
    """As where a job keeps one checkpoint and makes one each second."""
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]})
    target = open_storage(tmp_path / "tables", create=True)

    def choose(call):
        if call.path.startswith("tags/") and call.verb == "put_if_absent" and store.latest().checkpoint_id == 1:
            commit(store, {"op": [totals_from(5)]}, allow_dropped_state=True)
            store.collect(arrowstate.RetentionPolicy(count=1)).apply()

    own = FaultyStorage(store.storage, choose)
    publication = Publisher(own, store.store_id, target, Publish(to=target.url, format=format)).publish()

    assert (publication.checkpoint_id, publication.tables[0].checkpoint_id) == (2, 2)
    assert len(held_numbers(store)) == 1


def test_a_file_whose_answer_is_lost_is_told_as_a_storage_that_failed_and_not_as_damage(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]}, format="parquet")
    target = open_storage(tmp_path / "tables", create=True)
    lost = Fault.FAIL_AFTER
    own = FaultyStorage(
        store.storage, lambda call: lost if call.path.endswith(".parquet") and call.verb == "read" else None
    )

    with pytest.raises(StorageError, match="the answer was lost"):
        Publisher(own, store.store_id, target, Publish(to=target.url)).publish()


def test_a_tag_that_another_publisher_has_put_too_late_holds_nothing(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    target = open_storage(tmp_path / "tables", create=True)
    for start in range(3):
        commit(store, {"op": [totals_from(start)]}, allow_dropped_state=True)
    entries = list(store._log.history().checkpoints())
    # A collection that is killed when it has said what it deletes.
    dying = FaultyStorage(store.storage, lambda call: Fault.CRASH_BEFORE if call.verb == "delete" else None)
    with pytest.raises(Crashed):
        arrowstate.StateStore(dying, store.store_id).collect(arrowstate.RetentionPolicy(count=1)).apply()
    calls, answers = [], []

    def held(storage, entry):
        return holding_of(store, target, storage).hold(entry, is_needed=False)

    def choose(call):
        # The tag is there, and it was not yet looked whether it came in time.
        if calls and calls[-1].verb == "put_if_absent":
            answers.append(held(store.storage, entry))
        calls.append(call)

    for entry in entries:
        answers.append(held(FaultyStorage(store.storage, choose), entry))

    assert answers == [True, True, False, False, False, False]
    assert held_numbers(store) == [entries[0].document.number]


def test_a_publisher_lets_go_of_no_later_checkpoint_that_another_one_holds(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]})
    target = open_storage(tmp_path / "tables", create=True)
    others, stages = [], iter(["before it reads the tags", "before it removes one"])

    def choose(call):
        if call.path == "tags/" and stage[0] == "before it reads the tags":
            stage[0] = next(stages, "")
            commit(store, {"op": [totals_from(5)]}, allow_dropped_state=True)
            newest = next(store._log.history().checkpoints())
            holding_of(store, target, store.storage).hold(newest, is_needed=True)
        if call.path.startswith("tags/") and call.verb == "delete":
            others.append(store.publish(target.url))

    stage = [next(stages)]
    own = FaultyStorage(store.storage, choose)
    Publisher(own, store.store_id, target, Publish(to=target.url)).publish()
    publication = store.publish(target.url)

    assert others == []
    assert listed_numbers(publication) == held_numbers(store)
    assert len(held_numbers(store)) == 2


@pytest.mark.parametrize("faster", [["op.total"], None])
@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_slow_publisher_lists_only_what_is_held_though_a_faster_one_of_other_states_lets_go(tmp_path, format, faster):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    target = open_storage(tmp_path / "tables", create=True)
    backend = totals_from(rows=3000)
    mail = backend.state(arrowstate.ValueStateDescriptor("mail", pa.string()))

    def commit_next(number):
        mail.update_batch(list(range(3000)), [f"{number}@b"] * 3000)
        backend.state(TOTAL).add_batch(pa.array([number]), pa.array([1]))
        commit(store, {"op": [backend]}, format="parquet")

    def choose(call):
        # The slow one holds the first checkpoint, and has not listed it.
        if call.verb == "put_if_absent" and call.path.startswith("op/mail/") and not others:
            commit_next(2)
            others.append(store.publish(target.url, states=faster, history=1, format=format))

    others = []
    commit_next(1)
    asked = Publish(to=target.url, states=["op.mail"], history=1, format=format)
    publication = Publisher(store.storage, store.store_id, FaultyStorage(target, choose), asked).publish()
    store.collect(arrowstate.RetentionPolicy(count=1)).apply()

    # Who publishes that table too has made its version first.
    shown_id = 1 if faster else 2
    assert publication["op.mail"].checkpoint_id == shown_id
    rows = (by_pyiceberg if format == "iceberg" else by_deltalake)(publication["op.mail"].metadata, None)
    assert [len(rows), all(f"{shown_id}@b" in row for row in rows)] == [3000, True]
    # Who publishes all removes the tags of the others.
    commit_next(3)
    publication = store.publish(target.url, history=1, format=format)
    if format == "iceberg":
        assert [len(held_numbers(store)), compared(store, publication, by_pyiceberg)] == [1, 2]
    else:
        folders = [tmp_path / "tables/op" / name for name in ("mail", "total")]
        assert {item.number for folder in folders for item in shown(folder)} == {*held_numbers(store)}


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_publication_that_is_refused_each_time_writes_nothing_and_holds_nothing(tmp_path, format):
    stores = [arrowstate.open_store(tmp_path / name, create=True) for name in "ab"]
    commit(stores[1], {"op": [totals_from()]})
    stores[1].publish(tmp_path / "tables", format=format)
    before = files_of(tmp_path / "tables")
    backend = totals_from()

    for number in range(3):
        backend.state(TOTAL).add_batch(pa.array([number]), pa.array([1]))
        first = backend_of()
        first.state(TOTAL).add_batch(pa.array([number]), pa.array([1]))
        commit(stores[0], {"first": [first], "op": [backend]}, allow_dropped_state=True)
        with pytest.raises(InvalidInputError, match="op/total is a table of the store with the id"):
            stores[0].publish(tmp_path / "tables", format=format)

    assert files_of(tmp_path / "tables") == before
    assert held_numbers(stores[0]) == []


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_publication_that_fails_each_time_at_a_value_holds_only_what_other_tables_list(tmp_path, format):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from()
    far = backend.state(arrowstate.ValueStateDescriptor("when", pa.timestamp("s")))
    for number in range(13):
        backend.state(TOTAL).add_batch(pa.array([number]), pa.array([1]))
        if number > 9:
            far.update_batch([number], pa.array([2**55], pa.timestamp("s")))
        commit(store, {"op": [backend]})
        with suppress(InvalidInputError):
            store.publish(tmp_path / "tables", format=format, history=1)
            assert number <= 9

    with pytest.raises(InvalidInputError, match="'when' holds a value of timestamp"):
        store.publish(tmp_path / "tables", format=format, history=1)
    held = held_numbers(store)
    publication = store.publish(tmp_path / "tables", format=format, history=1, states=["op.total"])
    if format == "iceberg":
        assert held == sorted({20, *listed_numbers(publication)})
    else:
        assert held == sorted(
            {item.number for name in ("total", "when") for item in shown(tmp_path / "tables/op" / name)}
        )


def test_a_publication_of_a_collected_store_lists_only_what_is_there(tmp_path):
    with small_files():
        history = History(tmp_path, 3)
        for _ in range(4):
            history.step()
            history.checkpoint()
            publication = history.publish(3, history=2)
        history.store.collect(arrowstate.RetentionPolicy(count=1)).apply()

        # What is listed is held, so every snapshot can be read after a collection as before.
        assert compared(history.store, publication, by_polars) == 2 * len(publication.tables)


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_kept_publisher_goes_on_after_a_backup_took_the_place_of_the_store(tmp_path, format):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from()
    commit(store, {"op": [backend]})
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    target = open_storage(tmp_path / "tables", create=True)
    publisher = Publisher(store.storage, store.store_id, target, Publish(to=target.url, format=format))
    for number in range(2):
        backend.state(TOTAL).add_batch(pa.array([number]), pa.array([1]))
        commit(store, {"op": [backend]})
        publisher.publish()

    shutil.rmtree(tmp_path / "store")
    (tmp_path / "backup").rename(tmp_path / "store")

    assert publisher.publish().tables[0].checkpoint_id == 1
    restored = store.latest().restore("op")
    restored.state(TOTAL).add_batch(pa.array([7]), pa.array([1]))
    commit(arrowstate.open_store(store.url), {"op": [restored]})
    assert publisher.publish().tables[0].checkpoint_id == 2


def test_a_store_that_was_moved_is_published_again_and_its_old_paths_are_listed_no_more(tmp_path):
    commit(arrowstate.open_store(tmp_path / "a", create=True), {"op": [totals_from()]}, format="parquet")
    arrowstate.open_store(tmp_path / "a").publish(tmp_path / "tables")
    (tmp_path / "a").rename(tmp_path / "b")
    store = arrowstate.open_store(tmp_path / "b")

    publication = store.publish(tmp_path / "tables")

    assert compared(store, publication, by_pyiceberg) == 1
    assert str(tmp_path / "a") not in json.dumps(metadata_of(publication.tables[0].metadata)["snapshots"])


def test_the_place_of_another_store_or_version_and_one_in_the_store_are_refused(tmp_path):
    stores = [arrowstate.open_store(tmp_path / name, create=True) for name in "ab"]
    for store in stores:
        commit(store, {"op": [totals_from()]})
    stores[0].publish(tmp_path / "tables")
    before = files_of(tmp_path)

    with pytest.raises(InvalidInputError, match="is a table of the store with the id"):
        stores[1].publish(tmp_path / "tables")
    with pytest.raises(InvalidInputError, match="is a table of Iceberg version 3, asked for was version 2"):
        stores[0].publish(tmp_path / "tables", version=2)
    in_memory = arrowstate.open_store("memory://unpublished", create=True)
    commit(in_memory, {"op": [totals_from()]})
    with pytest.raises(InvalidInputError, match="would name files in the memory of this process"):
        in_memory.publish(tmp_path / "tables")
    with pytest.raises(InvalidInputError, match="in two folders, neither inside the other"):
        stores[0].publish(tmp_path / "a" / "tables")
    with pytest.raises(NotFoundError, match=r"no state 'op\.totl' to publish; checkpoint 1 has op\.total"):
        stores[0].publish(tmp_path / "tables", states=["op.totl"])
    (tmp_path / "a" / "tables").rmdir()
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_tables_of_others_in_the_place_are_left_alone_and_hold_no_checkpoint(tmp_path, format):
    stores = [arrowstate.open_store(tmp_path / name, create=True) for name in "ab"]
    for store, uid in zip(stores, ["op", "other"], strict=True):
        commit(store, {uid: [totals_from()]})
        store.publish(tmp_path / "tables", format=format)
    foreign = tmp_path / "tables/sales/orders"
    if format == "delta":
        write_deltalake(foreign, pa.table({"amount": [1]}))
    else:
        (foreign / "metadata").mkdir(parents=True)
        (foreign / "metadata/v1.metadata.json").write_text('{"format-version":2,"properties":{}}')
    before = {name: data for name, data in files_of(tmp_path / "tables").items() if not name.startswith("op/")}

    for states in (None, ["op.total"]):
        for _ in range(12):
            commit(stores[0], {"op": [totals_from()]})
        publication = stores[0].publish(tmp_path / "tables", format=format, history=1, states=states)

    assert [table.operator for table in publication.tables] == ["op"]
    after = files_of(tmp_path / "tables")
    assert {name: data for name, data in after.items() if not name.startswith("op/")} == before
    listed = 1 if format == "iceberg" else len(shown(tmp_path / "tables/op/total"))
    assert len(stores[0].tags()) == listed
    backend = backend_of()
    backend.state(arrowstate.ReducingStateDescriptor("orders", pa.int64(), reduce="sum"))
    commit(stores[0], {"sales": [backend]}, allow_dropped_state=True)
    with pytest.raises(InvalidInputError, match="sales/orders is a table that no store has published"):
        stores[0].publish(tmp_path / "tables", format=format)


@pytest.mark.parametrize("states", [["op.mail"], None])
@pytest.mark.parametrize("first", ["iceberg", "delta"])
def test_a_place_with_a_table_of_the_other_format_is_refused_though_it_is_of_another_state(tmp_path, first, states):
    """The tables of a store in a place share their tags: one of them would let go of what the other lists."""
    second = {"iceberg": "delta", "delta": "iceberg"}[first]
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]})
    store.publish(tmp_path / "tables", states=["op.total"], format=first)
    backend = backend_of()
    backend.state(arrowstate.ValueStateDescriptor("mail", pa.string())).update_batch([1], ["a@b"])
    # The state of the first table is dropped.
    commit(store, {"op": [backend]}, allow_dropped_state=True)
    before = files_of(tmp_path)

    with pytest.raises(InvalidInputError, match="op/total has a table of another format; publish to another place"):
        store.publish(tmp_path / "tables", states=states, format=second)

    assert files_of(tmp_path) == before
    shutil.rmtree(tmp_path / "tables/op/total")
    publication = store.publish(tmp_path / "tables", states=states, format=second)
    assert [table.state for table in publication.tables] == ["mail"]
    # Who publishes all removes the tags of the folder that was deleted.
    store.publish(tmp_path / "tables", format=second)
    assert len(held_numbers(store)) == 1


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_rows_of_every_earlier_schema_are_read_in_the_newest(tmp_path, format, version):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    for _ in committed_forms(store, format):
        publication = store.publish(tmp_path / "tables", version=version)

    assert compared(store, publication, by_pyiceberg) == len(FORMS)
    assert compared(store, publication, by_polars) == len(FORMS)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_every_type_is_read_as_it_is_or_as_its_column_says(tmp_path, version, format):
    given = {kind: value for kind, value in FLAT.items() if format == "arrow" or not pa.types.is_null(kind)}
    fields = [pa.field(f"a b\"{number}'", kind) for number, kind in enumerate(given)]
    nested = pa.struct([("in", pa.list_(pa.struct([("s", pa.duration("s")), ("n", pa.uint64())])))])
    kind = pa.struct([*fields, pa.field("m", pa.map_(pa.string(), pa.float16())), pa.field("n", nested)])
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of()
    value = dict(zip([item.name for item in fields], given.values(), strict=True))
    value |= {"m": [("k", 1.5)], "n": {"in": [{"s": datetime.timedelta(5), "n": 2**63}, None]}}
    state = backend.state(arrowstate.ValueStateDescriptor("every-type", kind))
    state.update_batch([1, 2, 3], pa.array([value, dict.fromkeys(value), value], kind))
    with small_files():
        # A run inside the manifest has a twin in any case.
        commit(store, {"op.1": [backend]}, format=format)

    publication = store.publish(tmp_path / "tables", version=version)

    assert compared(store, publication, by_pyiceberg) == 1
    assert compared(store, publication, by_polars) == 1
    docs = {
        item["name"]: item.get("doc") for item in metadata_of(publication.tables[0].metadata)["schemas"][0]["fields"]
    }
    by_type = {str(item.type): docs[item.name] for item in fields}
    assert by_type["bool"] is None
    assert by_type["timestamp[ns]"] == "timestamps of nanoseconds, cut to microseconds"
    assert by_type["uint64"] == "uint64 as decimal128(20, 0)"


def test_a_type_that_no_table_has_is_refused_by_its_column_before_anything_is_written(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from()
    backend.state(arrowstate.ValueStateDescriptor("debt", pa.decimal256(60, 2)))
    commit(store, {"op": [backend]})

    with pytest.raises(
        InvalidInputError, match=r"^debt has the type decimal256\(60, 2\), for which open tables have none"
    ):
        store.publish(tmp_path / "tables")

    assert files_of(tmp_path / "tables") == {}
    assert compared(store, store.publish(tmp_path / "tables", states=["op.total"]), by_pyiceberg) == 1


def test_engines_prune_by_the_hash_of_the_key(tmp_path):
    from pyiceberg.expressions import GreaterThan
    from pyiceberg.table import StaticTable

    store = arrowstate.open_store(tmp_path / "store", create=True)
    backends = [
        backend_of(key_groups=arrowstate.key_group_range(128, parallelism=4, subtask=subtask)) for subtask in range(4)
    ]
    keys = pa.array(range(20_000))
    for backend in backends:
        low, high = backend.key_groups.hash_bounds(128)
        hashes = pc.and_(
            pc.greater_equal(arrowstate.key_hash(keys), low), pc.less_equal(arrowstate.key_hash(keys), high)
        )
        own = keys.filter(hashes)
        backend.state(TOTAL).add_batch(own, own)
    commit(store, {"op": backends}, format="parquet")
    table = StaticTable.from_metadata(store.publish(tmp_path / "tables").tables[0].metadata)

    above = table.scan(row_filter=GreaterThan("_key_hash", 2**62))

    # Row groups are offsets at which Spark splits, and cost nothing to open.
    assert int(table.properties["read.split.open-file-cost"]) < 1 << 20
    assert len(list(table.scan().plan_files())) == 4
    assert len(list(above.plan_files())) == 1
    assert above.to_arrow().num_rows == pc.sum(pc.greater(arrowstate.key_hash(keys), 2**62)).as_py()


def test_rows_keep_their_row_ids_while_their_file_lives(tmp_path):
    with small_files():
        history = History(tmp_path, 5)
        for _ in range(6):
            history.step()
            history.checkpoint()
            tables = history.publish(3, history=10).tables
    for table in tables:
        metadata = metadata_of(table.metadata)
        target = Files(open_storage(tmp_path / "tables-3"))
        ids: dict[str, int] = {}
        rows: dict[str, int] = {}
        for snapshot in metadata["snapshots"]:
            for manifest in target.manifests(snapshot):
                for entry in target.entries(manifest)[0] if manifest["content"] == 0 else ():
                    file = entry["data_file"]
                    first = ids.setdefault(file["file_path"], file["first_row_id"])
                    assert file["first_row_id"] == first
                    rows[file["file_path"]] = file["record_count"]
        ranges = sorted((first, first + rows[path]) for path, first in ids.items())
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
        assert max((end for _, end in ranges), default=0) <= metadata["next-row-id"]


def test_the_lowest_time_of_nanoseconds_is_cut_as_others():
    given = pa.array([-(2**63) + 1, -1, None], pa.int64())

    shown = plain_array(given.cast(pa.timestamp("ns")), pa.timestamp("us"), "state")

    assert shown.cast(pa.int64()).to_pylist() == [-(2**63) // 1000, -1, None]
