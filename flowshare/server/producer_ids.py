"""Producer ids: never the same twice, whatever crashes. Blocks are taken durably, then given out from memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flowshare.log.base import StateStore

KEY: Final = b"ti/producer-ids"
BLOCK: Final = 1_000
"""Ids of one write; what is left of a block at the end of the process is never used."""
ID_BYTES: Final = 8


class ProducerIds:
    """Gives out producer ids of one storage."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._next: int = 0
        self._end: int = 0
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Go on behind the last block that was taken. Raises: LogError."""
        for _, value in await self._store.scan(KEY):
            self._next = self._end = int.from_bytes(value)

    async def take(self) -> int:
        """An id that nobody had. Raises: StorageError."""
        async with self._turn:
            if self._next == self._end:
                end = self._end + BLOCK
                await self._store.write([(KEY, end.to_bytes(ID_BYTES))])
                self._end = end
            self._next += 1
            return self._next - 1
