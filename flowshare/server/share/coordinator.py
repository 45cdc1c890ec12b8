"""Share groups: all of them in memory, written when they change, and the effects of members that come and go.

The rules are in `share.group`. Here: a heartbeat's answer leaves when group and new share-partition states are written,
so that a member can fetch with its first assignment; the records of a member that leaves, is fenced or times out are
released at once, on all their partitions.

Members that were connected within the process are gone with it: opening the store removes them, so that nobody waits a
session timeout for partitions that only a dead member would have. Members of other processes may come back: for
`group.share.return.grace.ms` they are expected, and keep their records; members that do not come are removed as if
their sessions had timed out. The same holds for a member of flowshare's own whose connection breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from flowshare import processes
from flowshare.clock import ahead_ms
from flowshare.core_errors import CoreError, FencedMemberEpoch, GroupIdNotFound, NonEmptyGroup, StateCorrupt
from flowshare.log.base import LogError, NotLed
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.connection import IN_PROCESS
from flowshare.server.runtime.coordinator import LATE_MS, RETRY_MS, CoordinatorRuntime, group_id_of
from flowshare.server.runtime.failures import Refused
from flowshare.server.runtime.state import GROUP_ID_BYTES_MAX
from flowshare.server.share.first_states import FirstStates
from flowshare.server.share.returning_members import THREE_BEATS_MS, Returns
from flowshare.share.config import KEY_ORDER
from flowshare.share.group import ShareGroup, check_heartbeat, subscription_growth

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Container, Coroutine, Generator, Iterable, Mapping, Sequence

    from flowshare.clock import Clock
    from flowshare.log.base import Storage
    from flowshare.protocol.messages import ShareGroupHeartbeatRequest
    from flowshare.server.runtime.budget import StateBudget
    from flowshare.server.runtime.connection import InProcess
    from flowshare.server.runtime.coordinator import Damage
    from flowshare.server.runtime.state import Write
    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.share.duties import Duties
    from flowshare.server.share.leaders import Leaders
    from flowshare.server.share.returning_members import Who
    from flowshare.share.config import GroupConfig
    from flowshare.share.group import Heartbeat

logger = logging.getLogger(__name__)

PREFIX: Final = b"g/"
BESIDE_MAX: Final = 64
"""Most deletions, and most writes, of groups that run at once beside the watch."""
LOOK_S: Final = 0.05
"""Seconds between two checks for a process's end: its connections end a moment before the process."""
NOTE_MS: Final = 1_000
"""Delay of a group's write, in ms, after a member jumps to its epoch: one write then serves many members."""


