"""Side outputs: rows that a function hands to another stream than the one it emits.

What a function handed over in a call of its runner belongs to that call: it is there if the call went well, and gone if
it did not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from arrowstate.errors import InvalidInputError, ProcessElementError
from arrowstate.schema.plain import keeping
from arrowstate.schema.types import CONVERSION_ERRORS, python_array
from arrowstate_formats.names import check_operator_uid


@dataclass(frozen=True, slots=True)
class OutputTag:
    """A side output of a function: its name, and the columns of its rows.

    A function names its tags in `side_outputs`, and sends rows by `context.output(tag, rows)`. In a job they are a
    stream: `stream.side_output(tag)`. Rows for a tag that nobody reads are left out.

    Parameters
    ----------
    name
        Unique among those of the function.
    schema
        The columns, at least one; each may be null.

    Raises
    ------
    InvalidInputError
        If the name is not allowed, or the schema has no columns.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> REFUSED = arrowstate.OutputTag("refused", pa.schema([("user", pa.string()), ("why", pa.string())]))
    >>> class Payments(arrowstate.KeyedProcessFunction):
    ...     side_outputs = (REFUSED,)
    ...
    ...     def process_element(self, value, context, out):
    ...         if value.amount < 0:
    ...             context.output(REFUSED, (value.user, "negative"))
    ...         else:
    ...             out.collect(value.amount)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> with arrowstate.KeyedProcessRunner(backend, Payments(), output=pa.int64()) as process:
    ...     paid = process.process(pa.record_batch({"user": ["ann", "bob"], "amount": [3, -1]}))
    ...     paid.to_pylist(), process.side_output(REFUSED).to_pylist()
    ([3], [{'user': 'bob', 'why': 'negative'}])
    """

    name: str
    schema: pa.Schema

    def __post_init__(self) -> None:
        check_operator_uid(self.name)
        if not isinstance(self.schema, pa.Schema) or not len(self.schema):
            raise InvalidInputError(f"side output {self.name!r} needs a pyarrow.Schema with columns, got {self.schema}")
        object.__setattr__(self, "schema", nullable(self.schema))

    def __repr__(self) -> str:
        return f"<OutputTag {self.name!r}: {', '.join(f'{field.name} {field.type}' for field in self.schema)}>"


G = TypeVar("G")
"""What is kept of a side output during a call."""


class Sides(Generic[G]):
    """What a function hands to its side outputs."""

    def __init__(self, function: object) -> None:
        self._of = type(function).__name__
        # What has the methods of a function may do without the class.
        tags: Sequence[Any] = getattr(function, "side_outputs", ())
        wrong = [tag for tag in tags if not isinstance(tag, OutputTag)]
        if wrong:
            raise InvalidInputError(f"side_outputs of {self._of} must be OutputTags, got {wrong[0]!r}")
        self._tags = {tag.name: tag for tag in tags}
        if len(self._tags) < len(tags):
            raise InvalidInputError(f"side_outputs of {self._of} must have different names, got {list(tags)}")
        self._given: dict[str, G] | None = None
        self._last: dict[str, pa.Table] = {}

    @contextmanager
    def call(self) -> Iterator[None]:
        """Take what is handed over within, and keep it until the next call if all goes well."""
        self._given, self._last = {}, {}
        try:
            yield
            # What does not fit is an error of the call.
            self._last = {name: self.table(self._tags[name], given) for name, given in self._given.items()}
        finally:
            self._given = None

    def last(self, tag: OutputTag) -> pa.Table:
        """Return what was handed over in the last call."""
        self._check(tag)
        return self._last.get(tag.name, tag.schema.empty_table())

    def table(self, tag: OutputTag, given: G) -> pa.Table:
        """Return the rows of a side output."""
        raise NotImplementedError  # Abstract: batches and single values become a table in their own ways.

    def _check(self, tag: Any) -> None:
        known = self._tags.get(tag.name) if isinstance(tag, OutputTag) else None
        if known is None or (known is not tag and known != tag):
            declared = ", ".join(map(repr, self._tags.values())) or "none"
            raise InvalidInputError(
                f"{self._of} has no side output {tag!r}; it has {declared}: name it in side_outputs"
            )

    def _open(self, tag: OutputTag) -> dict[str, G]:
        self._check(tag)
        if self._given is None:
            raise InvalidInputError(f"side output {tag.name!r} takes rows while rows are processed or timers fire")
        return self._given


class BatchSides(Sides[list[pa.RecordBatch]]):
    """Those of a batch function."""

    def add(self, tag: OutputTag, rows: Sequence[pa.RecordBatch]) -> None:
        """Take rows, which must fit."""
        batches = self._open(tag).setdefault(tag.name, [])
        batches += [fitted(batch, tag.schema, f"side output {tag.name!r}") for batch in rows]

    def table(self, tag: OutputTag, given: list[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(given, tag.schema)


class ElementSides(Sides[tuple[list[Any], list[int]]]):
    """Those of a process function, which hands over a value at a time; with each goes the row that it comes from."""

    def __init__(self, function: object) -> None:
        super().__init__(function)
        # Until the batch ends, the function may change what it has handed over.
        self._kept = {name: keeping(_kind_of(tag)) for name, tag in self._tags.items()}

    def add(self, tag: OutputTag, value: Any, row: int) -> None:
        """Take a value."""
        values, rows = self._open(tag).setdefault(tag.name, ([], []))
        values.append(self._kept[tag.name](value))
        rows.append(row)

    def table(self, tag: OutputTag, given: tuple[list[Any], list[int]]) -> pa.Table:
        values, rows = given
        kind, fields = _kind_of(tag), list(tag.schema)

        def told(value: Any) -> str:
            return f"handed {value!r} to side output {tag.name!r}, which is no {kind}"

        array = element_array(values, kind, told, rows.__getitem__)
        return pa.Table.from_arrays(array.flatten() if len(fields) > 1 else [array], schema=tag.schema)


def _kind_of(tag: OutputTag) -> pa.DataType:
    """Return the type of the values that a process function hands to a side output."""
    fields = list(tag.schema)
    return pa.struct(fields) if len(fields) > 1 else fields[0].type


def element_array(
    values: list[Any], kind: pa.DataType, told: Callable[[Any], str], row_of: Callable[[int], int]
) -> pa.Array:
    """Return what a process function gave out as an array."""
    try:
        return python_array(values, kind)
    except CONVERSION_ERRORS as error:
        for number, value in enumerate(values):
            try:
                python_array([value], kind)
            except CONVERSION_ERRORS as cause:
                raise ProcessElementError(row_of(number), told(value)) from cause
        raise ProcessElementError(0, str(error)) from error


def fitted(batch: pa.RecordBatch, schema: pa.Schema, what: str = "output") -> pa.RecordBatch:
    """The rows with the columns of a schema, by name, in types that hold every value."""
    if batch.schema.equals(schema):
        return batch
    if sorted(batch.schema.names) != sorted(schema.names):
        raise InvalidInputError(
            f"the function emitted the columns {', '.join(batch.schema.names)}; the {what} has "
            f"{', '.join(schema.names)}"
        )
    columns = []
    for field in schema:
        column = batch.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise InvalidInputError(
                f"the function emitted {column.type} for the {what} column {field.name!r}, which is {field.type}: "
                f"{error}"
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def nullable(schema: pa.Schema) -> pa.Schema:
    """The columns without metadata, each of which may be null."""
    return pa.schema([field.with_nullable(True).remove_metadata() for field in schema])
