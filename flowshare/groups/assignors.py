"""The server's assignors of Kafka's consumer protocol (KIP-848): they give partitions to members.

    uniform   loads differ by one at most where all members read the same; partitions stay with their members as far as
              that allows
    range     of each topic every member gets neighbours, so that members have the same numbers of topics with as many
              partitions each; it ignores the assignment before

Every partition of a topic with readers is given to exactly one of its readers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from flowshare.groups.consumer_types import Key

ROUNDS_MAX: Final = 20
LOOKS_MAX: Final = 200_000
"""Limits of evening out loads of members that read different topics: rounds, and partitions looked at (but all of them
once); loads stay uneven beyond them."""


class Reader(NamedTuple):
    """A member as an assignor sees it."""

    member_id: str
    topics: frozenset[UUID]
    has: frozenset[Key] = frozenset()
    """Partitions of the member's previous target."""
    instance_id: str | None = None


Assignment = dict[str, frozenset[Key]]
"""Member -> partitions; every member is in it."""
Assignor = Callable[[Sequence[Reader], Mapping[UUID, int]], Assignment]
"""(members, topic -> number of its partitions) -> assignment."""


def assign_uniform(readers: Sequence[Reader], partitions: Mapping[UUID, int]) -> Assignment:
    """Assign evenly and keep partitions."""
    owner = _kept(readers, partitions)
    if len({reader.topics for reader in readers}) > 1:
        return _balanced(readers, partitions, owner)
    return _even(readers, partitions, owner)


def assign_range(readers: Sequence[Reader], partitions: Mapping[UUID, int]) -> Assignment:
    """Assign by ranges; static members come first, by their instance ids, so that they keep their places."""
    found: dict[str, set[Key]] = {reader.member_id: set() for reader in readers}
    ordered = sorted(readers, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id))
    for topic, count in partitions.items():
        members = [reader.member_id for reader in ordered if topic in reader.topics]
        for place, member_id in enumerate(members):
            low, more = divmod(count, len(members))
            first, last = place * low + min(place, more), (place + 1) * low + min(place + 1, more)
            found[member_id].update((topic, number) for number in range(first, last))
    return {member_id: frozenset(keys) for member_id, keys in found.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""Assignors by Kafka's names."""


def _kept(readers: Iterable[Reader], partitions: Mapping[UUID, int]) -> dict[Key, str]:
    """Return partition -> the member that had it and may still have it."""
    return {
        key: reader.member_id
        for reader in readers
        for key in sorted(reader.has)
        if key[0] in reader.topics and key[1] < partitions.get(key[0], 0)
    }


def _all_keys(readers: Iterable[Reader], partitions: Mapping[UUID, int]) -> list[Key]:
    """Return every partition that a member reads."""
    read = {topic for reader in readers for topic in reader.topics}
    return [(topic, number) for topic, count in partitions.items() if topic in read for number in range(count)]


def _even(readers: Sequence[Reader], partitions: Mapping[UUID, int], owner: Mapping[Key, str]) -> Assignment:
    """Assign when all members read the same: all get equally many, some one more; members that had more get that
    one."""
    keys = _all_keys(readers, partitions)
    low, more = divmod(len(keys), max(1, len(readers)))
    found: dict[str, list[Key]] = {reader.member_id: [] for reader in readers}
    left: list[Key] = []
    for key in keys:
        member_id = owner.get(key)
        if member_id is None or len(found[member_id]) > low or (len(found[member_id]) == low and not more):
            left.append(key)
            continue
        more -= len(found[member_id]) == low
        found[member_id].append(key)
    rest = iter(left)
    for mine in found.values():
        mine.extend(key for _, key in zip(range(low - len(mine)), rest, strict=False))
    for mine, key in zip((mine for mine in found.values() if len(mine) == low), rest, strict=False):
        mine.append(key)
    return {member_id: frozenset(mine) for member_id, mine in found.items()}


class _Loads:
    """The number of partitions of each member, and the choice of the member with fewest."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self.of = {reader.member_id: 0 for reader in readers}
        self._order = {reader.member_id: place for place, reader in enumerate(readers)}

    def heap(self, members: Iterable[str]) -> list[tuple[int, int, str]]:
        """Return a `least` heap."""
        found = [(self.of[one], self._order[one], one) for one in members]
        heapq.heapify(found)
        return found

    def least(self, heap: list[tuple[int, int, str]]) -> str:
        """Return the member of a heap with fewest now; of equals the first that joined."""
        while heap[0][0] != self.of[heap[0][2]]:
            heapq.heappop(heap)  # the heap has a newer entry of this member, see `add`
        return heap[0][2]

    def add(self, member_id: str, count: int, heap: list[tuple[int, int, str]]) -> None:
        """Note that a member of the heap has more, or fewer."""
        self.of[member_id] += count
        heapq.heappush(heap, (self.of[member_id], self._order[member_id], member_id))


def _balanced(readers: Sequence[Reader], partitions: Mapping[UUID, int], owner: dict[Key, str]) -> Assignment:
    """Assign when members read different topics: the reader with fewest gets each free partition, then loads are
    evened."""
    loads = _Loads(readers)
    for member_id in owner.values():
        loads.of[member_id] += 1
    able = {
        topic: [reader.member_id for reader in readers if topic in reader.topics]
        for topic in {key[0]: None for key in _all_keys(readers, partitions)}
    }
    topics = sorted(able, key=lambda topic: len(able[topic]))
    for topic in topics:
        heap = loads.heap(able[topic])
        for number in range(partitions[topic]):
            if (topic, number) not in owner:
                member_id = owner[topic, number] = loads.least(heap)
                loads.add(member_id, 1, heap)
    for _ in range(min(ROUNDS_MAX, 1 + LOOKS_MAX // (1 + len(owner)))):
        if not sum([_even_out(loads, able[topic], topic, partitions[topic], owner) for topic in topics]):
            break
    found: dict[str, set[Key]] = {reader.member_id: set() for reader in readers}
    for key, member_id in owner.items():
        found[member_id].add(key)
    return {member_id: frozenset(keys) for member_id, keys in found.items()}


def _even_out(loads: _Loads, able: Sequence[str], topic: UUID, count: int, owner: dict[Key, str]) -> int:
    """Move partitions of a topic from members with more to the one with fewest; return their number."""
    some = [loads.of[member_id] for member_id in able]
    if max(some) <= min(some) + 1:
        return 0
    heap, moved = loads.heap(able), 0
    for number in range(count):
        former = owner[topic, number]
        least = loads.least(heap)
        if loads.of[former] > loads.of[least] + 1:
            owner[topic, number] = least
            loads.add(former, -1, heap)
            loads.add(least, 1, heap)
            moved += 1
    return moved
