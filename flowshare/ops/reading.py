"""Figures of groups as servers and brokers tell them: partitions, members, breakers, dead letters."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.client.admin.admin import BREAKER
from flowshare.client.errors import ServerError, Unsupported
from flowshare.ops.figures import BreakerFacts, PartitionFigures, StuckKey
from flowshare.ops.retention import left

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.backend.base import Capabilities
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.admin.watching import ShareWatch
    from flowshare.clock import Clock
    from flowshare.ops.rates import Rates
    from flowshare.ops.retention import Facts, Keeping
    from flowshare.protocol.messages import SharePartitionOffsets, TopicMetadata
    from flowshare.protocol.messages.browse import Standing
    from flowshare.protocol.messages.cooperative import PartitionOffsets

logger = logging.getLogger("flowshare.host")

T = TypeVar("T")
AT_ONCE: Final = 64
"""Partitions, or topics, that are asked about at the same time."""
GROUPS_AT_ONCE: Final = 16
"""Groups."""
LETTERS_S: Final = 30.0
"""Seconds for which the number of records in a dead-letter topic is believed."""
LETTERS_PART_S: Final = 2.0
"""Seconds that one count may take; of very many topics the others come with the next ones."""
SUFFIX: Final = ".dlq"


def groups_of(agents: Iterable[ShareAgent]) -> dict[str, str]:
    """Return the kind of each of the agents' groups, without those that only know offsets."""
    return {agent.group: agent.group_type for agent in agents if agent.group_type != "consumer"}


async def every_group(admin: ShareAdmin, capabilities: Capabilities) -> dict[str, tuple[str, str]]:
    """Return kind and state of each group of a backend; the state of a cooperative group is not told here.

    Kafka's own brokers have no cooperative groups, and are not asked for any. Raises: ClientError, OSError.
    """
    found = {one.group_id: ("share", one.state) for one in await admin.list_groups()}
    if capabilities.key_order:
        found |= dict.fromkeys(await admin.cooperative.names(), ("cooperative", ""))
    return found


async def partitions(
    admin: ShareAdmin, groups: Mapping[str, str], now_ms: int, facts: Facts | None = None
) -> list[PartitionFigures]:
    """Return the figures of each partition of the groups; a group that cannot be asked has none. groups: kind by name.

    facts: reads the age of the first unfinished record from the log at the group's start offset where brokers do not
    tell it; Kafka's brokers move that offset a little late, so for a moment the age may be that of a record that has
    just been finished.
    """
    found: list[PartitionFigures] = []
    for some in chunks(list(groups), GROUPS_AT_ONCE):
        ask = _Ask(admin, now_ms, facts)
        for of_group in await asyncio.gather(*(ask.group(group, groups[group]) for group in some)):
            found += of_group
    return found


