"""Sources of rows that are made in the process: by an iterator, by a function, or from a table.

What they are given travels to the slots of a job, and must give the same rows there whenever it is asked again.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate

import pyarrow as pa

from arrowstate.errors import InvalidInputError, SourceError
from arrowstate.runtime.connectors import Reader, Source, Split
from arrowstate.runtime.sources.reading import (
    ChunkedSplit,
    OpenSplit,
    SplitsReader,
    as_declared,
    check_names,
    checked_schema,
    row_number,
)
from arrowstate.shown import error_text


class IteratorSource(Source):
    """The rows of iterators that can be made again at any row.

    Parameters
    ----------
    make : callable
        `make(split, position)` returns an iterator of record batches that begins with row `position` of split number
        `split`, both from 0; it may be a generator. Called again, it must return the same rows, in batches of any
        sizes; batches larger than asked for are cut. If it has no rows now, it may yield None or a batch without rows,
        and is asked again.
    schema : pa.Schema
        The columns of the rows; those of each batch must be of the same names and types, in the same order.
    splits : int, default 1
        How many splits there are, each of which is read by one subtask.
    is_bounded : bool, default True
        Whether the iterators end.

    Raises
    ------
    InvalidInputError
        If an argument is wrong. What is wrong with the rows is told when they are read, as a
        `SourceError` with split and position; so is what an iterator raises, which is its `__cause__`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import IteratorSource, Split
    >>> def letters(split, position):
    ...     for row in range(position, 3):
    ...         yield pa.record_batch({"letter": ["abc"[row]]})
    >>> reader = IteratorSource(letters, pa.schema({"letter": pa.string()})).reader()
    >>> reader.add([Split("0", position=2)])
    >>> reader.read(max_rows=100).rows.to_pydict(), reader.read(max_rows=100)
    ({'letter': ['c']}, EndOfSplit(split='0'))
    """

    def __init__(
        self,
        make: Callable[[int, int], Iterator[pa.RecordBatch | None]],
        schema: pa.Schema,
        *,
        splits: int = 1,
        is_bounded: bool = True,
    ) -> None:
        self.make = make
        self.schema = checked_schema(schema)
        self.splits = _at_least_one("splits", splits)
        self.is_bounded = is_bounded

    def check_splits(self, begun: Sequence[Split], finished: Sequence[Split]) -> None:
        """Refuse another number of splits."""
        check_names(self._names(), [*begun, *finished])

    def discover(self, known: Collection[str]) -> Sequence[Split]:
        """Return the splits `0` to `splits - 1`."""
        return _unknown(self._names(), known)

    def reader(self) -> Reader:
        """Return a reader that takes a batch of each of its splits in turn."""
        return SplitsReader(self._open, in_turn=True)

    def _open(self, split: Split) -> OpenSplit:
        row = row_number(split, split.position)
        number = _index(self._names(), split)
        try:
            chunks = iter(self.make(number, row))
        except Exception as error:
            raise SourceError(split.id, split.position, error_text(error)) from error
        return _Iterated(split, chunks, self.schema, row)

    def _names(self) -> list[str]:
        return [str(number) for number in range(self.splits)]


class _Iterated(ChunkedSplit):
    """A split of an iterator, which may give batches without rows for ever."""

    def next_chunk(self) -> pa.RecordBatch | None:
        chunk = super().next_chunk()
        return None if chunk is None or not chunk.num_rows else chunk


class GeneratorSource(Source):
    """Rows that a function makes of their numbers.

    Parameters
    ----------
    function : callable
        `function(first, count)` returns a record batch of the rows from number `first` to before `first + count`. It
        must return the same rows for the same numbers, and may be asked for any numbers.
    schema : pa.Schema
        The columns of the rows.
    rows : int, optional
        How many rows there are; without end if it is not given.
    splits : int, default 1
        How many splits there are, each of which is read by one subtask. They take blocks of `batch_rows` rows in turn
        (smaller ones where `rows` are too few for that), so that they go through the numbers together.
    rows_per_second : float, optional
        How many rows come in a second, over all splits; by default as many as the job can process. The clock starts
        with a reader; if a slow job falls behind, the missing rows come as fast as it can process them.
    batch_rows : int, default 65_536
        The largest batch.
    clock : callable, default time.monotonic
        Where the time in seconds comes from.

    Raises
    ------
    InvalidInputError
        If an argument is wrong. What is wrong with the rows is told when they are read, as a
        `SourceError` with split and position; so is what the function raises, which is its `__cause__`.

    Notes
    -----
    With one split a position is the number of the next row. With several, the layout is part of the names of the
    splits: a job that is started again with other `splits`, or with `batch_rows` or `rows` that change the blocks, is
    refused. A job is also refused if a split that goes on has fewer rows now than were read, or if one that was read to
    its end has more, since they would never be read. `rows` may grow while no split has been read to its end.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa
    >>> from arrowstate.runtime import GeneratorSource
    >>> def squares(first, count):
    ...     return pa.record_batch({"square": np.arange(first, first + count) ** 2})
    >>> source = GeneratorSource(squares, pa.schema({"square": pa.int64()}), rows=5)
    >>> reader = source.reader()
    >>> reader.add(source.discover(known=()))
    >>> reader.read(max_rows=3).rows.to_pydict(), reader.read(max_rows=3).rows.to_pydict()
    ({'square': [0, 1, 4]}, {'square': [9, 16]})
    """

    def __init__(
        self,
        function: Callable[[int, int], pa.RecordBatch],
        schema: pa.Schema,
        *,
        rows: int | None = None,
        splits: int = 1,
        rows_per_second: float | None = None,
        batch_rows: int = 65_536,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.function = function
        self.schema = checked_schema(schema)
        self.splits = _at_least_one("splits", splits)
        self.batch_rows = _at_least_one("batch_rows", batch_rows)
        if rows is not None:
            if rows < 0:
                raise InvalidInputError(f"rows must be at least 0, got {rows}")
            self.batch_rows = min(batch_rows, max(1, -(-rows // splits)))
        if rows_per_second is not None and not rows_per_second > 0:
            raise InvalidInputError(f"rows_per_second must be above 0, got {rows_per_second}")
        self.rows = rows
        self.is_bounded = rows is not None
        self.rows_per_second = rows_per_second
        self.clock = clock

    def together(self, first: int, count: int) -> int:  # noqa: ARG002
        """Return how many of some rows can be in one batch."""
        return count

    def check_splits(self, begun: Sequence[Split], finished: Sequence[Split]) -> None:
        """Refuse another layout, fewer rows than were read of a split that goes on, more in one that was read."""
        names = self._names()
        check_names(names, [*begun, *finished])
        for split in begun:
            self.check_row(split, names.index(split.id))
        for split in finished:
            read, there = row_number(split, split.position), self.length(names.index(split.id))
            # Of fewer rows none would be read twice, and none left out.
            if there is None or there > read:
                raise SourceError(
                    split.id,
                    split.position,
                    f"it was read to its end, which was after {read} rows, and has "
                    f"{'no end' if there is None else f'{there} rows'} now; start it with the rows that it had, and "
                    "give further rows in a source with another uid",
                )

    def check_row(self, split: Split, number: int) -> int:
        """Return the row at which a split goes on; refuse one after its end."""
        row, there = row_number(split, split.position), self.length(number)
        if there is not None and row > there:
            raise SourceError(
                split.id,
                split.position,
                f"the split has only {there} rows; start it with the rows that it had, or give it another uid, under "
                "which it is read from its beginning",
            )
        return row

    def discover(self, known: Collection[str]) -> Sequence[Split]:
        """Return the splits, as many as were asked for."""
        return _unknown(self._names(), known)

    def reader(self) -> Reader:
        """Return a reader that takes a batch of each of its splits in turn."""
        return SplitsReader(lambda split: _Numbers(self, split, _index(self._names(), split)), in_turn=True)

    def _names(self) -> list[str]:
        # With one split the size of a batch moves no row to another place.
        if self.splits == 1:
            return ["0"]
        return [f"{number} of {self.splits} by {self.batch_rows}" for number in range(self.splits)]

    def length(self, number: int) -> int | None:
        """Return how many rows a split has; None if it has no end."""
        if self.rows is None:
            return None
        rounds, rest = divmod(self.rows, self.batch_rows * self.splits)
        return rounds * self.batch_rows + min(self.batch_rows, max(0, rest - number * self.batch_rows))


class _Numbers(OpenSplit):
    """A split of a generator: every block whose number is that of the split, modulo the splits."""

    def __init__(self, source: GeneratorSource, split: Split, number: int) -> None:
        self._source = source
        self._split = split
        self._number = number
        self._row = source.check_row(split, number)
        self._given = 0
        self._began: float | None = None

    @property
    def position(self) -> int:
        return self._row

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        source = self._source
        block, within = divmod(self._row, source.batch_rows)
        first = (block * source.splits + self._number) * source.batch_rows + within
        count = min(max_rows, source.batch_rows if source.splits == 1 else source.batch_rows - within)
        if source.rows is not None:
            count = min(count, source.rows - first)
            if count <= 0:
                raise EOFError
        count = min(count, self._due())
        if not count:
            return None
        count = source.together(first, count)
        try:
            rows = source.function(first, count)
        except Exception as error:
            raise SourceError(self._split.id, self._row, error_text(error), self._row) from error
        rows = as_declared(rows, source.schema, self._split.id, self._row)
        if rows.num_rows != count:
            detail = f"the function returned {rows.num_rows} rows for the {count} from number {first}"
            raise SourceError(self._split.id, self._row, detail)
        self._row += count
        self._given += count
        return rows

    def _due(self) -> int:
        """Return how many rows may come now."""
        source = self._source
        if source.rows_per_second is None:
            return source.batch_rows
        now = source.clock()
        if self._began is None:
            self._began = now
        return max(0, int((now - self._began) * source.rows_per_second / source.splits) - self._given)


class TableSource(GeneratorSource):
    """The rows of a table in memory, which travels to the slots of a job.

    Parameters
    ----------
    table : pa.Table
        The rows, in their order.
    splits : int, default 1
        How many splits there are, each of which is read by one subtask. They take blocks of rows in turn.

    Raises
    ------
    InvalidInputError
        If an argument is wrong.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import TableSource
    >>> source = TableSource(pa.table({"user": ["ann", "bob"], "amount": [3, 5]}))
    >>> reader = source.reader()
    >>> reader.add(source.discover(known=()))
    >>> reader.read(max_rows=1).rows.to_pydict()
    {'user': ['ann'], 'amount': [3]}
    """

    def __init__(self, table: pa.Table, *, splits: int = 1) -> None:
        if not isinstance(table, pa.Table):
            raise InvalidInputError(f"the table must be a pyarrow.Table, got {type(table).__name__}")
        self._slices = _Slices(table)
        super().__init__(self._slices, table.schema, rows=table.num_rows, splits=splits)

    def together(self, first: int, count: int) -> int:
        """Return how many of some rows can be in one batch."""
        return self._slices.together(first, count)


class _Slices:
    def __init__(self, table: pa.Table) -> None:
        self._table = table.replace_schema_metadata(None)
        self._borders: Sequence[int] = []
        "Where chunks end whose dictionaries cannot be joined."
        try:
            table.unify_dictionaries()
        except pa.ArrowException:
            self._borders = list(accumulate(batch.num_rows for batch in table.to_batches()))

    def together(self, first: int, count: int) -> int:
        """Return how many of some rows can be in one batch."""
        border = bisect_right(self._borders, first)
        return min(count, self._borders[border] - first) if border < len(self._borders) else count

    def __call__(self, first: int, count: int) -> pa.RecordBatch:
        (rows,) = self._table.slice(first, count).combine_chunks().to_batches()
        return rows


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise InvalidInputError(f"{name} must be at least 1, got {value}")
    return value


def _unknown(names: Sequence[str], known: Collection[str]) -> list[Split]:
    return [Split(name) for name in names if name not in known]


def _index(names: Sequence[str], split: Split) -> int:
    if split.id not in names:
        there = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        raise SourceError(split.id, split.position, f"the source has no such split; it has {there}")
    return names.index(split.id)
