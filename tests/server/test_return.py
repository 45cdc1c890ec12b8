"""Members of other processes keep their records over the leader's end, for as long as they may take to come back."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowshare.core_errors import UnknownTopicOrPartition
from flowshare.log.base import NotDecided, NotLed, StorageError
from flowshare.log.memory import MemoryStorage
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import HeldRanges, ShareResumeRequest, TopicPartition
from flowshare.server.runtime.topic_index import TopicIndex
from flowshare.server.share.resume import ShareResuming, merged, minus
from flowshare.server.share.returning_members import Returns
from flowshare.share.config import ServerConfig
from flowshare.testing.clock import ManualClock, settle
from tests.server.world import accept, parked, ranges, world

pytestmark = pytest.mark.asyncio

GRACE_S = 3.0
LOCK_S = 30.0


async def test_what_a_living_member_holds_stays_with_it_when_the_leader_dies() -> None:
    async with world() as w:
        at, m1 = await w.held(10, own=True)

        await w.die()
        m1.reconnect()
        assert (await m1.heartbeat()).error is ErrorCode.NONE
        assert ranges(await m1.fetch(at)) == []
        done = await m1.acknowledge({at: [accept(0, 9)]})

        assert done.partitions[0].error is ErrorCode.NONE


async def test_what_a_member_held_that_does_not_come_back_is_given_to_others_after_the_grace() -> None:
    async with world() as w:
        at = await w.log(10)
        m1, m2 = w.member("m1", own=True), w.member("m2", own=True)
        for member in (m1, m2):
            await member.heartbeat("t", epoch=0)
        await m1.fetch(at)

        await w.die()
        m2.reconnect()
        await m2.heartbeat()
        assert ranges(await m2.fetch(at)) == []
        await w.clock.advance(GRACE_S)
        await settle()

        assert ranges(await m2.fetch(at)) == [(0, 9, 2)]
        assert await w.members() == ["m2"]


async def test_a_leader_that_ends_in_order_takes_nothing_from_members_elsewhere() -> None:
    async with world() as w:
        at, m1 = await w.held(10, own=True)

        await w.restart()
        m1.reconnect()
        await m1.heartbeat()
        await m1.fetch(at)

        assert (await m1.acknowledge({at: [accept(0, 9)]})).partitions[0].error is ErrorCode.NONE


async def test_without_a_grace_everything_is_given_to_others_as_by_kafka() -> None:
    async with world(config=ServerConfig.embedded({"group.share.return.grace.ms": "0"})) as w:
        at, _ = await w.held(10, own=True)

        await w.die()
        m2 = w.member("m2", own=True)
        await m2.heartbeat("t", epoch=0)

        assert ranges(await m2.fetch(at)) == [(0, 9, 2)]


@pytest.mark.parametrize(("own", "left"), [(True, []), (False, ["m1"])], ids=["flowshare's", "others'"])
async def test_a_member_whose_connection_broke_leaves_its_group_soon_if_it_is_flowshares_own(own, left) -> None:
    async with world() as w:
        await w.topic()
        m1 = w.member("m1", own=own)
        await m1.heartbeat("t", epoch=0)

        await m1.connection.close()
        await w.clock.advance(GRACE_S)

        assert await w.members() == left


async def test_a_member_whose_process_has_ended_is_waited_for_no_longer(monkeypatch) -> None:
    runs = {(7, 70): True, (8, 80): True}
    monkeypatch.setattr("flowshare.processes.runs", runs.__getitem__)
    async with world() as w:
        at, m1 = await w.held(10, own=True)
        lives, m3 = w.member("lives", own=True), w.member("m3", own=True)
        for member in (lives, m3):
            await member.heartbeat("t", epoch=0)
        m1.connection.process, lives.connection.process = (7, 70), (8, 80)

        await m1.connection.close()
        await lives.connection.close()
        await w.clock.advance(0.2)
        assert await w.members() == ["m1", "lives", "m3"], "its connections end before the process has"
        runs[7, 70] = False
        await w.clock.advance(0.2)

        assert await w.members() == ["lives", "m3"]
        assert ranges(await m3.fetch(at)) == [(0, 9, 2)]
        await w.clock.advance(GRACE_S)
        assert await w.members() == ["m3"]


async def test_a_member_that_is_back_over_another_connection_stays_whatever_its_process_was_said_to_be(
    monkeypatch,
) -> None:
    monkeypatch.setattr("flowshare.processes.runs", {(7, 70): False}.__getitem__)
    async with world() as w:
        await w.topic()
        m1 = w.member("m1", own=True)
        await m1.heartbeat("t", epoch=0)
        m1.connection.process = (7, 70)
        left = m1.connection
        m1.reconnect()
        await m1.heartbeat()
        await left.close()
        await w.clock.advance(0.2)

        assert await w.members() == ["m1"]


class Line:
    """A connection of flowshare's own client."""

    closed, own = False, True


