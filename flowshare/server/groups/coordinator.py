"""Consumer groups of both protocols: all of them in memory, written before anybody is told, watched by one task.

The rules are in `groups`. Here: finding a request's group, writing a step's result, deleting groups, removing the
offsets of deleted topics, and members' timeouts; `server.groups.waiting` has joins and syncs that wait for the other
members, `server.groups.sweep` removes expired offsets. A closed connection removes no member: the member's session
times out.

A group without members changes its protocol with the first member that joins by the other one; its offsets stay, its
epochs go on from its generation and the other way round. Members of both at once are refused.

A group's decisions about offsets are made, written and applied one after another, under the lock of its `GroupEntry`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowshare.clock import ahead_ms
from flowshare.core_errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InconsistentGroupProtocol,
    InvalidGroupId,
    StateCorrupt,
    UnknownMemberId,
)
from flowshare.groups.consumer_group import ConsumerGroup
from flowshare.groups.group import ClassicGroup
from flowshare.groups.offsets import TransactionalProducer
from flowshare.groups.stored import ClassicGroupState
from flowshare.log.base import LogError, OutputRefused
from flowshare.server.groups import sweep
from flowshare.server.groups.entry import GroupEntry
from flowshare.server.groups.store import (
    consumer_key,
    consumer_writes,
    everything_of,
    group_key,
    group_removal,
    load,
    offset_write,
)
from flowshare.server.groups.waiting import WaitingRequests, refused
from flowshare.server.runtime.answers import turns
from flowshare.server.runtime.coordinator import LATE_MS, PUT_OFF_MS, RETRY_MS, CoordinatorRuntime, Damage
from flowshare.server.runtime.state import GROUP_ID_BYTES_MAX
from flowshare.server.runtime.turns import Turns

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from flowshare.clock import Clock
    from flowshare.groups.offsets import Committed, OffsetChange
    from flowshare.groups.types import ClassicConfig, GroupStep
    from flowshare.log.base import CheckedOutput, Storage
    from flowshare.protocol.messages import ListedGroup
    from flowshare.server.groups.configs import ConsumerGroupConfigs
    from flowshare.server.groups.store import StoredGroup
    from flowshare.server.runtime.budget import StateBudget
    from flowshare.server.runtime.state import Write
    from flowshare.server.runtime.topic_index import TopicIndex

logger = logging.getLogger(__name__)

Gone = Sequence[tuple["uuid.UUID", int]] | None
"""Partitions, by topic id, whose committed offsets go; None: the whole group goes."""


class ConsumerGroups:
    """All consumer groups of a server."""

    def __init__(
        self,
        *,
        storage: Storage,
        topics: TopicIndex,
        clock: Clock,
        config: ClassicConfig,
        configs: ConsumerGroupConfigs,
        is_share_group: Callable[[str], bool],
        budget: StateBudget,
    ) -> None:
        """config: of classic groups, and the limits of all groups; configs: of groups of the consumer protocol.

        budget: bytes of all state; the groups' bytes are counted there.
        """
        self.storage = storage
        self.topics = topics
        self.clock = clock
        self.config = config
        self.offsets_expired = 0
        """Committed offsets that expired since the start."""
        self.rebalances = 0
        """Assignments made anew since the start."""
        self.configs = configs
        self.waiting = WaitingRequests()
        self._runtime = CoordinatorRuntime[GroupEntry](
            "consumer groups", limit="group.max.groups", clock=clock, budget=budget, size_of=lambda entry: entry.size
        )
        self.entries = self._runtime.entries
        self.run = self._runtime.run
        self.take = self._runtime.take
        self.is_share_group = is_share_group
        self._damage = Damage()
        self.beside: Callable[[str, Gone], Awaitable[Sequence[Write]]] = _nothing_beside
        """Called when committed offsets of a group go: returns the writes to make in the same step. The group's lock is
        held."""
        self.in_use: Callable[[str, uuid.UUID, int], bool] = _nothing_in_use
        """Returns True if a client, member or not, uses a group's partition: its offset then does not expire."""

    def __contains__(self, group_id: str) -> bool:
        """Return True if the id belongs to a consumer group."""
        return group_id in self.entries or group_id in self._damage

    async def start(self) -> None:
        """Read all groups and begin to watch them; remove offsets of deleted topics. Raises: LogError."""
        now_ms = self.clock.steady_ms()
        self._runtime.loaded()
        await self.configs.start(self._damage)
        for group_id, loaded in (await load(self.storage, self._damage)).items():
            try:
                group = self._loaded(group_id, loaded, now_ms)
            except StateCorrupt as error:
                self._damage.add(group_id, group_key(group_id), f"its members: {error}")
                continue
            self.entries[group_id] = GroupEntry(group, loaded.offsets)
        try:
            await self._forget_topics(lambda topic_id: self.topics.by_id(topic_id) is not None)
        except CoordinatorNotAvailable as error:
            logger.warning("offsets of deleted topics are left for the next start: %s", error)
        self._runtime.start(self._expire, self._next_ms, sweep.run(self))

    def _loaded(self, group_id: str, loaded: StoredGroup, now_ms: int) -> ClassicGroup | ConsumerGroup:
        """Restore a group. Raises: StateCorrupt."""
        if loaded.consumer is not None:
            config = self.configs.acting(group_id)
            return ConsumerGroup(group_id, config=config, stored=loaded.consumer, now_ms=now_ms)
        ahead = ahead_ms(self.clock)
        return ClassicGroup(group_id, config=self.config, state=loaded.state, now_ms=now_ms, ahead_ms=ahead)

    async def close(self) -> None:
        """Stop watching; writes under way are finished."""
        await self._runtime.close()

    # --- finding ------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> GroupEntry:
        """Return the group. Raises: GroupIdNotFound, StateCorrupt (its stored state cannot be read)."""
        self._damage.check(group_id)
        entry = self.entries.get(group_id)
        if entry is None:
            kind = "a share group" if self.is_share_group(group_id) else "unknown"
            raise GroupIdNotFound(f"group {group_id!r} is {kind}, no consumer group")
        return entry

    def find_for_member(self, group_id: str) -> GroupEntry:
        """Return the group that a member names. Raises: UnknownMemberId (the group does not exist), StateCorrupt."""
        try:
            return self.find(group_id)
        except GroupIdNotFound as error:
            raise UnknownMemberId(str(error)) from None

    def find_classic(self, group_id: str) -> tuple[GroupEntry, ClassicGroup]:
        """Return the group that a member of the classic protocol names. Raises: UnknownMemberId, StateCorrupt."""
        entry = self.find_for_member(group_id)
        return entry, entry.classic()

    def join_classic(self, group_id: str, party: str | None, *, known: bool) -> tuple[GroupEntry, ClassicGroup]:
        """Return the group that a member of the classic protocol joins, made if the member is not known yet.

        Raises: as `ensure`, UnknownMemberId, InconsistentGroupProtocol (it has members of the other protocol),
        CoordinatorNotAvailable
        """
        if known:
            return self.find_classic(group_id)
        entry = self.ensure(group_id, party)
        group = entry.group
        if isinstance(group, ClassicGroup):
            return entry, group
        if not group.empty:
            raise InconsistentGroupProtocol(
                f"group {group_id} has {len(group.members)} members with group.protocol=consumer, and this one has "
                "classic; stop them first, or join as they do"
            )
        if entry.members_lock.locked():
            raise CoordinatorNotAvailable(f"group {group_id} is being written; try again")
        entry.outdated = [(consumer_key(group_id, name), None) for name in ("", *group.unwritten())]
        state = ClassicGroupState(generation=group.group_epoch)
        made = entry.group = ClassicGroup(group_id, config=self.config, state=state, now_ms=self.clock.steady_ms())
        entry.heard.clear()
        return entry, made

    def find_consumer(self, group_id: str) -> tuple[GroupEntry, ConsumerGroup]:
        """Return the group of the consumer protocol. Raises: GroupIdNotFound, StateCorrupt."""
        entry = self.find(group_id)
        if not isinstance(entry.group, ConsumerGroup):
            raise GroupIdNotFound(f"group {group_id} is a classic group, none of group.protocol=consumer")
        return entry, entry.group

    def find_consumer_for_member(self, group_id: str) -> tuple[GroupEntry, ConsumerGroup]:
        """Return `find_consumer` for a client that names a member id. Raises: UnknownMemberId, StateCorrupt.

        Kafka answers GROUP_ID_NOT_FOUND, on which a Java client ends; with this error a member that was away for long
        joins again where its group went meanwhile.
        """
        try:
            return self.find_consumer(group_id)
        except GroupIdNotFound as error:
            raise UnknownMemberId(f"{error}; join again with epoch 0") from None

    def join_consumer(self, group_id: str, party: str | None) -> tuple[GroupEntry, ConsumerGroup]:
        """Return the group that a member of the consumer protocol joins, made if it does not exist.

        Raises: GroupIdNotFound (it has members of the other protocol, or is a share group), InvalidGroupId, Refused,
        StateCorrupt, CoordinatorNotAvailable
        """
        try:
            entry = self.ensure(group_id, party)
        except InconsistentGroupProtocol as error:
            raise GroupIdNotFound(str(error)) from None
        group = entry.group
        if isinstance(group, ConsumerGroup):
            return entry, group
        if not group.empty:
            raise GroupIdNotFound(
                f"group {group_id} has members with group.protocol=classic, and this one has consumer; stop them "
                "first, or join as they do"
            )
        if entry.writing:
            raise CoordinatorNotAvailable(f"group {group_id} is being written; try again")
        entry.outdated, entry.unwritten = [(group_key(group_id), None)], None
        config = self.configs.acting(group_id)
        made = entry.group = ConsumerGroup(group_id, config=config, epoch=group.generation)
        return entry, made

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors that members of the consumer protocol may ask for; the first is used where no member asks for
        one."""
        return self.configs.server.assignors

    def configure(self, group_id: str) -> None:
        """Apply a group's changed settings."""
        entry = self.entries.get(group_id)
        if entry is not None and isinstance(entry.group, ConsumerGroup):
            entry.group.config = self.configs.acting(group_id)

    def ensure(self, group_id: str, party: str | None = None) -> GroupEntry:
        """Return the group, made if it does not exist. party: the maker; None: the server's own process.

        Raises: InvalidGroupId, InconsistentGroupProtocol (a share group has this id), Refused (too many groups),
        StateCorrupt
        """
        self._damage.check(group_id)
        entry = self.entries.get(group_id)
        if entry is not None:
            return entry
        if not 0 < len(group_id.encode()) <= GROUP_ID_BYTES_MAX:
            raise InvalidGroupId(f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes")
        if self.is_share_group(group_id):
            raise InconsistentGroupProtocol(f"{group_id!r} is a share group; use another group.id")
        return self._runtime.make(
            group_id, lambda: GroupEntry(ClassicGroup(group_id, config=self.config)), party, self.config.groups_max
        )

    def discard_void(self, entry: GroupEntry) -> None:
        """Remove a group that was made for a request without effect."""
        if entry.void and self.holds(entry):
            entry.group.delete()
            del self.entries[entry.group.group_id]

    def holds(self, entry: GroupEntry) -> bool:
        """Return True if the group still exists: it may have been deleted during a wait for its lock."""
        return self.entries.get(entry.group.group_id) is entry

    async def listed(self, between: Turns) -> tuple[ListedGroup, ...]:
        """Return all consumer groups for ListGroups."""
        return await between.each(lambda entry: entry.listed(), tuple(self.entries.values()))

    def states(self) -> dict[tuple[str, str], int]:
        """Return the number of groups by type and state."""
        return Counter((found.type, found.state) for entry in self.entries.values() if (found := entry.listed()))

    # --- writing ------------------------------------------------------------------------------------------------

    def settle(self, entry: GroupEntry, step: GroupStep) -> asyncio.Future[bool] | None:
        """Carry out a group's step; the future, if there is something to write, says whether it is durable."""
        self.watch(entry)
        self.rebalances += step.assign is not None
        if step.write is None:
            self.waiting.deliver(step.answers)
            return None
        return self.run(self._write_step(entry, entry.classic(), step, step.write))

    def watch(self, entry: GroupEntry) -> None:
        """Watch a group's next deadline, which may be nearer than the present one."""
        self._runtime.expect(entry.group.next_deadline_ms())

    def time_of(self, entry: GroupEntry) -> int:
        """Return the time for a step of a group, in ms, and tell the group how far the machine's clock was set since
        the start."""
        if isinstance(entry.group, ClassicGroup):
            entry.group.ahead_ms = ahead_ms(self.clock)
        return self.clock.steady_ms()

    async def _write_step(self, entry: GroupEntry, group: ClassicGroup, step: GroupStep, data: bytes) -> bool:
        try:
            await self._write_group(entry, data)
        except LogError as error:
            logger.warning("group could not be written: %s group=%s", error, entry.group.group_id)
            self.waiting.deliver(refused(step.answers))
            if step.assign is not None:
                if entry.unwritten is data:  # else a later state is still to be written
                    entry.unwritten = None
                self.settle(entry, group.not_assigned(step.assign, self.time_of(entry)))
            else:
                self._runtime.wake()
            return False
        self.waiting.deliver(step.answers)
        if step.assign is not None:
            self.settle(entry, group.assigned(step.assign, self.time_of(entry)))
        return True

    async def _write_group(self, entry: GroupEntry, data: bytes) -> None:
        entry.unwritten = data
        entry.writing += 1
        outdated = entry.outdated
        try:
            await self.storage.write([*outdated, (group_key(entry.group.group_id), data)])
        finally:
            entry.writing -= 1
        if entry.unwritten is data:
            entry.unwritten = None
        if entry.outdated is outdated:
            entry.outdated = []

    async def write_members(self, entry: GroupEntry, group: ConsumerGroup) -> None:
        """Write a consumer-protocol group's unwritten changes, and end all waits for that write.

        Raises: LogError
        """
        async with entry.members_lock:
            # Deleted, or of the other protocol by now: then the group had no members, and nobody is told anything.
            if entry.group is not group or not self.holds(entry):
                return
            changes, outdated = group.unwritten(), entry.outdated
            if not changes:
                return
            try:
                await self.storage.write([*outdated, *consumer_writes(group.group_id, changes)])
            except BaseException:
                group.not_written(changes)
                self._runtime.expect(self.clock.steady_ms() + RETRY_MS)
                raise
            entry.outdated = []

    async def write_offsets(
        self,
        entry: GroupEntry,
        changes: Iterable[OffsetChange],
        check: Callable[[], None] = lambda: None,
        beside: Sequence[Write] = (),
        outputs: Sequence[CheckedOutput] = (),
    ) -> None:
        """Write and apply decided changes of offsets; the caller holds the entry's lock.

        Other tasks run while the bytes are made. check: called last before the write; raises an objection that has come
        up. beside, outputs: written in one piece with the offsets.

        Raises: CoordinatorNotAvailable, OutputRefused, errors that `check` raises
        """
        decided, writes = await self._encoded(entry, changes)
        writes += beside
        if gone := entry.gone(decided):
            writes += await self.beside(entry.group.group_id, gone)
        if not self.holds(entry):
            raise CoordinatorNotAvailable(f"group {entry.group.group_id} was deleted meanwhile; try again")
        check()
        if not writes:
            return
        try:
            await (self.storage.settle(outputs, writes) if outputs else self.storage.write(writes))
        except OutputRefused:
            raise
        except LogError as error:
            entry.offsets.doubt(decided)
            raise CoordinatorNotAvailable(
                f"offsets of group {entry.group.group_id} could not be written: {error}"
            ) from error
        entry.offsets.apply(decided)

    async def _encoded(
        self, entry: GroupEntry, changes: Iterable[OffsetChange]
    ) -> tuple[list[OffsetChange], list[Write]]:
        decided: list[OffsetChange] = []
        writes: list[Write] = []
        async for some in turns(self.clock).few(changes):
            decided += some
            writes += (offset_write(entry.group.group_id, one) for one in some)
        return decided, writes

    # --- administration -----------------------------------------------------------------------------------------

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, with its offsets; to the end, even if the caller gives up.

        Raises: GroupIdNotFound, NonEmptyGroup, LogError
        """
        if group_id in self._damage:
            await self.run(self._delete_damaged(group_id))
            return
        entry = self.find(group_id)
        entry.group.require_empty()
        await self.run(self._delete(entry))

    async def _delete_damaged(self, group_id: str) -> None:
        """Delete everything that is stored of a group that cannot be read. Raises: GroupIdNotFound, LogError."""
        beside = await self.beside(group_id, None)
        everything = await everything_of(self.storage, group_id)
        if group_id not in self._damage:  # else what was stored of a new group meanwhile would go
            raise GroupIdNotFound(f"group {group_id!r} was deleted meanwhile")
        damaged = [(key, None) for key in self._damage.keys(group_id)]
        await self.storage.write([*everything, *damaged, *beside])
        self._damage.forget(group_id)

    async def _delete(self, entry: GroupEntry) -> None:
        async with entry.lock:
            await self.delete_locked(entry)

    async def delete_locked(self, entry: GroupEntry) -> None:
        """Delete a group; the caller holds the entry's lock. Raises: GroupIdNotFound, NonEmptyGroup, LogError."""
        group_id = entry.group.group_id
        beside = await self.beside(group_id, None) if entry.offsets else ()
        # Nothing is awaited from the end of `_encoded` to the write: a group made anew is written behind it.
        _, offsets = await self._encoded(entry, entry.offsets.clear())
        if not self.holds(entry):
            raise GroupIdNotFound(f"group {group_id!r} was deleted meanwhile")
        group = entry.group
        group.delete()
        del self.entries[group_id]  # first: a member that joins from now on makes a new group
        left = group.unwritten() if isinstance(group, ConsumerGroup) else {}
        try:
            await self.storage.write([*entry.outdated, *group_removal(group_id, left), *offsets, *beside])
        except LogError:
            again = group.revive(left) if isinstance(group, ConsumerGroup) else self._revived(group)
            self.entries.setdefault(group_id, GroupEntry(again, entry.offsets, outdated=entry.outdated))
            raise

    def _revived(self, group: ClassicGroup) -> ClassicGroup:
        return ClassicGroup(group.group_id, config=self.config, state=group.durable())

    async def topic_deleted(self, topic_id: uuid.UUID) -> None:
        """Remove the offsets of a deleted topic in all groups. Raises: CoordinatorNotAvailable, LogError."""
        await self.run(self._forget_topics(lambda one: one != topic_id))

    async def _forget_topics(self, exists: Callable[[uuid.UUID], bool]) -> None:
        between = Turns(self.clock)
        failed: list[CoordinatorNotAvailable | LogError] = []
        for entry in tuple(self.entries.values()):
            await between.take(1 + len(entry.offsets.committed))
            try:
                async with entry.lock:
                    if self.holds(entry):
                        await self.write_offsets(entry, entry.offsets.forget_topics(exists))
            except (CoordinatorNotAvailable, LogError) as error:
                failed.append(error)  # one group's failure leaves no other one's offsets behind
        if failed:
            raise failed[0]

    def counts(self, partition: tuple[str, int], value: Committed) -> bool:
        """Return True if an offset belongs to the present topic: it may still be there when its topic is gone, and
        another topic of that name begins without offsets."""
        topic = self.topics.by_name(partition[0])
        return topic is not None and topic.topic_id == value.topic_id

    async def complete_transaction(
        self, group_ids: Iterable[str], producer_id: int, producer_epoch: int, committed: bool
    ) -> None:
        """Complete an ended transaction: its offsets count from now on if committed, else they are dropped. May be
        repeated.

        Raises: CoordinatorNotAvailable (could not be written; try again)
        """
        producer = TransactionalProducer(producer_id, producer_epoch)
        for group_id in group_ids:
            entry = self.entries.get(group_id)
            if entry is not None:
                await self.run(self._complete(entry, producer, committed=committed))

    async def drop_ended(self, open_in_groups: Collection[tuple[int, str]]) -> None:
        """Drop the offsets of transactions that are over: a group that was passed over at their end has them still.

        Call it at the start, before any request. open_in_groups: producer and group ids of all transactions that are
        open, or being ended.
        """
        for group_id, entry in tuple(self.entries.items()):
            for producer in entry.offsets.producers:
                if (producer.producer_id, group_id) in open_in_groups:
                    continue
                over = f"offsets of a transaction that is over: producer={producer.producer_id} group={group_id}"
                try:
                    await self.run(self._complete(entry, producer, committed=False))
                except CoordinatorNotAvailable as error:
                    logger.warning("%s are left for the next start: %s", over, error)
                else:
                    logger.warning("%s were dropped", over)

    async def _complete(self, entry: GroupEntry, producer: TransactionalProducer, *, committed: bool) -> None:
        async with entry.lock:
            changes = entry.offsets.complete(producer, committed=committed, counts=self.counts)
            await self.write_offsets(entry, changes)

    # --- time ---------------------------------------------------------------------------------------------------

    def _next_ms(self) -> int | None:
        dues: list[int] = []
        for entry in self.entries.values():
            due_ms = entry.group.next_deadline_ms()
            if due_ms is not None:
                dues.append(due_ms)
            if entry.unwritten is not None or entry.owes:
                dues.append(self.clock.steady_ms() + RETRY_MS)
        return min(dues, default=None)

    async def _expire(self, late_ms: int = 0) -> None:
        """Remove silent members, end phases that took too long, repeat failed writes.

        late_ms: time this process stood still: heartbeats may wait to be read.
        """
        now_ms = self.clock.steady_ms()
        for entry in tuple(self.entries.values()):
            group = entry.group
            if late_ms > LATE_MS:
                group.put_off(now_ms, PUT_OFF_MS)
            due_ms = group.next_deadline_ms()
            if isinstance(group, ConsumerGroup):
                for member_id in group.expire(now_ms):
                    entry.heard.pop(member_id, None)
                    logger.warning("member timed out group=%s member=%s", group.group_id, member_id)
                if group.to_write and not entry.members_lock.locked():
                    self.run(self._retry_members(entry, group))
            elif due_ms is not None and due_ms <= now_ms:
                before = group.member_count
                step = group.expire(self.time_of(entry))
                gone = before - group.member_count
                if gone:
                    logger.warning("members timed out: %d group=%s", gone, group.group_id)
                self.settle(entry, step)
            elif entry.unwritten is not None and not entry.writing:
                self.run(self._retry(entry, entry.unwritten))

    async def _retry(self, entry: GroupEntry, data: bytes) -> None:
        try:
            await self._write_group(entry, data)
        except LogError as error:
            logger.warning("group could not be written, tried again: %s group=%s", error, entry.group.group_id)

    async def _retry_members(self, entry: GroupEntry, group: ConsumerGroup) -> None:
        try:
            await self.write_members(entry, group)
        except LogError as error:
            logger.warning("group could not be written, tried again: %s group=%s", error, group.group_id)


async def _nothing_beside(_: str, __: Gone) -> Sequence[Write]:
    return ()


def _nothing_in_use(_: str, __: uuid.UUID, ___: int) -> bool:
    return False
