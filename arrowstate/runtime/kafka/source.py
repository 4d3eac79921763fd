"""A source of topics of Kafka: a split is a partition, a position is an offset, and both are state of the job.

A reader has one consumer for all its partitions, which fetches in threads of its own. It takes many messages with one
call, and groups them by partition; functions over all messages of a batch are called by `map`, never by a loop.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError, SourceError, UnavailableError
from arrowstate.runtime.connectors import Batch, EndOfSplit, Reader, Source, Split, UnreadRows, check_follows
from arrowstate.runtime.kafka.client import Client, error_of
from arrowstate.runtime.kafka.formats import Decode, Format, RawFormat
from arrowstate_formats.integers import check_integer

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

Start: TypeAlias = Literal["earliest", "latest", "group"] | int | dt.datetime

METADATA = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "headers": pa.map_(pa.string(), pa.binary()),
}
"""What a message has besides key and value."""

_RESERVED = {
    "bootstrap.servers": "it is the first argument",
    "group.id": "say it with group=",
    "enable.auto.commit": "offsets are committed after a checkpoint, to the group of group=",
    "enable.auto.offset.store": "offsets are part of the checkpoints",
    "enable.partition.eof": "say with is_bounded= whether partitions end",
    "auto.offset.reset": "say with start= where to begin, and with on_lost= what happens if rows are gone",
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NO_GROUP = "arrowstate"
"""A client needs the name of a group, though this one is no member of it and commits nothing."""

_UNREAD = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
_DEFAULTS = {"isolation.level": "read_committed", "fetch.queue.backoff.ms": 10}
"""Options that hold unless the user sets them. Without the second the client asks for nothing for a whole second when
it has 100,000 messages that wait, and a reader that is fast has read them long before."""

_MOST_MESSAGES = 2_000
"""How many messages are taken with one call: objects of more messages take memory that is new each time."""

_LOOK_SECONDS = 2.0
"""How long a look for new partitions may take while the job runs: commits wait for it."""


class KafkaSource(Source):
    """Reads topics of Kafka. Offsets are part of the checkpoints, so each message counts once.

    A split is a partition, named `<topic>-<partition>`, and its position is the offset of the next message. So
    `select split, position from <uid>.splits` says how far the topics were read. Consumer groups take no part in this:
    each partition is read by one subtask, and offsets are committed to `group` only for others to see.

    Partitions that are added to a topic are found while the job runs, and are read from their beginning. If a topic is
    deleted, has fewer partitions, or has lost messages that were not read yet, the job fails and says so.

    Parameters
    ----------
    servers : str
        Brokers to begin with, as `host:port`, several with commas.
    topics : str or sequence of str
        The topics, which must exist.
    value : Format, default RawFormat("value")
        How columns are made of the value of a message.
    key : Format, optional
        How columns are made of its key; they come first. Without it the key is passed over.
    metadata : sequence of str, or mapping of str to str
        What else becomes a column, after the others: `topic`, `partition`, `offset`, `timestamp` and `headers`; a
        mapping gives them other names.
    start : {"earliest", "latest", "group"}, int or datetime, default "earliest"
        Where the first start of the job begins: with the first message that there is, after the last, with the offsets
        that `group` has committed (and the first message where it has none), or with the first message whose timestamp
        is at least this, in milliseconds since 1970 or as a datetime with a time zone. Later starts go on where the
        checkpoint is.
    group : str, optional
        A consumer group to which offsets are committed after each checkpoint.
    is_bounded : bool, default False
        Whether the source ends: each partition where it has no more messages when it is read.
    on_lost : {"fail", "earliest"}, default "fail"
        What happens if the broker has deleted messages that were not read yet: the job fails, or it goes on with the
        first message that there is.
    discovery_ms : int, default 10_000
        How often new partitions are looked for, in milliseconds.
    timeout_ms : int, default 10_000
        How long the brokers may take to answer at a start, in milliseconds.
    options : mapping, optional
        Options of librdkafka, such as `security.protocol`, `sasl.password`, or `isolation.level`, which is
        `read_committed` if nothing else is said, and `fetch.queue.backoff.ms`, which is 10. They are sent to the
        processes of the job, secrets too.

    Raises
    ------
    MissingDependencyError
        If confluent-kafka is not installed: `pip install 'arrowstate[kafka]'`.
    InvalidInputError
        If an argument is wrong or two columns have one name.
    SourceError
        While the job runs, if a topic is gone, has lost messages, or may not be read.
    UnavailableError
        At a start, if no broker answers. While the job runs, a broker that is away is waited for.

    Notes
    -----
    A message that does not fit its format fails the job, or becomes a dead letter with `on_error="dead_letter"`, whose
    key has `topic`, `partition`, `offset`, and the bytes of `key` and `value`. A message without a value, a tombstone,
    is a row whose columns of the value are null. A topic that was deleted and made again is not told from the old one
    if it has as many messages.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from arrowstate.runtime import JsonFormat, KafkaSource
    >>> payment = JsonFormat(pa.schema({"user": pa.string(), "amount": pa.int64()}))
    >>> source = KafkaSource("broker:9092", "payments", payment, metadata={"timestamp": "at"})
    >>> source.schema.names
    ['user', 'amount', 'at']
    """

    position_type = pa.int64()
    unread_schema = _UNREAD

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str],
        value: Format | None = None,
        *,
        key: Format | None = None,
        metadata: Sequence[str] | Mapping[str, str] = (),
        start: Start = "earliest",
        group: str | None = None,
        is_bounded: bool = False,
        on_lost: Literal["fail", "earliest"] = "fail",
        discovery_ms: int = 10_000,
        timeout_ms: int = 10_000,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.client = Client("KafkaSource", servers, options, _RESERVED, timeout_ms)
        self.topics = _checked_topics(topics)
        self.value = RawFormat("value") if value is None else value
        self.key = key
        self.metadata = dict(metadata) if isinstance(metadata, Mapping) else {name: name for name in metadata}
        self.start = _checked_start(start, group)
        self.group = group
        self.is_bounded = is_bounded
        if on_lost not in ("fail", "earliest"):
            raise InvalidInputError(f"on_lost must be 'fail' or 'earliest', got {on_lost!r}")
        self.on_lost = on_lost
        self.discovery_ms = check_integer("discovery_ms", discovery_ms, 1)
        self.schema = self._columns()

    def __repr__(self) -> str:
        # Without the options, which may have a password.
        return f"KafkaSource({self.client.servers!r}, {', '.join(map(repr, self.topics))})"

    def _columns(self) -> pa.Schema:
        fields: list[pa.Field] = []
        for what, format in (("key", self.key), ("value", self.value)):
            if format is None:
                continue
            if not isinstance(format, Format):
                raise InvalidInputError(f"{what} must be a Format, such as JsonFormat(...), got {format!r}")
            if format.schema is None:
                raise InvalidInputError(f"the format of the {what} needs a schema= to be read with")
            # A message without a value has none of its columns.
            fields += [field.with_nullable(True) for field in format.schema]
        for name, column in self.metadata.items():
            if name not in METADATA:
                raise InvalidInputError(f"metadata are {', '.join(METADATA)}, got {name!r}")
            fields.append(pa.field(column, METADATA[name]))
        names = [field.name for field in fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidInputError(f"two columns are named {twice!r}; give one of them another name")
        return pa.schema(fields).remove_metadata()

    def check_splits(self, begun: Sequence[Split], finished: Sequence[Split]) -> None:
        """Refuse partitions of topics that this source does not read, and those that it would never read on."""
        for split in (*begun, *finished):
            topic, partition = parts_of(split.id)
            if topic not in self.topics or partition < 0:
                raise SourceError(
                    split.id,
                    split.position,
                    f"the checkpoint has partitions of topic {topic!r}, and this source reads "
                    f"{', '.join(map(repr, self.topics))}; read that topic too, or give the source another uid, under "
                    "which it begins anew",
                )
        if not self.is_bounded:
            check_follows("start=", finished)

    def discover(self, known: Collection[str]) -> Sequence[Split]:
        """Return the partitions that are not known yet, with the offset of the first message to read of each."""
        is_first = not known
        consumer = self.consumer()
        try:
            timeout = self.client.timeout if is_first else min(self.client.timeout, _LOOK_SECONDS)
            new = [id for id in self._partitions(consumer, known, timeout) if id not in known]
            # What was added to a topic after the first start has rows that nobody has read.
            return self._placed(consumer, new, self.start if is_first else "earliest", timeout)
        except UnavailableError:
            # A job that runs has no use for new partitions of brokers that are away.
            if is_first:
                raise
            return []
        finally:
            consumer.close()

    def _partitions(self, consumer: Consumer, known: Collection[str], timeout: float) -> Iterator[str]:
        """Yield the partitions of the topics, which must have those that are known."""
        counts = {}
        for topic in self.topics:
            doing = f"reading the partitions of topic {topic!r}"
            found = self._asked(doing, lambda topic=topic: consumer.list_topics(topic, timeout=timeout)).topics[topic]  # type: ignore[misc]
            if found.error is not None:
                raise self._told(topic, self.client.error(doing, found.error))
            counts[topic] = len(found.partitions)
        for id in known:
            topic, partition = parts_of(id)
            if topic in counts and partition >= counts[topic]:
                raise SourceError(
                    id,
                    None,
                    f"topic {topic!r} has {counts[topic]} partitions now, and partition {partition} was read before: "
                    "the topic was deleted or made anew; give the source another uid, under which it begins anew",
                )
        # One of each topic after the other, so that each subtask gets some of each.
        for partition in range(max(counts.values())):
            yield from (f"{topic}-{partition}" for topic in self.topics if partition < counts[topic])

    def _placed(self, consumer: Consumer, ids: Sequence[str], start: Start, timeout: float) -> list[Split]:
        """Return partitions with the offsets to begin at."""
        from confluent_kafka import OFFSET_END, TopicPartition

        places = [TopicPartition(*parts_of(id)) for id in ids]
        if not places:
            return []
        doing = f"reading offsets of {', '.join(map(repr, self.topics))}"
        if start == "group":
            places = self._asked(doing, lambda: consumer.committed(places, timeout=timeout))
        elif isinstance(start, int):
            asked = [TopicPartition(place.topic, place.partition, start) for place in places]
            places = self._asked(doing, lambda: consumer.offsets_for_times(asked, timeout=timeout))
        splits = []
        for id, place in zip(ids, places, strict=True):
            if place.error is not None:
                raise self._told(place.topic, self.client.error(doing, place.error))
            offset = place.offset
            if offset < 0:
                first, end = self.range_of(consumer, place, timeout)
                offset = end if start == "latest" or place.offset == OFFSET_END else first
            splits.append(Split(id, offset))
        return splits

    def range_of(self, consumer: Consumer, place: TopicPartition, timeout: float) -> tuple[int, int]:
        """Return the offset of the first message of a partition, and that after the last."""
        doing = f"reading offsets of {place.topic}-{place.partition}"
        found = self._asked(doing, lambda: consumer.get_watermark_offsets(place, timeout=timeout))
        if found is None:
            raise self.client.unavailable(doing, f"no answer in {timeout} s")
        return found

    def _asked(self, doing: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as exception:
            error = error_of(exception)
            if error is None:
                raise
            raise self._told(self.topics[0], self.client.error(doing, error)) from None

    def _told(self, topic: str, error: Exception) -> Exception:
        """Return an error as one of the source, unless it is that of a broker which is away."""
        return error if isinstance(error, UnavailableError) else SourceError(topic, None, str(error))

    def consumer(self) -> Consumer:
        """Return a consumer that reads from where it is told, and tells if it cannot."""
        from confluent_kafka import Consumer, KafkaException

        configuration = self.client.configuration(
            group_id=self.group or _NO_GROUP,
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            auto_offset_reset="error",
        )
        try:
            return Consumer({**_DEFAULTS, **configuration})
        except (KafkaException, TypeError, ValueError) as exception:
            told = f"{self!r} cannot be opened: {self.client.hidden(str(exception))}"
            raise InvalidInputError(told) from None

    def reader(self) -> Reader:
        """Return a reader with a consumer of its own."""
        return _KafkaReader(self)


class _KafkaReader(Reader):
    """Reads partitions with one consumer."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._consumer: Consumer | None = None
        self._next: dict[str, int] = {}
        "By partition the offset of the next message to give out."
        self._runs: dict[str, list[Message]] = {}
        "By partition the messages that were taken and not given out, those taken first before others."
        self._paused: frozenset[str] = frozenset()
        self._reached: dict[str, int] = {}
        "By partition an offset up to which there is nothing more now."
        self._rows = _Rows(source)

    def add(self, splits: Sequence[Split]) -> None:
        from confluent_kafka import TopicPartition

        source = self._source
        if self._consumer is None:
            self._consumer = source.consumer()
        places = []
        for split in splits:
            offset = 0 if split.position is None else int(split.position)
            self._next[split.id] = offset
            places.append(TopicPartition(*parts_of(split.id), offset))
        self._consumer.incremental_assign(places)

    def read(self, max_rows: int) -> Batch | EndOfSplit | None:
        if self._consumer is None:
            return None
        if not any(id not in self._paused for id in self._runs):
            self._take(min(max_rows, _MOST_MESSAGES))
        for id in self._runs:
            if id not in self._paused:
                return self._given(id, max_rows)
        return self._at_end()

    def _at_end(self) -> Batch | EndOfSplit | None:
        """Return what is to be said of partitions that have no more messages now."""
        for id in [id for id in self._reached if id not in self._runs and id not in self._paused]:
            offset = self._reached[id]
            if offset > self._next[id]:
                # What is at the end is no message: a transaction leaves its mark in the log.
                self._next[id] = offset
                return Batch(self._rows.none, id, offset)
            del self._reached[id]
            if self._source.is_bounded:
                self._drop(id)
                return EndOfSplit(id)
        return None

    def _take(self, count: int) -> None:
        """Take messages that have come, by partition."""
        from confluent_kafka import Message

        assert self._consumer is not None
        messages = self._consumer.consume(count, 0)
        if not messages:
            return
        errors = list(map(Message.error, messages))
        if any(errors):
            for message, error in zip(messages, errors, strict=True):
                if error is not None:
                    self._hear(message)
            messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
        for id, run in _by_partition(messages):
            if id in self._next:
                self._runs.setdefault(id, []).extend(run)

    def _given(self, id: str, max_rows: int) -> Batch:
        """Return the messages of a partition as rows."""
        # The next read begins with another partition.
        run = self._runs.pop(id)
        if len(run) > max_rows:
            self._runs[id] = run[max_rows:]
            run = run[:max_rows]
        rows, unread = self._rows.of(run)
        self._next[id] = run[-1].offset() + 1
        return Batch(rows, id, self._next[id], unread=unread)

    def _drop(self, id: str) -> None:
        from confluent_kafka import TopicPartition

        assert self._consumer is not None
        self._next.pop(id)
        self._consumer.incremental_unassign([TopicPartition(*parts_of(id))])

    def _hear(self, message: Message) -> None:
        """Take note of what came in the place of a message."""
        source, error = self._source, message.error()
        id = f"{message.topic()}-{message.partition()}"
        name = error.name()
        if name == "_PARTITION_EOF":
            if id in self._next:
                self._reached[id] = message.offset()
        elif name in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            self._lost(id)
        elif not error.retriable() and name not in ("_TRANSPORT", "_ALL_BROKERS_DOWN"):
            doing = f"reading {id}" if message.topic() else f"reading {', '.join(source.topics)}"
            told = source.client.error(doing, error)
            raise told if isinstance(told, UnavailableError) else SourceError(id, self._next.get(id), str(told))

    def _lost(self, id: str) -> None:
        """Say that messages are gone that were to be read, or go on after them."""
        from confluent_kafka import TopicPartition

        source, consumer = self._source, self._consumer
        assert consumer is not None
        if id not in self._next:
            return
        run = self._runs.get(id)
        wanted = run[-1].offset() + 1 if run else self._next[id]
        topic, partition = parts_of(id)
        first, end = source.range_of(consumer, TopicPartition(topic, partition), source.client.timeout)
        if source.on_lost == "earliest" and wanted < first:
            consumer.incremental_unassign([TopicPartition(topic, partition)])
            consumer.incremental_assign([TopicPartition(topic, partition, first)])
            return
        lost = (
            f"offsets {wanted} to {first - 1} were deleted before they were read: keep messages for longer, or say "
            f"on_lost='earliest' to go on without them, at {first}"
            if wanted < first
            else f"offset {wanted} is after the end, {end}: the topic was deleted and made anew; give the source "
            "another uid, under which it begins anew"
        )
        raise SourceError(id, wanted, f"the partition has offsets {first} to {end - 1}, and {lost}")

    def behind(self) -> int | None:
        """Return how many messages its partitions have after those that were given out, as brokers said last."""
        from confluent_kafka import TopicPartition

        if self._consumer is None:
            return None
        found = None
        for id, offset in self._next.items():
            # What is cached has come with messages: nobody is asked.
            _, end = self._consumer.get_watermark_offsets(TopicPartition(*parts_of(id)), cached=True)
            if end >= 0:
                found = (found or 0) + max(end - offset, 0)
        return found

    def pause(self, splits: Collection[str]) -> None:
        from confluent_kafka import TopicPartition

        new = frozenset(splits) & self._next.keys()
        if self._consumer is None or new == self._paused:
            return
        for ids, act in ((new - self._paused, self._consumer.pause), (self._paused - new, self._consumer.resume)):
            places = [TopicPartition(*parts_of(id)) for id in ids if id in self._next]
            if places:
                act(places)
        self._paused = new

    def committed(self, positions: Mapping[str, Any]) -> None:
        """Commit offsets to the group, for others to see; nothing depends on it."""
        from confluent_kafka import KafkaException, TopicPartition

        if self._source.group is None or self._consumer is None or not positions:
            return
        places = [TopicPartition(*parts_of(id), offset) for id, offset in positions.items() if offset is not None]
        try:
            self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException:
            # The offsets of the next checkpoint are newer.
            return

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


