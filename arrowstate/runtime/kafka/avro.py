"""Messages in Avro: a record each, with the id of its schema before it where a registry is used."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError, MissingDependencyError
from arrowstate.runtime.kafka.avro_defaults import with_values
from arrowstate.runtime.kafka.flat_records import Plan, decode_flat, plan_of
from arrowstate.runtime.kafka.formats import (
    OF_MESSAGES,
    Bytes,
    Decode,
    Encode,
    Format,
    check_columns,
    checked_columns,
    in_parts,
)
from arrowstate.runtime.kafka.registry import HEADER, NoReferenceError, SchemaRegistry
from arrowstate.schema.conversion import with_children
from arrowstate.schema.nanoseconds import local_times
from arrowstate.schema.times import rounded_down
from arrowstate.schema.types import is_list, python_values, safe_cast

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
}
_UNITS = ("day", "s", "ms", "us", "ns")
"""The units of times as Arrow's functions call them, the widest first."""


class AvroFormat(Format):
    """An Avro record, with a column for each of its fields.

    With a registry each message has the id of the schema that it was written with, in Confluent's form: a zero byte,
    the id in four bytes, then the record. A record of another schema is read by Avro's rules of resolution: fields that
    are missing get their defaults, and those without a column are passed over. One that cannot be resolved does not
    fit, nor one whose times have another unit.

    A sink writes a time without a zone as one of UTC, and cuts digits that the schema's unit does not have. A value
    that the schema cannot hold, such as a number beyond its type, is an error.

    Parameters
    ----------
    avro : str or mapping
        The schema of the records, as JSON text or as what it says: a record. Columns follow from it.
    registry : SchemaRegistry, optional
        Where the schemas of messages are. Without it messages have no id, and all are written with `avro`.
    register : bool, default False
        Whether a sink registers the schema under its subject, `<topic>-value` or `<topic>-key`; by default it must be
        there.

    Raises
    ------
    MissingDependencyError
        If fastavro is not installed: `pip install 'arrowstate[kafka]'`.
    InvalidInputError
        If it is no schema of a record, or has a field that is no column: a union of several types, or a record in
        itself. If the default of a field does not fit its type.

    Examples
    --------
    >>> from arrowstate.runtime import AvroFormat
    >>> payment = '''{"type": "record", "name": "Payment", "fields": [
    ...     {"name": "user", "type": "string"}, {"name": "amount", "type": ["null", "long"]}]}'''
    >>> AvroFormat(payment).schema
    user: string not null
    amount: int64
    """

    schema: pa.Schema

    def __init__(
        self, avro: str | Mapping[str, Any], *, registry: SchemaRegistry | None = None, register: bool = False
    ) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise MissingDependencyError("AvroFormat", "fastavro", "kafka") from error
        try:
            self.avro = json.loads(avro) if isinstance(avro, str) else dict(avro)
            parsed = fastavro.parse_schema(self.avro)
        except Exception as error:
            raise InvalidInputError(f"it is no schema of Avro: {type(error).__name__}: {error}") from error
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise InvalidInputError(f"a message needs a schema of a record, got {str(self.avro)[:200]}")
        self.registry = registry
        self.register = register
        # There each name has its namespace.
        self.schema = checked_columns("AvroFormat", pa.schema(_fields(parsed, {}, ())))
        _own(self.avro)

    def decoder(self) -> Decode:
        """Return a function that decodes messages."""
        return AvroDecoder(self)

    def encoder(self, schema: pa.Schema, subject: str) -> Encode:
        """Return a function that makes messages; the rows need a column for each field without a default."""
        import fastavro

        names = [
            field["name"] for field in self.avro["fields"] if field["name"] in schema.names or "default" not in field
        ]
        check_columns(pa.schema([self.schema.field(name) for name in names]), schema, "AvroFormat")
        plain = _own(self.avro)
        types = [self.schema.field(name).type for name in names]
        for name, type in zip(names, types, strict=True):
            _as_written(pa.nulls(0, schema.field(name).type), type, name)

        @functools.cache
        def header() -> bytes:
            if self.registry is None:
                return b""
            return HEADER.pack(0, self.registry.id_of(subject, json.dumps(self.avro), "AVRO", register=self.register))

        def encode(rows: pa.RecordBatch) -> Bytes:
            made = []
            first = header()
            columns = [_as_written(rows.column(name), type, name) for name, type in zip(names, types, strict=True)]
            try:
                for row in python_values(pa.RecordBatch.from_arrays(columns, names=names)):
                    text = io.BytesIO()
                    text.write(first)
                    fastavro.schemaless_writer(text, plain, row)
                    made.append(text.getvalue())
            except OF_MESSAGES as error:
                raise InvalidInputError(f"a row does not fit the Avro schema of {subject}: {error}") from error
            return made

        return encode


