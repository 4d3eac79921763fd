"""Serializers with parts of them replaced: what other subtasks know of classes, and what a user says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa

from arrowstate.foreign.flink.serializers.base import CountedBytes, Serializer
from arrowstate.foreign.flink.serializers.composites import ListOf, MapOf, RowOf
from arrowstate.foreign.flink.serializers.pojo import PojoOf, Subclass
from arrowstate.foreign.flink.serializers.scalars import BigNumber, Number, Text, Time

Change = Callable[[Serializer], Serializer]


def rewritten(serializer: Serializer, change: Change) -> Serializer:
    """Return the serializer with each of its parts changed, the innermost first, and itself last."""

    def changed(value: Any) -> Any:
        if isinstance(value, Serializer):
            return rewritten(value, change)
        if isinstance(value, Subclass):
            return replace(value, serializer=changed(value.serializer))
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    return change(
        replace(serializer, **{each.name: changed(getattr(serializer, each.name)) for each in fields(serializer)})
    )


def without_kinds(serializer: Serializer) -> Serializer:
    """Return the serializer of keys: what kind of change a row is says nothing there."""

    def hide(part: Serializer) -> Serializer:
        return replace(part, shown=False) if isinstance(part, RowOf) else part

    return rewritten(serializer, hide)


def pojos_of(serializer: Serializer) -> Iterator[PojoOf]:
    """Yield the objects in a serializer, itself included."""
    found: list[PojoOf] = []

    def note(part: Serializer) -> Serializer:
        if isinstance(part, PojoOf):
            found.append(part)
        return part

    rewritten(serializer, note)
    yield from found


def java_serializer(kind: pa.DataType, class_name: str = "") -> Serializer | None:
    """Return how Flink writes the Java type that a type of Arrow stands for; None if there is none.

    A list stands for an array or a `List` of Java, a struct for an object whose fields are in the order of their names,
    a timestamp with a time zone for an `Instant`.
    """
    if pa.types.is_struct(kind):
        fields = sorted(kind, key=lambda field: field.name)
        parts = [java_serializer(field.type) for field in fields]
        known = tuple(part for part in parts if part is not None)
        if len(known) < len(fields):
            return None
        return PojoOf(class_name, tuple(field.name for field in fields), known)
    if pa.types.is_list(kind):
        element = java_serializer(kind.value_type)
        return None if element is None else ListOf(element)
    if pa.types.is_map(kind):
        key, value = java_serializer(kind.key_type), java_serializer(kind.item_type)
        return None if key is None or value is None else MapOf(key, value)
    if pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return Number(kind)
    if pa.types.is_timestamp(kind):
        return Time("datetime" if kind.tz is None else "instant")
    simple = {
        pa.string(): Text(),
        pa.binary(): CountedBytes(),
        pa.date32(): Time("date"),
        pa.time64("ns"): Time("time"),
    }
    return simple.get(kind) or (BigNumber(scaled=True) if pa.types.is_decimal(kind) else None)
