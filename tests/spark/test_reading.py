"""Tests of executors' reads, from a real server over a real socket: exactly the requested ranges, or the reason why
not."""

from __future__ import annotations

import itertools
import logging
import threading
from dataclasses import replace

import kio.static.primitive  # noqa: F401 - pytest compiles what it pulls in, which two threads must not do at once
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from pyspark.sql import types as t
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from flowshare.agents.handler.errors import OptionError
from flowshare.backend.base import BackendError
from flowshare.client.errors import ClientError
from flowshare.client.net.routing import ClusterConnection
from flowshare.protocol.batches import CODECS, BatchBuilder, batch_headers
from flowshare.protocol.decoding import decode_raw
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FetchRequest,
    InitProducerIdRequest,
    ProduceRequest,
)
from flowshare.spark.datasource import BrowsingReader, read_task
from flowshare.spark.source import reading
from flowshare.spark.source.dead_letters import SourceFacts, bury_rejected
from flowshare.spark.source.options import SourceOptions
from flowshare.spark.source.ranges import Range
from flowshare.spark.source.reading import DataLoss, LogGone, LogReader, ReadTask, read, reader_of
from tests.spark.serving import Serving, close_readers, serving

pytestmark = pytest.mark.slow
NOW_MS = 1_700_000_000_000
COLUMNS = (
    t.StructType()
    .add("value", t.BinaryType())
    .add("topic", t.StringType())
    .add("partition", t.IntegerType())
    .add("offset", t.LongType())
    .add("attempt", t.IntegerType())
)
ARROW = to_arrow_schema(COLUMNS, timezone="UTC")
PERSONS = (
    t.StructType()
    .add("key", t.BinaryType())
    .add("value", t.StructType().add("id", t.IntegerType()))
    .add("offset", t.LongType())
)


class Served(Serving):
    """A path that another thread leads, as another process would: it is reached over its socket only."""

    def __init__(self, url) -> None:
        super().__init__(url)
        self._numbers = itertools.count(1)

    def send(self, *requests):
        """Return the server's answers to requests, in process."""

        async def each():
            connection = await self._connect()
            return [await connection.send(request) for request in requests]

        answers = self.call(each())
        assert [answer.error for answer in answers] == [ErrorCode.NONE] * len(answers)
        return answers

    def cut(self) -> None:
        """End all sockets, as a network would."""

        async def abort():
            for socket in tuple(self.backend._led.listener._sockets):
                socket.abort()

        self.call(abort())

    def fresh(self, partitions: int = 1) -> str:
        """The name of a new topic; later ones come later in order, too."""
        return self.topic(f"t{next(self._numbers):03}", partitions)

    def end_of(self, topic: str, partition: int = 0) -> int:
        return self.call(self.admin.log_end(topic, partition))

    def write(self, topic: str, *sizes: int, partition: int = 0, compression: str = "none") -> None:
        """Batches of so many records each; values are `topic-partition@offset`."""
        at = self.end_of(topic, partition)
        for size in sizes:
            values = [b"%s-%d@%d" % (topic.encode(), partition, at + number) for number in range(size)]
            self.put(topic, [(None, value, ()) for value in values], partition=partition, compression=compression)
            at += size

    def put(self, topic: str, records, *, partition: int = 0, compression: str = "none") -> None:
        """One batch of (key, value, headers)."""
        builder = BatchBuilder(compression=compression)
        for key, value, headers in records:
            assert builder.add(key, value, headers, timestamp_ms=NOW_MS)
        self.send(ProduceRequest(topic=topic, partition=partition, records=builder.build()))

    def part(self, *ranges: Range, committed: bool = False, lossy: bool = False) -> ReadTask:
        """Return the task that the driver would hand to an executor."""
        topics = {one.topic: str(self.call(self.admin.describe_topic(one.topic)).topic_id) for one in ranges}
        assert self.backend.kafka is not None
        return ReadTask(
            broker=self.url,
            hosts=self.backend.kafka.hosts,
            ranges=ranges,
            topics=topics,
            committed=committed,
            lossy=lossy,
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    made = Served(f"embedded://{tmp_path_factory.mktemp('served')}/path")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def readers_of_its_own():
    """Each test has its own connections, and leaves no thread behind."""
    yield
    close_readers()


def offsets(part: ReadTask) -> list[tuple[str, int, int, int]]:
    """Topic, partition, offset and delivery count of all rows, whose values were looked at."""
    found = []
    for rows in read(part, ARROW, None):
        assert rows.poison == []
        for batch in rows.batches:
            batch.validate(full=True)
            for row in batch.to_pylist():
                assert row["value"] == b"%(topic)s-%(partition)d@%(offset)d" % {
                    b"topic": row["topic"].encode(),
                    b"partition": row["partition"],
                    b"offset": row["offset"],
                }
                found.append((row["topic"], row["partition"], row["offset"], row["attempt"]))
    return found


def bury(served, topic: str, reasons: dict[int, str]) -> None:
    """Reject records of partition 0, which have their letters in `topic.dlq` then."""
    sources = [SourceFacts(served.backend.kafka.hosts, f"{topic}.dlq", ())]
    assert bury_rejected(served.url, "etl", sources, {(topic, 0): reasons})


def plain(part: ReadTask) -> list[int]:
    """Offsets alone."""
    return [offset for _, _, offset, _ in offsets(part)]


@pytest.fixture
def one_batch_an_answer(monkeypatch):
    """Answers hold one batch of the log each, as of a large log."""
    monkeypatch.setattr(reading, "FETCH_BYTES", 1)


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, int, int]]:
    """Where each fetch began."""
    found: list[tuple[str, int, int]] = []
    fetch = LogReader.fetch

    def noted(self, topic, partition, first, last, *, committed):
        found.append((topic, partition, first))
        return fetch(self, topic, partition, first, last, committed=committed)

    monkeypatch.setattr(LogReader, "fetch", noted)
    return found