class AvroDecoder:
    """Decodes records; it asks the registry once for each schema."""

    def __init__(self, format: AvroFormat) -> None:
        import fastavro
        from fastavro.read import SchemaResolutionError
        from fastavro.schema import SchemaParseException

        self._read = fastavro.schemaless_reader
        self._unresolved, self._no_schema = SchemaResolutionError, SchemaParseException
        self._registry = format.registry
        self._schema = format.schema
        self._own = _own(format.avro)
        self._units = _units_of(*_parsed(format.avro), with_aliases=True)
        self._written: dict[int, Any] = {}
        "By id the schema that messages were written with, or what is wrong with it."
        self._plan = plan_of(self._own, self._own, format.schema)
        self._plans: dict[int, Plan | None] = {}

    def __call__(self, messages: Bytes) -> tuple[pa.RecordBatch, dict[int, Exception]]:
        """Return a row for each message, and the errors of those that do not fit."""
        rows = self._flat(messages)
        if rows is not None:
            return rows, {}
        return in_parts(messages, self._decoded, self._schema)

    def _flat(self, messages: Bytes) -> pa.RecordBatch | None:
        """Return the rows of messages of one schema whose fields are plain; None if they are not that."""
        first = next((message for message in messages if message is not None), None)
        if first is None:
            return None
        if self._registry is None:
            return None if self._plan is None else decode_flat(messages, 0, self._plan)
        header = first[: HEADER.size]
        if len(header) < HEADER.size or header[0]:
            return None
        if any(message is not None and not message.startswith(header) for message in messages):
            return None
        id = HEADER.unpack(header)[1]
        if id not in self._plans:
            try:
                self._plans[id] = plan_of(self._writer(id), self._own, self._schema)
            except ValueError:
                return None
        plan = self._plans[id]
        return None if plan is None else decode_flat(messages, HEADER.size, plan)

    def _decoded(self, messages: Sequence[bytes | None]) -> pa.RecordBatch:
        found: list[Mapping[str, Any]] = [{}] * len(messages)
        for place, message in enumerate(messages):
            if message is not None:
                found[place] = self._record(message)
        return pa.RecordBatch.from_pylist(found, schema=pa.schema([item.with_nullable(True) for item in self._schema]))

    def _record(self, message: bytes) -> Mapping[str, Any]:
        writer, start = self._own, 0
        if self._registry is not None:
            if len(message) < HEADER.size or message[0]:
                raise ValueError("it has no id of a schema: the first byte is not zero")
            writer, start = self._writer(HEADER.unpack_from(message)[1]), HEADER.size
        text = io.BytesIO(message)
        text.seek(start)
        try:
            row = self._read(text, writer, self._own)
        except self._unresolved as error:
            raise ValueError(f"SchemaResolutionError: {error}") from error
        if text.tell() != len(message):
            raise ValueError(f"{len(message) - text.tell()} bytes are left after the record")
        if not isinstance(row, Mapping):
            raise ValueError("it is no record")
        return row

    def _writer(self, id: int) -> Any:
        if id not in self._written:
            self._written[id] = self._registered(id)
        written = self._written[id]
        if isinstance(written, Exception):
            raise written
        return written

    def _registered(self, id: int) -> Any:
        """Return a schema of the registry, or why messages cannot be read with it."""
        assert self._registry is not None
        try:
            found = self._registry.schema(id)
        except NoReferenceError as error:
            return ValueError(f"schema {id} cannot be used: {error}")
        if found is None:
            return ValueError(f"{self._registry!r} has no schema {id}")
        if found.kind != "AVRO":
            return ValueError(f"schema {id} is {found.kind}, not Avro")
        try:
            schemas = [json.loads(text) for text in (*found.references, found.text)]
            units = _units_of(*_parsed(*schemas))
            plain = _without_logical(*schemas)
        except (*OF_MESSAGES, self._no_schema) as error:
            return ValueError(f"schema {id} is no schema of Avro: {type(error).__name__}: {error}")
        # Avro's rules do not look at units, and would take milliseconds for microseconds.
        for place, unit in units.items():
            own = self._units.get(place, unit)
            if own != unit:
                return ValueError(
                    f"field {place!r} is {unit} in schema {id}, and {own} in the schema that it is read with"
                )
        return plain


