"""The two functions that a Spark program calls: `keyed_sink` and `register`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf

from arrowstate.errors import InvalidInputError, KeyTypeError, UnsupportedStorageError, ValueTypeError
from arrowstate.schema.descriptors import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor
from arrowstate.schema.keys import check_key_schema, to_type
from arrowstate.schema.layout import StateLayout, key_documents, key_schema_of, state_document
from arrowstate.schema.versions import evolve_state
from arrowstate.snapshot.log import CommitLog
from arrowstate.spark.committing import check_alone, check_no_operator_state
from arrowstate.spark.plan import SinkPlan, StateInput
from arrowstate.spark.routing import quoted, subtask_expression
from arrowstate.spark.schemas import arrow_type, spark_type, widens
from arrowstate.spark.source import FORMAT, ArrowStateDataSource
from arrowstate.spark.workers import own_python
from arrowstate.storage.registry import SUPPORTED
from arrowstate.store import open_store
from arrowstate_formats.documents import FieldDocument, OperatorDocument, StateDocument
from arrowstate_formats.key_groups import default_max_parallelism, key_group_range
from arrowstate_formats.names import check_operator_uid

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import DataType

__all__ = ["keyed_sink", "register"]


def keyed_sink(
    stream: DataFrame,
    *,
    store: str | Path,
    uid: str,
    key: Sequence[str],
    states: Sequence[StateDescriptor],
    parallelism: int,
    max_parallelism: int | None = None,
) -> DataStreamWriter:
    """Return a writer that folds a stream into keyed states, each micro-batch exactly once.

    Every micro-batch becomes one checkpoint of the store. A query that is started again with its Spark
    checkpoint folder goes on where the store is, at any parallelism and any max parallelism; its last batch,
    which Spark may repeat, counts once. Rows of one key within a micro-batch have no order, because Spark
    shuffles them: a value state, and the reducers `first` and `last`, take any of them.

    Parameters
    ----------
    stream
        A streaming DataFrame. Only the columns named here are used.
    store
        Where the store is, a path that every worker sees; made if there is none. It belongs to this sink alone.
    uid
        The operator's name in the store, the same at every start.
    key
        The key columns. A null in one of them fails the query.
    states
        The states. The values of a state are the column with its name; those of a state with a struct type
        are the columns named after its fields. A null changes nothing in a reducing state, and clears a value
        state (one with a struct type: if all its fields are null). A counted column may have any type.
    parallelism
        The number of subtasks, which is the number of tasks of a micro-batch; 1 to `max_parallelism`.
    max_parallelism
        The number of key groups, up to 32768. By default that of the store; in a new store 128, or more at a
        parallelism above 85.

    Returns
    -------
    DataStreamWriter
        Add `.option("checkpointLocation", ...)` and, if wanted, `.trigger(...)`, then `.start()`.

    Raises
    ------
    InvalidInputError
        If an argument is out of range, a column is missing, `stream` is no stream, or the store holds the
        state of other operators.
    KeyTypeError, ValueTypeError
        If a column has another type than the store's key or the state; a narrower number is widened.
    IncompatibleStateError
        If the store has a state of this name with another kind, type or reducer.
    UnsupportedStorageError
        If the store cannot be shared with Spark's workers.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.spark import keyed_sink
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="count")
    >>> def start(stream, folder):
    ...     sink = keyed_sink(
    ...         stream, store=f"{folder}/store", uid="counter", key=["user"], states=[clicks], parallelism=4
    ...     )
    ...     return sink.option("checkpointLocation", f"{folder}/spark").start()
    """
    if not stream.isStreaming:
        raise InvalidInputError(
            "keyed_sink needs a streaming DataFrame, made by spark.readStream; this one is static: write it with "
            "KeyedStateBackend, or stream it from files"
        )
    check_operator_uid(uid)
    columns = _Columns(stream)
    if isinstance(key, str) or not key:
        raise InvalidInputError(f"key must be a list of at least one column, got {key!r}")
    given_key = check_key_schema(pa.schema([(name, arrow_type(columns.type_of(name))) for name in key]))
    _check_states(states)
    if str(store).lower().startswith("memory:"):
        reason = "its files are in the memory of this process, and Spark's tasks run in others"
        raise UnsupportedStorageError(str(store), "memory", SUPPORTED[:-1], reason)
    key_group_range(max_parallelism or default_max_parallelism(parallelism), parallelism=parallelism, subtask=0)
    # What does not depend on the store is refused before one is made.
    for descriptor in states:
        _state_input(descriptor, key_documents(given_key), columns, None)
    opened = open_store(store, create=True)
    checkpoint = CommitLog(opened.storage).latest_checkpoint()
    check_alone([uid], checkpoint, opened.url)
    check_no_operator_state(uid, checkpoint, opened.url)
    operator = None if checkpoint is None else next(iter(checkpoint.operators), None)
    stored = {} if operator is None else _stored_states(operator, states)
    key_schema = given_key if operator is None else key_schema_of(operator.key)
    if list(key) != key_schema.names:
        raise KeyTypeError(_text(key_schema), _text(given_key))
    if max_parallelism is None:
        max_parallelism = default_max_parallelism(parallelism) if operator is None else operator.max_parallelism
    key_group_range(max_parallelism, parallelism=parallelism, subtask=0)

    columns = _Columns(stream)
    for field in key_schema:
        given = columns.type_of(field.name)
        if not widens(given, spark_type(field.type)):
            raise KeyTypeError(_text(key_schema), _text(given_key))
        columns.take(field.name, spark_type(field.type))
    key_fields = key_documents(key_schema) if operator is None else operator.key
    plan = SinkPlan(
        store=opened.url,
        uid=uid,
        key=key_fields,
        states=[_state_input(descriptor, key_fields, columns, stored.get(descriptor.name)) for descriptor in states],
        parallelism=parallelism,
        max_parallelism=max_parallelism,
    )
    subtask = sf.expr(subtask_expression(key_schema.names, parallelism, max_parallelism))
    rows = stream.select(*columns.taken).repartitionById(parallelism, subtask)
    register(stream.sparkSession)
    return rows.writeStream.format(FORMAT).options(**plan.to_options())


def register(spark: SparkSession) -> None:
    """Make the data source `arrowstate` known to a session; `keyed_sink` does it by itself.

    Options of `spark.read.format("arrowstate")`, given before `.load(path of a store or savepoint)`:

    operator
        The operator's uid.
    state
        The state; may be left out where the operator has one.
    checkpoint
        A checkpoint id; by default the newest when `load` is called, and the DataFrame stays with it.
    columns
        The columns to read, separated by commas; all by default.
    partitions
        How many key-group ranges to read apart, up to the max parallelism; one per subtask by default.
    pushFilters
        `true` lets the reader apply comparisons and look up keys itself. It needs the Spark setting
        `spark.sql.python.filterPushdown.enabled`.

    Examples
    --------
    >>> from arrowstate.spark import register
    >>> def read_clicks(spark, folder):
    ...     register(spark)
    ...     return spark.read.format("arrowstate").option("operator", "counter").load(f"{folder}/store")
    """
    with own_python(spark):
        spark.dataSource.register(ArrowStateDataSource)


class _Columns:
    """The columns of a stream, and those of them that the sink takes, in order."""

    def __init__(self, stream: DataFrame) -> None:
        self._schema = stream.schema
        self._case_sensitive = stream.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
        self._numbers: dict[tuple[str, str], int] = {}
        self.taken: list[Column] = []

    def type_of(self, name: str) -> DataType:
        """The type of a column, found as Spark would."""
        for field in self._schema:
            if field.name == name or (not self._case_sensitive and field.name.lower() == name.lower()):
                return field.dataType
        raise InvalidInputError(f"the stream has no column {name!r}; it has {', '.join(self._schema.names)}")

    def take(self, name: str, wanted: DataType) -> int:
        """Take a column, widened to a type, and return its number."""
        column = sf.col(quoted(name))
        if self.type_of(name).simpleString() != wanted.simpleString():
            column = column.cast(wanted)
        return self._take(name, wanted.simpleString(), column)

    def take_presence(self, name: str) -> int:
        """Take 1 where a column has a value and null where it has none, which is all that counting needs."""
        self.type_of(name)
        return self._take(name, "presence", sf.when(sf.col(quoted(name)).isNotNull(), sf.lit(1).cast("tinyint")))

    def _take(self, name: str, form: str, column: Column) -> int:
        number = self._numbers.setdefault((name, form), len(self.taken))
        if number == len(self.taken):
            taken_names = [taken for taken, _ in self._numbers]
            # The key is routed by name, so a second form of a column must not have the same one.
            self.taken.append(column.alias(name if taken_names.count(name) == 1 else f"{name} ({form})"))
        return number


def _state_input(
    descriptor: StateDescriptor, key: Sequence[FieldDocument], columns: _Columns, stored: StateDocument | None
) -> StateInput:
    """Say where the values of a state come from, after checking their types."""
    if not isinstance(descriptor, (ValueStateDescriptor, ReducingStateDescriptor)):
        raise InvalidInputError(
            f"a stream is folded into value and reducing states; {descriptor.name!r} is of the kind {descriptor.kind}"
        )
    if isinstance(descriptor, ReducingStateDescriptor) and descriptor.callable_name is not None:
        raise InvalidInputError(
            f"state {descriptor.name!r}: a stream is folded by built-in reducers, got {descriptor.callable_name}"
        )
    layout = StateLayout.of(key_schema_of(key), descriptor)
    is_struct = pa.types.is_struct(descriptor.type)
    inner = [field.name for field in descriptor.type] if is_struct else [descriptor.name]
    numbers = []
    for name, field in zip(inner, layout.value_fields, strict=True):
        reduce = descriptor.reduce if isinstance(descriptor, ReducingStateDescriptor) else None
        if (reduce[name] if isinstance(reduce, Mapping) else reduce) == "count":
            numbers.append(columns.take_presence(field.name))
            continue
        where = f"{descriptor.name}.{name}" if is_struct else descriptor.name
        given, wanted = columns.type_of(field.name), spark_type(field.type)
        if not widens(given, wanted):
            raise ValueTypeError(where, str(field.type), given.simpleString())
        try:
            to_type(pa.array([], arrow_type(wanted)), field.type)
        except (pa.ArrowException, TypeError) as error:
            raise ValueTypeError(where, str(field.type), f"{given.simpleString()} ({error})") from None
        numbers.append(columns.take(field.name, wanted))
    return StateInput(state=state_document(descriptor, layout, key, stored), columns=numbers)


def _check_states(states: Sequence[StateDescriptor]) -> None:
    if isinstance(states, (ValueStateDescriptor, ReducingStateDescriptor)) or not states:
        raise InvalidInputError("states must be a list of at least one descriptor")
    names: set[str] = set()
    for descriptor in states:
        if not isinstance(descriptor, (ValueStateDescriptor, ReducingStateDescriptor)):
            raise InvalidInputError(f"expected a state descriptor, got {type(descriptor).__name__}")
        if descriptor.name.lower() in names:
            raise InvalidInputError(f"state names must differ in more than case, got {descriptor.name!r} twice")
        names.add(descriptor.name.lower())


def _stored_states(operator: OperatorDocument, states: Sequence[StateDescriptor]) -> dict[str, StateDocument]:
    """Return what the states that are stored become under their descriptors, by name."""
    found = {}
    stored = {state.name.lower(): state for state in operator.states}
    for descriptor in states:
        have = stored.get(descriptor.name.lower())
        if have is None:
            continue
        if have.name != descriptor.name:
            raise InvalidInputError(
                f"state names must differ in more than case, {have.name!r} exists; got {descriptor.name!r}"
            )
        found[have.name] = evolve_state(have, operator.key, descriptor)
    return found


def _text(key: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in key)
