"""Classic groups: all of them in memory, written before anybody is told, watched by one task.

The rules are in `groups`. Here: which group a request means, writing what a step leads to, deleting, what a deleted
topic takes with it, and members' timeouts; `server.classic_sweep` removes expired offsets. A connection that is closed
removes no member: its session times out.

A group's decisions about offsets are made, written and applied one after another, under the lock of its `Entry`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from flowshare.clock import ahead_ms
from flowshare.groups.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupStateCorrupt,
    InconsistentGroupProtocol,
    InvalidGroupId,
    UnknownMemberId,
)
from flowshare.groups.group import ClassicGroup
from flowshare.groups.offsets import Offsets, Producer
from flowshare.groups.states import State
from flowshare.groups.types import Answered, JoinAnswer
from flowshare.log.base import LogError
from flowshare.protocol.messages import ListedGroup
from flowshare.server.alarm import Alarm
from flowshare.server.answers import turns
from flowshare.server.budget import Makers
from flowshare.server.classic_store import everything_of, group_key, load, offset_write
from flowshare.server.classic_sweep import Sweep
from flowshare.server.classic_waiting import Waiting
from flowshare.server.damage import Damage
from flowshare.server.state import GROUP_ID_BYTES_MAX
from flowshare.server.turns import Turns

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any, TypeVar

    from flowshare.clock import Clock
    from flowshare.groups.offsets import Change
    from flowshare.groups.types import ClassicConfig, Step
    from flowshare.log.base import Storage
    from flowshare.server.budget import StateBudget
    from flowshare.server.state import Write
    from flowshare.server.topic_index import TopicIndex

    T = TypeVar("T")

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1_000


@dataclass(slots=True)
class Entry:
    """One group with its offsets."""

    group: ClassicGroup
    offsets: Offsets = field(default_factory=Offsets)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    unwritten: bytes | None = None
    """What is still to be stored of the group."""
    writing: int = 0
    """Writes of the group under way."""

    @property
    def void(self) -> bool:
        """Whether it is as if it had never been: made for a request that came to nothing."""
        group = self.group
        unused = group.state is State.EMPTY and group.generation == 0 and not group.awaits_member
        return unused and not self.offsets and not self.lock.locked()


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
        self.waiting = Waiting()
        self.entries: dict[str, Entry] = {}
        self.is_share_group = is_share_group
        self._makers = Makers("consumer groups", "group.max.groups")
        self._budget = budget
        budget.counts(self._held)
        self._damage = Damage()
        self._alarm = Alarm(clock)
        self._jobs: set[asyncio.Task[Any]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def __contains__(self, group_id: str) -> bool:
        """Whether the id belongs to a classic group."""
        return group_id in self.entries or group_id in self._damage

    async def start(self) -> None:
        """Read all groups and begin to watch them; offsets of topics that are gone go. Raises: LogError."""
        now_ms = self.clock.steady_ms()
        self._budget.came()
        for group_id, loaded in (await load(self.storage, self._damage)).items():
            try:
                group = ClassicGroup(
                    group_id,
                    config=self.config,
                    state=loaded.state,
                    now_ms=now_ms,
                    ahead_ms=ahead_ms(self.clock),
                )
            except GroupStateCorrupt as error:
                self._damage.add(group_id, group_key(group_id), f"its members: {error}")
                continue
            self.entries[group_id] = Entry(group, loaded.offsets)
        try:
            await self._forget_topics(lambda topic_id: self.topics.by_id(topic_id) is not None)
        except CoordinatorNotAvailable as error:
            logger.warning("offsets of deleted topics are left for the next start: %s", error)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._watch(), name="classic groups"),
            loop.create_task(Sweep(self).run(), name="expired offsets"),
        ]

    async def close(self) -> None:
        """Stop watching; what is being written is written to the end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        while self._jobs:
            await asyncio.wait(self._jobs)

    # --- finding ------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> Entry:
        """The group. Raises: GroupIdNotFound, StateCorrupt (what is stored of it cannot be read)."""
        self._damage.check(group_id)
        entry = self.entries.get(group_id)
        if entry is None:
            kind = "a share group" if self.is_share_group(group_id) else "unknown"
            raise GroupIdNotFound(f"group {group_id!r} is {kind}, no consumer group")
        return entry

    def find_for_member(self, group_id: str) -> Entry:
        """The group that a member speaks of. Raises: UnknownMemberId (the group has no members), StateCorrupt."""
        try:
            return self.find(group_id)
        except GroupIdNotFound as error:
            raise UnknownMemberId(str(error)) from None

    def ensure(self, group_id: str, party: str | None = None) -> Entry:
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
        self._makers.check(party, self.entries, len(self.entries), self.config.groups_max)
        entry = self.entries[group_id] = Entry(ClassicGroup(group_id, config=self.config))
        self._makers.add(party, group_id, self.entries, self.config.groups_max)
        return entry

    def take(self, party: str | None, size: int) -> None:
        """Groups or offsets are about to take so many bytes more, for a request of the party. Raises: Refused."""
        self._budget.take(party, size, self.clock.monotonic())

    def _held(self) -> Iterable[tuple[str | None, int]]:
        """Of each group who made it and how many bytes it takes."""
        for group_id, entry in self.entries.items():
            size = entry.group.size + entry.offsets.size + len(entry.unwritten or b"")
            yield self._makers.maker_of(group_id), size

    def discard_void(self, entry: Entry) -> None:
        """Forget a group that was made for a request that came to nothing."""
        if entry.void and self.holds(entry):
            entry.group.delete()
            del self.entries[entry.group.group_id]

    def holds(self, entry: Entry) -> bool:
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

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run `work` to its end even if the caller is cancelled: others may depend on it."""
        task = asyncio.get_running_loop().create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return asyncio.shield(task)

    def settle(self, entry: Entry, step: Step) -> asyncio.Future[bool] | None:
        """Do what a step leads to; the future, if there is something to write, says whether it is durable."""
        self.watch(entry)
        if step.write is None:
            self.waiting.deliver(step.answers)
            return None
        return self.run(self._write_step(entry, step, step.write))

    def watch(self, entry: Entry) -> None:
        """A deadline of the group may be nearer than what is waited for."""
        due_ms = entry.group.next_deadline_ms()
        if due_ms is not None and (self._alarm.due_ms is None or due_ms < self._alarm.due_ms):
            self._alarm.ring()

    def time_of(self, entry: Entry) -> int:
        """The time for a step of a group, which is told, too, how the machine's clock was set since the start."""
        entry.group.ahead_ms = ahead_ms(self.clock)
        return self.clock.steady_ms()

    async def _write_step(self, entry: Entry, step: Step, data: bytes) -> bool:
        try:
            await self._write_group(entry, data)
        except LogError as error:
            logger.warning("group could not be written: %s group=%s", error, entry.group.group_id)
            self.waiting.deliver(_refused(step.answers))
            if step.assign is not None:
                entry.unwritten = None
                self.settle(entry, entry.group.not_assigned(step.assign, self.time_of(entry)))
            else:
                self._alarm.ring()
            return False
        self.waiting.deliver(step.answers)
        if step.assign is not None:
            self.settle(entry, entry.group.assigned(step.assign, self.time_of(entry)))
        return True

    async def _write_group(self, entry: Entry, data: bytes) -> None:
        entry.unwritten = data
        entry.writing += 1
        try:
            await self.storage.write([(group_key(entry.group.group_id), data)])
        finally:
            entry.writing -= 1
        if entry.unwritten is data:
            entry.unwritten = None

    async def write_offsets(
        self, entry: Entry, changes: Iterable[Change], check: Callable[[], None] = lambda: None
    ) -> None:
        """Write and apply what was decided; the caller holds the entry's lock.

        Others run while the bytes are made. check: asked when nothing is left to do before the write; raises what
        speaks against it by then.

        Raises: CoordinatorNotAvailable, whatever `check` does
        """
        decided, writes = await self._encoded(entry, changes)
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

    async def _encoded(self, entry: Entry, changes: Iterable[Change]) -> tuple[list[Change], list[Write]]:
        decided: list[Change] = []
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
            await self.storage.write(await everything_of(self.storage, group_id))
            self._damage.forget(group_id)
            return
        entry = self.find(group_id)
        entry.group.require_empty()
        await self.run(self._delete(entry))

    async def _delete(self, entry: Entry) -> None:
        async with entry.lock:
            await self.delete_locked(entry)

    async def delete_locked(self, entry: Entry) -> None:
        """Delete a group; the caller holds the entry's lock. Raises: GroupIdNotFound, NonEmptyGroup, LogError."""
        group_id = entry.group.group_id
        # Nothing is awaited from its end to the write: whoever makes the group anew writes behind that.
        _, offsets = await self._encoded(entry, entry.offsets.clear())
        if not self.holds(entry):
            raise GroupIdNotFound(f"group {group_id!r} was deleted meanwhile")
        entry.group.delete()
        del self.entries[group_id]  # first: who joins from now on makes a new group
        try:
            await self.storage.write([(group_key(group_id), None), *offsets])
        except LogError:
            again = ClassicGroup(group_id, config=self.config, state=entry.group.durable())
            self.entries.setdefault(group_id, Entry(again, entry.offsets))
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
        self, group_ids: Iterable[str], producer_id: int, producer_epoch: int, *, committed: bool
    ) -> None:
        """A transaction has ended: its offsets count from now on, or never did. May be repeated.

        Raises: CoordinatorNotAvailable (could not be written; try again)
        """
        producer = Producer(producer_id, producer_epoch)
        for group_id in group_ids:
            entry = self.entries.get(group_id)
            if entry is not None:
                await self.run(self._complete(entry, producer, committed=committed))

    async def _complete(self, entry: Entry, producer: Producer, *, committed: bool) -> None:
        async with entry.lock:
            await self.write_offsets(entry, entry.offsets.complete(producer, committed=committed))

    # --- time ---------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                self._expire()
            except Exception:
                logger.exception("watching the consumer groups failed, going on")
                await self.clock.sleep(RETRY_MS / 1000)
            await self._alarm.sleep_until(self._next_ms())

    def _next_ms(self) -> int | None:
        dues: list[int] = []
        for entry in self.entries.values():
            due_ms = entry.group.next_deadline_ms()
            if due_ms is not None:
                dues.append(due_ms)
            if entry.unwritten is not None:
                dues.append(self.clock.steady_ms() + RETRY_MS)
        return min(dues, default=None)

    def _expire(self) -> None:
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

    async def _retry(self, entry: Entry, data: bytes) -> None:
        try:
            await self._write_group(entry, data)
        except LogError as error:
            logger.warning("group could not be written, tried again: %s group=%s", error, entry.group.group_id)


def _refused(answers: Iterable[Answered]) -> list[Answered]:
    """What those are told whose good answer was not to be made durable."""
    error = CoordinatorNotAvailable("the group could not be written; try again")
    return [
        Answered(ticket, JoinAnswer(error=error) if isinstance(answer, JoinAnswer) and not answer.error else answer)
        for ticket, answer in answers
    ]
