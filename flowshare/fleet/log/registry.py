"""The followed partitions, and who is told when one of them moves on or is cut."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from flowshare.fleet.log.followed import Followed
from flowshare.fleet.log.lane import Lane
from flowshare.log.base import UnknownTopic

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.log.memory import Memory
    from flowshare.fleet.log.settings import LogSettings
    from flowshare.log.base import AppendListener, LogOffsets
    from flowshare.protocol.messages import FetchedLog

CutListener = Callable[[str, int, int], object]
"""Told topic, partition and the offset at which the log ends since records at its end were lost."""

logger = logging.getLogger(__name__)


class Registry:
    """By topic and partition."""

    def __init__(self, memory: Memory, clock: Clock, settings: LogSettings) -> None:
        self.memory = memory
        self.clock = clock
        self.settings = settings
        self.by_place: dict[tuple[str, int], Followed] = {}
        self.append_listeners: list[AppendListener] = []
        self.cut_listeners: list[CutListener] = []

    def find(self, topic: str, partition: int) -> Followed:
        """A followed partition. Raises: UnknownTopic."""
        followed = self.by_place.get((topic, partition))
        if followed is None:
            raise UnknownTopic(f"{topic}-{partition} is not read by this worker")
        return followed

    def of(self, lane: Lane) -> Followed | None:
        """The partition of a lane; None when the lane is not in use any more."""
        followed = self.by_place.get((lane.topic, lane.partition))
        return followed if followed is not None and followed.lanes.get(lane.committed) is lane else None

    def of_topic(self, topic: str) -> list[Followed]:
        """The followed partitions of a topic."""
        return [followed for followed in self.by_place.values() if followed.topic == topic]

    def lane(self, followed: Followed, *, committed: bool) -> Lane:
        """The lane of an isolation level."""
        lane = followed.lanes.get(committed)
        if lane is None:
            self.memory.lanes += 1
            lane = followed.lanes[committed] = Lane(
                followed.topic,
                followed.partition,
                committed=committed,
                memory=self.memory,
                stretch_bytes=self.settings.stretch_bytes,
                now_s=self.clock.monotonic(),
            )
        return lane

    def drop(self, followed: Followed) -> list[Lane]:
        """Forget what is known of a partition; its lanes that were."""
        lanes = list(followed.lanes.values())
        self.memory.lanes -= len(lanes)
        followed.lose()
        return lanes

    def told(self, followed: Followed, answer: FetchedLog) -> None:
        """Take over the bounds of an answer, and tell if they have moved."""
        if followed.told(answer.log_start, answer.high_watermark, answer.last_stable):
            self.moved(followed)

    def found(self, followed: Followed, offsets: LogOffsets, *, before: int) -> None:
        """Take over bounds that were asked for when the log was known to end at `before`, and tell."""
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
        """Tell that a log has grown, or its start has moved."""
        for listener in self.append_listeners:
            try:
                listener(followed.topic, followed.partition)
            except Exception:
                logger.exception("news of a log could not be told topic=%s", followed.topic)