@pytest.fixture
def on_the_way(monkeypatch):
    """Change answers on their way: call it with what makes a FetchedLog of one."""
    whole = ClusterConnection.send

    def change(changed) -> None:
        async def send(self, request):
            answer = await whole(self, request)
            if isinstance(request, FetchRequest):
                return replace(answer, partitions=tuple(changed(log) for log in answer.partitions))
            return answer

        monkeypatch.setattr(ClusterConnection, "send", send)

    return change


# --- exactly what was asked for -----------------------------------------------------------------------------------


def test_exactly_the_asked_ranges_are_read(served):
    topic = served.fresh()
    served.write(topic, 5, 5, 5, 5, 5, 5)

    part = served.part(Range(topic, 0, 2, 3), Range(topic, 0, 8, 16, 4), Range(topic, 0, 28, 29))

    assert offsets(part) == [
        *[(topic, 0, offset, 1) for offset in (2, 3)],
        *[(topic, 0, offset, 4) for offset in range(8, 17)],
        *[(topic, 0, offset, 1) for offset in (28, 29)],
    ]


def test_ranges_of_several_partitions_and_topics_are_one_part(served):
    first, second = served.fresh(2), served.fresh()
    for partition in (0, 1):
        served.write(first, 4, 4, partition=partition)
    served.write(second, 4)

    part = served.part(Range(second, 0, 1, 1), Range(first, 1, 6, 7), Range(first, 0, 0, 2, 2))

    assert offsets(part) == [
        *[(first, 0, offset, 2) for offset in (0, 1, 2)],
        *[(first, 1, offset, 1) for offset in (6, 7)],
        (second, 0, 1, 1),
    ]


@pytest.mark.parametrize("compression", CODECS)
def test_compressed_batches_are_read_like_others(served, compression):
    topic = served.fresh()
    served.write(topic, 10, 10, compression=compression)

    assert plain(served.part(Range(topic, 0, 7, 12))) == [7, 8, 9, 10, 11, 12]


@pytest.fixture
def one_batch_at_once(monkeypatch):
    """Each batch of an answer is too much beside another one, as of batches that unpack to very much."""
    monkeypatch.setitem(decode_raw.__kwdefaults__, "bytes_max", 1)


@pytest.mark.usefixtures("one_batch_at_once")
def test_an_answer_that_is_too_much_at_once_is_read_to_its_end(served):
    topic = served.fresh()
    served.write(topic, 5, 5, 5, compression="gzip")
    part = served.part(Range(topic, 0, 1, 3, 1), Range(topic, 0, 4, 13, 2))

    assert plain(part) == list(range(1, 14))
    buried = [one.record.offset for rows in read(replace(part, buried="bad"), ARROW, None) for one in rows.poison]
    assert buried == list(range(1, 14))


@pytest.mark.usefixtures("one_batch_at_once")
def test_each_rejected_record_of_an_answer_that_is_too_much_at_once_has_its_letter(served):
    topic = served.fresh()
    served.write(topic, 5, 5, 5, compression="gzip")

    bury(served, topic, dict.fromkeys(range(2, 14), "odd"))

    letters = served.read(f"{topic}.dlq")
    assert [dict(one.headers)["flowshare.dlq.offset"] for one in letters] == [b"%d" % one for one in range(2, 14)]


def test_a_part_is_read_the_same_when_its_task_is_tried_again(served):
    topic = served.fresh()
    served.write(topic, 5, 5)
    part = served.part(Range(topic, 0, 1, 8))

    assert offsets(part) == offsets(part)


@pytest.mark.usefixtures("one_batch_an_answer")
def test_a_range_of_many_answers_is_read_to_its_end(served, asked):
    topic = served.fresh()
    served.write(topic, *[5] * 8)

    assert plain(served.part(Range(topic, 0, 3, 36))) == list(range(3, 37))
    assert asked == [(topic, 0, offset) for offset in (3, 5, 10, 15, 20, 25, 30, 35)]


