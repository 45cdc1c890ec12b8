"""The data that members of a cooperative group exchange in a rebalance: JSON in the user data of Kafka's messages.

    a member to the leader   {"v": 1, "shares": bool, "unshared": [topic], "owned": {topic: {partition: ranges}}}
    the leader to a member   {"v": 1, "ranges": {topic: {partition: [[first, end], …]}}}

An assigned partition with no ranges, or not in the JSON, is the member's as a whole. An assignment is only a
target for the member: the claims that members hold are settled with the server (`flowshare.cooperative.claims`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from flowshare.client.groups.assignors import Subscriber
from flowshare.cooperative import assignor as core
from flowshare.cooperative.ranges import assigned
from flowshare.cooperative.types import WHOLE, KeyRanges
from flowshare.core_errors import InvalidRequest
from flowshare.slots.consumer_protocol import Assignment, Partitions

PROTOCOL: Final = "flowshare-cooperative"
"""The only assignor that members offer: a consumer that commits one offset a partition offers another, and is refused
when it joins (INCONSISTENT_GROUP_PROTOCOL)."""
VERSION: Final = 1
Place = tuple[str, int]
"""Topic and partition."""


def encode_user_data(*, shares: bool, unshared: Sequence[str], owned: Mapping[Place, KeyRanges]) -> bytes:
    """Encode the user data that a member sends with each join."""
    said = {"v": VERSION, "shares": shares, "unshared": list(unshared), "owned": _by_topic(owned)}
    return json.dumps(said, separators=(",", ":")).encode()


def assign(members: Sequence[Subscriber], topics: Mapping[str, int]) -> dict[str, Assignment]:
    """The group's assignor, as `GroupMember` calls it where it leads the round."""
    said = {one.member_id: _parsed(one.subscription.user_data) for one in members}
    subscribers = {
        one.member_id: core.Subscriber(
            topics=frozenset(one.subscription.topics),
            shares=said[one.member_id].get("shares") is not False,
            unshared=frozenset(map(str, said[one.member_id].get("unshared") or ())),
        )
        for one in members
    }
    owned = {member: _owned(one.get("owned")) for member, one in said.items()}
    return {member: _assignment(given) for member, given in core.assign(subscribers, topics, owned).items()}


def target_of(partitions: Partitions, user_data: bytes) -> dict[Place, KeyRanges]:
    """Decode a member's assignment: the key ranges of each partition. Raises: InvalidRequest (the ranges overlap)."""
    ranges = _parsed(user_data).get("ranges")
    told = cast("dict[str, Any]", ranges) if isinstance(ranges, dict) else {}
    return {
        (topic, partition): _ranges(told.get(topic), partition) or WHOLE
        for topic, ones in partitions.items()
        for partition in ones
    }


def _assignment(given: core.Assignment) -> Assignment:
    partitions: dict[str, list[int]] = {}
    for topic, partition in sorted(given):
        partitions.setdefault(topic, []).append(partition)
    parts = {tuple(place): keys for place, keys in given.items() if keys != WHOLE}
    said = {"v": VERSION, "ranges": _by_topic(cast("dict[Place, KeyRanges]", parts))}
    return Assignment(partitions, json.dumps(said, separators=(",", ":")).encode())


def _by_topic(ranges: Mapping[Place, KeyRanges]) -> dict[str, dict[str, list[list[int]]]]:
    found: dict[str, dict[str, list[list[int]]]] = {}
    for (topic, partition), keys in sorted(ranges.items()):
        found.setdefault(topic, {})[str(partition)] = [list(pair) for pair in keys]
    return found


def _parsed(user_data: bytes) -> dict[str, Any]:
    """The object; an empty one where there is none that can be read."""
    try:
        found: Any = json.loads(user_data) if user_data else {}
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _owned(said: object) -> dict[core.TopicPartition, KeyRanges]:
    """Parse the key ranges that a member says it owned; invalid entries are skipped."""
    found: dict[core.TopicPartition, KeyRanges] = {}
    topics = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    for topic, partitions in topics.items():
        told = cast("dict[str, Any]", partitions) if isinstance(partitions, dict) else {}
        for partition in told:
            try:
                keys = _ranges(told, int(partition))
            except (InvalidRequest, ValueError):
                continue
            if keys:
                found[core.TopicPartition(topic, int(partition))] = keys
    return found


def _ranges(partitions: object, partition: int) -> KeyRanges:
    """Raises: InvalidRequest."""
    told = cast("dict[str, Any]", partitions).get(str(partition)) if isinstance(partitions, dict) else None
    try:
        pairs = [(int(first), int(end)) for first, end in told or ()]
    except (TypeError, ValueError):
        raise InvalidRequest(f"{told!r} are no ranges of keys") from None
    return assigned(pairs) if pairs else ()
