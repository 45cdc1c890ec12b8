"""A server with consumer groups on a clock that stands still."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

from flowshare.groups.types import ClassicConfig, Supported
from flowshare.log.base import StorageError
from flowshare.log.memory import MemoryStorage
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AddOffsetsToTxnRequest,
    DeleteGroupsRequest,
    DeleteTopicRequest,
    EndTxnRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetToCommit,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig
from flowshare.testing.clock import ManualClock
from tests.groups.builders import subscription
from tests.server.world import World

R_S = 60.0
"""The retention in seconds; sweeps are every second."""
CONFIG = ClassicConfig(offsets_retention_minutes=1, retention_check_interval_ms=1_000)
NONE = ErrorCode.NONE


class ClassicWorld(World):
    """A server with consumer groups."""

    def __init__(self, storage, clock, config, classic) -> None:
        super().__init__(storage, clock, config)
        self.classic = classic
        self.server = Server(storage=storage, config=config, clock=clock, classic=classic)

    async def restart(self, *, config=None) -> None:
        await self.server.close()
        self.server = Server(storage=self.storage, config=self.config, clock=self.clock, classic=self.classic)
        await self.start()

    def join(self, member_id="", *, group="g", topics=("t",), instance=None, version=3, connection=None, **fields):
        request = JoinGroupRequest(
            group_id=group,
            member_id=member_id,
            instance_id=instance,
            client_id="c",
            protocol_type="consumer",
            protocols=(Supported("range", subscription(*topics)),),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            version=version,
        )
        return (connection or self.admin).send(replace(request, **fields))

    def sync(self, member_id, generation, assignments=(), *, group="g", instance=None):
        return self.admin.send(
            SyncGroupRequest(
                group_id=group,
                member_id=member_id,
                instance_id=instance,
                generation=generation,
                assignments=tuple(assignments),
            )
        )

    async def beat(self, member_id, generation, *, group="g"):
        request = HeartbeatRequest(group_id=group, member_id=member_id, generation=generation)
        return (await self.admin.send(request)).error

    async def stable(self, *, group="g", topics=("t",)):
        """A group with one member; its id."""
        joined = await self.join(group=group, topics=topics)
        assert joined.error is NONE, joined.message
        synced = await self.sync(joined.member_id, joined.generation, [(joined.member_id, b"mine")], group=group)
        assert (synced.error, synced.assignment) == (NONE, b"mine")
        return joined.member_id

    async def leave(self, *members, group="g"):
        named = tuple(one if isinstance(one, LeavingMember) else LeavingMember(one) for one in members)
        return await self.admin.send(LeaveGroupRequest(group_id=group, members=named))

    async def commit(self, offset=5, *, group="g", topic="t", partition=0, metadata=None, **fields):
        offsets = (OffsetToCommit(topic, partition, offset, 2, metadata),)
        answer = await self.admin.send(OffsetCommitRequest(group_id=group, offsets=offsets, **fields))
        return answer.partitions[0].error

    async def begin(self, group="g"):
        """A producer with an open transaction that is going to commit offsets of the group."""
        begun = await self.admin.send(InitProducerIdRequest(transactional_id="x"))
        added = await self.admin.send(
            AddOffsetsToTxnRequest(transactional_id="x", producer=begun.producer, group_id=group)
        )
        assert (begun.error, added.error) == (NONE, NONE)
        return begun.producer

    async def txn_commit(self, offset, producer, *, group="g", **fields):
        answer = await self.admin.send(
            TxnOffsetCommitRequest(
                transactional_id="x",
                group_id=group,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                offsets=(OffsetToCommit("t", 0, offset),),
                **fields,
            )
        )
        return answer.partitions[0].error

    async def end(self, producer, *, committed):
        answer = await self.admin.send(EndTxnRequest(transactional_id="x", producer=producer, committed=committed))
        return answer.error

    async def committed(self, group="g", *, partitions=None, stable=False):
        """Offsets by topic and partition; those with an error have its code."""
        answer = await self.admin.send(OffsetFetchRequest(group_id=group, partitions=partitions, require_stable=stable))
        if answer.error is not NONE:
            return answer.error
        return {(one.topic, one.partition): one.offset if one.error is NONE else one.error for one in answer.partitions}

    async def groups(self, **filters):
        answer = await self.admin.send(ListGroupsRequest(**filters))
        return {one.group_id: (one.type, one.state, one.protocol_type) for one in answer.groups}

    async def delete_topic(self, topic="t"):
        return (await self.admin.send(DeleteTopicRequest(name=topic))).error

    async def delete(self, group="g"):
        answer = await self.admin.send(DeleteGroupsRequest(group_ids=(group,)))
        return answer.groups[0].error


@asynccontextmanager
async def world(**fields):
    """A started server with a topic `t` of two partitions."""
    clock = ManualClock()
    made = ClassicWorld(MemoryStorage(clock), clock, ServerConfig.embedded(), replace(CONFIG, **fields))
    await made.start()
    await made.topic("t", 2)
    try:
        yield made
    finally:
        await made.close()


async def refuse() -> None:
    raise StorageError("the disk is full")
