"""Output tables: the rows that operators emit, committed in the same log entry as their state.

An output table is the list state `rows` of an operator that has nothing else. Each commit appends its rows as parts, in
the order of the subtasks, and small neighbours are put together later, so a row keeps its number for ever; a reader of
the stream goes on from a number. An output that no table was asked for is kept for one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from arrowstate.errors import CollectedError, IncompatibleStateError, InvalidInputError, NotFoundError
from arrowstate.files.operator import read_part, write_part
from arrowstate.files.streams import CheckpointStreamFactory
from arrowstate.files.subtasks import whole_state
from arrowstate.log.collected import reading_checkpoint
from arrowstate.schema.keys import described
from arrowstate.storage.base import Storage
from arrowstate_formats.arrow_types import type_from_json, type_to_json
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, OperatorPartDocument, OperatorStateDocument
from arrowstate_formats.run_files import INLINE_BYTES, checksum

STATE = "rows"
"""The name of the list state that holds the rows of an output."""

BATCH_SUFFIX = ".batch"
"""Ends the uid under which a store has what an operator emitted in the last commit, if no table keeps it."""

_KEPT_INLINE_BYTES = 1024
"""Larger parts of a table that is kept are files: every later log entry repeats what is inline."""

_NO_ROWS = OperatorPartDocument(rows=0, bytes=0, xxh3_128=checksum(b""))
_MERGED_PARTS = 16
_LARGEST_MERGED = 64 << 20


@dataclass(frozen=True)
class OutputTable:
    """Where the rows of an operator go."""

    uid: str
    """The operator uid under which the store has them."""
    columns: pa.Schema
    is_kept: bool
    """Whether rows of earlier commits stay."""
    state: str = STATE
    """The name of the list state that holds them."""

    @property
    def row_type(self) -> pa.StructType:
        return pa.struct(list(self.columns))

    def document(self, parts: Sequence[OperatorPartDocument]) -> OperatorDocument:
        """Return what a log entry says of the table."""
        states = [self.state_document(parts)]
        return OperatorDocument(uid=self.uid, key=[], max_parallelism=1, states=[], subtasks=[], operator_states=states)

    def state_document(self, parts: Sequence[OperatorPartDocument]) -> OperatorStateDocument:
        """Return what a log entry says of the rows."""
        return OperatorStateDocument(
            name=self.state, kind="list", value_type=type_to_json(self.row_type), parts=list(parts)
        )

    def parts_before(self, storage: Storage, operators: Iterable[OperatorDocument]) -> list[OperatorPartDocument]:
        """Return the parts that stay from the entry before."""
        operators = list(operators)
        if self.is_kept and any(operator.uid == self.uid and operator.key for operator in operators):
            raise InvalidInputError(f"{self.uid!r} is an operator with keyed state in the store; name another output")
        state = rows_state(storage, operators, self.uid)
        if state is None or not self.is_kept:
            return []
        if state.value_type != type_to_json(self.row_type):
            raise IncompatibleStateError(
                f"{self.uid}.{STATE}",
                f"an output table of {described(pa.schema(list(type_from_json(state.value_type))))}",
                described(self.columns),
                "name another output, or emit the columns that it has",
            )
        return [part for part in state.parts if part.rows]


def rows_state(storage: Storage, operators: Iterable[OperatorDocument], uid: str) -> OperatorStateDocument | None:
    """Return the rows of an output in a log entry, None if it has no such output."""
    for operator in operators:
        if operator.uid == uid:
            found = next((state for state in operator.operator_states if state.name == STATE), None)
            return None if found is None else whole_state(storage, uid, found)
    return None


def find_output(storage: Storage, entry: LogEntryDocument, uid: str) -> OperatorStateDocument:
    """Return the rows of an output table that is kept."""
    # What is kept for one commit has no numbers of rows that last.
    outputs = {
        operator.uid: state
        for operator in entry.operators
        for state in operator.operator_states
        if not operator.uid.endswith(BATCH_SUFFIX) and is_output(state)
    }
    if uid not in outputs:
        raise NotFoundError(
            f"no output table {uid!r} in checkpoint {entry.checkpoint_id}; it has "
            f"{', '.join(map(repr, outputs)) or 'none'}"
        )
    return whole_state(storage, uid, outputs[uid])


def row_count(document: OperatorStateDocument) -> int:
    """Return how many rows an output table has."""
    return sum(part.rows for part in document.parts)


def fewest_rows(storage: Storage, checkpoints: Iterable[LogEntryDocument], uid: str, epoch: int) -> int | None:
    """Return the fewest rows that an output table has had since the writer with this epoch, None if that is the newest.

    Writers only add rows; who rolls a store back, or starts a job from an older checkpoint, takes a new epoch. So a
    reader that has read more rows than this has rows that were given up, and others may have their numbers now.

    Parameters
    ----------
    checkpoints
        Newest first. Those after the epoch are looked at, as far as the store has them.
    """
    fewest: int | None = None
    for entry in checkpoints:
        if entry.writer_epoch <= epoch:
            break
        try:
            with reading_checkpoint(storage, entry):
                rows = row_count(find_output(storage, entry, uid))
        except NotFoundError:
            return 0
        except CollectedError:
            continue
        fewest = rows if fewest is None else min(fewest, rows)
    return fewest


def is_output(state: OperatorStateDocument) -> bool:
    """Whether an operator state holds rows that operators emitted."""
    return state.name == STATE and state.kind == "list" and pa.types.is_struct(type_from_json(state.value_type))


def write_output(
    storage: Storage, table: OutputTable, rows: pa.Table, *, new_id: Callable[[], str], paths: list[str]
) -> OperatorPartDocument:
    """Write what a subtask emitted, and add the file written to `paths`."""
    inline_bytes = _KEPT_INLINE_BYTES if table.is_kept else INLINE_BYTES
    streams = CheckpointStreamFactory(storage, inline_bytes=inline_bytes, new_id=new_id, paths=paths)
    # `Table.to_struct_array` of pyarrow 19 fails where there are no rows.
    column = pa.StructArray.from_arrays([each.combine_chunks() for each in rows.columns], fields=list(rows.schema))
    schema = pa.schema([pa.field(table.state, table.row_type, nullable=False)])
    batch = pa.RecordBatch.from_arrays([column.cast(table.row_type)], schema=schema)
    return write_part(streams, f"data/{table.uid}/{table.state}", batch, {})


def output_rows(
    storage: Storage, document: OperatorStateDocument, first: int, last: int, *, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an output from number `first` to before `last`."""
    start = 0
    for number, part in enumerate(document.parts):
        low, high = max(first, start), min(last, start + part.rows)
        if low < high:
            structs = read_part(storage, document, number).column(0).slice(low - start, high - low)
            yield pa.RecordBatch.from_arrays(structs.flatten(), schema=columns)
        start += part.rows


