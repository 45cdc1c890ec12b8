"""One partition that this worker leads share-partitions of: its bounds as they are known, and its lanes.

Bounds only grow, because answers of different requests come in any order and a new leader may for a moment know less
than the old one (KIP-207); they are set back by `found` alone, when the brokers said that the log has been cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowshare.log.base import LogOffsets, UnknownTopic

if TYPE_CHECKING:
    import asyncio
    import uuid

    from flowshare.fleet.log.lane import Lane


class Followed:
    """A followed partition.

    committed: the isolation level that is read first. refs: how many follow it. syncing: asks the brokers for its
    bounds. failures: of that, in a row.
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
        self.lanes: dict[bool, Lane] = {}
        """By whether they are of committed records."""
        self._offsets: LogOffsets | None = None

    @property
    def known(self) -> bool:
        """Whether the bounds are known."""
        return self._offsets is not None

    def offsets(self) -> LogOffsets:
        """The bounds. Raises: UnknownTopic."""
        if self._offsets is None:
            raise UnknownTopic(f"{self.topic}-{self.partition}: its offsets are not known here now; try again later")
        return self._offsets

    def end(self, *, committed: bool) -> int:
        """The offset behind what an isolation level may read."""
        offsets = self.offsets()
        return offsets.last_stable if committed else offsets.high_watermark

    def told(self, log_start: int, high_watermark: int, last_stable: int) -> bool:
        """Take over what an answer says, −1: nothing; whether something has moved on."""
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

        Returns whether the log has been cut; only then are the bounds set back.
        """
        cut = offsets.high_watermark < before
        if cut or self._offsets is None:
            self._offsets = offsets
        else:
            self.told(offsets.log_start, offsets.high_watermark, offsets.last_stable)
        for lane in self.lanes.values():
            lane.cut(self._offsets.log_start, self.end(committed=lane.committed))
        return cut

    def lose(self) -> None:
        """The topic is gone, or is another one now."""
        self._offsets = None
        self.topic_id = None
        for lane in self.lanes.values():
            lane.unwatch()
        self.lanes.clear()
