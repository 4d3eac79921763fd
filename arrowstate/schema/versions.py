"""The schema versions of a state: what a restored state becomes, and how runs of each version are read.

A state gets a new version when its descriptor, or the key of its operator, differs from what is stored. Run files
stay as they are; each of them names the version it was written with, and its rows are converted when they are read.
Specification: formats/spec/schema-evolution.md.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from msgspec.structs import replace

from arrowstate.errors import CorruptDataError, IncompatibleStateError, InvalidInputError, StateNotFoundError
from arrowstate.schema.aggregates import CountDistinct
from arrowstate.schema.conversion import Conversion
from arrowstate.schema.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor, StateDescriptor
from arrowstate.schema.evolution import SchemaEvolution, evolve
from arrowstate.schema.fields import Field, documents_of, fields_of, fresh_field, unused_ids
from arrowstate.schema.keys import check_key_schema
from arrowstate.schema.layout import StateLayout, described, descriptor_of, key_schema_of, state_document
from arrowstate.schema.made_once import made_once
from arrowstate.schema.types import is_bytes, is_text
from arrowstate_formats.key_hash import hash_columns
from arrowstate_formats.names import check_state_name
from arrowstate_formats.schema_documents import FieldDocument, SchemaDocument, StateDocument
from arrowstate_formats.state_columns import time_column


class RunSchemas:
    """What the runs of a state look like, by schema version."""

    def __init__(self, key: Sequence[FieldDocument], document: StateDocument) -> None:
        self.document = document
        self.layout, self.schema = layout_of(key, document)
        """The columns of the current version."""
        self.time = time_column(document)
        self._key = key
        self._earlier: dict[int, tuple[pa.Schema, Conversion]] = {}

    def of_version(self, version: int) -> tuple[pa.Schema, Conversion | None]:
        """Return the columns of run files of a version, and how they become those of the current one."""
        if version == self.document.schema_version:
            return self.schema, None
        if version not in self._earlier:
            self._earlier[version] = self._conversion(version)
        return self._earlier[version]

    def _conversion(self, version: int) -> tuple[pa.Schema, Conversion]:
        if version not in (schema.version for schema in self.document.earlier_schemas):
            newest = self.document.schema_version
            known = ", ".join(str(schema.version) for schema in self.document.earlier_schemas)
            raise CorruptDataError(
                f"state {self.document.name!r}",
                f"a run of schema version {version}, the newest is {newest}"
                if version > newest
                else f"a run of schema version {version}, the log entry has {known or 'none'} before {newest}",
            )
        stored = self._columns(version)
        layout = self.layout
        around = layout.schema
        sort_columns = [around.field(number) for number in range(1 + (layout.second is not None))]
        times = [around.field(len(around) - 1)] if layout.has_ttl else []
        columns = [pa.field(item.name, item.type, item.nullable) for item in stored]
        schema = pa.schema([*sort_columns, *columns, *times])
        current = _fields([*self._key, *self.document.namespace, *_one(self.document.user_key), *self.document.columns])
        return schema, Conversion.of(schema, stored, self.schema, current)

    def _columns(self, version: int) -> tuple[Field, ...]:
        schema, *later = (schema for schema in self.document.earlier_schemas if schema.version >= version)
        # Fields inside a key column get their ids with the first change of the key; before, they were the same ones.
        inner = {
            item.id: item.fields
            for key in (self._key, *(item.key for item in reversed(later)))
            for item in key
            if item.fields
        }
        key = [replace(item, fields=item.fields or inner.get(item.id, [])) for item in schema.key]
        return _fields([*key, *schema.namespace, *_one(schema.user_key), *schema.columns])


@made_once
def layout_of(key: Sequence[FieldDocument], document: StateDocument) -> tuple[StateLayout, pa.Schema]:
    """Return the layout of a stored state, and the columns of its runs."""
    layout = StateLayout.of(key_schema_of(key), descriptor_of(document))
    return layout, layout.schema


def evolve_state(stored: StateDocument, key: Sequence[FieldDocument], descriptor: StateDescriptor) -> StateDocument:
    """Return the state that a stored one becomes under a descriptor; the stored one itself if its columns stay."""
    evolution = descriptor.evolution or SchemaEvolution()
    if evolution.merge:
        raise InvalidInputError(
            f"state {stored.name!r}: merge says what is done with keys that become equal; give it to restore"
        )
    have = descriptor_of(stored)
    is_plain = descriptor.namespace is None and not isinstance(descriptor, AggregatingStateDescriptor)
    if is_plain and descriptor.evolution is None and described(have) == described(descriptor):
        return stored
    _check_rule(have, descriptor)
    layout = StateLayout.of(key_schema_of(key), descriptor)
    ids = _ids_after(stored, key)
    root = _value_of(stored, have, ids)
    after = evolve(root, layout.value_type, evolution, ids, what=stored.name)
    _check_reducers(have, descriptor, root, after)
    spaces = [item.name for item in stored.namespace]
    if after == root and spaces == [item.name for item in layout.namespace_fields]:
        return stored
    document = _next_version(stored, key, layout, _value_columns(root), _value_columns(after))
    return replace(state_document(descriptor, layout, key, document), time_to_live=stored.time_to_live)


def evolve_key(
    uid: str,
    stored: Sequence[FieldDocument],
    declared: pa.Schema,
    evolution: SchemaEvolution,
    states: Iterable[StateDocument],
) -> tuple[list[FieldDocument], list[FieldDocument]]:
    """Return the stored key of an operator, with ids inside its columns, and what it becomes.

    Both are the stored documents if nothing changes.
    """
    declared = check_key_schema(declared)
    states = list(states)
    _check_names_of_key(stored, declared, evolution, states)
    used = [schema for state in states for schema in (*_all_columns(state), *_earlier_columns(state))]
    ids = unused_ids(stored, *used, last=max((state.last_field_id for state in states), default=0))
    columns = fields_of(stored, ids)
    root = Field(0, "key", pa.struct(list(key_schema_of(stored))), False, None, columns)
    after = evolve(root, pa.struct(list(declared)), evolution, ids, what=f"{uid}.key")
    if after == root:
        return list(stored), list(stored)
    return documents_of(columns), documents_of(after.children)


def _check_names_of_key(
    stored: Sequence[FieldDocument], declared: pa.Schema, evolution: SchemaEvolution, states: Sequence[StateDocument]
) -> None:
    """Refuse to drop what is a state, or a field of one, where columns of the key are meant: nothing would happen."""
    earlier = {item.name for state in states for schema in state.earlier_schemas for item in schema.key}
    columns = earlier.union((item.name for item in stored), declared.names)
    names = {state.name for state in states}
    for path in evolution.dropped:
        first = path.partition(".")[0]
        if first in names - columns:
            raise InvalidInputError(
                f"dropped names {path!r}, and an evolution given to restore is one of the key, which has the columns "
                f"{', '.join(item.name for item in stored)}; {first!r} is a state: drop it by restore(..., "
                f"drop=[{first!r}]), or a field of it in the evolution of its descriptor"
            )


def with_key(stored: StateDocument, before: Sequence[FieldDocument], after: Sequence[FieldDocument]) -> StateDocument:
    """Return a state under another key of its operator."""
    layout, _ = layout_of(after, stored)
    ids = _ids_after(stored, [*before, *after])
    columns = fields_of(stored.columns, ids)
    return _next_version(stored, before, layout, columns, columns)


def with_name(stored: StateDocument, name: str, key: Sequence[FieldDocument]) -> StateDocument:
    """Return a state under another name, from which columns may have theirs."""
    renamed = replace(stored, name=name)
    return with_key(renamed, key, key)


def with_ids_taken(
    stored: StateDocument, key: Sequence[FieldDocument], other: StateDocument, other_key: Sequence[FieldDocument]
) -> StateDocument:
    """Return a state none of whose later fields gets an id that another schema of it has given."""
    last = next(_ids_after(other, other_key)) - 1
    return stored if last < next(_ids_after(stored, key)) else replace(stored, last_field_id=last)


def check_drop_and_rename(
    uid: str, states: Sequence[StateDocument], drop: Collection[str], rename: Mapping[str, str]
) -> None:
    """Refuse to drop or rename states that are not there, or to a name that is taken or none."""
    if isinstance(drop, str):
        raise InvalidInputError(f"drop is a collection of names of states, got the text {drop!r}")
    have = [state.name for state in states]
    for name in (*drop, *rename):
        if name not in have:
            raise StateNotFoundError(name, have, uid)
    both = sorted(set(drop) & set(rename))
    if both:
        raise InvalidInputError(f"{', '.join(both)}: a state is dropped or renamed, not both")
    renamed = {name: check_state_name(to) for name, to in rename.items()}
    after = [renamed.get(name, name) for name in have if name not in drop]
    if len({name.lower() for name in after}) < len(after):
        raise InvalidInputError(
            f"after the restore operator {uid!r} would have the states {', '.join(sorted(after))}; names must differ "
            "in more than case, so drop the one whose name is taken, or choose another"
        )


def _next_version(
    stored: StateDocument,
    key: Sequence[FieldDocument],
    layout: StateLayout,
    before: Sequence[Field],
    after: Sequence[Field],
) -> StateDocument:
    """Return the next version of a state; `key` is the key before, `before` and `after` are its value columns."""
    earlier = SchemaDocument(
        version=stored.schema_version,
        value_type=stored.value_type,
        key=list(key),
        namespace=stored.namespace,
        user_key=stored.user_key,
        columns=[
            replace(document, name=item.name, nullable=item.nullable)
            for document, item in zip(documents_of(before), stored.columns, strict=True)
        ],
    )
    namespaces = zip(stored.namespace, layout.namespace_fields, strict=True)
    user_key = stored.user_key
    if user_key is not None:
        user_key = replace(user_key, name=layout.entry_fields[-1].name)
    return replace(
        stored,
        namespace=[replace(item, name=field.name) for item, field in namespaces],
        user_key=user_key,
        columns=[
            replace(document, name=field.name, nullable=field.nullable)
            for document, field in zip(documents_of(after), layout.value_fields, strict=True)
        ],
        schema_version=stored.schema_version + 1,
        earlier_schemas=[*stored.earlier_schemas, earlier],
    )


def _check_rule(have: StateDescriptor, given: StateDescriptor) -> None:
    """Refuse another kind, reducer, aggregate, user key, clock or namespace; types are looked at apart."""
    if have.namespace is not None and _same_namespace(have, given):
        have = dataclasses.replace(have, namespace=given.namespace)
    rules = [described(item, types=False) for item in (have, given)]
    if rules[0] != rules[1]:
        raise IncompatibleStateError(
            have.name, described(have), described(given), "declare it as it is stored, or use another state name"
        )
    if isinstance(have, AggregatingStateDescriptor) and have.type != given.type:
        fresh = fresh_field(pa.field(have.name, have.type), itertools.count(1))
        evolve(fresh, given.type, SchemaEvolution(), itertools.count(1), what=have.name)
        if isinstance(have.declared, CountDistinct) and not _hashed_alike(have.type, given.type):
            raise IncompatibleStateError(
                have.name,
                str(have.type),
                str(given.type),
                f"declare {have.type} and cast the values to it: the sketch knows values by their hashes, which are "
                "others in another type, so that each would count twice; or count in a state of another name",
            )


def _hashed_alike(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Whether equal values of two types, of which one is wider, have one hash."""
    if stored == declared:
        return True
    if pa.types.is_nested(stored):
        inner = [[kind.field(number) for number in range(kind.num_fields)] for kind in (stored, declared)]
        names = [[field.name for field in fields] if pa.types.is_struct(stored) else len(fields) for fields in inner]
        same = names[0] == names[1]
        return same and all(_hashed_alike(one.type, other.type) for one, other in zip(*inner, strict=True))
    day, number = datetime.date(2001, 1, 1), decimal.Decimal(1)
    example = next(
        value
        for is_one, value in (
            (pa.types.is_date, day),
            (is_text, "1"),
            (is_bytes, b"1"),
            (pa.types.is_decimal, number),
            (lambda _: True, 1),
        )
        if is_one(stored)
    )
    value = pa.array([example], stored)
    return bool(hash_columns([value])[0] == hash_columns([value.cast(declared)])[0])


