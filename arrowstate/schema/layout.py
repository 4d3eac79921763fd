"""How a state's rows lie in Arrow columns, and how a descriptor is written to and compared with a document."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from arrowstate.errors import CorruptDataError, IncompatibleStateError, InvalidInputError
from arrowstate.schema.aggregates import BUILT_IN, BuiltIn, StoredAggregate
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StoredCallable,
    TimerStateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
)
from arrowstate.schema.fields import documents_of, fresh_field, unused_ids
from arrowstate.schema.made_once import made_once
from arrowstate_formats.arrow_types import type_from_json, type_to_json
from arrowstate_formats.cached_properties import cached_property
from arrowstate_formats.document_base import Int64
from arrowstate_formats.schema_documents import AggregateDocument, FieldDocument, StateDocument, TimeToLiveDocument


@dataclass(frozen=True)
class StateLayout:
    """The columns of one state, in this order.

    `_key_hash`; `_entry_hash` where rows of one key are told apart by a namespace or user key, or `_seq` in a list;
    the key columns; the namespace columns; the user key of a map, named `<state>_key`; the value columns; and
    `_updated_at` (milliseconds since 1970) where there is a time to live.

    A value is one column named after the state; a struct value is one column per field, and so is the accumulator of
    an aggregating state. A name that an earlier
    column has is prefixed with the state's name.
    """

    key: pa.Schema
    name: str
    value_type: pa.DataType
    namespace: pa.Schema | None = None
    user_key_type: pa.DataType | None = None
    is_list: bool = False
    has_ttl: bool = False
    is_timer: bool = False

    @classmethod
    def of(cls, key: pa.Schema, descriptor: StateDescriptor) -> StateLayout:
        """Return the layout of a state of an operator."""
        return cls(
            key,
            descriptor.name,
            descriptor.accumulator_type if isinstance(descriptor, AggregatingStateDescriptor) else descriptor.type,
            descriptor.namespace,
            _user_key_type(descriptor),
            isinstance(descriptor, ListStateDescriptor),
            descriptor.ttl is not None,
            isinstance(descriptor, TimerStateDescriptor),
        )

    @cached_property
    def second(self) -> str | None:
        """The column by which rows of one key are sorted."""
        if self.is_list:
            return "_seq"
        return "_entry_hash" if self.namespace is not None or self.user_key_type is not None else None

    @cached_property
    def namespace_fields(self) -> list[pa.Field]:
        """The namespace columns."""
        taken = {name.lower() for name in self.key.names}
        return [self._named(item.name, item.type, taken, nullable=False) for item in self.namespace or ()]

    @cached_property
    def entry_fields(self) -> list[pa.Field]:
        """What tells the rows of one key apart: namespaces, the user key of a map, the timestamp of a timer."""
        fields = self.namespace_fields
        if self.is_timer:
            taken = {field.name.lower() for field in [*self.key, *fields]}
            return [*fields, self._named("timestamp", pa.int64(), taken, nullable=False)]
        if self.user_key_type is not None:
            return [*fields, pa.field(f"{self.name}_key", self.user_key_type, nullable=False)]
        return fields

    @cached_property
    def value_fields(self) -> list[pa.Field]:
        """The value columns; each may hold nulls only where the state is a struct or a map. A timer has none."""
        if self.is_timer:
            return []
        before = [*self.key, *self.entry_fields]
        taken = {field.name.lower() for field in before}
        if not pa.types.is_struct(self.value_type):
            fields = [self._named(self.name, self.value_type, taken)]
        else:
            fields = [self._named(item.name, item.type, taken) for item in self.value_type]
        names = [field.name.lower() for field in [*before, *fields]]
        if len(set(names)) < len(names):
            raise InvalidInputError(f"the columns of state {self.name!r} clash with each other or the key: {names}")
        return fields

    @cached_property
    def first_value(self) -> int:
        """The number of the first value column."""
        return 1 + (self.second is not None) + len(self.key) + len(self.entry_fields)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the state's runs."""
        sort_columns = ["_key_hash", *([self.second] if self.second else [])]
        return pa.schema(
            [
                *(pa.field(name, pa.int64(), nullable=False) for name in sort_columns),
                *self.key,
                *self.entry_fields,
                *self.value_fields,
                *([pa.field("_updated_at", pa.int64(), nullable=False)] if self.has_ttl else []),
            ]
        )

    @property
    def table_columns(self) -> list[str]:
        """The columns that a reader sees: key, namespace, user key, value."""
        return [field.name for field in [*self.key, *self.entry_fields, *self.value_fields]]

    def split(self, values: pa.Array) -> list[pa.Array]:
        """Return the value columns of an array of values; a null struct becomes nulls in all of them."""
        return values.flatten() if pa.types.is_struct(self.value_type) else [values]

    def join(self, columns: Sequence[pa.Array], absent: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
        """Return the values of the value columns; the rows `absent` are null."""
        if not pa.types.is_struct(self.value_type):
            return columns[0]
        mask = np.zeros(len(columns[0]), dtype=np.bool_)
        mask[absent] = True
        return pa.StructArray.from_arrays(columns, fields=list(self.value_type), mask=pa.array(mask))

    def _named(self, name: str, kind: pa.DataType, taken: set[str], *, nullable: bool = True) -> pa.Field:
        return pa.field(f"{self.name}_{name}" if name.lower() in taken else name, kind, nullable=nullable)


def _user_key_type(descriptor: StateDescriptor) -> pa.DataType | None:
    if isinstance(descriptor, TimerStateDescriptor):
        return pa.int64()
    return descriptor.key_type if isinstance(descriptor, MapStateDescriptor) else None


def key_documents(key: pa.Schema) -> list[FieldDocument]:
    """Return the documents of the key columns; field ids count from 1, a column's before those inside it."""
    ids = itertools.count(1)
    return documents_of([fresh_field(field.with_nullable(False), ids) for field in key])


@made_once
def key_schema_of(documents: Sequence[FieldDocument]) -> pa.Schema:
    """Return the key schema that the documents describe."""
    return pa.schema([pa.field(item.name, type_from_json(item.type), nullable=False) for item in documents])


def state_document(
    descriptor: StateDescriptor, layout: StateLayout, key: Sequence[FieldDocument], stored: StateDocument | None = None
) -> StateDocument:
    """Return what a log entry says of a state.

    The columns of a restored state are those of `stored`, with their ids; those of a new one are numbered after the
    key's.
    """
    reduce = descriptor.reduce if isinstance(descriptor, ReducingStateDescriptor) else None
    called = descriptor.callable_name if isinstance(descriptor, ReducingStateDescriptor) else None
    document = StateDocument(
        name=descriptor.name,
        kind=descriptor.kind,
        value_type=type_to_json(descriptor.type),
        columns=[],
        reduce=dict(reduce) if isinstance(reduce, Mapping) else reduce if isinstance(reduce, str) else None,
        reduce_callable=called,
        aggregate=_aggregate_document(descriptor) if isinstance(descriptor, AggregatingStateDescriptor) else None,
        clock=descriptor.clock if isinstance(descriptor, TimerStateDescriptor) else None,
        time_to_live=None if descriptor.ttl is None else _ttl_document(descriptor.ttl),
    )
    if stored is not None:
        return replace(
            document,
            columns=stored.columns,
            namespace=stored.namespace,
            user_key=stored.user_key,
            schema_version=stored.schema_version,
            earlier_schemas=stored.earlier_schemas,
            last_field_id=stored.last_field_id,
        )
    ids = unused_ids(key)
    documents = documents_of([fresh_field(field, ids) for field in [*layout.entry_fields, *layout.value_fields]])
    spaces, entries = len(layout.namespace_fields), len(layout.entry_fields)
    return replace(
        document,
        columns=documents[entries:],
        namespace=documents[:spaces],
        user_key=documents[spaces] if entries > spaces else None,
    )


@made_once
def descriptor_of(document: StateDocument) -> StateDescriptor:
    """Return the descriptor that a document was made from, without a value state's default."""
    kind = type_from_json(document.value_type)
    name = document.name
    common: dict[str, Any] = {
        "namespace": key_schema_of(document.namespace) if document.namespace else None,
        "ttl": None if document.time_to_live is None else TimeToLive(**msgspec.structs.asdict(document.time_to_live)),
    }
    try:
        if document.kind == "value":
            return ValueStateDescriptor(name, kind, **common)
        if document.kind == "list":
            return ListStateDescriptor(name, kind, **common)
        if document.kind == "map" and document.user_key is not None:
            return MapStateDescriptor(name, type_from_json(document.user_key.type), kind, **common)
        if document.kind == "timer" and document.clock is not None:
            return TimerStateDescriptor(name, clock=document.clock, **common)
        if document.kind == "reducing" and document.reduce is not None:
            return ReducingStateDescriptor(name, kind, reduce=document.reduce, **common)
        if document.kind == "reducing" and document.reduce_callable is not None:
            return ReducingStateDescriptor(name, kind, reduce=StoredCallable(document.reduce_callable), **common)
        if document.kind == "aggregating" and document.aggregate is not None:
            return AggregatingStateDescriptor(name, kind, aggregate=_stored_aggregate(document.aggregate), **common)
    except (InvalidInputError, TypeError) as error:
        raise CorruptDataError(f"state {name!r}", str(error)) from None
    detail = f"a {document.kind} state without its reducer, aggregate, user key or clock"
    raise CorruptDataError(f"state {name!r}", detail)


def _ttl_document(ttl: TimeToLive) -> TimeToLiveDocument:
    return TimeToLiveDocument(**{**asdict(ttl), "ttl_ms": Int64(ttl.ttl_ms)})


def _aggregate_document(descriptor: AggregatingStateDescriptor) -> AggregateDocument:
    given = descriptor.declared
    document = AggregateDocument(
        name=given.name,
        parameters=given.parameters if isinstance(given, BuiltIn) else {},
        accumulator_type=type_to_json(descriptor.accumulator_type),
    )
    document.check()
    return document


def _stored_aggregate(document: AggregateDocument) -> BuiltIn | StoredAggregate:
    if document.name in BUILT_IN:
        return BUILT_IN[document.name](**document.parameters)
    return StoredAggregate(document.name, type_from_json(document.accumulator_type))


def check_same_state(have: StateDescriptor, given: StateDescriptor) -> None:
    """Refuse a descriptor that differs from the one the state was made with, in more than its default."""
    if described(have) != described(given):
        raise IncompatibleStateError(
            have.name, described(have), described(given), "declare it as it is stored, or use another state name"
        )


def described(descriptor: StateDescriptor, *, types: bool = True) -> str:
    """Return the parts of a descriptor that must stay the same while a state is in use, as a text.

    Without `types`, those that must stay the same on restore too.
    """
    text = f"{descriptor.kind} state"
    if types:
        text += f" of {descriptor.type}"
    if isinstance(descriptor, ReducingStateDescriptor):
        called = descriptor.reduce if isinstance(descriptor.reduce, (str, Mapping)) else "a Python callable"
        text += f" reduced by {called}" if types or isinstance(called, str) else " reduced field by field"
    if isinstance(descriptor, AggregatingStateDescriptor):
        text += f" aggregated by {descriptor.identity if types else descriptor.rule}"
    if isinstance(descriptor, MapStateDescriptor):
        text += f" by {descriptor.key_type}"
    if isinstance(descriptor, TimerStateDescriptor):
        text += f" by {descriptor.clock}"
    if descriptor.namespace is not None:
        text += f" in namespaces of {', '.join(f'{item.name}: {item.type}' for item in descriptor.namespace)}"
    return text


def computed_by(descriptor: StateDescriptor) -> Any:
    """What a descriptor brings that snapshots do not pin: a default, a callable, the parameters of a result."""
    if isinstance(descriptor, ValueStateDescriptor):
        return f"the default {descriptor.default!r}"
    if isinstance(descriptor, ReducingStateDescriptor):
        return descriptor.callable_name
    if isinstance(descriptor, AggregatingStateDescriptor) and isinstance(descriptor.aggregate, BuiltIn):
        return descriptor.aggregate
    return None
