"""The sink: what a task sends, what the driver commits, and what a reader finds; without Spark, then with it."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest

from flowshare.agents.handler.errors import OptionError
from flowshare.client.errors import ClientError, DeliveryTimeout, ServerError
from flowshare.client.producer.channel import Channel
from flowshare.client.producer.message import partition_for
from flowshare.client.settings import ProducerSettings
from flowshare.clock import LoopClock
from flowshare.protocol.errors import ErrorCode
from flowshare.spark.sink.broker import SinkError, open_broker
from flowshare.spark.sink.columns import Layout
from flowshare.spark.sink.options import SinkOptions
from tests.spark.serving import CALL_S, close_brokers, serving
from tests.waiting import blocking_until

types = pytest.importorskip("pyspark.sql.types")

from flowshare.spark.sink import broker as sink_broker  # noqa: E402
from flowshare.spark.sink import producing, sink  # noqa: E402
from flowshare.spark.sink import transactions as sink_transactions  # noqa: E402
from flowshare.spark.sink.transactions import Prepared, TornBatch, ledger_group  # noqa: E402

QUERY = "5d2a-query"
TYPES = {
    "value": types.StringType(),
    "key": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "headers": types.MapType(types.StringType(), types.BinaryType()),
    "timestamp": types.TimestampType(),
    "outcome": types.StringType(),
}
ARROW = {
    "value": pa.string(),
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "headers": pa.map_(pa.string(), pa.binary()),
    "timestamp": pa.timestamp("us", "UTC"),
}


def schema(*names):
    return types.StructType([types.StructField(name, TYPES[name]) for name in names])


def rows(**columns):
    """A batch as Spark hands it over."""
    return pa.record_batch({name: pa.array(values, ARROW[name]) for name, values in columns.items()})


def values(*numbers):
    return rows(value=[f"row {number}" for number in numbers])


# --- without a broker ---------------------------------------------------------------------------------------------


class Producer:
    """Takes batches, and answers each when the test gives an answer."""

    transactional = False

    def __init__(self, answer=None):
        self.sent = []
        self._answer = answer or (lambda _: None)

    async def partitions(self, topic):
        return 3

    def send_batch(self, topic, partition, batch):
        self.sent.append((topic, partition, batch.count))
        sent = asyncio.get_running_loop().create_future()
        answer = self._answer(len(self.sent))
        if isinstance(answer, Exception):
            sent.set_exception(answer)
        elif answer is None:
            sent.set_result(None)
        return sent


class FakeBroker:
    about = "broker fake://"

    def __init__(self, loop, **options):
        self.loop = loop
        self.options = SinkOptions(broker="kafka://localhost", **{"batch_size": 2000, **options})

    async def partitions_of(self, topic, producer):
        return await producer.partitions(topic)

    def call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CALL_S)


@pytest.fixture
def loop():
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(CALL_S)
    made.close()


def encode(broker, producer, *batches, names=("value",), origin=None, topic="orders"):
    queue = producing.BatchQueue(broker, producer)
    layout = Layout.of(schema(*names), SinkOptions(broker="kafka://localhost", topic=topic))
    encoder = producing.Encoder(layout, queue, origin)
    for batch in batches:
        encoder.add(batch)
    encoder.close()
    queue.finish()
    return encoder


def test_rows_without_key_fill_a_batch_of_one_partition_then_one_of_the_next(loop):
    producer = Producer()

    encoder = encode(FakeBroker(loop), producer, values(*range(500)), values(*range(500)))

    assert encoder.rows == sum(count for _, _, count in producer.sent) == 1000
    batches = [sum(place == partition for _, place, _ in producer.sent) for partition in range(3)]
    assert max(batches) - min(batches) <= 1
    assert min(batches) > 1


def test_rows_go_where_key_topic_and_partition_say(loop):
    producer = Producer()
    batch = rows(value=["a", "b", "c", "d"], topic=["x", "x", "y", "x"], partition=[0, None, 0, 0], key=[b"k"] * 4)

    encode(FakeBroker(loop), producer, batch, names=("value", "topic", "partition", "key"), topic="")

    assert sorted(producer.sent) == [("x", 0, 2), ("x", partition_for(b"k", 3), 1), ("y", 0, 1)]


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_row_for_a_partition_that_is_not_there_is_refused(loop, partition):
    with pytest.raises(SinkError, match=rf"partition {partition} of topic 'orders', which has 3"):
        encode(FakeBroker(loop), Producer(), rows(value=["a"], partition=[partition]), names=("value", "partition"))


def test_a_row_without_topic_is_refused(loop):
    with pytest.raises(SinkError, match="a row has no topic"):
        encode(FakeBroker(loop), Producer(), rows(value=["a"], topic=[None]), names=("value", "topic"), topic="")


def test_a_batch_that_cannot_be_sent_fails_the_task(loop):
    refused = ServerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, about="producing to orders-0")

    with pytest.raises(ServerError, match="producing to orders-0"):
        encode(
            FakeBroker(loop),
            Producer(lambda number: refused if number == 5 else None),
            values(*range(1000)),
        )


def test_a_broker_that_confirms_nothing_fails_the_task(loop):
    broker = FakeBroker(loop, delivery_timeout=0.01)

    with pytest.raises(DeliveryTimeout, match=r"broker fake:// confirmed nothing for 0\.01 s"):
        encode(broker, Producer(lambda _: "never"), values(1))


def test_a_task_waits_while_too_much_is_on_its_way(loop, monkeypatch):
    monkeypatch.setattr(producing, "BUFFER_BYTES", 10_000)
    producer = Producer(lambda _: "never")

    with pytest.raises(DeliveryTimeout):
        encode(FakeBroker(loop, delivery_timeout=0.01), producer, values(*range(10_000)))

    assert len(producer.sent) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delivery": "exactly_once"}, "delivery=exactly_once takes a streaming query"),
        ({"batch_header": "true"}, "batch_header=true takes a streaming query"),
    ],
)
def test_a_batch_write_has_no_batch_to_know_again(options, message):
    with pytest.raises(OptionError, match=message):
        sink.batch_writer({"broker": "kafka://localhost", "topic": "t", **options}, schema("value"), False)


def test_a_batch_write_overwrites_nothing():
    with pytest.raises(OptionError, match=r'write .mode\("append"\)'):
        sink.batch_writer({"broker": "kafka://localhost", "topic": "t"}, schema("value"), True)


def test_a_streams_output_mode_complete_is_taken():
    assert sink.stream_writer({"broker": "kafka://localhost", "topic": "t"}, schema("value"), True)


def test_outcomes_of_a_batch_name_their_records():
    with pytest.raises(OptionError, match="takes no column 'value'"):
        sink.batch_writer({"broker": "kafka://localhost", "group": "g"}, schema("value", "outcome"), False)


def test_exactly_once_needs_a_topic_to_keep_its_ledger_under():
    options = {"broker": "kafka://localhost", "delivery": "exactly_once"}

    with pytest.raises(OptionError, match="batches_topic"):
        sink.stream_writer(options, schema("value", "topic"), False)
    assert sink.stream_writer({**options, "batches_topic": "any"}, schema("value", "topic"), False)


def test_a_stream_of_which_spark_says_nothing_is_refused():
    writer = sink.stream_writer({"broker": "kafka://localhost", "topic": "t"}, schema("value"), False)

    with pytest.raises(SinkError, match="no task of a streaming query"):
        writer.write(iter([values(1)]))


def test_no_rows_need_no_broker(in_task):
    options = {"broker": "kafka://localhost:1", "topic": "t"}

    assert sink.batch_writer(options, schema("value"), False).write(iter([values()])).rows == 0
    exactly = sink.stream_writer({**options, "delivery": "exactly_once"}, schema("value"), False)
    with in_task(1, 0):
        assert exactly.write(iter([])) == sink.TaskWritten(0, QUERY)


@pytest.fixture
def in_task(monkeypatch):
    """`with in_task(batch, task)`: what Spark tells a task."""
    from contextlib import contextmanager

    @contextmanager
    def entered(batch, task, query=QUERY):
        known = {sink.QUERY: query, sink.BATCH: str(batch)}
        context = SimpleNamespace(getLocalProperty=known.get, partitionId=lambda: task)
        with monkeypatch.context() as patch:
            patch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
            yield

    return entered


# --- with a broker ------------------------------------------------------------------------------------------------


@pytest.fixture(
    scope="module",
    params=[pytest.param("embedded", marks=pytest.mark.slow), pytest.param("kafka", marks=pytest.mark.real)],
)
def broker(request, tmp_path_factory):
    if request.param == "embedded":
        url = f"embedded://{tmp_path_factory.mktemp('sink')}/broker"
    else:
        url = f"kafka://{request.getfixturevalue('kafka').bootstrap}?share=native"
    with serving(url) as broker:
        yield broker
        close_brokers()


@pytest.fixture
def topic(broker, unique):
    return broker.topic(unique("orders"), partitions=2)


@pytest.fixture
def query(unique):
    return unique("query")


def reached(broker):
    """How aiokafka's clients reach the broker, and log in there."""
    kafka = broker.backend.kafka
    return {
        "bootstrap_servers": kafka.hosts[0],
        **({} if kafka.security is None else kafka.security.for_aiokafka()),
    }


