"""What a declaration of a function must satisfy, and the columns that it has by itself."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.functions.batch_function import BatchRunner
from arrowstate.functions.windows.function import WindowFunction
from arrowstate.runtime.graph import Graph
from arrowstate.schema.keys import to_type
from arrowstate.schema.operator_state import BroadcastStateDescriptor
from arrowstate.schema.times import timestamp_array
from arrowstate.schema.types import CONVERSION_ERRORS, check_type, is_mixed_up, type_parts
from arrowstate.state.backend.keyed import KeyedStateBackend


def check_stored(of: str, schema: pa.Schema) -> None:
    """Refuse columns that a store cannot have: those of an output table, of dead letters, or kept for a sink."""
    for field in schema:
        try:
            check_type(field.type, f"{of}: column {field.name!r}")
        except InvalidInputError as error:
            raise InvalidInputError(f"{error}; make it that before, with map_batches") from None
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice or not schema.names:
        given = ", ".join(schema.names) or "none"
        raise InvalidInputError(
            f"{of} needs at least one column, and none twice, got {given}; name them with map_batches"
        )


def check_exchanged(of: str, schema: pa.Schema) -> None:
    """Refuse columns whose rows cannot go to another subtask: Arrow takes no rows of views and run ends by number.

    Those of fixed-size lists in fixed-size lists it takes from other places.
    """
    for field in schema:
        for part in _layouts(field.type):
            if remedy := "a list of lists" if is_mixed_up(part) else _ROWS_FOR.get(part.id):
                raise InvalidInputError(
                    f"{of}: column {field.name!r} is {field.type}, and rows of {part} cannot go from one subtask to "
                    f"another; make it {remedy} before, with map_batches"
                )


_ROWS_FOR = {
    pa.string_view().id: "string",
    pa.binary_view().id: "binary",
    pa.list_view(pa.null()).id: "list",
    pa.large_list_view(pa.null()).id: "large_list",
    pa.run_end_encoded(pa.int32(), pa.null()).id: "the type of its values",
}


def _layouts(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and all that its arrays have inside."""
    for part in type_parts(kind):
        yield part
        if pa.types.is_dictionary(part):
            yield from _layouts(part.value_type)
        elif isinstance(part, pa.BaseExtensionType):
            yield from _layouts(part.storage_type)


def check_timestamps(of: str, field: pa.Field) -> None:
    """Refuse a column that can hold no event time."""
    try:
        timestamp_array(field.name, pa.array([], field.type), round_down=True)
    except ValueTypeError as error:
        raise InvalidInputError(
            f"{of} needs a timestamp or milliseconds since 1970 in {field.name!r}, got {field.type}; cast it first"
        ) from error


def check_keys(uid: str, given: list[pa.Schema], keys: list[list[str]], key: pa.Schema) -> None:
    """Refuse key columns of a second stream that cannot be the key."""
    for schema, names in zip(given[1:], keys[1:], strict=True):
        for name, field in zip(names, key, strict=True):
            try:
                to_type(pa.array([], schema.field(name).type), field.type)
            except TypeError as error:
                raise InvalidInputError(
                    f"operator {uid!r} has the key {field.name!r}, {field.type}, and the second stream has {name!r}, "
                    f"{schema.field(name).type}; cast one of them before"
                ) from error
            if name != field.name and field.name in schema.names:
                raise InvalidInputError(
                    f"operator {uid!r} gives the key of the second stream, {name!r}, the name {field.name!r}, which "
                    "another column of it has; rename that before"
                )


def check_late(uid: str, operator: Any, given: pa.Schema) -> None:
    """Refuse a side output for late rows whose columns are not those of the rows."""
    for field in operator.late.schema if isinstance(operator, WindowFunction) and operator.late is not None else ():
        if field.name not in given.names or given.field(field.name).type != field.type:
            raise InvalidInputError(
                f"operator {uid!r} has late rows in side output {operator.late.name!r}, whose columns must be of the "
                f"stream; it has no column {field.name!r} of {field.type}"
            )


def check_side_names(operator: Any, aside: str) -> None:
    """Refuse a side output with the name of the dead letters."""
    if aside in [tag.name for tag in operator.side_outputs]:
        raise InvalidInputError(f"{aside!r} is a side output of the function; name the dead letters with dead_letters=")


def row_columns(uid: str, given: list[pa.Schema], keys: list[list[str]]) -> pa.Schema:
    """Return the columns of the rows of all inputs, whose keys have the names of the first."""
    types: dict[str, pa.DataType] = {}
    for schema, names in zip(given, keys, strict=True):
        renamed = dict(zip(names, keys[0], strict=True))
        for field in schema:
            name = renamed.get(field.name, field.name)
            if types.setdefault(name, field.type) != field.type:
                raise InvalidInputError(
                    f"operator {uid!r} sets rows of both streams aside in one table, and {name!r} is {types[name]} in "
                    f"one of them and {field.type} in the other; cast or rename it before"
                )
    return pa.schema(list(types.items()))


def check_broadcast(graph: Graph, broadcast: Mapping[BroadcastStateDescriptor, Any]) -> None:
    """Refuse what is no table beside the rows."""
    for descriptor, stream in broadcast.items():
        if not isinstance(descriptor, BroadcastStateDescriptor):
            raise InvalidInputError(f"broadcast must be streams by BroadcastStateDescriptor, got {descriptor!r}")
        if stream.graph is not graph:
            raise InvalidInputError("the streams are of two jobs; make both with sources of one")
        if len(stream.schema) != 2:
            raise InvalidInputError(
                f"broadcast state {descriptor.name!r} needs a stream of two columns, key and value, got {stream!r}"
            )


class AsKey:
    """Gives key columns the names and the types of the key."""

    def __init__(self, uid: str, names: Sequence[str], key: pa.Schema) -> None:
        self._uid = uid
        self._fields = dict(zip(names, key, strict=True))

    def fits(self, given: pa.Schema) -> bool:
        """Whether they have them already."""
        types = {name: given.field(name).type for name in self._fields}
        return all(
            name == field.name and (types[name] == field.type or pa.types.is_dictionary(types[name]))
            for name, field in self._fields.items()
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            self._cast(name, column) if name in self._fields else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        names = [self._fields[name].name if name in self._fields else name for name in batch.schema.names]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _cast(self, name: str, column: pa.Array) -> pa.Array:
        field = self._fields[name]
        try:
            return to_type(column, field.type)
        except CONVERSION_ERRORS as error:
            raise InvalidInputError(
                f"operator {self._uid!r} has the key {field.name!r}, {field.type}, and a value of {name!r} of the "
                f"second stream does not fit: {error}"
            ) from None


def output_schema(operator: Any, key: pa.Schema, given: pa.Schema | None) -> pa.Schema:
    """Return the columns that a function emits, none if it emits nothing."""
    if given is not None:
        if not isinstance(given, pa.Schema):
            raise InvalidInputError(f"output_schema must be a pyarrow.Schema, got {type(given).__name__}")
        return pa.schema([field.with_nullable(True).remove_metadata() for field in given])
    if isinstance(operator, WindowFunction):
        # What fires says which columns it has, whether anything does or not.
        with BatchRunner(KeyedStateBackend(key=key, max_parallelism=1), copy.deepcopy(operator)) as runner:
            return runner.advance_watermark(0).schema
    return pa.schema([])


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of these columns."""
    # `pa.array([], type)` knows no run ends and no unions.
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