@pytest.mark.usefixtures("one_batch_an_answer")
def test_what_lies_between_ranges_is_not_fetched(served, asked):
    topic = served.fresh()
    served.write(topic, *[5] * 20)

    assert plain(served.part(Range(topic, 0, 0, 1), Range(topic, 0, 93, 96))) == [0, 1, 93, 94, 95, 96]
    assert asked == [(topic, 0, offset) for offset in (0, 93, 95)]


def test_about_as_much_is_asked_for_as_the_ranges_hold(served, monkeypatch):
    topic, found, fetch = served.fresh(), [], LogReader._fetch
    served.write(topic, *[5] * 40)

    async def noted(self, part, committed):
        log = await fetch(self, part, committed)
        found.append(len(log.records))
        return log

    monkeypatch.setattr(reading, "FETCH_BYTES_MIN", 1)
    monkeypatch.setattr(LogReader, "_fetch", noted)
    first = plain(served.part(Range(topic, 0, 0, 9)))
    again = plain(served.part(Range(topic, 0, 100, 109)))
    whole = plain(served.part(Range(topic, 0, 0, 199)))

    assert (first, again, whole) == (list(range(10)), list(range(100, 110)), list(range(200)))
    assert found[1] < found[2] / 10  # the first one's answer says how large records are


def test_neighbouring_ranges_are_read_in_one_fetch(served, asked):
    topic = served.fresh()
    served.write(topic, 5, 5, 5)

    assert plain(served.part(*[Range(topic, 0, at, at) for at in range(12)])) == list(range(12))
    assert asked == [(topic, 0, 0)]


def test_a_part_of_nothing_is_no_row(served):
    assert offsets(served.part()) == []


def test_a_read_that_is_given_up_does_not_disturb_the_next_one(served, monkeypatch):
    monkeypatch.setattr(reading, "FETCH_BYTES", 1)
    topic = served.fresh()
    served.write(topic, *[5] * 4)
    part = served.part(Range(topic, 0, 0, 19))

    begun = read(part, ARROW, None)
    next(begun)
    begun.close()

    assert plain(part) == list(range(20))


# --- connections --------------------------------------------------------------------------------------------------


def test_a_process_has_one_reader_for_a_cluster(served):
    topic = served.fresh()
    served.write(topic, 2)
    part = served.part(Range(topic, 0, 0, 1))

    assert reader_of(part.broker, part.hosts) is reader_of(part.broker, part.hosts)
    assert reader_of(part.broker, part.hosts) is not reader_of(part.broker, ("127.0.0.1:1",))


def test_closed_readers_leave_no_thread_and_a_new_one_reads_on(served):
    topic = served.fresh()
    served.write(topic, 2)
    part = served.part(Range(topic, 0, 0, 1))
    assert plain(part) == [0, 1]

    close_readers()

    assert not [thread for thread in threading.enumerate() if thread.name == "flowshare log"]
    assert plain(part) == [0, 1]


def test_a_connection_that_was_lost_between_two_reads_is_opened_again(served):
    topic = served.fresh()
    served.write(topic, 4)
    part = served.part(Range(topic, 0, 0, 3))
    assert plain(part) == [0, 1, 2, 3]

    served.cut()

    assert plain(part) == [0, 1, 2, 3]


@pytest.mark.usefixtures("one_batch_an_answer")
def test_a_connection_that_is_lost_in_the_middle_of_a_read_loses_and_doubles_nothing(served):
    topic = served.fresh()
    served.write(topic, *[5] * 6)
    part = served.part(Range(topic, 0, 2, 27))

    found = []
    for rows in read(part, ARROW, None):
        found += [offset for batch in rows.batches for offset in batch.column("offset").to_pylist()]
        served.cut()

    assert found == list(range(2, 28))


def test_records_that_are_not_there_yet_are_waited_for(served, on_the_way):
    """A replica that took over may be a moment behind what was acquired."""
    topic = served.fresh()
    served.write(topic, 3, 3)
    behind = iter([True, True, True])
    on_the_way(lambda log: replace(log, records=b"", high_watermark=1) if next(behind, False) else log)

    assert plain(served.part(Range(topic, 0, 1, 4))) == [1, 2, 3, 4]


# --- what is not there any more -----------------------------------------------------------------------------------


def test_what_retention_took_fails_the_batch_with_how_many_and_what_to_do(served):
    topic = served.fresh()
    served.write(topic, 5, 5, 5)
    part = served.part(Range(topic, 0, 1, 3), Range(topic, 0, 5, 12))
    served.call(served.admin.delete_records(topic, 0, 7))

    with pytest.raises(DataLoss, match=rf"{topic}-0@1 to 6: retention took 5 records .*'on_data_loss', 'continue'"):
        offsets(part)


def test_what_retention_took_is_left_out_and_told_where_the_source_goes_on(served, caplog):
    topic = served.fresh()
    served.write(topic, 5, 5, 5)
    part = served.part(Range(topic, 0, 1, 3), Range(topic, 0, 4, 12), lossy=True)
    served.call(served.admin.delete_records(topic, 0, 7))

    with caplog.at_level(logging.ERROR, "flowshare.spark"):
        assert plain(part) == [7, 8, 9, 10, 11, 12]
    assert "retention took 6 records before they were read: the batch goes on without them" in caplog.text


