"""Bytes that clients make the server hold beyond their requests: one setting for all of them."""

from __future__ import annotations

import uuid

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.share.config import ServerConfig
from tests.server.edge import classic
from tests.server.edge.classic import asked_to_join
from tests.server.edge.kit import edge, ms, part

pytestmark = pytest.mark.asyncio

REFUSED = int(ErrorCode.POLICY_VIOLATION)
SETTING = "coordinator.state.max.bytes"
SMALL = ServerConfig(coordinator_state_bytes=100_000)


async def join(socket, group_id, size, *, member_id="", version=3):
    """JoinGroup with so much metadata; version 3 has no first round."""
    fields = asked_to_join(member_id, group_id=group_id, protocols=[part(name="range", metadata=bytes(size))])
    return await socket.ask("join_group", version, **fields)


async def leave(socket, group_id, member_id):
    """LeaveGroup of one member."""
    assert int((await socket.ask("leave_group", 1, group_id=group_id, member_id=member_id)).error_code) == 0


async def sync(socket, group_id, joined, size):
    """SyncGroup of a leader that is alone: the error."""
    mine = [part(member_id=joined.member_id, assignment=bytes(size))]
    generation = joined.generation_id
    answer = await classic.sync(socket, joined.member_id, 3, generation, group_id=group_id, assignments=mine)
    return int(answer.error_code)


async def commit(socket, group_id, partitions, size):
    """OffsetCommit of a simple consumer: the errors."""
    offsets = [
        part(partition_index=one, committed_offset=1, committed_leader_epoch=-1, committed_metadata="m" * size)
        for one in partitions
    ]
    answer = await classic.commit(socket, 7, group=group_id, topics=[part(name="t", partitions=offsets)])
    return {int(one.error_code) for one in answer.topics[0].partitions}


async def beat(socket, group_id, member_id, *, epoch=0, names=()):
    """ShareGroupHeartbeat."""
    return await socket.ask(
        "share_group_heartbeat",
        1,
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        rack_id=None,
        subscribed_topic_names=None if names is None else list(names),
    )


async def producer(socket, transactional_id):
    """InitProducerId: how the next requests name the producer."""
    made = await socket.ask(
        "init_producer_id",
        4,
        transactional_id=transactional_id,
        transaction_timeout=ms(60_000),
        producer_id=-1,
        producer_epoch=-1,
    )
    assert int(made.error_code) == 0
    number, epoch = int(made.producer_id), int(made.producer_epoch)
    return {
        "transactional_id": transactional_id,
        "producer_id": number,
        "producer_epoch": epoch,
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": number,
        "v3_and_below_producer_epoch": epoch,
    }


async def add(socket, who, count):
    """AddPartitionsToTxn: the errors."""
    wanted = [part(name="t", partitions=list(range(count)))]
    answer = await socket.ask("add_partitions_to_txn", 3, v3_and_below_topics=wanted, **who)
    return {int(one.partition_error_code) for one in answer.results_by_topic_v3_and_below[0].results_by_partition}


def counted_anew(e):
    """As if a second had gone by since all was counted."""
    e.server.share.budget.came()


async def test_members_metadata_takes_only_what_is_left():
    async with edge(config=SMALL) as e:
        s = await e.socket()
        first = await join(s, "g0", 40_000)
        assert int(first.error_code) == 0
        assert int((await join(s, "g1", 40_000)).error_code) == REFUSED
        assert "g1" not in e.server.classic
        for _ in range(5):  # the same again is no more than before
            assert int((await join(s, "g0", 40_000, member_id=first.member_id)).error_code) == 0
        assert int((await join(s, "g2", 100)).error_code) == 0
        await leave(s, "g0", first.member_id)
        counted_anew(e)
        assert int((await join(s, "g1", 40_000)).error_code) == 0


