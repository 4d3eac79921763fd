"""Checkpoints published as Delta tables: what readers of Delta have at each version is what the store has."""

import datetime
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.publish.publication import Publish, Publisher
from arrowstate.storage.registry import open_storage
from arrowstate.testing import FaultyStorage
from early_versions import is_before
from every_kind import small_files
from every_type import FLAT
from long_form import LONG, TURN, short_or_long
from publications import FORMS, History, committed_forms, compared_delta, shown
from stores import TOTAL, backend_of, commit, totals_from
from table_readers import by_deltalake, by_polars_delta


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def published(store, folder, **options):
    return store.publish(folder, format="delta", **options)


def test_what_deltalake_reads_is_what_the_store_has_whatever_happened_to_it(tmp_path):
    for seed in range(20) if LONG else [TURN]:
        with small_files():
            history = History(tmp_path / str(seed), seed, keys=30)
            for number in range(short_or_long(4, 12)):
                history.happen()
                publication = history.publish(3 if number % 3 else 2, format="delta")
                # Nothing that is listed may be gone: the tags of the publication hold it.
                compared_delta(history.store, publication, by_deltalake, newest_only=not LONG and number < 3)
            compared_delta(history.store, publication, by_polars_delta, newest_only=True)


def test_two_publishers_write_the_same_bytes(tmp_path):
    for name in ("once", "again"):
        (tmp_path / name).mkdir()
    with small_files():
        history = History(tmp_path, 7)
        backend = totals_from(rows=20)
        store = arrowstate.open_store(tmp_path / "other", create=True)
        for number in range(12):
            backend.state(TOTAL).add_batch(pa.array([number % 20]), pa.array([1]))
            commit(store, {"total": [backend]})
            history.step()
            history.checkpoint()
            for name in ("once", "again"):
                (tmp_path / name).rename(tmp_path / "tables")
                published(store, tmp_path / "tables/other", history=1)
                if number < 2:
                    published(history.store, tmp_path / "tables/store", history=1)
                (tmp_path / "tables").rename(tmp_path / name)
    ways = [files_of(tmp_path / name) for name in ("once", "again")]

    assert ways[0] == ways[1]
    assert len(ways[0]) > 60
    assert "other/total/total/_delta_log/00000000000000000010.checkpoint.parquet" in ways[0]


@pytest.mark.skipif(
    is_before("deltalake", (1, 6, 6)), reason="an early reader takes other rows of a large file for dead"
)
def test_a_version_costs_what_has_changed_and_nothing_new_costs_nothing(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from(rows=50_000)
    commit(store, {"op": [backend]}, format="parquet")
    published(store, tmp_path / "tables")
    first = files_of(tmp_path / "tables")
    backend.state(TOTAL).add_batch(pa.array(range(100)), pa.array([1] * 100))
    commit(store, {"op": [backend]}, format="parquet")

    publication = published(store, tmp_path / "tables")
    second = files_of(tmp_path / "tables")
    third = published(store, tmp_path / "tables")

    assert {path: data for path, data in second.items() if path in first} == first
    assert sum(len(second[path]) for path in second.keys() - first.keys()) < sum(map(len, first.values())) / 10
    assert compared_delta(store, publication, by_deltalake) == 2
    assert (third.bytes_written, third.tables[0].is_new) == (0, False)
    assert files_of(tmp_path / "tables") == second


@pytest.mark.parametrize("version", [3, 2])
def test_versions_go_before_their_files_and_leave_nothing(tmp_path, version):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from(rows=20)
    folder = tmp_path / "tables/op/total"
    readable, needed = [], {}
    for number in range(33):
        backend.state(TOTAL).add_batch(pa.array([number % 4, 100 + number]), pa.array([1, 1]))
        commit(store, {"op": [backend]}, format="parquet")
        published(store, tmp_path / "tables", history=3, version=version)
        versions = shown(folder)
        readable.append(len(versions))
        needed |= {item.version: item.files for item in versions}
        there = {path for path in files_of(folder) if not path.startswith("_delta_log/")}
        assert set().union(*(item.files for item in versions)) <= there
        tagged = sorted(int(tag.rpartition("-")[2]) for tag in store.tags())
        assert tagged == [item.number for item in versions]

    # Versions go ten at a time, and what they had goes with the ten after them.
    assert (max(readable), min(readable[3:])) == (12, 3)
    assert versions[0].version == 30
    assert there == set().union(*(files for version, files in needed.items() if version >= 20))
    assert not needed[9] <= there
    assert (
        compared_delta(store, published(store, tmp_path / "tables", version=version), by_polars_delta) == readable[-1]
    )


@pytest.mark.parametrize("version", [3, 2])
def test_the_files_of_a_state_that_was_dropped_go_with_the_versions_after_those_that_had_them(tmp_path, version):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from(rows=20)
    backend.state(arrowstate.ValueStateDescriptor("mail", pa.string())).update_batch([1, 2], ["a@b", "c@d"])
    folder, left = tmp_path / "tables/op/mail", []
    for number in range(40):
        if number == 4:
            backend = totals_from(rows=20)
        if number == 2:
            backend.state(arrowstate.ValueStateDescriptor("mail", pa.string())).update_batch([1], ["e@f"])
        backend.state(TOTAL).add_batch(pa.array([number]), pa.array([1]))
        commit(store, {"op": [backend]}, allow_dropped_state=True)
        published(store, tmp_path / "tables", history=3, version=version)
        left.append(len([path for path in files_of(folder) if not path.startswith("_delta_log/")]))
    versions = shown(folder)

    # The versions before 10 go when there are three from there on, and their files when there are three from 20 on.
    assert [left.index(0), left[21] > 0] == [22, True]
    assert versions[-1].version == 22
    assert all(not item.files for item in versions)
    assert len(store.tags()) == len(shown(tmp_path / "tables/op/total"))


def test_of_two_publishers_at_once_one_makes_the_version_and_the_other_the_next(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]})
    target = open_storage(tmp_path / "tables", create=True)
    backend = totals_from(start=5)

    def choose(call):
        # Another one publishes a newer checkpoint in the moment before the commit.
        if call.verb == "put_if_absent" and not others:
            commit(store, {"op": [backend]}, allow_dropped_state=True)
            others.append(published(store, tmp_path / "tables"))

    others = []
    asked = Publish(to=target.url, format="delta")
    publication = Publisher(store.storage, store.store_id, FaultyStorage(target, choose), asked).publish()

    assert [publication.tables[0].version, publication.tables[0].is_new] == [0, False]
    assert others[0].tables[0].is_new
    assert compared_delta(store, others[0], by_deltalake) == 1


