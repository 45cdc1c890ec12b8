"""The progress of a group: finished and unfinished records, and the leaders that count its deliveries.

A leader's name tells how far its counts can be trusted. Where an acquire is written before its records leave, it is the
backend, whose workers know each other's counts. At Kafka's brokers, which keep acquires in memory, it is the
partition's leader epoch, which rises whenever another or restarted broker begins to count.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.spark.source.group import topics_of
from flowshare.spark.source.ranges import Place, Range, RangeSet

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.spark.source.options import SourceOptions

COUNT_MAX: Final = 10_000
"""The most records that are read to count archived ones."""


async def starts(admin: ShareAdmin, group: str) -> dict[Place, int]:
    """Return the share-partitions' start offsets; all records before them are finished."""
    parts = await admin.group_offsets(group)
    return {(part.topic, part.partition): part.start_offset for part in parts if part.start_offset >= 0}


async def backlog(admin: ShareAdmin, group: str, topics: Container[str]) -> int:
    """Return the number of unfinished records of topics; −1: not known, as before the group's first fetch."""
    known = [part.lag for part in await admin.group_offsets(group) if part.topic in topics and part.lag >= 0]
    return sum(known) if known else -1


async def leaders(admin: ShareAdmin, topics: Iterable[str]) -> dict[Place, str]:
    """Return the brokers that lead the topics' partitions, as one broker knows them: it may name an earlier leader."""
    found: dict[Place, str] = {}
    for topic in await admin.describe_topics(tuple(topics)):
        for partition, epoch in enumerate(topic.leader_epochs):
            if epoch >= 0:
                found[topic.name, partition] = _broker(epoch)
    return found


async def leaders_now(admin: ShareAdmin, group: str) -> dict[Place, str]:
    """Return the brokers that loaded the group's share-partitions last: the one that delivered a record, or a later
    one."""
    parts = await admin.group_offsets(group)
    return {(part.topic, part.partition): _broker(part.leader_epoch) for part in parts}


def _broker(epoch: int) -> str:
    return f"broker {epoch}"


async def log_starts(admin: ShareAdmin, places: Iterable[Place]) -> dict[Place, int]:
    """Return the present start of each partition's log."""
    return {place: (await admin.offsets(*place)).log_start for place in sorted(places)}


async def log_starts_left(admin: ShareAdmin, places: Collection[Place]) -> dict[Place, int]:
    """Return the present start of each partition's log, without partitions that do not exist any more."""
    topics = await admin.describe_topics({topic for topic, _ in places})
    counts = {topic.name: topic.partitions for topic in topics}
    return await log_starts(admin, [place for place in places if place[1] < counts.get(place[0], 0)])


async def ends(admin: ShareAdmin, options: SourceOptions) -> dict[Place, int]:
    """Return the present end of each log of the source's topics; partitions without a record are left out."""
    found: dict[Place, int] = {}
    for topic in await topics_of(options, admin):
        for partition in range((await admin.describe_topic(topic)).partitions):
            bounds = await admin.offsets(topic, partition)
            if bounds.high_watermark > bounds.log_start:
                found[topic, partition] = bounds.high_watermark
    return found


