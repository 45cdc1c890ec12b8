"""The one producer of a process, for callers on any loop: records go over by batch, results come back by batch.

`topic.send` of an application runs on the handler loop, the producer lives on the service loop: there a blocked
handler loop neither times out a batch nor keeps a result from being noticed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import BufferFull

if TYPE_CHECKING:
    from flowshare.client.batching import RecordMetadata
    from flowshare.client.producing import RecordProducer

OUTSTANDING_MAX: Final = 50_000
"""Records that may wait for their confirmation; further `send`s wait."""

Headers = tuple[tuple[str, bytes | None], ...]


class _Letter(NamedTuple):
    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers
    partition: int | None
    timestamp_ms: int | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[RecordMetadata]


class Outbox:
    """Sends through `producer`, which lives on `service_loop`, from any loop."""

    def __init__(self, producer: RecordProducer, service_loop: asyncio.AbstractEventLoop) -> None:
        self._producer = producer
        self._service_loop = service_loop
        self._letters: deque[_Letter] = deque()
        self._pumping = False
        self._pump_task: asyncio.Task[None] | None = None
        self._outstanding = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._confirmed: list[tuple[_Letter, asyncio.Future[RecordMetadata]]] = []

    async def enqueue(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Hand one record over, waiting only for room; the future (of this loop) has the outcome."""
        loop = asyncio.get_running_loop()
        while self._outstanding >= OUTSTANDING_MAX:
            turn = loop.create_future()
            self._room.append(turn)
            await turn
        future: asyncio.Future[RecordMetadata] = loop.create_future()
        self._outstanding += 1
        future.add_done_callback(self._settled)
        self._letters.append(_Letter(topic, value, key, headers, partition, timestamp_ms, loop, future))
        if not self._pumping:
            self._pumping = True
            self._service_loop.call_soon_threadsafe(self._start_pump)
        return future

    async def flush(self) -> None:
        """Wait until everything that was handed over is confirmed or refused. On the loop that sends."""
        while self._outstanding:
            turn = asyncio.get_running_loop().create_future()
            self._room.append(turn)
            await turn

    def _settled(self, _future: asyncio.Future[RecordMetadata]) -> None:
        self._outstanding -= 1
        while self._room:
            turn = self._room.popleft()
            if not turn.done():
                turn.set_result(None)

    # --- on the service loop --------------------------------------------------------------------------------------

    def _start_pump(self) -> None:
        if self._pump_task is None or self._pump_task.done():
            self._pump_task = self._service_loop.create_task(self._pump())

    async def _pump(self) -> None:
        while True:
            while self._letters:
                await self._produce(self._letters.popleft())
            self._pumping = False
            if not self._letters:  # else one came in between; whoever added it saw the pump running
                return
            self._pumping = True

    async def _produce(self, letter: _Letter) -> None:
        try:
            sent = self._producer.send_nowait(
                letter.topic,
                letter.value,
                key=letter.key,
                headers=letter.headers,
                partition=letter.partition,
                timestamp_ms=letter.timestamp_ms,
            )
        except BufferFull:
            sent = asyncio.ensure_future(self._send_when_there_is_room(letter))
            await asyncio.wait([sent])
        except Exception as error:  # noqa: BLE001 - goes to the sender
            sent = self._service_loop.create_future()
            sent.set_exception(error)
        sent.add_done_callback(lambda done: self._note(letter, done))

    async def _send_when_there_is_room(self, letter: _Letter) -> RecordMetadata:
        return await self._producer.send(
            letter.topic,
            letter.value,
            key=letter.key,
            headers=letter.headers,
            partition=letter.partition,
            timestamp_ms=letter.timestamp_ms,
        )

    def _note(self, letter: _Letter, done: asyncio.Future[RecordMetadata]) -> None:
        self._confirmed.append((letter, done))
        if len(self._confirmed) == 1:
            self._service_loop.call_soon(self._report)

    def _report(self) -> None:
        confirmed, self._confirmed = self._confirmed, []
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Letter, asyncio.Future[RecordMetadata]]]] = {}
        for letter, done in confirmed:
            by_loop.setdefault(letter.loop, []).append((letter, done))
        for loop, results in by_loop.items():
            if loop is self._service_loop:
                _resolve(results)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, results)


def _resolve(results: list[tuple[_Letter, asyncio.Future[RecordMetadata]]]) -> None:
    for letter, done in results:
        if letter.future.done():
            continue
        if done.cancelled():
            letter.future.cancel()
        elif (error := done.exception()) is not None:
            letter.future.set_exception(error)
        else:
            letter.future.set_result(done.result())
