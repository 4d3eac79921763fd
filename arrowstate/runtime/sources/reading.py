"""What the readers of this package share: several splits read in turn or one after the other, and rows that fit.

A split that is open gives its rows in pieces and knows the position of the next. Whatever fails, it is closed, and
opened again where it was by who asks again: nothing is passed over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError, SourceError
from arrowstate.runtime.connectors import Batch, EndOfSplit, Reader, Split
from arrowstate.shown import error_text


class OpenSplit(ABC):
    """A split while it is read."""

    @property
    @abstractmethod
    def position(self) -> Any:
        """That of the next row."""

    @abstractmethod
    def read(self, max_rows: int) -> pa.RecordBatch | None:
        """Return the next rows, none of them if there is only a position to tell; None if there are none now."""

    def close(self) -> None:  # noqa: B027
        """Let go of what is open."""


class SplitsReader(Reader):
    """Reads splits that `open_split` opens; `in_turn`, a piece of each, or one after the other."""

    def __init__(self, open_split: Callable[[Split], OpenSplit], *, in_turn: bool) -> None:
        self._open_split = open_split
        self._in_turn = in_turn
        # In the order in which they are read; where they go on, unless they are open.
        self._splits: dict[str, Split] = {}
        self._open: dict[str, OpenSplit] = {}
        self._paused: Collection[str] = ()

    def read(self, max_rows: int) -> Batch | EndOfSplit | None:
        """Return the next rows of the first split that has some."""
        if max_rows < 1:
            raise InvalidInputError(f"max_rows must be at least 1, got {max_rows}")
        for name in self._splits:
            if name in self._paused:
                continue
            try:
                rows = self._opened(name).read(max_rows)
            except EOFError:
                self._leave(name)
                del self._splits[name]
                return EndOfSplit(name)
            except BaseException:
                self._leave(name)
                raise
            if rows is not None:
                if self._in_turn:
                    self._splits[name] = self._splits.pop(name)
                return Batch(rows, name, self._open[name].position)
        return None

    def add(self, splits: Sequence[Split]) -> None:
        """Read these splits too, after those there are."""
        for split in splits:
            if split.id in self._splits:
                raise InvalidInputError(f"split {split.id!r} is being read already")
            self._splits[split.id] = split

    def pause(self, splits: Collection[str]) -> None:
        """Return no rows of these splits until they are named no more."""
        self._paused = frozenset(splits)

    def close(self) -> None:
        """Close the splits that are open."""
        for name in list(self._open):
            self._leave(name)
        self._splits.clear()

    def _opened(self, name: str) -> OpenSplit:
        if name not in self._open:
            self._open[name] = self._open_split(self._splits[name])
        return self._open[name]

    def _leave(self, name: str) -> None:
        opened = self._open.pop(name, None)
        if opened is not None:
            self._splits[name] = Split(name, opened.position)
            opened.close()


class ChunkedSplit(OpenSplit):
    """A split whose rows come as record batches, None among them where there are none now, and are counted.

    An exception of the batches is told with the split and the position.
    """

    gives_empty = False
    """Whether a batch without rows is given out, for its position; otherwise it is passed over."""

    def __init__(self, split: Split, chunks: Iterator[pa.RecordBatch | None], schema: pa.Schema, row: int) -> None:
        self._split = split
        self._chunks = chunks
        self._schema = schema
        self._rest: pa.RecordBatch | None = None
        self.row = row

    @property
    def position(self) -> Any:
        """The number of the next row."""
        return self.row

    @property
    def has_rest(self) -> bool:
        """Whether rows of the last batch were not given out yet."""
        return self._rest is not None and self._rest.num_rows > 0

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        """Return the next rows of a batch."""
        while self._rest is None or not self._rest.num_rows:
            self._rest = self.next_chunk()
            if self._rest is None or (self.gives_empty and not self._rest.num_rows):
                return self._rest
        rows = self._rest.slice(0, max_rows)
        self._rest = self._rest.slice(rows.num_rows)
        self.row += rows.num_rows
        return rows

    def next_chunk(self) -> pa.RecordBatch | None:
        """Return the next batch; None if there is none now."""
        try:
            chunk = next(self._chunks)
        except StopIteration:
            raise EOFError from None
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(self._split.id, self.position, error_text(error)) from error
        return None if chunk is None else as_declared(chunk, self._schema, self._split.id, self.position)

    def close(self) -> None:
        """Close the iterator, if it can be closed."""
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()


class Looks:
    """Says when a system outside is looked at again."""

    def __init__(self, clock: Callable[[], float], interval_ms: int) -> None:
        self._clock = clock
        self._seconds = interval_ms / 1000
        self._next: float | None = None

    def due(self) -> bool:
        """Return whether it is time, and begin to count anew if it is."""
        now = self._clock()
        if self._next is not None and now < self._next:
            return False
        self._next = now + self._seconds
        return True


def as_declared(rows: Any, schema: pa.Schema, split: str, position: Any) -> pa.RecordBatch:
    """Return rows if they have the columns of a source."""
    if not isinstance(rows, pa.RecordBatch):
        raise SourceError(split, position, f"rows must come as a pyarrow.RecordBatch, got {type(rows).__name__}")
    if rows.schema is not schema and not rows.schema.equals(schema):
        given = [(field.name, field.type) for field in rows.schema]
        if given != [(field.name, field.type) for field in schema]:
            raise SourceError(split, position, f"rows must have {_columns(schema)}; they have {_columns(rows.schema)}")
        rows = pa.RecordBatch.from_arrays(rows.columns, schema=schema)
    for field, column in zip(schema, rows.columns, strict=True):
        if not field.nullable and column.null_count:
            raise SourceError(split, position, f"column {field.name!r} is null, which the schema of the source forbids")
    return rows


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


def checked_schema(schema: object) -> pa.Schema:
    """Return the schema of a source if it is one, without metadata."""
    if not isinstance(schema, pa.Schema):
        raise InvalidInputError(f"the schema of a source must be a pyarrow.Schema, got {type(schema).__name__}")
    return schema.remove_metadata()


def check_names(names: Collection[str], known: Sequence[Split]) -> None:
    """Refuse splits of a checkpoint if they are not those that a source always has, all of them."""
    ids = {split.id for split in known}
    if ids == set(names):
        return
    split = next((split for split in known if split.id not in names), known[0])
    before, now = (f"{len(few)}, {', '.join(sorted(few)[:3])}{', ...' * (len(few) > 3)}" for few in (ids, set(names)))
    raise SourceError(
        split.id,
        split.position,
        f"the checkpoint has the splits of a source with other arguments ({before}) than it has now ({now}), so rows "
        "would be read twice or never; start it with the arguments that it had, or give it another uid, under which "
        "it is read from its beginning",
    )


def row_number(split: Split, position: object) -> int:
    """Return the number of a row that a position gives, 0 for none."""
    if position is None:
        return 0
    if not isinstance(position, int) or isinstance(position, bool) or position < 0:
        raise SourceError(split.id, split.position, f"a position must be the number of a row from 0, got {position!r}")
    return position
