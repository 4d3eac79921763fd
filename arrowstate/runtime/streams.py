"""What is done with the rows of a job: functions, sinks, and how rows get from one to the next."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from arrowstate.backend.keyed import KeyedStateBackend
from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.processing.batch_function import BatchFunction, BatchRunner
from arrowstate.processing.process_function import KeyedProcessFunction
from arrowstate.processing.runner import batches_of
from arrowstate.runtime.connectors import DirectSink, PreparingSink, Sink
from arrowstate.runtime.functions import CoBatchFunction, KeyedCoProcessFunction
from arrowstate.runtime.graph import (
    Edge,
    Graph,
    MapNode,
    Node,
    RelayNode,
    Rule,
    SinkNode,
    StatefulNode,
    TaskNode,
)
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.schema.keys import check_key_schema, to_type
from arrowstate.schema.operator_state import BroadcastStateDescriptor
from arrowstate.schema.times import timestamp_array
from arrowstate.windows.function import WindowFunction

__all__ = ["ConnectedStreams", "Stream", "check_timestamps"]


Branch = tuple[TaskNode, Node]
"""A task, and the place in it where rows come from."""


class Stream:
    """Rows of a job, as they come from a source or a function.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import Job, TableSource
    >>> job = Job("memory://streams-example")
    >>> numbers = job.source(TableSource(pa.table({"n": [1, 2, 3]})), uid="numbers")
    >>> numbers.map_batches(lambda batch: batch.slice(1))
    <Stream: n int64>
    """

    def __init__(self, graph: Graph, branches: Sequence[Branch]) -> None:
        self.graph = graph
        "The plan that it is part of."
        self.branches = list(branches)
        "Where its rows come from."

    def __repr__(self) -> str:
        return f"<Stream: {', '.join(f'{field.name} {field.type}' for field in self.schema)}>"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self.branches[0][1].schema

    def map_batches(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table | None],
        *,
        schema: pa.Schema | None = None,
    ) -> Stream:
        """Return what a function makes of the rows, a batch at a time; it must not depend on how batches are cut.

        Parameters
        ----------
        function
            Gets and returns rows, which may be fewer or more, of other columns; None for none. It keeps no state.
        schema
            The columns that it returns; by default those that it returns for a batch without rows.

        Raises
        ------
        InvalidInputError
            If the function fails on a batch without rows, or returns None for it, and `schema` is not given.
        """
        if schema is None:
            schema = self._schema_of(function)
        made = []
        for task, node in self.branches:
            following = MapNode(function=function, schema=schema)
            node.consumers.append(following)
            made.append((task, following))
        return Stream(self.graph, made)

    def union(self, *others: Stream) -> Stream:
        """Return the rows of this stream and of others with the same columns, in no order between them."""
        for other in others:
            if other.schema.names != self.schema.names or other.schema.types != self.schema.types:
                raise InvalidInputError(f"union needs streams with the same columns, got {self!r} and {other!r}")
            self._check_same_job(other)
        return Stream(self.graph, [*self.branches, *(branch for other in others for branch in other.branches)])

    def rebalance(self) -> Stream:
        """Return the same rows, spread evenly over all subtasks."""
        return self._relayed("rebalance")

    def to_one(self) -> Stream:
        """Return the same rows, all in the first subtask."""
        return self._relayed("global")

    def broadcast(self) -> Stream:
        """Return the same rows in every subtask."""
        return self._relayed("broadcast")

    def connect(self, other: Stream) -> ConnectedStreams:
        """Return two streams for a function that has both."""
        self._check_same_job(other)
        return ConnectedStreams(self, other)

    def stateful(
        self,
        operator: BatchFunction | KeyedProcessFunction,
        *,
        key: Sequence[str],
        uid: str,
        output_schema: pa.Schema | None = None,
        timestamp: str | None = None,
        broadcast: Mapping[BroadcastStateDescriptor, Stream] | None = None,
    ) -> Stream:
        """Run a function with keyed state, and return what it emits.

        Parameters
        ----------
        operator
            A `BatchFunction`, such as a `WindowFunction`, or a `KeyedProcessFunction`; each subtask has one of its own.
        key
            The key columns. A null in one of them is an error of its row.
        uid
            The operator's name in the store, the same at every start.
        output_schema
            The columns that it emits. A `WindowFunction` has its own; any other function without it emits nothing. A
            `KeyedProcessFunction` emits plain values if there is one column, else tuples or mappings.
        timestamp
            The column with the event time of a row, for a `KeyedProcessFunction`: a timestamp or milliseconds since
            1970.
        broadcast
            By descriptor, a stream of two columns, key and value, that sets the entries of a broadcast state in every
            subtask while it comes.

        Raises
        ------
        InvalidInputError
            If the uid is taken, a column is missing, or the function is none.
        """
        return _stateful(self.graph, [self], operator, key, uid, output_schema, timestamp, broadcast or {})

    def sink(self, sink: OutputTable | Sink | PreparingSink | DirectSink, *, uid: str | None = None) -> None:
        """Write the rows.

        Parameters
        ----------
        sink
            Where to.
        uid
            Its name in the store, where rows are kept until it has had them; the same at every start. An `OutputTable`
            has its own.

        Raises
        ------
        InvalidInputError
            If the uid is missing or taken, or the sink is none.
        """
        if isinstance(sink, OutputTable):
            if uid not in (None, sink.name):
                raise InvalidInputError(
                    f"an output table is named {sink.name!r} in the store, got uid={uid!r}; leave it out"
                )
            uid = sink.name
        elif not isinstance(sink, (Sink, PreparingSink, DirectSink)):
            raise InvalidInputError(f"a sink must be an OutputTable, Sink, PreparingSink or DirectSink, got {sink!r}")
        if uid is None:
            raise InvalidInputError(f"{type(sink).__name__} needs uid=, its name in the store")
        self.graph.take_uid(uid)
        node = SinkNode(uid=uid, sink=sink, schema=self.schema)
        self.graph.sinks.append(node)
        for _, place in self.branches:
            place.consumers.append(node)

    def _relayed(self, rule: Rule) -> Stream:
        graph = self.graph
        number = sum(isinstance(task, RelayNode) for task in graph.tasks)
        node = RelayNode(uid=f"exchange-{number}", schema=self.schema)
        self.graph.take_uid(node.uid)
        graph.tasks.append(node)
        self.lead_to(node, rule)
        return Stream(self.graph, [(node, node)])

    def lead_to(
        self, target: StatefulNode | RelayNode, rule: Rule, *, port: int | str = 0, key: Sequence[str] = ()
    ) -> None:
        """Send the rows to a task."""
        graph = self.graph
        for task, node in self.branches:
            edge = Edge(
                number=len(graph.edges),
                rule=rule,
                target=target,
                port=port,
                schema=node.schema,
                key=tuple(key),
                origin=task,
            )
            graph.edges.append(edge)
            target.inputs.append(edge)
            node.consumers.append(edge)

    def _schema_of(self, function: Callable[[pa.RecordBatch], Any]) -> pa.Schema:
        try:
            made = function(_no_rows(self.schema))
        except Exception as error:
            raise InvalidInputError(
                f"the function of map_batches fails on a batch without rows, {type(error).__name__}: {error}; give the "
                "columns that it returns with schema="
            ) from error
        if made is None:
            raise InvalidInputError(
                "the function of map_batches returns None for no rows; give its columns with schema="
            )
        batches = batches_of(made)
        return (batches[0].schema if batches else made.schema).remove_metadata()

    def _check_same_job(self, other: Stream) -> None:
        if other.graph is not self.graph:
            raise InvalidInputError("the streams are of two jobs; make both with sources of one")


class ConnectedStreams:
    """Two streams that are keyed alike, for one function.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import Job, TableSource
    >>> job = Job("memory://connected-example")
    >>> paid = job.source(TableSource(pa.table({"user": ["ann"], "paid": [3]})), uid="paid")
    >>> asked = job.source(TableSource(pa.table({"name": ["ann"]})), uid="asked")
    >>> paid.connect(asked)
    <ConnectedStreams: user string, paid int64; name string>
    """

    def __init__(self, first: Stream, second: Stream) -> None:
        self._first = first
        self._second = second

    def __repr__(self) -> str:
        columns = "; ".join(repr(stream)[9:-1] for stream in (self._first, self._second))
        return f"<ConnectedStreams: {columns}>"

    def stateful(
        self,
        operator: CoBatchFunction | KeyedCoProcessFunction,
        *,
        key: Sequence[str] | tuple[Sequence[str], Sequence[str]],
        uid: str,
        output_schema: pa.Schema | None = None,
        timestamp: str | None = None,
        broadcast: Mapping[BroadcastStateDescriptor, Stream] | None = None,
    ) -> Stream:
        """Run a function with two inputs and keyed state; as `Stream.stateful`.

        `key` are the key columns of both streams, or a pair with those of each, of which the first name the key.
        """
        streams = [self._first, self._second]
        return _stateful(self._first.graph, streams, operator, key, uid, output_schema, timestamp, broadcast or {})


def _stateful(
    graph: Graph,
    streams: list[Stream],
    operator: Any,
    key: Any,
    uid: str,
    output_schema: pa.Schema | None,
    timestamp: str | None,
    broadcast: Mapping[BroadcastStateDescriptor, Stream],
) -> Stream:
    two = isinstance(operator, (CoBatchFunction, KeyedCoProcessFunction))
    if not isinstance(operator, (BatchFunction, KeyedProcessFunction)):
        raise InvalidInputError(
            f"operator {uid!r} must be a BatchFunction or a KeyedProcessFunction, got {type(operator).__name__}"
        )
    if two != (len(streams) == 2):
        needed = "two streams: a.connect(b).stateful(...)" if two else "one stream, or a CoBatchFunction for two"
        raise InvalidInputError(f"operator {uid!r} is a {type(operator).__name__} and needs {needed}")
    pair = len(key) == 2 and all(not isinstance(item, str) for item in key)
    keys = [list(item) for item in key] if pair else [list(key)] * len(streams)
    if isinstance(key, str) or any(not names for names in keys) or len({len(names) for names in keys}) != 1:
        raise InvalidInputError(f"key must be the names of the key columns, as many of each stream, got {key!r}")
    for stream, names in zip(streams, keys, strict=True):
        missing = [name for name in [*names, *([timestamp] if timestamp else [])] if name not in stream.schema.names]
        if missing:
            raise InvalidInputError(
                f"operator {uid!r} needs the column {missing[0]!r}, and the stream has {', '.join(stream.schema.names)}"
            )
    if timestamp is not None and isinstance(operator, BatchFunction):
        raise InvalidInputError(
            f"operator {uid!r} is a batch function, which reads its timestamps itself; leave it out"
        )
    for stream in streams if timestamp is not None else ():
        check_timestamps(f"operator {uid!r}", stream.schema.field(timestamp))
    schema = check_key_schema(pa.schema([(name, streams[0].schema.field(name).type) for name in keys[0]]))
    _check_keys(uid, streams, keys, schema)
    _check_broadcast(graph, broadcast)
    emitted = _output_schema(operator, schema, output_schema)
    graph.take_uid(uid)
    node = StatefulNode(
        uid=uid,
        operator=operator,
        key=schema,
        timestamp=timestamp,
        broadcasts=tuple(broadcast),
        schema=emitted,
    )
    graph.tasks.append(node)
    for port, (stream, names) in enumerate(zip(streams, keys, strict=True)):
        renamed = stream if names == keys[0] else stream.map_batches(_Renamed(dict(zip(names, keys[0], strict=True))))
        renamed.lead_to(node, "keyed", port=port, key=keys[0])
    for descriptor, stream in broadcast.items():
        stream.lead_to(node, "broadcast", port=descriptor.name)
    return Stream(graph, [(node, node)])


def check_timestamps(of: str, field: pa.Field) -> None:
    """Refuse a column that can hold no event time."""
    try:
        timestamp_array(field.name, pa.array([], field.type), round_down=True)
    except ValueTypeError as error:
        raise InvalidInputError(
            f"{of} needs a timestamp or milliseconds since 1970 in {field.name!r}, got {field.type}; cast it first"
        ) from error


def _check_keys(uid: str, streams: list[Stream], keys: list[list[str]], key: pa.Schema) -> None:
    """Refuse key columns of a second stream that cannot be the key."""
    for stream, names in zip(streams[1:], keys[1:], strict=True):
        for name, field in zip(names, key, strict=True):
            try:
                to_type(pa.array([], stream.schema.field(name).type), field.type)
            except TypeError as error:
                raise InvalidInputError(
                    f"operator {uid!r} has the key {field.name!r}, {field.type}, and the second stream has {name!r}, "
                    f"{stream.schema.field(name).type}; cast one of them before"
                ) from error
            if name != field.name and field.name in stream.schema.names:
                raise InvalidInputError(
                    f"operator {uid!r} gives the key of the second stream, {name!r}, the name {field.name!r}, which "
                    "another column of it has; rename that before"
                )


def _check_broadcast(graph: Graph, broadcast: Mapping[BroadcastStateDescriptor, Stream]) -> None:
    for descriptor, stream in broadcast.items():
        if not isinstance(descriptor, BroadcastStateDescriptor):
            raise InvalidInputError(f"broadcast must be streams by BroadcastStateDescriptor, got {descriptor!r}")
        if stream.graph is not graph:
            raise InvalidInputError("the streams are of two jobs; make both with sources of one")
        if len(stream.schema) != 2:
            raise InvalidInputError(
                f"broadcast state {descriptor.name!r} needs a stream of two columns, key and value, got {stream!r}"
            )


class _Renamed:
    """Gives key columns the names of the key."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.rename_columns([self._names.get(name, name) for name in batch.schema.names])


def _output_schema(operator: Any, key: pa.Schema, given: pa.Schema | None) -> pa.Schema:
    if given is not None:
        if not isinstance(given, pa.Schema):
            raise InvalidInputError(f"output_schema must be a pyarrow.Schema, got {type(given).__name__}")
        return pa.schema([field.with_nullable(True).remove_metadata() for field in given])
    if isinstance(operator, WindowFunction):
        # What fires says which columns it has, whether anything does or not.
        with BatchRunner(KeyedStateBackend(key=key, max_parallelism=1), copy.deepcopy(operator)) as runner:
            return runner.advance_watermark(0).schema
    return pa.schema([])


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
