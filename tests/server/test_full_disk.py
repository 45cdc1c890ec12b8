"""A full disk under backend, server and clients: errors for who writes, nothing confirmed lost, and all goes on."""

from __future__ import annotations

import asyncio
import os

import pytest

from flowshare.backend.embedded import EmbeddedBackend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ServerError
from flowshare.client.producer.producer import Producer, RecordMetadata
from flowshare.client.session.member import ShareMember
from flowshare.client.session.share_session import Plan
from flowshare.clock import LoopClock
from flowshare.protocol.batches import decode
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from flowshare.share.types import AckRange, AcquireMode
from tests.disks import resize, small_disk
from tests.waiting import until

ACCEPT = b"\x01"
REJECT = b"\x03"
HELD = 20
PARKS = {"share.key.order": "key", "share.key.after.dead.letter": "park"}
HEADS = Plan(50, 50, 0.2, 1 << 20, AcquireMode.BATCH_OPTIMIZED, heads=50)


class Stack:
    """One process's backend, producer, member and admin over a path."""

    def __init__(self, path) -> None:
        clock = LoopClock()
        self.backend = EmbeddedBackend(path)
        self.producer = Producer(self.connect, clock=clock)
        self.admin = ShareAdmin(self.connect, clock=clock)
        self.member = ShareMember(self.connect, group_id="g", topics=["t"], clock=clock)

    async def connect(self):
        return await self.backend.connect("stack")

    async def start(self, **settings: str) -> None:
        await self.backend.start()
        await self.admin.create_topic("t", exist_ok=True)
        await self.admin.alter_group_configs("g", {"share.auto.offset.reset": "earliest", **settings})
        await self.member.start()

    async def close(self) -> None:
        await self.member.close()
        await self.producer.close()
        await self.admin.close()
        await self.backend.close()

    async def take(self, records_max: int) -> tuple[TopicPartition, dict[int, bytes]]:
        """Offsets and values of one fetch."""
        taken: dict[int, bytes] = {}
        fetched = await self.member.fetch(records_max=records_max, max_wait_s=0.2)
        for part in fetched:
            for record in decode(part.records, part.acquired).records:
                taken[record.offset] = record.value or b""
        return fetched[0].tp if fetched else None, taken

    async def accept(self, tp: TopicPartition, offsets) -> ErrorCode:
        acks = [AckRange(offset, offset, ACCEPT) for offset in sorted(offsets)]
        (result,) = await self.member.acknowledge({tp: acks})
        return result.error

    async def send(self, number: int, size: int) -> int | None:
        """Offset of a confirmed record, None for one that the disk refused."""
        (sent,) = await self.producer.send_many("t", [b"%08d" % number + os.urandom(size)], return_exceptions=True)
        if isinstance(sent, ServerError):
            assert sent.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert "check its space" in str(sent)
            return None
        assert isinstance(sent, RecordMetadata)
        return sent.offset


async def fill_up(stack: Stack, confirmed: dict[int, int]) -> None:
    """Send until the disk refuses three times in a row."""
    refused = 0
    for number in range(1_000, 100_000):
        offset = await stack.send(number, 100_000)
        if offset is None:
            refused += 1
            if refused == 3:
                return
        else:
            refused = 0
            confirmed[offset] = number