def committed(broker, topic, *, ended=True):
    """The values that a reader sees who reads only what is committed, partition by partition.

    ended: all transactions have; a broker says so a moment before readers see it.
    """
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def read():
        found = []
        async with AIOKafkaConsumer(
            **reached(broker), isolation_level="read_committed", enable_auto_commit=False
        ) as consumer:
            for partition in range((await broker.admin.describe_topic(topic)).partitions):
                place = TopicPartition(topic, partition)
                consumer.assign([place])
                await consumer.seek_to_beginning(place)
                end = (await consumer.end_offsets([place]))[place]
                while ended and end < await broker.admin.log_end(topic, partition):
                    end = (await consumer.end_offsets([place]))[place]
                while await consumer.position(place) < end:
                    got = await consumer.getmany(place, timeout_ms=100)
                    found += [record.value.decode() for record in got.get(place, [])]
        return found

    return broker.call(read())


def writer_of(broker, topic, *names, **options):
    given = {"broker": broker.url, "topic": topic, **options}
    return sink.stream_writer(given, schema(*(names or ("value",))), False)


def test_all_columns_arrive(broker, topic):
    moment = datetime(2024, 2, 29, 12, 30, 15, 123_000, tzinfo=UTC)
    batch = rows(
        value=["a", None, "c"],
        key=[b"k", b"gone", None],
        headers=[[("h", b"1"), ("h", None)], None, []],
        timestamp=[moment, moment, None],
        partition=[1, 1, 1],
        topic=[topic] * 3,
    )
    names = batch.schema.names
    writer = sink.batch_writer({"broker": broker.url}, schema(*names), False)

    told = writer.write(iter([batch]))
    found = broker.read(topic)

    assert told.rows == 3
    assert [(one.key, one.value) for one in found] == [(b"k", b"a"), (b"gone", None), (None, b"c")]
    assert [list(one.headers) for one in found] == [[("h", b"1"), ("h", None)], [], []]
    assert [one.timestamp_ms for one in found[:2]] == [round(moment.timestamp() * 1000)] * 2
    assert found[2].timestamp_ms > found[0].timestamp_ms
    assert [one.offset for one in found] == [0, 1, 2]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_task_of_many_batches_keeps_each_partitions_order(broker, topic, compression):
    options = {"broker": broker.url, "topic": topic, "compression": compression, "batch_size": "2000"}
    batches = [values(*range(start, start + 1000)) for start in range(0, 5000, 1000)]

    sink.batch_writer(options, schema("value"), False).write(iter(batches))
    numbers = [int(one.value.split()[1]) for one in broker.read(topic)]
    descents = [index for index in range(1, 5000) if numbers[index] < numbers[index - 1]]

    assert sorted(numbers) == list(range(5000))
    assert len(descents) == 1, "where the second partition begins"


