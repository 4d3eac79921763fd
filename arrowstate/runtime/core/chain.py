"""What becomes of the rows that a task gives out: functions without state, then channels and sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.processing.failing import explained
from arrowstate.processing.runner import batches_of
from arrowstate.runtime.core.elements import Element, bytes_of
from arrowstate.runtime.core.exchange import FRAME_ROWS, Exchange
from arrowstate.runtime.core.sinking import SinkTask
from arrowstate.runtime.graph import Edge, Graph, MapNode, Node, SideNode, SinkNode

__all__ = ["Chain"]


class Chain:
    """All that follows a task up to the next exchange, in one subtask."""

    def __init__(
        self,
        graph: Graph,
        node: Node,
        uid: str,
        exchanges: Mapping[int, Exchange],
        made: Callable[[SinkNode], SinkTask],
    ) -> None:
        self._node = node
        self._uid = uid
        self.rows_out = 0
        self.bytes_out = 0
        self.exchanges = {edge.number: exchanges[edge.number] for edge in graph.edges_of(node)}
        self.sinks = {sink.uid: made(sink) for sink in dict.fromkeys(graph.sinks_of(node))}

    @property
    def has_room(self) -> bool:
        """Whether every channel may be sent rows of one more step."""
        return all(exchange.has_room for exchange in self.exchanges.values())

    def rows(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Give rows on."""
        for batch in batches_of(rows):
            if batch.num_rows:
                self.rows_out += batch.num_rows
                self.bytes_out += bytes_of(batch)
                self._push(self._node, batch)

    def side(self, name: str, rows: pa.RecordBatch | pa.Table) -> None:
        """Give rows of a side output on."""
        for consumer in self._node.consumers:
            if isinstance(consumer, SideNode) and consumer.name == name:
                for batch in batches_of(rows):
                    if batch.num_rows:
                        self._push(consumer, batch)

    def event(self, element: Element) -> None:
        """Tell all channels."""
        for exchange in self.exchanges.values():
            exchange.event(element)

    def _push(self, node: Node, batch: pa.RecordBatch) -> None:
        for consumer in node.consumers:
            if isinstance(consumer, MapNode):
                for made in self._mapped(consumer, batch):
                    self._push(consumer, made)
            elif isinstance(consumer, Edge):
                for start in range(0, batch.num_rows, FRAME_ROWS):
                    self.exchanges[consumer.number].rows(batch.slice(start, FRAME_ROWS))
            elif isinstance(consumer, SinkNode):
                self.sinks[consumer.uid].write(batch)

    def _mapped(self, node: MapNode, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        with explained(self._uid, "a function of map_batches"):
            made = node.function(batch)
        for item in [] if made is None else batches_of(made):
            if item.schema.names != node.schema.names or item.schema.types != node.schema.types:
                raise InvalidInputError(
                    f"a function of map_batches after {self._uid!r} must give out the columns that it gave for no "
                    f"rows, {_described(node.schema)}; it gave {_described(item.schema)}"
                )
            if item.num_rows:
                yield item


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
