"""Which member of a consumer group reads which partitions: what the group's leader decides for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from flowshare.slots.consumer_protocol import Assignment, Subscription

RANGE: Final = "range"
"""The protocol's name, as Kafka's own consumers offer it by default: they can be in one group with ours."""


class Subscriber(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    subscription: Subscription

    @property
    def rank(self) -> tuple[bool, str]:
        """By what Kafka's assignors sort members: static ones first, by their lasting name."""
        return self.instance_id is None, self.instance_id or self.member_id


Assignor = Callable[[Sequence[Subscriber], Mapping[str, int]], Mapping[str, Assignment]]
"""(members, partitions of each topic that there is) -> assignment by member id."""


def range_assignor(members: Sequence[Subscriber], topics: Mapping[str, int]) -> dict[str, Assignment]:
    """As Kafka's RangeAssignor: of each topic each member gets neighbours, the first ones one more if need be."""
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