def _as_written(column: pa.Array, type: pa.DataType, name: str) -> pa.Array:
    """Return a column as Avro has it: times as counts of their units, numbers within the bounds of their type."""
    given = column.type
    try:
        if pa.types.is_timestamp(given) and (pa.types.is_timestamp(type) or pa.types.is_date(type)):
            if given.tz is not None and getattr(type, "tz", None) is None:
                column = local_times(column)
            column = _floored(column, type)
        elif pa.types.is_time(given) and pa.types.is_time(type):
            column = _floored(column, type)
        elif pa.types.is_integer(type) and (pa.types.is_integer(given) or pa.types.is_floating(given)):
            return column.cast(type)
        elif pa.types.is_floating(given) and pa.types.is_floating(type):
            return safe_cast(column, type)
        elif any(test(given) and test(type) for test in (pa.types.is_date, pa.types.is_decimal)):
            column = column.cast(type)
        elif pa.types.is_boolean(type) and not (pa.types.is_boolean(given) or pa.types.is_null(given)):
            raise InvalidInputError(f"column {name!r} of the rows has {given}, and the Avro schema {type}")
        elif _is_alike(given, type):
            parts = _parts_of(type, given)
            return with_children(column, lambda part, number: _as_written(part, parts[number], name))
    except (pa.ArrowInvalid, OverflowError) as error:
        raise InvalidInputError(f"column {name!r} of the rows has a value that is no {type}: {error}") from None
    is_count = pa.types.is_temporal(type) and pa.types.is_temporal(given)
    return column.cast(pa.int32() if type.bit_width == 32 else pa.int64()) if is_count else column


def _parts_of(type: pa.DataType, given: pa.DataType) -> list[pa.DataType]:
    """Return as which types the parts of a struct, a map or a list are written."""
    if pa.types.is_map(type):
        return [type.key_type, type.item_type]
    if not pa.types.is_struct(type):
        return [type.value_type]
    own = {field.name: field.type for field in type}
    # A part that the schema does not have is not written.
    return [own.get(field.name, field.type) for field in given]


def _floored(column: pa.Array, type: pa.DataType) -> pa.Array:
    """Return times in the unit of a type; finer digits are cut."""
    unit = "day" if pa.types.is_date(type) else type.unit
    if _UNITS.index(unit) < _UNITS.index(column.type.unit):
        column = rounded_down(column, unit)
    return column.cast(type)


def _is_alike(given: pa.DataType, type: pa.DataType) -> bool:
    """Whether both are structs, maps or lists."""
    tests = (pa.types.is_struct, pa.types.is_map, lambda it: is_list(it) or pa.types.is_fixed_size_list(it))
    return any(test(given) and test(type) for test in tests)


