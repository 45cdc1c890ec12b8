"""The time until retention deletes the first record that a share group has not finished.

A log is cut from its beginning: where records are older than `retention.ms`, and where the partition is larger than
`retention.bytes`. Records before the cut are lost to the group, whose start offset moves behind it. The time left is

    by age    retention.ms − age of the first unfinished record
    by size   (retention.bytes − bytes from that record on) / bytes that arrive a second

whichever is less; 0 when it may happen at any moment. Sizes are those of the batch that holds the first unfinished
record, so the time by size is an estimate. An unknown time is `None`, with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from flowshare.client.admin.admin import BatchFacts, ShareAdmin
from flowshare.client.errors import ClientError
from flowshare.protocol.headers import DecodeError

FRESH_S: Final = 60.0
"""Seconds that a topic's settings are believed."""
PEEKS_MAX: Final = 200
"""Most records whose age is asked for in one round; the ages of further share-partitions are unknown then."""
_KNOWN_MAX: Final = 20_000

FOREVER: Final = "kept for ever"
FINISHED: Final = "nothing unfinished"


@dataclass(frozen=True, slots=True)
class Keeping:
    """A topic's retention: milliseconds, and bytes per partition; −1: no limit. problem: reason why it is unknown."""

    ms: int = -1
    bytes: int = -1
    problem: str = ""


class Left(NamedTuple):
    """Seconds until retention reaches the first unfinished record; infinite: never; None: unknown. why: in words."""

    seconds: float | None
    why: str


def read_keeping(configs: Mapping[str, str | None]) -> Keeping:
    """Read a topic's settings. A topic that is only compacted deletes nothing by age or size."""
    policies = [one.strip() for one in (configs.get("cleanup.policy") or "delete").split(",")]
    if "delete" not in policies:
        return Keeping()
    try:
        return Keeping(int(configs.get("retention.ms") or -1), int(configs.get("retention.bytes") or -1))
    except ValueError as error:
        return Keeping(problem=f"its retention cannot be read: {error}")


def left(
    keeping: Keeping,
    *,
    backlog: int | None,
    oldest_age_s: float | None,
    behind: int | None,
    record_bytes: float | None,
    arrival_per_s: float | None,
) -> Left:
    """Return the time left in one share-partition.

    behind: records from the first unfinished one to the log's end. record_bytes: size of a record there.
    """
    if keeping.problem:
        return Left(None, keeping.problem)
    if backlog == 0:
        return Left(math.inf, FINISHED)
    limits = []
    if keeping.ms >= 0:
        limits.append(_by_age(keeping.ms, oldest_age_s))
    if keeping.bytes >= 0:
        limits.append(_by_size(keeping.bytes, behind, record_bytes, arrival_per_s))
    for limit in limits:
        if limit.seconds is None:
            return limit
    return min(limits, key=lambda limit: limit.seconds or 0.0, default=Left(math.inf, FOREVER))


def _by_age(keep_ms: int, age_s: float | None) -> Left:
    if age_s is None:
        return Left(None, "the age of the first unfinished record is not known")
    return Left(max(0.0, keep_ms / 1000 - age_s), "by retention.ms")


def _by_size(keep_bytes: int, behind: int | None, record_bytes: float | None, arrival_per_s: float | None) -> Left:
    if behind is None or record_bytes is None:
        return Left(None, "retention.bytes is set, and the size of the records is not known")
    free = keep_bytes - behind * record_bytes
    if free <= 0:
        return Left(0.0, "by retention.bytes")
    if arrival_per_s is None:
        return Left(None, "retention.bytes is set, and the rate of new records is not known yet")
    grows = arrival_per_s * record_bytes
    return Left(free / grows if grows > 0 else math.inf, "by retention.bytes")


class Facts:
    """A cache of topics' settings and of facts on first unfinished records, read by an admin client.

    A record's time and size do not change, so they are asked for once; a round asks for `PEEKS_MAX` records.
    """

    def __init__(self, admin: ShareAdmin) -> None:
        self._admin = admin
        self._keeping: dict[str, tuple[float, Keeping]] = {}
        self._records: dict[tuple[str, int], tuple[int, BatchFacts | None]] = {}
        self._peeks = 0

    def begin(self) -> None:
        """Begin a new round."""
        self._peeks = PEEKS_MAX
        if len(self._records) > _KNOWN_MAX:
            self._records.clear()

    async def keeping(self, topic: str, now_s: float) -> Keeping:
        """Return a topic's retention, at most a minute old."""
        at_s, found = self._keeping.get(topic, (-math.inf, Keeping()))
        if now_s - at_s < FRESH_S:
            return found
        try:
            entries = await self._admin.topic_configs(topic)
            found = read_keeping({entry.name: entry.value for entry in entries})
        except ClientError as error:
            found = Keeping(problem=f"the topic's settings cannot be read: {error}")
        if len(self._keeping) > _KNOWN_MAX:
            self._keeping.clear()
        self._keeping[topic] = (now_s, found)
        return found

    async def record(self, topic: str, partition: int, offset: int) -> BatchFacts | None:
        """Return facts on the record at `offset`; None when unknown."""
        known = self._records.get((topic, partition))
        if known is not None and known[0] == offset:
            return known[1]
        if self._peeks <= 0:
            return None
        self._peeks -= 1
        try:
            facts = await self._admin.peek(topic, partition, offset)
        except (ClientError, DecodeError):
            facts = None  # its leader is moving, say: the next round asks again
        else:
            self._records[topic, partition] = (offset, facts)
        return facts
