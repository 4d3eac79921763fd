"""A sink of Kafka, against Tansu: rows and token are one transaction."""

import json
import pickle

import pyarrow as pa
import pytest

from arrowstate.errors import IncompatibleStateError, InvalidInputError, JobFailedError, UnavailableError
from arrowstate.runtime import (
    AvroFormat,
    Job,
    JsonFormat,
    KafkaSink,
    KafkaSource,
    RawFormat,
    Restart,
    TableSource,
    Token,
)
from arrowstate.testing import SinkConformance
from kafka_brokers import committed_messages, free_port, make_topic

ROWS = pa.table({"user": ["ann", "bob", "ann", "eve", "bob", "ann"], "n": range(6)})
FAST = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50}


def sink(servers, topic, *, options=FAST, timeout_ms=10_000, **given) -> KafkaSink:
    return KafkaSink(servers, topic, options=options, timeout_ms=timeout_ms, **given)


def token(checkpoint, subtask=0) -> Token:
    return Token("a-store", "a-sink", checkpoint, subtask)


def values(servers, topic) -> list:
    return [json.loads(message.value) for message in committed_messages(servers, topic)]


@pytest.fixture
def topic(kafka, request):
    return make_topic(kafka, "sink-" + "".join(c if c.isalnum() else "-" for c in request.node.nodeid[-120:]), 2)


class TestAgainstTansu(SinkConformance):
    @pytest.fixture
    def sink(self, kafka, topic):
        return sink(kafka, topic, key=RawFormat("user"), value=JsonFormat(ROWS.schema), token_topic=f"tokens-{topic}")

    @pytest.fixture
    def rows(self):
        return ROWS

    @pytest.fixture
    def visible(self, kafka, topic):
        return lambda: pa.Table.from_pylist(values(kafka, topic), schema=ROWS.schema)


def test_a_message_has_key_headers_partition_and_timestamp_from_columns(kafka, topic):
    rows = pa.table(
        {
            "user": ["ann", None],
            "n": [1, 2],
            "part": pa.array([1, 0], pa.int32()),
            "at": pa.array([1_700_000_000_000_999, None], pa.timestamp("us", "UTC")),
            "notes": pa.array([[("a", b"1")], None], pa.map_(pa.string(), pa.binary())),
        }
    )
    made = sink(
        kafka, topic, key=RawFormat("user"), headers="notes", partition="part", timestamp="at", token_topic="t-all"
    )
    made.open("a-store", "a-sink")

    made.commit(rows, token(1))

    found = {message.partition: message for message in committed_messages(kafka, topic)}
    assert (found[1].key, found[1].value, found[1].headers) == (b"ann", b'{"n":1}', (("a", b"1"),))
    assert (found[0].key, found[0].value, found[0].headers) == (None, b'{"n":2}', ())
    made.close()
    assert times(kafka, topic, 1) == [1_700_000_000_000]


def test_messages_without_headers_have_timestamps_too(kafka, topic):
    given = [1_700_000_000_000, 1_600_000_000_000]
    rows = pa.table({"n": [1, 2], "part": [1, 1], "at": pa.array(given, pa.timestamp("ms"))})
    made = sink(kafka, topic, partition="part", timestamp="at", token_topic="t-times")
    made.open("a-store", "a-sink")

    made.commit(rows, token(1))

    made.close()
    assert times(kafka, topic, 1) == given


def test_the_lowest_timestamp_ends_no_job(kafka, topic):
    lowest = pa.array([-(2**63) + 1], pa.int64()).cast(pa.timestamp("ns"))
    made = sink(kafka, topic, timestamp="at", token_topic="t-lowest")
    made.open("a-store", "a-sink")

    made.commit(pa.table({"n": [1], "at": lowest}), token(1))

    made.close()
    assert values(kafka, topic) == [{"n": 1}]


def times(servers, topic, partition) -> list:
    source = KafkaSource(
        servers, topic, JsonFormat(pa.schema({"n": pa.int64()})), metadata=["timestamp"], is_bounded=True
    )
    reader = source.reader()
    reader.add([split for split in source.discover(()) if split.id == f"{topic}-{partition}"])
    while (item := reader.read(10)) is None:
        pass
    reader.close()
    return item.rows["timestamp"].cast(pa.int64()).to_pylist()


def test_rows_of_a_key_are_in_one_partition_in_their_order(kafka, topic):
    made = sink(kafka, topic, key=RawFormat("user"), token_topic="t-order")
    made.open("a-store", "a-sink")
    rows = pa.table({"user": [f"user {n % 7}" for n in range(100)], "n": range(100)})

    made.commit(rows, token(1))

    by_key = {}
    for message in committed_messages(kafka, topic):
        by_key.setdefault(message.key, []).append((message.partition, json.loads(message.value)["n"]))
    made.close()
    for number in range(7):
        found = by_key[f"user {number}".encode()]
        assert len({partition for partition, _ in found}) == 1
        assert [n for _, n in found] == list(range(number, 100, 7))


