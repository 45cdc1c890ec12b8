"""The followed partitions, those that this worker leads share-partitions of: their known bounds, and buffers.

Bounds only grow, because answers of different requests come in any order and a new leader may for a moment know less
than the old one (KIP-207); only `found` sets them back, when the brokers said that the log has been cut.

`FollowedLogs` has all of them, and tells when one moves on or is cut.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from flowshare.fleet.log.read_ahead import ReadBuffer
from flowshare.log.base import LogOffsets, UnknownTopic

if TYPE_CHECKING:
    import asyncio
    import uuid

    from flowshare.clock import Clock
    from flowshare.fleet.log.read_ahead import Memory
    from flowshare.fleet.log.settings import LogSettings
    from flowshare.log.base import AppendListener
    from flowshare.protocol.messages import FetchedLog


class Followed:
    """A followed partition.

    committed: the isolation level that is read first. refs: the number of its followers. syncing: the task that asks
    the brokers for its bounds. failures: of that task, in a row.
    """

    def __init__(self, topic: str, partition: int, *, committed: bool = False) -> None:
        self.topic = topic
        self.partition = partition
        self.place = topic, partition
        self.committed = committed
        self.refs = 0
        self.failures = 0
        self.topic_id: uuid.UUID | None = None
        self.syncing: asyncio.Task[None] | None = None
        self.buffers: dict[bool, ReadBuffer] = {}
        """Buffers by isolation level; True: of committed records."""
        self._offsets: LogOffsets | None = None

    @property
    def known(self) -> bool:
        """True if the bounds are known."""
        return self._offsets is not None

    def offsets(self) -> LogOffsets:
        """Return the bounds. Raises UnknownTopic."""
        if self._offsets is None:
            raise UnknownTopic(f"{self.topic}-{self.partition}: its offsets are not known here now; try again later")
        return self._offsets

    def end(self, *, committed: bool) -> int:
        """Return the offset behind the last record that an isolation level may read."""
        offsets = self.offsets()
        return offsets.last_stable if committed else offsets.high_watermark

    def told(self, log_start: int, high_watermark: int, last_stable: int) -> bool:
        """Take over an answer's bounds (−1: not stated); True if a bound moved on."""
        old = self._offsets
        if old is None:
            return False
        start = max(old.log_start, log_start)
        high = max(old.high_watermark, high_watermark, start)
        stable = min(max(old.last_stable, last_stable, start), high)
        if (start, high, stable) == (old.log_start, old.high_watermark, old.last_stable):
            return False
        self._offsets = LogOffsets(log_start=start, high_watermark=high, last_stable=stable)
        return True

    def found(self, offsets: LogOffsets, *, before: int) -> bool:
        """Take over bounds that were asked for when the log was known to end at `before` (−1: not known).

        Returns True if the log has been cut; only then are the bounds set back.
        """
        cut = offsets.high_watermark < before
        if cut or self._offsets is None:
            self._offsets = offsets
        else:
            self.told(offsets.log_start, offsets.high_watermark, offsets.last_stable)
        for buffer in self.buffers.values():
            buffer.cut(self._offsets.log_start, self.end(committed=buffer.committed))
        return cut

    def lose(self) -> None:
        """Forget bounds and buffers: the topic is gone, or is another one now."""
        self._offsets = None
        self.topic_id = None
        for buffer in self.buffers.values():
            buffer.unwatch()
        self.buffers.clear()


CutListener = Callable[[str, int, int], object]
"""Gets topic, partition and the log's new end after records at its end were lost."""

logger = logging.getLogger(__name__)


class FollowedLogs:
    """Followed partitions by topic and partition."""

    def __init__(self, memory: Memory, clock: Clock, settings: LogSettings) -> None:
        self.memory = memory
        self.clock = clock
        self.settings = settings
        self.by_place: dict[tuple[str, int], Followed] = {}
        self.append_listeners: list[AppendListener] = []
        self.cut_listeners: list[CutListener] = []

    def find(self, topic: str, partition: int) -> Followed:
        """Return a followed partition. Raises UnknownTopic."""
        followed = self.by_place.get((topic, partition))
        if followed is None:
            raise UnknownTopic(f"{topic}-{partition} is not read by this worker")
        return followed

    def of(self, buffer: ReadBuffer) -> Followed | None:
        """Return the followed partition that a buffer belongs to; None when the buffer is not in use any more."""
        followed = self.by_place.get((buffer.topic, buffer.partition))
        return followed if followed is not None and followed.buffers.get(buffer.committed) is buffer else None

    def of_topic(self, topic: str) -> list[Followed]:
        """Return the followed partitions of a topic."""
        return [followed for followed in self.by_place.values() if followed.topic == topic]

    def buffer(self, followed: Followed, *, committed: bool) -> ReadBuffer:
        """Return the buffer of an isolation level."""
        buffer = followed.buffers.get(committed)
        if buffer is None:
            self.memory.buffers += 1
            buffer = followed.buffers[committed] = ReadBuffer(
                followed.topic,
                followed.partition,
                committed=committed,
                memory=self.memory,
                stretch_bytes=self.settings.stretch_bytes,
                now_s=self.clock.monotonic(),
            )
        return buffer

    def drop(self, followed: Followed) -> list[ReadBuffer]:
        """Forget bounds and buffers of a partition; return its former buffers."""
        buffers = list(followed.buffers.values())
        self.memory.buffers -= len(buffers)
        followed.lose()
        return buffers

    def told(self, followed: Followed, answer: FetchedLog) -> None:
        """Take over the bounds of an answer, and tell listeners if they moved."""
        if followed.told(answer.log_start, answer.high_watermark, answer.last_stable):
            self.moved(followed)

    def found(self, followed: Followed, offsets: LogOffsets, *, before: int) -> None:
        """Take over bounds that were asked for when the log was known to end at `before`, and tell listeners."""
        if followed.found(offsets, before=before):
            logger.warning(
                "the log was cut: records at its end were lost with a leader topic=%s partition=%d end=%d",
                followed.topic,
                followed.partition,
                offsets.high_watermark,
            )
            for listener in self.cut_listeners:
                try:
                    listener(followed.topic, followed.partition, offsets.high_watermark)
                except Exception:
                    logger.exception("a cut log could not be told topic=%s", followed.topic)
        self.moved(followed)

    def moved(self, followed: Followed) -> None:
        """Tell listeners that a log has grown, or its start has moved."""
        for listener in self.append_listeners:
            try:
                listener(followed.topic, followed.partition)
            except Exception:
                logger.exception("news of a log could not be told topic=%s", followed.topic)