def test_a_kept_publisher_goes_on_from_what_others_publish_and_from_a_folder_that_was_deleted(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from()
    target = open_storage(tmp_path / "tables", create=True)
    kept = Publisher(store.storage, store.store_id, target, Publish(to=target.url, format="delta"))
    for number in range(4):
        backend.state(TOTAL).add_batch(pa.array([number]), pa.array([1]))
        commit(store, {"op": [backend]})
        if number % 2:
            published(store, tmp_path / "tables")
        publication = kept.publish()
    assert [item.version for item in shown(tmp_path / "tables/op/total")] == [0, 1, 2, 3]
    shutil.rmtree(tmp_path / "tables")
    (tmp_path / "tables").mkdir()

    publication = kept.publish()

    assert publication.tables[0].version == 0
    assert compared_delta(store, publication, by_deltalake) == 1
    assert len(store.tags()) == 1


def test_a_table_moves_with_its_folder_and_needs_no_store(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from(rows=100)
    for number in range(3):
        backend.state(TOTAL).add_batch(pa.array([number]), pa.array([1]))
        commit(store, {"op": [backend]}, format="parquet")
        published(store, tmp_path / "tables")
    (tmp_path / "tables").rename(tmp_path / "moved")
    store.collect(arrowstate.RetentionPolicy(count=1)).apply()
    before = by_deltalake(f"file://{tmp_path}/moved/op/total", 1)

    backend.state(TOTAL).add_batch(pa.array([7]), pa.array([1]))
    commit(store, {"op": [backend]}, format="parquet")
    publication = published(store, tmp_path / "moved")

    assert publication.tables[0].version == 3
    assert by_deltalake(publication.tables[0].metadata, 1) == before
    assert compared_delta(store, publication, by_polars_delta, newest_only=True) == 1


@pytest.mark.parametrize("version", [3, 2])
@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_rows_of_every_earlier_schema_are_read_by_name(tmp_path, format, version):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    for _ in committed_forms(store, format):
        publication = published(store, tmp_path / "tables", version=version)

    assert compared_delta(store, publication, by_deltalake) == len(FORMS)
    assert compared_delta(store, publication, by_polars_delta) == len(FORMS)


@pytest.mark.parametrize("version", [3, 2])
def test_a_column_that_has_the_name_of_an_earlier_one_shows_no_value_of_that(tmp_path, version):
    both, one = (pa.struct([(name, pa.int64()) for name in names]) for names in ("ab", "a"))
    forms = ((both, None), (one, arrowstate.SchemaEvolution(dropped=["b"])), (both, None))
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of()
    for number, (form, evolution) in enumerate(forms):
        state = backend.state(arrowstate.ValueStateDescriptor("pair", form, evolution=evolution))
        state.update_batch([number], pa.array([{"a": number, "b": 100}], form))
        commit(store, {"op": [backend]})
        publication = published(store, tmp_path / "tables", version=version)
        backend = store.latest().restore("op")

    assert compared_delta(store, publication, by_deltalake) == len(forms)


@pytest.mark.parametrize("version", [3, 2])
def test_a_column_that_was_renamed_and_nothing_else_keeps_its_values(tmp_path, version):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of()
    for number, name in enumerate("abcb"):
        evolution = arrowstate.SchemaEvolution(renamed={"abcb"[number - 1]: name}) if number else None
        form = pa.struct([(name, pa.int64())])
        state = backend.state(arrowstate.ValueStateDescriptor("one", form, evolution=evolution))
        state.update_batch([number], pa.array([{name: number}], form))
        commit(store, {"op": [backend]})
        publication = published(store, tmp_path / "tables", version=version)
        backend = store.latest().restore("op")

    assert compared_delta(store, publication, by_deltalake) == 4


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_every_type_is_read_as_it_is_or_as_its_column_says(tmp_path, format):
    given = {kind: value for kind, value in FLAT.items() if format == "arrow" or not pa.types.is_null(kind)}
    fields = [pa.field(f"a-\"{number}'", kind) for number, kind in enumerate(given)]
    nested = pa.struct([("in", pa.list_(pa.struct([("s", pa.duration("s")), ("n", pa.uint64())])))])
    kind = pa.struct([*fields, pa.field("m", pa.map_(pa.string(), pa.float16())), pa.field("n", nested)])
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = backend_of()
    value = dict(zip([item.name for item in fields], given.values(), strict=True))
    value |= {"m": [("k", 1.5)], "n": {"in": [{"s": datetime.timedelta(5), "n": 2**63}, None]}}
    state = backend.state(arrowstate.ValueStateDescriptor("every-type", kind))
    state.update_batch([1, 2, 3], pa.array([value, dict.fromkeys(value), value], kind))
    with small_files():
        commit(store, {"op.1": [backend]}, format=format)

    publication = published(store, tmp_path / "tables")

    assert compared_delta(store, publication, by_deltalake) == 1
    assert compared_delta(store, publication, by_polars_delta) == 1
    commits = (tmp_path / "tables/op.1/every-type/_delta_log/00000000000000000000.json").read_text().splitlines()
    schema = json.loads(next(json.loads(line)["metaData"] for line in commits if "metaData" in line)["schemaString"])
    comments = {item["name"]: item["metadata"].get("comment") for item in schema["fields"]}
    by_type = {str(item.type): comments[item.name] for item in fields}
    assert by_type["int8"] is None
    assert by_type["time32[ms]"] == "time32[ms] as whole numbers of ms"
    assert by_type["timestamp[ns]"] == "timestamps of nanoseconds, cut to microseconds"


def test_what_cannot_be_published_is_refused_before_anything_is_written(tmp_path):
    stores = [arrowstate.open_store(tmp_path / name, create=True) for name in "ab"]
    for store in stores:
        commit(store, {"op": [totals_from()]})
    published(stores[0], tmp_path / "tables")
    stores[0].publish(tmp_path / "iceberg")
    named = arrowstate.open_store(tmp_path / "named", create=True)
    backend = totals_from()
    backend.state(arrowstate.ValueStateDescriptor("at", pa.struct([("of day", pa.int64())])))
    commit(named, {"op": [backend]})
    before = files_of(tmp_path)

    with pytest.raises(InvalidInputError, match="is a table of the store with the id"):
        published(stores[1], tmp_path / "tables")
    with pytest.raises(InvalidInputError, match="is a table with deletion vectors, asked for was version 2"):
        published(stores[0], tmp_path / "tables", version=2)
    for place, format in (("tables", "iceberg"), ("iceberg", "delta")):
        with pytest.raises(InvalidInputError, match="has a table of another format; publish to another place"):
            stores[0].publish(tmp_path / place, format=format)
    with pytest.raises(InvalidInputError, match=r"op\.at has the column 'of day', and a name in Delta has no space"):
        published(named, tmp_path / "names")
    with pytest.raises(InvalidInputError, match="the format of a publication is 'iceberg' or 'delta', got 'hudi'"):
        stores[0].publish(tmp_path / "names", format="hudi")
    (tmp_path / "names").rmdir()
    assert files_of(tmp_path) == before


def test_a_table_that_somebody_else_has_written_to_is_refused_and_one_that_is_damaged_is_said_to_be(tmp_path):
    from deltalake import DeltaTable

    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]})
    for name in ("deleted", "damaged"):
        published(store, tmp_path / name)
    DeltaTable(str(tmp_path / "deleted/op/total")).delete()
    log = tmp_path / "damaged/op/total/_delta_log/00000000000000000000.json"
    log.write_bytes(log.read_bytes().replace(b'"numRecords', b'"numrecords').replace(b"numRecords", b"numrecords"))

    with pytest.raises(InvalidInputError, match="version 1 of .* was written by somebody else"):
        published(store, tmp_path / "deleted")
    with pytest.raises(CorruptDataError, match="it does not match its checksum"):
        published(store, tmp_path / "damaged")
