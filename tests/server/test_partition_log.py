"""Tests of a share-partition owner's view of the log when no member wants the records' bytes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from flowshare.log.base import OffsetOutOfRange
from flowshare.log.embedded import EmbeddedStorage
from flowshare.protocol.batches import decode
from flowshare.protocol.messages import TopicPartition
from flowshare.server.share.partition_log import REST_S, LogGuard, PartitionLog
from flowshare.share.config import ServerConfig
from flowshare.share.types import LogBatch
from flowshare.testing.clock import ManualClock
from tests.log.contract import FixedClock, batch
from tests.log.producer_contract import in_transaction
from tests.protocol.test_batches import patch
from tests.server import world as servers
from tests.server.world import ranges, reject

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def viewed(path):
    """An embedded storage with topic t, and the view of its partition."""
    storage = await EmbeddedStorage.open(path, clock=FixedClock())
    try:
        topic = await storage.create_topic("t")
        yield storage, PartitionLog(storage, topic="t", topic_id=topic.topic_id, partition=0)
    finally:
        await storage.close()


def outline(log, offset, *, records_max=1000, committed=False):
    log.committed = committed
    return log.read(offset, records_max=records_max, bytes_max=1 << 20, with_records=False)


async def test_ranges_of_a_dense_log_are_told_without_reading_it(tmp_path, monkeypatch):
    async with viewed(tmp_path / "log") as (storage, log):
        for _ in range(4):
            await storage.append("t", 0, batch(5))
        monkeypatch.setattr(storage, "read", None)

        assert (await outline(log, 0)).batches == (LogBatch(0, 19),)
        assert (await outline(log, 3, records_max=10)).batches == (LogBatch(3, 12),)
        assert (await outline(log, 20)).batches == ()
        assert (await outline(log, 0)).size == 0
        with pytest.raises(OffsetOutOfRange):
            await outline(log, 21)


async def test_ranges_end_before_an_open_transaction_for_readers_of_committed_records(tmp_path, monkeypatch):
    async with viewed(tmp_path / "log") as (storage, log):
        await storage.append("t", 0, batch(3))
        await storage.append("t", 0, in_transaction(0, 2))
        monkeypatch.setattr(storage, "read", None)

        assert (await outline(log, 0, committed=True)).batches == (LogBatch(0, 2),)
        assert (await outline(log, 0)).batches == (LogBatch(0, 4),)


async def test_a_log_with_aborted_records_is_read_for_its_ranges(tmp_path):
    async with viewed(tmp_path / "log") as (storage, log):
        await storage.append("t", 0, batch(3))
        await storage.append("t", 0, in_transaction(0, 2))
        await storage.append_control("t", 0, 1, 0, committed=False)
        await storage.append("t", 0, batch(2))

        read = await outline(log, 0, committed=True)

        assert read.batches == (LogBatch(0, 2), LogBatch(3, 4), LogBatch(5, 5), LogBatch(6, 7))
        assert read.aborted == (LogBatch(3, 4),)
        assert (await outline(log, 6, committed=True)).batches == (LogBatch(6, 7),)


async def test_a_batch_that_lies_about_its_records_costs_no_memory_and_is_got_past(caplog) -> None:
    said = 1_100_000
    async with servers.world() as w:
        at = TopicPartition(await w.topic(), 0)
        lying = patch(patch(servers.batch(1), 57, ">i", said), 23, ">i", said - 1)
        await w.produce(lying)  # as a log may have it from before such batches were refused
        await w.produce(1)
        await w.restart()
        m, seen = w.member("m1"), 0
        while seen < said:
            answer = await m.fetch(at, max_records=2**31 - 1) if not seen else await m.fetch(max_records=2**31 - 1)
            first, last, _ = ranges(answer)[0]
            assert first == seen
            assert last - first < ServerConfig.embedded().partition_max_window
            if last < said:
                damaged = decode(answer.partitions[0].records, answer.partitions[0].acquired)
                told = [offset for low, high, _ in damaged.corrupt for offset in range(low, high + 1)]
                assert told == list(range(max(first, 1), last + 1))  # the one record that is there is good
            await m.acknowledge({at: [reject(first, min(last, said - 1))]})
            seen = min(last, said - 1) + 1
        assert sum("is handed out in parts" in text for text in caplog.messages) == 1
        if last < said:
            assert ranges(await m.fetch())[0][:2] == (said, said)


class CutLog:
    """A log that is cut when told so; it counts how often it was asked."""

    def __init__(self) -> None:
        self.end = 100
        self.asked = 0

    async def divergence(self, topic, partition, epoch) -> tuple[int, int]:
        """Where the epochs part."""
        self.asked += 1
        return epoch, self.end


@pytest.mark.parametrize("told", ["a cut", "an epoch"])
async def test_what_is_told_of_a_cut_while_an_odd_offset_is_rested_on_is_looked_into(told: str) -> None:
    clock, kafka, cuts = ManualClock(), CutLog(), list[int]()
    guard = LogGuard(
        kafka,
        log=SimpleNamespace(topic="t", partition=0),
        partition=SimpleNamespace(end_offset=100, log_epoch=3),
        clock=clock,
        on_cut=lambda end, _: cuts.append(end),
        on_doubt=lambda: None,
        on_sure=lambda: None,
    )
    guard.out_of_range()
    await clock.advance(REST_S / 2)
    assert not guard.sure
    kafka.end = 90
    if told == "a cut":
        guard.cut(90)
    else:
        assert not guard.trusts(4)

    await clock.advance(2 * REST_S)

    assert (guard.sure, cuts, kafka.asked) == (True, [90], 2)
