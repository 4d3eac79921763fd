"""A source of Kafka, against Tansu and the mock of librdkafka."""

import datetime as dt
import functools
import pickle
import time

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, JobFailedError, SourceError, UnavailableError
from arrowstate.log.jobs import newest_report, report_of
from arrowstate.runtime import (
    Batch,
    EndOfSplit,
    FunctionSink,
    Job,
    JsonFormat,
    KafkaSource,
    OutputTable,
    RawFormat,
    Restart,
    Split,
    Watermarks,
)
from arrowstate.testing import SourceConformance
from kafka_brokers import Tansu, free_port, make_topic, make_topic_of_mock, send, tansu_program
from stores import until

NUMBERS = JsonFormat(pa.schema({"n": pa.int64()}))
FAST = {"fetch.wait.max.ms": 5, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50}


def source(servers, topic, value=NUMBERS, *, options=FAST, **given) -> KafkaSource:
    return KafkaSource(servers, topic, value, options=options, **given)


def read(reader, count):
    """Return rows until there are so many, whatever splits they are of."""
    rows, items = [], []
    while len(rows) < count:
        item = reader.read(1000)
        if item is not None:
            items.append(item)
            rows += item.rows.to_pylist() if isinstance(item, Batch) else []
    return rows, items


@functools.cache
def numbered(servers, make) -> str:
    """Make a topic with the numbers below 24 in two partitions."""
    topic = make(servers, "conformance")
    for partition in range(2):
        send(servers, topic, [{"n": 2 * number + partition} for number in range(12)], partition)
    return topic


def two_partitions(servers, topic):
    return make_topic(servers, topic, 2)


class TestAgainstTansu(SourceConformance):
    @pytest.fixture
    def source(self, kafka):
        return source(kafka, numbered(kafka, two_partitions), is_bounded=True)

    @pytest.fixture
    def rows(self):
        return pa.table({"n": range(24)})


class TestAgainstTheMock(SourceConformance):
    @pytest.fixture
    def source(self, mock_kafka):
        return source(mock_kafka, numbered(mock_kafka, make_topic_of_mock), is_bounded=True)

    @pytest.fixture
    def rows(self):
        return pa.table({"n": range(24)})


@pytest.fixture
def topic(kafka, request):
    return make_topic(kafka, request.node.name.replace("[", "-").replace("]", ""), 2)


def test_the_state_says_how_far_each_partition_was_read(kafka, topic, tmp_path):
    send(kafka, topic, [{"n": 1}, {"n": 2}], 0)
    send(kafka, topic, [{"n": 3}], 1)
    for more in (0, 2):
        send(kafka, topic, [{"n": 4}] * more, 1)
        job = Job(tmp_path / "store")
        job.source(source(kafka, topic), uid="numbers").sink(OutputTable("copy"))
        copied = []
        with job.start(mode="inline") as running:
            while len(copied) < 3 + more:
                running.go_on(50)
                copied = running.checkpoint().sql("select rows.n from copy.rows").fetchall()
            snapshot = running.stop()

    assert snapshot.sql("select split, position from numbers.splits order by all").fetchall() == [
        (f"{topic}-0", 2),
        (f"{topic}-1", 3),
    ]
    assert sorted(snapshot.sql("select rows.n from copy.rows").fetchall()) == [(1,), (2,), (3,), (4,), (4,)]


def test_the_status_says_how_many_messages_are_behind(kafka, topic, tmp_path):
    for partition in range(2):
        send(kafka, topic, [{"n": number} for number in range(500)], partition)
    job = Job(tmp_path / "store")
    job.source(source(kafka, topic), uid="numbers").sink(
        FunctionSink(lambda rows: time.sleep(0.004 * len(rows))), uid="slow"
    )
    with job.start(mode="threads") as running:

        def behind():
            query = "select rows_in, behind_rows from runtime.tasks where operator = 'numbers'"
            return running.sql(query).fetchall()

        ((read, left),) = until(lambda: [at for at in behind() if at[1]])
        assert read + left == 1_000
        until(lambda: behind() == [(1_000, 0)])
    document = newest_report(arrowstate.open_store(tmp_path / "store").storage)
    (of_source,) = [item for item in report_of(document).operators if item.operator == "numbers"]

    assert of_source.behind_rows == 0


def test_a_job_goes_on_at_another_parallelism(kafka, topic, tmp_path):
    copied = []
    for number, parallelism in enumerate((1, 2, 1)):
        for partition in range(2):
            send(kafka, topic, [{"n": 10 * number + partition}], partition)
        job = Job(tmp_path / "store", parallelism=parallelism)
        job.source(source(kafka, topic), uid="numbers").sink(OutputTable("copy"))
        with job.start(mode="inline") as running:
            while len(copied) < 2 * (number + 1):
                running.go_on(50)
                copied = running.checkpoint().sql("select rows.n from copy.rows").fetchall()
            snapshot = running.stop()

    assert sorted(copied) == [(0,), (1,), (10,), (11,), (20,), (21,)]
    assert snapshot.sql("select position from numbers.splits").fetchall() == [(3,), (3,)]