def appended(
    storage: Storage,
    table: OutputTable,
    before: Iterable[OperatorDocument],
    new: Sequence[OperatorPartDocument],
    *,
    new_id: Callable[[], str],
    firsts: dict[str, int],
    paths: list[str],
) -> OperatorDocument:
    """Return an output with the new parts of a commit after those `before`.

    The number of the first new row is noted in `firsts`, and files that were written in `paths`.
    """
    parts = table.parts_before(storage, before)
    firsts[table.uid] = sum(part.rows for part in parts)
    written = [part for part in new if part.rows]
    # The rows of this commit stay parts of their own until the next one.
    merged = merged_parts(storage, table, parts, new_id=new_id, paths=paths)
    return table.document([*merged, *written] or [_NO_ROWS])


def merged_parts(
    storage: Storage,
    table: OutputTable,
    parts: list[OperatorPartDocument],
    *,
    new_id: Callable[[], str],
    paths: list[str],
) -> list[OperatorPartDocument]:
    """Put small neighbours at the end together, so that the number of parts grows with the logarithm of the rows.

    Sixteen neighbours, none much larger than all after it, become one; one of over 64 MiB stays as it is.
    """
    count = 0
    size = 0
    for part in reversed(parts):
        if size + part.bytes > _LARGEST_MERGED or (count >= _MERGED_PARTS and part.bytes > size // count * 4):
            break
        count += 1
        size += part.bytes
    if count < 2 * _MERGED_PARTS:
        return parts
    merging = parts[-count:]
    document = table.state_document(merging)
    total = sum(part.rows for part in merging)
    rows = pa.Table.from_batches(list(output_rows(storage, document, 0, total, columns=table.columns)), table.columns)
    return [*parts[:-count], write_output(storage, table, rows, new_id=new_id, paths=paths)]