def test_a_missing_topic_is_made_unless_that_is_forbidden(broker, unique):
    missing = unique("missing")
    options = {"broker": broker.url, "topic": missing}

    with pytest.raises(SinkError, match=f"flowshare topics create {missing}"):
        sink.batch_writer({**options, "create_topics": "false"}, schema("value"), False).write(iter([values(1)]))
    sink.batch_writer(options, schema("value"), False).write(iter([values(1)]))

    assert [one.value for one in broker.read(missing)] == [b"row 1"]


def test_a_record_that_the_topic_does_not_take_fails_the_task(broker, unique):
    small = broker.topic(unique("small"), **{"max.message.bytes": "1000"})
    writer = sink.batch_writer({"broker": broker.url, "topic": small}, schema("value"), False)

    with pytest.raises(ClientError, match=rf"producing to {small}-0.*max.message.bytes"):
        writer.write(iter([rows(value=["x" * 2000])]))
    writer.write(iter([values(1)]))

    assert [one.value for one in broker.read(small)] == [b"row 1"]


def test_the_header_says_which_row_of_which_batch_it_is(broker, topic, in_task):
    writer = writer_of(broker, topic, batch_header="true")

    with in_task(7, 3):
        writer.write(iter([values(1, 2)]))
    found = [list(one.headers) for one in broker.read(topic)]

    assert found == [[("flowshare.batch", f"{QUERY}/7/3/{row}".encode())] for row in range(2)]


