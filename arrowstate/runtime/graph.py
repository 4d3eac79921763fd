"""The plan of a job: what its tasks are, and what becomes of the rows that each gives out.

A task is what one slot runs as a whole: a source, a function with state, or the functions after an exchange that has no
state behind it. What is done row by row needs no channel: it is part of the task before. Between tasks are edges, whose
rule says which subtask gets a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import pyarrow as pa

from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.errors import InvalidInputError
from arrowstate.files.output_tables import OutputTable
from arrowstate.functions.batch_function import BatchFunction
from arrowstate.functions.process_function import KeyedProcessFunction
from arrowstate.publish.publication import Publish
from arrowstate.runtime.connectors import Source
from arrowstate.runtime.functions import MapFunction
from arrowstate.runtime.restart import Restart
from arrowstate.runtime.sinks.table import OutputTable as Table
from arrowstate.runtime.watermarks import Watermarks
from arrowstate.schema.operator_state import BroadcastStateDescriptor
from arrowstate.store.snapshot import Snapshot
from arrowstate.upkeep.retention import RetentionPolicy
from arrowstate_formats.names import check_operator_uid

Mode: TypeAlias = Literal["processes", "threads", "inline"]
Rule: TypeAlias = Literal["keyed", "rebalance", "global", "broadcast"]


@dataclass(eq=False, slots=True, kw_only=True)
class Node:
    """A place in the job that gives out rows."""

    schema: pa.Schema
    consumers: list[Consumer] = field(default_factory=list)


@dataclass(eq=False, slots=True, kw_only=True)
class SourceNode(Node):
    """Reads rows."""

    uid: str
    source: Source
    watermarks: Watermarks | None = None
    dead_letters: OutputTable | None = None

    @property
    def inputs(self) -> list[Edge]:
        return []


@dataclass(eq=False, slots=True, kw_only=True)
class MapNode(Node):
    """Makes rows of rows, without keys."""

    function: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table | None] | MapFunction
    uid: str | None = None
    """The name in the store of the function's operator state; None if it can have none."""
    dead_letters: OutputTable | None = None
    """Where rows go that it raises on; None if they fail the job."""


@dataclass(eq=False, slots=True, kw_only=True)
class SideNode(Node):
    """Gives out what the node whose consumer it is hands to a side output, or sets aside."""

    name: str


@dataclass(eq=False, slots=True, kw_only=True)
class StatefulNode(Node):
    """A function with keyed state."""

    uid: str
    operator: BatchFunction | KeyedProcessFunction
    key: pa.Schema
    timestamp: str | None = None
    broadcasts: tuple[BroadcastStateDescriptor, ...] = ()
    dead_letters: OutputTable | None = None
    inputs: list[Edge] = field(default_factory=list)


@dataclass(eq=False, slots=True, kw_only=True)
class RelayNode(Node):
    """Gives on what an exchange brings."""

    uid: str
    inputs: list[Edge] = field(default_factory=list)


@dataclass(eq=False, slots=True, kw_only=True)
class SinkNode:
    """Takes rows."""

    uid: str
    sink: Any
    schema: pa.Schema


TaskNode: TypeAlias = SourceNode | StatefulNode | RelayNode


@dataclass(eq=False, slots=True, kw_only=True)
class Edge:
    """From all subtasks of a task to all of another."""

    number: int
    rule: Rule
    target: StatefulNode | RelayNode
    port: int | str = 0
    """Which input of the target it is: 0 or 1 for rows, a name for a broadcast state."""
    schema: pa.Schema
    """The columns of the rows."""
    key: tuple[str, ...] = ()
    """The columns of the rows that are the key of the target, in its order."""
    origin: TaskNode | None = None


Consumer: TypeAlias = MapNode | SideNode | Edge | SinkNode


