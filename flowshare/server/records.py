"""The record APIs that need no group: produce, fetch, list offsets, delete records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.log.base import LogError
from flowshare.protocol.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from flowshare.server.failures import failure

if TYPE_CHECKING:
    from flowshare.log.base import Log
    from flowshare.server.connection import Handlers, InProcess

LATEST: Final = -1
EARLIEST: Final = -2
FETCH_BYTES_MAX: Final = 64 << 20
"""Most that one plain fetch is given."""


class RecordApis:
    """Answers the record APIs."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def handlers(self) -> Handlers:
        """What this family answers."""
        return {
            ProduceRequest: self.produce,
            FetchRequest: self.fetch,
            ListOffsetsRequest: self.list_offsets,
            DeleteRecordsRequest: self.delete_records,
        }

    async def produce(self, request: ProduceRequest, _: InProcess) -> ProduceResponse:
        """Append record batches; answered when they are confirmed."""
        try:
            appended = await self._log.append(request.topic, request.partition, request.records)
        except LogError as error:
            code, message = failure(error)
            return ProduceResponse(error=code, message=message)
        return ProduceResponse(base_offset=appended.base_offset, log_start=appended.log_start)

    async def fetch(self, request: FetchRequest, _: InProcess) -> FetchResponse:
        """Read batches from an offset on, at least one if there is one."""
        max_bytes = min(max(request.max_bytes, 1), FETCH_BYTES_MAX)
        try:
            result = await self._log.read(request.topic, request.partition, request.offset, max_bytes=max_bytes)
        except LogError as error:
            code, message = failure(error)
            return FetchResponse(error=code, message=message)
        return FetchResponse(
            records=result.records,
            log_start=result.offsets.log_start,
            high_watermark=result.offsets.high_watermark,
        )

    async def list_offsets(self, request: ListOffsetsRequest, _: InProcess) -> ListOffsetsResponse:
        """First, last or first offset from a time on; offset −1 when no record is that young."""
        try:
            bounds = self._log.offsets(request.topic, request.partition)
            if request.timestamp_ms == LATEST:
                return ListOffsetsResponse(offset=bounds.high_watermark)
            if request.timestamp_ms == EARLIEST:
                return ListOffsetsResponse(offset=bounds.log_start)
            found = await self._log.offset_for_timestamp(request.topic, request.partition, request.timestamp_ms)
        except LogError as error:
            return ListOffsetsResponse(error=failure(error)[0])
        offset, timestamp_ms = found or (-1, -1)
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
