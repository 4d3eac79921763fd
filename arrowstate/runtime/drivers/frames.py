"""What goes over a socket between two slots: a header of fixed size, then the rows of a record batch as Arrow IPC.

Rows go without their schema, which both sides know from the plan; rows with dictionaries go with it, for an Arrow
message has no room for those.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import pyarrow as pa

from arrowstate.runtime.core.elements import (
    Barrier,
    CancelBarrier,
    Element,
    EndOfData,
    Rows,
    Status,
    Watermark,
)

_HEADER = struct.Struct("<BIIqQ")
"""Kind, attempt, edge, a number, and the bytes that follow; of a credit, which nothing follows, its window."""

_BARRIER_BODY = struct.Struct("<??q")
"""Whether it is full, whether it ever overtakes, and from when on."""

_ROWS, _ROWS_WITH_SCHEMA, _WATERMARK, _STATUS, _BARRIER, _CANCEL, _END, _CREDIT = range(8)


class Credit:
    """Rows of this size were taken up, and so much may be in flight."""

    __slots__ = ("size", "window")

    def __init__(self, size: int, window: int) -> None:
        self.size = size
        self.window = window


def write_element(to: socket.socket, attempt: int, edge: int, element: Element) -> None:
    """Send an element."""
    payload: pa.Buffer | bytes | None = None
    match element:
        case Rows(batch, number):
            kind = _ROWS_WITH_SCHEMA if _has_dictionary(batch.schema) else _ROWS
            payload = _with_schema(batch) if kind == _ROWS_WITH_SCHEMA else batch.serialize()
        case Watermark(number):
            kind = _WATERMARK
        case Status(is_idle):
            kind, number = _STATUS, int(is_idle)
        case Barrier(number, is_full, at_ms):
            kind, payload = _BARRIER, _BARRIER_BODY.pack(is_full, at_ms is not None, at_ms or 0)
        case CancelBarrier(number):
            kind = _CANCEL
        case EndOfData():
            kind, number = _END, 0
    size = 0 if payload is None else memoryview(payload).nbytes
    to.sendall(_HEADER.pack(kind, attempt, edge, number, size))
    if payload is not None:
        to.sendall(memoryview(payload))


def write_credit(to: socket.socket, attempt: int, edge: int, size: int, window: int) -> None:
    """Tell a sender that rows were taken up, and how much may be in flight."""
    to.sendall(_HEADER.pack(_CREDIT, attempt, edge, size, window))


def read_frame(of: socket.socket, schemas: list[pa.Schema]) -> tuple[int, int, Element | Credit] | None:
    """Return attempt, edge and element of the next frame; None at the end. `schemas` are those of the edges."""
    header = bytearray(_HEADER.size)
    if not _fill(of, memoryview(header)):
        return None
    kind, attempt, edge, number, size = _HEADER.unpack(header)
    element: Element | Credit
    if kind in (_ROWS, _ROWS_WITH_SCHEMA):
        buffer = pa.allocate_buffer(size)
        if not _fill(of, memoryview(buffer).cast("B")):
            return None
        if kind == _ROWS:
            batch = pa.ipc.read_record_batch(buffer, schemas[edge])
        else:
            batch = pa.ipc.open_stream(buffer).read_next_batch()
        element = Rows(batch, number)
    elif kind == _WATERMARK:
        element = Watermark(number)
    elif kind == _STATUS:
        element = Status(bool(number))
    elif kind == _BARRIER:
        body = bytearray(size)
        if not _fill(of, memoryview(body)):
            return None
        is_full, overtakes, at_ms = _BARRIER_BODY.unpack(body)
        element = Barrier(number, is_full, at_ms if overtakes else None)
    elif kind == _CANCEL:
        element = CancelBarrier(number)
    elif kind == _END:
        element = EndOfData()
    else:
        element = Credit(number, size)
    return attempt, edge, element


def _fill(of: socket.socket, view: memoryview) -> bool:
    while view.nbytes:
        count = of.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def _with_schema(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _has_dictionary(schema: pa.Schema) -> bool:
    return any(_holds_dictionary(field.type) for field in schema)


def _holds_dictionary(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_holds_dictionary(kind.field(number).type) for number in range(kind.num_fields))