def test_what_retention_took_whole_is_no_row(served):
    topic = served.fresh()
    served.write(topic, 5, 5)
    part = served.part(Range(topic, 0, 0, 4), lossy=True)
    served.call(served.admin.delete_records(topic, 0, -1))

    assert plain(part) == []


def test_what_retention_took_in_the_middle_of_a_read_is_left_out(served, monkeypatch):
    monkeypatch.setattr(reading, "FETCH_BYTES", 1)
    topic = served.fresh()
    served.write(topic, *[5] * 6)
    under_way = read(served.part(Range(topic, 0, 0, 29), lossy=True), ARROW, None)

    found = next(under_way).batches[0].column("offset").to_pylist()
    served.call(served.admin.delete_records(topic, 0, 22))
    for rows in under_way:
        found += [offset for batch in rows.batches for offset in batch.column("offset").to_pylist()]

    assert found[:5] == [0, 1, 2, 3, 4]
    assert found[-8:] == list(range(22, 30))
    assert found == sorted(set(found))


def test_a_broker_that_does_not_say_where_its_log_starts_is_asked(served, on_the_way):
    """Kafka's brokers say −1 when an offset is out of range."""
    topic = served.fresh()
    served.write(topic, 5, 5)
    part = served.part(Range(topic, 0, 0, 9), lossy=True)
    served.call(served.admin.delete_records(topic, 0, 7))

    on_the_way(lambda log: log if log.error is ErrorCode.NONE else replace(log, log_start=-1, high_watermark=-1))

    assert plain(part) == [7, 8, 9]


def test_what_compaction_took_is_left_out(served, on_the_way):
    topic = served.fresh()
    served.write(topic, 5, 5, 5)

    def without_the_second(log):
        kept = [header for header in batch_headers(log.records) if header.base_offset != 5]
        return replace(log, records=b"".join(log.records[one.position : one.position + one.size] for one in kept))

    on_the_way(without_the_second)

    assert plain(served.part(Range(topic, 0, 3, 11))) == [3, 4, 10, 11]


@pytest.mark.parametrize("high_watermark", [3, 15, 1000], ids=["a follower", "all of the log", "more than that"])
@pytest.mark.parametrize("lossy", [False, True])
def test_answers_without_a_record_never_mean_that_it_is_gone(served, on_the_way, monkeypatch, high_watermark, lossy):
    monkeypatch.setattr(reading, "STUCK_S", 0.0)
    topic = served.fresh()
    served.write(topic, 5, 5, 5)
    on_the_way(lambda log: replace(log, records=b"", high_watermark=high_watermark))

    with pytest.raises(LogGone, match=f"{topic}-0@3 to 6: the brokers gave no record of it.*remote.fetch.max.wait.ms"):
        plain(served.part(Range(topic, 0, 3, 6), lossy=lossy))


def test_a_broker_that_answers_late_is_asked_as_long_as_it_takes(served, on_the_way, monkeypatch):
    """Empty answers between others, as of a remote tier: more of them than any count would allow."""
    monkeypatch.setattr(reading, "FETCH_BYTES", 1)
    monkeypatch.setattr(reading, "EMPTY_PAUSE_S", 0.0)
    topic = served.fresh()
    served.write(topic, 5, 5, 5)
    turns = itertools.cycle([*[True] * 40, False])
    on_the_way(lambda log: replace(log, records=b"") if next(turns) else log)

    assert plain(served.part(Range(topic, 0, 1, 13))) == list(range(1, 14))


def held_back(answer):
    """Return the client's view of an answer from which Kafka's brokers leave out all partitions."""
    error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    return tuple(replace(log, records=b"", error=error) for log in answer.partitions)


def test_a_quota_of_the_brokers_is_waited_for_and_does_not_count_as_standing_still(served, monkeypatch):
    monkeypatch.setattr(reading, "STUCK_S", 0.0)
    monkeypatch.setattr(reading, "FETCH_BYTES", 1)
    topic = served.fresh()
    served.write(topic, 5, 5)
    whole, throttled, slept = ClusterConnection.send, itertools.cycle([True, True, False]), []

    async def send(self, request):
        answer = await whole(self, request)
        if isinstance(request, FetchRequest) and next(throttled):
            return replace(answer, partitions=held_back(answer), throttle_ms=7_000)
        return answer

    async def sleep(delay_s):
        slept.append(delay_s)

    monkeypatch.setattr(ClusterConnection, "send", send)
    monkeypatch.setattr(reading.asyncio, "sleep", sleep)

    assert plain(served.part(Range(topic, 0, 0, 9))) == list(range(10))
    assert sum(delay_s > 6 for delay_s in slept) >= 4