def test_a_crash_between_rows_and_token_leaves_no_row(kafka, topic, monkeypatch):
    made = sink(kafka, topic, token_topic="t-crash")
    made.open("a-store", "a-sink")
    monkeypatch.setattr(KafkaSink, "_wait", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(KafkaSink, "close", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        made.commit(ROWS, token(1))
    made._producer.flush(10)
    monkeypatch.undo()

    # Nobody has closed what crashed.
    again = pickle.loads(pickle.dumps(made))
    again.open("a-store", "a-sink")
    assert values(kafka, topic) == []
    again.commit(ROWS, token(1))

    assert sorted(values(kafka, topic), key=lambda row: row["n"]) == ROWS.to_pylist()
    again.close()


def test_a_commit_whose_answer_was_lost_is_not_repeated(kafka, topic, monkeypatch):
    made = sink(kafka, topic, token_topic="t-lost")
    made.open("a-store", "a-sink")
    real = made._producer

    class Deaf:
        def __getattr__(self, name):
            return getattr(real, name)

        def commit_transaction(self, timeout):
            from confluent_kafka import KafkaError, KafkaException

            real.commit_transaction(timeout)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))

    made._producer = Deaf()
    with pytest.raises(UnavailableError, match="sending the rows of checkpoint 1 to topic .*no answer"):
        made.commit(ROWS, token(1))

    made.commit(ROWS, token(1))

    assert len(values(kafka, topic)) == 6
    made.close()


def test_an_earlier_start_that_is_alive_is_shut_out_and_finds_its_token(kafka, topic):
    first, second = (sink(kafka, topic, token_topic="t-zombie") for _ in range(2))
    first.open("a-store", "a-sink")
    first.commit(ROWS.slice(0, 2), token(1))
    second.open("a-store", "a-sink")
    second.commit(ROWS.slice(2), token(2))

    first.commit(ROWS.slice(2), token(2))
    second.commit(ROWS.slice(0, 1), token(3))

    assert sorted(row["n"] for row in values(kafka, topic)) == [0, 0, 1, 2, 3, 4, 5]
    first.close()
    second.close()


@pytest.mark.parametrize("first", ["the job", "the other"])
def test_rows_of_a_savepoint_are_sent_once_while_the_job_that_took_it_goes_on(kafka, topic, first):
    job, other = (sink(kafka, topic, token_topic=f"tokens-{topic}") for _ in range(2))
    job.open("a-store", "a-sink")
    other.open("another-store", "a-sink")

    for each in (job, other) if first == "the job" else (other, job):
        each.commit(ROWS.slice(0, 2), token(7))
    other.commit(ROWS.slice(2, 2), Token("another-store", "a-sink", 8, 0))
    job.commit(ROWS.slice(4), token(8))

    assert sorted(row["n"] for row in values(kafka, topic)) == [0, 1, 2, 3, 4, 5]
    for each in (job, other):
        each.close()


def test_an_open_transaction_of_another_job_hides_no_token(kafka, topic):
    from confluent_kafka import Producer

    make_topic(kafka, "t-shared", 1)
    other = Producer({"bootstrap.servers": kafka, "transactional.id": f"other-{topic}"})
    other.init_transactions(10)
    other.begin_transaction()
    other.produce("t-shared", b"1", key=b"other", partition=0)
    other.flush(10)
    made = sink(kafka, topic, token_topic="t-shared", timeout_ms=1_000)

    with pytest.raises(
        UnavailableError, match="reading tokens in topic 't-shared'.*a transaction of another job is open"
    ):
        made.open("a-store", "a-sink")

    other.commit_transaction(10)
    made.open("a-store", "a-sink")
    made.commit(ROWS, token(1))
    assert len(values(kafka, topic)) == 6
    made.close()


def test_the_token_topic_is_made_and_has_the_newest_checkpoint(kafka, topic):
    made = sink(kafka, topic, token_topic=f"made-{topic[-40:]}")
    made.open("a-store", "a-sink")

    made.commit(ROWS.slice(0, 3), token(7, 0))
    made.commit(ROWS.slice(3), token(7, 1))

    found = {(message.key, message.value) for message in committed_messages(kafka, made.token_topic)}
    assert found == {(b"a-store/a-sink/0", b"7"), (b"a-store/a-sink/1", b"7")}
    made.close()


def test_at_least_once_needs_no_tokens_and_may_repeat(kafka, topic):
    made = sink(kafka, topic, guarantee="at-least-once", token_topic="t-never")
    made.open("a-store", "a-sink")

    made.commit(ROWS, token(1))
    made.commit(ROWS, token(1))

    assert len(values(kafka, topic)) == 12
    made.close()


def job_of(store, made) -> Job:
    job = Job(store, restart=Restart.none())
    job.source(TableSource(ROWS), uid="rows").sink(made, uid="out")
    return job


