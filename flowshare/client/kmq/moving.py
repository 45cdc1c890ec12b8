"""Moves a KMQ queue to a share group.

All messages below the consumer group's commit have begun, and all but those open by the markers are finished. So the
share group begins at the first open message, or at the commit, and the messages between are finished ranges.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.admin.seeding import plan_seeds
from flowshare.client.errors import Unsupported
from flowshare.client.kmq.topics import partitions_of
from flowshare.kmq.tracker import PartitionTracker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.kmq.redelivery import QueueRules
    from flowshare.protocol.decoding import DecodedRecord

STEP: Final = 10_000
"""The number of markers that are read at once."""
Ranges = tuple[tuple[int, int], ...]


class QueueMove(NamedTuple):
    """The move of one partition. committed: offset of the consumers, −1: none. open: messages that were begun and not
    ended. start: the share group's first offset. finished: first and last offsets of finished ranges from there on."""

    topic: str
    partition: int
    committed: int
    open: int
    start: int
    finished: Ranges

    @property
    def finished_count(self) -> int:
        """The number of finished offsets behind the start."""
        return sum(last - first + 1 for first, last in self.finished)


class _MarkerView(NamedTuple):
    """A decoded record in the form that the tracker's core takes."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def view(record: DecodedRecord) -> _MarkerView:
    """Return a record of the markers topic in the form for the core."""
    return _MarkerView(record.offset, record.timestamp_ms, record.key, record.value)


async def plan_queue(admin: ShareAdmin, rules: QueueRules, consumer_group: str) -> list[QueueMove]:
    """Plan the start of a share group from a queue's consumers. All retained markers are read.

    Raises: PartitionMismatch, ClientError (the group has committed nothing), ServerError, OSError.
    """
    await partitions_of(admin, rules)
    plan = await plan_seeds(admin, consumer_group, (rules.queue,))
    return [
        _move(rules, seed.partition, seed.committed, seed.start, await _open(admin, rules, seed.partition, seed.start))
        for seed in plan.seeds
    ]


async def carry_queue(admin: ShareAdmin, group_id: str, plan: Sequence[QueueMove]) -> None:
    """Set the share group's start as planned. Raises: ServerError (it has members), ClientError, OSError.

    Kafka's brokers accept no finished ranges: there all messages behind the first open one would run again.
    Raises: Unsupported when that would be so.
    """
    offsets = {(one.topic, one.partition): one.start for one in plan}
    finished = {(one.topic, one.partition): one.finished for one in plan if one.finished}
    try:
        await admin.place_group(group_id, offsets, finished)
    except Unsupported as error:
        again = sum(one.finished_count for one in plan)
        raise Unsupported(
            f"Kafka's brokers take start offsets only, and {again} messages behind open ones are done with: let the "
            "trackers go on until no message is open, then move the queue"
        ) from error


async def _open(admin: ShareAdmin, rules: QueueRules, partition: int, committed: int) -> list[int]:
    """Return the open messages (begun, not ended) below `committed` that are in the queue's log."""
    bounds = await admin.offsets(rules.markers, partition)
    end = bounds.high_watermark
    tracker = PartitionTracker(partition, bounds.log_start, end, open_max=sys.maxsize)  # one left out would be finished
    while tracker.position < end:
        records = await admin.read(rules.markers, partition, tracker.position, limit=STEP)
        if not records:
            break
        tracker.read(map(view, records), records[-1].timestamp_ms)
    first = (await admin.offsets(rules.queue, partition)).log_start
    return [message for message in tracker.messages() if first <= message < committed]


def _move(rules: QueueRules, partition: int, committed: int, start: int, waiting: Sequence[int]) -> QueueMove:
    first = min(waiting, default=start)
    finished: list[tuple[int, int]] = []
    at = first
    for message in waiting:
        if message > at:
            finished.append((at, message - 1))
        at = message + 1
    if at < start:
        finished.append((at, start - 1))
    return QueueMove(rules.queue, partition, committed, len(waiting), first, tuple(finished))
