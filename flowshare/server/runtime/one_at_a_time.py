"""`OneAtATime`: a lock for each name, kept as long as a task has it or waits for it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


class OneAtATime:
    """Locks by name: work with one name is done one after the other; with different names, concurrently."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, name: str) -> AsyncGenerator[None]:
        """Wait for all earlier tasks with this name."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        async with lock:
            yield

    async def over(self, mine: Callable[[str], bool]) -> None:
        """Wait for all present tasks with one of these names."""
        for name in [one for one in tuple(self._locks) if mine(one)]:
            async with self.of(name):
                pass
