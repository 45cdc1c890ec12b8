"""Reading a followed partition: out of memory, else by asking its leader once for all readers that wait for the same
records."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from flowshare.fleet.log.chunk import ChunkSlice
from flowshare.fleet.log.lookups import joined
from flowshare.log.base import CorruptBatches, LogError, OffsetOutOfRange, ReadResult, check_offset
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.fleet.log.chunk import LogChunk
    from flowshare.fleet.log.ends import Ends
    from flowshare.fleet.log.followed import Followed, FollowedLogs
    from flowshare.fleet.log.lookups import Lookups
    from flowshare.fleet.log.read_ahead import BufferedRun, ReadBuffer

NOTHING: Final = ChunkSlice(b"", (), (), -1)


class FollowedReader:
    """The reader of followed partitions. resync: asks for the bounds of a partition again."""

    def __init__(
        self, registry: FollowedLogs, asking: Lookups, ends: Ends, *, resync: Callable[[Followed], Awaitable[None]]
    ) -> None:
        self._registry = registry
        self._lookups = asking
        self._ends = ends
        self._resync = resync
        self._monotonic = registry.clock.monotonic
        self._filling: set[asyncio.Task[LogChunk | None]] = set()

    async def close(self) -> None:
        """Cancel all reads."""
        await cancelled(*self._filling)

    async def read(self, place: tuple[str, int], offset: int, *, max_bytes: int, committed: bool) -> ReadResult:
        """See `Log.read`. Raises: UnknownTopic, OffsetOutOfRange, CorruptBatches, StorageError."""
        followed = self._registry.find(*place)
        offsets = followed.offsets()
        check_offset(offset, offsets)
        end = offsets.last_stable if committed else offsets.high_watermark
        if offset >= end:
            return ReadResult(pieces=(), batches=(), offsets=offsets)
        buffer = followed.buffers.get(committed) or self._registry.buffer(followed, committed=committed)
        buffer.used_s = self._monotonic()
        paused = buffer.paused
        piece = buffer.read(offset, max_bytes)
        if piece is None:
            piece = await self._missing(followed, buffer, offset, max_bytes)
            # Meanwhile the topic may have gone, or the log start passed the offset.
            offsets = self._registry.find(*place).offsets()
            check_offset(offset, offsets)
        if paused and not buffer.paused:
            self._ends.wake(buffer)
        if buffer.cold:
            self._go_on(followed, buffer, offsets.last_stable if committed else offsets.high_watermark)
        return ReadResult(
            pieces=(piece.records,),
            batches=piece.batches,
            offsets=offsets,
            aborted=piece.aborted,
            leader_epoch=piece.epoch,
        )

    async def _missing(self, followed: Followed, buffer: ReadBuffer, offset: int, max_bytes: int) -> ChunkSlice:
        """Read batches that are not in memory from the partition's leader."""
        run = buffer.run_for(offset)
        task = run.filling or self._fill(followed, buffer, run, max_bytes)
        try:
            chunk = await joined(task)
        except OffsetOutOfRange:
            with contextlib.suppress(LogError):
                await self._resync(followed)
            raise
        piece = buffer.read(offset, max_bytes)
        if piece is not None:
            return piece
        if chunk is None or chunk.end <= offset:
            return NOTHING
        piece = chunk.read(offset, max_bytes)
        buffer.given(piece)
        return piece

    def _go_on(self, followed: Followed, buffer: ReadBuffer, end: int) -> None:
        """Read on where a group reads, before it asks."""
        run = buffer.wants_more(end)
        if run is not None:
            self._fill(followed, buffer, run, 0)

    def _fill(
        self, followed: Followed, buffer: ReadBuffer, run: BufferedRun, max_bytes: int
    ) -> asyncio.Task[LogChunk | None]:
        settings = self._registry.settings
        size = min(max(max_bytes, settings.stretch_bytes), settings.watch_bytes)
        name = f"read {buffer.topic}-{buffer.partition} at {run.end}"
        task = asyncio.get_running_loop().create_task(self._fetch(followed, buffer, run, size), name=name)
        run.filling = task
        self._filling.add(task)
        task.add_done_callback(lambda done: self._filled(run, done))
        return task

    def _filled(self, run: BufferedRun, task: asyncio.Task[LogChunk | None]) -> None:
        self._filling.discard(task)
        if run.filling is task:
            run.filling = None
        if not task.cancelled():
            task.exception()  # the next reader there meets the error

    async def _fetch(self, followed: Followed, buffer: ReadBuffer, run: BufferedRun, size: int) -> LogChunk | None:
        offset = run.end
        part, parsed = await self._lookups.records(
            buffer.topic, buffer.partition, offset, max_bytes=size, committed=buffer.committed
        )
        chunk = parsed.chunk
        if self._registry.of(buffer) is not followed:
            return chunk
        if chunk is not None and run.end == offset and buffer.holds(run):
            buffer.add(run, chunk)
        self._registry.told(followed, part)
        if chunk is None and parsed.damage is not None:
            raise CorruptBatches(
                f"{buffer.topic}-{buffer.partition}: what Kafka gives for offset {offset} is damaged: {parsed.damage}"
            )
        end = part.last_stable if buffer.committed else part.high_watermark
        if chunk is not None and chunk.end >= end and buffer.reached_end(run):
            self._ends.start(buffer)
        return chunk