class Coordinator:
    """All share groups of a server."""

    def __init__(
        self,
        *,
        storage: Storage,
        topics: TopicIndex,
        leaders: Leaders,
        duties: Duties,
        clock: Clock,
        config_of: Callable[[str], GroupConfig],
        damage: Damage,
        return_grace_ms: int,
        groups_max: int,
        budget: StateBudget,
        is_other_group: Callable[[str], bool] = lambda _: False,
        members_resume: bool = False,
    ) -> None:
        """budget: bytes of all state; the groups' bytes are counted there.

        members_resume: True in a fleet, where a member may hear of another coordinator only by its next heartbeat.
        """
        self._storage = storage
        self._topics = topics
        self._leaders = leaders
        self._duties = duties
        self._clock = clock
        self._config_of = config_of
        self._damage = damage
        self._is_other_group = is_other_group
        self._groups_max = groups_max
        self._runtime = CoordinatorRuntime[ShareGroup](
            "share groups", limit="group.share.max.groups", clock=clock, budget=budget, size_of=lambda group: group.size
        )
        self.groups = self._runtime.entries
        self.run = self._runtime.run
        self._returns = Returns(clock=clock, config_of=config_of, grace_ms=return_grace_ms, fleet=members_resume)
        self._changes = 0
        """Marks of all groups since the start; a number is never used again."""
        self._unwritten: dict[str, int] = {}
        """The number of the last change, or write, of each group that is not known to be stored as it is."""
        self._gone: dict[str, frozenset[str]] = {}
        self._noted: dict[str, int] = {}
        """Time to write, in ms, of each group whose members have jumped to another epoch."""
        self._deleting: dict[str, asyncio.Task[None]] = {}
        """Deletions of expired groups under way."""
        self._writing: dict[str, asyncio.Task[None]] = {}
        """Writes of groups under way for which nobody waits."""
        self._delete_places, self._write_places = asyncio.Semaphore(BESIDE_MAX), asyncio.Semaphore(BESIDE_MAX)
        """Apart, because deletions wait for other servers."""
        self._told_unwritten: set[str] = set()
        """Groups that cannot be written, as the log says."""
        self._changing_order: Counter[str] = Counter()
        """Changes of order under way, by group."""
        self._first_states = FirstStates(leaders, self.write, clock)
        self.rebalances = 0
        """Assignments made anew since the start."""

    async def start(self) -> None:
        """Read all groups and begin to watch their members' timeouts. Raises: LogError."""
        self.take_up(await self._storage.scan(PREFIX))
        await self._forget_deleted_topics()
        self._runtime.start(self._expire, self._next_ms)

    def take_up(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Coordinate the groups of these entries of the store; their members have to come back soon."""
        self._runtime.loaded()
        for key, value in entries:
            group_id = group_id_of(key, PREFIX)
            if group_id is None or group_id in self._damage:
                continue
            try:
                group = ShareGroup.decode(
                    value,
                    group_id=group_id,
                    config=self._config_of(group_id),
                    now_ms=self._clock.steady_ms(),
                    ahead_ms=ahead_ms(self._clock),
                )
            except StateCorrupt as error:
                self._damage.add(group_id, key, f"its members and epochs: {error}")
                continue
            self.groups[group_id] = group
            self._remove_dead(group)
            for member_id in tuple(group.members) if self._returns.grace_ms else ():
                self._returns.expect(group, member_id)
            self._expect_soon(group, self._duties.worker_gone)
        self._runtime.wake()

    def lay_down(self, group_ids: Iterable[str]) -> None:
        """Stop coordinating these groups; nothing is written."""
        for group_id in group_ids:
            self.groups.pop(group_id, None)
            self._unwritten.pop(group_id, None)
            self._told_unwritten.discard(group_id)
            self._noted.pop(group_id, None)
            self._returns.forget(group_id)
            self._damage.forget(group_id)

    async def close(self) -> None:
        """Stop watching, and end work under way."""
        await self._first_states.close()
        await self._runtime.close(self._stop_work)

    def _stop_work(self) -> None:
        for task in (*self._deleting.values(), *self._writing.values()):
            task.cancel()

    def living(self, group_id: str) -> Container[str]:
        """Return the group's members that keep the records they acquired before this server was started."""
        group = self.groups.get(group_id)
        return group.members if group is not None and self._returns.grace_ms else ()

    def gone(self, group_id: str) -> Container[str]:
        """Return former members that lived in the ended process of the server before this one."""
        return self._gone.get(group_id, ())

    def lost(self, connection: InProcess) -> None:
        """Expect members of flowshare's own back soon, after the connection of their heartbeats was closed."""
        members = self._returns.ended(connection)
        for group_id, member_id in members:
            group = self.groups.get(group_id)
            if group is not None:
                self._runtime.expect(self._returns.expect(group, member_id))
        if members and connection.process is not None:
            self._look_for(connection.process, members, self._clock.steady_ms() + self._returns.grace_ms)

    def _look_for(self, process: tuple[int, int], members: Sequence[Who], until_ms: int) -> None:
        """Watch for a while if the process of cut-off members still runs: a process may take a moment to die."""
        if processes.runs(process):
            if self._clock.steady_ms() < until_ms:
                self._clock.call_later(LOOK_S, lambda: self._look_for(process, members, until_ms))
            return
        for group_id, member_id in members:
            group = self.groups.get(group_id)
            if group is not None:
                self._runtime.expect(self._returns.expect_no_more(group, member_id))
        self._runtime.wake()

    def interval_ms(self, group_id: str, *, own: bool = False) -> int:
        """Return the ms between a member's heartbeats; own: for flowshare's own client.

        The interval is shorter than configured while members may be given up. For flowshare's own clients in a fleet or
        on a path it is the shortest that one coordinator can well take from a group: partitions of a member that leaves
        wait for the others' heartbeats.
        """
        group = self.groups.get(group_id)
        return self._returns.interval_ms(group_id, 0 if group is None else len(group.members), own=own)

    def workers_left(self, left: Container[int]) -> None:
        """Expect a sign of life soon from members in the processes of workers (by node id) that left the fleet."""
        for group in self.groups.values():
            self._expect_soon(group, left.__contains__)
        self._runtime.wake()

    def _expect_soon(self, group: ShareGroup, gone: Callable[[int], bool]) -> None:
        for member_id in group.at_workers(gone):
            self._returns.expect_soon(group, member_id)

    def find(self, group_id: str) -> ShareGroup:
        """Return the group. Raises: GroupIdNotFound, StateCorrupt (its stored state cannot be read), Refused (not
        here)."""
        self._duties.check_coordinator(group_id)
        self._damage.check(group_id)
        group = self.groups.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"there is no group {group_id!r}")
        return group

    def ensure(self, group_id: str, party: str | None = None) -> ShareGroup:
        """Return the group, made if it does not exist; the caller writes it then. party: the maker; None: the server's
        own process.

        Raises: Refused (a bad id, too many groups, not here), StateCorrupt (the stored state cannot be read),
        GroupIdNotFound (a consumer group has this id)
        """
        self._duties.check_coordinator(group_id)
        self._damage.check(group_id)
        group = self.groups.get(group_id)
        if group is None:
            if self._is_other_group(group_id):
                raise GroupIdNotFound(f"{group_id!r} is a consumer group; use another group id")
            if not 0 < len(group_id.encode()) <= GROUP_ID_BYTES_MAX:
                raise Refused(ErrorCode.INVALID_REQUEST, f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes")
            config = self._config_of(group_id)
            group = self._runtime.make(group_id, lambda: ShareGroup(group_id, config=config), party, self._groups_max)
        return group

    @contextlib.contextmanager
    def changing_order(self, group_id: str) -> Generator[None]:
        """Let nobody join the group within the context: its order changes (SG-18.2)."""
        self._changing_order[group_id] += 1
        try:
            yield
        finally:
            self._changing_order[group_id] -= 1
            if not self._changing_order[group_id]:
                del self._changing_order[group_id]

    async def heartbeat(self, request: ShareGroupHeartbeatRequest, connection: InProcess) -> Heartbeat:
        """Apply a heartbeat and make its changes durable.

        Raises: errors of `ShareGroup.heartbeat`, GroupIdNotFound, Refused
        """
        group_id, member_id, epoch = request.group_id, request.member_id, request.member_epoch
        check_heartbeat(group_id, member_id, epoch, request.rack_id, request.subscribed_topics)
        if epoch == 0 and group_id not in self.groups:
            await self._duties.admit(group_id)
        if request.subscribed_topics:
            await self._duties.know(request.subscribed_topics)
        if epoch == 0 and group_id in self._changing_order:
            text = f"{KEY_ORDER} of group {group_id} is being changed; join again soon"
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
        self._take(request, connection.counts_as())
        group = self.ensure(group_id, connection.counts_as()) if epoch == 0 else self.find(group_id)
        before = group.assignment_epoch
        try:
            beat = group.heartbeat(
                member_id=member_id,
                member_epoch=epoch,
                rack_id=request.rack_id,
                subscribed_topics=request.subscribed_topics,
                client_id=connection.client_id,
                client_host=connection.host,
                topics=self._topics,
                now_ms=self._clock.steady_ms(),
                worker=connection.worker,
            )
        except FencedMemberEpoch:
            # In an ordered group the fenced member's handlers may be at work; the next records of their keys must not
            # run beside them.
            self._leaders.release_member(group_id, member_id, died=bool(self._config_of(group_id).key_order))
            raise
        self.rebalances += group.assignment_epoch != before
        self._returns.beat(connection, (group_id, member_id), left=beat.left)
        if beat.left:
            self._leaders.release_member(group_id, member_id)
            self._runtime.wake()  # the group may be empty now, and expire
        else:
            self._runtime.expect(self._clock.steady_ms() + group.config.session_timeout_ms)
        # Written meanwhile, the group is no longer marked, but then as if the first states were not asked for.
        if beat.changed or group_id in self._unwritten or self._first_states.unwritten(group):
            if beat.changed or beat.jumped:  # else the mark would never go while many members' heartbeats wait
                self._changed(group_id)
            await self._first_states.give(group, beat.to_initialize)
        elif beat.jumped:
            self._runtime.expect(self._noted.setdefault(group_id, self._clock.steady_ms() + NOTE_MS))
        return beat

    def _take(self, request: ShareGroupHeartbeatRequest, party: str | None) -> None:
        """Account for the memory of the subscription that a heartbeat adds to its member. Raises: Refused."""
        group = self.groups.get(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if member is not None or request.member_epoch == 0:
            growth = subscription_growth(member, request.subscribed_topics)
            self._runtime.take(party, growth)

    async def write(self, group: ShareGroup, more: Sequence[Write] = ()) -> None:
        """Write a group as it is now, together with `more`. Raises: LogError (NotLed: another worker coordinates the
        group)."""
        self._check_same(group)
        group_id = group.group_id
        self._noted.pop(group_id, None)
        # Marked until stored, so that a heartbeat waits. Several writes of a group may be under way, and each may fail.
        # A write that is stored has all that came before it, and removes the mark only if nothing came after it: a
        # later write may still be refused, and a later change may not be encoded yet.
        number = self._changed(group_id)
        await self._storage.write([*more, (PREFIX + group_id.encode(), self._encoded(group))])
        if self._unwritten.get(group_id) == number:
            del self._unwritten[group_id]
        self._told_unwritten.discard(group_id)

    def _changed(self, group_id: str) -> int:
        """Mark a group as to be written; return the number of the mark."""
        self._changes += 1
        self._unwritten[group_id] = self._changes
        return self._changes

    def _check_same(self, group: ShareGroup) -> None:
        """Check that the group was not taken up anew since. Raises: NotLed."""
        if self.groups.get(group.group_id) is not group:
            raise NotLed(f"group {group.group_id} was given to another worker, or deleted, meanwhile; ask again")

    def _encoded(self, group: ShareGroup) -> bytes:
        return group.encode(self._first_states.unwritten(group), ahead_ms=ahead_ms(self._clock))

    async def delete(self, group_id: str) -> None:
        """Delete an empty group with the state of its share-partitions, to the end, even if the caller gives up; its
        settings stay (SG-13.4).

        Raises: GroupIdNotFound, NonEmptyGroup, LogError
        """
        if group_id in self._damage:
            await self.run(self._delete_damaged(group_id))
            return
        await self.run(self._delete(self.find(group_id), ShareGroup.require_empty))

    async def _delete(self, group: ShareGroup, require_unused: Callable[[ShareGroup], object]) -> None:
        """Delete a group that `require_unused` lets pass before and after other servers were asked."""
        group_id = group.group_id
        require_unused(group)
        async with self._leaders.replacing(dict.fromkeys(self._leaders.known(group))) as writes:
            self._check_same(group)
            require_unused(group)
            self.groups.pop(group_id, None)  # first: a member that joins from now on makes a new group
            marked = self._unwritten.pop(group_id, None) is not None
            try:
                await self._storage.write([*writes, (PREFIX + group_id.encode(), None)])
            except LogError:
                self.groups.setdefault(group_id, group)
                if marked:
                    self._changed(group_id)
                raise

    async def _delete_idle(self, group_id: str) -> None:
        """Delete a group that has expired; after a failure the deletion is tried again soon."""
        try:
            await self._delete(self.find(group_id), self._require_expired)
        except (LogError, CoreError, Refused) as error:
            logger.warning("an idle group could not be deleted, tried again soon: %s group=%s", error, group_id)

    def _expired(self, group: ShareGroup) -> bool:
        at = group.expires_ms
        return at is not None and at <= self._clock.steady_ms() and self._leaders.idle(group.group_id)

    def _require_expired(self, group: ShareGroup) -> None:
        """Check that nobody has used an expired group meanwhile. Raises: NonEmptyGroup."""
        if not self._expired(group):
            raise NonEmptyGroup(f"group {group.group_id} is used again")

    async def _delete_damaged(self, group_id: str) -> None:
        """Delete all stored state of a group that cannot be read. Raises: LogError."""
        keys = self._leaders.known(ShareGroup(group_id, config=self._config_of(group_id)))
        async with self._leaders.replacing(dict.fromkeys(keys)) as writes:
            if group_id not in self._damage:
                raise NotLed(f"group {group_id} was given to another worker, or deleted, meanwhile; ask again")
            own = [(key, None) for key in (PREFIX + group_id.encode(), *self._damage.keys(group_id))]
            await self._storage.write([*writes, *own])
        self._damage.forget(group_id)

    async def topic_deleted(self, topic_id: uuid.UUID) -> None:
        """Remove a deleted topic from all groups, with the state of its share-partitions. Raises: LogError."""
        changed = [group for group in self.groups.values() if group.topic_deleted(topic_id)]
        for group in changed:
            self._changed(group.group_id)
        async with self._leaders.deleting(topic_id) as writes:
            # The groups as they are now: meanwhile they may have been written, or given away.
            left = [group for group in changed if self.groups.get(group.group_id) is group]
            own = [(PREFIX + group.group_id.encode(), self._encoded(group)) for group in left]
            if writes or own:
                await self._storage.write([*writes, *own])

    async def _forget_deleted_topics(self) -> None:
        """Finish the work of a crash between deleting a topic and telling the groups."""
        for topic_id in self._leaders.topic_ids():
            if self._topics.by_id(topic_id) is None:
                try:
                    await self.topic_deleted(topic_id)
                except LogError as error:
                    logger.warning("state of a deleted topic is left for the next start: %s id=%s", error, topic_id)

    def reconfigure(self, *, return_grace_ms: int, groups_max: int) -> None:
        """Apply changed settings of the server to all groups."""
        self._returns.grace_ms = return_grace_ms
        self._groups_max = groups_max
        for group_id, group in self.groups.items():
            group.config = self._config_of(group_id)
        self._runtime.wake()

    async def configure(self, group_id: str) -> None:
        """Apply a group's changed config; its leaders act by it afterwards, as far as they are reached in time."""
        group = self.groups.get(group_id)
        if group is not None:
            group.config = self._config_of(group_id)
            self._runtime.wake()  # when members time out, or the group expires, may have changed
        await self._leaders.configure(group_id)

    async def in_flight(self, group_id: str) -> int:
        """Return the number of a group's records that are acquired, delayed, or on their way to the dead letters, on
        all leaders.

        Raises: Refused, LogError.
        """
        group = self.groups.get(group_id) or ShareGroup(group_id, config=self._config_of(group_id))
        parts = await self._leaders.offsets(list(self._leaders.known(group)))
        for part in parts:
            if part.error is not ErrorCode.NONE:
                raise Refused(part.error, f"partition {part.partition} of {part.topic}: {part.message}; try again")
        return sum(part.in_flight + part.delayed + part.archiving for part in parts)

    async def parked_keys(self, group_id: str) -> int:
        """Return the number of a group's parked keys on all leaders. Raises: Refused, LogError."""
        group = self.groups.get(group_id) or ShareGroup(group_id, config=self._config_of(group_id))
        return sum(map(len, await self._leaders.parked(list(self._leaders.known(group)), "list", b"")))

    def states(self) -> Mapping[str, int]:
        """Return the number of groups by state."""
        found = {"Empty": 0, "Stable": 0}
        for group in self.groups.values():
            found[group.state] += 1
        return found

    def _remove_dead(self, group: ShareGroup) -> None:
        dead = [member.member_id for member in group.members.values() if member.client_host == IN_PROCESS]
        if dead:
            self._gone[group.group_id] = frozenset(dead)
            group.remove(dead, self._clock.steady_ms())
            self._changed(group.group_id)

    # --- timeouts ---------------------------------------------------------------------------------------------------

    def _next_ms(self) -> int | None:
        deadlines = [due for group in self.groups.values() if (due := group.next_deadline_ms()) is not None]
        # Not at once even if a deadline is due: members that never joined may still read, or the store refuse.
        soon_ms = self._clock.steady_ms() + RETRY_MS
        deadlines += [max(at, soon_ms) for group in self.groups.values() if (at := group.expires_ms) is not None]
        deadlines += self._noted.values()
        if self._unwritten:
            deadlines.append(soon_ms)
        return min(deadlines, default=None)

    def _hears(self, group_id: str) -> bool:
        """Return True if heartbeats of a group are answered here at the moment."""
        try:
            self._duties.check_coordinator(group_id)
        except Refused:
            return False
        return True

    async def _expire(self, late_ms: int = 0) -> None:
        """Remove silent members. late_ms: time this process stood still: heartbeats may wait to be read."""
        now_ms = self._clock.steady_ms()
        for group in tuple(self.groups.values()):
            if late_ms > LATE_MS or not self._hears(group.group_id):
                group.put_off(now_ms, THREE_BEATS_MS)
            gone = group.expire(now_ms)
            for member_id in gone:
                logger.warning(
                    "member timed out, its records are released group=%s member=%s", group.group_id, member_id
                )
                ended = self._returns.process_ended(group.group_id, member_id)
                self._leaders.release_member(group.group_id, member_id, died=True, gone=ended)
            if gone:
                self._changed(group.group_id)
        # Both beside the watch: what other servers keep waiting must keep no other group's members.
        for group_id, group in self.groups.items():
            if group_id not in self._deleting and self._expired(group):
                logger.warning("group had no members for share.retention.ms, its state is deleted group=%s", group_id)
                self._beside(self._deleting, self._delete_places, group_id, self._delete_idle(group_id))
        self._write_due(now_ms)

    def _beside(
        self,
        tasks: dict[str, asyncio.Task[None]],
        places: asyncio.Semaphore,
        group_id: str,
        work: Coroutine[Any, Any, None],
    ) -> None:
        """Run a group's work beside the watch, which begins it again if it failed."""

        async def in_turn() -> None:
            async with places:
                await work

        task = tasks[group_id] = self._runtime.spawn(in_turn())

        def ended(_: object) -> None:
            tasks.pop(group_id, None)
            work.close()  # a task that was cancelled before its turn has not begun it

        task.add_done_callback(ended)

    def _write_due(self, now_ms: int) -> None:
        """Write groups with noted changes that are due, and groups whose last write failed."""
        for group_id in [group_id for group_id, due_ms in self._noted.items() if due_ms <= now_ms]:
            del self._noted[group_id]
            self._changed(group_id)
        for group_id in tuple(self._unwritten):
            group = self.groups.get(group_id)
            if group is None:
                del self._unwritten[group_id]
                self._told_unwritten.discard(group_id)
            elif group_id not in self._writing:
                self._beside(self._writing, self._write_places, group_id, self._rewrite(group))

    async def _rewrite(self, group: ShareGroup) -> None:
        try:
            await self.write(group)
        except NotLed as error:
            logger.debug("group is not written here any more: %s group=%s", error, group.group_id)
        except LogError as error:
            if group.group_id not in self._told_unwritten:  # it is tried each second
                self._told_unwritten.add(group.group_id)
                logger.error(  # noqa: TRY400  the text says it
                    "group could not be written, tried again until it is: %s group=%s", error, group.group_id
                )
