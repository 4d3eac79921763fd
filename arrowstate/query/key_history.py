"""What some keys of a state were in each checkpoint of a store, told where it changed.

A checkpoint shares most of its files with the one before. Each file is looked into once, for all rows of the keys, dead
ones too; which of them are live in a checkpoint its manifest tells. So a checkpoint costs its manifest, and the files
that are new in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from arrowstate.errors import IncompatibleStateError
from arrowstate.files.subtasks import runs_of_state, subtasks_of
from arrowstate.log.collected import reading_checkpoint
from arrowstate.query.changes import CHANGE_TYPE_COLUMN, changed_rows, columns_to_compare
from arrowstate.query.files import Part, QueriedRun
from arrowstate.query.state import CHECKPOINT_COLUMN, StateReader
from arrowstate.query.stored_schemas import StoredSchemas, rehashed, stored_schemas
from arrowstate.schema.keys import key_columns
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel, overlaps
from arrowstate.table.columns import canonical_floats, take
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.table import gather
from arrowstate_formats.documents import DeletionVectorDocument, LogEntryDocument, OperatorDocument, RunDocument
from arrowstate_formats.key_groups import KeyGroupRange
from arrowstate_formats.key_hash import hash_columns
from arrowstate_formats.manifest_text import RunsOfState
from arrowstate_formats.schema_documents import StateDocument

COMMITTED_COLUMN = "_committed_at"
_WINDOW = 64
"""How many manifests are read at a time where that is faster than one after the other."""

Ints = npt.NDArray[np.int64]


class _InFile(Struct, frozen=True):
    """The rows of a file that have one of the keys."""

    places: Ints
    rows: pa.RecordBatch


class _Asked(Struct, frozen=True):
    """The keys as the runs of a checkpoint have them."""

    read_as: StoredSchemas
    keys: KeyBatch
    "Those that the runs can have at all."
    hashes: list[int]

    @classmethod
    def of(cls, read_as: StoredSchemas, given: Sequence[pa.Array]) -> _Asked:
        if not read_as.moves:
            keys = KeyBatch.of(hash_columns(list(given)), list(given))
        else:
            rows, hashes = read_as.hashes_of(given)
            keys = KeyBatch.of(hashes, [take(column, rows) for column in given])
        return cls(read_as, keys, keys.hashes.tolist())

    def is_within(self, low: int, high: int) -> bool:
        """Whether a key has a hash in a range."""
        return bisect_left(self.hashes, low) < bisect_right(self.hashes, high)

    def may_be_in(self, run: RunDocument) -> bool:
        return bool(run.batches) and self.is_within(run.batches[0].min_hash, run.batches[-1].max_hash)

    def may_be_in_part(self, part: Part) -> bool:
        """Whether a row of a part has the hash of a key."""
        if not self.is_within(part.min_hash, part.max_hash):
            return False
        hashes, asked = part.segment().hashes, self.keys.hashes
        return bool((np.searchsorted(hashes, asked, "left") < np.searchsorted(hashes, asked, "right")).any())


_Runs = tuple[_Asked, list[RunDocument]]


def history_reader(storage: Storage, reader: StateReader, entries: Sequence[LogEntryDocument]) -> StateReader:
    """Return the reader of a state whose types hold its values in all checkpoints.

    That is the reader given, unless the store went back over a wider column. Then it is that of a checkpoint with this
    column, if the key and the names of the columns are the same there.
    """
    found = list(_schemas_of(reader, entries))
    widest = reader
    for entry, operator, document in found:
        if not _reads(widest, entry, operator, document):
            widest = StateReader(storage, entry, operator.uid, document.name)
    same = widest.operator.key == reader.operator.key and widest.columns == reader.columns
    return widest if same and all(_reads(widest, *stored) for stored in found) else reader


def _schemas_of(
    reader: StateReader, entries: Iterable[LogEntryDocument]
) -> Iterator[tuple[LogEntryDocument, OperatorDocument, StateDocument]]:
    """Yield the state as the reader has it, and in each checkpoint that has another schema than the one before."""
    yield reader.entry, reader.operator, reader.document
    before: object = None
    for entry in entries:
        for operator in entry.operators:
            for document in operator.states if operator.uid == reader.operator.uid else ():
                if document.name == reader.document.name and before != (operator.key, document):
                    before = operator.key, document
                    yield entry, operator, document


def _reads(reader: StateReader, entry: LogEntryDocument, operator: OperatorDocument, document: StateDocument) -> bool:
    try:
        stored_schemas(reader, entry, operator, document)
    except IncompatibleStateError:
        return False
    return True


class KeyHistory:
    """The changes of some keys of a state from checkpoint to checkpoint."""

    def __init__(self, storage: Storage, state: StateReader, keys: object) -> None:
        self._storage = storage
        self._state = state
        self._given = [canonical_floats(column) for column in key_columns(keys, state.layout.key)]
        self._columns = state.columns
        self._read = columns_to_compare(state, self._columns)
        own = stored_schemas(state, state.entry, state.operator, state.document)
        self._asked = _Asked.of(own, self._given)
        self._count = len(self._asked.keys)
        self._asked_by: tuple[Any, _Asked] = (None, self._asked)
        stored = state.schemas.schema
        self._fields = [(stored.get_field_index(name), stored.field(name).type) for name in self._read]
        schema = pa.schema([state.schema.field(name) for name in self._read])
        self._nothing = pa.RecordBatch.from_pylist([], schema=schema)
        self._files: dict[str, _InFile] = {}
        self._live: dict[tuple[str, int, int], tuple[DeletionVectorDocument | None, list[int]]] = {}
        # A key that has one row and still has it has none in files that came since.
        self._one_row_each = state.layout.second is None
        self._manifests = RunsOfState(state.document.name, self._may_have_rows)
        self._with_rows = RunsOfState(state.document.name, self._has_rows)

    @property
    def schema(self) -> pa.Schema:
        """`_checkpoint_id` int64, `_committed_at` timestamp("ms"), `_change_type` string, and the state's columns."""
        return pa.schema(
            [
                pa.field(CHECKPOINT_COLUMN, pa.int64(), nullable=False),
                pa.field(COMMITTED_COLUMN, pa.timestamp("ms"), nullable=False),
                pa.field(CHANGE_TYPE_COLUMN, pa.string(), nullable=False),
                *(self._state.schema.field(name) for name in self._columns),
            ]
        )

    def batches(self, entries: Iterable[LogEntryDocument]) -> Iterator[pa.RecordBatch]:
        """Yield what changed in each of the checkpoints, which come oldest first; what the first has is inserted."""
        left = iter(entries)
        seen: list[tuple[str, list[int]]] = []
        rows = self._rows_of([])
        # One after the other, so that runs in which no key was found need not be looked at again.
        at_once = _WINDOW if overlaps(self._storage) else 1
        while window := list(islice(left, at_once)):
            ahead = at_once > 1 or not self._one_row_each
            found = in_parallel(self._storage, self._runs if ahead else self._runs_with_rows, window, name="manifests")
            for entry, (asked, runs) in zip(window, found, strict=True):
                with reading_checkpoint(self._storage, entry):
                    known = [run for run in runs if not self._one_row_each or self._has_rows(run.id)]
                    now = self._live_in(asked, known)
                    if self._one_row_each and not self._are_all(now):
                        now = self._live_in(*((asked, runs) if ahead else self._runs(entry)))
                if now != seen:
                    before, seen, rows = rows, now, self._rows_of(now)
                    changes = changed_rows(self._state, before, rows, self._columns)
                    if changes.num_rows:
                        yield self._told(entry, changes)

    def _live_in(self, asked: _Asked, runs: Iterable[RunDocument]) -> list[tuple[str, list[int]]]:
        """Return the live rows of the keys by the files that they are in, in a fixed order."""
        found = []
        for run in runs:
            places = self._live_rows(asked, run)
            if places:
                found.append((run.id, places))
                if self._one_row_each and self._are_all(found):
                    break
        return sorted(found)

    def _are_all(self, found: Sequence[tuple[str, list[int]]]) -> bool:
        return sum(len(places) for _, places in found) == self._count

    def _runs_with_rows(self, entry: LogEntryDocument) -> _Runs:
        """Return those runs of the state in a checkpoint in whose files a key was found before."""
        return self._runs(entry, self._with_rows)

    def _runs(self, entry: LogEntryDocument, manifests: RunsOfState | None = None) -> _Runs:
        """Return the runs of the state in a checkpoint that may hold a key, the newest first."""
        reader = self._manifests if manifests is None else manifests
        uid, name = self._state.operator.uid, self._state.document.name
        found = []
        asked = self._asked
        for operator in entry.operators:
            for document in operator.states if operator.uid == uid else ():
                if document.name == name:
                    asked = self._asked_in(entry, operator, document)
                    with reading_checkpoint(self._storage, entry):
                        for subtask in subtasks_of(self._storage, operator):
                            if asked.is_within(
                                *KeyGroupRange(*subtask.key_groups).hash_bounds(operator.max_parallelism)
                            ):
                                found += runs_of_state(self._storage, subtask.manifest, uid, name, reader)
        return asked, [run for run in reversed(found) if asked.may_be_in(run)]

    def _asked_in(self, entry: LogEntryDocument, operator: OperatorDocument, document: StateDocument) -> _Asked:
        """Return the keys as a checkpoint has them; most have what the one before has."""
        stored, asked = self._asked_by
        if stored != (operator.key, document) or entry.number > self._state.entry.number:
            read_as = stored_schemas(self._state, entry, operator, document)
            asked = _Asked(read_as, self._asked.keys, self._asked.hashes)
            if read_as.moves:
                asked = _Asked.of(read_as, self._given)
            self._asked_by = (operator.key, document), asked
        return asked

    def _live_rows(self, asked: _Asked, run: RunDocument) -> list[int]:
        """Return those of its rows with a key that are live, by their place among all of the file with a key."""
        rows = self._in_file(asked, run).places
        if not rows.size:
            return []
        piece = run.id, run.first_row, run.last_row
        before = self._live.get(piece)
        if before is None or before[0] != run.deletion_vector:
            own = np.flatnonzero((rows >= run.first_row) & (rows < run.last_row))
            live = QueriedRun(self._storage, run, asked.read_as.runs)
            places = [place for place in own.tolist() if live.live_rows(int(rows[place]), int(rows[place]) + 1)[1]]
            before = self._live[piece] = run.deletion_vector, places
        return before[1]

    def _in_file(self, asked: _Asked, run: RunDocument) -> _InFile:
        """Return the rows of a file that have a key, dead ones too; each file is looked into once."""
        known = self._files.get(run.id)
        if known is None:
            whole = replace(run, first_row=0, last_row=run.rows, live_rows=run.rows, deletion_vector=None)
            queried = QueriedRun(self._storage, whole, asked.read_as.runs)
            parts = [part for part in queried.parts() if asked.may_be_in_part(part)]
            found = [(opened, *opened.find_all(asked.keys)) for opened in [queried.run(parts)]] if parts else []
            known = _InFile(found[0][2] if found else np.empty(0, dtype=np.int64), self._nothing)
            if known.places.size:
                columns = [gather(found, number, kind) for number, kind in self._fields]
                rows = pa.RecordBatch.from_arrays(columns, schema=self._nothing.schema)
                known = _InFile(known.places, rehashed(self._state, rows) if asked.read_as.moves else rows)
            self._files[run.id] = known
        return known

    def _has_rows(self, run: str) -> bool:
        known = self._files.get(run)
        return known is not None and known.places.size > 0

    def _may_have_rows(self, run: str) -> bool:
        return run not in self._files or self._has_rows(run)

    def _rows_of(self, live: Sequence[tuple[str, list[int]]]) -> pa.RecordBatch:
        return pa.concat_batches(
            [self._nothing, *(self._files[run].rows.take(pa.array(places, pa.int64())) for run, places in live)]
        )

    def _told(self, entry: LogEntryDocument, changes: pa.RecordBatch) -> pa.RecordBatch:
        constants = [
            pa.repeat(pa.scalar(value, self.schema.field(name).type), changes.num_rows)
            for name, value in ((CHECKPOINT_COLUMN, entry.checkpoint_id), (COMMITTED_COLUMN, entry.committed_at_ms))
        ]
        return pa.RecordBatch.from_arrays(
            [*constants, *(changes.column(name) for name in (CHANGE_TYPE_COLUMN, *self._columns))], schema=self.schema
        )
