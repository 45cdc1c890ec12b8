"""Markers of one KMQ agent: start markers, confirmed before the records are handled, and end markers.

An end marker is sent as soon as the one before it is confirmed: records that end meanwhile go in one batch. If an end
marker cannot be written, its record comes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.acknowledgements import Key
from flowshare.agents.handler.texts import said
from flowshare.agents.telemetry import conventions as names
from flowshare.client.errors import ClientError
from flowshare.kmq.markers import END, KEY, encode_start
from flowshare.protocol.batches import BatchBuilder

if TYPE_CHECKING:
    from flowshare.agents.run.stats import AgentStats
    from flowshare.agents.telemetry.settling import SettleSpans
    from flowshare.client.producer.producer import Producer
    from flowshare.clock import Clock
    from flowshare.protocol.messages import TopicPartition
    from flowshare.share.types import AckRange

BATCH_BYTES: Final = 900_000
UNDER_WAY_MAX: Final = 2
"""Most unconfirmed batches of end markers of one partition; later markers wait for the next batch."""
MARKERS_MAX: Final = 10_000
"""Most end markers of one batch."""

logger = logging.getLogger("flowshare.agents")


class _Ends:
    """End markers of one partition."""

    __slots__ = ("key", "under_way", "waiting")

    def __init__(self, key: TopicPartition) -> None:
        self.key = key
        self.waiting: list[int] = []
        self.under_way = 0


class MarkerSender:
    """Sender of one agent's markers; on the service loop."""

    def __init__(
        self,
        agent: str,
        markers: str,
        *,
        after_ms: int,
        producer: Producer,
        clock: Clock,
        stats: AgentStats,
        on_settled: Callable[[TopicPartition, Sequence[int], str], object] | None = None,
        spans: SettleSpans | None = None,
    ) -> None:
        """spans: records end markers in telemetry; None: no telemetry.

        on_settled: called with records that are handled, or are not, and the counter's name.
        """
        self._agent = agent
        self._markers = markers
        self._start = encode_start(after_ms)
        self._producer = producer
        self._clock = clock
        self._stats = stats
        self._on_settled = on_settled
        self._spans = spans
        self._ends: dict[int, _Ends] = {}
        self._turn_due = False
        self._flushed = asyncio.Event()
        self.unconfirmed = 0
        """Number of records whose end marker is not confirmed."""

    async def start(self, partition: int, offsets: Iterable[int]) -> None:
        """Write start markers and wait until they are confirmed. Raises: ClientError, OSError."""
        if partition >= await self._producer.partitions(self._markers, at_least=partition + 1):
            raise ClientError(
                f"topic {self._markers} has no partition {partition} for the markers of the queue's: give it as many "
                "partitions as the queue (kafka-topics.sh --alter)"
            )
        await asyncio.gather(*self._send(partition, offsets, self._start))

    def accept(self, key: Key, offsets: list[int], attempt: int = 0) -> None:
        """Send end markers of handled records. attempt: not used."""
        ends = self._ends.setdefault(key[0].partition, _Ends(key[0]))
        ends.waiting += offsets
        self.unconfirmed += len(offsets)
        self._stats.acknowledgements += 1
        if self._on_settled is not None:
            self._on_settled(key[0], offsets, "accepted")
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def acknowledge(self, key: Key, ack: AckRange) -> None:
        """Note records that are not handled: no marker is sent, and the tracker sends them again when their time is
        over."""
        setattr(self._stats, ack.counter, getattr(self._stats, ack.counter) + ack.size)
        if self._on_settled is not None:
            self._on_settled(key[0], range(ack.first, ack.last + 1), ack.counter)

    async def flush(self) -> None:
        """Wait until all end markers are confirmed, or given up."""
        while self.unconfirmed:
            self._flushed.clear()
            await self._flushed.wait()

    def _turn(self) -> None:
        self._turn_due = False
        for partition in tuple(self._ends):
            self._send_ends(partition)

    def _send_ends(self, partition: int) -> None:
        ends = self._ends[partition]
        while ends.waiting and ends.under_way < UNDER_WAY_MAX:
            offsets, ends.waiting = ends.waiting[:MARKERS_MAX], ends.waiting[MARKERS_MAX:]
            told = self._told(ends.key, offsets)
            try:
                sent = self._send(partition, offsets, END)
            except ClientError as error:  # the producer is closed
                told(error)
                self._confirmed(partition, len(offsets), error)
                continue
            ends.under_way += 1
            asyncio.gather(*sent).add_done_callback(partial(self._ended, partition, len(offsets), told))

    def _told(self, key: TopicPartition, offsets: list[int]) -> Callable[[BaseException | None], object]:
        """Note that markers are on their way; return the function to call at their end."""
        spans = self._spans
        if spans is None:
            return lambda error: None
        settling = spans.begin(key, spans.noted(key, offsets), {names.ACCEPTED: len(offsets)})

        def told(error: BaseException | None) -> None:
            spans.end(settling, "" if error is None else type(error).__name__, "" if error is None else said(error))
            for offset in offsets:
                spans.forget(key, offset, offset)

        return told

    def _ended(
        self,
        partition: int,
        count: int,
        told: Callable[[BaseException | None], object],
        done: asyncio.Future[list[None]],
    ) -> None:
        self._ends[partition].under_way -= 1
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        told(error)
        self._confirmed(partition, count, error)
        self._send_ends(partition)

    def _confirmed(self, partition: int, count: int, error: BaseException | None) -> None:
        self.unconfirmed -= count
        if error is None:
            self._stats.accepted += count
        else:
            self._stats.ack_unknown += count
            logger.error(
                "agent=%s: the end of %d records of partition %d could not be written, they may come again: %s",
                self._agent,
                count,
                partition,
                error,
            )
        if not self.unconfirmed:
            self._flushed.set()

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
