"""What a source must keep, as a suite for sources of one's own.

It tries what a job does to a source: it pickles it, reads splits in pieces of any size, leaves off anywhere, and goes
on in another process from a position that a checkpoint has.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from arrowstate.runtime.connectors import Batch, EndOfSplit, Reader, Source, Split
from arrowstate.testing.connectors import counted, pickled

_MAX_ROWS = [1, 2, 3, 7, 64, 100_000]
_POSITIONS = 20
"""From how many positions of a split it is read again."""

_PATIENCE = 10_000
"""How often a reader is asked that has nothing, before it is believed."""

_AT_ONCE = 1_000
"""After so many times it is left a millisecond each time, for its rows may come from elsewhere."""


class SourceConformance:
    """What every source keeps; needs fixtures `source`, and `rows`: a table of all its rows, in any order.

    A source that is not bounded is read until it has given as many rows. Rows are compared as they are, so they need
    no key. The tests need some ten to a thousand rows, better with several splits; and `cloudpickle`, with which jobs
    pickle sources.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import TableSource
    >>> rows = pa.table({"n": range(10)})
    >>> suite = SourceConformance()
    >>> suite.test_all_rows_are_read_once(TableSource(rows, splits=2), rows, max_rows=3)
    """

    def test_splits_have_names_of_their_own_and_are_found_again(self, source: Source) -> None:
        first, second = source.discover(()), source.discover(())

        names = [split.id for split in first]
        assert names == [split.id for split in second]
        assert len(set(names)) == len(names)
        assert all(names)

    def test_known_splits_are_not_discovered_again(self, source: Source) -> None:
        names = [split.id for split in source.discover(())]

        assert source.discover(names) == []
        for name in names:
            assert [split.id for split in source.discover([name])] == [other for other in names if other != name]

    @pytest.mark.parametrize("max_rows", _MAX_ROWS)
    def test_all_rows_are_read_once(self, source: Source, rows: pa.Table, max_rows: int) -> None:
        read = _read(source, source.discover(()), rows.num_rows, max_rows)

        assert counted(batch.rows for batch in read) == counted(rows.to_batches())

    @pytest.mark.parametrize("max_rows", _MAX_ROWS)
    def test_batches_have_the_schema_and_no_more_rows_than_were_asked_for(
        self, source: Source, rows: pa.Table, max_rows: int
    ) -> None:
        names = {split.id for split in source.discover(())}

        for batch in _read(source, source.discover(()), rows.num_rows, max_rows):
            assert batch.rows.schema.equals(source.schema), batch.rows.schema
            assert batch.rows.num_rows <= max_rows
            assert batch.split in names
            batch.rows.validate(full=True)
            if batch.unread is not None:
                assert batch.unread.rows.schema.equals(source.unread_schema), batch.unread.rows.schema
                counts = {len(batch.unread.positions), len(batch.unread.errors), len(batch.unread.reasons)}
                assert counts == {batch.unread.rows.num_rows}

    def test_a_split_has_its_rows_in_one_order_whatever_is_asked_for(self, source: Source, rows: pa.Table) -> None:
        orders = [
            _by_split(_read(source, source.discover(()), rows.num_rows, max_rows)) for max_rows in (1, 3, 100_000)
        ]

        assert orders[0] == orders[1] == orders[2]

    def test_positions_are_kept_in_a_checkpoint_as_they_are(self, source: Source, rows: pa.Table) -> None:
        splits = source.discover(())

        positions = [batch.position for batch in _read(source, splits, rows.num_rows, 7)]

        positions += [split.position for split in splits]
        assert [_stored(source, position) for position in positions] == positions

    def test_a_split_is_read_again_from_every_position(self, source: Source, rows: pa.Table) -> None:
        splits = source.discover(())
        read = _read(source, splits, rows.num_rows, 3)
        order = _by_split(read)

        for split in splits:
            given = [Batch(pa.RecordBatch.from_pylist([], source.schema), split.id, split.position)]
            given += [batch for batch in read if batch.split == split.id]
            ends = 0
            for number, batch in enumerate(given):
                ends += batch.rows.num_rows
                if number % max(1, len(given) // _POSITIONS) and number != len(given) - 1:
                    continue
                rest = order.get(split.id, [])[ends:]
                position = _stored(source, batch.position)
                again = _read(source, [Split(split.id, position)], len(rest), 5)
                assert _by_split(again).get(split.id, []) == rest, f"split {split.id!r} from {position!r}"

    def test_a_sequential_source_reads_one_split_after_another(self, source: Source, rows: pa.Table) -> None:
        if not source.is_sequential:
            pytest.skip("the source does not say that it is sequential")

        read = [batch.split for batch in _read(source, source.discover(()), rows.num_rows, 2)]

        turns = [name for number, name in enumerate(read) if number == 0 or read[number - 1] != name]
        assert len(set(turns)) == len(turns), turns

    def test_a_split_ends_once_and_at_the_end_again(self, source: Source, rows: pa.Table) -> None:
        splits = source.discover(())
        reading = _Reading(source, splits)

        reading.until(rows.num_rows, 7)
        if not source.is_bounded:
            reading.reader.close()
            return
        reading.to_end(len(splits))

        assert sorted(reading.ended) == sorted(split.id for split in splits)
        assert not any(reading.step(7) for _ in range(3))
        reading.reader.close()
        last = {split.id: split.position for split in splits}
        last.update({batch.split: batch.position for batch in reading.batches})
        again = _Reading(source, [Split(name, _stored(source, position)) for name, position in last.items()])
        again.to_end(len(splits))
        assert again.count == 0
        again.reader.close()

    def test_a_reader_without_splits_has_nothing(self, source: Source) -> None:
        reader = source.reader()

        assert reader.read(10) is None
        reader.close()

    def test_splits_may_come_later(self, source: Source, rows: pa.Table) -> None:
        reading = _Reading(source)

        for split in source.discover(()):
            reading.step(2)
            reading.reader.add([split])
        reading.until(rows.num_rows, 7)
        reading.reader.close()

        assert _by_split(reading.batches) == _by_split(_read(source, source.discover(()), rows.num_rows, 7))

    def test_two_readers_share_the_splits(self, source: Source, rows: pa.Table) -> None:
        splits = source.discover(())
        order = _by_split(_read(source, splits, rows.num_rows, 7))

        parts = [splits[0::2], splits[1::2]]
        counts = [sum(len(order.get(split.id, [])) for split in part) for part in parts]
        read = [batch for part, count in zip(parts, counts, strict=True) for batch in _read(source, part, count, 7)]

        assert _by_split(read) == order

    def test_a_split_that_pauses_gives_no_rows_and_then_the_rest(self, source: Source, rows: pa.Table) -> None:
        splits = source.discover(())
        order = _by_split(_read(source, splits, rows.num_rows, 7))
        reading = _Reading(source, splits)
        if type(reading.reader).pause is Reader.pause:
            pytest.skip("the reader does not say that it can pause")
        reading.step(1)
        before = _by_split(reading.batches)
        paused = next(iter(before), splits[0].id)
        others = sum(len(found) for name, found in order.items() if name != paused)

        reading.reader.pause({paused})
        reading.until(others + len(before.get(paused, [])), 2)
        for _ in range(len(splits) + 3):
            reading.step(2)
        during = _by_split(reading.batches)
        reading.reader.pause(())
        reading.until(rows.num_rows, 2)

        assert during.get(paused, []) == before.get(paused, [])
        assert paused not in reading.ended or len(order.get(paused, [])) == len(before.get(paused, []))
        assert _by_split(reading.batches) == order
        reading.reader.close()

    def test_it_is_the_same_in_another_process(self, source: Source, rows: pa.Table) -> None:
        copy = pickled(source)

        assert copy.schema.equals(source.schema)
        assert copy.position_type.equals(source.position_type)
        assert (copy.is_bounded, copy.discovery_ms) == (source.is_bounded, source.discovery_ms)
        assert copy.is_sequential == source.is_sequential
        splits = source.discover(())
        assert [split.id for split in copy.discover(())] == [split.id for split in splits]
        assert _by_split(_read(copy, splits, rows.num_rows, 7)) == _by_split(_read(source, splits, rows.num_rows, 7))

    def test_it_is_pickled_after_it_was_read(self, source: Source, rows: pa.Table) -> None:
        order = _by_split(_read(source, source.discover(()), rows.num_rows, 7))

        copy = pickled(source)

        assert _by_split(_read(copy, copy.discover(()), rows.num_rows, 7)) == order

    def test_a_reader_takes_note_of_commits_and_is_closed_anywhere(self, source: Source) -> None:
        reader = source.reader()
        reader.add(source.discover(()))
        item = reader.read(1)

        reader.committed({item.split: item.position} if isinstance(item, Batch) else {})
        reader.read(1)

        reader.close()
        reader.close()


class _Reading:
    """A reader while it is read, and what it has given."""

    def __init__(self, source: Source, splits: Sequence[Split] = ()) -> None:
        self.reader = source.reader()
        self.batches: list[Batch] = []
        self.ended: list[str] = []
        self.count = 0
        if splits:
            self.reader.add(splits)

    def step(self, max_rows: int) -> bool:
        """Ask once, and return whether there was something."""
        item = self.reader.read(max_rows)
        assert item is None or item.split not in self.ended, f"split {item.split!r} has ended before"
        if isinstance(item, Batch):
            self.batches.append(item)
            self.count += item.rows.num_rows
        elif isinstance(item, EndOfSplit):
            self.ended.append(item.split)
        return item is not None

    def until(self, rows: int, max_rows: int) -> None:
        """Read until there were so many rows."""
        nothing = 0
        while self.count < rows:
            nothing = 0 if self.step(max_rows) else _after(nothing)
            assert nothing < _PATIENCE, f"the reader has given {self.count} of {rows} rows and has nothing more"
        assert self.count == rows, f"the reader has given {self.count} rows, more than the {rows} there are"

    def to_end(self, splits: int) -> None:
        """Read until so many splits have ended."""
        nothing = 0
        while len(self.ended) < splits:
            nothing = 0 if self.step(100_000) else _after(nothing)
            assert nothing < _PATIENCE, f"only {len(self.ended)} of {splits} splits have ended"


def _after(nothing: int) -> int:
    """Count a reader's having nothing, and leave it time if it has nothing for long."""
    if nothing > _AT_ONCE:
        time.sleep(0.001)
    return nothing + 1


def _read(source: Source, splits: Sequence[Split], rows: int, max_rows: int) -> list[Batch]:
    """Return what a new reader gives of splits with so many rows."""
    reading = _Reading(source, splits)
    reading.until(rows, max_rows)
    if source.is_bounded:
        reading.to_end(len(splits))
    reading.reader.close()
    assert reading.count == rows, f"the reader has given {reading.count} rows, more than the {rows} there are"
    return reading.batches


def _by_split(batches: Sequence[Batch]) -> dict[str, list[str]]:
    """Return the rows of each split in their order."""
    found: dict[str, list[str]] = {}
    for batch in batches:
        if batch.rows.num_rows:
            found.setdefault(batch.split, []).extend(map(repr, batch.rows.to_pylist()))
    return found


def _stored(source: Source, position: Any) -> Any:
    """Return a position as it comes back from a checkpoint."""
    return pa.array([position], source.position_type).to_pylist()[0]
