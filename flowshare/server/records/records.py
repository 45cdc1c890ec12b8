"""A plain fetch of many partitions: what it has read so far, and the wait for more.

Partitions are read in the order in which they were asked for, each from where the last look ended. The first batch
found is given whatever its size, so that a reader never gets stuck; all others keep to the limits (KIP-74).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowshare.log.base import LogError, OffsetOutOfRange
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import batch_headers
from flowshare.protocol.messages import AbortedTransaction, FetchedLog
from flowshare.server.answers import FETCH_BYTES_MAX
from flowshare.server.failures import failure
from flowshare.server.parking import Waiter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.log.base import Log, LogOffsets, ReadResult
    from flowshare.protocol.messages import FetchPartition, FetchRequest
    from flowshare.server.answers import Room
    from flowshare.server.turns import Turns


class LogWatch:
    """Wakes the fetches that wait for a partition to grow."""

    def __init__(self, log: Log) -> None:
        self._waiters: dict[tuple[str, int], set[Waiter]] = {}
        log.on_append(self._appended)

    def __len__(self) -> int:
        """Partitions that somebody waits for."""
        return len(self._waiters)

    def park(self, waiter: Waiter, places: Iterable[tuple[str, int]]) -> None:
        """Wake `waiter` at each append to one of the partitions."""
        for place in places:
            self._waiters.setdefault(place, set()).add(waiter)

    def leave(self, waiter: Waiter, places: Iterable[tuple[str, int]]) -> None:
        """Wake it no more."""
        for place in places:
            waiters = self._waiters.get(place)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[place]

    def _appended(self, topic: str, partition: int) -> None:
        for waiter in self._waiters.get((topic, partition), ()):
            waiter.wake()


@dataclass(slots=True)
class _Part:
    """One partition of a fetch: what was read of it so far."""

    asked: FetchPartition
    next_offset: int
    pieces: list[bytes] = field(default_factory=list[bytes])
    size: int = 0
    offsets: LogOffsets | None = None
    aborted: list[AbortedTransaction] = field(default_factory=list[AbortedTransaction])
    error: tuple[ErrorCode, str | None] = (ErrorCode.NONE, None)
    full: bool = False


class Reading:
    """What one fetch has read; `look` reads on."""

    def __init__(self, log: Log, request: FetchRequest, turns: Turns, room: Room) -> None:
        """room: where the bytes are reserved that are read."""
        self._log = log
        self._turns = turns
        self._room = room
        self.short = False
        """Whether the room let less be read than there may be; what was read is to be answered then."""
        self._committed = request.committed
        self._left = min(max(request.max_bytes, 1), FETCH_BYTES_MAX)
        self._asked = request.partitions
        self._parts: tuple[_Part, ...] = ()
        self.size = 0

    @property
    def failed(self) -> bool:
        """Whether a partition has an error to tell."""
        return any(part.error[0] is not ErrorCode.NONE for part in self._parts)

    @property
    def full(self) -> bool:
        """Whether nothing more can be added."""
        return self._left <= 0 or all(part.full for part in self._parts)

    async def places(self) -> tuple[tuple[str, int], ...]:
        """Begin; the partitions, for `LogWatch`."""
        self._parts = await self._turns.each(lambda asked: _Part(asked, asked.offset), self._asked)
        return await self._turns.each(lambda asked: (asked.topic, asked.partition), self._asked)

    async def look(self) -> None:
        """Read what has come."""
        self.short = False
        for part in self._parts:
            if self._left <= 0 and self.size:
                return
            if part.full or part.error[0] is not ErrorCode.NONE:
                continue
            await self._turns.take()
            try:
                await self._read(part)
            except OffsetOutOfRange as error:
                # What was read of a log whose start moved on meanwhile is still good.
                if not part.pieces:
                    part.error = failure(error)
            except LogError as error:
                part.error = failure(error)

    async def _read(self, part: _Part) -> None:
        asked = part.asked
        part.offsets = offsets = self._log.offsets(asked.topic, asked.partition)
        end = offsets.last_stable if self._committed else offsets.high_watermark
        if end <= part.next_offset <= offsets.high_watermark:
            return
        wanted = max(min(max(asked.max_bytes, 1) - part.size, self._left), 1)
        given = 0 if self.short else self._room.reserve(wanted)
        self.short = given < wanted
        if not given:
            return
        kept = self.size
        try:
            read = await self._log.read(
                asked.topic, asked.partition, part.next_offset, max_bytes=given, committed=self._committed
            )
            part.offsets = read.offsets
            self._take(part, read, end, given)
        finally:
            self._room.settle(given, self.size - kept)

    def _take(self, part: _Part, read: ReadResult, end: int, room: int) -> None:
        """Keep what was read, if there is room for it."""
        asked, size = part.asked, read.size
        if not read.batches:
            return
        if self.size and size > room:
            part.full = True  # one batch larger than what is left; it is the first one of some later fetch
            return
        part.pieces += read.pieces
        if self._committed:
            part.aborted += aborted_in(read)
        part.size += size
        part.next_offset = read.batches[-1].last + 1
        # What is there and was not given does not fit: waiting would not change that.
        part.full = part.size >= asked.max_bytes or part.next_offset < end
        self.size += size
        self._left -= size

    async def answer(self) -> tuple[FetchedLog, ...]:
        """Everything read so far."""
        return await self._turns.each(self._answer, self._parts)

    def _answer(self, part: _Part) -> FetchedLog:
        topic, partition = part.asked.topic, part.asked.partition
        code, message = part.error
        offsets = part.offsets
        if offsets is None or code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            return FetchedLog(topic=topic, partition=partition, error=code, message=message)
        return FetchedLog(
            topic=topic,
            partition=partition,
            error=code,
            message=message,
            records=part.pieces[0] if len(part.pieces) == 1 else b"".join(part.pieces),
            log_start=offsets.log_start,
            high_watermark=offsets.high_watermark,
            last_stable=offsets.last_stable,
            aborted=tuple(part.aborted),
        )


def aborted_in(read: ReadResult) -> list[AbortedTransaction]:
    """Aborted transactions with records in what was read: where each one's first batch is."""
    if not read.aborted:
        return []
    found: list[AbortedTransaction] = []
    known: set[int] = set()
    ranges = iter(sorted(read.aborted))
    at = next(ranges, None)
    for header in batch_headers(read.records):
        while at is not None and at.last < header.base_offset:
            at = next(ranges, None)
        if header.is_control:
            known.discard(header.producer_id)
        elif at is not None and at.first <= header.base_offset and header.producer_id not in known:
            known.add(header.producer_id)
            found.append(AbortedTransaction(header.producer_id, header.base_offset))
    return found
