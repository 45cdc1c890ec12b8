"""A share group's first offsets from what a consumer group has committed.

What is committed is the first record that the consumer group has not processed, so the share group begins there. An
offset outside of the log is moved to its nearer end; a partition without one begins at the log's start, so that nothing
is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flowshare.client.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flowshare.client.admin.admin import ShareAdmin


class Seed(NamedTuple):
    """Where a share group is to begin in one partition. committed: by a consumer group; −1: nothing. note: what
    is to be said of it, else empty."""

    topic: str
    partition: int
    committed: int
    start: int
    note: str = ""


class SeedPlan(NamedTuple):
    """seeds: where the group begins. gone: topics that have commits and are not there any more."""

    seeds: Sequence[Seed]
    gone: Sequence[str]


async def plan_seeds(admin: ShareAdmin, consumer_group: str, topics: Collection[str] = ()) -> SeedPlan:
    """Where a share group begins that goes on from a consumer group, in these topics or all it has committed in.

    Raises: ClientError (it has committed nothing in them), ServerError, OSError.
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
