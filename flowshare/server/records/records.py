"""The record APIs that need no group: produce, fetch, list offsets, delete records.

A fetch reads its partitions in the order of the request, each from where the last look ended (`Reading`), and waits for
more (`LogWatch`). The first batch found is given whatever its size, so that a reader never gets stuck; all others keep
to the limits (KIP-74). With a filter of keys on a partition, the fetch looks on until it has enough records, and
is answered when there is something to tell (`filtering`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from flowshare.log.base import LogError, OffsetOutOfRange
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import batch_headers
from flowshare.protocol.messages import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    AbortedTransaction,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchedLog,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from flowshare.server.records.filtering import ALL_SCANS_BYTES, READ_BYTES, BatchFilter, Scan
from flowshare.server.runtime import answers
from flowshare.server.runtime.answers import FETCH_BYTES_MAX
from flowshare.server.runtime.connection import IN_PROCESS, Family, InProcess, handles
from flowshare.server.runtime.failures import failure, refusal
from flowshare.server.runtime.waiting import Ended, Purgatory, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flowshare.clock import Clock
    from flowshare.log.base import Admission, Log, LogOffsets, ReadResult
    from flowshare.log.storage import BrokerStorage
    from flowshare.protocol.messages import FetchPartition
    from flowshare.server.runtime.answers import AnswerSpace
    from flowshare.server.runtime.turns import Turns


WAIT_MAX_MS: Final = 10 * 60 * 1000
"""Longest wait granted, in ms, for any max_wait_ms."""
WAITING_PARTS_MAX: Final = 200_000
"""Partitions of all waiting fetches together, about a kilobyte each, for 16 bytes that the client sent: beyond that,
the fetches of most partitions are answered with their present records."""
WAITED_BYTES_MAX: Final = 1 << 20
"""Bytes gathered for a waiting fetch, for any min_bytes; more are given but not waited for."""
BEFORE_ALL: Final = -(1 << 62)
"""A timestamp below that of any record."""


class LogWatch:
    """Wakes the fetches that wait for a partition to grow."""

    def __init__(self, log: Log) -> None:
        self._waiters: dict[tuple[str, int], set[Waiter]] = {}
        log.on_append(self._appended)

    def park(self, waiter: Waiter, places: Iterable[tuple[str, int]]) -> None:
        """Wake `waiter` at each append to one of the partitions."""
        for place in places:
            self._waiters.setdefault(place, set()).add(waiter)

    def leave(self, waiter: Waiter, places: Iterable[tuple[str, int]]) -> None:
        """Stop waking `waiter`."""
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
    """One partition of a fetch, with the records read so far."""

    asked: FetchPartition
    next_offset: int
    pieces: list[bytes] = field(default_factory=list[bytes])
    size: int = 0
    offsets: LogOffsets | None = None
    aborted: list[AbortedTransaction] = field(default_factory=list[AbortedTransaction])
    error: tuple[ErrorCode, str | None] = (ErrorCode.NONE, None)
    full: bool = False
    scan: Scan | None = None
    """The scan, where only some keys are wanted."""

    @property
    def tells(self) -> bool:
        """True if the scan has something to tell now beside records: voids, unopened ranges, or its end when full."""
        return self.scan is not None and (self.full or bool(self.scan.voids or self.scan.unopened))


class Reading:
    """The records that one fetch has read; `look` reads on."""

    def __init__(self, log: Log, request: FetchRequest, turns: Turns, space: AnswerSpace, batches: BatchFilter) -> None:
        """space: account in which read bytes are reserved."""
        self._batches = batches
        self._looked = 0
        """Bytes read on partitions with a filter of keys."""
        self._log = log
        self._turns = turns
        self._space = space
        self.short = False
        """True if the space allowed less to be read than there may be; the read records are to be answered then."""
        self._committed = request.committed
        self._left = min(max(request.max_bytes, 1), FETCH_BYTES_MAX)
        self._asked = request.partitions
        self._parts: tuple[_Part, ...] = ()
        self.size = 0

    @property
    def failed(self) -> bool:
        """True if a partition has an error to tell."""
        return any(part.error[0] is not ErrorCode.NONE for part in self._parts)

    @property
    def full(self) -> bool:
        """True if nothing more can be added, or something is to be told beside the records."""
        return self._left <= 0 or all(part.full for part in self._parts) or any(part.tells for part in self._parts)

    async def places(self) -> tuple[tuple[str, int], ...]:
        """Begin, and return the partitions, for `LogWatch`."""
        self._parts = await self._turns.each(_part, self._asked)
        return await self._turns.each(lambda asked: (asked.topic, asked.partition), self._asked)

    async def look(self) -> None:
        """Read all new records."""
        self.short = False
        for part in self._parts:
            if self._left <= 0 and self.size:
                return
            if part.full or part.error[0] is not ErrorCode.NONE:
                continue
            await self._turns.take()
            try:
                if part.scan is None:
                    await self._read(part)
                else:
                    await self._scan(part, part.scan)
            except OffsetOutOfRange as error:
                # Records read from a log whose start moved on meanwhile are still good.
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
        given = 0 if self.short else self._space.reserve(wanted)
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
            self._space.settle(given, self.size - kept)

    def _take(self, part: _Part, read: ReadResult, end: int, room: int) -> None:
        """Keep read batches, if there is room for them."""
        asked, size = part.asked, read.size
        if not read.batches:
            return
        if self.size and size > room:
            part.full = True  # one batch larger than the room left; a later fetch begins with it
            return
        part.pieces += read.pieces
        if self._committed:
            part.aborted += aborted_in(read)
        part.size += size
        part.next_offset = read.batches[-1].last + 1
        # Records that are there and were not given do not fit: waiting would not change that.
        part.full = part.size >= asked.max_bytes or part.next_offset < end
        self.size += size
        self._left -= size

    async def _scan(self, part: _Part, scan: Scan) -> None:
        """Look through new records, up to the log's end, or until there are enough."""
        asked = part.asked
        while not part.full:
            part.offsets = offsets = self._log.offsets(asked.topic, asked.partition)
            if self._looked >= ALL_SCANS_BYTES:
                part.full = True
                return
            end = offsets.last_stable if self._committed else offsets.high_watermark
            if end <= scan.position <= offsets.high_watermark:
                return
            given = 0 if self.short else self._space.reserve(READ_BYTES)
            self.short = given < READ_BYTES
            if not given:
                return
            kept, before = self.size, scan.position
            try:
                read = await self._log.read(
                    asked.topic, asked.partition, scan.position, max_bytes=given, committed=self._committed
                )
                part.offsets = read.offsets
                room = min(max(asked.max_bytes, 1) - part.size, self._left)
                place = (asked.topic, asked.partition)
                pieces = await self._batches.thin(place, read, scan, self._turns, room=room)
                size = sum(map(len, pieces))
                self._looked += read.size
                part.pieces += pieces
                part.size += size
                self.size += size
                self._left -= size
            finally:
                self._space.settle(given, self.size - kept)
            part.full = scan.over or part.size >= asked.max_bytes or self._left <= 0
            if scan.position == before:
                return

    async def answer(self) -> tuple[FetchedLog, ...]:
        """Return everything read so far."""
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
            filtered=None if part.scan is None else part.scan.answer,
        )


