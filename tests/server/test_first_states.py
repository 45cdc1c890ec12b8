"""First states that take longer than a heartbeat waits: they go on in turns, and no crash between loses anything."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from flowshare.server.runtime.coordinator import RETRY_MS
from flowshare.server.runtime.failures import Refused
from flowshare.server.share.coordinator import NOTE_MS
from flowshare.server.share.first_states import BEGIN_S, FirstStates
from flowshare.testing.clock import ManualClock, settle
from tests.server.world import ranges, world

pytestmark = pytest.mark.asyncio


class Group:
    """A stand-in that says what came back."""

    def __init__(self):
        self.group_id = "g"
        self.config = None
        self.failed = []

    def initialize_failed(self, items):
        self.failed.append(list(items))


class Turns:
    """`FirstStates` over leaders that answer when told."""

    def __init__(self):
        self.clock = ManualClock()
        self.group = Group()
        self.begun = []
        self.written = []
        self.states = FirstStates(self, self.write, self.clock)

    @asynccontextmanager
    async def beginning(self, group_id, config, items):
        answered = asyncio.get_running_loop().create_future()
        self.begun.append((list(items), answered))
        await answered
        yield list(items)

    async def write(self, group, writes):
        assert not set(writes) & set(self.states.unwritten(group)), "what is written now counts as begun"
        self.written.append(list(writes))

    async def give(self, *items):
        task = asyncio.ensure_future(self.states.give(self.group, items))
        await settle()
        return task

    async def answer(self, number, error=None):
        _, answered = self.begun[number]
        if error is None:
            answered.set_result(None)
        else:
            answered.set_exception(error)
        await settle()


async def test_what_is_asked_for_meanwhile_is_written_together_after_the_first():
    turns = Turns()
    first, second, third = await turns.give("a"), await turns.give("b"), await turns.give("c")

    assert turns.states.unwritten(turns.group) == ["a", "b", "c"]
    await turns.answer(0)
    await first
    assert turns.states.unwritten(turns.group) == ["b", "c"]
    await turns.answer(1)

    assert turns.written == [["a"], ["b", "c"]]
    await asyncio.gather(second, third)
    assert turns.states.unwritten(turns.group) == []


async def test_a_failure_refuses_only_those_who_wait_for_it():
    turns = Turns()
    first, second = await turns.give("a"), await turns.give("b")

    await turns.answer(0, StorageError("the disk is full"))
    await turns.answer(1)

    with pytest.raises(Refused, match="the disk is full"):
        await first
    await second
    assert turns.group.failed == [["a"]]
    assert turns.written == [["b"]]


async def test_a_heartbeat_is_told_to_come_again_and_what_it_began_goes_on():
    turns = Turns()
    first = await turns.give("a")

    await turns.clock.advance(BEGIN_S)
    with pytest.raises(Refused, match="try again soon"):
        await first
    await turns.answer(0)

    assert turns.written == [["a"]]


async def test_what_is_not_written_when_the_server_ends_is_left():
    turns = Turns()
    waiting = [await turns.give("a"), await turns.give("b")]

    await turns.states.close()

    await asyncio.gather(*waiting, return_exceptions=True)
    assert turns.written == []
    assert turns.states.unwritten(turns.group) == []


async def test_partitions_that_were_being_begun_at_a_crash_are_begun_as_they_would_have_been():
    """Added to a topic that the group knew, they begin at 0, though the group begins at its topics' ends."""
    async with world(configs={"share.auto.offset.reset": "latest"}) as w:
        topic_id = await w.topic()
        member = w.member("m1", own=True)
        await member.heartbeat("t", epoch=0)
        await w.storage.create_partitions("t", 2)
        await w.produce(3, partition=1)
        leaders = w.server.share.coordinator._first_states._leaders
        beginning = leaders.beginning

        @asynccontextmanager
        async def never(*args):
            await asyncio.get_running_loop().create_future()
            yield []

        leaders.beginning = never
        asking = asyncio.ensure_future(member.heartbeat())
        await w.clock.advance(5)
        assert (await asking).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        leaders.beginning = beginning

        await w.die()
        member.reconnect()
        assert (await member.heartbeat()).error is ErrorCode.NONE
        assert ranges(await member.fetch(TopicPartition(topic_id, 1))) == [(0, 2, 1)]


