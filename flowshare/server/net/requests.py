"""The requests of one socket that are under way, each with the place of its answer, and the sizes of long ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from flowshare.protocol.kafka import ApiKey

if TYPE_CHECKING:
    from flowshare.server.runtime.answers import AnswerSpace
    from flowshare.server.runtime.waiting import Waiter

SHORT: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.HEARTBEAT,
        ApiKey.API_VERSIONS,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.FLOWSHARE_SETTLE,
        ApiKey.FLOWSHARE_FETCH,
        ApiKey.FLOWSHARE_COOPERATIVE_SETTLE,
    }
)
"""The APIs that clients use all the time. Behind a request of any other API the next request waits until the cost of
that one is known: until the next round, or until it needs no further turns."""
LONG: Final = 64 * 1024
"""Bytes above which a request, or an answer, is read or written in a thread: such a request can name tens of thousands
of things, a second's work, for which the loop's other work waits no longer than the interpreter lets a thread run."""
PARTS: Final = 500
"""Parts above which a request counts as long, for any number of bytes: each part becomes an object, this many are a
millisecond's work, and in one round of the loop each of thousands of connections may send one."""
WITH_RECORDS: Final[frozenset[int]] = frozenset(
    {ApiKey.PRODUCE, ApiKey.FLOWSHARE_SETTLE, ApiKey.FLOWSHARE_COOPERATIVE_SETTLE}
)
"""APIs that are long by their records; their answers are short."""


class OpenRequest:
    """One request under way and, until its turn, its answer."""

    __slots__ = ("frame", "ordered", "size", "space")

    def __init__(self, size: int, space: AnswerSpace, *, ordered: bool) -> None:
        """size: bytes of the request. space: account of its answer."""
        self.size = size
        self.space = space
        self.ordered = ordered
        self.frame: bytes | None = None


class OpenRequests:
    """The unanswered requests of one socket, and the answers that wait for their turn.

    Invariant: ordered answers are given out in the order of their requests, each once; others at once.
    """

    def __init__(self, unwritten: Callable[[], int]) -> None:
        """unwritten: returns the bytes that were written and that the client has not read."""
        self._unwritten = unwritten
        self._open: dict[OpenRequest, None] = {}
        self._queue: deque[OpenRequest] = deque()
        """Requests whose answers keep their order."""
        self._starved: list[Waiter] = []
        """Fetches without room to read now."""
        self.request_bytes = 0
        """Bytes of unanswered requests."""
        self.held = 0
        """Bytes of answers whose turn has not come."""

    def __len__(self) -> int:
        """Return the number of unanswered requests."""
        return len(self._open)

    def begin(self, exchange: OpenRequest) -> None:
        """Add an accepted request."""
        self._open[exchange] = None
        self.request_bytes += exchange.size
        if exchange.ordered:
            self._queue.append(exchange)

    def end(self, exchange: OpenRequest) -> None:
        """End a request; call `answer` with its frame then, unless the socket is gone."""
        self._open.pop(exchange, None)
        self.request_bytes -= exchange.size
        exchange.space.finish()

    def answer(self, exchange: OpenRequest, frame: bytes) -> Iterable[bytes]:
        """Return the answers whose turn has come with this one, without empty ones."""
        if not exchange.ordered:
            return (frame,) if frame else ()
        exchange.frame = frame
        self.held += len(frame)
        return self._due()

    def _due(self) -> Iterable[bytes]:
        queue = self._queue
        while queue and (frame := queue[0].frame) is not None:
            queue.popleft()
            self.held -= len(frame)
            if frame:
                yield frame

    def clear(self) -> None:
        """Drop all requests and answers: the socket is gone."""
        for exchange in (*self._open, *self._queue):
            exchange.space.finish()
        self._queue.clear()

    # Methods that the spaces of answers call.

    def ahead(self, space: AnswerSpace) -> tuple[bool, int]:
        """Return True if the space's answer is the next one, and the bytes that the client has to read before it.

        Without an order, every answer is the next one while no other one has bytes.
        """
        total = self._unwritten()
        if not self._queue:
            others = sum(exchange.space.held for exchange in self._open) - space.held
            return not others, total + others
        for exchange in self._queue:
            if exchange.space is space:
                break
            total += exchange.space.held if exchange.frame is None else len(exchange.frame)
        return self._queue[0].space is space, total

    def starved(self, waiter: Waiter) -> None:
        """Wake `waiter` when the client has read, or its answer may be the next one."""
        self._starved.append(waiter)

    def feed(self) -> None:
        """Wake the fetches that had no room to read."""
        starved, self._starved = self._starved, []
        for waiter in starved:
            waiter.wake()
