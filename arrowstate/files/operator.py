"""Operator state to storage and back: one small Arrow file per state and subtask, or its bytes in the log entry.

Specification: formats/spec/operator-state.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import CorruptDataError, InvalidInputError, MissingFileError, StateNotFoundError
from arrowstate.files.reading import find_operator
from arrowstate.files.streams import CheckpointStreamFactory, never
from arrowstate.files.subtasks import whole_state
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.commit import delete_quietly
from arrowstate.schema.operator_state import (
    SUBTASK_COLUMN,
    BroadcastStateDescriptor,
    OperatorStateDescriptor,
    has_column_per_field,
    operator_descriptor_of,
    operator_state_schema,
)
from arrowstate.storage.base import Storage
from arrowstate_formats.arrow_types import type_to_json
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    OperatorPartDocument,
    OperatorStateDocument,
    decode_inline,
)
from arrowstate_formats.run_files import INLINE_BYTES, checksum


class FrozenOperatorState(Struct, frozen=True):
    """One operator state of a subtask at one moment."""

    descriptor: OperatorStateDescriptor
    batch: pa.RecordBatch


def write_operator_states(
    storage: Storage,
    uid: str,
    subtasks: Sequence[Sequence[FrozenOperatorState]],
    *,
    new_id: Callable[[], str],
    paths: list[str],
    previous: OperatorDocument | None = None,
    cancelled: Callable[[], bool] = never,
) -> list[OperatorStateDocument]:
    """Write the operator states of all subtasks, and add the files written to `paths`.

    A part equal to one written before, by another subtask or for the operator in the entry before (`previous`), is
    referred to again. `cancelled` is asked before each part and before a file is made durable.
    """
    declared = [state.descriptor for state in subtasks[0]]
    for number, subtask in enumerate(subtasks):
        if [state.descriptor for state in subtask] != declared:
            names = [
                ", ".join(f"{item.name} of {item.type}" for item in states) or "none"
                for states in (declared, [state.descriptor for state in subtask])
            ]
            raise InvalidInputError(
                f"the subtasks of operator {uid!r} must declare the same operator states in the same order; subtask 0 "
                f"has {names[0]}; subtask {number} has {names[1]}"
            )
    streams = CheckpointStreamFactory(storage, inline_bytes=INLINE_BYTES, new_id=new_id, cancelled=cancelled)
    out = []
    try:
        for place, descriptor in enumerate(declared):
            known = {
                (part.bytes, part.xxh3_128): part
                for state in (previous.operator_states if previous is not None else ())
                if state.name == descriptor.name
                for part in state.parts
            }
            batches = (subtask[place].batch for subtask in subtasks)
            parts = _write_parts(streams, f"data/{uid}/{descriptor.name}", batches, known)
            key_type = descriptor.key_type if isinstance(descriptor, BroadcastStateDescriptor) else None
            out.append(
                OperatorStateDocument(
                    name=descriptor.name,
                    kind=descriptor.kind,
                    value_type=type_to_json(descriptor.type),
                    key_type=None if key_type is None else type_to_json(key_type),
                    parts=parts,
                )
            )
    except BaseException:
        delete_quietly(storage, streams.paths)
        raise
    paths += streams.paths
    return out


def _write_parts(
    streams: CheckpointStreamFactory,
    folder: str,
    batches: Iterable[pa.RecordBatch],
    known: dict[tuple[int, str], OperatorPartDocument],
) -> list[OperatorPartDocument]:
    """Write one part per batch; of equal ones, those that are known already too, one serves for all."""
    parts = []
    for batch in batches:
        part = write_part(streams, folder, batch, known)
        known[part.bytes, part.xxh3_128] = part
        parts.append(part)
    return parts


def write_part(
    streams: CheckpointStreamFactory,
    folder: str,
    batch: pa.RecordBatch,
    known: Mapping[tuple[int, str], OperatorPartDocument],
) -> OperatorPartDocument:
    """Write what one subtask has of an operator state, inline if it is small; an equal known part is used again.

    Raises
    ------
    InvalidInputError
        If a value is not what its type says, such as a text that is not UTF-8: nobody could read the state.
    """
    if not batch.num_rows:
        return OperatorPartDocument(rows=0, bytes=0, xxh3_128=checksum(b""))
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"the rows of {folder.removeprefix('data/')} cannot be stored: {error}") from error
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = sink.getvalue()
    digest = checksum(data)
    have = known.get((data.size, digest))
    if have is not None:
        return have
    handle = streams.put(folder, "arrow", data, xxh3_128=digest)
    return OperatorPartDocument(
        rows=batch.num_rows, path=handle.path, inline=handle.inline, bytes=handle.size_bytes, xxh3_128=digest
    )


def read_part(storage: Storage, document: OperatorStateDocument, number: int) -> pa.RecordBatch:
    """Return what a subtask had of an operator state."""
    part = document.parts[number]
    schema = operator_state_schema(operator_descriptor_of(document))
    if not part.rows:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    path = part.path or f"part {number} of operator state {document.name!r} (inline)"
    data = _bytes_of(storage, part, path)
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDataError(path, str(error)) from error
    if not table.schema.equals(schema) or table.num_rows != part.rows:
        raise CorruptDataError(
            path, f"holds {table.num_rows} rows of {table.schema}, expected {part.rows} rows of {schema}"
        )
    return table.combine_chunks().to_batches()[0]


def _bytes_of(storage: Storage, part: OperatorPartDocument, path: str) -> bytes:
    if part.path is None:
        data = decode_inline(part.inline or "", path=path)
    else:
        try:
            data = storage.read(part.path)
        except MissingFileError:
            raise CorruptDataError(path, "the file is missing") from None
    if len(data) != part.bytes or checksum(data) != part.xxh3_128:
        raise CorruptDataError(path, "the operator state does not match its checksum")
    return data


class OperatorStateTable:
    """The elements of an operator state as rows, part by part.

    Columns: `_subtask` int32; for a broadcast state `<state>_key`; and `<state>`, or for a list of structs one column
    per field.
    """

    def __init__(self, storage: Storage, entry: LogEntryDocument, document: OperatorStateDocument) -> None:
        self._storage = storage
        self._entry = entry
        self.document = document
        self.descriptor = operator_descriptor_of(document)
        self._is_flat = has_column_per_field(self.descriptor)
        fields = list(self.descriptor.type if self._is_flat else operator_state_schema(self.descriptor))
        self.schema = pa.schema(
            [pa.field(SUBTASK_COLUMN, pa.int32()), *(field.with_nullable(True) for field in fields)]
        )

    def part(self, number: int) -> pa.RecordBatch:
        """Return the elements of one part, with all columns."""
        with reading_checkpoint(self._storage, self._entry):
            part = read_part(self._storage, self.document, number)
        values = part.column(0).flatten() if self._is_flat else part.columns
        numbers = pa.repeat(pa.scalar(number, pa.int32()), part.num_rows)
        return pa.RecordBatch.from_arrays([numbers, *values], schema=self.schema)


def operator_state_table(storage: Storage, entry: LogEntryDocument, uid: str, name: str) -> pa.Table:
    """Return an operator state of all subtasks, each element as one value."""
    document = find_operator_state(storage, entry, uid, name)
    subtask = pa.field(SUBTASK_COLUMN, pa.int32(), nullable=False)
    schema = pa.schema([subtask, *operator_state_schema(operator_descriptor_of(document))])
    batches = []
    for number in range(len(document.parts)):
        batch = read_part(storage, document, number)
        numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
        batches.append(pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=schema))
    return pa.Table.from_batches(batches, schema)


def find_operator_state(storage: Storage, entry: LogEntryDocument, uid: str, name: str) -> OperatorStateDocument:
    """Return an operator state with all its parts, or raise StateNotFoundError with the names there are."""
    states = find_operator(entry, uid).operator_states
    for state in states:
        if state.name == name:
            return whole_state(storage, uid, state)
    raise StateNotFoundError(name, [state.name for state in states], uid, entry.checkpoint_id)
