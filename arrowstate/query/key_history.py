"""What some keys of a state were in each checkpoint of a store, told where it changed.

A checkpoint shares most of its files with the one before. Each file is looked into once, for all rows of the keys, dead
ones too; which of them are live in a checkpoint its manifest tells. So a checkpoint costs its manifest, and the files
that are new in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from arrowstate.log.collected import reading_checkpoint
from arrowstate.query.changes import CHANGE_TYPE_COLUMN, changed_rows, check_same_schema, columns_to_compare
from arrowstate.query.files import Part, QueriedRun
from arrowstate.query.state import CHECKPOINT_COLUMN, StateReader
from arrowstate.schema.keys import key_columns
from arrowstate.schema.versions import RunSchemas
from arrowstate.snapshot.subtasks import runs_of_state, subtasks_of
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel, overlaps
from arrowstate.table.columns import canonical_floats
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.table import gather
from arrowstate_formats.documents import DeletionVectorDocument, LogEntryDocument, OperatorDocument, RunDocument
from arrowstate_formats.key_groups import KeyGroupRange
from arrowstate_formats.key_hash import hash_columns
from arrowstate_formats.manifest_text import RunsOfState
from arrowstate_formats.schema_documents import SchemaDocument, StateDocument

__all__ = ["COMMITTED_COLUMN", "KeyHistory"]

COMMITTED_COLUMN = "_committed_at"
_WINDOW = 64
"""How many manifests are read at a time where that is faster than one after the other."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _InFile:
    """The rows of a file that have one of the keys."""

    places: Ints
    rows: pa.RecordBatch


