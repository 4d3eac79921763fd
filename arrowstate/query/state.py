"""One state of a checkpoint: its columns and its live rows, all of them, a range of hashes, or some keys.

Rows come as record batches, one per part of a run, made when they are asked for; so memory holds a few
batches whatever the size of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from arrowstate.errors import CollectedError, CorruptDataError, InvalidInputError
from arrowstate.files.reading import find_operator, find_state, subtask_runs
from arrowstate.files.subtasks import restored_watermark, subtasks_of
from arrowstate.files.validation import validated_savepoint
from arrowstate.log.collected import reading_checkpoint
from arrowstate.query.duckdb.filters import Bounds
from arrowstate.query.duckdb.sql_types import SqlForm
from arrowstate.query.expiry import EXPIRES_COLUMN, EXPIRES_FIELD, UPDATED_COLUMN, Seen, expiry_times
from arrowstate.query.files import Part, QueriedRun
from arrowstate.query.picking import Picked, gather
from arrowstate.query.read_ahead import map_ahead
from arrowstate.schema.keys import key_columns
from arrowstate.schema.times import expired_up_to
from arrowstate.schema.versions import RunSchemas
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate.table.columns import canonical_floats
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.run import Run
from arrowstate.table.segment import HASH_COLUMN
from arrowstate.table.table import find_keys
from arrowstate.table.table import gather as column_of
from arrowstate_formats.cached_properties import cached_property
from arrowstate_formats.documents import ColumnStatistics, LogEntryDocument
from arrowstate_formats.key_groups import KeyGroupRange, key_groups_of_hashes
from arrowstate_formats.key_hash import hash_columns
from arrowstate_formats.statistics import bound_of

KEY_GROUP_COLUMN = "_key_group"
CHECKPOINT_COLUMN = "_checkpoint_id"

_CONSTANT_ROWS = 1 << 20
_STEP_ROWS = 65_536
_VIRTUAL = (KEY_GROUP_COLUMN, CHECKPOINT_COLUMN, EXPIRES_COLUMN)
"""Columns that no file has."""

Ints = npt.NDArray[np.int64]
HashBounds: TypeAlias = tuple[int, int]


class Condition(Struct, frozen=True):
    """Which rows to return."""

    columns: Sequence[str]
    "The columns that the test reads."
    test: Callable[[pa.RecordBatch], pa.BooleanArray]
    "Returns for each row of a batch with these columns whether it passes; null is no."


def _content_of(run: QueriedRun) -> tuple[str, str | None]:
    vector = run.document.deletion_vector
    return run.document.id, None if vector is None else vector.xxh3_128


class StateReader:
    """Reads one state of a checkpoint; safe to use from several threads."""

    def __init__(self, storage: Storage, entry: LogEntryDocument, uid: str, name: str) -> None:
        self.operator = find_operator(entry, uid)
        self.document = find_state(entry, self.operator, name)
        self.schemas = RunSchemas(self.operator.key, self.document)
        self.layout = self.schemas.layout
        self._storage = validated_savepoint(storage, entry)
        self._checkpoint_id = entry.checkpoint_id
        self._entry = entry

    @property
    def max_parallelism(self) -> int:
        return self.operator.max_parallelism

    @property
    def entry(self) -> LogEntryDocument:
        """The checkpoint."""
        return self._entry

    @cached_property
    def schema(self) -> pa.Schema:
        """All columns that may be asked for.

        `_checkpoint_id` is first because it costs nothing to make: an engine that only counts rows takes the first.
        """
        return pa.schema(
            [
                pa.field(CHECKPOINT_COLUMN, pa.int64(), nullable=False),
                *self._run_schema,
                pa.field(KEY_GROUP_COLUMN, pa.int32(), nullable=False),
                *([EXPIRES_FIELD] if self.layout.has_ttl else []),
            ]
        )

    @cached_property
    def sql_form(self) -> SqlForm:
        """What SQL shows of `schema`."""
        return SqlForm(self.schema)

    @property
    def _run_schema(self) -> pa.Schema:
        return self.schemas.schema

    @property
    def columns(self) -> list[str]:
        """The columns that are returned where none are asked for: those of the key, the namespace and the value.

        A list has `_seq` too, by which its elements are put in order.
        """
        return [*self.layout.table_columns, *(["_seq"] if self.layout.is_list else [])]

    def shown_columns(self, *, expired: bool) -> list[str]:
        """Return `columns`, and where rows that have expired are shown too, when they did."""
        return [*self.columns, *([EXPIRES_COLUMN] if expired and self.layout.has_ttl else [])]

    def check_columns(self, columns: Iterable[str] | None, *, expired: bool = False) -> list[str]:
        """Return the columns asked for, or raise InvalidInputError with those there are."""
        if columns is None:
            return self.shown_columns(expired=expired)
        if isinstance(columns, str):
            raise InvalidInputError(f"columns must be a list of names, got the text {columns!r}")
        names = list(columns)
        if not names:
            raise InvalidInputError("columns must name at least one column; leave them out to get all of key and value")
        for name in names:
            if name not in self.schema.names:
                hidden = [name for name in self._run_schema.names if name not in self.columns]
                made = [name for name in _VIRTUAL if name in self.schema.names]
                raise InvalidInputError(
                    f"state {self.operator.uid}.{self.layout.name} has no column {name!r}; "
                    f"it has {', '.join([*self.columns, *hidden, *made])}"
                )
        return names

    def expired_up_to(self, seen: Seen) -> int | None:
        """Return the last time of update whose rows a reader does not see, None where it sees all.

        What expires by event time goes by the watermark that a restore of the operator begins with.
        """
        ttl = self.document.time_to_live
        if ttl is None or seen.expired or ttl.visibility != "never_return_expired":
            return None
        return expired_up_to(ttl.ttl_ms, seen.now_ms if ttl.clock == "processing_time" else self._watermark)

    @cached_property
    def _watermark(self) -> int | None:
        with reading_checkpoint(self._storage, self._entry):
            return restored_watermark(self._entry, subtasks_of(self._storage, self.operator))

    @cached_property
    def runs(self) -> tuple[QueriedRun, ...]:
        """The runs of all subtasks."""
        with reading_checkpoint(self._storage, self._entry):
            return tuple(
                QueriedRun(self._storage, document, self.schemas)
                for subtask in subtasks_of(self._storage, self.operator)
                for document in subtask_runs(self._storage, self.operator, subtask).get(self.layout.name, [])
            )

    def open_files(self, unlike: StateReader | None = None) -> None:
        """Open the files of all runs; those that another reader has too stay as they are, open or not."""
        known: set[tuple[str, str | None]] = set()
        if unlike is not None:
            # One that was collected meanwhile tells nothing.
            with suppress(CollectedError, CorruptDataError):
                known.update(map(_content_of, unlike.runs))
        with reading_checkpoint(self._storage, self._entry):
            new = [run for run in self.runs if _content_of(run) not in known]
            in_parallel(self._storage, QueriedRun.open, new, name="files")
            _ = self.parts

    @cached_property
    def parts(self) -> Parts:
        """The parts of all runs, run by run in hash order."""
        parts = [part for run in self.runs for part in run.parts()]
        return Parts(
            parts,
            np.array([part.min_hash for part in parts], dtype=np.int64),
            np.array([part.max_hash for part in parts], dtype=np.int64),
            sum(part.rows for part in parts),
        )

    @cached_property
    def bounds(self) -> dict[str, Bounds]:
        """What is known of the columns of each part."""
        parts = self.parts
        known = np.ones(len(parts.parts), dtype=np.bool_)
        groups = [key_groups_of_hashes(hashes, self.max_parallelism) for hashes in (parts.min_hash, parts.max_hash)]
        out = {
            HASH_COLUMN: Bounds(pa.int64(), known, parts.min_hash, parts.max_hash),
            KEY_GROUP_COLUMN: Bounds(pa.int32(), known, groups[0], groups[1]),
        }
        by_run = {run: run.statistics for run in {part.run for part in parts.parts}}
        unknown = ColumnStatistics(column="unknown", null_count=0)
        for field in self._run_schema:
            if field.name == HASH_COLUMN:
                continue
            items = [by_run[part.run].get(field.name, unknown) for part in parts.parts]
            low, high = (
                _objects([bound_of(getattr(item, end), field.type) for item in items]) for end in ("min", "max")
            )
            known = np.array([item.min is not None and item.max is not None for item in items], dtype=np.bool_)
            if known.any():
                out[field.name] = Bounds(field.type, known, low, high)
        return out

    def batches(
        self,
        parts: Iterable[Part],
        columns: Sequence[str],
        *,
        key_groups: KeyGroupRange | None = None,
        hash_bounds: HashBounds | None = None,
        condition: Condition | None = None,
        expired_up_to: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of the parts, without empty batches."""
        if key_groups is not None:
            hash_bounds = key_groups.hash_bounds(self.max_parallelism)
        schema = pa.schema([self.schema.field(name) for name in columns])
        output = self._stored(columns)

        def count(parts: Sequence[Part]) -> int:
            with reading_checkpoint(self._storage, self._entry):
                return sum(piece.count for piece in self._pieces(parts, output, hash_bounds, condition, expired_up_to))

        def read(parts: Sequence[Part]) -> list[pa.RecordBatch]:
            with reading_checkpoint(self._storage, self._entry):
                pieces = self._pieces(parts, output, hash_bounds, condition, expired_up_to)
                return [self._with_virtual(batch, schema) for batch in gather(pieces)]

        if output:
            for batches in map_ahead(read, _in_steps(parts)):
                yield from batches
        else:
            yield from self._constants(sum(map_ahead(count, _in_steps(parts))), schema)

    def _pieces(
        self,
        parts: Iterable[Part],
        output: Sequence[str],
        hash_bounds: HashBounds | None,
        condition: Condition | None,
        expired_up_to: int | None,
    ) -> Iterator[Picked]:
        """Yield the rows asked for, part by part, as columns of the files."""
        needed = list(output)
        tested = pa.schema([])
        if condition is not None:
            tested = pa.schema([self.schema.field(name) for name in condition.columns])
            needed += [name for name in self._stored(condition.columns) if name not in output]
            # A batch without columns does not tell its rows.
            needed = needed or [HASH_COLUMN]
        with_times = needed if UPDATED_COLUMN in needed else [*needed, UPDATED_COLUMN]
        for part in parts:
            latest, earliest = (0, 0) if expired_up_to is None else part.run.times_of_update
            if not part.live_rows or (expired_up_to is not None and latest <= expired_up_to):
                continue
            may_have_expired = expired_up_to is not None and earliest <= expired_up_to
            read = with_times if may_have_expired else needed
            if hash_bounds is None or (hash_bounds[0] <= part.min_hash and part.max_hash <= hash_bounds[1]):
                piece = part.read(read) if read else part.count()
            else:
                piece = part.read_range(read, hash_bounds)
            if may_have_expired:
                piece = piece.narrowed(pc.greater(piece.batch.column(UPDATED_COLUMN), expired_up_to))
            if condition is not None:
                piece = piece.narrowed(condition.test(self._with_virtual(piece.batch, tested)))
            yield piece if len(read) == len(output) else piece.select(output)

    def _stored(self, columns: Iterable[str]) -> list[str]:
        """Return the columns of the files that the given columns are made from."""
        out = list(dict.fromkeys(name for name in columns if name not in _VIRTUAL))
        for made, source in ((KEY_GROUP_COLUMN, HASH_COLUMN), (EXPIRES_COLUMN, UPDATED_COLUMN)):
            if made in columns and source not in out:
                out.append(source)
        return out

    def in_key_groups(self, key_groups: KeyGroupRange | None) -> list[Part]:
        """Return the parts that hold rows of the key groups."""
        if key_groups is None:
            return self.parts.parts
        low, high = key_groups.hash_bounds(self.max_parallelism)
        chosen = np.flatnonzero((self.parts.max_hash >= low) & (self.parts.min_hash <= high))
        return [self.parts.parts[number] for number in chosen]

    def unexpired(self, parts: list[Part], expired_up_to: int | None) -> list[Part]:
        """Return the parts that may hold rows last updated after a time."""
        if expired_up_to is None:
            return parts
        return [part for part in parts if part.run.times_of_update[0] > expired_up_to]

    def table(
        self, columns: Sequence[str], key_groups: KeyGroupRange | None = None, expired_up_to: int | None = None
    ) -> pa.Table:
        """Return live rows as one table; a part without dead rows is a view of its file."""
        parts = self.in_key_groups(key_groups)
        batches = list(self.batches(parts, columns, key_groups=key_groups, expired_up_to=expired_up_to))
        return pa.Table.from_batches(batches, pa.schema([self.schema.field(name) for name in columns]))

    def lookup(
        self, keys: object, columns: Sequence[str] | None = None, *, expired_up_to: int | None = None
    ) -> tuple[pa.Table, int, int]:
        """Return the rows of the keys that exist, in the order given.

        Rows of one key come by their second sort column.
        """
        with reading_checkpoint(self._storage, self._entry):
            return self._lookup(keys, self.schema.names if columns is None else columns, expired_up_to)

    def _lookup(self, keys: object, names: Sequence[str], expired_up_to: int | None) -> tuple[pa.Table, int, int]:
        given = [canonical_floats(column) for column in key_columns(keys, self.layout.key)]
        batch = KeyBatch.of(hash_columns(given), given)
        parts = self.parts.holding(batch.hashes)
        runs = [run.run(list(own)) for run, own in groupby(parts, key=lambda part: part.run)]
        stored = self._stored(names if expired_up_to is None else [*names, UPDATED_COLUMN]) or [HASH_COLUMN]
        fields = [(self._run_schema.get_field_index(name), self._run_schema.field(name).type) for name in stored]
        if self.layout.second is None:
            found = find_keys(runs, batch)
            exists = np.ones(len(batch), dtype=np.bool_)
            exists[found.absent] = False
            numbers = batch.groups()
            arrays = [found.column(number, kind) for number, kind in fields]
            if found.absent.size or numbers.size > 1:
                rows = pa.array(numbers[exists[numbers]])
                arrays = [array.take(rows) for array in arrays]
        else:
            all_found = [(run, *run.find_all(batch)) for run in runs]
            rows = pa.array(_rows_of_groups(all_found, batch.groups(), len(batch)))
            arrays = [column_of(all_found, number, kind).take(rows) for number, kind in fields]
        read = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self._run_schema.field(name) for name in stored]))
        if expired_up_to is not None:
            read = read.filter(pc.greater(read.column(UPDATED_COLUMN), expired_up_to))
        schema = pa.schema([self.schema.field(name) for name in names])
        table = pa.Table.from_batches([self._with_virtual(read, schema)])
        return table, len(parts), sum(part.rows for part in parts)

    def _with_virtual(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return the columns of the schema, those that no file has made from what the batch has."""
        if not set(_VIRTUAL).intersection(schema.names):
            return batch if batch.schema.names == schema.names else batch.select(schema.names)
        arrays = []
        for field in schema:
            if field.name == KEY_GROUP_COLUMN:
                hashes = batch.column(HASH_COLUMN).to_numpy()
                arrays.append(pa.array(key_groups_of_hashes(hashes, self.max_parallelism)))
            elif field.name == CHECKPOINT_COLUMN:
                arrays.append(self._checkpoint_ids(batch.num_rows))
            elif field.name == EXPIRES_COLUMN:
                assert self.document.time_to_live is not None, "only such a state has the column"
                arrays.append(expiry_times(batch.column(UPDATED_COLUMN), self.document.time_to_live.ttl_ms))
            else:
                arrays.append(batch.column(field.name))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _constants(self, rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield rows that hold nothing but the checkpoint id."""
        array = self._checkpoint_ids(min(rows, _CONSTANT_ROWS))
        batch = pa.RecordBatch.from_arrays([array] * len(schema), schema=schema)
        for start in range(0, rows, _CONSTANT_ROWS):
            yield batch.slice(0, min(_CONSTANT_ROWS, rows - start))

    def _checkpoint_ids(self, rows: int) -> pa.Array:
        return pa.repeat(pa.scalar(self._checkpoint_id, pa.int64()), rows)


class Parts(Struct, frozen=True):
    """All parts of a state with their hash ranges side by side."""

    parts: list[Part]
    min_hash: Ints
    max_hash: Ints
    rows: int
    "Of all, dead ones included."

    def holding(self, hashes: Ints) -> list[Part]:
        """Return the parts whose range holds at least one of the hashes, which ascend."""
        low = np.searchsorted(hashes, self.min_hash, side="left")
        high = np.searchsorted(hashes, self.max_hash, side="right")
        return [self.parts[number] for number in np.flatnonzero(low < high)]


def _rows_of_groups(found: Sequence[tuple[Run, Ints, Ints]], groups: Ints, count: int) -> Ints:
    """Return which of the rows found belong to each given key, one key after the other."""
    numbers = np.concatenate([numbers for _, numbers, _ in found] or [np.empty(0, dtype=np.int64)])
    seconds = column_of(found, 1, pa.int64()).to_numpy()
    order = np.lexsort((seconds, numbers))
    counts = np.bincount(numbers, minlength=count)
    starts = np.cumsum(counts) - counts
    ends = np.cumsum(counts[groups])
    within = np.arange(ends[-1] if ends.size else 0) - np.repeat(ends - counts[groups], counts[groups])
    return order[np.repeat(starts[groups], counts[groups]) + within]


def _in_steps(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield the parts in groups that are worth a step each."""
    step: list[Part] = []
    rows = 0
    for part in parts:
        step.append(part)
        # Where few rows are live, most of the work is to look at the others.
        rows += max(part.live_rows, part.rows // 4)
        if rows >= _STEP_ROWS:
            yield step
            step, rows = [], 0
    if step:
        yield step


def _objects(values: Sequence[object]) -> npt.NDArray[np.object_]:
    out = np.empty(len(values), dtype=np.object_)
    out[:] = values
    return out
