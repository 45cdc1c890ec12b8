"""`MarkerSender` writes the markers of one KMQ agent: start markers, before records are handled, and end markers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ClientError
from flowshare.kmq.markers import END, KEY, encode_start
from flowshare.protocol.batches import BatchBuilder

if TYPE_CHECKING:
    from flowshare.client.producer.producer import Producer
    from flowshare.clock import Clock

BATCH_BYTES: Final = 900_000


class MarkerSender:
    """Sender of one agent's markers; on the service loop."""

    def __init__(self, markers: str, *, after_ms: int, producer: Producer, clock: Clock) -> None:
        """markers: their topic. after_ms: milliseconds after which a record that was begun and not ended is due."""
        self._markers = markers
        self._start = encode_start(after_ms)
        self._producer = producer
        self._clock = clock

    async def start(self, partition: int, offsets: Iterable[int]) -> None:
        """Write start markers and wait until they are confirmed. Raises: ClientError, OSError."""
        if partition >= await self._producer.partitions(self._markers, at_least=partition + 1):
            raise ClientError(
                f"topic {self._markers} has no partition {partition} for the markers of the queue's: give it as many "
                "partitions as the queue (kafka-topics.sh --alter)"
            )
        await asyncio.gather(*self._send(partition, offsets, self._start))

    def end(self, partition: int, offsets: Sequence[int]) -> asyncio.Future[list[None]]:
        """Write end markers; the future is done when they are confirmed. Raises nothing: the future does."""
        try:
            return asyncio.gather(*self._send(partition, offsets, END))
        except ClientError as error:  # the producer is closed
            failed: asyncio.Future[list[None]] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    def _send(self, partition: int, offsets: Iterable[int], value: bytes) -> list[asyncio.Future[None]]:
        """Send batches of markers; return their futures. Raises: ClientError."""
        now_ms = self._clock.now_ms()
        pack = KEY.pack
        sent: list[asyncio.Future[None]] = []
        builder = BatchBuilder(size_max=BATCH_BYTES)
        for offset in offsets:
            key = pack(partition, offset)
            if not builder.add(key, value, timestamp_ms=now_ms):
                sent.append(self._producer.send_batch(self._markers, partition, builder))
                builder = BatchBuilder(size_max=BATCH_BYTES)
                builder.add(key, value, timestamp_ms=now_ms)
        if builder.count:
            sent.append(self._producer.send_batch(self._markers, partition, builder))
        return sent