@dataclass(slots=True)
class Graph:
    """A whole job."""

    tasks: list[TaskNode] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    sinks: list[SinkNode] = field(default_factory=list)
    keeps_in_flight: bool = False
    """Whether rows on their way to functions with keys may be part of a checkpoint."""
    _uids: set[str] = field(default_factory=set)

    def take_uids(self, *uids: str) -> None:
        """Take note of names in the store, which nothing else of the job may have; of all, or of none."""
        taken = set(self._uids)
        for uid in uids:
            check_operator_uid(uid)
            if uid.lower() in taken:
                raise InvalidInputError(f"uids must differ in more than case, {uid!r} is taken; name another one")
            taken.add(uid.lower())
        self._uids = taken

    def set_aside(self, nodes: Sequence[SourceNode | MapNode | StatefulNode], table: OutputTable) -> None:
        """Have rows that nodes cannot take go to a table, whose name was taken."""
        sink = SinkNode(uid=table.uid, sink=Table(table.uid), schema=table.columns)
        for node in nodes:
            node.dead_letters = table
            node.consumers.append(SideNode(name=table.uid, schema=table.columns, consumers=[sink]))
        self.sinks.append(sink)

    @property
    def maps(self) -> list[MapNode]:
        """The functions of `map_batches` that have a name in the store."""
        return [node for task in self.tasks for node in _maps(task) if node.uid is not None]

    def task(self, uid: str) -> TaskNode:
        """Return a task by its uid."""
        return next(task for task in self.tasks if task.uid == uid)

    @property
    def sources(self) -> list[SourceNode]:
        return [task for task in self.tasks if isinstance(task, SourceNode)]

    def in_order(self) -> list[TaskNode]:
        """Return the tasks so that each comes after those that feed it."""
        done: list[TaskNode] = []
        while len(done) < len(self.tasks):
            ready = [
                task for task in self.tasks if task not in done and all(edge.origin in done for edge in task.inputs)
            ]
            done += ready
        return done

    def made_by_users(self) -> Iterator[tuple[str, Any]]:
        """Yield what the job was given to run, each with what it is called in a message."""
        yield from ((f"source {task.uid!r}", task.source) for task in self.tasks if isinstance(task, SourceNode))
        yield from self.functions()
        yield from ((f"sink {sink.uid!r}", sink.sink) for sink in self.sinks)

    def functions(self) -> Iterator[tuple[str, Any]]:
        """Yield the functions of which each subtask has a copy of its own, each with what it is called in a message."""
        for task in self.tasks:
            if isinstance(task, StatefulNode):
                yield f"operator {task.uid!r}", task.operator
            for node in _maps(task):
                yield f"a function of map_batches after {task.uid!r}", node.function

    def maps_of(self, node: Node) -> Iterator[MapNode]:
        """Yield the functions of `map_batches` that a task runs behind its own."""
        yield from _maps(node)

    def sinks_of(self, node: Node) -> Iterator[SinkNode]:
        """Yield the sinks that a task writes to."""
        for consumer in node.consumers:
            if isinstance(consumer, SinkNode):
                yield consumer
            elif isinstance(consumer, (MapNode, SideNode)):
                yield from self.sinks_of(consumer)

    def edges_of(self, node: Node) -> Iterator[Edge]:
        """Yield the edges that a task sends to."""
        for consumer in node.consumers:
            if isinstance(consumer, Edge):
                yield consumer
            elif isinstance(consumer, (MapNode, SideNode)):
                yield from self.edges_of(consumer)


def _maps(node: Node) -> Iterator[MapNode]:
    """Yield the functions of `map_batches` that follow a node before the next exchange."""
    for consumer in node.consumers:
        if isinstance(consumer, MapNode):
            yield consumer
        if isinstance(consumer, (MapNode, SideNode)):
            yield from _maps(consumer)


class Declared(Protocol):
    """What a job says of itself to whoever runs it."""

    store: str | Path
    storage_options: Mapping[str, Any] | None
    graph: Graph
    parallelism: int
    max_parallelism: int | None
    options: CheckpointOptions
    mode: Literal["exactly-once", "at-least-once"]
    restart: Restart
    allow_non_restored_state: bool
    from_savepoint: str | Path | Snapshot | None
    task_timeout_ms: int | None
    spare_slot: bool
    retention: RetentionPolicy | None
    publish: Publish | None
    lease_ms: int
