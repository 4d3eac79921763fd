"""Messages of Kafka a second, decoded: the source of a job beside Bytewax, Quix and a loop that only counts.

One partition, messages of some 100 bytes as JSON and of 60 as Avro, one slot, and a broker that keeps all in memory
(Tansu, in a process of its own; `--servers` names another). The loop of confluent-kafka decodes nothing: it is what the
client gives. All contenders of a round read the same topic, in turns, each in a process that is started before the
clock; the first quarter of the messages is not timed. Processor time is that of the reader without the broker. On few
cores wall time is that of broker and reader together, so the ratio in processor time says more.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Contender, Report, Series, argument_parser
from benchmarks.peers.kafka_rows import AVRO
from benchmarks.runtime_peers import KAFKA_PEERS, Peer, python_with

ROOT = Path(__file__).resolve().parents[2]


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("kafka", __doc__, rounds=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="messages of a round (default 1 M)")
    parser.add_argument("--peer-rows", type=int, default=200_000, help="the same of peers (default 200,000)")
    parser.add_argument("--servers", help="a broker; by default Tansu is started")
    for peer in KAFKA_PEERS:
        parser.add_argument(f"--{peer}", type=Path, help="a Python that has it; `none` leaves it out")
    arguments = parser.parse_args(argv)
    report = Report("kafka", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as name, _broker(arguments.servers) as servers:
        folder = Path(name)
        given = {peer: getattr(arguments, peer.replace("-", "_")) for peer in KAFKA_PEERS}
        found = {peer: python_with(peer, given[peer], folder) for peer in KAFKA_PEERS}
        pythons = {peer.partition("-")[0]: python for peer, python in found.items() if python is not None}
        for work, messages in (("json", _json), ("avro", _avro)):
            rows = {"arrowstate": arguments.rows, "bare": arguments.rows}
            rows |= dict.fromkeys(pythons, arguments.peer_rows)
            for count in sorted(set(rows.values())):
                _fill(servers, f"{work}-{count}", messages(count))
            _compare(report, folder, servers, work, rows, {"arrowstate": Path(sys.executable), **pythons})
    return report.finish()


def _compare(
    report: Report, folder: Path, servers: str, work: str, rows: dict[str, int], pythons: dict[str, Path]
) -> None:
    jobs = {}
    for who, count in rows.items():
        python = pythons.get(who, Path(sys.executable))
        jobs[who] = Peer(folder, "kafka", python, work, 0, count, who, servers, f"{work}-{count}")
    contenders = [Contender(who, job.run, job.timed_rows, prepare=job.prepare) for who, job in jobs.items()]
    series = {one.name: one for one in report.compare(f"{work} decoded", "messages", contenders)}
    ours = series.pop("arrowstate")
    report.require(f"{work}: wall time against the loop", _ratio(ours, series["bare"]), at_least=0.8, unit="times")
    report.figure(f"{work}: processor time of the loop against ours", _ratio_of_cpu(ours, series["bare"]), "times")
    for who in series.keys() - {"bare"}:
        report.require(f"{work}: wall time against {who}", _ratio(ours, series[who]), at_least=5, unit="times")
        report.figure(f"{work}: processor time of {who} against ours", _ratio_of_cpu(ours, series[who]), "times")


def _ratio(ours: Series, peer: Series) -> float:
    return statistics.median(ours.times_better_than(peer))


def _ratio_of_cpu(ours: Series, peer: Series) -> float:
    assert ours.amount is not None
    assert peer.amount is not None
    pairs = zip(ours.cpu_seconds, peer.cpu_seconds, strict=True)
    return statistics.median((theirs / peer.amount) / (own / ours.amount) for own, theirs in pairs)


@contextmanager
def _broker(servers: str | None) -> Iterator[str]:
    """Give the broker that was named, or run one."""
    if servers is not None:
        yield servers
        return
    sys.path.append(str(ROOT / "tests/support"))
    from kafka_brokers import tansu_broker  # type: ignore[import-not-found]

    with tansu_broker() as own:
        yield own


def _rows(count: int) -> Iterator[dict[str, object]]:
    for number in range(count):
        yield {"user": f"user{number % 1000:06}", "amount": number, "pad": "x" * 30, "at": 1_700_000_000_000 + number}


def _json(count: int) -> list[bytes]:
    return [json.dumps(row).encode() for row in _rows(count)]


def _avro(count: int) -> list[bytes]:
    import fastavro

    parsed = fastavro.parse_schema(AVRO)
    made = []
    for row in _rows(count):
        text = io.BytesIO()
        fastavro.schemaless_writer(text, parsed, row)
        made.append(text.getvalue())
    return made


def _fill(servers: str, topic: str, messages: Sequence[bytes]) -> None:
    """Make a topic of one partition."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "batch.num.messages": 10_000})
    for first in range(0, len(messages), 50_000):
        producer.produce_batch(topic, [{"value": message} for message in messages[first : first + 50_000]], partition=0)
        producer.flush()
