"""Finds a share group's first offsets from the committed offsets of a consumer group.

A committed offset is the first record that the consumer group has not processed, so the share group begins there. An
offset outside the log is moved to its nearer end. A partition without a commit begins at the log's start, so that no
record is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flowshare.client.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flowshare.client.admin.admin import ShareAdmin


class Seed(NamedTuple):
    """The start of a share group in one partition. committed: offset of the consumer group; −1: none. note: a remark
    for the user, else empty."""

    topic: str
    partition: int
    committed: int
    start: int
    note: str = ""


class SeedPlan(NamedTuple):
    """The starts of a share group. seeds: one for each partition. gone: topics with commits that do not exist any
    more."""

    seeds: Sequence[Seed]
    gone: Sequence[str]


async def plan_seeds(admin: ShareAdmin, consumer_group: str, topics: Collection[str] = ()) -> SeedPlan:
    """Plan a share group's start from the commits of a consumer group, in `topics` (empty: in all that have commits).

    Raises: ClientError (the group has committed nothing in them), ServerError, OSError.
    """
    committed = {(part.topic, part.partition): part.offset for part in await admin.committed_offsets(consumer_group)}
    named = sorted(
        {topic for (topic, _), offset in committed.items() if offset >= 0 and (not topics or topic in topics)}
    )
    missing = sorted(set(topics).difference(named))
    if missing or not named:
        where = f" in {', '.join(missing)}" if missing else ""
        raise ClientError(
            f"consumer group {consumer_group} has committed nothing{where}; "
            "kafka-consumer-groups.sh --describe --group shows what it has"
        )
    there = {topic.name: topic.partitions for topic in await admin.list_topics()}
    seeds = [
        await _seed(admin, topic, partition, committed.get((topic, partition), -1))
        for topic in named
        for partition in range(there.get(topic, 0))
    ]
    return SeedPlan(seeds, [topic for topic in named if topic not in there])


async def _seed(admin: ShareAdmin, topic: str, partition: int, offset: int) -> Seed:
    first, end = await admin.offsets(topic, partition)
    if offset < 0:
        return Seed(topic, partition, offset, first, f"nothing is committed: begins at the log's start, {first}")
    if offset < first:
        return Seed(
            topic, partition, offset, first, f"{offset} is not in the log any more: begins at its start, {first}"
        )
    if offset > end:
        return Seed(topic, partition, offset, end, f"{offset} is behind the log's end: begins there, at {end}")
    return Seed(topic, partition, offset, offset)
