"""The documents of columns and states: fields, types, versions, times to live, aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from arrowstate_formats.document_base import (
    Document,
    FieldId,
    Int64,
    Name,
    Text,
    TypeForm,
    Version,
    check_nesting,
)


class NestedFieldDocument(Document, frozen=True, kw_only=True):
    """The identity of a field inside a column, whose type tells its name and type."""

    id: FieldId
    default: str | None = None
    fields: list[NestedFieldDocument] = []


class FieldDocument(Document, frozen=True, kw_only=True):
    """A key column or value column; `id` stays the same when the column is renamed.

    `default` is what rows have that were written before the column was there, as `encode_default` writes it; None for
    null. `fields` are the fields inside a nested type, in its order, once the schema of the state has changed.
    """

    id: FieldId
    name: Text
    type: TypeForm
    nullable: bool = True
    default: str | None = None
    fields: list[NestedFieldDocument] = []


def check_types(columns: Sequence[FieldDocument]) -> None:
    """Refuse a type of a column that is nested too deep."""
    for column in columns:
        if type(column.type) is dict:
            check_nesting(f"the type of {column.name!r}", column.type)


class TimeToLiveDocument(Document, frozen=True, kw_only=True):
    """When the rows of a state expire: `ttl_ms` after `_updated_at`, by the clock named."""

    ttl_ms: Int64
    update: Literal["on_create_and_write", "on_read_and_write"]
    visibility: Literal["never_return_expired", "return_until_cleaned_up"]
    clock: Literal["processing_time", "event_time"]

    def check(self) -> None:
        if self.ttl_ms < 1:
            raise ValueError(f"ttl_ms is {self.ttl_ms}, it must be at least 1")


class AggregateDocument(Document, frozen=True, kw_only=True):
    """What an aggregating state computes: a built-in aggregate with its parameters, or the name of another.

    `accumulator_type` is a struct; its fields are the columns of the state.
    """

    name: Text
    parameters: dict[str, Any]
    accumulator_type: TypeForm

    def check(self) -> None:
        check_nesting(f"aggregate {self.name!r}", [self.parameters, self.accumulator_type])


class SchemaDocument(Document, frozen=True, kw_only=True):
    """The columns that runs of an earlier schema version have."""

    version: Version
    value_type: TypeForm
    key: list[FieldDocument]
    namespace: list[FieldDocument] = []
    user_key: FieldDocument | None = None
    columns: list[FieldDocument]

    def check(self) -> None:
        check_types([*self.key, *_own_columns(self)])


class StateDocument(Document, frozen=True, kw_only=True):
    """A state as its descriptor declared it, and the columns its values are stored in.

    `earlier_schemas` are those that runs of the checkpoint still have, ascending; `last_field_id` is the highest id
    that a version had which is gone, or 0.
    """

    name: Name
    kind: Literal["value", "reducing", "list", "map", "timer", "aggregating"]
    value_type: TypeForm
    columns: list[FieldDocument]
    reduce: str | dict[str, str] | None = None
    schema_version: Version = 1
    namespace: list[FieldDocument] = []
    user_key: FieldDocument | None = None
    time_to_live: TimeToLiveDocument | None = None
    clock: Literal["event_time", "processing_time"] | None = None
    aggregate: AggregateDocument | None = None
    reduce_callable: str | None = None
    earlier_schemas: list[SchemaDocument] = []
    last_field_id: FieldId = 0

    def check(self) -> None:
        check_types(_own_columns(self))
        versions = [schema.version for schema in self.earlier_schemas]
        if sorted({*versions, self.schema_version}) != [*versions, self.schema_version]:
            raise ValueError(f"schema version {self.schema_version} with the earlier versions {versions}")
        for part in (self.time_to_live, self.aggregate, *self.earlier_schemas):
            if part is not None:
                part.check()


def _own_columns(schema: SchemaDocument | StateDocument) -> list[FieldDocument]:
    return [*schema.namespace, *([] if schema.user_key is None else [schema.user_key]), *schema.columns]
