"""Classic groups: all of them in memory, written before anybody is told, watched by one task.

The rules are in `groups`. Here: which group a request means, writing what a step leads to, joins and syncs that wait
for the other members, deleting, what a deleted topic takes with it, and members' timeouts; `server.groups.sweep`
removes expired offsets. A connection that is closed removes no member: its session times out.

A group's decisions about offsets are made, written and applied one after another, under the lock of its `GroupEntry`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from flowshare.clock import ahead_ms
from flowshare.core_errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InconsistentGroupProtocol,
    InvalidGroupId,
    StateCorrupt,
    UnknownMemberId,
)
from flowshare.groups.group import ClassicGroup
from flowshare.groups.offsets import Offsets, TransactionalProducer
from flowshare.groups.states import ClassicState
from flowshare.groups.types import JoinAnswer, SyncAnswer, TicketAnswer
from flowshare.log.base import LogError
from flowshare.protocol.messages import ListedGroup
from flowshare.server.groups import sweep
from flowshare.server.groups.store import everything_of, group_key, load, offset_write
from flowshare.server.runtime.answers import turns
from flowshare.server.runtime.coordinator import RETRY_MS, CoordinatorRuntime, Damage
from flowshare.server.runtime.state import GROUP_ID_BYTES_MAX
from flowshare.server.runtime.turns import Turns
from flowshare.server.runtime.waiting import Waiter

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable

    from flowshare.clock import Clock
    from flowshare.groups.offsets import OffsetChange
    from flowshare.groups.types import ClassicConfig, GroupStep
    from flowshare.log.base import Storage
    from flowshare.server.runtime.budget import StateBudget
    from flowshare.server.runtime.connection import InProcess
    from flowshare.server.runtime.state import Write
    from flowshare.server.runtime.topic_index import TopicIndex

logger = logging.getLogger(__name__)

A = TypeVar("A", JoinAnswer, SyncAnswer)

Gone = Sequence[tuple["uuid.UUID", int]] | None
"""Partitions, by topic id, of which a group's committed offset goes; None: the group goes with all it has."""


@dataclass(slots=True)
class GroupEntry:
    """One group with its offsets."""

    group: ClassicGroup
    offsets: Offsets = field(default_factory=Offsets)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    unwritten: bytes | None = None
    """What is still to be stored of the group."""
    writing: int = 0
    """Writes of the group under way."""

    @property
    def size(self) -> int:
        """About the bytes that it takes in memory."""
        return self.group.size + self.offsets.size + len(self.unwritten or b"")

    @property
    def void(self) -> bool:
        """Whether it is as if it had never been: made for a request that came to nothing."""
        group = self.group
        unused = group.state is ClassicState.EMPTY and group.generation == 0 and not group.awaits_member
        return unused and not self.offsets and not self.lock.locked()


class WaitingRequest:
    """One request that may wait; `number` is its ticket."""

    __slots__ = ("answer", "number", "waiter")

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiter = Waiter()
        self.answer: JoinAnswer | SyncAnswer | None = None

    async def answered(self, kind: type[A]) -> A:
        """The answer to a join or a sync; an error nobody will see if the connection is closed."""
        while self.answer is None and not self.waiter.abandoned:
            await self.waiter.wait()
        gone = CoordinatorNotAvailable("the connection was closed")
        return self.answer if isinstance(self.answer, kind) else kind(error=gone)


