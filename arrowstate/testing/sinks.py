"""What a sink must keep, as a suite for sinks of one's own.

It tries what a job does to a sink: it commits, crashes, and commits the same again, from another process.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from arrowstate.runtime.connectors import Sink, Token
from arrowstate.testing.connectors import counted, pickled


class SinkConformance:
    """What every sink keeps; needs fixtures `sink`, `rows` and `visible`.

    `sink` is a new sink over a place that has no rows yet; `rows` a table of at least six rows that it takes; and
    `visible` a function without arguments that returns a table of all rows that a reader sees in the place then, with
    the columns of `rows`, in any order. The tests need `cloudpickle`, with which jobs pickle sinks.

    Examples
    --------
    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> from arrowstate.runtime import ParquetSink
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     SinkConformance().test_the_same_token_twice_is_once(
    ...         ParquetSink(folder), pa.table({"n": range(6)}), lambda: pq.read_table(folder)
    ...     )
    """

    def test_nothing_is_visible_before_a_commit(self, sink: Sink, visible: Callable[[], pa.Table]) -> None:
        sink.open("a-store", "a-sink")

        assert visible().num_rows == 0
        sink.close()

    def test_committed_rows_are_visible(self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]) -> None:
        sink.open("a-store", "a-sink")

        sink.commit(rows, _token(1))

        assert counted(visible().to_batches()) == counted(rows.to_batches())
        sink.close()
        assert counted(visible().to_batches()) == counted(rows.to_batches())

    def test_the_same_token_twice_is_once(self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]) -> None:
        sink.open("a-store", "a-sink")

        sink.commit(rows, _token(1))
        sink.commit(rows, _token(1))

        assert counted(visible().to_batches()) == counted(rows.to_batches())
        sink.close()

    def test_checkpoints_and_subtasks_come_one_after_the_other(
        self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]
    ) -> None:
        sink.open("a-store", "a-sink")
        pieces = [rows.slice(start, 1) for start in range(6)]
        tokens = [_token(checkpoint, subtask) for checkpoint in (3, 4, 9) for subtask in (0, 1)]

        for number, (piece, token) in enumerate(zip(pieces, tokens, strict=True), start=1):
            sink.commit(piece, token)
            assert counted(visible().to_batches()) == counted(rows.slice(0, number).to_batches())

        sink.close()

    def test_the_number_of_subtasks_may_change(
        self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]
    ) -> None:
        sink.open("a-store", "a-sink")
        pieces = iter([rows.slice(start, 1) for start in range(6)])

        for checkpoint, subtasks in ((1, 1), (2, 3), (3, 2)):
            for subtask in range(subtasks):
                sink.commit(next(pieces), _token(checkpoint, subtask))

        assert counted(visible().to_batches()) == counted(rows.slice(0, 6).to_batches())
        sink.close()

    def test_no_rows_are_committed_as_well(self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]) -> None:
        sink.open("a-store", "a-sink")

        sink.commit(rows.slice(0, 0), _token(1))
        sink.commit(rows.slice(0, 0), _token(1))
        sink.commit(rows, _token(2))
        sink.commit(rows.slice(0, 0), _token(3))

        assert counted(visible().to_batches()) == counted(rows.to_batches())
        sink.close()

    def test_after_a_crash_the_same_comes_again_and_then_more(
        self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]
    ) -> None:
        again = pickled(sink)
        sink.open("a-store", "a-sink")
        sink.commit(rows.slice(0, 2), _token(7, 0))
        # Nobody closes what crashed; the commit of subtask 1 has not come.
        again.open("a-store", "a-sink")

        again.commit(rows.slice(0, 2), _token(7, 0))
        again.commit(rows.slice(2, 2), _token(7, 1))
        again.commit(rows.slice(4), _token(8, 0))

        assert counted(visible().to_batches()) == counted(rows.to_batches())
        again.close()
        sink.close()

    def test_one_that_was_believed_dead_adds_nothing(
        self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]
    ) -> None:
        again = pickled(sink)
        sink.open("a-store", "a-sink")
        again.open("a-store", "a-sink")
        again.commit(rows.slice(0, 2), _token(7))
        again.commit(rows.slice(2), _token(8))

        sink.commit(rows.slice(0, 2), _token(7))

        assert counted(visible().to_batches()) == counted(rows.to_batches())
        again.close()
        sink.close()

    def test_rows_of_another_sink_of_the_job_are_others(
        self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]
    ) -> None:
        other = pickled(sink)
        sink.open("a-store", "a-sink")
        other.open("a-store", "another-sink")

        sink.commit(rows.slice(0, 3), _token(1))
        other.commit(rows.slice(3), Token("a-store", "another-sink", checkpoint_id=1, subtask=0))

        assert counted(visible().to_batches()) == counted(rows.to_batches())
        other.close()
        sink.close()

    def test_rows_of_another_job_are_never_taken_for_those_of_this_one(
        self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]
    ) -> None:
        other = pickled(sink)
        sink.open("a-store", "a-sink")
        sink.commit(rows.slice(0, 3), _token(1))
        other.open("another-store", "a-sink")

        try:
            other.commit(rows.slice(3), Token("another-store", "a-sink", checkpoint_id=1, subtask=0))
        except Exception:  # noqa: BLE001  # refusing them is as good, passing them over would lose them
            expected = rows.slice(0, 3)
        else:
            expected = rows

        assert counted(visible().to_batches()) == counted(expected.to_batches())
        other.close()
        sink.close()

    def test_a_job_that_begins_with_a_savepoint_of_another_adds_what_waits_once(
        self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]
    ) -> None:
        other = pickled(sink)
        sink.open("a-store", "a-sink")
        sink.commit(rows.slice(0, 3), _token(7))
        sink.close()
        other.open("another-store", "a-sink")

        # Rows of a savepoint keep the name of the store that they were accepted in.
        other.commit(rows.slice(0, 3), _token(7))
        other.commit(rows.slice(3), Token("another-store", "a-sink", checkpoint_id=8, subtask=0))

        assert counted(visible().to_batches()) == counted(rows.to_batches())
        other.close()

    def test_it_is_pickled_while_it_is_open_and_closed_twice(
        self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]
    ) -> None:
        sink.open("a-store", "a-sink")
        sink.commit(rows.slice(0, 2), _token(1))

        copy = pickled(sink)
        copy.open("a-store", "a-sink")
        copy.commit(rows.slice(2), _token(2))

        assert counted(visible().to_batches()) == counted(rows.to_batches())
        for each in (copy, sink):
            each.close()
            each.close()

    def test_it_is_opened_again_after_it_was_closed(
        self, sink: Sink, rows: pa.Table, visible: Callable[[], pa.Table]
    ) -> None:
        for checkpoint, piece in enumerate((rows.slice(0, 2), rows.slice(2)), start=1):
            sink.open("a-store", "a-sink")
            sink.commit(piece, _token(checkpoint))
            sink.close()

        assert counted(visible().to_batches()) == counted(rows.to_batches())


def _token(checkpoint_id: int, subtask: int = 0) -> Token:
    return Token("a-store", "a-sink", checkpoint_id, subtask)
