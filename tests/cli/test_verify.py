"""`arrowstate verify` and `arrowstate diagnose`, and going back to the newest checkpoint that is whole."""

import json
import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

import arrowstate
from arrowstate import CheckpointNotFoundError, CorruptDataError, FormatVersionError, StorageError
from arrowstate.files.references import ReferenceReader
from arrowstate.store import StateStore
from arrowstate.upkeep.recovery import proposals
from arrowstate_formats.document_base import Int64
from arrowstate_formats.documents import LogEntryDocument, decode, encode
from storages import refusing
from stores import OFFSETS, TOTAL, commit, copied, cut, files, flip, run, totals_from


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Checkpoints 2, 3 and 4 with a data file and a file of operator state each."""
    store = arrowstate.open_store(tmp_path_factory.mktemp("verify") / "store", create=True)
    with store.writer() as writer:
        for start in range(3):
            offsets = arrowstate.OperatorStateBackend()
            offsets.state(OFFSETS).update(list(range(start, start + 5000)))
            writer.checkpoint({"op": [totals_from(start)]}, operator_states={"op": [offsets]})
    return Path(store.url)


@pytest.fixture
def folder(pristine, tmp_path):
    return copied(pristine, tmp_path / "store")


def data_file(folder, checkpoint, state="total"):
    operator = arrowstate.open_store(folder).snapshot(checkpoint).entry.operators[0]
    if state == "offsets":
        return folder / operator.operator_states[0].parts[0].path
    storage = arrowstate.open_store(folder).storage
    (path,) = (path for path in ReferenceReader(storage).files([operator]) if f"/{state}/" in path)
    return folder / path


def grow(path):
    path.write_bytes(path.read_bytes() + b"x")


def entry(folder, number):
    return folder / f"log/{number:020d}.json"


@pytest.mark.parametrize("harmed", ["log entry", "data file"])
def test_whoever_meets_damage_is_told_of_diagnose_and_of_the_newest_whole_checkpoint(folder, capsys, harmed):
    flip(entry(folder, 4) if harmed == "log entry" else data_file(folder, 3))

    code, _, err = run(capsys, "sql", folder, "select sum(total) from op.total")
    with pytest.raises(arrowstate.CorruptDataError) as caught:
        arrowstate.open_store(folder).latest().to_arrow("op.total")

    assert code == 1
    message, advice = err.splitlines()
    assert "is damaged" in message
    assert caught.value.__notes__ == [advice]
    assert "`arrowstate diagnose STORE`" in advice
    assert "store.latest_whole()" in advice


@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_a_whole_store_has_no_problem(folder, capsys, deep):
    before = files(folder)

    code, out, _ = run(capsys, "verify", folder, *deep)

    assert code == 0
    assert "no problem found" in out
    assert out.count("yes") == 3
    assert files(folder) == before


def test_lance_files_are_verified_and_restored_for_trial(tmp_path, capsys):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(TOTAL).add_batch(pa.array(range(9000)), pa.array(range(9000)))
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [backend]}, format="lance")

    whole = [run(capsys, *verb)[0] for verb in (("verify", store.url, "--deep"), ("restore-check", store.url))]
    path = data_file(Path(store.url), 1)
    flip(path)
    verify, restore = (run(capsys, *verb) for verb in (("verify", store.url, "--deep"), ("restore-check", store.url)))

    assert whole == [0, 0]
    assert (verify[0], restore[0]) == (1, 1)
    assert path.suffix == ".lance"
    assert path.name in verify[1]
    assert path.name in restore[1]


@pytest.mark.parametrize("harm", [cut, grow, Path.unlink])
@pytest.mark.parametrize("state", ["total", "offsets"])
def test_a_file_that_is_gone_or_has_another_size_is_found_without_reading_it(folder, capsys, harm, state):
    path = data_file(folder, 2, state)
    harm(path)

    code, out, _ = run(capsys, "verify", folder, "--json")

    found = json.loads(out)
    assert code == 1
    assert {item["checkpoint_id"]: item["ok"] for item in found["checkpoints"]} == {3: True, 2: False, 1: True}
    assert str(path.relative_to(folder)) in found["checkpoints"][1]["problems"][0]
    assert found["newest_whole"] == 3


@pytest.mark.parametrize("state", ["total", "offsets"])
def test_a_flipped_bit_is_found_by_a_deep_look(folder, capsys, state):
    flip(data_file(folder, 2, state))

    assert run(capsys, "verify", folder)[0] == 0
    code, out, _ = run(capsys, "verify", folder, "--deep")

    assert code == 1
    assert "PROBLEM   checkpoint 2: data/op/" in out


@pytest.mark.parametrize(
    ("harm", "number", "problem"),
    [
        (flip, 3, "is damaged"),
        (Path.unlink, 3, "00000000000000000003.json: the log entry is missing"),
        (Path.unlink, 2, "00000000000000000002.json: the log entry is missing"),
    ],
)
def test_a_damaged_log_is_found(folder, capsys, harm, number, problem):
    harm(entry(folder, number))

    code, out, _ = run(capsys, "verify", folder, "--json")

    assert code == 1
    assert problem in json.loads(out)["log_problems"][0]
    assert [item["checkpoint_id"] for item in json.loads(out)["checkpoints"]] == [
        checkpoint for checkpoint in (3, 2, 1) if checkpoint != number - 1
    ]


def test_an_entry_that_another_history_was_written_after_is_found(folder, capsys, tmp_path):
    path = entry(folder, 3)
    path.write_bytes(encode(replace(decode(path.read_bytes(), LogEntryDocument), watermark=Int64(5))))

    code, out, _ = run(capsys, "verify", folder, "--json")

    assert code == 1
    assert "written after other bytes" in json.loads(out)["log_problems"][0]
    assert [item["checkpoint_id"] for item in json.loads(out)["checkpoints"]] == [3, 1]


def test_a_log_whose_first_entry_is_gone_is_found(folder, capsys):
    arrowstate.open_store(folder).collect(arrowstate.RetentionPolicy(count=2)).apply()
    entry(folder, 3).unlink()

    code, out, _ = run(capsys, "verify", folder)

    assert code == 1
    assert "log/00000000000000000003.json: the log entry is missing" in out


def test_a_tag_whose_checkpoint_is_gone_is_found(folder, capsys):
    store = arrowstate.open_store(folder)
    store.tag("gold", 1)
    store.collect().apply()
    entry(folder, 2).unlink()

    code, out, _ = run(capsys, "verify", folder)

    assert code == 1
    assert "tags/gold.json: tag 'gold' holds checkpoint 1, which is gone" in out


def test_a_diagnosis_proposes_the_newest_whole_checkpoint_and_changes_nothing(folder, capsys):
    flip(data_file(folder, 3))
    before = files(folder)

    code, out, _ = run(capsys, "diagnose", folder)

    assert code == 1
    assert "PROPOSAL  checkpoint 2 is the newest that is whole" in out
    assert "store.snapshot(2)" in out
    assert files(folder) == before


def test_what_a_diagnosis_proposes_for_a_damaged_log_works(folder, capsys, tmp_path):
    flip(entry(folder, 4))
    with pytest.raises(CorruptDataError):
        arrowstate.open_store(folder).latest()

    code, out, _ = run(capsys, "diagnose", folder, "--json")
    proposal = json.loads(out)["proposals"][0]
    assert code == 1
    assert f"arrowstate savepoint {folder} NEW_FOLDER --checkpoint 2" in proposal

    assert run(capsys, "savepoint", folder, tmp_path / "new", "--checkpoint", 2)[0] == 0
    again = arrowstate.open_store(tmp_path / "new").latest()
    assert sum(again.to_arrow("op.total")["total"].to_pylist()) == sum(range(1, 3001))


def test_a_diagnosis_of_a_whole_store_has_nothing_to_propose(folder, capsys):
    code, out, _ = run(capsys, "diagnose", folder)

    assert code == 0
    assert "nothing to repair" in out


def test_a_diagnosis_says_so_where_nothing_is_whole(folder, capsys):
    for checkpoint in (1, 2, 3):
        flip(data_file(folder, checkpoint))

    code, out, _ = run(capsys, "diagnose", folder)

    assert code == 1
    assert "no checkpoint is whole" in out


def test_going_back_is_loud(folder):
    flip(data_file(folder, 3))
    cut(data_file(folder, 2))
    store = arrowstate.open_store(folder)

    with pytest.warns(RuntimeWarning) as caught:
        snapshot = store.latest_whole()

    assert snapshot.checkpoint_id == 1
    texts = [str(warning.message) for warning in caught]
    assert any("checkpoint 3: data/op/total/" in text for text in texts)
    assert any("checkpoint 2: data/op/total/" in text for text in texts)


def test_the_newest_whole_checkpoint_is_the_newest_without_a_word_if_nothing_is_damaged(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        assert arrowstate.open_store(folder).latest_whole().checkpoint_id == 3


def test_a_damaged_newest_entry_is_passed_over_loudly(folder):
    flip(entry(folder, 4))

    with pytest.warns(RuntimeWarning, match="log/00000000000000000004.json is damaged"):
        assert arrowstate.open_store(folder).latest_whole().checkpoint_id == 2


def test_checkpoints_that_are_collected_while_they_are_looked_at_are_not_all_there_is(folder, monkeypatch):
    """Of those in the log when the look began none is left, since newer ones took their place."""
    cut(data_file(folder, 3))
    store = arrowstate.open_store(folder)
    read, rest = store.storage.read, [None]

    def read_late(path, *arguments):
        if path == f"log/{3:020d}.json" and rest:
            rest.clear()
            entry = read(path, *arguments)
            backend = arrowstate.open_store(folder).snapshot(2).restore("op")
            with store.writer() as writer:
                for _ in range(3):
                    backend.state(TOTAL).add_batch([1], [1])
                    writer.checkpoint({"op": [backend]}, allow_dropped_state=True, format="parquet")
            arrowstate.open_store(folder).collect(
                arrowstate.RetentionPolicy(count=1), grace_ms=0, allow_short_grace=True
            ).apply()
            return entry
        return read(path, *arguments)

    monkeypatch.setattr(store.storage, "read", read_late)

    assert store.latest_whole(deep=False).checkpoint_id > 3


def test_without_a_whole_checkpoint_there_is_nothing_to_go_back_to(folder, tmp_path):
    for checkpoint in (1, 2, 3):
        cut(data_file(folder, checkpoint))

    with pytest.raises(CorruptDataError, match="no checkpoint is whole: checkpoint 3"):
        arrowstate.open_store(folder).latest_whole(deep=False)
    with pytest.raises(CheckpointNotFoundError):
        arrowstate.open_store(tmp_path / "empty", create=True).latest_whole()


def test_a_snapshot_looks_at_itself(folder):
    snapshot = arrowstate.open_store(folder).snapshot(2)
    assert snapshot.verify().ok
    assert (snapshot.verify(deep=True).rows, snapshot.verify().files) == (8000, 2)

    flip(data_file(folder, 2))

    assert snapshot.verify().ok
    assert not snapshot.verify(deep=True).ok


def test_neighbours_whose_hashes_are_further_apart_than_int64_reaches_are_in_order(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    key = pa.schema([("user", pa.string()), ("device", pa.string())])
    keys = pa.table({"user": ["ann", "ann"], "device": ["pc", "tv"]})
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
    backend.state(TOTAL).add_batch(keys, [3, 4])
    entries = backend.state(arrowstate.MapStateDescriptor("entries", pa.int64(), pa.int64()))
    entries.put_batch(keys.take([0] * 50), list(range(50)), list(range(50)))
    snapshot = commit(store, {"op": [backend]})
    hashes, entry_hashes = (
        snapshot.to_arrow(f"op.{state}", columns=[column]).column(0).to_pylist()
        for state, column in (("total", "_key_hash"), ("entries", "_entry_hash"))
    )

    assert max(hashes) - min(hashes) >= 1 << 63
    assert entry_hashes == sorted(entry_hashes)
    assert store.verify(deep=True).problems == []


def unreachable(store, prefix):
    """A store of which the files of a prefix cannot be read for now."""
    return StateStore(refusing(store.storage, "read", "open_buffer", prefix=prefix), store.store_id)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    "prefix", ["data/op/total/", "data/op/offsets/", "log/00000000000000000004", "log/00000000000000000002", "tags/"]
)
def test_a_storage_that_does_not_answer_is_an_error_and_never_taken_for_damage(folder, prefix, deep):
    store = arrowstate.open_store(folder)
    store.tag("gold", 1)
    silent = unreachable(store, prefix)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(StorageError, match="the request was lost"):
            silent.latest_whole(deep=deep)

    found = silent.verify(deep=deep)
    assert found.problems
    assert all(isinstance(failure, StorageError) for failure in found.failures)
    (proposal,) = proposals(found, store.url)
    assert "mend that first" in proposal


def test_damage_is_passed_over_although_the_storage_fails_for_what_is_older(folder):
    flip(data_file(folder, 3))
    store = arrowstate.open_store(folder)
    older = str(data_file(folder, 1).relative_to(folder))

    with pytest.warns(RuntimeWarning, match="checkpoint 3: data/op/total/"):
        snapshot = unreachable(store, older).latest_whole()

    assert snapshot.checkpoint_id == 2


def test_a_checkpoint_of_a_newer_version_is_no_damage_to_go_back_from(folder):
    path = entry(folder, 4)
    path.write_bytes(path.read_bytes().replace(b'"format_version": 1', b'"format_version": 99', 1))

    with pytest.raises(FormatVersionError, match="99"):
        arrowstate.open_store(folder).latest_whole()


class WithCopies:
    """A storage that maps local copies, as one does that is reached over a network."""

    def __init__(self, storage, copies):
        self._storage = storage
        self._copies = copies

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def open_buffer(self, path):
        return self._copies.open_buffer(path)


@pytest.mark.parametrize("state", ["total", "offsets"])
def test_a_deep_look_reads_what_is_stored_and_no_copy_of_it(folder, pristine, state):
    path = data_file(folder, 3, state)
    flip(path)
    store = arrowstate.open_store(folder)
    copies = arrowstate.open_store(pristine).storage

    (found, *older) = StateStore(WithCopies(store.storage, copies), store.store_id).verify(deep=True).checkpoints

    assert not found.verification.ok
    assert str(path.relative_to(folder)) in found.verification.problems[0]
    assert all(item.verification.ok for item in older)
