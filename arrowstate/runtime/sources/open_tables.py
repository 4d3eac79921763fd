"""What the sources of Delta and Iceberg share: a table as it was once, and then what was added, commit by commit.

A commit has its files in an order that never changes, so a position names the commit, the number of the file, and the
number of the row in it. Split `k` of `n` reads every n-th file. What comes with the last row of a commit is the
position after it: its files, which may be removed by then, are not needed to go on.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from arrowstate.errors import InvalidInputError, SourceError
from arrowstate.runtime.connectors import Reader, Source, Split, check_follows
from arrowstate.runtime.sources.reading import ChunkedSplit, Looks, SplitsReader, check_names, row_number
from arrowstate_formats.integers import check_integer

Position = Mapping[str, Any]

FILE_AND_ROW = {"file": pa.int64(), "row": pa.int64()}


class Unreadable(Exception):  # it becomes a SourceError, which has the split and the position
    """A table cannot be read on from a position; its cause, if there is one, says whether another attempt may read."""


@dataclass(frozen=True, slots=True)
class Step:
    """The files of a commit, or of a table as of a commit, and what is read after them."""

    files: Sequence[Any]
    here: Position
    """Without file and row."""
    after: Position


class Follower:
    """Reads a table for one split."""

    @abstractmethod
    def check(self, position: Position) -> None:
        """Raise `Unreadable` if the table cannot be read on from a position."""

    @abstractmethod
    def step(self, position: Position) -> Step | None:
        """Return what is read at a position, None if there is nothing yet."""

    @abstractmethod
    def read(self, file: Any, row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file from a number on."""

    def close(self) -> None:
        """Let go of what is open."""


class OpenTableSource(Source):
    """The splits of a table, and their positions."""

    begins: str
    """The argument that says where the source begins."""

    def __init__(
        self,
        *,
        is_bounded: bool,
        on_change: Literal["error", "skip"],
        splits: int,
        discovery_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if on_change not in ("error", "skip"):
            raise InvalidInputError(f"on_change must be 'error' or 'skip', got {on_change!r}")
        self.is_bounded = is_bounded
        self.on_change = on_change
        self.splits = check_integer("splits", splits, 1, 32_768)
        self.discovery_ms = check_integer("discovery_ms", discovery_ms, 0, 2**40, unit="milliseconds")
        self.clock = clock

    @abstractmethod
    def start(self) -> Position:
        """Return the position of a job that starts for the first time."""

    @abstractmethod
    def follower(self) -> Follower:
        """Return what reads the table."""

    def split_names(self) -> list[str]:
        """Return the names of the splits."""
        return [f"{number} of {self.splits}" for number in range(self.splits)]

    def check_splits(self, begun: Sequence[Split], finished: Sequence[Split]) -> None:
        """Refuse another number of splits, and positions from which the table cannot, or would not, be read on."""
        check_names(self.split_names(), [*begun, *finished])
        if not self.is_bounded:
            check_follows(self.begins, finished)
        follower = self.follower()
        try:
            for split in begun:
                check_position(self, split)
                try:
                    follower.check(split.position)
                except Unreadable as error:
                    raise SourceError(split.id, split.position, str(error)) from None
        finally:
            follower.close()

    def discover(self, known: Collection[str]) -> Sequence[Split]:
        """Return the splits, as many as were asked for, all at one position."""
        names = [name for name in self.split_names() if name not in known]
        if not names:
            return []
        position = {**self.start(), "file": 0, "row": 0}
        return [Split(name, position) for name in names]

    def reader(self) -> Reader:
        """Return a reader that takes rows of each of its splits in turn."""
        return SplitsReader(lambda split: OpenTableSplit(self, split), in_turn=True)


def check_position(source: OpenTableSource, split: Split) -> None:
    """Refuse what is no position of a source."""
    names = [field.name for field in source.position_type]
    if not isinstance(split.position, dict) or split.position.keys() != set(names):
        detail = f"a position must have {', '.join(names)}, got {split.position!r}"
        raise SourceError(split.id, split.position, detail)
    row_number(split, split.position["row"])


class OpenTableSplit(ChunkedSplit):
    """Every n-th file of each commit. A commit without rows gives a batch without rows: its position must be known."""

    gives_empty = True

    def __init__(self, source: OpenTableSource, split: Split) -> None:
        names = source.split_names()
        if split.id not in names:
            detail = f"the source has no such split; it has {', '.join(names[:1] + names[1:][-1:])}"
            raise SourceError(split.id, split.position, detail)
        check_position(source, split)
        self._source = source
        self._number = names.index(split.id)
        self._follower = source.follower()
        # Where the rows that were taken up begin, and what is read after them.
        self._here: Position = split.position
        self._after: Position = split.position
        super().__init__(split, self._rows(), source.schema, split.position["row"])

    @property
    def position(self) -> Position:
        """Where the next row is."""
        return {**self._here, "row": self.row} if self.has_rest else self._after

    def close(self) -> None:
        """Close the table."""
        super().close()
        self._follower.close()

    def _rows(self) -> Iterator[pa.RecordBatch | None]:
        looks = Looks(self._source.clock, self._source.discovery_ms)
        while self._after["is_snapshot"] or not self._source.is_bounded:
            try:
                # After a commit there may be more; where there was none, the table is left alone for a while.
                while (step := self._follower.step(self._after)) is not None:
                    yield from self._step(step)
                    if self._source.is_bounded:
                        return
            except Unreadable as error:
                raise SourceError(self._split.id, self.position, str(error)) from error.__cause__
            yield None
            while not looks.due():
                yield None

    def _step(self, step: Step) -> Iterator[pa.RecordBatch]:
        empty = pa.RecordBatch.from_pylist([], schema=self._source.schema)
        here, last = self._after, empty
        for place, rows in self._pieces(step):
            if last.num_rows:
                yield self._taken(here, last, place)
            here, last = place, rows
        yield self._taken(here, last, step.after)

    def _pieces(self, step: Step) -> Iterator[tuple[Position, pa.RecordBatch]]:
        """Yield the rows of this split, and where they begin."""
        first, row = self._after["file"], self._after["row"]
        for number, file in enumerate(step.files):
            if number < first or number % self._source.splits != self._number:
                continue
            at = row if number == first else 0
            for rows in self._follower.read(file, at):
                yield {**step.here, "file": number, "row": at}, rows
                at += rows.num_rows

    def _taken(self, here: Position, rows: pa.RecordBatch, after: Position) -> pa.RecordBatch:
        self._here, self._after, self.row = here, after, here["row"]
        return rows
