"""Which member gets which keys of which partitions: run by the leader member, the same for the same input.

Topic by topic, with m subscribed members and n partitions:

    m <= n, or the topic may not be split      whole partitions, as Kafka's RangeAssignor deals them
    m > n, and it may                          each partition is cut into equal, contiguous ranges of keys

A topic may be split if each of its members shares, and none names it as unshared.

A topic that is split is dealt like cards: the first n members get a partition each, the next n a share of one each.
Then every partition has m // n members or one more. Who has most of a partition already stays with it, as far as that
balance allows, and keeps its place in the order of the hashes; so what changes with a leave are the ranges of the
leaver's partition, whose neighbours close up, and with a join those of the joiner's. The same members again get the
same. The balance comes first: the ranges of one partition are always equal, to one hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flowshare.cooperative.ranges import total
from flowshare.cooperative.types import HASHES, WHOLE, KeyRange, KeyRanges


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member's subscription. shares: it takes parts of partitions, except of topics in `unshared`."""

    topics: frozenset[str]
    shares: bool = True
    unshared: frozenset[str] = frozenset()


Assignment = dict[TopicPartition, KeyRanges]


@dataclass(slots=True)
class _Seats:
    """Who has a part of one partition: those that had one, by their hashes, then who is new."""

    room: int
    members: list[str] = field(default_factory=list[str])


def assign(
    members: Mapping[str, Subscriber],
    topics: Mapping[str, int],
    owned: Mapping[str, Mapping[TopicPartition, KeyRanges]],
) -> dict[str, Assignment]:
    """Assign partitions and their keys to all members. topics: how many partitions each has. owned: the members' last
    assignments, where they are known."""
    assignment: dict[str, Assignment] = {member: {} for member in members}
    for topic in sorted(topics):
        subscribed = sorted(member for member, subscriber in members.items() if topic in subscriber.topics)
        if not subscribed or topics[topic] <= 0:
            continue
        if len(subscribed) <= topics[topic] or not all(_splits(members[member], topic) for member in subscribed):
            _deal_whole(assignment, topic, topics[topic], subscribed)
        else:
            _deal_parts(assignment, topic, topics[topic], subscribed, owned)
    return assignment


def shares(members: Sequence[str]) -> dict[str, KeyRange]:
    """Equal parts of all hashes, one a member, in this order: disjoint, and nothing is left out."""
    count = len(members)
    return {
        member: KeyRange(HASHES * place // count, HASHES * (place + 1) // count) for place, member in enumerate(members)
    }


def _splits(subscriber: Subscriber, topic: str) -> bool:
    return subscriber.shares and topic not in subscriber.unshared


def _deal_whole(assignment: dict[str, Assignment], topic: str, partitions: int, members: Sequence[str]) -> None:
    share, larger = divmod(partitions, len(members))
    first = 0
    for place, member in enumerate(members):
        end = first + share + (place < larger)
        for partition in range(first, end):
            assignment[member][TopicPartition(topic, partition)] = WHOLE
        first = end


def _deal_parts(
    assignment: dict[str, Assignment],
    topic: str,
    partitions: int,
    members: Sequence[str],
    owned: Mapping[str, Mapping[TopicPartition, KeyRanges]],
) -> None:
    homes = _homes(topic, partitions, members, owned)
    share, larger = divmod(len(members), partitions)
    fullest = sorted(range(partitions), key=lambda partition: (-len(homes[partition]), partition))
    seats = [_Seats(share) for _ in range(partitions)]
    for partition in fullest[:larger]:
        seats[partition].room += 1
    for seat, home in zip(seats, homes, strict=True):
        seat.members += home[: seat.room]
    seated = {member for seat in seats for member in seat.members}
    for member in members:
        if member not in seated:
            free = (
                partition for partition in range(partitions) if len(seats[partition].members) < seats[partition].room
            )
            seats[min(free, key=lambda partition: len(seats[partition].members))].members.append(member)
    for partition, seat in enumerate(seats):
        for member, keys in shares(seat.members).items():
            assignment[member][TopicPartition(topic, partition)] = (keys,)


def _homes(
    topic: str, partitions: int, members: Sequence[str], owned: Mapping[str, Mapping[TopicPartition, KeyRanges]]
) -> list[list[str]]:
    """Of each partition, who has more of it than of any other, in the order of the hashes."""
    homes: list[list[tuple[int, str]]] = [[] for _ in range(partitions)]
    for member in members:
        most = 0
        home, place = -1, 0
        for (name, partition), keys in sorted(owned.get(member, {}).items()):
            if name == topic and 0 <= partition < partitions and total(keys) > most:
                most, home, place = total(keys), partition, keys[0].first
        if home >= 0:
            homes[home].append((place, member))
    return [[member for _, member in sorted(home)] for home in homes]