class _Rows:
    """Makes rows of messages."""

    def __init__(self, source: KafkaSource) -> None:
        self._schema = source.schema
        self._metadata = list(source.metadata)
        self._decode_key: Decode | None = None if source.key is None else source.key.decoder()
        self._decode_value: Decode = source.value.decoder()
        self.none = pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in source.schema], schema=source.schema
        )

    def of(self, messages: list[Message]) -> tuple[pa.RecordBatch, UnreadRows | None]:
        """Return the rows of messages of one partition, and those that do not fit."""
        from confluent_kafka import Message

        wrong: dict[int, Exception] = {}
        columns: list[pa.Array] = []
        for take, decode in ((Message.key, self._decode_key), (Message.value, self._decode_value)):
            if decode is not None:
                rows, errors = decode(list(map(take, messages)))
                columns += rows.columns
                wrong.update(errors)
        columns += [_METADATA_OF[name](messages) for name in self._metadata]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if not wrong:
            return batch, None
        places = sorted(wrong)
        mask = np.ones(len(messages), np.bool_)
        mask[places] = False
        return batch.filter(pa.array(mask)), _unread([messages[at] for at in places], [wrong[at] for at in places])


def _unread(messages: Sequence[Message], errors: Sequence[Exception]) -> UnreadRows:
    offsets = [message.offset() for message in messages]
    columns = [
        [message.topic() for message in messages],
        [message.partition() for message in messages],
        offsets,
        [message.key() for message in messages],
        [message.value() for message in messages],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _UNREAD, strict=True)]
    return UnreadRows(
        offsets,
        pa.RecordBatch.from_arrays(arrays, schema=_UNREAD),
        [type(error).__name__ for error in errors],
        [str(error) for error in errors],
    )


