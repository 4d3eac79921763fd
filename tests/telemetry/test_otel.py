"""Spans and metrics of OpenTelemetry: what an exporter and a reader of its SDK get, and what it costs without."""

import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import arrowstate
from arrowstate.errors import CheckpointAbortedError, CommitUnknownError, StorageError
from arrowstate.telemetry import SpansAndMetrics, instrument
from arrowstate.telemetry.records import PartRecord, Recording, listen
from processes import python
from stores import TOTAL, backend_of, commit

START_MS = 1_700_000_000_000
TABLE = Path(__file__).parents[2] / "docs" / "operating" / "telemetry.md"


class Exported:
    """What was exported of a process."""

    def __init__(self):
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])

    @property
    def providers(self):
        return {"tracer_provider": self.tracers, "meter_provider": self.meters}

    def spans(self, name=None):
        return [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]

    def children(self, parent):
        return [span for span in self.spans() if span.parent and span.parent.span_id == parent.context.span_id]

    def points(self):
        """The points of each metric, {name: [(attributes, value or count and sum)]}."""
        data = self._reader.get_metrics_data()
        found = {}
        for resource in data.resource_metrics if data else ():
            for metric in resource.scope_metrics[0].metrics:
                for point in metric.data.data_points:
                    value = (point.count, point.sum) if hasattr(point, "count") else point.value
                    found.setdefault(metric.name, []).append((dict(point.attributes), value))
        return found


@pytest.fixture
def exported():
    found = Exported()
    stop = instrument(**found.providers)
    yield found
    stop()


def subtasks():
    made = []
    for subtask in range(2):
        groups = arrowstate.key_group_range(128, parallelism=2, subtask=subtask)
        backend = backend_of(key_groups=groups)
        found = arrowstate.key_groups(pa.array(range(5000)), 128).to_numpy()
        keys = pa.array([key for key in range(5000) if groups.start <= found[key] <= groups.end])
        backend.state(TOTAL).add_batch(keys, pa.array([1] * len(keys)))
        made.append(backend)
    return made


def one():
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(TOTAL).add_batch(pa.array(range(4000)), pa.array([1] * 4000))
    return backend


def live_through_everything(store, other):
    """Have every kind of operation done once, with all that can be told of it."""
    backend = one()
    offsets = arrowstate.OperatorStateBackend()
    offsets.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add_all([7])
    with store.writer(compaction=None) as writer:
        writer.checkpoint({"op": [backend]}, operator_states={"source": [offsets]})
        backend.state(TOTAL).clear_batch(pa.array(range(3500)))
        newest = writer.checkpoint({"op": [backend]}, operator_states={"source": [offsets]})
    newest.restore("op")
    store.savepoint("kept")
    other.import_savepoint(f"{store.url}/savepoints/kept")
    store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.1, min_bytes=0)).apply()
    store.collect(arrowstate.RetentionPolicy(count=1)).apply()


def test_a_checkpoint_is_a_span_with_a_child_for_each_phase_and_each_subtask(store, exported):
    records = []
    with (
        exported.tracers.get_tracer("job").start_as_current_span("batch") as batch,
        store.writer(on_checkpoint=records.append) as writer,
    ):
        writer.checkpoint({"op": subtasks()})

    (record,) = records
    (span,) = exported.spans("arrowstate.checkpoint")
    assert span.parent.span_id == batch.get_span_context().span_id
    assert (span.start_time, span.end_time) == (
        record.started_at_ms * 1_000_000,
        record.started_at_ms * 1_000_000 + record.duration_us * 1000,
    )
    assert dict(span.attributes) == {
        "arrowstate.store.url": store.url,
        "arrowstate.operation.outcome": "completed",
        "arrowstate.checkpoint.id": 1,
        "arrowstate.freeze.duration": record.freeze_us / 1e6,
        "arrowstate.write.duration": record.write_us / 1e6,
        "arrowstate.bytes.written": record.bytes_written,
        "arrowstate.bytes.total": record.bytes_total,
        "arrowstate.files.written": record.files_written,
        "arrowstate.rows": 5000,
    }
    children = exported.children(span)
    assert [child.name.removeprefix("arrowstate.checkpoint.") for child in children] == [
        "freeze",
        "subtask",
        "subtask",
        "commit",
    ]
    assert [child.attributes["arrowstate.subtask.index"] for child in children[1:3]] == [0, 1]
    assert sum(child.attributes["arrowstate.bytes.written"] for child in children[1:3]) == record.bytes_written
    for child in children:
        assert span.start_time <= child.start_time <= child.end_time <= span.end_time


