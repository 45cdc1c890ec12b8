"""What a share-partition's owner learns of the log when nobody wants the records' bytes."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from flowshare.log.base import OffsetOutOfRange
from flowshare.log.embedded import EmbeddedStorage
from flowshare.server.log_view import PartitionLog
from flowshare.share.types import LogBatch
from tests.log.contract import FixedClock, batch
from tests.log.producer_contract import in_transaction

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
    return log.read(offset, records_max=records_max, bytes_max=1 << 20, committed=committed, with_records=False)


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
