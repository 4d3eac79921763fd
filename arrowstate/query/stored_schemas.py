"""How the rows that any checkpoint holds of a state are read in one schema of it.

A checkpoint names the schemas that its own runs have, so nothing has to be learnt from others. Versions of a state rise
with each evolution. Where a store went back and its schema went another way, two versions have one number: then fields
are the same if the last version that both sides know has them, and otherwise if their names are the same, too.
Specification: formats/spec/schema-evolution.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from arrowstate.errors import IncompatibleStateError
from arrowstate.query.state import KEY_GROUP_COLUMN, StateReader
from arrowstate.schema.evolution import continues
from arrowstate.schema.fields import fields_of
from arrowstate.schema.versions import RunSchemas
from arrowstate.table.columns import canonical_floats, columns_equal, take
from arrowstate.table.segment import HASH_COLUMN
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument
from arrowstate_formats.key_groups import key_groups_of_hashes
from arrowstate_formats.key_hash import hash_columns
from arrowstate_formats.schema_documents import FieldDocument, NestedFieldDocument, SchemaDocument, StateDocument

_ELSEWHERE = 1 << 40
"""What ids of fields are moved by that the other schema does not have."""
_ANEW = "read the changes on each side of that checkpoint apart, a stream by starting it anew"

Ints = npt.NDArray[np.int64]


class StoredSchemas(Struct, frozen=True):
    """The runs of a state in one checkpoint, as they are read in the schema of another."""

    runs: RunSchemas
    "Brings each run to the columns of the other schema."
    key: tuple[FieldDocument, ...]
    "The key columns by which the rows are hashed."
    wanted_key: tuple[FieldDocument, ...]
    "The key columns of the other schema."
    has_times: bool
    "Whether the rows have `_updated_at`."

    @property
    def moves(self) -> bool:
        """Whether keys have other hashes in the other schema."""
        return _identity(self.key) != _identity(self.wanted_key)

    def hashes_of(self, columns: Sequence[pa.Array]) -> tuple[Ints, Ints]:
        """Return which of the given keys the runs can have at all, and the hashes that these have there.

        `columns` are keys in the other schema.
        """
        document = self.runs.document
        given = dict(zip((item.id for item in self.wanted_key), columns, strict=True))
        if given.keys() != {item.id for item in self.key}:
            raise IncompatibleStateError(
                document.name, _text("keyed by", self.key), _text("keyed by", self.wanted_key), _ANEW
            )
        there = np.ones(len(columns[0]), dtype=np.bool_)
        narrowed = []
        for item in fields_of(self.key, itertools.count(-1, -1)):
            column = given[item.id]
            narrow = column if column.type == item.type else column.cast(item.type, safe=False)
            there &= columns_equal(narrow.cast(column.type), column)
            narrowed.append(narrow)
        rows = np.flatnonzero(there)
        return rows, hash_columns([canonical_floats(take(column, rows)) for column in narrowed])


def rehashed(state: StateReader, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that are in the schema of a reader with the hashes, and the key groups, of their keys there."""
    hashes = hash_columns([canonical_floats(batch.column(name)) for name in state.layout.key.names])
    arrays = [batch.column(name) for name in batch.schema.names]
    for name, made in ((HASH_COLUMN, hashes), (KEY_GROUP_COLUMN, key_groups_of_hashes(hashes, state.max_parallelism))):
        if name in batch.schema.names:
            arrays[batch.schema.get_field_index(name)] = pa.array(made)
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def stored_schemas(
    state: StateReader, entry: LogEntryDocument, operator: OperatorDocument, stored: StateDocument
) -> StoredSchemas:
    """Return how the rows of a state in a checkpoint are read in the schema of a reader of it."""
    wanted, key = state.document, state.operator.key
    has_times = stored.time_to_live is not None
    if stored.kind != wanted.kind:
        raise _refused(state, operator, stored)
    own, there = _schema_of(operator.key, stored), _schema_of(key, wanted)
    if own == there and has_times == (wanted.time_to_live is not None):
        same = stored.earlier_schemas == wanted.earlier_schemas
        runs = state.schemas if same else RunSchemas(key, replace(wanted, earlier_schemas=stored.earlier_schemas))
        return StoredSchemas(runs, tuple(operator.key), tuple(key), has_times)
    of_stored = {schema.version: schema for schema in (*stored.earlier_schemas, own)}
    of_wanted = {schema.version: schema for schema in (*wanted.earlier_schemas, there)}
    both = sorted(of_stored.keys() & of_wanted.keys())
    agreed = [version for version in both if _columns(of_stored[version]) == _columns(of_wanted[version])]
    if agreed == both and stored.schema_version <= wanted.schema_version:
        # Those of the reader have ids inside columns in stores of early writers, too.
        earlier = [of_wanted.get(version, schema) for version, schema in of_stored.items()]
    elif entry.number > state.entry.number:
        raise _refused(state, operator, stored)
    elif agreed == both:
        earlier = list(of_stored.values())
    else:
        shared = _ids_of(of_stored[agreed[-1]]) if agreed else _ids_of_same_name(own, there)
        earlier = [_apart(schema, shared) for schema in of_stored.values()]
    if len(own.namespace) != len(there.namespace) or (own.user_key is None) != (there.user_key is None):
        raise _refused(state, operator, stored)
    earlier = [_with_entry_ids(schema, there) for schema in earlier]
    last = replace(
        wanted,
        schema_version=max(stored.schema_version, wanted.schema_version) + 1,
        earlier_schemas=earlier,
        time_to_live=stored.time_to_live if has_times != (wanted.time_to_live is not None) else wanted.time_to_live,
    )
    if not _follow(earlier[-1], there):
        raise _refused(state, operator, stored)
    return StoredSchemas(RunSchemas(key, last), tuple(operator.key), tuple(key), has_times)