class Disk:
    """Holds the first write back; refuses the later ones while it is full."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.writes = 0
        self.full = True

    async def __call__(self):
        self.writes += 1
        if self.writes == 1:
            await self.gate.wait()
        elif self.full:
            raise StorageError("the disk is full")


async def test_a_member_that_joins_while_its_group_is_written_is_answered_only_when_it_is_stored_itself():
    async with world() as w:
        await w.topic(partitions=2)
        m1, m2, m3 = w.member("m1"), w.member("m2"), w.member("m3")
        await m1.heartbeat("t", epoch=0)
        await m2.heartbeat("t", epoch=0)
        await m1.heartbeat()  # it takes its new assignment, which is written by and by
        disk = w.storage.before_write = Disk()
        await w.clock.advance(NOTE_MS / 1000)
        joining = asyncio.ensure_future(m3.heartbeat("t", epoch=0))
        await settle()
        disk.gate.set()
        assert (await joining).error is ErrorCode.COORDINATOR_NOT_AVAILABLE

        again = await m3.heartbeat("t", epoch=0)

        assert again.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        disk.full = False
        assert (await m3.heartbeat("t", epoch=0)).error is ErrorCode.NONE
        await w.die()
        assert await w.members() == ["m1", "m2", "m3"]


async def test_a_removal_while_the_group_is_written_is_stored_when_its_own_write_was_refused():
    async with world() as w:
        await w.topic()
        coordinator = w.server.share.coordinator
        for name in ("m1", "m2"):
            await w.member(name).heartbeat("t", epoch=0)
        await w.clock.advance(10)
        disk = w.storage.before_write = Disk()
        joining = asyncio.ensure_future(w.member("m3").heartbeat("t", epoch=0))
        await w.clock.advance(35)  # the others have been silent for 45 s
        assert coordinator.find("g").members.keys() == {"m3"}
        disk.gate.set()
        await joining
        await settle()
        assert disk.writes == 2

        disk.full = False
        await w.clock.advance(RETRY_MS / 1000)

        await w.die()
        assert await w.members() == ["m3"]


async def test_a_repeated_join_is_not_answered_while_its_first_states_are_not_written():
    """The group is written meanwhile as if it had not begun them; a member that fetched now would begin elsewhere."""
    async with world() as w:
        await w.topic()
        leaders = w.server.share.coordinator._first_states._leaders
        beginning, gate = leaders.beginning, asyncio.Event()

        @asynccontextmanager
        async def slow(*args):
            await gate.wait()
            async with beginning(*args) as writes:
                yield writes

        leaders.beginning = slow
        member = w.member("m1")
        joining = asyncio.ensure_future(member.heartbeat("t", epoch=0))
        await w.clock.advance(BEGIN_S + RETRY_MS / 1000)
        assert (await joining).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

        again = asyncio.ensure_future(member.heartbeat("t", epoch=0))
        await settle()

        assert not again.done()
        gate.set()
        assert (await again).error is ErrorCode.NONE


async def test_a_group_whose_deletion_is_refused_is_written_as_it_was_to_be():
    async with world() as w:
        await w.topic()
        member = w.member("m1")
        await member.heartbeat("t", epoch=0)
        disk = w.storage.before_write = Disk()
        disk.gate.set()
        disk.writes = 1
        assert (await member.heartbeat(epoch=-1)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(StorageError):
            await w.server.share.coordinator.delete("g")

        disk.full = False
        await w.clock.advance(2 * RETRY_MS / 1000)

        await w.die()
        assert await w.members() == []
