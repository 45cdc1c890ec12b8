"""Stored form of a group of Kafka's consumer protocol: one entry with its epochs, and one entry for each member.

A heartbeat mostly changes one member, so the whole group is not written. Deadlines are not stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from flowshare.core_errors import StateCorrupt
from flowshare.groups.consumer_member import ConsumerMember, MemberState
from flowshare.groups.consumer_types import Key, SeenTopic
from flowshare.groups.stored import VERSION
from flowshare.sealing import seal, unseal


@dataclass(slots=True, kw_only=True)
class GroupEpochs:
    """The durable part of the group itself."""

    group_epoch: int = 0
    assignment_epoch: int = 0
    topics: dict[str, SeenTopic] = field(default_factory=dict[str, SeenTopic])
    """The subscribed topics that exist, as seen at the last heartbeat, by name."""


@dataclass(slots=True, kw_only=True)
class StoredConsumerGroup:
    """The whole stored state of one group."""

    epochs: GroupEpochs
    members: Iterable[ConsumerMember]


def encode_epochs(epochs: GroupEpochs) -> bytes:
    """Encode the group's own entry."""
    topics = [[name, topic_id.hex, count] for name, topic_id, count in epochs.topics.values()]
    content = {"group_epoch": epochs.group_epoch, "assignment_epoch": epochs.assignment_epoch, "topics": topics}
    return seal(json.dumps(content, separators=(",", ":")).encode(), VERSION)


def decode_epochs(data: bytes) -> GroupEpochs:
    """Decode epochs that `encode_epochs` wrote. Raises: StateCorrupt."""
    body = unseal(data, VERSION)
    try:
        content = json.loads(body)
        return GroupEpochs(
            group_epoch=int(content["group_epoch"]),
            assignment_epoch=int(content["assignment_epoch"]),
            topics={name: (name, UUID(hex=topic_id), count) for name, topic_id, count in content["topics"]},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateCorrupt(f"the epochs of a stored group cannot be read: {error!r}") from error


def encode_member(member: ConsumerMember) -> bytes:
    """Encode a member's entry."""
    content = {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "topics": member.topics,
        "pattern": member.pattern,
        "matched": sorted(member.matched),
        "assignor": member.assignor,
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "state": member.state.value,
        "assigned": [
            [since, _packed(key for key, at in member.assigned.items() if at == since)]
            for since in sorted(set(member.assigned.values()))
        ],
        "revoking": _packed(member.revoking),
        "target": _packed(member.target),
    }
    return seal(json.dumps(content, separators=(",", ":")).encode(), VERSION)


def decode_member(data: bytes) -> ConsumerMember:
    """Decode a member that `encode_member` wrote. Raises: StateCorrupt."""
    body = unseal(data, VERSION)
    try:
        content: dict[str, Any] = json.loads(body)
        content["topics"] = tuple(content["topics"])
        content["matched"] = frozenset(content["matched"])
        content["state"] = MemberState(content["state"])
        content["assigned"] = {key: since for since, packed in content["assigned"] for key in _keys(packed)}
        for name in ("revoking", "target"):
            content[name] = frozenset(_keys(content[name]))
        return ConsumerMember(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateCorrupt(f"a stored member cannot be read: {error!r}") from error


def _packed(keys: Iterable[Key]) -> dict[str, list[int]]:
    """Return partitions by their topic's id."""
    found: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(keys):
        found.setdefault(topic_id, []).append(number)
    return {topic_id.hex: numbers for topic_id, numbers in found.items()}


def _keys(packed: Any) -> Iterable[Key]:
    for topic_id, numbers in packed.items():
        known = UUID(hex=topic_id)
        yield from ((known, number) for number in numbers)
