"""Share groups: all of them in memory, written when they change, and what their members' coming and going causes.

The rules are in `share.group`. Here: a heartbeat's answer leaves when group and new share-partition states are
written, so that a member can fetch with its first assignment; a member that leaves, is fenced or times out gives
back its records at once, on whatever partitions it holds them.

Members that were connected within the process are gone with it: they are removed when the store is opened, so that
nobody waits a session timeout for partitions that only a dead member would have. Members of other processes may come
back: for `group.share.return.grace.ms` they are expected, and keep their records; those that do not come are removed
as if their sessions had timed out. The same holds for a member of flowshare's own whose connection breaks.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from flowshare.log.base import LogError
from flowshare.protocol.errors import ErrorCode
from flowshare.server.alarm import Alarm
from flowshare.server.damage import group_id_of
from flowshare.server.failures import Refused
from flowshare.server.state import GROUP_ID_BYTES_MAX
from flowshare.share.errors import FencedMemberEpoch, GroupIdNotFound, StateCorrupt
from flowshare.share.group import ShareGroup, check_heartbeat
from flowshare.share.retention import IdleGroup, expired, next_expiry_ms

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Container, Mapping, Sequence

    from flowshare.clock import Clock
    from flowshare.log.base import Storage
    from flowshare.protocol.messages import ShareGroupHeartbeatRequest
    from flowshare.server.connection import InProcess
    from flowshare.server.damage import Damage
    from flowshare.server.initializer import Initializer
    from flowshare.server.partitions import Partitions
    from flowshare.server.state import Write
    from flowshare.server.topic_index import TopicIndex
    from flowshare.share.config import GroupConfig
    from flowshare.share.group import Heartbeat, ToInitialize

logger = logging.getLogger(__name__)

PREFIX: Final = b"g/"
IN_PROCESS: Final = "in-process"
"""Host of connections within the process."""
GROUPS_MAX: Final = 10_000
"""Groups that may exist."""
RETRY_MS: Final = 1_000


class Coordinator:
    """All share groups of a server."""

    def __init__(
        self,
        *,
        storage: Storage,
        topics: TopicIndex,
        partitions: Partitions,
        initializer: Initializer,
        clock: Clock,
        config_of: Callable[[str], GroupConfig],
        damage: Damage,
        return_grace_ms: int,
        is_other_group: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._storage = storage
        self._topics = topics
        self._partitions = partitions
        self._initializer = initializer
        self._clock = clock
        self._config_of = config_of
        self._damage = damage
        self._return_grace_ms = return_grace_ms
        self._is_other_group = is_other_group
        self._beating: dict[InProcess, set[tuple[str, str]]] = {}
        self._alarm = Alarm(clock)
        self._unwritten: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self.groups: dict[str, ShareGroup] = {}

    async def start(self) -> None:
        """Read all groups and begin to watch their members' timeouts. Raises: LogError."""
        for key, value in await self._storage.scan(PREFIX):
            group_id = group_id_of(key, PREFIX)
            if group_id is None or group_id in self._damage:
                continue
            try:
                group = ShareGroup.decode(
                    value, group_id=group_id, config=self._config_of(group_id), now_ms=self._clock.now_ms()
                )
            except StateCorrupt as error:
                self._damage.add(group_id, key, f"its members and epochs: {error}")
                continue
            self.groups[group_id] = group
            self._remove_dead(group)
            if self._return_grace_ms:
                group.expect_by(tuple(group.members), self._clock.now_ms() + self._return_grace_ms)
        await self._forget_deleted_topics()
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="share groups")

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def living(self, group_id: str) -> Container[str]:
        """Members of the group that keep what they had acquired before this server was started."""
        group = self.groups.get(group_id)
        return group.members if group is not None and self._return_grace_ms else ()

    def lost(self, connection: InProcess) -> None:
        """A connection is closed: members of flowshare's own that sent heartbeats over it are to come back soon."""
        due_ms = self._clock.now_ms() + self._return_grace_ms
        for group_id, member_id in self._beating.pop(connection, ()):
            group = self.groups.get(group_id)
            if group is not None and self._return_grace_ms and connection.own:
                group.expect_by((member_id,), due_ms)
                self._expect(due_ms)

    def interval_ms(self, group_id: str) -> int:
        """How often the group's members are to send heartbeats."""
        return self._config_of(group_id).heartbeat_interval_ms

    def find(self, group_id: str) -> ShareGroup:
        """The group. Raises: GroupIdNotFound, StateCorrupt (what is stored of it cannot be read)."""
        self._damage.check(group_id)
        group = self.groups.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"there is no group {group_id!r}")
        return group

    def ensure(self, group_id: str) -> ShareGroup:
        """The group, made if there is none; write it then.

        Raises: Refused (a bad id, or too many groups), StateCorrupt (what is stored of it cannot be read),
        GroupIdNotFound (a consumer group has this id)
        """
        self._damage.check(group_id)
        group = self.groups.get(group_id)
        if group is None:
            if self._is_other_group(group_id):
                raise GroupIdNotFound(f"{group_id!r} is a consumer group; use another group id")
            if len(self.groups) >= GROUPS_MAX:
                raise Refused(ErrorCode.POLICY_VIOLATION, f"there are {GROUPS_MAX} groups; delete some first")
            if not 0 < len(group_id.encode()) <= GROUP_ID_BYTES_MAX:
                raise Refused(ErrorCode.INVALID_REQUEST, f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes")
            group = self.groups[group_id] = ShareGroup(group_id, config=self._config_of(group_id))
        return group

    async def heartbeat(self, request: ShareGroupHeartbeatRequest, connection: InProcess) -> Heartbeat:
        """Take a heartbeat and make durable what it changes.

        Raises: what `ShareGroup.heartbeat` raises, GroupIdNotFound, Refused
        """
        group_id, member_id, epoch = request.group_id, request.member_id, request.member_epoch
        check_heartbeat(group_id, member_id, epoch, request.rack_id, request.subscribed_topics)
        group = self.ensure(group_id) if epoch == 0 else self.find(group_id)
        try:
            beat = group.heartbeat(
                member_id=member_id,
                member_epoch=epoch,
                rack_id=request.rack_id,
                subscribed_topics=request.subscribed_topics,
                client_id=connection.client_id,
                client_host=connection.host,
                topics=self._topics,
                now_ms=self._clock.now_ms(),
            )
        except FencedMemberEpoch:
            self._partitions.release_member(group_id, member_id)
            raise
        self._beats_over(connection, group_id, member_id, left=beat.left)
        if beat.left:
            self._partitions.release_member(group_id, member_id)
            self._alarm.ring()  # the group may be empty now, and expire
        else:
            self._expect(self._clock.now_ms() + group.config.session_timeout_ms)
        if beat.changed or group_id in self._unwritten:
            await self._write_states(group, beat.to_initialize)
        return beat

    def _beats_over(self, connection: InProcess, group_id: str, member_id: str, *, left: bool) -> None:
        """Remember over which connections members send their heartbeats."""
        key = (group_id, member_id)
        if left:
            self._beating.get(connection, set[tuple[str, str]]()).discard(key)
        elif not connection.closed:
            self._beating.setdefault(connection, set()).add(key)

    async def write(self, group: ShareGroup, more: Sequence[Write] = ()) -> None:
        """Write a group as it is now, together with `more`. Raises: LogError."""
        self._unwritten.add(group.group_id)
        await self._storage.write([*more, (PREFIX + group.group_id.encode(), group.encode())])
        self._unwritten.discard(group.group_id)

    async def delete(self, group_id: str) -> None:
        """Delete an empty group with the state of its share-partitions; its settings stay.

        Raises: GroupIdNotFound, NonEmptyGroup, LogError
        """
        if group_id in self._damage:
            await self._delete_damaged(group_id)
            return
        group = self.find(group_id)
        group.require_empty()
        await self._partitions.settled(self._partitions.known(group_id))
        keys = self._partitions.known(group_id)
        with self._partitions.held(keys):
            await self._partitions.drop(keys)
            writes = await self._initializer.deletions(keys)
            group.require_empty()
            self.groups.pop(group_id, None)  # first: who joins from now on makes a new group
            self._unwritten.discard(group_id)
            try:
                await self._storage.write([*writes, (PREFIX + group_id.encode(), None)])
            except LogError:
                self.groups.setdefault(group_id, group)
                raise
            await self._partitions.forget(keys)

    async def _delete_damaged(self, group_id: str) -> None:
        """Delete all that is stored of a group that cannot be read. Raises: LogError."""
        keys = self._partitions.known(group_id)
        writes = await self._initializer.deletions(keys)
        writes += [(key, None) for key in (PREFIX + group_id.encode(), *self._damage.keys(group_id))]
        await self._storage.write(writes)
        await self._partitions.forget(keys)
        self._damage.forget(group_id)

    async def topic_deleted(self, topic_id: uuid.UUID) -> None:
        """Forget a deleted topic in all groups, and the state of its share-partitions. Raises: LogError."""
        keys = self._partitions.of_topic(topic_id)
        await self._partitions.forget(keys)
        writes = await self._initializer.deletions(keys)
        changed = [group for group in self.groups.values() if group.topic_deleted(topic_id)]
        self._unwritten.update(group.group_id for group in changed)
        writes.extend((PREFIX + group.group_id.encode(), group.encode()) for group in changed)
        if writes:
            await self._storage.write(writes)

    async def _forget_deleted_topics(self) -> None:
        """Finish what a crash between deleting a topic and telling the groups left undone."""
        for topic_id in self._partitions.topic_ids():
            if self._topics.by_id(topic_id) is None:
                try:
                    await self.topic_deleted(topic_id)
                except LogError as error:
                    logger.warning("state of a deleted topic is left for the next start: %s id=%s", error, topic_id)

    def configure(self, group_id: str) -> None:
        """The group's config has changed."""
        group = self.groups.get(group_id)
        if group is not None:
            group.config = self._config_of(group_id)
            self._alarm.ring()  # when members time out, or the group expires, may have changed
        self._partitions.configure(group_id)

    def states(self) -> Mapping[str, int]:
        """Number of groups by state."""
        found = {"Empty": 0, "Stable": 0}
        for group in self.groups.values():
            found[group.state] += 1
        return found

    async def _write_states(self, group: ShareGroup, items: Sequence[ToInitialize]) -> None:
        """Give new share-partitions their first state and write the group, all in one write."""
        self._unwritten.add(group.group_id)
        try:
            async with self._initializer.first_states(group, items) as writes:
                await self.write(group, writes)
        except LogError as error:
            group.initialize_failed(items)
            raise Refused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group.group_id} could not be written: {error}"
            ) from error

    def _remove_dead(self, group: ShareGroup) -> None:
        dead = [member.member_id for member in group.members.values() if member.client_host == IN_PROCESS]
        for member_id in dead:
            group.heartbeat(
                member_id=member_id,
                member_epoch=-1,
                rack_id=None,
                subscribed_topics=None,
                client_id="",
                client_host="",
                topics=self._topics,
                now_ms=self._clock.now_ms(),
            )
        if dead:
            self._unwritten.add(group.group_id)

    # --- timeouts ---------------------------------------------------------------------------------------------------

    def _expect(self, due_ms: int) -> None:
        """A member may time out at `due_ms`."""
        if self._alarm.due_ms is None or due_ms < self._alarm.due_ms:
            self._alarm.ring()

    async def _watch(self) -> None:
        while True:
            try:
                await self._expire()
            except LogError as error:
                logger.error("groups could not be written, tried again soon: %s", error)  # noqa: TRY400  the text says it
            except Exception:
                logger.exception("watching the groups' members failed, going on")
                await self._clock.sleep(RETRY_MS / 1000)
            await self._alarm.sleep_until(self._next_ms())

    def _next_ms(self) -> int | None:
        deadlines = [due for group in self.groups.values() if (due := group.next_deadline_ms()) is not None]
        expiry_ms = next_expiry_ms(self._expiring())
        if expiry_ms is not None:
            # Not at once even if it is due: members that never joined may still read, or the store refuse.
            deadlines.append(max(expiry_ms, self._clock.now_ms() + RETRY_MS))
        if self._unwritten:
            deadlines.append(self._clock.now_ms() + RETRY_MS)
        return min(deadlines, default=None)

    def _expiring(self) -> list[IdleGroup]:
        return [
            IdleGroup(group.group_id, group.empty_since_ms, group.config.retention_ms)
            for group in self.groups.values()
            if group.config.retention_ms is not None
        ]

    async def _expire(self) -> None:
        now_ms = self._clock.now_ms()
        for group in tuple(self.groups.values()):
            gone = group.expire(now_ms)
            for member_id in gone:
                logger.warning(
                    "member timed out, its records are released group=%s member=%s", group.group_id, member_id
                )
                self._partitions.release_member(group.group_id, member_id, died=True)
            if gone:
                self._unwritten.add(group.group_id)
        for group_id in expired(self._expiring(), now_ms):
            if not all(owner.idle for owner in self._partitions.owners(group_id)):
                continue
            logger.warning("group had no members for share.retention.ms, its state is deleted group=%s", group_id)
            await self.delete(group_id)
        for group_id in tuple(self._unwritten):
            if group_id in self.groups:
                await self.write(self.groups[group_id])
            else:
                self._unwritten.discard(group_id)
