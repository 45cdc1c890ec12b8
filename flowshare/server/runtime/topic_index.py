"""Topics by id: the share APIs name topics by id, the log by name.

A topic that was deleted and made again has a new id, so that an id never leads to the records of another topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from flowshare.core_errors import UnknownTopicId, UnknownTopicOrPartition
from flowshare.share.group import TopicInfo

if TYPE_CHECKING:
    import uuid

    from flowshare.log.base import Log, Topic


class TopicIndex(Mapping[str, TopicInfo]):
    """A view of the log's topics: by name for groups, by id for share requests.

    The ids are looked up again when an id or a name no longer fits.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._names: dict[uuid.UUID, str] = {}

    def __getitem__(self, name: str) -> TopicInfo:
        topic = self._log.topics()[name]
        return TopicInfo(topic.name, topic.topic_id, topic.partitions)

    def __iter__(self) -> Iterator[str]:
        return iter(self._log.topics())

    def __len__(self) -> int:
        return len(self._log.topics())

    def by_name(self, name: str) -> Topic | None:
        """Return the topic of this name, or None."""
        return self._log.topics().get(name)

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return the topic with this id, or None if it does not exist (any more)."""
        topics = self._log.topics()
        name = self._names.get(topic_id)
        topic = topics.get(name) if name is not None else None
        if topic is not None and topic.topic_id == topic_id:
            return topic
        self._names = {found.topic_id: found.name for found in topics.values()}
        name = self._names.get(topic_id)
        return topics[name] if name is not None else None

    def find(self, topic_id: uuid.UUID, partition: int) -> Topic:
        """Return the topic with this id and this partition. Raises: UnknownTopicId, UnknownTopicOrPartition."""
        topic = self.by_id(topic_id)
        if topic is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        if not 0 <= partition < topic.partitions:
            raise UnknownTopicOrPartition(f"topic {topic.name} has no partition {partition}")
        return topic
