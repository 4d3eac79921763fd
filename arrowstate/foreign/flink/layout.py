"""The columns of a state, wherever its bytes lie.

| column | what |
| --- | --- |
| `key` | the key; a struct if it has several parts |
| `window_start`, `window_end` | the window of a state of windows, in ms, else `namespace` if there is one |
| `user_key` | the key in a map: a map has a row per entry |
| `timestamp` | of a timer, in ms |
| `value` | the value, the list, or what was added up |
| `_last_access` | when it was last used, in ms, where a state has a time to live |
| `_raw` | the bytes of a value that could not be decoded, where that may be |
| `_key_group` | the key group |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from arrowstate.foreign.flink.keyed_header import StateInfo
from arrowstate.foreign.flink.serializers.base import Opaque, Serializer
from arrowstate.foreign.flink.serializers.composites import ListOf, MapOf, StructOf, TtlOf
from arrowstate.foreign.flink.serializers.program import Ints
from arrowstate.foreign.flink.serializers.rewriting import without_kinds
from arrowstate.foreign.flink.serializers.scalars import Nothing


@dataclass(slots=True)
class RowColumns:
    """Decoded parts of rows, before they are put in order."""

    key_groups: Ints
    key: pa.Array
    namespace: pa.Array | None = None
    user_key: pa.Array | None = None
    timestamp: pa.Array | None = None
    value: pa.Array | None = None
    raw: pa.Array | None = None


@dataclass(frozen=True, slots=True)
class StateLayout:
    """How the parts of a keyed state were written."""

    name: str
    kind: str
    "`value`, `list`, `map`, `reducing`, `aggregating` or `timers`."
    key: Serializer
    namespace: Serializer
    user_key: Serializer | None
    value: Serializer | None
    "Of a list its elements, of a map its values; None for timers. With a time to live both are in it."

    @property
    def inner(self) -> Serializer | None:
        """The value without its time of last use."""
        return self.value.value if isinstance(self.value, TtlOf) else self.value

    @property
    def has_ttl(self) -> bool:
        """Whether values come with the time of their last use."""
        return isinstance(self.value, TtlOf)

    @property
    def is_raw(self) -> bool:
        """Whether values are bytes, for only the job's classes could read any of them."""
        return self.inner is not None and is_always_opaque(self.inner)

    @property
    def has_windows(self) -> bool:
        """Whether the namespace is a window with a start and an end."""
        return isinstance(self.namespace, StructOf) and self.namespace.class_name == "TimeWindow"

    @property
    def has_namespace(self) -> bool:
        """Whether the namespace says anything."""
        return not isinstance(self.namespace, Nothing)

    @property
    def may_fail(self) -> bool:
        """Whether there may be values that cannot be decoded though others can."""
        return self.inner is not None and self.inner.fallible and not self.is_raw

    @property
    def opaque(self) -> tuple[str, ...]:
        """The classes that could not be decoded."""
        parts = (self.key, self.namespace, self.user_key, self.inner)
        return tuple(dict.fromkeys(name for part in parts if part is not None for name in part.opaque))

    @property
    def value_type(self) -> pa.DataType:
        """The type of the column `value`."""
        assert self.inner is not None
        if self.kind != "list":
            return self.inner.arrow
        return pa.binary() if self.is_raw else pa.list_(self.inner.arrow)

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        fields = [pa.field("key", key_type(self.key), metadata=_class(self.key))]
        if self.has_windows:
            fields += [pa.field("window_start", pa.int64()), pa.field("window_end", pa.int64())]
        elif self.has_namespace:
            fields.append(pa.field("namespace", self.namespace.arrow, metadata=_class(self.namespace)))
        if self.user_key is not None:
            fields.append(pa.field("user_key", self.user_key.arrow, metadata=_class(self.user_key)))
        if self.kind == "timers":
            fields.append(pa.field("timestamp", pa.int64()))
        if self.inner is not None:
            fields.append(pa.field("value", self.value_type, metadata=_class(self.inner)))
            if self.has_ttl and not (self.is_raw and self.kind == "list"):
                kind = pa.list_(pa.int64()) if self.kind == "list" else pa.int64()
                fields.append(pa.field("_last_access", kind))
            if self.may_fail:
                fields.append(pa.field("_raw", pa.binary()))
        fields.append(pa.field("_key_group", pa.int32()))
        return pa.schema(fields)

    def batch(self, parts: RowColumns) -> pa.RecordBatch:
        """Put decoded parts in order."""
        columns = {"key": parts.key}
        if self.has_windows:
            assert parts.namespace is not None
            columns["window_start"], columns["window_end"] = parts.namespace.field(0), parts.namespace.field(1)
        elif self.has_namespace:
            columns["namespace"] = parts.namespace
        columns |= {"user_key": parts.user_key, "timestamp": parts.timestamp}
        if parts.value is not None:
            columns |= self._values(parts.value)
        columns["_raw"] = parts.raw
        columns["_key_group"] = pa.array(parts.key_groups.astype(np.int32))
        schema = self.schema
        return pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)

    def _values(self, value: pa.Array) -> dict[str, pa.Array]:
        """The value and the time of its last use."""
        if not self.has_ttl or (self.is_raw and self.kind == "list"):
            return {"value": value}
        if self.kind != "list":
            access, inner = value.flatten()
            return {"value": inner, "_last_access": access}
        pairs = value.values
        access, inner = pairs.flatten()
        offsets = value.offsets
        return {
            "value": pa.ListArray.from_arrays(offsets, inner, mask=value.is_null() if value.null_count else None),
            "_last_access": pa.ListArray.from_arrays(offsets, access),
        }


def _class(serializer: Serializer) -> dict[str, str] | None:
    return {"flink.class": ", ".join(serializer.opaque)} if serializer.opaque else None


def key_type(key: Serializer) -> pa.DataType:
    """Return the type of the column `key`: of one that only its class can read, bytes."""
    return pa.binary() if is_always_opaque(key) else key.arrow


def is_always_opaque(serializer: Serializer) -> bool:
    """Whether no value can be decoded, for one that is never absent is of a class that nobody knows."""
    if isinstance(serializer, Opaque):
        return True
    if isinstance(serializer, StructOf):
        # One that is last can be kept as bytes.
        return any(is_always_opaque(part) for part in serializer.parts[:-1])
    return isinstance(serializer, TtlOf) and is_always_opaque(serializer.value)


def layout_of(info: StateInfo, key: Serializer) -> StateLayout:
    """Return the layout of a keyed state of a header."""
    value = info.serializer("VALUE_SERIALIZER")
    key = without_kinds(key)
    if info.backend_kind == "queue":
        if isinstance(value, StructOf) and value.class_name == "timer":
            return StateLayout(info.name, "timers", without_kinds(value.parts[1]), value.parts[2], None, None)
        return StateLayout(info.name, "timers", Opaque("timer", "no timers"), Nothing(), None, None)
    namespace = info.serializer("NAMESPACE_SERIALIZER")
    user_key = None
    if info.kind == "map":
        if "USER_KEY_SERIALIZER" in info.serializers:
            user_key = info.serializers["USER_KEY_SERIALIZER"]
        elif isinstance(value, MapOf):
            user_key, value = value.key, value.value
    elif info.kind == "list" and isinstance(value, ListOf):
        value = value.element
    return StateLayout(info.name, info.kind, key, namespace, user_key, value)
