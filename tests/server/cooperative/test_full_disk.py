"""A full disk, or one that is read-only, under what members of cooperative groups commit, settle, hold and take."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from flowshare.backend.embedded import EmbeddedBackend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.cooperative.consumer import CooperativeConsumer
from flowshare.client.errors import ClientError, ServerError
from flowshare.client.producer.producer import Producer
from flowshare.client.settings import CooperativeSettings
from flowshare.clock import LoopClock
from flowshare.protocol.batches import decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import FetchPartition, FetchRequest, MetadataRequest, SettleOutput
from flowshare.protocol.messages.cooperative import CooperativeOffsetsRequest, StartEntry
from tests.disks import resize, small_disk
from tests.fleet.world import batch
from tests.log.test_faults import Fault
from tests.server.cooperative.world import LOWER, NONE, UPPER, Member
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
RECORDS = 40
LEASE_MS = 300_000
NOT_HELD = ErrorCode.INVALID_RECORD_STATE


@pytest.fixture
def fault(monkeypatch):
    return Fault(monkeypatch)


class Stack:
    """One process's backend over a path, and members of cooperative groups at it."""

    def __init__(self, path) -> None:
        clock = LoopClock()
        self.backend = EmbeddedBackend(path)
        self.producer = Producer(self.connect, clock=clock)
        self.admin = ShareAdmin(self.connect, clock=clock)
        self.members: dict[str, Member] = {}

    async def connect(self):
        return await self.backend.connect("stack")

    async def start(self) -> None:
        await self.backend.start()
        self.send = (await self.connect()).send
        for topic in ("t", "out", "fill"):
            await self.admin.create_topic(topic, partitions=1, exist_ok=True)
        self.ids = {one.name: one.topic_id for one in (await self.send(MetadataRequest(topics=None))).topics}

    async def member(self, name: str, *, group: str = "g", before: Member | None = None) -> Member:
        """A member with a connection of its own; before: as what it lives on."""
        found = before or Member(None, name, self.topic_id("t"), group=group)
        found.send, found.lease_ms = (await self.connect()).send, LEASE_MS
        return found

    def topic_id(self, name: str):
        return self.ids[name]

    async def fill_up(self) -> None:
        """Write until the disk refuses three times in a row."""
        refused = 0
        while refused < 3:
            try:
                await self.producer.send("fill", bytes(100_000))
                refused = 0
            except ServerError:
                refused += 1

    async def state(self, group: str = "g"):
        answer = await self.send(CooperativeOffsetsRequest(group_id=group, topics={"t": (0,)}, ranges_from=0))
        (part,) = answer.partitions
        assert part.error is NONE, part.message
        return part.stable, [tuple(one) for one in part.ranges.pairs()], dict(part.starts)

    async def outputs(self) -> list[bytes]:
        answer = await self.send(FetchRequest(partitions=(FetchPartition("out", 0, 0),)))
        return [record.value for record in decode_all(answer.partitions[0].records)]

    async def close(self) -> None:
        await self.producer.close()
        await self.admin.close()
        await self.backend.close()


@asynccontextmanager
async def stack(path):
    made = Stack(path)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def out(at: Stack, value: str) -> SettleOutput:
    return SettleOutput("out", at.topic_id("out"), 0, batch(value.encode()))


async def tried(at: Stack, m: Member) -> dict[str, tuple[ErrorCode, str]]:
    """Send each kind of request that writes, and return the answers."""
    told, held = {}, m.held
    told["commit"] = await m.commits(m.entry((5, 9), (20, 30)))
    told["settle"] = await m.settle((9, 11), output=out(at, "settled"))
    first, end, epoch = m.held[0][0]
    told["starts"] = await m.commits(StartEntry((first, end), epoch, ((12, 2),), 0))
    (told["hold"],) = (await m.asks({0: (*LOWER, UPPER[0])})).partitions
    m.held = held
    return {what: (answer.error, answer.message or "") for what, answer in told.items()}


async def begun(at: Stack) -> Member:
    """A member that has committed five of the records."""
    await at.producer.send_many("t", [b"%d" % number for number in range(RECORDS)])
    m = await at.member("m")
    await m.hold(LOWER)
    await m.commit((0, 5))
    return m


def all_refused(told: dict[str, tuple[ErrorCode, str]], why: str) -> None:
    assert {error for error, _ in told.values()} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}, told
    assert all(why in message for _, message in told.values()), told


DONE = (11, [(20, 30)], {12: 2})


def test_what_cannot_be_written_on_a_full_disk_is_refused_and_made_when_there_is_room(tmp_path):
    async def scenario(disk) -> None:
        async with stack(disk / "storage") as at:
            m = await begun(at)
            async with asyncio.timeout(60):
                await at.fill_up()
                all_refused(await tried(at, m), "make room on that disk, and writing goes on by itself")
                assert (await at.state(), await at.outputs()) == ((5, [], {}), [])

            await asyncio.to_thread(resize, disk, "400m")
            await until(lambda: m.commits(m.entry((5, 9), (20, 30))), good=lambda one: one.error is NONE)
            assert {error for error, _ in (await tried(at, m)).values()} == {NONE}
            assert (await at.state(), await at.outputs()) == (DONE, [b"settled"])
        async with stack(disk / "storage") as at:
            assert (await at.state(), await at.outputs()) == (DONE, [b"settled"])
            await at.member("m", before=m)
            answer = await m.settle((9, 11), output=out(at, "settled"))
            assert [tuple(one) for one in answer.committed] == [(9, 11)]

    with small_disk(tmp_path / "disk", "40m") as disk:
        asyncio.run(scenario(disk))


