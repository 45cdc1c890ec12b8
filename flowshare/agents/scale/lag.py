"""Backlog of share-partitions and of partitions of cooperative groups, and of topics, as `/lag`, `flowshare lag` and
`flowshare groups describe` show it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.agents.scale.retention import FINISHED, FOREVER, left
from flowshare.agents.scale.stall_reason import BreakerFacts
from flowshare.client.admin.admin import BREAKER
from flowshare.client.errors import ServerError

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.scale.rates import Rates
    from flowshare.agents.scale.retention import Facts, Keeping
    from flowshare.backend.base import Capabilities
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.admin.watching import ShareWatch
    from flowshare.protocol.messages import SharePartitionOffsets
    from flowshare.protocol.messages.cooperative import PartitionOffsets

logger = logging.getLogger("flowshare.host")

Rows = list[dict[str, Any]]
Figures = Mapping[str, float | None]
COOPERATIVE: Final[Figures] = dict.fromkeys(
    (
        "committed_ranges",
        "furthest",
        "span",
        "held_keys",
        "holders",
        "blocked_handovers",
        "handover_wait_s",
        "overlaps",
        "lapsed_claims",
    )
)
"""Figures that only rows of cooperative groups have:

- `committed_ranges`: committed ranges behind the stable offset (`start_offset`).
- `furthest`, `span`: the furthest committed offset, and its distance from the stable offset.
- `held_keys`, `holders`: the part of the keys that members hold (0 to 1), and the number of these members.
- `blocked_handovers`, `handover_wait_s`: ranges that members wait for until others give them back, and the age of the
  longest wait.
- `overlaps`, `lapsed_claims`: since the server loaded the partition, claims taken from a member that did not give them
  back in time, and claims whose lease ended.
"""

AT_ONCE: Final = 64
"""Share-partitions, or topics, that are asked about at the same time."""
GROUPS_AT_ONCE: Final = 16
"""Groups."""
_SUMS: Final = ("backlog", "in_flight", "delayed", "blocked", "parked", "redeliveries", "finished")
STUCK_MAX: Final = 5
"""Most keys that are named of a topic."""


class Groups(NamedTuple):
    """Groups by their kind; None: all groups of the kind that the backend knows."""

    share: Collection[str] | None = ()
    cooperative: Collection[str] | None = ()

    @classmethod
    def of(cls, agents: Iterable[ShareAgent]) -> Groups:
        """Return the agents' groups, without those that only know offsets."""
        kinds: dict[str, list[str]] = {"share": [], "cooperative": [], "consumer": []}
        for agent in agents:
            kinds[agent.group_type].append(agent.group)
        return cls(kinds["share"], kinds["cooperative"])


def every_group(capabilities: Capabilities) -> Groups:
    """Return all groups of a backend; Kafka's own brokers have no cooperative groups, and are not asked for any."""
    return Groups(None, None if capabilities.key_order else ())


async def rows(admin: ShareAdmin, groups: Groups, now_ms: int, facts: Facts | None = None) -> Rows:
    """Return one JSON-ready row for each partition of the groups.

    in_flight, delayed, blocked, parked (keys), redeliveries: None when unknown (Kafka's brokers do not tell).
    stuck: records for which most others wait: offset, number of waiting ones, state, delivery_count, member_id.
    backlog: unfinished records, −1 when unknown; finished: finished records since the topic began, None when unknown
    (its growth is the rate); log_end: next offset of the log, None when unknown; oldest_age_s: age of the first
    unfinished record, None without one. facts: reads that age from the log at the group's start offset where brokers do
    not tell it; Kafka's brokers move that offset a little late, so for a moment the age may be that of a record that
    has just been finished. Rows of cooperative groups have more figures, which are None for others: `COOPERATIVE`.
    """
    found: Rows = []
    named, sharing = groups
    if named is None:
        named = [group.group_id for group in await admin.list_groups()]
    if sharing is None:
        sharing = await admin.cooperative.names()
    cooperative = set(sharing)
    names = list(dict.fromkeys((*named, *sharing)))
    for first in range(0, len(names), GROUPS_AT_ONCE):
        ask = _Ask(admin, now_ms, facts)
        some = names[first : first + GROUPS_AT_ONCE]
        for found_of in await asyncio.gather(*(ask.group(group, shared=group not in cooperative) for group in some)):
            found += found_of
    return found