def test_a_batch_counts_when_the_driver_has_committed_it(broker, topic, in_task, query):
    writer = writer_of(broker, topic, delivery="exactly_once")
    messages = []
    for task in (0, 1):
        with in_task(0, task, query):
            messages.append(writer.write(iter([values(task, task + 10)])))
    before = committed(broker, topic, ended=False)

    writer.commit(messages, 0)

    assert before == []
    assert sorted(committed(broker, topic)) == ["row 0", "row 1", "row 10", "row 11"]


def test_a_batch_that_is_run_again_after_its_commit_is_not_there_twice(broker, topic, in_task, query):
    writer = writer_of(broker, topic, delivery="exactly_once")
    for _ in range(2):
        with in_task(4, 0, query):
            message = writer.write(iter([values(1, 2), values(3)]))
        writer.commit([message], 4)
    with in_task(3, 0, query):
        older = writer.write(iter([values(99)]))
    writer.commit([older], 3)
    with in_task(5, 0, query):
        newer = writer.write(iter([values(4)]))
    writer.commit([newer], 5)

    assert sorted(committed(broker, topic)) == ["row 1", "row 2", "row 3", "row 4"]
    assert older == message == sink.TaskWritten(0, query)


def test_an_attempt_shuts_out_the_one_before_it_and_takes_its_rows_back(broker, topic, in_task, query):
    writer = writer_of(broker, topic, delivery="exactly_once")
    with in_task(0, 0, query):
        zombie = writer.write(iter([values(1, 2)]))
        message = writer.write(iter([values(1, 2)]))

    with pytest.raises(SinkError, match=r"1 of 1 transactions of query .* ended before their batch was complete"):
        writer.commit([zombie], 0)
    with in_task(0, 0, query):
        message = writer.write(iter([values(1, 2)]))
    writer.commit([message], 0)

    assert committed(broker, topic) == ["row 1", "row 2"]


def test_a_batch_that_comes_again_in_other_tasks_after_a_crash_while_committing_is_whole(
    broker, topic, in_task, query, monkeypatch
):
    writer = writer_of(broker, topic, delivery="exactly_once")
    messages = []
    for task in range(4):
        with in_task(2, task, query):
            messages.append(writer.write(iter([values(task)])))
    ended = []

    async def crash(broker, query, one, *, commit):
        ended.append(one.task)
        if len(ended) == 3:
            raise ClientError("the driver died")
        return await end_one(broker, query, one, commit=commit)

    end_one = sink_transactions._end
    with monkeypatch.context() as patch:
        patch.setattr(sink_transactions, "_end", crash)
        with pytest.raises(ClientError, match="the driver died"):
            writer.commit(messages, 2)
    writer.abort(messages, 2)
    again = []
    for task in range(2):
        with in_task(2, task, query):
            again.append(writer.write(iter([values(2 * task, 2 * task + 1)])))
    writer.commit(again, 2)

    assert sorted(committed(broker, topic)) == ["row 0", "row 1", "row 2", "row 3"]


def test_what_tasks_left_open_that_are_no_more_holds_no_reader_up(broker, topic, in_task, query):
    writer = writer_of(broker, topic, delivery="exactly_once")

    def run(batch, tasks):
        messages = []
        for task in range(tasks):
            with in_task(batch, task, query):
                messages.append(writer.write(iter([values(batch)])))
        return messages

    writer.commit(run(0, tasks=3), 0)
    run(1, tasks=3)  # and the driver dies
    writer.commit(run(1, tasks=1), 1)

    assert sorted(committed(broker, topic)) == ["row 0", "row 0", "row 0", "row 1"]


def test_a_batch_of_which_a_task_failed_is_taken_back_whole(broker, topic, in_task, query):
    writer = writer_of(broker, topic, delivery="exactly_once")
    with in_task(0, 0, query):
        message = writer.write(iter([values(1)]))

        def broken():
            yield values(2)
            raise OSError("the input ended")

        with pytest.raises(OSError, match="the input ended"):
            writer.write(broken())
    with in_task(0, 1, query):
        message = writer.write(iter([values(3)]))
    writer.abort([None, message], 0)
    with in_task(1, 0, query):
        message = writer.write(iter([values(4)]))
    writer.commit([message], 1)

    assert committed(broker, topic) == ["row 4"]


