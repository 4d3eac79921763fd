"""What changed in a state from one checkpoint to another: rows that came, went, or have another value.

Two checkpoints share most of their runs. Only rows are read that are live in one of them and not in the other, which
the live bits tell without opening a file; a run that one checkpoint does not have is read as a whole. Then rows of one
key are put side by side: those with equal values were only moved, by a merge of runs, and did not change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from arrowstate.errors import IncompatibleStateError, OperatorNotFoundError, StateNotFoundError
from arrowstate.files.reading import subtask_runs
from arrowstate.files.subtasks import subtasks_of
from arrowstate.log.collected import reading_checkpoint
from arrowstate.query.catalog import resolve
from arrowstate.query.expiry import EXPIRES_COLUMN
from arrowstate.query.files import Bits, Part, QueriedRun, live_bits_in_file
from arrowstate.query.picking import count_rows
from arrowstate.query.state import CHECKPOINT_COLUMN, HashBounds, StateReader
from arrowstate.query.stored_schemas import StoredSchemas, rehashed, stored_schemas
from arrowstate.schema.versions import RunSchemas
from arrowstate.storage.base import Storage
from arrowstate.table.columns import columns_equal, take
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.segment import HASH_COLUMN
from arrowstate_formats.documents import LogEntryDocument, RunDocument

UPDATED_COLUMN = "_updated_at"
CHANGE_TYPE_COLUMN = "_change_type"
CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete")

ADDED = ("+I", "+U", "c", "r", "u", "insert", "update_postimage")
"""Words of Flink, Debezium, Spark and Delta for a row that is there from now on."""
REMOVED = ("-U", "-D", "d", "update_preimage", "delete")
"""Those for a row that was there before, and is there no more; after a pre-image its successor follows."""
"""What happened to a row: it came; it is what it was before a change, or after it; it went."""

ALL_HASHES = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
"""The bounds of all keys."""

_INSERT, _BEFORE, _AFTER, _DELETE = range(4)
_STEP_ROWS = 1 << 19

Ints = npt.NDArray[np.int64]


class StateChanges:
    """The changes of one state between two checkpoints."""

    def __init__(
        self, storage: Storage, state: StateReader, before: LogEntryDocument | None, after: LogEntryDocument
    ) -> None:
        self._state = state
        entries = (after,) if before is None else (before, after)
        self._reading = partial(reading_checkpoint, storage, *entries)
        with self._reading():
            gone, come, sides = self._runs(storage, before, after)
        self._gone = _Side(state, gone, sides[0].read_as)
        self._come = _Side(state, come, sides[1].read_as)

    def _runs(
        self, storage: Storage, before: LogEntryDocument | None, after: LogEntryDocument
    ) -> tuple[list[QueriedRun], list[QueriedRun], list[_Stored]]:
        """Return the runs with rows that went and with rows that came, and what is stored in both checkpoints."""
        sides = [_Stored.of(storage, self._state, entry) for entry in (before, after)]
        gone: list[QueriedRun] = []
        come: list[QueriedRun] = []
        for run in {**sides[0].runs, **sides[1].runs}:
            documents = [side.runs.get(run, ()) for side in sides]
            if _same_rows(*documents):
                continue
            document = next(iter((*documents[0], *documents[1])))
            rows = [side.live_rows(storage, run, document.rows) for side in sides]
            for target, side, lost in ((gone, sides[0], rows[0] & ~rows[1]), (come, sides[1], rows[1] & ~rows[0])):
                if lost.any():
                    target.append(_run_of(storage, side.read_as.runs, document, lost))
        return gone, come, sides

    def batches(self, columns: Sequence[str], hash_bounds: HashBounds) -> Iterator[pa.RecordBatch]:
        """Yield the changes of the keys whose hash is in a range."""
        read = columns_to_compare(self._state, columns)
        with self._reading():
            sides = [side.within(read, hash_bounds) for side in (self._gone, self._come)]
        for bounds in _steps(hash_bounds, sum(rows.count for rows in sides)):
            with self._reading():
                gone, come = (rows.read(bounds) for rows in sides)
            changes = changed_rows(self._state, gone, come, columns)
            if changes.num_rows:
                yield changes

    def counts(self, *, times: bool = False) -> tuple[int, int, int]:
        """Return how many rows came, got another value, and went; with `times` another time of update counts too."""
        found = np.zeros(len(CHANGE_TYPES), dtype=np.int64)
        columns = [name for name in self._state.columns if name != self._state.layout.second]
        if times and self._state.layout.has_ttl:
            columns.append(UPDATED_COLUMN)
        for batch in self.batches(columns, ALL_HASHES):
            types = pc.index_in(batch.column(CHANGE_TYPE_COLUMN), pa.array(CHANGE_TYPES)).to_numpy()
            found += np.bincount(types, minlength=len(CHANGE_TYPES))
        return int(found[_INSERT]), int(found[_AFTER]), int(found[_DELETE])


def _steps(bounds: HashBounds, rows: int) -> Iterator[HashBounds]:
    """Cut a range of hashes so that each piece has a bounded number of rows, as hashes are spread evenly."""
    count = -(-rows // _STEP_ROWS)
    if count:
        low, length = bounds[0], bounds[1] - bounds[0] + 1
        for start, stop in pairwise(low + length * number // count for number in range(count + 1)):
            yield start, stop - 1


class _Rows(Struct, frozen=True):
    """Rows of one side of a comparison, read by ranges of hashes."""

    count: int
    "How many there are about."
    read: Callable[[HashBounds], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class _Side:
    """Runs whose live rows are in one checkpoint and not in the other."""

    state: StateReader
    runs: Sequence[QueriedRun]
    read_as: StoredSchemas

    def within(self, columns: Sequence[str], bounds: HashBounds) -> _Rows:
        """Return the rows whose hash is in a range, to be read; of keys that have other hashes now all are read."""
        if self.read_as.moves:
            moved = self._moved(columns, bounds)
            hashes = moved.column(HASH_COLUMN).to_numpy()

            def cut(piece: HashBounds) -> pa.RecordBatch:
                start = int(np.searchsorted(hashes, piece[0], side="left"))
                stop = int(np.searchsorted(hashes, piece[1], side="right"))
                return moved.slice(start, stop - start)

            return _Rows(moved.num_rows, cut)
        count = sum(part.live_rows for part in self._parts(bounds))
        return _Rows(count, lambda piece: self._joined(columns, list(self._batches(columns, piece))))

    def _moved(self, columns: Sequence[str], bounds: HashBounds) -> pa.RecordBatch:
        found = []
        for batch in self._batches(columns, ALL_HASHES):
            rows = rehashed(self.state, batch)
            hashes = rows.column(HASH_COLUMN).to_numpy()
            found.append(rows.filter(pa.array((hashes >= bounds[0]) & (hashes <= bounds[1]))))
        whole = self._joined(columns, found)
        order = np.argsort(whole.column(HASH_COLUMN).to_numpy(), kind="stable")
        return whole.take(pa.array(order))

    def _batches(self, columns: Sequence[str], bounds: HashBounds) -> Iterator[pa.RecordBatch]:
        lacks_times = UPDATED_COLUMN in columns and not self.read_as.has_times
        stored = [name for name in columns if not (lacks_times and name == UPDATED_COLUMN)]
        for batch in self.state.batches(self._parts(bounds), stored, hash_bounds=bounds):
            if not lacks_times:
                yield batch
                continue
            times = pa.nulls(batch.num_rows, pa.int64())
            arrays = [times if name == UPDATED_COLUMN else batch.column(name) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema(columns))

    def _joined(self, columns: Sequence[str], batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        nothing = pa.RecordBatch.from_pylist([], schema=self._schema(columns))
        return pa.concat_batches(batches) if batches else nothing

    def _schema(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.state.schema.field(name) for name in columns])

    def _parts(self, bounds: HashBounds) -> list[Part]:
        parts = (part for run in self.runs for part in run.parts())
        return [part for part in parts if part.max_hash >= bounds[0] and part.min_hash <= bounds[1]]


class _Stored(Struct, frozen=True):
    """The runs of a state in a checkpoint by their id; a file may belong to several subtasks, a piece to each."""

    runs: Mapping[str, Sequence[RunDocument]]
    read_as: StoredSchemas

    @classmethod
    def of(cls, storage: Storage, state: StateReader, entry: LogEntryDocument | None) -> _Stored:
        found: dict[str, list[RunDocument]] = defaultdict(list)
        read_as = stored_schemas(state, state.entry, state.operator, state.document)
        if entry is None:
            return cls({}, read_as)
        for operator in entry.operators:
            if operator.uid != state.operator.uid:
                continue
            for document in operator.states:
                if document.name == state.document.name:
                    read_as = stored_schemas(state, entry, operator, document)
            for subtask in subtasks_of(storage, operator):
                for run in subtask_runs(storage, operator, subtask).get(state.document.name, []):
                    found[run.id].append(run)
        return cls(dict(found), read_as)

    def live_rows(self, storage: Storage, run: str, rows: int) -> Bits:
        """Return which rows of the file of a run are live."""
        return live_bits_in_file(
            [QueriedRun(storage, piece, self.read_as.runs) for piece in self.runs.get(run, ())], rows
        )


def _same_rows(left: Sequence[RunDocument], right: Sequence[RunDocument]) -> bool:
    """Whether documents alone tell that the same rows are live."""
    return [_rows_of(run) for run in left] == [_rows_of(run) for run in right]


def _rows_of(run: RunDocument) -> tuple[int, int, str | None]:
    """Return what tells which rows of a file are live."""
    vector = run.deletion_vector
    return run.first_row, run.last_row, None if vector is None else vector.xxh3_128


def _run_of(storage: Storage, schemas: RunSchemas, document: RunDocument, rows: Bits) -> QueriedRun:
    """Return a whole file as a run in which only some rows are live."""
    count = count_rows(rows, 0, document.rows)
    whole = replace(document, first_row=0, last_row=document.rows, live_rows=count, deletion_vector=None)
    return QueriedRun(storage, whole, schemas, live=rows)


class _Compared(Struct, frozen=True):
    """By which columns of a state rows are put side by side, and which are compared."""

    identity: list[str]
    second: str | None
    values: list[str]

    @classmethod
    def of(cls, state: StateReader, columns: Sequence[str]) -> _Compared:
        """For rows of which some columns are asked for."""
        layout = state.layout
        identity = [*layout.key.names, *(field.name for field in layout.entry_fields)]
        values = [field.name for field in layout.value_fields]
        compared = [name for name in dict.fromkeys((*values, *columns)) if name not in (*identity, layout.second)]
        compared = [name for name in compared if not name.startswith("_") or name in values or name == UPDATED_COLUMN]
        return cls(identity, layout.second, compared)

    def read(self, columns: Sequence[str]) -> list[str]:
        """Return the columns to be read."""
        seconds = [] if self.second is None else [self.second]
        return list(dict.fromkeys((HASH_COLUMN, *seconds, *self.identity, *self.values, *columns)))


def columns_to_compare(state: StateReader, columns: Sequence[str]) -> list[str]:
    """Return the columns that rows must have for `changed_rows` to return some of them."""
    return _Compared.of(state, columns).read(columns)


def changed_rows(
    state: StateReader, gone: pa.RecordBatch, come: pa.RecordBatch, columns: Sequence[str]
) -> pa.RecordBatch:
    """Put the rows of a key side by side and say what happened to each, as `StateChanges.batches` does.

    Both have the columns of `columns_to_compare`.
    """
    compared = _Compared.of(state, columns)
    both = pa.concat_batches([gone, come])
    keys = KeyBatch.of(
        both.column(HASH_COLUMN).to_numpy(),
        [both.column(name) for name in compared.identity],
        seconds=None if compared.second is None else both.column(compared.second).to_numpy(),
    )
    numbers = keys.groups()
    row_before, row_after = (np.full(len(keys), -1, dtype=np.int64) for _ in range(2))
    row_before[numbers[: gone.num_rows]] = np.arange(gone.num_rows)
    row_after[numbers[gone.num_rows :]] = np.arange(gone.num_rows, both.num_rows)
    if np.count_nonzero(row_before >= 0) < gone.num_rows or np.count_nonzero(row_after >= 0) < come.num_rows:
        remedy = "compare checkpoints on one side of the change of the key"
        raise IncompatibleStateError(state.layout.name, "in rows of several keys", "one key, which they became", remedy)
    there = (row_before >= 0) & (row_after >= 0)
    old, new = row_before[there], row_after[there]
    same = np.ones(old.size, dtype=np.bool_)
    for name in compared.values:
        same &= columns_equal(take(both.column(name), old), take(both.column(name), new))
    old, new = old[~same], new[~same]
    lost, added = row_before[row_after < 0], row_after[row_before < 0]
    rows = np.concatenate([lost, np.stack([old, new], axis=1).ravel(), added])
    types = np.concatenate(
        [
            np.full(lost.size, _DELETE),
            np.tile(np.array([_BEFORE, _AFTER]), old.size),
            np.full(added.size, _INSERT),
        ]
    )
    fields = [both.schema.field(name) for name in columns]
    return pa.RecordBatch.from_arrays(
        [*(take(both.column(name), rows) for name in columns), take(pa.array(CHANGE_TYPES), types)],
        schema=pa.schema([*fields, pa.field(CHANGE_TYPE_COLUMN, pa.string(), nullable=False)]),
    )


def reader_between(
    storage: Storage, before: LogEntryDocument | None, after: LogEntryDocument, reference: str | tuple[str, str]
) -> StateReader:
    """Return the reader whose columns the changes of a state have: of the newer of its two schemas.

    That is the schema of the later checkpoint, unless the store went back to an earlier one in between.
    """
    found: list[StateReader] = []
    missing: list[Exception] = []
    for entry in (after, before):
        try:
            found += [] if entry is None else [StateReader(storage, entry, *resolve(entry, reference))]
        except (OperatorNotFoundError, StateNotFoundError) as error:
            missing.append(error)
    if not found:
        raise missing[0]
    for reader, other in (found, found[::-1]) if len(found) > 1 else ():
        if reader.document.schema_version >= other.document.schema_version:
            with suppress(IncompatibleStateError):
                stored_schemas(reader, other.entry, other.operator, other.document)
                return reader
    return found[0]


def change_columns(state: StateReader) -> list[str]:
    """Return the columns of a state that may be asked for with its changes."""
    return [name for name in state.schema.names if name not in (CHECKPOINT_COLUMN, EXPIRES_COLUMN)]