class KeyHistory:
    """The changes of some keys of a state from checkpoint to checkpoint.

    Parameters
    ----------
    storage
        The store.
    state
        The state, in the schema that the rows are to have.
    keys
        As `StateReader.lookup` takes them.

    Raises
    ------
    KeyTypeError, NullKeyError
        If the keys do not fit the key schema.
    """

    def __init__(self, storage: Storage, state: StateReader, keys: object) -> None:
        self._storage = storage
        self._state = state
        given = [canonical_floats(column) for column in key_columns(keys, state.layout.key)]
        self._batch = KeyBatch.of(hash_columns(given), given)
        self._columns = state.columns
        self._read = columns_to_compare(state, self._columns)
        self._schemas = state.schemas
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
        self._hashes: list[int] = self._batch.hashes.tolist()

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
        """Yield what changed in each of the checkpoints, which come oldest first; what the first has is inserted.

        Raises
        ------
        IncompatibleStateError
            If the state has another key in one of them, or a schema that the one given knows nothing of.
        CorruptDataError, CollectedError
            If a file is missing or damaged, or was collected meanwhile.
        """
        every = list(entries)
        self._learn_schemas(every)
        left = iter(every)
        seen: list[tuple[str, list[int]]] = []
        rows = self._rows_of([])
        # One after the other, so that runs in which no key was found need not be looked at again.
        at_once = _WINDOW if overlaps(self._storage) else 1
        while window := list(islice(left, at_once)):
            ahead = at_once > 1 or not self._one_row_each
            found = in_parallel(self._storage, self._runs if ahead else self._runs_with_rows, window, name="manifests")
            for entry, runs in zip(window, found, strict=True):
                with reading_checkpoint(self._storage, entry):
                    now = self._live_in(run for run in runs if not self._one_row_each or self._has_rows(run.id))
                    if self._one_row_each and not self._are_all(now):
                        now = self._live_in(runs if ahead else self._runs(entry))
                if now != seen:
                    before, seen, rows = rows, now, self._rows_of(now)
                    changes = changed_rows(self._state, before, rows, self._columns)
                    if changes.num_rows:
                        yield self._told(entry, changes)

    def _learn_schemas(self, entries: Sequence[LogEntryDocument]) -> None:
        """Take in the schemas that the checkpoint of the reader names no more, because no run of its has them.

        Versions rise with each evolution and begin anew with a state that is made again, so going back they only fall
        as long as it is the same state.
        """
        state, own = self._state, self._state.document
        known = {schema.version: schema for schema in own.earlier_schemas}
        oldest = own
        for entry in reversed(entries):
            for operator in entry.operators:
                for document in operator.states if operator.uid == state.operator.uid else ():
                    if document.name != own.name or not _comes_before(document, oldest):
                        continue
                    oldest = document
                    for schema in (_schema_of(operator, document), *document.earlier_schemas):
                        if schema.version < own.schema_version:
                            known.setdefault(schema.version, schema)
        if len(known) > len(own.earlier_schemas):
            earlier = [known[version] for version in sorted(known)]
            self._schemas = RunSchemas(state.operator.key, replace(own, earlier_schemas=earlier))

    def _live_in(self, runs: Iterable[RunDocument]) -> list[tuple[str, list[int]]]:
        """Return the live rows of the keys by the files that they are in, in a fixed order."""
        found = []
        for run in runs:
            places = self._live_rows(run)
            if places:
                found.append((run.id, places))
                if self._one_row_each and self._are_all(found):
                    break
        return sorted(found)

    def _are_all(self, found: Sequence[tuple[str, list[int]]]) -> bool:
        return sum(len(places) for _, places in found) == len(self._batch)

    def _runs_with_rows(self, entry: LogEntryDocument) -> list[RunDocument]:
        """Return those runs of the state in a checkpoint in whose files a key was found before."""
        return self._runs(entry, self._with_rows)

    def _runs(self, entry: LogEntryDocument, manifests: RunsOfState | None = None) -> list[RunDocument]:
        """Return the runs of the state in a checkpoint that may hold a key, the newest first."""
        reader = self._manifests if manifests is None else manifests
        uid, name = self._state.operator.uid, self._state.document.name
        found = []
        for operator in entry.operators:
            for document in operator.states if operator.uid == uid else ():
                if document.name == name:
                    check_same_schema(self._state, operator, document, self._schemas.document)
                    with reading_checkpoint(self._storage, entry):
                        for subtask in subtasks_of(self._storage, operator):
                            if self._is_within(
                                *KeyGroupRange(*subtask.key_groups).hash_bounds(operator.max_parallelism)
                            ):
                                found += runs_of_state(self._storage, subtask.manifest, uid, name, reader)
        return [run for run in reversed(found) if self._may_hold(run)]

    def _may_hold(self, run: RunDocument) -> bool:
        if not run.batches:
            return False
        return self._is_within(run.batches[0].min_hash, run.batches[-1].max_hash)

    def _live_rows(self, run: RunDocument) -> list[int]:
        """Return those of its rows with a key that are live, by their place among all of the file with a key."""
        rows = self._in_file(run).places
        if not rows.size:
            return []
        piece = run.id, run.first_row, run.last_row
        before = self._live.get(piece)
        if before is None or before[0] != run.deletion_vector:
            own = np.flatnonzero((rows >= run.first_row) & (rows < run.last_row))
            live = QueriedRun(self._storage, run, self._schemas)
            places = [place for place in own.tolist() if live.live_rows(int(rows[place]), int(rows[place]) + 1)[1]]
            before = self._live[piece] = run.deletion_vector, places
        return before[1]

    def _in_file(self, run: RunDocument) -> _InFile:
        """Return the rows of a file that have a key, dead ones too; each file is looked into once."""
        known = self._files.get(run.id)
        if known is None:
            whole = replace(run, first_row=0, last_row=run.rows, live_rows=run.rows, deletion_vector=None)
            queried = QueriedRun(self._storage, whole, self._schemas)
            parts = [part for part in queried.parts() if self._may_be_in(part)]
            found = [(opened, *opened.find_all(self._batch)) for opened in [queried.run(parts)]] if parts else []
            known = _InFile(found[0][2] if found else np.empty(0, dtype=np.int64), self._nothing)
            if known.places.size:
                columns = [gather(found, number, kind) for number, kind in self._fields]
                known = _InFile(known.places, pa.RecordBatch.from_arrays(columns, schema=self._nothing.schema))
            self._files[run.id] = known
        return known

    def _may_be_in(self, part: Part) -> bool:
        """Whether a row of a part has the hash of a key."""
        if not self._is_within(part.min_hash, part.max_hash):
            return False
        hashes, asked = part.segment().hashes, self._batch.hashes
        return bool((np.searchsorted(hashes, asked, "left") < np.searchsorted(hashes, asked, "right")).any())

    def _has_rows(self, run: str) -> bool:
        known = self._files.get(run)
        return known is not None and known.places.size > 0

    def _may_have_rows(self, run: str) -> bool:
        return run not in self._files or self._has_rows(run)

    def _is_within(self, low: int, high: int) -> bool:
        return bisect_left(self._hashes, low) < bisect_right(self._hashes, high)

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


def _comes_before(document: StateDocument, later: StateDocument) -> bool:
    """Whether a state may have become another one by evolution, or is it."""
    return (
        document.kind == later.kind
        and document.schema_version <= later.schema_version
        and document.last_field_id <= later.last_field_id
    )


def _schema_of(operator: OperatorDocument, document: StateDocument) -> SchemaDocument:
    return SchemaDocument(
        version=document.schema_version,
        value_type=document.value_type,
        key=operator.key,
        namespace=document.namespace,
        user_key=document.user_key,
        columns=document.columns,
    )
