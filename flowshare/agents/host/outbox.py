"""The one producer of a process, for callers on any loop: records go over by batch, results come back by batch.

`topic.send` of an application runs on the handler loop, the producer lives on the service loop. So a blocked handler
loop neither times out a batch nor delays a result.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import BufferFull

if TYPE_CHECKING:
    from flowshare.agents.handler.send import ProducerRecord
    from flowshare.agents.telemetry.sending import TracedProducer
    from flowshare.client.producer.batching import RecordMetadata
    from flowshare.client.producer.producer import Producer

OUTSTANDING_MAX: Final = 50_000
"""Most records that wait for their confirmation; further `send`s wait."""


class _Outgoing(NamedTuple):
    record: ProducerRecord
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[RecordMetadata]


class Outbox:
    """Sends through `producer`, which lives on `service_loop`, from any loop."""

    def __init__(self, producer: Producer | TracedProducer, service_loop: asyncio.AbstractEventLoop) -> None:
        self._producer = producer
        self._service_loop = service_loop
        self._queue: deque[_Outgoing] = deque()
        self._pumping = False
        self._pump_task: asyncio.Task[None] | None = None
        self._outstanding = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._confirmed: list[tuple[_Outgoing, asyncio.Future[RecordMetadata]]] = []

    def send_by(self, producer: Producer | TracedProducer) -> None:
        """Send through this producer from now on. On the loop that sends."""
        self._producer = producer

    async def enqueue(self, record: ProducerRecord) -> asyncio.Future[RecordMetadata]:
        """Hand one record over, waiting only for room; the returned future (of this loop) gets the result."""
        loop = asyncio.get_running_loop()
        await self._fewer_than(OUTSTANDING_MAX)
        future: asyncio.Future[RecordMetadata] = loop.create_future()
        self._outstanding += 1
        future.add_done_callback(self._settled)
        self._queue.append(_Outgoing(record, loop, future))
        if not self._pumping:
            self._pumping = True
            self._service_loop.call_soon_threadsafe(self._start_pump)
        return future

    async def flush(self) -> None:
        """Wait until all records handed over are confirmed or refused. On the loop that sends."""
        await self._fewer_than(1)

    async def _fewer_than(self, records: int) -> None:
        while self._outstanding >= records:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _settled(self, _future: asyncio.Future[RecordMetadata]) -> None:
        self._outstanding -= 1
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # --- on the service loop --------------------------------------------------------------------------------------

    def _start_pump(self) -> None:
        if self._pump_task is None or self._pump_task.done():
            self._pump_task = self._service_loop.create_task(self._pump())

    async def _pump(self) -> None:
        while True:
            while self._queue:
                await self._produce(self._queue.popleft())
            self._pumping = False
            if not self._queue:  # else a record came in between, whose sender saw the pump running
                return
            self._pumping = True

    async def _produce(self, outgoing: _Outgoing) -> None:
        try:
            sent = outgoing.record.send_by(self._producer.send_nowait)
        except BufferFull:
            sent = asyncio.ensure_future(outgoing.record.send_by(self._producer.send))
            await asyncio.wait([sent])
        except Exception as error:  # noqa: BLE001 - goes to the sender
            sent = self._service_loop.create_future()
            sent.set_exception(error)
        sent.add_done_callback(lambda done: self._note(outgoing, done))

    def _note(self, outgoing: _Outgoing, done: asyncio.Future[RecordMetadata]) -> None:
        self._confirmed.append((outgoing, done))
        if len(self._confirmed) == 1:
            self._service_loop.call_soon(self._report)

    def _report(self) -> None:
        confirmed, self._confirmed = self._confirmed, []
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Outgoing, asyncio.Future[RecordMetadata]]]] = {}
        for outgoing, done in confirmed:
            by_loop.setdefault(outgoing.loop, []).append((outgoing, done))
        for loop, results in by_loop.items():
            if loop is self._service_loop:
                _resolve(results)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, results)


def _resolve(results: list[tuple[_Outgoing, asyncio.Future[RecordMetadata]]]) -> None:
    for outgoing, done in results:
        if outgoing.future.done():
            continue
        if done.cancelled():
            outgoing.future.cancel()
        elif (error := done.exception()) is not None:
            outgoing.future.set_exception(error)
        else:
            outgoing.future.set_result(done.result())
