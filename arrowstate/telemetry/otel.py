"""Spans and metrics of OpenTelemetry, made of the records of operations. Their names are a table of the documentation.

A span is made when the operation has ended, with the times of the record, under the span that was current when it
began. Nothing is imported before it is asked for, and what is not asked for costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from arrowstate.errors import CheckpointAbortedError, MissingDependencyError
from arrowstate.telemetry.records import OperationRecord, PartRecord, listen

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

_SCOPE = "arrowstate"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

Attributes: TypeAlias = Mapping[str, str | int | float]


def instrument(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Callable[[], None]:
    """Make spans and metrics of OpenTelemetry for all operations of this process on stores.

    Parameters
    ----------
    tracer_provider, meter_provider
        Those of the process by default.

    Returns
    -------
    Callable
        Ends it when it is called.

    Raises
    ------
    MissingDependencyError
        If the package `opentelemetry-api` is not installed: `pip install 'arrowstate[otel]'`.

    Examples
    --------
    >>> import arrowstate, arrowstate.telemetry, pyarrow as pa
    >>> from opentelemetry.sdk.trace import TracerProvider
    >>> from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    >>> from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    >>> exporter, provider = InMemorySpanExporter(), TracerProvider()
    >>> provider.add_span_processor(SimpleSpanProcessor(exporter))
    >>> stop = arrowstate.telemetry.instrument(tracer_provider=provider)
    >>> store = arrowstate.open_store("memory://instrument-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> with store.writer() as writer:
    ...     _ = writer.checkpoint({"people": [backend]})
    >>> stop()
    >>> [span.name for span in exporter.get_finished_spans()][-1]
    'arrowstate.checkpoint'
    """
    return listen(SpansAndMetrics(tracer_provider=tracer_provider, meter_provider=meter_provider))


class SpansAndMetrics:
    """A callback that makes spans and metrics from the records of operations; `instrument` uses it.

    As the `on_checkpoint` of a writer it covers the checkpoints of this writer only.

    Parameters
    ----------
    tracer_provider, meter_provider
        Those of the process by default.

    Raises
    ------
    MissingDependencyError
        If the package `opentelemetry-api` is not installed.

    Examples
    --------
    >>> import arrowstate, arrowstate.telemetry
    >>> store = arrowstate.open_store("memory://spans-example", create=True)
    >>> with store.writer(on_checkpoint=arrowstate.telemetry.SpansAndMetrics()) as writer:
    ...     pass
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError as error:
            raise MissingDependencyError("spans and metrics", "opentelemetry-api", "otel") from error
        # By its name: the package imports this module.
        version = sys.modules[_SCOPE].__version__
        self._tracer: Tracer = trace.get_tracer(_SCOPE, version, tracer_provider)
        meter = metrics.get_meter(_SCOPE, version, meter_provider)
        self._count = meter.create_counter("arrowstate.operations", "{operation}", "Operations that ended.")
        self._durations = meter.create_histogram(
            "arrowstate.operation.duration",
            "s",
            "From the beginning of an operation to its end.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._phases = meter.create_histogram(
            "arrowstate.checkpoint.phase.duration",
            "s",
            "How long a phase of a checkpoint took.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._written = meter.create_counter("arrowstate.operation.written", "By", "What operations wrote.")
        self._deleted = meter.create_counter("arrowstate.collection.deleted", "By", "What collections deleted.")
        self._size = meter.create_gauge(
            "arrowstate.checkpoint.size", "By", "What the newest checkpoint refers to, as far as it was measured."
        )
        self._rows = meter.create_gauge(
            "arrowstate.checkpoint.rows",
            "{row}",
            "The live rows of the newest checkpoint, as far as they were counted.",
        )

    def __call__(self, record: OperationRecord) -> None:
        """Make the spans of an operation, and add it to the metrics."""
        self._measure(record)
        self._trace(record)

    def _measure(self, record: OperationRecord) -> None:
        store = {"arrowstate.store.url": record.store}
        of_kind = {**store, "arrowstate.operation.name": record.kind}
        attributes = {**of_kind, "arrowstate.operation.outcome": record.outcome, **_error_type(record)}
        self._count.add(1, attributes)
        self._durations.record(record.duration_us / 1e6, attributes)
        if record.bytes_written is not None:
            self._written.add(record.bytes_written, of_kind)
        if record.bytes_deleted is not None:
            self._deleted.add(record.bytes_deleted, store)
        if record.kind != "checkpoint":
            return
        for phase in ("freeze", "alignment", "write", "commit"):
            taken_us = getattr(record, f"{phase}_us")
            if taken_us is not None:
                self._phases.record(taken_us / 1e6, {**store, "arrowstate.checkpoint.phase": phase})
        if record.outcome == "completed":
            for gauge, value in ((self._size, record.bytes_total), (self._rows, record.rows)):
                if value is not None:
                    gauge.set(value, store)

    def _trace(self, record: OperationRecord) -> None:
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        began_ns = record.started_at_ms * 1_000_000
        ended_ns = began_ns + record.duration_us * 1000
        parts = [part for part in record.parts if part.write_us is not None]
        attributes = dict(_attributes(record))
        if record.kind == "restore" and record.parts:
            # One that did not fail is its one part.
            attributes.update(_of_part(record.parts[0]))
        span = self._tracer.start_span(f"arrowstate.{record.kind}", attributes=attributes, start_time=began_ns)
        if record.outcome in ("failed", "unknown"):
            span.set_status(Status(StatusCode.ERROR, str(record.error)))

        def child(phase: str, began_ns: int, taken_us: int, attributes: Attributes) -> None:
            name = f"arrowstate.{record.kind}.{phase}"
            within = set_span_in_context(span)
            made: Span = self._tracer.start_span(name, within, attributes=attributes, start_time=began_ns)
            made.end(began_ns + taken_us * 1000)

        commit_ns = ended_ns - (record.commit_us or 0) * 1000
        if record.freeze_us is not None:
            child("freeze", began_ns, record.freeze_us, {})
        for part in parts:
            assert part.write_us is not None
            # Where tasks of a cluster write, all that is known is that they are done when the commit begins.
            latest_ns = max(began_ns, commit_ns - part.write_us * 1000)
            part_ns = latest_ns if part.write_after_us is None else began_ns + part.write_after_us * 1000
            child("subtask", part_ns, part.write_us, dict(_of_part(part)))
        if record.commit_us is not None:
            child("commit", commit_ns, record.commit_us, {})
        span.end(ended_ns)


def _attributes(record: OperationRecord) -> Iterator[tuple[str, str | int | float]]:
    yield "arrowstate.store.url", record.store
    yield "arrowstate.operation.outcome", record.outcome
    if record.checkpoint_id is not None:
        yield "arrowstate.checkpoint.id", record.checkpoint_id
    yield from _measured(record)
    if record.files_deleted is not None:
        yield "arrowstate.files.deleted", record.files_deleted
    if record.bytes_deleted is not None:
        yield "arrowstate.bytes.deleted", record.bytes_deleted
    yield from _error_type(record).items()


def _of_part(part: PartRecord) -> Iterator[tuple[str, str | int | float]]:
    yield "arrowstate.operator.uid", part.operator
    if part.subtask is not None:
        yield "arrowstate.subtask.index", part.subtask
    yield from _measured(part)


def _measured(item: OperationRecord | PartRecord) -> Iterator[tuple[str, int | float]]:
    for phase in ("freeze", "alignment", "write"):
        taken_us = getattr(item, f"{phase}_us")
        if taken_us is not None:
            yield f"arrowstate.{phase}.duration", taken_us / 1e6
    for name, value in (
        ("arrowstate.bytes.written", item.bytes_written),
        ("arrowstate.bytes.total", item.bytes_total),
        ("arrowstate.files.written", item.files_written),
        ("arrowstate.rows", item.rows),
    ):
        if value is not None:
            yield name, value


def _error_type(record: OperationRecord) -> dict[str, str]:
    error = record.error
    if error is None or record.outcome == "aborted":
        return {}
    if isinstance(error, CheckpointAbortedError) and error.__cause__ is not None:
        error = error.__cause__
    return {"error.type": f"{type(error).__module__}.{type(error).__qualname__}"}
