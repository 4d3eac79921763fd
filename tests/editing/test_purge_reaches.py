"""Where a purge says that it is done, nothing that was deleted is left in a byte of the store; otherwise it says where.

Every file is decoded: Arrow, Parquet and Lance, deletion vectors and what is inline in documents.
"""

import io
import json
import shutil
from contextlib import suppress

import lance.file
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

import arrowstate
from arrowstate_formats.documents import decode_inline
from every_kind import small_files
from stores import USER, commit, texts_of
from table_readers import by_deltalake

SECRET = "ann-of-the-lake"
MAIL = arrowstate.ValueStateDescriptor("mail", pa.string())
SEEN = arrowstate.OperatorListStateDescriptor("seen", pa.string())
ROWS = arrowstate.OperatorListStateDescriptor("rows", pa.struct({"user": pa.string(), "total": pa.int64()}))
DAY = 86_400_000


def decoded(data, path):
    """All that a file says, as bytes: its own, and those of its rows and statistics."""
    yield data
    if data.startswith(b"{"):
        document = None
        with suppress(ValueError):  # a short text may look like base64 of anything
            document = json.loads(data)
        for text in texts_of(document):
            yield text.encode()
            with suppress(arrowstate.errors.CorruptDataError):
                yield from decoded(decode_inline(text, path=path), path)
    elif data.startswith(b"ARROW1"):
        yield repr(pa.ipc.open_file(data).read_all().to_pylist()).encode()
    elif data.startswith(b"PAR1"):
        file = pq.ParquetFile(io.BytesIO(data))
        yield repr((file.read().to_pylist(), file.metadata.to_dict())).encode()


