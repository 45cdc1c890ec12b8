"""How far a group is: what it has finished, and what it has not, at all or below the ends that were noted once; and who
counts its deliveries.

A leader is named by how far its counts can be trusted: where an acquire is written before its records leave, by the
backend, whose workers know each other's counts; at Kafka's brokers, which keep acquires in memory, by the partition's
leader epoch, which rises whenever another broker, or the same one started anew, begins to count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.spark.source.group import topics_of
from flowshare.spark.source.ranges import Place, Range, RangeSet

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.spark.source.options import SourceOptions

COUNT_MAX: Final = 10_000
"""Records that are looked at to count those that were archived."""


async def starts(admin: ShareAdmin, group: str) -> dict[Place, int]:
    """Share-partition start offsets: what lies before them is finished."""
    parts = await admin.group_offsets(group)
    return {(part.topic, part.partition): part.start_offset for part in parts if part.start_offset >= 0}


async def leaders(admin: ShareAdmin, topics: Iterable[str]) -> dict[Place, str]:
    """Brokers that lead the partitions of topics, as one of the cluster knows it: perhaps an earlier than leads now."""
    found: dict[Place, str] = {}
    for topic in await admin.describe_topics(tuple(topics)):
        for partition, epoch in enumerate(topic.leader_epochs):
            if epoch >= 0:
                found[topic.name, partition] = _broker(epoch)
    return found


async def leaders_now(admin: ShareAdmin, group: str) -> dict[Place, str]:
    """Brokers that loaded the group's share-partitions last: of what one of them delivered, that one or a later one."""
    parts = await admin.group_offsets(group)
    return {(part.topic, part.partition): _broker(part.leader_epoch) for part in parts}


def _broker(epoch: int) -> str:
    return f"broker {epoch}"


async def log_starts(admin: ShareAdmin, places: Iterable[Place]) -> dict[Place, int]:
    """Where the logs of partitions begin now."""
    return {place: (await admin.offsets(*place)).log_start for place in sorted(places)}


async def ends(admin: ShareAdmin, options: SourceOptions) -> dict[Place, int]:
    """Where the logs of its topics end now; partitions without a record are left out."""
    found: dict[Place, int] = {}
    for topic in await topics_of(options, admin):
        for partition in range((await admin.describe_topic(topic)).partitions):
            bounds = await admin.offsets(topic, partition)
            if bounds.high_watermark > bounds.log_start:
                found[topic, partition] = bounds.high_watermark
    return found


async def left(admin: ShareAdmin, group: str, ends: Mapping[Place, int]) -> int:
    """About how many records below these ends the group has not finished.

    Kafka's brokers store a start offset with the write after the one that moved it, so their lag is asked, too. Where
    others finished later records meanwhile, it may be more than is said here, and a run ends before they have finished.
    """
    parts = {(part.topic, part.partition): part for part in await admin.group_offsets(group)}
    count = 0
    for place, end in ends.items():
        part = parts.get(place)
        if part is None or part.start_offset >= end or part.lag == 0:
            count += 0 if part else end
            continue
        bounds = await admin.offsets(*place)
        below = end - max(part.start_offset, bounds.log_start)
        count += max(0, below if part.lag < 0 else min(below, part.lag - (bounds.high_watermark - end)))
    return count


class BacklogEnd:
    """What "all that is there" means for a run that empties a backlog: offsets below the ends that were noted once.

    A fetch cannot be told to stop at an offset, so a batch may hold later ones; they are run like any. The run is over
    when all below the ends is finished, or when nothing of it was had for a while (others hold it, it is delayed).
    """

    def __init__(self, ends: Mapping[Place, int]) -> None:
        self.ends = dict(ends)
        self._until_s: float | None = None
        self.ahead = False
        """Whether the last acquisition had something below the ends."""

    def took(self, got: Iterable[Range], until_s: float) -> None:
        """This was acquired; when it is nothing below the ends, the run lasts until `until_s` at most."""
        self.ahead = any(one.first < self.ends.get(one.place, 0) for one in got)
        if self.ahead:
            self._until_s = None
        elif self._until_s is None:
            self._until_s = until_s

    def over(self, left: int, now_s: float) -> bool:
        """Whether the run is over; left: how many records below the ends are not finished."""
        return not left or (self._until_s is not None and now_s >= self._until_s)


async def count_unread(admin: ShareAdmin, group: str, member_id: str, ranges: Sequence[Range]) -> int:
    """How many records of these ranges, finished by no batch of this member's, are in the log.

    Markers of transactions and what compaction took are not. 0 as well when the group has other members, whose they
    may have been; at most COUNT_MAX are looked at.
    """
    described = await admin.describe_group(group)
    if any(member.member_id != member_id for member in described.members):
        return 0
    count = 0
    for one in ranges:
        room = min(one.last - one.first + 1, COUNT_MAX - count)
        found = await admin.read(one.topic, one.partition, one.first, limit=room)
        count += sum(record.offset <= one.last for record in found)
    return count


class ArchivedUnread:
    """What a group finished without any batch of the query's having held it: start offsets that are known, and the
    committed batches' offsets behind them. Pure.

    Kafka's brokers archive a record that was delivered too often, also when nobody ever saw it: a query that dies
    between an acquire and its write-ahead log uses up deliveries. All that is told of it is that the share-partition's
    start offset moves on. Invariant: every offset before a start offset was in a committed batch, or is returned by
    `advance`, once.
    """

    def __init__(self, starts: Mapping[Place, int] | None = None, ranges: Iterable[Range] = ()) -> None:
        self._starts = dict(starts or {})
        self._held = RangeSet(ranges)

    @property
    def starts(self) -> dict[Place, int]:
        """Start offset by partition, as of the last `advance`."""
        return dict(self._starts)

    def ranges(self) -> Iterable[Range]:
        """Committed offsets behind the start offsets, ascending."""
        return self._held.ranges()

    def add(self, ranges: Iterable[Range]) -> None:
        """A batch with these ranges is committed."""
        for one in ranges:
            if one.last >= self._starts.get(one.place, 0):
                self._held.add(one)

    def forget(self, topic: str) -> None:
        """The topic was made anew."""
        for place in [place for place in self._starts if place[0] == topic]:
            del self._starts[place]
        self._held.forget(topic)

    def begin(self, ranges: Iterable[Range]) -> None:
        """These were acquired: a partition that was not known begins with the first of them."""
        for one in sorted(ranges):
            self._starts.setdefault(one.place, one.first)

    def advance(self, starts: Mapping[Place, int]) -> list[Range]:
        """Take over start offsets as they are now, while no batch is under way; what they passed and no batch held.

        A partition that is seen for the first time, or whose start offset went back (its topic was made anew, an
        operator moved it), begins afresh.
        """
        found: list[Range] = []
        for place, start in starts.items():
            before = self._starts.get(place)
            self._starts[place] = start
            if before is None or start <= before:
                continue
            found += self._held.split(Range(*place, before, start - 1))[1]
        self._held.prune(starts)
        return found