def test_a_quota_that_lets_nothing_through_fails_the_task_with_its_name(served, monkeypatch):
    monkeypatch.setattr(reading, "THROTTLED_S", 1.0)
    topic = served.fresh()
    served.write(topic, 5)
    whole = ClusterConnection.send

    async def send(self, request):
        answer = await whole(self, request)
        if not isinstance(request, FetchRequest):
            return answer
        return replace(answer, partitions=held_back(answer), throttle_ms=7_000)

    monkeypatch.setattr(ClusterConnection, "send", send)

    with pytest.raises(LogGone, match="raise consumer_byte_rate"):
        plain(served.part(Range(topic, 0, 0, 4)))


def test_offsets_behind_the_end_of_the_log_fail_the_task(served):
    topic = served.fresh()
    served.write(topic, 3)

    with pytest.raises(LogGone, match=f"{topic}-0@7 is behind the end of the log"):
        offsets(served.part(Range(topic, 0, 7, 9)))


# --- topics that were made anew -----------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False], ids=["read before", "never read before"])
def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(served, caplog, known):
    topic = served.fresh()
    served.write(topic, 3)
    old = served.part(Range(topic, 0, 0, 2))
    assert not known or plain(old) == [0, 1, 2]
    served.call(served.admin.delete_topic(topic))
    served.topic(topic)
    served.write(topic, 5)

    with pytest.raises(DataLoss, match=f"topic {topic} is gone or was made anew: 3 records of partition 0"):
        plain(old)
    with caplog.at_level(logging.ERROR, "flowshare.spark"):
        assert plain(replace(old, lossy=True)) == []
    assert f"topic {topic} is gone or was made anew: 3 records" in caplog.text


def test_the_new_topic_is_read_by_who_read_the_old_one(served):
    topic = served.fresh()
    served.write(topic, 3)
    assert plain(served.part(Range(topic, 0, 0, 2))) == [0, 1, 2]
    served.call(served.admin.delete_topic(topic))
    served.topic(topic)
    served.write(topic, 5)

    assert plain(served.part(Range(topic, 0, 1, 4))) == [1, 2, 3, 4]


def test_a_topic_that_was_deleted_is_no_row_and_is_not_made_again(served, caplog):
    topic, other = served.fresh(), served.fresh()
    served.write(topic, 3)
    served.write(other, 3)
    part = served.part(Range(topic, 0, 0, 2), Range(other, 0, 0, 2), lossy=True)
    served.call(served.admin.delete_topic(topic))

    with caplog.at_level(logging.WARNING, "flowshare.spark"):
        assert offsets(part) == [(other, 0, offset, 1) for offset in (0, 1, 2)]
    assert f"topic {topic} is gone" in caplog.text
    assert topic not in [one.name for one in served.call(served.admin.list_topics())]


# --- transactions -------------------------------------------------------------------------------------------------


def transaction(served, topic: str, transactional_id: str, *, committed: bool, records: int = 2) -> None:
    """Records in a transaction that is ended; its marker takes an offset, too."""
    (begun,) = served.send(InitProducerIdRequest(transactional_id=transactional_id))
    same = {"transactional_id": transactional_id, "producer": begun.producer}
    builder = DefaultRecordBatchBuilder(2, 0, True, *begun.producer, 0, 1 << 20)
    at = served.end_of(topic)
    for number in range(records):
        builder.append(number, NOW_MS, None, b"%s-0@%d" % (topic.encode(), at + number), [])
    served.send(
        AddPartitionsToTxnRequest(partitions=((topic, 0),), **same),
        ProduceRequest(topic=topic, partition=0, records=bytes(builder.build()), transactional_id=transactional_id),
        EndTxnRequest(committed=committed, **same),
    )


@pytest.fixture
def transactions(served) -> str:
    """Offsets 0-1 committed (2 its marker), 3-4 aborted (5), 6-8 plain, 9-10 aborted (11), 12-13 committed (14)."""
    topic = served.fresh()
    transaction(served, topic, f"{topic}-a", committed=True)
    transaction(served, topic, f"{topic}-b", committed=False)
    served.write(topic, 3)
    transaction(served, topic, f"{topic}-b", committed=False)
    transaction(served, topic, f"{topic}-b", committed=True)
    return topic


@pytest.mark.parametrize("fetch_bytes", [1, 8 << 20])
def test_records_of_aborted_transactions_are_no_rows_where_committed_ones_are_read(
    served, transactions, monkeypatch, fetch_bytes
):
    monkeypatch.setattr(reading, "FETCH_BYTES", fetch_bytes)

    assert plain(served.part(Range(transactions, 0, 0, 14), committed=True)) == [0, 1, 6, 7, 8, 12, 13]
    assert plain(served.part(Range(transactions, 0, 4, 10), committed=True)) == [6, 7, 8]


def test_uncommitted_reading_leaves_out_markers_alone(served, transactions):
    assert plain(served.part(Range(transactions, 0, 0, 14))) == [0, 1, 3, 4, 6, 7, 8, 9, 10, 12, 13]


# --- damage -------------------------------------------------------------------------------------------------------