@pytest.mark.parametrize("back", [True, False])
async def test_a_member_that_comes_back_after_its_process_has_ended_lives_in_another_one(back: bool) -> None:
    returns = Returns(clock=ManualClock(), config_of=lambda _: None, grace_ms=3_000, fleet=False)
    group, first = SimpleNamespace(group_id="g", expect_by=lambda *_: None), Line()
    returns.beat(first, ("g", "m"), left=False)
    returns.ended(first)
    returns.expect_no_more(group, "m")
    if back:
        returns.beat(Line(), ("g", "m"), left=False)

    assert [returns.process_ended("g", "m") for _ in range(2)] == [not back, False]


@pytest.mark.parametrize(("own", "interval_ms"), [(True, 500), (False, 5_000)], ids=["flowshare's", "others'"])
async def test_members_of_flowshares_own_hear_soon_of_what_one_that_stops_leaves(own, interval_ms) -> None:
    async with world() as w:
        await w.topic()
        answer = await w.member("m1", own=own).heartbeat("t", epoch=0)

        assert answer.heartbeat_interval_ms == interval_ms


async def test_a_server_that_stood_still_itself_gives_its_members_time_to_be_heard() -> None:
    async with world() as w:
        await w.topic()
        m1, m2 = w.member("m1", own=True), w.member("m2", own=True)
        for member in (m1, m2):
            await member.heartbeat("t", epoch=0)
        for member in (m1, m2):
            await member.connection.close()
        await settle()

        w.clock._elapsed_s += 10 * GRACE_S
        await w.clock.advance(0.1)
        m1.reconnect()
        assert (await m1.heartbeat()).error is ErrorCode.NONE
        await w.clock.advance(GRACE_S)

        assert await w.members() == ["m1"]


async def test_a_server_that_stood_still_itself_hears_what_members_sent_before_their_locks_lapse() -> None:
    async with world() as w:
        at, m1 = await w.held(2)
        task = await parked(w.member("m2").fetch(at, max_wait_ms=60_000))

        w.clock._elapsed_s += LOCK_S + 10
        await w.clock.advance(0.1)
        assert (await m1.acknowledge({at: [accept(0)]})).partitions[0].error is ErrorCode.NONE
        assert not task.done()
        await w.clock.advance(LOCK_S)

        assert ranges(await task) == [(1, 1, 2)]


async def test_a_connection_that_a_member_left_before_it_ended_says_nothing_of_the_member() -> None:
    async with world() as w:
        await w.topic()
        m1 = w.member("m1", own=True)
        await m1.heartbeat("t", epoch=0)
        left = m1.connection

        m1.reconnect()
        await m1.heartbeat()
        await left.close()
        await w.clock.advance(GRACE_S)

        assert await w.members() == ["m1"]


def held(at: TopicPartition, *ranges: tuple[int, int]) -> HeldRanges:
    return HeldRanges(at.topic_id, at.partition, ranges)


async def resume(member, *parts: HeldRanges):
    """Send a member's claim of held ranges, and return the answer's partitions."""
    answer = await member.connection.send(
        ShareResumeRequest(group_id=member.group_id, member_id=member.member_id, partitions=parts)
    )
    assert answer.error is ErrorCode.NONE
    return list(answer.partitions)


async def test_what_a_member_that_comes_back_never_heard_of_is_free_at_once_and_cost_no_attempt() -> None:
    async with world() as w:
        at, m1 = await w.held(10, own=True)

        await w.die()
        m1.reconnect()
        assert await resume(m1, held(at, (2, 4), (8, 8))) == [held(at, (2, 4), (8, 8))]
        await settle()

        m2 = w.member("m2", own=True)
        assert ranges(await m2.fetch(at)) == [(0, 1, 1), (5, 7, 1), (9, 9, 1)]
        await m1.fetch(at)
        assert (await m1.acknowledge({at: [accept(2, 4), accept(8, 8)]})).partitions[0].error is ErrorCode.NONE


async def test_what_a_member_let_go_of_counts_when_it_was_told_though_that_leader_dies_at_once() -> None:
    async def refuse(*_: object) -> None:
        raise StorageError("no room")

    async with world() as w:
        at, m1 = await w.held(2, own=True)
        await w.die()
        m1.reconnect()
        told = ShareResumeRequest(
            group_id=m1.group_id,
            member_id=m1.member_id,
            partitions=(HeldRanges(at.topic_id, at.partition, ((1, 1),), lapsed=((0, 0),)),),
        )
        w.storage.before_write = refuse
        answer = await m1.connection.send(told)
        w.storage.before_write = None
        again = await m1.connection.send(told)
        await w.die()

        assert answer.error is not ErrorCode.NONE
        assert again.partitions == (held(at, (1, 1)),)
        assert ranges(await w.member("m2", own=True).fetch(at)) == [(0, 0, 2)]


async def test_a_member_that_comes_back_to_the_same_leader_holds_nothing_any_more() -> None:
    async with world() as w:
        at, m1 = await w.held(10, own=True)
        await m1.connection.close()

        m1.reconnect()

        assert await resume(m1, held(at, (0, 9))) == []


