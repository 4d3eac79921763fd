"""A topic of Kafka read by one of several, each run by a Python that has it; rows are decoded, counted and dropped.

    python kafka_job.py WORK 0 ROWS WHO SERVERS TOPIC

WORK is `json` or `avro`; WHO is `bare`, a loop that only counts messages of `confluent_kafka`, `arrowstate`, `bytewax`
or `quix`. The first quarter of the rows is not timed.
"""

# mypy: ignore-errors
# ruff: noqa: ARG001, ARG002
# No Python has all that is imported.

from __future__ import annotations

import io
import json
import logging
import os
import sys
import tempfile

from kafka_rows import AVRO
from timing import Watch, ready

GROUP = "bench"


class Counted:
    """Counts rows, and takes the time from the end of the first quarter on."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.count = 0
        self.watch = Watch()
        self._has_begun = False

    def add(self, count: int) -> bool:
        """Count some, and return whether that was all."""
        self.count += count
        if not self._has_begun and self.count >= self.rows // 4:
            self._has_begun = True
            self.first = self.count
            self.watch.start()
        if self.count >= self.rows:
            self.watch.stop()
            return True
        return False


def bare(work, counted, servers, topic):
    """Only count what comes."""
    from confluent_kafka import Consumer, TopicPartition

    options = {"bootstrap.servers": servers, "group.id": GROUP, "auto.offset.reset": "earliest"}
    consumer = Consumer({**options, "fetch.queue.backoff.ms": 10})
    consumer.assign([TopicPartition(topic, 0, 0)])
    while not counted.add(len(consumer.consume(1000, 0.05))):
        pass


def arrowstate(work, counted, servers, topic):
    """A job with one slot, in a thread."""
    import pyarrow as pa

    from arrowstate.runtime import AvroFormat, FunctionSink, Job, JsonFormat, KafkaSource

    schema = pa.schema({"user": pa.string(), "amount": pa.int64(), "pad": pa.string(), "at": pa.int64()})
    format = JsonFormat(schema) if work == "json" else AvroFormat(AVRO)
    sys.modules["counting"] = counted
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        job.source(KafkaSource(servers, topic, format, is_bounded=True), uid="rows").sink(
            FunctionSink(_count), uid="count"
        )
        job.run(mode="threads")


def _count(rows):
    sys.modules["counting"].add(rows.num_rows)


def bytewax(work, counted, servers, topic):
    """A dataflow with the connector of Bytewax."""
    import bytewax.operators as op
    from bytewax.connectors.kafka import KafkaSource
    from bytewax.dataflow import Dataflow
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.testing import run_main

    class Nothing(StatelessSinkPartition):
        def write_batch(self, items):
            counted.add(len(items))

    class Nowhere(DynamicSink):
        def build(self, step_id, worker_index, worker_count):
            return Nothing()

    decode = json.loads if work == "json" else _decoder()
    flow = Dataflow("rows")
    source = KafkaSource([servers], [topic], tail=False, batch_size=1000)
    rows = op.map("decode", op.input("rows", flow, source), lambda message: decode(message.value))
    op.output("nowhere", rows, Nowhere())
    run_main(flow)


def quix(work, counted, servers, topic):
    """An application of Quix."""
    from quixstreams import Application
    from quixstreams.models.serializers.avro import AvroDeserializer

    app = Application(
        broker_address=servers, consumer_group=f"{GROUP}-{os.getpid()}", auto_offset_reset="earliest", loglevel="ERROR"
    )
    given = app.topic(topic, value_deserializer="json" if work == "json" else AvroDeserializer(schema=AVRO))

    def count(row):
        if counted.add(1):
            app.stop()

    frame = app.dataframe(given)
    frame = frame.update(count)
    app.run()


def _decoder():
    import fastavro

    parsed = fastavro.parse_schema(AVRO)
    return lambda value: fastavro.schemaless_reader(io.BytesIO(value), parsed)


def main(work, rows, who, servers, topic):
    """Read the topic."""
    logging.disable(logging.WARNING)
    counted = Counted(rows)
    ready()
    {"bare": bare, "arrowstate": arrowstate, "bytewax": bytewax, "quix": quix}[who](work, counted, servers, topic)
    counted.watch.done(rows // 4 * 3)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[3]), *sys.argv[4:])