class _Ask:
    """Asks for the rows of a few groups at a time; for the end of each log once."""

    def __init__(self, admin: ShareAdmin, now_ms: int, facts: Facts | None) -> None:
        self._admin = admin
        self._now_ms = now_ms
        self._facts = facts
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._ends: dict[tuple[str, int], asyncio.Future[int]] = {}

    async def group(self, group: str, *, shared: bool) -> Rows:
        """Return one row per partition."""
        try:
            parts = await (_shared(self._admin, group) if shared else _cooperative(self._admin, group))
        except ServerError as error:  # not there yet, or its topic is being deleted
            logger.debug("no backlog of group %s: %s", group, error)
            return []
        rows = await asyncio.gather(*(self._row(group, part, more) for part, more in parts))
        return [row for row in rows if row is not None]

    async def _row(self, group: str, part: SharePartitionOffsets, more: Figures) -> dict[str, Any] | None:
        async with self._turns:
            try:
                end = await self._end(part.topic, part.partition)
            except ServerError as error:
                logger.debug("no backlog of group %s: %s", group, error)
                return None
            if part.lag < 0 <= part.start_offset:
                # Kafka's brokers do not tell the lag before the first record was finished: until then it is all there.
                part = replace(part, lag=max(0, end - part.start_offset))
            made = row(group, part, self._now_ms, log_end=end, more=more)
            if self._facts is not None and part.lag > 0 and part.oldest_ms < 0:
                first = await self._facts.record(part.topic, part.partition, part.start_offset)
                if first is not None and first.timestamp_ms >= 0:
                    made["oldest_age_s"] = max(0.0, (self._now_ms - first.timestamp_ms) / 1000)
            return made

    async def _end(self, topic: str, partition: int) -> int:
        """Return the next offset of a log, which many groups may read."""
        asking = self._ends.get((topic, partition))
        if asking is None:
            asking = self._ends[topic, partition] = asyncio.ensure_future(self._admin.log_end(topic, partition))
        return await asyncio.shield(asking)


async def watched(watch: ShareWatch, now_ms: int) -> Rows:
    """Return `rows` of all share groups, from the changes that servers report. Raises: as `ShareWatch.look`."""
    from flowshare.protocol.messages import SharePartitionOffsets

    found = await watch.look()
    return [
        row(
            one.group_id,
            SharePartitionOffsets(
                topic=one.topic,
                topic_id=None,
                partition=one.partition,
                start_offset=one.start_offset,
                lag=one.lag,
                in_flight=one.in_flight,
                delayed=one.delayed,
                redeliveries=one.redeliveries,
                oldest_ms=one.oldest_ms,
                blocked=one.blocked,
                stuck=one.stuck,
                archiving=one.archiving,
                parked=one.parked,
            ),
            now_ms,
            log_end=one.log_end if one.log_end >= 0 else None,
        )
        for one in found.values()
    ]


async def _shared(admin: ShareAdmin, group: str) -> list[tuple[SharePartitionOffsets, Figures]]:
    return [(part, COOPERATIVE) for part in await admin.group_offsets(group)]


async def _cooperative(admin: ShareAdmin, group: str) -> list[tuple[SharePartitionOffsets, Figures]]:
    return [as_shared(part) for part in await admin.cooperative.offsets(group)]


def as_shared(part: PartitionOffsets) -> tuple[SharePartitionOffsets, Figures]:
    """Return a partition of a cooperative group in the form of a share-partition, and its additional figures."""
    from flowshare.client.admin.cooperative import held_share, longest_wait_ms
    from flowshare.protocol.messages import SharePartitionOffsets

    waited_ms = longest_wait_ms(part)
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
    return shared, {
        "committed_ranges": part.count,
        "furthest": part.furthest,
        "span": part.furthest - part.stable,
        "held_keys": held_share(part),
        "holders": len({one.member_id for one in (*part.claims, *part.spans)}),
        "blocked_handovers": len(part.waits),
        "handover_wait_s": 0.0 if waited_ms is None else waited_ms / 1000,
        "overlaps": part.overlaps,
        "lapsed_claims": part.lapsed,
    }


async def members(admin: ShareAdmin, group: str, *, cooperative: bool = False) -> int | None:
    """Return the number of a group's members in all processes; None when unknown."""
    try:
        found = await (admin.cooperative.describe(group) if cooperative else admin.describe_group(group))
        return len(found.members)
    except ServerError as error:
        logger.debug("members of group %s: %s", group, error)
        return None


async def breaker(admin: ShareAdmin, group: str, settings: Mapping[str, str]) -> BreakerFacts:
    """Return the state of a group's circuit breaker; closed if the group has none, or the state cannot be read."""
    if settings.get(BREAKER, "0") == "0":
        return BreakerFacts()
    try:
        told = await admin.breaker(group)
    except ServerError as error:
        logger.debug("breaker of group %s: %s", group, error)
        return BreakerFacts()
    return BreakerFacts(state=told.state, why=told.why, left_s=told.left_ms / 1000)