def _schema_of(key: Sequence[FieldDocument], document: StateDocument) -> SchemaDocument:
    return SchemaDocument(
        version=document.schema_version,
        value_type=document.value_type,
        key=list(key),
        namespace=document.namespace,
        user_key=document.user_key,
        columns=document.columns,
    )


def _parts(schema: SchemaDocument) -> list[FieldDocument]:
    user_key = [] if schema.user_key is None else [schema.user_key]
    return [*schema.key, *schema.namespace, *user_key, *schema.columns]


def _columns(schema: SchemaDocument) -> list[tuple[int, str, object]]:
    """Return what tells a version of a state from another one of the same number."""
    return [(item.id, item.name, item.type) for item in _parts(schema)]


def _ids_of(schema: SchemaDocument) -> set[int]:
    return {id for item in _parts(schema) for id in _deep(item)}


def _deep(item: FieldDocument | NestedFieldDocument) -> Iterator[int]:
    yield item.id
    for child in item.fields:
        yield from _deep(child)


def _ids_of_same_name(left: SchemaDocument, right: SchemaDocument) -> set[int]:
    """Return the ids of the columns that have one name in both."""
    names = {item.id: item.name for item in _parts(right)}
    return {id for item in _parts(left) if names.get(item.id) == item.name for id in _deep(item)}


def _apart(schema: SchemaDocument, shared: Collection[int]) -> SchemaDocument:
    """Return a schema whose fields have ids that no other schema has, but for those that are shared."""

    def own(item: FieldDocument | NestedFieldDocument) -> dict[str, object]:
        return {
            "id": item.id if item.id in shared else item.id - _ELSEWHERE,
            "fields": [replace(child, **own(child)) for child in item.fields],
        }

    key, columns = ([replace(item, **own(item)) for item in items] for items in (schema.key, schema.columns))
    return replace(schema, key=key, columns=columns)


def _with_entry_ids(schema: SchemaDocument, other: SchemaDocument) -> SchemaDocument:
    """Return a schema whose namespace and user key have the ids of another, for they stay what they are."""
    spaces = [replace(item, id=to.id) for item, to in zip(schema.namespace, other.namespace, strict=True)]
    if schema.user_key is None or other.user_key is None:
        return replace(schema, namespace=spaces)
    return replace(schema, namespace=spaces, user_key=replace(schema.user_key, id=other.user_key.id))


def _follow(stored: SchemaDocument, current: SchemaDocument) -> bool:
    """Whether all values of a schema are values of another, and each row gets a key."""
    ids = itertools.count(-1, -1)
    have = {item.id: item for item in fields_of(_parts(stored), ids)}
    entry = {item.id for item in (*stored.namespace, *([] if stored.user_key is None else [stored.user_key]))}
    for item in fields_of(_parts(current), itertools.count(-1, -1)):
        source = have.get(item.id)
        if source is None:
            if not item.nullable and item.default is None:
                return False
        elif not continues(source, item) or (item.id in entry and source.type != item.type):
            return False
    return True


def _refused(state: StateReader, operator: OperatorDocument, stored: StateDocument) -> IncompatibleStateError:
    own, there = _schema_of(operator.key, stored), _schema_of(state.operator.key, state.document)
    if _identity(own.key) != _identity(there.key):
        return IncompatibleStateError(stored.name, _text("keyed by", own.key), _text("keyed by", there.key), _ANEW)
    wanted = state.document
    return IncompatibleStateError(
        stored.name,
        _text(f"a {stored.kind} state, in version {stored.schema_version}, of", stored.columns),
        _text(f"a {wanted.kind} state, in version {wanted.schema_version}, of", wanted.columns),
        _ANEW,
    )


def _identity(fields: Sequence[FieldDocument]) -> list[tuple[int, object]]:
    return [(field.id, field.type) for field in fields]


def _text(what: str, fields: Sequence[FieldDocument]) -> str:
    return f"{what} {', '.join(f'{field.name}: {field.type}' for field in fields) or 'no columns'}"
