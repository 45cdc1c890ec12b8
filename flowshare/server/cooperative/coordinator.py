"""All cooperative groups of a server that anybody asks for: loaded at their first request, dropped when idle.

A group has one writer and an owner for each partition that is in use. State is read while the group is locked
(`beside`), so nobody deletes or writes it meanwhile. One task ends the leases that are over, of all groups.

    (stored, or not) ──first request──→ loading ──→ loaded ──nobody holds or waits, `IDLE_MS`──→ (stored)
    loaded ──its committed offset or the group is deleted, expires; another worker leads it──→ closed, asked again
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.cooperative import stored
from flowshare.cooperative.partition import CooperativePartition, PartitionState
from flowshare.core_errors import CoordinatorNotAvailable, FencedMemberEpoch, InvalidRequest, OffsetOutOfRange
from flowshare.log.base import SettlesApart
from flowshare.protocol.messages.cooperative import is_stable, offset_of
from flowshare.server.cooperative.beside import NEW_BYTES, StableOffset
from flowshare.server.cooperative.owner import PARTITION_BYTES, PartitionOwner, mirror
from flowshare.server.cooperative.store import (
    PartitionKey,
    deletes_of,
    group_prefix,
    key_of,
    read,
    removal,
    writes_of,
)
from flowshare.server.cooperative.writing import GroupWriter
from flowshare.server.runtime.coordinator import CoordinatorRuntime
from flowshare.share.settings import duration_ms
from flowshare.slots.placement import COOPERATIVE_PREFIX

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from flowshare.clock import Clock
    from flowshare.log.base import LogOffsets, Storage, Topic
    from flowshare.protocol.messages.cooperative import GroupOffset
    from flowshare.server.cooperative.beside import Beside
    from flowshare.server.cooperative.stats import Stats
    from flowshare.server.cooperative.store import Stored
    from flowshare.server.runtime.budget import StateBudget
    from flowshare.server.runtime.topic_index import TopicIndex

logger = logging.getLogger(__name__)

IDLE_MS: Final = 60_000
"""How long a partition stays in memory that nobody uses."""
LAPSE_MS: Final = 50
"""Leases that end within this time of each other are ended together."""
MEMBERS_MAX: Final = 10_000
"""Members of one group that are known here."""
MEMBER_BYTES: Final = 300
FROM_START: Final = ("earliest", "none")
"""auto.offset.reset by which a partition that was added begins no other way than those that were there."""
Place = tuple["uuid.UUID", int]


class Begin(NamedTuple):
    """Where a partition begins that has no state yet: auto.offset.reset, and what the member says is committed."""

    reset: str
    committed: GroupOffset | None = None


class Peeked(NamedTuple):
    """The state of a partition, and its owner if it is loaded: then it shows what is not durable yet, too."""

    state: PartitionState
    owner: PartitionOwner | None


@dataclass(slots=True)
class Group:
    """One group: its owners by topic id and partition, and its members' last sequences, until when they count."""

    group_id: str
    writer: GroupWriter
    owners: dict[Place, PartitionOwner] = field(default_factory=dict[Place, PartitionOwner])
    loading: dict[Place, asyncio.Task[PartitionOwner | None]] = field(
        default_factory=dict[Place, "asyncio.Task[PartitionOwner | None]"]
    )
    members: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    used_ms: int = 0
    """When it was asked for last."""

    @property
    def size(self) -> int:
        """About the bytes that it takes in memory."""
        return MEMBER_BYTES * len(self.members) + sum(owner.size for owner in self.owners.values())

    def called(self, member: str, sequence: int, until_ms: int, now_ms: int) -> None:
        """A member says what it wants to hold. Raises: FencedMemberEpoch (a later call of it came before)."""
        last, counts_until_ms = self.members.get(member, (-1, 0))
        if sequence < last and now_ms < counts_until_ms:
            raise FencedMemberEpoch(f"member {member} has asked with sequence {last} since: this is too late")
        if last < 0 and len(self.members) >= MEMBERS_MAX:
            raise InvalidRequest(f"group {self.group_id} has {MEMBERS_MAX} members here; a group has no more")
        self.members[member] = sequence, until_ms


