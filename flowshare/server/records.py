"""The record APIs that need no group: produce, fetch, list offsets, delete records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.log.base import LogError
from flowshare.protocol.messages import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from flowshare.server import answers
from flowshare.server.coordinator import IN_PROCESS
from flowshare.server.failures import failure
from flowshare.server.log_reading import LogWatch, Reading
from flowshare.server.parking import Crowd, Ended, Waiter, WaitLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.clock import Clock
    from flowshare.log.base import Admission, Log
    from flowshare.server.connection import Handlers, InProcess

WAIT_MAX_MS: Final = 10 * 60 * 1000
"""Longest wait that is granted, whatever max_wait_ms says."""
WAITING_PARTS_MAX: Final = 200_000
"""Partitions of all fetches that wait together, about a kilobyte each, of a client that sent 16 bytes: when there are
more, those of most partitions are answered with what they have."""
WAITED_BYTES_MAX: Final = 1 << 20
"""Bytes that are gathered for a fetch that waits, whatever min_bytes says; more are given but not waited for."""
BEFORE_ALL: Final = -(1 << 62)
"""A time before that of any record."""


class RecordApis:
    """Answers the record APIs."""

    def __init__(self, log: Log, clock: Clock, *, admission: Callable[[ProduceRequest], Admission | None]) -> None:
        """`admission`: what the log is to ask before it takes a transaction's batch."""
        self._log = log
        self._admission = admission
        self._clock = clock
        self._watch = LogWatch(log)
        self._crowd = Crowd(WAITING_PARTS_MAX)

    def handlers(self) -> Handlers:
        """What this family answers."""
        return {
            ProduceRequest: self.produce,
            FetchRequest: self.fetch,
            ListOffsetsRequest: self.list_offsets,
            DeleteRecordsRequest: self.delete_records,
        }

    async def produce(self, request: ProduceRequest, connection: InProcess) -> ProduceResponse:
        """Append record batches; answered when they are confirmed."""
        try:
            admit = self._admission(request)
            source = None if connection.host == IN_PROCESS else connection
            appended = await self._log.append(
                request.topic, request.partition, request.records, admit=admit, source=source
            )
        except LogError as error:
            code, message = failure(error)
            return ProduceResponse(error=code, message=message)
        return ProduceResponse(
            base_offset=appended.base_offset,
            log_start=appended.log_start,
            append_time_ms=appended.append_time_ms,
        )

    async def fetch(self, request: FetchRequest, connection: InProcess) -> FetchResponse:
        """Read batches of partitions; with a wait limit, wait until there are enough or something fails.

        What the connection's room allows is answered, if it is less.
        """
        room = answers.room()
        reading = Reading(self._log, request, answers.turns(self._clock), room)
        waiter = Waiter()
        places = await reading.places()
        wait_ms = min(request.max_wait_ms, WAIT_MAX_MS)
        enough = min(request.min_bytes, WAITED_BYTES_MAX)
        if wait_ms <= 0 or enough <= 0:
            await reading.look()
            return FetchResponse(partitions=await reading.answer())
        connection.watch(waiter)
        limit = WaitLimit(self._clock, waiter, wait_ms)
        self._watch.park(waiter, places)  # before looking, so that nothing that comes meanwhile is missed
        try:
            await reading.look()
            self._crowd.add(waiter, len(places))
            while not (reading.failed or reading.full or reading.size >= enough):
                if reading.short:
                    if reading.size:
                        break
                    room.wake(waiter)
                await waiter.wait()
                if waiter.abandoned:
                    break
                await reading.look()
                if waiter.ended is not Ended.NO:
                    break
        finally:
            self._crowd.remove(waiter)
            self._watch.leave(waiter, places)
            limit.cancel()
            connection.unwatch(waiter)
        return FetchResponse(partitions=await reading.answer())

    async def list_offsets(self, request: ListOffsetsRequest, _: InProcess) -> ListOffsetsResponse:
        """First, last or first offset from a time on; offset −1 when no record is that young."""
        try:
            offset, timestamp_ms = await self._offset(request)
        except LogError as error:
            code, message = failure(error)
            return ListOffsetsResponse(error=code, message=message)
        return ListOffsetsResponse(offset=offset, timestamp_ms=timestamp_ms)

    async def delete_records(self, request: DeleteRecordsRequest, _: InProcess) -> DeleteRecordsResponse:
        """Move the log start; −1 deletes all."""
        try:
            before = request.before
            if before < 0:
                before = self._log.offsets(request.topic, request.partition).high_watermark
            log_start = await self._log.delete_records(request.topic, request.partition, before)
        except LogError as error:
            code, message = failure(error)
            return DeleteRecordsResponse(error=code, message=message)
        return DeleteRecordsResponse(log_start=log_start)

    async def _offset(self, request: ListOffsetsRequest) -> tuple[int, int]:
        """Offset and timestamp. Raises: LogError."""
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
        """First record with the highest timestamp: steps in time, doubled until they lead too far, then halved."""
        newest = await self._log.offset_for_timestamp(topic, partition, BEFORE_ALL)
        step, growing = 1, True
        while newest is not None and step:
            later = await self._log.offset_for_timestamp(topic, partition, newest[1] + step)
            newest, growing = later or newest, growing and later is not None
            step = step * 2 if growing else step // 2
        return newest