async def test_awaited_members_take_only_what_is_left():
    async with edge(config=ServerConfig(coordinator_state_bytes=20_000)) as e:
        s = await e.socket()
        codes = [int((await join(s, "g", 0, version=4)).error_code) for _ in range(20)]
        asked_again = int(ErrorCode.MEMBER_ID_REQUIRED)
        granted = codes.count(asked_again)
        assert codes == [asked_again] * granted + [REFUSED] * (20 - granted)
        assert 0 < granted < 20


async def test_assignments_take_only_what_is_left():
    async with edge(config=SMALL) as e:
        s = await e.socket()
        one, two = await join(s, "g0", 0), await join(s, "g1", 0)
        assert await sync(s, "g0", one, 40_000) == 0
        assert await sync(s, "g1", two, 40_000) == REFUSED
        assert await sync(s, "g1", two, 100) == 0
        again = await join(s, "g0", 0, member_id=one.member_id)
        counted_anew(e)
        assert await sync(s, "g0", again, 40_000) == 0
        await leave(s, "g0", one.member_id)
        counted_anew(e)
        three = await join(s, "g2", 0)
        assert await sync(s, "g2", three, 40_000) == 0


async def test_committed_offsets_take_only_what_is_left():
    async with edge(config=SMALL) as e:
        await e.topic(partitions=100)
        s = await e.socket()
        assert await commit(s, "g0", range(10), 4_000) == {0}
        assert await commit(s, "g1", range(10), 4_000) == {REFUSED}
        assert "g1" not in e.server.classic
        for _ in range(5):
            assert await commit(s, "g0", range(10), 4_000) == {0}
        deleted = await s.ask("delete_groups", 1, groups_names=["g0"])
        assert int(deleted.results[0].error_code) == 0
        counted_anew(e)
        assert await commit(s, "g1", range(10), 4_000) == {0}


async def test_subscriptions_of_share_groups_take_only_what_is_left():
    names = [f"{number:03d}" + "t" * 100 for number in range(150)]
    async with edge(config=SMALL) as e:
        s = await e.socket()
        member_id = str(uuid.uuid4())
        joined = await beat(s, "s0", member_id, names=names)
        assert int(joined.error_code) == 0
        refused = await beat(s, "s1", str(uuid.uuid4()), names=names)
        assert int(refused.error_code) == REFUSED
        assert SETTING in refused.error_message
        assert "s1" not in e.server.share.coordinator.groups
        epoch = joined.member_epoch
        for told in (names, None, names):
            answer = await beat(s, "s0", member_id, epoch=epoch, names=told)
            assert int(answer.error_code) == 0
            epoch = answer.member_epoch
        assert int((await beat(s, "s2", str(uuid.uuid4()), names=["t"])).error_code) == 0
        assert int((await beat(s, "s0", member_id, epoch=-1, names=None)).error_code) == 0
        counted_anew(e)
        assert int((await beat(s, "s1", str(uuid.uuid4()), names=names)).error_code) == 0


async def test_partitions_of_transactions_take_only_what_is_left():
    async with edge(config=SMALL) as e:
        await e.topic(partitions=300)
        s = await e.socket()
        one, two = await producer(s, "one"), await producer(s, "two")
        assert await add(s, one, 300) == {0}
        assert await add(s, two, 300) == {REFUSED}
        assert e.server._transactions.get("two").partitions == frozenset()
        assert await add(s, one, 300) == {0}
        assert await add(s, two, 1) == {0}
        ended = await s.ask("end_txn", 3, committed=False, **one)
        assert int(ended.error_code) == 0
        counted_anew(e)
        assert await add(s, two, 300) == {0}


async def test_a_transaction_takes_no_group_whose_id_is_too_long():
    async with edge(config=SMALL) as e:
        s = await e.socket()
        who = await producer(s, "one")
        for group_id, error in (("g" * 1_024, 0), ("g" * 1_025, 24), ("", 24)):
            answer = await s.ask("add_offsets_to_txn", 3, group_id=group_id, **who)
            assert int(answer.error_code) == error
        assert e.server._transactions.get("one").groups == {"g" * 1_024}