class Crashing(KafkaSink):
    """Commits rows, and ends before it can say so."""

    def commit(self, rows, token):
        super().commit(rows, token)
        raise OSError("the power is gone")


def test_rows_that_wait_for_a_topic_go_to_no_other_and_are_not_repeated_by_other_tokens(kafka, topic, tmp_path):
    other = make_topic(kafka, "another", 1)
    crashing = Crashing(kafka, topic, token_topic="t-one", options=FAST)
    with pytest.raises(JobFailedError, match="the power is gone"):
        job_of(tmp_path, crashing).run(mode="inline")

    for again in (sink(kafka, other, token_topic="t-one"), sink(kafka, topic, token_topic="t-two")):
        with pytest.raises(IncompatibleStateError, match="rows for topic 'sink-.*' with tokens in topic 't-one' but"):
            job_of(tmp_path, again).start(mode="inline")
    job_of(tmp_path, sink(kafka, topic, token_topic="t-one")).run(mode="inline")

    assert len(values(kafka, topic)) == 6
    assert values(kafka, other) == []


def test_a_topic_that_is_not_there_is_not_made(kafka, tmp_path):
    with pytest.raises(JobFailedError, match=r"'nowhere'\): there is no such topic, .*make it first"):
        job_of(tmp_path, sink(kafka, "nowhere")).run(mode="inline")

    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "x"})
    assert "nowhere" not in consumer.list_topics(timeout=10).topics
    consumer.close()


def test_brokers_that_are_away_are_told_without_secrets():
    options = {**FAST, "sasl.password": "pa55", "sasl.username": "ann"}
    made = sink(f"127.0.0.1:{free_port()}", "t", options=options, timeout_ms=300)

    with pytest.raises(UnavailableError, match="Kafka at 127.0.0.1:") as caught:
        made.open("a-store", "a-sink")

    assert "pa55" not in str(caught.value) + repr(made) + str(made.place)
    made.close()


def test_a_message_that_is_too_large_is_told_and_leaves_no_row(kafka, topic):
    made = sink(kafka, topic, token_topic="t-large", options={**FAST, "message.max.bytes": 2_000})
    made.open("a-store", "a-sink")
    rows = pa.table({"n": [1, 2], "text": ["x", "x" * 5_000]})

    with pytest.raises(InvalidInputError, match="checkpoint 1 to topic .*a message is larger than may be sent"):
        made.commit(rows, token(1))

    assert values(kafka, topic) == []
    made.commit(rows.slice(0, 1), token(2))
    assert len(values(kafka, topic)) == 1
    made.close()


def test_a_sink_that_cannot_be_closed_says_so_and_is_closed(kafka, topic):
    made = sink(kafka, topic, token_topic="t-close")
    made.open("a-store", "a-sink")
    real = made._producer

    class Sticky:
        def __getattr__(self, name):
            return getattr(real, name)

        def purge(self):
            raise RuntimeError("it sticks")

    made._producer = Sticky()
    with pytest.raises(RuntimeError, match="it sticks"):
        made.close()

    made.close()
    made.open("a-store", "a-sink")
    made.commit(ROWS, token(1))
    assert len(values(kafka, topic)) == 6
    made.close()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topic": ""}, "topic must be the name"),
        ({"token_topic": "t"}, "rows and tokens need two topics"),
        ({"guarantee": "exactly"}, "guarantee must be"),
        ({"partitioner": "mine"}, "partitioner must be one of"),
        ({"key": "user"}, "key must be a Format"),
        ({"options": {"transactional.id": "x"}}, "sets 'transactional.id' itself"),
    ],
)
def test_what_is_wrong_with_an_argument_is_told(given, told):
    with pytest.raises(InvalidInputError, match=told):
        KafkaSink(**{"servers": "broker:9092", "topic": "t", **given})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"key": RawFormat("who")}, "RawFormat needs column 'who'; the rows have user, n"),
        ({"headers": "n"}, "headers need a column of map<string, binary>"),
        ({"partition": "user"}, "partition needs a column of integers, and 'user' is string"),
        ({"timestamp": "user"}, "timestamp needs a column of timestamps or of milliseconds since 1970, and 'user' is"),
        ({"partition": "part"}, "there is no column 'part' for partition"),
        ({"value": RawFormat("n")}, "RawFormat needs binary or string, and column 'n' is int64"),
        (
            {"value": AvroFormat({"type": "record", "name": "R", "fields": [{"name": "m", "type": "int"}]})},
            "column 'm'",
        ),
    ],
)
def test_columns_that_a_message_cannot_be_made_of_are_told_before_a_row_comes(given, told):
    job = Job("memory://kafka-columns")

    with pytest.raises(InvalidInputError, match=told):
        job.source(TableSource(ROWS), uid="rows").sink(KafkaSink("broker:9092", "t", **given), uid="out")
