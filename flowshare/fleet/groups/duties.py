"""Which groups and share-partitions are this worker's: those of the slots that it has claimed and taken up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Container, Iterable
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ClientError
from flowshare.fleet.errors import NotLed
from flowshare.fleet.log.asking import joined
from flowshare.log.base import LogError
from flowshare.protocol.errors import ErrorCode
from flowshare.server.duties import Leader
from flowshare.server.failures import Refused
from flowshare.slots.places import group_slot, share_slot

if TYPE_CHECKING:
    import uuid

    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.limits import FleetLimits
    from flowshare.fleet.log.kafka_log import KafkaLog
    from flowshare.fleet.others import OtherFleets
    from flowshare.fleet.views import GroupFacts, Views
    from flowshare.server.state import ShareKey
    from flowshare.share.config import GroupConfig

ASK_S: Final = 5.0
"""How long a group's coordinator is asked for before a share-partition cannot be loaded for now."""
PAUSE_S: Final = 0.1
KNOW_S: Final = 2.0
"""How long a member that joins waits for the brokers to tell of topics that nobody has looked for before."""


class FleetDuties:
    """`Duties` of a worker.

    serves: whether a slot is led and taken up here, and the session in the slot group is not in doubt.
    ask: a group's view from its coordinator; raises OSError, ClientError, Refused.
    """

    def __init__(
        self,
        *,
        directory: Directory,
        serves: Callable[[int], bool],
        views: Views,
        ask: Callable[[str], Awaitable[GroupFacts]],
        limits: FleetLimits,
        log: KafkaLog,
        topic_name: Callable[[ShareKey], str | None],
        others: OtherFleets,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._serves = serves
        self._views = views
        self._ask = ask
        self._limits = limits
        self._log = log
        self._topic_name = topic_name
        self._others = others
        self._clock = clock
        self._followed: dict[ShareKey, str] = {}
        self._coming: dict[str, asyncio.Task[GroupFacts]] = {}

    def check_coordinator(self, group_id: str) -> None:
        """Raises: Refused."""
        slot = group_slot(group_id, self._directory.slots)
        if self._serves(slot):
            return
        node, _ = self._directory.leader(slot)
        place = self._directory.place
        if place is not None and node == place.node_id:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id} is being loaded; try again soon")
        raise Refused(ErrorCode.NOT_COORDINATOR, f"group {group_id} is coordinated by another worker; ask for it again")

    def check_leader(self, key: ShareKey) -> None:
        """Raises: NotLed."""
        slot = share_slot(key.topic_id, key.partition, self._directory.slots)
        if not self._serves(slot):
            raise NotLed(
                f"partition {key.partition} of topic {key.topic_id} is led by another worker, or by none at the moment",
                self._directory.leader(slot),
            )

    def worker_gone(self, node_id: int, /) -> bool:
        """Whether the slot group does not have it."""
        return node_id not in self._directory.nodes

    def leader_of(self, topic_id: uuid.UUID, partition: int) -> Leader:
        """As the directory has it."""
        current = self._directory.leader_of(topic_id, partition)
        place = self._directory.nodes.get(current[0])
        return Leader(current, None if place is None else (place.host, place.port))

    async def admit(self, group_id: str) -> None:
        """Other fleets are asked whether it is theirs."""
        self.check_coordinator(group_id)
        await self._others.check(group_id)

    async def know(self, topics: Iterable[str]) -> None:
        """Ask the brokers for those that were never looked for; without an answer, they come with a later heartbeat."""
        unknown = frozenset(topics).difference(tuple(self._log.topics()))
        if not unknown:
            return
        with contextlib.suppress(LogError, TimeoutError):
            await self._clock.wait_for(self._log.refresh(unknown), KNOW_S)

    async def prepare(self, key: ShareKey) -> None:
        """Ask the coordinator, then follow the log. Raises: NotLed, LogError, Refused."""
        self._views.learn(await self._view(key))
        name = self._topic_name(key)
        if name is not None:
            committed = self._views.config_of(key.group_id).isolation_level == "read_committed"
            await self._log.follow(name, key.partition, committed=committed)
            self._followed[key] = name
        try:
            self.check_leader(key)  # it may have moved meanwhile
        except NotLed:
            self.dropped(key)
            raise

    def dropped(self, key: ShareKey) -> None:
        """Follow its log no longer."""
        name = self._followed.pop(key, None)
        if name is not None:
            self._log.unfollow(name, key.partition)

    def config_of(self, group_id: str, /) -> GroupConfig:
        """As the coordinator told, with what it leased of the group's limit."""
        return self._limits.acting(self._views.config_of(group_id), group_id)

    def living(self, group_id: str, /) -> Container[str]:
        """As the coordinator told."""
        return self._views.living(group_id)

    async def _view(self, key: ShareKey) -> GroupFacts:
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
        """A question to the coordinator that has not been put yet, shared by all who load meanwhile."""
        task = self._coming.get(group_id)
        if task is None:
            task = self._coming[group_id] = asyncio.create_task(self._put(group_id), name=f"facts of {group_id}")
            task.add_done_callback(_seen)
        return task

    async def _put(self, group_id: str) -> GroupFacts:
        del self._coming[group_id]
        return await self._ask(group_id)


def _seen(task: asyncio.Task[GroupFacts]) -> None:
    """Whoever asked may have gone away."""
    if not task.cancelled():
        task.exception()