def test_savepoints_and_restores_are_spans_with_their_bytes(store, exported, tmp_path):
    snapshot = commit(store, {"op": [one()]})
    records = []
    stop = listen(records.append)
    store.savepoint("kept")
    snapshot.restore("op")
    stop()

    (saved,), (restored,) = exported.spans("arrowstate.savepoint"), exported.spans("arrowstate.restore")
    common = {"arrowstate.store.url": store.url, "arrowstate.operation.outcome": "completed", "arrowstate.rows": 4000}
    assert dict(saved.attributes) == {
        **common,
        "arrowstate.checkpoint.id": 1,
        "arrowstate.bytes.written": records[0].bytes_written,
        "arrowstate.bytes.total": records[0].bytes_written,
        "arrowstate.files.written": 1,
    }
    assert dict(restored.attributes) == {
        **common,
        "arrowstate.checkpoint.id": 1,
        "arrowstate.bytes.total": records[1].bytes_total,
        "arrowstate.operator.uid": "op",
        "arrowstate.subtask.index": 0,
    }
    assert exported.children(saved) == exported.children(restored) == []
    written = {
        where["arrowstate.operation.name"]: value for where, value in exported.points()["arrowstate.operation.written"]
    }
    assert written["savepoint"] == records[0].bytes_written
    assert "restore" not in written


def test_a_checkpoint_of_a_coordinator_is_under_the_span_in_which_it_was_triggered(store, exported):
    tracer = exported.tracers.get_tracer("job")
    with store.writer() as writer, writer.coordinator({"op": [one()]}) as checkpoints:
        with tracer.start_as_current_span("first") as first:
            pending = checkpoints.trigger()
        pending.result()
        with tracer.start_as_current_span("second"):
            checkpoints.poll()

    (span,) = exported.spans("arrowstate.checkpoint")
    assert span.parent.span_id == first.get_span_context().span_id


def test_metrics_count_operations_by_outcome_and_measure_times_bytes_and_rows(store, exported):
    records = []
    stop = listen(records.append)
    with store.writer() as writer:
        first = writer.checkpoint({"op": subtasks()})
        writer.checkpoint({"op": subtasks()})
        with pytest.raises(arrowstate.InvalidInputError):
            writer.checkpoint({"op": subtasks()[:1]})
    first.restore("op")
    stop()

    points = exported.points()
    url = {"arrowstate.store.url": store.url}
    counted = {
        (where["arrowstate.operation.name"], where["arrowstate.operation.outcome"], where.get("error.type")): value
        for where, value in points["arrowstate.operations"]
    }
    assert counted == {
        ("checkpoint", "completed", None): 2,
        ("checkpoint", "failed", "arrowstate_formats.errors.InvalidInputError"): 1,
        ("restore", "completed", None): 1,
    }
    assert points["arrowstate.operation.written"] == [
        ({**url, "arrowstate.operation.name": "checkpoint"}, sum(record.bytes_written or 0 for record in records))
    ]
    assert points["arrowstate.checkpoint.rows"] == [(url, 5000)]
    assert points["arrowstate.checkpoint.size"] == [(url, records[1].bytes_total)]
    durations = {
        (where["arrowstate.operation.name"], where["arrowstate.operation.outcome"]): value
        for where, value in points["arrowstate.operation.duration"]
    }
    assert durations["checkpoint", "completed"] == (
        2,
        pytest.approx((records[0].duration_us + records[1].duration_us) / 1e6),
    )
    phases = {
        where["arrowstate.checkpoint.phase"]: count
        for where, (count, _) in points["arrowstate.checkpoint.phase.duration"]
    }
    assert phases == {"freeze": 2, "write": 2, "commit": 2}