def test_messages_that_do_not_fit_become_dead_letters_with_their_place(kafka, topic, tmp_path):
    send(kafka, topic, [{"n": 1}, b"{", {"n": "x"}, None, {"n": 5}], 1, key=b"k")
    job = Job(tmp_path)
    rows = job.source(source(kafka, topic, is_bounded=True), uid="numbers", on_error="dead_letter")
    rows.sink(OutputTable("copy"))

    snapshot = job.run(mode="inline")

    assert snapshot.sql("select rows.n from copy.rows").fetchall() == [(1,), (None,), (5,)]
    columns = ", ".join(f"rows.key.{name}" for name in ("topic", "partition", "offset", "key", "value", "position"))
    assert snapshot.sql(f"select {columns}, rows.error from numbers_dead_letters.rows order by 3").fetchall() == [
        (topic, 1, 1, b"k", b"{", 1, "ValueError"),
        (topic, 1, 2, b"k", b'{"n": "x"}', 2, "ArrowInvalid"),
    ]


def test_a_message_that_does_not_fit_fails_the_job_and_names_its_offset(kafka, topic, tmp_path):
    send(kafka, topic, [{"n": 1}, b"[]"])
    job = Job(tmp_path, restart=Restart.none())
    job.source(source(kafka, topic, is_bounded=True), uid="numbers").sink(OutputTable("copy"))

    with pytest.raises(JobFailedError, match=r"-0' from position 0: the row at position 1 .*it is no JSON object"):
        job.run(mode="inline")


def test_keys_headers_and_timestamps_are_columns(kafka, topic):
    send(kafka, topic, [{"n": 1}], 1, key=b"ann", headers=[("a", b"1"), ("a", None)], timestamp=1_700_000_000_123)
    given = source(
        kafka,
        topic,
        key=RawFormat("user", pa.string()),
        metadata={"timestamp": "at", "headers": "headers", "topic": "topic", "partition": "part", "offset": "offset"},
    )
    reader = given.reader()
    reader.add(given.discover(()))

    (row,), _ = read(reader, 1)

    at = dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC)
    assert row == {
        "user": "ann",
        "n": 1,
        "at": at,
        "headers": [("a", b"1"), ("a", None)],
        "topic": topic,
        "part": 1,
        "offset": 0,
    }
    reader.close()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [0, 0]),
        ("latest", [3, 0]),
        ("group", [2, 0]),
    ],
    ids=str,
)
def test_the_first_start_says_where_to_begin(kafka, start, expected):
    topic = make_topic(kafka, f"start-{start}", 2)
    for second in (1, 2, 3):
        send(kafka, topic, [{"n": second}], timestamp=1000 * second)
    given = source(kafka, topic, start=start, group=f"group-{topic}")
    if start == "group":
        before = source(kafka, topic, group=f"group-{topic}")
        reader = before.reader()
        reader.add(before.discover(()))
        reader.committed({f"{topic}-0": 2})
        reader.close()

    assert [split.position for split in given.discover(())] == expected


@pytest.mark.parametrize("start", [2_500, dt.datetime.fromtimestamp(2.5, dt.UTC)], ids=str)
def test_a_start_by_time_takes_the_offsets_that_the_broker_finds(kafka, start, topic, monkeypatch):
    from confluent_kafka import OFFSET_END, TopicPartition

    class Knowing:
        """A consumer of a broker that knows timestamps, as neither Tansu nor the mock do."""

        def __init__(self, consumer):
            self.list_topics, self.close = consumer.list_topics, consumer.close
            self.get_watermark_offsets = consumer.get_watermark_offsets

        def offsets_for_times(self, places, timeout):
            assert [place.offset for place in places] == [2_500, 2_500]
            return [TopicPartition(place.topic, place.partition, [7, OFFSET_END][place.partition]) for place in places]

    make = KafkaSource.consumer
    monkeypatch.setattr(KafkaSource, "consumer", lambda self: Knowing(make(self)))
    send(kafka, topic, [{"n": 1}], 1)

    assert [split.position for split in source(kafka, topic, start=start).discover(())] == [7, 1]


def test_partitions_that_are_added_are_read_from_their_beginning(kafka):
    topic = make_topic(kafka, "added", 2)
    given = source(kafka, topic, start="latest")
    send(kafka, topic, [{"n": 1}], 1)

    assert given.discover([f"{topic}-0"]) == [Split(f"{topic}-1", 0)]
    assert given.discover([f"{topic}-0", f"{topic}-1"]) == []


