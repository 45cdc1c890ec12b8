"""The embedded storage: the contract, from memory and from the store, and what lasts."""

from __future__ import annotations

from contextlib import asynccontextmanager

from flowshare.log.embedded import EmbeddedStorage
from tests.log.contract import StorageContract


class TestEmbeddedStorage(StorageContract):
    tail_bytes = 1 << 20

    @asynccontextmanager
    async def storage(self, clock):
        storage = await EmbeddedStorage.open(self.path, clock=clock, tail_bytes=self.tail_bytes)
        yield storage
        await storage.close()


class TestEmbeddedStorageWithoutTail(TestEmbeddedStorage):
    """Every read comes from the store."""

    tail_bytes = 0
