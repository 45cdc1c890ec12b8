"""The ends of all followed partitions' logs: the broker that watches each buffer, and the handling of its answers.

    homeless ──leader found──→ with a `Watch` ──it is not the leader, it does not answer──→ homeless
    any ──`stop`, no reader of this isolation level any more──→ gone

A buffer that failed rests before it is asked about again, twice as long each time, up to two seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from flowshare.backoff import QUICK
from flowshare.client.net.topology import NOBODY
from flowshare.fleet.log.chunk import parse
from flowshare.fleet.log.watch import Watch
from flowshare.log.base import LogError, LogOffsets
from flowshare.protocol.errors import ErrorCode
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.client.net.cluster import Cluster
    from flowshare.fleet.log.followed import Followed, FollowedLogs
    from flowshare.fleet.log.read_ahead import ReadBuffer
    from flowshare.fleet.log.topics import Topics
    from flowshare.protocol.messages import FetchedLog

logger = logging.getLogger(__name__)


class Ends:
    """Learns where followed logs end, by a `Watch` at each leader. resync: asks for a partition's bounds again."""

    def __init__(
        self,
        registry: FollowedLogs,
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
        self._at: dict[ReadBuffer, Watch] = {}
        self._homeless: dict[ReadBuffer, None] = {}
        self._finding: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop watching all logs."""
        await cancelled(self._finding)
        for watch in self._watches.values():
            await watch.close()

    def start(self, buffer: ReadBuffer) -> None:
        """Watch a buffer from its tail's end on, also one watched from another place until now."""
        if buffer in self._at:
            self.wake(buffer)
        elif buffer not in self._homeless and not self._settle(buffer):
            self._lose([buffer])

    def stop(self, buffers: Iterable[ReadBuffer]) -> None:
        """Stop watching these buffers."""
        for buffer in buffers:
            self._homeless.pop(buffer, None)
            watch = self._at.pop(buffer, None)
            if watch is not None:
                watch.remove(buffer)

    def wake(self, buffer: ReadBuffer) -> None:
        """Go on with a buffer that is paused no more."""
        watch = self._at.get(buffer)
        if watch is not None:
            watch.wake(buffer)

    # --- answers --------------------------------------------------------------------------------------------------

    def end(self, buffer: ReadBuffer) -> int:
        """Return the log's end as far as known: no records need to be sent from there."""
        followed = self._registry.of(buffer)
        return followed.offsets().high_watermark if followed is not None and followed.known else 0

    def watched(self, buffer: ReadBuffer, offset: int, answer: FetchedLog) -> None:
        """Take in a broker's answer: the records that follow `offset`, or the reason why there are none."""
        followed = self._registry.of(buffer)
        tail = buffer.tail
        if followed is None or tail is None:
            self.stop([buffer])
            return
        if answer.error is not ErrorCode.NONE:
            self._refused(followed, buffer, answer)
            return
        if answer.diverging is not None:
            self._cut(followed, answer.diverging[1])
            return
        chunk, damage = parse(answer.records, offset, answer.aborted) if answer.records else (None, None)
        if chunk is not None and tail.end == offset:
            buffer.add(tail, chunk)
        if damage is None:
            buffer.failures = 0
        else:
            self._damaged(buffer, offset if chunk is None else chunk.end, damage)
        end = answer.last_stable if buffer.committed else answer.high_watermark
        buffer.starved = chunk is None and damage is None and end > offset
        self._registry.told(followed, answer)
        self._unwatch_idle(followed, buffer)

    def looked(self, buffer: ReadBuffer, answer: FetchedLog) -> None:
        """Take in a log's bounds, or the reason why the answer has none."""
        followed = self._registry.of(buffer)
        if followed is None:
            self.stop([buffer])
        elif answer.error is not ErrorCode.NONE:
            self._refused(followed, buffer, answer)
        else:
            self._registry.told(followed, answer)

    def lost(self, buffers: Sequence[ReadBuffer], error: Exception) -> None:
        """Look for other leaders of these buffers, because their broker does not answer."""
        if buffers:
            logger.info("the ends of %d logs are looked for elsewhere: %s", len(buffers), error)
        for buffer in buffers:
            self._rest(buffer)
        self._lose(buffers)

    def _refused(self, followed: Followed, buffer: ReadBuffer, answer: FetchedLog) -> None:
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            if buffer.tail is not None:
                buffer.tail.epoch = -1  # brokers say the same of an epoch that they know nothing of any more
            self._rest(buffer)
            self._resync(followed)
            return
        if buffer.failures == 1:
            place = f"topic={buffer.topic} partition={buffer.partition}"
            logger.info("the log's end is not told: %s %s", answer.error.name, place)
        self._rest(buffer)
        self._lose([buffer])

    def _cut(self, followed: Followed, end: int) -> None:
        """Note that records at the log's end were lost with a leader."""
        old = followed.offsets()
        start = min(old.log_start, end)
        cut = LogOffsets(log_start=start, high_watermark=end, last_stable=min(old.last_stable, end))
        self._registry.found(followed, cut, before=old.high_watermark)
        self._resync(followed)

    def _damaged(self, buffer: ReadBuffer, offset: int, damage: str) -> None:
        if buffer.damaged_at != offset:
            place = f"topic={buffer.topic} partition={buffer.partition} offset={offset}"
            logger.error("damaged records cannot be read: %s %s", damage, place)
            buffer.damaged_at = offset
        self._rest(buffer)

    def _unwatch_idle(self, followed: Followed, buffer: ReadBuffer) -> None:
        """Stop reading ahead an isolation level that is not read, if the other one is."""
        idle_s = self._registry.settings.idle_s
        other = followed.buffers.get(not buffer.committed)
        if other is None or other.tail is None or self._clock.monotonic() - buffer.used_s < idle_s:
            return
        if other.used_s >= buffer.used_s:
            self.stop([buffer])
            buffer.unwatch()

    # --- who leads --------------------------------------------------------------------------------------------------

    def _settle(self, buffer: ReadBuffer) -> bool:
        """Give the buffer to the watch of its leader; False if the leader is not known."""
        node = self._cluster.topology.leader(buffer.topic, buffer.partition)
        if node == NOBODY:
            return False
        watch = self._watches.get((node, buffer.committed))
        if watch is None:
            watch = self._watches[node, buffer.committed] = Watch(
                node,
                committed=buffer.committed,
                cluster=self._cluster,
                client_id=self._client_id,
                settings=self._registry.settings,
                owner=self,
            )
        self._at[buffer] = watch
        watch.add(buffer)
        rest_s = buffer.rests_until_s - self._clock.monotonic()
        if rest_s > 0:
            self._clock.call_later(rest_s, lambda: watch.wake(buffer))
        return True

    def _rest(self, buffer: ReadBuffer) -> None:
        buffer.failures += 1
        pause_s = self._cluster.settings.backoff.after(buffer.failures)
        buffer.rests_until_s = self._clock.monotonic() + pause_s
        watch = self._at.get(buffer)
        if watch is not None:
            self._clock.call_later(pause_s, lambda: watch.wake(buffer))

    def _lose(self, buffers: Iterable[ReadBuffer]) -> None:
        """Find the leaders of these buffers."""
        for buffer in buffers:
            self.stop([buffer])
            self._homeless[buffer] = None
        if self._homeless and (self._finding is None or self._finding.done()):
            self._finding = asyncio.get_running_loop().create_task(self._find(), name="leaders of the logs")

    async def _find(self) -> None:
        looks = 0
        while self._homeless:
            names = {buffer.topic for buffer in self._homeless}
            try:
                await self._topics.refresh(names)
            except LogError as error:
                logger.info("the leaders of %d topics cannot be looked up now: %s", len(names), error)
            for buffer in tuple(self._homeless):
                if buffer.tail is None or self._registry.of(buffer) is None or self._settle(buffer):
                    del self._homeless[buffer]
            looks += 1
            await self._clock.sleep(QUICK.after(looks))