class CooperativeGroups:
    """The cooperative groups of a server.

    beside: their ordinary offsets. check: whether a group is this server's. exists: looks for a topic that is not known
    here. follow, unfollow: of a log whose bounds are not known otherwise. ends_known: whether a log's end, as it is
    known here, is where it ends.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        topics: TopicIndex,
        clock: Clock,
        beside: Beside,
        budget: StateBudget,
        stats: Stats,
        groups_max: int,
        check: Callable[[str], None] = lambda _: None,
        exists: Callable[[uuid.UUID], Awaitable[bool]] | None = None,
        follow: Callable[[str, int], Awaitable[None]] | None = None,
        unfollow: Callable[[str, int], None] | None = None,
        ends_known: bool = True,
    ) -> None:
        self.topics = topics
        self.clock = clock
        self.stats = stats
        self._storage = storage
        self._beside = beside
        self._groups_max = groups_max
        self._check = check
        self._exists = exists
        self._follow = follow
        self._unfollow = unfollow
        self._ends_known = ends_known
        self._last_epoch = 0
        """Of a partition that began: one that was deleted and begins again in the same millisecond has a larger one."""
        self._by_log: dict[tuple[str, int], dict[PartitionOwner, None]] = {}
        self._runtime = CoordinatorRuntime[Group](
            "cooperative groups", limit="group.max.groups", clock=clock, budget=budget, size_of=lambda one: one.size
        )
        self.groups = self._runtime.entries
        self.take = self._runtime.take
        self.checked = storage.checked

    def start(self) -> None:
        """Begin to end leases; state is read when it is asked for."""
        self._runtime.start(self._expire, self._next_ms)

    async def close(self) -> None:
        """Write what is queued, and stop."""
        await self._runtime.close(self._close_owners)
        self._close_owners()

    def _close_owners(self) -> None:
        for group in self.groups.values():
            for owner in group.owners.values():
                owner.close()

    # --- finding ------------------------------------------------------------------------------------------------

    def check(self, group_id: str) -> None:
        """Check that a group can be worked with here. Raises: CoreError, Refused."""
        self._check(group_id)
        self._beside.check(group_id)

    def find(self, group_id: str, party: str | None) -> Group:
        """The group, whether it has state or not. party: who asks. Raises: CoreError, Refused."""
        self.check(group_id)
        now_ms = self.clock.steady_ms()
        known = self.groups.get(group_id)
        if known is not None:
            known.used_ms = now_ms
            return known
        writer = GroupWriter(group_id, self._beside, run=self._runtime.spawn, stats=self.stats, clock=self.clock)
        group = self._runtime.make(group_id, lambda: Group(group_id, writer, used_ms=now_ms), party, self._groups_max)
        self._runtime.expect(now_ms + IDLE_MS)
        return group

    async def topic(self, place: Place) -> Topic:
        """The topic of a partition. Raises: UnknownTopicId, UnknownTopicOrPartition, LogError."""
        if self._exists is not None and self.topics.by_id(place[0]) is None:
            await self._exists(place[0])
        return self.topics.find(*place)

    async def open(self, group: Group, place: Place, party: str | None, begin: Begin | None) -> PartitionOwner | None:
        """The owner of a partition, loaded if need be. begin: where it begins if nothing is stored; None: it does not,
        and None is returned then.

        Raises: UnknownTopicId, UnknownTopicOrPartition, OffsetOutOfRange, StateCorrupt, CoreError, LogError, Refused.
        """
        owner = group.owners.get(place)
        if owner is None:
            owner = await self._loaded(group, place, party, begin)
        if owner is None and begin is not None:  # another load, which was not to make it, was shared
            owner = await self._loaded(group, place, party, begin)
        if owner is not None and begin is not None and self._is_deleted(owner, begin):
            self._drop(group, [owner])
            return await self._loaded(group, place, party, begin, anew=True)
        return owner

    async def peek(self, group_id: str, place: Place) -> Peeked | None:
        """The state of a partition, for a look at it: nothing is kept of it.

        Raises: StateCorrupt, LogError; NotDecided: what was settled may or may not be committed.
        """
        owner = self._owner(group_id, place)
        if owner is None and isinstance(self._storage, SettlesApart):
            async with self._beside.locked(group_id, None):  # else another one loads, and writes it
                owner = self._owner(group_id, place)
                if owner is None:
                    await self._storage.decided(PartitionKey(group_id, *place).prefix)
        if owner is not None:
            partition = owner.partition
            return Peeked(
                PartitionState(partition.offsets, partition.claims, partition.pending, partition.attempts),
                owner,
            )
        found = await read(self._storage, PartitionKey(group_id, *place))
        loaded = stored.load(found.entries, now_ms=self.clock.steady_ms())
        return None if loaded is None else Peeked(loaded.state, None)

    def _owner(self, group_id: str, place: Place) -> PartitionOwner | None:
        group = self.groups.get(group_id)
        owner = None if group is None else group.owners.get(place)
        return None if owner is None or owner.closed else owner

    def in_use(self, group_id: str, place: Place) -> bool:
        """True if a member holds something of a partition that is loaded here."""
        owner = self._owner(group_id, place)
        return owner is not None and owner.partition.in_use

    async def places(self, group_id: str) -> set[Place]:
        """The partitions that a group has state of. Raises: LogError."""
        entries = await self._storage.scan(group_prefix(group_id))
        return {key_of(name)[1:] for name, _ in entries}

    async def bounds(self, topic: str, partition: int) -> LogOffsets:
        """Of any partition's log. Raises: LogError."""
        return await self._storage.bounds(topic, partition)

    # --- letting go ---------------------------------------------------------------------------------------------

    def forget(self, group_id: str, partitions: Collection[Place] | None) -> None:
        """The state of a group, or of these partitions of it, is being deleted."""
        group = self.groups.get(group_id)
        if group is not None:
            self._drop(group, [o for place, o in group.owners.items() if partitions is None or place in partitions])

    async def delete(self, group_id: str, partitions: Collection[Place] | None = None) -> None:
        """Delete the state of a group whose offsets are another server's. Raises: LogError."""
        async with self._beside.locked(group_id, None):
            self.forget(group_id, partitions)
            await self._storage.write(await removal(self._storage, group_id, partitions))

    async def delete_asked(self, group_id: str, partitions: Collection[Place] | None) -> None:
        """Delete a group, or its state of these partitions, because a tool asks for it. Nobody may hold anything.

        Raises: NonEmptyGroup, GroupIdNotFound, CoreError, LogError.
        """
        group = self.groups.get(group_id)
        for place, owner in () if group is None else tuple(group.owners.items()):
            if partitions is None or place in partitions:
                owner.lapse(self.clock.steady_ms())
                owner.partition.check_unused()
        if not self._beside.exact:
            await self.delete(group_id, partitions)
        elif partitions is None:  # else it went with the committed offsets
            await self._beside.delete(group_id)

    async def topic_gone(self, topic_id: uuid.UUID) -> None:
        """Delete what groups, whose offsets are another server's, have of a topic that is gone. Raises: LogError."""
        keys = {key_of(name) for name, _ in await self._storage.scan(COOPERATIVE_PREFIX)}
        for key in keys:
            if key.topic_id == topic_id:
                await self.delete(key.group_id, (key[1:],))

    def lay_down(self, mine: Callable[[str], bool]) -> None:
        """Another server coordinates these groups from now on; who waits for an answer asks there."""
        for group_id in [one for one in self.groups if mine(one)]:
            group = self.groups.pop(group_id)
            self._drop(group, list(group.owners.values()))

    def cut(self, topic: str, partition: int, end: int) -> None:
        """A log lost its end."""
        for owner in tuple(self._by_log.get((topic, partition), ())):
            owner.cut(end)

    def figures(self) -> dict[str, Any]:
        """Counters, and gauges of each partition that is in memory."""
        now_ms = self.clock.steady_ms()
        owners = [owner for group in self.groups.values() for owner in group.owners.values()]
        return {
            **self.stats.copy(),
            "partitions": [
                {
                    "group": owner.key.group_id,
                    "topic": owner.topic.name,
                    "partition": owner.key.partition,
                    "stable": owner.partition.offsets.stable,
                    "ranges": owner.partition.offsets.count,
                    "span": owner.partition.offsets.span,
                    "claims": len(owner.partition.claims.state.claims),
                    "unowned": owner.partition.claims.unowned if owner.partition.claims else 0,
                    "blocked_ms": owner.partition.claims.waiting_ms(now_ms),
                }
                for owner in owners
            ],
        }

    # --- loading ------------------------------------------------------------------------------------------------

    def _is_deleted(self, owner: PartitionOwner, begin: Begin) -> bool:
        """True if the group, whose offsets are Kafka's, was deleted in Kafka after a member had committed an offset."""
        said = begin.committed
        gone = not self._beside.exact and said is not None and said.offset < 0 and owner.seen
        owner.lapse(self.clock.steady_ms())
        return gone and owner.idle

    async def _loaded(
        self, group: Group, place: Place, party: str | None, begin: Begin | None, *, anew: bool = False
    ) -> PartitionOwner | None:
        task = group.loading.get(place)
        if task is None:
            self.topics.find(*place)
            if begin is not None:
                self.take(party, PARTITION_BYTES + NEW_BYTES)
            task = self._runtime.spawn(self._load(group, place, party, begin, anew=anew))
            group.loading[place] = task
            task.add_done_callback(lambda done: self._over(group, place, done))
        # Shielded: others wait for the same load, and whoever asked first may go away.
        return await asyncio.shield(task)

    async def _load(
        self, group: Group, place: Place, party: str | None, begin: Begin | None, *, anew: bool
    ) -> PartitionOwner | None:
        topic = self.topics.find(*place)
        began_s = self.clock.monotonic()
        if self._follow is not None:
            await self._follow(topic.name, place[1])
        there = False
        try:
            async with self._beside.locked(group.group_id, party):
                owner = await self._make(group, place, topic, begin, party, anew=anew)
                self._check_same(group)
                if owner is None:
                    return None
                there = True
                group.owners[place] = owner
                self._by_log.setdefault((topic.name, place[1]), {})[owner] = None
                self.stats.loads += 1
                self.stats.load_s.add(self.clock.monotonic() - began_s)
        finally:
            if not there and self._unfollow is not None:
                self._unfollow(topic.name, place[1])
        self._runtime.expect(owner.partition.next_deadline_ms())
        return owner

    def _check_same(self, group: Group) -> None:
        """Raises: CoordinatorNotAvailable, when the group was laid down; taken up anew, it is another."""
        if self.groups.get(group.group_id) is not group:
            raise CoordinatorNotAvailable(f"group {group.group_id} is served elsewhere from now on; try again")

    async def _make(
        self, group: Group, place: Place, topic: Topic, begin: Begin | None, party: str | None, *, anew: bool
    ) -> PartitionOwner | None:
        """The group is locked."""
        key = PartitionKey(group.group_id, *place)
        if isinstance(self._storage, SettlesApart):
            await self._storage.decided(key.prefix)
        found = await read(self._storage, key)
        there = self._beside.committed(group.group_id, topic, place[1])
        loaded = stored.load(found.entries, now_ms=self.clock.steady_ms())
        left_over = self._beside.exact and there is None
        seen = found.seen and not anew
        if loaded is not None and not anew and not left_over:
            if loaded.unreadable:
                logger.error("%d committed ranges cannot be read, their records come again: %s", loaded.unreadable, key)
            if loaded.repair:
                self._check_same(group)
                await self._beside.write(group.group_id, writes_of(key.prefix, loaded.repair), [])
            partition = CooperativePartition(loaded.state)
        elif begin is None:
            return None
        else:
            partition = await self._begin(group, key, topic, begin, found, party)
        return PartitionOwner(
            key,
            topic,
            partition,
            writer=group.writer,
            beside=self._beside,
            log=self._storage,
            clock=self.clock,
            stats=self.stats,
            ends_known=self._ends_known,
            seen=seen,
            run=self._runtime.spawn,
        )

    async def _begin(
        self, group: Group, key: PartitionKey, topic: Topic, begin: Begin, left: Stored, party: str | None
    ) -> CooperativePartition:
        """The first state of a partition, written in place of what is left over of another one."""
        stable = await self._begin_at(key, topic, begin)
        others = await self._beside_first(key, topic, begin)
        self._check_same(group)  # else what others wrote since would be lost
        self.take(party, NEW_BYTES * len(others))
        self._last_epoch = max(self.clock.now_ms(), self._last_epoch + 1)
        partition = CooperativePartition.new(stable, reset_epoch=self._last_epoch)
        writes: dict[bytes, bytes | None] = dict(deletes_of(key.prefix, left))
        writes.update(writes_of(key.prefix, partition.snapshot()))
        progress = partition.progress
        moved = [
            StableOffset(topic, number, mirror(topic, offset, progress.reset_epoch))
            for number, offset in {key.partition: progress.stable, **others}.items()
        ]
        await self._beside.write(key.group_id, list(writes.items()), moved)
        return partition

    async def _beside_first(self, key: PartitionKey, topic: Topic, begin: Begin) -> dict[int, int]:
        """Where the topic's other partitions begin, when a group begins with its first one, by partition.

        Only for a group that does not begin at the log's start: one that is not among them was added later.
        """
        if not self._beside.exact or begin.reset in FROM_START or self._reads(key.group_id, topic):
            return {}
        free = [
            number
            for number in range(topic.partitions)
            if number != key.partition and self._beside.committed(key.group_id, topic, number) is None
        ]
        return {number: await self._by_reset(key, topic, number, begin.reset) for number in free}

    def _reads(self, group_id: str, topic: Topic) -> bool:
        """True if the group has begun with a partition of the topic."""
        there = (self._beside.committed(group_id, topic, number) for number in range(topic.partitions))
        return any(is_stable(topic.topic_id, one) for one in there if one is not None)

    async def _begin_at(self, key: PartitionKey, topic: Topic, begin: Begin) -> int:
        """Return the offset where the group begins: its ordinary committed offset, or the one by auto.offset.reset.
        Raises: OffsetOutOfRange."""
        bounds = await self._storage.bounds(topic.name, key.partition)
        there = self._beside.committed(key.group_id, topic, key.partition) if self._beside.exact else begin.committed
        if there is None and not self._beside.exact:
            raise InvalidRequest("say what is committed for the group: this server does not keep its offsets")
        if there is None and begin.reset not in FROM_START and self._reads(key.group_id, topic):
            return bounds.log_start  # added since: what came before the members heard of it is theirs, too
        there = None if there is None else offset_of(key.topic_id, there)
        if there is not None and 0 <= there.offset <= bounds.high_watermark:
            return max(there.offset, bounds.log_start)
        return await self._by_reset(key, topic, key.partition, begin.reset)

    async def _by_reset(self, key: PartitionKey, topic: Topic, partition: int, reset: str) -> int:
        """Where a partition begins of which nothing is committed, as auto.offset.reset says. Raises: OffsetOutOfRange,
        InvalidRequest."""
        bounds = await self._storage.bounds(topic.name, partition)
        strategy, _, duration = reset.partition(":")
        match strategy:
            case "earliest":
                return bounds.log_start
            case "latest":
                return bounds.high_watermark
            case "by_duration":
                since_ms = self.clock.now_ms() - duration_ms(duration)
                at = await self._storage.offset_for_timestamp(topic.name, partition, since_ms)
                return bounds.high_watermark if at is None else at[0]
            case "none":
                raise OffsetOutOfRange(
                    f"group {key.group_id} has committed nothing of {topic.name}-{partition} that its log still "
                    "has, and auto.offset.reset is none: commit an offset, or choose earliest or latest"
                )
            case _:
                raise InvalidRequest(
                    f"auto.offset.reset is earliest, latest, none or by_duration:<ISO-8601 duration>, not {strategy!r}"
                )

    # --- time ---------------------------------------------------------------------------------------------------

    def expect(self, owners: Iterable[PartitionOwner]) -> None:
        """Leases of these may end before anything that is waited for."""
        dues = [due for owner in owners if (due := owner.partition.next_deadline_ms()) is not None]
        self._runtime.expect(min(dues, default=None))

    def _next_ms(self) -> int | None:
        dues: list[int] = []
        for group in self.groups.values():
            dues.append(self.clock.steady_ms() + IDLE_MS)
            for owner in group.owners.values():
                due_ms = owner.partition.next_deadline_ms()
                if due_ms is not None:
                    dues.append(due_ms + LAPSE_MS)
        return min(dues, default=None)

    async def _expire(self, _: int = 0) -> None:
        """End what is over, and let go of what is idle."""
        now_ms = self.clock.steady_ms()
        for group_id, group in tuple(self.groups.items()):
            for owner in group.owners.values():
                owner.lapse(now_ms)
            idle = [one for one in group.owners.values() if one.idle and one.used_ms + IDLE_MS <= now_ms]
            self._drop(group, idle)
            for name in [name for name, (_, until_ms) in group.members.items() if until_ms <= now_ms]:
                del group.members[name]
            in_use = group.owners or group.loading or group.members or group.writer.busy
            if not in_use and group.used_ms + IDLE_MS <= now_ms:
                del self.groups[group_id]

    # --- inside -------------------------------------------------------------------------------------------------

    @staticmethod
    def _over(group: Group, place: Place, task: asyncio.Task[PartitionOwner | None]) -> None:
        group.loading.pop(place, None)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone

    def _drop(self, group: Group, owners: Sequence[PartitionOwner]) -> None:
        for owner in owners:
            owner.close()
            group.writer.drop(owner)
            group.owners.pop(owner.key[1:], None)
            at = owner.topic.name, owner.key.partition
            same_log = self._by_log.get(at, {})
            same_log.pop(owner, None)
            if not same_log:
                self._by_log.pop(at, None)
            if self._unfollow is not None:
                self._unfollow(*at)