async def test_a_member_may_say_that_it_holds_what_it_does_not() -> None:
    async with world() as w:
        at = await w.log(10)
        m1, m2 = w.member("m1", own=True), w.member("m2", own=True)
        await m2.fetch(at)

        assert await resume(m1, held(at, (0, 9)), held(TopicPartition(at.topic_id, 7), (0, 1))) == []
        assert (await m2.acknowledge({at: [accept(0, 9)]})).partitions[0].error is ErrorCode.NONE


class SomePartitions:
    """Leads partition 0 of which it knows nothing, has no partition 1, and leads nothing else. Of the partitions in
    `undecided` it does not know yet what was settled."""

    undecided = ()

    def check_led(self, key):
        if key.partition > 1 and key.partition not in self.undecided:
            raise NotLed("led by another worker")

    def knows(self, key):
        return key.partition != 0

    async def open(self, key):
        if key.partition in self.undecided:
            raise NotDecided("a coordinator of transactions does not answer")
        raise UnknownTopicOrPartition("deleted")


async def test_a_member_hears_what_of_its_partitions_is_not_led_here() -> None:
    topic = uuid.UUID(int=1)
    resuming = ShareResuming(SomePartitions(), TopicIndex(MemoryStorage(ManualClock())))
    anybody = SimpleNamespace(may_read=None)
    told = tuple(HeldRanges(topic, partition, ((0, 3),)) for partition in (0, 1, 2, 5))

    answer = await resuming.resume(ShareResumeRequest(group_id="g", member_id="m", partitions=told), anybody)

    assert answer.error is ErrorCode.NONE
    assert answer.partitions == ()
    assert answer.elsewhere == (TopicPartition(topic, 2), TopicPartition(topic, 5))


async def test_what_is_not_decided_of_one_partition_keeps_no_other_one_back() -> None:
    topic, partitions = uuid.UUID(int=1), SomePartitions()
    partitions.undecided = (3,)
    resuming = ShareResuming(partitions, TopicIndex(MemoryStorage(ManualClock())))
    told = tuple(HeldRanges(topic, partition, ((0, 3),)) for partition in (0, 3))

    request = ShareResumeRequest(group_id="g", member_id="m", partitions=told)
    answer = await resuming.resume(request, SimpleNamespace(may_read=None))

    assert answer.error is ErrorCode.NONE
    assert answer.elsewhere == (TopicPartition(topic, 3),)


async def test_a_member_lets_nothing_go_of_a_topic_that_it_may_not_read() -> None:
    async with world() as w:
        at, other = TopicPartition(await w.topic(), 0), TopicPartition(await w.topic("u"), 0)
        for topic in ("t", "u"):
            await w.produce(3, topic)
        m1, m2 = w.member("m1", own=True), w.member("m2", own=True)
        await m1.fetch(at, other)

        thief = w.member("m1", own=True)
        thief.connection.may_read = lambda topic: topic == "u"
        assert await resume(thief, held(at), held(other)) == []
        await settle()

        answer = await m2.fetch(at, other)
        assert [part.topic_id for part in answer.partitions if part.acquired] == [other.topic_id]


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
async def test_ranges_are_subtracted_as_sets_are(all_of_it: set[int], taken: set[int]) -> None:
    def runs(offsets: set[int]) -> list[tuple[int, int]]:
        return merged((offset, offset) for offset in sorted(offsets))

    assert minus(runs(all_of_it), runs(taken)) == runs_of(all_of_it - taken, runs(all_of_it))


def runs_of(offsets: set[int], within: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs of offsets, cut where the ranges they come from are."""
    found: list[tuple[int, int]] = []
    for first, last in within:
        found += merged((offset, offset) for offset in sorted(offsets) if first <= offset <= last)
    return found


async def joined(w, count):
    """So many members of group g, all but the last of them at older epochs than the group."""
    await w.topic(partitions=4)
    members = [w.member(f"m{number}", own=True) for number in range(count)]
    for member in members:
        await member.heartbeat("t", epoch=0)
    return members


async def test_members_that_jump_to_an_epoch_are_written_together() -> None:
    async with world() as w:
        members = await joined(w, 8)
        before = await w.storage.scan(b"g/")

        for member in members:
            await member.heartbeat()
        assert await w.storage.scan(b"g/") == before

        await w.clock.advance(1.0)
        await settle()
        assert await w.storage.scan(b"g/") != before


async def test_a_leader_that_died_before_it_wrote_of_a_jump_believes_the_member() -> None:
    async with world() as w:
        members = await joined(w, 8)
        told = [await member.heartbeat() for member in members]

        await w.die()
        for member in members:
            member.reconnect()
        answers = [await member.heartbeat() for member in members]

        assert [answer.error for answer in answers] == [ErrorCode.NONE] * 8
        assert [answer.member_epoch for answer in answers] == [answer.member_epoch for answer in told]
