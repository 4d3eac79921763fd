"""Descriptors of operator state: state of a subtask itself rather than of keys, and its columns on disk.

A list state is shared out anew when the parallelism changes, element by element; a union list goes to every
subtask as a whole; a broadcast state is the same map in every subtask.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from arrowstate.errors import CorruptDataError, IncompatibleStateError, InvalidInputError
from arrowstate.schema.conversion import converter
from arrowstate.schema.evolution import SchemaEvolution, evolve
from arrowstate.schema.fields import fresh_field
from arrowstate.schema.keys import check_key_schema
from arrowstate.schema.layout import StateLayout
from arrowstate.schema.made_once import made_once
from arrowstate.schema.types import check_type
from arrowstate_formats.arrow_types import TypeJson, type_from_json
from arrowstate_formats.documents import OperatorStateDocument
from arrowstate_formats.names import check_state_name


@dataclass(frozen=True, slots=True)
class OperatorListStateDescriptor:
    """A state with a list of elements in each subtask, for instance the offsets of a source.

    Parameters
    ----------
    name
        Unique within the operator.
    type
        The Arrow type of an element.
    mode
        What a restore at another parallelism does: `split` gives each element to one subtask, `union` gives all
        elements to every subtask.
    evolution
        How elements that were stored with another type become elements of this one.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> arrowstate.OperatorListStateDescriptor("offsets", pa.int64()).mode
    'split'
    """

    name: str
    type: pa.DataType
    mode: Literal["split", "union"] = "split"
    evolution: SchemaEvolution | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        check_state_name(self.name)
        check_type(self.type, f"state {self.name!r}")
        if self.mode not in ("split", "union"):
            raise InvalidInputError(f"the mode of state {self.name!r} must be split or union, got {self.mode!r}")

    @property
    def kind(self) -> Literal["list", "union"]:
        """The kind that a checkpoint records."""
        return "list" if self.mode == "split" else "union"


@dataclass(frozen=True, slots=True)
class BroadcastStateDescriptor:
    """A state with a map that is the same in every subtask, for instance rules.

    Parameters
    ----------
    name
        Unique within the operator.
    key_type
        The Arrow type of the keys. `key_hash` must support it.
    type
        The Arrow type of the values, which may be null.
    evolution
        How values that were stored with another type become values of this one.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.float64()).kind
    'broadcast'
    """

    name: str
    key_type: pa.DataType
    type: pa.DataType
    evolution: SchemaEvolution | None = field(default=None, kw_only=True, compare=False)
    kind: Literal["broadcast"] = field(default="broadcast", init=False)

    def __post_init__(self) -> None:
        check_state_name(self.name)
        check_type(self.type, f"state {self.name!r}")
        check_key_schema(pa.schema([("key", self.key_type)]))


OperatorStateDescriptor = OperatorListStateDescriptor | BroadcastStateDescriptor

SUBTASK_COLUMN = "_subtask"
"""The number of the part that an element is in: of the subtask that had it, where each subtask has a part."""
_SUBTASK = pa.schema([pa.field(SUBTASK_COLUMN, pa.int32(), nullable=False)])


def operator_state_schema(descriptor: OperatorStateDescriptor) -> pa.Schema:
    """Return the columns of a part: `<state>`, in a broadcast state after its key `<state>_key`."""
    if isinstance(descriptor, BroadcastStateDescriptor):
        key = pa.field(f"{descriptor.name}_key", descriptor.key_type, nullable=False)
        return pa.schema([key, pa.field(descriptor.name, descriptor.type)])
    return pa.schema([pa.field(descriptor.name, descriptor.type, nullable=False)])


def has_column_per_field(descriptor: OperatorStateDescriptor) -> bool:
    """Whether a table shows the fields of an element as columns: those of structs in a list."""
    names = [item.name for item in descriptor.type] if pa.types.is_struct(descriptor.type) else []
    return bool(names) and not isinstance(descriptor, BroadcastStateDescriptor) and SUBTASK_COLUMN not in names


def keyed_layout(descriptor: OperatorStateDescriptor) -> StateLayout:
    """Return the keyed state that has the columns of its table: what edits one edits the other, too.

    The elements of a list are those of the key `_subtask`; a map has one value per key, as it is the same everywhere.
    """
    kind = descriptor.type
    if not has_column_per_field(descriptor):
        # One level of a struct becomes columns.
        kind = pa.struct([pa.field(descriptor.name, kind)])
    if isinstance(descriptor, BroadcastStateDescriptor):
        return StateLayout(operator_state_schema(descriptor).remove(1), descriptor.name, kind)
    return StateLayout(_SUBTASK, descriptor.name, kind, is_list=True)


def operator_descriptor_of(document: OperatorStateDocument) -> OperatorStateDescriptor:
    """Return the descriptor that a document was made from."""
    return _operator_descriptor(document.name, document.kind, document.value_type, document.key_type)


@made_once
def _operator_descriptor(
    name: str, kind: str, value_type: TypeJson, key_type: TypeJson | None
) -> OperatorStateDescriptor:
    try:
        value: Any = type_from_json(value_type)
        if kind == "broadcast":
            assert key_type is not None
            return BroadcastStateDescriptor(name, type_from_json(key_type), value)
        return OperatorListStateDescriptor(name, value, "split" if kind == "list" else "union")
    except InvalidInputError as error:
        raise CorruptDataError(f"operator state {name!r}", str(error)) from None


def check_same_operator_state(have: OperatorStateDescriptor, given: OperatorStateDescriptor) -> None:
    """Refuse a descriptor that differs from the one the state was made with."""
    if have != given:
        raise IncompatibleStateError(
            have.name, _described(have), _described(given), "declare it as it is stored, or use another state name"
        )


def check_converted(stored: OperatorStateDescriptor, given: OperatorStateDescriptor) -> None:
    """Refuse what was stored under one descriptor if another one cannot have it."""
    if stored != given or given.evolution is not None:
        converted(stored, given, pa.RecordBatch.from_pylist([], schema=operator_state_schema(stored)))


def converted(stored: OperatorStateDescriptor, given: OperatorStateDescriptor, part: pa.RecordBatch) -> pa.RecordBatch:
    """Return what was stored under one descriptor as another one has it."""
    if _described(stored, types=False) != _described(given, types=False):
        check_same_operator_state(stored, given)
    if given.evolution is not None and given.evolution.merge:
        raise InvalidInputError(
            f"operator state {stored.name!r} has no keys that could become equal, so there is nothing to merge; leave "
            "merge out"
        )
    ids = itertools.count(1)
    schema = operator_state_schema(given)
    before = fresh_field(pa.field(stored.name, stored.type), ids)
    after = evolve(before, given.type, given.evolution or SchemaEvolution(), ids, what=stored.name)
    *keys, values = part.columns
    return pa.RecordBatch.from_arrays([*keys, converter(before, after)(values)], schema=schema)


def _described(descriptor: OperatorStateDescriptor, *, types: bool = True) -> str:
    of = f" of {descriptor.type}" if types else ""
    if isinstance(descriptor, BroadcastStateDescriptor):
        return f"broadcast state{of} by {descriptor.key_type}"
    return f"{descriptor.mode} list state{of}"
