"""The interfaces of sources and sinks, for those of the package and those of users.

A source is a description that is pickled. Its input is divided into splits, each of which is read by one reader at a
time, from a position: that of the next row to read. Positions are part of each checkpoint, so a source must be able to
read the same rows again from any position that it gave out. A sink gets the rows of a checkpoint once the checkpoint is
committed, with a token that says which they are; it must know a token that it has had already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from arrowstate.errors import SourceError


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a source's input, and where to go on in it.

    Examples
    --------
    >>> Split("part-0.parquet", position=65_536)
    Split(id='part-0.parquet', position=65536)
    """

    id: str
    """Unique within the source and the same for ever: a split that was read to its end is never read again."""
    position: Any = None
    """That of the next row to read, a plain value of the source's `position_type`; None for the first row."""


@dataclass(frozen=True, slots=True)
class UnreadRows:
    """Rows that a reader could not make into rows of its source, such as a message that is not JSON.

    They become dead letters if the source is declared with `on_error="dead_letter"`; otherwise the first of them fails
    the job, and no row of their batch was read.

    Examples
    --------
    >>> import pyarrow as pa
    >>> UnreadRows([7], pa.record_batch({"line": ["x"]}), ["ValueError"], ["'x' is no number"]).positions
    [7]
    """

    positions: Sequence[Any]
    """The position of each of these rows."""
    rows: pa.RecordBatch
    """The rows as they came, in the columns of the source's `unread_schema`."""
    errors: Sequence[str]
    """The name of the exception of each row."""
    reasons: Sequence[str]
    """What is wrong with each row, for a person."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that a reader has read, all of one split; it may have no rows and only a new position.

    Examples
    --------
    >>> import pyarrow as pa
    >>> Batch(pa.record_batch({"n": [1, 2]}), split="all", position=2).rows.num_rows
    2
    """

    rows: pa.RecordBatch
    split: str
    position: Any
    """The position after these rows, those that could not be read among them."""
    unread: UnreadRows | None = None
    """The rows between that could not be read."""


@dataclass(frozen=True, slots=True)
class EndOfSplit:
    """A split has no more rows and never will.

    Examples
    --------
    >>> EndOfSplit("part-0.parquet").split
    'part-0.parquet'
    """

    split: str


class Reader(ABC):
    """Reads some splits of a source, in one slot of a job; it is made, used and closed by one thread.

    Derive from it; see `Source` for an example.
    """

    @abstractmethod
    def read(self, max_rows: int) -> Batch | EndOfSplit | None:
        """Return the next rows of one of the splits; None if there are none now. It does not wait long.

        Parameters
        ----------
        max_rows
            How many rows to return at most, at least 1.
        """

    @abstractmethod
    def add(self, splits: Sequence[Split]) -> None:
        """Also read these splits. Called when the job starts, and when more splits were discovered."""

    def pause(self, splits: Collection[str]) -> None:  # noqa: B027
        """Return no rows of these splits until a call no longer names them; each call names all that pause.

        For a reader that does not define this method, the runtime stops reading all splits while one of them is ahead.
        """

    def committed(self, positions: Mapping[str, Any]) -> None:  # noqa: B027
        """Take note that a checkpoint with these positions, by split, is committed; to tell a system outside."""

    def behind(self) -> int | None:
        """Return how many rows of its splits are there and not read yet; None where the system does not tell.

        Asked about once a second, so it must not wait: a reader says what it has heard last.
        """
        return None

    def close(self) -> None:  # noqa: B027
        """Let go of what is open."""


