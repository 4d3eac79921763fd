"""Publications after commits: of a writer, a coordinator, a job, a command. One that fails costs freshness only."""

import json
import logging

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.cli import main
from arrowstate.cli import publish as command
from arrowstate.errors import (
    CheckpointNotFoundError,
    CommitUnknownError,
    CorruptDataError,
    InvalidInputError,
    StorageError,
    StorageFullError,
)
from arrowstate.publish.publication import Publisher
from arrowstate.runtime import Job, OutputTable, TableSource
from publications import compared, compared_delta, metadata_of
from stores import TOTAL, commit, totals_from
from table_readers import by_deltalake, by_pyiceberg


def test_a_writer_publishes_each_checkpoint_that_it_commits(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from()
    with store.writer(publish=tmp_path / "tables") as writer:
        for number in range(3):
            backend.state(TOTAL).add_batch(pa.array([number]), pa.array([1]))
            writer.checkpoint({"op": [backend]})

    publication = store.publish(tmp_path / "tables")

    assert not publication.tables[0].is_new
    assert compared(store, publication, by_pyiceberg) == 3


def test_a_coordinator_publishes_beside_the_job(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from()
    publish = arrowstate.Publish(to=tmp_path / "tables", version=2, states=["op.total"])
    with store.writer(publish=publish) as writer, writer.coordinator({"op": [backend]}) as checkpoints:
        checkpoints.trigger().result()

    publication = store.publish(tmp_path / "tables", version=2)

    assert not publication.tables[0].is_new
    assert compared(store, publication, by_pyiceberg) == 1


@pytest.mark.parametrize("mode", ["inline", "threads"])
def test_a_job_publishes_its_states_and_output_tables(tmp_path, mode):
    class Totals(arrowstate.BatchFunction):
        def open(self, context):
            self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))

        def process_batch(self, batch, context):
            keys = context.group_keys(batch)
            self.total.add_batch(keys, batch["amount"])
            return pa.record_batch([*keys.columns, self.total.read_keys(keys)], names=["user", "total"])

    job = Job(tmp_path / "store", publish=tmp_path / "tables")
    given = TableSource(pa.table({"user": ["ann", "bob", "ann"], "amount": [1, 5, 2]}))
    schema = pa.schema([("user", pa.string()), ("total", pa.int64())])
    totals = job.source(given, uid="payments").stateful(Totals(), key=["user"], uid="totals", output_schema=schema)
    totals.sink(OutputTable("changes"))

    with job.start(mode=mode) as running:
        if mode == "inline":
            running.go_on(1000)
        running.wait()

    store = arrowstate.open_store(tmp_path / "store")
    publication = store.publish(tmp_path / "tables")
    assert not any(table.is_new for table in publication.tables)
    changes = publication["changes.rows"]
    rows = by_pyiceberg(changes.metadata, None)
    stored = store.latest().operator_state("changes", "rows")["rows"].to_pylist()
    assert rows == sorted(repr([row["user"], row["total"]]) for row in stored)
    assert len(rows) > 1
    assert len(by_pyiceberg(publication["totals.total"].metadata, None)) == 2


def test_a_publication_that_fails_is_logged_and_the_commit_stands(tmp_path, caplog):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from()
    with store.writer(publish=tmp_path / "tables") as writer:
        (tmp_path / "tables").rmdir()
        (tmp_path / "tables").write_text("no folder")
        with caplog.at_level(logging.WARNING, "arrowstate.publish"):
            assert writer.checkpoint({"op": [backend]}).checkpoint_id == 1
        (tmp_path / "tables").unlink()
        assert writer.checkpoint({"op": [backend]}).checkpoint_id == 2

    assert "a publication failed, the next goes on" in caplog.text
    assert metadata_of(store.publish(tmp_path / "tables").tables[0].metadata)["refs"]["main"]


@pytest.mark.parametrize("publish", [7, "STORE/inside"])
def test_what_cannot_be_published_to_is_refused_before_a_writer_is_fenced(tmp_path, publish):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    given = publish.replace("STORE", store.url) if isinstance(publish, str) else publish
    with store.writer() as writer:
        with pytest.raises(InvalidInputError):
            store.writer(publish=given)
        writer.checkpoint({"op": [totals_from()]})


def test_the_command_publishes_and_watches(tmp_path, capsys, monkeypatch):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from()
    commit(store, {"op": [backend]})
    looks = iter([lambda: None, lambda: commit(store, {"op": [backend]}, allow_dropped_state=True)])

    def sleep(seconds):
        next(looks, stop)()

    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", sleep)

    code = main(["publish", store.url, "--to", str(tmp_path / "tables"), "--watch", "--history", "2", "--iceberg", "2"])

    lines = [line for line in capsys.readouterr().out.splitlines() if "op.total" in line]
    assert (code, len(lines)) == (130, 2)
    assert compared(store, store.publish(tmp_path / "tables", version=2), by_pyiceberg) == 2


@pytest.mark.parametrize(
    "error",
    [
        StorageError("op/total", "the disk is gone"),
        CommitUnknownError("op/total", "9b2e", "connection lost"),
        StorageFullError("op/total", "no space left"),
        CheckpointNotFoundError(1, [2]),
        CorruptDataError("op/total", "truncated"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_command_watches_on_after_a_publication_that_failed(tmp_path, capsys, monkeypatch, error):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    commit(store, {"op": [totals_from()]})

    def fail(_):
        commit(store, {"op": [totals_from(1)]}, allow_dropped_state=True)
        raise error

    def stop(_):
        raise KeyboardInterrupt

    calls = iter([Publisher.publish, fail, Publisher.publish, stop])

    def publish(publisher):
        return next(calls)(publisher)

    monkeypatch.setattr(command.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Publisher, "publish", publish)

    code = main(["publish", store.url, "--to", str(tmp_path / "tables"), "--watch"])

    told = capsys.readouterr()
    assert (code, str(error) in told.err, told.out.count("op.total")) == (130, True, 2)


@pytest.mark.parametrize("version", [3, 2])
def test_delta_is_published_by_a_command_and_by_a_writer(tmp_path, capsys, version):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = totals_from()
    publish = arrowstate.Publish(to=tmp_path / "tables", format="delta", version=version)
    with store.writer(publish=publish) as writer:
        for number in range(2):
            backend.state(TOTAL).add_batch(pa.array([number]), pa.array([1]))
            writer.checkpoint({"op": [backend]})

    given = ["--delta"] if version == 3 else ["--delta", "2"]
    code = main(["publish", store.url, "--to", str(tmp_path / "tables"), "--json", *given])

    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert code == 0
    assert (table["operator"], table["state"]) == ("op", "total")
    assert table["metadata"] == f"file://{tmp_path}/tables/op/total"
    assert compared_delta(store, store.publish(tmp_path / "tables", format="delta", version=version), by_deltalake) == 2
