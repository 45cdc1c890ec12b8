"""Who reads records for a user reads committed ones, unless told otherwise: agents of all kinds, consumers, `admin`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.app import summary
from flowshare.agents.feed.backend_limits import native_limits
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend.memory import MemoryBackend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.consumer.consumer import ShareConsumer
from flowshare.client.cooperative.consumer import CooperativeConsumer
from flowshare.client.producer.producer import Producer
from flowshare.client.settings import ConsumerSettings, CooperativeSettings
from flowshare.share.config import ISOLATION
from flowshare.testing.clock import LoopTimeClock

KINDS = ("share_agent", "cooperative_agent", "kmq_agent")
COMMITTED, ABORTED, OPEN = [b"plain", b"good"], b"bad", b"open"
LIMIT_S = 600


class World:
    """A backend in memory, on virtual time."""

    def __init__(self) -> None:
        self.clock = LoopTimeClock()
        self.backend = MemoryBackend(clock=self.clock)
        self.admin = ShareAdmin(lambda: self.backend.connect("admin"), clock=self.clock)
        self.closing: list[Callable[[], Awaitable[object]]] = []

    def host(self, app: fs.App) -> Host:
        settings = HostSettings(threads=False, inline_threads=True, linger=0)
        host = Host(app, backend=self.backend, clock=self.clock, settings=settings)
        self.closing.append(host.stop)
        return host

    async def transaction(self, value: bytes, end: str | None, topic: str = "in") -> None:
        """Records of one transaction; end: commit, abort, None: it stays open."""
        name = f"tx-{value.decode()}"
        sender = Producer(lambda: self.backend.connect(name), clock=self.clock, transactional_id=name)
        await sender.begin()
        await sender.send(topic, value, partition=0)
        if end is not None:
            await getattr(sender, end)()
        self.closing.append(sender.close)

    async def fill(self) -> None:
        """Records of no transaction, of one that was aborted, and of one that was committed."""
        await self.admin.create_topic("in")
        plain = Producer(lambda: self.backend.connect("plain"), clock=self.clock)
        await plain.send("in", b"plain", partition=0)
        await plain.close()
        await self.transaction(ABORTED, "abort")
        await self.transaction(b"good", "commit")


@asynccontextmanager
async def filled() -> AsyncIterator[World]:
    world = World()
    await world.backend.start()
    try:
        await world.fill()
        yield world
    finally:
        for close in reversed(world.closing):
            await close()
        await world.admin.close()
        await world.backend.close()


def app_of(kind: str, seen: list[bytes], **options: Any) -> fs.App:
    app = fs.App("t", broker="memory://")
    if kind == "kmq_agent":
        options = {"markers": "m", "redeliver_after": 5.0, "timeout": 1, **options}

    @getattr(app, kind)("in", name="agent", **options)
    async def agent(value: bytes) -> None:
        seen.append(value)

    return app


async def saw(seen: list[bytes], count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(seen) < count:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.5)
    await asyncio.sleep(20)  # for what must not come


@pytest.mark.flowshare
@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_runs_nothing_of_a_transaction_that_was_aborted_or_is_open(kind: str) -> None:
    seen: list[bytes] = []
    async with filled() as world:
        await world.transaction(OPEN, None)
        await world.host(app_of(kind, seen)).start()
        await saw(seen, 2)
    assert sorted(seen) == sorted(COMMITTED)


@pytest.mark.flowshare
@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_that_reads_uncommitted_runs_every_record(kind: str) -> None:
    seen: list[bytes] = []
    async with filled() as world:
        await world.transaction(OPEN, None)
        await world.host(app_of(kind, seen, isolation="read_uncommitted")).start()
        await saw(seen, 4)
    assert sorted(seen) == sorted([*COMMITTED, ABORTED, OPEN])


@pytest.mark.parametrize("kind", KINDS)
def test_an_isolation_that_is_none_is_refused_with_what_is_taken(kind: str) -> None:
    with pytest.raises(fs.errors.OptionError, match="isolation takes 'read_committed' or 'read_uncommitted'"):
        app_of(kind, [], isolation="serializable")


@pytest.mark.flowshare
async def test_who_starts_last_decides_for_the_group_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with filled() as world:
        await world.admin.alter_group_configs("t.agent", {ISOLATION: "read_uncommitted"})
        await world.host(app_of("share_agent", [])).start()
        assert await isolation_of(world) == "read_committed"
        await world.host(app_of("share_agent", [], isolation="read_uncommitted")).start()
        assert await isolation_of(world) == "read_uncommitted"
    assert f"{ISOLATION}=read_uncommitted (was read_committed)" in caplog.text


async def isolation_of(world: World, group: str = "t.agent") -> str:
    return next(one.value for one in await world.admin.group_configs(group) if one.name == ISOLATION)


class NativeBrokers:
    """Kafka's brokers, as far as their limits are asked for."""

    async def broker_configs(self) -> list[Any]:
        return []