@pytest.mark.slow
def test_a_full_disk_is_an_error_for_who_writes_and_ends_without_a_restart(tmp_path):
    async def scenario(disk) -> None:
        stack = Stack(disk / "storage")
        await stack.start()
        confirmed = {number: number for number in range(2 * HELD)}
        for number in confirmed:
            assert await stack.send(number, 100) == number
        tp, first = await stack.take(2 * HELD)
        assert sorted(first) == list(confirmed)
        assert await stack.accept(tp, range(HELD)) is ErrorCode.NONE
        ended = set(range(HELD))

        async with asyncio.timeout(30):
            await fill_up(stack, confirmed)
            assert await stack.accept(tp, range(HELD, 2 * HELD)) is ErrorCode.KAFKA_STORAGE_ERROR
            assert await stack.take(5) == (None, {})
            assert "KAFKA_STORAGE_ERROR" in str(stack.member.trouble)
            assert len(await stack.admin.read("t", 0, 0, limit=HELD)) == HELD
            assert (await stack.admin.describe_group("g")).state == "Stable"

        await asyncio.to_thread(resize, disk, "400m")
        offset = await until(lambda: stack.send(999, 100), good=lambda offset: offset is not None)
        confirmed[offset] = 999
        assert await stack.accept(tp, range(HELD, 2 * HELD)) is ErrorCode.NONE
        ended |= set(range(HELD, 2 * HELD))
        async with asyncio.timeout(30):
            while len(ended) < len(confirmed) // 2:
                tp, taken = await stack.take(50)
                assert not ended & taken.keys()
                assert all(taken[at].startswith(b"%08d" % confirmed[at]) for at in taken.keys() & confirmed.keys())
                if taken:
                    assert await stack.accept(tp, taken) is ErrorCode.NONE
                ended |= taken.keys()
        await stack.close()

        stack = Stack(disk / "storage")
        await stack.start()
        end = (await stack.admin.offsets("t", 0)).high_watermark
        assert set(confirmed) <= set(range(end))
        async with asyncio.timeout(30):
            while len(ended) < end:
                tp, taken = await stack.take(50)
                assert not ended & taken.keys()
                assert all(taken[at].startswith(b"%08d" % confirmed[at]) for at in taken.keys() & confirmed.keys())
                if taken:
                    assert await stack.accept(tp, taken) is ErrorCode.NONE
                ended |= taken.keys()
        assert [part.lag for part in await stack.admin.group_offsets("g")] == [0]
        await stack.close()

    with small_disk(tmp_path / "disk", "40m") as disk:
        asyncio.run(scenario(disk))


async def letters_of(stack: Stack, *, poisoned: bytes) -> tuple[list[bytes], list[bytes]]:
    """Settle all there is: what was accepted, and what became a dead letter, as it was poisoned or follows one."""
    accepted: list[bytes] = []
    dead: list[bytes] = []
    while True:
        stack.member.ask(HEADS)
        fetched = await stack.member.fetched()
        if not fetched:
            return accepted, dead
        for one in fetched:
            following = {offset for offset, _ in one.following}
            for record in decode(one.records, one.acquired).records:
                is_dead = record.offset in following or record.value == poisoned
                (dead if is_dead else accepted).append(record.value)
                ack = AckRange(record.offset, record.offset, REJECT if is_dead else ACCEPT)
                (result,) = await stack.member.acknowledge({one.tp: [ack]}, generation=one.generation)
                assert result.error is ErrorCode.NONE, result


@pytest.mark.slow
def test_a_key_that_cannot_be_parked_on_a_full_disk_is_parked_when_there_is_room(tmp_path):
    async def scenario(disk) -> None:
        stack = Stack(disk / "storage")
        await stack.start(**PARKS)
        for number in range(6):
            await stack.producer.send("t", b"%d" % number, key=b"ab"[number % 2 :][:1])
        stack.member.ask(HEADS)
        (first,) = await stack.member.fetched()
        assert [(run.first, run.last) for run in first.acquired] == [(0, 1)]

        async with asyncio.timeout(30):
            await fill_up(stack, {})
            acks = {first.tp: [AckRange(0, 0, REJECT)]}
            (refused,) = await stack.member.acknowledge(acks, generation=first.generation)
            assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
            assert (await stack.admin.parked_keys("g")).keys == ()

        await asyncio.to_thread(resize, disk, "400m")
        await until(lambda: stack.send(999, 100), good=lambda offset: offset is not None)
        (done,) = await stack.member.acknowledge(acks, generation=first.generation)
        assert done.error is ErrorCode.NONE
        (other,) = await stack.member.acknowledge({first.tp: [AckRange(1, 1, ACCEPT)]}, generation=first.generation)
        assert other.error is ErrorCode.NONE
        (parked,) = (await stack.admin.parked_keys("g")).keys
        assert (parked.key, parked.parked.first) == (b"a", 0)
        await stack.close()

        stack = Stack(disk / "storage")
        await stack.start(**PARKS)
        async with asyncio.timeout(60):
            accepted, dead = await letters_of(stack, poisoned=b"0")
        assert dead == [b"2", b"4"]
        assert [value for value in accepted if len(value) == 1] == [b"3", b"5"]
        assert [part.lag for part in await stack.admin.group_offsets("g")] == [0]
        await stack.close()

    with small_disk(tmp_path / "disk", "40m") as disk:
        asyncio.run(scenario(disk))