class Source(ABC):
    """Where rows come from. It is pickled: the coordinator asks it for splits, each slot for a reader.

    Derive from it, and run `arrowstate.testing.SourceConformance` against it.

    Examples
    --------
    The numbers below 10 in two splits; a position is how many of a split were read:

    >>> import pyarrow as pa
    >>> from arrowstate.runtime import Batch, EndOfSplit, Reader, Source, Split
    >>> class Numbers(Source):
    ...     schema = pa.schema({"n": pa.int64()})
    ...
    ...     def discover(self, known):
    ...         return [Split(name) for name in ("even", "odd") if name not in known]
    ...
    ...     def reader(self):
    ...         return NumbersReader()
    >>> class NumbersReader(Reader):
    ...     def __init__(self):
    ...         self.done = {}
    ...
    ...     def add(self, splits):
    ...         self.done.update((split.id, split.position or 0) for split in splits)
    ...
    ...     def read(self, max_rows):
    ...         for name, done in self.done.items():
    ...             rest = range(name == "odd", 10, 2)[done : done + max_rows]
    ...             if not rest:
    ...                 del self.done[name]
    ...                 return EndOfSplit(name)
    ...             self.done[name] += len(rest)
    ...             return Batch(pa.record_batch({"n": rest}), name, position=done + len(rest))
    >>> reader = Numbers().reader()
    >>> reader.add([Split("odd", position=3)])
    >>> reader.read(max_rows=100).rows.to_pydict(), reader.read(max_rows=100)
    ({'n': [7, 9]}, EndOfSplit(split='odd'))
    """

    schema: pa.Schema
    """The columns of the rows."""
    position_type: pa.DataType = pa.int64()
    """The Arrow type of positions, which are kept in checkpoints. A position never falls while a split is read; structs
    are compared by the first field that differs."""
    unread_schema: pa.Schema = pa.schema([])
    """The columns of `UnreadRows`, which become part of the `key` of a dead letter, after `split` and `position`."""
    is_sequential: bool = False
    """Whether a reader reads its splits one after another; then a split that was not begun delays no event time."""
    is_bounded: bool = True
    """Whether the splits of the first discovery are all there will be, and each of them ends."""
    discovery_ms: int = 10_000
    """How often splits are discovered, in milliseconds, where the source is not bounded."""

    def check_splits(self, begun: Sequence[Split], finished: Sequence[Split]) -> None:  # noqa: B027
        """Refuse the splits of a checkpoint that this source cannot go on with.

        Called when a job starts with a checkpoint. A source whose splits depend on its arguments checks here that
        they are still the same. By default all splits are accepted.

        Parameters
        ----------
        begun
            The splits that are not finished, with their positions.
        finished
            The splits that were read to their end, with their last positions. They are not read again.

        Raises
        ------
        SourceError
            If a split does not belong to this source, or has other rows than were read from it.
        """

    @abstractmethod
    def discover(self, known: Collection[str]) -> Sequence[Split]:
        """Return the splits whose ids are not known yet, in the order in which to read them.

        The splits are dealt out in turn: the first subtask reads the first, the second subtask the second, and so on.
        Each subtask reads its splits in this order; a split that was begun before a restart comes first.

        Called in the process of the coordinator, before the job starts and again at intervals if the source is not
        bounded.
        """

    @abstractmethod
    def reader(self) -> Reader:
        """Return a reader for a slot, which has no splits yet."""


def check_follows(begins: str, finished: Sequence[Split]) -> None:
    """Refuse splits that were read to their end for a source that has none; `begins` is how it says where to begin."""
    if finished:
        split = finished[0]
        raise SourceError(
            split.id,
            split.position,
            "it was read to its end, for the source was bounded, so what came later would never be read; give "
            f"it another uid and say by {begins} where it begins, or set finished to false in its splits by an edit",
        )


@dataclass(frozen=True, slots=True)
class Token:
    """Names the rows that a sink receives: equal tokens mean equal rows.

    Examples
    --------
    >>> str(Token("0b7e", "to_shop", checkpoint_id=7, subtask=1))
    '0b7e/to_shop/7/1'
    """

    store_id: str
    """The identity of the job's store."""
    uid: str
    """The uid of the sink."""
    checkpoint_id: int
    """It rises: rows of a checkpoint come when the rows of all earlier checkpoints were committed."""
    subtask: int

    def __str__(self) -> str:
        return f"{self.store_id}/{self.uid}/{self.checkpoint_id}/{self.subtask}"


