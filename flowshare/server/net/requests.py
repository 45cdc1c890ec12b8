"""The requests of one socket that are under way, each with the place of its answer, and which of them are long."""

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
"""What clients send all the time. Behind any other request the next one is taken up when it is known what that takes:
in the next round, or when it needs no further turns."""
LONG: Final = 64 * 1024
"""A longer request, which can name tens of thousands of things, is read beside the loop, and so is its answer written,
and any answer that takes more: a second's work, for which the loop's other work waits no longer than the interpreter
lets a thread run."""
PARTS: Final = 500
"""A request of more parts is as long, whatever its bytes: each becomes an object, a millisecond's work for so many, and
in one round of the loop each of thousands of connections may send one."""
WITH_RECORDS: Final[frozenset[int]] = frozenset(
    {ApiKey.PRODUCE, ApiKey.FLOWSHARE_SETTLE, ApiKey.FLOWSHARE_COOPERATIVE_SETTLE}
)
"""Long by their records; their answers are short."""


class OpenRequest:
    """One request under way and, when its turn has not come, its answer."""

    __slots__ = ("frame", "ordered", "size", "space")

    def __init__(self, size: int, space: AnswerSpace, *, ordered: bool) -> None:
        """size: of the request. space: of its answer."""
        self.size = size
        self.space = space
        self.ordered = ordered
        self.frame: bytes | None = None


class OpenRequests:
    """The requests of one socket that are not answered, and the answers that wait for their turn.

    Invariant: ordered answers are given out in the order of their requests, each once; others at once.
    """

    def __init__(self, unwritten: Callable[[], int]) -> None:
        """unwritten: bytes that were written and that the client has not read."""
        self._unwritten = unwritten
        self._open: dict[OpenRequest, None] = {}
        self._queue: deque[OpenRequest] = deque()
        """Those whose answers keep their order."""
        self._starved: list[Waiter] = []
        """Fetches that may read nothing now."""
        self.request_bytes = 0
        """Of requests that are not answered."""
        self.held = 0
        """Bytes of answers whose turn has not come."""

    def __len__(self) -> int:
        """Requests that are not answered."""
        return len(self._open)

    def begin(self, exchange: OpenRequest) -> None:
        """A request is accepted."""
        self._open[exchange] = None
        self.request_bytes += exchange.size
        if exchange.ordered:
            self._queue.append(exchange)

    def end(self, exchange: OpenRequest) -> None:
        """A request is over; `answer` what it came to, unless nobody is there any more."""
        self._open.pop(exchange, None)
        self.request_bytes -= exchange.size
        exchange.space.finish()

    def answer(self, exchange: OpenRequest, frame: bytes) -> Iterable[bytes]:
        """The answers whose turn has come with this one; an empty one is none."""
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
        """The socket is gone: no answer is given out any more."""
        for exchange in (*self._open, *self._queue):
            exchange.space.finish()
        self._queue.clear()

    # Asked by the spaces of the answers.

    def ahead(self, space: AnswerSpace) -> tuple[bool, int]:
        """Whether the space's answer is the next one, and bytes that the client has to read before.

        Without an order every answer is the next one while no other one has bytes.
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
        """Wake `waiter` when the client has read something, or its answer may be the next one."""
        self._starved.append(waiter)

    def feed(self) -> None:
        """Let the fetches look again that could read nothing."""
        starved, self._starved = self._starved, []
        for waiter in starved:
            waiter.wake()
