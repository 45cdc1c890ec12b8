"""What is known of a cluster: addresses of its nodes, who leads which partition, topic names by id. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from flowshare.protocol.messages import MetadataResponse, TopicPartition

Address = tuple[str, int]
NOBODY: Final = -1
"""Leader of a partition that has none, or of which none is known."""


class Topology:
    """Filled from metadata, corrected by what brokers say when they are asked for a partition they do not lead."""

    def __init__(self) -> None:
        self.nodes: dict[int, Address] = {}
        self._ids: dict[uuid.UUID, str] = {}
        self._leaders: dict[str, list[int]] = {}
        self._hinted: dict[tuple[str, int], int] = {}
        """Leader epoch of each partition whose leader a broker named last."""

    def apply(self, answer: MetadataResponse) -> None:
        """Take over what a broker knows: newer than every hint so far."""
        if answer.nodes:
            self.nodes = dict(answer.nodes)
        for topic in answer.topics:
            if topic.error is not ErrorCode.NONE or topic.topic_id is None:
                self._forget(topic.name, topic.topic_id)
                continue
            self._ids[topic.topic_id] = topic.name
            self._leaders[topic.name] = list(topic.leaders)
            for partition in range(topic.partitions):
                self._hinted.pop((topic.name, partition), None)

    def knows(self, topic: str) -> bool:
        """Whether the topic's leaders are known."""
        return topic in self._leaders

    def name(self, topic_id: uuid.UUID) -> str | None:
        """Name of a topic."""
        return self._ids.get(topic_id)

    def leader(self, topic: str, partition: int) -> int:
        """Node that leads a partition, NOBODY when that is not known."""
        leaders = self._leaders.get(topic, ())
        return leaders[partition] if 0 <= partition < len(leaders) else NOBODY

    def leader_of(self, tp: TopicPartition) -> int:
        """As `leader`, by the topic's id."""
        name = self._ids.get(tp.topic_id)
        return NOBODY if name is None else self.leader(name, tp.partition)

    def hint(self, tp: TopicPartition, leader: tuple[int, int], endpoints: Mapping[int, Address]) -> bool:
        """A broker named a partition's (node, leader epoch); returns whether it is news that can be used."""
        node, epoch = leader
        name = self._ids.get(tp.topic_id)
        self.nodes.update(endpoints)
        leaders = self._leaders.get(name or "", [])
        if name is None or node < 0 or node not in self.nodes or not 0 <= tp.partition < len(leaders):
            return False
        if epoch < self._hinted.get((name, tp.partition), -1):
            return False
        self._hinted[name, tp.partition] = epoch
        changed = leaders[tp.partition] != node
        leaders[tp.partition] = node
        return changed

    def _forget(self, name: str, topic_id: uuid.UUID | None) -> None:
        self._leaders.pop(name, None)
        if topic_id is not None:
            old = self._ids.pop(topic_id, None)
            if old is not None:
                self._leaders.pop(old, None)
