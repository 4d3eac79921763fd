"""What a sink must keep that rows are streamed to before their checkpoint is committed, as a suite for one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from arrowstate.runtime.connectors import PreparingSink, SinkWriter
from arrowstate.testing.connectors import counted, pickled

Visible = Callable[[], pa.Table]


class PreparingSinkConformance:
    """What every sink keeps that prepares; needs fixtures `sink`, `rows` and `visible`.

    `sink` is a new sink over a place that has no rows yet; `rows` a table of at least six rows that it takes; and
    `visible` a function without arguments that returns a table of all rows that a reader sees in the place then, with
    the columns of `rows`, in any order. The tests need `cloudpickle`, with which jobs pickle sinks.

    Examples
    --------
    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> from arrowstate.runtime import BulkParquetSink
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     PreparingSinkConformance().test_what_is_committed_twice_is_there_once(
    ...         BulkParquetSink(folder), pa.table({"n": range(6)}), lambda: pq.read_table(folder)
    ...     )
    """

    def test_prepared_rows_are_visible_with_their_commit_and_not_before(
        self, sink: PreparingSink, rows: pa.Table, visible: Visible
    ) -> None:
        writer = _writer(sink)
        _write(writer, rows)
        assert visible().num_rows == 0

        prepared = writer.prepare(1)
        assert visible().num_rows == 0

        sink.commit(prepared)
        assert _same(visible(), rows)
        writer.abort()
        assert _same(visible(), rows)

    def test_what_is_committed_twice_is_there_once(self, sink: PreparingSink, rows: pa.Table, visible: Visible) -> None:
        writer = _writer(sink)
        _write(writer, rows)
        prepared = writer.prepare(1)

        sink.commit(prepared)
        sink.commit(prepared)
        pickled(sink).commit(_stored(sink, prepared))

        assert _same(visible(), rows)

    def test_rows_after_a_checkpoint_are_of_the_next(
        self, sink: PreparingSink, rows: pa.Table, visible: Visible
    ) -> None:
        writer = _writer(sink)

        _write(writer, rows.slice(0, 2))
        first = writer.prepare(3)
        _write(writer, rows.slice(2))
        sink.commit(first)
        assert _same(visible(), rows.slice(0, 2))
        sink.commit(writer.prepare(7))

        assert _same(visible(), rows)

    def test_no_rows_are_no_committables(self, sink: PreparingSink, rows: pa.Table, visible: Visible) -> None:
        writer = _writer(sink)

        before = writer.prepare(1)
        _write(writer, rows)
        between = writer.prepare(2)
        after = writer.prepare(3)

        assert (before.num_rows, after.num_rows) == (0, 0)
        assert between.num_rows > 0
        for prepared in (before, between, after):
            assert prepared.schema.equals(sink.committable_schema)
            sink.commit(prepared)
        assert _same(visible(), rows)

    def test_committables_of_several_subtasks_and_checkpoints_are_committed_together(
        self, sink: PreparingSink, rows: pa.Table, visible: Visible
    ) -> None:
        writers = [_writer(sink, subtask) for subtask in range(2)]
        prepared = []

        for number, checkpoint in enumerate((1, 2, 5)):
            for subtask, writer in enumerate(writers):
                _write(writer, rows.slice(2 * number + subtask, 1))
                prepared.append(writer.prepare(checkpoint))
        sink.commit(_stored(sink, *prepared))

        assert _same(visible(), rows.slice(0, 6))

    def test_another_process_commits_what_was_prepared_before_a_crash(
        self, sink: PreparingSink, rows: pa.Table, visible: Visible
    ) -> None:
        again = pickled(sink)
        writer = _writer(sink)
        _write(writer, rows.slice(0, 3))
        prepared = _stored(sink, writer.prepare(7))
        # Nobody aborts what crashed.
        _write(writer, rows.slice(3))

        again.commit(prepared)
        again.recover("a-store", "a-sink", prepared)
        assert _same(visible(), rows.slice(0, 3))
        writer = _writer(again, attempt="2")
        _write(writer, rows.slice(3))
        again.commit(writer.prepare(8))

        assert _same(visible(), rows)

    def test_a_checkpoint_that_was_never_committed_is_prepared_again(
        self, sink: PreparingSink, rows: pa.Table, visible: Visible
    ) -> None:
        writer = _writer(sink)
        _write(writer, rows)
        writer.prepare(7)

        again = pickled(sink)
        again.recover("a-store", "a-sink", _stored(sink))
        writer = _writer(again, attempt="2")
        _write(writer, rows)
        again.commit(writer.prepare(7))

        assert _same(visible(), rows)

    def test_what_was_thrown_away_is_not_committed_in_silence(
        self, sink: PreparingSink, rows: pa.Table, visible: Visible
    ) -> None:
        writer = _writer(sink)
        _write(writer, rows)
        prepared = writer.prepare(1)
        sink.recover("a-store", "a-sink", _stored(sink))

        with pytest.raises(Exception):  # noqa: B017  # whatever says that it is lost
            sink.commit(prepared)

        assert visible().num_rows == 0

    def test_what_was_aborted_is_never_visible(self, sink: PreparingSink, rows: pa.Table, visible: Visible) -> None:
        writer = _writer(sink)
        _write(writer, rows)

        writer.abort()
        writer.abort()
        sink.recover("a-store", "a-sink", _stored(sink))

        assert visible().num_rows == 0

    def test_what_is_committed_stays_when_the_job_starts_again(
        self, sink: PreparingSink, rows: pa.Table, visible: Visible
    ) -> None:
        writer = _writer(sink)
        _write(writer, rows)
        prepared = writer.prepare(1)
        sink.commit(prepared)

        for committed in (prepared, _stored(sink)):
            again = pickled(sink)
            again.commit(committed)
            again.recover("a-store", "a-sink", committed)

        assert _same(visible(), rows)

    def test_other_sinks_of_the_job_are_left_alone(self, sink: PreparingSink, rows: pa.Table, visible: Visible) -> None:
        other = pickled(sink)
        writer, others = _writer(sink), other.writer("a-store", "a-sink-2", 0, "1")
        _write(writer, rows.slice(0, 3))
        _write(others, rows.slice(3))
        prepared = others.prepare(1)

        sink.recover("a-store", "a-sink", _stored(sink))
        other.commit(prepared)

        assert _same(visible(), rows.slice(3))

    def test_attempts_do_not_meet(self, sink: PreparingSink, rows: pa.Table, visible: Visible) -> None:
        writers = [_writer(sink, attempt=attempt) for attempt in ("1", "2")]
        for writer in writers:
            _write(writer, rows)

        prepared = [writer.prepare(7) for writer in writers]
        sink.commit(prepared[1])

        assert _same(visible(), rows)


def _writer(sink: PreparingSink, subtask: int = 0, attempt: str = "1") -> SinkWriter:
    return pickled(sink).writer("a-store", "a-sink", subtask, attempt)


def _write(writer: SinkWriter, rows: pa.Table) -> None:
    for batch in rows.to_batches(max_chunksize=2):
        writer.write(batch)


def _stored(sink: PreparingSink, *prepared: pa.RecordBatch) -> pa.RecordBatch:
    """Return committables as they come back from a checkpoint."""
    rows: Sequence[dict[str, object]] = [row for batch in prepared for row in batch.to_pylist()]
    return pa.RecordBatch.from_pylist(rows, schema=sink.committable_schema)


def _same(visible: pa.Table, rows: pa.Table) -> bool:
    return counted(visible.to_batches()) == counted(rows.to_batches())
