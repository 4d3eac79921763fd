"""What a user says of state whose savepoint does not: types, names of fields, classes.

| key of a hint | what it says |
| --- | --- |
| `operator.state` | the type of `value`; a schema: those of `key`, `user_key` and `value`, or the fields of `value` |
| a class | by a struct or a schema all fields of its objects, those of the class above it too |

For a column that is decoded a hint gives other names to fields, in order, and other types, if no value changes by it;
`pa.binary()` keeps the bytes of values as they are. Bytes of PyFlink are decoded by the hint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.foreign.flink.layout import StateLayout
from arrowstate.foreign.flink.operator_ids import resolved
from arrowstate.foreign.flink.python_values import Pickled, python_column, python_serializer
from arrowstate.foreign.flink.serializers.base import Opaque, Serializer
from arrowstate.foreign.flink.serializers.composites import TtlOf
from arrowstate.foreign.flink.serializers.pojo import PojoOf, Subclass
from arrowstate.foreign.flink.serializers.rewriting import java_serializer, pojos_of, rewritten

Hint: TypeAlias = pa.DataType | pa.Schema | Pickled

_COLUMNS = frozenset({"key", "namespace", "user_key", "value"})


@dataclass(frozen=True, slots=True)
class StateHint:
    """Hints for the columns of one state."""

    name: str
    types: Mapping[str, pa.DataType | Pickled]

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns as they are after the hint."""
        fields = []
        for field in schema:
            hint = self.types.get(field.name)
            kind = field.type if hint is None else self._type(field, hint)
            fields.append(field.with_type(kind))
        missing = [name for name in self.types if name not in schema.names]
        if missing:
            raise InvalidInputError(f"a hint for {self.name} names {missing[0]!r}; it has {', '.join(schema.names)}")
        return pa.schema(fields)

    def _type(self, field: pa.Field, hint: pa.DataType | Pickled) -> pa.DataType:
        if isinstance(hint, Pickled):
            return hint.type
        if _is_of_bytes(field) and not pa.types.is_binary(hint):
            python_serializer(hint)
        return hint

    def batch(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return a batch with the columns of the hint."""
        columns = []
        for field, after in zip(batch.schema, schema, strict=True):
            column, hint = batch.column(field.name), self.types.get(field.name)
            if (
                hint is not None
                and _is_of_bytes(field)
                and not (isinstance(hint, pa.DataType) and pa.types.is_binary(hint))
            ):
                column = python_column(column, hint, self.name)
            if column.type != after.type:
                column = _cast(column, after.type, self.name)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_of_bytes(field: pa.Field) -> bool:
    """Whether a column is of bytes that a class of nobody's wrote."""
    kind = field.type.value_type if pa.types.is_list(field.type) else field.type
    return pa.types.is_binary(kind) and not (field.metadata and b"flink.class" in field.metadata)


def _cast(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """The same values with other names of fields and other types."""
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type) and kind.num_fields == column.type.num_fields:
        gone = column.is_null() if column.null_count else None
        children = [_cast(column.field(place), kind.field(place).type, name) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=gone)
    if pa.types.is_list(kind) and pa.types.is_list(column.type):
        gone = column.is_null() if column.null_count else None
        return pa.ListArray.from_arrays(
            column.offsets, _cast(column.values, kind.value_type, name), type=kind, mask=gone
        )
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"{name} is of {column.type} and cannot be of {kind}, as a hint says: {error}"
        ) from error


