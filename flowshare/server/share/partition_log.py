"""Whether what a share-partition acquired is still in its log: one of Kafka may lose its end with a leader.

Invariant: nothing is acquired while it is in doubt that all that was acquired before stands in the log as it was.

    SURE ──a read shows a later leader epoch, the log was cut, an offset is out of range──→ DOUBT
    DOUBT ──asked where the epochs part: behind what was acquired──→ SURE
      │──before: the share-partition is cut there, its state written, one line logged, the cut counted──→ SURE
      └──the brokers cannot tell now──→ DOUBT, asked again after a pause
    either ──`close`──→ closed

Before a share-partition is served at all, `Loader` asks the same. What is acknowledged meanwhile is taken: over what
turns out to be lost it has no effect. Logs of our own have no leaders and are never in doubt.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from flowshare.log.base import LogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.clock import Clock
    from flowshare.log.base import LogOffsets
    from flowshare.server.log_view import PartitionLog
    from flowshare.server.stats import Stats
    from flowshare.share.partition import SharePartition
    from flowshare.share.types import PartitionUpdate

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.2
"""Before the brokers are asked again, doubled up to `PAUSE_MAX_S`."""
PAUSE_MAX_S: Final = 5.0
REST_S: Final = 1.0
"""After an offset that is out of range for no reason that the epochs show."""


class CuttableLog(Protocol):
    """A log that may lose its end (`fleet.log.KafkaLog`)."""

    async def divergence(self, topic: str, partition: int, epoch: int) -> tuple[int, int]:
        """The highest leader epoch up to `epoch` that is in the log, and where it ends; (−1, −1): not known.

        Raises: LogError
        """
        ...

    async def bounds(self, topic: str, partition: int) -> LogOffsets:
        """Where the log begins and ends now. Raises: LogError."""
        ...

    def on_cut(self, listener: Callable[[str, int, int], object]) -> None:
        """Call `listener(topic, partition, end)` when a log was cut at `end`."""


async def kept(log: CuttableLog, topic: str, partition: int, *, end: int, epoch: int) -> tuple[int, int]:
    """Of what was acquired up to `end`, under `epoch` at last: up to where it is in the log, and under which epoch.

    Raises: LogError
    """
    if epoch >= 0:
        found, diverging = await log.divergence(topic, partition, epoch)
        if diverging >= 0:
            return (diverging, found) if diverging < end else (end, epoch)
    bounds = await log.bounds(topic, partition)
    return min(end, bounds.high_watermark), epoch


def cut(partition: SharePartition, end: int, epoch: int, *, stats: Stats, where: str) -> PartitionUpdate | None:
    """Cut a share-partition, say so and count it; None: nothing of it was at `end` or behind."""
    before = partition.start_offset, partition.end_offset
    update = partition.cut(end)
    if update is None:
        return None
    partition.log_epoch = epoch
    stats.log_cuts += 1
    stats.records_lost += before[1] - end
    logger.warning(
        "the log lost its records from offset %d on with a leader: forgotten what was acquired there, up to %d; "
        "start offset %d, was %d %s",
        end,
        before[1] - 1,
        partition.start_offset,
        before[0],
        where,
    )
    return update


class LogGuard:
    """The guard of one loaded share-partition.

    kafka: None for a log that is never cut. on_cut: told (offset, epoch) when something that was acquired is lost.
    on_sure: told when acquiring may go on.
    """

    def __init__(
        self,
        kafka: CuttableLog | None,
        *,
        log: PartitionLog,
        partition: SharePartition,
        clock: Clock,
        on_cut: Callable[[int, int], object],
        on_sure: Callable[[], object],
    ) -> None:
        self._kafka = kafka
        self._log = log
        self._partition = partition
        self._clock = clock
        self._on_cut = on_cut
        self._on_sure = on_sure
        self._seen = self._verified = -1
        self._told: int | None = None
        self._strange = False
        self._again = False
        self._task: asyncio.Task[None] | None = None

    @property
    def sure(self) -> bool:
        """Whether records may be acquired."""
        return self._task is None

    def trusts(self, epoch: int) -> bool:
        """Whether what was read, under leader `epoch` at last, may be acquired; if not, that is being found out."""
        known = self._partition.log_epoch
        if known >= 0 and epoch > max(known, self._verified):
            self._seen = max(self._seen, epoch)
            self._doubt()
        return self._task is None

    def out_of_range(self) -> None:
        """The log does not have the next offset, though it does not begin behind it."""
        self._strange = True
        self._doubt()

    def cut(self, end: int) -> None:
        """The log was cut at `end`, or before: it may have grown again since."""
        self._told = end if self._told is None else min(end, self._told)
        self._doubt()

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    def _doubt(self) -> None:
        if self._kafka is None:
            return
        if self._task is not None:
            self._again = True
            return
        self._task = asyncio.get_running_loop().create_task(
            self._settle(self._kafka), name=f"log of {self._log.topic}-{self._log.partition}"
        )

    async def _settle(self, kafka: CuttableLog) -> None:
        try:
            await self._ask(kafka)
        except Exception:
            logger.exception("whether a log was cut could not be found out topic=%s", self._log.topic)
        self._strange, self._told = False, None
        self._task = None
        self._on_sure()

    async def _ask(self, kafka: CuttableLog) -> None:
        pause_s = PAUSE_S
        while True:
            self._again = False
            partition = self._partition
            try:
                end, epoch = await kept(
                    kafka,
                    self._log.topic,
                    self._log.partition,
                    end=partition.end_offset,
                    epoch=partition.log_epoch,
                )
            except LogError as error:
                logger.info("whether a log was cut is not known yet: %s", error)
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            if self._again:
                continue
            end = end if self._told is None else min(end, self._told)
            if end < partition.end_offset:
                self._on_cut(end, epoch)
            elif self._strange:
                await self._clock.sleep(REST_S)
            break
        # What was acquired is a part of the log that has the epoch that was seen. The share-partition learns it with
        # what it acquires next, because it is stored with that.
        self._verified = self._seen
