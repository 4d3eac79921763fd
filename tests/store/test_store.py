"""The store as a caller meets it: opening, checkpoints by id, and what there is instead of what was asked for."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

import arrowstate
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.subtasks import read_states
from arrowstate_formats.documents import (
    FORMAT_VERSION,
    LogEntryDocument,
    ManifestDocument,
    ManifestHandle,
    decode,
    encode,
)
from arrowstate_formats.run_files import checksum
from stores import NOTE, TOTAL, ids


def fill(store, count=3, checkpoints=1, uid="counter"):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(NOTE).update_batch([1], ["x"])
    with store.writer() as writer:
        for _ in range(checkpoints):
            backend.state(TOTAL).add_batch(range(count), range(count))
            writer.checkpoint({uid: [backend]})
    return store


@pytest.mark.parametrize("place", ["missing", "missing/deep", "file", "folder", "file/below"])
def test_a_path_that_is_no_store_says_so_and_is_left_alone(tmp_path, place):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "data.parquet").write_text("mine")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises((arrowstate.StoreNotFoundError, arrowstate.StorageError)) as caught:
        arrowstate.open_store(tmp_path / place)

    assert str(tmp_path / place) in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_store_is_a_lookup_error_that_says_how_to_make_one(tmp_path):
    with pytest.raises(LookupError, match="create=True"):
        arrowstate.open_store(tmp_path / "missing")


def test_a_store_is_not_made_among_other_files(tmp_path):
    (tmp_path / "data.parquet").write_text("mine")

    with pytest.raises(arrowstate.InvalidInputError, match=r"data\.parquet"):
        arrowstate.open_store(tmp_path, create=True)

    assert os.listdir(tmp_path) == ["data.parquet"]


@pytest.mark.parametrize("url", ["sftp://host/x", "hdfs://x", "memory::x", "file://host/x", "ftp://x"])
@pytest.mark.parametrize("create", [False, True])
def test_a_storage_without_safe_commits_is_refused_with_what_is_supported(url, create):
    with pytest.raises(arrowstate.UnsupportedStorageError, match="supported: a local path"):
        arrowstate.open_store(url, create=create)


@pytest.mark.parametrize("url", ["", "a\0b"])
def test_a_path_that_is_none_is_refused(url):
    with pytest.raises(arrowstate.InvalidInputError):
        arrowstate.open_store(url)


@pytest.mark.parametrize("url", ["s3:/key:secret@bucket/x", "S3:bucket/x", "gs:x", "abfss:/c/x", "memory:x"])
def test_a_url_without_its_slashes_is_no_folder_of_that_name(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(arrowstate.InvalidInputError, match="begins with .*://, got .* without the slashes") as caught:
        arrowstate.open_store(url, create=True)
    arrowstate.open_store("./memory:x", create=True)

    assert "secret" not in str(caught.value)
    assert os.listdir(tmp_path) == ["memory:x"]


def test_a_store_opens_by_every_form_of_its_path(tmp_path, monkeypatch):
    store = fill(arrowstate.open_store(tmp_path / "my store", create=True))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "my store")

    for form in (
        str(tmp_path / "my store"),
        tmp_path / "my store",
        "my store",
        "./my store/",
        Path("my store"),
        (tmp_path / "my store").as_uri(),
        tmp_path / "link",
    ):
        again = arrowstate.open_store(form)

        assert (again.store_id, again.url) == (store.store_id, store.url)
        assert again.latest().entry == store.latest().entry


def test_opening_a_store_again_with_create_keeps_it(tmp_path):
    store = fill(arrowstate.open_store(tmp_path / "store", create=True))

    again = arrowstate.open_store(tmp_path / "store", create=True)

    assert again.store_id == store.store_id
    assert again.latest().checkpoint_id == 1


def test_a_new_store_has_no_checkpoint_and_says_so(store):
    assert store.checkpoints() == []
    for read in (store.latest, lambda: store.sql("select 1"), lambda: store.savepoint("x")):
        with pytest.raises(arrowstate.CheckpointNotFoundError, match="no checkpoint in this store yet"):
            read()
    store.writer()
    with pytest.raises(arrowstate.CheckpointNotFoundError, match="none yet"):
        store.snapshot(1)


def test_checkpoints_are_listed_oldest_first_and_found_by_id(store):
    fill(store, checkpoints=3)
    fill(store, checkpoints=2)

    assert ids(store) == [1, 2, 3, 4, 5]
    assert store.latest().checkpoint_id == 5
    for checkpoint_id in (1, 2, 3, 4, 5):
        assert store.snapshot(checkpoint_id).entry.checkpoint_id == checkpoint_id


@pytest.mark.parametrize("checkpoint_id", [0, 6, 7, -1, 10**25])
def test_an_unknown_checkpoint_lists_those_there_are(store, checkpoint_id):
    fill(store, checkpoints=3)
    fill(store, checkpoints=2)

    for read in (
        store.snapshot,
        lambda i: store.sql("select 1", checkpoint=i),
        lambda i: store.savepoint("x", checkpoint=i),
    ):
        with pytest.raises(
            arrowstate.CheckpointNotFoundError, match=f"no checkpoint {checkpoint_id} .*it has 1, 2, 3, 4, 5"
        ):
            read(checkpoint_id)


def test_an_unknown_operator_lists_those_there_are(store):
    fill(store)

    for read in (
        lambda: store.latest().restore("conter"),
        lambda: store.latest().to_arrow("conter.total"),
        lambda: store.latest().lookup("conter.total", pa.array([1])),
    ):
        with pytest.raises(arrowstate.OperatorNotFoundError, match="'conter'.*checkpoint 1.*'counter'"):
            read()


def test_an_unknown_state_lists_those_there_are(store):
    fill(store)

    for read in (
        lambda: store.latest().to_arrow("counter.totl"),
        lambda: store.latest().lookup("counter.totl", pa.array([1])),
    ):
        with pytest.raises(arrowstate.StateNotFoundError, match="totl'.*note'.*total'"):
            read()


def test_what_is_not_found_is_one_kind_of_error(store):
    for error in (
        arrowstate.StoreNotFoundError,
        arrowstate.CheckpointNotFoundError,
        arrowstate.OperatorNotFoundError,
        arrowstate.StateNotFoundError,
    ):
        assert issubclass(error, arrowstate.NotFoundError)
        assert issubclass(error, LookupError)


def newer(data):
    """The document of a future version: another number, and a field that this version does not know."""
    document = json.loads(data)
    document["format_version"] = FORMAT_VERSION + 1
    document["a field of the future"] = {"x": 1}
    return json.dumps(document).encode()


@pytest.mark.parametrize("document", ["arrowstate.json", "log/00000000000000000002.json"])
def test_a_newer_document_is_refused_with_both_versions_and_a_way_out(store, document):
    fill(store)
    path = Path(store.url) / document
    path.write_bytes(newer(path.read_bytes()))
    before = {each: each.read_bytes() for each in Path(store.url).rglob("*") if each.is_file()}

    for read in (lambda: arrowstate.open_store(store.url).latest(), lambda: arrowstate.open_store(store.url).writer()):
        with pytest.raises(
            arrowstate.FormatVersionError,
            match=f"version {FORMAT_VERSION + 1}.*up to {FORMAT_VERSION}.*newer arrowstate",
        ) as caught:
            read()
        assert (caught.value.path, caught.value.found, caught.value.supported) == (
            document,
            FORMAT_VERSION + 1,
            FORMAT_VERSION,
        )

    assert {each: each.read_bytes() for each in Path(store.url).rglob("*") if each.is_file()} == before


def test_a_newer_manifest_is_refused_with_both_versions(store):
    fill(store)
    log = Path(store.url) / "log" / "00000000000000000002.json"
    entry = decode(log.read_bytes(), LogEntryDocument)
    (operator,) = entry.operators
    (subtask,) = operator.subtasks
    states = read_states(store.storage, subtask.manifest, "counter")
    data = newer(encode(ManifestDocument(operator="counter", key_groups=subtask.key_groups, states=states)))
    store.storage.put_if_absent("manifests/newer.json", data, "counter")
    handle = ManifestHandle(path="manifests/newer.json", bytes=len(data), xxh3_128=checksum(data))
    operator = replace(operator, subtasks=[replace(subtask, manifest=handle)])
    log.write_bytes(encode(replace(entry, operators=[operator])))
    forget_open_files()

    for read in (
        lambda: store.latest().restore("counter"),
        lambda: store.latest().to_arrow("counter.total"),
        lambda: store.savepoint("copy"),
    ):
        with pytest.raises(
            arrowstate.FormatVersionError, match=f"version {FORMAT_VERSION + 1}.*up to {FORMAT_VERSION}"
        ):
            read()


def test_stores_in_memory_are_told_apart_by_name():
    one = fill(arrowstate.open_store("memory://store-tests/one", create=True))
    two = arrowstate.open_store("memory://store-tests/two", create=True)

    assert one.store_id != two.store_id
    assert arrowstate.open_store("memory://store-tests/one/").latest().entry == one.latest().entry
    with pytest.raises(arrowstate.CheckpointNotFoundError):
        two.latest()
    with pytest.raises(arrowstate.StoreNotFoundError, match="memory://store-tests/three"):
        arrowstate.open_store("memory://store-tests/three")


def test_a_writer_is_used_in_a_with_block_and_leaves_nothing_open(store):
    with store.writer(properties={"who": "me"}) as writer:
        assert writer.epoch == 1

    with store.writer() as writer:
        assert writer.epoch == 2


def test_an_error_inside_the_block_of_a_writer_goes_through(store):
    with pytest.raises(RuntimeError, match="mine"), store.writer():
        raise RuntimeError("mine")


def test_a_store_and_a_backend_say_what_they_are(store):
    fill(store)

    assert repr(store) == f"<StateStore {store.url}>"
    assert repr(store.latest().restore("counter")) == "<KeyedStateBackend key groups 0 to 127, states: note, total>"
    assert "3 rows" in repr(store.latest().restore("counter").state(TOTAL))
