"""The groups and share-partitions of this worker (`FleetDuties`): those of the slots that it has claimed; and how they
are taken up with a slot's claim and laid down with its end (`FleetSlotContents`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError
from flowshare.core_errors import StateCorrupt
from flowshare.fleet.groups.settings import NAME
from flowshare.fleet.log.lookups import joined
from flowshare.log.base import LogError, NotLed, StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import Refused
from flowshare.server.runtime.state import PREFIX as STATE
from flowshare.server.runtime.state import key_of
from flowshare.server.share.coordinator import PREFIX as GROUP
from flowshare.server.share.duties import Duties, PartitionLeader
from flowshare.server.share.group_configs import PREFIX as SETTINGS
from flowshare.slots.placement import group_slot, share_slot
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Sequence

    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.groups.facts import FleetGroups, KnownGroups
    from flowshare.fleet.groups.limits import FleetLimits
    from flowshare.fleet.groups.other_fleets import OtherFleets
    from flowshare.fleet.groups.settings import FleetSettings
    from flowshare.fleet.log.kafka_log import KafkaLog
    from flowshare.fleet.messages import GroupFacts
    from flowshare.log.base import Topic
    from flowshare.server.cooperative.coordinator import CooperativeGroups
    from flowshare.server.runtime.state import ShareKey
    from flowshare.server.share.service import ShareService
    from flowshare.share.config import GroupConfig

ASK_S: Final = 5.0
"""Time, in s, for asking a group's coordinator before the loading of a share-partition fails."""
PAUSE_S: Final = 0.1
KNOW_S: Final = 2.0
"""Time, in s, that a joining member waits for the brokers to tell of topics never looked for before."""
TAKE_UP_S: Final = 5.0
"""Time, in s, that a slot which is taken up, and is not served meanwhile, waits for the brokers to tell of its
topics."""
NAMES_S: Final = 30.0
"""The same for the topics that groups have subscribed to: a group whose topics are not known takes all partitions from
its members, and these wait for as long as their sessions last (45 s)."""
FORGET_S: Final = 5.0
"""Pause, in s, before the brokers are asked again whether they still have a topic that was made anew."""