@pytest.mark.parametrize("late", [False, True], ids=["nothing is stored", "it is stored all the same"])
@pytest.mark.parametrize("ends", [False, True], ids=["mended", "ended"])
def test_on_a_disk_that_is_read_only_all_is_refused_and_what_was_answered_stays(tmp_path, fault, caplog, ends, late):
    """ends: the process is ended while the disk takes no writes, and started when it does again. What is settled is not
    answered before it is known whether it is stored, nor is what is decided on top of it."""

    async def scenario() -> None:
        answered = False
        async with asyncio.timeout(30), stack(tmp_path) as at:
            m = await begun(at)
            fault.on, fault.late = True, late
            settles = asyncio.ensure_future(m.settle((9, 11), output=out(at, "settled")))
            await until(lambda: "writing failed" in caplog.text)
            commits = asyncio.ensure_future(m.commits(m.entry((5, 9), (20, 30))))
            (held,) = (await (await at.member("n", group="h")).asks({0: LOWER})).partitions
            assert held.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert "injected" in (held.message or "")
            assert not settles.done()
            assert not commits.done()
            if not ends:
                fault.on = False
                answered = (await settles).error is NONE
                await until(lambda: m.commits(m.entry((5, 9), (20, 30))), good=lambda one: one.error is NONE)
                assert {error for error, _ in (await tried(at, m)).values()} <= {NONE, NOT_HELD}
                assert (await at.state(), await at.outputs()) == (DONE, [b"settled"])
        fault.on = False
        ended = await asyncio.gather(settles, commits, return_exceptions=True)
        assert not ends or all(isinstance(one, ConnectionError) for one in ended)
        assert answered is (late and not ends)
        async with stack(tmp_path) as at:
            stable, ranges, _ = await at.state()
            settled = stable == 11 or (9, 11) in ranges
            assert (await at.outputs() == [b"settled"]) is settled
            assert settled is (late or not ends)
            assert stable >= 5

    asyncio.run(scenario())


def test_on_a_full_disk_nothing_is_handed_out_whose_start_is_not_counted_and_the_consumer_says_why(tmp_path):
    async def scenario(disk) -> None:
        async with stack(disk / "storage") as at:
            await at.producer.send_many("t", [b"%d" % number for number in range(RECORDS)])
            few = CooperativeSettings(exact_starts=True, max_poll_records=5)
            consumer = CooperativeConsumer(at.connect, group_id="exact", clock=LoopClock(), settings=few)
            consumer.subscribe(["t"])
            got = [record.offset for record in await consumer.poll(10.0)]
            async with asyncio.timeout(60):
                await at.fill_up()
                while "telling of starts" not in str(consumer.trouble):
                    got += [record.offset for record in await consumer.poll(0.2)]
                assert "make room on that disk" in str(consumer.trouble)
                assert not await consumer.poll(0.2)
            await asyncio.to_thread(resize, disk, "400m")
            async with asyncio.timeout(60):
                while len(got) < RECORDS:
                    got += [record.offset for record in await consumer.poll(1.0)]
            assert sorted(got) == list(range(RECORDS))
            assert consumer.trouble is None
            await consumer.close()

    with small_disk(tmp_path / "disk", "40m") as disk:
        asyncio.run(scenario(disk))


def test_consumers_on_a_full_disk_wait_say_why_and_lose_and_double_nothing(tmp_path):
    async def scenario(disk) -> None:
        clock, seen = LoopClock(), Counter[int]()
        async with stack(disk / "storage") as at:
            await at.producer.send_many("t", [b"%d" % number for number in range(RECORDS)])
            plain = CooperativeConsumer(at.connect, group_id="plain", clock=clock)
            once = CooperativeConsumer(at.connect, group_id="once", clock=clock)
            for one in (plain, once):
                one.subscribe(["t"])
            first, settled = await plain.poll(10.0), await once.poll(10.0)
            async with asyncio.timeout(60):
                await at.fill_up()
                for record in first:
                    plain.commit(record)
                    seen[record.offset] += 1
                with pytest.raises(ClientError, match="make room on that disk"):
                    await plain.commit_sync(1.0)
                with pytest.raises(ClientError, match="settle the same records again"):
                    await once.settle(settled, {"out": [b"%d" % one.offset for one in settled]}, timeout=1.0)
            await asyncio.to_thread(resize, disk, "400m")
            async with asyncio.timeout(60):
                await plain.commit_sync(30.0)
                while len(seen) < RECORDS:
                    for record in await plain.poll(1.0):
                        seen[record.offset] += 1
                        plain.commit(record)
                while settled:
                    assert await once.settle(settled, {"out": [b"%d" % one.offset for one in settled]})
                    settled = await once.poll(1.0)
            await plain.close()
            await once.close()
            assert set(seen.values()) == {1}
            assert sorted(map(int, await at.outputs())) == list(range(RECORDS))
            assert (await at.state("plain"))[0] == (await at.state("once"))[0] == RECORDS

    with small_disk(tmp_path / "disk", "40m") as disk:
        asyncio.run(scenario(disk))