@pytest.mark.asyncio
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
async def test_on_kafkas_brokers_the_group_is_set_so_too(level: str) -> None:
    agent = app_of("share_agent", [], isolation=level, retry=None).share_agents["agent"]
    brokers: Any = NativeBrokers()
    assert (await native_limits(agent, brokers)).settings[ISOLATION] == level


@pytest.mark.flowshare
@pytest.mark.parametrize(
    ("level", "values"), [("read_committed", COMMITTED), ("read_uncommitted", [b"plain", ABORTED, b"good"])]
)
async def test_consumers_read_committed_records_unless_told_otherwise(level: Any, values: list[bytes]) -> None:
    async with filled() as world:
        await world.admin.alter_group_configs("g", {"share.auto.offset.reset": "earliest"})
        given = {} if level == "read_committed" else {"isolation_level": level}
        share = ShareConsumer(
            lambda: world.backend.connect("c"),
            group_id="g",
            clock=world.clock,
            settings=ConsumerSettings(**given),
        )
        world.closing.append(share.close)
        share.subscribe(["in"])
        assert [one.value for one in await share.poll(10)] == values
        assert await isolation_of(world, "g") == level
        sharing = CooperativeConsumer(
            lambda: world.backend.connect("k"),
            group_id="k",
            clock=world.clock,
            settings=CooperativeSettings(**given),
        )
        world.closing.append(sharing.close)
        sharing.subscribe(["in"])
        found: list[bytes | None] = []
        async with asyncio.timeout(LIMIT_S):
            while len(found) < len(values):
                for one in await sharing.poll(1):
                    found.append(one.value)
                    sharing.commit(one)
        assert sorted(found) == sorted(values)


@pytest.mark.flowshare
async def test_a_share_consumer_that_is_told_none_leaves_the_group_as_it_is() -> None:
    async with filled() as world:
        await world.admin.alter_group_configs("g", {"share.auto.offset.reset": "earliest"})
        share = ShareConsumer(
            lambda: world.backend.connect("c"),
            group_id="g",
            clock=world.clock,
            settings=ConsumerSettings(isolation_level=None),
        )
        world.closing.append(share.close)
        share.subscribe(["in"])
        assert len(await share.poll(10)) == 3
        assert await isolation_of(world, "g") == "read_uncommitted"


@pytest.mark.flowshare
async def test_what_an_operator_is_shown_is_committed_unless_asked_for_otherwise() -> None:
    async with filled() as world:
        assert [one.value for one in await world.admin.read("in", 0)] == COMMITTED
        everything = await world.admin.read("in", 0, committed=False)
        assert [one.value for one in everything] == [b"plain", ABORTED, b"good"]
        await world.transaction(OPEN, None)
        assert [one.value for one in await world.admin.read("in", 0)] == COMMITTED


@pytest.mark.flowshare
async def test_a_kmq_tracker_sends_nothing_again_that_was_aborted_and_waits_for_what_is_open() -> None:
    seen: list[bytes] = []
    async with filled() as world:
        await world.transaction(OPEN, None)
        app = fs.App("t", broker="memory://")

        @app.kmq_agent(
            "in", markers="m", name="agent", redeliver_after=5.0, timeout=1, tracker=True, isolation="read_uncommitted"
        )
        async def agent(value: bytes) -> None:
            seen.append(value)
            raise RuntimeError("not now")

        await world.host(app).start()
        await saw(seen, 8)
    assert (seen.count(ABORTED), seen.count(OPEN)) == (1, 1)
    assert seen.count(b"good") > 2


# --- behind an agent that writes exactly once -------------------------------------------------------------------------


def chain(**options: Any) -> fs.App:
    app = fs.App("t", broker="memory://")

    @app.share_agent("in", name="a", exactly_once=True, sink=["mid"])
    async def a(value: bytes) -> bytes:
        return value

    @app.cooperative_agent("mid", name="b", **options)
    async def b(value: bytes) -> None: ...

    @app.share_agent("t.a.dlq", name="c", **options)
    async def c(value: bytes) -> None: ...

    return app


def test_who_reads_uncommitted_behind_an_exactly_once_sink_is_named_with_what_to_do() -> None:
    assert summary.uncommitted(chain()) == []
    told = summary.uncommitted(chain(isolation="read_uncommitted"))
    assert [text.split(" and ")[0] for text in sorted(told)] == [
        "b reads mid with isolation='read_uncommitted',",
        "c reads t.a.dlq with isolation='read_uncommitted',",
    ]
    assert all("a writes it exactly once" in text and "leave isolation out" in text for text in told)


def test_pipelines_are_looked_at_too() -> None:
    app = fs.App("t", broker="memory://")

    @app.share_pipeline("in", name="p", sink=fs.Produce("mid", delivery="exactly_once"))
    def p(rows: Any) -> Any: ...

    @app.share_pipeline("mid", name="q", sink=fs.Console(), source={"isolation": "read_uncommitted"})
    def q(rows: Any) -> Any: ...

    (told,) = summary.uncommitted(app)
    assert told.startswith("q reads mid with isolation='read_uncommitted', and p writes it exactly once")
