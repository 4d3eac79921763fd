"""Which Arrow types keys and values may have, and plain Python values as Arrow data of such a type.

Arrow takes Python values more freely than it casts: 1.5 would become the integer 1, a datetime would lose its
microseconds or its time zone, bytes would become text, a misspelt field of a struct would be dropped. Here all of
these are refused, as the casts are; so is a number that a smaller float could only hold as infinity, which Arrow lets
pass in both.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError
from arrowstate.schema.conversion import check_keys, list_of, with_children
from arrowstate_formats.arrow_types import type_to_json

CONVERSION_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What a conversion raises that does not go."""

_HAS_OTHER_VALUES = int(pa.__version__.partition(".")[0]) < 21
"""Whether this PyArrow gives numbers of numpy for halves, and (before 20) pairs for maps, whatever it is asked for."""
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000}


def check_type(kind: Any, what: str) -> None:
    """Refuse a type that no run can hold, at any depth; `what` begins the message."""
    if not isinstance(kind, pa.DataType):
        raise InvalidInputError(f"{what} needs an Arrow type, got {kind!r}; pass for example pa.int64()")
    why = _why_not_stored(kind)
    if why is not None:
        raise InvalidInputError(f"{what}: {why}")


@functools.cache
def _why_not_stored(kind: pa.DataType) -> str | None:
    try:
        type_to_json(kind)
    except InvalidInputError as error:
        return str(error)
    for part in type_parts(kind):
        if pa.types.is_string_view(part) or pa.types.is_binary_view(part):
            return f"{part} is not stored; use string or binary"
        if pa.types.is_decimal(part) and not 0 <= part.scale <= part.precision:
            return f"{part} is not stored; use a scale of 0 to the precision"
        if (pa.types.is_fixed_size_list(part) and not part.list_size) or part == pa.binary(0):
            return f"{part} is not stored; use a size of at least 1"
        if is_mixed_up(part):
            return f"{part} is not stored: PyArrow mixes its rows up; use a list of lists, or one of all its values"
    return None


def is_mixed_up(kind: pa.DataType) -> bool:
    """Whether PyArrow gives the values of other rows where it takes some of a slice: 26.0 does so of such lists."""
    return bool(pa.types.is_fixed_size_list(kind) and pa.types.is_fixed_size_list(kind.value_type))


