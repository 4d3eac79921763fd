"""Recovery stores of Bytewax: what a dataflow kept is read without its classes, and a job goes on from it."""

import json
import pickle
import shutil
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import CorruptDataError, InvalidInputError, StoreNotFoundError
from arrowstate.foreign import bytewax
from arrowstate.foreign.bytewax import open_bytewax_recovery
from arrowstate.runtime import Job, TableSource
from flink_truth import unpack

ROWS = 2_000
TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")


@pytest.fixture(scope="module")
def half_flow(tmp_path_factory):
    """The store of a dataflow that was stopped after half its input, and what Bytewax made of both halves."""
    root = tmp_path_factory.mktemp("bytewax")
    unpack(Path(__file__).parent / "fixtures" / "half-flow.tar.xz", root)
    return root / "half-flow" / "recovery", json.loads((root / "half-flow" / "truth.json").read_text())


@pytest.fixture
def damaged(half_flow, tmp_path):
    """A copy to change."""
    return Path(shutil.copytree(half_flow[0], tmp_path / "recovery"))


def recovery_of(folder, snapshots, *, executions=((0, 1, 1),), fronts=((0, 0, 5),), parts=1):
    """A recovery store with snapshots, given by step, key and epoch."""
    folder.mkdir()
    for index in range(parts):
        with sqlite3.connect(folder / f"part-{index}.sqlite3") as database:
            database.execute("create table parts (part_index integer, part_count integer)")
            database.execute("create table exs (ex_num integer, worker_count integer, resume_epoch integer)")
            database.execute("create table fronts (ex_num integer, worker_index integer, worker_frontier integer)")
            database.execute("create table snaps (step_id text, state_key text, snap_epoch integer, ser_change blob)")
            database.execute("insert into parts values (?, ?)", (index, parts))
            if index == 0:
                database.executemany("insert into exs values (?, ?, ?)", executions)
                database.executemany("insert into fronts values (?, ?, ?)", fronts)
                database.executemany("insert into snaps values (?, ?, ?, ?)", snapshots)
    return open_bytewax_recovery(folder)


def of_pickle(folder, data):
    return recovery_of(folder, [("flow.step", "key", 1, data)]).values("step")["key"]


class Totals(arrowstate.BatchFunction):
    def open(self, context):
        self.total = context.state(TOTAL)

    def process_batch(self, batch, context):
        self.total.add_batch(batch["user"], batch["amount"])


def test_a_dataflow_that_was_stopped_in_the_middle_goes_on_as_a_job_and_ends_with_the_sums_of_the_whole(
    half_flow, tmp_path
):
    folder, truth = half_flow
    recovery = open_bytewax_recovery(folder)
    read = recovery.values("payments.read")["iterable"]
    rows = pa.table(
        {
            "user": [f"user {number * number % 17}" for number in range(read, ROWS)],
            "amount": [number % 101 for number in range(read, ROWS)],
        }
    )
    store = arrowstate.open_store(tmp_path / "store", create=True)
    sums = recovery.to_arrow("payments.sum", key="user", value="total")

    begun = store.bootstrap("totals", ["user"], [TOTAL], sums, accumulators=True)
    job = Job(tmp_path / "store", parallelism=2)
    job.source(TableSource(rows), uid="rest").stateful(Totals(), key=["user"], uid="totals")
    ended = job.run(mode="inline")

    query = "select user, total from totals.total"
    assert read == truth["rows"] == ROWS // 2
    assert dict(begun.sql(query).fetchall()) == truth["first"]
    assert dict(ended.sql(query).fetchall()) == truth["whole"]


def test_objects_of_the_flows_classes_are_their_attributes(half_flow):
    recovery = open_bytewax_recovery(half_flow[0])

    best = recovery.to_arrow("best")
    window = recovery.values("minutes")["user 0"]

    assert best.schema.field("value").type == pa.struct(
        {"highest": pa.int64(), "seen": pa.list_(pa.int64()), "total": pa.decimal128(6, 2)}
    )
    assert {**best.to_pylist()[1]["value"], "total": None} == {"highest": 94, "seen": [1, 16, 18], "total": None}
    assert window["logic_states"] == {1: 1029}


def test_steps_are_found_by_their_ids_and_what_is_before_what_bytewax_adds(half_flow):
    recovery = open_bytewax_recovery(half_flow[0])

    assert dict(recovery.steps)["payments.read"] == 1
    assert recovery.values("sum") == recovery.values("payments.sum")
    with pytest.raises(InvalidInputError, match="no step of .* is called 'sums'; it has payments.best"):
        recovery.values("sums")
    with pytest.raises(InvalidInputError, match="more than one step of .* is called 'stateful_batch'"):
        recovery.values("stateful_batch")


