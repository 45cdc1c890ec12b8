"""The log as one share-partition's owner sees it: read in fitting pieces, and guarded against a lost end.

`PartitionLog` is a partition of a topic that keeps its id. The size of a read follows from the number of wanted records
and their size so far, because a fetch of one record must not copy megabytes, and acquired records come as whole
batches' bytes anyway.

`LogGuard` says whether the acquired records are still in the log: a Kafka log may lose its end with a leader (SG-9.2).

Invariant: nothing is acquired while it is in doubt that all records acquired before stand unchanged in the log.

    SURE ──a read shows a later leader epoch, the log was cut, an offset is out of range──→ DOUBT
    DOUBT ──asked where the epochs part: behind the acquired records──→ SURE
      │──before: the share-partition is cut there, its state written, one line logged, the cut counted──→ SURE
      └──the brokers cannot tell now──→ DOUBT, asked again after a pause
    either ──`close`──→ closed

Before a share-partition is served at all, `Loader` asks the same. Acknowledgements are accepted meanwhile: over records
that turn out to be lost they have no effect. Logs of our own have no leaders and are never in doubt.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from flowshare.backoff import USUAL
from flowshare.core_errors import UnknownTopicId
from flowshare.log.base import LogError, ReadResult, check_offset
from flowshare.share.acquire import BATCH_MAX
from flowshare.share.types import LogBatch

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Sequence

    from flowshare.clock import Clock
    from flowshare.log.base import Log, LogOffsets
    from flowshare.server.share.stats import Stats
    from flowshare.share.partition import SharePartition
    from flowshare.share.types import AcquiredRange, PartitionUpdate


logger = logging.getLogger(__name__)

READ_BYTES_MIN: Final = 64 << 10
"""Least bytes that are read at once, so that a first guess about sizes is never too small to matter."""
READ_BYTES_MAX: Final = 64 << 20
"""Most bytes that are read at once, whatever a fetch allows."""
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
        self.committed = False
        """True if offsets past the last stable one are left out (share.isolation.level=read_committed)."""

    def bounds(self) -> LogOffsets:
        """Return log start, high watermark and last stable offset."""
        self._check()
        return self._log.offsets(self.topic, self.partition)

    def end(self) -> int:
        """Return the offset after the last record that members may get."""
        bounds = self.bounds()
        return bounds.last_stable if self.committed else bounds.high_watermark

    async def read(self, offset: int, *, records_max: int, bytes_max: int, with_records: bool = True) -> ReadResult:
        """Read batches from the one that holds `offset` on, about as many as hold `records_max` records.

        Without records the log is not read where it is dense: one batch then stands for all wanted offsets. Raises:
        OffsetOutOfRange, CorruptBatches.
        """
        self._check()
        if not with_records and (outline := self._outline(offset, records_max)) is not None:
            return outline
        guess = int(min(2 * records_max * self._offset_bytes, READ_BYTES_MAX))
        size = min(max(guess, READ_BYTES_MIN), max(bytes_max, 1))
        result = await self._log.read(self.topic, self.partition, offset, max_bytes=size, committed=self.committed)
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

    def _outline(self, offset: int, records_max: int) -> ReadResult | None:
        """Return the offsets from `offset` on as one batch, by the bounds alone; None if the bounds do not tell."""
        offsets = self._log.offsets(self.topic, self.partition)
        check_offset(offset, offsets)
        end = min(offset + records_max, offsets.last_stable if self.committed else offsets.high_watermark)
        if not self._log.dense(self.topic, self.partition, offset, end):
            return None
        return ReadResult(pieces=(), batches=(LogBatch(offset, end - 1),) if offset < end else (), offsets=offsets)

    def _check(self) -> None:
        topic = self._log.topics().get(self.topic)
        if topic is None or topic.topic_id != self.topic_id:
            raise UnknownTopicId(f"topic {self.topic} with id {self.topic_id} was deleted")


def overlapping(records: bytes, batches: Sequence[LogBatch], ranges: Sequence[AcquiredRange]) -> bytes:
    """Return the whole batches of `records` that hold offsets of `ranges`; both lists ascend."""
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


REST_S: Final = 1.0
"""Seconds to wait after an offset that is out of range for no reason that the epochs show."""


class CuttableLog(Protocol):
    """A log that may lose its end (`fleet.log.KafkaLog`)."""

    async def divergence(self, topic: str, partition: int, epoch: int) -> tuple[int, int]:
        """Return the highest leader epoch up to `epoch` that is in the log, and its end offset; (−1, −1): not known.

        Raises: LogError
        """
        ...

    async def bounds(self, topic: str, partition: int) -> LogOffsets:
        """Return the log's present bounds. Raises: LogError."""
        ...

    def on_cut(self, listener: Callable[[str, int, int], object]) -> None:
        """Call `listener(topic, partition, end)` when a log was cut at `end`."""


