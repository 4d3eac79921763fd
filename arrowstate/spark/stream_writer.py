"""The writer that `keyed_sink` and `stateful` return, and the query that its `start()` returns.

Both are PySpark's own classes, of the kind of session at hand, with a few methods more: figures of a micro-batch
cannot enter Spark's progress from outside the JVM, so the query adds to each progress what the log says of the batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from pyspark import errors
from pyspark.sql.streaming.listener import StreamingQueryProgress

from arrowstate.errors import ArrowStateError, InvalidInputError
from arrowstate.log.commit_log import CommitLog
from arrowstate.spark.pyspark_internals import of_kind
from arrowstate.spark.read.progress import committed_batches
from arrowstate.spark.workers import is_connect
from arrowstate.storage.registry import open_storage

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["METRICS", "QueryStart", "writer_of"]

METRICS = "arrowstate"
"""The name of our figures among the observed metrics of a progress."""

_MOST_KNOWN = 1000
"""So many micro-batches have their figures in memory, the last ones; Spark itself keeps the progress of 100."""

_PicklingError: type[Exception] = getattr(errors, "PySparkPicklingError", PicklingError)
"""PySpark's own, which 3.5 has not."""

_logger = logging.getLogger("arrowstate.spark")


@dataclass(frozen=True)
class QueryStart:
    """What a writer needs to start a query."""

    store: str
    storage_options: Mapping[str, Any] | None = field(repr=False)
    function: Callable[[Mapping[str, str]], Callable[[Any, int], None]]
    """Returns, given the options of the writer, what `foreachBatch` calls."""


def writer_of(writer: DataStreamWriter, start: QueryStart) -> DataStreamWriter:
    """Return a writer like another, whose query knows the store."""
    kind: Any = type(writer)
    made: DataStreamWriter = of_kind(writer, _writer_class(kind), _start=start, _options={})
    return made


class _StreamWriter:
    """What is added to PySpark's writer."""

    _start: QueryStart
    _options: dict[str, str]
    """By name in lower case, as Spark compares them; the output mode is one of them."""

    def option(self, key: str, value: Any) -> Any:
        self._options[key.lower()] = str(value)
        return super().option(key, value)  # type: ignore[misc]

    def outputMode(self, outputMode: str) -> Any:  # noqa: N803
        self._options["outputmode"] = outputMode
        return super().outputMode(outputMode)  # type: ignore[misc]

    def options(self, **options: Any) -> Any:
        for key, value in options.items():
            self.option(key, value)
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> Any:
        """Start the query; its progress has our figures under `observedMetrics["arrowstate"]`."""
        if format is not None:
            self.format(format)
        self.options(**options)
        if outputMode is not None:
            self.outputMode(outputMode)
        self._process_with(self._start.function(self._options))
        query = super().start(path, partitionBy=partitionBy, queryName=queryName)  # type: ignore[misc]
        kind: Any = type(query)
        return of_kind(query, _query_class(kind), _start=self._start, _known={})

    def _process_with(self, function: Callable[[Any, int], None]) -> None:
        if not is_connect(self):
            super().foreachBatch(function)  # type: ignore[misc]
            return
        try:
            super().foreachBatch(function)  # type: ignore[misc]
        except (PicklingError, _PicklingError, TypeError, AttributeError) as error:
            # PySpark's own error leaves out what it was that could not be pickled.
            reason = error.__context__ if isinstance(error, _PicklingError) else None
            raise InvalidInputError(
                "on Spark Connect operators and functions are pickled for the server, and one of these cannot be: "
                f"{reason or error}; make sessions, DataFrames, files and locks inside of them, an operator's in open"
            ) from error

    def format(self, source: str) -> Any:
        raise InvalidInputError(f"a stateful query writes to its store, not to {source!r}; leave the format out")

    def foreach(self, f: Any) -> Any:  # noqa: ARG002
        raise InvalidInputError(_NO_FUNCTION.format("foreach"))

    def foreachBatch(self, func: Any) -> Any:  # noqa: ARG002
        raise InvalidInputError(_NO_FUNCTION.format("foreachBatch"))

    def toTable(self, tableName: str, *_: Any, **__: Any) -> Any:  # noqa: N803
        raise InvalidInputError(
            f"a stateful query writes to its store, not to the table {tableName!r}; start it with start()"
        )


class _MeteredQuery:
    """What is added to PySpark's query."""

    _start: QueryStart
    _known: dict[int, Mapping[str, int]]
    """By batch id, the figures read so far."""

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The last progress, with our figures under `observedMetrics["arrowstate"]`."""
        progress = super().lastProgress  # type: ignore[misc]
        return None if progress is None else self._with_metrics([progress])[0]

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """The recent progress, with our figures under `observedMetrics["arrowstate"]`."""
        return self._with_metrics(super().recentProgress)  # type: ignore[misc]

    def _with_metrics(self, given: Sequence[StreamingQueryProgress]) -> list[StreamingQueryProgress]:
        ids = [_batch_id(progress) for progress in given]
        try:
            self._learn(set(ids) - self._known.keys())
        except ArrowStateError as error:
            # Spark's own figures are not lost because a store cannot be read for a while.
            _logger.warning("the progress of query %s lacks the figures of arrowstate: %s", self.id, error)  # type: ignore[attr-defined]
        found = [_joined(progress, self._known.get(number)) for number, progress in zip(ids, given, strict=True)]
        # A query may run for years.
        for number in sorted(self._known)[:-_MOST_KNOWN]:
            self._known.pop(number, None)
        return found

    def _learn(self, wanted: set[int]) -> None:
        if not wanted:
            return
        oldest = min(wanted)
        log = CommitLog(open_storage(self._start.store, storage_options=self._start.storage_options))
        for _, record in committed_batches(log):
            assert record.batch_id is not None, "only fences have none"
            if record.query_id != self.id or record.batch_id < oldest:  # type: ignore[attr-defined]
                break
            self._known[record.batch_id] = record.metrics


def _batch_id(progress: Any) -> int:
    """The micro-batch of a progress, which is a plain dict in PySpark 3.5."""
    number: int = progress["batchId"] if type(progress) is dict else progress.batchId
    return number


def _joined(progress: Any, metrics: Mapping[str, int] | None) -> Any:
    """The progress with our figures, in its text too."""
    if not metrics:
        return progress
    if type(progress) is dict:
        return {**progress, "observedMetrics": {**progress.get("observedMetrics", {}), METRICS: dict(metrics)}}
    text = json.loads(progress.json)
    text["observedMetrics"] = {**text.get("observedMetrics", {}), METRICS: dict(metrics)}
    return StreamingQueryProgress.fromJson(text)


_NO_FUNCTION = (
    "a stateful query writes to its store and calls no function of {}; what an operator emits reaches one by "
    "stateful(...).foreach_batch(function)"
)


@cache
def _writer_class(base: Any) -> type:
    return type("ArrowStateStreamWriter", (_StreamWriter, base), {})


@cache
def _query_class(base: Any) -> type:
    return type("ArrowStateStreamingQuery", (_MeteredQuery, base), {})
