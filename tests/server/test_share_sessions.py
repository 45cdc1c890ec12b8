"""Share sessions over connections: epochs, close, limits."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest

from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ShareFetchRequest, SharePartitionRequest, ShareSettleRequest, TopicPartition
from flowshare.server.share.acknowledge import merged
from flowshare.share.config import ServerConfig
from flowshare.testing.clock import settle
from tests.server.world import EARLIEST, accept, parked, ranges, reject, world

pytestmark = pytest.mark.asyncio


async def test_fetches_and_acknowledgements_share_one_epoch() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        m = w.member("m1")

        assert (await m.fetch(at, epoch=0)).error is ErrorCode.NONE
        assert (await m.fetch(epoch=1)).error is ErrorCode.NONE
        assert (await m.acknowledge({}, epoch=2)).error is ErrorCode.NONE
        assert (await m.fetch(epoch=2)).error is ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert (await m.fetch(epoch=3)).error is ErrorCode.NONE
        assert (await m.acknowledge({}, epoch=0)).error is ErrorCode.INVALID_SHARE_SESSION_EPOCH


async def test_an_unknown_session_is_not_found() -> None:
    async with world() as w:
        m = w.member("m1")

        for epoch in (5, -1):
            answer = await m.fetch(epoch=epoch)
            assert (answer.error, answer.lock_timeout_ms) == (ErrorCode.SHARE_SESSION_NOT_FOUND, 0)
            assert (await m.acknowledge({}, epoch=epoch)).error is ErrorCode.SHARE_SESSION_NOT_FOUND


@pytest.mark.parametrize(("group_id", "member_id"), [(None, "m"), ("", "m"), ("g", ""), ("g", None), ("g", "x" * 37)])
async def test_bad_ids_are_refused(group_id: str | None, member_id: str | None) -> None:
    async with world() as w:
        answer = await w.admin.send(ShareFetchRequest(group_id=group_id, member_id=member_id, session_epoch=0))

        assert answer.error is ErrorCode.INVALID_REQUEST


async def test_closing_a_session_processes_its_acknowledgements_and_frees_the_rest() -> None:
    async with world() as w:
        at, m1 = await w.held(20)
        m2 = w.member("m2")

        answer = await m1.fetch(epoch=-1, acks={at: [accept(0, 9)]})

        assert [(p.ack_error, p.acquired) for p in answer.partitions] == [(ErrorCode.NONE, ())]
        assert ranges(await m2.fetch(at)) == [(10, 19, 2)]


async def test_closing_a_session_ends_its_parked_fetch() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        m = w.member("m1")
        task = await parked(m.fetch(at, max_wait_ms=10_000))

        await m.acknowledge({}, epoch=-1)

        assert (await task).error is ErrorCode.NONE
        await w.produce(1)
        assert ranges(await w.member("m2").fetch(at)) == [(0, 0, 1)]


async def test_a_session_beyond_the_limit_is_refused_late_and_a_freed_place_can_be_taken() -> None:
    config = ServerConfig.embedded({"group.share.max.share.sessions": "2", "group.share.max.size": "2"})
    async with world(config=config) as w:
        at = TopicPartition(await w.topic(), 0)
        first, second, third = (w.member(f"m{number}") for number in range(3))
        await first.fetch(at)
        await second.fetch(at)

        task = await parked(third.fetch(at, max_wait_ms=500))
        await w.clock.advance(0.5)
        assert (await task).error is ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert (await first.fetch(at, epoch=0)).error is ErrorCode.NONE
        await first.connection.close()

        assert (await third.fetch(at, epoch=0)).error is ErrorCode.NONE


async def test_records_of_a_forgotten_partition_stay_with_their_member() -> None:
    async with world() as w:
        topic = await w.topic(partitions=2)
        at = TopicPartition(topic, 0)
        await w.produce(1)
        m1, m2 = w.member("m1"), w.member("m2")
        await m1.fetch(at)
        await m1.fetch(TopicPartition(topic, 1), forgotten=(at,))

        await m1.fetch(epoch=-1)

        assert ranges(await m2.fetch(at)) == []


async def test_an_added_partition_is_listed_once_without_records() -> None:
    async with world() as w:
        topic = await w.topic(partitions=2)
        m = w.member("m1")
        await m.fetch(TopicPartition(topic, 0))

        added = await m.fetch(TopicPartition(topic, 1))
        later = await m.fetch()

        assert [p.partition for p in added.partitions] == [1]
        assert later.partitions == ()


async def test_thousands_of_entries_for_the_same_partitions_are_merged_in_their_order() -> None:
    """40,000 fit into one request; joined pair by pair they took 37 s."""
    first, second = uuid4(), uuid4()
    entries = [SharePartitionRequest(topic, 0, (accept(n),)) for n in range(20_000) for topic in (first, second)]

    found = merged(entries)

    assert [[ack.first for ack in acks] for acks in found.values()] == [list(range(20_000))] * 2
    assert len(entries[0].acks) == 1


async def test_entries_for_the_same_partition_are_merged() -> None:
    async with world() as w:
        at, m = await w.held(4)

        answer = await m.connection.send(
            ShareFetchRequest(
                group_id="g",
                member_id="m1",
                session_epoch=1,
                max_wait_ms=0,
                partitions=(
                    SharePartitionRequest(*at, (accept(0, 1),)),
                    SharePartitionRequest(*at, (accept(2),)),
                ),
            )
        )

        assert [p.ack_error for p in answer.partitions] == [ErrorCode.NONE]
        await m.connection.close()
        assert ranges(await w.member("m2").fetch(at)) == [(3, 3, 2)]


async def test_a_session_can_be_acknowledged_over_another_connection() -> None:
    async with world() as w:
        at = await w.log(1)
        m1, twin = w.member("m1"), w.member("m1")
        await m1.fetch(at)

        answer = await twin.acknowledge({at: [accept(0)]}, epoch=1)

        assert [p.error for p in answer.partitions] == [ErrorCode.NONE]


async def test_the_session_of_a_member_that_timed_out_is_closed_and_its_parked_fetch_is_given_nothing() -> None:
    config = ServerConfig.embedded(
        {"group.share.session.timeout.ms": "10000", "group.share.heartbeat.interval.ms": "3000"}
    )
    async with world(config=config) as w:
        at = await w.log(10)
        m1, m2 = w.member("m1"), w.member("m2")
        await m1.heartbeat("t", epoch=0)
        await m2.heartbeat("t", epoch=0)
        assert ranges(await m1.fetch(at)) == [(0, 9, 1)]
        waiting = await parked(m1.fetch(max_wait_ms=60_000))

        await w.clock.advance(6)
        await m2.heartbeat()
        await w.clock.advance(6)

        assert (await waiting).partitions == ()
        assert (await m1.acknowledge({at: [accept(0, 9)]})).error is ErrorCode.SHARE_SESSION_NOT_FOUND
        assert ranges(await m2.fetch(at)) == [(0, 9, 2)]


async def hangs_up(w, m) -> None:
    await m.connection.close()


async def times_out(w, m) -> None:
    await w.clock.advance(120)


@pytest.mark.parametrize("ends", [hangs_up, times_out])
@pytest.mark.parametrize("leaves", ["nothing", "held records", "a parked fetch", "records to be dead letters"])
async def test_what_nobody_reads_any_more_is_dropped_from_memory(ends, leaves: str) -> None:
    async with world() as w:
        at, m = await w.held(3, joined=True)
        if leaves == "records to be dead letters":
            await w.configure({"errors.deadletterqueue.topic.name": "dlq.t"})
            w.storage.append, append = AsyncMock(side_effect=StorageError("the disk is full")), w.storage.append
            await m.acknowledge({at: [reject(0)]})
        if leaves in ("nothing", "a parked fetch"):
            await m.acknowledge({at: [accept(0, 2)]})
        if leaves == "a parked fetch":
            fetching = await parked(m.fetch(max_wait_ms=500_000))

        await ends(w, m)
        await settle()
        if leaves == "records to be dead letters":
            assert len(w.server.share.partitions.owners("g")) == 1
            w.storage.append = append
            await w.clock.advance(60)
        if leaves == "a parked fetch":
            await asyncio.gather(fetching, return_exceptions=True)

        assert w.server.share.partitions.owners("g") == []


async def test_what_is_read_again_before_it_is_idle_stays_in_memory() -> None:
    async with world() as w:
        _, m = await w.held(3)
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        await m.connection.close()
        (owner,) = w.server.share.partitions.owners("g")
        fetching = asyncio.ensure_future(w.member("m2").fetch(TopicPartition(*owner.key[1:])))
        await settle()
        gate.set()

        assert ranges(await fetching) == [(0, 2, 2)]
        assert w.server.share.partitions.owners("g") == [owner]


@pytest.mark.parametrize("again", [False, True])
async def test_what_is_loaded_only_when_its_last_reader_is_gone_is_dropped_at_once(again: bool) -> None:
    async with world() as w:
        at = await w.log(1)
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        m = w.member("m1")
        fetching = await parked(m.fetch(at, max_wait_ms=500))
        await w.clock.advance(0.4)
        await m.connection.close()
        await asyncio.gather(fetching, return_exceptions=True)
        if again:
            fetching = await parked(w.member("m2").fetch(at, max_wait_ms=500))
        gate.set()
        await settle()

        assert len(w.server.share.partitions.owners("g")) == again
        assert not again or ranges(await fetching) == [(0, 0, 1)]


async def test_records_that_are_to_come_alone_keep_their_share_partition_in_memory() -> None:
    async with world() as w:
        at = await w.log(3)
        for name in ("m1", "m2"):
            m = w.member(name)
            assert len(ranges(await m.fetch(at))) == 1
            await m.connection.close()
            await settle()
        assert len(w.server.share.partitions.owners("g")) == 1

        m = w.member("m3")
        alone = ranges(await m.fetch(at))
        for number in range(3):
            await m.acknowledge({at: [accept(number)]})
            await m.fetch()
        await m.connection.close()
        await settle()

        assert alone == [(0, 0, 3)]
        assert w.server.share.partitions.owners("g") == []


async def test_a_group_whose_only_member_died_twice_expires_all_the_same() -> None:
    async with world(configs={**EARLIEST, "share.retention.ms": "3600000"}) as w:
        at = await w.log(3)
        for name in ("m1", "m2"):
            m = w.member(name)
            await m.heartbeat("t")
            await m.fetch(at)
            await m.connection.close()
            await settle()
            await w.clock.advance(120)
        assert list(w.server.share.coordinator.groups) == ["g"]
        await w.clock.advance(2 * 3600)
        await settle()

        assert list(w.server.share.coordinator.groups) == []


async def test_a_share_partition_that_is_read_stays_loaded_when_the_grace_of_another_member_is_over() -> None:
    async with world() as w:
        at, m = await w.held(3, own=True)
        share = w.server.share
        closed = share.sessions.cut_off(m.connection)
        await settle()
        other = w.member("m2")
        await other.heartbeat("t")
        fetching = await parked(other.fetch(at, max_wait_ms=60_000))
        for one in closed:
            share.sessions.gave_up(one)

        assert ranges(await fetching) == [(0, 2, 2)]
        await other.acknowledge({at: [accept(0, 2)]})
        await settle()
        await w.produce(1)
        assert ranges(await other.fetch()) == [(3, 3, 1)]
        assert share.stats.loads == 1


async def test_a_late_settle_of_the_last_member_is_told_what_it_does_not_hold_any_more() -> None:
    async with world() as w:
        at, m = await w.held(3)
        await m.connection.close()
        await settle()
        assert w.server.share.partitions.owners("g") == []
        m.reconnect()

        def late(offset):
            asked = ShareSettleRequest(
                group_id="g", member_id="m1", topic_id=at[0], partition=0, acks=(accept(offset),), outputs=()
            )
            return m.connection.send(asked)

        answers = await asyncio.gather(*map(late, range(3)))

        assert [one.error for one in answers] == [ErrorCode.INVALID_RECORD_STATE] * 3
        assert [one.refused for one in answers] == [((0, 0),), ((1, 1),), ((2, 2),)]
        assert w.server.share.partitions.owners("g") == []
