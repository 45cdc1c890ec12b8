"""Requests of many parts give way to others; what was right when they came may be wrong when they go on.

No other request may come in between unseen: the order of a connection's requests is that in which they came, a commit
is all or nothing, and who was fenced, or may not any more, does nothing.
"""

from __future__ import annotations

import asyncio

import pytest

from flowshare.clock import LoopClock
from flowshare.groups.types import Supported
from flowshare.log.memory import MemoryStorage
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    AddOffsetsToTxnRequest,
    DeleteTopicRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetToCommit,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge.base import AdvertisedNode, Peer, SocketCall
from flowshare.server.edge.records import APPEND_COST
from flowshare.server.runtime.turns import TURN, Turns
from tests.groups.builders import subscription
from tests.server.edge.kit import Rights, batch, build, edge, ms, part

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

MANY = 2 * TURN
NONE = ErrorCode.NONE


async def begun(request, rounds: int = 3) -> asyncio.Future:
    """A request that has gone on for some rounds of the loop when another one comes."""
    task = asyncio.ensure_future(request)
    for _ in range(rounds):
        await asyncio.sleep(0)
    return task


def to_commit(offset: int = 7) -> tuple[OffsetToCommit, ...]:
    return tuple(OffsetToCommit("t", number, offset) for number in range(MANY))


async def stored(e) -> set[int]:
    """Offsets that are committed, of all partitions."""
    answer = await e.admin.send(OffsetFetchRequest(group_id="g", partitions=None, require_stable=True))
    return {one.offset for one in answer.partitions}


def commit_request(*partitions: int, offset: int) -> dict:
    """Fields of an OffsetCommit of nobody's at a socket."""
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [
            part(
                name="t",
                partitions=[
                    part(
                        partition_index=number,
                        committed_offset=offset,
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                    for number in partitions
                ],
            )
        ],
    }


def told(answer) -> set[ErrorCode]:
    return {one.error for one in answer.partitions}


async def member(e, topic: str = "t") -> str:
    """The one member of a group that reads a topic, in generation 1."""
    joined = await e.admin.send(
        JoinGroupRequest(
            group_id="g",
            member_id="",
            client_id="c",
            protocol_type="consumer",
            protocols=(Supported("range", subscription(topic)),),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            version=3,
        )
    )
    await e.admin.send(
        SyncGroupRequest(
            group_id="g", member_id=joined.member_id, generation=1, assignments=((joined.member_id, b"mine"),)
        )
    )
    return joined.member_id


async def test_a_member_that_goes_while_its_offsets_are_read_commits_none_of_them():
    async with edge() as e:
        await e.topic("t", partitions=MANY)
        mine = await member(e)
        request = OffsetCommitRequest(group_id="g", member_id=mine, generation=1, offsets=to_commit())
        committing = await begun(e.admin.send(request))
        leaving = LeaveGroupRequest(group_id="g", members=(LeavingMember(mine),))
        assert (await e.admin.send(leaving)).error is NONE
        assert told(await committing) == {ErrorCode.UNKNOWN_MEMBER_ID}
        assert await stored(e) == set()


async def test_offsets_of_a_topic_that_is_deleted_while_they_are_committed_go_with_it():
    async with edge() as e:
        await e.topic("t", partitions=MANY)
        committing = await begun(e.admin.send(OffsetCommitRequest(group_id="g", offsets=to_commit())))
        assert (await e.admin.send(DeleteTopicRequest(name="t"))).error is NONE
        assert told(await committing) <= {NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        await e.topic("t", partitions=MANY)
        assert await stored(e) == set()


async def test_a_transaction_that_ends_while_its_offsets_are_read_has_none_of_them():
    async with edge() as e:
        await e.topic("t", partitions=MANY)
        producer = (await e.admin.send(InitProducerIdRequest(transactional_id="x", timeout_ms=60_000))).producer
        added = AddOffsetsToTxnRequest(transactional_id="x", producer=producer, group_id="g")
        assert (await e.admin.send(added)).error is NONE
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            offsets=to_commit(),
        )
        committing = await begun(e.admin.send(request))
        ended = EndTxnRequest(transactional_id="x", producer=producer, committed=True)
        assert (await e.admin.send(ended)).error is NONE
        assert told(await committing) == {ErrorCode.INVALID_TXN_STATE}
        assert await stored(e) == set()


