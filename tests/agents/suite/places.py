"""Where the suite's agents run: the same app on every backend, with the real clock and real connections.

memory     a log in this process, reached by direct calls
embedded   a path that the worker itself leads
joined     a path that another process leads, reached over TCP
workers    a real Kafka broker whose share groups are led by the workers themselves
native     a real Kafka broker's share groups

What backends do differently on purpose is read from their capabilities, never from their names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import flowshare as fs
from flowshare.agents.feed.acknowledgements import Observer, Settled
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend import open_backend
from flowshare.backend.base import Backend, Capabilities
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ServerError
from flowshare.client.producer.producer import Message, Producer
from flowshare.client.session.member import ShareMember
from flowshare.clock import LoopClock
from flowshare.protocol.batches import DecodedRecord
from flowshare.protocol.errors import ErrorCode
from tests.waiting import until

T = TypeVar("T")

LIMIT_S = 60.0
"""Bound of every wait; what is waited for takes a moment."""
ENDS = frozenset({"accepted", "dead_lettered", "rejected"})
AGENT = "work"


@dataclass
class Worker:
    """One process's worth of an app at work."""

    host: Host
    settled: list[Settled]
    """Every confirmed delivery, in the order of confirmation."""

    def outcomes(self, agent: str = AGENT) -> list[str]:
        """Return the outcome of each settled delivery."""
        return [one.outcome for one in self.settled if one.agent == agent]

    def stats(self, agent: str = AGENT) -> dict[str, float]:
        """Counters and gauges of one agent."""
        return self.host.runtimes[agent].stats()

    async def ended(self, count: int, agent: str = AGENT) -> list[str]:
        """Wait until so many records have ended for good; all outcomes until then."""
        await until(
            lambda: sum(outcome in ENDS for outcome in self.outcomes(agent)) >= count,
            lambda: f"{count} ended; outcomes {self.outcomes(agent)}, counters {self.stats(agent)}",
        )
        return self.outcomes(agent)

    async def send(self, topic: str, *messages: Message | bytes | None) -> None:
        """Produce, confirmed."""
        await self.host.service.call(lambda: self.host.producer.send_many(topic, messages))

    async def read(self, topic: str) -> list[DecodedRecord]:
        """All records of a topic with one partition; none when there is no such topic.

        Those of open transactions, too: a broker writes the end of one a moment after it has confirmed that.
        """
        try:
            return await self.host.service.call(lambda: self.host.admin.read(topic, 0, committed=False))
        except ServerError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return []
            raise

    async def ask(self, question: Callable[[ShareAdmin], Any]) -> Any:
        """Something of the admin client."""
        return await self.host.service.call(lambda: question(self.host.admin))

    async def dead(self, agent: str = AGENT) -> list[DecodedRecord]:
        """The agent's dead letters."""
        topic = self.host.app.share_agents[agent].dead_letter_topic
        assert topic is not None
        return await self.read(topic)

    async def stop(self, drain_s: float = 10.0) -> bool:
        """Drain and stop, as SIGTERM does; whether all handlers finished in time. Harmless when it has stopped."""
        if self.host.state == "stopped":
            return True
        finished = await self.host.drain(drain_s)
        await self.host.stop()
        return finished


@dataclass
class Place:
    """A backend to run on, with names of its own for this test."""

    name: str
    url: str
    capabilities: Capabilities
    unique: Callable[[str], str]
    backend: Backend | None = None
    """Set where nobody but this process can open it."""

    @property
    def topic(self) -> str:
        """The topic that the agent under test reads."""
        return self.unique("in")

    @property
    def group(self) -> str:
        """The group of the agent under test."""
        return f"{self.unique('app')}.{AGENT}"

    def app(self, **options: Any) -> fs.App:
        """An app on this place."""
        return fs.App(self.unique("app"), broker=self.url, **options)

    def agent(self, fun: Callable[..., Any], **options: Any) -> fs.App:
        """An app whose only agent, called `work`, reads `topic`."""
        app = self.app()
        app.share_agent(self.topic, name=AGENT, **options)(fun)
        return app

    @asynccontextmanager
    async def running(self, *apps: fs.App) -> AsyncIterator[list[Worker]]:
        """Start the apps as workers; those that still run at the end are drained and stopped."""
        async with AsyncExitStack() as stack:
            workers = []
            for app in apps:
                worker = await self.start(app)
                stack.push_async_callback(worker.stop)
                workers.append(worker)
            yield workers

    async def start(self, app: fs.App) -> Worker:
        """Start one worker, which the caller stops. Raises: what refused to start."""
        settled: list[Settled] = []
        # What is in this process only is on this loop only; everything else runs on two, as in `flowshare worker`.
        settings = HostSettings(threads=self.backend is None)
        worker = Worker(Host(app, backend=self.backend, settings=settings, observer=_appending(settled)), settled)
        await worker.host.start()
        return worker

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[tuple[Backend, ShareAdmin, Producer]]:
        """A process of somebody else's, while no worker runs: its backend, admin and producer."""
        backend = self.backend or open_backend(self.url, lead=True)
        if self.backend is None:
            await backend.start()
        clock = LoopClock()
        admin = ShareAdmin(lambda: backend.connect("outside"), clock=clock)
        producer = Producer(lambda: backend.connect("outside"), clock=clock)
        try:
            yield backend, admin, producer
        finally:
            await producer.close()
            await admin.close()
            if self.backend is None:
                await backend.close()

    async def die_with_a_record(self, times: int) -> None:
        """Be a worker that gets a record and is gone before anything becomes of it, so many times."""
        async with self.outside() as (backend, admin, _):
            await admin.alter_group_configs(self.group, {"share.auto.offset.reset": "earliest"})
            for _ in range(times):
                member = ShareMember(
                    lambda: backend.connect("dies"), group_id=self.group, topics=[self.topic], clock=LoopClock()
                )
                await member.start()
                async with asyncio.timeout(LIMIT_S):
                    while not await member.fetch(records_max=1):
                        pass
                await member.close()


def _appending(noted: list[Settled]) -> Observer:
    def note(settled: Settled) -> None:
        noted.append(settled)

    return note


def headers(record: DecodedRecord, prefix: str = "") -> dict[str, bytes | None]:
    """A record's headers that begin so, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in record.headers if name.startswith(prefix)}


def values(records: Iterable[DecodedRecord]) -> list[Any]:
    """The records' values: bytes, or None."""
    return [record.value for record in records]
