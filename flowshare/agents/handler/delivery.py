"""`Delivery`, a handler's view of the record that it works on, and the current delivery of a context."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Generic, NamedTuple, TypeVar

from flowshare.agents.handler.awaiting import SENT_LATER
from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.codec import CodecDecoder, CodecUnavailable
from flowshare.agents.handler.errors import UndecodableValue, UsageError
from flowshare.agents.handler.retry_headers import PREFIX as RETRY_PREFIX
from flowshare.agents.handler.send import Headers, produce
from flowshare.agents.handler.texts import said
from flowshare.protocol.decoding import RawRecord
from flowshare.protocol.private import REPLAY_HEADER

T = TypeVar("T")
Renew = Callable[[Chunk, int], "concurrent.futures.Future[bool]"]

current: Final[ContextVar[tuple[Chunk, RawRecord] | None]] = ContextVar("flowshare_current", default=None)
"""The delivery that this context works on; the pool sets it before each handler call."""


@contextmanager
def about(chunk: Chunk, record: Any) -> Iterator[None]:
    """Log lines inside the block as this delivery's, as a handler's lines are.

    Do not await or start anything inside.
    """
    token = current.set((chunk, record))
    try:
        yield
    finally:
        current.reset(token)


class EventualResult(Generic[T]):
    """The result of work on another thread (a renewal, a record that is sent): await it, or call `result()` in a
    thread, or ignore it."""

    __slots__ = ("_future",)

    def __init__(self, future: concurrent.futures.Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[object, None, T]:
        """Wait for the result."""
        return asyncio.wrap_future(self._future).__await__()

    def result(self, timeout: float | None = 30.0) -> T:
        """Return the result; waits `timeout` seconds at most. Not for use on an event loop."""
        return self._future.result(timeout)

    def done(self) -> bool:
        """Tell if the result is known."""
        return self._future.done()


class Fence(NamedTuple):
    """Position of a delivery among all deliveries of its share-partition: fences compare as the records were handed
    out.

    generation: of the leader's load of the share-partition, rising (milliseconds since 1970, and above the last one
    whatever the clock says). serial: within the generation. No two deliveries have the same fence.
    """

    generation: int
    serial: int


class Delivery:
    """One delivery of one record.

    topic, partition, offset: where the record lies. key: of the topic's `key_type`, else bytes; None: no key.
    value: bytes or None. headers: pairs of name and bytes.
    timestamp: seconds since 1970. attempt: 1 for the first delivery.
    """

    __slots__ = ("_chunk", "_record", "_renew")

    def __init__(self, chunk: Chunk, record: RawRecord, renew: Renew | None = None) -> None:
        self._chunk = chunk
        self._record = record
        self._renew = renew

    @property
    def agent(self) -> str:
        """Name of the agent."""
        return self._chunk.agent

    @property
    def group(self) -> str:
        """Name of the agent's share group."""
        return self._chunk.group

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._chunk.topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self._chunk.partition

    @property
    def offset(self) -> int:
        """Offset in the partition."""
        return self._chunk.place(self._record.offset)

    @property
    def key(self) -> Any:
        """The record's key, of the topic's `key_type`, else bytes. None: the record has no key.

        Raises: UndecodableValue when the key does not fit the type; then the record goes to the dead letter.
        """
        key, decode = self._record.key, self._chunk.decode_key
        if key is None or decode is None:
            return key
        try:
            return decode.of(key, self._record.headers) if type(decode) is CodecDecoder else decode(key)
        except CodecUnavailable:
            raise
        except Exception as error:
            raise UndecodableValue(f"the key {key[:80]!r} does not fit the topic's key_type: {said(error)}") from error

    @property
    def value(self) -> bytes | None:
        """The record's value as it was produced."""
        return self._record.value

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The record's headers, in order; a name may stand more than once.

        Headers of a retry or a replay of this record are left out, so that a copy of the record does not carry them.
        """
        headers = tuple(pair for pair in self._record.headers if pair[0] != REPLAY_HEADER)
        if self._chunk.origin(self._record.offset) is None:
            return headers
        return tuple(pair for pair in headers if not pair[0].startswith(RETRY_PREFIX))

    def header(self, name: str) -> bytes | None:
        """Return the last header of this name, or None."""
        return next((value for key, value in reversed(self._record.headers) if key == name), None)

    @property
    def timestamp(self) -> float:
        """Time when the record was made, in seconds since 1970."""
        return self._chunk.timestamp_ms(self._record) / 1000

    @property
    def attempt(self) -> int:
        """Number of deliveries of the record, this one included."""
        return self._chunk.attempt(self._record.offset)

    @property
    def fence(self) -> Fence | None:
        """The fence that guards the handler's effects, in an agent with an `order`; None without an order.

        A later delivery of a key has a higher fence than all before it. So a store that keeps the highest fence of a
        key and refuses effects with a lower one is safe from a handler whose process stood still past its lock.
        """
        if self._chunk.fence is None:
            return None
        generation, shift = self._chunk.fence
        return Fence(generation, self._record.offset + shift)

    @property
    def order_key(self) -> bytes | None:
        """The bytes by which `order` orders this record: its key, or the header of `fs.Header`.

        Fences are compared within this key. None: the agent has no `order`, or the record has no such key or header.
        """
        order = self._chunk.order
        return None if order is None else order.key_of(self._record)

    @property
    def id(self) -> str:
        """Idempotency key `topic id:partition:offset`: the same for every attempt and for no other record."""
        return f"{self._chunk.topic_id}:{self._chunk.partition}:{self._chunk.place(self._record.offset)}"

    def renew(self) -> EventualResult[bool]:
        """Renew the acquisition lock now; the result is True if the lock holds.

        Flowshare renews locks by itself; call this with `renew=False`, or for certainty.
        """
        if self._renew is None:
            done: concurrent.futures.Future[bool] = concurrent.futures.Future()
            done.set_result(True)
            return EventualResult(done)
        return EventualResult(self._renew(self._chunk, self._record.offset))

    def send(
        self,
        topic: Any,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> None:
        """Produce a record if the handler ends in an accept, as a returned `fs.Send`: confirmed before the accept, or
        with `exactly_once` in one step with it. A handler that fails, rejects or releases sends nothing.

        topic: a topic of the app or a name; the rest as of `fs.Send`. Call it while the handler runs, on any thread,
        without `await`. Raises: Unencodable.
        """
        from flowshare.agents.handler.tracing import current_headers

        one = produce(
            topic,
            value,
            key,
            headers=headers,
            partition=partition,
            timestamp=timestamp,
            extra_headers=current_headers(),
        )
        self._chunk.sends.setdefault(self._record.offset, []).append(one)
        return SENT_LATER  # type: ignore[return-value]  # for who awaits it, which type checkers refuse

    def repeats(self) -> None:
        """Note that the record's effects are done already (`fs.Once`); its outputs may be missing."""
        self._chunk.repeated.add(self._record.offset)

    def __repr__(self) -> str:
        return f"<Delivery {self.topic}-{self.partition}@{self.offset} attempt {self.attempt}>"


def refuse_outside(topic: str) -> None:
    """Refuse to produce directly from a handler with `exactly_once`: such a record would not be settled with the input.

    Raises: UsageError.
    """
    held = current.get()
    if held is not None and held[0].exactly_once:
        raise UsageError(
            f"agent {held[0].agent} has exactly_once=True, and what is sent to topic {topic!r} by the topic itself is "
            f"there also when the record is handled again: return fs.Send({topic!r}, value), or call "
            f"fs.current_delivery().send({topic!r}, value)"
        )


def current_delivery() -> Delivery:
    """Return the delivery whose handler calls this, directly or further down, also in its tasks and
    `asyncio.to_thread`; in a batch handler, the batch's first.

    Raises: UsageError outside of handlers.
    """
    held = current.get()
    if held is None:
        raise UsageError(
            "fs.current_delivery() is for what a handler calls, and no handler runs here: of a timer, a page or a "
            "thread of your own, send by the topic (await topic.send(…), topic.send_sync(…)), or hand the delivery on"
        )
    return Delivery(*held)
