"""Which changes of a schema stored rows can follow, and what the new schema is.

Fields are known by ids, which stay when a field is renamed and are never given again, as in Apache Iceberg. A field
may be added with a default, dropped, renamed, moved, and widened where no value can change; at any depth. Everything
else is refused with the path of the field, both types, and what would work.
Specification: formats/spec/schema-evolution.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from arrowstate.errors import IncompatibleStateError, InvalidInputError
from arrowstate.schema.conversion import converter
from arrowstate.schema.fields import Field, fresh_field, inner_fields
from arrowstate.schema.types import CONVERSION_ERRORS, python_array


@dataclass(frozen=True, slots=True)
class SchemaEvolution:
    """How rows that were stored with an earlier schema become rows of a new one.

    Fields that are in both schemas, in any order, need no entry here. Neither does a field that becomes wider: a larger
    integer, a larger float, more digits of a decimal, a date that becomes a timestamp, larger offsets. A field that is
    only in the new schema is added. A field that is only in the stored schema must be named here, so that a typing
    error loses nothing. Entries that have been applied already may stay: they are ignored.

    A path names the fields from the outermost inwards, joined by dots: `address.street`. The element of a list is
    called `element`, the keys and values of a map type `key` and `value`.

    Parameters
    ----------
    renamed
        The new name for each stored path, only its last part: `{"address.zip": "postcode"}`.
    defaults
        For each new path the value of earlier rows, a plain Python value; null by default.
    dropped
        Stored paths to drop with their values. Earlier checkpoints keep them.
    merge
        For an evolution of the key: how the rows of keys that become equal are merged, by state. For a value, map or
        reducing state it is a reducer that needs no order (`sum`, `min`, `max`, ...), which works column by column, or
        a Python function that makes one of two plain values. For a list, reducing or aggregating state it may be
        `merge`, which merges as `merge_namespaces` does. Timers that become equal become one timer by themselves.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://evolution-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> old = pa.struct([("amount", pa.int32())])
    >>> backend.state(arrowstate.ValueStateDescriptor("order", old)).update_batch(["ann"], [{"amount": 7}])
    >>> with store.writer() as writer:
    ...     _ = writer.checkpoint({"orders": [backend]})
    >>> new = pa.struct([("currency", pa.string()), ("total", pa.int64())])
    >>> change = arrowstate.SchemaEvolution(renamed={"amount": "total"}, defaults={"currency": "EUR"})
    >>> restored = store.latest().restore("orders")
    >>> orders = restored.state(arrowstate.ValueStateDescriptor("order", new, evolution=change))
    >>> orders.get_batch(["ann"]).to_pylist()
    [{'currency': 'EUR', 'total': 7}]
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    dropped: Collection[str] = ()
    merge: Mapping[str, str | Callable[[Any, Any], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.dropped, str):
            raise InvalidInputError(f"dropped is a collection of paths, got the text {self.dropped!r}")
        given: Mapping[str, Any] = self.renamed
        for path, name in given.items():
            if not isinstance(name, str) or not name:
                raise InvalidInputError(f"the new name of {path!r} must be a text, got {name!r}")
        both = set(self.dropped) & set(self.renamed)
        if both:
            raise InvalidInputError(f"{', '.join(sorted(both))}: a field is renamed or dropped, not both")
        for path, name in self.renamed.items():
            if _join(path.rpartition(".")[0], name) in self.renamed:
                raise InvalidInputError(
                    f"{path!r} cannot get the name of a field that is renamed itself ({name!r}): none could tell later "
                    "whether it was done; rename in two steps, with a checkpoint between"
                )


def evolve(stored: Field, declared: pa.DataType, evolution: SchemaEvolution, ids: Iterator[int], *, what: str) -> Field:
    """Return the declared type as a field that continues the stored one."""
    change = _Change(evolution, ids, what)
    result = change.field(stored, pa.field(stored.name, declared, stored.nullable), "", "")
    known = change.declared - {""}
    unknown = [path for path in evolution.defaults if path not in known]
    if unknown:
        raise InvalidInputError(
            f"{what}: there is no field {unknown[0]!r} to have a default; "
            f"there are {', '.join(sorted(known)) or 'none'}"
        )
    # One that was applied earlier has left its new name, in the schema or among what was dropped since.
    names = {path.rpartition(".")[2] for path in (*known, *evolution.dropped)}
    nowhere = [path for path, name in evolution.renamed.items() if name not in names]
    if nowhere:
        raise InvalidInputError(
            f"{what}: there is no field {evolution.renamed[nowhere[0]]!r} that {nowhere[0]!r} could have become; there "
            f"are {', '.join(sorted(known)) or 'none'}"
        )
    return result


def names_fields(evolution: SchemaEvolution | None) -> bool:
    """Whether something is said of any field."""
    return evolution is not None and bool(evolution.renamed or evolution.defaults or evolution.dropped)


def widens(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Whether each value of a flat type is a value of another, exactly."""
    types = pa.types
    if types.is_integer(stored) and types.is_integer(declared):
        grows = declared.bit_width > stored.bit_width
        return bool(grows and (types.is_signed_integer(declared) or types.is_unsigned_integer(stored)))
    if types.is_floating(stored) and types.is_floating(declared):
        return bool(declared.bit_width > stored.bit_width)
    if types.is_decimal(stored) and types.is_decimal(declared):
        whole = declared.precision - declared.scale >= stored.precision - stored.scale
        return bool(whole and declared.scale >= stored.scale and declared.bit_width >= stored.bit_width)
    if types.is_date32(stored):
        # Nanoseconds in int64 end in the year 2262.
        instant = types.is_timestamp(declared) and declared.tz is None and declared.unit != "ns"
        return bool(instant or types.is_date64(declared))
    text = types.is_string(stored) and types.is_large_string(declared)
    return bool(text or (types.is_binary(stored) and types.is_large_binary(declared)))


def continues(stored: Field, current: Field) -> bool:
    """Whether each value of a stored field is a value of a current one of the same id, exactly; see `converter`."""
    if stored.nullable and not current.nullable:
        return False
    if pa.types.is_struct(stored.type) and pa.types.is_struct(current.type):
        children = {child.id: child for child in stored.children}
        return all(
            continues(children[child.id], child)
            if child.id in children
            else child.nullable or child.default is not None
            for child in current.children
        )
    if _same_nesting(stored.type, current.type):
        return all(map(continues, stored.children, current.children))
    return stored.type == current.type or widens(stored.type, current.type)


class _Change:
    """One change of a schema while it is worked out; `old` and `new` are the paths before and after it."""

    def __init__(self, evolution: SchemaEvolution, ids: Iterator[int], what: str) -> None:
        self.declared: set[str] = set()
        self._evolution = evolution
        self._ids = ids
        self._what = what

    def field(self, stored: Field, declared: pa.Field, old: str, new: str) -> Field:
        """Return a field that continues a stored one."""
        self.declared.add(new)
        if stored.nullable and not declared.nullable:
            raise self._refused(new, "nullable", "not nullable", "declare it nullable, stored rows may hold nulls")
        if pa.types.is_struct(stored.type) and pa.types.is_struct(declared.type):
            children = self._fields(stored, declared.type, old, new)
        elif _same_nesting(stored.type, declared.type):
            children = tuple(
                self.field(child, inner, _join(old, child.name), _join(new, inner.name))
                for child, inner in zip(stored.children, inner_fields(declared.type), strict=True)
            )
        elif stored.type == declared.type or widens(stored.type, declared.type):
            children = ()
        else:
            raise self._refused(new, str(stored.type), str(declared.type), _remedy(stored.type, declared.type))
        result = Field(stored.id, declared.name, declared.type, declared.nullable, None, children)
        if stored.default is None:
            return result
        default = converter(stored, result)(stored.default)
        return Field(result.id, result.name, result.type, result.nullable, default, children)

    def _fields(self, stored: Field, declared: pa.DataType, old: str, new: str) -> tuple[Field, ...]:
        names = {item.name for item in declared}
        stored_names = {child.name for child in stored.children}
        continued: dict[str, Field] = {}
        for child in stored.children:
            path = _join(old, child.name)
            name = self._evolution.renamed.get(path, child.name)
            taken = name != child.name and name in stored_names
            if taken:
                # Renamed at an earlier restore: the field of that name is the one that was meant.
                name = child.name
            if path in self._evolution.dropped and name not in names:
                continue
            if name not in names:
                remedy = (
                    f"declare it; if it has another name now, say SchemaEvolution(renamed={{{path!r}: ...}}), and "
                    f"SchemaEvolution(dropped=[{path!r}]) to give its values up"
                )
                if taken:
                    wanted = self._evolution.renamed[path]
                    remedy = f"there is a field {wanted!r} already: drop that one, make a checkpoint, and rename then"
                raise self._refused(path, str(child.type), "nothing" if name == child.name else repr(name), remedy)
            if name in continued:
                remedy = f"give {path!r} and {_join(old, continued[name].name)!r} different names"
                raise self._refused(path, str(child.type), f"{name!r}, which another field is called", remedy)
            continued[name] = child
        return tuple(self._child(continued.get(item.name), item, old, _join(new, item.name)) for item in declared)

    def _child(self, stored: Field | None, declared: pa.Field, old: str, new: str) -> Field:
        if stored is not None:
            return self.field(stored, declared, _join(old, stored.name), new)
        fresh = fresh_field(declared, self._ids)
        self.declared.add(new)
        value = self._evolution.defaults.get(new)
        if value is None:
            if not declared.nullable:
                remedy = f"say what stored rows have there: SchemaEvolution(defaults={{{new!r}: ...}})"
                raise self._refused(new, "not there", f"{declared.type} without nulls", remedy)
            return fresh
        try:
            default = python_array([value], declared.type)
        except CONVERSION_ERRORS as error:
            raise InvalidInputError(
                f"{self._what}: the default of {new!r} must be of type {declared.type}, got {value!r}: {error}"
            ) from None
        return Field(fresh.id, fresh.name, fresh.type, fresh.nullable, default, fresh.children)

    def _refused(self, path: str, stored: str, declared: str, remedy: str) -> IncompatibleStateError:
        return IncompatibleStateError(_join(self._what, path), stored, declared, remedy)


def _same_nesting(stored: pa.DataType, declared: pa.DataType) -> bool:
    types = pa.types
    if types.is_fixed_size_list(stored) and types.is_fixed_size_list(declared):
        return bool(stored.list_size == declared.list_size)
    if types.is_map(stored) and types.is_map(declared):
        return bool(stored.keys_sorted == declared.keys_sorted)
    lists = types.is_list(stored) and (types.is_list(declared) or types.is_large_list(declared))
    return bool(lists or (types.is_large_list(stored) and types.is_large_list(declared)))


def _remedy(stored: pa.DataType, declared: pa.DataType) -> str:
    if not pa.types.is_nested(stored) and not pa.types.is_nested(declared) and widens(declared, stored):
        return f"declare {stored} or something wider; {declared} would lose values"
    return f"declare {stored}, or add a field of another name and fill it from this one"


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