def test_partitions_of_several_topics_are_dealt_in_turn(kafka, topic):
    other = make_topic(kafka, "other-topic", 3)

    found = source(kafka, [topic, other]).discover(())

    assert [split.id for split in found] == [f"{topic}-0", f"{other}-0", f"{topic}-1", f"{other}-1", f"{other}-2"]


def test_an_idle_partition_does_not_hold_event_time_back(kafka, topic, tmp_path):
    send(kafka, topic, [{"n": 1_000}, {"n": 5_000}], 1)
    job = Job(tmp_path)
    rows = job.source(source(kafka, topic), uid="numbers", watermarks=Watermarks("n", idle_ms=50))
    rows.sink(OutputTable("copy"))

    with job.start(mode="inline") as running:
        while all(task.watermark is None for task in running.status().tasks):
            running.go_on(50)
        snapshot = running.stop()

    assert snapshot.sql("select split, watermark from numbers.splits order by all").fetchall() == [
        (f"{topic}-0", None),
        (f"{topic}-1", 4_999),
    ]


def test_offsets_that_retention_has_passed_are_refused_or_passed_over(mock_kafka):
    topic = make_topic_of_mock(mock_kafka, "short")
    # The mock keeps 5 MB of a partition.
    send(mock_kafka, topic, [b'{"n": %d, "x": "%s"}' % (number, b"x" * 100_000) for number in range(100)])
    given = source(mock_kafka, topic)
    reader = given.reader()
    reader.add([Split(f"{topic}-0", 3)])

    with pytest.raises(SourceError, match=r"offsets 3 to \d+ were deleted before they were read.*on_lost='earliest'"):
        read(reader, 1)

    reader.close()
    again = source(mock_kafka, topic, on_lost="earliest")
    reader = again.reader()
    reader.add([Split(f"{topic}-0", 3)])
    rows, _ = read(reader, 1)
    assert rows[0]["n"] > 3
    reader.close()


def test_an_offset_after_the_end_is_refused_whatever_was_said(mock_kafka):
    topic = make_topic_of_mock(mock_kafka, "new")
    send(mock_kafka, topic, [{"n": 1}])
    for on_lost in ("fail", "earliest"):
        given = source(mock_kafka, topic, on_lost=on_lost)
        reader = given.reader()
        reader.add([Split(f"{topic}-0", 30)])

        with pytest.raises(SourceError, match="offset 30 is after the end, 1: the topic was deleted and made anew"):
            read(reader, 1)

        reader.close()


def test_a_topic_that_is_not_there_is_named(kafka):
    with pytest.raises(SourceError, match="'nowhere'.*there is no such topic"):
        source(kafka, "nowhere").discover(())


def test_fewer_partitions_than_before_are_refused(kafka, topic):
    with pytest.raises(SourceError, match=f"topic '{topic}' has 2 partitions now, and partition 4 was read before"):
        source(kafka, topic).discover([f"{topic}-0", f"{topic}-4"])


def test_a_checkpoint_of_other_topics_is_refused(kafka, topic):
    with pytest.raises(SourceError, match="partitions of topic 'a-b', and this source reads 'a'"):
        source(kafka, "a").check_splits([Split("a-0", 1)], [Split("a-b-0", 7)])


def test_partitions_that_were_read_to_their_end_are_followed_by_nobody_who_is_not_told(kafka):
    finished = [Split("a-0", 7)]

    source(kafka, "a", is_bounded=True).check_splits([], finished)
    with pytest.raises(SourceError, match=r"bounded, so what came later would never be read.*say by start= where"):
        source(kafka, "a").check_splits([Split("a-1", 3)], finished)


def test_brokers_that_are_away_are_told_at_a_start_and_waited_for_later():
    given = source(f"127.0.0.1:{free_port()}", "t", timeout_ms=300)

    with pytest.raises(UnavailableError, match="Kafka at 127.0.0.1:.* reading the partitions of topic 't'"):
        given.discover(())
    assert given.discover(["t-0"]) == []


@pytest.mark.skipif(tansu_program() is None, reason="Tansu is not installed")
def test_a_broker_that_goes_away_is_waited_for():
    broker = Tansu()
    broker.start()
    try:
        topic = make_topic(broker.servers, "away", 1)
        send(broker.servers, topic, [{"n": 1}])
        given = source(broker.servers, topic)
        reader = given.reader()
        reader.add(given.discover(()))
        read(reader, 1)
        broker.stop()
        for _ in range(50):
            assert reader.read(100) is None
        # It held all in memory: the same again, and one more.
        broker.start()
        make_topic(broker.servers, topic, 1)
        send(broker.servers, topic, [{"n": 1}, {"n": 2}])

        assert read(reader, 1)[0] == [{"n": 2}]

        reader.close()
    finally:
        broker.stop()


