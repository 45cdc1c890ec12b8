"""Plain fetches in process: many partitions, bounds, and the wait for records."""

from __future__ import annotations

import itertools

import pytest

from flowshare.log.base import LogOffsets, ReadResult
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    MAX_TIMESTAMP,
    AbortedTransaction,
    DeleteRecordsRequest,
    DeleteTopicRequest,
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from flowshare.server.records.records import WAITED_BYTES_MAX, aborted_in
from flowshare.share.types import LogBatch
from flowshare.testing.clock import settle
from tests.server.world import batch, parked, world

pytestmark = pytest.mark.asyncio

ONE = len(batch(1))


def asked(*offsets: int, wait_ms: int = 0, **fields) -> FetchRequest:
    """A fetch of partitions 0, 1, … of topic t from these offsets."""
    partitions = tuple(FetchPartition("t", number, offset, 4 << 20) for number, offset in enumerate(offsets))
    return FetchRequest(partitions=partitions, max_wait_ms=wait_ms, **fields)


def sizes(answer) -> list[int]:
    """Bytes of each partition."""
    return [len(part.records) for part in answer.partitions]


async def test_a_waiting_fetch_reads_on_where_it_stopped() -> None:
    async with world() as w:
        await w.topic(partitions=2)
        await w.produce(1)
        task = await parked(w.admin.send(asked(0, 0, wait_ms=1000, min_bytes=3 * ONE)))

        await w.produce(1, partition=1)
        await settle()
        assert not task.done()
        await w.produce(1)
        answer = await task

        assert sizes(answer) == [2 * ONE, ONE]
        assert [(part.log_start, part.high_watermark) for part in answer.partitions] == [(0, 2), (0, 1)]


async def test_a_wait_ends_with_its_time_and_with_its_connection() -> None:
    async with world() as w:
        await w.topic()
        waiting = await parked(w.admin.send(asked(0, wait_ms=1000)))
        other = w.server.connect(client_id="other")
        lost = await parked(other.send(asked(0, wait_ms=1000)))

        await other.close()
        await w.clock.advance(1.0)

        assert sizes(await waiting) == [0]
        with pytest.raises(ConnectionError):
            await lost


async def test_more_bytes_than_are_gathered_are_not_waited_for() -> None:
    async with world() as w:
        await w.topic()
        large = batch(1, size=WAITED_BYTES_MAX // 2)
        task = await parked(w.admin.send(asked(0, wait_ms=1000, min_bytes=1 << 30)))
        for _ in range(2):
            await w.admin.send(ProduceRequest(topic="t", partition=0, records=large))

        assert sizes(await task) == [2 * len(large)]


async def test_what_does_not_fit_is_not_waited_for() -> None:
    async with world() as w:
        await w.topic()
        request = FetchRequest(
            partitions=(FetchPartition("t", 0, 0, 2 * ONE - 1),), max_wait_ms=1000, min_bytes=2 * ONE
        )
        task = await parked(w.admin.send(request))

        await w.admin.send(ProduceRequest(topic="t", partition=0, records=batch(1) + batch(1)))

        assert sizes(await task) == [ONE]


async def test_an_error_ends_the_wait_of_all() -> None:
    async with world() as w:
        await w.topic(partitions=2)

        answer = await w.admin.send(asked(0, 5, wait_ms=1000))
        waiting = await parked(w.admin.send(asked(0, wait_ms=1000)))
        await w.admin.send(DeleteTopicRequest(name="t"))
        await w.clock.advance(1.0)

        assert [part.error for part in answer.partitions] == [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE]
        assert [part.error for part in (await waiting).partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_what_was_read_stays_good_when_the_log_start_moves_past_it() -> None:
    async with world() as w:
        await w.topic()
        await w.produce(1)
        waiting = await parked(w.admin.send(asked(0, wait_ms=1000, min_bytes=5 * ONE)))

        await w.admin.send(DeleteRecordsRequest(topic="t", partition=0, before=1))
        await w.clock.advance(1.0)

        assert sizes(await waiting) == [ONE]


async def test_aborted_transactions_are_told_once_a_producer_from_their_first_batch_on() -> None:
    records = b"".join(
        produced(base, producer_id, control=control)
        for base, producer_id, control in (
            (0, 7, False),
            (1, 9, False),
            (2, 7, False),
            (3, 7, True),
            (4, 7, False),
            (5, 8, False),
        )
    )
    offsets = LogOffsets(log_start=0, high_watermark=6, last_stable=6)
    aborted = (LogBatch(0, 0), LogBatch(2, 2), LogBatch(4, 4))

    found = aborted_in(ReadResult(pieces=(records,), batches=(), offsets=offsets, aborted=aborted))

    assert found == [AbortedTransaction(7, 0), AbortedTransaction(7, 4)]


def produced(base: int, producer_id: int, *, control: bool) -> bytes:
    """One record of a transaction, or its marker."""
    made = bytearray(batch(1))
    made[0:8] = base.to_bytes(8)
    made[22] = 0x30 if control else 0x10
    made[43:51] = producer_id.to_bytes(8)
    return bytes(made)


@pytest.mark.parametrize("timestamp_ms", [1, 2**62, 2**63 - 2, 2**63 - 1])
async def test_the_newest_record_is_found_however_far_ahead_its_time_is(monkeypatch, timestamp_ms) -> None:
    async with world() as w:
        await w.storage.create_topic("t", configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
        for at_ms in (timestamp_ms - 1, timestamp_ms, timestamp_ms):
            await w.storage.append("t", 0, batch(1, timestamp_ms=at_ms))
        search, searches = w.storage.offset_for_timestamp, itertools.count(1)

        async def counted(topic: str, partition: int, timestamp_ms: int):
            assert next(searches) < 200, "a search without an end"
            return await search(topic, partition, timestamp_ms)

        monkeypatch.setattr(w.storage, "offset_for_timestamp", counted)
        answer = await w.admin.send(ListOffsetsRequest(topic="t", partition=0, timestamp_ms=MAX_TIMESTAMP))

        assert (answer.offset, answer.timestamp_ms) == (1, timestamp_ms)