class FleetDuties(Duties):
    """The duties of a worker.

    serves: True if a slot is led and taken up here, and the session in the slot group is not in doubt.
    ask: returns a group's facts from its coordinator; raises OSError, ClientError, Refused.
    """

    def __init__(
        self,
        *,
        directory: Directory,
        serves: Callable[[int], bool],
        known_groups: KnownGroups,
        ask: Callable[[str], Awaitable[GroupFacts]],
        limits: FleetLimits,
        log: KafkaLog,
        topic_name: Callable[[ShareKey], str | None],
        other_fleets: OtherFleets,
        clock: Clock,
    ) -> None:
        super().__init__(self._acting, known_groups.living)
        self._known_groups = known_groups
        self._directory = directory
        self._serves = serves
        self._ask = ask
        self._limits = limits
        self._log = log
        self._topic_name = topic_name
        self._other_fleets = other_fleets
        self._clock = clock
        self._followed: dict[ShareKey, str] = {}
        self._coming: dict[str, asyncio.Task[GroupFacts]] = {}

    def check_coordinator(self, group_id: str) -> None:
        """Check the group. Raises Refused."""
        if self._serves(group_slot(group_id, self._directory.slots)):
            return
        if self._directory.is_me(self._directory.group_leader(group_id)):
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id} is being loaded; try again soon")
        raise Refused(ErrorCode.NOT_COORDINATOR, f"group {group_id} is coordinated by another worker; ask for it again")

    def check_leader(self, key: ShareKey) -> None:
        """Check leading. Raises NotLed."""
        slot = share_slot(key.topic_id, key.partition, self._directory.slots)
        if not self._serves(slot):
            raise NotLed(
                f"partition {key.partition} of topic {key.topic_id} is led by another worker, or by none at the moment",
                self._directory.leader(slot),
            )

    def worker_gone(self, node_id: int, /) -> bool:
        """True if the slot group does not have the worker."""
        return node_id not in self._directory.nodes

    def leader_of(self, topic_id: uuid.UUID, partition: int) -> PartitionLeader:
        """Return the directory's leader."""
        current = self._directory.leader_of(topic_id, partition)
        place = self._directory.nodes.get(current[0])
        return PartitionLeader(current, None if place is None else (place.host, place.port))

    async def admit(self, group_id: str) -> None:
        """Check that no other fleet has the group. Raises Refused, GroupIdNotFound."""
        self.check_coordinator(group_id)
        await self._other_fleets.check(group_id)

    async def know(self, topics: Iterable[str]) -> None:
        """Ask the brokers for topics never looked for; without an answer, they come with a later heartbeat."""
        unknown = frozenset(topics).difference(tuple(self._log.topics()))
        if not unknown:
            return
        with contextlib.suppress(LogError, TimeoutError):
            await self._clock.wait_for(self._log.refresh(unknown), KNOW_S)

    async def exists(self, topic_id: uuid.UUID) -> bool:
        """True if the topic exists; the brokers are asked, more than once."""
        return await self._log.exists(topic_id)

    async def prepare(self, key: ShareKey) -> None:
        """Ask the coordinator, then follow the log. Raises NotLed, LogError, Refused."""
        self._known_groups.learn(await self._facts_soon(key))
        name = self._topic_name(key)
        if name is not None:
            committed = self._known_groups.config_of(key.group_id).isolation_level == "read_committed"
            await self._log.follow(name, key.partition, committed=committed)
            self._followed[key] = name
        try:
            self.check_leader(key)  # the share-partition may have moved meanwhile
        except NotLed:
            self.dropped(key)
            raise

    def dropped(self, key: ShareKey) -> None:
        """Follow the dropped log no longer."""
        name = self._followed.pop(key, None)
        if name is not None:
            self._log.unfollow(name, key.partition)

    def _acting(self, group_id: str) -> GroupConfig:
        """Return the group's settings as the coordinator told them, with the leased part of its limit."""
        return self._limits.acting(self._known_groups.config_of(group_id), group_id)

    async def _facts_soon(self, key: ShareKey) -> GroupFacts:
        end_s = self._clock.monotonic() + ASK_S
        while True:
            self.check_leader(key)
            try:
                return await joined(self._facts(key.group_id))
            except (OSError, ClientError, Refused) as error:
                if self._clock.monotonic() + PAUSE_S >= end_s:
                    raise Refused(
                        ErrorCode.COORDINATOR_NOT_AVAILABLE,
                        f"the coordinator of group {key.group_id} is not reached: {error}",
                    ) from error
            await self._clock.sleep(PAUSE_S)

    def _facts(self, group_id: str) -> asyncio.Task[GroupFacts]:
        """Return the next question to the coordinator, shared by all share-partitions that load meanwhile."""
        task = self._coming.get(group_id)
        if task is None:
            task = self._coming[group_id] = asyncio.create_task(self._put(group_id), name=f"facts of {group_id}")
            task.add_done_callback(_seen)
        return task

    async def _put(self, group_id: str) -> GroupFacts:
        del self._coming[group_id]
        return await self._ask(group_id)


def _seen(task: asyncio.Task[GroupFacts]) -> None:
    """Retrieve a task's error: its callers may have gone away."""
    if not task.cancelled():
        task.exception()


logger = logging.getLogger(__name__)


