"""A client's knowledge of a cluster: addresses of nodes, leaders of partitions, topic names by id. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from flowshare.protocol.messages import MetadataResponse, TopicMetadata, TopicPartition

Address = tuple[str, int]
NOBODY: Final = -1
"""The leader of a partition without a leader, or without a known one."""


class Topology:
    """Filled from metadata, corrected by brokers that are asked for a partition they do not lead.

    Leaders come with leader epochs, which never fall: of two answers, the one with the lower epoch is older, from any
    broker and in any order. An answer without epochs is newer than everything before it.
    """

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        """The cluster's id; None while no broker has reported it."""
        self.nodes: dict[int, Address] = {}
        self.controller = NOBODY
        """The node that creates and deletes topics; NOBODY: any."""
        self._ids: dict[uuid.UUID, str] = {}
        self._leaders: dict[str, list[int]] = {}
        self._epochs: dict[str, list[int]] = {}
        """The leader epoch of each partition, −1: not known."""

    def apply(self, answer: MetadataResponse) -> None:
        """Take in a broker's facts, but for partitions with newer known facts."""
        if answer.cluster_id is not None and answer.cluster_id != self.cluster_id:
            if self.cluster_id is not None:  # what is known is of another one, and its epochs are nothing to this one
                self._forget_all()
            self.cluster_id = answer.cluster_id
        before = self.nodes
        if answer.nodes:
            self.nodes = dict(answer.nodes)
            self.controller = answer.controller if answer.controller in self.nodes else NOBODY
        for topic in answer.topics:
            if topic.error is not ErrorCode.NONE or topic.topic_id is None:
                self._forget(topic.name, topic.topic_id)
                continue
            if topic.topic_id not in self._ids:
                self._epochs.pop(topic.name, None)  # made anew: its epochs begin anew
            self._ids[topic.topic_id] = topic.name
            self._take(topic, before)

    def node_at(self, address: Address) -> int:
        """Return the node at this address; NOBODY: none is known."""
        return next((node for node, there in self.nodes.items() if there == address), NOBODY)

    def _forget_all(self) -> None:
        self.nodes = {}
        self.controller = NOBODY
        for known in (self._ids, self._leaders, self._epochs):
            known.clear()

    def _take(self, topic: TopicMetadata, before: Mapping[int, Address]) -> None:
        leaders = list(topic.leaders)
        epochs = [*topic.leader_epochs, *[-1] * (len(leaders) - len(topic.leader_epochs))]
        known = zip(self._leaders.get(topic.name, ()), self._epochs.get(topic.name, ()), strict=False)
        for partition, (leader, epoch) in enumerate(known):
            if partition < len(leaders) and 0 <= epochs[partition] < epoch:
                leaders[partition], epochs[partition] = leader, epoch
                if leader in before:
                    self.nodes.setdefault(leader, before[leader])
        self._leaders[topic.name], self._epochs[topic.name] = leaders, epochs

    def knows(self, topic: str) -> bool:
        """Tell if the leaders of the topic are known."""
        return topic in self._leaders

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition; NOBODY: not known."""
        leaders = self._leaders.get(topic, ())
        return leaders[partition] if 0 <= partition < len(leaders) else NOBODY

    def leader_of(self, tp: TopicPartition) -> int:
        """Return the node that leads a partition, by the topic's id; NOBODY: not known."""
        name = self._ids.get(tp.topic_id)
        return NOBODY if name is None else self.leader(name, tp.partition)

    def hint(self, tp: TopicPartition, leader: tuple[int, int], endpoints: Mapping[int, Address]) -> bool:
        """Take in a partition's (node, leader epoch) as a broker named them; True: the leader is a new one."""
        node, epoch = leader
        name = self._ids.get(tp.topic_id)
        self.nodes.update(endpoints)
        leaders = self._leaders.get(name or "", [])
        if name is None or node < 0 or node not in self.nodes or not 0 <= tp.partition < len(leaders):
            return False
        epochs = self._epochs[name]
        if epoch < epochs[tp.partition]:
            return False
        epochs[tp.partition] = epoch
        changed = leaders[tp.partition] != node
        leaders[tp.partition] = node
        return changed

    def _forget(self, name: str, topic_id: uuid.UUID | None) -> None:
        old = None if topic_id is None else self._ids.pop(topic_id, None)
        for gone in (name, old):
            if gone is not None:
                self._leaders.pop(gone, None)
                self._epochs.pop(gone, None)