async def test_offsets_that_a_new_member_reads_are_not_deleted_under_it():
    async with edge() as e:
        await e.topic("t", partitions=MANY)
        await e.admin.send(OffsetCommitRequest(group_id="g", offsets=to_commit()))
        gone = tuple(("t", number) for number in range(MANY))
        deleting = await begun(e.admin.send(OffsetDeleteRequest(group_id="g", partitions=gone)))
        await member(e)
        assert (await deleting).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await stored(e) == {7}


async def test_an_offset_fetch_tells_of_one_moment():
    async with edge() as e:
        await e.topic("t", partitions=MANY)
        await e.admin.send(OffsetCommitRequest(group_id="g", offsets=to_commit(1)))
        fetching = await begun(stored(e), rounds=1)
        await e.admin.send(OffsetCommitRequest(group_id="g", offsets=(OffsetToCommit("t", MANY - 1, 2),)))
        assert await fetching == {1}


def caller(e, rights: Rights | None = None) -> Peer:
    node = AdvertisedNode(host="127.0.0.1", port=1)
    peer = Peer(
        server=e.server, connection=e.admin, node=node, host="127.0.0.1", turns=Turns(e.server.clock, e.listener.line)
    )
    peer.authorizer = rights or Rights()
    return peer


async def test_a_right_to_a_group_that_is_taken_away_while_a_commit_is_read_counts():
    async with edge() as e:
        await e.topic("t", partitions=MANY)
        rights = Rights()
        request = build("offset_commit", 8, **commit_request(*range(MANY), offset=1))
        call = SocketCall(peer=caller(e, rights), version=8, client_id="c", request=request)
        answering = await begun(e.listener.endpoints[ApiKey.OFFSET_COMMIT].answer(call), rounds=2)
        rights.denied = ((Operation.READ, ResourceType.GROUP, "g"),)
        answer = await answering
        assert {one.error_code.name for one in answer.topics[0].partitions} == {"group_authorization_failed"}
        assert await stored(e) == set()


async def test_a_short_commit_behind_a_long_one_is_the_last_one():
    async with edge() as e:
        await e.topic("t", partitions=MANY)
        s = await e.socket()
        await s.tell("offset_commit", 8, **commit_request(*reversed(range(MANY)), offset=1))
        await s.tell("offset_commit", 8, **commit_request(MANY - 1, offset=2))
        for _ in range(2):
            await s.answer("offset_commit", 8)
        last = await e.admin.send(OffsetFetchRequest(group_id="g", partitions=(("t", MANY - 1), ("t", 0))))
        assert [one.offset for one in last.partitions] == [2, 1]


class Counting(MemoryStorage):
    """Counts the appends that begin in a round of the loop."""

    begun = 0

    async def append(self, *args, **options):
        self.begun += 1
        return await super().append(*args, **options)


PARTS = 10 * TURN // APPEND_COST


def produce(count: int, value: bytes):
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": ms(1_000),
        "topic_data": [
            part(name="t", partition_data=[part(index=PARTS - 1 - n, records=batch(value)) for n in range(count)])
        ],
    }


async def test_a_produce_request_begins_few_appends_in_a_round():
    storage = Counting(LoopClock())
    async with edge(storage=storage) as e:
        await e.topic("t", partitions=PARTS)
        call = SocketCall(peer=caller(e), version=9, client_id="c", request=build("produce", 9, **produce(PARTS, b"v")))
        answering = asyncio.ensure_future(e.listener.endpoints[ApiKey.PRODUCE].answer(call))
        most = 0
        while not answering.done():
            before = storage.begun
            await asyncio.sleep(0)
            most = max(most, storage.begun - before)
        answer = await answering
        assert storage.begun == PARTS
        assert most <= TURN // APPEND_COST
        assert {one.error_code.name for one in answer.responses[0].partition_responses} == {"none"}


async def test_records_of_a_short_produce_request_come_behind_those_of_a_long_one_before_it():
    async with edge() as e:
        await e.topic("t", partitions=PARTS)
        s = await e.socket()
        await s.tell("produce", 9, **produce(PARTS, b"first"))
        request = produce(1, b"second")
        request["topic_data"][0].partition_data[0].index = 0  # the long one's last
        await s.tell("produce", 9, **request)
        await s.answer("produce", 9)
        answer = await s.answer("produce", 9)
        assert answer.responses[0].partition_responses[0].base_offset == 1