class FleetSlotContents:
    """Settings, groups and share-partitions of a worker."""

    def __init__(
        self,
        *,
        service: ShareService,
        settings: FleetSettings,
        groups: FleetGroups,
        log: KafkaLog,
        slots: int,
        cooperative: CooperativeGroups,
        clock: Clock,
    ) -> None:
        self._service = service
        self._clock = clock
        self._cooperative = cooperative
        self._settings = settings
        self._groups = groups
        self._log = log
        self._slots = slots
        self._seen: dict[str, Topic] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        log.on_topics(self._topics_changed)

    async def take_up(self, slot: int, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Take up the stored content of a slot, before it is served; the topics that it names are looked up.

        A group whose topics are not known yet would take the partitions from its members until they are.
        """
        if slot == self._settings.slot:
            await self._settings.take_up(entries)
        await self._settings.known()
        ids = {topic_id for key, _ in entries if (topic_id := _topic_of(key)) is not None}
        await self.know({topic_id for topic_id in ids if self._service.topics.by_id(topic_id) is None})
        self._service.take_up(entries)
        await self.know(names=self._subscribed(entries).difference(tuple(self._log.topics())), limit_s=NAMES_S)
        told = {key[2:].decode(errors="replace") for key, _ in entries if key.startswith((GROUP, SETTINGS))}
        for group_id in sorted(told - {NAME}):
            self._groups.tell(group_id)

    def _subscribed(self, entries: Sequence[tuple[bytes, bytes]]) -> frozenset[str]:
        """Return the topics of the groups among these entries, which are coordinated here by now."""
        groups = self._service.coordinator.groups
        taken = [key[len(GROUP) :].decode(errors="replace") for key, _ in entries if key.startswith(GROUP)]
        return frozenset[str]().union(*(groups[group_id].subscribed for group_id in taken if group_id in groups))

    async def lay_down(self, slot: int) -> None:
        """Serve a slot no more; queued writes are written, if possible. Those of cooperative groups are refused: their
        members repeat them, to the next leader."""
        self._cooperative.lay_down(lambda group_id: group_slot(group_id, self._slots) == slot)
        await self._service.lay_down(
            groups=lambda group_id: group_slot(group_id, self._slots) == slot,
            share_partitions=lambda key: share_slot(key.topic_id, key.partition, self._slots) == slot,
        )

    async def know(
        self, ids: Collection[uuid.UUID] = (), names: Collection[str] = (), limit_s: float = TAKE_UP_S
    ) -> None:
        """Look topics up; missing ones are looked for when they are asked for. A look that takes longer than `limit_s`
        goes on: nobody asks by id again."""
        if names or ids:
            look = self._begin(self._look(names, ids), "topics of a slot")
            with contextlib.suppress(TimeoutError):
                await self._clock.wait_for(asyncio.shield(look), limit_s)

    async def _look(self, names: Collection[str], ids: Collection[uuid.UUID]) -> None:
        try:
            await self._log.refresh(names, ids)
        except (LogError, OSError, ClientError) as error:
            logger.warning("%d topics of groups cannot be looked up now: %s", len(names) + len(ids), error)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Stop looking for topics and forgetting them."""
        await cancelled(*self._tasks)

    def _topics_changed(self, names: Collection[str]) -> None:
        """Forget the stored state of topics that were made anew. A topic that is only missing may come back: brokers
        that have just started do not know all topics."""
        topics = self._log.topics()
        for name in names:
            topic = topics.get(name)
            if topic is None:
                continue
            before = self._seen.get(name)
            self._seen[name] = topic
            if before is None:
                continue
            if before.topic_id != topic.topic_id:
                self._tell_of_a_new_one(before)
                self._begin(self._forget(before.topic_id), f"forget {before.topic_id}")
            elif before.partitions < topic.partitions:
                self._warn_of_growth(before, topic)

    def _tell_of_a_new_one(self, before: Topic) -> None:
        """Warn that a topic was made anew; its readers at other workers are warned there."""
        groups = self._service.coordinator.groups
        readers = {group_id for group_id, group in groups.items() if before.name in group.subscribed}
        readers |= {key.group_id for key in self._service.partitions.of_topic(before.topic_id)}
        if readers:
            logger.warning(
                "topic %s was made anew: groups begin anew on it: %s", before.name, ", ".join(sorted(readers))
            )
        else:
            logger.warning(
                "topic %s was made anew: what is written goes into the new one, the old one is gone", before.name
            )

    def _warn_of_growth(self, before: Topic, topic: Topic) -> None:
        """Warn if new partitions break a group's order by key: only Kafka adds partitions, so the coordinator can only
        tell."""
        for group_id, group in self._service.coordinator.groups.items():
            if topic.name in group.subscribed and self._service.configs.acting(group_id).key_order:
                logger.warning(
                    "topic %s has %d partitions now (%d before), and group %s reads it in the order of keys: records "
                    "of one key that lie in different partitions may run side by side or out of order until those "
                    "sent before are handled",
                    topic.name,
                    topic.partitions,
                    before.partitions,
                    group_id,
                )

    async def _forget(self, topic_id: uuid.UUID) -> None:
        """Forget a topic once the brokers do not have it: the one that is known now may be an older one, told by a
        broker that was cut off."""
        while await self._may_exist(topic_id):
            await self._clock.sleep(FORGET_S)
        try:
            await self._service.coordinator.topic_deleted(topic_id)
            await self._cooperative.topic_gone(topic_id)
        except LogError as error:
            logger.warning("state of a topic that was made anew is left: %s id=%s", error, topic_id)

    async def _may_exist(self, topic_id: uuid.UUID) -> bool:
        """Return False if the brokers do not have a topic; True also while they do not say."""
        try:
            return await self._log.exists(topic_id)
        except StorageError as error:
            logger.info("whether a topic that was made anew is gone is asked again: %s id=%s", error, topic_id)
            return True


def _topic_of(key: bytes) -> uuid.UUID | None:
    if not key.startswith(STATE):
        return None
    try:
        return key_of(key).topic_id
    except StateCorrupt:
        return None