def flipped(log, base_offset: int, at: int = -1):
    """The answer with a bit of one of its batches turned."""
    records = bytearray(log.records)
    for header in batch_headers(log.records):
        if header.base_offset == base_offset:
            records[header.position + (header.size + at if at < 0 else at)] ^= 0x40
    return replace(log, records=bytes(records))


@pytest.mark.parametrize("damaged", [0, 5, 10])
def test_a_damaged_batch_is_left_out_and_told(served, on_the_way, caplog, damaged):
    topic = served.fresh()
    served.write(topic, 5, 5, 5)
    on_the_way(lambda log: flipped(log, damaged))
    options = SourceOptions.parse({"broker": served.url, "group": f"{topic}-etl", "topics": topic})

    with caplog.at_level(logging.ERROR, "flowshare.spark"):
        left = rows_of(options, served.part(Range(topic, 0, 0, 14)), COLUMNS)
    (letter,) = served.call(served.admin.read(f"{topic}-etl.dlq", 0))
    headers = dict(letter.headers)

    assert [row["offset"] for row in left] == [offset for offset in range(15) if not damaged <= offset < damaged + 5]
    assert f"{topic}-0: offsets {damaged} to {damaged + 4} cannot be read" in caplog.text
    assert (letter.key, letter.value) == (None, None)
    assert headers["flowshare.dlq.offset"] == str(damaged).encode()
    assert headers["flowshare.dlq.last_offset"] == str(damaged + 4).encode()


def test_a_damaged_batch_does_not_let_aborted_records_behind_it_through(served, transactions, on_the_way):
    on_the_way(lambda log: flipped(log, 6))

    assert plain(served.part(Range(transactions, 0, 0, 14), committed=True)) == [0, 1, 12, 13]


@pytest.mark.parametrize("cut", [1, 30, 80])
def test_a_batch_that_a_broker_cut_off_at_the_end_of_its_answer_is_asked_for_again(served, on_the_way, cut):
    """Kafka's brokers fill an answer up to its limit, whatever that does to the last batch."""
    topic = served.fresh()
    served.write(topic, 5, 5, 5)
    once = iter([True])
    on_the_way(lambda log: replace(log, records=log.records[:-cut]) if next(once, False) else log)

    assert plain(served.part(Range(topic, 0, 2, 14))) == list(range(2, 15))


# --- poison -------------------------------------------------------------------------------------------------------


def persons(served, topic: str, group: str, **given: str) -> SourceOptions:
    return SourceOptions.parse(
        {"broker": served.url, "topics": topic, "group": group, "value": "json", "value_schema": "id INT", **given}
    )


def rows_of(options: SourceOptions, part: ReadTask, columns: t.StructType = PERSONS) -> list[dict]:
    return [row for batch in read_task(options, columns, InputPartition(part)) for row in batch.to_pylist()]


RECORDS = [
    (b"a", b'{"id": 1}', ()),
    (b"b", b"{broken", (("trace", b"7"), ("flowshare.dlq.reason", b"of an earlier life"), ("empty", None))),
    (b"c", None, ()),
    (b"d", b'{"id": "x"}', ()),
    (b"e", b'{"id": 5}', ()),
]


def test_a_value_that_does_not_fit_becomes_a_dead_letter_and_the_others_are_rows(served, caplog):
    topic = served.fresh()
    served.put(topic, RECORDS)
    part = served.part(Range(topic, 0, 0, 2, 3), Range(topic, 0, 3, 4, 1))

    with caplog.at_level(logging.ERROR, "flowshare.spark"):
        rows = rows_of(persons(served, topic, f"{topic}-etl"), part)

    assert rows == [
        {"key": b"a", "value": {"id": 1}, "offset": 0},
        {"key": b"c", "value": None, "offset": 2},
        {"key": b"e", "value": {"id": 5}, "offset": 4},
    ]
    first, second = served.call(served.admin.read(f"{topic}-etl.dlq", 0))
    assert [(one.key, one.value) for one in (first, second)] == [(b"b", b"{broken"), (b"d", b'{"id": "x"}')]
    headers = dict(first.headers)
    assert len(headers.pop("flowshare.dlq.reason")) > 10
    assert headers == {
        "trace": b"7",
        "empty": None,
        "flowshare.dlq.topic": topic.encode(),
        "flowshare.dlq.partition": b"0",
        "flowshare.dlq.offset": b"1",
        "flowshare.dlq.attempts": b"3",
        "flowshare.dlq.group": f"{topic}-etl".encode(),
        "flowshare.dlq.timestamp": str(NOW_MS).encode(),
    }
    assert len(first.headers) == len(headers) + 1
    assert dict(second.headers)["flowshare.dlq.attempts"] == b"1"
    assert f"{topic}-0: 2 records do not fit value_schema, the first at offset 1" in caplog.text


def test_a_task_that_is_tried_again_writes_its_dead_letters_again(served):
    topic = served.fresh()
    served.put(topic, RECORDS)
    options = persons(served, topic, f"{topic}-etl", dead_letter=f"{topic}-bad")
    part = served.part(Range(topic, 0, 0, 4))

    assert rows_of(options, part) == rows_of(options, part)

    letters = served.call(served.admin.read(f"{topic}-bad", 0))
    assert [letter.key for letter in letters] == [b"b", b"d", b"b", b"d"]