def chunks(names: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    """Yield `names` in order, at most `size` at a time."""
    return (names[first : first + size] for first in range(0, len(names), size))


class _Ask:
    """Asks for the figures of a few groups at a time; for the end of each log once."""

    def __init__(self, admin: ShareAdmin, now_ms: int, facts: Facts | None) -> None:
        self._admin = admin
        self._now_ms = now_ms
        self._facts = facts
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._ends: dict[tuple[str, int], asyncio.Future[int]] = {}

    async def group(self, group: str, kind: str) -> list[PartitionFigures]:
        """Return the figures of each partition."""
        parts: Sequence[SharePartitionOffsets | PartitionOffsets]
        make: Any = of_share if kind == "share" else of_cooperative
        try:
            if kind == "share":
                parts = await self._admin.group_offsets(group)
            else:
                parts = await self._admin.cooperative.offsets(group)
        except ServerError as error:  # not there yet, or its topic is being deleted
            logger.debug("no backlog of group %s: %s", group, error)
            return []
        found = await asyncio.gather(*(self._partition(group, part, make) for part in parts))
        return [one for one in found if one is not None]

    async def _partition(self, group: str, part: Any, make: Callable[..., PartitionFigures]) -> PartitionFigures | None:
        async with self._turns:
            try:
                end = await self._end(part.topic, part.partition)
            except ServerError as error:
                logger.debug("no backlog of group %s: %s", group, error)
                return None
            made = make(group, part, self._now_ms, log_end=end)
            if self._facts is None or not made.backlog or made.start_offset is None or made.oldest_age_s is not None:
                return made
            first = await self._facts.record(part.topic, part.partition, made.start_offset)
            if first is None or first.timestamp_ms < 0:
                return made
            return made._replace(oldest_age_s=max(0.0, (self._now_ms - first.timestamp_ms) / 1000))

    async def _end(self, topic: str, partition: int) -> int:
        """Return the next offset of a log, which many groups may read."""
        asking = self._ends.get((topic, partition))
        if asking is None:
            asking = self._ends[topic, partition] = asyncio.ensure_future(self._admin.log_end(topic, partition))
        return await asyncio.shield(asking)


async def watched(watch: ShareWatch, now_ms: int) -> list[PartitionFigures]:
    """Return the figures of all share groups, from the changes that servers report. Raises: as `ShareWatch.look`."""
    return [of_share(one.group_id, one, now_ms, log_end=one.log_end) for one in (await watch.look()).values()]


def of_share(
    group: str, part: SharePartitionOffsets | Standing, now_ms: int, *, log_end: int | None = None
) -> PartitionFigures:
    """Return the figures of a share-partition. log_end: None or below 0: not known."""
    end = None if log_end is None else _known(log_end)
    start, backlog = _known(part.start_offset), _known(part.lag)
    if backlog is None and end is not None and (start is not None or end == 0):
        # Kafka's brokers do not tell the lag before the first record was finished: until then it is all there.
        backlog = max(0, end - (start or 0))
    blocked = _known(part.blocked)
    return PartitionFigures(
        group,
        part.topic,
        part.partition,
        start,
        end,
        backlog,
        _known(part.in_flight),
        _known(part.delayed),
        blocked,
        _known(part.parked),
        None if blocked is None else max((one.blocked for one in part.stuck), default=0),
        tuple([StuckKey(part.partition, *one) for one in part.stuck]),
        _known(part.redeliveries),
        max(0.0, (now_ms - part.oldest_ms) / 1000) if backlog and part.oldest_ms >= 0 else None,
        None if end is None or backlog is None else end - backlog,
    )


def of_cooperative(group: str, part: PartitionOffsets, now_ms: int, *, log_end: int | None = None) -> PartitionFigures:
    """Return the figures of a partition of a cooperative group, as `of_share`."""
    from flowshare.client.admin.cooperative import held_share, longest_wait_ms
    from flowshare.protocol.messages import SharePartitionOffsets

    shared = SharePartitionOffsets(
        topic=part.topic,
        topic_id=part.topic_id,
        partition=part.partition,
        start_offset=part.stable,
        lag=part.unfinished,
        in_flight=-1,
        delayed=-1,
        redeliveries=-1,
        blocked=-1,
        parked=-1,
    )
    return of_share(group, shared, now_ms, log_end=log_end)._replace(
        committed_ranges=part.count,
        furthest=part.furthest,
        span=part.furthest - part.stable,
        held_keys=held_share(part),
        holders=len({one.member_id for one in part.claims}),
        blocked_handovers=len(part.waits),
        handover_wait_s=(longest_wait_ms(part) or 0) / 1000,
        overlaps=part.overlaps,
        lapsed_claims=part.lapsed,
    )


async def with_retention(
    found: Sequence[PartitionFigures], facts: Facts, rates: Callable[[str], Rates], now_s: float
) -> list[PartitionFigures]:
    """Return the figures with the time until retention reaches the first unfinished record. rates: of a group."""
    counts: dict[tuple[str, str], int] = {}
    for one in found:
        where = (one.group, one.topic)
        counts[where] = counts.get(where, 0) + 1
    arrivals = {where: rates(where[0]).of(*where).arrival for where in counts}
    keepings: dict[str, Keeping] = {}
    for some in chunks(sorted({one.topic for one in found}), AT_ONCE):
        keepings.update(zip(some, await asyncio.gather(*(facts.keeping(one, now_s) for one in some)), strict=True))
    made: list[PartitionFigures] = []
    for one in found:
        keeping, arrival = keepings[one.topic], arrivals[one.group, one.topic]
        first = None
        if keeping.bytes >= 0 and one.backlog and one.start_offset is not None:
            first = await facts.record(one.topic, one.partition, one.start_offset)
        time = left(
            keeping,
            backlog=one.backlog,
            oldest_age_s=one.oldest_age_s,
            behind=None if one.log_end is None else max(0, one.log_end - (one.start_offset or 0)),
            record_bytes=None if first is None else first.record_bytes,
            arrival_per_s=None if arrival is None else arrival / counts[one.group, one.topic],
        )
        seconds = time.seconds if time.seconds is not None and math.isfinite(time.seconds) else None
        made.append(PartitionFigures._make((*one[:-2], seconds, time.why)))  # its last two; quicker than _replace
    return made


async def breaker(admin: ShareAdmin, group: str, settings: Mapping[str, str]) -> BreakerFacts:
    """Return the state of a group's circuit breaker; closed if the group has none, or the state cannot be read."""
    if settings.get(BREAKER, "0") == "0":
        return BreakerFacts()
    try:
        told = await admin.breaker(group)
    except (ServerError, Unsupported) as error:
        logger.debug("breaker of group %s: %s", group, error)
        return BreakerFacts()
    return BreakerFacts(state=told.state, why=told.why, left_s=told.left_ms / 1000)


class LetterCounts:
    """Counts the records of dead-letter topics, each at most every `LETTERS_S`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counted_s = -math.inf
        self._known: dict[str, tuple[float, int]] = {}
        """For each topic the time of its count, and the count."""

    async def look(self, admin: ShareAdmin) -> Mapping[str, int]:
        """Return the number of records of each dead-letter topic, by its name. Raises: ClientError, OSError."""
        now_s = self._clock.monotonic()
        if now_s - self._counted_s >= LETTERS_S:
            await self._count(admin, now_s)
        return {name: count for name, (_, count) in self._known.items()}

    async def _count(self, admin: ShareAdmin, now_s: float) -> None:
        topics = {topic.name: topic for topic in await admin.list_topics() if topic.name.endswith(SUFFIX)}
        counts = self._known = {name: self._known[name] for name in topics if name in self._known}
        due = [name for name in topics if name not in counts or now_s - counts[name][0] >= LETTERS_S]
        due.sort(key=lambda name: counts[name][0] if name in counts else -math.inf)  # of very many, others come later
        for some in chunks(due, AT_ONCE):
            if self._clock.monotonic() > now_s + LETTERS_PART_S:
                return
            found = await asyncio.gather(*(_records(admin, topics[name]) for name in some))
            counts |= {name: (now_s, number) for name, number in zip(some, found, strict=True)}
        self._counted_s = now_s


async def _records(admin: ShareAdmin, topic: TopicMetadata) -> int:
    asked: Iterable[Awaitable[Any]] = (admin.offsets(topic.name, number) for number in range(topic.partitions))
    ends = await asyncio.gather(*asked, return_exceptions=True)
    return sum(one.high_watermark - one.log_start for one in ends if not isinstance(one, BaseException))


def _known(count: int) -> int | None:
    return count if count >= 0 else None
