"""The log as one share-partition's owner sees it: a partition of a topic that keeps its id, read in fitting pieces.

How much is read follows from how many records are wanted and how large they have been so far, because a fetch of one
record must not copy megabytes, and what is acquired is whole batches' bytes anyway.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from flowshare.log.base import ReadResult
from flowshare.log.rules import check_offset
from flowshare.share.acquire import BATCH_MAX
from flowshare.share.errors import UnknownTopicId
from flowshare.share.types import LogBatch

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from flowshare.log.base import Log, LogOffsets
    from flowshare.share.types import AcquiredRange

logger = logging.getLogger(__name__)

READ_BYTES_MIN: Final = 64 << 10
"""Least that is asked of the log at once, so that a first guess about sizes is never too small to matter."""
READ_BYTES_MAX: Final = 64 << 20
"""Most that is asked of the log at once, whatever a fetch allows."""
_BATCH_OVERHEAD: Final = 12


class PartitionLog:
    """One partition's log. All methods raise UnknownTopicId once the topic is gone or was made anew."""

    def __init__(self, log: Log, *, topic: str, topic_id: uuid.UUID, partition: int) -> None:
        self._log = log
        self._offset_bytes = 128.0
        self._said = False
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition

    def bounds(self) -> LogOffsets:
        """Log start, high watermark and last stable offset."""
        self._check()
        return self._log.offsets(self.topic, self.partition)

    async def read(
        self, offset: int, *, records_max: int, bytes_max: int, committed: bool, with_records: bool = True
    ) -> ReadResult:
        """Batches from the one that holds `offset` on, about as many as hold `records_max` records.

        `committed` leaves out what lies past the last stable offset (share.isolation.level=read_committed). Without
        records the log is not read where it is dense: one batch then stands for all that is wanted.
        Raises: OffsetOutOfRange, CorruptRecords.
        """
        self._check()
        if not with_records and (outline := self._outline(offset, records_max, committed=committed)) is not None:
            return outline
        guess = int(min(2 * records_max * self._offset_bytes, READ_BYTES_MAX))
        size = min(max(guess, READ_BYTES_MIN), max(bytes_max, 1))
        result = await self._log.read(self.topic, self.partition, offset, max_bytes=size, committed=committed)
        self._check()
        batches = result.batches
        if batches:
            self._offset_bytes = result.size / (batches[-1].last - batches[0].first + 1)
            self._look_for_large(batches)
        return result

    def _look_for_large(self, batches: Sequence[LogBatch]) -> None:
        large = None if self._said else next((one for one in batches if one.last - one.first >= BATCH_MAX), None)
        if large is None:
            return
        self._said = True
        logger.warning(
            "topic=%s partition=%d: the batch at offset %d says that it has %d records: it is handed out in parts, and "
            "offsets that turn out to hold nothing are passed over",
            self.topic,
            self.partition,
            large.first,
            large.last - large.first + 1,
        )

    def _outline(self, offset: int, records_max: int, *, committed: bool) -> ReadResult | None:
        """What is in the log from `offset` on, by the bounds alone; None when they do not tell."""
        offsets = self._log.offsets(self.topic, self.partition)
        check_offset(offset, offsets)
        end = min(offset + records_max, offsets.last_stable if committed else offsets.high_watermark)
        if not self._log.dense(self.topic, self.partition, offset, end):
            return None
        return ReadResult(pieces=(), batches=(LogBatch(offset, end - 1),) if offset < end else (), offsets=offsets)

    def _check(self) -> None:
        topic = self._log.topics().get(self.topic)
        if topic is None or topic.topic_id != self.topic_id:
            raise UnknownTopicId(f"topic {self.topic} with id {self.topic_id} was deleted")


def overlapping(records: bytes, batches: Sequence[LogBatch], ranges: Sequence[AcquiredRange]) -> bytes:
    """The whole batches of `records` that hold offsets of `ranges`; both lists ascend."""
    pieces: list[bytes] = []
    position = start = end = 0
    at = 0
    for batch in batches:
        size = int.from_bytes(records[position + 8 : position + 12]) + _BATCH_OVERHEAD
        while at < len(ranges) and ranges[at].last < batch.first:
            at += 1
        if at < len(ranges) and ranges[at].first <= batch.last:
            if end != position:
                pieces.append(records[start:end])
                start = position
            end = position + size
        position += size
    pieces.append(records[start:end])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
