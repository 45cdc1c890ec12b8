"""`Pipeline`: requests and answers of one socket: correlation ids, bounds, deadlines. Callers know their meaning.

Requests leave in the order of the calls, up to two bounds (unanswered requests, and their bytes); all others wait.
Answers are matched by correlation id, in any order. The connection ends, once and with one reason that every caller
gets, when the peer closes it, when an answer cannot be read, has no request or is late, and by `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from flowshare.client.errors import ClientError, ConnectionLost, NotConnected
from flowshare.forks import hold_alone

if TYPE_CHECKING:
    from flowshare.client.settings import LinkSettings
    from flowshare.clock import Clock, TimerHandle

T = TypeVar("T")

WAITING_MAX: Final = 10_000
"""The most requests that may wait for their turn; each belongs to a task that waits for its answer."""
BUFFER_BYTES: Final = 1 << 20
"""The most bytes that may wait in the socket's own buffer before the next request is held back."""
ID_MAX: Final = 0x7FFFFFFF
logger = logging.getLogger(__name__)
_ID: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">i")
_SHORTEST: Final = 4
"""The shortest answer, in bytes: every answer begins with its correlation id."""


class AnswerFrameError(ValueError):
    """The bytes cannot be answers; the text says why."""


class AnswerFrames:
    """Cuts a server's bytes into answers: an int32 length and that many bytes (Kafka protocol guide).

    An answer in one piece is sliced; an answer in many pieces is joined once, when it is complete.
    """

    def __init__(self, bytes_max: int) -> None:
        """bytes_max: the longest answer accepted; a longer one is refused as soon as its length is known."""
        self._bytes_max = bytes_max
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = _LENGTH.size

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the answers that are complete with `data`, without their lengths. Raises: AnswerFrameError."""
        self._have += len(data)
        self._pieces.append(data)
        if self._have < self._need:
            return
        data = b"".join(self._pieces) if len(self._pieces) > 1 else data
        position, end = 0, len(data)
        self._pieces.clear()
        self._need = _LENGTH.size
        while end - position >= self._need:
            (length,) = _LENGTH.unpack_from(data, position)
            if not _SHORTEST <= length <= self._bytes_max:
                raise AnswerFrameError(f"a frame of {length} bytes; {_SHORTEST} to {self._bytes_max} are allowed")
            frame_end = position + _LENGTH.size + length
            if frame_end > end:
                self._need = _LENGTH.size + length
                break
            yield data[position + _LENGTH.size : frame_end]
            position = frame_end
        self._have = end - position
        if self._have:
            self._pieces.append(data[position:])


class AwaitedAnswer:
    """Waits for an answer and calls `told` with itself as soon as it is read; a future's waiter runs one turn of the
    loop later."""

    __slots__ = ("_done", "_error", "_result", "_told")

    def __init__(self, told: Callable[[AwaitedAnswer], object]) -> None:
        self._told = told
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """True if the answer was passed to `told`."""
        return self._done

    def result(self) -> Any:
        """Return the answer. Raises: the error for which there is none."""
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self) -> BaseException | None:
        """Return the error for which there is no answer."""
        return self._error

    def set_result(self, result: Any) -> None:
        """Set the answer."""
        self._result = result
        self._tell()

    def set_exception(self, error: BaseException) -> None:
        """Set the error for which there is no answer."""
        self._error = error
        self._tell()

    def _tell(self) -> None:
        self._done = True
        try:
            self._told(self)
        except Exception:
            logger.exception("what waited for an answer failed")


Waits = asyncio.Future[Any] | AwaitedAnswer
"""The receiver of an answer."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    """One request: functions that write it and read its answer, and the receiver of the answer."""

    write: Callable[[int], bytes]
    read: Callable[[bytes], Any]
    name: str
    limit_s: float
    waits: Waits
    size: int = 0
    deadline_s: float = 0.0


class Pipeline(asyncio.Protocol):
    """One connection. about: the broker's name in every message."""

    def __init__(self, *, about: str, clock: Clock, settings: LinkSettings) -> None:
        self.about = about
        self._clock = clock
        self._settings = settings
        self._frames = AnswerFrames(settings.max_response_bytes)
        self._under_way: dict[int, _Call] = {}
        self._bytes = 0
        self._waiting: deque[_Call] = deque()
        self._next_id = 0
        self._paused = False
        self._held = False
        self._watch: TimerHandle | None = None
        self._watch_at_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._gone = asyncio.get_running_loop().create_future()
        self._heard: list[Callable[[str], object]] = []
        self.ended: str | None = None
        """The reason why the connection is over; None while it is open."""

    def call(
        self,
        write: Callable[[int], bytes],
        read: Callable[[bytes], T],
        *,
        name: str,
        wait_s: float = 0.0,
        at_once: bool = False,
    ) -> asyncio.Future[T]:
        """Send a request; return its answer as a future. write: makes the frame for a correlation id. read: reads the
        answer.

        The request takes its place in the order of requests before this returns; at_once: before all others, also while
        they are held. The connection is ended without an answer within request_timeout + `wait_s` seconds after the
        request left. Raises (at once or through the future): NotConnected (never sent), ConnectionLost, ClientError
        (cannot be written; too many requests wait).
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.begin(future, write, read, name=name, wait_s=wait_s, at_once=at_once)
        return future

    def begin(
        self,
        waits: Waits,
        write: Callable[[int], bytes],
        read: Callable[[bytes], Any],
        *,
        name: str,
        wait_s: float = 0.0,
        at_once: bool = False,
    ) -> None:
        """Send a request as `call`, with another receiver than a future."""
        if self.ended is not None:
            raise NotConnected(f"{self.about}: {self.ended}")
        if len(self._waiting) >= WAITING_MAX:
            raise ClientError(f"{self.about}: {WAITING_MAX} requests wait already; send fewer at a time")
        limit_s = self._settings.request_timeout + wait_s
        made = _Call(write=write, read=read, name=name, limit_s=limit_s, waits=waits)
        if at_once:
            self._send(made)
        else:
            self._waiting.append(made)
            self._go_on()

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Hold back all requests but those `at_once` within the context: Kafka's brokers take no others during a
        login."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self._go_on()

    async def close(self) -> None:
        """End the connection; requests that wait for an answer get ConnectionLost at once. Closing twice does no
        harm."""
        self.end("the connection was closed")
        await self.wait_ended()

    async def wait_ended(self) -> None:
        """Wait until the connection is over. A caller that is cancelled leaves other waiters alone."""
        await asyncio.shield(self._gone)

    def on_ended(self, listener: Callable[[str], object]) -> None:
        """Call `listener` with the reason as soon as the connection is over."""
        self._heard.append(listener)

    def end(self, reason: str) -> None:
        """End the connection for a reason that all callers get."""
        if self.ended is not None:
            return
        self.ended = reason
        if self._watch is not None:
            self._watch.cancel()
        text = f"{self.about}: {reason}"
        for call in self._under_way.values():
            _fail(call, ConnectionLost(text))
        for call in self._waiting:
            _fail(call, NotConnected(text))
        self._under_way.clear()
        self._waiting.clear()
        if self._transport is None:
            self._gone.set_result(None)
        else:
            self._transport.abort()
        for listener in self._heard:
            listener(text)

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take in that the socket is open."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES)
        socket = transport.get_extra_info("socket")
        if socket is not None:
            hold_alone(socket.fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        """Take in that the socket was closed, from either end."""
        self.end("the broker closed the connection" if exc is None else f"the connection broke: {exc}")
        if not self._gone.done():
            self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take in bytes: part of an answer, or several answers."""
        try:
            for frame in self._frames.feed(data):
                self._answered(frame)
                if self.ended is not None:
                    return
        except AnswerFrameError as error:
            self.end(f"this is not Kafka's protocol: {error}; check the port, and whether it expects TLS")
        self._go_on()

    def pause_writing(self) -> None:
        """Pause sending: the peer reads slower than this end writes."""
        self._paused = True

    def resume_writing(self) -> None:
        """Resume sending: the peer has read the buffered bytes."""
        self._paused = False
        self._go_on()

    # --- parts --------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Send the requests that may leave."""
        while (
            self._waiting
            and not self._paused
            and not self._held
            and len(self._under_way) < self._settings.max_in_flight_requests
            and self._bytes < self._settings.max_in_flight_bytes
            and self.ended is None
        ):
            call = self._waiting.popleft()
            if not call.waits.done():
                self._send(call)

    def _send(self, call: _Call) -> None:
        self._next_id = (self._next_id + 1) & ID_MAX
        try:
            frame = call.write(self._next_id)
        except Exception as error:  # noqa: BLE001 - of kio's many kinds none is the connection's fault
            call.waits.set_exception(ClientError(f"{call.name} cannot be written: {error or type(error).__name__}"))
            return
        assert self._transport is not None, "requests come after connection_made"
        call.size = len(frame)
        call.deadline_s = self._clock.monotonic() + call.limit_s
        self._under_way[self._next_id] = call
        self._bytes += call.size
        self._transport.write(frame)
        if self._watch is None or call.deadline_s < self._watch_at_s:
            self._watch_until(call.deadline_s)

    def _answered(self, frame: bytes) -> None:
        (number,) = _ID.unpack_from(frame)
        call = self._under_way.pop(number, None)
        if call is None:
            self.end(f"an answer came that nobody asked for (correlation id {number})")
            return
        self._bytes -= call.size
        if call.waits.done():
            return  # whoever asked has gone
        try:
            answer = call.read(frame)
        except Exception as error:  # noqa: BLE001 - whatever is raised, these bytes are no such answer
            text = f"the answer to {call.name} cannot be read: {error or type(error).__name__}"
            _fail(call, ConnectionLost(f"{self.about}: {text}"))
            self.end(text)
        else:
            call.waits.set_result(answer)

    def _watch_until(self, when_s: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch_at_s = when_s
        self._watch = self._clock.call_later(when_s - self._clock.monotonic(), self._late)

    def _late(self) -> None:
        """End the connection if an answer is overdue."""
        self._watch = None
        if not self._under_way:
            return
        first = min(self._under_way.values(), key=lambda call: call.deadline_s)
        if first.deadline_s <= self._clock.monotonic():
            self.end(f"no answer to {first.name} within {first.limit_s:g} s")
        else:
            self._watch_until(first.deadline_s)


def _fail(call: _Call, error: Exception) -> None:
    if not call.waits.done():
        call.waits.set_exception(error)
        call.waits.exception()  # a caller that has gone must not make the loop complain
