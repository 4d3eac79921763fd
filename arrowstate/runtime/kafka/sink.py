"""A sink of a topic of Kafka: rows and token in one transaction.

No transaction stays open between a checkpoint and its commit: rows wait in the checkpoint, are sent after it, and a
record in another topic says with them which they were. So no client has to resume a transaction, which none can, and no
timeout of the broker loses rows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.runtime.connectors import Sink, Token
from arrowstate.runtime.kafka.client import Client, error_of
from arrowstate.runtime.kafka.formats import Encode, Format, JsonFormat
from arrowstate.schema.times import whole_milliseconds

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer

_RESERVED = {
    "bootstrap.servers": "it is the first argument",
    "transactional.id": "it follows from the store and the uid, so that a later start shuts out an earlier one",
    "enable.idempotence": "it is on",
    "partitioner": "say it with partitioner=",
}
_HEADERS = pa.map_(pa.string(), pa.binary())
_PARTITIONERS = ("murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a", "random")
_CHUNK_ROWS = 20_000
"""How many messages are handed to the client before they are waited for, fewer if they are large."""

_CHUNK_BYTES = 64 << 20

_ABORT_SECONDS = 5.0
"""How long a broker may take to hear that a transaction is given up; if it does not, the next start tells it."""

_SHUT_OUT = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_STATE")

_TRIES = 3
"""How often a commit is tried that another start of the job shuts out."""


class KafkaSink(Sink):
    """Sends the rows of each checkpoint to a topic of Kafka: exactly once, for readers of `read_committed`.

    The rows of a checkpoint and subtask are one transaction, together with a record in `token_topic`: its key is
    `<store id>/<uid>/<subtask>`, its value the number of the checkpoint. Rows whose token is there are skipped. The
    transactional id is `arrowstate/<store id>/<uid>`, so a job that starts again ends what an earlier process left
    open, and shuts that process out. The token topic is made if it is missing, with one partition and compaction. If
    its records are deleted, rows may come twice.

    Parameters
    ----------
    servers : str
        Brokers to begin with, as `host:port`, several with commas.
    topic : str
        The topic, which must exist.
    value : Format, default JsonFormat()
        How the value of a message is made of columns; without a `schema` of its own, of all that nothing else takes.
    key : Format, optional
        How the key of a message is made of columns, for example `RawFormat("user")`. Rows with the same key go to the
        same partition. Columns of the key are part of the value too if the value's format names them.
    headers : str, optional
        A column of type `map<string, binary>` with the headers of a message.
    partition : str, optional
        An integer column with the number of the partition; by default the partitioner chooses.
    timestamp : str, optional
        A column with the timestamp of the message, a timestamp or milliseconds since 1970; by default when it is sent.
        Finer digits than milliseconds are cut. The client takes 0, the first millisecond of 1970, for none.
    partitioner : str, default "murmur2_random"
        How a partition follows from the key, in the words of librdkafka; the default is that of Java's clients.
    guarantee : {"exactly-once", "at-least-once"}, default "exactly-once"
        Without transactions a broker needs less rights and readers see rows earlier, but rows may come again after a
        failure.
    token_topic : str, default "arrowstate_commits"
        The topic of the tokens; several sinks and jobs may share it.
    timeout_ms : int, default 60_000
        How long a broker may take for a commit, in milliseconds. If it takes longer the job fails and starts again by
        its strategy.
    options : mapping, optional
        Options of librdkafka, such as `security.protocol`, `sasl.password` or `compression.type`. They are sent to the
        processes of the job, secrets too.

    Raises
    ------
    MissingDependencyError
        If confluent-kafka is not installed: `pip install 'arrowstate[kafka]'`.
    InvalidInputError
        If an argument is wrong; while the job runs if there is no such topic, if rows do not fit their format, if a
        message is larger than the topic allows, or if the user may not write.
    UnavailableError
        While the job runs, if brokers or registry give no answer in time.

    Notes
    -----
    Rows become visible after their checkpoint, and stay in the order of each subtask. A reader without
    `isolation.level=read_committed` also sees rows of transactions that failed and came again. A job whose store is
    copied has the same store id: only one of the copies may run.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import KafkaSink, RawFormat
    >>> KafkaSink("broker:9092", "totals", key=RawFormat("user", pa.string()), options={"sasl.password": "secret"})
    KafkaSink('broker:9092', 'totals')
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        value: Format | None = None,
        *,
        key: Format | None = None,
        headers: str | None = None,
        partition: str | None = None,
        timestamp: str | None = None,
        partitioner: str = "murmur2_random",
        guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
        token_topic: str = "arrowstate_commits",  # noqa: S107 (no password)
        timeout_ms: int = 60_000,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.client = Client("KafkaSink", servers, options, _RESERVED, timeout_ms)
        names: dict[str, object] = {"topic": topic, "token_topic": token_topic}
        for name, text in names.items():
            if not isinstance(text, str) or not text:
                raise InvalidInputError(f"{name} must be the name of a topic, got {text!r}")
        if topic == token_topic:
            raise InvalidInputError(f"rows and tokens need two topics, got {topic!r} for both")
        if guarantee not in ("exactly-once", "at-least-once"):
            raise InvalidInputError(f"guarantee must be 'exactly-once' or 'at-least-once', got {guarantee!r}")
        if partitioner not in _PARTITIONERS:
            raise InvalidInputError(f"partitioner must be one of {', '.join(_PARTITIONERS)}, got {partitioner!r}")
        for name, format in {"value": value, "key": key}.items():
            if format is not None and not isinstance(format, Format):
                raise InvalidInputError(f"{name} must be a Format, such as JsonFormat(), got {format!r}")
        self.topic = topic
        self.value = JsonFormat() if value is None else value
        self.key = key
        self.columns = {"headers": headers, "partition": partition, "timestamp": timestamp}
        self.partitioner = partitioner
        self.guarantee = guarantee
        self.token_topic = token_topic
        self._forget()

    def __repr__(self) -> str:
        # Without the options, which may have a password.
        return f"KafkaSink({self.client.servers!r}, {self.topic!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._name: tuple[str, str] | None = None
        self._producer: Producer | None = None
        self._tokens: dict[str, int] = {}
        self._is_open = False
        "Whether a transaction was begun."
        self._encode: tuple[pa.Schema, _Messages] | None = None

    @property
    def place(self) -> str | None:  # type: ignore[override]
        """The topics of rows and tokens."""
        if self.guarantee == "at-least-once":
            return f"topic {self.topic!r} at least once"
        return f"topic {self.topic!r} with tokens in topic {self.token_topic!r}"

    def check_schema(self, uid: str, schema: pa.Schema) -> None:  # noqa: ARG002
        """Refuse columns that messages cannot be made of."""
        _Messages(self, schema)

    def open(self, store_id: str, uid: str) -> None:
        """Look for the topic, make that of the tokens if it is missing, and shut out an earlier start of the job."""
        self.close()
        self._name = store_id, uid
        self._check_topics()
        self._begin()

    def commit(self, rows: pa.Table, token: Token) -> None:
        """Send rows, and their token with them, unless it is there."""
        if not rows.num_rows:
            return
        if self._encode is None or not self._encode[0].equals(rows.schema):
            self._encode = rows.schema, _Messages(self, rows.schema)
        messages = self._encode[1]
        if (token.store_id, token.uid) != self._name:
            # Rows of a savepoint have the token of the job that took it. Its own producer is used for them, so that
            # the two jobs shut each other out.
            self.close()
            self._name = token.store_id, token.uid
        for left in reversed(range(_TRIES)):
            try:
                if self._producer is None:
                    self._begin()
                self._send(rows, token, messages)
                return
            except Exception as exception:
                self.close()
                error = error_of(exception)
                if error is None:
                    raise
                # Another start of the job was there, and has committed these rows or not: its token tells.
                if not left or error.name() not in _SHUT_OUT:
                    raise self.client.error(self._doing(token), error) from None

    def close(self) -> None:
        """Close the producer, and give up what it has not committed."""
        producer, self._producer = self._producer, None
        self._tokens = {}
        is_open, self._is_open = self._is_open, False
        if producer is None:
            return
        # What is not sent must not be sent later, by the end of the client.
        producer.purge()
        if is_open:
            # Where that fails, as for one that was shut out, there is nothing to give up or nobody to tell.
            with suppress(Exception):
                producer.abort_transaction(min(self.client.timeout, _ABORT_SECONDS))
        producer.flush(0)

    def _doing(self, token: Token) -> str:
        return f"sending the rows of checkpoint {token.checkpoint_id} to topic {self.topic!r}"

    # One transaction.

    def _send(self, rows: pa.Table, token: Token, messages: _Messages) -> None:
        producer = self._producer
        assert producer is not None
        key = f"{token.store_id}/{token.uid}/{token.subtask}"
        is_once = self.guarantee == "exactly-once"
        if is_once:
            if self._tokens.get(key, 0) >= token.checkpoint_id:
                return
            producer.begin_transaction()
            self._is_open = True
        failed: list[KafkaError] = []
        ends = time.monotonic() + self.client.timeout
        most = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES * rows.num_rows // max(rows.nbytes, 1)))
        for batch in rows.to_batches(max_chunksize=most):
            messages.produce(producer, batch, failed)
            self._wait(producer, failed, ends, token)
        if not is_once:
            return
        producer.produce(self.token_topic, str(token.checkpoint_id), key)
        producer.commit_transaction(max(ends - time.monotonic(), 1))
        self._is_open = False
        self._tokens[key] = token.checkpoint_id

    def _wait(self, producer: Producer, failed: Sequence[KafkaError], ends: float, token: Token) -> None:
        """Wait until all messages were delivered."""
        from confluent_kafka import KafkaException

        left = producer.flush(max(ends - time.monotonic(), 0))
        if failed:
            error = failed[0]
            if error.name() == "MSG_SIZE_TOO_LARGE":
                raise InvalidInputError(
                    f"{self._doing(token)}: a message is larger than may be sent ({error.str()}); set "
                    "max.message.bytes of the topic and message.max.bytes in options=, or make smaller rows"
                )
            raise KafkaException(error)
        if left:
            raise self.client.unavailable(
                self._doing(token), f"{left} messages were not delivered in {self.client.timeout} s"
            )

    # The begin.

    def _begin(self) -> None:
        """Make a producer, shut out those before, and read the tokens."""
        from confluent_kafka import Producer

        assert self._name is not None, "a sink is opened before it is used"
        store_id, uid = self._name
        configuration = self.client.configuration(enable_idempotence=True, partitioner=self.partitioner)
        # What a checkpoint has is sent at once.
        configuration = {
            "linger.ms": 5,
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": 10 * _CHUNK_ROWS,
            **configuration,
        }
        if self.guarantee == "exactly-once":
            configuration["transactional.id"] = f"arrowstate/{store_id}/{uid}"
            configuration.setdefault(
                "transaction.timeout.ms", min(max(int(self.client.timeout * 1000), 10_000), 900_000)
            )
        doing = f"opening {self!r}"
        try:
            producer = Producer(configuration)
            if self.guarantee == "exactly-once":
                producer.init_transactions(self.client.timeout)
                # Only now: whoever was shut out adds no token any more.
                self._tokens = self._read_tokens(f"{store_id}/{uid}/")
        except Exception as exception:
            error = error_of(exception)
            if error is None:
                raise
            raise self.client.error(doing, error) from None
        self._producer = producer

    def _check_topics(self) -> None:
        """Look for the topic of the rows, and for that of the tokens, which is made if it is missing."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(self.client.configuration())
        timeout = self.client.timeout
        doing = f"looking for topic {self.topic!r}"
        try:
            # To ask for one topic makes it, where the broker makes topics by itself.
            known = admin.list_topics(timeout=timeout).topics
            if self.topic not in known:
                raise InvalidInputError(
                    f"{self!r}: there is no such topic, or the user of this job may not see it; make it first"
                )
            if self.guarantee == "exactly-once" and self.token_topic not in known:
                doing = (
                    f"making topic {self.token_topic!r} for the tokens, with one partition and cleanup.policy=compact"
                )
                topic = NewTopic(self.token_topic, 1, -1, config={"cleanup.policy": "compact"})
                admin.create_topics([topic], operation_timeout=timeout, request_timeout=timeout)[
                    self.token_topic
                ].result()
        except Exception as exception:
            error = error_of(exception)
            if error is None:
                raise
            # Another job may make it in the same moment.
            if error.name() != "TOPIC_ALREADY_EXISTS":
                raise self.client.error(doing, error) from None

    def _read_tokens(self, prefix: str) -> dict[str, int]:
        """Return the newest checkpoint of each subtask whose rows were committed."""
        from confluent_kafka import Consumer, KafkaException

        configuration = {
            **self.client.configuration(group_id="arrowstate", enable_auto_commit=False, enable_partition_eof=True),
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
            "isolation.level": "read_committed",
        }
        ends_at = time.monotonic() + self.client.timeout
        consumer = Consumer(configuration)
        try:
            ends = self._ends(consumer, configuration)
            tokens: dict[str, int] = {}
            while ends:
                if time.monotonic() > ends_at:
                    reason = "its end was not reached: a transaction of another job is open, or the broker is away"
                    raise self.client.unavailable(f"reading tokens in topic {self.token_topic!r}", reason)
                message = consumer.poll(0.1)
                error = None if message is None else message.error()
                if error is not None and error.name() == "_PARTITION_EOF":
                    # Before an open transaction of another job too: tokens may follow it.
                    if message.offset() >= ends[message.partition()]:
                        del ends[message.partition()]
                elif error is not None:
                    raise KafkaException(error)
                elif message is not None:
                    key = (message.key() or b"").decode(errors="replace")
                    if key.startswith(prefix):
                        tokens[key] = max(int(message.value() or b"0"), tokens.get(key, 0))
            return tokens
        finally:
            consumer.close()

    def _ends(self, consumer: Consumer, configuration: Mapping[str, Any]) -> dict[int, int]:
        """Let a consumer read the topic of the tokens from its beginning; return the end of each partition."""
        from confluent_kafka import Consumer, TopicPartition

        timeout = self.client.timeout
        # One that reads what is committed takes the first open transaction for the end.
        asking = Consumer({**configuration, "isolation.level": "read_uncommitted"})
        try:
            partitions = asking.list_topics(self.token_topic, timeout=timeout).topics[self.token_topic].partitions
            ends, places = {}, []
            for partition in partitions:
                place = TopicPartition(self.token_topic, partition)
                place.offset, ends[partition] = asking.get_watermark_offsets(place, timeout=timeout)
                places.append(place)
        finally:
            asking.close()
        consumer.assign(places)
        return ends


class _Messages:
    """Makes messages of rows of one schema, and hands them to a producer."""

    def __init__(self, sink: KafkaSink, schema: pa.Schema) -> None:
        self._topic = sink.topic
        self._columns = {name: column for name, column in sink.columns.items() if column is not None}
        for name, column in self._columns.items():
            if column not in schema.names:
                raise InvalidInputError(
                    f"there is no column {column!r} for {name}; the rows have {', '.join(schema.names)}"
                )
        for name, column in self._columns.items():
            _check_column(name, schema.field(column))
        self._key: Encode | None = None
        taken = set(self._columns.values())
        if sink.key is not None:
            self._key = sink.key.encoder(schema, f"{sink.topic}-key")
            taken.update(sink.key.schema.names if sink.key.schema is not None else ())
        # A format without columns of its own makes messages of what nothing else takes.
        self._names = [name for name in schema.names if sink.value.schema is not None or name not in taken]
        self._value = sink.value.encoder(pa.schema([schema.field(name) for name in self._names]), f"{sink.topic}-value")

    def produce(self, producer: Producer, rows: pa.RecordBatch, failed: list[KafkaError]) -> None:
        """Hand the rows of a batch to a producer; errors of messages are added to `failed`."""

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(error)

        parts: dict[str, Sequence[Any]] = {"value": self._value(rows.select(self._names))}
        if self._key is not None:
            parts["key"] = self._key(rows)
        for name, column in self._columns.items():
            parts[name] = _plain(name, rows.column(column))
        names = list(parts)
        # A batch of the client has neither headers nor timestamps.
        if not {"headers", "timestamp"}.isdisjoint(names):
            for values in zip(*parts.values(), strict=True):
                given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
                producer.produce(self._topic, on_delivery=delivered, **given)
            return
        # What is null is left out: a message without a key, or one for any partition.
        messages = [
            {name: value for name, value in zip(names, values, strict=True) if value is not None}
            for values in zip(*parts.values(), strict=True)
        ]
        if producer.produce_batch(self._topic, messages, on_delivery=delivered) < len(messages):
            failed.append(next(message["_error"] for message in messages if "_error" in message))


def _check_column(name: str, field: pa.Field) -> None:
    """Refuse a column of another type than what it is for."""
    if name == "headers" and field.type != _HEADERS:
        raise InvalidInputError(f"headers need a column of {_HEADERS}, and {field.name!r} is {field.type}")
    if name == "partition" and not pa.types.is_integer(field.type):
        raise InvalidInputError(f"partition needs a column of integers, and {field.name!r} is {field.type}")
    is_time = pa.types.is_timestamp(field.type) or pa.types.is_date(field.type)
    if name == "timestamp" and not is_time and not pa.types.is_integer(field.type):
        raise InvalidInputError(
            f"timestamp needs a column of timestamps or of milliseconds since 1970, and {field.name!r} is {field.type}"
        )


def _plain(name: str, column: pa.Array) -> list[Any]:
    """Return what the client takes for a column."""
    if name == "timestamp":
        if pa.types.is_timestamp(column.type):
            return whole_milliseconds(column).to_pylist()
        if pa.types.is_date(column.type):
            column = column.cast(pa.timestamp("ms"))
        return column.cast(pa.int64()).to_pylist()
    if name == "headers":
        return [headers or None for headers in column.to_pylist()]
    return column.to_pylist()