def ended(outcome, error=None, **figures):
    """The record of a checkpoint that was not taken here."""
    records = []
    recording = Recording("checkpoint", "s3://bucket/store", START_MS, records.append, 90_000, **figures)
    recording.ended(outcome, error)()
    return records[0]


def test_a_failure_is_an_error_of_its_cause_and_what_was_given_up_is_none():
    exported = Exported()
    make = SpansAndMetrics(**exported.providers)
    declined = CheckpointAbortedError(7, "declined", "op[0] declined")
    declined.__cause__ = StorageError("data/1.arrow", "refused")

    make(ended("failed", declined, checkpoint_id=7))
    make(ended("aborted", CheckpointAbortedError(8, "cancelled", "enough"), checkpoint_id=8))
    make(ended("unknown", CommitUnknownError("log/9.json", "c", "the answer was lost")))

    assert [(span.status.status_code, span.attributes.get("error.type")) for span in exported.spans()] == [
        (StatusCode.ERROR, "arrowstate.errors.StorageError"),
        (StatusCode.UNSET, None),
        (StatusCode.ERROR, "arrowstate.errors.CommitUnknownError"),
    ]
    assert "arrowstate.checkpoint.size" not in exported.points()


def test_subtasks_of_a_cluster_whose_clocks_nobody_compared_end_when_the_commit_begins():
    exported = Exported()
    part = PartRecord(operator="op", subtask=3, freeze_us=1000, alignment_us=5000, write_us=20_000, bytes_written=64)

    SpansAndMetrics(**exported.providers)(ended("completed", commit_us=10_000, parts=[part]))

    (subtask,), (commit,) = (exported.spans(f"arrowstate.checkpoint.{name}") for name in ("subtask", "commit"))
    assert subtask.end_time == commit.start_time
    assert subtask.end_time - subtask.start_time == 20_000_000
    assert subtask.attributes["arrowstate.alignment.duration"] == 0.005
    assert {
        where["arrowstate.checkpoint.phase"] for where, _ in exported.points()["arrowstate.checkpoint.phase.duration"]
    } == {
        "freeze",
        "alignment",
        "write",
        "commit",
    }


def test_every_name_is_in_the_table_of_the_documentation_and_no_other(store, exported, tmp_path):
    live_through_everything(store, arrowstate.open_store(tmp_path / "other", create=True))
    make = SpansAndMetrics(**exported.providers)
    part = PartRecord(operator="op", subtask=0, alignment_us=1, write_us=1)
    make(ended("failed", StorageError("data/1.arrow", "refused"), parts=[part]))

    points = exported.points()
    used = {span.name for span in exported.spans()} | points.keys()
    used |= {name for span in exported.spans() for name in span.attributes}
    used |= {name for found in points.values() for where, _ in found for name in where}
    listed = re.findall(r"^\| `([a-z._]+)` \| (?:span|metric|attribute)", TABLE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(used)


def test_nothing_is_made_after_the_end(store, exported):
    found = Exported()
    instrument(**found.providers)()

    commit(store, {"op": [one()]})

    assert found.spans() == []
    assert exported.spans("arrowstate.checkpoint")


def test_importing_and_using_a_store_imports_nothing_of_opentelemetry():
    program = """
import sys, pyarrow as pa, arrowstate, arrowstate.telemetry
store = arrowstate.open_store("memory://without", create=True)
backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
told = []
with store.writer(on_checkpoint=told.append) as writer:
    writer.checkpoint({"op": [backend]}).restore("op")
assert told
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""

    done = python("-c", program, check=True)

    assert done.stdout == "[]\n"


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with pytest.raises(arrowstate.MissingDependencyError, match=r"pip install 'arrowstate\[otel\]'"):
        instrument()
