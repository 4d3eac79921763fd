"""What is done with the rows of a job: functions, sinks, and how rows get from one to the next."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.functions.batch_function import BatchFunction
from arrowstate.functions.dead_letters import dead_letter_table, dead_letters_name
from arrowstate.functions.process_function import KeyedProcessFunction
from arrowstate.functions.runner import batches_of
from arrowstate.functions.side_outputs import OutputTag, Sides
from arrowstate.runtime.connectors import DirectSink, PreparingSink, Sink
from arrowstate.runtime.declaring import (
    AsKey,
    check_broadcast,
    check_exchanged,
    check_keys,
    check_late,
    check_side_names,
    check_stored,
    check_timestamps,
    no_rows,
    output_schema,
    row_columns,
)
from arrowstate.runtime.functions import CoBatchFunction, KeyedCoProcessFunction, MapFunction
from arrowstate.runtime.graph import (
    Edge,
    Graph,
    MapNode,
    Node,
    RelayNode,
    Rule,
    SideNode,
    SinkNode,
    StatefulNode,
    TaskNode,
)
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.schema.keys import check_key_schema
from arrowstate.schema.operator_state import BroadcastStateDescriptor
from arrowstate.shown import error_text

OnError = Literal["fail", "dead_letter"]

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
        function: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table | None] | MapFunction,
        *,
        uid: str | None = None,
        schema: pa.Schema | None = None,
        on_error: OnError = "fail",
        dead_letters: str | None = None,
    ) -> Stream:
        """Return the rows that a function makes of each batch; it must not depend on how batches are cut.

        Parameters
        ----------
        function
            It is called with a batch and returns a batch, which may have more or fewer rows and other columns, or None
            for no rows. It must keep no state. A `MapFunction` is opened and closed, and may have operator state.
        uid
            The name in the store of the operator state of a `MapFunction`, the same at every start.
        schema
            The columns that it returns; by default those that it returns for a batch without rows.
        on_error
            What happens to a row for which the function raises or returns other columns: by default it fails the job;
            with `dead_letter` it goes to an output table, as for `stateful`. The `key` of such rows is `task`, the uid
            of the step that the function is part of.
        dead_letters
            The name of the output table for them.

        Raises
        ------
        InvalidInputError
            If `schema` is not given, and the function fails or returns None for a batch without rows; if `schema` is
            not a schema; or if the store cannot have the columns of dead letters. If a `MapFunction` has no `schema`,
            or a function with a uid is no `MapFunction`, or follows a union.
        """
        self._check_map(function, uid, schema)
        if schema is None:
            schema = self._schema_of(cast("Callable[[Any], Any]", function))
        elif not isinstance(schema, pa.Schema):
            raise InvalidInputError(f"schema must be a pyarrow.Schema, got {type(schema).__name__}")
        # Batches of one function may say differently what is never null.
        schema = _nullable(schema)
        if on_error == "dead_letter" and dead_letters is None:
            raise InvalidInputError("map_batches has no uid: say with dead_letters= which table rows are set aside in")
        aside = dead_letters_name("", on_error, dead_letters)
        if aside is not None:
            check_stored(f"the table of dead letters {aside!r}", self.schema)
        self.graph.take_uids(*(name for name in (uid, aside) if name is not None))
        made = []
        for task, node in self.branches:
            following = MapNode(function=function, schema=schema, uid=uid)
            node.consumers.append(following)
            made.append((task, following))
        if aside is not None:
            table = dead_letter_table(aside, pa.schema({"task": pa.string()}), self.schema)
            self.graph.set_aside([node for _, node in made], table)
        return Stream(self.graph, made)

    def _check_map(self, function: Any, uid: str | None, schema: Any) -> None:
        if isinstance(function, MapFunction) and schema is None:
            raise InvalidInputError(f"{function!r} needs schema=, the columns that it returns")
        if uid is not None and not isinstance(function, MapFunction):
            raise InvalidInputError(f"a uid is for a MapFunction, which may have state; {uid!r} is for {function!r}")
        if uid is not None and len(self.branches) > 1:
            raise InvalidInputError(
                f"{uid!r} follows a union, so it would run in several steps and its state would be in each; bring the "
                "rows into one step before, with rebalance()"
            )

    def union(self, *others: Stream) -> Stream:
        """Return the rows of this stream and of others with the same columns, in no order between them."""
        for other in others:
            if other.schema.names != self.schema.names or other.schema.types != self.schema.types:
                raise InvalidInputError(f"union needs streams with the same columns, got {self!r} and {other!r}")
            self._check_same_job(other)
        streams = [self, *others]
        if len({tuple(field.nullable for field in stream.schema) for stream in streams}) > 1:
            streams = [stream.map_batches(_same, schema=self.schema) for stream in streams]
        return Stream(self.graph, [branch for stream in streams for branch in stream.branches])

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
        on_error: OnError = "fail",
        dead_letters: str | None = None,
    ) -> Stream:
        """Run a function with keyed state, and return the stream of rows that it emits.

        Parameters
        ----------
        operator
            A `BatchFunction`, such as a `WindowFunction`, or a `KeyedProcessFunction`; each subtask has its own copy.
        key
            The key columns. A null in one of them is an error of its row.
        uid
            The operator's name in the store, the same at every start.
        output_schema
            The columns that it emits; without them it emits nothing. A `WindowFunction` has its own columns. A
            `KeyedProcessFunction` emits plain values if there is one column, else tuples or mappings.
        timestamp
            The column with the event time of a row, for a `KeyedProcessFunction`: a timestamp or milliseconds since
            1970.
        broadcast
            By descriptor of a broadcast state, a stream with two columns, key and value, whose rows set the entries of
            the state in every subtask.
        on_error
            What happens to a row that the operator cannot process: its key or timestamp is null, the function raises on
            it, or a value that it writes or emits does not fit. `fail`, the default, fails the job. `dead_letter` sends
            the row to an output table, exactly once, and the state is as if the row had never come. The function is
            called again without the row, so it must not count calls in attributes. An exception in `open`, at a
            watermark or in a timer still fails the job.
        dead_letters
            The name of that output table, by default the uid with `_dead_letters`. Its columns are those of
            `arrowstate.spark.stateful`: `reason`, `error` (the class), `batch_id` (the checkpoint after the row),
            `key` and `row`, which are structs of the key columns and of all columns.

        Raises
        ------
        InvalidInputError
            If the uid is taken, a column is missing, or `operator` is not a function; if a column cannot go from one
            subtask to another, as views and run-end encoded columns cannot; or if the store cannot have the columns of
            dead letters.
        """
        aside = dead_letters_name(uid, on_error, dead_letters)
        return _stateful(self.graph, [self], operator, key, uid, output_schema, timestamp, broadcast or {}, aside)

    def side_output(self, tag: OutputTag) -> Stream:
        """Return the rows that the function of this stream hands to a side output.

        Parameters
        ----------
        tag
            One of the `side_outputs` of the function.

        Raises
        ------
        InvalidInputError
            If this stream does not come from a function with that side output.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> from arrowstate.runtime import Job, TableSource
        >>> LARGE = arrowstate.OutputTag("large", pa.schema({"user": pa.string()}))
        >>> class Payments(arrowstate.KeyedProcessFunction):
        ...     side_outputs = (LARGE,)
        ...
        ...     def process_element(self, value, context, out):
        ...         if value.amount > 8:
        ...             context.output(LARGE, value.user)
        >>> job = Job("memory://side-example")
        >>> given = job.source(TableSource(pa.table({"user": ["ann", "bob"], "amount": [3, 9]})), uid="given")
        >>> given.stateful(Payments(), key=["user"], uid="payments").side_output(LARGE)
        <Stream: user string>
        """
        known = [(task, side) for task, node in self.branches for side in node.consumers if isinstance(side, SideNode)]
        if not isinstance(tag, OutputTag):
            raise InvalidInputError(f"a side output is named by its OutputTag, got {tag!r}")
        sides = [(task, side) for task, side in known if (side.name, side.schema) == (tag.name, tag.schema)]
        if len(sides) < len(self.branches):
            names = ", ".join(side.name for _, side in known) or "none"
            raise InvalidInputError(
                f"{self!r} has no side output {tag!r}; it has {names}: ask what stateful(...) returned, of a function "
                "that names the tag in side_outputs"
            )
        return Stream(self.graph, sides)

    def sink(self, sink: OutputTable | Sink | PreparingSink | DirectSink, *, uid: str | None = None) -> None:
        """Write the rows.

        Parameters
        ----------
        sink
            The sink.
        uid
            Its name in the store, where rows are kept until the sink has accepted them; the same at every start. An
            `OutputTable` has a name of its own.

        Raises
        ------
        InvalidInputError
            If the uid is missing or taken, or `sink` is not a sink; if the sink refuses a column, or the store cannot
            keep it for the sink, such as a dictionary, a view, a calendar interval or a union.
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
        if isinstance(sink, PreparingSink):
            check_stored(f"what sink {uid!r} prepares", sink.committable_schema)
        elif not isinstance(sink, DirectSink):
            check_stored(f"sink {uid!r}", self.schema)
        if isinstance(sink, (Sink, PreparingSink)):
            sink.check_schema(uid, self.schema)
        self.graph.take_uids(uid)
        if any(node.sink is sink for node in self.graph.sinks):
            # Each is opened under its uid, and keeps what it was opened with.
            sink = copy.copy(sink)
        node = SinkNode(uid=uid, sink=sink, schema=self.schema)
        self.graph.sinks.append(node)
        for _, place in self.branches:
            place.consumers.append(node)

    def _relayed(self, rule: Rule) -> Stream:
        graph = self.graph
        check_exchanged("to_one()" if rule == "global" else f"{rule}()", self.schema)
        number = sum(isinstance(task, RelayNode) for task in graph.tasks)
        node = RelayNode(uid=f"exchange-{number}", schema=self.schema)
        self.graph.take_uids(node.uid)
        graph.tasks.append(node)
        self.lead_to(node, rule)
        return Stream(self.graph, [(node, node)])

    def lead_to(
        self, target: StatefulNode | RelayNode, rule: Rule, *, port: int | str = 0, key: Sequence[str] = ()
    ) -> None:
        """Send the rows to a task."""
        graph = self.graph
        if graph.keeps_in_flight and rule == "keyed":
            check_stored(f"with unaligned=True, rows in flight to {target.uid!r}", self.schema)
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
            made = function(no_rows(self.schema))
        except Exception as error:
            raise InvalidInputError(
                f"the function of map_batches fails on a batch without rows, {error_text(error)}; give the "
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


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True).remove_metadata() for field in schema])


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
        on_error: OnError = "fail",
        dead_letters: str | None = None,
    ) -> Stream:
        """Run a function with two inputs and keyed state; see `Stream.stateful`.

        `key` names the key columns of both streams, or is a pair with the key columns of each; the first stream gives
        the key its names. Dead letters have the columns of both streams; columns of one name must have one type.
        """
        streams = [self._first, self._second]
        graph = self._first.graph
        aside = dead_letters_name(uid, on_error, dead_letters)
        return _stateful(graph, streams, operator, key, uid, output_schema, timestamp, broadcast or {}, aside)