def _same_namespace(have: StateDescriptor, given: StateDescriptor) -> bool:
    """Whether namespaces are the same, in columns that may have the name of the state before their own."""
    pairs = list(itertools.zip_longest(have.namespace or (), given.namespace or ()))
    return all(
        stored is not None
        and declared is not None
        and stored.type == declared.type
        and stored.name in (declared.name, f"{have.name}_{declared.name}")
        for stored, declared in pairs
    )


def _check_reducers(have: StateDescriptor, given: StateDescriptor, before: Field, after: Field) -> None:
    """Refuse another reducer for a field that stays."""
    if not isinstance(have, ReducingStateDescriptor) or not isinstance(given, ReducingStateDescriptor):
        return
    if isinstance(have.reduce, str) or callable(have.reduce) or isinstance(given.reduce, str) or callable(given.reduce):
        return
    names = {item.id: item.name for item in before.children}
    for item in after.children:
        rules = have.reduce.get(names.get(item.id, "")), given.reduce[item.name]
        if rules[0] is not None and rules[0] != rules[1]:
            raise IncompatibleStateError(
                f"{have.name}.{item.name}", f"reduced by {rules[0]}", f"reduced by {rules[1]}", "keep its reducer"
            )


def _value_of(stored: StateDocument, have: StateDescriptor, ids: Iterator[int]) -> Field:
    """Return the stored value as one field, a struct for one with a column per field."""
    kind = have.accumulator_type if isinstance(have, AggregatingStateDescriptor) else have.type
    columns = fields_of(stored.columns, ids)
    if not columns:
        return Field(0, stored.name, kind)
    if not pa.types.is_struct(kind):
        return replace(columns[0], name=stored.name)
    children = tuple(
        replace(column, name=inner.name, nullable=inner.nullable) for column, inner in zip(columns, kind, strict=True)
    )
    return Field(0, stored.name, kind, True, None, children)


def _value_columns(root: Field) -> tuple[Field, ...]:
    return root.children if pa.types.is_struct(root.type) else (root,)


def _ids_after(stored: StateDocument, key: Sequence[FieldDocument]) -> Iterator[int]:
    return unused_ids(key, *_all_columns(stored), *_earlier_columns(stored), last=stored.last_field_id)


def _all_columns(schema: StateDocument | SchemaDocument) -> list[list[FieldDocument]]:
    return [schema.namespace, _one(schema.user_key), schema.columns]


def _earlier_columns(state: StateDocument) -> list[list[FieldDocument]]:
    return [columns for schema in state.earlier_schemas for columns in (schema.key, *_all_columns(schema))]


def _fields(documents: Sequence[FieldDocument]) -> tuple[Field, ...]:
    # Fields inside a column that never changed have no ids; counted alike in both schemas they are the same.
    return fields_of(documents, itertools.count(-1, -1))


def _one(document: FieldDocument | None) -> list[FieldDocument]:
    return [] if document is None else [document]