def test_without_a_dead_letter_topic_poison_is_in_the_log_alone(served, caplog):
    topic = served.fresh()
    served.put(topic, RECORDS)
    options = persons(served, topic, f"{topic}-etl", dead_letter="none")

    with caplog.at_level(logging.ERROR, "flowshare.spark"):
        rows = rows_of(options, served.part(Range(topic, 0, 0, 4)))

    assert [row["offset"] for row in rows] == [0, 2, 4]
    assert "2 records do not fit value_schema" in caplog.text
    names = [one.name for one in served.call(served.admin.list_topics())]
    assert not [name for name in names if name.startswith(topic) and name != topic]


def large(size: int) -> bytes:
    """A value of so many bytes that does not fit `persons`."""
    return b'{"id": "%s"}' % (b"x" * (size - 10))


def told(letters) -> list[tuple[bytes | None, bytes]]:
    """Value and offset of each letter."""
    return [(one.value, dict(one.headers)["flowshare.dlq.offset"]) for one in letters]


@pytest.mark.parametrize(("size", "limit"), [(1_048_300, 1_048_588), (5000, 4000)])
def test_a_letter_that_its_topic_does_not_take_goes_without_its_record_and_the_others_whole(
    served, caplog, size, limit
):
    """The letter of a record near the topic's limit is beyond it: it has headers more."""
    topic = served.fresh()
    dead = served.topic(f"{topic}-etl.dlq", **{"max.message.bytes": str(limit)})
    values = [b"{broken", large(size), b'{"id": 3}', b"{broken, too"]
    for value in values:
        served.put(topic, [(None, value, (("mine", b"1"),))])

    with caplog.at_level(logging.ERROR, "flowshare.spark"):
        rows = rows_of(persons(served, topic, f"{topic}-etl"), served.part(Range(topic, 0, 0, 3)))

    assert [row["offset"] for row in rows] == [2]
    letters = sorted(served.read(dead), key=lambda one: dict(one.headers)["flowshare.dlq.offset"])
    assert told(letters) == [(values[0], b"0"), (None, b"1"), (values[3], b"3")]
    headers = dict(letters[1].headers)
    assert str(size) in headers["flowshare.dlq.left_out"].decode()
    assert "mine" not in headers
    assert f"too large for {dead}" in caplog.text
    assert f"{topic}-0@1" in caplog.text


def test_a_letter_is_as_large_as_its_topic_takes_it(served):
    topic = served.fresh()
    served.topic(f"{topic}.dlq", **{"max.message.bytes": "4000000"})
    served.call(served.admin.alter_topic_configs(topic, {"max.message.bytes": "4000000"}))
    served.put(topic, [(None, large(3_000_000), ())])

    bury(served, topic, {0: "odd"})

    assert told(served.read(f"{topic}.dlq")) == [(large(3_000_000), b"0")]


def test_the_letter_of_a_rejected_record_that_its_topic_does_not_take_goes_without_it(served):
    topic = served.fresh()
    served.topic(f"{topic}.dlq", **{"max.message.bytes": "4000"})
    served.put(topic, [(None, large(5000), ()), (None, b"small", ())])

    bury(served, topic, {0: "odd", 1: "odd"})

    assert told(served.read(f"{topic}.dlq")) == [(b"small", b"1"), (None, b"0")]


def test_a_dead_letter_that_cannot_be_written_fails_the_task(served):
    """The record would be lost otherwise."""
    topic = served.fresh()
    served.put(topic, RECORDS)
    options = persons(served, topic, f"{topic}-etl", dead_letter="no/topic")

    with pytest.raises(ClientError, match="no/topic"):
        rows_of(options, served.part(Range(topic, 0, 0, 4)))


# --- a look without taking ----------------------------------------------------------------------------------------


def browsed(served, topic: str, group: str, **given: str) -> list[list[Range]]:
    """The ranges of each task."""
    options = SourceOptions.parse({"broker": served.url, "topics": topic, "group": group, **given})
    return [list(part.value.ranges) for part in BrowsingReader(options, COLUMNS).partitions()]


def test_all_of_the_log_is_unfinished_for_a_group_that_there_is_not(served):
    topic = served.fresh(2)
    served.write(topic, 5)
    served.write(topic, 2, partition=1)

    assert browsed(served, topic, f"{topic}-new", tasks="1") == [[Range(topic, 0, 0, 4, 0), Range(topic, 1, 0, 1, 0)]]


def test_what_the_group_has_finished_is_not_shown(served):
    topic = served.fresh()
    served.write(topic, 10)
    finished = {(topic, 0): [(4, 4), (5, 5), (8, 8)]}
    served.call(served.admin.place_group(f"{topic}-g", {(topic, 0): 2}, finished))

    assert browsed(served, topic, f"{topic}-g", tasks="1") == [
        [Range(topic, 0, 2, 3, 0), Range(topic, 0, 6, 7, 0), Range(topic, 0, 9, 9, 0)]
    ]