def row(
    group: str,
    part: SharePartitionOffsets,
    now_ms: int,
    *,
    log_end: int | None = None,
    more: Figures = COOPERATIVE,
) -> dict[str, Any]:
    """Return the row of one partition. more: figures that only cooperative groups have."""
    if part.lag < 0 and log_end == 0:
        part = replace(part, lag=0)  # an empty log: the backlog is zero
    pending = part.lag > 0 and part.oldest_ms >= 0
    return {
        "group": group,
        "topic": part.topic,
        "partition": part.partition,
        "start_offset": part.start_offset,
        "log_end": log_end,
        "backlog": part.lag,
        "in_flight": _known(part.in_flight),
        "delayed": _known(part.delayed),
        "blocked": _known(part.blocked),
        "parked": _known(part.parked),
        "most_blocked": None if part.blocked < 0 else max((one.blocked for one in part.stuck), default=0),
        "stuck": [{"partition": part.partition, **one._asdict()} for one in part.stuck],
        "redeliveries": _known(part.redeliveries),
        "oldest_age_s": max(0.0, (now_ms - part.oldest_ms) / 1000) if pending else None,
        "finished": log_end - part.lag if log_end is not None and part.lag >= 0 else None,
        **more,
    }


async def add_retention(found: Rows, facts: Facts, rates: Rates, now_s: float) -> None:
    """Add to each row the time until retention reaches its first unfinished record.

    retention_left_s: None when unknown or never; retention: in words which of the two, or the limiting setting.
    """
    parts_of: dict[tuple[str, str], int] = {}
    for one in found:
        where = (one["group"], one["topic"])
        parts_of[where] = parts_of.get(where, 0) + 1
    arrivals = {where: rates.of(*where).arrival for where in parts_of}
    topics = sorted({one["topic"] for one in found})
    keepings: dict[str, Keeping] = {}
    for first in range(0, len(topics), AT_ONCE):
        some = topics[first : first + AT_ONCE]
        keepings.update(zip(some, await asyncio.gather(*(facts.keeping(one, now_s) for one in some)), strict=True))
    for one in found:
        keeping = keepings[one["topic"]]
        sized = keeping.bytes >= 0 and one["backlog"] > 0
        arrival = arrivals[one["group"], one["topic"]]
        time = left(
            keeping,
            backlog=one["backlog"],
            oldest_age_s=one["oldest_age_s"],
            behind=None if one["log_end"] is None else max(0, one["log_end"] - one["start_offset"]),
            record_bytes=await _record_bytes(facts, one) if sized else None,
            arrival_per_s=None if arrival is None else arrival / parts_of[one["group"], one["topic"]],
        )
        one["retention_left_s"] = time.seconds if time.seconds is not None and math.isfinite(time.seconds) else None
        one["retention"] = time.why


def by_topic(found: Sequence[dict[str, Any]], rates: Rates | None = None) -> Rows:
    """Return one row per group and topic: sums, the oldest record, the least time left by retention, and rates per
    second.

    arrival_rate, rate (finished), redelivery_rate: None when unknown.
    """
    made: dict[tuple[str, str], dict[str, Any]] = {}
    for one in found:
        where = (one["group"], one["topic"])
        if where in made:
            _join(made[where], one)
        else:
            made[where] = {"group": one["group"], "topic": one["topic"], "partitions": 1}
            made[where] |= {name: one.get(name) for name in (*_SUMS, "oldest_age_s", "retention_left_s", "retention")}
            made[where]["stuck"] = one.get("stuck", [])
    for (group, topic), one in made.items():
        arrival, finished, redelivered = (None, None, None) if rates is None else rates.of(group, topic)
        one |= {"arrival_rate": arrival, "rate": finished, "redelivery_rate": redelivered}
    return list(made.values())


def _join(into: dict[str, Any], one: dict[str, Any]) -> None:
    into["partitions"] += 1
    for name in _SUMS:
        known = into[name] is not None and one[name] is not None and min(into[name], one[name]) >= 0
        unknown = -1 if name == "backlog" else None
        into[name] = into[name] + one[name] if known else unknown
    if one.get("stuck"):
        stuck = [*into["stuck"], *one["stuck"]]
        into["stuck"] = sorted(stuck, key=lambda key: -key["blocked"])[:STUCK_MAX]
    age = one["oldest_age_s"]
    if age is not None and (into["oldest_age_s"] is None or age > into["oldest_age_s"]):
        into["oldest_age_s"] = age
    if _urgency(one) < _urgency(into):
        into |= {"retention_left_s": one.get("retention_left_s"), "retention": one.get("retention")}


def _urgency(one: dict[str, Any]) -> tuple[int, float]:
    """Return a sort key for the most urgent answer: a time, then "not known", then "nothing to fear"."""
    seconds, why = one.get("retention_left_s"), one.get("retention")
    if seconds is not None:
        return (0, seconds)
    return ({FOREVER: 2, FINISHED: 3}.get(str(why), 1), 0.0)


async def _record_bytes(facts: Facts, one: dict[str, Any]) -> float | None:
    first = await facts.record(one["topic"], one["partition"], one["start_offset"])
    return None if first is None else first.record_bytes


def _known(count: int) -> int | None:
    return count if count >= 0 else None
