"""A server with a cooperative group `g` on a topic `t`, on a clock that stands still, and its members."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

from flowshare.cooperative.types import HASHES, KeyRange, OffsetRange
from flowshare.groups.types import ClassicConfig
from flowshare.log.memory import MemoryStorage
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CooperativeCommitRequest,
    CooperativeHoldRequest,
    CooperativeOffsetsRequest,
    CooperativeResetRequest,
    CooperativeSettleRequest,
    DeleteTopicRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetToCommit,
)
from flowshare.protocol.messages.cooperative import (
    CommitEntry,
    GroupOffset,
    PartitionCommit,
    WantedKeys,
)
from flowshare.share.config import ServerConfig
from flowshare.testing.clock import ManualClock
from tests.server.classic_world import ClassicWorld

NONE = ErrorCode.NONE
WHOLE = ((0, HASHES),)
LOWER = ((0, HASHES // 2),)
UPPER = ((HASHES // 2, HASHES),)
LEASE_MS = 10_000
SWEEP = ClassicConfig(offsets_retention_minutes=1, retention_check_interval_ms=1_000)


class Member:
    """One member; every method says what the server answered. send: how requests reach it."""

    def __init__(self, send, name: str, topic_id: UUID, *, group: str = "g") -> None:
        self.send = send
        self.name = name
        self.topic_id = topic_id
        self.group = group
        self.lease_ms = LEASE_MS
        self.sequence = 0
        self.generation = 1
        self.epochs: dict[int, int] = {}
        """E of each partition, as it was told last."""
        self.held: dict[int, tuple] = {}
        """Claim of the member in each partition: (first, end, epoch)."""

    async def asks(self, wanted=None, *, committed: GroupOffset | None = None, **fields):
        """Hold these keys by partition, and nothing else; the whole answer."""
        self.sequence += 1
        parts = tuple(WantedKeys(self.topic_id, at, tuple(keys), committed) for at, keys in (wanted or {}).items())
        request = CooperativeHoldRequest(
            group_id=self.group,
            member_id=self.name,
            generation=self.generation,
            sequence=self.sequence,
            lease_ms=self.lease_ms,
            auto_offset_reset="earliest",
            partitions=parts,
        )
        answer = await self.send(replace(request, **fields))
        for part in answer.partitions:
            if part.error is NONE:
                self.epochs[part.partition] = part.reset_epoch
                self.held[part.partition] = part.held
        return answer

    async def hold(self, keys=WHOLE, *, at: int = 0, **fields):
        """Hold these keys of one partition, and nothing else; what became of it."""
        answer = await self.asks({at: keys}, **fields)
        assert answer.error is NONE, answer.message
        (part,) = answer.partitions
        assert part.error is NONE, part.message
        return part

    async def leaves(self):
        """Hold nothing any more."""
        answer = await self.asks()
        assert answer.error is NONE, answer.message
        self.held = {}

    def entry(self, *ranges, at: int = 0, keys=None, epoch=None) -> CommitEntry:
        """An entry of a commit under the first claim of a partition."""
        first, end, known = self.held[at][0]
        first, end = keys or (first, end)
        return CommitEntry(
            KeyRange(first, end), known if epoch is None else epoch, [OffsetRange(*one) for one in ranges]
        )

    async def commits(self, *entries, at: int = 0, reset_epoch=None):
        """Commit entries of one partition; the answer for it."""
        known = self.epochs[at] if reset_epoch is None else reset_epoch
        part = PartitionCommit(self.topic_id, at, known, tuple(entries))
        request = CooperativeCommitRequest(group_id=self.group, member_id=self.name, partitions=(part,))
        answer = await self.send(request)
        assert answer.error is NONE, answer.message
        (told,) = answer.partitions
        return told

    async def commit(self, *ranges, at: int = 0, **fields):
        """Commit offsets under the first claim; what is committed then: (S, count of ranges, M)."""
        told = await self.commits(self.entry(*ranges, at=at, **fields), at=at)
        assert told.error is NONE, told.message
        assert not told.fenced
        return told.stable, told.count, told.furthest

    async def settles(self, entries, *outputs, at: int = 0, **fields):
        """Commit entries of one partition with outputs; the answer."""
        request = CooperativeSettleRequest(
            group_id=self.group,
            member_id=self.name,
            topic_id=self.topic_id,
            partition=at,
            reset_epoch=self.epochs[at],
            entries=tuple(entries),
            outputs=outputs,
            generation=self.generation,
        )
        return await self.send(replace(request, **fields))

    async def settle(self, *ranges, output=None, at: int = 0, **fields):
        """Commit offsets under the first claim with an output, or none; the answer."""
        outputs = () if output is None else (output,)
        return await self.settles([self.entry(*ranges, at=at)], *outputs, at=at, **fields)


class CooperativeWorld(ClassicWorld):
    """A server, and short ways to ask it."""

    topic_id: UUID

    def member(self, name: str, *, group: str = "g", host: str = "10.0.0.1") -> Member:
        """A member with a connection of its own."""
        connection = self.server.connect(client_id=name, host=host)
        made = Member(connection.send, name, self.topic_id, group=group)
        made.connection = connection
        return made

    def again(self, member: Member) -> Member:
        """The same member, connected to the server of now."""
        member.send = self.server.connect(client_id=member.name, host="10.0.0.1").send
        return member

    async def told(self, partition: int = 0, *, group: str = "g", ranges: bool = True, topic: str = "t"):
        """Return a tool's view of one partition; None: there is none."""
        request = CooperativeOffsetsRequest(
            group_id=group, topics={topic: (partition,)}, ranges_from=0 if ranges else None
        )
        answer = await self.admin.send(request)
        assert answer.error is NONE, answer.message
        return answer.partitions[0] if answer.partitions else None

    async def state(self, partition: int = 0, *, group: str = "g"):
        """S and R of one partition."""
        told = await self.told(partition, group=group)
        assert told.error is NONE, told.message
        return told.stable, [tuple(one) for one in told.ranges.pairs()]

    async def offset(self, partition: int = 0, *, group: str = "g", topic: str = "t"):
        """The group's ordinary committed offset and its metadata."""
        asked = OffsetFetchRequest(group_id=group, partitions=((topic, partition),))
        answer = await self.admin.send(asked)
        (found,) = answer.partitions
        return found.offset, found.metadata

    async def set_offset(self, offset: int, *, group: str = "g", partition: int = 0, metadata: str = ""):
        """As an administrator's tool does."""
        request = OffsetCommitRequest(group_id=group, offsets=(OffsetToCommit("t", partition, offset, -1, metadata),))
        answer = await self.admin.send(request)
        assert answer.partitions[0].error is NONE, answer

    async def remake_topic(self, records: int) -> None:
        """Delete the topic and make another one of its name; members that are made from now on know that one."""
        deleted = await self.admin.send(DeleteTopicRequest(name="t"))
        assert deleted.error is NONE, deleted.message
        self.topic_id = await self.topic()
        await self.produce(records)

    async def reset(self, offset: int, *, partition: int = 0, group: str = "g"):
        """flowshare's own reset."""
        return await self.admin.send(
            CooperativeResetRequest(group_id=group, topic="t", partition=partition, offset=offset)
        )

    async def stored(self, group: str | None = None) -> list[bytes]:
        """Store keys of cooperative state."""
        found = [name for name, _ in await self.storage.scan(b"k/")]
        return [name for name in found if group is None or group.encode() in name]


@asynccontextmanager
async def cooperative(records: int = 100, *, partitions: int = 1, classic: ClassicConfig | None = None):
    """A started server with so many records in each partition of topic `t`."""
    clock = ManualClock()
    world = CooperativeWorld(MemoryStorage(clock), clock, ServerConfig.embedded(), classic or ClassicConfig())
    await world.start()
    world.topic_id = await world.topic(partitions=partitions)
    for partition in range(partitions) if records else ():
        await world.produce(records, partition=partition)
    try:
        yield world
    finally:
        await world.close()