def _stateful(
    graph: Graph,
    streams: list[Stream],
    operator: Any,
    key: Any,
    uid: str,
    given_output: pa.Schema | None,
    timestamp: str | None,
    broadcast: Mapping[BroadcastStateDescriptor, Stream],
    aside: str | None,
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
    for stream in (*streams, *broadcast.values()):
        check_exchanged(f"operator {uid!r}", stream.schema)
    for stream in streams if timestamp is not None else ():
        check_timestamps(f"operator {uid!r}", stream.schema.field(timestamp))
    schema = check_key_schema(pa.schema([(name, streams[0].schema.field(name).type) for name in keys[0]]))
    check_keys(uid, [stream.schema for stream in streams], keys, schema)
    check_broadcast(graph, broadcast)
    Sides(operator)
    emitted = output_schema(operator, schema, given_output)
    check_exchanged(f"what operator {uid!r} emits", emitted)
    check_late(uid, operator, streams[0].schema)
    table = None
    if aside is not None:
        row = row_columns(uid, [stream.schema for stream in streams], keys)
        check_stored(f"the table of dead letters {aside!r}", row)
        check_side_names(operator, aside)
        table = dead_letter_table(aside, schema, row)
    graph.take_uids(uid, *([] if aside is None else [aside]))
    node = StatefulNode(
        uid=uid,
        operator=operator,
        key=schema,
        timestamp=timestamp,
        broadcasts=tuple(broadcast),
        schema=emitted,
    )
    node.consumers += [SideNode(name=tag.name, schema=tag.schema) for tag in operator.side_outputs]
    if table is not None:
        graph.set_aside([node], table)
    graph.tasks.append(node)
    for port, (stream, names) in enumerate(zip(streams, keys, strict=True)):
        as_key = AsKey(uid, names, schema)
        keyed = stream if not port or as_key.fits(stream.schema) else stream.map_batches(as_key)
        keyed.lead_to(node, "keyed", port=port, key=keys[0])
    for descriptor, stream in broadcast.items():
        stream.lead_to(node, "broadcast", port=descriptor.name)
    return Stream(graph, [(node, node)])