def test_a_decided_batch_of_which_a_part_is_lost_is_told(broker, topic, in_task, query):
    writer = writer_of(broker, topic, delivery="exactly_once")
    messages = []
    for task in range(2):
        with in_task(0, task, query):
            messages.append(writer.write(iter([values(task)])))
    prepared = [one.prepared for one in messages]
    with open_broker(writer._options) as opened:
        opened.call(sink_transactions._decide(opened, query, 0, prepared))
        opened.call(sink_transactions.end(opened, query, prepared[1:], commit=False))  # as its timeout would

    for _ in range(2):
        with pytest.raises(TornBatch, match=rf"1 of its 2 tasks \(1\) are lost.*groups delete {ledger_group(query)}"):
            writer.commit([sink.TaskWritten(0, query)] * 2, 0)
    broker.call(broker.admin.delete_group(ledger_group(query)))
    with in_task(0, 0, query):
        message = writer.write(iter([values(0, 1)]))
    writer.commit([message], 0)

    assert sorted(committed(broker, topic)) == ["row 0", "row 0", "row 1"]


def test_a_decided_batch_of_which_nothing_is_left_is_decided_anew(broker, topic, in_task, query):
    writer = writer_of(broker, topic, delivery="exactly_once")
    with in_task(0, 0, query):
        zombie = writer.write(iter([values(1)])).prepared
        message = writer.write(iter([values(1)]))
    with open_broker(writer._options) as opened:
        opened.call(sink_transactions._decide(opened, query, 0, [zombie]))

    writer.commit([message], 0)

    assert committed(broker, topic) == ["row 1"]


def test_too_many_tasks_are_refused_and_nothing_of_them_stays(broker, topic, in_task, query, monkeypatch):
    monkeypatch.setattr(sink_transactions, "METADATA_BYTES_MAX", 3)
    writer = writer_of(broker, topic, delivery="exactly_once")
    with in_task(0, 0, query):
        message = writer.write(iter([values(1)]))

    with pytest.raises(SinkError, match=r"coalesce\(200\)"):
        writer.commit([message], 0)

    assert broker.call(still_open(broker, query, message.prepared)) is False


async def still_open(broker, query, prepared):
    options = SinkOptions(broker="kafka://unused")
    channel = Channel(broker._connect, clock=LoopClock(), settings=ProducerSettings(), client_id="test")
    broker = SimpleNamespace(channel=channel, options=options, about="the broker")
    try:
        return not await sink_transactions.end(broker, query, [prepared], commit=True)
    finally:
        await channel.close()


def test_a_transaction_that_brokers_do_not_allow_is_told(broker, topic, in_task, query):
    writer = writer_of(broker, topic, delivery="exactly_once", transaction_timeout="1000000")

    with in_task(0, 0, query), pytest.raises(SinkError, match="lower the option transaction_timeout"):
        writer.write(iter([values(1)]))


def test_topics_of_rows_are_in_one_transaction(broker, unique, in_task, query):
    one, other = broker.topic(unique("one")), broker.topic(unique("other"))
    given = {"broker": broker.url, "delivery": "exactly_once", "batches_topic": one}
    writer = sink.stream_writer(given, schema("value", "topic"), False)
    with in_task(0, 0, query):
        message = writer.write(iter([rows(value=["a", "b"], topic=[one, other])]))
    before = committed(broker, one, ended=False) + committed(broker, other, ended=False)

    writer.commit([message], 0)

    assert before == []
    assert (committed(broker, one), committed(broker, other)) == (["a"], ["b"])


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_told():
    options = {"broker": "kafka://127.0.0.1:1", "topic": "t", "delivery_timeout": "1"}

    with pytest.raises(SinkError, match=r"broker kafka://127.0.0.1:1 cannot be reached"):
        sink.batch_writer(options, schema("value"), False).write(iter([values(1)]))


# --- who leads an embedded path -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_task_leads_a_path_that_nobody_leads_and_lets_go_when_it_is_idle(tmp_path, monkeypatch):
    monkeypatch.setattr(sink_broker, "IDLE_S", 0.01)
    options = {"broker": f"embedded://{tmp_path}/broker", "topic": "orders"}
    writer = sink.batch_writer(options, schema("value"), False)

    with open_broker(writer._options) as opened:
        writer.write(iter([values(1, 2)]))
    blocking_until(lambda: opened.closing, limit_s=CALL_S).join(CALL_S)
    with serving(options["broker"]) as broker:
        leads, found = broker.backend.leading, broker.read("orders")

    assert leads
    assert [one.value for one in found] == [b"row 1", b"row 2"]


