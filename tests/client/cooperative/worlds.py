"""A server in memory on virtual time, consumers of a cooperative group on it, and what they handled."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flowshare.client.cooperative.consumer import CooperativeConsumer, CooperativeRecord
from flowshare.client.producer.producer import Message
from flowshare.client.settings import CooperativeSettings
from flowshare.cooperative.partition import CooperativePartition
from flowshare.protocol.messages import Connection
from flowshare.protocol.messages.cooperative import (
    CooperativeCommitRequest,
    CooperativeHoldRequest,
    CooperativeSettleRequest,
)
from flowshare.testing.clock import LoopTimeClock
from tests.client.worlds import World, world_on

QUICK = CooperativeSettings(lease=5.0, session_timeout=6.0, heartbeat_interval=0.2)
COUNTS = CooperativeHoldRequest | CooperativeCommitRequest | CooperativeSettleRequest
"""Calls of members whose loss matters."""
Handler = Callable[[CooperativeRecord[Any, Any]], Awaitable[object]]


@dataclass
class Run:
    """One handler's run."""

    member: str
    key: bytes | None
    offset: int
    began_s: float
    ended_s: float = -1.0
    committed: bool = False


@dataclass
class Worker:
    """A consumer with a loop around it, as an application has: `concurrency` handlers at once."""

    world: CoopWorld
    name: str
    consumer: CooperativeConsumer[bytes | None, bytes | None]
    handler: Handler
    concurrency: int
    task: asyncio.Task[None] | None = None
    at_work: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        while True:
            if len(self.at_work) >= self.concurrency:
                await asyncio.wait(self.at_work, return_when=asyncio.FIRST_COMPLETED)
                continue
            for record in await self.consumer.poll(1.0):
                task = asyncio.create_task(self.handle(record))
                self.at_work.add(task)
                task.add_done_callback(self.at_work.discard)

    async def handle(self, record: CooperativeRecord[Any, Any]) -> None:
        now = asyncio.get_running_loop().time
        run = Run(self.name, record.key, record.offset, now())
        self.world.runs.append(run)
        await self.handler(record)
        run.ended_s = now()
        run.committed = self.consumer.commit(record)

    async def stop(self) -> None:
        """In order: what is at work ends."""
        assert self.task is not None
        self.task.cancel()
        if self.at_work:
            await asyncio.wait(self.at_work)
        await self.consumer.close()

    def kill(self) -> None:
        """As by SIGKILL: nothing is said to anybody any more."""
        assert self.task is not None
        member = self.consumer._member
        tasks = [self.task, *self.at_work]
        if member is not None:
            group = member._group
            tasks += [*member._tasks, *([] if group is None or group._task is None else [group._task])]
            if member._lapse is not None:
                member._lapse.cancel()
        for task in tasks:
            task.cancel()


class Faults:
    """Connections that lose calls of members, or the answers to them."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        self._connect = connect
        self.away: set[str] = set()
        """Whose processes stand still: nothing of theirs arrives."""
        self.lose_call: Callable[[Any], bool] = lambda request: False
        self.lose_answer: Callable[[Any], bool] = lambda request: False

    async def connect(self, name: str) -> Any:
        if name in self.away:
            raise ConnectionRefusedError("it stands still")
        return _Connection(self, name, await self._connect())


class _Connection:
    is_flowshare = True

    def __init__(self, faults: Faults, name: str, connection: Connection) -> None:
        self._faults, self._name, self._connection = faults, name, connection
        self.keeps_time = connection.keeps_time

    async def send(self, request: Any) -> Any:
        faults = self._faults
        counts = isinstance(request, COUNTS)
        if self._name in faults.away or (counts and faults.lose_call(request)):
            raise ConnectionResetError("lost on its way")
        answer = await self._connection.send(request)
        if self._name in faults.away or (counts and faults.lose_answer(request)):
            raise ConnectionResetError("its answer is lost")
        return answer

    async def close(self) -> None:
        await self._connection.close()


class CoopWorld:
    """A server, and the workers of one group."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = Faults(world.connect)
        self.clock = world.clock
        self.runs: list[Run] = []
        self.workers: list[Worker] = []

    def consumer(self, settings: CooperativeSettings = QUICK, *, group: str = "g", **kwargs: Any) -> Any:
        connect = partial(self.faults.connect, kwargs.get("member_id", ""))
        consumer: Any = CooperativeConsumer(connect, group_id=group, clock=self.clock, settings=settings, **kwargs)
        return consumer

    def worker(
        self,
        name: str,
        handler: Handler | None = None,
        *,
        concurrency: int = 8,
        settings: CooperativeSettings = QUICK,
        topics: Sequence[str] = ("orders",),
        **kwargs: Any,
    ) -> Worker:
        async def nothing(record: object) -> None:
            await asyncio.sleep(0.01)

        consumer = self.consumer(replace(settings, max_poll_records=concurrency), member_id=name, **kwargs)
        consumer.subscribe(topics)
        worker = Worker(self, name, consumer, handler or nothing, concurrency)
        worker.task = asyncio.create_task(worker.run(), name=name)
        self.workers.append(worker)
        return worker

    async def send(self, count: int, *, keys: int = 10, first: int = 0) -> None:
        messages = [
            Message(b"%d" % number, key=b"key %d" % (number % keys), partition=0)
            for number in range(first, first + count)
        ]
        await self.world.producer.send_many("orders", messages)

    async def until(self, condition: Callable[[], bool], *, limit_s: float = 300.0) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_s
        while not condition():
            assert loop.time() < end_s, f"not within {limit_s} s; {[one.consumer.trouble for one in self.workers]}"
            await asyncio.sleep(0.02)

    def handled(self) -> dict[int, list[Run]]:
        found: dict[int, list[Run]] = defaultdict(list)
        for run in self.runs:
            found[run.offset].append(run)
        return found

    def stable(self) -> int:
        return min((one.offsets.stable for one in self.states()), default=-1)

    def states(self, group: str = "g") -> list[CooperativePartition]:
        """Return the server's state of each partition."""
        groups = self.world.server._cooperative_groups
        return [] if groups is None else [one.partition for one in groups.find(group, None).owners.values()]

    def state(self) -> CooperativePartition:
        """The same of the only one."""
        (state,) = self.states()
        return state

    def check_order(self) -> None:
        """Of each key handlers began in the order of the log and one at a time; a run that a death or a lapsed lease
        cut off may come again."""
        by_key: dict[bytes, list[Run]] = defaultdict(list)
        for run in self.runs:
            if run.key is not None:
                by_key[run.key].append(run)
        for key, runs in by_key.items():
            before: Run | None = None
            for run in runs:
                if before is not None and before.committed:
                    assert run.began_s >= before.ended_s, f"{key!r}: {run} beside {before}"
                    assert run.offset > before.offset, f"{key!r}: {run} after {before}"
                before = run


@asynccontextmanager
async def coop_world(partitions: int = 1) -> AsyncIterator[CoopWorld]:
    clock = LoopTimeClock()
    async with world_on(clock, partitions=partitions) as world:
        coop = CoopWorld(world)
        try:
            yield coop
        finally:
            for worker in coop.workers:
                if worker.task is not None and not worker.task.done():
                    await worker.stop()