def test_the_newest_snapshot_before_the_resume_epoch_counts(tmp_path):
    snapshots = [
        ("flow.step", "old", 1, pickle.dumps(1)),
        ("flow.step", "old", 3, pickle.dumps(3)),
        ("flow.step", "late", 2, pickle.dumps(2)),
        ("flow.step", "late", 4, pickle.dumps(4)),
        ("flow.step", "gone", 2, pickle.dumps(2)),
        ("flow.step", "gone", 3, None),
    ]
    fronts = [(0, 0, 9), (1, 0, 5), (1, 1, 4)]

    recovery = recovery_of(tmp_path / "recovery", snapshots, executions=[(0, 1, 1), (1, 2, 3)], fronts=fronts, parts=2)

    assert recovery.resume_epoch == 4
    assert recovery.values("step") == {"late": 2, "old": 3}


def test_a_worker_that_has_finished_no_epoch_holds_the_resume_epoch_back(tmp_path):
    recovery = recovery_of(tmp_path / "recovery", [], executions=[(0, 2, 1)], fronts=[(0, 0, 9)])

    assert recovery.resume_epoch == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, (2, 3)], "b": {4}}, {"a": [1, (2, 3)], "b": [4]}),
        (bytearray(b"ab"), b"ab"),
        (complex(1, 2), complex(1, 2)),
        (frozenset([2, 1]), [1, 2]),
    ],
)
def test_plain_values_are_read_as_they_are(tmp_path, value, expected):
    assert of_pickle(tmp_path / "recovery", pickle.dumps(value)) == expected


def test_a_pickle_calls_nothing(tmp_path):
    class Harm:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harm",))

    class Command:
        def __reduce__(self):
            return (__import__("os").system, (f"touch {tmp_path / 'harm'}",))

    assert isinstance(of_pickle(tmp_path / "method", pickle.dumps(Command())), str)
    with pytest.raises(CorruptDataError):
        of_pickle(tmp_path / "built-in", pickle.dumps(Harm(), protocol=2))
    assert not (tmp_path / "harm").exists()


def test_a_pickle_whose_parts_are_each_other_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bytewax, "_MOST_VALUES", 1_000)
    bomb = [1] * 10
    for _ in range(20):
        bomb = [bomb] * 10
    loop = []
    loop.append(loop)

    for number, value in enumerate((bomb, loop)):
        with pytest.raises(CorruptDataError, match="its pickle cannot be read"):
            of_pickle(tmp_path / str(number), pickle.dumps(value))


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"not a pickle", b"c__main__\nNothing\n(tR.", b"\x80\x04P1\n."])
def test_damaged_pickles_are_damage_or_nothing(tmp_path, data):
    try:
        value = of_pickle(tmp_path / "recovery", data)
    except CorruptDataError as error:
        assert "key 'key'" in str(error)
    else:
        assert value == ()


def test_values_of_several_types_need_a_type(tmp_path):
    snapshots = [("flow.step", "a", 1, pickle.dumps(1)), ("flow.step", "b", 1, pickle.dumps("two"))]
    recovery = recovery_of(tmp_path / "recovery", snapshots)

    with pytest.raises(InvalidInputError, match=r"what step kept \(int, str\) is no column of one type"):
        recovery.to_arrow("step")


def test_a_type_is_that_of_the_column(half_flow):
    recovery = open_bytewax_recovery(half_flow[0])

    assert recovery.to_arrow("sum", type=pa.int32()).schema.field("value").type == pa.int32()
    with pytest.raises(InvalidInputError, match="is no column of bool"):
        recovery.to_arrow("sum", type=pa.bool_())


def test_a_missing_partition_is_damage(damaged):
    (damaged / "part-1.sqlite3").unlink()

    with pytest.raises(CorruptDataError, match=r"missing: \[1\]"):
        open_bytewax_recovery(damaged)


def test_what_is_no_partition_is_damage(damaged):
    (damaged / "part-0.sqlite3").write_bytes(b"no database at all" * 100)

    with pytest.raises(CorruptDataError, match="it is no partition of a recovery store"):
        open_bytewax_recovery(damaged)


def test_a_store_of_a_dataflow_that_never_ran_has_nothing_to_go_on_from(tmp_path):
    with pytest.raises(CorruptDataError, match="no execution of a dataflow"):
        recovery_of(tmp_path / "recovery", [], executions=(), fronts=())


def test_a_folder_without_partitions_is_no_store(tmp_path):
    with pytest.raises(StoreNotFoundError):
        open_bytewax_recovery(tmp_path)


def test_the_store_stays_as_it_is(half_flow, damaged):
    before = {path.name: path.read_bytes() for path in damaged.iterdir()}

    open_bytewax_recovery(damaged).values("sum")

    assert {path.name: path.read_bytes() for path in damaged.iterdir()} == before
