"""What lives in a worker's slots: taken up with a slot's claim, laid down with its end; and what becomes of topics."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from flowshare.client.errors import ClientError
from flowshare.fleet.settings import NAME
from flowshare.log.base import LogError
from flowshare.server.coordinator import PREFIX as GROUP
from flowshare.server.group_configs import PREFIX as SETTINGS
from flowshare.server.state import PREFIX as STATE
from flowshare.server.state import key_of
from flowshare.share.errors import StateCorrupt
from flowshare.slots.places import group_slot, share_slot

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Sequence

    from flowshare.fleet.groups import FleetGroups
    from flowshare.fleet.log.kafka_log import KafkaLog
    from flowshare.fleet.settings import FleetSettings
    from flowshare.server.share_service import ShareService

logger = logging.getLogger(__name__)


class FleetTenant:
    """Settings, groups and share-partitions of a worker."""

    def __init__(
        self, *, service: ShareService, settings: FleetSettings, groups: FleetGroups, log: KafkaLog, slots: int
    ) -> None:
        self._service = service
        self._settings = settings
        self._groups = groups
        self._log = log
        self._slots = slots
        self._ids: dict[str, uuid.UUID] = {}
        self._forgetting: set[asyncio.Task[None]] = set()
        log.on_topics(self._topics_changed)

    async def take_up(self, slot: int, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Take up what is stored in a slot, before it is served; the topics that it names are looked for.

        A group whose topics are not known yet would take the partitions from its members until they are.
        """
        if slot == self._settings.slot:
            await self._settings.take_up(entries)
        await self._settings.known()
        ids = {topic_id for key, _ in entries if (topic_id := _topic_of(key)) is not None}
        await self.know({topic_id for topic_id in ids if self._service.topics.by_id(topic_id) is None})
        self._service.take_up(entries)
        await self.know(names=self._subscribed(entries).difference(tuple(self._log.topics())))
        told = {key[2:].decode(errors="replace") for key, _ in entries if key.startswith((GROUP, SETTINGS))}
        self._groups.took_up(sorted(told - {NAME}))

    def _subscribed(self, entries: Sequence[tuple[bytes, bytes]]) -> frozenset[str]:
        """Topics of the groups among these entries, which are coordinated here by now."""
        groups = self._service.coordinator.groups
        taken = [key[len(GROUP) :].decode(errors="replace") for key, _ in entries if key.startswith(GROUP)]
        return frozenset[str]().union(*(groups[group_id].subscribed for group_id in taken if group_id in groups))

    async def lay_down(self, slot: int) -> None:
        """Serve it no more; what is queued is written, if it still can be."""
        await self._service.lay_down(
            groups=lambda group_id: group_slot(group_id, self._slots) == slot,
            share_partitions=lambda key: share_slot(key.topic_id, key.partition, self._slots) == slot,
        )

    async def know(self, ids: Collection[uuid.UUID] = (), names: Collection[str] = ()) -> None:
        """Look topics up; what is not found now is looked for when it is asked for."""
        if not names and not ids:
            return
        try:
            await self._log.refresh(names, ids)
        except (LogError, OSError, ClientError) as error:
            logger.warning("%d topics of groups cannot be looked up now: %s", len(names) + len(ids), error)

    async def close(self) -> None:
        """Stop forgetting topics."""
        forgetting = list(self._forgetting)
        for task in forgetting:
            task.cancel()
        await asyncio.gather(*forgetting, return_exceptions=True)

    def _topics_changed(self, names: Collection[str]) -> None:
        """What is stored of a topic that was made anew is of no use. One that is only missing may come back: brokers
        that have just started do not know of all topics."""
        topics = self._log.topics()
        for name in names:
            topic = topics.get(name)
            if topic is None:
                continue
            before = self._ids.get(name)
            self._ids[name] = topic.topic_id
            if before is not None and before != topic.topic_id:
                logger.warning("topic %s was made anew: groups begin anew on it", name)
                task = asyncio.create_task(self._forget(before), name=f"forget {before}")
                self._forgetting.add(task)
                task.add_done_callback(self._forgetting.discard)

    async def _forget(self, topic_id: uuid.UUID) -> None:
        try:
            await self._service.coordinator.topic_deleted(topic_id)
        except LogError as error:
            logger.warning("state of a topic that was made anew is left: %s id=%s", error, topic_id)


def _topic_of(key: bytes) -> uuid.UUID | None:
    if not key.startswith(STATE):
        return None
    try:
        return key_of(key).topic_id
    except StateCorrupt:
        return None
