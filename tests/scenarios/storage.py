"""A memory storage whose writes can be held or made to fail, and which a crashed server can be cut off from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from flowshare.log.base import AppendListener, StorageError
from flowshare.log.memory import MemoryStorage


class Persister:
    """How writes end: at once, never, or when it is said how."""

    def __init__(self, storage: MemoryStorage) -> None:
        self.mode = "ok"
        self._gates: list[asyncio.Future[bool]] = []
        storage.before_write = self._pass

    async def _pass(self) -> None:
        good = self.mode == "ok"
        if self.mode == "hold":
            gate = asyncio.get_running_loop().create_future()
            self._gates.append(gate)
            good = await gate
        if not good:
            raise StorageError("no space left on the device")

    def settle(self, *, good: bool) -> None:
        """End the writes that are held, and write at once from now on."""
        self.mode = "ok"
        for gate in self._gates:
            if not gate.done():
                gate.set_result(good)
        self._gates.clear()


class Severable:
    """A storage as one server sees it: after `cut` nothing that server does reaches it."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def write(self, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """As the storage's."""
        if self.is_cut:
            raise StorageError("this process is gone")
        await self._storage.write(writes)

    async def settle(self, outputs: Sequence[Any], writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """As the storage's."""
        if self.is_cut:
            raise StorageError("this process is gone")
        await self._storage.settle(outputs, writes)

    def on_append(self, listener: AppendListener) -> None:
        """As the storage's."""
        self._storage.on_append(lambda topic, partition: None if self.is_cut else listener(topic, partition))

    async def close(self) -> None:
        """The storage outlives its server."""
