"""How far a group is: what it has finished, and what it has not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from flowshare.spark.ranges import Place, Range

if TYPE_CHECKING:
    from flowshare.client.admin import ShareAdmin
    from flowshare.protocol.messages import SharePartitionOffsets
    from flowshare.spark.options import SourceOptions

COUNT_MAX: Final = 10_000
"""Records that are looked at to count those that were archived."""


async def starts(admin: ShareAdmin, group: str) -> dict[Place, int]:
    """Share-partition start offsets: what lies before them is finished."""
    parts = await admin.group_offsets(group)
    return {(part.topic, part.partition): part.start_offset for part in parts if part.start_offset >= 0}


async def backlog(admin: ShareAdmin, options: SourceOptions) -> int:
    """How many records of the topics that are asked for the group has not finished."""
    parts = await admin.group_offsets(options.group)
    lags = [await _lag(admin, part) for part in parts if options.wants(part.topic)]
    return sum(lags)


async def _lag(admin: ShareAdmin, part: SharePartitionOffsets) -> int:
    """Kafka's brokers do not know it at first (−1): then it is what lies behind the start offset in the log."""
    if part.lag >= 0:
        return part.lag
    bounds = await admin.offsets(part.topic, part.partition)
    return max(0, bounds.high_watermark - max(bounds.log_start, part.start_offset))


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
