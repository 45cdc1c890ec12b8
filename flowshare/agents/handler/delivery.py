"""`Delivery`: what a handler may know of the record that it works on, and the current one of a context."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Generic, NamedTuple, TypeVar

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
"""The delivery that this context works on: set by the pool before each handler call."""


@contextmanager
def about(chunk: Chunk, record: Any) -> Iterator[None]:
    """Lines that are logged inside the block are this delivery's, as a handler's are.

    Nothing is to be awaited, nor begun, inside.
    """
    token = current.set((chunk, record))
    try:
        yield
    finally:
        current.reset(token)


class EventualResult(Generic[T]):
    """Something under way on another thread (a renewal, a record that is sent): await it, or ask `result()` in a
    thread, or let it be."""

    __slots__ = ("_future",)

    def __init__(self, future: concurrent.futures.Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[object, None, T]:
        """What came of it."""
        return asyncio.wrap_future(self._future).__await__()

    def result(self, timeout: float | None = 30.0) -> T:
        """What came of it; waits `timeout` seconds at most. Not on an event loop."""
        return self._future.result(timeout)

    def done(self) -> bool:
        """Whether it is known."""
        return self._future.done()


class _SentLater:
    """What `Delivery.send` returns, for those who await it: there is nothing yet to wait for."""

    def __await__(self) -> Generator[object, None, None]:
        raise UsageError(
            "delivery.send(…) is not awaited: it only notes the record, which goes out when the handler ends in an "
            "accept; leave `await` out (what is to be confirmed at once is sent by its topic: await topic.send(…))"
        )


SENT_LATER: Final = _SentLater()


class Fence(NamedTuple):
    """Where a delivery stands among all of its share-partition: two compare as their records were handed out.

    generation: of the load by a leader, rising (milliseconds since 1970, and above the last one whatever the clock
        says). serial: within it. No two deliveries have the same.
    """

    generation: int
    serial: int


class Delivery:
    """One delivery of one record.

    topic, partition, offset: where the record lies. key: of the topic's `key_type`, else bytes; None: there is none.
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
        """The record's key, as the topic's `key_type` has it; bytes where it has none. None: the record has no key.

        Raises: UndecodableValue, after which the record goes to the dead letter, when it does not fit.
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

        Without those that say of this record how it came again: a copy of it is none that came again.
        """
        headers = tuple(pair for pair in self._record.headers if pair[0] != REPLAY_HEADER)
        if self._chunk.origin(self._record.offset) is None:
            return headers
        return tuple(pair for pair in headers if not pair[0].startswith(RETRY_PREFIX))

    def header(self, name: str) -> bytes | None:
        """The last header of this name, or None."""
        return next((value for key, value in reversed(self._record.headers) if key == name), None)

    @property
    def timestamp(self) -> float:
        """When the record was made, in seconds since 1970."""
        return self._record.timestamp / 1000

    @property
    def attempt(self) -> int:
        """How often the record was delivered, this time included."""
        return self._chunk.attempt(self._record.offset)

    @property
    def fence(self) -> Fence | None:
        """What the handler's effects can be guarded with, in an agent with an `order`; None without one.

        A later delivery of a key has a higher fence than all before it. So a store that keeps the highest one of a key
        and refuses what comes with a lower one is safe from a handler whose process stood still past its lock.
        """
        if self._chunk.fence is None:
            return None
        generation, shift = self._chunk.fence
        return Fence(generation, self._record.offset + shift)

    @property
    def order_key(self) -> bytes | None:
        """What `order` orders this record by, as bytes: its key, or that header of `fs.Header`; fences are of it.

        None: the agent has no `order`, or the record nothing to be ordered by.
        """
        order = self._chunk.order
        return None if order is None else order.key_of(self._record)

    @property
    def id(self) -> str:
        """`topic id:partition:offset`: the same for every attempt and for no other record; the idempotency key."""
        return f"{self._chunk.topic_id}:{self._chunk.partition}:{self._chunk.place(self._record.offset)}"

    def renew(self) -> EventualResult[bool]:
        """Start the acquisition lock anew now; the result: whether it holds.

        Flowshare does so by itself; for `renew=False` and for certainty.
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
        """Produce a record if the handler ends in an accept, as a returned `fs.Send` is: confirmed before that, or with
        `exactly_once` in one step with it. Of a handler that fails, rejects or releases nothing is sent.

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

    def __repr__(self) -> str:
        return f"<Delivery {self.topic}-{self.partition}@{self.offset} attempt {self.attempt}>"


def refuse_outside(topic: str) -> None:
    """What is produced by itself is no part of a settle. Raises: UsageError in a handler whose outputs are to be."""
    held = current.get()
    if held is not None and held[0].exactly_once:
        raise UsageError(
            f"agent {held[0].agent} has exactly_once=True, and what is sent to topic {topic!r} by the topic itself is "
            f"there also when the record is handled again: return fs.Send({topic!r}, value), or call "
            f"fs.current_delivery().send({topic!r}, value)"
        )


def current_delivery() -> Delivery:
    """The delivery whose handler calls this, directly or further down, also from tasks and `asyncio.to_thread` that it
    started; in a batch handler the first of the batch.

    Raises: UsageError outside of handlers.
    """
    held = current.get()
    if held is None:
        raise UsageError(
            "fs.current_delivery() is for what a handler calls, and no handler runs here: of a timer, a page or a "
            "thread of your own, send by the topic (await topic.send(…), topic.send_sync(…)), or hand the delivery on"
        )
    return Delivery(*held)
