"""The storage that lives as long as the process: for the test kit and for apps that need no durability.

Every write is confirmed when it is applied, and all reads happen on the loop. `before_write` lets a test hold or fail
writes: it is awaited before each one and its error is the caller's.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Awaitable, Callable, Iterable, Iterator

from flowshare.clock import Clock
from flowshare.log import keys
from flowshare.log.commits import CommitQueue
from flowshare.log.storage import BrokerStorage
from flowshare.log.store import Store, StoreStep


class MemoryStore(Store):
    """A store in dictionaries. Keys are sorted by part (`keys.part_of`), so that a new key mostly is the last of its
    part; do not write while a scan is iterated."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._parts: dict[bytes, list[bytes]] = {}
        self._names: list[bytes] = []  # names of the parts, in order

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        return self._values.get(key)

    def scan(self, first: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries from `first` up to, not including, `end`; in reverse from the last one down."""
        names, values, step = self._between(first, end), self._values, -1 if reverse else 1
        for name in names[::step]:
            part = self._parts[name]
            for index in range(bisect_left(part, first), bisect_left(part, end))[::step]:
                key = part[index]
                yield key, values[key]

    def commit(self, steps: Iterable[StoreStep]) -> None:
        """Write all steps, in order."""
        for step in steps:
            for first, end in step.ranges:
                self._delete(first, end)
            for key, value in step.writes:
                if value is None:
                    if key in self._values:
                        self._delete(key, key + b"\0")
                    continue
                if key not in self._values:
                    self._add(key)
                self._values[key] = value

    def _add(self, key: bytes) -> None:
        name = keys.part_of(key)
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = []
            insort(self._names, name)
        insort(part, key)

    def _delete(self, first: bytes, end: bytes) -> None:
        for name in self._between(first, end):
            part = self._parts[name]
            low, high = bisect_left(part, first), bisect_left(part, end)
            for key in part[low:high]:
                del self._values[key]
            del part[low:high]
            if not part:
                del self._parts[name]
                self._names.remove(name)

    def _between(self, first: bytes, end: bytes) -> list[bytes]:
        """Return the names of the parts that may have keys from `first` to before `end`."""
        names = self._names
        return names[max(0, bisect_right(names, first) - 1) : bisect_left(names, end)]


class MemoryQueue(CommitQueue):
    """Takes one step at a time, and writes the step at once."""

    def __init__(self, store: Store, before_write: Callable[[], Awaitable[None]]) -> None:
        self._before_write = before_write
        self._store = store
        self._turn = asyncio.Lock()

    async def enter(self, size: int) -> None:
        """Wait for the step before, and for `before_write`."""
        del size
        await self._turn.acquire()
        try:
            await self._before_write()
        except BaseException:
            self._turn.release()
            raise

    def leave(self, size: int) -> None:
        """Let the next step in."""
        del size
        self._turn.release()

    def check(self) -> None:
        """Do nothing: always accepted."""

    def queue(self, step: StoreStep) -> asyncio.Future[None]:
        """Write the step."""
        self._store.commit((step,))
        if step.applied is not None:
            step.applied()
        self.leave(step.size)
        for topic, partition in step.changed:
            self.changed(topic, partition)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class MemoryStorage(BrokerStorage):
    """Log, topics and state in memory. `clock` times retention and stamps LogAppendTime."""

    def __init__(self, clock: Clock) -> None:
        self.before_write: Callable[[], Awaitable[None]] | None = None
        """A hook that is awaited before each write."""
        store = MemoryStore()
        super().__init__(store, MemoryQueue(store, self._before), clock)

    async def _before(self) -> None:
        if self.before_write is not None:
            await self.before_write()