def _part(asked: FetchPartition) -> _Part:
    return _Part(asked, asked.offset, scan=None if asked.only is None else Scan(asked.only, asked.offset))


def aborted_in(read: ReadResult) -> list[AbortedTransaction]:
    """Return the aborted transactions with records in a read: producer and offset of the first batch of each."""
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


class RecordApis(Family):
    """Answers the record APIs."""

    def __init__(
        self, log: BrokerStorage, clock: Clock, *, admission: Callable[[ProduceRequest], Admission | None]
    ) -> None:
        """`admission`: returns the check that the log makes before it accepts a transaction's batch."""
        self._log = log
        self._admission = admission
        self._clock = clock
        self._watch = LogWatch(log)
        self._batches = BatchFilter()
        self._purgatory = Purgatory(WAITING_PARTS_MAX)

    @handles(ProduceRequest)
    async def produce(self, request: ProduceRequest, connection: InProcess) -> ProduceResponse:
        """Append record batches; answered when they are confirmed."""
        try:
            admit = self._admission(request)
            source = None if connection.host == IN_PROCESS else connection
            appended = await self._log.append(
                request.topic, request.partition, request.records, admit=admit, source=source
            )
        except LogError as error:
            return refusal(ProduceResponse, error)
        return ProduceResponse(
            base_offset=appended.base_offset,
            log_start=appended.log_start,
            append_time_ms=appended.append_time_ms,
        )

    @handles(FetchRequest)
    async def fetch(self, request: FetchRequest, connection: InProcess) -> FetchResponse:
        """Read batches of partitions; with a wait limit, wait until there are enough or something fails.

        The connection's space may allow fewer batches.
        """
        space = answers.space()
        reading = Reading(self._log, request, answers.turns(self._clock), space, self._batches)
        waiter = Waiter()
        places = await reading.places()
        wait_ms = min(request.max_wait_ms, WAIT_MAX_MS)
        enough = min(request.min_bytes, WAITED_BYTES_MAX)
        if wait_ms <= 0 or enough <= 0:
            await reading.look()
            return FetchResponse(partitions=await reading.answer())
        connection.watch(waiter)
        limit = waiter.end_after(self._clock, wait_ms)
        self._watch.park(waiter, places)  # before looking, so that no append meanwhile is missed
        try:
            await reading.look()
            self._purgatory.add(waiter, len(places))
            while not (reading.failed or reading.full or reading.size >= enough):
                if reading.short:
                    if reading.size:
                        break
                    space.wake(waiter)
                await waiter.wait()
                if waiter.abandoned:
                    break
                await reading.look()
                if waiter.ended is not Ended.NO:
                    break
        finally:
            self._purgatory.remove(waiter)
            self._watch.leave(waiter, places)
            limit.cancel()
            connection.unwatch(waiter)
        return FetchResponse(partitions=await reading.answer())

    @handles(ListOffsetsRequest, ListOffsetsResponse)
    async def list_offsets(self, request: ListOffsetsRequest, _: InProcess) -> ListOffsetsResponse:
        """Find the first or last offset, or the first from a timestamp on; offset −1 when no record is that young."""
        offset, timestamp_ms = await self._offset(request)
        return ListOffsetsResponse(offset=offset, timestamp_ms=timestamp_ms)

    @handles(DeleteRecordsRequest, DeleteRecordsResponse)
    async def delete_records(self, request: DeleteRecordsRequest, _: InProcess) -> DeleteRecordsResponse:
        """Move the log start; −1 deletes all."""
        before = request.before
        if before < 0:
            before = self._log.offsets(request.topic, request.partition).high_watermark
        log_start = await self._log.delete_records(request.topic, request.partition, before)
        return DeleteRecordsResponse(log_start=log_start)

    async def _offset(self, request: ListOffsetsRequest) -> tuple[int, int]:
        """Return offset and timestamp. Raises: LogError."""
        topic, partition = request.topic, request.partition
        bounds = self._log.offsets(topic, partition)
        end = bounds.last_stable if request.committed else bounds.high_watermark
        if request.timestamp_ms == LATEST:
            return end, -1
        if request.timestamp_ms == EARLIEST:
            return bounds.log_start, -1
        if request.timestamp_ms == MAX_TIMESTAMP:
            found = await self._newest(topic, partition)
        else:
            found = await self._log.offset_for_timestamp(topic, partition, request.timestamp_ms)
        return found if found is not None and found[0] < end else (-1, -1)

    async def _newest(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Find the first record with the highest timestamp: steps in time, doubled until they lead too far, then
        halved."""
        newest = await self._log.offset_for_timestamp(topic, partition, BEFORE_ALL)
        step, growing = 1, True
        while newest is not None and step:
            later = await self._log.offset_for_timestamp(topic, partition, newest[1] + step)
            if later is None or later[1] <= newest[1]:  # not later: the log searches up to a latest time
                growing = False
            else:
                newest = later
            step = step * 2 if growing else step // 2
        return newest
