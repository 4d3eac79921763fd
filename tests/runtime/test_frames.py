"""What goes over a socket between two slots comes out as it went in."""

import datetime
import socket
import threading

import pyarrow as pa
import pytest

from arrowstate.runtime.core.elements import Barrier, CancelBarrier, EndOfData, Rows, Status, Watermark
from arrowstate.runtime.drivers.frames import Credit, read_frame, write_credit, write_element


@pytest.fixture
def sockets():
    one, two = socket.socketpair()
    with one, two:
        yield one, two


def through(sockets, element, schema=None, *, attempt=3, edge=0):
    """Send an element, and return what comes; a thread sends, for a socket holds little."""
    one, two = sockets
    sender = threading.Thread(target=write_element, args=(one, attempt, edge, element))
    sender.start()
    got = read_frame(two, [schema or pa.schema([])] * (edge + 1))
    sender.join()
    return got


@pytest.mark.parametrize(
    "element",
    [
        Watermark(0),
        Watermark(-(1 << 63)),
        Watermark((1 << 63) - 1),
        Status(True),
        Status(False),
        Barrier(1),
        Barrier(1 << 40),
        Barrier(2, is_full=True),
        Barrier(3, overtakes_at_ms=0),
        Barrier(4, is_full=True, overtakes_at_ms=1 << 50),
        CancelBarrier(17),
        EndOfData(),
    ],
    ids=repr,
)
def test_an_event_comes_as_it_was_with_its_attempt_and_edge(sockets, element):
    assert through(sockets, element, attempt=70_000, edge=2) == (70_000, 2, element)


def test_a_credit_comes_with_its_size_and_its_window(sockets):
    write_credit(sockets[0], 5, 1, 1 << 33, 1 << 34)

    attempt, edge, credit = read_frame(sockets[1], [])

    assert isinstance(credit, Credit)
    assert (attempt, edge, credit.size, credit.window) == (5, 1, 1 << 33, 1 << 34)


NESTED = pa.record_batch(
    {
        "list": pa.array([[1, None], None, [], [2]], pa.list_(pa.int32())),
        "struct": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}, {"a": 4, "b": []}]),
        "map": pa.array([[("k", 1)], [], None, [("l", None)]], pa.map_(pa.string(), pa.int64())),
        "fixed": pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
        "decimal": pa.array([None, 1, 2, 3], pa.decimal128(20, 2)),
        "time": pa.array([datetime.datetime(2024, 1, 1)] * 4, pa.timestamp("us", "UTC")),
        "bool": pa.array([True, False, None, True]),
        "null": pa.nulls(4),
        "long": pa.array(["", "x" * 100_000, None, "é"], pa.large_string()),
    }
)
DICTIONARY = pa.record_batch(
    {
        "word": pa.array(["a", "b", None, "a"]).dictionary_encode(),
        "deep": pa.array([[0], [1], None, []], pa.list_(pa.int8())).cast(pa.list_(pa.int8())),
    }
)
NESTED_DICTIONARY = pa.record_batch(
    {"words": pa.ListArray.from_arrays(pa.array([0, 1, 3, 3]), pa.array(["x", "y", "x"]).dictionary_encode())}
)


@pytest.mark.parametrize(
    "batch",
    [
        NESTED,
        DICTIONARY,
        NESTED_DICTIONARY,
        NESTED.slice(1, 2),
        DICTIONARY.slice(2),
        NESTED_DICTIONARY.slice(1, 1),
        NESTED.slice(0, 0),
        DICTIONARY.slice(4),
        pa.record_batch({"n": pa.array([], pa.int64())}),
        pa.record_batch({"n": pa.array(range(300_000), pa.int64())}),
    ],
    ids=[
        "nested",
        "dictionary",
        "nested-dictionary",
        "slice",
        "dict-slice",
        "nd-slice",
        "none",
        "dict-none",
        "e",
        "big",
    ],
)
def test_rows_of_any_type_and_any_slice_come_as_they_were_with_their_size(sockets, batch):
    attempt, edge, rows = through(sockets, Rows(batch, 12_345), batch.schema, edge=1)

    assert (attempt, edge, rows.bytes) == (3, 1, 12_345)
    assert rows.batch.schema.equals(batch.schema)
    assert rows.batch.to_pylist() == batch.to_pylist()
    rows.batch.validate(full=True)


def test_a_small_slice_of_a_large_batch_is_a_small_frame(sockets):
    batch = pa.record_batch({"n": pa.array(range(1_000_000), pa.int64())}).slice(500_000, 10)
    one, two = sockets

    write_element(one, 1, 0, Rows(batch, 1))

    assert len(two.recv(1 << 20)) < 2_000


def test_batches_with_other_dictionaries_follow_each_other(sockets):
    schema = pa.schema({"word": pa.dictionary(pa.int32(), pa.string())})
    batches = [
        pa.record_batch([pa.array(words).dictionary_encode()], schema=schema) for words in (["a", "b"], ["c"], ["b"])
    ]

    got = [through(sockets, Rows(batch, 1), schema)[2].batch.column(0).to_pylist() for batch in batches]

    assert got == [["a", "b"], ["c"], ["b"]]


def test_frames_come_in_the_order_they_went(sockets):
    one, two = sockets
    batch = pa.record_batch({"n": [1, 2]})
    for element in (Rows(batch, 16), Barrier(1), Rows(batch.slice(1), 8), Watermark(5), EndOfData()):
        write_element(one, 1, 0, element)

    got = [read_frame(two, [batch.schema])[2] for _ in range(5)]

    assert [type(element).__name__ for element in got] == ["Rows", "Barrier", "Rows", "Watermark", "EndOfData"]
    assert [element.batch.num_rows for element in got if isinstance(element, Rows)] == [2, 1]


@pytest.mark.parametrize("kept", [0, 10, 40, -1])
def test_a_socket_that_ends_gives_none_even_within_a_frame(sockets, kept):
    whole, end = socket.socketpair()
    with whole, end:
        write_element(whole, 1, 0, Rows(pa.record_batch({"n": list(range(100))}), 1))
        frame = end.recv(1 << 16)
    one, two = sockets
    one.sendall(frame[:kept])
    one.close()

    assert read_frame(two, [pa.schema({"n": pa.int64()})]) is None