async def kept(log: CuttableLog, topic: str, partition: int, *, end: int, epoch: int) -> tuple[int, int]:
    """Return the offset, at most `end`, up to which the acquired records are in the log, and its epoch; `epoch`: of the
    last acquired record.

    Raises: LogError
    """
    if epoch >= 0:
        found, diverging = await log.divergence(topic, partition, epoch)
        if diverging >= 0:
            return (diverging, found) if diverging < end else (end, epoch)
    bounds = await log.bounds(topic, partition)
    return min(end, bounds.high_watermark), epoch


def cut(partition: SharePartition, end: int, epoch: int, *, stats: Stats, where: str) -> PartitionUpdate | None:
    """Cut a share-partition, log and count the cut; None: it had no records at `end` or behind."""
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

    kafka: None for a log that is never cut. on_cut: called with (offset, epoch) when acquired records are lost.
    on_doubt: called when read records may have changed. on_sure: called when acquiring may go on.
    """

    def __init__(
        self,
        kafka: CuttableLog | None,
        *,
        log: PartitionLog,
        partition: SharePartition,
        clock: Clock,
        on_cut: Callable[[int, int], object],
        on_doubt: Callable[[], object],
        on_sure: Callable[[], object],
    ) -> None:
        self._kafka = kafka
        self._log = log
        self._partition = partition
        self._clock = clock
        self._on_cut = on_cut
        self._on_doubt = on_doubt
        self._on_sure = on_sure
        self._seen = self._verified = -1
        self._told: int | None = None
        self._strange = False
        self._again = False
        self._task: asyncio.Task[None] | None = None

    @property
    def sure(self) -> bool:
        """True if records may be acquired: no doubt about the log is being cleared."""
        return self._task is None

    def trusts(self, epoch: int) -> bool:
        """Return True if records read under leader epochs up to `epoch` may be acquired; if False, that is being found
        out."""
        known = self._partition.log_epoch
        if known >= 0 and epoch > max(known, self._verified):
            self._seen = max(self._seen, epoch)
            self._doubt()
        return self._task is None

    def out_of_range(self) -> None:
        """Doubt the log: it does not have the next offset, though it does not begin behind it."""
        self._strange = True
        self._doubt()

    def cut(self, end: int) -> None:
        """Doubt the log: it was cut at `end`, or before, as it may have grown again since."""
        self._told = end if self._told is None else min(end, self._told)
        self._doubt()

    def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()

    def _doubt(self) -> None:
        if self._kafka is None:
            return
        self._on_doubt()
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
        failures = 0
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
                failures += 1
                await self._clock.sleep(USUAL.after(failures))
                continue
            if self._again:
                continue
            end = end if self._told is None else min(end, self._told)
            if end < partition.end_offset:
                self._on_cut(end, epoch)
                break
            if not self._strange:
                break
            await self._clock.sleep(REST_S)
            self._strange = False  # and asked once more: something may have been told meanwhile
        # The acquired records are a part of the log that has the seen epoch. The share-partition learns the epoch with
        # the next acquired records, because it is stored with those.
        self._verified = self._seen