class WaitingRequests:
    """All requests that wait: at most one join and one sync a member; how long is the group's to say."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._places: dict[int, WaitingRequest] = {}

    @contextmanager
    def place(self, connection: InProcess) -> Generator[WaitingRequest]:
        """A place to wait in, until the connection is closed at the latest."""
        number = next(self._numbers)
        place = self._places[number] = WaitingRequest(number)
        connection.watch(place.waiter)
        try:
            yield place
        finally:
            connection.unwatch(place.waiter)
            del self._places[number]

    def deliver(self, answers: Iterable[TicketAnswer]) -> None:
        """Hand out answers; those that nobody waits for any more are dropped."""
        for ticket, answer in answers:
            place = self._places.get(ticket)
            if place is not None:
                place.answer = answer
                place.waiter.wake()


class ClassicGroups:
    """All classic groups of a server."""

    def __init__(
        self,
        *,
        storage: Storage,
        topics: TopicIndex,
        clock: Clock,
        config: ClassicConfig,
        is_share_group: Callable[[str], bool],
        budget: StateBudget,
    ) -> None:
        """budget: bytes of all state; what the groups hold is counted there."""
        self.storage = storage
        self.topics = topics
        self.clock = clock
        self.config = config
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
        """Asked when committed offsets of a group go: what is written in one piece with that, because it goes with
        them. The group's lock is held."""

    def __contains__(self, group_id: str) -> bool:
        """Whether the id belongs to a classic group."""
        return group_id in self.entries or group_id in self._damage

    async def start(self) -> None:
        """Read all groups and begin to watch them; offsets of topics that are gone go. Raises: LogError."""
        now_ms = self.clock.steady_ms()
        self._runtime.loaded()
        for group_id, loaded in (await load(self.storage, self._damage)).items():
            try:
                group = ClassicGroup(
                    group_id,
                    config=self.config,
                    state=loaded.state,
                    now_ms=now_ms,
                    ahead_ms=ahead_ms(self.clock),
                )
            except StateCorrupt as error:
                self._damage.add(group_id, group_key(group_id), f"its members: {error}")
                continue
            self.entries[group_id] = GroupEntry(group, loaded.offsets)
        try:
            await self._forget_topics(lambda topic_id: self.topics.by_id(topic_id) is not None)
        except CoordinatorNotAvailable as error:
            logger.warning("offsets of deleted topics are left for the next start: %s", error)
        self._runtime.start(self._expire, self._next_ms, sweep.run(self))

    async def close(self) -> None:
        """Stop watching; what is being written is written to the end."""
        await self._runtime.close()

    # --- finding ------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> GroupEntry:
        """The group. Raises: GroupIdNotFound, StateCorrupt (what is stored of it cannot be read)."""
        self._damage.check(group_id)
        entry = self.entries.get(group_id)
        if entry is None:
            kind = "a share group" if self.is_share_group(group_id) else "unknown"
            raise GroupIdNotFound(f"group {group_id!r} is {kind}, no consumer group")
        return entry

    def find_for_member(self, group_id: str) -> GroupEntry:
        """The group that a member speaks of. Raises: UnknownMemberId (the group has no members), StateCorrupt."""
        try:
            return self.find(group_id)
        except GroupIdNotFound as error:
            raise UnknownMemberId(str(error)) from None

    def ensure(self, group_id: str, party: str | None = None) -> GroupEntry:
        """The group, made if there is none. party: who makes it, None: the server's own process.

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
        """Forget a group that was made for a request that came to nothing."""
        if entry.void and self.holds(entry):
            entry.group.delete()
            del self.entries[entry.group.group_id]

    def holds(self, entry: GroupEntry) -> bool:
        """Whether the group is still there: it may have been deleted while something waited for its lock."""
        return self.entries.get(entry.group.group_id) is entry

    async def listed(self, between: Turns) -> tuple[ListedGroup, ...]:
        """All classic groups for ListGroups."""
        return await between.each(
            lambda entry: ListedGroup(
                group_id=entry.group.group_id,
                state=entry.group.state.value,
                type="classic",
                protocol_type=entry.group.protocol_type or "",
            ),
            tuple(self.entries.values()),
        )

    # --- writing ------------------------------------------------------------------------------------------------

    def settle(self, entry: GroupEntry, step: GroupStep) -> asyncio.Future[bool] | None:
        """Do what a step leads to; the future, if there is something to write, says whether it is durable."""
        self.watch(entry)
        if step.write is None:
            self.waiting.deliver(step.answers)
            return None
        return self.run(self._write_step(entry, step, step.write))

    def watch(self, entry: GroupEntry) -> None:
        """A deadline of the group may be nearer than what is waited for."""
        self._runtime.expect(entry.group.next_deadline_ms())

    def time_of(self, entry: GroupEntry) -> int:
        """The time for a step of a group, which is told, too, how the machine's clock was set since the start."""
        entry.group.ahead_ms = ahead_ms(self.clock)
        return self.clock.steady_ms()

    async def _write_step(self, entry: GroupEntry, step: GroupStep, data: bytes) -> bool:
        try:
            await self._write_group(entry, data)
        except LogError as error:
            logger.warning("group could not be written: %s group=%s", error, entry.group.group_id)
            self.waiting.deliver(_refused(step.answers))
            if step.assign is not None:
                entry.unwritten = None
                self.settle(entry, entry.group.not_assigned(step.assign, self.time_of(entry)))
            else:
                self._runtime.wake()
            return False
        self.waiting.deliver(step.answers)
        if step.assign is not None:
            self.settle(entry, entry.group.assigned(step.assign, self.time_of(entry)))
        return True

    async def _write_group(self, entry: GroupEntry, data: bytes) -> None:
        entry.unwritten = data
        entry.writing += 1
        try:
            await self.storage.write([(group_key(entry.group.group_id), data)])
        finally:
            entry.writing -= 1
        if entry.unwritten is data:
            entry.unwritten = None

    async def write_offsets(
        self,
        entry: GroupEntry,
        changes: Iterable[OffsetChange],
        check: Callable[[], None] = lambda: None,
        beside: Sequence[Write] = (),
    ) -> None:
        """Write and apply what was decided; the caller holds the entry's lock.

        Others run while the bytes are made. check: asked when nothing is left to do before the write; raises what
        speaks against it by then. beside: written in one piece with it.

        Raises: CoordinatorNotAvailable, whatever `check` does
        """
        decided, writes = await self._encoded(entry, changes)
        writes += beside
        if gone := _gone(entry, decided):
            writes += await self.beside(entry.group.group_id, gone)
        if not self.holds(entry):
            raise CoordinatorNotAvailable(f"group {entry.group.group_id} was deleted meanwhile; try again")
        check()
        if not writes:
            return
        try:
            await self.storage.write(writes)
        except LogError as error:
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
        """Delete a group without members, with its offsets.

        Raises: GroupIdNotFound, NonEmptyGroup, LogError
        """
        if group_id in self._damage:
            beside = await self.beside(group_id, None)
            await self.storage.write([*await everything_of(self.storage, group_id), *beside])
            self._damage.forget(group_id)
            return
        entry = self.find(group_id)
        entry.group.require_empty()
        await self.run(self._delete(entry))

    async def _delete(self, entry: GroupEntry) -> None:
        async with entry.lock:
            await self.delete_locked(entry)

    async def delete_locked(self, entry: GroupEntry) -> None:
        """Delete a group; the caller holds the entry's lock. Raises: GroupIdNotFound, NonEmptyGroup, LogError."""
        group_id = entry.group.group_id
        beside = await self.beside(group_id, None) if entry.offsets else ()
        # Nothing is awaited from its end to the write: whoever makes the group anew writes behind that.
        _, offsets = await self._encoded(entry, entry.offsets.clear())
        if not self.holds(entry):
            raise GroupIdNotFound(f"group {group_id!r} was deleted meanwhile")
        entry.group.delete()
        del self.entries[group_id]  # first: who joins from now on makes a new group
        try:
            await self.storage.write([(group_key(group_id), None), *offsets, *beside])
        except LogError:
            again = ClassicGroup(group_id, config=self.config, state=entry.group.durable())
            self.entries.setdefault(group_id, GroupEntry(again, entry.offsets))
            raise

    async def topic_deleted(self, topic_id: uuid.UUID) -> None:
        """Remove the offsets of a deleted topic in all groups. Raises: CoordinatorNotAvailable."""
        await self.run(self._forget_topics(lambda one: one != topic_id))

    async def _forget_topics(self, exists: Callable[[uuid.UUID], bool]) -> None:
        between = Turns(self.clock)
        for entry in tuple(self.entries.values()):
            await between.take(1 + len(entry.offsets.committed))
            async with entry.lock:
                if self.holds(entry):
                    await self.write_offsets(entry, entry.offsets.forget_topics(exists))

    async def complete_transaction(
        self, group_ids: Iterable[str], producer_id: int, producer_epoch: int, committed: bool
    ) -> None:
        """A transaction has ended: its offsets count from now on, or never did. May be repeated.

        Raises: CoordinatorNotAvailable (could not be written; try again)
        """
        producer = TransactionalProducer(producer_id, producer_epoch)
        for group_id in group_ids:
            entry = self.entries.get(group_id)
            if entry is not None:
                await self.run(self._complete(entry, producer, committed=committed))

    async def _complete(self, entry: GroupEntry, producer: TransactionalProducer, *, committed: bool) -> None:
        async with entry.lock:
            await self.write_offsets(entry, entry.offsets.complete(producer, committed=committed))

    # --- time ---------------------------------------------------------------------------------------------------

    def _next_ms(self) -> int | None:
        dues: list[int] = []
        for entry in self.entries.values():
            due_ms = entry.group.next_deadline_ms()
            if due_ms is not None:
                dues.append(due_ms)
            if entry.unwritten is not None:
                dues.append(self.clock.steady_ms() + RETRY_MS)
        return min(dues, default=None)

    async def _expire(self, _: int = 0) -> None:
        """Let members go that were silent, end phases that took too long, write what could not be written."""
        now_ms = self.clock.steady_ms()
        for entry in tuple(self.entries.values()):
            due_ms = entry.group.next_deadline_ms()
            if due_ms is not None and due_ms <= now_ms:
                before = entry.group.member_count
                step = entry.group.expire(self.time_of(entry))
                gone = before - entry.group.member_count
                if gone:
                    logger.warning("members timed out: %d group=%s", gone, entry.group.group_id)
                self.settle(entry, step)
            elif entry.unwritten is not None and not entry.writing:
                self.run(self._retry(entry, entry.unwritten))

    async def _retry(self, entry: GroupEntry, data: bytes) -> None:
        try:
            await self._write_group(entry, data)
        except LogError as error:
            logger.warning("group could not be written, tried again: %s group=%s", error, entry.group.group_id)


async def _nothing_beside(_: str, __: Gone) -> Sequence[Write]:
    return ()


def _gone(entry: GroupEntry, decided: Iterable[OffsetChange]) -> list[tuple[uuid.UUID, int]]:
    """Partitions of which a committed offset is to go, by the ids of their topics."""
    committed = entry.offsets.committed
    found = [one.partition for one in decided if one.value is None and one.producer is None]
    return [(committed[partition].topic_id, partition.number) for partition in found if partition in committed]


def _refused(answers: Iterable[TicketAnswer]) -> list[TicketAnswer]:
    """What those are told whose good answer was not to be made durable."""
    error = CoordinatorNotAvailable("the group could not be written; try again")
    return [
        TicketAnswer(ticket, JoinAnswer(error=error) if isinstance(answer, JoinAnswer) and not answer.error else answer)
        for ticket, answer in answers
    ]
