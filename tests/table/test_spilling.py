"""State past a byte budget: the same answers from mapped files that leave nothing behind."""

import gc
import json

import numpy as np
import pyarrow as pa
import pytest

from arrowstate.errors import StorageError
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.merge_sources import Piece
from arrowstate.table.merging import MergePolicy
from arrowstate.table.spill import Budget, SpillSink
from arrowstate.table.table import Table
from arrowstate_formats.key_hash import hash_columns
from processes import python

SCHEMA = pa.schema(
    [
        pa.field("_key_hash", pa.int64(), nullable=False),
        pa.field("key", pa.int64(), nullable=False),
        ("n", pa.int64()),
        ("tags", pa.list_(pa.string())),
    ]
)
POLICY = MergePolicy(fan_in=3, first_tier_rows=256, segment_bytes=1 << 12)


def batch_of(keys):
    column = pa.array(keys, pa.int64())
    return KeyBatch.of(hash_columns([column]), [column])


def put(table, keys, numbers):
    batch = batch_of(keys)
    values = pa.array(numbers, pa.int64()).take(pa.array(batch.last_rows()))
    tags = pa.array([[str(n)] * (n % 4) for n in values.to_pylist()], pa.list_(pa.string()))
    table.settle()
    table.put(table.find(batch), batch, [values, tags])


def read(table, keys):
    batch = batch_of(keys)
    found = table.find(batch)
    groups = pa.array(batch.groups())
    rows = zip(
        found.column(2, pa.int64()).take(groups), found.column(3, SCHEMA.field(3).type).take(groups), strict=True
    )
    return [(number.as_py(), tags.as_py()) for number, tags in rows]


def expected(model, keys):
    return [(model[key], [str(model[key])] * (model[key] % 4)) if key in model else (None, None) for key in keys]


@pytest.mark.parametrize("budget", [0, 20_000, 1 << 30])
def test_a_budget_changes_no_answer_and_leaves_no_file(tmp_path, budget):
    random = np.random.default_rng(5)
    table = Table(SCHEMA, 1, policy=POLICY, budget=Budget(budget, tmp_path))
    model = {}

    for number in range(60):
        keys = random.integers(0, 3000, 200).tolist()
        put(table, keys, [number + i for i in range(200)])
        model.update(zip(keys, [number + i for i in range(200)], strict=True))
        gone = random.integers(0, 3000, 20).tolist()
        table.remove(table.find(batch_of(gone)))
        for key in gone:
            model.pop(key, None)

    assert read(table, range(3000)) == expected(model, range(3000))
    assert table.live_rows == len(model)
    assert any(run.mapped for run in table.runs) == (budget < 1 << 30)
    assert list(tmp_path.iterdir()) == []


def test_only_what_cannot_be_mapped_stays_in_memory(tmp_path):
    table = Table(SCHEMA, 1, policy=POLICY, budget=Budget(10_000, tmp_path))
    unbounded = Table(SCHEMA, 1, policy=POLICY)

    for start in range(0, 20_000, 500):
        for each in (table, unbounded):
            put(each, range(start, start + 500), range(500))
        table.settle()

        overhead = sum(run.live.nbytes + (run.built.offsets.nbytes if run.built else 0) for run in table.runs)
        assert table.memory_bytes <= max(10_000, overhead)

    assert unbounded.memory_bytes > 20 * 10_000
    assert table.live_rows == 20_000


def test_a_frozen_view_of_spilled_runs_outlives_them(tmp_path):
    table = Table(SCHEMA, 1, policy=POLICY, budget=Budget(0, tmp_path))
    put(table, range(500), range(500))
    table.settle()
    frozen = table.freeze()

    for number in range(20):
        put(table, range(500), [number] * 500)
    gc.collect()

    rows = [row for run in frozen.runs for batch in run.live_batches() for row in batch.to_pylist()]
    assert {row["key"]: row["n"] for row in rows} == {key: key for key in range(500)}
    assert frozen.runs[0].run.mapped


def test_a_frozen_view_taken_before_its_run_was_spilled_still_reads(tmp_path):
    table = Table(SCHEMA, 1, policy=POLICY, budget=Budget(1 << 30, tmp_path))
    put(table, range(300), range(300))
    frozen = table.freeze()
    table._budget = Budget(0, tmp_path)

    table.settle()
    put(table, range(100), [9] * 100)

    rows = [row for run in frozen.runs for batch in run.live_batches() for row in batch.to_pylist()]
    assert {row["key"]: row["n"] for row in rows} == {key: key for key in range(300)}
    assert read(table, [0, 299]) == expected({0: 9, 299: 299}, [0, 299])