def type_parts(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and all types inside it."""
    yield kind
    if pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            yield from type_parts(kind.field(number).type)


def is_but_for_zones(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether two types differ at most in the time zones of timestamps, at any depth, and in nulls that one allows."""
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(kind):
        return bool(given.unit == kind.unit and (given.tz is None) == (kind.tz is None))
    if not pa.types.is_nested(kind) or given.id != kind.id or given.num_fields != kind.num_fields:
        return bool(given == kind)
    parts = [(given.field(number), kind.field(number)) for number in range(kind.num_fields)]
    return all(
        (one.name == other.name or not pa.types.is_struct(kind))
        and (other.nullable or not one.nullable)
        and is_but_for_zones(one.type, other.type)
        for one, other in parts
    )


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of a fixed size or not; a map is none."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether values are texts, in a form that is stored."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are bytes, of a fixed length or not."""
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def first_null(values: pa.Array) -> int:
    """Return the first row that is null; there is one."""
    return int(pc.index(values.is_null(), True).as_py())


def check_values(values: pa.Array) -> pa.Array:
    """Return the values if each is what its type says, which Arrow does not ask for but Parquet does.

    Raises one of `CONVERSION_ERRORS` at a text that is not UTF-8, a time of more than 24 hours, a date64 within a day,
    or a null in a nested field that is declared without nulls.
    """
    content, required = _to_check(values.type)
    for part in leaves(values) if content else ():
        if not (is_text(part.type) and _is_ascii(part)):
            part.validate(full=True)
    if required:
        _check_required(values)
    return values


@functools.cache
def _to_check(kind: pa.DataType) -> tuple[bool, bool]:
    parts = list(type_parts(kind))
    nested = [part for part in parts if pa.types.is_nested(part) and not pa.types.is_map(part)]
    fields = [part.field(number) for part in nested for number in range(part.num_fields)]
    content = any(pa.types.is_time(part) or pa.types.is_date64(part) or is_text(part) for part in parts)
    # The key of a map is declared without nulls by Arrow itself, which sees to it.
    keys = sum(pa.types.is_map(part) for part in parts)
    return content, sum(not field.nullable for field in fields) > keys


def _is_ascii(values: pa.Array) -> bool:
    """Whether no byte of texts is beyond ASCII, which is quicker to see than whether each text is UTF-8."""
    if not len(values):
        return True
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32 if values.type == pa.string() else np.int64)
    text = np.frombuffer(b"" if data is None else data, np.uint8)
    text = text[ends[values.offset] : ends[values.offset + len(values)]]
    return not len(text) or bool(text.max() < 128)


def _check_required(values: pa.Array) -> None:
    kind = values.type
    if not pa.types.is_nested(kind):
        return
    values = pa.concat_arrays([values.drop_null()])
    if pa.types.is_struct(kind):
        parts = [(field, values.field(number)) for number, field in enumerate(kind)]
    elif pa.types.is_map(kind):
        parts = [(kind.key_field, values.keys), (kind.item_field, values.items)]
    else:
        parts = [(kind.value_field, values.flatten())]
    for field, part in parts:
        if part.null_count and not field.nullable:
            raise TypeError(f"a null in {field.name!r} of {kind}, which is declared without nulls")
        _check_required(part)


def leaves(values: pa.Array) -> Iterator[pa.Array]:
    """Yield what an array holds at the ends of its nesting, without what lies under a null."""
    kind = values.type
    if not pa.types.is_nested(kind):
        yield values
        return
    if pa.types.is_map(kind):
        values = pa.concat_arrays([values.drop_null()])
        parts = [values.keys, values.items]
    else:
        parts = values.flatten() if pa.types.is_struct(kind) else [values.flatten()]
    for part in parts:
        yield from leaves(part)


def safe_cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array in another type as Arrow's safe cast does, without numbers that became infinite on the way.

    Fields of structs are found by their names; one that was not given is null. Raises one of `CONVERSION_ERRORS` where
    a value does not fit, or a field is given that the type has not, which Arrow would drop.
    """
    unknown = _unknown_field(values.type, kind)
    if unknown:
        raise TypeError(f"no field {unknown!r} in {kind}")
    out = cast_by_names(values, kind)
    if _narrow_floats(kind) and sum(map(_infinite, leaves(out))) > sum(map(_infinite, leaves(values))):
        raise OverflowError(f"a number is outside of the range of {kind}")
    return out


def cast_by_names(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array in another type as Arrow's safe cast does; fields of structs may come in any order."""
    ordered = _in_order_of(kind, values.type)
    if pa.types.is_nested(values.type) and pa.null() in type_parts(values.type):
        # Of a slice, Arrow gives what is below a struct the wrong length where that has no type.
        values = pa.concat_arrays([values])
    out = pc.cast(values if ordered == values.type else _reordered(values, ordered), kind, safe=True)
    if any(map(pa.types.is_map, type_parts(kind))):
        _count_nulls_of_keys(out)
    return out


def _count_nulls_of_keys(values: pa.Array) -> None:
    """Have Arrow know that the keys of maps are no nulls: PyArrow before 26 aborts where it has not counted them."""
    kind = values.type
    if pa.types.is_struct(kind):
        parts = [values.field(number) for number in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        parts = [values.keys, values.items]
        check_keys(parts[0])
    else:
        parts = [values.values] if pa.types.is_nested(kind) else []
    for part in parts:
        _count_nulls_of_keys(part)


@functools.cache
def _in_order_of(kind: pa.DataType, given: pa.DataType) -> pa.DataType:
    """Return a given type whose structs have their fields in the order of another type.

    An early PyArrow casts structs of no other order (19 does not, 26 does).
    """
    types = pa.types
    if types.is_struct(given) and types.is_struct(kind) and len(set(given.names)) == len(given.names):
        fields = [given.field(name) for name in kind.names if name in given.names]
        return pa.struct([part.with_type(_in_order_of(kind.field(part.name).type, part.type)) for part in fields])
    if types.is_map(given) and types.is_map(kind):
        key, item = given.key_field, given.item_field
        key = key.with_type(_in_order_of(kind.key_type, key.type))
        return pa.map_(key, item.with_type(_in_order_of(kind.item_type, item.type)), given.keys_sorted)
    if is_list(given) and is_list(kind):
        return list_of(given, given.value_field.with_type(_in_order_of(kind.value_type, given.value_type)))
    return given


def _reordered(values: pa.Array, ordered: pa.DataType) -> pa.Array:
    """Return an array with the fields of its structs in the order of a type that has the same ones."""
    if values.type == ordered:
        return values
    if pa.types.is_struct(ordered):
        parts = [_reordered(values.field(field.name), field.type) for field in ordered]
        return pa.StructArray.from_arrays(parts, fields=list(ordered), mask=values.is_null())
    inner = [ordered.key_type, ordered.item_type] if pa.types.is_map(ordered) else [ordered.value_type]
    return with_children(values, lambda part, number: _reordered(part, inner[number]))


def exactly(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values as those of another type; ArrowInvalid if one is none of it, such as a time of day of dates."""
    made = pc.cast(values, kind, safe=True)
    if not made.cast(values.type).equals(values):
        raise pa.ArrowInvalid(f"not all values of type {values.type} are values of type {kind}")
    return made


@functools.cache
def _unknown_field(given: pa.DataType, kind: pa.DataType) -> str:
    """Return the path of a field of structs that another type has not, "" if there is none."""
    if not pa.types.is_nested(kind) or not pa.types.is_nested(given):
        return ""
    if pa.types.is_map(kind) and pa.types.is_map(given):
        # The names of keys and items are of no account.
        pairs = ((given.key_type, kind.key_type), (given.item_type, kind.item_type))
        return next(filter(None, (_unknown_field(*pair) for pair in pairs)), "")
    if not pa.types.is_struct(kind) or not pa.types.is_struct(given):
        parts = range(min(given.num_fields, kind.num_fields))
        return next(filter(None, (_unknown_field(given.field(i).type, kind.field(i).type) for i in parts)), "")
    known = {field.name: field.type for field in kind}
    for field in given:
        if field.name not in known:
            return field.name
        inner = _unknown_field(field.type, known[field.name])
        if inner:
            return f"{field.name}.{inner}"
    return ""


def _infinite(values: pa.Array) -> int:
    if not pa.types.is_floating(values.type):
        return 0
    return int(np.isinf(values.drop_null().to_numpy(zero_copy_only=False)).sum())


@functools.cache
def _narrow_floats(kind: pa.DataType) -> bool:
    return any(part in (pa.float32(), pa.float16()) for part in type_parts(kind))


def as_arrow(values: Any) -> Any:
    """Return what has Arrow's PyCapsule protocol, such as a series or frame of Polars or pandas, as an array of Arrow.

    A frame becomes a StructArray of its columns. Arrow's own arrays and tables, and what has no such protocol, stay as
    they are. The protocol is Arrow's (https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html).
    """
    if isinstance(values, (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table, np.ndarray)):
        return values
    if hasattr(values, "collect_batches"):
        # A lazy frame of Polars, of which an early one has no protocol.
        values = values.collect()
    if hasattr(values, "__arrow_c_stream__"):
        return pa.chunked_array(values).combine_chunks()
    # The series of pandas before 3.0 have no protocol, and PyArrow knows them.
    is_of_pandas = type(values).__module__.startswith("pandas.")
    return pa.array(values) if is_of_pandas or hasattr(values, "__arrow_c_array__") else values


def numpy_array(values: np.ndarray[Any, Any]) -> pa.Array:
    """Return a NumPy array as one of Arrow, with memory of its own: its owner may write to it afterwards."""
    return pa.array(values.copy())


def python_values(values: pa.Array | pa.RecordBatch) -> list[Any]:
    """Return the values of an array, or the rows of a batch, as Python has them, each map as a dict.

    Raises a KeyError where a map has a key twice.
    """
    if not _HAS_OTHER_VALUES:
        return cast(list[Any], values.to_pylist(maps_as_pydicts="strict"))
    array = values.to_struct_array() if isinstance(values, pa.RecordBatch) else values
    return [_plain_value(value, array.type) for value in array.to_pylist()]


def _plain_value(value: Any, kind: pa.DataType) -> Any:
    if value is None or not pa.types.is_nested(kind):
        return float(value) if isinstance(value, np.float16) else value
    if pa.types.is_struct(kind):
        return {field.name: _plain_value(value[field.name], field.type) for field in kind}
    if not pa.types.is_map(kind):
        return [_plain_value(item, kind.value_type) for item in value]
    found = {}
    for key, item in value:
        if key in found:
            raise KeyError(f"the key {key!r} stands twice in a map")
        found[key] = _plain_value(item, kind.item_type)
    return found


def python_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return Python values as an array of a type; raises one of `CONVERSION_ERRORS` where a value does not fit."""
    try:
        array = pa.array(values, type=kind)
    except CONVERSION_ERRORS:
        plain = [_without_numpy(value) for value in values]
        if all(one is other for one, other in zip(plain, values, strict=True)):
            raise
        values = plain
        array = pa.array(values, type=kind)
    _check_exact(values, kind)
    return check_values(array)


def python_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return one Python value as a scalar of a type; raises one of `CONVERSION_ERRORS` if it does not fit."""
    try:
        scalar = pa.scalar(value, kind)
    except CONVERSION_ERRORS:
        plain = _without_numpy(value)
        if plain is value:
            raise
        value = plain
        scalar = pa.scalar(value, kind)
    _check_exact((value,), kind)
    if any(_to_check(kind)):
        # Of the scalar of a list that holds a null list pa.array makes no array.
        check_values(pa.repeat(scalar, 1))
    return scalar


def scalar_text(scalar: pa.Scalar) -> str:
    """Return a scalar for a message, also one that has no counterpart in Python."""
    try:
        return str(scalar)
    except (ValueError, OverflowError):
        if pa.types.is_nested(scalar.type):
            return f"a {scalar.type} that has no counterpart in Python"
        # Arrow writes it as an array of one.
        return pa.repeat(scalar, 1).to_string().strip("[] \n")


def shown_scalar(scalar: pa.Scalar) -> str:
    """Return a scalar for a message as Python writes it in code, where Python has a counterpart of it."""
    try:
        return repr(scalar.as_py())
    except (ValueError, OverflowError):
        return scalar_text(scalar)


def shown_misfit(value: Any, kind: pa.DataType, where: str = "") -> str:
    """Return a value that does not fit a type for a message, and where it is; of a nested one the part at fault."""
    if isinstance(value, pa.Scalar):
        try:
            value = value.as_py()
        except (ValueError, OverflowError):  # It has no counterpart in Python.
            return f"{scalar_text(value)}{where}"
    found = _path_of_misfit(value, kind).lstrip(".: ")
    return f"{value!r}{where}; {found}" if found else f"{value!r}{where}"


def _path_of_misfit(value: Any, kind: pa.DataType) -> str:
    """Return the path below a nested value of the first part that does not convert, and what it is; "" for none."""
    parts: Iterator[tuple[str, Any, pa.Field]]
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        unknown = next((name for name in value if name not in kind.names), None)
        if unknown is not None:
            return f": no field {unknown!r}"
        parts = ((f".{field.name}", value.get(field.name), field) for field in kind)
    elif pa.types.is_map(kind) and isinstance(value, (Mapping, list)):
        entries = value.items() if isinstance(value, Mapping) else value
        parts = ((f"[{key!r}]", item, kind.item_field) for key, item in entries)
    elif pa.types.is_nested(kind) and not pa.types.is_struct(kind) and isinstance(value, (list, tuple)):
        parts = ((f"[{place}]", item, kind.value_field) for place, item in enumerate(value))
    else:
        return ""
    try:
        for path, item, field in parts:
            if item is None and not field.nullable:
                return f"{path} is null"
            try:
                python_array([item], field.type)
            except CONVERSION_ERRORS:
                return path + (_path_of_misfit(item, field.type) or f" is {item!r}, not {field.type}")
    except CONVERSION_ERRORS:  # Entries of a map that are no pairs.
        return ""
    return ""


def _without_numpy(value: Any) -> Any:
    """Return a value with Python's integers for NumPy's, which Arrow does not take for decimals and times."""
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Mapping):
        plain = {name: _without_numpy(item) for name, item in value.items()}
        return plain if any(plain[name] is not item for name, item in value.items()) else value
    if isinstance(value, (list, tuple)):
        items = [_without_numpy(item) for item in value]
        changed = any(one is not other for one, other in zip(items, value, strict=True))
        return type(value)(items) if changed else value
    return value


def _check_exact(values: Sequence[Any], kind: pa.DataType) -> None:
    """Raise TypeError where Arrow took a value but lost a part of it, or took it for another type's."""
    if pa.types.is_struct(kind):
        rows = [_fields_by_name(value, kind) for value in values if value is not None]
        names = {field.name for field in kind}
        for row in rows:
            if not names >= row.keys():
                raise TypeError(f"no field {', '.join(map(repr, row.keys() - names))} in {kind}")
        for field in kind:
            _check_exact([row.get(field.name) for row in rows], field.type)
    elif pa.types.is_map(kind):
        entries = [
            entry
            for value in values
            if value is not None
            for entry in (value.items() if isinstance(value, Mapping) else value)
        ]
        _check_exact([key for key, _ in entries], kind.key_type)
        _check_exact([item for _, item in entries], kind.item_type)
    elif pa.types.is_nested(kind):
        for value in values:
            if isinstance(value, (str, bytes)):
                raise TypeError(f"{value!r} is no {kind}")
        _check_exact([item for value in values if value is not None for item in value], kind.value_type)
    else:
        _check_leaves(values, kind)


def _fields_by_name(value: Any, kind: pa.DataType) -> Mapping[str, Any]:
    """Return a struct as a mapping: Arrow takes a tuple of all fields and a list of pairs too."""
    if isinstance(value, pa.Scalar):
        return {}
    if isinstance(value, tuple):
        return dict(zip([field.name for field in kind], value, strict=True))
    return value if isinstance(value, Mapping) else dict(value)


def _check_leaves(values: Sequence[Any], kind: pa.DataType) -> None:
    # Looking at types instead of values keeps long columns of plain numbers and texts cheap.
    types = set(map(type, values))
    wrong = _never(kind)
    inexact = {each for each in types if issubclass(each, wrong)}
    if inexact:
        raise TypeError(f"{next(value for value in values if type(value) in inexact)!r} is no {kind}")
    if pa.types.is_temporal(kind):
        if not types <= {int, type(None)}:
            for value in values:
                if _loses_time(value, kind):
                    raise TypeError(f"{value!r} does not fit {kind}")
    elif kind in (pa.float32(), pa.float16()):
        # The converted values say it: where the range ends is a matter of rounding.
        for value, stored in zip(values, pa.array(values, kind).to_pylist(), strict=True):
            if stored in _INFINITIES and not isinstance(value, pa.Scalar) and value not in _INFINITIES:
                raise OverflowError(f"{value!r} does not fit {kind}")
    elif pa.types.is_decimal(kind):
        # Of a decimal with more digits than its integers can have Arrow may take what is left of an overflow.
        most = 76 if pa.types.is_decimal256(kind) else 38
        for value in values:
            if isinstance(value, decimal.Decimal) and len(value.as_tuple().digits) > most:
                raise TypeError(f"{value!r} does not fit {kind}")


_INFINITIES = (math.inf, -math.inf)
_FRACTIONS = (float, np.floating, decimal.Decimal)
_TRUTHS = (bool, np.bool_)


@functools.cache
def _never(kind: pa.DataType) -> tuple[type, ...]:
    """Return the types of Python values that are none of a type, though Arrow takes some of them."""
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return (*_FRACTIONS, *_TRUTHS)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _TRUTHS
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return (bytes, bytearray, memoryview)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return (str,)
    return ()


def _loses_time(value: Any, kind: pa.DataType) -> bool:
    if pa.types.is_date(kind):
        return isinstance(value, datetime.datetime)
    if isinstance(value, (datetime.datetime, datetime.time)):
        zoned = pa.types.is_timestamp(kind) and kind.tz is not None
        if (value.tzinfo is not None) != zoned:
            return True
    unit = getattr(kind, "unit", "ns")
    # Those of pandas have nanoseconds too.
    nanoseconds = getattr(value, "nanoseconds" if isinstance(value, datetime.timedelta) else "nanosecond", 0)
    part = value.microseconds if isinstance(value, datetime.timedelta) else getattr(value, "microsecond", 0)
    return bool(part % _MICROSECONDS.get(unit, 1)) or bool(nanoseconds and unit != "ns")