def send_in_transaction(servers, topic, value):
    """Send a message, after which the partition has the mark of its transaction."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.commit_transaction(10)


def test_the_end_of_a_transaction_is_passed_and_ends_a_bounded_partition(kafka, topic):
    send_in_transaction(kafka, topic, b'{"n": 1}')
    given = source(kafka, topic, is_bounded=True)
    reader = given.reader()
    reader.add(given.discover(()))

    items = []
    while sum(isinstance(item, EndOfSplit) for item in items) < 2:
        items += [item for item in [reader.read(10)] if item is not None]

    assert [item.position for item in items if isinstance(item, Batch)] == [1, 2]
    reader.close()


def test_a_partition_that_waits_does_not_end_before_the_messages_that_came_after_a_transaction(kafka, topic):
    send_in_transaction(kafka, topic, b'{"n": 1}')
    given = source(kafka, topic, is_bounded=True)
    reader, split = given.reader(), f"{topic}-0"
    reader.add([found for found in given.discover(()) if found.id == split])
    until(lambda: (item := reader.read(10)) is not None and getattr(item, "position", None) == 2)
    send(kafka, topic, [{"n": 2}], 1)
    reader.add([Split(f"{topic}-1", 0)])
    time.sleep(0.5)  # so that messages of the other partition come first
    send(kafka, topic, [{"n": 3}], 0)
    time.sleep(0.5)

    items = [reader.read(10)]
    reader.pause({split})
    items += [reader.read(10) for _ in range(5)]
    reader.pause(())
    until(lambda: items.append(reader.read(10)) or EndOfSplit(split) in items)

    assert items[0].rows.to_pylist() == [{"n": 2}]
    of_split = [item for item in items if item is not None and item.split == split]
    assert [item.rows.to_pylist() for item in of_split[:-1]] == [[{"n": 3}]]
    assert of_split[-1] == EndOfSplit(split)
    reader.close()


def test_secrets_are_in_no_text(caplog):
    options = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "pa55",
    }
    given = source(f"127.0.0.1:{free_port()}", "t", options=options, timeout_ms=300)

    with pytest.raises(UnavailableError) as caught:
        given.discover(())

    assert "pa55" not in repr(given) + str(caught.value) + caplog.text
    assert pickle.loads(pickle.dumps(given)).client.options == options


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"servers": ""}, "needs the brokers as host:port"),
        ({"topics": []}, "names of one or more topics"),
        ({"topics": ["a", "a"]}, "each once"),
        ({"value": "json"}, "value must be a Format"),
        ({"value": JsonFormat()}, "needs a schema="),
        ({"metadata": ["size"]}, "metadata are topic, partition"),
        ({"key": RawFormat("n")}, "two columns are named 'n'"),
        ({"start": "now"}, "start must be"),
        ({"start": "group"}, "needs the name of the group"),
        ({"start": dt.datetime(2024, 1, 1)}, "a time zone"),
        ({"on_lost": "skip"}, "on_lost must be"),
        ({"discovery_ms": 0}, "discovery_ms must be a whole number from 1"),
        ({"timeout_ms": 0}, "timeout_ms must be a whole number from 1"),
        ({"options": {"group.id": "x"}}, "sets 'group.id' itself: say it with group="),
        ({"options": ["secret"]}, "options must be a dict with the value of each option by its name, got list"),
    ],
)
def test_what_is_wrong_with_an_argument_is_told(given, told):
    with pytest.raises(InvalidInputError, match=told):
        KafkaSource(**{"servers": "broker:9092", "topics": "t", "value": NUMBERS, **given})


@pytest.mark.parametrize(
    ("since", "start_ms"),
    [
        # 0.001 s is no sum of powers of two: as a float it would be another millisecond.
        (dt.datetime(2024, 1, 1, 0, 0, 0, 1_000, dt.UTC), 1_704_067_200_001),
        (dt.datetime(2024, 1, 1, 0, 0, 0, 1_001, dt.UTC), 1_704_067_200_002),
        (dt.datetime(2024, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), 1_704_067_200_000),
        # To a broker -1 and -2 are no times: the end of a partition, and its beginning.
        (dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, dt.UTC), 0),
        (dt.datetime(1, 1, 1, tzinfo=dt.UTC), 0),
    ],
)
def test_a_start_at_a_time_takes_the_messages_of_that_time_or_later(since: dt.datetime, start_ms: int) -> None:
    assert KafkaSource("broker:9092", "t", NUMBERS, start=since).start == start_ms


def test_an_option_that_the_client_does_not_know_is_told_without_secrets():
    given = source("broker:9092", "t", options={"sasl.pasword": "pa55"})

    with pytest.raises(InvalidInputError, match="No such configuration property") as caught:
        given.discover(())

    assert "pa55" not in str(caught.value)
