"""Reading a followed partition: out of memory, else by asking its leader, for all who wait for the same at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from flowshare.fleet.log.asking import joined
from flowshare.fleet.log.chunk import Piece
from flowshare.log.base import CorruptRecords, LogError, OffsetOutOfRange, ReadResult
from flowshare.log.rules import check_offset

if TYPE_CHECKING:
    from flowshare.fleet.log.asking import Asking
    from flowshare.fleet.log.chunk import Chunk
    from flowshare.fleet.log.ends import Ends
    from flowshare.fleet.log.followed import Followed
    from flowshare.fleet.log.lane import Lane
    from flowshare.fleet.log.registry import Registry
    from flowshare.fleet.log.run import Run

NOTHING: Final = Piece(b"", (), (), -1)


class Reader:
    """resync: asks for the bounds of a partition again."""

    def __init__(
        self, registry: Registry, asking: Asking, ends: Ends, *, resync: Callable[[Followed], Awaitable[None]]
    ) -> None:
        self._registry = registry
        self._asking = asking
        self._ends = ends
        self._resync = resync
        self._monotonic = registry.clock.monotonic
        self._filling: set[asyncio.Task[Chunk | None]] = set()

    async def close(self) -> None:
        """End what is under way."""
        for task in self._filling:
            task.cancel()
        await asyncio.gather(*self._filling, return_exceptions=True)

    async def read(self, place: tuple[str, int], offset: int, *, max_bytes: int, committed: bool) -> ReadResult:
        """See `Log.read`. Raises: UnknownTopic, OffsetOutOfRange, CorruptRecords, StorageError."""
        followed = self._registry.find(*place)
        offsets = followed.offsets()
        check_offset(offset, offsets)
        end = offsets.last_stable if committed else offsets.high_watermark
        if offset >= end:
            return ReadResult(pieces=(), batches=(), offsets=offsets)
        lane = followed.lanes.get(committed) or self._registry.lane(followed, committed=committed)
        lane.used_s = self._monotonic()
        paused = lane.paused
        piece = lane.read(offset, max_bytes)
        if piece is None:
            piece = await self._missing(followed, lane, offset, max_bytes)
            # Meanwhile the topic may have gone, or the log start passed the offset.
            offsets = self._registry.find(*place).offsets()
            check_offset(offset, offsets)
        if paused and not lane.paused:
            self._ends.wake(lane)
        if lane.cold:
            self._go_on(followed, lane, offsets.last_stable if committed else offsets.high_watermark)
        return ReadResult(
            pieces=(piece.records,),
            batches=piece.batches,
            offsets=offsets,
            aborted=piece.aborted,
            leader_epoch=piece.epoch,
        )

    async def _missing(self, followed: Followed, lane: Lane, offset: int, max_bytes: int) -> Piece:
        """What is not in memory, from the leader."""
        run = lane.run_for(offset)
        task = run.filling or self._fill(followed, lane, run, max_bytes)
        try:
            chunk = await joined(task)
        except OffsetOutOfRange:
            with contextlib.suppress(LogError):
                await self._resync(followed)
            raise
        piece = lane.read(offset, max_bytes)
        if piece is not None:
            return piece
        if chunk is None or chunk.end <= offset:
            return NOTHING
        piece = chunk.read(offset, max_bytes)
        lane.given(piece)
        return piece

    def _go_on(self, followed: Followed, lane: Lane, end: int) -> None:
        """Bring in what follows where somebody reads, before it is asked for."""
        run = lane.wants_more(end)
        if run is not None:
            self._fill(followed, lane, run, 0)

    def _fill(self, followed: Followed, lane: Lane, run: Run, max_bytes: int) -> asyncio.Task[Chunk | None]:
        settings = self._registry.settings
        size = min(max(max_bytes, settings.stretch_bytes), settings.watch_bytes)
        name = f"read {lane.topic}-{lane.partition} at {run.end}"
        task = asyncio.get_running_loop().create_task(self._fetch(followed, lane, run, size), name=name)
        run.filling = task
        self._filling.add(task)
        task.add_done_callback(lambda done: self._filled(run, done))
        return task

    def _filled(self, run: Run, task: asyncio.Task[Chunk | None]) -> None:
        self._filling.discard(task)
        if run.filling is task:
            run.filling = None
        if not task.cancelled():
            task.exception()  # whoever reads on there meets it

    async def _fetch(self, followed: Followed, lane: Lane, run: Run, size: int) -> Chunk | None:
        offset = run.end
        part, parsed = await self._asking.records(
            lane.topic, lane.partition, offset, max_bytes=size, committed=lane.committed
        )
        chunk = parsed.chunk
        if self._registry.of(lane) is not followed:
            return chunk
        if chunk is not None and run.end == offset and lane.holds(run):
            lane.add(run, chunk)
        self._registry.told(followed, part)
        if chunk is None and parsed.damage is not None:
            raise CorruptRecords(
                f"{lane.topic}-{lane.partition}: what Kafka gives for offset {offset} is damaged: {parsed.damage}"
            )
        end = part.last_stable if lane.committed else part.high_watermark
        if chunk is not None and chunk.end >= end and lane.reached_end(run):
            self._ends.start(lane)
        return chunk
