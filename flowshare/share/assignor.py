"""The assignor `simple`: decides which member fetches from which share-partitions (SG-12.10).

Partitions are shared, so nothing is ever taken from a member before another gets it. Members with equal subscriptions
share all partitions evenly; else each topic is shared evenly among its subscribers, by itself. A member keeps its
partitions as far as the balance allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

Key = tuple[UUID, int]


def assign(
    subscriptions: Mapping[str, Collection[UUID]],
    partitions: Mapping[UUID, Sequence[int]],
    current: Mapping[str, Iterable[Key]],
) -> dict[str, tuple[Key, ...]]:
    """Return the target assignment of every member in `subscriptions`; keys in the order of `partitions`.

    subscriptions: member -> ids of its topics, in the fixed order of members; topics without partitions may be in it.
    partitions: topic -> its assignable partitions, in order.
    current: member -> the partitions to keep if possible.
    """
    members = list(subscriptions)
    existing = frozenset(partitions)
    wanted = {member: existing.intersection(subscriptions[member]) for member in members}
    held = [_by_topic(current.get(member, ())) for member in members]
    target: list[list[Key]] = [[] for _ in members]
    if len(set(wanted.values())) == 1:
        topics = [topic for topic in partitions if topic in wanted[members[0]]]
        keys = [(topic, number) for topic in topics for number in partitions[topic]]
        _share_out(keys, _kept(held, topics, partitions), range(len(members)), target)
    else:
        for topic, (places, had) in _by_subscribers(members, wanted, held, partitions).items():
            index = {number: i for i, number in enumerate(partitions[topic])}
            kept = [[index[number] for number in numbers if number in index] for numbers in had]
            _share_out([(topic, number) for number in partitions[topic]], kept, places, target)
    return {member: tuple(keys) for member, keys in zip(members, target, strict=True)}


def _share_out(
    keys: Sequence[Key], kept: Sequence[Collection[int]], places: Iterable[int], target: Sequence[list[Key]]
) -> None:
    for place, chosen in zip(places, spread(len(keys), kept), strict=True):
        target[place].extend([keys[i] for i in chosen])


def _kept(
    held: Sequence[Mapping[UUID, Sequence[int]]], topics: Iterable[UUID], partitions: Mapping[UUID, Sequence[int]]
) -> list[list[int]]:
    """List each member's partitions of these topics, as places in the row of all their partitions."""
    index: dict[UUID, dict[int, int]] = {}
    start = 0
    for topic in topics:
        index[topic] = {number: start + i for i, number in enumerate(partitions[topic])}
        start += len(partitions[topic])
    kept: list[list[int]] = []
    for mine in held:
        row: list[int] = []
        for topic, numbers in mine.items():
            places = index.get(topic)
            if places is not None:
                row += [places[number] for number in numbers if number in places]
        kept.append(row)
    return kept


def _by_subscribers(
    members: Sequence[str],
    wanted: Mapping[str, Collection[UUID]],
    held: Sequence[Mapping[UUID, Sequence[int]]],
    partitions: Iterable[UUID],
) -> dict[UUID, tuple[list[int], list[Sequence[int]]]]:
    """Return topic -> places of its subscribers, and the partitions that each of them has."""
    found: dict[UUID, tuple[list[int], list[Sequence[int]]]] = {topic: ([], []) for topic in partitions}
    for place, member in enumerate(members):
        mine = held[place]
        for topic in wanted[member]:
            places, had = found[topic]
            places.append(place)
            had.append(mine.get(topic, ()))
    return found


def _by_topic(keys: Iterable[Key]) -> dict[UUID, list[int]]:
    """Group partitions by topic. Keys of one topic mostly follow each other, and hashing an id costs more than the
    rest."""
    found: dict[UUID, list[int]] = {}
    last: UUID | None = None
    numbers: list[int] = []
    for topic, number in keys:
        if topic is not last:
            numbers, last = found.setdefault(topic, []), topic
        numbers.append(number)
    return found


def spread(partition_count: int, kept: Sequence[Collection[int]]) -> list[list[int]]:
    """Share partitions 0…n−1 evenly among members; member i has `kept[i]` so far.

    With `sharing = ceil(members / partitions)` every partition gets exactly `sharing` members, and the members' numbers
    of partitions differ by one at most.
    """
    member_count = len(kept)
    if not partition_count or not member_count:
        return [[] for _ in kept]
    sharing = -(-member_count // partition_count)
    wishes = _wishes(sharing * partition_count, [len(k) for k in kept])
    holders = [0] * partition_count
    chosen: list[set[int]] = []
    for wish, old in zip(wishes, kept, strict=True):
        mine: set[int] = set()
        for p in old:
            if len(mine) < wish and holders[p] < sharing and p not in mine:
                mine.add(p)
                holders[p] += 1
        chosen.append(mine)
    _fill(chosen, wishes, _free(holders, sharing))
    return [sorted(mine) for mine in chosen]


def _wishes(total: int, had: Sequence[int]) -> list[int]:
    """Return the number of partitions for each member: `ceil(per·(i+1)) − ceil(per·i)` in the fixed order of members.

    The larger numbers move to members that would else have to give one up, so that less is moved.
    """
    count = len(had)
    ceilings = [-(-total * i // count) for i in range(count + 1)]
    wishes = [ceilings[i + 1] - ceilings[i] for i in range(count)]
    low = total // count
    takers = [i for i in range(count) if wishes[i] == low and had[i] > low]
    givers = [i for i in range(count) if wishes[i] > low and had[i] <= low]
    # Givers from the end: the members that came last are the ones that have least.
    for taker, giver in zip(takers, reversed(givers), strict=False):
        wishes[taker], wishes[giver] = wishes[giver], wishes[taker]
    return wishes


def _free(holders: Sequence[int], sharing: int) -> deque[int]:
    """Return the places that are left, partition by partition and round by round, the emptiest partitions first."""
    return deque(p for level in range(sharing) for p, held in enumerate(holders) if held <= level)


def _fill(chosen: list[set[int]], wishes: Sequence[int], free: deque[int]) -> None:
    """Hand out the free places until every member has its wish."""
    for member, mine in enumerate(chosen):
        passed: list[int] = []
        while len(mine) < wishes[member] and free:
            p = free.popleft()
            if p in mine:
                passed.append(p)
            else:
                mine.add(p)
        free.extendleft(reversed(passed))
        while len(mine) < wishes[member]:
            _swap(chosen, member, free.popleft())


def _swap(chosen: list[set[int]], member: int, spare: int) -> None:
    """Give `member`, which already has the only spare partition, another member's partition in exchange for the spare
    one.

    Such a member exists: a partition that `member` lacks is full, so it has more holders than the spare one has beside
    `member`.
    """
    mine = chosen[member]
    for theirs in chosen:
        if spare in theirs:
            continue
        given = min(theirs - mine, default=None)
        if given is not None:
            theirs.remove(given)
            theirs.add(spare)
            mine.add(given)
            return
    raise AssertionError(f"no member can take partition {spare}")