class Sink(ABC):
    """Takes the rows of a checkpoint after the checkpoint is committed, exactly once by a token.

    The rows are part of the checkpoint, and the runtime sends them again until `commit` has returned. The sink is
    pickled, and used in the process of the coordinator. Derive from this class, and run
    `arrowstate.testing.SinkConformance` against your class.

    Examples
    --------
    A database that has rows and the token in one transaction:

    >>> import sqlite3, tempfile
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import Sink, Token
    >>> class Totals(Sink):
    ...     def __init__(self, path):
    ...         self.path = path
    ...
    ...     def open(self, store_id, uid):
    ...         with sqlite3.connect(self.path) as database:
    ...             database.execute("create table if not exists totals (user, total)")
    ...             database.execute("create table if not exists tokens (token primary key)")
    ...
    ...     def commit(self, rows, token):
    ...         with sqlite3.connect(self.path) as database:
    ...             told = database.execute("insert or ignore into tokens values (?)", [str(token)])
    ...             if told.rowcount:
    ...                 database.executemany("insert into totals values (:user, :total)", rows.to_pylist())
    >>> folder = tempfile.TemporaryDirectory()
    >>> sink = Totals(folder.name + "/shop.sqlite")
    >>> sink.open("0b7e", "to_shop")
    >>> for attempt in (1, 2):
    ...     sink.commit(pa.table({"user": ["ann"], "total": [3]}), Token("0b7e", "to_shop", checkpoint_id=7, subtask=0))
    >>> sqlite3.connect(sink.path).execute("select * from totals").fetchall()
    [('ann', 3)]
    >>> folder.cleanup()
    """

    place: str | None = None
    """Where rows and tokens go, for a sink whose tokens are not beside its rows; it must have no secret.

    A checkpoint that has rows for the sink says it too. A job does not start with such a checkpoint if the sink names
    another place now: rows that are there would come again.
    """

    def check_schema(self, uid: str, schema: pa.Schema) -> None:  # noqa: B027
        """Refuse columns that the sink cannot take, with an `InvalidInputError`; called when it is declared."""

    def open(self, store_id: str, uid: str) -> None:  # noqa: B027
        """Called once before the first commit, each time the job starts."""

    def end_others(self, store_id: str, uid: str) -> None:  # noqa: B027
        """End what an earlier process of the job has begun and still holds, such as a transaction with a lock.

        Called after `open`, each time the job starts: no other process may commit by then, and one that is suspended
        lets go of nothing by itself.
        """

    @abstractmethod
    def commit(self, rows: pa.Table, token: Token) -> None:
        """Make these rows visible, all or none of them, unless rows with this token are visible already.

        An exception fails the job, which starts again and sends the same rows with the same token.
        """

    def close(self) -> None:  # noqa: B027
        """Let go of what is open."""


class DirectSink(ABC):
    """Receives rows immediately, before a checkpoint has them: at least once.

    After a failure the job goes back to the newest checkpoint, and rows after it come again. The sink is pickled, and
    opened, used and closed in the slot of each subtask.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import DirectSink
    >>> class Counted(DirectSink):
    ...     count = 0
    ...
    ...     def write(self, rows, subtask):
    ...         self.count += rows.num_rows
    >>> sink = Counted()
    >>> sink.write(pa.record_batch({"n": [1, 2]}), subtask=0)
    >>> sink.count
    2
    """

    def open(self, store_id: str, uid: str) -> None:  # noqa: B027
        """Called once in each slot before the first rows, each time the job starts."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch, subtask: int) -> None:
        """Write rows of a subtask, at least one row. An exception fails the job."""

    def close(self) -> None:  # noqa: B027
        """Let go of what is open."""


class SinkWriter(ABC):
    """Writes rows to a `PreparingSink` while they come, in one slot of a job; see there for an example."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows to a place where nobody sees them yet."""

    @abstractmethod
    def prepare(self, checkpoint_id: int) -> pa.RecordBatch:
        """Make the rows since the last call durable, so that their commit cannot fail, and return their names.

        An exception fails the job, which starts again from its newest checkpoint: the rows come again.

        Returns
        -------
        pa.RecordBatch
            The names, such as file names, in the columns of the sink's `committable_schema`; no rows if nothing was
            written.
        """

    @abstractmethod
    def abort(self) -> None:
        """Throw away the rows that were written and not prepared, and close."""


