"""What becomes of the rows that a task gives out: functions without state, then channels and sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.files.output_tables import OutputTable
from arrowstate.functions.dead_letters import DeadLetters, is_of_function, tried
from arrowstate.functions.runner import batches_of
from arrowstate.functions.setting_aside import reason_of
from arrowstate.runtime.core.elements import Barrier, Element, bytes_of, with_schema
from arrowstate.runtime.core.exchange import FRAME_ROWS, Exchange
from arrowstate.runtime.core.explaining import explained
from arrowstate.runtime.core.mapping import MapBody
from arrowstate.runtime.core.sinking import SinkTask
from arrowstate.runtime.functions import MapFunction
from arrowstate.runtime.graph import Edge, Graph, MapNode, Node, SideNode, SinkNode


class Chain:
    """All that follows a task up to the next exchange, in one subtask."""

    def __init__(
        self,
        graph: Graph,
        node: Node,
        uid: str,
        exchanges: Mapping[int, Exchange],
        made: Callable[[SinkNode], SinkTask],
        made_map: Callable[[MapNode], MapBody],
        next_checkpoint: int = 1,
    ) -> None:
        self._node = node
        self._uid = uid
        self.rows_out = 0
        self.bytes_out = 0
        self.exchanges = {edge.number: exchanges[edge.number] for edge in graph.edges_of(node)}
        self.next_checkpoint = next_checkpoint
        "That which the rows under way will be in, unless it is given up."
        self.dead_rows = 0
        "Rows that were set aside since the attempt began."
        self.sinks = {sink.uid: made(sink) for sink in dict.fromkeys(graph.sinks_of(node))}
        self.maps = {id(each): made_map(each) for each in graph.maps_of(node) if isinstance(each.function, MapFunction)}
        "Functions that are opened and closed, by the node of each."

    @property
    def has_room(self) -> bool:
        """Whether every channel may be sent rows of one more step."""
        return all(exchange.has_room for exchange in self.exchanges.values())

    @property
    def step_bytes(self) -> float:
        """How much one step is to send at most."""
        return min((exchange.step_bytes for exchange in self.exchanges.values()), default=inf)

    @property
    def bytes_given(self) -> int:
        """The size of all that was sent: of the channels that got most."""
        return max((exchange.bytes_given for exchange in self.exchanges.values()), default=0)

    def rows(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Give rows on."""
        for batch in batches_of(rows):
            if batch.num_rows:
                self.rows_out += batch.num_rows
                self.bytes_out += bytes_of(batch)
                self._push(self._node, batch)

    def side(self, name: str, rows: pa.RecordBatch | pa.Table) -> None:
        """Give rows of a side output on."""
        for batch in batches_of(rows) if rows.num_rows else ():
            self.rows_out += batch.num_rows
            self.bytes_out += bytes_of(batch)
            self._side(self._node, name, batch)

    def aside(self, dead: DeadLetters) -> None:
        """Give on the rows that the task has set aside."""
        self._aside(self._node, dead)

    def event(self, element: Element) -> None:
        """Tell all channels."""
        if isinstance(element, Barrier):
            self.next_checkpoint = element.checkpoint_id + 1
        for exchange in self.exchanges.values():
            exchange.event(element)

    def _side(self, node: Node, name: str, batch: pa.RecordBatch) -> None:
        for consumer in node.consumers:
            if isinstance(consumer, SideNode) and consumer.name == name:
                self._push(consumer, batch)

    def _aside(self, node: Node, dead: DeadLetters) -> None:
        rows = dead.take()
        self.dead_rows += rows.num_rows
        for batch in batches_of(rows) if rows.num_rows else ():
            self._side(node, dead.name, batch)

    def _push(self, node: Node, batch: pa.RecordBatch) -> None:
        for consumer in node.consumers:
            if isinstance(consumer, MapNode):
                for made in self._mapped(consumer, batch):
                    self._push(consumer, made)
            elif isinstance(consumer, Edge):
                for start in range(0, batch.num_rows, FRAME_ROWS):
                    self.exchanges[consumer.number].rows(batch.slice(start, FRAME_ROWS))
            elif isinstance(consumer, SinkNode):
                with explained(consumer.uid, "rows for the sink"):
                    self.sinks[consumer.uid].write(batch)

    def _mapped(self, node: MapNode, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        with explained(self._uid, "a function of map_batches"):
            if node.dead_letters is None:
                return self._made(node, batch)
            return self._mapped_apart(node, batch, node.dead_letters)

    def _mapped_apart(self, node: MapNode, batch: pa.RecordBatch, table: OutputTable) -> list[pa.RecordBatch]:
        """Return what becomes of the rows that the function does not fail on; the others are set aside."""
        made: list[pa.RecordBatch] = []

        def attempt(start: int, end: int) -> None:
            made.extend(self._made(node, batch.slice(start, end - start)))

        failed = tried(batch.num_rows, attempt, is_of_function)
        dead = DeadLetters(table, self.next_checkpoint)
        for row, failure in failed.items():
            error, reason = reason_of(failure)
            dead.add([pa.array([self._uid])], batch.slice(row, 1).columns, [error], [reason])
        if failed:
            self._aside(node, dead)
        return made

    def _made(self, node: MapNode, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        body = self.maps.get(id(node))
        made = node.function(batch) if body is None else body.process(batch)  # type: ignore[operator]
        batches = [] if made is None else [item for item in batches_of(made) if item.num_rows]
        for item in batches:
            if item.schema.names != node.schema.names or item.schema.types != node.schema.types:
                raise InvalidInputError(
                    f"a function of map_batches after {self._uid!r} must give out the columns that it gave for no "
                    f"rows, {_described(node.schema)}; it gave {_described(item.schema)}"
                )
        return [with_schema(item, node.schema) for item in batches]


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