@pytest.mark.slow
def test_tasks_share_an_open_broker_until_one_of_them_fails(tmp_path):
    options = SinkOptions.parse({"broker": f"embedded://{tmp_path}/broker", "topic": "orders"})
    with serving(options.broker):
        with open_broker(options) as one, open_broker(options) as other:
            assert one is other
        with pytest.raises(OSError, match="lost"), open_broker(options):
            raise OSError("lost")
        with open_broker(options) as fresh:
            assert fresh is not one
        close_brokers()
        one.closing.join(CALL_S)


# --- under Spark --------------------------------------------------------------------------------------------------


def test_a_dataframe_is_written_with_all_its_columns(spark, broker, topic):
    written = spark.createDataFrame(
        [(f"v{number}", b"k%d" % number, {"h": b"1"}, number % 2) for number in range(100)],
        "value STRING, key BINARY, headers MAP<STRING, BINARY>, partition INT",
    ).selectExpr("*", "TIMESTAMP '2024-02-29 12:30:15.123Z' AS timestamp", f"'{topic}' AS topic")

    written.write.format("flowshare").option("broker", broker.url).mode("append").save()
    found = broker.read(topic)

    assert sorted((one.key, one.value) for one in found) == sorted(
        (b"k%d" % number, b"v%d" % number) for number in range(100)
    )
    assert {(tuple(one.headers), one.timestamp_ms) for one in found} == {((("h", b"1"),), 1_709_209_815_123)}


def test_tasks_write_to_a_path_that_nobody_leads(spark, tmp_path):
    url = f"embedded://{tmp_path}/broker"
    numbers = spark.range(0, 1000, 1, 4).selectExpr("CAST(id AS STRING) AS value")

    numbers.write.format("flowshare").options(broker=url, topic="numbers").mode("append").save()
    with serving(url) as broker:
        found = broker.read("numbers")

    assert sorted(int(one.value) for one in found) == list(range(1000))


def test_what_cannot_be_written_is_refused_when_the_query_is_planned(spark):
    people = spark.range(3).selectExpr("'a' AS value", "1 AS vaule")
    options = {"broker": "kafka://localhost", "topic": "t"}

    with pytest.raises(Exception, match="Did you mean 'value'"):
        people.write.format("flowshare").options(**options).mode("append").save()
    with pytest.raises(Exception, match="Did you mean 'compression'"):
        people.write.format("flowshare").options(**options, compresion="lz4").mode("append").save()


def test_a_stream_is_in_its_topic_once_though_its_last_batch_runs_again(spark, broker, topic, tmp_path):
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    options = {"broker": broker.url, "topic": topic, "delivery": "exactly_once", "batch_header": "true"}

    def run(tasks):
        stream = spark.readStream.schema("value STRING").text(str(source))
        writer = stream.repartition(tasks).writeStream.format("flowshare").options(**options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        return query.id

    source.mkdir()
    (source / "a.txt").write_text("\n".join(f"a{number}" for number in range(100)))
    name = run(2)
    (source / "b.txt").write_text("\n".join(f"b{number}" for number in range(100)))
    run(2)
    for entry in (checkpoint / "commits").glob("*1*"):
        entry.unlink()
    (source / "c.txt").write_text("\n".join(f"c{number}" for number in range(100)))
    run(3)

    expected = [f"{batch}{number}" for batch in "abc" for number in range(100)]
    assert sorted(committed(broker, topic)) == sorted(expected)
    header = dict(broker.read(topic)[0].headers)["flowshare.batch"].decode()
    assert header.startswith(f"{name}/0/")


def test_a_stream_is_written_at_least_once(spark, broker, topic, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.txt").write_text("x\ny")
    lines = spark.readStream.schema("value STRING").text(str(source))
    writer = lines.writeStream.format("flowshare").options(broker=broker.url, topic=topic)

    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .queryName("lines")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)

    assert sorted(one.value for one in broker.read(topic)) == [b"x", b"y"]


def test_prepared_transactions_survive_the_ledgers_text():
    known = (Prepared(0, 4000, 3), Prepared(17, 4001, 0))

    assert sink_transactions._from_text(sink_transactions._to_text(known)) == known
    assert sink_transactions._from_text("") == ()
