"""The ends of all followed partitions' logs: which broker watches which lane, and what its answers mean.

    homeless ──leader found──→ with a `Watch` ──it is not the leader, it does not answer──→ homeless
    any ──`stop`, nobody reads this isolation level any more──→ gone

A lane that failed rests before it is asked about again, twice as long each time, up to two seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.client.topology import NOBODY
from flowshare.fleet.log.chunk import parse
from flowshare.fleet.log.watch import Watch
from flowshare.log.base import LogError, LogOffsets
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from flowshare.client.cluster import Cluster
    from flowshare.fleet.log.followed import Followed
    from flowshare.fleet.log.lane import Lane
    from flowshare.fleet.log.registry import Registry
    from flowshare.fleet.log.topics import Topics
    from flowshare.protocol.messages import FetchedLog

LOOK_PAUSE_S: Final = 0.1
"""Time between two looks for leaders, doubled up to `LOOK_PAUSE_MAX_S` while some are not found."""
LOOK_PAUSE_MAX_S: Final = 0.8

logger = logging.getLogger(__name__)


class Ends:
    """resync: asks for the bounds of a partition again."""

    def __init__(
        self,
        registry: Registry,
        topics: Topics,
        cluster: Cluster,
        *,
        client_id: str,
        resync: Callable[[Followed], object],
    ) -> None:
        self._registry = registry
        self._topics = topics
        self._cluster = cluster
        self._clock = cluster.clock
        self._client_id = client_id
        self._resync = resync
        self._watches: dict[tuple[int, bool], Watch] = {}
        self._at: dict[Lane, Watch] = {}
        self._homeless: dict[Lane, None] = {}
        self._finding: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Watch nothing any more."""
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        for watch in self._watches.values():
            await watch.close()

    def start(self, lane: Lane) -> None:
        """Watch a lane from its tail's end on; it may be watched already, from another place."""
        if lane in self._at:
            self.wake(lane)
        elif lane not in self._homeless and not self._settle(lane):
            self._lose([lane])

    def stop(self, lanes: Iterable[Lane]) -> None:
        """Watch these no more."""
        for lane in lanes:
            self._homeless.pop(lane, None)
            watch = self._at.pop(lane, None)
            if watch is not None:
                watch.remove(lane)

    def wake(self, lane: Lane) -> None:
        """A lane is not paused any more."""
        watch = self._at.get(lane)
        if watch is not None:
            watch.wake(lane)

    # --- answers --------------------------------------------------------------------------------------------------

    def end(self, lane: Lane) -> int:
        """The log's end as far as is known."""
        followed = self._registry.of(lane)
        return followed.offsets().high_watermark if followed is not None and followed.known else 0

    def watched(self, lane: Lane, offset: int, answer: FetchedLog) -> None:
        """What follows `offset`, or why there is none."""
        followed = self._registry.of(lane)
        tail = lane.tail
        if followed is None or tail is None:
            self.stop([lane])
            return
        if answer.error is not ErrorCode.NONE:
            self._refused(followed, lane, answer)
            return
        if answer.diverging is not None:
            self._cut(followed, answer.diverging[1])
            return
        chunk, damage = parse(answer.records, offset, answer.aborted) if answer.records else (None, None)
        if chunk is not None and tail.end == offset:
            lane.add(tail, chunk)
        if damage is None:
            lane.failures = 0
        else:
            self._damaged(lane, offset if chunk is None else chunk.end, damage)
        end = answer.last_stable if lane.committed else answer.high_watermark
        lane.starved = chunk is None and damage is None and end > offset
        self._registry.told(followed, answer)
        self._unwatch_idle(followed, lane)

    def looked(self, lane: Lane, answer: FetchedLog) -> None:
        """The bounds, or why there are none."""
        followed = self._registry.of(lane)
        if followed is None:
            self.stop([lane])
        elif answer.error is not ErrorCode.NONE:
            self._refused(followed, lane, answer)
        else:
            self._registry.told(followed, answer)

    def lost(self, lanes: Sequence[Lane], error: Exception) -> None:
        """The broker does not answer; somebody else may lead these by now."""
        if lanes:
            logger.info("the ends of %d logs are looked for elsewhere: %s", len(lanes), error)
        for lane in lanes:
            self._rest(lane)
        self._lose(lanes)

    def _refused(self, followed: Followed, lane: Lane, answer: FetchedLog) -> None:
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            if lane.tail is not None:
                lane.tail.epoch = -1  # brokers say the same of an epoch that they know nothing of any more
            self._rest(lane)
            self._resync(followed)
            return
        if lane.failures == 1:
            place = f"topic={lane.topic} partition={lane.partition}"
            logger.info("the log's end is not told: %s %s", answer.error.name, place)
        self._rest(lane)
        self._lose([lane])

    def _cut(self, followed: Followed, end: int) -> None:
        """Records at the log's end were lost with a leader."""
        old = followed.offsets()
        start = min(old.log_start, end)
        cut = LogOffsets(log_start=start, high_watermark=end, last_stable=min(old.last_stable, end))
        self._registry.found(followed, cut, before=old.high_watermark)
        self._resync(followed)

    def _damaged(self, lane: Lane, offset: int, damage: str) -> None:
        if lane.damaged_at != offset:
            place = f"topic={lane.topic} partition={lane.partition} offset={offset}"
            logger.error("damaged records cannot be read: %s %s", damage, place)
            lane.damaged_at = offset
        self._rest(lane)

    def _unwatch_idle(self, followed: Followed, lane: Lane) -> None:
        """Read one isolation level ahead if the other is the only one that is read."""
        idle_s = self._registry.settings.idle_s
        other = followed.lanes.get(not lane.committed)
        if other is None or other.tail is None or self._clock.monotonic() - lane.used_s < idle_s:
            return
        if other.used_s >= lane.used_s:
            self.stop([lane])
            lane.unwatch()

    # --- who leads --------------------------------------------------------------------------------------------------

    def _settle(self, lane: Lane) -> bool:
        """Give the lane to the watch of its leader, if that is known."""
        node = self._cluster.topology.leader(lane.topic, lane.partition)
        if node == NOBODY:
            return False
        watch = self._watches.get((node, lane.committed))
        if watch is None:
            watch = self._watches[node, lane.committed] = Watch(
                node,
                committed=lane.committed,
                cluster=self._cluster,
                client_id=self._client_id,
                settings=self._registry.settings,
                owner=self,
            )
        self._at[lane] = watch
        watch.add(lane)
        rest_s = lane.rests_until_s - self._clock.monotonic()
        if rest_s > 0:
            self._clock.call_later(rest_s, lambda: watch.wake(lane))
        return True

    def _rest(self, lane: Lane) -> None:
        settings = self._cluster.settings
        pause_s = min(settings.backoff_min_s * 2 ** min(lane.failures, 16), settings.backoff_max_s)
        lane.failures += 1
        lane.rests_until_s = self._clock.monotonic() + pause_s
        watch = self._at.get(lane)
        if watch is not None:
            self._clock.call_later(pause_s, lambda: watch.wake(lane))

    def _lose(self, lanes: Iterable[Lane]) -> None:
        """Find out who leads these."""
        for lane in lanes:
            self.stop([lane])
            self._homeless[lane] = None
        if self._homeless and (self._finding is None or self._finding.done()):
            self._finding = asyncio.get_running_loop().create_task(self._find(), name="leaders of the logs")

    async def _find(self) -> None:
        pause_s = LOOK_PAUSE_S
        while self._homeless:
            names = {lane.topic for lane in self._homeless}
            try:
                await self._topics.refresh(names)
            except LogError as error:
                logger.info("the leaders of %d topics cannot be looked up now: %s", len(names), error)
            for lane in tuple(self._homeless):
                if lane.tail is None or self._registry.of(lane) is None or self._settle(lane):
                    del self._homeless[lane]
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_PAUSE_MAX_S)
