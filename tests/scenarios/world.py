"""The world of a scenario on the server: one server over a memory storage, time on a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from flowshare.log.memory import MemoryStorage
from flowshare.protocol.messages import Connection
from flowshare.server.server import Server
from flowshare.testing.clock import ManualClock
from tests.scenarios.language import Scenario
from tests.scenarios.settings import server_config
from tests.scenarios.storage import Persister, Severable

ROUNDS_MAX = 100_000
TIMERS_MAX = 200_000

_idling: list[None] = []


async def idle() -> None:
    """Let every task go on, and every byte arrive, until nothing moves but those that wait here themselves."""
    loop = asyncio.get_running_loop()
    _idling.append(None)
    try:
        for _ in range(ROUNDS_MAX):
            await asyncio.sleep(0)
            if len(loop._ready) < len(_idling) and not getattr(loop, "in_flight", False):  # type: ignore[attr-defined]
                return
    finally:
        _idling.pop()
    raise AssertionError("the server never comes to rest")


class ThreadsLoop(asyncio.SelectorEventLoop):
    """An event loop that knows whether its threads are at work."""

    def __init__(self) -> None:
        super().__init__()
        self._elsewhere = 0

    @property
    def in_flight(self) -> bool:
        """True if work is on its way that is not ready yet."""
        return self._elsewhere > 0

    def run_in_executor(self, *args: Any) -> Any:
        """As asyncio's; names are looked up so."""
        self._elsewhere += 1
        future = super().run_in_executor(*args)
        future.add_done_callback(self._back)
        return future

    def _back(self, _: object) -> None:
        self._elsewhere -= 1


class World:
    """A server over a memory storage, with a manual clock; it can be restarted and crashed."""

    def __init__(self, scenario: Scenario, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.config = server_config(scenario.config)
        self.storage = MemoryStorage(self.clock)
        self.persister = Persister(self.storage)
        self.seen = Severable(self.storage)
        self.server: Server | None = None

    async def start(self) -> Server:
        """The server, running."""
        if self.server is None:
            self.server = Server(storage=self.seen, config=self.config, clock=self.clock)  # type: ignore[arg-type]
            await self.server.start()
        return self.server

    async def stop(self, *, crash: bool) -> None:
        """End the server; after a crash nothing more of it reaches the storage."""
        if self.server is not None:
            self.seen.is_cut = crash
            self.persister.settle(good=True)
            await self.server.close()
            self.seen.is_cut = True
        self.server = None
        self.seen = Severable(self.storage)

    def lose_writes(self) -> None:
        """Nothing that the server does, or has begun, reaches the storage."""
        self.seen.is_cut = True
        self.persister.settle(good=False)

    async def connect(self, name: str) -> Connection:
        """A new connection."""
        return (await self.start()).connect(client_id=name, host="10.0.0.1")

    async def consume(self, name: str) -> Connection:
        """A new connection for a `ShareConsumer`."""
        return await self.connect(name)

    def real(self, name: str) -> str:
        """Return the server's name for a scenario's topic or group."""
        return name

    def named(self, real: str) -> str:
        """Return the scenario's name for a topic or group of the server."""
        return real

    async def drive(self, work: Awaitable[Any]) -> Any:
        """Move time from timer to timer until `work` is done."""
        task = asyncio.ensure_future(work)
        for _ in range(TIMERS_MAX):
            await idle()
            if task.done():
                return task.result()
            due_s = self.clock.next_due_s()
            assert due_s is not None, "waiting for nothing that could come"
            await self.clock.advance(due_s)
        raise AssertionError("the call never ends")

    def settle(self, *, good: bool) -> None:
        """End the writes that are held, and write at once from now on."""
        self.persister.settle(good=good)

    async def close(self) -> None:
        """Let go of everything; the server has ended."""
        await self.storage.close()
