"""Sources of other stores: what changed in a state from checkpoint to checkpoint, and the rows of an output table.

Both look for a new checkpoint at intervals and never end. The rows of an output table have numbers for ever; those of a
change feed are counted from the step they belong to, which a position names by the entries of the log on its two sides.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal

import pyarrow as pa
from msgspec.structs import replace

from arrowstate.errors import (
    CheckpointNotFoundError,
    CheckpointsCollectedError,
    CollectedError,
    InvalidInputError,
    SourceError,
    StorageError,
)
from arrowstate.files.output_tables import fewest_rows, find_output, output_rows, row_count
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry, open_store_document
from arrowstate.log.leases import DEFAULT_LEASE_MS, LONGEST_LEASE_MS
from arrowstate.log.timeline import Step, newest_checkpoint_id, oldest_followed_id, steps_between
from arrowstate.query.changes import CHANGE_TYPE_COLUMN, StateChanges
from arrowstate.query.state import CHECKPOINT_COLUMN, StateReader
from arrowstate.runtime.connectors import Reader, Source, Split
from arrowstate.runtime.sources.reading import ChunkedSplit, Looks, SplitsReader, check_names, row_number
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage
from arrowstate.upkeep.following import FollowerLease
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.documents import LogEntryDocument, OperatorStateDocument, pack, unpack
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_groups import MAX_PARALLELISM, key_group_range

_ROWS = "rows"
"""The split of an output table."""


class _StoreSource(Source):
    """What both have: the store, and how often it is looked at."""

    is_bounded = False

    def __init__(
        self,
        store: str | os.PathLike[str],
        discovery_ms: int,
        storage_options: Mapping[str, Any] | None,
        clock: Callable[[], float],
    ) -> None:
        if discovery_ms < 0:
            raise InvalidInputError(f"discovery_ms must be at least 0, got {discovery_ms}")
        path = os.fspath(store)
        # Slots may have another working folder.
        self.store = path if ":" in path else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
        self.discovery_ms = discovery_ms
        self.storage_options = None if storage_options is None else dict(storage_options)
        self.clock = clock

    def open(self) -> Storage:
        """Return the storage of the store."""
        storage = open_storage(self.store, storage_options=self.storage_options)
        open_store_document(storage)
        return storage

    def newest(self) -> tuple[Storage, LogEntryDocument]:
        """Return the store and its newest checkpoint."""
        storage = self.open()
        entry = CommitLog(storage).latest_checkpoint()
        if entry is None:
            raise CheckpointNotFoundError(None, [])
        return storage, entry


class OutputSource(_StoreSource):
    """The rows of an output table of another store, in the order in which they were committed.

    Parameters
    ----------
    store : str or PathLike
        The store, a path or a URL. It must have a checkpoint with the table.
    output : str
        The name of the table.
    starting : {"earliest", "latest"}, default "earliest"
        Whether to read the rows that exist when the job starts for the first time.
    discovery_ms : int, default 1_000
        How often it looks for new rows, in milliseconds.
    storage_options : mapping, optional
        Options of the storage; see `arrowstate.open_store`.
    clock : callable, default time.monotonic
        Where the time in seconds comes from.

    Raises
    ------
    NotFoundError
        If there is no such store, checkpoint or table.
    InvalidInputError
        If an argument is wrong. If the store has given up rows that were read, as by a rollback, reading raises a
        `SourceError`.

    Notes
    -----
    A position is a struct: `row` int64, the number of the next row, which never changes, even if rows are moved to
    other files; and `epoch` int64, that of the writer in whose checkpoint the rows before it were read. A rollback is
    noticed as long as the store has the checkpoint that it made; after that a reader takes the rows that follow.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.runtime import OutputSource
    >>> backend = arrowstate.OperatorStateBackend()
    >>> row = pa.struct({"user": pa.string(), "total": pa.int64()})
    >>> backend.state(arrowstate.OperatorListStateDescriptor("rows", row)).extend(pa.array([("ann", 3)], row))
    >>> with arrowstate.open_store("memory://output-example", create=True).writer() as writer:
    ...     checkpoint = writer.checkpoint({}, operator_states={"changes": [backend]})
    >>> source = OutputSource("memory://output-example", "changes")
    >>> reader = source.reader()
    >>> reader.add(source.discover(known=()))
    >>> reader.read(max_rows=100).rows.to_pylist(), reader.read(max_rows=100)
    ([{'user': 'ann', 'total': 3}], None)
    """

    position_type = pa.struct({"row": pa.int64(), "epoch": pa.int64()})

    def __init__(
        self,
        store: str | os.PathLike[str],
        output: str,
        *,
        starting: Literal["earliest", "latest"] = "earliest",
        discovery_ms: int = 1_000,
        storage_options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(store, discovery_ms, storage_options, clock)
        if starting not in ("earliest", "latest"):
            raise InvalidInputError(f"starting must be 'earliest' or 'latest', got {starting!r}")
        self.output = output
        self.starting = starting
        storage, entry = self.newest()
        self.schema = _columns(find_output(storage, entry, output))

    def discover(self, known: Collection[str]) -> Sequence[Split]:
        """Return the one split there is."""
        if _ROWS in known:
            return []
        storage, entry = self.newest()
        row = row_count(find_output(storage, entry, self.output)) if self.starting == "latest" else 0
        return [Split(_ROWS, {"row": row, "epoch": entry.writer_epoch})]

    def reader(self) -> Reader:
        """Return a reader."""
        return SplitsReader(lambda split: _OutputSplit(self, split), in_turn=False)


class _OutputSplit(ChunkedSplit):
    def __init__(self, source: OutputSource, split: Split) -> None:
        if split.id != _ROWS:
            raise SourceError(split.id, split.position, f"the source has no such split; it has {_ROWS!r}")
        position = split.position
        if not isinstance(position, dict) or position.keys() != set(source.position_type.names):
            detail = f"a position must have {', '.join(source.position_type.names)}, got {position!r}"
            raise SourceError(split.id, position, detail)
        self._source = source
        self._epoch = position["epoch"]
        row = row_number(split, position["row"])
        super().__init__(split, self._rows(row), source.schema, row)

    @property
    def position(self) -> dict[str, int]:
        """The number of the next row, and the epoch of the rows before it."""
        return {"row": self.row, "epoch": self._epoch}

    def _rows(self, row: int) -> Iterator[pa.RecordBatch | None]:
        looks = Looks(self._source.clock, self._source.discovery_ms)
        seen = -1
        while True:
            if not looks.due():
                yield None
                continue
            storage, entry = self._source.newest()
            if entry.number == seen:
                yield None
                continue
            try:
                with reading_checkpoint(storage, entry):
                    document = find_output(storage, entry, self._source.output)
                    last = row_count(document)
                    self._check(storage, entry, seen, last)
                    for rows in output_rows(storage, document, row, last, columns=_columns(document)):
                        row += rows.num_rows
                        yield rows
            except CollectedError:
                # A later checkpoint has the rows in other files, if there is one.
                if self._source.newest()[1].number == entry.number:
                    raise
                looks = Looks(self._source.clock, self._source.discovery_ms)
            else:
                seen = entry.number

    def _check(self, storage: Storage, entry: LogEntryDocument, seen: int, rows: int) -> None:
        """Refuse a table some of whose rows were given up after they were read."""
        if entry.writer_epoch != self._epoch:
            further = takewhile(lambda other: other.number > seen, CommitLog(storage).backwards())
            fewest = fewest_rows(storage, further, self._source.output, self._epoch)
            rows = rows if fewest is None else min(rows, fewest)
        if rows < self.row:
            detail = f"of the rows that were read only {rows} are left: the store has gone back"
            raise SourceError(_ROWS, self.position, detail)
        self._epoch = entry.writer_epoch


def _columns(document: OperatorStateDocument) -> pa.Schema:
    return pa.schema(list(type_from_json(document.value_type)))


class ChangesSource(_StoreSource):
    """The changes of a keyed state of another store, from one checkpoint to the next.

    The columns are those of the state, and two more: `_change_type`, one of `insert`, `update_preimage`,
    `update_postimage` and `delete`; and `_checkpoint_id`, the checkpoint with the change. An `update_preimage` is
    followed by its `update_postimage`. All changes of a key are in one split, in the order of the checkpoints.

    Parameters
    ----------
    store : str or PathLike
        The store, a path or a URL. It must have a checkpoint with the state.
    state : str
        `operator.state`.
    starting : int or {"earliest", "latest"}, optional
        The checkpoint after which the changes begin: its id, or `latest` for the newest one when the job starts for the
        first time. By default all rows of that newest one come first, as inserts. `earliest` begins with all rows of
        the oldest checkpoint after which none was collected, as inserts.
    splits : int, default 1
        How many splits there are, each of which is read by one subtask and has a range of the hashes of keys.
    discovery_ms : int, default 1_000
        How often it looks for a new checkpoint, in milliseconds.
    storage_options : mapping, optional
        Options of the storage; see `arrowstate.open_store`.
    clock : callable, default time.monotonic
        Where the time in seconds comes from.
    lease_ms : int, optional
        For how long the store keeps unread checkpoints after the job has stopped or died, in milliseconds, at least 1;
        10 minutes by default. None for no lease: then the store must keep checkpoints for longer than the job takes to
        read their changes.

    Raises
    ------
    NotFoundError
        If there is no such store, checkpoint or state.
    InvalidInputError
        If an argument is wrong. If a checkpoint was collected before its changes were read, or the store was rolled
        back, reading raises a `SourceError`.

    Notes
    -----
    A position is a struct: `checkpoint_id` int64, up to which all changes were read, null for none; `before` and
    `after` int64, the log entries on the two sides of the step that is being read, and `row` int64, how many of its
    changes were read; `schema_version` int64, that of the state. The two sides must be kept until the step was
    read, and all checkpoints after it: a lease holds what the newest checkpoint of the job has not read.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.runtime import ChangesSource
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema({"user": pa.string()}), max_parallelism=128)
    >>> clicks = backend.state(arrowstate.ValueStateDescriptor("clicks", pa.int64()))
    >>> with arrowstate.open_store("memory://changes-example", create=True).writer() as writer:
    ...     clicks.update_batch(pa.array(["ann"]), pa.array([3]))
    ...     first = writer.checkpoint({"counter": [backend]})
    ...     clicks.update_batch(pa.array(["bob"]), pa.array([5]))
    ...     second = writer.checkpoint({"counter": [backend]})
    >>> source = ChangesSource("memory://changes-example", "counter.clicks", starting="earliest")
    >>> reader = source.reader()
    >>> reader.add(source.discover(known=()))
    >>> reader.read(max_rows=100).rows.to_pylist()
    [{'user': 'ann', 'clicks': 3, '_change_type': 'insert', '_checkpoint_id': 1}]
    >>> reader.read(max_rows=100).rows.to_pylist()
    [{'user': 'bob', 'clicks': 5, '_change_type': 'insert', '_checkpoint_id': 2}]
    """

    position_type = pa.struct(dict.fromkeys(("checkpoint_id", "before", "after", "row", "schema_version"), pa.int64()))

    def __init__(
        self,
        store: str | os.PathLike[str],
        state: str,
        *,
        starting: int | Literal["earliest", "latest"] | None = None,
        splits: int = 1,
        discovery_ms: int = 1_000,
        storage_options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        lease_ms: int | None = DEFAULT_LEASE_MS,
    ) -> None:
        super().__init__(store, discovery_ms, storage_options, clock)
        self.lease_ms = check_integer("lease_ms", lease_ms, 1, LONGEST_LEASE_MS, unit="milliseconds", optional=True)
        if not (starting in (None, "earliest", "latest") or isinstance(starting, int)):
            raise InvalidInputError(
                f"starting must be the id of a checkpoint, 'earliest' or 'latest', got {starting!r}"
            )
        self.starting = starting
        storage, entry = self.newest()
        uid, name = _named(entry, state)
        self.state = state
        reader = StateReader(storage, entry, uid, name)
        if not 1 <= splits <= reader.max_parallelism:
            raise InvalidInputError(f"splits must be 1 to {reader.max_parallelism}, got {splits}")
        self.splits = splits
        self.columns = reader.columns
        self.schema = pa.schema(
            [
                *(reader.schema.field(column) for column in self.columns),
                pa.field(CHANGE_TYPE_COLUMN, pa.string(), nullable=False),
                pa.field(CHECKPOINT_COLUMN, pa.int64(), nullable=False),
            ]
        )
        # The checkpoint may be collected while the feed is read in its schema.
        kept = replace(reader.operator, states=[reader.document], subtasks=[], operator_states=[])
        self._entry = pack(replace(entry, operators=[kept], statistics=[], properties={}))
        self._names = uid, name
        self.schema_version = int(reader.document.schema_version)

    def check_splits(self, begun: Sequence[Split], finished: Sequence[Split]) -> None:
        """Refuse another number of splits."""
        check_names(self.split_names(), [*begun, *finished])

    def discover(self, known: Collection[str]) -> Sequence[Split]:
        """Return the splits, as many as were asked for; the position of each is where the feed starts."""
        names = [name for name in self.split_names() if name not in known]
        return [Split(name, self._start()) for name in names] if names else []

    def split_names(self) -> list[str]:
        """Return the names of the splits, which say of what range of key groups they are."""
        return [f"{number} of {self.splits}" for number in range(self.splits)]

    def reader(self) -> Reader:
        """Return a reader that takes changes of each of its splits in turn."""
        return _ChangesReader(self)

    def state_reader(self, storage: Storage) -> StateReader:
        """Return what reads the state, in the schema of the source."""
        return StateReader(storage, unpack(self._entry, LogEntryDocument), *self._names)

    def _start(self) -> dict[str, int | None]:
        log = CommitLog(self.open())
        if isinstance(self.starting, int):
            return self.position(log.checkpoint(self.starting).checkpoint_id)
        newest = newest_checkpoint_id(log)
        if self.starting == "latest":
            return self.position(newest)
        first = oldest_followed_id(log) if self.starting == "earliest" else newest
        (step,) = steps_between(log, None, first, snapshot=first)
        return self.position(None, None, step.after)

    def position(
        self, checkpoint_id: int | None, before: int | None = None, after: int | None = None, row: int = 0
    ) -> dict[str, int | None]:
        """Return a position."""
        values = (checkpoint_id, before, after, row, self.schema_version)
        return dict(zip(self.position_type.names, values, strict=True))


class _ChangesReader(SplitsReader):
    """Takes changes of each of its splits in turn, and holds what the newest checkpoint of the job has not read."""

    def __init__(self, source: ChangesSource) -> None:
        super().__init__(lambda split: _ChangesSplit(source, split), in_turn=True)
        self._url = source.store
        self._lease = FollowerLease(source.open, source.lease_ms, f"a change feed of {source.state}")
        self._positions: dict[str, Any] = {}

    def add(self, splits: Sequence[Split]) -> None:
        super().add(splits)
        self._hold({split.id: split.position for split in splits})

    def committed(self, positions: Mapping[str, Any]) -> None:
        self._hold(positions)

    def close(self) -> None:
        super().close()
        self._lease.leave()

    def _hold(self, positions: Mapping[str, Any]) -> None:
        self._positions.update(positions)
        # What is no position is told where it is read.
        places = [place for place in self._positions.values() if isinstance(place, dict)]
        try:
            self._lease.from_here(lambda log: _oldest(log, places))
        except StorageError as error:
            warnings.warn(
                f"no lease holds what was not read of {self._url}, and a collection may take it: {error}",
                RuntimeWarning,
                stacklevel=2,
            )


def _oldest(log: CommitLog, places: Sequence[Mapping[str, int | None]]) -> CommittedEntry | None:
    """Return the oldest entry that is needed to go on from positions, None if there is none or it is gone."""
    found = []
    for place in places:
        number = place.get("after") if place.get("before") is None else place.get("before")
        checkpoint_id = place.get("checkpoint_id")
        if number is not None:
            found.append(log.get(number))
        elif checkpoint_id is not None:
            found.append(log.committed_checkpoint(checkpoint_id))
    there = [entry for entry in found if entry is not None]
    return min(there, key=lambda entry: entry.document.number, default=None)


class _ChangesSplit(ChunkedSplit):
    """The changes of the keys of some key groups, step by step; rows are counted from the beginning of the step.

    A step without changes gives a batch without rows: its position must be known, for an earlier checkpoint may go.
    """

    gives_empty = True

    def __init__(self, source: ChangesSource, split: Split) -> None:
        names = source.split_names()
        if split.id not in names:
            detail = f"the source has no such split; it has {', '.join(names[:1] + names[1:][-1:])}"
            raise SourceError(split.id, split.position, detail)
        position = split.position
        if not isinstance(position, dict) or position.keys() != set(source.position_type.names):
            detail = f"a position must have {', '.join(source.position_type.names)}, got {position!r}"
            raise SourceError(split.id, position, detail)
        row = row_number(split, position["row"])
        if row and position["schema_version"] != source.schema_version:
            detail = "the state has another schema now, in which the changes of a step cannot be counted on"
            raise SourceError(split.id, position, detail)
        self._source = source
        self._number = names.index(split.id)
        self._checkpoint_id: int | None = position["checkpoint_id"]
        # The checkpoint at the end of the step, once the rows that were taken up are its last.
        self._ends: int | None = None
        self._step: tuple[int | None, int | None] = position["before"], position["after"]
        super().__init__(split, self._changes(row), source.schema, row)

    @property
    def position(self) -> dict[str, int | None]:
        """What was read up to, and where the next change is."""
        if self._ends is not None and not self.has_rest:
            return self._source.position(self._ends)
        return self._source.position(self._checkpoint_id, *self._step, self.row)

    def _changes(self, row: int) -> Iterator[pa.RecordBatch | None]:
        storage = self._source.open()
        log = CommitLog(storage)
        looks = Looks(self._source.clock, self._source.discovery_ms)
        steps: list[Step] = []
        while True:
            before, after = self._step
            if after is not None:
                entry = self._entry(log, after)
                yield from self._changes_of(storage, log, before, entry, row)
                # All of the step was taken, so the position is that between two steps.
                self._checkpoint_id, self._step, self.row, row = entry.checkpoint_id, (None, None), 0, 0
                self._ends = None
            if not steps:
                steps = self._further(log) if looks.due() else []
            if steps:
                step = steps.pop(0)
                self._step = step.before, step.after
            else:
                yield None

    def _entry(self, log: CommitLog, number: int) -> LogEntryDocument:
        """Return an entry on a side of the step."""
        if (found := log.get(number)) is None and number < log.boundary():
            left = {entry.checkpoint_id for entry in log.backwards() if entry.checkpoint_id is not None}
            raise CheckpointsCollectedError(self._checkpoint_id or 0, sorted(left))
        return found.document if found is not None else log.read(number).document

    def _further(self, log: CommitLog) -> list[Step]:
        newest = newest_checkpoint_id(log)
        if newest is None or (self._checkpoint_id is not None and newest < self._checkpoint_id):
            detail = f"the newest checkpoint of the store is {newest}: it has gone back to an earlier one"
            raise SourceError(self._split.id, self.position, detail)
        return [] if newest == self._checkpoint_id else steps_between(log, self._checkpoint_id, newest)

    def _changes_of(
        self, storage: Storage, log: CommitLog, before: int | None, after: LogEntryDocument, row: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a step from a number on; a batch without rows if there is none."""
        source = self._source
        state = source.state_reader(storage)
        changes = StateChanges(storage, state, None if before is None else self._entry(log, before), after)
        # Not by the key groups of the state, which may be others at the next step, or where the job starts again: a key
        # stays in its split.
        groups = key_group_range(MAX_PARALLELISM, parallelism=source.splits, subtask=self._number)
        last = pa.RecordBatch.from_pylist([], schema=source.schema)
        for rows in changes.batches(source.columns, groups.hash_bounds(MAX_PARALLELISM)):
            if last.num_rows:
                yield last
            ids = pa.repeat(pa.scalar(after.checkpoint_id, pa.int64()), rows.num_rows)
            whole = pa.RecordBatch.from_arrays([*rows.columns, ids], schema=source.schema)
            last = whole.slice(min(row, rows.num_rows))
            row = max(0, row - rows.num_rows)
        if row:
            raise SourceError(self._split.id, self.position, f"the step has {row} changes fewer than were read of it")
        # What comes with the last of them is a position between two steps, for which no files of this one are needed.
        self._ends = after.checkpoint_id
        yield last


def _named(entry: LogEntryDocument, state: str) -> tuple[str, str]:
    """Return the operator and the state that a name with a dot means; both may have dots of their own."""
    there = [(operator.uid, kept.name) for operator in entry.operators for kept in operator.states]
    for uid, name in there:
        if f"{uid}.{name}" == state:
            return uid, name
    names = ", ".join(f"{uid}.{name}" for uid, name in there) or "none"
    raise InvalidInputError(f"no state {state!r} in checkpoint {entry.checkpoint_id}; it has {names}")