class Hints:
    """All hints for a savepoint."""

    def __init__(self, given: Mapping[str, Hint] | None = None) -> None:
        self._given = dict(given or {})
        for name, hint in self._given.items():
            if not isinstance(hint, pa.DataType | pa.Schema | Pickled):
                raise InvalidInputError(f"a hint is a type or a schema of pyarrow, got {hint!r} for {name!r}")
        self._classes: dict[str, Hint] = {}
        self._states: dict[str, tuple[str, Hint]] = {}

    def bind(self, states: Iterable[str]) -> None:
        """Say which states there are, as `operator.state`: other hints are of classes."""
        known = set(states)
        self._states = {}
        for name, hint in self._given.items():
            found = resolved(name, known)
            if found is not None:
                self._states[found] = (name, hint)
        named = {name for name, _ in self._states.values()}
        self._classes = {name: hint for name, hint in self._given.items() if name not in named}
        for name, hint in self._classes.items():
            if _fields(hint) is None:
                raise InvalidInputError(
                    f"a hint for {name!r}, which is no state; one for a class is a schema or a struct of its fields"
                )

    def of_state(self, operator: str, state: str) -> StateHint | None:
        """Return the hint for a state; None if there is none."""
        name, hint = self._states.get(f"{operator}.{state}", ("", None))
        return None if hint is None else StateHint(name, self._types(hint))

    @staticmethod
    def _types(hint: Hint) -> dict[str, pa.DataType | Pickled]:
        if isinstance(hint, pa.Schema):
            if set(hint.names) <= _COLUMNS:
                return {field.name: field.type for field in hint}
            return {"value": pa.struct(list(hint))}
        return {"value": hint}

    def keeps_bytes(self, operator: str, state: str) -> bool:
        """Whether the values of a state are to stay bytes."""
        _, hint = self._states.get(f"{operator}.{state}", ("", None))
        return hint is not None and _keeps_bytes(self._types(hint))

    def layout(
        self, operator: str, layout: StateLayout, known: Mapping[str, Mapping[str, Serializer]], framed: bool
    ) -> StateLayout:
        """Return the layout with what hints and other subtasks say of classes."""
        if layout.value is None:
            return layout
        value = layout.value
        if framed and self.keeps_bytes(operator, layout.name) and not layout.is_raw:
            raw = Opaque("bytes", "a hint says so")
            value = TtlOf(raw) if layout.has_ttl else raw
        return replace(layout, value=rewritten(value, self._change(known)))

    def _change(self, known: Mapping[str, Mapping[str, Serializer]]) -> Callable[[Serializer], Serializer]:
        def change(part: Serializer) -> Serializer:
            if isinstance(part, PojoOf):
                return self._with_subclasses(part, known.get(part.class_name, {}))
            return part

        return change

    def _with_subclasses(self, pojo: PojoOf, known: Mapping[str, Serializer]) -> PojoOf:
        there = {each.class_name for each in pojo.known}
        more = {name: serializer for name, serializer in known.items() if name not in there}
        own = dict(zip(pojo.names, pojo.parts, strict=True))
        for name, hint in self._classes.items():
            if (
                name not in there
                and name != pojo.class_name
                and own.keys() <= {field.name for field in _fields(hint) or ()}
            ):
                more[name] = _subclass(name, hint, own)
        if not more:
            return pojo
        tags = {each.class_name: each.tag for each in pojo.subclasses}
        kept = [each for each in pojo.subclasses if each.class_name not in more]
        added = [Subclass(name, tags.get(name, -1), serializer) for name, serializer in more.items()]
        return replace(pojo, subclasses=(*kept, *added))


def _fields(hint: Hint) -> list[pa.Field] | None:
    if isinstance(hint, pa.Schema) or (isinstance(hint, pa.DataType) and pa.types.is_struct(hint)):
        return list(hint)
    return None


def _subclass(name: str, hint: Hint, own: Mapping[str, Serializer]) -> PojoOf:
    """The objects of a class: its own fields beside those of the class above it, whose serializers are known."""
    parts = dict(own)
    for field in _fields(hint) or ():
        part = java_serializer(field.type)
        if part is None:
            raise InvalidInputError(f"the hint for {name} has the field {field.name!r} of {field.type}")
        parts.setdefault(field.name, part)
    names = tuple(sorted(parts))
    return PojoOf(name, names, tuple(parts[each] for each in names))


def _keeps_bytes(types: Mapping[str, pa.DataType | Pickled]) -> bool:
    value = types.get("value")
    return isinstance(value, pa.DataType) and pa.types.is_binary(value)


def known_subclasses(layouts: Iterable[StateLayout]) -> dict[str, dict[str, Serializer]]:
    """Return of each declared class the subclasses that any of the layouts describes."""
    found: dict[str, dict[str, Serializer]] = {}
    for layout in layouts:
        if layout.value is not None:
            for pojo in pojos_of(layout.value):
                for each in pojo.known:
                    assert each.serializer is not None
                    found.setdefault(pojo.class_name, {})[each.class_name] = each.serializer
    return found
