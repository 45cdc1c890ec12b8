"""The storage in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from flowshare.clock import LoopClock
from flowshare.log.base import StorageError
from flowshare.log.memory import MemoryStorage
from tests.log.contract import batch
from tests.log.settle_contract import SettleContract


class TestMemoryStorage(SettleContract):
    @asynccontextmanager
    async def storage(self, clock):
        storage = MemoryStorage(clock)
        yield storage
        await storage.close()


def test_a_write_that_is_made_to_fail_leaves_nothing():
    async def body() -> None:
        storage = MemoryStorage(LoopClock())
        await storage.create_topic("t")

        async def fail() -> None:
            raise StorageError("injected")

        storage.before_write = fail
        with pytest.raises(StorageError):
            await storage.append("t", 0, batch())
        with pytest.raises(StorageError):
            await storage.write([(b"k", b"v")])
        storage.before_write = None

        assert await storage.scan(b"") == []
        assert (await storage.append("t", 0, batch())).base_offset == 0

    asyncio.run(body())


def test_a_held_write_is_not_seen_before_it_is_let_go():
    async def body() -> None:
        storage = MemoryStorage(LoopClock())
        await storage.create_topic("t")
        gate = asyncio.Event()

        async def hold() -> None:
            await gate.wait()

        storage.before_write = hold
        append = asyncio.create_task(storage.append("t", 0, batch()))
        await asyncio.sleep(0)
        assert storage.offsets("t", 0).high_watermark == 0
        gate.set()
        await append
        assert storage.offsets("t", 0).high_watermark == 1

    asyncio.run(body())