def _by_partition(messages: Sequence[Message]) -> Iterator[tuple[str, Sequence[Message]]]:
    """Yield the messages of each partition, in their order; they come in runs of one partition."""
    from confluent_kafka import Message

    if not messages:
        return
    partitions = np.fromiter(map(Message.partition, messages), np.int32, len(messages))
    topics = list(map(Message.topic, messages))
    changes = partitions[1:] != partitions[:-1]
    if topics.count(topics[0]) != len(topics):
        changes |= np.fromiter(map(str.__ne__, topics[1:], topics[:-1]), np.bool_, len(topics) - 1)
    ends = [0, *(np.flatnonzero(changes) + 1).tolist(), len(messages)]
    for first, end in itertools.pairwise(ends):
        yield f"{topics[first]}-{partitions[first]}", messages[first:end]


def _timestamps(messages: Sequence[Message]) -> pa.Array:
    from confluent_kafka import Message

    times = pa.array(map(itemgetter(1), map(Message.timestamp, messages)), pa.int64(), size=len(messages))
    return pc.if_else(pc.greater_equal(times, 0), times, None).cast(METADATA["timestamp"])


def _headers(messages: Sequence[Message]) -> pa.Array:
    from confluent_kafka import Message

    return pa.array(list(map(Message.headers, messages)), METADATA["headers"])


