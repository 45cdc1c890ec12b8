"""Produce and Fetch at a worker: advertised, because librdkafka's share consumer reads from nobody else; refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import FetchedLog, FetchRequest, FetchResponse, ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from flowshare.server.connection import Handlers, InProcess

REFUSED: Final = ErrorCode.UNSUPPORTED_VERSION
WHY: Final = "workers keep no records: produce to the Kafka brokers' own address, and read with a share consumer here"


class NoRecords:
    """Says that records are the brokers'.

    librdkafka takes a server that serves neither Produce 3 nor Fetch 4 for one without record batches, and sends it no
    ShareFetch.
    """

    def handlers(self) -> Handlers:
        """What this family answers."""
        return {ProduceRequest: self.produce, FetchRequest: self.fetch}

    async def produce(self, _: ProduceRequest, __: InProcess) -> ProduceResponse:
        """Nothing is appended."""
        return ProduceResponse(error=REFUSED, message=WHY)

    async def fetch(self, request: FetchRequest, _: InProcess) -> FetchResponse:
        """Nothing is read."""
        logs = (
            FetchedLog(topic=part.topic, partition=part.partition, error=REFUSED, message=WHY)
            for part in request.partitions
        )
        return FetchResponse(partitions=tuple(logs))