def test_dead_rows_stay_dead_when_a_run_is_spilled(tmp_path):
    table = Table(SCHEMA, 1, policy=MergePolicy(max_dead_share=1.0), budget=Budget(1 << 30, tmp_path))
    put(table, range(300), range(300))
    table.remove(table.find(batch_of(range(100))))
    table._budget = Budget(0, tmp_path)

    table.settle()

    assert table.runs[0].mapped
    assert table.live_rows == 200
    assert read(table, [5, 205]) == expected({205: 205}, [5, 205])


def test_a_merge_that_fails_half_way_leaves_no_file_and_the_state_as_it_was(tmp_path, monkeypatch):
    table = Table(SCHEMA, 1, policy=POLICY, budget=Budget(0, tmp_path))
    for start in (0, 1000):
        put(table, range(start, start + 1000), range(1000))
    put(table, range(2000, 3000), range(1000))
    pieces = iter(range(1000))
    chosen = Piece.chosen

    def fail_at_third(*arguments):
        if next(pieces) == 2:
            raise MemoryError("no memory for this piece")
        return chosen(*arguments)

    monkeypatch.setattr(Piece, "chosen", fail_at_third)
    with pytest.raises(MemoryError):
        table.settle()
    monkeypatch.undo()

    assert list(tmp_path.iterdir()) == []
    assert table.live_rows == 3000
    assert read(table, [0, 1500, 2999]) == expected({0: 0, 1500: 500, 2999: 999}, [0, 1500, 2999])


FULL = """
import json, os, resource, signal, sys
import pyarrow as pa
import arrowstate
from arrowstate.table.merging import MergePolicy

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = sys.argv[1]
backend = arrowstate.KeyedStateBackend(
    key=pa.schema([("k", pa.int64())]), max_parallelism=128, memory_budget_bytes=int(sys.argv[2]), spill_dir=folder,
    merge_policy=MergePolicy(fan_in=2, first_tier_rows=64),
)
clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
city = backend.state(arrowstate.ValueStateDescriptor("city", pa.string()))
everything = pa.array(range(40_000))
model, number, errors = {}, 0, []
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
while len(errors) < 4:
    keys = pa.array(range(number * 1000, number * 1000 + 1000))
    before = clicks.get_batch(everything)
    try:
        clicks.add_batch(keys, pa.array([1] * 1000))
        number += 1
    except arrowstate.StorageFullError as error:
        errors.append(type(error).__name__)
        assert os.listdir(folder) == [], os.listdir(folder)
        assert clicks.get_batch(everything).equals(before)
    assert number < 40
backend.current_key = 1
for verb in (lambda: clicks.clear_batch(keys), lambda: city.update_batch(keys, ["x" * 1000] * 1000)):
    try:
        verb()
    except arrowstate.StorageFullError:
        errors.append("again")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
clicks.add_batch(keys, pa.array([1] * 1000))
number += 1
got = clicks.get_batch(everything).to_pylist()
print(json.dumps({"errors": errors, "number": number, "ones": got.count(1), "nulls": got.count(None),
                  "files": os.listdir(folder)}))
"""


@pytest.mark.parametrize("budget", [0, 100_000])
def test_a_full_disk_leaves_the_state_as_before_the_batch_and_no_file(tmp_path, budget):
    ran = python("-c", FULL, tmp_path, budget)

    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["errors"][:4] == ["StorageFullError"] * 4
    assert (result["ones"], result["nulls"]) == (result["number"] * 1000, 40_000 - result["number"] * 1000)
    assert result["files"] == []


def test_a_spill_folder_that_cannot_be_written_is_a_storage_error(tmp_path):
    place = tmp_path / "file"
    place.write_text("not a folder")
    table = Table(SCHEMA, 1, policy=POLICY, budget=Budget(0, place))
    put(table, range(10), range(10))

    with pytest.raises(StorageError):
        table.settle()

    assert read(table, [3]) == expected({3: 3}, [3])


def test_a_spilled_run_reads_like_the_batches_that_were_appended(tmp_path):
    sink = SpillSink(tmp_path, SCHEMA)
    batches = [
        pa.record_batch([[1, 2], [10, 20], [None, 2], [["a"], None]], schema=SCHEMA),
        pa.record_batch([[3], [30], [3], [[]]], schema=SCHEMA),
    ]

    for batch in batches:
        sink.append(batch)
    run = sink.finish()

    assert [segment.batch.to_pylist() for segment in run.segments] == [batch.to_pylist() for batch in batches]
    assert [segment.first_row for segment in run.segments] == [0, 2]
    assert (run.rows, run.live_rows, run.mapped) == (3, 3, True)
    assert list(tmp_path.iterdir()) == []