class PreparingSink(ABC):
    """A sink for much data, which writes rows before their checkpoint and makes them visible after it. It is pickled.

    The names of prepared rows are part of the checkpoint, and are committed after it, in the process of the
    coordinator. Derive from this class, and run `arrowstate.testing.PreparingSinkConformance` against your class.

    Examples
    --------
    Text files that get their names with the commit:

    >>> import os, pathlib, tempfile, uuid
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import PreparingSink, SinkWriter
    >>> class Lines(PreparingSink):
    ...     committable_schema = pa.schema({"name": pa.string()})
    ...
    ...     def __init__(self, folder):
    ...         self.folder = pathlib.Path(folder)
    ...
    ...     def writer(self, store_id, uid, subtask, attempt):
    ...         return LinesWriter(self, f"{store_id}.{uid}")
    ...
    ...     def commit(self, committables):
    ...         for name in committables["name"].to_pylist():
    ...             if not (self.folder / name).exists():
    ...                 os.rename(self.folder / f".{name}", self.folder / name)
    ...
    ...     def recover(self, store_id, uid, committed):
    ...         for path in self.folder.glob(f".{store_id}.{uid}.*"):
    ...             path.unlink()
    >>> class LinesWriter(SinkWriter):
    ...     def __init__(self, sink, prefix):
    ...         self.sink, self.prefix, self.lines = sink, prefix, []
    ...
    ...     def write(self, rows):
    ...         self.lines += [str(row) for row in rows.to_pylist()]
    ...
    ...     def prepare(self, checkpoint_id):
    ...         names = [f"{self.prefix}.{uuid.uuid4().hex}"] if self.lines else []
    ...         for name in names:
    ...             (self.sink.folder / f".{name}").write_text("\\n".join(self.lines))
    ...         self.lines = []
    ...         return pa.record_batch([names], schema=self.sink.committable_schema)
    ...
    ...     def abort(self):
    ...         self.lines = []
    >>> folder = tempfile.TemporaryDirectory()
    >>> sink = Lines(folder.name)
    >>> writer = sink.writer("0b7e", "lines", subtask=0, attempt="1")
    >>> writer.write(pa.record_batch({"n": [1]}))
    >>> prepared = writer.prepare(checkpoint_id=7)
    >>> for attempt in (1, 2):
    ...     sink.commit(prepared)
    >>> [path.read_text() for path in sink.folder.iterdir()]
    ["{'n': 1}"]
    >>> folder.cleanup()
    """

    committable_schema: pa.Schema
    """The columns that name prepared rows, such as file names or transaction ids."""

    def check_schema(self, uid: str, schema: pa.Schema) -> None:  # noqa: B027
        """Refuse columns that the sink cannot write, with an `InvalidInputError`; called when it is declared."""

    @abstractmethod
    def writer(self, store_id: str, uid: str, subtask: int, attempt: str) -> SinkWriter:
        """Return a writer for a slot. `attempt` is unique to this start of the job.

        The rows of a union come from several tasks, each with a writer of its own for the same subtask; all that they
        prepare for a checkpoint is committed by one call.
        """

    @abstractmethod
    def commit(self, committables: pa.RecordBatch) -> None:
        """Make prepared rows visible. Rows that are visible already stay as they are; lost rows are an error."""

    def recover(self, store_id: str, uid: str, committed: pa.RecordBatch) -> None:  # noqa: B027
        """Throw away prepared rows that killed attempts have left and no checkpoint names.

        Called once before writers are made. `committed`, the names in the checkpoint, was committed again before.
        """
