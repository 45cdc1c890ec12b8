"""Where a share-partition stands, for DescribeShareGroupOffsets.

Lag is log end − start offset − delivery-complete count: everything not finished, records in flight included (KIP-1226).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from flowshare.log.base import LogError
from flowshare.protocol.batches import DecodeError, batch_headers
from flowshare.protocol.messages import SharePartitionOffsets
from flowshare.server.failures import EXPECTED, failure

if TYPE_CHECKING:
    from flowshare.log.base import Log, Topic
    from flowshare.server.owner import Owner
    from flowshare.server.partitions import Partitions
    from flowshare.server.state import ShareKey
    from flowshare.server.topic_index import TopicIndex

logger = logging.getLogger(__name__)

PEEK_BYTES: Final = 1
"""Asked of the log to learn the age of one record: it gives a whole batch."""


class OffsetViews:
    """Of the share-partitions that this server leads."""

    def __init__(self, *, log: Log, topics: TopicIndex, partitions: Partitions) -> None:
        self._log = log
        self._topics = topics
        self._partitions = partitions

    async def of(self, key: ShareKey) -> SharePartitionOffsets:
        """One share-partition; −1 if it was never initialised."""
        topic = self._topics.by_id(key.topic_id)
        if topic is None:
            return SharePartitionOffsets(topic="", topic_id=key.topic_id, partition=key.partition)
        if not self._partitions.knows(key):
            return SharePartitionOffsets(topic=topic.name, topic_id=topic.topic_id, partition=key.partition)
        try:
            owner = await self._partitions.open(key)
            owner.follow_log_start()
            return await self._loaded(owner, topic)
        except EXPECTED as error:
            code, message = failure(error)
            return SharePartitionOffsets(
                topic=topic.name, topic_id=topic.topic_id, partition=key.partition, error=code, message=message
            )

    async def _loaded(self, owner: Owner, topic: Topic) -> SharePartitionOffsets:
        state = owner.partition
        start = state.start_offset
        lag = max(0, owner.log.bounds().high_watermark - start - state.delivery_complete_count)
        return SharePartitionOffsets(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=owner.key.partition,
            start_offset=start,
            leader_epoch=owner.leader_epoch,
            lag=lag,
            in_flight=state.acquired_count,
            delayed=state.delayed_count,
            redeliveries=owner.redeliveries,
            oldest_ms=await self._timestamp(owner, start) if lag > 0 else -1,
        )

    async def _timestamp(self, owner: Owner, offset: int) -> int:
        """Timestamp of the batch that holds `offset`: its first record's, or its newest one's if compaction put the
        time of deletion there; when stamped by the log, all records'."""
        try:
            read = await self._log.read(owner.log.topic, owner.log.partition, offset, max_bytes=PEEK_BYTES)
            headers = batch_headers(read.records)
        except (LogError, DecodeError) as error:
            logger.warning("age of the oldest record is not known: %s key=%s", error, owner.key)
            return -1
        if not headers:
            return -1
        header = headers[0]
        return header.first_timestamp if header.delete_horizon_ms is None else header.max_timestamp