def holders(folder):
    """The files below a folder that hold the name of the user."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        parts = list(decoded(path.read_bytes(), path.name))
        if path.suffix == ".lance":
            parts.append(repr(lance.file.LanceFileReader(str(path)).read_all().to_table().to_pylist()).encode())
        found += [str(path.relative_to(folder))] if any(SECRET.encode() in part for part in parts) else []
    return found


def fill(folder, *, operators=(), properties=None, format="arrow", before=lambda store: None, **options):
    """A store with two checkpoints: the rows of ten users, one of whom is to go."""
    store = arrowstate.open_store(folder, create=True)
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=8)
    users = pa.array([*(f"user-{number}" for number in range(9)), SECRET])
    beside = {}
    for uid, descriptor, rows in operators:
        own = arrowstate.OperatorStateBackend()
        own.state(descriptor).extend(pa.array(rows, descriptor.type))
        beside[uid] = [own]
    with store.writer() as writer:
        for number in range(2):
            backend.state(MAIL).update_batch(users, [f"{user}@example" for user in users.to_pylist()])
            backend.timers().register_batch(users, pa.array([number] * 10))
            said = {"offset": number, **(properties or {})}
            writer.checkpoint({"op": [backend]}, operator_states=beside, properties=said, format=format)
            before(store)
    return store


def purge(store, **options):
    with store.edit() as edit:
        edit.delete_key("op", [SECRET])
        edit.properties.pop("vip", None)
        for operator in edit.snapshot.entry.operators:
            for state in operator.operator_states:
                if state.name == "seen":
                    edit.delete(f"{operator.uid}.seen", where=f"seen = '{SECRET}'")
        return edit.purge(**options)


@pytest.mark.parametrize("format", ["arrow", "parquet", "lance"])
def test_nothing_of_the_user_is_in_a_file_of_any_format_when_a_purge_is_done(tmp_path, format):
    with small_files():
        store = fill(tmp_path, format=format, operators=[("source", SEEN, ["bob", SECRET])], properties={"vip": SECRET})
        assert len(holders(tmp_path)) > 3

        with store.edit(format=format) as edit:
            edit.delete_key("op", [SECRET])
            edit.delete("source.seen", where=f"seen = '{SECRET}'")
            edit.properties.pop("vip")
            report = edit.purge(comment="request 12")

    assert holders(tmp_path) == []
    assert report.is_done, report
    assert {path.suffix for path in tmp_path.rglob("data/op/*/*")} >= {f".{format}"}
    assert store.verify(deep=True).problems == []


def tagged(store):
    if store.latest().checkpoint_id == 1:
        store.tag("gold", 1)


def leased(store):
    if store.latest().checkpoint_id == 1:
        store.lease(1, holder="a report", and_later=True)


def edited_before(store):
    """An edit whose text and comment name the user, and a lease that keeps its fence."""
    if store.latest().checkpoint_id == 2:
        with store.edit() as edit:
            edit.update("op.mail", set={"mail": f"'{SECRET}!'"}, where=f"\"user\" = '{SECRET}'")
            edit.commit(comment=f"wish of {SECRET}")
        store.untag("before-edit-3")
        store.lease(3, holder="a report", and_later=True)


TABLE = [{"user": SECRET, "total": 3}]
HOLDERS = {
    "a tag": ({"before": tagged}, ["checkpoint 1 still has", "tag 'gold'"]),
    "a lease": ({"before": leased}, ["checkpoint 1 still has", "a report"]),
    "operator state": (
        {"operators": [("source", SEEN, ["bob", SECRET])], "before": tagged},
        ["operator state source.seen", "tag 'gold'"],
    ),
    "a property": ({"properties": {"vip": SECRET}, "before": tagged}, ["property 'vip'"]),
    "the text of an edit": ({"before": edited_before}, ["checkpoint 3 still has", "a report"]),
    "an output table": ({"operators": [("totals", ROWS, TABLE)]}, ["output table totals.rows (1 rows)"]),
    "dead letters": (
        {"operators": [("op_dead_letters", ROWS, TABLE)]},
        ["dead letters op_dead_letters.rows (1 rows)"],
    ),
    "a savepoint": ({"before": lambda store: store.savepoint(f"s{store.latest().checkpoint_id}")}, ["savepoint s1"]),
    "a savepoint in another folder": (
        {"before": lambda store: store.savepoint(f"{store.storage.url}/backups/day-{store.latest().checkpoint_id}")},
        ["savepoint ", "/backups/day-1"],
    ),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_holds_the_user_is_named_and_the_purge_is_not_done(tmp_path, holder):
    options, said = HOLDERS[holder]
    store = fill(tmp_path, **options)

    report = purge(store)

    assert holders(tmp_path) != []
    assert not report.is_done
    assert [text for text in said if text not in str(report)] == []
    assert said[-1].rpartition(" s")[2] in report._repr_html_().replace("&#x27;", "'")


def test_a_fence_that_stays_is_named_for_its_comment_and_statements(tmp_path):
    store = fill(tmp_path)
    with store.edit() as edit:
        edit.update("op.mail", set={"mail": "'x'"}, where=f"\"user\" = '{SECRET}'")
        edit.commit(comment=f"wish of {SECRET}")
    lease = store.lease(1, holder="a report", and_later=True)
    store.untag("before-edit-3")

    report = purge(store)

    (note,) = [text for text in report.notes if "the text of statements" in text]
    assert note.startswith("the comment and the text of statements of entry ")
    assert not report.is_done
    lease.release()
    assert purge(store).is_done
    assert holders(tmp_path) == []


def test_a_table_that_was_looked_through_is_left_out_of_the_report(tmp_path):
    bob = [{"user": "bob", "total": 3}]
    store = fill(tmp_path, operators=[("totals", ROWS, bob), ("op_dead_letters", ROWS, bob)])

    with store.edit() as edit, pytest.raises(arrowstate.errors.InvalidInputError, match=r"'total'; .*totals\.rows"):
        edit.purge(checked=["total"])
    first = purge(store)
    second = purge(store, checked=["totals.rows", "op_dead_letters"])

    assert (len(first.tables), first.is_done) == (2, False)
    assert (second.tables, second.is_done) == ((), True)
    assert holders(tmp_path) == []


@pytest.mark.parametrize("way", ["delete_key", "delete", "nothing"])
@pytest.mark.parametrize("clock", ["processing_time", "event_time"])
def test_rows_that_have_expired_leave_the_files_however_they_were_asked_for(tmp_path, clock, way):
    store = arrowstate.open_store(tmp_path, create=True)
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=8, clock_ms=lambda: DAY)
    ttl = arrowstate.TimeToLive(DAY, clock=clock)
    mail = arrowstate.ValueStateDescriptor("mail", pa.string(), ttl=ttl)
    backend.advance_watermark(DAY)
    backend.state(mail).update_batch([SECRET, "bob"], [SECRET, "bob@example"])
    backend.advance_watermark(10 * DAY)
    backend.state(MAIL_FOR_EVER).update_batch(["eve"], ["eve@example"])
    if clock == "event_time":
        backend.state(mail).update_batch(["eve"], ["eve@example"])
    commit(store, {"op": [backend]}, watermark=10 * DAY)
    assert holders(tmp_path) != []

    with store.edit() as edit:
        if way == "delete_key":
            edit.delete_key("op", [SECRET])
        elif way == "delete":
            edit.delete("op.mail", where=f"\"user\" = '{SECRET}'")
        report = edit.purge()

    assert report.is_done, report
    assert holders(tmp_path) == []
    left = store.sql("select user from op.mail", expired=True).fetchall()
    assert left == ([("eve",)] if clock == "event_time" else [])
    assert store.latest().to_arrow("op.for_ever").num_rows == 1
    assert store.verify(deep=True).problems == []


MAIL_FOR_EVER = arrowstate.ValueStateDescriptor("for_ever", pa.string())


def test_where_checkpoints_were_imported_from_and_what_else_is_not_reached_is_named(tmp_path):
    other = fill(tmp_path / "other")
    store = arrowstate.open_store(tmp_path / "store", create=True)
    store.import_savepoint(other.url)

    report = purge(store)

    assert report.is_done
    assert report.imported_from == (other.url,)
    assert f"not looked at: {other.url}, which was imported; savepoints" in str(report)
    assert holders(tmp_path / "store") == []
    assert holders(tmp_path / "other") != []


def test_no_local_copy_of_a_purged_file_is_left_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with small_files():
        store = fill("memory://purge-local-copies", format="lance")
        assert store.latest().lookup("op.mail", [SECRET]).num_rows == 1
        assert holders(tmp_path) != []

        with store.edit(format="lance") as edit:
            edit.delete_key("op", [SECRET])
            report = edit.purge()

    assert report.is_done, report
    assert holders(tmp_path) == []


def rows_of(publication):
    if publication.tables[0].metadata.endswith(".json"):
        return StaticTable.from_metadata(publication.tables[0].metadata).scan().to_arrow().to_pylist()
    return by_deltalake(publication.tables[0].metadata, None)


@pytest.mark.parametrize("tables", [("iceberg", 2), ("iceberg", 3), ("delta", 2), ("delta", 3)], ids=str)
@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_what_was_published_shows_the_purged_checkpoint_alone_and_nothing_else_is_left_there(tmp_path, format, tables):
    asked = dict(zip(("format", "version"), tables, strict=True))
    with small_files():
        store = fill(
            tmp_path / "store",
            format=format,
            before=lambda store: store.publish(tmp_path / "tables", **asked),
            properties={"vip": SECRET},
        )
        store.publish(tmp_path / "tables", **asked)
        # Of a publication that was killed.
        (tmp_path / "tables/op/mail/data").mkdir(exist_ok=True)
        (tmp_path / "tables/op/mail/data/left.parquet").write_bytes(SECRET.encode())
        assert len(holders(tmp_path / "tables")) > 1

        report = purge(store)

    assert report.published == ()
    assert report.is_done, str(report)
    assert holders(tmp_path) == []
    publication = store.publish(tmp_path / "tables", **asked)
    assert not publication.tables[0].is_new
    assert "user-3" in str(rows_of(publication))
    assert SECRET not in str(rows_of(publication))


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_purge_reaches_the_table_of_a_state_that_the_newest_checkpoint_does_not_have(tmp_path, format):
    with small_files():
        store = fill(tmp_path / "store", before=lambda store: store.publish(tmp_path / "tables", format=format))
        backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=8)
        backend.state(arrowstate.ReducingStateDescriptor("visits", pa.int64(), reduce="sum")).add_batch(["bob"], [1])
        commit(store, {"op": [backend]}, allow_dropped_state=True)
        assert holders(tmp_path / "tables") != []

        with store.edit() as edit:
            edit.delete("op.visits", where="visits > 0")
            report = edit.purge()

    assert report.is_done, str(report)
    assert holders(tmp_path) == []
    assert [table.state for table in store.publish(tmp_path / "tables", format=format).tables] == ["visits"]


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_purge_publishes_no_state_that_was_not_published(tmp_path, format):
    """One of the others has a type that no table has: it keeps a purge from nothing."""
    with small_files():
        store = fill(tmp_path / "store")
        backend = store.latest().restore("op")
        backend.state(arrowstate.ValueStateDescriptor("debt", pa.decimal256(76, 2)))
        commit(store, {"op": [backend]})
        store.publish(tmp_path / "tables", states=["op.mail"], format=format)
        assert holders(tmp_path / "tables") != []

        report = purge(store)

    assert report.is_done, str(report)
    assert holders(tmp_path) == []
    assert [path.name for path in (tmp_path / "tables").glob("*/*")] == ["mail"]


@pytest.mark.parametrize("forms", [("iceberg", 3, "delta", 3), ("delta", 2, "iceberg", 2), ("delta", 3, "delta", 2)])
def test_a_purge_reaches_a_place_that_was_deleted_and_published_again_in_another_form(tmp_path, forms):
    """Its tags are those of the first publication."""
    before, version, after, later = forms
    with small_files():
        store = fill(tmp_path / "store")
        store.publish(tmp_path / "tables", format=before, version=version)
        shutil.rmtree(tmp_path / "tables")
        publication = store.publish(tmp_path / "tables", format=after, version=later)
        assert SECRET in str(rows_of(publication))

        report = purge(store)

    assert report.published == ()
    assert report.is_done, str(report)
    assert holders(tmp_path) == []
    publication = store.publish(tmp_path / "tables", format=after, version=later)
    assert not publication.tables[0].is_new
    assert SECRET not in str(rows_of(publication))


def test_a_purge_reaches_tables_of_a_place_that_are_in_several_versions(tmp_path):
    with small_files():
        store = fill(tmp_path / "store")
        for state, version in (("op.mail", 2), ("op.timers_event_time", 3)):
            store.publish(tmp_path / "tables", states=[state], version=version)

        report = purge(store)

    assert report.is_done, str(report)
    assert holders(tmp_path) == []


def test_a_folder_with_two_tables_is_in_the_report(tmp_path):
    with small_files():
        store = fill(tmp_path / "store")
        for place, format in (("tables", "iceberg"), ("other", "delta")):
            store.publish(tmp_path / place, format=format)
        (tmp_path / "other/op/mail/_delta_log").rename(tmp_path / "tables/op/mail/_delta_log")

        report = purge(store)

    assert ["op/mail has a table of iceberg version 3 and delta version 3" in place for place in report.published] == [
        True
    ]
    assert not report.is_done


def test_a_publication_that_cannot_be_reached_is_in_the_report(tmp_path):
    store = fill(tmp_path / "store", before=lambda store: store.publish(tmp_path / "tables"))
    (tmp_path / "tables").rename(tmp_path / "elsewhere")

    report = purge(store)

    assert [str(tmp_path / "tables") in place for place in report.published] == [True]
    assert not report.is_done
    assert "published tables may show them" in str(report)
