"""The state of a share group, and its form in the store: a version, a checksum and JSON (SG-14.6).

Deadlines are not stored: after a restart every member has a whole session timeout again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from sys import getsizeof
from typing import Any, Final, NamedTuple
from uuid import UUID

from flowshare.core_errors import StateCorrupt
from flowshare.sealing import seal, unseal

VERSION: Final = 3

MEMBER_BYTES: Final = 1_000
"""The memory of a member beside its subscription, in bytes, about."""
NAME_BYTES: Final = 100
"""The memory of a name in a subscription beside its text, in bytes, about."""

Key = tuple[UUID, int]
"""A topic's id and a partition; `protocol.messages.TopicPartition` is such a key."""


class TopicInfo(NamedTuple):
    """A topic that exists."""

    name: str
    topic_id: UUID
    partitions: int


class ToInitialize(NamedTuple):
    """A share-partition that needs a state before the answer leaves (InitializeShareGroupState)."""

    topic_id: UUID
    partition: int
    start_offset: int
    """−1: by share.auto.offset.reset at the first fetch; 0: the partition was added to a topic the group knew
    (SG-2.3)."""
    state_epoch: int


@dataclass(slots=True, kw_only=True)
class Member:
    """One member. `epoch` and `assignment` are the ones it was told last; `previous_epoch` is still accepted."""

    member_id: str
    epoch: int = 0
    previous_epoch: int = -1
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    worker: int | None = None
    """Node id of the fleet's worker whose process the member lives in; None: not known, or none."""
    subscribed: tuple[str, ...] = ()
    assignment: tuple[Key, ...] = ()
    deadline_ms: int = 0
    """The time at which the session times out."""


def subscription_size(names: Collection[str]) -> int:
    """Return the memory of a member's subscription, in bytes, about."""
    return NAME_BYTES * len(names) + sum(map(getsizeof, names))


@dataclass(slots=True, kw_only=True)
class GroupState:
    """The durable part of a share group."""

    group_epoch: int = 1
    assignment_epoch: int = 0
    members: dict[str, Member] = field(default_factory=dict[str, Member])
    """Members in order of joining, which is the assignor's order."""
    target: dict[str, tuple[Key, ...]] = field(default_factory=dict[str, tuple[Key, ...]])
    """Member -> the partitions that it is to have, from its next heartbeat on."""
    initialized: set[Key] = field(default_factory=set[Key])
    """Share-partitions that have a state; only these are assigned."""
    known: dict[UUID, int] = field(default_factory=dict[UUID, int])
    """Topic -> its number of partitions when the group saw it last: later ones start at offset 0."""
    metadata: dict[str, TopicInfo] = field(default_factory=dict[str, TopicInfo])
    """The subscribed topics that exist, as seen at the last heartbeat, by name."""
    empty_since_ms: int | None = None
    """The time since which the group has been empty; None while it has a member, or before its first one."""

    def begin_later(self, items: Iterable[ToInitialize]) -> None:
        """Remove share-partitions from those that have state; those added to a known topic begin at 0 later, too."""
        for item in items:
            self.initialized.discard((item.topic_id, item.partition))
            if item.start_offset == 0 and item.topic_id in self.known:
                self.known[item.topic_id] = min(self.known[item.topic_id], item.partition)

    def without(self, items: Iterable[ToInitialize]) -> GroupState:
        """Return a copy without the states of these share-partitions."""
        state = replace(self, initialized=set(self.initialized), known=dict(self.known))
        state.begin_later(items)
        return state


def encode_group(state: GroupState) -> bytes:
    """Return the state as bytes."""
    topics: dict[UUID, int] = {}

    def pack(keys: Iterable[Key]) -> list[list[Any]]:
        packed: dict[UUID, list[int]] = {}
        last: UUID | None = None
        numbers: list[int] = []
        for topic_id, partition in keys:
            if topic_id is not last:  # hashing an id costs more than the rest
                numbers, last = packed.setdefault(topic_id, []), topic_id
            numbers.append(partition)
        return [[topics.setdefault(topic_id, len(topics)), numbers] for topic_id, numbers in packed.items()]

    content: dict[str, Any] = {
        "group_epoch": state.group_epoch,
        "assignment_epoch": state.assignment_epoch,
        "empty_since_ms": state.empty_since_ms,
        "initialized": [[place, sorted(numbers)] for place, numbers in pack(state.initialized)],
        "known": [[topics.setdefault(topic_id, len(topics)), count] for topic_id, count in state.known.items()],
        "metadata": [
            [info.name, topics.setdefault(info.topic_id, len(topics)), info.partitions]
            for info in state.metadata.values()
        ],
        "members": [
            [
                m.member_id,
                m.epoch,
                m.previous_epoch,
                m.rack_id,
                m.client_id,
                m.client_host,
                m.worker,
                m.subscribed,
                pack(m.assignment),
            ]
            for m in state.members.values()
        ],
        "target": [[member_id, pack(keys)] for member_id, keys in state.target.items()],
    }
    content["topics"] = [topic_id.hex for topic_id in topics]
    body = json.dumps(content, separators=(",", ":")).encode()
    return seal(body, VERSION)


def decode_group(data: bytes) -> GroupState:
    """Return the state that `encode_group` wrote. Raises StateCorrupt."""
    body = unseal(data, VERSION, "a stored group")
    try:
        return _state(json.loads(body))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StateCorrupt(f"stored group cannot be read: {error!r}") from error


def _state(content: Any) -> GroupState:
    topics = [UUID(hex=text) for text in content["topics"]]

    def unpack(packed: list[tuple[int, list[int]]]) -> tuple[Key, ...]:
        return tuple((topics[index], partition) for index, numbers in packed for partition in numbers)

    members = [
        Member(
            member_id=member_id,
            epoch=epoch,
            previous_epoch=previous,
            rack_id=rack,
            client_id=client_id,
            client_host=host,
            worker=worker,
            subscribed=tuple(subscribed),
            assignment=unpack(assignment),
        )
        for member_id, epoch, previous, rack, client_id, host, worker, subscribed, assignment in content["members"]
    ]
    return GroupState(
        group_epoch=content["group_epoch"],
        assignment_epoch=content["assignment_epoch"],
        empty_since_ms=content["empty_since_ms"],
        members={member.member_id: member for member in members},
        target={member_id: unpack(packed) for member_id, packed in content["target"]},
        initialized=set(unpack(content["initialized"])),
        known={topics[index]: count for index, count in content["known"]},
        metadata={name: TopicInfo(name, topics[index], count) for name, index, count in content["metadata"]},
    )