def test_what_retention_took_is_not_shown(served):
    topic = served.fresh()
    served.write(topic, 5, 5)
    served.call(served.admin.place_group(f"{topic}-g", {(topic, 0): 0}))
    served.call(served.admin.delete_records(topic, 0, 5))

    assert browsed(served, topic, f"{topic}-g", tasks="1") == [[Range(topic, 0, 5, 9, 0)]]


def test_a_look_is_shared_out_and_takes_nothing(served):
    topic = served.fresh()
    served.write(topic, 10)
    options = SourceOptions.parse({"broker": served.url, "topics": topic, "group": f"{topic}-g", "tasks": "2"})
    reader = BrowsingReader(options, COLUMNS)

    for _ in range(2):
        parts = reader.partitions()
        assert len(parts) == 2
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        assert [(row["offset"], row["attempt"]) for row in rows] == [(offset, 0) for offset in range(10)]
    assert f"{topic}-g" not in [group.group_id for group in served.call(served.admin.list_groups())]


def test_a_look_makes_no_dead_letters_of_what_the_group_delivers_still(served):
    topic = served.fresh()
    served.put(topic, RECORDS)
    options = persons(served, topic, f"{topic}-look")
    reader = BrowsingReader(options, PERSONS)

    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]

    assert rows, "what can be read is shown"
    assert f"{topic}-look.dlq" not in [one.name for one in served.call(served.admin.list_topics())]


def test_a_look_at_a_path_that_nobody_leads_is_led_by_the_task_that_comes_first(tmp_path):
    url = f"embedded://{tmp_path}/path"
    with serving(url) as broker:
        broker.topic("orders")
        broker.produce("orders", [b"one", b"two"])
    reader = BrowsingReader(SourceOptions.parse({"broker": url, "topics": "orders", "group": "g"}), COLUMNS)
    parts = reader.partitions()

    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    assert parts[0].value.hosts == (), "whoever planned the look has ended"
    assert [row["value"] for row in rows] == [b"one", b"two"]


@pytest.mark.parametrize("tries", [1, reading.TRIES], ids=["once", "each time"])
def test_a_path_whose_leader_is_not_reached_is_opened_once_and_let_go_of_when_the_reader_is_closed(
    tmp_path, monkeypatch, tries
):
    url = f"embedded://{tmp_path}/path"
    with serving(url) as broker:
        broker.topic("orders")
    opened, failures = [], iter([True] * tries)
    begin, start = reading.open_backend, reading.Cluster.start

    def noted(*told, **more):
        opened.append(begin(*told, **more))
        return opened[-1]

    async def fails(cluster):
        if next(failures, False):
            raise ConnectionRefusedError("not at the moment")
        await start(cluster)

    monkeypatch.setattr(reading, "open_backend", noted)
    monkeypatch.setattr(reading.Cluster, "start", fails)
    reader = reader_of(url, ())
    asked = reader.topic_ids(["orders"])
    if tries < reading.TRIES:
        assert asked.result().keys() == {"orders"}
    else:
        with pytest.raises(ConnectionRefusedError):
            asked.result()
        assert reader.topic_ids(["orders"]).result().keys() == {"orders"}, "the next task reaches it"
    close_readers()

    assert len(opened) == 1
    assert not any(backend.leading for backend in opened)


def test_a_path_that_cannot_be_opened_is_opened_anew_by_the_next_read(tmp_path, monkeypatch):
    url = f"embedded://{tmp_path}/path"
    with serving(url) as broker:
        broker.topic("orders")
    failures, begin = iter([True]), reading.open_backend

    def fails_once(*told, **more):
        backend = begin(*told, **more)
        start = backend.start

        async def starts():
            if next(failures, False):
                raise BackendError("nobody leads it and it cannot be opened")
            await start()

        backend.start = starts
        return backend

    monkeypatch.setattr(reading, "open_backend", fails_once)
    reader = reader_of(url, ())
    with pytest.raises(BackendError):
        reader.topic_ids(["orders"]).result()

    assert reader.topic_ids(["orders"]).result().keys() == {"orders"}


def test_an_empty_topic_is_no_task(served):
    assert browsed(served, served.fresh(), "g") == []


def test_a_topic_that_there_is_not_is_refused(served):
    with pytest.raises(OptionError, match="there is no topic 'nowhere' here"):
        browsed(served, "nowhere", "g")


def test_no_text_of_a_part_shows_a_password():
    part = ReadTask(broker="kafka://user:hush-hush@b:1", hosts=("b:1",), ranges=(), topics={}, committed=False)

    assert "hush-hush" not in repr(InputPartition(part))


def test_rows_are_what_spark_expects_of_their_columns(served):
    topic = served.fresh()
    served.write(topic, 2)

    (rows,) = read(served.part(Range(topic, 0, 0, 1)), ARROW, None)

    assert isinstance(rows.batches[0], pa.RecordBatch)
    assert rows.batches[0].schema == ARROW