def _units_of(
    schema: Any, named: Mapping[str, Any], path: str = "", within: tuple[str, ...] = (), *, with_aliases: bool = False
) -> dict[str, str]:
    """Return by the path of their field the logical types of times; with aliases, by the paths of these too."""
    look = functools.partial(_units_of, named=named, with_aliases=with_aliases)
    if isinstance(schema, list):
        return {place: unit for item in schema for place, unit in look(item, path=path, within=within).items()}
    if isinstance(schema, str):
        return look(named[schema], path=path, within=within) if schema in named else {}
    if schema.get("name") in within:
        return {}
    if schema.get("logicalType") in _LOGICAL:
        return {path: schema["logicalType"]}
    inner = (*within, schema["name"]) if "name" in schema else within
    found: dict[str, str] = {}
    fields = schema.get("fields", ())
    # A name goes before an alias of another field.
    places = [(alias, field) for field in fields if with_aliases for alias in field.get("aliases", ())]
    for name, field in [*places, *((field["name"], field) for field in fields)]:
        found.update(look(field["type"], path=f"{path}.{name}" if path else name, within=inner))
    for part in ("items", "values"):
        if part in schema:
            found.update(look(schema[part], path=path, within=inner))
    return found


def _own(avro: Any) -> Any:
    """Return the schema of a format as records are read and written with it."""
    return with_values(*_parsed(_stripped(avro)))


def _without_logical(*schemas: Any) -> Any:
    """Return the last schema as fastavro has it, without logical types: Arrow makes columns of plain numbers."""
    return _parsed(*map(_stripped, schemas))[0]


def _parsed(*schemas: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the last schema as fastavro has it, and all that it refers to, by name."""
    import fastavro

    names: dict[str, Any] = {}
    parsed = None
    for schema in schemas:
        parsed = fastavro.parse_schema(schema, named_schemas=names)
    return parsed, names


def _stripped(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_stripped(item) for item in schema]
    if isinstance(schema, dict):
        # What a decimal is of bytes only its logical type says.
        drop = "logicalType" if schema.get("logicalType") != "decimal" else None
        return {
            # The names in the default of a map are no words of a schema.
            name: value if name == "default" else _stripped(value)
            for name, value in schema.items()
            if name != drop
        }
    return schema


def _fields(record: Mapping[str, Any], named: dict[str, Any], within: tuple[str, ...]) -> list[pa.Field]:
    """Return a column for each field of a record."""
    name = record.get("name", "")
    if name in within:
        raise InvalidInputError(f"record {name!r} is part of itself, which is no column")
    named[name] = record
    found = []
    for field in record["fields"]:
        type, nullable = _column(field["type"], named, (*within, name), field["name"])
        found.append(pa.field(field["name"], type, nullable=nullable))
    return found


def _column(schema: Any, named: dict[str, Any], within: tuple[str, ...], name: str) -> tuple[pa.DataType, bool]:
    """Return the type of a column, and whether it may be null."""
    if isinstance(schema, list):
        others = [item for item in schema if item != "null"]
        if len(others) != 1:
            raise InvalidInputError(f"field {name!r} is a union of {len(others)} types, which is no column")
        return _column(others[0], named, within, name)[0], len(others) < len(schema)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema], schema == "null"
        if schema not in named:
            raise InvalidInputError(f"field {name!r} is of type {schema!r}, which the schema does not say")
        schema = named[schema]
    kind, logical = schema["type"], schema.get("logicalType")
    if "name" in schema:
        named[schema["name"]] = schema
    if logical == "decimal":
        digits, scale = schema["precision"], schema.get("scale", 0)
        if digits > 76:
            raise InvalidInputError(f"field {name!r} is a decimal of {digits} digits, and a column has 76 at most")
        return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale), False
    if logical in _LOGICAL:
        return _LOGICAL[logical], False
    if kind == "record":
        return pa.struct(_fields(schema, named, within)), False
    if kind == "array":
        type, nullable = _column(schema["items"], named, within, name)
        return pa.list_(pa.field("item", type, nullable=nullable)), False
    if kind == "map":
        type, nullable = _column(schema["values"], named, within, name)
        return pa.map_(pa.string(), pa.field("value", type, nullable=nullable)), False
    if kind == "enum":
        return pa.string(), False
    if kind == "fixed":
        return pa.binary(schema["size"]), False
    return _column(kind, named, within, name)
