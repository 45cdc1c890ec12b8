"""Assignors: functions by which a group's leader assigns partitions to the members of a consumer group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from flowshare.slots.consumer_protocol import Assignment, Subscription

RANGE: Final = "range"
"""The protocol's name, which Kafka's own consumers offer by default: they can be in one group with ours."""


class Subscriber(NamedTuple):
    """A member as the group's leader sees it."""

    member_id: str
    instance_id: str | None
    subscription: Subscription

    @property
    def rank(self) -> tuple[bool, str]:
        """The sort key of Kafka's assignors: static members first, by instance id."""
        return self.instance_id is None, self.instance_id or self.member_id


Assignor = Callable[[Sequence[Subscriber], Mapping[str, int]], Mapping[str, Assignment]]
"""Assigns (members, number of partitions of each topic) -> assignment by member id."""


def range_assignor(members: Sequence[Subscriber], topics: Mapping[str, int]) -> dict[str, Assignment]:
    """Assign as Kafka's RangeAssignor: of each topic, neighbours to each member; the first members get one more if
    needed."""
    given: dict[str, dict[str, tuple[int, ...]]] = {member.member_id: {} for member in members}
    ranked = sorted(members, key=lambda member: member.rank)
    for topic, partitions in sorted(topics.items()):
        takers = [member.member_id for member in ranked if topic in member.subscription.topics]
        if not takers:
            continue
        each, more = divmod(partitions, len(takers))
        first = 0
        for number, member_id in enumerate(takers):
            end = first + each + (number < more)
            if end > first:
                given[member_id][topic] = tuple(range(first, end))
            first = end
    return {member_id: Assignment(parts, b"") for member_id, parts in given.items()}