async def left(admin: ShareAdmin, group: str, ends: Mapping[Place, int]) -> int:
    """Return about the number of records below these ends that the group has not finished.

    Kafka's brokers store a start offset with the write after the one that moved it, so their lag is used, too. If other
    members finished later records meanwhile, the true number may be higher, and a run ends before they have finished.
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
    """End of a run that empties a backlog: the backlog is all offsets below the ends that were noted once.

    A fetch cannot be told to stop at an offset, so a batch may hold later offsets; they are run like any others. The
    run is over when all offsets below the ends are finished, or when none of them could be acquired for a while (others
    hold them, or they are delayed).
    """

    def __init__(self, ends: Mapping[Place, int]) -> None:
        self.ends = dict(ends)
        self._until_s: float | None = None
        self.ahead = False
        """True if the last acquire had offsets below the ends."""

    def took(self, got: Iterable[Range], until_s: float) -> None:
        """Take in acquired ranges; if none is below the ends, the run lasts until `until_s` at most."""
        self.ahead = any(one.first < self.ends.get(one.place, 0) for one in got)
        if self.ahead:
            self._until_s = None
        elif self._until_s is None:
            self._until_s = until_s

    def put_off(self, seconds: float) -> None:
        """Wait for so many seconds more: the group was not reached for them, and records may be free by now."""
        if self._until_s is not None:
            self._until_s += seconds

    def over(self, left: int, now_s: float) -> bool:
        """True if the run is over. left: the number of unfinished records below the ends."""
        return not left or (self._until_s is not None and now_s >= self._until_s)


class Unread(NamedTuple):
    """Records that a group passed and no batch held. lost: those not in the log any more. archived: those still in the
    log. first: the first range with any."""

    first: Range
    lost: int
    archived: int


async def unread(admin: ShareAdmin, group: str, member_id: str, ranges: Sequence[Range], *, archived: bool) -> Unread:
    """Count the records in these ranges, which no batch of this member held: those in the log, if `archived` asks for
    them, and the offsets that the log no longer has.

    Transaction markers and records removed by compaction do not count. Where the log is gone they cannot be told from
    records, so a single offset does not count there. Nothing counts while the group has other members: the records may
    have been theirs. At most COUNT_MAX records are read.
    """
    described = await admin.describe_group(group)
    if any(member.member_id != member_id for member in described.members):
        return Unread(ranges[0], 0, 0)
    begins = await log_starts(admin, {one.place for one in ranges})
    lost = there = 0
    first = None
    for one in ranges:
        gone = min(one.last, begins[one.place] - 1) - one.first + 1
        lost += gone if gone > 1 else 0
        at = max(one.first, begins[one.place])
        room = min(one.last - at + 1, COUNT_MAX - there)
        if archived and room > 0:
            found = await admin.read(one.topic, one.partition, at, limit=room)
            there += sum(record.offset <= one.last for record in found)
        first = one if first is None and (lost or there) else first
    return Unread(first or ranges[0], lost, there)


class Passed:
    """Offsets that a group passed although no batch of the query held them. Keeps the known start offsets, and the
    offsets of committed batches after them. Pure.

    Retention removes unread records, while a query is down or too slow. Kafka's brokers also archive a record
    that was delivered too often, even if no query read it: a query that dies between an acquire and its write-ahead
    log uses up deliveries. The only sign of either is that the share-partition's start offset moves on. Invariant:
    every offset before a start offset was in a committed batch, or is returned by `advance`, once.
    """

    def __init__(self, starts: Mapping[Place, int] | None = None, ranges: Iterable[Range] = ()) -> None:
        self._starts = dict(starts or {})
        self._held = RangeSet(ranges)

    @property
    def starts(self) -> dict[Place, int]:
        """Start offset by partition, as of the last `advance`."""
        return dict(self._starts)

    def ranges(self) -> Iterable[Range]:
        """Return the committed offsets behind the start offsets, ascending."""
        return self._held.ranges()

    def add(self, ranges: Iterable[Range]) -> None:
        """Add the ranges of a committed batch."""
        for one in ranges:
            if one.last >= self._starts.get(one.place, 0):
                self._held.add(one)

    def forget(self, topic: str) -> None:
        """Forget a topic that was created anew."""
        for place in [place for place in self._starts if place[0] == topic]:
            del self._starts[place]
        self._held.forget(topic)

    def begin(self, ranges: Iterable[Range]) -> None:
        """Begin each unknown partition with the first of its acquired ranges."""
        for one in sorted(ranges):
            self._starts.setdefault(one.place, one.first)

    def know(self, starts: Mapping[Place, int]) -> None:
        """Begin each unknown partition with its start offset."""
        self._starts = {**starts, **self._starts}

    def advance(self, starts: Mapping[Place, int]) -> list[Range]:
        """Take in the present start offsets, while no batch is under way; return the ranges that they passed and no
        batch held.

        A new partition, or one whose start offset went back (its topic was created anew, an operator moved it), begins
        afresh.
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