def _metadata_of(name: str) -> Callable[[Sequence[Message]], pa.Array]:
    def made(messages: Sequence[Message]) -> pa.Array:
        from confluent_kafka import Message

        return pa.array(list(map(getattr(Message, name), messages)), METADATA[name])

    return made


_METADATA_OF: dict[str, Callable[[Sequence[Message]], pa.Array]] = {
    **{name: _metadata_of(name) for name in ("topic", "partition", "offset")},
    "timestamp": _timestamps,
    "headers": _headers,
}


def parts_of(split: str) -> tuple[str, int]:
    """Return the topic and the number of the partition that a split is; -1 for one that is none."""
    topic, _, partition = split.rpartition("-")
    return topic, int(partition) if partition.isdecimal() else -1


def _checked_topics(topics: str | Sequence[str]) -> list[str]:
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or not all(names) or len(set(names)) < len(names):
        raise InvalidInputError(f"topics must be the names of one or more topics, each once, got {topics!r}")
    return names


def _checked_start(start: Any, group: str | None) -> Start:
    if isinstance(start, dt.datetime):
        if start.tzinfo is None:
            raise InvalidInputError(f"start needs a datetime with a time zone, got {start!r}")
        # Up to the next whole millisecond, for messages have no finer time; no message is older than 1970.
        return max(-((_EPOCH - start) // dt.timedelta(milliseconds=1)), 0)
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    if start not in ("earliest", "latest", "group"):
        raise InvalidInputError(
            f"start must be 'earliest', 'latest', 'group', or a time in milliseconds since 1970, got {start!r}"
        )
    if start == "group" and group is None:
        raise InvalidInputError("start='group' needs the name of the group, group=")
    return start
