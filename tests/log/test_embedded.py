"""The embedded storage: the contract, from memory and from the store, and what lasts."""

from __future__ import annotations

from contextlib import asynccontextmanager

from flowshare.log.embedded import EmbeddedStorage
from flowshare.share.types import LogBatch
from tests.log.places import opened
from tests.log.producer_contract import in_transaction, produced
from tests.log.settle_contract import SettleContract


class TestEmbeddedStorage(SettleContract):
    tail_bytes = 1 << 20

    @asynccontextmanager
    async def storage(self, clock):
        storage = await EmbeddedStorage.open(self.path, clock=clock, tail_bytes=self.tail_bytes)
        yield storage
        await storage.close()


class TestEmbeddedStorageWithoutTail(TestEmbeddedStorage):
    """Every read comes from the store."""

    tail_bytes = 0


def test_producers_transactions_and_what_was_aborted_outlast_the_process(tmp_path):
    async def first(storage: EmbeddedStorage) -> None:
        await storage.create_topic("t")
        await storage.append("t", 0, in_transaction(0, 2, producer=1))
        await storage.append_control("t", 0, 1, 0, committed=False)
        await storage.append("t", 0, in_transaction(0, 2, producer=2))
        await storage.append("t", 0, produced(0, 2, producer=3))

    async def second(storage: EmbeddedStorage) -> None:
        assert storage.offsets("t", 0).last_stable == 3
        assert (await storage.append("t", 0, produced(0, 2, producer=3))).base_offset == 5
        assert (await storage.append("t", 0, produced(2, 1, producer=3))).base_offset == 7
        await storage.append_control("t", 0, 2, 0, committed=False)
        read = await storage.read("t", 0, 0, max_bytes=1 << 20, committed=True)
        assert read.aborted == (LogBatch(0, 1), LogBatch(3, 4))

    opened(tmp_path / "storage", first)
    opened(tmp_path / "storage", second)
